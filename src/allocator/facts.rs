//! What an out-of-memory error tells: who holds the memory, and what a trim would bring.
//!
//! Gathered pool by pool, one lock at a time, and only when a request is about to fail. It does not know why it fails.

use super::ladder::Climb;
use super::registry::CONTEXT;
use super::shared::Core;
use crate::driver::Driver;
use crate::error::{Holder, OutOfMemory};
use crate::heap::Want;
use crate::units::{GRANULE_BYTES, Granules, StreamId};
use hashbrown::HashMap;

/// So many names are told.
const HOLDERS: usize = 8;

/// Allocations and bytes that are alive, by name.
pub(super) type ByName = HashMap<Option<crate::sync::Arc<str>>, (u64, u64)>;

/// What there is of the memory that a request wants.
#[derive(Default)]
pub(crate) struct Holding {
    pub(super) by_name: ByName,
    /// Streams that have as much free, not so aligned.
    pub(super) aligned_on: Vec<StreamId>,
    /// Bytes of segments that are wholly free.
    pub(super) idle: u64,
}

/// The largest of them.
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
    /// Freed bytes of device and pinned memory that nobody can tell the end of yet.
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
        let stream_of = |&(on, why)| Some((self.registry.line(on).filter(|l| l.id != CONTEXT)?.info.id, why));
        OutOfMemory {
            requested: climb.asked,
            rounded: climb.want.len.bytes(),
            needed: climb.want.bytes_anywhere(),
            aligned_on: of.aligned_on,
            stream,
            tried: climb.tried.clone(),
            driver: climb.refusal.clone(),
            passed_over: climb.passed_over.clone(),
            passed_over_on: climb.passed_over_on.iter().filter_map(stream_of).collect(),
            trim_would_free: of.idle,
            kept: self.keeper.bytes(),
            holders: largest(of.by_name),
            pinned_limit,
            report: self.report(),
        }
    }

    /// What there is of device memory.
    pub(crate) fn holding(&self, want: &Want) -> Holding {
        let (mut by_name, mut aligned_on) = (ByName::new(), Vec::new());
        for pool in self.pool_list() {
            let state = pool.lock();
            state.add_holders(&mut by_name);
            let kinds = [want.kind, want.kind.other()];
            // All are looked at, as the round has done that decided.
            let holds = |kind| state.heap.find(&Want { kind, ..*want }, usize::MAX, |_| true).is_some();
            if want.align > Granules(1) && kinds.into_iter().any(holds) {
                aligned_on.push(pool.line.info.id);
            }
        }
        Holding { by_name, aligned_on, idle: self.idle_bytes() }
    }

    /// The bytes of the segments that are wholly free, in whichever pools, with no byte that is held back.
    fn idle_bytes(&self) -> u64 {
        let pools = self.pool_list();
        let mut free = Self::free_by_segment(&pools);
        for pool in &pools {
            // A segment with any of it is none that a trim could take.
            pool.for_free_held_back(|segment, _| drop(free.remove(&segment)));
        }
        let backing = self.backing.lock();
        let lengths = free.into_iter().filter_map(|(id, (free, _))| {
            let length = backing.segments.get(&id)?.bytes();
            (free * GRANULE_BYTES == length).then_some(length)
        });
        lengths.sum()
    }
}
