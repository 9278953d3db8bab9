//! Decisions that affect only cost, not correctness: what is kept is a function of what is pending (docs/kept.md), what
//! misses learn about other pools (F1 to F3, src/allocator/sources.rs), and which sizes a growth tries.
//!
//! It does not know a lock, a driver, a pool, a heap or a stream.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]

use core::time::Duration;

/// Whether a clock of `len` names, of which the last look left `left`, is looked at.
#[inline]
pub fn clock_is_crowded(len: usize, few: usize, left: usize) -> bool {
    !mutant!(ClockNeverCrowded) && (mutant!(ClockAlwaysCrowded) || len > few.max(2 * left))
}

/// Whether this many ranges in flight are looked at.
#[inline]
pub fn flight_is_crowded(len: usize, few: usize, crowd: usize) -> bool {
    !mutant!(FlightNeverCrowded) && (mutant!(FlightAlwaysCrowded) || len >= few.max(crowd))
}

/// Whether a pool whose uses are not queried waits on its stream for the older half of its bytes in flight before it grows: if they
/// are as many as it ever had live, as many as a small program has at all, and twice what the last such look left, which is half at most.
#[inline]
pub fn unqueried_is_crowded(in_flight: u64, peak: u64, left: u64) -> bool {
    const LITTLE: u64 = 2 << 20;
    in_flight >= peak.max(LITTLE).max(2 * left) && !mutant!(LeakUnordered)
}

/// Whether this many uses of one allocation are looked at.
#[inline]
pub fn uses_are_crowded(len: usize, few: usize, crowd: usize) -> bool {
    !mutant!(UsesNeverCrowded) && (mutant!(UsesAlwaysCrowded) || len >= few.max(crowd))
}

/// Whether closed pools are looked at.
#[inline]
pub fn sweeps(few: bool) -> bool {
    !mutant!(SweepNever) && (!few || mutant!(SweepAlways))
}

/// Whether ended streams are queried.
#[inline]
pub fn finishes(queries_allowed: bool, few: bool) -> bool {
    !(queries_allowed || few || mutant!(FinishNever))
}

/// Whether names are dropped from a clock: it is crowded, or names more timelines than there are.
#[inline]
pub fn forgets_names(crowded: bool, named: usize, timelines: usize) -> bool {
    (crowded || named > timelines) && !mutant!(NamesKept)
}

/// Whether pending names are dropped too.
#[inline]
pub fn forgets_pending() -> bool {
    mutant!(NamesPruned)
}

/// How many timelines pay for a look at all of them.
#[inline]
pub fn look_pays(timelines: u64) -> u64 {
    if mutant!(LookTooSoon) { 0 } else { timelines }
}

/// The maximum number of pooled events.
#[inline]
pub fn pooled(max: usize, least: usize) -> usize {
    if mutant!(BurstKept) { usize::MAX } else { max.max(least) }
}

/// Whether a wait of the host counts like retired markers for what the pool of events gives back.
#[inline]
pub fn waits_pay() -> bool {
    !mutant!(BurstUnwaited)
}

/// What is left of a request's patience.
pub fn patience(left: Duration, spent: impl FnOnce() -> Duration) -> Duration {
    if mutant!(PatienceRenewed) { left } else { left.saturating_sub(spent()) }
}

/// Whether this many markers are looked at.
pub fn looks(markers: impl FnOnce() -> u64, at: u64) -> bool {
    markers() >= at && !mutant!(LeakUnlooked)
}

/// Whether the next marker of a deterministic timeline is removed after one was.
#[inline]
pub fn thins_on() -> bool {
    !mutant!(LeakThinned)
}

/// Whether a range whose use is over is listed under its next one.
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

// What misses learn about other pools, and which sizes a growth tries.

/// Whether a request that is about to grow marks idle streams that have free memory.
#[inline]
pub fn looks_for_idle_streams() -> bool {
    !mutant!(IdleUnmarked)
}

/// Whether a pool's bound on its free ranges rises.
#[inline]
pub fn raises_bound(longest: u32, bound: u32) -> bool {
    longest > bound && !mutant!(HintNeverRaised)
}

/// Whether that bound is an upper bound.
#[inline]
pub fn is_bound(longest: u32, bound: u32) -> bool {
    longest <= bound || mutant!(HintNeverRaised)
}

/// Whether a pool that stood aside is looked at again when memory entered.
#[inline]
pub fn calls_back(aside: bool) -> bool {
    aside && !mutant!(EnteredUnnotified)
}

/// Whether listeners are notified of a timeline's progress.
#[inline]
pub fn notifies(listened: bool) -> bool {
    listened && !mutant!(ProgressLost)
}

/// Whether the request itself is the last size that a growth tries.
#[inline]
pub fn grows_by_request() -> bool {
    !mutant!(Z15)
}

/// Whether a refused growth returns the room that it claimed under the limit.
#[inline]
pub fn unclaims() -> bool {
    !mutant!(UnclaimForgotten)
}

/// How many records a report looks at in one hold of a pool's lock.
#[inline]
pub fn piece(records: usize) -> usize {
    if mutant!(ReportWhole) { 1 << 30 } else { records }
}
