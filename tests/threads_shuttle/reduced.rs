//! Every schedule of a small program, without a bound: of those that come to the same, one.
//!
//! The simple version: a depth-first search that takes, wherever several threads can go on, each of them once. Two threads of
//! forty operations have 10^23 schedules. Where it departs from that:
//!
//! 1. Two operations of two threads that neither happen in a fixed order nor touch the same thing come to the same in either
//!    order. So another thread is tried at a place only if an operation of its own, later in some schedule, is in a race with the
//!    one that was made there: it touches the same, one of the two writes or both take one lock, and nothing that happened in
//!    between orders them (dynamic partial order reduction, Flanagan and Godefroid 2005).
//! 2. Which was tried at a place sleeps in what is tried there next, until something that it is in a race with is done (sleep sets,
//!    Godefroid 1996): else both orders of what comes to the same are tried elsewhere. A schedule in which all sleep is one
//!    that was tried, and ends at once.
//! 3. No other thread goes first where a lock is released, or a thread begins or ends: a thread that waits for that goes on waiting.
//! 4. An atomic that is given the value that it has is read. The search panics if a thread gives it another one meanwhile.
//! 5. Locks of some ranks are taken only to read what no thread writes in the program: what is done under one is one step, which is in a
//!    race with none. The search panics if it sees anything else done there than reading what no thread writes.
//!
//! Operations are what `millpond::sync` says before each (`sync/next.rs`), with shuttle's memory: every load sees the last store. It does
//! not know what a program does, nor whether it is right. A thread that has joined others has to say so (`next::joined`).

use millpond::sync::next::{self, Step};
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, Runner};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// How many schedules were tried: to the end, and until it was seen that they come to the same as others.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Tried {
    pub(super) whole: usize,
    pub(super) known: usize,
}

/// Runs a program in every schedule, where locks of these ranks are taken to read only.
pub(super) fn every_order(read_only: &'static [u8], program: impl Fn() + Send + Sync + 'static) -> Tried {
    let tried = Arc::default();
    let search = Reduced { read_only, tried: Arc::clone(&tried), frames: Vec::new(), now: Now::default() };
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(search, config).run(program);
    let tried = *tried.lock().expect("the search is over");
    tried
}

/// Threads, by their numbers.
type Threads = u64;

/// What was done by whom: of each thread, so many operations.
#[derive(Clone, Default)]
struct Clock(Vec<u32>);

impl Clock {
    fn of(&self, thread: usize) -> u32 {
        self.0.get(thread).copied().unwrap_or(0)
    }
    fn join(&mut self, other: &Clock) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        for (mine, &theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = theirs.max(*mine);
        }
    }
    fn count(&mut self, thread: usize) -> u32 {
        self.0.resize(self.0.len().max(thread + 1), 0);
        self.0[thread] += 1;
        self.0[thread]
    }
}

/// A place at which several threads could go on.
struct Frame {
    can: Threads,
    taken: usize,
    tried: Threads,
    to_try: Threads,
    asleep: Threads,
}

#[derive(Clone, Default)]
struct Thread {
    next: Option<Step>,
    clock: Clock,
    /// Locks that it took to read.
    reading: usize,
}

/// An operation that was made: by whom, the how manyeth of theirs, and at which place if there was a choice.
#[derive(Clone, Copy)]
struct Made {
    by: usize,
    nth: u32,
    frame: Option<usize>,
}

/// A lock or an atomic: each thread's last operations, and what they come after.
#[derive(Default)]
struct Thing {
    reads: Vec<Made>,
    writes: Vec<Made>,
    read: Clock,
    written: Clock,
    holder: Option<usize>,
    read_only: bool,
}

/// The schedule that is being tried.
#[derive(Default)]
struct Now {
    depth: usize,
    threads: Vec<Thread>,
    things: HashMap<usize, Thing>,
    asleep: Threads,
    /// One thread is left, which has waited for the others.
    over: bool,
    /// All sleep: it goes on to its end somehow.
    known: bool,
    /// Read under a lock that is taken to read, or given the value that it has; and written, while there are several threads.
    kept: HashSet<usize>,
    written: HashSet<usize>,
}

struct Reduced {
    read_only: &'static [u8],
    tried: Arc<Mutex<Tried>>,
    frames: Vec<Frame>,
    now: Now,
}

/// Whether the order of two threads' operations says nothing.
fn commute(one: Option<Step>, other: Option<Step>) -> bool {
    use Step::{Keep, Read, Take, Write};
    match (one, other) {
        (Some(Write(a)), Some(Read(b) | Keep(b) | Write(b))) | (Some(Read(a) | Keep(a)), Some(Write(b))) => {
            a != b
        }
        (Some(Take(a, _)), Some(Take(b, _))) => a != b,
        _ => true,
    }
}

fn bit(thread: usize) -> Threads {
    assert!(thread < 64, "few threads");
    1 << thread
}

impl Now {
    fn is_held(&self, step: Option<Step>) -> bool {
        matches!(step, Some(Step::Take(lock, _)) if self.things.get(&lock).is_some_and(|l| l.holder.is_some()))
    }
}

impl Reduced {
    /// Nothing that another thread does can be in a race with it.
    fn is_alone(&self, thread: usize) -> bool {
        let Thread { next, reading, .. } = &self.now.threads[thread];
        *reading > 0
            || match next {
                None | Some(Step::Release(_)) => true,
                Some(Step::Take(_, rank)) => rank.is_some_and(|rank| self.read_only.contains(&rank)),
                _ => false,
            }
    }

    /// One goes on; what it does is compared with what others did.
    fn go(&mut self, by: usize, frame: Option<usize>, several: bool) {
        let Now { threads, things, asleep, kept, written, .. } = &mut self.now;
        let step = threads[by].next.take();
        let mut races = Vec::new();
        match step {
            None => {}
            Some(Step::Release(lock)) => {
                let thing = things.entry(lock).or_default();
                thing.holder = None;
                if thing.read_only {
                    threads[by].reading -= 1;
                } else {
                    thing.written = threads[by].clock.clone();
                }
            }
            Some(Step::Take(lock, rank)) if rank.is_some_and(|rank| self.read_only.contains(&rank)) => {
                let thing = things.entry(lock).or_default();
                assert_eq!(thing.holder, None, "what is done under a lock to read is one step");
                (thing.holder, thing.read_only) = (Some(by), true);
                threads[by].reading += 1;
            }
            Some(Step::Read(at) | Step::Keep(at) | Step::Write(at) | Step::Take(at, _)) => {
                let reads = matches!(step, Some(Step::Read(_) | Step::Keep(_)));
                assert!(
                    reads || threads[by].reading == 0 || !several,
                    "only reads are made under a lock that is taken to read"
                );
                if several && (threads[by].reading > 0 || matches!(step, Some(Step::Keep(_)))) {
                    kept.insert(at);
                } else if several && matches!(step, Some(Step::Write(_))) {
                    written.insert(at);
                }
                let thing = things.entry(at).or_default();
                let clock = &mut threads[by].clock;
                let others = thing.writes.iter().chain(thing.reads.iter().filter(|_| !reads));
                races.extend(others.filter(|made| made.by != by && made.nth > clock.of(made.by)));
                clock.join(&thing.written);
                if !reads {
                    clock.join(&thing.read);
                }
                let made = Made { by, nth: clock.count(by), frame };
                let last = if reads { &mut thing.reads } else { &mut thing.writes };
                last.retain(|made| made.by != by);
                last.push(made);
                if reads {
                    thing.read.join(clock);
                } else {
                    thing.written = clock.clone();
                }
                if matches!(step, Some(Step::Take(..))) {
                    assert_eq!(thing.holder, None, "who would wait is not chosen");
                    thing.holder = Some(by);
                }
            }
        }
        for (thread, Thread { next, .. }) in threads.iter().enumerate() {
            if thread == by || !commute(*next, step) {
                *asleep &= !bit(thread);
            }
        }
        for Made { frame, .. } in races.into_iter().filter(|_| !self.now.known) {
            let Some(frame) = frame else { continue };
            let frame = &mut self.frames[frame];
            frame.to_try |= if frame.can & bit(by) != 0 { bit(by) } else { frame.can };
        }
    }

    /// Whose turn it is where several can go on, and what number that place has; none if all sleep.
    fn turn(&mut self, can: Threads, current: Option<usize>) -> Option<(usize, usize)> {
        let depth = self.now.depth;
        if depth == self.frames.len() {
            let awake = can & !self.now.asleep;
            let first = (awake != 0).then(|| awake.trailing_zeros() as usize)?;
            let taken = current.filter(|&thread| awake & bit(thread) != 0).unwrap_or(first);
            let tried = bit(taken);
            self.frames.push(Frame { can, taken, tried, to_try: tried, asleep: self.now.asleep });
        }
        let frame = &self.frames[depth];
        assert_eq!(frame.can, can, "the same choices come again");
        self.now.asleep = frame.asleep | frame.tried & !bit(frame.taken);
        self.now.depth += 1;
        Some((frame.taken, depth))
    }
}

impl Scheduler for Reduced {
    fn new_execution(&mut self) -> Option<Schedule> {
        let now = std::mem::take(&mut self.now);
        next::announced();
        if !now.threads.is_empty() {
            let broken: Vec<_> = now.kept.intersection(&now.written).collect();
            assert!(broken.is_empty(), "written, though it was to be as it is: {broken:?}");
            let mut tried = self.tried.lock().expect("no thread panics while it holds the lock");
            if now.known {
                tried.known += 1
            } else {
                tried.whole += 1
            }
            let open = |f: &Frame| f.to_try & !f.tried & !f.asleep;
            while self.frames.pop_if(|f| open(f) == 0).is_some() {}
            let frame = self.frames.last_mut()?;
            frame.taken = open(frame).trailing_zeros() as usize;
            frame.tried |= bit(frame.taken);
        }
        Some(Schedule::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, _yields: bool) -> Option<TaskId> {
        let current = current.map(usize::from);
        let runs: Vec<usize> = runnable.iter().map(|task| usize::from(task.id())).collect();
        if let Some(current) = current {
            self.now.threads[current].next = next::announced();
        }
        for &new in &runs {
            if new >= self.now.threads.len() {
                let clock = current.map(|maker| self.now.threads[maker].clock.clone()).unwrap_or_default();
                self.now.threads.resize(new + 1, Thread { clock, ..Thread::default() });
            }
        }
        let others_over = |now: &Now, me: usize| {
            let over = |(other, thread): (usize, &Thread)| {
                other == me || thread.next.is_none() && !runs.contains(&other)
            };
            now.threads.iter().enumerate().all(over)
        };
        if next::has_joined()
            && let Some(me) = current
        {
            let theirs: Vec<Clock> = (0..self.now.threads.len())
                .filter(|&other| self.now.threads[other].next.is_none() && !runs.contains(&other))
                .map(|other| self.now.threads[other].clock.clone())
                .collect();
            theirs.iter().for_each(|clock| self.now.threads[me].clock.join(clock));
            self.now.over = others_over(&self.now, me);
        }
        // One thread, before others begin and when they are over.
        if self.now.over || self.now.threads.len() == 1 {
            self.now.threads[runs[0]].next = None;
            return Some(runs[0].into());
        }
        let several = runs.len() > 1;
        let alone = |thread: &usize| self.is_alone(*thread);
        if let Some(free) =
            current.filter(|c| runs.contains(c) && alone(c)).or(runs.iter().copied().find(alone))
        {
            self.go(free, None, several);
            return Some(free.into());
        }
        let can: Vec<usize> =
            runs.iter().copied().filter(|&t| !self.now.is_held(self.now.threads[t].next)).collect();
        // No thread can go on: shuttle reports it.
        let Some(&first) = can.first() else { return Some(runs[0].into()) };
        let all = can.iter().fold(0, |all, &thread| all | bit(thread));
        let goes_on = current.filter(|c| can.contains(c)).unwrap_or(first);
        let turn = match () {
            () if self.now.known => None,
            () if can.len() > 1 => self.turn(all, current),
            () => (self.now.asleep & all == 0).then_some((first, usize::MAX)),
        };
        let Some((thread, frame)) = turn else {
            self.now.known = true;
            self.go(goes_on, None, several);
            return Some(goes_on.into());
        };
        self.go(thread, (frame != usize::MAX).then_some(frame), several);
        Some(thread.into())
    }

    fn next_u64(&mut self) -> u64 {
        unreachable!("a program that is tried in every way draws nothing")
    }
}
