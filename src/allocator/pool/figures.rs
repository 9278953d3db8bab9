//! A pool's figures: what it holds and did, its peaks, and who holds its memory.
//!
//! Most are kept by the heap as it changes, others by misses; here they are only put together, under the pool's lock.

use super::super::facts::ByName;
use super::{Pool, PoolState, Registry};
use crate::driver::{Driver, StreamKind};
use crate::heap::ChunkId;
use crate::order::{Entry, Pending};
use crate::report::{Counters, Histogram, PoolReport};
use crate::sync::Arc;
use crate::units::Epoch;

/// What a stream is called that the program did not make: its number says little.
fn default_name(kind: StreamKind) -> Option<String> {
    match kind {
        StreamKind::LegacyDefault => Some("default".to_owned()),
        StreamKind::PerThreadDefault => Some("per-thread default".to_owned()),
        StreamKind::NonBlocking | StreamKind::Blocking => None,
    }
}

impl PoolState {
    fn sizes(&self) -> Histogram {
        let used = self.sizes.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        Histogram { counts: self.sizes[..used].to_vec() }
    }

    /// What the pool did. The heap keeps what every take and give counts.
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

    pub(crate) fn frees(&self) -> u64 {
        let heap = self.heap.stats();
        heap.takes - heap.live
    }

    pub(crate) fn note_held(&mut self) {
        self.held_peak = self.held_peak.max(self.heap.stats().held);
    }

    /// The most that was ever live here: exact.
    pub(crate) fn allocated_peak(&self) -> u64 {
        self.former_peak.max(self.heap.stats().allocated_peak)
    }

    /// From here on the heap counts the peak of another stretch.
    pub(crate) fn end_stretch(&mut self) {
        self.former_peak = self.allocated_peak();
        self.heap.reset_peak();
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.former_peak = 0;
        self.heap.reset_peak();
        self.held_peak = self.heap.stats().held;
    }

    /// Adds what is alive, by name: a step for each name, not for each allocation.
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

/// Bytes of ranges in flight that wait for somebody whom nobody can mark here and now.
pub(in super::super) fn in_flight_held_back<'a, D: Driver>(
    registry: &Registry<D>,
    entries: impl Iterator<Item = &'a Entry>,
    expects_captures: bool,
) -> u64 {
    let held =
        |p: &Pending| registry.line(p.on).is_some_and(|line| line.is_held_back(p.epoch, expects_captures));
    entries.filter(|entry| entry.uses.iter().any(held)).map(|entry| entry.len.bytes()).sum()
}

impl<D: Driver> Pool<D> {
    /// Freed bytes that can serve nobody but, perhaps, the pool's own stream.
    fn held_back(&self, state: &PoolState) -> u64 {
        let expects_captures = self.core.driver.expects_captures();
        let in_flight = in_flight_held_back(&self.core.registry, state.in_flight.iter(), expects_captures);
        if !self.line.is_unmanaged() || !self.line.is_held_back(Epoch(u64::MAX), expects_captures) {
            return in_flight;
        }
        in_flight + state.heap.free_above(self.line.covered()).bytes()
    }

    /// The pool's part of a report.
    pub(crate) fn report(&self) -> PoolReport {
        let mut state = self.lock();
        let stats = state.heap.stats();
        let largest_free = state.heap.longest_free().bytes();
        self.tighten_longest(&mut state);
        let oldest_in_flight = state
            .in_flight
            .oldest()
            .filter_map(|p| {
                let line = self.core.registry.line(p.on)?;
                Some((line.marked().0 + 1).saturating_sub(p.epoch.0))
            })
            .max();
        let report = PoolReport {
            stream: self.line.info.id,
            name: default_name(self.line.info.kind),
            closed: state.closed,
            held: stats.held,
            allocated: stats.allocated,
            asked: stats.asked,
            cached: stats.free,
            in_flight: stats.in_flight,
            held_back: self.held_back(&state),
            allocated_peak: state.allocated_peak(),
            held_peak: state.held_peak,
            live: stats.live,
            free_chunks: stats.free_chunks,
            largest_free,
            in_flight_ranges: state.in_flight.len() as u64,
            oldest_in_flight,
            counters: state.counters(),
            sizes: state.sizes(),
        };
        state.unlock_fair();
        report
    }
}
