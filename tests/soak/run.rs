//! Runs a steady program for many rounds and looks whether anything grows.
//!
//! A round does the same every time, so whatever is held may depend on what is pending and on nothing else. The device is
//! at most [`PERIOD`] rounds behind, in one of four ways ([`Pace`]), and the program synchronises once a period, as little
//! as it likes. Every counter is read behind every round. The highest value in the last tenth of the rounds may not be
//! above the highest in the first tenth, beyond `judge::slack`: what the allocator forgets in batches has its highest points
//! where batch and period meet, and a tenth does not see all of them. What grows by one a round is then ten times as high;
//! what grows by one in 100 rounds is within that slack, and is known by its rise from each tenth to the next (`judge::Windows`).
//! Programs that end with
//! each round ([`Run::whole`]) have thirds in place of tenths, and those that take long fewer rounds (`whole` says which).
//!
//! Three more things are checked: no call to the driver becomes more frequent; each kind of call that the allocator makes for
//! its own sake is at most [`CALLS_AN_OPERATION`] an operation, over the whole run; at the end nothing is left, on the device
//! or on the host.

use super::judge::{Highest, Windows, first_tenth, grown_or_rising, plants_bugs, runs_away};
pub use super::judge::{PERIOD, rounds};
use millpond::units::GIB;
use millpond::{Allocator, Config};
use millpond_sim::{Call, Schedule, Sim};
use millpond_testkit::counted::Device;
use millpond_testkit::counting::{Account, device};
use std::fmt::Write;
use std::sync::Once;

/// What a run found, and the counters' highest values: in the first of the windows and in the last.
pub struct Soaked {
    pub rounds: u64,
    pub first: Counts,
    pub last: Counts,
    /// What is wrong; empty if nothing is.
    pub found: String,
    /// Whether that is about heights of counters and numbers of calls alone: nothing was out of order, and at the end nothing was left.
    only_heights: bool,
}

impl Soaked {
    /// Up to three runs, until nothing grows in one, or it has an error of another kind. For programs whose threads run at once: how much is
    /// pending hangs on how they are scheduled, and a rare schedule's peak looks like growth in one run; a leak grows in every one.
    pub fn of_three(mut run: impl FnMut() -> Soaked) -> Soaked {
        let mut soaked = run();
        for _ in 1..3 {
            if soaked.found.is_empty() || !soaked.only_heights {
                break;
            }
            soaked = run();
        }
        soaked
    }
    /// If something grew, what a run of ten times the rounds says, and of 100,000 at least. The order of frees may change behind thousands of rounds, in which memory lay
    /// one way, and then stay: a random program had one segment more from its 7,249th round on, and no more in 100,000. A leak grows in both.
    pub fn or_longer(self, rounds: u64, run: impl FnOnce(u64) -> Soaked) -> Soaked {
        if self.found.is_empty() || !self.only_heights || plants_bugs() {
            self
        } else {
            run((10 * rounds).max(100_000))
        }
    }
    /// What is wrong with the program of this name.
    pub fn verdict(self, name: &str, run: Run) -> Result<(), String> {
        if self.found.is_empty() { Ok(()) } else { Err(format!("{name}, {run:?}:{}", self.found)) }
    }
}

/// How far the device is behind the host.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Not at all.
    AtOnce,
    /// 32 rounds; the host never waits but by the program.
    Behind,
    /// A period: nothing runs before the host waits for it or the period is over.
    Late,
    /// A seeded coin decides what runs, the same in every period.
    Coin(u64),
}

impl Pace {
    /// The device of a world that has so many.
    fn sim(self, world: &mut Vec<Sim>) -> Sim {
        let sim = world.remove(0);
        match self {
            Pace::AtOnce => sim,
            Pace::Behind => sim.hold(32),
            Pace::Late => sim.schedule(Schedule::Latest),
            Pace::Coin(seed) => sim.schedule(Schedule::Random(seed)),
        }
    }
    fn after_round(self, sim: &Sim) {
        if let Pace::Behind = self {
            sim.tick();
        }
    }
    fn after_period(self, sim: &Sim) {
        if let Pace::Late | Pace::Coin(_) = self {
            sim.run_until_idle();
        }
        if let Pace::Coin(seed) = self {
            sim.set_schedule(Schedule::Random(seed));
        }
    }
}

/// A device with an allocator, for a program to begin on.
pub struct Bench {
    pub device: Device,
    pub gpu: Allocator<Device>,
    /// An allocator of another device, as made, if the run has one ([`Run::beside_another`]). What it holds is judged with the rest.
    pub neighbour: Option<Allocator<Device>>,
}

/// A program that goes on for ever.
pub struct Steady {
    /// One round, given its number.
    pub round: Box<dyn FnMut(u64)>,
    /// The synchronisation behind a period.
    pub synchronise: Box<dyn FnMut()>,
    /// Records, waits, queries and synchronisations that a round asks for by name.
    pub asked: u64,
}

/// How long a program runs, and on what.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "what the device and the run are like, each by itself")]
pub struct Run {
    pub pace: Pace,
    /// Rounds before anything is compared: until the device's lists are as long as they may be when nothing is pending.
    warm_up: u64,
    rounds: u64,
    /// Rounds between two synchronisations.
    period: u64,
    /// The first one in so many of the rounds is compared with the last.
    windows: u64,
    /// One in so many may come and go (`judge::slack`).
    part: u64,
    /// Whether the device has the bytes, and not only the order of what touches them.
    contents: bool,
    /// Whether the allocator is synchronised between periods, and the counters are read there: windows that are shorter than the
    /// time in which lists fill up to what is kept in any case would show that as growth.
    at_rest: bool,
    /// Whether a free of the driver's waits for the device.
    frees_wait: bool,
    /// Whether there is another device.
    neighbour: bool,
}

impl Run {
    /// A steady program.
    pub fn steady(pace: Pace) -> Run {
        Run {
            pace,
            warm_up: 0,
            rounds: rounds(),
            period: PERIOD,
            windows: 10,
            part: 4,
            contents: false,
            at_rest: false,
            frees_wait: true,
            neighbour: false,
        }
    }
    pub fn rounds(&self) -> u64 {
        self.rounds
    }
    /// Of so many rounds, whatever was requested.
    pub fn of_rounds(self, rounds: u64) -> Run {
        Run { rounds, ..self }
    }
    /// On a device whose frees wait for all of it, or for nothing.
    pub fn frees_wait(self, frees_wait: bool) -> Run {
        Run { frees_wait, ..self }
    }
    /// Beside another device with an allocator, or alone.
    pub fn beside_another(self, neighbour: bool) -> Run {
        Run { neighbour, ..self }
    }
    /// A fifth of the rounds, a thousand at least, behind a warm-up of half as many. Thirds in place of tenths: closed timelines are looked at once
    /// in some 300 rounds, at moments that come round with the period, and of two tenths of 200 rounds each sees another height.
    pub fn shortened(self) -> Run {
        let rounds = (self.rounds / 5).max(10 * PERIOD);
        Run { warm_up: rounds / 2, rounds, windows: 3, ..self }
    }
    /// On a device that has the bytes.
    pub fn with_contents(self) -> Run {
        Run { contents: true, ..self }
    }
    /// A program from its beginning to its end, so many times.
    pub fn whole(pace: Pace, rounds: u64) -> Run {
        Run {
            warm_up: 60,
            rounds,
            period: 5,
            windows: 3,
            part: 8,
            contents: true,
            at_rest: true,
            ..Run::steady(pace)
        }
    }
}

/// Rounds up to which the oracle judges too, which remembers every operation: or what `MILLPOND_SOAK_JUDGED` says.
fn judged() -> u64 {
    let said = std::env::var("MILLPOND_SOAK_JUDGED").ok();
    said.map_or(100_000, |n| n.parse().expect("MILLPOND_SOAK_JUDGED is a number"))
}

/// Where what is pending stays the same from round to round, an event is created once in so many operations.
pub const OPERATIONS_AN_EVENT: u64 = 16;

/// The pool gives a quarter of its events back when eight markers for each of them have been retired (`completion.rs`), and creates as many
/// anew at most: one event in so many markers, whatever is pending.
const MARKERS_AN_EVENT: u64 = 32;

/// Calls that the allocator makes for the sake of its bookkeeping, each at most so often an operation.
const CALLS_AN_OPERATION: u64 = 2;
const KEEPING: [Call; 7] = [
    Call::EventCreate,
    Call::EventDestroy,
    Call::EventRecord,
    Call::CtxRecordEvent,
    Call::EventQuery,
    Call::EventSynchronize,
    Call::StreamWaitEvent,
];

/// Names and values of everything that may not grow.
const COUNTERS: usize = 29;
pub type Counts = super::judge::Counts<COUNTERS>;

/// Reads every counter, of all devices together. What it needs itself is given back before it returns.
fn counts(account: Account, gpus: &[Allocator<Device>]) -> Counts {
    let mut all = [("", 0); COUNTERS];
    for gpu in gpus {
        add_counts(gpu, &mut all);
    }
    let held = account.library();
    all[COUNTERS - 2] = ("host blocks", u64::try_from(held.blocks).unwrap_or(0));
    all[COUNTERS - 1] = ("host bytes", u64::try_from(held.bytes).unwrap_or(0));
    all
}

/// Adds what one allocator and its device hold.
fn add_counts(gpu: &Allocator<Device>, all: &mut Counts) {
    let mut at = 0;
    let mut put = |name, value| {
        all[at] = (name, all[at].1 + value);
        at += 1;
    };
    for (name, value) in gpu.bookkeeping().counts() {
        put(name, value as u64);
    }
    let ledger = gpu.driver().ledger();
    put("driver events", ledger.events);
    put("driver streams", ledger.streams);
    put("plain ranges", ledger.plain_ranges);
    put("pinned ranges", ledger.pinned_ranges);
    put("handles", ledger.handles);
    put("mappings", ledger.mappings);
    put("reservations", ledger.reservations);
    put("device bytes", ledger.bytes_reserved);
    put("pinned bytes", ledger.bytes_pinned);
    debug_assert_eq!(at, COUNTERS - 2, "and those of the host's memory");
    millpond_testkit::counting::device(|| drop(ledger));
}

fn calls(gpus: &[Allocator<Device>]) -> [u64; Call::ALL.len()] {
    let mut all = [0; Call::ALL.len()];
    for gpu in gpus {
        let ledger = gpu.driver().ledger();
        all.iter_mut().zip(Call::ALL).for_each(|(all, call)| *all += ledger.calls_of(*call));
        millpond_testkit::counting::device(|| drop(ledger));
    }
    all
}

fn operations(gpus: &[Allocator<Device>]) -> u64 {
    gpus.iter().map(|gpu| gpu.driver().operations()).sum()
}

/// Of these calls, those that made markers.
fn markers(calls: &[u64; Call::ALL.len()]) -> u64 {
    calls[Call::EventRecord as usize] + calls[Call::CtxRecordEvent as usize]
}

/// Calls that so many markers pay for: how the pool of events follows what is pending hangs on the moments at which one looks.
fn paid_for(call: Call, markers: u64) -> u64 {
    if matches!(call, Call::EventCreate | Call::EventDestroy) { markers / MARKERS_AN_EVENT } else { 0 }
}

/// Runs a program at a pace. What grew is looked for in a longer run too: the calls that move handles of `windows_whose_handles_move` rise within 10,000 rounds,
/// and are even in 40,000.
///
/// # Panics
/// If anything grows, a call becomes more frequent, or something is left.
pub fn soak(name: &str, pace: Pace, config: Config, program: impl Fn(&Bench) -> Steady) {
    let run = Run::steady(pace);
    let of = move |run| soaked(run, config.clone(), &program);
    if let Err(why) = of(run).or_longer(run.rounds(), |rounds| of(run.of_rounds(rounds))).verdict(name, run) {
        panic!("{why}");
    }
}

/// As [`soak`], in one run, and says what was found.
pub fn try_soak(
    name: &str,
    run: Run,
    config: Config,
    program: impl FnOnce(&Bench) -> Steady,
) -> Result<(), String> {
    soaked(run, config, program).verdict(name, run)
}

/// A copy that is long enough for staging threads.
fn stage_a_copy() {
    let sim = Sim::new(GIB).contents(false);
    let gpu = Allocator::new(sim, Config::default().staging_threads(2)).expect("an allocator");
    let stream = gpu.stream().expect("a stream");
    gpu.array_from_slice(&vec![0_u8; 32 << 20], &stream).expect("a copy");
}

/// As [`try_soak`], with the counters.
pub fn soaked(run: Run, config: Config, program: impl FnOnce(&Bench) -> Steady) -> Soaked {
    static STAGED: Once = Once::new();
    let account = Account::open();
    // Made once a thread, by the first call that needs it, and there until its end.
    drop(millpond::driver::ThreadEnd::of_this_thread());
    // Made once a process, by the first staging threads, and there until its end.
    STAGED.call_once(|| Account::unassigned().scope(stage_a_copy));
    let mut soaked = account.scope(|| watch(account, run, config, program));
    // A thread of the program's may have ended and not have given its own back yet: it needs a processor, no time.
    let mut left = account.library();
    for _ in 0..100_000 {
        // The two are counted one after the other.
        if (left.blocks, left.bytes) == (0, 0) {
            break;
        }
        std::thread::yield_now();
        left = account.library();
    }
    if (left.blocks, left.bytes) != (0, 0) {
        soaked.only_heights = false;
        let _ = write!(soaked.found, "\n    host memory after the end: {left:?}");
    }
    soaked
}

fn watch(account: Account, run: Run, config: Config, program: impl FnOnce(&Bench) -> Steady) -> Soaked {
    let Run { pace, warm_up, rounds, period, windows, part, contents, at_rest, frees_wait, neighbour } = run;
    let mut world = device(|| Sim::devices(if neighbour { 2 } else { 1 }, 4 * GIB));
    let sim = device(|| {
        pace.sim(&mut world).oracle(rounds <= judged()).contents(contents).waiting_frees(frees_wait)
    });
    let device = Device::new(sim);
    let gpu = Allocator::new(device.clone(), config).expect("an allocator");
    let other = |sim| Allocator::new(Device::new(sim), Config::default()).expect("another allocator");
    let neighbour = millpond_testkit::counting::device(|| world.pop()).map(other);
    millpond_testkit::counting::device(|| drop(world));
    let bench = Bench { device: device.clone(), gpu: gpu.clone(), neighbour: neighbour.clone() };
    let gpus: Vec<_> = std::iter::once(gpu).chain(neighbour).collect();
    let Steady { mut round, mut synchronise, asked } = program(&bench);
    drop(bench);
    let tenth = if windows == 10 { first_tenth(rounds) } else { rounds / windows };
    let (mut early, mut late, mut parts) = (Highest(None), Highest(None), Windows::new());
    let mut one = |i: u64| {
        round(i);
        millpond_testkit::counting::device(|| pace.after_round(device.sim()));
        if i % period == period - 1 {
            millpond_testkit::counting::device(|| pace.after_period(device.sim()));
            synchronise();
            if at_rest {
                for gpu in &gpus {
                    gpu.synchronize().expect("it works");
                }
            }
        }
    };
    (0..warm_up).for_each(&mut one);
    let (mut at, before, operations_before) = ([[0; Call::ALL.len()]; 2], calls(&gpus), operations(&gpus));
    let (mut run_away, mut done) = (false, 0);
    for i in 0..rounds {
        one(warm_up + i);
        done = i + 1;
        if done == tenth {
            at[0] = calls(&gpus);
        } else if done == rounds - tenth {
            at[1] = calls(&gpus);
        }
        if at_rest && !(warm_up + done).is_multiple_of(period) {
            continue;
        }
        let now = counts(account, &gpus);
        parts.add(i, rounds, &now);
        if i < tenth {
            early.add(&now);
        } else if i >= rounds - tenth {
            late.add(&now);
        } else if runs_away(early.0.as_ref().expect("the first tenth is over"), &now, part) {
            late.add(&now);
            run_away = true;
            break;
        }
    }
    let (last, operations) = (calls(&gpus), operations(&gpus) - operations_before + done * asked);
    let (first, end) = (early.0.expect("rounds"), late.0.expect("rounds"));
    let mut found = account_apart(|| grown_or_rising((&first, &end), part, &parts, rounds / period));
    account_apart(|| {
        if run_away {
            let _ = write!(found, "\n    (given up after {done} rounds)");
        }
        for (i, call) in Call::ALL.iter().enumerate() {
            let (first, end) = (at[0][i] - before[i], last[i] - at[1][i]);
            let paid = paid_for(*call, markers(&last) - markers(&at[1]));
            if !run_away && end > (first + first / 4).max(paid) + 64 {
                let _ = write!(found, "\n    {} calls a tenth of the rounds: {first} -> {end}", call.name());
            }
            let all = last[i] - before[i];
            if KEEPING.contains(call) && all > 100 + CALLS_AN_OPERATION * operations {
                let _ = write!(found, "\n    {} calls for {operations} operations: {all}", call.name());
            }
        }
        let created = last[Call::EventCreate as usize] - at[0][Call::EventCreate as usize];
        if matches!(pace, Pace::AtOnce | Pace::Behind)
            && !run_away
            && created > 64 + operations / OPERATIONS_AN_EVENT
        {
            let _ = write!(
                found,
                "\n    events created after the first tenth: {created}, for {operations} operations"
            );
        }
    });
    let heights = found.len();
    drop((round, synchronise));
    let sims: Vec<Sim> =
        millpond_testkit::counting::device(|| gpus.iter().map(|gpu| gpu.driver().sim().clone()).collect());
    drop(gpus);
    millpond_testkit::counting::device(|| {
        found.push_str(&wrong_at_the_end(&sims));
        drop(sims);
    });
    drop(device);
    let only_heights = heights == found.len();
    Soaked { rounds: done, first, last: end, found: account_apart(|| found.clone()), only_heights }
}

/// What the devices still hold when all is dropped, and what was in no order; empty if nothing.
fn wrong_at_the_end(sims: &[Sim]) -> String {
    let mut found = String::new();
    sims[0].run_until_idle();
    let left: Vec<_> = sims.iter().flat_map(Sim::leaks).collect();
    if let Some(first) = left.first() {
        let many = left.len();
        let _ = write!(found, "\n    left on the device at the end: {many} things, the first {first}");
    }
    if let Err(verdict) = sims[0].verdict() {
        let _ = write!(found, "\n    {verdict}");
    }
    found
}

/// Runs something of the test's own, which is on no account.
fn account_apart<R>(run: impl FnOnce() -> R) -> R {
    Account::unassigned().scope(run)
}
