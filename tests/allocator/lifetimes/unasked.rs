//! Deterministic allocators, which ask no event, in programs whose host never waits: memory that other streams used comes back by waits
//! of the device's, whatever the sizes, whoever uses it, and however many blocks are live.

use crate::rig::{all_clean, on};
use millpond::units::{KIB, MIB};
use millpond::{Config, Growth, Policy, Reuse, Trim};
use millpond_sim::{Launch, Schedule, Sim};
use proptest::prelude::*;

/// Sizes of the blocks; how many are live at a time; by which of three streams each is used.
fn programs() -> impl Strategy<Value = (Vec<u64>, usize, Vec<u8>)> {
    let bytes = prop_oneof![Just(512), KIB..64 * KIB, 64 * KIB..2 * MIB, Just(3 * MIB)];
    (prop::collection::vec(bytes, 1..12), 1..6usize, prop::collection::vec(0..8u8, 1..7))
}

/// Bytes taken by so many blocks one after the other, and the most live ones.
fn taken(
    config: &Config,
    (sizes, live, users): &(Vec<u64>, usize, Vec<u8>),
    schedule: Schedule,
    blocks: usize,
) -> (u64, u64) {
    let sim = Sim::new(64 << 30).schedule(schedule);
    let gpu = on(&sim, config.clone());
    let (s, others) = (gpu.stream().unwrap(), [(); 3].map(|()| gpu.stream().unwrap()));
    let mut alive = std::collections::VecDeque::new();
    for i in 0..blocks {
        if alive.len() == *live {
            alive.pop_front();
        }
        let x = gpu.alloc(sizes[i % sizes.len()], &s).unwrap();
        let used_by = users[i % users.len()];
        for (n, other) in others.iter().enumerate().filter(|(n, _)| used_by & (1 << n) != 0) {
            other.wait_stream(&s).unwrap();
            x.record_use(other).unwrap();
            sim.launch(
                other.native(),
                Launch::new(if n == 0 { "read" } else { "look" }).reads(x.address(), 512),
            )
            .unwrap();
        }
        alive.push_back(x);
    }
    let report = gpu.report();
    drop((alive, s, others));
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    sim.verdict().unwrap();
    all_clean(&sim, gpu);
    (report.taken, report.allocated_peak)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// As many bytes are taken by thousands of blocks as by hundreds, and the same on a device that runs at once as on a late one.
    #[test]
    fn memory_that_others_used_comes_back_though_nobody_waits(program in programs(), footprint: bool) {
        let policy = if footprint { Policy::Footprint } else { Policy::Latency };
        let config = Config::default().deterministic(true).policy(policy).growth(Growth::Exact);
        let (late, peak) = taken(&config, &program, Schedule::Latest, 3000);
        prop_assert!(late <= 4 * peak.max(2 * MIB), "{late} bytes taken, of which {peak} were live");
        let (at_once, _) = taken(&config, &program, Schedule::Earliest, 3000);
        prop_assert_eq!(late, at_once, "what is taken depends on when the device finished");
    }
}

/// Whoever allows no waits keeps it until the host has waited.
#[test]
fn without_waits_it_stays_until_the_host_has_waited() {
    let config = Config::default().deterministic(true).growth(Growth::Exact);
    let program = (vec![MIB], 1, vec![1]);
    for (reuse, bounded) in [(Reuse::WithWaits, true), (Reuse::Ordered, false), (Reuse::Never, false)] {
        let (bytes, _) = taken(&config.clone().reuse(reuse), &program, Schedule::Latest, 200);
        assert_eq!(bytes <= 8 * MIB, bounded, "{reuse:?}: {bytes} bytes taken");
    }
}
