//! The rules of order, E1 to E8, as far as clocks go; the same facts of the whole device are in `tests/on_sim/facts/order.rs`.

use super::*;

/// Whether an allocation used and freed at the end of stream `from` may be reused on `to`, after `between`.
fn ordered(from: u32, to: u32, between: impl FnOnce(&mut Bench)) -> bool {
    ordered_in(Bench::new(), from, to, between)
}
fn ordered_in(mut b: Bench, from: u32, to: u32, between: impl FnOnce(&mut Bench)) -> bool {
    let a = b.alloc(from, 0, 512);
    b.write(from, a, 0, 512);
    b.free(a);
    between(&mut b);
    let c = b.alloc(to, 0, 512);
    b.write(to, c, 0, 512);
    let found = b.oracle.violations();
    assert!(found.iter().all(|v| v.fault == Fault::EarlyReuse && v.blame == Blame::Allocator));
    found.is_empty()
}

#[test]
fn e1_program_order_on_one_stream() {
    assert!(ordered(1, 1, |_| {}));
    assert!(!ordered(1, 2, |_| {}));
}

#[test]
fn e2_a_wait_takes_what_the_event_captures_at_the_wait() {
    // A later record of the same event does not move a wait already made: neither forward ...
    let forward = |b: &mut Bench| {
        b.record(0, 3);
        b.wait(2, 0);
        b.record(0, 1);
    };
    assert!(!ordered(1, 2, forward));
    // ... nor back.
    let back = |b: &mut Bench| {
        b.record(0, 1);
        b.wait(2, 0);
        b.record(0, 3);
    };
    assert!(ordered(1, 2, back));
    assert!(!ordered(1, 2, |b| b.wait(2, 0)), "an event never recorded is an empty set");
}

#[test]
fn e2_a_wait_orders_no_work_submitted_before_it() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    let early = b.submit(2);
    b.order(1, 2);
    let c = b.alloc(2, 0, 512);
    b.oracle.access(early, Some(MAP), SEGMENT, 0, 512, Write, Some(c));
    let faults: Vec<_> = b.oracle.violations().iter().map(|v| v.fault).collect();
    assert!(!faults.is_empty(), "an operation keeps the order it was submitted with");
}

#[test]
fn e2_a_context_record_captures_every_stream_and_the_destroyed_ones() {
    let context = |b: &mut Bench| {
        b.oracle.record_context(HOST, EventKey(0), DEVICE);
        b.wait(2, 0);
    };
    for from in [1, 7, LEGACY, 10] {
        assert!(ordered(from, 2, context), "stream {from}");
    }
    assert!(ordered(1, 2, |b| {
        b.oracle.stream_destroyed(StreamKey(1));
        context(b);
    }));
    let elsewhere = |b: &mut Bench| {
        b.oracle.record_context(HOST, EventKey(0), DeviceId(1));
        b.wait(2, 0);
    };
    assert!(!ordered(1, 2, elsewhere), "another device's record says nothing");
}

#[test]
fn e2_a_context_record_holds_nothing_later_back() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.oracle.record_context(HOST, EventKey(0), DEVICE);
    b.write(1, a, 0, 512);
    b.free(a);
    b.wait(2, 0);
    let c = b.alloc(2, 0, 512);
    b.write(2, c, 0, 512);
    b.convicts_early_reuse();
}

#[test]
fn e3_the_host_orders_what_it_submits_after_it_saw_completion() {
    assert!(ordered(1, 2, |b| b.synchronize(1)));
    assert!(!ordered(1, 2, |b| b.synchronize(3)));
    assert!(ordered(1, 2, |b| b.oracle.host_sees_device(HOST, DEVICE)));
    assert!(!ordered(1, 2, |b| b.oracle.host_sees_device(HOST, DeviceId(1))));
    let other_event = |b: &mut Bench| {
        b.record(0, 3);
        b.oracle.host_sees_event(HOST, EventKey(0));
    };
    assert!(!ordered(1, 2, other_event));
    assert!(
        !ordered(1, 2, |b| b.oracle.host_sees_event(HOST, EventKey(0))),
        "never recorded: nothing was seen"
    );
}

#[test]
fn e3_seeing_a_stream_complete_is_seeing_what_it_waited_for() {
    let chain = |b: &mut Bench| {
        b.order(1, 3);
        b.submit(3);
        b.synchronize(3);
    };
    assert!(ordered(1, 2, chain));
}

#[test]
fn e3_strict_another_thread_needs_an_edge() {
    let seen_by_1 = |b: &mut Bench| b.oracle.host_sees_stream(HostKey(1), StreamKey(1));
    assert!(ordered_in(Bench::new(), 1, 2, seen_by_1), "one host clock: what one saw, all know");
    assert!(!ordered_in(Bench::with(true), 1, 2, seen_by_1));
    let handed_over = |b: &mut Bench| {
        seen_by_1(b);
        b.oracle.host_edge(HostKey(1), HOST);
    };
    assert!(ordered_in(Bench::with(true), 1, 2, handed_over));
    let too_early = |b: &mut Bench| {
        b.oracle.host_edge(HostKey(1), HOST);
        seen_by_1(b);
    };
    assert!(!ordered_in(Bench::with(true), 1, 2, too_early));
}

#[test]
fn e3_strict_the_device_orders_threads_too() {
    // Thread 1 waits on the device for what thread 0 recorded: this needs no edge between the threads.
    let mut b = Bench::with(true);
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.record(0, 1);
    b.oracle.wait(HostKey(1), StreamKey(2), EventKey(0));
    let c = b.id();
    b.oracle.allocated(HostKey(1), c, Addr(BASE), &[(SEGMENT, 0, 512)], Some(StreamKey(2)));
    let op = b.oracle.submit(HostKey(1), StreamKey(2), "kernel");
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 512, Write, Some(c));
    b.passes();
}

#[test]
fn e3_strict_an_allocation_reaches_another_thread_by_an_edge() {
    for edge in [true, false] {
        let mut b = Bench::with(true);
        let a = b.alloc(1, 0, 512);
        if edge {
            b.oracle.host_edge(HOST, HostKey(1));
        }
        let op = b.oracle.submit(HostKey(1), StreamKey(1), "kernel");
        b.oracle.access(op, Some(MAP), SEGMENT, 0, 512, Write, Some(a));
        if edge {
            b.passes();
        } else {
            let v = b.convicts(Property::P3, Blame::Program, Fault::BeforeAllocation);
            assert_eq!(v.missing.unwrap().from, Point::Host { thread: Some(HOST) });
            assert!(v.to_string().contains("missing edge: host thread 0 -> "), "{v}");
        }
    }
}

#[test]
fn e4_an_action_on_the_legacy_stream_waits_for_blocking_ones() {
    for from in [7, 10] {
        assert!(ordered(from, LEGACY, |_| {}), "stream {from}");
    }
    assert!(!ordered(1, LEGACY, |_| {}));
}

#[test]
fn e4_blocking_streams_wait_for_the_legacy_stream() {
    for to in [8, 11] {
        // Without any action of the legacy stream in between: its earlier ones count.
        assert!(ordered(LEGACY, to, |_| {}), "stream {to}");
    }
    assert!(!ordered(LEGACY, 2, |_| {}));
    assert!(!ordered(7, 8, |_| {}), "two blocking streams are not ordered by themselves");
}

#[test]
fn e4_records_and_waits_of_the_legacy_stream_are_actions_too() {
    assert!(ordered(7, 8, |b| b.record(0, LEGACY)));
    assert!(ordered(7, 8, |b| {
        b.record(0, 1);
        b.wait(LEGACY, 0);
    }));
    // What the legacy stream waited for, later work on blocking streams waits for.
    assert!(ordered(1, 8, |b| b.order(1, LEGACY)));
    // What a blocking stream waited for, a legacy action waits for.
    assert!(ordered(1, LEGACY, |b| b.order(1, 7)));
}

#[test]
fn e4_a_record_on_a_blocking_stream_follows_the_legacy_stream() {
    assert!(ordered(LEGACY, 2, |b| b.order(7, 2)));
}

#[test]
fn e4_only_on_one_device() {
    let other = |b: &mut Bench| {
        b.oracle.stream_created(StreamKey(20), StreamId(20), StreamKind::LegacyDefault, DeviceId(1));
        b.oracle.stream_created(StreamKey(21), StreamId(21), StreamKind::Blocking, DeviceId(1));
        b.oracle.submit(HOST, StreamKey(20), "kernel");
    };
    assert!(!ordered(7, 8, other));
    assert!(!ordered(7, 21, other));
}

#[test]
fn e4_a_new_action_is_seen_after_an_old_one_was() {
    // The shortcuts that skip joins must not skip the second round.
    let mut b = Bench::new();
    b.submit(7);
    b.submit(LEGACY);
    b.submit(8);
    let a = b.alloc(7, 0, 512);
    b.write(7, a, 0, 512);
    b.free(a);
    b.submit(LEGACY);
    let c = b.alloc(8, 0, 512);
    b.write(8, c, 0, 512);
    b.passes();
}

#[test]
fn e5_a_host_function_is_an_operation_of_its_stream() {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.touch_pinned(1, Write, a, 0, 512);
    let op = b.oracle.submit(HOST, StreamKey(1), "host function");
    b.oracle.access(op, None, PINNED, 0, 512, Read, Some(a));
    b.passes();
}

#[test]
fn e6_a_wait_may_cross_devices() {
    let mut b = Bench::new();
    b.oracle.stream_created(StreamKey(20), StreamId(20), StreamKind::NonBlocking, DeviceId(1));
    let crossing = |b: &mut Bench| b.order(1, 20);
    assert!(ordered_in(b, 1, 20, crossing));
}

#[test]
fn e7_pending_work_of_a_destroyed_stream_goes_on() {
    let destroyed = |b: &mut Bench| b.oracle.stream_destroyed(StreamKey(1));
    assert!(!ordered(1, 2, destroyed), "destroying is not completing");
    assert!(ordered(1, 2, |b| {
        b.record(0, 1);
        destroyed(b);
        b.wait(2, 0);
    }));
    assert!(ordered(1, 2, |b| {
        destroyed(b);
        b.oracle.host_sees_device(HOST, DEVICE);
    }));
}

#[test]
fn e7_memory_may_outlive_its_stream() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.oracle.stream_destroyed(StreamKey(1));
    b.free(a);
    let c = b.alloc(2, 0, 512);
    b.write(2, c, 0, 512);
    let v = b.convicts_early_reuse();
    let freed = v.earlier.as_ref().unwrap().allocation.as_ref().unwrap().freed;
    assert_eq!(freed, Some(Point::Stream { id: StreamId(1), position: 1 }));
}

#[test]
fn e8_a_second_record_forgets_the_first() {
    assert!(!ordered(1, 2, |b| {
        b.record(0, 1);
        b.record(0, 3);
        b.wait(2, 0);
    }));
    // To accumulate, wait before recording again.
    assert!(ordered(1, 2, |b| {
        b.record(0, 1);
        b.wait(3, 0);
        b.record(0, 3);
        b.wait(2, 0);
    }));
}

#[test]
fn thousands_of_short_lived_streams_leave_clocks_lean_and_order_intact() {
    let mut b = Bench::new();
    let forgotten = b.alloc(1, 2048, 512);
    b.write(1, forgotten, 2048, 512);
    b.free(forgotten);
    for n in 100..3100 {
        b.oracle.stream_created(StreamKey(n), StreamId(u64::from(n)), StreamKind::NonBlocking, DEVICE);
        let a = b.alloc(n, 0, 512);
        b.write(n, a, 0, 512);
        b.free(a);
        b.order(n, 2);
        b.synchronize(n);
        b.oracle.stream_destroyed(StreamKey(n));
    }
    assert!(b.oracle.order.widest_clock() <= 300, "{}", b.oracle.order.widest_clock());
    b.passes();
    let c = b.alloc(2, 2048, 512);
    b.write(2, c, 2048, 512);
    b.convicts_early_reuse();
    b.oracle.host_sees_device(HOST, DEVICE);
    assert!(b.oracle.order.widest_clock() <= 300, "{}", b.oracle.order.widest_clock());
}

#[test]
fn destroyed_streams_with_pending_work_are_not_forgotten() {
    let mut b = Bench::new();
    for n in 100..300 {
        b.oracle.stream_created(StreamKey(n), StreamId(u64::from(n)), StreamKind::NonBlocking, DEVICE);
        let offset = u64::from(n - 100) * 16;
        let a = b.alloc(n, offset, 16);
        b.write(n, a, offset, 16);
        b.free(a);
        b.oracle.stream_destroyed(StreamKey(n));
        b.submit(1);
        b.synchronize(1);
    }
    let c = b.alloc(2, 0, 16);
    b.write(2, c, 0, 16);
    b.convicts_early_reuse();
}

#[test]
#[should_panic(expected = "StreamKey(1), which is destroyed")]
fn an_action_on_a_destroyed_stream_is_the_callers_fault() {
    let mut b = Bench::new();
    b.oracle.stream_destroyed(StreamKey(1));
    b.submit(1);
}
