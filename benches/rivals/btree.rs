//! The textbook best fit: free ranges by address and by size, in two trees. Exact, and logarithmic in what is free.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges of one address space.
pub struct BestFit {
    /// First byte to length.
    by_address: BTreeMap<u64, u64>,
    /// Length, first byte.
    by_size: BTreeSet<(u64, u64)>,
}

impl BestFit {
    pub fn new(capacity: u64) -> BestFit {
        BestFit { by_address: BTreeMap::from([(0, capacity)]), by_size: BTreeSet::from([(capacity, 0)]) }
    }

    /// The shortest free range that has `len` bytes, of equals the lowest; its front.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let &(have, at) = self.by_size.range((len, 0)..).next()?;
        self.remove(at, have);
        if have > len {
            self.insert(at + len, have - len);
        }
        Some(at)
    }

    /// Takes a range back and joins it with its free neighbours.
    pub fn give(&mut self, at: u64, len: u64) {
        let (mut first, mut end) = (at, at + len);
        if let Some((&low, &before)) = self.by_address.range(..at).next_back()
            && low + before == at
        {
            self.remove(low, before);
            first = low;
        }
        if let Some(&behind) = self.by_address.get(&end) {
            self.remove(end, behind);
            end += behind;
        }
        self.insert(first, end - first);
    }

    fn insert(&mut self, at: u64, len: u64) {
        self.by_address.insert(at, len);
        self.by_size.insert((len, at));
    }
    fn remove(&mut self, at: u64, len: u64) {
        self.by_address.remove(&at);
        self.by_size.remove(&(len, at));
    }
}
