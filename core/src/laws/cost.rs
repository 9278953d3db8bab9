//! Decisions by which nothing is wrong, but for what it costs: what is kept is a function of what is pending (docs/kept.md), what
//! misses are told of other pools (F1 to F3, src/allocator/sources.rs), and what a growth asks for.
//!
//! It does not know a lock, a driver, a pool, a heap or a stream.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]

use core::time::Duration;

/// Whether a clock of `len` names is looked at, of which the last look left `left`.
#[inline]
pub fn clock_is_crowded(len: usize, few: usize, left: usize) -> bool {
    !mutant!(ClockNeverCrowded) && (mutant!(ClockAlwaysCrowded) || len > few.max(2 * left))
}

/// Whether as many ranges in flight are looked at.
#[inline]
pub fn flight_is_crowded(len: usize, few: usize, crowd: usize) -> bool {
    !mutant!(FlightNeverCrowded) && (mutant!(FlightAlwaysCrowded) || len >= few.max(crowd))
}

/// Whether a pool of which nobody asks what is over waits on its stream for the older half of its bytes in flight, before it grows: they
/// are as many as it ever had live, as a small program has at all, and as twice what the last such look left, which is half at most.
#[inline]
pub fn unasked_is_crowded(in_flight: u64, peak: u64, left: u64) -> bool {
    const LITTLE: u64 = 2 << 20;
    in_flight >= peak.max(LITTLE).max(2 * left) && !mutant!(LeakUnordered)
}

/// Whether as many uses of one allocation are looked at.
#[inline]
pub fn uses_are_crowded(len: usize, few: usize, crowd: usize) -> bool {
    !mutant!(UsesNeverCrowded) && (mutant!(UsesAlwaysCrowded) || len >= few.max(crowd))
}

/// Whether closed pools are looked at.
#[inline]
pub fn sweeps(few: bool) -> bool {
    !mutant!(SweepNever) && (!few || mutant!(SweepAlways))
}

/// Whether ended streams are asked about.
#[inline]
pub fn finishes(asks: bool, few: bool) -> bool {
    !(asks || few || mutant!(FinishNever))
}

/// Whether a clock is rid of names: it is crowded, or names more timelines than there are.
#[inline]
pub fn forgets_names(crowded: bool, named: usize, timelines: usize) -> bool {
    (crowded || named > timelines) && !mutant!(NamesKept)
}

/// Whether it is rid of pending ones too.
#[inline]
pub fn forgets_pending() -> bool {
    mutant!(NamesPruned)
}

/// How many timelines pay for a look that comes by all of them.
#[inline]
pub fn look_pays(timelines: u64) -> u64 {
    if mutant!(LookTooSoon) { 0 } else { timelines }
}

/// How many events are pooled at most.
#[inline]
pub fn pooled(max: usize, least: usize) -> usize {
    if mutant!(BurstKept) { usize::MAX } else { max.max(least) }
}

/// Whether a wait of the host's counts as retired markers do for what the pool of events gives back.
#[inline]
pub fn waits_pay() -> bool {
    !mutant!(BurstUnwaited)
}

/// What is left of a request's patience.
pub fn patience(left: Duration, spent: impl FnOnce() -> Duration) -> Duration {
    if mutant!(PatienceRenewed) { left } else { left.saturating_sub(spent()) }
}

/// Whether so many markers are looked at.
pub fn looks(markers: impl FnOnce() -> u64, at: u64) -> bool {
    markers() >= at && !mutant!(LeakUnlooked)
}

/// Whether one that was taken out of a deterministic timeline is followed by the next.
#[inline]
pub fn thins_on() -> bool {
    !mutant!(LeakThinned)
}

/// Whether a range whose use is over is filed under its next one.
#[inline]
pub fn files_next() -> bool {
    !mutant!(LeakUnfiled)
}

/// Whether anything is kept for tokens that were dropped.
#[inline]
pub fn keeps_any(waiting: bool) -> bool {
    waiting && !mutant!(LeakKept)
}

/// The pool that an event goes back to.
pub fn event_home<T>(home: Option<T>) -> Option<T> {
    home.filter(|_| !mutant!(LeakUnpooled))
}

// What misses are told of other pools, and what a growth asks for.

/// Whether a pool's bound on its free ranges rises.
#[inline]
pub fn raises_bound(longest: u32, bound: u32) -> bool {
    longest > bound && !mutant!(HintNeverRaised)
}

/// Whether that bound is one.
#[inline]
pub fn is_bound(longest: u32, bound: u32) -> bool {
    longest <= bound || mutant!(HintNeverRaised)
}

/// Whether a pool that stood aside is looked at again when memory entered.
#[inline]
pub fn calls_back(aside: bool) -> bool {
    aside && !mutant!(EnteredUnheard)
}

/// Whether who listens is told of a timeline's news.
#[inline]
pub fn tells(listened: bool) -> bool {
    listened && !mutant!(NewsLost)
}

/// Whether the request itself is the last size that a growth tries.
#[inline]
pub fn grows_by_request() -> bool {
    !mutant!(Z15)
}

/// Whether a refused growth gives its room under the limit back.
#[inline]
pub fn unclaims() -> bool {
    !mutant!(UnclaimForgotten)
}

/// How many records a report looks at in one hold of a pool's lock.
#[inline]
pub fn piece(records: usize) -> usize {
    if mutant!(ReportWhole) { 1 << 30 } else { records }
}
