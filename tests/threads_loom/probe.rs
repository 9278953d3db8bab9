//! What a model checker may touch: the smallest steps of a timeline and its registry, for `tests/threads_loom.rs`. Built under
//! `--cfg loom` only; it does nothing itself but name the real thing, and [`Probe::reserve_unlocked`], which is wrong.

use super::registry::uses::release_open;
use super::registry::{Registry, StreamTimeline};
use crate::driver::{Driver, DriverResult};
use crate::order::{Access, Pending, Uses};
use crate::sync::{Arc, Ordering};
use crate::units::Epoch;
use core::time::Duration;

/// One timeline of a registry of its own.
pub struct Probe<D: Driver> {
    driver: D,
    registry: Registry<D>,
    timeline: Arc<StreamTimeline<D>>,
}

impl<D: Driver> core::fmt::Debug for Probe<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Probe")
    }
}

impl<D: Driver> Probe<D> {
    /// A stream's timeline, with one pool counted on it.
    ///
    /// # Errors
    /// The driver's.
    pub fn attach(driver: D, native: &D::Stream) -> DriverResult<Probe<D>> {
        let registry = Registry::new(&driver);
        let timeline = registry.attach(driver.stream_info(native)?, native, false);
        Ok(Probe { driver, registry, timeline })
    }
    /// The stamp of work queued before.
    pub fn stamp(&self) -> u64 {
        self.timeline.stamp().0
    }
    /// Makes a marker: its number, or nothing on a closed timeline.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark(&self) -> DriverResult<Option<u64>> {
        Ok(self.registry.make_marker(&self.driver, &self.timeline)?.map(|m| m.number.0))
    }
    /// The number that a synchronise would prove.
    pub fn reserve_epoch(&self) -> u64 {
        self.timeline.reserve_epoch().0
    }
    /// A number reserved without the timeline's lock, as it must not be.
    pub fn reserve_unlocked(&self) -> u64 {
        self.timeline.reserve_unlocked().0
    }
    /// Shows every published marker.
    pub fn published(&self, mut show: impl FnMut(u64, &D::Event)) {
        self.timeline.each_published(|m| show(m.number.0, &m.event));
    }
    /// Counts a free; whether a marker has fallen due.
    pub fn note_unmarked(&self, bytes: u64) -> bool {
        self.timeline.note_unmarked(bytes)
    }
    /// Says that maintenance is pending.
    pub fn request_maintenance(&self) {
        self.registry.request_maintenance(&self.timeline);
    }
    /// Runs the pending maintenance.
    pub fn run_maintenance(&self) {
        self.registry.run_maintenance(&self.driver);
    }
    /// One use on the timeline begins.
    pub fn open_use(&self) {
        self.timeline.open.fetch_add(1, Ordering::AcqRel);
    }
    /// It ends.
    pub fn end_use(&self) {
        let mut uses = Uses::default();
        drop(uses.open(self.timeline.id, Access::Write));
        release_open(&self.registry, &uses);
    }
    /// It ends, and the pools are counted by a load, which may return an old value, as it must not be.
    pub fn end_use_by_load(&self) {
        if self.timeline.open.fetch_sub(1, Ordering::AcqRel) == 1
            && self.timeline.pools.load(Ordering::Acquire) == 0
        {
            self.request_maintenance();
        }
    }
    /// The timeline's pool closes.
    pub fn detach(&self) {
        self.timeline.pools.fetch_sub(1, Ordering::AcqRel);
        self.request_maintenance();
    }
    /// Whether its native stream is gone.
    pub fn is_closed(&self) -> bool {
        self.timeline.is_closed()
    }
    /// Waits for the newest number there is, as the ladder's last rung does.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_for_newest(&self) -> DriverResult<bool> {
        let newest: Epoch = self.timeline.marked();
        self.registry.wait_host(
            &self.driver,
            Pending { on: self.timeline.id, epoch: newest },
            Duration::from_secs(2),
        )
    }
}
