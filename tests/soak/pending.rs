//! What docs/kept.md states of markers, pooled events, ranges in flight and kept values, as inequalities: in programs in which what is
//! pending varies, each count is asked after every round whether it is within the function of what is pending that is stated.
//!
//! Four streams; phases of some steps each ([`Phase`]), in which the device runs nothing, or now and then, or all. Nobody ever synchronises. How
//! much is pending the test knows by events of its own, one a stream and round, which it asks before the device goes on: so what it counts
//! is the most of the round.
//!
//! A statement speaks of the last look, or the last drain, whose moment nobody tells. It is in the last [`Window`]: so many markers, or frees,
//! that one must have come.

use super::counting::device;
use super::device::{Device, Inside};
use millpond::driver::Fences;
use millpond::units::{GIB, KIB};
use millpond::{Allocator, Config, DeviceArray, PinnedArray, Stream};
use millpond_sim::{Call, Launch, Schedule, Sim, SimEvent};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

const STREAMS: usize = 4;
const ROUNDS: usize = 3_000;
/// Frees that wait for a stream until it is marked and asked (`Line::note_unmarked`).
const FREES_A_QUESTION: u64 = 16;
/// Ranges in flight that wait for whoever drains (`order/inflight.rs`).
const FEW: u64 = 32;
/// Markers that are looked at in any case (`registry/completion.rs`), and events that are kept in any case (`events.rs`).
const BURST: u64 = 256;
const LEAST: u64 = 64;
/// Markers that are retired for each event kept until the pool is asked whether it needs them all.
const EVENTS_PAID: u64 = 8;

/// A seeded generator (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 16) as usize % n
    }
}

/// What is done for some rounds: so many steps of each kind a round, and once in so many rounds the device runs all that is queued.
struct Phase {
    waits: usize,
    frees: usize,
    copies: usize,
    /// Never, if none.
    runs_each: Option<usize>,
    rounds: usize,
}

impl Phase {
    fn draw(draw: &mut Draw) -> Phase {
        Phase {
            waits: draw.below(4),
            frees: draw.below(4),
            copies: draw.below(3),
            runs_each: [None, Some(1), Some(1), Some(7), Some(60)][draw.below(5)],
            rounds: 1 + draw.below(400),
        }
    }
}

/// What a bound was while the last look, or drain, was certainly made, and what was pending since.
#[derive(Clone, Copy)]
struct Window {
    /// The bound by what was pending in the window before.
    before: u64,
    /// The most that was pending since.
    pending: u64,
    /// How many had been made at its beginning.
    made: u64,
}

impl Window {
    const NEW: Window = Window { before: 0, pending: 0, made: 0 };

    /// The bound now. `of` what was pending makes the bound, `made` so many are made in all. Whether the window is over: as many were made
    /// as the bound allows, so that a look has come.
    fn bound(&mut self, pending: u64, made: u64, of: impl Fn(u64) -> u64) -> (u64, bool) {
        self.pending = self.pending.max(pending);
        let bound = self.before.max(of(self.pending));
        let over = made - self.made >= bound;
        if over {
            *self = Window { before: of(self.pending), pending, made };
        }
        (bound, over)
    }
}

/// What was made in one round, by stream where the statement is about one.
#[derive(Default)]
struct Round {
    markers: u64,
    frees: [u64; STREAMS],
    kept: u64,
    /// Events of the test's, behind all that is queued.
    ends: Vec<Inside<SimEvent>>,
}

/// A count, and what it came to at most of its bound.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Reached {
    name: &'static str,
    /// The highest count, per cent of the bound of its moment.
    percent: u64,
}

struct World {
    device: Device,
    gpu: Allocator<Device>,
    streams: Vec<Stream<Device>>,
    array: Vec<DeviceArray<f32, Device>>,
    source: Arc<PinnedArray<f32, Device>>,
    draw: Draw,
}

impl World {
    fn new(seed: u64) -> World {
        let sim = device(|| Sim::new(4 * GIB).schedule(Schedule::Latest).oracle(false));
        let device = Device::new(sim);
        let gpu = Allocator::new(device.clone(), Config::default()).expect("an allocator");
        let streams: Vec<_> = (0..STREAMS).map(|_| gpu.stream().expect("a stream")).collect();
        let array = streams.iter().map(|s| gpu.zeros::<f32>(64, s).expect("an array")).collect();
        let source = Arc::new(gpu.pinned_from_fn(64, |i| i as f32).expect("pinned"));
        World { device, gpu, streams, array, source, draw: Draw(seed) }
    }

    fn records(&self) -> u64 {
        let ledger = self.device.ledger();
        ledger.calls_of(Call::EventRecord) + ledger.calls_of(Call::CtxRecordEvent)
    }

    /// A round of this phase.
    fn round(&mut self, phase: &Phase) -> Round {
        let before = self.records();
        let mut round = Round::default();
        for _ in 0..phase.waits {
            let (s, t) = self.two();
            self.streams[t].wait_stream(&self.streams[s]).expect("ordered");
        }
        for _ in 0..phase.frees {
            let (s, t) = self.two();
            let block = self.gpu.alloc(4 * KIB, &self.streams[s]).expect("a block");
            block.record_use(&self.streams[t]).expect("declared");
            let at = block.address();
            self.device.launch(self.streams[t].native(), || Launch::new("reads").reads(at, 4 * KIB));
            drop(block);
            round.frees[s] += 1;
        }
        for _ in 0..phase.copies {
            let s = self.draw.below(STREAMS);
            // Shared, so that the value is kept: memory of the allocator's own is in flight instead.
            let source = Arc::clone(&self.source);
            drop(self.array[s].copy_from(source, &self.streams[s]).expect("a copy"));
            round.kept += 1;
        }
        round.markers = self.records() - before;
        round.ends = self.streams.iter().map(|s| self.end_of(s)).collect();
        round
    }

    fn two(&mut self) -> (usize, usize) {
        let s = self.draw.below(STREAMS);
        (s, (s + 1 + self.draw.below(STREAMS - 1)) % STREAMS)
    }

    /// An event behind all that is queued on a stream.
    fn end_of(&self, stream: &Stream<Device>) -> Inside<SimEvent> {
        let event = self.device.create_event().expect("an event");
        self.device.record(&event, stream.native()).expect("recorded");
        event
    }

    /// The rounds that are not over.
    fn forget_what_is_over(&self, rounds: &mut VecDeque<Round>) {
        let is_over = |round: &Round| round.ends.iter().all(|end| self.device.query(end).expect("asked"));
        while rounds.front().is_some_and(is_over) {
            rounds.pop_front();
        }
    }
}

/// Runs the program of a seed, `part` of a hundred of each bound allowed.
///
/// # Errors
/// What is above its bound, and when.
fn within_the_bounds(seed: u64, part: u64) -> Result<[Reached; 4], String> {
    let mut w = World::new(seed);
    let mut rounds: VecDeque<Round> = VecDeque::new();
    let mut phase = Phase::draw(&mut w.draw);
    let mut left = phase.rounds;
    let mut marked = 0;
    let mut freed = [0; STREAMS];
    let (mut markers, mut ranges) = (Window::NEW, [Window::NEW; STREAMS]);
    let (mut events, mut peak) = (LEAST, [0; 2]);
    // Values kept for something pending, and kept in that round, in the last rounds that looked at kept values: at one stream's, each.
    let mut kept = VecDeque::from([(0, 0); STREAMS + 1]);
    let (mut tokens, mut fitted) = ([0; 2], 0);
    let mut reached = ["markers", "events pooled", "ranges in flight", "kept values"]
        .map(|name| Reached { name, percent: 0 });
    for n in 0..ROUNDS {
        if left == 0 {
            phase = Phase::draw(&mut w.draw);
            left = phase.rounds;
        }
        left -= 1;
        let made = w.round(&phase);
        marked += made.markers;
        (0..STREAMS).for_each(|s| freed[s] += made.frees[s]);
        let made_kept = made.kept;
        rounds.push_back(made);
        // The device stands still since the last round: this is the most that was pending in this one.
        w.forget_what_is_over(&mut rounds);
        let held = w.gpu.bookkeeping();

        let timelines = held.timelines as u64;
        let pending = rounds.iter().map(|r| r.markers).sum();
        let markers_most =
            markers.bound(pending, marked, |pending| (2 * pending).max(BURST).max(timelines)).0;
        peak[1] = peak[1].max(held.markers as u64);
        // Kept values have tokens, whose events come back when the values are looked at.
        tokens[1] = tokens[1].max(held.kept as u64);
        let events_most = events.max(peak[0].max(peak[1]).next_power_of_two()) + tokens[0].max(tokens[1]);
        // The pool is asked at a look, and when eight markers have been retired for each event that it keeps.
        if marked - fitted >= EVENTS_PAID * events_most + markers_most {
            fitted = marked;
            tokens = [tokens[1], held.kept as u64];
            events = LEAST.max(peak[0].max(peak[1]).next_power_of_two()).max(events - events / 4);
            peak = [peak[1], held.markers as u64];
        }
        let ranges_most = (0..STREAMS).map(|s| {
            let pending: u64 = rounds.iter().map(|r| r.frees[s]).sum();
            let unasked = FREES_A_QUESTION * (STREAMS as u64 - 1);
            ranges[s].bound(pending, freed[s], |pending| FEW.max(2 * (pending + unasked))).0
        });
        let ranges_most: u64 = ranges_most.sum();
        if made_kept > 0 {
            kept.pop_front();
            kept.push_back((rounds.iter().map(|r| r.kept).sum(), made_kept));
        }
        let since: u64 = kept.iter().skip(1).map(|k| k.1).sum();
        let kept_most = kept[0].0 + since;

        let now = [held.markers, held.events_pooled, held.in_flight, held.kept];
        let most = [markers_most, events_most, ranges_most, kept_most];
        for ((reached, now), most) in reached.iter_mut().zip(now).zip(most) {
            let now = now as u64;
            reached.percent = reached.percent.max(100 * now / most.max(1));
            if 100 * now > part * most {
                return Err(format!("seed {seed}, round {n}: {} {now}, allowed {most}", reached.name));
            }
        }
        if phase.runs_each.is_some_and(|each| n % each == 0) {
            device(|| w.device.sim().run_until_idle());
        }
    }
    Ok(reached)
}

/// Programs of an ordinary run.
const SEEDS: u64 = 8;

/// No bound is above what the programs come to by more than this says, so that a count which leaves its bound is seen soon.
const REACHED: [(&str, u64); 4] =
    [("markers", 60), ("events pooled", 60), ("ranges in flight", 40), ("kept values", 60)];

#[test]
fn what_is_kept_is_at_most_the_stated_function_of_what_is_pending() {
    let (mut found, mut highest) = (String::new(), REACHED.map(|(name, _)| Reached { name, percent: 0 }));
    for seed in 0..SEEDS {
        match within_the_bounds(seed, 100) {
            Ok(reached) => {
                for (high, now) in highest.iter_mut().zip(reached) {
                    high.percent = high.percent.max(now.percent);
                }
            }
            Err(why) => writeln!(found, "{why}").expect("a text"),
        }
    }
    assert!(found.is_empty(), "{found}");
    for (high, (name, least)) in highest.iter().zip(REACHED) {
        assert!(high.percent >= least, "{name} comes to {} % of its bound: {highest:?}", high.percent);
    }
}

/// It can fail: half of what is stated is too little.
#[test]
fn half_of_the_stated_function_is_too_little() {
    let found: Vec<_> = (0..SEEDS).filter_map(|seed| within_the_bounds(seed, 50).err()).collect();
    assert!(!found.is_empty());
}

/// Bugs by which something grows break the bounds too.
#[cfg(millpond_mutants)]
#[test]
fn every_leak_is_found_above_its_bound() {
    use millpond::mutant::{self, Bug};
    for (bug, name) in [
        (Bug::LeakUnlooked, "markers"),
        (Bug::LeakKept, "kept values"),
        (Bug::FlightNeverCrowded, "ranges in flight"),
    ] {
        let _planted = mutant::plant(Some(bug));
        let found: Vec<_> = (0..SEEDS).filter_map(|seed| within_the_bounds(seed, 100).err()).collect();
        assert!(found.iter().any(|why| why.contains(name)), "{bug} is within the bounds: {found:?}");
    }
}
