//! What a heap holds, as plain data: running totals at no cost, and a map of every segment on request.
//!
//! This module does not know how the data is shown. A snapshot is a copy: it refers to nothing, and ids of chunks are
//! left out of it, because they would be stale.

use super::bins::Bin;
use super::chunk::{Chunk, ChunkState};
use super::{Heap, Kind, Want};
use crate::units::{Addr, Epoch, Granules, SegmentId};
use smallvec::SmallVec;

/// The running totals, in granules. What follows from others is not kept: see the methods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) owned: u64,
    pub(super) allocated: u64,
    pub(super) in_flight: u64,
    /// Highest `allocated` since the heap was made, or since the peak was reset.
    pub(super) allocated_peak: u64,
    /// Allocations made, and those that ended.
    pub(super) allocations: u64,
    pub(super) frees: u64,
    /// The bytes that they requested.
    pub(super) requested_bytes: u64,
    pub(super) freed_bytes: u64,
    pub(super) free_chunks: u64,
    pub(super) in_flight_chunks: u64,
    pub(super) splits: u64,
    pub(super) merges: u64,
    /// Takes that found nothing.
    pub(super) failed: u64,
    pub(super) steps: u64,
    pub(super) steps_max: u32,
    pub(super) sweeps: u64,
    pub(super) sweep_steps: u64,
}

/// A free range, as [`Heap::free_from`] sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeRange {
    /// Where it lies.
    pub segment: SegmentId,
    /// Where it begins there.
    pub offset: Granules,
    /// How long it is.
    pub len: Granules,
    /// When its bytes were last used on the pool's own stream.
    pub stamp: Epoch,
}

/// What a look at a heap's free ranges of one kind found ([`Heap::ripe`]).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ripe {
    /// No complete range is longer; those that were not looked at count as complete.
    pub longest: Granules,
    /// Of the longer ones, by length downwards: no range of at most this length has a stamp below, as far down as the next
    /// entry's length. Behind the last one down to `longest`.
    steps: SmallVec<[(Granules, Epoch); 2]>,
}

impl Ripe {
    /// No range of at least `len`, longer than [`Ripe::longest`], has a stamp below this.
    pub fn least(&self, len: Granules) -> Epoch {
        let step = self.steps.iter().rev().find(|(high, _)| *high >= len);
        step.map_or(Epoch(u64::MAX), |&(_, least)| least)
    }
}

/// The totals of a heap, in bytes where not said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// All bytes here: `free + allocated + in_flight`.
    pub owned: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes handed out, in whole granules.
    pub allocated: u64,
    /// Highest `allocated` so far, or since [`Heap::reset_peak`].
    pub allocated_peak: u64,
    /// Bytes given back while another stream may still use them.
    pub in_flight: u64,
    /// Bytes handed out, as requested.
    pub requested: u64,
    /// Live allocations.
    pub live: u64,
    /// Allocations handed out in all.
    pub takes: u64,
    /// Bytes handed out in all, as requested.
    pub bytes_served: u64,
    /// Free chunks.
    pub free_chunks: u64,
    /// Chunks in flight.
    pub in_flight_chunks: u64,
    /// At least the largest free range, at most 1/16 more: see [`Heap::largest_free`].
    pub largest_free_bound: u64,
    /// Times a take left a piece of a chunk free.
    pub splits: u64,
    /// Times a range that became free was joined with a neighbour; both neighbours count two.
    pub merges: u64,
    /// Takes, and takes that found nothing.
    pub searches: u64,
    /// Chunks looked at by their hot searches, in all.
    pub steps: u64,
    /// Chunks looked at by one of them, at most.
    pub steps_max: u32,
    /// Sweeps: takes whose hot search found nothing.
    pub sweeps: u64,
    /// Chunks looked at by sweeps, in all.
    pub sweep_steps: u64,
}

/// One range of a segment, with one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeMap {
    /// Where it begins in the segment.
    pub offset: Granules,
    /// How long it is.
    pub len: Granules,
    /// What it is.
    pub state: ChunkState,
    /// Its stamp; of Absent ranges 0.
    pub stamp: Epoch,
}

/// A segment, range by range: no hole, no overlap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentMap {
    /// Its number.
    pub id: SegmentId,
    /// Its first address.
    pub base: Addr,
    /// Its whole length.
    pub len: Granules,
    /// Which requests it serves.
    pub kind: Kind,
    /// The ranges by offset.
    pub ranges: Vec<RangeMap>,
}

/// Everything a heap holds, at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The totals.
    pub stats: Stats,
    /// The largest free range, exactly.
    pub largest_free: Granules,
    /// The segments by id.
    pub segments: Vec<SegmentMap>,
}

impl Totals {
    pub(super) const fn new() -> Totals {
        Totals {
            owned: 0,
            allocated: 0,
            in_flight: 0,
            allocated_peak: 0,
            allocations: 0,
            frees: 0,
            requested_bytes: 0,
            freed_bytes: 0,
            free_chunks: 0,
            in_flight_chunks: 0,
            splits: 0,
            merges: 0,
            failed: 0,
            steps: 0,
            steps_max: 0,
            sweeps: 0,
            sweep_steps: 0,
        }
    }
    /// H5.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.owned - self.allocated - self.in_flight
    }
    pub(super) fn live(&self) -> u64 {
        self.allocations - self.frees
    }
    pub(super) fn requested(&self) -> u64 {
        self.requested_bytes - self.freed_bytes
    }
    #[inline]
    pub(super) fn count_free(&mut self, len: u32, requested: u64) {
        self.frees += 1;
        self.freed_bytes += requested;
        self.allocated -= u64::from(len);
    }
    #[inline]
    pub(super) fn searched(&mut self, steps: u32) {
        self.steps += u64::from(steps);
        if steps > self.steps_max {
            self.steps_max = steps;
        }
    }
    pub(super) fn swept(&mut self, steps: usize) {
        self.sweeps += 1;
        self.sweep_steps += steps as u64;
    }
}

impl ChunkState {
    /// The state as a word or two.
    pub const fn name(self) -> &'static str {
        match self {
            ChunkState::Free => "free",
            ChunkState::Allocated => "allocated",
            ChunkState::InFlight => "in flight",
            ChunkState::Absent => "away",
        }
    }
}

impl Heap {
    /// The totals. They are kept up to date as the heap changes, so reading them costs nothing.
    pub fn stats(&self) -> Stats {
        let t = &self.totals;
        let bytes = |granules: u64| granules * Granules(1).bytes();
        Stats {
            owned: bytes(t.owned),
            free: bytes(t.free()),
            allocated: bytes(t.allocated),
            allocated_peak: bytes(t.allocated_peak),
            in_flight: bytes(t.in_flight),
            requested: t.requested(),
            live: t.live(),
            takes: t.allocations,
            bytes_served: t.requested_bytes,
            free_chunks: t.free_chunks,
            in_flight_chunks: t.in_flight_chunks,
            largest_free_bound: Kind::ALL
                .map(|k| self.largest_free(k).bytes())
                .into_iter()
                .max()
                .unwrap_or(0),
            splits: t.splits,
            merges: t.merges,
            searches: t.allocations + t.failed,
            steps: t.steps,
            steps_max: t.steps_max,
            sweeps: t.sweeps,
            sweep_steps: t.sweep_steps,
        }
    }

    /// Live allocations.
    #[inline]
    pub fn live(&self) -> u64 {
        self.totals.live()
    }

    /// Sets the peak of allocated bytes to the current value.
    pub fn reset_peak(&mut self) {
        self.totals.allocated_peak = self.totals.allocated;
    }

    /// An upper bound of the largest free range of a kind, from the bitmap (H8): the longest length of the highest
    /// occupied bin, so at most 1/16 too much. No take of that kind above it can hit. [`Heap::snapshot`] is exact.
    #[inline]
    pub fn largest_free(&self, kind: Kind) -> Granules {
        match self.bins.highest(kind) {
            Some(bin) => Granules(u64::from(bin.high()).min(self.totals.free()) as u32),
            None => Granules::ZERO,
        }
    }

    /// The longest free range, exactly, by a look at `steps` of each kind; `None` if the longest one is among more.
    pub fn longest_free(&self, steps: usize) -> Option<Granules> {
        let mut longest = 0;
        for bin in Kind::ALL.into_iter().filter_map(|kind| self.bins.highest(kind)) {
            // All in the bin are at least as long as the bin's shortest length: no look is needed if that is its longest too.
            let steps = if bin.low() == bin.high() { 1 } else { steps };
            let mut ids = self.bins.ids(bin);
            longest = ids.by_ref().take(steps).map(|id| self.chunks[id].len).fold(longest, u32::max);
            if bin.low() < bin.high() && ids.next().is_some() {
                return None;
            }
        }
        Some(Granules(longest))
    }

    /// The free ranges among `steps` records of ranges from this number on, and the number after them; `None` after the last one. For walking all of them in pieces: a range that is free all the while keeps its record.
    pub fn free_from(&self, from: u32, steps: u32) -> Option<(u32, impl Iterator<Item = FreeRange> + '_)> {
        let end = from.saturating_add(steps).min(self.chunks.slots());
        let free = (from..end).map(|id| &self.chunks[id]).filter(|chunk| chunk.is(ChunkState::Free));
        let seen = |chunk: &Chunk| FreeRange {
            segment: chunk.place.segment(),
            offset: Granules(chunk.offset()),
            len: Granules(chunk.len),
            stamp: chunk.stamp,
        };
        (from < end).then(|| (end, free.map(seen)))
    }

    /// The ranges that are here among `steps` records of ranges from this number on, with their segments, and the number after them; `None` after the last
    /// one. With `windows_only` those of plain segments are left out. For walking all of them in pieces, as [`Heap::free_from`].
    pub fn ranges_from(
        &self,
        from: u32,
        steps: u32,
        windows_only: bool,
    ) -> Option<(u32, impl Iterator<Item = (SegmentId, RangeMap)> + '_)> {
        let end = from.saturating_add(steps).min(self.chunks.slots());
        let ranges = (from..end).filter_map(move |id| {
            let chunk = &self.chunks[id];
            let state = chunk.state.filter(|state| *state != ChunkState::Absent)?;
            let is_left_out = windows_only && self.segments[chunk.segment].unit == 0;
            let (offset, len) = (Granules(chunk.offset()), Granules(chunk.len));
            let range = RangeMap { offset, len, state, stamp: chunk.stamp };
            (!is_left_out).then_some((chunk.place.segment(), range))
        });
        (from < end).then_some((end, ranges))
    }

    /// The longest free range of a kind, exactly: from the highest occupied bin, which holds it (H8). Nothing is copied.
    pub fn longest_free_of(&self, kind: Kind) -> Granules {
        let ids = self.bins.highest(kind).into_iter().flat_map(|bin| self.bins.ids(bin));
        Granules(ids.map(|id| self.chunks[id].len).max().unwrap_or(0))
    }

    /// The latest stamp of everything here: what the pool's own stream may still do to any of it. Looks at every record.
    pub fn latest_stamp(&self) -> Epoch {
        let here = self.chunks.all().iter().filter(|chunk| chunk.state.is_some());
        here.map(|chunk| chunk.stamp).max().unwrap_or(Epoch::COMPLETE)
    }

    /// What is complete among the free ranges of a kind, by a look at `steps` of them, the longest first.
    pub fn ripe(&self, kind: Kind, steps: usize, complete: Epoch) -> Ripe {
        let (mut ripe, mut least, mut left) = (Ripe::default(), Epoch(u64::MAX), steps);
        let mut end = Bin::end(kind);
        while let Some(bin) = self.bins.highest_before(end).filter(|bin| bin.high() > ripe.longest.0) {
            let before = least;
            for id in self.bins.ids(bin) {
                let chunk = &self.chunks[id];
                if left == 0 {
                    ripe.longest = Granules(bin.high());
                    break;
                }
                left -= 1;
                if chunk.stamp <= complete {
                    ripe.longest = ripe.longest.max(Granules(chunk.len));
                } else {
                    least = least.min(chunk.stamp);
                }
            }
            if least < before {
                ripe.steps.push((Granules(bin.high()), least));
            }
            end = bin;
        }
        ripe
    }

    /// Whether adjacent ranges of one of these kinds, free or in flight, will hold `want` once the uses of the latter are over
    /// and they have merged.
    pub fn will_hold(&self, want: &Want, kinds: &[Kind]) -> bool {
        let of_kinds = self.segments.iter().filter(|s| kinds.contains(&s.kind));
        of_kinds.into_iter().any(|s| {
            let (mut from, mut len) = (Granules::ZERO, Granules::ZERO);
            self.chunks.around(s.sentinel).any(|id| {
                let chunk = &self.chunks[id];
                if chunk.is(ChunkState::Free) || chunk.is(ChunkState::InFlight) {
                    len.0 += chunk.len;
                } else {
                    (from, len) = (Granules(chunk.offset() + chunk.len), Granules::ZERO);
                }
                want.fits_at(s.base.offset(from), len)
            })
        })
    }

    /// A copy of everything, range by range.
    pub fn snapshot(&self) -> Snapshot {
        let mut largest_free = Granules::ZERO;
        let segments: Vec<SegmentMap> = self
            .segments
            .iter()
            .map(|s| {
                let ranges = self.chunks.around(s.sentinel).filter_map(|id| {
                    let chunk = &self.chunks[id];
                    let (offset, len) = (Granules(chunk.offset()), Granules(chunk.len));
                    chunk.state.map(|state| RangeMap { offset, len, state, stamp: chunk.stamp })
                });
                SegmentMap {
                    id: s.id,
                    base: s.base,
                    len: Granules(s.len),
                    kind: s.kind,
                    ranges: ranges.collect(),
                }
            })
            .collect();
        for range in segments.iter().flat_map(|s| &s.ranges).filter(|r| r.state == ChunkState::Free) {
            largest_free = largest_free.max(range.len);
        }
        Snapshot { stats: self.stats(), largest_free, segments }
    }
}
