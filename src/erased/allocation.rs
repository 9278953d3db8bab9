//! Device memory without its driver's type, and who wants to know what becomes of it.

use super::{AnyStream, typed};
use crate::allocator::Allocation;
use crate::driver::Driver;
use crate::error::Error;
use crate::units::{Addr, AllocationId, StreamId};
use core::any::Any;
use core::fmt;
use smallvec::SmallVec;

/// An [`Allocation`] without its driver's type. Owned, and ordered as that: work on its own stream may use it at once,
/// other streams' uses are recorded, and dropping it, at any time and on any thread, makes no driver call and does not
/// wait for the device. Its bytes are reused behind every recorded use.
pub struct AnyAllocation {
    /// Empty only while it is dropped.
    memory: Option<Box<dyn Object>>,
    facts: Facts,
    /// The innermost wrapper's first.
    watchers: SmallVec<[Box<dyn Watcher>; 2]>,
}

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

/// Somebody who is told what becomes of an allocation: [`AnyAllocation::watched`].
///
/// It is told inside others' calls and drops: it makes no driver call, does not block and does not panic.
pub trait Watcher: Send + Sync {
    /// A use by work on this stream, which is not the allocation's own, was recorded.
    fn used(&self, of: &Facts, by: StreamId) {
        let _ = (of, by);
    }
    /// The memory has gone back to its pool.
    fn freed(self: Box<Self>, of: &Facts) {
        let _ = of;
    }
}

trait Object: Any + Send + Sync {
    fn record_use(&self, stream: &AnyStream) -> Result<(), Error>;
    fn share_with(&self, stream: &AnyStream) -> Result<(), Error>;
    fn free_unknown(self: Box<Self>);
}

impl<D: Driver> Object for Allocation<D> {
    fn record_use(&self, stream: &AnyStream) -> Result<(), Error> {
        let Some(device) = self.device() else { return Ok(()) };
        Allocation::record_use(self, typed(stream, device)?)
    }
    fn share_with(&self, stream: &AnyStream) -> Result<(), Error> {
        let Some(device) = self.device() else { return Ok(()) };
        Allocation::share_with(self, typed(stream, device)?)
    }
    fn free_unknown(self: Box<Self>) {
        Allocation::free_unknown(*self);
    }
}

impl AnyAllocation {
    pub(super) fn new<D: Driver>(allocation: Allocation<D>) -> AnyAllocation {
        let facts = Facts {
            address: allocation.address(),
            bytes: allocation.len(),
            stream: allocation.stream_id(),
            id: allocation.id(),
        };
        AnyAllocation { memory: Some(Box::new(allocation)), facts, watchers: SmallVec::new() }
    }

    /// The same, watched by one more: what a wrapper does with memory that passes by.
    #[must_use]
    pub fn watched(mut self, by: Box<dyn Watcher>) -> AnyAllocation {
        self.watchers.push(by);
        self
    }

    /// Its address, length, stream and number.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
    /// The first byte; a multiple of 512, or of the alignment asked for.
    pub fn address(&self) -> Addr {
        self.facts.address
    }
    /// The length in bytes, as asked for.
    #[allow(clippy::len_without_is_empty, reason = "is_empty is next to it")]
    pub fn len(&self) -> u64 {
        self.facts.bytes
    }
    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn memory(&self) -> &dyn Object {
        self.memory.as_deref().expect("taken only where the handle ends")
    }
    fn tell_used(&self, stream: &AnyStream) {
        // On its own stream nothing is recorded, nor of no bytes.
        if self.facts.stream.is_none_or(|own| own == stream.id()) {
            return;
        }
        for watcher in &self.watchers {
            watcher.used(&self.facts, stream.id());
        }
    }

    /// Says that work on `stream`, queued by now or before the drop, uses these bytes: [`Allocation::record_use`]. Orders
    /// nothing now.
    ///
    /// # Errors
    /// A stream of another device, a capturing stream, another thread's per-thread default stream: [`Allocation::record_use`].
    /// [`Error::OtherAllocator`] for a stream of another kind of device.
    pub fn record_use(&self, stream: &AnyStream) -> Result<(), Error> {
        self.memory().record_use(stream)?;
        self.tell_used(stream);
        Ok(())
    }

    /// Makes `stream` wait, on the device, for the bytes' former life, and records its use: [`Allocation::share_with`].
    ///
    /// # Errors
    /// As [`AnyAllocation::record_use`]; the driver's, if the wait cannot be inserted: then nothing is recorded.
    pub fn share_with(&self, stream: &AnyStream) -> Result<(), Error> {
        self.memory().share_with(stream)?;
        self.tell_used(stream);
        Ok(())
    }

    /// Frees it when nobody knows which streams used it: [`Allocation::free_unknown`].
    pub fn free_unknown(mut self) {
        if let Some(memory) = self.memory.take() {
            memory.free_unknown();
        }
    }

    /// The allocation with its type, for arrays and whatever else wants it.
    ///
    /// # Errors
    /// This handle again, if it is of another kind of device, or is watched: whoever watches has to see its end.
    pub fn into_allocation<D: Driver>(mut self) -> Result<Allocation<D>, AnyAllocation> {
        let is_that = self.memory.as_deref().is_some_and(|m| (m as &dyn Any).is::<Allocation<D>>());
        match self.memory.take_if(|_| is_that && self.watchers.is_empty()) {
            Some(memory) => {
                (memory as Box<dyn Any>).downcast().map_or_else(|_| Err(self), |typed| Ok(*typed))
            }
            None => Err(self),
        }
    }
}

impl Drop for AnyAllocation {
    fn drop(&mut self) {
        // First the memory, then those who count it.
        drop(self.memory.take());
        for watcher in self.watchers.drain(..) {
            watcher.freed(&self.facts);
        }
    }
}

impl fmt::Debug for AnyAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { address, bytes, stream, id } = self.facts;
        match (id, stream) {
            (Some(id), Some(stream)) => write!(f, "AnyAllocation({id} {address} + {bytes} B on {stream})"),
            _ => f.write_str("AnyAllocation(empty)"),
        }
    }
}
