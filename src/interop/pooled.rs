//! A `CudaSlice` over a chunk of the pool, for code that wants that very type. It does not know what is done with it.
//!
//! What writes goes through types of ours, which look at the stream first: a graph that captured a write, or another
//! device's stream, would write when the bytes are somebody else's. What only reads may have the slice itself.

use super::slice::NULL;
use crate::allocator::{Allocation, Allocator, Stream};
use crate::array::Element;
use crate::driver::cuda::{Cuda, store_stays};
use crate::driver::{DriverResult, Memory};
use crate::error::Error;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, RangeBounds};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs,
    PushKernelArg, SyncOnDrop,
};
use std::sync::Arc;

/// A `CudaSlice` whose bytes are the pool's. It is lent out to read ([`Deref`]) and as [`PooledViewMut`] to write, never as
/// a `&mut CudaSlice`: a swap would hand our bytes to cudarc's own free.
///
/// **Ordering.** While it lives, its order between streams is cudarc's tracking, hazards included (DESIGN.md, cudarc's own
/// types); two events are made for it. Its first use on any stream comes after the bytes' former life. Dropped, at any time
/// and on any thread, its bytes are reused only behind everything that any stream of the context holds by then, because
/// that tracking does not know all readers. So a [`DeviceArray`](crate::DeviceArray) comes back sooner and is ordered
/// better: this is for code that cannot take one. The drop speaks to the driver, and does not wait for it.
///
/// **Streams that get no address.** A capturing stream (its graph could be launched when the bytes are somebody else's) and
/// a stream of another device or context (whose work the drop does not know). The slice itself and its views to write
/// answer such a stream with null, which copies and fills refuse; the reason is in
/// [`Report::deferred_errors`](crate::report::Report::deferred_errors).
///
/// **What that does not cover.** Whoever has the `&CudaSlice`, or a `CudaView` of it, asks cudarc and not us. So a *read* may be
/// queued by another device's stream, and, where cudarc skips its own wait because an error is in store in its context, or
/// has its event tracking switched off (an `unsafe` call), captured. After the drop it reads what is somebody else's.
/// Nothing is written so.
pub struct PooledSlice<T: Element> {
    slice: ManuallyDrop<CudaSlice<T>>,
    bytes: Option<Allocation<Cuda>>,
    cuda: Cuda,
}

impl Allocator<Cuda> {
    /// A `CudaSlice` of `len` elements, with whatever its bytes held before, made for work on `stream`. Where the stream
    /// was adopted from another value of cudarc's for this context than the device's, and the bytes' former life is not
    /// over, the host waits for it: cudarc would not order it. The first slice in a context waits for all of it, as cudarc's
    /// first stream does, which it makes.
    ///
    /// # Errors
    /// [`Error::Overflow`]; as [`Allocator::alloc`] and [`Stream::cudarc`]; the driver's.
    pub fn cuda_slice<T: Element>(&self, len: usize, stream: &Stream<Cuda>) -> Result<PooledSlice<T>, Error> {
        let Ok(bytes) = self.uninit::<T>(len, stream)?.into_allocation() else {
            unreachable!("the memory is this allocator's own")
        };
        let (cuda, theirs) = (self.driver().clone(), stream.cudarc()?);
        if !cuda.tracks(&theirs)? {
            stream.synchronize()?;
        }
        let addr = if bytes.is_empty() { 0 } else { bytes.address().0 };
        let slice = cuda.current_stays(|| slice_over(&theirs, addr, len))?;
        Ok(PooledSlice { slice: ManuallyDrop::new(slice), bytes: Some(bytes), cuda })
    }
}

/// The slice, its write event recorded behind what its stream holds: what it is ordered behind on other streams.
#[allow(unsafe_code, reason = "cudarc takes an address on trust")]
fn slice_over<T: Element>(stream: &Arc<CudaStream>, addr: u64, len: usize) -> DriverResult<CudaSlice<T>> {
    let (made, stored) = store_stays(stream.context(), || {
        // cudarc panics if it cannot make its two events.
        let made = std::panic::catch_unwind(|| {
            // SAFETY: so many elements, of a type without invalid values, in an allocation that outlives the slice, which
            // never frees it: it is leaked back.
            unsafe { stream.upgrade_device_ptr::<T>(addr, len) }
        });
        made.map(|mut slice| {
            drop(slice.device_ptr_mut(stream));
            slice
        })
    });
    let slice = made.map_err(|_| Cuda::error_of("cuEventCreate", 2))?;
    match stored {
        Ok(()) => Ok(slice),
        Err(e) => {
            // The error that is told came first.
            let _ = drop_events(slice);
            Err(Cuda::error_of("cuEventRecord", e.0 as u32))
        }
    }
}

/// Some elements of a [`PooledSlice`], to write (and read). To a launch it is a `CudaViewMut`.
pub struct PooledViewMut<'a, T: Element> {
    view: CudaViewMut<'a, T>,
    cuda: &'a Cuda,
}

impl<T: Element> PooledSlice<T> {
    /// All of it, to write.
    pub fn as_view_mut(&mut self) -> PooledViewMut<'_, T> {
        PooledViewMut { view: self.slice.as_view_mut(), cuda: &self.cuda }
    }
    /// Some elements, to write.
    ///
    /// # Panics
    /// If the range does not lie in the slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> PooledViewMut<'_, T> {
        PooledViewMut { view: self.slice.slice_mut(range), cuda: &self.cuda }
    }
}

impl<T: Element> PooledViewMut<'_, T> {
    /// Some of its elements, to write.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> PooledViewMut<'_, T> {
        PooledViewMut { view: self.view.slice_mut(range), cuda: self.cuda }
    }
    /// Some of its elements, to read.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> CudaView<'_, T> {
        self.view.slice(range)
    }
    /// All of it, to read.
    pub fn as_view(&self) -> CudaView<'_, T> {
        self.view.as_view()
    }
}

/// Whether work on this stream may use the bytes. Why not is kept as a deferred error.
fn admits(cuda: &Cuda, stream: &CudaStream) -> bool {
    cuda.find(stream).map_err(|e| cuda.drop_failed(e)).is_ok()
}

/// No address, and nothing to do at the end of the use.
fn refused<'a>() -> (CUdeviceptr, SyncOnDrop<'a>) {
    (NULL, SyncOnDrop::Record(None))
}

impl<T: Element> Deref for PooledSlice<T> {
    type Target = CudaSlice<T>;
    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T: Element> Drop for PooledSlice<T> {
    #[allow(unsafe_code, reason = "cudarc's slice must not free what it does not own")]
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing of `self` is used after the drop.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Its events go; its bytes stay ours.
        if let Err(e) = self.cuda.current_stays(|| drop_events(slice)) {
            self.cuda.drop_failed(Cuda::error_of("cuda_slice", e.0 as u32));
        }
        if let Some(bytes) = self.bytes.take() {
            if planted!(CudaPooledPlain) {
                drop(bytes);
            } else {
                bytes.free_unknown();
            }
        }
    }
}

/// What could not be destroyed is no stranger's to hear of.
fn drop_events<T>(slice: CudaSlice<T>) -> Result<(), cudarc::driver::DriverError> {
    let context = Arc::clone(slice.context());
    store_stays(&context, || slice.leak()).1
}

impl<T: Element> fmt::Debug for PooledSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledSlice<{}>({:?})", core::any::type_name::<T>(), self.bytes)
    }
}

impl<T: Element> DeviceSlice<T> for PooledSlice<T> {
    fn len(&self) -> usize {
        self.slice.len()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}
impl<T: Element> DevicePtr<T> for PooledSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if admits(&self.cuda, stream) { self.slice.device_ptr(stream) } else { refused() }
    }
}
impl<T: Element> DevicePtrMut<T> for PooledSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if admits(&self.cuda, stream) { self.slice.device_ptr_mut(stream) } else { refused() }
    }
}
impl<T: Element> DeviceSlice<T> for PooledViewMut<'_, T> {
    fn len(&self) -> usize {
        self.view.len()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        self.view.stream()
    }
}
impl<T: Element> DevicePtr<T> for PooledViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if admits(self.cuda, stream) { self.view.device_ptr(stream) } else { refused() }
    }
}
impl<T: Element> DevicePtrMut<T> for PooledViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if admits(self.cuda, stream) { self.view.device_ptr_mut(stream) } else { refused() }
    }
}
impl<T: Element> fmt::Debug for PooledViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledViewMut<{}>({})", core::any::type_name::<T>(), self.view.len())
    }
}

/// As the `CudaSlice` that it is; to read, pass `&*slice`.
// SAFETY: passed on to cudarc's own, which keeps pointers into the slice and does not move it.
#[allow(unsafe_code, reason = "cudarc's trait is unsafe to implement")]
unsafe impl<'a, 'b: 'a, T: Element> PushKernelArg<&'b mut PooledSlice<T>> for LaunchArgs<'a> {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "cudarc asks for it, so that references stay valid")]
    fn arg(&mut self, slice: &'b mut PooledSlice<T>) -> &mut Self {
        let inner: &'b mut CudaSlice<T> = &mut slice.slice;
        self.arg(inner)
    }
}

/// As the `CudaViewMut` that it is.
// SAFETY: passed on to cudarc's own, which keeps pointers into the view and does not move it.
#[allow(unsafe_code, reason = "cudarc's trait is unsafe to implement")]
unsafe impl<'a, 'b: 'a, 'c: 'b, T: Element> PushKernelArg<&'b mut PooledViewMut<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "cudarc asks for it, so that references stay valid")]
    fn arg(&mut self, view: &'b mut PooledViewMut<'c, T>) -> &mut Self {
        let inner: &'b mut CudaViewMut<'c, T> = &mut view.view;
        self.arg(inner)
    }
}
