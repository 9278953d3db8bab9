//! Operations that other code queues while a guard is held: their uses are open before they are queued, and sealed when
//! the guard ends. Forgetting a guard leaves the use open until an access to all of the array, or the free. That costs waits, never order.
//!
//! This file does not know what is queued, or by which library.

use super::super::registry::StreamTimeline;
use super::super::stream::Stream;
use super::{Holder, Intent, Touch, Tracked, order_behind};
use crate::driver::{Driver, QueuedBy};
use crate::error::Error;
use crate::laws;
use crate::order::{Access, Operation};
use crate::sync::Ordering;

/// One allocation's part in an operation that the holder of this guard queues on `stream`. The stream is ordered behind
/// everything that the operation conflicts with.
pub(crate) struct Opened<'a, D: Driver> {
    touch: Touch<'a, D>,
    stream: &'a Stream<D>,
    /// The open use; `None` on the home stream, which counts instead.
    operation: Option<Operation>,
}

impl<'a, D: Driver> Opened<'a, D> {
    /// Orders the stream, and opens the use.
    ///
    /// # Errors
    /// As [`order_behind`]: nothing is open then.
    pub(crate) fn new(stream: &'a Stream<D>, touch: Touch<'a, D>) -> Result<Opened<'a, D>, Error> {
        order_behind(stream, &[touch], QueuedBy::Guard)?;
        let (of, timeline) = (touch.of, stream.timeline());
        let operation = match of.holder() {
            Some(holder) if holder.home().id != timeline.id => {
                let mut operation = Some(holder.open_use(timeline, touch.intent.access()));
                if laws::guard_ends_at_once() {
                    of.seal(stream, touch.intent, timeline.stamp(), operation.take());
                }
                of.shared.store(true, Ordering::Release);
                of.note_used(stream.driver(), stream.id(), false);
                operation
            }
            _ => {
                of.count_at_home(touch.intent.access());
                None
            }
        };
        Ok(Opened { touch, stream, operation })
    }

    pub(crate) fn stream(&self) -> &'a Stream<D> {
        self.stream
    }
}

impl<D: Driver> Drop for Opened<'_, D> {
    /// The operation was queued, or never will be.
    fn drop(&mut self) {
        let (of, timeline, intent) = (self.touch.of, self.stream.timeline(), self.touch.intent);
        of.note_guard_ended(self.stream.driver(), self.stream.id(), intent.access());
        if laws::guard_ends_at_once() && !of.is_home(timeline) {
            return;
        }
        // A marker right behind it keeps others from waiting for more; where none can be made, a stamp says the same. None is made while a
        // panic unwinds: a second panic, in the driver, would abort the process.
        let marks = of.lives_on_several(timeline) && !std::thread::panicking();
        let marker = marks.then(|| self.stream.record().ok()).flatten();
        let epoch = marker.map_or_else(|| timeline.stamp(), |event| event.epoch());
        of.seal(self.stream, intent, epoch, self.operation.take());
        // The number first, then the end of the use. A write to all of it has reset the counts already.
        if of.is_home(timeline) {
            match intent {
                Intent::Read | Intent::ReadWhole => drop(of.home_reading.fetch_sub(1, Ordering::AcqRel)),
                Intent::Write => drop(of.home_writing.fetch_sub(1, Ordering::AcqRel)),
                Intent::WriteWhole => {}
            }
        }
    }
}

impl<D: Driver> Tracked<D> {
    /// Counts an operation that other code may queue on the home stream, and that has no number yet.
    pub(super) fn count_at_home(&self, access: Access) {
        match access {
            Access::Read => self.home_reading.fetch_add(1, Ordering::AcqRel),
            Access::Write => self.home_writing.fetch_add(1, Ordering::AcqRel),
        };
    }
}

impl<D: Driver> Holder<'_, D> {
    /// Opens the use of an operation that is about to be queued on another stream.
    fn open_use(&self, on: &StreamTimeline<D>, access: Access) -> Operation {
        self.with_uses(|uses| {
            let (operation, new) = uses.open(on.id, access);
            if new {
                on.open.fetch_add(1, Ordering::AcqRel);
            }
            operation
        })
    }
}
