//! How ranges arrive and leave: segments are added and removed, `extend` brings bytes in, `cut` takes them out.
//!
//! Growing, migrating, trimming and returning use only these operations. A range that leaves becomes
//! Absent here; the heap that receives it extends with it there. This module does not know who that is, whether the order of
//! streams allows it, or what a segment costs. It is cold: it alone touches the index of Absent chunks.

use super::bins::Sought;
use super::chunk::{Chunk, ChunkId, ChunkState, MIXED, NIL, Place, UNIFORM};
use super::segment::Segment;
use super::stamps::Units;
use super::{FreeChunk, Heap, Kind, SegmentView, Want};
use crate::units::{Addr, Epoch, Granules, SegmentId};

/// A free chunk that would fit, still in its heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The slot, valid until the next operation that changes the heap.
    pub chunk: ChunkId,
    /// The segment.
    pub segment: SegmentId,
    /// Where the chunk begins in the segment.
    pub offset: Granules,
    /// How long the chunk is.
    pub len: Granules,
    /// Its stamp.
    pub stamp: Epoch,
    /// Its segment's kind.
    pub kind: Kind,
    /// Where in the segment the wanted range would begin: `offset`, or the first aligned address behind it.
    pub at: Granules,
}

/// A range that left a heap, with what another heap must know to receive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The segment.
    pub segment: SegmentId,
    /// The segment's first address.
    pub base: Addr,
    /// The segment's whole length.
    pub segment_len: Granules,
    /// The segment's kind.
    pub kind: Kind,
    /// The unit of a window; 0 for a plain segment.
    pub unit: Granules,
    /// Where the range begins in the segment.
    pub offset: Granules,
    /// How long it is.
    pub len: Granules,
    /// Its first address.
    pub addr: Addr,
    /// Its stamp in the heap it left: an epoch of that heap's stream.
    pub stamp: Epoch,
}

impl Heap {
    /// Adds a segment. None of it is here yet: [`Heap::extend`] brings its bytes.
    ///
    /// # Panics
    /// H6, when `base` or `len` are no whole granules, the segment is known already, leaves the address space or
    /// overlaps another one.
    pub fn add_segment(&mut self, id: SegmentId, base: Addr, len: Granules, kind: Kind) {
        self.add_window(id, base, len, kind, Granules::ZERO);
    }

    /// Adds a window, a segment whose memory comes and goes in units of `unit` granules; 0 for a plain segment. None of it is here yet.
    ///
    /// # Panics
    /// H6, as [`Heap::add_segment`], and when `unit` is no power of two or `len` no multiple of it.
    pub fn add_window(&mut self, id: SegmentId, base: Addr, len: Granules, kind: Kind, unit: Granules) {
        let slot = self.segments.insert(Segment {
            id,
            base,
            len: len.0,
            kind,
            unit: unit.0,
            units: Units::new(),
            sentinel: NIL,
            free: 0,
            here: 0,
        });
        let sentinel = self.chunks.sentinel(slot, id);
        let first = self.chunks.fresh(slot, Place::new(id, 0), len.0, ChunkState::Absent, Epoch::COMPLETE);
        for (one, other) in [(sentinel, first), (first, sentinel)] {
            (self.chunks[one].prev, self.chunks[one].next) = (other, other);
        }
        self.segments[slot].sentinel = sentinel;
        self.absent.insert((id, 0), first);
    }

    /// Whether the segment is known here.
    pub fn has_segment(&self, id: SegmentId) -> bool {
        self.segments.slot(id).is_some()
    }

    /// Removes a segment, if all of it is Absent. Returns whether it is unknown now: `false` means that bytes of it are
    /// still here.
    pub fn remove_segment(&mut self, id: SegmentId) -> bool {
        let Some(slot) = self.segments.slot(id) else { return true };
        let segment = &self.segments[slot];
        if segment.here != 0 {
            return false;
        }
        let sentinel = segment.sentinel;
        let only = self.chunks[sentinel].next;
        law!(H2, self.chunks[only].len == segment.len, "segment {} is all Absent but in pieces", id.0);
        self.absent.remove(&(id, 0));
        self.chunks.vacate(only);
        self.chunks.remove_sentinel(sentinel);
        self.segments.remove(id);
        true
    }

    /// The segments known here, by id.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = SegmentView> {
        self.segments.iter().map(Segment::view)
    }

    /// A range arrives: it is free, with `stamp`, and merges as in [`Heap::give`].
    ///
    /// # Panics
    /// H1, when the segment is unknown, the range is empty or leaves the segment, or any of it is here already.
    pub fn extend(&mut self, segment: SegmentId, offset: Granules, len: Granules, stamp: Epoch) -> FreeChunk {
        let (offset, len) = (offset.0, len.0);
        let found = self.absent.range(..=(segment, offset)).next_back().map(|(&key, &id)| (key.0, id));
        let id = match found {
            Some((s, id)) if s == segment && self.covers(id, offset, len) => id,
            _ => self.not_absent(segment, offset, len),
        };
        let start = self.chunks[id].offset();
        let id = if offset == start {
            self.absent.remove(&(segment, start));
            id
        } else {
            self.chunks.split(id, offset - start)
        };
        if self.chunks[id].len > len {
            let tail = self.chunks.split(id, len);
            self.absent.insert((segment, offset + len), tail);
        }
        self.segments[self.chunks[id].segment].here += len;
        self.totals.owned += u64::from(len);
        let free = self.merge_free(id, stamp).free;
        self.free_chunk(free)
            .unwrap_or_else(|| super::broken("H4", format_args!("{free} arrived but is not free")))
    }

    /// A free chunk, or `None` if the slot holds none now.
    pub fn free_chunk(&self, chunk: ChunkId) -> Option<FreeChunk> {
        let free = self.chunks.get(chunk).filter(|c| c.is(ChunkState::Free))?;
        Some(FreeChunk {
            chunk,
            segment: free.place.segment(),
            offset: Granules(free.offset()),
            len: Granules(free.len),
            stamp: free.stamp,
        })
    }

    /// Whether a chunk contains all of `[offset, offset + len)`, which is not empty.
    pub(super) fn covers(&self, id: u32, offset: u32, len: u32) -> bool {
        let chunk = &self.chunks[id];
        len > 0 && offset >= chunk.offset() && u64::from(offset) + u64::from(len) <= u64::from(chunk.end())
    }

    #[cold]
    #[inline(never)]
    fn not_absent(&self, segment: SegmentId, offset: u32, len: u32) -> ! {
        let known = match self.segments.slot(segment) {
            None => "this heap does not know the segment",
            Some(_) if len == 0 => "the range is empty",
            Some(slot) if u64::from(offset) + u64::from(len) > u64::from(self.segments[slot].len) => {
                "the range leaves the segment"
            }
            Some(_) => "some of it is here already",
        };
        super::broken(
            "H1",
            format_args!("extend of segment {} at {offset} by {len} granules: {known}", segment.0),
        )
    }

    /// The tightest free chunk of `want`'s kind that fits and whose stamp is accepted; looks at no more than `steps`
    /// chunks. For migration. Changes nothing. Of equals in length the lowest segment and offset, as in [`Heap::take`];
    /// `accept` is called only for chunks that fit.
    ///
    /// # Panics
    /// When `want.len` is zero or `want.align` is no power of two.
    pub fn find(&self, want: &Want, steps: usize, mut accept: impl FnMut(Epoch) -> bool) -> Option<Found> {
        self.find_where(want, steps, |stamp, _| accept(stamp))
    }

    /// The same, where the place counts too: `accept` gets the stamp, and the segment with the chunk's offset and length.
    ///
    /// # Panics
    /// As [`Heap::find`].
    pub fn find_where(
        &self,
        want: &Want,
        steps: usize,
        mut accept: impl FnMut(Epoch, (SegmentId, Granules, Granules)) -> bool,
    ) -> Option<Found> {
        let sought: Sought<'_> = want.sought(want.kind, &self.segments);
        let accept = |c: &Chunk| accept(c.stamp, (c.place.segment(), Granules(c.offset()), Granules(c.len)));
        let id = self.bins.sweep(self.chunks.all(), &sought, steps, accept).0?;
        let chunk = &self.chunks[id];
        Some(Found {
            chunk: ChunkId(id),
            segment: chunk.place.segment(),
            offset: Granules(chunk.offset()),
            len: Granules(chunk.len),
            stamp: chunk.stamp,
            kind: want.kind,
            at: Granules(chunk.offset() + sought.skip(chunk)),
        })
    }

    /// A range leaves: `[offset, offset + len)` of its segment, a piece of `chunk`, becomes Absent.
    ///
    /// Any piece of a free chunk may leave; what is before and behind it stays free with its stamp. Of a chunk in flight
    /// only the front, or all of it, may leave; the rest stays in flight under the same id and generation, with its stamp and tag.
    ///
    /// # Panics
    /// H4, when the chunk is neither free nor in flight; H1, when the piece is empty, not inside the chunk, or not the
    /// front of a chunk in flight.
    pub fn cut(&mut self, chunk: ChunkId, offset: Granules, len: Granules) -> Cut {
        let (offset, len) = (offset.0, len.0);
        let state = self.chunks.get(chunk).and_then(|c| c.state);
        let id = chunk.0;
        match state {
            Some(ChunkState::Free | ChunkState::InFlight) => {}
            _ => super::broken(
                "H4",
                format_args!(
                    "cut of {chunk}, which is {}: only free ranges and ranges in flight may leave",
                    state.map_or("vacant", ChunkState::name)
                ),
            ),
        }
        law!(
            H1,
            self.covers(id, offset, len),
            "cut of {len} granules at {offset} from {chunk}, which has {} at {}",
            self.chunks[id].len,
            self.chunks[id].offset()
        );
        let piece = if state == Some(ChunkState::Free) {
            let mixed = self.chunks[id].tag;
            let piece = self.detach_free(id, offset, len);
            self.chunks[piece].tag = mixed;
            piece
        } else {
            self.detach_in_flight(id, offset, len)
        };
        self.depart(piece)
    }

    /// Every free piece of a segment leaves, in the order of their offsets.
    pub fn cut_free_of(&mut self, segment: SegmentId) -> Vec<Cut> {
        let Some(slot) = self.segments.slot(segment) else { return Vec::new() };
        let mut cuts = Vec::new();
        let sentinel = self.segments[slot].sentinel;
        let mut at = self.chunks[sentinel].next;
        while self.segments[slot].free > 0 && at != sentinel {
            let chunk = &self.chunks[at];
            let (next, free) = (chunk.next, chunk.is(ChunkState::Free));
            if free {
                let (offset, len) = (Granules(chunk.offset()), Granules(chunk.len));
                // The chunk behind may be Absent and merge into this one: by H2 the one after that is not Absent, so
                // continue there.
                let beyond =
                    if self.chunks[next].is(ChunkState::Absent) { self.chunks[next].next } else { next };
                cuts.push(self.cut(ChunkId(at), offset, len));
                at = beyond;
            } else {
                at = next;
            }
        }
        cuts
    }

    /// The piece of a free chunk as a chunk of its own, in no bin; head and tail are back in theirs.
    fn detach_free(&mut self, id: u32, offset: u32, len: u32) -> u32 {
        let (slot, start) = (self.chunks[id].segment, self.chunks[id].offset());
        let segment = &mut self.segments[slot];
        segment.free -= len;
        let kind = segment.kind;
        self.detach(kind, id, offset - start, len)
    }

    /// The front of a chunk in flight as a chunk of its own; the rest keeps its id.
    fn detach_in_flight(&mut self, id: u32, offset: u32, len: u32) -> u32 {
        let chunk = &self.chunks[id];
        law!(
            H1,
            chunk.offset() == offset,
            "chunk {id} is in flight from {} on: a piece at {offset} is not its front",
            chunk.offset()
        );
        self.totals.in_flight -= u64::from(len);
        if chunk.len == len {
            self.totals.in_flight_chunks -= 1;
            return id;
        }
        self.chunks.split_front(id, len)
    }

    /// A chunk in no bin becomes Absent and merges with what is Absent around it.
    fn depart(&mut self, id: u32) -> Cut {
        let chunk = &mut self.chunks[id];
        let segment = &mut self.segments[chunk.segment];
        let is_mixed = chunk.is(ChunkState::Free) && chunk.tag == MIXED;
        let stamp = if is_mixed { segment.stamp_of(chunk, chunk.offset(), chunk.len) } else { chunk.stamp };
        let cut = Cut {
            segment: segment.id,
            base: segment.base,
            segment_len: Granules(segment.len),
            kind: segment.kind,
            unit: Granules(segment.unit),
            offset: Granules(chunk.offset()),
            len: Granules(chunk.len),
            addr: segment.base.offset(Granules(chunk.offset())),
            stamp,
        };
        chunk.state = Some(ChunkState::Absent);
        chunk.stamp = Epoch::COMPLETE;
        chunk.requested = 0;
        chunk.tag = UNIFORM;
        segment.here -= chunk.len;
        self.totals.owned -= u64::from(chunk.len);
        let (prev, next) = (chunk.prev, chunk.next);
        if self.chunks[next].is(ChunkState::Absent) {
            self.absent.remove(&(cut.segment, self.chunks[next].offset()));
            self.chunks.absorb(id, next);
        }
        let id = if self.chunks[prev].is(ChunkState::Absent) {
            self.chunks.absorb(prev, id);
            prev
        } else {
            self.absent.insert((cut.segment, cut.offset.0), id);
            id
        };
        let absent = &self.chunks[id];
        let segment = &mut self.segments[absent.segment];
        segment.forget(&(cut.offset.0..cut.offset.0 + cut.len.0), &(absent.offset()..absent.end()));
        cut
    }
}
