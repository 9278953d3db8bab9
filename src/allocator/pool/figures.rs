//! A pool's figures: what it holds and has done, its peaks, and which names hold its memory.
//!
//! The heap keeps most of them as it changes, misses keep others; here they are only put together, under the pool's lock. The few that
//! have to be computed are computed in pieces, with the lock released in between: no hold of it takes longer if there are more ranges.

use super::super::Live;
use super::super::oom_facts::ByName;
use super::pieces::{Pieces, in_flight_held_back, in_pieces, longest_free, oldest_in_flight, piece};
use super::{Pool, PoolState};
use crate::driver::{Driver, StreamKind};
use crate::heap::{ChunkId, FreeRange, Heap};
use crate::order::InFlight;
use crate::report::{Counters, DEFAULT, Histogram, PER_THREAD_DEFAULT, PoolReport};
use crate::sync::Arc;
use crate::units::{AllocationId, Epoch, StreamId};

/// The name of a stream that the program did not create: its number says little.
fn default_name(kind: StreamKind) -> Option<String> {
    match kind {
        StreamKind::LegacyDefault => Some(DEFAULT.to_owned()),
        StreamKind::PerThreadDefault => Some(PER_THREAD_DEFAULT.to_owned()),
        StreamKind::NonBlocking | StreamKind::Blocking => None,
    }
}

impl PoolState {
    fn sizes(&self) -> Histogram {
        let used = self.sizes.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        Histogram { counts: self.sizes[..used].to_vec() }
    }

    /// What the pool has done. The heap counts every allocation and free.
    fn counters(&self) -> Counters {
        let heap = self.heap.stats();
        Counters {
            allocations: heap.takes,
            frees: self.frees(),
            hits: heap.takes - self.missed,
            bytes_served: heap.bytes_served,
            splits: heap.splits,
            merges: heap.merges,
            ..self.counters
        }
    }

    /// What the pool has done, and the sizes of its requests.
    pub(crate) fn counters_and_sizes(&self) -> (Counters, Histogram) {
        (self.counters(), self.sizes())
    }

    pub(crate) fn frees(&self) -> u64 {
        let heap = self.heap.stats();
        heap.takes - heap.live
    }

    pub(crate) fn note_held(&mut self) {
        self.owned_peak = self.owned_peak.max(self.heap.stats().owned);
    }

    /// The peak of live bytes in this pool: exact.
    pub(crate) fn allocated_peak(&self) -> u64 {
        self.former_peak.max(self.heap.stats().allocated_peak)
    }

    /// From here on the heap counts the peak of the next stretch.
    pub(crate) fn end_stretch(&mut self) {
        self.former_peak = self.allocated_peak();
        self.heap.reset_peak();
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.former_peak = 0;
        self.heap.reset_peak();
        self.owned_peak = self.heap.stats().owned;
    }

    /// A report, from the figures that are kept and these two, which had to be computed.
    pub(crate) fn report(&self, largest_free: u64, held_back: u64) -> PoolReport {
        let stats = self.heap.stats();
        PoolReport {
            reserved: stats.owned,
            allocated: stats.allocated,
            requested: stats.requested,
            cached: stats.free,
            in_flight: stats.in_flight,
            // While other threads work these two are from a moment before: they are reported as no more than there is now.
            held_back: held_back.min(stats.free + stats.in_flight),
            largest_free: largest_free.min(stats.free),
            allocated_peak: self.allocated_peak(),
            live: stats.live,
            free_chunks: stats.free_chunks,
            in_flight_ranges: self.in_flight.len() as u64,
            counters: self.counters(),
            sizes: self.sizes(),
            ..PoolReport::default()
        }
    }

    /// Adds every live allocation, by address.
    pub(crate) fn add_live(&self, pool: u32, stream: Option<StreamId>, to: &mut Vec<Live>) {
        to.extend(self.heap.allocated().into_iter().map(|(chunk, generation, view)| Live {
            id: AllocationId { pool, chunk: chunk.index(), generation },
            name: self.name(chunk).cloned(),
            addr: view.addr,
            bytes: view.requested,
            stream,
        }));
    }

    /// Adds live allocations and bytes, by name: a step for each name, not for each allocation.
    pub(crate) fn add_holders(&self, all: &mut ByName) {
        let mut add = |name: Option<Arc<str>>, allocations: u64, bytes: u64| {
            let sum = all.entry(name).or_default();
            *sum = (sum.0 + allocations, sum.1 + bytes);
        };
        let stats = self.heap.stats();
        let (mut live, mut allocated) = (stats.live, stats.allocated);
        for (&chunk, name) in &self.names {
            let bytes = self.heap.allocated_len(ChunkId::from_index(chunk)).bytes();
            add(Some(Arc::clone(name)), 1, bytes);
            (live, allocated) = (live - 1, allocated - bytes);
        }
        add(None, live, allocated);
    }
}

impl<D: Driver> Pieces for Pool<D> {
    fn hold<R>(&self, look: impl FnOnce(&Heap, &InFlight) -> R) -> R {
        let state = self.lock();
        let found = look(&state.heap, &state.in_flight);
        state.unlock_fair();
        found
    }
}

impl<D: Driver> Pool<D> {
    /// Freed bytes that can serve only the pool's own stream, if any.
    pub(in super::super) fn held_back(&self) -> u64 {
        let mut free = 0;
        self.for_free_held_back(|range| free += range.len.bytes());
        free + in_flight_held_back(self, &self.core.registry, self.core.driver.expects_captures())
    }

    /// Free ranges whose last use nothing can show to be complete.
    pub(in super::super) fn for_free_held_back(&self, mut of: impl FnMut(FreeRange)) {
        let unmarked = self.timeline.is_named_only() || self.timeline.is_closed_without(Epoch(u64::MAX)).1;
        if !unmarked || !self.timeline.is_held_back(Epoch(u64::MAX), self.core.driver.expects_captures()) {
            return;
        }
        let covered = self.timeline.covered();
        in_pieces(self, 0, |heap, _, from| {
            let (end, free) = heap.free_from(from, piece() as u32)?;
            free.filter(|range| range.stamp > covered).for_each(&mut of);
            Some(end)
        });
    }

    /// The pool's part of a report. What is kept is read in one hold of the lock; what has to be computed, in pieces before it.
    pub(crate) fn report(&self) -> PoolReport {
        let (largest_free, held_back) = (longest_free(self), self.held_back());
        let oldest_in_flight = oldest_in_flight(self, &self.core.registry);
        let mut state = self.lock();
        self.tighten_longest(&mut state);
        let report = PoolReport {
            stream: Some(self.timeline.info.id),
            name: default_name(self.timeline.info.kind),
            closed: state.closed,
            reserved_peak: state.owned_peak,
            oldest_in_flight,
            ..state.report(largest_free, held_back)
        };
        state.unlock_fair();
        report
    }
}
