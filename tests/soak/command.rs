//! The soak as a command: every program, for as many rounds as are requested, spread over the machine's cores, and a line for each.
//!
//! `MILLPOND_SOAK_ROUNDS=1000000 cargo test --release --test soak -- --ignored --exact command::every_program --nocapture`; the
//! executable takes the same words behind its name, on a machine that has no Rust and no sources either. `MILLPOND_SOAK_ONLY=random,t12`
//! takes the programs that have one of the words in their names, `MILLPOND_SOAK_SEEDS=1000` so many random ones, and
//! `MILLPOND_SOAK_THREADS` runs so many at a time. Times are printed and judge nothing. With fewer than 5,000 rounds the first part is
//! over before some lists are as long as they may be when nothing is pending, and that looks like growth.
//!
//! It does not know what a program does.

use super::judge::{self, rounds};
use super::run::{Pace, Run, Soaked};
use super::{gpu_soak, lasting, programs, random, requirement_tests};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// A program by its name, and its run.
pub type Job = (String, Box<dyn FnOnce() -> Soaked + Send>);

/// All of them.
fn jobs() -> Vec<Job> {
    let paces = [Pace::AtOnce, Pace::Behind, Pace::Late, Pace::Coin(7)];
    let named = programs::NAMES.iter().flat_map(|&name| {
        paces.map(|pace| -> Job {
            let run = move || programs::run(name, Run::steady(pace));
            (format!("programs::{name}::{pace:?}"), Box::new(run))
        })
    });
    let seeds = number("MILLPOND_SOAK_SEEDS").map_or(random::SEEDS, |n| n as u64);
    let random = random::base()..random::base() + seeds;
    let random =
        random.map(|seed| -> Job { (format!("random::seed_{seed}"), Box::new(move || random::run(seed))) });
    let lasting = lasting::NAMES.iter().flat_map(|&name| {
        [Pace::AtOnce, Pace::Late].map(|pace| -> Job {
            (format!("lasting::{name}::{pace:?}"), Box::new(move || lasting::run(name, Run::steady(pace))))
        })
    });
    named.chain(requirement_tests::all()).chain(lasting).chain(random).collect()
}

fn number(name: &str) -> Option<usize> {
    let said = std::env::var(name).ok()?;
    Some(said.parse().unwrap_or_else(|_| panic!("{name} is a number, not {said}")))
}

/// Runs one, and says what came of it.
fn line((name, run): Job) -> Result<String, String> {
    let start = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(run)).map_err(|why| {
        let said = why.downcast_ref::<String>().map(String::as_str);
        format!("FAIL {name} panics: {}", said.or(why.downcast_ref::<&str>().copied()).unwrap_or("a panic"))
    });
    let soaked = ended?;
    let took = (soaked.rounds, start.elapsed().as_secs_f64());
    let said = judge::line(&name, took, &soaked.first, &soaked.last, &soaked.found);
    if soaked.found.is_empty() { Ok(said) } else { Err(said) }
}

fn say(text: &str) {
    // Whole lines, past the test harness.
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

#[test]
#[ignore = "a command: every program, for MILLPOND_SOAK_ROUNDS rounds"]
fn every_program() {
    let only = std::env::var("MILLPOND_SOAK_ONLY").unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only.split(',').any(|word| name.contains(word));
    let jobs: Vec<Mutex<Option<Job>>> =
        jobs().into_iter().filter(|job| wanted(&job.0)).map(|job| Mutex::new(Some(job))).collect();
    let (next, failed, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let threads = number("MILLPOND_SOAK_THREADS")
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    say(&format!("{} programs, {} rounds, {threads} at a time", jobs.len(), rounds()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)) {
                    let job = job.lock().expect("no panic").take().expect("each once");
                    let (Ok(said) | Err(said)) = line(job).inspect_err(|_| {
                        failed.fetch_add(1, Relaxed);
                    });
                    let done = done.fetch_add(1, Relaxed) + 1;
                    say(&format!("{done}/{} {said}", jobs.len()));
                }
            });
        }
    });
    // It judges itself, by the counters that it prints.
    if wanted("gpu_soak") {
        let rounds = gpu_soak::Rounds { pairs: rounds(), crossings: rounds() };
        gpu_soak::soak(gpu_soak::simulated(), rounds, None).expect("benches/gpu/gpu_soak.rs");
    }
    let failed = failed.into_inner();
    assert_eq!(failed, 0, "of {} programs: the lines that begin with FAIL", jobs.len());
    say(&format!("{} programs: nothing grew", jobs.len()));
}
