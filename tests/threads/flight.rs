//! Arrays that go round between threads of a real machine with their copies under way: tokens are waited for, kept and dropped, guards
//! begin and end, pageable memory goes up and down, and beside all that streams are ordered and waited for.
//!
//! `tests/threads.rs` runs it, under the thread sanitizer too, and in a build that can plant bugs it has to convict those of tokens, guards
//! and wiped memory. Whose turn it is the machine says: a seed is no schedule.

#![allow(unreachable_pub, reason = "shared by test files")]

use millpond::units::MIB;
use millpond_sim::{Schedule, Sim};
use millpond_testkit::flight::{self, Table};
use millpond_testkit::rig;
use std::mem::ManuallyDrop;
use std::thread;

/// Rounds of the stress test, threads of a round and steps of a thread.
pub const ROUNDS: u64 = 40;
const THREADS: usize = 4;
const STEPS: usize = 60;

/// A round: what was read that is wrong, or the oracle's verdict.
pub fn round(seed: u64) -> Result<(), String> {
    let schedule = if seed.is_multiple_of(2) { Schedule::Latest } else { Schedule::Random(seed) };
    let sim = Sim::new(256 * MIB).schedule(schedule);
    let scrubbed = seed % 4 > 1;
    // What went wrong cannot always be dropped.
    let gpu = ManuallyDrop::new(rig::on(&sim, flight::config(THREADS, scrubbed)));
    let streams = ManuallyDrop::new((0..3).map(|_| gpu.stream().expect("a stream")).collect::<Vec<_>>());
    let table = ManuallyDrop::new(Table::new(Vec::new()));
    #[cfg(millpond_mutants)]
    let bug = millpond::mutant::current();
    thread::scope(|threads| {
        let all = (0..THREADS as u64).map(|thread| {
            let (gpu, streams, table) = (&gpu, &streams, &*table);
            threads.spawn(move || {
                #[cfg(millpond_mutants)]
                let _planted = millpond::mutant::plant(bug);
                let mut state = seed << 8 | thread;
                let draw = &mut |n: usize| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) as usize % n
                };
                flight::Thread { gpu, streams, table, scrubbed, draw }.work(STEPS)
            })
        });
        let all: Vec<_> = all.collect();
        let ends = all.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())));
        ends.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()
    })?;
    if let Some(violation) = sim.violations().first() {
        return Err(violation.to_string());
    }
    let arrays = std::mem::take(&mut *table.lock());
    flight::end(ManuallyDrop::into_inner(gpu), ManuallyDrop::into_inner(streams), arrays)
}

/// Each of them within ten runs of the stress test.
#[cfg(millpond_mutants)]
#[test]
fn bugs_of_tokens_guards_and_wiped_memory_are_found_by_threads_that_run_at_once() {
    use millpond::mutant;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    for bug in flight::BUGS {
        let _planted = mutant::plant(Some(bug));
        let said = |seed| match catch_unwind(AssertUnwindSafe(|| round(seed))) {
            Ok(outcome) => outcome.err(),
            Err(_) => Some("a panic".to_owned()),
        };
        let found = (0..10 * ROUNDS).find_map(|seed| said(seed).map(|said| (seed, said)));
        let (seed, said) = found.unwrap_or_else(|| panic!("{bug} survives the stress test"));
        eprintln!("{bug}: the stress test's round {seed} convicts: {said}");
    }
}
