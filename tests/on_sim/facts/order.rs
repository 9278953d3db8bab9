//! The rules of stream order, E1 to E8 (`sim/src/oracle/mod.rs`).

use super::*;
use millpond::error::DriverErrorKind;
use millpond::{Allocator, Config};
use millpond_sim::{MismatchKind, Schedule};
use std::sync::{Arc, Mutex};

#[test]
fn e1_operations_of_one_stream_run_in_program_order() {
    for schedule in [Schedule::Earliest, Schedule::Latest, Schedule::Random(1), Schedule::Random(2)] {
        let sim = sim().schedule(schedule);
        let (s, range) = (sim.stream().expect("s"), sim.allocate(4096).expect("memory"));
        let order = Arc::new(Mutex::new(Vec::new()));
        for i in 0..50 {
            let order = order.clone();
            sim.host_function(&s, move || order.lock().expect("order").push(i)).expect("queued");
            sim.launch(&s, Launch::write_pattern(range.addr(), 4096, i)).expect("queued");
            sim.launch(&s, Launch::check_pattern(range.addr(), 4096, i)).expect("queued");
        }
        assert_eq!(verdict(&sim), "", "{schedule:?}");
        assert_eq!(*order.lock().expect("order"), (0..50).collect::<Vec<_>>(), "{schedule:?}");
    }
}

#[test]
fn e1_a_check_that_runs_before_its_write_is_found_by_contents() {
    let sim = sim().schedule(Schedule::Latest);
    let (s, t, range) =
        (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(4096).expect("memory"));
    sim.launch(&s, Launch::write_pattern(range.addr(), 4096, A)).expect("queued");
    sim.launch(&t, Launch::check_pattern(range.addr(), 4096, A)).expect("queued");
    sim.synchronize_stream(&t).expect("t does not depend on s");
    let (found, total) = sim.mismatches();
    assert_eq!((found.len(), total), (1, 1));
    assert_eq!(found[0].addr, range.addr());
    assert!(found[0].to_string().contains("operation 0 of stream 1"), "{}", found[0]);
}

#[test]
fn e2_a_wait_takes_the_events_state_at_the_call_and_a_later_record_moves_nothing() {
    let sim = sim();
    let (s, t, u) = (sim.stream().expect("s"), sim.stream().expect("t"), sim.stream().expect("u"));
    let event = mark(&sim, &s);
    sim.wait(&t, &event).expect("before the gate");
    let gate = sim.gate(&s).expect("an endless kernel");
    sim.record(&event, &s).expect("again, behind the gate");
    sim.wait(&u, &event).expect("behind the gate");
    assert!(can_finish(&sim, &t), "t waits for the first state");
    assert!(!can_finish(&sim, &u), "u waits for the second");
    gate.open();
    assert!(can_finish(&sim, &u));
}

#[test]
fn e2_a_wait_before_the_record_waits_for_nothing() {
    let sim = sim();
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let event = sim.event().expect("an event");
    sim.wait(&t, &event).expect("a wait that orders nothing");
    let gate = sim.gate(&s).expect("an endless kernel");
    sim.record(&event, &s).expect("too late for t");
    assert!(can_finish(&sim, &t));
    gate.open();
}

#[test]
fn e2_an_event_never_recorded_is_an_empty_set() {
    let sim = sim().schedule(Schedule::Latest);
    let (s, event) = (sim.stream().expect("s"), sim.event().expect("an event"));
    assert!(sim.query(&event).expect("a query"), "nothing captured, nothing pending");
    assert!(sim.wait_event(&event, Duration::MAX).expect("a host wait"));
    sim.wait(&s, &event).expect("a wait");
    assert!(can_finish(&sim, &s));
}

#[test]
fn e2_a_record_captures_everything_before_it_and_nothing_after() {
    let sim = sim();
    let s = sim.stream().expect("s");
    let before = mark(&sim, &s);
    let gate = sim.gate(&s).expect("an endless kernel");
    let behind = mark(&sim, &s);
    assert!(sim.query(&before).expect("a query"));
    assert!(!sim.query(&behind).expect("a query"));
    gate.open();
    assert!(sim.query(&behind).expect("a query"));
}

#[test]
fn e2_waits_are_transitive() {
    let sim = sim();
    let (s, t, u) = (sim.stream().expect("s"), sim.stream().expect("t"), sim.stream().expect("u"));
    let gate = sim.gate(&s).expect("an endless kernel");
    sim.wait(&t, &mark(&sim, &s)).expect("t after s");
    sim.wait(&u, &mark(&sim, &t)).expect("u after t");
    assert!(!can_finish(&sim, &u), "u after s");
    gate.open();
    assert!(can_finish(&sim, &u));
}

#[test]
fn e3_a_synchronised_stream_has_run() {
    let sim = sim().schedule(Schedule::Latest);
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let (on_s, on_t) = (mark(&sim, &s), mark(&sim, &t));
    assert!(!sim.query(&on_s).expect("a query"), "as late as legal");
    sim.synchronize_stream(&s).expect("a host wait");
    assert!(sim.query(&on_s).expect("a query"));
    assert!(!sim.query(&on_t).expect("a query"), "the other stream is not concerned");
    sim.synchronize_device().expect("a host wait");
    assert!(sim.query(&on_t).expect("a query"));
}

#[test]
fn e3_waiting_for_an_event_runs_what_it_captured_and_no_more() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    let first = mark(&sim, &s);
    let second = mark(&sim, &s);
    assert!(sim.wait_event(&first, Duration::MAX).expect("a host wait"));
    assert!(!sim.query(&second).expect("a query"));
}

#[test]
fn e4_the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let sim = sim();
    let (blocking, other) = (sim.blocking_stream().expect("b"), sim.blocking_stream().expect("o"));
    let (free, legacy) = (sim.stream().expect("n"), sim.legacy_stream());
    let gate = sim.gate(&blocking).expect("an endless kernel");
    sim.launch(&legacy, touch_nothing()).expect("behind the gate");
    let on_legacy = mark(&sim, &legacy);
    assert!(!sim.query(&on_legacy).expect("a query"), "it waits for the blocking stream");
    assert!(!can_finish(&sim, &other), "later work of another blocking stream waits for the legacy stream");
    assert!(can_finish(&sim, &free), "a non-blocking stream is outside");
    gate.open();
    assert!(can_finish(&sim, &other) && sim.query(&on_legacy).expect("a query"));

    let gate = sim.gate(&free).expect("an endless kernel");
    assert!(can_finish(&sim, &legacy), "and the legacy stream does not wait for it");
    gate.open();
}

#[test]
fn e4_records_and_waits_on_the_legacy_stream_are_actions_too() {
    let sim = sim();
    let (blocking, s, legacy) =
        (sim.blocking_stream().expect("b"), sim.stream().expect("s"), sim.legacy_stream());
    let gate = sim.gate(&blocking).expect("an endless kernel");
    let recorded = mark(&sim, &legacy);
    assert!(!sim.query(&recorded).expect("a query"), "a record alone waits for the blocking streams");
    gate.open();
    let gate = sim.gate(&s).expect("an endless kernel");
    sim.wait(&legacy, &mark(&sim, &s)).expect("the legacy stream waits for s");
    assert!(!can_finish(&sim, &blocking), "and blocking streams behind it");
    gate.open();
}

#[test]
fn e4_work_before_the_legacy_operation_does_not_wait_for_it() {
    let sim = sim();
    let (a, b, legacy) =
        (sim.blocking_stream().expect("a"), sim.blocking_stream().expect("b"), sim.legacy_stream());
    let before = mark(&sim, &b);
    let gate = sim.gate(&a).expect("an endless kernel");
    sim.launch(&legacy, touch_nothing()).expect("queued");
    assert!(sim.query(&before).expect("a query"));
    gate.open();
}

#[test]
fn e4_per_thread_default_streams_are_blocking_and_one_for_each_thread() {
    let sim = sim();
    let mine = sim.per_thread_stream();
    let my_id = sim.stream_info(&mine).expect("info").id;
    let their_id = std::thread::scope(|scope| {
        let sim = &sim;
        let shared = &mine;
        scope.spawn(move || sim.stream_info(shared).expect("info").id).join().expect("the thread")
    });
    assert_ne!(my_id, their_id, "the same value, another stream");
    assert_eq!(
        sim.stream_info(&sim.per_thread_stream()).expect("info").id,
        my_id,
        "and the same one each time"
    );

    let gate = sim.gate(&mine).expect("an endless kernel");
    std::thread::scope(|scope| {
        let sim = &sim;
        let other = || can_finish(sim, &sim.per_thread_stream());
        assert!(scope.spawn(other).join().expect("the thread"), "two threads' streams are not ordered");
    });
    assert!(!can_finish(&sim, &sim.legacy_stream()), "the legacy stream waits for it");
    gate.open();
}

#[test]
fn e5_a_host_function_is_an_operation_of_its_stream() {
    let sim = sim();
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let ran = Arc::new(Mutex::new(Vec::new()));
    let say = |word: &'static str| {
        let ran = ran.clone();
        move || ran.lock().expect("ran").push(word)
    };
    let gate = sim.gate(&s).expect("an endless kernel");
    sim.host_function(&s, say("first")).expect("queued");
    sim.wait(&t, &mark(&sim, &s)).expect("t after it");
    sim.host_function(&t, say("second")).expect("queued");
    assert!(ran.lock().expect("ran").is_empty());
    gate.open();
    assert_eq!(*ran.lock().expect("ran"), ["first", "second"]);
}

#[test]
fn e5_a_host_function_may_make_no_driver_call() {
    let sim = sim();
    let s = sim.stream().expect("s");
    let answer = Arc::new(Mutex::new(None));
    let (inside, seen) = (sim.clone(), answer.clone());
    sim.host_function(&s, move || *seen.lock().expect("answer") = inside.event().err()).expect("queued");
    let error = answer.lock().expect("answer").take().expect("it ran, and was refused");
    assert_eq!((error.code, error.kind), (800, DriverErrorKind::Other));
}

#[test]
fn e5_a_host_function_may_drop_streams_and_events() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    let dropped = (sim.stream().expect("t"), sim.event().expect("an event"), s.clone());
    sim.host_function(&s, move || drop(dropped)).expect("queued");
    drop(s);
    assert!(sim.run_until_idle());
    assert_eq!(sim.leaks(), []);
}

#[test]
fn e5_a_panicking_host_function_is_finished_and_reported_later_and_the_device_goes_on() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    sim.host_function(&s, || panic!("as planned")).expect("queued");
    let event = mark(&sim, &s);
    sim.synchronize_stream(&s).expect("a driver call, which may be a destructor's, passes no panic on");
    assert!(sim.wait_event(&event, Duration::MAX).expect("a wait"), "what is behind it runs");
    assert!(sim.event().is_ok(), "driver calls are allowed again");
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.run_until_idle()))
        .expect_err("passed on");
    assert_eq!(panic.downcast_ref(), Some(&"as planned"));
    assert!(sim.run_until_idle(), "once");
    let (found, 1) = sim.mismatches() else { panic!("one finding") };
    assert_eq!((found[0].kind, found[0].position), (MismatchKind::Panicked, 1));
    let text = sim.verdict().expect_err("it is a finding").to_string();
    assert!(
        text.contains("`host function` panicked") && text.contains(", operation 0 of stream 0"),
        "{text}"
    );
}

/// The first panic that the executor kept.
fn kept_panic(sim: &Sim) -> Box<dyn std::any::Any + Send> {
    let run = std::panic::AssertUnwindSafe(|| sim.run_until_idle());
    std::panic::catch_unwind(run).expect_err("passed on")
}

/// The last operation of a stream that is gone buries it.
#[test]
fn e5_the_last_panic_of_a_stream_that_is_gone_is_reported() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    sim.host_function(&s, || panic!("as planned")).expect("queued");
    drop(s);
    sim.synchronize_device().expect("a driver call passes no panic on");
    assert_eq!(kept_panic(&sim).downcast_ref(), Some(&"as planned"));
    let (found, 1) = sim.mismatches() else { panic!("one finding") };
    assert!(found[0].to_string().contains(", operation 0 of stream 0"), "{}", found[0]);
    assert_eq!(sim.leaks(), []);
}

/// What a panic carries may come back into the simulator, or panic itself, when it is dropped.
#[test]
fn e5_what_later_panics_carry_is_dropped_outside_the_device() {
    struct Breaks;
    impl Drop for Breaks {
        fn drop(&mut self) {
            panic!("in a drop");
        }
    }
    let sim = sim().schedule(Schedule::Latest);
    let (s, event) = (sim.stream().expect("s"), sim.event().expect("an event"));
    sim.host_function(&s, || panic!("the first")).expect("queued");
    sim.host_function(&s, || std::panic::panic_any(event)).expect("queued");
    sim.host_function(&s, || std::panic::panic_any(Breaks)).expect("queued");
    sim.synchronize_stream(&s).expect("a driver call passes no panic on");
    assert_eq!(kept_panic(&sim).downcast_ref(), Some(&"the first"));
    assert_eq!(sim.mismatches().1, 3, "each is reported");
    drop(s);
    assert_eq!(sim.leaks(), []);
}

#[test]
fn a_panic_of_a_body_passes_out_of_no_drop() {
    // Each of these runs the body: inside a free, an unpinning, a drop that records an event by the coin's choice.
    type Drops = (&'static str, Schedule, fn(&Sim, &SimStream));
    let drops: [Drops; 4] = [
        ("a range", Schedule::Latest, |sim, s| {
            let range = sim.allocate(512).expect("memory");
            queue_panics(sim, s);
            drop(range);
        }),
        ("a pinned range", Schedule::Latest, |sim, s| {
            let pinned = sim.pin(512, millpond::driver::HostKind::Cached).expect("pinned");
            queue_panics(sim, s);
            drop(pinned);
        }),
        ("an allocator", Schedule::Latest, |sim, _| {
            let gpu = Allocator::new(sim.clone(), Config::default()).expect("an allocator");
            let stream = gpu.stream().expect("a stream");
            let held = gpu.alloc(4096, &stream).expect("memory");
            queue_panics(sim, stream.native());
            drop((held, stream, gpu));
        }),
        ("array and tokens", Schedule::Random(3), |sim, _| {
            let gpu = Allocator::new(sim.clone(), Config::default()).expect("an allocator");
            let stream = gpu.stream().expect("a stream");
            for _ in 0..50 {
                let x = gpu.zeros::<u8>(4096, &stream).expect("memory");
                queue_panics(sim, stream.native());
                let y = x.to_pinned(&stream).expect("a copy");
                drop((y, x));
            }
            drop((stream, gpu));
        }),
    ];
    for (what, schedule, drops) in drops {
        let sim = sim().schedule(schedule);
        let s = sim.stream().expect("s");
        drops(&sim, &s);
        assert!(sim.mismatches().1 > 0, "the drop of {what} ran nothing");
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.run_until_idle()));
    }
}

/// Puts a kernel and a host function on a stream that panic, and catches what an earlier one is passed on as.
fn queue_panics(sim: &Sim, stream: &SimStream) {
    let kernel = Launch::new("panics").body(|_| panic!("as planned"));
    let queue = || {
        sim.launch(stream, kernel).expect("queued");
        sim.host_function(stream, || panic!("as planned")).expect("queued");
    };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(queue));
}

#[test]
fn no_number_is_too_large_for_virtual_time_or_for_ticks() {
    for schedule in [Schedule::Earliest, Schedule::Latest, Schedule::Random(1)] {
        let sim = sim().schedule(schedule).hold(u64::MAX);
        let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
        sim.tick();
        for _ in 0..3 {
            sim.launch(&s, touch_nothing().takes(u64::MAX)).expect("queued");
            sim.wait(&t, &mark(&sim, &s)).expect("t after it");
            sim.launch(&t, touch_nothing().takes(u64::MAX - 7)).expect("queued");
            sim.tick();
        }
        assert!(!sim.idle(), "held for ever, as asked");
        sim.synchronize_device().expect("a host wait runs it all the same");
        let (event, end) = (mark(&sim, &s), sim.makespan());
        assert_eq!(end, Duration::from_nanos(u64::MAX), "the end of all time");
        sim.not_ready(u32::MAX);
        sim.not_ready(1);
        sim.not_ready_event(&event, u32::MAX).expect("planted");
        sim.not_ready_event(&event, 1).expect("planted");
        assert!(!sim.query(&event).expect("a query"));
        drop(sim.allocate(512).expect("memory"));
        assert_eq!(sim.makespan(), end);
    }
}

#[test]
fn e7_destroying_a_stream_returns_at_once_and_its_work_goes_on() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(4096).expect("memory"));
    let gate = sim.gate(&s).expect("an endless kernel");
    sim.launch(&s, Launch::write_pattern(range.addr(), 4096, A)).expect("queued");
    let event = mark(&sim, &s);
    let waits = sim.ledger().host_waits;
    drop(s);
    assert_eq!(sim.ledger().host_waits, waits, "no host wait");
    assert!(!sim.query(&event).expect("a query"));
    gate.open();
    assert!(sim.query(&event).expect("a query"), "pending work of a destroyed stream runs");
    let t = sim.stream().expect("t");
    sim.launch(&t, Launch::check_pattern(range.addr(), 4096, A)).expect("queued");
    assert_eq!(sim.mismatches().1, 0);
}

#[test]
fn e7_a_destroyed_streams_handle_comes_back_and_its_id_does_not() {
    let sim = sim();
    let s = sim.stream().expect("s");
    let (handle, id) = (s.handle(), sim.stream_info(&s).expect("info").id);
    let gate = sim.gate(&s).expect("an endless kernel");
    drop(s);
    let t = sim.stream().expect("t");
    assert_eq!(t.handle(), handle, "at once, although work is pending");
    assert_ne!(sim.stream_info(&t).expect("info").id, id);
    assert!(can_finish(&sim, &t), "an event on the new stream is done while the old work runs");
    assert!(!sim.idle());
    gate.open();
}

#[test]
fn e8_recording_again_forgets_what_the_event_captured() {
    let sim = sim();
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let gate = sim.gate(&s).expect("an endless kernel");
    let event = mark(&sim, &s);
    assert!(!sim.query(&event).expect("a query"));
    sim.record(&event, &t).expect("recorded on another stream");
    assert!(sim.query(&event).expect("a query"), "s is forgotten");

    sim.record(&event, &s).expect("on s");
    sim.wait(&t, &event).expect("to keep s, let t wait for it first");
    sim.record(&event, &t).expect("then on t");
    assert!(!sim.query(&event).expect("a query"), "both");
    gate.open();
}
