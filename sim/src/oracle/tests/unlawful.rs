//! What must be rejected.

use super::*;

/// An allocation on stream 1, written there and freed; the reuse on stream 2 is up to the test.
fn freed_on_1(b: &mut Bench) {
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
}
fn reused_on(b: &mut Bench, stream: u32) {
    let c = b.alloc(stream, 0, 512);
    b.write(stream, c, 0, 512);
}

#[test]
fn reject_reuse_with_no_order_at_all() {
    let mut b = Bench::new();
    freed_on_1(&mut b);
    reused_on(&mut b, 2);
    b.convicts_early_reuse();
}

#[test]
fn reject_wait_on_an_event_recorded_before_the_free() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.record(0, 1);
    b.write(1, a, 0, 512);
    b.free(a);
    b.wait(2, 0);
    reused_on(&mut b, 2);
    b.convicts_early_reuse();
}

#[test]
fn reject_wait_on_an_event_never_recorded() {
    let mut b = Bench::new();
    freed_on_1(&mut b);
    b.wait(2, 0);
    reused_on(&mut b, 2);
    b.convicts_early_reuse();
    assert_eq!(b.oracle.tally().waits_on_unrecorded, 1);
}

#[test]
fn reject_wait_issued_before_the_record() {
    let mut b = Bench::new();
    freed_on_1(&mut b);
    b.wait(2, 0);
    b.record(0, 1);
    reused_on(&mut b, 2);
    b.convicts_early_reuse();
}

#[test]
fn reject_record_and_wait_in_the_wrong_order_under_threads() {
    for strict in [false, true] {
        let mut b = Bench::with(strict);
        freed_on_1(&mut b);
        // Thread 1 waits before thread 0 records; that they meet afterwards does not help.
        b.oracle.wait(HostKey(1), StreamKey(2), EventKey(0));
        b.record(0, 1);
        b.oracle.host_edge(HOST, HostKey(1));
        b.oracle.host_edge(HostKey(1), HOST);
        reused_on(&mut b, 2);
        b.convicts_early_reuse();
    }
}

#[test]
fn reject_event_captured_before_later_uses_on_a_third_stream() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 3);
    b.write(3, a, 0, 512);
    b.used(a, 3);
    b.record(0, 3);
    b.write(3, a, 0, 512);
    b.free(a);
    b.wait(2, 0);
    b.order(1, 2);
    reused_on(&mut b, 2);
    let v = b.convicts_early_reuse();
    let missing = v.missing.unwrap();
    assert_eq!(missing.from, Point::Stream { id: StreamId(3), position: 2 });
    assert_eq!(missing.known, 1);
}

#[test]
fn reject_order_through_the_legacy_stream_when_one_side_is_non_blocking() {
    for (from, to) in [(1, 8), (7, 2), (1, 2)] {
        let mut b = Bench::new();
        let a = b.alloc(from, 0, 512);
        b.write(from, a, 0, 512);
        b.free(a);
        b.submit(LEGACY);
        reused_on(&mut b, to);
        b.convicts_early_reuse();
    }
}

#[test]
fn reject_two_threads_default_streams_taken_as_one() {
    let mut b = Bench::new();
    let a = b.alloc(10, 0, 512);
    b.write(10, a, 0, 512);
    b.free(a);
    reused_on(&mut b, 11);
    b.convicts_early_reuse();
}

#[test]
fn reject_order_by_handle_after_destroy_and_create() {
    let mut b = Bench::new();
    freed_on_1(&mut b);
    // The new stream has the old one's handle; its identity is another, and so is its key.
    b.oracle.stream_destroyed(StreamKey(1));
    b.oracle.stream_created(StreamKey(12), StreamId(12), StreamKind::NonBlocking, DEVICE);
    reused_on(&mut b, 12);
    b.convicts_early_reuse();
}

#[test]
fn reject_remainder_of_a_split_with_no_stamp() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 1024);
    b.write(1, a, 0, 1024);
    b.free(a);
    let low = b.alloc(1, 0, 512);
    b.write(1, low, 0, 512);
    let rest = b.alloc(2, 512, 512);
    b.write(2, rest, 512, 512);
    assert_eq!(b.convicts_early_reuse().place.unwrap().offset, 512);
}

#[test]
fn reject_coalesced_bytes_with_only_one_neighbours_stamp() {
    for waited in [1, 3] {
        let mut b = Bench::new();
        let left = b.alloc(1, 0, 512);
        let right = b.alloc(3, 512, 512);
        b.write(1, left, 0, 512);
        b.write(3, right, 512, 512);
        b.free(left);
        b.free(right);
        b.order(waited, 2);
        let both = b.alloc(2, 0, 1024);
        b.write(2, both, 0, 1024);
        let v = b.convicts_early_reuse();
        let forgotten = if waited == 1 { right } else { left };
        assert_eq!(v.earlier.as_ref().unwrap().allocation.as_ref().unwrap().id, forgotten);
    }
}

#[test]
fn reject_memory_of_a_stream_ordered_upstream_given_to_another_stream() {
    // The upstream's own work on the memory, before any allocation was made in it, is on stream 1.
    let mut b = Bench::new();
    let op = b.submit(1);
    b.oracle.access(op, Some(MAP), SEGMENT, 0, BYTES, Write, None);
    reused_on(&mut b, 2);
    b.convicts_early_reuse();
}

#[test]
fn reject_bytes_visible_before_their_stamp() {
    // Another thread takes the bytes between the free and the record that was to guard them.
    let mut b = Bench::new();
    freed_on_1(&mut b);
    reused_on(&mut b, 2);
    b.order(1, 2);
    b.convicts_early_reuse();
}

#[test]
fn reject_physical_free_while_pending() {
    let mut b = Bench::new();
    freed_on_1(&mut b);
    b.order(1, 2);
    b.oracle.memory_released(HOST, SEGMENT);
    let v = b.convicts(Property::P4, Blame::Allocator, Fault::ReleasedWhilePending);
    assert!(
        v.to_string().contains("missing edge: operation 0 of stream 1 -> the host: s1.synchronize() first"),
        "{v}"
    );
}

#[test]
fn reject_unmap_while_pending() {
    let mut b = Bench::new();
    freed_on_1(&mut b);
    b.oracle.unmapped(HOST, MAP);
    b.convicts(Property::P4, Blame::Allocator, Fault::UnmappedWhilePending);
    // The release that follows is the same fault.
    b.oracle.memory_released(HOST, SEGMENT);
    b.convicts(Property::P4, Blame::Allocator, Fault::UnmappedWhilePending);
}

#[test]
fn reject_double_free() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.free(a);
    b.free(a);
    let v = b.convicts(Property::P3, Blame::Program, Fault::BadFree);
    assert_eq!(v.later.allocation.as_ref().unwrap().id, a);
}

#[test]
fn reject_overlap_of_live_ranges() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    let c = b.alloc(1, 256, 512);
    let v = b.convicts(Property::P1, Blame::Allocator, Fault::Overlap);
    assert_eq!(v.earlier.as_ref().unwrap().allocation.as_ref().unwrap().id, a);
    assert_eq!(v.later.allocation.as_ref().unwrap().id, c);
}

#[test]
fn reject_use_after_the_free_even_if_the_bytes_were_not_reused() {
    for named in [true, false] {
        let mut b = Bench::new();
        let a = b.alloc(1, 0, 512);
        b.free(a);
        let op = b.submit(1);
        b.oracle.access(op, Some(MAP), SEGMENT, 0, 512, Read, named.then_some(a));
        let v = b.convicts(Property::P3, Blame::Program, Fault::AfterFree);
        assert_eq!(v.later.allocation.as_ref().unwrap().id, a);
    }
}

#[test]
fn reject_host_access_to_pinned_bytes_merely_because_it_is_ordered() {
    for kind in [Read, Write] {
        let mut b = Bench::new();
        let a = b.pin(0, 512);
        b.touch_pinned(1, Write, a, 0, 512);
        b.order(1, 2);
        b.cpu(kind, a, 0, 512);
        b.convicts(Property::Race, Blame::Program, Fault::Race);
    }
}

#[test]
fn reject_host_access_to_pinned_bytes_after_the_free() {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.free(a);
    b.cpu(Read, a, 0, 512);
    b.convicts(Property::P3, Blame::Program, Fault::AfterFree);
}

#[test]
fn reject_pinned_bytes_handed_out_while_ordered_but_not_complete() {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.touch_pinned(1, Read, a, 0, 512);
    b.used(a, 1);
    b.free(a);
    b.order(1, 2);
    b.pin(0, 512);
    let v = b.convicts_early_reuse();
    assert_eq!(v.missing.unwrap().to, Point::Host { thread: None });
}

#[test]
fn reject_use_elsewhere_that_does_not_come_after_the_allocation() {
    let mut b = Bench::new();
    b.submit(1);
    let a = b.alloc(1, 0, 512);
    b.write(2, a, 0, 512);
    let v = b.convicts(Property::P3, Blame::Program, Fault::BeforeAllocation);
    assert_eq!(v.missing.unwrap().from, Point::Stream { id: StreamId(1), position: 1 });
}

/// A stream that was let in need not come after the birth, but after what the birth came after: that is the allocator's.
#[test]
fn reject_a_stream_let_in_before_the_bytes_former_life_is_over() {
    for ordered in [false, true] {
        let mut b = Bench::new();
        let a = b.alloc(1, 0, 512);
        b.write(1, a, 0, 512);
        b.free(a);
        if ordered {
            b.order(1, 2);
        }
        b.submit(1);
        let c = b.alloc(1, 0, 512);
        b.oracle.admitted(c, StreamKey(2));
        b.write(2, c, 0, 512);
        if ordered {
            b.passes();
        } else {
            b.convicts_early_reuse();
        }
    }
}

/// Of an access that raced with a later one the cells know nothing any more: whether it was reported is known all the same.
#[test]
fn unmapping_under_a_use_that_raced_is_the_programs_unless_it_was_recorded() {
    for recorded in [false, true] {
        let mut b = Bench::new();
        let a = b.alloc(1, 0, 512);
        b.order(1, 2);
        b.order(1, 3);
        for stream in [2, 3] {
            let op = b.submit(stream);
            b.oracle.access(op, Some(MAP), SEGMENT, 0, 512, Write, Some(a));
        }
        b.convicts(Property::Race, Blame::Program, Fault::Race);
        if recorded {
            b.used(a, 2);
        }
        b.used(a, 3);
        b.free(a);
        b.synchronize(1);
        b.synchronize(3);
        b.oracle.unmapped(HOST, MAP);
        let [_, v] = b.oracle.violations() else { panic!("{:#?}", b.oracle.violations()) };
        let (blame, fault) = if recorded {
            (Blame::Allocator, Fault::UnmappedWhilePending)
        } else {
            (Blame::Program, Fault::MissingRecordUse)
        };
        assert_eq!((v.property, v.blame, v.fault), (Property::P4, blame, fault), "{v}");
    }
}
