//! The naive model: one list of mappings, searched from end to end. Places of handles and holes are recorded nowhere else.

use millpond_core::physical::MOST_FORMER;
use std::collections::BTreeMap;

/// Units of the shortest window.
pub(crate) const STEP: u32 = 256;
/// The longest window unless a request is longer, in steps.
pub(crate) const LONGEST: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Arriving,
    Here,
    /// Until this epoch of the only stream; 0 waits for nothing.
    Draining(u64),
    Leaving,
}

/// A mapping of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) at: At,
    pub(crate) units: u32,
    pub(crate) handle: u64,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// In units of 512 MiB, as its length.
    pub(crate) base: u64,
    pub(crate) steps: u64,
    pub(crate) owner: u64,
    pub(crate) closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Spare,
    Busy,
    Mapped,
}

#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) units: u32,
    pub(crate) state: Stage,
    pub(crate) free_since: Option<u64>,
}

/// The place of a mapping: segment and unit.
pub(crate) type At = (u32, u32);

/// Why an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum No {
    Gone,
    Spare,
    Busy,
    Held,
    Draining,
    Absent,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Records {
    /// First and last 512 MiB of each arena, by address.
    pub(crate) arenas: Vec<(u64, u64)>,
    pub(crate) windows: BTreeMap<u32, Window>,
    pub(crate) handles: BTreeMap<u64, Handle>,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) next: u64,
    /// Draining slots, the least recently checked first.
    pub(crate) draining: Vec<At>,
    pub(crate) holds: BTreeMap<u32, Vec<u64>>,
    pub(crate) next_hold: u32,
    /// Created, released, moved, second mappings, stuck.
    pub(crate) done: [u64; 5],
}

impl Records {
    /// The lowest gap of this length, within one arena.
    fn first_fit(&self, steps: u64) -> Option<u64> {
        let taken = |at: u64| self.windows.values().any(|w| (w.base..w.base + w.steps).contains(&at));
        let fits = |from: u64, end: u64| from + steps <= end && (from..from + steps).all(|at| !taken(at));
        self.arenas.iter().find_map(|&(first, end)| (first..end).find(|&from| fits(from, end)))
    }

    /// The window's length, and its address if an arena has a gap for it.
    pub(crate) fn add_window(&mut self, id: u32, owner: u64, need: u32) -> (u64, Option<u64>) {
        let own = self.windows.values().filter(|w| w.owner == owner && !w.closed);
        let longest = own.map(|w| w.steps).max().unwrap_or(0);
        let doubled = (2 * longest).clamp(1, u64::from(LONGEST));
        let steps = doubled.max(u64::from(need.div_ceil(STEP)));
        let base = self.first_fit(steps);
        if let Some(base) = base {
            self.windows.insert(id, Window { base, steps, owner, closed: false });
        }
        (steps, base)
    }

    pub(crate) fn close(&mut self, owner: u64) {
        for window in self.windows.values_mut().filter(|w| w.owner == owner) {
            window.closed = true;
        }
    }
    pub(crate) fn retired(&self) -> Vec<u32> {
        let mapped = |id: u32| self.mappings.iter().any(|m| m.at.0 == id);
        self.windows.iter().filter(|(id, w)| w.closed && !mapped(**id)).map(|(&id, _)| id).collect()
    }
    /// The first arena that has no window.
    pub(crate) fn unused_arena(&self) -> Option<usize> {
        let inside = |a: &(u64, u64), w: &Window| a.0 <= w.base && w.base < a.1;
        self.arenas.iter().position(|a| !self.windows.values().any(|w| inside(a, w)))
    }

    /// The place of a handle's mapping in such a state.
    pub(crate) fn place(&self, handle: u64, is: impl Fn(What) -> bool) -> Option<At> {
        self.mappings.iter().find(|m| m.handle == handle && is(m.what)).map(|m| m.at)
    }
    pub(crate) fn here(&self, handle: u64) -> Option<At> {
        self.place(handle, |w| w == What::Here)
    }
    pub(crate) fn arriving(&self, handle: u64) -> Option<At> {
        self.place(handle, |w| w == What::Arriving)
    }
    /// The number of its places that are still mapped and not its own any more.
    pub(crate) fn former(&self, handle: u64) -> usize {
        let goes = |m: &&Mapping| matches!(m.what, What::Draining(_) | What::Leaving);
        self.mappings.iter().filter(goes).filter(|m| m.handle == handle).count()
    }
    pub(crate) fn is_busy(&self, handle: u64) -> bool {
        self.handles.get(&handle).is_some_and(|h| h.state == Stage::Busy)
    }
    pub(crate) fn is_held(&self, handle: u64) -> bool {
        self.holds.values().any(|held| held.contains(&handle))
    }
    pub(crate) fn is_available(&self, handle: u64) -> bool {
        self.handles[&handle].state == Stage::Spare && self.former(handle) == 0
    }

    /// The mapping that begins there.
    pub(crate) fn at(&self, at: At) -> Option<Mapping> {
        self.mappings.iter().find(|m| m.at == at).copied()
    }
    /// The mapping that covers a unit.
    pub(crate) fn over(&self, (window, unit): At) -> Option<Mapping> {
        let has = |m: &&Mapping| m.at.0 == window && (m.at.1..m.at.1 + m.units).contains(&unit);
        self.mappings.iter().find(has).copied()
    }
    fn put(&mut self, at: At, what: What) {
        self.mappings.iter_mut().find(|m| m.at == at).unwrap().what = what;
    }
    fn take(&mut self, at: At) {
        self.mappings.retain(|m| m.at != at);
    }
    /// Runs of holes within some units of a window.
    pub(crate) fn holes(&self, window: u32, from: u32, to: u32) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let end = self.windows[&window].steps as u32 * STEP;
        let mut unit = from;
        while unit < to.min(end) {
            match (self.over((window, unit)), runs.last_mut()) {
                (Some(mapping), _) => unit = mapping.at.1 + mapping.units - 1,
                (None, Some(run)) if run.1 == unit => run.1 += 1,
                (None, _) => runs.push((unit, unit + 1)),
            }
            unit += 1;
        }
        runs
    }

    pub(crate) fn create(&mut self, units: u32) -> u64 {
        let id = self.next;
        self.next += 1;
        self.done[0] += 1;
        self.handles.insert(id, Handle { units, state: Stage::Busy, free_since: None });
        id
    }
    /// The oldest spare handle of this length, or the shortest.
    pub(crate) fn take_spare(&mut self, units: Option<u32>) -> Option<u64> {
        let offered = self.handles.iter().filter(|(id, _)| self.is_available(**id));
        let fit = offered.filter(|(_, h)| units.is_none_or(|units| h.units == units));
        let found = fit.map(|(&id, h)| (h.units, id)).min()?.1;
        self.handles.get_mut(&found).unwrap().state = Stage::Busy;
        Some(found)
    }
    /// Begins work on a handle that is mapped at no more former places than these.
    pub(crate) fn begin(&mut self, handle: u64, former: usize) -> Result<(), No> {
        let state = self.handles.get(&handle).ok_or(No::Gone)?.state;
        match state {
            Stage::Spare => return Err(No::Spare),
            Stage::Busy => return Err(No::Busy),
            Stage::Mapped if self.is_held(handle) => return Err(No::Held),
            Stage::Mapped if self.former(handle) > former => return Err(No::Draining),
            Stage::Mapped => {}
        }
        self.handles.get_mut(&handle).unwrap().state = Stage::Busy;
        Ok(())
    }
    fn end(&mut self, handle: u64, state: Stage) {
        self.handles.get_mut(&handle).unwrap().state = state;
    }
    pub(crate) fn may_arrive(&self, handle: u64) -> bool {
        self.arriving(handle).is_none() && self.former(handle) < MOST_FORMER
    }
    pub(crate) fn may_start_map(&self, handle: u64, (window, unit): At) -> bool {
        if !self.is_busy(handle) || !self.may_arrive(handle) {
            return false;
        }
        let run = (unit, unit + self.handles[&handle].units);
        let open = self.windows.get(&window).is_some_and(|w| !w.closed);
        open && self.holes(window, run.0, run.1) == [run]
    }
    pub(crate) fn start_map(&mut self, handle: u64, at: At) {
        let units = self.handles[&handle].units;
        self.mappings.push(Mapping { at, units, handle, what: What::Arriving });
    }
    /// The Arriving slot becomes the handle's place; returns the former place.
    pub(crate) fn finish_map(&mut self, handle: u64) -> Option<At> {
        let (left, at) = (self.here(handle), self.arriving(handle).unwrap());
        self.put(at, What::Here);
        if let Some(left) = left {
            self.put(left, What::Leaving);
            self.done[2] += 1;
        }
        self.handles.get_mut(&handle).unwrap().free_since = None;
        self.end(handle, Stage::Mapped);
        left
    }
    pub(crate) fn map_failed(&mut self, handle: u64) {
        self.take(self.arriving(handle).unwrap());
    }
    pub(crate) fn map_stuck(&mut self, handle: u64) -> At {
        let at = self.arriving(handle).unwrap();
        self.put(at, What::Draining(0));
        self.draining.push(at);
        self.done[4] += 1;
        at
    }
    pub(crate) fn may_put_back(&self, handle: u64) -> bool {
        self.is_busy(handle) && self.here(handle).is_some() && self.arriving(handle).is_none()
    }
    pub(crate) fn put_back(&mut self, handle: u64) {
        self.end(handle, Stage::Mapped);
    }
    pub(crate) fn detach(&mut self, handle: u64) -> At {
        let at = self.here(handle).unwrap();
        self.take(at);
        at
    }
    pub(crate) fn may_spare(&self, handle: u64) -> bool {
        self.is_busy(handle) && self.here(handle).is_none() && self.arriving(handle).is_none()
    }
    pub(crate) fn spare(&mut self, handle: u64) {
        self.handles.get_mut(&handle).unwrap().free_since = None;
        self.end(handle, Stage::Spare);
    }
    pub(crate) fn may_release(&self, handle: u64) -> bool {
        self.may_spare(handle) && self.former(handle) == 0
    }
    pub(crate) fn release(&mut self, handle: u64) {
        self.handles.remove(&handle);
        self.done[1] += 1;
    }

    pub(crate) fn drained(&mut self, most: usize, complete: u64) -> Vec<At> {
        let mut left = Vec::new();
        for at in self.draining.drain(..most.min(self.draining.len())).collect::<Vec<_>>() {
            match self.at(at).unwrap().what {
                What::Draining(until) if until <= complete => {
                    self.put(at, What::Leaving);
                    left.push(at);
                }
                _ => self.draining.push(at),
            }
        }
        left
    }
    pub(crate) fn is_leaving(&self, at: At) -> bool {
        self.at(at).is_some_and(|m| m.what == What::Leaving)
    }
    pub(crate) fn unmapped(&mut self, at: At) {
        self.take(at);
    }
    pub(crate) fn drain(&mut self, at: At, until: u64) {
        self.put(at, What::Draining(until));
        self.draining.push(at);
        self.done[3] += u64::from(until > 0);
    }

    /// Holds every handle of a range of units.
    pub(crate) fn hold(&mut self, window: u32, from: u32, to: u32) -> Result<u32, No> {
        let mut held = Vec::new();
        for unit in from..to {
            // The first unit that cannot be held gives the reason.
            let mapping = self.over((window, unit)).filter(|m| m.what == What::Here);
            let handle = mapping.ok_or(No::Absent)?.handle;
            if self.is_busy(handle) {
                return Err(No::Busy);
            }
            if held.last() != Some(&handle) {
                held.push(handle);
            }
        }
        if held.is_empty() {
            return Err(No::Absent);
        }
        self.next_hold += 1;
        self.holds.insert(self.next_hold, held);
        Ok(self.next_hold)
    }

    /// Units of all handles, of spare ones, of Draining and Leaving slots, of held handles.
    pub(crate) fn sums(&self) -> [u64; 4] {
        let all = self.handles.values().map(|h| u64::from(h.units)).sum();
        let of = |is: &dyn Fn(u64) -> bool| {
            self.handles.iter().filter(|(id, _)| is(**id)).map(|(_, h)| u64::from(h.units)).sum()
        };
        let goes = |m: &&Mapping| matches!(m.what, What::Draining(_) | What::Leaving);
        let going = self.mappings.iter().filter(goes).map(|m| u64::from(m.units)).sum();
        [all, of(&|id| self.is_available(id)), going, of(&|id| self.is_held(id))]
    }
}
