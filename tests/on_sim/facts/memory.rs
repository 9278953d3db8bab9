//! Plain device memory, contents and copies inside the device.

use super::*;
use millpond::driver::HostKind;
use millpond::error::DriverErrorKind;
use millpond_sim::{MismatchKind, Schedule};

#[test]
fn a_plain_free_waits_for_every_kernel_on_the_device() {
    let sim = sim().schedule(Schedule::Latest);
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let event = mark(&sim, &s);
    let waits = sim.ledger().host_waits;
    range.release().expect("freed");
    assert!(sim.query(&event).expect("a query"), "work of an unrelated stream has run");
    assert_eq!(sim.ledger().host_waits, waits + 1);
}

#[test]
fn a_plain_free_behind_an_endless_kernel_fails_instead_of_hanging_and_the_range_stays() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let gate = sim.gate(&s).expect("an endless kernel");
    let (range, error) = range.release().expect_err("would wait for ever");
    assert!(error.to_string().contains("for ever"), "{error}");
    assert_eq!(sim.ledger().bytes_reserved, 512);
    gate.open();
    range.release().expect("freed");
    assert!(sim.ledger().leaks_nothing_but_streams());
}

trait LeaksNothingButStreams {
    fn leaks_nothing_but_streams(&self) -> bool;
}
impl LeaksNothingButStreams for millpond_sim::Ledger {
    fn leaks_nothing_but_streams(&self) -> bool {
        let mut but_streams = self.clone();
        but_streams.streams = 0;
        but_streams.is_empty()
    }
}

#[test]
fn allocating_waits_for_nothing() {
    let sim = sim();
    let gate = sim.gate(&sim.stream().expect("s")).expect("an endless kernel");
    let range = sim.allocate(512).expect("memory");
    let pinned = sim.pin(512, HostKind::default()).expect("pinned");
    assert_eq!(sim.ledger().host_waits, 0);
    gate.open();
    drop((range, pinned));
}

#[test]
fn capacity_is_counted_and_an_allocation_above_it_is_refused_with_the_numbers() {
    let sim = Sim::new(1024);
    let half = sim.allocate(512).expect("fits");
    assert_eq!(sim.memory_info().expect("info").free, 512);
    let error = sim.allocate(1024).expect_err("too much");
    assert!(error.is_out_of_memory());
    assert!(error.message.contains("requested 1024") && error.message.contains("512 of 1024"), "{error}");
    drop(half);
    drop(sim.allocate(1024).expect("fits again"));
    drop(sim.allocate(512).expect("less"));
    let ledger = sim.ledger();
    assert_eq!((ledger.bytes_reserved, ledger.bytes_reserved_peak), (0, 1024));
}

#[test]
fn sizes_that_are_no_multiple_of_512_are_refused() {
    let sim = sim();
    for bytes in [0, 1, 511, 513, u64::MAX] {
        assert_eq!(sim.allocate(bytes).expect_err("refused").kind, DriverErrorKind::InvalidValue, "{bytes}");
    }
    assert!(sim.allocate(u64::MAX - 511).expect_err("refused").is_out_of_memory());
}

#[test]
fn neighbouring_segments_touch_unless_gaps_are_on() {
    let ends = |sim: Sim| {
        let (a, b) = (sim.allocate(1536).expect("memory"), sim.allocate(512).expect("memory"));
        assert!(a.addr().0.is_multiple_of(512) && b.addr().0.is_multiple_of(512));
        b.addr().0 - (a.addr().0 + a.bytes())
    };
    assert_eq!(ends(sim()), 0);
    assert_eq!(ends(sim().gaps(true)), 2 * MIB);
}

#[test]
fn with_gaps_an_overrun_is_an_access_to_nothing() {
    let sim = sim().gaps(true);
    let (s, a) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let _b = sim.allocate(512).expect("memory");
    fill(&sim, a.addr(), 0, 513, &s).expect("queued: the device finds out");
    let (found, _) = sim.mismatches();
    assert_eq!((found[0].kind, found[0].addr), (MismatchKind::Unmapped, Addr(a.addr().0 + 512)));
}

#[test]
fn a_range_is_freed_whole_and_once() {
    let sim = sim();
    let addr = sim.allocate_raw(1024).expect("memory");
    for (at, bytes) in [(addr, 512), (Addr(addr.0 + 512), 512), (addr, 2048), (Addr(0), 1024)] {
        assert_eq!(free(&sim, at, bytes).expect_err("refused").kind, DriverErrorKind::InvalidValue);
    }
    free(&sim, addr, 1024).expect("whole");
    assert!(free(&sim, addr, 1024).is_err(), "twice");
}

#[test]
fn addresses_come_back() {
    let sim = sim();
    let a = sim.allocate_raw(4096).expect("memory");
    free(&sim, a, 4096).expect("freed");
    assert_eq!(sim.allocate_raw(4096).expect("memory"), a);
}

#[test]
fn much_memory_costs_nothing() {
    let sim = Sim::new(144 * GIB);
    let (s, all) = (sim.stream().expect("s"), sim.allocate(144 * GIB).expect("memory"));
    sim.launch(&s, Launch::write_pattern(all.addr(), 144 * GIB, A)).expect("queued");
    fill(&sim, Addr(all.addr().0 + 70 * GIB), 9, 1, &s).expect("one byte");
    sim.launch(&s, Launch::check_pattern(all.addr(), 144 * GIB, A)).expect("queued");
    let (found, _) = sim.mismatches();
    let MismatchKind::Content { offset, .. } = found[0].kind else { panic!("{:?}", found[0]) };
    assert_eq!(offset, 70 * GIB);
}

#[test]
fn fresh_plain_memory_is_not_zero() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let mut bytes = [0; 512];
    d2h(&sim, bytes.as_mut_ptr(), range.addr(), 512, &s).expect("copied");
    assert!(bytes.iter().all(|&b| b != 0));
}

#[test]
fn copies_move_exact_bytes() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(4096).expect("memory"));
    let at = |offset| Addr(range.addr().0 + offset);
    let data: Vec<u8> = (0..100u8).collect();
    fill(&sim, at(0), 7, 4096, &s).expect("filled");
    h2d(&sim, at(3), data.as_ptr(), 100, &s).expect("copied");
    d2d(&sim, at(1001), at(0), 200, &s).expect("copied");
    let mut back = vec![0; 4096];
    d2h(&sim, back.as_mut_ptr(), at(0), 4096, &s).expect("copied");
    let mut expected = vec![7; 4096];
    expected[3..103].copy_from_slice(&data);
    expected[1004..1104].copy_from_slice(&data);
    assert_eq!(back, expected);
    assert!(d2d(&sim, at(0), at(100), 101, &s).is_err(), "overlapping");
    assert!(d2d(&sim, at(0), at(100), 100, &s).is_ok());
}

#[test]
fn copies_of_nothing_are_fine_and_queue_nothing() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    let null = std::ptr::null_mut();
    h2d(&sim, Addr(0), null, 0, &s).expect("nothing");
    d2h(&sim, null, Addr(0), 0, &s).expect("nothing");
    d2d(&sim, Addr(0), Addr(0), 0, &s).expect("nothing");
    fill(&sim, Addr(0), 0, 0, &s).expect("nothing");
    assert!(sim.idle());
}

#[test]
fn a_kernels_body_sees_its_declared_ranges_and_nothing_else() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(4096).expect("memory"));
    let at = range.addr();
    let beyond = Addr(at.0 + 16);
    let launch = Launch::new("body").reads(at, 16).writes(at, 8).body(move |memory| {
        memory.fill(at, 8, B);
        let mut word = [0; 8];
        memory.read(at, &mut word);
        assert_eq!(u64::from_le_bytes(word), B);
        memory.write(Addr(at.0 + 4), &[1; 8]);
        memory.read(beyond, &mut word);
        assert_eq!(word, [0; 8], "an undeclared read gives zeroes");
    });
    sim.launch(&s, launch).expect("queued");
    let (found, total) = sim.mismatches();
    assert_eq!(total, 2);
    assert!(found.iter().all(|m| m.kind == MismatchKind::Undeclared), "{found:?}");
    assert_eq!((found[0].addr, found[1].addr), (Addr(at.0 + 8), beyond));
    sim.launch(&s, Launch::check_pattern(at, 8, B)).expect("queued");
    assert_eq!(sim.mismatches().1, 2, "the refused write was not done in part");
    assert!(sim.verdict().is_err());
}

#[test]
fn with_contents_off_nothing_is_kept_and_nothing_is_found() {
    let sim = sim().contents(false);
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    sim.launch(&s, Launch::check_pattern(range.addr(), 512, A)).expect("queued");
    let mut bytes = [1; 512];
    d2h(&sim, bytes.as_mut_ptr(), range.addr(), 512, &s).expect("copied");
    assert_eq!(sim.mismatches().1, 0);
    assert_eq!(bytes, [1; 512], "copies move nothing");
}

/// Of no bytes a copy does nothing, however many rows of none it has.
#[test]
#[allow(unsafe_code, reason = "a copy of nothing")]
fn a_copy_of_rows_of_nothing_is_nothing() {
    use millpond::driver::{Copies, CopySide, Pitched};
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let place = || CopySide::Device(range.addr());
    let copy =
        Pitched { to: place(), to_pitch: 512, from: place(), from_pitch: 512, width: 0, rows: u64::MAX };
    // SAFETY: no bytes are copied.
    unsafe { sim.copy_rows(&copy, &s) }.expect("nothing is done");
    assert_eq!(sim.verdict().expect("nothing to say").operations, 0);
}
