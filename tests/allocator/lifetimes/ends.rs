//! How an allocator ends, and how all that is queued is waited for, beside somebody's capture and where driver calls fail.

use crate::rig::{all_back, late, on, write};
use millpond::units::MIB;
use millpond::{Allocator, Config, DriverErrorKind, Growth, Limit, Stream};
use millpond_sim::{Call, Launch, Sim, SimStream};

fn small() -> Config {
    Config::default().limit(Limit::Bytes(64 * MIB)).growth(Growth::Exact)
}

/// The next few of these calls fail.
fn fails(sim: &Sim, calls: &[Call]) {
    for nth in 1..8 {
        calls.iter().for_each(|&call| sim.fail(call, nth, DriverErrorKind::OutOfMemory));
    }
}

/// A stream that no allocator holds writes a block, which is then freed by nobody knows whom.
fn used_by_nobody_knows_whom(sim: &Sim, gpu: &Allocator<Sim>, s: &Stream<Sim>, stranger: &SimStream) {
    let x = gpu.alloc(MIB, s).unwrap();
    let work = Launch::new("theirs").writes(x.address(), x.len()).tag(x.id().unwrap());
    sim.launch(stranger, work).unwrap();
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
            // Its own, or one of which nobody told, where a call for its own fails.
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

/// No page can be pinned at the end: what nobody can mark is waited for all the same.
#[test]
fn an_end_that_can_pin_no_page_waits_for_the_device() {
    let sim = late().waiting_frees(false);
    sim.expect_captures();
    let gpu = on(&sim, small());
    let (s, stranger) = (gpu.stream().unwrap(), sim.stream().unwrap());
    used_by_nobody_knows_whom(&sim, &gpu, &s, &stranger);
    sim.fail(Call::MemHostAlloc, 1, DriverErrorKind::OutOfMemory);
    drop((s, gpu, stranger));
    all_back(&sim);
}

/// No wait is to be had, and the driver's frees are none: what may be used still is kept, and told. Where a free waits, everything goes back.
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
