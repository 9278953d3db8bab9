//! Virtual memory: [`Mapping`].
//!
//! A handle is whole: it is mapped, made accessible and unmapped as one piece, and may be mapped at two addresses at
//! once. None of these calls waits for a kernel, so that nothing but the caller protects a kernel from an unmap (law O4
//! in docs/ordering.md). This file does not know pools of handles or windows of addresses.

use super::Cuda;
use super::ranges::Kind;
use super::table::{AccessDesc, AllocationProp, Call, Location, invalid, lacking};
#[cfg(unix)]
use core::ffi::c_int;
use millpond_driver::units::Addr;
use millpond_driver::{DriverResult, Mapping, MappingFacts, Properties};
#[cfg(unix)]
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: i32 = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
#[cfg(unix)]
const FILE_DESCRIPTOR: c_int = 1;

/// A piece of physical memory of one device. Dropping it does nothing: see [`Mapping::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuHandle {
    raw: u64,
    bytes: u64,
}

impl GpuHandle {
    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// The driver's own handle.
    pub fn raw(&self) -> u64 {
        self.raw
    }
}

impl Cuda {
    /// A size as the virtual memory calls want it, on a device that has them.
    fn whole_handles(&self, call: Call, bytes: u64) -> DriverResult<usize> {
        let Some(unit) = self.device.granularity else {
            return Err(lacking(call, "this device has no virtual memory management: use plain segments"));
        };
        if bytes == 0 || !bytes.is_multiple_of(unit) {
            return Err(invalid(
                call,
                format!("requested {bytes} bytes: the size must be a multiple of {unit}, not 0"),
            ));
        }
        usize::try_from(bytes)
            .map_err(|_| invalid(call, format!("{bytes} bytes are more than this machine can address")))
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
// SAFETY: the driver keeps mappings disjoint and refuses what is not whole.
unsafe impl Mapping for Cuda {
    type Handle = GpuHandle;

    fn mapping(&self) -> Option<MappingFacts> {
        self.device.granularity.map(|unit| MappingFacts::new(unit).with(self.device.may))
    }

    fn reserve(&self, bytes: u64, at: Option<Addr>) -> DriverResult<Addr> {
        let (call, device) = (Call::address_reserve, &*self.device);
        let size = self.whole_handles(call, bytes)?;
        let wanted = at.map_or(0, |a| a.0);
        let bound = device.bind()?;
        let mut addr = 0;
        // SAFETY: the pointer is a local's; an address that is not free is only a hint.
        let code = unsafe { (device.table().address_reserve)(&raw mut addr, size, 0, wanted, 0) };
        device.done(call, code)?;
        drop(bound);
        Ok(Addr(addr))
    }

    unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let (call, device) = (Call::address_free, &*self.device);
        let size = self.whole_handles(call, bytes)?;
        let bound = device.bind()?;
        // SAFETY: nothing is mapped there, as the caller promises.
        let code = unsafe { (device.table().address_free)(addr.0, size) };
        device.done(call, code)?;
        drop(bound);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DriverResult<GpuHandle> {
        self.create_with(bytes, Properties::default())
    }

    fn create_with(&self, bytes: u64, properties: Properties) -> DriverResult<GpuHandle> {
        let (call, device) = (Call::mem_create, &*self.device);
        let size = self.whole_handles(call, bytes)?;
        let bound = device.bind()?;
        let (mut raw, prop) = (0, AllocationProp::device(device.ordinal).with(properties));
        // SAFETY: both pointers are locals'.
        let code = unsafe { (device.table().mem_create)(&raw mut raw, size, &raw const prop, 0) };
        device.done(call, code)?;
        drop(bound);
        Ok(GpuHandle { raw, bytes })
    }

    #[cfg(unix)]
    fn export(&self, handle: &GpuHandle) -> DriverResult<OwnedFd> {
        let (call, device) = (Call::mem_export, &*self.device);
        let Some(export) = device.table().mem_export else {
            return Err(lacking(call, "this driver exports no physical memory"));
        };
        let bound = device.bind()?;
        let mut descriptor: c_int = -1;
        // SAFETY: the pointer is to a local descriptor, which is what this type of handle is written as; the handle is the caller's.
        let code = unsafe { export((&raw mut descriptor).cast(), handle.raw, FILE_DESCRIPTOR, 0) };
        device.done(call, code)?;
        drop(bound);
        // SAFETY: the driver opened it for this call, so it is nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    #[cfg(unix)]
    fn import(&self, from: BorrowedFd<'_>, bytes: u64) -> DriverResult<GpuHandle> {
        let (call, device) = (Call::mem_import, &*self.device);
        self.whole_handles(call, bytes)?;
        let Some(import) = device.table().mem_import else {
            return Err(lacking(call, "this driver imports no physical memory"));
        };
        let bound = device.bind()?;
        let (mut raw, descriptor) = (0, from.as_raw_fd().cast_unsigned() as usize);
        let descriptor = core::ptr::without_provenance_mut(descriptor);
        // SAFETY: the pointer is a local's; a descriptor is passed as the pointer's value and stays the caller's.
        let code = unsafe { import(&raw mut raw, descriptor, FILE_DESCRIPTOR) };
        device.done(call, code)?;
        drop(bound);
        Ok(GpuHandle { raw, bytes })
    }

    unsafe fn map(&self, addr: Addr, handle: &GpuHandle) -> DriverResult<()> {
        let (call, device) = (Call::mem_map, &*self.device);
        let size = self.whole_handles(call, handle.bytes)?;
        let bound = device.bind()?;
        // SAFETY: the addresses are the caller's, and nothing is mapped there.
        let code = unsafe { (device.table().mem_map)(addr.0, size, 0, handle.raw, 0) };
        device.done(call, code)?;
        drop(bound);
        device.ranges.add(addr.0, handle.bytes, Kind::Mapped);
        Ok(())
    }

    unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let (call, device) = (Call::mem_set_access, &*self.device);
        let size = self.whole_handles(call, bytes)?;
        let access = AccessDesc { location: Location::device(device.ordinal), flags: READ_WRITE };
        let bound = device.bind()?;
        // SAFETY: the addresses are the caller's; the description is a local, and one.
        let code = unsafe { (device.table().mem_set_access)(addr.0, size, &raw const access, 1) };
        device.done(call, code)?;
        drop(bound);
        Ok(())
    }

    unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let (call, device) = (Call::mem_unmap, &*self.device);
        let size = self.whole_handles(call, bytes)?;
        let bound = device.bind()?;
        // SAFETY: every use through these addresses is complete, as the caller promises.
        let code = unsafe { (device.table().mem_unmap)(addr.0, size) };
        device.done(call, code)?;
        drop(bound);
        device.ranges.remove_mapped(addr.0, bytes);
        Ok(())
    }

    unsafe fn release(&self, handle: &GpuHandle) -> DriverResult<()> {
        let (call, device) = (Call::mem_release, &*self.device);
        let bound = device.bind()?;
        // SAFETY: every use of the handle is complete, and it is released once, as the caller promises.
        let code = unsafe { (device.table().mem_release)(handle.raw) };
        device.done(call, code)?;
        drop(bound);
        Ok(())
    }
}
