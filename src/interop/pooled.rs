//! A `CudaSlice` over a chunk of the pool, for code that wants that very type. It does not know what is done with it.
//!
//! What reads or writes goes through types of ours, which look at the stream first: a graph that captured it, or another
//! device's stream, would touch bytes that are somebody else's; and cudarc's tracking forgets what is done on a stream of another
//! `CudaContext` value while that value has no second stream. The slice itself, which looks at nothing, is lent by an `unsafe`
//! call.

use super::slice::NULL;
use crate::allocator::{Allocation, Allocator, Stream};
use crate::array::Element;
use crate::driver::cuda::{Cuda, store_stays};
use crate::driver::{DriverResult, Memory};
use crate::error::Error;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    LaunchArgs, PushKernelArg, SyncOnDrop,
};
use std::sync::{Arc, Mutex, PoisonError};

/// A `CudaSlice` whose bytes are the pool's. It, and its views ([`PooledView`], [`PooledViewMut`]), go wherever cudarc takes a
/// `DevicePtr` or a kernel's argument; the very type is had by [`as_cuda_slice`](PooledSlice::as_cuda_slice), which is `unsafe`,
/// and never as a `&mut CudaSlice`: a swap would hand our bytes to cudarc's own free.
///
/// **Ordering.** While it lives, its order between streams is cudarc's tracking, hazards included (DESIGN.md, cudarc's own
/// types); two events are made for it. cudarc counts streams by `CudaContext` value: of one that is not the slice's own and is
/// named to a copy or a fill, a stream is made and kept for as long as both the slice and somebody else's reference to the value
/// live, so that what is done there is tracked.
/// (A launch asks nobody: on a stream of such a value it is the caller's to order, as `launch` is `unsafe`.) Its first use on any stream comes after the bytes' former life. Dropped, at any time
/// and on any thread, its bytes are reused only behind everything that any stream of the context holds by then, because
/// that tracking does not know all readers. So a [`DeviceArray`](crate::DeviceArray) comes back sooner and is ordered
/// better: this is for code that cannot take one. The drop speaks to the driver, and does not wait for it.
///
/// **Streams that get no address.** A capturing stream (its graph could be launched when the bytes are somebody else's) and
/// a stream of another device or context (whose work the drop does not know). The slice itself and its views to write
/// answer such a stream with null, which copies and fills refuse; the reason is in
/// [`Report::deferred_errors`](crate::report::Report::deferred_errors).
pub struct PooledSlice<T: Element> {
    slice: ManuallyDrop<CudaSlice<T>>,
    bytes: Option<Allocation<Cuda>>,
    streams: Streams,
}

/// Whose streams may use it.
struct Streams {
    cuda: Cuda,
    /// The context value that has the slice.
    home: Arc<CudaContext>,
    /// A stream of each other value that was met, which does nothing: cudarc's tracking is on while a value has two.
    anchors: Mutex<Vec<Arc<CudaStream>>>,
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
        let (home, anchors) = (Arc::clone(theirs.context()), Mutex::new(Vec::new()));
        let streams = Streams { cuda, home, anchors };
        Ok(PooledSlice { slice: ManuallyDrop::new(slice), bytes: Some(bytes), streams })
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

/// Some elements of a [`PooledSlice`], to read. To a launch it is a `CudaView`.
pub struct PooledView<'a, T: Element> {
    view: CudaView<'a, T>,
    streams: &'a Streams,
}

/// Some elements of a [`PooledSlice`], to write (and read). To a launch it is a `CudaViewMut`.
pub struct PooledViewMut<'a, T: Element> {
    view: CudaViewMut<'a, T>,
    streams: &'a Streams,
}

impl<T: Element> PooledSlice<T> {
    /// The very type, for code that takes nothing else. It is to read.
    ///
    /// # Safety
    /// Whoever has it asks cudarc and not us. So all that is queued with it, or with a view of it, is queued on streams of its own
    /// `CudaContext` value (`slice.stream().context()`), with event tracking on and no error in store there, on no stream that
    /// captures and on none of another device. What else is queued is neither waited for nor remembered: it may read what a later
    /// write leaves, or, after the drop, what is somebody else's.
    #[allow(unsafe_code, reason = "cudarc's own type looks at no stream")]
    pub unsafe fn as_cuda_slice(&self) -> &CudaSlice<T> {
        &self.slice
    }
    /// All of it, to read.
    pub fn as_view(&self) -> PooledView<'_, T> {
        PooledView { view: self.slice.as_view(), streams: &self.streams }
    }
    /// Some elements, to read.
    ///
    /// # Panics
    /// If the range does not lie in the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> PooledView<'_, T> {
        PooledView { view: self.slice.slice(range), streams: &self.streams }
    }
    /// All of it, to write.
    pub fn as_view_mut(&mut self) -> PooledViewMut<'_, T> {
        PooledViewMut { view: self.slice.as_view_mut(), streams: &self.streams }
    }
    /// Some elements, to write.
    ///
    /// # Panics
    /// If the range does not lie in the slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> PooledViewMut<'_, T> {
        PooledViewMut { view: self.slice.slice_mut(range), streams: &self.streams }
    }
}

impl<T: Element> PooledView<'_, T> {
    /// Some of its elements.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> PooledView<'_, T> {
        PooledView { view: self.view.slice(range), streams: self.streams }
    }
}

impl<T: Element> PooledViewMut<'_, T> {
    /// Some of its elements, to write.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> PooledViewMut<'_, T> {
        PooledViewMut { view: self.view.slice_mut(range), streams: self.streams }
    }
    /// Some of its elements, to read.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> PooledView<'_, T> {
        PooledView { view: self.view.slice(range), streams: self.streams }
    }
    /// All of it, to read.
    pub fn as_view(&self) -> PooledView<'_, T> {
        PooledView { view: self.view.as_view(), streams: self.streams }
    }
}

impl Streams {
    /// Whether work on this stream may use the bytes, and is tracked. Why not is kept as a deferred error.
    fn admit(&self, stream: &CudaStream) -> bool {
        let admitted = self.cuda.find(stream).map(drop).and_then(|()| self.track(stream.context()));
        admitted.map_err(|e| self.cuda.drop_failed(e)).is_ok()
    }

    /// Keeps cudarc's tracking on in another value of the context.
    fn track(&self, context: &Arc<CudaContext>) -> DriverResult<()> {
        if Arc::ptr_eq(context, &self.home) || planted!(CudaPooledUntracked) {
            return Ok(());
        }
        let mut anchors = self.anchors.lock().unwrap_or_else(PoisonError::into_inner);
        if !anchors.iter().any(|anchor| Arc::ptr_eq(anchor.context(), context)) {
            anchors.push(self.cuda.anchor_in(context)?);
            // A value that nobody else has got can name no stream any more: what was tracked in it stays recorded.
            let over = anchors.extract_if(.., |anchor| Arc::strong_count(anchor.context()) == 1);
            self.let_go(over.collect());
        }
        Ok(())
    }

    /// These streams go: in cudarc, which leaves its context current and keeps what failed.
    fn let_go(&self, anchors: Vec<Arc<CudaStream>>) {
        for anchor in anchors {
            let context = Arc::clone(anchor.context());
            let ((), failed) = self.cuda.current_stays(|| store_stays(&context, || drop(anchor)));
            if let Err(e) = failed {
                self.cuda.drop_failed(Cuda::error_of("cuda_slice", e.0 as u32));
            }
        }
    }
}

/// No address, and nothing to do at the end of the use.
fn refused<'a>() -> (CUdeviceptr, SyncOnDrop<'a>) {
    (NULL, SyncOnDrop::Record(None))
}

impl<T: Element> Drop for PooledSlice<T> {
    #[allow(unsafe_code, reason = "cudarc's slice must not free what it does not own")]
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing of `self` is used after the drop.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Its events go; its bytes stay ours.
        let cuda = &self.streams.cuda;
        if let Err(e) = cuda.current_stays(|| drop_events(slice)) {
            cuda.drop_failed(Cuda::error_of("cuda_slice", e.0 as u32));
        }
        let anchors = self.streams.anchors.get_mut().unwrap_or_else(PoisonError::into_inner);
        let anchors = core::mem::take(anchors);
        self.streams.let_go(anchors);
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
        if self.streams.admit(stream) { self.slice.device_ptr(stream) } else { refused() }
    }
}
impl<T: Element> DevicePtrMut<T> for PooledSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if self.streams.admit(stream) { self.slice.device_ptr_mut(stream) } else { refused() }
    }
}
impl<T: Element> DeviceSlice<T> for PooledView<'_, T> {
    fn len(&self) -> usize {
        self.view.len()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        self.view.stream()
    }
}
impl<T: Element> DevicePtr<T> for PooledView<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if self.streams.admit(stream) { self.view.device_ptr(stream) } else { refused() }
    }
}
impl<T: Element> fmt::Debug for PooledView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledView<{}>({})", core::any::type_name::<T>(), self.view.len())
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
        if self.streams.admit(stream) { self.view.device_ptr(stream) } else { refused() }
    }
}
impl<T: Element> DevicePtrMut<T> for PooledViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if self.streams.admit(stream) { self.view.device_ptr_mut(stream) } else { refused() }
    }
}
impl<T: Element> fmt::Debug for PooledViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledViewMut<{}>({})", core::any::type_name::<T>(), self.view.len())
    }
}

macro_rules! argument {
    ($(#[$doc:meta])* <$($life:lifetime $(: $longer:lifetime)?),*> $given:ty => $inner:ty, $this:ident => $field:expr) => {
        $(#[$doc])*
        // SAFETY: passed on to cudarc's own, which keeps pointers into what it is given and does not move it.
        #[allow(unsafe_code, reason = "cudarc's trait is unsafe to implement")]
        unsafe impl<$($life $(: $longer)?,)* T: Element> PushKernelArg<$given> for LaunchArgs<'a> {
            #[inline(always)]
            #[allow(clippy::inline_always, reason = "cudarc asks for it, so that references stay valid")]
            fn arg(&mut self, $this: $given) -> &mut Self {
                let inner: $inner = $field;
                self.arg(inner)
            }
        }
    };
}
argument!(
    /// As the `CudaSlice` that it is, to read.
    <'a, 'b: 'a> &'b PooledSlice<T> => &'b CudaSlice<T>, slice => &slice.slice
);
argument!(
    /// As the `CudaSlice` that it is, to write.
    <'a, 'b: 'a> &'b mut PooledSlice<T> => &'b mut CudaSlice<T>, slice => &mut slice.slice
);
argument!(
    /// As the `CudaView` that it is.
    <'a, 'b: 'a, 'c: 'b> &'b PooledView<'c, T> => &'b CudaView<'c, T>, view => &view.view
);
argument!(
    /// As the `CudaViewMut` that it is.
    <'a, 'b: 'a, 'c: 'b> &'b mut PooledViewMut<'c, T> => &'b mut CudaViewMut<'c, T>, view => &mut view.view
);
