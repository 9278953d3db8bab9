//! One array, written on one stream, read by two others at the same time, written again behind both, and dropped while all
//! of that is still to run. Its bytes go to somebody else, in order.
//!
//! Runs on the simulated device, which also judges the order:  `cargo run --example share_between_streams`
//! Runs on a GPU:                                              `cargo run --example share_between_streams -- gpu`

use millpond::driver::sim::{Schedule, Sim};
use millpond::driver::{Driver, Kernels};
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, Growth, Limit, kernel};
use std::error::Error;
use std::process::ExitCode;

const LEN: usize = 1 << 20;

/// The program. It is the same for every device. What the two readers and the last tenant of the bytes saw.
fn shared<D: Driver + Kernels>(device: D) -> Result<[f32; 3], Box<dyn Error>> {
    // Room for six arrays of 4 MiB: the seventh has to be in bytes that one of them had.
    let gpu = Allocator::new(device, Config::default().growth(Growth::Exact).limit(Limit::Bytes(24 * MIB)))?;
    let (writer, left, right) = (gpu.stream()?, gpu.stream()?, gpu.stream()?);

    let mut x = gpu.uninit::<f32>(LEN, &writer)?;
    kernel::fill(&mut x, 1.0, &writer)?;
    let mut twice = gpu.zeros::<f32>(LEN, &left)?;
    let mut thrice = gpu.zeros::<f32>(LEN, &right)?;
    kernel::saxpy(2.0, &x, &mut twice, &left)?; // waits for the fill, on the device
    kernel::saxpy(3.0, &x, &mut thrice, &right)?; // as that: two readers do not wait for each other
    kernel::fill(&mut x, 100.0, &writer)?; // behind both readers
    let seen = [twice.slice(..1).to_pinned(&left)?, thrice.slice(LEN - 1..).to_pinned(&right)?];

    // Nothing of that need have run yet. From here on the bytes are the allocator's.
    let first = x.address();
    drop(x);
    let others = (0..3).map(|_| gpu.uninit::<f32>(LEN, &right)).collect::<Result<Vec<_>, _>>()?;
    let mut tenant = gpu.uninit::<f32>(LEN, &left)?;
    let again = tenant.address() == first || others.iter().any(|other| other.address() == first);
    println!("the bytes of the shared array serve again before the host has waited for anything: {again}");
    kernel::fill(&mut tenant, 7.0, &left)?;
    let last = tenant.slice(..1).to_pinned(&left)?;

    let [twice, thrice] = seen;
    let seen = [twice.wait()?[0], thrice.wait()?[0], last.wait()?[0]];
    println!("{}", gpu.report());
    Ok(seen)
}

#[cfg(feature = "cuda")]
fn on_a_gpu() -> Result<[f32; 3], Box<dyn Error>> {
    shared(millpond::driver::cuda::Cuda::new(0)?)
}
#[cfg(not(feature = "cuda"))]
fn on_a_gpu() -> Result<[f32; 3], Box<dyn Error>> {
    Err("built without the feature `cuda`".into())
}

/// On the simulated device work runs as late as is legal: a wait too few would show, and one too many is counted.
fn on_the_simulator() -> Result<[f32; 3], Box<dyn Error>> {
    let sim = Sim::new(144 * GIB).schedule(Schedule::Latest);
    let seen = shared(sim.clone())?;
    let tally = sim.verdict()?;
    println!(
        "\nordering: {} accesses checked, none out of order; {} waits between streams, {} of them needless",
        tally.accesses_checked,
        tally.waits,
        tally.waits_implied + tally.waits_beyond_need
    );
    Ok(seen)
}

fn run() -> Result<(), Box<dyn Error>> {
    let seen = match std::env::args().nth(1).as_deref() {
        None => on_the_simulator()?,
        Some("gpu") => on_a_gpu()?,
        Some(other) => {
            return Err(format!("{other:?} is no device: say `gpu`, or nothing for the simulated one").into());
        }
    };
    println!("the readers saw {} and {}, the next tenant {}", seen[0], seen[1], seen[2]);
    if seen.iter().eq(&[2.0, 3.0, 7.0]) { Ok(()) } else { Err("expected 2, 3 and 7".into()) }
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
