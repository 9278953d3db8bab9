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
    /// Which properties its physical memory may have.
    pub may: Properties,
}

/// What physical memory is made for, besides use on its own device. Nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Properties {
    /// Another process can open it by a file descriptor ([`Mapping::export`]).
    pub file_descriptor: bool,
    /// Another process, of another machine too, can open it by a fabric handle.
    pub fabric: bool,
    /// A network card can read and write it (GPU-direct RDMA).
    pub rdma: bool,
}

impl Properties {
    /// These.
    pub const fn new(file_descriptor: bool, fabric: bool, rdma: bool) -> Properties {
        Properties { file_descriptor, fabric, rdma }
    }
    /// Those that both have.
    #[must_use]
    pub const fn and(self, other: Properties) -> Properties {
        Properties {
            file_descriptor: self.file_descriptor && other.file_descriptor,
            fabric: self.fabric && other.fabric,
            rdma: self.rdma && other.rdma,
        }
    }
}

impl MappingFacts {
    /// Virtual memory in units of so many bytes, of no special properties.
    pub const fn new(granularity: u64) -> MappingFacts {
        MappingFacts { granularity, may: Properties::new(false, false, false) }
    }
    /// The same, where physical memory may have these properties.
    #[must_use]
    pub const fn with(self, may: Properties) -> MappingFacts {
        MappingFacts { may, ..self }
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
    /// Creates physical memory with these properties, zeroed.
    ///
    /// # Errors
    /// Out of memory, the driver's, or that the device has no memory of these properties ([`MappingFacts::may`]).
    fn create_with(&self, bytes: u64, properties: Properties) -> DriverResult<Self::Handle> {
        if properties == Properties::default() { self.create(bytes) } else { Err(lacking("create_with")) }
    }
    /// A file descriptor by which other processes open the memory of a handle, all of it. The memory lives until all that opened it have released it. Waits for
    /// nothing.
    ///
    /// # Errors
    /// The driver's, or that the handle was not created for it ([`Properties::file_descriptor`]).
    #[cfg(unix)]
    fn export(&self, handle: &Self::Handle) -> DriverResult<std::os::fd::OwnedFd> {
        let _ = handle;
        Err(lacking("export"))
    }
    /// The memory that another process, or another owner in this one, exported, as a handle of its own, which is released as any other. `bytes` is its length, which
    /// the exporter says.
    ///
    /// # Errors
    /// The driver's: the descriptor is of no memory of this device.
    #[cfg(unix)]
    fn import(&self, from: std::os::fd::BorrowedFd<'_>, bytes: u64) -> DriverResult<Self::Handle> {
        let _ = (from, bytes);
        Err(lacking("import"))
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
    /// Every use made through these addresses is complete ([law O4]).
    ///
    #[doc = concat!("[law O4]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/ordering.md#o4")]
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
    /// Every use of the handle is complete ([law O4]).
    ///
    #[doc = concat!("[law O4]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/ordering.md#o4")]
    unsafe fn release(&self, handle: &Self::Handle) -> DriverResult<()> {
        let _ = handle;
        Err(lacking("release"))
    }
}

fn lacking(call: &'static str) -> DriverError {
    let message = "this device has no virtual memory: use plain segments";
    DriverError::new(call, 801, DriverErrorKind::NotSupported, message)
}
