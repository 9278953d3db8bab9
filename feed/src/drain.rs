//! Results back to the host, in order and within a budget, while the device goes on.
//!
//! A push queues a copy into pinned memory, on a stream of the drain's own, behind what the result's stream holds; a thread waits for the
//! copies in their order and gives each to the sink. The bytes in copies and with the sink never exceed the budget: a push waits until there
//! is room. Pinned memory is the allocator's, which gives what has come back again.
//!
//! It does not know feeders, markers or the driver; no user code runs and no driver call is made under its lock.

use crate::error::{Stage, StartError, message};
use crate::planted::{Bug, planted};
use crate::slots::rounded;
use core::fmt;
use core::ops::Deref;
use millpond::bytemuck::Pod;
use millpond::driver::Driver;
use millpond::{Allocator, DeviceView, Download, Error, IntoView, PinnedArray, Shape, Stream};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A result, as the sink gets it: a slice of pinned memory, for the length of the call.
#[derive(Clone, Copy, Debug)]
pub struct Drained<'a, T> {
    number: u64,
    shape: Shape,
    elements: &'a [T],
}

impl<T> Drained<'_, T> {
    /// Its place among the results of the drain, from 0.
    pub fn number(&self) -> u64 {
        self.number
    }
    /// The shape of what was pushed.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

impl<T> Deref for Drained<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.elements
    }
}

/// Why a result did not get to the sink. After any but [`DrainError::TooLarge`] and [`DrainError::Push`] the drain has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError<E> {
    /// The result alone exceeds the budget.
    #[error("a result of {bytes} bytes, and the budget is {budget}: raise the budget or push parts")]
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// The budget in bytes.
        budget: u64,
    },
    /// The copy could not be queued; nothing was pushed, and the next push may succeed.
    #[error("the copy of a result could not be queued: {0}")]
    Push(#[source] Error),
    /// The sink refused a result; those behind it were dropped.
    #[error("the sink failed at result {number}: {error}")]
    Sink {
        /// Which, from 0.
        number: u64,
        /// The sink's own.
        error: E,
    },
    /// The sink panicked; the results behind it were dropped.
    #[error("panic at result {number} ({stage:?}): {message}")]
    Panicked {
        /// Which, from 0.
        number: u64,
        /// Who.
        stage: Stage,
        /// The panic's message.
        message: String,
    },
    /// A copy failed on its way; the results behind it were dropped.
    #[error("the copy of result {number} failed: {error}")]
    Device {
        /// Which, from 0.
        number: u64,
        /// The driver's.
        #[source]
        error: Error,
    },
    /// The drain ended at an earlier result, which [`Drain::finish`] names.
    #[error("the drain ended at result {number}: finish() says why")]
    Ended {
        /// Which, from 0.
        number: u64,
    },
}

/// What a drain did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DrainStats {
    /// Results that the sink took.
    pub results: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pushes that waited for room.
    pub stalls: u64,
    /// The most bytes that were in copies or with the sink at once.
    pub bytes_peak: u64,
}

/// What takes the results.
pub(crate) type Sink<'env, T, E> = Box<dyn FnMut(Drained<'_, T>) -> Result<(), E> + Send + 'env>;

/// A result on its way.
struct Flying<T: Pod, D: Driver> {
    number: u64,
    bytes: u64,
    download: Download<T, D>,
}

struct Line<'env, T: Pod, E, D: Driver> {
    /// Those that do not run.
    sinks: Vec<Sink<'env, T, E>>,
    /// The result whose copy a thread waits for: nobody begins with those behind it before that copy is known to be whole.
    arriving: Option<u64>,
    queue: VecDeque<Flying<T, D>>,
    /// A push has the turn: results are queued in the order of their numbers.
    pushing: bool,
    pushed: u64,
    /// In copies or with the sink: results and their bytes.
    out: usize,
    out_bytes: u64,
    /// No more comes.
    closed: bool,
    /// Nothing is given to the sink any more.
    cancelled: bool,
    failed: Option<DrainError<E>>,
    failed_at: Option<u64>,
    stats: DrainStats,
}

/// The line between pushes and the sink.
pub(crate) struct Flow<'env, T: Pod, E, D: Driver> {
    line: Mutex<Line<'env, T, E, D>>,
    changed: Condvar,
    depth: usize,
    budget: u64,
    /// There is no thread: who waits for room or for the end runs the sink.
    inline: bool,
    copy: Stream<D>,
}

impl<'env, T: Pod, E: Send, D: Driver> Flow<'env, T, E, D> {
    /// One sink gets the results one by one, in order. Of several, which may be called at once, each result goes to one: the calls begin in order,
    /// behind the arrival of all earlier results, and end in any order. Those that have begun when the flow ends are the first ones.
    pub(crate) fn new(
        gpu: &Allocator<D>,
        (depth, budget, inline): (usize, u64, bool),
        sinks: Vec<Sink<'env, T, E>>,
    ) -> Result<Flow<'env, T, E, D>, Error> {
        let line = Line {
            sinks,
            arriving: None,
            queue: VecDeque::new(),
            pushing: false,
            pushed: 0,
            out: 0,
            out_bytes: 0,
            closed: false,
            cancelled: false,
            failed: None,
            failed_at: None,
            stats: DrainStats::default(),
        };
        let (line, changed) = (Mutex::new(line), Condvar::new());
        Ok(Flow { line, changed, depth, budget, inline, copy: gpu.stream()? })
    }

    pub(crate) fn push(&self, view: DeviceView<'_, T, D>, compute: &Stream<D>) -> Result<(), DrainError<E>> {
        let bytes = rounded(view.size_bytes());
        if bytes > self.budget {
            return Err(DrainError::TooLarge { bytes: view.size_bytes(), budget: self.budget });
        }
        let mut line = self.line.lock();
        let mut stalled = false;
        loop {
            if let Some(number) = line.failed_at {
                return Err(DrainError::Ended { number });
            }
            let room = line.out < self.depth && line.out_bytes + bytes <= self.budget;
            if !line.pushing && (room || planted(Bug::BudgetIgnored)) {
                break;
            }
            stalled = true;
            if !self.inline || line.pushing || !self.take_one(&mut line) {
                self.changed.wait(&mut line);
            }
        }
        (line.pushing, line.out, line.out_bytes) = (true, line.out + 1, line.out_bytes + bytes);
        line.stats.stalls += u64::from(stalled);
        line.stats.bytes_peak = line.stats.bytes_peak.max(line.out_bytes);
        let copied =
            MutexGuard::unlocked(&mut line, || catch_unwind(AssertUnwindSafe(|| self.copy(view, compute))));
        line.pushing = false;
        if let Ok(Ok(download)) = copied {
            let number = line.pushed;
            line.pushed += 1;
            line.queue.push_back(Flying { number, bytes, download });
            // It ended meanwhile.
            let gone = line.cancelled.then(|| line.end());
            drop(line);
            drop(gone);
            self.changed.notify_all();
            return Ok(());
        }
        (line.out, line.out_bytes) = (line.out - 1, line.out_bytes - bytes);
        let number = line.pushed;
        drop(line);
        self.changed.notify_all();
        match copied {
            Ok(Err(error)) => Err(DrainError::Push(error)),
            Err(panic) => Err(DrainError::Panicked { number, stage: Stage::Copy, message: message(&*panic) }),
            Ok(Ok(_)) => Ok(()),
        }
    }

    /// Queues a copy behind all that the result's stream holds.
    fn copy(&self, view: DeviceView<'_, T, D>, compute: &Stream<D>) -> Result<Download<T, D>, Error> {
        if !planted(Bug::ResultUnwaited) {
            self.copy.wait_stream(compute)?;
        }
        view.to_pinned(&self.copy)
    }

    /// Gives the oldest result to a sink, if there is one of each and nobody waits for an earlier one. Whether there was.
    fn take_one(&self, line: &mut MutexGuard<'_, Line<'env, T, E, D>>) -> bool {
        let waits = line.arriving.is_some() && !planted(Bug::TurnIgnored);
        if waits || line.sinks.is_empty() || line.cancelled {
            return false;
        }
        let Some(Flying { number, bytes, download }) = line.queue.pop_front() else { return false };
        let Some(mut sink) = line.sinks.pop() else { return false };
        line.arriving = Some(number);
        let arrived = MutexGuard::unlocked(line, || {
            let data = download.wait()?;
            data.host_ready()?;
            Ok(data)
        });
        // Under the same lock as the end where it failed: nobody takes the next result in between.
        line.arriving = None;
        let taken = match arrived {
            Err(error) => Err(DrainError::Device { number, error }),
            Ok(data) => {
                if !line.sinks.is_empty() {
                    self.changed.notify_all();
                }
                MutexGuard::unlocked(line, || {
                    let data = data;
                    give(&mut sink, number, &data)
                })
            }
        };
        line.sinks.push(sink);
        (line.out, line.out_bytes) = (line.out - 1, line.out_bytes - bytes);
        match taken {
            Ok(bytes) => {
                line.stats.results += 1;
                line.stats.bytes += bytes;
            }
            Err(error) => {
                if line.failed_at.is_none_or(|earlier| number < earlier) {
                    (line.failed, line.failed_at) = (Some(error), Some(number));
                }
                let gone = line.end();
                MutexGuard::unlocked(line, || drop(gone));
            }
        }
        self.changed.notify_all();
        true
    }

    /// What a thread does.
    pub(crate) fn work(&self) {
        let mut line = self.line.lock();
        loop {
            if line.cancelled || (line.closed && line.queue.is_empty() && !line.pushing) {
                return;
            }
            if !self.take_one(&mut line) {
                self.changed.wait(&mut line);
            }
        }
    }

    /// Waits until the sink has taken all that was pushed, or the drain has ended.
    pub(crate) fn flush(&self) {
        let mut line = self.line.lock();
        while line.out > 0 && !line.cancelled {
            if !self.inline || !self.take_one(&mut line) {
                self.changed.wait(&mut line);
            }
        }
    }
    /// No more comes: the thread ends behind what there is, or at once.
    pub(crate) fn close(&self, at_once: bool) {
        let mut line = self.line.lock();
        line.closed = true;
        let gone = at_once.then(|| line.end());
        drop(line);
        self.changed.notify_all();
        drop(gone);
    }
    /// Why it ended early, and otherwise what it did.
    pub(crate) fn result(&self) -> Result<DrainStats, DrainError<E>> {
        let mut line = self.line.lock();
        match (line.failed.take(), line.failed_at) {
            (Some(error), _) => Err(error),
            (None, Some(number)) => Err(DrainError::Ended { number }),
            (None, None) => Ok(line.stats),
        }
    }
    pub(crate) fn stats(&self) -> DrainStats {
        self.line.lock().stats
    }
}

/// Calls the sink. The bytes that it took.
fn give<T: Pod, E, D: Driver>(
    sink: &mut Sink<'_, T, E>,
    number: u64,
    data: &PinnedArray<T, D>,
) -> Result<u64, DrainError<E>> {
    let elements = data.host_ready().map_err(|error| DrainError::Device { number, error })?;
    let drained = Drained { number, shape: data.shape(), elements };
    match catch_unwind(AssertUnwindSafe(|| sink(drained))) {
        Ok(Ok(())) => Ok(data.size_bytes()),
        Ok(Err(error)) => Err(DrainError::Sink { number, error }),
        Err(panic) => Err(DrainError::Panicked { number, stage: Stage::Sink, message: message(&*panic) }),
    }
}

impl<T: Pod, E, D: Driver> Line<'_, T, E, D> {
    /// What is queued, to be dropped without the lock.
    fn end(&mut self) -> VecDeque<Flying<T, D>> {
        self.cancelled = true;
        let gone = core::mem::take(&mut self.queue);
        self.out -= gone.len();
        self.out_bytes -= gone.iter().map(|result| result.bytes).sum::<u64>();
        gone
    }
}

/// How a drain is made: [`Drain::builder`].
pub struct DrainBuilder<'g, D: Driver> {
    gpu: &'g Allocator<D>,
    depth: usize,
    budget: u64,
    thread: bool,
}

impl<D: Driver> DrainBuilder<'_, D> {
    /// How many results are in copies or with the sink at most. At least 1; 3 by default.
    #[must_use]
    pub fn depth(self, results: usize) -> Self {
        DrainBuilder { depth: results.max(1), ..self }
    }
    /// How many pinned bytes are in copies or with the sink at most; a push that finds no room waits for the sink. By default only the depth limits it.
    #[must_use]
    pub fn budget(self, bytes: u64) -> Self {
        DrainBuilder { budget: bytes, ..self }
    }
    /// Whether the sink runs on a thread of its own, as by default. Without one it runs in the pushes that need room, and in [`Drain::flush`] and
    /// [`Drain::finish`]: then the same program makes the same driver calls in every run.
    #[must_use]
    pub fn thread(self, on: bool) -> Self {
        DrainBuilder { thread: on, ..self }
    }
    /// Starts a drain into a sink, which is called with each result in order. Its first error ends the drain.
    ///
    /// # Errors
    /// The copies' stream or the thread could not be made.
    pub fn start<T: Pod, E: Send + 'static>(
        self,
        sink: impl FnMut(Drained<'_, T>) -> Result<(), E> + Send + 'static,
    ) -> Result<Drain<T, E, D>, StartError> {
        let limits = (self.depth, self.budget, !self.thread);
        let flow = Arc::new(Flow::new(self.gpu, limits, vec![Box::new(sink)])?);
        let work = Arc::clone(&flow);
        let thread = self.thread.then(|| {
            std::thread::Builder::new().name("millpond-drain".to_owned()).spawn(move || work.work())
        });
        let thread =
            thread.transpose().map_err(|error| StartError::Threads { started: 0, asked: 1, error })?;
        Ok(Drain { flow, thread })
    }
}

impl<D: Driver> fmt::Debug for DrainBuilder<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrainBuilder(depth {}, budget {})", self.depth, self.budget)
    }
}

/// Results back to the host, in order, while the device goes on: the mirror of a [`Feeder`](crate::Feeder).
///
/// **Ordering.** A push queues the result's copy behind everything that its stream holds, on a stream of the drain's own: the result's stream does not wait. The array may be dropped at
/// once, and written again by the library's operations, which come behind the copy, on the device. Before a kernel of other code writes it again, call
/// [`DeviceArray::wait_on`](millpond::DeviceArray::wait_on).
///
/// **Its end.** [`Drain::finish`] waits until the sink has everything. A drop waits for the result that the sink has or is about to get, and drops what is behind it.
///
/// ```
/// # use millpond::{Allocator, Config, kernel, units::GIB};
/// # use millpond_sim::Sim;
/// use millpond_feed::Drain;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// # let work = gpu.stream()?;
/// let (to, losses) = std::sync::mpsc::channel();
/// let drain = Drain::builder(&gpu).start(move |loss| to.send(loss[0]))?;
/// let mut loss = gpu.zeros::<f32>(1, &work)?;
/// for step in 0..10 {
///     kernel::fill(&mut loss, step as f32, &work)?;           // behind the copy of the step before, on the device
///     drain.push(&loss, &work)?;                              // the host goes on
/// }
/// drain.finish()?;
/// assert_eq!(losses.iter().sum::<f32>(), 45.0);
/// # Ok(()) }
/// ```
pub struct Drain<T: Pod, E: Send + 'static, D: Driver> {
    flow: Arc<Flow<'static, T, E, D>>,
    thread: Option<JoinHandle<()>>,
}

/// Where a [`DrainBuilder`] comes from; the parameters of the drain itself follow from the sink.
impl<D: Driver> Drain<u8, core::convert::Infallible, D> {
    /// A drain for a device; nothing is made before it is started.
    pub fn builder(gpu: &Allocator<D>) -> DrainBuilder<'_, D> {
        DrainBuilder { gpu, depth: 3, budget: u64::MAX, thread: true }
    }
}

impl<T: Pod, E: Send + 'static, D: Driver> Drain<T, E, D> {
    /// Queues a copy of a result, behind everything that `compute` holds. Blocks the host only while there is no room.
    ///
    /// # Errors
    /// [`DrainError`]; with [`DrainError::TooLarge`] and [`DrainError::Push`] nothing was pushed and the drain goes on.
    pub fn push<'s>(
        &self,
        result: impl IntoView<'s, Item = T, Device = D>,
        compute: &Stream<D>,
    ) -> Result<(), DrainError<E>> {
        self.flow.push(result.into_view(), compute)
    }
    /// Waits until the sink has taken all that was pushed, or refused one.
    ///
    /// # Errors
    /// [`DrainError::Ended`].
    pub fn flush(&self) -> Result<(), DrainError<E>> {
        self.flow.flush();
        let ended = self.flow.line.lock().failed_at;
        ended.map_or(Ok(()), |number| Err(DrainError::Ended { number }))
    }
    /// Waits until the sink has taken all, and ends. What was done, or why it ended early.
    ///
    /// # Errors
    /// What ended it: [`DrainError`].
    pub fn finish(self) -> Result<DrainStats, DrainError<E>> {
        self.flow.flush();
        self.flow.result()
    }
    /// What it did so far.
    pub fn stats(&self) -> DrainStats {
        self.flow.stats()
    }
}

impl<T: Pod, E: Send + 'static, D: Driver> Drop for Drain<T, E, D> {
    fn drop(&mut self) {
        self.flow.close(true);
        if let Some(thread) = self.thread.take() {
            // The sink's panics are results already.
            let _ = thread.join();
        }
    }
}

impl<T: Pod, E: Send + 'static, D: Driver> fmt::Debug for Drain<T, E, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Drain({:?})", self.stats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::planting;
    use core::time::Duration;
    use millpond::Config;
    use millpond_sim::Sim;
    use std::sync::mpsc;

    /// Two results on their way to two sinks, which take what `sink` does with each.
    fn two_of_two<R>(
        sink: impl Fn(u64) -> Result<(), &'static str> + Sync,
        run: impl FnOnce(&Flow<'_, u32, &'static str, Sim>) -> R,
    ) -> R {
        let gpu = Allocator::new(Sim::new(1 << 30), Config::default()).expect("nothing fails here");
        let work = gpu.stream().expect("a stream");
        let sinks =
            (0..2).map(|_| -> Sink<'_, u32, _> { Box::new(|result| sink(result.number())) }).collect();
        let flow = Flow::new(&gpu, (2, u64::MAX, false), sinks).expect("it starts");
        let x = gpu.zeros::<u32>(8, &work).expect("there is memory");
        for _ in 0..2 {
            flow.push(x.view(), &work).expect("there is room");
        }
        run(&flow)
    }

    /// The first result's call ends after the second's has begun. The limit is for a failure only.
    #[test]
    fn several_sinks_run_at_once() {
        let (begun, second) = mpsc::channel();
        let second = Mutex::new(second);
        let sink = |number| match number {
            0 => second
                .lock()
                .recv_timeout(Duration::from_secs(50))
                .map_err(|_| "the second waits for the first"),
            _ => begun.send(()).map_err(|_| "nobody listens"),
        };
        planting(None, || {
            two_of_two(sink, |flow| {
                std::thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| flow.work());
                    }
                    flow.flush();
                    flow.close(true);
                });
                assert_eq!(flow.result().expect("both sinks took theirs").results, 2);
            });
        });
    }

    /// While an earlier copy may still fail no result behind it is begun: what is written when a run ends early is the beginning.
    #[test]
    fn nothing_is_begun_before_earlier_results_are_there() {
        let begun_early = || {
            two_of_two(
                |_| Ok(()),
                |flow| {
                    let mut line = flow.line.lock();
                    line.arriving = Some(0);
                    let early = flow.take_one(&mut line);
                    line.arriving = None;
                    assert!(flow.take_one(&mut line), "its turn");
                    early
                },
            )
        };
        assert!(!planting(None, begun_early));
        assert!(planting(Some(Bug::TurnIgnored), begun_early), "the planted bug is to be found");
    }
}
