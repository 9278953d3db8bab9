//! Steady programs with virtual memory beneath the pools: handles, mappings, former places, windows, reservations and bytes of the host stay bounded, whatever
//! moves and whoever ends.
//!
//! It does not know what is compared (`run`), nor which counters there are.

use super::programs::{block, stream, synchronise, writes};
use super::run::{Bench, Steady};
use millpond::allocator::VirtualMemory;
use millpond::units::MIB;
use millpond::{Allocation, Allocator, Config, Limit, Policy, Trim};
use millpond_testkit::counted::Device;
use std::collections::VecDeque;

pub fn config(policy: Policy) -> Config {
    Config::default().virtual_memory(VirtualMemory::Always).policy(policy)
}

/// Blocks of other lengths each time, of which every other one leaves early, so that holes and free handles lie between live ones; and a trim now and then.
pub fn windows_that_are_thinned(b: &Bench) -> Steady {
    thinned(b, |gpu, i| {
        if i % 50 == 49 {
            gpu.trim(Trim::All).expect("given back");
        }
    })
}

/// The same with another end of a round.
pub fn thinned(b: &Bench, mut end: impl FnMut(&Allocator<Device>, u64) + 'static) -> Steady {
    let (gpu, device) = (b.gpu.clone(), b.device.clone());
    let s = stream(&gpu);
    let mut blocks: VecDeque<Allocation<Device>> = VecDeque::new();
    let synchronise = synchronise(&s);
    let round = Box::new(move |i: u64| {
        let mib = [3, 1, 7, 2, 12, 5][(i % 6) as usize];
        let x = block(&gpu, mib * MIB + 512 * (i % 5), &s);
        writes(&device, s.native(), &x);
        blocks.push_back(x);
        if i.is_multiple_of(2) {
            drop(blocks.remove(1));
        }
        if blocks.len() > 12 {
            blocks.pop_front();
        }
        end(&gpu, i);
    });
    Steady { round, synchronise, asked: 0 }
}

/// At a limit three streams take turns with long blocks, for which handles move out of what is free around the short ones that stay a while.
pub fn windows_whose_handles_move(b: &Bench) -> Steady {
    let (gpu, device) = (b.gpu.clone(), b.device.clone());
    let streams = [stream(&gpu), stream(&gpu), stream(&gpu)];
    let mut short: [Option<Allocation<Device>>; 10] = [const { None }; 10];
    let waits = gpu.clone();
    let round = Box::new(move |i: u64| {
        let s = &streams[(i % 3) as usize];
        let long = block(&gpu, 20 * MIB, s);
        writes(&device, s.native(), &long);
        let slot = &mut short[(i % 10) as usize];
        *slot = None;
        let x = block(&gpu, MIB * (1 + i % 3), s);
        writes(&device, s.native(), &x);
        *slot = Some(x);
    });
    Steady { round, synchronise: Box::new(move || waits.synchronize().expect("waited")), asked: 0 }
}

pub fn at_a_limit(policy: Policy) -> Config {
    config(policy).limit(Limit::Bytes(52 * MIB))
}

/// A stream for each round, with windows of its own for small requests and large ones. Of two lengths: of four, what gone streams left in pieces
/// reaches its height of 54 MiB after 7,000 rounds only, and stays there for 400,000.
pub fn windows_of_streams_that_come_and_go(b: &Bench) -> Steady {
    let (gpu, device) = (b.gpu.clone(), b.device.clone());
    let (waits, all) = (gpu.clone(), gpu.clone());
    let round = Box::new(move |i: u64| {
        let fresh = stream(&gpu);
        for bytes in [512, (3 + i % 2) * MIB] {
            let x = block(&gpu, bytes, &fresh);
            writes(&device, fresh.native(), &x);
        }
        // For all of them: how many streams are behind would otherwise be chance, and with it the bytes.
        if i.is_multiple_of(3) {
            all.synchronize().expect("waited");
        }
    });
    Steady { round, synchronise: Box::new(move || waits.synchronize().expect("waited")), asked: 1 }
}
