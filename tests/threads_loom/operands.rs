//! Operations on arrays with several operands, while another thread orders the streams that they come after.
//!
//! `tests/threads_shuttle/operands.rs` runs the same programs on the simulated device, in every schedule with two preemptions (a
//! switch that no thread asked for); its one lock, which every call takes, makes more too many. Here a stream has a lock of its
//! own, as a driver's streams have, and what commutes is tried in one order: every schedule with three preemptions, and with
//! four by `MILLPOND_PREEMPTIONS=4`. Loom leaves out schedules within its bound that it takes for the same as others, and
//! finds with three what shuttle finds with one.

use super::minimal_device::operands::{in_step, out_of_order};
use super::{explore, is_caught_within};
use millpond::mutant::{self, Bug};

/// Whether a bug is found among as many schedules as right code is tried in. All threads of a program are one thread of the machine, for
/// which it is planted.
fn convicts(bug: Bug, program: fn()) -> bool {
    let _planted = mutant::plant(Some(bug));
    is_caught_within(preemptions(), program)
}

/// `MILLPOND_PREEMPTIONS=5` tries more schedules than an ordinary run, `none` all.
fn preemptions() -> Option<usize> {
    match std::env::var("MILLPOND_PREEMPTIONS") {
        Err(_) => Some(3),
        Ok(all) if all == "none" => None,
        Ok(n) => Some(n.parse().expect("a number, or none")),
    }
}

#[test]
fn an_operation_waits_for_two_streams_that_are_kept_in_step() {
    explore(preemptions(), in_step);
}

#[test]
fn an_operation_waits_for_three_streams_whose_markers_are_out_of_order() {
    explore(preemptions(), out_of_order);
}

#[test]
fn waits_that_are_left_out_are_found() {
    for bug in [Bug::CoverOther, Bug::ArrayCoverAny] {
        assert!(convicts(bug, in_step), "{bug}");
    }
    for bug in [Bug::CoverOther, Bug::CoverTie] {
        assert!(convicts(bug, out_of_order), "{bug}");
    }
}
