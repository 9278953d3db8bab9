//! What a call costs on a GPU: ours and cudarc's, on work that other allocators can be given too.
//!
//! `gpu_bench make DIR TRACE...` writes the work into files, so that every program does the same: one record an
//! operation, 16 bytes little endian: slot (4), stream (2), zero (2), bytes (8; 0 frees the slot).
//! `gpu_bench run DIR [quick]` runs it, and prints tab-separated rows: pattern, allocator, ns per call, p50, p99, worst,
//! MiB taken. For threads, ns is per call and thread, and the last column is millions of calls a second in all, with the
//! slowest and the fastest thread's. Beside ours stand there ours with an allocator for each thread, which can share
//! nothing of an allocator, and a control that allocates nothing and shares nothing: what the machine itself allows.
//! `benches/gpu.sh` does all this, and the same for others. Without a GPU it says so and ends with 2.

#![allow(
    clippy::inline_always,
    reason = "what is measured is a call of the allocator, and not one of the loop's own"
)]

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use millpond::cuda::Cuda;
use millpond::driver::random::SplitMix64;
use millpond::driver::{Fences, Memory};
use millpond::trace::{Action, Log};
use millpond::{Allocation, Allocator, Config, Stream};
use millpond_replay::import::{Options, Trace, open};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Streams of one program of work, at most; a trace's others are folded onto them.
const STREAMS: u16 = 8;
const MOST_THREADS: usize = 16;

/// One operation of the work.
#[derive(Clone, Copy)]
struct Op {
    slot: u32,
    stream: u16,
    bytes: u64,
}

// The work.

/// A seeded stream of numbers: the same on every machine.
struct Draw(SplitMix64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }
    /// Mixed sizes: every power of two from 64 B to 64 MiB, the middle ones oftenest (the sum of three dice), and a
    /// length between that power and the next.
    fn mixed(&mut self) -> u64 {
        let power = 6 + self.below(8) + self.below(7) + self.below(7);
        (1 << power) + self.below(1 << power)
    }
}

/// Fills `live` slots, replaces random ones, frees all.
fn churn(seed: u64, live: u32, steps: u32) -> Vec<Op> {
    let mut draw = Draw(SplitMix64::new(seed));
    let mut ops = Vec::new();
    let op = |slot, bytes| Op { slot, stream: 0, bytes };
    for slot in 0..live {
        ops.push(op(slot, draw.mixed()));
    }
    for _ in 0..steps {
        let slot = draw.below(live.into()) as u32;
        ops.push(op(slot, 0));
        ops.push(op(slot, draw.mixed()));
    }
    ops.extend((0..live).map(|slot| op(slot, 0)));
    ops
}

/// A recorded log; what is alive at its end is freed, so that it can be run again. Slots are used again, so that the
/// table of blocks stays small and is not what is measured.
fn of_log(log: &Log) -> Vec<Op> {
    let mut live = BTreeMap::new();
    let (mut idle, mut used) = (Vec::new(), 0);
    let mut ops = Vec::new();
    // An allocation of nothing is nothing to most allocators.
    for call in log.calls.iter().filter(|c| c.bytes() > 0) {
        match call.action() {
            Action::Alloc => {
                let slot = idle.pop().unwrap_or_else(|| {
                    used += 1;
                    used - 1
                });
                let op = Op { slot, stream: call.stream().0 % STREAMS, bytes: call.bytes() };
                live.insert(call.block().0, op);
                ops.push(op);
            }
            Action::Free => {
                if let Some(op) = live.remove(&call.block().0) {
                    idle.push(op.slot);
                    ops.push(Op { bytes: 0, ..op });
                }
            }
        }
    }
    ops.extend(live.into_values().map(|op| Op { bytes: 0, ..op }));
    ops
}

fn write(path: &Path, ops: &[Op]) -> Fallible<()> {
    let mut bytes = Vec::with_capacity(ops.len() * 16);
    for op in ops {
        bytes.extend(op.slot.to_le_bytes());
        bytes.extend(op.stream.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(op.bytes.to_le_bytes());
    }
    Ok(fs::write(path, bytes)?)
}

fn load(path: &Path) -> Fallible<Vec<Op>> {
    let bytes = fs::read(path)?;
    let (records, rest) = bytes.as_chunks::<16>();
    if !rest.is_empty() {
        return Err(format!("{}: not a whole number of records", path.display()).into());
    }
    let op = |r: &[u8; 16]| Op {
        slot: u32::from_le_bytes([r[0], r[1], r[2], r[3]]),
        stream: u16::from_le_bytes([r[4], r[5]]),
        bytes: u64::from_le_bytes([r[8], r[9], r[10], r[11], r[12], r[13], r[14], r[15]]),
    };
    Ok(records.iter().map(op).collect())
}

fn make(dir: &Path, traces: &[String]) -> Fallible<()> {
    fs::create_dir_all(dir)?;
    let pair = [Op { slot: 0, stream: 0, bytes: 1 << 20 }, Op { slot: 0, stream: 0, bytes: 0 }];
    write(&dir.join("1-pair-1MiB.ops"), &pair.repeat(100_000))?;
    write(&dir.join("2-mixed-1k-live.ops"), &churn(42, 1_000, 100_000))?;
    write(&dir.join("3-mixed-20k-live.ops"), &shrunk(churn(43, 20_000, 100_000)))?;
    for thread in 0..MOST_THREADS as u64 {
        write(&dir.join(format!("thread-{thread:02}.part")), &churn(100 + thread, 200, 50_000))?;
    }
    for trace in traces {
        let Trace::Log(log) = open(trace, Options::default())? else {
            return Err(format!("{trace}: a program, not a log of allocations").into());
        };
        write(&dir.join(format!("4-{}.ops", log.name)), &of_log(&log))?;
    }
    Ok(())
}

/// The same work with an eighth of the bytes, so that 20,000 blocks fit on a small GPU too.
fn shrunk(ops: Vec<Op>) -> Vec<Op> {
    ops.into_iter().map(|op| Op { bytes: op.bytes.div_ceil(8), ..op }).collect()
}

fn files(dir: &Path, extension: &str) -> Fallible<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        found.push(entry?.path());
    }
    found.retain(|p| p.extension().is_some_and(|e| e == extension));
    found.sort();
    Ok(found)
}

// Who does it.

/// A thread with slots and streams of its own, which carries out operations: inlined into the loop, as benches/peers.cpp has it, so
/// that a call of the loop's own is not measured too.
trait Worker {
    fn act(&mut self, op: Op) -> Fallible<()>;
}

struct Ours {
    gpu: Allocator<Cuda>,
    streams: Vec<Stream<Cuda>>,
    slots: Vec<Option<Allocation<Cuda>>>,
}

impl Worker for Ours {
    #[inline(always)]
    fn act(&mut self, op: Op) -> Fallible<()> {
        let slot = &mut self.slots[op.slot as usize];
        *slot = match op.bytes {
            0 => None,
            bytes => Some(self.gpu.alloc(bytes, &self.streams[usize::from(op.stream)])?),
        };
        Ok(())
    }
}

struct Theirs {
    streams: Vec<Arc<CudaStream>>,
    slots: Vec<Option<CudaSlice<u8>>>,
}

impl Worker for Theirs {
    #[inline(always)]
    #[allow(unsafe_code, reason = "an uninitialised slice of bytes that are not read")]
    fn act(&mut self, op: Op) -> Fallible<()> {
        let slot = &mut self.slots[op.slot as usize];
        *slot = match op.bytes {
            0 => None,
            // SAFETY: the bytes are never read.
            bytes => Some(unsafe { self.streams[usize::from(op.stream)].alloc::<u8>(bytes as usize) }?),
        };
        Ok(())
    }
}

fn slots_of(ops: &[Op]) -> usize {
    ops.iter().map(|op| op.slot as usize + 1).max().unwrap_or(0)
}

/// What is measured: makes workers, each with its streams, and empties its cache in between.
trait Contender: Sync {
    const NAME: &'static str;
    type Of: Worker;
    fn worker(&self, ops: &[Op], streams: u16) -> Fallible<Self::Of>;
}

struct Millpond(Allocator<Cuda>);

impl Contender for Millpond {
    const NAME: &'static str = "millpond";
    type Of = Ours;
    fn worker(&self, ops: &[Op], streams: u16) -> Fallible<Ours> {
        let mut slots = Vec::new();
        slots.resize_with(slots_of(ops), || None);
        let streams = (0..streams).map(|_| self.0.stream()).collect::<Result<_, _>>()?;
        Ok(Ours { gpu: self.0.clone(), streams, slots })
    }
}

/// An allocator for each worker.
struct Apart(Cuda);

impl Contender for Apart {
    const NAME: &'static str = "millpond, one each";
    type Of = Ours;
    fn worker(&self, ops: &[Op], streams: u16) -> Fallible<Ours> {
        Millpond(Allocator::new(self.0.clone(), Config::default())?).worker(ops, streams)
    }
}

/// No allocator, but its cost: about as many instructions and atomic operations as a call of ours, on nothing but its own.
struct Control;

/// On cache lines of its own.
#[repr(align(128))]
struct Alone {
    word: AtomicU64,
    draw: Draw,
}

impl Worker for Box<Alone> {
    #[inline(always)]
    fn act(&mut self, op: Op) -> Fallible<()> {
        for _ in 0..3 {
            self.word.fetch_add(op.bytes, Ordering::AcqRel);
        }
        let drawn = (0..16).fold(0, |sum: u64, _| sum.wrapping_add(self.draw.0.next()));
        black_box(drawn);
        Ok(())
    }
}

impl Contender for Control {
    const NAME: &'static str = "(control)";
    type Of = Box<Alone>;
    fn worker(&self, ops: &[Op], _: u16) -> Fallible<Box<Alone>> {
        Ok(Box::new(Alone { word: AtomicU64::new(0), draw: Draw(SplitMix64::new(ops.len() as u64)) }))
    }
}

struct Cudarc(Arc<CudaContext>);

impl Contender for Cudarc {
    const NAME: &'static str = "cudarc alloc";
    type Of = Theirs;
    fn worker(&self, ops: &[Op], streams: u16) -> Fallible<Theirs> {
        let mut slots = Vec::new();
        slots.resize_with(slots_of(ops), || None);
        let streams = (0..streams).map(|_| self.0.new_stream()).collect::<Result<_, _>>()?;
        Ok(Theirs { streams, slots })
    }
}

// Measuring.

fn pass(worker: &mut impl Worker, ops: &[Op]) -> Fallible<()> {
    ops.iter().try_for_each(|&op| worker.act(op))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn row<C: Contender>(cuda: &Cuda, contender: &C, path: &Path, quick: bool) -> Fallible<()> {
    let ops = load(path)?;
    let name = path.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let before = cuda.memory_info()?.free;
    let mut worker = contender.worker(&ops, STREAMS)?;
    pass(&mut worker, &ops)?;
    let taken = before.saturating_sub(cuda.memory_info()?.free) >> 20;
    cuda.synchronize_device()?;
    let mut times = Vec::new();
    for _ in 0..if quick { 3 } else { 7 } {
        let start = Instant::now();
        pass(&mut worker, &ops)?;
        times.push(start.elapsed().as_secs_f64() * 1e9 / ops.len() as f64);
        cuda.synchronize_device()?;
    }
    let mut each = Vec::with_capacity(ops.len());
    for &op in &ops {
        let start = Instant::now();
        worker.act(op)?;
        each.push(start.elapsed().as_nanos());
    }
    each.sort_unstable();
    let at = |permille: usize| each[(each.len() * permille / 1000).min(each.len() - 1)];
    println!("{name}\t{}\t{:.1}\t{}\t{}\t{}\t{taken}", C::NAME, median(times), at(500), at(990), at(1000));
    Ok(())
}

/// What one thread did: calls, and in how many seconds.
type Done = (usize, f64);

/// Does its work over and over until it is stopped. It looks for that between pieces, so that a slow allocator is
/// not waited for.
fn churn_until(stop: &AtomicBool, worker: &mut impl Worker, ops: &[Op]) -> Fallible<Done> {
    let (start, mut calls) = (Instant::now(), 0);
    for piece in ops.chunks(PIECE).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        pass(worker, piece)?;
        calls += piece.len();
    }
    Ok((calls, start.elapsed().as_secs_f64()))
}

/// Calls between two looks at the clock.
const PIECE: usize = 1_000;

/// Fills the caches: the whole work once, or as much of it as a second allows.
fn warm_up(worker: &mut impl Worker, ops: &[Op]) -> Fallible<()> {
    let start = Instant::now();
    let mut pieces = ops.chunks(PIECE);
    pieces.try_for_each(|piece| if start.elapsed() > WARM { Ok(()) } else { pass(worker, piece) })
}

const WARM: Duration = Duration::from_secs(1);

/// Threads with a stream each, all at once, for a time that is long beside the start of a thread. Each is judged by its
/// own clock, so that one that came late is not counted as slow.
fn threads<C: Contender>(contender: &C, dir: &Path, quick: bool) -> Fallible<()> {
    let parts: Vec<Vec<Op>> = files(dir, "part")?.iter().map(|p| load(p)).collect::<Fallible<_>>()?;
    let time = Duration::from_millis(if quick { 200 } else { 500 });
    for count in [1, 2, 4, 8, 16].into_iter().filter(|&count| count <= parts.len()) {
        let (gate, stop) = (Barrier::new(count + 1), AtomicBool::new(false));
        let work = |ops: &Vec<Op>| -> Fallible<Done> {
            let mut worker = contender.worker(ops, 1);
            // A thread that fails still comes to the gate, so that no other waits for it.
            let warm = worker.as_mut().map_err(|e| e.to_string()).map(|w| warm_up(w, ops));
            gate.wait();
            match (&mut worker, warm) {
                (Ok(worker), Ok(Ok(()))) => churn_until(&stop, worker, ops),
                (_, Ok(Err(e))) => Err(e),
                (_, warm) => Err(warm.err().unwrap_or_default().into()),
            }
        };
        let rates = std::thread::scope(|scope| -> Fallible<Vec<f64>> {
            let handles: Vec<_> = parts
                .iter()
                .take(count)
                .map(|ops| scope.spawn(|| work(ops).map_err(|e| e.to_string())))
                .collect();
            gate.wait();
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            let done =
                handles.into_iter().map(|h| h.join().map_err(|_| "a thread panicked")?.map_err(Into::into));
            done.map(|d: Fallible<Done>| d.map(|(calls, seconds)| calls as f64 / seconds / 1e6)).collect()
        })?;
        let (all, least) = (rates.iter().sum::<f64>(), rates.iter().copied().fold(f64::INFINITY, f64::min));
        let most = rates.iter().copied().fold(0.0, f64::max);
        let each = 1e3 * count as f64 / all;
        println!(
            "5-threads-{count:02}\t{}\t{each:.1}\t-\t-\t-\t{all:.2} Mcalls/s (a thread {least:.2} to {most:.2})",
            C::NAME
        );
    }
    Ok(())
}

/// What the parts of a call cost on this machine that no code of ours can make cheaper, undisturbed.
fn machine() {
    let (lock, counted, sum) = (parking_lot::Mutex::new(0_u64), Arc::new(0_u64), AtomicU64::new(0));
    part("(nothing)", || ());
    part("(a lock and its unlock)", || *lock.lock() += 1);
    part("(a reference up and down)", || drop(black_box(Arc::clone(&counted))));
    part("(an atomic addition)", || {
        sum.fetch_add(1, Ordering::AcqRel);
    });
}

/// Nanoseconds for one, as a row.
fn part(name: &str, mut each: impl FnMut()) {
    const TIMES: u32 = 2_000_000;
    let start = Instant::now();
    for turn in 0..TIMES {
        each();
        black_box(turn);
    }
    println!("0-machine\t{name}\t{:.1}\t-\t-\t-\t-", start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES));
}

fn run(cuda: &Cuda, dir: &Path, quick: bool) -> Fallible<()> {
    let work = files(dir, "ops")?;
    if work.is_empty() {
        return Err(format!("{}: no work, make it first", dir.display()).into());
    }
    machine();
    for path in &work {
        // A fresh allocator each: the cache of one pattern is not the next one's.
        row(cuda, &Millpond(Allocator::new(cuda.clone(), Config::default())?), path, quick)?;
        row(cuda, &Cudarc(CudaContext::new(0)?), path, quick)?;
    }
    threads(&Control, dir, quick)?;
    let shared = Allocator::new(cuda.clone(), Config::default())?;
    threads(&Millpond(shared.clone()), dir, quick)?;
    let counted = shared.report().total.counters;
    eprintln!(
        "threads: {} of {} allocations were misses",
        counted.allocations - counted.hits,
        counted.allocations
    );
    drop(shared);
    threads(&Apart(cuda.clone()), dir, quick)?;
    threads(&Cudarc(CudaContext::new(0)?), dir, quick)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["make", dir, ..] => make(Path::new(dir), &args[2..]),
        ["run", dir, rest @ ..] => {
            // Counting would be noticed with many threads.
            let cuda = match Cuda::new(0) {
                Ok(cuda) => cuda.count(false),
                Err(why) => {
                    eprintln!("{why}");
                    return ExitCode::from(2);
                }
            };
            run(&cuda, Path::new(dir), rest.contains(&"quick"))
        }
        _ => Err("usage: gpu_bench make DIR TRACE... | gpu_bench run DIR [quick]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
