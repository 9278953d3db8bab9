//! Which programs run copies beside kernels, and how much of the shorter leg is hidden (rows S2, S3, S7, S13, P3).
//!
//! A program has legs: copies and kernels. Each leg is measured alone and then all together, between a stamp that comes
//! before everything and one behind each leg. What is saved, over the shorter leg, is the overlap. A program of the
//! texts is measured as it stands there, and once more with its kernel repeated until the legs are about as long: beside
//! a copy of 7 ms one kernel of 0.2 ms is lost in the noise. The judgement is on the second.

use super::bench::{
    Aims, Bench, Fallible, Held, KIB, MIB, Stamp, median, micros, plain_d2h, plain_h2d, plain_wait,
};
use millpond::cuda::{Cuda, GpuStream};
use millpond::driver::StreamOptions;
use millpond::{DeviceArray, PinnedArray, Stream, Upload, kernel};
use std::time::{Duration, Instant};

pub(super) type Array = DeviceArray<f32, Cuda>;

/// Hidden: at least so much of the shorter leg. Not hidden: at most so much.
const HIDDEN: f64 = 0.9;
const APART: f64 = 0.2;

/// The device's time from the first of all work until the last of it.
pub(super) struct Clock {
    start: Stamp,
    ends: Vec<Stamp>,
}

impl Clock {
    pub(super) fn new() -> Fallible<Clock> {
        Ok(Clock { start: Stamp::new()?, ends: (0..3).map(|_| Stamp::new()).collect::<Fallible<_>>()? })
    }
    /// Seconds that the work takes which is queued on these streams. It begins with the first call.
    fn time(&self, on: &[&GpuStream], work: &mut dyn FnMut() -> Fallible<()>) -> Fallible<f64> {
        Ok(self.run(on, None, work)?.into_iter().fold(0.0, f64::max))
    }
    /// The same by stream, of work that begins when all of it is queued: no call in it may wait for the device.
    pub(super) fn held(
        &self,
        bench: &Bench,
        on: &[&GpuStream],
        work: &mut dyn FnMut() -> Fallible<()>,
    ) -> Fallible<Vec<f64>> {
        self.run(on, Some(bench), work)
    }
    fn run(
        &self,
        on: &[&GpuStream],
        holding: Option<&Bench>,
        work: &mut dyn FnMut() -> Fallible<()>,
    ) -> Fallible<Vec<f64>> {
        for stream in on {
            plain_wait(stream)?;
        }
        let held = holding.map(|bench| bench.hold(on[0])).transpose()?;
        self.start.put(on[0])?;
        for stream in &on[1..] {
            self.start.before(stream)?;
        }
        work()?;
        for (stream, end) in on.iter().zip(&self.ends) {
            end.put(stream)?;
        }
        held.map_or(Ok(()), Held::go)?;
        for stream in on {
            plain_wait(stream)?;
        }
        self.ends[..on.len()].iter().map(|end| end.since(&self.start)).collect()
    }
}

/// Where a copy's source is.
enum Source {
    Pinned(Option<PinnedArray<f32, Cuda>>),
    Pageable(Vec<f32>),
}

/// An array and what is copied into it, on the array's own stream.
struct Feed {
    array: Array,
    source: Source,
    on: Stream<Cuda>,
    sent: Option<Upload<PinnedArray<f32, Cuda>, Cuda>>,
}

impl Feed {
    fn new(bench: &Bench, n: usize, pinned: bool, on: &Stream<Cuda>) -> Fallible<Feed> {
        let source = if pinned {
            Source::Pinned(Some(bench.gpu.pinned_zeros(n)?))
        } else {
            Source::Pageable(vec![1.0; n])
        };
        Ok(Feed { array: bench.gpu.zeros(n, on)?, source, on: on.clone(), sent: None })
    }
    /// Queues the copy. Pageable memory by plain CUDA: ours has no asynchronous copy of it.
    fn send(&mut self) -> Fallible<()> {
        match &mut self.source {
            Source::Pinned(host) => {
                let host = match (host.take(), self.sent.take()) {
                    (Some(host), _) => host,
                    (None, Some(sent)) => sent.wait()?,
                    (None, None) => return Err("a source got lost".into()),
                };
                self.sent = Some(self.array.copy_from(host, &self.on)?);
                Ok(())
            }
            Source::Pageable(host) => plain_h2d(
                self.array.address().0,
                host.as_ptr().cast(),
                size_of_val(&host[..]),
                self.on.native(),
            ),
        }
    }
}

/// A leg that multiplies: `target += z`, so many times.
pub(super) fn multiply(times: u32, z: &Array, target: &mut Array, on: &Stream<Cuda>) -> Fallible<()> {
    (0..times).try_for_each(|_| Ok(kernel::saxpy(1.0, z, &mut *target, on)?))
}

/// What was found of a program of two legs.
struct Found {
    copies: f64,
    kernels: f64,
    together: f64,
    /// Of the shorter leg.
    hidden: f64,
    times: u32,
}

/// A program of two legs: copies, and kernels repeated.
trait Program {
    fn streams(&self) -> Vec<GpuStream>;
    fn copies(&mut self) -> Fallible<()>;
    fn kernels(&mut self, times: u32) -> Fallible<()>;
    /// Copies that the kernels could run beside: of how many.
    fn beside(&self) -> (u32, u32);
    /// Kernels of the text's program.
    fn times(&self) -> u32;
}

/// Measures a program with so many kernels.
fn measure(bench: &Bench, clock: &Clock, program: &mut dyn Program, times: u32) -> Fallible<Found> {
    let (mut a, mut b, mut both, mut hidden) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let streams = program.streams();
    let on: Vec<&GpuStream> = streams.iter().collect();
    let (beside, of) = program.beside();
    for _ in bench.rounds(15, 7) {
        let copies = clock.time(&on, &mut || program.copies())?;
        let kernels = clock.time(&on, &mut || program.kernels(times))?;
        let together = clock.time(&on, &mut || {
            program.copies()?;
            program.kernels(times)
        })?;
        let shorter = kernels.min(copies * f64::from(beside) / f64::from(of));
        hidden.push((copies + kernels - together) / shorter);
        a.push(copies);
        b.push(kernels);
        both.push(together);
    }
    let (copies, kernels, together) = (median(&a), median(&b), median(&both));
    Ok(Found { copies, kernels, together, hidden: median(&hidden), times })
}

/// How many kernels of this length fill a time; at least one, also where no clock runs.
#[allow(clippy::cast_sign_loss, reason = "both are times")]
pub(super) fn how_many(room: f64, each: f64) -> u32 {
    if room > each { ((room / each) as u32).clamp(1, 500) } else { 1 }
}

/// As it stands in the text, and with its kernel repeated until it takes nine tenths of the copy beside it.
fn both_ways(bench: &Bench, row: &str, what: &str, program: &mut dyn Program) -> Fallible<f64> {
    let clock = Clock::new()?;
    // Warm.
    program.copies()?;
    program.kernels(1)?;
    let times = program.times();
    let plain = measure(bench, &clock, program, times)?;
    let (beside, of) = program.beside();
    let room = 0.9 * plain.copies * f64::from(beside) / f64::from(of);
    let each = plain.kernels / f64::from(plain.times);
    let even = measure(bench, &clock, program, how_many(room, each))?;
    for found in [&plain, &even] {
        println!(
            "{row}\t{what}\t{}\t{:.3}\t{:.3}\t{:.3}\t{:.3}",
            found.times,
            found.copies * 1e3,
            found.kernels * 1e3,
            found.together * 1e3,
            found.hidden
        );
    }
    Ok(even.hidden)
}

/// The articles' program: copy a, copy b, then a kernel on a, which could run beside the copy of b.
struct TwoCopies {
    a: Feed,
    b: Feed,
    z: Array,
    /// Where the kernel is launched.
    on: Stream<Cuda>,
}

impl TwoCopies {
    fn new(
        bench: &Bench,
        n: usize,
        pinned: bool,
        (a, b): (&Stream<Cuda>, &Stream<Cuda>),
    ) -> Fallible<TwoCopies> {
        let z = bench.gpu.zeros(n, a)?;
        let (first, second) = (Feed::new(bench, n, pinned, a)?, Feed::new(bench, n, pinned, b)?);
        Ok(TwoCopies { a: first, b: second, z, on: a.clone() })
    }
}

impl Program for TwoCopies {
    fn streams(&self) -> Vec<GpuStream> {
        let mut all = vec![self.a.on.native().clone(), self.b.on.native().clone()];
        if self.on.id() != self.a.on.id() {
            all.push(self.on.native().clone());
        }
        all
    }
    fn copies(&mut self) -> Fallible<()> {
        self.a.send()?;
        self.b.send()
    }
    fn kernels(&mut self, times: u32) -> Fallible<()> {
        multiply(times, &self.z, &mut self.a.array, &self.on)
    }
    fn beside(&self) -> (u32, u32) {
        (1, 2)
    }
    fn times(&self) -> u32 {
        1
    }
}

/// The tutorial's program: copy one tensor, multiply another three times.
struct OneCopy {
    copied: Feed,
    z: Array,
    other: Array,
    main: Stream<Cuda>,
}

impl Program for OneCopy {
    fn streams(&self) -> Vec<GpuStream> {
        let mut all = vec![self.main.native().clone()];
        if self.copied.on.id() != self.main.id() {
            all.push(self.copied.on.native().clone());
        }
        all
    }
    fn copies(&mut self) -> Fallible<()> {
        self.copied.send()
    }
    fn kernels(&mut self, times: u32) -> Fallible<()> {
        multiply(times, &self.z, &mut self.other, &self.main)
    }
    fn beside(&self) -> (u32, u32) {
        (1, 1)
    }
    fn times(&self) -> u32 {
        3
    }
}

/// S2 and S3: the articles' program, from pageable and from pinned memory.
fn articles(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    // 10000 x 10000 f32, and 1000 x 10000 f64, which are as many bytes as twice as many f32.
    for (shape, n) in [("400 MB", 10_000 * 10_000), ("80 MB", 2 * 1_000 * 10_000)] {
        let n = bench.pick(n, n, n / 1000);
        for pinned in [false, true] {
            let (a, b) = (bench.gpu.stream()?, bench.gpu.stream()?);
            let mut program = TwoCopies::new(bench, n, pinned, (&a, &b))?;
            let (row, from) = if pinned { ("S3", "pinned") } else { ("S2", "pageable") };
            let what = format!("two copies of {shape} from {from} memory, two streams");
            let hidden = both_ways(bench, row, &what, &mut program)?;
            judge(aims, row, &what, hidden, pinned);
        }
    }
    Ok(())
}

fn judge(aims: &mut Aims, row: &str, what: &str, hidden: f64, wanted: bool) {
    let what = format!("{row}, {what}: hidden of the shorter leg");
    if wanted { aims.at_least(&what, hidden, HIDDEN) } else { aims.at_most(&what, hidden, APART) }
}

/// S7: the kernel on the legacy default stream, beside streams that it is ordered with, and beside others.
fn legacy(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    let n = bench.pick(10_000 * 10_000, 10_000 * 10_000, 100_000);
    for blocking in [true, false] {
        let options = StreamOptions::default().blocking(blocking);
        let (a, b) = (bench.gpu.stream_with(options)?, bench.gpu.stream_with(options)?);
        let mut program = TwoCopies::new(bench, n, true, (&a, &b))?;
        program.on = bench.gpu.adopt(bench.cuda.legacy_stream()?)?;
        let kind = if blocking { "blocking" } else { "non-blocking" };
        let what = format!("the kernel on the legacy default stream, the copies on {kind} streams");
        let hidden = both_ways(bench, "S7", &what, &mut program)?;
        judge(aims, "S7", &what, hidden, !blocking);
    }
    Ok(())
}

/// P3: the tutorial's truth table.
fn truth_table(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    let n = bench.pick(5 * MIB, 5 * MIB, 5 * KIB);
    for (streamed, pinned) in [(false, false), (false, true), (true, false), (true, true)] {
        let (main, side) = (bench.gpu.stream()?, bench.gpu.stream()?);
        let copied = Feed::new(bench, n, pinned, if streamed { &side } else { &main })?;
        let (z, other) = (bench.gpu.zeros(n, &main)?, bench.gpu.zeros(n, &main)?);
        let mut program = OneCopy { copied, z, other, main };
        let said = |yes: bool| if yes { "yes" } else { "no" };
        let what = format!("20 MiB, streamed {}, pinned {}", said(streamed), said(pinned));
        let hidden = both_ways(bench, "P3", &what, &mut program)?;
        judge(aims, "P3", &what, hidden, streamed && pinned);
    }
    Ok(())
}

/// S13: what a copy to the host does to the caller behind 5 ms of work: into pageable memory the call waits for it.
fn to_pageable(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    println!("S13\tcopy of 4 MiB to the host behind 5 ms of work\tthe call, us");
    let on = bench.gpu.stream()?;
    let n = bench.pick(4 * MIB, 4 * MIB, 64 * KIB);
    let array = bench.gpu.zeros::<u8>(n, &on)?;
    let (mut vector, mut pinned) = (vec![1_u8; n], Some(bench.gpu.pinned_zeros::<u8>(n)?));
    let busy = Duration::from_millis(5);
    let mut calls = [0.0; 3];
    for (which, name) in
        ["plain CUDA, into pageable", "ours, into pageable", "ours, into pinned"].iter().enumerate()
    {
        on.synchronize()?;
        let gate = bench.cuda.gate(on.native(), busy)?;
        let begun = Instant::now();
        match which {
            0 => plain_d2h(vector.as_mut_ptr().cast(), array.address().0, n, on.native())?,
            1 => array.copy_to_slice(&mut vector, &on)?,
            _ => {
                let back = array.copy_to(pinned.take().ok_or("a target got lost")?, &on)?;
                calls[which] = micros(begun.elapsed());
                drop(back.wait()?);
            }
        }
        if calls[which] == 0.0 {
            calls[which] = micros(begun.elapsed());
        }
        drop(gate);
        println!("S13\t{name}\t{:.1}", calls[which]);
    }
    on.synchronize()?;
    let limit = micros(busy) * 0.9;
    aims.holds(
        "S13, both calls into pageable memory wait for the work before them",
        calls[..2].iter().all(|&c| c > limit),
    );
    aims.at_most("S13, the call into pinned memory waits for nothing, us", calls[2], 1000.0);
    Ok(())
}

/// Every program.
pub(crate) fn programs(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    println!(
        "row\tprogram\tkernels\tcopies alone ms\tkernels alone ms\ttogether ms\thidden of the shorter leg"
    );
    articles(bench, aims)?;
    legacy(bench, aims)?;
    truth_table(bench, aims)?;
    println!();
    to_pageable(bench, aims)
}
