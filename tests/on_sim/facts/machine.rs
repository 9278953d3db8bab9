//! The machinery: schedules, run-ahead, faults, the ledger, virtual time.

use super::*;
use millpond::driver::{Driver, HostKind};
use millpond::error::DriverErrorKind;
use millpond_sim::{Call, Leak, Schedule};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn late_is_really_late_and_a_query_makes_nothing_run() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    let event = mark(&sim, &s);
    for _ in 0..10 {
        assert!(!sim.query(&event).expect("a query"));
    }
    assert!(!sim.idle());
    assert!(sim.advance(&s).expect("alive"), "by hand: the record");
    assert!(sim.query(&event).expect("a query"));
    assert!(!sim.advance(&s).expect("alive"), "nothing left");
}

#[test]
fn early_leaves_nothing_behind() {
    let sim = sim();
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    for _ in 0..10 {
        sim.wait(&t, &mark(&sim, &s)).expect("a wait");
        sim.launch(&t, touch_nothing()).expect("a launch");
        assert!(sim.idle());
    }
}

/// The order in which host functions of four streams run, and how often a query said no.
fn random_run(seed: u64) -> (Vec<u32>, u32) {
    let sim = sim().schedule(Schedule::Random(seed));
    let ran = Arc::new(Mutex::new(Vec::new()));
    let streams: Vec<_> = (0..4).map(|_| sim.stream().expect("a stream")).collect();
    let mut pending = 0;
    for i in 0..100u32 {
        let (s, ran) = (&streams[i as usize % 4], ran.clone());
        sim.host_function(s, move || ran.lock().expect("ran").push(i)).expect("queued");
        pending += u32::from(!sim.query(&mark(&sim, s)).expect("a query"));
    }
    assert!(sim.run_until_idle());
    let order = ran.lock().expect("ran").clone();
    (order, pending)
}

#[test]
fn random_depends_on_the_seed_alone_and_keeps_each_streams_order() {
    let (first, pending) = random_run(7);
    assert_eq!((first.clone(), pending), random_run(7));
    assert_ne!(first, random_run(8).0);
    assert!(pending > 0 && pending < 100, "some answers of each kind: {pending} of 100 pending");
    for stream in 0..4 {
        let of_stream: Vec<_> = first.iter().filter(|i| *i % 4 == stream).collect();
        assert_eq!(of_stream.len(), 25);
        assert!(of_stream.is_sorted());
    }
}

#[test]
fn a_long_chain_of_waits_needs_no_deep_stack() {
    let sim = sim().schedule(Schedule::Latest).oracle(false);
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    for _ in 0..100_000 {
        sim.wait(&t, &mark(&sim, &s)).expect("t after s");
        sim.wait(&s, &mark(&sim, &t)).expect("s after t");
    }
    sim.synchronize_stream(&s).expect("run");
    assert!(sim.idle());
}

#[test]
fn with_a_hold_the_device_is_some_ticks_behind_the_host() {
    let sim = sim().hold(2);
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let first = mark(&sim, &s);
    sim.tick();
    sim.wait(&t, &first).expect("a wait");
    let second = mark(&sim, &t);
    assert!(!sim.query(&first).expect("a query"), "one tick");
    sim.tick();
    assert!(sim.query(&first).expect("a query"), "two ticks");
    assert!(!sim.query(&second).expect("a query"));
    assert!(
        sim.wait_event(&second, Duration::MAX).expect("a host wait"),
        "the host need not tick while it waits"
    );
    let third = mark(&sim, &s);
    sim.tick();
    sim.tick();
    assert!(sim.query(&third).expect("a query"));
}

#[test]
fn call_number_k_fails_once_and_does_nothing() {
    let sim = sim();
    let s = sim.stream().expect("s");
    let k = sim.call_count() + 2;
    sim.fail_call(k, DriverErrorKind::OutOfMemory);
    let range = sim.allocate(512).expect("call k - 1");
    let error = sim.allocate(512).expect_err("call k");
    assert_eq!((error.call, error.code), ("cuMemAlloc", 2));
    assert_eq!((sim.ledger().bytes_reserved, sim.call_count()), (512, k), "counted, and nothing taken");
    drop(sim.allocate(512).expect("call k + 1"));
    assert!(sim.launch(&s, touch_nothing()).is_ok());
    drop(range);
}

#[test]
fn every_kind_of_call_can_be_made_to_fail() {
    let fails = |call: Call, deed: &dyn Fn(&Sim) -> bool| {
        let sim = sim();
        sim.fail(call, 1, DriverErrorKind::NotSupported);
        assert!(deed(&sim), "{call:?} went through");
    };
    let s = |sim: &Sim| sim.stream().expect("a stream");
    let e = |sim: &Sim| sim.event().expect("an event");
    fails(Call::StreamCreate, &|sim| sim.stream().is_err());
    fails(Call::EventCreate, &|sim| sim.event().is_err());
    fails(Call::EventRecord, &|sim| sim.record(&e(sim), &s(sim)).is_err());
    fails(Call::CtxRecordEvent, &|sim| sim.record_context(&e(sim)).is_err());
    fails(Call::EventQuery, &|sim| sim.query(&e(sim)).is_err());
    fails(Call::EventSynchronize, &|sim| sim.wait_event(&e(sim), Duration::MAX).is_err());
    fails(Call::StreamWaitEvent, &|sim| sim.wait(&s(sim), &e(sim)).is_err());
    fails(Call::StreamSynchronize, &|sim| sim.synchronize_stream(&s(sim)).is_err());
    fails(Call::CtxSynchronize, &|sim| sim.synchronize_device().is_err());
    fails(Call::StreamGetId, &|sim| sim.stream_info(&s(sim)).is_err());
    fails(Call::StreamIsCapturing, &|sim| sim.is_capturing(&s(sim)).is_err());
    fails(Call::LaunchKernel, &|sim| sim.launch(&s(sim), touch_nothing()).is_err());
    fails(Call::LaunchHostFunc, &|sim| sim.host_function(&s(sim), || ()).is_err());
    fails(Call::MemGetInfo, &|sim| sim.memory_info().is_err());
    fails(Call::MemHostAlloc, &|sim| sim.pin(512, HostKind::default()).is_err());
    fails(Call::MemsetD8, &|sim| {
        fill(sim, sim.allocate(512).expect("memory").addr(), 0, 512, &s(sim)).is_err()
    });
    fails(Call::Create, &|sim| sim.create(2 * MIB).is_err());
    fails(Call::AddressReserve, &|sim| sim.reserve(2 * MIB, None).is_err());
}

#[test]
fn a_failed_record_leaves_what_the_event_captured_before() {
    let sim = sim();
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let gate = sim.gate(&s).expect("an endless kernel");
    let event = mark(&sim, &s);
    sim.fail(Call::EventRecord, 1, DriverErrorKind::Other);
    assert!(sim.record(&event, &t).is_err());
    assert!(!sim.query(&event).expect("a query"), "still s");
    gate.open();
}

#[test]
fn a_failed_free_keeps_the_range_and_a_destructors_error_is_kept() {
    let sim = sim();
    let range = sim.allocate(512).expect("memory");
    sim.fail(Call::MemFree, 1, DriverErrorKind::Other);
    drop(range);
    let errors = sim.drop_errors();
    assert_eq!((errors.len(), errors[0].call), (1, "cuMemFree"));
    assert!(matches!(sim.leaks()[..], [Leak::Plain { bytes: 512, .. }]));
}

#[test]
fn planted_answers_not_ready() {
    let sim = sim();
    let s = sim.stream().expect("s");
    let (a, b) = (mark(&sim, &s), mark(&sim, &s));
    sim.not_ready_event(&a, 2).expect("ours");
    assert!(sim.query(&b).expect("a query"));
    assert!(!sim.query(&a).expect("a query"));
    assert!(!sim.wait_event(&a, Duration::MAX).expect("a host wait"));
    assert!(sim.query(&a).expect("a query"));
    sim.not_ready(1);
    assert!(!sim.query(&b).expect("a query"));
    assert!(sim.query(&b).expect("a query"));
}

#[test]
fn a_lost_context_fails_everything_from_then_on() {
    let sim = sim();
    let s = sim.stream().expect("s");
    sim.fail(Call::LaunchKernel, 1, DriverErrorKind::ContextLost);
    assert!(sim.launch(&s, touch_nothing()).expect_err("lost").is_context_lost());
    assert!(sim.event().expect_err("lost").is_context_lost());
    sim.clear_faults();
    assert!(sim.memory_info().expect_err("still lost").is_context_lost());
}

#[test]
fn the_ledger_counts_calls_and_finds_leaks() {
    let sim = sim();
    assert!(sim.ledger().is_empty());
    let (range, s) = (sim.allocate(1024).expect("memory"), sim.stream().expect("s"));
    let event = mark(&sim, &s);
    let pinned = sim.pin(512, HostKind::default()).expect("pinned");
    let (at, handle) = (sim.reserve(2 * MIB, None).expect("addresses"), sim.create(2 * MIB).expect("memory"));
    map(&sim, at, &handle).expect("mapped");
    let ledger = sim.ledger();
    assert_eq!((ledger.plain_ranges, ledger.pinned_ranges, ledger.handles, ledger.mappings), (1, 1, 1, 1));
    assert_eq!((ledger.reservations, ledger.streams, ledger.events), (1, 1, 1));
    assert_eq!((ledger.bytes_reserved, ledger.bytes_pinned), (1024 + 2 * MIB, 512));
    assert_eq!(ledger.calls_of(Call::EventRecord), 1);
    assert_eq!(ledger.calls_total(), 8);
    assert_eq!(sim.calls(), ledger.calls);
    let leaks = sim.leaks();
    assert_eq!(leaks.len(), 7);
    assert!(leaks.contains(&Leak::Plain { addr: range.addr(), bytes: 1024 }), "{leaks:?}");
    assert!(leaks.iter().any(|l| l.to_string().contains("1024 bytes of plain device memory at 0x")));
    unmap(&sim, at, 2 * MIB).expect("unmapped");
    release(&sim, &handle).expect("released");
    unreserve(&sim, at, 2 * MIB).expect("given back");
    drop((range, s, event, pinned));
    assert!(sim.ledger().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn work_on_two_streams_overlaps_if_its_engines_differ() {
    let span = |two_streams: bool, schedule| {
        let sim = sim().schedule(schedule);
        let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
        let pinned = sim.pin(64 * MIB, HostKind::default()).expect("pinned");
        let range = sim.allocate(64 * MIB).expect("memory");
        let before = sim.host_time();
        h2d(&sim, range.addr(), pinned.ptr().as_ptr(), 64 * MIB, &s).expect("queued");
        let on = if two_streams { &t } else { &s };
        sim.launch(on, touch_nothing().takes(1_000_000)).expect("queued");
        sim.synchronize_device().expect("run");
        sim.makespan().saturating_sub(before)
    };
    let copy = Duration::from_nanos((64 * MIB * 1000).div_ceil(55_500));
    let (one, two) = (span(false, Schedule::Earliest), span(true, Schedule::Earliest));
    assert!(one >= copy + Duration::from_millis(1), "{one:?}");
    assert!(two >= copy && two < one && two < copy + Duration::from_millis(1), "{two:?} against {one:?}");
    assert_eq!(two, span(true, Schedule::Latest), "whatever the schedule");
    assert_eq!(one, span(false, Schedule::Random(3)), "whatever the schedule");
}

#[test]
fn two_kernels_share_one_engine_and_a_wait_delays() {
    let sim = sim();
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    sim.launch(&s, touch_nothing().takes(1_000_000)).expect("queued");
    sim.launch(&t, touch_nothing().takes(1_000_000)).expect("queued");
    assert!(sim.makespan() >= Duration::from_millis(2));
    assert!(sim.host_time() < Duration::from_micros(100), "the host has not waited");
    let copied = {
        let pinned = sim.pin(512, HostKind::default()).expect("pinned");
        let range = sim.allocate(512).expect("memory");
        let u = sim.stream().expect("u");
        sim.wait(&u, &mark(&sim, &t)).expect("u after t");
        h2d(&sim, range.addr(), pinned.ptr().as_ptr(), 512, &u).expect("queued");
        sim.synchronize_stream(&u).expect("run");
        sim.host_time()
    };
    assert!(copied >= Duration::from_millis(2), "a host wait moves the host's clock: {copied:?}");
}

#[test]
fn the_legacy_stream_orders_virtual_time_too() {
    let sim = sim();
    let (s, t, legacy) =
        (sim.blocking_stream().expect("s"), sim.blocking_stream().expect("t"), sim.legacy_stream());
    sim.launch(&s, touch_nothing().takes(1_000_000)).expect("queued");
    drop(s);
    sim.launch(&legacy, touch_nothing().takes(0)).expect("after s, which is gone");
    let before = sim.device_time();
    assert!(before >= Duration::from_millis(1));
    let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
    let range = sim.allocate(512).expect("memory");
    sim.launch(&legacy, touch_nothing().takes(1_000_000)).expect("queued");
    h2d(&sim, range.addr(), pinned.ptr().as_ptr(), 512, &t).expect("another engine, after the legacy stream");
    let spent = sim.device_time().saturating_sub(before);
    assert!(spent > Duration::from_millis(1), "the copy ends after the kernel: {spent:?}");
    sim.synchronize_stream(&t).expect("run");
    assert_eq!(sim.host_time(), sim.device_time());
}

#[test]
fn kernels_take_their_bytes_over_the_bandwidth() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(200_000 * 512).expect("memory"));
    let before = sim.host_time();
    fill(&sim, range.addr(), 0, 200_000 * 512, &s).expect("queued");
    let spent = sim.makespan().saturating_sub(before).as_nanos();
    assert_eq!(spent, 51_200 + 2_500, "102.4 MB at 2 TB/s, and the call");
}

#[test]
fn threads_may_share_a_device() {
    let sim = sim().schedule(Schedule::Random(5)).strict();
    let ran = Arc::new(AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (sim, ran) = (&sim, ran.clone());
            scope.spawn(move || {
                let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
                for i in 0..100 {
                    sim.launch(&s, Launch::write_pattern(range.addr(), 512, i)).expect("queued");
                    sim.launch(&s, Launch::check_pattern(range.addr(), 512, i)).expect("queued");
                    let ran = ran.clone();
                    sim.host_function(&s, move || {
                        ran.fetch_add(1, Ordering::Relaxed);
                    })
                    .expect("queued");
                }
                range.release().expect("freed, after a wait");
            });
        }
    });
    assert!(sim.run_until_idle());
    assert_eq!(ran.load(Ordering::Relaxed), 400);
    assert_eq!(sim.mismatches().1, 0);
    assert!(sim.ledger().is_empty());
}

/// What another thread does while this one is on its way into the driver.
#[test]
fn others_go_on_right_before_a_call() {
    let sim = sim();
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let event = mark(&sim, &s);
    let seen = Arc::new(Mutex::new(Vec::new()));
    for (nth, call) in [(2, Call::EventQuery), (1, Call::StreamWaitEvent)] {
        let (inner, seen) = (sim.clone(), Arc::clone(&seen));
        sim.meanwhile(call, nth, move || {
            let calls = std::thread::spawn(move || {
                drop(inner.stream().expect("another thread's call"));
                (inner.ledger().calls_of(call), inner.ledger().calls_of(Call::StreamCreate))
            });
            seen.lock().expect("seen").push(calls.join().expect("no panic"));
        });
    }
    for _ in 0..3 {
        assert!(sim.query(&event).expect("a query"));
    }
    sim.wait(&t, &event).expect("a wait");
    assert_eq!(*seen.lock().expect("seen"), [(1, 3), (0, 4)], "calls made before, and the thread's own");
    // One that may still run and holds the device is taken back.
    let inner = sim.clone();
    sim.meanwhile(Call::EventQuery, 1, move || drop(inner.stream()));
    sim.clear_faults();
    assert!(sim.query(&event).expect("a query"));
    assert_eq!(sim.ledger().calls_of(Call::StreamCreate), 4);
}

/// A gate that opens lets run what stood behind it, as far as it is due, and nothing else.
#[test]
fn an_opened_gate_runs_nothing_before_its_tick() {
    let sim = sim().hold(2);
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let gate = sim.gate(&s).expect("queued");
    let behind = mark(&sim, &s);
    sim.tick();
    sim.tick();
    let unrelated = mark(&sim, &t);
    gate.open();
    assert!(sim.query(&behind).expect("a query"), "it was due, and stood behind the gate");
    assert!(!sim.query(&unrelated).expect("a query"), "held back");
    sim.tick();
    assert!(!sim.query(&unrelated).expect("a query"));
    sim.tick();
    assert!(sim.query(&unrelated).expect("a query") && sim.idle());
}

/// A wait that cannot end is a wait too, whichever verb it is and whichever device's stream is stuck.
#[test]
fn endless_waits_are_among_the_waits_of_the_device_that_waits() {
    let [here, there] = &Sim::devices(2, GIB)[..] else { panic!("two devices") };
    let (s, t) = (there.stream().expect("s"), here.stream().expect("t"));
    let gate = there.gate(&s).expect("queued");
    let stuck = mark(there, &s);
    here.wait(&t, &stuck).expect("a wait");
    let waits = |sim: &Sim| (sim.ledger().host_waits, sim.ledger().endless_waits);
    here.synchronize_stream(&t).unwrap_err();
    here.synchronize_device().unwrap_err();
    assert!(!here.wait_event(&stuck, Duration::MAX).expect("a wait"));
    assert_eq!((waits(here), waits(there)), ((3, 3), (0, 0)));
    gate.open();
    here.synchronize_stream(&t).expect("over");
    assert_eq!((waits(here), waits(there)), ((4, 3), (0, 0)));
}
