//! Pinned and pageable host memory.

use super::*;
use millpond::driver::HostKind;
use millpond::driver::sim::Schedule;
use millpond::error::DriverErrorKind;

fn late() -> (Sim, SimStream, millpond::driver::OwnedRange<Sim>) {
    let sim = sim().schedule(Schedule::Latest);
    let (s, range) = (sim.stream().expect("s"), sim.allocate(4096).expect("memory"));
    (sim, s, range)
}

#[test]
fn pinned_memory_is_real_zeroed_and_aligned() {
    let sim = sim();
    let pinned = sim.pin(8192, HostKind::Cached).expect("pinned");
    assert!(pinned.addr().0.is_multiple_of(512));
    assert_eq!(peek(pinned.ptr(), 8192), vec![0; 8192]);
    poke(pinned.ptr(), &[1, 2, 3]);
    assert_eq!(peek(pinned.ptr(), 4), [1, 2, 3, 0]);
}

#[test]
fn a_copy_from_pinned_memory_reads_its_source_when_it_runs() {
    let (sim, s, range) = late();
    let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
    poke(pinned.ptr(), &[1; 512]);
    h2d(&sim, range.addr(), pinned.ptr().as_ptr(), 512, &s).expect("queued");
    assert!(!sim.idle(), "it returned before it ran");
    poke(pinned.ptr(), &[2; 512]);
    sim.launch(&s, Launch::check_pattern(range.addr(), 512, 0x0202_0202_0202_0202)).expect("queued");
    sim.synchronize_stream(&s).expect("run");
    assert_eq!(sim.mismatches().1, 0, "the later bytes were copied: writing a source in flight corrupts");
}

#[test]
fn a_copy_from_pageable_memory_has_read_its_source_when_it_returns() {
    let (sim, s, range) = late();
    let mut source = vec![1u8; 512];
    h2d(&sim, range.addr(), source.as_ptr(), 512, &s).expect("queued");
    source.fill(2);
    sim.launch(&s, Launch::check_pattern(range.addr(), 512, 0x0101_0101_0101_0101)).expect("queued");
    sim.synchronize_stream(&s).expect("run");
    assert_eq!(sim.mismatches().1, 0);
    assert_eq!(sim.ledger().host_waits, 1, "only the synchronisation");
}

#[test]
fn a_copy_to_pinned_memory_returns_at_once() {
    let (sim, s, range) = late();
    let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
    fill(&sim, range.addr(), 5, 512, &s).expect("queued");
    d2h(&sim, pinned.ptr().as_ptr(), range.addr(), 512, &s).expect("queued");
    assert_eq!(peek(pinned.ptr(), 1), [0], "not yet");
    assert_eq!(sim.ledger().host_waits, 0);
    sim.synchronize_stream(&s).expect("run");
    assert_eq!(peek(pinned.ptr(), 512), [5; 512]);
}

#[test]
fn a_copy_to_pageable_memory_returns_when_done_and_runs_no_more_than_it_needs() {
    let (sim, s, range) = late();
    let other = mark(&sim, &sim.stream().expect("t"));
    fill(&sim, range.addr(), 5, 512, &s).expect("queued");
    let mut target = vec![0u8; 512];
    d2h(&sim, target.as_mut_ptr(), range.addr(), 512, &s).expect("copied");
    assert_eq!(target, [5; 512]);
    assert_eq!(sim.ledger().host_waits, 1);
    assert!(!sim.query(&other).expect("a query"));
}

#[test]
fn a_copy_stays_in_one_pinned_range() {
    let (sim, s, range) = late();
    let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
    let error = h2d(&sim, range.addr(), pinned.ptr().as_ptr(), 513, &s).expect_err("runs out");
    assert_eq!(error.kind, DriverErrorKind::InvalidValue);
    assert!(sim.idle(), "nothing was queued");
}

#[test]
fn unpinning_waits_for_every_kernel_on_the_device() {
    let (sim, s, _range) = late();
    let pinned = sim.pin(512, HostKind::WriteCombined).expect("pinned");
    let event = mark(&sim, &s);
    pinned.release().expect("unpinned");
    assert!(sim.query(&event).expect("a query"));
    assert_eq!(sim.ledger().host_waits, 1);
}

#[test]
fn pinned_ranges_are_counted_bounded_and_given_back_whole() {
    let sim = sim().pinned_capacity(1024);
    let pinned = sim.pin(1024, HostKind::Cached).expect("pinned");
    assert!(sim.pin(512, HostKind::Cached).expect_err("full").is_out_of_memory());
    assert_eq!(sim.pin(100, HostKind::Cached).expect_err("odd").kind, DriverErrorKind::InvalidValue);
    assert!(unpin(&sim, pinned.ptr(), 512).is_err(), "half");
    assert_eq!(sim.ledger().bytes_pinned, 1024);
    drop(pinned);
    assert!(sim.ledger().is_empty());
}

#[test]
fn much_pinned_memory_costs_nothing_until_touched() {
    let sim = sim();
    let pinned = sim.pin(2 * GIB, HostKind::Cached).expect("lazily committed");
    poke(pinned.ptr(), &[1]);
    assert_eq!(peek(pinned.ptr(), 2), [1, 0]);
}

#[test]
fn kernels_reach_pinned_memory() {
    let sim = sim();
    let (s, pinned) = (sim.stream().expect("s"), sim.pin(512, HostKind::Cached).expect("pinned"));
    sim.launch(&s, Launch::write_pattern(pinned.addr(), 512, A)).expect("queued");
    sim.launch(&s, Launch::check_pattern(pinned.addr(), 512, A)).expect("queued");
    assert_eq!(peek(pinned.ptr(), 8), A.to_le_bytes());
    poke(pinned.ptr(), &[0]);
    sim.launch(&s, Launch::check_pattern(pinned.addr(), 512, A)).expect("queued");
    assert_eq!(sim.mismatches().1, 1);
}

#[test]
fn the_cpu_is_said_to_touch_pinned_memory_only() {
    let (sim, _s, range) = late();
    let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
    sim.host_reads(pinned.addr(), 512).expect("pinned");
    sim.host_writes(pinned.addr(), 512).expect("pinned");
    assert!(sim.host_reads(pinned.addr(), 513).is_err());
    assert!(sim.host_writes(range.addr(), 512).is_err());
}
