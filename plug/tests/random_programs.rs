//! Random programs that call the C interface, over the stand-in driver: several threads and allocators, streams that end and whose
//! handles are reused, default streams, captures, faults at driver calls and at a thread's end, drivers that fail from some call on.
//! They are judged by the stand-in's oracle, and by a model of what each call promises (where allocators and threads end during other
//! threads' calls, by codes alone): live memory never overlaps and keeps its contents; a call that returns a code other than OK has changed
//! nothing (where other threads run: what the call named still exists, and so does all that the thread has of its allocator); no capture of the
//! program's is ended; and nothing is left at the end.
//!
//! Each program runs in a process of its own, because allocators last as long as a process; so a crash or a hang is found too.
//! A test runs 10 programs, or as many as `MILLPOND_CASES` says; `.ci/plug` sets it to 200. One that fails is shrunk and printed as C calls; with the
//! text below them in `MILLPOND_DOORS_PROGRAM`, `a_program_in_the_environment` runs it again.

#![allow(unsafe_code, reason = "functions of a driver, found by name, and pinned memory")]

#[allow(dead_code, reason = "the soak's")]
#[path = "random_programs/driver.rs"]
mod driver;
#[path = "../../testkit/src/effort.rs"]
#[allow(dead_code, unreachable_pub, reason = "a module of tests")]
mod effort;
mod figures;
#[path = "random_programs/model.rs"]
mod model;
#[path = "random_programs/program.rs"]
mod program;
#[path = "../../tests/fake_libcuda/remote.rs"]
mod remote;
#[path = "random_programs/shrunk.rs"]
mod shrunk;
#[path = "random_programs/threads.rs"]
mod threads;
#[path = "random_programs/world.rs"]
mod world;

use program::{CODES, Faults, Kind, Program, STICKY};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use remote::When;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::time::Duration;

const PROGRAM: &str = "MILLPOND_DOORS_PROGRAM";
const SHOW: &str = "MILLPOND_DOORS_SHOW";
const HERE: &str = "a_program_in_the_environment";

/// Makes a program's call of the C interface. The soak has its own version, which counts what is held after it.
fn inside<R>(call: impl FnOnce() -> R) -> R {
    call()
}

fn cases() -> u32 {
    std::env::var("MILLPOND_CASES").map_or(10, |n| n.parse().expect("MILLPOND_CASES is a number"))
}

/// The limit on the steps that make a failing program smaller: 1500, or what `MILLPOND_SHRINKS` says.
fn shrinks() -> u32 {
    std::env::var("MILLPOND_SHRINKS").map_or(1500, |n| n.parse().expect("MILLPOND_SHRINKS is a number"))
}

#[test]
fn a_program_in_the_environment() {
    let Ok(text) = std::env::var(PROGRAM) else { return };
    let program: Program = text.parse().unwrap_or_else(|e| panic!("{PROGRAM}: {e}"));
    let when = match program.schedule {
        0 => When::Earliest,
        1 => When::Latest,
        seed => When::Random(seed),
    };
    let Some(fake) = remote::fake_or_skip(64 << 30, 2, when) else { return };
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_mins(1));
        eprintln!("the program hangs");
        std::process::exit(3);
    });
    let may_be_left = threads::run(&program, std::env::var_os(SHOW).is_some());
    assert_eq!(fake.verdict(), None);
    if let Some(most) = may_be_left {
        let leaks = fake.leaks().unwrap_or_default();
        let left = |what: &str| leaks.lines().filter(|l| l.contains(what)).count();
        // Allocators keep their contexts until the process ends.
        let (contexts, streams, events) = (left("the primary context"), left("SimStream"), left("SimEvent"));
        let modules = left("a module");
        // Pages that a wait during captures pinned: reported as lost if the driver takes them back neither at once nor in their drop.
        let pages = leaks.lines().filter(|l| l.starts_with("512 bytes ") && l.contains("Pinned")).count();
        let others = leaks.lines().count() - contexts - streams - events - modules - pages;
        let few = streams <= most.streams && events <= most.events && modules <= most.modules;
        let few = few && pages <= most.pages;
        assert!(others == 0 && few, "left, {most:?}:\n{leaks}");
    }
    // The allocators still use this driver.
    std::mem::forget(fake);
}

/// Runs a program, with the planted bug of this name if there is one.
fn run(program: &Program, show: bool, planted: Option<&str>) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", HERE, "--nocapture", "--test-threads", "1"]);
    command.env(PROGRAM, program.to_string()).env("RUST_BACKTRACE", "0");
    if show {
        command.env(SHOW, "1");
    }
    if let Some(bug) = planted {
        command.env("MILLPOND_PLANT", bug);
    }
    command.output().expect("it runs")
}

fn said(run: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
}

fn search(kind: Kind) {
    if remote::fake_or_skip(1 << 30, 1, When::Earliest).is_none() {
        return;
    }
    // A failure that depends on the machine's speed may not occur again, so such programs are not shrunk.
    let part = if kind.rounds > 0 || kind.faults == Faults::Lasting { 4 } else { 1 };
    let (cases, max_shrink_iters) = (cases() / part + 1, if kind.rounds > 0 { 0 } else { shrinks() });
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let last = RefCell::new(String::new());
    let found = TestRunner::new(config).run(&kind.programs(), |program| {
        let run = run(&program, false, None);
        if run.status.success() {
            return Ok(());
        }
        last.replace(said(&run));
        Err(TestCaseError::fail("see below"))
    });
    match found {
        Ok(()) => {}
        Err(TestError::Fail(_, program)) => {
            let program = match kind.rounds {
                0 if shrinks() > 0 => program.minimised(|p| !run(p, false, None).status.success()),
                _ => program,
            };
            let shown = said(&run(&program, true, None));
            panic!("{shown}\nWhat was found: {}\n{PROGRAM}=\"{program}\"", last.take());
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn what_was_shrunk_once_is_well() {
    if remote::fake_or_skip(1 << 30, 1, When::Earliest).is_none() {
        return;
    }
    for (wrong, text) in shrunk::SHRUNK {
        let run = run(&text.parse().expect("a program"), true, None);
        let said = said(&run);
        assert!(run.status.success() && said.contains("millpond_destroy"), "{wrong}:\n{said}");
    }
}

/// Functions of the interface that no step calls, each with the reason.
const BY_THE_MODEL: &[(&str, &str)] = &[
    ("millpond_find", "called for every allocation after every call that failed"),
    ("millpond_stats_json", "called after every call that failed, and at the end"),
    ("millpond_last_error", "called after every call that failed"),
    ("millpond_torch_untold", "called before and after every call without a code"),
    ("millpond_version", "a constant"),
];

/// The names of the interface's functions that precede a bracket in the text.
fn entries(text: &str) -> BTreeSet<String> {
    let names =
        text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '(')).flat_map(|word| {
            let before = word.rsplit_once('(').map_or("", |(before, _)| before);
            before.split('(').filter(|name| name.starts_with("millpond_")).map(str::to_owned)
        });
    names.collect()
}

#[test]
fn every_entry_of_the_header_is_called_by_random_programs() {
    if remote::fake_or_skip(1 << 30, 1, When::Earliest).is_none() {
        return;
    }
    let header = include_str!("../millpond.h");
    // Without the comments.
    let code = header.split("/*").map(|part| part.rsplit("*/").next().unwrap_or_default());
    let of_header = entries(&code.collect::<String>());
    assert!(of_header.len() > 30, "{of_header:?}");
    let by_the_model: BTreeSet<String> = BY_THE_MODEL.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut wanted: BTreeSet<String> = of_header.difference(&by_the_model).cloned().collect();
    assert!(by_the_model.is_subset(&of_header), "not all of {by_the_model:?} are in the header");
    let mut runner = runner();
    // An ordinary run does not wait for the rarest.
    for _ in 0..effort::ordinary_or_full(10, 200) {
        let program = KINDS[1].1.programs().new_tree(&mut runner).expect("a program").current();
        let called = entries(&said(&run(&program, true, None)));
        assert!(called.is_subset(&of_header), "not all of {called:?} are in the header");
        assert!(called.is_disjoint(&by_the_model), "{called:?}: no step calls {by_the_model:?}");
        wanted.retain(|name| !called.contains(name));
        if wanted.is_empty() {
            return;
        }
    }
    assert!(!effort::is_full(), "no program calls {wanted:?}");
}

/// The library's error message for options that it refuses.
fn refused(options: &str) -> String {
    let options = std::ffi::CString::new(options).expect("words");
    let mut number = 0;
    let status = millpond_plug::ffi::millpond_create(0, options.as_ptr(), &raw mut number);
    assert_eq!(status, millpond_plug::status::MillpondStatus::BadArgument, "{options:?}");
    model::last()
}

/// Whether a value is of a kind that an option accepts, as the error message names the kind.
fn is_of_kind(value: &str, kind: &str) -> bool {
    let number = value.parse::<u64>().is_ok();
    match kind
        .split(' ')
        .next_back()
        .unwrap_or_default()
        .trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '%')
    {
        size if size.ends_with("GiB") => value.ends_with("iB") || number,
        share if share.ends_with('%') => value.ends_with('%'),
        "milliseconds" | "bytes" | "number" => number,
        word => word == value,
    }
}

/// The parser's error messages name the options and values that it accepts; each of these is in some program's options.
#[test]
fn every_value_of_every_option_is_drawn() {
    let drawn: BTreeSet<(String, String)> = (0..=255)
        .flat_map(|number| [false, true].map(|quiet| world::World::options(quiet, number).0))
        .flat_map(|text| text.split(',').map(str::to_owned).collect::<Vec<_>>())
        .map(|word| {
            word.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())).expect("a name and a value")
        })
        .collect();
    let said = refused("no such option=1");
    let (_, names) = said.split_once("the names are ").expect("the message names them");
    let names: Vec<&str> = names.split(", ").collect();
    assert!(names.len() >= 9 && names.contains(&"reuse"), "{said}");
    for name in &names {
        let said = refused(&format!("{name}=?"));
        let (_, kinds) = said
            .split_once("expected ")
            .or(said.split_once("it is "))
            .expect("the message says what the option accepts");
        let kinds: Vec<&str> =
            kinds.split(" or ").flat_map(|part| part.split(", ")).filter(|k| !k.is_empty()).collect();
        assert!(!kinds.is_empty(), "{said}");
        for kind in kinds {
            // The model counts bytes: its allocators have exact growth, or may have plain segments.
            if (*name, kind) == ("virtual", "always") {
                continue;
            }
            let has = |(n, value): &(String, String)| n == name && is_of_kind(value, kind);
            assert!(drawn.iter().any(has), "no program has an option {name} that is {kind:?}: {drawn:?}");
        }
    }
    let strange: Vec<_> = drawn.iter().filter(|(name, _)| !names.contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

/// Calls each function that calls the driver, in a state in which it does; at `F` one driver call fails.
const EACH_ENTRY: &str = "
    Alloc 0 0 0 4 F
    Read 0 0 101 0 0
    Declare 0 0 5 0 F
    Free 0 0 0 0 F
    Alloc 0 0 0 4 0
    Write 0 0 101 0 0
    FreeOn 0 0 101 0 F
    Alloc 0 1 7 3 F
    FreeUnknown 0 0 0 0 F
    Alloc 0 0 1 4 0
    Read 0 0 101 0 0
    Read 0 0 102 0 0
    FreeAfter 0 0 0 0 F
    Permanent 0 0 1 0 F
    Alloc 0 0 1 6 F
    Free 0 0 0 0 F
    Pin 0 0 0 1 F
    PinIn 0 0 2 0 0
    PinDeclare 0 0 2 0 F
    PinFree 0 0 0 0 F
    Pin 0 1 0 1 F
    PinOut 0 0 2 0 0
    PinFreeUnknown 0 0 0 0 F
    TorchAlloc 0 0 0 4 F
    TorchUse 0 0 5 0 F
    TorchFree 0 0 0 0 F
    TorchAlloc 0 0 0 4 0
    TorchUse 0 0 21 0 F
    TorchFree 0 0 0 0 F
    TorchAlloc 0 0 192 4 F
    TorchUse 0 0 149 0 0
    Free 0 0 0 0 F
    Limit 0 0 1 0 F
    Limit 0 0 0 0 0
    Limit 0 3 2 0 F
    Limit 0 3 0 0 0
    Look 0 0 40 128 0
    Look 0 0 0 192 F
    Trim 0 1 0 1 F
    Sync 0 1 0 1 F
    EmptyCache 0 0 0 0 F
    Alloc 0 1 0 6 0
    Destroy 0 1 0 0 F
    FreeOn 0 0 0 0 F
    Trim 0 1 0 1 F
    Sync 0 1 0 1 F
    Create 0 1 21 0 F
    Alloc 0 0 7 3 0
    FreeUnknown 0 0 0 0 0
    Alloc 0 1 0 6 F
    Destroy 0 1 0 3 F
    Create 0 2 21 0 F
    ThreadEnds 0 0 0 0 F";

/// Each driver call of each function fails, one in each run, and then nothing has changed. The program is fixed; in random programs it is
/// left to chance which calls fail.
#[ignore = "takes long: run by .ci/plug"]
#[test]
fn each_driver_call_of_each_entry_fails_in_turn() {
    if remote::fake_or_skip(1 << 30, 1, When::Earliest).is_none() {
        return;
    }
    let steps: Vec<&str> = EACH_ENTRY.trim().lines().map(str::trim).collect();
    let program = |schedule: &str, at: usize, fault: usize| -> Program {
        // Each call fails with another code.
        let code = CODES[(at + fault) % CODES.len()];
        let with = |(n, step): (usize, &&str)| match step.strip_suffix('F') {
            Some(step) if n == at => format!("{step}{fault}:{code}"),
            Some(step) => format!("{step}0"),
            None => (*step).to_owned(),
        };
        let steps: Vec<String> = steps.iter().enumerate().map(with).collect();
        format!("{schedule}\n{}", steps.join("\n")).parse().expect("a program")
    };
    // In the second nothing captures, until an allocator that expects captures is created.
    let schedules = ["schedule 1 rounds 0", "schedule 0 rounds 0 quiet"];
    let fails = |(_, step): &(usize, &str)| step.ends_with('F');
    let places = || steps.iter().copied().enumerate().filter(fails);
    let quiet = places()
        .filter(|(_, step)| ["Create", "Destroy", "FreeU", "Trim"].iter().any(|w| step.starts_with(w)));
    let all: Vec<_> =
        places().map(|at| (schedules[0], at)).chain(quiet.map(|at| (schedules[1], at))).collect();
    let strike = |&(schedule, (at, step)): &(&str, (usize, &str))| {
        let mut struck = BTreeSet::new();
        for fault in 1.. {
            assert!(fault < 500, "{step}: it makes 500 driver calls or more");
            let program = program(schedule, at, fault);
            let run = run(&program, true, None);
            let said = said(&run);
            assert!(run.status.success(), "{step}, call {fault}:\n{said}\n{PROGRAM}=\"{program}\"");
            let Some((before, _)) = said.split_once("in a failing ").or(said.split_once("with a failing "))
            else {
                break;
            };
            struck.extend(before.lines().rev().find_map(|line| entries(line).into_iter().next()));
        }
        struck
    };
    let part = |all: &[_]| all.iter().flat_map(strike).collect::<BTreeSet<String>>();
    let (one, two) = all.split_at(all.len() / 2);
    let struck = std::thread::scope(|threads| {
        let one = threads.spawn(|| part(one));
        let two = part(two);
        &one.join().expect("its message is above") | &two
    });
    let silent: Vec<&str> = ASK_THE_DRIVER.iter().copied().filter(|name| !struck.contains(*name)).collect();
    assert!(silent.is_empty(), "no driver call of {silent:?} has failed, only calls of {struck:?}");
}

/// Before each of those calls, or after its first or second driver call, the driver breaks: for ever, with a lost context, or until the end
/// of the program, with the code 999.
#[test]
fn each_entry_meets_a_driver_that_is_broken() {
    if remote::fake_or_skip(1 << 30, 1, When::Earliest).is_none() {
        return;
    }
    let well =
        |step: &str| step.trim().strip_suffix('F').map_or(step.trim().to_owned(), |step| format!("{step}0"));
    let steps: Vec<String> = EACH_ENTRY.trim().lines().map(well).collect();
    let mut failed = BTreeSet::new();
    let asks = EACH_ENTRY.trim().lines().map(|step| step.ends_with('F'));
    for (at, _) in asks.enumerate().filter(|(_, asks)| *asks) {
        // One of the codes that lose the context, and 999.
        for (n, which) in [at % STICKY.len(), 70].into_iter().enumerate() {
            // One of the two in an ordinary run.
            if !effort::is_full() && (at + n) % 2 == 1 {
                continue;
            }
            let breaks = format!("Breaks 0 {which} {} 0 0", (at + n) % 3);
            let text = [&steps[..at], &[breaks], &steps[at..]].concat().join("\n");
            let program: Program = format!("schedule 1 rounds 0\n{text}").parse().expect("a program");
            let run = run(&program, true, None);
            let said = said(&run);
            assert!(run.status.success(), "{said}\n{PROGRAM}=\"{program}\"");
            let lines: Vec<&str> = said.lines().collect();
            let refused = lines.windows(2).filter(|two| two[1].starts_with("    // "));
            failed.extend(refused.filter_map(|two| entries(two[0]).into_iter().next()));
        }
    }
    // These succeed whatever the driver does: a use that cannot be recorded makes the users unknown.
    let done = ["millpond_release", "millpond_torch_record_stream"];
    let silent: Vec<&str> =
        ASK_THE_DRIVER.into_iter().filter(|name| !failed.contains(*name) && !done.contains(name)).collect();
    assert!(silent.is_empty() || !effort::is_full(), "{silent:?} never failed, of {failed:?}");
}

/// The functions of which some driver call has to fail.
const ASK_THE_DRIVER: [&str; 17] = [
    "millpond_create",
    "millpond_destroy",
    "millpond_release",
    "millpond_alloc",
    "millpond_free_on",
    "millpond_free_after",
    "millpond_record_use",
    "millpond_declare_permanent",
    "millpond_alloc_pinned",
    "millpond_record_pinned_use",
    "millpond_synchronize",
    "millpond_trim",
    "millpond_set_limit",
    "millpond_torch_alloc",
    "millpond_torch_record_stream",
    "millpond_torch_empty_cache",
    "millpond_torch_memory_fraction",
];

/// Draws the same programs each time.
fn runner() -> TestRunner {
    TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

const KINDS: [(&str, Kind); 13] = [
    (
        "one thread",
        Kind { threads: 1, faults: Faults::None, captures: false, rounds: 0, rough: false, scenes: 40 },
    ),
    (
        "several threads",
        Kind { threads: 3, faults: Faults::None, captures: false, rounds: 0, rough: false, scenes: 50 },
    ),
    (
        "a driver that fails",
        Kind { threads: 2, faults: Faults::Single, captures: false, rounds: 0, rough: false, scenes: 40 },
    ),
    (
        "threads at once",
        Kind { threads: 4, faults: Faults::None, captures: false, rounds: 20, rough: false, scenes: 50 },
    ),
    (
        "captures",
        Kind { threads: 3, faults: Faults::None, captures: true, rounds: 0, rough: false, scenes: 40 },
    ),
    (
        "captures and a driver that fails",
        Kind { threads: 2, faults: Faults::Single, captures: true, rounds: 0, rough: false, scenes: 40 },
    ),
    (
        "captures and threads at once",
        Kind { threads: 4, faults: Faults::None, captures: true, rounds: 20, rough: false, scenes: 50 },
    ),
    (
        "allocators and threads that end beside calls",
        Kind { threads: 4, faults: Faults::None, captures: false, rounds: 20, rough: true, scenes: 50 },
    ),
    (
        "captures, and allocators and threads that end beside calls",
        Kind { threads: 4, faults: Faults::None, captures: true, rounds: 20, rough: true, scenes: 50 },
    ),
    (
        "threads at once and a driver that fails",
        Kind { threads: 4, faults: Faults::Single, captures: false, rounds: 5, rough: false, scenes: 50 },
    ),
    (
        "captures, allocators and threads that end beside calls, and a driver that fails",
        Kind { threads: 4, faults: Faults::Single, captures: true, rounds: 5, rough: true, scenes: 50 },
    ),
    (
        "captures and a driver that fails from some call on",
        Kind { threads: 3, faults: Faults::Lasting, captures: true, rounds: 0, rough: false, scenes: 40 },
    ),
    (
        "threads and allocators that end beside calls, and a driver that fails from some call on",
        Kind { threads: 4, faults: Faults::Lasting, captures: false, rounds: 5, rough: true, scenes: 40 },
    ),
];

#[test]
fn programs_of_one_thread() {
    search(KINDS[0].1);
}

#[test]
fn programs_of_several_threads() {
    search(KINDS[1].1);
}

#[test]
fn programs_over_a_driver_that_fails() {
    search(KINDS[2].1);
}

/// What happens depends on the machine's speed.
#[test]
fn programs_of_threads_at_once() {
    search(KINDS[3].1);
}

#[test]
fn programs_that_capture() {
    search(KINDS[4].1);
}

#[test]
fn programs_that_capture_over_a_driver_that_fails() {
    search(KINDS[5].1);
}

/// What happens depends on the machine's speed.
#[test]
fn programs_that_capture_on_threads_at_once() {
    search(KINDS[6].1);
}

/// What happens depends on the machine's speed.
#[test]
fn programs_that_destroy_and_declare_beside_calls() {
    search(KINDS[7].1);
}

/// What happens depends on the machine's speed.
#[test]
fn programs_that_capture_destroy_and_declare_beside_calls() {
    search(KINDS[8].1);
}

/// What happens depends on the machine's speed.
#[test]
fn programs_of_threads_at_once_over_a_driver_that_fails() {
    search(KINDS[9].1);
}

/// What happens depends on the machine's speed.
#[test]
fn programs_that_capture_and_end_beside_calls_over_a_driver_that_fails() {
    search(KINDS[10].1);
}

#[test]
fn programs_over_a_driver_that_breaks() {
    search(KINDS[11].1);
}

/// What happens depends on the machine's speed.
#[test]
fn programs_that_end_beside_calls_over_a_driver_that_breaks() {
    search(KINDS[12].1);
}

/// Each bug that can be planted in the C interface is found by random programs of some kind. Built and run by `.ci/mutants`; prints the
/// table of docs/mutants.md.
#[cfg(millpond_mutants)]
#[test]
fn every_bug_of_the_c_interface_is_found() {
    use pond::mutant::Bug;
    use std::io::Write;

    /// Bugs in lower modules that end a capture by other code, or forget a stream that a capture kept from being marked.
    const OF_CAPTURES: &[Bug] = &[
        Bug::ContextMarker,
        Bug::LooseForgotten,
        Bug::CudaNeverRelaxed,
        Bug::CudaIgnoresCaptures,
        Bug::CudaFirstSuspect,
        Bug::CaptureUnseen,
    ];
    /// Found by other tests. No thread of these programs frees another thread's pointer while that thread frees it: `plug/tests/abi/same.rs`. A thread that
    /// is in a call while another one ends an allocator and makes dozens never shows a bug here: `tests/threads_loom/ends.rs` has every schedule. PyTorch's
    /// memory that another device's streams use: `plug/tests/abi/later.rs`.
    const ELSEWHERE: &[Bug] = &[
        Bug::DoorHoldShared,
        Bug::DoorElsewhereByHandle,
        Bug::DoorPutOffShared,
        Bug::DoorRemovedEarly,
        Bug::DoorFreedEarly,
        Bug::DoorBarrierSkipped,
    ];
    /// How many programs of each kind are tried.
    const WITHIN: u32 = 800;
    /// Bugs that the first few programs of no kind find, and the number of one that does: with `MILLPOND_SEARCH_BY_TABLE` the search begins there.
    const FROM: &[(Bug, u32)] = &[
        (Bug::DoorCreateNotified, 10),
        (Bug::DoorThreadStays, 14),
        (Bug::DoorEndUnqueried, 45),
        (Bug::DoorElsewhereUnqueried, 12),
    ];
    assert!(remote::path().is_some(), "the stand-in driver is not built");
    let mut table = String::from("\n| bug | what is wrong | found by programs of |\n|---|---|---|\n");
    let mut missed = Vec::new();
    let is_right = |program: &Program| run(program, false, None).status.success();
    let by_table = std::env::var_os("MILLPOND_SEARCH_BY_TABLE").is_some();
    let find = |within: u32, bug: Option<Bug>| {
        let mut runner = runner();
        let listed = FROM.iter().find(|(listed, _)| by_table && bug == Some(*listed));
        let from = listed.map_or(1, |&(_, number)| number);
        (1..=within).find_map(|number| {
            KINDS.iter().find_map(|(name, kind)| {
                let program = kind.programs().new_tree(&mut runner).expect("a program").current();
                if number < from {
                    return None;
                }
                let run = run(&program, false, bug.map(Bug::name));
                let shown =
                    if bug.is_none() { format!("\n{}\n{program}", said(&run)) } else { String::new() };
                // A program that fails without the bug shows nothing about it.
                (!run.status.success() && (bug.is_none() || is_right(&program)))
                    .then(|| format!("{name}, within {number}{shown}"))
            })
        })
    };
    // `MILLPOND_ONLY=z8,z9` looks for those only.
    let only = std::env::var("MILLPOND_ONLY").ok();
    // Every build runs more programs without a bug.
    assert_eq!(find(if only.is_some() || by_table { 10 } else { 20 }, None), None, "right code fails");
    let wanted = |bug: &Bug| only.as_deref().is_none_or(|names| names.split(',').any(|n| n == bug.name()));
    let drawn = Bug::C_INTERFACE.iter().filter(|bug| !ELSEWHERE.contains(bug));
    for &bug in drawn.chain(OF_CAPTURES).filter(|bug| wanted(bug)) {
        let found = find(WITHIN, Some(bug));
        if found.is_none() {
            missed.push(bug);
        }
        let found = found.unwrap_or_default();
        table += &format!("| {bug} | {} | {found} |\n", bug.what());
        // Past the test harness, which hides what a passing test prints.
        let _ = std::io::stderr().write_all(core::mem::take(&mut table).as_bytes());
    }
    assert!(missed.is_empty(), "no program finds {missed:?}");
}
