//! A point on a stream as users hold it: a marker of its timeline, for which streams wait and which the host queries.
//!
//! It does not know the stream's pool, nor its allocator: those may be gone.

use super::deferred_drops::DeferredDrops;
use super::events::SharedEvent;
use super::registry::{Registry, StreamTimeline};
use crate::driver::Driver;
use crate::error::Error;
use crate::order::{Marker, TimelineId};
use crate::sync::Arc;
use crate::units::{DeviceId, Epoch, StreamId};
use core::fmt;
use core::time::Duration;

/// A point on a stream: everything queued on it before [`Stream::record`](super::Stream::record). Immutable; cheap to clone.
///
/// ```
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_sim::Sim;
/// use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let (copy, work) = (gpu.stream()?, gpu.stream()?);
/// let loaded = copy.record()?; // after everything queued on `copy` by now
/// work.wait(&loaded)?; // work queued on `work` from here on comes after that
/// loaded.synchronize(Duration::from_secs(1))?; // the host waits, a second at most
/// assert!(loaded.is_complete()?);
/// # Ok(()) }
/// ```
pub struct Event<D: Driver> {
    /// Knows the registry and the driver, and drops what the event proves complete.
    pub(super) deferred_drops: Arc<DeferredDrops<D>>,
    pub(super) on: Arc<StreamTimeline<D>>,
    pub(super) marker: Marker<SharedEvent<D>>,
}

impl<D: Driver> Clone for Event<D> {
    fn clone(&self) -> Event<D> {
        let (deferred_drops, on) = (Arc::clone(&self.deferred_drops), Arc::clone(&self.on));
        Event { deferred_drops, on, marker: self.marker.clone() }
    }
}

impl<D: Driver> Event<D> {
    pub(crate) fn registry(&self) -> &Arc<Registry<D>> {
        &self.deferred_drops.registry
    }
    /// The stream it was recorded on.
    pub fn stream(&self) -> StreamId {
        self.on.info.id
    }
    /// The device it was recorded on.
    pub fn device(&self) -> DeviceId {
        self.on.info.device
    }
    pub(crate) fn timeline_id(&self) -> TimelineId {
        self.on.id
    }
    /// Its number on its stream.
    pub fn epoch(&self) -> Epoch {
        self.marker.number
    }
    /// The event is known to be complete: drops the values that were kept for it.
    fn let_go(&self) {
        self.deferred_drops.learnt(self.on.id, &self.marker.copy);
    }
    /// Whether it is known to be complete, without a query.
    pub(crate) fn is_seen(&self) -> bool {
        self.on.seen() >= self.marker.number
    }
    /// Whether everything it was recorded behind is complete.
    ///
    /// # Errors
    /// The driver's; never to be read as complete.
    pub fn is_complete(&self) -> Result<bool, Error> {
        if self.is_seen() {
            self.let_go();
            return Ok(true);
        }
        let (registry, driver) = (self.registry(), &self.deferred_drops.driver);
        let done = registry.watch(driver.relaxed(|| driver.query(&self.marker.event)))?;
        // Not in a deterministic allocator: the answer to a query depends on how fast the device happened to be.
        if done && self.deferred_drops.queries {
            registry.marker_complete(&self.on, &self.marker);
            self.let_go();
        }
        Ok(done)
    }
    /// Blocks the host until it is complete, at most `limit`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or the driver's.
    pub fn synchronize(&self, limit: Duration) -> Result<(), Error> {
        if self.is_seen() {
            self.let_go();
            return Ok(());
        }
        let (registry, driver) = (self.registry(), &self.deferred_drops.driver);
        if registry.watch(driver.relaxed(|| driver.wait_event(&self.marker.event, limit)))? {
            registry.marker_complete(&self.on, &self.marker);
            self.let_go();
            registry.host_waited();
            Ok(())
        } else {
            let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            Err(Error::TimedOut { what: "an event", millis })
        }
    }
}

impl<D: Driver> fmt::Debug for Event<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({} of {})", self.marker.number.0, self.on.info.id)
    }
}
