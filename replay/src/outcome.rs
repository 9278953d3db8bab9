//! What came of a replay, as plain data, and what can keep one from ending.
//!
//! It computes ratios and nothing else; it does not know how anything was run.

use super::touch::{Judgement, Touch};
use core::fmt;
use core::time::Duration;
use millpond::Error;
use millpond::report::{MemoryMap, Report};
use millpond_trace::{Fault, Op};

/// What came of a replay.
#[derive(Clone, PartialEq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Outcome {
    /// The trace's name.
    pub trace: String,
    /// Allocations and frees made, the frees of what was alive at the end included; of a program, its steps.
    pub calls: u64,
    /// Streams that the calls were spread over.
    pub streams: u64,
    /// Host threads that made them.
    pub threads: u64,
    /// Uses on another stream than the block's own.
    pub cross_stream_uses: u64,
    /// Highest sum of live bytes of the device's memory, as requested, in the order of the trace.
    pub peak_requested_bytes: u64,
    /// Highest sum of live bytes of pinned host memory, as requested; only programs request it.
    pub peak_pinned_bytes: u64,
    /// The most that was ever reserved from the device.
    pub peak_reserved_bytes: u64,
    /// The most reserved over the most requested, both of the device's memory, if anything was live and the trace was run to its end in its order.
    pub reserved_over_requested: Option<f64>,
    /// Segments taken from the device.
    pub growths: u64,
    /// Allocations served from the pool's own free chunks.
    pub hits: u64,
    /// Allocations that climbed the miss ladder.
    pub misses: u64,
    /// Ranges that went from one pool to another.
    pub migrations: u64,
    /// Waits that the allocator put between streams for reuse.
    pub waits_inserted: u64,
    /// Waits, the program's own too, that ordered something which no access needed.
    pub waits_beyond_need: u64,
    /// Times a call made the host wait for the device, before everything was dropped.
    pub host_waits: u64,
    /// Violations of order that the oracle found.
    pub violations: u64,
    /// Of these, the allocator's fault; the others are the program's.
    pub violations_of_allocator: u64,
    /// Accesses that the oracle judged; 0 without one.
    pub accesses_checked: u64,
    /// Operations that met other bytes than were written for them.
    pub mismatches: u64,
    /// What the judges said, in full; empty if they found nothing.
    pub verdict: String,
    /// What was not given back.
    pub lost: Lost,
    /// The request that ended a log's replay, if one failed.
    pub failure: Option<Failure>,
    /// Requests of a program that were refused. A program may request the impossible; what names the block is then left
    /// out.
    pub refused: u64,
    /// Virtual time of the first pass in nanoseconds, on a device that keeps it.
    pub makespan_ns: Option<u64>,
    /// That, over the same acts with fresh memory for every block.
    pub makespan_ratio: Option<f64>,
    /// Wall time of the repeats after the first over all their calls, in nanoseconds of this machine.
    pub warm_ns_per_call: Option<f64>,
    /// What the pools held and did, before everything was dropped. Its driver calls include those of the replay's own
    /// kernels and events.
    pub report: Report,
    /// A map of the device's memory, if one was requested: of a log when most is live in its first pass ([`Workload::map`](super::Workload::map)), of a
    /// program at its end, before what is alive is freed.
    pub map: Option<MemoryMap>,
}

/// What was taken and not given back.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Lost {
    /// Allocations that the allocator counted as live when all had been freed.
    pub allocations: u64,
    /// What the device still held when everything had been dropped, a line each.
    pub left: Vec<String>,
}

impl Lost {
    /// Whether nothing was lost.
    pub fn is_nothing(&self) -> bool {
        self.allocations == 0 && self.left.is_empty()
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.allocations > 0 {
            writeln!(f, "{} allocations are still live though all were freed", self.allocations)?;
        }
        self.left.iter().try_for_each(|l| writeln!(f, "not given back: {l}"))
    }
}

/// A request that failed and ended the replay of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Failure {
    /// The call of the log, counted from 0; in a repeat, from its beginning.
    pub call: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Whether memory was out, rather than the request absurd.
    pub out_of_memory: bool,
    /// The allocator's words.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} requested {} bytes: {}", self.call, self.bytes, self.message)
    }
}

impl Outcome {
    /// Whether nothing was violated, mismatched or lost, and no request of a log failed.
    pub fn is_clean(&self) -> bool {
        self.violations == 0 && self.mismatches == 0 && self.lost.is_nothing() && self.failure.is_none()
    }

    pub(super) fn take_report<D: Touch>(&mut self, driver: &D, report: Report) {
        let c = &report.total.counters;
        self.peak_reserved_bytes = report.reserved_peak;
        self.reserved_over_requested = (self.peak_requested_bytes > 0)
            .then(|| report.reserved_peak as f64 / self.peak_requested_bytes as f64);
        (self.growths, self.hits, self.misses) = (report.growths, c.hits, c.misses);
        (self.migrations, self.waits_inserted) = (c.migrations_in, c.waits_inserted);
        self.host_waits = driver.host_waits().unwrap_or(c.host_waits);
        self.report = report;
    }

    pub(super) fn take_judgement(&mut self, judgement: Option<Judgement>) {
        let Some(j) = judgement else { return };
        self.accesses_checked = j.accesses_checked;
        (self.violations, self.violations_of_allocator) = (j.violations, j.violations_of_allocator);
        (self.waits_beyond_need, self.mismatches, self.verdict) = (j.waits_beyond_need, j.mismatches, j.text);
    }

    pub(super) fn compare_makespan(&mut self, ours: Duration, ideal: Duration) {
        self.makespan_ns = Some(u64::try_from(ours.as_nanos()).unwrap_or(u64::MAX));
        self.makespan_ratio = (!ideal.is_zero()).then(|| ours.as_secs_f64() / ideal.as_secs_f64());
    }

    /// The outcome as one JSON value: every field by its name, the driver's calls once more as an object by their names, and
    /// `reserved_over_requested` once more as `taken_over_live`, its name in earlier versions.
    #[cfg(feature = "serde")]
    pub fn to_value(&self) -> serde_json::Value {
        use serde_json::json;
        let mut v = json!(self);
        v["taken_over_live"] = json!(self.reserved_over_requested);
        v["driver_calls"] = json!(self.report.driver_calls);
        v["report"] = self.report.to_value();
        v
    }
}

/// What keeps a replay from ending. What the judges find is no error: it is the outcome.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// An option of the workload that cannot be, or a program that would need one.
    #[error("{option} is {found}; it can be {expected}")]
    Workload {
        /// Its name.
        option: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// The program breaks a rule of its language.
    #[error("the program is not well-formed: {0}")]
    Fault(#[source] Fault),
    /// The allocator or a stream could not be made.
    #[error("the replay could not begin: {0}")]
    Setup(#[source] Error),
    /// A call of a log met an error that is no failed request.
    #[error("call {call}: {error}")]
    Call {
        /// The call of the log, counted from 0; in a repeat, from its beginning.
        call: u64,
        /// The error.
        #[source]
        error: Error,
    },
    /// A step of a program met an error that is no failed request.
    #[error("step {step}, `{op}`: {error}")]
    Step {
        /// The step, counted from 0.
        step: usize,
        /// The operation.
        op: Op,
        /// The error.
        #[source]
        error: Error,
    },
}
