//! What must be accepted.

use super::*;

#[test]
fn accept_same_stream_reuse_with_no_sync() {
    let mut b = Bench::new();
    for _ in 0..3 {
        let a = b.alloc(1, 0, 512);
        b.write(1, a, 0, 512);
        b.read(1, a, 0, 512);
        b.free(a);
    }
    assert_eq!(b.passes().accesses_checked, 6);
}

#[test]
fn accept_cross_stream_reuse_after_a_wait_on_an_event_recorded_at_the_free() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.record(0, 1);
    b.wait(2, 0);
    let c = b.alloc(2, 0, 512);
    b.write(2, c, 0, 512);
    b.passes();
}

#[test]
fn accept_cross_stream_reuse_after_a_wait_on_an_event_recorded_after_the_free() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.submit(1);
    b.submit(1);
    b.order(1, 2);
    b.submit(2);
    let c = b.alloc(2, 0, 512);
    b.write(2, c, 0, 512);
    b.passes();
}

#[test]
fn accept_transitive_chains() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.order(1, 2);
    b.order(2, 3);
    b.order(3, 4);
    let c = b.alloc(4, 0, 512);
    b.write(4, c, 0, 512);
    b.passes();
}

#[test]
fn accept_reuse_after_observed_completion() {
    for way in 0..3 {
        let mut b = Bench::new();
        let a = b.alloc(1, 0, 512);
        b.write(1, a, 0, 512);
        b.free(a);
        match way {
            0 => b.synchronize(1),
            1 => b.oracle.host_sees_device(HOST, DEVICE),
            _ => {
                b.record(0, 1);
                b.oracle.host_sees_event(HOST, EventKey(0));
            }
        }
        let c = b.alloc(2, 0, 512);
        b.write(2, c, 0, 512);
        b.passes();
    }
}

#[test]
fn accept_reuse_through_the_legacy_stream_between_blocking_streams() {
    let mut b = Bench::new();
    let a = b.alloc(7, 0, 512);
    b.write(7, a, 0, 512);
    b.free(a);
    b.submit(LEGACY);
    let c = b.alloc(8, 0, 512);
    b.write(8, c, 0, 512);
    b.passes();
}

#[test]
fn accept_use_elsewhere_after_a_wait_for_the_allocating_stream() {
    let mut b = Bench::new();
    b.submit(1);
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.write(2, a, 0, 512);
    b.used(a, 2);
    b.free(a);
    b.passes();
}

#[test]
fn accept_a_free_behind_an_ordered_use_on_another_stream() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.write(2, a, 0, 512);
    b.order(2, 1);
    b.free(a);
    let c = b.alloc(1, 0, 512);
    b.write(1, c, 0, 512);
    b.passes();
}

#[test]
fn accept_recorded_uses_that_the_allocator_waited_for() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.write(2, a, 0, 512);
    b.used(a, 2);
    b.free(a);
    b.order(2, 1);
    let c = b.alloc(1, 0, 512);
    b.write(1, c, 0, 512);
    b.passes();
}

#[test]
fn accept_allocation_and_free_with_no_use_at_all() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.free(a);
    let c = b.alloc(2, 0, 512);
    b.write(2, c, 0, 512);
    b.free(c);
    assert_eq!((b.passes().allocations, b.passes().frees), (2, 2));
}

#[test]
fn accept_pinned_reuse_once_complete() {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.cpu(Write, a, 0, 512);
    b.touch_pinned(1, Read, a, 0, 512);
    b.used(a, 1);
    b.free(a);
    b.synchronize(1);
    let c = b.pin(0, 512);
    b.cpu(Write, c, 0, 512);
    b.passes();
}

#[test]
fn accept_pinned_memory_born_on_a_stream_and_touched_there() {
    // Reuse in stream order is lawful for pinned memory whose next access is the device's, on an ordered stream.
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.touch_pinned(1, Read, a, 0, 512);
    b.used(a, 1);
    b.free(a);
    let c = b.id();
    b.oracle.allocated(HOST, c, Addr(0), &[(PINNED, 0, 512)], Some(StreamKey(1)));
    b.touch_pinned(1, Write, c, 0, 512);
    b.passes();
}

#[test]
fn accept_memory_that_no_allocator_manages() {
    let mut b = Bench::new();
    let op = b.submit(1);
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 100, Write, None);
    b.order(1, 2);
    let op = b.submit(2);
    b.oracle.access(op, Some(MAP), SEGMENT, 50, 100, Read, None);
    b.synchronize(2);
    b.oracle.unmapped(HOST, MAP);
    b.oracle.memory_released(HOST, SEGMENT);
    b.passes();
}

#[test]
fn accept_reads_of_one_allocation_on_many_streams() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    for s in 2..=6 {
        b.order(1, s);
        b.read(s, a, 0, 512);
        b.used(a, s);
    }
    b.free(a);
    for s in 2..=6 {
        b.order(s, 1);
    }
    let c = b.alloc(1, 0, 512);
    b.write(1, c, 0, 512);
    b.passes();
}

#[test]
fn accept_release_while_mapped_and_use_until_the_unmap() {
    let mut b = Bench::new();
    b.oracle.memory_released(HOST, SEGMENT);
    let op = b.submit(1);
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 100, Write, None);
    b.synchronize(1);
    b.oracle.unmapped(HOST, MAP);
    b.passes();
}

/// Bytes without a former life: the stream let in waits for nothing, whatever the home stream is busy with.
#[test]
fn accept_a_stream_let_in_to_fresh_bytes() {
    let mut b = Bench::new();
    b.submit(1);
    let a = b.alloc(1, 0, 512);
    b.oracle.admitted(a, StreamKey(2));
    b.write(2, a, 0, 512);
    b.passes();
}
