//! A copy to the device, a copy to the host and kernels at once, each on its stream, ours beside plain CUDA (row T9).
//!
//! The question is what our calls add where all three engines are busy. So both sides queue the same work in the same
//! order, between the same addresses: where memory lies makes differences larger than calls do. All of it is queued
//! before any of it begins, and nothing is waited for between two calls. Plain CUDA on memory of its own stands beside.
//! A second table has each leg's bytes a second, alone and beside the others, from the common start until that leg's end.

use super::bench::{
    Aims, Bench, Fallible, KIB, MIB, PlainDevice, PlainHost, bytes_text, median, plain_d2h, plain_h2d, ratio,
};
use super::overlap::{Array, Clock, how_many, multiply};
use millpond::cuda::{Cuda, GpuStream};
use millpond::{PinnedArray, Stream};

/// The program.
struct ThreeWays {
    streams: [Stream<Cuda>; 3],
    /// What is copied to the device and back, and the memory for it on the host. `None` while a copy owns it.
    up: Array,
    down: Array,
    source: Option<PinnedArray<f32, Cuda>>,
    sink: Option<PinnedArray<f32, Cuda>>,
    /// Memory of plain CUDA's own.
    own: (PlainDevice, PlainHost, PlainHost),
    z: Array,
    target: Array,
    /// Kernels that take as long as a copy.
    times: u32,
}

/// What is measured of it.
#[derive(Clone, Copy)]
enum Leg {
    Up,
    Down,
    Kernels,
    /// All three at once by ours; by plain CUDA's copies between the same addresses; by plain CUDA's, its own memory.
    Ours,
    Plain,
    PlainOwn,
}

const LEGS: [Leg; 6] = [Leg::Up, Leg::Down, Leg::Kernels, Leg::Ours, Leg::Plain, Leg::PlainOwn];

impl ThreeWays {
    fn new(bench: &Bench, n: usize) -> Fallible<ThreeWays> {
        let streams = [bench.gpu.stream()?, bench.gpu.stream()?, bench.gpu.stream()?];
        let bytes = n * size_of::<f32>();
        Ok(ThreeWays {
            up: bench.gpu.zeros(n, &streams[0])?,
            down: bench.gpu.zeros(n, &streams[1])?,
            source: Some(bench.gpu.pinned_zeros(n)?),
            sink: Some(bench.gpu.pinned_zeros(n)?),
            own: (PlainDevice::new(bytes)?, PlainHost::new(bytes)?, PlainHost::new(bytes)?),
            z: bench.gpu.zeros(n, &streams[2])?,
            target: bench.gpu.zeros(n, &streams[2])?,
            times: 1,
            streams,
        })
    }

    /// Queues one of them and waits for it: the device's seconds until each stream's end. What the calls cost the host is in
    /// the table of copies.
    fn time(&mut self, bench: &Bench, clock: &Clock, leg: Leg) -> Fallible<Vec<f64>> {
        let on: Vec<GpuStream> = self.streams.iter().map(|s| s.native().clone()).collect();
        let on: Vec<&GpuStream> = on.iter().collect();
        let lost = "an array got lost";
        let mut source = self.source.take().ok_or(lost)?;
        let mut sink = self.sink.take().ok_or(lost)?;
        let [one, two, three] = &self.streams;
        let (up, down, z, target, times) = (&mut self.up, &self.down, &self.z, &mut self.target, self.times);
        let bytes = up.size_bytes() as usize;
        let (mut sent, mut back) = (None, None);
        let seconds = match leg {
            Leg::Up | Leg::Down | Leg::Kernels | Leg::Ours => {
                let (mut from, mut to) = (Some(source), Some(sink));
                let seconds = clock.held(bench, &on, &mut || {
                    if matches!(leg, Leg::Up | Leg::Ours) {
                        sent = Some(up.copy_from(from.take().ok_or(lost)?, one)?);
                    }
                    if matches!(leg, Leg::Down | Leg::Ours) {
                        back = Some(down.copy_to(to.take().ok_or(lost)?, two)?);
                    }
                    let kernels = matches!(leg, Leg::Kernels | Leg::Ours);
                    if kernels { multiply(times, z, target, three) } else { Ok(()) }
                })?;
                source = match sent {
                    Some(sent) => sent.wait()?,
                    None => from.take().ok_or(lost)?,
                };
                sink = match back {
                    Some(back) => back.wait()?,
                    None => to.take().ok_or(lost)?,
                };
                seconds
            }
            Leg::Plain | Leg::PlainOwn => {
                let (device, from, to) = if matches!(leg, Leg::Plain) {
                    (up.address().0, source.as_ptr().cast_mut().cast(), sink.as_mut_ptr().cast())
                } else {
                    (self.own.0.0, self.own.1.at, self.own.2.at)
                };
                // In the same order, and the kernels by the same verb: a launch of ours on one stream records nothing.
                clock.held(bench, &on, &mut || {
                    plain_h2d(device, from, bytes, one.native())?;
                    plain_d2h(to, down.address().0, bytes, two.native())?;
                    multiply(times, z, target, three)
                })?
            }
        };
        (self.source, self.sink) = (Some(source), Some(sink));
        Ok(seconds)
    }
}

/// T9. Every round measures all legs, beginning with another one each time; what is judged is the median of the rounds'
/// ratios.
pub(crate) fn at_once(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    let clock = Clock::new()?;
    let mut program = ThreeWays::new(bench, bench.pick(64 * MIB, 64 * MIB, 64 * KIB))?;
    // Warm: each side's first use of its memory, its events, its kernel.
    for leg in LEGS {
        program.time(bench, &clock, leg)?;
    }
    let latest = |ends: &[f64]| ends.iter().copied().fold(0.0, f64::max);
    let leg = latest(&program.time(bench, &clock, Leg::Up)?);
    program.times = 10;
    program.times = how_many(leg, latest(&program.time(bench, &clock, Leg::Kernels)?) / 10.0);
    // By what was run, by stream.
    let mut found: [[Vec<f64>; 3]; LEGS.len()] = Default::default();
    let mut whole: [Vec<f64>; LEGS.len()] = Default::default();
    for round in bench.rounds(31, 15) {
        for turn in 0..LEGS.len() {
            let which = (round as usize + turn) % LEGS.len();
            let ends = program.time(bench, &clock, LEGS[which])?;
            whole[which].push(latest(&ends));
            found[which].iter_mut().zip(ends).for_each(|(all, end)| all.push(end));
        }
    }
    let rounds = whole[0].len();
    let (same, own) = (ratio(&whole[4], &whole[3]), ratio(&whole[5], &whole[3]));
    let [up, down, kernels, ours, plain, plain_own] = whole.map(|f| median(&f));
    let longest = up.max(down).max(kernels);
    let hidden = (up + down + kernels - ours) / (up + down + kernels - longest);
    let bytes = program.up.size_bytes() as usize;
    println!(
        "T9\tlegs\tto the device ms\tto the host ms\tkernels ms\tours, together ms\tplain CUDA's, same memory ms\tplain CUDA's, its own ms\tplain / ours\town / ours\thidden\trounds"
    );
    println!(
        "T9\t{} each way and {} kernels\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{same:.4}\t{own:.4}\t{hidden:.3}\t{rounds}",
        bytes_text(bytes),
        program.times,
        up * 1e3,
        down * 1e3,
        kernels * 1e3,
        ours * 1e3,
        plain * 1e3,
        plain_own * 1e3,
    );
    println!(
        "\nT9 by leg\tway\tbytes\talone GB/s\tours, together GB/s\tplain CUDA's, same memory GB/s\tplain CUDA's, its own GB/s"
    );
    // A kernel reads two arrays and writes one.
    let moved = [bytes, bytes, 3 * bytes * program.times as usize];
    for (leg, name) in ["to the device", "to the host", "kernels"].into_iter().enumerate() {
        let rate = |which: usize| moved[leg] as f64 / median(&found[which][leg]) / 1e9;
        println!(
            "T9 by leg\t{name}\t{}\t{:.2}\t{:.2}\t{:.2}\t{:.2}",
            bytes_text(moved[leg]),
            rate(leg),
            rate(3),
            rate(4),
            rate(5)
        );
    }
    aims.at_least("T9, three ways at once: plain CUDA's time over ours, paired", same, 0.98);
    Ok(())
}
