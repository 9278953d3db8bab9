//! What counts as a hit, and that the counts of a pool agree with each other, through the public verbs.

use millpond::driver::null::Null;
use millpond::units::{KIB, MIB};
use millpond::{Allocator, Config, Stream};

fn gpu() -> (Allocator<Null>, Stream<Null>) {
    let gpu = Allocator::new(Null::default(), Config::default()).unwrap();
    let stream = gpu.stream().unwrap();
    (gpu, stream)
}

/// Replays of recorded traces once spent nine misses in ten here: small requests took from large free space, each by a
/// climb to the first rung of the ladder. Now they grow a small segment once, and are hits.
#[test]
fn small_requests_beside_large_free_space_miss_once() {
    let (gpu, stream) = gpu();
    drop(gpu.alloc(20 * MIB, &stream).unwrap());
    let before = gpu.report();
    let small: Vec<_> = (0..100).map(|_| gpu.alloc(4 * KIB, &stream).unwrap()).collect();
    let aligned = gpu.alloc_aligned(4 * KIB, 64 * KIB, &stream).unwrap();
    assert!(aligned.address().0.is_multiple_of(64 * KIB));
    let after = gpu.report();
    assert_eq!(after.total.counters.misses - before.total.counters.misses, 1);
    assert_eq!(after.total.counters.hits - before.total.counters.hits, 100);
    assert_eq!(after.ladder.grow.served - before.ladder.grow.served, 1);
    assert_eq!(after.taken - before.taken, 2 * MIB, "the pool grew a small segment");
    gpu.check();
    drop((small, aligned));
    gpu.check();
    assert_eq!(gpu.report().total.free_chunks, 2, "all merged again");
}

/// A pool keeps few counts and tells the others from them: they have to agree whatever was done.
#[test]
fn the_counts_agree() {
    let (gpu, stream) = gpu();
    let other = gpu.stream().unwrap();
    let mut live = Vec::new();
    let mut asked = 0;
    for i in 0..500_u64 {
        let bytes = 1 + i * 7919 % (3 * MIB);
        asked += bytes;
        live.push(gpu.alloc(bytes, &stream).unwrap());
        if i % 3 == 1 {
            let block = live.swap_remove((i * 31) as usize % live.len());
            if i % 2 == 0 {
                block.record_use(&other).unwrap();
            }
        }
    }
    let report = gpu.report();
    let (total, counters) = (&report.total, &report.total.counters);
    assert_eq!(counters.allocations, 500);
    assert_eq!(counters.frees, 500 - live.len() as u64);
    assert_eq!(total.live, live.len() as u64);
    assert_eq!(counters.hits + counters.misses, 500, "every request was served, once");
    assert_eq!(counters.bytes_served, asked);
    assert_eq!(gpu.usage().used, asked);
    assert_eq!(total.sizes.total(), 500);
    assert_eq!(total.asked, live.iter().map(millpond::Allocation::len).sum::<u64>());
    assert_eq!(total.allocated, live.iter().map(|a| a.len().next_multiple_of(512)).sum::<u64>());
    assert!(counters.in_flight_frees > 0, "some frees had a foreign use");
    assert!(
        total.allocated_peak >= total.allocated
            && total.held == total.allocated + total.cached + total.in_flight
    );
    gpu.check();
    let peak = total.allocated_peak;
    live.clear();
    assert_eq!(gpu.report().total.allocated_peak, peak);
    gpu.reset_peaks();
    assert_eq!(gpu.report().total.allocated_peak, 0);
    assert_eq!(gpu.report().total.live, 0);
}

/// The longest request of a bin, one more, and one less: the histogram of sizes is that of the report.
#[test]
fn sizes_are_counted_by_power_of_two() {
    let (gpu, stream) = gpu();
    for bytes in [1, 512, 513, 1024, 1025, 2048, 2049, MIB, MIB + 1] {
        drop(gpu.alloc(bytes, &stream).unwrap());
    }
    let sizes = gpu.report().total.sizes;
    let mut expected = millpond::report::Histogram::default();
    for granules in [1, 1, 2, 2, 3, 4, 5, 2048, 2049] {
        expected.add(millpond::units::Granules(granules));
    }
    assert_eq!(sizes, expected);
}
