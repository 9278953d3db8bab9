//! A dataset four times as large as the device's limit, changed in place and then mapped to a new one, in chunks that go in, are computed and come
//! back at the same time.
//!
//! Runs on the simulated device, in its virtual time:  `cargo run -p millpond-feed --example out_of_core`
//! Runs on a GPU:                                      `cargo run --release -p millpond-feed --example out_of_core -- gpu`

mod common;

use millpond::driver::{Driver, Kernels, bytes};
use millpond::units::MIB;
use millpond::{Allocator, Config, Limit, kernel};
use millpond_feed::{OutOfCore, OutOfCoreStats};
use std::error::Error;
use std::process::ExitCode;

/// What the device may have, and elements that are four times as much.
const LIMIT: u64 = 8 * MIB;
const LEN: usize = LIMIT as usize;

fn said(what: &str, seconds: f64, stats: &OutOfCoreStats) {
    let rate = stats.feed.bytes as f64 / seconds / 1e9;
    println!(
        "{what}: {} in {:.2} ms, {rate:.1} GB/s each way, in chunks of {} elements, {} of slots at most",
        bytes(stats.feed.bytes),
        seconds * 1e3,
        stats.chunk,
        bytes(stats.bytes_peak)
    );
}

struct OutOfCoreExample;

impl common::Program for OutOfCoreExample {
    fn on<D: Driver + Kernels>(&self, device: D, clock: &common::Clock) -> Result<(), Box<dyn Error>> {
        let gpu = Allocator::new(device, Config::default().limit(Limit::Bytes(LIMIT)))?;
        let work = gpu.stream()?;
        let mut data: Vec<f32> = (0..LEN).map(|i| (i % 1000) as f32).collect();
        println!("a dataset of {} and a device that may have {}", bytes(4 * LEN as u64), bytes(LIMIT));
        let run = OutOfCore::new(&gpu).budget(6 * MIB);
        let ones = gpu.array_from_slice(&vec![1.0_f32; 1 << 17], &work)?;

        let progress = common::bar("in place", LEN as u64)?;
        let start = clock();
        let stats = run.in_place(&mut data, &work, |range, mut chunk| {
            progress.set_position(range.end as u64);
            // 1 is added to every element; the constant is shorter than a chunk may be.
            for at in (0..range.len()).step_by(ones.len()) {
                let n = ones.len().min(range.len() - at);
                kernel::saxpy(1.0, ones.slice(..n), &mut chunk.view_mut().slice(at..at + n), &work)?;
            }
            Ok::<(), millpond::Error>(())
        })?;
        progress.finish_and_clear();
        said("in place", clock().saturating_sub(start).as_secs_f64(), &stats);

        let mut doubled = vec![0.0_f32; LEN];
        let start = clock();
        let stats = run.map(&data, &mut doubled, &work, |_, from, mut to| {
            to.fill_bytes(0, &work)?;
            kernel::saxpy(2.0, from, &mut to, &work)
        })?;
        said("mapped", clock().saturating_sub(start).as_secs_f64(), &stats);

        let is = |x: f32, expected: f32| x.to_bits() == expected.to_bits();
        let all =
            data.iter().enumerate().all(|(i, &x)| is(x, (i % 1000) as f32 + 1.0) && is(doubled[i], 2.0 * x));
        if all { Ok(()) } else { Err("an element is wrong".into()) }
    }
}

fn main() -> ExitCode {
    common::run(&OutOfCoreExample)
}
