//! What memory that moves below a pool asks of its heap: which free ranges hold whole handles, every free piece of one handle, and where a
//! request has to be filled up least.
//!
//! In a *window* ([`Heap::add_window`]) physical memory comes and goes in whole units while the addresses stay. A hole is a stretch of units
//! with no memory behind them, Absent in every heap. What is Absent here may be a hole, or lent, or both side by side in one record: that the
//! heap does not know, and so holes are told to it. Nor does it know handles, or why memory moves.
//!
//! ```text
//!   window     | alloc | Free |···· hole ····| Free |·· hole ··| alloc | Free |·· lent ··|······· hole ······|
//!   the run            ╰────────────────────────────╯ of a want: here it misses one hole; every byte of it is free or in one
//! ```
//!
//! All of it is cold.

use super::chunk::{ChunkId, ChunkState, NIL};
use super::{Cut, FreeChunk, Heap, Kind, Want};
use crate::units::{GRANULE_BYTES, Granules, SegmentId};
use smallvec::SmallVec;

/// Whole units of a window with no memory behind them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Hole {
    /// The window.
    pub segment: SegmentId,
    /// Where it begins in the window.
    pub offset: Granules,
    /// How long it is.
    pub len: Granules,
}

/// Where a request would lie, once memory is behind what it misses there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The window.
    pub segment: SegmentId,
    /// Where the wanted range begins.
    pub offset: Granules,
    /// The parts of holes that it misses, offsets and lengths, in order: whole units. There is one at least.
    pub missing: SmallVec<[(Granules, Granules); 4]>,
}

impl Run {
    /// How much it misses.
    pub fn missing_len(&self) -> Granules {
        Granules(self.missing.iter().map(|(_, len)| len.0).sum())
    }
}

impl Heap {
    /// The free chunks of a kind that have `len` or more, bin by bin, the longest bin first.
    ///
    /// Whoever cuts several pieces out of one of them cuts the last one first: the chunk keeps its slot at its low end.
    pub fn free_at_least(&self, kind: Kind, len: Granules) -> impl Iterator<Item = FreeChunk> + '_ {
        let bins = core::iter::successors(self.bins.highest(kind), |&bin| self.bins.highest_before(bin));
        let bins = bins.take_while(move |bin| bin.high() >= len.0);
        let chunks = bins.flat_map(|bin| self.bins.ids(bin)).filter_map(|id| self.free_chunk(ChunkId(id)));
        chunks.filter(move |chunk| chunk.len >= len)
    }

    /// Every free piece of `[offset, offset + len)` leaves, in the order of their offsets. `None`, and nothing is done, if any of it is
    /// allocated or in flight, or to find that out would take a look at more than `steps` records: then it is of no use to whoever needs all
    /// of it to ask other heaps. What of it is Absent here is theirs or nobody's.
    pub fn cut_free_in(
        &mut self,
        segment: SegmentId,
        offset: Granules,
        len: Granules,
        steps: usize,
    ) -> Option<SmallVec<[Cut; 1]>> {
        let Some(slot) = self.segments.slot(segment) else { return Some(SmallVec::new()) };
        let segment = &self.segments[slot];
        let (id, sentinel, mut left) = (segment.id, segment.sentinel, steps);
        let end = u64::from(offset.0) + u64::from(len.0);
        law!(
            H1,
            len.0 > 0 && end <= u64::from(segment.len),
            "cut of {} granules at {} from segment {}, which has {}",
            len.0,
            offset.0,
            id.0,
            segment.len
        );
        let mut at = self.record_at(id, sentinel, offset.0, &mut left)?;
        let mut pieces: SmallVec<[(u32, u32, u32); 4]> = SmallVec::new();
        while at != sentinel && u64::from(self.chunks[at].offset()) < end {
            left = left.checked_sub(1)?;
            let chunk = &self.chunks[at];
            if chunk.is(ChunkState::Free) {
                let from = chunk.offset().max(offset.0);
                pieces.push((at, from, u64::from(chunk.end()).min(end) as u32 - from));
            } else if !chunk.is(ChunkState::Absent) {
                return None;
            }
            at = chunk.next;
        }
        // A cut leaves the slots of the other chunks as they are, and there is one piece of each.
        Some(
            pieces
                .into_iter()
                .map(|(id, offset, len)| self.cut(ChunkId(id), Granules(offset), Granules(len)))
                .collect(),
        )
    }

    /// The record that an offset lies in; `None` if more than `steps` lie between it and the next Absent one on either side, from
    /// both of which it is sought in turn.
    fn record_at(&self, segment: SegmentId, sentinel: u32, offset: u32, steps: &mut usize) -> Option<u32> {
        let below = self.absent.range((segment, 0)..=(segment, offset)).next_back().map(|(_, &id)| id);
        let above = self.absent.range((segment, offset)..=(segment, u32::MAX)).next().map(|(_, &id)| id);
        let mut low = below.unwrap_or(self.chunks[sentinel].next);
        let mut high = above.unwrap_or(self.chunks[sentinel].prev);
        loop {
            if self.chunks[low].end() > offset {
                return Some(low);
            }
            if self.chunks[high].offset() <= offset {
                return Some(high);
            }
            *steps = steps.checked_sub(1)?;
            (low, high) = (self.chunks[low].next, self.chunks[high].prev);
        }
    }

    /// Where `want` would lie that misses the fewest bytes, in whole units; of equals with the fewest missing parts; of those the lowest. It
    /// lies in a window of its kind, wholly in chunks that are free here and in these holes, which are given in order of place, as many as are
    /// to be looked at. `None` if there is no such place. It is for a want that a take missed: a place that needs no hole is no run.
    ///
    /// Once all that it misses has arrived ([`Heap::extend`]), the chunk that it is part of holds `want`.
    ///
    /// # Panics
    /// When `want.len` is zero or `want.align` is no power of two; H1, when a hole does not consist of whole units of a window that are
    /// Absent here.
    pub fn run(&self, want: &Want, holes: impl IntoIterator<Item = Hole>) -> Option<Run> {
        want.sought(want.kind, &self.segments);
        let mut best = Best { want: *want, key: None, run: None };
        let mut stretch = Stretch::default();
        for hole in holes {
            let Some(slot) = self.segments.slot(hole.segment) else { self.not_a_hole(hole) };
            let window = &self.segments[slot];
            if window.kind != want.kind {
                continue;
            }
            let (from, end) = (hole.offset.0, u64::from(hole.offset.0) + u64::from(hole.len.0));
            let whole = |at: u64| window.unit != 0 && at.is_multiple_of(u64::from(window.unit));
            let below = self.absent.range((hole.segment, 0)..=(hole.segment, from)).next_back();
            let absent = below.map(|(_, &id)| id).filter(|&id| self.covers(id, from, hole.len.0));
            let Some(absent) = absent.filter(|_| whole(from.into()) && whole(end)) else {
                self.not_a_hole(hole)
            };
            let end = end as u32;
            let chunk = &self.chunks[absent];
            let before = &self.chunks[chunk.prev];
            if (stretch.slot, stretch.end()) != (slot, from) {
                best.look_at(&stretch, self);
                stretch = Stretch { slot, ..Stretch::default() };
                if from == chunk.offset() && before.is(ChunkState::Free) {
                    stretch.push(before.offset(), before.len, false);
                }
            }
            stretch.push(from, end - from, true);
            let behind = &self.chunks[chunk.next];
            if end == chunk.end() && behind.is(ChunkState::Free) {
                stretch.push(behind.offset(), behind.len, false);
            }
        }
        best.look_at(&stretch, self);
        best.run
    }

    #[cold]
    #[inline(never)]
    fn not_a_hole(&self, hole: Hole) -> ! {
        super::broken(
            "H1",
            format_args!(
                "no hole of segment {} is at {} by {} granules: there are not only whole units that are away",
                hole.segment.0, hole.offset.0, hole.len.0
            ),
        )
    }
}

/// A part of a stretch.
#[derive(Clone, Copy)]
struct Part {
    from: u32,
    len: u32,
    hole: bool,
    /// Granules of holes before it in the stretch, and how many holes.
    missing: u32,
    holes: u32,
}

/// Free chunks and holes side by side, by turns unless two holes touch.
struct Stretch {
    slot: u32,
    parts: SmallVec<[Part; 8]>,
}

impl Default for Stretch {
    /// In no segment.
    fn default() -> Stretch {
        Stretch { slot: NIL, parts: SmallVec::new() }
    }
}

impl Stretch {
    fn end(&self) -> u32 {
        self.parts.last().map_or(0, |part| part.from + part.len)
    }
    fn push(&mut self, from: u32, len: u32, hole: bool) {
        let (missing, holes) = self.parts.last().map_or((0, 0), |last| {
            (last.missing + if last.hole { last.len } else { 0 }, last.holes + u32::from(last.hole))
        });
        self.parts.push(Part { from, len, hole, missing, holes });
    }
    /// The part that a place lies in, or its end the last one's.
    fn part_at(&self, at: u32) -> usize {
        self.parts.partition_point(|part| part.from <= at).saturating_sub(1)
    }
    /// Granules of holes, and holes, that end before a range which begins here, the unit that it lies in not counted.
    fn before_start(&self, at: u32, unit: u32) -> (u32, u32) {
        let part = &self.parts[self.part_at(at)];
        let more = if part.hole { (at - part.from) / unit * unit } else { 0 };
        (part.missing + more, part.holes)
    }
    /// Granules of holes, and holes, that begin before a range's end, the unit that it lies in counted whole.
    fn before_end(&self, at: u32, unit: u32) -> (u32, u32) {
        let part = &self.parts[self.part_at(at - 1)];
        let more = if part.hole { (at - part.from).next_multiple_of(unit) } else { 0 };
        (part.missing + more, part.holes + u32::from(part.hole))
    }
}

/// The best place so far.
struct Best {
    want: Want,
    /// Granules missing, parts missing; of equals the first seen is the lowest.
    key: Option<(u32, u32)>,
    run: Option<Run>,
}

impl Best {
    /// Tries the first and the last place at each part of a stretch. One of those misses the least: a place that begins and ends inside of parts
    /// can be moved one way or the other until it does not, and misses no more.
    fn look_at(&mut self, stretch: &Stretch, heap: &Heap) {
        let Some(first) = stretch.parts.first() else { return };
        let segment = &heap.segments[stretch.slot];
        let (unit, len, align) = (segment.unit, self.want.len.0, u64::from(self.want.align.0));
        let base = segment.base.0 / GRANULE_BYTES;
        let up = |at: u32| (base + u64::from(at)).next_multiple_of(align) - base;
        let down = |at: u32| ((base + u64::from(at)) / align * align).checked_sub(base);
        let starts = stretch.parts.iter().map(|part| Some(up(part.from)));
        let ends = stretch.parts.iter().map(|part| down((part.from + part.len).checked_sub(len)?));
        let mut better = None;
        for at in starts.chain(ends).flatten() {
            if at < u64::from(first.from) || at + u64::from(len) > u64::from(stretch.end()) {
                continue;
            }
            let at = at as u32;
            let (start, end) = (stretch.before_start(at, unit), stretch.before_end(at + len, unit));
            let key = (end.0 - start.0, end.1 - start.1);
            if key.0 > 0 && better.is_none_or(|better| (key, at) < better) {
                better = Some((key, at));
            }
        }
        let Some((key, at)) = better.filter(|better| self.key.is_none_or(|key| better.0 < key)) else {
            return;
        };
        let missing = stretch.parts.iter().filter(|part| part.hole).filter_map(|part| {
            let from = part.from.max(at / unit * unit);
            let end = (part.from + part.len).min((at + len).next_multiple_of(unit));
            (from < end).then(|| (Granules(from), Granules(end - from)))
        });
        self.key = Some(key);
        self.run = Some(Run { segment: segment.id, offset: Granules(at), missing: missing.collect() });
    }
}
