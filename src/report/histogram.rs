//! Counts of sizes by power of two.
//!
//! Bin k holds sizes above 2^(k-1) and at most 2^k granules; bin 0 holds sizes of one granule and of none. With sizes in
//! 32 bits there are 33 bins at most. This module does not know what has these sizes.

use super::bytes;
use crate::units::{GRANULE_BYTES, Granules};
use core::fmt;

/// Counts of sizes by power of two: `counts[k]` is how many were in `(2^(k-1), 2^k]` granules.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Histogram {
    /// One count per power of two, up to the largest that occurred.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// Counts one size.
    pub fn add(&mut self, size: Granules) {
        self.add_many(size, 1);
    }

    /// Counts one size several times.
    pub fn add_many(&mut self, size: Granules, times: u64) {
        let bin = bin_of(size);
        if self.counts.len() <= bin {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += times;
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// How many sizes were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The largest size of a bin, in bytes.
    pub fn upper_bytes(bin: usize) -> u64 {
        let granules = u32::try_from(bin).ok().and_then(|bin| 1_u64.checked_shl(bin));
        granules.and_then(|n| n.checked_mul(GRANULE_BYTES)).unwrap_or(u64::MAX)
    }

    /// The bound, in bytes, of the bin that contains the size at a percentile: that share of all sizes is at most this
    /// large. `None` with no counts. Percentiles are clamped to 0 to 100.
    #[allow(clippy::cast_sign_loss, reason = "the rank is 1 at least")]
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let total = self.total();
        // The rank of the percentile: at least the first, at most the last.
        let rank = (percent.clamp(0.0, 100.0) / 100.0 * total as f64).ceil().max(1.0) as u64;
        let mut passed = 0;
        let bin = self.counts.iter().position(|n| {
            passed += n;
            passed >= rank.min(total) && total > 0
        })?;
        Some(Histogram::upper_bytes(bin))
    }
}

fn bin_of(size: Granules) -> usize {
    match size.0 {
        0 | 1 => 0,
        n => (n - 1).ilog2() as usize + 1,
    }
}

impl fmt::Display for Histogram {
    /// One bar per bin, from the first that is not empty to the last; the longest bar has forty marks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: u64 = 40;
        let max = self.counts.iter().copied().max().unwrap_or(0);
        let Some(first) = self.counts.iter().position(|n| *n > 0) else {
            return writeln!(f, "(no sizes)");
        };
        let last = self.counts.iter().rposition(|n| *n > 0).unwrap_or(first);
        let digits = max.to_string().len();
        for (bin, n) in self.counts.iter().enumerate().take(last + 1).skip(first) {
            // A count that is not zero gets at least one mark.
            let marks = (u128::from(*n) * u128::from(WIDTH)).div_ceil(u128::from(max)) as usize;
            let line =
                format!("{:>9}  {n:>digits$}  {}", bytes(Histogram::upper_bytes(bin)), "#".repeat(marks));
            writeln!(f, "up to {}", line.trim_end())?;
        }
        Ok(())
    }
}
