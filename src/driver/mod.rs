//! What a device can do: small traits that rooms bind to the least of, and one implementation a folder.
//!
//! A driver hands out memory, orders streams by events, copies, and pins host memory. It does not know chunks, pools or
//! who owns what: [`Driver::note`] tells a checking device (the simulator) what was handed out, and is empty elsewhere.
//! No method here may be called with a lock of the allocator held.

// Model checkers follow no foreign call and no thread of the system: their builds have neither this nor `replay`.
mod caller;
#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub mod cuda;
mod kernels;
pub mod null;
mod patience;
mod pitch;
pub mod sim;

pub(crate) use caller::Called;
pub use caller::Caller;
pub use kernels::{Argument, Grid, Kernel, KernelLaunch, KernelRange, Kernels, RangeUse, Twin, TwinMemory};
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use patience::clock;
pub(crate) use patience::process_time;
pub use pitch::{Pitched, Place};

use crate::error::{DriverError, DriverErrorKind};
use crate::sync::{Arc, Mutex, Weak};
use crate::units::{Addr, AllocationId, DeviceId, StreamId};
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::time::Duration;

/// What a driver call returns.
pub type DriverResult<T> = Result<T, DriverError>;

/// A device's memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Not allocated by anybody.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

/// Device memory by plain allocation.
///
/// # Safety
/// Live ranges are disjoint, at least 512-byte aligned, and stay valid until freed: other rooms' soundness rests on it.
#[allow(unsafe_code, reason = "the contract that array and transfer rest on")]
pub unsafe trait Memory: Clone + Send + Sync + Sized + 'static {
    /// Which device.
    fn device(&self) -> DeviceId;

    /// What is free and what there is.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// Allocates `bytes`, a multiple of 512 and not 0. Orders nothing and waits for nothing.
    ///
    /// # Errors
    /// Out of memory, or whatever the driver says.
    fn allocate_raw(&self, bytes: u64) -> DriverResult<Addr>;

    /// Whether [`Memory::free_raw`] waits for the device, independent streams included. Where it does, an allocator gives
    /// nothing back for a request's sake, only in an explicit trim and at its end. `true` by default.
    fn free_waits_for_device(&self) -> bool {
        true
    }

    /// Frees a range. Waits for every kernel on the device, unless [`Memory::free_waits_for_device`] says that it does
    /// not.
    ///
    /// # Errors
    /// Whatever the driver says; the range then counts as still allocated.
    ///
    /// # Safety
    /// The range came whole from [`Memory::allocate_raw`], and every use of it is complete.
    unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()>;

    /// Allocates an owned range.
    ///
    /// # Errors
    /// As [`Memory::allocate_raw`].
    fn allocate(&self, bytes: u64) -> DriverResult<OwnedRange<Self>> {
        let addr = self.allocate_raw(bytes)?;
        Ok(OwnedRange { driver: self.clone(), addr, bytes, armed: true })
    }

    /// Keeps an error that a destructor met, for [`Memory::deferred`]. Forgets it by default.
    fn drop_failed(&self, error: DriverError) {
        let _ = error;
    }

    /// The errors that destructors met, oldest first. None by default.
    fn deferred(&self) -> Vec<DriverError> {
        Vec::new()
    }
}

/// A plain range of device memory, freed when dropped or by [`OwnedRange::release`].
///
/// Whoever drops it has made sure that its uses are complete.
pub struct OwnedRange<D: Memory> {
    driver: D,
    addr: Addr,
    bytes: u64,
    armed: bool,
}

impl<D: Memory> OwnedRange<D> {
    /// The first byte.
    pub fn addr(&self) -> Addr {
        self.addr
    }
    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Gives the range back to the device.
    ///
    /// # Errors
    /// The driver's error, and the range, which is still allocated.
    #[allow(unsafe_code, reason = "the one place where an owned range is freed")]
    #[track_caller]
    pub fn release(mut self) -> Result<(), (Self, DriverError)> {
        // Before the call: if that panics it may have freed the range, and a leak is better than a second free.
        self.armed = false;
        // SAFETY: the range came from `allocate_raw` of this driver and is freed once, since `armed` is cleared.
        match unsafe { self.driver.free_raw(self.addr, self.bytes) } {
            Ok(()) => Ok(()),
            Err(e) => {
                self.armed = true;
                Err((self, e))
            }
        }
    }
}

impl<D: Memory> fmt::Debug for OwnedRange<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedRange({} + {} B)", self.addr, self.bytes)
    }
}

impl<D: Memory> Drop for OwnedRange<D> {
    #[allow(unsafe_code, reason = "the one place where an owned range is freed")]
    fn drop(&mut self) {
        if self.armed {
            // SAFETY: as in `release`.
            if let Err(e) = unsafe { self.driver.free_raw(self.addr, self.bytes) } {
                self.driver.drop_failed(e);
            }
        }
    }
}

/// How pinned host memory is cached by the CPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum HostKind {
    /// Ordinary cached memory: fast to read and write from the CPU.
    #[default]
    Cached,
    /// Write-combined: for sources that the CPU only ever writes; reading is very slow.
    WriteCombined,
}

/// Page-locked host memory.
///
/// # Safety
/// Live ranges are disjoint, at least 512-byte aligned, readable and writable by the CPU until freed, and zeroed when new.
#[allow(unsafe_code, reason = "the contract that pinned arrays rest on")]
pub unsafe trait Host: Clone + Send + Sync + Sized + 'static {
    /// Pins `bytes`, a multiple of 512 and not 0.
    ///
    /// # Errors
    /// Out of memory, or whatever the driver says.
    fn pin_raw(&self, bytes: u64, kind: HostKind) -> DriverResult<NonNull<u8>>;

    /// Unpins and frees. **Waits for every kernel on the device** on real hardware.
    ///
    /// # Errors
    /// Whatever the driver says; the range then counts as still pinned.
    ///
    /// # Safety
    /// The range came whole from [`Host::pin_raw`], every use of it is complete and no reference into it is left.
    unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()>;

    /// Keeps an error that a destructor met, for whoever asks later. Empty by default.
    fn unpin_failed(&self, error: DriverError) {
        let _ = error;
    }

    /// Pins an owned range.
    ///
    /// # Errors
    /// As [`Host::pin_raw`].
    fn pin(&self, bytes: u64, kind: HostKind) -> DriverResult<OwnedHost<Self>> {
        let ptr = self.pin_raw(bytes, kind)?;
        Ok(OwnedHost { driver: self.clone(), ptr, bytes, armed: true })
    }
}

/// A pinned range of host memory, unpinned when dropped or by [`OwnedHost::release`].
pub struct OwnedHost<D: Host> {
    driver: D,
    ptr: NonNull<u8>,
    bytes: u64,
    armed: bool,
}

// SAFETY: the pointer is the range's identity; nothing is reached through it here.
#[allow(unsafe_code, reason = "a raw pointer that is only a number here")]
unsafe impl<D: Host> Send for OwnedHost<D> {}
// SAFETY: as above; `&OwnedHost` gives the number only.
#[allow(unsafe_code, reason = "a raw pointer that is only a number here")]
unsafe impl<D: Host> Sync for OwnedHost<D> {}

impl<D: Host> OwnedHost<D> {
    /// The first byte.
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }
    /// The first byte, as a number.
    pub fn addr(&self) -> Addr {
        // Whoever is handed a part of the range makes a pointer from the number again.
        Addr(self.ptr.as_ptr().expose_provenance() as u64)
    }
    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Unpins and frees.
    ///
    /// # Errors
    /// The driver's error, and the range, which is still pinned.
    #[allow(unsafe_code, reason = "the one place where a pinned range is freed")]
    #[track_caller]
    pub fn release(mut self) -> Result<(), (Self, DriverError)> {
        // SAFETY: the range came from `pin_raw` of this driver and is freed once, since `armed` is cleared.
        match unsafe { self.driver.unpin_raw(self.ptr, self.bytes) } {
            Ok(()) => {
                self.armed = false;
                Ok(())
            }
            Err(e) => Err((self, e)),
        }
    }
}

impl<D: Host> fmt::Debug for OwnedHost<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedHost({} + {} B)", self.addr(), self.bytes)
    }
}

impl<D: Host> Drop for OwnedHost<D> {
    #[allow(unsafe_code, reason = "the one place where a pinned range is freed")]
    fn drop(&mut self) {
        if self.armed {
            // SAFETY: as in `release`.
            if let Err(e) = unsafe { self.driver.unpin_raw(self.ptr, self.bytes) } {
                self.driver.unpin_failed(e);
            }
        }
    }
}

/// What a stream is, as far as ordering goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StreamKind {
    /// No implicit order with any other stream. What the allocator creates.
    NonBlocking,
    /// Ordered with the legacy default stream in both directions.
    Blocking,
    /// The legacy default stream of the context.
    LegacyDefault,
    /// A per-thread default stream: only its own thread may mark it. Blocking.
    PerThreadDefault,
}

/// A stream's identity and kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamInfo {
    /// The driver's unique number: never reused, unlike the handle's value.
    pub id: StreamId,
    /// The device it runs on.
    pub device: DeviceId,
    /// Its kind.
    pub kind: StreamKind,
    /// Whoever made it destroys it when they like: it may be named only in a call that names it itself. Such calls mark what it
    /// holds; what no such call has marked is held back until the program says that the device is quiet.
    pub mortal: bool,
}

/// How to make a stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StreamOptions {
    /// Ordered with the legacy default stream. Off by default.
    pub blocking: bool,
    /// Lower numbers run first, as in CUDA; 0 by default.
    pub priority: i32,
}

/// Streams and events: how work is ordered and its completion learnt.
///
/// # Safety
/// `record` captures all work queued on the stream before it; `wait` orders all work queued after it behind what the
/// event captured at the time of the call; `query` and `wait_event` answer `true` only if all captured work is complete.
/// An event never recorded is an empty set. An error is never "complete".
#[allow(unsafe_code, reason = "the contract that every ordering argument rests on")]
pub unsafe trait Fences: Clone + Send + Sync + Sized + 'static {
    /// A counted reference to a native stream; the last one destroys it if this driver created it.
    type Stream: Clone + fmt::Debug + Send + Sync + 'static;
    /// An event, destroyed when dropped.
    type Event: fmt::Debug + Send + Sync + 'static;

    /// Creates a stream.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn create_stream(&self, options: StreamOptions) -> DriverResult<Self::Stream>;
    /// A stream's identity and kind. May not be asked of a capturing stream: it would destroy the capture.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn stream_info(&self, stream: &Self::Stream) -> DriverResult<StreamInfo>;
    /// Whether the stream is recording a graph. Harmless at any time.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn is_capturing(&self, stream: &Self::Stream) -> DriverResult<bool>;
    /// Whether this reference to a stream of the driver's own was given out in a form that somebody else can begin a capture
    /// on: then it is asked before each operation. Makes no driver call. Streams that are adopted are asked anyway.
    fn may_capture(&self, stream: &Self::Stream) -> bool {
        let _ = stream;
        false
    }
    /// Whether nobody has another reference to the stream, in any form that was given out, so that nobody else can queue work on it. What
    /// was queued through the others happens before the answer. Makes no driver call; `false` where it is not known.
    fn is_last_reference(&self, stream: &Self::Stream) -> bool {
        let _ = stream;
        false
    }
    /// Whether somebody else may capture a graph in this context, on a stream that nobody here can ask: then no context-wide
    /// event is recorded, which would destroy the capture, and no request waits for the device. Makes no driver call.
    fn expects_captures(&self) -> bool {
        false
    }
    /// Creates an event that keeps no time.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn create_event(&self) -> DriverResult<Self::Event>;
    /// Records the event on a stream.
    ///
    /// # Errors
    /// Whatever the driver says; the event then captures what it did before.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> DriverResult<()>;
    /// Records the event behind everything queued on any stream of the context, destroyed ones included.
    ///
    /// # Errors
    /// Whatever the driver says, "not supported" included.
    fn record_context(&self, event: &Self::Event) -> DriverResult<()>;
    /// Whether what the event captured is complete.
    ///
    /// # Errors
    /// Whatever the driver says; never to be read as complete.
    fn query(&self, event: &Self::Event) -> DriverResult<bool>;
    /// Makes later work on `stream` wait for what the event captured.
    ///
    /// # Errors
    /// Whatever the driver says; nothing was then ordered.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> DriverResult<()>;
    /// Blocks the host until the stream is idle.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn synchronize_stream(&self, stream: &Self::Stream) -> DriverResult<()>;
    /// Blocks the host until the device is idle.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn synchronize_device(&self) -> DriverResult<()>;
    /// Blocks the host until the event is complete or `limit` is over; `false` when it is over. By default it asks over and
    /// over: without a pause for the first 50 µs, then ever more rarely.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn wait_event(&self, event: &Self::Event, limit: Duration) -> DriverResult<bool> {
        patience::ask_until(limit, || self.query(event))
    }
    /// The clock that `wait_event`'s limit is measured by, from any fixed point: the process's own by default. A device
    /// whose time is simulated answers with its host's virtual time, which its waits move.
    fn host_time(&self) -> Duration {
        process_time()
    }
    /// Runs a batch of driver calls so that they break nobody's graph capture.
    fn relaxed<R>(&self, batch: impl FnOnce() -> R) -> R {
        batch()
    }
}

/// Asynchronous copies and fills, ordered on a stream.
///
/// # Safety
/// Each call moves exactly `bytes` bytes, in stream order, and touches nothing else.
#[allow(unsafe_code, reason = "copies work on raw addresses")]
pub unsafe trait Copies: Fences {
    /// Host to device. From pinned memory it returns at once; from pageable memory when the source has been read.
    ///
    /// # Errors
    /// Whatever the driver says; nothing was then queued.
    ///
    /// # Safety
    /// `src` is readable and `dst` is owned by the caller on `stream` until the copy is complete.
    unsafe fn copy_h2d(
        &self,
        dst: Addr,
        src: *const u8,
        bytes: u64,
        stream: &Self::Stream,
    ) -> DriverResult<()>;
    /// Device to host. Into pinned memory it returns at once; into pageable memory when the copy is done.
    ///
    /// # Errors
    /// Whatever the driver says; nothing was then queued.
    ///
    /// # Safety
    /// `dst` is writable and not read, `src` is owned by the caller on `stream`, until the copy is complete.
    unsafe fn copy_d2h(&self, dst: *mut u8, src: Addr, bytes: u64, stream: &Self::Stream)
    -> DriverResult<()>;
    /// Device to device.
    ///
    /// # Errors
    /// Whatever the driver says; nothing was then queued.
    ///
    /// # Safety
    /// Both ranges are owned by the caller on `stream` until the copy is complete, and do not overlap.
    unsafe fn copy_d2d(&self, dst: Addr, src: Addr, bytes: u64, stream: &Self::Stream) -> DriverResult<()>;
    /// Copies rows that lie apart, as one operation. Host memory on one side is pinned, in one pinned range. Of no bytes:
    /// nothing.
    ///
    /// # Errors
    /// Whatever the driver says; nothing was then queued. By default: not supported.
    ///
    /// # Safety
    /// The rows of both sides are owned by the caller on `stream` until the copy is complete, readable and writable, and
    /// do not overlap.
    unsafe fn copy_rows(&self, copy: &Pitched, stream: &Self::Stream) -> DriverResult<()> {
        let _ = (copy, stream);
        Err(unsupported("copy_rows", "this driver has no copies of rows: copy row by row"))
    }
    /// From memory of this device to that of another, on a stream of this one.
    ///
    /// # Errors
    /// Whatever the driver says, devices that cannot reach each other included; nothing was then queued. By default: not
    /// supported.
    ///
    /// # Safety
    /// Both ranges are owned by the caller on `stream` until the copy is complete.
    unsafe fn copy_peer(
        &self,
        dst: Addr,
        to: &Self,
        src: Addr,
        bytes: u64,
        stream: &Self::Stream,
    ) -> DriverResult<()> {
        let _ = (dst, to, src, bytes, stream);
        Err(unsupported("copy_peer", "this driver has no copies between devices: copy through pinned memory"))
    }
    /// Fills with a byte.
    ///
    /// # Errors
    /// Whatever the driver says; nothing was then queued.
    ///
    /// # Safety
    /// The range is owned by the caller on `stream` until the fill is complete.
    unsafe fn fill(&self, dst: Addr, value: u8, bytes: u64, stream: &Self::Stream) -> DriverResult<()>;
}

fn unsupported(call: &'static str, advice: &'static str) -> DriverError {
    DriverError::new(call, 801, DriverErrorKind::NotSupported, advice)
}

/// Virtual memory: addresses and physical handles apart. Optional.
///
/// # Safety
/// As [`Memory`]; a handle is whole, sizes and addresses are multiples of [`Mapping::granularity`].
#[allow(unsafe_code, reason = "mapping works on raw addresses")]
pub unsafe trait Mapping: Clone + Send + Sync + Sized + 'static {
    /// A piece of physical memory. Dropping it does nothing: see [`Mapping::release`].
    type Handle: Clone + fmt::Debug + PartialEq + Send + Sync + 'static;

    /// The unit of sizes and addresses in bytes (2 MiB on every device seen).
    fn granularity(&self) -> u64;
    /// Reserves addresses, at `at` if that is free.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn reserve(&self, bytes: u64, at: Option<Addr>) -> DriverResult<Addr>;
    /// Gives addresses back.
    ///
    /// # Errors
    /// Whatever the driver says.
    ///
    /// # Safety
    /// Nothing is mapped there.
    unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()>;
    /// Creates physical memory, zeroed.
    ///
    /// # Errors
    /// Out of memory, or whatever the driver says.
    fn create(&self, bytes: u64) -> DriverResult<Self::Handle>;
    /// Maps a whole handle. It can be used only after [`Mapping::set_access`]; one handle may be mapped twice.
    ///
    /// # Errors
    /// Whatever the driver says.
    ///
    /// # Safety
    /// The addresses are reserved by the caller and nothing is mapped there.
    unsafe fn map(&self, addr: Addr, handle: &Self::Handle) -> DriverResult<()>;
    /// Makes mapped addresses readable and writable; needed again after every map.
    ///
    /// # Errors
    /// Whatever the driver says.
    ///
    /// # Safety
    /// The addresses belong to the caller.
    unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()>;
    /// Takes mappings away. Waits for nothing.
    ///
    /// # Errors
    /// Whatever the driver says.
    ///
    /// # Safety
    /// Every use made through these addresses is complete (law O4).
    unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()>;
    /// Gives physical memory back; it lives until it is mapped nowhere.
    ///
    /// # Errors
    /// Whatever the driver says.
    ///
    /// # Safety
    /// Every use of the handle is complete (law O4).
    unsafe fn release(&self, handle: &Self::Handle) -> DriverResult<()>;
}

/// What an allocator tells its device about ownership, so that a checking device can judge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Bytes were handed out on a stream. Told after the pool was unlocked.
    Allocated {
        /// Which allocation.
        id: AllocationId,
        /// First byte.
        addr: Addr,
        /// Bytes asked for (not rounded).
        bytes: u64,
        /// The stream it was allocated on; `None` for pinned host memory.
        stream: Option<StreamId>,
    },
    /// A use on another stream was recorded, to be respected from the free on.
    Used {
        /// Which allocation.
        id: AllocationId,
        /// The stream that uses it.
        stream: StreamId,
        /// Only what the stream was given up to now, not up to the free: the use was recorded up to an event.
        so_far: bool,
    },
    /// Another stream than its own may use it from here on: it was ordered behind the bytes' former life, if they have one
    /// that is not over.
    Admitted {
        /// Which allocation.
        id: AllocationId,
        /// The stream let in.
        stream: StreamId,
    },
    /// The library itself is about to have an operation queued on a stream, and has ordered that behind every use it knew of
    /// that conflicts. Told for each allocation that the operation touches, whatever its home stream.
    Operation {
        /// Which allocation.
        id: AllocationId,
        /// The stream that is given the operation next.
        stream: StreamId,
        /// What the operation does to it.
        used: RangeUse,
    },
    /// Bytes came back. Told before the pool is locked.
    Freed {
        /// Which allocation.
        id: AllocationId,
        /// Freed with [`free_unknown`](crate::Allocation::free_unknown): any stream may have used it.
        unknown: bool,
    },
}

/// A place in a driver where the allocators of one device keep what they share. Empty until first used.
#[derive(Default)]
pub struct DeviceSlot(Mutex<Option<Weak<dyn Any + Send + Sync>>>);

impl DeviceSlot {
    /// The shared value of this type, made by `make` if there is none alive.
    ///
    /// # Panics
    /// When the slot holds a value of another type, which one crate version cannot cause.
    pub fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut slot = self.0.lock();
        if let Some(found) = slot.as_ref().and_then(Weak::upgrade) {
            return found.downcast::<T>().expect("one kind of shared state a device");
        }
        let made = Arc::new(make());
        let weak: Weak<T> = Arc::downgrade(&made);
        *slot = Some(weak);
        made
    }
}

impl fmt::Debug for DeviceSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceSlot")
    }
}

/// Everything an allocator needs of a device.
pub trait Driver: Memory + Fences + Copies + Host {
    /// Whether it judges what is asked of it, and so wants to know which line of the program asked ([`Caller`]).
    const JUDGES: bool = false;
    /// Tells a checking device about ownership. No driver call; empty by default.
    #[inline]
    fn note(&self, note: Note) {
        let _ = note;
    }
    /// Tells a checking device what the program calls an allocation. No driver call; empty by default.
    fn name(&self, id: AllocationId, name: &str) {
        let _ = (id, name);
    }
    /// This driver, as one that overwrites plain and pinned memory before it gives it back, if somebody else could be given
    /// it unchanged. Itself by default: for devices whose memory always comes fresh.
    #[must_use]
    fn scrubbing(self) -> Self {
        self
    }
    /// Where the allocators of this device keep what they share.
    fn slot(&self) -> &DeviceSlot;
    /// How often each driver call was made, by name, if the driver counts.
    fn calls(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
