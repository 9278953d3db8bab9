//! The pinned pool: page-locked host memory from the same heap, with completion instead of order.
//!
//! The CPU is not on a stream: code that receives pinned bytes may write them at once. So a freed range with recorded
//! uses returns to the cache only when every use is complete for the host (law O4; Z14 is the bug of accepting
//! order), each use waiting for its own stream: a slow stream holds back what it uses and nothing else. There is one pool
//! for all streams. It does not know what is copied where.
//!
//! Its state is in `pinned/pool.rs`: a [`PoolState`], as for a stream's memory, and a `Backing`. A miss climbs the same ladder with fewer rungs: it
//! polls for completion, grows, and waits. It never unpins: that waits for the whole device, so only an explicit trim does.
//! Cached and write-combined memory never share a segment.

use super::backing::Backing;
use super::core::Core;
use super::grow::Grows;
use super::ladder::{Climb, Rung, Rungs, Step, rung};
use super::oom_facts::{Holding, in_flight_by_segment};
use super::pinned::PinnedAllocation;
use super::pinned::pool::{HostPool, HostState, kind_of, segments_of};
use super::pool::store::Store;
use super::pool::{AfterFree, PoolState};
use super::registry::QUESTIONS;
use super::registry::uses::release_open;
use super::trim::Trimmed;
use super::undo::Undo;
use crate::driver::{Driver, DriverResult, HostKind, Note, OwnedHost};
use crate::error::{DriverError, Error, OutOfMemory};
use crate::heap::{ChunkId, Kind, Taken, Want};
use crate::laws::steps;
use crate::order::Pending;
use crate::sync::{Arc, Ordering, assert_unlocked};
use crate::units::{AllocationId, Granules, SegmentId};
use core::cell::Cell;
use hashbrown::HashMap;

/// Pinning delays other threads' launches, and no copy may cross two segments, so they are few and large; the request
/// itself if it is larger, with no rounding to powers of two. From this size on a CUDA device registers pages that several threads touched.
const SEGMENT: u64 = 64 << 20;
/// The most that is pinned at once for requests that are smaller: it holds the request up for about 50 ms (H200).
const MOST: u64 = 1 << 30;
/// Larger segments are rounded up to a multiple of this.
const MULTIPLE: u64 = 2 << 20;
/// What is pinned at once, as a part of what is: at most so much of all that is reserved waits for requests to come.
const PART: u64 = 4;

/// The lengths to try for a request of `least` bytes when so many are reserved, from the planned one down to the request.
///
/// Time is little reason to grow by much: from 256 MiB on pinning costs by the byte (H200: 47 ms a GiB, 62 at 64 MiB). Large segments are for large requests, and
/// to have few; against them stands memory that the host does not get back. So a quarter of what is reserved, not as much again.
fn sizes(reserved: u64, least: u64) -> impl Iterator<Item = Granules> {
    let whole = |bytes: u64| bytes.div_ceil(MULTIPLE).saturating_mul(MULTIPLE);
    let rounded = whole(least);
    let planned = whole(reserved / PART).clamp(SEGMENT, MOST).max(rounded);
    let mut sizes = vec![planned, rounded.max(SEGMENT), rounded, least];
    sizes.dedup();
    sizes.into_iter().filter_map(Granules::exactly)
}

impl<D: Driver> HostPool<D> {
    /// Returns an allocation's bytes to the cache: at once if every use is complete, otherwise when they are.
    pub(crate) fn free(&self, core: &Core<D>, id: AllocationId) {
        let which = (ChunkId::from_index(id.chunk), id.generation);
        let mut guard = self.lock();
        let (view, uses) = guard.pool.end_uses(which.0, which.1);
        let after = steps::seal_then_release(
            || {
                let mut guard = guard;
                let state = &mut guard.pool;
                self.free_behind(&core.registry, state, which, (&view, &uses), false);
                state.after_free()
            },
            || release_open(&core.registry, &uses),
        );
        if after == AfterFree::Orphaned {
            core.pinned_done();
        }
    }
}

/// Serves a request for pinned memory, and wipes it if the program wants that.
pub(super) fn alloc_and_scrub<D: Driver>(
    core: &Arc<Core<D>>,
    bytes: u64,
    kind: HostKind,
) -> Result<PinnedAllocation<D>, Error> {
    let allocation = alloc(core, bytes, kind)?;
    if core.config.scrub {
        super::scrub::pinned(&allocation);
    }
    Ok(allocation)
}

/// Serves a request for pinned memory.
fn alloc<D: Driver>(core: &Arc<Core<D>>, bytes: u64, kind: HostKind) -> Result<PinnedAllocation<D>, Error> {
    if bytes == 0 {
        return Ok(PinnedAllocation::empty());
    }
    let Some(len) = Granules::holding(bytes) else {
        return Err(Error::TooLarge { requested: bytes, max: Granules::MAX.bytes() });
    };
    let want = Want::new(len, segments_of(kind));
    let hit = core.host.lock().pool.hit_rare(&want, bytes, false);
    let taken = hit.map_or_else(|| miss(core, want, bytes), Ok)?;
    let id = core.host.id_of(taken.chunk(), taken.generation());
    core.driver.note(Note::Allocated { id, addr: taken.addr, bytes, stream: None });
    Ok(PinnedAllocation::new(core, taken.addr, id, bytes))
}

#[cold]
fn miss<D: Driver>(core: &Core<D>, want: Want, requested: u64) -> Result<Taken, Error> {
    if !core.registry.alive() {
        return Err(super::core::lost());
    }
    core.registry.run_maintenance(&core.driver);
    core.deferred_drops.sweep();
    core.host.lock().pool.counters.misses += 1;
    let own = Cell::new(0);
    Miss::new(core, &core.host, (want, requested), (&core.host.in_transit, &own)).climb()
}

/// A request for pinned memory that climbs the ladder.
type Miss<'a, D> = Climb<'a, D, HostPool<D>>;

impl<D: Driver> Rungs for Miss<'_, D> {
    const FAILS_AT_ONCE: bool = true;
    const IS_COUNTED: bool = false;

    /// Whether the request alone is above the limit.
    fn is_hopeless(&self) -> bool {
        let limit = self.pool.lock().backing.limit;
        limit.is_some_and(|limit| self.want.len.bytes() > limit)
    }

    fn climb_once(&mut self, progress: &mut bool) -> Step {
        self.refusal = None;
        self.others_freed();
        rung!(self: Poll, self.poll_completed());
        rung!(self: Grow, self.grow());
        rung!(self: Wait, self.wait(progress));
        Ok(None)
    }

    fn frees(&self) -> u64 {
        self.pool.lock().pool.frees()
    }

    fn facts(&self) -> OutOfMemory {
        let mut holding = Holding::default();
        {
            let state = &self.pool.lock().pool;
            let mut in_flight = HashMap::new();
            in_flight_by_segment(state, &mut in_flight);
            for s in state.heap.segments() {
                let later = in_flight.get(&s.id).copied().unwrap_or(0);
                holding.idle += if s.free == s.len { s.len.bytes() } else { 0 };
                holding.of_other_kind += if s.kind == self.want.kind { 0 } else { s.free.bytes() };
                let is_idle_then = u64::from(s.free.0) + later == u64::from(s.len.0);
                holding.idle_after_uses += if is_idle_then { s.len.bytes() } else { 0 };
            }
            holding.serves_after_uses =
                !state.in_flight.is_empty() && state.heap.will_hold(&self.want, &[self.want.kind]);
            state.add_holders(&mut holding.by_name);
        }
        self.core.out_of_memory(None, self, holding)
    }
}

impl<D: Driver> Miss<'_, D> {
    /// Searches again, in a hold of the pool's lock in which something may have arrived.
    fn again(&self, state: &mut PoolState) -> Option<Taken> {
        state.take(&self.want, self.requested, false)
    }

    /// Returns what is complete to the cache. A failed query is not completion; new memory may serve nevertheless.
    fn poll_completed(&mut self) -> Step {
        let core = self.core;
        let mut questions = QUESTIONS;
        if self.thorough {
            // Before a request is out of memory, it has queried everything there is, whatever it may wait for.
            questions = usize::MAX;
            core.deferred_drops.sweep();
            if let Err(e) = core.registry.mark_all(&core.driver) {
                self.one_refused(None, e)?;
            }
        }
        let requested =
            core.registry.drain_to_end(&core.driver, !core.config.deterministic, questions, || {
                let state = &mut core.host.lock().pool;
                core.host.drain_in_flight(&core.registry, state);
                state.in_flight.oldest().collect()
            });
        // What was drained before a query failed serves nevertheless.
        let taken = self.again(&mut self.pool.lock().pool);
        match (taken, requested) {
            (None, Err(e)) => self.one_refused(None, e),
            (taken, _) => Ok(taken),
        }
    }

    fn grow(&mut self) -> Step {
        // One grower at a time; a thread that waited searches again, for what the other one pinned. Otherwise each of those that miss at once would pin
        // up to a GiB.
        let pool = self.pool;
        let _turn = pool.grower.lock();
        let reserved = {
            let state = &mut *pool.lock();
            if let Some(taken) = self.again(&mut state.pool) {
                return Ok(Some(taken));
            }
            state.backing.reserved
        };
        let begun = self.core.driver.host_time();
        let grown = self.grow_by_one_of(sizes(reserved, self.want.len.bytes()));
        let spent = self.core.driver.host_time().saturating_sub(begun);
        pool.growth_nanos.fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
        grown
    }

    /// Grows by the first of these lengths that the limit and the driver allow.
    fn grow_by_one_of(&mut self, sizes: impl Iterator<Item = Granules>) -> Step {
        for len in sizes {
            match self.grow_by(len, u64::MAX) {
                Ok(None) => {}
                Ok(taken) => return Ok(taken),
                Err(e) => _ = self.one_refused(None, e)?,
            }
        }
        Ok(None)
    }

    /// Waits until something that was in flight fits, while patience is left.
    fn wait(&mut self, progress: &mut bool) -> Step {
        let core = self.core;
        let mut enough = 1;
        loop {
            let mut waiting: Vec<Pending> = core.host.lock().pool.in_flight.oldest().collect();
            // Most kept sources are pinned memory.
            waiting.extend(core.deferred_drops.oldest());
            let count_wait = |_| core.host.lock().pool.counters.host_waits += 1;
            let done = self.wait_for(waiting, enough, count_wait, |_| None)?;
            let dropped = core.deferred_drops.drop_all_known();
            let state = &mut core.host.lock().pool;
            let drained = core.host.drain_in_flight(&core.registry, state) | dropped;
            *progress |= drained;
            if drained && let Some(taken) = self.again(state) {
                return Ok(Some(taken));
            }
            if done == 0 {
                return Ok(None);
            }
            enough *= 2;
        }
    }
}

impl<D: Driver> Grows<D> for HostPool<D> {
    type Segment = OwnedHost<D>;

    fn backing<R>(&self, _: &Core<D>, of: impl FnOnce(&mut Backing<OwnedHost<D>>) -> R) -> R {
        of(&mut self.lock().backing)
    }

    fn acquire(driver: &D, len: Granules, kind: Kind) -> DriverResult<OwnedHost<D>> {
        driver.pin(len.bytes(), kind_of(kind))
    }

    fn bring(request: &Miss<'_, D>, segment: OwnedHost<D>, len: Granules) -> Taken {
        let (base, state) = (segment.addr(), &mut *request.pool.lock());
        let id = state.backing.add(segment, len.bytes());
        state.enter(id, base, len, request.want.kind);
        request.again(&mut state.pool).expect("a new segment holds the request")
    }
}

/// Unpins segments whose bytes are all free, and therefore complete, in this pool, and ends the registrations that drops have left. The driver waits
/// for the device.
pub(crate) fn trim<D: Driver>(core: &Core<D>) -> Result<Trimmed, DriverError> {
    let ended = core.registry.watch(core.host.registrations.end_left(&core.driver));
    let trimmed = trim_segments(core)?;
    ended.map(|()| trimmed)
}

fn trim_segments<D: Driver>(core: &Core<D>) -> Result<Trimmed, DriverError> {
    let own = Cell::new(0);
    let mut trimmed = Trimmed::default();
    let mut idle = Vec::new();
    let _transit = {
        let HostState { pool, backing } = &mut *core.host.lock();
        core.host.drain_in_flight(&core.registry, pool);
        let wholly: Vec<(SegmentId, Granules, Kind)> =
            pool.heap.segments().filter(|s| s.free == s.len).map(|s| (s.id, s.len, s.kind)).collect();
        let may = |id| crate::laws::holds::may_release(core.holds.is_held(id, true).into());
        for (id, len, kind) in wholly.into_iter().filter(|&(id, ..)| may(id)) {
            pool.cut_free_of(id);
            idle.extend(backing.take_out(id).map(|range| (id, len, kind, range)));
        }
        core.host.in_transit.take(&own)
    };
    assert_unlocked("host memory is unpinned");
    let mut failed = None;
    // If the driver panics, the drops of this range and of those after it give them back.
    let left = Cell::new(idle.iter().map(|(_, len, ..)| len.bytes()).sum::<u64>());
    let gone = Undo::new(|| core.host.lock().backing.segment_released(left.get()));
    for (id, len, kind, range) in idle {
        let released = core.driver.relaxed(|| range.release());
        left.set(left.get() - len.bytes());
        match released {
            Ok(()) => {
                core.host.lock().backing.segment_released(len.bytes());
                trimmed.bytes += len.bytes();
                trimmed.segments += 1;
            }
            Err((range, e)) => {
                let mut state = core.host.lock();
                state.enter(id, range.addr(), len, kind);
                state.backing.put_back(id, range);
                failed = Some(e);
            }
        }
    }
    gone.forget();
    failed.map_or(Ok(trimmed), |e| core.registry.watch(Err(e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{GIB, MIB};

    fn planned(reserved: u64, least: u64) -> Vec<u64> {
        sizes(reserved, least).map(Granules::bytes).collect()
    }

    #[test]
    fn growth_begins_with_64_mib_and_ends_with_a_gib() {
        assert_eq!(planned(0, 512), [64 * MIB, 2 * MIB, 512]);
        assert_eq!(planned(256 * MIB, 512), [64 * MIB, 2 * MIB, 512]);
        assert_eq!(planned(400 * MIB, 512), [100 * MIB, 64 * MIB, 2 * MIB, 512]);
        assert_eq!(planned(2 * GIB, MIB), [512 * MIB, 64 * MIB, 2 * MIB, MIB]);
        assert_eq!(planned(100 * GIB, MIB)[0], GIB);
    }

    /// Nothing is rounded to a power of two: 10 GiB and 512 bytes take 10 GiB and 2 MiB.
    #[test]
    fn a_large_request_is_its_own_segment() {
        assert_eq!(planned(0, 10 * GIB), [10 * GIB]);
        assert_eq!(planned(100 * GIB, 10 * GIB + 512), [10 * GIB + 2 * MIB, 10 * GIB + 512]);
        assert_eq!(planned(0, 65 * MIB), [66 * MIB, 65 * MIB]);
    }

    /// What is reserved ahead of requests is a fifth of all at most, and 64 MiB.
    #[test]
    fn little_is_reserved_ahead() {
        let (mut reserved, mut segments) = (0, 0);
        while reserved < 64 * GIB {
            let next = planned(reserved, 512)[0];
            assert!(next <= 64 * MIB || next <= (reserved + next) / 5 + 2 * MIB, "{next} after {reserved}");
            (reserved, segments) = (reserved + next, segments + 1);
        }
        assert!(segments < 80, "{segments} segments for 64 GiB");
    }
}
