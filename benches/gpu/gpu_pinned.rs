//! How long pinned host memory takes to grow and to go back, on a GPU's machine: our pool, the driver's own call, and pages that one thread touches.
//!
//! `gpu_pinned [quick|tiny]` prints what it knows of the machine, a tab-separated table, and each aim with its figure and PASS or FAIL. In every round
//! the contestants take turns, and a ratio is the median of the rounds' ratios. Every page is read once: it must be zero. Ends with 0, with 3 if
//! an aim was missed, with 2 without a GPU, with 1 if something failed. It takes at most 4 GiB of pinned memory at a time, `tiny` 128 MiB.
//!
//! | contestant | what is timed |
//! |---|---|
//! | `pool` | `Allocator::alloc_pinned` on a new allocator: one segment |
//! | `pool, 1 MiB each` | the same bytes in blocks of 1 MiB, all kept: the pool chooses its segments |
//! | `cuMemHostAlloc` | the driver's call, portable |
//! | `one thread` | anonymous memory with advice for huge pages, touched by this thread, and `cuMemHostRegister` |

#![cfg_attr(not(target_os = "linux"), allow(unused))]

mod common;

use common::{median, on_the_gpu};
use cudarc::driver::{CudaContext, result, sys};
use millpond::cuda::{Cuda, GpuStream};
use millpond::driver::{Driver, Fences, Memory, OwnedRange, StreamOptions};
use millpond::{Allocator, Config, PinnedAllocation, Trim};
use std::error::Error;
use std::ffi::c_void;
use std::process::ExitCode;
use std::time::Instant;

type Fallible<T> = Result<T, Box<dyn Error>>;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
/// What one copy moves at most.
const COPIED: usize = 256 * MIB;
/// Every page's size is a multiple of this.
const PAGE: usize = 4096;

/// Pinned memory of some contestant.
trait Pinned {
    fn at(&self) -> *mut u8;
    /// Gives it back.
    fn end(self: Box<Self>) -> Fallible<()>;
}

struct Pool {
    gpu: Allocator<Cuda>,
    blocks: Vec<PinnedAllocation<Cuda>>,
}

impl Pool {
    fn grow(cuda: &Cuda, bytes: usize, each: usize) -> Fallible<Box<dyn Pinned>> {
        let gpu = Allocator::new(cuda.clone(), Config::default())?;
        let count = bytes / each;
        let blocks = (0..count).map(|_| gpu.alloc_pinned(each as u64)).collect::<Result<_, _>>()?;
        Ok(Box::new(Pool { gpu, blocks }))
    }
}

impl Pinned for Pool {
    fn at(&self) -> *mut u8 {
        self.blocks[0].as_ptr().as_ptr()
    }
    fn end(self: Box<Self>) -> Fallible<()> {
        drop(self.blocks);
        self.gpu.trim(Trim::All)?;
        Ok(())
    }
}

struct Drivers(*mut c_void);

#[allow(unsafe_code, reason = "foreign calls")]
impl Drivers {
    fn grow(bytes: usize) -> Fallible<Box<dyn Pinned>> {
        // SAFETY: the context is current. 1 is portable.
        Ok(Box::new(Drivers(unsafe { result::malloc_host(bytes, 1) }?)))
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Pinned for Drivers {
    fn at(&self) -> *mut u8 {
        self.0.cast()
    }
    fn end(self: Box<Self>) -> Fallible<()> {
        // SAFETY: made by `grow`, freed once; the copies are done.
        Ok(unsafe { result::free_host(self.0) }?)
    }
}

/// Pages that one thread touches.
struct OneThread {
    mapped: *mut c_void,
    at: *mut u8,
    room: usize,
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "foreign calls")]
impl OneThread {
    fn grow(bytes: usize) -> Fallible<Box<dyn Pinned>> {
        const HUGE: usize = 2 * MIB;
        let room = bytes + HUGE;
        let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address of the system's choice.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), room, access, how, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let skip = mapped.addr().next_multiple_of(HUGE) - mapped.addr();
        let at = mapped.cast::<u8>().wrapping_add(skip);
        // SAFETY: inside what was mapped; advice changes no byte.
        unsafe { libc::madvise(at.cast(), bytes, libc::MADV_HUGEPAGE) };
        for page in (0..bytes).step_by(PAGE) {
            // SAFETY: inside what was mapped.
            unsafe { at.add(page).write_volatile(0) };
        }
        // SAFETY: live until `end` has unregistered it.
        unsafe { sys::cuMemHostRegister_v2(at.cast(), bytes, 1) }.result()?;
        Ok(Box::new(OneThread { mapped, at, room }))
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "foreign calls")]
impl Pinned for OneThread {
    fn at(&self) -> *mut u8 {
        self.at
    }
    fn end(self: Box<Self>) -> Fallible<()> {
        // SAFETY: registered by `grow`; the copies are done.
        unsafe { sys::cuMemHostUnregister(self.at.cast()) }.result()?;
        // SAFETY: mapped by `grow`, and nothing uses it any more.
        unsafe { libc::munmap(self.mapped, self.room) };
        Ok(())
    }
}

type Grow = fn(&Cuda, usize) -> Fallible<Box<dyn Pinned>>;

const CONTESTANTS: &[(&str, Grow)] = &[
    ("pool", |cuda, bytes| Pool::grow(cuda, bytes, bytes)),
    ("pool, 1 MiB each", |cuda, bytes| Pool::grow(cuda, bytes, MIB)),
    ("cuMemHostAlloc", |_, bytes| Drivers::grow(bytes)),
    #[cfg(target_os = "linux")]
    ("one thread", |_, bytes| OneThread::grow(bytes)),
];

/// What one round found of one contestant, in seconds and in bytes a second.
#[derive(Clone, Copy)]
struct Found {
    grown: f64,
    given_back: f64,
    up: f64,
    down: f64,
}

struct Bench {
    cuda: Cuda,
    stream: GpuStream,
    device: OwnedRange<Cuda>,
}

impl Bench {
    fn round(&self, grow: Grow, bytes: usize, of_one_block: usize) -> Fallible<Found> {
        let start = Instant::now();
        let pinned = grow(&self.cuda, bytes)?;
        let grown = start.elapsed().as_secs_f64();
        let copied = of_one_block.min(COPIED);
        all_zero(pinned.at(), of_one_block)?;
        let (up, down) = (self.rate(pinned.at(), copied, true)?, self.rate(pinned.at(), copied, false)?);
        let start = Instant::now();
        pinned.end()?;
        Ok(Found { grown, given_back: start.elapsed().as_secs_f64(), up, down })
    }

    /// Bytes a second of the best of three copies; the first one of a block is slower.
    #[allow(unsafe_code, reason = "foreign calls")]
    fn rate(&self, at: *mut u8, bytes: usize, up: bool) -> Fallible<f64> {
        let (host, device, on) = (at.cast::<c_void>(), self.device.addr().0, self.stream.handle());
        let mut best = 0_f64;
        for _ in 0..3 {
            let start = Instant::now();
            // SAFETY: so many bytes are on both sides until the wait below.
            unsafe {
                if up {
                    sys::cuMemcpyHtoDAsync_v2(device, host, bytes, on).result()?;
                } else {
                    sys::cuMemcpyDtoHAsync_v2(host, device, bytes, on).result()?;
                }
            }
            self.cuda.synchronize_stream(&self.stream)?;
            best = best.max(bytes as f64 / start.elapsed().as_secs_f64());
        }
        Ok(best)
    }
}

#[allow(unsafe_code, reason = "memory by its address")]
fn all_zero(at: *mut u8, bytes: usize) -> Fallible<()> {
    // SAFETY: so many bytes are pinned there, and nothing else uses them.
    let dirty = (0..bytes).step_by(PAGE).find(|&page| unsafe { at.add(page).read_volatile() } != 0);
    dirty.map_or(Ok(()), |page| Err(format!("byte {page} of new pinned memory is not zero").into()))
}

fn about_the_machine(cuda: &Cuda) {
    let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let first = |path: &str| line(path).lines().next().unwrap_or("unknown").to_owned();
    println!("{}", cuda.name().unwrap_or_default());
    println!("cores: {}", std::thread::available_parallelism().map_or(1, usize::from));
    println!("huge pages: {}", first("/sys/kernel/mm/transparent_hugepage/enabled"));
    println!("memory nodes: {}", first("/sys/devices/system/node/online"));
    println!("system: {}", first("/proc/version"));
    println!("limit of the container: {}", first("/sys/fs/cgroup/memory.max"));
    for name in ["MemTotal", "MemAvailable"] {
        println!("{}", line("/proc/meminfo").lines().find(|l| l.starts_with(name)).unwrap_or_default());
    }
    println!();
}

fn run(cuda: &Cuda, size: &str) -> Fallible<bool> {
    let (sizes, rounds): (&[usize], usize) = match size {
        "tiny" => (&[64 * MIB, 128 * MIB], 2),
        "quick" => (&[64 * MIB, GIB], 3),
        _ => (&[16 * MIB, 64 * MIB, 256 * MIB, GIB, 4 * GIB], 7),
    };
    let context = CudaContext::new(0)?;
    context.bind_to_thread()?;
    about_the_machine(cuda);
    let registered =
        || cuda.calls().iter().find(|(name, _)| *name == "cuMemHostRegister").map_or(0, |&(_, n)| n);
    let bench = Bench {
        stream: cuda.create_stream(StreamOptions::default())?,
        device: cuda.allocate(COPIED as u64)?,
        cuda: cuda.clone(),
    };
    let mut aims = Vec::new();
    println!(
        "bytes\tby\tms\tms a GiB\tmin\tmax\tbeside cuMemHostAlloc\tgiven back ms\tto the device GB/s\tfrom it GB/s"
    );
    for &bytes in sizes {
        let before = registered();
        let mut found = vec![Vec::new(); CONTESTANTS.len()];
        // A round to warm up, of which no figure stays.
        for round in 0..=rounds {
            for turn in 0..CONTESTANTS.len() {
                let which = (round + turn) % CONTESTANTS.len();
                let (name, grow) = CONTESTANTS[which];
                let of_one_block = if name.ends_with("each") { MIB } else { bytes };
                let one = bench
                    .round(grow, bytes, of_one_block)
                    .map_err(|e| format!("{name}, {bytes} bytes: {e}"))?;
                if round > 0 {
                    found[which].push(one);
                }
            }
        }
        let of = |name: &str| CONTESTANTS.iter().position(|(n, _)| *n == name).unwrap_or_default();
        let drivers = found[of("cuMemHostAlloc")].clone();
        let gib = bytes as f64 / GIB as f64;
        for ((name, _), all) in CONTESTANTS.iter().zip(&found) {
            let ms = |what: fn(&Found) -> f64| median(all.iter().map(what)) * 1e3;
            let grown = ms(|f| f.grown);
            let ratio = median(all.iter().zip(&drivers).map(|(ours, theirs)| theirs.grown / ours.grown));
            let (least, most) =
                all.iter().fold((f64::MAX, 0_f64), |(l, m), f| (l.min(f.grown), m.max(f.grown)));
            println!(
                "{} MiB\t{name}\t{grown:.2}\t{:.1}\t{:.2}\t{:.2}\t{ratio:.2} x\t{:.2}\t{:.1}\t{:.1}",
                bytes / MIB,
                grown / gib,
                least * 1e3,
                most * 1e3,
                ms(|f| f.given_back),
                median(all.iter().map(|f| f.up)) / 1e9,
                median(all.iter().map(|f| f.down)) / 1e9,
            );
            if *name == "pool" && bytes == GIB {
                aims.push((format!("a GiB grows in {grown:.1} ms, aim at most 50"), grown <= 50.0));
                aims.push((
                    format!("{ratio:.2} times as fast as cuMemHostAlloc, aim at least 5"),
                    ratio >= 5.0,
                ));
            }
        }
        println!("{} MiB\tregistrations by the pool\t{}", bytes / MIB, registered() - before);
    }
    println!();
    for (what, met) in &aims {
        println!("{} {what}", if *met { "PASS" } else { "FAIL" });
    }
    drop((bench, context));
    Ok(aims.iter().all(|(_, met)| *met))
}

fn main() -> ExitCode {
    let size = std::env::args().nth(1).unwrap_or_default();
    if !["", "quick", "tiny"].contains(&size.as_str()) {
        eprintln!("gpu_pinned [quick|tiny]: what is {size:?}?");
        return ExitCode::FAILURE;
    }
    on_the_gpu(|cuda| run(cuda, &size))
}
