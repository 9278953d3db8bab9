//! Watchers, which are notified of an allocation's uses and end: a limit, a count, a log.
//!
//! They travel with the allocation, wherever that goes: in a handle without a type, or in an array. They do not know what it is used for.

use crate::units::{Addr, AllocationId, StreamId};
use smallvec::SmallVec;

/// What does not change about an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// The first byte; dangling, never null, for zero bytes.
    pub address: Addr,
    /// Requested bytes.
    pub bytes: u64,
    /// The stream it was allocated on; `None` for zero bytes.
    pub stream: Option<StreamId>,
    /// Its identity; `None` for zero bytes.
    pub id: Option<AllocationId>,
}

/// A watcher of an allocation: [`AnyAllocation::watched`](crate::erased::AnyAllocation::watched).
///
/// It is notified inside others' calls and drops: it must make no driver call, not block and not panic.
pub trait Watcher: Send + Sync {
    /// A use by work on this stream, which is not the allocation's own, was recorded; for an array, each operation there.
    fn used(&self, of: &Facts, by: StreamId) {
        let _ = (of, by);
    }
    /// The memory is back in its pool.
    fn freed(self: Box<Self>, of: &Facts) {
        let _ = of;
    }
}

/// The watchers of one allocation. Dropped after its memory: then they are notified that it is free.
pub(crate) struct Watchers {
    pub(crate) of: Facts,
    /// The innermost wrapper's first.
    all: SmallVec<[Box<dyn Watcher>; 2]>,
}

impl Watchers {
    /// No watchers yet.
    pub(crate) fn new(of: Facts) -> Watchers {
        Watchers { of, all: SmallVec::new() }
    }
    pub(crate) fn add(&mut self, watcher: Box<dyn Watcher>) {
        self.all.push(watcher);
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    /// A use was recorded. Uses on the allocation's own stream are not notified, nor those of zero bytes.
    pub(crate) fn notify_used(&self, by: StreamId) {
        if self.of.stream.is_some_and(|own| own != by) {
            self.all.iter().for_each(|watcher| watcher.used(&self.of, by));
        }
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        for watcher in self.all.drain(..) {
            watcher.freed(&self.of);
        }
    }
}
