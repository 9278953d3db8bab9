//! What random tests draw from: a seed is a program. It knows no test.

use millpond::driver::random::SplitMix64;

/// Choices from a seed: the same on every machine, and in every version.
#[derive(Debug)]
pub struct Dice(SplitMix64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(SplitMix64::new(seed))
    }
    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.number(n as u64) as usize
    }
    /// A number below `n`, which is not 0.
    pub fn number(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}
