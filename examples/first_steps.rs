//! Arrays on two streams with no event written by hand: a copy, a kernel behind it on another stream, the result back.
//!
//! Runs on the simulated device, which also judges the order:  `cargo run --example first_steps`
//! Runs on a GPU:                                              `cargo run --example first_steps -- gpu`

use millpond::driver::sim::{Schedule, Sim};
use millpond::driver::{Driver, Kernels};
use millpond::units::GIB;
use millpond::{Allocator, Config, kernel};
use std::error::Error;
use std::process::ExitCode;

/// The program. It is the same for every device.
fn steps<D: Driver + Kernels>(device: D, n: usize) -> Result<Vec<f32>, Box<dyn Error>> {
    let gpu = Allocator::new(device, Config::default())?;
    let (copy, work) = (gpu.stream()?, gpu.stream()?);

    let host = gpu.pinned_from_fn(n, |i| i as f32)?;
    let mut x = gpu.zeros::<f32>(n, &copy)?;
    let mut y = gpu.zeros::<f32>(n, &work)?;
    let sent = x.copy_from(host, &copy)?; // it owns the source until the copy is done
    kernel::saxpy(2.0, &x, &mut y, &work)?; // `work` waits for the copy, on the device; the host does not wait
    let back = y.to_pinned(&work)?; // the data can be reached only through wait()
    drop(x); // at any time, on any thread: the bytes are reused only in order
    let result = back.wait()?.to_vec();
    let host = sent.wait()?; // the source, ready for the next batch
    println!("{} elements went there, {} came back: {:?} ...", host.len(), result.len(), &result[..5]);
    println!("{}", gpu.report());
    Ok(result)
}

#[cfg(feature = "cuda")]
fn on_a_gpu(n: usize) -> Result<Vec<f32>, Box<dyn Error>> {
    steps(millpond::driver::cuda::Cuda::new(0)?, n)
}
#[cfg(not(feature = "cuda"))]
fn on_a_gpu(_: usize) -> Result<Vec<f32>, Box<dyn Error>> {
    Err("built without the feature `cuda`".into())
}

fn run() -> Result<(), Box<dyn Error>> {
    let n = 1 << 20;
    let result = match std::env::args().nth(1).as_deref() {
        None => {
            // Work runs as late as is legal: a wait too few would show.
            let sim = Sim::new(144 * GIB).schedule(Schedule::Latest);
            let result = steps(sim.clone(), n)?;
            let tally = sim.verdict()?;
            println!("\nordering: {} accesses checked, none out of order", tally.accesses_checked);
            result
        }
        Some("gpu") => on_a_gpu(n)?,
        Some(other) => {
            return Err(format!("{other:?} is no device: say `gpu`, or nothing for the simulated one").into());
        }
    };
    let expected: Vec<f32> = (0..n).map(|i| 2.0 * i as f32).collect();
    assert!(result == expected, "every element is twice its index");
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
