//! Pools whose streams are gone: when they close, who gets what they hold, and when they leave the list.
//!
//! A program that opens a stream for each epoch and never trims would keep the pools of all of them, each with a little free
//! memory. So when the list of pools has become twice as long as it was left, what closed pools hold and is complete
//! moves into one of them, the oldest, and those that are empty then leave. Moves are as in `migrate`: one pool's lock at a
//! time, facts before the stamp, and what is not complete returns exactly as it was.
//!
//! It does not know why a stream ended.

use super::core::Core;
use super::entry::Range;
use super::pool::Pool;
use super::registry::SWEEP_LEAST;
use crate::driver::Driver;
use crate::laws::cost;
use crate::order::Pending;
use crate::sync::{Arc, Ordering};
use crate::units::{Epoch, GRANULE_BYTES, SegmentId};
use core::cell::Cell;

impl<D: Driver> Core<D> {
    /// Sweeps when the list of pools has become twice as long as the last sweep left it. Waits for the end of closed streams where nobody
    /// asks about it, if the call that is under way may wait.
    pub(crate) fn tidy(&self, may_wait: bool) {
        if may_wait {
            self.registry.finish_closed(&self.driver, self.config.wait);
        }
        let few = self.pools.lock().len() <= self.sweep_above.load(Ordering::Relaxed);
        if !cost::sweeps(few) {
            return;
        }
        if !self.config.deterministic {
            self.registry.ask_closed(&self.driver);
        }
        self.gather_closed();
        self.sweep();
        let left = self.pools.lock().len();
        self.sweep_above.store(SWEEP_LEAST.max(2 * left), Ordering::Relaxed);
    }

    /// What closed pools hold and is complete moves into the oldest of them.
    fn gather_closed(&self) {
        // From before the list is read: while a hand is up no pool leaves it, and the heir is one that others find.
        let own = Cell::new(0);
        let _transit = self.in_transit.take(&own);
        let mut closed = self.pool_list();
        closed.retain(|pool| pool.lock().closed);
        let Some((heir, others)) = closed.split_first() else { return };
        for pool in others {
            pool.drain();
            let segments: Vec<SegmentId> = pool.lock().heap.segments().map(|s| s.id).collect();
            for segment in segments {
                self.inherit(heir, pool, segment);
            }
        }
    }

    /// One segment's free pieces of a closed pool.
    fn inherit(&self, heir: &Pool<D>, pool: &Pool<D>, segment: SegmentId) {
        let own = Cell::new(0);
        let (cuts, _transit) = {
            let mut state = pool.lock();
            let cuts = state.cut_free_of(segment);
            let bytes: u64 = cuts.iter().map(|c| u64::from(c.len.0) * GRANULE_BYTES).sum();
            self.moving.fetch_add(bytes, Ordering::Relaxed);
            pool.tighten_longest(&mut state);
            (cuts, self.in_transit.take(&own))
        };
        for cut in cuts {
            // In the host's view (O4): a closed pool admits nothing else.
            let complete = self.registry.all_complete(&[Pending { on: pool.timeline.id, epoch: cut.stamp }]);
            let (to, stamp) = if complete { (heir, Epoch::COMPLETE) } else { (pool, cut.stamp) };
            let mut state = to.lock();
            to.extend(&mut state, &Range::from(&cut), stamp);
            self.moving.fetch_sub(cut.len.bytes(), Ordering::Relaxed);
        }
    }

    /// Takes closed and empty pools off the list; what they did stays in the sums.
    pub(crate) fn sweep(&self) {
        let mut gone = Vec::new();
        {
            let mut pools = self.pools.lock();
            pools.retain(|pool| {
                let mut state = pool.lock();
                let empty = state.closed
                    && state.heap.live() == 0
                    && state.in_flight.is_empty()
                    && state.heap.stats().owned == 0
                    // What is in hand may have been cut here and come back: under this lock, no hand means never.
                    && !self.in_transit.any();
                if empty {
                    // Nothing enters it any more: it is nobody's source.
                    pool.tighten_longest(&mut state);
                    pool.tighten_in_flight(&mut state);
                }
                drop(state);
                if empty {
                    gone.push(Arc::clone(pool));
                }
                !empty
            });
            self.peaks.leave(&gone);
            {
                let mut closed = self.gone.lock();
                for pool in &gone {
                    closed.remove(&pool.number);
                }
            }
            // In the hold of the list in which they leave it: whoever adds up finds a pool in the list or here, and in one of them.
            for pool in &gone {
                let (counters, sizes) = pool.lock().did();
                let mut departed = self.departed.lock();
                departed.0.add(&counters);
                departed.1.merge(&sizes);
            }
        }
        drop(gone);
        self.registry.retire();
    }

    /// The pool's stream is gone and nothing of it is live: only complete ranges enter from here on. Makes no driver
    /// call; the stream itself closes at the next maintenance.
    pub(crate) fn close_pool(&self, pool: &Pool<D>) {
        {
            let mut state = pool.lock();
            if state.closed || state.streams > 0 || state.heap.live() > 0 {
                return;
            }
            if mutant!(Z37) {
                drop(state);
                pool.timeline.pools.fetch_sub(1, Ordering::AcqRel);
                let _ = self.registry.close(&self.driver, &pool.timeline, true);
                pause_point!("closing");
                pool.lock().closed = true;
                return;
            }
            // Before the closing marker is reserved (closing a stream).
            state.closed = true;
            // In the hold of the lock: whoever takes a closed pool off the list finds it here.
            self.gone.lock().insert(pool.number);
        }
        if let Some(windows) = &self.windows {
            Self::close_windows(windows, pool);
        }
        pause_point!("closing");
        pool.timeline.pools.fetch_sub(1, Ordering::AcqRel);
        self.registry.request_maintenance(&pool.timeline);
    }
}
