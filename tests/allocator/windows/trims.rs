//! What goes back to the device, whichever call refuses or panics: by a trim, a lower limit, or a request that needs room.

use super::{config, taken};
use crate::rig::{all_clean, late, on, write};
use millpond::trace::{Event, Ring};
use millpond::units::{Addr, GIB, MIB};
use millpond::{Allocation, Allocator, DriverErrorKind as Kind, Error, Limit, Reuse, Stream, Trim};
use millpond_sim::{Call, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn panics(f: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(f)).is_err(), "no panic");
}

/// Of `blocks` of 2 MiB, of which each lies in a handle of its own, every other one lives; the work of the others is complete.
fn every_other(gpu: &Allocator<Sim>, s: &Stream<Sim>, blocks: usize) -> Vec<Allocation<Sim>> {
    let all: Vec<_> = (0..blocks).map(|_| gpu.alloc(2 * MIB, s).unwrap()).collect();
    let live = all.into_iter().enumerate().filter_map(|(n, x)| (n % 2 == 1).then_some(x)).collect();
    gpu.synchronize().unwrap();
    live
}

/// A lowered limit gives handles back between live allocations, no more than it needs, and what is left over when nothing idle is left is refused later.
#[test]
fn a_lowered_limit_gives_handles_back() {
    for (limit, left) in [(50, 50), (49, 48), (32, 32), (8, 32)] {
        let sim = late();
        let gpu = on(&sim, config());
        let s = gpu.stream().unwrap();
        let live = every_other(&gpu, &s, 32);
        assert_eq!(taken(&sim, &gpu), 64 * MIB);
        gpu.set_limit(Limit::Bytes(limit * MIB)).unwrap();
        assert_eq!((taken(&sim, &gpu), gpu.report().limit), (left * MIB, Some(limit * MIB)));
        assert_eq!(gpu.report().releases, (64 - left) / 2);
        assert!(matches!(gpu.alloc(33 * MIB, &s), Err(Error::OutOfMemory(_))));
        assert!(taken(&sim, &gpu) <= left * MIB);
        drop((live, s));
        all_clean(&sim, gpu);
    }
}

/// A lowered limit gives back spare handles and plain segments too.
#[test]
fn a_lowered_limit_gives_everything_idle_back() {
    let sim = late();
    let gpu = on(&sim, config().limit(Limit::Bytes(7 * MIB)));
    let s = gpu.stream().unwrap();
    // The last has less room than a unit.
    let all = [4, 2, 1].map(|mib| gpu.alloc(mib * MIB, &s).unwrap());
    drop(all);
    gpu.synchronize().unwrap();
    for nth in 1..=6 {
        sim.fail(Call::Release, nth, Kind::Other);
    }
    gpu.set_limit(Limit::Bytes(6 * MIB)).unwrap();
    assert_eq!(taken(&sim, &gpu), 6 * MIB, "the handles are spare, the segment is gone");
    gpu.set_limit(Limit::Bytes(0)).unwrap();
    assert_eq!(taken(&sim, &gpu), 0);
    drop(s);
    all_clean(&sim, gpu);
}

/// The driver refuses to unmap: the limit falls only if what it unmaps is enough, and otherwise it is what it was. Nothing is lost.
#[test]
fn a_limit_that_cannot_be_lowered_stays() {
    for refused in 0..=8 {
        let sim = late();
        let gpu = on(&sim, config().limit(Limit::Bytes(GIB)));
        let s = gpu.stream().unwrap();
        let live = every_other(&gpu, &s, 16);
        for nth in 1..=refused {
            sim.fail(Call::Unmap, nth, Kind::Other);
        }
        // Of the eight idle handles, six have to go.
        let lowered = gpu.set_limit(Limit::Bytes(20 * MIB));
        let gone = 6.min(8 - refused);
        assert_eq!(taken(&sim, &gpu), (32 - 2 * gone) * MIB, "{refused} refused");
        assert_eq!(lowered.is_ok(), gone == 6, "{refused} refused");
        let limit = if lowered.is_ok() { 20 * MIB } else { GIB };
        assert_eq!(gpu.report().limit, Some(limit), "{refused} refused");
        gpu.set_limit(Limit::Bytes(16 * MIB)).unwrap();
        assert_eq!(taken(&sim, &gpu), 16 * MIB, "{refused} refused");
        drop((live, s));
        all_clean(&sim, gpu);
    }
}

/// A trim goes on behind a handle that the driver does not unmap, to other handles, plain segments and pinned memory; its error is the first.
#[test]
fn a_trim_goes_on_behind_a_refusal() {
    for nth in 1..=4 {
        let sim = late();
        let gpu = on(&sim, config().limit(Limit::Bytes(9 * MIB)));
        let s = gpu.stream().unwrap();
        let all = [8, 1].map(|mib| gpu.alloc(mib * MIB, &s).unwrap());
        assert_eq!(sim.ledger().calls_of(Call::MemAlloc), 1, "a plain segment in the room that is left");
        drop((all, gpu.alloc_pinned(MIB).unwrap()));
        gpu.synchronize().unwrap();
        sim.fail(Call::Unmap, nth, Kind::Other);
        if nth > 1 {
            sim.fail(Call::Unmap, nth - 1, Kind::InvalidValue);
        }
        let Err(Error::Driver(first)) = gpu.trim(Trim::All) else { panic!("{nth}") };
        assert_eq!(first.kind, if nth > 1 { Kind::InvalidValue } else { Kind::Other });
        let left = if nth > 1 { 4 } else { 2 };
        assert_eq!(taken(&sim, &gpu), left * MIB, "{nth}");
        assert_eq!(sim.ledger().calls_of(Call::MemFreeHost), 1, "{nth}");
        assert_eq!(gpu.trim(Trim::All).unwrap().bytes, left * MIB, "{nth}");
        drop(s);
        all_clean(&sim, gpu);
    }
}

/// A lost context ends a trim at the call that says so.
#[test]
fn a_lost_context_ends_a_trim() {
    for call in [Call::Unmap, Call::Release] {
        let sim = late();
        let gpu = on(&sim, config());
        let s = gpu.stream().unwrap();
        drop((gpu.alloc(8 * MIB, &s).unwrap(), gpu.alloc_pinned(MIB).unwrap()));
        gpu.synchronize().unwrap();
        sim.fail(Call::Unmap, 1, Kind::Other);
        sim.fail(call, 2, Kind::ContextLost);
        let Err(Error::Driver(lost)) = gpu.trim(Trim::All) else { panic!("{call:?}") };
        assert!(lost.is_context_lost(), "{call:?}: {lost}");
        let unmapped = if call == Call::Unmap { 2 } else { 3 };
        assert_eq!(sim.ledger().calls_of(Call::Unmap), unmapped, "{call:?}");
        assert_eq!(sim.ledger().calls_of(Call::MemFreeHost), 0, "{call:?}");
        gpu.check();
        assert!(gpu.alloc(64 * MIB, &s).is_err() && gpu.trim(Trim::All).is_err());
    }
}

/// A request grows into what was given back beside a handle that the driver does not unmap, and fails with the driver's error if that is not enough.
#[test]
fn a_request_takes_what_was_given_back_beside_a_refusal() {
    // Of three, the first or the second; or all but the first, whenever it is tried again.
    for (refused, serves) in [(1..=1, true), (2..=2, true), (2..=20, false)] {
        let sim = late();
        // The handles are another stream's, which keeps them: nothing moves.
        let gpu = on(&sim, config().limit(Limit::Bytes(12 * MIB)).reuse(Reuse::Never));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let live = every_other(&gpu, &s, 6);
        for nth in refused.clone() {
            sim.fail(Call::Unmap, nth, Kind::Other);
        }
        let x = gpu.alloc(4 * MIB, &t);
        assert_eq!(x.is_ok(), serves, "{refused:?}: {x:?}");
        match &x {
            Ok(_) => assert_eq!(sim.ledger().calls_of(Call::Unmap), 3, "{refused:?}"),
            Err(e) => assert!(matches!(e, Error::Driver(e) if e.kind == Kind::Other), "{e}"),
        }
        assert_eq!(taken(&sim, &gpu), if serves { 12 } else { 10 } * MIB, "{refused:?}");
        sim.clear_faults();
        let x = x.or_else(|_| gpu.alloc(4 * MIB, &t)).unwrap();
        write(&sim, &x, &t);
        assert_eq!(taken(&sim, &gpu), if serves { 12 } else { 10 } * MIB, "{refused:?}");
        drop((x, live, s, t));
        all_clean(&sim, gpu);
    }
}

/// A request gives back what it lacks, and unmaps nothing beyond that.
#[test]
fn a_request_gives_back_no_more_than_it_needs() {
    let sim = late();
    let gpu = on(&sim, config().limit(Limit::Bytes(64 * MIB)).reuse(Reuse::Never));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let live = every_other(&gpu, &s, 32);
    let x = gpu.alloc(6 * MIB, &t).unwrap();
    assert_eq!((sim.ledger().calls_of(Call::Unmap), gpu.report().releases), (3, 3));
    assert_eq!(taken(&sim, &gpu), 64 * MIB);
    drop((x, live, s, t));
    all_clean(&sim, gpu);
}

/// A free handle between thousands of small live allocations is found by an explicit trim, and by a request before it is out of memory.
#[test]
fn a_handle_behind_thousands_of_records_is_found() {
    for explicit in [true, false] {
        let sim = late();
        let gpu = on(&sim, config().limit(Limit::Bytes(10 * MIB)).reuse(Reuse::Never));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let mut small: Vec<_> = (0..5 * 4096).map(|_| Some(gpu.alloc(512, &s).unwrap())).collect();
        assert_eq!(taken(&sim, &gpu), 10 * MIB);
        for of_handle in small.chunks_mut(4096).skip(1).step_by(2) {
            of_handle.fill_with(|| None);
        }
        gpu.synchronize().unwrap();
        if explicit {
            assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 4 * MIB);
        } else {
            let x = gpu.alloc(4 * MIB, &t).unwrap();
            write(&sim, &x, &t);
            assert_eq!(gpu.report().releases, 2);
        }
        assert_eq!(taken(&sim, &gpu), if explicit { 6 } else { 10 } * MIB);
        drop((small, s, t));
        all_clean(&sim, gpu);
    }
}

/// Handles of 2 and of 4 MiB that are spare, because the driver did not take them, beside a large live allocation.
fn spares(sim: &Sim, gpu: &Allocator<Sim>, s: &Stream<Sim>) -> Allocation<Sim> {
    let large = gpu.alloc(GIB, s).unwrap();
    drop(gpu.alloc(6 * MIB, s).unwrap());
    gpu.synchronize().unwrap();
    // In the trim, and once more at its end.
    for nth in 1..=4 {
        sim.fail(Call::Release, nth, Kind::Other);
    }
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 0);
    assert_eq!(sim.ledger().calls_of(Call::Release), 4, "each spare handle once");
    assert_eq!(taken(sim, gpu), GIB + 6 * MIB);
    large
}

/// A trim gives each spare handle back once, whichever the driver refuses.
#[test]
fn spare_handles_are_given_back_each_once() {
    for (nth, left) in [(1, 4), (2, 2)] {
        let sim = late();
        let gpu = on(&sim, config());
        let s = gpu.stream().unwrap();
        let large = spares(&sim, &gpu, &s);
        sim.fail(Call::Release, nth, Kind::Other);
        let trimmed = gpu.trim(Trim::All).unwrap();
        assert_eq!((trimmed.bytes, trimmed.segments), ((6 - left) * MIB, 1));
        assert_eq!(sim.ledger().calls_of(Call::Release), 6);
        assert_eq!(taken(&sim, &gpu), GIB + left * MIB);
        drop((large, s));
        all_clean(&sim, gpu);
    }
}

/// A request that finds no room while another gives spare handles back waits until they have gone, and is served.
#[test]
fn a_request_waits_for_spare_handles_in_transit() {
    let sim = Sim::new(4 * GIB);
    let gpu = on(&sim, config().limit(Limit::Bytes(GIB + 6 * MIB)).reuse(Reuse::Never));
    let [s, t, u] = [(); 3].map(|()| gpu.stream().unwrap());
    let large = spares(&sim, &gpu, &s);
    let other = Arc::new(Mutex::new(None));
    {
        let (gpu, other) = (gpu.clone(), Arc::clone(&other));
        sim.meanwhile(Call::Release, 1, move || {
            let tried = gpu.report().ladder.trim.tried;
            let inside = gpu.clone();
            let thread = std::thread::spawn(move || inside.alloc(2 * MIB, &u).map(drop));
            while gpu.report().ladder.trim.tried == tried && !thread.is_finished() {
                std::thread::yield_now();
            }
            // It has looked at everything. If it did not wait, it would fail now.
            for _ in 0..50 {
                if thread.is_finished() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            *other.lock().unwrap() = Some(thread);
        });
    }
    // The last needs a second unit, and there is one spare handle of a unit.
    let small: Vec<_> = (0..9).map(|_| gpu.alloc(256 << 10, &t).unwrap()).collect();
    let other = other.lock().unwrap().take().expect("a spare handle was released");
    other.join().unwrap().unwrap();
    taken(&sim, &gpu);
    drop((small, large, s, t));
    all_clean(&sim, gpu);
}

/// A driver that has addresses and no physical memory behind them is queried once: then there are plain segments as without virtual memory.
#[test]
fn a_driver_without_physical_memory_is_called_once() {
    for call in [Call::Create, Call::Map, Call::SetAccess] {
        let sim = late();
        let gpu = on(&sim, config());
        let s = gpu.stream().unwrap();
        sim.fail(call, 1, Kind::NotSupported);
        let x = gpu.alloc(3 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        assert_eq!(taken(&sim, &gpu), 20 * MIB, "{call:?}: as much as a pool of plain segments takes");
        let y = gpu.alloc(30 * MIB, &s).unwrap();
        write(&sim, &y, &s);
        assert_eq!(sim.ledger().calls_of(Call::Create), 1, "{call:?}");
        assert_eq!(sim.ledger().calls_of(Call::MemAlloc), 2, "{call:?}");
        taken(&sim, &gpu);
        drop((x, y, s));
        all_clean(&sim, gpu);
    }
}

/// A call of a trim panics when it is done: the handle in hand is out of use until the driver has answered, others are where they were, and the next trim
/// gives all back.
#[test]
fn a_trim_that_panics_loses_nothing() {
    for call in [Call::Unmap, Call::Release] {
        for nth in 1..=3 {
            let sim = late();
            let gpu = on(&sim, config());
            let s = gpu.stream().unwrap();
            drop(gpu.alloc(6 * MIB, &s).unwrap());
            gpu.synchronize().unwrap();
            sim.panic_behind(call, nth);
            panics(|| drop(gpu.trim(Trim::All)));
            // What was unmapped has gone once it is known; what was released has gone.
            let left = if call == Call::Unmap { 8 - 2 * nth } else { 6 - 2 * nth } * MIB;
            assert_eq!(taken(&sim, &gpu), left, "{call:?} {nth}");
            let x = gpu.alloc(2 * MIB, &s).unwrap();
            write(&sim, &x, &s);
            assert_eq!(
                taken(&sim, &gpu),
                left.max(2 * MIB),
                "{call:?} {nth}: a free handle serves, or one that was unmapped"
            );
            drop(x);
            gpu.synchronize().unwrap();
            gpu.trim(Trim::All).unwrap();
            assert_eq!(taken(&sim, &gpu), 0, "{call:?} {nth}");
            drop(s);
            all_clean(&sim, gpu);
        }
    }
}

/// The same in a request that needs the room.
#[test]
fn a_request_whose_trim_panics_loses_nothing() {
    for call in [Call::Unmap, Call::Release] {
        for nth in 1..=2 {
            let sim = late();
            let gpu = on(&sim, config().limit(Limit::Bytes(8 * MIB)).reuse(Reuse::Never));
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let live = every_other(&gpu, &s, 4);
            sim.panic_behind(call, nth);
            panics(|| drop(gpu.alloc(4 * MIB, &t)));
            taken(&sim, &gpu);
            let x = gpu.alloc(4 * MIB, &t).unwrap();
            write(&sim, &x, &t);
            assert_eq!(taken(&sim, &gpu), 8 * MIB, "{call:?} {nth}");
            drop((x, live, s, t));
            all_clean(&sim, gpu);
        }
    }
}

/// Spare handles whose release panics: that one has gone, the others are spare.
#[test]
fn a_release_of_spare_handles_that_panics_loses_nothing() {
    for nth in 1..=2 {
        let sim = late();
        let gpu = on(&sim, config());
        let s = gpu.stream().unwrap();
        let large = spares(&sim, &gpu, &s);
        sim.panic_behind(Call::Release, nth);
        panics(|| drop(gpu.trim(Trim::All)));
        taken(&sim, &gpu);
        gpu.trim(Trim::All).unwrap();
        assert_eq!((taken(&sim, &gpu), gpu.report().releases), (GIB, 2));
        drop((large, s));
        all_clean(&sim, gpu);
    }
}

/// Places that drain, and the driver panics over one: it drains on, and the others are not lost with it.
#[test]
fn a_place_over_which_the_driver_panics_drains_on() {
    for (panicking, then) in [(1, None), (2, None), (1, Some(Kind::Other))] {
        let sim = late();
        let gpu = on(&sim, config());
        let s = gpu.stream().unwrap();
        for _ in 0..2 {
            // Two places: at each request the access is refused, and the unmap of that place and of those that drain already.
            sim.fail(Call::SetAccess, 1, Kind::Other);
            for nth in 1..=8 {
                sim.fail(Call::Unmap, nth, Kind::Other);
            }
            assert!(gpu.alloc(2 * MIB, &s).is_err());
            sim.clear_faults();
        }
        assert_eq!(taken(&sim, &gpu), 4 * MIB);
        sim.panic_behind(Call::Unmap, panicking);
        panics(|| drop(gpu.alloc(6 * MIB, &s)));
        assert_eq!(taken(&sim, &gpu), 4 * MIB);
        if let Some(kind) = then {
            // Both: this answer does not say whether something is mapped there.
            sim.fail(Call::Unmap, 1, kind);
            sim.fail(Call::Unmap, 2, kind);
            let x = gpu.alloc(2 * MIB, &s).unwrap();
            assert_eq!(taken(&sim, &gpu), 6 * MIB);
            drop(x);
        }
        let x = gpu.alloc(6 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        assert_eq!(taken(&sim, &gpu), 6 * MIB, "both handles are in use again");
        drop((x, s));
        all_clean(&sim, gpu);
    }
}

/// A trim's events have the handles' addresses, also of a window that another thread's end forgets meanwhile; a report counts the handles.
#[test]
fn a_trim_reports_which_handles_went() {
    let (sim, ring) = (late(), Arc::new(Ring::new(64)));
    let gpu = on(&sim, config().sink(ring.clone()));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    let at = x.address();
    drop((x, s));
    gpu.synchronize().unwrap();
    // The last handle's: its window is empty then, and its pool has closed.
    sim.meanwhile(Call::Release, 2, move || drop(t));
    let trimmed = gpu.trim(Trim::All).unwrap();
    assert_eq!((trimmed.bytes, trimmed.segments), (4 * MIB, 2));
    let report = gpu.report();
    assert_eq!((report.growths, report.releases, report.segments), (1, 2, 0), "{report}");
    gpu.deliver_events();
    let events: Vec<_> = ring.events().into_iter().map(|(_, event)| event).collect();
    for addr in [at, Addr(at.0 + 2 * MIB)] {
        let event = Event::Trim { addr, bytes: 2 * MIB };
        assert!(events.contains(&event), "{event:?} is missing: {events:#?}");
    }
    all_clean(&sim, gpu);
}
