//! Arrays on two streams with no event written by hand: a copy, a kernel behind it on another stream, the result back.
//!
//! Runs on the simulated device, which also judges the order:  `cargo run --example first_steps`
//! Runs on a GPU:                                              `cargo run --example first_steps -- gpu`

mod common;

use millpond::driver::{Driver, Kernels};
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

struct FirstSteps;

impl common::Program for FirstSteps {
    fn on<D: Driver + Kernels>(&self, device: D) -> Result<(), Box<dyn Error>> {
        let n = 1 << 20;
        let result = steps(device, n)?;
        let twice = (0..n).map(|i| 2.0 * i as f32);
        if result.into_iter().eq(twice) {
            Ok(())
        } else {
            Err("every element is to be twice its index".into())
        }
    }
}

fn main() -> ExitCode {
    common::run(&FirstSteps)
}
