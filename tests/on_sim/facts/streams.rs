//! Streams, contexts and captures: the driver's habits beside order itself.

use super::*;
use millpond::driver::HostKind;
use millpond::driver::StreamKind;
use millpond::error::DriverErrorKind;
use millpond_sim::Schedule;

#[test]
fn a_launch_on_a_destroyed_stream_is_refused() {
    let sim = sim();
    let s = sim.stream().expect("s");
    sim.destroy_stream(&s).expect("destroyed");
    let error = sim.launch(&s, touch_nothing()).expect_err("destroyed");
    assert_eq!((error.call, error.code, error.kind), ("cuLaunchKernel", 400, DriverErrorKind::InvalidHandle));
    let error = sim.destroy_stream(&s).expect_err("twice");
    assert_eq!(error.kind, DriverErrorKind::InvalidHandle);
    drop(s);
    assert_eq!(sim.ledger().streams, 0, "dropping the reference destroys nothing twice");
}

#[test]
fn a_borrowed_handle_value_means_the_stream_that_has_it_now() {
    let sim = sim();
    let s = sim.stream().expect("s");
    let borrowed = sim.stream_from_handle(s.handle());
    let first = sim.stream_info(&borrowed).expect("info").id;
    assert_eq!(first, sim.stream_info(&s).expect("info").id);
    drop(s);
    assert_eq!(
        sim.stream_info(&borrowed).expect_err("the stream is gone").kind,
        DriverErrorKind::InvalidHandle
    );
    let t = sim.stream().expect("t");
    assert_ne!(sim.stream_info(&borrowed).expect("info").id, first, "another stream under the same value");
    drop(borrowed);
    assert!(sim.launch(&t, touch_nothing()).is_ok(), "a borrowed reference destroys nothing");
}

#[test]
fn kinds_of_streams() {
    let sim = sim();
    let kind = |s: &SimStream| sim.stream_info(s).expect("info").kind;
    assert_eq!(kind(&sim.stream().expect("s")), StreamKind::NonBlocking);
    assert_eq!(kind(&sim.blocking_stream().expect("s")), StreamKind::Blocking);
    assert_eq!(kind(&sim.legacy_stream()), StreamKind::LegacyDefault);
    assert_eq!(kind(&sim.per_thread_stream()), StreamKind::PerThreadDefault);
    assert_eq!(kind(&sim.stream_from_handle(0)), StreamKind::LegacyDefault);
    assert_eq!(kind(&sim.stream_from_handle(2)), StreamKind::PerThreadDefault);
    assert!(sim.destroy_stream(&sim.legacy_stream()).is_err());
}

#[test]
fn a_context_event_covers_every_kind_of_stream_destroyed_ones_too_and_holds_nothing_back() {
    let sim = sim();
    let dead = sim.stream().expect("dead");
    let streams =
        [sim.stream().expect("s"), sim.blocking_stream().expect("b"), sim.per_thread_stream(), dead.clone()];
    let mut gates: Vec<_> = streams.iter().map(|s| sim.gate(s).expect("an endless kernel")).collect();
    drop(streams);
    drop(dead);
    let event = sim.event().expect("an event");
    sim.record_context(&event).expect("recorded");
    assert!(can_finish(&sim, &sim.stream().expect("new")), "later work elsewhere is not held back");
    while let Some(gate) = gates.pop() {
        assert!(!sim.query(&event).expect("a query"), "{} gates are closed", gates.len() + 1);
        gate.open();
    }
    assert!(sim.query(&event).expect("a query"));
}

#[test]
fn a_stream_may_wait_for_a_context_event() {
    let sim = sim();
    let (s, t, event) = (sim.stream().expect("s"), sim.stream().expect("t"), sim.event().expect("e"));
    let gate = sim.gate(&s).expect("an endless kernel");
    sim.record_context(&event).expect("recorded");
    sim.wait(&t, &event).expect("a wait");
    assert!(!can_finish(&sim, &t));
    gate.open();
    assert!(can_finish(&sim, &t));
}

#[test]
fn what_a_capture_records_does_not_run() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(4096).expect("memory"));
    fill(&sim, range.addr(), 1, 4096, &s).expect("run");
    sim.begin_capture(&s).expect("a capture");
    assert!(sim.is_capturing(&s).expect("asked, which is harmless"));
    fill(&sim, range.addr(), 2, 4096, &s).expect("recorded");
    sim.launch(&s, touch_nothing()).expect("recorded");
    let captured = sim.end_capture(&s).expect("the capture survived");
    assert_eq!((captured.operations, captured.streams), (2, 1));
    assert!(!sim.is_capturing(&s).expect("asked"));
    sim.launch(&s, Launch::check_pattern(range.addr(), 4096, 0x0101_0101_0101_0101)).expect("run");
    assert_eq!(sim.mismatches().1, 0, "the second fill did not run");
}

/// The stream that a capture began on ends it with itself, one that joined leaves it.
#[test]
fn a_stream_that_is_destroyed_in_its_capture() {
    let sim = sim();
    let event = sim.event().expect("an event");
    for origin in [false, true] {
        let (from, joined) = (sim.stream().expect("a stream"), sim.stream().expect("another"));
        sim.begin_capture(&from).expect("a capture");
        sim.record(&event, &from).expect("recorded");
        sim.wait(&joined, &event).expect("joined");
        if origin {
            sim.destroy_stream(&from).expect("destroyed");
            assert!(!sim.is_capturing(&joined).expect("asked"));
            sim.launch(&joined, touch_nothing()).expect("run, not recorded");
            sim.synchronize_device().expect("no capture is open");
        } else {
            sim.destroy_stream(&joined).expect("destroyed");
            let captured = sim.end_capture(&from).expect("the capture survived");
            assert_eq!(captured.streams, 2);
        }
    }
}

/// Begins a capture, does something, and says whether it was refused and whether the capture was lost.
fn during_a_capture(deed: impl FnOnce(&Sim, &SimStream) -> bool) -> (bool, bool) {
    let sim = sim();
    let s = sim.stream().expect("s");
    sim.begin_capture(&s).expect("a capture");
    let refused = deed(&sim, &s);
    let end = sim.end_capture(&s);
    if let Err(e) = &end {
        assert_eq!((e.code, e.kind), (901, DriverErrorKind::Capturing), "{e}");
    }
    (refused, end.is_err())
}

const REFUSED_AND_LOST: (bool, bool) = (true, true);
const FINE: (bool, bool) = (false, false);

#[test]
fn querying_a_capturing_streams_id_destroys_the_capture() {
    assert_eq!(during_a_capture(|sim, s| sim.stream_info(s).is_err()), REFUSED_AND_LOST);
    assert_eq!(during_a_capture(|sim, s| sim.is_capturing(s).is_err()), FINE);
    assert_eq!(during_a_capture(|sim, s| sim.synchronize_stream(s).is_err()), REFUSED_AND_LOST);
}

#[test]
fn a_context_event_destroys_any_capture_of_the_context() {
    let deed = |sim: &Sim, _: &SimStream| {
        let event = sim.event().expect("an event");
        let error = sim.record_context(&event).expect_err("refused");
        assert_eq!((error.code, error.kind), (900, DriverErrorKind::Capturing));
        true
    };
    assert_eq!(during_a_capture(deed), REFUSED_AND_LOST);
    assert_eq!(during_a_capture(|sim, s| sim.relaxed(|| deed(sim, s))), REFUSED_AND_LOST);
}

#[test]
fn queries_and_allocations_destroy_a_global_capture_from_any_thread() {
    assert_eq!(during_a_capture(|sim, _| sim.query(&sim.event().expect("e")).is_err()), REFUSED_AND_LOST);
    assert_eq!(during_a_capture(|sim, _| sim.allocate(512).is_err()), REFUSED_AND_LOST);
    assert_eq!(during_a_capture(|sim, _| sim.pin(512, HostKind::default()).is_err()), REFUSED_AND_LOST);
    assert_eq!(during_a_capture(|sim, _| sim.synchronize_device().is_err()), REFUSED_AND_LOST);
    let elsewhere = |sim: &Sim, _: &SimStream| {
        std::thread::scope(|scope| scope.spawn(|| sim.allocate(512).is_err()).join().expect("the thread"))
    };
    assert_eq!(during_a_capture(elsewhere), REFUSED_AND_LOST);
}

#[test]
fn inside_relaxed_they_do_not() {
    let deed = |sim: &Sim, _: &SimStream| {
        sim.relaxed(|| sim.query(&sim.event().expect("e")).is_err() || sim.allocate(512).is_err())
    };
    assert_eq!(during_a_capture(deed), FINE);
}

#[test]
fn virtual_memory_and_memory_info_never_concern_a_capture() {
    let deed = |sim: &Sim, _: &SimStream| {
        let at = sim.reserve(2 * MIB, None).expect("addresses");
        let handle = sim.create(2 * MIB).expect("memory");
        map(sim, at, &handle).expect("mapped");
        set_access(sim, at, 2 * MIB).expect("usable");
        unmap(sim, at, 2 * MIB).expect("unmapped");
        release(sim, &handle).expect("released");
        sim.memory_info().is_err()
    };
    assert_eq!(during_a_capture(deed), FINE);
}

#[test]
fn a_wait_for_work_outside_the_capture_destroys_it() {
    let deed = |sim: &Sim, s: &SimStream| {
        let outside = mark(sim, &sim.stream().expect("t"));
        sim.wait(s, &outside).is_err()
    };
    assert_eq!(during_a_capture(deed), REFUSED_AND_LOST);
}

#[test]
fn a_stream_that_waits_for_a_captured_event_joins_the_capture() {
    let sim = sim();
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    sim.begin_capture(&s).expect("a capture");
    let fork = mark(&sim, &s);
    sim.wait(&t, &fork).expect("joins");
    assert!(sim.is_capturing(&t).expect("asked"));
    sim.launch(&t, touch_nothing()).expect("recorded");
    assert_eq!(sim.end_capture(&s).expect("the capture survived").streams, 2);
    assert!(!sim.is_capturing(&t).expect("asked"));
    let error = sim.query(&fork).expect_err("the event was last recorded in a capture");
    assert_eq!(error.kind, DriverErrorKind::Capturing);
    sim.record(&fork, &s).expect("recorded outside");
    assert!(sim.query(&fork).expect("usable again"));
}

#[test]
fn the_legacy_stream_destroys_the_capture_of_a_blocking_stream() {
    let sim = sim();
    let s = sim.blocking_stream().expect("s");
    sim.begin_capture(&s).expect("a capture");
    assert!(sim.is_capturing(&sim.legacy_stream()).expect("asked"), "the first query reports it");
    sim.end_capture(&s).expect("the question was harmless");
    sim.begin_capture(&s).expect("a capture");
    assert_eq!(sim.launch(&sim.legacy_stream(), touch_nothing()).expect_err("refused").code, 906);
    assert_eq!(sim.end_capture(&s).expect_err("lost").code, 901);
    assert!(sim.launch(&sim.legacy_stream(), touch_nothing()).is_ok());
}

#[test]
fn after_a_lost_capture_the_stream_refuses_work_until_it_is_ended() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    sim.begin_capture(&s).expect("a capture");
    assert!(sim.stream_info(&s).is_err());
    assert_eq!(sim.launch(&s, touch_nothing()).expect_err("lost").code, 901);
    assert!(sim.end_capture(&s).is_err());
    assert!(sim.launch(&s, touch_nothing()).is_ok());
    assert_eq!(sim.begin_capture(&sim.legacy_stream()).expect_err("never").code, 900);
}
