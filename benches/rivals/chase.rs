//! What memory allows: loads of records of one cache line each, every one at the place that the last one names.
//!
//! A free has to look at the record of a block that may not have been touched for long, whatever the allocator. What such a
//! look costs among few and among many records is the least that more live blocks must cost. It knows no allocator.

use super::clock::Times;
use super::workload::Dice;
use std::hint::black_box;

/// A record of one line: the index of the next.
#[repr(align(64))]
struct Record(u32);

/// Records in one random cycle.
pub struct Chase {
    records: Vec<Record>,
    at: u32,
    pub times: Times,
}

impl Chase {
    /// So many records.
    pub fn new(records: usize, seed: u64) -> Chase {
        let mut dice = Dice(seed);
        let mut order: Vec<u32> = (0..u32::try_from(records).expect("an index")).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, dice.below(i as u64 + 1) as usize);
        }
        let mut cycle: Vec<Record> = (0..records).map(|_| Record(0)).collect();
        for (i, &from) in order.iter().enumerate() {
            cycle[from as usize] = Record(order[(i + 1) % order.len()]);
        }
        Chase { records: cycle, at: 0, times: Times::new("a load") }
    }
    /// So many loads, each behind the one before.
    pub fn round(&mut self, loads: usize) {
        self.times.round(loads, || {
            for _ in 0..loads {
                self.at = self.records[self.at as usize].0;
            }
        });
        black_box(self.at);
    }
}
