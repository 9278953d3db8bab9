//! A hold on a stream's timeline by the stream's identity, for operations on streams that the caller has no pool on: while
//! it lives, the timeline neither closes nor leaves the table.

use super::uses::release_uses;
use super::{Registry, SWEEP_LEAST, StreamTimeline};
use crate::driver::{Driver, StreamInfo};
use crate::order::TimelineId;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Ordering};
use crate::units::StreamId;

/// A timeline with one more open use counted on it.
pub(crate) struct Entered<'a, D: Driver> {
    registry: &'a Registry<D>,
    timeline: Arc<StreamTimeline<D>>,
}

/// With more timelines in the table, a stream that comes without a pool has those looked through that are closed.
pub(super) struct AttachAbove(AtomicU64);

impl Default for AttachAbove {
    fn default() -> AttachAbove {
        AttachAbove(AtomicU64::new(SWEEP_LEAST as u64))
    }
}

impl<D: Driver> Registry<D> {
    /// The timeline of a stream that is known and held; `None` where nobody here holds it, so that it could not be marked
    /// later.
    pub(crate) fn enter(&self, id: StreamId) -> Option<Entered<'_, D>> {
        let timeline = self.table.lock().by_stream.get(&id).cloned()?;
        // Counted under the timeline's lock, where closing looks.
        let state = timeline.state.lock();
        if state.native.is_none() || state.closing {
            return None;
        }
        timeline.open.fetch_add(1, Ordering::AcqRel);
        drop(state);
        Some(Entered { registry: self, timeline })
    }

    /// The timeline of a stream that `native` keeps alive for as long as it is held here: a new one where the
    /// stream is not known.
    pub(crate) fn enter_or_attach(&self, driver: &D, info: StreamInfo, native: &D::Stream) -> Entered<'_, D> {
        if let Some(entered) = self.enter(info.id) {
            return entered;
        }
        let timeline = self.attach(info, native, true);
        // The count as a pool becomes one as an open use, in this order: the timeline is never without.
        timeline.open.fetch_add(1, Ordering::AcqRel);
        timeline.pools.fetch_sub(1, Ordering::AcqRel);
        let entered = Entered { registry: self, timeline };
        self.bound_attached(driver);
        entered
    }

    /// A stream came whose timeline no pool has, so that no sweep of pools will: closed ones leave when there are twice as many timelines as
    /// were left the last time. Called with no lock held.
    fn bound_attached(&self, driver: &D) {
        if self.timeline_count() <= self.attach_above.0.load(Ordering::Relaxed) {
            return;
        }
        if self.asks() {
            self.ask_closed(driver);
        }
        self.retire();
        self.attach_above.0.store((SWEEP_LEAST as u64).max(2 * self.timeline_count()), Ordering::Relaxed);
    }
}

impl<D: Driver> Entered<'_, D> {
    pub(crate) fn timeline(&self) -> &Arc<StreamTimeline<D>> {
        &self.timeline
    }
}

impl<D: Driver> Drop for Entered<'_, D> {
    fn drop(&mut self) {
        let on: TimelineId = self.timeline.id;
        release_uses(self.registry, [on]);
    }
}
