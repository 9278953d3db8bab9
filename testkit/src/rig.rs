//! What tests of the allocator on the simulated device have in common: a device, an allocator, touches with patterns,
//! and the end of every test: nothing violated, nothing left.

use millpond::allocator::VirtualMemory;
use millpond::units::GIB;
use millpond::{Allocation, Allocator, Config, Stream};
use millpond_sim::{Launch, Schedule, Sim};

/// A device whose work runs as late as legal, so that any reuse that comes too early shows in the bytes too.
pub fn late() -> Sim {
    Sim::new(4 * GIB).schedule(Schedule::Latest)
}

/// An allocator on a device. With `MILLPOND_VIRTUAL=auto` in the environment, virtual memory is beneath its pools, but for baselines that count bytes:
/// to run tests that were written for plain segments once more.
pub fn on(sim: &Sim, config: Config) -> Allocator<Sim> {
    let windows = std::env::var("MILLPOND_VIRTUAL").is_ok_and(|choice| choice == "auto");
    let config = if windows { config.virtual_memory(VirtualMemory::Auto) } else { config };
    Allocator::new(sim.clone(), config).expect("an allocator on a fresh device")
}

/// The word that a block is filled with: its address and generation, which no other life of the bytes has.
pub fn word(a: &Allocation<Sim>) -> u64 {
    let id = a.id().expect("bytes");
    a.address().0 ^ u64::from(id.generation) << 48 ^ u64::from(id.pool) << 40 ^ 0x5EED
}

/// Fills a block on a stream.
pub fn write(sim: &Sim, a: &Allocation<Sim>, s: &Stream<Sim>) {
    let launch = Launch::write_pattern(a.address(), a.len(), word(a)).tag(a.id().expect("bytes"));
    sim.launch(s.native(), launch).expect("a launch");
}

/// Checks on a stream that a block still holds what [`write`] wrote.
pub fn check(sim: &Sim, a: &Allocation<Sim>, s: &Stream<Sim>) {
    let launch = Launch::check_pattern(a.address(), a.len(), word(a)).tag(a.id().expect("bytes"));
    sim.launch(s.native(), launch).expect("a launch");
}

/// As [`write`], each of several.
pub fn write_all(sim: &Sim, blocks: &[Allocation<Sim>], s: &Stream<Sim>) {
    for x in blocks {
        write(sim, x, s);
    }
}

/// As [`check`], each of several.
pub fn check_all(sim: &Sim, blocks: &[Allocation<Sim>], s: &Stream<Sim>) {
    for x in blocks {
        check(sim, x, s);
    }
}

/// The end of a test: everything is dropped, no oracle has anything to say, and the device has all back.
pub fn all_clean(sim: &Sim, gpu: Allocator<Sim>) {
    gpu.check();
    drop(gpu);
    all_back(sim);
}

/// As [`all_clean`], where the allocator is gone already.
pub fn all_back(sim: &Sim) {
    sim.run_until_idle();
    if let Err(e) = sim.verdict() {
        panic!("{e}");
    }
    assert_eq!(sim.leaks(), [], "left on the device");
    assert_eq!(sim.drop_errors(), [], "met by destructors");
}
