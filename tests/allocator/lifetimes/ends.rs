//! How an allocator ends, and how all that is queued is waited for, beside a capture by other code and where driver calls fail.

use crate::rig::{all_back, all_clean, late, on, write};
use millpond::array::ExternalMemory;
use millpond::driver::Memory;
use millpond::units::{DeviceId, KIB, MIB};
use millpond::{Allocator, Config, DeviceArray, DriverErrorKind, Growth, Limit, Stream, Trim};
use millpond_sim::{Call, Launch, Sim, SimStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn small() -> Config {
    Config::default().limit(Limit::Bytes(64 * MIB)).growth(Growth::Exact)
}

/// The next few of these calls fail.
fn fails(sim: &Sim, calls: &[Call]) {
    for nth in 1..8 {
        for &call in calls {
            sim.fail(call, nth, DriverErrorKind::OutOfMemory);
        }
    }
}

/// A stream that no allocator holds writes a block, which is then freed with unknown users.
fn used_by_an_unknown_stream(sim: &Sim, gpu: &Allocator<Sim>, s: &Stream<Sim>, unknown_stream: &SimStream) {
    let x = gpu.alloc(MIB, s).unwrap();
    let work = Launch::new("theirs").writes(x.address(), x.len()).tag(x.id().unwrap());
    sim.launch(unknown_stream, work).unwrap();
    x.free_unknown();
}

/// An adopted stream captures while work that it was given before is pending, so that its marker is refused at the allocator's end. The end waited by
/// the call that ends captures, which waited for nothing then; where frees do not wait either, memory went back under that work.
#[test]
fn an_end_leaves_the_capture_of_a_stream_alone_whose_memory_it_gives_back() {
    for frees_wait in [true, false] {
        for adopted in [true, false] {
            let sim = late().waiting_frees(frees_wait);
            let gpu = on(&sim, small());
            let native = sim.stream().unwrap();
            let (s, theirs) = (gpu.adopt(native.clone()).unwrap(), sim.stream().unwrap());
            let x = gpu.alloc(MIB, &s).unwrap();
            write(&sim, &x, &s);
            drop(x);
            // Its own, or one that the allocator does not know, where a call for its own fails.
            let captured = if adopted { &native } else { &theirs };
            sim.begin_capture(captured).unwrap();
            if !adopted {
                fails(&sim, &[Call::EventCreate]);
            }
            drop((s, gpu));
            let end = sim.end_capture(captured);
            assert!(end.is_ok(), "frees wait: {frees_wait}, adopted: {adopted}: {end:?}");
            sim.clear_faults();
            drop((native, theirs));
            all_back(&sim);
        }
    }
}

/// No page can be pinned at the end: what cannot be marked is waited for all the same.
#[test]
fn an_end_that_can_pin_no_page_waits_for_the_device() {
    let sim = late().waiting_frees(false);
    sim.expect_captures();
    let gpu = on(&sim, small());
    let (s, unknown_stream) = (gpu.stream().unwrap(), sim.stream().unwrap());
    used_by_an_unknown_stream(&sim, &gpu, &s, &unknown_stream);
    sim.fail(Call::MemHostAlloc, 1, DriverErrorKind::OutOfMemory);
    drop((s, gpu, unknown_stream));
    all_back(&sim);
}

/// No wait is possible, and the driver's frees do not wait: what may be used still is kept, and reported. Where a free waits, everything goes back.
#[test]
fn an_end_that_cannot_wait_keeps_what_may_be_used() {
    for frees_wait in [true, false] {
        let sim = late().waiting_frees(frees_wait);
        let gpu = on(&sim, small());
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(MIB, &s).unwrap();
        write(&sim, &x, &s);
        drop(x);
        fails(&sim, &[Call::EventCreate, Call::MemHostAlloc, Call::CtxSynchronize]);
        drop((s, gpu));
        let said: Vec<String> = sim.drop_errors().iter().map(ToString::to_string).collect();
        let kept = said.iter().any(|e| e.contains("1048576 bytes of device memory stay allocated"));
        assert_eq!(kept, !frees_wait, "{said:?}");
        sim.run_until_idle();
        sim.verdict().unwrap();
        assert_eq!(sim.leaks().is_empty(), frees_wait, "{:?}", sim.leaks());
    }
}

/// What a dropped array in external memory waits for, and what cannot be marked, is over at an allocator's end: its owner was forgotten, though the
/// end waits for all of it.
#[test]
fn an_end_drops_the_owner_of_external_memory_that_cannot_be_marked() {
    struct Owner {
        _memory: millpond::driver::OwnedRange<Sim>,
        dropped: Arc<AtomicU32>,
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
    for waits in [true, false] {
        let sim = late();
        let gpu = on(&sim, small());
        let (native, home) = (sim.stream().unwrap(), gpu.stream().unwrap());
        let user = gpu.adopt(sim.unmanaged_stream(&native)).unwrap();
        let (memory, dropped) = (sim.allocate(4 * KIB).unwrap(), Arc::new(AtomicU32::new(0)));
        let range = ExternalMemory { address: memory.addr(), bytes: 4 * KIB, device: DeviceId(0) };
        let owner = Owner { _memory: memory, dropped: Arc::clone(&dropped) };
        #[allow(unsafe_code, reason = "the range lives as long as its owner, and no other code uses it")]
        // SAFETY: as said.
        let made = unsafe { DeviceArray::<u32, _>::from_external(range, 1024, owner, &home) };
        let x = made.map_err(|(_, e)| e).unwrap();
        x.record_use(&user).unwrap();
        sim.launch(&native, Launch::new("theirs").writes(range.address, 4 * KIB)).unwrap();
        drop(x);
        drop(user);
        if !waits {
            sim.fail(Call::MemHostAlloc, 1, DriverErrorKind::OutOfMemory);
            sim.fail(Call::CtxSynchronize, 1, DriverErrorKind::Other);
        }
        drop((home, gpu, native));
        assert_eq!(dropped.load(Ordering::Relaxed), u32::from(waits));
        if waits {
            all_back(&sim);
        } else {
            sim.run_until_idle();
            sim.verdict().unwrap();
        }
    }
}

/// A wait beside captures records no context-wide event, whether captures are expected or not: not for another thread's default stream, nor for what
/// fell due because one could not be made before, nor where the driver has none.
#[test]
fn a_wait_beside_captures_ends_none_whatever_is_due() {
    type Due = fn(&Sim, &Allocator<Sim>) -> Option<Stream<Sim>>;
    let of_a_thread: Due = |sim, gpu| {
        let own = || {
            let own = gpu.adopt(sim.per_thread_stream()).unwrap();
            write(sim, &gpu.alloc(MIB, &own).unwrap(), &own);
            own
        };
        std::thread::scope(|threads| threads.spawn(own).join().ok())
    };
    let closing: Due = |sim, gpu| {
        let own = || gpu.adopt(sim.per_thread_stream()).unwrap();
        drop(std::thread::scope(|threads| threads.spawn(own).join()));
        None
    };
    let refused: Due = |sim, gpu| {
        sim.fail(Call::CtxRecordEvent, 1, DriverErrorKind::Other);
        gpu.alloc(MIB, &gpu.stream().unwrap()).unwrap().free_unknown();
        None
    };
    let lacking: Due = |sim, gpu| {
        for nth in 1..8 {
            sim.fail(Call::CtxRecordEvent, nth, DriverErrorKind::NotSupported);
        }
        gpu.alloc(MIB, &gpu.stream().unwrap()).unwrap().free_unknown();
        None
    };
    for (what, due) in [
        ("a thread's", of_a_thread),
        ("one that ends", closing),
        ("a refused one", refused),
        ("none", lacking),
    ] {
        let sim = late();
        let gpu = on(&sim, small());
        let (kept, unknown_stream) = (due(&sim, &gpu), sim.stream().unwrap());
        sim.begin_capture(&unknown_stream).unwrap();
        gpu.synchronize_beside_captures().unwrap();
        let end = sim.end_capture(&unknown_stream);
        assert!(end.is_ok(), "{what}: {end:?}");
        sim.clear_faults();
        assert_eq!(gpu.report().total.held_back, 0, "{what}");
        assert_eq!(gpu.trim(Trim::All).unwrap().bytes, gpu.report().reserved_peak, "{what}: all is over");
        drop((kept, unknown_stream));
        all_clean(&sim, gpu);
    }
}

/// One marker that cannot be made does not make a wait for all fail: what it would have covered is waited for with the rest.
#[test]
fn a_wait_beside_captures_does_without_a_marker() {
    for call in [Call::EventCreate, Call::EventRecord, Call::EventSynchronize, Call::StreamIsCapturing] {
        let sim = late();
        sim.expect_captures();
        let gpu = on(&sim, small());
        let native = sim.stream().unwrap();
        let s = gpu.adopt(native.clone()).unwrap();
        let x = gpu.alloc(MIB, &s).unwrap();
        write(&sim, &x, &s);
        drop(x);
        sim.fail(call, 1, DriverErrorKind::OutOfMemory);
        gpu.synchronize_beside_captures().unwrap_or_else(|e| panic!("{}: {e}", call.name()));
        assert_eq!(gpu.trim(Trim::All).unwrap().bytes, MIB, "{}: it is over", call.name());
        drop((s, native));
        all_clean(&sim, gpu);
    }
    // A lost context is no such thing.
    let sim = late();
    sim.expect_captures();
    let gpu = on(&sim, small());
    let s = gpu.stream().unwrap();
    write(&sim, &gpu.alloc(MIB, &s).unwrap(), &s);
    sim.fail(Call::EventRecord, 1, DriverErrorKind::ContextLost);
    gpu.synchronize_beside_captures().expect_err("nothing works any more");
}

/// Where the driver has no context-wide events, a wait for what was freed with unknown users is one for the device: not while a stream captures
/// that can be queried.
#[test]
fn a_wait_in_place_of_a_context_wide_event_queries_captures() {
    let sim = late().waiting_frees(false);
    let gpu = on(&sim, small());
    let (native, s, unknown_stream) = (sim.stream().unwrap(), gpu.stream().unwrap(), sim.stream().unwrap());
    let adopted = gpu.adopt(native.clone()).unwrap();
    for nth in 1..8 {
        sim.fail(Call::CtxRecordEvent, nth, DriverErrorKind::NotSupported);
    }
    used_by_an_unknown_stream(&sim, &gpu, &s, &unknown_stream);
    sim.begin_capture(&native).unwrap();
    drop((s, adopted, gpu));
    sim.end_capture(&native).expect("it lives");
    sim.clear_faults();
    drop((native, unknown_stream));
    all_back(&sim);
}

/// What an end waits for with all else is over for every allocator of the device, on streams that no call may mark too. Such a stream's timeline stayed
/// behind it until the program synchronised: the end's wait did not count what was freed on it as covered.
#[test]
fn an_end_that_waits_for_all_covers_what_must_not_be_marked() {
    let sim = late();
    sim.expect_captures();
    let (gpu, stays) = (on(&sim, small()), on(&sim, small()));
    let (native, s, unknown_stream) = (sim.stream().unwrap(), gpu.stream().unwrap(), sim.stream().unwrap());
    let unmanaged = stays.adopt(sim.unmanaged_stream(&native)).unwrap();
    let x = stays.alloc(MIB, &unmanaged).unwrap();
    let work = Launch::new("theirs").writes(x.address(), x.len()).tag(x.id().unwrap());
    sim.launch(&native, work).unwrap();
    drop(x);
    used_by_an_unknown_stream(&sim, &gpu, &s, &unknown_stream);
    drop((s, gpu));
    drop(unmanaged);
    let given = stays.trim(Trim::All).unwrap().bytes;
    assert_eq!((given, stays.bookkeeping().timelines), (MIB, 1), "the context's is left");
    drop((native, unknown_stream));
    all_clean(&sim, stays);
}
