//! Streams: their owners, their identities, and how long they must live.
//!
//! | made by | owned | identity |
//! |---|---|---|
//! | [`Fences::create_stream`](millpond_driver::Fences::create_stream) | destroyed with the last clone, pending work or not | the driver's id |
//! | [`Cuda::adopt`] | kept alive by their `Arc` | the driver's id |
//! | [`Cuda::raw_stream`], [`Cuda::permanent_stream`] | not at all; the caller promises | the driver's id at the time of the call |
//! | [`Cuda::unmanaged_stream`] | not at all; only calls that name it may use it | the same |
//! | [`Cuda::legacy_stream`] | never gone | the context's |
//! | [`Cuda::per_thread_stream`] | the thread's | one a thread and context: never the handle, which is 0x2 for all |
//!
//! Identity is read once, when the reference is made, because a capturing stream must not be queried (that would destroy
//! the capture) and because after a destroy the handle's value is reused for another stream. Where the driver has no ids (before
//! CUDA 12), streams that other code cannot destroy get numbers of this library, and raw handles are refused. This
//! file does not know events or order.

use super::Cuda;
use super::context::{Bound, Device, NON_BLOCKING};
use super::ended::Ended;
use super::probe::Code;
use super::table::{Call, Handle, bad_handle, lacking};
use core::fmt;
use core::ptr::without_provenance_mut;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUstream, CUstream_st};
use millpond_driver::sync::{Arc, Mutex, ThreadId, Weak, current_thread};
use millpond_driver::units::{DeviceId, StreamId};
use millpond_driver::{DriverError, DriverErrorKind};
use millpond_driver::{DriverResult, StreamInfo, StreamKind, StreamOptions};

/// `CU_STREAM_LEGACY`; 0 means the same here.
pub(super) const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`.
pub(super) const PER_THREAD: usize = 2;
/// No context is current, or not the right one.
const INVALID_CONTEXT: u32 = 201;
/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
const CONTEXT_IS_DESTROYED: Code = 709;
/// The capture code that says "not this stream, but one that it would wait for".
const CAPTURE_IMPLICIT: u32 = 906;

/// Whose a native stream is.
pub(super) enum Whose {
    /// Made by us, destroyed by us.
    Ours,
    /// Other code's, kept alive by a counted reference until this one is dropped.
    Adopted(Mutex<Arc<CudaStream>>),
    /// Other code's, kept alive by its promise.
    Promised,
    /// Other code's, alive only in calls that name it.
    Unmanaged,
    /// The legacy default stream.
    Legacy,
    /// The default stream of this thread.
    PerThread(ThreadId),
}

struct Inner {
    device: Arc<Device>,
    handle: Handle<CUstream_st>,
    info: StreamInfo,
    whose: Whose,
    /// The native handle was given out, or cudarc's value, so that a capture may have begun on it: every operation checks for one. The flag is here,
    /// where both are made, so that no access to them bypasses it.
    exposed: AtomicBool,
    /// cudarc's value of a stream of this backend, once it was requested (`alias`).
    alias: Mutex<Option<Arc<CudaStream>>>,
    /// Of an unmanaged stream: whether it is known to have ended.
    ended: Option<Arc<Ended>>,
}

/// A counted reference to a native stream. Cheap to clone.
#[derive(Clone)]
pub struct GpuStream(Arc<Inner>);

impl fmt::Debug for GpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuStream({}, {:?})", self.0.info.id.0, self.0.info.kind)
    }
}

impl GpuStream {
    /// The native handle, for launches. Its value is reused after the stream is destroyed: never an identity.
    ///
    /// A caller that queues work on it keeps a clone of this reference until the work is queued.
    pub fn handle(&self) -> CUstream {
        self.0.exposed.store(true, Ordering::Relaxed);
        self.0.handle.0
    }
    /// The native handle for cudarc's value, which the code that makes the value gives out.
    pub(super) fn handle_for_alias(&self) -> CUstream {
        if !mutant!(CudaAliasUnseen) {
            self.0.exposed.store(true, Ordering::Relaxed);
        }
        self.0.handle.0
    }
    /// Identity, device and kind, as they were when the reference was made.
    pub fn info(&self) -> StreamInfo {
        self.0.info
    }
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.0.device
    }
    pub(super) fn whose(&self) -> &Whose {
        &self.0.whose
    }
    pub(super) fn alias(&self) -> &Mutex<Option<Arc<CudaStream>>> {
        &self.0.alias
    }
    /// Whether no other reference exists, of this library or of cudarc. A weak reference becomes one only for a call of this library. For an unmanaged
    /// stream: whether it has ended; its owner has it until then. A default stream needs no reference.
    pub(super) fn is_last_reference(&self) -> bool {
        if let Some(ended) = &self.0.ended {
            return ended.is_known();
        }
        // First: without another reference of this library, none of cudarc's can be made, and the locks below are free.
        if Arc::strong_count(&self.0) > 1 {
            return false;
        }
        // What was queued before the others were dropped.
        fence(Ordering::Acquire);
        // A weak reference would make one of it again: counted by `get_mut` in one step with the strong ones.
        let alone = |of: &mut Arc<CudaStream>| Arc::get_mut(of).is_some();
        match &self.0.whose {
            Whose::Ours => self.0.alias.lock().as_mut().is_none_or(alone),
            Whose::Adopted(theirs) => alone(&mut theirs.lock()),
            _ => false,
        }
    }
    /// The handle, for a call on this thread.
    #[inline]
    pub(super) fn here(&self, call: Call) -> DriverResult<CUstream> {
        match self.0.whose {
            Whose::PerThread(owner) if owner != current_thread() && !mutant!(CudaAnyThread) => {
                Err(self.elsewhere(call))
            }
            _ => Ok(self.0.handle.0),
        }
    }
    #[cold]
    fn elsewhere(&self, call: Call) -> DriverError {
        let message = format!(
            "{} is another thread's default stream, which here would mean this thread's: use it on its own thread",
            self.0.info.id
        );
        bad_handle(call, message)
    }
    /// Whether other code could have begun a capture on it.
    fn may_capture(&self) -> bool {
        // An unmanaged stream may be gone: it cannot be checked.
        let here = match self.0.whose {
            Whose::PerThread(owner) => owner == current_thread(),
            ref whose => !matches!(whose, Whose::Unmanaged),
        };
        here && (!matches!(self.0.whose, Whose::Ours) || self.is_exposed())
    }
    /// For a stream of this backend: whether any code could have begun a capture on it.
    pub(super) fn is_exposed(&self) -> bool {
        matches!(self.0.whose, Whose::Ours) && self.0.exposed.load(Ordering::Relaxed)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match core::mem::replace(&mut self.whose, Whose::Promised) {
            Whose::Ours => {
                let alias = self.alias.get_mut().take();
                // SAFETY: `create_stream` made it, and this is the last reference.
                #[allow(unsafe_code, reason = "foreign calls")]
                unsafe {
                    self.device.destroy_with_alias(self.handle, alias);
                }
            }
            Whose::Adopted(theirs) => {
                // The last reference destroys the stream, and to do so may leave its context current.
                let theirs = theirs.into_inner();
                if mutant!(CudaContextLeft) {
                    drop(theirs);
                } else {
                    self.device.current_stays(|| drop(theirs));
                }
            }
            Whose::Promised | Whose::Unmanaged | Whose::Legacy | Whose::PerThread(_) => {}
        }
    }
}

/// The streams that a device knows: those to check for captures before a context-wide marker, and, for drivers without ids, which stream has which
/// number. It keeps none of them alive, and has at most twice as many slots as streams were referred to at once.
#[derive(Default)]
pub(super) struct Known {
    live: Mutex<Vec<Weak<Inner>>>,
}

impl Known {
    fn add(&self, stream: &GpuStream) {
        Known::add_to(&mut self.live.lock(), stream);
    }
    fn add_to(live: &mut Vec<Weak<Inner>>, stream: &GpuStream) {
        if live.len() == live.capacity() {
            live.retain(|s| s.strong_count() > 0);
        }
        live.push(Arc::downgrade(&stream.0));
    }
    /// The streams on which a capture may be under way.
    pub(super) fn suspects(&self) -> Vec<GpuStream> {
        let live: Vec<GpuStream> = self.live.lock().iter().filter_map(Weak::upgrade).map(GpuStream).collect();
        live.into_iter().filter(GpuStream::may_capture).collect()
    }
    /// The stream that has this handle, among those that are kept alive here: no other stream can have it meanwhile.
    pub(super) fn held(&self, handle: CUstream) -> Option<StreamId> {
        let live: Vec<Arc<Inner>> = self.live.lock().iter().filter_map(Weak::upgrade).collect();
        let same =
            |s: &&Arc<Inner>| matches!(s.whose, Whose::Ours | Whose::Adopted(_)) && s.handle.0 == handle;
        live.iter().find(same).map(|s| s.info.id)
    }
    /// Adds a reference to a stream, made with the number of a live reference to the same stream, or with a fresh one. Only the references
    /// to a stream remember its number: a table of numbers by thread would grow with each thread that ever
    /// used its default stream. Looked up and added in one hold: one stream has one number, however many threads make references at once.
    fn add_numbered(
        &self,
        handle: CUstream,
        whose: Whose,
        make: impl FnOnce(StreamId, Whose) -> GpuStream,
    ) -> GpuStream {
        let mut live = self.live.lock();
        // Each may be the last reference by the time it goes, and its end speaks to the driver: not under the lock.
        let all: Vec<Arc<Inner>> = live.iter().filter_map(Weak::upgrade).collect();
        let same = all.iter().find(|s| s.handle.0 == handle && s.whose.is_named_as(&whose));
        let stream = make(same.map_or_else(fresh_number, |s| s.info.id), whose);
        Known::add_to(&mut live, &stream);
        drop(live);
        drop(all);
        stream
    }
}

impl Whose {
    /// Whether two with one handle are the same stream, where the handle is all that there is.
    fn is_named_as(&self, other: &Whose) -> bool {
        match (self, other) {
            (Whose::PerThread(one), Whose::PerThread(other)) => one == other,
            // A stream of this backend and an adopted one cannot have the same handle while both exist.
            _ => core::mem::discriminant(self) == core::mem::discriminant(other),
        }
    }
}

/// A number of this library, never given twice in a process.
fn fresh_number() -> StreamId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    StreamId(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn legacy_handle() -> CUstream {
    without_provenance_mut(LEGACY)
}
fn per_thread_handle() -> CUstream {
    without_provenance_mut(PER_THREAD)
}

pub(super) fn capturing(call: Call, message: &'static str) -> DriverError {
    DriverError::new(call.name(), 900, DriverErrorKind::Capturing, message)
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Device {
    /// Whether a stream captures. Harmless at any time. One driver call where the handle is a stream's own.
    ///
    /// # Safety
    /// The stream is alive, and means this thread's if it is a per-thread one.
    #[inline]
    pub(super) unsafe fn captures(&self, stream: CUstream) -> DriverResult<bool> {
        let mut state = 0;
        // SAFETY: the pointer is a local's; the stream is the caller's promise.
        let ask = || unsafe { (self.table().stream_is_capturing)(stream, &raw mut state) };
        match self.query_stream(Call::stream_is_capturing, stream, ask) {
            Ok(()) => Ok(state != 0),
            // The legacy stream would wait for a capturing blocking stream: treated as capturing.
            Err(e) if e.code == CAPTURE_IMPLICIT => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// The driver's id of a stream, where there are ids. One driver call where the handle is a stream's own.
    ///
    /// # Safety
    /// As [`Device::captures`], and the stream does not capture.
    #[inline]
    pub(super) unsafe fn driver_id(&self, stream: CUstream) -> DriverResult<Option<StreamId>> {
        let Some(get_id) = self.table().stream_get_id else { return Ok(None) };
        let mut id = 0;
        // SAFETY: the pointer is a local's; the rest is the caller's promise.
        let ask = || unsafe { get_id(stream, &raw mut id) };
        self.query_stream(Call::stream_get_id, stream, ask)?;
        if mutant!(CudaHandleIsId) {
            id = stream.addr() as u64;
        }
        Ok(Some(StreamId(id)))
    }

    /// Makes a driver call that reads something of a stream and changes nothing. A default stream is the current context's, so this context is bound
    /// for it. Any other handle identifies the stream by itself, whatever context is current: the call is made at once, which
    /// saves the look-up of the current context, as expensive as the call. A driver that needs a context nevertheless returns
    /// 201 (or 709 if the current context was destroyed, as cudarc leaves it behind), and is called again with this context bound.
    #[inline]
    fn query_stream(&self, call: Call, stream: CUstream, mut ask: impl FnMut() -> Code) -> DriverResult<()> {
        if stream.addr() > PER_THREAD {
            let code = ask();
            if !matches!(code, INVALID_CONTEXT | CONTEXT_IS_DESTROYED) {
                return self.done(call, code);
            }
            self.calls.count(call);
        }
        let bound = self.bind()?;
        let code = ask();
        drop(bound);
        self.done(call, code)
    }

    /// Which device a stream is on, and whether it is of this very context.
    ///
    /// # Safety
    /// As [`Device::driver_id`].
    unsafe fn home(&self, stream: CUstream) -> DriverResult<(DeviceId, bool)> {
        let mut context = core::ptr::null_mut();
        let bound = self.bind()?;
        // SAFETY: the pointer is a local's; the stream is the caller's promise.
        let code = unsafe { (self.table().stream_get_ctx)(stream, &raw mut context) };
        self.done(Call::stream_get_ctx, code)?;
        drop(bound);
        if context == self.context.0 {
            return Ok((self.id, true));
        }
        let there: Bound<'_> = self.bind_context(Handle(context))?;
        let mut ordinal = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.table().ctx_get_device)(&raw mut ordinal) };
        self.done(Call::ctx_get_device, code)?;
        drop(there);
        Ok((DeviceId(ordinal.cast_unsigned()), false))
    }

    /// # Safety
    /// As [`Device::driver_id`].
    unsafe fn kind(&self, stream: CUstream) -> DriverResult<StreamKind> {
        let mut flags = 0;
        let bound = self.bind()?;
        // SAFETY: the pointer is a local's; the stream is the caller's promise.
        let code = unsafe { (self.table().stream_get_flags)(stream, &raw mut flags) };
        self.done(Call::stream_get_flags, code)?;
        drop(bound);
        Ok(if flags & NON_BLOCKING != 0 { StreamKind::NonBlocking } else { StreamKind::Blocking })
    }
}

#[allow(unsafe_code, reason = "foreign calls, and promises about streams of other code")]
impl Cuda {
    /// Makes a stream of this backend. Its identity is certain: no other stream has its handle yet.
    pub(super) fn new_stream(&self, options: StreamOptions) -> DriverResult<GpuStream> {
        let device = &self.device;
        let (flags, kind) = if options.blocking {
            (0, StreamKind::Blocking)
        } else {
            (NON_BLOCKING, StreamKind::NonBlocking)
        };
        device.sweep_parked();
        let handle =
            device.make_stream(if mutant!(CudaBlockingStream) { 0 } else { flags }, options.priority)?;
        // SAFETY: made above.
        let id = match unsafe { device.driver_id(handle.0) } {
            Ok(id) => id.unwrap_or_else(fresh_number),
            Err(e) => {
                // SAFETY: made above, and nothing uses it.
                unsafe { device.destroy_stream(handle) };
                return Err(e);
            }
        };
        Ok(self.reference(handle.0, StreamInfo::new(id, device.id, kind), Whose::Ours))
    }

    fn reference(&self, handle: CUstream, info: StreamInfo, whose: Whose) -> GpuStream {
        let ended = self.device.unmanaged.met(handle.addr(), info.id, info.unmanaged);
        let stream = self.unlisted(handle, info, whose, ended);
        self.device.known.add(&stream);
        stream
    }

    /// A reference with the driver's id in `info`, or a number of this library if there is none.
    fn numbered(&self, handle: CUstream, id: Option<StreamId>, info: StreamInfo, whose: Whose) -> GpuStream {
        let numbered = |id| StreamInfo::new(id, info.device, info.kind).unmanaged(info.unmanaged);
        if let Some(id) = id {
            return self.reference(handle, numbered(id), whose);
        }
        let make = |id, whose| self.unlisted(handle, numbered(id), whose, None);
        self.device.known.add_numbered(handle, whose, make)
    }

    fn unlisted(
        &self,
        handle: CUstream,
        info: StreamInfo,
        whose: Whose,
        ended: Option<Arc<Ended>>,
    ) -> GpuStream {
        let device = Arc::clone(&self.device);
        let (exposed, alias) = (AtomicBool::new(false), Mutex::new(None));
        GpuStream(Arc::new(Inner { device, handle: Handle(handle), info, whose, exposed, alias, ended }))
    }

    /// A stream that is alive for as long as the reference: with no identity, and in no list that others could find it in.
    pub(super) fn passing_reference(&self, handle: CUstream) -> GpuStream {
        let kind = StreamKind::Blocking;
        let info = StreamInfo::new(StreamId(u64::MAX), self.device.id, kind).unmanaged(true);
        self.unlisted(handle, info, Whose::Promised, None)
    }

    /// A stream of cudarc, kept until the last clone of the reference is dropped: so an allocator keeps it until its
    /// pool has no live allocation and no use is open. Adopting one stream twice gives the same identity. Its errors
    /// stay in cudarc's state, which nothing here touches. A default stream is recognised, and a per-thread one is
    /// the calling thread's.
    ///
    /// # Errors
    /// The stream captures (its identity cannot be queried), or belongs to another context of this device; the driver's. A
    /// stream of another device is no error here: its [`info`](GpuStream::info) says so, and allocators refuse it.
    pub fn adopt(&self, stream: Arc<CudaStream>) -> DriverResult<GpuStream> {
        let adopted = self.adopt_shared(&stream);
        // Not kept, it may be the last reference, which makes its context current.
        self.current_stays(|| drop(stream));
        adopted
    }

    fn adopt_shared(&self, stream: &Arc<CudaStream>) -> DriverResult<GpuStream> {
        let handle = stream.cu_stream();
        if handle.addr() <= PER_THREAD && stream.context().cu_ctx() != self.device.context.0 {
            return Err(bad_handle(
                Call::stream_get_ctx,
                "a default stream of another context: adopt it from a Cuda of that context (Cuda::from_context)",
            ));
        }
        match handle.addr() {
            0 | LEGACY => self.legacy_stream(),
            PER_THREAD => self.per_thread_stream(),
            // SAFETY: the `Arc` keeps the stream alive, and goes into the reference.
            _ => unsafe { self.borrow(handle, Whose::Adopted(Mutex::new(Arc::clone(stream)))) },
        }
    }

    /// A stream by its native handle, which other code made and will destroy. 0, 1 and 2 mean the default streams.
    ///
    /// # Errors
    /// As [`Cuda::adopt`]; not supported where the driver has no stream ids (before CUDA 12), because a handle's value
    /// is reused and nothing would distinguish the two streams.
    ///
    /// # Safety
    /// The handle names a stream that stays alive until the last clone of the reference is dropped: for an allocator's,
    /// until its pool is closed. If that cannot be promised, do not adopt it:
    /// `free_unknown` serves memory that such a stream used.
    pub unsafe fn raw_stream(&self, handle: CUstream) -> DriverResult<GpuStream> {
        match handle.addr() {
            0 | LEGACY => self.legacy_stream(),
            PER_THREAD => self.per_thread_stream(),
            _ if self.device.table().stream_get_id.is_none() => Err(lacking(
                Call::stream_get_id,
                "this driver has no stream ids, so that a raw handle has no identity: adopt the stream's Arc, or declare it permanent",
            )),
            // SAFETY: passed on from the caller.
            _ => unsafe { self.borrow(handle, Whose::Promised) },
        }
    }

    /// A stream by its native handle ([`Cuda::raw_stream`]) that is never destroyed: the pool streams of frameworks.
    /// Works on every driver.
    ///
    /// # Errors
    /// As [`Cuda::adopt`].
    ///
    /// # Safety
    /// The handle names a stream that lives as long as the process.
    pub unsafe fn permanent_stream(&self, handle: CUstream) -> DriverResult<GpuStream> {
        match handle.addr() {
            0 | LEGACY => self.legacy_stream(),
            PER_THREAD => self.per_thread_stream(),
            // SAFETY: passed on from the caller.
            _ => unsafe { self.borrow(handle, Whose::Promised) },
        }
    }

    /// A stream by its native handle ([`Cuda::raw_stream`]) that its owner may destroy at any time, work pending or not:
    /// Python objects. The reference outlives it without harm. Use the reference only in calls that name the stream while it is
    /// alive: such calls make markers for what it holds by then, and nothing else does. What was freed on it, or behind it, since the last
    /// marker serves the stream itself, and others when it is named again or the program synchronises (`held_back`). [`Cuda::raw_id`] tells
    /// whether the handle still is this stream's: after its end another stream may have it. From the first such stream on captures are
    /// expected ([`Cuda::expect_captures`]), unless there are none ([`Cuda::promise_no_captures`]).
    ///
    /// # Errors
    /// As [`Cuda::raw_stream`].
    ///
    /// # Safety
    /// The handle names a stream that is alive during this call and during every later call that receives the reference.
    pub unsafe fn unmanaged_stream(&self, handle: CUstream) -> DriverResult<GpuStream> {
        match handle.addr() {
            0 | LEGACY => self.legacy_stream(),
            PER_THREAD => self.per_thread_stream(),
            _ if self.device.table().stream_get_id.is_none() => Err(lacking(
                Call::stream_get_id,
                "this driver has no stream ids, so that a stream that ends unannounced cannot be followed: declare it permanent",
            )),
            _ => {
                if !self.device.captures_nowhere.load(Ordering::Relaxed) {
                    self.expect_captures();
                }
                // SAFETY: passed on from the caller.
                unsafe { self.borrow(handle, Whose::Unmanaged) }
            }
        }
    }

    /// Whether a raw stream captures, or is as good as captured: the legacy default stream where a blocking one does.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As for [`Cuda::raw_id`].
    pub unsafe fn raw_captures(&self, handle: CUstream) -> DriverResult<bool> {
        // SAFETY: passed on from the caller.
        unsafe { self.device.captures(handle) }
    }

    /// The identity of a raw stream, by two calls of the driver: whether it captures, and its id.
    ///
    /// # Errors
    /// It captures, and a query would destroy that; not supported where the driver has no stream ids; the driver's.
    ///
    /// # Safety
    /// The handle names a stream that is alive, and means this thread's if it is a per-thread default stream.
    pub unsafe fn raw_id(&self, handle: CUstream) -> DriverResult<StreamId> {
        // SAFETY: alive, as the caller promises.
        if unsafe { self.device.captures(handle)? } {
            return Err(capturing(
                Call::stream_get_id,
                "the stream is capturing a graph, and querying its id would end that capture",
            ));
        }
        // SAFETY: alive and not capturing.
        let id = unsafe { self.device.driver_id(handle)? };
        id.ok_or_else(|| lacking(Call::stream_get_id, "this driver has no stream ids"))
    }

    /// # Safety
    /// The stream is alive, no default stream, and stays alive as `whose` says.
    unsafe fn borrow(&self, handle: CUstream, whose: Whose) -> DriverResult<GpuStream> {
        let device = &self.device;
        // SAFETY: alive, as the caller promises.
        if unsafe { device.captures(handle)? } {
            return Err(capturing(
                Call::stream_get_id,
                "the stream is capturing a graph, and querying its id would end that capture: adopt it before the capture",
            ));
        }
        // SAFETY: alive and not capturing.
        let (home, same_context) = unsafe { device.home(handle)? };
        if home == device.id && !same_context {
            return Err(bad_handle(
                Call::stream_get_ctx,
                "the stream is of another context of this device: use a Cuda of that context (Cuda::from_context)",
            ));
        }
        // SAFETY: alive and not capturing.
        let id = unsafe { device.driver_id(handle)? };
        // SAFETY: alive and not capturing.
        let kind = unsafe { device.kind(handle)? };
        let unmanaged = matches!(whose, Whose::Unmanaged);
        Ok(self.numbered(handle, id, StreamInfo::new(StreamId(0), home, kind).unmanaged(unmanaged), whose))
    }

    /// The legacy default stream of this context: ordered with all blocking streams, in both directions.
    ///
    /// # Errors
    /// A blocking stream captures; the driver's.
    pub fn legacy_stream(&self) -> DriverResult<GpuStream> {
        let kind = StreamKind::LegacyDefault;
        self.default_stream(legacy_handle(), kind, Whose::Legacy)
    }

    /// The default stream of the calling thread. The reference may travel and be dropped anywhere; to use it on another
    /// thread is an error, because there the same handle means another stream.
    ///
    /// # Errors
    /// The stream captures; the driver's.
    pub fn per_thread_stream(&self) -> DriverResult<GpuStream> {
        let kind = StreamKind::PerThreadDefault;
        self.default_stream(per_thread_handle(), kind, Whose::PerThread(current_thread()))
    }

    fn default_stream(&self, handle: CUstream, kind: StreamKind, whose: Whose) -> DriverResult<GpuStream> {
        let device = &self.device;
        // SAFETY: default streams are always alive, and this one is this thread's.
        if unsafe { device.captures(handle)? } {
            return Err(capturing(
                Call::stream_get_id,
                "the default stream's id cannot be queried while a capture involves it: make the reference before",
            ));
        }
        // SAFETY: as above, and it does not capture.
        let id = unsafe { device.driver_id(handle)? };
        let info = StreamInfo::new(StreamId(0), device.id, kind);
        Ok(self.numbered(handle, id, info, whose))
    }
}
