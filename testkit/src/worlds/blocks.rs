//! Blocks of one and two units on two streams and by two host threads, at a limit of two units.
//!
//! The obvious enumeration has every sequence of operations with every operand. Programs that only differ by
//! the names of streams or blocks are one program here: the first block is allocated on stream 0. So are those that only
//! differ by which thread makes which call: calls are atomic and follow one another (`tests/mutants.rs` stops threads
//! inside them), and between two of them a thread keeps nothing (`tests/architecture/main.rs`, G4). This symmetry is
//! tested: shorter programs are run in all ways of assigning their calls to two threads, and each way has
//! the same addresses, the same calls of the driver, the same checks of the oracle and the same report.
//!
//! What the device has run when it is queried is part of the program too: before each operation that may query it, each
//! stream with work pending has run it, or has not, or has run it and the first query is answered "not yet" all the same.
//! Between these is a device on which some markers are complete and others are not, so programs are also run on a device
//! that may be at any point: behind any number of each stream's operations that the other stream's allow.
//!
//! Not enumerated: a second "not yet" in one call, a device that runs while a call queries it several times (some random
//! programs have one), and what two threads do inside calls: calls are atomic here, and `tests/threads_loom.rs` and
//! `tests/threads_shuttle.rs` have the schedules inside them.
//!
//! Each program is correct: uses are ordered after what they conflict with. Each must satisfy both oracles, leave the
//! heaps correct and all memory available. Programs that differ by the order of two operations on different streams and
//! blocks count as two: the order decides which ranges merge first and which numbers markers have, on which some
//! bugs depend.

use super::Family;
use super::run::{ALL, Record, Run, wait};
use crate::cases::{self, Outcome, World};
use millpond::trace::{Access, BlockNo, Op, StreamNo, ThreadNo};
use millpond::units::{Addr, MIB};
use millpond_replay::Done;
use millpond_sim::Ledger;
use millpond_sim::oracle::Tally;
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Sender, channel};

/// What the device did before an operation that may query it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Device {
    /// For each stream, how many of its queued operations have run.
    runs: [u32; 2],
    /// The first query is answered "not yet", whatever ran.
    not_yet: bool,
}

/// One step of a program: an operation with what belongs to it, which is the waits that make a use correct or the write of a new block.
#[derive(Clone, Debug)]
pub struct Step {
    device: Device,
    ops: Vec<Op>,
    thread: u16,
}

/// A block's home and its uses so far.
#[derive(Clone, Copy)]
struct Life {
    home: u16,
    /// The other stream wrote it, or used it at all.
    written: bool,
    used: bool,
    home_read: bool,
}

/// What decides which steps are possible next.
#[derive(Clone, Default)]
pub struct Shape {
    blocks: Vec<Option<Life>>,
    closed: [bool; 2],
    pending: [bool; 2],
}

impl Shape {
    fn open(&self, s: u16) -> bool {
        !self.closed[usize::from(s)]
    }

    /// Allocates so many units on a stream and writes them.
    fn alloc(&self, units: u64, s: u16) -> Vec<Op> {
        let (block, stream) = (BlockNo(self.blocks.len() as u32), StreamNo(s));
        let written = Op::Use { block, stream, access: Access::Write, recorded: false };
        vec![Op::Alloc { block, bytes: units * MIB, align: None, stream }, written]
    }

    /// A recorded use of a block by the stream that is not its home, after what it conflicts with.
    fn other(block: BlockNo, life: Life, access: Access) -> Vec<Op> {
        let mut ops = Vec::with_capacity(2);
        if !life.used || (access == Access::Write && life.home_read) {
            ops.push(wait(1 - life.home, life.home));
        }
        ops.push(Op::Use { block, stream: StreamNo(1 - life.home), access, recorded: true });
        ops
    }

    /// A read by the home stream, after what the other stream wrote.
    fn home(&self, block: BlockNo, life: Life) -> Vec<Op> {
        let mut ops = Vec::with_capacity(2);
        if life.written {
            ops.push(if self.open(1 - life.home) { wait(life.home, 1 - life.home) } else { Op::SyncDevice });
        }
        let stream = StreamNo(life.home);
        ops.push(Op::Use { block, stream, access: Access::Read, recorded: false });
        ops
    }

    fn next(&self) -> Vec<Vec<Op>> {
        let mut next = Vec::new();
        let first = self.blocks.is_empty();
        for s in (0..if first { 1 } else { 2 }).filter(|&s| self.open(s)) {
            next.extend([self.alloc(1, s), self.alloc(2, s)]);
        }
        if first {
            // Nothing before the first block has an effect.
            return next;
        }
        for (b, life) in (0..).zip(&self.blocks).filter_map(|(b, life)| Some((BlockNo(b), (*life)?))) {
            next.extend([vec![Op::Free { block: b }], vec![Op::FreeUnknown { block: b }]]);
            if self.open(life.home) {
                next.push(self.home(b, life));
                if self.open(1 - life.home) {
                    next.extend([Shape::other(b, life, Access::Write), Shape::other(b, life, Access::Read)]);
                }
            }
        }
        for s in (0..2).filter(|&s| self.open(s)) {
            next.push(vec![Op::CloseStream { stream: StreamNo(s) }]);
            if self.pending[usize::from(s)] {
                next.push(vec![Op::SyncStream { stream: StreamNo(s) }]);
                if self.open(1 - s) {
                    next.push(vec![wait(1 - s, s)]);
                }
            }
        }
        next.push(vec![Op::Trim { stream: None }]);
        next
    }

    /// What the device may have done before an operation, where stream `s` may have run as much as one of `amounts(s)`.
    fn devices<A: IntoIterator<Item = u32>>(&self, ops: &[Op], amounts: impl Fn(usize) -> A) -> Vec<Device> {
        let mut all = vec![Device::default()];
        if !matches!(ops[0], Op::Alloc { .. } | Op::Trim { .. }) {
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
        let late: Vec<_> =
            all.iter().filter(|d| d.runs != [0; 2]).map(|d| Device { not_yet: true, ..*d }).collect();
        all.extend(late);
        all
    }

    fn steps<A: IntoIterator<Item = u32>>(&self, amounts: impl Fn(usize) -> A) -> Vec<Step> {
        let mut steps = Vec::new();
        for ops in self.next() {
            let step = |device| Step { device, ops: ops.clone(), thread: 0 };
            steps.extend(self.devices(&ops, &amounts).into_iter().map(step));
        }
        steps
    }

    /// All steps with a device that has run all or nothing.
    fn steps_of_all(&self) -> Vec<Step> {
        self.steps(|_| [ALL])
    }

    fn after(&self, step: &Step) -> Shape {
        let mut next = self.clone();
        for s in 0..2 {
            next.pending[s] &= step.device.runs[s] == 0;
        }
        for op in &step.ops {
            next.did(*op);
        }
        next
    }

    fn did(&mut self, op: Op) {
        let of = |b: BlockNo| b.0 as usize;
        match op {
            Op::Alloc { stream, .. } => {
                let new = Life { home: stream.0, written: false, used: false, home_read: false };
                self.blocks.push(Some(new));
            }
            Op::Free { block } | Op::FreeUnknown { block } => self.blocks[of(block)] = None,
            Op::Use { block, stream, access, .. } => {
                self.pending[usize::from(stream.0)] = true;
                let life = self.blocks[of(block)].as_mut().expect("live");
                if stream.0 == life.home {
                    life.home_read |= access == Access::Read;
                } else {
                    life.written |= access == Access::Write;
                    life.used = true;
                }
            }
            Op::SyncStream { stream } => self.pending[usize::from(stream.0)] = false,
            Op::CloseStream { stream } => self.closed[usize::from(stream.0)] = true,
            _ => {}
        }
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

/// The outcome of a program: the addresses of its allocations, the driver's calls and what they left, the oracle's checks, and the report.
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

/// The device runs so many operations of each stream, in an order that the streams' waits allow. Returns how many it ran.
fn advance(run: &mut Run, so_much: [u32; 2]) -> Result<[u32; 2], String> {
    let mut ran = [0; 2];
    loop {
        let before = ran;
        for (s, stream) in [StreamNo(0), StreamNo(1)].into_iter().enumerate() {
            let steps = so_much[s] - ran[s];
            if steps > 0
                && let Done::Ran(more) = run.op(ThreadNo(0), Op::Advance { stream, steps })?
            {
                ran[s] += more;
            }
        }
        if ran == before {
            return Ok(ran);
        }
    }
}

/// Runs the steps one after the other, with checks from `known` on. Returns `None` if the device cannot reach a point that they require.
fn play(run: Run, steps: &[Step], known: usize, second: &Second) -> Result<Option<Run>, String> {
    // After a failure a drop may not be possible.
    let mut this = ManuallyDrop::new(run);
    for (at, step) in steps.iter().enumerate() {
        let runs = step.device.runs;
        let ran = advance(&mut this, runs)?;
        if (0..2).any(|s| runs[s] != ALL && ran[s] < runs[s]) {
            drop(ManuallyDrop::into_inner(this));
            return Ok(None);
        }
        if step.device.not_yet {
            this.op(ThreadNo(0), Op::NotReady { times: 1 })?;
        }
        let thread = ThreadNo(step.thread);
        if step.thread == 0 {
            for op in &step.ops {
                this.op(thread, *op)?;
            }
        } else {
            let ops = step.ops.clone();
            let ran;
            (this, ran) = second.run(move || {
                let ran = ops.into_iter().try_for_each(|op| this.op(thread, op).map(drop));
                (this, ran)
            });
            ran?;
        }
        if step.device.not_yet {
            this.op(ThreadNo(0), Op::NotReady { times: 0 })?;
        }
        if at >= known {
            this.w.gpu.check();
        }
    }
    Ok(Some(ManuallyDrop::into_inner(this)))
}

/// Judges a program. Its first `known` steps were checked in a program with the same beginning. Returns what `look` returns after
/// the last step, or `None` if the device cannot do what the program requires.
fn run<T>(
    steps: &[Step],
    known: usize,
    hasty: bool,
    second: &Second,
    look: impl FnOnce(&Run) -> T,
) -> Result<Option<T>, String> {
    let record = Record::new(2, 2, hasty);
    let mut seen = None;
    let outcome = cases::judge(|| {
        let Some(run) = play(Run::new(&record)?, steps, known, second)? else { return Ok(()) };
        seen = Some(look(&run));
        let mut run = ManuallyDrop::new(run);
        run.free_all()?;
        ManuallyDrop::into_inner(run).end()
    });
    outcome.map(|()| seen).map_err(|wrong| record.with_program(&wrong))
}

/// The same as [`run`], for a program that must not fail.
fn judged<T>(
    steps: &[Step],
    known: usize,
    hasty: bool,
    second: &Second,
    look: impl FnOnce(&Run) -> T,
) -> Option<T> {
    run(steps, known, hasty, second, look).unwrap_or_else(|e| panic!("{e}"))
}

/// In how many ways so many calls are assigned to two threads: by symmetry the first one is thread 0's.
pub fn ways(calls: usize, threads: bool) -> usize {
    if threads { 1 << (calls - 1) } else { 1 }
}

/// A worker takes all programs that begin with the same steps: so many.
pub const DEALT: usize = 3;

/// Judges every program that begins with these steps and has `left` more, and returns how many there are. The first `known` steps were
/// checked.
fn explore(
    steps: &mut Vec<Step>,
    shape: &Shape,
    left: usize,
    mut known: usize,
    threads: bool,
    second: &Second,
) -> usize {
    // Only programs of the full length are judged; the first with a beginning checks it.
    if left == 0 {
        let ways = ways(steps.len(), threads);
        for hasty in [false, true] {
            if ways == 1 {
                judged(steps, known, hasty, second, |_| ());
                continue;
            }
            let look = |run: &Run| Seen::of(&run.w, run.addresses.clone());
            let compared = |steps: &[Step]| judged(steps, known, hasty, second, look);
            let by_one = compared(steps);
            for way in 1..ways {
                for (at, step) in steps.iter_mut().skip(1).enumerate() {
                    step.thread = (way >> at & 1) as u16;
                }
                let by_two = compared(steps);
                assert!(
                    by_two == by_one,
                    "the outcome depends on which thread calls:\n{steps:#?}\n{by_two:#?}\nand by one\n{by_one:#?}"
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
        let after = shape.after(&step);
        steps.push(step);
        programs += explore(steps, &after, left - 1, known, threads, second);
        steps.pop();
        known = steps.len();
    }
    programs
}

/// The steps that may follow these on a device that may be at any point; none if it cannot reach a point that these require.
fn steps_anywhere(steps: &[Step], hasty: bool, second: &Second) -> Vec<Step> {
    let mut shape = steps.iter().fold(Shape::default(), |shape, step| shape.after(step));
    let record = Record::new(2, 2, hasty);
    let mut queued = None;
    let outcome = cases::judge(|| {
        if let Some(mut run) = play(Run::new(&record)?, steps, steps.len(), second)? {
            queued = Some(advance(&mut run, shape.closed.map(|closed| if closed { 0 } else { ALL }))?);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|wrong| panic!("{}", record.with_program(&wrong)));
    let Some(queued) = queued else { return Vec::new() };
    shape.pending = queued.map(|n| n > 0);
    shape.steps(|s| 1..=queued[s])
}

/// The same as [`explore`], on a device that may be at any point, for one kind of host.
fn explore_anywhere(
    steps: &mut Vec<Step>,
    left: usize,
    mut known: usize,
    hasty: bool,
    second: &Second,
) -> usize {
    if left == 0 {
        return usize::from(judged(steps, known, hasty, second, |_| ()).is_some());
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

/// The same as [`all`], on a device that may be at any point.
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
    super::in_parallel(&starts, |(steps, hasty)| {
        explore_anywhere(&mut steps.clone(), length - (DEALT - 1), 0, *hasty, &Second::new())
    })
}

/// Judges all programs of a length, on all processors: a worker takes those with the same first three steps. Of these beginnings it takes
/// every `of`th from `part` on. Returns the number of runs.
pub fn all(length: usize, threads: bool, (part, of): (usize, usize)) -> usize {
    let mut starts = vec![(Vec::new(), Shape::default())];
    for _ in 0..DEALT {
        let longer = |(steps, shape): (Vec<Step>, Shape)| {
            let next = shape.steps_of_all().into_iter();
            next.map(move |step| {
                let after = shape.after(&step);
                ([&steps[..], &[step]].concat(), after)
            })
            .collect::<Vec<_>>()
        };
        starts = starts.into_iter().flat_map(longer).collect();
    }
    let starts: Vec<_> = starts.into_iter().skip(part - 1).step_by(of).collect();
    super::in_parallel(&starts, |(steps, shape)| {
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
        shape.after(step)
    }
    fn judge(&self, steps: &[Step], known: usize) -> Outcome {
        [false, true].into_iter().try_for_each(|hasty| run(steps, known, hasty, &self.0, |_| ()).map(drop))
    }
}
