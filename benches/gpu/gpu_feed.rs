//! What a feeder gains on a GPU: a training loop whose batches come from the host, in turn and fed, beside the same loop with all data there; and a dataset four times as
//! large as the device may have.
//!
//! `gpu_feed [quick|tiny]` prints a tab-separated table for each, and each aim with its figure and PASS or FAIL. In every round the ways take turns, and a ratio is the median
//! of the rounds' ratios. Every way computes the same, which is compared. Ends with 0, with 3 if an aim was missed, with 2 without a GPU, with 1 if something failed.
//!
//! | way | a step |
//! |---|---|
//! | `pageable` | the loader writes a vector, which is copied by plain `cuMemcpyHtoD`; the kernels; the host waits |
//! | `pinned` | the loader writes a pinned array, which is copied and waited for; the kernels; the host waits |
//! | `fed` | the loader writes pinned slots on eight threads, ten batches ahead; the kernels; the host waits for nothing |
//! | `bound` | the batches are on the device already, and nothing is loaded; the kernels |
//!
//! The kernels of a step: one that reads the batch, and one that fills memory, for as long as the rest of a model might take.

mod common;

use common::{median, on_the_gpu};
use cudarc::driver::{CudaContext, result};
use millpond::cuda::Cuda;
use millpond::units::MIB;
use millpond::{Allocator, Config, DeviceArray, DeviceView, Limit, Stream, kernel};
use millpond_feed::{Feeder, Filled, OutOfCore};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

/// What a step is, in turns.
const WAYS: [&str; 4] = ["pageable", "pinned", "fed", "bound"];

type Fallible<T> = Result<T, Box<dyn Error>>;

/// How much of everything: steps and elements of a batch, bytes that a step fills, rounds, and the bytes that the device may have of a dataset.
struct Size {
    steps: u64,
    len: usize,
    filled: usize,
    rounds: usize,
    limit: u64,
}

struct Bench {
    gpu: Allocator<Cuda>,
    work: Stream<Cuda>,
    weights: DeviceArray<f32, Cuda>,
    scratch: DeviceArray<u8, Cuda>,
    size: Size,
}

/// What a loader would read and decode: here each element of batch `i` is `i`.
fn load(i: u64, images: &mut [f32]) {
    images.fill(i as f32);
}

fn source(steps: u64, len: usize) -> impl Iterator<Item = Filled<(f32,)>> + Send {
    (0..steps).map(move |i| {
        Filled::<(f32,)>::new((len.into(),), move |(images,)| {
            load(i, images);
            Ok(())
        })
    })
}

impl Bench {
    fn train(&mut self, images: DeviceView<'_, f32, Cuda>) -> Result<(), millpond::Error> {
        kernel::saxpy(1.0, images, &mut self.weights, &self.work)?;
        self.scratch.fill_bytes(1, &self.work)
    }

    /// Calls of the driver that wait for the device or a stream; fillers wait for the events of copies.
    fn waits(&self) -> u64 {
        let calls = self.gpu.report().driver_calls;
        calls
            .iter()
            .filter(|(name, _)| name.contains("ynchronize") && !name.contains("vent"))
            .map(|(_, n)| n)
            .sum()
    }

    /// The seconds of one run, and how often the driver was made to wait in it; every weight has to grow by the sum of the steps.
    fn time(&mut self, run: impl FnOnce(&mut Bench) -> Fallible<()>) -> Fallible<(f64, u64)> {
        self.weights.fill_bytes(0, &self.work)?;
        self.gpu.synchronize()?;
        let (start, waits) = (Instant::now(), self.waits());
        run(self)?;
        let waits = self.waits() - waits;
        self.work.synchronize()?;
        let took = start.elapsed().as_secs_f64();
        let expected = (self.size.steps * (self.size.steps - 1) / 2) as f32;
        let weights = self.weights.to_vec(&self.work)?;
        match weights.iter().find(|w| w.to_bits() != expected.to_bits()) {
            None => Ok((took, waits)),
            Some(wrong) => Err(format!("a weight is {wrong} and not {expected}").into()),
        }
    }

    fn training(&mut self) -> Fallible<Vec<(String, bool)>> {
        let Size { steps, len, rounds, .. } = self.size;
        let mut host = vec![0_f32; len];
        let mut pinned = Some(self.gpu.pinned_zeros::<f32>(len)?);
        let mut array = self.gpu.zeros::<f32>(len, &self.work)?;
        let feeder = Feeder::builder(&self.gpu).depth(10).fillers(8).start(source(steps, len))?;
        feeder.on(&self.work).try_for_each(|batch| batch.map(drop))?;
        let resident = (0..steps)
            .map(|i| {
                load(i, &mut host);
                self.gpu.array_from_slice(&host, &self.work)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut found = [const { Vec::new() }; WAYS.len()];
        for round in 0..=rounds {
            for way in (0..WAYS.len()).map(|way| (way + round) % WAYS.len()) {
                let took = match WAYS[way] {
                    "pageable" => self.time(|bench| {
                        for i in 0..steps {
                            load(i, &mut host);
                            plain_copy(&mut array, &host, &bench.work)?;
                            bench.train(array.view())?;
                            bench.work.synchronize()?;
                        }
                        Ok(())
                    })?,
                    "pinned" => self.time(|bench| {
                        for i in 0..steps {
                            let mut source = pinned.take().ok_or("the pinned array came back")?;
                            load(i, source.host_ready_mut()?);
                            let sent = array.copy_from(source, &bench.work)?;
                            bench.train(array.view())?;
                            bench.work.synchronize()?;
                            pinned = Some(sent.wait()?);
                        }
                        Ok(())
                    })?,
                    "fed" => self.time(|bench| {
                        feeder.restart(source(steps, len))?;
                        let work = bench.work.clone();
                        for batch in feeder.on(&work) {
                            bench.train(batch?.views().0)?;
                        }
                        Ok(())
                    })?,
                    _ => self.time(|bench| {
                        resident.iter().try_for_each(|images| Ok(bench.train(images.view())?))
                    })?,
                };
                // The first round loads kernels and takes memory.
                if round > 0 {
                    found[way].push(took);
                }
            }
        }
        println!("way\tms a step\tof the bound\twaits for the device or a stream, a step");
        let mut aims = Vec::new();
        for (way, all) in WAYS.iter().zip(&found) {
            let share = median(all.iter().zip(&found[3]).map(|((took, _), (bound, _))| bound / took));
            let step = median(all.iter().map(|(took, _)| took / steps as f64 * 1e3));
            let waits = all.iter().map(|(_, waits)| *waits).max().unwrap_or_default();
            println!("{way}\t{step:.3}\t{share:.3}\t{:.2}", waits as f64 / steps as f64);
            if *way == "fed" {
                aims.push((format!("fed runs at {share:.3} of the bound, aim at least 0.97"), share >= 0.97));
            }
        }
        println!("{}\n", feeder.stats());
        Ok(aims)
    }

    /// A dataset of four times the limit: what each element needs of the device's time changes from row to row.
    fn out_of_core(&self, cuda: &Cuda) -> Fallible<Vec<(String, bool)>> {
        let limit = self.size.limit;
        let len = limit as usize;
        let gpu = Allocator::new(cuda.clone(), Config::default().limit(Limit::Bytes(limit)))?;
        let work = gpu.stream()?;
        let mut data: Vec<f32> = (0..len).map(|i| (i % 1000) as f32).collect();
        let ones = gpu.array_from_slice(&vec![1.0_f32; 8 << 20], &work)?;
        let mut expected = 0_u32;
        println!("write-back threads\tcopies alone, s\tGB/s each way");
        for drainers in [1, 2, 4, 6, 8] {
            let run = OutOfCore::new(&gpu).budget(limit / 2).fillers(8).drainers(drainers);
            let mut times = Vec::new();
            for _ in 0..=self.size.rounds {
                let start = Instant::now();
                run.in_place(&mut data, &work, |_, _| Ok::<(), millpond::Error>(()))?;
                work.synchronize()?;
                times.push(start.elapsed().as_secs_f64());
            }
            // The first one warms up.
            let took = median(times.into_iter().skip(1));
            println!("{drainers}\t{took:.3}\t{:.1}", (len * size_of::<f32>()) as f64 / took / 1e9);
        }
        println!();
        println!(
            "kernels a chunk\twall, s\tcopies alone, s\tkernels alone, s\tof the larger\tbytes of slots, MiB"
        );
        let mut aims = Vec::new();
        for kernels in [1_u32, 64, 512] {
            let run = OutOfCore::new(&gpu).budget(limit / 2).fillers(8).drainers(6);
            let add = |range: &std::ops::Range<usize>,
                       chunk: &mut millpond::DeviceViewMut<'_, f32, Cuda>,
                       times: u32| {
                for _ in 0..times {
                    for at in (0..range.len()).step_by(ones.len()) {
                        let n = ones.len().min(range.len() - at);
                        kernel::saxpy(1.0, ones.slice(..n), &mut chunk.view_mut().slice(at..at + n), &work)?;
                    }
                }
                Ok::<(), millpond::Error>(())
            };
            let timed = |data: &mut [f32], times: u32| -> Fallible<_> {
                let start = Instant::now();
                let stats =
                    run.in_place(data, &work, |range, mut chunk| add(&range, &mut chunk.view_mut(), times))?;
                work.synchronize()?;
                Ok((start.elapsed().as_secs_f64(), stats))
            };
            timed(&mut data, 0)?;
            let (copies, _) = timed(&mut data, 0)?;
            let (wall, stats) = timed(&mut data, kernels)?;
            // The same kernels on as many elements that are there already.
            let mut there = gpu.zeros::<f32>(stats.chunk, &work)?;
            add(&(0..stats.chunk), &mut there.view_mut(), kernels)?;
            work.synchronize()?;
            let start = Instant::now();
            for at in (0..len).step_by(stats.chunk) {
                add(&(0..stats.chunk.min(len - at)), &mut there.view_mut(), kernels)?;
            }
            work.synchronize()?;
            let computed = start.elapsed().as_secs_f64();
            let ratio = wall / copies.max(computed);
            println!(
                "{kernels}\t{wall:.3}\t{copies:.3}\t{computed:.3}\t{ratio:.3}\t{}",
                stats.bytes_peak / MIB
            );
            aims.push((
                format!("out of core with {kernels} kernels a chunk takes {ratio:.3} of the larger, aim at most 1.05"),
                ratio <= 1.05,
            ));
            expected += kernels;
        }
        let wrong = data
            .iter()
            .enumerate()
            .find(|&(i, x)| x.to_bits() != ((i % 1000) as f32 + expected as f32).to_bits());
        match wrong {
            None => Ok(aims),
            Some((i, x)) => Err(format!("element {i} is {x}").into()),
        }
    }
}

/// The driver's own copy of pageable memory, which waits.
#[allow(unsafe_code, reason = "a foreign call")]
fn plain_copy(to: &mut DeviceArray<f32, Cuda>, from: &[f32], work: &Stream<Cuda>) -> Fallible<()> {
    // Nothing of the array is in use: the host has waited for the step before.
    to.wait_on(work)?;
    // SAFETY: the array has as many elements, and nothing uses it.
    Ok(unsafe { result::memcpy_htod_sync(to.address().0, from) }?)
}

fn run(cuda: &Cuda, size: Size) -> Fallible<bool> {
    let context = CudaContext::new(0)?;
    context.bind_to_thread()?;
    let gpu = Allocator::new(cuda.clone(), Config::default())?;
    let work = gpu.stream()?;
    let weights = gpu.zeros::<f32>(size.len, &work)?;
    let scratch = gpu.uninit::<u8>(size.filled, &work)?;
    println!(
        "batches of {} MiB, {} steps, {} MiB filled a step, {} rounds",
        4 * size.len as u64 / MIB,
        size.steps,
        size.filled as u64 / MIB,
        size.rounds
    );
    let mut bench = Bench { gpu, work, weights, scratch, size };
    let mut aims = bench.training()?;
    aims.extend(bench.out_of_core(cuda)?);
    println!();
    for (what, met) in &aims {
        println!("{} {what}", if *met { "PASS" } else { "FAIL" });
    }
    Ok(aims.iter().all(|(_, met)| *met))
}

fn main() -> ExitCode {
    let size = std::env::args().nth(1).unwrap_or_default();
    let mib = MIB as usize;
    let sizes = match size.as_str() {
        "" => Size { steps: 300, len: 8 << 20, filled: 8192 * mib, rounds: 5, limit: 1024 * MIB },
        "quick" => Size { steps: 40, len: 8 << 20, filled: 8192 * mib, rounds: 3, limit: 256 * MIB },
        "tiny" => Size { steps: 8, len: 1 << 18, filled: 64 * mib, rounds: 1, limit: 64 * MIB },
        _ => {
            eprintln!("gpu_feed [quick|tiny]: what is {size:?}?");
            return ExitCode::FAILURE;
        }
    };
    on_the_gpu(|cuda| run(cuda, sizes))
}
