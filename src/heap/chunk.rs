//! The records of chunks: a slab with `u32` indices, each record linked to its neighbours in address order.
//!
//! It splits a record in two, joins two records into one and reuses vacant slots. It does not know bins' sizes,
//! segments' addresses or totals: a caller that changes a free chunk's length takes it out of its bin first.

use crate::units::{Epoch, SegmentId};
use core::fmt;
use core::ops::{Index, IndexMut};

/// The end of a list.
pub(super) const NIL: u32 = u32::MAX;
/// In place of the previous chunk in a bin: this chunk is in no bin.
pub(super) const OUT: u32 = u32::MAX - 1;

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
    /// The slot of a number that [`ChunkId::index`] gave. An invented one is found out by the verb that it is given to.
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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum ChunkState {
    /// Kept for the next request, in exactly one bin.
    Free,
    /// Handed out.
    Allocated,
    /// Given back while another stream may still use it: in no bin.
    InFlight,
    /// Not here: another heap has these bytes, or nobody.
    Away,
}

/// One chunk: a cache line, so that a step of a search touches one, and none is another pool's too. In this order, so that
/// [`Chunk::place`] is one load.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Chunk {
    pub(super) offset: u32,
    /// The number of its segment.
    pub(super) segment_id: SegmentId,
    pub(super) len: u32,
    /// The slot of its segment in this heap.
    pub(super) segment: u32,
    /// Neighbours in address order. In a vacant slot, `next` is the next vacant one.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Neighbours in its bin; `bin_prev` is `OUT` when in none.
    pub(super) bin_prev: u32,
    pub(super) bin_next: u32,
    pub(super) tag: u32,
    pub(super) stamp: Epoch,
    pub(super) asked: u64,
    /// How often the slot was handed out. It outlives the chunk: that is what finds a double free. It wraps; a stale
    /// handle goes unnoticed only at exactly 2^32 uses of one slot.
    pub(super) generation: u32,
    /// `None` when the slot is vacant.
    pub(super) state: Option<ChunkState>,
}

const _: () = assert!(size_of::<Chunk>() == 64);

impl Chunk {
    /// Where it ends: the offset of the next chunk.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.offset + self.len
    }
    /// Where it begins, as a number that grows with the segment's, then with the offset.
    #[inline]
    pub(super) fn place(&self) -> u64 {
        u64::from(self.segment_id.0) << 32 | u64::from(self.offset)
    }
    #[inline]
    pub(super) fn is(&self, state: ChunkState) -> bool {
        self.state == Some(state)
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
    /// The records, for a verb that looks at several: with the slice at hand each look is one comparison, and `NIL` and
    /// `OUT` are beyond its end.
    #[inline]
    pub(super) fn all(&self) -> &[Chunk] {
        &self.records
    }
    /// As [`Slab::all`], to change them.
    #[inline]
    pub(super) fn all_mut(&mut self) -> &mut [Chunk] {
        &mut self.records
    }
    /// As [`Slab::all_mut`], with the head of the vacant list: for a verb by which a record vanishes.
    #[inline]
    pub(super) fn parts_mut(&mut self) -> (&mut [Chunk], &mut u32) {
        (&mut self.records, &mut self.vacant)
    }
    /// As [`Slab::parts_mut`], with a slot vacant: for a verb by which a record comes into being.
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
    /// Where the records lie, those to come included.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> core::ops::Range<usize> {
        let start = self.records.as_ptr().addr();
        start..start + self.records.capacity() * size_of::<Chunk>()
    }

    /// A vacant slot, off the vacant list, to be filled at once.
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
        (segment, segment_id): (u32, SegmentId),
        offset: u32,
        len: u32,
        state: ChunkState,
        stamp: Epoch,
    ) -> u32 {
        let id = self.claim();
        let slot = &mut self.records[id as usize];
        *slot = Chunk {
            offset,
            segment_id,
            len,
            segment,
            prev: NIL,
            next: NIL,
            bin_prev: OUT,
            bin_next: NIL,
            tag: 0,
            stamp,
            asked: 0,
            generation: slot.generation,
            state: Some(state),
        };
        id
    }

    /// One more slot, vacant and first on the vacant list.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let id = self.slots();
        assert!(id < OUT, "a heap cannot have more than {OUT} chunks: 256 GiB of records");
        self.records.push(Chunk {
            offset: 0,
            segment_id: SegmentId(0),
            len: 0,
            segment: 0,
            prev: NIL,
            next: self.vacant,
            bin_prev: OUT,
            bin_next: NIL,
            tag: 0,
            stamp: Epoch::COMPLETE,
            asked: 0,
            generation: 0,
            state: None,
        });
        self.vacant = id;
    }

    /// The slot holds no chunk any more. Its neighbours have been told.
    pub(super) fn vacate(&mut self, id: u32) {
        let slot = &self.records[id as usize];
        law!(H9, slot.state.is_some(), "chunk {id} was vacated twice");
        law!(H4, slot.bin_prev == OUT, "chunk {id} was vacated while in a bin");
        retire(&mut self.records, &mut self.vacant, id);
    }

    /// Cuts a chunk: it keeps its first `at` granules, a new record in no bin gets the rest, state and stamp. If the chunk
    /// is in a bin, it is the caller's to see that this is still the right one.
    pub(super) fn split(&mut self, id: u32, at: u32) -> u32 {
        let low = &mut self[id];
        let (len, next, segment, offset) = (low.len, low.next, (low.segment, low.segment_id), low.offset);
        let (state, stamp) = (low.state, low.stamp);
        law!(H1, 0 < at && at < len, "chunk {id} of {len} granules cannot be split at {at}");
        let Some(state) = state else { super::broken("H9", format_args!("chunk {id} is vacant but split")) };
        low.len = at;
        let stamp = if planted!(SplitUnstamped) { Epoch::COMPLETE } else { stamp };
        let rest = self.fresh(segment, offset + at, len - at, state, stamp);
        self[id].next = rest;
        self[rest].prev = id;
        self[rest].next = next;
        if next != NIL {
            let after = &mut self[next];
            law!(H1, after.prev == id, "chunk {next} follows chunk {id} but is linked to {}", after.prev);
            after.prev = rest;
        }
        rest
    }

    /// Cuts a chunk from the other side: a new record gets its first `at` granules, the chunk keeps the rest and its
    /// id. For chunks in flight, whose ids others know.
    pub(super) fn shear(&mut self, id: u32, at: u32) -> u32 {
        let high = &self[id];
        let (len, prev, segment, offset) =
            (high.len, high.prev, (high.segment, high.segment_id), high.offset);
        law!(H1, 0 < at && at < len, "chunk {id} of {len} granules cannot be sheared at {at}");
        let Some(state) = high.state else {
            super::broken("H9", format_args!("chunk {id} is vacant but sheared"))
        };
        let front = self.fresh(segment, offset, at, state, high.stamp);
        let high = &mut self[id];
        high.offset += at;
        high.len -= at;
        high.prev = front;
        self[front].prev = prev;
        self[front].next = id;
        if prev != NIL {
            law!(
                H1,
                self[prev].next == id,
                "chunk {prev} precedes chunk {id} but is linked to {}",
                self[prev].next
            );
            self[prev].next = front;
        }
        front
    }

    /// Joins two neighbours: `low` gets the bytes of `high`, which is in no bin, and the later of the two stamps.
    pub(super) fn absorb(&mut self, low: u32, high: u32) {
        absorb(&mut self.records, &mut self.vacant, low, high);
    }
}

// Below, what the hot path makes of two records: over the slice that its verb has at hand, so that the compiler sees
// that an index it has compared once needs no second comparison.

/// A record that was cut from the front of a free chunk.
pub(super) struct Front {
    pub(super) id: u32,
    pub(super) generation: u32,
    pub(super) segment: u32,
    pub(super) offset: u32,
    /// Whether the segment begins with it now: the caller sets that right.
    pub(super) is_first: bool,
}

/// A new record in no bin gets the first `len` granules of a free chunk, which has its new length already and keeps its
/// id. Allocated, it is another use of its slot; `asked` is for that.
#[allow(clippy::inline_always, reason = "half of a cut: 20 instructions less than as a call")]
#[inline(always)]
pub(super) fn cut_front(
    chunks: &mut [Chunk],
    vacant: &mut u32,
    id: u32,
    len: u32,
    state: ChunkState,
    asked: u64,
) -> Front {
    let front = *vacant;
    let chunk = &mut chunks[id as usize];
    let (offset, segment, prev, stamp) = (chunk.offset, chunk.segment, chunk.prev, chunk.stamp);
    let segment_id = chunk.segment_id;
    chunk.offset = offset + len;
    chunk.prev = front;
    if planted!(SplitUnstamped) {
        chunk.stamp = Epoch::COMPLETE;
    }
    let slot = &mut chunks[front as usize];
    let was = slot.state;
    law!(H9, was.is_none(), "chunk {front} is on the vacant list but {was:?}");
    *vacant = slot.next;
    slot.offset = offset;
    slot.len = len;
    slot.segment = segment;
    slot.segment_id = segment_id;
    slot.prev = prev;
    slot.next = id;
    slot.bin_prev = OUT;
    slot.tag = 0;
    slot.stamp = stamp;
    slot.asked = asked;
    slot.state = Some(state);
    if state == ChunkState::Allocated {
        slot.generation = slot.generation.wrapping_add(1);
    }
    let generation = slot.generation;
    let is_first = match chunks.get_mut(prev as usize) {
        Some(before) => {
            let on = before.next;
            law!(H1, on == id, "chunk {prev} precedes chunk {id} but is linked to {on}");
            before.next = front;
            false
        }
        None => true,
    };
    Front { id: front, generation, segment, offset, is_first }
}

/// `low` takes the chunk behind it in: `high`, of `len` granules with this stamp, which the caller saw to be in no bin,
/// vanishes. `low`, which had `old` granules, has its new length already.
#[inline]
pub(super) fn append(chunks: &mut [Chunk], vacant: &mut u32, low: u32, high: u32, old: u32, stamp: Epoch) {
    let gone = &chunks[high as usize];
    let (start, segment, prev, next) = (gone.offset, gone.segment, gone.prev, gone.next);
    let chunk = &mut chunks[low as usize];
    let end = chunk.offset + old;
    law!(
        H1,
        chunk.segment == segment && end == start && chunk.next == high && prev == low,
        "chunks {low} (ends at {end}) and {high} (begins at {start}) are merged but are no neighbours"
    );
    chunk.next = next;
    chunk.stamp = later(chunk.stamp, stamp);
    if let Some(after) = chunks.get_mut(next as usize) {
        let back = after.prev;
        law!(H1, back == high, "chunk {next} follows chunk {high} but is linked to {back}");
        after.prev = low;
    }
    retire(chunks, vacant, high);
}

/// As [`append`], from the other side: `high` has its new length already and begins where `low`, of `len` granules, began,
/// which vanishes. Returns whether the segment begins with `high` now.
#[inline]
pub(super) fn prepend(
    chunks: &mut [Chunk],
    vacant: &mut u32,
    high: u32,
    low: u32,
    len: u32,
    stamp: Epoch,
) -> bool {
    let gone = &chunks[low as usize];
    let (offset, segment, prev) = (gone.offset, gone.segment, gone.prev);
    let chunk = &mut chunks[high as usize];
    let (start, end) = (chunk.offset, offset + len);
    law!(
        H1,
        chunk.segment == segment && end == start && chunk.prev == low,
        "chunks {low} (ends at {end}) and {high} (begins at {start}) are merged but are no neighbours"
    );
    chunk.offset = offset;
    chunk.prev = prev;
    chunk.stamp = later(chunk.stamp, stamp);
    let is_first = match chunks.get_mut(prev as usize) {
        Some(before) => {
            let on = before.next;
            law!(H1, on == low, "chunk {prev} precedes chunk {low} but is linked to {on}");
            before.next = high;
            false
        }
        None => true,
    };
    retire(chunks, vacant, low);
    is_first
}

/// `low` gets the bytes of `high`, which is in no bin, and the later of the two stamps.
pub(super) fn absorb(chunks: &mut [Chunk], vacant: &mut u32, low: u32, high: u32) {
    let gone = &chunks[high as usize];
    let (more, stamp) = (gone.len, gone.stamp);
    law!(H4, gone.bin_prev == OUT, "chunk {high} is merged while in a bin");
    let old = chunks[low as usize].len;
    chunks[low as usize].len = old + more;
    append(chunks, vacant, low, high, old, stamp);
}

/// Law O5: the bytes of both are complete when the later stamp is.
#[inline]
pub(super) fn later(one: Epoch, other: Epoch) -> Epoch {
    if planted!(Z23) { one.min(other) } else { one.max(other) }
}

/// A slot that was just seen to hold a chunk, in no bin, holds none any more.
#[inline]
fn retire(chunks: &mut [Chunk], vacant: &mut u32, id: u32) {
    let slot = &mut chunks[id as usize];
    slot.state = None;
    slot.prev = NIL;
    slot.next = *vacant;
    *vacant = id;
}
