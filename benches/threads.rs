//! Threads with a stream each, beside three other lines in one run.
//!
//! `cargo bench --bench threads`, or the binary by itself: `threads [--threads N] [--rounds N] [--pairs N]`. Each thread
//! churns a thousand blocks of its own. A pool is a stream's, so that threads on their own streams share nothing; the lines
//! under one lock share it. N is the number of cores unless said otherwise; scaling is for a machine whose cores are idle.

use rivals::clock::{heading, number};
use rivals::workload::{Workload, slots};
use rivals::{Line, Malloc, Offset, Ours, Trees};
use std::sync::Barrier;
use std::time::Instant;

/// Blocks alive in each thread.
const LIVE: usize = 1_000;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (most, rounds, pairs) = (number("threads", cores), number("rounds", 5), number("pairs", 200_000));
    heading("threads with a stream each");
    println!("# million allocations and frees a second, all threads together: the best round");
    println!("{:>7} {:>9} {:>9} {:>9} {:>9}", "threads", Ours::NAME, Offset::NAME, Trees::NAME, Malloc::NAME);
    let mut single = None;
    for threads in (0..).map(|n| 1 << n).take_while(|&n| n < most).chain([most]) {
        let ours = best::<Ours>(threads, rounds, pairs);
        let others = [
            best::<Offset>(threads, rounds, pairs),
            best::<Trees>(threads, rounds, pairs),
            best::<Malloc>(threads, rounds, pairs),
        ];
        let single = *single.get_or_insert(ours);
        let share = 100.0 * ours / (threads as f64 * single);
        print!("{threads:>7} {ours:>9.1}");
        for rate in &others {
            print!(" {rate:>9.1}");
        }
        println!("  ours: {share:.0} % of {threads} x one thread");
    }
}

/// The best rate of all rounds.
fn best<L: Line>(threads: usize, rounds: usize, pairs: usize) -> f64 {
    let line = L::new(threads, threads * LIVE);
    (0..=rounds).map(|_| round(&line, threads, pairs)).skip(1).fold(0.0, f64::max)
}

/// Millions of calls a second, from when the first thread begins to churn until the last one is done. All have filled
/// their slots by then.
fn round<L: Line>(line: &L, threads: usize, pairs: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let worker = |thread: usize| {
        let (fill, churn) = Workload::churn(LIVE, pairs, 0x9e37_79b9 + thread as u64);
        let mut slots = slots::<L>(LIVE);
        fill.run(line, &mut slots, Some(thread));
        barrier.wait();
        let start = Instant::now();
        churn.run(line, &mut slots, Some(thread));
        let end = Instant::now();
        slots.into_iter().flatten().for_each(|block| line.free(block));
        (start, end)
    };
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || worker(thread))).collect();
        workers.into_iter().map(|w| w.join().expect("a thread of the bench")).collect()
    });
    let first = times.iter().map(|t| t.0).min().expect("a thread at least");
    let last = times.iter().map(|t| t.1).max().expect("a thread at least");
    (threads * 2 * pairs) as f64 / last.duration_since(first).as_secs_f64() / 1e6
}
