//! Streams as users hold them.
//!
//! A [`Stream`] is one native stream and its pool in one allocator. Order between streams that is made through it is
//! known to the allocator; order that is made without it (by the driver's own calls) holds on the device but is not
//! known, which costs memory and never safety.

use super::Allocator;
use super::bounded::Place;
use super::config::StagingPieces;
use super::core::{Core, Owner, lost};
use super::deferred_drops::{DeferredDrops, Until};
use super::event::Event;
use super::events::SharedEvent;
use super::pool::{Pool, Watch};
use super::registry::{Named, Registry, StreamTimeline};
use super::staging::StagingThreads;
use crate::driver::{Driver, StreamInfo, StreamKind};
use crate::error::Error;
use crate::laws::{self, steps};
use crate::order::{Marker, Pending};
use crate::sync::{Arc, Ordering};
use crate::units::StreamId;
use core::fmt;
use smallvec::smallvec;

/// A stream with a pool in an [`Allocator`]. Cheap to clone; may be dropped before or after its
/// allocations. The last clone's drop may call the driver (it marks the stream's end) and does not wait for it,
/// unless it is the last owner of the allocator: see [`Allocator`] for its end.
///
/// There is no current stream: streams are arguments.
///
/// ```
/// use millpond::{Allocator, Config, kernel, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let (copy, work) = (gpu.stream()?, gpu.stream()?);
/// let x = gpu.zeros::<f32>(1024, &copy)?;
/// let mut y = gpu.zeros::<f32>(1024, &work)?;
/// kernel::saxpy(2.0, &x, &mut y, &work)?; // arrays know what `work` has to come after
/// work.wait_stream(&copy)?; // for plain allocations the program makes the order: on the device, the host does not wait
/// work.synchronize()?; // the host waits
/// # Ok(()) }
/// ```
pub struct Stream<D: Driver>(Arc<Inner<D>>);

// Each allocation reads it: on cache lines of its own, away from neighbouring values.
#[repr(align(128))]
struct Inner<D: Driver> {
    pool: Arc<Pool<D>>,
    native: D::Stream,
    /// Other code can begin a capture on it, so the driver is queried.
    adopted: bool,
    /// Whether allocations on it need anything besides the heap: one flag that the hot path checks.
    watched: bool,
    /// Whether that is more than the check for a capture.
    special: bool,
    /// Whether only calls that name it may mark it.
    named_only: bool,
    owner: Owner<D>,
}

impl<D: Driver> Clone for Stream<D> {
    fn clone(&self) -> Stream<D> {
        Stream(Arc::clone(&self.0))
    }
}

impl<D: Driver> Stream<D> {
    pub(crate) fn new(owner: Owner<D>, pool: Arc<Pool<D>>, native: D::Stream, adopted: bool) -> Stream<D> {
        let core = owner.core();
        let of_a_thread = pool.timeline.info.kind == StreamKind::PerThreadDefault;
        let special = core.is_recording() || core.config.exact_fit || core.config.scrub || of_a_thread;
        let special = special || core.windows.is_some() && core.config.handles.one_above.is_some();
        let named_only = pool.timeline.is_named_only();
        let watched = adopted || special || named_only;
        Stream(Arc::new(Inner { pool, native, adopted, watched, special, named_only, owner }))
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Arc<Pool<D>> {
        &self.0.pool
    }
    pub(crate) fn timeline(&self) -> &Arc<StreamTimeline<D>> {
        &self.0.pool.timeline
    }
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.0.watched
    }
    /// Whether it is watched for more than captures.
    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        self.0.special
    }
    /// The allocator that its pool belongs to.
    pub fn allocator(&self) -> Allocator<D> {
        Allocator { owner: self.0.owner.clone() }
    }
    pub(crate) fn deferred_drops(&self) -> &Arc<DeferredDrops<D>> {
        &self.0.owner.core().deferred_drops
    }
    /// Keeps a value until everything that the stream holds by now is complete.
    pub(crate) fn keep(&self, value: Box<dyn Send>) {
        let timeline = self.timeline();
        let all = Pending { on: timeline.id, epoch: timeline.stamp() };
        self.deferred_drops().keep(Until::Uses(smallvec![all]), 0, value);
    }
    /// The threads that move the bytes of its allocator's staged copies, and in which pieces.
    pub(crate) fn staging(&self) -> (&StagingThreads, StagingPieces) {
        (&self.core().staging, self.core().config.staging_pieces)
    }
    pub(super) fn core(&self) -> &Core<D> {
        self.0.owner.core()
    }
    pub(super) fn registry(&self) -> &Arc<Registry<D>> {
        &self.core().registry
    }
    pub(crate) fn driver(&self) -> &D {
        &self.0.owner.core().driver
    }

    /// The driver's unique id: never reused, unlike the handle's value.
    pub fn id(&self) -> StreamId {
        self.info().id
    }
    /// Identity, device and kind. A stream that was adopted as [unmanaged](StreamInfo::unmanaged) is no longer so once it is adopted by a
    /// reference that keeps it alive.
    pub fn info(&self) -> StreamInfo {
        self.timeline().info.unmanaged(self.timeline().is_unmanaged())
    }
    /// The driver's stream, for launches.
    pub fn native(&self) -> &D::Stream {
        &self.0.native
    }

    /// Declares that any other stream may be made to wait for it, on the device, so that its memory serves them at once: nothing on it waits for what
    /// other streams do later, by a flag, a collective or the host. By default only streams that the program itself has ordered wait for each
    /// other for memory ([`Reuse::KnownWaits`](super::Reuse::KnownWaits)). It excludes [`Stream::set_independent`]: the last call of both counts,
    /// and `false` takes back its own only.
    pub fn set_dependable(&self, on: bool) {
        self.registry().declare(self.timeline(), Place::Dependable, on);
    }
    /// Declares the stream dependable ([`Stream::set_dependable`]) where it is created.
    #[must_use]
    pub fn dependable(self) -> Stream<D> {
        self.set_dependable(true);
        self
    }

    /// No stream and no host wait that the allocator makes for memory ever waits for it, and it is never made to wait: for streams that
    /// depend on each other through flags or collectives, where an inserted wait could hang the program. Other streams
    /// reuse its memory only when it is complete, or when the program itself ordered them. An explicit
    /// [trim](Allocator::trim) may wait for it. It excludes [`Stream::set_dependable`]: the last call of both counts, and `false` takes back its own
    /// only.
    ///
    /// Operations on arrays still wait for what they conflict with, on any stream, independent or not,
    /// because the data would be wrong otherwise. Use an array on one such stream only, order the streams yourself beforehand
    /// ([`Stream::wait_stream`]), or use plain allocations, whose uses are only recorded.
    pub fn set_independent(&self, on: bool) {
        self.registry().declare(self.timeline(), Place::Independent, on);
    }
    /// Declares the stream independent ([`Stream::set_independent`]) where it is created.
    #[must_use]
    pub fn independent(self) -> Stream<D> {
        self.set_independent(true);
        self
    }

    /// Fails if the calling thread may do nothing with it: for another thread's default stream, and for one that is
    /// being captured.
    pub(crate) fn admit(&self, call: &'static str) -> Result<(), Error> {
        self.timeline().own_thread(call)?;
        self.refuse_capture()
    }

    /// Fails for a stream that is being captured. For a per-thread default stream, to be called on its own thread.
    #[inline]
    pub(crate) fn refuse_capture(&self) -> Result<(), Error> {
        let may_capture = self.0.adopted
            || self.timeline().adopted.load(Ordering::Relaxed)
            || self.driver().may_capture(&self.0.native);
        if !may_capture {
            self.named();
            return Ok(());
        }
        let registry = self.registry();
        if !registry.alive() {
            return Err(lost());
        }
        if registry.watch(self.driver().is_capturing(&self.0.native))? {
            return Err(Error::Capturing { stream: Some(self.id()) });
        }
        self.named();
        Ok(())
    }

    /// The current call names this stream, which does not capture: makes the due marker, if only such a call
    /// may.
    #[inline]
    pub(crate) fn named(&self) {
        if laws::maintains_named(self.0.named_only, || self.timeline().is_due()) {
            self.maintain_named();
        }
    }

    #[cold]
    fn maintain_named(&self) {
        if self.mark().is_ok() {
            self.registry().learn_of(self.driver(), self.timeline());
        }
    }

    /// Makes a marker for what was freed on this stream, or behind it, until now, if only calls that name the stream may: for a free
    /// that named it. Does nothing on other streams. A marker that fails falls due.
    pub fn mark_frees(&self) {
        let named_only = self.0.named_only && self.timeline().is_named_only();
        if named_only && (self.timeline().is_unmanaged() || self.driver().expects_captures()) {
            self.timeline().raise_due();
            // After a failure it stays due; the next call that needs the stream returns the error.
            let _ = self.mark();
        }
    }

    /// Records an event behind everything queued so far. Orders nothing by itself; the host does not wait.
    ///
    /// # Errors
    /// The driver's; a capturing stream; a per-thread default stream of another thread, whose handle means this thread's
    /// own stream here.
    pub fn record(&self) -> Result<Event<D>, Error> {
        self.admit("record")?;
        self.registry().run_maintenance(self.driver());
        Ok(self.event(self.mark()?))
    }
    /// A marker behind everything queued so far.
    pub(super) fn mark(&self) -> Result<Marker<SharedEvent<D>>, Error> {
        self.registry().make_marker_as(self.driver(), self.timeline(), Named::Yes)?.ok_or_else(lost)
    }
    /// A marker of this stream as users hold it.
    pub(super) fn event(&self, marker: Marker<SharedEvent<D>>) -> Event<D> {
        Event { deferred_drops: Arc::clone(self.deferred_drops()), on: Arc::clone(self.timeline()), marker }
    }

    /// Makes work queued on this stream from now on wait, on the device, for everything before the event. The
    /// host does not wait. What the event's stream had itself waited for by then counts too.
    ///
    /// # Errors
    /// The driver's; a per-thread default stream of another thread. Nothing is ordered then.
    pub fn wait(&self, event: &Event<D>) -> Result<(), Error> {
        self.admit("wait")?;
        let registry = self.registry();
        if laws::teaches(Arc::ptr_eq(registry, event.registry())) {
            registry.wait_for(self.driver(), self.timeline(), event.on.id, &event.marker)?;
            registry.saw_edge(self.timeline(), event.on.id);
        } else {
            // Another device's event: ordered on the device, unknown to our clocks.
            registry.watch(self.driver().wait(&self.0.native, &event.marker.event))?;
        }
        Ok(())
    }

    /// Makes this stream wait for everything queued on `other` so far.
    ///
    /// # Errors
    /// As [`Stream::record`] and [`Stream::wait`].
    pub fn wait_stream(&self, other: &Stream<D>) -> Result<(), Error> {
        self.wait(&other.record()?)
    }

    /// Blocks the host until everything queued on this stream is complete. Other streams continue, and so does a capture on one.
    ///
    /// # Errors
    /// The driver's; [`Error::Capturing`], whose capture survives; a per-thread default stream of another thread, whose handle means this
    /// thread's own stream here.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.admit("synchronize")?;
        let (registry, timeline) = (self.registry(), self.timeline());
        let synchronise = || {
            let driver = self.driver();
            registry.watch(driver.relaxed(|| driver.synchronize_stream(&self.0.native)))?;
            pause_point!("synchronised");
            Ok::<_, Error>(())
        };
        let (reserved, clock) =
            steps::reserve_then_synchronise(|| timeline.reserve_epoch(), || timeline.clock(), synchronise)?;
        registry.complete_through(timeline, reserved);
        registry.learn(&clock);
        self.deferred_drops().learnt(timeline.id, &clock);
        registry.host_waited();
        Ok(())
    }
}

impl<D: Driver> fmt::Debug for Stream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}, {:?})", self.id().0, self.info().kind)
    }
}

impl<D: Driver> Drop for Inner<D> {
    fn drop(&mut self) {
        let core = self.owner.core();
        let (empty, refcounts) = {
            let mut state = self.pool.lock();
            state.streams -= 1;
            if state.streams > 0 {
                return;
            }
            let refcounts = Pool::<D>::leave(&mut state, Watch::LEAVING);
            (state.heap.live() == 0, refcounts)
        };
        Pool::release(&self.pool, refcounts);
        if empty {
            core.close_pool(&self.pool);
            core.registry.run_maintenance(&core.driver);
        }
    }
}
