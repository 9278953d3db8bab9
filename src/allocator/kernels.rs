//! What a model checker may touch: the smallest steps of a line and its registry, for `tests/threads_loom.rs`. Built under
//! `--cfg loom` only; it does nothing itself but name the real thing, and [`Probe::reserve_unlocked`], which is wrong.

use super::registry::uses::release_open;
use super::registry::{Line, Registry};
use crate::driver::{Driver, DriverResult};
use crate::order::{Access, Pending, Uses};
use crate::sync::{Arc, Ordering};
use crate::units::Epoch;
use core::time::Duration;

/// One line of a registry of its own.
pub struct Probe<D: Driver> {
    driver: D,
    registry: Registry<D>,
    line: Arc<Line<D>>,
}

impl<D: Driver> core::fmt::Debug for Probe<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Probe")
    }
}

impl<D: Driver> Probe<D> {
    /// A stream's line, with one pool counted on it.
    ///
    /// # Errors
    /// The driver's.
    pub fn attach(driver: D, native: &D::Stream) -> DriverResult<Probe<D>> {
        let registry = Registry::new(&driver);
        let line = registry.attach(driver.stream_info(native)?, native, false);
        Ok(Probe { driver, registry, line })
    }
    /// The stamp of work queued before.
    pub fn stamp(&self) -> u64 {
        self.line.stamp().0
    }
    /// Makes a marker: its number, or nothing on a closed line.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark(&self) -> DriverResult<Option<u64>> {
        Ok(self.registry.make_marker(&self.driver, &self.line)?.map(|m| m.number.0))
    }
    /// The number that a synchronise would prove.
    pub fn promise(&self) -> u64 {
        self.line.promise().0
    }
    /// A number reserved without the line's lock, as it must not be.
    pub fn reserve_unlocked(&self) -> u64 {
        self.line.reserve_unlocked().0
    }
    /// Shows every published marker.
    pub fn published(&self, mut show: impl FnMut(u64, &D::Event)) {
        self.line.each_published(|m| show(m.number.0, &m.event));
    }
    /// Counts a free; whether a marker has fallen due.
    pub fn note_unmarked(&self, bytes: u64) -> bool {
        self.line.note_unmarked(bytes)
    }
    /// Says that there is an errand.
    pub fn raise_errand(&self) {
        self.registry.raise_errand(&self.line);
    }
    /// Does the errands.
    pub fn serve(&self) {
        self.registry.serve(&self.driver);
    }
    /// One use on the line begins.
    pub fn open_use(&self) {
        self.line.open.fetch_add(1, Ordering::AcqRel);
    }
    /// It ends.
    pub fn end_use(&self) {
        let mut uses = Uses::default();
        drop(uses.open(self.line.id, Access::Write));
        release_open(&self.registry, &uses);
    }
    /// It ends, and the pools are counted by a load, which may return an old value, as it must not be.
    pub fn end_use_by_load(&self) {
        if self.line.open.fetch_sub(1, Ordering::AcqRel) == 1 && self.line.pools.load(Ordering::Acquire) == 0
        {
            self.raise_errand();
        }
    }
    /// The line's pool closes.
    pub fn detach(&self) {
        self.line.pools.fetch_sub(1, Ordering::AcqRel);
        self.raise_errand();
    }
    /// Whether its native stream is gone.
    pub fn is_closed(&self) -> bool {
        self.line.is_closed()
    }
    /// Waits for the newest number there is, as the ladder's last rung does.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_for_newest(&self) -> DriverResult<bool> {
        let newest: Epoch = self.line.marked();
        self.registry.wait_host(
            &self.driver,
            Pending { on: self.line.id, epoch: newest },
            Duration::from_secs(2),
        )
    }
}
