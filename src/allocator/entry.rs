//! How ranges enter a pool's free state (law O5): from the device, from another pool, or back from flight.
//!
//! The facts are checked first and the stamp is loaded then. Nothing here calls the driver; the pool's lock is held.
//!
//! It does not know where a range came from.

use super::pool::{Pool, PoolState};
use crate::driver::Driver;
use crate::heap::{ChunkId, Kind};
use crate::laws;
use crate::order::{self, Entry, Pending};
use crate::units::{Addr, Epoch, Granules, SegmentId};

/// A range on the move, with all that a heap needs to take it in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) segment: SegmentId,
    pub(crate) base: Addr,
    pub(crate) segment_len: Granules,
    pub(crate) kind: Kind,
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
            offset: c.offset,
            len: c.len,
        }
    }
}

impl<D: Driver> Pool<D> {
    /// Own ranges in flight whose uses are over enter the free state. Returns whether any did.
    pub(crate) fn drain(&self) -> bool {
        self.drain_locked(&mut self.lock())
    }

    /// With the pool's lock held: own ranges in flight whose uses are over enter the free state. Returns
    /// whether any did. Makes no driver call.
    pub(crate) fn drain_locked(&self, state: &mut PoolState) -> bool {
        if state.in_flight.is_empty() {
            return false;
        }
        let registry = &self.core.registry;
        let clock = self.timeline.clock();
        let closed = state.closed;
        let done = {
            let seen = registry.seen();
            let over = |p: Pending| {
                laws::is_over(
                    closed,
                    || order::Completed::is_complete(&seen, p),
                    || order::is_ordered(self.timeline.id, &clock, &seen, p),
                )
            };
            state.in_flight.drain(over)
        };
        let mut any = false;
        for entry in done {
            any |= self.enter_drained(state, entry);
        }
        any
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "the entry left the index and goes back into it or ends here"
    )]
    fn enter_drained(&self, state: &mut PoolState, entry: Entry) -> bool {
        let mut all = entry.uses.clone();
        if let Some(epoch) = laws::home_of_drained(entry.home) {
            all.push(Pending { on: self.timeline.id, epoch });
        }
        let Some(stamp) = self.entry_stamp(state, &all) else {
            // A closed pool admits complete ranges only: the cross-stream uses are over, the home stamp is not yet.
            let home = Pending { on: self.timeline.id, epoch: entry.home };
            self.fly(state, Entry { uses: smallvec::smallvec![home], ..entry });
            return false;
        };
        let stamp = laws::drained_stamp(stamp);
        let given = state.heap.give(ChunkId::from_index(entry.chunk), entry.generation, stamp);
        self.publish_longest(state, given.kind, given.free_len);
        self.entered(state, given.kind);
        true
    }

    /// Law O5, the stamp with which a range enters this pool's free state after its ordering facts were checked: 0 if
    /// all its uses, former home stamps among them, are complete; else the pool's submitted + 1, loaded now. `None`: the
    /// pool is closed and the range is not complete.
    pub(crate) fn entry_stamp(&self, state: &PoolState, uses: &[Pending]) -> Option<Epoch> {
        laws::entry_stamp(
            || self.core.registry.all_complete(uses),
            state.closed,
            || self.timeline.stamp(),
            || uses.last().map_or(Epoch::COMPLETE, |last| last.epoch),
        )
    }

    /// A range from another pool, or from the device, enters: facts were checked, `uses` are what it carries. The
    /// heap merges it with its neighbours, and it is part of the chunk that is returned. `None` if the pool is closed and the range is
    /// not complete.
    pub(crate) fn enter(&self, state: &mut PoolState, range: &Range, uses: &[Pending]) -> Option<ChunkId> {
        let stamp = self.entry_stamp(state, uses)?;
        self.extend(state, range, laws::entered_stamp(stamp, || self.timeline.marked()))
    }

    /// A range comes in with this stamp: complete, or returning exactly as it was. Returns the chunk that it is part of then.
    pub(crate) fn extend(&self, state: &mut PoolState, range: &Range, stamp: Epoch) -> Option<ChunkId> {
        if !laws::comes_in(state.closed, stamp) {
            return None;
        }
        if !state.heap.has_segment(range.segment) {
            state.heap.add_segment(range.segment, range.base, range.segment_len, range.kind);
        }
        let merged = state.heap.extend(range.segment, range.offset, range.len, stamp);
        self.publish_longest(state, range.kind, merged.len);
        self.entered(state, range.kind);
        state.note_held();
        Some(merged.chunk)
    }
}
