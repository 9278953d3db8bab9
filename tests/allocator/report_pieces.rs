//! A report holds no pool's lock for longer because there is more to report: a hit on another thread waits for a piece.
//!
//! A report computes its figures in pieces, and releases the lock between two pieces. So with n more ranges it takes the
//! pool's lock at least n / 128 times more often, and how often is counted (`sync::locks_taken`, in debug builds); what is found is
//! compared with what the test made. There is no call that reads all of a pool's ranges at once that a report could use.

#![cfg(debug_assertions)]

use millpond::allocator::Growth;
use millpond::report::PoolReport;
use millpond::sync::{Rank, locks_taken};
use millpond::units::{GIB, KIB};
use millpond::{Allocation, Allocator, Config, Stream};
use millpond_sim::{Launch, Schedule, Sim};

/// Ranges in one piece, at most.
const PIECE: u64 = 128;
/// Of a size whose bin has ranges of other lengths too, so that the longest has to be looked for.
const BYTES: u64 = 20 * KIB;

/// A device on which nothing ever ends, and an allocator that takes each range from it alone, so that none merge.
fn world() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(64 * GIB).schedule(Schedule::Latest).oracle(false).contents(false);
    let gpu = Allocator::new(sim.clone(), Config::default().growth(Growth::Exact)).unwrap();
    (sim, gpu)
}

/// The first pool's report, and how often the pools' locks were taken for a report of all.
fn report(gpu: &Allocator<Sim>) -> (PoolReport, u64) {
    let before = locks_taken()[Rank::Pool as usize];
    let report = gpu.report();
    (report.pools[0].clone(), locks_taken()[Rank::Pool as usize] - before)
}

fn blocks(gpu: &Allocator<Sim>, stream: &Stream<Sim>, n: u64) -> Vec<Allocation<Sim>> {
    (0..n).map(|_| gpu.alloc(BYTES, stream).unwrap()).collect()
}

/// Runs a scene with few ranges and with many.
fn holds_no_longer(what: &str, scene: impl Fn(u64) -> (PoolReport, u64)) {
    let (_, few) = scene(10);
    for n in [1_000, 4_000] {
        let (report, locks) = scene(n);
        assert!(
            locks >= few + n / PIECE,
            "{what}: {locks} holds with {n} of them, {few} with ten: {report:?}"
        );
    }
}

#[test]
fn the_longest_of_many_free_ranges() {
    holds_no_longer("free ranges", |n| {
        let (_, gpu) = world();
        let stream = gpu.stream().unwrap();
        drop(blocks(&gpu, &stream, n));
        drop(gpu.alloc(BYTES + 512, &stream).unwrap());
        let (pool, locks) = report(&gpu);
        assert_eq!((pool.free_chunks, pool.largest_free), (n + 1, BYTES + 512));
        (pool, locks)
    });
}

/// All of one length below 16 KiB lie in a bin of their own: the longest is known by looking at one of them.
#[test]
fn the_longest_of_many_short_ranges_is_not_looked_for() {
    let (_, gpu) = world();
    let stream = gpu.stream().unwrap();
    let all: Vec<_> = (0..4_000).map(|_| gpu.alloc(4 * KIB, &stream).unwrap()).collect();
    drop(all);
    let (pool, locks) = report(&gpu);
    assert_eq!((pool.free_chunks, pool.largest_free), (4_000, 4 * KIB));
    // Each range is a segment here, and those are looked at; another look at as many records would be as many holds more.
    assert!(locks <= 14 + 4_000_u64.div_ceil(PIECE), "{locks} holds");
}

/// On a stream that only calls that name it may mark, what is free is held back from others.
#[test]
fn many_free_ranges_that_are_held_back() {
    holds_no_longer("free ranges held back", |n| {
        let (sim, gpu) = world();
        let native = sim.stream().unwrap();
        let stream = gpu.adopt(sim.unmanaged_stream(&native)).unwrap();
        let all: Vec<_> = (0..n).map(|_| gpu.alloc(4 * KIB, &stream).unwrap()).collect();
        drop(all);
        let (pool, locks) = report(&gpu);
        assert_eq!((pool.largest_free, pool.held_back), (4 * KIB, n * 4 * KIB));
        (pool, locks)
    });
}

#[test]
fn many_ranges_in_flight() {
    holds_no_longer("ranges in flight", |n| {
        let (sim, gpu) = world();
        let (home, user) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let all = blocks(&gpu, &home, n);
        for block in &all {
            block.record_use(&user).unwrap();
        }
        sim.launch(user.native(), Launch::new("read").reads(all[0].address(), 512)).unwrap();
        drop(all);
        let (pool, locks) = report(&gpu);
        assert_eq!((pool.in_flight_ranges, pool.in_flight, pool.held_back), (n, n * BYTES, 0));
        (pool, locks)
    });
}

/// The same, and each waits for a stream that no call may mark: all of it is held back. Each stream is queried how far it is behind.
#[test]
fn ranges_in_flight_for_many_streams() {
    holds_no_longer("streams that ranges in flight wait for", |n| {
        let (sim, gpu) = world();
        let home = gpu.stream().unwrap();
        let natives: Vec<_> = (0..n).map(|_| sim.stream().unwrap()).collect();
        let users: Vec<_> = natives.iter().map(|s| gpu.adopt(sim.unmanaged_stream(s)).unwrap()).collect();
        let all = blocks(&gpu, &home, n);
        for (block, user) in all.iter().zip(&users) {
            block.record_use(user).unwrap();
        }
        drop(all);
        let before = locks_taken()[Rank::Pool as usize];
        let pool = gpu.report().pools[0].clone();
        // Each of the other pools takes its own few.
        let locks =
            (locks_taken()[Rank::Pool as usize] - before).saturating_sub(holds_of_an_empty_pool() * n);
        assert_eq!((pool.in_flight_ranges, pool.held_back), (n, n * BYTES));
        assert!(pool.oldest_in_flight.is_some());
        (pool, locks)
    });
}

fn holds_of_an_empty_pool() -> u64 {
    let of = |streams: u64| {
        let (sim, gpu) = world();
        let natives: Vec<_> = (0..streams).map(|_| sim.stream().unwrap()).collect();
        let streams: Vec<_> = natives.iter().map(|s| gpu.adopt(sim.unmanaged_stream(s)).unwrap()).collect();
        let locks = report(&gpu).1;
        drop(streams);
        locks
    };
    of(101) - of(100)
}

/// Pinned memory's pool reports in the same way, and what it reports is right.
#[test]
fn pinned_memory_is_reported_in_pieces() {
    holds_no_longer("pinned ranges in flight", |n| {
        let (sim, gpu) = world();
        let stream = gpu.stream().unwrap();
        let device = gpu.alloc(BYTES, &stream).unwrap();
        sim.launch(stream.native(), Launch::new("write").writes(device.address(), 512)).unwrap();
        let pinned: Vec<_> = (0..n).map(|_| gpu.alloc_pinned(BYTES).unwrap()).collect();
        for block in &pinned {
            block.record_use(&stream).unwrap();
        }
        drop(pinned);
        let (_, locks) = report(&gpu);
        let pinned = gpu.report().pinned.unwrap();
        assert_eq!((pinned.in_flight_ranges, pinned.in_flight), (n, n * BYTES));
        (pinned, locks)
    });
}
