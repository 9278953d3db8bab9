//! An allocator's pinned memory: its state, under one lock, and how ranges return to the cache when their uses are complete.
//!
//! It does not know how a request is served, nor the allocator that it is part of: `host` does.

use super::registered::Registrations;
use crate::allocator::backing::{Backing, kept};
use crate::allocator::in_transit::InTransit;
use crate::allocator::pool::pieces::{Pieces, in_flight_held_back, longest_free};
use crate::allocator::pool::state::{PoolState, Watch, next_pool_number};
use crate::allocator::pool::store::Store;
use crate::allocator::registry::{NO_TIMELINE, Registry, StreamTimeline};
use crate::driver::{Driver, HostKind, OwnedHost};
use crate::heap::{ChunkId, Heap, Kind};
use crate::laws;
use crate::order::{Access, Completed, Entry, InFlight, Pending, PendingSet, Uses};
use crate::report::{PinnedReport, PoolReport};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Ordering, Rank, Ranked, RankedGuard, assert_unlocked};
use crate::units::{Addr, AllocationId, Epoch, Granules, SegmentId};
use core::time::Duration;

/// The segments of each kind of pinned memory, by the two kinds that a heap keeps apart.
pub(in super::super) const fn segments_of(kind: HostKind) -> Kind {
    match kind {
        HostKind::Cached => Kind::Large,
        HostKind::WriteCombined => Kind::Small,
    }
}

/// Which pinned memory the segments of this kind are.
pub(in super::super) const fn kind_of(segments: Kind) -> HostKind {
    match segments {
        Kind::Large => HostKind::Cached,
        Kind::Small => HostKind::WriteCombined,
    }
}

/// An allocator's pinned memory.
pub(crate) struct HostPool<D: Driver> {
    pub(in super::super) number: u32,
    state: Ranked<HostState<D>>,
    /// One grower at a time; held over driver calls, and never taken by a free.
    pub(in super::super) grower: Ranked<()>,
    /// How long requests have spent on growth.
    pub(in super::super) growth_nanos: AtomicU64,
    /// What the limit is a share of, in words.
    pub(in super::super) limit_share: Option<String>,
    /// Memory of the program's that is registered.
    pub(crate) registrations: Registrations,
    /// Claimed bytes that are not pinned yet, and segments on their way back to the driver.
    pub(in super::super) in_transit: InTransit,
}

/// What its lock protects.
pub(in super::super) struct HostState<D: Driver> {
    pub(in super::super) pool: PoolState,
    pub(in super::super) backing: Backing<OwnedHost<D>>,
}

impl<D: Driver> HostPool<D> {
    /// A pool with nothing in it. `share` is what the limit is a share of, in words.
    pub(in super::super) fn new(limit: Option<u64>, share: Option<String>) -> HostPool<D> {
        HostPool {
            number: next_pool_number(),
            in_transit: InTransit::default(),
            grower: Ranked::new(Rank::Grower, ()),
            growth_nanos: AtomicU64::new(0),
            limit_share: share,
            registrations: Registrations::default(),
            state: Ranked::new(
                Rank::Pool,
                HostState { pool: PoolState::new(), backing: Backing::new(limit) },
            ),
        }
    }

    pub(in super::super) fn lock(&self) -> RankedGuard<'_, HostState<D>> {
        self.state.lock()
    }

    /// No owner is left: the last free unpins everything.
    pub(crate) fn abandon(&self) {
        let watch = &mut self.lock().pool.watch;
        watch.set(Watch::LEAVING);
        watch.set(Watch::ORPHAN);
    }

    /// Whether something is pinned and nothing of it is live.
    pub(crate) fn is_idle(&self) -> bool {
        let host = self.lock();
        host.pool.heap.live() == 0 && !host.backing.segments.is_empty()
    }

    /// Returns complete ranges to the cache.
    pub(crate) fn drain(&self, registry: &Registry<D>) {
        self.drain_in_flight(registry, &mut self.lock().pool);
    }

    /// Unpins everything; no handle refers to any of it. Its uses are `over`; if not, either the driver's call waits for them, or the memory is kept.
    pub(crate) fn release_all(&self, driver: &D, over: bool) {
        let segments = self.lock().backing.take_all();
        assert_unlocked("pinned memory is given back");
        if !segments.is_empty() && !laws::may_give_back(over, driver.unpin_spares_uses()) {
            let bytes = segments.iter().map(OwnedHost::bytes).sum();
            segments.into_iter().for_each(core::mem::forget);
            return driver.unpin_failed(kept(bytes, "pinned host"));
        }
        for segment in segments {
            if let Err((range, e)) = segment.release() {
                driver.unpin_failed(e);
                drop(range);
            }
        }
    }

    /// Walks the heap.
    ///
    /// # Panics
    /// If an invariant does not hold; the message has its number.
    pub(crate) fn check(&self) {
        let state = self.lock();
        state.pool.heap.check();
        let (owned, taken) = (state.pool.heap.stats().owned, state.backing.reserved);
        // Bytes that are claimed and not yet pinned, or on their way back, count as reserved.
        assert!(owned <= taken, "H5: {owned} pinned bytes held, {taken} taken");
    }

    pub(in super::super) fn id_of(&self, chunk: ChunkId, generation: u32) -> AllocationId {
        AllocationId { pool: self.number, chunk: chunk.index(), generation }
    }

    /// The pinned part of a report, if there is any.
    pub(crate) fn report(&self, registry: &Registry<D>, expects_captures: bool) -> Option<PoolReport> {
        let held_back = in_flight_held_back(self, registry, expects_captures);
        let largest_free = longest_free(self);
        let state = self.lock();
        let report = PoolReport {
            name: Some("pinned host memory".into()),
            reserved_peak: state.backing.reserved_peak,
            ..state.pool.report(largest_free, held_back)
        };
        (report.counters.allocations > 0).then_some(report)
    }

    /// What stands behind it, if it was used or memory of the program's is registered.
    pub(crate) fn host_report(&self, used: bool) -> Option<PinnedReport> {
        let registered = self.registrations.bytes();
        let state = self.lock();
        (used || registered > 0).then(|| PinnedReport {
            limit: state.backing.limit,
            limit_share: self.limit_share.clone(),
            segments: state.backing.segments.len() as u64,
            segments_created: state.backing.segments_created,
            segments_released: state.backing.segments_released,
            growth_time: Duration::from_nanos(self.growth_nanos.load(Ordering::Relaxed)),
            registered,
        })
    }

    /// Adds to the uses of a live allocation.
    pub(crate) fn with_uses(&self, device: (&Registry<D>, &D), id: AllocationId, of: impl FnOnce(&mut Uses)) {
        self.lock().pool.with_uses(device, (ChunkId::from_index(id.chunk), id.generation), of);
    }

    /// What must be complete before an access by the CPU.
    pub(crate) fn conflicts(&self, registry: &Registry<D>, id: AllocationId, access: Access) -> PendingSet {
        let which = (ChunkId::from_index(id.chunk), id.generation);
        self.lock().pool.conflicts(registry, which, (NO_TIMELINE, access))
    }
}

impl<D: Driver> Store<D> for HostPool<D> {
    fn home(&self) -> Option<&StreamTimeline<D>> {
        None
    }

    fn freed_stamp(&self, registry: &Registry<D>, pending: &[Pending], _: bool) -> Option<Epoch> {
        laws::pinned_is_free(registry.all_complete(pending)).then_some(Epoch::COMPLETE)
    }

    fn over<'a>(&'a self, registry: &'a Registry<D>, _: bool) -> impl Fn(Pending) -> bool + 'a {
        let seen = registry.seen();
        move |p| laws::pinned_use_is_over(seen.is_complete(p))
    }

    fn enter_drained(&self, state: &mut PoolState, entry: Entry) -> bool {
        state.heap.give(ChunkId::from_index(entry.chunk), entry.generation, Epoch::COMPLETE);
        true
    }
}

impl<D: Driver> Pieces for HostPool<D> {
    fn hold<R>(&self, look: impl FnOnce(&Heap, &InFlight) -> R) -> R {
        let state = self.lock();
        let found = look(&state.pool.heap, &state.pool.in_flight);
        state.unlock_fair();
        found
    }
}

impl<D: Driver> HostState<D> {
    /// A segment enters that nothing uses.
    pub(in super::super) fn enter(&mut self, id: SegmentId, base: Addr, len: Granules, kind: Kind) {
        self.pool.heap.add_segment(id, base, len, kind);
        self.pool.heap.extend(id, Granules::ZERO, len, Epoch::COMPLETE);
    }
}
