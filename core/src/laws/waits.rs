//! Between which streams a wait may be inserted for the sake of memory (docs/ordering.md, "Waits that are inserted").
//!
//! No reuse needs it for its order: without the wait the memory serves later, and the pool grows meanwhile. But a program whose streams depend on
//! each other by flags or collectives hangs if one is made to wait for the other at the wrong moment.
//!
//! It does not know a lock, a driver, a pool, a heap or a stream.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]

/// Whether a stream takes no part in waits: no other waits for it, and it waits for no other.
#[inline]
pub fn is_independent(declared: bool) -> bool {
    declared && !mutant!(IndependentWaits)
}

/// Whether a stream may be made to wait for another, neither of which is independent: `any` two may, or these two are `known` not to mind: the program
/// itself ordered one behind the other, or declared the other dependable.
#[inline]
pub fn may_wait(any: bool, known: impl FnOnce() -> bool) -> bool {
    any || known() || mutant!(UnknownWaits)
}

/// Whether a wait that the allocator inserted for reuse counts as the program's own order.
#[inline]
pub fn own_waits_count() -> bool {
    mutant!(OwnWaitsCount)
}

/// Whether the edges of a timeline that left the table are forgotten.
#[inline]
pub fn forgets_edges() -> bool {
    !mutant!(EdgesKept)
}
