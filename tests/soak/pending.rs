//! What docs/kept.md states, in programs in which what is pending varies: after every round each count must be within the
//! function of what is pending that is stated (`stated`).
//!
//! A seed draws the kind of program, the allocator's configuration, and phases of some steps a round (`phases`), in which the device
//! runs nothing, or now and then, or all. The programs do not synchronise, except those of deterministic allocators, which learn of completion in no other way. How
//! much is pending the test knows by events of its own, one a stream that had something to do, which it asks before the device goes on: so what
//! it counts is the most of the round.
//!
//! Two more judges need no bound: no operation waits for what its stream is ordered behind already, and a marker that was due and failed, without
//! an error to any caller, is made by the next call that may.

use super::judge::is_ordinary;
use super::phases::{Draw, KINDS, Kind, NOTHING, Pattern, Phase};
use super::stated::{Has, Held, Judged, Made, Pending, Stated};
use millpond::driver::Fences;
use millpond::units::{GIB, KIB, StreamId};
use millpond::{Allocator, DeviceArray, DriverErrorKind, Event, PinnedArray, Stream, kernel};
use millpond_sim::{Call, Launch, Schedule, Sim, SimEvent};
use millpond_testkit::counted::{Device, Inside};
use millpond_testkit::counting::{Account, device};
use std::collections::VecDeque;
use std::sync::Arc;

/// Elements of an array.
const LEN: usize = 64;
/// Allocations of a stream's that live: its two arrays, the one that stays, and a block.
const LIVE: u64 = 4;

/// A stream of the program's, and what it has there.
struct Lane {
    stream: Stream<Device>,
    array: DeviceArray<f32, Device>,
    sum: DeviceArray<f32, Device>,
    /// What was done on it, and up to what of each other stream it is ordered behind.
    done: u64,
    knows: Vec<u64>,
    /// When its array was last written.
    written: u64,
    /// The last round in which it did something, and in which it read the array that stays.
    busy: Option<usize>,
    read: Option<usize>,
}

/// What was made in one round.
#[derive(Default)]
struct Round {
    markers: u64,
    frees: Vec<StreamId>,
    kept: u64,
    closed: u64,
    closed_readers: u64,
    /// Events of the test's, behind all that is queued.
    ends: Vec<Inside<SimEvent>>,
}

struct World {
    device: Device,
    gpu: Allocator<Device>,
    lanes: Vec<Lane>,
    shared: DeviceArray<f32, Device>,
    source: Arc<PinnedArray<f32, Device>>,
    /// Events that the program has.
    events: Vec<Event<Device>>,
    /// The event that all wait for, and what lies before it.
    spread: Option<(Event<Device>, Vec<u64>)>,
    draw: Draw,
    rounds: VecDeque<Round>,
    pending: Pending,
    closed_readers: u64,
    /// The number of this round, and of the first that is pending.
    now: usize,
    first: usize,
    made: Made,
    /// Markers that failed in this round.
    failed: u64,
    found: Vec<String>,
}

impl World {
    fn new(kind: Kind, mut draw: Draw) -> World {
        let sim = device(|| Sim::new(4 * GIB).schedule(Schedule::Latest).oracle(false).contents(false));
        let device = Device::new(sim);
        let gpu = Allocator::new(device.clone(), kind.config(&mut draw)).expect("an allocator");
        let streams = kind.streams(&mut draw);
        let home = gpu.stream().expect("a stream");
        let shared = gpu.zeros::<f32>(LEN, &home).expect("an array");
        let source = Arc::new(gpu.pinned_from_fn(LEN, |i| i as f32).expect("pinned"));
        let mut w = World {
            device,
            gpu,
            lanes: Vec::new(),
            shared,
            source,
            events: Vec::new(),
            spread: None,
            draw,
            rounds: VecDeque::new(),
            pending: Pending::default(),
            closed_readers: 0,
            now: 0,
            first: 0,
            made: Made::default(),
            failed: 0,
            found: Vec::new(),
        };
        apart(|| {
            for most in [&mut w.made.handles, &mut w.made.used] {
                most.insert(home.id(), LIVE);
            }
        });
        w.lanes = apart(|| Vec::with_capacity(streams));
        for _ in 0..streams {
            let lane = w.lane(streams);
            w.lanes.push(lane);
        }
        millpond_testkit::counting::device(|| w.device.sim().run_until_idle());
        w
    }

    fn lane(&mut self, streams: usize) -> Lane {
        let stream = self.gpu.stream().expect("a stream");
        let zeros = |n: usize| self.gpu.zeros::<f32>(n, &stream).expect("an array");
        let (array, sum) = (zeros(LEN), zeros(1));
        self.made.streams += 1;
        self.made.dropped = 0;
        apart(|| {
            for most in [&mut self.made.handles, &mut self.made.used] {
                most.insert(stream.id(), LIVE);
            }
        });
        Lane {
            array,
            sum,
            stream,
            done: 1,
            knows: apart(|| vec![0; streams]),
            written: 1,
            busy: None,
            read: None,
        }
    }

    fn calls(&self, call: Call) -> u64 {
        self.device.ledger().calls_of(call)
    }
    fn records(&self) -> u64 {
        self.calls(Call::EventRecord) + self.calls(Call::CtxRecordEvent)
    }

    /// Two streams, if there is a second one.
    fn two(&mut self) -> (usize, usize) {
        let (s, n) = (self.draw.below(self.lanes.len()), self.lanes.len());
        (s, (s + 1 + self.draw.below(n - 1)) % n)
    }

    /// A round of this phase, its `nth`.
    fn round(&mut self, phase: &Phase, nth: usize) {
        let (before, mut round) = (self.records(), Round::default());
        if !phase.holds {
            self.events.clear();
        }
        for _ in 0..phase.events {
            let s = self.draw.below(self.lanes.len());
            let event = self.lanes[s].stream.record().expect("an event");
            self.lanes[s].busy = Some(self.now);
            if phase.holds {
                apart(|| self.events.push(event));
            }
        }
        (0..phase.waits).for_each(|_| self.wait(phase.pattern, nth));
        for _ in 0..phase.frees {
            let (s, t) = self.two();
            let s = phase.pool.filter(|&s| s != t).unwrap_or(s);
            self.free(s, t, phase);
            apart(|| round.frees.push(self.lanes[s].stream.id()));
        }
        if phase.lives > 0 && nth.is_multiple_of(20) {
            let used = nth.is_multiple_of(40);
            let freed = self.live_at_once(phase.lives, used);
            let many = if used { phase.lives } else { 0 };
            apart(|| round.frees.resize(round.frees.len() + many, freed));
        }
        for _ in 0..phase.copies {
            let s = self.draw.below(self.lanes.len());
            // Shared, so that the value is kept: memory of the allocator's own is in flight instead.
            let (source, lane) = (Arc::clone(&self.source), &mut self.lanes[s]);
            drop(lane.array.copy_from(source, &lane.stream).expect("a copy"));
            lane.done += 1;
            lane.written = lane.done;
            lane.busy = Some(self.now);
            round.kept += 1;
        }
        self.made.readers = 0;
        for _ in 0..phase.reads {
            let s = self.draw.below(self.lanes.len());
            let lane = &mut self.lanes[s];
            kernel::reduce_sum(&self.shared, &mut lane.sum, &lane.stream).expect("a sum");
            self.made.new_readers += u64::from(lane.read.is_none());
            self.made.readers += u64::from(lane.read != Some(self.now));
            lane.read = Some(self.now);
            lane.busy = Some(self.now);
        }
        (0..phase.crosses).for_each(|_| self.cross());
        let mut ended = Vec::new();
        for _ in 0..phase.gone {
            let slot = self.draw.below(self.lanes.len());
            let fresh = self.lane(self.lanes.len());
            let gone = std::mem::replace(&mut self.lanes[slot], fresh);
            self.lanes.iter_mut().for_each(|lane| lane.knows[slot] = 0);
            apart(|| ended.push(gone.stream.native().clone()));
            // Its arrays.
            self.made.dropped += 2;
            round.closed += 1;
            round.closed_readers += u64::from(gone.read.is_some());
        }
        round.markers = self.records() - before - std::mem::take(&mut self.failed);
        let busy = self.lanes.iter().filter(|lane| lane.busy == Some(self.now));
        let ends = busy.map(|lane| lane.stream.native()).chain(&ended);
        round.ends = apart(|| ends.map(|s| self.end_of(s)).collect());
        apart(|| self.note(round));
    }

    /// It is pending from here on.
    fn note(&mut self, round: Round) {
        let (made, pending) = (&mut self.made, &mut self.pending);
        (made.kept, made.closed) = (round.kept, round.closed);
        made.markers += round.markers;
        for &s in &round.frees {
            *made.frees.entry(s).or_default() += 1;
            *pending.frees.entry(s).or_default() += 1;
        }
        pending.markers += round.markers;
        pending.kept += round.kept;
        pending.closed += round.closed;
        self.closed_readers += round.closed_readers;
        self.rounds.push_back(round);
    }

    fn wait(&mut self, pattern: Pattern, nth: usize) {
        let n = self.lanes.len();
        let (s, t) = match pattern {
            Pattern::Any => self.two(),
            Pattern::Gather(hub) => ((hub + 1 + nth % (n - 1)) % n, hub),
            Pattern::Chain => (nth % n, (nth + 1) % n),
            Pattern::Spread(hub) => {
                if nth == 0 || self.spread.is_none() {
                    let event = self.lanes[hub].stream.record().expect("an event");
                    self.lanes[hub].busy = Some(self.now);
                    self.spread = Some((event, self.known(hub)));
                }
                let t = (hub + 1 + nth % (n - 1)) % n;
                let (event, known) = self.spread.as_ref().expect("it was made");
                self.lanes[t].stream.wait(event).expect("ordered");
                join(&mut self.lanes[t].knows, known);
                self.lanes[t].busy = Some(self.now);
                return;
            }
        };
        self.lanes[t].stream.wait_stream(&self.lanes[s].stream).expect("ordered");
        let known = self.known(s);
        join(&mut self.lanes[t].knows, &known);
        self.lanes[s].busy = Some(self.now);
        self.lanes[t].busy = Some(self.now);
    }

    /// What lies before the end of a stream.
    fn known(&self, s: usize) -> Vec<u64> {
        let mut known = apart(|| self.lanes[s].knows.clone());
        known[s] = self.lanes[s].done;
        known
    }

    /// So many blocks of the first stream live at once, and the second uses each, or none does.
    fn live_at_once(&mut self, blocks: usize, used: bool) -> StreamId {
        let (home, user) = (&self.lanes[0].stream, &self.lanes[1].stream);
        let mut live = apart(|| Vec::with_capacity(blocks));
        for _ in 0..blocks {
            let block = self.gpu.alloc(KIB, home).expect("a block");
            if used {
                block.record_use(user).expect("declared");
            }
            live.push(block);
        }
        let (at, id) = (live[0].address(), home.id());
        let by = if used { user } else { home };
        self.device.launch(by.native(), || Launch::new("reads").reads(at, KIB));
        live.clear();
        apart(|| drop(live));
        (self.lanes[0].busy, self.lanes[1].busy) = (Some(self.now), Some(self.now));
        self.made.dropped = blocks as u64;
        apart(|| {
            for most in [&mut self.made.handles, &mut self.made.used] {
                let most = most.entry(id).or_default();
                *most = (*most).max(blocks as u64 + LIVE);
            }
        });
        id
    }

    /// A block of one stream that another one uses, or two do.
    fn free(&mut self, s: usize, t: usize, phase: &Phase) {
        let block = self.gpu.alloc(KIB, &self.lanes[s].stream).expect("a block");
        self.made.dropped = 1;
        let second = (t + 1) % self.lanes.len();
        if phase.frees.is_multiple_of(2) && second != s {
            let on = &self.lanes[second].stream;
            block.record_use(on).expect("declared");
            let at = block.address();
            self.device.launch(on.native(), || Launch::new("reads").reads(at, KIB));
            self.lanes[second].busy = Some(self.now);
        }
        let on = &self.lanes[t].stream;
        if phase.fails && self.draw.one_in(2) {
            device(|| self.device.sim().fail(Call::EventRecord, 1, DriverErrorKind::Other));
            let before = self.calls(Call::EventRecord);
            block.record_use(on).expect("recorded");
            let after = self.calls(Call::EventRecord);
            device(|| self.device.sim().clear_faults());
            block.record_use(on).expect("declared");
            self.failed += u64::from(after > before);
            if after > before && self.calls(Call::EventRecord) == after {
                self.found.push(format!("round {}: a marker that failed is not made again", self.now));
            }
        } else {
            block.record_use(on).expect("declared");
        }
        let at = block.address();
        self.device.launch(on.native(), || Launch::new("reads").reads(at, KIB));
        drop(block);
        self.lanes[s].busy = Some(self.now);
        self.lanes[t].busy = Some(self.now);
    }

    /// One stream reads another's array, or writes its own.
    fn cross(&mut self) {
        let (s, t) = self.two();
        if self.draw.one_in(4) {
            let lane = &mut self.lanes[s];
            kernel::fill(&mut lane.array, 1.0, &lane.stream).expect("written");
            lane.done += 1;
            lane.written = lane.done;
            lane.busy = Some(self.now);
            return;
        }
        let before = self.calls(Call::StreamWaitEvent);
        let [from, to] = self.lanes.get_disjoint_mut([s, t]).expect("two");
        kernel::reduce_sum(&from.array, &mut to.sum, &to.stream).expect("a sum");
        let is_ordered = to.knows[s] >= from.written;
        to.knows[s] = to.knows[s].max(from.written);
        to.done += 1;
        (from.busy, to.busy) = (Some(self.now), Some(self.now));
        if is_ordered && self.calls(Call::StreamWaitEvent) > before {
            self.found.push(format!("round {}: waits for what the stream is ordered behind", self.now));
        }
    }

    /// An event behind all that is queued on a stream.
    fn end_of(&self, stream: &<Device as Fences>::Stream) -> Inside<SimEvent> {
        let event = self.device.create_event().expect("an event");
        self.device.record(&event, stream).expect("recorded");
        event
    }

    /// The rounds that are not over.
    fn forget_what_is_over(&mut self) {
        while let Some(round) = self.rounds.front() {
            if !round.ends.iter().all(|end| self.device.query(end).expect("asked")) {
                break;
            }
            self.forget_first();
        }
    }
    fn forget_first(&mut self) {
        let Some(round) = self.rounds.pop_front() else { return };
        self.first += 1;
        let pending = &mut self.pending;
        pending.markers -= round.markers;
        pending.kept -= round.kept;
        pending.closed -= round.closed;
        self.closed_readers -= round.closed_readers;
        for s in round.frees {
            *pending.frees.entry(s).or_default() -= 1;
        }
    }

    fn pending(&mut self) -> &Pending {
        let since = |round: usize| round >= self.first;
        self.pending.streams = self.pending.closed
            + self.lanes.iter().filter(|lane| lane.busy.is_some_and(since)).count() as u64;
        let readers = self.lanes.iter().filter(|lane| lane.read.is_some_and(since));
        self.pending.readers = self.closed_readers + readers.count() as u64;
        &self.pending
    }
}

/// What is the test's own is on no account.
fn apart<R>(run: impl FnOnce() -> R) -> R {
    Account::unassigned().scope(run)
}

fn join(mine: &mut [u64], theirs: &[u64]) {
    mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
}

/// A count, and what it came to at most of its bound.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Reached {
    /// And whether no queries are made.
    name: (&'static str, bool),
    /// The highest count, per cent of the bound of its moment.
    percent: u64,
}

fn reach(reached: &mut Vec<Reached>, name: (&'static str, bool), percent: u64) -> u64 {
    if let Some(high) = reached.iter_mut().find(|r| r.name == name) {
        let before = high.percent;
        high.percent = before.max(percent);
        return before;
    }
    reached.push(Reached { name, percent });
    0
}

/// Runs the program of a seed: what each count came to, and what is above its bound, and when, the first of each.
/// Ends where something is said of `until`.
fn run(seed: u64, until: Option<&str>) -> (Vec<Reached>, Vec<String>) {
    let (kind, mut draw) = (Kind::of(seed), Draw::new(seed));
    let account = Account::open();
    let seed_of_world = draw.below(1 << 30) as u64;
    let mut w = account.scope(|| World::new(kind, Draw::new(seed_of_world)));
    let mut stated = Stated::new(kind.is_unqueried());
    let (mut phase, mut nth) = (NOTHING, 0);
    let (mut reached, mut found) = (Vec::new(), Vec::new());
    for n in 0..kind.rounds() {
        if nth == phase.rounds {
            (phase, nth) = (Phase::next(kind, w.lanes.len(), &phase, &mut draw), 0);
        }
        w.now = n;
        account.scope(|| w.round(&phase, nth));
        nth += 1;
        // The device stands still since the last round: this is the most that was pending in this one.
        if !kind.is_unqueried() {
            w.forget_what_is_over();
        }
        let bytes = u64::try_from(account.library().bytes).unwrap_or(0);
        let own = w.rounds.iter().map(|round| round.ends.len() as u64).sum::<u64>();
        let held = Held(w.gpu.bookkeeping().counts(), bytes, w.device.ledger().events - own);
        let pending = w.pending().clone();
        // One is the array's home. Those that were closed in this round may not have been noticed.
        let streams = w.lanes.len() as u64 + 1 + w.made.closed;
        let events = w.events.len() as u64 + u64::from(w.spread.is_some());
        let has = Has { streams, events };
        let mut judged = stated.judge(&held, &pending, &w.made, has);
        if !matches!(kind, Kind::Crowd | Kind::CrowdBehind) {
            judged.extend(stated.judge_pools((&held, &w.gpu.report()), &pending, &w.made, has));
        }
        for Judged { name, count, most, unqueried } in judged {
            if name == "uses" && !kind.comes_and_goes() {
                continue;
            }
            let before = reach(&mut reached, (name, unqueried), (100 * count).div_ceil(most.max(1)));
            if count > most && before <= 100 {
                found.push(format!("seed {seed}, round {n}: {name} {count}, allowed {most}"));
            }
        }
        let said = found.iter().chain(w.found.first());
        if until.is_some_and(|until| said.into_iter().any(|why| why.contains(until))) {
            break;
        }
        if phase.runs_each.is_some_and(|each| n % each == 0) {
            if kind.is_unqueried() {
                account.scope(|| w.gpu.synchronize().expect("waited"));
                (0..w.rounds.len()).for_each(|_| w.forget_first());
            }
            device(|| w.device.sim().run_until_idle());
        }
    }
    found.extend(w.found.first().map(|why| format!("seed {seed}, {why}")));
    (reached, found)
}

/// Programs of an ordinary run, of each kind in turn: two of each, and a dozen of each in `.ci/soak`.
const SEEDS: u64 = 2 * KINDS.len() as u64;

/// The bounds are tight: none is above what the programs come to by more than a factor of two, so that half of it would be too little, and a count
/// that leaves its bound is seen soon.
#[ignore = "takes long: run by .ci/soak"]
#[test]
fn what_is_kept_is_at_most_the_stated_function_of_what_is_pending_and_half_of_it_is_too_little() {
    let seeds = if is_ordinary() { SEEDS } else { 6 * SEEDS };
    let (mut found, mut highest) = (Vec::new(), Vec::new());
    for seed in 0..seeds {
        let (reached, above) = run(seed, None);
        found.extend(above);
        for Reached { name, percent } in reached {
            reach(&mut highest, name, percent);
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    let loose: Vec<_> = highest.iter().filter(|high| high.percent <= 50).collect();
    assert!(loose.is_empty(), "half of the bound of {loose:?} is enough: {highest:?}");
    assert_eq!(highest.len(), 19, "{highest:?}");
}

/// Bugs by which something grows break the bounds too, each the one that is named, or are convicted by the other judges.
#[cfg(millpond_mutants)]
#[test]
fn every_leak_is_found_above_its_bound() {
    use super::finders::ABOVE_THEIR_BOUNDS;
    use millpond::mutant;
    use std::io::Write as _;
    // `MILLPOND_ONLY=z8,z9` looks for those only.
    let only = std::env::var("MILLPOND_ONLY").ok();
    let design = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/mutants.md"))
        .expect("docs/mutants.md");
    for &(bug, name) in ABOVE_THEIR_BOUNDS {
        if only.as_deref().is_some_and(|names| names.split(',').all(|n| n != bug.name())) {
            continue;
        }
        // On a thread of its own: an assertion of the library's may convict it there, and another seed has to be found by what grows.
        let said = |seed| {
            let planted = move || {
                let _planted = mutant::plant(Some(bug));
                run(seed, Some(name)).1
            };
            std::thread::spawn(planted).join().ok()?.into_iter().find(|why| why.contains(name))
        };
        let found = (0..SEEDS).find_map(said);
        let _ = writeln!(std::io::stderr(), "{bug}: {found:?}");
        assert!(found.is_some(), "{bug} ({}) is within the bound of {name}", bug.what());
        let row = format!("| {bug} | {} | {name} |", bug.what());
        assert!(design.contains(&row), "docs/mutants.md does not say: {row}");
    }
}
