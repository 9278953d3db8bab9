//! The execution of a small program of the trace language, with the checks that the families have in common.
//!
//! Every operation is recorded before it runs, so that a program that fails, by a panic too, can be printed as text for
//! `millpond replay`. This module does not know which programs there are.

use crate::cases::{Outcome, World, said};
use millpond::trace::{Op, Program, Step, StreamNo, ThreadNo};
use millpond::units::Addr;
use millpond_replay::{Done, Executor};
use millpond_sim::Sim;
use std::sync::{Arc, Mutex, PoisonError};

/// All that a stream has queued: more than a small program queues.
pub(super) const ALL: u32 = 1000;

pub(super) fn number(s: impl Into<usize>) -> StreamNo {
    StreamNo(s.into() as u16)
}

/// A stream waits for all that another one has queued.
pub(super) fn wait(s: impl Into<usize>, on: impl Into<usize>) -> Op {
    Op::WaitStream { stream: number(s), on: number(on) }
}

/// The operations of a program so far. They are outside the run, which a panic destroys.
#[derive(Clone)]
pub(super) struct Record {
    steps: Arc<Mutex<Vec<Step>>>,
    streams: u16,
    mib: u64,
    hasty: bool,
}

impl Record {
    pub(super) fn new(mib: u64, streams: u16, hasty: bool) -> Record {
        Record { steps: Arc::default(), streams, mib, hasty }
    }

    fn push(&self, step: Step) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    /// A failure with the program that shows it.
    pub(super) fn with_program(&self, wrong: &str) -> String {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let program = Program::new("", self.streams).with_steps(steps);
        let may_wait = if self.hasty { "MILLPOND_WAIT_MS=0 " } else { "" };
        let mib = self.mib;
        format!(
            "{wrong}\nby this program, for `{may_wait}millpond replay --schedule latest --limit {mib}MiB --growth exact FILE`:\n{program}"
        )
    }
}

/// An allocator of a small world, and the executor on it.
pub(super) struct Run {
    pub(super) w: World,
    executor: Executor<Sim>,
    record: Record,
    /// The address of each allocation; none if it was refused, which is not a failure.
    pub(super) addresses: Vec<Option<Addr>>,
}

impl Run {
    pub(super) fn new(record: &Record) -> Result<Run, String> {
        let w = if record.hasty { World::hasty(record.mib) } else { World::at(record.mib) };
        let executor = Executor::new(&w.gpu, record.streams).map_err(said)?;
        Ok(Run { w, executor, record: record.clone(), addresses: Vec::new() })
    }

    /// Runs one operation of a thread, on the calling thread.
    pub(super) fn op(&mut self, thread: ThreadNo, op: Op) -> Result<Done, String> {
        self.record.push(Step { thread, op });
        let done = self.executor.step(op).map_err(said)?;
        match done {
            Done::Handed(addr) => self.addresses.push(Some(addr)),
            Done::Refused => self.addresses.push(None),
            _ => {}
        }
        Ok(done)
    }

    /// Frees what is alive. Then one stream must be able to get all memory, and everything must go back to the device.
    pub(super) fn free_all(&mut self) -> Outcome {
        self.executor.free_all();
        if self.record.hasty {
            self.w.all_back()?;
        }
        self.w.whole_limit()?;
        self.w.all_back()
    }

    /// Ends the run: nothing was violated, and nothing is left.
    pub(super) fn end(self) -> Outcome {
        let Run { w, executor, .. } = self;
        drop(executor);
        w.end()
    }
}
