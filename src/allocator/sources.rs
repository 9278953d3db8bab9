//! Which pools may be sources of a migration: their numbers, by the length of their longest free range of each kind.
//!
//! A miss of a program with thousands of streams cannot look at every pool. So the core sorts all pools that have free memory
//! by a bound on their longest free range, small segments' apart from large ones', and a miss looks at those that
//! may have enough of a kind that it takes. A pool moves upwards at a free or an entry that makes a range longer than the bound, and
//! downwards when a search finds that the bound is too high. Neither happens in a hit, nor in a free that makes no longer range.
//!
//! Nor can a miss look again and again at thousands of pools whose memory is all pending. If there are many, a pool that
//! was looked at in vain stands [`aside`]: it is sorted by the length of what is complete of it. It comes back when its
//! timeline progresses ([`progress`]) or something enters it; a free brings nothing that is complete. Meanwhile a miss finds it only
//! if its stream is ordered after some of it, or when the miss queries a few of those that have a marker to query.
//!
//! - **F1** While no thread holds a pool's lock, the pool is listed at its bound of each kind, or not at all if that is 0. The bound may be
//!   too high and is never too low ([`Pool::longest_hint`]), so a pool that could serve is never left out.
//! - **F2** A pool that stands aside, and whose timeline has not progressed since, has no complete free range longer than recorded, and among its
//!   longer ranges of at least any length none with a stamp below the least that is recorded for that length.
//! - **F3** While no thread holds a pool's lock, it is listed at a bound on its longest range in flight too, or not at all if that is 0: too
//!   high at times, because a drain does not lower it but the next search does, and never too low.
//!
//! It does not know what a pool would accept, nor pools that have left: numbers are looked up in the list of pools.
//!
//! [`Pool::longest_hint`]: super::pool::Pool::longest_hint

mod aside;
pub(super) mod progress;

pub(super) use aside::QUERIED;

use super::registry::StreamTimeline;
use crate::driver::Driver;
use crate::heap::{ChunkState, Heap, Kind, Ripe};
use crate::order::{Clock, TimelineId};
use crate::sync::{Arc, Rank, Ranked};
use crate::units::Epoch;
use aside::{Aside, Place};
use core::ops::Bound;
use hashbrown::HashMap;
use progress::ProgressedPools;
use std::collections::BTreeSet;

/// With no more pools than this, each is looked at and none starts to stand aside. One that stands aside while some of it is complete
/// counts twice.
const FEW: usize = 64;
/// How many pools are returned at once, if there are many.
const PAGE: usize = 16;
/// The base-two logarithm of the number of classes in a power of two.
const FINE: u32 = 3;

/// A pool's number behind a length in granules.
type At = (u32, u32);

/// A class of lengths, eight to a power of two: of two lengths the longer one is never in a lower class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Class(u32);

impl Class {
    /// The class of a range of `len` granules.
    fn of(len: u32) -> Class {
        let power = len.checked_ilog2().unwrap_or(0);
        // The power, followed by the bits of the length after its first.
        let bits = if power < FINE { len << (FINE - power) } else { len >> (power - FINE) };
        Class(power << FINE | bits & ((1 << FINE) - 1))
    }
    /// The last length in the class of `len`.
    fn high(len: u32) -> u32 {
        len | ((1 << len.checked_ilog2().unwrap_or(0).saturating_sub(FINE)) - 1)
    }
}

/// For each class of lengths, from `len` granules on, the pool with the least length, and among equals the oldest.
fn first_of_each_class(pools: &BTreeSet<At>, len: u32) -> impl Iterator<Item = u32> + use<'_> {
    let mut from = Some(len);
    core::iter::from_fn(move || {
        let &(len, pool) = pools.range((from?, 0)..).next()?;
        from = Class::high(len).checked_add(1);
        Some(pool)
    })
}

/// All pools that have free memory or ranges in flight.
pub(crate) struct MigrationSources {
    kinds: Ranked<[Order; 2]>,
    /// All pools that have ranges in flight, by their bound.
    in_flight: Ranked<BTreeSet<At>>,
    /// Pools that stand aside and whose timelines have progressed.
    progressed: Arc<ProgressedPools>,
    pub(super) few: usize,
}

/// All pools that have free memory of one kind.
#[derive(Default)]
struct Order {
    /// By their bound: for those that stand aside, by the longest range that is complete.
    by_len: BTreeSet<At>,
    aside: Aside,
}

/// Pools that may have enough, by their numbers.
pub(super) struct Candidates {
    /// All whose bound is high enough, sorted by number; if there are many, they come in pages instead.
    pub(super) first: Vec<u32>,
    /// Where the next page starts, for each kind.
    pub(super) more: Vec<Page>,
    /// Among those that stand aside: those of which the stream may be ordered after something.
    pub(super) in_order: Vec<u32>,
    /// And some to query.
    pub(super) to_query: Vec<u32>,
}

/// Pools that have enough of a kind, sorted behind this one.
pub(super) struct Page(Kind, At);

impl Order {
    fn set(&mut self, pool: u32, before: u32, now: u32) {
        if before == now {
            return;
        }
        if before > 0 {
            self.by_len.remove(&(before, pool));
        }
        if now > 0 {
            self.by_len.insert((now, pool));
        }
    }

    fn len(&self) -> usize {
        self.by_len.len() + self.aside.len()
    }

    fn bring_back(&mut self, pool: u32) {
        if let Some(place) = self.aside.remove(pool) {
            self.set(pool, place.complete, place.longest);
        }
    }
}

impl MigrationSources {
    pub(crate) fn new(few: Option<usize>) -> MigrationSources {
        let kinds = Ranked::new(Rank::Leaf, Default::default());
        let in_flight = Ranked::new(Rank::Leaf, BTreeSet::new());
        MigrationSources { kinds, in_flight, progressed: ProgressedPools::new(), few: few.unwrap_or(FEW) }
    }

    /// The bound on a pool's ranges in flight changed, from `before`. Called under the pool's lock.
    pub(super) fn flown(&self, pool: u32, before: u32, now: u32) {
        let mut in_flight = self.in_flight.lock();
        if before > 0 {
            in_flight.remove(&(before, pool));
        }
        if now > 0 {
            in_flight.insert((now, pool));
        }
    }

    /// The bound of a pool changed, from `before`. Called under the pool's lock.
    pub(crate) fn moved(&self, pool: u32, kind: Kind, before: u32, now: u32) {
        let mut kinds = self.kinds.lock();
        let order = &mut kinds[kind as usize];
        let Some(mut place) = order.aside.remove(pool) else {
            order.set(pool, before, now);
            return;
        };
        let complete = place.complete.min(now);
        if complete == now {
            // Everything that it may have is complete.
            order.set(pool, place.complete, now);
            return;
        }
        order.set(pool, place.complete, complete);
        (place.complete, place.longest) = (complete, now);
        order.aside.insert(pool, place);
    }

    /// Whether there are so many pools that one that was looked at in vain stands aside.
    pub(super) fn are_many(&self, kind: Kind) -> bool {
        self.kinds.lock()[kind as usize].len() > self.few
    }

    /// Sets a pool aside that was looked at in vain, until its timeline progresses. `ripe` is what was complete of it when
    /// `complete` was. Called under the pool's lock. Returns whether it stands aside: not if everything that it may have is complete.
    pub(super) fn set_aside<D: Driver>(
        &self,
        pool: u32,
        kind: Kind,
        timeline: &StreamTimeline<D>,
        longest: u32,
        ripe: Ripe,
        complete: Epoch,
    ) -> bool {
        if ripe.longest.0 >= longest {
            return false;
        }
        {
            let mut kinds = self.kinds.lock();
            let order = &mut kinds[kind as usize];
            let before = order.aside.get(pool).map_or(longest, |place| place.complete);
            order.set(pool, before, ripe.longest.0);
            let since = Epoch(timeline.marked().0 + 1);
            order.aside.insert(pool, Place::new(timeline.id, longest, ripe, since));
        }
        timeline.listeners.listen(&self.progressed, pool);
        // Only now: progress made before `listen` is not notified.
        let (now, queryable) = timeline.progress();
        if now > complete {
            timeline.listeners.notify();
        }
        if queryable {
            self.kinds.lock()[kind as usize].aside.query_about(pool);
        }
        true
    }

    /// Something entered a pool, which no longer stands aside. Called under the pool's lock.
    pub(crate) fn bring_back(&self, pool: u32, kind: Kind) {
        self.kinds.lock()[kind as usize].bring_back(pool);
    }

    /// Whether another pool than this one may have a range of `len` granules, free and of this kind, or in flight.
    pub(super) fn others_may_have(&self, kind: Kind, len: u32, pool: u32) -> bool {
        let free = {
            let order = &self.kinds.lock()[kind as usize];
            order.aside.len() > 0 || order.by_len.range((len, 0)..).any(|at| at.1 != pool)
        };
        free || self.in_flight.lock().range((len, 0)..).any(|at| at.1 != pool)
    }

    /// The pools that may have a free range of `len` granules of one of these kinds, for a stream and its clock.
    pub(super) fn of(&self, kinds: &[Kind], len: u32, to: TimelineId, clock: &Clock) -> Candidates {
        let progressed = self.progressed.take();
        let mut orders = self.kinds.lock();
        for pool in progressed {
            orders.iter_mut().for_each(|order| order.bring_back(pool));
        }
        let mut found =
            Candidates { first: Vec::new(), more: Vec::new(), in_order: Vec::new(), to_query: Vec::new() };
        for &kind in kinds {
            let order = &mut orders[kind as usize];
            if order.len() > self.few {
                found.more.push(Page(kind, (len.saturating_sub(1), u32::MAX)));
            } else {
                found.first.extend(order.by_len.range((len, 0)..).map(|&(_, pool)| pool));
            }
            found.in_order.extend(order.aside.in_order(len, to, clock));
            found.to_query.extend(order.aside.next_to_query(len));
        }
        drop(orders);
        for numbers in [&mut found.first, &mut found.in_order, &mut found.to_query] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        found
    }

    /// The next page of the many that have enough: those with the least to spare first. Empty at the end.
    pub(super) fn next(&self, page: &mut Page) -> Vec<u32> {
        let orders = self.kinds.lock();
        let Page(kind, from) = page;
        let behind = (Bound::Excluded(*from), Bound::Unbounded);
        let found: Vec<At> = orders[*kind as usize].by_len.range(behind).take(PAGE).copied().collect();
        drop(orders);
        if let Some(&last) = found.last() {
            *from = last;
        }
        found.into_iter().map(|(_, pool)| pool).collect()
    }

    /// Some pools that may have a free range of `len` granules, pending or not: the first of each class.
    pub(super) fn oldest_of(&self, len: u32) -> Vec<u32> {
        let orders = self.kinds.lock();
        let each = |order: &Order| -> Vec<u32> {
            first_of_each_class(&order.by_len, len).chain(order.aside.of_each_class(len)).collect()
        };
        let mut oldest: Vec<u32> = orders.iter().flat_map(each).collect();
        drop(orders);
        oldest.sort_unstable();
        oldest.dedup();
        oldest
    }

    /// All pools that may have a range of `len` granules, of either kind, pending or not, or in flight: sorted by number.
    pub(super) fn all_of(&self, len: u32) -> Vec<u32> {
        let mut all: Vec<u32> = self.in_flight.lock().range((len, 0)..).map(|&(_, pool)| pool).collect();
        let orders = self.kinds.lock();
        for order in orders.iter() {
            all.extend(order.by_len.range((len, 0)..).map(|&(_, pool)| pool));
            all.extend(order.aside.all_of(len));
        }
        drop(orders);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Panics unless F1 and F3 hold of exactly these pools, with their bounds. Not while other threads allocate or free.
    pub(crate) fn check(&self, pools: &[(u32, [u32; 3])]) {
        let flying = pools.iter().map(|&(pool, [.., of])| (of, pool)).filter(|at| at.0 > 0);
        assert_eq!(*self.in_flight.lock(), flying.collect(), "F3: the lengths of what is in flight");
        let orders = self.kinds.lock();
        for kind in Kind::ALL {
            let order = &orders[kind as usize];
            let bounds: HashMap<u32, u32> =
                pools.iter().map(|&(pool, of)| (pool, of[kind as usize])).collect();
            let complete = |(&pool, &bound): (&u32, &u32)| {
                (order.aside.get(pool).map_or(bound, |place| place.complete), pool)
            };
            let right: BTreeSet<At> = bounds.iter().map(complete).filter(|at| at.0 > 0).collect();
            assert_eq!(order.by_len, right, "F1: the lengths of all pools, {kind:?}");
            order.aside.check();
            for (pool, &bound) in &bounds {
                if let Some(place) = order.aside.get(*pool) {
                    assert_eq!(place.longest, bound, "F1: pool {pool}, {kind:?}, which stands aside");
                }
            }
        }
    }

    /// Panics unless F2 holds. Not while the timeline progresses.
    pub(crate) fn check_aside<D: Driver>(&self, pool: u32, timeline: &StreamTimeline<D>, heap: &Heap) {
        let complete = timeline.seen();
        if self.progressed.is_of(pool) {
            return;
        }
        let orders = self.kinds.lock();
        if Kind::ALL.iter().all(|&kind| orders[kind as usize].aside.get(pool).is_none()) {
            return;
        }
        for segment in &heap.snapshot().segments {
            let Some(place) = orders[segment.kind as usize].aside.get(pool) else { continue };
            for range in &segment.ranges {
                let len = range.len.0;
                let least = place.least(len);
                assert!(
                    range.state != ChunkState::Free
                        || len <= place.complete
                        || (range.stamp > complete && range.stamp >= least),
                    "F2: pool {pool} stands aside with {} granules up to {complete:?} and none below {least:?}, and has {range:?}",
                    place.complete
                );
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
