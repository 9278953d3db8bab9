//! Operations that somebody else queues while a guard is held: their uses are open before they are queued, and sealed at
//! the guard's end. To forget it leaves the use open until an access to the whole, or the free, which costs waits and never an order.
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

/// One allocation's part in an operation that its holder queues on `stream` while this lives. Its stream is ordered behind
/// what has to come before.
pub(crate) struct Opened<'a, D: Driver> {
    touch: Touch<'a, D>,
    stream: &'a Stream<D>,
    /// The open use; none where the stream is the home stream, which counts.
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
    /// The operation was queued, or will not be.
    fn drop(&mut self) {
        let (of, timeline, intent) = (self.touch.of, self.stream.timeline(), self.touch.intent);
        of.note_guard_ended(self.stream.driver(), self.stream.id(), intent.access());
        if laws::guard_ends_at_once() && !of.is_home(timeline) {
            return;
        }
        // A marker right behind it keeps others from waiting for more; where none can be made, a stamp says as much. None is made while a
        // panic passes through, when another one of the driver's would end the process.
        let marks = of.lives_on_several(timeline) && !std::thread::panicking();
        let marker = marks.then(|| self.stream.record().ok()).flatten();
        let epoch = marker.map_or_else(|| timeline.stamp(), |event| event.epoch());
        of.seal(self.stream, intent, epoch, self.operation.take());
        // Numbered first, then closed. A write to the whole has set the counts back already.
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
    /// Somebody may queue an operation on the home stream, and has no number yet.
    pub(super) fn count_at_home(&self, access: Access) {
        match access {
            Access::Read => self.home_reading.fetch_add(1, Ordering::AcqRel),
            Access::Write => self.home_writing.fetch_add(1, Ordering::AcqRel),
        };
    }
}

impl<D: Driver> Holder<'_, D> {
    /// Another stream's operation is about to be queued.
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
