//! Random programs of deterministic allocators, which query no event, whose host never waits: memory that other streams used comes back
//! by waits on the device, whatever the sizes, whichever streams use it, and however many blocks are live.
//!
//! What bounds it is what was ever live, not what is pending, which is unknown: `pending` has the programs that wait now and then.

use millpond::units::{GIB, KIB, MIB};
use millpond::{Allocator, Config, Growth, Policy, Reuse, Trim};
use millpond_sim::{Launch, Schedule, Sim};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::collections::VecDeque;

/// Blocks of a program, one after the other.
const BLOCKS: usize = 3000;
/// Programs of an ordinary run.
const PROGRAMS: u64 = 24;

#[derive(Clone, Debug)]
struct Program {
    /// The sizes of blocks, in turns.
    sizes: Vec<u64>,
    /// How many are live at a time.
    live: usize,
    /// By which of three other streams each is used, a bit for each, in turns.
    users: Vec<u8>,
    policy: Policy,
}

impl Program {
    fn of(seed: u64) -> Program {
        let bytes = prop_oneof![Just(512), KIB..64 * KIB, 64 * KIB..2 * MIB, Just(3 * MIB)];
        let policy = prop_oneof![Just(Policy::Latency), Just(Policy::Footprint)];
        let (sizes, users) = (prop::collection::vec(bytes, 1..12), prop::collection::vec(0..8u8, 1..7));
        let programs = (sizes, 1..6usize, users, policy).prop_map(|(sizes, live, users, policy)| Program {
            sizes,
            live,
            users,
            policy,
        });
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let drawn = programs.new_tree(&mut TestRunner::new_with_rng(ProptestConfig::default(), rng));
        drawn.expect("a program").current()
    }

    /// Bytes taken after so many blocks, and the most live ones.
    fn run(&self, reuse: Reuse, schedule: Schedule, blocks: usize) -> (u64, u64) {
        let sim = Sim::new(64 * GIB).schedule(schedule);
        let config =
            Config::default().deterministic(true).growth(Growth::Exact).policy(self.policy).reuse(reuse);
        let gpu = Allocator::new(sim.clone(), config).expect("an allocator");
        let stream = || gpu.stream().expect("a stream");
        let (s, others) = (stream(), [(); 3].map(|()| stream()));
        let mut alive = VecDeque::new();
        for i in 0..blocks {
            if alive.len() == self.live {
                alive.pop_front();
            }
            let x = gpu.alloc(self.sizes[i % self.sizes.len()], &s).expect("memory");
            let users = self.users[i % self.users.len()];
            for (_, other) in others.iter().enumerate().filter(|(n, _)| users & (1 << n) != 0) {
                other.wait_stream(&s).expect("ordered");
                x.record_use(other).expect("recorded");
                let read = Launch::new("read").reads(x.address(), 512);
                sim.launch(other.native(), read).expect("launched");
            }
            alive.push_back(x);
        }
        let report = gpu.report();
        drop((alive, s, others));
        gpu.synchronize().expect("waited");
        gpu.trim(Trim::All).expect("trimmed");
        sim.verdict().expect("every use was in order");
        (report.reserved, report.allocated_peak)
    }
}

/// The program of a seed: what grew.
pub fn try_seed(seed: u64) -> Result<(), String> {
    let program = Program::of(seed);
    let (late, peak) = program.run(Reuse::WithWaits, Schedule::Latest, BLOCKS);
    let (at_once, _) = program.run(Reuse::WithWaits, Schedule::Earliest, BLOCKS);
    if late != at_once {
        return Err(format!("seed_{seed}:\n    bytes taken: {late} late, {at_once} at once\n  {program:?}"));
    }
    if late > 4 * peak.max(2 * MIB) {
        return Err(format!(
            "seed_{seed}:\n    bytes taken: {late}, of which {peak} were live\n  {program:?}"
        ));
    }
    Ok(())
}

#[test]
fn memory_that_others_used_comes_back_without_waits() {
    let base = super::random::base();
    let found: Vec<_> = (base..base + PROGRAMS).filter_map(|seed| try_seed(seed).err()).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// If no waits are allowed, it is kept until the host has waited.
#[test]
fn without_waits_it_stays_until_the_host_has_waited() {
    let program = Program { sizes: vec![MIB], live: 1, users: vec![1], policy: Policy::Latency };
    for (reuse, bounded) in [(Reuse::WithWaits, true), (Reuse::Ordered, false), (Reuse::Never, false)] {
        let (bytes, _) = program.run(reuse, Schedule::Latest, 200);
        assert_eq!(bytes <= 8 * MIB, bounded, "{reuse:?}: {bytes} bytes taken");
    }
}
