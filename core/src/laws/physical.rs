//! What the laws decide about physical memory that moves between windows, and about its stamps (docs/ordering.md, "Physical memory that moves").
//!
//! It does not know a lock, a driver, a pool or a heap.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]

/// Whether a stream waits before it takes a handle of another pool's, unless its uses are complete or were the pool's own.
#[inline]
pub fn move_waits(ordered: bool) -> bool {
    !ordered && !mutant!(Z25)
}

/// Whether so much of a handle is free, or was gathered, that it may move: all of it.
#[inline]
pub fn may_move(free: u64, len: u64) -> bool {
    free == len || mutant!(MoveInUse)
}

/// Whether what was cut out for a move that failed returns to its pools.
#[inline]
pub fn returns_uncut() -> bool {
    !mutant!(MoveFailedLost)
}

/// Whether the old mapping of a handle that moved is taken away at once: every use through its addresses is complete.
#[inline]
pub fn may_unmap(complete: bool) -> bool {
    complete || mutant!(Z24)
}

/// Whether a range that becomes free beside free memory with another stamp leaves its own on its units.
#[inline]
pub fn stamps_units() -> bool {
    !mutant!(Z31)
}
