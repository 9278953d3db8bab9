//! Physical memory that moves between windows of virtual memory, while the work that used it is pending: contents tell of a byte that had two owners.

use super::*;
use crate::dice::Dice;
use millpond::allocator::VirtualMemory;
use millpond::{Limit, Policy, Reuse};

/// Virtual memory beneath the pools where the device has it; `None` where it does not.
fn windows<T: Bench>(b: &T, limit: u64, policy: Policy) -> Option<Allocator<T::Device>> {
    let config = Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(limit)).policy(policy);
    let gpu = Allocator::new(b.device().clone(), config.virtual_memory(VirtualMemory::Always));
    gpu.map_err(|e| say(&format!("SKIPPED: {e}"))).ok()
}

/// What is free in pieces between live blocks serves one long request, of the same stream and of another, while kernels on all of it are pending.
pub fn pieces_serve_a_long_request<T: Bench>(b: &T) {
    let Some(gpu) = windows(b, 32 * MIB, Policy::Latency) else { return };
    for other in [false, true] {
        let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
        let gate = b.gate(s.native());
        let mut blocks: Vec<_> = (0..16).map(|_| Some(gpu.alloc(2 * MIB, &s).expect("memory"))).collect();
        let words: Vec<u64> = blocks.iter().flatten().map(|x| own(b, x, &s)).collect();
        // Nothing has run yet.
        blocks.iter_mut().step_by(2).for_each(|x| drop(x.take()));
        let on = if other { &t } else { &s };
        let long = gpu.alloc(16 * MIB, on).expect("8 pieces of 2 MiB");
        let word = own(b, &long, on);
        assert_eq!(gpu.report().reserved, 32 * MIB);
        b.open(gate);
        still(b, &long, on, word);
        for (x, &word) in blocks.iter().zip(&words) {
            if let Some(x) = x {
                still(b, x, &s, word);
            }
        }
        drop((blocks, long));
        gpu.synchronize().expect("waited");
    }
    gpu.check();
}

/// Rounds of random lengths on three streams under `footprint`: blocks keep their words while what is around them moves.
pub fn contents_survive_moves<T: Bench>(b: &T) {
    let Some(gpu) = windows(b, 512 * MIB, Policy::Footprint) else { return };
    let streams = [0; 3].map(|_| gpu.stream().expect("a stream"));
    let mut dice = Dice::new(0x30E5);
    let mut live = Vec::new();
    for round in 0..b.many(200, 100) {
        let n = dice.below(3);
        let s = &streams[n];
        let bytes = (1 + dice.below(16) as u64) * MIB / (1 + dice.below(4) as u64);
        let x = gpu.alloc(bytes, s).expect("memory");
        let word = own(b, &x, s);
        live.push((x, n, word));
        while live.len() > 12 {
            let (x, n, word) = live.swap_remove(dice.below(live.len()));
            still(b, &x, &streams[n], word);
        }
        if round % 50 == 49 {
            // The host does not run ahead for ever.
            gpu.synchronize().expect("waited");
        }
    }
    for (x, n, word) in live.drain(..) {
        still(b, &x, &streams[n], word);
    }
    // Nothing was trimmed: what was unmapped had moved, or made room for what fits.
    let unmapped = b.device().calls().iter().any(|(name, n)| *name == "cuMemUnmap" && *n > 0);
    assert!(unmapped, "nothing moved: {:?}", gpu.report().ladder.move_handles);
    gpu.check();
}

/// Every other of 56 pieces is freed; a request for 16 of them in one, with no room left.
pub fn half_of_the_pieces_in_one<T: Bench>(b: &T) {
    let Some(gpu) = windows(b, 448 * MIB, Policy::Latency) else { return };
    let s = gpu.stream().expect("a stream");
    let mut blocks: Vec<_> = (0..56).map(|_| Some(gpu.alloc(8 * MIB, &s).expect("memory"))).collect();
    blocks.iter_mut().step_by(2).for_each(|x| drop(x.take()));
    let long = gpu.alloc(128 * MIB, &s).expect("16 of the 28 free pieces");
    let word = own(b, &long, &s);
    still(b, &long, &s, word);
    assert_eq!(gpu.report().reserved, 448 * MIB);
    gpu.check();
}
