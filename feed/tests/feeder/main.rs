//! Feeders on the simulated device, under its oracle: values, order, what is bounded, errors, ends, and every call that may fail.

mod batches;
mod bounds;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod errors;
mod faults;
mod figures;
mod order;

// For the code that is made there once (`millpond_testkit::compiled`).
use millpond_testkit as _;

use common::clean;
use millpond::units::GIB;
use millpond::{Allocator, Config, DeviceView, Stream};
use millpond_feed::Filled;
use millpond_sim::{Launch, Schedule, Sim};

/// A device that runs nothing before it must, and an allocator on it.
fn late() -> (Sim, Allocator<Sim>) {
    on(Sim::new(4 * GIB).schedule(Schedule::Latest))
}

/// An allocator on a device.
fn on(sim: Sim) -> (Sim, Allocator<Sim>) {
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    (sim, gpu)
}

/// A kernel of other code, of which the library knows nothing: it must find the batch there, and the batch must stay.
fn foreign(sim: &Sim, view: &DeviceView<'_, u64, Sim>, word: u64, on: &Stream<Sim>) {
    let (at, bytes) = (view.address(), view.size_bytes());
    sim.launch(on.native(), Launch::check_pattern(at, bytes, word)).unwrap();
}

/// A batch of one field of words of one value.
fn words(n: usize, word: u64) -> Filled<(u64,)> {
    Filled::<(u64,)>::new((n.into(),), move |(words,)| {
        words.fill(word);
        Ok(())
    })
}
