//! The records of chunks: a slab with `u32` indices, each record linked to its neighbours in address order.
//!
//! The chunks of a segment and its *sentinel*, a record without bytes, are a circular doubly linked list: each chunk has a neighbour on both
//! sides, so linking needs no branch. Slot 0 never has a chunk.
//!
//! It splits a record in two, joins two records into one and reuses vacant slots. It does not know bins' sizes,
//! segments' addresses or totals: a caller that changes a free chunk's length takes it out of its bin first.

use super::bins::Bin;
use crate::laws;
use crate::units::{Epoch, SegmentId};
use core::fmt;
use core::ops::{Index, IndexMut};

/// The first slot, which never has a chunk: no bytes, in no segment.
pub(super) const NO_CHUNK: u32 = 0;
/// The tag of a free chunk whose bytes all entered with its stamp.
pub(super) const UNIFORM: u32 = 0;
/// The tag of a free chunk of a window whose bytes entered with different stamps, which its units have.
pub(super) const MIXED: u32 = 1;
/// The maximum number of slots of a heap: a bin's link has a number too.
const MOST: u32 = u32::MAX - 4096;
/// The end of the list of vacant slots: no slot has this number.
pub(super) const NIL: u32 = u32::MAX;

/// The slot of a chunk in its heap. Together with the generation that [`Heap::take`](super::Heap::take) returned, it
/// names one allocation of that heap; alone, only whatever the slot holds now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub(super) u32);

impl ChunkId {
    /// The slot's number, for an [`AllocationId`](crate::units::AllocationId).
    #[inline]
    pub const fn index(self) -> u32 {
        self.0
    }
    /// The slot of a number that [`ChunkId::index`] gave. The operation that receives an invented number detects it.
    #[inline]
    pub const fn from_index(index: u32) -> ChunkId {
        ChunkId(index)
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", self.0)
    }
}
impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", self.0)
    }
}

/// What a chunk's bytes are, for the heap that has the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChunkState {
    /// Kept for the next request, in exactly one bin.
    Free,
    /// Handed out.
    Allocated,
    /// Given back while another stream may still use it: in no bin.
    InFlight,
    /// Not here: another heap has these bytes, or none has.
    Absent,
}

/// Where a chunk begins: its segment's number and, in the low half, the offset. It is one `u64`, because it is compared as one, and
/// because loading what was stored as two halves stalls: a load cannot be forwarded from two stores.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

impl Place {
    #[inline]
    pub(super) const fn new(segment: SegmentId, offset: u32) -> Place {
        Place((segment.0 as u64) << 32 | offset as u64)
    }
    #[inline]
    pub(super) const fn segment(self) -> SegmentId {
        SegmentId((self.0 >> 32) as u32)
    }
    #[inline]
    pub(super) const fn offset(self) -> u32 {
        self.0 as u32
    }
    /// The place `granules` further on in the same segment. No segment is so long that its number would change.
    #[inline]
    pub(super) const fn beyond(self, granules: u32) -> Place {
        Place(self.0 + granules as u64)
    }
    /// The number, for a comparison together with something else.
    #[inline]
    pub(super) const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} at {}", self.segment().0, self.offset())
    }
}

/// One chunk: a cache line, so that a step of a search touches one, and no line is shared with another pool.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Chunk {
    pub(super) place: Place,
    pub(super) len: u32,
    /// The slot of its segment in this heap.
    pub(super) segment: u32,
    /// Neighbours in address order; before the first and behind the last of a segment its sentinel. In a vacant slot, `next` is the
    /// next vacant one.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// The caller's number; while it is free, whether it is mixed ([`super::units`]).
    pub(super) tag: u32,
    /// The bin that it is in.
    pub(super) bin: Bin,
    pub(super) stamp: Epoch,
    pub(super) requested: u64,
    /// How many times the slot was handed out. It outlives the chunk: this detects a double free. It wraps; a stale
    /// handle goes unnoticed only at exactly 2^32 uses of one slot.
    pub(super) generation: u32,
    /// `None` when the slot is vacant, or a segment's sentinel.
    pub(super) state: Option<ChunkState>,
}

const _: () = assert!(size_of::<Chunk>() == 64);

impl Chunk {
    /// A slot with no chunk in it, before its first.
    const VACANT: Chunk = Chunk {
        place: Place::new(SegmentId(0), 0),
        len: 0,
        segment: 0,
        prev: NIL,
        next: NIL,
        tag: 0,
        stamp: Epoch::COMPLETE,
        requested: 0,
        generation: 0,
        state: None,
        bin: Bin::NONE,
    };

    /// Where it ends: the offset of the next chunk.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.offset() + self.len
    }
    #[inline]
    pub(super) fn offset(&self) -> u32 {
        self.place.offset()
    }
    #[inline]
    pub(super) fn is(&self, state: ChunkState) -> bool {
        self.state == Some(state)
    }
    /// Whether all bytes of a free chunk entered with this stamp. One comparison of both, without a branch in between.
    #[inline]
    pub(super) fn is_uniform(&self, stamp: Epoch) -> bool {
        (self.stamp.0 ^ stamp.0) | u64::from(self.tag ^ UNIFORM) == 0
    }
}

/// All records of a heap.
#[derive(Clone, Debug)]
pub(super) struct Slab {
    records: Vec<Chunk>,
    /// The first vacant slot.
    vacant: u32,
}

impl Index<u32> for Slab {
    type Output = Chunk;
    #[inline]
    fn index(&self, id: u32) -> &Chunk {
        &self.records[id as usize]
    }
}
impl IndexMut<u32> for Slab {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Chunk {
        &mut self.records[id as usize]
    }
}

impl Slab {
    pub(super) const fn new() -> Slab {
        Slab { records: Vec::new(), vacant: NIL }
    }
    /// The records, for an operation that looks at several: with the slice at hand each look is one comparison, and `NIL` is beyond
    /// its end.
    #[inline]
    pub(super) fn all(&self) -> &[Chunk] {
        &self.records
    }
    /// The records, to change them.
    #[inline]
    pub(super) fn all_mut(&mut self) -> &mut [Chunk] {
        &mut self.records
    }
    /// The records, to change them, and the head of the vacant list: for an operation that removes a record.
    #[inline]
    pub(super) fn parts_mut(&mut self) -> (&mut [Chunk], &mut u32) {
        (&mut self.records, &mut self.vacant)
    }
    /// The records, to change them, and the head of a vacant list that is not empty: for an operation that adds a
    /// record.
    #[inline]
    pub(super) fn parts_to_fill(&mut self) -> (&mut [Chunk], &mut u32) {
        if self.vacant == NIL {
            self.grow();
        }
        (&mut self.records, &mut self.vacant)
    }
    #[inline]
    pub(super) fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.records.get(id.0 as usize)
    }
    pub(super) fn slots(&self) -> u32 {
        self.records.len() as u32
    }
    pub(super) fn first_vacant(&self) -> u32 {
        self.vacant
    }
    /// Where the records lie, including capacity that is not used yet.
    pub(super) fn addresses(&self) -> core::ops::Range<usize> {
        let start = self.records.as_ptr().addr();
        start..start + self.records.capacity() * size_of::<Chunk>()
    }

    /// Takes a vacant slot off the vacant list, to be filled at once.
    #[inline]
    fn claim(&mut self) -> u32 {
        if self.vacant == NIL {
            self.grow();
        }
        let id = self.vacant;
        let slot = &mut self.records[id as usize];
        let state = slot.state;
        law!(H9, state.is_none(), "chunk {id} is on the vacant list but {state:?}");
        self.vacant = slot.next;
        id
    }

    /// A record of `len` granules at `offset`, in no bin and with no neighbours yet.
    pub(super) fn fresh(
        &mut self,
        segment: u32,
        place: Place,
        len: u32,
        state: ChunkState,
        stamp: Epoch,
    ) -> u32 {
        let id = self.claim();
        let slot = &mut self.records[id as usize];
        let generation = slot.generation;
        *slot = Chunk { place, len, segment, stamp, generation, state: Some(state), ..Chunk::VACANT };
        id
    }

    /// The sentinel of a segment: a record of no bytes that is not a chunk, before the segment's first and behind its last. So each
    /// chunk has two neighbours, and linking needs no branch. The sentinel itself has no neighbours yet.
    pub(super) fn sentinel(&mut self, segment: u32, id: SegmentId) -> u32 {
        let sentinel = self.fresh(segment, Place::new(id, 0), 0, ChunkState::Absent, Epoch::COMPLETE);
        self.records[sentinel as usize].state = None;
        sentinel
    }

    /// Removes a sentinel, behind the last of its segment's chunks.
    pub(super) fn remove_sentinel(&mut self, sentinel: u32) {
        retire(&mut self.records, &mut self.vacant, sentinel);
    }

    /// The chunks of the segment with this sentinel, in address order.
    pub(super) fn around(&self, sentinel: u32) -> impl Iterator<Item = u32> + '_ {
        let chunk = move |id: u32| (id != sentinel).then_some(id);
        core::iter::successors(chunk(self[sentinel].next), move |&id| chunk(self[id].next))
    }

    /// Adds a vacant slot at the head of the vacant list.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        if self.records.is_empty() {
            self.records.push(Chunk::VACANT);
        }
        let id = self.slots();
        assert!(id < MOST, "a heap cannot have more than {MOST} chunks: 256 GiB of records");
        self.records.push(Chunk { next: self.vacant, ..Chunk::VACANT });
        self.vacant = id;
    }

    /// The slot holds no chunk any more. Its neighbours are already linked to each other.
    pub(super) fn vacate(&mut self, id: u32) {
        let slot = &self.records[id as usize];
        law!(H9, slot.state.is_some(), "chunk {id} was vacated twice");
        law!(H4, slot.bin == Bin::NONE, "chunk {id} was vacated while in a bin");
        retire(&mut self.records, &mut self.vacant, id);
    }

    /// Cuts a chunk: it keeps its first `at` granules, a new record in no bin gets the rest, state and stamp. If the chunk
    /// is in a bin, the caller must check that this is still the right one.
    pub(super) fn split(&mut self, id: u32, at: u32) -> u32 {
        let low = &mut self[id];
        let (len, next, segment, place) = (low.len, low.next, low.segment, low.place);
        let (state, stamp, tag) = (low.state, low.stamp, low.tag);
        law!(H1, 0 < at && at < len, "chunk {id} of {len} granules cannot be split at {at}");
        let Some(state) = state else { super::broken("H9", format_args!("chunk {id} is vacant but split")) };
        low.len = at;
        let stamp = laws::split_stamp(stamp);
        let rest = self.fresh(segment, place.beyond(at), len - at, state, stamp);
        self[id].next = rest;
        self[rest].tag = tag;
        self[rest].prev = id;
        self[rest].next = next;
        let after = &mut self[next];
        law!(H1, after.prev == id, "chunk {next} follows chunk {id} but is linked to {}", after.prev);
        after.prev = rest;
        rest
    }

    /// Cuts a chunk from the other side: a new record gets its first `at` granules, the chunk keeps the rest and its
    /// id. For chunks in flight, whose ids are known outside.
    pub(super) fn split_front(&mut self, id: u32, at: u32) -> u32 {
        let high = &self[id];
        let (len, prev, segment, place) = (high.len, high.prev, high.segment, high.place);
        law!(H1, 0 < at && at < len, "chunk {id} of {len} granules cannot be sheared at {at}");
        let Some(state) = high.state else {
            super::broken("H9", format_args!("chunk {id} is vacant but sheared"))
        };
        let front = self.fresh(segment, place, at, state, high.stamp);
        let high = &mut self[id];
        high.place = place.beyond(at);
        high.len -= at;
        high.prev = front;
        self[front].prev = prev;
        self[front].next = id;
        let before = &mut self[prev];
        law!(H1, before.next == id, "chunk {prev} precedes chunk {id} but is linked to {}", before.next);
        before.next = front;
        front
    }

    /// Joins two neighbours: `low` gets the bytes of `high`, which is in no bin, and the later of the two stamps.
    pub(super) fn absorb(&mut self, low: u32, high: u32) {
        absorb(&mut self.records, &mut self.vacant, low, high);
    }
}

// Below are the hot path's forms of these operations: they work on the slice that the caller already has, so that the compiler sees
// that an index it has compared once needs no second comparison.

/// A new record in no bin gets the first `len` granules of a free chunk, which already has its new length and keeps its
/// id. Returns the new record's slot.
#[allow(clippy::inline_always, reason = "half of a cut: 20 instructions less than as a call")]
#[inline(always)]
pub(super) fn cut_front(chunks: &mut [Chunk], vacant: &mut u32, id: u32, len: u32) -> u32 {
    let front = *vacant;
    let chunk = &mut chunks[id as usize];
    let (place, segment, prev, stamp) = (chunk.place, chunk.segment, chunk.prev, chunk.stamp);
    chunk.place = place.beyond(len);
    chunk.prev = front;
    chunk.stamp = laws::split_stamp(stamp);
    let slot = &mut chunks[front as usize];
    let was = slot.state;
    law!(H9, was.is_none(), "chunk {front} is on the vacant list but {was:?}");
    *vacant = slot.next;
    slot.place = place;
    slot.len = len;
    slot.segment = segment;
    slot.prev = prev;
    slot.next = id;
    slot.bin = Bin::NONE;
    slot.stamp = stamp;
    slot.state = Some(ChunkState::Free);
    let on = core::mem::replace(&mut chunks[prev as usize].next, front);
    law!(H1, on == id, "chunk {prev} precedes chunk {id} but is linked to {on}");
    front
}

/// `into` absorbs a neighbour, `gone`, which the caller saw to be in no bin, and which is removed. `into` already has the length of both,
/// `len`; it gets the lower place and the later stamp.
#[inline]
pub(super) fn merge(chunks: &mut [Chunk], vacant: &mut u32, into: u32, gone: u32, len: u32, stamp: Epoch) {
    let record = &chunks[gone as usize];
    let (place, more, prev, next) = (record.place, record.len, record.prev, record.next);
    let chunk = &mut chunks[into as usize];
    let (low, high) = (chunk.place.min(place), chunk.place.max(place));
    // The lower one ends where the other begins, and so both end where the upper one did.
    let end = if place < chunk.place { place.beyond(more) } else { chunk.place.beyond(len - more) };
    law!(
        H1,
        end == high,
        "chunks {into} and {gone} are merged but are no neighbours: {low:?} ends at {}, {high:?}",
        end.offset()
    );
    chunk.place = low;
    chunk.stamp = laws::merged_stamp(chunk.stamp, stamp);
    let on = core::mem::replace(&mut chunks[prev as usize].next, next);
    law!(H1, on == gone, "chunk {prev} precedes chunk {gone} but is linked to {on}");
    let back = core::mem::replace(&mut chunks[next as usize].prev, prev);
    law!(H1, back == gone, "chunk {next} follows chunk {gone} but is linked to {back}");
    retire(chunks, vacant, gone);
}

/// `low` gets the bytes of `high`, which is in no bin, and the later of the two stamps.
pub(super) fn absorb(chunks: &mut [Chunk], vacant: &mut u32, low: u32, high: u32) {
    let gone = &chunks[high as usize];
    let (more, stamp) = (gone.len, gone.stamp);
    law!(H4, gone.bin == Bin::NONE, "chunk {high} is merged while in a bin");
    let len = chunks[low as usize].len + more;
    chunks[low as usize].len = len;
    merge(chunks, vacant, low, high, len, stamp);
}

/// A slot that was just seen to hold a chunk in no bin becomes vacant.
#[inline]
fn retire(chunks: &mut [Chunk], vacant: &mut u32, id: u32) {
    let slot = &mut chunks[id as usize];
    slot.state = None;
    slot.prev = NIL;
    slot.next = *vacant;
    *vacant = id;
}
