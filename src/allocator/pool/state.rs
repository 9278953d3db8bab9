//! What a pool keeps under its lock, and what is done with that alone. A pool of pinned memory keeps the same.
//!
//! It does not know the lock, other pools, the stream that the pool belongs to, nor which notifications follow a change here.

use crate::allocator::registry::Registry;
use crate::allocator::registry::uses::{bound, conflicts};
use crate::driver::Driver;
use crate::heap::{ChunkId, ChunkView, Cut, Heap, Kind, Taken, Want};
use crate::order::{self, InFlight, PendingSet, TimelineId, Uses};
use crate::report::Counters;
use crate::sync::{Arc, Ordering, plain};
use crate::units::{Granules, SegmentId};
use hashbrown::HashMap;
use smallvec::SmallVec;

/// Pools are numbered across the process, so that an `AllocationId` never means two things.
static NEXT_POOL: plain::AtomicU32 = plain::AtomicU32::new(1);

/// A pool's number in this process.
///
/// # Panics
/// After 2^32 pools in one process.
pub(crate) fn next_pool_number() -> u32 {
    let n = NEXT_POOL.fetch_add(1, Ordering::Relaxed);
    assert!(n != 0, "2^32 pools in one process");
    n
}

/// What another module keeps with something of the allocator's.
#[cfg(feature = "cuda")]
pub(crate) type Extension = std::sync::OnceLock<Box<dyn core::any::Any + Send + Sync>>;

/// References to a pool in its own state. Dropping it loses them: [`Pool::leave`](super::Pool::leave) is what ends them.
#[derive(Default)]
pub(crate) struct Refcounts(pub(in super::super) u32);

/// What the pool's lock protects.
pub(crate) struct PoolState {
    pub(crate) heap: Heap,
    pub(crate) watch: Watch,
    /// References for future handles.
    pub(crate) refcounts: Refcounts,
    /// The bounds that [`Pool::longest_hint`](super::Pool::longest_hint) returns.
    pub(super) longest: [u32; 2],
    /// An upper bound of the longest range in flight, in granules, for the index of all pools (F3 in `sources`).
    pub(in super::super) longest_in_flight: u32,
    /// By kind: whether it may stand aside ([`sources`](super::super::sources)); and the number of looks in vain, since something entered it, that did
    /// not reach every long enough range.
    pub(super) aside: [bool; 2],
    pub(super) in_vain: [u32; 2],
    /// Sizes of all requests: how many had more than 2^(k-1) and at most 2^k granules.
    pub(in super::super) sizes: [u64; 33],
    /// What only misses and frees with cross-stream uses count; [`PoolState::counters`] has all counters.
    pub(crate) counters: Counters,
    /// Allocations served by misses.
    pub(super) missed: u64,
    pub(super) owned_peak: u64,
    /// The peak of live bytes before this stretch (`peaks`).
    pub(super) former_peak: u64,
    pub(crate) in_flight: InFlight,
    /// Bytes that [`Miss::order_older_half`](super::super::miss::Miss::order_older_half) left in flight the last time.
    pub(crate) left_in_flight: u64,
    pub(in super::super) uses: UseSlab,
    pub(in super::super) names: HashMap<u32, Arc<str>>,
    /// Handles of the stream that users hold.
    pub(crate) streams: usize,
    /// The stream is gone: only complete ranges enter, with stamp 0, or ranges that return unchanged.
    pub(crate) closed: bool,
}

/// What a free has to do besides the heap's part: nearly always nothing, and then the check is one comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watch(u8);

impl Watch {
    /// The stream is gone or going: the last free closes the pool.
    pub(crate) const LEAVING: Watch = Watch(1);
    /// The allocator and all its streams are gone: the last free here ends the pool.
    pub(crate) const ORPHAN: Watch = Watch(2);
    /// Another pool's miss searched here: frees raise the due flag, so that their ranges can migrate early.
    pub(crate) const SEARCHED: Watch = Watch(4);
    /// Some allocation has a name.
    pub(super) const NAMED: Watch = Watch(8);
    /// There are sinks for events.
    pub(super) const RECORDING: Watch = Watch(16);

    #[inline]
    pub(crate) fn set(&mut self, what: Watch) {
        self.0 |= what.0;
    }
    pub(crate) fn clear(&mut self, what: Watch) {
        self.0 &= !what.0;
    }
    pub(super) fn has(self, what: Watch) -> bool {
        self.0 & what.0 != 0
    }
    #[inline]
    pub(crate) fn is_calm(self) -> bool {
        self.0 == 0
    }
}

/// The uses of allocations that other streams used: a side table, indexed by the chunk's tag.
#[derive(Default)]
pub(in super::super) struct UseSlab {
    pub(in super::super) slots: Vec<Uses>,
    free: Vec<u32>,
}

impl UseSlab {
    /// The uses with this tag; tag 0 means that there are none yet, and a new tag is returned.
    pub(in super::super) fn get_or_add(&mut self, tag: u32) -> (u32, &mut Uses) {
        let tag = if tag != 0 {
            tag
        } else if let Some(t) = self.free.pop() {
            t
        } else {
            self.slots.push(Uses::default());
            u32::try_from(self.slots.len()).expect("2^32 allocations with cross-stream uses")
        };
        (tag, &mut self.slots[tag as usize - 1])
    }
    /// Takes the uses with this tag, which is free from here on.
    pub(in super::super) fn take(&mut self, tag: u32) -> Uses {
        if tag == 0 {
            return Uses::default();
        }
        self.free.push(tag);
        core::mem::take(&mut self.slots[tag as usize - 1])
    }
}

/// What a free left for its caller to do, once the pool is unlocked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFree {
    /// Nothing.
    Done,
    /// The pool has no allocation left and its stream is gone: it may close.
    Empty,
    /// The pool has no allocation left and the allocator is gone too: one orphan fewer.
    Orphaned,
}

impl PoolState {
    /// An empty state, without handles of a stream.
    pub(crate) fn new() -> PoolState {
        PoolState {
            heap: Heap::new(),
            watch: Watch(0),
            refcounts: Refcounts::default(),
            longest: [0; 2],
            longest_in_flight: 0,
            aside: [false; 2],
            in_vain: [0; 2],
            sizes: [0; 33],
            counters: Counters::default(),
            missed: 0,
            owned_peak: 0,
            former_peak: 0,
            in_flight: InFlight::new(),
            left_in_flight: 0,
            uses: UseSlab::default(),
            names: HashMap::new(),
            streams: 0,
            closed: false,
        }
    }

    /// The uses of a live allocation; an empty set is made if it has none. The heap panics if the generation does not match (H7).
    pub(in super::super) fn with_uses<D: Driver, R>(
        &mut self,
        (registry, driver): (&Registry<D>, &D),
        (chunk, generation): (ChunkId, u32),
        then: impl FnOnce(&mut Uses) -> R,
    ) -> R {
        let tag = self.heap.view(chunk, generation).tag;
        let (tag, uses) = self.uses.get_or_add(tag);
        let result = then(uses);
        bound(uses, registry, driver);
        self.heap.set_tag(chunk, tag);
        result
    }

    /// Which uses by other streams an access on `to` has to come after.
    pub(in super::super) fn conflicts<D: Driver>(
        &mut self,
        registry: &Registry<D>,
        (chunk, generation): (ChunkId, u32),
        (to, access): (TimelineId, order::Access),
    ) -> PendingSet {
        match self.heap.view(chunk, generation).tag {
            0 => PendingSet::new(),
            tag => conflicts(self.uses.get_or_add(tag).1, registry, to, access),
        }
    }

    /// Ends the uses of an allocation at its free. Returns what the allocation was and the uses it had.
    pub(in super::super) fn end_uses(&mut self, chunk: ChunkId, generation: u32) -> (ChunkView, Uses) {
        let view = self.heap.view(chunk, generation);
        let uses = self.uses.take(view.tag);
        self.heap.set_tag(chunk, 0);
        (view, uses)
    }

    /// A hit at an aligned address, or of exact fits only: the rare cases.
    pub(crate) fn hit_rare(&mut self, want: &Want, requested: u64, exact: bool) -> Option<Taken> {
        let taken =
            if exact { self.heap.take_exact(want, requested) } else { self.heap.take(want, requested) };
        let taken = taken?;
        self.count_size(want.len);
        Some(taken)
    }

    /// Takes a chunk for a miss that searches again or has reserved something, and counts the miss.
    pub(crate) fn take(&mut self, want: &Want, requested: u64, exact: bool) -> Option<Taken> {
        let taken = self.hit_rare(want, requested, exact)?;
        self.missed += 1;
        Some(taken)
    }

    /// Takes a chunk for a miss that reserved this free one, or found it: it serves, of whichever kind it is, and however many near
    /// misses an aligned request would pass before it.
    pub(crate) fn take_brought(&mut self, want: &Want, requested: u64, brought: ChunkId) -> Option<Taken> {
        if let Some(taken) = self.take(want, requested, false) {
            return Some(taken);
        }
        let taken = self.heap.take_of(brought, want, requested)?;
        self.count_size(want.len);
        self.missed += 1;
        Some(taken)
    }

    /// Takes a part of a free chunk for a miss that knows what is behind the addresses.
    pub(crate) fn take_at(
        &mut self,
        chunk: ChunkId,
        offset: Granules,
        len: Granules,
        requested: u64,
    ) -> Option<Taken> {
        let taken = self.heap.take_at(chunk, offset, len, requested)?;
        self.count_size(len);
        self.missed += 1;
        Some(taken)
    }

    /// A range leaves ([`Heap::cut`]). A segment of which nothing is left is forgotten: since all streams' memory may pass through
    /// all pools, each pool would otherwise come to know every segment.
    pub(crate) fn cut(&mut self, chunk: ChunkId, offset: Granules, len: Granules) -> Cut {
        let cut = self.heap.cut(chunk, offset, len);
        self.heap.remove_segment(cut.segment);
        cut
    }

    /// Cuts out all free ranges of a segment.
    pub(crate) fn cut_free_of(&mut self, segment: SegmentId) -> Vec<Cut> {
        let cuts = self.heap.cut_free_of(segment);
        self.heap.remove_segment(segment);
        cuts
    }

    /// All free bytes of a part of a segment leave, unless some of the part is in use here.
    pub(crate) fn cut_free_in(
        &mut self,
        segment: SegmentId,
        offset: Granules,
        len: Granules,
        steps: usize,
    ) -> Option<SmallVec<[Cut; 1]>> {
        let cuts = self.heap.cut_free_in(segment, offset, len, steps)?;
        self.heap.remove_segment(segment);
        Some(cuts)
    }

    /// How many free ranges of a kind another pool's miss looks at, if its first look has `steps`.
    pub(in super::super) fn steps(&self, kind: Kind, steps: usize) -> usize {
        steps << self.in_vain[kind as usize]
    }

    /// Takes the other kind's space: only before the pool would grow.
    pub(crate) fn take_across(&mut self, want: &Want, requested: u64) -> Option<Taken> {
        let taken = self.heap.take_across(want, requested)?;
        self.count_size(want.len);
        self.missed += 1;
        Some(taken)
    }

    /// Decided in the hold of the lock in which the last allocation went: pools are orphaned under it too.
    pub(in super::super) fn after_free(&self) -> AfterFree {
        if !self.watch.has(Watch::LEAVING) || self.heap.live() > 0 {
            AfterFree::Done
        } else if self.watch.has(Watch::ORPHAN) {
            AfterFree::Orphaned
        } else {
            AfterFree::Empty
        }
    }

    pub(crate) fn set_name(&mut self, chunk: ChunkId, name: Arc<str>) {
        self.names.insert(chunk.index(), name);
        self.watch.set(Watch::NAMED);
    }

    pub(crate) fn name(&self, chunk: ChunkId) -> Option<&Arc<str>> {
        self.names.get(&chunk.index())
    }
}
