//! Notifies allocators that a timeline has progressed, for which they set its pools aside.
//!
//! A thread that sets a pool aside registers its number here, and then looks at the timeline once more; a thread that makes the timeline
//! progress notifies afterwards. Both access the flag, and what the other one reads, by read-modify-writes, so at least one of the two
//! sees the other: no progress is missed. It may be notified twice, which costs a look.
//!
//! It does not know what they do then.

use crate::laws::cost;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Arc, Ordering, Rank, Ranked};

/// Numbers of an allocator's pools whose timelines have progressed.
pub(crate) struct ProgressedPools(Ranked<Vec<u32>>);

impl ProgressedPools {
    pub(super) fn new() -> Arc<ProgressedPools> {
        Arc::new(ProgressedPools(Ranked::new(Rank::Leaf, Vec::new())))
    }
    /// The pools whose timelines have progressed since the last call.
    pub(super) fn take(&self) -> Vec<u32> {
        core::mem::take(&mut self.0.lock())
    }
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
    /// Whether this pool's timeline has progressed.
    pub(super) fn is_of(&self, pool: u32) -> bool {
        self.0.lock().contains(&pool)
    }
}

/// The allocators and pools that wait for progress of one timeline.
pub(crate) struct Listeners {
    any: AtomicBool,
    all: Ranked<Vec<(Arc<ProgressedPools>, u32)>>,
}

impl Listeners {
    pub(crate) fn new() -> Listeners {
        Listeners { any: AtomicBool::new(false), all: Ranked::new(Rank::Leaf, Vec::new()) }
    }

    /// Registers for the next progress, on behalf of this pool. The caller has to look at the timeline again after this.
    pub(super) fn listen(&self, progressed: &Arc<ProgressedPools>, pool: u32) {
        let mut all = self.all.lock();
        if !all.iter().any(|(n, p)| *p == pool && Arc::ptr_eq(n, progressed)) {
            all.push((Arc::clone(progressed), pool));
        }
        drop(all);
        self.any.swap(true, Ordering::AcqRel);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.lock().len()
    }

    /// Notifies that the timeline has a new marker, or more of it is complete.
    #[inline]
    pub(crate) fn notify(&self) {
        // Not a load, which might miss a thread that starts to listen.
        if cost::notifies(self.any.swap(false, Ordering::AcqRel)) {
            self.notify_all();
        }
    }

    #[cold]
    fn notify_all(&self) {
        let all = core::mem::take(&mut *self.all.lock());
        for (progressed, pool) in all {
            progressed.0.lock().push(pool);
        }
    }
}
