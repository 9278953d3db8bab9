//! Handles: which slot and which use of it. H7 is checked here.
//!
//! A handle is a chunk's slot with a generation. Every operation that takes one uses this file, in release builds
//! too, because a handle that was given back once and is used again would hand the same bytes to two owners. It does
//! not know who keeps handles, nor what the caller's tag means.

use super::{ChunkId, ChunkState, Heap, broken};
use crate::units::{Addr, Epoch, Granules, SegmentId};

/// An allocation as its heap knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkView {
    /// Allocated or in flight.
    pub state: ChunkState,
    /// The segment.
    pub segment: SegmentId,
    /// Where in the segment.
    pub offset: Granules,
    /// The first address.
    pub addr: Addr,
    /// How long.
    pub len: Granules,
    /// The requested bytes.
    pub requested: u64,
    /// Allocated: its birth stamp. In flight: the home stamp.
    pub stamp: Epoch,
    /// The caller's tag.
    pub tag: u32,
}

impl Heap {
    /// What the heap knows of an allocation, or `None` when `chunk` and `generation` name nothing that is allocated or
    /// in flight: for handles from outside, which may be stale.
    pub fn lookup(&self, chunk: ChunkId, generation: u32) -> Option<ChunkView> {
        let record = self.chunks.get(chunk)?;
        let state = record.state.filter(|s| matches!(s, ChunkState::Allocated | ChunkState::InFlight))?;
        let segment = &self.segments[record.segment];
        (record.generation == generation).then(|| ChunkView {
            state,
            segment: segment.id,
            offset: Granules(record.offset()),
            addr: segment.base.offset(Granules(record.offset())),
            len: Granules(record.len),
            requested: record.requested,
            stamp: record.stamp,
            tag: record.tag,
        })
    }

    /// What the heap knows of an allocation.
    ///
    /// # Panics
    /// H7, when `chunk` and `generation` name nothing that is allocated or in flight.
    pub fn view(&self, chunk: ChunkId, generation: u32) -> ChunkView {
        match self.lookup(chunk, generation) {
            Some(view) => view,
            None => self.stale(chunk, generation, "view"),
        }
    }

    /// Every live allocation, by segment and address, with its generation.
    pub fn allocated(&self) -> Vec<(ChunkId, u32, ChunkView)> {
        let mut all = Vec::new();
        for segment in self.segments.iter() {
            for at in self.chunks.around(segment.sentinel) {
                let chunk = &self.chunks[at];
                if chunk.is(ChunkState::Allocated) {
                    all.push((ChunkId(at), chunk.generation, self.view(ChunkId(at), chunk.generation)));
                }
            }
        }
        all
    }

    /// The length of a live allocation.
    ///
    /// # Panics
    /// H7, when the slot is neither allocated nor in flight.
    pub fn allocated_len(&self, chunk: ChunkId) -> Granules {
        Granules(self.chunks[self.in_use(chunk, "allocated_len")].len)
    }

    /// The caller's number for an allocation; 0 when it was just taken.
    ///
    /// # Panics
    /// H7, when the slot is neither allocated nor in flight.
    pub fn tag(&self, chunk: ChunkId) -> u32 {
        self.chunks[self.in_use(chunk, "tag")].tag
    }

    /// Stores one number for the caller with an allocation, until it is free. The heap never reads it.
    ///
    /// # Panics
    /// H7, when the slot is neither allocated nor in flight.
    pub fn set_tag(&mut self, chunk: ChunkId, tag: u32) {
        let id = self.in_use(chunk, "set_tag");
        self.chunks[id].tag = tag;
    }

    /// Sets a later stamp for a chunk in use: something was queued on the home stream after it was handed out, and before
    /// its owner had it.
    ///
    /// # Panics
    /// H7: the generation does not match.
    pub fn set_stamp(&mut self, chunk: ChunkId, generation: u32, stamp: Epoch) {
        let id = self.alive(chunk, generation, "set_stamp");
        self.chunks[id].stamp = stamp;
    }

    /// H7: the slot of a live handle.
    #[inline]
    pub(super) fn alive(&self, chunk: ChunkId, generation: u32, verb: &'static str) -> u32 {
        match self.chunks.get(chunk) {
            Some(c)
                if c.generation == generation
                    && (c.is(ChunkState::Allocated) || c.is(ChunkState::InFlight)) =>
            {
                chunk.0
            }
            _ => self.stale(chunk, generation, verb),
        }
    }
    /// H7 without a generation.
    #[inline]
    fn in_use(&self, chunk: ChunkId, verb: &'static str) -> u32 {
        match self.chunks.get(chunk) {
            Some(c) => self.alive(chunk, c.generation, verb),
            None => self.stale(chunk, 0, verb),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn stale(&self, chunk: ChunkId, generation: u32, verb: &'static str) -> ! {
        match self.chunks.get(chunk) {
            None => broken(
                "H7",
                format_args!("{verb} of {chunk}.{generation}: this heap has {} slots", self.chunks.slots()),
            ),
            Some(c) => broken(
                "H7",
                format_args!(
                    "{verb} of {chunk}.{generation}, but the slot is at generation {} and {}: freed twice, or a handle of another heap",
                    c.generation,
                    c.state.map_or("vacant", ChunkState::name)
                ),
            ),
        }
    }
}
