//! Whom a request may wait for, on the device or on the host: never an independent stream, never the whole device, and nobody
//! whose work it cannot mark.
//!
//! A context-wide marker is behind the work of every stream, independent ones included, so while there are any it is not
//! waited for either. This file does not wait, nor say for how long: the ladder's rungs do.

use super::registry::{CONTEXT, Line, Named, Registry};
use crate::driver::{Driver, StreamKind};
use crate::order::{Pending, TimelineId};
use crate::sync::{Arc, Ordering};
use crate::units::Epoch;

/// The streams of a device, as they were when this was made.
pub(crate) struct Waitable<D: Driver> {
    /// By their ids.
    lines: Vec<Arc<Line<D>>>,
    any_independent: bool,
    /// As the driver's.
    expects_captures: bool,
}

impl<D: Driver> Registry<D> {
    pub(crate) fn waitable(&self, driver: &D) -> Waitable<D> {
        let lines = self.lines();
        let any_independent = lines.iter().any(|l| is_independent(l));
        Waitable { lines, any_independent, expects_captures: driver.expects_captures() }
    }
}

impl<D: Driver> Waitable<D> {
    fn line(&self, on: TimelineId) -> Option<&Line<D>> {
        let at = self.lines.binary_search_by_key(&on, |l| l.id).ok()?;
        Some(&self.lines[at])
    }

    /// Whether a stream may be made to wait for this one, for a request's sake. A timeline that is not known is complete, or newer
    /// than this, and may be independent.
    pub(crate) fn by_streams(&self, on: TimelineId) -> bool {
        if self.lines.last().is_some_and(|newest| on > newest.id) {
            return false;
        }
        self.line(on).is_none_or(|l| !(is_independent(l) || (is_wide(l) && self.any_independent)))
    }

    /// Whether a stream may be made to wait for this: as [`Waitable::by_streams`], and a marker covers it or can be made here and now.
    /// If not, one falls due.
    pub(crate) fn orderable(&self, pending: Pending) -> bool {
        let markable = |l: &Line<D>| {
            let held = l.is_held_back(pending.epoch, self.expects_captures);
            if held {
                l.raise_due();
            }
            !held
        };
        self.by_streams(pending.on) && self.line(pending.on).is_none_or(markable)
    }

    /// Whether the host may wait for this, for a request's sake. Where the driver has no context-wide markers, only a wait
    /// for the whole device would do: what needs one is complete when the program synchronises.
    pub(crate) fn by_host(&self, pending: Pending) -> bool {
        let marked = |l: &Line<D>| l.published.load(Ordering::Acquire) >= pending.epoch.0;
        let waits = |l: &Line<D>| marked(l) || !(is_wide(l) || l.is_unmanaged());
        self.by_streams(pending.on) && self.line(pending.on).is_none_or(waits)
    }
}

fn is_independent<D: Driver>(line: &Line<D>) -> bool {
    line.independent.load(Ordering::Relaxed) && !planted!(IndependentWaits)
}

/// Whether its markers may be context-wide ones.
fn is_wide<D: Driver>(line: &Line<D>) -> bool {
    line.id == CONTEXT || line.info.kind == StreamKind::PerThreadDefault
}

impl<D: Driver> Line<D> {
    /// Whether nobody can be ordered behind this epoch for now: no marker covers it, and none can be made on this thread in a
    /// call that does not name the stream.
    pub(crate) fn is_held_back(&self, epoch: Epoch, expects_captures: bool) -> bool {
        if epoch <= self.covered() {
            return false;
        }
        let by_handle = self.id != CONTEXT && self.is_marked_by_handle(Named::No) && !self.is_closed();
        !by_handle && (self.info.mortal || expects_captures)
    }
}
