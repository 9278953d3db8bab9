//! Device memory that other code allocated, with an owner that is dropped when nothing uses the memory any more.
//!
//! It never enters a pool. Its uses are kept here, as a pool keeps those of its allocations. At the drop they are sealed
//! (O6), and the owner waits among the deferred drops until each is *complete*: the owner may give the memory to any other code, in an
//! order that is unknown here (O4). This file does not know what the owner is.

use super::deferred_drops::{DeferredDrops, Until};
use super::registry::uses::{bound, close_open};
use super::registry::{Registry, StreamTimeline};
use super::stream::Stream;
use super::undo::Undo;
use crate::driver::{Driver, Note};
use crate::error::Error;
use crate::laws;
use crate::order::{Pending, PendingSet, Uses};
use crate::sync::{Arc, Mutex, Ordering};
use crate::units::{Addr, Epoch};
use core::fmt;

/// An external range in use.
pub(crate) struct External<D: Driver> {
    pub(super) addr: Addr,
    pub(super) driver: D,
    pub(super) registry: Arc<Registry<D>>,
    deferred_drops: Arc<DeferredDrops<D>>,
    /// The stream it was imported on. It is kept open, as by a use until the drop.
    pub(super) home: Arc<StreamTimeline<D>>,
    /// A reference to that stream, because an array in this memory returns the stream to users (cudarc's `stream()`). While this reference exists,
    /// other code can still queue work on the stream, and a use on it is not over.
    native: Mutex<Option<D::Stream>>,
    pub(super) uses: Mutex<Uses>,
    /// What cudarc's interop keeps with this memory, as it does with a pool.
    #[cfg(feature = "cuda")]
    pub(super) extension: super::pool::state::Extension,
    bytes: u64,
    /// Taken in the drop. Behind a lock because it may not be `Sync`: no code reads it through a shared reference.
    owner: Mutex<Option<Box<dyn Send>>>,
}

impl<D: Driver> External<D> {
    pub(crate) fn new(addr: Addr, bytes: u64, stream: &Stream<D>, owner: Box<dyn Send>) -> External<D> {
        let home = Arc::clone(stream.timeline());
        home.open.fetch_add(1, Ordering::AcqRel);
        stream.driver().note(Note::BroughtIn { addr, stream: stream.id() });
        External {
            addr,
            bytes,
            driver: stream.driver().clone(),
            registry: Arc::clone(stream.registry()),
            deferred_drops: Arc::clone(stream.deferred_drops()),
            home,
            native: Mutex::new(Some(stream.native().clone())),
            uses: Mutex::new(Uses::default()),
            #[cfg(feature = "cuda")]
            extension: super::pool::state::Extension::new(),
            owner: Mutex::new(Some(owner)),
        }
    }
    pub(super) fn deferred_drops(&self) -> &DeferredDrops<D> {
        &self.deferred_drops
    }
    /// Fails for a stream of another device.
    pub(super) fn check(&self, stream: &Stream<D>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.registry, stream.registry()) {
            return Ok(());
        }
        Err(Error::WrongDevice { found: stream.info().device, expected: self.home.info.device })
    }
    /// Declares that work on `stream`, queued by now or before the drop, uses it: as [`Allocation::record_use`](super::Allocation::record_use).
    pub(super) fn record_use(&self, stream: &Stream<D>) -> Result<(), Error> {
        self.check(stream)?;
        stream.admit("record_use")?;
        let on = stream.timeline();
        if on.id != self.home.id {
            self.registry.saw_edge(on, self.home.id);
            // Recorded even if the driver panics in due maintenance, and after it: due markers come before the operation (O9).
            let _recorded = Undo::new(|| {
                let mut uses = self.uses.lock();
                if uses.declare(on.id) {
                    on.open.fetch_add(1, Ordering::AcqRel);
                }
                bound(&mut uses, &self.registry, &self.driver);
            });
            self.registry.run_maintenance(&self.driver);
            self.deferred_drops.run();
        }
        Ok(())
    }
}

impl<D: Driver> fmt::Debug for External<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "External({} + {} B on {})", self.addr, self.bytes, self.home.info.id)
    }
}

impl<D: Driver> Drop for External<D> {
    fn drop(&mut self) {
        let Some(owner) = self.owner.lock().take() else { return };
        let uses = core::mem::take(&mut *self.uses.lock());
        let mut pending: PendingSet = {
            let seen = self.registry.seen();
            uses.at_free(Some(self.home.id), |on| seen.timeline(on).map_or(Epoch::COMPLETE, |l| l.stamp()))
        };
        pending.push(Pending { on: self.home.id, epoch: self.home.stamp() });
        for timeline in pending.iter().filter_map(|p| self.registry.timeline(p.on)) {
            if timeline.note_unmarked(self.bytes) {
                self.registry.request_maintenance(&timeline);
            }
        }
        if !laws::keeps_external() {
            pending.clear();
        }
        // After the seal, as at any free. Before the owner is dropped, which may panic if it is dropped here and not kept.
        for timeline in uses.open_on().filter_map(|on| self.registry.timeline(on)) {
            close_open(&self.registry, &timeline);
        }
        // Not the last reference: the timeline has its own until it closes.
        drop(self.native.lock().take());
        close_open(&self.registry, &self.home);
        self.deferred_drops.keep(Until::Uses(pending), self.bytes, owner);
    }
}
