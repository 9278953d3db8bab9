//! How ranges enter a pool's free state (law O5): from the device, from another pool, or from the pool's own ranges in flight.
//!
//! The ordering facts are checked first and the stamp is loaded after that. Nothing here calls the driver; the pool's lock is held.
//!
//! It does not know where a range came from.

use super::pool::store::Store;
use super::pool::{Pool, PoolState};
use super::registry::{Registry, StreamTimeline};
use crate::driver::Driver;
use crate::heap::{ChunkId, Given, Kind};
use crate::laws::{self, cost, steps};
use crate::order::{self, Completed, Entry, Pending};
use crate::units::{Addr, Epoch, Granules, SegmentId};

/// A range outside any pool, with everything that a heap needs to take it in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) segment: SegmentId,
    pub(crate) base: Addr,
    pub(crate) segment_len: Granules,
    pub(crate) kind: Kind,
    /// The unit of a window; 0 for a plain segment.
    pub(crate) unit: Granules,
    pub(crate) offset: Granules,
    pub(crate) len: Granules,
}

impl From<&crate::heap::Cut> for Range {
    fn from(c: &crate::heap::Cut) -> Range {
        Range {
            segment: c.segment,
            base: c.base,
            segment_len: c.segment_len,
            kind: c.kind,
            unit: c.unit,
            offset: c.offset,
            len: c.len,
        }
    }
}

impl<D: Driver> Store<D> for Pool<D> {
    fn home(&self) -> Option<&StreamTimeline<D>> {
        Some(&self.timeline)
    }

    fn freed_stamp(&self, registry: &Registry<D>, pending: &[Pending], unknown: bool) -> Option<Epoch> {
        let ordered = || {
            pause_point!("sealed");
            !unknown && registry.all_ordered(self.timeline.id, &self.timeline.clock(), pending)
        };
        steps::freed_stamp(ordered, || self.timeline.stamp())
    }

    fn over<'a>(&'a self, registry: &'a Registry<D>, closed: bool) -> impl Fn(Pending) -> bool + 'a {
        // The clock first: the table is not locked while it is copied.
        let clock = self.timeline.clock();
        let seen = registry.seen();
        move |p| {
            let ordered = || order::is_ordered(self.timeline.id, &clock, &seen, p);
            laws::is_over(closed, || seen.is_complete(p), ordered)
        }
    }

    fn enter_drained(&self, state: &mut PoolState, entry: Entry) -> bool {
        let mut all = entry.uses.clone();
        if let Some(epoch) = laws::home_of_drained(entry.home) {
            all.push(Pending { on: self.timeline.id, epoch });
        }
        let Some(stamp) = self.entry_stamp(state, &all) else {
            // A closed pool admits complete ranges only: the cross-stream uses are complete, the home stamp is not yet.
            let home = Pending { on: self.timeline.id, epoch: entry.home };
            self.fly(state, Entry { uses: smallvec::smallvec![home], ..entry });
            return false;
        };
        let stamp = laws::drained_stamp(stamp);
        let given = state.heap.give(ChunkId::from_index(entry.chunk), entry.generation, stamp);
        self.given(state, &given);
        self.entered(state, given.kind);
        true
    }

    fn fly(&self, state: &mut PoolState, entry: Entry) {
        let len = entry.len.0;
        state.in_flight.insert(entry);
        if cost::raises_bound(len, state.longest_in_flight) {
            self.set_longest_in_flight(state, len);
        }
    }

    fn given(&self, state: &mut PoolState, given: &Given) {
        self.publish_longest(state, given.kind, given.free_len);
    }
}

impl<D: Driver> Pool<D> {
    /// Moves own ranges in flight whose uses are over into the free state. Returns whether there were any.
    pub(crate) fn drain(&self) -> bool {
        self.drain_locked(&mut self.lock())
    }

    /// With the pool's lock held: moves own ranges in flight whose uses are over into the free state. Returns
    /// whether there were any. Makes no driver call.
    pub(crate) fn drain_locked(&self, state: &mut PoolState) -> bool {
        self.drain_in_flight(&self.core.registry, state)
    }

    /// Law O5, the stamp with which a range enters this pool's free state after its ordering facts were checked: 0 if
    /// all its uses, earlier home stamps included, are complete; else the pool's submitted + 1, loaded now. `None`: the
    /// pool is closed and the range is not complete.
    pub(crate) fn entry_stamp(&self, state: &PoolState, uses: &[Pending]) -> Option<Epoch> {
        laws::entry_stamp(
            || self.core.registry.all_complete(uses),
            state.closed,
            || self.timeline.stamp(),
            || uses.last().map_or(Epoch::COMPLETE, |last| last.epoch),
        )
    }

    /// A range from another pool, or from the device, enters: its facts were checked, and `uses` are its uses. The
    /// heap merges it with its neighbours; returns the chunk that then contains it. `None` if the pool is closed and the range is
    /// not complete.
    pub(crate) fn enter(&self, state: &mut PoolState, range: &Range, uses: &[Pending]) -> Option<ChunkId> {
        let stamp = self.entry_stamp(state, uses)?;
        self.extend(state, range, laws::entered_stamp(stamp, || self.timeline.marked()))
    }

    /// A range enters with this stamp: complete, or returning exactly as it was. Returns the chunk that then contains it.
    pub(crate) fn extend(&self, state: &mut PoolState, range: &Range, stamp: Epoch) -> Option<ChunkId> {
        if !laws::comes_in(state.closed, stamp) {
            return None;
        }
        if !state.heap.has_segment(range.segment) {
            let Range { segment, base, segment_len, kind, unit, .. } = *range;
            state.heap.add_window(segment, base, segment_len, kind, unit);
        }
        let merged = state.heap.extend(range.segment, range.offset, range.len, stamp);
        self.publish_longest(state, range.kind, merged.len);
        self.entered(state, range.kind);
        state.note_held();
        Some(merged.chunk)
    }
}
