//! Freed ranges that another stream may still touch.
//!
//! The simple version is a list of (range, uses) scanned at every miss. With one slow stream among many, each scan
//! is in vain. So a range waits on **one** use at a time, in a list per stream and epoch: when that use is over the range
//! moves to its next unfinished one, or leaves. Epochs of one stream end in order, so a drain looks only at the oldest
//! epoch of each stream and stops at the first that is not over: a slow stream blocks no other. A second index by
//! size is for migrations with an inserted wait.
//!
//! It does not know what is over (the caller says), nor what a chunk is.

use super::{Pending, PendingSet, TimelineId};
use crate::laws::{self, cost};
use crate::units::{Epoch, Granules};
use core::ops::Bound;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};

/// A range in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The chunk's index in its heap.
    pub chunk: u32,
    /// Its generation.
    pub generation: u32,
    /// Its length.
    pub len: Granules,
    /// Every cross-stream use, sealed.
    pub uses: PendingSet,
    /// The stamp of the pool's own stream at the free: the home stream may have read the bytes after the cross-stream use.
    pub home: Epoch,
}

/// A range, and where it is listed: under a use, at a position.
#[derive(Debug)]
struct Filed {
    entry: Entry,
    under: Pending,
    at: usize,
}

/// Where a range in flight stands among the others: its length and its chunk.
pub type InFlightKey = (Granules, u32);

/// The ranges in flight of one pool.
#[derive(Default, Debug)]
pub struct InFlight {
    entries: HashMap<u32, Filed>,
    waiting: BTreeMap<TimelineId, BTreeMap<Epoch, Vec<u32>>>,
    by_len: BTreeSet<InFlightKey>,
    /// The limit: twice as many ranges as the last drain left.
    crowd: usize,
}

/// Up to this many ranges wait for the next drain that happens anyway.
const FEW: usize = 32;

impl InFlight {
    /// No range in flight.
    pub fn new() -> InFlight {
        InFlight::default()
    }
    /// How many ranges.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Ranges behind this place, in the order of their places: for walking all of them in pieces.
    pub fn behind(&self, place: Option<InFlightKey>) -> impl Iterator<Item = (InFlightKey, &Entry)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_len.range((from, Bound::Unbounded)).map(|&place| (place, &self.entries[&place.1].entry))
    }

    /// Whether there are twice as many ranges as the last drain left, so that another drain is paid for by the frees since. Only a
    /// miss has to drain; without this, a program that never misses would keep ranges here whose uses ended long ago.
    pub fn is_crowded(&self) -> bool {
        cost::flight_is_crowded(self.entries.len(), FEW, self.crowd)
    }

    /// A freed range enters, waiting on its first use that is not over.
    ///
    /// # Panics
    /// When the chunk is in flight already, or has no use.
    pub fn insert(&mut self, entry: Entry) {
        assert!(!entry.uses.is_empty(), "O6: chunk {} in flight with no cross-stream use", entry.chunk);
        let (chunk, under) = (entry.chunk, entry.uses[0]);
        self.by_len.insert((entry.len, chunk));
        let at = self.list(chunk, under);
        let before = self.entries.insert(chunk, Filed { entry, under, at });
        assert!(before.is_none(), "H4: {before:?} is in flight already");
    }

    /// Lists a range under a use and returns its position.
    fn list(&mut self, chunk: u32, under: Pending) -> usize {
        let chunks = self.waiting.entry(under.on).or_default().entry(under.epoch).or_default();
        chunks.push(chunk);
        chunks.len() - 1
    }

    /// The last of the list takes its position, so that this costs the same however many ranges wait on one use.
    fn unlist(&mut self, chunk: u32, under: Pending, at: usize) {
        let Some(list) = self.waiting.get_mut(&under.on) else { return };
        if let Some(chunks) = list.get_mut(&under.epoch).filter(|chunks| chunks.get(at) == Some(&chunk)) {
            chunks.swap_remove(at);
            if let Some(moved) = chunks.get(at).and_then(|moved| self.entries.get_mut(moved)) {
                moved.at = at;
            }
            if chunks.is_empty() {
                list.remove(&under.epoch);
            }
        }
        if list.is_empty() {
            self.waiting.remove(&under.on);
        }
    }

    /// Takes out every range whose uses are all over, as `over` says. `over` must be monotone in the epoch of one stream.
    #[allow(clippy::missing_panics_doc, reason = "what is listed is filed")]
    pub fn drain(&mut self, mut over: impl FnMut(Pending) -> bool) -> Vec<Entry> {
        let mut out = Vec::new();
        let streams: Vec<TimelineId> = self.waiting.keys().copied().collect();
        for on in streams {
            while let Some(oldest) = self.waiting.get_mut(&on).and_then(BTreeMap::first_entry) {
                if !over(Pending { on, epoch: *oldest.key() }) {
                    break;
                }
                for chunk in oldest.remove() {
                    let uses = &self.entries[&chunk].entry.uses;
                    match uses.iter().copied().find(|&p| laws::keeps_in_flight(over(p))) {
                        Some(_) if !cost::files_next() => {}
                        Some(next) => {
                            let at = self.list(chunk, next);
                            let filed = self.entries.get_mut(&chunk).expect("looked at above");
                            (filed.under, filed.at) = (next, at);
                        }
                        None => out.extend(self.forget(chunk).map(|filed| filed.entry)),
                    }
                }
            }
            if self.waiting.get(&on).is_some_and(BTreeMap::is_empty) {
                self.waiting.remove(&on);
            }
        }
        self.crowd = 2 * self.entries.len();
        out
    }

    /// Takes out the shortest range of at least `len` that `fits` accepts; looks at no more than `steps`.
    pub fn take_at_least(
        &mut self,
        len: Granules,
        steps: usize,
        mut fits: impl FnMut(&Entry) -> bool,
    ) -> Option<Entry> {
        let found = self
            .by_len
            .range((len, 0)..)
            .take(steps)
            .map(|&(_, chunk)| chunk)
            .find(|chunk| fits(&self.entries[chunk].entry))?;
        self.remove(found)
    }

    /// The last use of each stream in the older half of the bytes that `fits` accepts, ordered by when their own stream freed them: a
    /// stream that comes after these uses has that half back.
    pub fn ends_of_older_half(&self, mut fits: impl FnMut(&Entry) -> bool) -> Vec<Pending> {
        let mut accepted: Vec<&Entry> =
            self.entries.values().map(|filed| &filed.entry).filter(|entry| fits(entry)).collect();
        // The result must not depend on the table's own order: a deterministic allocator uses it.
        accepted.sort_unstable_by_key(|entry| (entry.home, entry.chunk));
        let mut left: u64 = accepted.iter().map(|entry| u64::from(entry.len.0)).sum();
        let half = left / 2;
        let mut last = BTreeMap::new();
        for entry in accepted.iter().take_while(|entry| {
            let more = left > half;
            left -= u64::from(entry.len.0);
            more
        }) {
            for p in &entry.uses {
                let epoch: &mut Epoch = last.entry(p.on).or_insert(p.epoch);
                *epoch = p.epoch.max(*epoch);
            }
        }
        last.into_iter().map(|(on, epoch)| Pending { on, epoch }).collect()
    }

    /// The longest range's length.
    pub fn longest(&self) -> Granules {
        self.by_len.last().map_or(Granules::ZERO, |&(len, _)| len)
    }

    /// Takes one range out.
    pub fn remove(&mut self, chunk: u32) -> Option<Entry> {
        let Filed { entry, under, at } = self.forget(chunk)?;
        self.unlist(chunk, under, at);
        Some(entry)
    }

    /// Takes out one range that is not listed any more.
    fn forget(&mut self, chunk: u32) -> Option<Filed> {
        let filed = self.entries.remove(&chunk)?;
        self.by_len.remove(&(filed.entry.len, chunk));
        Some(filed)
    }

    /// Every use of every range.
    pub fn uses(&self) -> impl Iterator<Item = Pending> + '_ {
        self.entries.values().flat_map(|filed| filed.entry.uses.iter().copied())
    }

    /// The uses that ranges wait on now, the oldest of each stream.
    pub fn oldest(&self) -> impl Iterator<Item = Pending> + '_ {
        self.oldest_behind(None)
    }

    /// The oldest use that ranges wait on of each stream behind this one, in their order.
    pub fn oldest_behind(&self, on: Option<TimelineId>) -> impl Iterator<Item = Pending> + '_ {
        let from = on.map_or(Bound::Unbounded, Bound::Excluded);
        let waiting = self.waiting.range((from, Bound::Unbounded));
        waiting.filter_map(|(&on, list)| Some(Pending { on, epoch: *list.first_key_value()?.0 }))
    }
}
