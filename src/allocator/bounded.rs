//! Whom a request may wait for, on the device or on the host: never an independent stream, never the whole device, and nobody
//! whose work it cannot mark.
//!
//! A context-wide marker is behind the work of every stream, independent ones included, so while there are any it is not
//! waited for either. This file does not wait, nor say for how long: `waiting.rs` does.

use super::registry::{CONTEXT, Line, Named, Registry};
use crate::driver::{Driver, StreamKind};
use crate::laws;
use crate::order::{Pending, TimelineId};
use crate::sync::Ordering;
use crate::units::Epoch;

/// Whom requests may wait for.
pub(crate) struct Waitable<'a, D: Driver> {
    registry: &'a Registry<D>,
    /// Whether somebody else may capture:
    /// [`Fences::expects_captures`](crate::driver::Fences::expects_captures).
    expects_captures: bool,
}

impl<D: Driver> Registry<D> {
    pub(crate) fn waitable(&self, driver: &D) -> Waitable<'_, D> {
        Waitable { registry: self, expects_captures: driver.expects_captures() }
    }

    /// A stream was declared independent, or no longer.
    pub(crate) fn set_independent(&self, line: &Line<D>, on: bool) {
        match (line.independent.swap(on, Ordering::AcqRel), on) {
            (false, true) => drop(self.independents.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(self.independents.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
    }
}

impl<D: Driver> Waitable<'_, D> {
    /// Whether a stream may be made to wait for this one, for a request's sake. A timeline that has left the table is
    /// complete.
    pub(crate) fn by_streams(&self, on: TimelineId) -> bool {
        self.registry.line(on).is_none_or(|l| self.is_dependable(&l))
    }

    fn is_dependable(&self, line: &Line<D>) -> bool {
        let any_independent = || laws::is_independent(self.registry.independents.load(Ordering::Acquire) > 0);
        !(is_independent(line) || (is_wide(line) && any_independent()))
    }

    /// Whether a stream may be made to wait for this: as [`Waitable::by_streams`], and a marker covers it or can be made here and now.
    /// If not, one falls due.
    pub(crate) fn orderable(&self, pending: Pending) -> bool {
        self.registry.line(pending.on).is_none_or(|l| self.is_orderable(&l, pending.epoch))
    }

    /// Whether a stream may be made to wait for this epoch of a timeline that the caller has; if not, a
    /// marker falls due.
    pub(crate) fn is_orderable(&self, line: &Line<D>, epoch: Epoch) -> bool {
        let held = line.is_held_back(epoch, self.expects_captures);
        if held {
            line.raise_due();
        }
        !held && self.is_dependable(line)
    }

    /// Whether the host may wait for this, for a request's sake. Where the driver has no context-wide markers, only a wait
    /// for the whole device would do: what needs one is complete when the program synchronises.
    pub(crate) fn by_host(&self, pending: Pending) -> bool {
        let marked = |l: &Line<D>| l.published.load(Ordering::Acquire) >= pending.epoch.0;
        let waits = |l: &Line<D>| {
            let held = !marked(l) && (l.is_unmanaged() || l.is_closed_without(pending.epoch).1);
            if held {
                // The next call that names it makes one.
                l.raise_due();
            }
            !held && (marked(l) || !is_wide(l))
        };
        self.registry.line(pending.on).is_none_or(|l| self.is_dependable(&l) && waits(&l))
    }
}

fn is_independent<D: Driver>(line: &Line<D>) -> bool {
    laws::is_independent(line.independent.load(Ordering::Relaxed))
}

/// Whether its markers may be context-wide ones.
fn is_wide<D: Driver>(line: &Line<D>) -> bool {
    line.id == CONTEXT || line.info.kind == StreamKind::PerThreadDefault
}

impl<D: Driver> Line<D> {
    /// Whether nobody can be ordered behind this epoch for now: no marker covers it, and none can be made on this thread in a
    /// call that does not name the stream; or it is closed, and a capture took its last marker.
    pub(crate) fn is_held_back(&self, epoch: Epoch, expects_captures: bool) -> bool {
        if epoch <= self.covered() {
            return false;
        }
        let (closed, lost) = self.is_closed_without(epoch);
        let by_handle = self.id != CONTEXT && self.is_marked_by_handle(Named::No) && !closed;
        lost || !by_handle && (self.is_mortal() || expects_captures)
    }
}
