//! One stream's memory in one allocator: its heap, the ranges in flight, the uses of its allocations, its counters,
//! behind one lock.
//!
//! Nothing here calls the driver or user code, so a drop, which may happen at any time on any thread, never waits for
//! either (O9). `fast` has what a hit and a plain free do.
//!
//! It does not know other pools: `migrate` moves ranges between them.

mod figures;
pub(super) mod pieces;
pub(super) mod state;
pub(super) mod store;

use super::core::Core;
use super::registry::StreamTimeline;
use super::registry::uses::release_open;
use crate::driver::Driver;
use crate::heap::{ChunkId, Kind};
use crate::laws::{self, cost, steps};
use crate::order::{self, Pending, TimelineId};
use crate::sync::atomic::AtomicU32;
use crate::sync::{Arc, Ordering, Quick, Rank, Ranked, RankedGuard};
use crate::trace::Event;
use crate::units::{Addr, AllocationId, Epoch, Granules};
#[cfg(feature = "cuda")]
use state::Extension;
pub(crate) use state::{AfterFree, PoolState, Watch};
use store::Store;

/// How many times looks in vain double the number of ranges that the next one looks at: from 64 ranges to 65,536.
const IN_VAIN: u32 = 10;

/// What one stream owns in one allocator.
pub(crate) struct Pool<D: Driver> {
    pub(crate) core: Arc<Core<D>>,
    pub(crate) timeline: Arc<StreamTimeline<D>>,
    /// Its number in this process, never used twice.
    pub(crate) number: u32,
    /// A copy of [`Core::small_bytes`], so that a hit reads nothing of the core, where misses of all threads write.
    pub(crate) small_bytes: u64,
    state: Shared,
    /// What another module keeps with the pool while it has allocations (`interop`: the stream as another library
    /// represents it).
    #[cfg(feature = "cuda")]
    pub(crate) extension: Extension,
    /// One grower a pool at a time; held over driver calls, and never taken by a free.
    pub(crate) grower: Ranked<()>,
}

/// What other threads access, on cache lines of its own.
#[repr(align(128))]
struct Shared {
    state: Ranked<PoolState, Quick>,
    /// An upper bound of the longest free range of each kind in granules, which saves a search by another pool's miss a lock. Written under the lock.
    longest: [AtomicU32; 2],
}

/// A pool, locked.
pub(crate) type Held<'a> = RankedGuard<'a, PoolState, Quick>;

impl<D: Driver> Pool<D> {
    pub(crate) fn new(core: Arc<Core<D>>, timeline: Arc<StreamTimeline<D>>, number: u32) -> Pool<D> {
        let mut state = PoolState { streams: 1, ..PoolState::new() };
        if core.is_recording() {
            state.watch.set(Watch::RECORDING);
        }
        Pool {
            small_bytes: core.small_bytes,
            core,
            timeline,
            number,
            state: Shared {
                state: Ranked::new(Rank::Pool, state),
                longest: [AtomicU32::new(0), AtomicU32::new(0)],
            },
            #[cfg(feature = "cuda")]
            extension: Extension::new(),
            grower: Ranked::new(Rank::Grower, ()),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Held<'_> {
        self.state.state.lock()
    }

    pub(crate) fn id_of(&self, chunk: ChunkId, generation: u32) -> AllocationId {
        AllocationId { pool: self.number, chunk: chunk.index(), generation }
    }

    /// An upper bound of the longest free range of a kind, without the lock.
    pub(crate) fn longest_hint(&self, kind: Kind) -> u32 {
        self.state.longest[kind as usize].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn publish_longest(&self, state: &mut PoolState, kind: Kind, longest: Granules) {
        if cost::raises_bound(longest.0, state.longest[kind as usize]) {
            self.set_longest(state, kind, longest);
        }
    }

    /// Lowers the bounds to what a search found.
    pub(crate) fn tighten_longest(&self, state: &mut PoolState) {
        for kind in Kind::ALL {
            let longest = state.heap.largest_free(kind);
            if longest.0 != state.longest[kind as usize] {
                self.set_longest(state, kind, longest);
            }
        }
    }

    /// A search by another pool's miss for `len`, which looked at `steps` free ranges of a kind at most, found none that it may
    /// have. The next one looks at twice as many, until it is known which of all long enough ranges are complete.
    pub(super) fn search_failed(&self, state: &mut PoolState, kind: Kind, len: Granules, steps: usize) {
        self.tighten_longest(state);
        let sources = &self.core.sources;
        if !sources.are_many(kind) {
            return;
        }
        let k = kind as usize;
        let complete = self.timeline.seen();
        let ripe = state.heap.ripe(kind, steps, complete);
        let known = ripe.longest < len;
        let aside = sources.set_aside(self.number, kind, &self.timeline, state.longest[k], ripe, complete);
        state.aside[k] |= aside;
        if !(aside && known) {
            state.in_vain[k] = (state.in_vain[k] + 1).min(IN_VAIN);
        }
    }

    /// A range entered, which may be complete: other pools' misses have to look here again.
    pub(super) fn entered(&self, state: &mut PoolState, kind: Kind) {
        let k = kind as usize;
        state.in_vain[k] = 0;
        if cost::calls_back(state.aside[k]) {
            state.aside[k] = false;
            self.core.sources.bring_back(self.number, kind);
        }
    }

    /// Cold: called for a free that makes a range longer than the pool has had since the last search, or for a search (F1 in `sources`).
    #[cold]
    #[inline(never)]
    fn set_longest(&self, state: &mut PoolState, kind: Kind, longest: Granules) {
        let before = core::mem::replace(&mut state.longest[kind as usize], longest.0);
        self.state.longest[kind as usize].store(longest.0, Ordering::Relaxed);
        self.core.sources.moved(self.number, kind, before, longest.0);
    }

    /// Lowers the bound to what a search of the ranges in flight found.
    pub(super) fn tighten_in_flight(&self, state: &mut PoolState) {
        let longest = state.in_flight.longest().0;
        if longest != state.longest_in_flight {
            self.set_longest_in_flight(state, longest);
        }
    }

    /// Cold, as [`Pool::set_longest`] is: not for each range, but for each that is longer than those since the last search.
    #[cold]
    #[inline(never)]
    pub(super) fn set_longest_in_flight(&self, state: &mut PoolState, longest: u32) {
        let before = core::mem::replace(&mut state.longest_in_flight, longest);
        self.core.sources.flown(self.number, before, longest);
    }

    /// Panics unless F1 to F3 hold of this pool by itself. Returns the bounds that the index of all pools must have for it: of each
    /// kind, and of what is in flight.
    pub(super) fn check_source(&self, state: &PoolState) -> (u32, [u32; 3]) {
        for kind in Kind::ALL {
            let (longest, bound) = (state.heap.longest_free_of(kind).0, state.longest[kind as usize]);
            assert!(
                cost::is_bound(longest, bound),
                "F1: {self:?} has {longest} granules, {kind:?}, of at most {bound}"
            );
            assert_eq!(
                bound,
                self.longest_hint(kind),
                "F1: {self:?} says another bound than it has, {kind:?}"
            );
        }
        self.core.sources.check_aside(self.number, &self.timeline, &state.heap);
        let (longest, bound) = (state.in_flight.longest().0, state.longest_in_flight);
        assert!(
            cost::is_bound(longest, bound),
            "F3: {self:?} has {longest} granules in flight, of at most {bound}"
        );
        let [small, large] = state.longest;
        (self.number, [small, large, bound])
    }

    /// What a free does besides the heap's part, if the watch has any flag set.
    #[cold]
    #[inline(never)]
    pub(crate) fn after_merge(
        &self,
        state: &mut PoolState,
        chunk: ChunkId,
        generation: u32,
        addr: Addr,
        len: Granules,
        in_flight: bool,
    ) -> AfterFree {
        if state.watch.has(Watch::NAMED) {
            state.names.remove(&chunk.index());
            if state.names.is_empty() {
                state.watch.clear(Watch::NAMED);
            }
        }
        if state.watch.has(Watch::SEARCHED) && self.timeline.note_unmarked(len.bytes()) {
            state.watch.clear(Watch::SEARCHED);
            self.core.registry.request_maintenance(&self.timeline);
        }
        if state.watch.has(Watch::RECORDING) {
            self.core.record(Event::Free {
                id: self.id_of(chunk, generation),
                addr,
                rounded: len.bytes(),
                stream: self.timeline.info.id,
                in_flight,
            });
        }
        state.after_free()
    }

    /// A free of an allocation with uses on other streams, or by unknown ones.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_used(
        &self,
        mut guard: Held<'_>,
        chunk: ChunkId,
        generation: u32,
        unknown: bool,
    ) -> AfterFree {
        let registry = &self.core.registry;
        let (view, uses) = guard.end_uses(chunk, generation);
        steps::seal_then_release(
            || {
                let mut state = guard;
                pause_point!("unsealed");
                let of = (&view, &uses);
                let in_flight = self.free_behind(registry, &mut state, (chunk, generation), of, unknown);
                self.after_merge(&mut state, chunk, generation, view.addr, view.len, in_flight)
            },
            || release_open(registry, &uses),
        )
    }

    /// Registers a use on `on` until the free, or until no other code can queue work there any more.
    pub(crate) fn declare_use(&self, chunk: ChunkId, generation: u32, on: &StreamTimeline<D>) {
        self.with_uses(chunk, generation, |uses| {
            if !laws::stays_open() {
                uses.exact(on.id, order::Access::Write, on.stamp());
            } else if uses.declare(on.id) {
                on.open.fetch_add(1, Ordering::AcqRel);
            }
        });
    }

    /// Registers a use that ended before marker `epoch` of `on`.
    pub(crate) fn declare_exact(&self, chunk: ChunkId, generation: u32, on: TimelineId, epoch: Epoch) {
        self.with_uses(chunk, generation, |uses| uses.exact(on, order::Access::Write, epoch));
    }

    /// What a first use on another stream must come after (O7): the earlier use of the bytes on the home stream.
    pub(crate) fn birth(&self, chunk: ChunkId, generation: u32) -> Pending {
        let state = self.lock();
        let stamp = state.heap.view(chunk, generation).stamp;
        Pending { on: self.timeline.id, epoch: laws::birth(stamp) }
    }

    /// Renews the birth stamp, after work that was queued on the home stream for an allocation that no user has yet.
    pub(crate) fn born_now(&self, chunk: ChunkId, generation: u32) {
        let mut state = self.lock();
        state.heap.set_stamp(chunk, generation, self.timeline.stamp());
    }
}

impl<D: Driver> core::fmt::Debug for Pool<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Pool({} of {})", self.number, self.timeline.info.id)
    }
}
