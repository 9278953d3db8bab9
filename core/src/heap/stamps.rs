//! A stamp for each unit of a window, as a tree in which a long range is written in a few places.
//!
//! ```text
//!   root             [    ]             A stamp in a node applies to all units below it: a unit's stamp is the latest on its path to the
//!               [  9 ]    [    ]        root. So a merge writes a leaf for each of a few units, at most two nodes per level for more, and
//!   units      [  ] [ 12][ 7 ] [  ]     allocates only the first time.
//! ```
//!
//! This module does not know chunks, nor what a unit is.

use crate::units::Epoch;
use core::ops::Range;

/// Up to this number of units are written one by one.
const SHORT: usize = 4;

/// The stamps of a window's units: a binary tree in one array, the root at 1, the units in its second half. Empty until the first write.
#[derive(Clone, Debug, Default)]
pub(super) struct Units {
    pub(super) marks: Vec<u64>,
}

impl Units {
    pub(super) const fn new() -> Units {
        Units { marks: Vec::new() }
    }

    /// The first and the last of these units' places in the tree.
    fn leaves(&self, units: &Range<u32>) -> (usize, usize) {
        let half = self.marks.len() / 2;
        (half + units.start as usize, half + units.end as usize - 1)
    }

    /// Raises the stamps of these units to `stamp`, in a window of `of` units.
    pub(super) fn raise(&mut self, units: &Range<u32>, of: u32, stamp: Epoch) {
        if self.marks.is_empty() {
            self.marks = vec![0; 2 * of.next_power_of_two() as usize];
        }
        let (mut low, mut high) = self.leaves(units);
        if high - low < SHORT {
            for mark in &mut self.marks[low..=high] {
                *mark = stamp.0.max(*mark);
            }
            return;
        }
        // A low node that is a right half, or a high one that is a left half, has a parent that reaches beyond the units.
        while low <= high {
            if low % 2 == 1 {
                self.marks[low] = self.marks[low].max(stamp.0);
                low += 1;
            }
            if high.is_multiple_of(2) {
                self.marks[high] = self.marks[high].max(stamp.0);
                high -= 1;
            }
            (low, high) = (low / 2, high / 2);
        }
    }

    /// How many places of the tree have a stamp.
    #[cfg(test)]
    pub(super) fn written(&self) -> usize {
        self.marks.iter().filter(|&&mark| mark > 0).count()
    }

    /// The latest stamp of these units.
    pub(super) fn latest(&self, units: &Range<u32>) -> Epoch {
        if self.marks.is_empty() || units.is_empty() {
            return Epoch::COMPLETE;
        }
        let (mut low, mut high) = self.leaves(units);
        let mut latest = 0;
        while low > 0 {
            latest = self.marks[low..=high].iter().copied().fold(latest, u64::max);
            (low, high) = (low / 2, high / 2);
        }
        Epoch(latest)
    }

    /// Clears the stamps of these units.
    pub(super) fn reset(&mut self, units: &Range<u32>) {
        if self.marks.is_empty() || units.is_empty() {
            return;
        }
        let (mut low, mut high) = self.leaves(units);
        // Stamps of nodes that reach beyond these units move to their halves, from the root down.
        for leaf in [low, high] {
            for level in (1..=leaf.ilog2()).rev() {
                let at = leaf >> level;
                let mark = core::mem::take(&mut self.marks[at]);
                for half in [2 * at, 2 * at + 1] {
                    self.marks[half] = self.marks[half].max(mark);
                }
            }
        }
        while low > 0 {
            self.marks[low..=high].fill(0);
            (low, high) = (low / 2, high / 2);
        }
    }
}
