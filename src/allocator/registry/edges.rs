//! Which streams the program itself has ordered: *edges*, seen where an order of the program passes through this library.
//!
//! | where | between |
//! |---|---|
//! | a stream waits for an event, or for a stream | both streams |
//! | a use is declared (`record_use`, `record_use_until`, `share_with`, `free_on`) | the allocation's own stream and the user's |
//! | an operation on arrays, a guard or a borrow by cudarc | its stream, and those that its operands live on or were used on |
//!
//! What is complete by then counts too, so that edges do not depend on how fast the device is. An edge has no direction (docs/decisions/seen-edges.md).
//! The waits that the allocator inserts for reuse are none.
//!
//! Edges are between two timelines of the table, and are forgotten when either leaves it: both are written in one hold of the table's lock. So there
//! are never more than pairs of timelines. One that is known already costs one lock of one timeline, and nothing is seen before the first allocator of the
//! device that needs edges ([`Reuse::KnownWaits`](super::super::config::Reuse)).

use super::{CONTEXT, NO_TIMELINE, Registry, Seen, StreamTimeline};
use crate::driver::Driver;
use crate::laws::waits as laws;
use crate::order::{Edges, TimelineId};
use crate::sync::{Arc, Ordering};

impl<D: Driver> Registry<D> {
    /// An allocator of this device was created that needs edges.
    pub(crate) fn see_edges(&self) {
        self.sees_edges.store(true, Ordering::Relaxed);
    }
    /// The program itself ordered one of these streams behind the other.
    pub(crate) fn saw_edge(&self, of: &StreamTimeline<D>, on: TimelineId) {
        if !self.sees_edges.load(Ordering::Relaxed) {
            return;
        }
        let is_none = [of.id, CONTEXT, NO_TIMELINE].contains(&on) || of.id == CONTEXT;
        if is_none || of.state.lock().edges.has(on) {
            return;
        }
        let table = self.table.lock();
        let (Some(one), Some(other)) = (table.by_id.get(&of.id), table.by_id.get(&on)) else { return };
        one.state.lock().edges.add(on);
        other.state.lock().edges.add(of.id);
    }
}

impl<D: Driver> Seen<'_, D> {
    /// Timelines have left the table: forgets the edges between them and those that stay.
    pub(super) fn forget_edges(&self, timelines: &[Arc<StreamTimeline<D>>]) {
        for timeline in timelines.iter().filter(|_| laws::forgets_edges()) {
            timeline.state.lock().edges.keep(|on| self.timeline(on).is_some());
        }
    }
}

impl<D: Driver> StreamTimeline<D> {
    /// The edges that were seen at this stream.
    pub(crate) fn edges(&self) -> Edges {
        self.state.lock().edges.clone()
    }
}
