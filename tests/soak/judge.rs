//! What a soak compares, and by how much it may change: whatever device the programs run on. It knows no program.

#![allow(dead_code, unreachable_pub, reason = "each soak uses some of it")]

use std::fmt::Write;

/// Rounds between two synchronisations, and the most that the device is behind.
pub const PERIOD: u64 = 100;

/// What `MILLPOND_SOAK_ROUNDS` says.
pub fn rounds_requested() -> Option<u64> {
    let asked = std::env::var("MILLPOND_SOAK_ROUNDS").ok();
    asked.map(|n| n.replace('_', "").parse().expect("MILLPOND_SOAK_ROUNDS is a number"))
}

/// Whether this is an ordinary run of the tests, which has a part of what takes minutes: `.ci/soak` asks for all rounds.
pub fn is_ordinary() -> bool {
    rounds_requested().is_none()
}

/// Whether this process looks for planted bugs. A build that can plant them also runs right code alone, which `MILLPOND_NOTHING_PLANTED` says.
pub fn plants_bugs() -> bool {
    cfg!(millpond_mutants) && std::env::var_os("MILLPOND_NOTHING_PLANTED").is_none()
}

/// Rounds of a run: 4,000, or what was requested; 10,000 where bugs are planted, which have to show. The first thousand are compared then, as of 10,000 ([`first_tenth`]).
pub fn rounds() -> u64 {
    let rounds = rounds_requested().unwrap_or(if plants_bugs() { 10_000 } else { 4_000 });
    assert!(rounds >= 10 * PERIOD, "a tenth of the rounds holds a period: ask for at least {}", 10 * PERIOD);
    rounds
}

/// Rounds whose high-water marks are compared with those of as many at the end: as many as in a run of 10,000, until lists are as
/// long as they may be when nothing is pending, or twice what is; a third at most. A tenth of 2,000 rounds ended before the third look at
/// markers, which is the first that finds a whole period's pending (`markers_are_twice_those_that_are_pending` in `tests/cudarc_soak.rs`).
pub fn first_tenth(rounds: u64) -> u64 {
    (rounds / 10).max(1000.min(rounds / 3))
}

/// Names and values of what may not grow.
pub type Counts<const N: usize> = [(&'static str, u64); N];

/// The highest values of a tenth.
pub struct Highest<const N: usize>(pub Option<Counts<N>>);

impl<const N: usize> Highest<N> {
    pub fn add(&mut self, now: &Counts<N>) {
        let highest = self.0.get_or_insert(*now);
        for (high, now) in highest.iter_mut().zip(now) {
            high.1 = high.1.max(now.1);
        }
    }
}

/// By how much a counter's highest value may change between tenths: a quarter, an eighth in programs that end, and a few. Entries
/// of clocks, which are for pairs of timelines, half: they are forgotten when all timelines are looked at, and in between they grow
/// with the square.
fn slack(name: &str, before: u64, part: u64) -> u64 {
    let part = if name == "clock entries" { 2 } else { part };
    before / part + if name.ends_with("bytes") { 32 << 10 } else { 8 }
}

/// What a counter is held to. Pooled events are those of the driver's events that are not in use at a look, so they are held to all that
/// there were: an event is created where the pool is empty, and so there are as many as were in use at one time. That number is compared
/// with its own, by a quarter: it is what hangs on what is pending, and how many of them rest in a moment hangs on the moment.
fn held_to<const N: usize>(early: &Counts<N>, name: &str, before: u64) -> u64 {
    let events = early.iter().find(|(of, _)| *of == "driver events" && name == "events pooled");
    events.map_or(before, |(_, events)| before.max(*events))
}

/// A run in so many parts.
const WINDOWS: usize = 10;

/// The lowest and the highest values of each part of a run: what grows slowly is within the slack of its end, and still higher in each part
/// than in the one before.
pub struct Windows<const N: usize>([Option<[Counts<N>; 2]>; WINDOWS]);

impl<const N: usize> Windows<N> {
    pub fn new() -> Windows<N> {
        Windows([const { None }; WINDOWS])
    }

    /// A reading behind round `i` of so many.
    pub fn add(&mut self, i: u64, rounds: u64, now: &Counts<N>) {
        let [low, high] = self.0[(i * WINDOWS as u64 / rounds) as usize].get_or_insert([*now; 2]);
        for n in 0..N {
            low[n].1 = low[n].1.min(now[n].1);
            high[n].1 = high[n].1.max(now[n].1);
        }
    }

    /// What rises without an end, in words; empty if nothing does. The first part is left out: lists fill there up to what is kept in any case.
    /// A leak of one thing in 100 of 10,000 rounds, or in 10,000 of a million, lifts lowest and highest values by ten from part to part. Those of right code go up and down,
    /// or stay. One of them is enough: what is pending may hide it from the other. Without all parts, nothing is said.
    /// Nor of a run of fewer than 40 periods: of parts with two each the highest values have risen by chance, of which 50,000 rounds had none.
    pub fn rising(&self, periods: u64) -> String {
        let mut text = String::new();
        if periods < 4 * WINDOWS as u64 {
            return text;
        }
        let Some(parts) = self.0[1..].iter().copied().collect::<Option<Vec<_>>>() else { return text };
        for n in 0..N {
            let name = parts[0][0][n].0;
            let least = if name.ends_with("bytes") { 512 } else { 8 };
            for (of, which) in ["lowest", "highest"].iter().enumerate() {
                let values: Vec<u64> = parts.iter().map(|part| part[of][n].1).collect();
                let (first, last) = (values[0], values[values.len() - 1]);
                if values.is_sorted_by(|a, b| a < b) && last - first >= least {
                    let _ =
                        write!(text, "\n    {name}: rises in every tenth of the rounds, {which} {values:?}");
                    break;
                }
            }
        }
        text
    }
}

/// A line for a program's run: the verdict, and the counters at the end of the first part and of the last, those that ever counted something.
pub fn line<const N: usize>(
    name: &str,
    (rounds, seconds): (u64, f64),
    first: &Counts<N>,
    last: &Counts<N>,
    found: &str,
) -> String {
    let verdict = if found.is_empty() { "ok  " } else { "FAIL" };
    let mut text = format!(
        "{verdict} {name}: {rounds} rounds in {seconds:.1} s, {:.0} a second",
        rounds as f64 / seconds
    );
    for ((name, first), (_, last)) in first.iter().zip(last) {
        if (*first, *last) != (0, 0) {
            let _ = write!(text, "; {name} {first} -> {last}");
        }
    }
    text + found
}

/// What grew between two readings or, if nothing did, rises in the parts of so many periods, in words; empty if nothing does.
pub fn grown_or_rising<const N: usize>(
    (early, late): (&Counts<N>, &Counts<N>),
    part: u64,
    parts: &Windows<N>,
    periods: u64,
) -> String {
    let grown = grown(early, late, part);
    if grown.is_empty() { parts.rising(periods) } else { grown }
}

/// What grew between two readings, in words; empty if nothing did.
fn grown<const N: usize>(early: &Counts<N>, late: &Counts<N>, part: u64) -> String {
    let mut text = String::new();
    for ((name, before), (_, after)) in early.iter().zip(late) {
        let most = held_to(early, name, *before);
        if *after > most + slack(name, most, part) {
            let _ = write!(text, "\n    {name}: {before} -> {after}");
        }
    }
    text
}

/// So much that the end need not be seen.
pub fn runs_away<const N: usize>(early: &Counts<N>, now: &Counts<N>, part: u64) -> bool {
    early.iter().zip(now).any(|((name, before), (_, now))| {
        let most = held_to(early, name, *before);
        *now > 2 * (most + slack(name, most, part))
    })
}
