//! Pinned host memory: its limit, its trim, absurd sizes, and one slow stream that keeps back only its own.

use crate::rig::{all_clean, late, on};
use millpond::units::MIB;
use millpond::{Allocator, Config, DriverErrorKind, Error, OutOfMemory, PinnedAllocation, Stream, Trim};
use millpond_sim::{Call, Launch, Sim};
use std::sync::{Arc, Mutex};

/// Work on a stream that reads pinned memory, recorded.
fn read(sim: &Sim, p: &PinnedAllocation<Sim>, s: &Stream<Sim>) {
    p.record_use(s).unwrap();
    sim.launch(s.native(), Launch::new("read pinned").reads(p.address(), p.len())).unwrap();
}

/// The CPU fills it, which it may at any time while it owns it.
fn fill(sim: &Sim, p: &PinnedAllocation<Sim>) {
    sim.host_writes(p.address(), p.len()).unwrap();
}

/// D8 at this level: 200 quick copies of 4 MiB beside one that does not end.
#[test]
fn d08_one_slow_stream_keeps_back_only_its_own() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let (slow, quick) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let stuck = gpu.alloc_pinned(4 * MIB).unwrap();
    fill(&sim, &stuck);
    let gate = sim.gate(slow.native()).unwrap();
    read(&sim, &stuck, &slow);
    let at = stuck.address();
    drop(stuck);
    for _ in 0..200 {
        let p = gpu.alloc_pinned(4 * MIB).unwrap();
        assert_ne!(p.address(), at, "a copy still reads it");
        fill(&sim, &p);
        read(&sim, &p, &quick);
        drop(p);
        quick.synchronize().unwrap();
    }
    gpu.trim(Trim::All).unwrap();
    let pinned = gpu.report().pinned.unwrap();
    assert_eq!((pinned.reserved, pinned.in_flight), (64 * MIB, 4 * MIB));
    assert_eq!(pinned.reserved_peak, 64 * MIB);
    gate.open();
    gpu.synchronize().unwrap();
    assert_eq!(gpu.report().pinned.unwrap().in_flight, 0);
    drop((slow, quick));
    all_clean(&sim, gpu);
}

/// At the limit a request waits for copies, and then says what there is. Idle segments that are in the way go back in a trim.
#[test]
fn the_limit_of_pinned_memory() {
    let sim = late();
    let gpu = on(&sim, Config::default().pinned_limit(8 * MIB));
    let s = gpu.stream().unwrap();
    let a = gpu.alloc_pinned(6 * MIB).unwrap();
    let refused = gpu.alloc_pinned(4 * MIB).unwrap_err();
    let live: Vec<_> = gpu.live().into_iter().map(|l| (Some(l.id), l.addr, l.bytes, l.stream)).collect();
    assert_eq!(live, [(a.id(), a.address(), 6 * MIB, None)]);
    gpu.check();
    let facts = refused.out_of_memory().expect("out of memory");
    assert_eq!((facts.requested, facts.stream, facts.pinned_limit), (4 * MIB, None, Some(8 * MIB)));
    assert!(refused.to_string().contains("pinned"), "{refused}");
    // In use by the device: waited for.
    fill(&sim, &a);
    read(&sim, &a, &s);
    drop(a);
    let b = gpu.alloc_pinned(6 * MIB).unwrap();
    fill(&sim, &b);
    assert_eq!(gpu.report().pinned.unwrap().counters.host_waits, 1);
    drop(b);
    // Too small a segment is in the way.
    assert!(gpu.alloc_pinned(8 * MIB).unwrap_err().out_of_memory().is_some());
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 6 * MIB);
    let c = gpu.alloc_pinned(8 * MIB).unwrap();
    fill(&sim, &c);
    assert_eq!(gpu.report().pinned.unwrap().reserved, 8 * MIB);
    drop((c, s));
    all_clean(&sim, gpu);
}

/// What the wait brings back may be segments that are each too short: the callback trims, and a longer one is pinned.
#[test]
fn a_callback_that_trims_makes_room_for_a_long_pinned_segment() {
    let sim = late();
    let back: Arc<Mutex<Option<Allocator<Sim>>>> = Arc::default();
    let inner = Arc::clone(&back);
    let hook = move |facts: &OutOfMemory| {
        assert_eq!((facts.stream, facts.requested), (None, 60 * MIB));
        let gpu = inner.lock().unwrap().clone().expect("filled in below");
        gpu.trim(Trim::All).is_ok_and(|trimmed| trimmed.bytes > 0)
    };
    let gpu = on(&sim, Config::default().pinned_limit(60 * MIB).on_out_of_memory(hook));
    *back.lock().unwrap() = Some(gpu.clone());
    let s = gpu.stream().unwrap();
    let (a, b) = (gpu.alloc_pinned(30 * MIB).unwrap(), gpu.alloc_pinned(30 * MIB).unwrap());
    for p in [&a, &b] {
        fill(&sim, p);
        read(&sim, p, &s);
    }
    drop((a, b));
    let long = gpu.alloc_pinned(60 * MIB).unwrap();
    fill(&sim, &long);
    // Now a trim brings nothing: the callback says so, and is named.
    let refused = gpu.alloc_pinned(60 * MIB).unwrap_err();
    assert!(refused.out_of_memory().unwrap().tried.contains(&"callback"), "{refused}");
    *back.lock().unwrap() = None;
    drop((long, s));
    all_clean(&sim, gpu);
}

/// What is pinned goes back with the allocator's last owner, though device memory of its lives on.
#[test]
fn idle_pinned_memory_goes_with_the_last_owner() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let stays = gpu.alloc(MIB, &s).unwrap();
    drop(gpu.alloc_pinned(MIB).unwrap());
    assert!(sim.ledger().bytes_pinned > 0);
    drop((s, gpu));
    assert_eq!(sim.ledger().bytes_pinned, 0);
    drop(stays);
    assert_eq!(sim.ledger().bytes_reserved, 0);
    sim.verdict().unwrap();
}

/// A trim unpins what is idle and complete, and nothing else.
#[test]
fn trim_unpins_what_is_complete() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let (idle, busy) = (gpu.alloc_pinned(64 * MIB).unwrap(), gpu.alloc_pinned(64 * MIB).unwrap());
    fill(&sim, &busy);
    read(&sim, &busy, &s);
    drop((idle, busy));
    let trimmed = gpu.trim(Trim::All).unwrap();
    assert_eq!((trimmed.bytes, trimmed.segments), (64 * MIB, 1));
    // Unpinning waited for the whole device, as the driver does; the next trim knows.
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 64 * MIB);
    assert_eq!(sim.ledger().bytes_pinned, 0);
    drop(s);
    all_clean(&sim, gpu);
}

/// Uses end at events; a stream that goes away takes nothing with it.
#[test]
fn pinned_uses_until_events_and_on_streams_that_are_gone() {
    let sim = late();
    let gpu = on(&sim, Config::default().pinned_limit(64 * MIB));
    let (home, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let p = gpu.alloc_pinned(64 * MIB).unwrap();
    fill(&sim, &p);
    sim.launch(home.native(), Launch::new("read pinned").reads(p.address(), p.len())).unwrap();
    let until = home.record().unwrap();
    p.record_use_until(&until).unwrap();
    read(&sim, &p, &other);
    drop(other);
    // Later work on the first stream delays nothing.
    let gate = sim.gate(home.native()).unwrap();
    drop(p);
    let q = gpu.alloc_pinned(64 * MIB).expect("both uses end without the gate");
    fill(&sim, &q);
    gate.open();
    drop((q, home, until));
    all_clean(&sim, gpu);
}

#[test]
fn absurd_pinned_sizes() {
    let sim = late().pinned_capacity(128 * MIB);
    let gpu = on(&sim, Config::default());
    assert!(gpu.alloc_pinned(0).unwrap().is_empty());
    for bytes in [1 << 63, u64::MAX, 1 << 41] {
        assert!(
            matches!(gpu.alloc_pinned(bytes), Err(Error::TooLarge { requested: asked, .. }) if asked == bytes)
        );
    }
    let refused = gpu.alloc_pinned((1 << 41) - 512).unwrap_err();
    assert!(refused.out_of_memory().is_some_and(|o| o.driver.is_some()), "{refused}");
    // The planned segment does not fit, the rounded one neither; exactly what was requested does.
    let most = gpu.alloc_pinned(128 * MIB - 512).unwrap();
    let one = gpu.alloc_pinned(1).unwrap();
    assert_eq!(one.address().0 % 512, 0);
    drop((most, one));
    gpu.check();
    for limit in [0, 1, 511] {
        let none = on(&sim, Config::default().pinned_limit(limit));
        assert!(none.alloc_pinned(1).unwrap_err().out_of_memory().is_some());
    }
    all_clean(&sim, gpu);
}

/// A forgotten token costs its host memory and nothing of the device's; a pinned allocation that outlives its allocator likewise.
#[test]
fn what_is_forgotten_of_pinned_memory_keeps_nothing_of_the_device() {
    for forget in [true, false] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let s = gpu.stream().unwrap();
        let x = gpu.zeros::<u64>(2, &s).unwrap();
        let many = gpu.alloc(512 << 20, &s).unwrap();
        let (down, up) = (x.to_pinned(&s).unwrap(), gpu.alloc_pinned(16).unwrap());
        if forget {
            std::mem::forget(down);
        } else {
            drop(down);
        }
        drop((x, many, s, gpu));
        let ledger = sim.ledger();
        assert_eq!(ledger.bytes_reserved, 0, "all of the device's memory is back");
        assert!(ledger.bytes_pinned > 0, "what lives is pinned");
        drop(up);
        assert_eq!(sim.ledger().bytes_pinned == 0, !forget);
        sim.verdict().unwrap();
        if !forget {
            assert!(sim.ledger().is_empty(), "{:?}", sim.ledger());
        }
    }
}

/// What is above the limit by itself is refused at once: no wait could bring it.
#[test]
fn a_pinned_request_above_the_limit_waits_for_nothing() {
    let sim = late();
    let gpu = on(&sim, Config::default().pinned_limit(64 * MIB));
    let s = gpu.stream().unwrap();
    let p = gpu.alloc_pinned(MIB).unwrap();
    fill(&sim, &p);
    let gate = sim.gate(s.native()).unwrap();
    read(&sim, &p, &s);
    drop(p);
    let before = sim.host_time();
    let refused = gpu.alloc_pinned(65 * MIB).unwrap_err();
    assert!(refused.to_string().contains("above the limit"), "{refused}");
    assert_eq!(gpu.report().pinned.unwrap().counters.host_waits, 0);
    let took = sim.host_time().saturating_sub(before);
    assert!(took < std::time::Duration::from_millis(100), "{took:?}");
    gate.open();
    drop(s);
    all_clean(&sim, gpu);
}

/// A driver that has no memory for an event makes a request fail as out of memory, for which the callback is called with the facts.
#[test]
fn a_marker_that_finds_no_memory_is_out_of_memory() {
    let sim = late();
    let asked = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&asked);
    let config = Config::default().pinned_limit(64 * MIB).on_out_of_memory(move |_| {
        *counter.lock().unwrap() += 1;
        false
    });
    let gpu = on(&sim, config);
    let s = gpu.stream().unwrap();
    let p = gpu.alloc_pinned(64 * MIB).unwrap();
    fill(&sim, &p);
    read(&sim, &p, &s);
    drop(p);
    for nth in 1..10 {
        sim.fail(Call::EventCreate, nth, DriverErrorKind::OutOfMemory);
    }
    let refused = gpu.alloc_pinned(64 * MIB).unwrap_err();
    let facts = refused.out_of_memory().unwrap_or_else(|| panic!("{refused}"));
    assert_eq!((facts.requested, *asked.lock().unwrap()), (64 * MIB, 1));
    assert!(facts.driver.is_some() && facts.tried.contains(&"wait"), "{refused}");
    sim.clear_faults();
    drop(gpu.alloc_pinned(64 * MIB).expect("behind the wait"));
    // A stream that captures is no reason either: what it holds is passed over, and reported.
    let p = gpu.alloc_pinned(64 * MIB).unwrap();
    read(&sim, &p, &s);
    drop(p);
    sim.begin_capture(s.native()).unwrap();
    let refused = gpu.alloc_pinned(64 * MIB).unwrap_err();
    let facts = refused.out_of_memory().unwrap_or_else(|| panic!("{refused}"));
    assert!(facts.passed_over.is_some(), "{refused}");
    sim.end_capture(s.native()).expect("it lives");
    drop(gpu.alloc_pinned(64 * MIB).expect("behind the wait"));
    drop(s);
    all_clean(&sim, gpu);
}
