//! A driver that forgets waits: a wait succeeds and orders nothing. An allocator on it hands out bytes too early, so a
//! test that passes on it proves nothing. It does not know which driver it wraps.

use millpond::DriverError;
use millpond::driver::{
    Copies, DeviceSlot, Driver, DriverResult, Fences, Host, HostKind, Mapping, Memory, MemoryInfo, Note,
    StreamInfo, StreamOptions,
};
use millpond::units::{Addr, DeviceId};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// A driver without waits.
#[derive(Clone)]
pub struct WithoutWaits<D> {
    inner: D,
    /// Its allocators share nothing with the inner driver's: their markers are others.
    slot: Arc<DeviceSlot>,
}

impl<D> WithoutWaits<D> {
    pub fn new(inner: D) -> WithoutWaits<D> {
        WithoutWaits { inner, slot: Arc::default() }
    }
}

#[allow(unsafe_code, reason = "passes the inner driver's contract on")]
// SAFETY: the inner driver's contract.
unsafe impl<D: Driver> Memory for WithoutWaits<D> {
    fn device(&self) -> DeviceId {
        self.inner.device()
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.inner.memory_info()
    }
    fn allocate_raw(&self, bytes: u64) -> DriverResult<Addr> {
        self.inner.allocate_raw(bytes)
    }
    fn free_waits_for_device(&self) -> bool {
        self.inner.free_waits_for_device()
    }
    unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.free_raw(addr, bytes) }
    }
    fn drop_failed(&self, error: DriverError) {
        self.inner.drop_failed(error);
    }
    fn deferred(&self) -> Vec<DriverError> {
        self.inner.deferred()
    }
}

#[allow(unsafe_code, reason = "it has no virtual memory")]
// SAFETY: it maps nothing.
unsafe impl<D: Driver> Mapping for WithoutWaits<D> {
    type Handle = ();
}

#[allow(unsafe_code, reason = "passes the inner driver's contract on")]
// SAFETY: the inner driver's contract.
unsafe impl<D: Driver> Host for WithoutWaits<D> {
    fn pin_raw(&self, bytes: u64, kind: HostKind) -> DriverResult<NonNull<u8>> {
        self.inner.pin_raw(bytes, kind)
    }
    unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.unpin_raw(ptr, bytes) }
    }
    fn unpin_waits_for_device(&self) -> bool {
        self.inner.unpin_waits_for_device()
    }
}

#[allow(unsafe_code, reason = "breaks the contract of waits, on purpose")]
// SAFETY: none, since `wait` orders nothing. The memory belongs to a test, which expects wrong contents.
unsafe impl<D: Driver> Fences for WithoutWaits<D> {
    type Stream = D::Stream;
    type Event = D::Event;

    fn create_stream(&self, options: StreamOptions) -> DriverResult<D::Stream> {
        self.inner.create_stream(options)
    }
    fn stream_info(&self, stream: &D::Stream) -> DriverResult<StreamInfo> {
        self.inner.stream_info(stream)
    }
    fn is_capturing(&self, stream: &D::Stream) -> DriverResult<bool> {
        self.inner.is_capturing(stream)
    }
    fn is_last_reference(&self, stream: &D::Stream) -> bool {
        self.inner.is_last_reference(stream)
    }
    fn create_event(&self) -> DriverResult<D::Event> {
        self.inner.create_event()
    }
    fn record(&self, event: &D::Event, stream: &D::Stream) -> DriverResult<()> {
        self.inner.record(event, stream)
    }
    fn record_context(&self, event: &D::Event) -> DriverResult<()> {
        self.inner.record_context(event)
    }
    fn query(&self, event: &D::Event) -> DriverResult<bool> {
        self.inner.query(event)
    }
    fn wait(&self, _stream: &D::Stream, _event: &D::Event) -> DriverResult<()> {
        Ok(())
    }
    fn synchronize_stream(&self, stream: &D::Stream) -> DriverResult<()> {
        self.inner.synchronize_stream(stream)
    }
    fn synchronize_device(&self) -> DriverResult<()> {
        self.inner.synchronize_device()
    }
    fn wait_event(&self, event: &D::Event, limit: Duration) -> DriverResult<bool> {
        self.inner.wait_event(event, limit)
    }
    fn host_time(&self) -> Duration {
        self.inner.host_time()
    }
    fn relaxed<R>(&self, batch: impl FnOnce() -> R) -> R {
        self.inner.relaxed(batch)
    }
}

#[allow(unsafe_code, reason = "passes the inner driver's contract on")]
// SAFETY: the inner driver's contract.
unsafe impl<D: Driver> Copies for WithoutWaits<D> {
    unsafe fn copy_h2d(&self, dst: Addr, src: *const u8, bytes: u64, stream: &D::Stream) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.copy_h2d(dst, src, bytes, stream) }
    }
    unsafe fn copy_d2h(&self, dst: *mut u8, src: Addr, bytes: u64, stream: &D::Stream) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.copy_d2h(dst, src, bytes, stream) }
    }
    unsafe fn copy_d2d(&self, dst: Addr, src: Addr, bytes: u64, stream: &D::Stream) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.copy_d2d(dst, src, bytes, stream) }
    }
    unsafe fn fill(&self, dst: Addr, value: u8, bytes: u64, stream: &D::Stream) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.inner.fill(dst, value, bytes, stream) }
    }
}

impl<D: Driver> Driver for WithoutWaits<D> {
    fn note(&self, note: Note) {
        self.inner.note(note);
    }
    fn slot(&self) -> &DeviceSlot {
        &self.slot
    }
}
