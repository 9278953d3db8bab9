//! The mismatches that the contents showed, kept as they occur: the first ones, and the total count.
//!
//! It does not know how a difference was found, nor its text.

use super::mismatch::{Mismatch, MismatchKind};
use super::operation::Name;
use super::oracle::StreamKey;
use super::world::World;
use millpond_driver::units::{Addr, AllocationId};

/// Mismatches kept; the others are counted.
const MISMATCHES_KEPT: usize = 64;

impl World {
    pub(super) fn report(
        &mut self,
        stream: Option<StreamKey>,
        position: u64,
        operation: Name,
        addr: Addr,
        kind: MismatchKind,
        allocation: Option<AllocationId>,
    ) {
        self.mismatches_total += 1;
        if self.mismatches.len() < MISMATCHES_KEPT {
            let on = stream.map(|s| self.label(s));
            let (stream, from) = (on.as_ref().map(|l| l.id), self.runs_from);
            let held = allocation.and_then(|id| self.oracle.as_ref().map(|o| o.held(id)));
            let held = held.filter(|h| h.number.is_some());
            self.mismatches.push(Mismatch {
                operation,
                stream,
                position,
                addr,
                on,
                from,
                allocation,
                held,
                kind,
            });
        }
    }
    /// A check found other bytes: `at` is the address, its offset in the range and the range's length, `words` the expected and
    /// the found one.
    pub(super) fn differs(
        &mut self,
        stream: StreamKey,
        position: u64,
        operation: Name,
        (at, offset, bytes): (u64, u64, u64),
        words: (u64, u64),
        allocation: Option<AllocationId>,
    ) {
        let (expected, found) = words;
        let kind = MismatchKind::Content { expected, found, offset, looked_at: (bytes - offset).min(8) };
        self.report(Some(stream), position, operation, Addr(at), kind, allocation);
    }
    /// An allocator handed out bytes where nothing is mapped.
    pub(super) fn handed_out(&mut self, id: AllocationId, hole: u64) {
        self.runs_from = self.called_from;
        self.report(None, 0, "an allocation".into(), Addr(hole), MismatchKind::Unmapped, Some(id));
    }
    /// A closure panicked.
    pub(super) fn panicked(&mut self, stream: StreamKey, position: u64, operation: Name) {
        self.report(Some(stream), position, operation, Addr(0), MismatchKind::Panicked, None);
    }
    /// An operation ran into a hole.
    pub(super) fn faulted(&mut self, stream: StreamKey, position: u64, operation: Name, hole: u64) {
        self.report(Some(stream), position, operation, Addr(hole), MismatchKind::Unmapped, None);
    }
}
