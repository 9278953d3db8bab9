//! Those who are told what becomes of an allocation: a limit, a count, a log.
//!
//! They travel with the allocation, wherever that goes: in a handle without a type, or in an array. They do not know what it is used for.

use crate::units::{Addr, AllocationId, StreamId};
use smallvec::SmallVec;

/// What does not change about an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// The first byte; dangling, never null, if there are none.
    pub address: Addr,
    /// Bytes asked for.
    pub bytes: u64,
    /// The stream it was allocated on; `None` for no bytes.
    pub stream: Option<StreamId>,
    /// Which allocation it is; `None` for no bytes.
    pub id: Option<AllocationId>,
}

/// Somebody who is told what becomes of an allocation: [`AnyAllocation::watched`](crate::erased::AnyAllocation::watched).
///
/// It is told inside others' calls and drops: it makes no driver call, does not block and does not panic.
pub trait Watcher: Send + Sync {
    /// A use by work on this stream, which is not the allocation's own, was recorded; of an array: each operation there.
    fn used(&self, of: &Facts, by: StreamId) {
        let _ = (of, by);
    }
    /// The memory has gone back to its pool.
    fn freed(self: Box<Self>, of: &Facts) {
        let _ = of;
    }
}

/// The watchers of one allocation. Dropped behind its memory: then they are told that it is free.
pub(crate) struct Watchers {
    pub(crate) of: Facts,
    /// The innermost wrapper's first.
    all: SmallVec<[Box<dyn Watcher>; 2]>,
}

impl Watchers {
    /// Nobody yet.
    pub(crate) fn new(of: Facts) -> Watchers {
        Watchers { of, all: SmallVec::new() }
    }
    pub(crate) fn add(&mut self, watcher: Box<dyn Watcher>) {
        self.all.push(watcher);
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    /// A use was recorded. On its own stream nothing is, nor of no bytes.
    pub(crate) fn tell_used(&self, by: StreamId) {
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
