//! What a person reads: both sides, the missing edge, and what to do.

use super::*;

#[test]
fn an_early_reuse_reads_as_a_paragraph() {
    let mut b = Bench::new();
    for _ in 0..16 {
        b.submit(3);
    }
    let a = b.alloc(3, 0, 512);
    let op = b.oracle.submit(HOST, StreamKey(3), "gemm");
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 512, Write, Some(a));
    b.submit(3);
    b.free(a);
    for _ in 0..3 {
        b.submit(5);
    }
    let c = b.alloc(5, 0, 256);
    let op = b.oracle.submit(HOST, StreamKey(5), "fill");
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 256, Write, Some(c));
    let v = b.convicts_early_reuse();
    assert_eq!(
        v.to_string(),
        "P2, the allocator's fault: bytes were reused before their former owner's uses were over. `fill` (a write) at stream \
         5 position 4 for allocation #0.0.2 (0x100000 + 256 B, allocated on stream 5), 256 B at offset 0 of memory 0. \
         Against: `gemm` (a write) at stream 3 position 17 for allocation #0.0.1 (0x100000 + 512 B, allocated on stream 3, \
         freed on stream 3 behind position 18). Missing edge: stream 3 position 17 does not happen before stream 5 position \
         4: no wait on stream 5 for an event recorded on stream 3 at or after position 17. The allocator must make the new \
         owner's stream wait for the free, and for every recorded use, before it hands the bytes out."
    );
}

#[test]
fn a_wait_that_came_too_early_is_told() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.read(1, a, 0, 512);
    b.order(1, 2);
    b.write(1, a, 0, 512);
    b.free(a);
    let c = b.alloc(2, 0, 512);
    b.write(2, c, 0, 512);
    let missing = b.convicts_early_reuse().missing.unwrap();
    let from = Point::Stream { id: StreamId(1), position: 2 };
    let to = Point::Stream { id: StreamId(2), position: 1 };
    assert_eq!(missing, MissingEdge { from, to, known: 1, outside_legacy: false });
    assert!(missing.to_string().ends_with("(ordered only up to position 1)"), "{missing}");
}

#[test]
fn the_legacy_stream_and_a_non_blocking_one_are_explained() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    let c = b.alloc(LEGACY, 0, 512);
    b.write(LEGACY, c, 0, 512);
    let v = b.convicts_early_reuse();
    assert!(
        v.to_string()
            .contains("the legacy default stream and a non-blocking stream do not wait for each other")
    );
}

#[test]
fn the_host_is_told_to_see_completion() {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.touch_pinned(4, Write, a, 0, 512);
    b.cpu(Read, a, 0, 512);
    let v = b.convicts(Property::Race, Blame::Program, Fault::Race);
    assert_eq!(
        v.missing.unwrap().to_string(),
        "stream 4 position 1 is not complete in the view of the host: no synchronise with stream 4, and no successful query \
         of an event recorded on stream 4, at or after position 1"
    );
    assert_eq!(&*v.later.what, "read by the CPU");
}

#[test]
fn a_use_after_free_names_the_next_owner() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.free(a);
    let c = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    let v = b.convicts(Property::P3, Blame::Program, Fault::AfterFree);
    assert_eq!(v.later.allocation.unwrap().id, a);
    assert_eq!(v.earlier.as_ref().unwrap().allocation.unwrap().id, c);
    assert!(v.to_string().contains("`the next allocation` at stream 1 position 0"), "{v}");
}

#[test]
fn a_double_free_names_the_first() {
    let mut b = Bench::new();
    let a = b.alloc(2, 0, 512);
    b.write(2, a, 0, 512);
    b.free(a);
    b.free(a);
    let text = b.convicts(Property::P3, Blame::Program, Fault::BadFree).to_string();
    assert!(text.contains(
        "allocation #0.0.1 (0x100000 + 512 B, allocated on stream 2, freed on stream 2 behind position 1)"
    ));
    assert!(text.ends_with("Free each allocation once: look for a second owner of it."), "{text}");
}

#[test]
fn an_access_where_nothing_is_mapped_tells_its_address() {
    let mut b = Bench::new();
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(0xdead_0000), 16);
    let text = b.oracle.violations()[0].to_string();
    assert!(text.contains("`kernel at 0xdead0000 + 16 B` at stream 1 position 1"), "{text}");
}

#[test]
fn a_verdict_counts_and_lists() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.free(a);
    b.free(a);
    b.alloc(1, 0, 16);
    b.alloc(1, 0, 16);
    let text = b.oracle.verdict().unwrap_err().to_string();
    assert!(
        text.starts_with(
            "2 ordering violations in 0 accesses, 1 of them the allocator's\n1. P3, the program's"
        ),
        "{text}"
    );
    assert!(text.contains("\n2. P1, the allocator's fault"), "{text}");
}
