//! The README's program for the simulated device, line by line as it stands there, without what makes a device and judges it: `complete`
//! compares the two, and fails when one changes.

#![allow(clippy::needless_borrow, unused_variables, reason = "the lines are the README's")]

use millpond::driver::DriverResult;
use millpond::units::MIB;
use millpond::{Allocator, Stream};
use millpond_sim::{Launch, SimStream};
use millpond_testkit::counted::{Device, Inside};
use std::error::Error;

type Fallible = Result<(), Box<dyn Error>>;

/// The device's launches as the README writes them.
pub struct Launches<'a>(pub &'a Device);

impl Launches<'_> {
    fn launch(&self, on: &Inside<SimStream>, launch: Launch) -> DriverResult<()> {
        self.0.try_launch(on, launch)
    }
}

/// On the simulated device.
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
