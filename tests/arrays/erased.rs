//! The allocator as one trait object, and the wrappers around it, on the simulated device under its oracle.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::many_single_char_names, reason = "s, t are streams; x, y are blocks")]

use super::clean;
use millpond::erased::{AnyAllocation, AnyStream, GpuAlloc};
use millpond::error::DriverErrorKind;
use millpond::units::{DeviceId, GIB, KIB, MIB, StreamId};
use millpond::wrap::{Call, Counted, Limited, Logged};
use millpond::{Allocator, Config, DeviceArray, Error, Growth, Limit};
use millpond_sim::null::Null;
use millpond_sim::{Call as DriverCall, Launch, Schedule, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex};

/// A device that runs nothing before it must, and an allocator on it, with and without its type.
fn device(config: Config) -> (Sim, Allocator<Sim>, Arc<dyn GpuAlloc>) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), config).unwrap();
    let any = gpu.erase();
    (sim, gpu, any)
}

fn launch(sim: &Sim, x: &AnyAllocation, on: &AnyStream) {
    let kernel = Launch::new("kernel").reads(x.address(), x.len()).writes(x.address(), x.len());
    let on = on.downcast_ref::<Sim>().expect("a stream of this device");
    sim.launch(on.native(), kernel.tag(x.facts().id.expect("bytes"))).unwrap();
}

/// A framework that knows no driver: what it does is ordered as if it did.
#[test]
fn bytes_are_reused_in_order_through_the_trait_object() {
    let (sim, gpu, any) = device(Config::default().growth(Growth::Exact).limit(Limit::Bytes(MIB)));
    let (s, t) = (any.stream().unwrap(), any.stream().unwrap());
    for _ in 0..4 {
        let x = any.alloc(MIB, &s).unwrap();
        assert_eq!((x.len(), x.facts().stream), (MIB, Some(s.id())));
        launch(&sim, &x, &s);
        t.wait_stream(&s).unwrap();
        x.record_use(&t).unwrap();
        launch(&sim, &x, &t);
        std::thread::scope(|threads| drop(threads.spawn(move || drop(x))));
        // The same bytes: behind t.
        let y = any.alloc(MIB, &t).unwrap();
        launch(&sim, &y, &t);
        // A first use elsewhere, behind the former life.
        y.share_with(&s).unwrap();
        launch(&sim, &y, &s);
        drop(y);
    }
    let unknown = any.alloc_aligned(KIB, 4096, &s).unwrap();
    assert_eq!(unknown.address().0 % 4096, 0);
    unknown.free_unknown();
    any.synchronize().unwrap();
    assert!(any.trim(Some(&t)).unwrap().bytes + any.trim(None).unwrap().bytes >= MIB);
    any.set_limit(Limit::Bytes(0)).unwrap();
    assert!(any.alloc(KIB, &s).unwrap_err().out_of_memory().is_some());
    assert_eq!((any.report().limit, any.usage()), (Some(0), gpu.usage()));
    assert_eq!(any.report().total.live, 0);
    drop((s, t, any, gpu));
    clean(&sim);
}

/// Without the record the oracle convicts: what the trait object passes on is what keeps the order.
#[test]
fn an_unrecorded_use_is_caught_through_the_trait_object() {
    let (sim, gpu, any) = device(Config::default().growth(Growth::Exact).limit(Limit::Bytes(MIB)));
    let (s, t) = (any.stream().unwrap(), any.stream().unwrap());
    let x = any.alloc(MIB, &s).unwrap();
    t.wait_stream(&s).unwrap();
    launch(&sim, &x, &t);
    drop(x);
    launch(&sim, &any.alloc(MIB, &s).unwrap(), &s);
    assert!(sim.verdict().is_err());
    drop((s, t, any, gpu));
}

#[test]
fn streams_are_found_by_their_numbers() {
    let (sim, gpu, any) = device(Config::default());
    let s = any.stream().unwrap();
    let id = s.id();
    assert_eq!(any.stream_of(id).unwrap().id(), id);
    assert!(any.stream_of(StreamId(u64::MAX)).is_none());
    let typed = gpu.stream().unwrap();
    assert_eq!(any.stream_of(typed.id()).unwrap().info(), typed.info());
    assert_eq!(typed.erase().id(), typed.id());
    // Memory from it holds it, too, and it is the same pool.
    let x = any.alloc(KIB, &s).unwrap();
    drop(s);
    let again = any.stream_of(id).unwrap();
    let y = any.alloc(KIB, &again).unwrap();
    assert_eq!(
        gpu.report().pools.iter().filter(|p| p.stream == Some(id)).map(|p| p.live).collect::<Vec<_>>(),
        [2]
    );
    launch(&sim, &y, &again);
    again.synchronize().unwrap();
    drop((x, y, again));
    assert!(any.stream_of(id).is_none(), "it has no references");
    drop((typed, any, gpu));
    clean(&sim);
}

#[test]
fn strangers_are_refused_with_typed_errors() {
    let (sim, gpu, any) = device(Config::default());
    let null = Allocator::new(Null::default(), Config::default()).unwrap();
    let unknown_stream = null.erase().stream().unwrap();
    let s = any.stream().unwrap();
    let foreign =
        |e: Error| matches!(e, Error::OtherAllocator { stream, .. } if stream == unknown_stream.id());
    assert!(foreign(any.alloc(KIB, &unknown_stream).unwrap_err()));
    assert!(foreign(any.alloc_aligned(KIB, 512, &unknown_stream).unwrap_err()));
    assert!(foreign(any.trim(Some(&unknown_stream)).unwrap_err()));
    assert!(foreign(s.wait_stream(&unknown_stream).unwrap_err()));
    let x = any.alloc(KIB, &s).unwrap();
    assert!(foreign(x.record_use(&unknown_stream).unwrap_err()));
    assert!(foreign(x.share_with(&unknown_stream).unwrap_err()));
    // Another device of the same kind.
    let (_, _, other) = device(Config::default());
    let elsewhere = other.stream().unwrap();
    assert!(x.record_use(&elsewhere).is_err() && any.alloc(KIB, &elsewhere).is_err());
    assert!(matches!(any.alloc_aligned(KIB, 3, &s).unwrap_err(), Error::BadAlignment { requested: 3, .. }));
    assert_eq!(format!("{:?}", any.alloc(0, &s).unwrap()), "AnyAllocation(empty)");
    assert!(
        unknown_stream.downcast_ref::<Sim>().is_none() && unknown_stream.downcast_ref::<Null>().is_some()
    );
    let x = x.into_allocation::<Null>().unwrap_err();
    // With its type again it can be an array.
    let array = DeviceArray::<u32, _>::from_allocation(x.into_allocation::<Sim>().unwrap(), 256).unwrap();
    assert_eq!(array.len(), 256);
    drop((array, s, any, gpu, unknown_stream, elsewhere));
    clean(&sim);
}

/// The outer wrapper sees what is requested, the inner one what is let through.
#[test]
fn wrappers_compose_in_both_orders() {
    let (sim, gpu, any) = device(Config::default());
    let s = any.stream().unwrap();
    let inner = Arc::new(Counted::new(Arc::clone(&any)));
    let limited = Arc::new(Limited::new(Arc::clone(&inner) as Arc<dyn GpuAlloc>, 4 * KIB));
    let outer = Counted::new(Arc::clone(&limited) as Arc<dyn GpuAlloc>);
    let x = outer.alloc(3 * KIB, &s).unwrap();
    let refused = outer.alloc(KIB + 1, &s).unwrap_err();
    assert!(
        matches!(refused, Error::AboveLimit { requested: 1025, allocated: 3072, max: 4096 }),
        "{refused}: in bytes as asked for"
    );
    let y = outer.alloc_aligned(KIB, 4096, &s).unwrap();
    assert_eq!((limited.live(), limited.limit()), (4096, 4096));
    let (asked, let_through) = (outer.counts(), inner.counts());
    assert_eq!((asked.allocations, asked.refused, asked.bytes_live), (2, 1, 4096));
    assert_eq!((let_through.allocations, let_through.refused, let_through.bytes_live), (2, 0, 4096));
    // The other way round: the limit of what is counted.
    let around = Limited::new(Arc::new(outer), KIB);
    assert!(matches!(around.alloc(2 * KIB, &s).unwrap_err(), Error::AboveLimit { max: 1024, .. }));
    assert!(
        matches!(around.alloc(KIB, &s).unwrap_err(), Error::AboveLimit { max: 4096, .. }),
        "the inner one"
    );
    assert_eq!(around.live(), 0, "what was refused inside counts for nothing");
    drop(x);
    let z = around.alloc(KIB, &s).unwrap();
    assert_eq!((around.live(), limited.live(), inner.counts().live), (1024, 2048, 2));
    limited.set_limit(1024);
    assert!(around.alloc(0, &s).is_err(), "below what is live everything is refused");
    drop((y, z));
    assert_eq!((around.live(), limited.live(), inner.counts().live), (0, 0, 0));
    let counts = inner.counts();
    assert_eq!(
        (counts.frees, counts.bytes_live_peak, counts.live_peak, counts.bytes_largest),
        (3, 4096, 2, 3072)
    );
    inner.reset_peaks();
    assert_eq!((inner.counts().bytes_live_peak, inner.counts().live_peak), (0, 0));
    assert!(counts.to_string().starts_with("3 allocations"), "{counts}");
    drop((around, limited, inner, s, any, gpu));
    clean(&sim);
}

/// Of sixteen that come at once, eight fit and are served, whichever they are.
#[test]
fn a_limit_is_kept_under_threads() {
    let (sim, gpu, any) = device(Config::default());
    let limited = Limited::new(Arc::clone(&any), 8 * KIB);
    let at_once = Barrier::new(16);
    for round in 0..20 {
        let held = Mutex::new(Vec::new());
        std::thread::scope(|threads| {
            for _ in 0..16 {
                threads.spawn(|| {
                    let s = limited.stream().unwrap();
                    at_once.wait();
                    match limited.alloc(KIB, &s) {
                        Ok(x) => held.lock().unwrap().push(x),
                        Err(e) => assert!(matches!(e, Error::AboveLimit { allocated: 8192, .. }), "{e}"),
                    }
                    // None frees before all have requested.
                    at_once.wait();
                });
            }
        });
        let held = held.into_inner().unwrap();
        assert_eq!((held.len(), limited.live()), (8, 8 * KIB), "round {round}");
        std::thread::scope(|threads| {
            for x in held {
                threads.spawn(move || drop(x));
            }
        });
        assert_eq!(limited.live(), 0);
    }
    drop((limited, any, gpu));
    clean(&sim);
}

/// What an allocation owes to its wrappers travels with it.
#[test]
fn memory_outlives_its_wrappers() {
    let (sim, gpu, any) = device(Config::default());
    let s = any.stream().unwrap();
    let counted = Arc::new(Counted::new(any));
    let limited = Arc::new(Limited::new(Arc::clone(&counted) as Arc<dyn GpuAlloc>, MIB));
    let logged = Logged::new(Arc::clone(&limited) as Arc<dyn GpuAlloc>, |_, _| {});
    let x = logged.alloc(MIB, &s).unwrap();
    let x = x.into_allocation::<Sim>().expect_err("its wrappers have to see its end");
    let t = logged.stream().unwrap();
    drop(logged);
    launch(&sim, &x, &s);
    x.record_use(&t).unwrap();
    assert_eq!((limited.live(), counted.counts().uses), (MIB, 1));
    drop((s, t, gpu));
    std::thread::spawn(move || drop(x)).join().unwrap();
    assert_eq!((limited.live(), counted.counts().live), (0, 0));
    assert_eq!(limited.report().total.live, 0);
    drop((limited, counted));
    clean(&sim);
}

#[test]
fn a_log_has_each_call_in_order_and_drops_afterwards() {
    let (sim, gpu, any) = device(Config::default());
    let logged_calls = Arc::new(Mutex::new(Vec::<(u64, Call)>::new()));
    let sink = Arc::clone(&logged_calls);
    let logged = Logged::new(any, move |number, call| sink.lock().unwrap().push((number, call.clone())));
    let (s, t) = (logged.stream().unwrap(), logged.stream().unwrap());
    let x = logged.alloc(KIB, &s).unwrap();
    let facts = *x.facts();
    assert!(matches!(logged.alloc(1 << 50, &s), Err(Error::TooLarge { .. })));
    x.share_with(&t).unwrap();
    drop(x);
    assert_eq!(logged_calls.lock().unwrap().len(), 2, "a drop runs no user code");
    logged.synchronize().unwrap();
    let trimmed = logged.trim(None).unwrap();
    logged.set_limit(Limit::None).unwrap();
    drop(logged.alloc_aligned(KIB, 1024, &s).unwrap());
    logged.deliver();
    let logged_calls = std::mem::take(&mut *logged_calls.lock().unwrap());
    assert!(logged_calls.iter().map(|(number, _)| *number).eq(0..9), "{logged_calls:?}");
    let calls: Vec<Call> = logged_calls.into_iter().map(|(_, call)| call).collect();
    assert_eq!(calls[0], Call::Allocated(facts));
    assert!(
        matches!(&calls[1], Call::Refused { bytes, stream, .. } if (*bytes, *stream) == (1 << 50, s.id()))
    );
    assert_eq!(calls[2..4], [Call::Used { what: facts, by: t.id() }, Call::Freed(facts)]);
    assert_eq!(
        calls[4..7],
        [Call::Synchronized, Call::Trimmed(Some(trimmed.bytes)), Call::Limited(Limit::None)]
    );
    assert!(matches!(calls[7..], [Call::Allocated(a), Call::Freed(b)] if a == b));
    let lines: Vec<String> = calls.iter().map(ToString::to_string).collect();
    assert!(lines[0].starts_with("allocated 0x") && lines[0].contains("+ 1024 B"), "{lines:?}");
    assert!(lines[3].starts_with("freed 0x"), "{lines:?}");
    drop((s, t, logged, gpu));
    clean(&sim);
}

/// A sink may allocate from the log that calls it, and a sink that panics loses nothing.
#[test]
fn a_sink_may_do_as_it_likes() {
    let (sim, gpu, any) = device(Config::default());
    let s = any.stream().unwrap();
    let own: Arc<Mutex<Option<Arc<Logged>>>> = Arc::default();
    let (inside, on) = (Arc::clone(&own), s.clone());
    let logged = Arc::new(Logged::new(any, move |_, call| {
        if let Call::Allocated(facts) = call {
            assert!(facts.bytes != 13, "a sink's own bug");
            if facts.bytes == 4096 {
                let logged = inside.lock().unwrap().clone().expect("set below");
                drop(logged.alloc(512, &on).unwrap());
            }
        }
    }));
    *own.lock().unwrap() = Some(Arc::clone(&logged));
    drop(logged.alloc(4096, &s).unwrap());
    assert!(catch_unwind(AssertUnwindSafe(|| logged.alloc(13, &s))).is_err());
    assert_eq!(gpu.report().total.live, 0, "freed again");
    drop(logged.alloc(4096, &s).unwrap());
    assert_eq!(gpu.report().total.counters.allocations, 5);
    own.lock().unwrap().take();
    drop((logged, own, s, gpu));
    clean(&sim);
}

/// Whichever call of the driver fails, no byte stays with a limit or a count.
#[test]
fn nothing_is_lost_when_the_driver_fails() {
    for call in [DriverCall::MemAlloc, DriverCall::EventRecord, DriverCall::StreamWaitEvent] {
        let (sim, gpu, any) = device(Config::default().growth(Growth::Exact).limit(Limit::Bytes(MIB)));
        let limited = Arc::new(Limited::new(any, MIB));
        let counted = Counted::new(Arc::clone(&limited) as Arc<dyn GpuAlloc>);
        let (s, t) = (counted.stream().unwrap(), counted.stream().unwrap());
        let mut failed = 0;
        for nth in 1..6 {
            sim.fail(call, nth, DriverErrorKind::Other);
            for _ in 0..4 {
                for on in [&s, &t] {
                    match counted.alloc(MIB, on) {
                        Ok(x) => launch(&sim, &x, on),
                        Err(_) => failed += 1,
                    }
                    assert_eq!((limited.live(), counted.counts().live), (0, 0));
                }
            }
        }
        let counts = counted.counts();
        assert_eq!((counts.refused, counts.allocations), (failed, 40 - failed), "{call:?}");
        assert!(failed > 0 || call != DriverCall::MemAlloc, "no fault struck");
        drop((s, t, counted, limited, gpu));
        clean(&sim);
    }
}

/// C3: the allocator of a scope is the one that the scope is given: nested ones count for the outer ones, others go on
/// beside them, and a scope that ends leaves nothing behind.
#[test]
fn c03_the_allocator_of_a_scope() {
    /// Some work that knows its allocator only.
    fn layer(on: &dyn GpuAlloc, bytes: u64) -> Result<AnyAllocation, Error> {
        on.alloc(bytes, &on.stream()?)
    }
    let (sim, gpu, any) = device(Config::default());
    let training = Arc::new(Counted::new(Arc::clone(&any)));
    let kept = layer(&*training, KIB).unwrap();
    {
        let validation = Limited::new(Arc::clone(&training) as Arc<dyn GpuAlloc>, 4 * KIB);
        std::thread::scope(|threads| {
            // Beside it, on another thread, with another allocator.
            threads.spawn(|| drop(layer(&*any, MIB).unwrap()));
            let inside = layer(&validation, 4 * KIB).unwrap();
            assert!(layer(&validation, 1).is_err() && layer(&*training, 1).is_ok());
            drop(inside);
        });
        assert!(layer(&validation, 4 * KIB).is_ok());
    }
    let counts = training.counts();
    assert_eq!((counts.allocations, counts.bytes_served, counts.bytes_live), (4, 9 * KIB + 1, KIB));
    assert_eq!(counts.bytes_live_peak, 5 * KIB + 1);
    drop((kept, training, any, gpu));
    clean(&sim);
}

/// Frees beyond what a log keeps are lost, and the log says how many.
#[test]
fn a_log_says_what_it_lost() {
    let (sim, gpu, any) = device(Config::default());
    let logged_calls = Arc::new(Mutex::new(Vec::<(u64, Call)>::new()));
    let sink = Arc::clone(&logged_calls);
    let logged = Logged::new(any, move |number, call| sink.lock().unwrap().push((number, call.clone())));
    let s = logged.stream().unwrap();
    let blocks: Vec<_> = (0..70_000).map(|_| logged.alloc(KIB, &s).unwrap()).collect();
    assert_eq!(logged.lost(), 0);
    drop(blocks);
    let lost = 70_000 - 65_536;
    assert_eq!(logged.lost(), lost);
    logged.synchronize().unwrap();
    let logged_calls = std::mem::take(&mut *logged_calls.lock().unwrap());
    // The push of the call that tells takes one more's place.
    assert_eq!(logged_calls[70_000], (70_000, Call::Lost(lost + 1)));
    assert_eq!(logged_calls[70_000].1.to_string(), "lost 4465 calls: more were stored than fit");
    assert_eq!(logged_calls[70_001].0, 70_000 + lost + 1);
    assert_eq!(logged_calls.last(), Some(&(140_000, Call::Synchronized)));
    assert_eq!((logged_calls.len(), logged.lost()), (70_001 + 65_536, lost + 1));
    drop((s, logged, gpu));
    clean(&sim);
}

/// The device of an error is the allocation's, and memory of no bytes takes any stream.
#[test]
fn a_stream_of_another_kind_of_device_is_distinguished_from_the_allocations() {
    let sims = Sim::devices(2, GIB);
    let gpu = Allocator::new(sims[1].clone(), Config::default()).unwrap().erase();
    let other = Allocator::new(Null::new(DeviceId(0), GIB), Config::default()).unwrap().erase();
    let (s, far) = (gpu.stream().unwrap(), other.stream().unwrap());
    let x = gpu.alloc(KIB, &s).unwrap();
    for error in [x.record_use(&far).unwrap_err(), x.share_with(&far).unwrap_err()] {
        assert!(matches!(error, Error::OtherAllocator { device, .. } if device == gpu.device()), "{error}");
    }
    gpu.alloc(0, &s).unwrap().record_use(&far).unwrap();
}

/// A use on the allocation's own stream is none elsewhere.
#[test]
fn uses_elsewhere_are_counted() {
    let (_sim, _gpu, any) = device(Config::default());
    let counted = Counted::new(any);
    let (s, t) = (counted.stream().unwrap(), counted.stream().unwrap());
    let (x, none) = (counted.alloc(KIB, &s).unwrap(), counted.alloc(0, &s).unwrap());
    x.record_use(&s).unwrap();
    x.share_with(&s).unwrap();
    none.record_use(&t).unwrap();
    assert_eq!(counted.counts().uses, 0);
    x.record_use(&t).unwrap();
    assert_eq!(counted.counts().uses, 1);
}
