//! A small program of the trace language on its way through the executor, with the checks that the families have in common.
//!
//! Every operation is written down before it runs, so that a program that is judged wrong, by a panic too, is told as text that
//! `millpond replay` takes. It does not know which programs there are.

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

/// The operations of a program so far: outside the run, which a panic takes with it.
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

    /// Something wrong, and the program that shows it.
    pub(super) fn told(&self, wrong: &str) -> String {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let program = Program { name: String::new(), streams: self.streams, steps };
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
    /// Where each allocation was; none if it was refused, which is part of the program.
    pub(super) addresses: Vec<Option<Addr>>,
}

impl Run {
    pub(super) fn new(record: &Record) -> Result<Run, String> {
        let w = if record.hasty { World::hasty(record.mib) } else { World::at(record.mib) };
        let executor = Executor::new(&w.gpu, record.streams).map_err(said)?;
        Ok(Run { w, executor, record: record.clone(), addresses: Vec::new() })
    }

    /// Runs one operation of a thread, which is the one that calls.
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

    /// Frees what is alive; then one stream can have all memory, and the device can have everything back.
    pub(super) fn free_all(&mut self) -> Outcome {
        self.executor.free_all();
        if self.record.hasty {
            self.w.all_back()?;
        }
        self.w.whole_limit()?;
        self.w.all_back()
    }

    /// The end: nothing was violated, nothing is left.
    pub(super) fn end(self) -> Outcome {
        let Run { w, executor, .. } = self;
        drop(executor);
        w.end()
    }
}
