//! Memory in transit: cut out of one place and not yet in the next.
//!
//! Between two pools, between a pool and the device, or claimed under the limit and not yet granted, bytes belong to one
//! thread alone and no other thread can find them. A request that finds nothing at such a moment is not out of memory: it searches
//! again when what was in transit has arrived ([`InTransit::others_arrived`]). This file does not know what is moved or where.
//!
//! A transit begins before the lock is released under which the bytes left, and ends after the one under which they
//! arrived. So if a thread holds a pool's lock and nothing is in transit, nothing will come back to that pool.

use crate::sync::{Condvar, Mutex};
use core::cell::Cell;
use core::time::Duration;

/// All transits of one allocator.
#[derive(Default)]
pub(crate) struct InTransit {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// How many transits are under way.
    busy: u64,
    /// How many transits have ended since the beginning.
    arrived: u64,
}

/// One transit, from its making to its drop.
pub(crate) struct TransitGuard<'a> {
    in_transit: &'a InTransit,
    own: &'a Cell<u64>,
}

impl InTransit {
    /// Begins a transit. A request ignores the arrival of its own transits, so it counts them in `own`. May be called under
    /// any lock.
    pub(crate) fn take<'a>(&'a self, own: &'a Cell<u64>) -> TransitGuard<'a> {
        self.state.lock().busy += 1;
        TransitGuard { in_transit: self, own }
    }
    /// Whether anything is in transit. Reliable only under a lock that the beginning or the end of a transit needs.
    pub(crate) fn any(&self) -> bool {
        self.state.lock().busy > 0
    }
    /// How many transits have ended so far, for [`InTransit::others_arrived`].
    pub(crate) fn arrived(&self) -> u64 {
        self.state.lock().arrived
    }
    /// Whether anything of other requests has arrived since `before`, apart from `own` arrivals of this request. If something is in transit, waits until
    /// it arrives, for at most `limit`. Called with nothing in transit, so that two requests cannot wait for each other.
    pub(crate) fn others_arrived(&self, before: u64, own: u64, limit: Duration) -> bool {
        let mut state = self.state.lock();
        let start = std::time::Instant::now();
        while state.arrived == before + own && state.busy > 0 {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            self.arrived.wait_for(&mut state, left);
        }
        state.arrived != before + own
    }
}

impl Drop for TransitGuard<'_> {
    fn drop(&mut self) {
        self.own.set(self.own.get() + 1);
        let mut state = self.in_transit.state.lock();
        state.busy -= 1;
        state.arrived += 1;
        drop(state);
        self.in_transit.arrived.notify_all();
    }
}
