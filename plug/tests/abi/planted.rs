//! Planted bugs that these tests find and random programs do not, because no random program makes such a mistake.

use super::remote;
use pond::mutant::Bug;
use std::process::{Command, Output};

const FINDERS: [(Bug, &str); 6] = [
    (Bug::DoorHoldShared, "same::of_calls_that_name_one_pointer_at_once_one_frees_it"),
    (Bug::DoorHoldShared, "same::of_calls_that_name_one_pointer_of_a_permanent_stream_one_frees_it"),
    (Bug::DoorHoldShared, "same::of_pytorchs_calls_that_name_one_pointer_at_once_one_frees_it"),
    (Bug::DoorElsewhereUnqueried, "later::a_use_on_another_device_is_kept_whatever_fails"),
    (Bug::DoorElsewhereByHandle, "later::a_stream_is_not_taken_for_the_one_that_had_its_handle"),
    (Bug::DoorPutOffShared, "later::what_is_freed_later_has_no_owner"),
];

fn run(test: &str, bug: Option<Bug>) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env("RUST_BACKTRACE", "0");
    if let Some(bug) = bug {
        command.env("MILLPOND_PLANT", bug.name());
    }
    command.output().expect("it runs")
}

/// Built and run by `.ci/mutants`.
#[test]
fn every_bug_between_two_calls_is_found() {
    assert!(remote::path().is_some(), "the stand-in driver is not built");
    for (bug, test) in FINDERS {
        let right = run(test, None);
        let said = String::from_utf8_lossy(&right.stdout);
        assert!(right.status.success() && said.contains("1 passed"), "right code fails {test}: {said}");
        let wrong = run(test, Some(bug));
        let said = String::from_utf8_lossy(&wrong.stdout);
        assert!(!wrong.status.success() && said.contains("1 failed"), "{bug} passes {test}: {said}");
    }
}
