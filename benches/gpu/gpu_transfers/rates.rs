//! How fast copies are: back to back from and to pinned memory beside plain CUDA's; and pageable memory (P1).
//!
//! Pinned copies are queued behind a held stream and timed by the device between two stamps, so that no call's cost is in
//! the figure, as in a pipeline that is ahead of the device. What the calls cost the host stands beside.

use super::bench::{
    Aims, Bench, Fallible, GIB, KIB, MIB, PlainDevice, PlainHost, Stamp, bytes_text, median, micros,
    plain_d2h, plain_h2d, plain_wait, ratio, warm,
};
use millpond::cuda::Cuda;
use millpond::{DeviceArray, PinnedArray, Stream};
use std::time::Instant;

/// Bytes of a series of copies.
const VOLUME: usize = 256 * MIB;
/// Copies of a series, at most: with the events between them still fewer than a stream's queue takes.
const MOST: usize = 128;

/// What one series took.
#[derive(Clone, Copy)]
struct Series {
    /// Seconds of the device for all copies.
    device: f64,
    /// Microseconds of the host for a call.
    call: f64,
}

/// One contestant: what it copies, `copies` times, to or from memory of its own.
trait Copies {
    /// Queues all copies to the device.
    fn up(&mut self) -> Fallible<()>;
    /// Queues all copies to the host.
    fn down(&mut self) -> Fallible<()>;
    /// Waits, and has its memory again.
    fn settle(&mut self) -> Fallible<()>;
    fn stream(&self) -> &Stream<Cuda>;
    fn count(&self) -> usize;
}

struct Ours {
    stream: Stream<Cuda>,
    array: DeviceArray<u8, Cuda>,
    hosts: Vec<PinnedArray<u8, Cuda>>,
    sent: Vec<millpond::Upload<PinnedArray<u8, Cuda>, Cuda>>,
    back: Vec<millpond::Download<u8, Cuda>>,
    copies: usize,
}

impl Ours {
    fn new(bench: &Bench, bytes: usize, copies: usize) -> Fallible<Ours> {
        let stream = bench.gpu.stream()?;
        let array = bench.gpu.zeros(bytes, &stream)?;
        let hosts = (0..copies).map(|_| bench.gpu.pinned_zeros(bytes)).collect::<Result<_, _>>()?;
        Ok(Ours {
            stream,
            array,
            hosts,
            sent: Vec::with_capacity(copies),
            back: Vec::with_capacity(copies),
            copies,
        })
    }
}

impl Copies for Ours {
    fn up(&mut self) -> Fallible<()> {
        for host in self.hosts.drain(..) {
            self.sent.push(self.array.copy_from(host, &self.stream)?);
        }
        Ok(())
    }
    fn down(&mut self) -> Fallible<()> {
        for host in self.hosts.drain(..) {
            self.back.push(self.array.copy_to(host, &self.stream)?);
        }
        Ok(())
    }
    fn settle(&mut self) -> Fallible<()> {
        self.stream.synchronize()?;
        for sent in self.sent.drain(..) {
            self.hosts.push(sent.wait()?);
        }
        for back in self.back.drain(..) {
            self.hosts.push(back.wait()?);
        }
        Ok(())
    }
    fn stream(&self) -> &Stream<Cuda> {
        &self.stream
    }
    fn count(&self) -> usize {
        self.copies
    }
}

struct Plain {
    stream: Stream<Cuda>,
    device: PlainDevice,
    host: PlainHost,
    bytes: usize,
    copies: usize,
}

impl Plain {
    fn new(bench: &Bench, bytes: usize, copies: usize) -> Fallible<Plain> {
        let (device, host) = (PlainDevice::new(bytes)?, PlainHost::new(bytes * copies)?);
        Ok(Plain { stream: bench.gpu.stream()?, device, host, bytes, copies })
    }
}

impl Copies for Plain {
    fn up(&mut self) -> Fallible<()> {
        (0..self.copies).try_for_each(|i| {
            plain_h2d(self.device.0, self.host.piece(i, self.bytes), self.bytes, self.stream.native())
        })
    }
    fn down(&mut self) -> Fallible<()> {
        (0..self.copies).try_for_each(|i| {
            plain_d2h(self.host.piece(i, self.bytes), self.device.0, self.bytes, self.stream.native())
        })
    }
    fn settle(&mut self) -> Fallible<()> {
        plain_wait(self.stream.native())
    }
    fn stream(&self) -> &Stream<Cuda> {
        &self.stream
    }
    fn count(&self) -> usize {
        self.copies
    }
}

/// One series, up or down.
fn series(bench: &Bench, who: &mut dyn Copies, up: bool, (start, end): (&Stamp, &Stamp)) -> Fallible<Series> {
    let native = who.stream().native().clone();
    let held = bench.hold(&native)?;
    start.put(&native)?;
    let begun = Instant::now();
    if up {
        who.up()?;
    } else {
        who.down()?;
    }
    let call = micros(begun.elapsed()) / who.count() as f64;
    end.put(&native)?;
    held.go()?;
    who.settle()?;
    Ok(Series { device: end.since(start)?, call })
}

/// Copies from and to pinned memory, ours and plain CUDA's.
pub(crate) fn pinned(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    println!(
        "pinned\tway\tbytes\tcopies\tplain GB/s\tours GB/s\tours / plain\tplain us a call\tours us a call"
    );
    let (start, end) = (Stamp::new()?, Stamp::new()?);
    let mut bytes = 64 * KIB;
    while bytes <= bench.pick(GIB, GIB, MIB) {
        let copies = (bench.pick(VOLUME, VOLUME, MIB) / bytes).clamp(2, MOST);
        let (mut ours, mut plain) = (Ours::new(bench, bytes, copies)?, Plain::new(bench, bytes, copies)?);
        for up in [true, false] {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            // Warm: events are pooled, pages are known to both sides.
            series(bench, &mut ours, up, (&start, &end))?;
            series(bench, &mut plain, up, (&start, &end))?;
            for round in bench.rounds(31, 11) {
                let contestants: [(&mut dyn Copies, &mut Vec<Series>); 2] =
                    [(&mut ours, &mut a), (&mut plain, &mut b)];
                // Who goes first changes.
                let turn = |(who, found): (&mut dyn Copies, &mut Vec<Series>)| -> Fallible<()> {
                    found.push(series(bench, who, up, (&start, &end))?);
                    Ok(())
                };
                if round % 2 == 0 {
                    contestants.into_iter().try_for_each(turn)?;
                } else {
                    contestants.into_iter().rev().try_for_each(turn)?;
                }
            }
            let times = |of: &[Series]| of.iter().map(|s| s.device).collect::<Vec<_>>();
            let calls = |of: &[Series]| median(&of.iter().map(|s| s.call).collect::<Vec<_>>());
            let rate = |of: &[Series]| (bytes * copies) as f64 / median(&times(of)) / 1e9;
            let share = ratio(&times(&b), &times(&a));
            let way = if up { "to the device" } else { "to the host" };
            println!(
                "pinned\t{way}\t{}\t{copies}\t{:.2}\t{:.2}\t{share:.4}\t{:.2}\t{:.2}",
                bytes_text(bytes),
                rate(&b),
                rate(&a),
                calls(&b),
                calls(&a)
            );
            aims.at_least(&format!("copies of {} {way}, ours / plain CUDA", bytes_text(bytes)), share, 0.98);
        }
        bytes *= 4;
    }
    Ok(())
}

/// P1: copies to the device from pinned and from pageable memory, by plain CUDA, and ours through pinned slots. Each by
/// the host's clock from the first call until all is there.
pub(crate) fn pageable(bench: &Bench, _: &mut Aims) -> Fallible<()> {
    println!(
        "P1\tbytes\tplain, pinned GB/s\tplain, pageable GB/s\tours, staged GB/s\tplain, pageable / pinned\tstaged / pinned"
    );
    let on = bench.gpu.stream()?;
    let most = bench.pick(GIB, GIB, MIB);
    let (host, pageable, device) = (PlainHost::new(most)?, vec![1_u8; most], PlainDevice::new(most)?);
    let mut bytes = 4 * KIB;
    while bytes <= most {
        let copies = (64 * MIB / bytes).clamp(1, bench.pick(256, 256, 2));
        let mut array = bench.gpu.zeros::<u8>(bytes, &on)?;
        let mut found: [Vec<f64>; 3] = Default::default();
        let mut timed = |which: usize, copy: &mut dyn FnMut() -> Fallible<()>| -> Fallible<()> {
            let begun = Instant::now();
            (0..copies).try_for_each(|_| copy())?;
            on.synchronize()?;
            found[which].push(begun.elapsed().as_secs_f64());
            Ok(())
        };
        // One more than counts.
        for _ in bench.rounds(12, 8) {
            timed(0, &mut || plain_h2d(device.0, host.at, bytes, on.native()))?;
            timed(1, &mut || plain_h2d(device.0, pageable.as_ptr().cast(), bytes, on.native()))?;
            timed(2, &mut || Ok(array.copy_from_slice(&pageable[..bytes], &on)?))?;
        }
        let found = warm(&found);
        let rate = |of: &[f64]| (bytes * copies) as f64 / median(of) / 1e9;
        println!(
            "P1\t{}\t{:.2}\t{:.2}\t{:.2}\t{:.3}\t{:.3}",
            bytes_text(bytes),
            rate(found[0]),
            rate(found[1]),
            rate(found[2]),
            ratio(found[0], found[1]),
            ratio(found[0], found[2])
        );
        bytes *= 4;
    }
    Ok(())
}
