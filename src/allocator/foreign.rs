//! Device memory that somebody else allocated, with an owner that is dropped when nothing uses the memory any more.
//!
//! It never enters a pool. Its uses are kept here, as a pool keeps those of its allocations; at the drop they are sealed
//! (O6), and the owner goes to the keeper until each is *complete*: whoever owns the memory may give it to anybody, in an
//! order that nobody here knows (O4). It does not know what the owner is.

use super::keeper::{Keeper, Until};
use super::registry::uses::{bound, close_open};
use super::registry::{Line, Registry};
use super::stream::Stream;
use super::undo::Undo;
use crate::driver::{Driver, Note};
use crate::error::Error;
use crate::laws;
use crate::order::{Pending, PendingSet, Uses};
use crate::sync::{Arc, Mutex, Ordering};
use crate::units::{Addr, Epoch};
use core::fmt;

/// A foreign range in use.
pub(crate) struct Foreign<D: Driver> {
    pub(super) addr: Addr,
    pub(super) driver: D,
    pub(super) registry: Arc<Registry<D>>,
    keeper: Arc<Keeper<D>>,
    /// The stream it was brought in on. It is held open, as by a use until the drop.
    pub(super) home: Arc<Line<D>>,
    /// A reference to that stream, because an array in it gives the stream out again (cudarc's `stream()`): as long as it may, the stream is
    /// not nobody's, and a use of it is not over.
    native: Mutex<Option<D::Stream>>,
    pub(super) uses: Mutex<Uses>,
    /// What cudarc's interop keeps with this memory, as it does with a pool.
    #[cfg(feature = "cuda")]
    pub(super) guest: super::pool::state::Guest,
    bytes: u64,
    /// Taken in the drop. Behind a lock because it may be no `Sync`: nobody looks at it through a shared reference.
    owner: Mutex<Option<Box<dyn Send>>>,
}

impl<D: Driver> Foreign<D> {
    pub(crate) fn new(addr: Addr, bytes: u64, stream: &Stream<D>, owner: Box<dyn Send>) -> Foreign<D> {
        let home = Arc::clone(stream.line());
        home.open.fetch_add(1, Ordering::AcqRel);
        stream.driver().note(Note::BroughtIn { addr, stream: stream.id() });
        Foreign {
            addr,
            bytes,
            driver: stream.driver().clone(),
            registry: Arc::clone(stream.registry()),
            keeper: Arc::clone(stream.keeper()),
            home,
            native: Mutex::new(Some(stream.native().clone())),
            uses: Mutex::new(Uses::default()),
            #[cfg(feature = "cuda")]
            guest: super::pool::state::Guest::new(),
            owner: Mutex::new(Some(owner)),
        }
    }
    pub(super) fn keeper(&self) -> &Keeper<D> {
        &self.keeper
    }
    /// Fails for a stream of another device.
    pub(super) fn check(&self, stream: &Stream<D>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.registry, stream.registry()) {
            return Ok(());
        }
        Err(Error::WrongDevice { found: stream.info().device, expected: self.home.info.device })
    }
    /// Work on `stream`, queued by now or before the drop, uses it: as [`Allocation::record_use`](super::Allocation::record_use).
    pub(super) fn record_use(&self, stream: &Stream<D>) -> Result<(), Error> {
        self.check(stream)?;
        stream.admit("record_use")?;
        let on = stream.line();
        if on.id != self.home.id {
            // Recorded whatever the driver does in what is due, and behind it: due markers come before the operation (O9).
            let _recorded = Undo::new(|| {
                let mut uses = self.uses.lock();
                if uses.declare(on.id) {
                    on.open.fetch_add(1, Ordering::AcqRel);
                }
                bound(&mut uses, &self.registry, &self.driver);
            });
            self.registry.serve(&self.driver);
            self.keeper.serve();
        }
        Ok(())
    }
}

impl<D: Driver> fmt::Debug for Foreign<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({} + {} B on {})", self.addr, self.bytes, self.home.info.id)
    }
}

impl<D: Driver> Drop for Foreign<D> {
    fn drop(&mut self) {
        let Some(owner) = self.owner.lock().take() else { return };
        let uses = core::mem::take(&mut *self.uses.lock());
        let mut pending: PendingSet = {
            let seen = self.registry.seen();
            uses.at_free(Some(self.home.id), |on| seen.line(on).map_or(Epoch::COMPLETE, |l| l.stamp()))
        };
        pending.push(Pending { on: self.home.id, epoch: self.home.stamp() });
        for line in pending.iter().filter_map(|p| self.registry.line(p.on)) {
            if line.note_unmarked(self.bytes) {
                self.registry.raise_errand(&line);
            }
        }
        if !laws::keeps_foreign() {
            pending.clear();
        }
        // Behind the seal, as at any free. Before the owner goes, which may panic where nobody keeps it.
        for line in uses.open_on().filter_map(|on| self.registry.line(on)) {
            close_open(&self.registry, &line);
        }
        // Not the last reference: the line has its own until it closes.
        drop(self.native.lock().take());
        close_open(&self.registry, &self.home);
        self.keeper.keep(Until::Uses(pending), self.bytes, owner);
    }
}
