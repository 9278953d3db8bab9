//! Streams and events: the rules E1 to E8 of `sim/src/oracle/mod.rs`, as far as a program can observe them.

use super::*;
use millpond::driver::Memory;
use raw_calls::read;

/// E1: the operations of one stream run in the order in which they were queued.
pub fn stream_order<T: Bench>(b: &T) {
    let (s, range) = (stream(b), b.device().allocate(MIB).expect("memory"));
    b.write(&s, range.addr(), MIB, A);
    b.check(&s, range.addr(), MIB, A);
    b.write(&s, range.addr(), MIB, B);
    b.check(&s, range.addr(), MIB, B);
    finish_stream(b, &s);
}

/// The bench itself: a check for a word that was not written must fail.
pub fn a_wrong_pattern_is_found<T: Bench>(b: &T) {
    let (s, range) = (stream(b), b.device().allocate(MIB).expect("memory"));
    b.write(&s, range.addr(), MIB, A);
    b.write(&s, range.addr().plus(MIB - 8), 8, B);
    b.check(&s, range.addr(), MIB, A);
    finish_stream(b, &s);
}

/// The bench itself: a gate holds what is queued after it on its stream, and nothing else.
pub fn gated_work_is_pending<T: Bench>(b: &T) {
    let (s, t) = (stream(b), stream(b));
    let gate = b.gate(&s);
    let (behind, beside) = (mark(b, &s), mark(b, &t));
    assert!(done(b, &beside), "another stream runs");
    assert!(pending(b, &behind));
    b.open(gate);
    assert!(done(b, &behind));
}

/// E2: work that is queued after a wait runs after what the event captured.
pub fn a_wait_orders<T: Bench>(b: &T) {
    let (s, t, range) = (stream(b), stream(b), b.device().allocate(MIB).expect("memory"));
    let gate = b.gate(&s);
    b.write(&s, range.addr(), MIB, A);
    let written = mark(b, &s);
    b.device().wait(&t, &written).expect("a wait");
    b.check(&t, range.addr(), MIB, A);
    let checked = mark(b, &t);
    assert!(pending(b, &checked), "t waits for s");
    b.open(gate);
    assert!(done(b, &checked));
}

/// E2: an event that was never recorded has captured nothing.
pub fn an_event_never_recorded_is_empty<T: Bench>(b: &T) {
    let (s, t, event) = (stream(b), stream(b), b.device().create_event().expect("an event"));
    let gate = b.gate(&s);
    assert!(!pending(b, &event), "a query says done");
    b.device().wait(&t, &event).expect("a wait");
    assert!(done(b, &mark(b, &t)), "the wait waits for nothing");
    b.open(gate);
    finish_stream(b, &s);
}

/// E2: a wait is for what the event has captured at the time of the call; a later record does not change it.
pub fn a_later_record_moves_no_wait<T: Bench>(b: &T) {
    let (s, t, idle) = (stream(b), stream(b), stream(b));
    let gate = b.gate(&s);
    let event = mark(b, &s);
    b.device().wait(&t, &event).expect("a wait");
    b.device().record(&event, &idle).expect("recorded elsewhere");
    assert!(done(b, &event), "the event itself is for the later record");
    let behind = mark(b, &t);
    assert!(pending(b, &behind), "the wait is not");
    b.open(gate);
    assert!(done(b, &behind));
}

/// E2: a wait that is queued before the record does not wait for it.
pub fn a_wait_before_the_record_waits_for_nothing<T: Bench>(b: &T) {
    let (s, t, event) = (stream(b), stream(b), b.device().create_event().expect("an event"));
    let gate = b.gate(&s);
    b.device().wait(&t, &event).expect("a wait");
    b.device().record(&event, &s).expect("too late");
    assert!(done(b, &mark(b, &t)));
    assert!(pending(b, &event));
    b.open(gate);
    assert!(done(b, &event));
}

/// E8: a record replaces what the event captured before.
pub fn a_record_forgets_what_was_captured_before<T: Bench>(b: &T) {
    let (s, idle, t) = (stream(b), stream(b), stream(b));
    let gate = b.gate(&s);
    let event = mark(b, &s);
    let still_there = mark(b, &s);
    b.device().record(&event, &idle).expect("recorded again");
    assert!(done(b, &event), "only the latest record counts");
    b.device().wait(&t, &event).expect("a wait");
    assert!(done(b, &mark(b, &t)));
    assert!(pending(b, &still_there));
    b.open(gate);
    assert!(done(b, &still_there));
}

/// E3: what the host saw complete is visible to every stream and to the host.
pub fn what_the_host_saw_complete_is_there<T: Bench>(b: &T) {
    let (s, t, range) = (stream(b), stream(b), b.device().allocate(4 * KIB).expect("memory"));
    b.write(&s, range.addr(), 4 * KIB, A);
    let event = mark(b, &s);
    assert!(done(b, &event));
    assert!(!pending(b, &event), "a query says that it is complete too");
    assert_eq!(read(b, range.addr(), 8, &t), A.to_le_bytes());
    b.write(&t, range.addr(), 4 * KIB, B);
    finish_stream(b, &t);
    b.check(&s, range.addr(), 4 * KIB, B);
    b.device().synchronize_device().expect("waited");
}

/// E4: the legacy default stream first waits for blocking streams, and for no others.
pub fn the_legacy_stream_waits_for_blocking_streams_only<T: Bench>(b: &T) {
    let (legacy, blocking, free) = (b.legacy(), blocking_stream(b), stream(b));
    let gate = b.gate(&free);
    assert!(done(b, &mark(b, &legacy)), "it does not wait for a non-blocking stream");
    let other = b.gate(&blocking);
    let behind = mark(b, &legacy);
    assert!(pending(b, &behind));
    b.open(other);
    assert!(done(b, &behind));
    b.open(gate);
    finish_stream(b, &free);
}

/// E4: blocking streams wait for the legacy stream, non-blocking ones do not.
pub fn blocking_streams_wait_for_the_legacy_stream<T: Bench>(b: &T) {
    let (legacy, blocking, free) = (b.legacy(), blocking_stream(b), stream(b));
    let gate = b.gate(&legacy);
    let behind = mark(b, &blocking);
    assert!(pending(b, &behind));
    assert!(done(b, &mark(b, &free)));
    b.open(gate);
    assert!(done(b, &behind));
}

/// E4: each thread has a default stream of its own, and it is a blocking one.
pub fn per_thread_streams_are_blocking_and_one_a_thread<T: Bench>(b: &T) {
    let (mine, legacy) = (b.per_thread(), b.legacy());
    let gate = b.gate(&mine);
    let behind = mark(b, &mine);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let theirs = b.per_thread();
            assert!(done(b, &mark(b, &theirs)), "another thread's stream runs");
        });
    });
    assert!(pending(b, &behind));
    let after = mark(b, &legacy);
    assert!(pending(b, &after), "the legacy stream waits for it");
    b.open(gate);
    assert!(done(b, &after) && done(b, &behind));
}
