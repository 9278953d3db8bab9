//! The library's replay: recorded logs spread over streams and threads, and programs step by step, under both oracles.
//!
//! Every replay here is one that could fail: the accesses judged are counted against the calls made, and the same replays
//! with a wait or a record left out have to be convicted, with the right blame.

use millpond::allocator::VirtualMemory;
use millpond::trace::{self, BlockNo, Call, Log, Program, StreamNo, ThreadNo};
use millpond::units::GIB;
use millpond::{Allocator, Config, Growth, Limit, Policy, Reuse};
use millpond_replay::import::{self, Trace};
use millpond_replay::{Done, Executor, Outcome, ReplayError, Workload, replay, replay_log, replay_program};
use millpond_sim::null::Null;
use millpond_sim::{Schedule, Sim};
// For the code that is made there once (`millpond_testkit::compiled`).
use millpond_testkit as _;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CAPACITY: u64 = 144 * GIB;

/// The first calls of a recorded log.
fn slice(name: &str, calls: usize) -> Log {
    let path = format!("{}/../tests/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
    let Ok(Trace::Log(mut log)) = import::open(&path, import::Options::default()) else {
        panic!("{path} is a log")
    };
    assert!(log.calls.len() > calls);
    log.calls.truncate(calls);
    log
}

fn gnn() -> Log {
    slice("gnn_train", 3000)
}

fn on_sim(log: &Log, workload: &Workload, sim: Sim, config: Config) -> Outcome {
    replay_log(log, workload, sim, config, &|_| {}).unwrap()
}

fn over(streams: u32, uses: f64) -> Workload {
    Workload::default().streams(streams).uses(uses)
}

/// Clean, and really run: every call of the log touched its block under the oracle's eyes, and so did every visit.
fn assert_clean(o: &Outcome, log: &Log) {
    assert!(o.is_clean(), "{}\n{}\n{:?}", o.verdict, o.lost, o.failure);
    let left = log.info().blocks_at_end;
    assert_eq!(o.calls, log.calls.len() as u64 + left, "what is alive at the end is freed too");
    assert_eq!(o.accesses_checked, o.calls + o.cross_stream_uses, "a write or a read for each");
    assert_eq!(o.hits + o.misses, log.info().allocations);
    assert!(o.peak_reserved_bytes >= o.peak_requested_bytes);
    assert_eq!(o.verdict, "");
}

#[test]
fn a_recorded_log_replays_clean_over_one_and_four_streams() {
    let log = gnn();
    for streams in [1, 4] {
        let o = on_sim(&log, &over(streams, 0.2), Sim::new(CAPACITY), Config::default());
        assert_clean(&o, &log);
        assert!(o.cross_stream_uses > 200);
        assert_eq!(o.streams, u64::from(streams.max(2)), "one more for the uses, where there was one");
        let ratio = o.makespan_ratio.unwrap();
        assert!((0.95..1.5).contains(&ratio), "an allocator costs something, not much: {ratio}");
    }
}

#[test]
fn the_logs_own_streams_and_threads_are_the_default() {
    let log = slice("prefetch_multistream", 2000);
    let o = on_sim(&log, &Workload::default(), Sim::new(CAPACITY), Config::default());
    assert_clean(&o, &log);
    assert_eq!((o.streams, o.threads, o.cross_stream_uses), (4, 1, 0));
    assert_eq!(o.report.pools.len(), 4);
}

#[test]
fn a_broken_program_is_blamed_and_the_allocator_is_not() {
    let log = gnn();
    for schedule in [Schedule::Earliest, Schedule::Latest, Schedule::Random(1)] {
        let workload = over(4, 0.2).broken(1.0);
        let o = on_sim(&log, &workload, Sim::new(CAPACITY).schedule(schedule), Config::default());
        assert!(!o.is_clean());
        assert!(o.violations > 100, "{schedule:?}: {} violations", o.violations);
        assert_eq!(o.violations_of_allocator, 0, "{schedule:?}: {}", o.verdict);
        assert!(o.verdict.contains("the program's fault"));
        assert!(o.lost.is_nothing(), "wrong order loses nothing");
    }
}

#[test]
fn the_contents_convict_too() {
    let workload = over(4, 0.5).broken(1.0);
    let o = on_sim(
        &gnn(),
        &workload,
        Sim::new(CAPACITY).schedule(Schedule::Latest).oracle(false),
        Config::default(),
    );
    assert_eq!((o.violations, o.accesses_checked), (0, 0), "the oracle is off");
    assert!(o.mismatches > 0 && !o.is_clean());
    assert!(o.verdict.contains("check pattern"), "{}", o.verdict);
}

#[test]
fn running_ahead_and_late_schedules() {
    let log = gnn();
    for policy in [Policy::Latency, Policy::Footprint] {
        for (run_ahead, schedule) in [
            (0, Schedule::Latest),
            (200, Schedule::Latest),
            (200, Schedule::Earliest),
            (50, Schedule::Random(3)),
            (u64::MAX, Schedule::Earliest),
            (u64::MAX, Schedule::Random(3)),
        ] {
            let workload = over(4, 0.2).run_ahead(run_ahead);
            let config = Config::default().policy(policy);
            let o = on_sim(&log, &workload, Sim::new(CAPACITY).schedule(schedule), config);
            assert_clean(&o, &log);
        }
    }
}

#[test]
fn run_ahead_costs_memory_or_waits() {
    let log = slice("prefetch_multistream", 6000);
    let taken = |run_ahead| {
        let workload = over(4, 0.3).run_ahead(run_ahead);
        let o = on_sim(&log, &workload, Sim::new(CAPACITY), Config::default());
        assert_clean(&o, &log);
        o.peak_reserved_bytes
    };
    let (near, far) = (taken(0), taken(200));
    assert!(far > near, "work that is held back keeps memory: {near} against {far} bytes");
}

#[test]
fn under_pressure_every_rung_keeps_the_order() {
    let log = gnn();
    let peak = log.info().peak_live_rounded;
    for (reuse, run_ahead) in [(Reuse::WithWaits, 100), (Reuse::WithWaits, 0), (Reuse::Ordered, 30)] {
        let config = Config::default().limit(Limit::Bytes(peak * 5 / 4)).reuse(reuse);
        let workload = over(3, 0.2).run_ahead(run_ahead);
        let o =
            replay_log(&log, &workload, Sim::new(CAPACITY).schedule(Schedule::Random(9)), config, &|_| {})
                .unwrap();
        // Fragments may leave no room; order may never suffer.
        assert_eq!((o.violations, o.mismatches), (0, 0), "{}", o.verdict);
        assert!(o.lost.is_nothing());
        assert!(o.peak_reserved_bytes <= peak * 5 / 4);
        // A request gives no plain memory back: where it may not have its stream wait, the host waits.
        let ladder = o.report.ladder;
        assert!(ladder.migrate_with_wait.tried + ladder.wait.tried > 0, "no pressure at all");
    }
}

#[test]
fn threads_in_turns_give_what_one_thread_gives() {
    let log = gnn();
    let with = |threads| {
        let workload = over(4, 0.2).threads(threads);
        let o = on_sim(&log, &workload, Sim::new(CAPACITY), Config::default());
        assert_clean(&o, &log);
        (o.hits, o.growths, o.migrations, o.peak_reserved_bytes, o.cross_stream_uses, o.makespan_ns)
    };
    assert_eq!(with(None), with(Some(4)));
}

#[test]
fn free_threads_are_clean_too() {
    let log = gnn();
    for run_ahead in [0, 100] {
        let workload = over(4, 0.2).threads(4).racy(true).run_ahead(run_ahead);
        let o = on_sim(&log, &workload, Sim::new(CAPACITY), Config::default());
        assert_clean(&o, &log);
        assert_eq!(o.threads, 4);
    }
}

#[test]
fn the_legacy_default_stream_takes_part() {
    let log = gnn();
    for streams in [None, Some(3)] {
        let workload = Workload::default().streams(streams).legacy(true).uses(0.2);
        let o = on_sim(&log, &workload, Sim::new(CAPACITY).schedule(Schedule::Latest), Config::default());
        assert_clean(&o, &log);
        let created = o.report.driver_calls.get("cuStreamCreate").map_or(0, |&n| n);
        assert_eq!(created, o.streams - 1, "one of the streams is the default stream");
    }
}

#[test]
fn a_limit_too_small_ends_it_with_the_facts() {
    for (threads, racy) in [(1, false), (3, false), (3, true)] {
        let workload = over(2, 0.1).threads(threads).racy(racy);
        let config = Config::default().limit(Limit::Bytes(64 << 20));
        let o = replay_log(&gnn(), &workload, Sim::new(CAPACITY), config, &|_| {}).unwrap();
        let failure = o.failure.as_ref().unwrap();
        assert!(failure.out_of_memory && failure.message.contains("limit 64.0 MiB"), "{failure}");
        assert!(failure.call > 0 && failure.bytes > 0);
        assert_eq!(
            o.reserved_over_requested, None,
            "a part of the trace ran: there is no ratio to its whole peak"
        );
        assert!(!o.is_clean());
        assert!(o.lost.is_nothing() && o.violations == 0 && o.mismatches == 0, "and nothing else is wrong");
        assert!(o.calls < 3000);
        assert_eq!(o.makespan_ratio, None, "half a run is not compared with a whole one");
    }
}

fn tiny(sizes: &[u64]) -> Log {
    let mut calls: Vec<Call> = (0u32..)
        .zip(sizes)
        .map(|(b, &bytes)| Call::alloc(BlockNo(b), bytes, StreamNo(0), ThreadNo(0), b.into()))
        .collect();
    calls.extend((0u32..).zip(sizes).map(|(b, &n)| Call::free(BlockNo(b), n, StreamNo(0), ThreadNo(0), 99)));
    Log::new("tiny", calls, vec![0], vec![0])
}

#[test]
fn absurd_sizes_are_failures_not_panics() {
    for bytes in [1 << 40, 1 << 63, u64::MAX - 511, u64::MAX] {
        for device in [true, false] {
            let (log, workload) = (tiny(&[1, bytes]), Workload::default().uses(1.0));
            let o = if device {
                replay_log(&log, &workload, Sim::new(CAPACITY), Config::default(), &|_| {}).unwrap()
            } else {
                replay_log(&log, &workload, Null::default(), Config::default(), &|_| {}).unwrap()
            };
            let failure = o.failure.unwrap();
            assert_eq!((failure.bytes, failure.out_of_memory), (bytes, bytes == 1 << 40), "{failure}");
            assert_eq!(failure.call, 1, "uses in between do not count");
            assert!(o.lost.is_nothing());
        }
    }
}

#[test]
fn sizes_of_nothing_and_of_one_byte() {
    let log = tiny(&[0, 1, 0, 511, 512, 513, 0]);
    let o = on_sim(&log, &Workload::default().uses(1.0).repeat(2), Sim::new(CAPACITY), Config::default());
    assert!(o.is_clean(), "{}", o.verdict);
    assert_eq!(o.calls, 28);
    assert_eq!(o.accesses_checked, 2 * (8 + o.cross_stream_uses), "two passes, four blocks that have bytes");
    assert_eq!(o.peak_requested_bytes, 1537);
}

#[test]
fn an_empty_log_is_clean_and_takes_nothing() {
    for workload in [Workload::default(), over(4, 1.0), Workload::default().threads(2).racy(true)] {
        let o = on_sim(&Log::default(), &workload, Sim::new(CAPACITY), Config::default());
        assert!(o.is_clean());
        assert_eq!(
            (o.calls, o.accesses_checked, o.peak_reserved_bytes, o.reserved_over_requested),
            (0, 0, 0, None)
        );
    }
}

#[test]
fn on_null_there_is_only_bookkeeping() {
    let log = gnn();
    let o = replay_log(&log, &over(4, 0.2), Null::default(), Config::default(), &|_| {}).unwrap();
    assert!(o.is_clean());
    assert_eq!((o.accesses_checked, o.makespan_ns, o.makespan_ratio), (0, None, None));
    assert_eq!(o.hits + o.misses, log.info().allocations);
    assert_eq!(o.warm_ns_per_call, None, "one pass is a cold one");
}

#[test]
fn repeats_run_on_one_allocator_and_are_timed() {
    let log = gnn();
    let seen = AtomicU64::new(0);
    let workload = over(1, 0.0).repeat(3);
    let progress = |done| {
        seen.fetch_max(done, Ordering::Relaxed);
    };
    let o = replay_log(&log, &workload, Sim::new(CAPACITY), Config::default(), &progress).unwrap();
    let once = on_sim(&log, &over(1, 0.0), Sim::new(CAPACITY), Config::default());
    assert!(o.is_clean());
    assert_eq!(o.calls, 3 * once.calls);
    assert_eq!(seen.load(Ordering::Relaxed), o.calls, "progress ends where the work ends");
    assert_eq!(o.growths, once.growths, "a warm pool does not grow");
    assert_eq!(o.makespan_ns, once.makespan_ns, "the first pass is compared");
    assert!(o.warm_ns_per_call.is_some_and(|ns| ns > 0.0));
}

/// The host's clock follows the log's, in every pass anew, and what the device does meanwhile takes no time of its own.
#[test]
fn a_paced_replay_takes_the_logs_time() {
    let log = gnn();
    let took = Duration::from_micros(log.info().micros);
    let paced = over(1, 0.2).paced(true).repeat(2);
    let sim = Sim::new(CAPACITY);
    let o = on_sim(&log, &paced, sim.clone(), Config::default());
    assert!(o.is_clean(), "{}", o.verdict);
    let first = Duration::from_nanos(o.makespan_ns.unwrap());
    assert!(first >= took && first < took * 2, "{took:?} in the log, {first:?} here");
    assert!(sim.host_time() >= first + took, "twice");
    assert!(o.makespan_ratio.is_some_and(|ratio| (0.95..1.1).contains(&ratio)), "{o:?}");

    // A block a second, each written and read in 8 ms.
    let call = |made: fn(BlockNo, u64, StreamNo, ThreadNo, u64) -> Call, n: u16| {
        let micros = 5 + u64::from(n) * 1_000_000;
        made(BlockNo(n.into()), 8 * GIB, StreamNo(0), ThreadNo(0), micros)
    };
    let calls = (0..8).flat_map(|n| [Call::alloc, Call::free].map(|made| call(made, n))).collect();
    let log = Log::new("a block a second", calls, vec![0], Vec::new());
    for (paced, least, most) in [(false, 0, 100), (true, 7_000, 7_010)] {
        let o = on_sim(&log, &Workload::default().paced(paced), Sim::new(CAPACITY), Config::default());
        assert!(o.is_clean() && (least..most).contains(&(o.makespan_ns.unwrap() / 1_000_000)), "{o:?}");
    }
}

#[test]
fn a_workload_that_cannot_be_is_refused_by_name() {
    let bad = [
        ("uses", Workload::default().uses(1.5)),
        ("uses", Workload::default().uses(f64::NAN)),
        ("break", Workload::default().broken(-0.1)),
        ("streams", Workload::default().streams(0)),
        ("streams", Workload::default().streams(u32::MAX)),
        ("threads", Workload::default().threads(0)),
        ("threads", Workload::default().threads(100_000)),
        ("repeat", Workload::default().repeat(0)),
    ];
    for (name, workload) in bad {
        match replay_log(&gnn(), &workload, Null::default(), Config::default(), &|_| {}) {
            Err(ReplayError::Workload { option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_thousand_streams() {
    let log = gnn();
    let o = on_sim(&log, &over(1000, 0.1), Sim::new(CAPACITY), Config::default());
    assert_clean(&o, &log);
    assert_eq!(o.streams, 1000);
}

fn program(text: &str) -> Program {
    Program::from_text_checked(&format!("millpond trace 1\nstreams 2\n{text}")).unwrap()
}

#[test]
fn a_log_and_its_program_come_to_the_same() {
    let log = slice("seq2seq_lstm", 1500);
    let made = Program::from_text_checked(&log.to_program().to_string()).unwrap();
    let as_program = replay_program(&made, Sim::new(CAPACITY), Config::default(), 0).unwrap();
    let as_log = on_sim(&log, &Workload::default(), Sim::new(CAPACITY), Config::default());
    assert!(as_program.is_clean());
    assert_eq!(as_program.calls, made.steps.len() as u64);
    assert_eq!(as_program.peak_requested_bytes, as_log.peak_requested_bytes);
    assert_eq!(
        (as_program.hits, as_program.growths, as_program.peak_reserved_bytes),
        (as_log.hits, as_log.growths, as_log.peak_reserved_bytes)
    );
}

#[test]
fn every_verb_of_a_program_runs() {
    let text = "alloc b0 64KiB on s0\nwrite b0 on s0\nrecord e0 on s0\nwait s1 for e0\nread b0 on s1\nwait s0 for s1\n\
        alloc-pinned b1 4096\nwrite b1 on s0\ncopy b1 to b0 13 on s0\nread b0 on s0\n\
        alloc b2 64KiB on s0 align 4096\nwrite b2 on s0\ncopy b0 to b2 4096 on s0\ncopy b2 to b1 29 on s0\n\
        read b2 on s0\nread b1 on s0\nrecord-use b2 on s1\nquery e0\nquery e9\nwait s1 for e9\nsync e0\n\
        open s7\nwait s7 for s0\nt3: read b2 on s7\nt3: free b2 on s7\nclose s7\nadvance s0 3\ntick\n\
        sync s0\nfree b1\nfree b0 unknown\ntrim s0\nlimit 1\nalloc b3 1MiB on s0\nread b3 on s0\nlimit none\n\
        sync device\ntrim all\nalloc b4 0 on s1\nwrite b4 on s0\n";
    let p = program(text);
    for schedule in [Schedule::Earliest, Schedule::Latest, Schedule::Random(5)] {
        let sim = Sim::new(GIB).schedule(schedule);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let o = replay(&p, &gpu).unwrap();
        assert_eq!(o.refused, 1, "one request above the limit; what names it is left out");
        assert_eq!(o.calls, p.steps.len() as u64);
        let tally = sim.verdict().unwrap();
        assert!(tally.accesses_checked >= 12);
        drop(gpu);
        assert!(sim.ledger().is_empty(), "{:?}", sim.leaks());
        let o = replay_program(&p, Sim::new(GIB).schedule(schedule), Config::default(), 2).unwrap();
        assert!(o.is_clean(), "{schedule:?}: {}", o.verdict);
        assert!(replay_program(&p, Null::default(), Config::default(), 2).unwrap().is_clean());
    }
}

#[test]
fn a_wrong_program_is_convicted_by_both_oracles() {
    let p = program("alloc b0 1MiB on s0\nwrite b0 on s0\nread b0 on s1\nfree b0\n");
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let eyes = sim.clone();
    // The reader's stream runs before the writer's.
    let mut late = p.clone();
    late.steps.insert(3, trace::Step::of(trace::Op::SyncStream { stream: StreamNo(1) }));
    let o = replay_program(&late, sim, Config::default(), 0).unwrap();
    assert!(o.violations > 0 && o.violations_of_allocator == 0, "{}", o.verdict);
    assert_eq!(o.mismatches, 1, "{}", o.verdict);
    assert!(eyes.verdict().is_err());
    let patched =
        program("alloc b0 1MiB on s0\nwrite b0 on s0\nwait s1 for s0\nread b0 on s1\nsync s1\nfree b0\n");
    let o = replay_program(&patched, Sim::new(GIB).schedule(Schedule::Latest), Config::default(), 0).unwrap();
    assert!(o.is_clean(), "{}", o.verdict);
}

/// A workload as a program is the same work: what the allocator did for it, what the device and its judges saw, and how long it took.
#[test]
fn a_workload_as_a_program_comes_to_the_same() {
    let log = gnn();
    for workload in
        [Workload::default(), over(4, 0.3), over(3, 0.5).threads(3).run_ahead(50), over(4, 0.5).broken(0.5)]
    {
        let sim = || Sim::new(CAPACITY).schedule(Schedule::Latest);
        let as_log = on_sim(&log, &workload, sim(), Config::default());
        let program = workload.program(&log).unwrap();
        assert_eq!(program.check(), Ok(()));
        // It is a program like any other: its text says the same.
        let program: Program = program.to_string().parse().unwrap();
        let as_program = replay_program(&program, sim(), Config::default(), workload.run_ahead).unwrap();
        let shape = |o: &Outcome| {
            let order = [o.violations, o.violations_of_allocator, o.accesses_checked, o.mismatches];
            let pools = [o.growths, o.hits, o.misses, o.migrations, o.waits_inserted, o.waits_beyond_need];
            let figures = [o.host_waits, o.cross_stream_uses, o.peak_requested_bytes, o.peak_reserved_bytes];
            (order, pools, figures, o.makespan_ns, o.streams, o.threads, o.refused)
        };
        assert_eq!(shape(&as_log), shape(&as_program), "{workload:?}");
        assert_eq!(as_log.violations > 0, workload.broken > 0.0, "{workload:?}");
    }
    let legacy = Workload::default().legacy(true).program(&log);
    assert!(matches!(legacy, Err(ReplayError::Workload { option: "legacy", .. })));
}

/// Operation by operation, as a test makes them that decides about the next one when it knows what came of the last.
#[test]
fn the_executor_says_what_came_of_each_operation() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default().limit(Limit::Bytes(4 << 20))).unwrap();
    let mut executor = Executor::new(&gpu, 1).unwrap();
    let mut run = |line: &str| {
        let text = format!("millpond trace 1\nstreams 1\n{line}");
        executor.step(text.parse::<Program>().unwrap().steps[0].op)
    };
    assert!(matches!(run("alloc b0 1MiB on s0"), Ok(Done::Handed(_))));
    assert_eq!(run("write b0 on s0").unwrap(), Done::Yes);
    assert_eq!(run("advance s0 7").unwrap(), Done::Ran(1));
    assert_eq!(run("alloc b1 1GiB on s0").unwrap(), Done::Refused);
    assert_eq!(run("read b1 on s0").unwrap(), Done::Yes, "what was refused is left out");
    assert_eq!(run("advance s0 7").unwrap(), Done::Ran(0));
    // What breaks a rule is not run.
    let e = run("alloc b0 1 on s0").unwrap_err();
    assert!(matches!(&e, ReplayError::Fault(f) if f.step == 6), "{e}");
    executor.free_all();
    assert!(gpu.live().is_empty());
    drop((executor, gpu));
    sim.verdict().unwrap();
    assert_eq!(sim.leaks(), []);
}

/// On a device that says "not yet", what is complete is not known to be: the freed memory of another stream serves a request only behind a wait.
#[test]
fn a_device_that_is_not_ready_is_one_that_has_not_run() {
    let waits = |not_ready: u32| {
        let text = format!(
            "millpond trace 1\nstreams 2\nalloc b0 4MiB on s0\nwrite b0 on s0\nfree b0\nrecord e0 on s0\nadvance s0 9\nnot-ready {not_ready}\n\
             alloc b1 4MiB on s1\nwrite b1 on s1\n"
        );
        let program = Program::from_text_checked(&text).unwrap();
        let config = Config::default().limit(Limit::Bytes(4 << 20)).growth(Growth::Exact);
        let o = replay_program(&program, Sim::new(GIB).schedule(Schedule::Latest), config, 0).unwrap();
        assert!(o.is_clean() && o.refused == 0, "{o:?}");
        o.waits_inserted
    };
    assert_eq!((waits(0), waits(9)), (0, 1));
}

#[test]
fn a_program_that_breaks_a_rule_is_refused_at_its_step() {
    let mut p = program("alloc b0 512 on s0\n");
    p.push(trace::Op::Free { block: BlockNo(4) });
    match replay_program(&p, Null::default(), Config::default(), 0) {
        Err(e @ ReplayError::Fault(fault)) => {
            assert_eq!(fault.step, 1);
            assert!(e.to_string().contains("b4 is not alive"), "{e}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_driver_error_names_its_step() {
    let p = program("alloc b0 512 on s0\nwrite b0 on s0\nread b0 on s0\n");
    let sim = Sim::new(GIB);
    sim.fail(millpond_sim::Call::LaunchKernel, 2, millpond::DriverErrorKind::Other);
    match replay_program(&p, sim.clone(), Config::default(), 0) {
        Err(e @ ReplayError::Step { step: 2, .. }) => {
            assert!(e.to_string().contains("`read b0 on s0`"), "{e}");
        }
        other => panic!("{other:?}"),
    }
    assert!(sim.ledger().is_empty(), "what was alive came back: {:?}", sim.leaks());
}

/// Pinned memory is the host's: it counts apart, and not in what is compared with what the device gave.
#[test]
fn pinned_memory_is_no_part_of_the_ratio() {
    let run = |text| replay_program(&program(text), Sim::new(GIB), Config::default(), 0).unwrap();
    let o = run("alloc b0 1MiB on s0\nalloc-pinned b1 100MiB\nfree b1\nalloc-pinned b2 1MiB");
    assert_eq!((o.peak_requested_bytes, o.peak_pinned_bytes), (1 << 20, 100 << 20));
    assert_eq!(o.reserved_over_requested, Some(20.0));
    let o = run("alloc-pinned b1 1MiB");
    assert_eq!((o.peak_requested_bytes, o.peak_pinned_bytes, o.reserved_over_requested), (0, 1 << 20, None));
}

fn schedules() -> impl Strategy<Value = (Schedule, u64)> {
    let schedule = prop_oneof![
        Just(Schedule::Latest),
        any::<u64>().prop_map(Schedule::Random),
        Just(Schedule::Earliest)
    ];
    (schedule, prop_oneof![Just(0), Just(3u64)])
}

fn configs() -> impl Strategy<Value = Config> {
    let policy = prop_oneof![Just(Policy::Latency), Just(Policy::Footprint)];
    let limit = prop_oneof![Just(Limit::None), Just(Limit::Bytes(24 << 20))];
    let memory = prop_oneof![Just(VirtualMemory::Never), Just(VirtualMemory::Always)];
    (policy, limit, any::<bool>(), memory).prop_map(|(policy, limit, deterministic, memory)| {
        Config::default().policy(policy).limit(limit).deterministic(deterministic).virtual_memory(memory)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a correct program does, under whatever schedule: both oracles agree, and nothing is lost.
    #[test]
    fn correct_programs_are_ordered(
        program in millpond_replay::programs(3, 1..150), (schedule, hold) in schedules(), config in configs()
    ) {
        let sim = Sim::new(GIB).schedule(schedule);
        let o = replay_program(&program, sim, config, hold);
        let o = o.map_err(|e| TestCaseError::fail(format!("{e}\n{program}")))?;
        prop_assert!(o.is_clean(), "{}{}\n{program}", o.verdict, o.lost);
        // No more is alive than was reserved.
        prop_assert!(o.reserved_over_requested.is_none_or(|ratio| ratio >= 1.0), "{:?}\n{program}", o.reserved_over_requested);
    }

    /// Whatever a wrong program does, it is never the allocator's fault, and nothing is lost.
    #[test]
    fn wrong_programs_are_never_the_allocators_fault(
        program in millpond_replay::hostile_programs(3, 1..150), (schedule, hold) in schedules(), config in configs()
    ) {
        let sim = Sim::new(GIB).schedule(schedule);
        let o = replay_program(&program, sim, config, hold);
        let o = o.map_err(|e| TestCaseError::fail(format!("{e}\n{program}")))?;
        prop_assert_eq!(o.violations_of_allocator, 0, "{}\n{}", o.verdict, program);
        prop_assert!(o.lost.is_nothing(), "{}\n{program}", o.lost);
    }
}

/// Each thread of a program is one of the process: there are so many, and no more.
#[test]
fn a_program_of_too_many_threads_is_refused() {
    let of =
        |threads: u32| program(&(0..threads).map(|t| format!("t{t}: tick\n")).collect::<Vec<_>>().concat());
    let run = |p: Program| replay_program(&p, Sim::new(GIB), Config::default(), 0);
    assert_eq!(run(of(256)).unwrap().threads, 256);
    for threads in [257, 65_536] {
        match run(of(threads)) {
            Err(e @ ReplayError::Workload { option: "threads", .. }) => {
                assert!(e.to_string().contains(&threads.to_string()), "{e}");
            }
            other => panic!("{threads}: {other:?}"),
        }
    }
}

/// A step waits for an event as long as that takes, as it does for a stream.
#[test]
fn an_event_may_take_long() {
    for sync in ["sync s0", "record e0 on s0\nsync e0"] {
        let body = format!("alloc b0 100GiB on s0\n{}{sync}\n", "write b0 on s0\n".repeat(200));
        let o = replay_program(&program(&body), Sim::new(CAPACITY), Config::default(), 0).unwrap();
        assert!(o.is_clean() && o.makespan_ns.is_some_and(|ns| ns > 10_000_000_000), "{sync}: {o:?}");
    }
}

/// A request fails, and the calls before it were made all the same.
#[test]
fn the_calls_before_a_failed_one_are_counted() {
    let log = tiny(&[1000, 2000, 3 << 40]);
    for threads in [1, 2] {
        for racy in [false, true] {
            let workload = over(1, 0.0).threads(threads).racy(racy).repeat(2);
            let o = on_sim(&log, &workload, Sim::new(CAPACITY), Config::default());
            assert!(o.failure.is_some());
            // Free threads may stop before they come to one of the two.
            assert!(o.calls.is_multiple_of(2), "each was freed at the end: {o:?}");
            assert!(racy || o.calls == 4, "{threads} threads: {o:?}");
        }
    }
}

#[test]
fn pinned_memory_is_of_no_stream() {
    let text = "alloc b0 1MiB on s0\nalloc-pinned b1 1MiB\ncopy b1 to b0 1KiB on s0\nwrite b1 on s0\nalloc b2 512 on s0\nwait s1 for s0\nwrite b2 on s1\n";
    let o = replay_program(&program(text), Sim::new(GIB), Config::default(), 0).unwrap();
    assert_eq!(o.cross_stream_uses, 1, "b2's alone");
}

/// What many copies from one block wrote is one word, and is read as one.
#[test]
fn copies_of_one_word_are_read_as_one() {
    let copies: Vec<_> = (1..=100).rev().map(|n| format!("copy b0 to b1 {n}KiB on s0\n")).collect();
    let copies = copies.concat();
    let text = format!("alloc b0 1MiB on s0\nalloc b1 1MiB on s0\nwrite b0 on s0\n{copies}read b1 on s0\n");
    let o = replay_program(&program(&text), Sim::new(GIB), Config::default(), 0).unwrap();
    assert!(o.is_clean(), "{}", o.verdict);
    let launches = o.report.driver_calls.get("cuLaunchKernel");
    assert_eq!(launches, Some(&3), "the write, and a read of what was copied and of the rest");
}
