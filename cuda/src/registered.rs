//! Pinned memory by registration: large segments of our own pages, and memory that the program has.
//!
//! A large segment is anonymous memory that several threads touched ([`Pages`]) and one registration: 37 to 47 ms a GiB where the driver's own call
//! takes 288 to 390 (H200). Whatever of it is refused leaves nothing behind, and the driver's call is made instead. The device's address
//! of registered memory must be the CPU's, which a device says of itself. This file does not know who uses the memory.

use super::Cuda;
use super::context::Device;
use super::machine;
use super::pages::Pages;
use super::ranges::Kind;
use super::table::{Call, invalid, lacking};
use core::ffi::c_int;
use core::ptr::NonNull;
use millpond_driver::DriverResult;
use std::sync::atomic::Ordering;

/// From this many bytes on our own pages are quicker (2.9 against 11.8 ms for so many; at 1 MiB they lose; H200).
pub(super) const LEAST: u64 = 64 << 20;
/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context.
const PORTABLE: u32 = 1;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`.
const SAME_ADDRESS: c_int = 91;
/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID`; drivers since CUDA 12.2 know it.
const NODE: c_int = 134;
/// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`, `_BUS_ID` and `_DEVICE_ID`.
const PCI: [c_int; 3] = [50, 33, 34];
/// `CUDA_ERROR_NOT_PERMITTED`.
const NOT_PERMITTED: u32 = 800;

impl Device {
    /// Whether memory can be registered so that the device has it at the CPU's address.
    ///
    /// # Errors
    /// The driver's, or what it lacks.
    fn can_register(&self) -> DriverResult<()> {
        let call = Call::mem_host_register;
        if self.table().mem_host_register.is_none() || self.table().mem_host_unregister.is_none() {
            return Err(lacking(call, "this driver has no cuMemHostRegister"));
        }
        let known = self.registering.same_address.get().copied();
        let same = known.map_or_else(|| self.attribute(SAME_ADDRESS).map(|value| value != 0), Ok)?;
        if *self.registering.same_address.get_or_init(|| same) {
            return Ok(());
        }
        Err(lacking(call, "this device has registered memory at another address than the CPU"))
    }

    /// The memory node near the device, if one is known.
    fn node(&self) -> Option<u32> {
        *self.registering.node.get_or_init(|| {
            let said = self.attribute(NODE).ok().and_then(|node| u32::try_from(node).ok());
            said.or_else(|| {
                let [domain, bus, device] = PCI.map(|which| self.attribute(which).ok());
                machine::node_of(domain?, bus?, device?)
            })
        })
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Cuda {
    /// # Safety
    /// So many bytes are live memory of this process until they are unregistered.
    unsafe fn register(&self, ptr: NonNull<u8>, bytes: usize) -> DriverResult<()> {
        let (device, call) = (&*self.device, Call::mem_host_register);
        device.can_register()?;
        let Some(register) = device.table().mem_host_register else {
            return Err(lacking(call, "this driver has no cuMemHostRegister"));
        };
        let bound = device.bind()?;
        // SAFETY: passed on from the caller.
        let code = unsafe { register(ptr.as_ptr().cast(), bytes, PORTABLE) };
        drop(bound);
        device.done(call, code)
    }

    /// # Safety
    /// The range was registered whole, and the device's uses of it are complete.
    unsafe fn unregister(&self, ptr: NonNull<u8>) -> DriverResult<()> {
        let (device, call) = (&*self.device, Call::mem_host_unregister);
        let Some(unregister) = device.table().mem_host_unregister else {
            return Err(lacking(call, "this driver has no cuMemHostUnregister"));
        };
        let bound = device.bind()?;
        // SAFETY: passed on from the caller.
        let code = unsafe { unregister(ptr.as_ptr().cast()) };
        drop(bound);
        let ended = device.done(call, code);
        if mutant!(CudaUnregisterIgnored) { Ok(()) } else { ended }
    }

    /// Pins a large segment of our own pages. `None` where the driver's own call is to be made: the segment is small, or something was refused, of which
    /// nothing is left.
    ///
    /// # Errors
    /// That the context is lost.
    pub(super) fn pin_pages(&self, bytes: u64) -> DriverResult<Option<NonNull<u8>>> {
        let device = &*self.device;
        if bytes < LEAST || device.registering.refused.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // Before anything is touched for it. A failed question is not an answer.
        match device.can_register() {
            Ok(()) => {}
            Err(e) if e.is_context_lost() => return Err(e),
            Err(_) => return Ok(None),
        }
        // Touching more than there is would end a process, perhaps another one; the driver's call fails instead.
        if machine::available().is_some_and(|available| available < bytes) {
            return Ok(None);
        }
        let Some(pages) = usize::try_from(bytes).ok().and_then(|size| Pages::reserve(size, device.node()))
        else {
            return Ok(None);
        };
        pages.touch();
        // SAFETY: the pages live until `unpin_pages` has unregistered them.
        if let Err(e) = unsafe { self.register(pages.at(), pages.bytes()) } {
            // SAFETY: nobody has seen them.
            unsafe { pages.unmap() };
            if e.is_context_lost() || mutant!(CudaRegisterFails) {
                return Err(e);
            }
            if e.code == NOT_PERMITTED || e.kind == millpond_driver::DriverErrorKind::NotSupported {
                device.registering.refused.store(true, Ordering::Relaxed);
            }
            return Ok(None);
        }
        let at = pages.at();
        // Exposed, as in `pin_raw`.
        device.ranges.add(at.as_ptr().expose_provenance() as u64, bytes, Kind::Pages(pages));
        Ok(Some(at))
    }

    /// Unregisters pages of ours and gives them back; both or neither.
    ///
    /// # Safety
    /// They came from `pin_pages`; every use is complete, and no reference is left.
    pub(super) unsafe fn unpin_pages(
        &self,
        pages: Pages,
    ) -> Result<(), (Pages, millpond_driver::DriverError)> {
        // SAFETY: passed on from the caller.
        if let Err(e) = unsafe { self.unregister(pages.at()) } {
            return Err((pages, e));
        }
        // SAFETY: passed on from the caller; the device has them no more.
        unsafe { pages.unmap() };
        Ok(())
    }

    /// Pins memory of the program's where it is.
    ///
    /// # Safety
    /// So many bytes, not 0, are live memory of this process until they are unregistered.
    pub(super) unsafe fn register_theirs(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        let call = Call::mem_host_register;
        let size = usize::try_from(bytes).ok().filter(|&size| size > 0);
        let Some(size) = size else {
            return Err(invalid(call, format!("{bytes} bytes at {ptr:?} cannot be registered")));
        };
        // SAFETY: passed on from the caller.
        unsafe { self.register(ptr, size)? };
        self.device.ranges.add(ptr.as_ptr().expose_provenance() as u64, bytes, Kind::Registered);
        Ok(())
    }

    /// Ends that: the memory is the program's alone again.
    ///
    /// # Safety
    /// The range was registered whole, and the device's uses of it are complete.
    pub(super) unsafe fn unregister_theirs(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        let (ranges, addr) = (&self.device.ranges, ptr.addr().get() as u64);
        let Some(kind) = ranges.remove(addr, bytes, |k| matches!(k, Kind::Registered)) else {
            let message = format!(
                "{bytes} bytes at {addr:#x} are no registered memory of this device: unregister each range whole, once"
            );
            return Err(invalid(Call::mem_host_unregister, message));
        };
        // SAFETY: passed on from the caller.
        let ended = unsafe { self.unregister(ptr) };
        if ended.is_err() {
            ranges.add(addr, bytes, kind);
        }
        ended
    }
}
