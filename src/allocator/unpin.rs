//! The wait for the device that ends no capture: a page of host memory is pinned and unpinned. It does not know what is complete then.

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

/// Waits for all, for who has to and knows nothing of captures: beside them where they are expected and the driver has a way.
pub(super) fn wait_for_all<D: Driver>(driver: &D) -> DriverResult<()> {
    if driver.expects_captures() && driver.unpin_waits_for_device() {
        unpin(driver)
    } else {
        driver.relaxed(|| driver.synchronize_device())
    }
}
