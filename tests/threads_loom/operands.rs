//! Operations on arrays with several operands, while another thread orders the streams that they come after.
//!
//! `tests/threads_shuttle/operands.rs` runs the same programs on the simulated device, in every schedule with two preemptions (a
//! switch that no thread asked for); its one lock, which every call takes, makes more too many. Here a stream has a lock of its
//! own, as a driver's streams have, and what commutes is tried in one order: every schedule with three preemptions, and with
//! four by `MILLPOND_PREEMPTIONS=4`. Loom leaves out schedules within its bound that it takes for the same as others, and
//! finds with three what shuttle finds with one.

use super::toy::{Before, Toy};
use super::{explore, is_caught_within};
use loom::thread;
use millpond::mutant::{self, Bug};
use millpond::units::MIB;
use millpond::{Allocator, Config, DeviceArray, Stream, kernel};

/// An array that its stream has yet to fill, with no marker behind that.
fn filled<T: millpond::bytemuck::Pod>(gpu: &Allocator<Toy>, s: &Stream<Toy>) -> DeviceArray<T, Toy> {
    let mut x = gpu.uninit(16, s).expect("the device has room");
    x.fill_bytes(1, s).expect("a fill");
    x
}

/// Behind what the library had queued on `s`, everything ends, and only then somebody may complain: a panic that passes drops of
/// ours would have them stop in the middle of a model.
fn judge(gpu: Allocator<Toy>, s: Stream<Toy>, of: &[u64], before: &Before, rest: impl Sized) {
    drop((rest, s, gpu));
    for id in of {
        assert!(before.contains_key(id), "an operation does not come after what its operand's stream fills");
    }
}

fn busy() -> Allocator<Toy> {
    Allocator::new(Toy::busy(64 * MIB), Config::default()).expect("an allocator")
}

/// t copies what a fills into what b fills, while another thread keeps a and b in step.
fn in_step() {
    let gpu = busy();
    let (a, b, t) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let (from, mut to) = (filled::<u8>(&gpu, &a), filled::<u8>(&gpu, &b));
    let (one, other) = (a.clone(), b.clone());
    let keeps = thread::spawn(move || {
        other.wait_stream(&one).unwrap();
        one.wait_stream(&other).unwrap();
    });
    to.copy_from_device(&from, &t).unwrap();
    let (before, of) = (t.native().before(), [a.id().0, b.id().0]);
    keeps.join().unwrap();
    judge(gpu, t, &of, &before, (from, to, a, b));
}

/// A thread has b wait for a, and t gather by what c fills from what b fills into what a fills; another one marks b, and has c
/// wait for that.
fn out_of_order() {
    let gpu = busy();
    let (a, b, c, t) =
        (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let (mut to, from, by) = (filled::<u8>(&gpu, &a), filled::<u8>(&gpu, &b), filled::<u32>(&gpu, &c));
    let known = a.record().unwrap();
    let (marked, waits) = (b.clone(), c.clone());
    let marks = thread::spawn(move || waits.wait(&marked.record().unwrap()).unwrap());
    b.wait(&known).unwrap();
    drop(b.record().unwrap());
    kernel::gather(&from, &by, &mut to, &t).unwrap();
    let (before, of) = (t.native().before(), [a.id().0, b.id().0, c.id().0]);
    marks.join().unwrap();
    judge(gpu, t, &of, &before, (to, from, by, known, a, b, c));
}

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
