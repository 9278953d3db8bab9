//! Arrays on the simulated device, and what is built of them: operations, copies, memory of others, verdicts on programs of them, and the
//! trait objects and wrappers that carry them.

mod any_driver;
mod collections;
mod erased;
mod example;
mod external;
mod extremes;
mod forgotten;
mod mistakes;
#[allow(dead_code, reason = "tests/mutants.rs runs its programs too")]
mod operations;
mod readme;
mod registered;
#[allow(dead_code, reason = "tests/mutants.rs runs its programs too")]
mod safe_calls;
mod staged;
mod transfers;
mod unwaited;
mod verdicts;
mod watched;

// For the code that is made there once (`millpond_testkit::compiled`).
use millpond_testkit as _;

/// When all has run: no access was wrong, and nothing is left of what was taken from the device.
#[cfg(not(any(loom, shuttle)))]
#[track_caller]
fn clean(sim: &millpond_sim::Sim) {
    sim.run_until_idle();
    sim.verdict().unwrap_or_else(|v| panic!("{v}"));
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}
