//! Limits: what counts under one, alone and in a group of allocators, when the crossing of a soft one is reported, and how much idle memory goes back.
//!
//! ```text
//!   reserved    |----------- soft limit ------------- hard limit
//!                growth as the policy has it | reuse and moves before growth | none
//!   cached      |---- low ------------ high
//!                             ↑ nothing  | above it: back down to low
//! ```
//!
//! It does not know a lock, a driver, a pool, or who reserves.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]

use crate::units::Epoch;
use core::time::Duration;
use std::collections::BTreeMap;

/// How many bytes of a claim count in a group: each once.
pub fn claimed(bytes: u64) -> u64 {
    if mutant!(GroupCountsTwice) { bytes.saturating_mul(2) } else { bytes }
}

/// How many bytes a member gives up in its group when a claim was refused by the driver, or memory went back to the device.
pub fn given_up(bytes: u64) -> u64 {
    if mutant!(GroupUnclaimLost) { 0 } else { bytes }
}

/// How many bytes a member that ends gives up: all that it held but for what stays allocated for good.
pub fn given_up_at_end(held: u64, kept: u64) -> u64 {
    if mutant!(GroupEndCounts) { 0 } else { held.saturating_sub(kept) }
}

/// Whether a growth is reported as the crossing of a soft limit: it is the first above it since what is reserved was not.
pub fn reports_crossing(above: bool, reported: bool) -> bool {
    above && (!reported || mutant!(SoftReportedAlways))
}

/// How many cached bytes are to go back: none up to `high`, and above that what exceeds `low`.
pub fn above_marks(cached: u64, low: u64, high: u64) -> u64 {
    if cached > high || mutant!(MarksWithoutGap) { cached.saturating_sub(low) } else { 0 }
}

/// Whether bytes whose last use was before `used` have been idle for `age` at `now`.
pub fn is_idle(used: Duration, now: Duration, age: Duration) -> bool {
    now.saturating_sub(used) >= age || mutant!(IdleAtOnce)
}

/// When a request looks whether too much is reserved: a look asks every pool, and gives nothing back while all of it is in use.
#[derive(Default, Debug)]
pub struct Pace {
    /// Requests until the next look.
    left: usize,
    /// Looks in a row that found too much and gave nothing back.
    vain: u32,
    /// The handles that the next look passes over.
    behind: usize,
}

/// A request of so many pools looks once.
const POOLS_A_REQUEST: usize = 16;
/// Looks in vain in a row double the requests between two at most so often.
const MOST_VAIN: u32 = 10;

impl Pace {
    /// Whether a request that comes now looks.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }
    /// The handles that a look passes over, which those before it have looked at.
    pub fn behind(&self) -> usize {
        self.behind
    }
    /// A look at so many pools and at most so many handles found too much, or not, and gave some back, or not.
    pub fn looked(&mut self, (pools, handles): (usize, usize), too_much: bool, gave: bool) {
        let in_vain = too_much && !gave;
        self.vain = if in_vain { (self.vain + 1).min(MOST_VAIN) } else { 0 };
        self.behind = self.behind.wrapping_add(if in_vain { handles } else { 0 });
        self.left = ((1 + pools / POOLS_A_REQUEST) << self.vain) - 1;
    }
}

/// How many notes of a pool are kept: of more every other one goes, which makes ages seem less.
const NOTES: usize = 64;

/// For each pool when its stream had which number, in order.
#[derive(Default, Debug)]
pub struct Notes {
    noted: BTreeMap<u32, Vec<(Duration, Epoch)>>,
}

impl Notes {
    /// Notes that these pools' streams have these numbers now, and forgets other pools.
    pub fn note(&mut self, now: Duration, numbers: &BTreeMap<u32, Epoch>) {
        self.noted.retain(|pool, _| numbers.contains_key(pool));
        for (&pool, &number) in numbers {
            let notes = self.noted.entry(pool).or_default();
            // Of one number the first time counts.
            if notes.last().is_none_or(|&(_, last)| last < number) {
                notes.push((now, number));
            }
            if notes.len() > NOTES {
                let mut nth = 0;
                notes.retain(|_| {
                    nth += 1;
                    nth % 2 == 1
                });
            }
        }
    }

    /// For each pool the stamp up to which everything has been idle for `age`.
    pub fn idle_for(&self, age: Duration, now: Duration) -> BTreeMap<u32, Epoch> {
        let newest = |notes: &Vec<(Duration, Epoch)>| {
            notes.iter().rev().find(|(used, _)| is_idle(*used, now, age)).map(|&(_, number)| number)
        };
        self.noted.iter().filter_map(|(&pool, notes)| Some((pool, newest(notes)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_is_reported_once() {
        let mut reported = false;
        let mut crossings = 0;
        for above in [false, true, true, false, true] {
            crossings += u32::from(reports_crossing(above, reported));
            reported = above;
        }
        assert_eq!(crossings, 2);
    }

    #[test]
    fn marks_have_a_gap() {
        let back = [0, 4, 5, 8, 9, 20].map(|cached| above_marks(cached, 4, 8));
        assert_eq!(back, [0, 0, 0, 0, 5, 16]);
        assert_eq!((above_marks(1, 0, 0), above_marks(u64::MAX, 0, u64::MAX)), (1, 0));
    }

    #[test]
    fn idle_is_an_age() {
        let s = Duration::from_secs;
        assert!(is_idle(s(1), s(6), s(5)) && !is_idle(s(2), s(6), s(5)) && !is_idle(s(9), s(6), s(5)));
        assert!(is_idle(s(9), s(6), s(0)), "a clock that went back has stood still");
    }

    #[test]
    fn books_balance() {
        assert_eq!((claimed(7), given_up(7)), (7, 7));
        assert_eq!((given_up_at_end(9, 0), given_up_at_end(9, 4), given_up_at_end(4, 9)), (9, 5, 0));
    }

    #[test]
    fn looks_in_vain_become_rare() {
        let mut pace = Pace::default();
        let mut requests_until_due = |too_much, gave, pools| {
            pace.looked((pools, 512), too_much, gave);
            (0..1 << 20).take_while(|_| !pace.is_due()).count()
        };
        assert_eq!([(); 4].map(|()| requests_until_due(true, false, 1)), [1, 3, 7, 15]);
        assert_eq!((requests_until_due(true, true, 1), requests_until_due(false, false, 160)), (0, 10));
        let most = (0..40).map(|_| requests_until_due(true, false, 1)).max();
        assert_eq!((most, pace.behind()), (Some(1023), 44 * 512));
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn of(number: u64) -> BTreeMap<u32, Epoch> {
        BTreeMap::from([(7, Epoch(number))])
    }

    #[test]
    fn a_stamp_is_idle_since_its_number_was_noted_first() {
        let mut idle = Notes::default();
        for (at, number) in [(0, 1), (10, 4), (20, 4), (30, 9)] {
            idle.note(s(at), &of(number));
        }
        let idle_for = |age, now| idle.idle_for(s(age), s(now)).get(&7).map(|number| number.0);
        assert_eq!(
            [0, 1, 20, 21, 30, 31].map(|age| idle_for(age, 30)),
            [9, 4, 4, 1, 1, 0].map(|n| (n > 0).then_some(n))
        );
        assert_eq!(idle_for(50, 60), Some(4));
    }

    #[test]
    fn notes_are_bounded_and_seem_no_older() {
        let mut idle = Notes::default();
        for n in 1..1000 {
            idle.note(s(n), &of(n));
            assert!(idle.noted[&7].len() <= NOTES);
            for age in [1, 10, 100] {
                let newest = idle.idle_for(s(age), s(n)).get(&7).map_or(0, |number| number.0);
                assert!(newest == 0 || newest + age <= n, "noted at {newest}, and {age} old at {n}");
                assert!(n < 3 * age + 200 || newest > 0, "nothing is {age} old at {n}");
            }
        }
        idle.note(s(1000), &BTreeMap::new());
        assert!(idle.noted.is_empty());
    }
}
