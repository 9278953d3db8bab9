//! The most that was ever live at once over all pools: known where that costs nothing, bounded from both sides otherwise.
//!
//! A pool knows its own peak exactly, from the lock that every hit holds anyway. Peaks of several pools need not fall on one
//! moment, and a hit tells no other pool. So time is cut into stretches, on slow paths only: when a report is made,
//! and when a pool has grown or was given memory, each time while pools are few. At a cut the live bytes of all pools are known, a bound from below, as is
//! each pool's peak; within a stretch what was live at once is at most the sum of the pools' peaks of that stretch. With one pool
//! both bounds are one number.
//!
//! No thread holds two pools' locks. A cut is a moment at which all pools were seen: each is read, and read again; if none has
//! changed, its figures were true together in between. If one has, there is no cut, and the stretch goes on.

use super::core::Core;
use super::pool::{Pool, PoolState};
use crate::driver::Driver;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{Arc, Mutex, Ordering};

/// So many pools are looked at, on average, for a pool that has grown or was given memory: few cost little beside that.
const FEW: usize = 8;
/// And so many for a miss that asks what it may grow to: it would rather know.
const SOME: usize = 64;

/// Bounds of the most that was live at once, in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Bounds {
    pub(super) at_least: u64,
    pub(super) at_most: u64,
}

/// What is known of the stretches so far.
pub(super) struct Peaks {
    known: Mutex<Known>,
    /// One cut at a time: who meets another one leaves it to that.
    cutting: AtomicBool,
    /// So many pools may be looked at for a cut.
    due: AtomicUsize,
    /// And by [`Core::peak_with`].
    due_with: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Known {
    /// The most that was live at a cut, or in a pool that is gone.
    at_least: u64,
    /// The most that can have been live in a stretch that is over.
    at_most: u64,
    /// Peaks of this stretch of pools that went during it.
    gone: u64,
    /// How often everything was begun anew.
    resets: u64,
}

impl Peaks {
    pub(super) fn new() -> Peaks {
        Peaks {
            known: Mutex::new(Known::default()),
            cutting: AtomicBool::new(false),
            due: AtomicUsize::new(0),
            due_with: AtomicUsize::new(0),
        }
    }

    /// Pools leave the list, whose lock is held.
    pub(super) fn leave<D: Driver>(&self, pools: &[Arc<Pool<D>>]) {
        for pool in pools {
            let (peak, stretch) = {
                let state = pool.lock();
                (state.allocated_peak(), state.now().stretch)
            };
            let mut known = self.known.lock();
            known.at_least = known.at_least.max(peak);
            known.gone += stretch;
        }
    }
}

/// A pool at one moment. Two that are equal have nothing between them: both counts only grow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    takes: u64,
    frees: u64,
    /// Bytes alive.
    live: u64,
    /// The most of them in this stretch.
    stretch: u64,
}

impl PoolState {
    pub(super) fn now(&self) -> Now {
        let stats = self.heap.stats();
        let (takes, frees) = (stats.takes, stats.takes - stats.live);
        Now { takes, frees, live: stats.allocated, stretch: stats.allocated_peak }
    }
}

impl<D: Driver> Core<D> {
    /// The pools, and what is known of those that are gone.
    fn pools_and_known(&self) -> (Vec<Arc<Pool<D>>>, Known) {
        let pools = self.pools.lock();
        let known = *self.peaks.known.lock();
        (pools.clone(), known)
    }

    /// Cuts the stretch of which the peaks are known ([`Core::cut_peaks`]), once as many pools may be looked at as there are: a
    /// program with thousands of streams would look at all of them for each that grows.
    pub(super) fn cut_peaks_when_due(&self) {
        if self.is_due(&self.peaks.due, FEW) {
            self.cut_peaks();
        }
    }

    /// Whether all pools may be looked at, if for each time that this is asked `more` may.
    fn is_due(&self, due: &AtomicUsize, more: usize) -> bool {
        let now = due.fetch_add(more, Ordering::Relaxed) + more;
        let all = now >= self.pools.lock().len();
        if all {
            due.store(0, Ordering::Relaxed);
        }
        all
    }

    /// Ends a stretch, if a moment can be had at which all pools were seen.
    pub(super) fn cut_peaks(&self) {
        if !self.peaks.cutting.swap(true, Ordering::Acquire) {
            self.try_to_cut();
            self.peaks.cutting.store(false, Ordering::Release);
        }
    }

    fn try_to_cut(&self) {
        let (pools, before) = self.pools_and_known();
        let seen: Vec<Now> = pools.iter().map(|p| p.lock().now()).collect();
        // The moment: a pool that is there by now is in the list, and what each has was read before and is so after.
        let (again, known) = self.pools_and_known();
        let same = known == before
            && again.len() == pools.len()
            && again.iter().zip(&pools).all(|(a, b)| Arc::ptr_eq(a, b));
        if !same || pools.iter().zip(&seen).any(|(p, now)| p.lock().now() != *now) {
            return;
        }
        {
            let mut known = self.peaks.known.lock();
            if known.resets != before.resets {
                return;
            }
            known.at_least = known.at_least.max(seen.iter().map(|n| n.live).sum());
            known.at_most = known.at_most.max(before.gone + seen.iter().map(|n| n.stretch).sum::<u64>());
            // Others may have gone since: they count in the next stretch.
            known.gone -= before.gone;
        }
        for (pool, now) in pools.iter().zip(&seen) {
            let mut state = pool.lock();
            // Who has moved on since begins its stretch early: that bounds from above all the same.
            if state.now() == *now {
                state.end_stretch();
            }
        }
    }

    /// The most that was live at once so far; of the two figures the lower one was reached.
    pub(super) fn peak_bounds(&self) -> Bounds {
        self.cut_peaks();
        let (pools, known) = self.pools_and_known();
        let (mut largest, mut stretch) = (0, known.gone);
        for pool in &pools {
            let state = pool.lock();
            largest = largest.max(state.allocated_peak());
            stretch += state.now().stretch;
        }
        // Read behind the stretches: whoever has ended one since has put it here first.
        let known = *self.peaks.known.lock();
        let at_least = known.at_least.max(largest);
        // What is live was taken.
        let at_most = known.at_most.max(stretch).min(self.backing.lock().reserved_peak);
        Bounds { at_least, at_most: at_most.max(at_least) }
    }

    /// A lower bound of the most that was ever live at once, were `more` bytes live now too. Where pools are many not all are looked
    /// at each time, and it may be too low.
    pub(crate) fn peak_with(&self, more: u64) -> u64 {
        if !self.is_due(&self.peaks.due_with, SOME) {
            return self.peaks.known.lock().at_least.max(more);
        }
        let (mut live, mut largest) = (more, 0);
        for pool in self.pool_list() {
            let state = pool.lock();
            live += state.now().live;
            largest = largest.max(state.allocated_peak());
        }
        self.peaks.known.lock().at_least.max(largest).max(live)
    }

    /// Sets every pool's peaks, and those of all together, to what is live now.
    pub(super) fn reset_live_peaks(&self) {
        for pool in self.pool_list() {
            pool.lock().reset_peaks();
        }
        let mut known = self.peaks.known.lock();
        *known = Known { resets: known.resets + 1, ..Known::default() };
    }
}
