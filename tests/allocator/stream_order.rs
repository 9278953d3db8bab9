//! The whole allocator on the simulated device: random programs on several streams, under every option that changes
//! what is reused when, with work that runs as late, as early or as randomly as is legal.
//!
//! After every step the heaps are walked, and every byte taken from the device is accounted for; live blocks are held
//! against the simplest model there is, a map of intervals; at the end both oracles are consulted, everything is dropped and
//! the device must have all back. A failure prints the program, shrunk, as text that `millpond replay FILE` runs again,
//! and proptest keeps its seed.

use crate::rig;
use millpond::trace::Program;
use millpond::units::{KIB, MIB};
use millpond::{Allocator, Config, Growth, Limit, Policy, Reuse, Trim};
use millpond_replay::{hostile_programs, programs};
use millpond_replay::{replay, replay_watched};
use millpond_sim::{Schedule, Sim};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn schedules() -> impl Strategy<Value = Schedule> {
    prop_oneof![Just(Schedule::Earliest), Just(Schedule::Latest), (0u64..8).prop_map(Schedule::Random)]
}

/// Options that change what is reused when; small limits, so that every rung is climbed.
fn options() -> impl Strategy<Value = Config> {
    let policy = prop_oneof![Just(Policy::Latency), Just(Policy::Footprint)];
    let reuse = prop_oneof![1 => Just(Reuse::Never), 2 => Just(Reuse::Ordered), 5 => Just(Reuse::WithWaits)];
    let growth = prop_oneof![
        Just(Growth::Exact),
        Just(Growth::default()),
        Just(Growth::Rounded { small: 8 * KIB, large: 64 * KIB, multiple: 4 * KIB }),
    ];
    let limit = prop_oneof![
        Just(Limit::None),
        Just(Limit::Bytes(64 * KIB)),
        Just(Limit::Bytes(512 * KIB)),
        Just(Limit::Bytes(8 * MIB))
    ];
    (policy, reuse, growth, limit, any::<bool>()).prop_map(|(policy, reuse, growth, limit, deterministic)| {
        Config::default().policy(policy).reuse(reuse).growth(growth).limit(limit).deterministic(deterministic)
    })
}

/// Live blocks as intervals: none may overlap, and the report's sums are theirs.
fn against_the_model(gpu: &Allocator<Sim>) {
    gpu.check();
    let mut intervals = BTreeMap::new();
    let (mut asked, mut rounded) = (0, 0);
    for block in gpu.live().iter().filter(|b| b.stream.is_some()) {
        asked += block.bytes;
        rounded += block.bytes.div_ceil(512) * 512;
        assert!(
            intervals.insert(block.addr.0, block.addr.0 + block.bytes).is_none(),
            "{block:?} begins twice"
        );
    }
    let mut end = 0;
    for (from, to) in intervals {
        assert!(end <= from, "two live blocks overlap at {from:#x}");
        end = to;
    }
    let report = gpu.report();
    let total = &report.total;
    assert_eq!((total.requested, total.allocated), (asked, rounded));
    assert_eq!(total.reserved, total.allocated + total.cached + total.in_flight);
    assert_eq!(total.reserved + report.moving, report.reserved, "a byte is lost or counted twice");
}

/// What every program must leave behind, whatever it was.
fn at_rest(sim: &Sim, gpu: Allocator<Sim>) {
    gpu.synchronize().unwrap();
    let unused = gpu.unused_segment_bytes();
    assert_eq!((gpu.trim(Trim::All).unwrap().bytes, gpu.unused_segment_bytes()), (unused, 0));
    against_the_model(&gpu);
    assert_eq!(gpu.report().reserved, 0, "all is free and complete, and something cannot be given back");
    drop(gpu);
    assert_eq!(sim.leaks(), [], "left on the device");
}

fn run(program: &Program, schedule: Schedule, config: Config) {
    let sim = Sim::new(256 * MIB).schedule(schedule);
    let gpu = rig::on(&sim, config);
    replay_watched(program, &gpu, &|_, _| against_the_model(&gpu)).unwrap();
    sim.run_until_idle();
    if let Err(e) = sim.verdict() {
        panic!("{e}");
    }
    at_rest(&sim, gpu);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn correct_programs_are_never_convicted(
        program in programs(4, 1..150),
        schedule in schedules(),
        config in options(),
    ) {
        let text = program.to_string();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&program, schedule, config)));
        if let Err(panic) = caught {
            let said = panic.downcast_ref::<String>().cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_default();
            return Err(TestCaseError::fail(format!("{said}\n--- the program, for millpond replay:\n{text}")));
        }
    }

    /// Wrong programs are the program's fault: the allocator stays intact and is never blamed.
    #[test]
    fn the_allocator_is_not_blamed_for_wrong_programs(
        program in hostile_programs(4, 1..150),
        schedule in schedules(),
        config in options(),
    ) {
        let sim = Sim::new(256 * MIB).schedule(schedule).contents(false);
        let gpu = rig::on(&sim, config);
        replay(&program, &gpu).unwrap();
        sim.run_until_idle();
        prop_assert_eq!(sim.tally().violations_of_allocator, 0, "{:?}\n{}", sim.violations(), program);
        at_rest(&sim, gpu);
    }
}

/// The generator must be able to show a fault: among hostile programs, some are convicted.
#[test]
fn some_hostile_programs_are_convicted() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let convicted = (0..50)
        .filter(|_| {
            let program = hostile_programs(4, 20..100).new_tree(&mut runner).unwrap().current();
            let sim = Sim::new(256 * MIB).contents(false);
            let gpu = rig::on(&sim, Config::default());
            replay(&program, &gpu).unwrap();
            sim.verdict().is_err()
        })
        .count();
    assert!(convicted > 5, "{convicted} of 50");
}
