//! A device's timelines behind locks, shared by all its allocators.
//!
//! `order` keeps the numbers; here they meet the driver: markers are made, waited for, queried and recycled. A timeline
//! ([`StreamTimeline`]) belongs to the device and outlives its stream, so that stamps can be compared long after the stream is
//! gone. The driver value holds the registry ([`DeviceSlot`](crate::driver::DeviceSlot)), which is dropped with the device's
//! last allocator.
//!
//! Nothing here ends a capture by other code: `marking` decides how each stream can be marked.
//!
//! It does not know pools, chunks or bytes.

mod captured;
mod completion;
mod edges;
#[cfg(feature = "cuda")]
pub(crate) mod entered;
mod maintenance;
mod marking;
pub(crate) mod uses;

use super::events::{EventPool, SharedEvent};
use super::timeline::new_timeline;
pub(crate) use super::timeline::{CONTEXT, NO_TIMELINE, StreamTimeline};
use super::undo::Undo;
use crate::driver::{Driver, DriverResult, StreamInfo, StreamKind};
use crate::error::{DriverError, DriverErrorKind};
use crate::laws::{self, cost, steps};
use crate::order::{Clock, Completed, Marker, Pending, TimelineId, is_ordered};
use crate::sync::atomic::{AtomicBool, AtomicU32};
use crate::sync::{Arc, Ordering, Rank, Ranked, assert_unlocked};
use crate::time::process_time;
use crate::units::{Epoch, StreamId};
use completion::Outstanding;
pub(crate) use completion::QUESTIONS;
use core::time::Duration;
use hashbrown::HashMap;
use maintenance::{Listed, Maintenance};
use marking::{Means, held_back};
pub(crate) use marking::{Named, is_marked_by_handle};

/// How long a request waits for a stream's last marker that another thread is making. Making one takes microseconds; if it cannot be recorded,
/// that thread may wait for the whole stream.
pub(crate) const CLOSING: Duration = Duration::from_millis(1);

/// Lists of pools, and tables of timelines, shorter than this are not swept.
pub(super) const SWEEP_LEAST: usize = 16;

/// A marker that is reserved and not recorded yet (O8): its number and the clock's copy, taken in one hold of the timeline's lock.
struct Reserved<D: Driver> {
    number: Epoch,
    copy: Clock,
    native: Option<D::Stream>,
    means: Means,
    named: Named,
}

/// A close under way. Its drop clears the timeline's `closing` flag, and returns the stream if the close failed.
struct Closing<'a, D: Driver> {
    timeline: &'a StreamTimeline<D>,
    native: Option<D::Stream>,
}

impl<D: Driver> Drop for Closing<'_, D> {
    fn drop(&mut self) {
        let mut state = self.timeline.state.lock();
        state.closing = false;
        if let Some(native) = self.native.take() {
            state.native = Some(native);
        }
    }
}

/// What a call that runs maintenance may do to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum May {
    /// Record events, of single streams.
    MarkByHandle,
    /// The same, and context-wide events.
    Mark,
    /// The same, and wait for the device.
    Wait,
}

/// The timelines of one device.
pub(crate) struct Registry<D: Driver> {
    table: Ranked<Table<D>>,
    events: Arc<EventPool<D>>,
    outstanding: Outstanding,
    #[cfg(feature = "cuda")]
    attach_above: entered::AttachAbove,
    /// Timelines whose due or closable flag was raised and that no call has maintained since.
    maintenance: Ranked<Listed<D>>,
    /// Whether there are any.
    maintenance_due: AtomicBool,
    lost: AtomicBool,
    /// How many timelines in the table are of independent streams.
    pub(super) independents: AtomicU32,
    /// How many are of dependable ones.
    pub(super) dependables: AtomicU32,
    /// Whether an allocator of this device needs to know which streams the program has ordered.
    pub(super) sees_edges: AtomicBool,
    context: Arc<StreamTimeline<D>>,
}

struct Table<D: Driver> {
    by_stream: HashMap<StreamId, Arc<StreamTimeline<D>>>,
    by_id: HashMap<TimelineId, Arc<StreamTimeline<D>>>,
    next: u32,
}

/// What the host knows to be complete, read under one lock of the registry.
pub(crate) struct Seen<'a, D: Driver>(crate::sync::RankedGuard<'a, Table<D>>, &'a StreamTimeline<D>);

impl<D: Driver> Completed for Seen<'_, D> {
    fn completed(&self, on: TimelineId) -> Epoch {
        if on == CONTEXT {
            return self.1.seen();
        }
        // A timeline leaves the table only when all its stamps are complete.
        self.0.by_id.get(&on).map_or(Epoch(u64::MAX), |timeline| timeline.seen())
    }
}

impl<D: Driver> Seen<'_, D> {
    pub(crate) fn timeline(&self, on: TimelineId) -> Option<&Arc<StreamTimeline<D>>> {
        self.0.by_id.get(&on)
    }
}

/// The error of a driver call on a stream that the timeline has released: a mistake in this library, which no request passes over.
fn gone(call: &'static str) -> DriverError {
    DriverError::new(call, 400, DriverErrorKind::Other, "the stream was destroyed")
}

impl<D: Driver> Registry<D> {
    pub(crate) fn new(driver: &D) -> Registry<D> {
        let info = StreamInfo::new(StreamId(u64::MAX), driver.device(), StreamKind::LegacyDefault);
        let context = new_timeline(CONTEXT, info, None);
        let mut by_id = HashMap::new();
        by_id.insert(CONTEXT, Arc::clone(&context));
        Registry {
            table: Ranked::new(Rank::Registry, Table { by_stream: HashMap::new(), by_id, next: 1 }),
            events: EventPool::new(),
            outstanding: Outstanding::default(),
            #[cfg(feature = "cuda")]
            attach_above: entered::AttachAbove::default(),
            maintenance: Ranked::new(Rank::Leaf, Listed::default()),
            maintenance_due: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            independents: AtomicU32::new(0),
            dependables: AtomicU32::new(0),
            sees_edges: AtomicBool::new(false),
            context,
        }
    }

    /// The timeline of a live stream, its present one or a new one, with one more pool counted on it.
    pub(crate) fn attach(
        &self,
        info: StreamInfo,
        native: &D::Stream,
        adopted: bool,
    ) -> Arc<StreamTimeline<D>> {
        let mut table = self.table.lock();
        if let Some(timeline) = table.by_stream.get(&info.id) {
            // A closed timeline's stamps stay comparable under its old id; the stream gets a new one. Counted under the
            // timeline's lock, under which closing reads the count.
            let mut state = timeline.state.lock();
            if state.native.is_some() && !state.closing {
                timeline.adopted.fetch_or(adopted, Ordering::Relaxed);
                timeline.pools.fetch_add(1, Ordering::AcqRel);
                let replaced = if info.unmanaged { None } else { timeline.lasts(&mut state, native) };
                drop(state);
                drop(replaced);
                return Arc::clone(timeline);
            }
        }
        let id = TimelineId(table.next);
        table.next = table.next.checked_add(1).expect("2^32 streams in one process");
        let timeline = new_timeline(id, info, Some(native.clone()));
        // Before any other thread can find it.
        timeline.adopted.store(adopted, Ordering::Relaxed);
        timeline.pools.store(1, Ordering::Release);
        table.by_stream.insert(info.id, Arc::clone(&timeline));
        table.by_id.insert(id, Arc::clone(&timeline));
        self.count_timelines(table.by_id.len());
        timeline
    }

    pub(crate) fn context(&self) -> &Arc<StreamTimeline<D>> {
        &self.context
    }

    pub(crate) fn timeline(&self, on: TimelineId) -> Option<Arc<StreamTimeline<D>>> {
        self.table.lock().by_id.get(&on).cloned()
    }

    pub(crate) fn timelines(&self) -> Vec<Arc<StreamTimeline<D>>> {
        let mut timelines: Vec<_> = self.table.lock().by_id.values().cloned().collect();
        timelines.sort_by_key(|l| l.id);
        timelines
    }

    /// What the host knows to be complete. Holds the registry's lock; no driver call while it lives.
    pub(crate) fn seen(&self) -> Seen<'_, D> {
        Seen(self.table.lock(), &self.context)
    }

    /// Law O1 for several uses at once.
    pub(crate) fn all_ordered(&self, to: TimelineId, clock: &Clock, pending: &[Pending]) -> bool {
        let seen = self.seen();
        pending.iter().all(|&p| is_ordered(to, clock, &seen, p))
    }

    pub(crate) fn all_complete(&self, pending: &[Pending]) -> bool {
        let seen = self.seen();
        pending.iter().all(|&p| seen.is_complete(p))
    }

    /// Fails at once if the context was lost before.
    pub(crate) fn alive(&self) -> bool {
        !self.lost.load(Ordering::Acquire)
    }

    /// Remembers a lost context; passes the result on.
    pub(crate) fn watch<T>(&self, result: DriverResult<T>) -> DriverResult<T> {
        if let Err(e) = &result
            && e.is_context_lost()
        {
            self.lost.store(true, Ordering::Release);
        }
        result
    }

    /// Makes a marker of a timeline, in a call that may not name its stream.
    pub(crate) fn make_marker(
        &self,
        driver: &D,
        timeline: &StreamTimeline<D>,
    ) -> DriverResult<Option<Marker<SharedEvent<D>>>> {
        self.make_marker_as(driver, timeline, Named::No)
    }

    /// O8: reserve, copy the clock, record, publish. `None` when the timeline is closed: its closing marker covers all.
    ///
    /// # Errors
    /// The driver's; the stream captures; it cannot be marked by this call ([`Means::Nothing`]): then a marker falls due.
    pub(crate) fn make_marker_as(
        &self,
        driver: &D,
        timeline: &StreamTimeline<D>,
        named: Named,
    ) -> DriverResult<Option<Marker<SharedEvent<D>>>> {
        assert_unlocked("a marker is recorded");
        let means = Means::of(driver, timeline, named);
        if means == Means::Nothing {
            timeline.raise_due();
            return Err(held_back(timeline));
        }
        let event = self.watch(self.events.take(driver))?;
        let reserved = {
            let state = timeline.state.lock();
            // A clone keeps the native stream alive until the record has returned.
            let native = state.native.clone();
            if native.is_none() && timeline.id != CONTEXT {
                drop(state);
                return Ok(None);
            }
            timeline.tighten(&state);
            let number = timeline.reserve(&state);
            let copy = if laws::carries_clock() { state.markers.clock().clone() } else { Clock::EMPTY };
            Reserved { number, copy, native, means, named }
        };
        let marker = self.record(driver, timeline, event, reserved)?;
        self.bound_markers(driver);
        Ok(Some(marker))
    }

    /// The second half of making a marker: record, publish.
    fn record(
        &self,
        driver: &D,
        timeline: &StreamTimeline<D>,
        event: SharedEvent<D>,
        Reserved { number, copy, native, means, named }: Reserved<D>,
    ) -> DriverResult<Marker<SharedEvent<D>>> {
        let record = || {
            pause_point!("numbered" unless timeline.state.lock().closing);
            // The clone keeps the native stream; the planted bug behaves as if it did not.
            if mutant!(Z39) && native.is_some() && timeline.is_closed() && !timeline.state.lock().closing {
                return Err(gone("record"));
            }
            // Frees counted from here on are for the next marker, whether this one covers them or not.
            let frees = timeline.unmarked_frees.swap(0, Ordering::Relaxed);
            let bytes = timeline.unmarked_bytes.swap(0, Ordering::Relaxed);
            let failed = Undo::new(|| {
                // The number covers nothing. No wait or query uses the event, so it can be recorded again.
                timeline.loosen();
                timeline.unmarked_frees.fetch_add(frees, Ordering::Relaxed);
                timeline.unmarked_bytes.fetch_add(bytes, Ordering::Relaxed);
            });
            let recorded = self.watch(means.record(driver, timeline, &event, native.as_ref(), named));
            drop(native);
            pause_point!("recorded" unless timeline.state.lock().closing);
            if recorded.is_ok() {
                failed.forget();
            }
            recorded
        };
        let publish = |number, copy| self.publish(timeline, Marker { number, event: event.clone(), copy });
        let (now, clock_now) = (|| timeline.reserve(&timeline.state.lock()), || timeline.clock());
        let (number, copy) = steps::record_then_publish((number, copy), record, publish, now, clock_now)?;
        Ok(Marker { number, event, copy })
    }

    /// The marker to wait for: the oldest published one that covers `epoch`, else a new one. `None`: complete. While the stream's last
    /// marker is being made, waits for it, for at most `limit`: the closing thread may have to wait for the whole stream instead.
    pub(super) fn marker_for(
        &self,
        driver: &D,
        timeline: &StreamTimeline<D>,
        epoch: Epoch,
        limit: Duration,
    ) -> DriverResult<Option<Marker<SharedEvent<D>>>> {
        let mut since = None;
        loop {
            let (found, closed) = {
                let state = timeline.state.lock();
                let closed = state.native.is_none() && !state.closing && timeline.id != CONTEXT;
                (state.markers.covering(epoch).cloned(), closed)
            };
            if let Some(m) = found {
                return Ok(Some(m));
            }
            if timeline.seen() >= epoch {
                return Ok(None);
            }
            if closed && (timeline.is_named_only() || timeline.is_closed_without(epoch).1) {
                return Err(held_back(timeline));
            }
            assert!(!closed, "O8: {epoch:?} of closed timeline {:?} is covered by no marker", timeline.id);
            pause_point!("not covered");
            match self.make_marker(driver, timeline)? {
                Some(m) if m.number >= epoch => return Ok(Some(m)),
                Some(_) => {}
                // Closing: its last marker is about to be published.
                None => {
                    let now = process_time();
                    if limit != Duration::MAX && now.saturating_sub(*since.get_or_insert(now)) >= limit {
                        return Err(marking::closing(timeline));
                    }
                    crate::sync::yield_now();
                }
            }
        }
    }

    /// Orders later work on `to` after `pending` (O1's second sentence). `Some(())` if a wait was inserted.
    pub(crate) fn order_after(
        &self,
        driver: &D,
        to: &StreamTimeline<D>,
        pending: Pending,
        limit: Duration,
    ) -> DriverResult<Option<()>> {
        assert_unlocked("a wait is inserted");
        let clock = to.clock();
        if is_ordered(to.id, &clock, &self.seen(), pending) {
            return Ok(None);
        }
        self.insert_wait(driver, to, pending, limit)
    }

    /// Orders later work on `to` after `pending`, which the caller found not to be ordered yet.
    pub(super) fn insert_wait(
        &self,
        driver: &D,
        to: &StreamTimeline<D>,
        pending: Pending,
        limit: Duration,
    ) -> DriverResult<Option<()>> {
        let Some(from) = self.timeline(pending.on) else { return Ok(None) };
        self.with_marker(driver, &from, pending.epoch, limit, |marker| {
            if laws::learns_unwaited() {
                to.state.lock().markers.waited(from.id, marker);
                return Ok(());
            }
            self.wait_for(driver, to, from.id, marker)
        })
    }

    /// Makes `to` wait for a marker of `on`; the clock of `to` rises only once the wait has returned.
    pub(crate) fn wait_for(
        &self,
        driver: &D,
        to: &StreamTimeline<D>,
        on: TimelineId,
        marker: &Marker<SharedEvent<D>>,
    ) -> DriverResult<()> {
        assert_unlocked("a wait is inserted");
        to.own_thread("wait")?;
        let Some(native) = to.native() else {
            return Err(gone("wait"));
        };
        if laws::learns_now()
            && let Some(from) = self.timeline(on)
        {
            let now = Marker { copy: from.clock(), ..marker.clone() };
            to.state.lock().markers.waited(on, &now);
        }
        let on = TimelineId(laws::learnt_of(on.0));
        steps::wait_then_learn(
            || self.watch(driver.wait(&native, &marker.event)),
            || self.learnt(driver, to, on, marker),
        )
    }

    /// Bounds a clock after a wait. A marker that a user kept while timelines left the table still names those, and would pass them on
    /// to every stream that waits for it, and so to all markers made there, forever. A clock names each timeline once: if it is longer
    /// than the table, the names of timelines that left are removed. And if it has become crowded, its timelines are queried, and those that are
    /// complete are removed.
    fn learnt(&self, driver: &D, to: &StreamTimeline<D>, on: TimelineId, marker: &Marker<SharedEvent<D>>) {
        let (named, crowded) = {
            let mut state = to.state.lock();
            state.markers.waited(on, marker);
            (state.markers.clock().len(), state.markers.clock().is_crowded())
        };
        if crowded {
            self.query_named(driver, &to.clock());
        }
        let seen = self.seen();
        if cost::forgets_names(crowded, named, seen.0.by_id.len()) {
            to.forget_names(&seen);
        }
    }

    /// Blocks the host for at most `limit` until `pending` is complete. `false` when the time is over.
    pub(crate) fn wait_host(&self, driver: &D, pending: Pending, limit: Duration) -> DriverResult<bool> {
        let Some(timeline) = self.timeline(pending.on) else { return Ok(true) };
        if timeline.seen() >= pending.epoch {
            return Ok(true);
        }
        let waited = self.with_marker(driver, &timeline, pending.epoch, limit, |marker| {
            let done = self.watch(driver.relaxed(|| driver.wait_event(&marker.event, limit)))?;
            if done {
                if laws::wait_proves_newest() {
                    timeline.complete_to(timeline.marked());
                }
                self.marker_complete(&timeline, marker);
            }
            Ok(done)
        });
        match waited {
            // A driver without context-wide markers: waits for the whole context instead, unless other code may capture.
            Err(e)
                if timeline.id == CONTEXT
                    && e.kind == DriverErrorKind::NotSupported
                    && !driver.expects_captures() =>
            {
                let reserved = timeline.reserve_epoch();
                self.synchronize_instead(driver)?;
                self.complete_through(&timeline, reserved);
                Ok(true)
            }
            waited => Ok(waited?.unwrap_or(true)),
        }
    }

    /// Notes that a timeline has maintenance pending for the next call that may call the driver.
    pub(crate) fn request_maintenance(&self, timeline: &Arc<StreamTimeline<D>>) {
        // Not a store: when two threads raise it, the one that maintains has to see what both did before, and a store by the second would
        // hide the first.
        if !timeline.maintenance_due.swap(true, Ordering::AcqRel) {
            self.maintenance.lock().put(timeline);
        }
        self.maintenance_due.swap(true, Ordering::AcqRel);
    }

    /// Makes the markers that have fallen due (O9) and closes the streams that may be closed. Failures leave the flags raised. Of the timelines that
    /// failed the last time one is tried again, and after each that succeeds the next one, so that a call has one failure however many there are.
    /// Waits for nothing.
    pub(crate) fn run_maintenance(&self, driver: &D) {
        self.run_due_maintenance(driver, May::Mark);
    }

    /// Makes the due markers beside captures that cannot be detected: what needs a context-wide event, which would end them, is
    /// left to another call.
    pub(crate) fn run_maintenance_beside_captures(&self, driver: &D) {
        self.run_due_maintenance(driver, May::MarkByHandle);
    }

    /// Makes the due markers for a caller that has just waited for the device, or waits for it anyway: if a closing marker cannot be
    /// recorded it waits again, and it tries all timelines that failed. No other call does, since a capture would not survive it.
    pub(crate) fn run_maintenance_and_wait(&self, driver: &D) {
        self.run_due_maintenance(driver, May::Wait);
    }

    fn run_due_maintenance(&self, driver: &D, may: May) {
        // A stream dropped while a panic unwinds leaves maintenance to a later call: a second panic would abort the process.
        if !self.maintenance_due.load(Ordering::Acquire)
            || std::thread::panicking()
            || !self.maintenance_due.swap(false, Ordering::AcqRel)
        {
            return;
        }
        let mut maintenance = Maintenance::of(self, may == May::Wait);
        while let Some(timeline) = maintenance.next() {
            // Lowered before the flags are read: what is raised from here on is maintenance of its own.
            timeline.maintenance_due.swap(false, Ordering::AcqRel);
            if may == May::MarkByHandle && Means::of(driver, &timeline, Named::No) == Means::Context {
                self.request_maintenance(&timeline);
                continue;
            }
            // A timeline that cannot be marked by this call is marked by the next call that names its stream.
            let mut fails = false;
            if timeline.is_due() && Means::of(driver, &timeline, Named::No) != Means::Nothing {
                if self.make_marker(driver, &timeline).is_ok() {
                    self.learn_of(driver, &timeline);
                } else {
                    if laws::failed_is_served() {
                        timeline.published.fetch_max(timeline.due.load(Ordering::Acquire), Ordering::AcqRel);
                    }
                    fails = true;
                }
            }
            fails |= timeline.is_idle() && self.close(driver, &timeline, may == May::Wait).is_err();
            timeline.failing.store(fails, Ordering::Relaxed);
            if fails {
                self.request_maintenance(&timeline);
            }
        }
    }

    /// Makes a marker on every timeline that may have stamps no marker covers, so that completion can be seen. A timeline that cannot be
    /// marked does not keep the others from it.
    ///
    /// # Errors
    /// The driver's first one that does not merely say that a stream captures or is gone.
    pub(crate) fn mark_all(&self, driver: &D) -> DriverResult<()> {
        let mut refused = Ok(());
        for timeline in self.timelines() {
            if timeline.id != CONTEXT {
                match self.make_marker(driver, &timeline) {
                    // What a capturing stream did before is learnt after the capture. A stream that was promised to last, and did not, can never be
                    // marked.
                    Err(e) if e.is_of_one_stream() => {}
                    // It cannot be marked by this call, only by one that names its stream, or when the program synchronises.
                    Err(e)
                        if e.kind == DriverErrorKind::NotSupported
                            && !timeline.is_marked_by_handle(Named::No) => {}
                    Err(e) if e.is_context_lost() => return Err(e),
                    made => refused = refused.and(made.map(drop)),
                }
            } else if timeline.is_due() {
                // What `free_unknown` leaves is marked at once, or due. If it cannot be marked now, it stays due.
                match self.make_marker(driver, &timeline) {
                    Err(e)
                        if !matches!(e.kind, DriverErrorKind::NotSupported | DriverErrorKind::Capturing) =>
                    {
                        refused = refused.and(Err(e));
                    }
                    _ => {}
                }
            }
        }
        refused
    }

    /// A use by unknown streams ended: makes a context-wide marker now, or as soon as one can be made.
    pub(crate) fn mark_context(&self, driver: &D) {
        if Means::of(driver, &self.context, Named::No) == Means::Nothing {
            // It can be made when the program synchronises.
            return;
        }
        if self.make_marker(driver, &self.context).is_err() && laws::context_falls_due() {
            self.context.raise_due();
            self.request_maintenance(&self.context);
        }
    }

    /// The last pool on the timeline closed and no use is open: makes the closing marker and drops the native stream.
    /// Called with no lock held. `Ok(false)`: a pool or a use came back, or another thread closes it.
    pub(crate) fn close(
        &self,
        driver: &D,
        timeline: &StreamTimeline<D>,
        may_wait: bool,
    ) -> DriverResult<bool> {
        let means = Means::of(driver, timeline, Named::No);
        if means == Means::Nothing {
            return Ok(self.close_unmarked(driver, timeline));
        }
        let event = self.watch(self.events.take(driver));
        let (native, alone, reserved) = {
            let mut state = timeline.state.lock();
            let idle = timeline.pools.load(Ordering::Acquire) == 0
                && laws::may_close(timeline.open.load(Ordering::Acquire));
            if !idle || state.closing {
                return Ok(false);
            }
            let Some(native) = state.native.take() else { return Ok(false) };
            let alone = timeline.is_abandoned(driver, &native);
            // From here on no thread reserves a number; a thread that needs a marker waits for the closing one.
            state.closing = true;
            let copy = state.markers.clock().clone();
            timeline.tighten(&state);
            let (number, named) = (timeline.reserve(&state), Named::No);
            (native.clone(), alone, Reserved { number, copy, native: Some(native), means, named })
        };
        // If a call fails or panics before the close is done, the timeline gets its stream back.
        let mut closing = Closing { timeline, native: Some(native.clone()) };
        let last = reserved.number;
        let made = event.and_then(|event| self.record(driver, timeline, event, reserved)).map(drop);
        let proof = made.or_else(|e| {
            // No other code is left that could end the capture: the stream ends in it, as the driver's own destroy would, and its earlier work is
            // complete when the program synchronises. The capture of another stream, which this one had joined, survives that.
            let captures = || matches!(self.watch(driver.is_capturing(&native)), Ok(true));
            if e.kind == DriverErrorKind::Capturing && alone && captures() {
                timeline.loosen();
                return Ok(());
            }
            // A capture does not survive a wait for its stream, or for the device: the stream is closed after the capture. And no
            // request waits without a bound: then a call that may wait closes it.
            if e.kind == DriverErrorKind::Capturing || !may_wait {
                return Err(e);
            }
            // The record failed. A wait for the whole stream that begins after the number was reserved proves the same;
            // or a wait for the device, where the handle means another stream on this thread.
            let waited = driver.relaxed(|| {
                if means == Means::Handle {
                    driver.synchronize_stream(&native)
                } else {
                    driver.synchronize_device()
                }
            });
            self.watch(waited).map(|()| self.complete_through(timeline, last))
        });
        proof?;
        // Counted before any other thread can take it out of the table.
        self.closed();
        let ended = closing.native.take();
        drop(closing);
        drop((ended, native));
        // Its marker is one more.
        self.bound_markers(driver);
        Ok(true)
    }

    /// Closes a timeline that no call can mark, without a driver call. All its stamps were loaded by now: those that no marker covers are
    /// complete when the program synchronises, as is the number that is its last from then on.
    fn close_unmarked(&self, driver: &D, timeline: &StreamTimeline<D>) -> bool {
        let native = {
            let mut state = timeline.state.lock();
            let idle =
                timeline.pools.load(Ordering::Acquire) == 0 && timeline.open.load(Ordering::Acquire) == 0;
            // Other code may have adopted the stream by a lasting reference, and left it again: what was freed meanwhile needs a marker, and
            // maintenance was requested for it.
            if !idle || state.closing || Means::of(driver, timeline, Named::No) != Means::Nothing {
                return false;
            }
            let native = state.native.take();
            if native.is_some() && laws::last_number_covers(timeline.is_loose()) {
                timeline.reserve(&state);
            }
            // Counted before any other thread can take it out of the table.
            if native.is_some() {
                self.closed();
            }
            native
        };
        let Some(native) = native else { return false };
        // Dropping it may call the driver.
        drop(native);
        true
    }

    /// Events that wait for a marker to use them.
    pub(super) fn events_pooled(&self) -> usize {
        self.events.len()
    }
}

impl<D: Driver> core::fmt::Debug for Registry<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
