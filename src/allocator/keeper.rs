//! Keeps values that the device still reads until it is done: sources of copies whose tokens were dropped early.
//!
//! A drop never waits for the device, so what a dropped token owned goes here with the event behind its copy, and is
//! dropped by a later call that may speak to the driver: the next copy, launch, miss of pinned memory, trim or
//! synchronise. Values run their own destructors, so they are dropped with no lock held. What cannot be proved complete
//! is never dropped: it is forgotten. It does not know what a value is.

use super::registry::Registry;
use super::stream::Event;
use crate::driver::{Driver, DriverResult};
use crate::order::PendingSet;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Arc, Mutex, Ordering, assert_unlocked};
use core::time::Duration;

/// What a value is kept for.
pub(crate) enum Until<D: Driver> {
    /// An event is complete.
    Event(Event<D>),
    /// Sealed uses are, each of them.
    Uses(PendingSet),
}

/// Values in the device's use.
pub(crate) struct Keeper<D: Driver> {
    driver: D,
    registry: Arc<Registry<D>>,
    /// Whether there is anything to look at.
    any: AtomicBool,
    kept: Mutex<Kept<D>>,
    /// A deterministic allocator asks no event: it drops what it knows complete by its own waits.
    asks: bool,
}

struct Kept<D: Driver> {
    all: Vec<(Until<D>, Box<dyn Send>)>,
    /// The allocator and its streams are gone: nobody comes by any more.
    closed: bool,
}

impl<D: Driver> Keeper<D> {
    pub(crate) fn new(driver: D, registry: Arc<Registry<D>>, asks: bool) -> Keeper<D> {
        Keeper {
            driver,
            registry,
            any: AtomicBool::new(false),
            kept: Mutex::new(Kept { all: Vec::new(), closed: false }),
            asks,
        }
    }

    /// Keeps a value until then. Makes no driver call, unless the allocator is gone: then it waits.
    pub(crate) fn keep(&self, until: Until<D>, value: Box<dyn Send>) {
        if !self.is_seen(&until) && !planted!(KeeperAtOnce) {
            let mut kept = self.kept.lock();
            if !kept.closed {
                kept.all.push((until, value));
                self.any.store(true, Ordering::Release);
                return;
            }
            drop(kept);
            self.let_go(&until, value);
        }
    }

    fn is_seen(&self, until: &Until<D>) -> bool {
        match until {
            Until::Event(event) => event.is_seen(),
            Until::Uses(uses) => self.registry.all_complete(uses),
        }
    }

    /// Asks the device.
    fn is_complete(&self, until: &Until<D>) -> Result<bool, crate::error::Error> {
        match until {
            Until::Event(event) => event.is_complete(),
            Until::Uses(uses) => Ok(self.learn(uses).map(|()| self.registry.all_complete(uses))?),
        }
    }

    /// Asks for the markers of what is not known to be complete, and has them made.
    fn learn(&self, uses: &PendingSet) -> DriverResult<()> {
        for p in uses {
            let Some(line) = self.registry.line(p.on).filter(|line| line.seen() < p.epoch) else { continue };
            if self.registry.marker_for(&self.driver, &line, p.epoch)?.is_some() {
                self.registry.fold(&self.driver, &line)?;
            }
        }
        Ok(())
    }

    /// Drops what is complete.
    #[inline]
    pub(crate) fn serve(&self) {
        if self.any.load(Ordering::Acquire) {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        assert_unlocked("kept values are looked at");
        let all = core::mem::take(&mut self.kept.lock().all);
        // An error is no completion (O4): whoever needs the stream meets it.
        let done =
            |until: &Until<D>| self.is_seen(until) || (self.asks && self.is_complete(until).unwrap_or(false));
        let (over, pending): (Vec<_>, Vec<_>) = all.into_iter().partition(|(until, _)| done(until));
        point!("kept values in hand");
        let left = {
            let mut kept = self.kept.lock();
            // Who closed meanwhile found nothing to wait for: what was in hand is ours to wait for.
            let left = if kept.closed && !planted!(CudaKeeperPutsBack) {
                pending
            } else {
                kept.all.extend(pending);
                Vec::new()
            };
            self.any.store(!kept.all.is_empty(), Ordering::Release);
            left
        };
        drop(over);
        for (until, value) in left {
            self.let_go(&until, value);
        }
    }

    /// The allocator's last owner goes: waits for everything kept and drops it.
    pub(crate) fn close(&self) {
        let all = {
            let mut kept = self.kept.lock();
            kept.closed = true;
            core::mem::take(&mut kept.all)
        };
        for (until, value) in all {
            self.let_go(&until, value);
        }
    }

    /// Drops a value behind what is waited for; forgets it if that cannot be had. A lost context runs nothing any more, so
    /// that nothing uses the value.
    fn let_go(&self, until: &Until<D>, value: Box<dyn Send>) {
        match self.wait(until) {
            Err(e) if !e.is_context_lost() => core::mem::forget(value),
            _ => drop(value),
        }
    }

    fn wait(&self, until: &Until<D>) -> Result<(), crate::error::Error> {
        match until {
            Until::Event(event) => event.synchronize(Duration::MAX),
            Until::Uses(uses) => {
                for &p in uses {
                    self.registry.wait_host(&self.driver, p, Duration::MAX)?;
                }
                Ok(())
            }
        }
    }
}
