//! A hold on a stream's timeline by the stream's identity, for operations on streams on which the caller has no pool: while
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

/// With more timelines in the table than this, a new stream without a pool causes a sweep of closed timelines.
pub(super) struct AttachAbove(AtomicU64);

impl Default for AttachAbove {
    fn default() -> AttachAbove {
        AttachAbove(AtomicU64::new(SWEEP_LEAST as u64))
    }
}

impl<D: Driver> Registry<D> {
    /// The timeline of a stream that is known and of which the library holds a reference; `None` if it holds none, so that the stream could not be
    /// marked later.
    pub(crate) fn enter(&self, id: StreamId) -> Option<Entered<'_, D>> {
        let timeline = self.table.lock().by_stream.get(&id).cloned()?;
        // Counted under the timeline's lock, under which closing reads the count.
        let state = timeline.state.lock();
        if state.native.is_none() || state.closing {
            return None;
        }
        timeline.open.fetch_add(1, Ordering::AcqRel);
        drop(state);
        Some(Entered { registry: self, timeline })
    }

    /// The timeline of a stream that `native` keeps alive while it is held here: a new one if the
    /// stream is not known.
    pub(crate) fn enter_or_attach(&self, driver: &D, info: StreamInfo, native: &D::Stream) -> Entered<'_, D> {
        if let Some(entered) = self.enter(info.id) {
            return entered;
        }
        let timeline = self.attach(info, native, true);
        // The count as a pool becomes a count as an open use, in this order: the timeline always has one of them.
        timeline.open.fetch_add(1, Ordering::AcqRel);
        timeline.pools.fetch_sub(1, Ordering::AcqRel);
        let entered = Entered { registry: self, timeline };
        self.bound_attached(driver);
        entered
    }

    /// A stream was attached on which no pool is, so that no sweep of pools will find its timeline: closed timelines leave when there are twice as many as
    /// were left the last time. Called with no lock held.
    fn bound_attached(&self, driver: &D) {
        if self.timeline_count() <= self.attach_above.0.load(Ordering::Relaxed) {
            return;
        }
        if self.queries_allowed() {
            self.query_closed(driver);
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
