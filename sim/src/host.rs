//! Pinned host memory: real memory of this process, which the simulated device reaches too.
//!
//! A pinned range is zeroed memory that costs nothing until touched, and a piece in the table of mappings at its real
//! address, so that copies and kernels find it like any other. Memory that the program registers is such a piece too, until it
//! unregisters it. Unpinning waits for the whole device, as the driver does.
//! The CPU's own accesses cannot be seen: declare them with [`Sim::host_reads`] and
//! [`Sim::host_writes`] to have them judged. This file does not know streams.

use super::Sim;
use super::block::HostBlock;
use super::call::Call;
use super::event::drain_device;
use super::memory::{Backing, Part, Store};
use super::oracle::{AccessKind, Space};
use super::world::{World, invalid};
use core::ptr::NonNull;
use millpond_driver::units::Addr;
use millpond_driver::{Caller, DriverResult, Host, HostKind, HostMemory};
use millpond_driver::{DriverError, DriverErrorKind};

#[allow(unsafe_code, reason = "the contract is kept by real memory")]
// SAFETY: each range is a block of its own from the process's allocator, aligned to a page, zeroed, freed by unpinning.
unsafe impl Host for Sim {
    /// As the trait says; memory is committed when touched, so a large range costs nothing. Write-combined memory is
    /// ordinary memory here.
    #[track_caller]
    fn pin_raw(&self, bytes: u64, _kind: HostKind) -> DriverResult<NonNull<u8>> {
        let call = Call::MemHostAlloc;
        self.call(call, |w| {
            if bytes == 0 || !bytes.is_multiple_of(512) {
                return Err(invalid(
                    call,
                    format!(
                        "requested {bytes} bytes of pinned memory: the size must be a multiple of 512, not 0"
                    ),
                ));
            }
            w.pinned_room(call, bytes)?;
            let block = HostBlock::new(bytes).ok_or_else(|| {
                let message = format!(
                    "requested {bytes} bytes of pinned memory; this machine has no room for them: pin less"
                );
                DriverError::new(call.name(), 2, DriverErrorKind::OutOfMemory, message)
            })?;
            let ptr = block.base;
            self.enter_block(w, block, bytes);
            w.host_works(bytes * 3 / 10);
            Ok(ptr)
        })
    }

    #[track_caller]
    unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        self.unpin(Call::MemFreeHost, ptr, bytes)
    }

    /// Nothing is touched. A range that overlaps one that is pinned is refused.
    #[track_caller]
    unsafe fn register_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        let call = Call::MemHostRegister;
        self.call(call, |w| {
            let addr = ptr.addr().get() as u64;
            let Some(end) = addr.checked_add(bytes).filter(|_| bytes > 0) else {
                return Err(invalid(call, format!("{bytes} bytes at {addr:#x} cannot be registered")));
            };
            if w.memory.parts(addr, bytes).iter().any(|part| matches!(part, Part::Here { .. })) {
                let message = format!(
                    "{bytes} bytes at {addr:#x} (to {end:#x}) overlap memory that is pinned: register each range once"
                );
                return Err(DriverError::new(call.name(), 712, DriverErrorKind::Other, message));
            }
            w.pinned_room(call, bytes)?;
            self.enter_block(w, HostBlock::of_program(ptr), bytes);
            w.host_works(bytes * 14 / 1000);
            Ok(())
        })
    }

    #[track_caller]
    unsafe fn unregister_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        self.unpin(Call::MemHostUnregister, ptr, bytes)
    }

    fn host_memory(&self) -> Option<HostMemory> {
        self.lock().borrow().host_memory
    }

    fn unpin_waits_for_device(&self) -> bool {
        true
    }

    fn unpin_failed(&self, error: DriverError) {
        self.keep_error(error);
    }
}

impl World {
    /// Whether so much more host memory can be pinned.
    fn pinned_room(&self, call: Call, bytes: u64) -> DriverResult<()> {
        let pinned: u64 = self.devices.iter().map(|d| d.pinned).sum();
        let free = self.pinned_capacity.saturating_sub(pinned);
        if bytes <= free {
            return Ok(());
        }
        let message =
            format!("requested {bytes} bytes of pinned memory; {free} of {} are free", self.pinned_capacity);
        Err(DriverError::new(call.name(), 2, DriverErrorKind::OutOfMemory, message))
    }
}

impl Sim {
    /// A pinned range enters the tables.
    fn enter_block(&self, w: &mut World, block: HostBlock, bytes: u64) {
        let addr = block.base.addr().get() as u64;
        let phys = w.memory.create(self.index(), bytes, Backing::Pinned, Store::Host(block));
        let map = w.memory.map(addr, phys);
        if let Some(oracle) = &mut w.oracle {
            oracle.memory_created(phys, Space::Pinned, bytes);
            oracle.mapped(map, phys);
        }
        let d = &mut w.devices[self.index()];
        d.pinned += bytes;
        d.pinned_peak = d.pinned_peak.max(d.pinned);
    }

    /// Ends a pinned range by the call that its beginning belongs to, once the device is idle.
    #[track_caller]
    fn unpin(&self, call: Call, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        let (addr, of_program) = (ptr.addr().get() as u64, call == Call::MemHostUnregister);
        let begin = |w: &mut World| {
            let found = w.memory.at(addr).filter(|m| m.backing == Backing::Pinned && m.end - addr == bytes);
            let ours = found.and_then(|m| w.memory.phys(m.phys)).is_some_and(|p| {
                let Store::Host(block) = &p.store else { return false };
                p.device == self.index() && block.is_of_program() == of_program
            });
            if ours {
                return Ok(());
            }
            let (range, advice) = if of_program {
                ("registered memory of", "unregister each range whole, once")
            } else {
                ("pinned range of", "unpin each range whole, once")
            };
            Err(invalid(call, format!("{bytes} bytes at {addr:#x} are no {range} this device: {advice}")))
        };
        self.call_and(self.before(call), call, begin, |guard, ()| {
            drain_device(guard, self.index(), call)?;
            let mut world = guard.borrow_mut();
            world.host_works(if of_program { bytes * 12 / 1000 } else { bytes * 65 / 1000 });
            world.devices[self.index()].pinned -= bytes;
            if let Some(Store::Host(block)) = world.remove_whole(addr) {
                block.free();
            }
            Ok(())
        })
    }

    /// Declares that the CPU reads pinned memory now, so that the oracle can judge it: what the device wrote there must be
    /// complete in the host's view, not merely ordered.
    ///
    /// # Errors
    /// The range is not, or not wholly, pinned by this world.
    #[track_caller]
    pub fn host_reads(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        self.host_touches(addr, bytes, AccessKind::Read)
    }
    /// Declares that the CPU writes pinned memory now, as [`Sim::host_reads`].
    ///
    /// # Errors
    /// As [`Sim::host_reads`].
    #[track_caller]
    pub fn host_writes(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        self.host_touches(addr, bytes, AccessKind::Write)
    }

    #[track_caller]
    fn host_touches(&self, addr: Addr, bytes: u64, kind: AccessKind) -> DriverResult<()> {
        let guard = self.lock();
        let mut guarded = guard.borrow_mut();
        let world = &mut *guarded;
        world.called_from(Caller::here());
        let host = world.host();
        world.demand_reach_of_cpu(addr, bytes, "host access")?;
        for part in world.memory.parts(addr.0, bytes) {
            if let (Part::Here { bytes, phys, offset, .. }, Some(oracle)) = (part, &mut world.oracle) {
                oracle.host_access(host, phys, offset, bytes, kind, None);
            }
        }
        Ok(())
    }
}
