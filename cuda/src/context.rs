//! One CUDA context, shared by everything that this backend makes in it: retained once, bound on every path that calls the driver, after
//! which the previous current context is restored.
//!
//! Two [`Cuda`](super::Cuda) values of one context share one [`Device`], found in a process-wide table, so that their
//! allocators share timelines. The context lives as long as anything made from it: memory, streams and events hold the
//! device. This file does not know what is done in a context.
//!
//! Binding costs one driver call (12 ns measured) if the context is current already, which is the common case; otherwise it
//! is pushed and, at the end of the call, popped. Setting it and leaving it set would be cheaper and would surprise a
//! program that works with two contexts in one thread.

use super::ended::Unmanaged;
use super::kept::{Kernels, Loaded};
use super::memory::AsyncPool;
use super::pages::Registering;
use super::probe::{Api, Code, api};
use super::ranges::Ranges;
use super::stream::Known;
use super::table::{AllocationProp, Call, Calls, Handle, Table, check};
use core::ffi::c_int;
use core::fmt;
use core::sync::atomic::AtomicBool;
use cudarc::driver::result::ctx;
use cudarc::driver::sys::{CUcontext, CUctx_st, CUstream, CUstream_st};
use cudarc::driver::{CudaContext, CudaStream};
use millpond_driver::sync::{Arc, Mutex, Weak};
use millpond_driver::units::DeviceId;
use millpond_driver::{DeviceSlot, DriverResult, Properties};
use millpond_driver::{DriverError, Unavailable};
use std::collections::VecDeque;

/// How many errors that no call could return are kept: the newest.
const DEFERRED_KEPT: usize = 64;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY: c_int = 102;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
const FILE_DESCRIPTORS: c_int = 103;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
const MAPPED_RDMA: c_int = 110;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED`.
const FABRIC: c_int = 128;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`.
const MEMORY_POOLS: c_int = 115;
/// `CU_STREAM_NON_BLOCKING`.
pub(super) const NON_BLOCKING: u32 = 1;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;

/// What keeps the context alive.
enum Keep {
    /// The device's primary context, retained by us.
    Primary,
    /// Other code's, held by a counted reference.
    Theirs(Arc<CudaContext>),
}

/// One context and what our values in it share.
pub(super) struct Device {
    pub(super) api: &'static Api,
    pub(super) id: DeviceId,
    /// The driver's number of the device.
    pub(super) ordinal: c_int,
    pub(super) context: Handle<CUctx_st>,
    pub(super) slot: DeviceSlot,
    pub(super) calls: Calls,
    pub(super) ranges: Ranges<AsyncPool>,
    pub(super) registering: Registering,
    pub(super) known: Known,
    pub(super) unmanaged: Unmanaged,
    /// Whether other code may capture: [`Cuda::expect_captures`](super::Cuda::expect_captures) was called.
    pub(super) expects_captures: AtomicBool,
    /// Whether no other code captures: [`Cuda::promise_no_captures`](super::Cuda::promise_no_captures) was
    /// called.
    pub(super) captures_nowhere: AtomicBool,
    pub(super) kernels: Mutex<Option<Arc<Kernels>>>,
    /// Programs' kernels.
    pub(super) loaded: Mutex<Loaded>,
    /// Bytes; `None` where the device has no virtual memory management.
    pub(super) granularity: Option<u64>,
    /// Which properties physical memory may have.
    pub(super) may: Properties,
    pub(super) has_pools: bool,
    /// A stream for our own fills; made when first needed.
    internal: Mutex<Option<Handle<CUstream_st>>>,
    /// cudarc's value of a context that this backend opened, once it was requested, and streams whose aliases are in use.
    pub(super) alias: Mutex<Option<Arc<CudaContext>>>,
    pub(super) parked: Parked,
    /// A stream of cudarc's in that context, which does nothing: it keeps cudarc's tracking on (hazard 2).
    pub(super) anchor: Mutex<Option<Arc<CudaStream>>>,
    deferred: Mutex<Deferred>,
    keep: Keep,
}

/// Streams of this backend, to be destroyed once no alias of them is left.
#[derive(Default)]
pub(super) struct Parked(pub(super) Mutex<Vec<(Arc<CudaStream>, Handle<CUstream_st>)>>);

/// Errors that no call could return: the newest ones, and how many older ones were dropped.
#[derive(Default)]
struct Deferred {
    kept: VecDeque<DriverError>,
    /// The newest that was left out.
    last: Option<DriverError>,
    left_out: u64,
}

impl Deferred {
    fn keep(&mut self, error: DriverError) {
        if self.kept.len() == DEFERRED_KEPT {
            self.last = self.kept.pop_front();
            self.left_out += 1;
        }
        self.kept.push_back(error);
    }
    /// In order. In front, with the call and the code of the newest of them, how many were left out.
    fn all(&self) -> Vec<DriverError> {
        let before = self.last.as_ref().map(|last| {
            let message =
                format!("{} errors before these were left out; of this one: {}", self.left_out, last.message);
            DriverError::new(last.call, last.code, last.kind, message)
        });
        before.into_iter().chain(self.kept.iter().cloned()).collect()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, context {:?})", self.id, self.context)
    }
}

/// The contexts in use. A context's handle is its identity as long as something holds it.
static OPEN: Mutex<Vec<(usize, Weak<Device>)>> = Mutex::new(Vec::new());

/// How many devices the driver shows this process.
#[allow(unsafe_code, reason = "foreign calls")]
pub(super) fn count(api: &Api) -> Result<u32, Unavailable> {
    let mut found = 0;
    // SAFETY: the pointer is a local's.
    let code = unsafe { (api.table.device_get_count)(&raw mut found) };
    check(&api.table, Call::device_get_count, code)?;
    Ok(u32::try_from(found).unwrap_or(0))
}

/// The driver's own answer that there is no device, from its very start.
pub(super) fn none_at_all(e: Unavailable, requested: u32) -> Unavailable {
    match e {
        Unavailable::Driver(d) if d.code == 100 => Unavailable::NoDevice { requested, found: 0 },
        other => other,
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Device {
    /// The device's primary context.
    pub(super) fn open(requested: u32) -> Result<Arc<Device>, Unavailable> {
        let api = api().map_err(|e| none_at_all(e, requested))?;
        let found = count(api).map_err(|e| none_at_all(e, requested))?;
        let Some(ordinal) = c_int::try_from(requested).ok().filter(|_| requested < found) else {
            return Err(Unavailable::NoDevice { requested, found });
        };
        let ordinal = device_of(api, ordinal)?;
        let mut context = core::ptr::null_mut();
        // SAFETY: the pointer is a local's and the device is one of the driver's.
        let code = unsafe { (api.table.primary_retain)(&raw mut context, ordinal) };
        check(&api.table, Call::primary_retain, code)?;
        Device::shared(api, DeviceId(requested), ordinal, Handle(context), Keep::Primary)
    }

    /// A context that other code made.
    pub(super) fn of_context(theirs: Arc<CudaContext>) -> Result<Arc<Device>, Unavailable> {
        let requested = theirs.ordinal() as u32;
        let found = api().and_then(|api| Ok((api, device_of(api, requested.cast_signed())?)));
        let (api, ordinal) = match found {
            Ok(found) => found,
            Err(e) => {
                let_go(theirs);
                return Err(e);
            }
        };
        let context = Handle(theirs.cu_ctx());
        Device::shared(api, DeviceId(requested), ordinal, context, Keep::Theirs(theirs))
    }

    /// The value of this context, the one there is or a new one.
    fn shared(
        api: &'static Api,
        id: DeviceId,
        ordinal: c_int,
        context: Handle<CUctx_st>,
        keep: Keep,
    ) -> Result<Arc<Device>, Unavailable> {
        let mut open = OPEN.lock();
        let here =
            |(at, weak): &(usize, Weak<Device>)| (*at == context.number()).then(|| weak.upgrade()).flatten();
        if let Some(device) = open.iter().find_map(here) {
            // It holds the context already: the second hold goes back.
            match keep {
                Keep::Primary => device.release_primary(),
                Keep::Theirs(theirs) => let_go(theirs),
            }
            return Ok(device);
        }
        open.retain(|(_, weak)| weak.strong_count() > 0);
        let mut device = Device {
            api,
            id,
            ordinal,
            context,
            slot: DeviceSlot::default(),
            calls: Calls::new(),
            ranges: Ranges::default(),
            registering: Registering::default(),
            known: Known::default(),
            unmanaged: Unmanaged::default(),
            expects_captures: AtomicBool::new(false),
            captures_nowhere: AtomicBool::new(false),
            kernels: Mutex::new(None),
            loaded: Mutex::default(),
            granularity: None,
            may: Properties::default(),
            has_pools: false,
            internal: Mutex::new(None),
            alias: Mutex::new(None),
            parked: Parked::default(),
            anchor: Mutex::new(None),
            deferred: Mutex::default(),
            keep,
        };
        device.granularity = device.query_granularity()?;
        if device.granularity.is_some() {
            // A driver that does not know the question has none of it.
            let has = |which| device.attribute(which).is_ok_and(|value| value != 0);
            let file_descriptor = cfg!(unix) && api.table.mem_export.is_some() && has(FILE_DESCRIPTORS);
            device.may = Properties::new(file_descriptor, has(FABRIC), has(MAPPED_RDMA));
        }
        device.has_pools = device.attribute(MEMORY_POOLS)? != 0;
        let device = Arc::new(device);
        open.push((context.number(), Arc::downgrade(&device)));
        Ok(device)
    }

    /// cudarc's value that this was made from.
    pub(super) fn theirs(&self) -> Option<&Arc<CudaContext>> {
        match &self.keep {
            Keep::Theirs(theirs) => Some(theirs),
            Keep::Primary => None,
        }
    }

    pub(super) fn table(&self) -> &Table {
        &self.api.table
    }

    /// Counts a call that was made, and makes its code a result.
    #[inline]
    pub(super) fn done(&self, call: Call, code: Code) -> DriverResult<()> {
        self.calls.count(call);
        check(self.table(), call, code)
    }

    /// Makes the context current until the guard is dropped.
    #[inline]
    pub(super) fn bind(&self) -> DriverResult<Bound<'_>> {
        self.bind_context(self.context)
    }

    /// Makes another context than ours current until the guard is dropped.
    pub(super) fn bind_context(&self, context: Handle<CUctx_st>) -> DriverResult<Bound<'_>> {
        let current = self.current()?;
        if current.0 == context.0 {
            return Ok(Bound(None));
        }
        // SAFETY: the context is alive: ours is kept, another one is its stream's.
        let code = unsafe { (self.table().ctx_push)(context.0) };
        self.done(Call::ctx_push, code)?;
        Ok(Bound(Some(self)))
    }

    /// What is current on this thread; null for nothing.
    pub(super) fn current(&self) -> DriverResult<Handle<CUctx_st>> {
        let mut current = core::ptr::null_mut();
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.table().ctx_get_current)(&raw mut current) };
        self.done(Call::ctx_get_current, code)?;
        Ok(Handle(current))
    }

    /// Runs calls of cudarc's, which leave their context current, and puts back what was.
    pub(super) fn current_stays<R>(&self, calls: impl FnOnce() -> R) -> R {
        // Whether they return or panic.
        let _back = PutBack(self, self.current());
        calls()
    }

    /// Restores the current context after other code may have changed it.
    fn restore(&self, before: Handle<CUctx_st>) {
        if self.current().is_ok_and(|now| now.0 != before.0) {
            // SAFETY: it was current on this thread before; null means none.
            let code = unsafe { (self.table().ctx_set_current)(before.0) };
            if let Err(e) = self.done(Call::ctx_set_current, code) {
                self.defer(e);
            }
        }
    }

    pub(super) fn attribute(&self, which: c_int) -> DriverResult<c_int> {
        let mut value = 0;
        // SAFETY: the pointer is a local's, the device is one of the driver's.
        let code = unsafe { (self.table().device_get_attribute)(&raw mut value, which, self.ordinal) };
        self.done(Call::device_get_attribute, code)?;
        Ok(value)
    }

    fn query_granularity(&self) -> DriverResult<Option<u64>> {
        if self.attribute(VIRTUAL_MEMORY)? == 0 {
            return Ok(None);
        }
        let bound = self.bind()?;
        let (mut bytes, prop) = (0_usize, AllocationProp::device(self.ordinal));
        // SAFETY: both pointers are to locals; 0 selects the minimum.
        let code = unsafe { (self.table().mem_granularity)(&raw mut bytes, &raw const prop, 0) };
        self.done(Call::mem_granularity, code)?;
        drop(bound);
        Ok(Some(bytes as u64))
    }

    /// A non-blocking stream of this backend, for fills that belong to no user's stream.
    pub(super) fn internal_stream(&self) -> DriverResult<CUstream> {
        let mut internal = self.internal.lock();
        if let Some(stream) = *internal {
            return Ok(stream.0);
        }
        let stream = self.make_stream(NON_BLOCKING, 0)?;
        *internal = Some(stream);
        Ok(stream.0)
    }

    pub(super) fn make_stream(&self, flags: u32, priority: i32) -> DriverResult<Handle<CUstream_st>> {
        let bound = self.bind()?;
        let mut stream = core::ptr::null_mut();
        // SAFETY: the pointer is a local's.
        let code = unsafe { (self.table().stream_create)(&raw mut stream, flags, priority) };
        self.done(Call::stream_create, code)?;
        drop(bound);
        Ok(Handle(stream))
    }

    /// Destroys a stream of this backend, which returns at once whatever is pending.
    ///
    /// # Safety
    /// [`Device::make_stream`] made it, and nothing uses the handle any more.
    pub(super) unsafe fn destroy_stream(&self, stream: Handle<CUstream_st>) {
        self.quietly(Call::stream_destroy, |table| {
            // SAFETY: passed on from the caller.
            unsafe { (table.stream_destroy)(stream.0) }
        });
    }

    /// Blocks the host until a stream is idle.
    ///
    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn wait_for_stream(&self, stream: CUstream) -> DriverResult<()> {
        let bound = self.bind()?;
        // SAFETY: passed on from the caller.
        let code = unsafe { (self.table().stream_synchronize)(stream) };
        self.done(Call::stream_synchronize, code)?;
        drop(bound);
        Ok(())
    }

    /// A destructor's call: bound, counted, and its error kept for the next report. It is made once, so a context that could
    /// not be bound is tried again: otherwise what it gives back would leak, and no later call could free it.
    pub(super) fn quietly(&self, call: Call, verb: impl FnOnce(&Table) -> Code) {
        let result = self.bind().or_else(|_| self.bind()).and_then(|bound| {
            let code = verb(self.table());
            drop(bound);
            self.done(call, code)
        });
        if let Err(e) = result {
            self.defer(e);
        }
    }

    /// Keeps an error that no call can return, unless it only says that the driver, or the context, is gone: then the
    /// process is ending, or everything went with the context.
    pub(super) fn defer(&self, error: DriverError) {
        if means_driver_is_gone(&error) {
            return;
        }
        self.deferred.lock().keep(error);
    }

    pub(super) fn deferred(&self) -> Vec<DriverError> {
        self.deferred.lock().all()
    }

    fn release_primary(&self) {
        // SAFETY: each call gives back one retain of this backend, made by `open` alone.
        let code = unsafe { (self.table().primary_release)(self.ordinal) };
        if let Err(e) = self.done(Call::primary_release, code) {
            self.defer(e);
        }
    }
}

/// Whether an error says no more than that there is nothing left to destroy: 4 the driver was shut down, 709 the context
/// was destroyed.
pub(super) fn means_driver_is_gone(error: &DriverError) -> bool {
    matches!(error.code, 4 | 709)
}

#[allow(unsafe_code, reason = "foreign calls")]
fn device_of(api: &Api, requested: c_int) -> DriverResult<c_int> {
    let mut ordinal = 0;
    // SAFETY: the pointer is a local's.
    let code = unsafe { (api.table.device_get)(&raw mut ordinal, requested) };
    check(&api.table, Call::device_get, code)?;
    Ok(ordinal)
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Drop for Device {
    fn drop(&mut self) {
        let (kernels, loaded) = (self.kernels.get_mut().take(), core::mem::take(self.loaded.get_mut()));
        {
            // The last value of a context may be dropped while other code captures in it.
            let _mode = Mode::relaxed(self);
            if let Some(kernels) = kernels {
                kernels.unload(self);
            }
            loaded.unload(self);
        }
        if let Some(stream) = self.internal.get_mut().take() {
            // SAFETY: made by `internal_stream`; the device is being dropped, so no other reference exists.
            unsafe { self.destroy_stream(stream) };
        }
        AsyncPool::destroy_all(self.ranges.take_pooled(), self);
        self.sweep_parked();
        let theirs = (self.anchor.get_mut().take(), self.alias.get_mut().take());
        // The last references destroy the stream and give the context back, and to do so make it current.
        match core::mem::replace(&mut self.keep, Keep::Primary) {
            Keep::Primary => {
                if let (Some(_), _) | (_, Some(_)) = &theirs {
                    self.current_stays(|| drop(theirs));
                }
                self.release_primary();
            }
            Keep::Theirs(context) => self.current_stays(|| drop((theirs, context))),
        }
    }
}

/// Drops a cudarc context when this backend has no value for it, or another one: its last reference makes it current
/// to release it.
fn let_go(theirs: Arc<CudaContext>) {
    current_stays(|| drop(theirs));
}

/// Runs calls of cudarc that leave their context current, when this backend has no value for that context, and restores the previous one. It is read
/// through cudarc, because this backend may have no driver at all.
#[doc(hidden)]
#[allow(unsafe_code, reason = "foreign calls")]
pub fn current_stays<R>(calls: impl FnOnce() -> R) -> R {
    /// Whether they return or panic.
    struct Back(Result<Option<CUcontext>, cudarc::driver::DriverError>);
    impl Drop for Back {
        fn drop(&mut self) {
            if let Ok(before) = self.0
                && ctx::get_current().is_ok_and(|now| now != before)
            {
                // SAFETY: it was current on this thread before; null means none.
                let _ = unsafe { ctx::set_current(before.unwrap_or(core::ptr::null_mut())) };
            }
        }
    }
    let _back = Back(ctx::get_current());
    calls()
}

/// The context that was current and is restored by the drop, or why it could not be read.
struct PutBack<'a>(&'a Device, DriverResult<Handle<CUctx_st>>);

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        match core::mem::replace(&mut self.1, Ok(Handle(core::ptr::null_mut()))) {
            Ok(before) => self.0.restore(before),
            Err(e) => self.0.defer(e),
        }
    }
}

/// The context is current on this thread; what was, comes back when this is dropped.
#[must_use = "the context is current until this is dropped"]
pub(super) struct Bound<'a>(Option<&'a Device>);

impl Drop for Bound<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(device) = self.0 {
            pop(device);
        }
    }
}

#[cold]
#[allow(unsafe_code, reason = "foreign calls")]
fn pop(device: &Device) {
    let mut popped = core::ptr::null_mut();
    // SAFETY: the pointer is a local's; the push was made by this thread, because the guard is not Send.
    let code = unsafe { (device.table().ctx_pop)(&raw mut popped) };
    if let Err(e) = device.done(Call::ctx_pop, code) {
        device.defer(e);
    }
}

/// The thread's capture mode, put back when dropped, also on unwind.
#[must_use = "the mode lasts until this is dropped"]
pub(super) struct Mode<'a> {
    device: &'a Device,
    before: Option<i32>,
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Mode<'_> {
    pub(super) fn relaxed(device: &Device) -> Mode<'_> {
        if mutant!(CudaNeverRelaxed) {
            return Mode { device, before: None };
        }
        Mode { device, before: exchange(device, RELAXED) }
    }
}

/// Sets this thread's mode and returns the one before. `None`, and an error kept, where the driver refuses: then the
/// calls that follow run in the mode they would have had.
#[allow(unsafe_code, reason = "foreign calls")]
fn exchange(device: &Device, mode: i32) -> Option<i32> {
    let mut mode = mode;
    // SAFETY: the pointer is a local's, read and written by the call.
    let code = unsafe { (device.table().exchange_capture_mode)(&raw mut mode) };
    match device.done(Call::exchange_capture_mode, code) {
        Ok(()) => Some(mode),
        Err(e) => {
            device.defer(e);
            None
        }
    }
}

impl Drop for Mode<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before
            && !mutant!(CudaStaysRelaxed)
        {
            exchange(self.device, before);
        }
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Device {
    /// Destroys the parked streams of which no alias is left.
    pub(super) fn sweep_parked(&self) {
        let mut free = Vec::new();
        self.parked.0.lock().retain_mut(|(alias, stream)| {
            // The only reference, with no weak one to make more from.
            let shared = Arc::get_mut(alias).is_none();
            if !shared {
                free.push(*stream);
            }
            shared
        });
        for stream in free {
            // SAFETY: parked by the last reference of this backend, and the alias is gone: no copy of the handle is left.
            unsafe { self.destroy_stream(stream) };
        }
    }
}
