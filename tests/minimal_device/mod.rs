//! The smallest device that models of threads need: a queue is a clock behind a lock, which is how a driver serialises
//! the calls on one stream, and an event remembers where the clock stood. Everything queued is complete at once, or nothing
//! ever is, until the host waits for it. There are no bytes: an operation's order is known from what it came after.

#![allow(unsafe_code, reason = "a device implements the driver's unsafe traits")]
#![allow(unreachable_pub, dead_code, reason = "a module of tests, of which each needs a part")]

#[cfg(millpond_mutants)]
pub mod operands;

use millpond::driver::{
    Copies, DeviceSlot, Driver, DriverResult, Fences, Host, HostKind, KernelLaunch, Kernels, Mapping, Memory,
    MemoryInfo, StreamInfo, StreamKind, StreamOptions,
};
use millpond::units::{Addr, DeviceId, StreamId};
use millpond::{DriverError, DriverErrorKind};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The device. Its own counters are not part of the schedules that are explored.
#[derive(Clone, Debug)]
pub struct Minimal(Arc<State>);

#[derive(Debug)]
struct State {
    capacity: u64,
    /// Whether nothing is complete before the host waits.
    busy: bool,
    taken: AtomicU64,
    next: AtomicU64,
    host_waits: AtomicU64,
    slot: DeviceSlot,
}

/// What comes before a point of a stream: of each stream, by its number, so many operations.
pub type Before = BTreeMap<u64, u64>;

/// A stream: what comes before what it is given next, behind the checker's lock.
#[derive(Clone, Debug)]
pub struct Queue {
    id: u64,
    before: Arc<millpond::sync::Mutex<Before>>,
}

impl Queue {
    /// How many operations were queued.
    pub fn position(&self) -> u64 {
        self.before.lock().get(&self.id).copied().unwrap_or(0)
    }
    /// What comes before what it is given next.
    pub fn before(&self) -> Before {
        self.before.lock().clone()
    }
}

/// The running thread has waited for the end of the others: what it does next is in a race with none.
pub fn joined() {
    #[cfg(shuttle)]
    millpond::sync::next::joined();
}

/// Queues an operation; its position.
pub fn launch(on: &Queue) -> u64 {
    let mut before = on.before.lock();
    let queued = before.entry(on.id).or_default();
    *queued += 1;
    *queued
}

/// An event: the position that it captured, and what comes before it.
#[derive(Debug)]
pub struct Mark(Mutex<(u64, Before)>);

impl Mark {
    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, Before)> {
        // No part of what is explored: no other thread is here at the same time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The position that it captured.
    pub fn captured(&self) -> u64 {
        self.lock().0
    }
}

impl Minimal {
    pub fn new(capacity: u64) -> Minimal {
        Minimal::make(capacity, false)
    }
    /// Nothing is complete before the host waits for it.
    pub fn busy(capacity: u64) -> Minimal {
        Minimal::make(capacity, true)
    }
    fn make(capacity: u64, busy: bool) -> Minimal {
        Minimal(Arc::new(State {
            capacity,
            busy,
            taken: AtomicU64::new(0),
            next: AtomicU64::new(1),
            host_waits: AtomicU64::new(0),
            slot: DeviceSlot::default(),
        }))
    }
    /// Bytes allocated and not freed.
    pub fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }
    /// How often the host waited, for an event or for the whole device.
    pub fn host_waits(&self) -> u64 {
        self.0.host_waits.load(Ordering::Relaxed)
    }
    /// A stream.
    pub fn queue(&self) -> Queue {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        Queue { id, before: Arc::default() }
    }
}

fn refused(call: &'static str) -> DriverError {
    DriverError::new(call, 801, DriverErrorKind::NotSupported, "the minimal device cannot do this")
}

// SAFETY: addresses are given out once and never again.
unsafe impl Memory for Minimal {
    fn device(&self) -> DeviceId {
        DeviceId(0)
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        Ok(MemoryInfo::new(self.0.capacity - self.taken(), self.0.capacity))
    }
    fn allocate_raw(&self, bytes: u64) -> DriverResult<Addr> {
        self.0.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(Addr(self.0.next.fetch_add(1, Ordering::Relaxed) << 32))
    }
    unsafe fn free_raw(&self, _: Addr, bytes: u64) -> DriverResult<()> {
        self.0.taken.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }
}

// SAFETY: it maps nothing.
unsafe impl Mapping for Minimal {
    type Handle = ();
}

// SAFETY: it pins nothing.
unsafe impl Host for Minimal {
    fn pin_raw(&self, _: u64, _: HostKind) -> DriverResult<NonNull<u8>> {
        Err(refused("pin"))
    }
    unsafe fn unpin_raw(&self, _: NonNull<u8>, _: u64) -> DriverResult<()> {
        Err(refused("unpin"))
    }
}

// SAFETY: there is nothing to run, so that every order holds.
unsafe impl Fences for Minimal {
    type Stream = Queue;
    type Event = Mark;

    fn create_stream(&self, _: StreamOptions) -> DriverResult<Queue> {
        Ok(self.queue())
    }
    fn stream_info(&self, stream: &Queue) -> DriverResult<StreamInfo> {
        Ok(StreamInfo::new(StreamId(stream.id), DeviceId(0), StreamKind::NonBlocking))
    }
    fn is_capturing(&self, _: &Queue) -> DriverResult<bool> {
        Ok(false)
    }
    fn create_event(&self) -> DriverResult<Mark> {
        Ok(Mark(Mutex::default()))
    }
    fn record(&self, event: &Mark, stream: &Queue) -> DriverResult<()> {
        let before = stream.before();
        *event.lock() = (before.get(&stream.id).copied().unwrap_or(0), before);
        Ok(())
    }
    fn record_context(&self, _: &Mark) -> DriverResult<()> {
        Ok(())
    }
    fn query(&self, _: &Mark) -> DriverResult<bool> {
        Ok(!self.0.busy)
    }
    fn wait(&self, stream: &Queue, event: &Mark) -> DriverResult<()> {
        let mut before = stream.before.lock();
        for (&id, &position) in &event.lock().1 {
            let known = before.entry(id).or_default();
            *known = position.max(*known);
        }
        Ok(())
    }
    fn synchronize_stream(&self, _: &Queue) -> DriverResult<()> {
        Ok(())
    }
    fn synchronize_device(&self) -> DriverResult<()> {
        self.0.host_waits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn wait_event(&self, _: &Mark, _: Duration) -> DriverResult<bool> {
        self.0.host_waits.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

// SAFETY: host memory it does not reach, and says so; an operation of the device's is a place in its stream's order.
unsafe impl Copies for Minimal {
    unsafe fn copy_h2d(&self, _: Addr, _: *const u8, _: u64, _: &Queue) -> DriverResult<()> {
        Err(refused("copy_h2d"))
    }
    unsafe fn copy_d2h(&self, _: *mut u8, _: Addr, _: u64, _: &Queue) -> DriverResult<()> {
        Err(refused("copy_d2h"))
    }
    unsafe fn copy_d2d(&self, _: Addr, _: Addr, _: u64, stream: &Queue) -> DriverResult<()> {
        launch(stream);
        Ok(())
    }
    unsafe fn fill(&self, _: Addr, _: u8, _: u64, stream: &Queue) -> DriverResult<()> {
        launch(stream);
        Ok(())
    }
}

// SAFETY: as for copies.
unsafe impl Kernels for Minimal {
    unsafe fn launch_kernel(&self, _: &KernelLaunch<'_>, stream: &Queue) -> DriverResult<()> {
        launch(stream);
        Ok(())
    }
}

impl Driver for Minimal {
    fn slot(&self) -> &DeviceSlot {
        &self.0.slot
    }
}
