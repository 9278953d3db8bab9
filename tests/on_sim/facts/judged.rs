//! The simulated device under its oracle: the device reports what happened, the oracle convicts, and the contents agree.

use super::*;
use millpond::driver::{Driver, HostKind, Note, OwnedRange, QueuedBy, RangeUse};
use millpond::units::AllocationId;
use millpond::{Allocator, Config};
use millpond_sim::oracle::{Blame, Fault, Property, Tally};
use millpond_sim::{HostFunction, Schedule};

/// What a program is convicted of, in order.
fn faults(sim: &Sim) -> Vec<(Fault, Blame)> {
    sim.violations().iter().map(|v| (v.fault, v.blame)).collect()
}

const RACE: (Fault, Blame) = (Fault::Race, Blame::Program);

fn id(chunk: u32) -> AllocationId {
    AllocationId { pool: 1, chunk, generation: 1 }
}

fn write(addr: Addr) -> Launch {
    Launch::write_pattern(addr, 512, A)
}

#[test]
fn a_wait_orders_and_its_absence_is_a_race() {
    for wait in [true, false] {
        let sim = sim();
        let (s, t, range) =
            (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(512).expect("memory"));
        sim.launch(&s, write(range.addr())).expect("queued");
        let event = mark(&sim, &s);
        if wait {
            sim.wait(&t, &event).expect("a wait");
        }
        sim.launch(&t, Launch::check_pattern(range.addr(), 512, A)).expect("queued");
        if wait {
            let tally: Tally = sim.verdict().expect("ordered");
            assert_eq!((tally.accesses_checked, tally.waits, tally.waits_beyond_need), (2, 1, 0));
        } else {
            assert_eq!(faults(&sim), [RACE]);
            assert!(verdict(&sim).contains("stream"), "{}", verdict(&sim));
            assert_eq!(
                sim.mismatches().1,
                0,
                "early execution happened to be right: only the oracle sees it"
            );
        }
    }
}

/// The verdict names the missing edge with a call that the program has: the simulator's own, until an allocator has reported something.
#[test]
fn a_missing_edge_is_named_by_calls_that_the_program_has() {
    let race = |sim: &Sim, [s, t]: [&SimStream; 2], at: Addr| {
        sim.launch(s, write(at)).expect("queued");
        sim.launch(t, write(at)).expect("queued");
        sim.violations().last().expect("a race").to_string()
    };
    let sim = sim();
    let [s, t] = [(); 2].map(|()| sim.stream().expect("a stream"));
    let (range, pinned) =
        (sim.allocate(512).expect("memory"), sim.pin(512, HostKind::Cached).expect("pinned"));
    let said = race(&sim, [&s, &t], range.addr());
    assert!(said.ends_with(": sim.record(&e, &s0)?; sim.wait(&s1, &e)? in between"), "{said}");
    launch_anywhere(&sim, &s, Launch::new("work").writes(pinned.addr(), 512)).expect("queued");
    sim.host_reads(pinned.addr(), 512).expect("reported");
    let said = sim.violations().last().expect("a race").to_string();
    assert!(said.ends_with("-> the host: sim.synchronize_stream(&s0)? first"), "{said}");
    // Names that leave less room, and none.
    for [one, other] in [["producer", "consumer"], ["compute_stream", "a_stream_of_many_copies"]] {
        let [s, t] = [one, other].map(|name| {
            let stream = sim.stream().expect("a stream");
            sim.name_stream(&stream, name).expect("named");
            stream
        });
        let said = race(&sim, [&s, &t], sim.allocate(512).expect("memory").addr());
        let made = match one {
            "producer" => ": record(&e, &producer), wait(&consumer, &e)",
            _ => ": record(&e, &s4), wait(&s5, &e)",
        };
        assert!(said.ends_with(made), "{said}");
    }
    let gpu = Allocator::new(sim.clone(), Config::default()).expect("an allocator");
    let stream = gpu.stream().expect("a stream");
    let block = gpu.alloc(512, &stream).expect("memory");
    let said = race(&sim, [stream.native(), &s], block.address());
    assert!(said.contains(": s0.wait_stream(&s6)"), "{said}");
}

#[test]
fn order_through_the_legacy_stream_is_for_blocking_streams_only() {
    for blocking in [true, false] {
        let sim = sim();
        let make = || if blocking { sim.blocking_stream() } else { sim.stream() };
        let (s, t, range) = (make().expect("s"), make().expect("t"), sim.allocate(512).expect("memory"));
        sim.launch(&s, write(range.addr())).expect("queued");
        sim.launch(&sim.legacy_stream(), touch_nothing()).expect("queued");
        sim.launch(&t, write(range.addr())).expect("queued");
        assert_eq!(faults(&sim), if blocking { vec![] } else { vec![RACE] });
    }
}

#[test]
fn two_threads_default_streams_taken_as_one_is_a_race_z5() {
    let sim = sim();
    let (shared, range) = (sim.per_thread_stream(), sim.allocate(512).expect("memory"));
    sim.launch(&shared, write(range.addr())).expect("queued");
    std::thread::scope(|scope| {
        scope.spawn(|| sim.launch(&shared, write(range.addr())).expect("queued"));
    });
    assert_eq!(faults(&sim), [RACE]);
}

#[test]
fn order_by_handle_after_destroy_and_create_is_a_race_z4() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let by_value = sim.stream_from_handle(s.handle());
    sim.launch(&by_value, write(range.addr())).expect("queued");
    drop(s);
    let _t = sim.stream().expect("t");
    sim.launch(&by_value, write(range.addr())).expect("the same value, another stream");
    assert_eq!(faults(&sim), [RACE]);
}

#[test]
fn a_context_event_orders_behind_destroyed_streams() {
    for wait in [true, false] {
        let sim = sim();
        let (s, t, range) =
            (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(512).expect("memory"));
        sim.launch(&s, write(range.addr())).expect("queued");
        drop(s);
        let event = sim.event().expect("event");
        sim.record_context(&event).expect("recorded");
        if wait {
            sim.wait(&t, &event).expect("a wait");
        }
        sim.launch(&t, write(range.addr())).expect("queued");
        assert_eq!(faults(&sim).len(), usize::from(!wait));
    }
}

#[test]
fn a_successful_query_orders_and_an_unsuccessful_one_does_not() {
    for schedule in [Schedule::Earliest, Schedule::Latest] {
        let sim = sim().schedule(schedule);
        let (s, t, range) =
            (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(512).expect("memory"));
        sim.launch(&s, write(range.addr())).expect("queued");
        let done = sim.query(&mark(&sim, &s)).expect("a query");
        sim.launch(&t, write(range.addr())).expect("queued");
        assert_eq!(faults(&sim).is_empty(), done, "{schedule:?}");
        assert_eq!(done, schedule == Schedule::Earliest);
    }
}

#[test]
fn strict_threads_know_only_what_was_passed_to_them() {
    for recorded in [true, false] {
        let sim = sim().strict();
        let (s, t, range) =
            (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(512).expect("memory"));
        let mark = std::thread::scope(|scope| {
            let seen = || {
                sim.launch(&s, write(range.addr())).expect("queued");
                sim.synchronize_stream(&s).expect("this thread knows that it is complete");
                sim.host_mark()
            };
            scope.spawn(seen).join().expect("the thread")
        });
        if recorded {
            sim.host_edge(mark);
        }
        sim.launch(&t, write(range.addr())).expect("queued");
        assert_eq!(faults(&sim), if recorded { vec![] } else { vec![RACE] });
    }
}

#[test]
fn pinned_memory_handed_to_the_cpu_needs_completion() {
    for wait in [true, false] {
        let sim = sim();
        let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
        let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
        d2h(&sim, pinned.ptr().as_ptr(), range.addr(), 512, &s).expect("queued");
        if wait {
            sim.synchronize_stream(&s).expect("complete");
        }
        sim.host_reads(pinned.addr(), 512).expect("pinned");
        assert_eq!(faults(&sim), if wait { vec![] } else { vec![RACE] });
        sim.synchronize_device().expect("complete");
    }
}

#[test]
fn two_mappings_of_one_handle_are_one_memory_to_the_oracle() {
    let (sim, page) = (sim(), 2 * MIB);
    let (s, t) = (sim.stream().expect("s"), sim.stream().expect("t"));
    let (at, handle) = (sim.reserve(2 * page, None).expect("addresses"), sim.create(page).expect("memory"));
    map(&sim, at, &handle).expect("mapped");
    map(&sim, Addr(at.0 + page), &handle).expect("mapped twice");
    set_access(&sim, at, 2 * page).expect("usable");
    sim.launch(&s, write(at)).expect("queued");
    sim.launch(&t, write(Addr(at.0 + page))).expect("queued");
    assert_eq!(faults(&sim), [RACE]);
}

#[test]
fn unmapping_under_pending_work_is_convicted_when_it_happens() {
    let (sim, page) = (sim(), 2 * MIB);
    let (s, at) = (sim.stream().expect("s"), sim.reserve(page, None).expect("addresses"));
    let handle = sim.create(page).expect("memory");
    map(&sim, at, &handle).expect("mapped");
    set_access(&sim, at, page).expect("usable");
    sim.launch(&s, write(at)).expect("queued");
    unmap(&sim, at, page).expect("nothing protects a kernel from an unmap");
    let found = sim.violations();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].property, found[0].fault), (Property::P4, Fault::UnmappedWhilePending));
    assert_eq!(sim.mismatches().1, 0, "it ran in time: only the oracle sees it");
}

#[test]
fn a_plain_free_has_waited_and_is_never_convicted() {
    let sim = sim().schedule(Schedule::Latest);
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    sim.launch(&s, write(range.addr())).expect("queued");
    range.release().expect("freed");
    assert_eq!(verdict(&sim), "");
}

#[test]
fn an_access_to_nothing_is_convicted_at_submission() {
    let sim = sim().schedule(Schedule::Latest);
    let s = sim.stream().expect("s");
    sim.launch(&s, write(Addr(0x1000))).expect("queued");
    assert_eq!(faults(&sim), [(Fault::NothingMapped, Blame::Program)]);
    assert!(verdict(&sim).contains("0x1000"), "{}", verdict(&sim));
    assert_eq!(sim.mismatches().1, 1, "and found again when it ran");
}

/// An allocator that hands one range out twice, `ordered` or not.
fn reuse(ordered: bool) -> Sim {
    let sim = sim().schedule(Schedule::Latest);
    let (s, t, range) =
        (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(512).expect("memory"));
    let addr = range.addr();
    let on = |s: &SimStream| Some(sim.stream_info(s).expect("info").id);
    sim.note(Note::Allocated { id: id(1), addr, bytes: 512, stream: on(&s) });
    sim.launch(&s, write(addr).tag(id(1))).expect("queued");
    sim.launch(&s, Launch::check_pattern(addr, 512, A).tag(id(1))).expect("queued");
    sim.note(Note::Freed { id: id(1), unknown: false });
    if ordered {
        sim.wait(&t, &mark(&sim, &s)).expect("t after the free");
    }
    sim.note(Note::Allocated { id: id(2), addr, bytes: 512, stream: on(&t) });
    sim.launch(&t, Launch::write_pattern(addr, 512, B).tag(id(2))).expect("queued");
    sim.synchronize_stream(&t).expect("t runs first if it may");
    sim.launch(&t, Launch::check_pattern(addr, 512, B).tag(id(2))).expect("queued");
    sim.synchronize_stream(&s).expect("s");
    sim.note(Note::Freed { id: id(2), unknown: false });
    sim.synchronize_device().expect("all");
    drop(range);
    sim
}

#[test]
fn ordered_reuse_is_accepted_by_both_oracles() {
    let sim = reuse(true);
    let tally = sim.verdict().expect("ordered");
    assert_eq!((tally.allocations, tally.frees, tally.violations), (2, 2, 0));
}

#[test]
fn unordered_reuse_is_the_allocators_fault_and_corrupts_data() {
    let sim = reuse(false);
    let found = faults(&sim);
    assert!(found.contains(&(Fault::EarlyReuse, Blame::Allocator)), "{found:?}");
    let (mismatches, _) = sim.mismatches();
    assert_eq!(mismatches[0].allocation, Some(id(2)), "the new owner's data was overwritten");
    let text = verdict(&sim);
    assert!(text.contains("allocation 0") && text.contains("allocation 1"), "{text}");
}

#[test]
fn a_use_after_free_is_the_programs_fault() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let stream = Some(sim.stream_info(&s).expect("info").id);
    sim.note(Note::Allocated { id: id(1), addr: range.addr(), bytes: 512, stream });
    sim.note(Note::Freed { id: id(1), unknown: false });
    sim.launch(&s, write(range.addr()).tag(id(1))).expect("queued");
    assert_eq!(faults(&sim), [(Fault::AfterFree, Blame::Program)]);
}

/// Two ranges side by side, an allocation in each.
fn touching() -> (Sim, SimStream, OwnedRange<Sim>, OwnedRange<Sim>) {
    let sim = sim();
    let (s, a, b) =
        (sim.stream().expect("s"), sim.allocate(512).expect("memory"), sim.allocate(512).expect("memory"));
    assert_eq!(b.addr().0, a.addr().0 + 512, "touching");
    let stream = Some(sim.stream_info(&s).expect("info").id);
    sim.note(Note::Allocated { id: id(1), addr: a.addr(), bytes: 512, stream });
    sim.note(Note::Allocated { id: id(2), addr: b.addr(), bytes: 512, stream });
    (sim, s, a, b)
}

#[test]
fn an_overrun_into_a_touching_segment_is_convicted() {
    let (sim, s, a, _b) = touching();
    sim.launch(&s, Launch::write_pattern(a.addr(), 516, A).tag(id(1))).expect("queued");
    assert!(faults(&sim).contains(&(Fault::Overrun, Blame::Program)), "{:?}", faults(&sim));
}

#[test]
fn bytes_handed_out_where_nothing_is_mapped_are_found() {
    let sim = sim();
    sim.note(Note::Allocated { id: id(1), addr: Addr(0x1000), bytes: 512, stream: None });
    let (found, _) = sim.mismatches();
    assert_eq!((found[0].allocation, found[0].stream), (Some(id(1)), None));
    assert!(verdict(&sim).contains("handed out"), "{}", verdict(&sim));
}

#[test]
fn with_the_oracle_off_only_the_contents_are_judged() {
    let sim = sim().oracle(false).schedule(Schedule::Latest);
    let (s, t, range) =
        (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(512).expect("memory"));
    sim.launch(&s, write(range.addr())).expect("queued");
    sim.launch(&t, Launch::write_pattern(range.addr(), 512, B)).expect("queued");
    assert_eq!(sim.verdict().expect("the oracle is off"), Tally::default());
    sim.launch(&t, Launch::check_pattern(range.addr(), 512, 7)).expect("queued");
    assert!(sim.verdict().is_err(), "a check is a check");
}

/// A small generator of numbers below a bound.
struct Dice(u64);
impl Dice {
    fn roll(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A random program over four streams, of all kinds, and three ranges; returns whether the oracle accepts it, and how many
/// checks found the wrong bytes.
fn random_program(seed: u64, schedule: Schedule) -> (bool, u64) {
    let sim = sim().schedule(schedule);
    let streams = [
        sim.stream().expect("s"),
        sim.stream().expect("s"),
        sim.blocking_stream().expect("s"),
        sim.legacy_stream(),
    ];
    let ranges: Vec<_> = (0..3).map(|_| sim.allocate(512).expect("memory")).collect();
    let events: Vec<_> = (0..4).map(|_| sim.event().expect("event")).collect();
    let mut words = [0; 3];
    let mut dice = Dice(seed);
    let stream = |dice: &mut Dice| &streams[dice.roll(4) as usize];
    for range in &ranges {
        sim.launch(&streams[0], Launch::write_pattern(range.addr(), 512, 0)).expect("queued");
    }
    sim.synchronize_device().expect("a common beginning");
    for step in 1..dice.roll(12) + 6 {
        let r = dice.roll(3) as usize;
        let e = &events[dice.roll(4) as usize];
        let on = stream(&mut dice);
        match dice.roll(10) {
            0 | 1 => {
                words[r] = step;
                sim.launch(on, Launch::write_pattern(ranges[r].addr(), 512, step)).expect("queued");
            }
            2 | 3 => sim.launch(on, Launch::check_pattern(ranges[r].addr(), 512, words[r])).expect("queued"),
            4..=6 => {
                sim.record(e, on).expect("recorded");
                sim.wait(stream(&mut dice), e).expect("a wait");
            }
            7 => sim.wait(on, e).expect("a wait"),
            8 => sim.record(e, on).expect("recorded"),
            _ => sim.synchronize_stream(on).expect("a host wait"),
        }
    }
    assert!(sim.run_until_idle());
    (sim.violations().is_empty(), sim.mismatches().1)
}

/// A launch that reads and writes the same bytes comes after their readers because it writes: the wait for them is needed.
#[test]
fn a_launch_that_reads_and_writes_needs_its_wait_for_the_readers() {
    for both in [true, false] {
        let sim = sim();
        let (s, t, range) =
            (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(512).expect("memory"));
        let reader = || Launch::new("reader").reads(range.addr(), 512);
        sim.launch(&t, reader()).expect("queued");
        sim.wait(&s, &mark(&sim, &t)).expect("a wait");
        let second = if both { reader().writes(range.addr(), 512) } else { reader() };
        sim.launch(&s, second).expect("queued");
        let tally: Tally = sim.verdict().expect("ordered");
        assert_eq!((tally.waits, tally.waits_beyond_need), (1, u64::from(!both)));
    }
}

#[test]
fn what_the_oracle_accepts_no_schedule_corrupts() {
    let (mut accepted, mut corrupted) = (0, 0);
    for seed in 0..1500 {
        let (lawful, early) = random_program(seed, Schedule::Earliest);
        let (lawful_too, late) = random_program(seed, Schedule::Latest);
        assert_eq!(lawful, lawful_too, "seed {seed}: the judgement does not depend on the schedule");
        let (_, random) = random_program(seed, Schedule::Random(seed));
        assert_eq!(early, 0, "seed {seed}: at once is in program order");
        assert!(!lawful || late + random == 0, "seed {seed}: accepted, but {late} + {random} checks failed");
        accepted += u32::from(lawful);
        corrupted += u32::from(late + random > 0);
    }
    assert!(
        accepted > 300 && corrupted > 30,
        "{accepted} accepted, {corrupted} corrupted: both must be seen often"
    );
}

/// A copy out to pinned memory on one stream, a host function that touches the bytes on another.
fn copied_out_and_touched(ordered: bool, touch: impl Fn(HostFunction, Addr) -> HostFunction) -> Sim {
    let sim = sim().schedule(Schedule::Latest);
    let (s, t, range) =
        (sim.stream().expect("s"), sim.stream().expect("t"), sim.allocate(512).expect("memory"));
    let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
    sim.launch(&s, write(range.addr())).expect("queued");
    copy_anywhere(&sim, &s, pinned.addr(), range.addr(), 512).expect("out");
    if ordered {
        sim.wait(&t, &mark(&sim, &s)).expect("a wait");
    }
    sim.host_function(&t, touch(HostFunction::new("parse", || ()), pinned.addr())).expect("queued");
    sim.synchronize_stream(&t).expect("run");
    sim.synchronize_stream(&s).expect("run");
    sim
}

#[test]
fn a_host_functions_accesses_are_judged_as_a_kernels() {
    for touch in [HostFunction::reads, HostFunction::writes] {
        let racing = copied_out_and_touched(false, |f, at| touch(f, at, 512));
        assert_eq!(faults(&racing), [RACE]);
        assert!(verdict(&racing).contains("`parse`"), "by its name: {}", verdict(&racing));
        let tally = copied_out_and_touched(true, |f, at| touch(f, at, 512)).verdict().expect("ordered");
        assert_eq!((tally.waits, tally.waits_beyond_need), (1, 0), "the wait is needed by the host function");
    }
    copied_out_and_touched(false, |f, _| f).verdict().expect("what touches nothing races with nothing");
    let apart = copied_out_and_touched(false, |f, at| f.reads(at, 0).reads(Addr(at.0 + 100), 0));
    apart.verdict().expect("an empty range is no access");
}

#[test]
fn a_host_function_in_its_stream_needs_no_completion_in_the_hosts_view() {
    // As a declared access of the calling thread the same would be a race: ordered is not complete.
    let sim = sim().schedule(Schedule::Latest);
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
    let at = pinned.addr();
    copy_anywhere(&sim, &s, at, range.addr(), 512).expect("out");
    sim.host_function(&s, HostFunction::new("parse", || ()).reads(at, 512).writes(at, 8)).expect("queued");
    copy_anywhere(&sim, &s, range.addr(), at, 512).expect("in again");
    sim.verdict().expect("all on one stream");
    sim.host_reads(at, 512).expect("pinned");
    assert_eq!(faults(&sim), [RACE], "the thread has seen nothing complete");
}

#[test]
fn a_host_function_for_a_freed_block_is_an_access_after_its_free() {
    let sim = sim();
    let (s, pinned) = (sim.stream().expect("s"), sim.pin(512, HostKind::Cached).expect("pinned"));
    sim.note(Note::Allocated { id: id(1), addr: pinned.addr(), bytes: 512, stream: None });
    sim.note(Note::Freed { id: id(1), unknown: false });
    sim.note(Note::Allocated { id: id(2), addr: pinned.addr(), bytes: 512, stream: None });
    let late = HostFunction::new("late", || ()).reads(pinned.addr(), 512).tag(id(1));
    sim.host_function(&s, late).expect("queued");
    assert_eq!(faults(&sim), [(Fault::AfterFree, Blame::Program)]);
}

#[test]
fn a_host_function_declares_pinned_memory_only() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    let pinned = sim.pin(512, HostKind::Cached).expect("pinned");
    for (at, bytes) in [(range.addr(), 512), (pinned.addr(), 513), (Addr(64), 8)] {
        let function = HostFunction::new("no", || panic!("nothing is queued")).reads(at, bytes);
        let error = sim.host_function(&s, function).expect_err("not pinned");
        assert!(error.message.contains("the CPU reaches only that"), "{error}");
    }
    sim.verdict().expect("nothing was reported");
}

#[test]
fn operations_on_arrays_are_known_to_the_library() {
    // The library says of each operation that it comes, on the home stream too; here a second one is said to come and
    // queued without the wait that the library would have made.
    for (said, blame) in [(true, Blame::Allocator), (false, Blame::Program)] {
        let sim = sim();
        let gpu = Allocator::new(sim.clone(), Config::default()).expect("an allocator");
        let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
        let mut x = gpu.zeros::<u8>(512, &s).expect("memory");
        x.wait_on(&t).expect("behind the zeroes");
        x.fill_bytes(1, &s).expect("queued");
        let id = gpu.live()[0].id;
        if said {
            sim.note(Note::Operation {
                id,
                stream: t.id(),
                used: RangeUse::ReadWrite,
                by: QueuedBy::Library,
            });
        }
        sim.launch(t.native(), write(x.address()).tag(id)).expect("queued");
        let fault = if said { Fault::UnorderedOperation } else { Fault::Race };
        assert_eq!(faults(&sim), [(fault, blame)]);
    }
}

/// The verdict has what was found beside what was expected at that very place.
#[test]
fn wrong_bytes_are_printed_beside_those_expected_there() {
    let sim = sim();
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    sim.launch(&s, Launch::write_pattern(range.addr(), 16, 42)).expect("queued");
    fill(&sim, Addr(range.addr().0 + 1), 7, 1, &s).expect("queued");
    sim.launch(&s, Launch::check_pattern(range.addr(), 16, 42)).expect("queued");
    let text = verdict(&sim);
    let expected = "found 070000000000002a instead of 000000000000002a, 1 bytes into its range";
    assert!(text.contains(expected), "{text}");
    let sim = Sim::new(GIB);
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    sim.launch(&s, Launch::write_pattern(range.addr(), 16, 42)).expect("queued");
    fill(&sim, Addr(range.addr().0 + 14), 7, 1, &s).expect("queued");
    sim.launch(&s, Launch::check_pattern(range.addr(), 16, 42)).expect("queued");
    let text = verdict(&sim);
    assert!(text.contains("found 0700 instead of 0000, 14 bytes into its range"), "{text}");
}

/// Addresses that were given back and that an allocation's kernel runs into are beyond that allocation, whichever owner had them.
#[test]
fn an_overrun_into_what_was_given_back_is_the_allocations() {
    let (sim, s, a, b) = touching();
    sim.note(Note::Freed { id: id(2), unknown: false });
    b.release().expect("given back");
    sim.launch(&s, Launch::new("k").writes(a.addr(), 516).tag(id(1))).expect("queued");
    assert_eq!(faults(&sim), [(Fault::Overrun, Blame::Program)]);
    let text = verdict(&sim);
    assert!(text.contains("`k` touches 4 B that reach beyond allocation 0"), "{text}");
}

#[test]
fn default_streams_of_two_devices_have_two_names() {
    let [one, other] = &Sim::devices(2, GIB)[..] else { panic!("two devices") };
    let range = one.allocate(512).expect("memory");
    one.launch(&one.legacy_stream(), write(range.addr())).expect("queued");
    other.launch(&other.legacy_stream(), write(range.addr())).expect("queued");
    let text = verdict(one);
    assert!(text.contains("record(&e, &legacy_0)"), "{text}");
}
