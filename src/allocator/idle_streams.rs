//! Where a pool should not grow: which streams with free memory have nothing to do.
//!
//! A free records no event, so no marker covers what was freed last, and nothing shows that it is complete, even where its stream has long been idle.
//! A request that has grown as far as its policy or limit allows, or is about to move physical memory, records the missing markers of a few such streams and
//! queries them. Growth and moves take tens of microseconds, a marker and its query half of one, and an event on an idle stream is complete about as soon as it can be queried: so
//! they are queried [`QUERIES`] times in all. A stream whose earlier markers are not complete is busy, and is neither marked nor queried again. The host waits
//! for nothing, and no stream is made to.
//!
//! It does not know what becomes of the memory: the rungs that follow find it.

use super::core::lost;
use super::miss::Miss;
use super::pool::Pool;
use super::registry::{CONTEXT, StreamTimeline, is_marked_by_handle};
use crate::driver::Driver;
use crate::error::Error;
use crate::heap::{Kind, Want};
use crate::laws::cost;
use crate::order::Pending;
use crate::sync::{Arc, Ordering};
use crate::units::Granules;
use hashbrown::HashSet;
use smallvec::SmallVec;

/// How many streams one look queries and marks, if they can be marked.
const STREAMS: usize = 8;
/// How many pools it looks at.
const POOLS: usize = 64;
/// How many free ranges of a pool.
const RANGES: usize = 64;
/// How many queries it makes of events that it recorded: on an idle stream of an H200 99 in 100 are complete within 1.1 µs of their record, half within 0.2.
const QUERIES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };

/// What no marker covers.
struct Unmarked<D: Driver> {
    /// That any call may mark without ending a capture.
    timelines: Vec<Arc<StreamTimeline<D>>>,
    with_ranges_in_flight: Vec<Arc<Pool<D>>>,
}

impl<D: Driver> Miss<'_, D> {
    /// Looks for idle streams whose pools have free ranges of these kinds and of at least this length, or which ranges in flight of that length wait for;
    /// those come back. Returns whether more is known to be complete than before.
    ///
    /// # Errors
    /// That the context is lost. After any other error of a stream nothing is known about it, and the others are looked at.
    pub(super) fn finds_idle(&self, kinds: &[Kind], len: Granules) -> Result<bool, Error> {
        let core = self.core;
        if core.config.deterministic || !cost::looks_for_idle_streams() {
            return Ok(false);
        }
        let mut learnt = false;
        let mut marked: SmallVec<[Arc<StreamTimeline<D>>; STREAMS]> = SmallVec::new();
        let Unmarked { timelines, with_ranges_in_flight } = self.unmarked(kinds, len);
        for timeline in timelines.into_iter().take(STREAMS) {
            // If something before is not complete, this is not either.
            let before = core.registry.poll_completed(&core.driver, &timeline);
            let made = before.and_then(|complete| {
                learnt |= complete == Some(true);
                let idle = complete != Some(false) && timeline.covered() == timeline.seen();
                if idle { core.registry.make_marker(&core.driver, &timeline) } else { Ok(None) }
            });
            match made {
                Ok(Some(_)) => marked.push(timeline),
                Err(e) if e.is_context_lost() => return Err(Error::Driver(e)),
                _ => {}
            }
        }
        let mut queries = QUERIES;
        while !marked.is_empty() && queries > 0 {
            let mut at = 0;
            while at < marked.len() && queries > 0 {
                queries -= 1;
                match core.registry.poll_completed(&core.driver, &marked[at]) {
                    Ok(Some(false)) => at += 1,
                    Err(e) if e.is_context_lost() => return Err(Error::Driver(e)),
                    answer => {
                        learnt |= answer.is_ok();
                        drop(marked.remove(at));
                    }
                }
            }
        }
        // A query that brought something says nothing of one that failed.
        if !core.registry.alive() {
            return Err(lost());
        }
        for pool in with_ranges_in_flight {
            learnt |= pool.drain();
        }
        Ok(learnt)
    }

    /// What no marker covers, of each pool that may have a range of this length; each time of others first. For timelines that only a call may mark that names
    /// their stream a marker falls due.
    fn unmarked(&self, kinds: &[Kind], len: Granules) -> Unmarked<D> {
        let core = self.core;
        let mut pools = core.pools_with(len, POOLS);
        if pools.len() > STREAMS {
            let from = core.turn.fetch_add(STREAMS, Ordering::Relaxed) % pools.len();
            pools.rotate_left(from);
        }
        let (mut found, mut waited_for, mut with_ranges_in_flight) = (Vec::new(), Vec::new(), Vec::new());
        for pool in pools {
            let covered = pool.timeline.covered();
            let may_have_free = kinds.iter().any(|&kind| pool.longest_hint(kind) >= len.0);
            let state = pool.lock();
            let has_unmarked = |&kind: &Kind| {
                let want = Want::new(len, kind);
                state.heap.find_where(&want, RANGES, |stamp, _| stamp > covered).is_some()
            };
            let is_own = pool.number == self.pool.number;
            if !is_own && may_have_free && kinds.iter().any(has_unmarked) {
                found.push(Arc::clone(&pool.timeline));
            }
            if state.in_flight.longest() >= len {
                waited_for.extend(state.in_flight.oldest());
                drop(state);
                with_ranges_in_flight.push(pool);
            }
        }
        {
            let seen = core.registry.seen();
            let unmarked = |p: &Pending| seen.timeline(p.on).filter(|on| on.covered() < p.epoch).cloned();
            found.extend(waited_for.iter().filter_map(unmarked));
        }
        let mut before = HashSet::new();
        found.retain(|timeline| before.insert(timeline.id));
        let (now, later): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|timeline| is_marked_by_handle(&core.driver, timeline));
        later.iter().filter(|timeline| timeline.id != CONTEXT).for_each(|timeline| timeline.raise_due());
        Unmarked { timelines: now, with_ranges_in_flight }
    }
}
