//! The laws run clean, and a model that cannot find a planted error is broken: what it must find, and by when.

use crate::mutants::Mutant::{self, *};
use crate::search::search;
use crate::world::Stats;

/// The seed of all: another one finds the same, at other steps.
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

/// A wording that differs and breaks nothing.
#[test]
fn a_copy_that_joins_whatever_is_complete_runs_clean() {
    assert!(!finds(VDoneJoinsCopy, 3));
}

/// One mutant a law, those of lent uses and two of units: the slowest takes 980 thousand steps.
#[test]
fn a_mutant_of_each_law_is_found() {
    let mutants = [
        OneOfTwoUses,
        MergeMin,
        UnmapEarly,
        DrainKeepsStamp,
        SealEarly,
        LentSealedAtCall,
        LentEndsAtPart,
        LentEndsAtRead,
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

/// Of several waits at once: another thread has to order two streams both ways between a look and a making. 13 million steps, four seconds
/// of one core.
#[test]
fn a_marker_that_covers_another_stream_is_found() {
    assert!(finds(CoverOther, 20));
}

/// 38 million steps, twelve seconds of one core; a search ends with what it finds.
#[test]
fn a_marker_that_covers_as_much_is_found() {
    assert!(finds(CoverTie, 60));
}
