//! Windows: the address ranges that serve as segments, their owners, and their slots.
//!
//! A window has one owner, and only the owner's requests fill its holes: what a request plans to map stays a hole while the request has its pool's
//! turn to grow. Bytes of the window may still be in other pools; that is between the heaps. An owner's first window is 512 MiB long, each next one
//! twice as long as its longest, up to the device's capacity. When the owner closes, handles in its windows stay until they are moved or
//! released. A closed window without slots is retired: the allocator removes it from the heaps, and its addresses go back to the arena.
//!
//! This module knows only the number and the length of a handle.

use super::slot::{Slot, SlotState, SlotView};
use super::{AddrRange, HandleId, Owner, Physical, WINDOW_BYTES, WindowPosition};
use crate::units::{Addr, Granules, SegmentId};
use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};

/// A window, as callers see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowView {
    /// The number of its segment.
    pub id: SegmentId,
    /// The first address.
    pub base: Addr,
    /// The length.
    pub len: Granules,
    /// The owner, or the last one if it is closed.
    pub owner: Owner,
    /// Whether the owner has closed.
    pub closed: bool,
}

/// Why no window was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoWindow {
    /// No arena has a gap that is long enough. A reservation of this many bytes has one, whatever its alignment.
    Reserve(u64),
    /// The request is longer than the longest segment.
    TooLong,
}

/// A window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) base: Addr,
    pub(super) units: u32,
    pub(super) owner: Owner,
    pub(super) closed: bool,
    /// By offset in units.
    pub(super) slots: BTreeMap<u32, Slot>,
    /// What no slot has, by offset in units: where each stretch ends. So that a request which grows looks at no slot.
    pub(super) holes: BTreeMap<u32, u32>,
}

/// All windows.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    unit: Granules,
    /// Units of the shortest window, and of the longest unless a request is longer.
    pub(super) step: u32,
    max: u32,
    pub(super) all: BTreeMap<SegmentId, Window>,
    pub(super) by_base: BTreeMap<u64, SegmentId>,
    /// The windows of each owner that is not closed.
    pub(super) by_owner: BTreeMap<Owner, Vec<SegmentId>>,
    /// Windows that are closed and have no slot.
    pub(super) retired: BTreeSet<SegmentId>,
    /// The units of all.
    pub(super) total: u64,
}

impl Window {
    fn view(&self, id: SegmentId, unit: Granules) -> WindowView {
        let len = Granules(self.units * unit.0);
        WindowView { id, base: self.base, len, owner: self.owner, closed: self.closed }
    }

    /// The slots that overlap these units, in address order.
    fn slots_in(&self, from: u32, to: u32) -> impl Iterator<Item = (u32, &Slot)> {
        let before = self.slots.range(..from).next_back().filter(|(at, slot)| *at + slot.units > from);
        let first = before.map_or(from, |(&at, _)| at);
        self.slots.range(first..to.max(first)).map(|(&at, slot)| (at, slot))
    }

    /// The holes among these units, in address order.
    fn holes(&self, from: u32, to: u32) -> impl Iterator<Item = (u32, u32)> {
        let before = self.holes.range(..from).next_back().filter(|(_, end)| **end > from);
        let first = before.map_or(from, |(&at, _)| at);
        let parts = self.holes.range(first..to.max(first));
        parts.map(move |(&at, &end)| (at.max(from), end.min(to))).filter(|(at, end)| at < end)
    }

    /// Adds a slot at a place that is a hole.
    fn fill(&mut self, at: u32, slot: Slot) {
        let end = at + slot.units;
        if let Some((&from, &to)) = self.holes.range(..=at).next_back() {
            self.holes.remove(&from);
            self.holes.extend([(from, at), (end, to)].into_iter().filter(|(from, to)| from < to));
        }
        self.slots.insert(at, slot);
    }

    /// Removes a slot: its place and the holes on both sides are one.
    fn clear(&mut self, at: u32) -> Option<Slot> {
        let slot = self.slots.remove(&at)?;
        let end = at + slot.units;
        let before = self.holes.range(..at).next_back().filter(|(_, to)| **to == at);
        let from = before.map_or(at, |(&from, _)| from);
        let to = self.holes.remove(&end).unwrap_or(end);
        self.holes.insert(from, to);
        Some(slot)
    }
}

impl Windows {
    pub(super) fn new(unit: Granules, capacity: u64) -> Windows {
        let step = (WINDOW_BYTES / unit.bytes()) as u32;
        let longest = u32::MAX / unit.0 / step;
        let max = u32::try_from(capacity.div_ceil(WINDOW_BYTES)).unwrap_or(u32::MAX).clamp(1, longest) * step;
        Windows {
            unit,
            step,
            max,
            all: BTreeMap::new(),
            by_base: BTreeMap::new(),
            by_owner: BTreeMap::new(),
            retired: BTreeSet::new(),
            total: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
    pub(super) fn units(&self) -> u64 {
        self.total
    }

    /// Units of an owner's next window, for a request of `need`; `None` if that is longer than a segment.
    fn next_len(&self, owner: Owner, need: Granules) -> Option<u32> {
        let needed = need.0.div_ceil(self.unit.0).max(1).checked_next_multiple_of(self.step)?;
        let own = self.by_owner.get(&owner).into_iter().flatten();
        let longest = own.map(|id| self.all[id].units).max().unwrap_or(0);
        let next = longest.saturating_mul(2).clamp(self.step, self.max).max(needed);
        next.checked_mul(self.unit.0).map(|_| next)
    }

    fn insert(&mut self, id: SegmentId, base: Addr, units: u32, owner: Owner) -> WindowView {
        let holes = BTreeMap::from([(0, units)]);
        let window = Window { base, units, owner, closed: false, slots: BTreeMap::new(), holes };
        let view = window.view(id, self.unit);
        let before = self.all.insert(id, window);
        law!(B8, before.is_none(), "segment {} is a window already", id.0);
        self.by_base.insert(base.0, id);
        self.by_owner.entry(owner).or_default().push(id);
        self.total += u64::from(units);
        view
    }

    /// Takes out a retired window: its base and its units.
    fn remove(&mut self, id: SegmentId) -> (Addr, u32) {
        law!(B8, self.retired.remove(&id), "segment {} is removed but is no retired window", id.0);
        let Some(window) = self.all.remove(&id) else {
            super::broken("B8", format_args!("segment {} is retired but is no window", id.0))
        };
        self.by_base.remove(&window.base.0);
        self.total -= u64::from(window.units);
        (window.base, window.units)
    }

    fn close(&mut self, owner: Owner) {
        for id in self.by_owner.remove(&owner).unwrap_or_default() {
            if let Some(window) = self.all.get_mut(&id) {
                window.closed = true;
                if window.slots.is_empty() {
                    self.retired.insert(id);
                }
            }
        }
    }

    /// Adds the slot of a handle that is about to be mapped.
    pub(super) fn arrive(&mut self, place: WindowPosition, handle: HandleId, units: u32) {
        let WindowPosition { segment, unit } = place;
        let Some(window) = self.all.get_mut(&segment) else {
            super::broken(
                "B2",
                format_args!("{handle:?} is mapped into segment {}, which is no window", segment.0),
            )
        };
        law!(B8, !window.closed, "{handle:?} is mapped into segment {}, which is closed", segment.0);
        let end = unit.checked_add(units).filter(|end| *end <= window.units);
        let Some(end) = end else {
            super::broken(
                "B2",
                format_args!("{handle:?} of {units} units at {unit} extends beyond window {}", segment.0),
            )
        };
        let other = window.slots_in(unit, end).next().map(|(at, slot)| (at, slot.handle));
        law!(B2, other.is_none(), "{handle:?} of {units} units at {unit} overlaps {other:?}");
        window.fill(unit, Slot { handle, units, state: SlotState::Arriving });
    }

    /// Removes a slot.
    pub(super) fn vacate(&mut self, place: WindowPosition) -> Option<Slot> {
        let window = self.all.get_mut(&place.segment)?;
        let slot = window.clear(place.unit);
        if window.closed && window.slots.is_empty() {
            self.retired.insert(place.segment);
        }
        slot
    }

    pub(super) fn slot(&self, place: WindowPosition) -> Option<&Slot> {
        self.all.get(&place.segment)?.slots.get(&place.unit)
    }
    pub(super) fn slot_mut(&mut self, place: WindowPosition) -> Option<&mut Slot> {
        self.all.get_mut(&place.segment)?.slots.get_mut(&place.unit)
    }
    pub(super) fn addr_of(&self, place: WindowPosition) -> Option<Addr> {
        let window = self.all.get(&place.segment)?;
        Some(window.base.offset(Granules(place.unit * self.unit.0)))
    }

    /// The slots that overlap a range of a window.
    pub(super) fn slots_in(
        &self,
        id: SegmentId,
        offset: Granules,
        len: Granules,
    ) -> impl Iterator<Item = (u32, &Slot)> {
        let from = offset.0 / self.unit.0;
        let to = (u64::from(offset.0) + u64::from(len.0)).div_ceil(u64::from(self.unit.0)) as u32;
        self.all.get(&id).into_iter().flat_map(move |w| w.slots_in(from, to.min(w.units)))
    }

    /// Takes out all windows: the first addresses and units of all slots.
    pub(super) fn take_all(&mut self) -> Vec<(Addr, u32)> {
        let unit = self.unit;
        let all = core::mem::take(&mut self.all).into_values();
        (self.by_base, self.by_owner, self.retired, self.total) = Default::default();
        all.flat_map(|w| {
            w.slots.into_iter().map(move |(at, slot)| (w.base.offset(Granules(at * unit.0)), slot.units))
        })
        .collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SegmentId, &Window)> {
        self.all.iter().map(|(&id, w)| (id, w))
    }
}

impl<H: Clone> Physical<H> {
    /// Adds a reservation of the driver's.
    ///
    /// # Panics
    /// B8, when it is empty, overlaps another or exceeds the address space.
    pub fn add_arena(&mut self, reserved: AddrRange) {
        self.arenas.add(reserved);
    }

    /// Takes out a reservation that has no window, to be given back to the driver. If that fails, the caller adds it again.
    pub fn take_unused_arena(&mut self) -> Option<AddrRange> {
        self.arenas.take_unused()
    }

    /// Adds a window for a request of `need`, as segment `id`: all of it is a hole.
    ///
    /// # Errors
    /// [`NoWindow`]; nothing has changed then.
    ///
    /// # Panics
    /// B8, when `id` is a window already.
    pub fn add_window(
        &mut self,
        id: SegmentId,
        owner: Owner,
        need: Granules,
    ) -> Result<WindowView, NoWindow> {
        let units = self.windows.next_len(owner, need).ok_or(NoWindow::TooLong)?;
        let bytes = u64::from(units) * self.unit.bytes();
        let base = self.arenas.take(bytes).ok_or(NoWindow::Reserve(bytes + WINDOW_BYTES))?;
        Ok(self.windows.insert(id, base, units, owner))
    }

    /// Closes an owner's windows: their holes are not filled any more. Handles stay where they are.
    pub fn close(&mut self, owner: Owner) {
        self.windows.close(owner);
    }

    /// The windows that are closed and have no slot. The caller removes each from all heaps, then [from here](Physical::remove_window).
    pub fn retired(&self) -> impl Iterator<Item = SegmentId> {
        self.windows.retired.iter().copied()
    }

    /// Gives a window's addresses back to its arena.
    ///
    /// # Panics
    /// B8, when it is not retired.
    pub fn remove_window(&mut self, id: SegmentId) {
        let (base, units) = self.windows.remove(id);
        self.arenas.give(base, u64::from(units) * self.unit.bytes());
    }

    /// A window, if the segment is one.
    pub fn window(&self, id: SegmentId) -> Option<WindowView> {
        self.windows.all.get(&id).map(|w| w.view(id, self.unit))
    }

    /// Every window, by its number.
    pub fn windows(&self) -> impl Iterator<Item = WindowView> {
        self.windows.iter().map(|(id, w)| w.view(id, self.unit))
    }

    /// The windows behind this one, by their numbers: for walking all of them in pieces.
    pub fn windows_behind(&self, id: Option<SegmentId>) -> impl Iterator<Item = WindowView> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.windows.all.range((from, Bound::Unbounded)).map(|(&id, w)| w.view(id, self.unit))
    }

    /// The windows of an owner that is not closed, in the order in which they were added.
    pub fn windows_of(&self, owner: Owner) -> impl Iterator<Item = WindowView> {
        let own = self.windows.by_owner.get(&owner).into_iter().flatten();
        own.filter_map(|&id| self.window(id))
    }

    /// The window that an address lies in.
    pub fn window_at(&self, addr: Addr) -> Option<WindowView> {
        let (_, &id) = self.windows.by_base.range(..=addr.0).next_back()?;
        self.window(id).filter(|w| addr.0 - w.base.0 < w.len.bytes())
    }

    /// The holes that `owner` may fill within a range of a segment, in whole units: offsets and lengths. There are none in a segment that is no
    /// window, is closed or belongs to another owner.
    pub fn holes(
        &self,
        owner: Owner,
        id: SegmentId,
        offset: Granules,
        len: Granules,
    ) -> impl Iterator<Item = (Granules, Granules)> {
        let unit = self.unit.0;
        let own = self.windows.all.get(&id).filter(|w| w.owner == owner && !w.closed);
        let from = offset.0.div_ceil(unit);
        let to = ((u64::from(offset.0) + u64::from(len.0)) / u64::from(unit)) as u32;
        let holes = own.into_iter().flat_map(move |w| w.holes(from, to.min(w.units)));
        holes.map(move |(from, to)| (Granules(from * unit), Granules((to - from) * unit)))
    }

    /// Whether a whole range of a segment is a hole that `owner` may fill.
    pub fn is_hole(&self, owner: Owner, id: SegmentId, offset: Granules, len: Granules) -> bool {
        let own = self.windows.all.get(&id).filter(|w| w.owner == owner && !w.closed);
        own.is_some() && self.windows.slots_in(id, offset, len).next().is_none()
    }

    /// The slots that overlap a range of a segment, in address order, in any state. There are none in a segment that is no window.
    pub fn slots_in(
        &self,
        id: SegmentId,
        offset: Granules,
        len: Granules,
    ) -> impl Iterator<Item = SlotView<'_>> {
        let unit = self.unit.0;
        self.windows.slots_in(id, offset, len).map(move |(at, slot)| SlotView {
            handle: slot.handle,
            offset: Granules(at * unit),
            len: Granules(slot.units * unit),
            state: &slot.state,
        })
    }
}
