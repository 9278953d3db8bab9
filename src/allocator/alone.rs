//! Blocks that lie on one handle of physical memory each ([`Handles::one_above`](super::config::Handles::one_above)), so that they can be registered or shared in one
//! piece.
//!
//! ```text
//!   window   | 2 | 2 | 4  |   24: a block of 23 MiB    |···· hole ····|    7: ...
//! ```
//!
//! A block of this kind has a handle of exactly its length in units. It is taken from the cache only where such a handle is wholly free, and otherwise fills a
//! hole with one: a spare one, one that moves from elsewhere, or a new one. Nothing else of the ladder differs: what is free in pieces serves other
//! requests, and is given back at the limit. It does not know why a block has to lie so.

use super::in_transit::TransitGuard;
use super::miss::Miss;
use super::physical::{Records, Windows};
use super::plan::{Means, Piece, Plan, Source};
use super::pool::PoolState;
use crate::driver::Driver;
use crate::heap::{Run, Taken};
use crate::physical::{HandleId, SlotState, WindowView};
use crate::units::{GRANULE_BYTES, Granules};
use smallvec::smallvec;

/// How many free ranges are looked at, the longest first; before a request is out of memory, all.
const RANGES: usize = 256;

impl<'m, D: Driver> Miss<'m, D> {
    /// Whether this request's block has to lie on one handle, and can.
    pub(super) fn lies_alone(&self) -> Option<&'m Windows<D>> {
        let core = self.core;
        let above = core.config.handles.one_above?;
        core.windows.as_ref().filter(|windows| self.requested > above && windows.is_usable())
    }

    /// The length of its handle.
    fn handle_len(&self, unit: Granules) -> Option<Granules> {
        self.want.len.0.checked_next_multiple_of(unit.0).map(Granules)
    }

    /// A free handle of the pool's that is as long as the block, with a start as aligned as it has to be; or a free range of a plain segment.
    pub(super) fn take_alone(&self, of: &Windows<D>, state: &mut PoolState) -> Option<Taken> {
        let ranges = if self.thorough { usize::MAX } else { RANGES };
        let found = {
            let records = of.lock();
            let len = self.handle_len(records.unit())?;
            let mut free = state.heap.free_at_least(self.want.kind, self.want.len).take(ranges);
            free.find_map(|free| {
                let Some(window) = records.window(free.segment) else {
                    let fits = self.want.align == Granules(1);
                    return fits.then_some((free.chunk, free.offset));
                };
                let end = free.offset.0 + free.len.0;
                let aligned = |at: Granules| {
                    window.base.offset(at).0.is_multiple_of(u64::from(self.want.align.0) * GRANULE_BYTES)
                };
                let mut slots = records.slots_in(free.segment, free.offset, free.len);
                let slot = slots.find(|slot| {
                    let inside = slot.offset >= free.offset && slot.offset.0 + slot.len.0 <= end;
                    inside && slot.len == len && *slot.state == SlotState::Here && aligned(slot.offset)
                });
                slot.map(|slot| (free.chunk, slot.offset))
            })
        };
        let (chunk, offset) = found?;
        state.take_at(chunk, offset, self.want.len, self.requested)
    }

    /// A hole of a window of the pool's for its handle: the shortest that is long enough.
    pub(super) fn hole_for_one(
        &self,
        records: &Records<'_>,
        windows: &[WindowView],
    ) -> Option<(WindowView, Run)> {
        let len = self.handle_len(records.unit())?;
        let unit_align = records.unit().0.max(self.want.align.0);
        let holes = windows.iter().flat_map(|w| {
            let holes = records.holes(self.pool.owner(self.want.kind), w.id, Granules::ZERO, w.len);
            holes.map(move |hole| (*w, hole))
        });
        let fits = holes.filter_map(|(w, (offset, hole))| {
            let base = w.base.0 / GRANULE_BYTES;
            let at = (base + u64::from(offset.0)).next_multiple_of(unit_align.into()) - base;
            let fits = at + u64::from(len.0) <= u64::from(offset.0) + u64::from(hole.0);
            fits.then_some((hole, w, Granules(at as u32)))
        });
        let (_, w, offset) = fits.min_by_key(|(hole, w, offset)| (*hole, w.id, *offset))?;
        Some((w, Run { segment: w.id, offset, missing: smallvec![(offset, len)] }))
    }

    /// What fills that hole. `None`, and nothing has changed, if there is no room and no such handle.
    pub(super) fn plan_one(
        &self,
        of: &Windows<D>,
        run: &Run,
        means: Means,
        skipped: &[HandleId],
        transit: TransitGuard<'m>,
    ) -> Option<Plan<'m, D>> {
        let &(offset, len) = run.missing.first()?;
        let mut elsewhere = if means.moves { self.movable(of, run, skipped).take(len) } else { None };
        let mut records = of.lock();
        let mut backing = self.core.backing.lock();
        let (mut left, bytes) = (Granules::ZERO, len.bytes());
        let source = if let Some(spare) = records.take_spare(len) {
            Source::Spare(spare)
        } else if let Some(elsewhere) = elsewhere.take().filter(|_| backing.room(means.first) < bytes) {
            Source::Elsewhere(elsewhere)
        } else if backing.claim(len, means.last) {
            left = len;
            Source::Room
        } else {
            return None;
        };
        let pieces = vec![Piece { offset, len, source }].into_iter();
        Some(Plan { releases: Vec::new(), pieces, left, _transit: transit })
    }
}
