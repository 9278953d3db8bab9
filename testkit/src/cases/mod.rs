//! One scenario for each bug of docs/mutants.md: right code passes it, the code with that bug planted does not.
//!
//! `tests/on_sim/scenarios.rs` runs them all in ordinary builds, as regression tests; `tests/mutants.rs` runs each with its bugs
//! planted and demands that it fails. A scenario says what it is about; it does not know what a bug looks like.

#![allow(
    clippy::many_single_char_names,
    reason = "as in the laws: w is the world; s, t, u are streams; x, y, z are blocks"
)]

mod arrays;
mod captures;
mod closing;
mod costs;
pub mod defaults;
mod entering;
mod holds;
mod ladder;
mod limits;
mod markers;
mod moves;
mod operands;
mod peers;
mod pinned;
pub mod random;
mod shrunk;
pub mod threads;
mod uses;

use crate::rig::word;
use millpond::units::{GIB, MIB};
use millpond::{Allocation, Allocator, Config, Event, Growth, Limit, Reuse, Stream, Trim};
use millpond_sim::{Launch, Schedule, Sim};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// What a scenario came to: the first thing that was wrong.
pub type Outcome = Result<(), String>;

/// One scenario.
pub struct Case {
    pub name: &'static str,
    /// The bugs that it must notice.
    pub kills: &'static [&'static str],
    pub run: fn() -> Outcome,
}

/// Every scenario.
pub fn all() -> Vec<Case> {
    [
        arrays::CASES,
        captures::CASES,
        closing::CASES,
        costs::CASES,
        entering::CASES,
        holds::CASES,
        ladder::CASES,
        limits::CASES,
        moves::CASES,
        markers::CASES,
        operands::CASES,
        peers::CASES,
        pinned::CASES,
        shrunk::CASES,
        uses::CASES,
    ]
    .into_iter()
    .flatten()
    .map(|c| Case { name: c.name, kills: c.kills, run: c.run })
    .collect()
}

/// Runs a scenario; a panic is as wrong as a verdict.
pub fn judge(run: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something");
        Err(format!("panic: {said}"))
    })
}

/// Fails the scenario unless something holds.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}
pub(crate) use ensure;

/// An error as the end of a scenario.
pub fn said(e: impl Display) -> String {
    e.to_string()
}

/// A device that runs nothing before it must, and an allocator on it.
pub struct World {
    pub sim: Sim,
    pub gpu: Allocator<Sim>,
}

pub type Block = Allocation<Sim>;

impl World {
    pub fn new(config: Config) -> World {
        World::on(Sim::new(4 * GIB).schedule(Schedule::Latest), config)
    }

    pub fn on(sim: Sim, config: Config) -> World {
        let gpu = Allocator::new(sim.clone(), config).expect("an allocator on a fresh device");
        World { sim, gpu }
    }

    /// At a limit of so many MiB, every growth as large as its request.
    pub fn at(mib: u64) -> World {
        World::new(World::config(mib))
    }

    /// As [`World::at`], and a host that never waits for memory: what cannot be ordered on the device fails.
    pub fn hasty(mib: u64) -> World {
        World::new(World::config(mib).bounded_wait(Duration::ZERO))
    }

    pub fn config(mib: u64) -> Config {
        Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(mib * MIB)).growth(Growth::Exact)
    }

    pub fn stream(&self) -> Stream<Sim> {
        self.gpu.stream().expect("a stream")
    }

    pub fn streams<const N: usize>(&self) -> [Stream<Sim>; N] {
        core::array::from_fn(|_| self.stream())
    }

    pub fn alloc(&self, mib: u64, s: &Stream<Sim>) -> Result<Block, String> {
        self.gpu.alloc(mib * MIB, s).map_err(|e| format!("no {mib} MiB on {s:?}: {e}"))
    }

    /// A block that its stream writes and that is freed behind that.
    pub fn written_and_freed(&self, mib: u64, s: &Stream<Sim>) -> Outcome {
        let x = self.alloc(mib, s)?;
        self.write(&x, s)
    }

    pub fn write(&self, x: &Block, s: &Stream<Sim>) -> Outcome {
        let launch = Launch::write_pattern(x.address(), x.len(), word(x)).tag(x.id().expect("bytes"));
        self.sim.launch(s.native(), launch).map_err(said)
    }

    /// Reads all of it; what it holds is compared if a [`World::write`] came before.
    pub fn read(&self, x: &Block, s: &Stream<Sim>) -> Outcome {
        let launch = Launch::check_pattern(x.address(), x.len(), word(x)).tag(x.id().expect("bytes"));
        self.sim.launch(s.native(), launch).map_err(said)
    }

    /// The stream waits for the block's home stream, says that it uses the block, and reads it.
    pub fn read_on(&self, x: &Block, home: &Stream<Sim>, s: &Stream<Sim>) -> Outcome {
        s.wait_stream(home).map_err(said)?;
        x.record_use(s).map_err(said)?;
        self.read(x, s)
    }

    /// As [`World::read_on`], writing.
    pub fn write_on(&self, x: &Block, home: &Stream<Sim>, s: &Stream<Sim>) -> Outcome {
        s.wait_stream(home).map_err(said)?;
        x.record_use(s).map_err(said)?;
        self.write(x, s)
    }

    /// Memory for a stream, which writes it at once: where reuse comes too early, this is what convicts it.
    pub fn claim(&self, mib: u64, s: &Stream<Sim>) -> Result<Block, String> {
        let x = self.alloc(mib, s)?;
        self.write(&x, s)?;
        Ok(x)
    }

    /// Liveness at rest: once the device is idle and nothing is live, a trim gives everything back to it.
    pub fn all_back(&self) -> Outcome {
        for _ in 0..2 {
            self.gpu.trim(Trim::All).map_err(said)?;
            self.sim.run_until_idle();
        }
        self.gpu.trim(Trim::All).map_err(said)?;
        self.gpu.check();
        let report = self.gpu.report();
        ensure!(
            report.reserved == 0 && report.pinned.is_none_or(|p| p.reserved == 0),
            "stranded: nothing is live and the device idle, but {} bytes cannot be given back",
            report.reserved
        );
        Ok(())
    }

    /// Liveness at rest: one stream can get every byte under the limit, if need be after a trim.
    pub fn whole_limit(&self) -> Outcome {
        self.sim.run_until_idle();
        let limit = self.gpu.report().limit.expect("a limit");
        let s = self.stream();
        let all = match self.gpu.alloc(limit, &s) {
            Err(e) if e.out_of_memory().is_some() => {
                self.gpu.trim(Trim::All).map_err(said)?;
                self.gpu.alloc(limit, &s)
            }
            other => other,
        };
        let all = all.map_err(|e| format!("stranded: {e}"))?;
        drop(all);
        Ok(())
    }

    /// The end: the heaps are sound, nothing was violated, the device has everything back.
    pub fn end(self) -> Outcome {
        let World { sim, gpu } = self;
        let checked = judge(|| {
            gpu.check();
            Ok(())
        });
        if let Err(e) = checked {
            // Broken heaps cannot even be dropped.
            core::mem::forget(gpu);
            return Err(e);
        }
        judge(|| {
            drop(gpu);
            Ok(())
        })?;
        sim.run_until_idle();
        sim.verdict().map_err(said)?;
        ensure!(sim.leaks().is_empty(), "left on the device: {:?}", sim.leaks());
        Ok(())
    }
}

/// Where threads can be made to stand still, `then` runs when this thread comes to a point for the `nth` time from now;
/// elsewhere it runs now: the same calls, one after the other.
#[cfg(millpond_mutants)]
pub fn at(point: &'static str, nth: u32, then: impl FnOnce() + Send + 'static) {
    millpond::mutant::at(point, nth, then);
}
#[cfg(not(millpond_mutants))]
pub fn at(_point: &'static str, _nth: u32, then: impl FnOnce() + Send + 'static) {
    then();
}

/// No thread is to be stopped any more.
pub fn forget_points() {
    #[cfg(millpond_mutants)]
    millpond::mutant::forget_points();
}

/// A thread that records an event and stands still on the way until it is let go: a second thread that is frozen exactly,
/// beside the one that [`at`] stops. Elsewhere it stands before the call.
pub struct Held {
    go: mpsc::Sender<()>,
    recording: JoinHandle<Result<Event<Sim>, String>>,
}

impl Held {
    /// Returns when the thread stands at the point, on its way to an event of `s`.
    pub fn at(point: &'static str, s: &Stream<Sim>) -> Result<Held, String> {
        let ((stands, reached), (go, let_go)) = (mpsc::channel(), mpsc::channel());
        let s = s.clone();
        #[cfg(millpond_mutants)]
        let bug = millpond::mutant::current();
        let recording = std::thread::spawn(move || {
            #[cfg(millpond_mutants)]
            let _planted = millpond::mutant::plant(bug);
            at(point, 1, move || {
                let _ = stands.send(());
                // Who hangs up lets it go, too.
                let _ = let_go.recv();
            });
            let event = s.record().map_err(said);
            // If no thread was stopped, none may wait for that.
            forget_points();
            event
        });
        reached.recv().map_err(|_| format!("no thread reached {point:?}"))?;
        Ok(Held { go, recording })
    }

    /// The thread goes on to the end of its call.
    pub fn go(self) -> Result<Event<Sim>, String> {
        drop(self.go);
        self.recording.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Runs something on a thread of its own, with the same bug planted.
pub fn on_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    #[cfg(millpond_mutants)]
    let bug = millpond::mutant::current();
    std::thread::scope(|t| {
        t.spawn(move || {
            #[cfg(millpond_mutants)]
            let _planted = millpond::mutant::plant(bug);
            f()
        })
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
