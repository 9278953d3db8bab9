//! What is known to be complete, how it becomes known, and what may then be forgotten.
//!
//! Copies, waits and operations on several streams make markers, and possibly nothing ever queries one of them: a
//! program that lives on cache hits and device-side waits never does. So each call that makes a marker pays for keeping their number
//! down. When twice as many are published as the last sweep left ([`Outstanding`]), all timelines are swept: what is
//! complete is retired, its events return to the pool, and timelines that are complete leave the table. A sweep makes at most one
//! query and the logarithm of a timeline's markers, for timelines that have some; so a marker costs a constant number of
//! queries, and the number of markers is at most twice that of those that were pending at the last sweep, or
//! [`BURST`], or the number of timelines.
//!
//! If no allocator of the device may learn from queries (`Config::deterministic`), timelines are thinned instead: every
//! second of their older markers is dropped. What it covered is covered by the next one. And of closed streams, whose end would
//! then never be known, the older ones are waited for.
//!
//! It does not know pools or bytes.

use super::super::bounded::Place;
use super::super::events::{LEAST, SharedEvent};
use super::{CLOSING, CONTEXT, Registry, StreamTimeline};
use crate::driver::{Driver, DriverResult};
use crate::laws::{self, cost};
use crate::order::{Clock, Marker, Pending, TimelineId};
use crate::sync::plain::{AtomicU32, AtomicU64};
use crate::sync::{Arc, Ordering, assert_unlocked};
use crate::units::Epoch;
use core::time::Duration;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// How many markers of a timeline are never thinned: the newest, which waits are for.
const DENSE: usize = 16;
/// How many closed streams whose end is not known a device keeps if its allocators make no queries; with twice as many it waits.
const UNFINISHED: usize = 32;
/// How long it waits for the end of older ones, in all.
const PATIENCE: Duration = Duration::from_secs(2);

/// From this number of markers on, each retirement makes a due sweep a little later, instead of due at once.
const BURST: u64 = 4 * LEAST as u64;

/// When so many markers were retired for each event that the pool may keep, the pool's size is fitted to the need: a program that synchronises before
/// many markers are out never reaches a sweep. Each time the pool shrinks by a quarter, so that a loop of bursts creates one event in 32 markers anew.
const EVENTS_PAID: u64 = 8;

/// A wait of the host that the program makes counts as so many retired markers: a program that makes no more markers also gives back what a
/// burst left, and a loop of bursts and waits creates eight events a wait anew at most.
const WAIT_PAYS: u64 = 256;

/// How many queries in vain end a search that a request makes: with a hundred streams that are behind, each miss would
/// otherwise query the device a hundred times. The sweeps that markers pay for query all timelines.
pub(crate) const QUESTIONS: usize = 4;

/// How many markers are published, and when to sweep them. No protocol depends on these numbers: whatever a thread reads, only the time
/// of the next sweep depends on it.
pub(super) struct Outstanding {
    /// Published and not retired.
    markers: AtomicU64,
    /// The most there were since the pool of events was last fitted, and how many were retired since, or what counts as much.
    peak: AtomicU64,
    retired: AtomicU64,
    /// The number at which all timelines are swept; [`LOOKING`] during a sweep.
    look_at: AtomicU64,
    /// Timelines in the table: what a sweep costs.
    timelines: AtomicU64,
    /// Closed timelines in the table, and the number of them at which older ones are waited for if nothing queries them.
    closed: AtomicU64,
    finish_at: AtomicU64,
    /// How many allocators of the device learn from queries.
    queries_allowed: AtomicU32,
    /// Where the next search among many timelines starts.
    turn: AtomicU32,
    /// The closed timeline that was queried last.
    queried: AtomicU32,
}

/// [`Outstanding::look_at`] during a sweep.
const LOOKING: u64 = u64::MAX;

/// A sweep under way; its drop sets when the next one is due.
struct Look<'a> {
    out: &'a Outstanding,
    next: u64,
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.out.look_at.store(self.next, Ordering::Relaxed);
    }
}

impl Default for Outstanding {
    fn default() -> Outstanding {
        Outstanding {
            markers: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            look_at: AtomicU64::new(LEAST as u64),
            timelines: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            finish_at: AtomicU64::new(2 * UNFINISHED as u64),
            queries_allowed: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            queried: AtomicU32::new(0),
        }
    }
}

impl<D: Driver> Registry<D> {
    /// An allocator of this device that learns from queries was created.
    pub(crate) fn allow_queries(&self) {
        self.outstanding.queries_allowed.fetch_add(1, Ordering::Relaxed);
    }
    /// It was dropped.
    pub(crate) fn disallow_queries(&self) {
        self.outstanding.queries_allowed.fetch_sub(1, Ordering::Relaxed);
    }
    pub(super) fn queries_allowed(&self) -> bool {
        self.outstanding.queries_allowed.load(Ordering::Relaxed) != 0
    }

    /// How many timelines are in the table.
    #[cfg(feature = "cuda")]
    pub(super) fn timeline_count(&self) -> u64 {
        self.outstanding.timelines.load(Ordering::Relaxed)
    }
    /// Sets how many timelines are in the table.
    pub(super) fn count_timelines(&self, now: usize) {
        self.outstanding.timelines.store(now as u64, Ordering::Relaxed);
    }

    /// The last step of O8.
    pub(super) fn publish(&self, timeline: &StreamTimeline<D>, marker: Marker<SharedEvent<D>>) {
        // Counted before any other thread can retire it.
        let now = self.outstanding.markers.fetch_add(1, Ordering::Relaxed) + 1;
        self.outstanding.peak.fetch_max(now, Ordering::Relaxed);
        let number = marker.number;
        timeline.publish(marker);
        timeline.listeners.notify();
        // A wait for the device that began after the reservation may have proved the number, and the timeline may have left the table since: the
        // thread that retires complete markers came too early for this one.
        if timeline.seen() >= number {
            self.retire_markers(timeline);
        }
    }

    /// Work that is known to be complete was ordered after all of this, so all of this is complete too.
    pub(crate) fn learn(&self, clock: &Clock) {
        let raised: SmallVec<[Arc<StreamTimeline<D>>; 4]> = {
            let table = self.table.lock();
            let raised = clock.iter().filter_map(|(on, epoch)| {
                let timeline = table.by_id.get(&on).filter(|timeline| timeline.seen() < epoch)?;
                timeline.complete_to(epoch);
                Some(Arc::clone(timeline))
            });
            raised.collect()
        };
        for timeline in raised {
            self.retire_markers(&timeline);
        }
    }

    /// A call made after the marker was recorded found it complete: so is everything that it covers, its clock included.
    pub(crate) fn marker_complete(&self, timeline: &StreamTimeline<D>, marker: &Marker<SharedEvent<D>>) {
        timeline.complete_to(marker.number);
        self.learn(&marker.copy);
        if laws::completion_proves_now() {
            self.learn(&timeline.clock());
        }
        self.complete_through(timeline, marker.number);
    }

    /// The call made after [`StreamTimeline::reserve_epoch`] has returned: everything up to the number is complete.
    pub(crate) fn complete_through(&self, timeline: &StreamTimeline<D>, epoch: Epoch) {
        timeline.complete_to(epoch);
        self.retire_markers(timeline);
    }

    /// Complete markers leave their timeline. Their events return to the pool with the last holder.
    fn retire_markers(&self, timeline: &StreamTimeline<D>) {
        let done: SmallVec<[Marker<SharedEvent<D>>; 8]> = {
            let mut state = timeline.state.lock();
            state.markers.retire(timeline.seen()).collect()
        };
        self.forget(done);
    }

    /// These markers left their timeline; no lock is held.
    pub(super) fn forget(&self, markers: impl IntoIterator<Item = Marker<SharedEvent<D>>>) {
        let mut gone = 0;
        for marker in markers {
            drop(marker);
            gone += 1;
        }
        if gone == 0 {
            return;
        }
        let out = &self.outstanding;
        let left = out.markers.fetch_sub(gone, Ordering::Relaxed).saturating_sub(gone);
        self.pay_for_events(gone, left);
        // After a burst the next sweep comes soon, and gives its events back; but if small bursts come in a loop, not after each of them.
        // Never sooner than the markers since the last one pay for: each sweep looks at all timelines.
        let at = out.look_at.load(Ordering::Relaxed);
        let timelines = cost::look_pays(out.timelines.load(Ordering::Relaxed));
        let next = (2 * left).max(timelines).max(LEAST as u64).max((at - at / 8).min(BURST));
        if at != LOOKING && next < at {
            let _ = out.look_at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The program made the host wait.
    pub(crate) fn host_waited(&self) {
        if cost::waits_pay() {
            self.pay_for_events(WAIT_PAYS, self.outstanding.markers.load(Ordering::Relaxed));
        }
    }

    /// Counts `markers` that were retired, or what counts as much; `left` are still there.
    fn pay_for_events(&self, markers: u64, left: u64) {
        let max = self.events.max();
        let retired = self.outstanding.retired.fetch_add(markers, Ordering::Relaxed) + markers;
        if retired >= EVENTS_PAID.saturating_mul(max as u64) {
            self.fit_events(left);
        } else {
            self.events.keep_at_most(max);
        }
    }

    /// Sets the size of the event pool to the largest number of markers since the last call, rounded up to a power of two, but shrinks it by no more than
    /// a quarter each time, so that a loop of bursts does not destroy and create the events of each. `left` markers are there now.
    fn fit_events(&self, left: u64) {
        let out = &self.outstanding;
        out.retired.store(0, Ordering::Relaxed);
        let peak = out.peak.swap(left, Ordering::Relaxed);
        let before = self.events.max();
        let wanted = usize::try_from(peak.next_power_of_two()).unwrap_or(usize::MAX);
        self.events.keep_at_most((before - before / 4).max(wanted));
    }

    /// Queries the published markers of a timeline for the newest one that is complete, by bisection. A complete event is the expensive
    /// one to query (DESIGN.md, what the driver costs), so none is queried twice.
    ///
    /// Returns whether more is complete; `None` if there was nothing to query. A failed query
    /// says nothing about the other markers: it neither ends the search, nor is it the first one that the next search repeats. An event that a capture
    /// took is queried once, and then removed.
    ///
    /// # Errors
    /// The driver's, if it brought nothing; never to be read as complete.
    pub(crate) fn poll_completed(
        &self,
        driver: &D,
        timeline: &StreamTimeline<D>,
    ) -> DriverResult<Option<bool>> {
        let (mut done, mut open) = (None::<Marker<SharedEvent<D>>>, None);
        let mut failed = None;
        let mut behind = timeline.state.lock().behind;
        loop {
            let known = done.as_ref().map_or_else(|| timeline.seen(), |m| m.number);
            // After the oldest was found complete, the newest is next.
            let oldest_first = behind && done.is_none() && open.is_none();
            let probe = timeline.state.lock().markers.probe(known, open, oldest_first).cloned();
            let Some(probe) = probe else { break };
            match self.is_done(driver, &probe) {
                Ok(true) => done = Some(probe),
                Ok(false) => open = Some(probe.number),
                // It was removed, and says nothing about the others.
                Err(e) if self.is_captured(timeline, &probe, &e) => {}
                Err(e) => {
                    let again = failed.is_some() || e.is_context_lost();
                    failed = Some(e);
                    if again {
                        break;
                    }
                    // If the newest is complete, so is this one; if this is the newest, an older one may be complete.
                    if !oldest_first {
                        open = Some(probe.number);
                    }
                    behind = false;
                }
            }
        }
        if done.is_some() || open.is_some() || failed.is_some() {
            timeline.state.lock().behind = open.is_some() && failed.is_none();
        }
        let Some(mut newest) = done else {
            return failed.map_or_else(|| Ok(open.map(|_| false)), Err);
        };
        if laws::completes_next()
            && let Some(next) = timeline.state.lock().markers.above(newest.number).next()
        {
            newest = next.clone();
        }
        self.marker_complete(timeline, &newest);
        Ok(Some(true))
    }

    fn is_done(&self, driver: &D, marker: &Marker<SharedEvent<D>>) -> DriverResult<bool> {
        assert_unlocked("an event is queried");
        // An error is never "complete" (O4).
        let answer = self.watch(driver.relaxed(|| driver.query(&marker.event)));
        laws::is_done(answer)
    }

    /// Drains ranges in flight to the end. `drain` takes out what is over and returns which uses the rest waits for; if `queries`, their
    /// timelines are queried, each once, until so many `questions` were in vain. A range whose use is over
    /// waits for its next one, so it may take as many rounds as a range has uses. A stream that cannot be queried does not keep
    /// the others from it.
    ///
    /// # Errors
    /// The driver's; what was drained stays drained.
    pub(crate) fn drain_to_end(
        &self,
        driver: &D,
        queries_allowed: bool,
        mut questions: usize,
        mut drain: impl FnMut() -> Vec<Pending>,
    ) -> DriverResult<()> {
        let (mut queried, mut refused) = (BTreeSet::new(), Ok(()));
        loop {
            let mut waiting = drain();
            waiting.retain(|p| queries_allowed && queried.insert(p.on));
            if waiting.is_empty() || questions == 0 {
                return refused;
            }
            // If there are many timelines, each call starts at other ones.
            let from = self.outstanding.turn.fetch_add(QUESTIONS as u32, Ordering::Relaxed) as usize;
            let from = if waiting.len() > QUESTIONS { from % waiting.len() } else { 0 };
            waiting.rotate_left(from);
            for timeline in self.timelines_with_progress(&waiting) {
                match self.poll_completed(driver, &timeline) {
                    Ok(progressed) => questions -= usize::from(progressed == Some(false)),
                    Err(e) if e.is_of_one_stream() => {
                        questions -= 1;
                        refused = refused.and(Err(e));
                    }
                    Err(e) => return Err(e),
                }
                if questions == 0 {
                    break;
                }
            }
        }
    }

    /// Those of the timelines of which a query may find more complete. Ranges may wait for thousands that have no marker yet: they cost a look
    /// at two numbers each, and one lock in all.
    fn timelines_with_progress(&self, waiting: &[Pending]) -> Vec<Arc<StreamTimeline<D>>> {
        let seen = self.seen();
        let timelines = waiting.iter().filter_map(|p| seen.timeline(p.on));
        timelines.filter(|timeline| timeline.may_have_progressed()).cloned().collect()
    }

    /// A marker fell due because ranges wait for this timeline: learns what is complete of it, so that frees find ranges to
    /// drain even if no request misses.
    pub(crate) fn learn_of(&self, driver: &D, timeline: &StreamTimeline<D>) {
        if self.queries_allowed() {
            // On an error, the next call that needs the stream returns it.
            let _ = self.poll_completed(driver, timeline);
        }
    }

    /// Queries once whether `pending` is complete, by the marker that covers it, which is made if there is none.
    ///
    /// # Errors
    /// The driver's; never to be read as complete.
    pub(crate) fn ask(&self, driver: &D, pending: Pending) -> DriverResult<bool> {
        let Some(timeline) = self.timeline(pending.on).filter(|timeline| timeline.seen() < pending.epoch)
        else {
            return Ok(true);
        };
        let queried = self.with_marker(driver, &timeline, pending.epoch, CLOSING, |marker| {
            let done = self.is_done(driver, marker)?;
            if done {
                self.marker_complete(&timeline, marker);
            }
            Ok(done)
        });
        Ok(queried?.unwrap_or(true))
    }

    /// Queries timelines that a crowded clock names, until [`QUESTIONS`] were in vain. The middle one first, then the middle of one half, and so on:
    /// of streams that wait for each other the older ones are complete, and each answer covers all that were ordered before. Then one
    /// after the other, because streams may not have waited for each other: also those before the first incomplete one, which no answer
    /// may have covered.
    pub(super) fn query_named(&self, driver: &D, clock: &Clock) {
        if !self.queries_allowed() {
            return;
        }
        let named: Vec<Pending> = clock.iter().map(|(on, epoch)| Pending { on, epoch }).collect();
        let is_over = |p: Pending| {
            // On an error, the next call that needs the stream returns it.
            self.timeline(p.on).is_none_or(|timeline| {
                timeline.seen() >= p.epoch
                    || (self.poll_completed(driver, &timeline).is_ok_and(|more| more == Some(true))
                        && timeline.seen() >= p.epoch)
            })
        };
        let over = named.partition_point(|&p| is_over(p));
        let mut questions = QUESTIONS;
        let (front, behind) = named.split_at(over);
        for &p in front.iter().chain(behind) {
            questions -= usize::from(!is_over(p));
            if questions == 0 {
                break;
            }
        }
    }

    /// Queries the end of closed streams, one after the other, each call starting where the last one stopped, until
    /// [`QUESTIONS`] were in vain: slow streams do not hide the others.
    pub(crate) fn query_closed(&self, driver: &D) {
        let mut closed = self.timelines();
        closed.retain(|timeline| timeline.is_closed());
        let last = self.outstanding.queried.load(Ordering::Relaxed);
        let from = closed.partition_point(|timeline| timeline.id.0 <= last);
        closed.rotate_left(from);
        let mut questions = QUESTIONS;
        for timeline in closed {
            if questions == 0 {
                break;
            }
            self.outstanding.queried.store(timeline.id.0, Ordering::Relaxed);
            // An error is not completion (O4); the next call that needs the timeline returns it.
            questions -=
                usize::from(!matches!(self.poll_completed(driver, &timeline), Ok(Some(true) | None)));
        }
    }

    /// Sweeps all timelines if there are twice as many markers as the last sweep left. Called by the call that made one, with no lock
    /// held.
    pub(super) fn bound_markers(&self, driver: &D) {
        let out = &self.outstanding;
        let at = out.look_at.load(Ordering::Relaxed);
        if at == LOOKING || !cost::looks(|| out.markers.load(Ordering::Relaxed), at) {
            return;
        }
        // One thread sweeps; others go on.
        if out.look_at.compare_exchange(at, LOOKING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        // A driver call that panics ends this sweep, but not the later ones.
        let mut look = Look { out, next: at };
        let timelines: Vec<Arc<StreamTimeline<D>>> = self.table.lock().by_id.values().cloned().collect();
        for timeline in &timelines {
            self.retire_markers(timeline);
            if self.queries_allowed() {
                // On an error, the next call that needs the stream returns it.
                let _ = self.poll_completed(driver, timeline);
            } else {
                let thinned = timeline.state.lock().markers.thin(DENSE);
                self.forget(thinned);
            }
        }
        let count = timelines.len() as u64;
        drop(timelines);
        self.retire();
        let left = out.markers.load(Ordering::Relaxed);
        self.fit_events(left);
        look.next = (2 * left).max(count).max(LEAST as u64);
    }

    /// Gives back the events that no marker refers to.
    pub(crate) fn trim_events(&self) {
        self.events.give_back();
    }

    /// A timeline was closed.
    pub(super) fn closed(&self) {
        self.outstanding.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// If nothing queries them, the end of closed streams is never known: all but the newest [`UNFINISHED`] are waited for, for
    /// at most `patience` in all, when there are twice as many. Not independent ones, which the host never waits for. Called
    /// where a program brings a new stream.
    pub(crate) fn finish_closed(&self, driver: &D, patience: Option<Duration>) {
        let out = &self.outstanding;
        let few = out.closed.load(Ordering::Relaxed) <= out.finish_at.load(Ordering::Relaxed);
        if !cost::finishes(self.queries_allowed(), few) {
            return;
        }
        let patience = patience.unwrap_or(PATIENCE).min(PATIENCE);
        let waitable = self.waitable();
        let mut ended: Vec<_> = self.timelines().into_iter().filter(|l| l.is_closed()).collect();
        ended.truncate(ended.len().saturating_sub(UNFINISHED));
        let mut ended: Vec<Pending> =
            ended.into_iter().map(|l| Pending { on: l.id, epoch: l.marked() }).collect();
        ended.retain(|&p| waitable.by_host(p));
        let (start, count) = (driver.host_time(), ended.len() as u32);
        for (n, pending) in ended.into_iter().enumerate() {
            // Each may take its part of the patience, and what the ones before it left: a slow one takes nothing from the others. The first has its
            // whole part: a slow host (valgrind, or one with many programs) would otherwise find every part used up, and wait for none.
            let share = patience * (n as u32 + 1) / count;
            let spent = if n == 0 { Duration::ZERO } else { driver.host_time().saturating_sub(start) };
            let left = share.saturating_sub(spent);
            if left.is_zero() {
                continue;
            }
            // On an error, the next call that needs the stream returns it.
            let _ = self.wait_host(driver, pending, left);
        }
        self.retire();
        // Streams that could not be waited for in time double the number at which it is tried next.
        let late = out.closed.load(Ordering::Relaxed).saturating_sub(UNFINISHED as u64);
        out.finish_at.store(2 * (UNFINISHED as u64).max(late), Ordering::Relaxed);
    }

    /// Takes timelines out of the table that are closed and complete: nothing can ever wait for them again.
    pub(crate) fn retire(&self) {
        let over: Vec<Arc<StreamTimeline<D>>> = {
            let mut table = self.table.lock();
            let dead: Vec<TimelineId> = table
                .by_id
                .values()
                .filter(|l| {
                    l.id != CONTEXT
                        && l.pools.load(Ordering::Acquire) == 0
                        && l.open.load(Ordering::Acquire) == 0
                        && {
                            let state = l.state.lock();
                            state.native.is_none() && !state.closing
                        }
                        && laws::may_leave(l.seen().0, l.submitted.load(Ordering::Acquire))
                })
                .map(|l| l.id)
                .collect();
            self.outstanding.closed.fetch_sub(dead.len() as u64, Ordering::Relaxed);
            let mut over = Vec::new();
            for id in dead {
                let Some(timeline) = table.by_id.remove(&id) else { continue };
                if laws::leaves_with(table.by_stream.get(&timeline.info.id).is_some_and(|l| l.id == id)) {
                    table.by_stream.remove(&timeline.info.id);
                }
                over.push(timeline);
            }
            self.count_timelines(table.by_id.len());
            over
        };
        for timeline in &over {
            self.retire_markers(timeline);
            self.declare(timeline, Place::Undeclared, true);
        }
        let any_left = !over.is_empty();
        drop(over);
        // The last reference to a timeline, and with it to its events, is not dropped under the table's lock.
        let timelines = self.timelines();
        let seen = self.seen();
        for timeline in &timelines {
            timeline.forget_names(&seen);
        }
        if any_left {
            seen.forget_edges(&timelines);
        }
        drop(seen);
        drop(timelines);
    }
}
