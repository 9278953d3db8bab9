//! Free memory of streams that have nothing to do, which no marker covers: a request finds it before its pool
//! grows beyond what the policy allows; under `latency` that is the limit.

use crate::rig::{all_clean, late, on, write};
use crate::windows::taken;
use millpond::allocator::VirtualMemory;
use millpond::units::{GIB, KIB, MIB};
use millpond::{Config, Limit, Policy, Trim};
use millpond_sim::{Call, Schedule, Sim};

/// A device whose work is complete as soon as it was queued.
fn at_once() -> Sim {
    Sim::new(4 * GIB).schedule(Schedule::Earliest)
}

/// What one stream freed serves the others, whatever its size, with no wait and no mark by the program.
#[test]
fn what_an_idle_stream_freed_last_serves_others() {
    for bytes in [KIB, 256 * KIB, MIB, 40 * MIB] {
        let sim = at_once();
        let gpu = on(&sim, Config::default().policy(Policy::Footprint));
        let streams: Vec<_> = (0..6).map(|_| gpu.stream().unwrap()).collect();
        let first = gpu.alloc(bytes, &streams[0]).unwrap();
        let reserved = gpu.report().reserved;
        drop(first);
        for s in &streams[1..] {
            let x = gpu.alloc(bytes, s).unwrap();
            write(&sim, &x, s);
            sim.run_until_idle();
            assert_eq!(gpu.report().reserved, reserved, "{bytes} B on {}", s.id());
        }
        assert_eq!(
            (gpu.report().total.counters.waits_inserted, gpu.report().total.counters.host_waits),
            (0, 0)
        );
        drop(streams);
        all_clean(&sim, gpu);
    }
}

/// Under `latency` a stream keeps what its next request will hit, as long as there is room; at the limit it serves the others too.
#[test]
fn latency_grows_before_it_looks() {
    let sim = at_once();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(60 * MIB)));
    let [a, b, c] = [(); 3].map(|()| gpu.stream().unwrap());
    drop(gpu.alloc(30 * MIB, &a).unwrap());
    drop(gpu.alloc(30 * MIB, &b).unwrap());
    let misses = || gpu.report().total.counters.misses;
    let before = misses();
    for s in [&a, &b, &a, &b] {
        let x = gpu.alloc(30 * MIB, s).unwrap();
        write(&sim, &x, s);
        sim.run_until_idle();
    }
    assert_eq!((misses(), gpu.report().reserved), (before, 60 * MIB), "hits");
    let x = gpu.alloc(30 * MIB, &c).unwrap();
    write(&sim, &x, &c);
    assert_eq!((gpu.report().reserved, gpu.report().total.counters.host_waits), (60 * MIB, 0));
    drop((x, a, b, c));
    all_clean(&sim, gpu);
}

/// What is free in short pieces serves a long request by its handles, though the streams are not ordered and no wait may be inserted.
#[test]
fn handles_of_idle_streams_move() {
    let sim = at_once();
    let config = Config::default().virtual_memory(VirtualMemory::Always).policy(Policy::Footprint);
    let gpu = on(&sim, config);
    let [a, b] = [(); 2].map(|()| gpu.stream().unwrap());
    let pieces: Vec<_> = (0..16).map(|_| gpu.alloc(8 * MIB, &a).unwrap()).collect();
    let before = taken(&sim, &gpu);
    let mut kept = Vec::new();
    for (n, piece) in pieces.into_iter().enumerate() {
        if n % 2 == 0 {
            kept.push(piece);
        }
    }
    let long = gpu.alloc(60 * MIB, &b).unwrap();
    write(&sim, &long, &b);
    assert!(taken(&sim, &gpu) <= before + 2 * MIB, "{} of {before}", taken(&sim, &gpu));
    assert_eq!(gpu.report().total.counters.waits_inserted, 0);
    drop((kept, long, a, b));
    all_clean(&sim, gpu);
}

/// A range in flight comes back when the stream that read it has nothing to do any more.
#[test]
fn a_range_in_flight_of_an_idle_stream_serves_its_pool() {
    let sim = at_once();
    let gpu = on(&sim, Config::default().policy(Policy::Footprint));
    let [home, user] = [(); 2].map(|()| gpu.stream().unwrap());
    let x = gpu.alloc(30 * MIB, &home).unwrap();
    let reserved = gpu.report().reserved;
    x.record_use(&user).unwrap();
    write(&sim, &x, &user);
    drop(x);
    sim.run_until_idle();
    let y = gpu.alloc(30 * MIB, &home).unwrap();
    write(&sim, &y, &home);
    assert_eq!(gpu.report().reserved, reserved);
    drop((y, home, user));
    all_clean(&sim, gpu);
}

/// Ranges in flight of another stream's pool come back and serve, when the stream that read them has nothing to do any more: a fresh stream an
/// epoch takes no more than the first.
#[test]
fn ranges_in_flight_of_other_pools_serve() {
    let sim = at_once();
    let gpu = on(&sim, Config::default().policy(Policy::Footprint));
    let main = gpu.stream().unwrap();
    let mut streams = Vec::new();
    let mut reserved = 0;
    for epoch in 0..40 {
        let s = gpu.stream().unwrap();
        for _ in 0..8 {
            let x = gpu.alloc(30 * MIB, &s).unwrap();
            write(&sim, &x, &s);
            main.wait_stream(&s).unwrap();
            x.record_use(&main).unwrap();
        }
        sim.run_until_idle();
        // The first two: what the first one used last may be in flight while the second begins.
        if epoch <= 1 {
            reserved = gpu.report().reserved;
        }
        assert_eq!(gpu.report().reserved, reserved, "epoch {epoch}");
        streams.push(s);
    }
    drop((main, streams));
    all_clean(&sim, gpu);
}

/// A stream that has work queued is not marked again and again: while its last marker is not complete, a growth costs a query of it.
#[test]
fn a_busy_stream_gets_one_marker() {
    let sim = late();
    let gpu = on(&sim, Config::default().policy(Policy::Footprint));
    let [a, b] = [(); 2].map(|()| gpu.stream().unwrap());
    let x = gpu.alloc(30 * MIB, &a).unwrap();
    write(&sim, &x, &a);
    drop(x);
    let calls = || [Call::EventRecord, Call::EventQuery].map(|call| sim.ledger().calls_of(call));
    let mut held = Vec::new();
    let first = calls();
    held.push(gpu.alloc(30 * MIB, &b).unwrap());
    let second = calls();
    assert_eq!(second[0] - first[0], 1, "a marker");
    for _ in 0..20 {
        held.push(gpu.alloc(30 * MIB, &b).unwrap());
    }
    let last = calls();
    assert_eq!(last[0], second[0], "no marker more");
    assert!(last[1] - second[1] <= 40, "{} queries for 20 growths", last[1] - second[1]);
    // It completes, and serves without another marker.
    sim.run_until_idle();
    let reserved = gpu.report().reserved;
    held.push(gpu.alloc(30 * MIB, &b).unwrap());
    assert_eq!((gpu.report().reserved, calls()[0]), (reserved, last[0]));
    drop((held, a, b));
    all_clean(&sim, gpu);
}

/// Nor is it marked for what it frees behind a marker that is not complete: one that covers it would not be either.
#[test]
fn what_a_busy_stream_frees_later_is_not_marked() {
    let sim = late();
    let gpu = on(&sim, Config::default().policy(Policy::Footprint));
    let [a, b] = [(); 2].map(|()| gpu.stream().unwrap());
    let free_on_a = |bytes| {
        let x = gpu.alloc(bytes, &a).unwrap();
        write(&sim, &x, &a);
    };
    free_on_a(30 * MIB);
    let mut held = vec![gpu.alloc(30 * MIB, &b).unwrap()];
    let marked = || sim.ledger().calls_of(Call::EventRecord);
    let before = marked();
    assert_eq!(before, 1);
    for _ in 0..10 {
        free_on_a(MIB);
        held.push(gpu.alloc(30 * MIB, &b).unwrap());
    }
    assert_eq!(marked(), before);
    drop((held, a, b));
    all_clean(&sim, gpu);
}

/// An allocator that must not learn from queries grows as it always did.
#[test]
fn a_deterministic_allocator_asks_nothing() {
    let sim = at_once();
    let gpu = on(&sim, Config::default().policy(Policy::Footprint).deterministic(true));
    let [a, b] = [(); 2].map(|()| gpu.stream().unwrap());
    drop(gpu.alloc(30 * MIB, &a).unwrap());
    let x = gpu.alloc(30 * MIB, &b).unwrap();
    assert_eq!(sim.ledger().calls_of(Call::EventQuery), 0);
    assert_eq!(gpu.report().reserved, 60 * MIB);
    drop((x, a, b));
    gpu.trim(Trim::All).unwrap();
    all_clean(&sim, gpu);
}

/// A capture on the stream whose memory would serve goes on; the request grows.
#[test]
fn a_capture_on_an_idle_stream_survives() {
    let sim = at_once();
    let gpu = on(&sim, Config::default().policy(Policy::Footprint));
    let native = sim.stream().unwrap();
    let (a, b) = (gpu.adopt(native.clone()).unwrap(), gpu.stream().unwrap());
    drop(gpu.alloc(30 * MIB, &a).unwrap());
    sim.begin_capture(&native).unwrap();
    let x = gpu.alloc(30 * MIB, &b).unwrap();
    assert_eq!(gpu.report().reserved, 60 * MIB);
    sim.end_capture(&native).expect("the capture has not been ended by the request");
    drop((x, a, b, native));
    all_clean(&sim, gpu);
}
