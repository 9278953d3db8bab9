//! The ranges of one pool: which bytes of which segments are free, handed out, in flight or absent.
//!
//! The heap hands out ranges of segments that were added to it, takes them back, merges them, and lets ranges arrive and
//! leave. It has one owner (`&mut self`). It never sees a driver, a stream or a clock: a stamp is a number of its
//! pool's own stream that it keeps, returns and takes the maximum of. It can fail only by a bug, its own or its
//! caller's, and then it panics with the number of the broken law.
//!
//! # Picture
//!
//! A segment is one contiguous range of device memory. Several heaps may have a record of the same one; in each of them
//! chunks tile the *whole* segment, with `Absent` for the bytes that are not here. So a source and a receiver are alike,
//! a migrated range merges with its neighbours without special code, and a segment goes back to the device when every heap's part of it
//! is cut out.
//!
//! ```text
//!              0        16          48   64                    128
//!   heap A     | alloc  |  Free     | in flight | ···· Absent ···· |
//!   heap B     | ···········  Absent  ············|  Free  | alloc |
//! ```
//!
//! A chunk is always in one of these states:
//!
//! ```text
//!   Vacant ─► Free ─take─► Allocated ─give─► Free
//!              ▲ │              └─────hold─► InFlight ─give─► Free
//!        extend│ │cut                           └──────cut──► Absent
//!              Absent
//! ```
//!
//! # Laws
//!
//! With `c` a chunk, `s` a segment, lengths and offsets in granules of 512 bytes:
//!
//! * **H1** chunks tile: with `e` the sentinel of `s`, `offset(next(e)) = 0`, `offset(next(c)) = offset(c) + len(c)`, and in the
//!   list of `e` and its chunks `prev(next(c)) = c`; `len(c) > 0`, `Σ len(c in s) = len(s)`.
//! * **H2** neighbours differ: no `c` with `state(c) = state(next(c)) = Free`, nor both Absent.
//! * **H3** `state(c) = Free ⇔ c` is in the bin of `len(c)` of its segment's kind, once, and in no other, and its record names
//!   that bin; in the list of a bin and its chunks `prev(next(c)) = c`; `bit(b) = 1 ⇔ b` is not empty.
//! * **H4** `c` in a bin `⇒ state(c) = Free`: chunks that are allocated, in flight or absent are in none.
//! * **H5** `free + allocated + in flight = owned`, each the sum of its chunks' lengths; `here(s)` and `free(s)` likewise,
//!   segment by segment.
//! * **H6** `base(s)` and `len(s)` are whole granules, inside the address space, and no two segments overlap.
//! * **H7** a handle's generation is its slot's, and its chunk is allocated or in flight: checked wherever a handle is used.
//! * **H8** `largest_free(kind) ≥ len(c)` for every Free `c` of that kind, and one such `c` is in the same bin.
//! * **H9** a vacant slot is linked only in the list of vacant slots, once; an Absent chunk has no bytes here, and
//!   the index of Absent chunks has exactly those, each under its segment and offset.
//! * **H10** a part of a Free `c` has a stamp ([`Heap::stamp_of`]) that is no earlier than that of any entry of its bytes, and no later than
//!   `stamp(c)`; a unit of a window that is all Absent has none.
//!
//! [`Heap::check`] checks all of them. The O(1) parts whose breach would give one byte two owners (H1 at splits and
//! merges, H3 and H4 where a chunk enters or leaves a bin, H7 at each handle) are checked in release builds too.
//!
//! # Cost
//!
//! A take and a give together: a few hundred instructions, no allocation (the slab's growth aside), no hashing, at most
//! 32 chunks looked at. Arriving and leaving, and segments, are cold: they use a tree.

/// Asserts a law by its number; the message is built out of line. Its values are copied there, not referred to:
/// a reference would keep them in memory on the hot path.
macro_rules! law {
    ($number:ident, $holds:expr, $($what:tt)+) => {
        if !$holds {
            $crate::heap::broken_by(stringify!($number), move || format!($($what)+));
        }
    };
}

mod bins;
mod border;
mod check;
mod chunk;
mod handle;
mod hit;
mod runs;
mod segment;
mod snapshot;
mod stamps;
#[cfg(test)]
mod tests;
mod units;

pub use border::{Cut, Found};
pub use chunk::{ChunkId, ChunkState};
pub use handle::ChunkView;
pub use hit::{Request, Taken};
pub use runs::{Hole, Run};
pub use segment::SegmentView;
pub use snapshot::{FreeRange, RangeMap, Ripe, SegmentMap, Snapshot, Stats};

use crate::units::{Addr, Epoch, GRANULE_BYTES, Granules, SegmentId};
use bins::Bins;
use chunk::Slab;
use core::fmt;
use segment::Segments;
use snapshot::Totals;
use std::collections::BTreeMap;

/// Which requests a segment serves: a heap keeps two kinds of them apart. On a device small ones live apart, so that long-lived small chunks do
/// not pin large ranges; a pool of pinned memory has names of its own for the two kinds that it separates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Small requests.
    Small,
    /// Large requests.
    Large,
}

impl Kind {
    /// Both, in the order of their bins.
    pub const ALL: [Kind; 2] = [Kind::Small, Kind::Large];

    /// The other kind.
    #[must_use]
    pub const fn other(self) -> Kind {
        match self {
            Kind::Small => Kind::Large,
            Kind::Large => Kind::Small,
        }
    }
}

/// A request to a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// How much; not zero.
    pub len: Granules,
    /// The address is a multiple of this, in granules: a power of two, 1 if nothing special.
    pub align: Granules,
    /// Which segments.
    pub kind: Kind,
}

impl Want {
    /// `len` granules of `kind`, aligned to a granule.
    pub const fn new(len: Granules, kind: Kind) -> Want {
        Want { len, align: Granules(1), kind }
    }

    /// Whether a range of `len` at this address holds it: an alignment may skip the front.
    pub const fn fits_at(&self, addr: Addr, len: Granules) -> bool {
        let skip = (addr.0 / GRANULE_BYTES).wrapping_neg() & (self.align.0 as u64 - 1);
        len.0 as u64 >= self.len.0 as u64 + skip
    }

    /// The bytes of a range that holds it at any address: an alignment may skip the front.
    pub const fn bytes_anywhere(&self) -> u64 {
        self.len.bytes() + self.align.bytes().saturating_sub(Granules(1).bytes())
    }
}

/// A free chunk, as it is after ranges merged into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeChunk {
    /// The slot, valid until the next operation that changes the heap.
    pub chunk: ChunkId,
    /// The segment.
    pub segment: SegmentId,
    /// Where in the segment.
    pub offset: Granules,
    /// How long, neighbours included.
    pub len: Granules,
    /// The latest stamp of all that merged.
    pub stamp: Epoch,
}

/// The result of a give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// The range's own length.
    pub len: Granules,
    /// The kind of its segment.
    pub kind: Kind,
    /// The free chunk that the range is part of now: valid until the next operation that changes the heap.
    pub free: ChunkId,
    /// The length of that chunk, neighbours included.
    pub free_len: Granules,
}

/// The ranges of one pool.
#[derive(Clone)]
pub struct Heap {
    chunks: Slab,
    bins: Bins,
    segments: Segments,
    /// The Absent chunks by place: for [`Heap::extend`] to find the one that an offset lies in.
    absent: BTreeMap<(SegmentId, u32), u32>,
    totals: Totals,
}

impl Heap {
    /// A heap that knows no segment.
    pub const fn new() -> Heap {
        Heap {
            chunks: Slab::new(),
            bins: Bins::new(),
            segments: Segments::new(),
            absent: BTreeMap::new(),
            totals: Totals::new(),
        }
    }

    /// Takes a range back that other streams may still use: it is in flight, in no bin, with its home `stamp`, until a
    /// [`give`](Heap::give) or a [`cut`](Heap::cut). Its id and generation stay.
    ///
    /// # Panics
    /// H7, when `chunk` and `generation` name nothing that is allocated: a double free.
    pub fn hold(&mut self, chunk: ChunkId, generation: u32, stamp: Epoch) {
        let id = self.alive(chunk, generation, "hold");
        let chunk = &mut self.chunks[id];
        law!(H7, chunk.is(ChunkState::Allocated), "chunk {id}.{generation} is held twice: it is in flight");
        chunk.state = Some(ChunkState::InFlight);
        chunk.stamp = stamp;
        self.totals.count_free(chunk.len, chunk.requested);
        self.totals.in_flight += u64::from(chunk.len);
        self.totals.in_flight_chunks += 1;
    }

    /// The addresses of the records that hits write: the chunks', the segments'.
    #[doc(hidden)]
    pub fn records(&self) -> [core::ops::Range<usize>; 2] {
        [self.chunks.addresses(), self.segments.addresses()]
    }
}

impl Default for Heap {
    fn default() -> Heap {
        Heap::new()
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Panics for a broken law ([`broken`]), with a message that is still to be formatted.
#[cold]
#[inline(never)]
fn broken_by(number: &str, what: impl FnOnce() -> String) -> ! {
    panic!("heap law {number} is broken: {}", what())
}

/// A law does not hold: the program must not go on and hand out memory.
#[cold]
#[inline(never)]
fn broken(number: &str, what: fmt::Arguments<'_>) -> ! {
    panic!("heap law {number} is broken: {what}")
}
