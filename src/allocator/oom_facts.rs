//! What an out-of-memory error reports: what holds the memory, and what a trim would free.
//!
//! Gathered pool by pool, one lock at a time, and only when a request is about to fail. It does not know why the request fails.

use super::config::Reuse;
use super::core::Core;
use super::ladder::Climb;
use super::pool::{Pool, PoolState};
use super::registry::CONTEXT;
use crate::driver::{Driver, OwnedRange};
use crate::error::{Holder, OutOfMemory};
use crate::heap::{ChunkId, Kind, Want};
use crate::units::{GRANULE_BYTES, Granules, SegmentId, StreamId};
use hashbrown::HashMap;

/// How many names are reported.
const HOLDERS: usize = 8;

/// Live allocations and bytes, by name.
pub(super) type ByName = HashMap<Option<crate::sync::Arc<str>>, (u64, u64)>;

/// What is known about the memory that a request wants.
#[derive(Default)]
pub(crate) struct Holding {
    pub(super) by_name: ByName,
    /// Streams that have a long enough free range, but not at the requested alignment.
    pub(super) aligned_on: Vec<StreamId>,
    /// Bytes of segments and handles that are wholly free.
    pub(super) idle: u64,
    /// Bytes of segments and handles that are wholly free once the uses of ranges in flight are over.
    pub(super) idle_after_uses: u64,
    /// Whether a contiguous free range would hold the request then.
    pub(super) serves_after_uses: bool,
    /// Free bytes that can serve only requests of another kind, whatever is tried: pinned memory's.
    pub(super) of_other_kind: u64,
}

/// What is in flight of each segment, in granules.
pub(super) fn in_flight_by_segment(state: &PoolState, all: &mut HashMap<SegmentId, u64>) {
    for (_, entry) in state.in_flight.behind(None) {
        let view = state.heap.view(ChunkId::from_index(entry.chunk), entry.generation);
        *all.entry(view.segment).or_default() += u64::from(view.len.0);
    }
}

/// The names with the most bytes.
fn largest(all: ByName) -> Vec<Holder> {
    let mut holders: Vec<Holder> = all
        .into_iter()
        .filter(|&(_, (allocations, _))| allocations > 0)
        .map(|(name, (allocations, bytes))| Holder { name: name.map(|n| n.to_string()), allocations, bytes })
        .collect();
    holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    holders.truncate(HOLDERS);
    holders
}

impl<D: Driver> Core<D> {
    /// Freed bytes of device and pinned memory whose last use nothing can show to be complete yet.
    pub(crate) fn held_back(&self) -> u64 {
        let pools: u64 = self.pool_list().iter().map(|p| p.held_back()).sum();
        let pinned = self.host.report(&self.registry, self.driver.expects_captures());
        pools + pinned.map_or(0, |p| p.held_back)
    }

    /// The facts of a request that fails.
    pub(crate) fn out_of_memory<P>(
        &self,
        stream: Option<StreamId>,
        climb: &Climb<'_, D, P>,
        of: Holding,
    ) -> OutOfMemory {
        let pinned_limit = self.host.lock().backing.limit;
        let stream_of =
            |&(on, why)| Some((self.registry.timeline(on).filter(|l| l.id != CONTEXT)?.info.id, why));
        OutOfMemory {
            requested: climb.requested,
            rounded: climb.want.len.bytes(),
            needed: climb.want.bytes_anywhere(),
            aligned_on: of.aligned_on,
            stream,
            tried: climb.tried.clone(),
            driver: climb.refusal.clone(),
            passed_over: climb.passed_over.clone(),
            passed_over_on: climb.passed_over_on.iter().filter_map(stream_of).collect(),
            trim_would_free: of.idle,
            idle_after_uses: of.idle_after_uses,
            serves_after_uses: of.serves_after_uses,
            free_of_other_kind: of.of_other_kind,
            kept: self.deferred_drops.bytes(),
            streams_keep: self.config.reuse == Reuse::Never,
            holders: largest(of.by_name),
            pinned_limit,
            pinned_share: self.host.limit_share.clone(),
            report: self.report(),
        }
    }

    /// What is known about device memory.
    pub(crate) fn holding(&self, want: &Want, own: &Pool<D>) -> Holding {
        let (mut by_name, mut aligned_on) = (ByName::new(), Vec::new());
        let (mut in_flight, mut serves_after_uses) = (HashMap::new(), false);
        for pool in self.pool_list() {
            let state = pool.lock();
            state.add_holders(&mut by_name);
            if !state.in_flight.is_empty() {
                in_flight_by_segment(&state, &mut in_flight);
                let migrates = self.config.reuse != Reuse::Never || pool.number == own.number || state.closed;
                serves_after_uses |= migrates && state.heap.will_hold(want, &Kind::ALL);
            }
            let kinds = [want.kind, want.kind.other()];
            // Every range is looked at, as the deciding round has done.
            let holds = |kind| state.heap.find(&Want { kind, ..*want }, usize::MAX, |_| true).is_some();
            if want.align > Granules(1) && kinds.into_iter().any(holds) {
                aligned_on.push(pool.timeline.info.id);
            }
        }
        let (idle, idle_after_uses) = self.idle_bytes(&in_flight);
        Holding { by_name, aligned_on, idle, idle_after_uses, serves_after_uses, of_other_kind: 0 }
    }

    /// The bytes of the segments and handles that are wholly free, across pools, with no byte held back; and of those that will be once
    /// nothing is in flight.
    fn idle_bytes(&self, in_flight: &HashMap<SegmentId, u64>) -> (u64, u64) {
        let pools = self.pool_list();
        let mut free: HashMap<SegmentId, u64> =
            Self::free_by_segment(&pools).into_iter().map(|(id, (free, _))| (id, free)).collect();
        for &id in in_flight.keys() {
            free.entry(id).or_default();
        }
        for pool in &pools {
            // A trim cannot release a segment that contains any of it.
            pool.for_free_held_back(|range| {
                free.remove(&range.segment);
            });
        }
        let (mut now, mut then) = self.idle_handles(&pools);
        let backing = self.backing.lock();
        for (id, free) in free {
            let Some(length) = backing.segments.get(&id).map(OwnedRange::bytes) else { continue };
            let later = in_flight.get(&id).copied().unwrap_or(0);
            now += if free * GRANULE_BYTES == length { length } else { 0 };
            then += if (free + later) * GRANULE_BYTES == length { length } else { 0 };
        }
        (now, then)
    }
}
