//! How a freed range returns to its pool, of whichever memory: at once, or from flight when its uses are over. A stream's memory returns
//! when they are ordered before what the stream does next; pinned memory, which the CPU may write at once, when they are complete.
//!
//! It does not know the pool's lock, which is held in all of it, nor what else a free has to do.

use super::state::PoolState;
use crate::allocator::registry::uses::note_pending;
use crate::allocator::registry::{CONTEXT, Registry, StreamTimeline};
use crate::driver::Driver;
use crate::heap::{ChunkId, ChunkView, Given};
use crate::laws;
use crate::order::{Entry, Pending, PendingSet, Uses};
use crate::units::Epoch;

/// What differs between the pools of a stream's memory and of pinned memory, and from that what they have in common.
pub(crate) trait Store<D: Driver> {
    /// The stream whose own uses are always in order with its memory.
    fn home(&self) -> Option<&StreamTimeline<D>>;

    /// The stamp with which a range becomes free at once after these uses, or after unknown ones; `None` if it has to wait for them.
    fn freed_stamp(&self, registry: &Registry<D>, pending: &[Pending], unknown: bool) -> Option<Epoch>;

    /// Which uses of ranges in flight are over.
    fn over<'a>(&'a self, registry: &'a Registry<D>, closed: bool) -> impl Fn(Pending) -> bool + 'a;

    /// Moves a range whose uses are over into the free state. Returns whether it could.
    fn enter_drained(&self, state: &mut PoolState, entry: Entry) -> bool;

    /// Puts a range in flight.
    fn fly(&self, state: &mut PoolState, entry: Entry) {
        state.in_flight.insert(entry);
    }

    /// A range became free, at a free.
    fn given(&self, _: &mut PoolState, _: &Given) {}

    /// Moves ranges in flight whose uses are over into the free state. Returns whether there were any. Makes no driver call.
    fn drain_in_flight(&self, registry: &Registry<D>, state: &mut PoolState) -> bool {
        if state.in_flight.is_empty() {
            return false;
        }
        let done = state.in_flight.drain(self.over(registry, state.closed));
        let mut any = false;
        for entry in done {
            any |= self.enter_drained(state, entry);
        }
        any
    }

    /// The free after these uses. They are still open on their streams' timelines, so the last markers there cover the stamps loaded here.
    /// Returns whether the range is in flight.
    fn free_behind(
        &self,
        registry: &Registry<D>,
        state: &mut PoolState,
        (chunk, generation): (ChunkId, u32),
        (view, uses): (&ChunkView, &Uses),
        unknown: bool,
    ) -> bool {
        // Law O6: uses that are still open are sealed here, with the number that their streams' next markers will have.
        let mut pending: PendingSet = {
            // Only open uses are looked up in the table.
            let mut seen = None;
            uses.at_free(self.home().map(|home| home.id), |on| {
                let seen = seen.get_or_insert_with(|| registry.seen());
                seen.timeline(on).map_or(Epoch::COMPLETE, |l| laws::seal(|| l.stamp(), || l.marked()))
            })
        };
        let unknown = laws::is_unknown(unknown);
        if unknown && pending.iter().all(|p| p.on != CONTEXT) {
            pending.push(Pending { on: CONTEXT, epoch: registry.context().stamp() });
        }
        if let Some(stamp) = self.freed_stamp(registry, &pending, unknown) {
            let given = state.heap.give(chunk, generation, stamp);
            self.given(state, &given);
            return false;
        }
        let home = self.home().map_or(Epoch::COMPLETE, StreamTimeline::stamp);
        state.heap.hold(chunk, generation, home);
        for p in &pending {
            note_pending(registry, *p, view.len.bytes(), unknown);
        }
        let entry = Entry { chunk: chunk.index(), generation, len: view.len, uses: pending, home };
        self.fly(state, entry);
        state.counters.in_flight_frees += 1;
        if state.in_flight.is_crowded() {
            self.drain_in_flight(registry, state);
        }
        true
    }
}
