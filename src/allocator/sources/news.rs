//! Word of a timeline's progress, for allocators that have passed its pools over until there is some.
//!
//! Whoever passes a pool over leaves its number here, and then looks at the timeline once more; whoever moves the timeline on
//! says so afterwards. Both write the flag and what the other one reads by read-modify-writes, so that at least one of the two
//! sees the other: no progress goes unheard. It may be heard twice, which costs a look.
//!
//! It does not know what is done with the news.

use crate::laws::cost;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Arc, Ordering, Rank, Ranked};

/// Numbers of an allocator's pools whose timelines have moved on.
pub(crate) struct News(Ranked<Vec<u32>>);

impl News {
    pub(super) fn new() -> Arc<News> {
        Arc::new(News(Ranked::new(Rank::Leaf, Vec::new())))
    }
    /// What came since this was last asked.
    pub(super) fn take(&self) -> Vec<u32> {
        core::mem::take(&mut self.0.lock())
    }
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
    /// Whether there is news of this pool.
    pub(super) fn is_of(&self, pool: u32) -> bool {
        self.0.lock().contains(&pool)
    }
}

/// Who waits for news of one timeline.
pub(crate) struct Listeners {
    any: AtomicBool,
    all: Ranked<Vec<(Arc<News>, u32)>>,
}

impl Listeners {
    pub(crate) fn new() -> Listeners {
        Listeners { any: AtomicBool::new(false), all: Ranked::new(Rank::Leaf, Vec::new()) }
    }

    /// The next progress is told there, for this pool. What the timeline was before has to be looked at again after this.
    pub(super) fn listen(&self, news: &Arc<News>, pool: u32) {
        let mut all = self.all.lock();
        if !all.iter().any(|(n, p)| *p == pool && Arc::ptr_eq(n, news)) {
            all.push((Arc::clone(news), pool));
        }
        drop(all);
        self.any.swap(true, Ordering::AcqRel);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.lock().len()
    }

    /// The timeline has a new marker, or more of it is complete.
    #[inline]
    pub(crate) fn tell(&self) {
        // Not a load: it might miss who begins to listen.
        if cost::tells(self.any.swap(false, Ordering::AcqRel)) {
            self.tell_all();
        }
    }

    #[cold]
    fn tell_all(&self) {
        let all = core::mem::take(&mut *self.all.lock());
        for (news, pool) in all {
            news.0.lock().push(pool);
        }
    }
}
