//! What counts as a hit, and that the counts of a pool agree with each other, through the public verbs.

use millpond::allocator::VirtualMemory;
use millpond::trace::Sink;
use millpond::units::{GIB, KIB, MIB};
use millpond::{
    Allocation, Allocator, Config, DeviceArray, Event, Growth, PinnedAllocation, Policy, Reuse, Stream,
};
use millpond_sim::null::Null;
use millpond_sim::{Call, Launch, Ledger, Schedule, Sim, SimStream};
use std::any::Any;
use std::sync::Arc;

fn gpu() -> (Allocator<Null>, Stream<Null>) {
    let gpu = Allocator::new(Null::default(), Config::default()).unwrap();
    let stream = gpu.stream().unwrap();
    (gpu, stream)
}

/// Replays of recorded traces once spent nine misses in ten here: small requests took from large free space, each by a
/// climb to the first rung of the ladder. Now they grow a small segment once, and are hits.
#[test]
fn small_requests_beside_large_free_space_miss_once() {
    let (gpu, stream) = gpu();
    drop(gpu.alloc(20 * MIB, &stream).unwrap());
    let before = gpu.report();
    let small: Vec<_> = (0..100).map(|_| gpu.alloc(4 * KIB, &stream).unwrap()).collect();
    let aligned = gpu.alloc_aligned(4 * KIB, 64 * KIB, &stream).unwrap();
    assert!(aligned.address().0.is_multiple_of(64 * KIB));
    let after = gpu.report();
    assert_eq!(after.total.counters.misses - before.total.counters.misses, 1);
    assert_eq!(after.total.counters.hits - before.total.counters.hits, 100);
    assert_eq!(after.ladder.grow.served - before.ladder.grow.served, 1);
    assert_eq!(after.reserved - before.reserved, 2 * MIB, "the pool grew a small segment");
    gpu.check();
    drop((small, aligned));
    gpu.check();
    assert_eq!(gpu.report().total.free_chunks, 2, "all merged again");
}

/// A large request that a small segment has room for is no hit, and costs no driver call either, though something is due and something kept.
#[test]
fn large_requests_in_small_segments_call_the_driver_for_nothing() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let small = gpu.alloc(4 * KIB, &s).unwrap();
    let mut x = gpu.uninit::<u8>(4096, &t).unwrap();
    drop(x.copy_from(Arc::new(gpu.pinned_from_fn(4096, |i| i as u8).unwrap()), &t).unwrap());
    assert_eq!(gpu.bookkeeping().kept, 1);
    let (reserved, before) = (gpu.report().reserved, sim.ledger());
    for _ in 0..100 {
        drop(gpu.alloc(300 * KIB, &s).unwrap());
    }
    assert_eq!(calls_between(&before, &sim.ledger()), []);
    assert_eq!(gpu.report().reserved, reserved);
    drop((small, x, s, t, gpu));
    sim.verdict().unwrap();
}

/// Under `footprint` a small segment is refused once it would be more than the slack: large space serves, and not by a climb for each request.
#[test]
fn small_requests_that_growth_is_refused_to_climb_no_ladder() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let config = Config::default().policy(Policy::Footprint).virtual_memory(VirtualMemory::Always);
    let gpu = Allocator::new(sim.clone(), config).unwrap();
    let stream = gpu.stream().unwrap();
    // A hundredth of 64 MiB is no unit of 2 MiB.
    drop(gpu.alloc(64 * MIB, &stream).unwrap());
    let (before, calls) = (gpu.report(), sim.ledger());
    let small: Vec<_> = (0..100).map(|_| gpu.alloc(4 * KIB, &stream).unwrap()).collect();
    let after = gpu.report();
    assert_eq!(after.reserved, before.reserved);
    assert_eq!(after.total.counters.misses - before.total.counters.misses, 100);
    assert_eq!(after.ladder.poll.served - before.ladder.poll.served, 100);
    assert_eq!(after.ladder.grow.tried, before.ladder.grow.tried);
    assert_eq!(calls_between(&calls, &sim.ledger()), []);
    gpu.check();
    drop((small, stream, gpu));
    sim.verdict().unwrap();
}

/// A pool keeps few counts and computes the others from them: they have to agree whatever was done.
#[test]
fn the_counts_agree() {
    let (gpu, stream) = gpu();
    let other = gpu.stream().unwrap();
    let mut live = Vec::new();
    let mut requested = 0;
    for i in 0..500_u64 {
        let bytes = 1 + i * 7919 % (3 * MIB);
        requested += bytes;
        live.push(gpu.alloc(bytes, &stream).unwrap());
        if i % 3 == 1 {
            let block = live.swap_remove((i * 31) as usize % live.len());
            if i % 2 == 0 {
                block.record_use(&other).unwrap();
            }
        }
    }
    let report = gpu.report();
    let (total, counters) = (&report.total, &report.total.counters);
    assert_eq!(counters.allocations, 500);
    assert_eq!(counters.frees, 500 - live.len() as u64);
    assert_eq!(total.live, live.len() as u64);
    assert_eq!(counters.hits + counters.misses, 500, "every request was served, once");
    assert_eq!(counters.bytes_served, requested);
    assert_eq!(gpu.usage().allocated, requested);
    assert_eq!(total.sizes.total(), 500);
    assert_eq!(total.requested, live.iter().map(millpond::Allocation::len).sum::<u64>());
    assert_eq!(total.allocated, live.iter().map(|a| a.len().next_multiple_of(512)).sum::<u64>());
    assert!(counters.in_flight_frees > 0, "some frees had a cross-stream use");
    assert!(
        total.allocated_peak >= total.allocated
            && total.reserved == total.allocated + total.cached + total.in_flight
    );
    gpu.check();
    let peak = total.allocated_peak;
    live.clear();
    assert_eq!(gpu.report().total.allocated_peak, peak);
    gpu.reset_peaks();
    assert_eq!(gpu.report().total.allocated_peak, 0);
    assert_eq!(gpu.report().total.live, 0);
}

/// The longest request of a bin, one more, and one less: the histogram of sizes is that of the report.
#[test]
fn sizes_are_counted_by_power_of_two() {
    let (gpu, stream) = gpu();
    for bytes in [1, 512, 513, 1024, 1025, 2048, 2049, MIB, MIB + 1] {
        drop(gpu.alloc(bytes, &stream).unwrap());
    }
    let sizes = gpu.report().total.sizes;
    let mut expected = millpond::report::Histogram::default();
    for granules in [1, 1, 2, 2, 3, 4, 5, 2048, 2049] {
        expected.add(millpond::units::Granules(granules));
    }
    assert_eq!(sizes, expected);
}

/// A small seeded generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Everything that may be pending when a hit comes.
struct Busy {
    sim: Sim,
    gpu: Allocator<Sim>,
    dice: Dice,
    streams: Vec<Stream<Sim>>,
    /// A stream of other code, adopted: the driver is queried at each allocation whether it captures, and nothing else if any call may mark it.
    adopted: Vec<(Kind, Stream<Sim>)>,
    scrubs: bool,
    capturing: Vec<SimStream>,
    blocks: Vec<Allocation<Sim>>,
    pinned: Vec<PinnedAllocation<Sim>>,
    arrays: Vec<DeviceArray<u8, Sim>>,
    events: Vec<Event<Sim>>,
    tokens: Vec<Box<dyn Any>>,
    _unmanaged: SimStream,
}

struct Silent;
impl Sink for Silent {
    fn event(&self, _: u64, _: &millpond::trace::Event) {}
}

/// Whose an adopted stream is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    /// The program's, which says that it stays.
    Lasting,
    Legacy,
    /// Only calls that name these two may mark them: what is due there is made by a hit.
    OfAThread,
    Unmanaged,
}

impl Kind {
    fn is_named(self) -> bool {
        matches!(self, Kind::OfAThread | Kind::Unmanaged)
    }
}

/// What hits, and frees in each state, were seen.
#[derive(Default, Debug)]
struct Seen {
    hits: u64,
    misses: u64,
    beside_a_capture: u64,
    beside_ranges_in_flight: u64,
    beside_kept_values: u64,
    beside_many_markers: u64,
    frees_in_flight: u64,
    adopted: u64,
    legacy: u64,
    of_a_thread: u64,
    unmanaged: u64,
    /// Hits that made the marker that was due.
    marked: u64,
    pinned: u64,
    scrubbed: u64,
}

/// The driver calls made between two moments, by name.
fn calls_between(before: &Ledger, after: &Ledger) -> Vec<(&'static str, u64)> {
    let of = |name| before.calls.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
    after.calls.iter().map(|&(name, n)| (name, n - of(name))).filter(|c| c.1 > 0).collect()
}

impl Busy {
    fn new(seed: u64) -> Busy {
        let schedule = if seed.is_multiple_of(3) { Schedule::Random(seed) } else { Schedule::Latest };
        let sim = Sim::new(4 * GIB).schedule(schedule);
        let mut dice = Dice(seed);
        let config = Config::default()
            .reuse([Reuse::WithWaits, Reuse::Ordered, Reuse::Never][dice.below(3)])
            .policy([Policy::Latency, Policy::Footprint][dice.below(2)])
            .growth([Growth::default(), Growth::Exact][dice.below(2)])
            .deterministic(dice.below(3) == 0)
            .look_at_each_of([1, 64][dice.below(2)]);
        let scrubs = seed % 5 == 1;
        let config = config.scrub(scrubs).exact_fit(seed % 7 == 2);
        let config = if seed % 4 == 3 { config.sink(Arc::new(Silent)) } else { config };
        let gpu = Allocator::new(sim.clone(), config).unwrap();
        let streams = (0..4).map(|_| gpu.stream().unwrap()).collect();
        let mut adopted = vec![(Kind::Lasting, gpu.adopt(sim.stream().unwrap()).unwrap())];
        // Beside these two captures of others are expected.
        if seed.is_multiple_of(3) {
            adopted.push((Kind::Legacy, gpu.adopt(sim.legacy_stream()).unwrap()));
            adopted.push((Kind::OfAThread, gpu.adopt(sim.per_thread_stream()).unwrap()));
        }
        let unmanaged = sim.stream().unwrap();
        if seed % 3 == 1 {
            adopted.push((Kind::Unmanaged, gpu.adopt(sim.unmanaged_stream(&unmanaged)).unwrap()));
        }
        let (capturing, blocks, arrays) = (Vec::new(), Vec::new(), Vec::new());
        let (events, tokens) = (Vec::new(), Vec::new());
        let pinned = Vec::new();
        Busy {
            sim,
            gpu,
            dice,
            streams,
            adopted,
            scrubs,
            capturing,
            blocks,
            pinned,
            arrays,
            events,
            tokens,
            _unmanaged: unmanaged,
        }
    }

    fn work(&self, on: &Stream<Sim>) {
        self.sim.launch(on.native(), Launch::new("work")).unwrap();
    }

    /// Something that leaves things pending, or ends them.
    fn stir(&mut self) {
        let (one, other) = (self.dice.below(4), self.dice.below(4));
        let (s, t) = (self.streams[one].clone(), self.streams[other].clone());
        match self.dice.below(14) {
            0 => self.work(&s),
            1 => s.wait_stream(&t).unwrap(),
            2 => self.events.push(s.record().unwrap()),
            3 if !self.events.is_empty() => drop(self.events.swap_remove(one % self.events.len())),
            4 if !self.blocks.is_empty() => {
                let at = self.dice.below(self.blocks.len());
                // Of a stream that only calls naming it may mark it is refused.
                if self.blocks[at].share_with(&t).is_ok() {
                    self.work(&t);
                }
            }
            5 if !self.blocks.is_empty() => self.blocks.swap_remove(other % self.blocks.len()).free_unknown(),
            // Tokens that are kept, and dropped: their sources are kept then.
            6 | 7 => {
                let mut x = self.gpu.uninit::<u8>(4096, &s).unwrap();
                let source = self.gpu.pinned_from_fn(4096, |i| i as u8).unwrap();
                let token: Box<dyn Any> = if self.dice.below(2) == 0 {
                    Box::new(x.copy_from(source, &t).unwrap())
                } else {
                    // Shared with another owner: the allocator's deferred drops have it, once the token is dropped.
                    Box::new(x.copy_from(Arc::new(source), &t).unwrap())
                };
                if self.dice.below(2) == 0 {
                    self.tokens.push(token);
                }
                self.arrays.push(x);
            }
            8 if !self.tokens.is_empty() => drop(self.tokens.swap_remove(one % self.tokens.len())),
            9 => {
                // A stream that ends with work on it.
                self.work(&s);
                self.streams[one] = self.gpu.stream().unwrap();
            }
            10 if self.capturing.is_empty() => {
                let native = self.sim.stream().unwrap();
                self.sim.begin_capture(&native).unwrap();
                self.capturing.push(native);
            }
            11 => {
                if let Some(native) = self.capturing.pop() {
                    // A marker for what was freed with unknown users may have ended it.
                    drop(self.sim.end_capture(&native));
                }
            }
            12 if self.dice.below(10) == 0 && self.capturing.is_empty() => self.gpu.synchronize().unwrap(),
            _ => drop(self.sim.advance(s.native()).unwrap()),
        }
    }

    /// One allocation, which calls the driver only if the counters say that it was no hit.
    fn allocate(&mut self, seen: &mut Seen) {
        if self.dice.below(8) == 0 {
            return self.pin(seen);
        }
        let adopted = (self.dice.below(3) == 0).then(|| self.dice.below(self.adopted.len()));
        let (kind, s) = match adopted {
            Some(at) => (Some(self.adopted[at].0), &self.adopted[at].1),
            None => (None, &self.streams[self.dice.below(4)]),
        };
        let bytes = [512, 4 * KIB, 100 * KIB, MIB][self.dice.below(4)];
        let (kept, pending) = (self.gpu.bookkeeping(), self.gpu.report());
        let before = self.sim.ledger();
        let (block, array) = match self.dice.below(3) {
            0 => (None, Some(self.gpu.uninit::<u8>(bytes as usize, s).unwrap())),
            1 => (Some(self.gpu.alloc_aligned(bytes, 4096, s).unwrap()), None),
            _ => (Some(self.gpu.alloc(bytes, s).unwrap()), None),
        };
        let mut called = calls_between(&before, &self.sim.ledger());
        let (was, is) = (pending.total.counters, self.gpu.report().total.counters);
        assert_eq!(is.hits - was.hits + is.misses - was.misses, 1, "one request");
        if is.hits > was.hits {
            if kind.is_some_and(Kind::is_named) {
                // One marker at most, and the queries about it and others.
                let marker = [Call::EventRecord, Call::EventCreate].map(Call::name);
                let marked = called.iter().any(|c| c.0 == marker[0]);
                assert!(called.iter().all(|c| c.1 == 1 || !marker.contains(&c.0)), "{called:?}");
                called.retain(|c| !(marked && (marker.contains(&c.0) || c.0 == Call::EventQuery.name())));
                // A call that marks checks once more, and its calls are no mistake beside a capture by other code.
                let asks = called.iter_mut().find(|c| marked && c.0 == Call::StreamIsCapturing.name());
                if let Some(asks) = asks {
                    asks.1 -= 1;
                }
                let mode = called.iter_mut().find(|c| marked && c.0 == Call::ExchangeCaptureMode.name());
                if let Some(mode) = mode {
                    mode.1 = 2 * u64::from(self.scrubs);
                }
                called.retain(|c| c.1 > 0);
                seen.marked += u64::from(marked);
            }
            let mut requested: Vec<(&str, u64)> = Vec::new();
            requested.extend(kind.map(|_| (Call::StreamIsCapturing.name(), 1)));
            if self.scrubs {
                // The fill, which is no mistake beside a capture by other code.
                requested.extend([(Call::MemsetD8.name(), 1), (Call::ExchangeCaptureMode.name(), 2)]);
            }
            requested.sort_unstable();
            called.sort_unstable();
            assert_eq!(called, requested, "a hit of {bytes} bytes, {kind:?}: {kept:?}");
            seen.hits += 1;
            seen.adopted += u64::from(kind == Some(Kind::Lasting));
            seen.legacy += u64::from(kind == Some(Kind::Legacy));
            seen.of_a_thread += u64::from(kind == Some(Kind::OfAThread));
            seen.unmanaged += u64::from(kind == Some(Kind::Unmanaged));
            seen.scrubbed += u64::from(self.scrubs);
            seen.beside_a_capture += u64::from(!self.capturing.is_empty());
            seen.beside_ranges_in_flight += u64::from(kept.in_flight > 0);
            seen.beside_kept_values += u64::from(kept.kept > 0);
            seen.beside_many_markers += u64::from(kept.markers > 20);
        } else {
            seen.misses += 1;
        }
        // What it frees in sixteen blocks' time falls due on that stream.
        let named = self.adopted.iter().find(|a| a.0.is_named());
        if let (Some((_, named)), Some(block)) = (named, &block) {
            block.record_use(named).unwrap();
        }
        self.blocks.extend(block);
        self.arrays.extend(array);
    }

    /// The same for pinned memory, which is on no stream: no check is made.
    fn pin(&mut self, seen: &mut Seen) {
        let hits = |gpu: &Allocator<Sim>| gpu.report().pinned.map_or(0, |p| p.counters.hits);
        let bytes = [512, 4 * KIB, 100 * KIB][self.dice.below(3)];
        let (was, before) = (hits(&self.gpu), self.sim.ledger());
        let (block, array) = if self.dice.below(2) == 0 {
            (Some(self.gpu.alloc_pinned(bytes).unwrap()), None)
        } else {
            (None, Some(self.gpu.pinned_uninit::<u8>(bytes as usize).unwrap()))
        };
        let called = calls_between(&before, &self.sim.ledger());
        if hits(&self.gpu) > was {
            assert_eq!(called, [], "a hit of {bytes} pinned bytes");
            seen.pinned += 1;
        }
        drop(array);
        if let Some(block) = block {
            if self.dice.below(3) == 0 {
                block.record_use(&self.streams[self.dice.below(4)]).unwrap();
            }
            self.pinned.push(block);
        }
    }

    /// One free, by a drop, whatever still uses the memory: never a driver call (O9).
    fn free(&mut self, seen: &mut Seen) {
        let in_flight = |gpu: &Allocator<Sim>| gpu.report().total.counters.in_flight_frees;
        let (was, before) = (in_flight(&self.gpu), self.sim.ledger());
        if self.pinned.len() > 8 {
            drop(self.pinned.swap_remove(self.dice.below(self.pinned.len())));
        } else if self.dice.below(2) == 0 && !self.arrays.is_empty() {
            drop(self.arrays.swap_remove(self.dice.below(self.arrays.len())));
        } else if !self.blocks.is_empty() {
            drop(self.blocks.swap_remove(self.dice.below(self.blocks.len())));
        }
        assert_eq!(calls_between(&before, &self.sim.ledger()), [], "a free");
        seen.frees_in_flight += in_flight(&self.gpu) - was;
    }
}

/// A hit makes no driver call, not even a check, whatever is pending: work on its own stream and on others, ranges in
/// flight, markers made and due, streams that ended, sources of dropped tokens, a capture by other code. Nor does a free.
#[test]
fn neither_a_hit_nor_a_free_calls_the_driver_whatever_is_pending() {
    let mut seen = Seen::default();
    for seed in 0..160 {
        let mut busy = Busy::new(seed);
        for _ in 0..250 {
            match busy.dice.below(4) {
                0 => busy.stir(),
                1 => busy.free(&mut seen),
                2 if busy.blocks.len() + busy.arrays.len() > 40 => busy.free(&mut seen),
                _ => busy.allocate(&mut seen),
            }
        }
        while let Some(native) = busy.capturing.pop() {
            drop(busy.sim.end_capture(&native));
        }
        let Busy { sim, gpu, streams, adopted, blocks, pinned, arrays, events, tokens, .. } = busy;
        drop((blocks, pinned, arrays, events, tokens, streams, adopted, gpu));
        sim.run_until_idle();
        sim.verdict().unwrap();
    }
    let Seen {
        hits,
        misses,
        beside_a_capture,
        beside_ranges_in_flight,
        beside_kept_values,
        beside_many_markers,
        frees_in_flight,
        adopted,
        legacy,
        of_a_thread,
        unmanaged,
        marked,
        pinned,
        scrubbed,
    } = seen;
    let all = [hits, misses, beside_a_capture, beside_ranges_in_flight, beside_kept_values];
    let all = [&all[..], &[beside_many_markers, frees_in_flight, adopted, pinned, scrubbed]].concat();
    assert!(all.into_iter().all(|n| n >= 100), "{seen:?}");
    assert!([legacy, of_a_thread, unmanaged].into_iter().all(|n| n >= 50) && marked >= 5, "{seen:?}");
}

/// On a stream that only calls naming it may mark, a hit is such a call. While nothing is due it asks whether the stream captures, and
/// nothing else; what falls due is one marker for each sixteen frees, which it makes, and learns of in a constant number of questions, whatever
/// is pending on however many other streams.
#[test]
fn a_hit_on_a_stream_that_only_it_may_mark_makes_one_marker_for_sixteen_frees() {
    const FREES: u64 = 16;
    for unmanaged in [false, true] {
        for others in [1, 40] {
            let sim = Sim::new(GIB).schedule(Schedule::Latest).oracle(false).contents(false);
            let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
            let theirs = sim.stream().unwrap();
            let native = if unmanaged { sim.unmanaged_stream(&theirs) } else { sim.per_thread_stream() };
            let s = gpu.adopt(native).unwrap();
            let busy: Vec<_> = (0..others).map(|_| gpu.stream().unwrap()).collect();
            // Each has something that is not over, and markers of it.
            let gates: Vec<_> = busy.iter().map(|t| sim.gate(t.native()).unwrap()).collect();
            let events: Vec<_> = busy.iter().map(|t| t.record().unwrap()).collect();
            let home = &busy[0];
            let uses = (0..2 * FREES).map(|_| gpu.alloc(512, home).unwrap()).collect::<Vec<_>>();
            drop((gpu.alloc(4 * KIB, &s).unwrap(), uses));
            // Nothing is due.
            let hits = |n: u64| {
                let (was, before) = (gpu.report().total.counters.hits, sim.ledger());
                (0..n).for_each(|_| drop(gpu.alloc(4 * KIB, &s).unwrap()));
                assert_eq!(gpu.report().total.counters.hits - was, n);
                calls_between(&before, &sim.ledger())
            };
            assert_eq!(hits(1000), [(Call::StreamIsCapturing.name(), 1000)]);
            // Sixteen blocks of another stream's, which this one uses, fall due together.
            let (rounds, mut made, mut requested, mut modes) = (300, 0, 0, 0);
            for round in 0..rounds {
                let blocks: Vec<_> = (0..FREES).map(|_| gpu.alloc(512, home).unwrap()).collect();
                for x in &blocks {
                    x.record_use(&s).unwrap();
                }
                drop(blocks);
                for (name, n) in hits(2) {
                    match name {
                        "cuEventQuery" => requested += n,
                        "cuEventRecord" => made += n,
                        "cuEventCreate" => assert!(n <= 1, "round {round}: {n} events"),
                        // Who marks asks once more.
                        "cuStreamIsCapturing" => assert!((2..=3).contains(&n), "round {round}: {n}"),
                        "cuThreadExchangeStreamCaptureMode" => modes += n,
                        _ => panic!("round {round}: {n} times {name}"),
                    }
                }
            }
            assert!(
                made > rounds / 2 && made <= rounds + 1,
                "{made} markers for {rounds} times sixteen frees"
            );
            let each = [requested, modes].map(|n| n.div_ceil(rounds));
            assert!(each.iter().all(|&n| n <= 4), "{requested} questions, {modes} modes, {others} streams");
            gates.into_iter().for_each(millpond_sim::Gate::open);
            drop((events, busy, s, gpu));
        }
    }
}
