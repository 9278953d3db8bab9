//! Plain device memory and pinned host memory: [`Memory`] and [`Host`].
//!
//! Device memory comes from `cuMemAlloc`, or from a pool of the driver's ([`Backing::Async`]) on a stream that is
//! waited for, so that the range can be used anywhere when the call returns. This file does not know who uses the
//! memory, and never frees what is in use: completion is the caller's duty, as the traits say.

use super::Cuda;
use super::context::{Device, NON_BLOCKING};
use super::ranges::Kind;
use super::table::{Call, Handle, Location, PoolProps, invalid, lacking};
use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;
use cudarc::driver::sys::{CUmemPoolHandle_st, CUmemoryPool, CUstream_st};
use millpond_driver::sync::{Arc, Weak};
use millpond_driver::units::{Addr, DeviceId, GRANULE_BYTES};
use millpond_driver::{DriverError, DriverErrorKind};
use millpond_driver::{DriverResult, Host, HostKind, HostMemory, Memory, MemoryInfo};

/// Where plain segments come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[non_exhaustive]
pub enum Backing {
    /// `cuMemAlloc` and `cuMemFree`. A free waits for every kernel on the device.
    #[default]
    Plain,
    /// `cuMemAllocAsync` from a pool of its own, on a stream of its own, which is waited for: a free waits for no
    /// kernel. The pool keeps up to `keep` bytes of what is given back, for this process; the rest goes to the device.
    Async {
        /// The pool's release threshold in bytes.
        keep: u64,
    },
}

/// A pool of the driver's and the stream its calls are ordered on. Ranges of the pool hold it, and the device lists
/// them: so it does not hold the device, or a range that the driver took back never would keep the context for good.
pub(super) struct AsyncPool {
    device: Weak<Device>,
    pool: Handle<CUmemPoolHandle_st>,
    stream: Handle<CUstream_st>,
    keep: u64,
}

impl fmt::Debug for AsyncPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncPool({:?}, keeps {} B)", self.pool, self.keep)
    }
}

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: i32 = 4;

#[allow(unsafe_code, reason = "foreign calls")]
impl AsyncPool {
    pub(super) fn new(device: &Arc<Device>, keep: u64) -> DriverResult<AsyncPool> {
        if !device.has_pools {
            return Err(lacking(
                Call::mem_pool_create,
                "this device has no memory pools: use Backing::Plain",
            ));
        }
        let bound = device.bind()?;
        let stream = device.make_stream(NON_BLOCKING, 0)?;
        let location = Location::device(device.ordinal);
        let props =
            PoolProps { kind: 1, exported_as: 0, location, windows: core::ptr::null_mut(), rest: [0; 8] };
        let mut pool: CUmemoryPool = core::ptr::null_mut();
        // SAFETY: both pointers are locals'.
        let code = unsafe { (device.table().mem_pool_create)(&raw mut pool, &raw const props) };
        if let Err(e) = device.done(Call::mem_pool_create, code) {
            // SAFETY: made above and not used.
            unsafe { device.destroy_stream(stream) };
            return Err(e);
        }
        // From here on a failure drops the pool and the stream.
        let made = AsyncPool { device: Arc::downgrade(device), pool: Handle(pool), stream, keep };
        let mut threshold = keep;
        let value = (&raw mut threshold).cast::<c_void>();
        // SAFETY: the attribute is a 64-bit number, and so is the local.
        let code = unsafe { (device.table().mem_pool_set)(pool, RELEASE_THRESHOLD, value) };
        device.done(Call::mem_pool_set, code)?;
        drop(bound);
        Ok(made)
    }

    fn allocate(&self, device: &Device, bytes: usize) -> DriverResult<u64> {
        let bound = device.bind()?;
        let mut addr = 0;
        let (pool, stream) = (self.pool.0, self.stream.0);
        // SAFETY: the pointer is a local's; the pool and the stream live as long as this value.
        let code = unsafe { (device.table().mem_alloc_from_pool)(&raw mut addr, bytes, pool, stream) };
        device.done(Call::mem_alloc_from_pool, code)?;
        // The range is the caller's, on any stream, once its allocation is complete on this one.
        // SAFETY: the stream lives as long as this value.
        if let Err(e) = unsafe { device.wait_for_stream(stream) } {
            // SAFETY: allocated above, and nothing uses it.
            let code = unsafe { (device.table().mem_free_async)(addr, stream) };
            let _ = device.done(Call::mem_free_async, code);
            return Err(e);
        }
        drop(bound);
        Ok(addr)
    }

    /// # Safety
    /// The range came whole from this pool and every use of it is complete.
    unsafe fn free(&self, device: &Device, addr: u64) -> DriverResult<()> {
        let bound = device.bind()?;
        // SAFETY: passed on from the caller; the stream lives as long as this value.
        let code = unsafe { (device.table().mem_free_async)(addr, self.stream.0) };
        device.done(Call::mem_free_async, code)?;
        // The range is given back from here on; the rest only hurries what is above the threshold to the device.
        // SAFETY: the stream lives as long as this value.
        let hurried = unsafe { device.wait_for_stream(self.stream.0) }.and_then(|()| {
            let keep = usize::try_from(self.keep).unwrap_or(usize::MAX);
            // SAFETY: the pool lives as long as this value; nothing in use is trimmed.
            let code = unsafe { (device.table().mem_pool_trim)(self.pool.0, keep) };
            device.done(Call::mem_pool_trim, code)
        });
        if let Err(e) = hurried {
            device.defer(e);
        }
        drop(bound);
        Ok(())
    }

    /// Gives the pool back and its stream, once.
    fn destroy(&self, device: &Device) {
        let pool = self.pool.0;
        device.quietly(Call::mem_pool_destroy, |table| {
            // SAFETY: made by `new`, and this is its end; what is still out of it stays until it is freed.
            unsafe { (table.mem_pool_destroy)(pool) }
        });
        // SAFETY: made by `new`, and its last user.
        unsafe { device.destroy_stream(self.stream) };
    }

    /// The end of pools whose ranges the driver never took back: for the device's own end.
    pub(super) fn destroy_all(pools: Vec<Arc<AsyncPool>>, device: &Device) {
        for pool in pools {
            // Its last range; dropped, it finds no device any more.
            if let Some(pool) = Arc::into_inner(pool) {
                pool.destroy(device);
            }
        }
    }
}

impl Drop for AsyncPool {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            self.destroy(&device);
        }
    }
}

/// A size that the driver accepts.
fn whole(call: Call, bytes: u64) -> DriverResult<usize> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULE_BYTES) {
        return Err(invalid(
            call,
            format!("requested {bytes} bytes: the size must be a multiple of 512, not 0"),
        ));
    }
    usize::try_from(bytes)
        .map_err(|_| invalid(call, format!("{bytes} bytes are more than this machine can address")))
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Cuda {
    fn plain(&self, bytes: usize) -> DriverResult<u64> {
        let device = &*self.device;
        let bound = device.bind()?;
        let mut addr = 0;
        // SAFETY: the pointer is a local's.
        let code = unsafe { (device.table().mem_alloc)(&raw mut addr, bytes) };
        device.done(Call::mem_alloc, code)?;
        drop(bound);
        Ok(addr)
    }

    /// # Safety
    /// As [`Memory::free_raw`], for a range of this kind.
    unsafe fn give_back(&self, addr: u64, kind: &Kind<AsyncPool>) -> DriverResult<()> {
        let device = &*self.device;
        if let Kind::Pooled(pool) = kind {
            // SAFETY: passed on from the caller; the kind names the pool that it came from.
            return unsafe { pool.free(device, addr) };
        }
        let bound = device.bind()?;
        // SAFETY: passed on from the caller.
        let code = unsafe { (device.table().mem_free)(addr) };
        device.done(Call::mem_free, code)?;
        drop(bound);
        Ok(())
    }

    /// Overwrites a range with zeroes and waits for it.
    ///
    /// # Safety
    /// The range is live device memory and every use of it is complete.
    unsafe fn wipe(&self, addr: u64, bytes: u64) -> DriverResult<()> {
        let device = &*self.device;
        let stream = device.internal_stream()?;
        let bound = device.bind()?;
        // SAFETY: passed on from the caller; the stream lives as long as the device.
        let code = unsafe { (device.table().memset_d8)(addr, 0, bytes as usize, stream) };
        device.done(Call::memset_d8, code)?;
        // SAFETY: the stream lives as long as the device.
        unsafe { device.wait_for_stream(stream)? };
        drop(bound);
        Ok(())
    }
}

#[allow(unsafe_code, reason = "the contract is kept by the driver")]
// SAFETY: the driver's live allocations are disjoint and stay until freed; the alignment is checked below.
unsafe impl Memory for Cuda {
    fn device(&self) -> DeviceId {
        self.device.id
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        let device = &*self.device;
        let bound = device.bind()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the pointers are locals'.
        let code = unsafe { (device.table().mem_get_info)(&raw mut free, &raw mut total) };
        device.done(Call::mem_get_info, code)?;
        drop(bound);
        Ok(MemoryInfo::new(free as u64, total as u64))
    }

    fn allocate_raw(&self, bytes: u64) -> DriverResult<Addr> {
        let call = Call::mem_alloc;
        let size = whole(call, bytes)?;
        let (addr, kind) = match &self.pool {
            None => (self.plain(size)?, Kind::Plain),
            Some(pool) => (pool.allocate(&self.device, size)?, Kind::Pooled(Arc::clone(pool))),
        };
        if !addr.is_multiple_of(GRANULE_BYTES) {
            // SAFETY: allocated above, of this kind, and nothing uses it.
            if let Err(e) = unsafe { self.give_back(addr, &kind) } {
                self.device.defer(e);
            }
            let message =
                format!("the driver's range at {addr:#x} is not 512-byte aligned, which heaps need");
            return Err(DriverError::new(call.name(), 1, DriverErrorKind::NotSupported, message));
        }
        self.device.ranges.add(addr, bytes, kind);
        Ok(Addr(addr))
    }

    /// [`Backing::Plain`] does. [`Backing::Async`] waits for a stream of its own only; scrubbing, also for a fill, which
    /// needs a free place on the device.
    fn shares_by_ipc(&self) -> bool {
        self.pool.is_none()
    }
    fn free_waits_for_device(&self) -> bool {
        self.pool.is_none() || self.scrub
    }

    /// [`Backing::Plain`]'s do, but for scrubbing, whose fill comes first.
    fn free_spares_uses(&self) -> bool {
        self.pool.is_none() && !self.scrub
    }

    unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let ranges = &self.device.ranges;
        let ours = |k: &Kind<AsyncPool>| matches!(k, Kind::Plain | Kind::Pooled(_));
        let Some(kind) = ranges.remove(addr.0, bytes, ours) else {
            let message = format!(
                "{bytes} bytes at {addr} are no plain allocation of this device: free each range whole, once"
            );
            return Err(invalid(Call::mem_free, message));
        };
        let wiped = if self.scrub && !mutant!(CudaScrubbedNot) {
            // SAFETY: the range was live until a line ago, and the caller says that its uses are complete.
            unsafe { self.wipe(addr.0, bytes) }
        } else {
            Ok(())
        };
        // SAFETY: the range came whole from `allocate_raw`, of this kind; passed on from the caller.
        let freed = wiped.and_then(|()| unsafe { self.give_back(addr.0, &kind) });
        if freed.is_err() {
            ranges.add(addr.0, bytes, kind);
        }
        freed
    }

    fn drop_failed(&self, error: DriverError) {
        self.device.defer(error);
    }

    fn deferred(&self) -> Vec<DriverError> {
        self.device.deferred()
    }
}

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context.
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`.
const WRITE_COMBINED: u32 = 4;

#[allow(unsafe_code, reason = "the contract is kept by the driver")]
// SAFETY: the driver's pinned ranges are disjoint pages of the process until freed; they are zeroed below.
unsafe impl Host for Cuda {
    /// As the trait says. Large segments of cached memory are registered pages of our own, where they can be. The pages are zeroed by this call: the
    /// driver does not promise it.
    fn pin_raw(&self, bytes: u64, kind: HostKind) -> DriverResult<NonNull<u8>> {
        let call = Call::mem_host_alloc;
        let size = whole(call, bytes)?;
        if kind == HostKind::Cached
            && let Some(pages) = self.pin_pages(bytes)?
        {
            return Ok(pages);
        }
        let flags = match kind {
            HostKind::Cached => PORTABLE,
            HostKind::WriteCombined => PORTABLE | WRITE_COMBINED,
        };
        let device = &*self.device;
        let bound = device.bind()?;
        let mut found: *mut c_void = core::ptr::null_mut();
        // SAFETY: the pointer is a local's.
        let code = unsafe { (device.table().mem_host_alloc)(&raw mut found, size, flags) };
        device.done(call, code)?;
        drop(bound);
        let aligned = found.addr().is_multiple_of(GRANULE_BYTES as usize);
        let Some(ptr) = NonNull::new(found.cast::<u8>()).filter(|_| aligned) else {
            if !found.is_null() {
                device.quietly(Call::mem_free_host, |table| {
                    // SAFETY: pinned above, and nothing uses it.
                    unsafe { (table.mem_free_host)(found) }
                });
            }
            let message = format!("the driver's pinned range at {found:?} is not 512-byte aligned");
            return Err(DriverError::new(call.name(), 1, DriverErrorKind::NotSupported, message));
        };
        // SAFETY: `size` bytes from here are the new range, to which no other reference exists.
        unsafe { ptr.write_bytes(if mutant!(CudaDirtyPages) { 0xD1 } else { 0 }, size) };
        // Exposed, because copies between ranges of this backend start from the number.
        device.ranges.add(ptr.as_ptr().expose_provenance() as u64, bytes, Kind::Pinned);
        Ok(ptr)
    }

    unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        let (call, device, addr) = (Call::mem_free_host, &*self.device, ptr.addr().get() as u64);
        let ours = |k: &Kind<AsyncPool>| matches!(k, Kind::Pinned | Kind::Pages(_));
        let Some(kind) = device.ranges.remove(addr, bytes, ours) else {
            let message = format!(
                "{bytes} bytes at {addr:#x} are no pinned range of this device: unpin each range whole, once"
            );
            return Err(invalid(call, message));
        };
        let kind = match kind {
            // The system wipes what it gives to anybody else.
            Kind::Pages(pages) => {
                // SAFETY: passed on from the caller; the range came from `pin_pages`.
                return unsafe { self.unpin_pages(pages) }.map_err(|(pages, e)| {
                    device.ranges.add(addr, bytes, Kind::Pages(pages));
                    e
                });
            }
            kind => kind,
        };
        if self.scrub {
            // SAFETY: the range was live until a line ago; the caller says that no use and no reference is left.
            unsafe { ptr.write_bytes(0, bytes as usize) };
        }
        let freed = device.bind().and_then(|bound| {
            // SAFETY: the range came whole from `pin_raw`; passed on from the caller.
            let code = unsafe { (device.table().mem_free_host)(ptr.as_ptr().cast()) };
            drop(bound);
            device.done(call, code)
        });
        if freed.is_err() {
            device.ranges.add(addr, bytes, kind);
        }
        freed
    }

    unsafe fn register_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.register_theirs(ptr, bytes) }
    }

    unsafe fn unregister_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.unregister_theirs(ptr, bytes) }
    }

    fn host_memory(&self) -> Option<HostMemory> {
        super::machine::memory()
    }

    /// `cuMemFreeHost` and `cuMemHostUnregister` do (`unpinning_waits_for_whatever_is_queued` in the conformance suite, on a GPU).
    fn unpin_waits_for_device(&self) -> bool {
        true
    }

    /// Not where they are overwritten, which the CPU does at once.
    fn unpin_spares_uses(&self) -> bool {
        !self.scrub
    }

    fn unpin_failed(&self, error: DriverError) {
        self.device.defer(error);
    }
}
