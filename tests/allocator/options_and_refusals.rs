//! What the suite's programs do not reach: every value of every option, every kind of event, every `Debug` and `Display` text,
//! and refusals that only their own test provokes. `.ci/coverage` lists the lines that no test runs.

#![allow(clippy::many_single_char_names, reason = "streams s, t and blocks x, y, z, as in the traces")]

use crate::rig::{all_back, all_clean, check, late, on, write};
use millpond::Handles;
use millpond::heap::{ChunkId, ChunkState, Heap, Kind, Request, Taken, Want};
use millpond::order::{Access, Clock, Entry, InFlight, Pending, TimelineId, Uses};
use millpond::trace::{Event as Happening, Sink};
use millpond::units::{Addr, Epoch, GIB, Granules, KIB, MIB, SegmentId};
use millpond::{
    Allocation, Allocator, Config, DriverErrorKind, Error, Footprint, Growth, Limit, Policy, RawAllocation,
    Reuse, Trim, VirtualMemory,
};
use millpond_sim::{Call, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a panic says.
fn panic_of(run: impl FnOnce()) -> String {
    let said = catch_unwind(AssertUnwindSafe(run)).expect_err("a panic");
    said.downcast_ref::<String>()
        .cloned()
        .or_else(|| said.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap()
}

/// Every variable with every word it may hold comes to the same as the builder's verb.
#[test]
fn every_variable_says_what_the_builder_says() {
    let new = Config::new;
    for (name, value, expected) in [
        ("MILLPOND_LIMIT", "40%", new().limit(Limit::Fraction(0.4))),
        ("MILLPOND_LIMIT", " 6GiB ", new().limit(Limit::Bytes(6 * GIB))),
        ("MILLPOND_LIMIT", "", new()),
        ("MILLPOND_LIMIT", "None", new().limit(Limit::None)),
        ("MILLPOND_SOFT_LIMIT", "30%", new().soft_limit(Limit::Fraction(0.3))),
        ("MILLPOND_SOFT_LIMIT", "none", new()),
        ("MILLPOND_LOW_WATERMARK", "1GiB", new().watermarks(Limit::Bytes(GIB), Limit::None)),
        ("MILLPOND_HIGH_WATERMARK", "20%", new().watermarks(Limit::None, Limit::Fraction(0.2))),
        ("MILLPOND_PINNED_LIMIT", "4GiB", new().pinned_limit(4 * GIB)),
        ("MILLPOND_PINNED_LIMIT", "40%", new().pinned_limit(Limit::Fraction(0.4))),
        ("MILLPOND_PINNED_LIMIT", "none", new().pinned_limit(Limit::None)),
        ("MILLPOND_POLICY", "latency", new().policy(Policy::Latency)),
        ("MILLPOND_POLICY", "Footprint", new().policy(Policy::Footprint)),
        ("MILLPOND_REUSE", "never", new().reuse(Reuse::Never)),
        ("MILLPOND_REUSE", "ordered", new().reuse(Reuse::Ordered)),
        ("MILLPOND_REUSE", "known", new().reuse(Reuse::KnownWaits)),
        ("MILLPOND_REUSE", "waits", new().reuse(Reuse::WithWaits)),
        ("MILLPOND_GROWTH", "rounded", new().growth(Growth::default())),
        ("MILLPOND_GROWTH", "exact", new().growth(Growth::Exact)),
        ("MILLPOND_DETERMINISTIC", "0", new().deterministic(false)),
        ("MILLPOND_DETERMINISTIC", "1", new().deterministic(true)),
        ("MILLPOND_VIRTUAL", "auto", new().virtual_memory(VirtualMemory::Auto)),
        ("MILLPOND_VIRTUAL", "Never", new()),
        ("MILLPOND_VIRTUAL", "always", new().virtual_memory(VirtualMemory::Always)),
        ("MILLPOND_SLACK", "5%", new().footprint(Footprint::default().slack(0.05))),
        ("MILLPOND_SLACK", "0", new().footprint(Footprint::default().slack(0.0))),
        ("MILLPOND_HANDLE", "8MiB", new().footprint(Footprint::default().largest_handle(8 * MIB))),
        ("MILLPOND_MOVES", "12", new().footprint(Footprint::default().moves(12))),
        ("MILLPOND_MOVES", "None", new()),
        ("MILLPOND_MOVE_TIME", "0.5%", new().footprint(Footprint::default().time(0.005))),
        (
            "MILLPOND_MOVE_CREDIT_MS",
            "50",
            new().footprint(Footprint::default().credit(Duration::from_millis(50))),
        ),
        ("MILLPOND_EXPORT", "fd", new().handles(Handles::default().exportable(true))),
        ("MILLPOND_EXPORT", "Fabric", new().handles(Handles::default().exportable(true).fabric(true))),
        ("MILLPOND_EXPORT", "none", new()),
        ("MILLPOND_RDMA", "1", new().handles(Handles::default().rdma(true))),
        ("MILLPOND_ONE_HANDLE", "8MiB", new().handles(Handles::default().one_above(8 * MIB))),
        ("MILLPOND_ONE_HANDLE", "none", new()),
        ("MILLPOND_WAIT_MS", "250", new().bounded_wait(Duration::from_millis(250))),
    ] {
        let found = Config::from_variables(|n| (n == name).then(|| value.to_owned())).unwrap();
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{name}={value}");
    }
    let here = Config::from_variables(|name| std::env::var(name).ok());
    assert_eq!(format!("{:?}", Config::from_env()), format!("{here:?}"));
}

/// A word that a variable may not hold is named with its variable and what it may hold.
#[test]
fn a_variable_with_a_wrong_word_is_named() {
    for (variable, value, may) in [
        ("MILLPOND_LIMIT", "140%", "6GiB"),
        ("MILLPOND_SOFT_LIMIT", "soft", "6GiB"),
        ("MILLPOND_HIGH_WATERMARK", "140%", "6GiB"),
        ("MILLPOND_PINNED_LIMIT", "140%", "4GiB"),
        ("MILLPOND_PINNED_LIMIT", "much", "none"),
        ("MILLPOND_POLICY", "fast", "latency or footprint"),
        ("MILLPOND_REUSE", "always", "never, ordered, known or waits"),
        ("MILLPOND_GROWTH", "some", "rounded or exact"),
        ("MILLPOND_DETERMINISTIC", "yes", "0 or 1"),
        ("MILLPOND_SLACK", "0.05", "0% to 100%"),
        ("MILLPOND_HANDLE", "1MiB", "at least 2MiB"),
        ("MILLPOND_HANDLE", "5%", "at least 2MiB"),
        ("MILLPOND_MOVES", "-1", "a number"),
        ("MILLPOND_MOVE_TIME", "101%", "(no bound) to 100%"),
        ("MILLPOND_MOVE_CREDIT_MS", "1s", "milliseconds"),
        ("MILLPOND_EXPORT", "yes", "fd or fabric"),
        ("MILLPOND_ONE_HANDLE", "5%", "8MiB"),
        ("MILLPOND_WAIT_MS", "a while", "milliseconds"),
    ] {
        match Config::from_variables(|n| (n == variable).then(|| value.to_owned())) {
            Err(Error::Config { name, found, expected }) => {
                assert_eq!((name, found.as_str()), (variable, value));
                assert!(expected.contains(may), "{variable}: {expected}");
            }
            other => panic!("{variable}={value}: {other:?}"),
        }
    }
}

/// Whatever prints itself names what it is: the stream, the number, the address, the length.
#[test]
fn what_prints_itself_says_which_it_is() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(1000, &s).unwrap();
    let (addr, id) = (x.address(), x.id().unwrap());
    assert_eq!(format!("{x:?}"), format!("Allocation({id} {addr} + 1000 B on {})", s.id()));
    assert_eq!(format!("{:?}", gpu.alloc(0, &s).unwrap()), "Allocation(empty)");
    assert_eq!(format!("{gpu:?}"), format!("Allocator({})", gpu.device()));
    let event = s.record().unwrap();
    let again = event.clone();
    assert_eq!(format!("{again:?}"), format!("{event:?}"));
    assert!(format!("{again:?}").ends_with(&format!("of {})", s.id())), "{again:?}");
    let pinned = gpu.alloc_pinned(10).unwrap();
    let (id, at) = (pinned.id().unwrap(), pinned.address());
    assert_eq!(format!("{pinned:?}"), format!("PinnedAllocation({id} {at} + 10 B)"));
    assert_eq!(format!("{:?}", gpu.alloc_pinned(0).unwrap()), "PinnedAllocation(empty)");
    assert_eq!(format!("{:?}", ChunkId::from_index(7)), "chunk 7");
    let names = [ChunkState::Free, ChunkState::Allocated, ChunkState::InFlight, ChunkState::Absent]
        .map(ChunkState::name);
    assert_eq!(names, ["free", "allocated", "in flight", "away"]);
    let heap = Heap::default();
    assert!(format!("{heap:?}").starts_with("Heap { stats: Stats {"), "{heap:?}");
    drop((x, event, again, pinned, s));
    all_clean(&sim, gpu);
}

/// A copy of a raw allocation names the same bytes; one of the two is given back.
#[test]
fn a_copied_raw_allocation_names_the_same_bytes() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let raw = gpu.alloc(MIB, &s).unwrap().into_raw();
    #[allow(clippy::clone_on_copy, reason = "what is tested")]
    let copy = raw.clone();
    assert_eq!((copy.address(), copy.len()), (raw.address(), MIB));
    assert_eq!(format!("{copy:?}"), format!("RawAllocation({} + {MIB} B)", raw.address()));
    assert_eq!(gpu.report().total.live, 1);
    // SAFETY: `raw` came from `into_raw` and is given here once; its copy never.
    #[allow(unsafe_code, reason = "only an unsafe verb takes a raw allocation back")]
    let x = unsafe { millpond::Allocation::from_raw(raw) };
    drop((x, s));
    all_clean(&sim, gpu);
}

fn heap(granules: u32) -> Heap {
    let mut heap = Heap::new();
    heap.add_segment(SegmentId(7), Addr(0x10_0000), Granules(granules), Kind::Large);
    heap.extend(SegmentId(7), Granules::ZERO, Granules(granules), Epoch::COMPLETE);
    heap
}

fn take(heap: &mut Heap, granules: u32) -> Taken {
    heap.take(&Want::new(Granules(granules), Kind::Large), u64::from(granules) * 512).expect("there is room")
}

/// Verbs of the heap on what is not there name the law and the id.
#[test]
fn a_heap_names_what_is_not_there() {
    let mut h = heap(64);
    let t = take(&mut h, 16);
    let gone = ChunkId::from_index(99);
    assert!(panic_of(|| _ = h.give_untagged(gone, 1, Epoch(1))).contains("H7"));
    assert!(panic_of(|| _ = h.view(t.chunk(), t.generation() + 1)).contains("H7"));
    assert!(panic_of(|| h.set_tag(gone, 1)).contains("H7"));
    assert!(Request::of(0).is_none() && Request::of(Granules::MAX.bytes() + 1).is_none());
    assert_eq!(Request::of(Granules::MAX.bytes()).map(Request::len), Some(Granules::MAX));
    let twice = panic_of(|| h.add_segment(SegmentId(7), Addr(0x90_0000), Granules(8), Kind::Large));
    assert!(twice.contains("H6") && twice.contains("segment 7 is in this heap already"), "{twice}");
    h.check();
}

/// Free ranges of 66 granules and one of 100, none next to another, more of them than a search looks at; `last` behind
/// them.
fn many_of_66(last: u32) -> Heap {
    const MANY: u32 = 1200;
    let mut h = heap(2 + MANY * 67 + 101 + last);
    // No range begins where an aligned one would.
    take(&mut h, 2);
    let taken: Vec<Taken> = (0..=MANY)
        .map(|i| {
            let t = take(&mut h, if i == MANY { 100 } else { 66 });
            take(&mut h, 1);
            t
        })
        .collect();
    for t in taken {
        h.give(t.chunk(), t.generation(), Epoch(1));
    }
    h
}

/// Behind a bin full of ranges that do not fit, one that is long enough to fit wherever it begins is found.
#[test]
fn an_aligned_want_finds_what_fits_anywhere() {
    let mut h = many_of_66(20_000);
    let want = Want { align: Granules(8192), ..Want::new(Granules(66), Kind::Large) };
    let t = h.take(&want, 66 * 512).expect("20000 granules hold 66 aligned to 8192");
    assert!(t.addr.0.is_multiple_of(8192 * 512), "{:?}", t.addr);
    h.check();
}

/// An exact fit that lies deeper than a search looks is not found.
#[test]
fn an_exact_fit_is_sought_so_far_and_no_further() {
    let mut h = many_of_66(1);
    // In the bin of 66 and not of that length.
    assert!(h.take_exact(&Want::new(Granules(67), Kind::Large), 67 * 512).is_none());
    assert!(h.take_exact(&Want::new(Granules(66), Kind::Large), 66 * 512).is_some());
    h.check();
}

/// Who looks into the numbers finds what was put there.
#[test]
fn the_numbers_of_order_can_be_read() {
    let on = TimelineId(3);
    let (mut clock, mut uses, mut flight) = (Clock::EMPTY, Uses::default(), InFlight::new());
    assert!(clock.is_empty() && uses.is_empty() && flight.is_empty());
    clock.raise(on, Epoch(5));
    assert_eq!((clock.len(), clock.is_empty()), (1, false));
    uses.exact(on, Access::Read, Epoch(5));
    assert_eq!(uses.iter().map(|u| (u.on, u.access)).collect::<Vec<_>>(), [(on, Access::Read)]);
    assert!(!uses.is_empty());
    let entry = Entry {
        chunk: 1,
        generation: 1,
        len: Granules(4),
        uses: uses.at_free(None, |_| Epoch(6)),
        home: Epoch(2),
    };
    flight.insert(entry.clone());
    assert_eq!(flight.behind(None).map(|(_, entry)| entry).collect::<Vec<_>>(), [&entry]);
    assert_eq!(flight.oldest().collect::<Vec<_>>(), [Pending { on, epoch: Epoch(5) }]);
}

#[derive(Default)]
struct Keeps(Mutex<Vec<(u64, Happening)>>);
impl Sink for Keeps {
    fn event(&self, number: u64, event: &Happening) {
        self.0.lock().unwrap().push((number, event.clone()));
    }
}

/// A sink receives growth, a migration with its wait, a wait by the host and a trim, with the streams' names.
#[test]
fn a_sink_gets_every_kind_of_event() {
    let (sim, sink) = (late(), Arc::new(Keeps::default()));
    let gpu = on(
        &sim,
        Config::default()
            .reuse(Reuse::WithWaits)
            .limit(Limit::Bytes(4 * MIB))
            .growth(Growth::Exact)
            .sink(sink.clone()),
    );
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    let at = x.address();
    drop(x);
    let y = gpu.alloc(4 * MIB, &t).unwrap();
    write(&sim, &y, &t);
    drop(y);
    // Larger pieces than there are: the segment is not whole for it, so the host waits until it can go.
    assert!(gpu.alloc(8 * MIB, &t).unwrap_err().out_of_memory().is_some());
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    gpu.deliver_events();
    let events: Vec<Happening> = sink.0.lock().unwrap().iter().map(|(_, e)| e.clone()).collect();
    let migrate = Happening::Migrate { addr: at, bytes: 4 * MIB, from: s.id(), to: t.id() };
    let wait = Happening::Wait { stream: t.id(), on: Some(s.id()) };
    for event in [migrate, wait, Happening::Trim { addr: at, bytes: 4 * MIB }] {
        assert!(events.contains(&event), "{event:?} is missing: {events:#?}");
    }
    drop((s, t));
    all_clean(&sim, gpu);
}

/// The event of the host's wait for a stream has the stream's name.
#[test]
fn a_sink_learns_which_stream_the_host_waits_for() {
    let (sim, sink) = (late(), Arc::new(Keeps::default()));
    let config = Config::default().limit(Limit::Bytes(4 * MIB)).growth(Growth::Exact).reuse(Reuse::Ordered);
    let gpu = on(&sim, config.sink(sink.clone()));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    drop(x);
    // No wait may be inserted: the host waits until the device is done.
    let y = gpu.alloc(4 * MIB, &t).unwrap();
    write(&sim, &y, &t);
    gpu.deliver_events();
    let waited = Happening::HostWait { stream: Some(s.id()) };
    assert!(sink.0.lock().unwrap().iter().any(|(_, e)| *e == waited), "no {waited:?}");
    drop((y, s, t));
    all_clean(&sim, gpu);
}

/// No sink is called in a drop, and memory is finite: after 65,536 events with no delivery the oldest are lost, and the
/// numbers show the gap.
#[test]
fn events_that_are_not_fetched_are_lost_oldest_first() {
    const MORE: usize = (1 << 16) + 10;
    let (sim, sink) = (late().contents(false), Arc::new(Keeps::default()));
    let gpu = on(&sim, Config::default().sink(sink.clone()));
    let s = gpu.stream().unwrap();
    let blocks: Vec<_> = (0..MORE).map(|_| gpu.alloc(1, &s).unwrap()).collect();
    let before = sink.0.lock().unwrap().len();
    drop(blocks);
    gpu.deliver_events();
    let events = sink.0.lock().unwrap();
    assert_eq!(events.len() - before, 1 << 16);
    assert_eq!(events[before].0, events[before - 1].0 + 11, "ten events are missing and the numbers say so");
    drop((events, s));
    all_clean(&sim, gpu);
}

/// No marker is made on an adopted stream while it captures: its memory is not to be had, the capture survives, and
/// afterwards everything goes on.
#[test]
fn a_capturing_stream_is_not_marked() {
    let sim = late();
    let gpu = on(
        &sim,
        Config::default()
            .reuse(Reuse::WithWaits)
            .limit(Limit::Bytes(4 * MIB))
            .growth(Growth::Exact)
            .bounded_wait(Duration::ZERO),
    );
    let own = gpu.stream().unwrap();
    let s = gpu.adopt(own.native().clone()).unwrap();
    let t = gpu.stream().unwrap();
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    drop(x);
    sim.begin_capture(s.native()).unwrap();
    let refused = gpu.alloc(4 * MIB, &t).unwrap_err();
    assert!(refused.to_string().contains("captur"), "{refused}");
    // A caller that matches out of memory, to free something and try again, finds it.
    let facts = refused.out_of_memory().unwrap_or_else(|| panic!("{refused:?}"));
    assert!(facts.passed_over.as_ref().is_some_and(|e| e.kind == millpond::DriverErrorKind::Capturing));
    assert!(matches!(gpu.trim(Trim::All), Ok(trimmed) if trimmed.bytes == 0));
    sim.end_capture(s.native()).expect("the capture survived");
    let y = gpu.alloc(4 * MIB, &t).unwrap();
    write(&sim, &y, &t);
    drop((y, own, s, t));
    all_clean(&sim, gpu);
}

/// An event that a capture took, as one may that begins and ends beside a record, cannot be queried. A trim passes it
/// over, and gives back what others hold.
#[test]
fn an_event_that_a_capture_took_fails_no_trim() {
    let sim = late();
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (x, y) = (gpu.alloc(4 * MIB, &s).unwrap(), gpu.alloc(2 * MIB, &t).unwrap());
    write(&sim, &x, &s);
    write(&sim, &y, &t);
    drop((x, y));
    t.synchronize().unwrap();
    // It begins and ends inside the record that the trim makes, and so does one inside the next.
    for nth in [1, 2] {
        sim.capture_around(Call::EventRecord, nth, s.native()).unwrap();
    }
    let trimmed = gpu.trim(Trim::All).unwrap();
    assert_eq!(trimmed.bytes, 2 * MIB, "{trimmed:?}");
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 0, "its work is pending");
    s.synchronize().unwrap();
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 4 * MIB);
    drop((s, t));
    all_clean(&sim, gpu);
}

/// The largest range there is cannot have room in front of it to be aligned in: out of memory, not a smaller range.
#[test]
fn the_largest_range_aligned_is_out_of_memory() {
    let (most, sim) = ((1 << 41) - 512, Sim::new(1 << 42).contents(false));
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let refused = gpu.alloc_aligned(most, GIB, &s).unwrap_err();
    assert_eq!(refused.out_of_memory().unwrap_or_else(|| panic!("{refused:?}")).requested, most);
    drop(s);
    all_clean(&sim, gpu);
}

/// An idle pinned segment that is in the way stays until a trim, and the limit is the reason given, before it and where
/// the request is too large still.
#[test]
fn a_pinned_request_past_the_limit_keeps_what_is_idle_and_says_limit() {
    let sim = late();
    let gpu = on(&sim, Config::default().pinned_limit(128 * MIB));
    let (kept, idle) = (gpu.alloc_pinned(64 * MIB).unwrap(), gpu.alloc_pinned(64 * MIB).unwrap());
    drop(idle);
    for taken in [128 * MIB, 64 * MIB] {
        let refused = gpu.alloc_pinned(100 * MIB).unwrap_err();
        let facts = refused.out_of_memory().expect("out of memory");
        let held = facts.report.pinned.as_ref().map(|p| p.reserved);
        assert_eq!((facts.pinned_limit, held), (Some(128 * MIB), Some(taken)));
        assert!(facts.driver.is_none(), "{refused}");
        gpu.trim(Trim::All).unwrap();
    }
    drop(kept);
    all_clean(&sim, gpu);
}

/// A stream of another allocator's device has no say about pinned memory of this one.
#[test]
fn pinned_memory_knows_its_device() {
    let devices = Sim::devices(2, GIB);
    let [a, b] = [0, 1].map(|i| on(&devices[i], Config::default()));
    let (pinned, s) = (a.alloc_pinned(100).unwrap(), b.stream().unwrap());
    assert!(matches!(pinned.record_use(&s), Err(Error::WrongDevice { .. })));
    // The same number, of another world.
    let other = late();
    let c: Allocator<Sim> = on(&other, Config::default());
    let far = c.stream().unwrap();
    assert!(matches!(pinned.record_use(&far), Err(Error::WrongDevice { .. })));
    let event = far.record().unwrap();
    assert!(matches!(pinned.record_use_until(&event), Err(Error::WrongDevice { .. })));
    drop((pinned, s, event, far));
    drop((a, b, c));
    all_back(&devices[0]);
    all_back(&devices[1]);
    all_back(&other);
}

/// What `free_unknown` leaves needs a context-wide marker; where that fails twice, a trim says so and a retry works.
#[test]
fn a_trim_passes_on_that_the_context_could_not_be_marked() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    write(&sim, &x, &s);
    check(&sim, &x, &s);
    for nth in 1..=3 {
        sim.fail(Call::CtxRecordEvent, nth, DriverErrorKind::Other);
    }
    x.free_unknown();
    let trims = [gpu.trim(Trim::All), gpu.trim(Trim::All)];
    sim.clear_faults();
    assert!(
        trims.iter().any(|t| matches!(t, Err(Error::Driver(e)) if e.kind == DriverErrorKind::Other)),
        "{trims:?}"
    );
    sim.run_until_idle();
    gpu.trim(Trim::All).unwrap();
    assert_eq!(gpu.report().reserved, 0);
    drop(s);
    all_clean(&sim, gpu);
}

/// What a trim could give back once all is complete: whole segments, of device and pinned memory, and none in which something is alive.
#[test]
fn segments_in_which_nothing_is_alive_are_reported() {
    let sim = late();
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (x, y, z) =
        (gpu.alloc(4 * MIB, &s).unwrap(), gpu.alloc(2 * MIB, &t).unwrap(), gpu.alloc(8 * MIB, &s).unwrap());
    let (p, q) = (gpu.alloc_pinned(MIB).unwrap(), gpu.alloc_pinned(2 * MIB).unwrap());
    let taken = || {
        let report = gpu.report();
        report.reserved + report.pinned.map_or(0, |p| p.reserved)
    };
    let pinned = taken() - 14 * MIB;
    assert_eq!(gpu.unused_segment_bytes(), 0);
    write(&sim, &z, &s);
    drop((x, p));
    assert_eq!(gpu.unused_segment_bytes(), 4 * MIB, "the pinned ones share a segment");
    drop(q);
    assert_eq!(gpu.unused_segment_bytes(), 4 * MIB + pinned);
    // Half a segment is none.
    drop(z);
    let half = gpu.alloc(6 * MIB, &s).unwrap();
    assert_eq!(gpu.unused_segment_bytes(), 4 * MIB + pinned);
    half.record_use(&t).unwrap();
    drop(half);
    assert_eq!(gpu.unused_segment_bytes(), 12 * MIB + pinned, "pending or not");
    gpu.synchronize().unwrap();
    let trimmed = gpu.trim(Trim::All).unwrap().bytes;
    assert_eq!((trimmed, gpu.unused_segment_bytes(), taken()), (12 * MIB + pinned, 0, 2 * MIB));
    assert!(gpu.has_segments());
    drop(y);
    gpu.synchronize().unwrap();
    let trimmed = gpu.trim(Trim::All).unwrap().bytes;
    assert_eq!((trimmed, gpu.has_segments()), (2 * MIB, false));
    let p = gpu.alloc_pinned(MIB).unwrap();
    assert!(gpu.has_segments(), "pinned memory, too");
    drop((p, s, t));
    all_clean(&sim, gpu);
}

/// A wait of zero time waits for nothing, whatever is pending.
#[test]
fn a_nanosecond_is_soon_over() {
    let sim = late();
    let config = Config::default().limit(Limit::Bytes(4 * MIB)).growth(Growth::Exact).reuse(Reuse::Ordered);
    let gpu = on(&sim, config.bounded_wait(Duration::from_nanos(1)));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    drop(x);
    // Either answer is right: the clock may stand still that long.
    if let Ok(y) = gpu.alloc(4 * MIB, &t) {
        write(&sim, &y, &t);
    }
    drop((s, t));
    all_clean(&sim, gpu);
}

/// A stream for each epoch, one after another, and no trim: so many that pools are tidied on the way.
fn streams_come_and_go(gpu: &Allocator<Sim>) {
    for _ in 0..200 {
        let s = gpu.stream().unwrap();
        drop(gpu.alloc(1000, &s).unwrap());
    }
}

/// Pinned memory comes back after its stream was forgotten: a forgotten stream is complete.
#[test]
fn pinned_memory_outlives_the_record_of_its_stream() {
    let sim = late();
    let gpu = on(&sim, Config::default().pinned_limit(64 * MIB));
    let s = gpu.stream().unwrap();
    let x = gpu.alloc_pinned(64 * MIB).unwrap();
    x.record_use(&s).unwrap();
    drop((x, s));
    sim.run_until_idle();
    streams_come_and_go(&gpu);
    sim.run_until_idle();
    streams_come_and_go(&gpu);
    drop(gpu.alloc_pinned(64 * MIB).unwrap());
    all_clean(&sim, gpu);
}

/// In deterministic mode nothing is queried on the way, and what a synchronise proved is tidied all the same.
#[test]
fn a_deterministic_allocator_queries_nothing_when_it_tidies() {
    let sim = late();
    let gpu = on(&sim, Config::default().deterministic(true));
    streams_come_and_go(&gpu);
    assert_eq!(sim.ledger().calls_of(Call::EventQuery), 0);
    gpu.synchronize().unwrap();
    streams_come_and_go(&gpu);
    assert_eq!(sim.ledger().calls_of(Call::EventQuery), 0);
    all_clean(&sim, gpu);
}

/// Arrays where the driver refuses: nothing is recorded, nothing is lost, and the next try works; a lost context says so.
#[test]
fn a_refused_operation_on_an_array_is_withdrawn() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut x = gpu.zeros::<u32>(1000, &s).unwrap();
    assert!(format!("{x:?}").starts_with("DeviceArray<u32>("), "{x:?}");
    sim.fail(Call::MemsetD8, 1, DriverErrorKind::InvalidValue);
    assert!(matches!(x.fill_bytes(7, &t), Err(Error::Driver(e)) if e.kind == DriverErrorKind::InvalidValue));
    x.fill_bytes(9, &t).unwrap();
    assert!(x.to_vec(&s).unwrap().iter().all(|&v| v == 0x0909_0909));
    drop((x, s, t));
    all_clean(&sim, gpu);

    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let mut x = gpu.zeros::<u32>(1000, &s).unwrap();
    sim.lose_context();
    for _ in 0..2 {
        assert!(matches!(x.fill_bytes(7, &s), Err(Error::Driver(e)) if e.is_context_lost()));
    }
}

/// Tokens dropped with their copies pending: the last owner of the allocator waits for them, and for everything where one's own event cannot be waited for.
/// What cannot be waited for at all is never dropped, so that no other owner gets bytes that a copy may still read; a lost context runs no copy any more.
#[test]
fn what_dropped_tokens_kept_ends_with_the_allocator() {
    let waits = [Call::EventSynchronize, Call::MemHostAlloc, Call::CtxSynchronize];
    for (refused, lost) in [(0, false), (1, false), (3, false), (0, true)] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let s = gpu.stream().unwrap();
        let mut x = gpu.zeros::<u32>(1000, &s).unwrap();
        let kept = Arc::new(gpu.pinned_from_fn(1000, |i| u32::try_from(i).unwrap()).unwrap());
        drop(x.copy_from(Arc::clone(&kept), &s).unwrap());
        assert_eq!(Arc::strong_count(&kept), 2, "the copy is pending");
        for &call in &waits[..refused] {
            sim.fail(call, 1, DriverErrorKind::InvalidValue);
        }
        if lost {
            sim.lose_context();
        }
        drop((x, s));
        drop(gpu);
        let left = if refused == waits.len() { 2 } else { 1 };
        assert_eq!(Arc::strong_count(&kept), left, "refused {refused}, lost {lost}");
    }
}

/// An allocation as words, for tables that are kept by address; and a stream of ours that is known not to capture.
#[test]
#[allow(unsafe_code, reason = "raw values are promises")]
fn an_allocation_goes_through_words_and_back() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc_not_capturing(5000, &s).unwrap();
    let (id, addr) = (x.id(), x.address());
    let raw = x.into_raw();
    assert_ne!(raw.to_words()[0], 0);
    // SAFETY: of one raw value, which is given up here.
    let back = unsafe { RawAllocation::<Sim>::from_words(raw.address(), raw.to_words()) };
    assert_eq!((back.address(), back.len()), (addr, 5000));
    // SAFETY: taken apart above, and put together once.
    let x = unsafe { Allocation::from_raw(back) };
    assert_eq!((x.id(), x.len()), (id, 5000));
    assert_eq!(gpu.alloc_not_capturing(0, &s).unwrap().into_raw().to_words()[0], 0);
    let other = on(&sim, Config::default());
    assert!(matches!(other.alloc_not_capturing(1, &s), Err(Error::OtherAllocator { .. })));
    drop((x, s, other));
    all_clean(&sim, gpu);
    assert!(matches!("6GiB".parse(), Ok(Limit::Bytes(n)) if n == 6 * GIB));
    assert!("much".parse::<Limit>().is_err_and(|e| e.to_string().contains("much")));
}

/// Rows without elements lie anywhere: their pitch is a distance that no copy uses.
#[test]
fn rows_without_elements_may_have_any_pitch() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let mut x = gpu.zeros::<f64>(8, &s).unwrap();
    for rows in [0, 1, 2, usize::MAX] {
        let (mut y, pitch) = (gpu.zeros::<f64>(8, &s).unwrap(), usize::MAX);
        let plane = x.view().plane(rows, 0, pitch).unwrap();
        assert_eq!(plane.to_pinned(&s).unwrap().wait().unwrap().len(), 0);
        y.view_mut().plane(rows, 0, pitch).unwrap().copy_from_plane(&plane, &s).unwrap();
        let nothing = gpu.pinned_uninit::<f64>([rows, 0]).unwrap();
        let sent = x.view_mut().plane(rows, 0, pitch).unwrap().copy_from(nothing, &s);
        assert_eq!(sent.unwrap().wait().unwrap().len(), 0);
    }
    drop((x, s));
    all_clean(&sim, gpu);
}

/// An allocation of no bytes has the alignment that was requested.
#[test]
fn nothing_is_aligned_too() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    for align in (0..=30).map(|shift| 1u64 << shift) {
        let x = gpu.alloc_aligned(0, align, &s).unwrap();
        assert!(x.address().0 != 0 && x.address().0.is_multiple_of(align), "{} for {align}", x.address());
    }
    drop(s);
    all_clean(&sim, gpu);
}

/// Events that were never delivered are counted where the program looks.
#[test]
fn lost_events_are_shown() {
    struct Count(AtomicU64);
    impl Sink for Count {
        fn event(&self, _: u64, _: &Happening) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let sink = Arc::new(Count(AtomicU64::new(0)));
    let gpu = on(&Sim::new(GIB), Config::default().sink(sink.clone()));
    let s = gpu.stream().unwrap();
    assert_eq!(gpu.report().events_lost, 0);
    assert!(!gpu.report().to_string().contains("lost"));
    let many: Vec<_> = (0..(1 << 16) + 100).map(|_| gpu.alloc(512, &s).unwrap()).collect();
    gpu.deliver_events();
    let before = sink.0.load(Ordering::Relaxed);
    drop(many);
    let report = gpu.report();
    assert_eq!(report.events_lost, 100);
    assert!(report.to_string().contains("events      100 lost"), "{report}");
    assert!(report.to_json().contains("\"events_lost\":100"));
    gpu.deliver_events();
    assert_eq!(sink.0.load(Ordering::Relaxed) - before, 1 << 16, "the others are delivered");
}

/// A refused `free_on` gives the allocation back, alive and unrecorded.
#[test]
fn a_refused_free_gives_the_allocation_back() {
    let sim = late();
    let (gpu, other) = (on(&sim, Config::default()), on(&Sim::new(GIB), Config::default()));
    let (s, far) = (gpu.stream().unwrap(), other.stream().unwrap());
    let x = gpu.alloc(KIB, &s).unwrap();
    let id = x.id();
    let (x, error) = x.free_on(&far).unwrap_err();
    assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
    assert_eq!((x.id(), gpu.report().total.live), (id, 1));
    drop((x, s));
    all_clean(&sim, gpu);
}
