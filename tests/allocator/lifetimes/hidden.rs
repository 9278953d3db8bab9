//! Memory that lies behind other memory which cannot be had: a request at the limit finds it.

use crate::rig::{all_clean, late, on, write};
use millpond::units::{KIB, MIB};
use millpond::{Config, Growth, Limit, Reuse};
use std::time::Duration;

/// The host waits for nothing, and every block is a segment.
fn at(bytes: u64) -> Config {
    Config::default()
        .reuse(Reuse::WithWaits)
        .limit(Limit::Bytes(bytes))
        .growth(Growth::Exact)
        .bounded_wait(Duration::ZERO)
}

/// Of two ranges in flight the one that a capturing stream used cannot be waited for, and the other one can.
#[test]
fn a_range_in_flight_is_found_beside_one_that_a_capturing_stream_used() {
    for captured in 0..2 {
        for elsewhere in [false, true] {
            let sim = late();
            let gpu = on(&sim, at(2 * MIB));
            let natives = [sim.stream().unwrap(), sim.stream().unwrap()];
            let users = natives.each_ref().map(|n| gpu.adopt(n.clone()).unwrap());
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let blocks = [gpu.alloc(MIB, &s).unwrap(), gpu.alloc(MIB, &s).unwrap()];
            for (block, user) in blocks.iter().zip(&users) {
                user.wait_stream(&s).unwrap();
                block.record_use(user).unwrap();
                write(&sim, block, user);
            }
            drop(blocks);
            sim.begin_capture(&natives[captured]).unwrap();
            let who = if elsewhere { &t } else { &s };
            let found = gpu.alloc(MIB, who).unwrap_or_else(|e| panic!("{captured} captures: {e}"));
            write(&sim, &found, who);
            sim.end_capture(&natives[captured]).expect("the capture lives");
            drop((found, users, natives, s, t));
            all_clean(&sim, gpu);
        }
    }
}

/// A search looks at 64 ranges of a pool; before a request fails, at all.
#[test]
fn a_complete_range_is_found_behind_a_hundred_that_are_pending() {
    let sim = late();
    let gpu = on(&sim, at(100 * MIB + 3 * MIB / 2).reuse(Reuse::Ordered));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let done = gpu.alloc(3 * MIB / 2, &s).unwrap();
    write(&sim, &done, &s);
    let pending: Vec<_> = (0..100).map(|_| gpu.alloc(MIB, &s).unwrap()).collect();
    drop(done);
    s.synchronize().unwrap();
    for block in &pending {
        write(&sim, block, &s);
    }
    drop(pending);
    drop(gpu.alloc(MIB, &t).expect("1.5 MiB are complete"));
    drop((s, t));
    all_clean(&sim, gpu);
}

/// Once growth was refused, small requests take what others' large segments have, also where no wait may be inserted.
#[test]
fn a_small_request_finds_what_large_segments_of_others_have() {
    let sim = late();
    let gpu = on(&sim, at(20 * MIB).growth(Growth::default()).reuse(Reuse::Ordered));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let most = gpu.alloc(15 * MIB, &s).unwrap();
    let small = gpu.alloc(4 * KIB, &t).expect("5 MiB are complete");
    drop((most, small, s, t));
    all_clean(&sim, gpu);
}

/// A stream that captures cannot be marked, but what it did before its last marker is waited for.
#[test]
fn what_a_capturing_stream_was_marked_behind_is_waited_for() {
    let sim = late();
    let config = at(MIB).reuse(Reuse::Ordered).bounded_wait(Duration::from_mins(1));
    let gpu = on(&sim, config);
    let native = sim.stream().unwrap();
    let (c, t) = (gpu.adopt(native.clone()).unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(MIB, &c).unwrap();
    write(&sim, &x, &c);
    drop(x);
    let marked = c.record().unwrap();
    sim.begin_capture(&native).unwrap();
    // One marker more is reserved, and refused.
    gpu.alloc(MIB, &t).map(drop).expect("marked before");
    sim.end_capture(&native).expect("the capture lives");
    drop((marked, c, native, t));
    all_clean(&sim, gpu);
}
