//! Kernels that run until the host says so, and host waits that last as long as they do.
//!
//! The simulated device has no time of its own: a spin kernel is a gate on its stream. Its flag is looked at whenever a
//! program calls the driver, and over and over while a call has to wait for the device; it opens when the flag is not 0
//! or its time is over. So a call that waits for kernels really blocks its thread until another thread sets the flag. This
//! file does not know which calls wait: they say so by [`blocking`].

use crate::door::{Fail, Outcome, UNKNOWN};
use crate::state::{Kind, State, state};
use millpond::DriverError;
use millpond_sim::Gate;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A spin kernel that has not ended.
#[derive(Debug)]
pub(crate) struct Spin {
    gate: Gate,
    /// The address of its cell, two 32-bit words in pinned host memory: the host opens by the first, the kernel tells by
    /// the second that it runs (1), was opened (2) or ran out of time (3).
    cell: u64,
    until: Instant,
}

impl Spin {
    /// A kernel that begins now. That its stream has work before it plays no part.
    pub(crate) fn begin(gate: Gate, cell: u64, limit_nanos: u64) {
        // A year is as good as for ever, and cannot overflow the clock.
        let limit = Duration::from_nanos(limit_nanos).min(Duration::from_hours(365 * 24));
        let mut state = state();
        tell(&state, cell, 1);
        state.spins.push(Spin { gate, cell, until: Instant::now() + limit });
    }
}

impl State {
    /// Whether two 32-bit words lie here in pinned memory that this process still has.
    pub(crate) fn is_pinned_cell(&self, addr: u64) -> bool {
        addr.is_multiple_of(4)
            && self.range_around(addr).is_some_and(|(start, r)| {
                matches!(r.kind, Kind::Pinned { .. }) && r.bytes - (addr - start) >= 8
            })
    }
}

/// A word of a cell, if its memory is still pinned; the lock that a free needs too must be held while it is used.
#[allow(unsafe_code, reason = "a word that the device and the host share")]
fn word(state: &State, addr: u64, index: u64) -> Option<&AtomicU32> {
    // SAFETY: an aligned word of pinned memory, which stays while the state is locked.
    state.is_pinned_cell(addr).then(|| unsafe { AtomicU32::from_ptr((addr + 4 * index) as *mut u32) })
}

fn tell(state: &State, cell: u64, news: u32) {
    if let Some(second) = word(state, cell, 1) {
        second.store(news, Ordering::Release);
    }
}

/// Ends the spin kernels whose time has come.
pub(crate) fn poll() {
    let ended: Vec<Spin> = {
        let mut state = state();
        if state.spins.is_empty() {
            return;
        }
        let now = Instant::now();
        let (ended, running) = std::mem::take(&mut state.spins).into_iter().partition(|s: &Spin| {
            let opened = word(&state, s.cell, 0).is_none_or(|first| first.load(Ordering::Acquire) != 0);
            if opened || now >= s.until {
                tell(&state, s.cell, if opened { 2 } else { 3 });
            }
            opened || now >= s.until
        });
        state.spins = running;
        ended
    };
    for spin in ended {
        spin.gate.open();
    }
}

/// Whether a spin kernel runs.
pub(crate) fn any() -> bool {
    !state().spins.is_empty()
}

/// Lets a little time pass for whoever is to set a flag.
fn pause() {
    std::thread::sleep(Duration::from_micros(50));
    poll();
}

/// Makes a call that waits for the device, again while a spin kernel stands in its way. The attempt must do nothing when
/// it fails.
pub(crate) fn blocking<T>(mut attempt: impl FnMut() -> Result<T, DriverError>) -> Outcome<T> {
    loop {
        match attempt() {
            Err(e) if e.code == UNKNOWN && any() => pause(),
            other => return other.map_err(Fail::from),
        }
    }
}

/// Asks again and again whether something is so, while a spin kernel runs; the last answer.
pub(crate) fn blocking_until(mut ask: impl FnMut() -> Result<bool, DriverError>) -> Outcome<bool> {
    loop {
        let done = ask()?;
        if done || !any() {
            return Ok(done);
        }
        pause();
    }
}
