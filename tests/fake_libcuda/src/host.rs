//! Pinned host memory, the driver's own and memory that a program registers.
//!
//! Unpinning waits for the whole device, as the driver does. Pinned memory is at the same address for the device as for
//! the CPU. This file does not know copies.

use crate::entry::{Fail, Outcome};
use crate::memory::{rounded, whole};
use crate::raw::Out;
use crate::spin;
use crate::state::{Kind, Range, State, give_back, here, state};
use millpond::DriverError;
use millpond::driver::{Host, HostKind};
use millpond_sim::Sim;
use std::ffi::c_uint;
use std::ptr::NonNull;

/// Whether an address lies in pinned memory.
pub(crate) fn is_pinned(addr: u64) -> bool {
    let found = state().range_around(addr);
    found.is_some_and(|(_, r)| matches!(r.kind, Kind::Pinned { .. }))
}

#[allow(unsafe_code, reason = "pinned memory is real")]
fn unpin(sim: &Sim, addr: u64, range: Range) -> Result<(), DriverError> {
    let registered = is_registered(range.kind);
    let (addr, bytes) = if registered { (addr, range.bytes) } else { whole(addr, range.bytes) };
    let ptr = NonNull::new(addr as *mut u8).ok_or_else(|| {
        DriverError::new(
            "cuMemFreeHost",
            1,
            millpond::DriverErrorKind::InvalidValue,
            "a null pointer is not pinned",
        )
    })?;
    if registered {
        // SAFETY: by the table of ranges, this is a whole range of `register_raw`; by the driver's contract the program's uses of it are over.
        return unsafe { sim.unregister_raw(ptr, bytes) };
    }
    // SAFETY: by the table of ranges, this is a whole range of `pin_raw`; no reference of ours is left, and by the
    // driver's contract none of the program's is used.
    unsafe { sim.unpin_raw(ptr, bytes) }
}

/// Frees the pinned memory that programs have left: it is memory of this process, and nothing refers to it any more.
pub(crate) fn forget(old: &State) {
    for (&addr, range) in old.ranges.iter().filter(|(_, r)| matches!(r.kind, Kind::Pinned { .. })) {
        // This fails while a spin kernel runs that was never ended: then the memory stays.
        let _ = unpin(&old.sims[range.device], addr, *range);
    }
}

fn allocate(bytes: usize, flags: c_uint) -> Outcome<u64> {
    if flags & !7 != 0 {
        return Err(Fail::invalid(format!("host memory flags {flags:#x} are not known")));
    }
    let (sim, device) = here()?;
    let (rounded, skew) = (rounded(bytes)?, state().faults.skew());
    let kind = if flags & 4 != 0 { HostKind::WriteCombined } else { HostKind::Cached };
    let addr = sim.pin_raw(whole(skew, rounded).1, kind)?.addr().get() as u64 + skew;
    state().add_range(addr, rounded, device, Kind::Pinned { flags, registered: false });
    Ok(addr)
}

fn is_registered(kind: Kind) -> bool {
    matches!(kind, Kind::Pinned { registered: true, .. })
}

#[allow(unsafe_code, reason = "memory of the program's")]
fn register(address: u64, bytes: usize, flags: c_uint) -> Outcome {
    if flags & !15 != 0 {
        return Err(Fail::invalid(format!("flags {flags:#x} for a registration are not known")));
    }
    let (sim, device) = here()?;
    let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address as usize))
        .ok_or_else(|| Fail::invalid("a null pointer cannot be registered"))?;
    // SAFETY: the program's contract with the driver: the memory is live until it is unregistered.
    unsafe { sim.register_raw(ptr, bytes as u64)? };
    state().add_range(address, bytes as u64, device, Kind::Pinned { flags, registered: true });
    Ok(())
}

driver_calls! {
    /// Allocates pinned memory: flag 1 portable, 2 mapped, 4 write-combined.
    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, flags: c_uint) {
        address.put(allocate(bytes, flags)?)
    }
    /// Allocates pinned memory.
    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) {
        address.put(allocate(bytes, 0)?)
    }
    /// Frees pinned memory; waits for every kernel on the device.
    fn cuMemFreeHost(address: u64) {
        here()?;
        let range = state().range_at(address, "pinned allocation", |k| matches!(k, Kind::Pinned { registered: false, .. }))?;
        let owner = state().sims[range.device].clone();
        // The memory may contain cells of spin kernels: these end before the range leaves the table.
        spin::blocking(|| owner.drain())?;
        give_back(address, range, || spin::blocking(|| unpin(&owner, address, range)))
    }
    /// Pins memory of the program's: flag 1 portable, 2 mapped, 4 memory of a device, 8 read-only.
    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: c_uint) {
        register(address, bytes, flags)
    }
    /// Ends that; waits for every kernel on the device.
    fn cuMemHostUnregister(address: u64) {
        here()?;
        let range = state().range_at(address, "registered range", is_registered)?;
        let owner = state().sims[range.device].clone();
        spin::blocking(|| owner.drain())?;
        give_back(address, range, || spin::blocking(|| unpin(&owner, address, range)))
    }
    /// The device's address of pinned memory, which is the CPU's.
    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, host: u64, flags: c_uint) {
        here()?;
        if flags != 0 || !is_pinned(host) {
            return Err(Fail::invalid(format!("{host:#x} is not pinned, or there are flags")));
        }
        device.put(host)
    }
    /// The flags with which pinned memory was allocated.
    fn cuMemHostGetFlags(flags: Out<c_uint>, host: u64) {
        match state().range_around(host).map(|(_, r)| r.kind) {
            Some(Kind::Pinned { flags: f, .. }) => flags.put(f),
            _ => Err(Fail::invalid(format!("{host:#x} is not pinned"))),
        }
    }
}
