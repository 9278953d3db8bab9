//! One stream alone: which ranges are free, how often one was split and joined, and how old the oldest use in flight is.
//!
//! The model keeps intervals, by the addresses that the allocator gave and the segments in the events.

use super::noticed::Noticed;
use super::owners::Events;
use millpond::report::Report;
use millpond::trace::Event;
use millpond::units::{GIB, KIB, MIB};
use millpond::{Allocator, Config, Growth, Policy, Reuse, Trim};
use millpond_sim::{Schedule, Sim};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Segments and what is allocated in them, by first byte and end.
#[derive(Default)]
struct Intervals {
    segments: BTreeMap<u64, u64>,
    allocated: BTreeMap<u64, u64>,
    splits: u64,
    merges: u64,
}

impl Intervals {
    /// What is free of the segment that has this byte, with no allocation in between.
    fn free_around(&self, at: u64) -> (u64, u64) {
        let (&base, &end) = self.segments.range(..=at).next_back().expect("a segment");
        let start = self.allocated.range(..=at).next_back().map_or(base, |(_, &end)| end.max(base));
        let next = self.allocated.range(at..).next().map_or(end, |(&first, _)| first.min(end));
        (start, next)
    }
    fn hear(&mut self, event: &Event) {
        match *event {
            Event::Grow { addr, bytes, .. } => drop(self.segments.insert(addr.0, addr.0 + bytes)),
            Event::Trim { addr, bytes } => assert_eq!(self.segments.remove(&addr.0), Some(addr.0 + bytes)),
            Event::Allocate { addr, rounded, .. } => {
                let (start, end) = self.free_around(addr.0);
                assert!(start <= addr.0 && addr.0 + rounded <= end, "allocated twice");
                self.splits += u64::from(end - start > rounded);
                self.allocated.insert(addr.0, addr.0 + rounded);
            }
            Event::Free { addr, rounded, .. } => {
                assert_eq!(self.allocated.remove(&addr.0), Some(addr.0 + rounded));
                let (start, end) = self.free_around(addr.0);
                self.merges += u64::from(start < addr.0) + u64::from(end > addr.0 + rounded);
            }
            _ => panic!("one stream alone: {event:?}"),
        }
    }
    fn free(&self) -> Vec<u64> {
        let mut free = Vec::new();
        for (&base, &end) in &self.segments {
            let mut at = base;
            for (&first, &last) in self.allocated.range(base..end) {
                free.extend((first > at).then(|| first - at));
                at = last;
            }
            free.extend((end > at).then(|| end - at));
        }
        free
    }
    fn check(&self, report: &Report) {
        let (free, [p]) = (self.free(), &report.pools[..]) else { panic!("one pool") };
        assert_eq!((p.free_chunks, p.cached), (free.len() as u64, free.iter().sum()));
        assert_eq!(p.largest_free, free.iter().copied().max().unwrap_or(0));
        assert_eq!((p.counters.splits, p.counters.merges), (self.splits, self.merges));
        assert_eq!(p.reserved, self.segments.iter().map(|(base, end)| end - base).sum::<u64>());
    }
}

/// Sizes of allocations, `None` for frees, and now and then a trim.
fn steps() -> impl Strategy<Value = Vec<(Option<u64>, usize)>> {
    let bytes = prop_oneof![1..2048u64, 1..300_000u64, 1..12 * MIB];
    prop::collection::vec((prop::option::weighted(0.55, bytes), any::<usize>()), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn one_streams_ranges_splits_and_merges_are_the_models(steps in steps(), exact in any::<bool>()) {
        let events = Arc::new(Events::default());
        let growth = if exact { Growth::Exact } else { Growth::default() };
        let config = Config::default().reuse(Reuse::WithWaits).policy(Policy::Footprint).growth(growth);
        let config = config.bounded_wait(Duration::from_secs(1)).sink(events.clone());
        let gpu = Allocator::new(Sim::new(8 * GIB).schedule(Schedule::Latest), config).unwrap();
        let s = gpu.stream().unwrap();
        let (mut live, mut model) = (Vec::new(), Intervals::default());
        for (bytes, at) in steps {
            match bytes {
                Some(bytes) => live.push(gpu.alloc(bytes, &s).unwrap()),
                None if !live.is_empty() => drop(live.swap_remove(at % live.len())),
                None if at % 4 == 0 => drop(gpu.trim(Trim::All).unwrap()),
                None => {}
            }
            gpu.deliver_events();
            events.take().iter().for_each(|event| model.hear(event));
            model.check(&gpu.report());
        }
        drop((live, s));
    }
}

/// What is stated here of pinned memory and is bounded in programs of all kinds.
pub(crate) const OF_PINNED: [&str; 4] =
    ["pinned.counters.splits", "pinned.counters.merges", "pinned.free_chunks", "pinned.largest_free"];

/// What a report says of pinned memory, one segment, by so many requests and frees.
fn pinned_says(report: &Report, model: &Intervals, (asked, frees, held): (u64, u64, u64)) {
    let (p, free) = (report.pinned.as_ref().expect("it was requested"), model.free());
    assert_eq!((p.reserved, p.reserved_peak), (held, held));
    assert_eq!((p.free_chunks, p.cached), (free.len() as u64, free.iter().sum()));
    assert_eq!(p.largest_free, free.iter().copied().max().unwrap_or(0));
    let c = &p.counters;
    assert_eq!((c.splits, c.merges), (model.splits, model.merges));
    assert_eq!((c.allocations, c.frees, c.hits, c.misses), (asked, frees, asked - 1, 1));
    assert_eq!((c.host_waits, c.waits_inserted, c.migrations_in, c.migrations_out), (0, 0, 0, 0));
    assert_eq!((p.oldest_in_flight, p.in_flight_ranges), (None, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]
    /// Pinned memory, whose segments are in no event: one holds all that is live, and the first request begins it.
    #[test]
    fn the_ranges_splits_and_merges_of_pinned_memory_are_the_models(steps in steps(), zeroed in any::<bool>()) {
        let sim = Sim::new(8 * GIB).schedule(Schedule::Latest);
        let gpu = Allocator::new(sim.clone(), Config::default().scrub(zeroed)).unwrap();
        let stream = millpond::units::StreamId(0);
        let (mut live, mut model): (Vec<millpond::PinnedAllocation<Sim>>, _) = (Vec::new(), Intervals::default());
        let (mut asked, mut frees, mut held) = (0, 0, 0);
        for (bytes, at) in steps {
            match bytes {
                Some(bytes) => {
                    // With what lies between them, all have room in one segment.
                    let bytes = bytes.min(MIB);
                    if live.len() == 12 {
                        continue;
                    }
                    let x = gpu.alloc_pinned(bytes).unwrap();
                    let (addr, rounded) = (x.address(), bytes.div_ceil(512) * 512);
                    if asked == 0 {
                        held = sim.ledger().bytes_pinned;
                        model.hear(&Event::Grow { addr, bytes: held, stream });
                    }
                    let id = x.id().unwrap();
                    model.hear(&Event::Allocate { id, addr, requested: bytes, rounded, stream, hit: asked > 0 });
                    asked += 1;
                    live.push(x);
                }
                None if !live.is_empty() => {
                    let x = live.swap_remove(at % live.len());
                    let (id, addr, rounded) = (x.id().unwrap(), x.address(), x.len().div_ceil(512) * 512);
                    drop(x);
                    model.hear(&Event::Free { id, addr, rounded, stream, in_flight: false });
                    frees += 1;
                }
                None => {}
            }
            let report = gpu.report();
            if report.pinned.is_some() {
                let check = |report: &Report| pinned_says(report, &model, (asked, frees, held));
                check(&report);
                if asked % 32 == 0 {
                    let mut noticed = Noticed::default();
                    noticed.try_all(&report, check);
                    noticed.demand_of(&OF_PINNED);
                }
            }
        }
        drop(live);
    }
}

/// The age of the oldest use in flight: the markers that its stream was given since, and of several the most.
#[test]
fn the_oldest_use_in_flight_is_as_old_as_its_streams_markers_say() {
    let gpu = Allocator::new(Sim::new(GIB).schedule(Schedule::Latest), Config::default()).unwrap();
    let (s, t, u) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let used = |by: &millpond::Stream<Sim>| {
        let x = gpu.alloc(4 * KIB, &s).unwrap();
        x.record_use(by).unwrap();
        drop(x);
    };
    let oldest = || gpu.report().pools[0].oldest_in_flight;
    assert_eq!(oldest(), None);
    used(&t);
    assert_eq!(oldest(), Some(0), "no marker covers it yet");
    let mut events = Vec::new();
    for n in 1..=5 {
        events.push(t.record().unwrap());
        assert_eq!(oldest(), Some(n));
        used(&u);
        assert_eq!(gpu.report().pools[0].in_flight_ranges, 1 + n);
    }
    events.push(u.record().unwrap());
    assert_eq!(oldest(), Some(5), "u's are younger");
    assert!(gpu.report().to_string().contains("6 ranges, 24.0 KiB; the oldest use lies 5 markers back"));
    gpu.synchronize().unwrap();
    assert_eq!(oldest(), None);
}
