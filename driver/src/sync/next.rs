//! What a thread of a model is about to do, for a scheduler that skips schedules equivalent to others.
//!
//! Shuttle calls its scheduler before each operation, and does not say which operation it is. So each lock and each
//! atomic of `model` announces it here first. All threads of a model are one OS thread, and the announcing thread is the one
//! that shuttle is running. This module does not know who listens.

use core::cell::Cell;

/// An operation, by the address of what it works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// An atomic is read.
    Read(usize),
    /// An atomic is read, and set to its current value.
    Keep(usize),
    /// An atomic is written, or read and written.
    Write(usize),
    /// A lock is taken, of this rank if it has one.
    Take(usize, Option<u8>),
    /// A lock is given back.
    Release(usize),
}

std::thread_local! {
    static NEXT: Cell<Option<Step>> = const { Cell::new(None) };
    static RANK: Cell<Option<u8>> = const { Cell::new(None) };
    static JOINED: Cell<bool> = const { Cell::new(false) };
}

/// The running thread is about to do this.
pub(super) fn announce(step: Step) {
    NEXT.set(Some(step));
}

/// The running thread is about to take a lock.
pub(super) fn announce_lock(lock: usize) {
    announce(Step::Take(lock, RANK.take()));
}

/// The lock that the running thread takes next has this rank.
pub fn ranked(rank: u8) {
    RANK.set(Some(rank));
}

/// What was announced since the last call: nothing if a thread begins, ends, waits for another one or makes one.
pub fn announced() -> Option<Step> {
    NEXT.take()
}

/// The running thread has waited for the end of others, and comes after all that are over.
pub fn joined() {
    JOINED.set(true);
}

/// Whether that was announced since the last call.
pub fn has_joined() -> bool {
    JOINED.take()
}
