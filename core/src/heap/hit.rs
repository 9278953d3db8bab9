//! The hot path: a take that hits, and a give.
//!
//! Budget: no allocation (the slab's growth aside), no hashing, no tree, at most 32 chunks looked at, a few hundred
//! instructions for both; `benches/hit.rs` counts them. What is rare is out of line: alignment above a granule, the other
//! kind's space, the sweep behind the sixteenth chunk, ranges that were in flight.
//!
//! Four departures from the simple version (take a chunk out of its bin, cut it, put the rest back; give: take the
//! neighbours out of their bins, join, put the whole in):
//!
//! 1. A take gets the *front* of a longer chunk as a new record, and the rest keeps its record; a give adds the range to the
//!    free neighbour, which keeps its record. So a chunk whose length stays within its bin's width stays in its bin: cutting
//!    and joining small ranges at a long chunk touches no bin at all.
//! 2. An operation gets the slab as one slice: each look is then one comparison, which the compiler can often eliminate.
//! 3. What follows from other counts is not counted: free granules, live allocations.
//! 4. No branch depends on what is unpredictable. What a program frees next decides which neighbours are free, whether a chunk is
//!    the first of its bin or of its segment, and which bin comes next; a mispredicted branch costs more than
//!    the instructions that avoid it. So bins and segments are circular lists, where every chunk has two neighbours (`bins`, `Segment::sentinel`),
//!    and which neighbour absorbs a range is a number, not a branch. A pair has more instructions because of that, and takes less time.
//!
//! This file does not know why a range is given back, nor what a stamp means except that the later one counts.

use super::bins::{Bin, Bins, SWEEP, Sought, WALK};
use super::chunk::{self, Chunk, ChunkId, ChunkState, NO_CHUNK};
use super::segment::Segments;
use super::snapshot::Totals;
use super::{Given, Heap, Kind, Want};
use crate::laws;
use crate::units::{Addr, Epoch, GRANULE_BYTES, Granules};
use core::num::NonZero;

/// A request that a heap can answer: bytes, and the fewest granules that hold them, which is at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    requested: u64,
    len: Granules,
}

impl Request {
    /// `None` for no bytes and for more than a segment holds, by one comparison: the allocator answers these itself.
    #[inline]
    pub const fn of(requested: u64) -> Option<Request> {
        let before_last = requested.wrapping_sub(1) / GRANULE_BYTES;
        if before_last >= u32::MAX as u64 {
            None
        } else {
            Some(Request { requested, len: Granules(before_last as u32 + 1) })
        }
    }
    /// The granules.
    #[inline]
    pub const fn len(self) -> Granules {
        self.len
    }
}

/// A range that a heap handed out: exactly what was wanted. [`Heap::view`] has the rest.
///
/// Two words, and so is an `Option` of it: a hit returns them in registers, from the chunk to the handle. Slot and generation are one of
/// them: as two `u32` they would be stored one by one and loaded as one word, which stalls, since a load cannot be forwarded from two stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The generation above the slot.
    id: NonZero<u64>,
    /// The first address.
    pub addr: Addr,
}

impl Taken {
    /// Of these parts; `None` for slot 0 in generation 0, which no range has: slot 0 never has a chunk.
    #[inline]
    pub fn new(chunk: ChunkId, generation: u32, addr: Addr) -> Option<Taken> {
        let id = NonZero::new(u64::from(generation) << 32 | u64::from(chunk.0))?;
        Some(Taken { id, addr })
    }
    /// The slot.
    #[inline]
    pub const fn chunk(self) -> ChunkId {
        ChunkId(self.id.get() as u32)
    }
    /// Which use of the slot: every later operation needs it together with [`Taken::chunk`].
    #[inline]
    pub const fn generation(self) -> u32 {
        (self.id.get() >> 32) as u32
    }
}

impl Heap {
    /// Hands out `want` from the free chunks of its kind, or `None` if none fits: a miss. `requested` is the request in
    /// bytes before rounding, for the statistics.
    ///
    /// Which chunk: of the first 16 of the request's own bin, and failing that of the next occupied bin, the shortest
    /// that fits; of equals the one with the lowest segment and offset; an exact fit at once. If none of those fits, the
    /// tightest of up to 1024 from the own bin up; then, for an aligned want, any that is long enough at any
    /// address. So `None` means that nothing fits, unless more than 1024 near misses stood in the way. The range begins
    /// at the lowest aligned address of the chunk; what is left before and behind stays free with the chunk's stamp.
    ///
    /// # Panics
    /// When `want.len` is zero, `want.align` is no power of two, or `requested` is more than `want.len`.
    #[inline]
    pub fn take(&mut self, want: &Want, requested: u64) -> Option<Taken> {
        if want.align.0 == 1 {
            assert_holds(want.len, requested);
            self.take_plain(Request { requested, len: want.len }, want.kind)
        } else {
            self.take_from(want.kind, want, requested)
        }
    }

    /// Hands out `want` from the free chunks of the *other* kind, or `None` if none fits: the last resort
    /// before a pool grows.
    ///
    /// # Panics
    /// As [`Heap::take`].
    pub fn take_across(&mut self, want: &Want, requested: u64) -> Option<Taken> {
        self.take_from(want.kind.other(), want, requested)
    }

    /// Hands out a free chunk of exactly `want.len`, or nothing: no best fit, no split. This is a baseline for comparison: how
    /// pools worked before best fit.
    ///
    /// # Panics
    /// As [`Heap::take`].
    pub fn take_exact(&mut self, want: &Want, requested: u64) -> Option<Taken> {
        assert_holds(want.len, requested);
        let sought = want.sought(want.kind, &self.segments);
        let fit = self.bins.exact(self.chunks.all(), &sought, SWEEP)?;
        let id = self.split_fit(want.kind, fit, want);
        self.take_whole(id, requested)
    }

    /// Hands out `want` from this free chunk, of either kind, or nothing if it does not fit there: for callers that brought the chunk or
    /// found it, and need not search past near misses again.
    ///
    /// # Panics
    /// As [`Heap::take`], and H4, when the chunk is not free.
    #[cold]
    #[inline(never)]
    pub fn take_of(&mut self, chunk: ChunkId, want: &Want, requested: u64) -> Option<Taken> {
        assert_holds(want.len, requested);
        let free = self.chunks.get(chunk).filter(|c| c.is(ChunkState::Free));
        let Some(free) = free else {
            super::broken("H4", format_args!("{chunk} is taken from but is not free"))
        };
        let kind = self.segments[free.segment].kind;
        if !want.sought(kind, &self.segments).fits(free) {
            return None;
        }
        let id = self.split_fit(kind, chunk.0, want);
        self.take_whole(id, requested)
    }

    /// Hands out `len` granules from `offset` of their segment, which lie in this free chunk: for callers that know what is behind the addresses.
    ///
    /// # Panics
    /// As [`Heap::take`]; H4, when the chunk is not free; H1, when the range is not inside of it.
    #[cold]
    #[inline(never)]
    pub fn take_at(
        &mut self,
        chunk: ChunkId,
        offset: Granules,
        len: Granules,
        requested: u64,
    ) -> Option<Taken> {
        assert_holds(len, requested);
        let free = self.chunks.get(chunk).filter(|c| c.is(ChunkState::Free));
        let Some(free) = free else {
            super::broken("H4", format_args!("{chunk} is taken from but is not free"))
        };
        let (kind, from) = (self.segments[free.segment].kind, free.offset());
        law!(
            H1,
            self.covers(chunk.0, offset.0, len.0),
            "{} granules at {} are taken from {chunk}, which does not have them",
            len.0,
            offset.0
        );
        self.totals.splits +=
            u64::from(offset.0 > from) + u64::from(self.chunks[chunk.0].end() > offset.0 + len.0);
        let id = self.detach(kind, chunk.0, offset.0 - from, len.0);
        self.take_whole(id, requested)
    }

    /// Hands out a request at any address from the free chunks of a kind ([`Heap::take`]): the fast path. An exact fit at the head of its
    /// bin, the last of this length that was given back, needs no search.
    #[inline]
    pub fn take_plain(&mut self, request: Request, kind: Kind) -> Option<Taken> {
        let Request { requested, len: Granules(len) } = request;
        let own = Bin::of(kind, len);
        let Some(first) = self.bins.first(own) else {
            self.count_miss();
            return None;
        };
        let chunks = self.chunks.all_mut();
        if chunks[first as usize].len == len {
            self.bins.pop(chunks, first, own);
            self.totals.free_chunks -= 1;
            let chunk = &mut chunks[first as usize];
            mark_allocated(chunk, first, requested, &mut self.segments, &mut self.totals)
        } else {
            self.search(kind, len, own, requested)
        }
    }

    /// Nothing fits.
    #[cold]
    #[inline(never)]
    fn count_miss(&mut self) {
        self.totals.failed += 1;
    }

    /// A hit after a search: the best of two bins, its front cut off if it is longer.
    #[allow(clippy::inline_always, reason = "as a call, a pair with a cut costs 15 instructions more")]
    #[inline(always)]
    fn search(&mut self, kind: Kind, len: u32, own: Bin, requested: u64) -> Option<Taken> {
        let (chunks, vacant) = self.chunks.parts_to_fill();
        let (id, steps) = self.bins.best_fit(chunks, len, own);
        self.totals.searched(steps);
        if id == NO_CHUNK {
            if steps < WALK {
                // The own bin was searched to its end, and there is no higher one.
                self.count_miss();
                return None;
            }
            let id = self.sweep(kind, &Want::new(Granules(len), kind))?;
            return self.take_whole(id, requested);
        }
        if chunks[id as usize].len == len {
            self.bins.leave(chunks, id);
            self.totals.free_chunks -= 1;
            let chunk = &mut chunks[id as usize];
            return mark_allocated(chunk, id, requested, &mut self.segments, &mut self.totals);
        }
        self.totals.splits += 1;
        let front = cut(chunks, vacant, &mut self.bins, id, len);
        mark_allocated(&mut chunks[front as usize], front, requested, &mut self.segments, &mut self.totals)
    }

    /// Detaches `len` granules of a free chunk, `skip` granules from its beginning, as a chunk in no bin. What is before and behind
    /// stays free: the lower piece in its bin if it can, the other one enters its own.
    pub(super) fn detach(&mut self, kind: Kind, id: u32, skip: u32, len: u32) -> u32 {
        let whole = self.chunks[id].len;
        if skip == 0 && len < whole {
            let (chunks, vacant) = self.chunks.parts_to_fill();
            return cut(chunks, vacant, &mut self.bins, id, len);
        }
        self.totals.free_chunks -= 1;
        if skip == 0 {
            law!(H1, len == whole, "{len} granules are cut from chunk {id}, which has {whole}");
            self.bins.leave(self.chunks.all_mut(), id);
            return id;
        }
        let piece = self.chunks.split(id, skip);
        self.bins.resized(self.chunks.all_mut(), id);
        self.totals.free_chunks += 1;
        if self.chunks[piece].len > len {
            let tail = self.chunks.split(piece, len);
            self.bins.enter(self.chunks.all_mut(), tail, kind);
            self.totals.free_chunks += 1;
        }
        piece
    }

    /// A free chunk in no bin, of the length wanted, becomes an allocation.
    pub(super) fn take_whole(&mut self, id: u32, requested: u64) -> Option<Taken> {
        let chunk = &mut self.chunks[id];
        let state = chunk.state;
        law!(H4, state == Some(ChunkState::Free), "chunk {id} is {state:?} but handed out");
        law!(H4, chunk.bin == Bin::NONE, "chunk {id} is handed out while in a bin");
        mark_allocated(chunk, id, requested, &mut self.segments, &mut self.totals)
    }

    /// Takes a range back, allocated or in flight: it becomes free, with `stamp`, and merges with free neighbours; the
    /// merged chunk has the latest stamp. The caller has made sure that whatever other streams do to these bytes is
    /// complete or ordered before `stamp`.
    ///
    /// # Panics
    /// H7, when `chunk` and `generation` name nothing that is allocated or in flight: a double free.
    pub fn give(&mut self, chunk: ChunkId, generation: u32, stamp: Epoch) -> Given {
        let id = self.alive(chunk, generation, "give");
        let record = &mut self.chunks[id];
        record.tag = 0;
        if record.is(ChunkState::Allocated) {
            self.totals.count_free(record.len, record.requested);
        } else {
            self.totals.in_flight -= u64::from(record.len);
            self.totals.in_flight_chunks -= 1;
        }
        self.merge_free(id, stamp)
    }

    /// Takes a range back that has no tag ([`Heap::give`]); if it has one, returns `None` and does nothing.
    ///
    /// # Panics
    /// H7, when `chunk` and `generation` name nothing that is allocated: a double free.
    #[inline]
    pub fn give_untagged(&mut self, chunk: ChunkId, generation: u32, stamp: Epoch) -> Option<Given> {
        let Some(record) = self.chunks.all_mut().get_mut(chunk.0 as usize) else {
            self.stale(chunk, generation, "give")
        };
        if record.generation != generation || !record.is(ChunkState::Allocated) {
            self.stale(chunk, generation, "give")
        }
        if record.tag != 0 {
            return None;
        }
        self.totals.count_free(record.len, record.requested);
        Some(self.merge_free(chunk.0, stamp))
    }

    /// A chunk in no bin becomes free with `stamp`: it enters a bin, or a free neighbour absorbs it.
    #[inline]
    pub(super) fn merge_free(&mut self, id: u32, stamp: Epoch) -> Given {
        let (chunks, vacant) = self.chunks.parts_mut();
        let chunk = &mut chunks[id as usize];
        law!(H4, chunk.bin == Bin::NONE, "chunk {id} becomes free but is in a bin");
        let (slot, prev, next, len) = (chunk.segment, chunk.prev, chunk.next, chunk.len);
        let segment = &mut self.segments[slot];
        segment.free += len;
        let (bins, kind) = (&mut self.bins, segment.kind);
        let is_free = |id: u32| chunks[id as usize].is(ChunkState::Free);
        let (before, behind) = (is_free(prev), is_free(next));
        if !(before | behind) {
            let chunk = &mut chunks[id as usize];
            (chunk.state, chunk.stamp) = (Some(ChunkState::Free), stamp);
            bins.enter(chunks, id, kind);
            self.totals.free_chunks += 1;
            return Given { len: Granules(len), kind, free: ChunkId(id), free_len: Granules(len) };
        }
        let free = if before { prev } else { next };
        let both = before & behind;
        let is_same = !both && chunks[free as usize].is_uniform(stamp);
        if !is_same && segment.unit != 0 {
            segment.keep_stamps(chunks, id, stamp);
        }
        let mut stamp = stamp;
        if both {
            bins.leave(chunks, next);
            let theirs = chunks[next as usize].stamp;
            stamp = laws::merged_twice(stamp, theirs);
            chunk::absorb(chunks, vacant, id, next);
            self.totals.free_chunks -= 1;
            self.totals.merges += 1;
        }
        self.totals.merges += 1;
        let free_len = join(chunks, vacant, bins, free, id, stamp);
        Given { len: Granules(len), kind, free: ChunkId(free), free_len: Granules(free_len) }
    }

    /// Searches what the hot search did not see: chunks behind the sixteenth, and for aligned wants the bins above the next.
    #[cold]
    #[inline(never)]
    fn sweep(&mut self, kind: Kind, want: &Want) -> Option<u32> {
        let sought = want.sought(kind, &self.segments);
        let bins = &self.bins;
        let (fit, steps) = bins.sweep(self.chunks.all(), &sought, SWEEP, |_| true);
        let fit = fit.or_else(|| bins.certain(self.chunks.all(), &sought));
        self.totals.swept(steps);
        let Some(fit) = fit else {
            self.totals.failed += 1;
            return None;
        };
        Some(self.split_fit(kind, fit, want))
    }

    /// A take where the address matters, or from the bins of the other kind.
    #[cold]
    #[inline(never)]
    fn take_from(&mut self, kind: Kind, want: &Want, requested: u64) -> Option<Taken> {
        assert_holds(want.len, requested);
        let sought = want.sought(kind, &self.segments);
        let (fit, steps) = self.bins.best_fit_at(self.chunks.all(), &sought);
        self.totals.searched(steps);
        let id = match fit {
            Some(id) => self.split_fit(kind, id, want),
            None => self.sweep(kind, want)?,
        };
        self.take_whole(id, requested)
    }

    /// A free chunk that fits leaves its bin; the excess before and behind stays free.
    pub(super) fn split_fit(&mut self, kind: Kind, id: u32, want: &Want) -> u32 {
        let skip = self.segments.skip(&self.chunks[id], want.align.0);
        let behind = self.chunks[id].len.checked_sub(skip).and_then(|left| left.checked_sub(want.len.0));
        law!(H1, behind.is_some(), "chunk {id} is too short, by a skip of {skip}");
        self.totals.splits += u64::from(skip > 0) + u64::from(behind != Some(0));
        self.detach(kind, id, skip, want.len.0)
    }
}

/// The front of a longer free chunk as a record of its own in no bin; the rest stays free, and in its bin if it can.
#[allow(clippy::inline_always, reason = "it has two callers: as a call it costs the hot one 25 instructions")]
#[inline(always)]
fn cut(chunks: &mut [Chunk], vacant: &mut u32, bins: &mut Bins, id: u32, len: u32) -> u32 {
    let rest = &mut chunks[id as usize];
    let whole = rest.len;
    law!(H1, 0 < len && len < whole, "chunk {id} of {whole} granules cannot be split at {len}");
    let (from, to) = Bins::resize(rest, id, whole - len);
    let front = chunk::cut_front(chunks, vacant, id, len);
    if from != to {
        bins.rebin(id, from, to);
    }
    front
}

/// A free chunk in no bin becomes an allocation, and is counted.
#[inline]
fn mark_allocated(
    chunk: &mut Chunk,
    id: u32,
    requested: u64,
    segments: &mut Segments,
    totals: &mut Totals,
) -> Option<Taken> {
    chunk.state = Some(ChunkState::Allocated);
    chunk.generation = chunk.generation.wrapping_add(1);
    chunk.requested = requested;
    chunk.tag = 0;
    let segment = &mut segments[chunk.segment];
    segment.free -= chunk.len;
    totals.allocations += 1;
    totals.requested_bytes += requested;
    totals.allocated += u64::from(chunk.len);
    if totals.allocated > totals.allocated_peak {
        totals.allocated_peak = totals.allocated;
    }
    Taken::new(ChunkId(id), chunk.generation, segment.base.offset(Granules(chunk.offset())))
}

/// A free chunk absorbs its neighbour, which is in no bin and thereby becomes free with `stamp`. Returns the new length.
/// There is no branch on which of the two comes first: their lower place and their sum are the same either way.
#[inline]
fn join(chunks: &mut [Chunk], vacant: &mut u32, bins: &mut Bins, free: u32, id: u32, stamp: Epoch) -> u32 {
    let more = chunks[id as usize].len;
    let chunk = &mut chunks[free as usize];
    let len = chunk.len + more;
    let (from, to) = Bins::resize(chunk, free, len);
    chunk::merge(chunks, vacant, free, id, len, stamp);
    if from != to {
        bins.rebin(free, from, to);
    }
    len
}

impl Want {
    /// What the bins search for among the chunks of one kind, where the address matters.
    pub(super) fn sought<'a>(&self, kind: Kind, segments: &'a Segments) -> Sought<'a> {
        assert!(self.len.0 > 0, "a want of no bytes: the allocator answers zero-byte requests itself");
        assert!(self.align.0.is_power_of_two(), "the alignment of a want is a power of two, 1 at least");
        Sought { kind, len: self.len.0, align: self.align.0, segments }
    }
}

/// The rounded request holds the requested bytes, and is not zero.
#[inline]
fn assert_holds(len: Granules, requested: u64) {
    assert!(len.0 > 0, "a want of no bytes: the allocator answers zero-byte requests itself");
    assert!(requested <= len.bytes(), "a take of fewer granules than were requested");
}
