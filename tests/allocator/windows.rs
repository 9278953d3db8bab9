//! Virtual memory beneath the pools: what a request takes of the device, and that books and device agree whichever call fails.

mod trims;

use crate::rig::{all_back, all_clean, late, on, write};
use millpond::allocator::VirtualMemory;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DriverErrorKind as Kind, Error, Growth, Limit, Policy, Reuse, Trim};
use millpond_sim::{Call, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

fn config() -> Config {
    Config::default().virtual_memory(VirtualMemory::Always)
}

/// What the device has given, which the allocator's books say too.
pub(crate) fn taken(sim: &Sim, gpu: &Allocator<Sim>) -> u64 {
    gpu.check();
    let reserved = gpu.report().reserved;
    assert_eq!(reserved, sim.ledger().bytes_reserved, "books and device");
    reserved
}

/// A request that fits into no free range takes what is missing beside the longest, not all of its length.
#[test]
fn a_request_takes_what_is_missing_beside_what_is_free() {
    let sim = late();
    let gpu = on(&sim, config());
    let s = gpu.stream().unwrap();
    let [x, y] = [30, 10].map(|mib| gpu.alloc(mib * MIB, &s).unwrap());
    assert_eq!(taken(&sim, &gpu), 40 * MIB);
    drop(y);
    // 10 MiB are free behind `x`, and behind them nothing is.
    let z = gpu.alloc(13 * MIB, &s).unwrap();
    write(&sim, &z, &s);
    assert_eq!(taken(&sim, &gpu), 44 * MIB);
    drop((x, z));
    let whole = gpu.alloc(44 * MIB, &s).unwrap();
    write(&sim, &whole, &s);
    assert_eq!(taken(&sim, &gpu), 44 * MIB, "a hit over all handles");
    assert_eq!(sim.ledger().calls_of(Call::MemAlloc), 0);
    drop((whole, s));
    all_clean(&sim, gpu);
}

/// Small requests have windows of their own, of which each takes a unit at a time.
#[test]
fn small_requests_take_a_unit() {
    let sim = late();
    let gpu = on(&sim, config());
    let s = gpu.stream().unwrap();
    let large = gpu.alloc(100 * MIB, &s).unwrap();
    let small: Vec<_> = (0..9).map(|_| gpu.alloc(256 << 10, &s).unwrap()).collect();
    assert_eq!(taken(&sim, &gpu), 104 * MIB);
    drop((large, small, s));
    all_clean(&sim, gpu);
}

/// An aligned request lies where it has to, and a request for an alignment of a whole window does too.
#[test]
fn aligned_requests_lie_in_windows() {
    let sim = late();
    let gpu = on(&sim, config());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(3 * MIB, &s).unwrap();
    for align in [4 * MIB, 64 * MIB, GIB] {
        let y = gpu.alloc_aligned(5 * MIB, align, &s).unwrap();
        assert!(y.address().0.is_multiple_of(align));
        write(&sim, &y, &s);
        taken(&sim, &gpu);
    }
    drop((x, s));
    all_clean(&sim, gpu);
}

/// What is free in one stream's window serves another's request, and comes home.
#[test]
fn ranges_of_windows_migrate() {
    let sim = late();
    let gpu = on(&sim, config().limit(Limit::Bytes(64 * MIB)));
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    for _ in 0..3 {
        for s in [&a, &b] {
            let x = gpu.alloc(60 * MIB, s).unwrap();
            write(&sim, &x, s);
            drop(x);
            taken(&sim, &gpu);
            let y = gpu.alloc(20 * MIB, s).unwrap();
            write(&sim, &y, s);
        }
    }
    assert_eq!(taken(&sim, &gpu), 60 * MIB);
    drop((a, b));
    all_clean(&sim, gpu);
}

/// Less room than a unit is room for a plain segment.
#[test]
fn less_than_a_unit_of_room_is_used() {
    let sim = late();
    let gpu = on(&sim, config().limit(Limit::Bytes(5 * MIB)));
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    let y = gpu.alloc(MIB, &s).unwrap();
    assert_eq!((taken(&sim, &gpu), sim.ledger().calls_of(Call::MemAlloc)), (5 * MIB, 1));
    assert!(matches!(gpu.alloc(MIB, &s), Err(Error::OutOfMemory(_))));
    drop((x, y, s));
    all_clean(&sim, gpu);
}

/// Baselines that count bytes have no windows, and a configuration that requires them is refused.
#[test]
fn baselines_have_plain_segments() {
    for config in [config().growth(Growth::Exact), config().exact_fit(true)] {
        let e = Allocator::new(late(), config.clone()).unwrap_err();
        assert!(e.to_string().contains("exact"), "{e}");
        let sim = late();
        let gpu = on(&sim, config.virtual_memory(VirtualMemory::Auto));
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(MIB, &s).unwrap();
        assert_eq!(sim.ledger().calls_of(Call::Create), 0);
        drop((x, s));
        all_clean(&sim, gpu);
    }
}

/// A device whose driver knows the calls and refuses addresses: plain segments, for good if it says that there is no virtual memory.
#[test]
fn without_addresses_there_are_plain_segments() {
    for (kind, reserves) in [(Kind::NotSupported, 1), (Kind::Other, 3), (Kind::OutOfMemory, 3)] {
        let sim = late();
        let gpu = on(&sim, config());
        let s = gpu.stream().unwrap();
        sim.fail(Call::AddressReserve, 1, kind);
        if kind != Kind::NotSupported {
            // The smaller one too.
            sim.fail(Call::AddressReserve, 2, kind);
        }
        let x = gpu.alloc(30 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        assert_eq!(sim.ledger().calls_of(Call::MemAlloc), 1, "{kind:?}");
        let y = gpu.alloc(30 * MIB, &s).unwrap();
        assert_eq!(sim.ledger().calls_of(Call::AddressReserve), reserves, "{kind:?}");
        taken(&sim, &gpu);
        drop((x, y, s));
        all_clean(&sim, gpu);
    }
}

/// Handles of 16, 8, 4 and 2 MiB for one request; the nth call of each kind fails. What was made before stays as free memory, and the request served
/// again takes the rest only.
#[test]
fn a_call_that_fails_within_a_plan_loses_nothing() {
    for call in [Call::Create, Call::Map, Call::SetAccess] {
        for nth in 1..=4 {
            for kind in [Kind::OutOfMemory, Kind::Other] {
                let sim = late();
                let gpu = on(&sim, config().limit(Limit::Bytes(GIB)));
                let s = gpu.stream().unwrap();
                sim.fail(call, nth, kind);
                let refused = gpu.alloc(14 * MIB, &s);
                let before = taken(&sim, &gpu);
                // Handles are of one unit at first: all of what was made is here.
                assert_eq!(
                    before,
                    if refused.is_ok() { 14 } else { 2 * (nth - 1) } * MIB,
                    "{call:?} {nth} {kind:?}"
                );
                sim.clear_faults();
                let x = refused.or_else(|_| gpu.alloc(14 * MIB, &s)).unwrap();
                write(&sim, &x, &s);
                assert_eq!(taken(&sim, &gpu), 14 * MIB, "{call:?} {nth} {kind:?}");
                drop((x, s));
                all_clean(&sim, gpu);
            }
        }
    }
}

/// The access cannot be set, and the mapping not be taken away: the addresses wait until the driver does it, and are not used before.
#[test]
fn a_mapping_that_stays_is_taken_away_later() {
    let sim = late();
    let gpu = on(&sim, config());
    let s = gpu.stream().unwrap();
    sim.fail(Call::SetAccess, 1, Kind::Other);
    // Nor when the request trims.
    sim.fail(Call::Unmap, 1, Kind::Other);
    sim.fail(Call::Unmap, 2, Kind::Other);
    assert!(gpu.alloc(4 * MIB, &s).is_err());
    assert_eq!(taken(&sim, &gpu), 2 * MIB, "it counts");
    sim.fail(Call::Unmap, 1, Kind::Other);
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    assert_eq!(taken(&sim, &gpu), 6 * MIB);
    let y = gpu.alloc(2 * MIB, &s).unwrap();
    write(&sim, &y, &s);
    assert_eq!(taken(&sim, &gpu), 6 * MIB, "the handle is the next one's");
    drop((x, y, s));
    all_clean(&sim, gpu);
}

/// A handle that the driver does not take back is spare: the next request has it, or room is made of it.
#[test]
fn a_handle_that_is_not_taken_back_is_spare() {
    for makes_room in [false, true] {
        let sim = late();
        let gpu = on(&sim, config().limit(Limit::Bytes(8 * MIB)));
        let s = gpu.stream().unwrap();
        sim.fail(Call::Map, 1, Kind::Other);
        // Nor when the request trims.
        sim.fail(Call::Release, 1, Kind::Other);
        sim.fail(Call::Release, 2, Kind::Other);
        assert!(gpu.alloc(2 * MIB, &s).is_err());
        assert_eq!(taken(&sim, &gpu), 2 * MIB);
        let mib = if makes_room { 8 } else { 4 };
        let x = gpu.alloc(mib * MIB, &s).unwrap();
        write(&sim, &x, &s);
        assert_eq!(taken(&sim, &gpu), mib * MIB);
        drop((x, s));
        all_clean(&sim, gpu);
    }
}

/// A call that panics when it is done: the claim is void, and what other calls brought is free memory. A handle that may be mapped or not serves again.
#[test]
fn a_call_that_panics_within_a_plan() {
    for call in [Call::AddressReserve, Call::Create, Call::Map, Call::SetAccess] {
        for nth in 1..=3 {
            let sim = late();
            let gpu = on(&sim, config());
            let s = gpu.stream().unwrap();
            sim.panic_behind(call, nth);
            let panicked = catch_unwind(AssertUnwindSafe(|| gpu.alloc(8 * MIB, &s))).is_err();
            assert!(panicked || call == Call::AddressReserve && nth > 1, "{call:?} {nth}");
            gpu.check();
            let x = gpu.alloc(8 * MIB, &s).unwrap();
            write(&sim, &x, &s);
            gpu.check();
            drop((x, s));
            if matches!(call, Call::Map | Call::SetAccess) {
                // The mapping was taken away when it was tried again, and the handle is in use.
                assert_eq!(taken(&sim, &gpu), 8 * MIB, "{call:?} {nth}");
                all_clean(&sim, gpu);
                continue;
            }
            drop(gpu);
            sim.run_until_idle();
            sim.verdict().unwrap();
        }
    }
}

/// Pools of streams that end leave no window, and what they had serves others.
#[test]
fn windows_of_closed_pools_go_with_their_last_handle() {
    let sim = late();
    let gpu = on(&sim, config());
    for _ in 0..200 {
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(6 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        drop((x, s));
        gpu.synchronize().unwrap();
    }
    assert_eq!(taken(&sim, &gpu), 6 * MIB);
    let report = gpu.report();
    let windows = report.physical.expect("there are windows").windows;
    assert!(windows <= 200 && report.segments == 0, "{report}");
    all_clean(&sim, gpu);
}

/// Threads of one stream that all miss fill one run after the other, and threads of other streams beside them.
#[test]
fn threads_fill_beside_each_other() {
    let sim = Sim::new(4 * GIB);
    let gpu = on(&sim, config().policy(Policy::Footprint).reuse(Reuse::Ordered));
    let shared = gpu.stream().unwrap();
    let begin = Barrier::new(6);
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (gpu, shared, begin) = (&gpu, &shared, &begin);
            scope.spawn(move || {
                let own = gpu.stream().unwrap();
                begin.wait();
                for n in 0..60 {
                    let s = if (thread + n) % 3 == 0 { &own } else { shared };
                    let blocks = [1, 3 + n % 7, 2].map(|mib| gpu.alloc(mib * MIB + 512 * thread, s).unwrap());
                    drop(blocks);
                }
            });
        }
    });
    taken(&sim, &gpu);
    drop(shared);
    all_clean(&sim, gpu);
}

/// The end gives back mappings, handles and addresses, in that order, whichever call fails once or twice; a lost context ends quietly.
#[test]
fn the_end_gives_everything_back() {
    let program = |sim: &Sim| {
        let gpu = on(sim, config());
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let blocks =
            [gpu.alloc(6 * MIB, &s).unwrap(), gpu.alloc(MIB, &t).unwrap(), gpu.alloc(512, &t).unwrap()];
        drop(blocks);
        gpu
    };
    for call in [Call::Unmap, Call::Release, Call::AddressFree] {
        for nth in 1..=3 {
            let sim = late();
            let gpu = program(&sim);
            sim.fail(call, nth, Kind::Other);
            drop(gpu);
            sim.run_until_idle();
            sim.verdict().unwrap();
            let met = usize::from(call != Call::AddressFree || nth == 1);
            assert_eq!((sim.leaks(), sim.drop_errors().len()), (vec![], met), "{call:?} {nth}");
        }
    }
    let sim = late();
    drop(program(&sim));
    all_back(&sim);
}

/// A trim gives the handles back between what is live, beside a kernel that runs and whatever else it uses, and the addresses serve again.
#[test]
fn a_trim_gives_handles_back_between_live_ones() {
    let sim = late();
    let gpu = on(&sim, config());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut blocks: Vec<_> = (0..16).map(|_| Some(gpu.alloc(4 * MIB, &s).unwrap())).collect();
    for x in blocks.iter_mut().step_by(2) {
        let x = x.take().unwrap();
        write(&sim, &x, &s);
    }
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 0, "nothing is complete");
    gpu.synchronize().unwrap();
    let gate = sim.gate(t.native()).unwrap();
    let used = gpu.alloc(2 * MIB, &t).unwrap();
    write(&sim, &used, &t);
    drop(used);
    let before = taken(&sim, &gpu);
    assert_eq!((before, gpu.unused_segment_bytes()), (64 * MIB, 32 * MIB));
    let trimmed = gpu.trim(Trim::All).unwrap();
    // The stream behind the gate has 2 MiB of it in use.
    assert_eq!((trimmed.bytes, taken(&sim, &gpu)), (30 * MIB, 34 * MIB));
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    assert!(taken(&sim, &gpu) <= 38 * MIB, "in a hole");
    gate.open();
    drop((x, blocks, s, t));
    all_clean(&sim, gpu);
}

/// What is free between one stream's live memory makes room under the limit for another's request that none of it holds.
#[test]
fn fragments_make_room_for_another_stream() {
    let sim = late();
    let gpu = on(&sim, config().limit(Limit::Bytes(32 * MIB)));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut blocks: Vec<_> = (0..16).map(|_| Some(gpu.alloc(2 * MIB, &s).unwrap())).collect();
    blocks.iter_mut().step_by(2).for_each(|x| drop(x.take()));
    gpu.synchronize().unwrap();
    let x = gpu.alloc(16 * MIB, &t).unwrap();
    write(&sim, &x, &t);
    assert_eq!(taken(&sim, &gpu), 32 * MIB);
    drop((x, blocks, s, t));
    all_clean(&sim, gpu);
}

/// Each call of a trim fails: what was gathered is where it was, and the next trim gives it back.
#[test]
fn a_trim_that_fails_loses_nothing() {
    for call in [Call::Unmap, Call::Release] {
        for nth in 1..=3 {
            let sim = late();
            let gpu = on(&sim, config());
            let s = gpu.stream().unwrap();
            drop(gpu.alloc(6 * MIB, &s).unwrap());
            gpu.synchronize().unwrap();
            sim.fail(call, nth, Kind::Other);
            let failed = gpu.trim(Trim::All);
            assert_eq!(failed.is_err(), call == Call::Unmap);
            let left = taken(&sim, &gpu);
            assert!(left <= 6 * MIB, "{call:?} {nth}");
            let trimmed = gpu.trim(Trim::All).unwrap();
            assert_eq!((trimmed.bytes, taken(&sim, &gpu)), (left, 0), "{call:?} {nth}");
            drop(s);
            all_clean(&sim, gpu);
        }
    }
}
