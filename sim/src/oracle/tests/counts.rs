//! The tally, what is kept, and that the judge stays cheap.

use super::*;

#[test]
fn every_call_is_counted_once() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.record(0, 1);
    b.wait(2, 0);
    b.wait(2, 1);
    b.read(2, a, 0, 512);
    b.used(a, 2);
    b.free(a);
    b.synchronize(2);
    let p = b.pin(0, 8);
    b.cpu(Write, p, 0, 8);
    let expected = Tally {
        accesses_checked: 3,
        operations: 2,
        records: 1,
        waits: 2,
        waits_on_unrecorded: 1,
        host_waits: 1,
        allocations: 2,
        frees: 1,
        ..Tally::default()
    };
    assert_eq!(b.passes(), expected);
}

#[test]
fn records_that_were_not_looked_at_are_counted() {
    let mut b = Bench::new();
    b.record(0, 1);
    b.record(0, 1);
    b.record(1, 1);
    b.record(2, 1);
    assert_eq!(b.oracle.tally().records_never_waited_on, 4);
    b.wait(2, 0);
    b.wait(3, 0);
    b.oracle.host_sees_event(HOST, EventKey(1));
    let t = b.oracle.tally();
    assert_eq!((t.records, t.records_never_waited_on), (4, 2));
}

#[test]
fn a_destroyed_event_orders_nothing_and_its_records_stay_counted() {
    let mut b = Bench::new();
    b.submit(1);
    b.record(0, 1);
    b.oracle.event_destroyed(EventKey(0));
    b.wait(2, 0);
    let t = b.oracle.tally();
    assert_eq!((t.records_never_waited_on, t.waits_on_unrecorded), (1, 1));
}

#[test]
fn implied_waits_are_those_that_teach_nothing() {
    let mut b = Bench::new();
    b.submit(1);
    b.record(0, 1);
    b.wait(1, 0); // its own past
    b.wait(2, 0); // adds an edge
    b.wait(2, 0); // known
    b.synchronize(1);
    b.wait(3, 0); // the host knew
    let t = b.oracle.tally();
    assert_eq!((t.waits, t.waits_implied, t.waits_beyond_need), (4, 3, 1));
}

#[test]
fn a_wait_is_needed_once_a_check_rests_on_it() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.order(1, 2);
    assert_eq!(b.oracle.tally().waits_beyond_need, 1);
    b.read(2, a, 0, 512);
    assert_eq!(b.oracle.tally().waits_beyond_need, 0);
}

#[test]
fn a_wait_for_reuse_is_needed() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.order(1, 2);
    b.order(3, 2);
    b.alloc(2, 0, 512);
    let t = b.passes();
    assert_eq!((t.waits, t.waits_implied, t.waits_beyond_need), (2, 1, 0));
}

#[test]
fn a_later_wait_is_beyond_need_when_an_earlier_one_was_enough() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.order(1, 2);
    b.submit(1);
    b.order(1, 2);
    b.alloc(2, 0, 512);
    assert_eq!(b.passes().waits_beyond_need, 1);
}

#[test]
fn a_check_that_an_earlier_wait_covers_exactly_needs_no_later_one() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.order(1, 2);
    b.read(2, a, 0, 512);
    b.submit(1);
    b.order(1, 2);
    b.read(2, a, 0, 512);
    assert_eq!(b.passes().waits_beyond_need, 1);
}

#[test]
fn both_waits_of_a_chain_are_needed() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.order(1, 2);
    b.submit(2);
    b.order(2, 3);
    b.alloc(3, 0, 512);
    assert_eq!(b.passes().waits_beyond_need, 0);
}

#[test]
fn at_most_64_violations_are_kept_and_the_allocators_first() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.free(a);
    for _ in 0..100 {
        b.free(a);
    }
    b.alloc(1, 0, 512);
    b.alloc(1, 0, 512);
    let verdict = b.oracle.verdict().unwrap_err();
    assert_eq!((verdict.violations.len(), verdict.more), (64, 37));
    assert_eq!((verdict.tally.violations, verdict.tally.violations_of_allocator), (101, 1));
    assert_eq!(verdict.violations.last().unwrap().fault, Fault::Overlap);
}

#[test]
fn a_lawful_churn_keeps_no_more_cells_than_what_lives() {
    let mut b = Bench::new();
    let mut live: Vec<(AllocationId, u64, u32)> = Vec::new();
    let mut seed = 7_u64;
    for step in 0..20_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = (seed >> 33) % 32 * 128;
        let stream = ((seed >> 20) % 4 + 1) as u32;
        if let Some(i) = live.iter().position(|l| l.1 == slot) {
            let (id, _, home) = live.swap_remove(i);
            b.read(home, id, slot, 128);
            b.free(id);
        } else {
            for other in 1..=4 {
                b.order(other, stream);
            }
            let id = b.alloc(stream, slot, 128);
            b.write(stream, id, slot, 128);
            live.push((id, slot, stream));
        }
        if step % 1000 == 0 {
            assert!(b.oracle.ledger.cells() <= 70, "{} cells", b.oracle.ledger.cells());
        }
    }
    assert!(b.passes().accesses_checked == 20_000);
}

#[test]
fn a_thousand_streams_that_know_each_other() {
    let mut b = Bench::new();
    for n in 100..1100 {
        b.oracle.stream_created(StreamKey(n), StreamId(u64::from(n)), StreamKind::NonBlocking, DEVICE);
    }
    for round in 0..10 {
        let a = b.alloc(100, 0, 512);
        for n in 100..1100 {
            b.order(n.max(101) - 1, n);
            b.write(n, a, 0, 512);
            b.used(a, n);
        }
        b.free(a);
        b.order(1099, 100);
        if round == 5 {
            b.oracle.host_sees_device(HOST, DEVICE);
        }
    }
    assert_eq!(b.passes().accesses_checked, 10_000);
}

#[test]
#[should_panic(expected = "is not among the latest 1024 operations")]
fn accesses_of_an_operation_long_gone_are_refused() {
    let mut b = Bench::new();
    let op = b.submit(1);
    for _ in 0..1024 {
        b.submit(1);
    }
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 1, Read, None);
}

#[test]
fn names_beyond_the_limit_share_one() {
    let mut names = Names::new();
    let first = names.number("kernel 0");
    for n in 1..NAMES + 10 {
        names.number(&format!("kernel {n}"));
    }
    assert_eq!(&*names.name(first), "kernel 0");
    assert_eq!(names.number("kernel 0"), first);
    assert_eq!(names.number("one too many"), What(0));
}
