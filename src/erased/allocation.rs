//! Device memory without its driver's type, and the watchers that are notified of what becomes of it.

use super::{AnyStream, typed};
use crate::allocator::Allocation;
use crate::allocator::access::Tracked;
use crate::allocator::watch::{Facts, Watcher, Watchers};
use crate::array::{DeviceArray, Shape};
use crate::driver::Driver;
use crate::error::Error;
use crate::units::Addr;
use bytemuck::Pod;
use core::any::Any;
use core::fmt;

/// An [`Allocation`] without its driver's type. Owned, and ordered in the same way: work on its own stream may use it at once,
/// other streams' uses are recorded, and dropping it, at any time and on any thread, makes no driver call and does not
/// wait for the device. Its bytes are reused only after every recorded use.
pub struct AnyAllocation {
    memory: Box<dyn Object>,
    /// Dropped after the memory: the memory is freed first, then its watchers are notified.
    watchers: Watchers,
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
        AnyAllocation { memory: Box::new(allocation), watchers: Watchers::new(facts) }
    }

    /// The same allocation, with one more watcher: for wrappers.
    #[must_use]
    pub fn watched(mut self, by: Box<dyn Watcher>) -> AnyAllocation {
        self.watchers.add(by);
        self
    }

    /// Its address, length, stream and number.
    pub fn facts(&self) -> &Facts {
        &self.watchers.of
    }
    /// The first byte; a multiple of 512, or of the requested alignment.
    pub fn address(&self) -> Addr {
        self.watchers.of.address
    }
    /// The requested length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "is_empty is next to it")]
    pub fn len(&self) -> u64 {
        self.watchers.of.bytes
    }
    /// Whether zero bytes were requested.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Declares that work on `stream`, queued by now or before the drop, uses these bytes: [`Allocation::record_use`]. Orders
    /// nothing now.
    ///
    /// # Errors
    /// A stream of another device, a capturing stream, another thread's per-thread default stream: [`Allocation::record_use`].
    /// [`Error::OtherAllocator`] for a stream of another kind of device.
    pub fn record_use(&self, stream: &AnyStream) -> Result<(), Error> {
        self.memory.record_use(stream)?;
        self.watchers.notify_used(stream.id());
        Ok(())
    }

    /// Makes `stream` wait, on the device, for the earlier use of the bytes, and records a use by `stream`: [`Allocation::share_with`].
    ///
    /// # Errors
    /// As [`AnyAllocation::record_use`]; the driver's, if the wait cannot be inserted: then nothing is recorded.
    pub fn share_with(&self, stream: &AnyStream) -> Result<(), Error> {
        self.memory.share_with(stream)?;
        self.watchers.notify_used(stream.id());
        Ok(())
    }

    /// Frees it when it is unknown which streams used it: [`Allocation::free_unknown`].
    pub fn free_unknown(self) {
        self.memory.free_unknown();
    }

    /// The allocation with its type.
    ///
    /// # Errors
    /// This handle again, if it is of another kind of device, or has watchers, which have to see its end. An array
    /// keeps the watchers: [`AnyAllocation::into_array`].
    pub fn into_allocation<D: Driver>(self) -> Result<Allocation<D>, AnyAllocation> {
        if !self.watchers.is_empty() {
            return Err(self);
        }
        self.into_parts().map(|(allocation, _)| allocation)
    }

    /// An array over it, with its watchers: they are notified of each operation on another stream than the allocation's,
    /// and of the free. Otherwise as [`DeviceArray::from_allocation`].
    ///
    /// # Errors
    /// With this handle: [`Error::Mismatch`] if it is of another kind of device, or too short; [`Error::Overflow`].
    #[allow(clippy::result_large_err, reason = "the handle itself comes back, and goes on being used")]
    pub fn into_array<T: Pod, D: Driver>(
        self,
        shape: impl Into<Shape>,
    ) -> Result<DeviceArray<T, D>, (AnyAllocation, Error)> {
        let shape = shape.into();
        if let Err(e) = DeviceArray::<T, D>::fits("into_array", shape, self.len()) {
            return Err((self, e));
        }
        match self.into_parts() {
            Ok((allocation, watchers)) => Ok(DeviceArray::of(Tracked::watched(allocation, watchers), shape)),
            Err(this) => {
                let advice = "they are of different kinds of devices: name the one that it was allocated on";
                let unlike = DeviceArray::<T, D>::unlike("into_array", shape, this.len(), advice);
                Err((this, unlike))
            }
        }
    }

    fn into_parts<D: Driver>(self) -> Result<(Allocation<D>, Watchers), AnyAllocation> {
        let AnyAllocation { memory, watchers } = self;
        if !(&*memory as &dyn Any).is::<Allocation<D>>() {
            return Err(AnyAllocation { memory, watchers });
        }
        let typed = (memory as Box<dyn Any>).downcast::<Allocation<D>>();
        Ok((*typed.unwrap_or_else(|_| unreachable!("its type was just looked at")), watchers))
    }
}

impl<T: Pod, D: Driver> DeviceArray<T, D> {
    /// Its allocation as a handle without the driver's type, with its watchers. What is known of the uses of the data is given up, as by
    /// [`DeviceArray::into_allocation`].
    ///
    /// # Errors
    /// The array again, if its memory is external ([`DeviceArray::from_external`]).
    #[allow(clippy::result_large_err, reason = "the array itself comes back, and goes on being used")]
    pub fn erase(self) -> Result<AnyAllocation, DeviceArray<T, D>> {
        let (allocation, watchers) = self.into_parts()?;
        let plain = AnyAllocation::new(allocation);
        Ok(match watchers {
            Some(watchers) => AnyAllocation { watchers: *watchers, ..plain },
            None => plain,
        })
    }
}

impl fmt::Debug for AnyAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { address, bytes, stream, id } = self.watchers.of;
        match (id, stream) {
            (Some(id), Some(stream)) => write!(f, "AnyAllocation({id} {address} + {bytes} B on {stream})"),
            _ => f.write_str("AnyAllocation(empty)"),
        }
    }
}
