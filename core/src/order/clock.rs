//! What one stream is already ordered after: for each other timeline the newest marker.
//!
//! The simple version is an array indexed by timeline, copied at every marker. A program with a thousand streams would
//! copy 8 KiB a marker, so: entries are sorted pairs of only those timelines that were ever waited for, shared until
//! written (a copy is one reference count), and complete entries are dropped when the clock is next written. A few
//! entries lie in the shared block itself, so that a write to a shared clock allocates one block on the host and not two.

use super::{Completed, TimelineId};
use crate::laws::cost;
use crate::units::Epoch;
use smallvec::SmallVec;
use std::sync::Arc;

/// Sorted by timeline.
type Entries = SmallVec<[(TimelineId, Epoch); 4]>;

/// `K_t`: for each timeline u the newest marker of u that t is known to be ordered after.
#[derive(Clone, Default, Debug)]
pub struct Clock {
    entries: Option<Arc<Entries>>,
    /// How many entries the last look at it, or at one that it joined, left.
    left: u32,
}

/// Up to this many entries are never looked at: as many as fit into a kibibyte.
const FEW: usize = 64;

impl Clock {
    /// Ordered after nothing.
    pub const EMPTY: Clock = Clock { entries: None, left: 0 };

    fn entries(&self) -> &[(TimelineId, Epoch)] {
        self.entries.as_deref().map_or(&[], SmallVec::as_slice)
    }

    /// The newest marker of `on` that the owner is ordered after; 0 if none.
    pub fn get(&self, on: TimelineId) -> Epoch {
        let entries = self.entries();
        entries.binary_search_by_key(&on, |e| e.0).map_or(Epoch(0), |i| entries[i].1)
    }

    /// Every timeline that the owner is ordered after, with its marker.
    pub fn iter(&self) -> impl Iterator<Item = (TimelineId, Epoch)> + '_ {
        self.entries().iter().copied()
    }

    /// Learns that the owner is ordered after marker `epoch` of `on`. Never shrinks (law O3).
    pub fn raise(&mut self, on: TimelineId, epoch: Epoch) {
        if self.get(on) >= epoch {
            return;
        }
        let entries = Arc::make_mut(self.entries.get_or_insert_default());
        match entries.binary_search_by_key(&on, |e| e.0) {
            Ok(i) => entries[i].1 = epoch,
            Err(i) => entries.insert(i, (on, epoch)),
        }
    }

    /// Joins everything that another clock knows, except about `but`, the owner itself: in as many steps as both have entries.
    pub fn join(&mut self, other: &Clock, but: TimelineId) {
        if self.is_empty() && other.get(but) == Epoch(0) {
            self.clone_from(other);
            return;
        }
        if !other.iter().any(|(on, epoch)| on != but && self.get(on) < epoch) {
            return;
        }
        let (mut own, mut theirs) = (self.iter().peekable(), other.iter().filter(|e| e.0 != but).peekable());
        let mut both = Entries::with_capacity(self.len().max(other.len()));
        loop {
            let next = match (own.peek().copied(), theirs.peek().copied()) {
                (Some(a), Some(b)) if a.0 == b.0 => {
                    own.next();
                    theirs.next();
                    (a.0, a.1.max(b.1))
                }
                (Some(a), b) if b.is_none_or(|b| a.0 < b.0) => {
                    own.next();
                    a
                }
                (_, Some(b)) => {
                    theirs.next();
                    b
                }
                _ => break,
            };
            both.push(next);
        }
        drop((own, theirs));
        self.entries = Some(Arc::new(both));
        self.left = self.left.max(other.left);
    }

    /// Drops entries that add nothing to `seen`, so that closed streams leave no entries.
    pub fn retire(&mut self, seen: &impl Completed) {
        let done = |e: &(TimelineId, Epoch)| seen.completed(e.0) >= e.1;
        if self.entries().iter().any(done) {
            let entries = Arc::make_mut(self.entries.get_or_insert_default());
            entries.retain(|e| !done(e));
        }
        self.left = self.len() as u32;
    }

    /// Whether it names twice as many as the last look left, and more than a few. In a chain of streams each of which waits for the
    /// one before, the last clock would otherwise name all, even if the first streams were over long ago without a query. The count that a look
    /// left is copied with the clock: a stream that joins a clock that was just looked at does not look again.
    pub fn is_crowded(&self) -> bool {
        cost::clock_is_crowded(self.len(), FEW, self.left as usize)
    }

    /// How many timelines it names.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether it names none.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }
}
