//! Memory goes back to the device: whole segments, and whole handles of windows, whose bytes are all free and complete.
//!
//! A segment's bytes may lie in several pools. Each pool is queried once for what it has free of which segment. For a segment that is wholly free,
//! each pool that has some of it is locked once, its free pieces are cut out, and it is unlocked. If
//! together they are the whole segment and every stamp is complete for the host (law O4), the segment is released;
//! otherwise each piece returns to its pool with the stamp it had. A trim never waits for the device itself, but the
//! driver's plain free does; so a request gives segments back only if the driver's free does not ([`Memory::free_waits_for_device`]). An
//! unmap waits for nothing, so a request may give handles back wherever there are windows. Their addresses stay the pool's.
//!
//! A handle that the driver does not unmap is where it was and is passed over; the first error is returned beside what went back. A segment that the driver
//! does not free ends the turn of segments, because each free may wait for the device.
//!
//! [`Memory::free_waits_for_device`]: crate::driver::Memory::free_waits_for_device

use super::Allocator;
use super::core::{Core, lost_context};
use super::entry::Range;
use super::physical::Windows;
use super::pool::Pool;
use super::pool::pieces::PIECE;
use super::undo::Undo;
use crate::driver::{Driver, DriverError, DriverResult};
use crate::heap::Cut;
use crate::laws::{self, holds};
use crate::order::Pending;
use crate::physical::{HandleId, SlotState, WindowPosition};
use crate::sync::{Arc, Ordering, assert_unlocked};
use crate::trace::Event;
use crate::units::{Epoch, Granules, SegmentId};
use core::cell::Cell;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What a trim gave back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Trimmed {
    /// Bytes given back to the device.
    pub bytes: u64,
    /// How many segments, and handles of windows, they were.
    pub segments: u64,
    /// Freed bytes, of device and pinned memory, whose last use nothing can show to be complete yet:
    /// [`held_back`](crate::report::PoolReport::held_back). 0 for a trim of one stream.
    pub held_back: u64,
}

impl Trimmed {
    /// One more segment or handle.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.segments += 1;
    }
}

/// What was given back, and the first error beside it. Only a lost context ends a trim of handles; it takes the place of other errors.
#[derive(Default)]
pub(crate) struct GivenBack {
    pub(crate) trimmed: Trimmed,
    pub(crate) error: Option<DriverError>,
}

impl GivenBack {
    pub(super) fn refused(&mut self, error: DriverError) {
        if self.error.is_none() || error.is_context_lost() && !self.is_over() {
            self.error = Some(error);
        }
    }
    /// Whether the context is lost.
    fn is_over(&self) -> bool {
        self.error.as_ref().is_some_and(DriverError::is_context_lost)
    }
    /// What was given back, if nothing was refused.
    pub(super) fn whole(self) -> DriverResult<Trimmed> {
        self.error.map_or(Ok(self.trimmed), Err)
    }
}

/// The most records of a pool that a search for the free pieces of one handle visits in an ordinary request, under the pool's lock.
const STEPS: usize = 4096;
/// The most handles and segments that one call gives back above a watermark or a soft limit: 0.6 ms of the driver's time on an H200.
const MOST: u64 = 32;
/// The most handles that it looks at.
pub(super) const LOOKS: usize = 512;

/// How far a giving back goes.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    /// Handles are searched for in all records.
    thorough: bool,
    /// Idle segments go too.
    segments_too: bool,
    /// At most so many handles and segments go.
    most: u64,
    /// At most so many handles are looked at, those behind this many first.
    looks: (usize, usize),
    /// Only what was used last before the pools' streams were there; nothing of others.
    until: Option<&'a BTreeMap<u32, Epoch>>,
}

impl<'a> How<'a> {
    /// Everything that is idle.
    pub(super) fn all(thorough: bool, segments_too: bool) -> How<'a> {
        How { thorough, segments_too, most: u64::MAX, looks: (usize::MAX, 0), until: None }
    }
    /// Only so much that no call takes long; the next one goes on behind it.
    pub(super) fn bounded(segments_too: bool, behind: usize) -> How<'a> {
        How { thorough: false, segments_too, most: MOST, looks: (LOOKS, behind), until: None }
    }
    /// Everything that was used last before these numbers of the pools' streams.
    pub(super) fn until(segments_too: bool, stamps: &'a BTreeMap<u32, Epoch>) -> How<'a> {
        How { until: Some(stamps), ..How::all(true, segments_too) }
    }
    fn steps(&self) -> usize {
        if self.thorough { usize::MAX } else { STEPS }
    }
    /// Those of the candidates that it looks at.
    fn in_turn<'f, T: 'f>(&self, found: impl Iterator<Item = T> + 'f) -> Box<dyn Iterator<Item = T> + 'f> {
        let (most, behind) = self.looks;
        if most == usize::MAX {
            return Box::new(found);
        }
        let mut found: Vec<T> = found.collect();
        let behind = behind % found.len().max(1);
        found.rotate_left(behind);
        Box::new(found.into_iter().take(most))
    }
    /// Whether these were used last early enough.
    fn takes<D: Driver>(&self, pieces: &[Piece<D>]) -> bool {
        let is_early =
            |p: &Piece<D>| self.until.is_none_or(|of| of.get(&p.pool.number) >= Some(&p.cut.stamp));
        pieces.iter().all(is_early)
    }
}

/// A handle that may be free, at its place.
struct Found {
    handle: HandleId,
    segment: SegmentId,
    offset: Granules,
    len: Granules,
}

struct Piece<D: Driver> {
    pool: Arc<Pool<D>>,
    cut: Cut,
}

impl<D: Driver> Allocator<D> {
    /// Bytes of segments, of device and pinned memory, in which nothing is live: a [trim](Allocator::trim) gives them back as soon as all
    /// work on them is known to be complete, and nothing else before the next free. Looks through every live allocation, as
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
    /// Whether any device or pinned memory is reserved: whether [`Allocator::report`] would show `reserved` above zero for either. Looks at no pool.
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
    /// The driver's, when a marker, a query, an unmap or a free failed; what was given back stays given back, the rest is kept.
    pub(crate) fn trim(&self, only: Option<&Pool<D>>) -> DriverResult<Trimmed> {
        self.learn()?;
        self.registry.retire();
        self.registry.trim_events();
        let given = self.give_back(only, u64::MAX, How::all(true, true), &Cell::new(0));
        self.sweep();
        given.whole()
    }

    /// Gives back at least `enough` bytes, handles before segments, for a limit that was lowered.
    ///
    /// # Errors
    /// As [`Core::trim`], if it is not enough.
    pub(crate) fn give_back_above_limit(&self, enough: u64) -> DriverResult<()> {
        self.learn()?;
        let given = self.give_back(None, enough, How::all(true, true), &Cell::new(0));
        if given.trimmed.bytes < enough { given.whole().map(drop) } else { Ok(()) }
    }

    /// Gives back handles, and then idle segments, until `enough` bytes are given back or it has done what it may. Its own transits are counted in `own`.
    pub(super) fn give_back(
        &self,
        only: Option<&Pool<D>>,
        enough: u64,
        how: How<'_>,
        own: &Cell<u64>,
    ) -> GivenBack {
        let mut given = self.trim_handles(only, enough, how, own);
        if how.segments_too && given.trimmed.bytes < enough && !given.is_over() {
            self.trim_segments(only, enough, (&mut given, how), own);
        }
        given
    }

    /// Makes the markers that are missing, learns what is complete, and drains every pool. A stream that cannot be marked or
    /// queried, because it captures or is gone, is passed over: what it holds stays.
    ///
    /// # Errors
    /// The driver's, when a marker or a query failed; the rest was learnt nevertheless.
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
                    result => refused = refused.and(result.map(drop)),
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

    /// Gives idle segments back, in addition to what was `given`, until `enough` bytes are or the driver refuses one.
    fn trim_segments(
        &self,
        only: Option<&Pool<D>>,
        enough: u64,
        (given, how): (&mut GivenBack, How<'_>),
        own: &Cell<u64>,
    ) {
        let _turn = self.trimmer.lock();
        let mut pools = self.pool_list();
        pools.retain(|pool| only.is_none_or(|only| only.number == pool.number));
        // First without moving anything: most segments are in use. In order, so that the same calls give the same segments back.
        for (id, (free, holders)) in Self::free_by_segment(&pools) {
            if given.trimmed.bytes >= enough || given.trimmed.segments >= how.most {
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
            match self.trim_segment(id, len, (&holders, how), own) {
                Ok(bytes) => bytes.into_iter().for_each(|bytes| given.trimmed.add(bytes)),
                Err(e) => {
                    given.refused(e);
                    break;
                }
            }
        }
    }

    /// Gives back handles that are wholly free and complete, and spare ones, until `enough` bytes are. One that the driver does not unmap stays where it is,
    /// and the others' turn comes.
    fn trim_handles(&self, only: Option<&Pool<D>>, enough: u64, how: How<'_>, own: &Cell<u64>) -> GivenBack {
        let mut given = GivenBack::default();
        let Some(of) = &self.windows else { return given };
        let _turn = self.handle_trimmer.lock();
        if how.thorough {
            self.finish_draining_of(of, usize::MAX);
        } else {
            self.finish_draining(of);
        }
        let mut pools = self.pool_list();
        pools.retain(|pool| only.is_none_or(|only| only.number == pool.number));
        let free = Self::free_by_segment(&pools).into_iter();
        let found = free.flat_map(|(id, (free, holders))| {
            let found = Self::free_handles(of, id, free);
            let holders: SmallVec<[&Arc<Pool<D>>; 1]> = holders.into_iter().map(|n| &pools[n]).collect();
            found.into_iter().map(move |found| (found, holders.clone()))
        });
        for (found, holders) in how.in_turn(found) {
            match self.trim_handle(of, &found, (&holders, how), own) {
                Ok(gone) => gone.into_iter().for_each(|len| given.trimmed.add(len.bytes())),
                Err(e) => given.refused(e),
            }
            if given.trimmed.bytes >= enough || given.trimmed.segments >= how.most || !self.registry.alive() {
                break;
            }
        }
        if only.is_none() && given.trimmed.bytes < enough {
            let spares = self.release_spares(of, own);
            given.trimmed.bytes += spares.bytes;
            given.trimmed.segments += spares.segments;
        }
        if !self.registry.alive() {
            given.refused(lost_context());
        }
        of.forget_retired();
        given
    }

    /// The handles of a window that may be free, if so much of it is.
    fn free_handles(of: &Windows<D>, segment: SegmentId, free: u64) -> Vec<Found> {
        let records = of.lock();
        let Some(window) = records.window(segment) else { return Vec::new() };
        let slots = records.slots_in(segment, Granules::ZERO, window.len);
        let here = slots.filter(|s| *s.state == SlotState::Here && free >= s.len.0.into());
        here.map(|s| Found { handle: s.handle, segment, offset: s.offset, len: s.len }).collect()
    }

    /// Gives a handle back if it is free in these pools. Returns its length if the device has it.
    ///
    /// # Errors
    /// The driver's, when it does not unmap it: it is where it was.
    fn trim_handle(
        &self,
        of: &Windows<D>,
        found: &Found,
        (pools, how): (&[&Arc<Pool<D>>], How<'_>),
        own: &Cell<u64>,
    ) -> DriverResult<Option<Granules>> {
        let &Found { handle, segment, offset, len } = found;
        let (handle, addr) = {
            let mut records = of.lock();
            let place = WindowPosition { segment, unit: offset.0 / records.unit().0 };
            let is_there = records.handle(handle).is_some_and(|h| h.at == Some(place));
            let begun = if is_there { records.begin(handle).ok() } else { None };
            let window = records.window(segment);
            let Some((handle, window)) = begun.zip(window) else { return Ok(None) };
            // From before the unmap: the window may go with its last handle.
            (handle, window.base.offset(offset))
        };
        let _transit = self.in_transit.take(own);
        let mut pieces = Vec::new();
        for &pool in pools {
            let mut state = pool.lock();
            let Some(cuts) = state.cut_free_in(segment, offset, len, how.steps()) else { break };
            if !cuts.is_empty() {
                pool.tighten_longest(&mut state);
            }
            pieces.extend(cuts.into_iter().map(|cut| Piece { pool: Arc::clone(pool), cut }));
        }
        let gathered: u64 = pieces.iter().map(|p| u64::from(p.cut.len.0)).sum();
        self.moving.fetch_add(gathered * crate::units::GRANULE_BYTES, Ordering::Relaxed);
        // Beside a driver that panics too: the bytes are then no pool's, but the records' that drain.
        let _moved = Undo::new(|| {
            self.moving.fetch_sub(gathered * crate::units::GRANULE_BYTES, Ordering::Relaxed);
        });
        let pending: Vec<Pending> =
            pieces.iter().map(|p| Pending { on: p.pool.timeline.id, epoch: p.cut.stamp }).collect();
        let whole = laws::is_whole(gathered, len.0.into()) && how.takes(&pieces);
        let unmapped = if laws::may_release(whole, || self.registry.all_complete(&pending)) {
            self.unmap_handle(of, &handle, (segment, offset)).map(|()| true)
        } else {
            Ok(false)
        };
        if !matches!(unmapped, Ok(true)) {
            for p in &pieces {
                let mut state = p.pool.lock();
                p.pool.extend(&mut state, &Range::from(&p.cut), p.cut.stamp);
            }
            of.lock().put_back(handle);
            return unmapped.map(|_| None);
        }
        let gone = self.release_handle(of, handle);
        if gone.is_some() && self.is_recording() {
            self.record(Event::Trim { addr, bytes: len.bytes() });
        }
        Ok(gone)
    }

    /// How much of each segment is free in these pools, and the indices of the pools that have some of it. Each pool is queried once, in
    /// pieces, so that a hit waits for one piece: a query of each pool about each segment would take minutes with thousands of streams.
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

    /// Gathers a segment that seems to be free, from these pools.
    fn trim_segment(
        &self,
        id: SegmentId,
        len: Granules,
        (pools, how): (&[&Arc<Pool<D>>], How<'_>),
        own: &Cell<u64>,
    ) -> DriverResult<Option<u64>> {
        let _transit = self.in_transit.take(own);
        let pieces = Self::gather(pools, id);
        let gathered: u64 = pieces.iter().map(|p| u64::from(p.cut.len.0)).sum();
        self.moving.fetch_add(gathered * crate::units::GRANULE_BYTES, Ordering::Relaxed);
        let pending: Vec<Pending> =
            pieces.iter().map(|p| Pending { on: p.pool.timeline.id, epoch: p.cut.stamp }).collect();
        let whole = laws::is_whole(gathered, len.0.into()) && how.takes(&pieces);
        let result = if laws::may_release(whole, || self.registry.all_complete(&pending)) {
            // No heap knows the segment when the device can allocate its addresses again: a heap forgets a segment with its last piece.
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

    /// Every byte of the segment is in transit here and complete.
    fn release(&self, id: SegmentId, len: Granules) -> DriverResult<bool> {
        let taken = {
            let mut backing = self.backing.lock();
            // Decided in the hold in which it leaves: a hold is counted in one too.
            if holds::may_release(self.holds.is_held(id, false).into()) { backing.take_out(id) } else { None }
        };
        let Some(range) = taken else { return Ok(false) };
        let addr = range.addr();
        assert_unlocked("a segment is given back");
        let gone = Undo::new(|| {
            self.backing.lock().segment_released(len.bytes());
            self.moving.fetch_sub(len.bytes(), Ordering::Relaxed);
        });
        let released = self.driver.relaxed(|| range.release());
        gone.forget();
        match released {
            Ok(()) => {
                self.backing.lock().segment_released(len.bytes());
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
