//! Memory in hand: cut out of one place and not yet in the next.
//!
//! Between two pools, between a pool and the device, or claimed under the limit and not yet granted, bytes belong to one
//! thread alone and no other can find them. A request that finds nothing at such a moment is not out of memory: it looks
//! again when what was in hand has landed ([`InTransit::others_landed`]). It does not know what is moved or where.
//!
//! A hand is taken up before the lock is released under which the bytes left, and put down after the one under which they
//! arrived; so whoever holds a pool's lock and sees no hand knows that nothing will come back to that pool.

use crate::sync::{Condvar, Mutex};
use core::cell::Cell;
use core::time::Duration;

/// All transits of one allocator.
#[derive(Default)]
pub(crate) struct InTransit {
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// How many hold something now.
    busy: u64,
    /// How many have put down what they held, since the beginning.
    landed: u64,
}

/// One hand with something in it, until dropped.
pub(crate) struct TransitGuard<'a> {
    in_transit: &'a InTransit,
    own: &'a Cell<u64>,
}

impl InTransit {
    /// Takes something up. What the same request puts down is no news to it: it is counted in `own`. May be called under
    /// any lock.
    pub(crate) fn take<'a>(&'a self, own: &'a Cell<u64>) -> TransitGuard<'a> {
        self.state.lock().busy += 1;
        TransitGuard { in_transit: self, own }
    }
    /// Whether anybody holds anything. Certain only under a lock that whoever takes up or puts down would need.
    pub(crate) fn any(&self) -> bool {
        self.state.lock().busy > 0
    }
    /// How many have landed so far, for [`InTransit::others_landed`].
    pub(crate) fn landed(&self) -> u64 {
        self.state.lock().landed
    }
    /// Whether anything of others has landed since `before`, `own` landings apart; if something is in hand, waits until
    /// it has, for at most `limit`. Called with nothing in hand, so that two cannot wait for each other.
    pub(crate) fn others_landed(&self, before: u64, own: u64, limit: Duration) -> bool {
        let mut state = self.state.lock();
        let start = std::time::Instant::now();
        while state.landed == before + own && state.busy > 0 {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            self.landed.wait_for(&mut state, left);
        }
        state.landed != before + own
    }
}

impl Drop for TransitGuard<'_> {
    fn drop(&mut self) {
        self.own.set(self.own.get() + 1);
        let mut state = self.in_transit.state.lock();
        state.busy -= 1;
        state.landed += 1;
        drop(state);
        self.in_transit.landed.notify_all();
    }
}
