//! Warm replays of recorded workloads, beside three other lines in one run.
//!
//! `cargo bench --bench traces`, or the binary by itself: `traces [--traces DIR] [--rounds N]`. The first replay of each
//! line is not counted: pools grow in it. Then the lines take turns. Aims: ours at most 1.3 times the offset line, which
//! does no stream bookkeeping and no exact best fit, and below malloc.
//!
//! A last line for each trace says what best fit saves: the memory taken in its first replay, beside a pool that serves a
//! request only from a chunk of the very same size (row T6: a fraction of it where lengths vary, about the same where
//! shapes are fixed).

use millpond::Config;
use millpond::allocator::Growth;
use millpond_replay::import::{self, Trace};
use millpond_sim::null::Null;
use rivals::clock::{Times, heading, number, option, show};
use rivals::workload::{Workload, slots};
use rivals::{CAPACITY, Line, Malloc, Offset, Ours, Trees};
use std::fs::File;
use std::path::{Path, PathBuf};

fn main() {
    let folder = option("traces").unwrap_or_else(|| "tests/traces".into());
    let rounds = number("rounds", 7);
    heading("warm replay of recorded traces");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{folder}: {e}; give --traces DIR"))
        .map(|entry| entry.expect("a folder can be read").path())
        .filter(|p| p.to_string_lossy().contains(".csv"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} has no .csv or .csv.gz");
    for file in files {
        replay(&file, rounds);
    }
}

fn replay(path: &Path, rounds: usize) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().replace(".csv.gz", "");
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let log = match import::read(&name, file, import::Options::default()) {
        Ok(Trace::Log(log)) => log,
        Ok(Trace::Program(_)) => panic!("{}: a program, no log", path.display()),
        Err(e) => panic!("{e}"),
    };
    let work = Workload::of_log(&log);
    let ours = Warm::<Ours>::new(&work);
    let (offset, trees, malloc) =
        (Warm::<Offset>::new(&work), Warm::<Trees>::new(&work), Warm::<Malloc>::new(&work));
    let before = ours.line.gpu.report();
    let (mut ours, mut offset, mut trees, mut malloc) = (ours, offset, trees, malloc);
    for _ in 0..rounds {
        ours.round(&work);
        offset.round(&work);
        trees.round(&work);
        malloc.round(&work);
    }
    show(&name, work.ops.len(), &[ours.times, offset.times, trees.times, malloc.times]);
    let after = ours.line.gpu.report();
    let (hits, misses) = (
        after.total.counters.hits - before.total.counters.hits,
        after.total.counters.misses - before.total.counters.misses,
    );
    println!("    warm hits {hits}, misses {misses}; streams {}", work.streams);
    if misses > 0 {
        println!("    ladder: {:?}", after.ladder);
    }
    let best = taken(&work, Config::default().growth(Growth::Exact));
    let exact = taken(&work, Config::default().growth(Growth::Exact).exact_fit(true));
    println!(
        "    memory taken: best fit {} MiB, exact fit {} MiB: {:.2} of it",
        best >> 20,
        exact >> 20,
        best as f64 / exact.max(1) as f64
    );
}

/// The most bytes that one replay took from a device that is never full: a request that finds it so fails, however much lies idle
/// in segments of other sizes, because giving those back would wait for the device.
fn taken(work: &Workload, config: Config) -> u64 {
    let line = Ours::on(Null::with_capacity(64 * CAPACITY), config, work.streams);
    work.run(&line, &mut slots::<Ours>(work.slots), None);
    line.gpu.report().reserved_peak
}

/// A line that has replayed the trace once.
struct Warm<L: Line> {
    line: L,
    slots: Vec<Option<L::Block>>,
    times: Times,
}

impl<L: Line> Warm<L> {
    fn new(work: &Workload) -> Warm<L> {
        let line = L::new(work.streams, work.slots);
        let mut slots = slots::<L>(work.slots);
        work.run(&line, &mut slots, None);
        Warm { line, slots, times: Times::new(L::NAME) }
    }
    fn round(&mut self, work: &Workload) {
        self.times.round(work.ops.len(), || work.run(&self.line, &mut self.slots, None));
    }
}
