//! The wait for the device that ends no capture: a page of host memory is pinned and unpinned. Who waits so at an allocator's end.

use super::registry::Registry;
use crate::driver::{Driver, DriverResult, HostKind};
use crate::units::GRANULE_BYTES;

/// Waits by freeing pinned memory.
pub(super) fn unpin<D: Driver>(driver: &D) -> DriverResult<()> {
    driver.relaxed(|| {
        let page = driver.pin(GRANULE_BYTES, HostKind::Cached)?;
        // One that is still pinned is freed in its drop, or told as lost there.
        page.release().map_err(|(_page, e)| e)
    })
}

/// Waits for all, for who has to and cannot be refused: beside captures where the driver has a way, whoever captures and whether that was expected. Where
/// that fails (there is no host memory to pin) by the call that ends them: memory before captures.
fn wait_for_all<D: Driver>(driver: &D) -> DriverResult<()> {
    if driver.unpin_waits_for_device() {
        match unpin(driver) {
            Err(e) if !e.is_context_lost() => {}
            waited => return waited,
        }
    }
    driver.relaxed(|| driver.synchronize_device())
}

impl<D: Driver> Registry<D> {
    /// Waits for all that is queued ([`wait_for_all`]), which counts as complete then.
    pub(super) fn prove_all(&self, driver: &D) -> DriverResult<()> {
        self.prove_behind(|| wait_for_all(driver))
    }
}
