//! The suite against planted bugs: every bug of DESIGN.md's zoo is noticed, by a scenario of its own and, if it is one of
//! order, by random programs within 10,000 operations. `.ci/mutants` builds and runs this.
//!
//! In ordinary builds there is nothing to plant and nothing here.

#![cfg(millpond_mutants)]

#[path = "arrays.rs"]
mod arrays;
mod cases;

use millpond::mutant::{self, Bug};
use std::fmt::Write as _;
use std::io::Write as _;

/// A good generator finds each bug of order within so many operations.
const WITHIN: usize = 10_000;

/// Independent searches for each bug, an odd number: the median counts.
const SEARCHES: u64 = 3;

/// Bugs that random programs do not look for, and why.
const DIRECTED_ONLY: &[(Bug, &str)] = &[
    (Bug::Z5, "the programs make no threads' default streams"),
    (Bug::Z12, "the programs have one device"),
    (Bug::CopyEmpty, "it costs memory and breaks nothing"),
    (
        Bug::TrimPending,
        "a plain free waits for the device: it costs time, and with virtual memory (owed) safety",
    ),
    (Bug::LineUnlinked, "a second pool for one stream costs memory and breaks nothing"),
    (Bug::DueDropped, "it costs memory and breaks nothing"),
    (Bug::IndependentWaits, "it breaks the program's own schedule, which no judge of order sees"),
    (Bug::HintNeverRaised, "it costs memory and breaks nothing"),
    (Bug::ArrayUnsealed, "the programs of arrays have no faults"),
    (Bug::ScrubSkipped, "the programs do not scrub"),
    (Bug::ScrubUnborn, "the programs do not scrub"),
];

/// Bugs that only operations on arrays, guards, tokens and foreign memory can show: programs of arrays look for them.
fn is_of_arrays(bug: Bug) -> bool {
    use Bug::{ForeignAtOnce, GuardSealedEarly, KeeperAtOnce, Z33, Z35};
    matches!(bug, Z33 | Z35 | ForeignAtOnce | GuardSealedEarly | KeeperAtOnce)
        || bug.name().starts_with("array-")
}

/// Panics are what some bugs lead to: they are caught, and say nothing on the way.
fn quietly<T>(f: impl FnOnce() -> T) -> T {
    if std::env::var_os("MILLPOND_LOUD").is_some() {
        return f();
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = f();
    std::panic::set_hook(before);
    result
}

/// One scenario with a bug planted, or none.
fn outcome(case: &cases::Case, bug: Option<Bug>) -> cases::Outcome {
    let _planted = mutant::plant(bug);
    let outcome = cases::judge(case.run);
    if outcome.is_ok() && mutant::waiting() > 0 {
        return Err(format!("{} passed, but its thread was never made to stand still", case.name));
    }
    outcome
}

/// The operations that random programs needed to find a bug, if they did, and what they said of it.
fn random(bug: Option<Bug>, search: u64) -> Option<(usize, String)> {
    let _planted = mutant::plant(bug);
    let mut operations = 0;
    for seed in search << 32.. {
        let of_arrays = bug.map_or(seed % 2 == 0, is_of_arrays);
        let (made, outcome) = if of_arrays { arrays::program(seed) } else { cases::random::run(seed) };
        operations += made;
        mutant::forget_points();
        if let Err(e) = outcome {
            return Some((operations, e));
        }
        if operations >= WITHIN {
            return None;
        }
    }
    None
}

#[test]
fn every_planted_bug_is_found() {
    let (table, missed) = quietly(|| {
        let cases = cases::all();
        let (mut table, mut missed) = (String::new(), Vec::new());
        for case in &cases {
            if let Err(e) = outcome(case, None) {
                missed.push(format!("right code fails {:?}: {e}", case.name));
            }
        }
        for search in 0..SEARCHES {
            if let Some((_, e)) = random(None, search) {
                missed.push(format!("right code fails a random program: {e}"));
            }
        }
        for &bug in Bug::CORE {
            // An abort or a hang names its bug.
            let _ = write!(std::io::stderr(), "{bug} ");
            let mut killers = Vec::new();
            for case in cases.iter().filter(|c| c.kills.contains(&bug.name())) {
                match outcome(case, Some(bug)) {
                    Ok(()) => missed.push(format!("{bug} ({}) passes {:?}", bug.what(), case.name)),
                    Err(_) => killers.push(case.name),
                }
            }
            if killers.is_empty() {
                missed.push(format!("{bug} ({}) has no scenario", bug.what()));
            }
            let excuse = DIRECTED_ONLY.iter().find(|(b, _)| *b == bug).map(|(_, why)| *why);
            let mut found: Vec<Option<(usize, String)>> = match excuse {
                Some(_) => Vec::new(),
                None => (0..SEARCHES).map(|search| random(Some(bug), search)).collect(),
            };
            // The median of the searches; one that found nothing is the longest.
            found.sort_by_key(|f| f.as_ref().map_or(usize::MAX, |f| f.0));
            let after = match (found.get(found.len() / 2).cloned().flatten(), excuse) {
                (_, Some(why)) => format!("directed only: {why}"),
                (Some((operations, said)), None) => {
                    if std::env::var_os("MILLPOND_LOUD").is_some() {
                        let _ = writeln!(std::io::stderr(), "{bug}: {said}");
                    }
                    operations.to_string()
                }
                (None, None) => {
                    missed.push(format!("{bug} ({}) survives {WITHIN} random operations", bug.what()));
                    "-".to_owned()
                }
            };
            let _ = writeln!(table, "| {bug} | {} | {} | {after} |", bug.what(), killers.join("; "));
        }
        (table, missed)
    });
    // Past the test harness, which shows what a passing test prints to nobody.
    let _ = writeln!(
        std::io::stderr(),
        "\n| bug | what is wrong | scenario | random operations |\n|---|---|---|---|\n{table}"
    );
    assert!(missed.is_empty(), "{} misses:\n{}", missed.len(), missed.join("\n"));
}

/// DESIGN.md's chapter names every bug.
#[test]
fn the_zoo_is_told_in_the_design() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/DESIGN.md")).expect("DESIGN.md");
    let missing: Vec<_> =
        Bug::ALL.iter().filter(|b| !text.contains(&format!("| {b} | {} |", b.what()))).collect();
    assert!(missing.is_empty(), "not in DESIGN.md, \"The zoo\": {missing:?}; `.ci/mutants` prints the table");
}

/// A bug's name selects it, and a name of nothing is told what there is.
#[test]
fn bugs_are_selected_by_name() {
    for &bug in Bug::ALL {
        assert_eq!(bug.name().parse::<Bug>(), Ok(bug));
    }
    let unknown = "z999".parse::<Bug>().unwrap_err().to_string();
    assert!(unknown.contains("z999") && unknown.contains("z19"), "{unknown}");
}
