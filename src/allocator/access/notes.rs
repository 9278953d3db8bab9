//! What a checking device is told of uses and operations: by the allocation's number, or by an address in memory of others.
//!
//! This file does not know what has to wait for what, nor how a device judges.

use super::{Bytes, Tracked};
use crate::driver::{Driver, Note, QueuedBy, RangeUse};
use crate::order::Access;
use crate::units::StreamId;

impl<D: Driver> Tracked<D> {
    /// Tells a checking device that this stream uses it: up to now, or from here on.
    pub(super) fn note_used(&self, driver: &D, stream: StreamId, so_far: bool) {
        match &self.bytes {
            Bytes::Ours(allocation) => {
                if let Some(id) = allocation.id() {
                    driver.note(Note::Used { id, stream, so_far });
                }
            }
            Bytes::Theirs(memory) => driver.note(Note::UsedAt { addr: memory.addr, stream, so_far }),
        }
    }

    /// Tells a checking device that a guard ended, told of by [`Tracked::note_operation`].
    pub(super) fn note_guard_ended(&self, driver: &D, stream: StreamId, access: Access) {
        let used = range_use(access);
        match &self.bytes {
            Bytes::Ours(allocation) => {
                if let Some(id) = allocation.id() {
                    driver.note(Note::GuardEnded { id, stream, used });
                }
            }
            Bytes::Theirs(memory) => driver.note(Note::GuardEndedAt { addr: memory.addr, stream, used }),
        }
    }

    /// Tells a checking device that the library has ordered what this stream is given next, and who queues it.
    pub(crate) fn note_operation(&self, driver: &D, stream: StreamId, access: Access, by: QueuedBy) {
        let used = range_use(access);
        match &self.bytes {
            Bytes::Ours(allocation) => {
                if let Some(id) = allocation.id() {
                    driver.note(Note::Operation { id, stream, used, by });
                }
            }
            Bytes::Theirs(memory) => driver.note(Note::OperationAt { addr: memory.addr, stream, used, by }),
        }
    }
}

fn range_use(access: Access) -> RangeUse {
    if access == Access::Read { RangeUse::Read } else { RangeUse::ReadWrite }
}
