//! The allocator without its driver's type, for frameworks that hold one trait object.
//!
//! [`GpuAlloc`] is what such a framework needs of an allocator: bytes on a stream, uses recorded on other streams, trims,
//! limits, a report. [`AnyStream`] and [`AnyAllocation`] are its handles. To be notified of each allocation,
//! wrap a `GpuAlloc` in another one that adds a [`Watcher`] to its allocations: [`wrap`](crate::wrap) has three such wrappers.
//! A part of a program uses the allocator that it is given: there is no current one.
//!
//! Erasing the type costs one box an allocation and a comparison of types wherever a stream is named. Arrays,
//! copies and kernels have the type: [`Arrays`] makes arrays on any such allocator, wrapped or not, for callers that have a stream with its
//! type; [`AnyStream::downcast_ref`], [`AnyAllocation::into_array`] and [`AnyAllocation::into_allocation`] restore it.
//!
//! Code that is compiled once for all devices and needs arrays, copies and kernels too uses
//! [`AnyDriver`](crate::driver::AnyDriver), a driver without its device's type: an `Allocator<AnyDriver>` is an allocator like any other, and its
//! streams and arrays go through the wrappers of this module like any other's.
//!
//! It does not know drivers, pools, what arrays are used for, nor what watchers do.

mod allocation;
mod stream;

pub use crate::allocator::watch::{Facts, Watcher};
pub use allocation::AnyAllocation;
pub use stream::AnyStream;

use crate::allocator::{Allocation, Allocator, Limit, Stream, Trim, Trimmed};
use crate::array::{DeviceArray, Shape, bytes_of};
use crate::driver::{Called, Driver};
use crate::error::Error;
use crate::report::{Report, Usage};
use crate::units::{DeviceId, StreamId};
use bytemuck::Pod;
use core::fmt;
use std::sync::Arc;

/// An allocator of device memory in stream order, whatever its device: [`Allocator::erase`] makes one.
///
/// ```
/// use millpond::{Allocator, Config, erased::GpuAlloc, units::{GIB, MIB}, wrap::Limited};
/// use millpond_sim::Sim;
/// use std::sync::Arc;
///
/// /// A framework's tensor storage. It is compiled once, for every device.
/// struct Storage { bytes: millpond::erased::AnyAllocation }
/// fn storage(on: &dyn GpuAlloc, bytes: u64) -> Result<Storage, millpond::Error> {
///     let stream = on.stream()?;
///     Ok(Storage { bytes: on.alloc(bytes, &stream)? })
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let all: Arc<dyn GpuAlloc> = gpu.erase();
/// let part = Limited::new(Arc::clone(&all), MIB);               // users of this one have no more than 1 MiB at once
/// let small = storage(&part, 4096)?;
/// assert!(storage(&part, MIB).is_err() && storage(&*all, MIB).is_ok());
/// println!("{:?}", small.bytes);
/// # Ok(()) }
/// ```
pub trait GpuAlloc: Send + Sync + fmt::Debug {
    /// The device.
    fn device(&self) -> DeviceId;

    /// A new non-blocking stream with a pool.
    ///
    /// # Errors
    /// The driver's.
    fn stream(&self) -> Result<AnyStream, Error>;

    /// The stream of this number, if it has a pool here, which it has as long as a handle of it or memory from it exists. This
    /// searches all pools: code that allocates often should keep the handle.
    fn stream_of(&self, id: StreamId) -> Option<AnyStream>;

    /// Allocates `bytes` on a stream, uninitialised, for work queued there from now on: [`Allocator::alloc`].
    ///
    /// # Errors
    /// Out of memory, a size that no range has, a stream of another allocator or a capturing one, the driver's: [`Allocator::alloc`].
    /// [`Error::OtherAllocator`] for a stream of another kind of device too.
    fn alloc(&self, bytes: u64, stream: &AnyStream) -> Result<AnyAllocation, Error>;

    /// Allocates at an address that is a multiple of `align`, otherwise as [`GpuAlloc::alloc`]:
    /// [`Allocator::alloc_aligned`].
    ///
    /// # Errors
    /// Those of [`GpuAlloc::alloc`]; [`Error::BadAlignment`] unless `align` is a power of two up to 1 GiB.
    fn alloc_aligned(&self, bytes: u64, align: u64, stream: &AnyStream) -> Result<AnyAllocation, Error>;

    /// Gives idle memory back to the device, of one stream's pool or, with `None`, all: [`Allocator::trim`].
    ///
    /// # Errors
    /// [`Error::OtherAllocator`] for a stream of another kind of device; the driver's, and what was given back stays given back:
    /// [`Allocator::trim`].
    fn trim(&self, which: Option<&AnyStream>) -> Result<Trimmed, Error>;

    /// Sets how much may be reserved on the device: [`Allocator::set_limit`].
    ///
    /// # Errors
    /// [`Error::Config`] for a fraction of the memory outside 0 to 1; the driver's, from giving segments back:
    /// [`Allocator::set_limit`].
    fn set_limit(&self, limit: Limit) -> Result<(), Error>;

    /// Blocks the host until everything queued on the device is complete.
    ///
    /// # Errors
    /// The driver's.
    fn synchronize(&self) -> Result<(), Error>;

    /// What the pools hold and have done, with capacity and limit.
    fn report(&self) -> Report;

    /// Bytes allocated and bytes reserved from the device, in all.
    fn usage(&self) -> Usage;
}

/// Arrays on any allocator, also behind a limit, a count or a log: its wrappers see what they see of any allocation, each
/// operation on another stream than its own and the end included. The stream has its type, and so has the array: copies, kernels and views work
/// as on any array. Besides what the allocator itself costs, an array costs a box and a counted handle of the stream.
///
/// ```
/// use millpond::{Allocator, Config, Error, erased::Arrays, kernel, units::{GIB, KIB}, wrap::Limited};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let part = Limited::new(gpu.erase(), 4 * KIB);
/// let mut x = part.zeros::<f32, _>([16, 32], &stream)?;              // 2 KiB of the limit's 4
/// kernel::fill(&mut x, 1.5, &stream)?;
/// assert_eq!(x.to_vec(&stream)?[511], 1.5);
/// assert!(matches!(part.zeros::<f32, _>(1024, &stream), Err(Error::AboveLimit { .. })));
/// drop(x);
/// assert_eq!(part.live(), 0);
/// # Ok(()) }
/// ```
pub trait Arrays: GpuAlloc {
    /// An array with whatever its bytes held before, valid for work on `stream` from now on: [`Allocator::uninit`].
    ///
    /// # Errors
    /// [`Error::Overflow`]; those of [`GpuAlloc::alloc`].
    #[track_caller]
    fn uninit<T: Pod, D: Driver>(
        &self,
        shape: impl Into<Shape>,
        stream: &Stream<D>,
    ) -> Result<DeviceArray<T, D>, Error> {
        let _called = Called::<D>::here();
        let shape = shape.into();
        let memory = self.alloc(bytes_of::<T>(shape)?, &stream.erase())?;
        memory.into_array(shape).map_err(|(_, e)| e)
    }

    /// An array of zeroes: [`Arrays::uninit`] and a fill, queued on `stream`.
    ///
    /// # Errors
    /// Those of [`Arrays::uninit`]; the driver's.
    #[track_caller]
    fn zeros<T: Pod, D: Driver>(
        &self,
        shape: impl Into<Shape>,
        stream: &Stream<D>,
    ) -> Result<DeviceArray<T, D>, Error> {
        self.uninit(shape, stream)?.zeroed(stream)
    }
}

impl<A: GpuAlloc + ?Sized> Arrays for A {}

impl<D: Driver> Allocator<D> {
    /// This allocator as a trait object, which is one more handle of it.
    pub fn erase(&self) -> Arc<dyn GpuAlloc> {
        Arc::new(self.clone())
    }
}

impl<D: Driver> Stream<D> {
    /// This stream as a handle without the driver's type.
    pub fn erase(&self) -> AnyStream {
        AnyStream::new(self.clone())
    }
}

impl<D: Driver> Allocation<D> {
    /// This allocation as a handle without the driver's type.
    pub fn erase(self) -> AnyAllocation {
        AnyAllocation::new(self)
    }
}

/// The stream with its type again.
///
/// # Errors
/// [`Error::OtherAllocator`]: it is of another kind of device.
fn typed<D: Driver>(stream: &AnyStream, device: DeviceId) -> Result<&Stream<D>, Error> {
    stream.downcast_ref().ok_or(Error::OtherAllocator { stream: stream.id(), device })
}

impl<D: Driver> GpuAlloc for Allocator<D> {
    fn device(&self) -> DeviceId {
        Allocator::device(self)
    }
    fn stream(&self) -> Result<AnyStream, Error> {
        Allocator::stream(self).map(AnyStream::new)
    }
    fn stream_of(&self, id: StreamId) -> Option<AnyStream> {
        Allocator::stream_of(self, id).map(AnyStream::new)
    }
    fn alloc(&self, bytes: u64, stream: &AnyStream) -> Result<AnyAllocation, Error> {
        let stream = typed(stream, Allocator::device(self))?;
        Allocator::alloc(self, bytes, stream).map(AnyAllocation::new)
    }
    fn alloc_aligned(&self, bytes: u64, align: u64, stream: &AnyStream) -> Result<AnyAllocation, Error> {
        let stream = typed(stream, Allocator::device(self))?;
        Allocator::alloc_aligned(self, bytes, align, stream).map(AnyAllocation::new)
    }
    fn trim(&self, which: Option<&AnyStream>) -> Result<Trimmed, Error> {
        match which {
            None => Allocator::trim(self, Trim::All),
            Some(stream) => {
                let stream = typed(stream, Allocator::device(self))?;
                Allocator::trim(self, Trim::Stream(stream))
            }
        }
    }
    fn set_limit(&self, limit: Limit) -> Result<(), Error> {
        Allocator::set_limit(self, limit)
    }
    fn synchronize(&self) -> Result<(), Error> {
        Allocator::synchronize(self)
    }
    fn report(&self) -> Report {
        Allocator::report(self)
    }
    fn usage(&self) -> Usage {
        Allocator::usage(self)
    }
}
