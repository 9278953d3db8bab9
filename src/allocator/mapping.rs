//! An allocator's physical memory: how it is made, mapped, unmapped and released, and how all of it goes at the end.
//!
//! Each step is a call of the driver between two changes of the records, with no lock held over the call. A step that fails has changed nothing, or
//! leaves what it could not undo in the records (`physical`). It does not know why memory is wanted, nor which places are free: it looks into no
//! heap, but for the check.

use super::backing::kept;
use super::core::Core;
use super::physical::Windows;
use super::pool::Pool;
use super::trim::Trimmed;
use super::undo::Undo;
use crate::driver::{Driver, DriverErrorKind, DriverResult};
use crate::heap::{ChunkState, Kind};
use crate::laws::price;
use crate::order::PendingSet;
use crate::physical::{
    AddrRange, BusyHandle, HandleState, LeavingSlot, NoWindow, Owner, SlotState, WindowPosition, WindowView,
};
use crate::sync::{Arc, assert_unlocked};
use crate::units::{GRANULE_BYTES, Granules, SegmentId};
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// The number of mappings that a request looks at, of those whose uses may be complete or that the driver did not unmap.
const DRAINED: usize = 64;

impl<D: Driver> Pool<D> {
    /// The owner of the windows that its requests of a kind fill.
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
                    of.note_refusal(&e);
                    return Err(e);
                }
            };
            of.lock().add_arena(reserved);
        }
    }

    /// Adds the price of a call that a request has made or is about to make; where time is not bounded, nothing is counted.
    pub(super) fn charge(&self, nanos: u64) {
        if let Some(price) = &self.price {
            price.charge(nanos);
        }
    }

    /// How scarce time is ([`price`]): at which level requests take physical memory now.
    pub(super) fn price_level(&self) -> u32 {
        let Some(price) = self.price.as_ref().filter(|_| self.windows.is_some()) else { return 0 };
        assert_unlocked("the clock is read");
        price.level(self.config.time(&self.driver))
    }

    /// Creates physical memory whose bytes were claimed. It belongs to this thread until it is mapped.
    ///
    /// # Errors
    /// The driver's; nothing was created.
    pub(super) fn create_handle(&self, of: &Windows<D>, len: Granules) -> DriverResult<BusyHandle> {
        assert_unlocked("physical memory is created");
        self.charge(price::create(len.bytes()));
        let created = self.driver.relaxed(|| of.device.create(len.bytes()));
        let native = self.registry.watch(created).inspect_err(|e| of.note_refusal(e))?;
        Ok(of.lock().created(native, len))
    }

    /// Maps a handle that has no place. On failure it is released or spare, and the place is a hole again or drains. If the driver panics, the place drains
    /// and the handle is spare behind it.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn map_handle(
        &self,
        of: &Windows<D>,
        handle: BusyHandle,
        place: WindowPosition,
    ) -> DriverResult<()> {
        match self.map_at(of, &handle, place) {
            Ok(()) => of.lock().mapped(handle),
            Err(e) => {
                self.release_handle(of, handle);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Maps a handle that this thread works on at `place`, besides where it is: its slot there is Arriving still, and on failure a hole again, or it drains. If
    /// the driver panics, that slot drains, and this thread no longer works on the handle: it is at the place that it had, or spare.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn map_at(
        &self,
        of: &Windows<D>,
        handle: &BusyHandle,
        place: WindowPosition,
    ) -> DriverResult<()> {
        let (addr, native) = {
            let mut records = of.lock();
            (records.start_map(handle, place), records.native(handle))
        };
        assert_unlocked("physical memory is mapped");
        self.charge(price::MAP);
        let unknown = Undo::new(|| of.lock().abandoned(handle));
        let mapped = self.driver.relaxed(|| of.device.map(native, addr));
        unknown.forget();
        let Err(failed) = mapped else { return Ok(()) };
        {
            let mut records = of.lock();
            if failed.stuck.is_some() {
                records.map_stuck(handle);
            } else {
                records.map_failed(handle);
            }
        }
        of.note_refusal(&failed.error);
        self.registry.watch(Err(failed.error))
    }

    /// Takes a handle's mapping away: this thread works on it, and every use of its bytes is complete. If the driver panics, it may have done it or
    /// not: the addresses and the handle are not used before another unmap. The place drains, and the handle is spare behind it.
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
        let unknown = Undo::new(|| of.lock().abandoned(handle));
        let unmapped = self.driver.relaxed(|| of.device.unmap(window.base.offset(offset)));
        unknown.forget();
        self.registry.watch(unmapped)?;
        of.lock().detached(handle);
        Ok(())
    }

    /// A handle that nothing uses and that has no place goes back to the device. What the driver does not take, or a second mapping holds, is spare, and
    /// the next request for its length takes it. Returns its length if it is gone.
    pub(super) fn release_handle(&self, of: &Windows<D>, handle: BusyHandle) -> Option<Granules> {
        let released = self.release_claimed(of, handle);
        if let Some(len) = released {
            self.backing.lock().released(len.bytes());
        }
        released
    }

    /// The same; its bytes stay claimed under the limit. If the driver panics, it has the handle or not: as nothing is released twice, it counts as gone, and
    /// its bytes are not claimed any more.
    pub(super) fn release_claimed(&self, of: &Windows<D>, handle: BusyHandle) -> Option<Granules> {
        let native = of.lock().to_release(&handle);
        assert_unlocked("physical memory is released");
        let handle = Cell::new(Some(handle));
        let gone = || handle.take().map(|handle| of.lock().released(handle));
        let unknown =
            Undo::new(|| gone().into_iter().for_each(|len| self.backing.lock().released(len.bytes())));
        let released = native.map(|native| self.driver.relaxed(|| of.device.release(native)));
        unknown.forget();
        if released.is_some_and(|released| self.registry.watch(released).is_ok()) {
            return gone();
        }
        if let Some(handle) = handle.take() {
            of.lock().spare(handle);
        }
        None
    }

    /// Spare handles go back to the device, each once: there is no room for what is wanted beside them, or a trim gives them back. What the driver does not
    /// take stays spare. Meanwhile they are in transit, which counts in `own`.
    pub(super) fn release_spares(&self, of: &Windows<D>, own: &Cell<u64>) -> Trimmed {
        let mut trimmed = Trimmed::default();
        let mut records = of.lock();
        let _transit = self.in_transit.take(own);
        let spares: Vec<BusyHandle> = core::iter::from_fn(|| records.take_any_spare()).collect();
        drop(records);
        let spares = RefCell::new(spares);
        // If the driver panics or the context is lost, the others are spare again.
        let _left = Undo::new(|| {
            let mut records = of.lock();
            spares.take().into_iter().for_each(|spare| records.spare(spare));
        });
        while self.registry.alive() {
            let Some(spare) = spares.borrow_mut().pop() else { break };
            if let Some(len) = self.release_handle(of, spare) {
                trimmed.add(len.bytes());
            }
        }
        trimmed
    }

    /// Takes away a mapping whose uses are complete. What the driver refuses, or panics over, drains: it is tried again later.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn take_away(&self, of: &Windows<D>, slot: LeavingSlot) -> DriverResult<()> {
        assert_unlocked("physical memory is unmapped");
        let (addr, slot) = (slot.addr(), Cell::new(Some(slot)));
        let _drains = Undo::new(|| {
            if let Some(slot) = slot.take() {
                of.lock().drain(slot, PendingSet::new());
            }
        });
        let unmapped = self.driver.relaxed(|| of.device.unmap(addr));
        self.registry.watch(unmapped)?;
        if let Some(slot) = slot.take() {
            of.lock().unmapped(slot);
        }
        Ok(())
    }

    /// Mappings that the driver did not take away, or whose uses are complete by now, are taken away: as many as a request looks at.
    pub(super) fn finish_draining(&self, of: &Windows<D>) {
        let calls = self.finish_draining_of(of, DRAINED);
        self.charge(price::UNMAP * calls);
    }

    /// The same, of at most `max`, one at a time and each once. Returns how many calls it made.
    pub(super) fn finish_draining_of(&self, of: &Windows<D>, max: usize) -> u64 {
        let looks = max.min(of.lock().draining());
        let mut calls = 0;
        for _ in 0..looks {
            let leaving = of.lock().drained(1, |uses| self.registry.all_complete(uses));
            for slot in leaving {
                calls += 1;
                // It drains again.
                let _ = self.take_away(of, slot);
            }
        }
        calls
    }

    /// The allocator's end: all virtual memory goes back to the device, if nothing uses it any more (`over`); else it is kept for good.
    pub(super) fn give_windows_back(&self, of: &Windows<D>, over: bool) {
        assert_unlocked("virtual memory is given back");
        let bytes = of.stats().bytes;
        // The driver's table has the same.
        of.lock().take_all();
        if !over {
            if bytes > 0 {
                // Nor is the driver's table of it dropped.
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

    /// The pool that filled these windows closes: their holes are not filled any more, and windows that have nothing go.
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
