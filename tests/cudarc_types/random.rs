//! Random programs of cudarc's safe calls (`world` says of what). They need no rules: whatever order the calls come in, every value is what it
//! would be if each call ended before the next one began. The oracle judges too.
//!
//! 16 to 100 programs of each kind in a full run (`millpond_testkit::effort`), a third of them in an ordinary one, or what `MILLPOND_CASES` says.

pub(super) use super::world::relaxed;
use super::world::{ARRAYS, Call, HOMES, STREAMS, World, all_calls, all_looks, calls};
use super::*;
use millpond_testkit::effort::ordinary_or_full;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs programs, each on a device of its own, which has to be clean at the end; a program says whether errors may be kept.
fn run<P: std::fmt::Debug>(
    most: u32,
    programs: &impl Strategy<Value = P>,
    program: impl Fn(&Rig, &[Arc<CudaContext>; 2], P) -> bool,
) {
    if rig().is_none() {
        return;
    }
    search(most, programs, |rig, drawn| {
        let others = [(); 2].map(|()| CudaContext::new(0).expect("another value for the same context"));
        let errors = program(&rig, &others, drawn);
        drop(others);
        if errors {
            rig.check_no_leaks();
        } else {
            rig.check_clean();
        }
    });
}

/// So many programs in a full run, or what `MILLPOND_CASES` says, each on a fresh rig, which there is. One that fails is made smaller.
pub(super) fn search<P: std::fmt::Debug>(
    most: u32,
    programs: &impl Strategy<Value = P>,
    program: impl Fn(Rig, P),
) {
    let ordinary = ordinary_or_full(most.div_ceil(3), most);
    let cases =
        std::env::var("MILLPOND_CASES").map_or(ordinary, |n| n.parse().expect("MILLPOND_CASES is a number"));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let found = TestRunner::new(config).run(programs, |drawn| {
        program(rig().expect("it was there a moment ago"), drawn);
        Ok(())
    });
    if let Err(e) = found {
        panic!("{e}");
    }
}

#[test]
fn programs_of_cudarcs_calls_need_no_rules() {
    run(100, &calls(), |rig, others, calls| {
        let gpu = rig.allocator_for(ARRAYS as u64 + 2);
        let mut world = World::new(rig, &gpu, others);
        world.alone = true;
        for call in calls {
            world.make(call);
        }
        world.end();
        false
    });
}

/// With kernels, streams of another device, allocators and values that end, crowds of streams, and slices of cudarc's own; each call on the thread of the program or on a fresh one.
#[test]
fn programs_on_other_threads_with_allocators_that_end() {
    run(33, &vec((all_calls(), prop::bool::weighted(0.3)), 1..40), |rig, others, calls| {
        let mut world = World::new(rig, &rig.allocator_for(ARRAYS as u64 + 2), others);
        world.alone = true;
        let mut errors = false;
        for (call, apart) in calls {
            errors |= matches!(call, Call::Far { .. } | Call::Owner { .. });
            let world = &mut world;
            if apart && !of_the_thread(call) {
                std::thread::scope(|s| s.spawn(|| world.make(call)).join()).expect("made");
            } else {
                world.make(call);
            }
            world.forget_errors();
        }
        world.end();
        errors
    });
}

/// Whether the call is on the default stream of its thread, which the world takes for one stream.
fn of_the_thread(call: Call) -> bool {
    match call {
        Call::FromPool { on: 4, .. } | Call::ToPool { on: 4, .. } => true,
        Call::Part { what, on: 4, .. } => what.is_of_the_pool(),
        _ => false,
    }
}

/// No program leaves errors in cudarc's store, where another thread's call would meet them.
fn clean(call: Call) -> Call {
    match without_stored_error(call) {
        Call::Far { x } => Call::Renew { x },
        call => call,
    }
}

/// Several programs at once, each with arrays of its own, two by two on one allocator.
#[test]
fn programs_of_threads() {
    let program = vec(all_calls().prop_map(clean), 1..20);
    run(16, &vec(program, 2..=4), |rig, others, programs| {
        let gpus =
            [(); 2].map(|()| Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator"));
        std::thread::scope(|s| {
            for (n, calls) in programs.into_iter().enumerate() {
                let gpu = &gpus[n % 2];
                s.spawn(move || {
                    let mut world = World::new(rig, gpu, others);
                    for call in calls {
                        world.make(call);
                    }
                    world.end();
                });
            }
        });
        false
    });
}

pub(super) fn calls_that_capture() -> impl Strategy<Value = Call> {
    prop_oneof![
        8 => all_calls(),
        1 => (0..ARRAYS, 0..HOMES).prop_map(|(x, home)| Call::Pool { x, home }),
        1 => (0..STREAMS, any::<bool>()).prop_map(|(on, home)| Call::Capture { on, home }),
        1 => Just(Call::Graph),
    ]
}

/// The same call on another stream.
pub(super) fn on_stream(call: Call, of: impl Fn(usize) -> usize) -> Call {
    match call {
        Call::Send { host, x, on, stored_error } => Call::Send { host, x, on: of(on), stored_error },
        Call::Fetch { x, host, on, stored_error } => Call::Fetch { x, host, on: of(on), stored_error },
        Call::Copy { x, on } => Call::Copy { x, on: of(on) },
        Call::Zero { x, on } => Call::Zero { x, on: of(on) },
        Call::Read { x, on } => Call::Read { x, on: of(on) },
        Call::FromPool { x, on, view } => Call::FromPool { x, on: of(on), view },
        Call::ToPool { x, on } => Call::ToPool { x, on: of(on) },
        Call::Part { what, x, on } => Call::Part { what, x, on: of(on) },
        call => call,
    }
}

/// On streams with references: for others only the whole context can be marked, which no capture survives. But the stream
/// that captures may have any owner: what names it is refused.
pub(super) fn held(call: Call, captured: Option<usize>) -> Call {
    let held = |on| match on {
        2 if captured != Some(2) => 0,
        6 if captured != Some(6) => 1,
        on => on,
    };
    beside_captures(on_stream(call, held), captured)
}

/// Without what ends a capture, or cannot be ordered behind one, whatever references the streams have.
fn beside_captures(call: Call, captured: Option<usize>) -> Call {
    let apart = |on| match on {
        on if Some(on) == captured => on,
        // The legacy stream waits for a thread's default stream, and a capture there does not survive that.
        3 | 5 | 7 if captured == Some(4) => on % 2,
        on => on,
    };
    match on_stream(without_stored_error(call), apart) {
        // Forgotten, the use is open until the free, and nothing can be ordered behind a stream that captures.
        Call::Launch { x, home, value, .. } => Call::Launch { x, home, value, forget: false },
        call => call,
    }
}

/// A world in which other code may capture. The first slice of each value waits for the context, and a module's first load does what
/// it likes: both come before any capture.
pub(super) fn world_to_capture<'a>(
    rig: &'a Rig,
    gpu: &Allocator<Cuda>,
    others: &'a [Arc<CudaContext>; 2],
) -> World<'a> {
    let mut world = World::new(rig, gpu, others);
    (0..HOMES).for_each(|home| world.make(Call::Pool { x: 0, home }));
    world.make(Call::LaunchPool { value: 1 });
    world
}

/// Other code captures graphs, on streams that cudarc is given, those that the allocator does not know and the thread's default one
/// among them, and on those that arrays are made on. Each capture lives, and holds nothing of ours. Some programs say that others
/// capture. Where none does the context is marked as a whole, which no capture survives: so programs that say nothing capture on streams that the allocator knows, and it asks all of these before. In half
/// of the programs each call, the beginning and the end of a capture too, is on the thread of the program or on a fresh one.
#[test]
fn programs_that_capture() {
    let known = |call| match call {
        Call::Capture { on, home } => Call::Capture { on: on % 2, home },
        call => without_stored_error(call),
    };
    let calls = vec((calls_that_capture(), prop::bool::weighted(0.2)), 1..60);
    run(80, &(any::<bool>(), any::<bool>(), calls), |rig, others, (expected, threads, calls)| {
        if expected {
            rig.cuda.expect_captures();
        }
        let before = relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        let gpu = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
        let mut world = world_to_capture(rig, &gpu, others);
        for (call, apart) in calls {
            // A thread's default stream is marked by that thread alone.
            let call = match call {
                Call::Capture { on: 4, home } if threads => Call::Capture { on: 1, home },
                call if threads => on_stream(call, |on| if on == 4 { 1 } else { on }),
                call => call,
            };
            let world = &mut world;
            let mut make = || {
                if expected {
                    world.make(held(call, world.captured_on()));
                } else if !world.captures() {
                    world.make(known(call));
                } else {
                    beside_a_capture(world, known(call));
                }
            };
            if apart && threads {
                std::thread::scope(|s| {
                    let apart = || {
                        relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
                        make();
                    };
                    s.spawn(apart).join().expect("made");
                });
            } else {
                make();
            }
            world.forget_errors();
        }
        world.end();
        relaxed(before);
        true
    });
}

/// The same where captures are expected, on streams without references as well. What was queued there cannot be marked, so that what comes behind it
/// is refused until the program synchronises, and waits for nothing: each capture survives. Behind a refusal and a synchronise all of it can be read.
#[test]
fn programs_that_capture_beside_streams_without_references() {
    run(60, &vec(calls_that_capture(), 1..60), |rig, others, calls| {
        rig.cuda.expect_captures();
        let before = relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        let gpu = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
        let mut world = world_to_capture(rig, &gpu, others);
        for call in calls.into_iter().chain(all_looks()) {
            match beside_captures(call, world.captured_on()) {
                // It lives.
                Call::Graph => world.make(Call::Graph),
                call => beside_a_capture(&mut world, call),
            }
            world.forget_errors();
        }
        world.synchronise();
        world.end();
        relaxed(before);
        true
    });
}

/// One thread captures graphs while another one goes on, each with arrays of its own, on one allocator; `expect_captures` was called.
/// What the second one is refused, if anything, is for the capture. Pooled slices are used by both: no call here leaves an error in cudarc's store, which
/// is one for both.
#[test]
fn programs_of_a_thread_beside_one_that_captures() {
    let other = |call| match clean(call) {
        // What may wait for the device.
        Call::Remake | Call::Value { which: 0 } => Call::Graph,
        call => held(call, None),
    };
    let programs =
        (vec(calls_that_capture().prop_map(clean), 1..40), vec(all_calls().prop_map(other), 1..40));
    run(20, &programs, |rig, others, (captures, goes_on)| {
        rig.cuda.expect_captures();
        let gpu = &Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
        let both_are_ready = &std::sync::Barrier::new(2);
        let ends = &std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(move || {
                relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
                let mut world = world_to_capture(rig, gpu, others);
                both_are_ready.wait();
                for call in captures {
                    // The other one's calls on the legacy stream end a capture on a default stream.
                    let call = match call {
                        Call::Capture { on: 4, home } => Call::Capture { on: 6, home },
                        call => call,
                    };
                    world.make(held(call, world.captured_on()));
                    world.forget_errors();
                }
                world.make(Call::Graph);
                ends.wait();
                world.end();
            });
            s.spawn(move || {
                relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
                let mut world = world_to_capture(rig, gpu, others);
                both_are_ready.wait();
                for call in goes_on {
                    beside_a_capture(&mut world, call);
                }
                ends.wait();
                world.end();
            });
        });
        true
    });
}

/// A call that may need the whole context marked, which waits for the capture's end: refused then, in words, by a panic where no call can
/// return it, or by the driver, to which cudarc gives the null address that a refused operand has.
pub(super) fn beside_a_capture(world: &mut World, call: Call) {
    let said = match catch_unwind(AssertUnwindSafe(|| world.attempt(call))) {
        Ok(Ok(())) => return,
        Ok(Err(said)) => said,
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(said) => said.clone(),
            None => std::panic::resume_unwind(panic),
        },
    };
    assert!(said.contains("aptur") || said.contains("INVALID_VALUE"), "{call:?} beside a capture: {said}");
}

/// How many of those that may fail, the first, order streams or show what is over.
pub(super) const ORDERING: usize = 8;

/// What may fail. Not what destroys: cudarc asks once, and what is left then is its own.
pub(super) const MAY_FAIL: [&str; 20] = [
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuCtxRecordEvent",
    "cuCtxSynchronize",
    "cuStreamWaitEvent",
    "cuStreamSynchronize",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamGetId",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuLaunchKernel",
];

/// What may fail in calls on a pooled slice: the queries of the stream, and the work itself. How cudarc orders it is cudarc's: it goes on
/// where that fails.
pub(super) const MAY_FAIL_OF_POOLS: [&str; 5] = [
    "cuMemcpyDtoDAsync_v2",
    "cuLaunchKernel",
    "cuStreamIsCapturing",
    "cuStreamGetId",
    "cuThreadExchangeStreamCaptureMode",
];

/// Some calls meet a fault, and may fail or not. Then each value is what it was or what it was to be, and nothing is left.
#[test]
fn programs_over_a_driver_that_fails() {
    let code = prop_oneof![Just(2_u32), Just(801), Just(900), Just(999)];
    let fault = prop::option::weighted(0.4, (0..MAY_FAIL.len(), 1..4_u64, code));
    run(50, &vec((all_calls(), fault), 1..40), |rig, others, calls| {
        let Some(fake) = &rig.fake else { return false };
        let mut world = World::new(rig, &rig.allocator_for(ARRAYS as u64 + 2), others);
        for (call, fault) in calls {
            let fault = fault.filter(|_| !matches!(call, Call::Far { .. }));
            if let Some((which, nth, code)) = fault {
                let name = if is_cudarcs(call) {
                    MAY_FAIL_OF_POOLS[which % MAY_FAIL_OF_POOLS.len()]
                } else {
                    MAY_FAIL[which]
                };
                fake.fail_next(name, nth, code);
                // Returned, or a panic where no call can return it: a look at pinned elements.
                let _ = catch_unwind(AssertUnwindSafe(|| world.attempt(without_stored_error(call))));
                fake.clear_faults();
            } else {
                world.make(call);
            }
            world.forget_errors();
        }
        world.end();
        let foreign: Vec<_> = rig
            .cuda
            .deferred()
            .into_iter()
            .filter(|e| ![1, 2, 400, 801, 900, 999].contains(&e.code))
            .collect();
        assert!(foreign.is_empty(), "{foreign:?} was not planted");
        true
    });
}

/// What cudarc orders, or holds, by itself: it goes on when that fails.
pub(super) fn is_cudarcs(call: Call) -> bool {
    match call {
        Call::FromPool { .. } | Call::ToPool { .. } | Call::LaunchPool { .. } | Call::Far { .. } => true,
        Call::Part { what, .. } => what.is_of_the_pool(),
        _ => false,
    }
}

/// Not left out twice: by the test, and by the fault.
pub(super) fn without_stored_error(call: Call) -> Call {
    match call {
        Call::Send { host, x, on, .. } => Call::Send { host, x, on, stored_error: false },
        Call::Fetch { x, host, on, .. } => Call::Fetch { x, host, on, stored_error: false },
        call => call,
    }
}
