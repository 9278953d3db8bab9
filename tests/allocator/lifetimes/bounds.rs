//! No request waits for an independent stream, nor for the whole device. An endless kernel stands on an independent stream
//! (a collective that waits for the host), and every request returns: the simulated device counts the waits of the host
//! that could not have ended.

use super::endless::{self, UNBOUNDED};
use crate::rig::{all_clean, late, on, write};
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DriverErrorKind, Error, Growth, Limit, OutOfMemory, Reuse, Stream, Trim};
use millpond_sim::{Call, Gate, Launch, Leak, Ledger, Schedule, Sim};

use std::sync::{Arc, Mutex};
use std::time::Duration;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Earliest, Schedule::Latest, Schedule::Random(1), Schedule::Random(2)];

/// Since `before`, the host waited neither for what cannot end nor for the whole device.
fn no_unbounded_wait(sim: &Sim, before: &Ledger) {
    let now = sim.ledger();
    assert_eq!(now.endless_waits, before.endless_waits, "the host waited for the endless kernel");
    for call in UNBOUNDED {
        assert_eq!(now.calls_of(call), before.calls_of(call), "a request called {}", call.name());
    }
}

/// A stream that no request waits for, with a kernel on it that does not end by itself.
fn endless(sim: &Sim, gpu: &Allocator<Sim>) -> (Stream<Sim>, Gate) {
    let alone = gpu.stream().unwrap().independent();
    let gate = sim.gate(alone.native()).unwrap();
    (alone, gate)
}

fn is_out_of_memory<X>(result: Result<X, Error>) -> Option<X> {
    result.map_err(|e| assert!(e.out_of_memory().is_some(), "no memory, and the error is {e}")).ok()
}

/// What is idle lies in segments that are each too small. The request fails, at once, with the facts; after a trim it is
/// served, be it by the caller or by the callback.
#[test]
fn idle_segments_that_are_too_small_stay_until_a_trim() {
    for schedule in SCHEDULES {
        for asks_user in [false, true] {
            let sim = Sim::new(64 * MIB).schedule(schedule).pinned_capacity(100 * MIB);
            let back: Arc<Mutex<Option<Allocator<Sim>>>> = Arc::default();
            let inner = Arc::clone(&back);
            let trims = move |_: &OutOfMemory| {
                let gpu = inner.lock().unwrap().clone();
                gpu.is_some_and(|gpu| gpu.trim(Trim::All).is_ok_and(|trimmed| trimmed.bytes > 0))
            };
            let gpu = on(&sim, Config::default().growth(Growth::Exact).on_out_of_memory(trims));
            let s = gpu.stream().unwrap();
            for x in [0; 3].map(|_| gpu.alloc(20 * MIB, &s).unwrap()) {
                write(&sim, &x, &s);
            }
            drop([0; 1].map(|_| gpu.alloc_pinned(80 * MIB).unwrap()));
            gpu.synchronize().unwrap();
            let (alone, gate) = endless(&sim, &gpu);
            let before = sim.ledger();
            for _ in 0..2 {
                let refused = gpu.alloc(44 * MIB, &s).unwrap_err();
                let facts = refused.out_of_memory().unwrap_or_else(|| panic!("{refused}"));
                assert_eq!(facts.trim_would_free, 60 * MIB, "{refused}");
                assert!(!facts.tried.contains(&"trim"), "{refused}");
                let refused = gpu.alloc_pinned(90 * MIB).unwrap_err();
                let facts = refused.out_of_memory().unwrap_or_else(|| panic!("{refused}"));
                assert_eq!(facts.trim_would_free, 80 * MIB, "{refused}");
                assert!(!facts.tried.contains(&"trim"), "{refused}");
            }
            no_unbounded_wait(&sim, &before);
            // A trim may wait for the device, so it comes when the kernel may end.
            gate.open();
            if asks_user {
                *back.lock().unwrap() = Some(gpu.clone());
            } else {
                assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 140 * MIB);
            }
            let (x, p) = (gpu.alloc(44 * MIB, &s).unwrap(), gpu.alloc_pinned(90 * MIB).unwrap());
            assert_eq!(gpu.report().ladder.callback.served, u64::from(asks_user));
            write(&sim, &x, &s);
            *back.lock().unwrap() = None;
            drop((x, p, s, alone));
            all_clean(&sim, gpu);
        }
    }
}

/// A trim may wait for the device, and where that never ends the driver's error is the trim's: what it could not give back is kept, and
/// serves. The last drop beside such a kernel returns too, and leaves what the driver refused, and reports it.
#[test]
fn a_trim_and_the_last_drop_beside_an_endless_kernel_return() {
    for schedule in SCHEDULES {
        for opens in [true, false] {
            let sim = Sim::new(64 * MIB).schedule(schedule);
            let gpu = on(&sim, Config::default().growth(Growth::Exact));
            let s = gpu.stream().unwrap();
            drop(gpu.alloc(20 * MIB, &s).unwrap());
            gpu.synchronize().unwrap();
            // Other code's, which the allocator does not know.
            let theirs = sim.stream().unwrap();
            let gate = sim.gate(&theirs).unwrap();
            let refused = gpu.trim(Trim::All).expect_err("its free would wait for ever");
            assert!(matches!(refused, Error::Driver(_)) && sim.drop_errors().is_empty(), "{refused}");
            assert_eq!((gpu.report().reserved, sim.ledger().plain_ranges), (20 * MIB, 1));
            gpu.check();
            // From the cache.
            let taken = sim.ledger().calls_of(Call::MemAlloc);
            let x = gpu.alloc(20 * MIB, &s).unwrap();
            assert_eq!(sim.ledger().calls_of(Call::MemAlloc), taken);
            write(&sim, &x, &s);
            s.synchronize().unwrap();
            drop(x);
            if opens {
                gate.open();
                gpu.synchronize().unwrap();
                assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 20 * MIB);
                drop((s, theirs));
                all_clean(&sim, gpu);
                continue;
            }
            drop((s, gpu, theirs));
            let leaks = sim.leaks();
            assert!(matches!(leaks[..], [Leak::Plain { .. }]), "{leaks:?}");
            // Of each of two attempts.
            let errors = sim.drop_errors();
            assert!(errors.len() == 2 && errors.iter().all(|e| e.call == Call::MemFree.name()), "{errors:?}");
            gate.open();
        }
    }
}

/// Where a free waits for nothing, a request gives idle segments back by itself, beside the endless kernel too.
#[test]
fn memory_whose_frees_do_not_wait_is_given_back_by_a_request() {
    for schedule in SCHEDULES {
        let sim = Sim::new(64 * MIB).schedule(schedule).waiting_frees(false);
        let gpu = on(&sim, Config::default().growth(Growth::Exact));
        let s = gpu.stream().unwrap();
        let (alone, gate) = endless(&sim, &gpu);
        for x in [0; 3].map(|_| gpu.alloc(20 * MIB, &s).unwrap()) {
            write(&sim, &x, &s);
        }
        // Still written, perhaps: the ladder waits for its markers, and only for those.
        let x = gpu.alloc(44 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        assert_eq!(gpu.report().ladder.trim.served, 1);
        assert_eq!(sim.ledger().endless_waits, 0);
        gate.open();
        drop((x, s, alone));
        all_clean(&sim, gpu);
    }
}

/// A block with unknown users is behind the endless kernel too, as far as can be known. Neither does the host
/// wait for that, nor is a stream made to.
#[test]
fn a_context_wide_marker_is_behind_independent_streams_too() {
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)));
    let s = gpu.stream().unwrap();
    let (alone, gate) = endless(&sim, &gpu);
    gpu.alloc(64 * MIB, &s).unwrap().free_unknown();
    let before = sim.ledger();
    assert!(is_out_of_memory(gpu.alloc(64 * MIB, &s)).is_none());
    let counters = gpu.report().total.counters;
    assert_eq!((counters.waits_inserted, counters.host_waits), (0, 0));
    no_unbounded_wait(&sim, &before);
    s.synchronize().expect("nothing of ours made it wait for the gate");
    gate.open();
    drop(alone);
    gpu.synchronize().unwrap();
    drop((gpu.alloc(64 * MIB, &s).unwrap(), s));
    all_clean(&sim, gpu);
}

/// Another thread's default stream is marked by context-wide events. A driver without them has no marker for it: that is no
/// reason to fail, and none to wait for the whole device.
#[test]
fn another_threads_default_stream_where_context_markers_are_not_supported() {
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)));
    let theirs = std::thread::scope(|threads| {
        let adopt = || gpu.adopt(sim.per_thread_stream()).and_then(|p| gpu.alloc(64 * MIB, &p).map(|_| p));
        threads.spawn(adopt).join().unwrap().unwrap()
    });
    let s = gpu.stream().unwrap();
    for nth in 1..100 {
        sim.fail(Call::CtxRecordEvent, nth, DriverErrorKind::NotSupported);
    }
    let before = sim.ledger();
    assert!(is_out_of_memory(gpu.alloc(64 * MIB, &s)).is_none());
    no_unbounded_wait(&sim, &before);
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 0, "it is not known to be complete");
    gpu.synchronize().unwrap();
    drop((gpu.alloc(64 * MIB, &s).unwrap(), s, theirs));
    sim.clear_faults();
    all_clean(&sim, gpu);
}

/// Random programs beside the endless kernel: every request is served or out of memory, waits for nothing that need not end, and
/// blocks the host for no longer than its bound, whatever it waits for one after the other.
#[test]
fn random_requests_beside_an_endless_kernel() {
    let (mut served, mut refused, mut longest) = (0, 0, [Duration::ZERO; 2]);
    for seed in 0..400 {
        let all = endless::run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        served += all.served;
        refused += all.refused;
        longest = [0, 1].map(|kind| all.longest[kind].max(longest[kind]));
    }
    assert!(served > 3000 && refused > 1000, "{served} served, {refused} refused: not under pressure");
    assert!(longest.iter().all(|&took| took >= endless::BOUND), "no request came to its bound: {longest:?}");
}

fn pattern(sim: &Sim, s: &Stream<Sim>, takes: Duration, (at, bytes): (millpond::units::Addr, u64)) {
    let long = Launch::new("long").reads(at, bytes).takes(u64::try_from(takes.as_nanos()).unwrap());
    #[allow(unsafe_code, reason = "a kernel reads pinned memory")]
    // SAFETY: no reference to the bytes exists while it is queued.
    unsafe { sim.launch_anywhere(s.native(), long) }.unwrap();
}

/// The stream that is over first serves: a stream that takes seconds does not delay what another gives back in a millisecond,
/// whichever of the two was made first, device memory or pinned.
#[test]
fn a_slow_stream_keeps_no_request_from_what_another_gives_back() {
    for slow_first in [true, false] {
        let takes = if slow_first { [5000, 1] } else { [1, 5000] }.map(Duration::from_millis);
        let sim = late();
        let config = Config::default().limit(Limit::Bytes(64 * MIB)).pinned_limit(64 * MIB);
        let gpu = on(&sim, config.reuse(Reuse::Ordered).growth(Growth::Exact));
        let streams = [0; 2].map(|_| gpu.stream().unwrap());
        let t = gpu.stream().unwrap();
        let blocks = [0; 2].map(|_| gpu.alloc_pinned(32 * MIB).unwrap());
        // Kernels on one engine come one after the other: the short one is queued first.
        for n in if slow_first { [1, 0] } else { [0, 1] } {
            blocks[n].record_use(&streams[n]).unwrap();
            pattern(&sim, &streams[n], takes[n], (blocks[n].address(), blocks[n].len()));
        }
        drop(blocks);
        let before = sim.host_time();
        let p = gpu.alloc_pinned(32 * MIB).expect("the short kernel is over in a millisecond");
        let took = sim.host_time().saturating_sub(before);
        assert!(took < Duration::from_millis(4), "slow one first {slow_first}: pinned memory after {took:?}");

        let blocks = [0, 1].map(|n| gpu.alloc(32 * MIB, &streams[n]).unwrap());
        for n in if slow_first { [1, 0] } else { [0, 1] } {
            pattern(&sim, &streams[n], takes[n], (blocks[n].address(), blocks[n].len()));
        }
        drop(blocks);
        // The engine is busy with the first five seconds.
        gpu.synchronize().unwrap();
        let blocks = [0, 1].map(|n| gpu.alloc(32 * MIB, &streams[n]).unwrap());
        for n in if slow_first { [1, 0] } else { [0, 1] } {
            pattern(&sim, &streams[n], takes[n], (blocks[n].address(), blocks[n].len()));
        }
        drop(blocks);
        let before = sim.host_time();
        let x = gpu.alloc(32 * MIB, &t).expect("the short kernel is over in a millisecond");
        let took = sim.host_time().saturating_sub(before);
        assert!(took < Duration::from_millis(4), "slow one first {slow_first}: device memory after {took:?}");
        drop((x, p, t, streams));
        all_clean(&sim, gpu);
    }
}

/// Memory that a request may not wait for serves as soon as it is complete: behind an idle independent stream, or a
/// context-wide marker beside one.
#[test]
fn what_must_not_be_waited_for_is_queried() {
    for pinned in [false, true] {
        for unknown in [false, true] {
            for (streams, early) in [(1, true), (1, false), (32, true), (32, false)] {
                let sim = if early { Sim::new(GIB).schedule(Schedule::Earliest) } else { late() };
                let config = Config::default().limit(Limit::Bytes(64 * MIB)).pinned_limit(64 * MIB);
                let gpu = on(&sim, config.growth(Growth::Exact));
                let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
                let alone = [0; 32].map(|_| gpu.stream().unwrap().independent());
                let part = 64 * MIB / streams as u64;
                let blocks: Vec<_> = (0..streams).map(|_| gpu.alloc(part, &s).unwrap()).collect();
                let hosts: Vec<_> = (0..streams).map(|_| gpu.alloc_pinned(part).unwrap()).collect();
                // All but the last are used by kernels that never end.
                let gates: Vec<_> =
                    alone[..streams - 1].iter().map(|s| sim.gate(s.native()).unwrap()).collect();
                for ((x, p), alone) in blocks.into_iter().zip(hosts).zip(&alone) {
                    if unknown && streams == 1 {
                        x.free_unknown();
                    } else {
                        x.record_use(alone).unwrap();
                    }
                    p.record_use(alone).unwrap();
                }
                if !early {
                    // Who fails here has made the markers; the device comes to them when it will.
                    drop((gpu.alloc(part, &t), gpu.alloc_pinned(part)));
                    sim.run_until_idle();
                }
                let before = sim.ledger();
                if pinned {
                    gpu.alloc_pinned(part)
                        .unwrap_or_else(|e| panic!("{streams} streams, early {early}: {e}"));
                } else {
                    gpu.alloc(part, &t).unwrap_or_else(|e| {
                        panic!("{streams} streams, early {early}, unknown {unknown}: {e}")
                    });
                }
                no_unbounded_wait(&sim, &before);
                gates.into_iter().for_each(Gate::open);
                drop((s, t, alone));
                all_clean(&sim, gpu);
            }
        }
    }
}
