//! The scenarios of docs/mutants.md on right code, as regression tests: in ordinary builds no bug is planted.

use millpond_testkit::cases;

/// Every scenario passes.
#[test]
fn right_code_passes_every_scenario() {
    let cases = cases::all();
    assert!(cases.len() > 40, "{} scenarios", cases.len());
    let failed: Vec<String> = cases
        .iter()
        .filter_map(|c| cases::judge(c.run).err().map(|e| format!("{} ({}): {e}", c.name, c.kills.join(" "))))
        .collect();
    assert!(failed.is_empty(), "{} scenarios failed:\n{}", failed.len(), failed.join("\n"));
}

/// The interleavings that the model of the laws found and shrank, each a test by its mutant's name.
mod traces {
    use super::cases;

    fn passes(trace: &str) {
        let name = format!("trace of {trace}");
        let case = cases::all().into_iter().find(|c| c.name == name).expect("a scenario of this name");
        cases::judge(case.run).unwrap_or_else(|e| panic!("{name} ({}): {e}", case.kills.join(" ")));
    }

    macro_rules! traces {
        ($($test:ident $trace:literal)+) => {
            $(#[test] fn $test() { passes($trace); })+

            /// A trace that is added to the file has to be run on the allocator too.
            #[test]
            fn every_trace_of_the_model_is_a_test() {
                // "  Mutant: what went wrong | shrunk ..."
                let file = include_str!("../lawmodel/traces.txt");
                let traces = file.lines().filter(|l| l.contains(" | shrunk ")).map(|l| l.trim().split(':').next());
                let traces: Vec<&str> = traces.flatten().collect();
                assert_eq!(traces, [$($trace),+]);
            }
        };
    }
    traces! {
        handle_stamp_at_free_only "HandleStampAtFreeOnly"
        stamp_before_fact_free "StampBeforeFactFree"
        exact_reserved_before_op "ExactReservedBeforeOp"
        open_dropped_before_seal "OpenDroppedBeforeSeal"
        destroy_while_marking "DestroyWhileMarking"
    }
}

/// Random programs that are correct violate nothing, strand nothing and leave nothing.
#[test]
fn right_code_passes_random_programs() {
    for seed in 0..600 {
        let run = match seed % 8 {
            0 => cases::random::run_scrubbing,
            1 => cases::random::run_captured,
            2 => cases::random::run_beside_another,
            3 => cases::random::run_with_rarer_verbs,
            _ => cases::random::run,
        };
        if let Err(e) = run(seed).1 {
            panic!("{e}");
        }
    }
}

/// Captures that took the event of a published marker, of a stream that only calls which name it mark, in operations before the one that finds it so: what that
/// stream holds is held back then, and a request that is refused for it is refused rightly. Three seeds above those of the test before had no other fault.
#[test]
fn right_code_passes_programs_whose_captures_are_found_later() {
    for seed in [1105, 1554, 1919] {
        if let Err(e) = cases::random::run_captured(seed).1 {
            panic!("{e}");
        }
    }
}

/// The same with streams that only calls that name them mark, and that end unannounced, beside captures by other code, which live.
#[test]
fn right_code_passes_random_programs_beside_captures() {
    for seed in 0..400 {
        let (_, outcome) = cases::random::run_undeclared(seed);
        if let Err(e) = outcome {
            panic!("{e}");
        }
    }
}

/// The same with the legacy default stream and the thread's own among the streams.
#[test]
fn right_code_passes_random_programs_with_default_streams() {
    for seed in 0..200 {
        let (_, outcome) = cases::random::run_with_defaults(seed);
        if let Err(e) = outcome {
            panic!("{e}");
        }
    }
}

/// The same of several threads' default streams, each of which another thread names now and then, and is refused.
#[test]
fn right_code_passes_random_programs_of_threads_default_streams() {
    for seed in 0..200 {
        let (_, outcome) = cases::defaults::run(seed);
        if let Err(e) = outcome {
            panic!("{e}");
        }
    }
}

/// The same of programs by several threads; no thread is stopped here, so that their calls follow one another.
#[test]
fn right_code_passes_random_programs_by_threads() {
    for seed in 0..200 {
        let (_, outcome) = cases::threads::run(seed);
        if let Err(e) = outcome {
            panic!("{e}");
        }
    }
}
