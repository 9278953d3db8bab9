//! The README's programs, line by line as they stand there, without what makes a device and judges it: `complete` compares them
//! with the README, and fails when one of the two changes.

#![allow(clippy::needless_borrow, unused_variables, reason = "the lines are the README's")]

use millpond::driver::DriverResult;
use millpond::units::MIB;
use millpond::{Allocator, Stream, kernel};
use millpond_sim::{Launch, SimStream};
use millpond_testkit::counted::{Device, Inside};
use std::error::Error;

type Fallible = Result<(), Box<dyn Error>>;

/// What the README calls `1 << 20`: elements, of which the CPU fills each in every round.
const LEN: usize = 256;

/// The device's launches as the README writes them.
pub struct Launches<'a>(pub &'a Device);

impl Launches<'_> {
    fn launch(&self, on: &Inside<SimStream>, launch: Launch) -> DriverResult<()> {
        self.0.try_launch(on, launch)
    }
}

/// The first: arrays.
#[rustfmt::skip]
pub fn arrays(gpu: &Allocator<Device>, copy: &Stream<Device>, work: &Stream<Device>) -> Fallible {
    let host = gpu.pinned_from_fn(LEN, |i| i as f32)?;
    let mut x = gpu.zeros::<f32>(LEN, &copy)?;
    let mut y = gpu.zeros::<f32>(LEN, &work)?;
    let sent = x.copy_from(host, &copy)?;
    kernel::saxpy(2.0, &x, &mut y, &work)?;
    let back = y.to_pinned(&work)?.wait()?;
    let host = sent.wait()?;
    drop(x);
    Ok(())
}

/// The second: bytes.
#[rustfmt::skip]
pub fn plain(sim: &Launches<'_>, gpu: &Allocator<Device>, copy: &Stream<Device>, work: &Stream<Device>) -> Fallible {
    let batch = gpu.alloc(64 * MIB, &copy)?;
    sim.launch(copy.native(), Launch::new("load").writes(batch.address(), batch.len()))?;
    work.wait_stream(&copy)?;
    batch.record_use(&work)?;
    sim.launch(work.native(), Launch::new("train").reads(batch.address(), batch.len()))?;
    drop(batch);
    let next = gpu.alloc(64 * MIB, &copy)?;
    Ok(())
}
