//! The README's program for a GPU, line by line as it stands there, without what makes the allocator and its streams: `complete` compares
//! it with the README, and fails when one of the two changes. The soak of cudarc's calls runs it, over the stand-in driver.

#![allow(clippy::needless_borrow, reason = "the lines are the README's")]

use millpond::cuda::Cuda;
use millpond::{Allocator, Stream, kernel};
use std::error::Error;

/// What the README calls `1 << 20`: elements, of which the CPU fills each in every round.
const LEN: usize = 256;

/// Makes the line without printing it: there are 10,000 rounds.
macro_rules! println {
    ($form:literal, $what:expr) => {
        core::hint::black_box(format!($form, $what))
    };
}

#[rustfmt::skip]
pub fn on_a_gpu(gpu: &Allocator<Cuda>, copy: &Stream<Cuda>, work: &Stream<Cuda>) -> Result<(), Box<dyn Error>> {
    let (x, sent) = gpu.array_from_pinned(gpu.pinned_from_fn(LEN, |i| i as f32)?, &copy)?;
    let mut y = gpu.zeros::<f32>(LEN, &work)?;
    kernel::saxpy(2.0, &x, &mut y, &work)?;
    drop((x, sent));
    println!("{:?}", &y.to_pinned(&work)?.wait()?[..4]);
    Ok(())
}
