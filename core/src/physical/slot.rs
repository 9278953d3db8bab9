//! Slots: the mappings of handles, and how old ones are taken away.
//!
//! A handle that moves while its last uses are pending stays mapped at its old place until they are complete, because they use those addresses.
//! That slot is draining. So is a slot that the driver could not unmap, with no use to wait for. [`Physical::drained`] checks a few of them at a
//! time, in turn: one whose uses are not over goes to the back of the queue, so a slow stream delays no other.
//!
//! This module does not know when a use is over; the caller says.

#![allow(
    clippy::needless_pass_by_value,
    reason = "the operation that ends the work consumes the value that represents it"
)]

use super::{HandleId, HandleState, Physical, WindowPosition};
use crate::order::PendingSet;
use crate::units::{Addr, Granules};

/// The state of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// The thread that works on the handle is mapping it here.
    Arriving,
    /// The handle is mapped here, and heaps may have these addresses.
    Here,
    /// The mapping is to be taken away when these uses through its addresses are complete.
    Draining(PendingSet),
    /// A thread is unmapping it.
    Leaving,
}

/// A mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) handle: HandleId,
    /// The handle's.
    pub(super) units: u32,
    pub(super) state: SlotState,
}

/// A slot, as callers see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotView<'a> {
    /// The handle that is mapped.
    pub handle: HandleId,
    /// The offset in the window.
    pub offset: Granules,
    /// The length.
    pub len: Granules,
    /// The state.
    pub state: &'a SlotState,
}

/// A mapping that this thread unmaps; [`Physical::unmapped`] or [`Physical::drain`] ends that.
#[must_use = "no other thread can unmap it until `unmapped` or `drain`"]
#[derive(PartialEq, Eq, Debug)]
pub struct LeavingSlot {
    pub(super) place: WindowPosition,
    pub(super) addr: Addr,
    pub(super) bytes: u64,
}

impl LeavingSlot {
    /// The place.
    pub fn place(&self) -> WindowPosition {
        self.place
    }
    /// The first address.
    pub fn addr(&self) -> Addr {
        self.addr
    }
    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<H: Clone> Physical<H> {
    /// Takes out draining slots whose uses are `over`, to be unmapped. Checks at most `max` slots, the least recently checked first.
    pub fn drained(&mut self, max: usize, mut over: impl FnMut(&PendingSet) -> bool) -> Vec<LeavingSlot> {
        let mut leaving = Vec::new();
        for _ in 0..max.min(self.draining.len()) {
            let Some(place) = self.draining.pop_front() else { break };
            let slot = self.windows.slot_mut(place);
            let Some((units, state)) = slot.map(|s| (s.units, &mut s.state)) else {
                super::broken("B6", format_args!("{place:?} drains but is no slot"))
            };
            let SlotState::Draining(uses) = state else {
                super::broken("B6", format_args!("{place:?} is in the queue but {state:?}"))
            };
            if over(uses) {
                *state = SlotState::Leaving;
                leaving.push(self.leaving(place, units));
            } else {
                self.draining.push_back(place);
            }
        }
        leaving
    }

    pub(super) fn leaving(&self, place: WindowPosition, units: u32) -> LeavingSlot {
        LeavingSlot { place, addr: self.addr_of(place), bytes: u64::from(units) * self.unit.bytes() }
    }
    pub(super) fn addr_of(&self, place: WindowPosition) -> Addr {
        match self.windows.addr_of(place) {
            Some(addr) => addr,
            None => super::broken("B2", format_args!("{place:?} is in no window")),
        }
    }

    /// The number of draining slots.
    pub fn draining(&self) -> usize {
        self.draining.len()
    }

    /// The driver has unmapped the slot: its addresses are a hole, and the handle may move or be released.
    ///
    /// # Panics
    /// B10, when the slot is not Leaving: it belongs to another allocator.
    pub fn unmapped(&mut self, slot: LeavingSlot) {
        let (id, units) = self.left(&slot, "unmapped");
        self.windows.vacate(slot.place);
        self.totals.draining -= u64::from(units);
        let handle = self.handles.known(id);
        let left = handle.former.iter().position(|&place| place == slot.place);
        let Some(left) = left else {
            super::broken("B2", format_args!("{id:?} left {:?} but was at {:?}", slot.place, handle.former))
        };
        handle.former.swap_remove(left);
        if handle.state == HandleState::Spare && handle.former.is_empty() {
            self.list_spare(id, units);
        }
    }

    /// The mapping stays until `uses` are complete. With no uses, [`Physical::drained`] returns it next time: the driver could not unmap it.
    ///
    /// # Panics
    /// B10, when the slot is not Leaving.
    pub fn drain(&mut self, slot: LeavingSlot, uses: PendingSet) {
        self.left(&slot, "drain");
        self.totals.second_mappings += u64::from(!uses.is_empty());
        if let Some(s) = self.windows.slot_mut(slot.place) {
            s.state = SlotState::Draining(uses);
        }
        self.draining.push_back(slot.place);
    }

    /// B10: the handle and the units of a Leaving slot.
    fn left(&self, slot: &LeavingSlot, operation: &str) -> (HandleId, u32) {
        match self.windows.slot(slot.place) {
            Some(s) if s.state == SlotState::Leaving => (s.handle, s.units),
            other => {
                super::broken("B10", format_args!("{operation} of {:?}, which is {other:?}", slot.place))
            }
        }
    }
}
