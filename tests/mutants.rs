//! The suite against planted bugs: every bug of docs/mutants.md is found by scenarios of its own, by random programs within 10,000
//! operations and by the search through all small programs, or a reason says why random or small programs do not find it. `.ci/mutants`
//! builds and runs this; in ordinary builds no bug can be planted, and this file is empty.

#![cfg(millpond_mutants)]

#[path = "arrays/operations.rs"]
mod arrays;
#[path = "allocator/lifetimes/endless.rs"]
mod endless;
#[path = "soak/finders.rs"]
mod finders;
// It has a test of its own.
#[path = "threads/flight.rs"]
mod flight;
#[path = "arrays/safe_calls.rs"]
mod safe_calls;
#[path = "threads/operands.rs"]
mod stress;

use millpond::mutant::{self, Bug};
use millpond::trace::Program;
use millpond_sim::{Schedule, Sim};
use millpond_testkit::{cases, quiet, worlds};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;
use worlds::arrays::Arrays;
use worlds::blocks::{Blocks, Second};
use worlds::ranges::Ranges;

/// Random programs have to find each bug of order within so many operations.
const WITHIN: usize = 10_000;

/// Independent searches for each bug, an odd number: the median counts.
const SEARCHES: u64 = 7;

/// Why random programs do not look for bugs of holds.
const HOLD_NOTHING: &str =
    "the programs hold nothing: `random_programs_with_holds` in tests/allocator/holds.rs does";

/// Bugs that random programs are not searched for, and why. The soak finds the bugs by which something grows: [`finders`].
const DIRECTED_ONLY: &[(Bug, &str)] = &[
    (
        Bug::TrimPending,
        "a plain free waits for the device, so that it only costs time; it breaks order with virtual memory, where few programs trim beside pending work",
    ),
    (
        Bug::EndUnwaited,
        "no wait fails at the end of a random program, where only what is left on the device is checked",
    ),
    (Bug::MoveFailedLost, "few programs have a map that fails within a move"),
    (Bug::HeldMoves, HOLD_NOTHING),
    (Bug::HeldReleased, HOLD_NOTHING),
    (Bug::HeldOnce, HOLD_NOTHING),
    (Bug::HeldMigrates, HOLD_NOTHING),
    (Bug::TimelineUnlinked, "it breaks no law, and the memory that it costs is bounded"),
    (
        Bug::DeferredFirstDone,
        "few arrays in the programs are external memory, and their owners are blocks of the same allocator: 10,000 operations do not show it",
    ),
    (
        Bug::UnknownWaits,
        "it breaks no law, and only a program whose streams depend on each other by flags hangs",
    ),
    (
        Bug::OwnWaitsCount,
        "it breaks no law, and only a program whose streams depend on each other by flags hangs",
    ),
    (Bug::EdgesKept, "it breaks no law, and costs four bytes at each end of an edge whose other end is gone"),
    (Bug::IdleUnmarked, "it breaks no law, and the memory that it costs is bounded"),
    (Bug::HintNeverRaised, "it breaks no law, and the memory that it costs is bounded"),
    (Bug::ProgressLost, "it breaks no law, and the memory that it costs is bounded"),
    (Bug::EnteredUnnotified, "it breaks no law, and the memory that it costs is bounded"),
    (Bug::NamedNotServed, "it breaks no law, and the soak of the C interface finds what it keeps"),
    (Bug::PromiseInTwoHolds, "no stream of the programs ends while a thread is stopped"),
    (Bug::ClockAlwaysCrowded, "it only costs time, which no check of the order detects"),
    (Bug::UsesAlwaysCrowded, "it only costs time, which no check of the order detects"),
    (Bug::FlightAlwaysCrowded, "it only costs time, which no check of the order detects"),
    (Bug::SweepAlways, "it only costs time, which no check of the order detects"),
    (Bug::LookTooSoon, "it only costs time, which no check of the order detects"),
    (Bug::ReportWhole, "it only costs time, which no check of the order detects"),
    (Bug::MoveUncharged, "it only costs time, which no check of the order detects"),
    (Bug::GroupCountsTwice, NO_GROUPS),
    (Bug::GroupUnclaimLost, NO_GROUPS),
    (Bug::GroupEndCounts, NO_GROUPS),
    (Bug::SoftReportedAlways, NO_GROUPS),
    (Bug::MarksWithoutGap, NO_GROUPS),
    (Bug::IdleAtOnce, NO_GROUPS),
    (
        Bug::BurstUnwaited,
        "it only costs memory, and unused events are within their bound until a marker is made",
    ),
];

/// Why no program, random or small, finds what is wrong with limits.
const NO_GROUPS: &str = "it breaks no law, and the programs have no groups, soft limits, watermarks or ages";

/// Why random programs of the simulated device do not look for bugs of the CUDA backend.
const NOT_ON_CUDA: &str = "they are wrong calls of the driver: tests over the stand-in driver find them, random programs of cudarc's types too";

/// What finds a bug of [`Bug::CORE`] instead of random programs that check the order, as the table has it.
fn elsewhere(bug: Bug) -> Option<String> {
    let above = finders::ABOVE_THEIR_BOUNDS.iter().find(|(b, _)| *b == bug);
    let reason = DIRECTED_ONLY.iter().find(|(b, _)| *b == bug);
    above
        .map(|(_, name)| format!("the soak: {name}"))
        .or(reason.map(|(_, why)| format!("directed only: {why}")))
}

/// The kinds of random programs that find a bug, and the reasons why none does.
fn searched(bug: Bug) -> (Vec<&'static str>, Vec<&'static str>) {
    let above = finders::ABOVE_THEIR_BOUNDS.iter().any(|(b, _)| *b == bug);
    let core = Bug::CORE.contains(&bug) && elsewhere(bug).is_none();
    let searches = [
        (core, "programs that check order, contents and threads"),
        (above, "programs of the soak, by a bound"),
        (finders::BY_WHAT_GROWS.contains(&bug), "programs of the soak, by what grows"),
        // `plug/tests/random_programs.rs` searches for each.
        (Bug::C_INTERFACE.contains(&bug), "programs of the C interface"),
    ];
    let mut reasons: Vec<_> = DIRECTED_ONLY.iter().filter(|(b, _)| *b == bug).map(|(_, why)| *why).collect();
    reasons.extend(Bug::CUDA.contains(&bug).then_some(NOT_ON_CUDA));
    (searches.into_iter().filter(|(finds, _)| *finds).map(|(_, who)| who).collect(), reasons)
}

/// Each bug is found by random programs, or a reason says why not; a bug that is found has no such reason.
#[test]
fn every_bug_is_found_by_random_programs_or_a_reason_says_why_not() {
    for &bug in Bug::ALL {
        let (found, reasons) = searched(bug);
        assert_ne!(
            found.is_empty(),
            reasons.is_empty(),
            "{bug}: found by {found:?}, and not because {reasons:?}"
        );
        assert!(reasons.iter().all(|why| !why.is_empty()) && reasons.len() <= 1, "{bug}: {reasons:?}");
    }
}

/// Bugs of virtual memory beneath the pools.
const IN_WINDOWS: &[Bug] =
    &[Bug::Z24, Bug::Z25, Bug::Z31, Bug::MoveInUse, Bug::MoveFailedLost, Bug::AccessForgotten];

/// Bugs that the exhaustive search leaves out, and why.
const NOT_EXHAUSTIVE: &[(&[Bug], &str)] = &[
    (
        &[
            Bug::Z17,
            Bug::Z18,
            Bug::Z32,
            Bug::Z37,
            Bug::Z38,
            Bug::Z39,
            Bug::CopyLate,
            Bug::LearnLate,
            Bug::DevicePromiseLate,
            Bug::PromiseInTwoHolds,
            Bug::CoverOther,
            Bug::CoverTie,
            Bug::SealStores,
        ],
        "calls are atomic in the programs: no thread stops inside one",
    ),
    (&[Bug::Z5, Bug::OwnThreadUnqueried], "the programs use no per-thread default streams"),
    (&[Bug::Z12, Bug::PeerTargetEarly, Bug::PeerUnwaited, Bug::PeerLost], "the programs have one device"),
    (&[Bug::Z4, Bug::TimelineUnlinked], "the programs adopt no streams of other code"),
    (&[Bug::ScrubSkipped, Bug::ScrubUnborn], "the programs do not scrub"),
    (&[Bug::ExternalAtOnce, Bug::DeferredFirstDone], "the programs use no external memory"),
    (
        &[Bug::SimPinnedUnrefused, Bug::SimPinnedReached],
        "the programs pass no pinned memory to the device's safe calls",
    ),
    (
        &[
            Bug::CopyEmpty,
            Bug::NamesKept,
            Bug::DueDropped,
            Bug::IdleUnmarked,
            Bug::HintNeverRaised,
            Bug::ProgressLost,
            Bug::EnteredUnnotified,
            Bug::ClockNeverCrowded,
            Bug::UsesNeverCrowded,
            Bug::FlightNeverCrowded,
            Bug::SweepNever,
            Bug::FinishNever,
            Bug::BurstKept,
            Bug::BurstUnwaited,
        ],
        "it costs memory and breaks no law",
    ),
    (&[Bug::NamesPruned], "it costs waits and breaks no law"),
    (
        &[
            Bug::TrimPending,
            Bug::RequestTrims,
            Bug::PatienceRenewed,
            Bug::ClockAlwaysCrowded,
            Bug::UsesAlwaysCrowded,
            Bug::FlightAlwaysCrowded,
            Bug::SweepAlways,
            Bug::LookTooSoon,
            Bug::ReportWhole,
            Bug::MoveUncharged,
        ],
        "it only costs time, which no check of the order detects",
    ),
    (&[Bug::IndependentWaits], "the programs have no independent streams"),
    (
        &[Bug::UnknownWaits, Bug::OwnWaitsCount],
        "the programs may make any two streams wait, and none depends on a flag",
    ),
    (&[Bug::EdgesKept], "it costs memory and breaks no law"),
    (
        &[
            Bug::GroupCountsTwice,
            Bug::GroupUnclaimLost,
            Bug::GroupEndCounts,
            Bug::SoftReportedAlways,
            Bug::MarksWithoutGap,
            Bug::IdleAtOnce,
        ],
        NO_GROUPS,
    ),
    (
        &[Bug::ContextMarker, Bug::CaptureUnseen, Bug::CapturedKept, Bug::CapturedCovers],
        "the programs capture nothing",
    ),
    (&[Bug::NamedNotServed, Bug::LooseForgotten], "no stream of the programs is destroyed without notice"),
    (IN_WINDOWS, "the programs have plain segments"),
    (&[Bug::HeldMoves, Bug::HeldReleased, Bug::HeldOnce, Bug::HeldMigrates], "the programs hold nothing"),
    (&[Bug::UnclaimForgotten], "the device refuses no growth in the programs"),
    (&[Bug::PutBackComplete, Bug::ContextDueLost], "only the programs of arrays have driver calls that fail"),
    (&[Bug::EndUnwaited], "no wait fails at a program's end"),
    (&[Bug::Z21], "the programs record each use right before its kernel"),
    (&[Bug::UnknownPlain], "the programs record every use"),
    (&[Bug::OpenForgotten], "what it keeps is released with the allocator, at the end of each program"),
    (&[Bug::WaitProvesNewest, Bug::ArrayTokenUnwaited], "the host waits for no token before a program's end"),
    (
        &[Bug::Z13, Bug::TimelineRetiredEarly, Bug::ClosedAdmits, Bug::ClosedDrainsOrdered],
        "all programs of four operations on blocks pass with it, and there are 2,893,900 of five",
    ),
    (&[Bug::Z36], "all programs of six operations on a range pass with it, and there are 456,579 of seven"),
    (
        &[Bug::MergeBothForgets],
        "it needs nine operations on the range, for three neighbours in three states, and there are 7,992,234 programs of eight",
    ),
    (&[Bug::Z34], "the programs record no use that ends at an event of theirs"),
    (
        &[Bug::OpenEndsEarly, Bug::DeclaredEndsEarly, Bug::RevivedEndsEarly],
        "no array has eight users at once",
    ),
    (
        &[Bug::ArrayOpenUnseen, Bug::ArrayWholeForgetsOpen],
        "the programs of arrays declare no work of other code",
    ),
    (&[Bug::ArrayPastUnseen], "the programs make no array from an allocation"),
    (&[Bug::ArrayCoverAny], "on two streams an operation has at most one other stream to wait for"),
];

/// Bugs that only operations on arrays, guards, tokens and external memory can show: programs of arrays search for them.
fn is_of_arrays(bug: Bug) -> bool {
    use Bug::{
        DeferredAtOnce, DeferredErrorDone, DeferredFirstDone, ExternalAtOnce, GuardSealedEarly,
        LargeSourceUnseen, PanicUnsealed, PartForgetsHome, Z33, Z35,
    };
    matches!(bug, Z33 | Z35 | ExternalAtOnce | GuardSealedEarly | DeferredAtOnce | DeferredErrorDone)
        || matches!(bug, DeferredFirstDone | LargeSourceUnseen | PanicUnsealed | PartForgetsHome)
        || bug.name().starts_with("array-")
}

/// Bugs that only an operation with several operands can show, while another thread orders its streams, or operations of two threads on
/// one array: programs of several threads search for them.
fn is_of_threads(bug: Bug) -> bool {
    matches!(bug, Bug::CoverOther | Bug::CoverTie | Bug::SealStores)
}

/// Bugs that only streams of other code can show, which are not declared, or are destroyed without notice, or capture.
fn is_of_others(bug: Bug) -> bool {
    matches!(bug, Bug::ContextMarker | Bug::LooseForgotten)
}

/// Bugs that only an allocator with scrubbing can show.
fn is_of_scrubbing(bug: Bug) -> bool {
    matches!(bug, Bug::ScrubSkipped | Bug::ScrubUnborn)
}

/// Bugs that only a capture that begins during a call can show.
fn is_of_captures_inside(bug: Bug) -> bool {
    matches!(bug, Bug::CaptureUnseen | Bug::CapturedKept | Bug::CapturedCovers)
}

/// Bugs that only events of another device can show.
fn is_of_devices(bug: Bug) -> bool {
    bug == Bug::Z12
}

/// Bugs that only copies between devices can show: programs of arrays on two devices search for them.
fn is_of_peers(bug: Bug) -> bool {
    bug.name().starts_with("peer-")
}

/// Bugs that only several threads' default streams can show.
fn is_of_default_streams(bug: Bug) -> bool {
    matches!(bug, Bug::Z5 | Bug::OwnThreadUnqueried)
}

/// Bugs that only the simulated device's own safe calls can show.
fn is_of_safe_calls(bug: Bug) -> bool {
    matches!(bug, Bug::SimPinnedUnrefused | Bug::SimPinnedReached)
}

/// Bugs by which a request waits for what it must not wait for, or for too long: programs beside an endless kernel search for them.
fn is_of_waits(bug: Bug) -> bool {
    matches!(bug, Bug::IndependentWaits | Bug::PatienceRenewed | Bug::RequestTrims)
}

/// Runs a seed's program of the kind that can show the bug; without a bug, of each kind in turn. Returns its operations and the outcome.
fn program(bug: Option<Bug>, seed: u64) -> (usize, Result<(), String>) {
    let kind = match bug {
        None => seed % 13,
        Some(bug) if is_of_scrubbing(bug) => 8,
        Some(bug) if is_of_captures_inside(bug) => 9,
        Some(bug) if is_of_devices(bug) => 10,
        Some(bug) if is_of_peers(bug) => 12,
        Some(Bug::ArrayUnsealed | Bug::OpenEndsEarly | Bug::DeclaredEndsEarly | Bug::RevivedEndsEarly) => 11,
        Some(bug) if is_of_safe_calls(bug) => 4,
        Some(bug) if is_of_waits(bug) => 5,
        Some(bug) if is_of_threads(bug) => 2,
        Some(bug) if is_of_others(bug) => 3,
        Some(bug) if is_of_default_streams(bug) => 6,
        Some(bug) => is_of_arrays(bug).into(),
    };
    match kind {
        0 => cases::random::run(seed),
        1 => arrays::program(seed),
        3 => cases::random::run_undeclared(seed),
        4 => safe_calls::program(seed),
        6 => cases::defaults::run(seed),
        7 => cases::random::run_with_defaults(seed),
        8 => cases::random::run_scrubbing(seed),
        9 => cases::random::run_captured(seed),
        10 => cases::random::run_beside_another(seed),
        11 => arrays::crowded_program(seed),
        12 => arrays::peer_program(seed),
        5 => (endless::STEPS, cases::judge(|| endless::run(seed).map(drop))),
        _ => cases::threads::run(seed),
    }
}

/// The outcome of one scenario with a bug planted or none, and whether each thread that was to stop at a point did.
fn outcome(case: &cases::Case, bug: Option<Bug>) -> (cases::Outcome, bool) {
    let _planted = mutant::plant(bug);
    (cases::judge(case.run), mutant::waiting() == 0)
}

/// Whether a failure was found by the oracle, by the contents or by a law of the library, whose panic names it, such as O8, H5 or B3. Any other
/// panic is the scenario's own, of a call that it expects to succeed.
fn is_a_verdict(failure: &str) -> bool {
    let law = |word: &str| {
        let number = word.strip_prefix(['H', 'O', 'B']).map(|n| n.trim_end_matches(':'));
        number.is_some_and(|n| n.parse::<u32>().is_ok())
    };
    failure.strip_prefix("panic: ").is_none_or(|said| said.split_whitespace().any(law))
}

/// Bugs for whose wrong bytes the oracle may blame the program, and why. For all others it blames the allocator, or they are found by the
/// contents or a law alone.
const BLAMED_ON_PROGRAMS: &[(Bug, &str)] = &[
    (Bug::ScrubUnborn, "a wipe looks like a fill by the program, which may fill what it shares"),
    (Bug::Z4, "the library takes a stream for another one, so all that it reports is of the wrong stream"),
    (
        Bug::Z11,
        "the oracle knows a synchronise by the driver's call, which this bug leaves out: the program looks as if it never waited",
    ),
];

/// Whether the program is blamed for what a planted bug did.
fn is_misjudged(bug: Bug, failure: &str) -> bool {
    failure.contains("the program's fault") && !BLAMED_ON_PROGRAMS.iter().any(|(b, _)| *b == bug)
}

/// Whether a scenario finds a bug; the error says why it does not.
fn killed(case: &cases::Case, bug: Bug) -> Result<(), String> {
    let (result, stopped) = outcome(case, Some(bug));
    if std::env::var_os("MILLPOND_LOUD").is_some() {
        let _ = writeln!(std::io::stderr(), "{bug}: {:?}: {result:?}", case.name);
    }
    match result {
        Ok(()) => Err(format!("passes {:?}", case.name)),
        // The scenario did not reach the point that it is about, so its failure shows nothing.
        Err(e) if !stopped => Err(format!("fails {:?} before a thread was stopped: {e}", case.name)),
        Err(e) if !is_a_verdict(&e) => Err(format!("fails {:?} by the scenario's own panic: {e}", case.name)),
        Err(e) if is_misjudged(bug, &e) => Err(format!("is blamed on the program in {:?}: {e}", case.name)),
        Err(_) => Ok(()),
    }
}

/// What the exhaustive search runs until a program fails: families (`testkit/src/worlds`) and lengths of programs. For bugs of arrays it
/// runs programs of arrays only.
const SEARCHED: &[(&str, usize)] = &[
    ("array", 2),
    ("range", 3),
    ("blocks", 3),
    ("array", 3),
    ("range", 4),
    ("range", 5),
    ("range", 6),
    ("blocks", 4),
    ("array", 4),
];
/// So many of them, which take a second, right code runs. With `MILLPOND_SEARCH_BY_TABLE` the search for a bug begins at the program that
/// docs/mutants.md names.
const SHORTER: usize = 6;

/// The first small program that fails with a bug planted, or with right code: its family, length and number, and the failure.
/// Right code runs the shorter programs here; `tests/small_worlds.rs` runs all.
fn exhaustive(bug: Option<Bug>) -> Option<(String, String)> {
    let _planted = mutant::plant(bug);
    let searched = if bug.is_none() { &SEARCHED[..SHORTER] } else { SEARCHED };
    let searched = searched.iter().filter(|(family, _)| !bug.is_some_and(is_of_arrays) || *family == "array");
    let from = |family: &str, length, from| {
        let (program, wrong) = match family {
            "array" => worlds::first_wrong(&Arrays, length, from),
            "range" => worlds::first_wrong(&Ranges, length, from),
            _ => worlds::first_wrong(&Blocks(Second::new()), length, from),
        };
        wrong.map(|e| (format!("{family} {length}: {program}"), e))
    };
    if let Some(bug) = bug
        && std::env::var_os("MILLPOND_SEARCH_BY_TABLE").is_some()
        && let Some((family, length, number)) = listed_program(bug, &document())
        && let Some(found) = from(&family, length, number)
    {
        return Some(found);
    }
    searched.copied().find_map(|(family, length)| from(family, length, 1))
}

/// The text of docs/mutants.md.
fn document() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/mutants.md")).expect("docs/mutants.md")
}

/// The small program that finds a bug by the table of docs/mutants.md: family, length, number.
fn listed_program(bug: Bug, text: &str) -> Option<(String, usize, usize)> {
    let row = text.lines().find(|line| line.starts_with(&format!("| {bug} |")))?;
    let (program, number) = row.strip_suffix('|')?.rsplit('|').next()?.trim().split_once(": ")?;
    let (family, length) = program.split_once(' ')?;
    Some((family.to_owned(), length.parse().ok()?, number.parse().ok()?))
}

/// A small program that fails is printed as text. The executor runs that text too, and it fails with the bug planted and passes without it.
#[test]
fn a_small_program_that_is_judged_wrong_replays_from_its_text() {
    let blocks = Blocks(Second::new());
    for (bug, mib, search) in [
        (Bug::Z28, 2, &(|| worlds::first_wrong(&blocks, 3, 400)) as &dyn Fn() -> (usize, Option<String>)),
        (Bug::SealSubmitted, 4, &|| worlds::first_wrong(&Ranges, 4, 1)),
    ] {
        let clean = |planted: Option<Bug>, program: &Program, hasty: bool| {
            let _planted = mutant::plant(planted);
            let config = cases::World::config(mib);
            let config = if hasty { config.bounded_wait(Duration::ZERO) } else { config };
            // The failure may be a law's panic.
            let outcome = cases::judge(|| {
                let sim = Sim::new(4 << 30).schedule(Schedule::Latest);
                let outcome =
                    millpond_replay::replay_program(program, sim, config, 0).map_err(cases::said)?;
                if outcome.is_clean() { Ok(()) } else { Err(outcome.verdict) }
            });
            outcome.is_ok()
        };
        let said = {
            let _planted = mutant::plant(Some(bug));
            search().1.unwrap_or_else(|| panic!("{bug} survives"))
        };
        let (said, text) = said.split_once("FILE`:\n").expect("a program");
        let program = Program::from_text_checked(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let hasty = said.contains("MILLPOND_WAIT_MS=0");
        assert!(!clean(Some(bug), &program, hasty), "{bug}: {said}\n{text}");
        assert!(clean(None, &program, hasty), "{bug}: {said}\n{text}");
    }
}

#[test]
fn the_table_says_where_to_look() {
    let text = "| z7 | what is wrong | a scenario | 115 | blocks 4: 13883 |\n| z8 | wrong | other | 3 | no: 4: why |";
    assert_eq!(listed_program(Bug::Z7, text), Some(("blocks".to_owned(), 4, 13_883)));
    assert_eq!(listed_program(Bug::Z8, text), None);
    assert_eq!(listed_program(Bug::Z9, text), None);
}

/// Why the exhaustive search leaves a bug out, if it does.
fn not_exhaustive(bug: Bug) -> Option<&'static str> {
    NOT_EXHAUSTIVE.iter().find(|(bugs, _)| bugs.contains(&bug)).map(|(_, why)| *why)
}

/// A scenario that passes, that fails before it reaches its point, or that panics by itself has found nothing.
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
    let nowhere = || {
        cases::at("nowhere", 1, || ());
        Err("two bytes differ".to_owned())
    };
    assert!(found(nowhere).is_err_and(|e| e.contains("before a thread was stopped")));
    assert!(found(|| Ok(())).is_err_and(|e| e.contains("passes")));
    assert!(found(|| panic!("a stream")).is_err_and(|e| e.contains("own panic")));
    let blamed = || Err("Race, the program's fault: `a` reads".to_owned());
    assert!(found(blamed).is_err_and(|e| e.contains("is blamed on the program")));
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

/// The stress test that the thread sanitizer runs (`tests/threads.rs`) finds, on the machine's own schedules, a bug that was once in the library and
/// that no single-threaded program can show. The oracle detects it and blames the allocator. Rounds are run until one finds it.
#[test]
fn the_stress_test_finds_what_only_other_threads_show() {
    // On two cores 50 rounds find it, 160 beside other programs' threads. Many more are allowed, so that it is found on a busy machine too.
    const RUNS: u64 = 100;
    let failure = |bug| {
        let _planted = mutant::plant(bug);
        (0..RUNS * stress::ROUNDS)
            .find_map(|seed| cases::judge(|| stress::round(seed)).err().map(|e| (seed, e)))
    };
    let (round, said) = failure(Some(Bug::CoverOther)).expect("cover-other survives the stress test");
    let _ = writeln!(std::io::stderr(), "cover-other: the stress test's round {round} finds it: {said}");
    assert!(said.contains("the allocator's fault"), "{said}");
    assert!(!is_misjudged(Bug::CoverOther, &said), "{said}");
}

/// The operations that random programs needed to find a bug, if they did, and the failure.
fn random(bug: Option<Bug>, search: u64) -> Option<(usize, String)> {
    let _planted = mutant::plant(bug);
    let mut operations = 0;
    for seed in search << 32.. {
        let (made, outcome) = program(bug, seed);
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
    let (table, missed) = quiet::all(|| {
        let cases = cases::all();
        let (mut table, mut missed) = (String::new(), Vec::new());
        for case in &cases {
            match outcome(case, None) {
                (Err(e), _) => missed.push(format!("right code fails {:?}: {e}", case.name)),
                (Ok(()), false) => missed.push(format!("no thread was stopped in {:?}", case.name)),
                (Ok(()), true) => {}
            }
        }
        for search in 0..SEARCHES {
            if let Some((_, e)) = random(None, search) {
                missed.push(format!("right code fails a random program: {e}"));
            }
        }
        if let Some((program, e)) = exhaustive(None) {
            missed.push(format!("right code fails a small program, {program}: {e}"));
        }
        // `MILLPOND_ONLY=z8,z9` searches for those only.
        let only = std::env::var("MILLPOND_ONLY").ok();
        let wanted =
            |bug: &Bug| only.as_deref().is_none_or(|names| names.split(',').any(|n| n == bug.name()));
        for &bug in Bug::CORE.iter().filter(|bug| wanted(bug)) {
            // So that the output of an abort or a hang names the bug.
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
            let excuse = elsewhere(bug);
            let mut found: Vec<Option<(usize, String)>> = match &excuse {
                Some(_) => Vec::new(),
                None => (0..SEARCHES).map(|search| random(Some(bug), search)).collect(),
            };
            // No search may blame the program, not only the one of the median.
            let blamed = found.iter().flatten().filter(|(_, said)| is_misjudged(bug, said));
            missed.extend(blamed.map(|(_, said)| format!("{bug} is blamed on a random program: {said}")));
            // The median of the searches; one that found nothing counts as the longest.
            found.sort_by_key(|f| f.as_ref().map_or(usize::MAX, |f| f.0));
            let after = match (found.get(found.len() / 2).cloned().flatten(), excuse) {
                (_, Some(why)) => why,
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
            let exhausted = match not_exhaustive(bug) {
                Some(why) => format!("no: {why}"),
                None => {
                    if let Some((program, said)) = exhaustive(Some(bug)) {
                        if is_misjudged(bug, &said) {
                            missed.push(format!("{bug} is blamed on the small program {program}: {said}"));
                        }
                        if std::env::var_os("MILLPOND_LOUD").is_some() {
                            let _ = writeln!(std::io::stderr(), "{bug}: {program}\n{said}");
                        }
                        program
                    } else {
                        missed.push(format!("{bug} ({}) survives every small program", bug.what()));
                        "-".to_owned()
                    }
                }
            };
            let _ = writeln!(
                table,
                "| {bug} | {} | {} | {after} | {exhausted} |",
                bug.what(),
                killers.join("; ")
            );
        }
        (table, missed)
    });
    // Past the test harness, which hides what a passing test prints.
    let _ = writeln!(
        std::io::stderr(),
        "\n| bug | what is wrong | scenario | random operations | small programs |\n|---|---|---|---|---|\n{table}"
    );
    assert!(missed.is_empty(), "{} misses:\n{}", missed.len(), missed.join("\n"));
}

/// What is wrong with a bug's row in the table of docs/mutants.md, which is `text`.
fn wrong_row(bug: Bug, cases: &[cases::Case], text: &str) -> Option<String> {
    let begin = format!("| {bug} | {} | ", bug.what());
    let Some(rest) = text.lines().find_map(|line| line.strip_prefix(begin.trim_end())) else {
        return Some(format!("{bug} has no row"));
    };
    if !Bug::CORE.contains(&bug) {
        return None;
    }
    let killers: Vec<_> = cases.iter().filter(|c| c.kills.contains(&bug.name())).map(|c| c.name).collect();
    let columns: Vec<_> = rest.split('|').map(str::trim).collect();
    let [scenario, random, exhausted, _] = columns[..] else {
        return Some(format!("{bug} has another number of columns"));
    };
    if scenario != killers.join("; ") {
        return Some(format!("{bug} is found by {:?}, not {scenario:?}", killers.join("; ")));
    }
    let right = match elsewhere(bug) {
        Some(why) => random == why,
        None => random.parse().is_ok_and(|n: usize| (1..=WITHIN).contains(&n)),
    };
    if !right {
        return Some(format!("{bug}: the column of random programs is wrong: {random:?}"));
    }
    let right = match not_exhaustive(bug) {
        Some(why) => exhausted == format!("no: {why}"),
        None => SEARCHED.iter().any(|(family, length)| {
            let number = exhausted.strip_prefix(&format!("{family} {length}: "));
            number.is_some_and(|n| n.parse().is_ok_and(|n: usize| n > 0))
        }),
    };
    (!right).then(|| format!("{bug}: the column of small programs is wrong: {exhausted:?}"))
}

/// docs/mutants.md names every bug, the scenarios that find it, and whether random programs do.
#[test]
fn every_mutant_is_in_the_documentation() {
    let text = document();
    let cases = cases::all();
    let wrong: Vec<_> = Bug::ALL.iter().filter_map(|&bug| wrong_row(bug, &cases, &text)).collect();
    assert!(wrong.is_empty(), "in docs/mutants.md, {wrong:#?}; `.ci/mutants` prints the table");
}

/// A row with another content is noticed.
#[test]
fn a_wrong_table_of_mutants_is_noticed() {
    let case = cases::Case { name: "two streams", kills: &["trim-pending", "z8"], run: || Ok(()) };
    let wrong = |bug: Bug, rest: &str| {
        wrong_row(bug, core::slice::from_ref(&case), &format!("| {bug} | {} |{rest}", bug.what()))
    };
    let (_, why) = DIRECTED_ONLY[0];
    let no = format!("no: {}", not_exhaustive(Bug::TrimPending).expect("a reason"));
    assert_eq!(wrong(Bug::TrimPending, &format!(" two streams | directed only: {why} | {no} |")), None);
    assert_eq!(wrong(Bug::Z8, " two streams | 192 | range 5: 73 |"), None);
    for (bug, rest) in [
        (Bug::Z8, " | 192 | range 5: 73 |"),
        (Bug::Z8, " two streams; three | 192 | range 5: 73 |"),
        (Bug::Z9, " two streams | 54 | range 5: 73 |"),
        (Bug::Z8, " two streams |"),
        (Bug::Z8, " two streams | 192 |"),
        (Bug::Z8, " two streams | - | range 5: 73 |"),
        (Bug::Z8, " two streams | 10001 | range 5: 73 |"),
        (Bug::Z8, " two streams | directed only: not searched | range 5: 73 |"),
        (Bug::Z8, " two streams | 192 | - |"),
        (Bug::Z8, " two streams | 192 | range 9: 73 |"),
        (Bug::Z8, " two streams | 192 | range 5: 0 |"),
        (Bug::Z8, " two streams | 192 | no: not searched |"),
        (Bug::TrimPending, &format!(" two streams | 12 | {no} |")),
        (Bug::TrimPending, &format!(" two streams | directed only | {no} |")),
        (Bug::TrimPending, &format!(" two streams | directed only: {why} | array 2: 3 |")),
    ] {
        assert!(wrong(bug, rest).is_some(), "{bug}:{rest}");
    }
    assert!(wrong_row(Bug::Z8, &[], "| z8 |").is_some());
}

/// A bug's name selects it; the error for an unknown name lists the names.
#[test]
fn bugs_are_selected_by_name() {
    for &bug in Bug::ALL {
        assert_eq!(bug.name().parse::<Bug>(), Ok(bug));
    }
    let unknown = "z999".parse::<Bug>().unwrap_err().to_string();
    assert!(unknown.contains("z999") && unknown.contains("z19"), "{unknown}");
}
