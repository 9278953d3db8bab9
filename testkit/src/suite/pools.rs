//! How a pool serves requests of various sizes, and its statistics: requirements of tests/architecture/requirements.rs about a caching
//! pool. Nothing here depends on time. Every block is written, so that a range that is handed out twice is found.

use super::*;
use millpond::Growth;
use millpond::report::Profile;

/// T2: the exact-fit pool, for comparison: a cached chunk serves only requests of its own size.
pub fn t02_exact_fit_baseline<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().exact_fit(true).growth(Growth::Exact));
    let s = gpu.stream().expect("a stream");
    let at = |bytes: u64| {
        let block = gpu.alloc(bytes, &s).expect("memory");
        own(b, &block, &s);
        block.address()
    };
    let first = at(1000);
    assert_eq!(at(600), first, "the same two granules");
    assert_ne!(at(100), first, "one granule is another size");
}

/// T3: on varying lengths the exact-fit pool takes a multiple of what best fit takes: the talk of this requirement saw 12 GiB against 3.
pub fn t03_exact_fit_misses_where_best_fit_hits<T: Bench>(b: &T) {
    // Like batches of sentences: the lengths differ each time.
    let lengths = || (0..b.many(400, 40) as u64).map(|i| 40_000 + (i * 7919) % 97 * 6_000);
    let reserved_by = |config: Config| {
        let gpu = allocator(b, config.growth(Growth::Exact));
        let s = gpu.stream().expect("a stream");
        for bytes in lengths() {
            let (x, y) = (gpu.alloc(bytes, &s).expect("memory"), gpu.alloc(bytes * 2, &s).expect("memory"));
            let (of_x, of_y) = (own(b, &x, &s), own(b, &y, &s));
            still(b, &x, &s, of_x);
            still(b, &y, &s, of_y);
        }
        let report = gpu.report();
        (report.reserved_peak, report.growths)
    };
    let (exact, exact_growths) = reserved_by(Config::default().exact_fit(true));
    let (best, best_growths) = reserved_by(Config::default());
    assert!(exact >= 4 * best, "exact fit {exact}, best fit {best}");
    assert!(exact_growths >= 10 * best_growths, "{exact_growths} against {best_growths}");
}

/// T4: the smallest chunk that fits is split, and the rest serves the next request.
pub fn t04_best_fit_splits<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let chunks = [4096, 512, 2560, 512, 1536, 512].map(|n| gpu.alloc(n, &s).expect("memory"));
    let at = chunks.each_ref().map(Allocation::address);
    let words = chunks.each_ref().map(|block| own(b, block, &s));
    let [first, one, second, two, third, three] = chunks;
    drop((first, second, third));
    let x = gpu.alloc(2048, &s).expect("memory");
    assert_eq!(x.address(), at[2], "2560 is the smallest that holds 2048");
    let y = gpu.alloc(512, &s).expect("memory");
    assert_eq!(y.address(), at[2].plus(2048), "its rest");
    own(b, &x, &s);
    own(b, &y, &s);
    for (between, word) in [(one, words[1]), (two, words[3]), (three, words[5])] {
        still(b, &between, &s, word);
    }
}

/// T5: a freed chunk merges with free neighbours on both sides.
pub fn t05_merge_on_free<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().growth(Growth::Exact));
    let s = gpu.stream().expect("a stream");
    let whole = gpu.alloc(3 * 512, &s).expect("memory");
    let base = whole.address();
    drop(whole);
    let [first, between, last] = [0; 3].map(|_| gpu.alloc(512, &s).expect("memory"));
    drop(first);
    drop(last);
    assert_eq!(gpu.report().total.free_chunks, 2);
    drop(between);
    assert_eq!(gpu.report().total.free_chunks, 1);
    let again = gpu.alloc(3 * 512, &s).expect("memory");
    assert_eq!(again.address(), base);
    own(b, &again, &s);
}

/// T7: bytes from the pools and from the device, and occurrences, for each scope: with and without its nested scopes. A
/// profile is a value of its owner: two profiles see the same counters, and neither sees the other's scopes.
pub fn t07_bytes_used_and_acquired_by_scope<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().growth(Growth::Exact));
    let s = gpu.stream().expect("a stream");
    let (mut profile, mut other) = (Profile::new(), Profile::new());
    let usage = || gpu.usage();
    let alloc = |bytes: u64| gpu.alloc(bytes, &s).expect("memory");
    let idle = other.enter("all of it", usage());
    profile.within("epoch", usage, |profile| {
        let kept = profile.within("load", usage, |_| alloc(4 * MIB));
        for _ in 0..10 {
            // The first takes a MiB from the device, the others reuse it.
            profile.within("layer", usage, |profile| {
                drop(alloc(MIB));
                profile.within("norm", usage, |_| drop(alloc(1000)));
            });
        }
        drop(kept);
        drop(alloc(MIB));
    });
    other.exit(idle, usage());
    let row = |k: usize| {
        let row = &profile.rows()[k];
        (
            row.name.as_str(),
            row.allocated,
            row.allocated_within,
            row.reserved,
            row.reserved_within,
            row.occurrences,
        )
    };
    assert_eq!(row(0), ("epoch", MIB, 15 * MIB + 10_000, 0, 5 * MIB, 1));
    assert_eq!(row(1), ("load", 4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB, 1));
    assert_eq!(row(2), ("layer", 10 * MIB, 10 * MIB + 10_000, MIB, MIB, 10));
    assert_eq!(row(3), ("norm", 10_000, 10_000, 0, 0, 10));
    assert_eq!(profile.total(), gpu.usage());
    assert_eq!((other.rows()[0].allocated, other.rows().len()), (gpu.usage().allocated, 1));
    let text = profile.to_string();
    assert!(text.contains("allocated within") && text.lines().count() == 6, "{text}");
}

/// T18: used, free and total bytes, and the number of free blocks.
pub fn t18_pool_statistics<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let (x, y) = (gpu.alloc(1000, &s).expect("memory"), gpu.alloc(3 * 512, &s).expect("memory"));
    drop(x);
    let report = gpu.report();
    let total = &report.total;
    assert_eq!((total.allocated, total.requested, total.live), (3 * 512, 3 * 512, 1));
    assert_eq!((total.reserved, total.cached, total.free_chunks), (2 * MIB, 2 * MIB - 3 * 512, 2));
    let windows = report.physical.map_or(0, |p| p.windows);
    assert_eq!((report.reserved, report.segments + windows), (2 * MIB, 1));
    let counted = &total.counters;
    assert_eq!((counted.allocations, counted.frees, counted.hits, counted.misses), (2, 1, 1, 1));
    assert_eq!(total.largest_free, 2 * MIB - 5 * 512);
    drop(y);
}
