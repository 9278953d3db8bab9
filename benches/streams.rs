//! What an operation costs beside 5,000 and beside 20,000 streams, in instructions: counted by valgrind.
//!
//! `.ci/instructions` runs this and compares the two counts of each program within one run: at most half as many again with four
//! times the streams. Instructions see what `tests/many_streams.rs` cannot: walks without a lock, such as a clock's entries. The
//! programs are the same (`benches/streams/steady.rs`), on the device that only hands out addresses. The last ones are of logs: one
//! with a call for each stream is written and read in all its forms, which has nothing of an allocator, and one with four is replayed.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "the macros make public functions and constants that no line here can document"
)]

#[allow(dead_code, reason = "the test runs all of them")]
#[path = "streams/steady.rs"]
mod steady;

use gungraun::{Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use millpond::Config;
use millpond::allocator::Policy;
use millpond::trace::{BlockNo, Log, Op, Program, StreamNo};
use millpond_replay::import::{self, Options, Trace};
use millpond_replay::{Outcome, Workload, replay_log};
use millpond_sim::null::Null;
use std::hint::black_box;
use steady::{Step, Who, World};

/// Streams, and rounds in one count: what is done once for all streams counts in full.
const FEW: usize = 5_000;
const MANY: usize = 20_000;

fn world(streams: usize, who: Who, policy: Policy, step: Step) -> (World<Null>, Step) {
    let mut world = World::new(Null::with_capacity(1 << 50), Config::default().policy(policy), streams, who);
    for _ in 0..streams {
        world.step(step);
    }
    (world, step)
}

fn few(streams: usize, step: Step) -> (World<Null>, Step) {
    world(streams, Who::Few, Policy::Latency, step)
}

fn all(streams: usize, step: Step) -> (World<Null>, Step) {
    world(streams, Who::All, Policy::Latency, step)
}

fn little_memory(streams: usize, step: Step) -> (World<Null>, Step) {
    world(streams, Who::Few, Policy::Footprint, step)
}

fn run((mut world, step): (World<Null>, Step)) -> World<Null> {
    for _ in 0..world.streams() {
        black_box(&mut world).step(step);
    }
    world
}

#[library_benchmark(setup = few)]
#[bench::hit_5k(FEW, Step::HitBesideInFlight)]
#[bench::hit_20k(MANY, Step::HitBesideInFlight)]
fn few_of_many(world: (World<Null>, Step)) -> World<Null> {
    run(world)
}

#[library_benchmark(setup = all)]
#[bench::borrow_5k(FEW, Step::BorrowInOrder)]
#[bench::borrow_20k(MANY, Step::BorrowInOrder)]
#[bench::wait_5k(FEW, Step::RecordWait)]
#[bench::wait_20k(MANY, Step::RecordWait)]
#[bench::come_and_go_5k(FEW, Step::ComesAndGoes)]
#[bench::come_and_go_20k(MANY, Step::ComesAndGoes)]
fn in_turns(world: (World<Null>, Step)) -> World<Null> {
    run(world)
}

#[library_benchmark(setup = little_memory)]
#[bench::grow_5k(FEW, Step::Grow)]
#[bench::grow_20k(MANY, Step::Grow)]
fn footprint(world: (World<Null>, Step)) -> World<Null> {
    run(world)
}

/// A program in which each stream allocates and frees once.
fn program(streams: usize) -> Program {
    let streams = u16::try_from(streams).expect("at most 65,535 streams");
    let mut program = Program::new("streams", streams);
    for n in 0..streams {
        let (block, stream) = (BlockNo(u32::from(n)), StreamNo(n));
        program.push(Op::Alloc { block, bytes: 4096, align: None, stream });
        program.push(Op::Free { block });
    }
    program
}

// Written as text and as bytes, read again, and made a log, which is written in RMM's format and imported.
#[library_benchmark(setup = program)]
#[bench::forms_5k(FEW)]
#[bench::forms_20k(MANY)]
fn logs(program: Program) -> (Program, Log) {
    let text = Program::from_text_checked(&program.to_string()).expect("what was written");
    assert_eq!(Program::from_binary(&text.to_binary()).expect("what was written"), program);
    let (log, left_out) = Log::from_program(&program).expect("it is well-formed");
    assert_eq!((log.info().streams, left_out), (u64::from(program.streams), 0));
    let mut written = Vec::new();
    log.write_rmm(&mut written).expect("memory");
    let Ok(Trace::Log(read)) = import::read("streams", written.as_slice(), Options::default()) else {
        panic!("what was written is a log");
    };
    assert_eq!(read.calls.len(), log.calls.len());
    (log.to_program(), read)
}

fn latency(streams: usize) -> (Log, Config) {
    (steady::log(streams), Config::default())
}

fn waits(streams: usize) -> (Log, Config) {
    (steady::log(streams), Config::default().policy(Policy::Footprint))
}

// The whole of `millpond replay --device null`: dealt, run, everything given back and all streams closed; its four calls a stream are a step.
#[library_benchmark]
#[bench::replay_5k(args = (FEW,), setup = latency)]
#[bench::replay_20k(args = (MANY,), setup = latency)]
#[bench::footprint_5k(args = (FEW,), setup = waits)]
#[bench::footprint_20k(args = (MANY,), setup = waits)]
fn replays((log, config): (Log, Config)) -> (Log, Outcome) {
    let null = Null::with_capacity(1 << 50);
    let outcome = replay_log(&log, &Workload::default(), null, config, &|_| {}).expect("a replay");
    assert!(outcome.is_clean() && outcome.calls as usize == log.calls.len());
    (log, outcome)
}

library_benchmark_group!(name = streams, benchmarks = [few_of_many, in_turns, footprint, logs, replays]);

main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=no"])),
    library_benchmark_groups = streams
);
