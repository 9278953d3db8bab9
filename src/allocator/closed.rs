//! Pools whose streams are gone: when they close, which pool receives what they hold, and when they leave the list.
//!
//! A program that opens a stream for each epoch and never trims would keep the pools of all of them, each with a little free
//! memory. So when the list of pools has become twice as long as the last sweep left it, what closed pools hold and is complete
//! moves into one of them, the oldest, and those that are empty then leave the list. Ranges move as in `migrate`: one pool's lock at a
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
    /// Sweeps when the list of pools has become twice as long as the last sweep left it. Waits for the end of closed streams if the allocator
    /// is deterministic, and so never queries them, provided that the current call may wait.
    pub(crate) fn tidy(&self, may_wait: bool) {
        if may_wait {
            self.registry.finish_closed(&self.driver, self.config.wait);
        }
        let few = self.pools.lock().len() <= self.sweep_above.load(Ordering::Relaxed);
        if !cost::sweeps(few) {
            return;
        }
        if !self.config.deterministic {
            self.registry.query_closed(&self.driver);
        }
        self.gather_closed();
        self.sweep();
        let left = self.pools.lock().len();
        self.sweep_above.store(SWEEP_LEAST.max(2 * left), Ordering::Relaxed);
    }

    /// Moves what closed pools hold and is complete into the oldest of them.
    fn gather_closed(&self) {
        // Before the list is read: while anything is in transit no pool leaves the list, so other threads still find the receiving pool in it.
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

    /// Moves one segment's free pieces out of a closed pool.
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
            // Complete for the host (O4): a closed pool admits nothing else.
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
                    // A piece in transit may have been cut here and may come back. If nothing is in transit under this lock, nothing ever comes back.
                    && !self.in_transit.any();
                if empty {
                    // Nothing enters it any more, so it is no migration source.
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
            // In the same hold of the list as the removal: a sum finds each pool either in the list or here, never in both.
            for pool in &gone {
                let (counters, sizes) = pool.lock().counters_and_sizes();
                let mut departed = self.departed.lock();
                departed.0.add(&counters);
                departed.1.merge(&sizes);
            }
        }
        drop(gone);
        self.registry.retire();
    }

    /// Closes the pool if its stream is gone and none of its allocations is live: only complete ranges enter from here on. Makes no driver
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
            // Under the pool's lock: a sweep that takes the closed pool off the list finds it here.
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
