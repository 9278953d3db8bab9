//! A device's timelines behind locks, shared by all its allocators.
//!
//! `order` keeps the numbers; here they meet the driver: markers are made, waited for, queried and recycled. A timeline
//! ([`Line`]) belongs to the device and outlives its stream, so that stamps can be compared long after the stream is
//! gone. The registry hangs on the driver value ([`DeviceSlot`](crate::driver::DeviceSlot)) and dies with the device's
//! last allocator.
//!
//! It does not know pools, chunks or bytes.

#[cfg(feature = "cuda")]
pub(crate) mod entered;

use super::line::new_line;
pub(crate) use super::line::{CONTEXT, Line};
use crate::driver::{Driver, DriverResult, StreamInfo, StreamKind};
use crate::error::{DriverError, DriverErrorKind};
use crate::order::{Clock, Completed, Marker, Pending, TimelineId, is_ordered};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Arc, Ordering, Rank, Ranked, assert_unlocked};
use crate::units::{Epoch, StreamId};
use core::time::Duration;
use hashbrown::HashMap;

/// A marker half made (O8): its number and the clock's copy, taken in one hold of the line's lock.
struct Reserved<D: Driver> {
    number: Epoch,
    copy: Clock,
    /// The stream to record on; `None` for a context-wide marker.
    native: Option<D::Stream>,
}

/// The timelines of one device.
pub(crate) struct Registry<D: Driver> {
    table: Ranked<Table<D>>,
    /// Events that nobody refers to. In their counted blocks, so that a marker takes none from the host.
    events: Ranked<Vec<Arc<D::Event>>>,
    /// Some line's due or closable flag is up.
    errand: AtomicBool,
    lost: AtomicBool,
    context: Arc<Line<D>>,
}

struct Table<D: Driver> {
    by_stream: HashMap<StreamId, Arc<Line<D>>>,
    by_id: HashMap<TimelineId, Arc<Line<D>>>,
    next: u32,
}

/// What the host knows complete, read under one lock of the registry.
pub(crate) struct Seen<'a, D: Driver>(crate::sync::RankedGuard<'a, Table<D>>, &'a Line<D>);

impl<D: Driver> Completed for Seen<'_, D> {
    fn completed(&self, on: TimelineId) -> Epoch {
        if on == CONTEXT {
            return self.1.seen();
        }
        // A line leaves the table only when all its stamps are complete.
        self.0.by_id.get(&on).map_or(Epoch(u64::MAX), |line| line.seen())
    }
}

impl<D: Driver> Seen<'_, D> {
    pub(crate) fn line(&self, on: TimelineId) -> Option<&Arc<Line<D>>> {
        self.0.by_id.get(&on)
    }
}

/// A driver call on a stream that the line has let go.
fn gone(call: &'static str) -> DriverError {
    DriverError::new(call, 400, DriverErrorKind::InvalidHandle, "the stream was destroyed")
}

/// An event recorded on a capturing stream becomes a part of the graph and says nothing of the work before: no marker.
fn refuse_captured<D: Driver>(driver: &D, line: &Line<D>, native: &D::Stream) -> DriverResult<()> {
    let asked = line.foreign.load(Ordering::Relaxed) || driver.may_capture(native);
    if asked && driver.is_capturing(native)? {
        let message =
            format!("{} is capturing a graph: its work can be marked after the capture", line.info.id);
        return Err(DriverError::new("record", 900, DriverErrorKind::Capturing, message));
    }
    Ok(())
}

impl<D: Driver> Registry<D> {
    pub(crate) fn new(driver: &D) -> Registry<D> {
        let info = StreamInfo {
            id: StreamId(u64::MAX),
            device: driver.device(),
            kind: StreamKind::LegacyDefault,
            mortal: false,
        };
        let context = new_line(CONTEXT, info, None);
        let mut by_id = HashMap::new();
        by_id.insert(CONTEXT, Arc::clone(&context));
        Registry {
            table: Ranked::new(Rank::Registry, Table { by_stream: HashMap::new(), by_id, next: 1 }),
            events: Ranked::new(Rank::Leaf, Vec::new()),
            errand: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            context,
        }
    }

    /// The timeline of a live stream, the one it has or a new one, with one more pool counted on it.
    pub(crate) fn attach(&self, info: StreamInfo, native: &D::Stream) -> Arc<Line<D>> {
        let mut table = self.table.lock();
        if let Some(line) = table.by_stream.get(&info.id) {
            // A closed line's stamps stay comparable under its old id; the stream begins a new one. Counted under the
            // line's lock, where closing looks.
            let state = line.state.lock();
            if state.native.is_some() && !state.closing {
                line.pools.fetch_add(1, Ordering::AcqRel);
                drop(state);
                return Arc::clone(line);
            }
        }
        let id = TimelineId(table.next);
        table.next = table.next.checked_add(1).expect("2^32 streams in one process");
        let line = new_line(id, info, Some(native.clone()));
        line.pools.store(1, Ordering::Release);
        table.by_stream.insert(info.id, Arc::clone(&line));
        table.by_id.insert(id, Arc::clone(&line));
        line
    }

    pub(crate) fn context(&self) -> &Arc<Line<D>> {
        &self.context
    }

    pub(crate) fn line(&self, on: TimelineId) -> Option<Arc<Line<D>>> {
        self.table.lock().by_id.get(&on).cloned()
    }

    pub(crate) fn lines(&self) -> Vec<Arc<Line<D>>> {
        let mut lines: Vec<_> = self.table.lock().by_id.values().cloned().collect();
        lines.sort_by_key(|l| l.id);
        lines
    }

    /// What the host knows complete. Holds the registry's lock; no driver call while it lives.
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

    fn event(&self, driver: &D) -> DriverResult<Arc<D::Event>> {
        let pooled = self.events.lock().pop();
        match pooled {
            Some(e) => Ok(e),
            None => driver.create_event().map(Arc::new),
        }
    }

    fn recycle(&self, markers: impl Iterator<Item = Marker<Arc<D::Event>>>) {
        let free: Vec<_> = markers
            .map(|m| m.event)
            .filter_map(|mut e| Arc::get_mut(&mut e).is_some().then_some(e))
            .collect();
        self.events.lock().extend(free);
    }

    /// O8: reserve, copy the clock, record, publish. `None` when the line is closed: its closing marker covers all.
    pub(crate) fn make_marker(
        &self,
        driver: &D,
        line: &Line<D>,
    ) -> DriverResult<Option<Marker<Arc<D::Event>>>> {
        assert_unlocked("a marker is recorded");
        let event = self.watch(self.event(driver))?;
        let reserved = {
            let state = line.state.lock();
            // Holding a clone keeps the native stream until the record has returned.
            let native = state.native.clone();
            if native.is_none() && line.id != CONTEXT {
                drop(state);
                self.events.lock().push(event);
                return Ok(None);
            }
            let number = if planted!(Z17) { Epoch::COMPLETE } else { line.reserve(&state) };
            let copy = if planted!(CopyEmpty) { Clock::EMPTY } else { state.timeline.clock().clone() };
            Reserved { number, copy, native }
        };
        self.record(driver, line, event, reserved).map(Some)
    }

    /// The second half of a marker: record, publish.
    fn record(
        &self,
        driver: &D,
        line: &Line<D>,
        event: Arc<D::Event>,
        Reserved { mut number, copy, native }: Reserved<D>,
    ) -> DriverResult<Marker<Arc<D::Event>>> {
        if planted!(Z3) {
            let early = Marker { number, event: Arc::clone(&event), copy: copy.clone() };
            line.state.lock().timeline.publish(early);
        }
        point!("numbered" unless line.state.lock().closing);
        if planted!(Z39) && native.is_some() && line.is_closed() && !line.state.lock().closing {
            return Err(gone("record"));
        }
        // Frees counted from here on are for the next marker, whether this one covers them or not.
        let frees = line.unmarked_frees.swap(0, Ordering::Relaxed);
        let bytes = line.unmarked_bytes.swap(0, Ordering::Relaxed);
        let recorded = match &native {
            Some(native) if line.is_marked_by_handle() => {
                refuse_captured(driver, line, native).and_then(|()| driver.record(&event, native))
            }
            // A per-thread default stream may be marked by its own thread only, a mortal one by nobody; a context-wide event
            // covers them too.
            _ => driver.record_context(&event),
        };
        drop(native);
        point!("recorded" unless line.state.lock().closing);
        if planted!(Z17) && number == Epoch::COMPLETE {
            number = line.reserve(&line.state.lock());
        }
        let copy = if planted!(CopyLate) { line.clock() } else { copy };
        let marker = Marker { number, event, copy };
        if let Err(e) = self.watch(recorded) {
            if planted!(FailedRecord) {
                line.state.lock().timeline.publish(marker.clone());
            }
            // The number covers nothing; the event captured nothing new and can serve again.
            self.recycle(core::iter::once(marker));
            line.unmarked_frees.fetch_add(frees, Ordering::Relaxed);
            line.unmarked_bytes.fetch_add(bytes, Ordering::Relaxed);
            return Err(e);
        }
        if !planted!(Z3) {
            line.state.lock().timeline.publish(marker.clone());
        }
        // Only a published marker answers what fell due (O9), and only what fell due before it was reserved.
        line.published.fetch_max(number.0, Ordering::AcqRel);
        Ok(marker)
    }

    /// The marker to wait for: the oldest published one that covers `epoch`, else a new one. `None`: complete.
    pub(super) fn marker_for(
        &self,
        driver: &D,
        line: &Line<D>,
        epoch: Epoch,
    ) -> DriverResult<Option<Marker<Arc<D::Event>>>> {
        loop {
            let (found, closed) = {
                let state = line.state.lock();
                let closed = state.native.is_none() && !state.closing && line.id != CONTEXT;
                (state.timeline.covering(epoch).cloned(), closed)
            };
            if let Some(m) = found {
                return Ok(Some(m));
            }
            if line.seen() >= epoch {
                return Ok(None);
            }
            assert!(!closed, "O8: {epoch:?} of closed timeline {:?} is covered by no marker", line.id);
            match self.make_marker(driver, line)? {
                Some(m) if m.number >= epoch => return Ok(Some(m)),
                Some(_) => {}
                // Closing: its last marker is about to be published.
                None => crate::sync::yield_now(),
            }
        }
    }

    /// Orders later work on `to` after `pending` (O1's second sentence). `Some(())` if a wait was inserted.
    pub(crate) fn order_after(&self, driver: &D, to: &Line<D>, pending: Pending) -> DriverResult<Option<()>> {
        assert_unlocked("a wait is inserted");
        let clock = to.clock();
        if is_ordered(to.id, &clock, &self.seen(), pending) {
            return Ok(None);
        }
        self.insert_wait(driver, to, pending)
    }

    /// The same for what was seen not to be ordered yet.
    pub(super) fn insert_wait(&self, driver: &D, to: &Line<D>, pending: Pending) -> DriverResult<Option<()>> {
        let Some(from) = self.line(pending.on) else { return Ok(None) };
        let Some(marker) = self.marker_for(driver, &from, pending.epoch)? else { return Ok(None) };
        if planted!(WaitDropped) {
            to.state.lock().timeline.waited(from.id, &marker);
            return Ok(Some(()));
        }
        self.wait_for(driver, to, from.id, &marker)?;
        Ok(Some(()))
    }

    /// Makes `to` wait for a marker of `on`; what it learns counts only once the wait has returned.
    pub(crate) fn wait_for(
        &self,
        driver: &D,
        to: &Line<D>,
        on: TimelineId,
        marker: &Marker<Arc<D::Event>>,
    ) -> DriverResult<()> {
        assert_unlocked("a wait is inserted");
        to.own_thread("wait")?;
        let Some(native) = to.native() else {
            return Err(gone("wait"));
        };
        if planted!(Z26) {
            to.state.lock().timeline.waited(on, marker);
        }
        if planted!(Z30)
            && let Some(from) = self.line(on)
        {
            let now = Marker { copy: from.clock(), ..marker.clone() };
            to.state.lock().timeline.waited(on, &now);
        }
        self.watch(driver.wait(&native, &marker.event))?;
        let on = if planted!(WaitWrongLine) { TimelineId(on.0 + 1) } else { on };
        if !planted!(WaitUnlearnt) {
            to.state.lock().timeline.waited(on, marker);
        }
        Ok(())
    }

    /// Blocks the host for at most `limit` until `pending` is complete. `false` when the time is over.
    pub(crate) fn wait_host(&self, driver: &D, pending: Pending, limit: Duration) -> DriverResult<bool> {
        let Some(line) = self.line(pending.on) else { return Ok(true) };
        if line.seen() >= pending.epoch {
            return Ok(true);
        }
        let marker = match self.marker_for(driver, &line, pending.epoch) {
            // A driver without context-wide markers: the whole context is waited for instead.
            Err(e) if line.id == CONTEXT && e.kind == DriverErrorKind::NotSupported => {
                let promised = line.promise();
                self.watch(driver.relaxed(|| driver.synchronize_device()))?;
                self.proved(&line, promised);
                return Ok(true);
            }
            marker => marker?,
        };
        let Some(marker) = marker else { return Ok(true) };
        let done = self.watch(driver.relaxed(|| driver.wait_event(&marker.event, limit)))?;
        if done {
            if planted!(WaitProvesNewest) {
                line.complete_to(line.marked());
            }
            self.marker_complete(&line, &marker);
        }
        Ok(done)
    }

    /// Whoever is ordered behind all of this is complete, and so is this.
    pub(crate) fn learn(&self, clock: &Clock) {
        let table = self.table.lock();
        for (on, epoch) in clock.iter() {
            if let Some(other) = table.by_id.get(&on) {
                other.complete_to(epoch);
            }
        }
    }

    /// A marker was seen complete by a call made after it was recorded: so is all that it covers, its copy included.
    pub(crate) fn marker_complete(&self, line: &Line<D>, marker: &Marker<Arc<D::Event>>) {
        line.complete_to(marker.number);
        self.learn(&marker.copy);
        if planted!(CompleteJoinsNow) {
            self.learn(&line.clock());
        }
        self.proved(line, marker.number);
    }

    /// Queries the published markers of a line: the newest one that is complete, by bisection. A done event is the dear
    /// one to query (DESIGN.md, what the driver costs), so none is asked twice.
    pub(crate) fn fold(&self, driver: &D, line: &Line<D>) -> DriverResult<bool> {
        assert_unlocked("an event is queried");
        let pending: Vec<Marker<Arc<D::Event>>> = {
            let state = line.state.lock();
            state.timeline.above(line.seen()).cloned().collect()
        };
        let (mut done, mut open) = (0, pending.len());
        // The newest first: if it is done, one query told all.
        let mut probe = open.wrapping_sub(1);
        while done < open {
            // An error is never "complete" (O4).
            let answer = self.watch(driver.relaxed(|| driver.query(&pending[probe].event)));
            if answer.or_else(|e| if planted!(Z10) { Ok(true) } else { Err(e) })? {
                done = probe + 1;
            } else {
                open = probe;
            }
            probe = usize::midpoint(done, open);
        }
        if let Some(newest) = done.checked_sub(1) {
            let newest = newest + usize::from(planted!(FoldOffByOne) && newest + 1 < pending.len());
            self.marker_complete(line, &pending[newest]);
        }
        Ok(done > 0)
    }

    /// The call made after [`Line::promise`] returned: everything up to the number is complete.
    pub(crate) fn proved(&self, line: &Line<D>, epoch: Epoch) {
        line.complete_to(epoch);
        let mut state = line.state.lock();
        let done: Vec<_> = state.timeline.retire(line.seen()).collect();
        drop(state);
        self.recycle(done.into_iter());
    }

    /// Says that some line has an errand for the next call that may speak to the driver.
    pub(crate) fn raise_errand(&self) {
        // Not a store: of two who raise it, whoever serves has to see what both did before, and a store by the second would
        // hide the first.
        self.errand.swap(true, Ordering::AcqRel);
    }

    /// Makes the markers that have fallen due (O9) and closes the streams that may be. Failures leave the flags up.
    pub(crate) fn serve(&self, driver: &D) {
        if !self.errand.swap(false, Ordering::AcqRel) {
            return;
        }
        for line in self.lines() {
            if line.is_due() && self.make_marker(driver, &line).is_err() {
                if planted!(DueDropped) {
                    line.published.fetch_max(line.due.load(Ordering::Acquire), Ordering::AcqRel);
                }
                self.raise_errand();
            }
            if line.is_idle() && self.close(driver, &line).is_err() {
                self.raise_errand();
            }
        }
    }

    /// Makes a marker on every line that may carry stamps no marker covers, so that completion can be seen.
    pub(crate) fn mark_all(&self, driver: &D) -> DriverResult<()> {
        for line in self.lines() {
            if line.id != CONTEXT {
                match self.make_marker(driver, &line) {
                    // What a capturing stream did before is learnt after the capture.
                    Err(e) if e.kind == DriverErrorKind::Capturing => {}
                    made => drop(made?),
                }
            } else if line.is_due() {
                // What `free_unknown` leaves is marked at once, or due. Where that is not to be had, it stays due.
                match self.make_marker(driver, &line) {
                    Err(e)
                        if !matches!(e.kind, DriverErrorKind::NotSupported | DriverErrorKind::Capturing) =>
                    {
                        return Err(e);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A use by nobody knows whom ended: a context-wide marker, now, or as soon as one can be made.
    pub(crate) fn mark_context(&self, driver: &D) {
        if self.make_marker(driver, &self.context).is_err() && !planted!(ContextDueLost) {
            self.context.raise_due();
            self.raise_errand();
        }
    }

    /// The last pool on the line closed and no use is open: makes the closing marker and lets the native stream go.
    /// Called with no lock held. `Ok(false)`: somebody came back, or somebody else closes it.
    pub(crate) fn close(&self, driver: &D, line: &Line<D>) -> DriverResult<bool> {
        let event = self.watch(self.event(driver));
        let (native, reserved) = {
            let mut state = line.state.lock();
            let idle = line.pools.load(Ordering::Acquire) == 0
                && (line.open.load(Ordering::Acquire) == 0 || planted!(Z28));
            if !idle || state.closing {
                return Ok(false);
            }
            let Some(native) = state.native.take() else { return Ok(false) };
            // From here on nobody reserves a number; who needs a marker waits for the closing one.
            state.closing = true;
            let copy = state.timeline.clock().clone();
            (native.clone(), Reserved { number: line.reserve(&state), copy, native: Some(native) })
        };
        let last = reserved.number;
        let made = event.and_then(|event| self.record(driver, line, event, reserved)).map(drop);
        let proof = made.or_else(|e| {
            // A capture does not survive a wait for its stream, or for the device: it is closed after the capture.
            if e.kind == DriverErrorKind::Capturing {
                return Err(e);
            }
            // The record failed: completion of the whole stream, asked for after the number was reserved, proves as much;
            // or of the device, where the handle means another stream here.
            let waited = driver.relaxed(|| {
                if line.is_marked_by_handle() {
                    driver.synchronize_stream(&native)
                } else {
                    driver.synchronize_device()
                }
            });
            self.watch(waited).map(|()| self.proved(line, last))
        });
        let mut state = line.state.lock();
        state.closing = false;
        if let Err(e) = proof {
            state.native = Some(native);
            return Err(e);
        }
        drop(state);
        drop(native);
        Ok(true)
    }

    /// Takes lines out of the table that are closed and complete: nothing can ever wait for them again.
    pub(crate) fn retire(&self) {
        {
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
                        && (l.seen().0 >= l.submitted.load(Ordering::Acquire) || planted!(LineRetiredEarly))
                })
                .map(|l| l.id)
                .collect();
            for id in dead {
                if let Some(line) = table.by_id.remove(&id)
                    && (planted!(LineUnlinked)
                        || table.by_stream.get(&line.info.id).is_some_and(|l| l.id == id))
                {
                    table.by_stream.remove(&line.info.id);
                }
            }
        }
        let lines = self.lines();
        let seen = self.seen();
        for line in lines {
            line.state.lock().timeline.clock_mut().retire(&seen);
        }
    }
}

impl<D: Driver> core::fmt::Debug for Registry<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}
