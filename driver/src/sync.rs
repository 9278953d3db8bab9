//! The one switch between real locks and atomics and the ones of a model checker.
//!
//! Everything that takes part in a protocol between threads comes from here. An ordinary build gets `parking_lot` and the
//! atomics of `core`; under `--cfg loom` the same names are loom's, which tries every interleaving and every value that
//! a load may return; under `--cfg shuttle` they are shuttle's, which tries random interleavings of larger programs.
//! This module knows nothing of what the locks protect, nor in which order they are taken.

#[doc(hidden)]
#[cfg(shuttle)]
pub mod next;
mod quick;

#[cfg(any(loom, shuttle))]
#[path = "sync/model.rs"]
mod imp;
#[cfg(not(any(loom, shuttle)))]
#[path = "sync/real.rs"]
mod imp;

pub use crate::per_thread;
pub use core::sync::atomic::Ordering;
pub use imp::ThreadId;
pub use imp::{Condvar, Mutex, MutexGuard, Reentrant, ReentrantGuard, atomic, current_thread, yield_now};
pub use imp::{Lock, LockGuard, LockKind, Parking};
pub use quick::Flag as Quick;
// Counts that are never part of a race: loom's own have neither `Weak` nor unsized values.
#[doc(hidden)]
#[cfg(loom)]
pub use loom as checker;
#[doc(hidden)]
#[cfg(all(shuttle, not(loom)))]
pub use shuttle as checker;
pub use std::sync::{Arc, Weak};

/// Counters that are no part of any protocol, such as numbers given out once in a process: never explored, so that a
/// model checker spends nothing on them.
pub mod plain {
    pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
}

/// A thread takes a turn in which the driver is called, or gives it up: in builds with planted bugs it is paused nowhere meanwhile.
#[inline]
pub fn in_turn(on: bool) {
    #[cfg(millpond_mutants)]
    crate::mutant::keep_going(on);
    #[cfg(not(millpond_mutants))]
    let _ = on;
}
