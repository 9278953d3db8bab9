//! Where an example runs: on the simulated device, or on a GPU if its first argument is `gpu`; and by which clock.

use indicatif::{ProgressBar, ProgressStyle};
use millpond::driver::{Driver, Kernels};
use millpond::units::GIB;
use millpond_sim::{Schedule, Sim};
// For this repository's sake alone: has compiled an allocator for either device already, which each example would do again.
use millpond_testkit as _;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Says when everything that was queued so far is over: virtual time on the simulated device, and otherwise the system's, once the device is idle.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A program for any device.
pub(crate) trait Program {
    /// Runs it, and compares what it computed with what it should have.
    fn on<D: Driver + Kernels>(&self, device: D, clock: &Clock) -> Result<(), Box<dyn Error>>;
}

/// Runs it where the command line says; an error is said in one line.
pub(crate) fn run(program: &impl Program) -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        None => on_the_simulator(program),
        Some("gpu") => on_a_gpu(program),
        Some(other) => {
            Err(format!("{other:?} is no device: say `gpu`, or nothing for the simulated one").into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// On the simulated device work runs as late as is legal: a wait too few would show.
fn on_the_simulator(program: &impl Program) -> Result<(), Box<dyn Error>> {
    let sim = Sim::new(144 * GIB).schedule(Schedule::Latest);
    let device = sim.clone();
    let clock: Clock = Arc::new(move || device.makespan());
    program.on(sim.clone(), &clock)?;
    // The clock has the device, too.
    drop(clock);
    let tally = sim.verdict()?;
    println!(
        "\nsimulated device, times are its model's; {} accesses checked, none out of order",
        tally.accesses_checked
    );
    Ok(())
}

#[cfg(feature = "cuda")]
fn on_a_gpu(program: &impl Program) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let clock: Clock = Arc::new(move || start.elapsed());
    program.on(millpond::cuda::Cuda::new(0)?, &clock)?;
    println!("\nran on CUDA device 0");
    Ok(())
}
#[cfg(not(feature = "cuda"))]
fn on_a_gpu(_: &impl Program) -> Result<(), Box<dyn Error>> {
    let _ = Instant::now;
    Err("built without the feature `cuda`".into())
}

/// A bar of so many steps, on a terminal.
pub(crate) fn bar(name: &'static str, steps: u64) -> Result<ProgressBar, Box<dyn Error>> {
    let style = ProgressStyle::with_template("{msg:12} {bar:40} {pos}/{len} {per_sec}")?;
    Ok(ProgressBar::new(steps).with_style(style).with_message(name))
}
