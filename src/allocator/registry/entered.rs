//! A hold on a stream's timeline by the stream's identity, for operations on streams that the caller has no pool on: while
//! it lives, the line neither closes nor leaves the table.

use super::{Line, Registry};
use crate::allocator::pool::release_uses;
use crate::driver::{Driver, StreamInfo};
use crate::order::TimelineId;
use crate::sync::{Arc, Ordering};
use crate::units::StreamId;

/// A line with one more open use counted on it.
pub(crate) struct Entered<'a, D: Driver> {
    registry: &'a Registry<D>,
    line: Arc<Line<D>>,
}

impl<D: Driver> Registry<D> {
    /// The timeline of a stream that is known and held; `None` where nobody here holds it, so that it could not be marked
    /// later.
    pub(crate) fn enter(&self, id: StreamId) -> Option<Entered<'_, D>> {
        let line = self.table.lock().by_stream.get(&id).cloned()?;
        // Counted under the line's lock, where closing looks.
        let state = line.state.lock();
        if state.native.is_none() || state.closing {
            return None;
        }
        line.open.fetch_add(1, Ordering::AcqRel);
        drop(state);
        Some(Entered { registry: self, line })
    }

    /// As [`Registry::enter`], for a stream that `native` keeps alive for as long as it is held here.
    pub(crate) fn enter_or_attach(&self, info: StreamInfo, native: &D::Stream) -> Entered<'_, D> {
        if let Some(entered) = self.enter(info.id) {
            return entered;
        }
        let line = self.attach(info, native);
        line.foreign.store(true, Ordering::Relaxed);
        // The count as a pool becomes one as an open use, in this order: the line is never without.
        line.open.fetch_add(1, Ordering::AcqRel);
        line.pools.fetch_sub(1, Ordering::AcqRel);
        Entered { registry: self, line }
    }
}

impl<D: Driver> Entered<'_, D> {
    pub(crate) fn line(&self) -> &Arc<Line<D>> {
        &self.line
    }
}

impl<D: Driver> Drop for Entered<'_, D> {
    fn drop(&mut self) {
        let on: TimelineId = self.line.id;
        release_uses(self.registry, [on]);
    }
}
