//! What a launch costs the host: ours with declared operands, cudarc's with and without its tracking, and the bare call.
//!
//! One small kernel, one block, in bursts that a stream's queue has room for; between bursts everything is waited for,
//! outside the time. On two streams by turns, once with an array that both write, once with one that both only read.
//!
//! What is compared are bursts of one round, and differences are of a few hundredths: so there are hundreds of rounds, each
//! contestant is first, last and behind each other one equally often, and a burst of each is thrown away before. The
//! middle half of the rounds' ratios and the share of rounds that ours wins show how certain the median is.

use super::bench::{Aims, Bench, Fallible, median, ratio};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use millpond::cuda::Cuda;
use millpond::kernel::{Grid, Kernel, builtins};
use millpond::{DeviceArray, Stream};
use std::sync::Arc;
use std::time::Instant;

/// Launches of a burst: fewer than a queue's 1024 places, with waits and events between them.
const BURST: usize = 128;
const N: usize = 256;
const NAME: &str = "millpond_saxpy_f32";

fn saxpy() -> Fallible<&'static Kernel> {
    Ok(builtins().find(|k| k.name().to_bytes() == NAME.as_bytes()).ok_or("no such built-in kernel")?)
}

/// Ours: two streams, an array that is read and one to write for each.
struct Ours {
    streams: [Stream<Cuda>; 2],
    x: DeviceArray<f32, Cuda>,
    y: [DeviceArray<f32, Cuda>; 2],
    kernel: &'static Kernel,
}

impl Ours {
    fn new(bench: &Bench) -> Fallible<Ours> {
        let streams = [bench.gpu.stream()?, bench.gpu.stream()?];
        let x = bench.gpu.zeros(N, &streams[0])?;
        let y = [bench.gpu.zeros(N, &streams[0])?, bench.gpu.zeros(N, &streams[1])?];
        Ok(Ours { streams, x, y, kernel: saxpy()? })
    }
    #[inline]
    #[allow(unsafe_code, reason = "a built-in kernel")]
    fn launch(&mut self, on: usize, y: usize) -> Fallible<()> {
        let operands = (self.y[y].write(), self.x.read(), N, 1.0_f32);
        // SAFETY: the kernel takes these, and touches as many elements as both have.
        Ok(unsafe { self.streams[on].launch(self.kernel, Grid::new(1, 256), operands) }?)
    }
}

/// cudarc's, tracked or not.
struct Theirs {
    streams: [Arc<CudaStream>; 2],
    x: CudaSlice<f32>,
    y: [CudaSlice<f32>; 2],
    function: CudaFunction,
}

impl Theirs {
    #[allow(unsafe_code, reason = "cudarc's switch of its tracking")]
    fn new(tracked: bool) -> Fallible<Theirs> {
        let context = CudaContext::new(0)?;
        if !tracked {
            // SAFETY: every launch that shares arrays is on one stream, and streams are waited for before they change.
            unsafe { context.disable_event_tracking() };
        }
        let streams = [context.new_stream()?, context.new_stream()?];
        let module = context.load_module(Ptx::from_src(saxpy()?.text().to_str()?))?;
        let function = module.load_function(NAME)?;
        let x = streams[0].alloc_zeros(N)?;
        let y = [streams[0].alloc_zeros(N)?, streams[1].alloc_zeros(N)?];
        context.synchronize()?;
        Ok(Theirs { streams, x, y, function })
    }
    #[inline]
    #[allow(unsafe_code, reason = "a built-in kernel")]
    fn launch(&mut self, on: usize, y: usize) -> Fallible<()> {
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        let (n, a) = (N as u64, 1.0_f32);
        let mut builder = self.streams[on].launch_builder(&self.function);
        builder.arg(&mut self.y[y]).arg(&self.x).arg(&n).arg(&a);
        // SAFETY: as for ours.
        unsafe { builder.launch(config) }?;
        Ok(())
    }
}

/// Nanoseconds a launch, in one burst.
fn burst(bench: &Bench, launch: &mut dyn FnMut(usize) -> Fallible<()>) -> Fallible<f64> {
    let begun = Instant::now();
    (0..BURST).try_for_each(&mut *launch)?;
    let time = begun.elapsed();
    bench.context.synchronize()?;
    // Ours learns too that all is done, as it would at a program's own wait.
    bench.gpu.synchronize()?;
    Ok(time.as_secs_f64() * 1e9 / BURST as f64)
}

/// A program by its launches: on which stream each is, and which array it writes.
type Program = (&'static str, [fn(usize) -> usize; 2]);

/// Every order of ours, cudarc's untracked and its tracked.
const ALL_ORDERS: [&[usize]; 6] = [&[0, 1, 2], &[2, 1, 0], &[1, 2, 0], &[0, 2, 1], &[2, 0, 1], &[1, 0, 2]];

/// Launches of all contestants in turns.
pub(crate) fn cost(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    println!(
        "launch\tprogram\tours ns\tcudarc untracked ns\tcudarc tracked ns\tours - untracked ns\tours / tracked\tmiddle half\trounds won"
    );
    let (mut ours, mut plain, mut tracked) = (Ours::new(bench)?, Theirs::new(false)?, Theirs::new(true)?);
    let programs: [Program; 3] = [
        ("one stream", [|_| 0, |_| 0]),
        ("two streams by turns, one array written", [|i| i % 2, |_| 0]),
        ("two streams by turns, one array read", [|i| i % 2, |i| i % 2]),
    ];
    for (which, (name, [on, y])) in programs.into_iter().enumerate() {
        let mut found: [Vec<f64>; 3] = Default::default();
        let mut turn = |who: usize| match who {
            0 => burst(bench, &mut |i| ours.launch(on(i), y(i))),
            1 => burst(bench, &mut |i| plain.launch(on(i), y(i))),
            _ => burst(bench, &mut |i| tracked.launch(on(i), y(i))),
        };
        // Untracked on two streams would be wrong, and is no contestant.
        let orders: &[&[usize]] = if which == 0 { &ALL_ORDERS } else { &[&[0, 2], &[2, 0]] };
        // Warm: events are pooled, what is loaded when first used is there, the clock of the processor is up.
        orders[0].iter().try_for_each(|&who| turn(who).map(drop))?;
        for round in bench.rounds(1200, 600) {
            for &who in orders[round as usize % orders.len()] {
                found[who].push(turn(who)?);
            }
        }
        let above = median(&found[0].iter().zip(&found[1]).map(|(a, b)| a - b).collect::<Vec<_>>());
        let share = ratio(&found[0], &found[2]);
        let mut shares: Vec<f64> =
            found[0].iter().zip(&found[2]).map(|(ours, theirs)| ours / theirs).collect();
        shares.sort_by(f64::total_cmp);
        let won = shares.iter().filter(|&&share| share < 1.0).count();
        println!(
            "launch\t{name}\t{:.0}\t{:.0}\t{:.0}\t{above:.0}\t{share:.3}\t{:.3} to {:.3}\t{won} of {}",
            median(&found[0]),
            median(&found[1]),
            median(&found[2]),
            shares[shares.len() / 4],
            shares[shares.len() * 3 / 4],
            shares.len()
        );
        if which == 0 {
            aims.at_most("a launch on one stream, ours over cudarc's untracked, ns", above, 300.0);
        } else {
            aims.at_most(&format!("a launch on {name}, ours / cudarc's tracked"), share, 1.0);
        }
    }
    Ok(())
}
