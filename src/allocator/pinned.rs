//! The owned handle of pinned memory, and the calls that declare its uses. It does not know where its bytes came from.

mod borrowed;
pub(super) mod pool;
pub(super) mod registered;

use self::borrowed::Borrows;
use super::core::Core;
use super::event::Event;
use super::registry::CONTEXT;
use super::stream::Stream;
use super::undo::Undo;
use crate::driver::{Driver, Note};
use crate::error::Error;
use crate::order::Access;
use crate::sync::Arc;
use crate::units::{Addr, AllocationId};
use core::fmt;
use core::ptr::NonNull;

/// Page-locked host bytes, from [`Allocator::alloc_pinned`](crate::Allocator::alloc_pinned).
///
/// Asynchronous copies from and into it have to be recorded ([`PinnedAllocation::record_use`]) before it is dropped: it
/// is reused only when they are complete; if they cannot be recorded, [`PinnedAllocation::free_unknown`] ends it. Dropping it makes no driver
/// call and never blocks for the device, but for the last handle of an allocator that is gone, at [its end](crate::Allocator#its-end).
///
/// ```
/// use millpond::driver::Copies;
/// use millpond::{Allocator, Config, units::{GIB, KIB}};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(GIB);
/// let gpu = Allocator::new(sim.clone(), Config::default())?;
/// let stream = gpu.stream()?;
/// let (host, device) = (gpu.alloc_pinned(64 * KIB)?, gpu.alloc(64 * KIB, &stream)?);
/// // SAFETY: both live until the copy is done: the use of `host` is recorded, and `device` is of this stream.
/// unsafe { sim.copy_h2d(device.address(), host.as_ptr().as_ptr(), host.len(), stream.native())? };
/// host.record_use(&stream)?;
/// drop(host); // reused when the copy is complete
/// # drop(device);
/// # sim.verdict()?;
/// # Ok(()) }
/// ```
pub struct PinnedAllocation<D: Driver> {
    home: Option<Home<D>>,
    bytes: u64,
    borrowed: Borrows,
}

struct Home<D: Driver> {
    core: Arc<Core<D>>,
    addr: Addr,
    id: AllocationId,
}

impl<D: Driver> PinnedAllocation<D> {
    /// An allocation of zero bytes: nothing to give back.
    pub(crate) fn empty() -> PinnedAllocation<D> {
        PinnedAllocation { home: None, bytes: 0, borrowed: Borrows::not() }
    }
    pub(crate) fn new(core: &Arc<Core<D>>, addr: Addr, id: AllocationId, bytes: u64) -> PinnedAllocation<D> {
        let home = Some(Home { core: Arc::clone(core), addr, id });
        PinnedAllocation { home, bytes, borrowed: Borrows::not() }
    }
    /// The first byte, as a number; a multiple of 512.
    pub fn address(&self) -> Addr {
        self.home.as_ref().map_or(super::allocation::DANGLING, |h| h.addr)
    }
    /// The first byte. Valid for reads and writes of [`PinnedAllocation::len`] bytes until the drop, as long as no device
    /// work accesses them. Dangling for zero bytes.
    ///
    /// # Panics
    /// If the driver pinned memory at address 0, which none does.
    pub fn as_ptr(&self) -> NonNull<u8> {
        let addr = usize::try_from(self.address().0).unwrap_or(usize::MAX);
        NonNull::new(core::ptr::with_exposed_provenance_mut(addr)).expect("pinned memory is not at address 0")
    }
    /// The length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "is_empty is next to it")]
    pub fn len(&self) -> u64 {
        self.bytes
    }
    /// Whether zero bytes were requested.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
    /// Its identity.
    pub fn id(&self) -> Option<AllocationId> {
        self.home.as_ref().map(|h| h.id)
    }

    /// Declares that work queued on `stream`, now or until this is dropped, uses the bytes. Once no other code can queue work on the stream,
    /// the use covers what was queued by then, and the stream is kept no longer.
    ///
    /// # Errors
    /// A stream of another device; a capturing stream; a per-thread default stream of another thread.
    pub fn record_use(&self, stream: &Stream<D>) -> Result<(), Error> {
        stream.admit("record_use")?;
        let Some(home) = &self.home else { return Ok(()) };
        if !Arc::ptr_eq(&home.core.registry, &stream.pool().core.registry) {
            return Err(Error::WrongDevice { found: stream.info().device, expected: home.core.device });
        }
        // Recorded even if the driver panics in due maintenance.
        let _recorded = Undo::new(|| {
            let timeline = stream.timeline();
            home.core.host.with_uses((&home.core.registry, &home.core.driver), home.id, |uses| {
                if uses.declare(timeline.id) {
                    timeline.open.fetch_add(1, crate::sync::Ordering::AcqRel);
                }
            });
            home.core.driver.note(Note::Used { id: home.id, stream: stream.id(), so_far: false });
        });
        home.core.registry.run_maintenance(&home.core.driver);
        home.core.deferred_drops.run();
        Ok(())
    }

    /// Declares that the uses on the event's stream ended before the event.
    ///
    /// # Errors
    /// An event of another device.
    pub fn record_use_until(&self, event: &Event<D>) -> Result<(), Error> {
        let Some(home) = &self.home else { return Ok(()) };
        if !Arc::ptr_eq(&home.core.registry, event.registry()) {
            return Err(Error::WrongDevice { found: event.device(), expected: home.core.device });
        }
        home.core.host.with_uses((&home.core.registry, &home.core.driver), home.id, |uses| {
            uses.exact(event.timeline_id(), Access::Write, event.epoch());
        });
        home.core.driver.note(Note::Used { id: home.id, stream: event.stream(), so_far: true });
        Ok(())
    }

    /// Frees it when it is unknown which streams use it: the bytes are reused when everything queued on any stream
    /// of the context by now is complete, destroyed streams included. Waits for nothing.
    pub fn free_unknown(mut self) {
        let Some(Home { core, id, .. }) = self.home.take() else { return };
        // It is freed even if the driver panics in due maintenance.
        let freed = Undo::new(|| {
            core.driver.note(Note::Freed { id, unknown: true });
            // The number that the marker below, or the next one, will have.
            let everything = core.registry.context().stamp();
            core.host.with_uses((&core.registry, &core.driver), id, |uses| {
                uses.exact(CONTEXT, Access::Write, everything);
            });
            core.host.free(&core, id);
        });
        core.registry.run_maintenance(&core.driver);
        drop(freed);
        core.registry.mark_context(&core.driver);
    }
}

impl<D: Driver> fmt::Debug for PinnedAllocation<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.home {
            Some(h) => write!(f, "PinnedAllocation({} {} + {} B)", h.id, h.addr, self.bytes),
            None => f.write_str("PinnedAllocation(empty)"),
        }
    }
}

impl<D: Driver> Drop for PinnedAllocation<D> {
    fn drop(&mut self) {
        if let Some(Home { core, id, .. }) = self.home.take() {
            core.driver.note(Note::Freed { id, unknown: false });
            core.host.free(&core, id);
        }
    }
}
