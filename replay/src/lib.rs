//! Runs recorded work through a whole allocator, and says what came of it.
//!
//! Two kinds of work, one kind of answer. A [`Log`] says who allocated and freed what: [`replay_log`] spreads it over
//! streams and host threads, writes each block at its allocation and reads it just before its free, so that a replay
//! cannot pass by doing nothing, adds uses on other streams with what makes them correct, and gives everything back. A
//! [`Program`] says every operation: [`replay`] runs it step by step. Both end in an [`Outcome`], plain data.
//!
//! It does not know how memory is found or what makes reuse legal: the allocator does the first, the device's own judge
//! ([`Touch::judge`]) the second. It has no unsafe code; what touches memory is the driver's [`Touch`].
//!
//! | file | idea |
//! |---|---|
//! | `touch` | what a device must be able to do, to be replayed on |
//! | `workload` | a log becomes acts on streams and threads, with seeded uses in between |
//! | `expand` | those acts as a program, to be looked at, kept and made small |
//! | `run` | one act, and a pass over all of them |
//! | `turns` | host threads that take turns, or do not |
//! | `ideal` | the same acts with unlimited memory, to compare the makespan with |
//! | `program` | a program, step by step |
//! | `outcome` | what came of it, and what can go wrong |
//!
//! ```
//! use millpond::{Allocator, Config, trace::Program, units::GIB};
//! use millpond_sim::{Schedule, Sim};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let program: Program = "millpond trace 1\nstreams 2\nalloc b0 1MiB on s0\nwrite b0 on s0\nwait s1 for s0\n\
//!     read b0 on s1\nfree b0\nalloc b1 1MiB on s0\nwrite b1 on s0\n".parse()?;
//! let sim = Sim::new(GIB).schedule(Schedule::Latest);
//! let gpu = Allocator::new(sim.clone(), Config::default())?;
//! let outcome = millpond_replay::replay(&program, &gpu)?;
//! assert_eq!(outcome.calls, program.steps.len() as u64);
//! sim.verdict()?;
//! # Ok(()) }
//! ```

// It runs threads of the system, which a model checker does not follow: their builds are empty.
#![cfg(not(any(loom, shuttle)))]

/// Runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod expand;
mod generate;
mod ideal;
#[cfg(feature = "import")]
pub mod import;
mod outcome;
mod program;
mod run;
mod shrink;
#[cfg(feature = "proptest")]
mod strategy;
mod touch;
mod turns;
mod workload;

pub use generate::{from_fuzz, from_fuzz_hostile};
pub use outcome::{Failure, Lost, Outcome, ReplayError};
pub use program::{Done, Executor, replay, replay_program, replay_program_with_map, replay_watched};
pub use shrink::{TRIES, shrink, shrink_within};
#[cfg(feature = "proptest")]
pub use strategy::{hostile_programs, programs};
pub use touch::{Judgement, Touch};
pub use workload::{STREAMS_MOST, THREADS_MOST, Workload};

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use millpond::Error;
use millpond::{Allocator, Config, Stream};
use millpond_trace::Log;
use run::{Halt, Pass, Stage};
use std::sync::Arc;
use std::time::Instant;

#[cfg(doc)]
use millpond_trace::Program;

/// Called now and then with how many calls are done, repeats included; may be called from several threads.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// Spreads a log over streams and threads and runs it on a device of its own: makes an allocator, runs every call, frees what is alive at the end,
/// drops everything, and returns the device's verdict.
///
/// **Ordering.** Each stream number is a non-blocking stream of its own (see [`Workload`]); a free happens after the block's
/// last use. With [`Workload::broken`] at 0 the program is correct: whatever is then violated is
/// the allocator's fault.
///
/// **Time.** Moves of physical memory may take a share of the log's own time ([`Config::clock`]), paced or not; of the device's, if the log has no times.
///
/// A request that fails ends the replay: it is the outcome's [`Outcome::failure`], and everything is given back
/// nevertheless.
///
/// # Errors
/// A workload that cannot be ([`ReplayError::Workload`]); an allocator or stream that could not be made; a driver call that
/// failed on the way.
///
/// # Panics
/// With [`Workload::run_ahead`] on a [`Sim`](millpond_sim::Sim) that was used before.
pub fn replay_log<D: Touch>(
    log: &Log,
    workload: &Workload,
    driver: D,
    config: Config,
    progress: Progress<'_>,
) -> Result<Outcome, ReplayError> {
    let plan = workload.plan(log)?;
    let driver = driver.ahead(workload.run_ahead);
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let has_times = !plan.times.is_empty();
    let config = if has_times {
        config.clock(move || Duration::from_nanos(clock.load(Ordering::Relaxed)))
    } else {
        config
    };
    let allocator = Allocator::new(driver.clone(), config).map_err(ReplayError::Setup)?;
    let streams = open_streams(&allocator, &plan).map_err(ReplayError::Setup)?;
    let mut pass = Pass::new(
        Stage { allocator: &allocator, driver: &driver, streams: &streams, now: &now },
        &plan,
        progress,
    );

    if workload.map {
        pass.map_at_the_peak();
    }
    let mut failure = None;
    let mut makespan = None;
    let (mut warm_calls, mut warm) = (0, Duration::ZERO);
    for round in 0..workload.repeat {
        let (before, start) = (pass.calls(), Instant::now());
        let ran = pass.run(workload.racy);
        let time = start.elapsed();
        if round == 0 {
            makespan = driver.makespan();
        } else {
            warm += time;
            warm_calls += pass.calls() - before;
        }
        match ran {
            Ok(()) => {}
            Err(Halt::Failed(f)) => {
                failure = Some(f);
                break;
            }
            Err(Halt::Error(e)) => return Err(e),
        }
    }
    let (calls, map) = (pass.calls(), pass.take_map());
    drop(pass);

    let mut outcome = Outcome { trace: log.name.clone(), calls, map, ..Outcome::default() };
    outcome.streams = u64::from(plan.streams);
    outcome.threads = u64::from(plan.threads);
    outcome.peak_requested_bytes = plan.peak_live;
    outcome.cross_stream_uses = plan.uses.len() as u64;
    outcome.failure = failure;
    outcome.take_report(&driver, allocator.report());
    // What was live at most is the trace's figure, of all its calls in its order.
    if outcome.failure.is_some() || (workload.racy && plan.threads > 1) {
        outcome.reserved_over_requested = None;
    }
    outcome.lost.allocations = allocator.live().len() as u64;
    if let Some(makespan) = makespan
        && outcome.failure.is_none()
    {
        outcome.compare_makespan(makespan, ideal::makespan(&plan)?);
    }
    if warm_calls > 0 {
        outcome.warm_ns_per_call = Some(warm.as_nanos() as f64 / warm_calls as f64);
    }
    drop(streams);
    drop(allocator);
    outcome.lost.left = driver.lost();
    outcome.take_judgement(driver.judge(true));
    Ok(outcome)
}

/// One stream a number of the workload; the legacy default stream for the one that stands for it. Nothing on them waits for what another one does
/// later, so they are dependable.
fn open_streams<D: Touch>(allocator: &Allocator<D>, plan: &workload::Plan) -> Result<Vec<Stream<D>>, Error> {
    (0..plan.streams)
        .map(|n| {
            if let Some(native) = allocator.driver().legacy().filter(|_| plan.legacy == Some(n)) {
                return allocator.adopt(native).map(Stream::dependable);
            }
            let stream = allocator.stream()?.dependable();
            allocator.driver().number(stream.native(), u64::from(n))?;
            Ok(stream)
        })
        .collect()
}
