//! Which other streams the program itself has ordered before or behind one stream.
//!
//! The simple version is a set of pairs under one lock. Then a request would take that lock for each pool that it looks at, and an ended stream would
//! have to be searched for among all pairs. So each timeline has its half of its pairs, sorted and shared until written: a request takes the whole
//! of it with one reference count.

use super::TimelineId;
use smallvec::SmallVec;
use std::sync::Arc;

/// The other ends of the edges that were seen at one timeline: of both directions, each once.
#[derive(Clone, Default, Debug)]
pub struct Edges {
    to: Option<Arc<SmallVec<[TimelineId; 4]>>>,
}

impl Edges {
    /// None was seen.
    pub const NONE: Edges = Edges { to: None };

    fn ends(&self) -> &[TimelineId] {
        self.to.as_deref().map_or(&[], SmallVec::as_slice)
    }

    /// Whether an edge between the owner and this timeline was seen.
    pub fn has(&self, on: TimelineId) -> bool {
        self.ends().binary_search(&on).is_ok()
    }

    /// An edge between the owner and this timeline was seen.
    pub fn add(&mut self, on: TimelineId) {
        if let Err(at) = self.ends().binary_search(&on) {
            Arc::make_mut(self.to.get_or_insert_default()).insert(at, on);
        }
    }

    /// Forgets the edges to all timelines but these.
    pub fn keep(&mut self, stays: impl Fn(TimelineId) -> bool) {
        if self.ends().iter().all(|&on| stays(on)) {
            return;
        }
        let to = Arc::make_mut(self.to.get_or_insert_default());
        to.retain(|on| stays(*on));
        if to.is_empty() {
            self.to = None;
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends().len()
    }

    /// Whether none was seen.
    pub fn is_empty(&self) -> bool {
        self.ends().is_empty()
    }
}
