//! An owned range of device memory.
//!
//! It knows its pool, its chunk and the chunk's generation. Everything else (its uses, its stamps) is kept in the pool,
//! so that forgetting one leaks memory and is never unsafe.

use super::event::Event;
use super::pool::Pool;
use super::stream::Stream;
use super::undo::Undo;
use crate::driver::{Called, Driver, Note};
use crate::error::Error;
use crate::heap::Taken;
use crate::sync::Arc;
use crate::units::{Addr, AllocationId, StreamId};
use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::time::Duration;

/// Bytes on a device, from an [`Allocator`](crate::Allocator). Not readable by the host; no type.
///
/// **Ordering.** Work on its own stream, queued after the allocation, may use it at once. Work on another stream needs
/// to come after the allocation ([`Allocation::share_with`], or the program's own events) and has to be recorded
/// ([`Allocation::record_use`]). Dropping it, at any time and on any thread, makes no driver call, runs no user code and
/// waits at most for its pool's lock: the bytes are reused only in order after every recorded use ([law O1](crate::ordering#o1)).
///
/// Only the last handle of an allocator that is gone waits, at [its end](crate::Allocator#its-end).
///
/// ```
/// use millpond::{Allocator, Config, units::{GIB, MIB}};
/// use millpond_sim::{Launch, Sim};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(GIB);
/// let gpu = Allocator::new(sim.clone(), Config::default())?;
/// let (copy, work) = (gpu.stream()?, gpu.stream()?);
/// let batch = gpu.alloc(MIB, &copy)?;
/// sim.launch(copy.native(), Launch::new("load").writes(batch.address(), batch.len()))?;
/// work.wait_stream(&copy)?; // `work` comes behind the load
/// batch.record_use(&work)?; // and uses the bytes from here on
/// sim.launch(work.native(), Launch::new("train").reads(batch.address(), batch.len()))?;
/// drop(batch); // reused behind `train`
/// sim.verdict()?;
/// # Ok(()) }
/// ```
pub struct Allocation<D: Driver> {
    /// `None` for zero bytes.
    pub(super) home: Option<Home<D>>,
    pub(super) bytes: u64,
}

/// What a handle knows of its bytes.
pub(crate) struct Home<D: Driver> {
    /// The handle's reference; `refcount` describes how it ends.
    pub(crate) pool: ManuallyDrop<Arc<Pool<D>>>,
    pub(crate) taken: Taken,
}

/// The address of an allocation of zero bytes: never null, and a multiple of every alignment that can be requested.
pub(super) const DANGLING: Addr = Addr(super::MOST_ALIGNMENT);

impl<D: Driver> Allocation<D> {
    pub(crate) fn dangling() -> Allocation<D> {
        Allocation { home: None, bytes: 0 }
    }
    pub(crate) fn pool(&self) -> Option<&Arc<Pool<D>>> {
        self.home.as_ref().map(|h| &*h.pool)
    }
    /// The device that it is on; `None` for zero bytes.
    pub(crate) fn device(&self) -> Option<crate::units::DeviceId> {
        self.home.as_ref().map(|home| home.pool.core.device)
    }
    pub(super) fn home(&self) -> Option<&Home<D>> {
        self.home.as_ref()
    }
    /// Takes the handle apart without freeing.
    pub(crate) fn into_home(mut self) -> Option<Home<D>> {
        self.home.take()
    }

    /// The first byte; a multiple of 512, or of the requested alignment.
    #[inline]
    pub fn address(&self) -> Addr {
        self.home.as_ref().map_or(DANGLING, |h| h.taken.addr)
    }
    /// The requested length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "is_empty is next to it")]
    pub fn len(&self) -> u64 {
        self.bytes
    }
    /// Whether zero bytes were requested.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
    /// The stream it was allocated on; `None` for zero bytes, which belong to no stream.
    pub fn stream_id(&self) -> Option<StreamId> {
        self.home.as_ref().map(|h| h.pool.timeline.info.id)
    }
    /// Its identity, for launches on the simulator, traces and reports.
    pub fn id(&self) -> Option<AllocationId> {
        self.home.as_ref().map(Home::id)
    }

    /// Declares that work already queued on `stream`, or queued there before this is dropped, uses these bytes. They are
    /// then reused only after all work that the stream holds at the drop, or that it held at its end if it ended before: with its last reference,
    /// and a per-thread default stream when its thread's thread-local values end. Any stream of the same device may be declared.
    /// Orders nothing now: the work itself has to come after the allocation.
    ///
    /// # Errors
    /// A stream of another device; a capturing stream; a per-thread default stream of another thread. A due
    /// marker that could not be made is not an error.
    pub fn record_use(&self, stream: &Stream<D>) -> Result<(), Error> {
        let Some(home) = &self.home else { return Ok(()) };
        home.check(stream.info().device, Arc::ptr_eq(home.registry(), &stream.pool().core.registry))?;
        stream.admit("record_use")?;
        if stream.timeline().id == home.pool.timeline.id {
            return Ok(());
        }
        home.registry().saw_edge(&home.pool.timeline, stream.timeline().id);
        {
            // Recorded even if the driver panics in due maintenance, and after it: due markers come before the operation (O9).
            let _recorded = Undo::new(|| home.declare_use(stream));
            home.pool.core.registry.run_maintenance(&home.pool.core.driver);
            home.pool.core.deferred_drops.run();
        }
        Ok(())
    }

    /// Declares that the uses on the event's stream ended before the event: a precise form of [`Allocation::record_use`],
    /// so that work queued on that stream later delays no reuse.
    ///
    /// # Errors
    /// An event of another device.
    pub fn record_use_until(&self, event: &Event<D>) -> Result<(), Error> {
        let Some(home) = &self.home else { return Ok(()) };
        home.check(event.device(), Arc::ptr_eq(home.registry(), event.registry()))?;
        if event.timeline_id() != home.pool.timeline.id {
            home.registry().saw_edge(&home.pool.timeline, event.timeline_id());
            home.pool.declare_exact(
                home.taken.chunk(),
                home.taken.generation(),
                event.timeline_id(),
                event.epoch(),
            );
            home.pool.core.driver.note(Note::Used { id: home.id(), stream: event.stream(), so_far: true });
        }
        Ok(())
    }

    /// Makes `stream` wait, on the device, for the earlier use of the bytes on the home stream ([law O7](crate::ordering#o7)), and records a use by `stream`.
    /// What the program itself has queued on the home stream since is ordered too only if it was queued before the marker
    /// of this call was made; for data written there, wait for its event or stream.
    ///
    /// # Errors
    /// As [`Allocation::record_use`]; the driver's, if the wait cannot be inserted: then nothing is recorded.
    pub fn share_with(&self, stream: &Stream<D>) -> Result<(), Error> {
        let Some(home) = &self.home else { return Ok(()) };
        home.check(stream.info().device, Arc::ptr_eq(home.registry(), &stream.pool().core.registry))?;
        stream.admit("share_with")?;
        if stream.timeline().id != home.pool.timeline.id {
            let core = &home.pool.core;
            let birth = home.pool.birth(home.taken.chunk(), home.taken.generation());
            core.registry.order_after(&core.driver, stream.timeline(), birth, Duration::MAX)?;
            core.driver.note(Note::Admitted { id: home.id(), stream: stream.id() });
        }
        self.record_use(stream)
    }

    /// Frees it after everything queued on `stream` so far and until now: [`Allocation::record_use`], then drop.
    ///
    /// # Errors
    /// As [`Allocation::record_use`], with the allocation: then nothing was recorded and nothing freed.
    #[track_caller]
    pub fn free_on(self, stream: &Stream<D>) -> Result<(), (Allocation<D>, Error)> {
        let _called = Called::<D>::here();
        // If the driver panics while it is queried about the stream, the bytes are freed behind the stream nevertheless.
        let used = Undo::new(|| {
            if let Some(home) =
                self.home.as_ref().filter(|home| Arc::ptr_eq(home.registry(), stream.registry()))
            {
                home.declare_use(stream);
            }
        });
        let recorded = self.record_use(stream);
        used.forget();
        match recorded {
            // Here, because the thread that frees it is known here.
            Ok(()) => {
                drop(self);
                stream.mark_frees();
                Ok(())
            }
            Err(e) => Err((self, e)),
        }
    }

    /// Frees it when it is unknown which streams used it: the bytes are reused after everything queued by now on any stream of
    /// the context, destroyed ones included. Where captures by other code are expected
    /// ([`Fences::expects_captures`](crate::driver::Fences::expects_captures)), or where a [deterministic](super::Config::deterministic) allocator may not make any
    /// two streams wait ([`Reuse::WithWaits`](super::Reuse::WithWaits)), they are held back until the program synchronises the [allocator](super::Allocator::synchronize).
    #[track_caller]
    pub fn free_unknown(mut self) {
        let _called = Called::<D>::here();
        let Some(home) = self.home.take() else { return };
        let (core, id) = (Arc::clone(&home.pool.core), home.id());
        let pool = ManuallyDrop::into_inner(home.pool);
        // Each step is taken even if the driver panics in an earlier one.
        let after = Cell::new(None);
        let emptied = Undo::new(|| {
            if let Some(after) = after.take() {
                core.pool_emptied(&pool, after);
            }
        });
        let freed = Undo::new(|| {
            core.driver.note(Note::Freed { id, unknown: true });
            after.set(Some(pool.free_used(pool.lock(), home.taken.chunk(), home.taken.generation(), true)));
        });
        core.registry.run_maintenance(&core.driver);
        drop(freed);
        core.registry.mark_context(&core.driver);
        drop(emptied);
    }
}

impl<D: Driver> Home<D> {
    pub(super) fn id(&self) -> AllocationId {
        self.pool.id_of(self.taken.chunk(), self.taken.generation())
    }
    /// Declares a use until the free. Nothing is recorded for the allocation's own stream.
    fn declare_use(&self, stream: &Stream<D>) {
        if stream.timeline().id != self.pool.timeline.id {
            self.pool.declare_use(self.taken.chunk(), self.taken.generation(), stream.timeline());
            self.pool.core.driver.note(Note::Used { id: self.id(), stream: stream.id(), so_far: false });
        }
    }
    pub(super) fn registry(&self) -> &Arc<super::registry::Registry<D>> {
        &self.pool.core.registry
    }
    pub(super) fn check(&self, found: crate::units::DeviceId, same: bool) -> Result<(), Error> {
        if same { Ok(()) } else { Err(Error::WrongDevice { found, expected: self.pool.core.device }) }
    }
}

impl<D: Driver> fmt::Debug for Allocation<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.home {
            Some(h) => {
                write!(
                    f,
                    "Allocation({} {} + {} B on {})",
                    h.id(),
                    h.taken.addr,
                    self.bytes,
                    h.pool.timeline.info.id
                )
            }
            None => f.write_str("Allocation(empty)"),
        }
    }
}
