//! The segments a heap has records of: where each lies, how much of it is here and how much of that is free.
//!
//! A segment is one contiguous range of device memory. No single heap owns it: several heaps may have a record
//! of the same one, each with the others' bytes marked Absent. This table does not know who the others are, nor where the
//! range came from; it never reads a chunk.

use super::Kind;
use super::chunk::Chunk;
use super::stamps::Units;
use crate::units::{Addr, GRANULE_BYTES, Granules, SegmentId};
use core::ops::{Index, IndexMut};

/// One segment, as this heap sees it. Every hit writes one, so it has a cache line to itself: the tables of two pools
/// may lie side by side in memory while two threads write them (false sharing).
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Segment {
    pub(super) id: SegmentId,
    pub(super) base: Addr,
    pub(super) len: u32,
    pub(super) kind: Kind,
    /// Of a window, the granules that its memory comes and goes in; 0 in a plain segment.
    pub(super) unit: u32,
    /// Of a window, the stamps of its units.
    pub(super) units: Units,
    /// The record before its first chunk and behind its last.
    pub(super) sentinel: u32,
    /// Granules that are free here.
    pub(super) free: u32,
    /// Granules that are here at all: not Absent.
    pub(super) here: u32,
}

/// A segment as this heap sees it, copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentView {
    /// Its number in the allocator.
    pub id: SegmentId,
    /// Its first address.
    pub base: Addr,
    /// Its whole length, including bytes that are not here.
    pub len: Granules,
    /// Which requests it serves.
    pub kind: Kind,
    /// Granules that are free here.
    pub free: Granules,
    /// Granules that are here: free, allocated or in flight.
    pub here: Granules,
}

/// Slots that chunks refer to, and the order of the ids.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    slots: Vec<Segment>,
    vacant: Vec<u32>,
    /// Sorted by id. Only cold operations look here; chunks know the slot.
    by_id: Vec<(SegmentId, u32)>,
    /// Sorted by address, so that a new one is compared with its two neighbours and not with thousands: segments do not overlap (H6).
    by_base: Vec<(Addr, u32)>,
}

impl Index<u32> for Segments {
    type Output = Segment;
    #[inline]
    fn index(&self, slot: u32) -> &Segment {
        &self.slots[slot as usize]
    }
}
impl IndexMut<u32> for Segments {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Segment {
        &mut self.slots[slot as usize]
    }
}

impl Segments {
    pub(super) const fn new() -> Segments {
        Segments { slots: Vec::new(), vacant: Vec::new(), by_id: Vec::new(), by_base: Vec::new() }
    }

    /// The slot of a segment.
    pub(super) fn slot(&self, id: SegmentId) -> Option<u32> {
        self.by_id.binary_search_by_key(&id, |e| e.0).ok().map(|at| self.by_id[at].1)
    }

    /// A new segment; its `sentinel` is still to be set.
    pub(super) fn insert(&mut self, segment: Segment) -> u32 {
        law!(
            H6,
            segment.base.0.is_multiple_of(GRANULE_BYTES) && segment.len > 0,
            "segment {} at {} of {} granules does not consist of whole granules",
            segment.id.0,
            segment.base,
            segment.len
        );
        law!(
            H6,
            segment.end() <= 1 << 64,
            "segment {} at {} of {} granules leaves the address space",
            segment.id.0,
            segment.base,
            segment.len
        );
        law!(
            H6,
            segment.unit == 0 || segment.unit.is_power_of_two() && segment.len.is_multiple_of(segment.unit),
            "window {} of {} granules does not consist of whole units of {}",
            segment.id.0,
            segment.len,
            segment.unit
        );
        let place = self.by_base.partition_point(|e| e.0 < segment.base);
        let neighbours = &self.by_base[place.saturating_sub(1)..(place + 1).min(self.by_base.len())];
        if let Some(other) = neighbours.iter().map(|e| &self[e.1]).find(|s| s.overlaps(&segment)) {
            super::broken(
                "H6",
                format_args!(
                    "segment {} at {} of {} granules overlaps segment {} at {} of {}",
                    segment.id.0, segment.base, segment.len, other.id.0, other.base, other.len
                ),
            );
        }
        let (id, base) = (segment.id, segment.base);
        let Err(at) = self.by_id.binary_search_by_key(&id, |e| e.0) else {
            super::broken("H6", format_args!("segment {} is in this heap already", id.0))
        };
        let slot = if let Some(slot) = self.vacant.pop() {
            self[slot] = segment;
            slot
        } else {
            self.slots.push(segment);
            self.slots.len() as u32 - 1
        };
        self.by_id.insert(at, (id, slot));
        self.by_base.insert(place, (base, slot));
        slot
    }

    /// Removes a segment that no chunk refers to any more.
    pub(super) fn remove(&mut self, id: SegmentId) {
        if let Ok(at) = self.by_id.binary_search_by_key(&id, |e| e.0) {
            let slot = self.by_id.remove(at).1;
            let base = self[slot].base;
            if let Ok(at) = self.by_base.binary_search_by_key(&base, |e| e.0) {
                self.by_base.remove(at);
            }
            self.vacant.push(slot);
        }
    }

    /// Where the records lie, including capacity that is not used yet.
    pub(super) fn addresses(&self) -> core::ops::Range<usize> {
        let start = self.slots.as_ptr().addr();
        start..start + self.slots.capacity() * size_of::<Segment>()
    }

    /// All segments by id.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Segment> {
        self.by_id.iter().map(|&(_, slot)| &self[slot])
    }
    /// The slots of all segments, by id.
    pub(super) fn slots(&self) -> impl ExactSizeIterator<Item = u32> {
        self.by_id.iter().map(|e| e.1)
    }

    /// Granules to skip at the front of `chunk` so that its address is a multiple of `align` granules.
    pub(super) fn skip(&self, chunk: &Chunk, align: u32) -> u32 {
        let granule = self[chunk.segment].base.0 / GRANULE_BYTES + u64::from(chunk.offset());
        (granule.wrapping_neg() & u64::from(align - 1)) as u32
    }
}

impl Segment {
    /// One past its last byte; 2^64 at most.
    pub(super) fn end(&self) -> u128 {
        u128::from(self.base.0) + u128::from(Granules(self.len).bytes())
    }
    pub(super) fn overlaps(&self, other: &Segment) -> bool {
        u128::from(self.base.0) < other.end() && u128::from(other.base.0) < self.end()
    }
    pub(super) fn view(&self) -> SegmentView {
        SegmentView {
            id: self.id,
            base: self.base,
            len: Granules(self.len),
            kind: self.kind,
            free: Granules(self.free),
            here: Granules(self.here),
        }
    }
}
