//! Physical memory that moves between windows: for whom, behind what, and that books and device agree whichever call fails.

use crate::rig::{all_clean, check, check_all, late, on, write, write_all};
use crate::windows::taken;
use millpond::allocator::VirtualMemory;
use millpond::units::{GIB, MIB};
use millpond::{Allocation, Allocator, Config, DriverErrorKind as Kind, Error, Limit, Policy, Reuse, Stream};
use millpond_sim::{Call, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

fn config(mib: u64) -> Config {
    Config::default()
        .reuse(Reuse::WithWaits)
        .virtual_memory(VirtualMemory::Always)
        .limit(Limit::Bytes(mib * MIB))
}

/// So many blocks of 2 MiB that are written on a stream, every other one freed behind that.
fn every_other(sim: &Sim, gpu: &Allocator<Sim>, n: usize, s: &Stream<Sim>) -> Vec<Allocation<Sim>> {
    let all: Vec<_> = (0..n).map(|_| gpu.alloc(2 * MIB, s).unwrap()).collect();
    write_all(sim, &all, s);
    all.into_iter().enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, x)| x).collect()
}

/// Pieces of the own stream serve at once, whatever is pending on them: no wait of any kind, and no byte more of the device.
#[test]
fn own_pieces_serve_a_long_request() {
    for policy in [Policy::Latency, Policy::Footprint] {
        let sim = late();
        let gpu = on(&sim, config(32).policy(policy));
        let s = gpu.stream().unwrap();
        let kept = every_other(&sim, &gpu, 16, &s);
        let x = gpu.alloc(16 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        assert_eq!(taken(&sim, &gpu), 32 * MIB);
        let counts = gpu.report().total.counters;
        assert_eq!((counts.waits_inserted, counts.host_waits), (0, 0));
        assert_eq!(gpu.report().ladder.move_handles.served, 1);
        check_all(&sim, &kept, &s);
        check(&sim, &x, &s);
        // The old mappings go when their uses are over.
        sim.run_until_idle();
        drop((x, kept));
        let whole = gpu.alloc(32 * MIB, &s).unwrap();
        write(&sim, &whole, &s);
        assert_eq!(taken(&sim, &gpu), 32 * MIB);
        drop((whole, s));
        all_clean(&sim, gpu);
    }
}

/// Another stream's pieces serve behind one wait of the device, if waits are allowed; if not, when they are complete.
#[test]
fn another_streams_pieces_serve_behind_a_wait() {
    for reuse in [Reuse::WithWaits, Reuse::Ordered, Reuse::Never] {
        let sim = late();
        let gpu = on(&sim, config(32).reuse(reuse).bounded_wait(Duration::ZERO));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let kept = every_other(&sim, &gpu, 16, &s);
        let served = gpu.alloc(16 * MIB, &t);
        assert_eq!(served.is_ok(), reuse == Reuse::WithWaits, "{reuse:?}");
        assert_eq!(gpu.report().total.counters.waits_inserted, u64::from(reuse == Reuse::WithWaits));
        let x = served.or_else(|_| {
            gpu.synchronize().unwrap();
            gpu.alloc(16 * MIB, &t)
        });
        let x = x.unwrap();
        write(&sim, &x, &t);
        assert_eq!(taken(&sim, &gpu), 32 * MIB);
        check_all(&sim, &kept, &s);
        drop((x, kept, s, t));
        all_clean(&sim, gpu);
    }
}

/// No stream is made to wait for an independent one, nor an independent one for another.
#[test]
fn independent_streams_take_no_part() {
    for (of_s, of_t) in [(true, false), (false, true)] {
        let sim = late();
        let gpu = on(&sim, config(32).bounded_wait(Duration::ZERO));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        s.set_independent(of_s);
        t.set_independent(of_t);
        let kept = every_other(&sim, &gpu, 16, &s);
        assert!(matches!(gpu.alloc(16 * MIB, &t), Err(Error::OutOfMemory(_))));
        assert_eq!(gpu.report().total.counters.waits_inserted, 0);
        assert_eq!(taken(&sim, &gpu), 32 * MIB);
        drop((kept, s, t));
        all_clean(&sim, gpu);
    }
}

/// A handle that was complete when it was looked at and is used before its turn comes: behind a wait, but not of an independent stream.
#[test]
fn a_handle_that_is_used_before_its_turn() {
    for independent in [false, true] {
        let sim = late();
        let gpu = on(&sim, config(32).bounded_wait(Duration::ZERO));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        s.set_independent(independent);
        let kept = every_other(&sim, &gpu, 16, &s);
        gpu.synchronize().unwrap();
        // Of eight handles two are in hand when another thread allocates, writes and frees where the third is.
        let (device, other, home) = (sim.clone(), gpu.clone(), s.clone());
        sim.meanwhile(Call::Map, 2, move || {
            let used = std::thread::spawn(move || {
                let x = other.alloc(2 * MIB, &home).unwrap();
                write(&device, &x, &home);
            });
            used.join().unwrap();
        });
        let served = gpu.alloc(16 * MIB, &t);
        assert_eq!(served.is_err(), independent);
        assert_eq!(gpu.report().total.counters.waits_inserted, u64::from(!independent));
        // Where it is refused, the trim rung has given back what is complete: 14 MiB of room beside what lives, and the one that is in use.
        assert_eq!(taken(&sim, &gpu), if independent { 18 } else { 32 } * MIB);
        let x = served.or_else(|_| {
            gpu.synchronize().unwrap();
            gpu.alloc(16 * MIB, &t)
        });
        let x = x.unwrap();
        write(&sim, &x, &t);
        check_all(&sim, &kept, &s);
        drop((x, kept, s, t));
        all_clean(&sim, gpu);
    }
}

/// A handle whose free bytes two pools have moves too.
#[test]
fn a_handle_in_two_pools_moves() {
    let sim = late();
    let gpu = on(&sim, config(16));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    // The second half of each handle is t's, by migration.
    let all: Vec<_> = (0..16).map(|_| gpu.alloc(MIB, &s).unwrap()).collect();
    let (low, high): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
    drop(high);
    gpu.synchronize().unwrap();
    let theirs: Vec<_> = (0..8).map(|_| gpu.alloc(MIB, &t).unwrap()).collect();
    assert_eq!(taken(&sim, &gpu), 16 * MIB);
    drop((low, theirs));
    let x = gpu.alloc(16 * MIB, &t).unwrap();
    write(&sim, &x, &t);
    assert_eq!(taken(&sim, &gpu), 16 * MIB);
    drop((x, s, t));
    all_clean(&sim, gpu);
}

/// A program that is far ahead of the device: the same bytes move again and again, and mappings stay bounded.
#[test]
fn a_host_far_ahead_moves_the_same_bytes_again() {
    let sim = late();
    let gpu = on(&sim, config(64).policy(Policy::Footprint));
    let s = gpu.stream().unwrap();
    for n in 0..200_u64 {
        let blocks: Vec<_> = (0..8).map(|k| gpu.alloc((1 + (n + k) % 4) * MIB, &s).unwrap()).collect();
        write_all(&sim, &blocks, &s);
        drop(blocks);
        let x = gpu.alloc((20 + n % 13) * MIB, &s).unwrap();
        write(&sim, &x, &s);
    }
    let report = gpu.report();
    assert_eq!(report.total.counters.host_waits, 0);
    assert!(taken(&sim, &gpu) <= 40 * MIB, "{report}");
    sim.run_until_idle();
    // Nothing is left of the moves: each handle has one mapping.
    for n in 0..200_u64 {
        drop(gpu.alloc((20 + n % 13) * MIB, &s).unwrap());
        gpu.synchronize().unwrap();
    }
    drop(s);
    all_clean(&sim, gpu);
}

/// The nth call of each kind fails within a move, or behind it: what did not move is where it was, and the next request has it.
#[test]
fn a_call_that_fails_within_a_move_loses_nothing() {
    for call in [Call::Map, Call::SetAccess, Call::Unmap, Call::EventRecord, Call::StreamWaitEvent] {
        for nth in 1..=6 {
            for kind in [Kind::OutOfMemory, Kind::Other, Kind::InvalidValue] {
                for pending in [true, false] {
                    let sim = late();
                    let gpu = on(&sim, config(32));
                    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
                    let kept = every_other(&sim, &gpu, 16, &s);
                    if !pending {
                        gpu.synchronize().unwrap();
                    }
                    sim.fail(call, nth, kind);
                    let refused = gpu.alloc(16 * MIB, &t);
                    assert_eq!(taken(&sim, &gpu), 32 * MIB, "{call:?} {nth} {kind:?}");
                    sim.clear_faults();
                    let x = refused.or_else(|_| gpu.alloc(16 * MIB, &t));
                    let x = x.unwrap_or_else(|e| panic!("{call:?} {nth} {kind:?} {pending}: {e}"));
                    write(&sim, &x, &t);
                    check_all(&sim, &kept, &s);
                    drop((x, kept, s, t));
                    gpu.check();
                    drop(gpu);
                    sim.run_until_idle();
                    sim.verdict().unwrap();
                    assert_eq!(sim.leaks(), [], "{call:?} {nth} {kind:?}");
                }
            }
        }
    }
}

/// A driver that panics within a move: the handle in hand is reserved until the allocator's end, and everything else is as it was.
#[test]
fn a_call_that_panics_within_a_move() {
    for call in [Call::Map, Call::SetAccess, Call::Unmap] {
        for nth in 1..=4 {
            let sim = late();
            let gpu = on(&sim, config(GIB / MIB).policy(Policy::Footprint));
            let s = gpu.stream().unwrap();
            let kept = every_other(&sim, &gpu, 16, &s);
            gpu.synchronize().unwrap();
            sim.panic_behind(call, nth);
            let panicked = catch_unwind(AssertUnwindSafe(|| gpu.alloc(16 * MIB, &s))).is_err();
            assert!(panicked, "{call:?} {nth}");
            gpu.check();
            let x = gpu.alloc(16 * MIB, &s).unwrap();
            write(&sim, &x, &s);
            check_all(&sim, &kept, &s);
            gpu.check();
            drop((x, kept, s, gpu));
            sim.run_until_idle();
            sim.verdict().unwrap();
        }
    }
}

/// A driver that panics in the wait before a move: the handle is where it was.
#[test]
fn a_wait_that_panics_before_a_move() {
    for call in [Call::EventRecord, Call::StreamWaitEvent] {
        let sim = late();
        let gpu = on(&sim, config(32));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let kept = every_other(&sim, &gpu, 16, &s);
        // The first event of t is its own marker, before the search.
        sim.panic_behind(call, if call == Call::EventRecord { 2 } else { 1 });
        let panicked = catch_unwind(AssertUnwindSafe(|| gpu.alloc(16 * MIB, &t))).is_err();
        assert!(panicked, "{call:?}");
        assert_eq!(taken(&sim, &gpu), 32 * MIB);
        let x = gpu.alloc(16 * MIB, &t).unwrap();
        write(&sim, &x, &t);
        assert_eq!(taken(&sim, &gpu), 32 * MIB, "all eight handles are there");
        check_all(&sim, &kept, &s);
        drop((x, kept, s, t, gpu));
        sim.run_until_idle();
        sim.verdict().unwrap();
    }
}

/// The device gives no more, for another process has the rest: what is free in pieces serves, under both policies.
#[test]
fn a_full_device_moves_what_is_there() {
    for policy in [Policy::Latency, Policy::Footprint] {
        let sim = late();
        let gpu = on(&sim, config(GIB / MIB).policy(policy));
        let s = gpu.stream().unwrap();
        let kept = every_other(&sim, &gpu, 16, &s);
        for nth in 1..=64 {
            sim.fail(Call::Create, nth, Kind::OutOfMemory);
            sim.fail(Call::MemAlloc, nth, Kind::OutOfMemory);
        }
        let x = gpu.alloc(16 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        assert_eq!((taken(&sim, &gpu), gpu.report().total.counters.host_waits), (32 * MIB, 0));
        sim.clear_faults();
        check_all(&sim, &kept, &s);
        drop((x, kept, s));
        all_clean(&sim, gpu);
    }
}

/// 400 MiB live by turns on eight streams, each ordered behind the one before, with all work pending: no second 400 MiB, no wait of the host.
#[test]
fn a_round_robin_over_eight_streams_takes_what_is_live() {
    let sim = late();
    let gpu = on(&sim, config(4 * GIB / MIB).policy(Policy::Footprint));
    let streams: Vec<_> = (0..8).map(|_| gpu.stream().unwrap()).collect();
    for round in 0..24 {
        let (before, s) = (&streams[(round + 7) % 8], &streams[round % 8]);
        s.wait_stream(before).unwrap();
        // In pieces of other lengths each time, so that no range of one stream serves the next.
        let pieces = 3 + round as u64 % 5;
        let blocks: Vec<_> = (0..pieces).map(|_| gpu.alloc(400 * MIB / pieces, s).unwrap()).collect();
        write_all(&sim, &blocks, s);
    }
    let report = gpu.report();
    assert!(taken(&sim, &gpu) <= 420 * MIB, "{report}");
    assert_eq!(report.total.counters.host_waits, 0);
    drop(streams);
    all_clean(&sim, gpu);
}

/// A fresh stream for each of 40 epochs, with 128 MiB live in pieces: the last epoch takes what the first took.
#[test]
fn a_fresh_stream_per_epoch_stays_flat() {
    let sim = late();
    let gpu = on(&sim, config(4 * GIB / MIB).policy(Policy::Footprint));
    let mut first = None;
    for epoch in 0..40_u64 {
        let s = gpu.stream().unwrap();
        let pieces = 1 << (epoch % 4);
        let blocks: Vec<_> = (0..pieces).map(|_| gpu.alloc(128 * MIB / pieces, &s).unwrap()).collect();
        write_all(&sim, &blocks, &s);
        drop((blocks, s));
        sim.run_until_idle();
        let now = taken(&sim, &gpu);
        let first = *first.get_or_insert(now);
        assert!(now * 100 <= first * 105, "epoch {epoch}: {now} bytes, the first had {first}");
    }
    all_clean(&sim, gpu);
}

/// 56 pieces of 128 MiB, every other one freed, and 2 GiB in one, with no room left.
#[test]
fn every_other_piece_serves_a_request_for_many() {
    let sim = Sim::new(8 * GIB);
    let gpu = on(&sim, config(7 * GIB / MIB));
    let s = gpu.stream().unwrap();
    let mut blocks: Vec<_> = (0..56).map(|_| Some(gpu.alloc(128 * MIB, &s).unwrap())).collect();
    blocks.iter_mut().step_by(2).for_each(|x| drop(x.take()));
    let x = gpu.alloc(2 * GIB, &s).unwrap();
    assert_eq!(taken(&sim, &gpu), 7 * GIB);
    drop((x, blocks, s));
    all_clean(&sim, gpu);
}
