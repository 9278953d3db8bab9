//! Where an example runs: on the simulated device, or on a GPU if its first argument is `gpu`.

use millpond::driver::{Driver, Kernels};
use millpond::units::GIB;
use millpond_sim::{Schedule, Sim};
// For this repository's sake alone: has compiled an allocator for either device already, which each example would do again.
use millpond_testkit as _;
use std::error::Error;
use std::process::ExitCode;

/// A program for any device.
pub(crate) trait Program {
    /// Runs it, and compares what it computed with what it should have.
    fn on<D: Driver + Kernels>(&self, device: D) -> Result<(), Box<dyn Error>>;
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

/// On the simulated device work runs as late as is legal: a wait too few would show, and one too many is counted.
fn on_the_simulator(program: &impl Program) -> Result<(), Box<dyn Error>> {
    let sim = Sim::new(144 * GIB).schedule(Schedule::Latest);
    program.on(sim.clone())?;
    let tally = sim.verdict()?;
    println!(
        "\nordering: {} accesses checked, none out of order; {} waits between streams, {} of them needless",
        tally.accesses_checked,
        tally.waits,
        tally.waits_implied + tally.waits_beyond_need
    );
    Ok(())
}

#[cfg(feature = "cuda")]
fn on_a_gpu(program: &impl Program) -> Result<(), Box<dyn Error>> {
    program.on(millpond::cuda::Cuda::new(0)?)?;
    println!("\nran on CUDA device 0");
    Ok(())
}
#[cfg(not(feature = "cuda"))]
fn on_a_gpu(_: &impl Program) -> Result<(), Box<dyn Error>> {
    Err("built without the feature `cuda`".into())
}
