//! Random programs at the C interface, over the stand-in driver: several threads and allocators, streams that end and whose
//! handles come back, default streams, faults at each driver call. Judged by the stand-in's oracle, and by a model of what each
//! call promises: live memory never overlaps and keeps its contents, a code other than OK has changed nothing, and at the end
//! nothing is left.
//!
//! Each program runs in a process of its own: allocators last as long as a process, and what crashes or hangs is found too.
//! 400 programs a test, or what `MILLPOND_CASES` says. One that fails is shrunk, and shown as calls of C; the text below
//! them, in `MILLPOND_DOORS_PROGRAM`, has `a_program_in_the_environment` run it once more.

#![allow(unsafe_code, reason = "functions of a driver, found by name, and pinned memory")]

#[path = "doors/driver.rs"]
mod driver;
#[path = "doors/model.rs"]
mod model;
#[path = "doors/program.rs"]
mod program;
#[path = "../../tests/fake_libcuda/remote.rs"]
mod remote;
#[path = "doors/shrunk.rs"]
mod shrunk;
#[path = "doors/threads.rs"]
mod threads;
#[path = "doors/world.rs"]
mod world;

use program::{Kind, Program};
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use remote::When;
use std::cell::RefCell;
use std::process::{Command, Output};
use std::time::Duration;

const PROGRAM: &str = "MILLPOND_DOORS_PROGRAM";
const SHOW: &str = "MILLPOND_DOORS_SHOW";
const HERE: &str = "a_program_in_the_environment";

fn cases() -> u32 {
    std::env::var("MILLPOND_CASES").map_or(400, |n| n.parse().expect("MILLPOND_CASES is a number"))
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
        // Allocators keep their contexts to the end of the process.
        let (contexts, streams, events) = (left("the primary context"), left("SimStream"), left("SimEvent"));
        let others = leaks.lines().count() - contexts - streams - events;
        assert!(others == 0 && streams <= most.streams && events <= most.events, "left, {most:?}:\n{leaks}");
    }
    // The allocators are on this driver still.
    std::mem::forget(fake);
}

fn run(program: &Program, show: bool) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", HERE, "--nocapture", "--test-threads", "1"]);
    command.env(PROGRAM, program.to_string()).env("RUST_BACKTRACE", "0");
    if show {
        command.env(SHOW, "1");
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
    // What is at the mercy of the machine's pace may pass when it is tried again.
    let (cases, max_shrink_iters) = if kind.rounds > 0 { (cases() / 4 + 1, 0) } else { (cases(), 1500) };
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let last = RefCell::new(String::new());
    let found = TestRunner::new(config).run(&kind.programs(), |program| {
        let run = run(&program, false);
        if run.status.success() {
            return Ok(());
        }
        last.replace(said(&run));
        Err(TestCaseError::fail("see below"))
    });
    match found {
        Ok(()) => {}
        Err(TestError::Fail(_, program)) => {
            let shown = said(&run(&program, true));
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
        let run = run(&text.parse().expect("a program"), true);
        let said = said(&run);
        assert!(run.status.success() && said.contains("millpond_destroy"), "{wrong}:\n{said}");
    }
}

#[test]
fn programs_of_one_thread() {
    search(Kind { threads: 1, faults: false, rounds: 0, steps: 60 });
}

#[test]
fn programs_of_several_threads() {
    search(Kind { threads: 3, faults: false, rounds: 0, steps: 80 });
}

#[test]
fn programs_over_a_driver_that_fails() {
    search(Kind { threads: 2, faults: true, rounds: 0, steps: 60 });
}

/// What happens hangs on the machine's pace, so that a program that failed may pass when it is shrunk.
#[test]
fn programs_of_threads_at_once() {
    search(Kind { threads: 4, faults: false, rounds: 20, steps: 80 });
}
