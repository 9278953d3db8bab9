//! Physical memory in an allocator's hands: how it is made, mapped, unmapped and released, and how all of it goes at the end.
//!
//! Each step is a call of the driver between two changes of the records, with no lock held over the call. A step that fails has changed nothing, or
//! leaves what it could not undo in the records (`physical`). It does not know why memory is wanted, nor which places are free: it looks into no
//! heap, but for the check.

use super::backing::kept;
use super::core::Core;
use super::physical::Windows;
use super::pool::Pool;
use crate::driver::{Driver, DriverErrorKind, DriverResult};
use crate::heap::{ChunkState, Kind};
use crate::physical::{AddrRange, BusyHandle, HandleState, NoWindow, Owner, Place, SlotState, WindowView};
use crate::sync::{Arc, Ordering, assert_unlocked};
use crate::units::{GRANULE_BYTES, Granules, SegmentId};
use std::collections::BTreeMap;

/// A look at mappings that the driver did not take away looks at so many.
const DRAINED: usize = 4;

impl<D: Driver> Pool<D> {
    /// Whose the windows are that its requests of a kind fill.
    pub(super) fn owner(&self, kind: Kind) -> Owner {
        Owner(2 * u64::from(self.number) + u64::from(kind == Kind::Large))
    }
}

impl<D: Driver> Core<D> {
    /// A new window of an owner's for a request of `need`, all of it a hole. `None` if no window is that long.
    ///
    /// # Errors
    /// The driver's: it has no addresses for it.
    pub(super) fn add_window(
        &self,
        of: &Windows<D>,
        owner: Owner,
        need: Granules,
    ) -> DriverResult<Option<WindowView>> {
        let id = self.backing.lock().number();
        loop {
            let bytes = match of.lock().add_window(id, owner, need) {
                Ok(window) => return Ok(Some(window)),
                Err(NoWindow::TooLong) => return Ok(None),
                Err(NoWindow::Reserve(bytes)) => bytes,
            };
            assert_unlocked("addresses are reserved");
            let unit = of.lock().unit().bytes();
            let reserve = |bytes: u64| {
                let reserved = self.driver.relaxed(|| of.device.reserve(bytes, None));
                self.registry.watch(reserved).map(|base| AddrRange { base, bytes })
            };
            // As many as are wanted, where more are not to be had.
            let reserved = match reserve(of.arena.max(bytes).next_multiple_of(unit)) {
                Err(e) if !(e.is_context_lost() || e.kind == DriverErrorKind::NotSupported) => reserve(bytes),
                reserved => reserved,
            };
            let reserved = match reserved {
                Ok(reserved) => reserved,
                Err(e) => {
                    of.plain.fetch_or(e.kind == DriverErrorKind::NotSupported, Ordering::Relaxed);
                    return Err(e);
                }
            };
            of.lock().add_arena(reserved);
        }
    }

    /// Physical memory whose bytes were claimed, in this thread's hands.
    ///
    /// # Errors
    /// The driver's; nothing was created.
    pub(super) fn create_handle(&self, of: &Windows<D>, len: Granules) -> DriverResult<BusyHandle> {
        assert_unlocked("physical memory is created");
        let created = self.driver.relaxed(|| of.device.create(len.bytes()));
        let native = self.registry.watch(created)?;
        Ok(of.lock().created(native, len))
    }

    /// Maps a handle that has no place. On failure it is released or spare, and the place is a hole again or drains.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn map_handle(&self, of: &Windows<D>, handle: BusyHandle, place: Place) -> DriverResult<()> {
        let (addr, native) = {
            let mut records = of.lock();
            (records.start_map(&handle, place), records.native(&handle))
        };
        assert_unlocked("physical memory is mapped");
        match self.driver.relaxed(|| of.device.map(native, addr)) {
            Ok(()) => {
                of.lock().mapped(handle);
                Ok(())
            }
            Err(failed) => {
                {
                    let mut records = of.lock();
                    if failed.stuck.is_some() {
                        records.map_stuck(&handle);
                    } else {
                        records.map_failed(&handle);
                    }
                }
                self.release_handle(of, handle);
                self.registry.watch(Err(failed.error))
            }
        }
    }

    /// Takes a handle's mapping away: its bytes are in this thread's hands, and every use of them is complete.
    ///
    /// # Errors
    /// The driver's; it is still mapped.
    pub(super) fn unmap_handle(
        &self,
        of: &Windows<D>,
        handle: &BusyHandle,
        (id, offset): (SegmentId, Granules),
    ) -> DriverResult<()> {
        let Some(window) = of.lock().window(id) else { return Ok(()) };
        assert_unlocked("physical memory is unmapped");
        let unmapped = self.driver.relaxed(|| of.device.unmap(window.base.offset(offset)));
        self.registry.watch(unmapped)?;
        of.lock().detached(handle);
        Ok(())
    }

    /// A handle that nothing uses and that has no place goes back to the device. What the driver does not take, or a second mapping holds, is spare, and
    /// the next request for its length has it. Returns whether it is gone.
    pub(super) fn release_handle(&self, of: &Windows<D>, handle: BusyHandle) -> bool {
        let native = of.lock().to_release(&handle);
        assert_unlocked("physical memory is released");
        let released = native.map(|native| self.driver.relaxed(|| of.device.release(native)));
        let mut records = of.lock();
        if let Some(Ok(())) = released {
            let len = records.released(handle);
            drop(records);
            self.backing.lock().unclaim(len);
            return true;
        }
        records.spare(handle);
        false
    }

    /// Spare handles go back to the device: there is no room for what is wanted beside them. Returns whether any did.
    pub(super) fn release_spares(&self, of: &Windows<D>) -> bool {
        let mut any = false;
        // Each once, those that the driver does not take included.
        let (all, unit) = (of.stats().spare, of.lock().unit().bytes());
        for _ in 0..all / unit {
            let Some(spare) = of.lock().take_any_spare() else { break };
            any |= self.release_handle(of, spare);
        }
        any
    }

    /// Mappings that the driver did not take away, or whose uses are complete by now, are taken away.
    pub(super) fn finish_draining(&self, of: &Windows<D>) {
        let leaving = of.lock().drained(DRAINED, |uses| self.registry.all_complete(uses));
        for slot in leaving {
            let unmapped = self.driver.relaxed(|| of.device.unmap(slot.addr()));
            match self.registry.watch(unmapped) {
                Ok(()) => of.lock().unmapped(slot),
                Err(_) => of.lock().drain(slot, crate::order::PendingSet::new()),
            }
        }
    }

    /// The allocator's end: all virtual memory goes back to the device, if nothing uses it any more (`over`); else it is kept for good.
    pub(super) fn give_windows_back(&self, of: &Windows<D>, over: bool) {
        assert_unlocked("virtual memory is given back");
        let bytes = of.stats().bytes;
        // The driver's table has the same.
        of.lock().take_all();
        if !over {
            if bytes > 0 {
                // Nobody drops the driver's table of it either.
                core::mem::forget(Arc::clone(&of.device));
                self.driver.drop_failed(kept(bytes, "device"));
            }
            return;
        }
        // A call that fails is made again, as a free is; what fails then too stays until the last handle goes.
        if !self.driver.relaxed(|| of.device.give_back()) {
            self.driver.relaxed(|| of.device.give_back());
        }
    }

    /// The pool that filled these windows closes: nobody fills their holes any more, and those that have nothing go.
    pub(super) fn close_windows(of: &Windows<D>, pool: &Pool<D>) {
        for kind in Kind::ALL {
            let mut state = pool.lock();
            let mut records = of.lock();
            let own: Vec<SegmentId> = records.windows_of(pool.owner(kind)).map(|w| w.id).collect();
            records.close(pool.owner(kind));
            // Nothing of it ever leaves a window for a heap that does not know it: only the pool that filled it knows one with nothing.
            for id in own {
                state.heap.remove_segment(id);
            }
        }
        of.forget_retired();
    }

    /// Panics unless B1 and B3 hold, and what the records say of themselves. Returns the bytes of handles that no heap has any part of.
    pub(super) fn check_windows(
        of: &Windows<D>,
        pools: &[Arc<Pool<D>>],
        moving: u64,
        plain: u64,
        reserved: u64,
    ) -> u64 {
        let mut present: BTreeMap<SegmentId, Vec<(u32, u32)>> = BTreeMap::new();
        let windows: Vec<WindowView> = {
            let records = of.lock();
            records.check();
            records.windows().collect()
        };
        for pool in pools {
            for segment in pool.lock().heap.snapshot().segments {
                if windows.iter().any(|w| w.id == segment.id) {
                    let here = segment.ranges.iter().filter(|r| r.state != ChunkState::Absent);
                    let here = here.map(|r| (r.offset.0, r.offset.0 + r.len.0));
                    present.entry(segment.id).or_default().extend(here);
                }
            }
        }
        let records = of.lock();
        let mut mapped = 0;
        for w in windows {
            let slots = records.slots_in(w.id, Granules::ZERO, w.len);
            let at_rest = |handle| records.handle(handle).is_some_and(|h| h.state != HandleState::Busy);
            let here = slots.filter(|slot| *slot.state == SlotState::Here && at_rest(slot.handle));
            let here: Vec<(u32, u32)> = here.map(|s| (s.offset.0, s.offset.0 + s.len.0)).collect();
            mapped += here.iter().map(|(from, to)| u64::from(to - from) * GRANULE_BYTES).sum::<u64>();
            if moving == 0 {
                let present = joined(present.remove(&w.id).unwrap_or_default());
                assert_eq!(
                    present,
                    joined(here),
                    "B3: what heaps have of window {}, and what is mapped",
                    w.id.0
                );
            }
        }
        let bytes = records.stats().bytes;
        assert_eq!(
            plain + bytes,
            reserved,
            "B1: bytes of plain segments and of handles, against bytes reserved"
        );
        bytes - mapped
    }
}

/// Ranges in order, those that touch as one.
fn joined(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut all: Vec<(u32, u32)> = Vec::new();
    for (from, to) in ranges {
        match all.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => all.push((from, to)),
        }
    }
    all
}
