//! The tests of the CUDA backend against planted bugs of its own, over the stand-in driver: each bug is found by each of
//! the tests that are listed with it here, and right code passes them.
//!
//! A bug may hang or abort the process in which it is planted, and a process has one driver. So each test runs in a process of
//! its own, of the executables that `.ci/mutants` builds and names in `MILLPOND_CUDA_TESTS`. This file does not know what the
//! tests do.

#![cfg(all(millpond_mutants, feature = "cuda"))]

use millpond::mutant::Bug;
use std::io::Write as _;
use std::process::Command;

/// Which tests find which bug, as `executable::test`.
const KILLERS: &[(Bug, &[&str])] = &[
    (
        Bug::CudaRecordElsewhere,
        &["on_fake_cuda::early::order::a_wait_orders", "cuda_backend::every_kind_of_stream_has_one_identity"],
    ),
    (Bug::CudaWaitDropped, &["on_fake_cuda::early::order::a_later_record_moves_no_wait"]),
    (
        Bug::CudaPendingDone,
        &[
            "on_fake_cuda::early::order::a_later_record_moves_no_wait",
            "cuda_backend::a_gate_holds_its_stream_until_it_is_opened_or_its_time_is_over",
        ],
    ),
    (Bug::CudaErrorPending, &["on_fake_cuda::early::capture::calls_outside_a_relaxed_batch_end_it"]),
    (
        Bug::CudaNeverRelaxed,
        &[
            "on_fake_cuda::early::capture::relaxed_batches_break_no_capture",
            "on_fake_cuda::early::capture::a_capture_by_other_code_survives_the_allocator",
        ],
    ),
    (Bug::CudaStaysRelaxed, &["on_fake_cuda::early::capture::calls_outside_a_relaxed_batch_end_it"]),
    (
        Bug::CudaIgnoresCaptures,
        &[
            "cuda_backend::a_capture_by_other_code_survives_beside_a_growing_trimming_waiting_allocator",
            "cudarc_types::random::programs_that_capture",
        ],
    ),
    (
        Bug::CudaFirstSuspect,
        &[
            "cuda_backend::a_capture_on_any_known_stream_survives_a_context_wide_marker",
            "cudarc_types::random::programs_that_capture",
        ],
    ),
    (
        Bug::CudaWaitsCaptured,
        &[
            "cudarc_types::random::programs_that_capture_beside_streams_without_references",
            "cudarc_types::expected::no_call_of_cudarcs_on_an_array_waits_for_the_device",
            "cudarc_types::expected::no_look_at_a_pinned_array_waits_for_the_device",
        ],
    ),
    (
        Bug::CudaHandleIsId,
        &[
            "on_fake_cuda::early::driver_behaviour::handle_values_come_back_and_ids_do_not",
            "cuda_backend::every_kind_of_stream_has_one_identity",
        ],
    ),
    (Bug::CudaAnyThread, &["cuda_backend::every_kind_of_stream_has_one_identity"]),
    (
        Bug::CudaContextLeft,
        &["cuda_backend::the_last_reference_to_an_adopted_stream_leaves_no_context_behind"],
    ),
    (
        Bug::CudaDirtyPages,
        &[
            "cuda_backend::memory_is_aligned_and_wrong_frees_are_refused_in_words",
            "fake_faults::registered::large_segments_are_registered_pages",
        ],
    ),
    (Bug::CudaRegisterFails, &["fake_faults::registered::a_refused_registration_is_an_ordinary_allocation"]),
    (Bug::CudaUnregisterIgnored, &["fake_faults::registered::a_registration_that_cannot_end_stays"]),
    (Bug::CudaScrubbedNot, &["cuda_backend::options_say_where_segments_come_from_and_wipe_them"]),
    (Bug::CudaPartFreed, &["cuda_backend::memory_is_aligned_and_wrong_frees_are_refused_in_words"]),
    (
        Bug::CudaMappingKept,
        &[
            "cuda_backend::a_handle_keeps_its_contents_from_address_to_address",
            "on_fake_cuda::early::mapping::contents_survive_a_move",
        ],
    ),
    (
        Bug::CudaBorrowEndsEarly,
        &[
            "cudarc_types::hazard_1_both_readers_are_waited_for",
            "cudarc_types::random::programs_of_cudarcs_calls_need_no_rules",
        ],
    ),
    (
        Bug::CudaBlockingStream,
        &["on_fake_cuda::early::order::the_legacy_stream_waits_for_blocking_streams_only"],
    ),
    (Bug::CudaPinnedUnrefused, &["cuda_backend::no_safe_call_reaches_pinned_memory"]),
    (
        Bug::CudaBorrowUnseen,
        &[
            "cudarc_types::hazard_1_both_readers_are_waited_for",
            "cudarc_types::hazard_2_a_reader_whose_stream_was_dropped_is_waited_for",
            "cudarc_types::random::programs_of_cudarcs_calls_need_no_rules",
        ],
    ),
    (
        Bug::CudaBorrowSealed,
        &[
            "cudarc_types::what_is_queued_late_under_a_borrow_is_waited_for",
            "cudarc_types::random::programs_of_cudarcs_calls_need_no_rules",
        ],
    ),
    (
        Bug::CudaBorrowForgotten,
        &[
            "cudarc_types::an_array_that_many_streams_read_has_few_uses",
            "cudarc_types::random::programs_on_other_threads_with_allocators_that_end",
        ],
    ),
    (
        Bug::CudaPooledPlain,
        &[
            "cudarc_types::a_pooled_slice_comes_back_behind_readers_that_cudarc_forgot",
            "cudarc_types::random::programs_of_cudarcs_calls_need_no_rules",
        ],
    ),
    (
        Bug::CudaPooledUntracked,
        &[
            "cudarc_types::aliases_and_slices::readers_of_another_value_of_the_context_are_tracked",
            "cudarc_types::random::programs_of_cudarcs_calls_need_no_rules",
        ],
    ),
    (
        Bug::CudaOneReader,
        &[
            "cudarc_types::readers::all_readers_of_a_pooled_slice_are_waited_for",
            "cudarc_types::readers::readers_at_once_of_a_pooled_slice_are_waited_for",
            "cudarc_types::random::programs_of_cudarcs_calls_need_no_rules",
            "cudarc_types::shared::programs_of_threads_that_share",
        ],
    ),
    (
        Bug::CudaReaderReplaced,
        &[
            "cudarc_types::readers::readers_that_are_gone_are_waited_for_and_leave_nothing",
            "cudarc_types::shared::programs_of_threads_that_share",
        ],
    ),
    (
        Bug::CudaLaunchApart,
        &[
            "cudarc_types::readers::all_readers_of_a_pooled_slice_are_waited_for",
            "cudarc_types::random::programs_on_other_threads_with_allocators_that_end",
        ],
    ),
    (
        Bug::CudaPhantomStream,
        &[
            "cudarc_types::aliases_and_slices::a_slice_that_fails_leaves_the_owners_first_stream_its_wait",
            "cudarc_types::random::programs_on_other_threads_with_allocators_that_end",
        ],
    ),
    (
        Bug::CudaBorrowForEver,
        &[
            "cudarc_types::aliases_and_slices::what_cannot_be_marked_is_over_behind_a_refused_write_and_a_synchronise",
            "cudarc_types::aliases_and_slices::what_cannot_be_marked_is_read_behind_a_refused_read_and_a_synchronise",
            "cudarc_types::expected::what_was_borrowed_at_home_is_over_behind_a_refusal_and_a_synchronise",
            "cudarc_types::expected::no_look_at_a_pinned_array_waits_for_the_device",
        ],
    ),
    (
        Bug::CudaOtherContext,
        &["cudarc_types::adopted::a_stream_of_another_context_of_the_same_device_is_refused"],
    ),
    (
        Bug::CudaStoreShared,
        &["cudarc_types::aliases_and_slices::an_error_that_is_put_back_is_not_another_threads"],
    ),
    (
        Bug::CudaSliceCaptured,
        &[
            "cudarc_types::aliases_and_slices::a_pooled_slice_is_not_made_on_a_stream_that_captures",
            "cudarc_types::random::programs_that_capture",
        ],
    ),
    (
        Bug::CudaAnchorEach,
        &[
            "cudarc_types::aliases_and_slices::slices_of_a_stream_share_what_they_need_in_its_value",
            "cudarc_types::random::programs_of_cudarcs_calls_need_no_rules",
        ],
    ),
    (
        Bug::CudaPooledHome,
        &[
            "cudarc_types::aliases_and_slices::a_pooled_slices_end_leaves_a_capture_on_its_stream_alone",
            "cudarc_types::random::programs_that_capture",
        ],
    ),
    (
        Bug::CudaAliasUnseen,
        &["cudarc_types::a_capturing_stream_gets_no_address", "cudarc_types::random::programs_that_capture"],
    ),
    (
        Bug::CudaHostDefaultRead,
        &[
            "cudarc_types::host::a_copy_to_the_host_on_a_default_stream_is_waited_for_by_any_look",
            "cudarc_types::random::programs_of_cudarcs_calls_need_no_rules",
        ],
    ),
];

/// Runs one test with a bug planted or none, and returns whether it passed, and its output. It panics if there is no such test.
fn run(executables: &[String], named: &str, bug: Option<Bug>) -> (bool, String) {
    let (executable, test) = named.split_once("::").expect("executable::test");
    let is = |path: &&String| {
        let file = std::path::Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.strip_prefix(executable).is_some_and(|rest| rest.starts_with('-'))
    };
    let path =
        executables.iter().find(is).unwrap_or_else(|| panic!("{executable} is not among {executables:?}"));
    let mut command = Command::new(path);
    command
        .args(["--exact", test, "--test-threads", "1"])
        .env_remove("MILLPOND_PLANT")
        .env("RUST_BACKTRACE", "0");
    if let Some(bug) = bug {
        // Random programs end with the first that finds the bug. Of an ordinary run's hundred none finds it once in dozens of runs, of five hundred
        // once in hundreds.
        command.env("MILLPOND_PLANT", bug.name()).env("MILLPOND_CASES", "5000");
    }
    let output = command.output().expect("an executable of .ci/mutants");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("running 1 test\n"), "there is no test {named}:\n{said}");
    assert!(!said.contains("SKIPPED"), "{named} found no driver:\n{said}");
    (output.status.success(), said)
}

#[test]
fn every_bug_of_the_backend_is_found() {
    let unlisted: Vec<_> = Bug::CUDA.iter().filter(|b| KILLERS.iter().all(|(k, _)| k != *b)).collect();
    assert!(unlisted.is_empty(), "no test is listed for {unlisted:?}");
    let Ok(executables) = std::env::var("MILLPOND_CUDA_TESTS") else {
        // Past the test harness, which hides what a passing test prints.
        let _ = writeln!(std::io::stderr(), "SKIPPED: bugs of the CUDA backend, which .ci/mutants plants");
        return;
    };
    let executables: Vec<String> = executables.split(':').map(str::to_owned).collect();
    let mut missed = Vec::new();
    let mut tests: Vec<&str> = KILLERS.iter().flat_map(|(_, tests)| *tests).copied().collect();
    tests.sort_unstable();
    tests.dedup();
    for test in tests {
        let (passed, said) = run(&executables, test, None);
        if !passed {
            missed.push(format!("right code fails {test}:\n{said}"));
        }
    }
    let mut table = String::from("\n| bug | what is wrong | found by |\n|---|---|---|\n");
    for (bug, tests) in KILLERS {
        for test in *tests {
            if run(&executables, test, Some(*bug)).0 {
                missed.push(format!("{bug} ({}) passes {test}", bug.what()));
            }
        }
        let tests: Vec<_> = tests.iter().map(|t| format!("`{t}`")).collect();
        table += &format!("| {bug} | {} | {} |\n", bug.what(), tests.join(", "));
    }
    let _ = std::io::stderr().write_all(table.as_bytes());
    assert!(missed.is_empty(), "{} misses:\n{}", missed.len(), missed.join("\n"));
}
