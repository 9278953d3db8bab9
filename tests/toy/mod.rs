//! The smallest device that models of threads need: a queue is a counter behind a lock, which is how a driver serialises
//! the calls on one stream, and an event remembers where the counter stood. Everything queued is complete at once.

#![allow(unsafe_code, reason = "a device implements the driver's unsafe traits")]
#![allow(unreachable_pub, reason = "a module of a test")]

use millpond::driver::{
    Copies, DeviceSlot, Driver, DriverResult, Fences, Host, HostKind, Memory, MemoryInfo, StreamInfo,
    StreamKind, StreamOptions,
};
use millpond::units::{Addr, DeviceId, StreamId};
use millpond::{DriverError, DriverErrorKind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The device. Its own counters are no part of what is explored.
#[derive(Clone, Debug)]
pub struct Toy(Arc<State>);

#[derive(Debug)]
struct State {
    capacity: u64,
    taken: AtomicU64,
    next: AtomicU64,
    host_waits: AtomicU64,
    slot: DeviceSlot,
}

/// A stream: how many operations were queued, behind the checker's lock.
#[derive(Clone, Debug)]
pub struct Queue {
    id: u64,
    queued: Arc<millpond::sync::Mutex<u64>>,
}

impl Queue {
    /// How many operations were queued.
    pub fn position(&self) -> u64 {
        *self.queued.lock()
    }
}

/// Queues an operation; its position.
pub fn launch(on: &Queue) -> u64 {
    let mut queued = on.queued.lock();
    *queued += 1;
    *queued
}

/// An event: the position that it captured.
#[derive(Debug)]
pub struct Mark(AtomicU64);

impl Mark {
    /// The position that it captured.
    pub fn captured(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Toy {
    pub fn new(capacity: u64) -> Toy {
        Toy(Arc::new(State {
            capacity,
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
        Queue { id, queued: Arc::new(millpond::sync::Mutex::new(0)) }
    }
}

fn refused(call: &'static str) -> DriverError {
    DriverError::new(call, 801, DriverErrorKind::NotSupported, "the toy device cannot do this")
}

// SAFETY: addresses are given out once and never again.
unsafe impl Memory for Toy {
    fn device(&self) -> DeviceId {
        DeviceId(0)
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        Ok(MemoryInfo { free: self.0.capacity - self.taken(), total: self.0.capacity })
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

// SAFETY: it pins nothing.
unsafe impl Host for Toy {
    fn pin_raw(&self, _: u64, _: HostKind) -> DriverResult<NonNull<u8>> {
        Err(refused("pin"))
    }
    unsafe fn unpin_raw(&self, _: NonNull<u8>, _: u64) -> DriverResult<()> {
        Err(refused("unpin"))
    }
}

// SAFETY: everything queued is complete at once, so that every order holds.
unsafe impl Fences for Toy {
    type Stream = Queue;
    type Event = Mark;

    fn create_stream(&self, _: StreamOptions) -> DriverResult<Queue> {
        Ok(self.queue())
    }
    fn stream_info(&self, stream: &Queue) -> DriverResult<StreamInfo> {
        Ok(StreamInfo {
            id: StreamId(stream.id),
            device: DeviceId(0),
            kind: StreamKind::NonBlocking,
            mortal: false,
        })
    }
    fn is_capturing(&self, _: &Queue) -> DriverResult<bool> {
        Ok(false)
    }
    fn create_event(&self) -> DriverResult<Mark> {
        Ok(Mark(AtomicU64::new(0)))
    }
    fn record(&self, event: &Mark, stream: &Queue) -> DriverResult<()> {
        event.0.store(stream.position(), Ordering::Relaxed);
        Ok(())
    }
    fn record_context(&self, _: &Mark) -> DriverResult<()> {
        Ok(())
    }
    fn query(&self, _: &Mark) -> DriverResult<bool> {
        Ok(true)
    }
    fn wait(&self, _: &Queue, _: &Mark) -> DriverResult<()> {
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

// SAFETY: it moves nothing, and says so.
unsafe impl Copies for Toy {
    unsafe fn copy_h2d(&self, _: Addr, _: *const u8, _: u64, _: &Queue) -> DriverResult<()> {
        Err(refused("copy_h2d"))
    }
    unsafe fn copy_d2h(&self, _: *mut u8, _: Addr, _: u64, _: &Queue) -> DriverResult<()> {
        Err(refused("copy_d2h"))
    }
    unsafe fn copy_d2d(&self, _: Addr, _: Addr, _: u64, _: &Queue) -> DriverResult<()> {
        Err(refused("copy_d2d"))
    }
    unsafe fn fill(&self, _: Addr, _: u8, _: u64, _: &Queue) -> DriverResult<()> {
        Err(refused("fill"))
    }
}

impl Driver for Toy {
    fn slot(&self) -> &DeviceSlot {
        &self.0.slot
    }
}
