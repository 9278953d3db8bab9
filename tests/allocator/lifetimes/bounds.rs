//! No request waits for an independent stream, nor for the whole device. An endless kernel stands on an independent stream
//! (a collective that waits for the host), and every request returns: the simulated device counts the waits of the host
//! that could not have ended.

use crate::rig::{all_clean, late, on, write};
use millpond::units::{GIB, MIB};
use millpond::{
    Allocation, Allocator, Config, DriverErrorKind, Error, Growth, Limit, OutOfMemory, PinnedAllocation,
    Policy, Reuse, Stream, Trim,
};
use millpond_sim::{Call, Gate, Launch, Ledger, Schedule, Sim};

use std::sync::{Arc, Mutex};
use std::time::Duration;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Earliest, Schedule::Latest, Schedule::Random(1), Schedule::Random(2)];

/// Calls that wait for the whole device, or for all of a stream.
const UNBOUNDED: [Call; 4] =
    [Call::MemFree, Call::MemFreeHost, Call::CtxSynchronize, Call::StreamSynchronize];

/// Since `before`, the host waited neither for what cannot end nor for the whole device.
fn no_unbounded_wait(sim: &Sim, before: &Ledger) {
    let now = sim.ledger();
    assert_eq!(now.endless_waits, before.endless_waits, "the host waited for the endless kernel");
    for call in UNBOUNDED {
        assert_eq!(now.calls_of(call), before.calls_of(call), "a request called {}", call.name());
    }
}

/// A stream that nobody waits for, with a kernel on it that does not end by itself.
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

/// A block that nobody knows who uses is behind the endless kernel too, as far as anybody can tell. Neither does the host
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
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 0, "nobody knows that it is complete");
    gpu.synchronize().unwrap();
    drop((gpu.alloc(64 * MIB, &s).unwrap(), s, theirs));
    sim.clear_faults();
    all_clean(&sim, gpu);
}

struct Seeded(u64);

impl Seeded {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What the calls of one request take of the host beside its waits, in the simulated device's prices: pinning 128 MiB is the
/// dearest, at 65 ms.
const CALLS: Duration = Duration::from_millis(200);

/// The host's virtual time that one request takes is within its bound, and added to the longest.
fn within<X>(bound: Duration, sim: &Sim, longest: &mut Duration, request: impl FnOnce() -> X) -> X {
    let before = sim.host_time();
    let result = request();
    let took = sim.host_time().saturating_sub(before);
    assert!(took <= bound + CALLS, "a request that may block for {bound:?} took {took:?}");
    *longest = took.max(*longest);
    result
}

/// Random programs under a tight limit, device and pinned, beside the endless kernel, whose stream allocates, frees and uses
/// too, and kernels of seconds on the others: every request is served or out of memory, waits for nothing that need not end,
/// and blocks the host for no longer than its bound, whatever it waits for one after the other.
#[test]
fn random_requests_beside_an_endless_kernel() {
    let (mut served, mut refused) = (0, 0);
    let bound = Duration::from_secs(3);
    let mut longest = [Duration::ZERO; 2];
    for seed in 0..400 {
        let mut random = Seeded(seed);
        let reuse = [Reuse::WithWaits, Reuse::Ordered, Reuse::Never][random.below(3) as usize];
        let policy = [Policy::Latency, Policy::Footprint][random.below(2) as usize];
        let growth = [Growth::Exact, Growth::default()][random.below(2) as usize];
        let sim = Sim::new(GIB)
            .schedule(
                [Schedule::Earliest, Schedule::Latest, Schedule::Random(seed)][random.below(3) as usize],
            )
            .waiting_frees(random.below(3) > 0);
        let config = Config::default().reuse(reuse).policy(policy).growth(growth).bounded_wait(bound);
        let gpu = on(&sim, config.limit(Limit::Bytes(64 * MIB)).pinned_limit(128 * MIB));
        let mut streams = [0; 3].map(|_| gpu.stream().unwrap()).to_vec();
        let (alone, gate) = endless(&sim, &gpu);
        streams.push(alone);
        let mut blocks: Vec<(Allocation<Sim>, usize)> = Vec::new();
        let mut pinned: Vec<PinnedAllocation<Sim>> = Vec::new();
        let before = sim.ledger();
        let frees_wait = before.calls_of(Call::MemFree);
        for _ in 0..60 {
            let (at, s) = (random.below(4) as usize, &streams[random.below(4) as usize]);
            match random.below(8) {
                0..=2 => match is_out_of_memory(within(bound, &sim, &mut longest[0], || {
                    gpu.alloc((1 + random.below(6)) * 5 * MIB, &streams[at])
                })) {
                    Some(x) => {
                        write(&sim, &x, &streams[at]);
                        if random.below(4) == 0 {
                            let long = Launch::new("long").writes(x.address(), x.len());
                            sim.launch(streams[at].native(), long.takes(random.below(2_000) * 1_000_000))
                                .unwrap();
                        }
                        blocks.push((x, at));
                        served += 1;
                    }
                    None => refused += 1,
                },
                3 => match is_out_of_memory(within(bound, &sim, &mut longest[1], || {
                    gpu.alloc_pinned((1 + random.below(6)) * 20 * MIB)
                })) {
                    Some(p) => {
                        p.record_use(s).unwrap();
                        let read = Launch::new("read pinned").reads(p.address(), p.len());
                        sim.launch(s.native(), read).unwrap();
                        pinned.push(p);
                        served += 1;
                    }
                    None => refused += 1,
                },
                4 if !pinned.is_empty() => drop(pinned.remove(0)),
                _ if blocks.is_empty() => {}
                5 | 6 => {
                    let (x, home) = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                    // The endless one may come behind others; others behind it would be the program's own doing.
                    if home != 3 && random.below(3) == 0 {
                        streams[3].wait_stream(&streams[home]).unwrap();
                        x.record_use(&streams[3]).unwrap();
                        write(&sim, &x, &streams[3]);
                    }
                    if random.below(6) == 0 { x.free_unknown() } else { drop(x) }
                }
                _ => {
                    let (x, home) = &blocks[random.below(blocks.len() as u64) as usize];
                    if *home != 3 && at != 3 {
                        streams[at].wait_stream(&streams[*home]).unwrap();
                        x.share_with(&streams[at]).unwrap();
                        streams[*home].wait_stream(&streams[at]).unwrap();
                    }
                }
            }
            let now = sim.ledger();
            assert_eq!(now.endless_waits, 0, "seed {seed}: the host waited for the endless kernel");
            for call in UNBOUNDED {
                let gives_back =
                    call == Call::MemFree && !millpond::driver::Memory::free_waits_for_device(&sim);
                assert!(gives_back || now.calls_of(call) == frees_wait, "seed {seed}: {}", call.name());
            }
        }
        // Whoever is not independent can be waited for, however long the kernel takes.
        for s in &streams[..3] {
            s.synchronize().unwrap_or_else(|e| panic!("seed {seed}: a stream was made to wait: {e}"));
        }
        gpu.check();
        gate.open();
        drop((blocks, pinned, streams));
        all_clean(&sim, gpu);
    }
    assert!(served > 3000 && refused > 1000, "{served} served, {refused} refused: not under pressure");
    assert!(longest.iter().all(|&took| took >= bound), "no request came to its bound: {longest:?}");
}

fn pattern(sim: &Sim, s: &Stream<Sim>, takes: Duration, (at, bytes): (millpond::units::Addr, u64)) {
    let long = Launch::new("long").reads(at, bytes).takes(u64::try_from(takes.as_nanos()).unwrap());
    #[allow(unsafe_code, reason = "a kernel reads pinned memory")]
    // SAFETY: nobody has a reference to the bytes while it is queued.
    unsafe { sim.launch_anywhere(s.native(), long) }.unwrap();
}

/// Whoever is over first serves: a stream that takes seconds keeps nobody from what another gives back in a millisecond,
/// whichever of the two was made first, device memory or pinned.
#[test]
fn a_slow_stream_keeps_nobody_from_what_another_gives_back() {
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
fn what_may_not_be_waited_for_is_asked_about() {
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
