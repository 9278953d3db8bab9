//! Handles: how each passes between the driver, its place and the thread that works on it.
//!
//! The simple version marks a handle as busy and relies on every path to clear the mark. Here the mark is a value: [`Physical::begin`] returns a
//! [`BusyHandle`], each operation of the work takes it, and the operation that ends the work consumes it. So no thread can end another's work, and a path
//! that forgets to end its own drops the value, which the checker finds (B10).
//!
//! This module does not know why a handle is wanted or whether its bytes are free. It learns what a driver call did by the operation that follows.

#![allow(
    clippy::needless_pass_by_value,
    reason = "the operation that ends the work consumes the value that represents it"
)]

use super::{HandleId, LeavingSlot, Physical, SlotState, Unavailable, WindowPosition};
use crate::laws;
use crate::order::PendingSet;
use crate::units::{Addr, Granules};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// The most former places with pending uses at which a handle may be mapped. Each move that the device has not caught up with adds one; there is a bound so that
/// mappings are a small multiple of handles however far the host runs ahead.
pub const MOST_FORMER: usize = 64;

/// The state of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandleState {
    /// It has no place; any thread may take it once it is unmapped from its former places.
    Spare,
    /// A thread is working on it.
    Busy,
    /// Mapped at its place.
    Mapped,
}

/// A handle.
#[derive(Clone, Debug)]
pub(super) struct Handle<H> {
    pub(super) native: H,
    pub(super) units: u32,
    pub(super) state: HandleState,
    /// Its place: the slot that is Here.
    pub(super) at: Option<WindowPosition>,
    /// The slot that is Arriving.
    pub(super) arriving: Option<WindowPosition>,
    /// Its former places: the slots that are Draining or Leaving.
    pub(super) former: SmallVec<[WindowPosition; 1]>,
    /// The number of holds.
    pub(super) holds: u32,
    /// Its place when it was first held (B11).
    pub(super) held_at: Option<WindowPosition>,
    /// The count at which it was first found wholly free.
    pub(super) free_since: Option<u64>,
}

impl<H> Handle<H> {
    /// Whether it is mapped nowhere.
    fn is_nowhere(&self) -> bool {
        self.at.is_none() && self.arriving.is_none() && self.former.is_empty()
    }
}

/// A handle, as callers see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandleView {
    /// The length.
    pub len: Granules,
    /// The state.
    pub state: HandleState,
    /// Its place.
    pub at: Option<WindowPosition>,
    /// The place that it is being mapped at.
    pub arriving: Option<WindowPosition>,
    /// The number of its former places, which are still mapped.
    pub former: usize,
    /// The number of its holds.
    pub holds: u32,
}

impl HandleView {
    /// Whether work on it may begin to move it ([`Physical::begin_move`]).
    pub fn may_move(&self) -> bool {
        self.state == HandleState::Mapped && self.former < MOST_FORMER && laws::holds::may_move(self.holds)
    }
}

/// A handle that this thread works on, until an operation consumes the value.
#[must_use = "no other thread can use the handle until an operation consumes this"]
#[derive(PartialEq, Eq, Debug)]
pub struct BusyHandle {
    id: HandleId,
}

impl BusyHandle {
    /// Its number.
    pub fn id(&self) -> HandleId {
        self.id
    }
}

/// All handles.
#[derive(Clone, Debug)]
pub(super) struct Handles<H> {
    all: BTreeMap<HandleId, Handle<H>>,
    next: u64,
    /// Those that are Spare and mapped nowhere, by length.
    spare: BTreeSet<(u32, HandleId)>,
}

impl<H> Handles<H> {
    pub(super) const fn new() -> Handles<H> {
        Handles { all: BTreeMap::new(), next: 0, spare: BTreeSet::new() }
    }
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
    pub(super) fn get(&self, id: HandleId) -> Option<&Handle<H>> {
        self.all.get(&id)
    }
    /// A handle that a slot or an index refers to.
    pub(super) fn known(&mut self, id: HandleId) -> &mut Handle<H> {
        match self.all.get_mut(&id) {
            Some(handle) => handle,
            None => super::broken("B2", format_args!("{id:?} is referred to but does not exist")),
        }
    }
    /// B10: a handle that a thread works on.
    fn busy(&self, BusyHandle { id }: &BusyHandle, operation: &str) -> &Handle<H> {
        match self.all.get(id) {
            Some(handle) if handle.state == HandleState::Busy => handle,
            other => super::broken(
                "B10",
                format_args!("{operation} of {id:?}, which is {:?}", other.map(|handle| handle.state)),
            ),
        }
    }
    /// The same, to be changed.
    fn busy_mut(&mut self, busy: &BusyHandle, operation: &str) -> &mut Handle<H> {
        self.busy(busy, operation);
        self.known(busy.id)
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = (HandleId, &Handle<H>)> {
        self.all.iter().map(|(&id, handle)| (id, handle))
    }
    pub(super) fn spare(&self) -> &BTreeSet<(u32, HandleId)> {
        &self.spare
    }
    pub(super) fn take_all(&mut self) -> Vec<H> {
        self.spare.clear();
        core::mem::take(&mut self.all).into_values().map(|handle| handle.native).collect()
    }

    #[cfg(test)]
    pub(super) fn spare_mut(&mut self) -> &mut BTreeSet<(u32, HandleId)> {
        &mut self.spare
    }
}

impl<H: Clone> Physical<H> {
    /// The driver created a handle of `len`, whose bytes were claimed under the limit. It is mapped nowhere.
    ///
    /// # Panics
    /// B1, when `len` is not whole units.
    pub fn created(&mut self, native: H, len: Granules) -> BusyHandle {
        let units = len.0 / self.unit.0;
        law!(
            B1,
            units > 0 && len.0 == units * self.unit.0,
            "a handle of {len} does not consist of whole units"
        );
        let id = HandleId(self.handles.next);
        self.handles.next += 1;
        let state = HandleState::Busy;
        let (at, arriving, former) = (None, None, SmallVec::new());
        let (holds, held_at, free_since) = (0, None, None);
        let handle = Handle { native, units, state, at, arriving, former, holds, held_at, free_since };
        self.handles.all.insert(id, handle);
        self.totals.units += u64::from(units);
        self.totals.created += 1;
        BusyHandle { id }
    }

    /// Takes the oldest spare handle of exactly `len`.
    pub fn take_spare(&mut self, len: Granules) -> Option<BusyHandle> {
        let units = len.0 / self.unit.0;
        let (found, id) = self.handles.spare.range((units, HandleId(0))..).next().copied()?;
        (found == units && len.0 == units * self.unit.0).then(|| self.take_listed(id, units))
    }

    /// Takes the shortest spare handle, to be released.
    pub fn take_any_spare(&mut self) -> Option<BusyHandle> {
        let (units, id) = self.handles.spare.first().copied()?;
        Some(self.take_listed(id, units))
    }

    fn take_listed(&mut self, id: HandleId, units: u32) -> BusyHandle {
        self.handles.spare.remove(&(units, id));
        self.totals.spare -= u64::from(units);
        self.handles.known(id).state = HandleState::Busy;
        BusyHandle { id }
    }

    pub(super) fn list_spare(&mut self, id: HandleId, units: u32) {
        self.handles.spare.insert((units, id));
        self.totals.spare += u64::from(units);
    }

    /// Begins work on a mapped handle, to unmap or to move it. No other thread can begin, hold or move it until the work ends. The caller cuts its
    /// bytes out of the heaps next (B5).
    ///
    /// # Errors
    /// It is held (B4), is still mapped at a former place, so that it could not be released, has no place, was released, or another thread works on it.
    pub fn begin(&mut self, id: HandleId) -> Result<BusyHandle, Unavailable> {
        self.begin_with(id, 0, laws::holds::may_release)
    }

    /// The same, to move it only: it may be mapped at former places, fewer than [`MOST_FORMER`] (B2).
    ///
    /// # Errors
    /// As [`Physical::begin`].
    pub fn begin_move(&mut self, id: HandleId) -> Result<BusyHandle, Unavailable> {
        self.begin_with(id, MOST_FORMER - 1, laws::holds::may_move)
    }

    fn begin_with(
        &mut self,
        id: HandleId,
        former: usize,
        may: fn(u32) -> bool,
    ) -> Result<BusyHandle, Unavailable> {
        let handle = self.handles.all.get_mut(&id).ok_or(Unavailable::Gone)?;
        match handle.state {
            HandleState::Spare => Err(Unavailable::Spare),
            HandleState::Busy => Err(Unavailable::Busy),
            HandleState::Mapped if !may(handle.holds) => Err(Unavailable::Held),
            HandleState::Mapped if handle.former.len() > former => Err(Unavailable::Draining),
            HandleState::Mapped => {
                handle.state = HandleState::Busy;
                Ok(BusyHandle { id })
            }
        }
    }

    /// Ends the work with the handle at the place it had. Its bytes are back in their heaps, or follow next.
    ///
    /// # Panics
    /// B10, when it is not Busy; B2, when it has no place, or an Arriving slot.
    pub fn put_back(&mut self, busy: BusyHandle) {
        let arriving = self.is_arriving(&busy);
        let handle = self.handles.busy_mut(&busy, "put_back");
        law!(
            B2,
            handle.at.is_some() && !arriving,
            "put_back of {:?}, which has no place or an Arriving slot",
            busy.id
        );
        handle.state = HandleState::Mapped;
    }

    /// The caller maps the handle at `place` next; from now on the place is no hole. Returns its address.
    ///
    /// # Panics
    /// B10, when the handle is not Busy; B2, when it has an Arriving slot or [`MOST_FORMER`] former places, or `place` is no hole of its length in a window;
    /// B8, when that window is closed.
    pub fn start_map(&mut self, busy: &BusyHandle, place: WindowPosition) -> Addr {
        let handle = self.handles.busy_mut(busy, "start_map");
        law!(
            B2,
            handle.arriving.is_none() && handle.former.len() < MOST_FORMER,
            "start_map of {:?} at {place:?}, which arrives at {:?} and was at {:?}",
            busy.id,
            handle.arriving,
            handle.former
        );
        handle.arriving = Some(place);
        let units = handle.units;
        self.windows.arrive(place, busy.id, units);
        self.addr_of(place)
    }

    /// The driver mapped a handle that had no place, and set the access: the work ends, and its bytes enter a heap next.
    ///
    /// # Panics
    /// B10, when it is not Busy; B2, when it has no Arriving slot, or a place already.
    pub fn mapped(&mut self, busy: BusyHandle) {
        let from = self.finish_map(&busy, "mapped");
        law!(B2, from.is_none(), "mapped: {:?} is at {from:?} already, so it moved", busy.id);
    }

    /// The driver mapped the handle at its new place, and set the access: the work ends, and its bytes enter a heap next. Returns the slot
    /// at the old place: the caller unmaps it if all uses through it are complete ([`Physical::unmapped`]), otherwise it drains ([`Physical::drain`]).
    ///
    /// # Panics
    /// B10, when it is not Busy; B2, when it has no Arriving slot, or had no place.
    pub fn moved(&mut self, busy: BusyHandle) -> LeavingSlot {
        let Some(from) = self.finish_map(&busy, "moved") else {
            super::broken("B2", format_args!("moved: {:?} had no place", busy.id))
        };
        let handle = self.handles.known(busy.id);
        handle.former.push(from);
        let units = handle.units;
        self.set_slot(from, SlotState::Leaving);
        self.totals.draining += u64::from(units);
        self.totals.moved += 1;
        self.leaving(from, units)
    }

    /// The Arriving slot is the handle's place; returns the former place.
    fn finish_map(&mut self, busy: &BusyHandle, operation: &str) -> Option<WindowPosition> {
        let arriving = self.is_arriving(busy);
        let handle = self.handles.busy_mut(busy, operation);
        law!(B2, arriving, "{operation}: {:?} has no Arriving slot", busy.id);
        let (from, to) = (handle.at, handle.arriving.take());
        handle.at = to;
        (handle.state, handle.free_since) = (HandleState::Mapped, None);
        if let Some(to) = to {
            self.set_slot(to, SlotState::Here);
        }
        from
    }

    /// The driver could not map the handle, or could not set the access and unmapped it again: its Arriving slot is a hole. The handle stays Busy.
    ///
    /// # Panics
    /// B10, when it is not Busy; B2, when it has no Arriving slot.
    pub fn map_failed(&mut self, busy: &BusyHandle) {
        let place = self.arriving(busy, "map_failed");
        self.windows.vacate(place);
        self.handles.known(busy.id).arriving = None;
    }

    /// The driver mapped the handle, could not set the access and could not unmap it again: its Arriving slot drains, with no use to wait for. The
    /// handle stays Busy, until [`Physical::put_back`] or [`Physical::spare`].
    ///
    /// # Panics
    /// B10, when it is not Busy; B2, when it has no Arriving slot.
    pub fn map_stuck(&mut self, busy: &BusyHandle) {
        let place = self.arriving(busy, "map_stuck");
        let handle = self.handles.known(busy.id);
        let units = handle.units;
        handle.former.extend(handle.arriving.take());
        self.set_slot(place, SlotState::Draining(PendingSet::new()));
        self.draining.push_back(place);
        self.totals.draining += u64::from(units);
        self.totals.stuck += 1;
    }

    /// The driver unmapped the handle, all of whose uses were complete (B6): its place is a hole. The handle stays Busy.
    ///
    /// # Panics
    /// B10, when it is not Busy; B2, when it has no place, or an Arriving slot.
    pub fn detached(&mut self, busy: &BusyHandle) {
        let arriving = self.is_arriving(busy);
        let handle = self.handles.busy_mut(busy, "detached");
        let Some(at) = handle.at.filter(|_| !arriving) else {
            super::broken("B2", format_args!("detached: {:?} has no place or an Arriving slot", busy.id))
        };
        handle.at = None;
        self.windows.vacate(at);
    }

    /// A driver call that maps or unmaps the handle panicked, and the thread that works on it unwinds: it is unknown whether it is mapped there. An
    /// Arriving slot drains, with no use to wait for, and a handle that has a place besides is Mapped there. Without an Arriving slot its place
    /// drains. A handle that has no place then is spare once that slot is unmapped. The value ends with the thread's work.
    ///
    /// # Panics
    /// B10, when it is not Busy; B2, when it has no place and no Arriving slot.
    pub fn abandoned(&mut self, busy: &BusyHandle) {
        let handle = self.handles.busy_mut(busy, "abandoned");
        let Some(place) = handle.arriving.take().or_else(|| handle.at.take()) else {
            super::broken(
                "B2",
                format_args!("abandoned: {:?} has no slot that a driver call changes", busy.id),
            )
        };
        handle.former.push(place);
        let state = if handle.at.is_some() { HandleState::Mapped } else { HandleState::Spare };
        (handle.state, handle.free_since) = (state, None);
        let units = handle.units;
        self.set_slot(place, SlotState::Draining(PendingSet::new()));
        self.draining.push_back(place);
        self.totals.draining += u64::from(units);
    }

    /// Ends the work with the handle spare: the next request for its length takes it. Its bytes stay reserved from the device.
    ///
    /// # Panics
    /// B10, when it is not Busy; B6, when it has a place or an Arriving slot.
    pub fn spare(&mut self, busy: BusyHandle) {
        let arriving = self.is_arriving(&busy);
        let handle = self.handles.busy_mut(&busy, "spare");
        law!(B6, handle.at.is_none() && !arriving, "spare of {:?}, which is mapped", busy.id);
        (handle.state, handle.free_since) = (HandleState::Spare, None);
        let (units, nowhere) = (handle.units, handle.former.is_empty());
        if nowhere {
            self.list_spare(busy.id, units);
        }
    }

    /// The driver's handle, to be mapped.
    ///
    /// # Panics
    /// B10, when it is not Busy.
    pub fn native(&self, busy: &BusyHandle) -> H {
        self.handles.busy(busy, "native").native.clone()
    }

    /// The driver's handle, to be released. `None` while it is mapped somewhere (B6): then the caller makes it [spare](Physical::spare).
    ///
    /// # Panics
    /// B10, when it is not Busy.
    pub fn to_release(&self, busy: &BusyHandle) -> Option<H> {
        let handle = self.handles.busy(busy, "to_release");
        handle.is_nowhere().then(|| handle.native.clone())
    }

    /// The driver released the handle. Returns its length, which is no longer reserved from the device.
    ///
    /// # Panics
    /// B10, when it is not Busy; B6, when it is mapped somewhere.
    pub fn released(&mut self, busy: BusyHandle) -> Granules {
        let handle = self.handles.busy(&busy, "released");
        law!(B6, handle.is_nowhere(), "released: {:?} is mapped", busy.id);
        let units = handle.units;
        self.handles.all.remove(&busy.id);
        self.totals.units -= u64::from(units);
        self.totals.released += 1;
        Granules(units * self.unit.0)
    }

    /// A handle, unless it was released.
    pub fn handle(&self, id: HandleId) -> Option<HandleView> {
        let handle = self.handles.get(id)?;
        let len = Granules(handle.units * self.unit.0);
        let Handle { state, at, arriving, holds, .. } = *handle;
        Some(HandleView { len, state, at, arriving, former: handle.former.len(), holds })
    }

    /// The caller found the handle wholly free, at `now` on a counter of its own. Returns the count at which it was first found so.
    pub fn seen_free(&mut self, id: HandleId, now: u64) -> u64 {
        self.handles.all.get_mut(&id).map_or(now, |handle| *handle.free_since.get_or_insert(now))
    }

    /// The caller found the handle in use.
    pub fn seen_used(&mut self, id: HandleId) {
        if let Some(handle) = self.handles.all.get_mut(&id) {
            handle.free_since = None;
        }
    }

    fn is_arriving(&self, busy: &BusyHandle) -> bool {
        self.handles.get(busy.id).is_some_and(|handle| handle.arriving.is_some())
    }

    /// B2: the handle's Arriving slot.
    fn arriving(&self, busy: &BusyHandle, operation: &str) -> WindowPosition {
        match self.handles.busy(busy, operation).arriving {
            Some(place) => place,
            None => super::broken("B2", format_args!("{operation}: {:?} has no Arriving slot", busy.id)),
        }
    }

    fn set_slot(&mut self, place: WindowPosition, state: SlotState) {
        match self.windows.slot_mut(place) {
            Some(slot) => slot.state = state,
            None => super::broken("B2", format_args!("{place:?} becomes {state:?} but is no slot")),
        }
    }
}
