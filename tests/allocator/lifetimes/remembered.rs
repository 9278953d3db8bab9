//! What is remembered has a name and a number, and goes when nothing needs it any more: by frees alone where no request misses, while
//! a panic unwinds, and without a wait where none is allowed.

use crate::rig::{all_clean, on};
use millpond::units::{GIB, MIB};
use millpond::{Config, DriverErrorKind, Growth, Trim};
use millpond_sim::{Call, Launch, Schedule, Sim};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

#[test]
fn every_count_has_a_name_of_its_own() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc_named(512, "weights", &s).unwrap();
    x.share_with(&t).unwrap();
    let counts = gpu.bookkeeping().counts();
    let names: HashSet<&str> = counts.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), counts.len(), "{counts:?}");
    let of = |name| counts.iter().find(|c| c.0 == name).map(|c| c.1);
    let known =
        ["timelines", "pools", "uses", "names", "segments", "ranges in flight", "kept values"].map(of);
    assert_eq!(known, [3, 2, 1, 1, 1, 0, 0].map(Some), "{counts:?}");
    drop(x);
    drop((s, t));
    all_clean(&sim, gpu);
}

/// A thousand ranges used elsewhere are freed, and nothing misses meanwhile: the frees find out that the older ones are over.
#[test]
fn frees_drain_what_is_over_without_a_miss() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let blocks: Vec<_> = (0..1000).map(|_| gpu.alloc(512, &s).unwrap()).collect();
    let misses = gpu.report().total.counters.misses;
    let mut most = 0;
    for (i, x) in blocks.into_iter().enumerate() {
        x.share_with(&t).unwrap();
        sim.launch(t.native(), Launch::new("use").reads(x.address(), 512)).unwrap();
        drop(x);
        if i % 8 == 7 {
            t.synchronize().unwrap();
        }
        most = most.max(gpu.bookkeeping().in_flight);
    }
    assert!((8..100).contains(&most), "{most} ranges in flight, of which eight are pending");
    assert_eq!(gpu.report().total.counters.misses, misses);
    gpu.check();
    drop((s, t));
    all_clean(&sim, gpu);
}

#[test]
fn default_streams_are_printed_by_name() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default());
    let (d, p) = (gpu.adopt(sim.legacy_stream()).unwrap(), gpu.adopt(sim.per_thread_stream()).unwrap());
    drop((gpu.alloc(512, &d).unwrap(), gpu.alloc(512, &p).unwrap()));
    let names: Vec<_> = gpu.report().pools.into_iter().map(|pool| pool.name).collect();
    assert_eq!(names, [Some("default".to_owned()), Some("per-thread default".to_owned())]);
    drop((d, p));
    all_clean(&sim, gpu);
}

/// One stream has one name everywhere: in reports, errors and their advice, the device, verdicts.
#[test]
fn default_streams_are_called_the_same_everywhere() {
    let sim = Sim::new(64 * MIB);
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let (d, p) = (gpu.adopt(sim.legacy_stream()).unwrap(), gpu.adopt(sim.per_thread_stream()).unwrap());
    let (x, y) = (gpu.alloc(MIB, &d).unwrap(), gpu.alloc(MIB, &p).unwrap());
    let mine = format!("per-thread default stream {}", p.id().0);
    let report = gpu.report().to_string();
    assert!(report.contains("the default stream ") && report.contains(&mine), "{report}");
    let full = gpu.alloc(65 * MIB, &d).unwrap_err().to_string();
    assert!(full.contains("on the default stream of device 0;"), "{full}");
    assert!(full.contains("by stream: the default stream 1.00 MiB") && full.contains(&mine), "{full}");
    let elsewhere = std::thread::scope(|threads| threads.spawn(|| p.record().unwrap_err()).join().unwrap());
    assert!(elsewhere.to_string().contains(&mine), "{elsewhere}");
    let gate = sim.gate(d.native()).unwrap();
    let stuck = d.synchronize().unwrap_err().to_string();
    assert!(stuck.contains("would wait for ever for the default stream: "), "{stuck}");
    gate.open();
    for said in [report, full, stuck] {
        assert!(!said.contains(&format!("{}", d.id())) && !said.contains("default)"), "{said}");
    }
    sim.launch(d.native(), Launch::new("use").writes(y.address(), 512)).unwrap();
    sim.launch(gpu.stream().unwrap().native(), Launch::new("use").writes(y.address(), 512)).unwrap();
    let race = sim.violations().last().unwrap().to_string();
    assert!(race.contains("of the default stream"), "{race}");
    drop((x, y, d, p));
}

/// The last of an allocator is an allocation, and a panic drops it: its memory goes back all the same.
#[test]
fn a_panic_that_drops_the_last_allocation_loses_nothing() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    drop((s, gpu));
    assert_eq!(sim.ledger().calls_of(Call::MemFree), 0, "what is alive keeps its memory");
    let passed = catch_unwind(AssertUnwindSafe(move || {
        let _dropped_on_the_way = x;
        panic!("on purpose");
    }));
    assert!(passed.is_err());
    assert_eq!(sim.ledger().calls_of(Call::MemFree), 1, "the segment went back");
    sim.verdict().unwrap();
}

/// A deterministic allocator waits for older closed streams when a new one is made; not if it may not wait at all.
#[test]
fn a_call_that_must_not_wait_does_not_wait_for_closed_streams() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let config = Config::default().deterministic(true).growth(Growth::Exact);
    for (wait, waits) in [(Duration::ZERO, false), (Duration::from_secs(2), true)] {
        let gpu = on(&sim, config.clone().bounded_wait(wait));
        let before = sim.ledger().calls_of(Call::EventQuery) + sim.ledger().calls_of(Call::EventSynchronize);
        for _ in 0..200 {
            let s = gpu.stream().unwrap();
            sim.launch(s.native(), Launch::new("work")).unwrap();
        }
        let after = sim.ledger().calls_of(Call::EventQuery) + sim.ledger().calls_of(Call::EventSynchronize);
        assert_eq!(after > before, waits, "{} questions and waits", after - before);
        gpu.synchronize().unwrap();
        all_clean(&sim, gpu);
    }
}

/// A stream that may not wait for the older half of what is in flight takes memory instead: an independent one, and one whose wait the
/// driver refuses, which tries again when there is twice as much.
#[test]
fn what_cannot_be_waited_for_is_grown_past() {
    for independent in [false, true] {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let gpu = on(&sim, Config::default().deterministic(true).growth(Growth::Exact));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let s = if independent { s.independent() } else { s };
        let used = || {
            let x = gpu.alloc(MIB, &s).unwrap();
            x.record_use(&t).unwrap();
        };
        (0..2).for_each(|_| used());
        sim.fail(Call::StreamWaitEvent, 1, DriverErrorKind::Other);
        used();
        sim.clear_faults();
        assert_eq!(gpu.report().reserved, 3 * MIB, "independent: {independent}");
        (0..20).for_each(|_| used());
        let most = if independent { 23 * MIB } else { 4 * MIB };
        assert_eq!(gpu.report().reserved, most, "independent: {independent}");
        drop((s, t));
        gpu.synchronize().unwrap();
        all_clean(&sim, gpu);
    }
}

/// A wait for the device that fails proves nothing: what is pending stays so, and the next one brings it back.
#[test]
fn a_synchronise_that_fails_proves_nothing() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(MIB, &s).unwrap();
    x.share_with(&t).unwrap();
    sim.launch(t.native(), Launch::new("use").reads(x.address(), 512)).unwrap();
    drop(x);
    sim.fail(Call::CtxSynchronize, 1, DriverErrorKind::Other);
    assert!(gpu.synchronize().is_err());
    assert_eq!(gpu.bookkeeping().in_flight, 1);
    gpu.synchronize().unwrap();
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, MIB);
    drop((s, t));
    all_clean(&sim, gpu);
}

/// A miss of a pool whose ranges wait for many streams asks about some of them, and the next ones about others.
#[test]
fn a_request_queries_few_of_many_streams() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let s = gpu.stream().unwrap();
    let users: Vec<_> = (0..50).map(|_| gpu.stream().unwrap()).collect();
    for user in &users {
        let x = gpu.alloc(MIB, &s).unwrap();
        x.share_with(user).unwrap();
        sim.launch(user.native(), Launch::new("use").reads(x.address(), 512)).unwrap();
        drop(x);
        // A marker of its own, which can be queried.
        drop(user.record().unwrap());
    }
    let asked = || sim.ledger().calls_of(Call::EventQuery);
    for _ in 0..10 {
        let before = asked();
        core::mem::forget(gpu.alloc(2 * MIB, &s).unwrap());
        assert!((1..=20).contains(&(asked() - before)), "{} questions by one request", asked() - before);
    }
    drop((users, s));
}
