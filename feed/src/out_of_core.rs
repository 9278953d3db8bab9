//! A dataset in host memory that is larger than the device, chunk by chunk: in, through a kernel, and back, all three at once.
//!
//! It is made of the parts of a feeder and of a drain, with threads that end with the call: so the dataset is borrowed. It does not know what
//! they are made of.

use crate::batch::{Batch, Fields, FillError, Layout, Slot};
use crate::drain::{DrainError, DrainStats, Drained, Flow, Sink};
use crate::epoch::Epoch;
use crate::error::{FeedError, StartError};
use crate::feeder::FedBatch;
use crate::meter::Meter;
use crate::slots::Slots;
use crate::stats::FeedStats;
use core::convert::Infallible;
use core::fmt;
use core::ops::Range;
use millpond::bytemuck::Pod;
use millpond::driver::Driver;
use millpond::units::GRANULE_BYTES;
use millpond::{Allocator, DeviceArray, DeviceView, DeviceViewMut, Stream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The longest chunk in bytes unless one is asked for: long enough for the link's full rate, short enough to overlap.
const LONGEST_CHUNK: usize = 32 << 20;
/// Into how many chunks a dataset is cut at least, where its size allows: fewer overlap with nothing.
const LEAST_CHUNKS: usize = 8;

/// Runs a kernel over a dataset in host memory, in chunks, within a budget of bytes that may be much less than the dataset.
///
/// ```
/// # use millpond::{Allocator, Config, Limit, kernel, units::{GIB, MIB}};
/// # use millpond_sim::Sim;
/// use millpond_feed::OutOfCore;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default().limit(Limit::Bytes(24 * MIB)))?;
/// let work = gpu.stream()?;
/// let mut data = vec![1.0_f32; 16 << 20];                           // 64 MiB, and the device may have 24
/// OutOfCore::new(&gpu).budget(16 * MIB).in_place(&mut data, &work, |_range, mut chunk| {
///     kernel::fill(&mut chunk, 2.0, &work)                          // any work on the chunk, on `work`
/// })?;
/// assert!(data.iter().all(|&x| x == 2.0));
/// # Ok(()) }
/// ```
pub struct OutOfCore<'g, D: Driver> {
    gpu: &'g Allocator<D>,
    budget: u64,
    depth: usize,
    fillers: usize,
    drainers: usize,
    chunk: Option<usize>,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OutOfCoreStats {
    /// Elements of a chunk.
    pub chunk: usize,
    /// The way in, and the computation.
    pub feed: FeedStats,
    /// The way back.
    pub drain: DrainStats,
    /// The most bytes that were taken at once, pinned and on the device: at most the budget.
    pub bytes_peak: u64,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[error("{cause}; the first {written} elements of the result are written")]
#[non_exhaustive]
pub struct OutOfCoreError<E> {
    /// How many elements of the result are written, from the first; what is behind them is as it was.
    pub written: usize,
    /// Why.
    pub cause: OutOfCoreCause<E>,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutOfCoreCause<E> {
    /// The result has not as many elements as the dataset.
    #[error("a dataset of {from} elements is mapped to one of {to}: both must be of one length")]
    Length {
        /// Elements of the dataset.
        from: usize,
        /// Elements of the result.
        to: usize,
    },
    /// The budget has no room for chunks.
    #[error(
        "a budget of {budget} bytes has no room for chunks; at least {least} are needed: raise it, or ask for shorter chunks or less depth"
    )]
    Budget {
        /// The budget in bytes.
        budget: u64,
        /// What is needed for chunks as short as they were asked for.
        least: u64,
    },
    /// A stream or a thread could not be made.
    #[error("{0}")]
    Start(#[source] StartError),
    /// No memory, or the driver failed.
    #[error("{0}")]
    Device(#[source] millpond::Error),
    /// On the way in.
    #[error("{0}")]
    Feed(#[source] FeedError<Infallible>),
    /// The kernel's closure gave an error.
    #[error("the kernel failed at elements {range:?}: {error}")]
    Kernel {
        /// The chunk's elements.
        range: Range<usize>,
        /// The closure's own.
        error: E,
    },
    /// On the way back.
    #[error("{0}")]
    Drain(#[source] DrainError<Infallible>),
}

impl<E> From<millpond::Error> for OutOfCoreCause<E> {
    fn from(error: millpond::Error) -> Self {
        OutOfCoreCause::Device(error)
    }
}

/// Where results go, by the numbers of their chunks.
type Places<'d, A> = Mutex<BTreeMap<u64, &'d mut [A]>>;

/// A sink that writes each result to its place. It does not fail: a place has the length of its chunk.
fn writes_to<'env, A: Pod + Send + Sync>(places: &'env Places<'_, A>) -> Sink<'env, A, Infallible> {
    Box::new(|result: Drained<'_, A>| {
        // The lock is not held over the copy: that of other results, and the fillers, go on.
        let place = places.lock().remove(&result.number());
        if let Some(place) = place {
            place.copy_from_slice(&result);
        }
        Ok(())
    })
}

/// A chunk that is written again: it waits in its place for its result.
struct Written<'d, 'p, A> {
    data: &'d mut [A],
    number: u64,
    places: &'p Places<'d, A>,
}

impl<A: Pod + Send + Sync> Batch for Written<'_, '_, A> {
    type Views<'a, D: Driver> = DeviceView<'a, A, D>;
    fn layout(&self, layout: &mut Layout) {
        layout.field::<A>(self.data.len());
    }
    fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
        slot.field::<A>().copy_from_slice(self.data);
        self.places.lock().insert(self.number, self.data);
        Ok(())
    }
    fn views<'a, D: Driver>(fields: &mut Fields<'a, D>) -> Self::Views<'a, D> {
        fields.field()
    }
}

impl<'g, D: Driver> OutOfCore<'g, D> {
    /// For a device, with a budget of 256 MiB, two chunks ahead, and four threads for each way.
    pub fn new(gpu: &'g Allocator<D>) -> OutOfCore<'g, D> {
        OutOfCore { gpu, budget: 256 << 20, depth: 2, fillers: 4, drainers: 4, chunk: None }
    }
    /// How many bytes it takes at most, pinned and on the device together. The chunks' length follows from it, unless one is asked for.
    #[must_use]
    pub fn budget(self, bytes: u64) -> Self {
        OutOfCore { budget: bytes, ..self }
    }
    /// How many chunks are on their way in, and out, beside the one that is computed. At least 1; 2 by default.
    #[must_use]
    pub fn depth(self, chunks: usize) -> Self {
        OutOfCore { depth: chunks.max(1), ..self }
    }
    /// How many threads copy chunks into pinned memory; 4 by default. With 0 there are no threads at all, for the way back neither, and every run makes
    /// the same driver calls.
    #[must_use]
    pub fn fillers(self, threads: usize) -> Self {
        OutOfCore { fillers: threads, ..self }
    }
    /// How many threads copy results from pinned memory to the dataset, each a chunk's. At least 1; 4 by default; none if there are no fillers. One moves about
    /// 10 GB/s where the bus may bring 50. Each but the first has room for one more chunk in pinned memory, within the budget. The chunks of results are
    /// begun in order and finished in any.
    #[must_use]
    pub fn drainers(self, threads: usize) -> Self {
        OutOfCore { drainers: threads.max(1), ..self }
    }
    /// How many elements a chunk has; the last may have fewer.
    #[must_use]
    pub fn chunk(self, elements: usize) -> Self {
        OutOfCore { chunk: Some(elements.max(1)), ..self }
    }

    /// Changes a dataset in place: `kernel` is called with each chunk in order, with the elements that it is and a view to write, and queues work on
    /// `compute`, which is ordered behind the chunk's copy; the copy back comes behind what it queued. Blocks the host until all is written.
    ///
    /// # Errors
    /// [`OutOfCoreError`], with how much of the dataset is written; the rest is as it was.
    ///
    /// # Panics
    /// If `kernel` panics: then too the dataset is whole, in part as it was.
    pub fn in_place<A: Pod + Send + Sync, E>(
        &self,
        data: &mut [A],
        compute: &Stream<D>,
        mut kernel: impl FnMut(Range<usize>, DeviceViewMut<'_, A, D>) -> Result<(), E>,
    ) -> Result<OutOfCoreStats, OutOfCoreError<E>> {
        // In: pinned and on the device, one more on the device that is computed and one that travels back; out: pinned.
        let slots = [(size_of::<A>(), 2 * self.depth + 2), (size_of::<A>(), self.depth_back())];
        let chunk = self.chunk_of(data.len(), slots).map_err(nothing_written)?;
        let len = data.len();
        let places = Places::default();
        let source =
            data.chunks_mut(chunk).zip(0..).map(|(data, number)| Written { data, number, places: &places });
        let run = Run { of: self, chunk, len, compute, extra: 0 };
        run.run(source, &places, |mut batch, range, flow| {
            kernel(range.clone(), batch.field_mut::<A>(0))
                .map_err(|error| OutOfCoreCause::Kernel { range, error })?;
            flow.push(batch.views(), compute).map_err(OutOfCoreCause::Drain)
        })
    }

    /// Maps a dataset to a new one of as many elements: `kernel` is called with each chunk in order, with the elements that it is, a view to read and one to
    /// write, and queues work on `compute`. Otherwise as [`OutOfCore::in_place`].
    ///
    /// # Errors
    /// As [`OutOfCore::in_place`]; lengths that differ.
    ///
    /// # Panics
    /// If `kernel` panics.
    pub fn map<A: Pod + Send + Sync, B: Pod + Send + Sync, E>(
        &self,
        from: &[A],
        to: &mut [B],
        compute: &Stream<D>,
        mut kernel: impl FnMut(Range<usize>, DeviceView<'_, A, D>, DeviceViewMut<'_, B, D>) -> Result<(), E>,
    ) -> Result<OutOfCoreStats, OutOfCoreError<E>> {
        if from.len() != to.len() {
            return Err(nothing_written(OutOfCoreCause::Length { from: from.len(), to: to.len() }));
        }
        // The results lie on the device apart: one that is computed, and those that travel back.
        let back = self.depth + 1 + self.depth_back();
        let slots = [(size_of::<A>(), 2 * self.depth + 2), (size_of::<B>(), back)];
        let chunk = self.chunk_of(from.len(), slots).map_err(nothing_written)?;
        let mut results = Vec::new();
        for _ in 0..(self.depth + 1).min(from.len().div_ceil(chunk)) {
            let result: Result<DeviceArray<B, D>, _> = self.gpu.uninit(chunk.min(from.len()), compute);
            results.push(result.map_err(|e| nothing_written(e.into()))?);
        }
        let mut next = 0;
        let places = Mutex::new((0..).zip(to.chunks_mut(chunk)).collect());
        let extra = results.iter().map(DeviceArray::size_bytes).sum();
        let run = Run { of: self, chunk, len: from.len(), compute, extra };
        run.run(from.chunks(chunk), &places, |batch, range, flow| {
            let result = &mut results[next];
            next = (next + 1) % (self.depth + 1);
            // Behind the copy back of what it had before, for kernels of other code.
            result.wait_on(compute)?;
            kernel(range.clone(), batch.views(), result.slice_mut(..range.len()))
                .map_err(|error| OutOfCoreCause::Kernel { range: range.clone(), error })?;
            flow.push(result.slice(..range.len()), compute).map_err(OutOfCoreCause::Drain)
        })
    }

    /// How many results are on their way back at most, in pinned memory: beside the depth one for each further thread that copies them.
    fn depth_back(&self) -> usize {
        self.depth + if self.fillers == 0 { 0 } else { self.drainers - 1 }
    }

    /// How many elements a chunk has, where each needs so many slots of so many bytes an element.
    fn chunk_of<E>(&self, len: usize, slots: [(usize, usize); 2]) -> Result<usize, OutOfCoreCause<E>> {
        // Each slot is rounded up.
        let rest: u64 = slots.iter().map(|&(_, n)| GRANULE_BYTES * n as u64).sum();
        let each: u64 = slots.iter().map(|&(size, n)| (size * n) as u64).sum();
        let most = self.budget.saturating_sub(rest) / each.max(1);
        let widest = slots[0].0.max(slots[1].0).max(1);
        let chunk = self.chunk.unwrap_or_else(|| {
            (LONGEST_CHUNK / widest).min(len.div_ceil(LEAST_CHUNKS)).min(most as usize).max(1)
        });
        if chunk as u64 > most {
            let least = (chunk as u64).saturating_mul(each).saturating_add(rest);
            return Err(OutOfCoreCause::Budget { budget: self.budget, least });
        }
        Ok(chunk)
    }
}

fn nothing_written<E>(cause: OutOfCoreCause<E>) -> OutOfCoreError<E> {
    OutOfCoreError { written: 0, cause }
}

impl<D: Driver> fmt::Debug for OutOfCore<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "OutOfCore(budget {}, depth {}, {} fillers, {} drainers)",
            self.budget, self.depth, self.fillers, self.drainers
        )
    }
}

/// Ends the threads, also when the kernel panics: the scope waits for them.
struct Ending<'a, 'env, T: Batch, R: Pod, D: Driver> {
    epoch: &'a Epoch<'env, T, Infallible, D>,
    slots: &'a Slots<D>,
    flow: &'a Flow<'env, R, Infallible, D>,
}

impl<T: Batch, R: Pod, D: Driver> Drop for Ending<'_, '_, T, R, D> {
    fn drop(&mut self) {
        self.epoch.cancel();
        self.slots.wake();
        self.flow.close(true);
    }
}

/// One run over a dataset.
struct Run<'a, 'g, D: Driver> {
    of: &'a OutOfCore<'g, D>,
    chunk: usize,
    len: usize,
    compute: &'a Stream<D>,
    /// Bytes on the device besides slots.
    extra: u64,
}

impl<D: Driver> Run<'_, '_, D> {
    fn run<'env, T: Batch + 'env, R: Pod + Send + Sync, E>(
        &self,
        source: impl Iterator<Item = T> + Send + 'env,
        places: &'env Places<'_, R>,
        mut step: impl FnMut(
            FedBatch<T, D>,
            Range<usize>,
            &Flow<'env, R, Infallible, D>,
        ) -> Result<(), OutOfCoreCause<E>>,
    ) -> Result<OutOfCoreStats, OutOfCoreError<E>> {
        let OutOfCore { gpu, depth, fillers, budget, .. } = *self.of;
        let drainers = if fillers == 0 { 0 } else { self.of.drainers };
        let meter = Arc::new(Meter::new(None, 0));
        meter.count(|stats| stats.fillers = fillers);
        // The budget is kept by the number of slots of each kind, and this is its part for those of the way in.
        let slots =
            Slots::new(gpu, budget, depth, Arc::clone(&meter)).map_err(|e| nothing_written(e.into()))?;
        let sinks = (0..drainers.max(1)).map(|_| writes_to(places)).collect();
        let flow = Flow::new(gpu, (self.of.depth_back(), u64::MAX, fillers == 0), sinks);
        let flow = flow.map_err(|e| nothing_written(e.into()))?;
        let epoch = Epoch::new(Box::new(source.map(Ok)), depth, fillers == 0, Arc::clone(&meter));
        let (len, chunk, compute) = (self.len, self.chunk, self.compute);
        let ran = std::thread::scope(|scope| {
            let _ending = Ending { epoch: &epoch, slots: &slots, flow: &flow };
            let failed = |started, error| StartError::Threads { started, asked: fillers + drainers, error };
            for started in 0..fillers {
                let (epoch, weak) = (&epoch, Arc::downgrade(&slots));
                let thread = std::thread::Builder::new().name(format!("millpond-feed {started}"));
                let thread = thread.spawn_scoped(scope, move || epoch.work(&weak, started));
                thread.map_err(|error| failed(started, error))?;
            }
            for started in 0..drainers {
                let thread = std::thread::Builder::new().name(format!("millpond-drain {started}"));
                let thread = thread.spawn_scoped(scope, || flow.work());
                thread.map_err(|error| failed(fillers + started, error))?;
            }
            while let Some((number, outcome)) = epoch.next(&slots, None, compute) {
                let queued = match outcome {
                    Ok(queued) => queued,
                    Err(error) => return Ok(Err(OutOfCoreCause::Feed(error))),
                };
                let start = number as usize * chunk;
                let batch = FedBatch::new(queued, number, compute, &meter);
                if let Err(cause) = step(batch, start..(start + chunk).min(len), &flow) {
                    return Ok(Err(cause));
                }
            }
            flow.flush();
            Ok(Ok(()))
        });
        let drain = flow.stats();
        let stats = OutOfCoreStats {
            chunk,
            feed: meter.stats(),
            drain,
            bytes_peak: slots.bytes().1 + drain.bytes_peak + self.extra,
        };
        let ended = flow.result().map_err(OutOfCoreCause::Drain);
        let cause = match (ran, ended) {
            (Err(start), _) => OutOfCoreCause::Start(start),
            // What the drain ended with, and not that it has ended.
            (Ok(_), Err(ended)) => ended,
            (Ok(Err(cause)), Ok(_)) => cause,
            (Ok(Ok(())), Ok(_)) => return Ok(stats),
        };
        Err(OutOfCoreError { written: (drain.results as usize * chunk).min(len), cause })
    }
}
