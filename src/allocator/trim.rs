//! Memory goes back to the device: whole segments, and whole handles of windows, all of whose bytes are free and complete.
//!
//! A segment's bytes may lie in several pools. Each pool is asked once what is free there of which segment. Of a segment that is wholly free
//! each pool that has some is locked once, gives its free pieces up, and is unlocked; if
//! together they are the whole segment and every stamp is complete in the host's view (law O4), the segment is released;
//! else each piece returns to where it was, with the stamp it had. It never waits for the device itself, but the
//! driver's plain free does; so a request gives segments back only where that is not so ([`Memory::free_waits_for_device`]). An unmap waits for
//! nothing, so a request may give handles back wherever there are windows. Their addresses stay the pool's.
//!
//! [`Memory::free_waits_for_device`]: crate::driver::Memory::free_waits_for_device

use super::Allocator;
use super::core::{Core, lost_context};
use super::entry::Range;
use super::physical::Windows;
use super::pool::Pool;
use super::pool::pieces::PIECE;
use super::undo::Undo;
use crate::driver::{Driver, DriverResult};
use crate::heap::Cut;
use crate::laws;
use crate::order::Pending;
use crate::physical::{HandleId, SlotState};
use crate::sync::{Arc, Ordering, assert_unlocked};
use crate::trace::Event;
use crate::units::{Granules, SegmentId};
use core::cell::Cell;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What a trim gave back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Trimmed {
    /// Bytes given back to the device.
    pub bytes: u64,
    /// In how many segments, and handles of windows.
    pub segments: u64,
    /// Freed bytes, of device and pinned memory, that nobody can tell the end of yet:
    /// [`held_back`](crate::report::PoolReport::held_back). 0 for a trim of one stream.
    pub held_back: u64,
}

/// So many records a look for the free pieces of one handle comes by in a pool.
const STEPS: usize = 4096;

struct Piece<D: Driver> {
    pool: Arc<Pool<D>>,
    cut: Cut,
}

impl<D: Driver> Allocator<D> {
    /// Bytes of segments, of device and pinned memory, in which nothing is alive: a [trim](Allocator::trim) gives them back as soon as all
    /// work on them is known to be complete, and nothing else before the next free. Looks through all that is alive, as
    /// [`Allocator::live`] does.
    pub fn unused_segment_bytes(&self) -> u64 {
        let live = self.live();
        let at = |pinned| {
            let of = live.iter().filter(|l| l.stream.is_none() == pinned);
            let mut at: Vec<(u64, u64)> = of.map(|l| (l.addr.0, l.bytes)).collect();
            at.sort_unstable();
            at
        };
        // What is alive is disjoint: the last that begins before the end is the one that may reach in.
        let unused = |at: &[(u64, u64)], first: u64, bytes: u64| {
            let last = at[..at.partition_point(|&(addr, _)| addr < first + bytes)].last();
            if last.is_some_and(|&(addr, len)| addr + len > first) { 0 } else { bytes }
        };
        let (device, pinned) = (at(false), at(true));
        let core = self.core();
        let of_device = core
            .backing
            .lock()
            .segments
            .values()
            .map(|r| unused(&device, r.addr().0, r.bytes()))
            .sum::<u64>();
        let of_windows = core.windows.as_ref().map_or(0, |of| {
            let records = of.lock();
            let stats = records.stats();
            let slots = records.windows().flat_map(|w| {
                let here =
                    records.slots_in(w.id, Granules::ZERO, w.len).filter(|s| *s.state == SlotState::Here);
                here.map(move |s| (w.base.offset(s.offset).0, s.len.bytes()))
            });
            slots.map(|(at, bytes)| unused(&device, at, bytes)).sum::<u64>() + stats.spare
        });
        let host = core.host.lock();
        of_device
            + of_windows
            + host.backing.segments.values().map(|r| unused(&pinned, r.addr().0, r.bytes())).sum::<u64>()
    }
}

impl<D: Driver> Allocator<D> {
    /// Whether it has anything of the device's, or pinned memory: what [`Allocator::report`] has as `reserved`, of both, is more than nothing. Looks at no pool.
    pub fn has_segments(&self) -> bool {
        let core = self.core();
        let of_device = core.backing.lock().reserved > 0;
        of_device || !core.host.lock().backing.segments.is_empty()
    }
}

impl<D: Driver> Core<D> {
    /// Learns what is complete everywhere, drains every pool, and gives back the idle segments: of one stream's pool,
    /// or of all.
    ///
    /// # Errors
    /// The driver's, when a marker, a query or a free failed; what had been given back stays so, the rest is kept.
    pub(crate) fn trim(&self, only: Option<&Pool<D>>) -> DriverResult<Trimmed> {
        self.learn()?;
        self.registry.retire();
        self.registry.trim_events();
        let mut trimmed = self.trim_handles(only, u64::MAX, &Cell::new(0))?;
        let segments = self.trim_segments(only, u64::MAX, &Cell::new(0))?;
        trimmed.bytes += segments.bytes;
        trimmed.segments += segments.segments;
        self.sweep();
        Ok(trimmed)
    }

    /// Makes the markers that are missing, learns what is complete, and drains every pool. A stream that cannot be marked or
    /// asked about, because somebody captures on it or it is gone, is passed over: what it holds stays.
    ///
    /// # Errors
    /// The driver's, when a marker or a query failed; the rest was learnt all the same.
    pub(crate) fn learn(&self) -> DriverResult<()> {
        assert_unlocked("a trim");
        if !self.registry.alive() {
            return Err(lost_context());
        }
        self.registry.run_maintenance(&self.driver);
        let mut refused = self.registry.mark_all(&self.driver);
        if !self.config.deterministic {
            for timeline in self.registry.timelines() {
                match self.registry.poll_completed(&self.driver, &timeline) {
                    Err(e) if e.is_of_one_stream() => {}
                    asked => refused = refused.and(asked.map(drop)),
                }
                if !self.registry.alive() {
                    return refused;
                }
            }
        }
        for pool in self.pool_list() {
            if laws::trim_drains() {
                pool.drain();
            }
        }
        refused
    }

    /// Gives idle segments back until `enough` bytes are. What it has in hand and puts down counts in `own`.
    ///
    /// # Errors
    /// As [`Core::trim`].
    pub(crate) fn trim_segments(
        &self,
        only: Option<&Pool<D>>,
        enough: u64,
        own: &Cell<u64>,
    ) -> DriverResult<Trimmed> {
        let _turn = self.trimmer.lock();
        let mut trimmed = Trimmed::default();
        let mut pools = self.pool_list();
        pools.retain(|pool| only.is_none_or(|only| only.number == pool.number));
        // First without moving anything: most segments are in use. In order, so that the same calls give the same segments back.
        for (id, (free, holders)) in Self::free_by_segment(&pools) {
            if trimmed.bytes >= enough {
                break;
            }
            let Some(len) = self.backing.lock().segments.get(&id).and_then(|r| Granules::exactly(r.bytes()))
            else {
                continue;
            };
            if !laws::may_be_free(free, len.0.into()) {
                continue;
            }
            let holders: Vec<&Arc<Pool<D>>> = holders.into_iter().map(|n| &pools[n]).collect();
            if let Some(bytes) = self.trim_segment(id, len, &holders, own)? {
                trimmed.bytes += bytes;
                trimmed.segments += 1;
            }
        }
        Ok(trimmed)
    }

    /// Gives back handles that are wholly free and complete, and spare ones, until `enough` bytes are. What it has in hand and puts down counts in `own`.
    ///
    /// # Errors
    /// The driver's, when an unmap failed; what had been given back stays so, the rest is kept.
    pub(crate) fn trim_handles(
        &self,
        only: Option<&Pool<D>>,
        enough: u64,
        own: &Cell<u64>,
    ) -> DriverResult<Trimmed> {
        let mut trimmed = Trimmed::default();
        let Some(of) = &self.windows else { return Ok(trimmed) };
        let _turn = self.trimmer.lock();
        self.finish_draining(of);
        let mut pools = self.pool_list();
        pools.retain(|pool| only.is_none_or(|only| only.number == pool.number));
        for (id, (free, holders)) in Self::free_by_segment(&pools) {
            let slots: Vec<(HandleId, Granules, Granules)> = {
                let records = of.lock();
                let Some(window) = records.window(id) else { continue };
                let here =
                    records.slots_in(id, Granules::ZERO, window.len).filter(|s| *s.state == SlotState::Here);
                here.filter(|s| free >= s.len.0.into()).map(|s| (s.handle, s.offset, s.len)).collect()
            };
            let holders: Vec<&Arc<Pool<D>>> = holders.into_iter().map(|n| &pools[n]).collect();
            for (handle, offset, len) in slots {
                if trimmed.bytes < enough && self.trim_handle(of, handle, (id, offset, len), &holders, own)? {
                    trimmed.bytes += len.bytes();
                    trimmed.segments += 1;
                }
            }
        }
        if only.is_none() && trimmed.bytes < enough {
            let before = of.stats().spare;
            self.release_spares(of);
            trimmed.bytes += before.saturating_sub(of.stats().spare);
        }
        of.forget_retired();
        Ok(trimmed)
    }

    /// A handle that may be free, in these pools. Returns whether the device has it back.
    fn trim_handle(
        &self,
        of: &Windows<D>,
        handle: HandleId,
        (id, offset, len): (SegmentId, Granules, Granules),
        pools: &[&Arc<Pool<D>>],
        own: &Cell<u64>,
    ) -> DriverResult<bool> {
        let Ok(handle) = of.lock().begin(handle) else { return Ok(false) };
        let _transit = self.in_transit.take(own);
        let mut pieces = Vec::new();
        for &pool in pools {
            let mut state = pool.lock();
            let Some(cuts) = state.cut_free_in(id, offset, len, STEPS) else { break };
            if !cuts.is_empty() {
                pool.tighten_longest(&mut state);
            }
            pieces.extend(cuts.into_iter().map(|cut| Piece { pool: Arc::clone(pool), cut }));
        }
        let gathered: u64 = pieces.iter().map(|p| u64::from(p.cut.len.0)).sum();
        self.moving.fetch_add(gathered * crate::units::GRANULE_BYTES, Ordering::Relaxed);
        // Beside a driver that panics too: the handle is then nobody's.
        let _moved = Undo::new(|| {
            self.moving.fetch_sub(gathered * crate::units::GRANULE_BYTES, Ordering::Relaxed);
        });
        let pending: Vec<Pending> =
            pieces.iter().map(|p| Pending { on: p.pool.timeline.id, epoch: p.cut.stamp }).collect();
        let whole = laws::is_whole(gathered, len.0.into());
        let unmapped = if laws::may_release(whole, || self.registry.all_complete(&pending)) {
            self.unmap_handle(of, &handle, (id, offset)).map(|()| true)
        } else {
            Ok(false)
        };
        if !matches!(unmapped, Ok(true)) {
            for p in &pieces {
                let mut state = p.pool.lock();
                p.pool.extend(&mut state, &Range::from(&p.cut), p.cut.stamp);
            }
            of.lock().put_back(handle);
            return unmapped;
        }
        let gone = self.release_handle(of, handle);
        if gone
            && self.is_recording()
            && let Some(window) = of.lock().window(id)
        {
            self.record(Event::Trim { addr: window.base.offset(offset), bytes: len.bytes() });
        }
        Ok(gone)
    }

    /// How much of each segment is free in these pools, and which of them, by their places, have some of it. Each pool is asked once, in
    /// pieces, so that a hit waits for one: to ask each about each segment would take thousands of streams minutes.
    pub(super) fn free_by_segment(
        pools: &[Arc<Pool<D>>],
    ) -> BTreeMap<SegmentId, (u64, SmallVec<[usize; 1]>)> {
        let mut free: BTreeMap<SegmentId, (u64, SmallVec<[usize; 1]>)> = BTreeMap::new();
        for (n, pool) in pools.iter().enumerate() {
            let mut from = 0;
            loop {
                let state = pool.lock();
                for segment in
                    state.heap.segments().skip(from).take(PIECE).filter(|s| s.free > Granules::ZERO)
                {
                    let (free, holders) = free.entry(segment.id).or_default();
                    *free += u64::from(segment.free.0);
                    holders.push(n);
                }
                from += PIECE;
                let all = from >= state.heap.segments().len();
                state.unlock_fair();
                if all {
                    break;
                }
            }
        }
        free
    }

    /// A segment that seems to be free, in these pools.
    fn trim_segment(
        &self,
        id: SegmentId,
        len: Granules,
        pools: &[&Arc<Pool<D>>],
        own: &Cell<u64>,
    ) -> DriverResult<Option<u64>> {
        let _transit = self.in_transit.take(own);
        let pieces = Self::gather(pools, id);
        let gathered: u64 = pieces.iter().map(|p| u64::from(p.cut.len.0)).sum();
        self.moving.fetch_add(gathered * crate::units::GRANULE_BYTES, Ordering::Relaxed);
        let pending: Vec<Pending> =
            pieces.iter().map(|p| Pending { on: p.pool.timeline.id, epoch: p.cut.stamp }).collect();
        let whole = laws::is_whole(gathered, len.0.into());
        let result = if laws::may_release(whole, || self.registry.all_complete(&pending)) {
            // No heap knows the segment when the device can hand its addresses out again: one forgets it with its last piece.
            self.release(id, len)
        } else {
            Ok(false)
        };
        if !matches!(result, Ok(true)) {
            for p in &pieces {
                let mut state = p.pool.lock();
                p.pool.extend(&mut state, &Range::from(&p.cut), p.cut.stamp);
            }
        }
        self.moving.fetch_sub(gathered * crate::units::GRANULE_BYTES, Ordering::Relaxed);
        Ok(result?.then_some(len.bytes()))
    }

    fn gather(pools: &[&Arc<Pool<D>>], id: SegmentId) -> Vec<Piece<D>> {
        let mut pieces = Vec::new();
        for &pool in pools {
            let mut state = pool.lock();
            let cuts = state.cut_free_of(id);
            pool.tighten_longest(&mut state);
            pieces.extend(cuts.into_iter().map(|cut| Piece { pool: Arc::clone(pool), cut }));
        }
        pieces
    }

    /// Every byte of the segment is in our hands and complete.
    fn release(&self, id: SegmentId, len: Granules) -> DriverResult<bool> {
        let Some(range) = self.backing.lock().take_out(id) else { return Ok(false) };
        let addr = range.addr();
        assert_unlocked("a segment is given back");
        let gone = Undo::new(|| {
            self.backing.lock().released(len.bytes());
            self.moving.fetch_sub(len.bytes(), Ordering::Relaxed);
        });
        let released = self.driver.relaxed(|| range.release());
        gone.forget();
        match released {
            Ok(()) => {
                self.backing.lock().released(len.bytes());
                if self.is_recording() {
                    self.record(Event::Trim { addr, bytes: len.bytes() });
                }
                Ok(true)
            }
            Err((range, e)) => {
                self.backing.lock().put_back(id, range);
                self.registry.watch(Err(e))
            }
        }
    }
}
