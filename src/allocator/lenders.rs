//! Which pools may have something to lend: their numbers, by the class of their longest free range.
//!
//! A miss of a program with thousands of streams cannot look at every pool. So the core keeps all pools that have free memory
//! in the order of a class of lengths, and a miss looks at those of its own class and above. There are eight classes to a power
//! of two: what is left of segments is often a little shorter than what everybody asks for. A pool moves when the bound on
//! its longest free range changes class: upwards at a free or an entry that makes a range longer than the bound, downwards where a
//! search found the truth. Neither is a hit, nor a free that makes no longer range than there was.
//!
//! Nor can a miss look again and again at thousands of pools whose memory is all pending. Where there are many, a pool that
//! was looked at in vain stands aside: in its place it has the class of what is complete of it. It comes back when its
//! timeline moves on ([`news`]) or something enters it; a free brings nothing that is complete. Meanwhile a miss finds it only
//! if its stream is ordered after some of it, or when it asks the device about a few of those that have a marker to ask about.
//!
//! - **F1** While nobody holds a pool's lock, it stands in the class of its bound, or nowhere if that is 0. The bound may be
//!   too high and is never too low ([`Pool::longest_hint`]), so a pool that could serve is never left out.
//! - **F2** A pool that stands aside, and of which there is no news, has no complete free range longer than it says, and no
//!   longer one with a stamp below the least that it says.
//!
//! It does not know what a pool would accept, nor pools that have left: numbers are looked up in the list.
//!
//! [`Pool::longest_hint`]: super::pool::Pool::longest_hint

pub(super) mod news;

use super::registry::Line;
use crate::driver::Driver;
use crate::heap::{ChunkState, Heap, Ripe};
use crate::order::{Clock, TimelineId};
use crate::sync::{Arc, Rank, Ranked};
use crate::units::Epoch;
use core::ops::Bound;
use hashbrown::HashMap;
use news::News;
use std::collections::BTreeSet;

/// Classes to a power of two, as a power of two.
const FINE: u32 = 3;
/// With no more pools than this, none begins to stand aside: each is looked at.
const FEW: usize = 64;
/// So many of those that stand aside and have a marker are asked about by a miss, each time others.
pub(super) const ASKED: usize = 4;

/// A class of lengths: of two lengths the longer one is in no lower class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Class(u32);

impl Class {
    /// The class of a range of `len` granules; none holds nothing.
    fn of(len: u32) -> Option<Class> {
        let power = len.checked_ilog2()?;
        // The power, and behind it the bits of the length that follow its first.
        let bits = if power < FINE { len << (FINE - power) } else { len >> (power - FINE) };
        Some(Class(power << FINE | bits & ((1 << FINE) - 1)))
    }
}

/// All pools that have free memory.
pub(crate) struct Lenders {
    all: Ranked<All>,
    /// Of pools that stand aside.
    news: Arc<News>,
}

struct All {
    /// By the class of the bound: of what is complete, for those that stand aside.
    by_class: BTreeSet<(Class, u32)>,
    aside: HashMap<u32, Aside>,
    /// The pools that stand aside, by their timelines.
    of_line: BTreeSet<(TimelineId, u32)>,
    /// They by the class of their longest free range.
    resting: BTreeSet<(Class, u32)>,
    /// Those of them that have a marker to ask about, by the class of their longest free range.
    asking: BTreeSet<(Class, u32)>,
    /// Who of these was asked about last, by requests of each class.
    asked: HashMap<Class, (Class, u32)>,
}

/// A pool that was looked at in vain.
struct Aside {
    line: TimelineId,
    /// The bounds on its longest free range, and on the longest that is complete.
    longest: u32,
    ripe: u32,
    /// Who is ordered after no marker from here on can have none of it.
    least: Epoch,
    asking: bool,
}

/// Pools that may hold enough, by their numbers, in order.
pub(super) struct Candidates {
    /// Those in a class above that of the request: their bound is high enough.
    pub(super) surely: Vec<u32>,
    /// Those in the class of the request: their bound tells.
    pub(super) perhaps: Vec<u32>,
    /// Of those that stand aside: those of which the stream may be ordered after something.
    pub(super) in_order: Vec<u32>,
    /// And some to be asked about.
    pub(super) to_ask: Vec<u32>,
}

impl All {
    fn set(&mut self, pool: u32, before: Option<Class>, now: Option<Class>) {
        if before == now {
            return;
        }
        if let Some(class) = before {
            self.by_class.remove(&(class, pool));
        }
        if let Some(class) = now {
            self.by_class.insert((class, pool));
        }
    }

    /// The pool stands aside no more.
    fn call_back(&mut self, pool: u32) {
        let Some(aside) = self.aside.remove(&pool) else { return };
        self.set(pool, Class::of(aside.ripe), Class::of(aside.longest));
        self.unfile(pool, aside.longest);
        self.of_line.remove(&(aside.line, pool));
    }

    /// A pool that stands aside is found by the length of its longest range, and if it is to be asked about, there too.
    fn file(&mut self, pool: u32, longest: u32, asking: bool) {
        let Some(class) = Class::of(longest) else { return };
        self.resting.insert((class, pool));
        if asking {
            self.asking.insert((class, pool));
        }
    }
    fn unfile(&mut self, pool: u32, longest: u32) {
        let Some(class) = Class::of(longest) else { return };
        self.resting.remove(&(class, pool));
        self.asking.remove(&(class, pool));
    }

    /// The next ones to ask about of those that may have enough.
    fn next_to_ask(&mut self, least: Class) -> Vec<u32> {
        let from = self.asked.get(&least).copied().unwrap_or((least, 0));
        let behind = self.asking.range((Bound::Excluded(from), Bound::Unbounded));
        let before = self.asking.range((least, 0)..=from);
        let next: Vec<(Class, u32)> = behind.chain(before).take(ASKED).copied().collect();
        if let Some(&last) = next.last() {
            self.asked.insert(least, last);
        }
        next.into_iter().map(|(_, pool)| pool).collect()
    }

    /// Those that a stream with this clock may be ordered after: its own, which no clock names, among them.
    fn in_order(&self, least: Class, to: TimelineId, clock: &Clock) -> Vec<u32> {
        let may = |&(on, pool): &(TimelineId, u32)| {
            let ordered = |a: &Aside| on == to || a.least <= clock.get(on);
            let may = |a: &Aside| ordered(a) && Class::of(a.longest) >= Some(least);
            self.aside.get(&pool).is_some_and(may).then_some(pool)
        };
        if clock.len() < self.of_line.len() {
            let on_line = |on| self.of_line.range((on, 0)..=(on, u32::MAX));
            let lines = clock.iter().map(|(on, _)| on).chain([to]);
            lines.flat_map(on_line).filter_map(may).collect()
        } else {
            self.of_line.iter().filter_map(may).collect()
        }
    }
}

impl Lenders {
    pub(crate) fn new() -> Lenders {
        let all = All {
            by_class: BTreeSet::new(),
            aside: HashMap::new(),
            of_line: BTreeSet::new(),
            resting: BTreeSet::new(),
            asking: BTreeSet::new(),
            asked: HashMap::new(),
        };
        Lenders { all: Ranked::new(Rank::Leaf, all), news: News::new() }
    }

    /// The bound of a pool changed, from `before`. Called under the pool's lock.
    pub(crate) fn moved(&self, pool: u32, before: u32, now: u32) {
        if Class::of(before) == Class::of(now) {
            return;
        }
        let mut all = self.all.lock();
        let Some(mut aside) = all.aside.remove(&pool) else {
            all.set(pool, Class::of(before), Class::of(now));
            return;
        };
        all.unfile(pool, aside.longest);
        let ripe = aside.ripe;
        aside.ripe = ripe.min(now);
        all.set(pool, Class::of(ripe), Class::of(aside.ripe));
        aside.longest = now;
        all.file(pool, now, aside.asking);
        let over = Class::of(aside.ripe) == Class::of(now);
        all.aside.insert(pool, aside);
        if over {
            all.call_back(pool);
        }
    }

    /// A pool that was looked at in vain stands aside until there is news of its timeline, if there are many pools. `ripe` is
    /// what was complete of it when `complete` was. Called under the pool's lock. Returns whether it does.
    pub(super) fn set_aside<D: Driver>(
        &self,
        pool: u32,
        line: &Line<D>,
        longest: u32,
        ripe: &Ripe,
        complete: Epoch,
    ) -> bool {
        let ripe_class = Class::of(ripe.longest.0);
        {
            let mut all = self.all.lock();
            if ripe_class >= Class::of(longest) || all.by_class.len() + all.aside.len() <= FEW {
                return false;
            }
            let before = all.aside.get(&pool).map_or(longest, |a| a.ripe);
            all.set(pool, Class::of(before), ripe_class);
            let aside = Aside {
                line: line.id,
                longest,
                ripe: ripe.longest.0,
                least: ripe.least.min(Epoch(line.marked().0 + 1)),
                asking: false,
            };
            all.aside.insert(pool, aside);
            all.of_line.insert((line.id, pool));
            all.unfile(pool, longest);
            all.file(pool, longest, false);
        }
        line.listeners.listen(&self.news, pool);
        // Only now: what came since would not be told.
        let (now, asking) = line.progress();
        if now > complete {
            line.listeners.tell();
        }
        if asking {
            let mut all = self.all.lock();
            if let Some(aside) = all.aside.get_mut(&pool) {
                aside.asking = true;
                all.file(pool, longest, true);
            }
        }
        true
    }

    /// Something entered a pool, which stands aside no more. Called under the pool's lock.
    pub(crate) fn call_back(&self, pool: u32) {
        self.all.lock().call_back(pool);
    }

    /// Who may have a free range of `len` granules, for a stream and its clock.
    pub(super) fn of(&self, len: u32, to: TimelineId, clock: &Clock) -> Candidates {
        let least = Class::of(len).unwrap_or(Class(0));
        let news = self.news.take();
        let above = Class(least.0 + 1);
        let mut all = self.all.lock();
        for pool in news {
            all.call_back(pool);
        }
        let enough = |pool: &u32| all.aside.get(pool).is_none_or(|aside| aside.ripe >= len);
        let perhaps = all.by_class.range((least, 0)..(above, 0)).map(|&(_, pool)| pool);
        let perhaps = perhaps.filter(enough).collect();
        let mut surely: Vec<u32> = all.by_class.range((above, 0)..).map(|&(_, pool)| pool).collect();
        let (in_order, to_ask) = (all.in_order(least, to, clock), all.next_to_ask(least));
        drop(all);
        surely.sort_unstable();
        Candidates { surely, perhaps, in_order, to_ask }
    }
    /// Where there are many, some who may have a free range of `len` granules, pending or not: the oldest of each class.
    pub(super) fn oldest_of(&self, len: u32) -> Option<Vec<u32>> {
        let least = Class::of(len)?;
        let all = self.all.lock();
        if all.by_class.len() + all.aside.len() <= FEW {
            return None;
        }
        let mut oldest = Vec::new();
        for pools in [&all.by_class, &all.resting] {
            let mut from = least;
            while let Some(&(class, pool)) = pools.range((from, 0)..).next() {
                oldest.push(pool);
                from = Class(class.0 + 1);
            }
        }
        drop(all);
        oldest.sort_unstable();
        Some(oldest)
    }

    /// Panics unless the pool stands in the class of its bound, or of what is complete of it if it stands aside, and nowhere
    /// else.
    pub(crate) fn check(&self, pool: u32, bound: u32) {
        let all = self.all.lock();
        let stands: Vec<Class> = all.by_class.iter().filter(|at| at.1 == pool).map(|at| at.0).collect();
        let aside = all.aside.get(&pool);
        let right: Vec<Class> = Class::of(aside.map_or(bound, |a| a.ripe)).into_iter().collect();
        assert_eq!(stands, right, "F1: the classes of pool {pool}, whose bound is {bound}");
        let resting: Vec<Class> = all.resting.iter().filter(|at| at.1 == pool).map(|at| at.0).collect();
        let right: Vec<Class> = aside.and_then(|_| Class::of(bound)).into_iter().collect();
        assert_eq!(resting, right, "F1: pool {pool}, which stands aside");
        let asking: Vec<Class> = all.asking.iter().filter(|at| at.1 == pool).map(|at| at.0).collect();
        let right: Vec<Class> =
            aside.filter(|a| a.asking).and_then(|_| Class::of(bound)).into_iter().collect();
        assert_eq!(asking, right, "F1: pool {pool}, to be asked about");
        let at: Vec<TimelineId> = all.of_line.iter().filter(|l| l.1 == pool).map(|l| l.0).collect();
        let right: Vec<TimelineId> = aside.map(|a| a.line).into_iter().collect();
        assert_eq!(at, right, "F1: the timeline of pool {pool}");
    }

    /// Panics unless F2 holds. Not while the timeline moves on.
    pub(crate) fn check_aside<D: Driver>(&self, pool: u32, line: &Line<D>, heap: &Heap) {
        let complete = line.seen();
        let Some((ripe, least)) = self.all.lock().aside.get(&pool).map(|a| (a.ripe, a.least)) else { return };
        if self.news.is_of(pool) {
            return;
        }
        for range in heap.snapshot().segments.iter().flat_map(|s| &s.ranges) {
            assert!(
                range.state != ChunkState::Free
                    || range.len.0 <= ripe
                    || (range.stamp > complete && range.stamp >= least),
                "F2: pool {pool} stands aside with {ripe} granules up to {complete:?} and none below {least:?}, and has {range:?}"
            );
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
