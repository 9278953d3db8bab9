//! How long single calls take, from the median to the worst, with bins made as bad as they get.
//!
//! `cargo bench --bench latency`, or the binary by itself: `latency [--calls N]`. The search of a hit looks at no more than
//! sixteen chunks of the request's own bin and sixteen of the next occupied one. So both are filled with hundreds of
//! chunks: in the own bin all a granule too short, in the next all too long, so that each allocation looks at 32, cuts one
//! and each free joins it again. Beside it the easy case, an exact fit, and the same two for the rivals. What the system
//! does to a thread (interrupts, other processes) is in the worst figures of all lines alike.

use rivals::clock::{heading, number};
use rivals::{GRANULE, Line, Malloc, Offset, Ours, Trees};
use std::time::Instant;

/// Chunks in each of the two bins.
const CROWD: usize = 400;
/// What is requested, in granules: the bin of 2 MiB holds 4096 to 4351.
const ASKED: u64 = 4300;

fn main() {
    let calls = number("calls", 200_000);
    heading("latencies of single calls, the clock's own cost included (first line)");
    println!("{:<28} {:>8} {:>8} {:>8} {:>8} {:>10}", "ns", "p50", "p90", "p99", "p99.9", "max");
    let empty: Vec<u64> = (0..calls).map(|_| clocked(|| ())).map(|(nanos, ())| nanos).collect();
    print("clock", empty);
    easy::<Ours>(calls);
    easy::<Offset>(calls);
    easy::<Trees>(calls);
    easy::<Malloc>(calls);
    crowded::<Ours>(calls);
    crowded::<Offset>(calls);
    crowded::<Trees>(calls);
    crowded::<Malloc>(calls);
}

/// One block of one size, again and again.
fn easy<L: Line>(calls: usize) {
    let line = L::new(1, 8);
    let _beside = line.alloc(ASKED * GRANULE, 0);
    measure(&line, calls, "exact fit");
}

/// Hundreds of chunks a granule too short in the own bin, and hundreds in the next one.
fn crowded<L: Line>(calls: usize) {
    let line = L::new(1, 8 * CROWD);
    let mut islands = Vec::new();
    let mut between = Vec::new();
    for i in 0..CROWD as u64 {
        // The own bin: 4096 to 4299 granules. The next: 4352 to 4607.
        islands.push(line.alloc((4096 + i % 204) * GRANULE, 0));
        between.push(line.alloc(GRANULE * 1024, 0));
        islands.push(line.alloc((4352 + i % 256) * GRANULE, 0));
        between.push(line.alloc(GRANULE * 1024, 0));
    }
    for island in islands {
        line.free(island);
    }
    measure(&line, calls, "two crowded bins");
    for block in between {
        line.free(block);
    }
}

/// Each allocation and each free by itself.
fn measure<L: Line>(line: &L, calls: usize, what: &str) {
    line.free(line.alloc(ASKED * GRANULE, 0));
    let (mut allocs, mut frees) = (Vec::with_capacity(calls), Vec::with_capacity(calls));
    for _ in 0..calls {
        let (nanos, block) = clocked(|| line.alloc(ASKED * GRANULE, 0));
        allocs.push(nanos);
        frees.push(clocked(|| line.free(block)).0);
    }
    print(&format!("{} {what}, alloc", L::NAME), allocs);
    print(&format!("{} {what}, free", L::NAME), frees);
}

fn clocked<T>(run: impl FnOnce() -> T) -> (u64, T) {
    let start = Instant::now();
    let value = run();
    (start.elapsed().as_nanos() as u64, value)
}

fn print(what: &str, mut nanos: Vec<u64>) {
    nanos.sort_unstable();
    let at = |permille: usize| nanos[(nanos.len() - 1) * permille / 1000];
    println!("{what:<28} {:>8} {:>8} {:>8} {:>8} {:>10}", at(500), at(900), at(990), at(999), at(1000));
}
