//! Three claims of a talk on caching pools, measured on a GPU (requirements T1, T13 and T14 of tests/architecture/requirements.rs).
//!
//! `gpu_costs [quick]` prints a tab-separated table with a heading for each claim, a blank line between two.
//!
//! T1: allocating and freeing through the driver is slow, and a free waits for running kernels. The same small program
//! (allocate, copy in, kernel, copy out, free) on plain allocations, on a pool of the driver's and on ours; then what one
//! free takes while another stream is busy.
//!
//! T14: instead of a pool a stream, blocks could be freed by a function that the host runs when the stream gets there, or
//! by an event each. A chain of small kernels, each on a block of its own that is freed behind it: by nothing (ours: order
//! within the stream is enough), by an event, by a host function.
//!
//! T13: what one stream has freed serves no other, so that each stream has a cache of its own. Many blocks on one stream,
//! written, freed, and as many on another; what the pool has taken of the device by then. It stands last, so that the
//! peers' lines (benches/peers/t13.py) can follow in the same table.
//!
//! Without a GPU it says so and ends with 2; with 1 if ours took more for T13 than it may.

use cudarc::driver::{CudaContext, result};
use millpond::cuda::{Backing, Cuda, GpuEvent, GpuStream};
use millpond::driver::{Fences, Host, HostKind, Memory, OwnedHost, OwnedRange, StreamOptions};
use millpond::units::Addr;
use millpond::{Allocator, Config, Limit};
use std::collections::VecDeque;
use std::error::Error;
use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) type Fallible<T> = Result<T, Box<dyn Error>>;

const MIB: u64 = 1 << 20;

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A stream that nothing implicit orders.
fn stream(cuda: &Cuda) -> Fallible<GpuStream> {
    Ok(cuda.create_stream(StreamOptions::default())?)
}

// T1.

/// Takes a block and gives it back around some work; the block's own time is measured apart.
fn around(
    cuda: &Cuda,
    pool: Option<&Pool>,
    bytes: u64,
    work: impl FnOnce(Addr) -> Fallible<()>,
) -> Fallible<Duration> {
    let start = Instant::now();
    if let Some(Pool { gpu, home }) = pool {
        let block = gpu.alloc(bytes, home)?;
        let taken = start.elapsed();
        work(block.address())?;
        let free = Instant::now();
        drop(block);
        return Ok(taken + free.elapsed());
    }
    let range: OwnedRange<Cuda> = cuda.allocate(bytes)?;
    let taken = start.elapsed();
    work(range.addr())?;
    let free = Instant::now();
    range.release().map_err(|(_, e)| e)?;
    Ok(taken + free.elapsed())
}

/// Ours, with the stream that the work goes to.
pub(crate) struct Pool {
    pub(crate) gpu: Allocator<Cuda>,
    pub(crate) home: millpond::Stream<Cuda>,
}

/// The small program, again and again: microseconds a round, and of those in allocation and free.
#[allow(unsafe_code, reason = "copies by addresses")]
pub(crate) fn program(
    cuda: &Cuda,
    pool: Option<&Pool>,
    on: &GpuStream,
    host: &OwnedHost<Cuda>,
    rounds: u32,
) -> Fallible<(f64, f64)> {
    let bytes = host.bytes();
    let (mut each, mut memory) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let start = Instant::now();
        let own = around(cuda, pool, bytes, |at| {
            // SAFETY: nothing refers to the pinned memory.
            unsafe { cuda.copy_anywhere(on, at, host.addr(), bytes)? };
            cuda.write_pattern(on, at, bytes, round.into())?;
            // SAFETY: as above.
            unsafe { cuda.copy_anywhere(on, host.addr(), at, bytes)? };
            Ok(cuda.synchronize_stream(on)?)
        })?;
        each.push(micros(start.elapsed()));
        memory.push(micros(own));
    }
    Ok((median(&mut each), median(&mut memory)))
}

/// What a free takes beside an unrelated kernel of 20 ms, in microseconds, and whether the kernel was over after it.
fn beside(cuda: &Cuda, pool: Option<&Pool>, busy: &GpuStream) -> Fallible<(f64, bool)> {
    let behind = cuda.create_event()?;
    let mut gate = None;
    let time = around(cuda, pool, MIB, |_| {
        gate = Some(cuda.gate(busy, Duration::from_millis(20))?);
        Ok(cuda.record(&behind, busy)?)
    })?;
    let waited = cuda.query(&behind)?;
    drop(gate);
    cuda.synchronize_stream(busy)?;
    Ok((micros(time), waited))
}

fn plain_against_cached(cuda: &Cuda, rounds: u32) -> Fallible<()> {
    println!("T1\tfrom\tus a round\tof it alloc and free\tfree beside a 20 ms kernel, us\twaited for it");
    let (on, busy) = (stream(cuda)?, stream(cuda)?);
    let host = cuda.pin(MIB, HostKind::Cached)?;
    let pooled = cuda.clone().backing(Backing::Async { keep: u64::MAX })?;
    let gpu = Allocator::new(cuda.clone(), Config::default())?;
    let ours = Pool { home: gpu.stream()?, gpu };
    let sources = [
        ("cuMemAlloc", cuda, None),
        ("cuMemAllocFromPoolAsync, waited for", &pooled, None),
        ("millpond", cuda, Some(&ours)),
    ];
    for (name, driver, pool) in sources {
        let on = pool.map_or(&on, |p| p.home.native());
        program(driver, pool, on, &host, 3)?;
        let (round, memory) = program(driver, pool, on, &host, rounds)?;
        let (free, waited) = beside(driver, pool, &busy)?;
        println!("T1\t{name}\t{round:.1}\t{memory:.2}\t{free:.2}\t{}", if waited { "yes" } else { "no" });
    }
    Ok(())
}

// T14.

/// Bytes of a block of the chain, and what a step's kernel writes of it.
const BLOCK: u64 = 64 << 10;
const STEP: u64 = 4 << 10;
/// Blocks that a way of freeing may have at once; with none back it waits for the stream.
const MOST: usize = 2048;

/// A way to learn that a block may be used again.
pub(crate) trait Frees {
    const NAME: &'static str;
    /// Carries out one step: a block, the work, and its free.
    fn step(&mut self, cuda: &Cuda, on: &GpuStream) -> Fallible<()>;
    /// Most blocks there were, and how often the host had to wait for one.
    fn blocks(&self) -> (usize, usize);
}

/// Ours: order within the stream is enough, nothing is queued for a free.
pub(crate) struct Nothing {
    pub(crate) gpu: Allocator<Cuda>,
    pub(crate) home: millpond::Stream<Cuda>,
}

impl Frees for Nothing {
    const NAME: &'static str = "nothing (millpond)";
    fn step(&mut self, cuda: &Cuda, on: &GpuStream) -> Fallible<()> {
        let block = self.gpu.alloc(BLOCK, &self.home)?;
        Ok(cuda.write_pattern(on, block.address(), STEP, 1)?)
    }
    fn blocks(&self) -> (usize, usize) {
        ((self.gpu.report().total.allocated_peak / BLOCK) as usize, 0)
    }
}

/// What stands behind a freed block until it may be used again.
trait Mark: Sized {
    const NAME: &'static str;
    fn new(cuda: &Cuda) -> Fallible<Self>;
    fn put(&self, cuda: &Cuda, on: &GpuStream) -> Fallible<()>;
    fn is_over(&self, cuda: &Cuda) -> Fallible<bool>;
}

/// An event of the block's own.
struct ByEvent(GpuEvent);

impl Mark for ByEvent {
    const NAME: &'static str = "an event a free";
    fn new(cuda: &Cuda) -> Fallible<ByEvent> {
        Ok(ByEvent(cuda.create_event()?))
    }
    fn put(&self, cuda: &Cuda, on: &GpuStream) -> Fallible<()> {
        Ok(cuda.record(&self.0, on)?)
    }
    fn is_over(&self, cuda: &Cuda) -> Fallible<bool> {
        Ok(cuda.query(&self.0)?)
    }
}

/// A function that the host runs when the stream gets there. The flag outlives it: the chain waits for its stream.
struct ByFunction(Box<AtomicBool>);

#[allow(unsafe_code, reason = "the driver calls it with what it was given")]
unsafe extern "C" fn set(flag: *mut c_void) {
    // SAFETY: a flag of `ByFunction`, which lives until its stream was waited for.
    unsafe { &*flag.cast::<AtomicBool>() }.store(true, Ordering::Release);
}

impl Mark for ByFunction {
    const NAME: &'static str = "a host function a free";
    fn new(_: &Cuda) -> Fallible<ByFunction> {
        Ok(ByFunction(Box::new(AtomicBool::new(false))))
    }
    #[allow(unsafe_code, reason = "a foreign call with a function of ours")]
    fn put(&self, _: &Cuda, on: &GpuStream) -> Fallible<()> {
        self.0.store(false, Ordering::Relaxed);
        let flag = (&raw const *self.0).cast_mut().cast::<c_void>();
        // SAFETY: the context is current (`main` binds it), the stream alive, the flag as said above.
        unsafe { result::stream::launch_host_function(on.handle(), set, flag) }
            .map_err(|e| format!("cuLaunchHostFunc: code {}", e.0 as u32).into())
    }
    fn is_over(&self, _: &Cuda) -> Fallible<bool> {
        Ok(self.0.load(Ordering::Acquire))
    }
}

/// Blocks in the order of their frees: the oldest is queried first.
struct Marked<M> {
    taken: Vec<OwnedRange<Cuda>>,
    freed: VecDeque<(usize, M)>,
    waits: usize,
}

impl<M: Mark> Frees for Marked<M> {
    const NAME: &'static str = M::NAME;
    fn step(&mut self, cuda: &Cuda, on: &GpuStream) -> Fallible<()> {
        let over = match self.freed.front() {
            Some((_, mark)) => mark.is_over(cuda)?,
            None => false,
        };
        if !over && self.taken.len() == MOST {
            cuda.synchronize_stream(on)?;
            self.waits += 1;
        }
        let (block, mark) = if over || self.taken.len() == MOST {
            self.freed.pop_front().ok_or("every block is freed behind its step")?
        } else {
            self.taken.push(cuda.allocate(BLOCK)?);
            (self.taken.len() - 1, M::new(cuda)?)
        };
        cuda.write_pattern(on, self.taken[block].addr(), STEP, 1)?;
        mark.put(cuda, on)?;
        self.freed.push_back((block, mark));
        Ok(())
    }
    fn blocks(&self) -> (usize, usize) {
        (self.taken.len(), self.waits)
    }
}

fn chain<F: Frees>(cuda: &Cuda, on: &GpuStream, steps: u32, frees: &mut F) -> Fallible<()> {
    // Warm: every block is there that will be, as far as the device's speed decides it.
    (0..steps).try_for_each(|_| frees.step(cuda, on))?;
    cuda.synchronize_stream(on)?;
    let start = Instant::now();
    (0..steps).try_for_each(|_| frees.step(cuda, on))?;
    let queued = start.elapsed();
    cuda.synchronize_stream(on)?;
    let done = start.elapsed();
    let each = |time| micros(time) / f64::from(steps);
    let (blocks, waits) = frees.blocks();
    println!("T14\t{}\t{:.2}\t{:.2}\t{blocks}\t{waits}", F::NAME, each(queued), each(done));
    Ok(())
}

fn callback_vs_event(cuda: &Cuda, steps: u32) -> Fallible<()> {
    println!("T14\tfreed by\tus a step on the host\tus a step until all is done\tblocks\thost waits for one");
    let on = stream(cuda)?;
    let gpu = Allocator::new(cuda.clone(), Config::default())?;
    let mut nothing = Nothing { home: gpu.stream()?, gpu };
    let home = nothing.home.native().clone();
    chain(cuda, &home, steps, &mut nothing)?;
    let mut events = Marked::<ByEvent> { taken: Vec::new(), freed: VecDeque::new(), waits: 0 };
    chain(cuda, &on, steps, &mut events)?;
    let mut functions = Marked::<ByFunction> { taken: Vec::new(), freed: VecDeque::new(), waits: 0 };
    let run = chain(cuda, &on, steps, &mut functions);
    // Also when it failed: a function may still be on its way to a flag.
    cuda.synchronize_stream(&on)?;
    run
}

// T13. The same pieces as in benches/peers/t13.py.

/// Asked for on each of the two streams, and in what pieces.
const ASKED: u64 = 1024 * MIB;
const PIECES: [u64; 2] = [64 * MIB, 4 * MIB];
/// What may be taken in all, in hundredths of what one stream requested.
const MOST_TAKEN: u64 = 102;

/// All pieces on one stream, each of them written.
fn pieces(
    cuda: &Cuda,
    gpu: &Allocator<Cuda>,
    bytes: u64,
    on: &millpond::Stream<Cuda>,
) -> Fallible<Vec<millpond::Allocation<Cuda>>> {
    let one = || -> Fallible<_> {
        let block = gpu.alloc(bytes, on)?;
        cuda.write_pattern(on.native(), block.address(), bytes, 1)?;
        Ok(block)
    };
    (0..ASKED / bytes).map(|_| one()).collect()
}

/// The state of the first stream when the second one allocates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    /// The host has waited for it, as the peers do.
    IsDone,
    /// It is held before all that it wrote, and the limit is what it requested: its bytes, or none.
    IsHeld,
}

fn reclaim(cuda: &Cuda, bytes: u64, first: First) -> Fallible<bool> {
    let config = match first {
        First::IsDone => Config::default(),
        First::IsHeld => Config::default().limit(Limit::Bytes(ASKED * MOST_TAKEN / 100)),
    };
    let gpu = Allocator::new(cuda.clone(), config)?;
    let (one, two) = (gpu.stream()?, gpu.stream()?);
    let gate = match first {
        First::IsDone => None,
        First::IsHeld => Some(cuda.gate(one.native(), Duration::from_secs(5))?),
    };
    drop(pieces(cuda, &gpu, bytes, &one)?);
    if first == First::IsDone {
        one.synchronize()?;
    }
    let before = gpu.report().reserved;
    let blocks = pieces(cuda, &gpu, bytes, &two)?;
    let report = gpu.report();
    if let Some(gate) = gate {
        if gate.timed_out() {
            return Err(
                "the first stream was held for less time than the host needed: nothing was shown".into()
            );
        }
        gate.open();
    }
    gpu.synchronize()?;
    drop(blocks);
    println!(
        "T13\tmillpond, the first stream {}\t{} of {} MiB\t{}\t{}\t{:.3}\t{} by the device, {} by the host",
        if first == First::IsDone { "is done" } else { "is held" },
        ASKED / bytes,
        bytes / MIB,
        before / MIB,
        report.reserved / MIB,
        report.reserved as f64 / ASKED as f64,
        report.total.counters.waits_inserted,
        report.total.counters.host_waits
    );
    Ok(report.reserved * 100 <= ASKED * MOST_TAKEN && report.total.counters.host_waits == 0)
}

fn cross_stream_reclaim(cuda: &Cuda) -> Fallible<()> {
    println!(
        "T13\tfrom\tpieces on each stream\tMiB taken after the first\tafter the second\ttaken / asked by one\twaits"
    );
    let mut kept = true;
    for bytes in PIECES {
        for first in [First::IsDone, First::IsHeld] {
            kept &= reclaim(cuda, bytes, first)?;
        }
    }
    if kept {
        return Ok(());
    }
    Err(format!("T13: more than {MOST_TAKEN} % of what one stream requested was taken, or the host waited")
        .into())
}

#[allow(dead_code, reason = "tests/cudarc_soak.rs calls two of the loops itself")]
fn main() -> ExitCode {
    let quick = std::env::args().any(|a| a == "quick");
    let cuda = match Cuda::new(0) {
        Ok(cuda) => cuda,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let run = || -> Fallible<()> {
        // For the one call that is not the backend's own.
        let context = CudaContext::new(0)?;
        context.bind_to_thread()?;
        cuda.load_kernels()?;
        plain_against_cached(&cuda, if quick { 50 } else { 300 })?;
        println!();
        callback_vs_event(&cuda, if quick { 2_000 } else { 10_000 })?;
        println!();
        cross_stream_reclaim(&cuda)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
