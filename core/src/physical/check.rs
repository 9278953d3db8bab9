//! The checker of B1, B2, B4, B6, B8, B10 and the first half of B11: one walk over the windows and one over the handles.
//!
//! Tests call it after every step; its cost is the number of slots and handles. It does not know what heaps have of a window.

use super::handle::{Handle, MOST_FORMER};
use super::window::Window;
use super::{HandleId, HandleState, Physical, SlotState, Totals, WindowPosition};
use crate::units::SegmentId;
use std::collections::{BTreeMap, BTreeSet};

impl<H: Clone> Physical<H> {
    /// Checks all invariants but the last sentence of B10.
    ///
    /// # Panics
    /// If an invariant does not hold; the message has its number.
    pub fn check(&self) {
        let mut count = Totals::default();
        let mut draining = BTreeSet::new();
        for (id, window) in self.windows.iter() {
            self.check_window(id, window, &mut count, &mut draining);
        }
        let mut spares = 0;
        for (id, handle) in self.handles.iter() {
            self.check_handle(id, handle);
            let units = u64::from(handle.units);
            count.units += units;
            count.held += if handle.holds > 0 { units } else { 0 };
            if handle.state == HandleState::Spare && handle.former.is_empty() {
                law!(
                    B1,
                    self.handles.spare().contains(&(handle.units, id)),
                    "{id:?} is spare but not in the index"
                );
                count.spare += units;
                spares += 1;
            }
        }
        let indexed = self.handles.spare().len();
        law!(B1, indexed == spares, "the index has {indexed} handles, {spares} are spare");
        for (name, kept, counted) in [
            ("all", self.totals.units, count.units),
            ("spare", self.totals.spare, count.spare),
            ("draining", self.totals.draining, count.draining),
            ("held", self.totals.held, count.held),
        ] {
            law!(B1, kept == counted, "{name}: the total is {kept} units, the handles have {counted}");
        }
        let queued: BTreeSet<WindowPosition> = self.draining.iter().copied().collect();
        law!(B6, queued.len() == self.draining.len(), "the queue has a slot twice: {:?}", self.draining);
        law!(B6, queued == draining, "the queue has {queued:?}, but {draining:?} are draining");
        self.check_addresses();
        for (id, window) in self.windows.iter() {
            let ends =
                window.slots.iter().map(|(&at, slot)| (at, at + slot.units)).chain([(window.units, 0)]);
            let between = ends.scan(0, |end, (at, next)| Some((core::mem::replace(end, next), at)));
            let between: BTreeMap<u32, u32> = between.filter(|(from, to)| from < to).collect();
            let holes = &window.holes;
            law!(B2, *holes == between, "segment {} has the holes {holes:?}, not {between:?}", id.0);
        }
    }

    /// The same, when no thread works on anything (B10).
    ///
    /// # Panics
    /// As [`Physical::check`]; B10, when a thread works on a handle or a slot, or dropped the value that represented its work.
    pub fn check_at_rest(&self) {
        self.check();
        for (id, handle) in self.handles.iter() {
            law!(B10, handle.state != HandleState::Busy, "{id:?} is Busy at rest, at {:?}", handle.at);
        }
        for (id, window) in self.windows.iter() {
            let leaving = window.slots.iter().find(|(_, slot)| slot.state == SlotState::Leaving);
            law!(B10, leaving.is_none(), "a slot of segment {} is Leaving at rest: {leaving:?}", id.0);
        }
    }

    /// B2 and B8 of one window.
    fn check_window(
        &self,
        id: SegmentId,
        window: &Window,
        count: &mut Totals,
        draining: &mut BTreeSet<WindowPosition>,
    ) {
        let mut end = 0;
        for (&at, slot) in &window.slots {
            law!(B2, at >= end, "the slot at {at} of segment {} overlaps the one below it", id.0);
            end = at.saturating_add(slot.units);
            let place = WindowPosition { segment: id, unit: at };
            let Some(handle) = self.handles.get(slot.handle) else {
                super::broken("B2", format_args!("{place:?} has {:?}, which does not exist", slot.handle))
            };
            law!(
                B2,
                slot.units == handle.units,
                "{place:?} has {} units, {:?} has {}",
                slot.units,
                slot.handle,
                handle.units
            );
            let named = match slot.state {
                SlotState::Here => handle.at == Some(place),
                SlotState::Arriving => handle.arriving == Some(place),
                SlotState::Draining(_) | SlotState::Leaving => handle.former.contains(&place),
            };
            law!(
                B2,
                named,
                "{place:?} is {:?} for {:?}, which is at {:?}, arrives at {:?} and was at {:?}",
                slot.state,
                slot.handle,
                handle.at,
                handle.arriving,
                handle.former
            );
            match slot.state {
                SlotState::Here => {}
                SlotState::Arriving => {
                    let busy = handle.state == HandleState::Busy;
                    law!(B10, busy, "{place:?} is Arriving, but {:?} is {:?}", slot.handle, handle.state);
                }
                SlotState::Draining(_) => {
                    draining.insert(place);
                    count.draining += u64::from(slot.units);
                }
                SlotState::Leaving => count.draining += u64::from(slot.units),
            }
        }
        law!(B2, end <= window.units, "the slots of segment {} end at {end} of {}", id.0, window.units);
        let whole = window.units > 0 && window.units.is_multiple_of(self.windows.step);
        let aligned = window.base.0.is_multiple_of(super::WINDOW_BYTES);
        law!(B8, whole && aligned, "segment {} at {} has {} units", id.0, window.base, window.units);
        let retired = self.windows.retired.contains(&id);
        let is = window.closed && window.slots.is_empty();
        law!(B8, retired == is, "segment {} is in the list of retired windows: {retired}", id.0);
        let owned = self.windows.by_owner.get(&window.owner).is_some_and(|own| own.contains(&id));
        law!(B8, owned != window.closed, "segment {} is in the list of its owner: {owned}", id.0);
        let found = self.windows.by_base.get(&window.base.0) == Some(&id);
        law!(B8, found, "segment {} is not in the index by address, at {}", id.0, window.base);
    }

    /// B2, B4 and B11 of one handle.
    fn check_handle(&self, id: HandleId, handle: &Handle<H>) {
        for &place in handle.at.iter().chain(&handle.arriving).chain(&handle.former) {
            // What the slot is, is checked with the windows.
            let slot = self.windows.slot(place);
            let is = slot.is_some_and(|slot| slot.handle == id);
            law!(B2, is, "{id:?} has a mapping at {place:?}, but that slot is {slot:?}");
        }
        let distinct: BTreeSet<WindowPosition> = handle.former.iter().copied().collect();
        let former = distinct.len() == handle.former.len() && distinct.len() <= MOST_FORMER;
        law!(B2, former, "{id:?} was at {:?}", handle.former);
        let placed = match handle.state {
            HandleState::Spare => handle.at.is_none(),
            HandleState::Busy => true,
            HandleState::Mapped => handle.at.is_some(),
        };
        law!(B2, placed, "{id:?} is {:?} at {:?}", handle.state, handle.at);
        let held = handle.holds == 0 || handle.state == HandleState::Mapped;
        law!(B4, held, "{id:?} is held and {:?}", handle.state);
        let stayed = if handle.holds > 0 { handle.held_at == handle.at } else { handle.held_at.is_none() };
        law!(
            B11,
            stayed,
            "{id:?} has {} holds since it was at {:?} and is at {:?}",
            handle.holds,
            handle.held_at,
            handle.at
        );
    }

    /// B8: windows and gaps tile the arenas, and the indices have nothing else.
    fn check_addresses(&self) {
        let mut windows = 0;
        for (first, usable, gaps) in self.arenas.tiles() {
            let mut at = first;
            while at < first + usable {
                let window = self.windows.by_base.get(&at).and_then(|&id| self.window(id));
                match (window, gaps.get(&at)) {
                    (Some(window), None) => {
                        windows += 1;
                        at += window.len.bytes();
                    }
                    (None, Some(&len)) if len > 0 => {
                        law!(B8, !gaps.contains_key(&(at + len)), "two gaps are adjacent at {:#x}", at + len);
                        at += len;
                    }
                    (window, gap) => super::broken(
                        "B8",
                        format_args!("at {at:#x} an arena has the window {window:?} and the gap {gap:?}"),
                    ),
                }
            }
            law!(B8, at == first + usable, "windows and gaps of the arena at {first:#x} end at {at:#x}");
            let inside = |gap: &u64| (first..first + usable).contains(gap);
            law!(B8, gaps.keys().all(inside), "the arena at {first:#x} has a gap outside itself");
        }
        let units: u64 = self.windows.iter().map(|(_, w)| u64::from(w.units)).sum();
        let kept = self.windows.units();
        law!(B8, kept == units, "the windows have {units} units, the total is {kept}");
        let all = self.windows.len();
        law!(B8, windows == all, "{all} windows, but {windows} in arenas");
        let listed = self.windows.by_base.len();
        law!(B8, listed == all, "{all} windows, but {listed} in the index by address");
        let (owned, open) = (self.windows.by_owner.values().flatten(), self.windows().filter(|w| !w.closed));
        let (owned, open) = (owned.count(), open.count());
        law!(B8, owned == open, "{open} open windows, but {owned} in the lists of owners");
        let retired = self.windows.retired.len();
        let idle = self.windows.iter().filter(|(_, w)| w.closed && w.slots.is_empty()).count();
        law!(B8, retired == idle, "{idle} retired windows, but {retired} in their list");
    }
}
