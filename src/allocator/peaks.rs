//! The peak of live bytes over all pools: exact where that costs nothing, bounded from both sides otherwise.
//!
//! A pool knows its own peak exactly, from the lock that every hit holds anyway. The peaks of several pools need not fall at one
//! moment, and a hit notifies no other pool. So time is divided into stretches, on slow paths only: when a report is made,
//! and when a pool has grown or received memory, each time while pools are few. At the end of a stretch, a *cut*, the live bytes of all pools
//! are known, which is a lower bound, and each pool's peak; within a stretch the live bytes were never more than the sum of the pools' peaks
//! in that stretch. With one pool both bounds are the same number.
//!
//! No thread holds two pools' locks. A cut is a moment at which all pools were seen: each is read, and read again; if none has
//! changed, all figures were true together in between. If one has, there is no cut, and the stretch continues.

use super::core::Core;
use super::pool::{Pool, PoolState};
use crate::driver::Driver;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{Arc, Mutex, Ordering};

/// How many pools are looked at, on average, for each pool that has grown or received memory: few, so that they cost little beside that.
const FEW: usize = 8;
/// How many pools are looked at in a miss that needs to know how far it may grow: more, since there the figure decides.
const SOME: usize = 64;

/// Bounds of the peak of live bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Bounds {
    pub(super) at_least: u64,
    pub(super) at_most: u64,
}

/// What is known of the stretches so far.
pub(super) struct Peaks {
    known: Mutex<Known>,
    /// One cut at a time: a second thread leaves it to the first.
    cutting: AtomicBool,
    /// How many pools may be looked at for a cut.
    due: AtomicUsize,
    /// How many pools [`Core::peak_with`] may look at.
    due_with: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Known {
    /// The most that was live at a cut, or in a pool that is gone.
    at_least: u64,
    /// The most that can have been live in a stretch that has ended.
    at_most: u64,
    /// The sum of this stretch's peaks of pools that left during it.
    gone: u64,
    /// How many times the peaks were reset.
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

/// A pool at one moment. If two are equal nothing happened in between: both counts only grow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    takes: u64,
    frees: u64,
    /// Live bytes.
    live: u64,
    /// The peak of live bytes in this stretch.
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
    /// The pools, and what is known of those that left.
    fn pools_and_known(&self) -> (Vec<Arc<Pool<D>>>, Known) {
        let pools = self.pools.lock();
        let known = *self.peaks.known.lock();
        (pools.clone(), known)
    }

    /// Ends the stretch ([`Core::cut_peaks`]) once enough calls have been made to pay for looking at all pools: a
    /// program with thousands of streams would otherwise look at all of them for each pool that grows.
    pub(super) fn cut_peaks_when_due(&self) {
        if self.is_due(&self.peaks.due, FEW) {
            self.cut_peaks();
        }
    }

    /// Whether all pools may be looked at, if each call adds `more` to the number that may.
    fn is_due(&self, due: &AtomicUsize, more: usize) -> bool {
        let now = due.fetch_add(more, Ordering::Relaxed) + more;
        let all = now >= self.pools.lock().len();
        if all {
            due.store(0, Ordering::Relaxed);
        }
        all
    }

    /// Ends a stretch if there is a moment at which all pools were seen.
    pub(super) fn cut_peaks(&self) {
        if !self.peaks.cutting.swap(true, Ordering::Acquire) {
            self.try_to_cut();
            self.peaks.cutting.store(false, Ordering::Release);
        }
    }

    fn try_to_cut(&self) {
        let (pools, before) = self.pools_and_known();
        let seen: Vec<Now> = pools.iter().map(|p| p.lock().now()).collect();
        // The moment: every pool that exists now is in the list, and its figures were the same before and after.
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
            // Other pools may have left since: they count in the next stretch.
            known.gone -= before.gone;
        }
        for (pool, now) in pools.iter().zip(&seen) {
            let mut state = pool.lock();
            // A pool that changed since starts its stretch early, which still bounds from above.
            if state.now() == *now {
                state.end_stretch();
            }
        }
    }

    /// The peak of live bytes so far; the lower of the two figures was really reached.
    pub(super) fn peak_bounds(&self) -> Bounds {
        self.cut_peaks();
        let (pools, known) = self.pools_and_known();
        let (mut largest, mut stretch) = (0, known.gone);
        for pool in &pools {
            let state = pool.lock();
            largest = largest.max(state.allocated_peak());
            stretch += state.now().stretch;
        }
        // Read after the stretches: a thread that has ended one since has put its figures here first.
        let known = *self.peaks.known.lock();
        let at_least = known.at_least.max(largest);
        // Live bytes were reserved bytes.
        let at_most = known.at_most.max(stretch).min(self.backing.lock().reserved_peak);
        Bounds { at_least, at_most: at_most.max(at_least) }
    }

    /// A lower bound of the peak of live bytes if `more` bytes were live now too. If there are many pools, not all are looked
    /// at each time, and the bound may be too low.
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
