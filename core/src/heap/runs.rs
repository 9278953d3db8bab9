//! What the layer that moves physical memory needs of a heap: which free ranges contain whole handles, every free piece of one handle, and where a
//! request needs the least new memory.
//!
//! In a *window* ([`Heap::add_window`]) physical memory comes and goes in whole units while the addresses stay. A *hole* is a stretch of units
//! with no memory behind them, Absent in every heap. What is Absent here may be a hole, or migrated away, or both side by side in one record. The
//! heap cannot tell them apart, so the caller passes the holes. The heap does not know handles, or why memory moves.
//!
//! ```text
//!   window     | alloc | Free |···· hole ····| Free |·· hole ··| alloc | Free |· migrated ·|······· hole ······|
//!   a stretch          ╰───────────────────────────────────────╯ every byte of it is free or in a hole
//!   a run              ╰──────────────────────────╯              a place in it for a request, which needs one hole filled
//! ```
//!
//! All of this is cold.

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

/// A place for a request, and the parts of it that have no memory yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The window.
    pub segment: SegmentId,
    /// Where the wanted range begins.
    pub offset: Granules,
    /// The parts of holes to be filled, offsets and lengths, in order: whole units. There is at least one.
    pub missing: SmallVec<[(Granules, Granules); 4]>,
}

impl Run {
    /// How much is to be filled.
    pub fn missing_len(&self) -> Granules {
        Granules(self.missing.iter().map(|(_, len)| len.0).sum())
    }
}

impl Heap {
    /// The free chunks of a kind with at least `len` granules, bin by bin, the longest bin first.
    ///
    /// A caller that cuts several pieces out of one chunk must cut from the end backwards: the chunk keeps its slot at its low end.
    pub fn free_at_least(&self, kind: Kind, len: Granules) -> impl Iterator<Item = FreeChunk> + '_ {
        let bins = core::iter::successors(self.bins.highest(kind), |&bin| self.bins.highest_before(bin));
        let bins = bins.take_while(move |bin| bin.high() >= len.0);
        let chunks = bins.flat_map(|bin| self.bins.ids(bin)).filter_map(|id| self.free_chunk(ChunkId(id)));
        chunks.filter(move |chunk| chunk.len >= len)
    }

    /// Takes out every free piece of `[offset, offset + len)`, in order of offset. `None`, and no change, if any of it is allocated or in flight,
    /// or if finding that out needs a look at more than `steps` records: a caller that needs all of the range need not ask other heaps then.
    /// What is Absent here belongs to them or to no heap.
    ///
    /// # Panics
    /// H1, when the range is empty or leaves the segment.
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
        // There is one piece per chunk, and a cut does not change the slots of other chunks.
        Some(
            pieces
                .into_iter()
                .map(|(id, offset, len)| self.cut(ChunkId(id), Granules(offset), Granules(len)))
                .collect(),
        )
    }

    /// The parts of a range of a segment that are here, offsets and lengths, in order: free, allocated or in flight. None of a segment that this heap does
    /// not know.
    pub fn here_in(
        &self,
        segment: SegmentId,
        offset: Granules,
        len: Granules,
    ) -> impl Iterator<Item = (Granules, Granules)> + '_ {
        let end = u64::from(offset.0) + u64::from(len.0);
        let end = if self.has_segment(segment) { u32::try_from(end).unwrap_or(u32::MAX) } else { offset.0 };
        let before = self.absent.range((segment, 0)..(segment, offset.0)).next_back();
        let within = self.absent.range((segment, offset.0)..(segment, end));
        let absent = before.into_iter().chain(within).map(move |(_, &id)| {
            let chunk = &self.chunks[id];
            (chunk.offset().max(offset.0), chunk.end())
        });
        let mut at = offset.0;
        absent.filter(move |(_, to)| *to > offset.0).chain([(end, end)]).filter_map(move |(from, to)| {
            let part = (at < from).then(|| (Granules(at), Granules(from - at)));
            at = to.max(at);
            part
        })
    }

    /// The record that contains an offset; `None` if there are more than `steps` between it and the nearest Absent one. The search goes on
    /// alternately from the Absent record below and from the one above.
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

    /// The place for `want` that needs the fewest bytes of holes filled, in whole units; of equals the fewest parts; then the lowest segment and
    /// offset. It lies in a window of `want`'s kind, and all of it is free here or in these holes. They are passed in order of segment and
    /// offset; all that are passed are looked at. `None` if there is no such place. For a want that a take missed: a place that needs no hole is
    /// not returned.
    ///
    /// After [`Heap::extend`] with each missing part, the free chunk around the last one holds `want`.
    ///
    /// # Panics
    /// When `want.len` is zero or `want.align` is no power of two; H1, when a hole does not consist of whole units of a window, all
    /// Absent here.
    pub fn run(&self, want: &Want, holes: impl IntoIterator<Item = Hole>) -> Option<Run> {
        want.sought(want.kind, &self.segments);
        let mut best = Best { want: *want, key: None, run: None };
        let mut stretch = Stretch::default();
        for hole in holes {
            let Some(slot) = self.segments.slot(hole.segment) else { not_a_hole(hole) };
            let window = &self.segments[slot];
            if window.kind != want.kind {
                continue;
            }
            let (from, end) = (hole.offset.0, u64::from(hole.offset.0) + u64::from(hole.len.0));
            let whole = |at: u64| window.unit != 0 && at.is_multiple_of(u64::from(window.unit));
            let below = self.absent.range((hole.segment, 0)..=(hole.segment, from)).next_back();
            let absent = below.map(|(_, &id)| id).filter(|&id| self.covers(id, from, hole.len.0));
            let Some(absent) = absent.filter(|_| whole(from.into()) && whole(end)) else { not_a_hole(hole) };
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
}

#[cold]
#[inline(never)]
fn not_a_hole(hole: Hole) -> ! {
    super::broken(
        "H1",
        format_args!(
            "no hole of segment {} is at {} by {} granules: there are not only whole units that are away",
            hole.segment.0, hole.offset.0, hole.len.0
        ),
    )
}

/// A part of a stretch.
#[derive(Clone, Copy)]
struct Part {
    from: u32,
    len: u32,
    hole: bool,
    /// Granules of holes before it in the stretch, and the number of holes.
    missing: u32,
    holes: u32,
}

/// Adjacent free chunks and holes, in order of offset.
struct Stretch {
    slot: u32,
    parts: SmallVec<[Part; 8]>,
}

impl Default for Stretch {
    /// A stretch in no segment.
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
    /// The index of the part that contains an offset; at the end of the stretch, of the last one.
    fn part_at(&self, at: u32) -> usize {
        self.parts.partition_point(|part| part.from <= at).saturating_sub(1)
    }
    /// Granules of holes, and holes, before a range that begins here, without the unit that its start is in.
    fn before_start(&self, at: u32, unit: u32) -> (u32, u32) {
        let part = &self.parts[self.part_at(at)];
        let more = if part.hole { (at - part.from) / unit * unit } else { 0 };
        (part.missing + more, part.holes)
    }
    /// Granules of holes, and holes, before a range's end, with all of the unit that its last granule is in.
    fn before_end(&self, at: u32, unit: u32) -> (u32, u32) {
        let part = &self.parts[self.part_at(at - 1)];
        let more = if part.hole { (at - part.from).next_multiple_of(unit) } else { 0 };
        (part.missing + more, part.holes + u32::from(part.hole))
    }
}

/// The best place so far.
struct Best {
    want: Want,
    /// Granules and parts to be filled; of equals the first seen is the lowest.
    key: Option<(u32, u32)>,
    run: Option<Run>,
}

impl Best {
    /// Tries the places that begin where a part begins or end where one ends. One of those needs the least: any other place can be shifted in one
    /// of the two directions until it begins or ends so, without needing more.
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
