//! Every driver call may fail. For each scenario that makes N calls, N runs more: in run k call k fails, with each kind of
//! failure in turn. No panic, a typed error or none, invariants and both oracles content, the same verb works when asked
//! again, and nothing is left on the device. A lost context fails fast and for good.

#![allow(clippy::many_single_char_names, reason = "streams a, b and blocks x, y, as in the traces")]

mod copies;
mod directed;
mod scenarios;
mod stage;

use crate::rig;
use millpond::allocator::StagingPieces;
use millpond::units::GIB;
use millpond::{Config, DriverErrorKind as Kind, Error, Trim};
use millpond_sim::{Leak, Schedule, Sim};
use millpond_testkit::effort::is_full;
use scenarios::{SCENARIOS, Scenario};
use stage::{End, Stage, Stop};
use std::collections::BTreeSet;

/// Every kind but the lost context, which is never over.
const KINDS: [Kind; 6] = [
    Kind::OutOfMemory,
    Kind::InvalidValue,
    Kind::InvalidHandle,
    Kind::Capturing,
    Kind::NotSupported,
    Kind::Other,
];

/// A scenario to its end. `Err`: it stopped at a lost context.
fn play(scenario: &Scenario, stage: &mut Stage) -> Result<(), Stop> {
    (scenario.play)(stage)
}

/// The run in which nothing fails: how many calls it makes, and that it gets where it claims to.
fn good_run(scenario: &Scenario, schedule: Schedule) -> u64 {
    let mut stage = Stage::new(scenario, schedule);
    assert!(play(scenario, &mut stage).is_ok(), "{}: the good run stopped", scenario.name);
    let report = stage.gpu().report();
    assert!((scenario.reached)(&report), "{}: does not get where it claims to:\n{report}", scenario.name);
    assert_eq!(stage.errors, 0, "{}: errors in the good run", scenario.name);
    let sim = stage.sim.clone();
    assert_eq!(stage.end(scenario.name), End::default());
    sim.call_count()
}

/// Call `k` of a run fails; afterwards everything is as it should be. Gives what destructors met.
fn faulty_run(scenario: &Scenario, k: u64, kind: Kind) -> End {
    let mut stage = Stage::new(scenario, Schedule::Latest);
    stage.story = format!("{}: call {k} fails with {kind:?}", scenario.name);
    stage.planted = Some(kind);
    stage.sim.fail_call(k, kind);
    assert!(play(scenario, &mut stage).is_ok(), "{}: stopped", stage.story);
    let story = stage.story.clone();
    stage.end(&story)
}

#[test]
fn every_call_fails_once_with_every_kind() {
    let mut met = BTreeSet::new();
    let mut runs = 0;
    for scenario in SCENARIOS {
        let calls = good_run(scenario, Schedule::Latest);
        for k in 1..=calls + 1 {
            for (n, kind) in (0..).zip(KINDS) {
                // A third of it in an ordinary run.
                if !is_full() && (k + n) % 3 != 0 {
                    continue;
                }
                let end = faulty_run(scenario, k, kind);
                // One failure leaves nothing behind: a free that fails in a destructor is tried again.
                assert_eq!(end.leaks, [], "{}: call {k} fails with {kind:?}", scenario.name);
                met.extend(end.drop_errors.iter().map(|e| e.call));
                runs += 1;
            }
        }
    }
    println!("{runs} runs");
    // Errors that no call could return are kept: each kind of call that an allocator's end makes is among them.
    for call in ["cuMemFree", "cuMemFreeHost"] {
        assert!(met.contains(call), "a failed {call} at the end was not reported: {met:?}");
    }
}

/// The same where the device finishes at once: other rungs serve, other calls are made.
#[test]
fn good_runs_on_a_quick_device() {
    for scenario in SCENARIOS {
        let mut stage = Stage::new(scenario, Schedule::Earliest);
        assert!(play(scenario, &mut stage).is_ok());
        assert_eq!((stage.errors, stage.end(scenario.name)), (0, End::default()));
    }
}

/// Events that say "not ready" though they are, some times over: no error but a time-out or no memory, and then it works.
#[test]
fn events_that_are_not_ready_for_a_while() {
    let mut errors = 0;
    for scenario in SCENARIOS {
        for times in [1, 2, 3, 5, 8, 1000] {
            for schedule in [Schedule::Latest, Schedule::Earliest] {
                let mut stage = Stage::new(scenario, schedule);
                stage.story = format!("{}: {times} times not ready under {schedule:?}", scenario.name);
                stage.unready = true;
                stage.sim.not_ready(times);
                assert!(play(scenario, &mut stage).is_ok(), "{}: stopped", stage.story);
                errors += stage.errors;
                let story = stage.story.clone();
                assert_eq!(stage.end(&story), End::default());
            }
        }
    }
    assert!(errors > 0, "some wait was in vain");
}

/// The context is lost at call `k`: from then on every error says so, a miss fails with no further call, and dropping
/// everything is quiet. The same where no verb passed the loss on.
#[test]
fn a_context_lost_at_every_call() {
    for scenario in SCENARIOS {
        let calls = good_run(scenario, Schedule::Latest);
        for k in 1..=calls {
            let mut stage = Stage::new(scenario, Schedule::Latest);
            let made = stage.sim.call_count();
            stage.story = format!("{}: the context is lost at call {k}", scenario.name);
            stage.planted = Some(Kind::ContextLost);
            stage.sim.fail_call(k, Kind::ContextLost);
            let stopped = play(scenario, &mut stage).is_err();
            // Also where no verb passed it on. The first calls were made before, the last are made by the end itself.
            let reached = made < k && k <= stage.sim.call_count();
            assert!(reached || !stopped, "{}: it was not", stage.story);
            if reached {
                stage.is_lost_for_good();
            }
            stage.end_lost();
        }
    }
}

/// Two calls fail, not only one: for the scenarios of one rung each it is every pair.
#[test]
fn pairs_of_calls_fail() {
    for scenario in SCENARIOS.iter().filter(|s| s.pairs) {
        let calls = good_run(scenario, Schedule::Latest);
        for first in 1..calls {
            for second in first + 1..=calls + 2 {
                let mut stage = Stage::new(scenario, Schedule::Latest);
                stage.story = format!("{}: calls {first} and {second} fail", scenario.name);
                stage.planted = Some(Kind::Other);
                stage.keep_faults = true;
                stage.sim.fail_call(first, Kind::Other);
                stage.sim.fail_call(second, Kind::Other);
                assert!(play(scenario, &mut stage).is_ok(), "{}: stopped", stage.story);
                let story = stage.story.clone();
                let end = stage.end(&story);
                // A free that fails twice in a destructor gives up, and says so.
                let frees = end.drop_errors.iter().filter(|e| e.call.starts_with("cuMemFree")).count();
                assert!(end.leaks.len() <= usize::from(frees == 2), "{story}: {end:?}");
            }
        }
    }
}

/// Whatever was planted, a typed error has words that help.
fn is_typed(e: &Error) -> bool {
    !e.to_string().is_empty()
}

#[test]
fn an_allocator_is_not_made_on_a_failing_device() {
    for kind in KINDS {
        let sim = rig::late();
        sim.fail_call(1, kind);
        let e = millpond::Allocator::new(sim.clone(), millpond::Config::default()).unwrap_err();
        assert!(is_typed(&e) && matches!(&e, Error::Driver(d) if d.kind == kind), "{e}");
        let gpu = rig::on(&sim, millpond::Config::default());
        assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 0);
        rig::all_clean(&sim, gpu);
    }
}

/// Arrays and copies of every kind: nothing is lost but what a lost context keeps.
#[test]
fn copies_survive_every_fault() {
    let run = |k: u64, kind: Kind| {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        // Staged copies have more pieces than slots, moved by threads or, where another kind of failure is tried, by the calling thread.
        let threads = if kind == Kind::Other { 0 } else { 2 };
        let staged = Config::default().staging_threads(threads).staging_pieces(StagingPieces::of(700, 2500));
        let gpu = rig::on(&sim, staged);
        sim.fail_call(k, kind);
        let result = copies::program(&gpu).map(drop);
        let late = sim.call_count() < k;
        sim.clear_faults();
        gpu.check();
        if kind != Kind::ContextLost {
            copies::program(&gpu).unwrap_or_else(|e| panic!("after call {k} had failed with {kind:?}: {e}"));
        }
        drop(gpu);
        sim.run_until_idle();
        sim.verdict().unwrap_or_else(|e| panic!("call {k} failed with {kind:?}: {e}"));
        let kept = |_: &Leak| kind == Kind::ContextLost;
        let leaks = sim.leaks();
        assert!(leaks.iter().all(kept), "call {k} failed with {kind:?}, {result:?}: {leaks:?}");
        (result, late)
    };
    for kind in KINDS.into_iter().chain([Kind::ContextLost]) {
        let mut failed = 0;
        for k in 1.. {
            let (result, late) = run(k, kind);
            match result {
                Ok(()) if late => break,
                Ok(()) => {}
                Err(Error::Driver(e)) => {
                    assert_eq!(e.kind, kind, "call {k}: {e}");
                    failed += 1;
                }
                Err(Error::OutOfMemory(e)) => assert_eq!(kind, Kind::OutOfMemory, "call {k}: {e}"),
                Err(e) => panic!("call {k} failed with {kind:?}: {e}"),
            }
        }
        assert!(failed > 20, "{failed} of {kind:?} were reported");
    }
}

/// All scenarios with virtual memory beneath the pools: they get elsewhere in part, and lose as little. In an ordinary run a
/// quarter of it: most calls fail in one of the ways, the next call in another.
#[test]
fn every_call_fails_once_with_windows() {
    for scenario in SCENARIOS {
        let windows = |kind, k| {
            let mut stage = Stage::with_windows(scenario, Schedule::Latest);
            stage.story = format!("{} with windows: call {k} fails with {kind:?}", scenario.name);
            stage
        };
        let mut stage = windows(Kind::Other, 0);
        assert!(play(scenario, &mut stage).is_ok(), "{}: the good run stopped", stage.story);
        assert_eq!(stage.errors, 0, "{}", stage.story);
        let (sim, story) = (stage.sim.clone(), stage.story.clone());
        assert_eq!(stage.end(&story), End::default());
        for k in 1..=sim.call_count() {
            for (n, kind) in (0..).zip([Kind::OutOfMemory, Kind::NotSupported, Kind::Other]) {
                if !is_full() && (k + n) % 4 != 0 {
                    continue;
                }
                let mut stage = windows(kind, k);
                stage.planted = Some(kind);
                stage.sim.fail_call(k, kind);
                assert!(play(scenario, &mut stage).is_ok(), "{}: stopped", stage.story);
                let story = stage.story.clone();
                assert_eq!(stage.end(&story).leaks, [], "{story}");
            }
        }
    }
}
