//! Counts of what users of an allocator request.

use super::passed_on;
use crate::allocator::{Limit, Trimmed};
use crate::erased::{AnyAllocation, AnyStream, Facts, GpuAlloc, Watcher};
use crate::error::Error;
use crate::report::bytes;
use crate::sync::Mutex;
use crate::units::StreamId;
use core::fmt;
use std::sync::Arc;

/// An allocator that counts what its users request: calls, bytes, peaks. What others request from the same pools is not counted.
///
/// ```
/// use millpond::{Allocator, Config, GpuAlloc, units::{GIB, KIB}, wrap::Counted};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), millpond::Error> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let parsing = Counted::new(gpu.erase());
/// let stream = parsing.stream()?;
/// let kept = parsing.alloc(3 * KIB, &stream)?;
/// drop(parsing.alloc(KIB, &stream)?);
/// let counts = parsing.counts();
/// assert_eq!((counts.allocations, counts.frees, counts.bytes_live), (2, 1, 3 * KIB));
/// assert_eq!(counts.bytes_live_peak, 4 * KIB);
/// # drop(kept);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Counted {
    inner: Arc<dyn GpuAlloc>,
    counts: Shared,
}

type Shared = Arc<Mutex<Counts>>;

/// The counts at one moment: `allocations = frees + live`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Counts {
    /// Allocations made.
    pub allocations: u64,
    /// Allocations freed.
    pub frees: u64,
    /// Requests that failed.
    pub refused: u64,
    /// Uses recorded by other streams.
    pub uses: u64,
    /// Trims, new limits and synchronisations.
    pub others: u64,
    /// Bytes of all allocations, as requested.
    pub bytes_served: u64,
    /// The largest allocation, in bytes.
    pub bytes_largest: u64,
    /// Live bytes.
    pub bytes_live: u64,
    /// The highest `bytes_live` so far.
    pub bytes_live_peak: u64,
    /// Live allocations.
    pub live: u64,
    /// The highest `live` so far.
    pub live_peak: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} allocations of {} in all, {} refused, {} freed, {} uses elsewhere; live {} in {}, at most {} in {}",
            self.allocations,
            bytes(self.bytes_served),
            self.refused,
            self.frees,
            self.uses,
            bytes(self.bytes_live),
            self.live,
            bytes(self.bytes_live_peak),
            self.live_peak
        )
    }
}

/// What the end of an allocation has to subtract from the counts.
struct Counter(Shared);

impl Watcher for Counter {
    fn used(&self, _: &Facts, _: StreamId) {
        self.0.lock().uses += 1;
    }
    fn freed(self: Box<Self>, of: &Facts) {
        let mut counts = self.0.lock();
        counts.frees += 1;
        counts.live -= 1;
        counts.bytes_live -= of.bytes;
    }
}

impl Counted {
    /// Counts from zero.
    pub fn new(inner: Arc<dyn GpuAlloc>) -> Counted {
        Counted { inner, counts: Shared::default() }
    }
    /// The counts now.
    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }
    /// Sets the peaks to the present values.
    pub fn reset_peaks(&self) {
        let mut counts = self.counts.lock();
        counts.live_peak = counts.live;
        counts.bytes_live_peak = counts.bytes_live;
    }

    fn count(&self, made: Result<AnyAllocation, Error>) -> Result<AnyAllocation, Error> {
        let mut counts = self.counts.lock();
        match made {
            Err(e) => {
                counts.refused += 1;
                Err(e)
            }
            Ok(memory) => {
                let bytes = memory.len();
                counts.allocations += 1;
                counts.bytes_served += bytes;
                counts.bytes_largest = counts.bytes_largest.max(bytes);
                counts.live += 1;
                counts.live_peak = counts.live_peak.max(counts.live);
                counts.bytes_live += bytes;
                counts.bytes_live_peak = counts.bytes_live_peak.max(counts.bytes_live);
                drop(counts);
                Ok(memory.watched(Box::new(Counter(Arc::clone(&self.counts)))))
            }
        }
    }
    fn other(&self) -> &dyn GpuAlloc {
        self.counts.lock().others += 1;
        &*self.inner
    }
}

impl GpuAlloc for Counted {
    passed_on!();
    fn alloc(&self, bytes: u64, stream: &AnyStream) -> Result<AnyAllocation, Error> {
        self.count(self.inner.alloc(bytes, stream))
    }
    fn alloc_aligned(&self, bytes: u64, align: u64, stream: &AnyStream) -> Result<AnyAllocation, Error> {
        self.count(self.inner.alloc_aligned(bytes, align, stream))
    }
    fn trim(&self, which: Option<&AnyStream>) -> Result<Trimmed, Error> {
        self.other().trim(which)
    }
    fn set_limit(&self, limit: Limit) -> Result<(), Error> {
        self.other().set_limit(limit)
    }
    fn synchronize(&self) -> Result<(), Error> {
        self.other().synchronize()
    }
}
