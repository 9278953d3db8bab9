//! The move-handles rung: physical memory moves. A handle all of whose bytes are free is mapped where the pool that misses lacks memory; addresses of live allocations
//! stay.
//!
//! ```text
//!   A's window  | alloc |  Free: handle 7, handle 8  | alloc |        | alloc | Draining | handle 8 | alloc |
//!   B's window  | alloc | Free |··· hole ···|                   ──►   | alloc |   Free, with handle 7 |
//! ```
//!
//! Migration (`migrate`) moves a range with its addresses, which helps only where one range is long enough. A handle fills any hole, so
//! what is free in small pieces everywhere serves one long request. The rule is the same, O1: the bytes are complete, ordered before the stream
//! that takes them, or a wait is inserted; and they enter by O5. The old mapping is taken away at once if every use through its addresses is complete (O4);
//! otherwise it *drains*: the handle is mapped twice until then and counts once. It may move again meanwhile
//! ([`MOST_FORMER`](crate::physical::MOST_FORMER)).
//!
//! A handle that is too long for a hole is released if it is complete, which makes room for one that fits.
//!
//! The search takes no handle out: it lists what may move. Each is taken out when its turn comes, in one hold of its pool's lock, and if any of it
//! is in use by then, it ends there and another plan is made. It does not know which holes are to be filled, nor what memory costs.

use super::bounded::Waits;
use super::config::Reuse;
use super::core::Core;
use super::entry::Range;
use super::in_transit::TransitGuard;
use super::miss::Miss;
use super::physical::Windows;
use super::pool::Pool;
use super::undo::Undo;
use crate::driver::{Driver, DriverResult};
use crate::heap::{Cut, Kind, Run};
use crate::laws::{self, price};
use crate::order::{Completed, Pending, PendingSet, is_ordered};
use crate::physical::{BusyHandle, HandleId, LeavingSlot, SlotState, WindowPosition};
use crate::sync::{Arc, Ordering};
use crate::trace::Event;
use crate::units::{Epoch, GRANULE_BYTES, Granules, SegmentId};
use core::cell::Cell;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The number of free ranges of a pool's kind in which handles are sought, the longest first; before a request is out of memory, all of them.
const RANGES: usize = 256;
/// The most records that a search for the free bytes of one handle visits.
const STEPS: usize = 4096;

/// What has to happen before a handle's bytes may be used by another stream, the cheapest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Needs {
    /// Nothing: every use is complete.
    Nothing,
    /// Nothing, but its old mapping stays for a while.
    Drain,
    /// A wait on the device.
    Wait,
}

/// A handle all of whose bytes were free when it was seen.
#[derive(Clone)]
pub(super) struct Candidate<D: Driver> {
    pub(super) handle: HandleId,
    segment: SegmentId,
    offset: Granules,
    pub(super) len: Granules,
    /// The pools that have some of its bytes.
    pools: SmallVec<[Arc<Pool<D>>; 1]>,
    needs: Needs,
    /// How many markers ago its bytes were last used.
    age: u64,
}

/// What is free of a handle, while the pools are looked at.
struct Seen<D: Driver> {
    of: Candidate<D>,
    free: u32,
}

/// Handles that may move, by their length.
#[derive(Clone)]
pub(super) struct Candidates<D: Driver> {
    /// The best of each length last.
    by_len: BTreeMap<Granules, Vec<Candidate<D>>>,
}

impl<D: Driver> Candidates<D> {
    pub(super) fn none() -> Candidates<D> {
        Candidates { by_len: BTreeMap::new() }
    }

    /// The length of the longest whose length is a power of two in units, as that of parts is.
    pub(super) fn longest(&self, unit: Granules) -> Granules {
        let mut lens = self.by_len.keys().rev();
        lens.find(|len| (len.0 / unit.0).is_power_of_two()).copied().unwrap_or(Granules::ZERO)
    }

    /// Takes the best of exactly this length.
    pub(super) fn take(&mut self, len: Granules) -> Option<Candidate<D>> {
        let of = self.by_len.get_mut(&len)?;
        let best = of.pop();
        if of.is_empty() {
            self.by_len.remove(&len);
        }
        best
    }

    /// Bytes of those shorter than this, in granules.
    pub(super) fn shorter_than(&self, len: Granules) -> u64 {
        self.by_len.range(..len).map(|(len, of)| u64::from(len.0) * of.len() as u64).sum()
    }

    /// Takes some shorter than this, which are as long together, the longest first: complete ones, of those that `may` be released. `None`, and nothing is taken,
    /// if there are not enough.
    pub(super) fn take_shorter(
        &mut self,
        len: Granules,
        may: impl Fn(&Candidate<D>) -> bool,
    ) -> Option<Vec<Candidate<D>>> {
        let may = |c: &Candidate<D>| c.needs == Needs::Nothing && may(c);
        // Each length is a multiple of those below it: what is left of `len` is a multiple of the next.
        let mut left = len.0;
        let mut counts: SmallVec<[(Granules, usize); 8]> = SmallVec::new();
        for (&shorter, of) in self.by_len.range(..len).rev() {
            let n = of.iter().rev().filter(|c| may(c)).take((left / shorter.0) as usize).count();
            left -= shorter.0 * n as u32;
            counts.push((shorter, n));
        }
        if left > 0 {
            return None;
        }
        let mut taken = Vec::new();
        for (shorter, n) in counts {
            let Some(of) = self.by_len.get_mut(&shorter) else { continue };
            let best: SmallVec<[usize; 8]> = (0..of.len()).rev().filter(|&at| may(&of[at])).take(n).collect();
            taken.extend(best.into_iter().map(|at| of.remove(at)));
            if of.is_empty() {
                self.by_len.remove(&shorter);
            }
        }
        Some(taken)
    }

    /// Takes the shortest one longer than this that is complete: it can be released.
    pub(super) fn take_longer(&mut self, than: Granules) -> Option<Candidate<D>> {
        let longer = self.by_len.range(Granules(than.0 + 1)..);
        let complete = |of: &Vec<Candidate<D>>| of.last().is_some_and(|c| c.needs == Needs::Nothing);
        let len = longer.filter(|(_, of)| complete(of)).map(|(&len, _)| len).next()?;
        self.take(len)
    }
}

/// A handle that this thread works on: its bytes are in no heap.
struct Taken<'a, D: Driver> {
    handle: BusyHandle,
    /// What was cut out of which of its pools.
    pieces: SmallVec<[(usize, Cut); 1]>,
    transit: TransitGuard<'a>,
    _moving: Moving<'a, D>,
}

impl<D: Driver> Taken<'_, D> {
    /// The uses of its bytes.
    fn pending(&self, c: &Candidate<D>) -> PendingSet {
        self.pieces
            .iter()
            .map(|&(n, ref cut)| Pending { on: c.pools[n].timeline.id, epoch: cut.stamp })
            .collect()
    }
}

/// Bytes that are in no pool: counted in [`Core::moving`] until this is dropped, beside a driver that panics too.
struct Moving<'a, D: Driver> {
    core: &'a Core<D>,
    bytes: u64,
}

impl<D: Driver> Drop for Moving<'_, D> {
    fn drop(&mut self) {
        self.core.moving.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a handle that moved brings to its new place.
pub(super) struct Moved<'a> {
    /// The uses of its bytes, which are ordered before the pool's stream.
    pub(super) pending: PendingSet,
    /// The stamp that its bytes keep: they were the pool's own.
    pub(super) stamp: Option<Epoch>,
    /// Its former place, whose uses are complete: to be taken away as soon as its bytes are listed to enter.
    pub(super) old: Option<LeavingSlot>,
    /// Until its bytes have entered.
    pub(super) _transit: TransitGuard<'a>,
}

impl<'a, D: Driver> Miss<'a, D> {
    /// Which handles may move to this pool's stream, except those that the run counts on and those that were `skipped`.
    pub(super) fn movable(&self, of: &Windows<D>, run: &Run, skipped: &[HandleId]) -> Candidates<D> {
        let (core, own) = (self.core, self.pool);
        let unit = of.lock().unit();
        let clock = own.timeline.clock();
        let waits = self.waits();
        let ranges = if self.thorough { usize::MAX } else { RANGES };
        let counted_on = (run.offset.0, run.offset.0 + self.want.len.0);
        let mut seen: BTreeMap<HandleId, Seen<D>> = BTreeMap::new();
        for pool in self.holders(unit) {
            let (marked, on) = (pool.timeline.marked(), pool.timeline.id);
            let needs = |epoch| {
                let pending = Pending { on, epoch };
                let (complete, ordered) = {
                    let seen = core.registry.seen();
                    (seen.is_complete(pending), is_ordered(own.timeline.id, &clock, &seen, pending))
                };
                match (complete, ordered) {
                    (true, _) => Some(Needs::Nothing),
                    (_, true) => Some(Needs::Drain),
                    _ => self.may_wait_for(waits.as_ref(), pending).then_some(Needs::Wait),
                }
            };
            let state = pool.lock();
            let records = of.lock();
            for kind in Kind::ALL {
                for free in state.heap.free_at_least(kind, Granules(1)).take(ranges) {
                    let end = free.offset.0 + free.len.0;
                    for slot in records.slots_in(free.segment, free.offset, free.len) {
                        let (from, to) = (slot.offset.0, slot.offset.0 + slot.len.0);
                        let is_counted_on =
                            free.segment == run.segment && from < counted_on.1 && to > counted_on.0;
                        let is_here = *slot.state == SlotState::Here && !is_counted_on;
                        if !is_here
                            || !records.handle(slot.handle).is_some_and(|h| h.may_move())
                            || skipped.contains(&slot.handle)
                        {
                            continue;
                        }
                        let (from, to) = (from.max(free.offset.0), to.min(end));
                        let part = (Granules(from), Granules(to - from));
                        let stamp = state.heap.stamp_of(free.chunk, part.0, part.1);
                        let Some(needs) = needs(stamp) else { continue };
                        let age = (marked.0 + 1).saturating_sub(stamp.0);
                        let seen = seen.entry(slot.handle).or_insert_with(|| Seen {
                            of: Candidate {
                                handle: slot.handle,
                                segment: free.segment,
                                offset: slot.offset,
                                len: slot.len,
                                pools: SmallVec::new(),
                                needs,
                                age,
                            },
                            free: 0,
                        });
                        seen.free += part.1.0;
                        let c = &mut seen.of;
                        (c.needs, c.age) = (c.needs.max(needs), c.age.min(age));
                        if c.pools.last().is_none_or(|last| last.number != pool.number) {
                            c.pools.push(Arc::clone(&pool));
                        }
                    }
                }
            }
        }
        let whole = seen
            .into_values()
            .filter(|seen| laws::physical::may_move(seen.free.into(), seen.of.len.0.into()));
        let mut all: Vec<Candidate<D>> = whole.map(|seen| seen.of).collect();
        // The best last: the cheapest, of those the one whose bytes were used longest ago, of those the lowest.
        all.sort_by(|a, b| {
            let worst = b.needs.cmp(&a.needs).then(a.age.cmp(&b.age));
            worst.then_with(|| (b.segment, b.offset).cmp(&(a.segment, a.offset)))
        });
        let mut by_len: BTreeMap<Granules, Vec<Candidate<D>>> = BTreeMap::new();
        for candidate in all {
            by_len.entry(candidate.len).or_default().push(candidate);
        }
        Candidates { by_len }
    }

    /// The pools that may have free bytes which this one may take.
    fn holders(&self, unit: Granules) -> Vec<Arc<Pool<D>>> {
        let core = self.core;
        let mut pools = if core.config.reuse == Reuse::Never {
            // Pools keep what they reserved while their streams live.
            let gone: Vec<u32> = core.gone.lock().iter().copied().collect();
            core.pools_numbered(gone)
        } else {
            core.pools_with(if self.thorough { Granules(1) } else { unit }, usize::MAX)
        };
        if !pools.iter().any(|pool| pool.number == self.pool.number) {
            pools.extend(core.pool_numbered(self.pool.number));
        }
        pools.retain(|pool| Kind::ALL.iter().any(|&kind| pool.longest_hint(kind) > 0));
        pools
    }

    /// Whether this pool's stream may be made to wait for this use now.
    fn may_wait_for(&self, waits: Option<&Waits<'_, D>>, p: Pending) -> bool {
        waits.is_some_and(|waits| !self.refused_on.contains(&p.on) && waits.orderable(p))
    }

    /// Takes a candidate's bytes out of its pools. `None`, and nothing has changed, if some of it is in use by now, or another thread works on it.
    fn take_out(&self, of: &Windows<D>, c: &Candidate<D>) -> Option<Taken<'a, D>> {
        let core = self.core;
        let steps = if self.thorough { usize::MAX } else { STEPS };
        let (handle, transit) = {
            let mut records = of.lock();
            let place = WindowPosition { segment: c.segment, unit: c.offset.0 / records.unit().0 };
            // It may have moved and come to rest since.
            let is_there = records.handle(c.handle).is_some_and(|h| h.at == Some(place));
            if !is_there {
                return None;
            }
            (records.begin_move(c.handle).ok()?, self.transit())
        };
        let mut pieces: SmallVec<[(usize, Cut); 1]> = SmallVec::new();
        for (n, pool) in c.pools.iter().enumerate() {
            let mut state = pool.lock();
            let Some(cuts) = state.cut_free_in(c.segment, c.offset, c.len, steps) else { break };
            pool.tighten_longest(&mut state);
            pieces.extend(cuts.into_iter().map(|cut| (n, cut)));
        }
        let gathered = pieces.iter().map(|(_, cut)| u64::from(cut.len.0)).sum();
        let bytes = gathered * GRANULE_BYTES;
        core.moving.fetch_add(bytes, Ordering::Relaxed);
        let taken = Taken { handle, pieces, transit, _moving: Moving { core, bytes } };
        if laws::physical::may_move(gathered, c.len.0.into()) {
            Some(taken)
        } else {
            Self::put_handle_back(of, c, taken);
            None
        }
    }

    /// Puts a handle back exactly as it was.
    fn put_handle_back(of: &Windows<D>, c: &Candidate<D>, taken: Taken<'_, D>) {
        of.lock().put_back(taken.handle);
        if laws::physical::returns_uncut() {
            Self::put_pieces_back(c, &taken.pieces);
        }
    }

    fn put_pieces_back(c: &Candidate<D>, pieces: &[(usize, Cut)]) {
        for (n, cut) in pieces {
            let pool = &c.pools[*n];
            pool.extend(&mut pool.lock(), &Range::from(cut), laws::returned_stamp(cut.stamp));
        }
    }

    /// Whether each use is ordered before this pool's stream, or may be by a wait that is inserted now.
    fn may_order(&self, pending: &[Pending]) -> bool {
        let (core, own) = (self.core, &self.pool.timeline);
        let clock = own.clock();
        let waits = self.waits();
        pending.iter().all(|&p| {
            let ordered = is_ordered(own.id, &clock, &core.registry.seen(), p);
            ordered || self.may_wait_for(waits.as_ref(), p)
        })
    }

    /// Maps a candidate at `place`, ordered behind its uses. `None` if it cannot be had any more, or not ordered; then nothing has changed.
    ///
    /// # Errors
    /// The driver's, when the handle could not be mapped there: it is where it was.
    pub(super) fn move_here(
        &mut self,
        of: &Windows<D>,
        c: &Candidate<D>,
        place: WindowPosition,
    ) -> DriverResult<Option<Moved<'a>>> {
        let core = self.core;
        let Some(taken) = self.take_out(of, c) else { return Ok(None) };
        let pending = taken.pending(c);
        let complete = core.registry.all_complete(&pending);
        let is_own = c.pools.iter().all(|pool| pool.number == self.pool.number);
        let in_hand = Cell::new(Some(taken));
        // If the wait fails, or the driver panics in it, the handle is where it was.
        let back =
            Undo::new(|| in_hand.take().into_iter().for_each(|taken| Self::put_handle_back(of, c, taken)));
        if laws::physical::move_waits(complete || is_own) {
            // It may have been used since it was looked at.
            if !self.may_order(&pending) {
                return Ok(None);
            }
            if let Err(e) = self.wait_for_all(&pending) {
                drop(back);
                if e.is_context_lost() {
                    return Err(e);
                }
                let _ = self.unordered(e);
                return Ok(None);
            }
        }
        back.forget();
        let Some(taken) = in_hand.take() else { return Ok(None) };
        // If the driver panics, it is where it was.
        let back = Undo::new(|| Self::put_pieces_back(c, &taken.pieces));
        let mapped = core.map_at(of, &taken.handle, place);
        back.forget();
        if let Err(e) = mapped {
            Self::put_handle_back(of, c, taken);
            return Err(e);
        }
        let Taken { handle, pieces, transit, _moving } = taken;
        let old = of.lock().moved(handle);
        if core.is_recording() {
            core.record(Event::Trim { addr: old.addr(), bytes: old.bytes() });
        }
        let old = if laws::physical::may_unmap(complete) {
            Some(old)
        } else {
            of.lock().drain(old, pending.clone());
            None
        };
        let stamps = pieces.iter().map(|(_, cut)| cut.stamp);
        let stamp = is_own.then(|| stamps.fold(Epoch::COMPLETE, laws::merged_stamp));
        Ok(Some(Moved { pending, stamp, old, _transit: transit }))
    }

    /// Releases a candidate that is complete. Returns its bytes, which are claimed under the limit still; `None` if it cannot be had.
    ///
    /// # Errors
    /// That the context is lost.
    pub(super) fn release_candidate(
        &mut self,
        of: &Windows<D>,
        c: &Candidate<D>,
    ) -> DriverResult<Option<Granules>> {
        let core = self.core;
        // Not while it is mapped at former places: it would be neither free nor gone.
        if of.lock().handle(c.handle).is_none_or(|handle| handle.former > 0) {
            return Ok(None);
        }
        let Some(taken) = self.take_out(of, c) else { return Ok(None) };
        let complete = || core.registry.all_complete(&taken.pending(c));
        let may = laws::may_release(true, complete);
        // The window may go with its last handle.
        let addr = of.lock().window(c.segment).map(|window| window.base.offset(c.offset));
        if may {
            core.charge(price::UNMAP + price::release(1, c.len.bytes()));
        }
        let unmapped = if may { core.unmap_handle(of, &taken.handle, (c.segment, c.offset)) } else { Ok(()) };
        if !may || unmapped.is_err() {
            Self::put_handle_back(of, c, taken);
            return unmapped.or_else(|e| if e.is_context_lost() { Err(e) } else { Ok(()) }).map(|()| None);
        }
        if let Some(addr) = addr.filter(|_| core.is_recording()) {
            core.record(Event::Trim { addr, bytes: c.len.bytes() });
        }
        let released = core.release_claimed(of, taken.handle);
        core.backing.lock().releases += u64::from(released.is_some());
        Ok(released)
    }
}
