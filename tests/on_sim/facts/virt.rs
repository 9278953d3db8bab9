//! Virtual memory.

use super::*;
use millpond::error::DriverErrorKind;
use millpond_sim::{Leak, MismatchKind, Schedule};

const PAGE: u64 = 2 * MIB;

/// A reservation of some pages, and a handle of one.
fn one_page(sim: &Sim, pages: u64) -> (Addr, SimHandle) {
    (sim.reserve(pages * PAGE, None).expect("addresses"), sim.create(PAGE).expect("memory"))
}

fn page(base: Addr, n: u64) -> Addr {
    Addr(base.0 + n * PAGE)
}

#[test]
fn sizes_and_addresses_are_multiples_of_2_mib() {
    let sim = sim();
    assert_eq!(sim.mapping().map(|facts| facts.granularity), Some(PAGE));
    for odd in [0, MIB, 3 * MIB, PAGE + 512] {
        assert!(sim.create(odd).is_err() && sim.reserve(odd, None).is_err(), "{odd}");
    }
    let (at, handle) = one_page(&sim, 2);
    let error = map(&sim, Addr(at.0 + MIB), &handle).expect_err("odd address");
    assert_eq!(error.kind, DriverErrorKind::InvalidValue);
}

#[test]
fn a_wanted_address_is_honoured_and_a_reservation_continued_behind_the_last() {
    let sim = sim();
    let first = sim.reserve(4 * PAGE, None).expect("addresses");
    let next = sim.reserve(PAGE, Some(page(first, 4))).expect("addresses");
    assert_eq!(next, page(first, 4));
    let elsewhere = sim.reserve(PAGE, Some(first)).expect("addresses");
    assert!(elsewhere > next, "taken: somewhere else");
    assert!(sim.reserve(64 << 40, None).is_ok(), "64 TiB");
    assert!(sim.reserve(1 << 60, None).expect_err("too much").is_out_of_memory());
}

#[test]
fn mapped_memory_is_unusable_before_set_access_and_again_after_each_map() {
    let sim = sim();
    let s = sim.stream().expect("s");
    let (at, handle) = one_page(&sim, 1);
    let faults = |expected: u64| {
        fill(&sim, at, 1, 512, &s).expect("queued: the device finds out");
        assert_eq!(sim.mismatches().1, expected);
    };
    map(&sim, at, &handle).expect("mapped");
    faults(1);
    set_access(&sim, at, PAGE).expect("usable");
    faults(1);
    unmap(&sim, at, PAGE).expect("unmapped");
    faults(2);
    map(&sim, at, &handle).expect("mapped again");
    faults(3);
    assert!(sim.mismatches().0.iter().all(|m| m.kind == MismatchKind::Unmapped && m.addr == at));
}

#[test]
fn a_handle_is_whole() {
    let sim = sim();
    let at = sim.reserve(4 * PAGE, None).expect("addresses");
    let handle = sim.create(2 * PAGE).expect("memory");
    map(&sim, page(at, 1), &handle).expect("mapped");
    for (from, pages) in [(1, 1), (2, 1), (0, 2), (2, 2)] {
        assert!(set_access(&sim, page(at, from), pages * PAGE).is_err(), "access to {pages} from {from}");
        assert!(unmap(&sim, page(at, from), pages * PAGE).is_err(), "unmap {pages} from {from}");
    }
    assert!(map(&sim, page(at, 2), &sim.create(PAGE).expect("memory")).is_err(), "over a mapping");
    assert!(map(&sim, page(at, 3), &handle).is_err(), "out of the reservation");
    set_access(&sim, at, 4 * PAGE).expect("with holes around it");
    unmap(&sim, at, 4 * PAGE).expect("with holes around it");
    assert!(unmap(&sim, at, 4 * PAGE).is_err(), "nothing left");
}

#[test]
fn one_call_spans_several_handles_and_holes() {
    let sim = sim();
    let at = sim.reserve(4 * PAGE, None).expect("addresses");
    let handles = [sim.create(PAGE).expect("memory"), sim.create(PAGE).expect("memory")];
    map(&sim, at, &handles[0]).expect("mapped");
    map(&sim, page(at, 2), &handles[1]).expect("mapped");
    set_access(&sim, at, 4 * PAGE).expect("both");
    let s = sim.stream().expect("s");
    fill(&sim, at, 1, PAGE, &s).expect("queued");
    fill(&sim, page(at, 2), 1, PAGE, &s).expect("queued");
    assert_eq!(sim.mismatches().1, 0);
    unmap(&sim, at, 4 * PAGE).expect("both");
    assert_eq!(sim.ledger().mappings, 0);
}

#[test]
fn copies_run_across_the_seam_of_two_handles() {
    let sim = sim();
    let (at, s) = (sim.reserve(2 * PAGE, None).expect("addresses"), sim.stream().expect("s"));
    for n in [0, 1] {
        map(&sim, page(at, n), &sim.create(PAGE).expect("memory")).expect("mapped");
    }
    set_access(&sim, at, 2 * PAGE).expect("usable");
    let data: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
    let seam = Addr(at.0 + PAGE - 500);
    h2d(&sim, seam, data.as_ptr(), 1000, &s).expect("copied");
    let mut back = vec![0; 1000];
    d2h(&sim, back.as_mut_ptr(), seam, 1000, &s).expect("copied");
    assert_eq!(back, data);
}

#[test]
fn one_handle_at_two_addresses_is_one_memory() {
    let sim = sim();
    let (s, (at, handle)) = (sim.stream().expect("s"), one_page(&sim, 2));
    map(&sim, at, &handle).expect("mapped");
    map(&sim, page(at, 1), &handle).expect("mapped twice");
    set_access(&sim, at, 2 * PAGE).expect("usable");
    sim.launch(&s, Launch::write_pattern(at, PAGE, A)).expect("queued");
    sim.launch(&s, Launch::check_pattern(page(at, 1), PAGE, A)).expect("queued");
    unmap(&sim, at, PAGE).expect("one of them");
    sim.launch(&s, Launch::check_pattern(page(at, 1), PAGE, A)).expect("queued");
    assert_eq!(sim.mismatches().1, 0);
    assert_eq!(sim.ledger().bytes_reserved, PAGE, "taken once");
}

#[test]
fn contents_survive_a_move_and_fresh_handles_are_zero() {
    let sim = sim();
    let (s, (at, handle)) = (sim.stream().expect("s"), one_page(&sim, 2));
    map(&sim, at, &handle).expect("mapped");
    set_access(&sim, at, PAGE).expect("usable");
    sim.launch(&s, Launch::check_pattern(at, PAGE, 0)).expect("queued");
    sim.launch(&s, Launch::write_pattern(at, PAGE, B)).expect("queued");
    unmap(&sim, at, PAGE).expect("unmapped");
    map(&sim, page(at, 1), &handle).expect("mapped elsewhere");
    set_access(&sim, page(at, 1), PAGE).expect("usable");
    sim.launch(&s, Launch::check_pattern(page(at, 1), PAGE, B)).expect("queued");
    assert_eq!(sim.mismatches().1, 0);
}

#[test]
fn a_handle_released_while_mapped_lives_until_it_is_unmapped() {
    let sim = sim();
    let (s, (at, handle)) = (sim.stream().expect("s"), one_page(&sim, 2));
    map(&sim, at, &handle).expect("mapped");
    set_access(&sim, at, PAGE).expect("usable");
    release(&sim, &handle).expect("released");
    fill(&sim, at, 1, PAGE, &s).expect("queued");
    assert_eq!((sim.mismatches().1, sim.ledger().bytes_reserved), (0, PAGE));
    assert_eq!(map(&sim, page(at, 1), &handle).expect_err("released").kind, DriverErrorKind::InvalidHandle);
    assert!(release(&sim, &handle).is_err(), "twice");
    let alive = |l: &&Leak| matches!(l, Leak::Handle { mapped: 1, released: true, .. });
    assert_eq!(sim.leaks().iter().filter(alive).count(), 1);
    unmap(&sim, at, PAGE).expect("unmapped");
    assert_eq!(sim.ledger().bytes_reserved, 0);
}

#[test]
fn releasing_and_creating_count_against_the_capacity() {
    let sim = Sim::new(2 * PAGE);
    let plain = sim.allocate(PAGE).expect("half");
    let handle = sim.create(PAGE).expect("the other half");
    assert!(sim.create(PAGE).expect_err("full").is_out_of_memory());
    release(&sim, &handle).expect("released");
    drop(plain);
    assert!(sim.create(2 * PAGE).is_ok());
}

#[test]
fn virtual_memory_calls_wait_for_nothing() {
    let sim = sim();
    let (s, (at, handle)) = (sim.stream().expect("s"), one_page(&sim, 1));
    let gate = sim.gate(&s).expect("an endless kernel");
    map(&sim, at, &handle).expect("mapped");
    set_access(&sim, at, PAGE).expect("usable");
    unmap(&sim, at, PAGE).expect("unmapped");
    release(&sim, &handle).expect("released");
    unreserve(&sim, at, PAGE).expect("given back");
    assert_eq!(sim.ledger().host_waits, 0);
    gate.open();
}

#[test]
fn an_unmap_under_pending_work_is_found_when_the_work_runs() {
    let sim = sim().schedule(Schedule::Latest);
    let (s, (at, handle)) = (sim.stream().expect("s"), one_page(&sim, 1));
    map(&sim, at, &handle).expect("mapped");
    set_access(&sim, at, PAGE).expect("usable");
    fill(&sim, at, 1, PAGE, &s).expect("queued");
    unmap(&sim, at, PAGE).expect("nothing protects a kernel from an unmap");
    assert_eq!(sim.mismatches().1, 0, "it has not run");
    assert!(sim.verdict().is_err());
    assert_eq!(sim.mismatches().0[0].kind, MismatchKind::Unmapped);
}

#[test]
fn addresses_are_given_back_whole_and_empty() {
    let sim = sim();
    let (at, handle) = one_page(&sim, 2);
    map(&sim, at, &handle).expect("mapped");
    assert!(unreserve(&sim, at, 2 * PAGE).is_err(), "mapped");
    unmap(&sim, at, PAGE).expect("unmapped");
    assert!(unreserve(&sim, at, PAGE).is_err(), "half");
    unreserve(&sim, at, 2 * PAGE).expect("whole");
    assert!(map(&sim, at, &handle).is_err(), "not reserved any more");
    release(&sim, &handle).expect("released");
    assert!(sim.ledger().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn prices_depend_on_the_window() {
    let sim = sim();
    let at = sim.reserve(GIB, None).expect("addresses");
    let aligned = Addr(at.0.next_multiple_of(512 * MIB));
    let access_price = |n: u64| {
        map(&sim, page(aligned, n), &sim.create(PAGE).expect("memory")).expect("mapped");
        let before = sim.host_time();
        set_access(&sim, page(aligned, n), PAGE).expect("usable");
        sim.host_time().saturating_sub(before).as_nanos()
    };
    assert_eq!(access_price(0), 28_000, "first in its window");
    assert_eq!(access_price(1), 16_500, "beside another");
}
