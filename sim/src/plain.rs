//! Plain device memory: the [`Memory`] of the simulated device.
//!
//! Segments are exactly as long as requested, at least 512-byte aligned, and lie where the smallest free range of addresses
//! begins: so neighbours usually touch, which catches an allocator that merges over the border of two segments.
//! [`Sim::gaps`] puts 2 MiB of unmapped addresses behind each instead, which catches overruns. A free waits for the whole device, as
//! the driver's plain one does, unless [`Sim::waiting_frees`] is off. This file does not know who uses the memory.

use super::Sim;
use super::call::Call;
use super::contents::Contents;
use super::event::drain_device;
use super::memory::{Backing, FRESH_WORD, Store};
use super::oracle::Space;
use super::world::{World, invalid};
use millpond_driver::units::{Addr, DeviceId};
use millpond_driver::{DriverError, DriverErrorKind};
use millpond_driver::{DriverResult, Memory, MemoryInfo};

/// Addresses left unmapped behind each segment when gaps are on, in bytes.
const GAP: u64 = 2 << 20;

impl World {
    /// Removes a range that was created and mapped as a whole, together with its piece.
    pub(super) fn remove_whole(&mut self, addr: u64) -> Option<Store> {
        let host = self.host();
        let phys = self.memory.at(addr)?.phys;
        let alive = self.memory.release(phys);
        assert!(alive.is_none(), "M2: a mapped piece lives");
        let (mapping, piece) = self.memory.unmap(addr)?;
        if let Some(oracle) = &mut self.oracle {
            oracle.unmapped(host, mapping.map);
            oracle.memory_released(host, mapping.phys);
        }
        piece.map(|p| p.store)
    }
    fn with_gap(&self, bytes: u64) -> u64 {
        if self.gaps { bytes.saturating_add(GAP) } else { bytes }
    }
}

#[allow(unsafe_code, reason = "the contract is kept by the table of mappings")]
// SAFETY: M1: mappings, and so live ranges, are disjoint; starts are whole granules because lengths are.
unsafe impl Memory for Sim {
    fn device(&self) -> DeviceId {
        DeviceId(self.index() as u32)
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.call(Call::MemGetInfo, |w| {
            let d = &w.devices[self.index()];
            Ok(MemoryInfo::new(d.capacity - d.reserved, d.capacity))
        })
    }

    #[track_caller]
    fn allocate_raw(&self, bytes: u64) -> DriverResult<Addr> {
        let call = Call::MemAlloc;
        self.call(call, |w| {
            if bytes == 0 || !bytes.is_multiple_of(512) {
                return Err(invalid(
                    call,
                    format!("requested {bytes} bytes: the size must be a multiple of 512, not 0"),
                ));
            }
            w.take_capacity(self.index(), bytes, call)?;
            let spaced = w.with_gap(bytes);
            let Some(addr) = w.devices[self.index()].plain_space.take(spaced) else {
                w.devices[self.index()].reserved -= bytes;
                let message = format!("no free range of {spaced} addresses: free some segments");
                return Err(DriverError::new(call.name(), 2, DriverErrorKind::OutOfMemory, message));
            };
            let store = Store::Device(Contents::new(FRESH_WORD));
            let phys = w.memory.create(self.index(), bytes, Backing::Plain, store);
            let map = w.memory.map(addr, phys);
            if let Some(oracle) = &mut w.oracle {
                oracle.memory_created(phys, Space::Device, bytes);
                oracle.mapped(map, phys);
            }
            Ok(Addr(addr))
        })
    }

    fn free_waits_for_device(&self) -> bool {
        self.lock().borrow().waiting_frees
    }

    #[track_caller]
    unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let call = Call::MemFree;
        let begin = |w: &mut World| {
            let found =
                w.memory.at(addr.0).filter(|m| m.backing == Backing::Plain && m.end - addr.0 == bytes);
            let ours = found.and_then(|m| w.memory.phys(m.phys)).is_some_and(|p| p.device == self.index());
            if ours {
                return Ok(());
            }
            Err(invalid(
                call,
                format!(
                    "{bytes} bytes at {addr} are no plain allocation of this device: free each range whole, once"
                ),
            ))
        };
        self.call_and(self.before(call), call, begin, |guard, ()| {
            if self.free_waits_for_device() {
                drain_device(guard, self.index(), call)?;
            }
            let mut world = guard.borrow_mut();
            world.remove_whole(addr.0);
            let spaced = world.with_gap(bytes);
            let d = &mut world.devices[self.index()];
            d.reserved -= bytes;
            d.plain_space.give(addr.0, spaced);
            Ok(())
        })
    }

    fn drop_failed(&self, error: DriverError) {
        self.keep_error(error);
    }

    fn deferred(&self) -> Vec<DriverError> {
        self.drop_errors()
    }
}
