//! A capture in progress, and the threads whose calls do not end one.
//!
//! It does not know which calls a capture does not survive.

use super::call::Call;
use super::oracle::StreamKey;
use std::cell::Cell;

/// A capture in progress.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) key: u32,
    pub(super) device: usize,
    pub(super) origin: StreamKey,
    pub(super) streams: Vec<StreamKey>,
    /// Streams that were destroyed in it.
    pub(super) left: usize,
    pub(super) operations: u64,
    /// The first call that it did not survive.
    pub(super) destroyed_by: Option<Call>,
}

millpond_driver::sync::per_thread! {
    static RELAXED: Cell<u32> = Cell::new(0);
}

/// Whether the calling thread is inside a relaxed batch.
pub(super) fn is_relaxed() -> bool {
    RELAXED.with(|r| r.get() > 0)
}

/// Makes the calling thread relaxed until dropped, also on unwind.
pub(super) struct Relaxed(());

impl Relaxed {
    pub(super) fn enter() -> Relaxed {
        RELAXED.with(|r| r.set(r.get() + 1));
        Relaxed(())
    }
}
impl Drop for Relaxed {
    fn drop(&mut self) {
        RELAXED.with(|r| r.set(r.get() - 1));
    }
}
