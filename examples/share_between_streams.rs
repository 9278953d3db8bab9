//! One array, written on one stream, read by two others at the same time, written again behind both, and dropped while all
//! of that is still to run. Its bytes go to somebody else, in order.
//!
//! Runs on the simulated device, which also judges the order:  `cargo run --example share_between_streams`
//! Runs on a GPU:                                              `cargo run --example share_between_streams -- gpu`

mod common;

use millpond::driver::{Driver, Kernels};
use millpond::units::MIB;
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

struct Shared;

impl common::Program for Shared {
    fn on<D: Driver + Kernels>(&self, device: D) -> Result<(), Box<dyn Error>> {
        let seen = shared(device)?;
        println!("the readers saw {} and {}, the next tenant {}", seen[0], seen[1], seen[2]);
        if seen.iter().eq(&[2.0, 3.0, 7.0]) { Ok(()) } else { Err("expected 2, 3 and 7".into()) }
    }
}

fn main() -> ExitCode {
    common::run(&Shared)
}
