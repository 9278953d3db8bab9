//! Copies of pageable memory, staged by us with 1, 4 and 8 threads, beside plain CUDA's own copies of it and of pinned memory: every size, both ways
//! (rows P1, P4 and P5 of tests/architecture/requirements.rs). By the host's clock: from the call until all is there, and the call alone.

use super::bench::{
    Aims, Bench, Fallible, GIB, KIB, MIB, PlainDevice, PlainHost, bytes_text, median, micros, plain_d2h,
    plain_h2d, plain_wait, ratio, warm,
};
use cudarc::driver::sys;
use millpond::allocator::StagingPieces;
use millpond::cuda::{Cuda, GpuStream};
use millpond::transfer::Uploads;
use millpond::{Allocator, Config, DeviceArray, Stream};
use std::time::{Duration, Instant};

const THREADS: [usize; 3] = [1, 4, 8];
/// Plain CUDA's two, and ours by the number of threads.
const CONTESTANTS: usize = 2 + THREADS.len();

/// The driver's blocking copy, which a program without an allocator of pinned memory makes.
#[allow(unsafe_code, reason = "foreign calls")]
fn blocking(up: bool, device: sys::CUdeviceptr, host: &mut [u8]) -> Fallible<()> {
    let (at, bytes) = (host.as_mut_ptr(), host.len());
    // SAFETY: every caller has so many bytes on both sides; the call returns when the host's are its own again.
    let code = unsafe {
        if up {
            sys::cuMemcpyHtoD_v2(device, at.cast(), bytes)
        } else {
            sys::cuMemcpyDtoH_v2(at.cast(), device, bytes)
        }
    };
    Ok(code.result()?)
}

/// Waits for the driver's own blocking copies.
#[allow(unsafe_code, reason = "foreign calls")]
fn legacy_wait() -> Fallible<()> {
    // SAFETY: the default stream of the current context.
    Ok(unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) }.result()?)
}

/// One of ours: an allocator, a stream, and an array of the size that is measured.
struct Ours {
    on: Stream<Cuda>,
    gpu: Allocator<Cuda>,
}

impl Ours {
    fn new(bench: &Bench, config: Config) -> Fallible<Ours> {
        let gpu = Allocator::new(bench.cuda.clone(), config)?;
        Ok(Ours { on: gpu.stream()?, gpu })
    }
    fn copy(&self, up: bool, array: &mut DeviceArray<u8, Cuda>, host: &mut [u8]) -> Fallible<()> {
        let copied =
            if up { array.copy_from_slice(host, &self.on) } else { array.copy_to_slice(host, &self.on) };
        Ok(copied?)
    }
}

/// Times `calls` calls, in microseconds a call: until the last has returned, and until all is there, waited for after each.
fn timed(
    calls: usize,
    copy: &mut dyn FnMut() -> Fallible<()>,
    wait: &mut dyn FnMut() -> Fallible<()>,
) -> Fallible<(f64, f64)> {
    let (mut called, mut there) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..calls {
        let begun = Instant::now();
        copy()?;
        called += begun.elapsed();
        wait()?;
        there += begun.elapsed();
    }
    Ok((micros(called) / calls as f64, micros(there) / calls as f64))
}

/// Copies of pinned memory by pieces of a buffer that may be shorter.
fn pinned(
    up: bool,
    device: sys::CUdeviceptr,
    host: &PlainHost,
    bytes: usize,
    on: &GpuStream,
) -> Fallible<()> {
    let mut done = 0;
    while done < bytes {
        let piece = host.bytes.min(bytes - done);
        let at = device + done as u64;
        if up {
            plain_h2d(at, host.at, piece, on)?;
        } else {
            plain_d2h(host.at, at, piece, on)?;
        }
        done += piece;
    }
    plain_wait(on)
}

/// Every size, both ways.
pub(crate) fn all_sizes(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    println!(
        "staged\tway\tbytes\tpinned us\tplain pageable us\tours, 1 thread us\t4 threads us\t8 threads us\tpinned GB/s\tplain GB/s\t8 threads GB/s\t\
         4 threads: share of pinned rate\t8 threads: share\t8 threads: time / plain's\tcall alone: plain us\t8 threads us\ttime / plain's"
    );
    let most = bench.pick(4 * GIB, GIB, 4 * MIB);
    let budget = Duration::from_millis(bench.pick(1500, 400, 1));
    let mut host = vec![1_u8; most];
    let (page_locked, device) = (PlainHost::new(most.min(GIB))?, PlainDevice::new(most)?);
    let ours = THREADS.map(|threads| Ours::new(bench, Config::default().staging_threads(threads)));
    let ours: Vec<Ours> = ours.into_iter().collect::<Fallible<_>>()?;
    let on = bench.gpu.stream()?;
    let sizes = [
        4,
        64,
        KIB,
        4 * KIB,
        16 * KIB,
        64 * KIB,
        128 * KIB,
        256 * KIB,
        512 * KIB,
        MIB,
        2 * MIB,
        4 * MIB,
        16 * MIB,
    ];
    let large = [64 * MIB, 256 * MIB, GIB, 4 * GIB];
    for &bytes in sizes.iter().chain(&large).filter(|&&bytes| bytes <= most) {
        let calls = (256 * KIB / bytes).clamp(1, 16);
        let arrays: Fallible<Vec<_>> = ours.iter().map(|o| Ok(o.gpu.zeros::<u8>(bytes, &o.on)?)).collect();
        let mut arrays = arrays?;
        for up in [true, false] {
            let mut called: [Vec<f64>; CONTESTANTS] = Default::default();
            let mut there: [Vec<f64>; CONTESTANTS] = Default::default();
            let begun = Instant::now();
            for round in 0..bench.pick(2000, 500, 2) {
                if round >= 6 && begun.elapsed() > budget {
                    break;
                }
                let host = &mut host[..bytes];
                let mut put = |which: usize, (call, all): (f64, f64)| {
                    called[which].push(call);
                    there[which].push(all);
                };
                let native = on.native();
                put(
                    0,
                    timed(calls, &mut || pinned(up, device.0, &page_locked, bytes, native), &mut || Ok(()))?,
                );
                put(1, timed(calls, &mut || blocking(up, device.0, host), &mut legacy_wait)?);
                for (which, (ours, array)) in ours.iter().zip(&mut arrays).enumerate() {
                    let wait = &mut || Ok(ours.on.synchronize()?);
                    put(2 + which, timed(calls, &mut || ours.copy(up, array, host), wait)?);
                }
            }
            let (called, there) = (warm(&called), warm(&there));
            let rate = |of: &[f64]| bytes as f64 / median(of) / 1e3;
            let (of_four, of_eight) = (ratio(there[0], there[3]), ratio(there[0], there[4]));
            let (slower, call_slower) = (ratio(there[4], there[1]), ratio(called[4], called[1]));
            let way = if up { "to the device" } else { "to the host" };
            print!("staged\t{way}\t{}", bytes_text(bytes));
            for of in there {
                print!("\t{:.2}", median(of));
            }
            for of in [0, 1, 4] {
                print!("\t{:.2}", rate(there[of]));
            }
            print!("\t{of_four:.3}\t{of_eight:.3}\t{slower:.3}");
            println!("\t{:.2}\t{:.2}\t{call_slower:.3}", median(called[1]), median(called[4]));
            let text = bytes_text(bytes);
            aims.at_most(&format!("staged {text} {way}, time / plain's"), slower.min(call_slower), 1.03);
            if bytes >= 64 * MIB {
                aims.at_least(
                    &format!("staged {text} {way}, 8 threads, share of the pinned rate"),
                    of_eight,
                    0.93,
                );
                aims.at_least(
                    &format!("staged {text} {way}, 4 threads, share of the pinned rate"),
                    of_four,
                    0.75,
                );
            }
        }
    }
    Ok(())
}

/// A thousand copies of 4 KiB each to the device: one by one by plain CUDA from pageable and from pinned memory, and ours.
pub(crate) fn many_small(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    const EACH: usize = 4 * KIB;
    let count = bench.pick(1000, 1000, 10);
    let mut host = vec![1_u8; count * EACH];
    let (page_locked, device) = (PlainHost::new(count * EACH)?, PlainDevice::new(count * EACH)?);
    let (ours, alone) =
        (Ours::new(bench, Config::default())?, Ours::new(bench, Config::default().staging_threads(0))?);
    let on = bench.gpu.stream()?;
    let mut arrays = Vec::new();
    let mut of_alone = Vec::new();
    for _ in 0..count {
        arrays.push(ours.gpu.zeros::<u8>(EACH, &ours.on)?);
        of_alone.push(alone.gpu.zeros::<u8>(EACH, &alone.on)?);
    }
    millpond::kernel::load_builtins(&bench.cuda)?;
    let mut found: [Vec<f64>; 5] = Default::default();
    for _ in bench.rounds(40, 20) {
        let begun = Instant::now();
        for (i, piece) in host.chunks_mut(EACH).enumerate() {
            blocking(true, device.0 + (i * EACH) as u64, piece)?;
        }
        legacy_wait()?;
        found[0].push(micros(begun.elapsed()));
        let begun = Instant::now();
        for i in 0..count {
            plain_h2d(device.0 + (i * EACH) as u64, page_locked.piece(i, EACH), EACH, on.native())?;
        }
        plain_wait(on.native())?;
        found[1].push(micros(begun.elapsed()));
        let begun = Instant::now();
        for (array, piece) in arrays.iter_mut().zip(host.chunks(EACH)) {
            array.copy_from_slice(piece, &ours.on)?;
        }
        ours.on.synchronize()?;
        found[2].push(micros(begun.elapsed()));
        for (which, ours, arrays) in [(3, &ours, &mut arrays), (4, &alone, &mut of_alone)] {
            let begun = Instant::now();
            let mut uploads = Uploads::new();
            for (array, piece) in arrays.iter_mut().zip(host.chunks(EACH)) {
                uploads.add(array, piece)?;
            }
            uploads.queue(&ours.on)?;
            ours.on.synchronize()?;
            found[which].push(micros(begun.elapsed()));
        }
    }
    let found = warm(&found);
    println!(
        "many small\tcopies\tplain, pageable us\tplain, pinned us\tours, one by one us\tours, packed us\tpacked by the calling thread us"
    );
    print!("many small\t{count} of 4 KiB");
    for of in found {
        print!("\t{:.0}", median(of));
    }
    println!();
    aims.at_most(&format!("{count} copies of 4 KiB, packed, us"), median(found[3]), 400.0);
    Ok(())
}

/// Ours with other sizes of pieces: the figures behind the defaults.
pub(crate) fn sizes_of_pieces(bench: &Bench, _: &mut Aims) -> Fallible<()> {
    println!(
        "pieces\tway\tbytes\tthreads\tthreads from\tfirst\tmost\tmost alone\tpart\tpast caches from\tus, until it is there\tGB/s"
    );
    let with = |change: &dyn Fn(&mut StagingPieces)| {
        let mut pieces = StagingPieces::default();
        change(&mut pieces);
        pieces
    };
    let short: &[usize] = &[128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB];
    let long: &[usize] = &[4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB];
    let mut trials: Vec<(&[usize], usize, StagingPieces)> = Vec::new();
    for first in [64 * KIB, 128 * KIB, 256 * KIB] {
        for alone in [128 * KIB, 256 * KIB, 512 * KIB] {
            trials.push((short, 0, with(&|p| (p.first, p.most_alone) = (first, alone))));
        }
        for past in [0, usize::MAX] {
            trials.push((short, 8, with(&|p| (p.first, p.threads_from, p.stream_from) = (first, 0, past))));
        }
    }
    for first in [128 * KIB, 256 * KIB, 512 * KIB, MIB] {
        for most in [MIB, 2 * MIB, 4 * MIB] {
            for part in [3, 6, 12] {
                trials.push((long, 8, with(&|p| (p.first, p.most, p.part) = (first, most, part))));
            }
        }
    }
    trials.push((long, 8, with(&|p| p.stream_from = usize::MAX)));
    let mut host = vec![1_u8; 256 * MIB];
    for (sizes, threads, pieces) in trials {
        let ours = Ours::new(bench, Config::default().staging_threads(threads).staging_pieces(pieces))?;
        for &bytes in sizes.iter().filter(|&&bytes| bench.size != super::Size::Tiny || bytes <= MIB) {
            let mut array = ours.gpu.zeros::<u8>(bytes, &ours.on)?;
            for up in [true, false] {
                let mut found = Vec::new();
                let begun = Instant::now();
                for round in 0..bench.pick(60, 30, 2) {
                    if round >= 6 && begun.elapsed() > Duration::from_millis(60) {
                        break;
                    }
                    let host = &mut host[..bytes];
                    let wait = &mut || Ok(ours.on.synchronize()?);
                    found.push(timed(1, &mut || ours.copy(up, &mut array, host), wait)?.1);
                }
                let StagingPieces { threads_from, first, most, most_alone, part, stream_from, .. } = pieces;
                let us = median(&found[2..]);
                let way = if up { "to the device" } else { "to the host" };
                println!(
                    "pieces\t{way}\t{}\t{threads}\t{threads_from}\t{first}\t{most}\t{most_alone}\t{part}\t{stream_from}\t{us:.1}\t{:.2}",
                    bytes_text(bytes),
                    bytes as f64 / us / 1e3
                );
            }
        }
    }
    Ok(())
}
