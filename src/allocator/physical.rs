//! Virtual memory beneath the pools: windows of addresses, which pools fill with physical memory as their requests need it.
//!
//! With plain segments a request that fits into no free range takes a segment of its own, though free ranges around it may be as long together as
//! it is. In a window it takes only what is missing between them. Which holes are filled, and how many, is decided in `fill`; the records of windows, handles and
//! mappings are [`Physical`]'s, the calls of the driver [`VirtualMemory`]'s. This file has both for one allocator; `mapping` keeps them consistent with each
//! other and with the bytes counted under the limit.
//!
//! It does not know pools, nor what is done with a handle.
//!
//! # Invariants
//!
//! Those of [`Physical`], which has the list, and for the allocator as a whole:
//!
//! * **B1** the bytes of all handles and of all plain segments are what is reserved, but for claims of requests that are under way.
//! * **B3** a byte of a window is in one heap, or in transit, if it is in a slot that is Here, and otherwise in none. Of a handle that a thread works on all
//!   bytes are in its hands.
//!
//! A failed call leaves them true: what was made before it is undone, and what cannot be undone stays in the records: a handle that the driver does not
//! take back is spare, and a place that it does not unmap drains. So does a place over which the driver panics: it may be mapped or not, and an unmap is
//! tried until the driver answers. A handle over whose release it panics counts as gone.

use super::config::{Config, Growth, VirtualMemory as Choice};
use crate::driver::{Driver, PhysicalHandle, VirtualMemory};
use crate::error::{DriverError, DriverErrorKind, Error};
use crate::physical::{Physical, Stats};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Arc, Ordering, Rank, Ranked, RankedGuard};
use crate::units::{GIB, SegmentId};

/// An arena has this many addresses at least, and four times the device's memory: addresses cost nothing, and a second arena a driver call.
const ARENA: u64 = 32 * GIB;

/// An allocator's virtual memory.
pub(crate) struct Windows<D: Driver> {
    pub(super) device: Arc<VirtualMemory<D>>,
    records: Ranked<Physical<PhysicalHandle>>,
    /// A reservation has this many addresses, where the driver gives as many.
    pub(super) arena: u64,
    /// The driver has no virtual memory after all: plain segments from here on.
    pub(super) plain: AtomicBool,
}

/// The records, locked.
pub(super) type Records<'a> = RankedGuard<'a, Physical<PhysicalHandle>>;

impl<D: Driver> Windows<D> {
    /// The virtual memory that these options select on this device; `None`: plain segments.
    ///
    /// # Errors
    /// [`Error::Config`], if it is to be used in any case and cannot be.
    pub(super) fn new(driver: &D, config: &Config, capacity: u64) -> Result<Option<Windows<D>>, Error> {
        // A baseline for comparison counts bytes that are less than a unit.
        let counts_bytes = config.growth == Growth::Exact || config.exact_fit;
        let wanted = config.virtual_memory != Choice::Never && !counts_bytes;
        let found = if wanted { Windows::on(driver, config, capacity) } else { None };
        if found.is_none() && config.virtual_memory == Choice::Always {
            let expected = if counts_bytes {
                "never or auto with exact growth or exact fits"
            } else {
                "never or auto: this device has no virtual memory"
            };
            return Err(Error::Config { name: "virtual_memory", found: "always".into(), expected });
        }
        Ok(found)
    }

    fn on(driver: &D, config: &Config, capacity: u64) -> Option<Windows<D>> {
        let device = VirtualMemory::new(driver.clone())?.with(config.handles.properties());
        let records = Physical::new(device.facts().granularity, capacity)?;
        Some(Windows {
            device: Arc::new(device),
            records: Ranked::new(Rank::Physical, records),
            arena: ARENA.max(capacity.saturating_mul(4)),
            plain: AtomicBool::new(false),
        })
    }

    pub(super) fn lock(&self) -> Records<'_> {
        self.records.lock()
    }

    /// Whether the driver has not said yet that it has no virtual memory.
    pub(super) fn is_usable(&self) -> bool {
        !self.plain.load(Ordering::Relaxed)
    }

    /// Notes what a failed call says: whether this driver has no virtual memory after all. What was mapped so far stays in use.
    pub(super) fn note_refusal(&self, error: &DriverError) {
        self.plain.fetch_or(error.kind == DriverErrorKind::NotSupported, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> Stats {
        self.lock().stats()
    }

    /// Releases windows that no pool fills any more and that have nothing but holes: no heap knows them.
    pub(super) fn forget_retired(&self) {
        let mut records = self.lock();
        let retired: Vec<SegmentId> = records.retired().collect();
        for id in retired {
            records.remove_window(id);
        }
    }
}
