//! [`VirtualMemory`] on the simulated device: each driver call fails in turn, nothing is lost, and the error says what is left. It does not know
//! what an allocator does with mapped memory.

use millpond_driver::units::Addr;
use millpond_driver::{
    DriverError, DriverErrorKind, Fences, Mapping, Memory, NotMapped, PhysicalHandle, VirtualMemory,
};
use millpond_sim::{Call, Launch, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const UNIT: u64 = 2 << 20;

fn plus(addr: Addr, bytes: u64) -> Addr {
    Addr(addr.0 + bytes)
}

fn on(sim: &Sim) -> VirtualMemory<Sim> {
    VirtualMemory::new(sim.clone()).expect("the device has virtual memory")
}

fn clean(sim: &Sim) {
    assert_eq!((sim.leaks(), sim.drop_errors()), (Vec::new(), Vec::new()));
    sim.verdict().expect("lawful");
}

/// What an operation broke: the number in its panic.
fn broken<T>(operation: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(operation)).err().expect("a bug of the caller's is refused");
    let text = panic.downcast_ref::<String>().expect("a message");
    text.split_whitespace().nth(1).expect("a number").to_owned()
}

fn fails(sim: &Sim, call: Call) {
    sim.fail(call, 1, DriverErrorKind::Other);
}

#[test]
fn a_device_without_virtual_memory_says_so_and_makes_none() {
    let sim = Sim::new(1 << 30).virtual_memory(false);
    assert!(VirtualMemory::new(sim.clone()).is_none());
    let lacks = |error: DriverError| assert_eq!(error.kind, DriverErrorKind::NotSupported, "{error}");
    lacks(sim.reserve(UNIT, None).expect_err("no addresses"));
    lacks(sim.create(UNIT).expect_err("no handles"));
    clean(&sim);
}

#[test]
fn one_memory_at_two_places_and_all_of_it_goes_with_its_owner() {
    let sim = Sim::new(1 << 30);
    let memory = on(&sim);
    assert_eq!(memory.facts().granularity, UNIT);
    let base = memory.reserve(8 * UNIT, None).expect("addresses");
    let (here, there) = (base, plus(base, 4 * UNIT));
    let handle = memory.create(2 * UNIT).expect("memory");
    assert_eq!(handle.bytes(), 2 * UNIT);
    memory.map(handle, here).expect("mapped");
    memory.map(handle, there).expect("and again");
    let s = sim.stream().expect("a stream");
    sim.launch(&s, Launch::write_pattern(here, 2 * UNIT, 7)).expect("queued");
    sim.launch(&s, Launch::check_pattern(there, 2 * UNIT, 7)).expect("queued");
    sim.synchronize_stream(&s).expect("complete");
    memory.unmap(here).expect("unmapped");
    sim.launch(&s, Launch::check_pattern(there, 2 * UNIT, 7)).expect("queued");
    sim.synchronize_stream(&s).expect("complete");
    assert_eq!(format!("{memory:?}"), "VirtualMemory(4194304 B in 1 handles, 1 places, 1 reservations)");
    drop(memory);
    drop(s);
    clean(&sim);
}

/// Each failure of each method leaves what there was.
#[test]
fn a_call_that_fails_changes_nothing() {
    let sim = Sim::new(1 << 30);
    let memory = on(&sim);
    fails(&sim, Call::AddressReserve);
    memory.reserve(UNIT, None).expect_err("planted");
    fails(&sim, Call::Create);
    memory.create(UNIT).expect_err("planted");
    assert!(sim.leaks().is_empty());

    let (base, handle) =
        (memory.reserve(UNIT, None).expect("addresses"), memory.create(UNIT).expect("memory"));
    fails(&sim, Call::Map);
    let error = memory.map(handle, base).expect_err("planted");
    assert_eq!((error.error.call, error.stuck), ("cuMemMap", None));
    fails(&sim, Call::SetAccess);
    let error = memory.map(handle, base).expect_err("planted");
    assert_eq!((error.error.call, error.stuck), ("cuMemSetAccess", None));
    assert_eq!(sim.ledger().mappings, 0, "undone");

    memory.map(handle, base).expect("the same place, the same handle");
    fails(&sim, Call::Unmap);
    memory.unmap(base).expect_err("planted");
    assert_eq!(sim.ledger().mappings, 1, "still mapped");
    memory.unmap(base).expect("now");

    fails(&sim, Call::Release);
    memory.release(handle).expect_err("planted");
    memory.release(handle).expect("now");
    fails(&sim, Call::AddressFree);
    memory.unreserve(base).expect_err("planted");
    memory.unreserve(base).expect("now");
    assert!(sim.leaks().is_empty());
    drop(memory);
    clean(&sim);
}

/// Access fails, and so does the unmap: the place is stuck, which the error says, and an unmap frees it later.
#[test]
fn what_could_not_be_undone_is_in_the_error() {
    let sim = Sim::new(1 << 30);
    let memory = on(&sim);
    let base = memory.reserve(4 * UNIT, None).expect("addresses");
    let handle = memory.create(UNIT).expect("memory");
    memory.map(handle, base).expect("mapped");
    let second = plus(base, 2 * UNIT);
    fails(&sim, Call::SetAccess);
    fails(&sim, Call::Unmap);
    let error = memory.map(handle, second).expect_err("planted");
    let NotMapped { error: why, stuck: Some(stuck), .. } = &error else { panic!("stuck: {error}") };
    assert_eq!((why.call, stuck.call), ("cuMemSetAccess", "cuMemUnmap"));
    assert!(error.to_string().ends_with("unmap it later"), "{error}");

    assert_eq!(broken(|| memory.map(handle, second)), "V1", "the place is taken");
    memory.unmap(base).expect("the handle serves on at its first place, and may leave it");
    assert_eq!(broken(|| memory.release(handle)), "V2", "it is still mapped at the other");
    memory.unmap(second).expect("later");
    memory.map(handle, second).expect("free again");
    drop(memory);
    clean(&sim);
}

#[test]
fn a_wrong_call_never_reaches_the_driver() {
    let sim = Sim::new(1 << 30);
    let (memory, other) = (on(&sim), on(&sim));
    let base = memory.reserve(4 * UNIT, None).expect("addresses");
    let behind = memory.reserve(4 * UNIT, Some(plus(base, 4 * UNIT))).expect("addresses");
    assert_eq!(behind, plus(base, 4 * UNIT), "the reservations touch");
    let handle = memory.create(2 * UNIT).expect("memory");
    memory.map(handle, base).expect("mapped");
    let calls = sim.call_count();

    for (place, why) in [
        (plus(base, UNIT), "a part of it is mapped"),
        (plus(base, 3 * UNIT), "in two reservations"),
        (plus(behind, 3 * UNIT), "ends behind the last"),
        (Addr(base.0 - 2 * UNIT), "before the first"),
        (Addr(u64::MAX - UNIT), "no address"),
    ] {
        assert_eq!(broken(|| memory.map(handle, place)), "V1", "{why}");
    }
    assert_eq!(broken(|| memory.unmap(plus(base, UNIT))), "V1", "not its first address");
    assert_eq!(broken(|| other.unmap(base)), "V1", "another owner's");
    assert_eq!(broken(|| memory.unreserve(base)), "V1", "something is mapped there");
    assert_eq!(broken(|| other.unreserve(behind)), "V1", "another owner's");
    assert_eq!(broken(|| memory.release(handle)), "V2", "it is mapped");
    assert_eq!(broken(|| other.map(handle, base)), "V1", "another owner's addresses");
    assert_eq!(broken(|| other.release(handle)), "V2", "another owner's");
    assert_eq!(sim.call_count(), calls);

    memory.unmap(base).expect("unmapped");
    memory.release(handle).expect("released");
    assert_eq!(broken(|| memory.release(handle)), "V2", "once");
    assert_eq!(broken(|| memory.map(handle, base)), "V2", "it is gone");
    drop((memory, other));
    clean(&sim);
}

/// The driver call does its work and panics, as a callback in it may: what it changed is not used until it is unmapped, whether it is mapped or not, or
/// until the end.
#[test]
fn memory_in_a_call_that_panics_is_not_given_out() {
    let calls = [Call::Map, Call::SetAccess, Call::Unmap];
    for (call, unmaps) in calls.into_iter().flat_map(|call| [(call, false), (call, true)]) {
        let sim = Sim::new(1 << 30);
        let memory = on(&sim);
        let base = memory.reserve(2 * UNIT, None).expect("addresses");
        let handle = memory.create(UNIT).expect("memory");
        sim.panic_behind(call, 1);
        let panics = catch_unwind(AssertUnwindSafe(|| {
            memory.map(handle, base).expect("mapped");
            memory.unmap(base).expect("unmapped");
        }));
        assert!(panics.is_err());
        assert_eq!(broken(|| memory.map(handle, base)), "V1", "{call:?}");
        assert_eq!(broken(|| memory.release(handle)), "V2", "{call:?}");
        memory.map(handle, plus(base, UNIT)).expect("elsewhere");
        if unmaps {
            fails(&sim, Call::Unmap);
            assert!(memory.unmap(base).is_err(), "{call:?}: this says nothing about the place");
            assert_eq!(broken(|| memory.map(handle, base)), "V1", "{call:?}");
            memory.unmap(base).expect("unmapped, or never mapped");
            memory.map(handle, base).expect("mapped again");
        }
        drop(memory);
        clean(&sim);
    }
}

/// While one thread maps or unmaps at a place, no other can.
#[test]
fn a_place_is_changed_by_one_thread() {
    let sim = Sim::new(1 << 30);
    let memory = Arc::new(on(&sim));
    let base = memory.reserve(UNIT, None).expect("addresses");
    let handle = memory.create(UNIT).expect("memory");
    for call in [Call::Map, Call::SetAccess, Call::Unmap] {
        let other = Arc::clone(&memory);
        sim.meanwhile(call, 1, move || assert_eq!(broken(|| other.unmap(base)), "V3", "{call:?}"));
    }
    memory.map(handle, base).expect("mapped");
    memory.unmap(base).expect("unmapped");
    drop(memory);
    clean(&sim);
}

/// A handle whose release panics may be another's by now, so it is never released again.
#[test]
fn a_release_that_panics_is_not_repeated() {
    let sim = Sim::new(1 << 30);
    let memory = on(&sim);
    let handle = memory.create(UNIT).expect("memory");
    sim.panic_behind(Call::Release, 1);
    assert!(catch_unwind(AssertUnwindSafe(|| memory.release(handle))).is_err());
    drop(memory);
    assert_eq!(sim.ledger().calls_of(Call::Release), 1);
    clean(&sim);
}

/// What the device refuses at the end is left and reported; nothing is unreserved under a mapping.
#[test]
fn the_end_reports_what_the_driver_refuses() {
    for (call, left) in [(Call::Unmap, 3), (Call::Release, 1), (Call::AddressFree, 1)] {
        let sim = Sim::new(1 << 30);
        let memory = on(&sim);
        let base = memory.reserve(2 * UNIT, None).expect("addresses");
        let handle = memory.create(UNIT).expect("memory");
        memory.map(handle, base).expect("mapped");
        fails(&sim, call);
        drop(memory);
        let errors = sim.deferred();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].call, call.name());
        assert_eq!(sim.leaks().len(), left, "{call:?}: {:?}", sim.leaks());
    }
}

/// What is called, in an order that has every call and every undo. Errors are kept and the program goes on with what it has.
fn program(memory: &VirtualMemory<Sim>) -> Vec<String> {
    let mut said = Vec::new();
    let mut keep = |error: String| said.push(error);
    let base = memory.reserve(8 * UNIT, None).map_err(|e| keep(e.to_string())).ok();
    let handles: Vec<PhysicalHandle> =
        [1, 2].iter().filter_map(|n| memory.create(n * UNIT).map_err(|e| keep(e.to_string())).ok()).collect();
    let Some(base) = base else { return said };
    let mut mapped = Vec::new();
    for (n, &handle) in handles.iter().enumerate() {
        for place in [plus(base, 2 * UNIT * n as u64), plus(base, 4 * UNIT + 2 * UNIT * n as u64)] {
            match memory.map(handle, place) {
                Ok(()) => mapped.push(place),
                Err(e) => {
                    mapped.extend(e.stuck.is_some().then_some(place));
                    keep(e.to_string());
                }
            }
        }
    }
    let mut places = mapped.len();
    for place in mapped {
        // Again, as a draining slot is.
        let gone = memory.unmap(place).or_else(|e| {
            keep(e.to_string());
            memory.unmap(place)
        });
        places -= usize::from(gone.map_err(|e| keep(e.to_string())).is_ok());
    }
    if places == 0 {
        for handle in handles {
            memory.release(handle).unwrap_or_else(|e| keep(e.to_string()));
        }
        memory.unreserve(base).unwrap_or_else(|e| keep(e.to_string()));
    }
    said
}

/// Every pair of calls fails; each failure is reported once, and the end leaves nothing.
#[test]
fn every_call_fails_and_nothing_is_left() {
    let good = Sim::new(1 << 30);
    assert_eq!(program(&on(&good)), Vec::<String>::new());
    let calls = good.call_count();
    assert_eq!(calls, 1 + 2 + 4 * 2 + 4 + 2 + 1);
    for first in 1..=calls {
        for second in first..=calls + 4 {
            let sim = Sim::new(1 << 30);
            sim.fail_call(first, DriverErrorKind::Other);
            sim.fail_call(second, DriverErrorKind::OutOfMemory);
            let memory = on(&sim);
            let said = program(&memory);
            assert!(!said.is_empty(), "call {first} failed and no error was reported");
            sim.clear_faults();
            drop(memory);
            assert_eq!(
                (sim.leaks(), sim.drop_errors()),
                (Vec::new(), Vec::new()),
                "calls {first} and {second}: {said:?}"
            );
        }
    }
}
