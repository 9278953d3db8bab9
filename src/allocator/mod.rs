//! The allocator: pools, the miss ladder, the device's timelines and pinned memory. Only here do records and device meet.
//!
//! An [`Allocator`] serves device memory in stream order, from one pool for each stream. Its modules: `fast` (a hit and a free), `pool`,
//! `miss` (the ladder when no cached chunk fits) with `migrate`, `grow` and `trim`, `registry` (the device's timelines),
//! `host` (pinned memory), `core` (what all handles share). Locks and their ranks are in `sync::Rank`: no thread
//! holds two pool locks, and neither the driver nor user code is called under any lock but a grower's or a trimmer's turn.
//!
//! It does not know types, copies, kernels or frameworks.

pub(crate) mod access;
mod allocation;
mod alone;
mod backing;
mod bookkeeping;
mod bounded;
mod census;
mod closed;
mod config;
mod core;
pub(crate) mod deferred_drops;
mod entry;
mod event;
mod events;
#[cfg(unix)]
mod export;
pub(crate) mod external;
mod fast;
mod fill;
mod group;
mod grow;
mod held;
mod hold;
mod host;
mod idle;
mod idle_streams;
mod in_transit;
#[cfg(loom)]
#[doc(hidden)]
#[path = "../../tests/threads_loom/probe.rs"]
pub mod kernels;
mod ladder;
mod mapping;
mod marks;
mod migrate;
mod miss;
mod moves;
mod oom_facts;
mod peaks;
mod physical;
mod pinned;
mod plan;
mod pool;
mod price;
mod raw;
pub(crate) mod recorder;
mod refcount;
mod registered;
mod registry;
mod relief;
mod scrub;
mod segment;
mod sources;
pub(crate) mod staging;
mod stream;
#[cfg(test)]
mod tests;
mod timeline;
mod trim;
mod undo;
mod unpin;
mod wait_all;
mod waiting;
pub(crate) mod watch;

pub use allocation::Allocation;
pub use bookkeeping::Bookkeeping;
#[doc(hidden)]
pub use config::StagingPieces;
pub use config::{
    Config, Footprint, Growth, Handles, Limit, Policy, Reuse, SMALL_BYTES, Variable, VirtualMemory,
};
pub use event::Event;
#[cfg(unix)]
pub use export::Exported;
pub use group::Group;
pub use hold::Hold;
pub use pinned::PinnedAllocation;
pub use raw::RawAllocation;
pub(crate) use registered::Registered;
pub use segment::{Segment, SegmentKind, Sharing};
pub use stream::Stream;
pub use trim::Trimmed;

use crate::driver::{Called, Driver, HostKind, OwnedRange, StableMemory, StreamKind, StreamOptions};
use crate::error::{DriverError, Error};
use crate::heap::{Request, Want};
use crate::laws;
use crate::report::{MemoryMap, Report, Usage};
use crate::sync::Arc;
use crate::trace;
use crate::units::{Addr, AllocationId, DeviceId, Granules, StreamId};
use ::core::fmt;
use core::{Core, Owner};
use pool::{Pool, Watch};
use undo::Undo;

/// The largest alignment that can be requested, in bytes.
const MOST_ALIGNMENT: u64 = 1 << 30;

/// A stream-ordered caching allocator on one device. Cheap to clone; `Send` and `Sync`.
///
/// ```
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_sim::Sim;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(144 * GIB);
/// let gpu = Allocator::new(sim.clone(), Config::default())?;
/// let (copy, work) = (gpu.stream()?, gpu.stream()?);
/// let batch = gpu.alloc(1 << 20, &copy)?;
/// work.wait_stream(&copy)?;      // `work` comes after the allocation…
/// batch.record_use(&work)?;      // …and uses the bytes,
/// drop(batch);                   // so they are reused only after what it holds by now.
/// println!("{}", gpu.report());
/// sim.verdict()?;                // the simulated device judges what was done
/// # Ok(()) }
/// ```
///
/// # Its end
///
/// An allocator ends when it and all its streams are dropped. The drop of the last of them waits for deferred drops and for idle pinned memory, and gives
/// both back; device memory too, unless an [`Allocation`] is live: the drop of the last allocation then gives it back. That drop waits by
/// markers. Where a stream's marker cannot be made or waited for, as for a stream that ended unmarked, it waits as
/// [`Allocator::synchronize_beside_captures`] does, whether captures are expected or not, and other threads' launches are blocked meanwhile.
/// The last handle of pinned memory that outlives them waits in the same way for what uses that memory, and gives it back.
///
/// Every other drop of an allocation, an array or the token of a copy makes no driver call.
/// If queued work waits for work that another thread has yet to launch (collectives), wait for it before dropping the last handle.
pub struct Allocator<D: Driver> {
    owner: Owner<D>,
}

impl<D: Driver> Clone for Allocator<D> {
    fn clone(&self) -> Allocator<D> {
        Allocator { owner: self.owner.clone() }
    }
}

/// Pinned memory of an allocator, which it does not keep open: as a handle of pinned memory does not.
#[cfg(feature = "allocator-api2")]
pub(crate) struct PinnedSource<D: Driver>(Arc<Core<D>>);

#[cfg(feature = "allocator-api2")]
impl<D: Driver> PinnedSource<D> {
    /// Allocates pinned memory of a kind, as [`Allocator::alloc_pinned_as`] does.
    pub(crate) fn alloc(&self, bytes: u64, kind: HostKind) -> Result<PinnedAllocation<D>, Error> {
        host::alloc_and_scrub(&self.0, bytes, kind)
    }
}

/// Which memory a trim examines.
#[derive(Debug)]
#[non_exhaustive]
pub enum Trim<'a, D: Driver> {
    /// Every pool, and pinned host memory.
    All,
    /// Segments that lie wholly in this stream's pool.
    Stream(&'a Stream<D>),
}

/// A live allocation, as [`Allocator::live`] lists them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Live {
    /// Its identity.
    pub id: AllocationId,
    /// Its name, if it has one.
    pub name: Option<Arc<str>>,
    /// First byte.
    pub addr: Addr,
    /// Requested bytes.
    pub bytes: u64,
    /// The stream it was allocated on; `None` for pinned host memory.
    pub stream: Option<StreamId>,
}

impl<D: Driver> Allocator<D> {
    /// An allocator on the driver's device. It allocates no device memory yet.
    ///
    /// # Errors
    /// The driver's; a limit that is not a fraction; a lost context.
    pub fn new(driver: D, config: Config) -> Result<Allocator<D>, Error> {
        Ok(Allocator { owner: Owner::new(Core::new(driver, config)?) })
    }

    #[inline]
    fn core(&self) -> &Arc<Core<D>> {
        self.owner.core()
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.core().driver
    }
    /// The device.
    pub fn device(&self) -> DeviceId {
        self.core().device
    }
    /// The device's memory in bytes.
    pub fn capacity(&self) -> u64 {
        self.core().capacity
    }

    /// A new non-blocking stream with a pool.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(&self) -> Result<Stream<D>, Error> {
        self.stream_with(StreamOptions::default())
    }

    /// A new stream with a pool.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream_with(&self, options: StreamOptions) -> Result<Stream<D>, Error> {
        let core = self.core();
        let native = core.registry.watch(core.driver.relaxed(|| core.driver.create_stream(options)))?;
        self.enlist(native, false, true)
    }

    /// A pool on a stream that other code created. The native stream is kept until its pool has no live allocation and
    /// no use is open on it. Adopting one stream twice gives two handles of one pool. A thread must adopt its per-thread default stream
    /// itself, and every call that names that stream fails on another thread, where the native handle means that thread's own
    /// stream. Any thread can free what was allocated on it, and other streams can use it.
    ///
    /// # Errors
    /// A stream of another device; a capturing stream; the driver's.
    pub fn adopt(&self, native: D::Stream) -> Result<Stream<D>, Error> {
        let core = self.core();
        if core.registry.watch(core.driver.is_capturing(&native))? {
            return Err(Error::Capturing { stream: None });
        }
        self.enlist(native, true, true)
    }

    /// Adopts a stream as [`Allocator::adopt`] does, without waiting for anything. `adopt` waits, for at most
    /// [`bounded_wait`](Config::bounded_wait), if the allocator is deterministic and dozens of its streams have ended, because a deterministic
    /// allocator does not query events to learn that they are complete. Here their records stay until [`Allocator::finish_ended`], which is
    /// called by any adoption that may wait, or [`Allocator::synchronize`].
    ///
    /// # Errors
    /// As [`Allocator::adopt`].
    pub fn adopt_without_waiting(&self, native: D::Stream) -> Result<Stream<D>, Error> {
        let core = self.core();
        if core.registry.watch(core.driver.is_capturing(&native))? {
            return Err(Error::Capturing { stream: None });
        }
        self.enlist(native, true, false)
    }

    /// A handle of the stream with this number, if the stream has a pool here, which it has as long as a handle of it or an
    /// allocation from it exists. This searches all pools: code that allocates often should keep the handle.
    pub fn stream_of(&self, id: StreamId) -> Option<Stream<D>> {
        let found = self.core().pools.lock().iter().find_map(|pool| {
            if pool.timeline.info.id != id {
                return None;
            }
            let mut state = pool.lock();
            // An open pool's timeline has its stream. A clone of a closed one's could become its last reference, and be dropped under locks.
            let native = if state.closed { None } else { pool.timeline.native() }?;
            state.streams += 1;
            state.watch.clear(Watch::LEAVING);
            Some((Arc::clone(pool), native))
        });
        let (pool, native) = found?;
        let adopted = pool.timeline.adopted.load(crate::sync::Ordering::Relaxed);
        Some(Stream::new(self.owner.clone(), pool, native, adopted))
    }

    /// Waits, as [`Allocator::adopt`] does, for the end of streams that have ended, if the allocator is deterministic and there are dozens of
    /// them. Otherwise it does nothing and makes no driver call.
    pub fn finish_ended(&self) {
        let core = self.core();
        core.registry.finish_closed(&core.driver, core.config.wait);
    }

    fn enlist(&self, native: D::Stream, adopted: bool, may_wait: bool) -> Result<Stream<D>, Error> {
        let core = self.core();
        if !core.registry.alive() {
            return Err(core::lost());
        }
        let info = core.registry.watch(core.driver.stream_info(&native))?;
        if info.device != core.device {
            return Err(Error::WrongDevice { found: info.device, expected: core.device });
        }
        let adopted = adopted || info.kind != StreamKind::NonBlocking;
        let timeline = core.registry.attach(info, &native, adopted);
        let pool = {
            let mut pools = core.pools.lock();
            // If the only count on the timeline is ours, made just now, no allocator has a pool on it. Read under the lock under
            // which pools are added, because another thread may adopt the stream at the same moment.
            let alone = timeline.pools.load(crate::sync::Ordering::Acquire) == 1;
            let looked_at = if alone { &[][..] } else { pools.as_slice() };
            let known = looked_at.iter().find(|p| {
                if p.timeline.id != timeline.id {
                    return false;
                }
                let mut state = p.lock();
                // A closed pool never opens again, and may stand before the pool that replaced it.
                if !state.closed {
                    state.streams += 1;
                    state.watch.clear(Watch::LEAVING);
                }
                !state.closed
            });
            if let Some(pool) = known {
                // Each pool has one count, and this pool had its own already.
                timeline.pools.fetch_sub(1, crate::sync::Ordering::AcqRel);
                Arc::clone(pool)
            } else {
                let pool = Arc::new(Pool::new(Arc::clone(core), timeline, pool::state::next_pool_number()));
                pools.push(Arc::clone(&pool));
                pool
            }
        };
        // From here on, if a driver call fails, dropping the handle ends the stream as usual.
        let stream = Stream::new(self.owner.clone(), pool, native, adopted);
        core.tidy(may_wait);
        Ok(stream)
    }

    /// Allocates on a stream that the caller knows not to be capturing, otherwise as [`Allocator::alloc`]: on an
    /// adopted stream this saves the driver's query.
    ///
    /// # Errors
    /// As [`Allocator::alloc`], but a capture is not noticed: the graph would replay into bytes that have another owner by then.
    #[inline]
    pub fn alloc_not_capturing(&self, bytes: u64, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        if !Arc::ptr_eq(&stream.pool().core, self.core()) || stream.is_special() {
            stream.timeline().own_thread("alloc")?;
            stream.named();
            return self.alloc_checked(bytes, Granules(1), stream);
        }
        stream.named();
        self.alloc_hit(bytes, stream)
    }

    /// Allocates at an address that is a multiple of `align`, otherwise as [`Allocator::alloc`].
    ///
    /// # Errors
    /// As [`Allocator::alloc`]; [`Error::BadAlignment`] if `align` is no power of two or above 1 GiB.
    #[track_caller]
    pub fn alloc_aligned(&self, bytes: u64, align: u64, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        let _called = Called::<D>::here();
        if !align.is_power_of_two() || align > MOST_ALIGNMENT {
            return Err(Error::BadAlignment { requested: align, max: MOST_ALIGNMENT });
        }
        let granules = Granules::holding(align).unwrap_or(Granules(1));
        self.alloc_rare(bytes, granules, stream)
    }

    /// Allocates with a name, which [`Allocator::live`], out-of-memory errors and verdicts show; otherwise as
    /// [`Allocator::alloc`].
    ///
    /// # Errors
    /// As [`Allocator::alloc`].
    #[track_caller]
    pub fn alloc_named(
        &self,
        bytes: u64,
        name: impl Into<Arc<str>>,
        stream: &Stream<D>,
    ) -> Result<Allocation<D>, Error> {
        let _called = Called::<D>::here();
        let allocation = self.alloc(bytes, stream)?;
        if let Some(id) = allocation.id() {
            let name = name.into();
            self.core().driver.name(id, &name);
            stream.pool().lock().set_name(crate::heap::ChunkId::from_index(id.chunk), name);
        }
        Ok(allocation)
    }

    /// A miss, or a watched stream, as every framework's stream is: if it does not capture, the request is a hit like any
    /// other. Not cold, unlike the rare cases.
    #[inline(never)]
    fn alloc_otherwise(
        &self,
        missed: bool,
        bytes: u64,
        stream: &Stream<D>,
    ) -> Result<Allocation<D>, Box<Error>> {
        let allocation = if missed {
            // A stream that was ours alone may have been adopted by other code since, and may capture. A hit is harmless; a miss would end the capture.
            stream.refuse_capture().and_then(|()| self.alloc_missed(bytes, stream))
        } else if stream.is_special() || !Arc::ptr_eq(&stream.pool().core, self.core()) {
            self.alloc_rare(bytes, Granules(1), stream)
        } else {
            stream.refuse_capture().and_then(|()| self.alloc_hit(bytes, stream))
        };
        allocation.map_err(Box::new)
    }

    /// Allocates on an unwatched stream of this allocator when the cache has nothing that fits.
    #[cold]
    #[inline(never)]
    fn alloc_missed(&self, bytes: u64, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        let pool = stream.pool();
        match Request::of(bytes) {
            Some(request) => Self::miss(pool, Want::new(request.len(), pool.kind(bytes)), bytes),
            None => self.alloc_rare(bytes, Granules(1), stream),
        }
    }

    /// The rare cases: an alignment, a stream that is watched for more than captures, zero bytes, or a mistake.
    #[cold]
    #[inline(never)]
    fn alloc_rare(&self, bytes: u64, align: Granules, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        if Arc::ptr_eq(&stream.pool().core, self.core()) {
            stream.admit("alloc")?;
        }
        self.alloc_checked(bytes, align, stream)
    }

    /// The rest, after the check that the stream does not capture.
    fn alloc_checked(&self, bytes: u64, align: Granules, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        let pool = stream.pool();
        let core = &pool.core;
        if !Arc::ptr_eq(core, self.core()) {
            return Err(self.of_another(stream));
        }
        if bytes == 0 {
            return Ok(Allocation::dangling());
        }
        let Some(len) = Granules::holding(bytes) else {
            return Err(Error::TooLarge { requested: bytes, max: Granules::MAX.bytes() });
        };
        let want = Want { len, align, kind: pool.kind(bytes) };
        let lies_alone =
            core.windows.is_some() && core.config.handles.one_above.is_some_and(|above| bytes > above);
        let taken = if lies_alone {
            None
        } else {
            let mut state = pool.lock();
            let taken = state.hit_rare(&want, bytes, core.config.exact_fit);
            // Not a count of its own: the free returns the handle's reference to the pool's state, whose count would only grow.
            taken.map(|taken| (state.reference(pool), taken))
        };
        let allocation = if let Some((reference, taken)) = taken {
            let allocation = Self::handle(reference, taken, bytes);
            if core.is_recording() { Self::record_event(allocation, len, true) } else { allocation }
        } else {
            Self::miss(pool, want, bytes)?
        };
        if core.config.scrub { scrub::device(allocation, stream) } else { Ok(allocation) }
    }

    #[cold]
    #[inline(never)]
    fn miss(pool: &Arc<Pool<D>>, want: Want, bytes: u64) -> Result<Allocation<D>, Error> {
        let core = &pool.core;
        let taken = core.miss(pool, want, bytes).inspect_err(|_| core.deliver())?;
        // Not a count of its own: see `alloc_checked`.
        let reference = pool.lock().reference(pool);
        let allocation = Self::handle(reference, taken, bytes);
        // With the handle made: if the driver panics there, it is freed.
        core.relieve_when_due();
        Ok(if core.is_recording() { Self::record_event(allocation, want.len, false) } else { allocation })
    }

    /// Records the event for the sinks. A panic in a sink frees the allocation again.
    #[cold]
    #[inline(never)]
    fn record_event(allocation: Allocation<D>, len: Granules, hit: bool) -> Allocation<D> {
        if let (Some(pool), Some(id)) = (allocation.pool(), allocation.id()) {
            pool.core.record(trace::Event::Allocate {
                id,
                addr: allocation.address(),
                requested: allocation.len(),
                rounded: len.bytes(),
                stream: pool.timeline.info.id,
                hit,
            });
            pool.core.deliver();
        }
        allocation
    }

    #[cold]
    #[inline(never)]
    fn of_another(&self, stream: &Stream<D>) -> Error {
        let found = stream.info().device;
        if found == self.device() {
            Error::OtherAllocator { stream: stream.id(), device: found }
        } else {
            Error::WrongDevice { found, expected: self.device() }
        }
    }

    /// Allocates pinned host memory from the cache of pinned segments: zero-filled only if fresh ([`Config::scrub`]: always),
    /// 512-byte aligned. It returns to the cache only when every recorded use is *complete*, because the CPU is not on a stream.
    /// At the limit it may block the host for a bounded time; it never unpins anything, as a
    /// [trim](Allocator::trim) does.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] above the pinned limit or if the host has no more memory, [`Error::TooLarge`], the driver's.
    #[track_caller]
    pub fn alloc_pinned(&self, bytes: u64) -> Result<PinnedAllocation<D>, Error> {
        self.alloc_pinned_as(bytes, HostKind::Cached)
    }

    /// Allocates pinned memory that the CPU caches, or write-combined memory; otherwise as
    /// [`Allocator::alloc_pinned`]. The two kinds never share a segment.
    ///
    /// # Errors
    /// As [`Allocator::alloc_pinned`].
    #[track_caller]
    pub fn alloc_pinned_as(&self, bytes: u64, kind: HostKind) -> Result<PinnedAllocation<D>, Error> {
        let _called = Called::<D>::here();
        host::alloc_and_scrub(self.core(), bytes, kind)
    }

    /// Pins memory of the program's.
    pub(crate) fn registered<O: StableMemory>(&self, owner: O) -> Result<Registered<O, D>, (O, Error)> {
        Registered::new(self.core(), owner)
    }

    /// Pinned memory for what does not keep the allocator open.
    #[cfg(feature = "allocator-api2")]
    pub(crate) fn pinned_source(&self) -> PinnedSource<D> {
        PinnedSource(Arc::clone(self.core()))
    }

    /// Gives idle segments back to the device: those whose bytes are all free and complete; of [virtual memory](Config::virtual_memory) each
    /// physical handle of which that is true, between live allocations too. It does not wait for streams
    /// ([`Allocator::synchronize`] first, to give back everything that is free), and reports what it kept because nothing can tell
    /// when it is complete ([`Trimmed::held_back`]).
    ///
    /// **It may wait for the whole device, without a bound**: a plain free of the driver and an unpinning wait for every
    /// kernel, [independent](Stream::set_independent) streams included. Therefore no request gives segments back by
    /// itself, unless the driver's frees wait for nothing (`cuda::Backing::Async`); handles it does, because unmapping waits for nothing. A request that fails
    /// because idle memory lies in segments too small for it succeeds after a trim.
    ///
    /// # Errors
    /// The driver's first; what was given back stays given back, the rest is kept. A handle that the driver refuses to unmap ends no trim: the others,
    /// segments and pinned memory go nevertheless.
    #[track_caller]
    #[allow(
        clippy::needless_pass_by_value,
        reason = "`trim(Trim::All)` reads better than `trim(&Trim::All)`"
    )]
    pub fn trim(&self, which: Trim<'_, D>) -> Result<Trimmed, Error> {
        let _called = Called::<D>::here();
        let core = self.core();
        core.deferred_drops.sweep();
        let trimmed = match which {
            Trim::All => {
                let device = core.trim(None);
                let lost = device.as_ref().is_err_and(DriverError::is_context_lost);
                let pinned = if lost { Ok(Trimmed::default()) } else { host::trim(core) };
                let (mut t, pinned) = (device?, pinned?);
                t.bytes += pinned.bytes;
                t.segments += pinned.segments;
                t.held_back = core.held_back();
                t
            }
            Trim::Stream(stream) => {
                if !Arc::ptr_eq(&stream.pool().core, core) {
                    return Err(self.of_another(stream));
                }
                core.trim(Some(stream.pool()))?
            }
        };
        core.deliver();
        Ok(trimmed)
    }

    /// Sets how many bytes may be reserved on the device. If more are reserved, what is idle is given back as by a [trim](Allocator::trim), until the limit
    /// holds or nothing idle is left: handles of virtual memory first, which waits for nothing; then segments, which may wait for the device. Live
    /// allocations never make it fail: growth is refused until enough is free.
    ///
    /// # Errors
    /// [`Error::Config`] for a fraction outside 0 to 1; the driver's, if it refused to take something back and what it took is not enough. The limit is
    /// unchanged then.
    pub fn set_limit(&self, limit: Limit) -> Result<(), Error> {
        let core = self.core();
        let bytes = limit.bytes(core.capacity)?;
        let turn = core.limits.lock();
        let (before, above) = {
            let mut backing = core.backing.lock();
            let before = ::core::mem::replace(&mut backing.limit, bytes);
            (before, backing.reserved.saturating_sub(bytes.unwrap_or(u64::MAX)))
        };
        if above == 0 {
            return Ok(());
        }
        let failed = Undo::new(|| core.backing.lock().limit = before);
        let trimmed = core.give_back_above_limit(above);
        if laws::takes_limit_back(trimmed.is_err()) {
            drop(failed);
        } else {
            failed.forget();
        }
        drop(turn);
        core.deliver();
        Ok(trimmed?)
    }

    /// What the pools hold and have done so far.
    pub fn report(&self) -> Report {
        self.core().report()
    }

    /// Which ranges of which segment and window are live, free, in flight or a hole, as data and, by `{}`, as text. Gathered lock by lock, as a report is.
    pub fn memory_map(&self) -> MemoryMap {
        self.core().memory_map()
    }

    /// Sets every peak to the present value.
    pub fn reset_peaks(&self) {
        let core = self.core();
        core.reset_live_peaks();
        let mut host = core.host.lock();
        host.pool.reset_peaks();
        host.backing.reset_peak();
        drop(host);
        core.backing.lock().reset_peak();
    }

    /// Every live allocation, for finding what was not freed: ordered by pool and address, pinned
    /// host memory last.
    pub fn live(&self) -> Vec<Live> {
        let mut all = Vec::new();
        for pool in self.core().pool_list() {
            let state = pool.lock();
            state.add_live(pool.number, Some(pool.timeline.info.id), &mut all);
            state.unlock_fair();
        }
        let host = &self.core().host;
        host.lock().pool.add_live(host.number, None, &mut all);
        all
    }

    /// Two counts that only grow, in bytes: handed out, and reserved from the device. Their differences over a scope
    /// show how well memory was reused ([`Profile`](crate::report::Profile)).
    pub fn usage(&self) -> Usage {
        let core = self.core();
        let (pools, departed) = core.pools_and_departed(|departed| departed.0.bytes_served);
        let used: u64 = pools.iter().map(|p| p.lock().heap.stats().bytes_served).sum();
        Usage { allocated: used + departed, reserved: core.backing.lock().reserved_in_all }
    }

    /// Delivers the events that drops recorded to the sinks now, instead of at the next allocation.
    pub fn deliver_events(&self) {
        self.core().deliver();
    }

    /// Checks every invariant of every heap by walking it, and that the index of migration sources is right: for tests.
    ///
    /// # Panics
    /// If an invariant does not hold; the message has its number.
    pub fn check(&self) {
        let core = self.core();
        let (mut held, mut bounds) = (0, Vec::new());
        let pools = core.pool_list();
        for pool in &pools {
            let state = pool.lock();
            state.heap.check();
            bounds.push(pool.check_source(&state));
            held += state.heap.stats().owned;
        }
        core.sources.check(&bounds);
        let moving = core.moving.load(crate::sync::Ordering::Relaxed);
        core.check_holds(&pools, moving);
        let (plain, taken) = {
            let backing = core.backing.lock();
            let held = core.seat().map(group::Seat::held);
            assert!(held.is_none_or(|held| held == backing.reserved), "B1: bytes reserved in the group");
            (backing.segments.values().map(OwnedRange::bytes).sum::<u64>(), backing.reserved)
        };
        let nowhere =
            core.windows.as_ref().map_or(0, |of| Core::check_windows(of, &pools, moving, plain, taken));
        assert_eq!(
            held + moving + nowhere,
            taken,
            "H5: bytes held by pools and on the move, against bytes taken"
        );
        core.host.check();
    }
}

impl<D: Driver> fmt::Debug for Allocator<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocator({})", self.device())
    }
}
