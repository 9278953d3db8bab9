//! The simulated device behind a wrapper that counts its host memory on the device's side of the account, and counts the
//! operations that pass through.
//!
//! Every call of the driver's traits, and the drop of each stream and event, passes through it. It changes nothing else: what
//! it does not override is the simulated device's own.

#![allow(unsafe_code, reason = "a device implements the driver's unsafe traits")]

use crate::counting::{device, library};
use millpond::DriverError;
use millpond::driver::{
    Copies, DeviceSlot, Driver, DriverResult, Fences, Host, HostKind, Kernel, KernelLaunch, Kernels, Mapping,
    MappingFacts, Memory, MemoryInfo, Note, Pitched, StreamInfo, StreamOptions,
};
use millpond::units::{Addr, DeviceId};
use millpond_sim::{Launch, Ledger, Sim, SimEvent, SimHandle, SimStream};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The device.
#[derive(Clone, Debug)]
pub struct Device {
    sim: Sim,
    operations: Arc<AtomicU64>,
}

/// A stream or an event of the device's: made, cloned and dropped inside it.
#[derive(Debug)]
pub struct Inside<T>(Option<T>);

impl<T> Deref for Inside<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Clone> Clone for Inside<T> {
    fn clone(&self) -> Inside<T> {
        device(|| Inside(self.0.clone()))
    }
}

impl<T> Drop for Inside<T> {
    fn drop(&mut self) {
        device(|| drop(self.0.take()));
    }
}

fn inside<T>(made: impl FnOnce() -> DriverResult<T>) -> DriverResult<Inside<T>> {
    device(|| made().map(|it| Inside(Some(it))))
}

impl Device {
    pub fn new(sim: Sim) -> Device {
        Device { sim, operations: Arc::default() }
    }
    /// The simulated device, for what is not counted.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }
    /// The calls of the device and what it holds.
    pub fn ledger(&self) -> Ledger {
        device(|| self.sim.ledger())
    }
    /// Operations so far: allocations, frees, recorded uses, copies, fills and launches.
    pub fn operations(&self) -> u64 {
        self.operations.load(Relaxed)
    }
    fn operation(&self) {
        self.operations.fetch_add(1, Relaxed);
    }
    /// Queues work of a program's own, described inside the device.
    pub fn launch(&self, on: &Inside<SimStream>, launch: impl FnOnce() -> Launch) {
        self.operation();
        device(|| self.sim.launch(on, launch()).expect("a launch"));
    }
    /// Queues work that the program has described.
    pub fn try_launch(&self, on: &Inside<SimStream>, launch: Launch) -> DriverResult<()> {
        self.operation();
        device(|| self.sim.launch(on, launch).map(drop))
    }
    pub fn wrap_stream(&self, make: impl FnOnce(&Sim) -> SimStream) -> Inside<SimStream> {
        device(|| Inside(Some(make(&self.sim))))
    }
}

// SAFETY: each call is the simulated device's.
unsafe impl Memory for Device {
    fn device(&self) -> DeviceId {
        device(|| Memory::device(&self.sim))
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        device(|| self.sim.memory_info())
    }
    fn allocate_raw(&self, bytes: u64) -> DriverResult<Addr> {
        device(|| self.sim.allocate_raw(bytes))
    }
    fn free_waits_for_device(&self) -> bool {
        self.sim.free_waits_for_device()
    }
    unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.free_raw(addr, bytes) })
    }
    fn drop_failed(&self, error: DriverError) {
        device(|| self.sim.drop_failed(error));
    }
    fn deferred(&self) -> Vec<DriverError> {
        device(|| self.sim.deferred())
    }
}

// SAFETY: each call is the simulated device's.
unsafe impl Fences for Device {
    type Stream = Inside<SimStream>;
    type Event = Inside<SimEvent>;

    fn create_stream(&self, options: StreamOptions) -> DriverResult<Self::Stream> {
        inside(|| self.sim.create_stream(options))
    }
    fn stream_info(&self, stream: &Self::Stream) -> DriverResult<StreamInfo> {
        device(|| self.sim.stream_info(stream))
    }
    fn is_capturing(&self, stream: &Self::Stream) -> DriverResult<bool> {
        device(|| self.sim.is_capturing(stream))
    }
    fn is_last_reference(&self, stream: &Self::Stream) -> bool {
        self.sim.is_last_reference(stream)
    }
    fn may_capture(&self, stream: &Self::Stream) -> bool {
        self.sim.may_capture(stream)
    }
    fn expects_captures(&self) -> bool {
        self.sim.expects_captures()
    }
    fn create_event(&self) -> DriverResult<Self::Event> {
        inside(|| self.sim.create_event())
    }
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> DriverResult<()> {
        device(|| self.sim.record(event, stream))
    }
    fn record_context(&self, event: &Self::Event) -> DriverResult<()> {
        device(|| self.sim.record_context(event))
    }
    fn query(&self, event: &Self::Event) -> DriverResult<bool> {
        device(|| self.sim.query(event))
    }
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> DriverResult<()> {
        device(|| self.sim.wait(stream, event))
    }
    fn synchronize_stream(&self, stream: &Self::Stream) -> DriverResult<()> {
        device(|| self.sim.synchronize_stream(stream))
    }
    fn synchronize_device(&self) -> DriverResult<()> {
        device(|| self.sim.synchronize_device())
    }
    fn wait_event(&self, event: &Self::Event, limit: Duration) -> DriverResult<bool> {
        device(|| self.sim.wait_event(event, limit))
    }
    fn host_time(&self) -> Duration {
        device(|| self.sim.host_time())
    }
    fn relaxed<R>(&self, batch: impl FnOnce() -> R) -> R {
        device(|| self.sim.relaxed(|| library(batch)))
    }
}

// SAFETY: each call is the simulated device's.
unsafe impl Copies for Device {
    unsafe fn copy_h2d(
        &self,
        dst: Addr,
        src: *const u8,
        bytes: u64,
        stream: &Self::Stream,
    ) -> DriverResult<()> {
        self.operation();
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.copy_h2d(dst, src, bytes, stream) })
    }
    unsafe fn copy_d2h(
        &self,
        dst: *mut u8,
        src: Addr,
        bytes: u64,
        stream: &Self::Stream,
    ) -> DriverResult<()> {
        self.operation();
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.copy_d2h(dst, src, bytes, stream) })
    }
    unsafe fn copy_d2d(&self, dst: Addr, src: Addr, bytes: u64, stream: &Self::Stream) -> DriverResult<()> {
        self.operation();
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.copy_d2d(dst, src, bytes, stream) })
    }
    unsafe fn copy_rows(&self, copy: &Pitched, stream: &Self::Stream) -> DriverResult<()> {
        self.operation();
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.copy_rows(copy, stream) })
    }
    unsafe fn copy_peer(
        &self,
        dst: Addr,
        to: &Self,
        src: Addr,
        bytes: u64,
        stream: &Self::Stream,
    ) -> DriverResult<()> {
        self.operation();
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.copy_peer(dst, &to.sim, src, bytes, stream) })
    }
    unsafe fn fill(&self, dst: Addr, value: u8, bytes: u64, stream: &Self::Stream) -> DriverResult<()> {
        self.operation();
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.fill(dst, value, bytes, stream) })
    }
}

// SAFETY: each call is the simulated device's.
unsafe impl Host for Device {
    fn pin_raw(&self, bytes: u64, kind: HostKind) -> DriverResult<NonNull<u8>> {
        device(|| self.sim.pin_raw(bytes, kind))
    }
    unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.unpin_raw(ptr, bytes) })
    }
    fn unpin_waits_for_device(&self) -> bool {
        self.sim.unpin_waits_for_device()
    }
    fn unpin_failed(&self, error: DriverError) {
        device(|| self.sim.unpin_failed(error));
    }
}

// SAFETY: each call is the simulated device's.
unsafe impl Kernels for Device {
    fn load_kernel(&self, kernel: &Kernel) -> DriverResult<()> {
        device(|| self.sim.load_kernel(kernel))
    }
    unsafe fn launch_kernel(&self, launch: &KernelLaunch<'_>, stream: &Self::Stream) -> DriverResult<()> {
        self.operation();
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.launch_kernel(launch, stream) })
    }
}

// SAFETY: each call is the simulated device's.
unsafe impl Mapping for Device {
    type Handle = SimHandle;

    fn mapping(&self) -> Option<MappingFacts> {
        self.sim.mapping()
    }
    fn reserve(&self, bytes: u64, at: Option<Addr>) -> DriverResult<Addr> {
        device(|| self.sim.reserve(bytes, at))
    }
    unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.unreserve(addr, bytes) })
    }
    fn create(&self, bytes: u64) -> DriverResult<SimHandle> {
        device(|| self.sim.create(bytes))
    }
    unsafe fn map(&self, addr: Addr, handle: &SimHandle) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.map(addr, handle) })
    }
    unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.set_access(addr, bytes) })
    }
    unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.unmap(addr, bytes) })
    }
    unsafe fn release(&self, handle: &SimHandle) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        device(|| unsafe { self.sim.release(handle) })
    }
}

impl Driver for Device {
    fn note(&self, note: Note) {
        self.operation();
        device(|| self.sim.note(note));
    }
    fn slot(&self) -> &DeviceSlot {
        self.sim.slot()
    }
    fn calls(&self) -> Vec<(&'static str, u64)> {
        self.ledger().calls
    }
}
