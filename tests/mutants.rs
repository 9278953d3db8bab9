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

/// One scenario with a bug planted, or none: what it came to, and whether each thread stood still that was to.
fn outcome(case: &cases::Case, bug: Option<Bug>) -> (cases::Outcome, bool) {
    let _planted = mutant::plant(bug);
    (cases::judge(case.run), mutant::waiting() == 0)
}

/// Whether a failure is one that a judge or a law of the library found: a panic names a law, such as O8 or H5. Any other
/// is the scenario's own, of a call that it takes to succeed.
fn is_a_verdict(failure: &str) -> bool {
    let law = |word: &str| {
        let number = word.strip_prefix(['H', 'O']).map(|n| n.trim_end_matches(':'));
        number.is_some_and(|n| n.parse::<u32>().is_ok())
    };
    failure.strip_prefix("panic: ").is_none_or(|said| said.split_whitespace().any(law))
}

/// Whether a scenario finds a bug, or in what it fails to.
fn killed(case: &cases::Case, bug: Bug) -> Result<(), String> {
    let (result, stood) = outcome(case, Some(bug));
    if std::env::var_os("MILLPOND_LOUD").is_some() {
        let _ = writeln!(std::io::stderr(), "{bug}: {:?}: {result:?}", case.name);
    }
    match result {
        Ok(()) => Err(format!("passes {:?}", case.name)),
        // It proves nothing: what the scenario is about did not happen.
        Err(e) if !stood => Err(format!("fails {:?} before anybody stood still: {e}", case.name)),
        Err(e) if !is_a_verdict(&e) => Err(format!("fails {:?} in the scenario's own words: {e}", case.name)),
        Err(_) => Ok(()),
    }
}

/// What passes, what fails before it came to its point, and what fails by itself has found nothing.
#[test]
fn a_scenario_that_fails_for_another_reason_finds_nothing() {
    let found =
        |run: fn() -> cases::Outcome| killed(&cases::Case { name: "planted", kills: &["z8"], run }, Bug::Z8);
    assert_eq!(found(|| Err("two bytes differ".to_owned())), Ok(()));
    let point = || {
        cases::at("here", 1, || ());
        mutant::point("here");
        Err("two bytes differ".to_owned())
    };
    assert_eq!(found(point), Ok(()));
    let nobody = || {
        cases::at("nowhere", 1, || ());
        Err("two bytes differ".to_owned())
    };
    assert!(found(nobody).is_err_and(|e| e.contains("before anybody stood still")));
    assert!(found(|| Ok(())).is_err_and(|e| e.contains("passes")));
    assert!(found(|| panic!("a stream")).is_err_and(|e| e.contains("own words")));
}

#[test]
fn a_panic_that_names_no_law_is_no_verdict() {
    for found in [
        "the bytes are not what was written",
        "panic: O8: Epoch(2) of closed timeline TimelineId(2) is covered by no marker",
        "panic: assertion `left == right` failed: H5: bytes held by pools and on the move",
        "panic: heap law H6 is broken: segment 3 overlaps segment 2",
    ] {
        assert!(is_a_verdict(found), "{found}");
    }
    for own in
        ["panic: a marker: cuEventRecord failed with code 1: Out of it", "panic: called `Option::unwrap()`"]
    {
        assert!(!is_a_verdict(own), "{own}");
    }
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
            match outcome(case, None) {
                (Err(e), _) => missed.push(format!("right code fails {:?}: {e}", case.name)),
                (Ok(()), false) => missed.push(format!("nobody was made to stand still in {:?}", case.name)),
                (Ok(()), true) => {}
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
                match killed(case, bug) {
                    Ok(()) => killers.push(case.name),
                    Err(e) => missed.push(format!("{bug} ({}) {e}", bug.what())),
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

/// What is not as it should be in a bug's row of DESIGN.md's table, which `text` has.
fn untold(bug: Bug, cases: &[cases::Case], text: &str) -> Option<String> {
    let told = format!("| {bug} | {} | ", bug.what());
    let Some(rest) = text.lines().find_map(|line| line.strip_prefix(told.trim_end())) else {
        return Some(format!("{bug} is not told"));
    };
    if !Bug::CORE.contains(&bug) {
        return None;
    }
    let killers: Vec<_> = cases.iter().filter(|c| c.kills.contains(&bug.name())).map(|c| c.name).collect();
    let columns: Vec<_> = rest.split('|').map(str::trim).collect();
    let [scenario, random, _] = columns[..] else { return Some(format!("{bug} has other columns")) };
    if scenario != killers.join("; ") {
        return Some(format!("{bug} is found by {:?}, not {scenario:?}", killers.join("; ")));
    }
    let right = match DIRECTED_ONLY.iter().find(|(b, _)| *b == bug) {
        Some((_, why)) => random == format!("directed only: {why}"),
        None => random.parse().is_ok_and(|n: usize| (1..=WITHIN).contains(&n)),
    };
    (!right).then(|| format!("{bug}: random programs are not said to do this: {random:?}"))
}

/// DESIGN.md's chapter names every bug, the scenarios that find it, and whether random programs do.
#[test]
fn the_zoo_is_told_in_the_design() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/DESIGN.md")).expect("DESIGN.md");
    let cases = cases::all();
    let wrong: Vec<_> = Bug::ALL.iter().filter_map(|&bug| untold(bug, &cases, &text)).collect();
    assert!(wrong.is_empty(), "in DESIGN.md, \"The zoo\", {wrong:#?}; `.ci/mutants` prints the table");
}

/// A row that says something else is found.
#[test]
fn a_zoo_told_wrongly_is_noticed() {
    let case = cases::Case { name: "two streams", kills: &["z5", "z8"], run: || Ok(()) };
    let told = |bug: Bug, rest: &str| {
        untold(bug, core::slice::from_ref(&case), &format!("| {bug} | {} |{rest}", bug.what()))
    };
    let (_, why) = DIRECTED_ONLY[0];
    assert_eq!(told(Bug::Z5, &format!(" two streams | directed only: {why} |")), None);
    assert_eq!(told(Bug::Z8, " two streams | 192 |"), None);
    for (bug, rest) in [
        (Bug::Z8, " | 192 |"),
        (Bug::Z8, " two streams; three | 192 |"),
        (Bug::Z9, " two streams | 54 |"),
        (Bug::Z8, " two streams |"),
        (Bug::Z8, " two streams | - |"),
        (Bug::Z8, " two streams | 10001 |"),
        (Bug::Z8, " two streams | directed only: nobody looked |"),
        (Bug::Z5, " two streams | 12 |"),
        (Bug::Z5, " two streams | directed only |"),
    ] {
        assert!(told(bug, rest).is_some(), "{bug}:{rest}");
    }
    assert!(untold(Bug::Z8, &[], "| z8 |").is_some());
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
