//! A `CudaSlice` over a chunk of the pool, for code that needs that type. It does not know what is done with it.
//!
//! Reads and writes go through types of ours, which check the stream first: a graph that captured it, or another
//! device's stream, would touch bytes that belong to another owner; and cudarc's tracking forgets work on a stream of another
//! `CudaContext` value while that value has no second stream, and all readers but the last (`readings`). The slice itself, which
//! checks nothing, is borrowed by an `unsafe` call.

use super::readings::{Party, Readings};
use super::slice::{NULL, anchor_of};
use crate::allocator::{Allocation, Allocator, Stream};
use crate::cuda::{Cuda, store_error, store_peek, store_stays};
use crate::driver::{DriverResult, Fences, Memory};
use crate::error::Error;
use crate::laws;
use bytemuck::Pod;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    DriverError as CudarcError, LaunchArgs, PushKernelArg, SyncOnDrop,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A `CudaSlice` whose bytes belong to the pool. It, and its views ([`PooledView`], [`PooledViewMut`]), go wherever cudarc takes a
/// `DevicePtr` or a kernel's argument; [`as_cuda_slice`](PooledSlice::as_cuda_slice), which is `unsafe`, gives the type itself,
/// never as a `&mut CudaSlice`: a swap would pass our bytes to cudarc's own free.
///
/// **Ordering.** While it lives, cudarc's tracking orders it between streams, without the hazards that it has in safe code (docs/cudarc.md):
/// a copy or a fill that writes it comes behind every copy from it, on however many streams and threads those were queued. cudarc counts
/// streams by `CudaContext` value: a stream of another value than the slice's that is named to a copy or a fill is treated as one of the
/// slice's own value, so that its work is tracked. Its first use on any stream comes after the work of the bytes' previous owner.
///
/// For launches, which are `unsafe`, cudarc does not show the stream. One that writes the slice (its argument is `&mut`) comes behind everything that copies
/// and launches have read; but of launches that read it on several streams cudarc remembers the last, and the caller orders
/// launches on a stream of another `CudaContext` value than the slice's.
///
/// **Cost**, besides what cudarc does for a slice of its own (a wait and a record for a copy from it, two waits and a record for one to it) and the query of
/// the stream's id: an event for a stream's first read since a write, if none is left from before; in a write a wait for each other stream that has
/// read, and one record if there is any (also one that wrote it since, if that has waited for no other); for the first launch that writes behind copies that read, these waits, two more and a record, on a stream that is created for
/// that once. The events, at most one for each handle that readers had between two such writes, are dropped with the slice.
///
/// When it is dropped, at any time and on any thread, its bytes are reused only behind
/// everything that any stream of the context holds by then, because that tracking does not know all readers. So a
/// [`DeviceArray`](crate::DeviceArray) is reused sooner and is ordered better: this type is for code that cannot take one. The drop
/// calls the driver and does not wait for it, and makes no call on a stream of other code, even one that captures.
///
/// **Streams that get no address.** A capturing stream (its graph could be launched when the bytes belong to another owner) and
/// a stream of another device or context (whose work the drop does not know). The slice itself and its views to write
/// give such a stream null, which copies and fills refuse; the reason is in
/// [`Report::deferred_errors`](crate::report::Report::deferred_errors).
///
/// ```no_run
/// use cudarc::driver::CudaSlice;
/// use millpond::{Allocator, Config, cuda::Cuda};
///
/// fn length(slice: &CudaSlice<f32>) -> usize {
///     slice.len()
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Cuda::new(0)?, Config::default())?;
/// let stream = gpu.stream()?;
/// let mut x = gpu.cuda_slice::<f32>(1024, &stream)?;
/// let theirs = stream.cudarc()?;
/// theirs.memset_zeros(&mut x)?;                             // cudarc's calls take it as an argument
/// theirs.memcpy_htod(&[1.0, 2.0], &mut x.slice_mut(..2))?;
/// // SAFETY: nothing is queued with the slice itself.
/// assert_eq!(length(unsafe { x.as_cuda_slice() }), 1024);   // for code that takes the type
/// # Ok(()) }
/// ```
pub struct PooledSlice<T: Pod> {
    slice: ManuallyDrop<CudaSlice<T>>,
    bytes: Option<Allocation<Cuda>>,
    streams: Streams,
}

/// The streams that may use it.
struct Streams {
    cuda: Cuda,
    /// The stream that the slice was made for.
    home: ManuallyDrop<Arc<CudaStream>>,
    /// A stream of the same value, which does nothing. While it exists, cudarc's tracking is on there; and cudarc has the slice on
    /// it, because the end of a slice makes its stream wait, which a capture on `home` would not survive.
    anchor: ManuallyDrop<Arc<CudaStream>>,
    /// Streams of other values that were used since the last exclusive access that found too many.
    aliases: OnceLock<Box<Alias>>,
    /// How many, or more if two threads added one at once.
    met: AtomicUsize,
    /// The readers, except launches.
    readings: ManuallyDrop<Readings>,
    /// A stream of the same value, for this slice alone: it waits for the readers if a launch must come behind them.
    joins: OnceLock<Arc<CudaStream>>,
}

/// If there are more streams of other values than this, the next exclusive access, when none is borrowed, drops them. More than a
/// program works with at once; using a dropped one again costs an allocation.
const MANY: usize = 64;

/// A stream of another value, as one of the slice's own: cudarc records work on a stream if the stream's value tracks.
/// A list that only grows while the slice is shared, so its entries can be borrowed for that time. An alias holds nothing of the driver's: it
/// means whatever stream has the handle.
struct Alias {
    stream: Arc<CudaStream>,
    next: OnceLock<Box<Alias>>,
}

impl Allocator<Cuda> {
    /// A `CudaSlice` of `len` elements, with unspecified contents, made for work on `stream`. If cudarc has made no
    /// stream yet in the stream's `CudaContext` value, the slice makes the first, and cudarc then waits for the whole context,
    /// which no capture in the context survives: make a stream (`new_stream`) before captures begin.
    ///
    /// # Errors
    /// [`Error::Overflow`]; [`Error::Capturing`] on a stream that captures, whose capture continues; as [`Allocator::alloc`] and
    /// [`Stream::cudarc`]; the driver's.
    pub fn cuda_slice<T: Pod>(&self, len: usize, stream: &Stream<Cuda>) -> Result<PooledSlice<T>, Error> {
        let array = self.uninit::<T>(len, stream)?;
        let (cuda, home) = (self.driver().clone(), ManuallyDrop::new(stream.cudarc()?));
        // The slice's event is recorded there; a capture would take it and end.
        let admitted = laws::may_slice(|| stream.refuse_capture());
        let anchor = match admitted.and_then(|()| Ok(anchor_of(array.view().touch(), &home, &cuda)?)) {
            Ok(anchor) => ManuallyDrop::new(anchor),
            Err(e) => {
                cuda.current_stays(|| drop(ManuallyDrop::into_inner(home)));
                return Err(e);
            }
        };
        let Ok(bytes) = array.into_allocation() else { unreachable!("the memory is this allocator's own") };
        let streams = Streams {
            cuda,
            home,
            anchor,
            aliases: OnceLock::new(),
            met: AtomicUsize::new(0),
            readings: ManuallyDrop::new(Readings::new()),
            joins: OnceLock::new(),
        };
        let addr = if bytes.is_empty() { 0 } else { bytes.address().0 };
        let slice = streams.cuda.current_stays(|| slice_over(&streams, addr, len))?;
        Ok(PooledSlice { slice: ManuallyDrop::new(slice), bytes: Some(bytes), streams })
    }
}

/// The slice, with its write event recorded behind what its stream holds: uses on other streams come after that event.
#[allow(unsafe_code, reason = "cudarc takes an address on trust")]
fn slice_over<T: Pod>(streams: &Streams, addr: u64, len: usize) -> DriverResult<CudaSlice<T>> {
    let of = if laws::slice_comes_behind() { &streams.anchor } else { &streams.home };
    let (made, stored) = store_stays(streams.home.context(), || {
        // cudarc panics if it cannot make its two events.
        let made = std::panic::catch_unwind(|| {
            // SAFETY: this many elements, of a type without invalid values, in an allocation that outlives the slice, which
            // never frees it: it is taken apart with `leak`.
            unsafe { of.upgrade_device_ptr::<T>(addr, len) }
        });
        made.map(|mut slice| {
            drop(slice.device_ptr_mut(&streams.home));
            slice
        })
    });
    let slice = made.map_err(|_| Cuda::error_of("cuEventCreate", 2))?;
    match stored {
        Ok(()) => Ok(slice),
        Err(e) => {
            // The first error is reported.
            let _ = drop_events(slice);
            Err(Cuda::error_of("cuEventRecord", e.0 as u32))
        }
    }
}

/// Some elements of a [`PooledSlice`], to read. A launch takes it as a `CudaView`.
pub struct PooledView<'a, T: Pod> {
    view: CudaView<'a, T>,
    streams: &'a Streams,
}

/// Some elements of a [`PooledSlice`], to write (and read). A launch takes it as a `CudaViewMut`.
pub struct PooledViewMut<'a, T: Pod> {
    view: CudaViewMut<'a, T>,
    streams: &'a Streams,
}

impl<T: Pod> PooledSlice<T> {
    /// The `CudaSlice` itself, for code that takes nothing else. It may only be read.
    ///
    /// # Safety
    /// Its uses go to cudarc and not through us. So all work that is queued with it, or with a view of it, must be on streams of its own
    /// `CudaContext` value (`slice.context()`), with event tracking on and no stored error there, on no stream that
    /// captures and on none of another device. The stream that it reports is one of ours, which does nothing: work queued there
    /// is ordered as elsewhere, and no capture runs there. Other work is neither waited for nor remembered: it may read what a later
    /// write leaves, or, after the drop, another owner's bytes.
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
        self.streams.forget_many();
        PooledViewMut { view: self.slice.as_view_mut(), streams: &self.streams }
    }
    /// Some elements, to write.
    ///
    /// # Panics
    /// If the range does not lie in the slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> PooledViewMut<'_, T> {
        self.streams.forget_many();
        PooledViewMut { view: self.slice.slice_mut(range), streams: &self.streams }
    }
}

impl<T: Pod> PooledView<'_, T> {
    /// Some of its elements.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> PooledView<'_, T> {
        PooledView { view: self.view.slice(range), streams: self.streams }
    }
}

impl<T: Pod> PooledViewMut<'_, T> {
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
    /// Forgets the streams of other values, if there are many: nothing of the slice is borrowed. No driver call.
    fn forget_many(&mut self) {
        if *self.met.get_mut() > MANY {
            *self.met.get_mut() = 0;
            forget(self.aliases.take());
        }
    }

    /// The stream as cudarc's tracking sees it, and its identity, if work on it may use the bytes. If not, the reason is kept as a deferred error.
    fn admit<'a>(&'a self, stream: &'a CudaStream) -> Option<(&'a CudaStream, Party)> {
        match self.cuda.find(stream) {
            Ok(found) => {
                let party = Party::new(stream, &found);
                if laws::is_tracked(Arc::ptr_eq(stream.context(), self.home.context())) {
                    Some((stream, party))
                } else {
                    Some((self.alias(stream), party))
                }
            }
            Err(e) => {
                self.cuda.drop_failed(e);
                None
            }
        }
    }

    /// Borrows it on a stream to read, as cudarc does except for the event in which the end of the use is recorded.
    fn read<'a>(
        &'a self,
        stream: &'a CudaStream,
        ask: impl FnOnce(&'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>),
    ) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let Some((seen, party)) = self.admit(stream) else { return refused() };
        borrow(&self.cuda, stream, seen, |seen| {
            let event = self.readings.event(&party, seen, self.home.context())?;
            let (address, mut end) = ask(seen);
            // None if the program had tracking off when the slice was made.
            if let SyncOnDrop::Record(Some((cudarcs, _))) = &mut end {
                *cudarcs = event;
            }
            Ok((address, end))
        })
    }

    /// Borrows it on a stream to write, as cudarc does, behind all readers. The borrow is exclusive.
    fn write<'a>(
        &'a self,
        stream: &'a CudaStream,
        ask: impl FnOnce(&'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>),
    ) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let Some((seen, party)) = self.admit(stream) else { return refused() };
        borrow(&self.cuda, stream, seen, |seen| {
            let any = self.readings.wait(&party, seen)?;
            let (address, end) = ask(seen);
            // At once: the end of the use may never be recorded, and the next use must come behind these readers even so. If only this stream
            // has read, its event stays instead.
            if let (true, SyncOnDrop::Record(Some((cudarcs, on)))) = (any, &end) {
                cudarcs.record(on)?;
                self.readings.forget();
            }
            Ok((address, end))
        })
    }

    /// An argument that a launch writes. The launch waits for cudarc's write event, which is recorded behind all readers. If that fails,
    /// the host waits for them; if that fails too, cudarc's context stores the error, and the launch is refused.
    fn join<T>(&self, argument: &mut impl DevicePtrMut<T>) {
        if !laws::launch_comes_behind_readers(self.readings.is_any()) {
            return;
        }
        let context = self.home.context();
        let join = || {
            let on = if let Some(on) = self.joins.get() {
                on
            } else {
                let made = self.anchor.fork()?;
                self.joins.get_or_init(|| made)
            };
            // An empty write.
            let (_, end) = argument.device_ptr_mut(on);
            let behind = match &end {
                SyncOnDrop::Record(Some((cudarcs, _))) => {
                    self.readings.wait_all(on).and_then(|()| cudarcs.record(on))
                }
                _ => Ok(()),
            };
            core::mem::forget(end);
            behind
        };
        let kept = || match store_stays(context, join) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(e), _) | (_, Err(e)) => {
                store_stays(context, || self.readings.synchronize()).0.map_err(|_| e)
            }
        };
        let joined = self.cuda.relaxed(|| self.cuda.current_stays(kept));
        if joined.is_ok() {
            self.readings.forget();
        }
        store_error(context, joined);
    }

    /// A stream of another value, as one of ours. No driver call and no lock: a stream made in that value instead would wait for
    /// the whole context if it is the first there, and suppress that wait when the value's owner makes one.
    #[allow(unsafe_code, reason = "promises about streams")]
    fn alias(&self, stream: &CudaStream) -> &CudaStream {
        let handle = stream.cu_stream();
        let mut at = &self.aliases;
        loop {
            let alias = at.get_or_init(|| {
                // SAFETY: a stream of this context, as `find` saw; used only while the caller's reference to the stream lives.
                let stream = unsafe { self.home.context().wrap_borrowed_stream(handle) };
                self.met.fetch_add(1, Ordering::Relaxed);
                Box::new(Alias { stream, next: OnceLock::new() })
            });
            if alias.stream.cu_stream() == handle {
                return &alias.stream;
            }
            at = &alias.next;
        }
    }
}

/// One by one, without recursion: a list of any length.
fn forget(mut aliases: Option<Box<Alias>>) {
    while let Some(alias) = &mut aliases {
        aliases = alias.next.take();
    }
}

/// cudarc's answer for a stream that it sees as `seen`. An error goes to the caller, in the caller's own value. No address if the
/// end of the use would not be recorded: cudarc silently skips the record if the value that it records in stores an
/// error.
fn borrow<'a>(
    cuda: &Cuda,
    given: &CudaStream,
    seen: &'a CudaStream,
    ask: impl FnOnce(&'a CudaStream) -> Result<(CUdeviceptr, SyncOnDrop<'a>), CudarcError>,
) -> (CUdeviceptr, SyncOnDrop<'a>) {
    if let Some(e) = store_peek(seen.context()) {
        cuda.drop_failed(Cuda::error_of("cuda_slice", e.0 as u32));
        return refused();
    }
    let (answer, failed) = if Arc::ptr_eq(given.context(), seen.context()) {
        (ask(seen), Ok(()))
    } else {
        store_stays(seen.context(), || ask(seen))
    };
    match (answer, failed) {
        (Ok(answer), Ok(())) => answer,
        (Err(e), _) | (Ok(_), Err(e)) => {
            store_error(given.context(), Err(e));
            refused()
        }
    }
}

impl Drop for Streams {
    /// Drops cudarc's values, which leaves its context current and stores errors. The last reference to a stream destroys it.
    #[allow(unsafe_code, reason = "they go while the context is looked after")]
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let home = unsafe { ManuallyDrop::take(&mut self.home) };
        // SAFETY: as above.
        let anchor = unsafe { ManuallyDrop::take(&mut self.anchor) };
        // SAFETY: as above.
        let readings = unsafe { ManuallyDrop::take(&mut self.readings) };
        let (aliases, joins) = (self.aliases.take(), self.joins.take());
        let failed = self.cuda.current_stays(|| {
            let context = Arc::clone(home.context());
            store_stays(&context, || {
                drop((anchor, home, joins, readings));
                forget(aliases);
            })
            .1
        });
        if let Err(e) = failed {
            self.cuda.drop_failed(Cuda::error_of("cuda_slice", e.0 as u32));
        }
    }
}

/// No address, and nothing to do at the end of the use.
fn refused<'a>() -> (CUdeviceptr, SyncOnDrop<'a>) {
    (NULL, SyncOnDrop::Record(None))
}

impl<T: Pod> Drop for PooledSlice<T> {
    #[allow(unsafe_code, reason = "cudarc's slice must not free what it does not own")]
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing of `self` is used after the drop.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Its events are destroyed; its bytes stay ours.
        let cuda = &self.streams.cuda;
        if let Err(e) = cuda.current_stays(|| drop_events(slice)) {
            cuda.drop_failed(Cuda::error_of("cuda_slice", e.0 as u32));
        }
        if let Some(bytes) = self.bytes.take() {
            if laws::slice_users_are_unknown() {
                bytes.free_unknown();
            } else {
                drop(bytes);
            }
        }
    }
}

/// A failure to destroy events is not reported to the program's next cudarc call.
fn drop_events<T>(slice: CudaSlice<T>) -> Result<(), CudarcError> {
    let context = Arc::clone(slice.context());
    store_stays(&context, || slice.leak()).1
}

impl<T: Pod> fmt::Debug for PooledSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledSlice<{}>({:?})", core::any::type_name::<T>(), self.bytes)
    }
}

impl<T: Pod> DeviceSlice<T> for PooledSlice<T> {
    fn len(&self) -> usize {
        self.slice.len()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.streams.home
    }
}
impl<T: Pod> DevicePtr<T> for PooledSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.streams.read(stream, |seen| self.slice.device_ptr(seen))
    }
}
impl<T: Pod> DevicePtrMut<T> for PooledSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.streams.forget_many();
        self.streams.write(stream, |seen| self.slice.device_ptr_mut(seen))
    }
}
impl<T: Pod> DeviceSlice<T> for PooledView<'_, T> {
    fn len(&self) -> usize {
        self.view.len()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.streams.home
    }
}
impl<T: Pod> DevicePtr<T> for PooledView<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.streams.read(stream, |seen| self.view.device_ptr(seen))
    }
}
impl<T: Pod> fmt::Debug for PooledView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledView<{}>({})", core::any::type_name::<T>(), self.view.len())
    }
}
impl<T: Pod> DeviceSlice<T> for PooledViewMut<'_, T> {
    fn len(&self) -> usize {
        self.view.len()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.streams.home
    }
}
impl<T: Pod> DevicePtr<T> for PooledViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.streams.read(stream, |seen| self.view.device_ptr(seen))
    }
}
impl<T: Pod> DevicePtrMut<T> for PooledViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.streams.write(stream, |seen| self.view.device_ptr_mut(seen))
    }
}
impl<T: Pod> fmt::Debug for PooledViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledViewMut<{}>({})", core::any::type_name::<T>(), self.view.len())
    }
}

macro_rules! argument {
    ($(#[$doc:meta])* <$($life:lifetime $(: $longer:lifetime)?),*> $given:ty => $inner:ty, $this:ident => $field:expr) => {
        $(#[$doc])*
        // SAFETY: forwarded to cudarc's own implementation, which keeps pointers into its argument and does not move it.
        #[allow(unsafe_code, reason = "cudarc's trait is unsafe to implement")]
        unsafe impl<$($life $(: $longer)?,)* T: Pod> PushKernelArg<$given> for LaunchArgs<'a> {
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
    /// A kernel's argument to read: the `CudaSlice` that it is.
    <'a, 'b: 'a> &'b PooledSlice<T> => &'b CudaSlice<T>, slice => &slice.slice
);
argument!(
    /// A kernel's argument to write: the `CudaSlice` that it is.
    <'a, 'b: 'a> &'b mut PooledSlice<T> => &'b mut CudaSlice<T>, slice => {
        slice.streams.join(&mut *slice.slice);
        &mut slice.slice
    }
);
argument!(
    /// A kernel's argument to read: the `CudaView` that it is.
    <'a, 'b: 'a, 'c: 'b> &'b PooledView<'c, T> => &'b CudaView<'c, T>, view => &view.view
);
argument!(
    /// A kernel's argument to write: the `CudaViewMut` that it is.
    <'a, 'b: 'a, 'c: 'b> &'b mut PooledViewMut<'c, T> => &'b mut CudaViewMut<'c, T>, view => {
        view.streams.join(&mut view.view);
        &mut view.view
    }
);
