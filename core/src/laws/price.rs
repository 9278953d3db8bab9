//! What driver calls on physical memory cost, and how much of a program's time the calls made by requests may take.
//!
//! A token bucket: a share of the time that passes flows in, each call takes its price out. While it is empty a *level* rises, by one for each step
//! that it owes more, and falls behind it when it fills again:
//!
//! ```text
//! the bucket    |  full ... 0  |  owes up to 1 step  |  2  |  3  |  4  |  5  |  6  |  7, and never more  |
//! level         |      0       |          1          |  2  |  3  |  4  |  5  |  6  |          7          |
//! handles       |      1       |          2          |  4 times as long                                  |
//! slack         |             as configured                | a fifth of the way to 10 % with each level  |
//! ```
//!
//! Longer handles come first, because a call costs the same whatever the length; more slack saves calls too, but is memory that is not used. When both
//! are as large as they may be, calls are made nevertheless and not counted any more: memory comes before time.
//!
//! Handles are at most a 64th of what is reserved, because some part of a longer one would be live for ever: `prefetch_multistream` dealt over four streams (its recorded
//! workload, `cargo bench --bench footprint`) takes 1.10 of what is live with that, 1.17 with a 32nd and 1.25 with a 16th, which saves a fifth of the calls.
//!
//! It does not know a clock, a driver, or who makes a call.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]

use core::time::Duration;

// Nanoseconds of the host's time, measured on one H200 (DESIGN.md, "What the driver costs"), where nothing else keeps the driver busy: beside kernels that use
// all of the memory's bandwidth, making a mapping usable takes twice as long.

/// Maps a handle and makes the mapping usable, in a part of the addresses where something else is mapped (28 µs where nothing is).
pub const MAP: u64 = 500 + 16_500;
/// Unmaps a handle, in a part of the addresses where something else is mapped (18.5 µs where nothing is).
pub const UNMAP: u64 = 11_700;

/// Creates a handle of so many bytes.
pub fn create(bytes: u64) -> u64 {
    5_200 + bytes / BYTES_PER_NANO
}
/// Releases so many handles, of so many bytes in all.
pub fn release(handles: u64, bytes: u64) -> u64 {
    6_600 * handles + bytes / BYTES_PER_NANO
}
/// The driver prepares and clears a handle in 0.2 ns a KiB.
const BYTES_PER_NANO: u64 = 5 * 1024;

/// Levels that make handles longer, twice each.
const HANDLE_LEVELS: u32 = 2;
/// Levels that raise the slack.
const SLACK_LEVELS: u32 = 5;
/// All levels.
pub const LEVELS: u32 = HANDLE_LEVELS + SLACK_LEVELS;
/// The slack of the highest level, in millionths.
const MOST_SLACK: u64 = 100_000;
/// One, in millionths.
pub const ONE: u64 = 1_000_000;

/// A step is the share of so much time: 1 ms at 1 %, about thirty moves.
const STEP: Duration = Duration::from_millis(100);
/// The bucket holds the share of so much time, or the credit: 100 ms at 1 %. What a program saved in an hour is not spent in one burst.
const HOLDS: Duration = Duration::from_secs(10);

/// A share of time, in nanoseconds times [`ONE`].
fn share_of(millionths: u64, time: Duration) -> i128 {
    i128::from(millionths).saturating_mul(i128::try_from(time.as_nanos()).unwrap_or(i128::MAX))
}

/// How much of the time calls on physical memory may take.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// In millionths.
    share: u64,
    /// The most that it holds, what it has, which is negative if it owes, and what makes a level: in nanoseconds times [`ONE`], so that no part of
    /// what flows in is lost.
    most: i128,
    has: i128,
    step: i128,
    /// Until when the share has flown in.
    filled: Duration,
    level: u32,
}

impl Bucket {
    /// A bucket into which this share of the time flows from `now` on, in millionths, and that has a credit.
    pub fn new(share: u64, credit: Duration, now: Duration) -> Bucket {
        let credit = share_of(ONE, credit);
        let most = credit.max(share_of(share, HOLDS));
        Bucket { share, most, has: credit, step: share_of(share, STEP), filled: now, level: 0 }
    }

    /// Takes the price of calls that were made until `now`, in nanoseconds, out of it. Returns the level from here on. A clock that went back has
    /// stood still.
    pub fn account(&mut self, now: Duration, spent: u64) -> u32 {
        let passed = now.saturating_sub(self.filled);
        self.filled += passed;
        self.has = self.has.saturating_add(share_of(self.share, passed)).min(self.most);
        self.has -= i128::from(spent) * i128::from(ONE);
        self.has = self.has.max(-self.step * i128::from(LEVELS));
        let owes = |steps: u32, step: i128| -step * i128::from(steps);
        while self.level < LEVELS && self.has < owes(self.level, self.step) {
            self.level += 1;
        }
        // A step behind where it rose, so that it does not go up and down with each call.
        while self.level > 0 && self.has >= owes(self.level, self.step) + 2 * self.step {
            self.level -= 1;
        }
        self.level
    }
}

/// How long the handles are at most that fill large requests at a level, in bytes: a 256th of what is reserved, so that handles are few, and one of
/// which a part is live keeps little else from the device, and no longer than configured; twice and four times as long at higher levels. A power of two and
/// whole units.
pub fn handle_bytes(level: u32, (reserved, longest): (u64, u64), unit: u64) -> u64 {
    let doublings = level.min(HANDLE_LEVELS);
    let most = longest.saturating_mul(1 << doublings);
    let share = (reserved >> (8 - doublings)).clamp(1, most.max(1));
    unit.max(1 << share.ilog2())
}

/// Whether shorter handles are given back for a longer one at a level, where they are complete: it costs what moving them does, and the next time one
/// call moves what these were.
pub fn joins_handles(level: u32) -> bool {
    level > 0
}

/// How many bytes may be reserved at a level before anything moves, if at most `peak` were live: so many millionths more than that, and 10 % at the highest level.
pub fn slack(level: u32, peak: u64, configured: u64) -> u64 {
    let above = u64::from(level.saturating_sub(HANDLE_LEVELS));
    let more = MOST_SLACK.saturating_sub(configured) * above / u64::from(SLACK_LEVELS);
    let slack = u128::from(peak) * u128::from(configured + more) / u128::from(ONE);
    peak.saturating_add(u64::try_from(slack).unwrap_or(u64::MAX))
}

/// What is charged for a call.
pub fn charged(nanos: u64) -> u64 {
    if mutant!(MoveUncharged) { 0 } else { nanos }
}

#[cfg(test)]
mod tests;
