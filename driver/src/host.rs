//! Page-locked host memory, which the device reads and writes directly.
//!
//! It does not know who accesses it from the CPU, nor when: the caller that unpins makes sure that no access is left.

use crate::units::Addr;
use crate::{DriverError, DriverErrorKind, DriverResult};
use core::fmt;
use core::ptr::NonNull;

/// How pinned host memory is cached by the CPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum HostKind {
    /// Ordinary cached memory: fast to read and write from the CPU.
    #[default]
    Cached,
    /// Write-combined: for sources that the CPU only ever writes; reading is very slow.
    WriteCombined,
}

/// How much memory a host has, for limits that are shares of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HostMemory {
    /// The machine's physical memory, in bytes.
    pub physical: u64,
    /// What the process may use of it at most, if a container limits it.
    pub container: Option<u64>,
}

impl HostMemory {
    /// A host with so much memory, and a process that a container limits or not.
    pub fn new(physical: u64, container: Option<u64>) -> HostMemory {
        HostMemory { physical, container }
    }
    /// The bytes that the process can have at most.
    pub fn bytes(self) -> u64 {
        self.physical.min(self.container.unwrap_or(u64::MAX))
    }
}

/// The smaller of the two, and whose it is.
impl fmt::Display for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.container {
            Some(limit) if limit < self.physical => "that this container may use",
            _ => "of memory that this machine has",
        };
        write!(f, "the {} {whose}", crate::bytes(self.bytes()))
    }
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
    /// Out of memory, or the driver's.
    fn pin_raw(&self, bytes: u64, kind: HostKind) -> DriverResult<NonNull<u8>>;

    /// Unpins and frees. **Waits for every kernel on the device** on real hardware.
    ///
    /// # Errors
    /// The driver's; the range then counts as still pinned.
    ///
    /// # Safety
    /// The range came whole from [`Host::pin_raw`], every use of it is complete and no reference into it is left.
    unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()>;

    /// Pins memory of the caller's where it is, for the device to read and write. By default a device cannot.
    ///
    /// # Errors
    /// It overlaps memory that is pinned; out of memory; not supported; the driver's. The memory is then as it was.
    ///
    /// # Safety
    /// `bytes` from `ptr`, not 0, are live memory of this process until [`Host::unregister_raw`] succeeds.
    unsafe fn register_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        let _ = (ptr, bytes);
        let message = "this device cannot pin memory that the program has: copy it into pinned memory";
        Err(DriverError::new("register", 801, DriverErrorKind::NotSupported, message))
    }

    /// Ends [`Host::register_raw`]: the memory is ordinary memory of the program's again. Waits as [`Host::unpin_raw`] does.
    ///
    /// # Errors
    /// The driver's; the range then counts as still pinned.
    ///
    /// # Safety
    /// The range was pinned whole by [`Host::register_raw`], and every use of it by the device is complete.
    unsafe fn unregister_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        let _ = bytes;
        let message = format!("no memory was registered at {ptr:?}: this device cannot");
        Err(DriverError::new("unregister", 801, DriverErrorKind::NotSupported, message))
    }

    /// How much memory the host has, if this device knows. By default it does not.
    fn host_memory(&self) -> Option<HostMemory> {
        None
    }

    /// Whether everything that was queued on the device before the call of [`Host::unpin_raw`], on any stream, is complete when it returns. If so, the call
    /// is a wait for the device that ends no capture. `false` unless a driver says so.
    fn unpin_waits_for_device(&self) -> bool {
        false
    }

    /// Whether a page that work on the device still uses may be passed to [`Host::unpin_raw`] even so, because its bytes are not touched before that work
    /// is complete. As [`Host::unpin_waits_for_device`], unless a driver overwrites pages first.
    fn unpin_spares_uses(&self) -> bool {
        self.unpin_waits_for_device()
    }

    /// Keeps an error of a destructor for a later query. Empty by default.
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

// SAFETY: the pointer is the range's identity; it is not dereferenced here.
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
        // A user of a part of the range makes a pointer from the number again.
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
        // Before the call: if it panics it may have freed the range, and a leak is better than a second free.
        self.armed = false;
        // SAFETY: the range came from `pin_raw` of this driver and is freed once, since `armed` is cleared.
        match unsafe { self.driver.unpin_raw(self.ptr, self.bytes) } {
            Ok(()) => Ok(()),
            Err(e) => {
                self.armed = true;
                Err((self, e))
            }
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
