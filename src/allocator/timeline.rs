//! One stream's timeline as its device keeps it: its numbers, its published markers, its native stream.
//!
//! The two atomics of a timeline are read without its lock, so a free on the pool's own stream reads one integer.
//! `submitted` is the newest number reserved. A stamp is `submitted + 1` in an acquire load *after* the work it
//! covers was queued: a marker that reserves that number does so with a read-modify-write ordered after the load, and
//! records behind the work because the driver serialises the calls on one stream. If instead the load sees the
//! reservation, the stamp is one number higher, whose marker comes later still. `complete` only grows.
//!
//! Numbers are reserved under the timeline's lock and only while the timeline has its native stream, so a closing marker is
//! the last number its timeline ever has: it covers every stamp that is loaded from a closed timeline.
//!
//! It does not know other streams' timelines, nor how markers are made, waited for or found complete: the registry does.

use super::events::SharedEvent;
use super::registry::Named;
use super::sources::progress::Listeners;
use crate::driver::{Driver, DriverResult, StreamInfo, StreamKind, ThreadEnd};
use crate::error::{DriverError, DriverErrorKind};
use crate::laws::{self, cost};
use crate::order::{Clock, Completed, Edges, Marker, MarkerLog, TimelineId};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use crate::sync::{Arc, Ordering, Rank, Ranked, ThreadId, current_thread, plain};
use crate::units::Epoch;

/// The timeline of context-wide markers: what `free_unknown` waits for.
pub(crate) const CONTEXT: TimelineId = TimelineId(0);
/// No timeline has this number: accesses by the CPU, and by streams that have no timeline.
pub(crate) const NO_TIMELINE: TimelineId = TimelineId(u32::MAX);

/// One stream's timeline, on cache lines of its own: every free reads its numbers.
#[repr(align(128))]
pub(crate) struct StreamTimeline<D: Driver> {
    pub(crate) id: TimelineId,
    pub(crate) info: StreamInfo,
    pub(super) submitted: AtomicU64,
    pub(super) complete: AtomicU64,
    /// The newest stamp that needs a marker soon, and the newest published number. A marker has fallen due while the first is
    /// above the second: the next miss, copy, launch or `record_use` makes it. A flag would not do: a marker that was reserved before the
    /// flag was raised could clear it.
    pub(super) due: AtomicU64,
    pub(super) published: AtomicU64,
    pub(super) unmarked_frees: AtomicU32,
    pub(super) unmarked_bytes: AtomicU64,
    /// Open uses by allocations of other pools, of any allocator: the stream stays markable while there are any.
    pub(crate) open: AtomicUsize,
    /// Pools on this stream that are not closed, of any allocator.
    pub(crate) pools: AtomicUsize,
    /// It is in the registry's list of pending maintenance, or a call took it from there and has not looked yet.
    pub(super) maintenance_due: AtomicBool,
    /// Whether the last attempt to maintain it failed.
    pub(super) failing: plain::AtomicBool,
    /// Its place among other streams, as declared: a [`Place`](super::bounded::Place).
    pub(crate) place: AtomicU32,
    /// Other code may begin a capture on its stream, so the driver is queried before a marker is made.
    pub(crate) adopted: AtomicBool,
    /// Allocators that set a pool on it aside until it progresses.
    pub(super) listeners: Listeners,
    /// Only calls that name it, or its own thread's calls, may mark it, at least where captures are expected. It may become false, together with
    /// `unmanaged`, and never true again: a thread that reads the old value keeps a flag or makes one call too many.
    named_only: plain::AtomicBool,
    /// Its owner may end the stream unannounced: as `info` says, until a reference is registered that keeps it alive.
    unmanaged: plain::AtomicBool,
    /// For a stream that only named calls may mark: a stamp was loaded since the last recorded marker began, so maybe no marker covers it.
    loose: AtomicBool,
    /// The only thread that may mark it, for a per-thread default stream.
    owner: Option<OwnThread>,
    pub(super) state: Ranked<TimelineState<D>>,
}

/// The thread that made the timeline of its default stream: the thread whose stream it is, wherever the reference was made.
struct OwnThread {
    id: ThreadId,
    /// The notice of its end, unless the thread was ending already.
    end: Option<ThreadEnd>,
}

impl OwnThread {
    fn here() -> OwnThread {
        OwnThread { id: current_thread(), end: ThreadEnd::of_this_thread() }
    }
}

pub(super) struct TimelineState<D: Driver> {
    pub(super) markers: MarkerLog<SharedEvent<D>>,
    /// Taken out when the timeline closes. A call that makes a marker holds a clone, which keeps the stream alive meanwhile.
    pub(super) native: Option<D::Stream>,
    pub(super) closing: bool,
    /// The streams that the program itself ordered before or behind this one.
    pub(super) edges: Edges,
    /// The newest marker was not complete at the last query.
    pub(super) behind: bool,
}

impl<D: Driver> StreamTimeline<D> {
    /// The stamp of work queued before this call.
    #[inline]
    pub(crate) fn stamp(&self) -> Epoch {
        let stamp = laws::stamp(self.submitted.load(Ordering::Acquire));
        if self.is_named_only() {
            self.loose.store(true, Ordering::Release);
        }
        stamp
    }
    /// Whether work can be queued on the stream only through its timeline: no other code has a reference to it or, for a thread's default
    /// stream, that thread has ended, whatever references exist. Everything queued before happens before the answer.
    pub(super) fn is_abandoned(&self, driver: &D, native: &D::Stream) -> bool {
        match &self.owner {
            Some(thread) => thread.end.as_ref().is_some_and(ThreadEnd::has_come),
            None => driver.is_last_reference(native),
        }
    }
    /// The stamp of everything that the stream will ever hold, if no other code can queue work on it any more, nor be given it by a pool: for an open
    /// use, `declared` or an operation's.
    pub(crate) fn last_stamp(&self, driver: &D, declared: bool) -> Option<Epoch> {
        // The default stream of a thread that has ended counts as abandoned, whatever code is given it.
        let state = self.state.lock();
        // In the same hold of the lock as the check, in which no pool can be opened either: read before it, a pool opened since would be missed.
        let comes_back = self.owner.is_none() && laws::may_come_back(self.pools.load(Ordering::Acquire));
        let is_last = |native| {
            let last = || !comes_back && self.is_abandoned(driver, native);
            if declared { laws::is_last_declared(last) } else { laws::is_last_user(last) }
        };
        let over = state.native.as_ref().is_some_and(is_last);
        over.then(|| self.stamp())
    }
    /// Whether only calls that name its stream, or its own thread's calls, may mark it.
    pub(crate) fn is_named_only(&self) -> bool {
        self.named_only.load(Ordering::Relaxed)
    }
    /// Whether its stream may be gone, unless the current call names it.
    pub(crate) fn is_unmanaged(&self) -> bool {
        self.unmanaged.load(Ordering::Relaxed)
    }
    /// Registers a reference that keeps the stream of this timeline, which is open, alive: any call may
    /// mark it from now on. Returns the previous reference.
    pub(super) fn lasts(&self, state: &mut TimelineState<D>, native: &D::Stream) -> Option<D::Stream> {
        if !self.is_unmanaged() {
            return None;
        }
        self.unmanaged.store(false, Ordering::Relaxed);
        self.named_only.store(self.info.kind == StreamKind::PerThreadDefault, Ordering::Relaxed);
        state.native.replace(native.clone())
    }
    /// What was freed until now is about to be covered by the number that is reserved next in this hold of the lock: a closing thread
    /// sees both or neither. A stamp loaded in between is covered and counts as not covered, never the other way round.
    pub(super) fn tighten(&self, _state: &TimelineState<D>) {
        self.loose.store(false, Ordering::Release);
    }
    /// The marker failed: what was freed is not covered.
    pub(crate) fn loosen(&self) {
        self.loose.store(true, Ordering::Release);
    }
    pub(super) fn is_loose(&self) -> bool {
        self.loose.load(Ordering::Acquire)
    }
    /// The newest epoch that is complete, or that a marker covers.
    pub(crate) fn covered(&self) -> Epoch {
        Epoch(self.published.load(Ordering::Acquire)).max(self.seen())
    }
    /// The newest number reserved: after a marker was made, its own or a later one.
    pub(crate) fn marked(&self) -> Epoch {
        Epoch(self.submitted.load(Ordering::Acquire))
    }
    pub(crate) fn seen(&self) -> Epoch {
        Epoch(self.complete.load(Ordering::Acquire))
    }
    /// With the timeline's lock held, as `state` proves.
    pub(super) fn reserve(&self, _state: &TimelineState<D>) -> Epoch {
        Epoch(self.submitted.fetch_add(1, Ordering::AcqRel) + 1)
    }
    /// Reserves a number before a call that will prove it complete. Returns what the call proves (O8). A closed timeline has
    /// its last number already, which covers all its stamps.
    pub(crate) fn reserve_epoch(&self) -> Epoch {
        self.reserve_epoch_in(&self.state.lock())
    }
    /// Reserves a number before a call that will prove everything freed until now complete, or that is followed by
    /// [`StreamTimeline::loosen`] if it fails.
    pub(crate) fn reserve_epoch_all(&self) -> Epoch {
        if mutant!(PromiseInTwoHolds) {
            self.tighten(&self.state.lock());
        }
        pause_point!("promising all" unless self.id == CONTEXT);
        let state = self.state.lock();
        if state.native.is_some() || self.id == CONTEXT {
            self.tighten(&state);
        }
        self.reserve_epoch_in(&state)
    }
    fn reserve_epoch_in(&self, state: &TimelineState<D>) -> Epoch {
        if state.native.is_some() || self.id == CONTEXT { self.reserve(state) } else { self.marked() }
    }
    #[cfg(loom)]
    pub(super) fn reserve_unlocked(&self) -> Epoch {
        Epoch(self.submitted.fetch_add(1, Ordering::AcqRel) + 1)
    }
    #[cfg(loom)]
    pub(super) fn each_published(&self, show: impl FnMut(&Marker<SharedEvent<D>>)) {
        self.state.lock().markers.above(Epoch(0)).for_each(show);
    }
    /// Requests a marker that covers what was freed until now.
    pub(crate) fn raise_due(&self) {
        self.due.fetch_max(self.marked().0 + 1, Ordering::AcqRel);
    }
    /// Whether a marker has fallen due and was not made yet.
    pub(crate) fn is_due(&self) -> bool {
        let answered = self.published.load(Ordering::Acquire).max(self.seen().0);
        self.due.load(Ordering::Acquire) > answered
    }
    /// Whether a marker was published that is not known to be complete, so that a query may find progress. A marker that is published meanwhile
    /// is left to the next query.
    pub(super) fn may_have_progressed(&self) -> bool {
        self.published.load(Ordering::Acquire) > self.seen().0
    }
    /// Publishes a marker: it covers everything before its reservation, and answers what fell due before that (O9). In one hold of the lock,
    /// so that no thread takes it out in between.
    pub(super) fn publish(&self, marker: Marker<SharedEvent<D>>) {
        let mut state = self.state.lock();
        let number = marker.number;
        state.markers.publish(marker);
        self.published.fetch_max(number.0, Ordering::AcqRel);
    }
    /// Takes out a published marker that covers nothing after all. What it covered is covered by later markers, and another one is due.
    pub(super) fn take_out(&self, number: Epoch) -> Option<Marker<SharedEvent<D>>> {
        let mut state = self.state.lock();
        let gone = state.markers.take_out(number)?;
        if !laws::captured_covers() {
            // Markers that are complete have left the log before: `complete` has their numbers.
            self.published.store(state.markers.newest().0, Ordering::Release);
            self.loosen();
            self.raise_due();
        }
        Some(gone)
    }
    pub(super) fn complete_to(&self, epoch: Epoch) {
        if self.complete.fetch_max(epoch.0, Ordering::AcqRel) < epoch.0 {
            self.listeners.notify();
        }
    }
    /// The newest complete epoch, by a read-modify-write, and whether there is a marker to query.
    pub(super) fn progress(&self) -> (Epoch, bool) {
        let complete = Epoch(self.complete.fetch_add(0, Ordering::AcqRel));
        (complete, self.state.lock().markers.newest() > complete)
    }
    /// `K` of this stream, as it is now.
    pub(crate) fn clock(&self) -> Clock {
        self.state.lock().markers.clock().clone()
    }
    /// Removes the complete timelines from its clock, retired ones included. What is not complete stays: that order may give access to
    /// memory.
    pub(super) fn forget_names(&self, seen: &impl Completed) {
        let mut state = self.state.lock();
        let clock = state.markers.clock_mut();
        if cost::forgets_pending() {
            *clock = Clock::EMPTY;
        }
        clock.retire(seen);
    }
    pub(crate) fn native(&self) -> Option<D::Stream> {
        self.state.lock().native.clone()
    }
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().native.is_none() && self.id != CONTEXT
    }
    /// Whether the native handle means this stream on the calling thread: a per-thread default stream's handle means each
    /// thread's own.
    pub(super) fn is_here(&self) -> bool {
        self.owner.as_ref().is_none_or(|thread| thread.id == current_thread())
    }
    /// Whether it may be marked by its handle on the calling thread. An unmanaged stream may be gone, and another one may have its handle,
    /// unless the call names it.
    pub(super) fn is_marked_by_handle(&self, named: Named) -> bool {
        self.is_here() && (named == Named::Yes || !self.is_unmanaged())
    }
    /// Whether it is closed, and whether then no marker will ever cover this stamp, because a capture took the closing one.
    pub(super) fn is_closed_without(&self, epoch: Epoch) -> (bool, bool) {
        let state = self.state.lock();
        let closed = state.native.is_none() && self.id != CONTEXT;
        // A closed timeline's stamps are at most its last number.
        (closed, closed && !state.closing && epoch.min(self.marked()) > self.covered())
    }
    /// Fails for a per-thread default stream of another thread: the call would act on the calling thread's stream while
    /// the clocks record that it acted on this one. The only check, for every backend.
    pub(crate) fn own_thread(&self, call: &'static str) -> DriverResult<()> {
        if laws::may_name(self.is_here()) {
            return Ok(());
        }
        let message = format!(
            "{} is that of another thread, and its handle means this thread's own here: only its own thread can use it; adopt this thread's own instead, or pass an event of that one",
            self.info
        );
        Err(DriverError::new(call, 400, DriverErrorKind::InvalidHandle, message))
    }
    /// Counts a free of `bytes` that waits for this stream and returns whether a marker has fallen due: every 16 frees or 16 MiB, not at each one,
    /// because a marker costs 0.2 µs and covers all frees before it.
    pub(crate) fn note_unmarked(&self, bytes: u64) -> bool {
        let frees = self.unmarked_frees.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.unmarked_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let due = frees >= 16 || total >= 16 << 20;
        if due {
            self.raise_due();
        }
        due
    }
    /// Whether no pool and no use needs it, so that its stream may close.
    pub(super) fn is_idle(&self) -> bool {
        self.id != CONTEXT
            && self.pools.load(Ordering::Acquire) == 0
            && laws::may_close(self.open.load(Ordering::Acquire))
            && !self.is_closed()
    }
}

/// A new timeline.
pub(super) fn new_timeline<D: Driver>(
    id: TimelineId,
    info: StreamInfo,
    native: Option<D::Stream>,
) -> Arc<StreamTimeline<D>> {
    Arc::new(StreamTimeline {
        id,
        info,
        submitted: AtomicU64::new(0),
        complete: AtomicU64::new(0),
        due: AtomicU64::new(0),
        published: AtomicU64::new(0),
        unmarked_frees: AtomicU32::new(0),
        unmarked_bytes: AtomicU64::new(0),
        open: AtomicUsize::new(0),
        pools: AtomicUsize::new(0),
        maintenance_due: AtomicBool::new(false),
        failing: plain::AtomicBool::new(false),
        place: AtomicU32::new(0),
        adopted: AtomicBool::new(false),
        listeners: Listeners::new(),
        named_only: plain::AtomicBool::new(info.unmanaged || info.kind == StreamKind::PerThreadDefault),
        unmanaged: plain::AtomicBool::new(info.unmanaged),
        loose: AtomicBool::new(false),
        owner: (info.kind == StreamKind::PerThreadDefault).then(OwnThread::here),
        state: Ranked::new(
            Rank::Timeline,
            TimelineState {
                markers: MarkerLog::new(id),
                native,
                closing: false,
                edges: Edges::NONE,
                behind: false,
            },
        ),
    })
}
