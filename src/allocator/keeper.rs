//! Keeps values that the device still reads until it is done: sources of copies whose tokens were dropped early.
//!
//! A drop never waits for the device, so what a dropped token owned goes here with the event behind its copy, and is
//! dropped by a later call that may speak to the driver: the next copy, launch, miss of pinned memory, trim or
//! synchronise. Values run their own destructors, so they are dropped with no lock held. What cannot be proved complete
//! is never dropped: it is forgotten. It does not know what a value is.

use super::stream::Event;
use crate::driver::Driver;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Mutex, Ordering, assert_unlocked};
use core::time::Duration;

/// Values in the device's use.
pub(crate) struct Keeper<D: Driver> {
    /// Whether there is anything to look at.
    any: AtomicBool,
    kept: Mutex<Kept<D>>,
    /// A deterministic allocator asks no event: it drops what it knows complete by its own waits.
    asks: bool,
}

struct Kept<D: Driver> {
    all: Vec<(Event<D>, Box<dyn Send>)>,
    /// The allocator and its streams are gone: nobody comes by any more.
    closed: bool,
}

impl<D: Driver> Keeper<D> {
    pub(crate) fn new(asks: bool) -> Keeper<D> {
        Keeper {
            any: AtomicBool::new(false),
            kept: Mutex::new(Kept { all: Vec::new(), closed: false }),
            asks,
        }
    }

    /// Keeps a value until the event is complete. Makes no driver call, unless the allocator is gone: then it waits for
    /// the event.
    pub(crate) fn keep(&self, until: Event<D>, value: Box<dyn Send>) {
        if !until.is_seen() {
            let mut kept = self.kept.lock();
            if !kept.closed {
                kept.all.push((until, value));
                self.any.store(true, Ordering::Release);
                return;
            }
            drop(kept);
            let_go(&until, value);
        }
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
        let done = |e: &Event<D>| e.is_seen() || (self.asks && e.is_complete().unwrap_or(false));
        let (over, pending): (Vec<_>, Vec<_>) = all.into_iter().partition(|(event, _)| done(event));
        {
            let mut kept = self.kept.lock();
            kept.all.extend(pending);
            self.any.store(!kept.all.is_empty(), Ordering::Release);
        }
        drop(over);
    }

    /// The allocator's last owner goes: waits for everything kept and drops it.
    pub(crate) fn close(&self) {
        let all = {
            let mut kept = self.kept.lock();
            kept.closed = true;
            core::mem::take(&mut kept.all)
        };
        for (until, value) in all {
            let_go(&until, value);
        }
    }
}

/// Drops a value behind an event that is waited for; forgets it if that cannot be had. A lost context runs nothing any
/// more, so that nothing uses the value.
fn let_go<D: Driver>(until: &Event<D>, value: Box<dyn Send>) {
    match until.synchronize(Duration::MAX) {
        Err(e) if !e.is_context_lost() => core::mem::forget(value),
        _ => drop(value),
    }
}
