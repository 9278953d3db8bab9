//! Pinned and pageable host memory.

use super::*;
use millpond::driver::HostKind;
use millpond::error::DriverErrorKind;
use millpond_sim::{KernelMemory, Schedule};

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
    launch_anywhere(&sim, &s, Launch::write_pattern(pinned.addr(), 512, A)).expect("queued");
    launch_anywhere(&sim, &s, Launch::check_pattern(pinned.addr(), 512, A)).expect("queued");
    assert_eq!(peek(pinned.ptr(), 8), A.to_le_bytes());
    poke(pinned.ptr(), &[0]);
    launch_anywhere(&sim, &s, Launch::check_pattern(pinned.addr(), 512, A)).expect("queued");
    assert_eq!(sim.mismatches().1, 1);
}

#[test]
fn a_safe_call_never_touches_pinned_memory() {
    // What `peek` sees could be a `&[u8]` of safe code, which a pinned array gives out. So no safe call changes it, and none reads
    // what safe code may be writing.
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    let (range, pinned) =
        (sim.allocate(512).expect("memory"), sim.pin(1024, HostKind::Cached).expect("pinned"));
    let (at, middle) = (pinned.addr(), Addr(pinned.addr().0 + 512));
    let body = |memory: &mut KernelMemory<'_>| memory.fill(Addr(0), 0, 0);
    let refused = [
        sim.launch(&s, Launch::write_pattern(at, 1024, A)),
        sim.launch(&s, Launch::write_pattern(Addr(at.0 - 8), 16, A)),
        sim.launch(&s, Launch::check_pattern(middle, 8, A)),
        sim.launch(&s, Launch::new("body").reads(range.addr(), 512).writes(middle, 8).body(body)),
        sim.copy_between(&s, at, range.addr(), 512),
        sim.copy_between(&s, range.addr(), middle, 512),
    ];
    for error in refused.map(|r| r.expect_err("refused")) {
        assert_eq!(error.kind, DriverErrorKind::InvalidValue);
        assert!(error.message.contains("launch_anywhere"), "{error}");
    }
    assert!(sim.idle(), "nothing was queued");
    // What only declares touches nothing, and is judged.
    sim.launch(&s, Launch::new("declared").writes(at, 512)).expect("queued");
    sim.copy_between(&s, at, range.addr(), 0).expect("of nothing");
    assert!(sim.run_until_idle());
    assert_eq!(peek(pinned.ptr(), 1024), [0; 1024]);
    assert_eq!(sim.mismatches().1, 0);
}

#[test]
fn what_a_safe_call_queued_does_not_find_memory_that_was_pinned_later() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    let range = sim.allocate(4096).expect("memory");
    // Where the next range of this length will be pinned: the allocator of the process gives the same block again.
    let mut again = 0;
    for _ in 0..100 {
        let guess = sim.pin(4096, HostKind::Cached).expect("pinned").addr();
        let body = move |memory: &mut KernelMemory<'_>| memory.write(guess, &[1; 8]);
        let reads = move |memory: &mut KernelMemory<'_>| memory.read(guess, &mut [0; 8]);
        for launch in [
            Launch::write_pattern(guess, 4096, A),
            Launch::check_pattern(guess, 4096, 0),
            Launch::new("writes").writes(guess, 8).body(body),
            Launch::new("reads").reads(guess, 8).body(reads),
        ] {
            sim.launch(&s, launch).expect("nothing is pinned there now");
        }
        sim.copy_between(&s, guess, range.addr(), 4096).expect("queued");
        let pinned = sim.pin(4096, HostKind::Cached).expect("pinned again");
        assert!(sim.run_until_idle());
        assert_eq!(peek(pinned.ptr(), 4096), [0; 4096]);
        again += u64::from(pinned.addr() == guess);
    }
    assert!(again > 0, "no block came back, so that nothing was tried");
    assert_eq!(sim.mismatches().1, 500, "each of them met a hole");
}

#[test]
fn copies_by_address_reach_pinned_memory_where_the_caller_vouches() {
    let sim = sim();
    let s = sim.stream().expect("s");
    let (range, pinned) =
        (sim.allocate(512).expect("memory"), sim.pin(1024, HostKind::Cached).expect("pinned"));
    let (at, middle) = (pinned.addr(), Addr(pinned.addr().0 + 512));
    poke(pinned.ptr(), &[7; 512]);
    copy_anywhere(&sim, &s, range.addr(), at, 512).expect("in");
    copy_anywhere(&sim, &s, middle, range.addr(), 512).expect("out");
    assert_eq!(peek(pinned.ptr(), 1024), [7; 1024]);
    let error = copy_anywhere(&sim, &s, middle, at, 512).expect_err("both pinned");
    assert!(error.message.contains("the CPU copies between those"), "{error}");
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
