//! Rung 3 where a device has virtual memory: a pool fills holes of its windows with physical memory, for what a request lacks and no more.
//!
//! ```text
//!   window      | alloc | Free |···· hole ····| Free |·· hole ··| alloc |
//!   the run            ╰──────────────────────╯                            where the fewest bytes are missing
//!   pieces                     | 8  | 4  | 2 |                             handles that are to be mapped
//! ```
//!
//! As with plain segments, room is claimed first, the driver is asked with no lock held but the grower's turn, and what it gave enters the pool *and* is taken
//! from in one hold of the pool's lock. Nobody else fills these holes meanwhile, because they are the pool's and there is one grower a pool. The free
//! ranges of the run may be taken meanwhile, by threads of the same stream that hit: then what was filled stays for later requests, and the run is looked
//! for again.
//!
//! If a call fails behind others, what they brought enters the pool as free memory, and the rest of the claim is void. It does not know
//! what a handle costs, nor which other pool may have memory.

use super::entry::Range;
use super::in_transit::TransitGuard;
use super::miss::Miss;
use super::physical::Windows;
use crate::driver::{Driver, DriverResult};
use crate::heap::{ChunkId, Hole, Kind, Run, Taken};
use crate::laws::cost;
use crate::physical::{BusyHandle, Place, WindowView};
use crate::trace::Event;
use crate::units::{GRANULE_BYTES, Granules};
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

/// A handle that fills a part of a run.
struct Piece {
    offset: Granules,
    len: Granules,
    /// It is there already; otherwise its bytes are claimed.
    spare: Option<BusyHandle>,
}

impl<D: Driver> Miss<'_, D> {
    /// Fills holes of the pool's windows for the request, as long as no more than `max` bytes are reserved then. The grower's turn is held.
    ///
    /// # Errors
    /// The driver's refusal; what it gave before is free in the pool.
    pub(super) fn fill(&mut self, of: &Windows<D>, max: u64) -> DriverResult<Fill> {
        self.core.finish_draining(of);
        loop {
            let (window, run) = match self.find_run(of) {
                Ok(Some(found)) => found,
                Err(e) if e.is_context_lost() => return Err(e),
                Ok(None) | Err(_) => return Ok(Fill::NoWindow),
            };
            let claim = || self.claim(of, window, &run, max);
            let claimed = claim().or_else(|| self.core.release_spares(of).then(claim).flatten());
            let Some(mut claim) = claimed else { return Ok(Fill::NoRoom) };
            let filled = claim.fill_all();
            // Of a part, or of what another thread freed, it may be served too: the error is over then.
            if let Some(taken) = claim.enter(true) {
                return Ok(Fill::Served(taken));
            }
            filled?;
            // Others took what the run counted on: they were served.
        }
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
            if added || self.core.add_window(of, owner, need)?.is_none() {
                return Ok(None);
            }
            added = true;
        }
    }

    /// Spare handles for the pieces of a run, and room for those that there is none for. `None`, and nothing has changed, if there is not enough.
    fn claim<'a>(
        &'a self,
        of: &'a Windows<D>,
        window: WindowView,
        run: &Run,
        max: u64,
    ) -> Option<Claim<'a, D>> {
        let mut records = of.lock();
        let mut backing = self.core.backing.lock();
        let unit = records.unit();
        let most = match self.want.kind {
            Kind::Small => unit,
            Kind::Large => {
                Granules((cost::handle_bytes(backing.reserved, unit.bytes()) / GRANULE_BYTES) as u32)
            }
        };
        let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
        for &(from, len) in &run.missing {
            let (mut offset, end) = (from, Granules(from.0 + len.0));
            while offset < end {
                let units = (end.0 - offset.0) / unit.0;
                let len = Granules((unit.0 << units.ilog2()).min(most.0));
                pieces.push(Piece { offset, len, spare: records.take_spare(len) });
                offset.0 += len.0;
            }
        }
        let new = pieces.iter().filter(|p| p.spare.is_none()).map(|p| p.len.0).sum();
        if !backing.claim(Granules(new), max) {
            pieces.into_iter().filter_map(|p| p.spare).for_each(|spare| records.spare(spare));
            return None;
        }
        // A claim is memory in hand: the driver may refuse it, and then there is room for others.
        let (left, pieces, filled) = (Granules(new), pieces.into_iter(), SmallVec::new());
        Some(Claim { miss: self, of, window, pieces, left, new: 0, filled, _transit: self.transit() })
    }
}

/// Room under the limit, and what was filled of it. If the driver panics, the rest of the room is void and what was filled enters the pool.
struct Claim<'a, D: Driver> {
    miss: &'a Miss<'a, D>,
    of: &'a Windows<D>,
    window: WindowView,
    /// Those that are still to be filled.
    pieces: smallvec::IntoIter<[Piece; 4]>,
    /// What was claimed and not made yet.
    left: Granules,
    /// Bytes that were made.
    new: u64,
    /// What was filled and has not entered, in order; what touches is one.
    filled: SmallVec<[Range; 2]>,
    _transit: TransitGuard<'a>,
}

impl<D: Driver> Claim<'_, D> {
    /// Makes the handles that are missing, and maps all, until a call fails.
    fn fill_all(&mut self) -> DriverResult<()> {
        let (core, of, unit) = (self.miss.core, self.of, self.of.lock().unit());
        for Piece { offset, len, spare } in self.pieces.by_ref() {
            let handle = if let Some(handle) = spare {
                handle
            } else {
                let handle = core.create_handle(of, len)?;
                self.left.0 -= len.0;
                self.new += len.bytes();
                handle
            };
            core.map_handle(of, handle, Place { segment: self.window.id, unit: offset.0 / unit.0 })?;
            match self.filled.last_mut() {
                Some(last) if last.offset.0 + last.len.0 == offset.0 => last.len.0 += len.0,
                _ => self.filled.push(Range {
                    segment: self.window.id,
                    base: self.window.base,
                    segment_len: self.window.len,
                    kind: self.miss.want.kind,
                    unit,
                    offset,
                    len,
                }),
            }
        }
        Ok(())
    }

    /// What was filled enters the pool, in one hold of its lock, in which the request takes from it, if it `takes` and it holds it.
    fn enter(&mut self, takes: bool) -> Option<Taken> {
        let (core, pool, want) = (self.miss.core, self.miss.pool, self.miss.want);
        {
            let mut records = self.of.lock();
            self.pieces.by_ref().filter_map(|p| p.spare).for_each(|spare| records.spare(spare));
        }
        {
            let mut backing = core.backing.lock();
            if cost::unclaims() {
                backing.unclaim(core::mem::take(&mut self.left));
            }
            if self.new > 0 {
                backing.granted(core::mem::take(&mut self.new));
            }
        }
        if self.filled.is_empty() {
            return None;
        }
        let mut guard = pool.lock();
        let state = &mut *guard;
        let mut around: Option<ChunkId> = None;
        for range in self.filled.drain(..) {
            // Fresh from the device: nothing is pending, stamp 0.
            let entered = pool.enter(state, &range, &[]);
            let Some(chunk) = entered else { panic!("closing: {pool:?} is filled while closed") };
            around = Some(chunk);
            if core.is_recording() {
                let (addr, bytes) = (range.base.offset(range.offset), range.len.bytes());
                core.record(Event::Grow { addr, bytes, stream: pool.timeline.info.id });
            }
        }
        let chunk = around.filter(|_| takes);
        let taken = chunk.and_then(|chunk| state.take_brought(&want, self.miss.requested, chunk));
        drop(guard);
        core.cut_peaks_when_due();
        taken
    }
}

impl<D: Driver> Drop for Claim<'_, D> {
    fn drop(&mut self) {
        self.enter(false);
    }
}
