//! A limit on the bytes that are live at once.

use super::passed_on;
use crate::allocator::{Limit, Trimmed};
use crate::erased::{AnyAllocation, AnyStream, GpuAlloc, Watcher};
use crate::error::Error;
use crate::sync::Ordering;
use crate::sync::atomic::AtomicU64;
use std::sync::Arc;

/// An allocator of which no more than so many requested bytes are live at once: for one part of a program, beside
/// others that share the pools. The limit on reserved device memory is another one ([`GpuAlloc::set_limit`]).
///
/// A request that would exceed the limit fails at once, with [`Error::AboveLimit`]; one that the inner allocator refuses
/// does not count. Requests of several threads at once never exceed it together.
///
/// ```
/// use millpond::{Allocator, Config, Error, GpuAlloc, units::{GIB, KIB}, wrap::Limited};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Error> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let cache = Limited::new(gpu.erase(), 4 * KIB);
/// let stream = cache.stream()?;
/// let block = cache.alloc(3 * KIB, &stream)?;
/// assert!(matches!(cache.alloc(2 * KIB, &stream), Err(Error::AboveLimit { .. })));
/// drop(block);
/// cache.alloc(2 * KIB, &stream)?;                           // there is room again
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn GpuAlloc>,
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct Budget {
    max: AtomicU64,
    live: AtomicU64,
}

/// Bytes of a budget, given back when dropped.
#[derive(Debug)]
struct Claim {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Watcher for Claim {}

impl Drop for Claim {
    fn drop(&mut self) {
        self.budget.live.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Budget {
    fn claim(self: &Arc<Budget>, bytes: u64) -> Result<Claim, Error> {
        // Read at each attempt: if the limit falls meanwhile, the attempts after that use the new one.
        let mut max = 0;
        let fits = |live: u64| {
            max = self.max.load(Ordering::Acquire);
            live.checked_add(bytes).filter(|&sum| sum <= max)
        };
        match self.live.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(Claim { budget: Arc::clone(self), bytes }),
            Err(live) => Err(Error::AboveLimit { requested: bytes, allocated: live, max }),
        }
    }
}

impl Limited {
    /// At most `max` bytes at once.
    pub fn new(inner: Arc<dyn GpuAlloc>, max: u64) -> Limited {
        Limited { inner, budget: Arc::new(Budget { max: AtomicU64::new(max), live: AtomicU64::new(0) }) }
    }
    /// Live bytes, as requested.
    pub fn live(&self) -> u64 {
        self.budget.live.load(Ordering::Acquire)
    }
    /// The limit.
    pub fn limit(&self) -> u64 {
        self.budget.max.load(Ordering::Acquire)
    }
    /// Sets another limit. If it is below what is live, every request is refused until enough is freed.
    pub fn set_limit(&self, bytes: u64) {
        self.budget.max.store(bytes, Ordering::Release);
    }

    fn within(
        &self,
        bytes: u64,
        allocate: impl FnOnce() -> Result<AnyAllocation, Error>,
    ) -> Result<AnyAllocation, Error> {
        let claim = self.budget.claim(bytes)?;
        Ok(allocate()?.watched(Box::new(claim)))
    }
}

impl GpuAlloc for Limited {
    passed_on!();
    fn alloc(&self, bytes: u64, stream: &AnyStream) -> Result<AnyAllocation, Error> {
        self.within(bytes, || self.inner.alloc(bytes, stream))
    }
    fn alloc_aligned(&self, bytes: u64, align: u64, stream: &AnyStream) -> Result<AnyAllocation, Error> {
        self.within(bytes, || self.inner.alloc_aligned(bytes, align, stream))
    }
    fn trim(&self, which: Option<&AnyStream>) -> Result<Trimmed, Error> {
        self.inner.trim(which)
    }
    fn set_limit(&self, limit: Limit) -> Result<(), Error> {
        self.inner.set_limit(limit)
    }
    fn synchronize(&self) -> Result<(), Error> {
        self.inner.synchronize()
    }
}
