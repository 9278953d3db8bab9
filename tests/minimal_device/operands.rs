//! The smallest programs with an operation on an array that has several operands of other streams, while another thread orders the streams that
//! it comes after: for both model checkers.

#![allow(unreachable_pub, reason = "a module of tests")]

use super::{Before, Minimal, joined};
use millpond::sync::checker::thread;
use millpond::units::MIB;
use millpond::{Allocator, Config, DeviceArray, Reuse, Stream, kernel};

/// An array that its stream has yet to fill, with no marker behind that.
fn filled<T: millpond::bytemuck::Pod>(
    gpu: &Allocator<Minimal>,
    s: &Stream<Minimal>,
) -> DeviceArray<T, Minimal> {
    let mut x = gpu.uninit(16, s).expect("the device has room");
    x.fill_bytes(1, s).expect("a fill");
    x
}

/// Behind what the library had queued on `s`, everything ends, and only then may a thread panic: a panic that passes drops of
/// ours would have them stop in the middle of a model.
fn judge(gpu: Allocator<Minimal>, s: Stream<Minimal>, of: &[u64], before: &Before, rest: impl Sized) {
    let pooled = gpu.bookkeeping().events_pooled;
    drop((rest, s, gpu));
    assert_eq!(pooled, 0, "nothing is complete, so that no event comes back: who takes one finds none");
    for id in of {
        assert!(before.contains_key(id), "an operation does not come after what its operand's stream fills");
    }
}

fn busy() -> Allocator<Minimal> {
    Allocator::new(Minimal::busy(64 * MIB), Config::default().reuse(Reuse::WithWaits)).expect("an allocator")
}

/// t copies what a fills into what b fills, while another thread keeps a and b in step.
pub fn in_step() {
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
    joined();
    judge(gpu, t, &of, &before, (from, to, a, b));
}

/// A thread has b wait for a, and t gather by what c fills from what b fills into what a fills; another one marks b, and has c
/// wait for that.
pub fn out_of_order() {
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
    joined();
    judge(gpu, t, &of, &before, (to, from, by, known, a, b, c));
}
