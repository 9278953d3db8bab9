//! The meeting floor: the only place where bookkeeping and device meet.
//!
//! An [`Allocator`] hands out device memory in stream order from one pool a stream. Its rooms: `fast` (a hit and a free), `pool`,
//! `miss` (the ladder when nothing cached fits) with `migrate`, `grow` and `trim`, `registry` (the device's timelines),
//! `host` (pinned memory), `core` (what the handles have in common). Locks and their ranks are in
//! [`sync::Rank`](crate::sync::Rank): no two pool locks at once, no driver call and no user code under any but a grower's
//! turn.
//!
//! It does not know types, copies, kernels or frameworks.

pub(crate) mod access;
mod allocation;
mod backing;
mod bookkeeping;
mod bounded;
mod closed;
mod config;
mod core;
pub(crate) mod deferred_drops;
mod entry;
mod event;
mod events;
pub(crate) mod external;
mod fast;
mod fill;
mod grow;
mod host;
mod in_transit;
#[cfg(loom)]
#[doc(hidden)]
#[path = "../../tests/threads_loom/probe.rs"]
pub mod kernels;
mod ladder;
mod mapping;
mod migrate;
mod miss;
mod oom_facts;
mod peaks;
mod physical;
mod pinned;
mod pool;
mod raw;
pub(crate) mod recorder;
mod refcount;
mod registry;
mod scrub;
mod sources;
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
pub use config::{Config, Growth, Limit, Policy, Reuse, SMALL_BYTES, Variable, VirtualMemory};
pub use event::Event;
pub use pinned::PinnedAllocation;
pub use raw::RawAllocation;
pub use stream::Stream;
pub use trim::Trimmed;

use crate::driver::{Called, Driver, HostKind, OwnedRange, StreamKind, StreamOptions};
use crate::error::Error;
use crate::heap::{Request, Want};
use crate::laws;
use crate::report::{Report, Usage};
use crate::sync::Arc;
use crate::trace;
use crate::units::{Addr, AllocationId, DeviceId, Granules, StreamId};
use ::core::fmt;
use core::{Core, Owner};
use pool::{Pool, Watch};
use undo::Undo;

/// The largest alignment that can be asked for, in bytes.
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
/// It ends when it and all its streams are dropped: what is kept for copies, and pinned memory that nobody has, is waited for and given back by the drop of
/// the last of them, device memory too unless an [`Allocation`] lives, which gives it back when it goes. That drop waits by markers; where a stream's cannot be made
/// or waited for, as of one that ended unmarked, it waits as [`Allocator::synchronize_beside_captures`] does, whether captures are expected or not, and other threads'
/// launches stand meanwhile. Where queued work waits for what another thread has yet to launch (collectives), wait for it before the last handle goes.
pub struct Allocator<D: Driver> {
    owner: Owner<D>,
}

impl<D: Driver> Clone for Allocator<D> {
    fn clone(&self) -> Allocator<D> {
        Allocator { owner: self.owner.clone() }
    }
}

/// Which memory a trim looks at.
#[derive(Debug)]
#[non_exhaustive]
pub enum Trim<'a, D: Driver> {
    /// Every pool's, and pinned host memory.
    All,
    /// Segments that lie wholly in this stream's pool.
    Stream(&'a Stream<D>),
}

/// A live allocation, as [`Allocator::live`] lists them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Live {
    /// Which allocation.
    pub id: AllocationId,
    /// Its name, if it was given one.
    pub name: Option<Arc<str>>,
    /// First byte.
    pub addr: Addr,
    /// Bytes asked for.
    pub bytes: u64,
    /// The stream it was allocated on; none for pinned host memory.
    pub stream: Option<StreamId>,
}

impl<D: Driver> Allocator<D> {
    /// An allocator on the driver's device. Takes nothing from the device yet.
    ///
    /// # Errors
    /// The driver's; a limit that is no fraction; a context that was lost.
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

    /// A pool on a stream that somebody else made. The native stream is kept until its pool has no live allocation and
    /// no use is open on it. Adopting one stream twice gives two handles of one pool. A per-thread default stream is
    /// adopted by its own thread, and every verb that names it fails on another, where the native handle means that
    /// thread's own stream. What was allocated on it can be freed and dropped by any thread, and used on other streams.
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

    /// Makes a stream of the program's one of this allocator's, in a call that waits for nothing: [`Allocator::adopt`] waits, for at
    /// most [`bounded_wait`](Config::bounded_wait), in a deterministic allocator of which dozens of streams have ended, because that
    /// asks no event whether they are done. What is left of them stays until [`Allocator::finish_ended`], which any such call makes, or
    /// [`Allocator::synchronize`].
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

    /// A handle of the stream with this number, if it has a pool here: as long as anybody holds a handle of it or an
    /// allocation from it. A search through the pools: whoever allocates often keeps the handle.
    pub fn stream_of(&self, id: StreamId) -> Option<Stream<D>> {
        let found = self.core().pools.lock().iter().find_map(|pool| {
            if pool.timeline.info.id != id {
                return None;
            }
            let mut state = pool.lock();
            // An open pool's timeline has its stream, and whoever clones that of a closed one may be left with the last reference, under locks.
            let native = if state.closed { None } else { pool.timeline.native() }?;
            state.streams += 1;
            state.watch.clear(Watch::LEAVING);
            Some((Arc::clone(pool), native))
        });
        let (pool, native) = found?;
        let adopted = pool.timeline.adopted.load(crate::sync::Ordering::Relaxed);
        Some(Stream::new(self.owner.clone(), pool, native, adopted))
    }

    /// Waits, as [`Allocator::adopt`] does, for the end of streams that have ended, if there are dozens and nobody asks about them. Otherwise
    /// it does nothing, with no driver call.
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
            // One count on the timeline is ours, made just now: then no pool of any allocator is on it. Read under the lock under
            // which pools are added, because somebody else may adopt the stream at the same moment.
            let alone = timeline.pools.load(crate::sync::Ordering::Acquire) == 1;
            let looked_at = if alone { &[][..] } else { pools.as_slice() };
            let known = looked_at.iter().find(|p| {
                if p.timeline.id != timeline.id {
                    return false;
                }
                let mut state = p.lock();
                // A pool that is closed stays so, and may stand before the one that took its place.
                if !state.closed {
                    state.streams += 1;
                    state.watch.clear(Watch::LEAVING);
                }
                !state.closed
            });
            if let Some(pool) = known {
                // One count a pool, which it had.
                timeline.pools.fetch_sub(1, crate::sync::Ordering::AcqRel);
                Arc::clone(pool)
            } else {
                let pool = Arc::new(Pool::new(Arc::clone(core), timeline, pool::state::next_pool_number()));
                pools.push(Arc::clone(&pool));
                pool
            }
        };
        // Whatever becomes of the driver's calls behind this, the stream ends as streams do.
        let stream = Stream::new(self.owner.clone(), pool, native, adopted);
        core.tidy(may_wait);
        Ok(stream)
    }

    /// Allocates on a stream that the caller has just seen not to capture, otherwise as [`Allocator::alloc`]: on an
    /// adopted stream that spares the question to the driver.
    ///
    /// # Errors
    /// As [`Allocator::alloc`], but a capture is not noticed: the graph would replay into bytes that others have then.
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

    /// Allocates with a name for [`Allocator::live`], out-of-memory errors and verdicts to show, otherwise as
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

    /// A miss, or a stream that has to be asked, as every framework's: whether it captures, and then it is a hit like any
    /// other. Not cold, unlike what is truly rare.
    #[inline(never)]
    fn alloc_otherwise(
        &self,
        missed: bool,
        bytes: u64,
        stream: &Stream<D>,
    ) -> Result<Allocation<D>, Box<Error>> {
        let allocation = if missed {
            // A stream of ours that was migrated since may capture. What the cache has it is given all the same; what a miss does would end that.
            stream.refuse_capture().and_then(|()| self.alloc_missed(bytes, stream))
        } else if stream.is_special() || !Arc::ptr_eq(&stream.pool().core, self.core()) {
            self.alloc_rare(bytes, Granules(1), stream)
        } else {
            stream.refuse_capture().and_then(|()| self.alloc_hit(bytes, stream))
        };
        allocation.map_err(Box::new)
    }

    /// Allocates on a stream of this allocator's that need not be asked, where the cache has nothing that fits.
    #[cold]
    #[inline(never)]
    fn alloc_missed(&self, bytes: u64, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        let pool = stream.pool();
        match Request::of(bytes) {
            Some(request) => Self::miss(pool, Want::new(request.len(), pool.kind(bytes)), bytes),
            None => self.alloc_rare(bytes, Granules(1), stream),
        }
    }

    /// Allocates what is rare: an alignment, a stream that is watched for more than captures, no bytes, or a mistake.
    #[cold]
    #[inline(never)]
    fn alloc_rare(&self, bytes: u64, align: Granules, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        if Arc::ptr_eq(&stream.pool().core, self.core()) {
            stream.admit("alloc")?;
        }
        self.alloc_checked(bytes, align, stream)
    }

    /// The rest of it, once the stream is known not to capture.
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
        let taken = {
            let mut state = pool.lock();
            let taken = state.hit_rare(&want, bytes, core.config.exact_fit);
            // Not a count of its own: the free puts the handle's reference among the shares, which would only grow.
            taken.map(|taken| (state.share(pool), taken))
        };
        let allocation = if let Some((share, taken)) = taken {
            let allocation = Self::handed(share, taken, bytes);
            if core.is_recording() { Self::tell(allocation, len, true) } else { allocation }
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
        let share = pool.lock().share(pool);
        let allocation = Self::handed(share, taken, bytes);
        Ok(if core.is_recording() { Self::tell(allocation, want.len, false) } else { allocation })
    }

    /// For the sinks. A panic in one of them frees the allocation again.
    #[cold]
    #[inline(never)]
    fn tell(allocation: Allocation<D>, len: Granules, hit: bool) -> Allocation<D> {
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

    /// Pins host memory from the cache of pinned segments: zero-filled only when fresh ([`Config::scrub`]: always),
    /// 512-byte aligned. It comes back to the cache only when every recorded use is *complete*: the CPU is not on a stream.
    /// When the limit is reached it may block the host for a bounded time; it never unpins anything, as a
    /// [trim](Allocator::trim) does.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] above the pinned limit or when the host has no more, [`Error::TooLarge`], the driver's.
    #[track_caller]
    pub fn alloc_pinned(&self, bytes: u64) -> Result<PinnedAllocation<D>, Error> {
        self.alloc_pinned_as(bytes, HostKind::Cached)
    }

    /// Allocates pinned memory that is cached by the CPU or write-combined, otherwise as
    /// [`Allocator::alloc_pinned`]. The two come from segments of their own.
    ///
    /// # Errors
    /// As [`Allocator::alloc_pinned`].
    #[track_caller]
    pub fn alloc_pinned_as(&self, bytes: u64, kind: HostKind) -> Result<PinnedAllocation<D>, Error> {
        let _called = Called::<D>::here();
        let allocation = host::alloc(self.core(), bytes, kind)?;
        if self.core().config.scrub {
            scrub::pinned(&allocation);
        }
        Ok(allocation)
    }

    /// Gives idle segments back to the device: those all of whose bytes are free and complete. It waits for no stream by
    /// itself ([`Allocator::synchronize`] first, to give back all that is free), and says what it left because nobody can tell
    /// when that is complete ([`Trimmed::held_back`]).
    ///
    /// **It may wait for the whole device, without a bound**: a plain free of the driver and an unpinning wait for every
    /// kernel, [independent](Stream::set_independent) streams included. That is why no request gives anything back by
    /// itself, but where the driver's frees wait for nothing (`cuda::Backing::Async`). A request that fails
    /// because idle memory lies in segments that are too small for it is served after a trim.
    ///
    /// # Errors
    /// The driver's; what was given back stays so, the rest is kept.
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
                let mut t = core.trim(None)?;
                let pinned = host::trim(core)?;
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

    /// Sets how much may be taken from the device. A limit below what is taken gives idle segments back until it is
    /// kept, if they suffice, which may wait for the device as a [trim](Allocator::trim) may; it never fails for what is live, and refuses all growth until enough is free.
    ///
    /// # Errors
    /// [`Error::Config`] for a fraction outside 0 to 1; the driver's, from giving segments back. Then the limit is what it was.
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
        let trimmed =
            core.learn().and_then(|()| core.trim_segments(None, above, &::core::cell::Cell::new(0)));
        if laws::takes_limit_back(trimmed.is_err()) {
            drop(failed);
        } else {
            failed.forget();
        }
        drop(turn);
        core.deliver();
        Ok(trimmed.map(drop)?)
    }

    /// What the pools hold and did.
    pub fn report(&self) -> Report {
        self.core().report()
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

    /// Every live allocation: the list to look at when something was not freed. In the order of pools and addresses, pinned
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

    /// Two counts that only grow, in bytes: handed out to users, and taken from the device. The difference over a scope
    /// tells how well it reused ([`Profile`](crate::report::Profile)).
    pub fn usage(&self) -> Usage {
        let core = self.core();
        let (pools, departed) = core.pools_and_departed(|departed| departed.0.bytes_served);
        let used: u64 = pools.iter().map(|p| p.lock().heap.stats().bytes_served).sum();
        Usage { used: used + departed, acquired: core.backing.lock().acquired }
    }

    /// Hands events that drops have left to the sinks now, instead of at the next allocation.
    pub fn deliver_events(&self) {
        self.core().deliver();
    }

    /// Checks every invariant of every heap by walking it, and that each pool is known for what it may give: for tests.
    ///
    /// # Panics
    /// With the invariant's number.
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
        let (plain, taken) = {
            let backing = core.backing.lock();
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
