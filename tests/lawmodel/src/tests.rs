//! The laws run clean, and the model finds planted errors: which mutants it must find, and within how many steps.

use crate::mutants::Mutant::{self, *};
use crate::search::search;
use crate::world::Stats;

/// The seed of all searches: with another one the same mutants are found, at other steps.
const SEED: u64 = 12345;

/// Whether something is found within so many million steps.
fn finds(mutant: Mutant, millions: u64) -> bool {
    let found = search(mutant, SEED, millions * 1_000_000, &mut Stats::default(), 1).2;
    println!(
        "{mutant:?}: {}",
        found.as_ref().map_or("clean".into(), |f| format!("found at step {}", f.steps))
    );
    found.is_some()
}

#[test]
fn the_laws_run_clean() {
    assert!(!finds(None, 10));
}

/// A variant that is also correct.
#[test]
fn a_copy_that_joins_whatever_is_complete_runs_clean() {
    assert!(!finds(VDoneJoinsCopy, 3));
}

/// One mutant for each law, those of borrowed uses and two of units: the slowest takes 980 thousand steps.
#[test]
fn a_mutant_of_each_law_is_found() {
    let mutants = [
        OneOfTwoUses,
        MergeMin,
        UnmapEarly,
        DrainKeepsStamp,
        SealEarly,
        BorrowSealedAtCall,
        BorrowEndsAtPart,
        BorrowEndsAtRead,
        BirthBeforeWait,
        CountAfterRecord,
        CtxMarkerAtMostOnce,
        SecondMapNoWait,
        UnitNeighbourUnwritten,
        UnitForgottenAtPart,
    ];
    let missed: Vec<Mutant> = mutants.into_iter().filter(|&m| !finds(m, 2)).collect();
    assert!(missed.is_empty(), "not found within two million steps: {missed:?}");
}

/// A mutant of several waits at once: another thread has to order two streams after each other while a thread looks for a marker and then
/// makes one. It takes 13 million steps, four seconds of one core.
#[test]
fn a_marker_that_covers_another_stream_is_found() {
    assert!(finds(CoverOther, 20));
}

/// It takes 38 million steps, twelve seconds of one core; a search ends at the first failure.
#[test]
fn a_marker_that_covers_as_much_is_found() {
    assert!(finds(CoverTie, 60));
}
