//! The soak: steady programs in a loop, and nothing may grow.
//!
//! What an allocator holds may be a function of what is pending, never of what has ever happened. That is a statement about
//! loops, so it is tested on loops: the README's programs, the examples, what tests/architecture/requirements.rs lists, and random ones, each
//! 4,000 rounds in an ordinary run, then 10,000, both by `.ci/soak`: `cargo test --workspace` leaves this program out (`MILLPOND_SOAK_ROUNDS=1000000 cargo test --release --test soak` for more), on the simulated
//! device at four paces. Tests of requirements run with the elements and repetitions of a loop; `requirement_tests` lists the one that has fewer rounds, and why. `run` says what is compared; `millpond_testkit::counting` how the memory of library and device are distinguished; and
//! `complete` reads which programs there are, and fails if one has no loop.
//!
//! | file | what it holds |
//! |---|---|
//! | `command` | all of them by one command, over all cores, a line for each |
//! | `run` | the loop and the judgement |
//! | `judge` | what is compared, and by how much it may change; the soaks of the C interface use it too |
//! | `programs` | programs with a name, in one allocator that stays |
//! | `windows` | those with virtual memory beneath the pools |
//! | `bounds` | those of holds, groups, watermarks and idle trims |
//! | `readme` | the README's for the simulated device, line by line |
//! | `requirement_tests` | the tests that tests/architecture/requirements.rs names, from beginning to end, again and again |
//! | `lasting` | requirements whose tests make a device each: what these do, on a device and an allocator that last |
//! | `random` | programs by a seed: with captures, streams that others end, threads |
//! | `machine`, `rare_verbs`, `crew` | what a step of these does, and what one of the rarely used parts of the interface; the threads that do it |
//! | `leaks` | programs that keep something of every round, or of one in 50 or 100, which fail |
//! | `pending` | programs in which what is pending varies |
//! | `phases` | what these do, drawn by a seed |
//! | `stated` | what may be kept then: the bounds by what is pending |
//! | `finders` | bugs of the library's that these find above their bounds |
//! | `planted` | bugs of the library's by which something grows, which the programs find (`.ci/mutants`) |
//! | `complete` | whether every example, README program and requirement is among them |

#![allow(unreachable_pub, reason = "modules of a test")]
#![allow(clippy::duplicate_mod, reason = "examples and tests are modules here, each with its helpers")]

#[path = "soak/bounds.rs"]
mod bounds;
#[path = "soak/command.rs"]
mod command;
#[path = "soak/complete.rs"]
mod complete;
#[path = "soak/crew.rs"]
mod crew;
#[cfg(millpond_mutants)]
#[path = "soak/finders.rs"]
mod finders;
#[path = "soak/judge.rs"]
mod judge;
#[path = "soak/lasting.rs"]
mod lasting;
#[path = "soak/leaks.rs"]
mod leaks;
#[path = "soak/machine.rs"]
mod machine;
#[path = "soak/pending.rs"]
mod pending;
#[path = "soak/phases.rs"]
mod phases;
#[cfg(millpond_mutants)]
#[path = "soak/planted.rs"]
mod planted;
#[path = "soak/programs.rs"]
mod programs;
#[path = "soak/random.rs"]
mod random;
#[path = "soak/readme.rs"]
mod readme;
#[path = "soak/requirement_tests.rs"]
mod requirement_tests;
#[path = "soak/run.rs"]
mod run;
#[path = "soak/stated.rs"]
mod stated;
#[path = "soak/unqueried.rs"]
mod unqueried;
#[path = "soak/windows.rs"]
mod windows;

// The programs themselves.
#[allow(dead_code, reason = "an example, whose loop is called")]
#[path = "../examples/first_steps.rs"]
mod first_steps;
#[path = "../benches/gpu/gpu_soak.rs"]
mod gpu_soak;
#[allow(dead_code, reason = "an example, whose loop is called")]
#[path = "../examples/share_between_streams.rs"]
mod share_between_streams;
#[allow(dead_code, reason = "an example, whose loop is called")]
#[path = "../examples/two_streams.rs"]
mod two_streams;

#[path = "allocator/requirements.rs"]
mod allocator_requirements;
#[path = "allocator/parity.rs"]
mod parity;
#[path = "arrays/transfers.rs"]
mod transfers;

/// The program of `benches/gpu.sh soak`, at counts that a test can have.
#[test]
fn the_long_run_for_a_gpu_passes_on_the_simulated_device() {
    let rounds = gpu_soak::Rounds { pairs: 50_000, crossings: 5_000 };
    gpu_soak::soak(gpu_soak::simulated(), rounds, None).unwrap();
}

#[global_allocator]
static COUNTED: millpond_testkit::counting::Counting = millpond_testkit::counting::Counting;

/// The counting itself, here because the test kit has no tests of its own.
#[test]
fn what_the_device_holds_is_counted_apart() {
    use millpond_testkit::counting::{Account, device, library};
    let account = Account::open();
    account.scope(|| {
        let ours = vec![0u8; 1000];
        let theirs = device(|| vec![0u8; 500]);
        assert_eq!((account.library().bytes, account.device().bytes), (1000, 500));
        assert_eq!((account.library().blocks, account.device().blocks), (1, 1));
        device(|| drop(ours));
        assert_eq!((account.library().bytes, account.device().bytes), (0, 500), "it was ours");
        let back = device(|| library(|| vec![7u8; 32]));
        assert_eq!((account.library().bytes, back.len()), (32, 32));
        std::thread::scope(|s| s.spawn(|| drop(theirs)).join().unwrap());
        assert_eq!(std::hint::black_box(back)[31], 7);
        let mut grown = Vec::with_capacity(1);
        device(|| grown.extend_from_slice(&[1u8; 100]));
        assert_eq!(grown.len(), 100);
    });
    assert_eq!((account.library().blocks, account.device().blocks), (0, 0));
}
