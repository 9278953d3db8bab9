//! Whom a request may wait for, on the device or on the host: never an independent stream, and never the whole device.
//!
//! A context-wide marker is behind the work of every stream, independent ones included, so while there are any it is not
//! waited for either. This file does not wait, nor say for how long: the ladder's rungs do.

use super::registry::{CONTEXT, Line, Registry};
use crate::driver::{Driver, StreamKind};
use crate::order::{Pending, TimelineId};
use crate::sync::Ordering;

/// Whom requests may wait for.
pub(crate) struct Waitable<'a, D: Driver>(&'a Registry<D>);

impl<D: Driver> Registry<D> {
    pub(crate) fn waitable(&self) -> Waitable<'_, D> {
        Waitable(self)
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
        self.0.line(on).is_none_or(|l| self.is_dependable(&l))
    }

    fn is_dependable(&self, line: &Line<D>) -> bool {
        let any_independent =
            || self.0.independents.load(Ordering::Acquire) > 0 && !planted!(IndependentWaits);
        !(is_independent(line) || (is_wide(line) && any_independent()))
    }

    /// Whether the host may wait for this, for a request's sake. Where the driver has no context-wide markers, only a wait
    /// for the whole device would do: what needs one is complete when the program synchronises.
    pub(crate) fn by_host(&self, pending: Pending) -> bool {
        let marked = |l: &Line<D>| l.published.load(Ordering::Acquire) >= pending.epoch.0;
        let line = self.0.line(pending.on);
        line.is_none_or(|l| self.is_dependable(&l) && (!is_wide(&l) || marked(&l)))
    }
}

fn is_independent<D: Driver>(line: &Line<D>) -> bool {
    line.independent.load(Ordering::Relaxed) && !planted!(IndependentWaits)
}

/// Whether its markers may be context-wide ones.
fn is_wide<D: Driver>(line: &Line<D>) -> bool {
    line.id == CONTEXT || line.info.mortal || line.info.kind == StreamKind::PerThreadDefault
}
