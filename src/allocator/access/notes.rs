//! Notifications of uses and operations to a checking device and to the watchers of an allocation: by its identity, or by the address of external memory.
//!
//! This file does not know what has to wait for what, nor how a device judges.

use super::{Bytes, Tracked};
use crate::driver::{Driver, Note, QueuedBy, RangeUse};
use crate::order::Access;
use crate::units::{Addr, AllocationId, StreamId};

impl<D: Driver> Tracked<D> {
    /// Notifies a checking device.
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

    /// Notifies a checking device that this stream may use it: the library has ordered the stream behind everything that has to come before.
    pub(crate) fn note_admitted(&self, driver: &D, stream: StreamId) {
        if let Some(id) = self.id() {
            driver.note(Note::Admitted { id, stream });
        }
    }

    /// Notifies a checking device and the watchers that this stream uses it: until now, or from now on.
    pub(crate) fn note_used(&self, driver: &D, stream: StreamId, so_far: bool) {
        if let Some(watchers) = &self.watchers {
            watchers.notify_used(stream);
        }
        let ours = |id| Note::Used { id, stream, so_far };
        self.note(driver, ours, |addr| Note::UsedAt { addr, stream, so_far });
    }

    /// Notifies a checking device that a guard ended which [`Tracked::note_operation`] announced.
    pub(super) fn note_guard_ended(&self, driver: &D, stream: StreamId, access: Access) {
        let used = range_use(access);
        let ours = |id| Note::GuardEnded { id, stream, used };
        self.note(driver, ours, |addr| Note::GuardEndedAt { addr, stream, used });
    }

    /// Notifies a checking device that the library has ordered this stream's next operation, and who queues it.
    pub(crate) fn note_operation(&self, driver: &D, stream: StreamId, access: Access, by: QueuedBy) {
        let used = range_use(access);
        let ours = |id| Note::Operation { id, stream, used, by };
        self.note(driver, ours, |addr| Note::OperationAt { addr, stream, used, by });
    }
}

fn range_use(access: Access) -> RangeUse {
    if access == Access::Read { RangeUse::Read } else { RangeUse::ReadWrite }
}
