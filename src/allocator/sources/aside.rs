//! Pools that were looked at in vain and stand aside: what was seen of them, and where a request finds them.
//!
//! For a pool that stands aside the result of the look is kept: its longest free range, the longest one that is complete, and
//! the stamps of the longer ones. A request finds it by its timeline, if its stream is ordered after some of what is there; or by the
//! length of its longest range, if it has a marker to query, or if some stream has to be waited for.
//!
//! It does not know why a pool stands aside, nor when it comes back.

use super::{At, Class, first_of_each_class};
use crate::heap::Ripe;
use crate::order::{Clock, TimelineId};
use crate::units::{Epoch, Granules};
use core::ops::Bound;
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// How many of those that stand aside and have a marker a miss queries, each time others.
pub(in super::super) const QUERIED: usize = 4;

/// A pool that was looked at in vain.
pub(super) struct Place {
    pub(super) timeline: TimelineId,
    /// The bound on its longest free range: more than what is complete.
    pub(super) longest: u32,
    /// No complete range of it is longer.
    pub(super) complete: u32,
    ripe: Ripe,
    /// The stamps of what became free since are at least this.
    since: Epoch,
    pub(super) queryable: bool,
}

impl Place {
    pub(super) fn new(timeline: TimelineId, longest: u32, ripe: Ripe, since: Epoch) -> Place {
        Place { timeline, longest, complete: ripe.longest.0, ripe, since, queryable: false }
    }
    /// No free range of at least `len`, longer than what is complete, has a stamp below this.
    pub(super) fn least(&self, len: u32) -> Epoch {
        self.ripe.least(Granules(len)).min(self.since)
    }
}

/// The pools that stand aside for requests of one kind.
#[derive(Default)]
pub(super) struct Aside {
    places: HashMap<u32, Place>,
    /// By their timelines.
    of_timeline: BTreeSet<(TimelineId, u32)>,
    /// By their longest free range.
    by_len: BTreeSet<At>,
    /// Those that have a marker to query, also by their longest free range.
    queryable: BTreeSet<At>,
    /// Which of these was queried last, by requests of each class.
    last_queried: HashMap<Class, At>,
}

impl Aside {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
    /// How many classes of requests have queried.
    #[cfg(test)]
    pub(super) fn classes(&self) -> usize {
        self.last_queried.len()
    }
    pub(super) fn get(&self, pool: u32) -> Option<&Place> {
        self.places.get(&pool)
    }

    pub(super) fn insert(&mut self, pool: u32, place: Place) {
        self.remove(pool);
        self.by_len.insert((place.longest, pool));
        if place.queryable {
            self.queryable.insert((place.longest, pool));
        }
        self.of_timeline.insert((place.timeline, pool));
        self.places.insert(pool, place);
    }

    pub(super) fn remove(&mut self, pool: u32) -> Option<Place> {
        let place = self.places.remove(&pool)?;
        self.by_len.remove(&(place.longest, pool));
        self.queryable.remove(&(place.longest, pool));
        self.of_timeline.remove(&(place.timeline, pool));
        Some(place)
    }

    /// The pool has a marker that may be queried.
    pub(super) fn query_about(&mut self, pool: u32) {
        if let Some(place) = self.places.get_mut(&pool) {
            place.queryable = true;
            self.queryable.insert((place.longest, pool));
        }
    }

    /// The next ones to query, of those that may have `len` granules.
    pub(super) fn next_to_query(&mut self, len: u32) -> Vec<u32> {
        let class = Class::of(len);
        let last = self.last_queried.get(&class).copied().unwrap_or_default().max((len, 0));
        let behind = self.queryable.range((Bound::Excluded(last), Bound::Unbounded));
        let before = self.queryable.range((len, 0)..=last);
        let next: Vec<At> = behind.chain(before).take(QUERIED).copied().collect();
        if let Some(&last) = next.last() {
            self.last_queried.insert(class, last);
        }
        next.into_iter().map(|(_, pool)| pool).collect()
    }

    /// Those that may have `len` granules after which a stream with this clock is ordered; its own pools, which no clock names, are
    /// among them.
    pub(super) fn in_order(&self, len: u32, to: TimelineId, clock: &Clock) -> Vec<u32> {
        let may = |&(on, pool): &(TimelineId, u32)| {
            let ordered = |place: &Place| on == to || place.least(len) <= clock.get(on);
            let may = |place: &Place| place.longest >= len && ordered(place);
            self.places.get(&pool).is_some_and(may).then_some(pool)
        };
        if clock.len() < self.of_timeline.len() {
            let on_timeline = |on| self.of_timeline.range((on, 0)..=(on, u32::MAX));
            let timelines = clock.iter().map(|(on, _)| on).chain([to]);
            timelines.flat_map(on_timeline).filter_map(may).collect()
        } else {
            self.of_timeline.iter().filter_map(may).collect()
        }
    }

    /// For each class of lengths one that may have `len` granules.
    pub(super) fn of_each_class(&self, len: u32) -> impl Iterator<Item = u32> + use<'_> {
        first_of_each_class(&self.by_len, len)
    }

    /// All that may have `len` granules.
    pub(super) fn all_of(&self, len: u32) -> impl Iterator<Item = u32> + use<'_> {
        self.by_len.range((len, 0)..).map(|&(_, pool)| pool)
    }

    /// Panics unless exactly the pools that stand aside are found by their timelines and their lengths.
    pub(super) fn check(&self) {
        let by_len = |queryable: bool| {
            let these = self.places.iter().filter(move |(_, p)| p.queryable || !queryable);
            these.map(|(&pool, p)| (p.longest, pool)).collect::<BTreeSet<At>>()
        };
        assert_eq!(self.by_len, by_len(false), "F1: the lengths of pools that stand aside");
        assert_eq!(self.queryable, by_len(true), "F1: the lengths of those to be queried");
        let of_timeline: BTreeSet<_> = self.places.iter().map(|(&pool, p)| (p.timeline, pool)).collect();
        assert_eq!(self.of_timeline, of_timeline, "F1: the timelines of pools that stand aside");
    }
}
