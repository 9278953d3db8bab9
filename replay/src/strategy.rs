//! Strategies for property tests: programs drawn at random, that shrink to short ones.
//!
//! A strategy draws the choices of `generate` and lets proptest shrink those; each set of choices is a program of the
//! same manner, so that what remains at the end of shrinking is as correct as what failed. This module does not know
//! what the choices mean.

use crate::generate::{Manner, generate};
use core::ops::Range;
use millpond_trace::Program;
use proptest::prelude::*;

fn generated(streams: u16, len: Range<usize>, manner: Manner) -> impl Strategy<Value = Program> {
    proptest::collection::vec(any::<[u8; 6]>(), len)
        .prop_map(move |choices| generate(streams, choices, manner))
}

/// Correct programs over `streams` streams (one at least): every use lies after its block's allocation and after the
/// uses it conflicts with, cross-stream uses are recorded, frees on a stream come after every use. Blocks may be alive at
/// the end.
///
/// `len` is the number of choices. A choice is one operation and the waits that make it correct, or nothing where
/// nothing is possible, so that a program may be somewhat longer or shorter.
///
/// ```
/// use millpond_trace::Program;
/// use proptest::prelude::*;
/// use proptest::test_runner::TestRunner;
///
/// let mut runner = TestRunner::new(ProptestConfig::with_cases(16));
/// runner
///     .run(&millpond_replay::programs(3, 1..50), |program: Program| {
///         prop_assert!(program.is_well_formed());
///         Ok(())
///     })
///     .unwrap();
/// ```
pub fn programs(streams: u16, len: Range<usize>) -> impl Strategy<Value = Program> {
    generated(streams, len, Manner::Correct)
}

/// Well-formed programs in which a wait or a record may be missing, for tests of judges: some are correct, most of the
/// longer ones are not.
pub fn hostile_programs(streams: u16, len: Range<usize>) -> impl Strategy<Value = Program> {
    generated(streams, len, Manner::Hostile)
}
