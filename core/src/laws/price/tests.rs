//! The bucket's arithmetic: what may be spent, when a level rises and falls, and what a level does.

use super::*;
use proptest::prelude::*;

const MILLI: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const PERCENT: u64 = 10_000;

/// A bucket of 1 % with a credit of 10 ms, at the beginning of time.
fn bucket() -> Bucket {
    Bucket::new(PERCENT, Duration::from_millis(10), Duration::ZERO)
}

const fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_level_is_a_step_that_is_owed() {
    let mut b = bucket();
    assert_eq!(b.account(at(0), 10 * MILLI), 0, "the credit");
    assert_eq!(b.account(at(0), 1), 1, "nothing is left");
    assert_eq!(b.account(at(0), MILLI), 2);
    assert_eq!(b.account(at(0), 3 * MILLI), 5);
    // No more than seven steps are owed: 7 ms, of which two are paid in 200 ms.
    assert_eq!(b.account(at(0), 1000 * MILLI), LEVELS);
    assert_eq!(b.account(at(199), 0), LEVELS, "it falls two steps behind where it rose");
    assert_eq!(b.account(at(200), 0), LEVELS - 1);
    assert_eq!(b.account(at(700), 0), 1, "the debt is paid");
    assert_eq!(b.account(at(799), 0), 1);
    assert_eq!(b.account(at(800), 0), 0, "a step is there again");
}

#[test]
fn it_holds_the_share_of_ten_seconds_or_the_credit() {
    let mut b = bucket();
    assert_eq!(b.account(Duration::from_hours(1), 0), 0);
    assert_eq!(b.account(Duration::from_hours(1), 100 * MILLI), 0);
    assert_eq!(b.account(Duration::from_hours(1), 1), 1);
    let mut b = Bucket::new(PERCENT, Duration::from_secs(1), Duration::from_secs(7));
    assert_eq!(b.account(Duration::from_hours(1), 1000 * MILLI), 0);
    assert_eq!(b.account(Duration::from_hours(1), 1), 1);
    // A credit of nothing: the first call is one too many.
    let mut b = Bucket::new(PERCENT, Duration::ZERO, Duration::ZERO);
    assert_eq!(b.account(Duration::ZERO, 1), 1);
}

/// No part of a nanosecond is lost: looked at after each of many moments, it holds what it holds after all of them.
#[test]
fn what_flows_in_does_not_depend_on_how_often_it_is_looked_at() {
    let mut often = Bucket::new(1, Duration::ZERO, Duration::ZERO);
    for nanos in 1..=10_000_000 {
        often.account(Duration::from_nanos(nanos), 0);
    }
    assert_eq!(often.account(at(10), 10), 0, "a millionth of 10 ms");
    assert_eq!(often.account(at(10), 1), 1);
}

#[test]
fn a_clock_that_goes_back_stands_still() {
    let mut b = bucket();
    assert_eq!(b.account(at(500), 15 * MILLI), 0, "5 ms flowed in, all is spent");
    assert_eq!(b.account(at(100), 0), 0);
    assert_eq!(b.account(at(600), MILLI + 1), 1, "1 ms flowed in, not 5");
    assert_eq!(b.account(at(600), MILLI), 2);
}

#[test]
fn handles_come_first_and_then_slack() {
    let reserved = 16 << 30;
    let handles: Vec<u64> =
        (0..=LEVELS).map(|level| handle_bytes(level, (reserved, 64 * MIB), 2 * MIB) / MIB).collect();
    assert_eq!(handles, [64, 128, 256, 256, 256, 256, 256, 256]);
    let handles: Vec<u64> =
        (0..=LEVELS).map(|level| handle_bytes(level, (800 * MIB, 64 * MIB), 2 * MIB) / MIB).collect();
    assert_eq!(handles, [2, 4, 8, 8, 8, 8, 8, 8]);
    let slacks: Vec<u64> = (0..=LEVELS).map(|level| slack(level, 1_000_000, PERCENT) - 1_000_000).collect();
    assert_eq!(slacks, [10_000, 10_000, 10_000, 28_000, 46_000, 64_000, 82_000, 100_000]);
    assert!((0..=LEVELS).all(|level| slack(level, 1000, 200_000) == 1200), "more than 10 % already");
    assert_eq!(slack(LEVELS, u64::MAX, ONE), u64::MAX);
    assert_eq!(handle_bytes(LEVELS, (u64::MAX, u64::MAX), 2 * MIB), 1 << 57);
    assert_eq!(handle_bytes(0, (0, 64 * MIB), 2 * MIB), 2 * MIB);
    assert_eq!(handle_bytes(0, (u64::MAX, 100 * MIB), 2 * MIB), 64 * MIB, "a power of two");
}

#[test]
fn prices_are_those_of_the_table() {
    // 28 µs for a move, less than one of them more to make it afresh.
    assert_eq!((MAP + UNMAP) / 1000, 28);
    assert_eq!((create(2 * MIB) + 50) / 100, 56);
    assert_eq!((release(1, 2 * MIB) + 50) / 100, 70);
    assert_eq!(release(1, 256 * MIB) / 1000, 59);
    assert_eq!(release(3, 0), 3 * release(1, 0));
}

proptest! {
    /// Whatever is spent and whenever: at a level below the highest no more was spent than the share of the time, the credit, and a step for each level.
    #[test]
    fn no_more_is_spent_than_a_level_says(
        share in 1..=ONE, credit in 0..50 * MILLI, calls in prop::collection::vec((0..20 * MILLI, 0..2 * MILLI), 1..200),
    ) {
        let mut b = Bucket::new(share, Duration::from_nanos(credit), Duration::ZERO);
        let (mut now, mut spent, mut paid) = (0, 0, true);
        for (passed, price) in calls {
            now += passed;
            spent += price;
            let level = b.account(Duration::from_nanos(now), price);
            prop_assert!(level <= LEVELS);
            // What is owed at the highest level is not counted any more.
            paid &= level < LEVELS;
            let step = share_of(share, STEP);
            let may = i128::from(share) * i128::from(now) + i128::from(credit) * i128::from(ONE);
            if paid {
                prop_assert!(i128::from(spent) * i128::from(ONE) <= may + step * i128::from(level));
            }
            // It never owes more than that, and pays.
            prop_assert!(b.has >= -step * i128::from(LEVELS) && b.has <= b.most);
        }
        let all = now + HOLDS.as_nanos() as u64;
        prop_assert_eq!(b.account(Duration::from_nanos(all), 0), 0, "ten seconds later it is full");
    }

    /// Levels never make handles shorter or the slack less.
    #[test]
    fn a_higher_level_saves_time(reserved: u64, longest in 2 * MIB..1 << 40, peak: u64, configured in 0..=ONE, level in 0..LEVELS) {
        let of = |level| handle_bytes(level, (reserved, longest), 2 * MIB);
        prop_assert!(of(level) <= of(level + 1) && of(level + 1) <= 2 * of(level).max(2 * MIB));
        prop_assert!(of(level).is_power_of_two() && of(0) <= longest);
        prop_assert!(slack(level, peak, configured) <= slack(level + 1, peak, configured));
        prop_assert!(slack(level, peak, configured) >= peak);
    }
}
