//! Operands of a launch that other code makes: an array for one kernel on one stream, ordered before and recorded after.
//!
//! It does not know how the kernel is launched, or by which library.

use crate::allocator::Stream;
use crate::allocator::access::open::Opened;
use crate::array::{DeviceArray, DeviceView, DeviceViewMut};
use crate::driver::Driver;
use crate::error::Error;
use crate::units::Addr;
use bytemuck::Pod;
use core::fmt;
use core::marker::PhantomData;

/// An array that kernels on one stream may read while this lives.
///
/// What is queued on the stream while it lives comes after the array's last write; later writes of the array come
/// after all of it. Keep it until the kernel is queued, not longer: later operations also wait for whatever else is queued on the stream. If it is forgotten
/// ([`core::mem::forget`]), the array counts as read by whatever the stream holds until the next write of the whole array, a refused write of the whole,
/// the free, or the end of the stream.
///
/// Begin no capture on the stream meanwhile. The launch would go into a graph that may run when the memory belongs to another owner,
/// and the guard's end records only the stream's earlier work. The caller of the launch, which is unsafe,
/// promises that no graph contains the array.
///
/// With cudarc's launches: [`interop`](crate::interop).
#[must_use = "the kernel is to be queued while this lives"]
pub struct ReadOn<'a, T: Pod, D: Driver> {
    addr: u64,
    len: usize,
    opened: Opened<'a, D>,
    elements: PhantomData<&'a [T]>,
}

/// An array that kernels on one stream may read and write while this lives. As [`ReadOn`], behind the reads too.
#[must_use = "the kernel is to be queued while this lives"]
pub struct WriteOn<'a, T: Pod, D: Driver> {
    addr: u64,
    len: usize,
    opened: Opened<'a, D>,
    elements: PhantomData<&'a mut [T]>,
}

macro_rules! guard {
    ($name:ident) => {
        impl<'a, T: Pod, D: Driver> $name<'a, T, D> {
            /// The first byte.
            pub fn address(&self) -> Addr {
                Addr(self.addr)
            }
            /// How many elements.
            pub fn len(&self) -> usize {
                self.len
            }
            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }
            /// The stream that it is for.
            pub fn stream(&self) -> &'a Stream<D> {
                self.opened.stream()
            }
            /// The address as a kernel's argument: where its value lies.
            #[cfg(feature = "cuda")]
            pub(crate) fn argument(&self) -> &u64 {
                &self.addr
            }
        }
        impl<T: Pod, D: Driver> fmt::Debug for $name<'_, T, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (name, element) = (stringify!($name), core::any::type_name::<T>());
                write!(f, "{name}<{element}>({} at {} on {})", self.len, self.address(), self.stream().id())
            }
        }
    };
}
guard!(ReadOn);
guard!(WriteOn);

impl<'a, T: Pod, D: Driver> DeviceView<'a, T, D> {
    /// For a kernel that other code queues on `stream` and that reads it: makes the stream wait, on the device, for
    /// what writes the array; the host does not wait.
    ///
    /// # Errors
    /// A stream of another device, a capturing stream, a wait that the driver refuses: nothing is recorded then.
    pub fn read_on(&self, stream: &'a Stream<D>) -> Result<ReadOn<'a, T, D>, Error> {
        let opened = Opened::new(stream, self.touch())?;
        Ok(ReadOn { addr: self.address().0, len: self.len(), opened, elements: PhantomData })
    }
}
impl<'a, T: Pod, D: Driver> DeviceViewMut<'a, T, D> {
    /// For a kernel that other code queues on `stream` and that may write it: makes the stream wait, on the device,
    /// for whatever uses the array; the host does not wait.
    ///
    /// # Errors
    /// As [`DeviceView::read_on`].
    pub fn write_on(self, stream: &'a Stream<D>) -> Result<WriteOn<'a, T, D>, Error> {
        let (addr, len) = (self.address().0, self.len());
        let opened = Opened::new(stream, self.into_touch())?;
        Ok(WriteOn { addr, len, opened, elements: PhantomData })
    }
}
impl<T: Pod, D: Driver> DeviceArray<T, D> {
    /// All of it, as [`DeviceView::read_on`].
    ///
    /// # Errors
    /// As [`DeviceView::read_on`].
    pub fn read_on<'a>(&'a self, stream: &'a Stream<D>) -> Result<ReadOn<'a, T, D>, Error> {
        self.view().read_on(stream)
    }
    /// All of it, as [`DeviceViewMut::write_on`].
    ///
    /// # Errors
    /// As [`DeviceView::read_on`].
    pub fn write_on<'a>(&'a mut self, stream: &'a Stream<D>) -> Result<WriteOn<'a, T, D>, Error> {
        self.view_mut().write_on(stream)
    }
}
