//! Which streams a request may wait for, on the device or on the host: never an independent stream, never the whole device, and never
//! a stream whose work it cannot mark.
//!
//! A context-wide marker comes after the work of every stream, independent ones included, so it is not waited for either while any stream
//! is independent. This file neither waits nor decides for how long: `waiting.rs` does.

use super::registry::{CONTEXT, Named, Registry, StreamTimeline};
use crate::driver::{Driver, StreamKind};
use crate::laws;
use crate::order::{Pending, TimelineId};
use crate::sync::Ordering;
use crate::units::Epoch;

/// Which streams requests may wait for.
pub(crate) struct Waitable<'a, D: Driver> {
    registry: &'a Registry<D>,
    /// Whether other code may capture:
    /// [`Fences::expects_captures`](crate::driver::Fences::expects_captures).
    expects_captures: bool,
}

impl<D: Driver> Registry<D> {
    pub(crate) fn waitable(&self, driver: &D) -> Waitable<'_, D> {
        Waitable { registry: self, expects_captures: driver.expects_captures() }
    }

    /// Declares a stream independent, or no longer independent.
    pub(crate) fn set_independent(&self, timeline: &StreamTimeline<D>, on: bool) {
        match (timeline.independent.swap(on, Ordering::AcqRel), on) {
            (false, true) => drop(self.independents.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(self.independents.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
    }
}

impl<D: Driver> Waitable<'_, D> {
    /// Whether a request may make a stream wait for this one. A timeline that has left the table is
    /// complete.
    pub(crate) fn by_streams(&self, on: TimelineId) -> bool {
        self.registry.timeline(on).is_none_or(|l| self.is_dependable(&l))
    }

    fn is_dependable(&self, timeline: &StreamTimeline<D>) -> bool {
        let any_independent = || laws::is_independent(self.registry.independents.load(Ordering::Acquire) > 0);
        !(is_independent(timeline) || (is_wide(timeline) && any_independent()))
    }

    /// Whether a request may make a stream wait for this use: as [`Waitable::by_streams`], and a marker covers it or can be made now on this thread.
    /// If not, a marker falls due.
    pub(crate) fn orderable(&self, pending: Pending) -> bool {
        self.registry.timeline(pending.on).is_none_or(|l| self.is_orderable(&l, pending.epoch))
    }

    /// Whether a request may make a stream wait for this epoch of a given timeline; if not, a
    /// marker falls due.
    pub(crate) fn is_orderable(&self, timeline: &StreamTimeline<D>, epoch: Epoch) -> bool {
        let held = timeline.is_held_back(epoch, self.expects_captures);
        if held {
            timeline.raise_due();
        }
        !held && self.is_dependable(timeline)
    }

    /// Whether a request may make the host wait for this. Where the driver has no context-wide markers, only a wait
    /// for the whole device would serve: what needs one is complete when the program synchronises.
    pub(crate) fn by_host(&self, pending: Pending) -> bool {
        let marked = |l: &StreamTimeline<D>| l.published.load(Ordering::Acquire) >= pending.epoch.0;
        let waits = |l: &StreamTimeline<D>| {
            let held = !marked(l) && (l.is_named_only() || l.is_closed_without(pending.epoch).1);
            if held {
                // The next call that names the stream makes one.
                l.raise_due();
            }
            !held && (marked(l) || !is_wide(l))
        };
        self.registry.timeline(pending.on).is_none_or(|l| self.is_dependable(&l) && waits(&l))
    }
}

fn is_independent<D: Driver>(timeline: &StreamTimeline<D>) -> bool {
    laws::is_independent(timeline.independent.load(Ordering::Relaxed))
}

/// Whether its markers may be context-wide.
fn is_wide<D: Driver>(timeline: &StreamTimeline<D>) -> bool {
    timeline.id == CONTEXT || timeline.info.kind == StreamKind::PerThreadDefault
}

impl<D: Driver> StreamTimeline<D> {
    /// Whether no stream can be ordered behind this epoch for now: no marker covers it, and none can be made on this thread in a
    /// call that does not name the stream; or it is closed, and a capture took its last marker.
    pub(crate) fn is_held_back(&self, epoch: Epoch, expects_captures: bool) -> bool {
        if epoch <= self.covered() {
            return false;
        }
        let (closed, lost) = self.is_closed_without(epoch);
        let by_handle = self.id != CONTEXT && self.is_marked_by_handle(Named::No) && !closed;
        lost || !by_handle && (self.is_unmanaged() || expects_captures)
    }
}
