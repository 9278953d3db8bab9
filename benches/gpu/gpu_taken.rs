//! What recorded workloads take of a GPU through the Rust interface, and how long their allocations and frees take, first cold and then warm.
//!
//! `gpu_taken [quick] TRACE...` replays each trace on one stream and dealt over four, in runs of 1 to 24 allocations, with nothing queued on the streams,
//! so that what is freed is complete. Each contestant makes the same calls twice, first with nothing cached and then with what the first pass left. Two
//! tab-separated tables: bytes that the driver says are in use at most (read every 64th call), less those before, beside the most bytes that were live; and the
//! quantiles of single allocations, with the time of all calls of a pass. `quick` leaves out four streams. Ends with 0, with 2 without a
//! GPU, with 1 if something failed. It has no aims of its own: benches/RESULTS.md says what the figures are to be.
//!
//! | contestant | what it is |
//! |---|---|
//! | `segments` | ours, `VirtualMemory::Never` |
//! | `latency`, `footprint` | ours, `VirtualMemory::Always` and this policy |
//! | `cuMemAllocAsync` | the driver's pool, which keeps all that is freed (its release threshold is the largest there is) |

mod common;

use common::{median, on_the_gpu};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use millpond::allocator::VirtualMemory;
use millpond::cuda::Cuda;
use millpond::driver::Memory;
use millpond::driver::random::SplitMix64;
use millpond::trace::{Action, Log};
use millpond::{Allocation, Allocator, Config, Policy, Stream};
use millpond_replay::import::{Options, Trace, open};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Fallible<T> = Result<T, Box<dyn Error>>;

const MIB: u64 = 1 << 20;
/// Blocks go to a stream in runs of at most this many.
const RUN_MOST: u64 = 24;
/// The driver is asked what is in use once in so many calls.
const EVERY: usize = 64;

/// One call: an allocation into a slot, or with no bytes the free of what is there.
#[derive(Clone, Copy)]
struct Op {
    bytes: u64,
    slot: usize,
    stream: usize,
}

struct Work {
    name: String,
    ops: Vec<Op>,
    slots: usize,
    streams: usize,
    live_most: u64,
}

impl Work {
    /// The calls of a log, dealt over `streams`; what is alive at its end is freed.
    fn of_log(name: &str, log: &Log, streams: usize) -> Work {
        let mut draw = SplitMix64::new(1);
        let (mut now, mut left) = (0, 0);
        let blocks = log.calls.iter().map(|c| c.block().0 as usize + 1).max().unwrap_or(0);
        let mut bytes_of = vec![0; blocks];
        let (mut live, mut live_most) = (0, 0);
        let mut ops = Vec::with_capacity(log.calls.len() + blocks);
        for call in &log.calls {
            let slot = call.block().0 as usize;
            match call.action() {
                Action::Alloc => {
                    if left == 0 {
                        now = draw.below(streams as u64) as usize;
                        left = 1 + draw.below(RUN_MOST);
                    }
                    left -= 1;
                    let bytes = call.bytes().max(1);
                    bytes_of[slot] = bytes;
                    live += bytes;
                    live_most = live_most.max(live);
                    ops.push(Op { bytes, slot, stream: now });
                }
                Action::Free => {
                    live -= std::mem::take(&mut bytes_of[slot]);
                    ops.push(Op { bytes: 0, slot, stream: now });
                }
            }
        }
        let left_alive = bytes_of.iter().enumerate().filter(|&(_, &bytes)| bytes > 0);
        ops.extend(left_alive.map(|(slot, _)| Op { bytes: 0, slot, stream: 0 }));
        Work { name: name.to_owned(), ops, slots: blocks, streams, live_most }
    }
}

/// An allocator that is given the calls of one workload.
trait Contestant {
    type Block;
    fn alloc(&self, bytes: u64, stream: usize) -> Fallible<Self::Block>;
    fn free(&self, block: Self::Block) -> Fallible<()>;
}

struct Ours {
    gpu: Allocator<Cuda>,
    streams: Vec<Stream<Cuda>>,
}

impl Ours {
    fn new(cuda: &Cuda, config: Config, streams: usize) -> Fallible<Ours> {
        let gpu = Allocator::new(cuda.clone(), config)?;
        let streams = (0..streams).map(|_| gpu.stream()).collect::<Result<_, _>>()?;
        Ok(Ours { gpu, streams })
    }
}

impl Contestant for Ours {
    type Block = Allocation<Cuda>;
    fn alloc(&self, bytes: u64, stream: usize) -> Fallible<Allocation<Cuda>> {
        Ok(self.gpu.alloc(bytes, &self.streams[stream])?)
    }
    fn free(&self, block: Allocation<Cuda>) -> Fallible<()> {
        drop(block);
        Ok(())
    }
}

/// The driver's own pool.
struct Drivers {
    pool: sys::CUmemoryPool,
    streams: Vec<Arc<CudaStream>>,
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Drivers {
    fn new(context: &Arc<CudaContext>, streams: usize) -> Fallible<Drivers> {
        context.bind_to_thread()?;
        let mut pool = std::ptr::null_mut();
        let mut all = u64::MAX;
        // SAFETY: the pool and the number are written and read during the calls.
        unsafe {
            sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()).result()?;
            let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut all).cast()).result()?;
        }
        let streams = (0..streams).map(|_| context.new_stream()).collect::<Result<_, _>>()?;
        Ok(Drivers { pool, streams })
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Contestant for Drivers {
    /// The address, and the stream that frees it.
    type Block = (sys::CUdeviceptr, usize);
    fn alloc(&self, bytes: u64, stream: usize) -> Fallible<Self::Block> {
        // SAFETY: what is there is neither read nor written; freed by `free`.
        let at = unsafe { result::malloc_async(self.streams[stream].cu_stream(), bytes as usize) }?;
        Ok((at, stream))
    }
    fn free(&self, (at, stream): Self::Block) -> Fallible<()> {
        // SAFETY: allocated by `alloc` and freed once.
        Ok(unsafe { result::free_async(at, self.streams[stream].cu_stream()) }?)
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Drop for Drivers {
    fn drop(&mut self) {
        for stream in &self.streams {
            // A failure leaves memory in the pool: the next contestant's figures begin with what is in use then.
            let _ = stream.synchronize();
        }
        // SAFETY: the device's own pool, which lives as long as the context.
        let _ = unsafe { sys::cuMemPoolTrimTo(self.pool, 0) };
    }
}

/// What one pass took.
struct Pass {
    /// Each allocation, sorted.
    allocations: Vec<Duration>,
    calls: Duration,
    taken: u64,
}

impl Pass {
    /// In us, the allocation that so many in a thousand are not longer than.
    fn quantile(&self, of_1000: usize) -> f64 {
        let last = self.allocations.len().saturating_sub(1);
        self.allocations.get(last * of_1000 / 1000).map_or(f64::NAN, |d| d.as_secs_f64() * 1e6)
    }
    fn times(&self) -> String {
        let p50 = median(self.allocations.iter().map(|d| d.as_secs_f64() * 1e6));
        let [p99, p999, most] = [990, 999, 1000].map(|of_1000| self.quantile(of_1000));
        format!("{p50:.2}\t{p99:.2}\t{p999:.1}\t{most:.0}\t{:.1}", self.calls.as_secs_f64() * 1e3)
    }
}

fn in_use(cuda: &Cuda) -> Fallible<u64> {
    let info = cuda.memory_info()?;
    Ok(info.total - info.free)
}

fn pass<C: Contestant>(cuda: &Cuda, who: &C, work: &Work, before: u64) -> Fallible<Pass> {
    let mut held: Vec<Option<C::Block>> = Vec::new();
    held.resize_with(work.slots, || None);
    let mut found = Pass { allocations: Vec::new(), calls: Duration::ZERO, taken: 0 };
    for (number, op) in work.ops.iter().enumerate() {
        let start = Instant::now();
        if op.bytes > 0 {
            held[op.slot] = Some(who.alloc(op.bytes, op.stream)?);
            found.allocations.push(start.elapsed());
        } else if let Some(block) = held[op.slot].take() {
            who.free(block)?;
        }
        found.calls += start.elapsed();
        if number % EVERY == 0 {
            found.taken = found.taken.max(in_use(cuda)?.saturating_sub(before));
        }
    }
    found.taken = found.taken.max(in_use(cuda)?.saturating_sub(before));
    found.allocations.sort();
    Ok(found)
}

/// A row of each table.
struct Row {
    taken: String,
    times: String,
}

fn both_passes<C: Contestant>(
    cuda: &Cuda,
    name: &str,
    work: &Work,
    make: impl FnOnce() -> Fallible<C>,
) -> Fallible<Row> {
    let before = in_use(cuda)?;
    let who = make()?;
    let cold = pass(cuda, &who, work, before)?;
    let warm = pass(cuda, &who, work, before)?;
    let (trace, streams, live) = (&work.name, work.streams, work.live_most);
    let ratio = |pass: &Pass| pass.taken as f64 / live.max(1) as f64;
    Ok(Row {
        taken: format!(
            "{trace}\t{streams}\t{name}\t{}\t{}\t{:.3}\t{:.3}",
            live / MIB,
            cold.taken / MIB,
            ratio(&cold),
            ratio(&warm)
        ),
        times: format!("{trace}\t{streams}\t{name}\t{}\t{}", cold.times(), warm.times()),
    })
}

fn rows(cuda: &Cuda, context: &Arc<CudaContext>, work: &Work) -> Fallible<Vec<Row>> {
    let ours = [
        ("segments", Policy::Latency, VirtualMemory::Never),
        ("latency", Policy::Latency, VirtualMemory::Always),
        ("footprint", Policy::Footprint, VirtualMemory::Always),
    ];
    let mut rows = Vec::new();
    for (name, policy, backing) in ours {
        let config = Config::default().policy(policy).virtual_memory(backing);
        rows.push(both_passes(cuda, name, work, || Ours::new(cuda, config, work.streams))?);
    }
    rows.push(both_passes(cuda, "cuMemAllocAsync", work, || Drivers::new(context, work.streams))?);
    Ok(rows)
}

fn run(cuda: &Cuda, traces: &[String], streams: &[usize]) -> Fallible<bool> {
    let context = CudaContext::new(0)?;
    let mut found = Vec::new();
    for path in traces {
        let Trace::Log(log) = open(Path::new(path), Options::default())? else {
            return Err(format!("{path}: a program, and no log of calls").into());
        };
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('.').next().unwrap_or_default();
        for &streams in streams {
            found.extend(rows(cuda, &context, &Work::of_log(name, &log, streams))?);
        }
    }
    println!("trace\tstreams\tby\tlive MiB\ttaken MiB\ttaken / live\tand warm");
    for row in &found {
        println!("{}", row.taken);
    }
    println!();
    let of_a_pass = "p50 us\tp99 us\tp99.9 us\tworst us\tall calls ms";
    println!("trace\tstreams\tby\t{of_a_pass}\t{}", of_a_pass.replace('\t', " warm\t") + " warm");
    for row in &found {
        println!("{}", row.times);
    }
    println!();
    Ok(true)
}

fn main() -> ExitCode {
    let mut traces: Vec<String> = std::env::args().skip(1).collect();
    let quick = traces.first().is_some_and(|first| first == "quick");
    if quick {
        traces.remove(0);
    }
    if traces.is_empty() {
        eprintln!("gpu_taken [quick] TRACE...: no trace is named");
        return ExitCode::FAILURE;
    }
    let streams: &[usize] = if quick { &[1] } else { &[1, 4] };
    on_the_gpu(|cuda| run(cuda, &traces, streams))
}
