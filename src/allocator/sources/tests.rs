//! Which pools a miss looks at: none that could serve is left out, and few others are looked at.

use super::{Candidates, Class, MigrationSources, QUERIED};
use crate::allocator::registry::CONTEXT;
use crate::allocator::{Allocation, Allocator, Config, Growth, Limit, Pool, Reuse, Stream, Trim};
use crate::driver::Driver;
use crate::heap::{ChunkState, Kind};
use crate::order::Clock;
use crate::sync::Arc;
use crate::units::{Epoch, GIB, GRANULE_BYTES, Granules, KIB, MIB};
use millpond_sim::null::Null;
use millpond_sim::{Launch, Schedule, Sim};
use std::collections::BTreeSet;

fn allocator(config: Config) -> Allocator<Null> {
    Allocator::new(Null::default(), config).unwrap()
}

/// Pools that a request of `bytes` would look at.
fn candidates<D: Driver>(gpu: &Allocator<D>, bytes: u64) -> usize {
    let kinds = if bytes <= gpu.core().small_bytes { &Kind::ALL[..1] } else { &Kind::ALL };
    let len = u32::try_from(bytes / GRANULE_BYTES).unwrap();
    let found = gpu.core().sources.of(kinds, len, CONTEXT, &Clock::EMPTY);
    let aside = found.in_order.len() + found.to_query.len();
    aside + with_enough(&gpu.core().sources, found).len()
}

/// Those of them whose bound is high enough.
fn with_enough(sources: &MigrationSources, found: Candidates) -> BTreeSet<u32> {
    let mut all: BTreeSet<u32> = found.first.into_iter().collect();
    for mut page in found.more {
        loop {
            let next = sources.next(&mut page);
            if next.is_empty() {
                break;
            }
            all.extend(next);
        }
    }
    all
}

#[test]
fn eight_classes_to_a_power_of_two_and_the_longer_is_in_no_lower_one() {
    let of = |len| Class::of(len).0;
    assert_eq!(
        [1, 2, 3, 4, 8, 9, 15, 16, 17, 18, u32::MAX].map(of),
        [0, 8, 12, 16, 24, 25, 31, 32, 32, 33, 255]
    );
    assert!((1..5000).all(|len| of(len) <= of(len + 1)));
    assert!((1..5000).all(|len| of(Class::high(len)) == of(len) && of(Class::high(len) + 1) > of(len)));
    assert_eq!(Class::high(u32::MAX), u32::MAX);
}

/// Pools looked at by one allocation on each of `streams` streams, all of which stay live.
fn looked_at(config: Config, streams: usize, bytes: u64) -> usize {
    let gpu = allocator(config);
    let streams: Vec<_> = (0..streams).map(|_| gpu.stream().unwrap()).collect();
    let (mut kept, mut looked_at) = (Vec::new(), 0);
    for stream in &streams {
        looked_at += candidates(&gpu, bytes);
        kept.push(gpu.alloc(bytes, stream).unwrap());
    }
    gpu.check();
    looked_at
}

/// With twice the streams, twice as many pools are looked at in all, not each by each. A pool is looked at if its bound
/// was too high, once, or if it has something left of a segment.
#[test]
fn a_miss_looks_at_pools_that_may_serve_and_at_few_others() {
    let shared = Config::default;
    let exact = || Config::default().growth(Growth::Exact);
    for (config, bytes) in [(exact(), 512), (exact(), 3 * MIB), (shared(), 512), (shared(), 3 * MIB)] {
        let all = [500, 1000, 2000].map(|streams| looked_at(config.clone(), streams, bytes));
        assert!(all[0] > 0, "no pool was looked at: the count counts nothing");
        for (few, many) in [(all[0], all[1]), (all[1], all[2])] {
            assert!(
                4 * many <= 9 * few,
                "{bytes} bytes: {few} pools looked at, and {many} with twice the streams"
            );
        }
    }
}

/// If the pool may not grow, it looks at all of them before it waits for one.
#[test]
fn the_one_of_many_that_is_in_order_is_found() {
    for which in [0, 1, 63, 64, 99] {
        let sim = Sim::new(100 * 4 * MIB).schedule(Schedule::Latest);
        let gpu = Allocator::new(sim, Config::default().growth(Growth::Exact)).unwrap();
        let streams: Vec<_> = (0..100).map(|_| gpu.stream().unwrap()).collect();
        for stream in &streams {
            drop(gpu.alloc(4 * MIB, stream).unwrap());
        }
        let stream = gpu.stream().unwrap();
        stream.wait_stream(&streams[which]).unwrap();
        drop(gpu.alloc(4 * MIB, &stream).unwrap());
        let report = gpu.report();
        assert_eq!(report.total.counters.waits_inserted, 0, "stream {which}");
        assert_eq!(report.total.counters.migrations_in, 1, "stream {which}");
        gpu.check();
    }
}

/// Random programs: whatever was allocated, freed, migrated, trimmed or reported, the candidates are those that a look at every
/// pool finds, and every pool is listed at its bound ([`Allocator::check`]).
#[test]
fn the_candidates_are_those_that_a_look_at_every_pool_finds() {
    let mut seed = 13_u64;
    let mut below = move |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    for _ in 0..40 {
        let gpu = allocator(Config::default());
        let mut streams: Vec<Stream<Null>> = (0..6).map(|_| gpu.stream().unwrap()).collect();
        let mut live: Vec<Allocation<Null>> = Vec::new();
        for _ in 0..200 {
            let on = below(streams.len());
            match below(12) {
                0..=4 => {
                    let bytes = [512, 3 * KIB, 60 * KIB, 300 * KIB, 5 * MIB][below(5)];
                    live.push(gpu.alloc(bytes, &streams[on]).unwrap());
                }
                5..=7 if !live.is_empty() => drop(live.swap_remove(below(live.len()))),
                8 if !live.is_empty() => live[below(live.len())].record_use(&streams[on]).unwrap(),
                9 => streams[on] = gpu.stream().unwrap(),
                10 => drop(gpu.report()),
                11 if below(4) == 0 => drop(gpu.trim(Trim::All).unwrap()),
                _ => gpu.synchronize().unwrap(),
            }
            gpu.check();
            let longest = 1 << below(16);
            let wanted = 1 + below(longest) as u32;
            for kinds in [&Kind::ALL[..1], &Kind::ALL[1..], &Kind::ALL] {
                let found = gpu.core().sources.of(kinds, wanted, CONTEXT, &Clock::EMPTY);
                let found = with_enough(&gpu.core().sources, found);
                let pools = gpu.core().pool_list();
                let may =
                    |pool: &&Arc<Pool<Null>>| kinds.iter().any(|&kind| pool.longest_hint(kind) >= wanted);
                let right: BTreeSet<u32> = pools.iter().filter(may).map(|pool| pool.number).collect();
                assert_eq!(found, right, "for {wanted} granules");
            }
        }
    }
}

/// An allocator on a simulated device that runs nothing by itself, and streams on each of which something was allocated and freed.
/// All of it is pending, and no stream is ordered after it.
fn pending(streams: usize) -> (Sim, Allocator<Sim>, Vec<Stream<Sim>>) {
    let sim = Sim::new(4 * GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default().growth(Growth::Exact)).unwrap();
    let streams: Vec<_> = (0..streams).map(|_| gpu.stream().unwrap()).collect();
    for stream in &streams {
        let allocation = gpu.alloc(3 * MIB, stream).unwrap();
        sim.launch(stream.native(), Launch::new("write").writes(allocation.address(), 512)).unwrap();
        drop(allocation);
    }
    gpu.check();
    (sim, gpu, streams)
}

/// What an allocation on a stream did: growths, and ranges migrated.
fn served<D: Driver>(gpu: &Allocator<D>, stream: &Stream<D>) -> (u64, u64) {
    let before = gpu.report();
    let allocation = gpu.alloc(3 * MIB, stream).unwrap();
    let after = gpu.report();
    gpu.check();
    core::mem::forget(allocation);
    let (a, b) = (&after.total.counters, &before.total.counters);
    (after.growths - before.growths, a.migrations_in - b.migrations_in)
}

/// What is pending on thousands of streams is looked at once, and not again by each of them.
#[test]
fn with_twice_the_streams_twice_as_many_pending_pools_are_looked_at() {
    let looked_at = |streams: usize| {
        let gpu = allocator(Config::default());
        let (mut kept, mut looked_at) = (Vec::new(), 0);
        for _ in 0..streams {
            let stream = gpu.stream().unwrap();
            looked_at += candidates(&gpu, MIB);
            drop(gpu.alloc(MIB, &stream).unwrap());
            kept.push(stream);
        }
        gpu.check();
        assert_eq!(gpu.report().growths, streams as u64, "nothing is known to be complete");
        looked_at
    };
    let all = [500, 1000, 2000].map(looked_at);
    assert!(all[0] > 500, "those of the first few pools, again and again: {all:?}");
    for (few, many) in [(all[0], all[1]), (all[1], all[2])] {
        assert!(4 * many <= 9 * few, "{few} pools looked at, and {many} with twice the streams");
    }
}

#[test]
fn a_pool_that_stands_aside_comes_back_when_its_memory_is_complete() {
    for which in [0, 40, 199] {
        let (_, gpu, streams) = pending(200);
        let late = gpu.stream().unwrap();
        assert_eq!(served(&gpu, &late), (1, 0), "all of it is pending");
        assert_eq!(candidates(&gpu, 3 * MIB), 0, "all stand aside");
        streams[which].synchronize().unwrap();
        assert_eq!(candidates(&gpu, 3 * MIB), 1, "stream {which} alone has moved on");
        assert_eq!(served(&gpu, &late), (0, 1), "what is complete serves, stream {which}");
        assert_eq!(served(&gpu, &late), (1, 0), "and nothing else does");
    }
}

/// All have markers and were looked at since, so that nothing brings them back; a few of them are queried, each time others.
#[test]
fn a_pool_that_stands_aside_is_found_by_a_stream_in_order_behind_it() {
    for which in [0, 40, 199] {
        let (_, gpu, streams) = pending(200);
        let (behind_all, late) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let events: Vec<_> = streams.iter().map(|stream| stream.record().unwrap()).collect();
        assert_eq!(served(&gpu, &late), (1, 0), "all of it is pending");
        late.wait(&events[which]).unwrap();
        assert_eq!(served(&gpu, &late), (0, 1), "stream {which}");
        assert_eq!(served(&gpu, &late), (1, 0), "no other one");
        for event in &events {
            behind_all.wait(event).unwrap();
        }
        assert_eq!([served(&gpu, &behind_all), served(&gpu, &behind_all)], [(0, 1); 2]);
    }
}

/// A stream is ordered after itself: also after what its earlier pool has, which closed while the stream was still in use.
#[test]
fn what_a_streams_former_pool_has_is_its_own() {
    let (sim, gpu, streams) = pending(100);
    let native = sim.stream().unwrap();
    let first = gpu.adopt(native.clone()).unwrap();
    drop(gpu.alloc(6 * MIB, &first).unwrap());
    let elsewhere = gpu.alloc(MIB, &streams[0]).unwrap();
    elsewhere.record_use(&first).unwrap();
    drop(first);
    let late = gpu.stream().unwrap();
    assert_eq!(served(&gpu, &late), (1, 0), "all of it is pending");
    let again = gpu.adopt(native).unwrap();
    assert_eq!(served(&gpu, &again), (0, 1), "what its former pool has");
    drop(elsewhere);
}

/// The program never synchronises: a marker is made, its work ends, and a miss queries it.
#[test]
fn a_pool_that_stands_aside_is_queried_once_it_has_a_marker() {
    let (sim, gpu, streams) = pending(200);
    let late = gpu.stream().unwrap();
    assert_eq!(served(&gpu, &late), (1, 0), "all of it is pending");
    let witness = gpu.stream().unwrap();
    for stream in &streams[20..40] {
        witness.wait_stream(stream).unwrap();
    }
    // Not complete: queried in vain, and again once it is complete.
    for _ in 0..10 {
        assert_eq!(served(&gpu, &late), (1, 0));
    }
    assert!(sim.run_until_idle());
    let migrated: u64 = (0..10).map(|_| served(&gpu, &late).1).sum();
    assert_eq!(migrated, 10, "of twenty that are done");
}

/// A range that is complete enters the pool: here one that returns from another stream's use.
#[test]
fn a_pool_that_stands_aside_comes_back_when_something_complete_enters_it() {
    let (_, gpu, streams) = pending(100);
    let (home, user) = (&streams[50], &streams[51]);
    let allocation = gpu.alloc(6 * MIB, home).unwrap();
    allocation.record_use(user).unwrap();
    drop(allocation);
    let late = gpu.stream().unwrap();
    assert_eq!(served(&gpu, &late), (1, 0), "all of it is pending");
    home.synchronize().unwrap();
    user.synchronize().unwrap();
    // Both streams' first ranges, and the one in flight once its home pool has drained it.
    assert_eq!([served(&gpu, &late), served(&gpu, &late), served(&gpu, &late)], [(0, 1), (0, 1), (1, 0)]);
    drop(gpu.alloc(9 * MIB, home).unwrap());
    assert_eq!(served(&gpu, &late), (0, 1), "what was in flight");
}

/// At the limit some stream has to be waited for: one of a hundred, and one of those that have enough.
#[test]
fn at_the_limit_one_of_many_is_waited_for() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let config =
        Config::default().growth(Growth::Exact).reuse(Reuse::WithWaits).limit(Limit::Bytes(300 * MIB));
    let gpu = Allocator::new(sim, config).unwrap();
    let streams: Vec<_> = (0..100).map(|_| gpu.stream().unwrap()).collect();
    for (i, stream) in streams.iter().enumerate() {
        drop(gpu.alloc(if i % 2 == 0 { MIB } else { 5 * MIB }, stream).unwrap());
    }
    let late = gpu.stream().unwrap();
    for n in 1..=20 {
        assert_eq!(served(&gpu, &late), (0, 1));
        assert_eq!(gpu.report().total.counters.waits_inserted, n, "one wait for each");
    }
}

/// What a look at some of a heap's ranges finds holds for all of them, for every length.
#[test]
fn a_look_at_some_ranges_bounds_all() {
    let (_, gpu, streams) = pending(3);
    let stream = &streams[1];
    let mut blocks: Vec<_> = (1..=60).map(|n| gpu.alloc(n * 50 * KIB, stream).unwrap()).collect();
    for (n, block) in core::mem::take(&mut blocks).into_iter().enumerate() {
        match n {
            30 => stream.synchronize().unwrap(),
            // A marker: what is freed next has another stamp.
            36 | 42 | 54 => drop(stream.record().unwrap()),
            _ => {}
        }
        if n % 2 == 0 { drop(block) } else { blocks.push(block) }
    }
    let state = stream.pool().lock();
    let complete = stream.timeline().seen();
    let segments = state.heap.snapshot().segments.into_iter().filter(|s| s.kind == Kind::Large);
    let free: Vec<_> = segments.flat_map(|s| s.ranges).filter(|r| r.state == ChunkState::Free).collect();
    assert!(free.iter().any(|r| r.stamp <= complete), "some is complete");
    let stamps: BTreeSet<Epoch> = free.iter().map(|r| r.stamp).filter(|&s| s > complete).collect();
    assert!(stamps.len() > 3, "what is pending has stamps of several markers: {stamps:?}");
    let longest = free.iter().filter(|r| r.stamp <= complete).map(|r| r.len).max();
    let least_of = |len: Granules| {
        let of = free.iter().filter(|r| r.stamp > complete && r.len >= len).map(|r| r.stamp);
        of.min().unwrap_or(Epoch(u64::MAX))
    };
    for steps in 0..80 {
        let ripe = state.heap.ripe(Kind::Large, steps, complete);
        assert!(Some(ripe.longest) >= longest, "{steps} steps: {ripe:?}");
        assert!(free.iter().all(|r| r.len <= ripe.longest || r.stamp > complete), "{steps} steps: {ripe:?}");
        for len in (ripe.longest.0 + 1..6 << 10).map(Granules) {
            let least = ripe.least(len);
            assert!(least <= least_of(len), "{steps} steps, {len:?}: {ripe:?}");
            // A bin is at most a sixteenth wider than its shortest range.
            assert!(least >= least_of(Granules(len.0 - len.0 / 16 - 1)), "{steps} steps, {len:?}: {ripe:?}");
        }
    }
    assert_eq!(Some(state.heap.ripe(Kind::Large, 80, complete).longest), longest, "all were looked at");
}

/// What is left of large segments does not concern requests for small ranges.
#[test]
fn small_requests_do_not_look_at_what_large_segments_have() {
    let gpu = allocator(Config::default());
    let streams: Vec<_> = (0..200).map(|_| gpu.stream().unwrap()).collect();
    let kept: Vec<_> = streams.iter().map(|stream| gpu.alloc(15 * MIB, stream).unwrap()).collect();
    assert!(candidates(&gpu, 3 * MIB) >= 100, "large ones look at what is left of large segments");
    assert_eq!(candidates(&gpu, 512), 0);
    let small = gpu.alloc(512, &streams[7]).unwrap();
    assert_eq!(candidates(&gpu, 512), 1, "what is left of a small segment");
    gpu.check();
    drop((kept, small));
}

/// A stream that is ordered after some memory of thousands of others does not look at them for what it is not ordered after.
#[test]
fn a_stream_in_order_behind_short_ranges_does_not_look_for_long_ones() {
    let (_, gpu, streams) = pending(200);
    let behind_all = gpu.stream().unwrap();
    let long: Vec<_> = streams.iter().map(|stream| gpu.alloc(6 * MIB, stream).unwrap()).collect();
    for stream in &streams {
        behind_all.wait_stream(stream).unwrap();
    }
    drop(long);
    let in_order = |bytes: u64| {
        let len = u32::try_from(bytes / GRANULE_BYTES).unwrap();
        let clock = behind_all.timeline().clock();
        gpu.core().sources.of(&Kind::ALL, len, behind_all.timeline().id, &clock).in_order.len()
    };
    let late = gpu.stream().unwrap();
    assert_eq!(served(&gpu, &late), (1, 0), "all of it is pending, and all that was looked at stands aside");
    assert_eq!((in_order(3 * MIB), in_order(6 * MIB)), (200, 0));
    assert_eq!(served(&gpu, &behind_all), (0, 1));
    gpu.check();
}

/// What is kept of pools that were looked at in vain, with streams that come and go: at most two places for each existing pool,
/// one a kind; and of notices of progress, read or not, one for each time that a pool was set aside since the last miss.
#[test]
fn what_is_remembered_of_others_is_bounded_by_the_pools_there_are() {
    let sim = Sim::new(4 * GIB).schedule(Schedule::Latest);
    let gpu =
        Allocator::new(sim.clone(), Config::default().look_at_each_of(1).growth(Growth::Exact)).unwrap();
    let mut seed = 5_u64;
    let mut below = move |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    let mut streams: Vec<_> = (0..12).map(|_| gpu.stream().unwrap()).collect();
    let (mut max_pools, mut max_aside, mut max_progressed, mut made) = (0, 0, 0, 12);
    for _ in 0..6000 {
        let on = below(streams.len());
        match below(10) {
            0..=4 => {
                let block = gpu.alloc([4 * KIB, 60 * KIB, MIB, 3 * MIB][below(4)], &streams[on]).unwrap();
                sim.launch(streams[on].native(), Launch::new("write").writes(block.address(), 512)).unwrap();
            }
            5 => {
                streams[on] = gpu.stream().unwrap();
                made += 1;
            }
            6 => drop(streams[on].record().unwrap()),
            7 => streams[on].wait_stream(&streams[below(streams.len())]).unwrap(),
            8 => streams[on].synchronize().unwrap(),
            _ if below(20) == 0 => drop(gpu.trim(Trim::All).unwrap()),
            _ => drop(sim.advance(streams[on].native()).unwrap()),
        }
        gpu.check();
        let core = gpu.core();
        let (pools, sources) = (core.pool_list().len(), &core.sources);
        max_pools = max_pools.max(pools);
        let orders = sources.kinds.lock();
        for order in orders.iter() {
            assert!(order.aside.len() <= pools, "{} places of {pools} pools", order.aside.len());
            assert!(order.aside.classes() <= 256, "eight classes to each of 32 powers of two");
            max_aside = max_aside.max(order.aside.len());
        }
        drop(orders);
        let unnotified: usize =
            core.registry.timelines().iter().map(|timeline| timeline.listeners.len()).sum();
        max_progressed = max_progressed.max(sources.progressed.len() + unnotified);
    }
    assert!(made > 5 * max_pools, "{made} pools came and went, {max_pools} at once");
    assert!(max_aside > 4 && max_progressed > 4, "no pool stood aside: {max_aside}, {max_progressed}");
    assert!(
        max_progressed <= 2 * max_pools,
        "{max_progressed} notices of progress, of {max_pools} pools at most"
    );
}

/// A search looks at a pool's first ranges, however many it has: each look in vain sees more of them, and then the pool stands
/// aside.
#[test]
fn a_pool_with_many_pending_ranges_stands_aside_after_some_looks() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default().growth(Growth::Exact)).unwrap();
    let streams: Vec<_> = (0..70).map(|_| gpu.stream().unwrap()).collect();
    // One is longer than the others: to know that it is pending is not enough.
    let sizes = |n| if n == 0 { 64 * KIB } else { 4 * KIB };
    let of_each = |stream| (0..100).map(|n| gpu.alloc(sizes(n), stream).unwrap()).collect();
    let blocks: Vec<Vec<_>> = streams.iter().map(of_each).collect();
    for (stream, blocks) in streams.iter().zip(&blocks) {
        sim.launch(stream.native(), Launch::new("write").writes(blocks[0].address(), 512)).unwrap();
    }
    drop(blocks);
    let late = gpu.stream().unwrap();
    let mut kept = Vec::new();
    let looked_at = [(); 4].map(|()| {
        let before = candidates(&gpu, 4 * KIB);
        kept.push(gpu.alloc(4 * KIB, &late).unwrap());
        gpu.check();
        before
    });
    // Then its own, of which it does not know yet that nothing is left, and those to be queried.
    let [first, second, rest @ ..] = looked_at;
    assert!(first == 70 && second >= 70 && rest.iter().all(|&n| n <= 1 + QUERIED), "{looked_at:?}");
}
