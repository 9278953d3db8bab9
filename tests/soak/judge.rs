//! What a soak compares, and by how much it may change: whatever device the programs run on. It knows no program.

#![allow(dead_code, unreachable_pub, reason = "each soak uses some of it")]

use std::fmt::Write;

/// Rounds between two synchronisations, and the most that the device is behind.
pub const PERIOD: u64 = 100;

/// What `MILLPOND_SOAK_ROUNDS` says.
pub fn rounds_asked() -> Option<u64> {
    let asked = std::env::var("MILLPOND_SOAK_ROUNDS").ok();
    asked.map(|n| n.replace('_', "").parse().expect("MILLPOND_SOAK_ROUNDS is a number"))
}

/// Whether this is an ordinary run of the tests, which has a part of what takes minutes: `.ci/soak` asks for all rounds.
pub fn is_ordinary() -> bool {
    rounds_asked().is_none()
}

/// Rounds of a run: 10,000, or what was asked for.
pub fn rounds() -> u64 {
    let rounds = rounds_asked().unwrap_or(10_000);
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

/// What a counter is held to. Pooled events are those of the driver's events that nobody uses when one looks, so they are held to all that
/// there were: an event is created where the pool is empty, and so there are as many as were in use at one time. That number is compared
/// with its own, by a quarter: it is what hangs on what is pending, and how many of them rest in a moment hangs on the moment.
fn held_to<const N: usize>(early: &Counts<N>, name: &str, before: u64) -> u64 {
    let events = early.iter().find(|(of, _)| *of == "driver events" && name == "events pooled");
    events.map_or(before, |(_, events)| before.max(*events))
}

/// What grew between two readings, in words; empty if nothing did.
pub fn grown<const N: usize>(early: &Counts<N>, late: &Counts<N>, part: u64) -> String {
    let mut text = String::new();
    for ((name, before), (_, after)) in early.iter().zip(late) {
        let most = held_to(early, name, *before);
        if *after > most + slack(name, most, part) {
            let _ = write!(text, "\n    {name}: {before} -> {after}");
        }
    }
    text
}

/// So much that nobody needs to see the end.
pub fn runs_away<const N: usize>(early: &Counts<N>, now: &Counts<N>, part: u64) -> bool {
    early.iter().zip(now).any(|((name, before), (_, now))| {
        let most = held_to(early, name, *before);
        *now > 2 * (most + slack(name, most, part))
    })
}
