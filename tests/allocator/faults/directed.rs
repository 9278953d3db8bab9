//! Single faults with a story of their own.

use crate::rig::{all_clean, check, late, on, write};
use millpond::units::MIB;
use millpond::{Config, DriverErrorKind as Kind, Error, Growth, Limit, Reuse, Trim};
use millpond_sim::{Call, Leak};

fn tight() -> Config {
    Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(64 * MIB))
}

/// A wait that cannot be inserted leaves the range where it was, as it was, and the requester as if it had requested nothing.
#[test]
fn a_failed_wait_puts_the_range_back_unchanged() {
    for in_flight in [false, true] {
        let sim = late();
        let gpu = on(&sim, tight().bounded_wait(core::time::Duration::ZERO));
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(64 * MIB, &a).unwrap();
        write(&sim, &x, &a);
        if in_flight {
            b.wait_stream(&a).unwrap();
            x.record_use(&b).unwrap();
            check(&sim, &x, &b);
        }
        drop(x);
        let before = gpu.report().total;
        let asker = gpu.stream().unwrap();
        sim.fail(Call::StreamWaitEvent, 1, Kind::Other);
        let e = gpu.alloc(64 * MIB, &asker).unwrap_err();
        assert!(matches!(&e, Error::Driver(d) if d.call == "cuStreamWaitEvent"), "{e}");
        gpu.check();
        let after = gpu.report().total;
        assert_eq!(
            (after.cached, after.in_flight, after.counters.migrations_out, after.counters.waits_inserted),
            (before.cached, before.in_flight, 0, 0)
        );
        let y = gpu.alloc(64 * MIB, &asker).unwrap();
        write(&sim, &y, &asker);
        drop((y, a, b, asker));
        all_clean(&sim, gpu);
    }
}

/// A marker that could not be recorded covers nothing: what comes later does not take its number for done (O8, Z26).
#[test]
fn a_failed_record_covers_nothing() {
    let sim = late();
    let gpu = on(&sim, tight());
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &a).unwrap();
    write(&sim, &x, &a);
    drop(x);
    sim.fail(Call::EventRecord, 1, Kind::Other);
    assert!(b.wait_stream(&a).is_err());
    let y = gpu.alloc(64 * MIB, &b).unwrap();
    write(&sim, &y, &b);
    assert_eq!(gpu.report().total.counters.waits_inserted, 1, "nothing had been ordered");
    drop((y, a, b));
    all_clean(&sim, gpu);
}

/// A query that fails is not "ready" (O4, Z10).
#[test]
fn a_failed_query_is_not_ready() {
    for kind in [Kind::Other, Kind::InvalidValue, Kind::NotSupported] {
        let sim = late();
        let gpu = on(&sim, tight().bounded_wait(core::time::Duration::ZERO).reuse(millpond::Reuse::Ordered));
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(64 * MIB, &a).unwrap();
        write(&sim, &x, &a);
        drop(x);
        let e = a.record().unwrap();
        for nth in 1..20 {
            sim.fail(Call::EventQuery, nth, kind);
        }
        assert!(e.is_complete().is_err());
        assert!(gpu.alloc(64 * MIB, &b).is_err());
        assert_eq!(gpu.report().total.cached, 64 * MIB);
        sim.clear_faults();
        drop((a, b, e));
        all_clean(&sim, gpu);
    }
}

/// One refused query is no reason to grow by the planned size or not at all.
#[test]
fn a_failed_query_does_not_stop_growth_at_the_first_size() {
    let sim = late();
    let gpu = on(&sim, Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(30 * MIB)));
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(MIB, &a).unwrap();
    b.wait_stream(&a).unwrap();
    x.record_use(&b).unwrap();
    check_nothing(&sim, &b);
    drop(x);
    // The rung that folds has a marker to ask about; 20 MiB no longer fit the limit, 10 do.
    let marked = b.record().unwrap();
    let kept = gpu.alloc(19 * MIB, &a).unwrap();
    sim.fail(Call::EventQuery, 1, Kind::Other);
    let y = gpu.alloc(10 * MIB, &a).expect("a segment of exactly the request fits");
    write(&sim, &y, &a);
    assert_eq!(gpu.report().reserved, 30 * MIB);
    drop((y, kept, marked, a, b));
    all_clean(&sim, gpu);
}

/// Work that touches nothing, so that the stream is not idle.
fn check_nothing(sim: &millpond_sim::Sim, s: &millpond::Stream<millpond_sim::Sim>) {
    sim.launch(s.native(), millpond_sim::Launch::new("nothing")).unwrap();
}

/// `share_with` that fails has recorded nothing: the block is as if it had never been shared.
#[test]
fn a_failed_share_records_nothing() {
    let sim = late();
    let gpu = on(&sim, tight());
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let old = gpu.alloc(64 * MIB, &a).unwrap();
    write(&sim, &old, &a);
    drop(old);
    let x = gpu.alloc(64 * MIB, &a).unwrap();
    sim.fail(Call::StreamWaitEvent, 1, Kind::InvalidValue);
    assert!(x.share_with(&b).is_err());
    drop(x);
    assert_eq!(gpu.report().total.in_flight, 0);
    drop((a, b));
    all_clean(&sim, gpu);
}

/// A trim whose second free fails gives the first back, keeps the second whole and usable, and can be called again.
#[test]
fn a_free_that_fails_in_a_trim_keeps_the_segment() {
    let sim = late();
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let s = gpu.stream().unwrap();
    let blocks: Vec<_> = (0..3).map(|_| gpu.alloc(8 * MIB, &s).unwrap()).collect();
    drop(blocks);
    gpu.synchronize().unwrap();
    sim.fail(Call::MemFree, 2, Kind::Other);
    assert!(matches!(gpu.trim(Trim::All), Err(Error::Driver(d)) if d.call == "cuMemFree"));
    gpu.check();
    assert_eq!((gpu.report().reserved, sim.ledger().bytes_reserved), (16 * MIB, 16 * MIB));
    let x = gpu.alloc(8 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    assert_eq!(gpu.report().total.counters.misses, 3, "a hit");
    drop(x);
    gpu.synchronize().unwrap();
    assert_eq!(gpu.trim(Trim::All).unwrap().segments, 2);
    drop(s);
    all_clean(&sim, gpu);
}

/// A free that fails for good at the end leaves its own range and no other, and is on record.
#[test]
fn a_free_that_fails_for_good_leaves_only_its_range() {
    for (call, pinned) in [(Call::MemFree, false), (Call::MemFreeHost, true)] {
        let sim = late();
        let gpu = on(&sim, Config::default().growth(Growth::Exact));
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(8 * MIB, &s).unwrap();
        let p = gpu.alloc_pinned(4096).unwrap();
        let y = gpu.alloc(8 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        drop((x, y, p, s));
        sim.fail(call, 1, Kind::Other);
        sim.fail(call, 2, Kind::Other);
        drop(gpu);
        sim.verdict().unwrap();
        let leaks = sim.leaks();
        assert!(
            matches!(
                (&leaks[..], pinned),
                ([Leak::Plain { bytes: 8_388_608, .. }], false) | ([Leak::Pinned { .. }], true)
            ),
            "{leaks:?}"
        );
        let errors = sim.drop_errors();
        assert!(errors.len() == 2 && errors.iter().all(|e| e.call == call.name()), "{errors:?}");
    }
}

/// Hits go on when the context is lost, for they make no driver call; drops are silent; a new allocator is refused.
#[test]
fn a_lost_context_fails_fast_and_for_good() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    sim.lose_context();
    let hit = gpu.alloc(MIB, &s).unwrap();
    let lost = |e: Error| matches!(e, Error::Driver(d) if d.is_context_lost());
    assert!(lost(gpu.alloc(100 * MIB, &s).unwrap_err()));
    let calls = sim.call_count();
    for _ in 0..10 {
        assert!(lost(gpu.alloc(100 * MIB, &s).unwrap_err()));
        assert!(lost(gpu.alloc_pinned(MIB).unwrap_err()));
    }
    assert_eq!(sim.call_count(), calls, "the driver is not queried again");
    assert!(lost(gpu.stream().unwrap_err()));
    assert!(lost(gpu.adopt(s.native().clone()).unwrap_err()));
    assert!(lost(s.record().unwrap_err()));
    assert!(lost(s.synchronize().unwrap_err()));
    assert!(lost(gpu.synchronize().unwrap_err()));
    assert!(lost(gpu.trim(Trim::All).unwrap_err()));
    sim.clear_faults();
    assert!(lost(gpu.alloc(100 * MIB, &s).unwrap_err()), "lost stays lost");
    gpu.check();
    drop((x, hit, s, gpu));
    assert!(!sim.drop_errors().is_empty());
}

/// An allocator's end waits for what its streams hold. Where that fails it waits for all by unpinning a page, where there is none by the device's own wait,
/// and where that fails too it says so; the frees wait by themselves.
#[test]
fn a_failed_wait_at_the_end_is_made_up_for_by_the_device_or_reported() {
    for failed in 0..3 {
        let sim = late();
        let gpu = on(&sim, tight());
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(MIB, &a).unwrap();
        write(&sim, &x, &a);
        b.wait_stream(&a).unwrap();
        x.record_use(&b).unwrap();
        check(&sim, &x, &b);
        sim.fail(Call::EventSynchronize, 1, Kind::Other);
        for call in &[Call::MemHostAlloc, Call::CtxSynchronize][..failed] {
            sim.fail(*call, 1, Kind::Other);
        }
        drop((x, a, b, gpu));
        let waits = [Call::MemFreeHost, Call::CtxSynchronize].map(|call| sim.ledger().calls_of(call));
        assert_eq!(waits, if failed == 0 { [1, 0] } else { [0, 1] }, "how all was waited for");
        let errors: Vec<_> = sim.drop_errors().iter().map(|e| e.call).collect();
        assert_eq!(errors, if failed == 2 { vec!["cuCtxSynchronize"] } else { vec![] });
        sim.run_until_idle();
        assert!(sim.verdict().is_ok() && sim.leaks().is_empty());
    }
}
