//! The feeder as users hold it: how it is made, started again and ended. It does not know how batches are ordered or where they lie.

use crate::batch::{Batch, Fields, Layout};
use crate::epoch::{Epoch, Queued, Source};
use crate::error::{FeedError, StartError};
use crate::meter::{Clock, Meter, Track};
use crate::planted::{Bug, planted};
use crate::slots::{DeviceLease, Slots};
use crate::stats::FeedStats;
use core::convert::Infallible;
use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;
use millpond::bytemuck::Pod;
use millpond::driver::Driver;
use millpond::{Allocator, DeviceViewMut, Error, Stream};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// How a feeder is made: [`Feeder::builder`].
pub struct Builder<'g, D: Driver> {
    gpu: &'g Allocator<D>,
    depth: usize,
    budget: u64,
    fillers: usize,
    timeline: usize,
    clock: Option<Clock>,
}

impl<D: Driver> Builder<'_, D> {
    /// How many batches are ahead of the consumer at most: made, filled, copied, and not delivered. At least 1; 3 by default.
    #[must_use]
    pub fn depth(self, batches: usize) -> Self {
        Builder { depth: batches.max(1), ..self }
    }
    /// How many bytes the feeder has at most, pinned and on the device together, those of batches that consumers hold among them. A feeder that would need
    /// more waits until batches come back; a batch that alone needs more is an error in its place. By default only the depth limits it.
    ///
    /// A batch needs its bytes twice, pinned and on the device, rounded up to 512. A program that holds as many batches as the budget has room for, and asks
    /// for another, waits for itself: with filler threads for ever ([`Feeder::next_within`] gives up), without it gets [`FeedError::Held`].
    #[must_use]
    pub fn budget(self, bytes: u64) -> Self {
        Builder { budget: bytes, ..self }
    }
    /// How many threads fill batches; 2 by default. More than the depth have nothing to do. With 0 there are no threads: [`Feeder::next`] asks the source and fills on its caller's thread, up
    /// to the depth. Then the same program makes the same driver calls in every run.
    #[must_use]
    pub fn fillers(self, threads: usize) -> Self {
        Builder { fillers: threads, ..self }
    }
    /// Records the latest so many spans of time for [`Feeder::timeline`]; none by default.
    #[must_use]
    pub fn timeline(self, spans: usize) -> Self {
        Builder { timeline: spans, ..self }
    }
    /// The clock of figures and timeline, in place of the system's: on the simulated device its virtual time, `move || sim.host_time()`.
    #[must_use]
    pub fn clock(self, now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Builder { clock: Some(Arc::new(now)), ..self }
    }

    /// Starts feeding from a source that cannot fail: any iterator, the receiver of a channel, or a closure by
    /// [`iter::from_fn`](core::iter::from_fn).
    ///
    /// # Errors
    /// The copies' stream or a thread could not be made.
    pub fn start<T: Batch + 'static, S>(self, source: S) -> Result<Feeder<T, Infallible, D>, StartError>
    where
        S: IntoIterator<Item = T, IntoIter: Send + 'static>,
    {
        self.run(Box::new(source.into_iter().map(Ok)))
    }
    /// Starts feeding from a source whose items may be errors. An error is delivered in its place, and the batches behind it follow.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn try_start<T: Batch + 'static, E: Send + 'static, S>(
        self,
        source: S,
    ) -> Result<Feeder<T, E, D>, StartError>
    where
        S: IntoIterator<Item = Result<T, E>, IntoIter: Send + 'static>,
    {
        self.run(Box::new(source.into_iter()))
    }
    fn run<T: Batch + 'static, E: Send + 'static>(
        self,
        source: Source<'static, T, E>,
    ) -> Result<Feeder<T, E, D>, StartError> {
        let meter = Arc::new(Meter::new(self.clock, self.timeline));
        meter.count(|stats| stats.fillers = self.fillers);
        let slots = Slots::new(self.gpu, self.budget, self.depth, Arc::clone(&meter))?;
        let (depth, fillers) = (self.depth, self.fillers);
        let running = Running::start(source, depth, fillers, &slots, &meter)?;
        let inner = Inner { running: Mutex::new(running), slots, meter, depth, fillers };
        Ok(Feeder(Arc::new(inner)))
    }
}

impl<D: Driver> fmt::Debug for Builder<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Builder { depth, budget, fillers, .. } = self;
        write!(f, "Builder(depth {depth}, budget {budget}, {fillers} fillers)")
    }
}

/// An epoch and its threads. Dropped, both end.
struct Running<T: Batch + 'static, E: Send + 'static, D: Driver> {
    epoch: Arc<Epoch<'static, T, E, D>>,
    threads: Vec<JoinHandle<()>>,
    slots: Arc<Slots<D>>,
}

impl<T: Batch + 'static, E: Send + 'static, D: Driver> Running<T, E, D> {
    fn start(
        source: Source<'static, T, E>,
        depth: usize,
        fillers: usize,
        slots: &Arc<Slots<D>>,
        meter: &Arc<Meter>,
    ) -> Result<Running<T, E, D>, StartError> {
        let epoch = Arc::new(Epoch::new(source, depth, fillers == 0, Arc::clone(meter)));
        let mut running = Running { epoch, threads: Vec::new(), slots: Arc::clone(slots) };
        for started in 0..fillers {
            let (epoch, slots) = (Arc::clone(&running.epoch), Arc::downgrade(slots));
            let thread = std::thread::Builder::new().name(format!("millpond-feed {started}"));
            let thread = thread.spawn(move || epoch.work(&slots, started));
            running.threads.push(thread.map_err(|error| StartError::Threads {
                started,
                asked: fillers,
                error,
            })?);
        }
        Ok(running)
    }
}

impl<T: Batch + 'static, E: Send + 'static, D: Driver> Drop for Running<T, E, D> {
    fn drop(&mut self) {
        let in_source = self.epoch.cancel();
        self.slots.wake();
        for (i, thread) in self.threads.drain(..).enumerate() {
            // The one that is inside the source has nothing of the device, and ends when the source returns.
            if Some(i) != in_source {
                // Its panics are the consumer's errors already.
                let _ = thread.join();
            }
        }
    }
}

struct Inner<T: Batch + 'static, E: Send + 'static, D: Driver> {
    running: Mutex<Running<T, E, D>>,
    slots: Arc<Slots<D>>,
    meter: Arc<Meter>,
    depth: usize,
    fillers: usize,
}

/// Batches of a source, on the device before they are wanted.
///
/// Filler threads write batches straight into pinned slots; one stream copies them into device slots; [`Feeder::next`] gives them in the
/// source's order. All of it is bounded, by [depth](Builder::depth) and [budget](Builder::budget), and used again: after the first batches a feeder makes no stream, grows
/// nothing and synchronises nothing, also where sizes vary.
///
/// **Ordering.** A batch comes ordered on the stream that `next` is given: work queued there from then on comes after its copy, on the device; the host does not wait for it. Its
/// slot is copied to again behind everything that this stream holds when the batch is dropped, and behind every use that the library knows
/// (launches, copies, cudarc's calls, [`FedBatch::record_use`]), on any stream. The drop does not wait.
///
/// **Handles.** A clone is the same feeder: several consumers, each with its stream, share the batches, each of which goes to one of them. For several devices, make a feeder on
/// each from the parts of a [`Split`](crate::Split).
///
/// **Errors** take a batch's place, and the batches behind it follow: [`FeedError`].
///
/// **Its end.** Dropping the last handle, or [`Feeder::restart`], ends the epoch early: threads end, what they filled is dropped, and nothing in flight is reused
/// before it is done. It waits for batches that are being filled, and not for the source: a thread that is inside it has nothing of the device, and ends when the source
/// returns. Batches that are held outlive the feeder.
pub struct Feeder<T: Batch + 'static, E: Send + 'static, D: Driver>(Arc<Inner<T, E, D>>);

impl<T: Batch + 'static, E: Send + 'static, D: Driver> Clone for Feeder<T, E, D> {
    fn clone(&self) -> Self {
        Feeder(Arc::clone(&self.0))
    }
}

/// Where a [`Builder`] comes from; the parameters of the feeder itself follow from the source.
impl<D: Driver> Feeder<(Vec<u8>,), Infallible, D> {
    /// A feeder for a device; nothing is made before it is started.
    pub fn builder(gpu: &Allocator<D>) -> Builder<'_, D> {
        Builder { gpu, depth: 3, budget: u64::MAX, fillers: 2, timeline: 0, clock: None }
    }
}

impl<T: Batch + 'static, E: Send + 'static, D: Driver> Feeder<T, E, D> {
    /// The next batch, for work on `compute`; `None` at the end of the epoch. Blocks the host until the batch's copy is queued, and not until it is done.
    ///
    /// What is queued on `compute` before this call does not come after the batch; other streams come after it if they wait for `compute`, or through
    /// the library's own operations on its views.
    ///
    /// # Errors
    /// [`FeedError`], in the batch's place. If `compute` cannot be made to wait (it captures, or belongs to another device), the batch is not lost: the next call
    /// gives it.
    pub fn next(&self, compute: &Stream<D>) -> Option<Result<FedBatch<T, D>, FeedError<E>>> {
        self.next_until(None, compute)
    }
    /// The next batch, as [`Feeder::next`] gives it, if it comes within `limit`. Without filler threads nothing is waited for that this call does not do itself, and the
    /// limit does not count.
    ///
    /// # Errors
    /// [`FeedError::TimedOut`], which takes no batch's place: the batch comes with a later call. Otherwise as [`Feeder::next`].
    pub fn next_within(
        &self,
        limit: Duration,
        compute: &Stream<D>,
    ) -> Option<Result<FedBatch<T, D>, FeedError<E>>> {
        self.next_until(Instant::now().checked_add(limit), compute)
    }
    fn next_until(
        &self,
        deadline: Option<Instant>,
        compute: &Stream<D>,
    ) -> Option<Result<FedBatch<T, D>, FeedError<E>>> {
        let Inner { running, slots, meter, .. } = &*self.0;
        let epoch = Arc::clone(&running.lock().epoch);
        let (number, outcome) = epoch.next(slots, deadline, compute)?;
        Some(outcome.map(|queued| FedBatch::new(queued, number, compute, meter)))
    }

    /// The batches that are left, for work on `compute`: [`Feeder::next`].
    pub fn on<'a>(&'a self, compute: &'a Stream<D>) -> Batches<'a, T, E, D> {
        Batches { feeder: self, compute }
    }

    /// Begins the next epoch, from another source of the same kind, with the streams and slots there are. What is left of the epoch before is
    /// dropped, as by the end of the feeder; consumers that wait for it get `None`.
    ///
    /// # Errors
    /// A thread could not be started: then this epoch has ended too.
    pub fn try_restart<S>(&self, source: S) -> Result<(), StartError>
    where
        S: IntoIterator<Item = Result<T, E>, IntoIter: Send + 'static>,
    {
        let Inner { running, slots, meter, depth, fillers } = &*self.0;
        let next = Running::start(Box::new(source.into_iter()), *depth, *fillers, slots, meter)?;
        let before = core::mem::replace(&mut *running.lock(), next);
        drop(before);
        Ok(())
    }

    /// What it did so far, over all epochs.
    pub fn stats(&self) -> FeedStats {
        self.0.meter.stats()
    }
    /// The latest spans of time as Chrome trace JSON, for `chrome://tracing` or Perfetto; empty unless [`Builder::timeline`] asked for some. Its times are the
    /// host's: a row is what threads did or waited for, not what the device ran.
    pub fn timeline(&self) -> String {
        self.0.meter.timeline()
    }
    #[cfg(test)]
    pub(crate) fn filled(&self) -> usize {
        self.0.running.lock().epoch.filled()
    }
    /// The bytes of all its slots now, pinned and on the device, and the most there were: never more than the budget.
    pub fn slot_bytes(&self) -> (u64, u64) {
        self.0.slots.bytes()
    }
}

impl<T: Batch + 'static, D: Driver> Feeder<T, Infallible, D> {
    /// Begins the next epoch from a source that cannot fail: [`Feeder::try_restart`].
    ///
    /// # Errors
    /// As [`Feeder::try_restart`].
    pub fn restart<S>(&self, source: S) -> Result<(), StartError>
    where
        S: IntoIterator<Item = T, IntoIter: Send + 'static>,
    {
        self.try_restart(source.into_iter().map(Ok::<T, Infallible>))
    }
}

impl<T: Batch + 'static, E: Send + 'static, D: Driver> fmt::Debug for Feeder<T, E, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { depth, fillers, slots, .. } = &*self.0;
        write!(f, "Feeder(depth {depth}, {fillers} fillers, {} bytes of slots)", slots.bytes().0)
    }
}

/// The batches of a feeder: [`Feeder::on`].
#[derive(Debug)]
pub struct Batches<'a, T: Batch + 'static, E: Send + 'static, D: Driver> {
    feeder: &'a Feeder<T, E, D>,
    compute: &'a Stream<D>,
}

impl<T: Batch + 'static, E: Send + 'static, D: Driver> Iterator for Batches<'_, T, E, D> {
    type Item = Result<FedBatch<T, D>, FeedError<E>>;
    fn next(&mut self) -> Option<Self::Item> {
        self.feeder.next(self.compute)
    }
}

/// A batch on the device, ordered on the stream that it was taken for. It owns its slot until it is dropped; the drop does not wait.
///
/// It may be sent to other threads, held as long as the program likes, and forgotten, which costs its slot and its part of the budget.
pub struct FedBatch<T: Batch, D: Driver> {
    layout: Layout,
    bytes: usize,
    device: DeviceLease<D>,
    number: u64,
    compute: Stream<D>,
    others: Vec<Stream<D>>,
    since: Duration,
    meter: Arc<Meter>,
    of: PhantomData<fn() -> T>,
}

impl<T: Batch, D: Driver> FedBatch<T, D> {
    pub(crate) fn new(
        queued: Queued<D>,
        number: u64,
        compute: &Stream<D>,
        meter: &Arc<Meter>,
    ) -> FedBatch<T, D> {
        let Queued { layout, bytes, device } = queued;
        let (compute, meter, since) = (compute.clone(), Arc::clone(meter), meter.now());
        FedBatch { layout, bytes, device, number, compute, others: Vec::new(), since, meter, of: PhantomData }
    }
    /// Its fields on the device, to read.
    ///
    /// # Panics
    /// If [`Batch::views`] asks for other fields than [`Batch::layout`] said.
    pub fn views(&self) -> T::Views<'_, D> {
        let array = self.device.array().expect("a batch has its slot until it is dropped");
        T::views(&mut Fields::new(array.slice(..self.bytes), &self.layout))
    }
    /// A field to write, such as one that is normalised in place.
    ///
    /// # Panics
    /// If the batch has no field with this index, or one of other elements.
    #[track_caller]
    pub fn field_mut<A: Pod>(&mut self, index: usize) -> DeviceViewMut<'_, A, D> {
        let (range, shape) = self.layout.part::<A>(index);
        let array = self.device.array_mut().expect("a batch has its slot until it is dropped");
        let view = array.slice_mut(range).cast::<A>().and_then(|view| view.reshape(shape));
        view.expect("fields lie at multiples of their alignment, and have their shape's elements")
    }
    /// Declares that work of other code on `stream` uses the batch, queued by now or before its drop: its slot is copied to again behind all that `stream` holds
    /// when the batch is dropped, and so it is for its own stream. Not needed for the library's operations on its views. Makes `stream` wait for the batch's copy and
    /// for the library's operations on it so far, such as a [`Drain`](crate::Drain)'s copy of it, which other code must not overwrite.
    ///
    /// # Errors
    /// `stream` captures or belongs to another device; the driver's.
    pub fn record_use(&mut self, stream: &Stream<D>) -> Result<(), Error> {
        if let Some(array) = self.device.array() {
            array.wait_on(stream)?;
        }
        self.others.push(stream.clone());
        Ok(())
    }
    /// Its place in the epoch, from 0; errors count too.
    pub fn number(&self) -> u64 {
        self.number
    }
    /// The bytes of its fields, with what lies between them.
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }
    /// Its fields' elements and shapes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
    /// The stream that it was taken for.
    pub fn stream(&self) -> &Stream<D> {
        &self.compute
    }
}

impl<T: Batch, D: Driver> Drop for FedBatch<T, D> {
    fn drop(&mut self) {
        if !planted(Bug::DropUnmarked) {
            self.device.mark(&self.compute);
            for stream in &self.others {
                self.device.mark(stream);
            }
        }
        self.meter.span(Track::Consumer, Some(self.number), self.since);
    }
}

impl<T: Batch, D: Driver> fmt::Debug for FedBatch<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FedBatch({}: {:?})", self.number, self.layout)
    }
}
