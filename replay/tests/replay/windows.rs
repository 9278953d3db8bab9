//! What recorded workloads take of a device with virtual memory beneath the pools, against what they have live.

use millpond::Config;
use millpond::allocator::VirtualMemory;
use millpond::units::GIB;
use millpond_replay::import::{self, Trace};
use millpond_replay::{Workload, replay_log};
use millpond_sim::Sim;

/// Bytes reserved at the peak, by bytes requested at the peak, on one stream.
fn taken(name: &str, choice: VirtualMemory) -> f64 {
    let sim = Sim::new(144 * GIB).oracle(false).contents(false);
    let config = Config::default().virtual_memory(choice);
    let path = format!("{}/../tests/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
    let Ok(Trace::Log(log)) = import::open(&path, import::Options::default()) else {
        panic!("{path} is a log")
    };
    let workload = Workload::default().streams(1);
    let outcome = replay_log(&log, &workload, sim, config, &|_| {}).unwrap();
    assert!(outcome.is_clean(), "{name}: {}\n{:?}", outcome.verdict, outcome.failure);
    outcome.peak_reserved_bytes as f64 / outcome.peak_requested_bytes as f64
}

/// A pool takes what its requests lack between ranges that are free, not a segment for each that fits into none.
#[test]
fn windows_take_little_more_than_what_is_live() {
    for (name, plain, windows) in [("gnn_train", 2.3, 1.05), ("prefetch_multistream", 1.8, 1.25)] {
        let without = taken(name, VirtualMemory::Never);
        assert!(without > plain, "{name}: plain segments take {without}, so this says nothing of windows");
        let with = taken(name, VirtualMemory::Auto);
        assert!(with <= windows, "{name}: {with}");
    }
}
