//! Virtual memory of a device: addresses and physical memory, each on its own. A device may have none.
//!
//! It does not know what was reserved, created or mapped: that is [`VirtualMemory`](crate::VirtualMemory), whose methods are safe.

use crate::units::Addr;
use crate::{DriverError, DriverErrorKind, DriverResult};
use core::fmt;

/// What a device's virtual memory is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MappingFacts {
    /// The unit of sizes and addresses in bytes: 2 MiB on every device seen.
    pub granularity: u64,
}

impl MappingFacts {
    /// Virtual memory in units of so many bytes.
    pub const fn new(granularity: u64) -> MappingFacts {
        MappingFacts { granularity }
    }
}

/// Virtual memory: separate addresses and physical handles.
///
/// A device without has no virtual memory if it only names a type of handles, `()` for example: [`Mapping::mapping`] is `None`, and everything
/// else fails with [`DriverErrorKind::NotSupported`].
///
/// # Safety
/// As [`Memory`](crate::Memory); a handle is whole, sizes and addresses are multiples of [`MappingFacts::granularity`].
#[allow(unsafe_code, reason = "mapping works on raw addresses")]
pub unsafe trait Mapping: Clone + Send + Sync + Sized + 'static {
    /// A piece of physical memory. Dropping it does nothing: see [`Mapping::release`].
    type Handle: Clone + fmt::Debug + PartialEq + Send + Sync + 'static;

    /// What its virtual memory is like; `None`, the default, if it has none. Never changes.
    fn mapping(&self) -> Option<MappingFacts> {
        None
    }
    /// Reserves addresses, at `at` if that is free.
    ///
    /// # Errors
    /// The driver's.
    fn reserve(&self, bytes: u64, at: Option<Addr>) -> DriverResult<Addr> {
        let _ = (bytes, at);
        Err(lacking("reserve"))
    }
    /// Gives addresses back: a reservation, whole.
    ///
    /// # Errors
    /// The driver's; the addresses are then still reserved.
    ///
    /// # Safety
    /// Nothing is mapped there.
    unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let _ = (addr, bytes);
        Err(lacking("unreserve"))
    }
    /// Creates physical memory, zeroed.
    ///
    /// # Errors
    /// Out of memory, or the driver's.
    fn create(&self, bytes: u64) -> DriverResult<Self::Handle> {
        let _ = bytes;
        Err(lacking("create"))
    }
    /// Maps a whole handle. It can be used only after [`Mapping::set_access`]; one handle may be mapped twice.
    ///
    /// # Errors
    /// The driver's; nothing is then mapped.
    ///
    /// # Safety
    /// The addresses are reserved by the caller and nothing is mapped there.
    unsafe fn map(&self, addr: Addr, handle: &Self::Handle) -> DriverResult<()> {
        let _ = (addr, handle);
        Err(lacking("map"))
    }
    /// Makes mapped addresses readable and writable; needed again after every map.
    ///
    /// # Errors
    /// The driver's; none of the addresses then counts as usable.
    ///
    /// # Safety
    /// The addresses belong to the caller.
    unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let _ = (addr, bytes);
        Err(lacking("set_access"))
    }
    /// Unmaps addresses. Waits for nothing.
    ///
    /// # Errors
    /// The driver's; the mapping then counts as still there.
    ///
    /// # Safety
    /// Every use made through these addresses is complete (law O4).
    unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let _ = (addr, bytes);
        Err(lacking("unmap"))
    }
    /// Gives physical memory back; it is freed when it is mapped nowhere.
    ///
    /// # Errors
    /// The driver's; the handle then counts as still there.
    ///
    /// # Safety
    /// Every use of the handle is complete (law O4).
    unsafe fn release(&self, handle: &Self::Handle) -> DriverResult<()> {
        let _ = handle;
        Err(lacking("release"))
    }
}

fn lacking(call: &'static str) -> DriverError {
    let message = "this device has no virtual memory: use plain segments";
    DriverError::new(call, 801, DriverErrorKind::NotSupported, message)
}
