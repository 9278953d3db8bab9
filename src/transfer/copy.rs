//! The plain copies: to the device, to the host, inside the device.
//!
//! Each function works on views; arrays pass views of all of them.

use super::source::StableSource;
use super::token::{Download, Refused, Upload};
use super::{noted, same_shape};
use crate::allocator::access::{Mark, Queued, operate};
use crate::allocator::{Allocator, Stream};
use crate::array::{DeviceArray, DeviceView, DeviceViewMut, IntoView, PinnedArray, Shape};
use crate::driver::{Called, Driver};
use crate::error::Error;
use bytemuck::Pod;

/// What [`Allocator::array_from_pinned`] makes: the array, and the copy into it.
type Filled<P, D> = (DeviceArray<<P as StableSource>::Item, D>, Upload<P, D>);

impl<D: Driver> Allocator<D> {
    /// A device array with a pinned source's elements and shape, copied on `stream` without the host waiting.
    ///
    /// # Errors
    /// As [`Allocator::uninit`] and [`DeviceArray::copy_from`]; the source comes back in them.
    #[track_caller]
    pub fn array_from_pinned<P: StableSource>(
        &self,
        source: P,
        stream: &Stream<D>,
    ) -> Result<Filled<P, D>, Refused<P>> {
        match self.uninit(source.shape(), stream) {
            Ok(mut array) => {
                let transfer = array.copy_from(source, stream)?;
                Ok((array, transfer))
            }
            Err(e) => Err(Refused::unused(source, e)),
        }
    }
}

impl<T: Pod, D: Driver> DeviceViewMut<'_, T, D> {
    /// Queues a copy from pinned memory on `stream`, behind what it conflicts with; the host does not wait. The copy owns
    /// the source until it is done. Later operations on the array, on any stream, come after it.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless both shapes are equal; a stream of another device, a capturing stream, the driver's:
    /// nothing was then queued; as [`PinnedArray::host_ready`]. All of these return the source. If the copy is queued and its marker fails, that is the
    /// error, after a wait for the stream: the copy is done then, and the source comes back unless that wait fails too ([`Refused::host`]).
    #[track_caller]
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    pub fn copy_from<P: StableSource<Item = T>>(
        &mut self,
        source: P,
        stream: &Stream<D>,
    ) -> Result<Upload<P, D>, Refused<P>> {
        let _called = Called::<D>::here();
        let sides =
            (("the target, on the device,", self.shape()), ("the source, in host memory,", source.shape()));
        if let Err(e) = same_shape::<T>("copy_from", sides.0, sides.1) {
            return Err(Refused::unused(source, e));
        }
        let (to, bytes) = (self.address(), self.size_bytes());
        if bytes == 0 {
            return Ok(Upload::of_nothing(source, stream));
        }
        Upload::fly(source, stream, |source| {
            let from = source.first().cast();
            operate(stream, &[self.touch()], Mark::Each, |driver, native| {
                // SAFETY: `StableSource` keeps the source readable while it is owned, and `fly` owns it until the copy
                // is done; the target lies in an allocation that is reused only behind this use, and this borrow is exclusive.
                noted(unsafe { driver.copy_h2d(to, from, bytes, native) }, stream, from)
            })
        })
    }

    /// Queues a copy from device memory on `stream`, behind what it conflicts with on both sides; the host does not wait.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless both shapes are equal; an array or a stream of another device, a capturing stream, the
    /// driver's: nothing was then queued.
    #[track_caller]
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    pub fn copy_from_device<'s>(
        &mut self,
        source: impl IntoView<'s, Item = T, Device = D>,
        stream: &Stream<D>,
    ) -> Result<(), Error> {
        let _called = Called::<D>::here();
        let source = source.into_view();
        let sides = (("the target", self.shape()), ("the source", source.shape()));
        same_shape::<T>("copy_from_device", sides.0, sides.1)?;
        let (to, from, bytes) = (self.address(), source.address(), self.size_bytes());
        if bytes == 0 {
            return Ok(());
        }
        // Source first: what it waits for is older, as a rule, and may cover the target's.
        let queued = operate(stream, &[source.touch(), self.touch()], Mark::Each, |driver, native| {
            // SAFETY: both lie in allocations that are reused only behind this use; borrows keep them apart.
            unsafe { driver.copy_d2d(to, from, bytes, native) }
        });
        queued.map(drop)
    }
}

impl<T: Pod, D: Driver> DeviceView<'_, T, D> {
    /// Queues a copy into fresh pinned memory on `stream`, behind the last write; the host does not wait. The data can be
    /// reached only through the token's `wait`.
    ///
    /// # Errors
    /// As [`Allocator::alloc_pinned`]; a stream of another device, a capturing stream, the driver's.
    #[track_caller]
    pub fn to_pinned(&self, stream: &Stream<D>) -> Result<Download<T, D>, Error> {
        let target = stream.allocator().pinned_uninit(self.shape())?;
        Ok(self.copy_to(target, stream)?)
    }

    /// Queues a copy into an existing pinned array, otherwise as [`DeviceView::to_pinned`]. The copy owns
    /// it until it is done.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless both shapes are equal; as [`DeviceView::to_pinned`] and [`PinnedArray::host_ready_mut`]. All of these return the target.
    #[track_caller]
    pub fn copy_to(
        &self,
        mut target: PinnedArray<T, D>,
        stream: &Stream<D>,
    ) -> Result<Download<T, D>, Refused<PinnedArray<T, D>>> {
        let _called = Called::<D>::here();
        let sides =
            (("the target, in host memory,", target.shape()), ("the source, on the device,", self.shape()));
        if let Err(e) = same_shape::<T>("copy_to", sides.0, sides.1) {
            return Err(Refused::unused(target, e));
        }
        if self.size_bytes() == 0 {
            return Ok(Download::of_nothing(target, stream));
        }
        // Waits for what other code's copies use it for, or returns it.
        let to = match target.host_ready_mut().map(<[T]>::as_mut_ptr) {
            Ok(to) => to,
            Err(e) => return Err(Refused::unused(target, e)),
        };
        Download::fly(target, stream, |_| self.read_into(to, stream))
    }

    /// Queues the copy out. The target is pinned, as long as this, and owned by the device until the copy is done.
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    pub(super) fn read_into(&self, to: *mut T, stream: &Stream<D>) -> Result<Queued<D>, Error> {
        let (from, bytes) = (self.address(), self.size_bytes());
        operate(stream, &[self.touch()], Mark::Each, |driver, native| {
            // SAFETY: every caller owns or borrows the target until the copy is done and allows no access; the source lies
            // in an allocation that is reused only behind this use.
            noted(unsafe { driver.copy_d2h(to.cast(), from, bytes, native) }, stream, to)
        })
    }
}

/// Copies of whole arrays.
impl<T: Pod, D: Driver> DeviceArray<T, D> {
    /// Queues a copy from pinned memory into all of the array: [`DeviceViewMut::copy_from`].
    ///
    /// # Errors
    /// Shapes that differ, a stream of another device, a capturing stream, the driver's, each with the source:
    /// [`DeviceViewMut::copy_from`].
    #[track_caller]
    pub fn copy_from<P: StableSource<Item = T>>(
        &mut self,
        source: P,
        stream: &Stream<D>,
    ) -> Result<Upload<P, D>, Refused<P>> {
        self.view_mut().copy_from(source, stream)
    }
    /// Queues a copy from another array of the device into all of this one:
    /// [`DeviceViewMut::copy_from_device`].
    ///
    /// # Errors
    /// Shapes that differ, an array or a stream of another device, a capturing stream, the driver's:
    /// [`DeviceViewMut::copy_from_device`].
    #[track_caller]
    pub fn copy_from_device<'s>(
        &mut self,
        source: impl IntoView<'s, Item = T, Device = D>,
        stream: &Stream<D>,
    ) -> Result<(), Error> {
        self.view_mut().copy_from_device(source, stream)
    }
    /// Queues a copy of the whole array into fresh pinned memory: [`DeviceView::to_pinned`].
    ///
    /// # Errors
    /// No pinned memory, a stream of another device, a capturing stream, the driver's: [`DeviceView::to_pinned`].
    #[track_caller]
    pub fn to_pinned(&self, stream: &Stream<D>) -> Result<Download<T, D>, Error> {
        self.view().to_pinned(stream)
    }
    /// Queues a copy of the whole array into an existing pinned array: [`DeviceView::copy_to`].
    ///
    /// # Errors
    /// Shapes that differ, a stream of another device, a capturing stream, the driver's, each with the target:
    /// [`DeviceView::copy_to`].
    #[track_caller]
    pub fn copy_to(
        &self,
        target: PinnedArray<T, D>,
        stream: &Stream<D>,
    ) -> Result<Download<T, D>, Refused<PinnedArray<T, D>>> {
        self.view().copy_to(target, stream)
    }
    /// A new array with the same elements and shape, copied on `stream`.
    ///
    /// # Errors
    /// As [`Allocator::uninit`] and [`DeviceArray::copy_from_device`].
    #[track_caller]
    pub fn duplicate(&self, stream: &Stream<D>) -> Result<DeviceArray<T, D>, Error> {
        let shape: Shape = self.shape();
        let mut copy = stream.allocator().uninit(shape, stream)?;
        copy.copy_from_device(self, stream)?;
        Ok(copy)
    }
}
