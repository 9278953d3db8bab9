//! Sinks and out-of-memory callbacks are user code: they may panic, and they may call back in.

use crate::rig::{all_back, all_clean, late, on, write};
use millpond::trace::{Event as Happening, Sink};
use millpond::units::MIB;
use millpond::{Allocation, Allocator, Config, Error, Limit, Reuse, Stream, Trim};
use millpond_sim::Sim;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Runs something that is to panic with this word, and keeps the report off the test's output.
fn panics(with: &str, run: impl FnOnce()) {
    let said = catch_unwind(AssertUnwindSafe(run)).expect_err("a panic");
    let said = said.downcast_ref::<&str>().copied().unwrap_or_default();
    assert_eq!(said, with);
}

/// What a callback needs to call back in; filled in once the allocator is there.
type Back = Arc<Mutex<Option<(Allocator<Sim>, Stream<Sim>)>>>;

struct Panics(AtomicBool);
impl Sink for Panics {
    fn event(&self, _: u64, _: &Happening) {
        assert!(!self.0.load(Ordering::Relaxed), "a sink");
    }
}

/// A sink that panics passes its panic on from the verb that delivers; nothing is lost, and the next call works.
#[test]
fn a_panicking_sink_leaves_the_state_intact() {
    let sim = late();
    let sink = Arc::new(Panics(AtomicBool::new(false)));
    let gpu = on(&sim, Config::default().sink(sink.clone()));
    let s = gpu.stream().unwrap();
    let kept = gpu.alloc(MIB, &s).unwrap();
    write(&sim, &kept, &s);
    sink.0.store(true, Ordering::Relaxed);
    panics("a sink", || drop(gpu.alloc(MIB, &s)));
    assert_eq!(gpu.report().total.live, 1, "what the caller never got is free again");
    gpu.check();
    // The drop during unwinding left an event, which it delivered to no sink; each of these does.
    for verb in [
        &(|| drop(gpu.synchronize())) as &dyn Fn(),
        &|| drop(gpu.trim(Trim::All)),
        &|| gpu.deliver_events(),
        &|| drop(gpu.alloc(1 << 33, &s)),
    ] {
        panics("a sink", verb);
        panics("a sink", || drop(gpu.alloc(MIB, &s)));
        gpu.check();
    }
    sink.0.store(false, Ordering::Relaxed);
    drop(kept);
    gpu.deliver_events();
    let again = gpu.alloc(MIB, &s).unwrap();
    write(&sim, &again, &s);
    drop((again, s));
    all_clean(&sim, gpu);
}

struct Recurses {
    back: Back,
    seen: AtomicUsize,
    kept: Mutex<Vec<Allocation<Sim>>>,
}
impl Sink for Recurses {
    fn event(&self, _: u64, event: &Happening) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        let back = self.back.lock().unwrap().clone();
        let Some((gpu, s)) = back else { return };
        if let Happening::Allocate { requested: 1000, .. } = event {
            let inner = gpu.alloc(2000, &s).unwrap();
            drop(gpu.alloc(3000, &s).unwrap());
            gpu.trim(Trim::All).unwrap();
            self.kept.lock().unwrap().push(inner);
        }
    }
}

/// A sink may allocate, free and trim; the events of that come to it too, after the one it is given.
#[test]
fn a_sink_may_call_back_in() {
    let sim = late();
    let back = Back::default();
    let sink = Arc::new(Recurses {
        back: Arc::clone(&back),
        seen: AtomicUsize::new(0),
        kept: Mutex::new(Vec::new()),
    });
    let gpu = on(&sim, Config::default().sink(sink.clone()));
    let s = gpu.stream().unwrap();
    *back.lock().unwrap() = Some((gpu.clone(), s.clone()));
    let x = gpu.alloc(1000, &s).unwrap();
    // Grow and Allocate; inside: Allocate, Allocate, Free.
    assert_eq!(sink.seen.load(Ordering::Relaxed), 5);
    assert_eq!(gpu.report().total.live, 2);
    *back.lock().unwrap() = None;
    sink.kept.lock().unwrap().clear();
    drop((x, s));
    all_clean(&sim, gpu);
}

struct Drops {
    last: Back,
    dropped: AtomicBool,
}
impl Sink for Drops {
    fn event(&self, _: u64, event: &Happening) {
        if let Happening::Free { .. } = event {
            let last = self.last.lock().unwrap().take();
            self.dropped.fetch_or(last.is_some(), Ordering::Relaxed);
        }
    }
}

/// A sink that has the last handles of the allocator and of its stream, but for the one that delivers, drops them in a delivery:
/// what is alive keeps its memory until its own drop, and then all is back.
#[test]
fn a_sink_may_drop_the_last_handles() {
    for by_alloc in [true, false] {
        let sim = late();
        let sink = Arc::new(Drops { last: Back::default(), dropped: AtomicBool::new(false) });
        let gpu = on(&sim, Config::default().sink(sink.clone()));
        let s = gpu.stream().unwrap();
        let other = by_alloc.then(|| gpu.stream().unwrap());
        let (x, y) = (gpu.alloc(MIB, &s).unwrap(), gpu.alloc(MIB, &s).unwrap());
        write(&sim, &x, &s);
        *sink.last.lock().unwrap() = Some((gpu.clone(), s));
        drop(y);
        assert!(!sink.dropped.load(Ordering::Relaxed), "a drop delivers nothing");
        // Its stream ends inside the delivery.
        match &other {
            Some(t) => drop(gpu.alloc(MIB, t).unwrap()),
            None => gpu.deliver_events(),
        }
        assert!(sink.dropped.load(Ordering::Relaxed));
        gpu.check();
        assert_eq!(gpu.report().total.live, 1);
        drop((other, gpu));
        assert!(sim.ledger().bytes_reserved > 0, "a block is alive");
        drop(x);
        all_back(&sim);
    }
}

fn tight() -> Config {
    Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(64 * MIB))
}

/// The callback frees something and asks for another try.
#[test]
fn an_out_of_memory_callback_makes_room() {
    let sim = late();
    let hoard: Arc<Mutex<Vec<Allocation<Sim>>>> = Arc::default();
    let mine = Arc::clone(&hoard);
    let gpu = on(
        &sim,
        tight().on_out_of_memory(move |facts| {
            assert_eq!((facts.requested, facts.report.limit), (64 * MIB, Some(64 * MIB)));
            mine.lock().unwrap().pop().is_some()
        }),
    );
    let s = gpu.stream().unwrap();
    hoard.lock().unwrap().push(gpu.alloc(64 * MIB, &s).unwrap());
    let x = gpu.alloc(64 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    assert_eq!(gpu.report().ladder.callback.served, 1);
    let refused = gpu.alloc(64 * MIB, &s).unwrap_err();
    assert!(refused.out_of_memory().unwrap().tried.contains(&"callback"), "{refused}");
    drop((x, s));
    all_clean(&sim, gpu);
}

/// What the callback frees may still be in use by another stream's work: the host waits for that work too, although it
/// has waited before the callback ran.
#[test]
fn what_a_callback_frees_is_waited_for() {
    let sim = late();
    let hoard: Arc<Mutex<Vec<Allocation<Sim>>>> = Arc::default();
    let mine = Arc::clone(&hoard);
    let gpu = on(
        &sim,
        tight().reuse(Reuse::Ordered).on_out_of_memory(move |_| mine.lock().unwrap().pop().is_some()),
    );
    let (s, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let block = gpu.alloc(64 * MIB, &s).unwrap();
    write(&sim, &block, &s);
    hoard.lock().unwrap().push(block);
    let x = gpu.alloc(64 * MIB, &other).unwrap();
    write(&sim, &x, &other);
    assert_eq!(gpu.report().ladder.callback.served, 1);
    drop((x, s, other));
    all_clean(&sim, gpu);
}

/// A callback that always promises more ends in an error all the same, also where nothing can ever help.
#[test]
fn a_callback_that_reports_memory_in_vain_runs_a_few_times() {
    for bytes in [64 * MIB, 65 * MIB] {
        let sim = late();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let gpu = on(
            &sim,
            tight().on_out_of_memory(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                true
            }),
        );
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(MIB, &s).unwrap();
        assert!(gpu.alloc(bytes, &s).unwrap_err().out_of_memory().is_some());
        let n = asked.load(Ordering::Relaxed);
        assert!((1..=3).contains(&n), "asked {n} times");
        drop((x, s));
        all_clean(&sim, gpu);
    }
}

/// It may allocate itself; a miss in there does not call it again but fails like any other.
#[test]
fn a_callback_may_call_back_in() {
    let sim = late();
    let back = Back::default();
    let (inner, calls) = (Arc::clone(&back), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&calls);
    let gpu = on(
        &sim,
        tight().on_out_of_memory(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            let back = inner.lock().unwrap().clone();
            let (gpu, s) = back.expect("filled in below");
            // A hit, a miss that fails, a stream that comes and goes, a trim.
            drop(gpu.alloc(512, &s).unwrap());
            assert!(matches!(gpu.alloc(64 * MIB, &s), Err(Error::OutOfMemory(_))));
            drop(gpu.stream().unwrap());
            gpu.synchronize().unwrap();
            gpu.trim(Trim::All).unwrap();
            false
        }),
    );
    let s = gpu.stream().unwrap();
    *back.lock().unwrap() = Some((gpu.clone(), s.clone()));
    let x = gpu.alloc(1000, &s).unwrap();
    assert!(gpu.alloc(64 * MIB, &s).unwrap_err().out_of_memory().is_some());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    *back.lock().unwrap() = None;
    drop((x, s));
    all_clean(&sim, gpu);
}

/// It may wait for another thread that allocates from the same pool, by a hit, a miss that grows, and one that fails: no lock is held over it.
#[test]
fn a_callback_may_wait_for_a_thread_that_allocates() {
    let sim = late();
    let back = Back::default();
    let inner = Arc::clone(&back);
    let gpu = on(
        &sim,
        tight().on_out_of_memory(move |_| {
            // The thread's own refused request asks again, and has nothing to wait for.
            let Some((gpu, s)) = inner.lock().unwrap().take() else { return false };
            let (sender, receiver) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                drop(gpu.alloc(512, &s).unwrap());
                drop(gpu.alloc(16 * MIB, &s).unwrap());
                assert!(matches!(gpu.alloc(64 * MIB, &s), Err(Error::OutOfMemory(_))));
                drop(gpu.alloc_pinned(MIB).unwrap());
                drop((gpu, s));
                sender.send(()).unwrap();
            });
            receiver.recv_timeout(Duration::from_mins(1)).expect("the thread waits for the message");
            thread.join().unwrap();
            true
        }),
    );
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(32 * MIB, &s).unwrap();
    *back.lock().unwrap() = Some((gpu.clone(), s.clone()));
    assert!(gpu.alloc(64 * MIB, &s).unwrap_err().out_of_memory().is_some());
    let ladder = gpu.report().ladder;
    // The thread's first refusal, then this one's again after the other attempt; no request was served for it.
    assert_eq!((ladder.callback.tried, ladder.callback.served), (3, 0));
    write(&sim, &x, &s);
    drop((x, s));
    all_clean(&sim, gpu);
}

/// What reports say of the callback: it is tried each time that it is called, and serves a request that gets memory after the callback requested another
/// attempt, whichever rung found it then: a miss is served once. One that promises in vain serves none.
#[test]
fn the_callback_serves_the_request_that_it_helps() {
    let sim = late();
    let hoard: Arc<Mutex<Vec<Allocation<Sim>>>> = Arc::default();
    let (mine, asked) = (Arc::clone(&hoard), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    let gpu = on(
        &sim,
        tight().on_out_of_memory(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            mine.lock().unwrap().pop();
            true
        }),
    );
    let s = gpu.stream().unwrap();
    let (mut served, mut last) = (0, 0);
    for round in 0..6_u64 {
        // Of three blocks, as many as the request needs: each try brings one.
        let blocks = 1 + round % 3;
        hoard.lock().unwrap().extend((0..blocks).map(|_| gpu.alloc(20 * MIB, &s).unwrap()));
        let keeps = gpu.alloc(64 * MIB - 20 * MIB * blocks - 2 * MIB, &s).ok();
        let bytes = if keeps.is_some() { 20 * MIB } else { 65 * MIB };
        served += u64::from(gpu.alloc(bytes, &s).is_ok());
        let report = gpu.report();
        let ladder = report.ladder;
        assert_eq!(ladder.callback.tried, asked.load(Ordering::Relaxed) as u64);
        assert!(ladder.callback.served <= served);
        let all: u64 = ladder.rungs().iter().map(|(_, rung)| rung.served).sum();
        let counters = &report.total.counters;
        assert_eq!(all, counters.allocations - counters.hits, "a miss is served by one rung: {ladder:?}");
        last = ladder.callback.served;
        hoard.lock().unwrap().clear();
        drop(keeps);
        gpu.synchronize().unwrap();
    }
    assert!(last > 0);
    // In vain.
    assert!(gpu.alloc(65 * MIB, &s).is_err());
    let ladder = gpu.report().ladder;
    assert_eq!(ladder.callback.served, last, "{ladder:?}");
    drop(s);
    all_clean(&sim, gpu);
}

/// It may panic: nothing was taken, nothing is held, and the next miss calls it again.
#[test]
fn a_panicking_callback_leaves_the_state_intact() {
    let sim = late();
    let gpu = on(&sim, tight().on_out_of_memory(|_| panic!("a callback")));
    let (s, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &s).unwrap();
    for _ in 0..2 {
        panics("a callback", || drop(gpu.alloc(MIB, &other)));
        gpu.check();
        assert_eq!(gpu.report().total.live, 1);
    }
    write(&sim, &x, &s);
    drop(x);
    let y = gpu.alloc(64 * MIB, &other).unwrap();
    write(&sim, &y, &other);
    drop((y, s, other));
    all_clean(&sim, gpu);
}

/// A callback that owns the allocator's last handles but one, and drops them: the caller's own keep it open.
#[test]
fn a_callback_may_drop_handles() {
    let sim = late();
    let back = Back::default();
    let inner = Arc::clone(&back);
    let gpu = on(&sim, tight().on_out_of_memory(move |_| inner.lock().unwrap().take().is_some()));
    let s = gpu.stream().unwrap();
    *back.lock().unwrap() = Some((gpu.clone(), gpu.stream().unwrap()));
    let x = gpu.alloc(64 * MIB, &s).unwrap();
    assert!(gpu.alloc(MIB, &s).is_err());
    drop((x, s));
    all_clean(&sim, gpu);
}
