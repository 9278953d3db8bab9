//! Memory of the program's own as pinned arrays: it is copied from and into where it is, stays as long as a copy may use it, and its registration
//! ends only where the host may wait for the device.

use super::clean;
use millpond::driver::StableMemory;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DriverErrorKind, Error, RegisteredArray, Trim, transfer};
use millpond_sim::{Call, Schedule, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn late() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    (sim, gpu)
}

fn registered<O: StableMemory<Item: bytemuck::Pod>>(
    gpu: &Allocator<Sim>,
    owner: O,
) -> RegisteredArray<O, Sim> {
    gpu.register(owner).map_err(|(_, e)| e).unwrap()
}

fn numbers(n: u32) -> Vec<u32> {
    (0..n).collect()
}

/// An owner that says when it is dropped.
struct Watched(Vec<u32>, Arc<AtomicBool>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

#[allow(unsafe_code, reason = "an owner of the test's own")]
// SAFETY: the vector is private and only its elements are given out.
unsafe impl StableMemory for Watched {
    type Item = u32;
    fn elements(&self) -> &[u32] {
        &self.0
    }
    fn elements_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }
}

fn watched() -> (Watched, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    (Watched(numbers(3000), Arc::clone(&gone)), gone)
}

#[test]
fn an_owner_goes_through_a_copy_and_comes_back() {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let values = numbers(5000);
    let at = values.as_ptr();
    let mut array = registered(&gpu, values);
    array[7] = 70;
    assert_eq!((array.as_ptr(), array.shape().lengths()), (at, &[5000][..]));
    assert_eq!(gpu.report().pinned_host.unwrap().registered, 20_000);
    let (x, sent) = gpu.array_from_pinned(array, &s).unwrap();
    let values = sent.wait().unwrap().into_inner().map_err(|(_, e)| e).unwrap();
    assert_eq!((values.as_ptr(), values[7]), (at, 70), "nothing was copied on the host");
    assert_eq!(x.to_vec(&s).unwrap(), values);
    let boxed = registered(&gpu, values.into_boxed_slice());
    assert_eq!(boxed.owner().len(), 5000);
    drop((boxed, x, s, gpu));
    clean(&sim);
    assert_eq!(sim.ledger().bytes_pinned, 0);
}

/// A scope copies both ways, and the target is the program's own vector.
#[test]
fn a_scope_borrows_it() {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let (from, mut to) = (registered(&gpu, numbers(1000)), registered(&gpu, vec![0_u32; 1000]));
    let mut x = gpu.zeros::<u32>(1000, &s).unwrap();
    transfer::scope(&s, |copies| {
        copies.upload(&mut x, from.view()).unwrap();
        copies.download(&x, to.view_mut()).unwrap();
    })
    .unwrap();
    assert_eq!(to[..], from[..]);
    let to = to.into_inner().map_err(|(_, e)| e).unwrap();
    assert_eq!(to, numbers(1000));
    drop((from, x, s, gpu));
    clean(&sim);
}

/// A token that is dropped leaves the owner to the copy, and no request and no drop ends a registration: the trim does.
#[test]
fn what_is_dropped_stays_until_a_trim() {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let (owner, gone) = watched();
    let (x, sent) = gpu.array_from_pinned(registered(&gpu, owner), &s).unwrap();
    drop(sent);
    assert!(!gone.load(Ordering::Relaxed), "the copy has not run");
    gpu.synchronize().unwrap();
    let pinned = gpu.alloc_pinned(MIB).unwrap();
    assert_eq!(x.to_vec(&s).unwrap(), numbers(3000));
    let ends = || sim.ledger().calls_of(Call::MemHostUnregister);
    assert_eq!((ends(), gone.load(Ordering::Relaxed)), (0, false), "a request would wait for the device");
    assert_eq!(gpu.report().pinned_host.unwrap().registered, 12_000);
    gpu.trim(Trim::All).unwrap();
    assert_eq!((ends(), gone.load(Ordering::Relaxed)), (1, true));
    assert_eq!(gpu.report().pinned_host.unwrap().registered, 0);
    drop((pinned, x, s, gpu));
    clean(&sim);
}

/// The end of the allocator ends what was left; an array that outlives it ends its own.
#[test]
fn the_end_of_the_allocator_ends_registrations() {
    let (sim, gpu) = late();
    let (first, first_gone) = watched();
    let (second, second_gone) = watched();
    drop(registered(&gpu, first));
    let second = registered(&gpu, second);
    drop(gpu);
    assert!(first_gone.load(Ordering::Relaxed) && !second_gone.load(Ordering::Relaxed));
    assert_eq!(second[5], 5);
    drop(second);
    assert!(second_gone.load(Ordering::Relaxed));
    assert_eq!(sim.ledger().calls_of(Call::MemHostUnregister), 2);
    clean(&sim);
}

/// What the driver refuses changes nothing: the owner comes back, or the array.
#[test]
fn refusals_give_back_what_was_passed() {
    let (sim, gpu) = late();
    for kind in [DriverErrorKind::OutOfMemory, DriverErrorKind::NotSupported, DriverErrorKind::Other] {
        sim.fail(Call::MemHostRegister, 1, kind);
        let (owner, e) = gpu.register(numbers(100)).expect_err("the driver refuses");
        assert!(matches!(e, Error::Driver(e) if e.kind == kind));
        assert_eq!(owner, numbers(100));
    }
    let (owner, gone) = watched();
    let array = registered(&gpu, owner);
    sim.fail(Call::MemHostUnregister, 1, DriverErrorKind::Other);
    let (array, _) = array.into_inner().err().expect("the driver refuses");
    assert_eq!((array[9], gpu.report().pinned_host.unwrap().registered), (9, 12_000));
    drop(array);
    sim.fail(Call::MemHostUnregister, 1, DriverErrorKind::Other);
    gpu.trim(Trim::All).unwrap_err();
    assert!(!gone.load(Ordering::Relaxed), "it is still the device's");
    gpu.trim(Trim::All).unwrap();
    assert!(gone.load(Ordering::Relaxed));
    // At the very end a refusal leaves the owner where it is, for good.
    let (owner, gone) = watched();
    drop(registered(&gpu, owner));
    sim.fail(Call::MemHostUnregister, 1, DriverErrorKind::Other);
    drop(gpu);
    assert!(!gone.load(Ordering::Relaxed), "the device has the memory");
    assert_eq!(sim.ledger().bytes_pinned, 12_000);
}

/// A range is registered once; nothing at all is registered for no bytes.
#[test]
fn nothing_is_registered_twice_or_for_nothing() {
    struct Twice(&'static mut [u32]);
    #[allow(unsafe_code, reason = "an owner of the test's own")]
    // SAFETY: the elements are leaked: they stay.
    unsafe impl StableMemory for Twice {
        type Item = u32;
        fn elements(&self) -> &[u32] {
            self.0
        }
        fn elements_mut(&mut self) -> &mut [u32] {
            self.0
        }
    }
    let (sim, gpu) = late();
    let all = Box::leak(numbers(1000).into_boxed_slice());
    let at = all.as_mut_ptr();
    let first = registered(&gpu, Twice(all));
    #[allow(unsafe_code, reason = "the same memory twice")]
    // SAFETY: plain numbers, which `first` does not touch meanwhile.
    let again = unsafe { std::slice::from_raw_parts_mut(at.add(10), 10) };
    let (_, e) = gpu.register(Twice(again)).expect_err("it is registered");
    assert!(e.to_string().contains("overlap"), "{e}");
    drop(first);
    let calls = || sim.ledger().calls_of(Call::MemHostRegister);
    let before = calls();
    let empty = registered(&gpu, Vec::<u64>::new());
    assert_eq!((calls(), empty.len()), (before, 0));
    let s = gpu.stream().unwrap();
    let (x, sent) = gpu.array_from_pinned(empty, &s).unwrap();
    assert!(sent.wait().unwrap().into_inner().map_err(|(_, e)| e).unwrap().is_empty());
    drop((x, s, gpu));
    clean(&sim);
}

/// A driver that panics where a registration ends may have ended it or not: the owner stays.
#[test]
fn a_panicking_driver_leaks_the_owner() {
    let (sim, gpu) = late();
    let (owner, gone) = watched();
    let array = registered(&gpu, owner);
    sim.panic_behind(Call::MemHostUnregister, 1);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| array.into_inner().is_ok()));
    assert!(ended.is_err() && !gone.load(Ordering::Relaxed));
}

/// On a lost context nothing is registered, and no call is made once it is known.
#[test]
fn a_lost_context_registers_nothing() {
    let (sim, gpu) = late();
    sim.lose_context();
    for calls in [1, 1] {
        let (owner, e) = gpu.register(numbers(10)).expect_err("it is lost");
        assert!(matches!(e, Error::Driver(e) if e.is_context_lost()));
        assert_eq!((owner, sim.ledger().calls_of(Call::MemHostRegister)), (numbers(10), calls));
    }
}
