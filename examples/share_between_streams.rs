//! One array, written on one stream, read by two others at the same time, written again behind both, and dropped while all
//! of that is still to run. Its bytes are reused, in order.
//!
//! Runs on the simulated device, which also judges the order:  `cargo run --example share_between_streams`
//! Runs on a GPU:                                              `cargo run --example share_between_streams -- gpu`

mod common;

use millpond::driver::{Driver, Kernels};
use millpond::{Allocator, Config, Growth, Limit, Stream, kernel};
use std::error::Error;
use std::process::ExitCode;

const LEN: usize = 1 << 20;

/// Room for six arrays of `len` elements: the seventh has to be in bytes that one of them had.
pub(crate) fn room_for_six(len: usize) -> Config {
    Config::default().growth(Growth::Exact).limit(Limit::Bytes(6 * 4 * len as u64))
}

/// The program. It is the same for every device. What the two readers and the last tenant of the bytes saw, and whether those
/// bytes served again before the host had waited for anything. `tests/soak.rs` runs it for ever.
pub(crate) fn shared<D: Driver + Kernels>(
    gpu: &Allocator<D>,
    [writer, left, right]: [&Stream<D>; 3],
    len: usize,
) -> Result<([f32; 3], bool), Box<dyn Error>> {
    let mut x = gpu.uninit::<f32>(len, writer)?;
    kernel::fill(&mut x, 1.0, writer)?;
    let mut twice = gpu.zeros::<f32>(len, left)?;
    let mut thrice = gpu.zeros::<f32>(len, right)?;
    kernel::saxpy(2.0, &x, &mut twice, left)?; // waits for the fill, on the device
    kernel::saxpy(3.0, &x, &mut thrice, right)?; // as that: two readers do not wait for each other
    kernel::fill(&mut x, 100.0, writer)?; // behind both readers
    let seen = [twice.slice(..1).to_pinned(left)?, thrice.slice(len - 1..).to_pinned(right)?];

    // Nothing of that need have run yet. From here on the bytes are the allocator's.
    let first = x.address();
    drop(x);
    let others = (0..3).map(|_| gpu.uninit::<f32>(len, right)).collect::<Result<Vec<_>, _>>()?;
    let mut tenant = gpu.uninit::<f32>(len, left)?;
    let again = tenant.address() == first || others.iter().any(|other| other.address() == first);
    kernel::fill(&mut tenant, 7.0, left)?;
    let last = tenant.slice(..1).to_pinned(left)?;

    let [twice, thrice] = seen;
    let seen = [twice.wait()?[0], thrice.wait()?[0], last.wait()?[0]];
    Ok((seen, again))
}

struct Shared;

impl common::Program for Shared {
    fn on<D: Driver + Kernels>(&self, device: D) -> Result<(), Box<dyn Error>> {
        let gpu = Allocator::new(device, room_for_six(LEN))?;
        let (writer, left, right) = (gpu.stream()?, gpu.stream()?, gpu.stream()?);
        let (seen, again) = shared(&gpu, [&writer, &left, &right], LEN)?;
        println!(
            "the bytes of the shared array serve again before the host has waited for anything: {again}"
        );
        println!("{}", gpu.report());
        println!("the readers saw {} and {}, the next tenant {}", seen[0], seen[1], seen[2]);
        if seen.iter().eq(&[2.0, 3.0, 7.0]) { Ok(()) } else { Err("expected 2, 3 and 7".into()) }
    }
}

fn main() -> ExitCode {
    common::run(&Shared)
}
