//! What all handles of one allocator share: the driver, the options, the list of pools, the backing, the counts.
//!
//! Lifetimes are decided here. Users hold `Allocator`s and `Stream`s, counted as owners; pools and this value refer to
//! each other until the last owner is gone and the last device allocation is freed, in whichever order. Then the end waits for all uses
//! and gives everything back ([`Core::shut_down`]). It does not know how memory is found.

use super::backing::{Backing, kept};
use super::config::{Config, Growth, PinnedLimit, Reuse, SMALL_BYTES};
use super::deferred_drops::DeferredDrops;
use super::group::Seat;
use super::held::Holds;
use super::in_transit::InTransit;
use super::marks::Marks;
use super::peaks::Peaks;
use super::physical::Windows;
use super::pinned::pool::HostPool;
use super::pool::{AfterFree, Pool, Watch};
use super::price::Price;
use super::recorder::Recorder;
use super::registry::Registry;
use super::sources::MigrationSources;
use super::staging::StagingThreads;
use super::undo::resume;
use crate::driver::{Driver, DriverResult, OwnedRange};
use crate::error::{DriverError, DriverErrorKind, Error};
use crate::laws;
use crate::order::Pending;
use crate::report::{Counters, Histogram, Ladder, PoolReport, Report};
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::{Arc, Mutex, Ordering, Rank, Ranked, Weak, assert_unlocked};
use crate::trace::Event;
use crate::units::{DeviceId, Granules};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The pool of this number in a list of pools: numbers are assigned under the list's lock, so the list is sorted by number.
pub(super) fn numbered<D: Driver>(pools: &[Arc<Pool<D>>], number: u32) -> Option<&Arc<Pool<D>>> {
    let at = pools.binary_search_by_key(&number, |pool| pool.number).ok()?;
    Some(&pools[at])
}

/// One allocator, behind its handles.
pub(crate) struct Core<D: Driver> {
    pub(crate) driver: D,
    pub(crate) config: Config,
    pub(crate) device: DeviceId,
    pub(crate) capacity: u64,
    /// The largest small request, in bytes. With exact growth no segment is shared, and all segments are of one kind.
    pub(crate) small_bytes: u64,
    pub(crate) registry: Arc<Registry<D>>,
    /// Sorted by number.
    pub(crate) pools: Ranked<Vec<Arc<Pool<D>>>>,
    /// Those of the pools that may have memory for others.
    pub(crate) sources: MigrationSources,
    pub(crate) backing: Ranked<Backing<OwnedRange<D>>>,
    /// The place in a group, which the backing has too.
    seat: Option<Arc<Seat>>,
    /// Virtual memory, if pools have any.
    pub(super) windows: Option<Windows<D>>,
    /// What requests spend on it, if that is bounded.
    pub(super) price: Option<Price>,
    /// Above what idle memory goes back.
    pub(super) marks: Marks,
    pub(crate) host: HostPool<D>,
    /// What moves the bytes of staged copies.
    pub(crate) staging: StagingThreads,
    /// What dropped tokens of copies owned.
    pub(crate) deferred_drops: Arc<DeferredDrops<D>>,
    recorder: Recorder<Event>,
    pub(crate) ladder: Mutex<Ladder>,
    /// The sums of pools that left the list. Changed and read under the list's lock: [`Core::pools_and_departed`].
    pub(super) departed: Mutex<(Counters, Histogram)>,
    pub(super) peaks: Peaks,
    /// Bytes cut from one pool and not yet in the next.
    pub(crate) moving: AtomicU64,
    /// A new pool that makes the list longer than this causes a sweep.
    pub(super) sweep_above: AtomicUsize,
    /// The numbers of closed pools: some of them may have left the list.
    pub(super) gone: Mutex<BTreeSet<u32>>,
    /// Where the next search through the pools of many streams starts.
    pub(super) turn: AtomicUsize,
    /// Which of these transits are under way.
    pub(crate) in_transit: InTransit,
    /// What may not move, go back or change its pool.
    pub(super) holds: Holds,
    /// One trim at a time: of two that gather one segment, each would find it incomplete.
    pub(crate) trimmer: Ranked<()>,
    /// One trim of handles at a time, which waits for no trim of segments.
    pub(crate) handle_trimmer: Ranked<()>,
    /// One call that sets a limit at a time, so that each undoes only its own change.
    pub(crate) limits: Mutex<()>,
    owners: AtomicUsize,
    /// Pools with live allocations after the last owner went, plus one while they are being counted. Pinned memory does not count
    /// here: a forgotten pinned allocation must not keep device memory.
    orphans: AtomicUsize,
}

impl<D: Driver> Core<D> {
    pub(crate) fn new(driver: D, config: Config) -> Result<Arc<Core<D>>, Error> {
        config.footprint.check()?;
        let driver = if config.scrub { driver.scrubbing() } else { driver };
        let info = driver.memory_info()?;
        let mut backing = Backing::new(config.limit.bytes(info.total)?);
        let marks = Marks::new(&config, info.total, &mut backing)?;
        let windows = Windows::new(&driver, &config, info.total)?;
        let price = Price::new(&config, || config.time(&driver));
        let registry = driver.slot().get_or_make(|| Registry::new(&driver));
        if !registry.alive() {
            return Err(lost());
        }
        if !config.deterministic {
            registry.allow_queries();
        }
        if config.reuse == Reuse::KnownWaits {
            registry.see_edges();
        }
        let PinnedLimit { bytes, share } = config.pinned_on(driver.host_memory())?;
        let host = HostPool::new(bytes, share);
        let staging = StagingThreads::new(&config);
        let deferred_drops = DeferredDrops::new(driver.clone(), Arc::clone(&registry), !config.deterministic);
        let seat = config.group.as_ref().map(super::group::Group::seat);
        backing.seat.clone_from(&seat);
        let core = Arc::new(Core {
            device: driver.device(),
            capacity: info.total,
            small_bytes: if config.growth == Growth::Exact { 0 } else { SMALL_BYTES },
            registry,
            pools: Ranked::new(Rank::Pools, Vec::new()),
            sources: MigrationSources::new(config.few),
            backing: Ranked::new(Rank::Backing, backing),
            seat,
            windows,
            price,
            marks,
            host,
            staging,
            deferred_drops: Arc::new(deferred_drops),
            recorder: Recorder::new(),
            ladder: Mutex::new(Ladder::default()),
            departed: Mutex::new((Counters::default(), Histogram::default())),
            peaks: Peaks::new(),
            moving: AtomicU64::new(0),
            sweep_above: AtomicUsize::new(super::registry::SWEEP_LEAST),
            gone: Mutex::new(BTreeSet::new()),
            turn: AtomicUsize::new(0),
            in_transit: InTransit::default(),
            holds: Holds::default(),
            trimmer: Ranked::new(Rank::Trimmer, ()),
            handle_trimmer: Ranked::new(Rank::Trimmer, ()),
            limits: Mutex::new(()),
            owners: AtomicUsize::new(0),
            orphans: AtomicUsize::new(0),
            driver,
            config,
        });
        if let Some(seat) = &core.seat {
            let member: Weak<Core<D>> = Arc::downgrade(&core);
            seat.sit(member);
        }
        Ok(core)
    }

    /// The place in a group, if there is one.
    pub(super) fn seat(&self) -> Option<&Seat> {
        self.seat.as_deref()
    }

    /// Whether there are sinks for events.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        !self.config.sinks.is_empty()
    }

    /// Stores an event for later delivery. May be called under any lock and in a drop.
    pub(crate) fn record(&self, event: Event) {
        self.recorder.push(event);
    }

    /// Events not yet delivered to a sink.
    pub(super) fn events_recorded(&self) -> usize {
        self.recorder.len()
    }

    /// Delivers the stored events to the sinks. Called with no lock held, never in a drop.
    #[inline]
    pub(crate) fn deliver(&self) {
        if self.is_recording() {
            self.recorder.deliver(|number, event| {
                for sink in &self.config.sinks {
                    sink.event(number, event);
                }
            });
        }
    }

    /// How many frees there were so far, to detect a free in between.
    pub(crate) fn frees(&self) -> u64 {
        let (pools, departed) = self.pools_and_departed(|departed| departed.0.frees);
        pools.iter().map(|p| p.lock().frees()).sum::<u64>() + departed
    }

    /// The pools, and what `of` reads from the sums of the departed ones, both of one moment: a sum of both contains each
    /// pool once.
    pub(crate) fn pools_and_departed<R>(
        &self,
        of: impl FnOnce(&(Counters, Histogram)) -> R,
    ) -> (Vec<Arc<Pool<D>>>, R) {
        let pools = self.pools.lock();
        let departed = of(&self.departed.lock());
        (pools.clone(), departed)
    }

    pub(crate) fn pool_list(&self) -> Vec<Arc<Pool<D>>> {
        self.pools.lock().clone()
    }

    /// The pool of this number, unless it has left the list.
    pub(super) fn pool_numbered(&self, number: u32) -> Option<Arc<Pool<D>>> {
        numbered(&self.pools.lock(), number).cloned()
    }

    /// Those of the pools with these numbers that are in the list.
    pub(super) fn pools_numbered(&self, numbers: Vec<u32>) -> Vec<Arc<Pool<D>>> {
        let pools = self.pools.lock();
        numbers.into_iter().filter_map(|number| numbered(&pools, number).cloned()).collect()
    }

    /// The pools that may have a range of so many granules, of either kind, free or in flight: all pools, if there are few. Of more than `most` only so
    /// many, each time others.
    pub(super) fn pools_with(&self, len: Granules, most: usize) -> Vec<Arc<Pool<D>>> {
        if self.pools.lock().len() <= self.sources.few {
            return self.pool_list();
        }
        let mut numbers = self.sources.all_of(len.0);
        if numbers.len() > most {
            let from = self.turn.fetch_add(most, Ordering::Relaxed) % numbers.len();
            numbers.rotate_left(from);
            numbers.truncate(most);
        }
        self.pools_numbered(numbers)
    }

    /// Ends a free that left its pool without allocations while the pool's stream or its allocator is gone.
    #[cold]
    pub(crate) fn pool_emptied(&self, pool: &Pool<D>, after: AfterFree) {
        match after {
            AfterFree::Done => {}
            AfterFree::Empty => self.close_pool(pool),
            AfterFree::Orphaned => self.finish_orphan(),
        }
    }

    pub(crate) fn finish_orphan(&self) {
        if self.orphans.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        resume(catch_unwind(AssertUnwindSafe(|| self.shut_down())).err());
    }

    /// The last `Allocator` and `Stream` are gone.
    fn abandon(&self) {
        // Kept values may hold pinned memory of this allocator. If an owner's drop or the driver panics, the rest is given back nevertheless.
        let closed = catch_unwind(AssertUnwindSafe(|| self.deferred_drops.close()));
        self.orphans.store(1, Ordering::Release);
        for pool in self.pool_list() {
            let mut state = pool.lock();
            let refcounts = Pool::<D>::leave(&mut state, Watch::ORPHAN);
            if state.heap.live() > 0 {
                self.orphans.fetch_add(1, Ordering::AcqRel);
            }
            drop(state);
            Pool::release(&pool, refcounts);
        }
        self.host.abandon();
        self.finish_orphan();
        // Otherwise device memory is live, or another thread is dropping its last handle now.
        if self.host.is_idle() {
            self.pinned_done();
        }
        resume(closed.err());
    }

    /// The last pinned allocation of an abandoned allocator is gone: unpins everything, whatever device memory is live.
    pub(crate) fn pinned_done(&self) {
        assert_unlocked("pinned memory is given back");
        let done = || {
            self.driver.relaxed(|| {
                let pending = self.host.lock().pool.in_flight.uses().collect();
                let over = self.is_over(self.wait_or_synchronize(pending));
                self.host.release_all(&self.driver, over);
                self.registry.run_maintenance(&self.driver);
                self.registry.retire();
                self.registry.trim_events();
            });
        };
        resume(catch_unwind(AssertUnwindSafe(done)).err());
    }

    /// Waits for everything that may still access the allocator's bytes, and gives everything back except pinned memory with live handles.
    fn shut_down(&self) {
        assert_unlocked("the allocator shuts down");
        // The last handle may be dropped while other code captures.
        self.driver.relaxed(|| self.give_all_back());
    }

    fn give_all_back(&self) {
        if let Some(seat) = &self.seat {
            seat.leave();
        }
        // What stays allocated for good.
        let mut forgotten = 0;
        // Read before the wait: memory freed later has uses that this wait does not cover.
        let unpin = self.host.lock().pool.heap.live() == 0;
        // A driver that panics in the wait counts as one that fails.
        let waited = catch_unwind(AssertUnwindSafe(|| self.is_over(self.wait_or_synchronize(self.ours()))));
        let over = *waited.as_ref().unwrap_or(&false);
        let pools = core::mem::take(&mut *self.pools.lock());
        for pool in &pools {
            let mut state = pool.lock();
            if !state.closed {
                state.closed = true;
                drop(state);
                pool.timeline.pools.fetch_sub(1, Ordering::AcqRel);
                self.registry.request_maintenance(&pool.timeline);
            }
        }
        if let Some(windows) = &self.windows {
            // An unmap waits for nothing, whatever a plain free does.
            let over = laws::may_give_back(over, false);
            forgotten += if over { 0 } else { windows.stats().bytes };
            self.give_windows_back(windows, over);
        }
        let segments = self.backing.lock().take_all();
        if laws::may_give_back(over, self.driver.free_spares_uses()) {
            for segment in segments {
                if let Err((range, e)) = segment.release() {
                    self.driver.drop_failed(e);
                    drop(range);
                }
            }
        } else if !segments.is_empty() {
            let bytes: u64 = segments.iter().map(OwnedRange::bytes).sum();
            forgotten += bytes;
            segments.into_iter().for_each(core::mem::forget);
            self.driver.drop_failed(kept(bytes, "device"));
        }
        if let Some(seat) = &self.seat {
            seat.end(forgotten);
        }
        self.host.registrations.close(&self.driver);
        if unpin {
            self.host.release_all(&self.driver, over);
        }
        self.registry.run_maintenance(&self.driver);
        self.registry.retire();
        self.registry.trim_events();
        if !self.config.deterministic {
            self.registry.disallow_queries();
        }
        resume(waited.err());
    }

    /// Everything that may still access the allocator's bytes: what the pools' own streams hold, and the uses of ranges in flight. Not a wait for
    /// the device, which a capture by other code in the context might not survive.
    fn ours(&self) -> Vec<Pending> {
        let mut pending: Vec<Pending> = self.host.lock().pool.in_flight.uses().collect();
        for pool in self.pool_list() {
            let state = pool.lock();
            pending.extend(state.in_flight.uses());
            let last = Pending { on: pool.timeline.id, epoch: state.heap.latest_stamp() };
            drop(state);
            // If everything is complete, no marker is needed: the stream may capture.
            if !self.registry.all_complete(&[last]) {
                pending.push(Pending { epoch: pool.timeline.reserve_epoch(), ..last });
            }
        }
        pending
    }

    /// Whether nothing uses the memory any more: every wait succeeded, or the context is lost, which leaves nothing to wait for. Any other
    /// failure is the second in a row: then the driver's free waits by itself, or the memory is kept.
    fn is_over(&self, waited: DriverResult<()>) -> bool {
        waited.map_or_else(
            |e| {
                let lost = e.is_context_lost();
                self.driver.drop_failed(e);
                lost
            },
            |()| true,
        )
    }

    /// Everything, gathered pool by pool; exact when no other thread works meanwhile.
    pub(crate) fn report(&self) -> Report {
        let peak = self.peak_bounds();
        let (pools, departed) = self.pools_and_departed(Clone::clone);
        let of_pools: Vec<PoolReport> = pools.iter().map(|p| p.report()).collect();
        let mut total = PoolReport::sum(&of_pools);
        let figures = self.figures(&pools, &of_pools);
        drop(pools);
        total.counters.add(&departed.0);
        total.sizes.merge(&departed.1);
        total.allocated_peak = peak.at_most;
        let pinned = self.host.report(&self.registry, self.driver.expects_captures());
        let pinned_host = self.host.host_report(pinned.is_some());
        let driver_calls = self.driver.calls().into_iter().map(|(name, n)| (name.into(), n)).collect();
        let deferred_errors = self.driver.deferred().iter().map(ToString::to_string).collect();
        let group = self.config.group.as_ref().map(super::Group::report);
        let backing = self.backing.lock();
        total.reserved_peak = backing.reserved_peak;
        Report {
            device: self.device,
            capacity: self.capacity,
            limit: backing.limit,
            soft_limit: backing.soft,
            group,
            policy: self.config.policy.name().into(),
            reserved: backing.reserved,
            reserved_peak: backing.reserved_peak,
            segments: backing.segments.len() as u64,
            segments_created: backing.segments_created,
            segments_released: backing.segments_released,
            moving: self.moving.load(Ordering::Relaxed),
            growths: backing.growths,
            releases: backing.releases,
            sparse: figures.sparse.count,
            sparse_bytes: figures.sparse.bytes,
            sparse_live: figures.sparse.live,
            largest_request: figures.largest_request,
            allocated_peak: peak.at_least,
            allocated_peak_at_most: peak.at_most,
            total,
            pools: of_pools,
            ladder: *self.ladder.lock(),
            physical: figures.physical,
            pinned,
            pinned_host,
            driver_calls,
            events_lost: self.recorder.lost(),
            deferred_errors,
        }
    }
}

/// The context is lost: no later call can succeed, so each fails at once.
pub(crate) fn lost() -> Error {
    Error::Driver(lost_context())
}

/// The error of a lost context, as the driver would report it.
pub(crate) fn lost_context() -> DriverError {
    DriverError::new(
        "context",
        0,
        DriverErrorKind::ContextLost,
        "the device's context was lost earlier; start a new process",
    )
}

impl<D: Driver> core::fmt::Debug for Core<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Core({})", self.device)
    }
}

/// One owner's reference to an allocator, which stays open while there is one.
#[derive(Debug)]
pub(crate) struct Owner<D: Driver>(Arc<Core<D>>);

impl<D: Driver> Owner<D> {
    pub(crate) fn new(core: Arc<Core<D>>) -> Owner<D> {
        core.owners.fetch_add(1, Ordering::Relaxed);
        Owner(core)
    }
    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core<D>> {
        &self.0
    }
}

impl<D: Driver> Clone for Owner<D> {
    fn clone(&self) -> Owner<D> {
        Owner::new(Arc::clone(&self.0))
    }
}

impl<D: Driver> Drop for Owner<D> {
    fn drop(&mut self) {
        if self.0.owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.abandon();
        }
    }
}
