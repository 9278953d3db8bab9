//! Stamps for each unit of a window: when it was last used, where a chunk's own stamp covers more than that.
//!
//! A chunk's stamp is the latest of everything that merged into it: 512 bytes that were just freed keep 10 GiB beside them busy. So a window also
//! keeps a stamp for each unit, lazily. A free chunk is *uniform* while all its bytes entered with the chunk's own stamp; nothing is written.
//! When chunks with different stamps merge, the stamp of each uniform one is written to its units ([`Segment::keep_stamps`]), and the chunk is *mixed*
//! from then on. The record's tag, otherwise unused while a chunk is free, says which. A unit's stamp is the latest written since the unit was
//! last Absent; a take does not change it, because what was taken enters again with a later stamp.
//!
//! ```text
//!   root             [    ]             A stamp in a node applies to all units below it: a unit's stamp is the latest on its path to the
//!               [  9 ]    [    ]        root. So a merge writes a leaf for each of a few units, at most two nodes per level for more, and
//!   units      [  ] [ 12][ 7 ] [  ]     allocates only the first time.
//! ```
//!
//! This module does not know handles, nor what a stamp is compared with.

use super::border::Found;
use super::chunk::{Chunk, ChunkId, ChunkState};
use super::segment::Segment;
use super::{Heap, Want};
use crate::laws;
use crate::units::{Epoch, GRANULE_BYTES, Granules};
use core::ops::Range;

/// The tag of a free chunk whose bytes all entered with its stamp.
pub(super) const UNIFORM: u32 = 0;
/// The tag of a free chunk of a window whose bytes entered with different stamps, which its units have.
pub(super) const MIXED: u32 = 1;

/// Up to so many units are written one by one.
const SHORT: usize = 4;

/// The stamps of a window's units: a binary tree in one array, the root at 1, the units in its second half. Empty until the first write.
#[derive(Clone, Debug, Default)]
pub(super) struct Units {
    marks: Vec<u64>,
}

impl Units {
    pub(super) const fn new() -> Units {
        Units { marks: Vec::new() }
    }

    /// The first and the last of these units' places in the tree.
    fn leaves(&self, units: &Range<u32>) -> (usize, usize) {
        let half = self.marks.len() / 2;
        (half + units.start as usize, half + units.end as usize - 1)
    }

    /// Raises the stamps of these units to `stamp`, in a window of `of` units.
    fn raise(&mut self, units: &Range<u32>, of: u32, stamp: Epoch) {
        if self.marks.is_empty() {
            self.marks = vec![0; 2 * of.next_power_of_two() as usize];
        }
        let (mut low, mut high) = self.leaves(units);
        if high - low < SHORT {
            for mark in &mut self.marks[low..=high] {
                *mark = stamp.0.max(*mark);
            }
            return;
        }
        // A low node that is a right half, or a high one that is a left half, has a parent that reaches beyond the units.
        while low <= high {
            if low % 2 == 1 {
                self.marks[low] = self.marks[low].max(stamp.0);
                low += 1;
            }
            if high.is_multiple_of(2) {
                self.marks[high] = self.marks[high].max(stamp.0);
                high -= 1;
            }
            (low, high) = (low / 2, high / 2);
        }
    }

    /// How many places of the tree have a stamp.
    #[cfg(test)]
    pub(super) fn written(&self) -> usize {
        self.marks.iter().filter(|&&mark| mark > 0).count()
    }

    /// The latest stamp of these units.
    pub(super) fn latest(&self, units: &Range<u32>) -> Epoch {
        if self.marks.is_empty() || units.is_empty() {
            return Epoch::COMPLETE;
        }
        let (mut low, mut high) = self.leaves(units);
        let mut latest = 0;
        while low > 0 {
            latest = self.marks[low..=high].iter().copied().fold(latest, u64::max);
            (low, high) = (low / 2, high / 2);
        }
        Epoch(latest)
    }

    /// Clears the stamps of these units.
    fn reset(&mut self, units: &Range<u32>) {
        if self.marks.is_empty() || units.is_empty() {
            return;
        }
        let (mut low, mut high) = self.leaves(units);
        // Stamps of nodes that reach beyond these units move to their halves, from the root down.
        for leaf in [low, high] {
            for level in (1..=leaf.ilog2()).rev() {
                let at = leaf >> level;
                let mark = core::mem::take(&mut self.marks[at]);
                for half in [2 * at, 2 * at + 1] {
                    self.marks[half] = self.marks[half].max(mark);
                }
            }
        }
        while low > 0 {
            self.marks[low..=high].fill(0);
            (low, high) = (low / 2, high / 2);
        }
    }
}

impl Segment {
    /// The units that a range touches.
    fn touched(&self, offset: u32, len: u32) -> Range<u32> {
        let shift = self.unit.trailing_zeros();
        offset >> shift..((offset + (len - 1)) >> shift) + 1
    }
    /// The units that a range contains.
    pub(super) fn inside(&self, offset: u32, len: u32) -> Range<u32> {
        offset.div_ceil(self.unit)..(offset + len) / self.unit
    }

    /// Before a chunk of a window becomes free with `stamp` and merges with its free neighbours: if they are not all uniform with the same
    /// stamp, they are mixed from now on. The call is out of line, so that a merge in a plain segment has one comparison more and needs no register.
    #[cold]
    #[inline(never)]
    pub(super) fn keep_stamps(&mut self, chunks: &mut [Chunk], id: u32, stamp: Epoch) {
        let chunk = &chunks[id as usize];
        let (prev, next) = (&chunks[chunk.prev as usize], &chunks[chunk.next as usize]);
        let is_same = |c: &Chunk| c.tag == UNIFORM && c.stamp == stamp || !c.is(ChunkState::Free);
        if is_same(prev) && is_same(next) {
            return;
        }
        // As often as not the memory was used since the last marker already.
        let is_mixed = |c: &Chunk| c.tag == MIXED || !c.is(ChunkState::Free);
        if !(is_mixed(prev) && is_mixed(next) && self.has_as_late(chunk.offset(), chunk.len, stamp)) {
            self.mix(chunks, id, stamp);
        }
    }

    /// Whether a range touches one or two units that have a stamp of their own as late as this.
    #[inline]
    fn has_as_late(&self, offset: u32, len: u32, stamp: Epoch) -> bool {
        let shift = self.unit.trailing_zeros();
        let (first, last) = (offset >> shift, (offset + (len - 1)) >> shift);
        let marks = self.units.marks.as_slice();
        let is_late =
            |unit: u32| marks.get(marks.len() / 2 + unit as usize).is_some_and(|&mark| mark >= stamp.0);
        last - first <= 1 && is_late(first) && is_late(last)
    }

    /// Writes the stamps of a chunk that becomes free with `stamp`, and of its free neighbours if they are uniform, to their units. The
    /// neighbours are mixed from now on: one of them absorbs the others.
    #[inline(never)]
    fn mix(&mut self, chunks: &mut [Chunk], id: u32, stamp: Epoch) {
        let chunk = &chunks[id as usize];
        let (prev, next, offset, len) = (chunk.prev, chunk.next, chunk.offset(), chunk.len);
        self.write(offset, len, stamp);
        for neighbour in [prev, next] {
            let c = &mut chunks[neighbour as usize];
            if c.is(ChunkState::Free) && c.tag == UNIFORM {
                c.tag = MIXED;
                self.write(c.offset(), c.len, c.stamp);
            }
        }
    }

    /// Writes a stamp to the units that a range touches.
    fn write(&mut self, offset: u32, len: u32, stamp: Epoch) {
        if stamp != Epoch::COMPLETE {
            let units = self.touched(offset, len);
            self.units.raise(&units, self.len / self.unit, stamp);
        }
    }

    /// The stamp of a part of a free chunk.
    pub(super) fn stamp_of(&self, chunk: &Chunk, offset: u32, len: u32) -> Epoch {
        match chunk.tag {
            MIXED => chunk.stamp.min(self.units.latest(&self.touched(offset, len))),
            _ => chunk.stamp,
        }
    }

    /// After a range left that is now part of an Absent one: clears the units of it that are all Absent.
    pub(super) fn forget(&mut self, left: &Range<u32>, absent: &Range<u32>) {
        if self.unit == 0 {
            return;
        }
        let (touched, away) = (
            self.touched(left.start, left.end - left.start),
            self.inside(absent.start, absent.end - absent.start),
        );
        self.units.reset(&(touched.start.max(away.start)..touched.end.min(away.end)));
    }
}

impl Heap {
    /// The stamp of a part of a free chunk: no later than the chunk's, no earlier than any with which its bytes entered (H10).
    ///
    /// # Panics
    /// H4, when the chunk is not free; H1, when the part is empty or not inside of it.
    pub fn stamp_of(&self, chunk: ChunkId, offset: Granules, len: Granules) -> Epoch {
        let free = self.chunks.get(chunk).filter(|c| c.is(ChunkState::Free));
        let Some(free) = free else {
            super::broken(
                "H4",
                format_args!("the stamp of a part of {chunk} is asked for but it is not free"),
            )
        };
        law!(
            H1,
            self.covers(chunk.0, offset.0, len.0),
            "{} granules at {} are no part of {chunk}, which has {} at {}",
            len.0,
            offset.0,
            free.len,
            free.offset()
        );
        self.segments[free.segment].stamp_of(free, offset.0, len.0)
    }

    /// A part of a free chunk of `want`'s kind that holds it and whose stamp is accepted, where the chunk's own stamp is not; looks at no more
    /// than `steps` chunks and units. For migration, after [`Heap::find`]. Changes nothing. Takes the first chunk from the own bin up, and in it
    /// the first accepted stretch of units, at its full length: [`Found`] has that part's offset, length and stamp.
    ///
    /// # Panics
    /// When `want.len` is zero or `want.align` is no power of two.
    pub fn find_part(
        &self,
        want: &Want,
        steps: usize,
        mut accept: impl FnMut(Epoch) -> bool,
    ) -> Option<Found> {
        let sought = want.sought(want.kind, &self.segments);
        let mut left = steps;
        for id in self.bins.own_and_above(&sought) {
            left = left.checked_sub(1)?;
            let chunk = &self.chunks[id];
            if chunk.tag != MIXED || !sought.fits(chunk) {
                continue;
            }
            let segment = &self.segments[chunk.segment];
            let found = |from: u32, end: u32, stamp| {
                let skip = (segment.base.0 / GRANULE_BYTES + u64::from(from)).wrapping_neg()
                    & u64::from(want.align.0 - 1);
                want.fits_at(segment.base.offset(Granules(from)), Granules(end - from)).then(|| Found {
                    chunk: ChunkId(id),
                    segment: segment.id,
                    offset: Granules(from),
                    len: Granules(end - from),
                    stamp,
                    kind: want.kind,
                    at: Granules(from + skip as u32),
                })
            };
            let (mut from, mut end, mut latest) = (chunk.offset(), chunk.offset(), Epoch::COMPLETE);
            for unit in segment.touched(chunk.offset(), chunk.len) {
                let stamp = segment.units.latest(&(unit..unit + 1)).min(chunk.stamp);
                let behind = chunk.end().min((unit + 1) * segment.unit);
                if left > 0 && accept(stamp) {
                    left -= 1;
                    (end, latest) = (behind, laws::merged_stamp(latest, stamp));
                    continue;
                }
                if let Some(found) = found(from, end, latest) {
                    return Some(found);
                }
                left = left.checked_sub(1)?;
                (from, end, latest) = (behind, behind, Epoch::COMPLETE);
            }
            if let Some(found) = found(from, end, latest) {
                return Some(found);
            }
        }
        None
    }
}
