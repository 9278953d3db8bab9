//! The soak against planted leaks: bugs by which something grows, and no order is broken. Each is found by a program that has a name,
//! and by random ones. `.ci/mutants` builds and runs this, and it prints the table of docs/mutants.md.
//!
//! The programs are those of an ordinary run, with 10,000 rounds. What fails is run once more with nothing planted, which must pass.

use super::finders::BY_WHAT_GROWS;
use super::programs;
use super::random::{SEEDS, try_seed};
use super::run::{Pace, Run};
use super::unqueried;
use millpond::mutant::{self, Bug};
use std::fmt::Write as _;
use std::io::Write as _;

/// The program that finds a bug, and its pace.
const FINDERS: &[(Bug, &str, Pace)] = &[
    (Bug::LeakUnlooked, "an_array_that_is_only_read", Pace::Late),
    (Bug::LeakUnpooled, "waited_tokens", Pace::Behind),
    (Bug::LeakUnfiled, "pinned_blocks", Pace::AtOnce),
    (Bug::LeakThinned, "waits_between_streams_deterministically", Pace::AtOnce),
    (Bug::LeakUnordered, "two_cross_stream_users_without_waits", Pace::AtOnce),
    (Bug::LeakKept, "dropped_tokens", Pace::AtOnce),
    (Bug::OpenForgotten, "users_come_and_go", Pace::AtOnce),
    // Bugs with a scenario of their own, which grow in a steady program too.
    (Bug::SweepNever, "streams_come_and_go", Pace::AtOnce),
    (Bug::UsesNeverCrowded, "an_array_that_is_only_read", Pace::AtOnce),
];

/// Bugs that random programs do not look for, and why.
const NOT_RANDOM: &[(Bug, &str)] = &[
    (Bug::OpenForgotten, "no stream of one round is declared a user"),
    (Bug::LeakThinned, "programs of deterministic allocators wait for all streams"),
];

/// What grew, if anything: the first of it.
fn grew(bug: Option<Bug>, soaked: &dyn Fn() -> Result<(), String>) -> Option<String> {
    let _planted = mutant::plant(bug);
    let found = soaked().err()?;
    if std::env::var_os("MILLPOND_LOUD").is_some() {
        let _ = writeln!(std::io::stderr(), "{bug:?}: {found}");
    }
    // Behind the program's name: what, and by how much.
    let first = found.lines().nth(1).unwrap_or_default().trim();
    Some(first.split(':').next().unwrap_or_default().to_owned())
}

/// The first random program that finds a bug, and that right code passes: what leaps once without a leak gets no longer run here. With
/// `MILLPOND_SEARCH_BY_TABLE` it is looked for from the one on that docs/mutants.md names, as small programs are (tests/mutants.rs).
fn seed_of(bug: Bug, design: &str) -> Result<u64, String> {
    let try_seed = if bug == Bug::LeakUnordered { unqueried::try_seed } else { try_seed };
    let finds = |seed: &u64| {
        grew(Some(bug), &|| try_seed(*seed)).is_some() && grew(None, &|| try_seed(*seed)).is_none()
    };
    let figures_of = |row: &str| {
        row.strip_prefix(&format!("| {bug} |"))?.strip_suffix(" |")?.rsplit_once("| seed ")?.1.parse().ok()
    };
    let by_table =
        std::env::var_os("MILLPOND_SEARCH_BY_TABLE").and_then(|_| design.lines().find_map(figures_of));
    let seed = (by_table.unwrap_or(0)..SEEDS).find(finds);
    seed.ok_or_else(|| {
        format!("{bug} ({}) passes {SEEDS} random programs, or right code fails them", bug.what())
    })
}

/// By whom a bug is found, as docs/mutants.md says it: a program with a name, and a random one.
fn found(bug: Bug, name: &str, pace: Pace, design: &str) -> Result<String, String> {
    let run = Run::steady(pace);
    let named = || programs::run(name, run).verdict(name, run);
    let what = grew(Some(bug), &named).ok_or_else(|| format!("{bug} ({}) passes {name}", bug.what()))?;
    if let Some(right) = grew(None, &named) {
        return Err(format!("right code fails {name}: {right}"));
    }
    let random = match NOT_RANDOM.iter().find(|(b, _)| *b == bug) {
        Some((_, why)) => format!("no: {why}"),
        None => format!("seed {}", seed_of(bug, design)?),
    };
    Ok(format!("| {bug} | {} | `{name}`: {what} | {random} |", bug.what()))
}

#[test]
fn every_leak_is_found() {
    let design = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/mutants.md"))
        .expect("docs/mutants.md");
    for bug in Bug::LEAKS {
        assert!(FINDERS.iter().any(|(b, ..)| b == bug), "{bug} has no program that finds it");
    }
    for (bug, ..) in FINDERS {
        let excused = NOT_RANDOM.iter().any(|(b, _)| b == bug);
        assert_ne!(
            BY_WHAT_GROWS.contains(bug),
            excused,
            "{bug}: random programs find it, or a reason says why not"
        );
    }
    let (mut table, mut missed) = (String::new(), Vec::new());
    // `MILLPOND_ONLY=z8,z9` looks for those only.
    let only = std::env::var("MILLPOND_ONLY").ok();
    let wanted = |bug: Bug| only.as_deref().is_none_or(|names| names.split(',').any(|n| n == bug.name()));
    for &(bug, name, pace) in FINDERS.iter().filter(|f| wanted(f.0)) {
        match found(bug, name, pace, &design) {
            Ok(row) => {
                if !design.contains(&row) {
                    missed.push(format!("docs/mutants.md does not say this of {bug}"));
                }
                let _ = writeln!(table, "{row}");
            }
            Err(why) => missed.push(why),
        }
    }
    // Past the test harness, which hides what a passing test prints.
    let _ = writeln!(
        std::io::stderr(),
        "\n| bug | what is wrong | found by, and what grows | random |\n|---|---|---|---|\n{table}"
    );
    assert!(missed.is_empty(), "{} misses:\n{}", missed.len(), missed.join("\n"));
}
