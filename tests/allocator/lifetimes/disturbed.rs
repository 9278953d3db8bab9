//! One thing goes wrong, or takes for ever, and everything else goes on: a query that always fails, streams that stay behind
//! while others come and go, a driver call that panics, another stream's capture, another allocator of other habits. What
//! is kept stays bounded, no memory is lost, and no request is refused for another's trouble.

use crate::rig::{late, on};
use millpond::driver::{Fences, StreamOptions};
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DriverErrorKind, Growth, Limit, Reuse, Trim};
use millpond_sim::{Call, Gate, Launch, Schedule, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// What the bounds of docs/kept.md, come to where a few dozen things are pending.
const BOUND: usize = 700;

/// A device that is not judged: these loops are long.
fn quick(capacity: u64) -> Sim {
    Sim::new(capacity).oracle(false).contents(false)
}

/// Streams that were dropped with endless work on them.
fn behind(sim: &Sim, gpu: &Allocator<Sim>, count: usize, bytes: u64) -> Vec<Gate> {
    let one = |_| {
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(bytes, &s).unwrap();
        let gate = sim.gate(s.native()).unwrap();
        drop((x, s));
        gate
    };
    (0..count).map(one).collect()
}

/// So many streams come, do some work and go. What is kept of them is bounded all the time.
fn come_and_go(sim: &Sim, gpu: &Allocator<Sim>, streams: usize, bytes: u64) {
    for i in 0..streams {
        let s = gpu.stream().unwrap();
        let x = (i % 2 == 0).then(|| gpu.alloc(bytes, &s).expect("nothing is live"));
        sim.launch(s.native(), Launch::new("work")).unwrap();
        drop((x, s));
        let now = gpu.bookkeeping();
        let most = now.timelines.max(now.markers).max(now.pools).max(now.events_pooled);
        assert!(most < BOUND, "after {i} streams: {now:?}");
        assert!(
            sim.ledger().events < BOUND as u64,
            "after {i} streams: {} driver events",
            sim.ledger().events
        );
    }
}

#[test]
fn streams_that_stay_behind_hide_no_others() {
    for bytes in [0, 4096] {
        let sim = quick(GIB);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let gates = behind(&sim, &gpu, 8, bytes);
        come_and_go(&sim, &gpu, 3000, bytes);
        assert!(gpu.report().reserved <= 64 * MIB, "{} taken", gpu.report().reserved);
        gates.into_iter().for_each(Gate::open);
    }
}

/// A deterministic allocator asks nothing; an allocator beside it that asks, or did once, changes no bound.
#[test]
fn a_deterministic_allocator_beside_one_that_queries() {
    for stays in [true, false] {
        let sim = quick(GIB);
        let other = Allocator::new(sim.clone(), Config::default()).unwrap();
        let other = stays.then_some(other);
        let gpu = Allocator::new(sim.clone(), Config::default().deterministic(true)).unwrap();
        come_and_go(&sim, &gpu, 3000, 4096);
        assert!(gpu.report().reserved <= 512 * MIB, "{} taken, {stays}", gpu.report().reserved);
        drop(other);
    }
}

/// Independent streams are never waited for by the host, also where closed streams are, because no queries are made.
#[test]
fn the_end_of_an_independent_stream_is_not_waited_for() {
    let sim = quick(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default().deterministic(true)).unwrap();
    let s = gpu.stream().unwrap().independent();
    let gate = sim.gate(s.native()).unwrap();
    drop(s);
    come_and_go(&sim, &gpu, 300, 4096);
    assert_eq!(sim.ledger().endless_waits, 0);
    gate.open();
}

/// An event that a capture took fails each query, while the stream goes on behind it.
#[test]
fn an_event_that_cannot_be_queried_stops_nothing() {
    for lags in [true, false] {
        let sim = quick(GIB);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        if lags {
            sim.not_ready(10_000);
        }
        for _ in 0..600 {
            s.record().unwrap();
        }
        sim.clear_faults();
        s.synchronize().unwrap();
        // A capture by other code takes the event.
        sim.capture_around(Call::EventRecord, 1, s.native()).unwrap();
        s.record().unwrap();
        for i in 0..3000 {
            t.wait_stream(&s).unwrap();
            assert!(gpu.bookkeeping().markers < BOUND, "after {i} waits: {:?}", gpu.bookkeeping());
        }
        assert!(sim.ledger().events < BOUND as u64);
        let mut x = gpu.zeros::<u8>(512, &s).unwrap();
        drop(x.copy_from(gpu.pinned_from_fn(512, |i| i as u8).unwrap(), &s).unwrap());
        gpu.alloc_pinned(80 * MIB).unwrap();
        gpu.trim(Trim::All).unwrap();
    }
}

/// Runs what panics in the driver.
pub(super) fn panics(body: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(body)).is_err(), "the driver call panics");
}

/// A panic while one stream closes: the others close, and so does that one.
#[test]
fn a_panic_while_streams_close_leaves_none_open() {
    for nth in 1..=3 {
        let sim = Sim::new(GIB);
        let gpu = on(&sim, Config::default());
        let stays = gpu.stream().unwrap();
        // The last of each stream is an allocation, whose drop makes no driver call: a later call closes them.
        let (streams, blocks): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                let s = gpu.stream().unwrap();
                let x = gpu.alloc(4096, &s).unwrap();
                (s, x)
            })
            .unzip();
        drop(streams);
        drop(blocks);
        sim.panic_behind(Call::EventRecord, nth);
        panics(|| drop(gpu.trim(Trim::All)));
        drop(stays.record().unwrap());
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        assert_eq!(sim.ledger().streams, 1, "after a panic in record {nth}");
        assert_eq!(gpu.bookkeeping().timelines, 2, "the context's and one stream's");
    }
}

/// A request that needs what a stream holds whose close panicked does not hang.
#[test]
fn a_request_behind_a_close_that_panicked_is_served() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(2 * MIB)));
    let (stays, s) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(2 * MIB, &s).unwrap();
    drop(s);
    drop(x);
    sim.panic_behind(Call::EventRecord, 1);
    panics(|| drop(gpu.trim(Trim::All)));
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(gpu.alloc(2 * MIB, &stays).map(|x| x.len())));
    assert_eq!(receiver.recv_timeout(Duration::from_mins(1)).expect("it returns").unwrap(), 2 * MIB);
}

/// Memory that a request had in transit when the driver panicked is there for the next one.
#[test]
fn a_panic_loses_no_memory() {
    type Disturb = fn(&Sim, &Allocator<Sim>);
    let disturb: [(&str, Disturb); 5] = [
        ("growth", |sim, gpu| {
            let s = gpu.stream().unwrap();
            sim.panic_behind(Call::MemAlloc, 1);
            panics(|| drop(gpu.alloc(20 * MIB, &s)));
        }),
        ("a trim", |sim, gpu| {
            let s = gpu.stream().unwrap();
            drop(gpu.alloc(20 * MIB, &s).unwrap());
            gpu.synchronize().unwrap();
            sim.panic_behind(Call::MemFree, 1);
            panics(|| drop(gpu.trim(Trim::All)));
        }),
        ("a migration", |sim, gpu| {
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let x = gpu.alloc(20 * MIB, &s).unwrap();
            sim.launch(s.native(), Launch::new("w").writes(x.address(), 512)).unwrap();
            drop(x);
            sim.panic_behind(Call::StreamWaitEvent, 1);
            panics(|| drop(gpu.alloc(20 * MIB, &t)));
        }),
        ("a range in flight, at home", |sim, gpu| {
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let x = gpu.alloc(20 * MIB, &s).unwrap();
            t.wait_stream(&s).unwrap();
            sim.launch(t.native(), Launch::new("r").reads(x.address(), 512)).unwrap();
            x.record_use(&t).unwrap();
            drop(x);
            sim.panic_behind(Call::StreamWaitEvent, 1);
            panics(|| drop(gpu.alloc(20 * MIB, &s)));
        }),
        ("a range in flight, elsewhere", |sim, gpu| {
            let (s, t, u) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
            let x = gpu.alloc(20 * MIB, &s).unwrap();
            t.wait_stream(&s).unwrap();
            sim.launch(t.native(), Launch::new("r").reads(x.address(), 512)).unwrap();
            x.record_use(&t).unwrap();
            drop(x);
            sim.panic_behind(Call::StreamWaitEvent, 1);
            panics(|| drop(gpu.alloc(20 * MIB, &u)));
        }),
    ];
    for (what, disturb) in disturb {
        let sim = late();
        let gpu = on(&sim, Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(20 * MIB)));
        disturb(&sim, &gpu);
        gpu.synchronize().unwrap();
        gpu.check();
        let s = gpu.stream().unwrap();
        gpu.alloc(20 * MIB, &s).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default().pinned_limit(64 * MIB));
    sim.panic_behind(Call::MemHostAlloc, 1);
    panics(|| drop(gpu.alloc_pinned(MIB)));
    gpu.alloc_pinned(64 * MIB).unwrap();
    // A trim of two segments: the first is unpinned by the call, the second by its end.
    let gpu = on(&sim, Config::default().pinned_limit(128 * MIB));
    drop([(); 2].map(|()| gpu.alloc_pinned(64 * MIB).unwrap()));
    for nth in [1, 2] {
        sim.panic_behind(Call::MemFreeHost, nth);
        panics(|| drop(gpu.trim(Trim::All)));
        gpu.check();
        drop(gpu.alloc_pinned(128 * MIB).unwrap_or_else(|e| panic!("call {nth} panicked: {e}")));
        gpu.trim(Trim::All).unwrap();
        drop([(); 2].map(|()| gpu.alloc_pinned(64 * MIB).unwrap()));
    }
}

/// While another stream captures, a request is served by what it would wait for otherwise.
#[test]
fn a_capture_elsewhere_refuses_no_request() {
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(22 * MIB)));
    let theirs = sim.create_stream(StreamOptions::default()).unwrap();
    let adopted = gpu.adopt(theirs.clone()).unwrap();
    drop(gpu.alloc(4096, &adopted).unwrap());
    let (s, t, alone) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap().independent());
    let x = gpu.alloc(20 * MIB, &s).unwrap();
    t.wait_stream(&s).unwrap();
    sim.launch(t.native(), Launch::new("r").reads(x.address(), 512)).unwrap();
    x.record_use(&t).unwrap();
    drop(x);
    sim.begin_capture(&theirs).unwrap();
    // The host waits for t, which no device-side wait may do for it.
    drop(gpu.alloc(20 * MIB, &alone).unwrap());
    drop(gpu.alloc_pinned(4096).unwrap());
    sim.end_capture(&theirs).unwrap();
}

/// The same where the capturing stream's memory is the first that a request comes to: another one's serves, behind a wait.
#[test]
fn memory_of_a_capturing_stream_hides_no_other() {
    let sim = late();
    let gpu = on(
        &sim,
        Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(40 * MIB)),
    );
    let theirs = sim.create_stream(StreamOptions::default()).unwrap();
    let adopted = gpu.adopt(theirs.clone()).unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (x, y) = (gpu.alloc(20 * MIB, &adopted).unwrap(), gpu.alloc(20 * MIB, &s).unwrap());
    sim.launch(adopted.native(), Launch::new("w").writes(x.address(), 512)).unwrap();
    sim.launch(s.native(), Launch::new("w").writes(y.address(), 512)).unwrap();
    drop((x, y));
    sim.begin_capture(&theirs).unwrap();
    let z = gpu.alloc(20 * MIB, &t).unwrap();
    let counters = gpu.report().total.counters;
    assert_eq!((counters.waits_inserted, counters.host_waits), (1, 0));
    drop(z);
    sim.end_capture(&theirs).unwrap();
}

/// Whatever fails in a copy between two devices, its target is not reused under it.
#[test]
fn a_copy_from_a_peer_that_fails_is_over() {
    for call in [Call::StreamIsCapturing, Call::StreamWaitEvent, Call::EventRecord, Call::EventCreate] {
        for nth in 1..10 {
            let sims = Sim::devices(2, GIB);
            for sim in &sims {
                sim.set_schedule(Schedule::Latest);
            }
            let [source, target] = [&sims[0], &sims[1]].map(|sim| on(sim, Config::default()));
            let (from, home) = (source.stream().unwrap(), target.stream().unwrap());
            let to = target.adopt(sims[1].create_stream(StreamOptions::default()).unwrap()).unwrap();
            let y = source.zeros::<u8>(1 << 20, &from).unwrap();
            let mut x = target.zeros::<u8>(1 << 20, &home).unwrap();
            sims[1].fail(call, nth, DriverErrorKind::Other);
            let copied = x.copy_from_peer(&y, &from, &to);
            sims[1].clear_faults();
            drop(x);
            let mut next = target.uninit::<u8>(1 << 20, &home).unwrap();
            next.fill_bytes(1, &home).unwrap();
            for sim in &sims {
                sim.verdict().unwrap_or_else(|e| panic!("{call:?} {nth}, {copied:?}: {e}"));
            }
        }
    }
}

/// Tokens may be dropped anywhere: no driver call is made there. What a burst left goes back by the calls that follow.
#[test]
fn dropping_tokens_makes_no_driver_call() {
    let sim = quick(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let s = gpu.stream().unwrap();
    let mut x = gpu.zeros::<u8>(512, &s).unwrap();
    let source = Arc::new(gpu.pinned_from_fn(512, |i| i as u8).unwrap());
    let tokens: Vec<_> = (0..2000).map(|_| x.copy_from(Arc::clone(&source), &s).unwrap()).collect();
    gpu.synchronize().unwrap();
    let before = sim.ledger();
    drop(tokens);
    assert_eq!(sim.ledger().calls_of(Call::EventDestroy), before.calls_of(Call::EventDestroy));
    for _ in 0..3000 {
        drop(s.record().unwrap());
        gpu.synchronize().unwrap();
    }
    assert!(sim.ledger().events < BOUND as u64, "{} driver events", sim.ledger().events);
}

/// A forgotten token keeps its memory and its own event, not those that others left in the pool.
#[test]
fn a_forgotten_token_keeps_no_pooled_events() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let mut x = gpu.zeros::<u8>(512, &s).unwrap();
    for _ in 0..2000 {
        s.record().unwrap();
    }
    std::mem::forget(x.copy_from(gpu.pinned_from_fn(512, |i| i as u8).unwrap(), &s).unwrap());
    gpu.synchronize().unwrap();
    drop((x, s, gpu));
    assert!(sim.ledger().events <= 4, "{} driver events", sim.ledger().events);
}
