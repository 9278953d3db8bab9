//! What programs do in which what is pending varies: kinds of programs, and the phases of each, drawn by a seed.
//!
//! It does not know how a step is done (`pending`), nor what may be kept (`stated`).

use millpond::driver::random::SplitMix64;
use millpond::trace::{Event, Sink};
use millpond::{Config, Growth, Policy, Reuse};
use std::sync::Arc;

/// Choices from a seed.
pub struct Draw(SplitMix64);

impl Draw {
    pub const fn new(seed: u64) -> Draw {
        Draw(SplitMix64::new(seed))
    }
    /// A number below `n`, of the upper bits: a seed stands for a program, so this stays as it is.
    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next() >> 16) as usize % n
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A sink for everything, so that it is recorded.
struct Listens;

impl Sink for Listens {
    fn event(&self, _: u64, _: &Event) {}
}

/// What programs there are, in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A few streams that stay.
    Stay,
    /// The same: hundreds of events at once, and a long quiet time in which what they left has to go.
    Bursts,
    /// Streams that come and go, and read an array that stays.
    ComeAndGo,
    /// Both where no queries are made: markers are thinned, and closed streams waited for.
    UnqueriedStay,
    Unqueried,
    /// More streams than a clock names unqueried, which wait for each other: nothing of them is pending for long, or a few dozen are.
    Crowd,
    CrowdBehind,
}

pub const KINDS: [Kind; 7] = [
    Kind::Stay,
    Kind::Bursts,
    Kind::ComeAndGo,
    Kind::UnqueriedStay,
    Kind::Unqueried,
    Kind::Crowd,
    Kind::CrowdBehind,
];

impl Kind {
    pub fn of(seed: u64) -> Kind {
        KINDS[seed as usize % KINDS.len()]
    }
    pub fn is_unqueried(self) -> bool {
        matches!(self, Kind::UnqueriedStay | Kind::Unqueried)
    }
    pub fn comes_and_goes(self) -> bool {
        matches!(self, Kind::ComeAndGo | Kind::Unqueried)
    }
    pub fn rounds(self) -> usize {
        match self {
            // One burst at least has all of its quiet time; and a round is one wait.
            Kind::Bursts | Kind::Crowd | Kind::CrowdBehind => 5_000,
            _ => 3_000,
        }
    }
    pub fn streams(self, draw: &mut Draw) -> usize {
        match self {
            Kind::Crowd | Kind::CrowdBehind => 150 + draw.below(100),
            Kind::ComeAndGo | Kind::Unqueried => 2 + draw.below(8),
            Kind::UnqueriedStay => 4 + draw.below(3),
            Kind::Stay | Kind::Bursts => 2 + draw.below(3),
        }
    }
    pub fn config(self, draw: &mut Draw) -> Config {
        let policy = if draw.one_in(3) { Policy::Footprint } else { Policy::Latency };
        let reuse = [Reuse::WithWaits, Reuse::WithWaits, Reuse::Ordered, Reuse::Never][draw.below(4)];
        let mut config = Config::default().policy(policy).reuse(reuse).deterministic(self.is_unqueried());
        if self == Kind::ComeAndGo {
            config = config.sink(Arc::new(Listens));
        }
        // Growth by exactly what is requested has each request miss, and a miss drains: then it is not the frees that do.
        if draw.one_in(4) && self != Kind::Stay { config.growth(Growth::Exact) } else { config }
    }
}

/// Who waits for whom.
#[derive(Clone, Copy)]
pub enum Pattern {
    Any,
    /// One waits for all others, one after the other; all for an event of one's; each for the one before it.
    Gather(usize),
    Spread(usize),
    Chain,
}

/// What is done for some rounds: so many steps of each kind a round, and once in so many rounds the device runs all that is queued.
pub struct Phase {
    pub events: usize,
    /// Whether the program has its events until the phase is over, or lets each go at once.
    pub holds: bool,
    pub waits: usize,
    pub pattern: Pattern,
    pub frees: usize,
    /// Blocks of one pool that live at once, in one round of twenty; every second time another stream uses each.
    pub lives: usize,
    /// The pool whose blocks they are, if it is one alone.
    pub pool: Option<usize>,
    /// Whether markers of its may fail.
    pub fails: bool,
    pub copies: usize,
    /// Of the array that stays, and of streams' own by other streams.
    pub reads: usize,
    pub crosses: usize,
    /// Streams that go, and others that come.
    pub gone: usize,
    /// Never, if none.
    pub runs_each: Option<usize>,
    pub rounds: usize,
}

pub const NOTHING: Phase = Phase {
    events: 0,
    holds: false,
    waits: 0,
    pattern: Pattern::Any,
    frees: 0,
    lives: 0,
    pool: None,
    fails: false,
    copies: 0,
    reads: 0,
    crosses: 0,
    gone: 0,
    runs_each: None,
    rounds: 0,
};

impl Phase {
    /// The one behind another.
    pub fn next(kind: Kind, streams: usize, before: &Phase, draw: &mut Draw) -> Phase {
        match kind {
            Kind::Crowd | Kind::CrowdBehind => Phase::waits(kind, streams, before, draw),
            Kind::UnqueriedStay if draw.one_in(2) => Phase::unqueried(draw),
            Kind::Bursts if before.rounds > 0 && before.runs_each.is_none() => Phase::quiet(draw),
            Kind::Bursts => Phase::burst(draw),
            _ => match before.pool {
                Some(pool) if before.runs_each.is_none() => Phase::frees(pool, Some(1), draw),
                None if kind == Kind::Stay && draw.one_in(2) => Phase::frees(draw.below(streams), None, draw),
                _ => Phase::any(kind, draw),
            },
        }
    }

    pub fn any(kind: Kind, draw: &mut Draw) -> Phase {
        let comes_and_goes = kind.comes_and_goes();
        let (waits, frees) = (draw.below(4), draw.below(4));
        Phase {
            waits,
            frees,
            lives: if kind == Kind::Stay && waits == 3 && frees > 1 { 600 * frees } else { 0 },
            fails: draw.one_in(4),
            copies: draw.below(3),
            reads: if comes_and_goes { draw.below(3) } else { 0 },
            crosses: if comes_and_goes { 0 } else { draw.below(3) },
            gone: if comes_and_goes { draw.below(3) } else { 0 },
            runs_each: [None, Some(1), Some(1), Some(7), Some(60)][draw.below(5)],
            rounds: 1 + draw.below(if comes_and_goes { 150 } else { 400 }),
            ..NOTHING
        }
    }

    /// Blocks of one pool and nothing else, so that only frees look: first none of their uses ends, and then all do.
    pub fn frees(pool: usize, runs_each: Option<usize>, draw: &mut Draw) -> Phase {
        Phase {
            frees: 1 + draw.below(4),
            pool: Some(pool),
            fails: runs_each.is_none(),
            runs_each,
            rounds: if runs_each.is_none() { 50 } else { 200 } + draw.below(100),
            ..NOTHING
        }
    }

    /// Hundreds of events at once, while the device stands still.
    pub fn burst(draw: &mut Draw) -> Phase {
        Phase {
            events: 1 + draw.below(16),
            holds: draw.one_in(2),
            waits: draw.below(4),
            copies: draw.below(2),
            rounds: 20 + draw.below(40),
            ..NOTHING
        }
    }

    /// Few at a time, and long enough that what a burst left is given back: the pool is checked once in eight markers for each event that it keeps,
    /// remembers the most of the time before, and then falls by a quarter at a time.
    pub fn quiet(draw: &mut Draw) -> Phase {
        Phase {
            events: 8 + draw.below(8),
            waits: draw.below(2),
            frees: draw.below(2),
            runs_each: Some(1),
            rounds: 2_000 + draw.below(1_000),
            ..NOTHING
        }
    }

    /// Thousands of markers, and the program never waits.
    pub fn unqueried(draw: &mut Draw) -> Phase {
        Phase { waits: 4 + draw.below(8), copies: draw.below(2), rounds: 200 + draw.below(200), ..NOTHING }
    }

    /// One wait a round, and one operation now and then. A stream that has waited for many is waited for by all.
    pub fn waits(kind: Kind, streams: usize, before: &Phase, draw: &mut Draw) -> Phase {
        let one = draw.below(streams);
        let pattern = match before.pattern {
            Pattern::Gather(hub) => Pattern::Spread(hub),
            _ => [Pattern::Any, Pattern::Gather(one), Pattern::Gather(one), Pattern::Chain][draw.below(4)],
        };
        Phase {
            waits: 1,
            pattern,
            crosses: draw.below(2),
            runs_each: Some(if kind == Kind::CrowdBehind && draw.one_in(8) { 60 } else { 1 }),
            // As many as a clock names unqueried, or as there are.
            rounds: match pattern {
                Pattern::Gather(_) if draw.one_in(2) => 32 + draw.below(32),
                Pattern::Any => 50 + draw.below(streams),
                _ => streams,
            },
            ..NOTHING
        }
    }
}
