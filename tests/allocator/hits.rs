//! What counts as a hit, and that the counts of a pool agree with each other, through the public verbs.

use millpond::units::{GIB, KIB, MIB};
use millpond::{Allocation, Allocator, Config, DeviceArray, Event, Growth, Policy, Reuse, Stream};
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

/// A pool keeps few counts and tells the others from them: they have to agree whatever was done.
#[test]
fn the_counts_agree() {
    let (gpu, stream) = gpu();
    let other = gpu.stream().unwrap();
    let mut live = Vec::new();
    let mut asked = 0;
    for i in 0..500_u64 {
        let bytes = 1 + i * 7919 % (3 * MIB);
        asked += bytes;
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
    assert_eq!(counters.bytes_served, asked);
    assert_eq!(gpu.usage().used, asked);
    assert_eq!(total.sizes.total(), 500);
    assert_eq!(total.requested, live.iter().map(millpond::Allocation::len).sum::<u64>());
    assert_eq!(total.allocated, live.iter().map(|a| a.len().next_multiple_of(512)).sum::<u64>());
    assert!(counters.in_flight_frees > 0, "some frees had a foreign use");
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
    /// Somebody else's, adopted: whether it captures is asked at each allocation, and nothing else.
    adopted: Stream<Sim>,
    capturing: Vec<SimStream>,
    blocks: Vec<Allocation<Sim>>,
    arrays: Vec<DeviceArray<u8, Sim>>,
    events: Vec<Event<Sim>>,
    tokens: Vec<Box<dyn Any>>,
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
        let gpu = Allocator::new(sim.clone(), config).unwrap();
        let streams = (0..4).map(|_| gpu.stream().unwrap()).collect();
        let adopted = gpu.adopt(sim.stream().unwrap()).unwrap();
        let (capturing, blocks, arrays) = (Vec::new(), Vec::new(), Vec::new());
        let (events, tokens) = (Vec::new(), Vec::new());
        Busy { sim, gpu, dice, streams, adopted, capturing, blocks, arrays, events, tokens }
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
                self.blocks[at].share_with(&t).unwrap();
                self.work(&t);
            }
            5 if !self.blocks.is_empty() => self.blocks.swap_remove(other % self.blocks.len()).free_unknown(),
            // Tokens that are kept, and dropped: their sources are kept then.
            6 | 7 => {
                let mut x = self.gpu.uninit::<u8>(4096, &s).unwrap();
                let source = self.gpu.pinned_from_fn(4096, |i| i as u8).unwrap();
                let token: Box<dyn Any> = if self.dice.below(2) == 0 {
                    Box::new(x.copy_from(source, &t).unwrap())
                } else {
                    // Shared with somebody: the allocator's keeper has it, once the token is dropped.
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
                    // A marker for what was freed by nobody knows whom may have ended it.
                    drop(self.sim.end_capture(&native));
                }
            }
            12 if self.dice.below(10) == 0 && self.capturing.is_empty() => self.gpu.synchronize().unwrap(),
            _ => drop(self.sim.advance(s.native()).unwrap()),
        }
    }

    /// One allocation, which calls the driver only if the counters say that it was no hit.
    fn allocate(&mut self, seen: &mut Seen) {
        let adopted = self.dice.below(6) == 0;
        let s = if adopted { &self.adopted } else { &self.streams[self.dice.below(4)] };
        let bytes = [512, 4 * KIB, 100 * KIB, MIB][self.dice.below(4)];
        let (kept, pending) = (self.gpu.bookkeeping(), self.gpu.report());
        let before = self.sim.ledger();
        let (block, array) = match self.dice.below(3) {
            0 => (None, Some(self.gpu.uninit::<u8>(bytes as usize, s).unwrap())),
            1 => (Some(self.gpu.alloc_aligned(bytes, 4096, s).unwrap()), None),
            _ => (Some(self.gpu.alloc(bytes, s).unwrap()), None),
        };
        let called = calls_between(&before, &self.sim.ledger());
        let (was, is) = (pending.total.counters, self.gpu.report().total.counters);
        assert_eq!(is.hits - was.hits + is.misses - was.misses, 1, "one request");
        if is.hits > was.hits {
            let asked: &[_] = if adopted { &[(Call::StreamIsCapturing.name(), 1)] } else { &[] };
            assert_eq!(called, asked, "a hit of {bytes} bytes: {kept:?}");
            seen.hits += 1;
            seen.adopted += u64::from(adopted);
            seen.beside_a_capture += u64::from(!self.capturing.is_empty());
            seen.beside_ranges_in_flight += u64::from(kept.in_flight > 0);
            seen.beside_kept_values += u64::from(kept.kept > 0);
            seen.beside_many_markers += u64::from(kept.markers > 20);
        } else {
            seen.misses += 1;
        }
        self.blocks.extend(block);
        self.arrays.extend(array);
    }

    /// One free, by a drop, whatever still uses the memory: never a driver call (O9).
    fn free(&mut self, seen: &mut Seen) {
        let in_flight = |gpu: &Allocator<Sim>| gpu.report().total.counters.in_flight_frees;
        let (was, before) = (in_flight(&self.gpu), self.sim.ledger());
        if self.dice.below(2) == 0 && !self.arrays.is_empty() {
            drop(self.arrays.swap_remove(self.dice.below(self.arrays.len())));
        } else if !self.blocks.is_empty() {
            drop(self.blocks.swap_remove(self.dice.below(self.blocks.len())));
        }
        assert_eq!(calls_between(&before, &self.sim.ledger()), [], "a free");
        seen.frees_in_flight += in_flight(&self.gpu) - was;
    }
}

/// A hit calls the driver for nothing, not even a question, whatever is pending: work on its own stream and on others, ranges in
/// flight, markers made and due, streams that ended, sources of dropped tokens, somebody's capture. Nor does a free.
#[test]
fn neither_a_hit_nor_a_free_calls_the_driver_whatever_is_pending() {
    let mut seen = Seen::default();
    for seed in 0..60 {
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
        let Busy { sim, gpu, streams, adopted, blocks, arrays, events, tokens, .. } = busy;
        drop((blocks, arrays, events, tokens, streams, adopted, gpu));
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
    } = seen;
    let all = [hits, misses, beside_a_capture, beside_ranges_in_flight, beside_kept_values];
    assert!(
        all.into_iter().chain([beside_many_markers, frees_in_flight, adopted]).all(|n| n >= 100),
        "{seen:?}"
    );
}
