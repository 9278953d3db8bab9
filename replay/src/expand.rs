//! A workload as a program: what [`replay_log`](super::replay_log) does with a log, operation by operation, in the trace language.
//!
//! It is the same work (`replay/tests/replay/logs.rs` compares what both come to), so that a workload that fails can be kept as a file,
//! read, and made small. A log is run from its acts all the same: an act is 32 bytes, the three steps of a plain call are 120, and threads that
//! run freely wait for each other by acts (docs/decisions/one-language.md).
//!
//! This file does not know what a stream or an allocator is.

use super::outcome::ReplayError;
use super::workload::{Act, Declaration, InjectedBug, Plan, What, Workload};
use millpond_trace::{Access, BlockNo, EventNo, Log, Op, Program, Step, StreamNo, ThreadNo};

/// A point behind an access of a block that a stream may wait for.
struct Mark {
    event: EventNo,
    stream: u16,
    access: Access,
    /// Whether the home stream is to wait for it before it reads.
    joined: bool,
}

/// A slot: a block while one lives in it.
#[derive(Default)]
struct Life {
    bytes: u64,
    alive: bool,
    stream: u16,
    marks: Vec<Mark>,
}

struct Expansion {
    program: Program,
    thread: ThreadNo,
    /// Events that no later wait needs.
    free_events: Vec<EventNo>,
    /// How many there are in all.
    events: u32,
}

impl Workload {
    /// One pass of a log with these options, as a program: the same allocations, uses, waits and frees. A `tick` stands behind each call
    /// of the log; [`Workload::run_ahead`] is an option of [`replay_program`](super::replay_program), and a program has no times ([`Workload::paced`]). Host threads take turns, whatever
    /// [`Workload::racy`] says.
    ///
    /// # Errors
    /// [`ReplayError::Workload`] for options that cannot be, for [`Workload::legacy`], since a program makes its streams, and for more than
    /// 65,536 points at one time that a stream may wait for.
    pub fn program(&self, log: &Log) -> Result<Program, ReplayError> {
        let plan = self.plan(log)?;
        if plan.legacy.is_some() {
            return Err(ReplayError::Workload {
                option: "legacy",
                found: "the legacy default stream".into(),
                expected: "off: a program makes its streams, and that one is there already".into(),
            });
        }
        let mut to = Expansion {
            program: Program::new(log.name.clone(), plan.streams),
            thread: ThreadNo(0),
            free_events: Vec::new(),
            events: 0,
        };
        let mut lives: Vec<Life> = Vec::new();
        lives.resize_with(plan.slots as usize, Life::default);
        for act in &plan.acts {
            to.act(act, &mut lives[act.slot as usize], &plan)?;
        }
        // What the log left alive is read and freed, too.
        to.thread = ThreadNo(0);
        for (slot, life) in (0..).zip(&mut lives).filter(|(_, life)| life.alive) {
            to.last_read(BlockNo(slot), life);
            to.emit(Op::Free { block: BlockNo(slot) });
            to.emit(Op::Tick);
        }
        Ok(to.program)
    }
}

impl Expansion {
    fn emit(&mut self, op: Op) {
        self.program.steps.push(Step { thread: self.thread, op });
    }

    /// Records an event on a stream: one that no later wait needs, or a new one.
    fn record(&mut self, stream: u16) -> Result<EventNo, ReplayError> {
        let event = match self.free_events.pop() {
            Some(event) => event,
            None => EventNo(u16::try_from(self.events).map_err(|_| ReplayError::Workload {
                option: "uses",
                found: "more than 65536 points at one time that may still be waited for".into(),
                expected: "a smaller share of the blocks".into(),
            })?),
        };
        self.events = self.events.max(u32::from(event.0) + 1);
        self.emit(Op::Record { event, stream: StreamNo(stream) });
        Ok(event)
    }

    fn act(&mut self, act: &Act, life: &mut Life, plan: &Plan) -> Result<(), ReplayError> {
        self.thread = ThreadNo(act.thread);
        let (block, stream) = (BlockNo(act.slot), StreamNo(act.stream));
        match act.what {
            What::Alloc { bytes, marked } => {
                *life = Life { bytes, alive: true, stream: act.stream, marks: Vec::new() };
                self.emit(Op::Alloc { block, bytes, align: None, stream });
                if bytes > 0 {
                    self.emit(Op::Use { block, stream, access: Access::Write, recorded: false });
                }
                if marked {
                    let event = self.record(act.stream)?;
                    life.marks.push(Mark { event, stream: act.stream, access: Access::Write, joined: false });
                }
                self.emit(Op::Tick);
            }
            What::Free => {
                self.last_read(block, life);
                self.emit(Op::Free { block });
                self.emit(Op::Tick);
            }
            What::FreeOn { other } => {
                self.last_read(block, life);
                self.emit(Op::FreeOn { block, stream: StreamNo(other) });
                self.emit(Op::Tick);
            }
            What::CrossStreamUse { number } => self.cross_use(block, life, plan, number)?,
        }
        Ok(())
    }

    /// The home stream's read just before the free.
    fn last_read(&mut self, block: BlockNo, life: &mut Life) {
        let stream = StreamNo(life.stream);
        for mark in life.marks.drain(..) {
            if mark.joined {
                self.emit(Op::Wait { stream, event: mark.event });
            }
            self.free_events.push(mark.event);
        }
        if life.bytes > 0 {
            self.emit(Op::Use { block, stream, access: Access::Read, recorded: false });
        }
        life.alive = false;
    }

    fn cross_use(
        &mut self,
        block: BlockNo,
        life: &mut Life,
        plan: &Plan,
        number: u32,
    ) -> Result<(), ReplayError> {
        if !life.alive || life.bytes == 0 {
            return Ok(());
        }
        let cross = plan.uses[number as usize];
        let stream = StreamNo(cross.stream);
        let declared = |now: Declaration| cross.declared == now && cross.bug != Some(InjectedBug::Undeclared);
        if cross.bug != Some(InjectedBug::Unordered) {
            if !life.marks.iter().any(|m| m.stream == life.stream) {
                let event = self.record(life.stream)?;
                life.marks.push(Mark { event, stream: life.stream, access: Access::Write, joined: false });
            }
            for mark in &life.marks {
                let conflict = mark.access == Access::Write || cross.access == Access::Write;
                if conflict && mark.stream != cross.stream {
                    self.emit(Op::Wait { stream, event: mark.event });
                }
            }
        }
        if declared(Declaration::Before) {
            self.emit(Op::RecordUse { block, stream });
        }
        if declared(Declaration::Share) {
            self.emit(Op::ShareWith { block, stream });
        }
        self.emit(Op::Use { block, stream, access: cross.access, recorded: false });
        if declared(Declaration::After) {
            self.emit(Op::RecordUse { block, stream });
        }
        let event = self.record(cross.stream)?;
        if declared(Declaration::Until) {
            self.emit(Op::RecordUseUntil { block, event });
        }
        let joined = cross.access == Access::Write && cross.bug != Some(InjectedBug::Unjoined);
        life.marks.push(Mark { event, stream: cross.stream, access: cross.access, joined });
        Ok(())
    }
}
