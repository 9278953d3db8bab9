//! Batches travel on one stream while another computes with the ones before: no event is written by hand, the host waits
//! for the results only, and each pinned buffer serves again as soon as its copy is done.
//!
//! Runs on the simulated device, which also judges the order:  `cargo run --example two_streams`
//! Runs on a GPU:                                              `cargo run --example two_streams -- gpu`

mod common;

use millpond::driver::{Driver, Kernels};
use millpond::transfer::Upload;
use millpond::{Allocator, Config, PinnedArray, Stream, kernel};
use std::error::Error;
use std::process::ExitCode;

const BATCHES: u32 = 8;
const LEN: usize = 1 << 18;

/// The program. It is the same for every device. The sum of each batch of `len` elements, as the device added it up.
/// `tests/soak.rs` runs it for ever.
pub(crate) fn sums<D: Driver + Kernels>(
    gpu: &Allocator<D>,
    [copy, work]: [&Stream<D>; 2],
    len: usize,
) -> Result<Vec<f32>, Box<dyn Error>> {
    // Two pinned buffers: one is filled while the other travels.
    let mut buffers = vec![gpu.pinned_uninit::<f32>(len)?, gpu.pinned_uninit::<f32>(len)?];
    let mut travelling: Vec<Upload<PinnedArray<f32, D>, D>> = Vec::new();
    let mut results = Vec::new();
    for batch in 0..BATCHES {
        let mut buffer = match buffers.pop() {
            Some(buffer) => buffer,
            None => travelling.remove(0).wait()?, // the oldest copy; `work` goes on meanwhile
        };
        buffer.fill(batch as f32);
        let (x, sent) = gpu.array_from_pinned(buffer, copy)?; // returns at once
        travelling.push(sent);
        let mut sum = gpu.uninit::<f32>(1, work)?;
        kernel::reduce_sum(&x, &mut sum, work)?; // `work` waits for this copy, on the device; `copy` does not wait
        results.push(sum.to_pinned(work)?);
        // Here `x` is dropped, long before its copy has run: its bytes are reused behind the kernel that reads them.
    }
    let sums =
        results.into_iter().map(|result| Ok(result.wait()?[0])).collect::<Result<_, millpond::Error>>()?;
    drop(travelling);
    Ok(sums)
}

struct TwoStreams;

impl common::Program for TwoStreams {
    fn on<D: Driver + Kernels>(&self, device: D) -> Result<(), Box<dyn Error>> {
        let gpu = Allocator::new(device, Config::default())?;
        let (copy, work) = (gpu.stream()?, gpu.stream()?);
        let sums = sums(&gpu, [&copy, &work], LEN)?;
        println!("{}", gpu.report());
        let expected: Vec<f32> = (0..BATCHES).map(|batch| (batch as usize * LEN) as f32).collect();
        println!("sums of {} batches: {sums:?}", sums.len());
        if sums == expected { Ok(()) } else { Err(format!("expected {expected:?}").into()) }
    }
}

fn main() -> ExitCode {
    common::run(&TwoStreams)
}
