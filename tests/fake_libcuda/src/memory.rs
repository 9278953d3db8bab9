//! Plain device memory, and attributes of addresses.
//!
//! Any length is allowed; it is rounded up to a multiple of the simulated device's 512 bytes. A free waits for the whole device, as the
//! driver's does. This file does not know streams.

use crate::entry::{Fail, Outcome};
use crate::raw::Out;
use crate::spin;
use crate::state::{Kind, context_of, give_back, here, state};
use millpond::driver::Memory;
use millpond::units::Addr;
use std::ffi::c_uint;

/// Rounds up to a length that the simulated device accepts; 0 is refused, and so is a length that would wrap.
pub(crate) fn rounded(bytes: usize) -> Outcome<u64> {
    match (bytes as u64).checked_next_multiple_of(512) {
        None | Some(0) => Err(Fail::invalid(format!("{bytes} bytes cannot be allocated"))),
        Some(rounded) => Ok(rounded),
    }
}

/// The simulated device's range that contains one that may be unaligned: the device's ranges all begin at a multiple of 512.
pub(crate) fn whole(addr: u64, bytes: u64) -> (u64, u64) {
    let skew = addr % 512;
    (addr - skew, bytes + skew.next_multiple_of(512))
}

#[allow(unsafe_code, reason = "memory of the simulated device")]
fn free(sim: &millpond_sim::Sim, addr: u64, bytes: u64) -> Result<(), millpond::DriverError> {
    let (addr, bytes) = whole(addr, bytes);
    // SAFETY: by the table of ranges, this is a whole range of `allocate_raw`. That its uses are complete is the
    // program's duty; the simulator waits for them and checks it, and the address is not memory of this process.
    unsafe { sim.free_raw(Addr(addr), bytes) }
}

/// The result of `cuPointerGetAttribute`, each attribute as a word.
fn attribute(addr: u64, attribute: c_uint) -> Outcome<u64> {
    let state = state();
    let Some((start, range)) = state.range_around(addr) else {
        return Err(Fail::invalid(format!("the driver did not allocate {addr:#x}")));
    };
    let pinned = matches!(range.kind, Kind::Pinned { .. });
    match attribute {
        1 => Ok(context_of(range.device)),
        2 => Ok(if pinned { 1 } else { 2 }),
        3 => Ok(addr),
        4 if pinned => Ok(addr),
        4 => Err(Fail::invalid(format!("{addr:#x} is device memory: the host has no pointer to it"))),
        7 => Ok(range.id),
        8 => Ok(0),
        9 => Ok(range.device as u64),
        11 => Ok(start),
        12 => Ok(range.bytes),
        13 => Ok(1),
        _ => Err(Fail::unsupported(format!("pointer attribute {attribute} is not modelled"))),
    }
}

driver_calls! {
    /// Allocates device memory.
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        let (sim, device) = here()?;
        let (rounded, skew) = (rounded(bytes)?, state().faults.skew());
        let addr = sim.allocate_raw(whole(skew, rounded).1)?.0 + skew;
        state().add_range(addr, rounded, device, Kind::Plain);
        address.put(addr)
    }
    /// Frees device memory, also memory of a pool; waits for every kernel on the device.
    fn cuMemFree_v2(address: u64) {
        let (sim, _) = here()?;
        if address == 0 {
            return Ok(());
        }
        let range = state().range_at(address, "device allocation", |k| matches!(k, Kind::Plain | Kind::Pooled))?;
        if range.kind == Kind::Pooled {
            spin::blocking(|| sim.drain())?;
            return crate::pool::free(address, 0);
        }
        let owner = state().sims[range.device].clone();
        spin::blocking(|| owner.drain())?;
        give_back(address, range, || spin::blocking(|| free(&owner, address, range.bytes)))
    }
    /// Free and total memory of the current device.
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let info = here()?.0.memory_info()?;
        free.put_if_wanted(info.free as usize);
        total.put_if_wanted(info.total as usize);
        Ok(())
    }
    /// The allocation that contains an address; in virtual memory, the mapping of one handle.
    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        here()?;
        let Some((start, range)) = state().range_around(address) else {
            return Err(Fail::new(crate::entry::NOT_FOUND, format!("the driver did not allocate {address:#x}")));
        };
        base.put_if_wanted(start);
        bytes.put_if_wanted(range.bytes as usize);
        Ok(())
    }
    /// An attribute of an address: its context, kind of memory, device or range.
    fn cuPointerGetAttribute(data: Out<u64>, wanted: c_uint, address: u64) {
        let value = attribute(address, wanted)?;
        // Some attributes have 4 bytes, some one byte: writing 8 bytes would overrun the caller's memory.
        match wanted {
            2 | 9 => data.narrow::<u32>().put(value as u32),
            8 | 13 => data.narrow::<u8>().put(value as u8),
            _ => data.put(value),
        }
    }
}
