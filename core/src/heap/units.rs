//! Stamps for each unit of a window: when it was last used, where a chunk's own stamp covers more than that.
//!
//! A chunk's stamp is the latest of everything that merged into it: 512 bytes that were just freed keep 10 GiB beside them busy. So a window also
//! keeps a stamp for each unit, lazily. A free chunk is *uniform* while all its bytes entered with the chunk's own stamp; nothing is written.
//! When chunks with different stamps merge, the stamp of each uniform one is written to its units ([`Segment::keep_stamps`]), and the chunk is *mixed*
//! from then on. The record's tag, otherwise unused while a chunk is free, says which. A unit's stamp is the latest written since the unit was
//! last Absent (a tree of them is in [`super::stamps`]); a take does not change it, because what was taken enters again with a later stamp.
//!
//! This module does not know handles, nor what a stamp is compared with.

use super::border::Found;
use super::chunk::{Chunk, ChunkId, ChunkState, MIXED, UNIFORM};
use super::segment::Segment;
use super::{Heap, Want};
use crate::laws;
use crate::units::{Epoch, GRANULE_BYTES, Granules};
use core::ops::Range;

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
    /// stamp, they are mixed from now on. Out of line, and not called where one neighbour is free and [`Chunk::is_uniform`] with this stamp, as most
    /// are: a merge in a window has no more instructions than one in a plain segment then.
    #[cold]
    #[inline(never)]
    pub(super) fn keep_stamps(&mut self, chunks: &mut [Chunk], id: u32, stamp: Epoch) {
        let chunk = &chunks[id as usize];
        let (prev, next) = (&chunks[chunk.prev as usize], &chunks[chunk.next as usize]);
        let is_same = |c: &Chunk| c.is_uniform(stamp) || !c.is(ChunkState::Free);
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
        if laws::physical::stamps_units() {
            self.write(offset, len, stamp);
        }
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
                format_args!("the stamp of a part of {chunk} is requested but it is not free"),
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
