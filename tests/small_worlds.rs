//! Every program of a few operations over two streams and two host threads, up to symmetry, at a limit of two units.
//!
//! The simple version of exhaustive would be every sequence of operations with every operand. Programs that only differ by
//! the names of streams or blocks are one program here: the first block is allocated on stream 0. So are those that only
//! differ by which thread makes which call: calls are whole and follow one another (`tests/mutants.rs` stops threads
//! inside them), and between two of them a thread keeps nothing (`tests/architecture.rs`, G4). That this is so is shown
//! and not only said: shorter programs are run in all ways of dealing their calls to two threads, and each way comes to
//! the same addresses, the same calls of the driver, the same checks of the oracle and the same report.
//!
//! What the device has done by the time it is asked is part of the program too: before each operation that may ask, each
//! stream with work pending has run it, or not, or has run it and the first question is answered "not yet" all the same.
//! Between the two lies a device of which some markers are done and others are not: so programs are also run on a device
//! that may stand anywhere, behind any number of each stream's operations that the other stream lets it come to.
//!
//! Not enumerated: a second "not yet" in one call, a device that runs while a call asks it several times (some random
//! programs have one), and what two threads do inside calls: calls are whole here, and the schedules inside them are
//! `tests/threads_loom.rs`'s and `tests/threads_shuttle.rs`'s.
//!
//! Each program is correct itself: uses come behind what they conflict with. Each must satisfy both oracles, leave the
//! heaps sound and strand nothing. `MILLPOND_WORLDS` sets the length, 4 unless said: `.ci/worlds 5` does that, and
//! `.ci/worlds 6 3 40` judges the third of forty parts of all programs of six, so that they can be judged piece by piece.
//! `MILLPOND_WORLDS_DEALT` sets the length of those that are dealt to two threads, `MILLPOND_WORLDS_ANYWHERE` of those on a
//! device that stands anywhere.
//!
//! Each operation more is some 35 times the programs: 81,904 of 4 take 5 s of a processor's time, 2,893,900 of 5 some 200 s
//! (with 655,232 of 4 by two threads; one run, all judged right), and 6 would take more than an hour and a half; 188,629 of
//! 4 on a device that stands anywhere take some 16 s. Programs that differ by the order of two operations which touch
//! neither the same stream nor the same block are not taken for one: the order decides which ranges merge first and which
//! numbers markers have, which is what some bugs are about.

mod cases;

use cases::{Block, Outcome, World, said};
use millpond::driver::sim::oracle::Tally;
use millpond::driver::sim::{Ledger, Sim};
use millpond::units::{Addr, MIB};
use millpond::{Stream, Trim};
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    /// So many units on a stream, written at once.
    Alloc(u64, usize),
    Free(usize),
    FreeUnknown(usize),
    /// A recorded write of a block by the stream that is not its home, and a read.
    Writes(usize),
    Reads(usize),
    /// A read by its home.
    Home(usize),
    /// A stream waits for the other.
    Wait(usize),
    Sync(usize),
    Trim,
    Close(usize),
}

/// All that a stream has queued.
const ALL: usize = usize::MAX;

/// What the device did before an operation that may ask it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Device {
    /// Stream by stream: how many of the operations that it has queued have run.
    runs: [usize; 2],
    /// The first question is answered "not yet", whatever ran.
    shy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    verb: Verb,
    device: Device,
    thread: usize,
}

/// What decides which steps are possible next.
#[derive(Clone, Default)]
struct Shape {
    blocks: Vec<Option<usize>>,
    closed: [bool; 2],
    pending: [bool; 2],
}

impl Shape {
    fn verbs(&self) -> Vec<Verb> {
        let mut verbs = Vec::new();
        let open = |s: usize| !self.closed[s];
        let first = self.blocks.is_empty();
        for s in (0..if first { 1 } else { 2 }).filter(|&s| open(s)) {
            verbs.extend([Verb::Alloc(1, s), Verb::Alloc(2, s)]);
        }
        if first {
            // Nothing before the first block leaves a trace.
            return verbs;
        }
        for (b, home) in self.blocks.iter().enumerate().filter_map(|(b, home)| Some((b, (*home)?))) {
            verbs.extend([Verb::Free(b), Verb::FreeUnknown(b)]);
            if open(home) {
                verbs.push(Verb::Home(b));
                if open(1 - home) {
                    verbs.extend([Verb::Writes(b), Verb::Reads(b)]);
                }
            }
        }
        for s in (0..2).filter(|&s| open(s)) {
            verbs.push(Verb::Close(s));
            if self.pending[s] {
                verbs.push(Verb::Sync(s));
                if open(1 - s) {
                    verbs.push(Verb::Wait(1 - s));
                }
            }
        }
        verbs.push(Verb::Trim);
        verbs
    }

    /// What the device may have done before an operation, where stream `s` may have run as much as one of `amounts(s)`.
    fn devices<A: IntoIterator<Item = usize>>(
        &self,
        verb: Verb,
        amounts: impl Fn(usize) -> A,
    ) -> Vec<Device> {
        let mut all = vec![Device::default()];
        if !matches!(verb, Verb::Alloc(..) | Verb::Trim) {
            return all;
        }
        for s in (0..2).filter(|&s| self.pending[s] && !self.closed[s]) {
            let still = all.clone();
            for amount in amounts(s) {
                all.extend(still.iter().map(|d| {
                    let mut ran = *d;
                    ran.runs[s] = amount;
                    ran
                }));
            }
        }
        let shy: Vec<_> =
            all.iter().filter(|d| d.runs != [0; 2]).map(|d| Device { shy: true, ..*d }).collect();
        all.extend(shy);
        all
    }

    fn steps<A: IntoIterator<Item = usize>>(&self, amounts: impl Fn(usize) -> A) -> Vec<Step> {
        let step = |verb, device| Step { verb, device, thread: 0 };
        let of = |verb| self.devices(verb, &amounts).into_iter().map(move |device| step(verb, device));
        self.verbs().into_iter().flat_map(of).collect()
    }

    /// All steps with a device that has run all or nothing.
    fn steps_of_all(&self) -> Vec<Step> {
        self.steps(|_| [ALL])
    }

    fn after(&self, step: Step) -> Shape {
        let mut next = self.clone();
        for s in 0..2 {
            next.pending[s] &= step.device.runs[s] == 0;
        }
        match step.verb {
            Verb::Alloc(_, s) => {
                next.blocks.push(Some(s));
                next.pending[s] = true;
            }
            Verb::Free(b) | Verb::FreeUnknown(b) => next.blocks[b] = None,
            Verb::Writes(b) | Verb::Reads(b) => {
                next.pending[1 - self.blocks[b].expect("live")] = true;
            }
            Verb::Home(b) => next.pending[self.blocks[b].expect("live")] = true,
            Verb::Sync(s) => next.pending[s] = false,
            Verb::Close(s) => next.closed[s] = true,
            Verb::Wait(_) | Verb::Trim => {}
        }
        next
    }
}

/// A second host thread, for as long as the test runs.
struct Second(Sender<Box<dyn FnOnce() + Send>>);

impl Second {
    fn new() -> Second {
        let (to, from) = channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || {
            for call in from {
                call();
            }
        });
        Second(to)
    }

    /// Runs a call there and waits for it.
    fn run<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let call = move || drop(done.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))));
        self.0.send(Box::new(call)).expect("the second thread lives");
        result.recv().expect("the second thread answers").unwrap_or_else(|p| std::panic::resume_unwind(p))
    }
}

/// A block and what was done to it.
struct Held {
    block: Block,
    home: usize,
    /// The other stream wrote it, or read it.
    written: bool,
    read: bool,
    home_read: bool,
}

struct Run {
    w: World,
    streams: [Option<Stream<Sim>>; 2],
    blocks: Vec<Option<Held>>,
    /// Where each allocation was; none if it failed.
    addresses: Vec<Option<Addr>>,
}

/// What a program came to: where its allocations were, what the device was asked, holds and saw, and what the pools say.
#[derive(PartialEq, Default, Debug)]
struct Seen {
    addresses: Vec<Option<Addr>>,
    ledger: Ledger,
    tally: Tally,
    report: String,
}

impl Seen {
    fn of(w: &World, addresses: Vec<Option<Addr>>) -> Seen {
        Seen { addresses, ledger: w.sim.ledger(), tally: w.sim.tally(), report: w.gpu.report().to_string() }
    }
}

impl Run {
    fn stream(&self, s: usize) -> &Stream<Sim> {
        self.streams[s].as_ref().expect("open")
    }

    fn step(&mut self, verb: Verb) -> Outcome {
        match verb {
            Verb::Alloc(units, s) => {
                let stream = self.stream(s);
                // A wish that fails is part of the program.
                let held = match self.w.gpu.alloc(units * MIB, stream) {
                    Ok(block) => {
                        self.w.write(&block, stream)?;
                        Some(Held { block, home: s, written: false, read: false, home_read: false })
                    }
                    Err(e) if e.out_of_memory().is_some() => None,
                    Err(e) => return Err(said(e)),
                };
                self.addresses.push(held.as_ref().map(|h| h.block.address()));
                self.blocks.push(held);
            }
            Verb::Free(b) => drop(self.blocks[b].take()),
            Verb::FreeUnknown(b) => {
                if let Some(held) = self.blocks[b].take() {
                    held.block.free_unknown();
                }
            }
            Verb::Writes(b) | Verb::Reads(b) => {
                let Some(mut held) = self.blocks[b].take() else { return Ok(()) };
                let (home, other) = (self.stream(held.home), self.stream(1 - held.home));
                let writes = matches!(verb, Verb::Writes(_));
                if !held.written && !held.read || (writes && held.home_read) {
                    other.wait_stream(home).map_err(said)?;
                }
                held.block.record_use(other).map_err(said)?;
                if writes {
                    self.w.write(&held.block, other)?;
                } else {
                    self.w.read(&held.block, other)?;
                }
                held.written |= writes;
                held.read = true;
                self.blocks[b] = Some(held);
            }
            Verb::Home(b) => {
                let Some(mut held) = self.blocks[b].take() else { return Ok(()) };
                let home = self.stream(held.home);
                match &self.streams[1 - held.home] {
                    Some(other) if held.written => home.wait_stream(other).map_err(said)?,
                    None if held.written => self.w.gpu.synchronize().map_err(said)?,
                    _ => {}
                }
                self.w.read(&held.block, home)?;
                held.home_read = true;
                self.blocks[b] = Some(held);
            }
            Verb::Wait(s) => self.stream(s).wait_stream(self.stream(1 - s)).map_err(said)?,
            Verb::Sync(s) => self.stream(s).synchronize().map_err(said)?,
            Verb::Trim => drop(self.w.gpu.trim(Trim::All).map_err(said)?),
            Verb::Close(s) => self.streams[s] = None,
        }
        Ok(())
    }

    fn new(hasty: bool) -> Run {
        let w = if hasty { World::hasty(2) } else { World::at(2) };
        Run { streams: w.streams().map(Some), w, blocks: Vec::new(), addresses: Vec::new() }
    }

    /// The device runs so much of each stream, in whatever order the streams let each other go on. Gives how much it ran.
    fn advance(&self, so_much: [usize; 2]) -> Result<[usize; 2], String> {
        let mut ran = [0; 2];
        loop {
            let before = ran;
            for s in 0..2 {
                while ran[s] < so_much[s] && self.w.sim.advance(self.stream(s).native()).map_err(said)? {
                    ran[s] += 1;
                }
            }
            if ran == before {
                return Ok(ran);
            }
        }
    }

    /// The steps one after the other, checked from `known` on. `None`: the device cannot have come to stand where they say.
    fn play(mut self, steps: &[Step], known: usize, second: &Second) -> Result<Option<Run>, String> {
        for (at, step) in steps.iter().enumerate() {
            let runs = step.device.runs;
            let ran = self.advance(runs)?;
            if (0..2).any(|s| runs[s] != ALL && ran[s] < runs[s]) {
                return Ok(None);
            }
            self.w.sim.not_ready(u32::from(step.device.shy));
            let verb = step.verb;
            if step.thread == 0 {
                self.step(verb)?;
            } else {
                let result;
                (self, result) = second.run(move || {
                    let result = self.step(verb);
                    (self, result)
                });
                result?;
            }
            self.w.sim.clear_faults();
            if at >= known {
                self.w.gpu.check();
            }
        }
        Ok(Some(self))
    }
}

/// Judges a program, whose first steps, `known` of them, another one began with: they were checked there. `None`, where
/// the device cannot do what it says.
fn run(steps: &[Step], known: usize, hasty: bool, second: &Second) -> Result<Option<Seen>, String> {
    let mut seen = None;
    let outcome = cases::judge(|| {
        let Some(run) = Run::new(hasty).play(steps, known, second)? else { return Ok(()) };
        seen = Some(Seen::of(&run.w, run.addresses));
        drop(run.blocks);
        if hasty {
            run.w.all_back()?;
        }
        run.w.whole_limit()?;
        run.w.all_back()?;
        drop(run.streams);
        run.w.end()
    });
    outcome.map(|()| seen)
}

/// As [`run`], of a program that is right.
fn judged(steps: &[Step], known: usize, hasty: bool, second: &Second) -> Option<Seen> {
    run(steps, known, hasty, second).unwrap_or_else(|e| panic!("hasty {hasty}:\n{}\n{e}", told(steps)))
}

fn told(steps: &[Step]) -> String {
    steps.iter().map(|s| format!("  {s:?}")).collect::<Vec<_>>().join("\n")
}

/// In how many ways so many calls are dealt to threads: by symmetry the first one is thread 0's.
fn ways(calls: usize, threads: bool) -> usize {
    if threads { 1 << (calls - 1) } else { 1 }
}

/// So many steps begin what one worker explores on its own.
const DEALT: usize = 3;

/// Every program that begins like this and is so much longer, judged: how many. Of their steps `known` were checked.
fn explore(
    steps: &mut Vec<Step>,
    shape: &Shape,
    left: usize,
    mut known: usize,
    threads: bool,
    second: &Second,
) -> usize {
    // A program is judged once it is as long as it gets: its beginnings are checked on the way, by the first that has them.
    if left == 0 {
        let ways = ways(steps.len(), threads);
        for hasty in [false, true] {
            let by_one = judged(steps, known, hasty, second);
            for dealt in 1..ways {
                for (at, step) in steps.iter_mut().skip(1).enumerate() {
                    step.thread = dealt >> at & 1;
                }
                let by_two = judged(steps, known, hasty, second);
                assert!(
                    by_two == by_one,
                    "it matters which thread calls:\n{}\n{by_two:#?}\nand by one\n{by_one:#?}",
                    told(steps)
                );
            }
            for step in steps.iter_mut() {
                step.thread = 0;
            }
        }
        return 2 * ways;
    }
    let mut programs = 0;
    for step in shape.steps_of_all() {
        steps.push(step);
        programs += explore(steps, &shape.after(step), left - 1, known, threads, second);
        steps.pop();
        known = steps.len();
    }
    programs
}

/// The steps that may follow these on a device that may stand anywhere, and what decides about the next ones. None, if
/// it cannot stand where these say.
fn steps_anywhere(steps: &[Step], hasty: bool, second: &Second) -> Vec<Step> {
    let mut shape = steps.iter().fold(Shape::default(), |shape, &step| shape.after(step));
    let mut queued = None;
    let outcome = cases::judge(|| {
        if let Some(run) = Run::new(hasty).play(steps, steps.len(), second)? {
            queued = Some(run.advance(shape.closed.map(|closed| if closed { 0 } else { ALL }))?);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("hasty {hasty}:\n{}\n{e}", told(steps)));
    let Some(queued) = queued else { return Vec::new() };
    shape.pending = queued.map(|n| n > 0);
    shape.steps(|s| 1..=queued[s])
}

/// As [`explore`], on a device that may stand anywhere, for one kind of host.
fn explore_anywhere(
    steps: &mut Vec<Step>,
    left: usize,
    mut known: usize,
    hasty: bool,
    second: &Second,
) -> usize {
    if left == 0 {
        return usize::from(judged(steps, known, hasty, second).is_some());
    }
    let mut programs = 0;
    for step in steps_anywhere(steps, hasty, second) {
        steps.push(step);
        programs += explore_anywhere(steps, left - 1, known, hasty, second);
        steps.pop();
        known = steps.len();
    }
    programs
}

/// As [`all`], on a device that may stand anywhere.
fn all_anywhere(length: usize, (part, of): (usize, usize)) -> usize {
    let second = Second::new();
    let mut starts = vec![(Vec::new(), false), (Vec::new(), true)];
    for _ in 1..DEALT {
        let longer = |(steps, hasty): (Vec<Step>, bool)| {
            let next = steps_anywhere(&steps, hasty, &second).into_iter();
            next.map(move |step| ([&steps[..], &[step]].concat(), hasty)).collect::<Vec<_>>()
        };
        starts = starts.into_iter().flat_map(longer).collect();
    }
    let starts: Vec<_> = starts.into_iter().skip(part - 1).step_by(of).collect();
    dealt(&starts, |(steps, hasty), second| {
        explore_anywhere(&mut steps.clone(), length - (DEALT - 1), 0, *hasty, second)
    })
}

/// All programs of a length, dealt over the processors by their first three steps; of these, every `of`th from `part` on.
fn all(length: usize, threads: bool, (part, of): (usize, usize)) -> usize {
    let mut starts = vec![(Vec::new(), Shape::default())];
    for _ in 0..DEALT {
        let longer = |(steps, shape): (Vec<Step>, Shape)| {
            let next = shape.steps_of_all().into_iter();
            next.map(move |step| ([&steps[..], &[step]].concat(), shape.after(step))).collect::<Vec<_>>()
        };
        starts = starts.into_iter().flat_map(longer).collect();
    }
    let starts: Vec<_> = starts.into_iter().skip(part - 1).step_by(of).collect();
    dealt(&starts, |(steps, shape), second| {
        explore(&mut steps.clone(), shape, length - DEALT, 0, threads, second)
    })
}

/// The programs that begin in these ways, explored by all processors: how many.
fn dealt<T: Sync>(starts: &[T], explore: impl Fn(&T, &Second) -> usize + Sync) -> usize {
    let next = AtomicUsize::new(0);
    let work = || {
        let (second, mut programs) = (Second::new(), 0);
        while let Some(start) = starts.get(next.fetch_add(1, Ordering::Relaxed)) {
            programs += explore(start, &second);
        }
        programs
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|t| {
        let all: Vec<_> = (0..workers).map(|_| t.spawn(work)).collect();
        all.into_iter().map(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).sum()
    })
}

/// A number from the environment.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name)
        .map_or(default, |n| n.parse().unwrap_or_else(|e| panic!("{name}={n:?} is no number: {e}")))
}

/// Which part of the programs to judge, of how many.
fn part() -> (usize, usize) {
    let (part, of) = (number("MILLPOND_WORLDS_PART", 1), number("MILLPOND_WORLDS_PARTS", 1));
    assert!(1 <= part && part <= of, "MILLPOND_WORLDS_PART is {part} of {of}");
    (part, of)
}

#[test]
fn all_small_programs() {
    let length = number("MILLPOND_WORLDS", 4);
    assert!(
        length >= DEALT,
        "MILLPOND_WORLDS is {length}: programs of {DEALT} operations are the shortest that say anything"
    );
    let dealt = number("MILLPOND_WORLDS_DEALT", if length > 4 { length - 1 } else { length });
    assert!(dealt >= DEALT, "MILLPOND_WORLDS_DEALT is {dealt}, and {DEALT} the least");
    let (part, of) = part();
    // Which thread makes a whole call is a symmetry. Programs by one thread stand for all, as far as asked; that they may
    // is shown less far, where each is run in all ways of dealing its calls to two.
    for (length, threads) in [(length, 1), (dealt, 2)] {
        let programs = all(length, threads == 2, (part, of));
        // Past the test harness, which shows what a passing test prints to nobody.
        let _ = writeln!(
            std::io::stderr(),
            "small worlds, part {part} of {of}: {programs} programs of {length} operations by {threads} of 2 threads{}",
            if threads == 1 {
                format!(", which stand for {} by two", programs * ways(length, true))
            } else {
                String::new()
            }
        );
        let known = COUNTS.iter().find(|c| (c.0, c.1) == (length, threads) && of == 1);
        assert!(known.is_none_or(|c| c.2 == programs), "{programs} programs, and not {known:?}");
    }
}

/// How many programs of a length there are, by one thread and by two: not fewer, which would be a hole, and not more unsaid.
const COUNTS: [(usize, usize, usize); 4] =
    [(4, 1, 81_904), (4, 2, 655_232), (5, 1, 2_893_900), (5, 2, 46_302_400)];

/// The same for those on a device that may stand anywhere.
const COUNTS_ANYWHERE: [(usize, usize); 2] = [(3, 3508), (4, 188_629)];

#[test]
fn all_small_programs_on_a_device_that_stands_anywhere() {
    let length = number("MILLPOND_WORLDS_ANYWHERE", 4);
    assert!(length >= DEALT, "MILLPOND_WORLDS_ANYWHERE is {length}, and {DEALT} the least");
    let (part, of) = part();
    let programs = all_anywhere(length, (part, of));
    let _ = writeln!(
        std::io::stderr(),
        "small worlds, part {part} of {of}: {programs} programs of {length} operations on a device that stands anywhere"
    );
    let known = COUNTS_ANYWHERE.iter().find(|c| c.0 == length && of == 1);
    assert!(known.is_none_or(|c| c.1 == programs), "{programs} programs, and not {known:?}");
}

/// What a call comes to is compared, so that one would be found that depends on its thread: of a thread's default stream
/// each has its own, and with it a pool of its own.
#[test]
fn a_call_whose_thread_matters_is_seen() {
    let second = Second::new();
    let by = |threads: [usize; 2]| {
        let (mut w, mut addresses) = (World::at(2), Vec::new());
        for thread in threads {
            let call = move || {
                let stream = w.gpu.adopt(w.sim.per_thread_stream()).expect("adopted");
                let block = w.gpu.alloc(MIB, &stream).expect("memory");
                let address = block.address();
                drop(block);
                (w, address)
            };
            let address;
            (w, address) = if thread == 0 { call() } else { second.run(call) };
            addresses.push(Some(address));
        }
        Seen::of(&w, addresses)
    };
    assert_eq!(by([0, 0]), by([0, 0]));
    assert_ne!(by([0, 0]), by([0, 1]));
}
