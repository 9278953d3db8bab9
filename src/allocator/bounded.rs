//! Which streams a request may wait for, on the device or on the host: never an independent stream, never the whole device, and never
//! a stream whose work it cannot mark.
//!
//! On the device a wait makes one stream wait for another, and the program does not know of it. Programs whose streams depend on each other by flags
//! or collectives hang if the wrong one waits, so by default a wait is put only between two streams that the program itself has ordered (`edges`
//! in the registry), or for one that it declared dependable (docs/ordering.md, "Waits that are inserted"). [`Waits`] is the one answer, for every
//! rung. A wait of the host is bounded and hangs nothing, so it needs neither ([`Waitable`]).
//!
//! A context-wide marker comes after the work of every stream, independent ones included, so it is not waited for either while any stream
//! is independent, nor on the device by default: nobody has ordered all streams. This file neither waits nor decides for how long: `waiting.rs` does.

use super::config::Reuse;
use super::registry::{CONTEXT, Named, Registry, StreamTimeline};
use crate::driver::{Driver, StreamKind};
use crate::laws::waits as laws;
use crate::order::{Edges, Pending};
use crate::sync::Ordering;
use crate::units::Epoch;

/// What a program has declared of a stream's place among others. The last declaration counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Place {
    /// Nothing.
    Undeclared = 0,
    /// Never waited on and never made to wait.
    Independent = 1,
    /// Any stream may be made to wait for it.
    Dependable = 2,
}

/// Which streams the host may wait for.
pub(crate) struct Waitable<'a, D: Driver> {
    registry: &'a Registry<D>,
}

/// Which streams one stream may be made to wait for, on the device, so that it can have their memory.
pub(crate) struct Waits<'a, D: Driver> {
    registry: &'a Registry<D>,
    reuse: Reuse,
    /// The edges seen at that stream.
    edges: Edges,
    /// Whether other code may capture:
    /// [`Fences::expects_captures`](crate::driver::Fences::expects_captures).
    expects_captures: bool,
}

impl<D: Driver> Registry<D> {
    pub(crate) fn waitable(&self) -> Waitable<'_, D> {
        Waitable { registry: self }
    }

    /// Which streams `to` may be made to wait for; `None` if it waits for none.
    pub(crate) fn waits(&self, driver: &D, to: &StreamTimeline<D>, reuse: Reuse) -> Option<Waits<'_, D>> {
        if !reuse.inserts_waits() || is_independent(to) {
            return None;
        }
        let edges = to.edges();
        // Else a program whose streams have nothing to do with each other would pass all of them at each growth.
        let known = || !edges.is_empty() || self.dependables.load(Ordering::Acquire) > 0;
        laws::may_wait(reuse == Reuse::WithWaits, known).then(|| Waits {
            registry: self,
            reuse,
            edges,
            expects_captures: driver.expects_captures(),
        })
    }

    /// Declares a stream's place, or takes that declaration back if it is the last one.
    pub(crate) fn declare(&self, timeline: &StreamTimeline<D>, place: Place, on: bool) {
        let next = if on { place } else { Place::Undeclared } as u32;
        let changes = |now: u32| (on || now == place as u32).then_some(next);
        let Ok(before) = timeline.place.fetch_update(Ordering::AcqRel, Ordering::Acquire, changes) else {
            return;
        };
        let counts = [(Place::Independent, &self.independents), (Place::Dependable, &self.dependables)];
        for (place, count) in counts.map(|(place, count)| (place as u32, count)) {
            match (before == place, next == place) {
                (false, true) => drop(count.fetch_add(1, Ordering::AcqRel)),
                (true, false) => drop(count.fetch_sub(1, Ordering::AcqRel)),
                _ => {}
            }
        }
    }

    /// Whether anything may be waited for behind this stream: it is not independent, and no independent stream is behind its markers.
    fn takes_part(&self, timeline: &StreamTimeline<D>) -> bool {
        let any_independent = || laws::is_independent(self.independents.load(Ordering::Acquire) > 0);
        !(is_independent(timeline) || (is_wide(timeline) && any_independent()))
    }
}

impl<D: Driver> Waits<'_, D> {
    /// Whether the stream may be made to wait for this one.
    pub(crate) fn may_wait_for(&self, timeline: &StreamTimeline<D>) -> bool {
        let known = || !is_wide(timeline) && (is_dependable(timeline) || self.edges.has(timeline.id));
        self.registry.takes_part(timeline) && laws::may_wait(self.reuse == Reuse::WithWaits, known)
    }

    /// Whether the stream may be made to wait for this use: as [`Waits::may_wait_for`], and a marker covers it or can be made now on this thread.
    /// If not, a marker falls due. A timeline that has left the table is complete.
    pub(crate) fn orderable(&self, pending: Pending) -> bool {
        self.registry.timeline(pending.on).is_none_or(|l| self.is_orderable(&l, pending.epoch))
    }

    /// Whether the stream may be made to wait for this epoch of a timeline that is at hand; if not, a marker falls due.
    pub(crate) fn is_orderable(&self, timeline: &StreamTimeline<D>, epoch: Epoch) -> bool {
        let held = timeline.is_held_back(epoch, self.expects_captures);
        if held {
            timeline.raise_due();
        }
        !held && self.may_wait_for(timeline)
    }
}

impl<D: Driver> Waitable<'_, D> {
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
        self.registry.timeline(pending.on).is_none_or(|l| self.registry.takes_part(&l) && waits(&l))
    }
}

fn is_independent<D: Driver>(timeline: &StreamTimeline<D>) -> bool {
    laws::is_independent(timeline.place.load(Ordering::Relaxed) == Place::Independent as u32)
}

fn is_dependable<D: Driver>(timeline: &StreamTimeline<D>) -> bool {
    timeline.place.load(Ordering::Relaxed) == Place::Dependable as u32
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
