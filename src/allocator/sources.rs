//! Which pools may have something to give: their numbers, by the length of their longest free range of each kind.
//!
//! A miss of a program with thousands of streams cannot look at every pool. So the core keeps all pools that have free memory
//! in the order of a bound on their longest free range, small segments' apart from large ones', and a miss looks at those that
//! may have enough of a kind that it takes. A pool moves upwards at a free or an entry that makes a range longer than the bound, and
//! downwards where a search found the truth. Neither is a hit, nor a free that makes no longer range than there was.
//!
//! Nor can a miss look again and again at thousands of pools whose memory is all pending. Where there are many, a pool that
//! was looked at in vain stands [`aside`]: its length is that of what is complete of it. It comes back when its
//! timeline moves on ([`news`]) or something enters it; a free brings nothing that is complete. Meanwhile a miss finds it only
//! if its stream is ordered after some of it, or when it asks the device about a few of those that have a marker to ask about.
//!
//! - **F1** While nobody holds a pool's lock, it stands at the bound of each kind, or nowhere if that is 0. The bound may be
//!   too high and is never too low ([`Pool::longest_hint`]), so a pool that could serve is never left out.
//! - **F2** A pool that stands aside, and of which there is no news, has no complete free range longer than it says, and of at
//!   least any length no longer one with a stamp below the least that it says for that length.
//! - **F3** While nobody holds a pool's lock, it stands at a bound on its longest range in flight too, or nowhere if that is 0: too
//!   high at times, because what is drained does not lower it but the next look does, and never too low.
//!
//! It does not know what a pool would accept, nor pools that have left: numbers are looked up in the list.
//!
//! [`Pool::longest_hint`]: super::pool::Pool::longest_hint

mod aside;
pub(super) mod news;

pub(super) use aside::ASKED;

use super::registry::StreamTimeline;
use crate::driver::Driver;
use crate::heap::{ChunkState, Heap, Kind, Ripe};
use crate::order::{Clock, TimelineId};
use crate::sync::{Arc, Rank, Ranked};
use crate::units::Epoch;
use aside::{Aside, Place};
use core::ops::Bound;
use hashbrown::HashMap;
use news::News;
use std::collections::BTreeSet;

/// With no more pools than this, none begins to stand aside: each is looked at. One that stands aside while some of it is complete
/// counts twice.
const FEW: usize = 64;
/// So many are named at once, of many.
const PAGE: usize = 16;
/// Classes to a power of two, as a power of two.
const FINE: u32 = 3;

/// A pool by a length, in granules.
type At = (u32, u32);

/// A class of lengths, eight to a power of two: of two lengths the longer one is in no lower class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Class(u32);

impl Class {
    /// The class of a range of `len` granules.
    fn of(len: u32) -> Class {
        let power = len.checked_ilog2().unwrap_or(0);
        // The power, and behind it the bits of the length that follow its first.
        let bits = if power < FINE { len << (FINE - power) } else { len >> (power - FINE) };
        Class(power << FINE | bits & ((1 << FINE) - 1))
    }
    /// The last length in the class of `len`.
    fn high(len: u32) -> u32 {
        len | ((1 << len.checked_ilog2().unwrap_or(0).saturating_sub(FINE)) - 1)
    }
}

/// Of each class of lengths the pool with the least length, and of these the oldest, from `len` granules on.
fn first_of_each_class(pools: &BTreeSet<At>, len: u32) -> impl Iterator<Item = u32> + use<'_> {
    let mut from = Some(len);
    core::iter::from_fn(move || {
        let &(len, pool) = pools.range((from?, 0)..).next()?;
        from = Class::high(len).checked_add(1);
        Some(pool)
    })
}

/// All pools that have free memory.
pub(crate) struct MigrationSources {
    kinds: Ranked<[Order; 2]>,
    /// All pools that have ranges in flight, by their bound.
    in_flight: Ranked<BTreeSet<At>>,
    /// Of pools that stand aside.
    news: Arc<News>,
    pub(super) few: usize,
}

/// All pools that have free memory of one kind.
#[derive(Default)]
struct Order {
    /// By their bound: on what is complete, for those that stand aside.
    by_len: BTreeSet<At>,
    aside: Aside,
}

/// Pools that may have enough, by their numbers.
pub(super) struct Candidates {
    /// All of which the bound is high enough, in order of their numbers; of many the first page, in order of their lengths.
    pub(super) first: Vec<u32>,
    /// Where the next page begins, for each kind.
    pub(super) more: Vec<Page>,
    /// Of those that stand aside: those of which the stream may be ordered after something.
    pub(super) in_order: Vec<u32>,
    /// And some to be asked about.
    pub(super) to_ask: Vec<u32>,
}

/// Pools that have enough of a kind, behind this one.
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

    fn call_back(&mut self, pool: u32) {
        if let Some(place) = self.aside.remove(pool) {
            self.set(pool, place.complete, place.longest);
        }
    }
}

impl MigrationSources {
    pub(crate) fn new(few: Option<usize>) -> MigrationSources {
        let kinds = Ranked::new(Rank::Leaf, Default::default());
        let in_flight = Ranked::new(Rank::Leaf, BTreeSet::new());
        MigrationSources { kinds, in_flight, news: News::new(), few: few.unwrap_or(FEW) }
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
            // All that there may be is complete.
            order.set(pool, place.complete, now);
            return;
        }
        order.set(pool, place.complete, complete);
        (place.complete, place.longest) = (complete, now);
        order.aside.insert(pool, place);
    }

    /// Whether there are so many pools that one which was looked at in vain stands aside.
    pub(super) fn are_many(&self, kind: Kind) -> bool {
        self.kinds.lock()[kind as usize].len() > self.few
    }

    /// A pool that was looked at in vain stands aside until there is news of its timeline. `ripe` is what was complete of it when
    /// `complete` was. Called under the pool's lock. Returns whether it does: not if all that it may have is complete.
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
        timeline.listeners.listen(&self.news, pool);
        // Only now: what came since would not be told.
        let (now, asking) = timeline.progress();
        if now > complete {
            timeline.listeners.tell();
        }
        if asking {
            self.kinds.lock()[kind as usize].aside.ask_about(pool);
        }
        true
    }

    /// Something entered a pool, which stands aside no more. Called under the pool's lock.
    pub(crate) fn call_back(&self, pool: u32, kind: Kind) {
        self.kinds.lock()[kind as usize].call_back(pool);
    }

    /// Who may have a free range of `len` granules of one of these kinds, for a stream and its clock.
    pub(super) fn of(&self, kinds: &[Kind], len: u32, to: TimelineId, clock: &Clock) -> Candidates {
        let news = self.news.take();
        let mut orders = self.kinds.lock();
        for pool in news {
            orders.iter_mut().for_each(|order| order.call_back(pool));
        }
        let mut found =
            Candidates { first: Vec::new(), more: Vec::new(), in_order: Vec::new(), to_ask: Vec::new() };
        for &kind in kinds {
            let order = &mut orders[kind as usize];
            if order.len() > self.few {
                found.more.push(Page(kind, (len.saturating_sub(1), u32::MAX)));
            } else {
                found.first.extend(order.by_len.range((len, 0)..).map(|&(_, pool)| pool));
            }
            found.in_order.extend(order.aside.in_order(len, to, clock));
            found.to_ask.extend(order.aside.next_to_ask(len));
        }
        drop(orders);
        for numbers in [&mut found.first, &mut found.in_order, &mut found.to_ask] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        found
    }

    /// The next of many that have enough: those with the least to spare first. Nobody, at the end.
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

    /// Some who may have a free range of `len` granules, pending or not: the oldest of each class.
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

    /// All who may have a range of `len` granules, of either kind, pending or not, or in flight: by their numbers.
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

    /// Panics unless F1 and F3 hold of these pools, with their bounds, and of nobody else. Not while other threads allocate or free.
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

    /// Panics unless F2 holds. Not while the timeline moves on.
    pub(crate) fn check_aside<D: Driver>(&self, pool: u32, timeline: &StreamTimeline<D>, heap: &Heap) {
        let complete = timeline.seen();
        if self.news.is_of(pool) {
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
