//! What a hit costs, in instructions: counted by valgrind, so that the machine's load does not show.
//!
//! `cargo bench --bench hit` needs valgrind and the runner (`cargo install gungraun-runner --version 0.20.0`);
//! `.ci/instructions` installs the runner, runs this and compares with the budgets in `benches/hit.toml`. Every count is
//! of whole public calls, `Allocator::alloc` and the drop of the `Allocation`, on the driver that only hands out
//! addresses: lock, statistics and reference counts included, driver calls none.
//!
//! Each is counted with plain segments and in windows of virtual memory, the default where the device has it.
//!
//! What is counted stands between `setup` and the return; rigs are handed back so that taking them down is not.

#![allow(
    missing_docs,
    reason = "the macros make public functions and constants that no line here can document"
)]

use gungraun::{Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use millpond::allocator::VirtualMemory::{Always, Never};
use millpond::units::{KIB, MIB};
use millpond::{Allocation, Allocator, Config, Stream, VirtualMemory};
use millpond_sim::null::Null;
use rivals::Ours;
use rivals::workload::{Slots, Workload, slots};
use std::hint::black_box;

/// Pairs in one count, and frees; budgets are for one.
const TIMES: usize = 1000;
/// Migrations in one count.
const MIGRATIONS: usize = 60;
/// Random pairs in one count.
const CHURNS: usize = 10_000;

/// An allocator with a stream, its pool warm, and what is alive in it.
struct Rig {
    gpu: Allocator<Null>,
    home: Stream<Null>,
    other: Stream<Null>,
    live: Vec<Allocation<Null>>,
}

impl Rig {
    fn new(backing: VirtualMemory) -> Rig {
        let gpu = Allocator::new(Null::default(), Config::default().virtual_memory(backing))
            .expect("an allocator on the null device");
        let (home, other) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
        Rig { gpu, home, other, live: Vec::new() }
    }
    fn alloc(&self, bytes: u64) -> Allocation<Null> {
        self.gpu.alloc(bytes, &self.home).expect("the null device has 144 GiB")
    }
    /// One allocation that is not counted: the first touch of every table.
    fn warm(self, bytes: u64) -> Rig {
        drop(self.alloc(bytes));
        self
    }
}

/// A free chunk of exactly `bytes` between two that are alive.
fn hole(backing: VirtualMemory, bytes: u64) -> Rig {
    let mut rig = Rig::new(backing);
    let before = rig.alloc(bytes);
    let between = rig.alloc(bytes);
    let behind = rig.alloc(bytes);
    rig.live.extend([before, behind]);
    drop(between);
    rig.warm(bytes)
}

/// One free chunk of `bytes`, to be cut.
fn field(backing: VirtualMemory, bytes: u64) -> Rig {
    let rig = Rig::new(backing);
    drop(rig.alloc(bytes));
    rig.warm(MIB)
}

/// Blocks that another thread allocated, and between each two one that stays: no free of the first merges.
fn from_elsewhere(backing: VirtualMemory) -> (Rig, Vec<Allocation<Null>>) {
    let mut rig = Rig::new(backing);
    let (gpu, home) = (rig.gpu.clone(), rig.home.clone());
    let pairs = std::thread::spawn(move || {
        let alloc = || gpu.alloc(MIB, &home).expect("the null device has 144 GiB");
        (0..TIMES).map(|_| (alloc(), alloc())).collect::<Vec<_>>()
    });
    let (blocks, between): (Vec<_>, Vec<_>) = pairs.join().expect("the thread allocates").into_iter().unzip();
    rig.live = between;
    (rig, blocks)
}

/// A pool whose free range, which is complete, another stream's misses borrow from.
fn source(backing: VirtualMemory) -> (Rig, Vec<Allocation<Null>>) {
    let rig = Rig::new(backing);
    drop(rig.alloc((MIGRATIONS as u64 + 1) * 2 * MIB));
    rig.gpu.synchronize().expect("the null device");
    let first = rig.gpu.alloc(2 * MIB, &rig.other).expect("a migration");
    let mut kept = Vec::with_capacity(MIGRATIONS + 1);
    kept.push(first);
    (rig, kept)
}

/// One block in flight, and the home stream ordered behind the other's use of it.
fn in_flight(backing: VirtualMemory) -> Rig {
    let rig = Rig::new(backing);
    let block = rig.alloc(20 * MIB);
    block.record_use(&rig.other).expect("a use");
    drop(block);
    rig.home.wait_stream(&rig.other).expect("a wait");
    rig
}

/// Blocks of mixed sizes, `live` of them, that churned until the free chunks are as they stay; and more to do.
fn churning(backing: VirtualMemory, live: usize) -> (Ours, Slots<Ours>, Workload) {
    let (fill, mut churn) = Workload::churn(live, 2 * live + CHURNS, 0x9e37_79b9_7f4a_7c15);
    let line = Ours::on(Null::default(), Config::default().virtual_memory(backing), 1);
    let mut slots = slots::<Ours>(live);
    let counted = churn.ops.split_off(4 * live);
    fill.run(&line, &mut slots, None);
    churn.run(&line, &mut slots, None);
    (line, slots, Workload { ops: counted, ..churn })
}

#[library_benchmark]
#[bench::mib_1(args = (Never, MIB), setup = hole)]
#[bench::window_mib_1(args = (Always, MIB), setup = hole)]
#[bench::kib_1(args = (Never, KIB), setup = hole)]
#[bench::window_kib_1(args = (Always, KIB), setup = hole)]
fn exact(rig: Rig) -> Rig {
    let bytes = rig.live[0].len();
    for _ in 0..TIMES {
        drop(black_box(rig.alloc(black_box(bytes))));
    }
    rig
}

// A cut that moves the rest to another bin, and one that leaves it in its own, as cuts from long chunks do.
#[library_benchmark]
#[bench::of_20_mib(args = (Never, 20 * MIB), setup = field)]
#[bench::window_of_20_mib(args = (Always, 20 * MIB), setup = field)]
#[bench::of_1056_mib(args = (Never, 1056 * MIB), setup = field)]
#[bench::window_of_1056_mib(args = (Always, 1056 * MIB), setup = field)]
fn split_and_merge(rig: Rig) -> Rig {
    for _ in 0..TIMES {
        drop(black_box(rig.alloc(black_box(MIB))));
    }
    rig
}

#[library_benchmark]
#[bench::segments(args = (Never), setup = from_elsewhere)]
#[bench::windows(args = (Always), setup = from_elsewhere)]
fn free_elsewhere((rig, mut blocks): (Rig, Vec<Allocation<Null>>)) -> (Rig, Vec<Allocation<Null>>) {
    for _ in 0..TIMES {
        drop(black_box(blocks.pop()));
    }
    (rig, blocks)
}

#[library_benchmark]
#[bench::segments(args = (Never), setup = source)]
#[bench::windows(args = (Always), setup = source)]
fn migrate((rig, mut kept): (Rig, Vec<Allocation<Null>>)) -> (Rig, Vec<Allocation<Null>>) {
    for _ in 0..MIGRATIONS {
        kept.push(rig.gpu.alloc(black_box(2 * MIB), &rig.other).expect("a migration"));
    }
    (rig, kept)
}

#[library_benchmark]
#[bench::segments(args = (Never), setup = in_flight)]
#[bench::windows(args = (Always), setup = in_flight)]
fn take_after_drain(rig: Rig) -> (Rig, Allocation<Null>) {
    let block = black_box(rig.alloc(black_box(20 * MIB)));
    (rig, block)
}

// What a pair costs does not grow with what is alive.
#[library_benchmark]
#[bench::k_1(args = (Never, 1_000), setup = churning)]
#[bench::window_k_1(args = (Always, 1_000), setup = churning)]
#[bench::k_100(args = (Never, 100_000), setup = churning)]
#[bench::window_k_100(args = (Always, 100_000), setup = churning)]
fn churn((line, mut slots, work): (Ours, Slots<Ours>, Workload)) -> (Ours, Slots<Ours>, Workload) {
    work.run(&line, &mut slots, None);
    (line, slots, work)
}

library_benchmark_group!(
    name = hit,
    benchmarks = [exact, split_and_merge, free_elsewhere, migrate, take_after_drain, churn]
);

main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=no"])),
    library_benchmark_groups = hit
);
