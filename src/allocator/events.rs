//! Driver events as markers share them, and the pool they return to.
//!
//! A marker's event is held by its timeline, by the tokens and [`Event`](super::Event)s that users hold, and for a moment by
//! a thread that waits for it. Whichever thread drops the last reference returns the event to the pool, so that a
//! program that waits for its own tokens creates no event in a round. The registry says how many events the pool keeps
//! ([`EventPool::keep_at_most`]). Those above go back to the driver, not in the drop of a token, which makes no driver
//! call, but one whenever an event is taken, and all of them when the registry retires markers.
//!
//! An event in the pool may have been recorded before and not be complete. Recording it again does not affect earlier
//! waits, because a wait is for what was recorded when it was queued.
//!
//! It does not know what an event was recorded behind.

use crate::driver::{Driver, DriverResult};
use crate::laws::cost;
use crate::sync::{Arc, Rank, Ranked, Weak};
use core::fmt;
use core::ops::Deref;

/// How many events are kept whatever the registry says: enough for a few streams' copies and waits.
pub(crate) const LEAST: usize = 64;

/// Events that no marker refers to.
pub(crate) struct EventPool<D: Driver> {
    free: Ranked<Free<D>>,
}

struct Free<D: Driver> {
    /// In their counted blocks, so that a marker allocates none on the host.
    slots: Vec<Arc<Slot<D>>>,
    /// The largest number to keep.
    keep: usize,
}

/// A driver event and the pool it returns to.
struct Slot<D: Driver> {
    event: D::Event,
    home: Weak<EventPool<D>>,
}

/// A counted reference to a driver event. `None` only while it is dropped.
pub(crate) struct SharedEvent<D: Driver>(Option<Arc<Slot<D>>>);

impl<D: Driver> EventPool<D> {
    pub(crate) fn new() -> Arc<EventPool<D>> {
        Arc::new(EventPool { free: Ranked::new(Rank::Leaf, Free { slots: Vec::new(), keep: LEAST }) })
    }

    /// An event that nothing else refers to.
    ///
    /// # Errors
    /// The driver's, where one had to be created.
    pub(crate) fn take(self: &Arc<Self>, driver: &D) -> DriverResult<SharedEvent<D>> {
        let (pooled, above) = {
            let mut free = self.free.lock();
            let pooled = free.slots.pop();
            // One for each that is taken: what a burst left goes back while the program continues.
            let above = if free.slots.len() > free.keep { free.slots.pop() } else { None };
            (pooled, above)
        };
        drop(above);
        if let Some(slot) = pooled {
            return Ok(SharedEvent(Some(slot)));
        }
        let event = driver.create_event()?;
        Ok(SharedEvent(Some(Arc::new(Slot { event, home: Arc::downgrade(self) }))))
    }

    /// From now on at most `max` events are kept, but always [`LEAST`]. Those above go back to the driver: not to be
    /// called under a lock.
    pub(crate) fn keep_at_most(&self, max: usize) {
        let above = {
            let mut free = self.free.lock();
            free.keep = cost::pooled(max, LEAST);
            let keep = free.keep.min(free.slots.len());
            free.slots.split_off(keep)
        };
        drop(above);
    }

    /// Gives all events back to the driver, [`LEAST`] too: not to be called under a lock.
    pub(crate) fn give_back(&self) {
        let all = core::mem::take(&mut self.free.lock().slots);
        drop(all);
    }

    /// How many are kept at most.
    pub(crate) fn max(&self) -> usize {
        self.free.lock().keep
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.free.lock().slots.len()
    }

    /// Keeps an event that nothing refers to, however many there are: the drop of a token or a marker makes no driver call.
    fn put(&self, slot: Arc<Slot<D>>) {
        self.free.lock().slots.push(slot);
    }
}

impl<D: Driver> Clone for SharedEvent<D> {
    fn clone(&self) -> SharedEvent<D> {
        SharedEvent(self.0.clone())
    }
}

impl<D: Driver> Deref for SharedEvent<D> {
    type Target = D::Event;
    fn deref(&self) -> &D::Event {
        &self.0.as_ref().expect("taken in the drop only").event
    }
}

impl<D: Driver> Drop for SharedEvent<D> {
    fn drop(&mut self) {
        let Some(mut slot) = self.0.take() else { return };
        // Of two last holders that drop at once, each may still see the other's reference: then the event is destroyed and not pooled.
        if let Some(last) = Arc::get_mut(&mut slot)
            && let Some(pool) = cost::event_home(last.home.upgrade())
        {
            pool.put(slot);
        }
    }
}

impl<D: Driver> fmt::Debug for SharedEvent<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedEvent")
    }
}
