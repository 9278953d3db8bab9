//! A long run that must not grow: ten million allocations and frees on one stream, then a million arrays that one stream
//! writes, another reads, and the program drops while both are under way.
//!
//! `gpu_soak` runs a hundredth of it on the simulated device; `gpu_soak gpu [quick]` all of it, or a tenth, on CUDA device 0. The host
//! waits for one stream once in 100 arrays; among the pairs, which queue nothing on the device, once in 10,000. Tab-separated lines report what the process (`/proc/self/statm`) and the device
//! (`cuMemGetInfo`) hold, and what the allocator remembers, after each tenth. It ends with 1, and says what grew, if anything
//! is higher at the end than after the first tenth; with 2 without a GPU.

use millpond::driver::{Driver, Kernels};
use millpond::units::{GIB, KIB, MIB};
use millpond::{Allocator, Config, Stream, kernel};
use millpond_sim::Sim;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

/// Rounds between two waits of the host: for arrays, and for pairs, whose stream has nothing to be waited for.
const PERIOD: u64 = 100;
const PERIOD_OF_PAIRS: u64 = 10_000;

/// How many rounds of each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    pub(crate) pairs: u64,
    pub(crate) crossings: u64,
}

/// What is held at one moment.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Bytes of the process in memory.
    resident: u64,
    /// Bytes of the device that are in use, by whomever.
    device: u64,
    /// Bytes that the allocator has taken of them.
    taken: u64,
    markers: u64,
    events: u64,
    in_flight: u64,
    uses: u64,
    timelines: u64,
}

/// What may come and go beside the allocator: the heap of the process, and what the driver keeps for itself.
const SLACK_BYTES: u64 = 2 * MIB;
/// Twice what the allocator forgets at once.
const SLACK_COUNT: u64 = 128;

impl Held {
    fn now<D: Driver>(gpu: &Allocator<D>, resident: Option<fn() -> u64>) -> Result<Held, Box<dyn Error>> {
        let (b, info) = (gpu.bookkeeping(), gpu.driver().memory_info()?);
        Ok(Held {
            resident: resident.map_or(0, |ask| ask()),
            device: info.total - info.free,
            taken: gpu.report().reserved,
            markers: b.markers as u64,
            events: (b.markers + b.events_pooled) as u64,
            in_flight: b.in_flight as u64,
            uses: b.uses as u64,
            timelines: b.timelines as u64,
        })
    }
    /// Names, values, and by how much each may rise.
    fn values(&self) -> [(&'static str, u64, u64); 8] {
        [
            ("resident bytes", self.resident, SLACK_BYTES),
            ("device bytes in use", self.device, SLACK_BYTES),
            ("bytes taken", self.taken, 0),
            ("markers", self.markers, SLACK_COUNT),
            ("events", self.events, SLACK_COUNT),
            ("ranges in flight", self.in_flight, SLACK_COUNT),
            ("uses", self.uses, SLACK_COUNT),
            ("timelines", self.timelines, 0),
        ]
    }
}

/// Runs rounds, reports what is held after each tenth, and compares the end with the first tenth.
fn watched<D: Driver>(
    name: &str,
    gpu: &Allocator<D>,
    rounds: u64,
    resident: Option<fn() -> u64>,
    mut round: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut first = None;
    let mut last = Held::now(gpu, resident)?;
    for tenth in 1..=10 {
        for i in rounds * (tenth - 1) / 10..rounds * tenth / 10 {
            round(i)?;
        }
        last = Held::now(gpu, resident)?;
        let values: Vec<_> = last.values().iter().map(|(_, value, _)| value.to_string()).collect();
        println!("{name}\t{}\t{}", rounds * tenth / 10, values.join("\t"));
        first.get_or_insert(last);
    }
    let first = first.unwrap_or(last);
    let rose = |((what, before, may), (_, after, _)): ((&str, u64, u64), (&str, u64, u64))| {
        (after > before + may).then(|| format!("{what}: {before} -> {after}"))
    };
    let grown: Vec<_> = first.values().into_iter().zip(last.values()).filter_map(rose).collect();
    if grown.is_empty() {
        println!("PASS {name}: {rounds} rounds in {:.1} s, nothing grew", start.elapsed().as_secs_f64());
        return Ok(());
    }
    println!("FAIL {name}: {rounds} rounds; after a tenth and at the end: {}", grown.join("; "));
    Err(format!("{name} grows").into())
}

/// Allocations and frees on one stream, of 64 sizes, some of them held for a while.
fn pairs<D: Driver>(
    gpu: &Allocator<D>,
    s: &Stream<D>,
    rounds: u64,
    resident: Option<fn() -> u64>,
) -> Result<(), Box<dyn Error>> {
    let mut held: Vec<_> = (0..8).map(|_| None).collect();
    watched("pairs", gpu, rounds, resident, |i| {
        let block = gpu.alloc((1 + i * 7 % 64) * 3 * KIB, s)?;
        held[i as usize % 8] = Some(block);
        if i % PERIOD_OF_PAIRS == PERIOD_OF_PAIRS - 1 {
            s.synchronize()?;
        }
        Ok(())
    })
}

/// Arrays that one stream writes and another reads, dropped before either has run.
fn crossings<D: Driver + Kernels>(
    gpu: &Allocator<D>,
    s: &Stream<D>,
    t: &Stream<D>,
    rounds: u64,
    resident: Option<fn() -> u64>,
) -> Result<(), Box<dyn Error>> {
    let mut sum = gpu.zeros::<f32>(256, t)?;
    watched("crossings", gpu, rounds, resident, |i| {
        let mut x = gpu.uninit::<f32>(256, s)?;
        kernel::fill(&mut x, 1.0, s)?;
        kernel::saxpy(1.0, &x, &mut sum, t)?;
        drop(x);
        if i % PERIOD == PERIOD - 1 {
            t.synchronize()?;
        }
        Ok(())
    })
}

/// The program, on any device. Without `resident` the process is not looked at: other code runs in it too.
pub(crate) fn soak<D: Driver + Kernels>(
    device: D,
    rounds: Rounds,
    resident: Option<fn() -> u64>,
) -> Result<(), Box<dyn Error>> {
    kernel::load_builtins(&device)?;
    let gpu = Allocator::new(device, Config::default())?;
    let (s, t) = (gpu.stream()?, gpu.stream()?);
    println!(
        "program\trounds\tresident bytes\tdevice bytes in use\tbytes taken\tmarkers\tevents\tranges in flight\tuses\ttimelines"
    );
    let one = pairs(&gpu, &s, rounds.pairs, resident);
    let two = crossings(&gpu, &s, &t, rounds.crossings, resident);
    one.and(two)
}

/// A device that remembers nothing of what it did, so that its memory is not taken for the allocator's.
pub(crate) fn simulated() -> Sim {
    Sim::new(4 * GIB).oracle(false).contents(false)
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    // In pages; of 4 KiB on every machine that has such a GPU.
    statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .map_or(0, |pages| pages * 4 * KIB)
}

#[allow(dead_code, reason = "tests/soak.rs calls the program itself")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let whole = Rounds { pairs: 10_000_000, crossings: 1_000_000 };
    let part = |n| Rounds { pairs: whole.pairs / n, crossings: whole.crossings / n };
    let done = match words.as_slice() {
        [] => soak(simulated(), part(100), Some(resident)),
        ["gpu"] => return on_a_gpu(whole),
        ["gpu", "quick"] => return on_a_gpu(part(10)),
        _ => Err("usage: gpu_soak [gpu [quick]]".into()),
    };
    ended(done)
}

fn ended(done: Result<(), Box<dyn Error>>) -> ExitCode {
    if let Err(e) = done {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

#[cfg(feature = "cuda")]
fn on_a_gpu(rounds: Rounds) -> ExitCode {
    match millpond::cuda::Cuda::new(0) {
        Ok(cuda) => ended(soak(cuda, rounds, Some(resident))),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
#[cfg(not(feature = "cuda"))]
fn on_a_gpu(_: Rounds) -> ExitCode {
    eprintln!("built without the feature `cuda`");
    ExitCode::from(2)
}
