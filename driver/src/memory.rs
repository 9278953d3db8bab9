//! Device memory in plain ranges.
//!
//! It does not know streams: the caller that frees makes sure that the uses are complete.

use crate::units::{Addr, DeviceId};
use crate::{DriverError, DriverResult};
use core::fmt;

/// A device's memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Unallocated bytes.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

impl MemoryInfo {
    /// Of these two.
    pub const fn new(free: u64, total: u64) -> MemoryInfo {
        MemoryInfo { free, total }
    }
}

/// Device memory by plain allocation.
///
/// # Safety
/// Live ranges are disjoint, at least 512-byte aligned, and stay valid until freed: the soundness of other modules depends on it.
#[allow(unsafe_code, reason = "the contract that array and transfer rest on")]
pub unsafe trait Memory: Clone + Send + Sync + Sized + 'static {
    /// The device.
    fn device(&self) -> DeviceId;

    /// Free and total memory.
    ///
    /// # Errors
    /// The driver's.
    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// Allocates `bytes`, a multiple of 512 and not 0. Orders nothing and waits for nothing.
    ///
    /// # Errors
    /// Out of memory, or the driver's.
    fn allocate_raw(&self, bytes: u64) -> DriverResult<Addr>;

    /// Whether [`Memory::free_raw`] waits for the device, including independent streams. If so, an allocator gives
    /// no memory back in a request, only in an explicit trim and at its end. `true` by default.
    fn free_waits_for_device(&self) -> bool {
        true
    }

    /// Whether a range that work on the device still uses may be passed to [`Memory::free_raw`] even so, because its bytes are not touched before that
    /// work is complete. As [`Memory::free_waits_for_device`], unless a driver overwrites ranges first.
    fn free_spares_uses(&self) -> bool {
        self.free_waits_for_device()
    }

    /// Frees a range. Waits for every kernel on the device, unless [`Memory::free_waits_for_device`] is
    /// `false`.
    ///
    /// # Errors
    /// The driver's; the range then counts as still allocated.
    ///
    /// # Safety
    /// The range came whole from [`Memory::allocate_raw`], and every use of it is complete.
    unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()>;

    /// Whether another process can open a plain range by the driver's legacy IPC (`cuIpcGetMemHandle`). `false` by default.
    fn shares_by_ipc(&self) -> bool {
        false
    }

    /// Allocates an owned range.
    ///
    /// # Errors
    /// As [`Memory::allocate_raw`].
    fn allocate(&self, bytes: u64) -> DriverResult<OwnedRange<Self>> {
        let addr = self.allocate_raw(bytes)?;
        Ok(OwnedRange { driver: self.clone(), addr, bytes, armed: true })
    }

    /// Keeps an error of a destructor, for [`Memory::deferred`]. Forgets it by default.
    fn drop_failed(&self, error: DriverError) {
        let _ = error;
    }

    /// The errors of destructors, oldest first. None by default.
    fn deferred(&self) -> Vec<DriverError> {
        Vec::new()
    }
}

/// A plain range of device memory, freed when dropped or by [`OwnedRange::release`].
///
/// The owner that drops it makes sure that its uses are complete.
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
        // Before the call: if it panics it may have freed the range, and a leak is better than a second free.
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
