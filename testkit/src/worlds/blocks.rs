//! Blocks of one and two units on two streams and by two host threads, at a limit of two units.
//!
//! The simple version of exhaustive would be every sequence of operations with every operand. Programs that only differ by
//! the names of streams or blocks are one program here: the first block is allocated on stream 0. So are those that only
//! differ by which thread makes which call: calls are whole and follow one another (`tests/mutants.rs` stops threads
//! inside them), and between two of them a thread keeps nothing (`tests/architecture/main.rs`, G4). That this is so is shown
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
//! heaps sound and strand nothing. Programs that differ by the order of two operations which touch neither the same stream nor the
//! same block are not taken for one: the order decides which ranges merge first and which numbers markers have, which is what some
//! bugs are about.

use super::{Family, told};
use crate::cases::{self, Block, Outcome, World, said};
use millpond::units::{Addr, MIB};
use millpond::{Stream, Trim};
use millpond_sim::oracle::Tally;
use millpond_sim::{Ledger, Sim};
use std::mem::ManuallyDrop;
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
pub struct Step {
    verb: Verb,
    device: Device,
    thread: usize,
}

/// What decides which steps are possible next.
#[derive(Clone, Default)]
pub struct Shape {
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
pub struct Second(Sender<Box<dyn FnOnce() + Send>>);

impl Second {
    pub fn new() -> Second {
        let (to, from) = channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || {
            for call in from {
                call();
            }
        });
        Second(to)
    }

    /// Runs a call there and waits for it.
    pub fn run<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
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
pub struct Seen {
    addresses: Vec<Option<Addr>>,
    ledger: Ledger,
    tally: Tally,
    report: String,
}

impl Seen {
    pub fn of(w: &World, addresses: Vec<Option<Addr>>) -> Seen {
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
    fn play(self, steps: &[Step], known: usize, second: &Second) -> Result<Option<Run>, String> {
        // What went wrong cannot always be dropped.
        let mut this = ManuallyDrop::new(self);
        for (at, step) in steps.iter().enumerate() {
            let runs = step.device.runs;
            let ran = this.advance(runs)?;
            if (0..2).any(|s| runs[s] != ALL && ran[s] < runs[s]) {
                drop(ManuallyDrop::into_inner(this));
                return Ok(None);
            }
            this.w.sim.not_ready(u32::from(step.device.shy));
            let verb = step.verb;
            if step.thread == 0 {
                this.step(verb)?;
            } else {
                let result;
                (this, result) = second.run(move || {
                    let result = this.step(verb);
                    (this, result)
                });
                result?;
            }
            this.w.sim.clear_faults();
            if at >= known {
                this.w.gpu.check();
            }
        }
        Ok(Some(ManuallyDrop::into_inner(this)))
    }
}

/// Judges a program, whose first steps, `known` of them, another one began with: they were checked there. `None`, where
/// the device cannot do what it says.
fn run(steps: &[Step], known: usize, hasty: bool, second: &Second) -> Result<Option<Seen>, String> {
    let mut seen = None;
    let outcome = cases::judge(|| {
        let Some(run) = Run::new(hasty).play(steps, known, second)? else { return Ok(()) };
        seen = Some(Seen::of(&run.w, run.addresses.clone()));
        let mut run = ManuallyDrop::new(run);
        run.blocks.clear();
        if hasty {
            run.w.all_back()?;
        }
        run.w.whole_limit()?;
        run.w.all_back()?;
        let Run { w, streams, .. } = ManuallyDrop::into_inner(run);
        drop(streams);
        w.end()
    });
    outcome.map(|()| seen)
}

/// As [`run`], of a program that is right.
pub fn judged(steps: &[Step], known: usize, hasty: bool, second: &Second) -> Option<Seen> {
    run(steps, known, hasty, second).unwrap_or_else(|e| panic!("hasty {hasty}:\n{}\n{e}", told(steps)))
}

/// In how many ways so many calls are dealt to threads: by symmetry the first one is thread 0's.
pub fn ways(calls: usize, threads: bool) -> usize {
    if threads { 1 << (calls - 1) } else { 1 }
}

/// So many steps begin what one worker explores on its own.
pub const DEALT: usize = 3;

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
pub fn all_anywhere(length: usize, (part, of): (usize, usize)) -> usize {
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
    super::dealt(&starts, |(steps, hasty)| {
        explore_anywhere(&mut steps.clone(), length - (DEALT - 1), 0, *hasty, &Second::new())
    })
}

/// All programs of a length, dealt over the processors by their first three steps; of these, every `of`th from `part` on.
pub fn all(length: usize, threads: bool, (part, of): (usize, usize)) -> usize {
    let mut starts = vec![(Vec::new(), Shape::default())];
    for _ in 0..DEALT {
        let longer = |(steps, shape): (Vec<Step>, Shape)| {
            let next = shape.steps_of_all().into_iter();
            next.map(move |step| ([&steps[..], &[step]].concat(), shape.after(step))).collect::<Vec<_>>()
        };
        starts = starts.into_iter().flat_map(longer).collect();
    }
    let starts: Vec<_> = starts.into_iter().skip(part - 1).step_by(of).collect();
    super::dealt(&starts, |(steps, shape)| {
        explore(&mut steps.clone(), shape, length - DEALT, 0, threads, &Second::new())
    })
}

/// The family of programs by one thread, for hosts that may wait and for hosts that may not.
pub struct Blocks(pub Second);

impl Family for Blocks {
    type Step = Step;
    type Shape = Shape;

    fn steps(&self, shape: &Shape, _left: usize) -> Vec<Step> {
        shape.steps_of_all()
    }
    fn after(&self, shape: &Shape, step: &Step) -> Shape {
        shape.after(*step)
    }
    fn judge(&self, steps: &[Step], known: usize) -> Outcome {
        [false, true].into_iter().try_for_each(|hasty| {
            run(steps, known, hasty, &self.0).map(drop).map_err(|e| format!("hasty {hasty}: {e}"))
        })
    }
}
