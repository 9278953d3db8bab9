//! The one generator of random numbers from a seed, for schedules, generated replays, tests and benches: the same numbers on every machine
//! and in every version, because a seed in a report or a test stands for a program. Not for secrets.

/// `SplitMix64`: 64 bits of state that advance by the golden ratio, and a mix of each count (Steele, Lea, Flood: "Fast splittable
/// pseudorandom number generators", 2014).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The numbers of a seed. The numbers of adjacent seeds are unrelated.
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }
    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        stirred(self.0)
    }
    /// A number below `n`, by the remainder.
    ///
    /// # Panics
    /// If `n` is 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// All bits of a number, mixed: each bit of the result depends on all of them, and different numbers stay different.
pub const fn stirred(n: u64) -> u64 {
    let z = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's published first numbers for the seed 1234567.
    #[test]
    fn the_numbers_are_the_published_ones() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers: Vec<u64> = (0..5).map(|_| random.next()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }
}
