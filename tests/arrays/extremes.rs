//! Numbers at the ends of what can be counted, where an array or a view takes them: a panic is the documented one.

use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config};
use millpond_sim::Sim;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn device() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(GIB).pinned_capacity(64 * MIB);
    (sim.clone(), Allocator::new(sim, Config::default()).unwrap())
}

/// What a call comes to that panics where a range does not lie in what it names; `None` there.
fn lies<R>(call: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(call))
        .map_err(|panic| {
            let said = panic.downcast_ref::<String>().map_or("", |said| said);
            assert!(said.contains(" does not lie in 0.."), "another panic: {said:?}");
        })
        .ok()
}

/// The last index is behind no element, so that a range up to and with it lies in nothing. Both ends were taken for the number before: of rows
/// without elements, and of elements without bytes, there may be as many as can be counted, and this range gave them all.
#[test]
fn no_range_holds_the_last_index() {
    let (_sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let x = gpu.uninit::<u8>([usize::MAX, 0], &s).unwrap();
    assert!(lies(|| x.rows(0..=usize::MAX)).is_none());
    assert!(lies(|| x.rows((Bound::Excluded(usize::MAX), Bound::Unbounded))).is_none());
    assert_eq!(x.rows(..).shape().lengths(), [usize::MAX, 0]);
    let y = gpu.uninit::<()>(usize::MAX, &s).unwrap();
    assert!(lies(|| y.slice(..=usize::MAX)).is_none());
    assert_eq!(y.slice(..usize::MAX).len(), usize::MAX);
}
