//! The wait for the device that ends no capture: pins and unpins a page of host memory. And the wait at an allocator's end, which uses it.

use super::registry::Registry;
use crate::driver::{Driver, DriverResult, HostKind};
use crate::units::GRANULE_BYTES;

/// Waits by freeing pinned memory.
pub(super) fn unpin<D: Driver>(driver: &D) -> DriverResult<()> {
    driver.relaxed(|| {
        let page = driver.pin(GRANULE_BYTES, HostKind::Cached)?;
        // If the release fails, the page's drop tries again, or reports it as lost.
        page.release().map_err(|(_page, e)| e)
    })
}

/// Waits for everything, for a caller that must wait and cannot be refused: beside captures if the driver can, whatever captures and whether that was
/// expected. If that fails (there is no host memory to pin), by the call that ends captures: freeing memory safely matters more than captures.
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
    /// Waits for everything that is queued ([`wait_for_all`]), which then counts as complete.
    pub(super) fn prove_all(&self, driver: &D) -> DriverResult<()> {
        self.prove_behind(|| wait_for_all(driver))
    }
}
