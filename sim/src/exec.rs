//! The executor: when queued operations run.
//!
//! The simple version: each stream is a queue; its head may run when what it depends on has run; run heads in any
//! order. Every such order is one that a device could have chosen. [`Schedule`] selects one: at once, as late as something
//! needs the work, or by a seeded coin. Dependencies point to operations submitted earlier, so there are no cycles and
//! [`reach`] always ends; it walks with a stack of its own, because a chain of waits can be a million long.
//!
//! It does not know what operations are for, who judges them or how long they take. A closure is taken out of the
//! world, called while the world is not borrowed, and marked finished afterwards, even if it panicked. The panic is caught
//! here, because the caller that makes the executor run may be a destructor. It is kept, and a function of [`Sim`](super::Sim)'s own
//! that is not a driver call resumes it ([`pass_on`]).

use super::memory::Reach;
use super::operation::{Name, Points};
use super::oracle::StreamKey;
use super::stream::Op;
use super::world::World;
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// When the simulated device runs queued work. Every schedule keeps the order that the program requested.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Schedule {
    /// At once, as far as possible: each call leaves nothing behind that could run. A query still answers no until virtual time
    /// has reached the end of the queried work: see [`Sim::makespan`](super::Sim::makespan).
    #[default]
    Earliest,
    /// Only when a call of the host has to wait for it. A query never makes anything run.
    Latest,
    /// After each call a coin, seeded, decides whether some operations run, and which.
    Random(u64),
}

/// How far the host runs ahead of the device.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// An operation may run by itself only after this many more ticks than it was submitted at.
    pub(super) ticks: u64,
    pub(super) now: u64,
    /// Submitted and not yet due, oldest first: (tick of submission, stream, position).
    queue: VecDeque<(u64, StreamKey, u64)>,
    /// Whether a gate was opened, and the work that it released has not been looked at yet.
    opened: bool,
}

/// A kernel's body, given the world and its position on its stream.
pub(super) type KernelCode = Box<dyn FnOnce(&RefCell<World>, (StreamKey, u64)) + Send>;

/// What an operation does when it runs.
pub(super) enum Action {
    /// Nothing: a record, a wait, a read into pageable memory that the call itself does.
    Mark,
    /// Writes a repeating word.
    Write { name: Name, addr: u64, bytes: u64, word: u64, reach: Reach },
    /// Compares with a repeating word.
    Check {
        name: Name,
        addr: u64,
        bytes: u64,
        word: u64,
        tag: Option<millpond_driver::units::AllocationId>,
        reach: Reach,
    },
    /// Copies between two ranges, pinned memory included.
    Copy { name: &'static str, dst: u64, src: u64, bytes: u64, reach: Reach },
    /// Writes bytes that were read from pageable memory at submission.
    Staged { dst: u64, data: Box<[u8]> },
    /// A kernel with a body.
    Kernel { name: Name, code: KernelCode },
    /// A host function.
    Host { name: Name, code: Box<dyn FnOnce() + Send> },
    /// Waits for a gate to be opened.
    Gate(u32),
}

impl std::fmt::Debug for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Action::Mark => "mark",
            Action::Write { .. } => "write",
            Action::Check { .. } => "check",
            Action::Copy { .. } => "copy",
            Action::Staged { .. } => "staged copy",
            Action::Kernel { .. } => "kernel",
            Action::Host { .. } => "host function",
            Action::Gate(_) => "gate",
        })
    }
}

/// Something that cannot run now, and will not by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stuck {
    pub(super) stream: StreamKey,
    pub(super) why: &'static str,
}

enum Step {
    Ran,
    Call(Callback),
    After(StreamKey, u64),
    Stuck(&'static str),
}

/// A closure on its way from the world to being called.
struct Callback {
    stream: StreamKey,
    position: u64,
    body: Body,
}

enum Body {
    Kernel(Name, KernelCode),
    Host(Name, Box<dyn FnOnce() + Send>),
}

impl World {
    /// The last position that has run on a stream; all of them once it is destroyed and drained.
    pub(super) fn done(&self, key: StreamKey) -> u64 {
        self.streams[key.0 as usize].as_ref().map_or(u64::MAX, |s| s.done)
    }

    pub(super) fn reached(&self, points: &[(StreamKey, u64)]) -> bool {
        points.iter().all(|&(k, p)| self.done(k) >= p)
    }

    /// The last positions of all streams of a device that have pending work, those of destroyed streams included.
    pub(super) fn pending(&self, device: Option<usize>) -> Points {
        let of_device = |k: &&StreamKey| device.is_none_or(|d| self.stream(**k).device == d);
        self.active.iter().filter(of_device).map(|&k| (k, self.stream(k).submitted)).collect()
    }

    /// The last positions that may run by themselves, of all streams with pending work: all positions, unless the host runs ahead.
    fn due(&self) -> Points {
        let Hold { ticks, now, .. } = self.hold;
        let due = |op: &Op| op.tick.saturating_add(ticks) <= now;
        let of_stream = |&key: &StreamKey| {
            let s = self.stream(key);
            // Oldest first.
            (key, s.submitted - s.queue.iter().rev().take_while(|op| !due(op)).count() as u64)
        };
        self.active.iter().map(of_stream).collect()
    }

    /// Runs the head of a stream, or says why not.
    fn step(&mut self, key: StreamKey) -> Step {
        let Some(stream) = &self.streams[key.0 as usize] else { return Step::Ran };
        if stream.running {
            return Step::Stuck("its host function or kernel body is running");
        }
        let Some(head) = stream.queue.front() else { return Step::Stuck("nothing is queued on it") };
        if let Some(&(k, p)) = head.deps.iter().find(|&&(k, p)| self.done(k) < p) {
            return Step::After(k, p);
        }
        if let Action::Gate(gate) = head.action
            && !self.gates[gate as usize]
        {
            return Step::Stuck("a closed gate stands on it");
        }
        let stream = self.stream_mut(key);
        let Op { action, number: position, finish, from, .. } =
            stream.queue.pop_front().expect("the head was seen above");
        self.ran_until = self.ran_until.max(finish);
        (self.runs_from, self.runs_at) = (from, finish);
        let stream = self.stream_mut(key);
        let body = match action {
            Action::Kernel { name, code } => Body::Kernel(name, code),
            Action::Host { name, code } => Body::Host(name, code),
            simple => {
                self.run(key, position, simple);
                self.finish(key);
                return Step::Ran;
            }
        };
        stream.running = true;
        self.callbacks += 1;
        Step::Call(Callback { stream: key, position, body })
    }

    /// Runs an operation that is no closure.
    fn run(&mut self, stream: StreamKey, position: u64, action: Action) {
        let memory = &mut self.memory;
        let (name, fault) = match action {
            Action::Write { name, addr, bytes, word, reach } => {
                (name, memory.write_word(addr, bytes, word, reach).err())
            }
            Action::Copy { name, dst, src, bytes, reach } => {
                (name.into(), memory.copy(dst, src, bytes, reach).err())
            }
            Action::Staged { dst, data } => {
                ("copy from pageable memory".into(), memory.write_bytes(dst, &data, Reach::Anywhere).err())
            }
            Action::Check { name, addr, bytes, word, tag, reach } => {
                match memory.first_difference(addr, bytes, word, reach) {
                    Ok(None) => return,
                    Ok(Some((at, found))) => {
                        self.differs(stream, position, name, (at, at - addr, bytes), (word, found), tag);
                        return;
                    }
                    Err(hole) => (name, Some(hole)),
                }
            }
            Action::Mark | Action::Gate(_) | Action::Kernel { .. } | Action::Host { .. } => return,
        };
        if let Some(hole) = fault {
            self.faulted(stream, position, name, hole);
        }
    }

    /// One more operation of a stream has run.
    fn finish(&mut self, key: StreamKey) {
        let stream = self.stream_mut(key);
        stream.done += 1;
        stream.running = false;
        if stream.queue.is_empty() {
            let (index, destroyed) = (stream.active_at, stream.destroyed);
            self.active.swap_remove(index);
            if let Some(&moved) = self.active.get(index) {
                self.stream_mut(moved).active_at = index;
            }
            if destroyed {
                self.remove_stream(key);
            }
        }
    }
}

impl Callback {
    /// Calls the closure while the world is not borrowed, then marks the operation finished.
    fn call(self, cell: &RefCell<World>) {
        let Callback { stream, position, body } = self;
        let name = match &body {
            Body::Host(name, _) | Body::Kernel(name, _) => name.clone(),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| match body {
            Body::Host(_, code) => code(),
            Body::Kernel(_, code) => code(cell, (stream, position)),
        }));
        let mut world = cell.borrow_mut();
        world.callbacks -= 1;
        let reported_before = outcome.err().and_then(|panic| {
            // Before the end of its stream's last operation removes a destroyed stream.
            world.panicked(stream, position, name);
            world.panic.keep(panic)
        });
        world.finish(stream);
        drop(world);
        // What it holds may re-enter the simulator when it is dropped, and may panic.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(reported_before))) {
            std::mem::forget(another);
        }
    }
}

/// The first panic of a host function or a kernel's body that has not been reported yet.
#[derive(Default)]
pub(super) struct KeptPanic(Option<Box<dyn Any + Send>>);

impl KeptPanic {
    /// Keeps a panic, or returns it if there is one already.
    fn keep(&mut self, panic: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        if self.0.is_some() {
            return Some(panic);
        }
        self.0 = Some(panic);
        None
    }
}

impl std::fmt::Debug for KeptPanic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "KeptPanic" } else { "no panic" })
    }
}

/// Resumes a kept panic on the calling thread, unless that is unwinding or inside a host function itself.
pub(super) fn pass_on(cell: &RefCell<World>) {
    if std::thread::panicking() {
        return;
    }
    let mut world = cell.borrow_mut();
    let kept = if world.callbacks == 0 { world.panic.0.take() } else { None };
    drop(world);
    if let Some(panic) = kept {
        resume_unwind(panic);
    }
}

/// Runs what it takes to reach these positions, and nothing else, except what gates that were opened on the way had blocked.
pub(super) fn reach(cell: &RefCell<World>, goals: Points) -> Result<(), Stuck> {
    let reached = only(cell, goals);
    wake_up(cell);
    reached
}

/// Runs what it takes to reach these positions, whatever gates are opened on the way.
fn only(cell: &RefCell<World>, goals: Points) -> Result<(), Stuck> {
    let mut stack = goals;
    'calls: loop {
        let mut world = cell.borrow_mut();
        while let Some(&(key, position)) = stack.last() {
            if world.done(key) >= position {
                stack.pop();
                continue;
            }
            match world.step(key) {
                Step::Ran => {}
                Step::After(k, p) => stack.push((k, p)),
                Step::Stuck(why) => return Err(Stuck { stream: key, why }),
                Step::Call(callback) => {
                    drop(world);
                    callback.call(cell);
                    continue 'calls;
                }
            }
        }
        return Ok(());
    }
}

/// Runs one operation of a stream if its head may run; returns when that ends, in virtual nanoseconds.
pub(super) fn advance(cell: &RefCell<World>, key: StreamKey) -> Option<u64> {
    let mut world = cell.borrow_mut();
    let step = world.step(key);
    let end = world.runs_at;
    drop(world);
    match step {
        Step::Ran => {}
        Step::Call(callback) => {
            callback.call(cell);
            wake_up(cell);
        }
        Step::After(..) | Step::Stuck(_) => return None,
    }
    Some(end)
}

/// Runs everything that can run; whether nothing is left.
pub(super) fn run_all(cell: &RefCell<World>) -> bool {
    let goals = cell.borrow().pending(None);
    for goal in goals {
        // A stream that is stuck says nothing about the others.
        let _ = reach(cell, Points::from_elem(goal, 1));
    }
    cell.borrow().active.is_empty()
}

/// An obstacle is gone: what can run now runs, as the schedule says, or once no callback runs any more.
pub(super) fn woken(cell: &RefCell<World>) {
    let mut world = cell.borrow_mut();
    world.hold.opened |= world.schedule == Schedule::Earliest;
    let is_random = matches!(world.schedule, Schedule::Random(_)) && world.callbacks == 0;
    drop(world);
    if is_random {
        run_randomly(cell);
    }
    wake_up(cell);
}

/// If gates were opened under [`Schedule::Earliest`], also by code that ran meanwhile: what can run now runs, if it is due.
fn wake_up(cell: &RefCell<World>) {
    loop {
        let mut world = cell.borrow_mut();
        if world.callbacks > 0 || !std::mem::take(&mut world.hold.opened) {
            return;
        }
        let goals = world.due();
        drop(world);
        for goal in goals {
            let _ = only(cell, Points::from_elem(goal, 1));
        }
    }
}

/// What the schedule does after a call of the host.
pub(super) fn after_call(cell: &RefCell<World>) {
    let mut world = cell.borrow_mut();
    let fresh = world.fresh.take();
    if world.callbacks > 0 {
        return;
    }
    match world.schedule {
        Schedule::Latest => {}
        Schedule::Earliest => {
            let Some((key, position)) = fresh else { return };
            if world.hold.ticks > 0 {
                let now = world.hold.now;
                world.hold.queue.push_back((now, key, position));
                return;
            }
            drop(world);
            let _ = reach(cell, Points::from_elem((key, position), 1));
        }
        Schedule::Random(_) => {
            drop(world);
            run_randomly(cell);
        }
    }
}

/// A random number decides how much runs now.
fn run_randomly(cell: &RefCell<World>) {
    loop {
        let mut world = cell.borrow_mut();
        if world.active.is_empty() || world.random.next() & 1 == 0 {
            return;
        }
        let coin = world.random.next();
        let key = world.active[(coin >> 8) as usize % world.active.len()];
        let due =
            |op: Option<&Op>| op.is_some_and(|o| o.tick.saturating_add(world.hold.ticks) <= world.hold.now);
        let stream = world.stream(key);
        if coin.is_multiple_of(8) && due(stream.queue.back()) {
            let goal = (key, stream.submitted);
            drop(world);
            let _ = reach(cell, Points::from_elem(goal, 1));
        } else if due(stream.queue.front()) {
            drop(world);
            let _ = advance(cell, key);
        }
    }
}

/// One tick of the host's progress: due work runs, unless the schedule is [`Schedule::Latest`].
pub(super) fn tick(cell: &RefCell<World>) {
    cell.borrow_mut().hold.now += 1;
    let schedule = cell.borrow().schedule;
    match schedule {
        Schedule::Latest => {}
        Schedule::Random(_) => run_randomly(cell),
        Schedule::Earliest => loop {
            let mut world = cell.borrow_mut();
            let hold = &mut world.hold;
            let Some(&(since, key, position)) = hold.queue.front() else { return };
            if since.saturating_add(hold.ticks) > hold.now {
                return;
            }
            hold.queue.pop_front();
            drop(world);
            // Everything it depends on was submitted before it, so it is due too: order by submission is legal.
            let _ = reach(cell, Points::from_elem((key, position), 1));
        },
    }
}
