//! What is kept, as a formula of what is alive and pending, after every step of random programs: docs/kept.md.

use crate::rig::{all_clean, on};
use millpond::units::{GIB, KIB};
use millpond::{Allocation, Config, Event, Reuse, Stream, Trim};
use millpond_sim::{Launch, Schedule, Sim};
use std::collections::{BTreeMap, BTreeSet};

/// A small seeded generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Streams that wait for each other, for events of streams that are gone too: a clock names at most the timelines that there are.
#[test]
fn a_clock_names_no_more_streams_than_there_are() {
    for seed in 0..20 {
        let (sim, mut dice) = (Sim::new(GIB).schedule(Schedule::Latest), Dice(seed));
        let gpu = on(&sim, Config::default());
        let mut streams: Vec<Stream<Sim>> = (0..6).map(|_| gpu.stream().unwrap()).collect();
        let (mut events, mut met): (Vec<Event<Sim>>, BTreeSet<_>) = (Vec::new(), BTreeSet::new());
        let mut most = 0;
        for _ in 0..1500 {
            let (one, other) = (dice.below(6), dice.below(6));
            match dice.below(12) {
                0..=3 => streams[one].wait_stream(&streams[other]).unwrap(),
                4 => events.push(streams[one].record().unwrap()),
                5 if !events.is_empty() => streams[one].wait(&events[dice.below(events.len())]).unwrap(),
                6 if events.len() > 20 => drop(events.swap_remove(dice.below(events.len()))),
                7 | 8 => streams[one] = gpu.stream().unwrap(),
                9 => sim.launch(streams[one].native(), Launch::new("work")).unwrap(),
                10 if dice.below(2) == 0 => gpu.synchronize().unwrap(),
                11 if dice.below(2) == 0 => drop(gpu.trim(Trim::All).unwrap()),
                _ => drop(sim.advance(streams[one].native()).unwrap()),
            }
            met.extend(streams.iter().map(Stream::id));
            let b = gpu.bookkeeping();
            assert!(
                b.clock_entries <= b.timelines * b.timelines,
                "seed {seed}: {} entries in the clocks of {} timelines",
                b.clock_entries,
                b.timelines
            );
            most = most.max(b.timelines);
        }
        assert!(met.len() > 3 * most, "{} streams came and went, {most} timelines at once", met.len());
        drop((streams, events));
        all_clean(&sim, gpu);
    }
}

/// A pool has as many places for uses as it had allocations with uses at one time, whatever came and went.
#[test]
fn a_pool_has_as_many_places_for_uses_as_were_needed_at_once() {
    for seed in 0..20 {
        let (sim, mut dice) = (Sim::new(GIB), Dice(seed));
        let gpu = on(&sim, Config::default());
        let (s, t, u) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
        // Those with uses, and how many there are of each.
        let mut live: Vec<(Allocation<Sim>, BTreeSet<u64>)> = Vec::new();
        let (mut most, mut ever) = (0, 0);
        for _ in 0..1500 {
            match dice.below(8) {
                0..=2 if live.len() < 24 => live.push((gpu.alloc(4 * KIB, &s).unwrap(), BTreeSet::new())),
                3 | 4 if !live.is_empty() => {
                    let (at, by) = (dice.below(live.len()), if dice.below(2) == 0 { &t } else { &u });
                    let (x, uses) = &mut live[at];
                    ever += usize::from(uses.is_empty());
                    x.record_use(by).unwrap();
                    uses.insert(by.id().0);
                }
                0..=2 | 5 | 6 if !live.is_empty() => drop(live.swap_remove(dice.below(live.len()))),
                _ => gpu.synchronize().unwrap(),
            }
            most = most.max(live.iter().filter(|(_, uses)| !uses.is_empty()).count());
            let b = gpu.bookkeeping();
            assert_eq!(b.use_slots, most, "seed {seed}");
            assert_eq!(b.uses, live.iter().map(|(_, uses)| uses.len()).sum::<usize>(), "seed {seed}");
        }
        assert!(ever > 5 * most, "{ever} allocations had uses, {most} at once");
        drop((live, s, t, u));
        all_clean(&sim, gpu);
    }
}

/// Forgotten guards are one use a stream and kind, until the whole is written behind them.
#[test]
fn a_write_to_the_whole_ends_forgotten_guards() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = on(&sim, Config::default());
    let (home, t, u) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut x = gpu.zeros::<f32>(256, &home).unwrap();
    for whole_on in [&home, &u] {
        for _ in 0..100 {
            let guard = x.read_on(&t).unwrap();
            let (at, bytes) = (guard.address(), 1024);
            sim.launch(t.native(), Launch::new("reads").reads(at, bytes)).unwrap();
            core::mem::forget(guard);
        }
        core::mem::forget(x.view_mut().split_at(128).0.write_on(&t).unwrap());
        assert_eq!(gpu.bookkeeping().uses, 2, "a read and a write");
        // Behind all that the guards' stream holds: the oracle would say so if not.
        let guard = x.write_on(whole_on).unwrap();
        let (at, bytes) = (guard.address(), 1024);
        sim.launch(whole_on.native(), Launch::new("writes").writes(at, bytes)).unwrap();
        drop(guard);
        assert_eq!(gpu.bookkeeping().uses, usize::from(whole_on.id() != home.id()), "its own, if elsewhere");
    }
    drop((x, home, t, u));
    all_clean(&sim, gpu);
}

/// A guard that is forgotten is one use, and its stream's timeline, until the free or the stream's end: neither fewer, since nothing shows
/// when its work was queued, nor more.
#[test]
fn forgotten_guards_are_one_use_a_stream_until_its_end() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default());
    let home = gpu.stream().unwrap();
    let mut arrays: BTreeMap<usize, _> = (0..3).map(|n| (n, gpu.zeros::<f32>(256, &home).unwrap())).collect();
    let before = gpu.bookkeeping();
    let mut streams = Vec::new();
    for n in 0..30 {
        let t = gpu.stream().unwrap();
        for _ in 0..10 {
            core::mem::forget(arrays[&(n % 3)].read_on(&t).unwrap());
        }
        streams.push(t);
        assert_eq!(gpu.bookkeeping().uses, n + 1);
    }
    for n in 0..5000 {
        // Of streams that go at once: what they held is known by then.
        core::mem::forget(arrays[&(n % 3)].read_on(&gpu.stream().unwrap()).unwrap());
        let b = gpu.bookkeeping();
        assert!(b.uses <= 3 * 64 && b.timelines <= before.timelines + 3 * 64, "{b:?}");
    }
    drop(streams);
    for n in 0..1000 {
        core::mem::forget(arrays[&(n % 3)].read_on(&gpu.stream().unwrap()).unwrap());
    }
    gpu.synchronize().unwrap();
    let b = gpu.bookkeeping();
    assert!(b.uses <= 3 * 64, "{b:?}");
    for left in (0..3).rev() {
        drop(arrays.remove(&left));
        gpu.synchronize().unwrap();
        let uses = gpu.bookkeeping().uses;
        assert!(
            (uses == 0) == (left == 0) && uses <= 100 * left,
            "the free ends those of its array, and no other's: {uses}"
        );
    }
    gpu.trim(Trim::All).unwrap();
    let after = gpu.bookkeeping();
    assert_eq!(
        (after.timelines, after.pools),
        (before.timelines, before.pools),
        "their streams are over too"
    );
    drop(home);
    all_clean(&sim, gpu);
}

/// Where pools keep what they took, what streams took that are gone serves others; what a stream holds that lives does not.
#[test]
fn streams_that_come_and_go_take_no_more_where_pools_keep_what_they_took() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default().reuse(Reuse::Never));
    let stays = gpu.stream().unwrap();
    drop(gpu.alloc(4 * KIB, &stays).unwrap());
    for n in 0..2000 {
        let s = gpu.stream().unwrap();
        drop(gpu.alloc(4 * KIB + n % 7 * 512, &s).unwrap());
        drop(gpu.alloc(3 << 20, &s).unwrap());
        if n % 50 == 0 {
            s.synchronize().unwrap();
        }
    }
    let report = gpu.report();
    assert!(report.reserved_peak <= 64 * (22 << 20), "{report}");
    let kept = report.pools.iter().find(|p| p.stream == Some(stays.id())).expect("its pool");
    assert_eq!((kept.reserved, kept.cached), (2 << 20, 2 << 20), "{report}");
    drop(stays);
    all_clean(&sim, gpu);
}
