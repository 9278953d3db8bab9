//! Virtual memory: reservations, physical handles, mappings, access.
//!
//! The rules are the simulated device's: 2 MiB granularity, handles are mapped whole, access must be set after every map. A
//! handle that is released while mapped lives until it is unmapped. None of these calls waits. This file does not
//! know the contents of the memory.

use crate::entry::{Fail, Outcome};
use crate::raw::{In, Out};
use crate::state::{Kind, Physical, here, state};
use millpond::driver::{Mapping, Properties as Shared};
use millpond::units::Addr;
use millpond_sim::Sim;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};

/// The location of memory: a kind (1 is a device) and a number.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Location {
    kind: c_uint,
    id: c_int,
}

/// The properties of physical memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Properties {
    /// 1 is pinned, the only kind.
    kind: c_uint,
    shareable: c_uint,
    location: Location,
    windows: usize,
    /// Compression, GPU-direct RDMA, usage, reserved.
    flags: [u8; 8],
}

/// Which device may access mapped memory, and how: 3 is reading and writing.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Access {
    location: Location,
    flags: c_uint,
}

fn device_of(location: Location) -> Outcome<(Sim, usize)> {
    let state = state();
    let found = usize::try_from(location.id).ok().and_then(|d| Some((state.sims.get(d)?.clone(), d)));
    found
        .filter(|_| location.kind == 1)
        .ok_or_else(|| Fail::invalid(format!("{location:?} is no device that memory can lie on")))
}

fn check(properties: In<Properties>) -> Outcome<(Sim, usize)> {
    let p = properties.get()?;
    let flags = [0, p.flags[1] & 1, 0, 0, 0, 0, 0, 0];
    if p.kind != 1 || p.shareable > 1 || p.windows != 0 || p.flags != flags {
        return Err(Fail::unsupported(format!(
            "only pinned memory can be made, exported as descriptors, not {p:?}"
        )));
    }
    device_of(p.location)
}

/// The device that properties name.
pub(crate) fn device(properties: In<Properties>) -> Outcome<usize> {
    check(properties).map(|(_, device)| device)
}

/// The device on which an address is reserved.
fn reserved(address: u64) -> Outcome<Sim> {
    let state = state();
    let found =
        state.reservations.range(..=address).next_back().filter(|(s, (bytes, _))| address - **s < *bytes);
    let device =
        found.map(|(_, &(_, d))| d).ok_or_else(|| Fail::invalid(format!("{address:#x} is not reserved")))?;
    Ok(state.sims[device].clone())
}

fn granularity(sim: &Sim) -> u64 {
    sim.mapping().expect("the simulated device has virtual memory").granularity
}

/// Reserves addresses that are a multiple of `alignment`.
fn reserve(sim: &Sim, bytes: u64, alignment: u64, wanted: Option<Addr>) -> Outcome<u64> {
    let granularity = granularity(sim);
    if !bytes.is_multiple_of(granularity) || bytes == 0 || (alignment != 0 && !alignment.is_power_of_two()) {
        return Err(Fail::invalid(format!("{bytes} addresses aligned to {alignment} cannot be reserved")));
    }
    let found = sim.reserve(bytes, wanted)?.0;
    if alignment <= granularity || found.is_multiple_of(alignment) {
        return Ok(found);
    }
    unreserve(sim, found, bytes)?;
    let wide = bytes.checked_add(alignment).ok_or_else(|| Fail::invalid("more addresses than there are"))?;
    let scout = sim.reserve(wide, None)?.0;
    unreserve(sim, scout, wide)?;
    let aligned = scout.next_multiple_of(alignment);
    Ok(sim.reserve(bytes, Some(Addr(aligned)))?.0)
}

#[allow(unsafe_code, reason = "addresses of the simulated device")]
fn unreserve(sim: &Sim, addr: u64, bytes: u64) -> Outcome {
    // SAFETY: these are addresses of the simulated device, which refuses any others.
    Ok(unsafe { sim.unreserve(Addr(addr), bytes) }?)
}
#[allow(unsafe_code, reason = "addresses of the simulated device")]
fn map(sim: &Sim, addr: u64, handle: &millpond_sim::SimHandle) -> Outcome {
    // SAFETY: as for `unreserve`.
    Ok(unsafe { sim.map(Addr(addr), handle) }?)
}
#[allow(unsafe_code, reason = "addresses of the simulated device")]
fn set_access(sim: &Sim, addr: u64, bytes: u64) -> Outcome {
    // SAFETY: as for `unreserve`.
    Ok(unsafe { sim.set_access(Addr(addr), bytes) }?)
}
#[allow(unsafe_code, reason = "addresses of the simulated device")]
fn unmap(sim: &Sim, addr: u64, bytes: u64) -> Outcome {
    // SAFETY: as for `unreserve`.
    Ok(unsafe { sim.unmap(Addr(addr), bytes) }?)
}
#[allow(unsafe_code, reason = "handles of the simulated device")]
fn release(sim: &Sim, handle: &millpond_sim::SimHandle) -> Outcome {
    // SAFETY: as for `unreserve`.
    Ok(unsafe { sim.release(handle) }?)
}

#[allow(unsafe_code, reason = "a descriptor of the caller's")]
fn import(sim: &Sim, descriptor: RawFd) -> Outcome<millpond_sim::SimHandle> {
    // SAFETY: the caller's descriptor, open during the call.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(sim.import_any(descriptor)?)
}

driver_calls! {
    /// Returns the granularity of sizes and addresses.
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<Properties>, option: c_uint) {
        if option > 1 {
            return Err(Fail::invalid(format!("granularity option {option} is not known")));
        }
        bytes.put(granularity(&check(properties)?.0) as usize)
    }
    /// Reserves addresses, at the requested place if it is free.
    fn cuMemAddressReserve(address: Out<u64>, bytes: usize, alignment: usize, wanted: u64, flags: c_ulonglong) {
        let (sim, device) = here()?;
        if flags != 0 {
            return Err(Fail::invalid("a reservation takes no flags"));
        }
        let wanted = (wanted != 0).then_some(Addr(wanted));
        let found = reserve(&sim, bytes as u64, alignment as u64, wanted)?;
        state().reservations.insert(found, (bytes as u64, device));
        address.put(found)
    }
    /// Frees a whole reservation.
    fn cuMemAddressFree(address: u64, bytes: usize) {
        let sim = reserved(address)?;
        // The entry leaves the table first, because another thread may get the addresses before the call returns.
        let entry = state().reservations.remove(&address);
        unreserve(&sim, address, bytes as u64).inspect_err(|_| {
            state().reservations.extend(entry.map(|e| (address, e)));
        })
    }
    /// Creates physical memory.
    fn cuMemCreate(handle: Out<u64>, bytes: usize, properties: In<Properties>, flags: c_ulonglong) {
        if flags != 0 {
            return Err(Fail::invalid("physical memory takes no flags"));
        }
        let (sim, device) = check(properties)?;
        let properties = properties.get()?;
        let with = Shared::new(properties.shareable == 1, false, properties.flags[1] == 1);
        let made = sim.create_with(bytes as u64, with)?;
        handle.put(state().physical.insert(Physical { sim: made, device }))
    }
    /// Releases physical memory; it lives on while it is mapped.
    fn cuMemRelease(handle: u64) {
        let (sim, physical) = {
            let state = state();
            let p = state.physical.get(handle)?.clone();
            (state.sims[p.device].clone(), p)
        };
        release(&sim, &physical.sim)?;
        state().physical.remove(handle).map(|_| ())
    }
    /// Opens a descriptor of physical memory that was created for it.
    fn cuMemExportToShareableHandle(descriptor: Out<c_int>, handle: u64, kind: c_uint, flags: c_ulonglong) {
        let (sim, physical) = {
            let state = state();
            let p = state.physical.get(handle)?.clone();
            (state.sims[p.device].clone(), p)
        };
        if kind != 1 || flags != 0 {
            return Err(Fail::invalid(format!("memory is exported as a descriptor (1) and without flags, not {kind}")));
        }
        descriptor.put(sim.export(&physical.sim)?.into_raw_fd())
    }
    /// Physical memory of a descriptor, on the device of the current context; the descriptor stays the caller's.
    fn cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: usize, kind: c_uint) {
        let (sim, device) = here()?;
        let Some(descriptor) = RawFd::try_from(descriptor).ok().filter(|_| kind == 1) else {
            return Err(Fail::invalid(format!("{descriptor:#x} is no descriptor of kind 1")));
        };
        let made = import(&sim, descriptor)?;
        handle.put(state().physical.insert(Physical { sim: made, device }))
    }
    /// Maps a whole handle.
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        let physical = state().physical.get(handle)?.clone();
        if offset != 0 || bytes as u64 != physical.sim.bytes() || flags != 0 {
            return Err(Fail::invalid(format!(
                "{bytes} bytes from {offset} of a handle of {}: a handle is mapped whole", physical.sim.bytes()
            )));
        }
        map(&reserved(address)?, address, &physical.sim)?;
        state().add_range(address, bytes as u64, physical.device, Kind::Mapped { handle, usable: false });
        Ok(())
    }
    /// Sets access to mapped memory, which is needed after every map.
    fn cuMemSetAccess(address: u64, bytes: usize, rights: In<Access>, count: usize) {
        let sim = reserved(address)?;
        for index in 0..count {
            let right = rights.nth(index)?;
            device_of(right.location)?;
            if right.flags != 3 {
                return Err(Fail::unsupported(format!("only reading and writing can be given, not {right:?}")));
            }
        }
        if count == 0 {
            return Err(Fail::invalid("no access rights are given"));
        }
        set_access(&sim, address, bytes as u64)?;
        for (_, range) in state().ranges.range_mut(address..address + bytes as u64) {
            if let Kind::Mapped { usable, .. } = &mut range.kind {
                *usable = true;
            }
        }
        Ok(())
    }
    /// Returns a device's access to mapped memory: 0 is none, 3 is read and write.
    fn cuMemGetAccess(rights: Out<c_ulonglong>, location: In<Location>, address: u64) {
        let (_, device) = device_of(location.get()?)?;
        match state().range_around(address).filter(|(_, r)| r.device == device).map(|(_, r)| r.kind) {
            Some(Kind::Mapped { usable, .. }) => rights.put(if usable { 3 } else { 0 }),
            _ => Err(Fail::invalid(format!("nothing of device {device} is mapped at {address:#x}"))),
        }
    }
    /// Unmaps a range.
    fn cuMemUnmap(address: u64, bytes: usize) {
        // The addresses stay reserved, so another thread can map there meanwhile only by a race in the program.
        unmap(&reserved(address)?, address, bytes as u64)?;
        let end = address + bytes as u64;
        state().ranges.retain(|start, _| !(address..end).contains(start));
        Ok(())
    }
}
