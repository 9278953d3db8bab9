//! What docs/kept.md states, as inequalities: how much an allocator may keep, as a function of what is pending and of nothing else.
//!
//! A statement speaks of the last look, or the last drain, whose moment is not reported. It is in the last [`Window`]: so many markers, frees, streams
//! or readers that one must have come.
//!
//! It does not know what a program does, nor how it knows what is pending.

use millpond::report::Report;
use millpond::units::StreamId;
use std::collections::{HashMap, VecDeque};

/// Frees that wait for a stream until it is marked and asked (`Line::note_unmarked`).
const FREES_A_QUESTION: u64 = 16;
/// Ranges in flight that wait for the next drain (`order/inflight.rs`).
const FEW_RANGES: u64 = 32;
/// Markers that are looked at in any case (`registry/completion.rs`), and events that are kept in any case (`events.rs`).
const BURST: u64 = 256;
const LEAST: u64 = 64;
/// Markers that are retired for each event kept until it is checked whether the pool needs them all.
const EVENTS_PAID: u64 = 8;
/// Markers of a timeline that is thinned, and closed streams whose end is not known where no queries are made (`registry/completion.rs`).
const THINNED: u64 = 32;
const UNFINISHED: u64 = 32;
/// Names in a clock that is not looked at (`order/clock.rs`), uses (`order/uses.rs`), and pools in the list (`closed.rs`).
const FEW_NAMES: u64 = 64;
const FEW_USES: u64 = 8;
const FEW_POOLS: u64 = 16;
/// Users of a block at most, in these programs: the uses of one range in flight.
const USERS: u64 = 2;
/// References are counted so many at once (`refcount.rs`).
const BATCH: u64 = 256;
/// Bytes of host memory: at first, for each pool with its timeline, and for each thing that is counted.
const BYTES: u64 = 64 << 10;
const BYTES_A_POOL: u64 = 32 << 10;
const BYTES_EACH: u64 = 384;

/// What a bound was while the last look, or drain, was certainly made, and what it would be by what was pending since.
#[derive(Clone, Copy, Default)]
struct Window {
    before: u64,
    since: u64,
    /// How many had been made at its beginning.
    made: u64,
}

impl Window {
    /// The bound now: what is pending comes to `bound`, `made` so many are made in all. Whether the window is over: as many were made as
    /// the bound allows, so that a look has come.
    fn bound(&mut self, bound: u64, made: u64) -> (u64, bool) {
        self.since = self.since.max(bound);
        let most = self.before.max(self.since);
        let over = made - self.made >= most;
        if over {
            *self = Window { before: self.since, since: bound, made };
        }
        (most, over)
    }
}

/// How much may not be known to be over: what was pending at the beginning of the window before the last, and what was made since, by windows of
/// looks at all markers.
#[derive(Default)]
struct Unknown {
    pending: [u64; 2],
    made: [u64; 2],
}

impl Unknown {
    fn unknown(&mut self, pending: u64, made: u64, looked: bool) -> u64 {
        self.made[1] += made;
        let unknown = self.pending[0] + self.made[0] + self.made[1];
        if looked {
            (self.pending, self.made) = ([self.pending[1], pending], [self.made[1], 0]);
        }
        unknown
    }
}

/// What is pending at the end of a round, before the device goes on: of an allocator that queries nothing, what was made since the program
/// waited for all.
#[derive(Clone, Default)]
pub struct Pending {
    pub markers: u64,
    /// Frees of each pool's that other streams use.
    pub frees: HashMap<StreamId, u64>,
    pub kept: u64,
    /// Streams, open ones and closed ones, and those that read the array.
    pub streams: u64,
    pub closed: u64,
    pub readers: u64,
}

/// What was made since the beginning.
#[derive(Clone, Default)]
pub struct Made {
    pub markers: u64,
    pub frees: HashMap<StreamId, u64>,
    /// In this round.
    pub kept: u64,
    pub streams: u64,
    /// Streams that read the array for the first time; and all that did in this round.
    pub new_readers: u64,
    pub readers: u64,
    /// In this round.
    pub closed: u64,
    /// The most handles to each pool's memory at one time, and the most allocations with uses among them.
    pub handles: HashMap<StreamId, u64>,
    pub used: HashMap<StreamId, u64>,
    /// What was dropped since the last request, each with an event of a trace.
    pub dropped: u64,
}

/// What the program has itself, or had in this round.
#[derive(Clone, Copy)]
pub struct Has {
    pub streams: u64,
    pub events: u64,
}

/// The counts of [`Allocator::bookkeeping`](millpond::Allocator::bookkeeping), bytes of host memory, and driver events that are the library's.
pub struct Held(pub [(&'static str, usize); 18], pub u64, pub u64);

impl Held {
    pub fn of(&self, name: &str) -> u64 {
        self.0.iter().find(|(of, _)| *of == name).unwrap_or_else(|| panic!("nothing is called {name}")).1
            as u64
    }
}

/// Driver events once more: by what is pending, where the other bound is by what else is counted.
const ALIVE: &str = "driver events by what is pending";

/// A count, and what is allowed.
pub struct Judged {
    pub name: &'static str,
    pub count: u64,
    pub most: u64,
    /// Where no queries are made, some bounds are others.
    pub unqueried: bool,
}

/// The bounds of one allocator.
#[derive(Default)]
pub struct Stated {
    /// No queries are made.
    pub deterministic: bool,
    markers: Window,
    /// Names that a clock may have.
    names: u64,
    uses: Window,
    pools: Window,
    timelines: Window,
    ranges: HashMap<StreamId, Window>,
    /// Events kept; the most markers at one time, and the most that tokens and the program had, before the pool was last asked and since.
    events: u64,
    peak: [u64; 2],
    tokens: [u64; 2],
    fitted: u64,
    /// The most events in use by what is pending, before the last check and since, and the most there were at the check.
    in_use: [u64; 2],
    alive: u64,
    /// Readers, and streams that were closed.
    readers: Unknown,
    closed: Unknown,
    /// Kept for something pending, and kept in that round, in the last rounds that looked at kept values: at one timeline's each.
    kept: VecDeque<(u64, u64)>,
    timelines_of_kept: u64,
    /// The most pools that there were, and the most of all else that has bytes.
    most: (u64, u64),
}

impl Stated {
    pub fn new(deterministic: bool) -> Stated {
        Stated { deterministic, events: LEAST, ..Stated::default() }
    }

    /// Each count and its bound. Nothing is said of uses where other arrays than the one have some.
    pub fn judge(&mut self, held: &Held, pending: &Pending, made: &Made, has: Has) -> Vec<Judged> {
        let timelines = held.of("timelines");
        let markers = if self.deterministic {
            2 * THINNED * timelines
        } else {
            (2 * pending.markers).max(BURST).max(timelines)
        };
        let (markers, looked) = self.markers.bound(markers, made.markers);
        // What is over is known then at the latest.
        let readers = self.readers.unknown(pending.readers, made.readers, looked);
        let closed = self.closed.unknown(pending.closed, made.closed, looked);
        // What a look left, and what one wait adds. A clock is looked at when its stream waits, so that the most counts that ever was pending at
        // one time.
        self.names = self.names.max(2 * pending.streams);
        let names = if self.deterministic { timelines - 1 } else { self.names.max(FEW_NAMES) + 1 };
        let clocks = timelines * names;
        // A list that was as long as it had to be does not give its room back.
        let things = ["markers", "kept values", "ranges in flight", "chunks"].map(|name| held.of(name));
        let most = things.iter().sum::<u64>() + has.events;
        self.most = (self.most.0.max(held.of("pools")), self.most.1.max(most));
        let bytes = BYTES + BYTES_A_POOL * self.most.0 + BYTES_EACH * self.most.1;
        // A marker's, one that rests in the pool, or one that is held and whose marker is retired: by the program, or by a kept value's token.
        let counted = ["markers", "events pooled", "kept values"].map(|name| held.of(name));
        let driver_events = counted.iter().sum::<u64>() + has.events;
        let kept = self.kept(held.of("kept values"), pending, made, timelines);
        let (pooled, alive) = self.events(held, made, has, (markers, kept));
        let bounds = [
            ("markers", markers),
            ("host bytes", bytes),
            ("driver events", driver_events),
            (ALIVE, alive),
            ("events pooled", pooled),
            ("clock entries", clocks),
            ("timelines", self.timelines(closed, made, has)),
            ("pools", self.pools(closed, made, has)),
            ("uses", self.uses(readers, made)),
            ("kept values", kept),
            ("recorded events", made.dropped),
        ];
        let judged = |(name, most)| Judged {
            name,
            count: match name {
                "host bytes" => held.1,
                "driver events" | ALIVE => held.2,
                _ => held.of(name),
            },
            most,
            unqueried: self.deterministic && ["markers", "clock entries", "timelines", ALIVE].contains(&name),
        };
        bounds.map(judged).into()
    }

    /// Those in the pool, and all that are alive, where so many may be markers and so many values be kept.
    fn events(&mut self, held: &Held, made: &Made, has: Has, (markers, kept): (u64, u64)) -> (u64, u64) {
        self.peak[1] = self.peak[1].max(held.of("markers"));
        // Kept values have tokens, whose events come back when the values are looked at; events that the program has come back when it lets
        // them go.
        let tokens = held.of("kept values") + has.events;
        self.tokens[1] = self.tokens[1].max(tokens);
        let peak = self.peak[0].max(self.peak[1]).next_power_of_two();
        let most = self.events.max(peak) + self.tokens[0].max(self.tokens[1]);
        // One is created where the pool is empty: then all are in use. What rests is given back at the check.
        self.in_use[1] = self.in_use[1].max(markers + kept + has.events);
        let in_use = self.in_use[0].max(self.in_use[1]);
        let alive = self.alive.max(in_use);
        // The pool is checked at a look, and when eight markers have been retired for each event that it keeps.
        if made.markers - self.fitted >= EVENTS_PAID * most + markers {
            self.fitted = made.markers;
            self.tokens = [self.tokens[1], tokens];
            self.events = LEAST.max(peak).max(self.events - self.events / 4);
            self.peak = [self.peak[1], held.of("markers")];
            self.alive = self.in_use[1] + most;
            self.in_use = [self.in_use[1], 0];
        }
        (most, alive)
    }

    /// The table has one of the context's too.
    fn timelines(&mut self, closed: u64, made: &Made, has: Has) -> u64 {
        let most = if self.deterministic {
            has.streams + 2 * UNFINISHED + 1
        } else {
            FEW_POOLS.max(2 * (has.streams + closed))
        };
        self.timelines.bound(most + 1, made.streams).0
    }

    /// One of those that are over takes the memory of the others.
    fn pools(&mut self, closed: u64, made: &Made, has: Has) -> u64 {
        self.pools.bound(FEW_POOLS.max(2 * (has.streams + closed + 1)) + 1, made.streams).0
    }

    fn uses(&mut self, readers: u64, made: &Made) -> u64 {
        self.uses.bound(FEW_USES.max(readers + readers / 4) + 1, made.new_readers).0
    }

    fn kept(&mut self, held: u64, pending: &Pending, made: &Made, timelines: u64) -> u64 {
        // Each timeline with kept values was in the table when the first of them was kept.
        self.timelines_of_kept = if held == 0 { timelines } else { self.timelines_of_kept.max(timelines) };
        if made.kept > 0 || self.kept.is_empty() {
            self.kept.push_back((pending.kept, made.kept));
        }
        // The timeline of the context has none.
        while self.kept.len() as u64 > self.timelines_of_kept {
            self.kept.pop_front();
        }
        self.kept[0].0 + self.kept.iter().skip(1).map(|k| k.1).sum::<u64>()
    }

    /// Ranges in flight of each pool: a few of each other stream's were freed since it was checked, and no more than that. And what all pools have
    /// of uses of these, places for uses, and references that are counted in advance.
    pub fn judge_pools(
        &mut self,
        (held, report): (&Held, &Report),
        pending: &Pending,
        made: &Made,
        has: Has,
    ) -> Vec<Judged> {
        let mut judged = Vec::new();
        // The one source in pinned memory has a place too.
        let [mut in_flight, mut places, mut batches] = [0, 1, 0];
        for pool in &report.pools {
            let Some(stream) = pool.stream else { continue };
            let of = |frees: &HashMap<StreamId, u64>| frees.get(&stream).copied().unwrap_or(0);
            let window = self.ranges.entry(stream).or_default();
            let unqueried = (FREES_A_QUESTION * has.streams).min(of(&made.frees) - window.made);
            let bound = FEW_RANGES.max(2 * (of(&pending.frees) + unqueried));
            let most = window.bound(bound, of(&made.frees)).0;
            let count = pool.in_flight_ranges;
            judged.push(Judged { name: "ranges in flight", count, most, unqueried: false });
            // One a user, of ranges that are bounded themselves.
            in_flight += USERS * count;
            places += of(&made.used);
            // A batch is counted when there is none, and less than one is left of the last.
            batches += (of(&made.handles) + BATCH - 1).saturating_sub(pool.live) / BATCH;
        }
        let of_all =
            [("uses in flight", in_flight), ("use slots", places), ("batches of references", batches)];
        judged.extend(of_all.map(|(name, most)| Judged {
            name,
            count: held.of(name),
            most,
            unqueried: false,
        }));
        judged
    }
}
