//! Steady programs by a seed: a round of some steps over four streams, a few arrays and blocks, drawn once and repeated.
//!
//! Every step leaves the next round as much as it found: blocks, events and tokens lie in slots, and who fills a slot drops
//! what was in it. The seed also draws the allocator's options, the pace, and how the program synchronises, if it does. Programs are
//! of several kinds ([`Kind`]): with captures of others', with streams that others end, on threads.
//!
//! It does not know what a step does (`machine`), nor how threads take turns (`crew`).

use super::crew::{Crew, Task};
use super::machine::{ARRAYS, Machine, STREAMS, Step, Verb, streams};
use super::run::{Bench, PERIOD, Pace, Run, Soaked, Steady, soaked};
use millpond::units::KIB;
use millpond::{Config, Growth, Policy, Reuse};
use std::sync::{Arc, Mutex};

/// Seeds of an ordinary run, in four tests. `MILLPOND_SOAK_SEED` says where they begin.
pub const SEEDS: u64 = 78;
/// Programs of smaller seeds forget no guard, and nothing is refused or fails in them: of those it is known which planted leaks they find.
const PLAIN: u64 = 32;
/// How many of the verbs they have.
const PLAIN_VERBS: usize = 30;
/// Below this one no program is of a kind of its own.
const KINDS: u64 = 48;

/// What programs of a seed have that others have not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Plain,
    /// All verbs of one thread.
    Every,
    /// Half of the streams are somebody else's, who captures on them and on one that the allocator does not know.
    Captures,
    /// Streams that somebody else ends, whose handles come back.
    Mortal,
    /// Two or three threads that take turns: what one allocates another frees.
    Turns,
    /// Two or three threads at once on the same streams, each with blocks and arrays of its own.
    AtOnce,
    /// A deterministic allocator, which asks no event; and no synchronisation of the allocator: the program waits for each stream.
    Deterministic,
}

impl Kind {
    pub fn of(seed: u64) -> Kind {
        use Kind::{AtOnce, Captures, Deterministic, Every, Mortal, Plain, Turns};
        match seed {
            ..PLAIN => Plain,
            PLAIN..KINDS => Every,
            _ => [Captures, Mortal, Turns, AtOnce, Deterministic, Every][((seed - KINDS) % 6) as usize],
        }
    }
    fn verbs(self) -> Vec<Verb> {
        let all = if self == Kind::Plain { &Verb::ALL[..PLAIN_VERBS] } else { &Verb::ALL };
        // A failure that is planted strikes whoever calls next.
        let alone = |verb: &&Verb| !matches!(verb, Verb::RefusedByDriver | Verb::MarkerFails);
        all.iter().filter(|verb| self != Kind::AtOnce || alone(verb)).copied().collect()
    }
    /// What each of its programs has some of.
    fn own(self) -> &'static [Verb] {
        match self {
            Kind::Captures => &[Verb::Capture, Verb::CaptureEnds],
            Kind::Mortal => &[Verb::MortalNamed, Verb::MortalUnnamed],
            _ => &[],
        }
    }
}

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

/// A program, as drawn.
#[derive(Clone, Debug)]
struct Drawn {
    kind: Kind,
    config: Vec<&'static str>,
    pace: Pace,
    synchronise: Synchronise,
    /// Each with the thread that makes it.
    steps: Vec<(usize, Step)>,
    threads: usize,
}

#[derive(Clone, Copy, Debug)]
enum Synchronise {
    One(usize),
    All,
    Never,
    /// Every stream, one after the other; or one a period in turn.
    Each,
    InTurn,
}

fn draw(seed: u64) -> (Drawn, Config) {
    let (mut draw, kind) = (Draw(seed), Kind::of(seed));
    let mut config = Config::default();
    let mut said = Vec::new();
    let mut option = |one_in: usize, name: &'static str, set: fn(Config) -> Config| {
        if draw.below(one_in) == 0 {
            said.push(name);
            config = set(std::mem::take(&mut config));
        }
    };
    option(6, "deterministic", |c| c.deterministic(true));
    option(4, "footprint", |c| c.policy(Policy::Footprint));
    option(6, "no reuse", |c| c.reuse(Reuse::Never));
    option(6, "ordered reuse", |c| c.reuse(Reuse::Ordered));
    option(6, "exact growth", |c| c.growth(Growth::Exact));
    option(8, "scrub", |c| c.scrub(true));
    if kind != Kind::Plain {
        option(8, "a stream is independent", |c| c);
    }
    if kind == Kind::Deterministic {
        option(1, "deterministic", |c| c.deterministic(true));
    }
    let pace = [Pace::AtOnce, Pace::Behind, Pace::Late, Pace::Coin(seed)][draw.below(4)];
    let synchronise = match draw.below(6) {
        n if kind == Kind::Deterministic => [Synchronise::Each, Synchronise::InTurn][n % 2],
        // What only the program's word gives back, it gets.
        _ if matches!(kind, Kind::Captures | Kind::Mortal) => Synchronise::All,
        // It asks no event, so that it learns of no stream that the program never waits for.
        _ if said.contains(&"deterministic") => Synchronise::All,
        0 => Synchronise::All,
        1 => Synchronise::Never,
        n => Synchronise::One(n - 2),
    };
    let verbs = kind.verbs();
    let step = |draw: &mut Draw, verbs: &[Verb]| {
        let (s, i) = (draw.below(STREAMS), draw.below(ARRAYS));
        Step {
            verb: verbs[draw.below(verbs.len())],
            s,
            t: (s + 1 + draw.below(STREAMS - 1)) % STREAMS,
            i,
            j: (i + 1 + draw.below(ARRAYS - 1)) % ARRAYS,
            bytes: [512, 4 * KIB, 60 * KIB, 300 * KIB, 5 << 20][draw.below(5)],
        }
    };
    let mut steps: Vec<Step> = (0..3 + draw.below(10)).map(|_| step(&mut draw, &verbs)).collect();
    for verb in kind.own() {
        for _ in 0..=draw.below(2) {
            let at = draw.below(steps.len() + 1);
            steps.insert(at, step(&mut draw, &[*verb]));
        }
    }
    let threads = if matches!(kind, Kind::Turns | Kind::AtOnce) { 2 + draw.below(2) } else { 1 };
    let steps = steps.into_iter().map(|step| (draw.below(threads), step)).collect();
    (Drawn { kind, config: said, pace, synchronise, steps, threads }, config)
}

fn program(drawn: &Drawn, b: &Bench) -> Steady {
    let streams = streams(b, drawn.kind == Kind::Captures);
    streams[STREAMS - 1].set_independent(drawn.config.contains(&"a stream is independent"));
    // At once each thread has blocks and arrays of its own.
    let machines = if drawn.kind == Kind::AtOnce { drawn.threads } else { 1 };
    let machines: Arc<Vec<_>> =
        Arc::new((0..machines).map(|_| Mutex::new(Machine::new(b, streams.clone()))).collect());
    let (gpu, steps, how) = (b.gpu.clone(), drawn.steps.clone(), drawn.synchronise);
    let asked = steps.iter().map(|(_, step)| step.verb.asked()).sum();
    let captures = Arc::clone(&machines);
    let mut turn = 0;
    let synchronise = move || {
        captures.iter().for_each(|machine| machine.lock().expect("no panic").capture_ends());
        let wait = |s: usize| streams[s].synchronize().expect("waited");
        turn += 1;
        match how {
            Synchronise::One(s) => wait(s),
            Synchronise::All => gpu.synchronize().expect("waited"),
            Synchronise::Never => {}
            Synchronise::Each => (0..STREAMS).for_each(wait),
            Synchronise::InTurn => wait(turn % STREAMS),
        }
    };
    Steady { asked, round: rounds_of(drawn, machines, steps), synchronise: Box::new(synchronise) }
}

/// A round on this thread, or on others.
fn rounds_of(
    drawn: &Drawn,
    machines: Arc<Vec<Mutex<Machine>>>,
    steps: Vec<(usize, Step)>,
) -> Box<dyn FnMut(u64)> {
    let (kind, threads) = (drawn.kind, drawn.threads);
    let who: Vec<usize> = steps.iter().map(|(thread, _)| *thread).collect();
    let make = move |thread: usize, task: Task| {
        let mut machine = machines[thread % machines.len()].lock().expect("no panic");
        match task {
            Task::One(step) => machine.step(steps[step].1),
            Task::Own => steps.iter().filter(|s| s.0 == thread).for_each(|s| machine.step(s.1)),
        }
    };
    if threads == 1 {
        return Box::new(move |_| make(0, Task::Own));
    }
    let crew = Crew::new(threads, make);
    if kind == Kind::AtOnce {
        return Box::new(move |_| {
            (0..threads).for_each(|thread| crew.give(thread, Task::Own));
            crew.rest();
        });
    }
    Box::new(move |_| {
        for (step, &thread) in who.iter().enumerate() {
            crew.give(thread, Task::One(step));
            crew.rest();
        }
    })
}

/// The program of a seed, as it is run.
pub fn run(seed: u64) -> Soaked {
    let (drawn, config) = draw(seed);
    soaked(Run::steady(drawn.pace), config, |b| program(&drawn, b))
}

/// The program of a seed: what grew, and the program.
pub fn try_seed(seed: u64) -> Result<(), String> {
    let (drawn, _) = draw(seed);
    let run = || run(seed).verdict(&format!("seed_{seed}"), Run::steady(drawn.pace));
    let soaked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|why| {
        let said = why.downcast_ref::<String>().map_or("a panic", |said| said.as_str());
        Err(format!("seed_{seed} panics: {said}"))
    });
    soaked.map_err(|why| {
        let steps: Vec<_> = drawn.steps.iter().map(|step| format!("    {step:?}\n")).collect();
        let Drawn { kind, config, synchronise: how, threads, .. } = &drawn;
        format!(
            "{why}\n  {kind:?}, {threads} threads, {config:?}, synchronise {how:?} after {PERIOD} rounds of\n{}",
            steps.concat()
        )
    })
}

/// Where the seeds begin.
pub fn base() -> u64 {
    std::env::var("MILLPOND_SOAK_SEED").map_or(0, |n| n.parse().expect("MILLPOND_SOAK_SEED is a number"))
}

/// Every fourth seed from here on.
fn seeds(from: u64) {
    let base = base();
    let seeds = (base + from..base + SEEDS).step_by(4);
    let found: Vec<_> = seeds.filter_map(|seed| try_seed(seed).err()).collect();
    assert!(found.is_empty(), "{} programs:\n{}", found.len(), found.join("\n"));
}

#[test]
fn seeds_0_4_8() {
    seeds(0);
}
#[test]
fn seeds_1_5_9() {
    seeds(1);
}
#[test]
fn seeds_2_6_10() {
    seeds(2);
}
#[test]
fn seeds_3_7_11() {
    seeds(3);
}
