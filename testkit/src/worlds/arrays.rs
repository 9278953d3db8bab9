//! One array on two streams: fills, copies whose tokens are kept or dropped, guards with operations during their life, pinned
//! memory that other code allocates meanwhile, and one fault.
//!
//! The array fills the limit; its home is the first stream. Each of its halves has one value. A guard to write has the
//! upper half, so that operations on the lower half are possible during its life; a guard to read has the whole. At a guard's end its
//! kernel is queued, and the guard is dropped or forgotten. Sources of copies are pinned memory: small, shared ([`Arc`], in the deferred
//! drops until the copy is done), or more than 4 MiB of which the copy reads the beginning. One operation of a program may have a fault:
//! the next query, record or wait fails, or its driver call panics after its work was queued.
//!
//! At the end both streams read the array and the host waits. Then every token, every piece of pinned memory and the array have
//! to contain what they would after the operations one after the other.
//!
//! Left out, because a shorter program shows the same: an advance of the device, a new array or a guard as the last step, pinned memory
//! before a copy released some, a failing query where nothing is kept until an event. Not enumerated: a second fault, two guards at once, a
//! third stream, a device that has run a part of a stream, and a copy that panics beside a large source (the memory of a copy that
//! panicked is never released, so that the host would run out of memory).

use super::Family;
use crate::cases::{self, Outcome, World, ensure, said};
use crate::quiet;
use millpond::transfer::Part;
use millpond::units::Addr;
use millpond::{
    Config, DeviceArray, Download, DriverErrorKind, Error, Growth, Limit, PinnedArray, Reuse, Stream, Upload,
};
use millpond_sim::{Call, Launch, Sim};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Elements of the array, and of a half.
const LEN: usize = 512;
const HALF: usize = LEN / 2;
/// Elements of a large source.
const LARGE: usize = (4 << 20) + 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Small,
    Shared,
    Large,
    /// The large one, whose token is kept.
    LargeKept,
}

impl Source {
    fn is_large(self) -> bool {
        matches!(self, Source::Large | Source::LargeKept)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A new array, which a stream writes; the former one is dropped.
    New(usize),
    /// A fill of the lower half, or of all.
    Fill {
        on: usize,
        low: bool,
    },
    /// A copy into all that is accessible: the whole, or the lower half during a guard.
    Upload {
        on: usize,
        source: Source,
    },
    /// A copy of all that is accessible; its token is kept or dropped.
    Download {
        on: usize,
        keep: bool,
    },
    Guard {
        on: usize,
        write: bool,
    },
    /// The guard's kernel; then the guard is dropped or forgotten.
    End {
        forget: bool,
    },
    /// Other code allocates pinned memory and writes it.
    Pin {
        large: bool,
    },
    /// The device runs all that a stream has queued.
    Run(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Query,
    Record,
    Wait,
    Panic,
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    op: Op,
    fault: Option<Fault>,
}

/// What happened to pinned memory.
#[derive(Clone, Default)]
struct Memory {
    /// The small memory of a copy was released, and the large memory of one.
    let_go: [bool; 2],
    /// Something may be kept until an event is complete.
    kept: bool,
    /// A large source was pinned.
    large: bool,
}

#[derive(Clone, Default)]
pub struct Shape {
    born: bool,
    /// The stream of a guard, and whether it writes.
    guard: Option<(usize, bool)>,
    pinned: Memory,
    pending: [bool; 2],
    faulted: bool,
    /// A copy's call panicked.
    lost: bool,
}

impl Shape {
    fn ops(&self, left: usize) -> Vec<Op> {
        use Op::{Download, End, Fill, Guard, New, Pin, Run, Upload};
        if !self.born {
            return vec![New(0), New(1)];
        }
        let mut ops = Vec::new();
        if self.guard.is_some() {
            ops.extend([End { forget: false }, End { forget: true }]);
            // A guard has to end before the program does.
            if left == 1 {
                return ops;
            }
        }
        let under = self.guard.map(|(_, write)| write);
        for on in 0..2 {
            if under != Some(false) {
                ops.push(Fill { on, low: true });
                let sources = [Source::Small, Source::Shared, Source::Large, Source::LargeKept];
                let sources = sources.into_iter().filter(|s| !(self.lost && s.is_large()));
                ops.extend(sources.map(|source| Upload { on, source }));
            }
            if under.is_none() {
                ops.push(Fill { on, low: false });
            }
            ops.extend([true, false].map(|keep| Download { on, keep }));
            if left > 1 {
                if under.is_none() {
                    ops.extend([New(on), Guard { on, write: true }, Guard { on, write: false }]);
                }
                if self.pending[on] {
                    ops.push(Run(on));
                }
            }
        }
        ops.extend(
            [false, true]
                .into_iter()
                .filter(|&l| self.pinned.let_go[usize::from(l)])
                .map(|large| Pin { large }),
        );
        ops
    }

    fn faults(&self, op: Op) -> Vec<Option<Fault>> {
        let mut faults = vec![None];
        if self.faulted {
            return faults;
        }
        match op {
            Op::Fill { .. } | Op::Upload { .. } | Op::Download { .. } => {
                faults.extend([Fault::Record, Fault::Wait].map(Some));
                // A copy that panics returns no token, so one kind of copy is enough.
                let one = match op {
                    Op::Upload { source, .. } => source == Source::Small && !self.pinned.large,
                    Op::Download { keep, .. } => keep && !self.pinned.large,
                    _ => true,
                };
                faults.extend(one.then_some(Some(Fault::Panic)));
            }
            Op::Guard { .. } => faults.push(Some(Fault::Wait)),
            Op::End { forget } => faults.extend((!forget).then_some(Some(Fault::Record))),
            Op::New(_) | Op::Pin { .. } | Op::Run(_) => {}
        }
        if self.pinned.kept && !matches!(op, Op::End { .. } | Op::Run(_)) {
            faults.push(Some(Fault::Query));
        }
        faults
    }
}

type Array = DeviceArray<u8, Sim>;
type Pinned = PinnedArray<u8, Sim>;
type View<'a> = millpond::DeviceViewMut<'a, u8, Sim>;

struct Run {
    w: World,
    streams: [Stream<Sim>; 2],
    x: Option<Array>,
    /// The value of each half.
    holds: [u8; 2],
    /// The value of the next write.
    next: u8,
    up: Vec<(Upload<Part<Pinned>, Sim>, u8)>,
    /// Each with the bytes that it must return.
    down: Vec<(Download<u8, Sim>, Vec<u8>)>,
    /// Pinned memory of other code, with its value.
    pins: Vec<(Pinned, u8)>,
    /// A copy's call panicked: its memory is never released, because it is unknown how long the device uses it.
    lost: bool,
}

/// How an operation ended that may have had a fault.
enum Ended<T> {
    /// Without an error.
    Well(T),
    /// With an error or a panic.
    Faulted,
}

impl Run {
    /// The host has room for one large segment of pinned memory; in programs that need none only for some small ones, because
    /// large ones would take most of the search's time.
    fn new(steps: &[Step]) -> Run {
        quiet::planted();
        let large = |s: &Step| matches!(s.op, Op::Upload { source, .. } if source.is_large());
        let pinned = if steps.iter().any(large) { 16 * LARGE } else { 16 * LEN };
        let config = Config::default()
            .reuse(Reuse::WithWaits)
            .growth(Growth::Exact)
            .limit(Limit::Bytes(LEN as u64))
            .pinned_limit(pinned as u64);
        let w = World::new(config);
        Run {
            streams: w.streams(),
            w,
            x: None,
            holds: [0; 2],
            next: 1,
            up: Vec::new(),
            down: Vec::new(),
            pins: Vec::new(),
            lost: false,
        }
    }

    /// Runs an operation, whose driver call is `call`, with the fault. Returns how it ended, and whether its work was queued.
    fn meet<T, E: std::fmt::Display>(
        &mut self,
        fault: Option<Fault>,
        call: Option<Call>,
        operation: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Ended<T>, bool), String> {
        let sim = &self.w.sim;
        let Some(fault) = fault else {
            return operation().map(|t| (Ended::Well(t), true)).map_err(said);
        };
        let made = |sim: &Sim| call.map(|call| sim.ledger().calls_of(call));
        let before = made(sim);
        match (fault, call) {
            (Fault::Query, _) => sim.fail(Call::EventQuery, 1, DriverErrorKind::Other),
            (Fault::Record, _) => sim.fail(Call::EventRecord, 1, DriverErrorKind::Other),
            (Fault::Wait, _) => sim.fail(Call::StreamWaitEvent, 1, DriverErrorKind::Other),
            (Fault::Panic, Some(call)) => sim.panic_behind(call, 1),
            (Fault::Panic, None) => unreachable!("no call to panic in"),
        }
        let ended = catch_unwind(AssertUnwindSafe(operation));
        let struck = before != made(sim);
        sim.clear_faults();
        match ended {
            Ok(Ok(t)) => {
                ensure!(fault != Fault::Panic, "the call did not panic");
                Ok((Ended::Well(t), true))
            }
            Ok(Err(_)) => Ok((Ended::Faulted, struck)),
            Err(_) if fault == Fault::Panic => {
                self.lost |= call != Some(Call::MemsetD8);
                Ok((Ended::Faulted, struck))
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn value(&mut self) -> u8 {
        self.next += 1;
        self.next
    }

    /// Pinned memory whose first elements have a value.
    fn pinned(&self, large: bool, value: u8) -> Result<Pinned, String> {
        let mut host = self.w.gpu.pinned_uninit::<u8>(if large { LARGE } else { LEN }).map_err(said)?;
        host[..LEN].fill(value);
        Ok(host)
    }

    /// The bytes that a view of the whole, or of the lower half, has to have.
    fn held(&self, len: usize) -> Vec<u8> {
        [[self.holds[0]; HALF], [self.holds[1]; HALF]].concat()[..len].to_vec()
    }

    fn write(&mut self, len: usize, value: u8) {
        self.holds[..len / HALF].fill(value);
    }

    fn fill(&mut self, mut target: View<'_>, on: usize, fault: Option<Fault>) -> Outcome {
        let (value, stream) = (self.value(), self.streams[on].clone());
        let (_, queued) = self.meet(fault, Some(Call::MemsetD8), || target.fill_bytes(value, &stream))?;
        if queued {
            self.write(target.len(), value);
        }
        Ok(())
    }

    fn upload(&mut self, mut target: View<'_>, on: usize, source: Source, fault: Option<Fault>) -> Outcome {
        let (value, stream, len) = (self.value(), self.streams[on].clone(), target.len());
        let host = self.pinned(source.is_large(), value)?;
        let call = Some(Call::MemcpyHtoD);
        let queued = if source == Source::Shared {
            let host = Part::new(Arc::new(host), ..len);
            self.meet(fault, call, || target.copy_from(host, &stream).map(drop).map_err(Error::from))?.1
        } else {
            let host = Part::new(host, ..len);
            let (ended, queued) =
                self.meet(fault, call, || target.copy_from(host, &stream).map_err(Error::from))?;
            match ended {
                Ended::Well(token) if source == Source::LargeKept => self.up.push((token, value)),
                _ => {}
            }
            queued
        };
        if queued {
            self.write(len, value);
        }
        Ok(())
    }

    fn download(
        &mut self,
        from: millpond::DeviceView<'_, u8, Sim>,
        on: usize,
        keep: bool,
        fault: Option<Fault>,
    ) -> Outcome {
        let (stream, expected) = (self.streams[on].clone(), self.held(from.len()));
        let (ended, _) = self.meet(fault, Some(Call::MemcpyDtoH), || from.to_pinned(&stream))?;
        match ended {
            Ended::Well(token) if keep => self.down.push((token, expected)),
            _ => {}
        }
        Ok(())
    }

    /// An operation on the array, or on its lower half while the upper one is under a guard.
    fn operate(&mut self, target: View<'_>, step: Step) -> Outcome {
        match step.op {
            Op::Fill { on, low } => {
                let target = if low && target.len() == LEN { target.slice(..HALF) } else { target };
                self.fill(target, on, step.fault)
            }
            Op::Upload { on, source } => self.upload(target, on, source, step.fault),
            Op::Download { on, keep } => self.download(target.view(), on, keep, step.fault),
            op => self.aside(op, step.fault),
        }
    }

    /// An operation that does not access the array.
    fn aside(&mut self, op: Op, fault: Option<Fault>) -> Outcome {
        match op {
            Op::Pin { large } => {
                let value = self.value();
                let (w, len) = (self.w.gpu.clone(), if large { LARGE } else { LEN });
                if let (Ended::Well(mut host), _) = self.meet(fault, None, || w.pinned_uninit::<u8>(len))? {
                    host[..LEN].fill(value);
                    self.pins.push((host, value));
                }
            }
            Op::Run(s) => while self.w.sim.advance(self.streams[s].native()).map_err(said)? {},
            op => unreachable!("{op:?} accesses the array"),
        }
        Ok(())
    }

    /// Makes a guard and runs the steps up to its end, which are taken from `rest`.
    fn guarded(
        &mut self,
        x: &mut Array,
        (on, write): (usize, bool),
        fault: Option<Fault>,
        rest: &mut std::slice::Iter<'_, Step>,
    ) -> Outcome {
        let (stream, value, id) = (self.streams[on].clone(), self.value(), x.id().expect("bytes"));
        if write {
            let (mut low, high) = x.split_at_mut(HALF);
            let (guard, _) = self.meet(fault, None, || high.write_on(&stream))?;
            for step in rest {
                if let Op::End { forget } = step.op {
                    let Ended::Well(guard) = guard else { break };
                    let at = guard.address();
                    let theirs = Launch::new("guarded").writes(at, HALF as u64).tag(id);
                    let theirs = theirs
                        .body(move |m| (0..HALF as u64).for_each(|i| m.write(Addr(at.0 + i), &[value])));
                    self.w.sim.launch(stream.native(), theirs).map_err(said)?;
                    self.holds[1] = value;
                    self.end(guard, forget, step.fault)?;
                    break;
                }
                self.operate(low.view_mut(), *step)?;
            }
        } else {
            let (guard, _) = self.meet(fault, None, || x.read_on(&stream))?;
            for step in rest {
                match step.op {
                    Op::End { forget } => {
                        let Ended::Well(guard) = guard else { break };
                        let theirs = Launch::new("guarded").reads(guard.address(), LEN as u64).tag(id);
                        self.w.sim.launch(stream.native(), theirs).map_err(said)?;
                        self.end(guard, forget, step.fault)?;
                        break;
                    }
                    Op::Download { on, keep } => self.download(x.view(), on, keep, step.fault)?,
                    op => self.aside(op, step.fault)?,
                }
            }
        }
        Ok(())
    }

    fn end<G>(&mut self, guard: G, forget: bool, fault: Option<Fault>) -> Outcome {
        if forget {
            std::mem::forget(guard);
            return Ok(());
        }
        let end = || {
            drop(guard);
            Ok::<_, String>(())
        };
        self.meet(fault, None, end).map(drop)
    }

    /// The steps one after the other.
    fn play(&mut self, steps: &[Step], known: usize) -> Outcome {
        let mut rest = steps.iter();
        while let Some(step) = rest.next() {
            if let Op::New(by) = step.op {
                self.x = None;
                let (gpu, stream) = (self.w.gpu.clone(), self.streams[0].clone());
                // The new array is written at once, without a fault: this is one step.
                if let (Ended::Well(x), _) = self.meet(step.fault, None, || gpu.uninit(LEN, &stream))? {
                    let mut x = ManuallyDrop::new(x);
                    self.fill(x.view_mut(), by, None)?;
                    self.x = Some(ManuallyDrop::into_inner(x));
                }
            } else if let Some(x) = self.x.take() {
                // After a failure a drop may not be possible.
                let mut x = ManuallyDrop::new(x);
                if let Op::Guard { on, write } = step.op {
                    self.guarded(&mut x, (on, write), step.fault, &mut rest)?;
                } else {
                    self.operate(x.view_mut(), *step)?;
                }
                self.x = Some(ManuallyDrop::into_inner(x));
            } else if matches!(step.op, Op::Pin { .. } | Op::Run(_)) {
                self.aside(step.op, step.fault)?;
            }
            if steps.len() - rest.len() > known {
                self.w.gpu.check();
            }
        }
        Ok(())
    }

    /// Both streams read the array, the stream that is not its home first; then all contents are compared.
    fn look(&mut self) -> Outcome {
        if let Some(x) = self.x.take() {
            let x = ManuallyDrop::new(x);
            for on in [1, 0] {
                self.download(x.view(), on, true, None)?;
            }
            self.x = Some(ManuallyDrop::into_inner(x));
        }
        for (token, expected) in self.down.drain(..) {
            let found = token.wait().map_err(said)?;
            ensure!(found[..] == expected[..], "a copy returned other bytes than {:?}", ends(&expected));
        }
        for (token, value) in self.up.drain(..) {
            let source = token.wait().map_err(said)?;
            ensure!(source.iter().all(|&v| v == value), "a source whose token was kept has changed");
        }
        for (host, value) in self.pins.drain(..) {
            ensure!(host[..LEN].iter().all(|&v| v == value), "pinned memory of other code was written");
        }
        Ok(())
    }
}

/// The values of the two halves.
fn ends(bytes: &[u8]) -> (Option<&u8>, Option<&u8>) {
    (bytes.first(), bytes.last())
}

/// The family.
pub struct Arrays;

impl Family for Arrays {
    type Step = Step;
    type Shape = Shape;

    fn steps(&self, shape: &Shape, left: usize) -> Vec<Step> {
        let ops = shape.ops(left).into_iter();
        ops.flat_map(|op| shape.faults(op).into_iter().map(move |fault| Step { op, fault })).collect()
    }

    fn after(&self, shape: &Shape, step: &Step) -> Shape {
        let mut next = shape.clone();
        next.faulted |= step.fault.is_some();
        next.lost |= step.fault == Some(Fault::Panic) && !matches!(step.op, Op::Fill { .. });
        match step.op {
            Op::New(by) => {
                next.born = true;
                next.pending[by] = true;
            }
            Op::Fill { on, .. } => next.pending[on] = true,
            Op::Upload { on, source } => {
                next.pending[on] = true;
                next.pinned.large |= source.is_large();
                match source {
                    Source::Small => next.pinned.let_go[0] = true,
                    Source::Shared => (next.pinned.let_go[0], next.pinned.kept) = (true, true),
                    Source::Large => next.pinned.let_go[1] = true,
                    Source::LargeKept => {}
                }
            }
            Op::Download { on, keep } => {
                next.pending[on] = true;
                next.pinned.let_go[0] |= !keep;
            }
            Op::Guard { on, write } => next.guard = Some((on, write)),
            Op::End { .. } => {
                if let Some((on, _)) = next.guard.take() {
                    next.pending[on] = true;
                }
            }
            Op::Pin { .. } => {}
            Op::Run(s) => next.pending[s] = false,
        }
        next
    }

    fn judge(&self, steps: &[Step], known: usize) -> Outcome {
        let outcome = cases::judge(|| {
            let mut run = ManuallyDrop::new(Run::new(steps));
            run.play(steps, known)?;
            run.look()?;
            run.x = None;
            let lost = run.lost;
            if !lost {
                run.w.all_back()?;
            }
            let Run { w, streams, .. } = ManuallyDrop::into_inner(run);
            drop(streams);
            if lost {
                let World { sim, gpu } = w;
                gpu.check();
                drop(gpu);
                sim.run_until_idle();
                return sim.verdict().map(drop).map_err(said);
            }
            w.end()
        });
        let program = || steps.iter().map(|s| format!("  {s:?}")).collect::<Vec<_>>().join("\n");
        outcome.map_err(|wrong| format!("{wrong}\nby this program:\n{}", program()))
    }
}
