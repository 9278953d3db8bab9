//! The grow and move-handles rungs where a device has virtual memory: a pool fills holes of its windows with physical memory, for what a request lacks and no more.
//!
//! ```text
//!   window      | alloc | Free |···· hole ····| Free |·· hole ··| alloc |
//!   the run            ╰──────────────────────╯                            where the fewest bytes are missing
//!   pieces                     | 8  | 4  | 2 |                             handles that are to be mapped
//! ```
//!
//! As with plain segments, room is claimed first, the driver is called with no lock held but the grower's turn, and what it gave enters the pool *and* is taken
//! from in one hold of the pool's lock. No other thread fills these holes meanwhile, because they are the pool's and there is one grower a pool. The free
//! ranges of the run may be taken meanwhile, by threads of the same stream that hit: then what was filled stays for later requests, and the run is looked
//! for again.
//!
//! If a call fails behind others, what they brought enters the pool as free memory, and the rest of the claim is void. Which handles fill a run is
//! decided in `plan`; how one moves from elsewhere is in `moves`. It does not know what a handle costs.

use super::entry::Range;
use super::miss::Miss;
use super::moves::Moved;
use super::physical::Windows;
use super::plan::{Means, Piece, Plan, Source};
use crate::driver::{Driver, DriverResult};
use crate::heap::{ChunkId, Hole, Run, Taken};
use crate::laws::{cost, price};
use crate::physical::{HandleId, WindowPosition, WindowView};
use crate::trace::Event;
use crate::units::Granules;
use smallvec::SmallVec;

/// What came of it.
pub(super) enum Fill {
    /// The request is served.
    Served(Taken),
    /// There is no room for what is missing.
    NoRoom,
    /// No window holds the request, or the driver has no addresses for one.
    NoWindow,
}

/// The most plans for one request: then other threads have taken what each of them would have used, and it fails.
const PLANS: usize = 32;

impl<D: Driver> Miss<'_, D> {
    /// Fills holes of the pool's windows for the request. The grower's turn is held.
    ///
    /// # Errors
    /// The driver's refusal; what it gave before is free in the pool.
    pub(super) fn fill(&mut self, of: &Windows<D>, means: Means) -> DriverResult<Fill> {
        self.core.finish_draining(of);
        // Handles that were to move and could not be had: the next plan is without them.
        let mut skipped: Vec<HandleId> = Vec::new();
        for _ in 0..PLANS {
            let (window, run) = match self.find_run(of) {
                Ok(Some(found)) => found,
                Err(e) if e.is_context_lost() => return Err(e),
                Ok(None) | Err(_) => return Ok(Fill::NoWindow),
            };
            let mut plan = self.plan(of, &run, means, &skipped);
            if plan.is_none() {
                let released = self.core.release_spares(of, self.own);
                if released.bytes > 0 {
                    self.core.charge(price::release(released.segments, released.bytes));
                    plan = self.plan(of, &run, means, &skipped);
                }
            }
            let Some(plan) = plan else { return Ok(Fill::NoRoom) };
            let filled = SmallVec::new();
            let mut claim = Claim { miss: self, of, window, plan, new: 0, missed: None, filled };
            let filled = claim.fill_all();
            // Of a part, or of what another thread freed, it may be served too: the error is over then.
            let served = claim.enter(true);
            skipped.extend(claim.missed);
            drop(claim);
            // A handle may have left the last window of a closed pool.
            of.forget_retired();
            if let Some(taken) = served {
                return Ok(Fill::Served(taken));
            }
            filled?;
            // Others took what the run counted on, or a handle that was to move.
        }
        Ok(Fill::NoRoom)
    }

    /// Where the request needs the fewest bytes, in a window of the pool's, or in a new one.
    fn find_run(&self, of: &Windows<D>) -> DriverResult<Option<(WindowView, Run)>> {
        let owner = self.pool.owner(self.want.kind);
        let Some(need) = Granules::exactly(self.want.bytes_anywhere()) else { return Ok(None) };
        let mut added = false;
        loop {
            {
                let mut state = self.pool.lock();
                let records = of.lock();
                let windows: SmallVec<[WindowView; 4]> = records.windows_of(owner).collect();
                for w in &windows {
                    // A heap forgets a window of which it has nothing.
                    if !state.heap.has_segment(w.id) {
                        state.heap.add_window(w.id, w.base, w.len, self.want.kind, records.unit());
                    }
                }
                if self.lies_alone().is_some() {
                    if let Some(found) = self.hole_for_one(&records, &windows) {
                        return Ok(Some(found));
                    }
                } else {
                    let holes = windows.iter().flat_map(|w| {
                        let holes = records.holes(owner, w.id, Granules::ZERO, w.len);
                        holes.map(|(offset, len)| Hole { segment: w.id, offset, len })
                    });
                    if let Some(run) = state.heap.run(&self.want, holes)
                        && let Some(window) = windows.iter().find(|w| w.id == run.segment)
                    {
                        return Ok(Some((*window, run)));
                    }
                }
            }
            if added || self.core.add_window(of, owner, need)?.is_none() {
                return Ok(None);
            }
            added = true;
        }
    }
}

/// What was filled of a run and has not entered.
struct Filled<'m> {
    range: Range,
    /// For a handle that moves here, what it brings.
    moved: Option<Moved<'m>>,
}

/// A plan that is carried out. If the driver panics, the rest of the room is void and what was filled enters the pool.
struct Claim<'a, 'm, D: Driver> {
    miss: &'a mut Miss<'m, D>,
    of: &'a Windows<D>,
    window: WindowView,
    plan: Plan<'m, D>,
    /// Bytes that were made.
    new: u64,
    /// The handle that could not be had.
    missed: Option<HandleId>,
    /// In the order of addresses; adjacent new memory is one entry.
    filled: SmallVec<[Filled<'m>; 2]>,
}

impl<D: Driver> Claim<'_, '_, D> {
    /// Makes the handles that are missing, and maps all, until a call fails or a handle from elsewhere is not to be had any more.
    fn fill_all(&mut self) -> DriverResult<()> {
        let (core, of, unit) = (self.miss.core, self.of, self.of.lock().unit());
        for longer in core::mem::take(&mut self.plan.releases) {
            let Some(released) = self.miss.release_candidate(of, &longer)? else {
                self.missed = Some(longer.handle);
                return Ok(());
            };
            self.plan.left.0 += released.0;
        }
        for Piece { offset, len, source } in self.plan.pieces.by_ref() {
            let place = WindowPosition { segment: self.window.id, unit: offset.0 / unit.0 };
            let mut old = None;
            let moved = match source {
                Source::Spare(handle) => {
                    core.map_handle(of, handle, place)?;
                    None
                }
                Source::Room => {
                    let handle = core.create_handle(of, len)?;
                    self.plan.left.0 -= len.0;
                    self.new += len.bytes();
                    core.map_handle(of, handle, place)?;
                    None
                }
                Source::Elsewhere(candidate) => {
                    let Some(mut moved) = self.miss.move_here(of, &candidate, place)? else {
                        self.missed = Some(candidate.handle);
                        return Ok(());
                    };
                    old = moved.old.take();
                    Some(moved)
                }
            };
            match self.filled.last_mut() {
                Some(Filled { range, moved: None })
                    if moved.is_none() && range.offset.0 + range.len.0 == offset.0 =>
                {
                    range.len.0 += len.0;
                }
                _ => {
                    let range = Range {
                        segment: self.window.id,
                        base: self.window.base,
                        segment_len: self.window.len,
                        kind: self.miss.want.kind,
                        unit,
                        offset,
                        len,
                    };
                    self.filled.push(Filled { range, moved });
                }
            }
            // If the driver panics here, its bytes enter nevertheless.
            if let Some(old) = old {
                core.charge(price::UNMAP);
                // It drains if the driver refuses.
                let _ = core.take_away(of, old);
            }
        }
        Ok(())
    }

    /// What was filled enters the pool, in one hold of its lock, in which the request takes from it, if it `takes` and it holds it.
    fn enter(&mut self, takes: bool) -> Option<Taken> {
        let (core, pool, want) = (self.miss.core, self.miss.pool, self.miss.want);
        {
            let mut records = self.of.lock();
            let spares = self.plan.pieces.by_ref().filter_map(|piece| piece.source.spare());
            spares.for_each(|spare| records.spare(spare));
        }
        {
            let mut backing = core.backing.lock();
            if cost::unclaims() {
                backing.unclaim(core::mem::take(&mut self.plan.left));
            }
            if self.new > 0 {
                backing.granted(core::mem::take(&mut self.new));
                core.report_crossings(&mut backing);
            }
        }
        if self.filled.is_empty() {
            return None;
        }
        let mut guard = pool.lock();
        let state = &mut *guard;
        let mut around: Option<ChunkId> = None;
        for Filled { range, moved } in self.filled.drain(..) {
            let entered = match &moved {
                // Fresh from the device: nothing is pending, stamp 0.
                None => pool.enter(state, &range, &[]),
                // Of the pool's own: as if it had not left.
                Some(Moved { stamp: Some(stamp), .. }) => pool.extend(state, &range, *stamp),
                Some(moved) => pool.enter(state, &range, &moved.pending),
            };
            let Some(chunk) = entered else { panic!("closing: {pool:?} is filled while closed") };
            around = Some(chunk);
            if core.is_recording() {
                let (addr, bytes) = (range.base.offset(range.offset), range.len.bytes());
                core.record(Event::Grow { addr, bytes, stream: pool.timeline.info.id });
            }
        }
        let chunk = around.filter(|_| takes);
        let taken = match self.miss.lies_alone() {
            Some(of) => chunk.and_then(|_| self.miss.take_alone(of, state)),
            None => chunk.and_then(|chunk| state.take_brought(&want, self.miss.requested, chunk)),
        };
        drop(guard);
        core.cut_peaks_when_due();
        taken
    }
}

impl<D: Driver> Drop for Claim<'_, '_, D> {
    fn drop(&mut self) {
        self.enter(false);
    }
}
