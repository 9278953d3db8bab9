//! Kernels that run until the host sets a flag, and host waits that last as long.
//!
//! The simulated device has no time of its own: a spin kernel is a gate on its stream. Its flag is read whenever a
//! program calls the driver, and repeatedly while a call has to wait for the device; the gate opens when the flag is not 0
//! or the kernel's time is over. So a call that waits for kernels really blocks its thread until another thread sets the
//! flag. This file does not know which calls wait: they use [`blocking`].

use crate::entry::{Fail, Outcome, UNKNOWN};
use crate::state::{Kind, State, state};
use millpond::DriverError;
use millpond_sim::Gate;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A spin kernel that has not ended.
#[derive(Debug)]
pub(crate) struct Spin {
    gate: Gate,
    /// The address of its cell, two 32-bit words in pinned host memory: the host ends the kernel by the first; the kernel stores
    /// in the second that it runs (1), was ended (2) or ran out of time (3).
    cell: u64,
    until: Instant,
}

impl Spin {
    /// Begins a kernel now, even if its stream has earlier work.
    pub(crate) fn begin(gate: Gate, cell: u64, limit_nanos: u64) {
        // A year is long enough, and cannot overflow the clock.
        let limit = Duration::from_nanos(limit_nanos).min(Duration::from_hours(365 * 24));
        let mut state = state();
        store_status(&state, cell, 1);
        state.spins.push(Spin { gate, cell, until: Instant::now() + limit });
    }
}

impl State {
    /// Whether two aligned 32-bit words lie here in memory that is still pinned.
    pub(crate) fn is_pinned_cell(&self, addr: u64) -> bool {
        addr.is_multiple_of(4)
            && self.range_around(addr).is_some_and(|(start, r)| {
                matches!(r.kind, Kind::Pinned { .. }) && r.bytes - (addr - start) >= 8
            })
    }
}

/// A word of a cell, if its memory is still pinned; the state's lock, which a free needs too, must be held while it is used.
#[allow(unsafe_code, reason = "a word that the device and the host share")]
fn word(state: &State, addr: u64, index: u64) -> Option<&AtomicU32> {
    // SAFETY: an aligned word of pinned memory, which stays while the state is locked.
    state.is_pinned_cell(addr).then(|| unsafe { AtomicU32::from_ptr((addr + 4 * index) as *mut u32) })
}

fn store_status(state: &State, cell: u64, status: u32) {
    if let Some(second) = word(state, cell, 1) {
        second.store(status, Ordering::Release);
    }
}

/// Ends the spin kernels whose flag is set or whose time is over.
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
                store_status(&state, s.cell, if opened { 2 } else { 3 });
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

/// Waits a little, so that another thread can set a flag.
fn pause() {
    std::thread::sleep(Duration::from_micros(50));
    poll();
}

/// Makes a call that waits for the device, and repeats it as long as a spin kernel prevents it. The attempt must do nothing if
/// it fails.
pub(crate) fn blocking<T>(mut attempt: impl FnMut() -> Result<T, DriverError>) -> Outcome<T> {
    loop {
        match attempt() {
            Err(e) if e.code == UNKNOWN && any() => pause(),
            other => return other.map_err(Fail::from),
        }
    }
}

/// Repeats a check until it is true or no spin kernel runs; returns the last result.
pub(crate) fn blocking_until(mut ask: impl FnMut() -> Result<bool, DriverError>) -> Outcome<bool> {
    loop {
        let done = ask()?;
        if done || !any() {
            return Ok(done);
        }
        pause();
    }
}
