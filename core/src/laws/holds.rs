//! What a hold forbids (invariant B11, docs/windows.md, "What is held"): memory that code outside the allocator knows by address or by handle does not move,
//! does not go back to the device, and does not pass to another pool.
//!
//! It does not know a lock, a driver, a pool or a heap, nor who holds what.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]

/// Whether a handle with so many holds may move to another place.
#[inline]
pub fn may_move(holds: u32) -> bool {
    holds == 0 || mutant!(HeldMoves)
}

/// Whether a handle with so many holds may be unmapped and released.
#[inline]
pub fn may_release(holds: u32) -> bool {
    holds == 0 || mutant!(HeldReleased)
}

/// The number of holds of a handle after one more.
#[inline]
pub fn held_again(holds: u32) -> u32 {
    if mutant!(HeldOnce) { 1 } else { holds + 1 }
}

/// Whether a free range may pass to another pool: no handle that it has bytes of is held, nor its plain segment.
#[inline]
pub fn may_leave(held: bool) -> bool {
    !held || mutant!(HeldMigrates)
}
