//! A device that only hands out addresses, to measure what the bookkeeping costs.
//!
//! [`Null`] gives out addresses that never come back, counts bytes against a capacity, numbers its streams, and reports
//! every event complete. Pinned memory is real, because the CPU writes to it. It does not know contents: fills and
//! copies to the device do nothing, a copy from the device writes zeros (bytes that are always the same, and never another
//! owner's). It does not know order either, so nothing that runs on it shows whether a reuse was legal: for that
//! there is [`Sim`](crate::Sim).

use core::ptr::NonNull;
use core::time::Duration;
use millpond_driver::sync::plain::AtomicU64;
use millpond_driver::sync::{Arc, Mutex, Ordering};
use millpond_driver::units::{Addr, DeviceId, GRANULE_BYTES, StreamId};
use millpond_driver::{
    Copies, CopySide, DeviceSlot, Driver, DriverResult, Fences, Host, HostKind, KernelLaunch, Kernels,
    Memory, MemoryInfo, Pitched, StreamInfo, StreamKind, StreamOptions,
};
use millpond_driver::{DriverError, DriverErrorKind};
use std::alloc::Layout;
use std::collections::BTreeMap;

mod virt;
pub use virt::NullHandle;

/// The capacity of [`Null::default`]: 144 GiB, in bytes.
pub const DEFAULT_CAPACITY: u64 = 144 << 30;

/// Where addresses begin. Not 0, so that no address reads as "none", and far from the values of host pointers.
const FIRST_ADDRESS: u64 = 0x0200_0000_0000;

/// Addresses begin at multiples of this, as those of plain allocations do on the devices seen.
const ADDRESS_ALIGN: u64 = 2 << 20;

/// Every call that is counted. The order is that of [`Null::calls`](Driver::calls).
#[derive(Clone, Copy)]
#[repr(usize)]
enum Call {
    MemoryInfo,
    Allocate,
    Free,
    Pin,
    Unpin,
    CreateStream,
    CreateEvent,
    Record,
    RecordContext,
    Query,
    Wait,
    WaitEvent,
    SynchronizeStream,
    SynchronizeDevice,
    CopyH2D,
    CopyD2H,
    CopyD2D,
    CopyRows,
    CopyPeer,
    Fill,
    LaunchKernel,
    Reserve,
    Unreserve,
    Create,
    Map,
    SetAccess,
    Unmap,
    Release,
}

const NAMES: [&str; 28] = [
    "memory_info",
    "allocate",
    "free",
    "pin",
    "unpin",
    "create_stream",
    "create_event",
    "record",
    "record_context",
    "query",
    "wait",
    "wait_event",
    "synchronize_stream",
    "synchronize_device",
    "copy_h2d",
    "copy_d2h",
    "copy_d2d",
    "copy_rows",
    "copy_peer",
    "fill",
    "launch_kernel",
    "reserve",
    "unreserve",
    "create",
    "map",
    "set_access",
    "unmap",
    "release",
];

/// The device: a counted reference, so clones share addresses, capacity and counts.
///
/// ```
/// use millpond_driver::Memory;
/// use millpond_sim::null::Null;
///
/// let device = Null::with_capacity(1 << 20);
/// let range = device.allocate(4096)?;
/// assert_eq!(device.memory_info()?.free, (1 << 20) - 4096);
/// drop(range);
/// assert_eq!(device.memory_info()?.free, 1 << 20);
/// # Ok::<(), millpond_driver::DriverError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Null(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: DeviceId,
    capacity: u64,
    reserved: AtomicU64,
    next_stream: AtomicU64,
    calls: [AtomicU64; NAMES.len()],
    live: Mutex<Live>,
    slot: DeviceSlot,
}

/// What is allocated and not yet freed: first byte to length, in bytes.
#[derive(Debug)]
struct Live {
    next_address: u64,
    device: BTreeMap<u64, u64>,
    host: BTreeMap<u64, u64>,
    virt: virt::Table,
}

/// A stream of [`Null`]: a number. Nothing runs on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NullStream(StreamInfo);

/// An event of [`Null`]: always complete.
#[derive(Debug)]
pub struct NullEvent(());

impl Default for Null {
    /// Device 0 with [`DEFAULT_CAPACITY`].
    fn default() -> Null {
        Null::new(DeviceId(0), DEFAULT_CAPACITY)
    }
}

impl Null {
    /// A device with this number and `capacity` bytes.
    pub fn new(device: DeviceId, capacity: u64) -> Null {
        Null(Arc::new(Inner {
            device,
            capacity,
            reserved: AtomicU64::new(0),
            next_stream: AtomicU64::new(1),
            calls: [const { AtomicU64::new(0) }; NAMES.len()],
            live: Mutex::new(Live {
                next_address: FIRST_ADDRESS,
                device: BTreeMap::new(),
                host: BTreeMap::new(),
                virt: virt::Table::default(),
            }),
            slot: DeviceSlot::default(),
        }))
    }

    /// Device 0 with `capacity` bytes.
    pub fn with_capacity(capacity: u64) -> Null {
        Null::new(DeviceId(0), capacity)
    }

    /// Device bytes allocated and not freed.
    pub fn reserved(&self) -> u64 {
        self.0.reserved.load(Ordering::Relaxed)
    }

    /// Ranges not given back: of device memory and of pinned memory. Both are 0 when nothing leaked.
    pub fn outstanding(&self) -> (usize, usize) {
        let live = self.0.live.lock();
        (live.device.len(), live.host.len())
    }

    /// The default stream: number 0, ordered with blocking streams on devices that order anything.
    pub fn default_stream(&self) -> NullStream {
        NullStream(StreamInfo::new(StreamId(0), self.0.device, StreamKind::LegacyDefault))
    }

    /// Of virtual memory, what was not given back: reservations, handles and mappings.
    pub fn outstanding_virtual(&self) -> (usize, usize, usize) {
        self.0.live.lock().virt.outstanding()
    }

    fn count(&self, call: Call) {
        self.0.calls[call as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that names a stream, and refuses a stream of another device.
    fn on_stream(&self, call: Call, stream: &NullStream) -> DriverResult<()> {
        self.count(call);
        if stream.0.device == self.0.device {
            return Ok(());
        }
        Err(refused(
            call,
            DriverErrorKind::InvalidHandle,
            format!("{} of {} was used on {}", stream.0.id, stream.0.device, self.0.device),
        ))
    }
}

impl Null {
    /// What is reserved with so many bytes more, if the device has them.
    fn with_more(&self, bytes: u64) -> Option<u64> {
        self.reserved().checked_add(bytes).filter(|&all| all <= self.0.capacity)
    }

    /// Called under the lock of `live`; relaxed, since readers outside it only report.
    fn set_reserved(&self, bytes: u64) {
        self.0.reserved.store(bytes, Ordering::Relaxed);
    }

    fn is_full(&self, call: Call, bytes: u64) -> DriverError {
        let free = self.0.capacity - self.reserved();
        let message = format!("requested {bytes} bytes; {free} of {} are free", self.0.capacity);
        refused(call, DriverErrorKind::OutOfMemory, message)
    }
}

impl Live {
    /// Where addresses begin behind so many more, unless they end.
    fn next_behind(&self, bytes: u64) -> Option<u64> {
        self.next_address.checked_add(bytes.checked_next_multiple_of(ADDRESS_ALIGN)?)
    }
}

fn refused(call: Call, kind: DriverErrorKind, message: String) -> DriverError {
    let code = match kind {
        DriverErrorKind::InvalidValue => 1,
        DriverErrorKind::OutOfMemory => 2,
        DriverErrorKind::InvalidHandle => 400,
        _ => 999,
    };
    DriverError::new(NAMES[call as usize], code, kind, message)
}

/// Checks a size as the traits require: a multiple of 512 and not 0.
fn whole_granules(call: Call, bytes: u64) -> DriverResult<()> {
    if bytes > 0 && bytes.is_multiple_of(GRANULE_BYTES) {
        return Ok(());
    }
    Err(refused(
        call,
        DriverErrorKind::InvalidValue,
        format!("requested {bytes} bytes; the size must be a multiple of {GRANULE_BYTES} above 0"),
    ))
}

/// Removes a range from the table it was entered in, whole.
fn take_out(call: Call, table: &mut BTreeMap<u64, u64>, addr: u64, bytes: u64) -> DriverResult<()> {
    match table.get(&addr) {
        Some(&found) if found == bytes => {
            table.remove(&addr);
            Ok(())
        }
        Some(&found) => Err(refused(
            call,
            DriverErrorKind::InvalidValue,
            format!(
                "{bytes} bytes at {addr:#x} were given back, but {found} were handed out: give back whole ranges"
            ),
        )),
        None => Err(refused(
            call,
            DriverErrorKind::InvalidValue,
            format!(
                "{addr:#x} is not the first byte of a live range: it was given back before, or never handed out"
            ),
        )),
    }
}

fn host_layout(call: Call, bytes: u64) -> DriverResult<Layout> {
    usize::try_from(bytes).ok().and_then(|n| Layout::from_size_align(n, 4096).ok()).ok_or_else(|| {
        refused(
            call,
            DriverErrorKind::OutOfMemory,
            format!("{bytes} bytes are more than this host can address"),
        )
    })
}

// SAFETY: addresses only grow, so ranges are disjoint for ever; each begins at a multiple of 2 MiB. No memory is behind
// them, and nothing here or in safe code dereferences a device address.
#[allow(unsafe_code, reason = "a driver declares that it keeps the contract")]
unsafe impl Memory for Null {
    fn device(&self) -> DeviceId {
        self.0.device
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.count(Call::MemoryInfo);
        let total = self.0.capacity;
        Ok(MemoryInfo::new(total - self.reserved(), total))
    }

    fn allocate_raw(&self, bytes: u64) -> DriverResult<Addr> {
        self.count(Call::Allocate);
        whole_granules(Call::Allocate, bytes)?;
        let mut live = self.0.live.lock();
        // A device with a capacity near 2^64 runs out of addresses first.
        let (Some(taken), Some(next)) = (self.with_more(bytes), live.next_behind(bytes)) else {
            return Err(self.is_full(Call::Allocate, bytes));
        };
        let addr = core::mem::replace(&mut live.next_address, next);
        live.device.insert(addr, bytes);
        self.set_reserved(taken);
        Ok(Addr(addr))
    }

    /// Like the plain memory that it stands for, so that a replay here makes the same decisions.
    fn free_waits_for_device(&self) -> bool {
        true
    }

    unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        self.count(Call::Free);
        let mut live = self.0.live.lock();
        take_out(Call::Free, &mut live.device, addr.0, bytes)?;
        self.set_reserved(self.reserved() - bytes);
        Ok(())
    }
}

// SAFETY: each range is one live allocation of the host's allocator, zeroed, at a multiple of 4096.
#[allow(unsafe_code, reason = "a driver declares that it keeps the contract, and host memory is real")]
unsafe impl Host for Null {
    /// Host memory is not counted against the capacity.
    fn pin_raw(&self, bytes: u64, _kind: HostKind) -> DriverResult<NonNull<u8>> {
        self.count(Call::Pin);
        whole_granules(Call::Pin, bytes)?;
        let layout = host_layout(Call::Pin, bytes)?;
        // SAFETY: the size is above 0, checked by `whole_granules`.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else {
            let message = format!("the host has no {bytes} bytes to pin");
            return Err(refused(Call::Pin, DriverErrorKind::OutOfMemory, message));
        };
        self.0.live.lock().host.insert(ptr.as_ptr().addr() as u64, bytes);
        Ok(ptr)
    }

    unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        self.count(Call::Unpin);
        let layout = host_layout(Call::Unpin, bytes)?;
        take_out(Call::Unpin, &mut self.0.live.lock().host, ptr.as_ptr().addr() as u64, bytes)?;
        // SAFETY: `take_out` found the range whole in the table that `pin_raw` fills, so it was allocated with this
        // layout; it is now out of the table, so this happens once.
        unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) };
        Ok(())
    }

    /// Nothing is ever pending.
    fn unpin_waits_for_device(&self) -> bool {
        true
    }
}

// SAFETY: no work is ever pending, so every event captures nothing, every wait orders everything there is, and
// "complete" is always true.
#[allow(unsafe_code, reason = "a driver declares that it keeps the contract")]
unsafe impl Fences for Null {
    type Stream = NullStream;
    type Event = NullEvent;

    fn create_stream(&self, options: StreamOptions) -> DriverResult<NullStream> {
        self.count(Call::CreateStream);
        let id = StreamId(self.0.next_stream.fetch_add(1, Ordering::Relaxed));
        let kind = if options.blocking { StreamKind::Blocking } else { StreamKind::NonBlocking };
        Ok(NullStream(StreamInfo::new(id, self.0.device, kind)))
    }

    /// Not counted: the stream itself knows its identity.
    fn stream_info(&self, stream: &NullStream) -> DriverResult<StreamInfo> {
        Ok(stream.0)
    }

    /// Never; not counted.
    fn is_capturing(&self, _stream: &NullStream) -> DriverResult<bool> {
        Ok(false)
    }

    fn create_event(&self) -> DriverResult<NullEvent> {
        self.count(Call::CreateEvent);
        Ok(NullEvent(()))
    }

    fn record(&self, _event: &NullEvent, stream: &NullStream) -> DriverResult<()> {
        self.on_stream(Call::Record, stream)
    }

    fn record_context(&self, _event: &NullEvent) -> DriverResult<()> {
        self.count(Call::RecordContext);
        Ok(())
    }

    fn query(&self, _event: &NullEvent) -> DriverResult<bool> {
        self.count(Call::Query);
        Ok(true)
    }

    fn wait(&self, stream: &NullStream, _event: &NullEvent) -> DriverResult<()> {
        self.on_stream(Call::Wait, stream)
    }

    fn synchronize_stream(&self, stream: &NullStream) -> DriverResult<()> {
        self.on_stream(Call::SynchronizeStream, stream)
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        self.count(Call::SynchronizeDevice);
        Ok(())
    }

    /// Returns at once, whatever `limit` is.
    fn wait_event(&self, _event: &NullEvent, _limit: Duration) -> DriverResult<bool> {
        self.count(Call::WaitEvent);
        Ok(true)
    }
}

// SAFETY: nothing is written but the pinned targets of `copy_d2h` and `copy_rows`, exactly their bytes, before the call
// returns.
#[allow(unsafe_code, reason = "a driver declares that it keeps the contract, and host memory is real")]
unsafe impl Copies for Null {
    /// Reads nothing and writes nothing.
    unsafe fn copy_h2d(
        &self,
        _dst: Addr,
        _src: *const u8,
        _bytes: u64,
        stream: &NullStream,
    ) -> DriverResult<()> {
        self.on_stream(Call::CopyH2D, stream)
    }

    /// Writes zeros: a device without contents has no other data, and uninitialised host memory must not be
    /// readable through a copy that "succeeded".
    unsafe fn copy_d2h(&self, dst: *mut u8, _src: Addr, bytes: u64, stream: &NullStream) -> DriverResult<()> {
        self.on_stream(Call::CopyD2H, stream)?;
        let Ok(len) = usize::try_from(bytes) else {
            let message = format!("{bytes} bytes are more than this host can address");
            return Err(refused(Call::CopyD2H, DriverErrorKind::InvalidValue, message));
        };
        // SAFETY: the caller promised that `dst` is writable for `bytes` bytes.
        unsafe { dst.write_bytes(0, len) };
        Ok(())
    }

    /// Does nothing.
    unsafe fn copy_d2d(&self, _dst: Addr, _src: Addr, _bytes: u64, stream: &NullStream) -> DriverResult<()> {
        self.on_stream(Call::CopyD2D, stream)
    }

    /// Writes zeroes into pinned memory, as [`Copies::copy_d2h`] does.
    unsafe fn copy_rows(&self, copy: &Pitched, stream: &NullStream) -> DriverResult<()> {
        self.on_stream(Call::CopyRows, stream)?;
        let Some((to_span, _)) = copy.spans() else {
            let message =
                format!("a pitch of {copy:?} is below its width, or the rows end beyond all addresses");
            return Err(refused(Call::CopyRows, DriverErrorKind::InvalidValue, message));
        };
        let (CopySide::Pinned(first), true) = (copy.to, to_span > 0) else { return Ok(()) };
        for row in 0..copy.rows as usize {
            let row = first.wrapping_add(row * copy.to_pitch as usize);
            // SAFETY: the caller promised that the target's rows are writable.
            unsafe { row.write_bytes(0, copy.width as usize) };
        }
        Ok(())
    }

    /// Does nothing.
    unsafe fn copy_peer(
        &self,
        _dst: Addr,
        _to: &Null,
        _src: Addr,
        _bytes: u64,
        stream: &NullStream,
    ) -> DriverResult<()> {
        self.on_stream(Call::CopyPeer, stream)
    }

    /// Does nothing.
    unsafe fn fill(&self, _dst: Addr, _value: u8, _bytes: u64, stream: &NullStream) -> DriverResult<()> {
        self.on_stream(Call::Fill, stream)
    }
}

#[allow(unsafe_code, reason = "the contract is kept: there are no contents that a kernel could change")]
// SAFETY: nothing is touched.
unsafe impl Kernels for Null {
    /// Does nothing.
    unsafe fn launch_kernel(&self, launch: &KernelLaunch<'_>, stream: &NullStream) -> DriverResult<()> {
        let _ = launch;
        self.on_stream(Call::LaunchKernel, stream)
    }
}

impl Driver for Null {
    fn slot(&self) -> &DeviceSlot {
        &self.0.slot
    }

    /// Every call, those never made included.
    fn calls(&self) -> Vec<(&'static str, u64)> {
        NAMES.into_iter().zip(self.0.calls.iter().map(|c| c.load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests;
