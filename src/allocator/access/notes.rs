//! What a checking device, and whoever watches an allocation, is told of uses and operations: by the allocation's number, or by an address in memory of others.
//!
//! This file does not know what has to wait for what, nor how a device judges.

use super::{Bytes, Tracked};
use crate::driver::{Driver, Note, QueuedBy, RangeUse};
use crate::order::Access;
use crate::units::{Addr, AllocationId, StreamId};

impl<D: Driver> Tracked<D> {
    /// Tells a checking device something of it.
    fn note(&self, driver: &D, ours: impl FnOnce(AllocationId) -> Note, theirs: impl FnOnce(Addr) -> Note) {
        match &self.bytes {
            Bytes::Ours(allocation) => {
                if let Some(id) = allocation.id() {
                    driver.note(ours(id));
                }
            }
            Bytes::Theirs(memory) => driver.note(theirs(memory.addr)),
        }
    }

    /// Tells a checking device that this stream may use it: the library has ordered it behind all that has to come before.
    pub(crate) fn note_admitted(&self, driver: &D, stream: StreamId) {
        if let Some(id) = self.id() {
            driver.note(Note::Admitted { id, stream });
        }
    }

    /// Tells a checking device, and those who watch it, that this stream uses it: up to now, or from here on.
    pub(crate) fn note_used(&self, driver: &D, stream: StreamId, so_far: bool) {
        if let Some(watchers) = &self.watchers {
            watchers.tell_used(stream);
        }
        let ours = |id| Note::Used { id, stream, so_far };
        self.note(driver, ours, |addr| Note::UsedAt { addr, stream, so_far });
    }

    /// Tells a checking device that a guard ended, told of by [`Tracked::note_operation`].
    pub(super) fn note_guard_ended(&self, driver: &D, stream: StreamId, access: Access) {
        let used = range_use(access);
        let ours = |id| Note::GuardEnded { id, stream, used };
        self.note(driver, ours, |addr| Note::GuardEndedAt { addr, stream, used });
    }

    /// Tells a checking device that the library has ordered what this stream is given next, and who queues it.
    pub(crate) fn note_operation(&self, driver: &D, stream: StreamId, access: Access, by: QueuedBy) {
        let used = range_use(access);
        let ours = |id| Note::Operation { id, stream, used, by };
        self.note(driver, ours, |addr| Note::OperationAt { addr, stream, used, by });
    }
}

fn range_use(access: Access) -> RangeUse {
    if access == Access::Read { RangeUse::Read } else { RangeUse::ReadWrite }
}
