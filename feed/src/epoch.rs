//! One pass over a source: batches are pulled, filled by several threads, queued and delivered, all in the source's order.
//!
//! What a thread does again and again ([`Epoch::turn`]):
//!
//! 1. waits until fewer batches than the depth are ahead and nobody else has the turn;
//! 2. with the turn, asks the source for its next item and reserves slots for it: so slots are given out in the order of batches, and whoever
//!    waits for one waits for earlier batches only;
//! 3. without it, fills the item into its pinned slot, beside other threads;
//! 4. puts it into the line. The first whose turn it is to be queued queues all that follow without a gap, on its thread: so copies are
//!    queued in order, as soon as they can be, and no thread waits for another to be ready.
//!
//! With no threads [`Epoch::next`] takes those turns on its caller's thread: one if no batch is ready, and as many as there is depth for behind the batch
//! that it delivers.
//!
//! It does not know slots' memory, markers or the driver; no user code but a clock runs and no driver call is made under its lock; slots are
//! asked under it, and ask nothing back. A thread that is inside the source holds nothing
//! of the device, so nobody has to wait for a source that does not answer.

use crate::batch::{Batch, Layout, Slot};
use crate::error::{FeedError, Stage, message};
use crate::meter::{Meter, Track};
use crate::planted::{Bug, planted};
use crate::slots::{DeviceLease, NoSlot, Patience, PinnedLease, Slots};
use millpond::Stream;
use millpond::driver::Driver;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A source of batches.
pub(crate) type Source<'env, T, E> = Box<dyn Iterator<Item = Result<T, E>> + Send + 'env>;

/// A batch whose slots are reserved.
struct Reserved<D: Driver> {
    layout: Layout,
    bytes: usize,
    pinned: PinnedLease<D>,
    device: DeviceLease<D>,
}

/// A batch whose copy is queued.
pub(crate) struct Queued<D: Driver> {
    pub(crate) layout: Layout,
    pub(crate) bytes: usize,
    pub(crate) device: DeviceLease<D>,
}

/// Its place in the epoch, and what became of it.
pub(crate) type Outcome<E, D> = (u64, Result<Queued<D>, FeedError<E>>);

#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct Line<'env, T, E, D: Driver> {
    /// Not there while a thread is in it, and when it has ended.
    source: Option<Source<'env, T, E>>,
    /// A thread has the turn.
    turn: bool,
    /// The thread that is in the source.
    in_source: Option<usize>,
    /// An item that found no room, with no thread to wait for some.
    pulled: Option<(u64, T)>,
    /// How many the source gave, errors among them.
    given: u64,
    /// Those that are not delivered yet.
    ahead: usize,
    ended: bool,
    cancelled: bool,
    /// Filled, or failed, and not queued yet.
    filled: BTreeMap<u64, Result<Reserved<D>, FeedError<E>>>,
    /// A thread is queueing.
    queueing: bool,
    next_queued: u64,
    ready: VecDeque<Outcome<E, D>>,
}

/// What became of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// A batch went through.
    Done,
    /// There was nothing to do now.
    Idle,
    /// There is no room until a consumer drops a batch.
    Held,
    /// The epoch is over.
    Over,
}

pub(crate) struct Epoch<'env, T, E, D: Driver> {
    line: Mutex<Line<'env, T, E, D>>,
    /// Its `cancelled`; set with its lock held.
    is_over: AtomicBool,
    changed: Condvar,
    depth: usize,
    /// No threads: turns are taken by those who wait for a batch.
    inline: bool,
    meter: Arc<Meter>,
}

impl<'env, T: Batch, E: Send, D: Driver> Epoch<'env, T, E, D> {
    pub(crate) fn new(
        source: Source<'env, T, E>,
        depth: usize,
        inline: bool,
        meter: Arc<Meter>,
    ) -> Epoch<'env, T, E, D> {
        let line = Line {
            source: Some(source),
            turn: false,
            in_source: None,
            pulled: None,
            given: 0,
            ahead: 0,
            ended: false,
            cancelled: false,
            filled: BTreeMap::new(),
            queueing: false,
            next_queued: 0,
            ready: VecDeque::new(),
        };
        let (line, is_over) = (Mutex::new(line), AtomicBool::new(false));
        Epoch { line, is_over, changed: Condvar::new(), depth, inline, meter }
    }

    /// What a filler thread does.
    pub(crate) fn work(&self, slots: &Weak<Slots<D>>, thread: usize) {
        while self.turn(slots, thread, true) != Turn::Over {}
    }

    /// One batch, from the source into the line.
    fn turn(&self, slots: &Weak<Slots<D>>, thread: usize, wait: bool) -> Turn {
        let (batch, item) = match self.pull(thread, wait) {
            Ok(pulled) => pulled,
            Err(turn) => return turn,
        };
        // The turn goes on until the slots are reserved.
        let Some(slots) = slots.upgrade() else { return Turn::Over };
        let reserve = catch_unwind(AssertUnwindSafe(|| self.reserve(&slots, batch, &item, wait)));
        let reserved = match reserve {
            Ok(Ok(reserved)) => Ok(reserved),
            Ok(Err(NoReserve::Failed(error))) => Err(error),
            Ok(Err(NoReserve::Held)) => {
                self.end_turn(|line| line.pulled = Some((batch, item)));
                return Turn::Held;
            }
            Ok(Err(NoReserve::Cancelled)) => {
                self.end_turn(|_| ());
                return Turn::Over;
            }
            Err(panic) => Err(FeedError::Panicked { batch, stage: Stage::Fill, message: message(&*panic) }),
        };
        self.end_turn(|_| ());
        // Whatever happens, something is put into the batch's place: an item that was not filled is dropped here, by the program's code.
        let filled =
            catch_unwind(AssertUnwindSafe(|| reserved.and_then(|reserved| self.fill(batch, item, reserved))));
        let filled = filled.unwrap_or_else(|panic| {
            Err(FeedError::Panicked { batch, stage: Stage::Fill, message: message(&*panic) })
        });
        self.put(batch, filled);
        Turn::Done
    }

    fn end_turn(&self, with: impl FnOnce(&mut Line<'env, T, E, D>)) {
        let mut line = self.line.lock();
        line.turn = false;
        with(&mut line);
        drop(line);
        self.changed.notify_all();
    }

    /// The next item, and the turn with it; errors of the source go into the line.
    fn pull(&self, thread: usize, wait: bool) -> Result<(u64, T), Turn> {
        let mut line = self.line.lock();
        let mut source = loop {
            if line.cancelled {
                return Err(Turn::Over);
            }
            if !line.turn {
                if let Some(pulled) = line.pulled.take() {
                    line.turn = true;
                    return Ok(pulled);
                }
                if line.ended {
                    return Err(Turn::Over);
                }
                if line.ahead < self.depth
                    && let Some(source) = line.source.take()
                {
                    break source;
                }
            }
            if !wait {
                return Err(Turn::Idle);
            }
            self.changed.wait(&mut line);
        };
        line.turn = true;
        line.in_source = Some(thread);
        let batch = line.given;
        let began = self.meter.now();
        let asked = MutexGuard::unlocked(&mut line, || catch_unwind(AssertUnwindSafe(|| source.next())));
        line.in_source = None;
        if line.cancelled {
            line.turn = false;
            drop(line);
            // The source and what it gave run the program's code.
            drop((source, asked));
            return Err(Turn::Over);
        }
        self.meter.span(Track::Source, Some(batch), began);
        let (item, source) = match asked {
            Ok(None) => {
                (line.ended, line.turn) = (true, false);
                drop(line);
                drop(source);
                self.changed.notify_all();
                return Err(Turn::Over);
            }
            Ok(Some(Ok(item))) => (Ok(item), Some(source)),
            Ok(Some(Err(error))) => (Err(FeedError::Source { batch, error }), Some(source)),
            Err(panic) => {
                // What it is in now is not known: it is not asked again.
                line.ended = true;
                let dropped = || catch_unwind(AssertUnwindSafe(|| drop(source)));
                let _ = MutexGuard::unlocked(&mut line, dropped);
                (Err(FeedError::Panicked { batch, stage: Stage::Source, message: message(&*panic) }), None)
            }
        };
        (line.given, line.ahead, line.source) = (batch + 1, line.ahead + 1, source);
        match item {
            Ok(item) => Ok((batch, item)),
            Err(error) => {
                line.turn = false;
                drop(line);
                self.changed.notify_all();
                self.put(batch, Err(error));
                Err(Turn::Done)
            }
        }
    }

    /// Without the line's lock: slots look with theirs held.
    fn is_cancelled(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn reserve(
        &self,
        slots: &Arc<Slots<D>>,
        batch: u64,
        item: &T,
        wait: bool,
    ) -> Result<Reserved<D>, NoReserve<E>> {
        let too_large =
            |bytes| NoReserve::Failed(FeedError::TooLarge { batch, bytes, budget: slots.budget() });
        let layout = Layout::of(item);
        let bytes = layout.bytes().ok_or_else(|| too_large(u64::MAX))?;
        let patience = Patience { cancelled: &|| self.is_cancelled(), alone: !wait };
        match slots.reserve(bytes as u64, &patience) {
            Ok((pinned, device)) => Ok(Reserved { layout, bytes, pinned, device }),
            Err(NoSlot::Cancelled) => Err(NoReserve::Cancelled),
            Err(NoSlot::Held) => Err(NoReserve::Held),
            Err(NoSlot::TooLarge) => Err(too_large(bytes as u64)),
            Err(NoSlot::Device(error)) => Err(NoReserve::Failed(FeedError::Device { batch, error })),
        }
    }

    fn fill(&self, batch: u64, item: T, mut reserved: Reserved<D>) -> Result<Reserved<D>, FeedError<E>> {
        let began = self.meter.now();
        let Reserved { layout, bytes, pinned, .. } = &mut reserved;
        let memory = pinned.bytes(*bytes).map_err(|error| FeedError::Device { batch, error })?;
        let filled = catch_unwind(AssertUnwindSafe(|| item.fill(&mut Slot::new(memory, layout))));
        self.meter.span(Track::Fill, Some(batch), began);
        match filled {
            Ok(Ok(())) => Ok(reserved),
            Ok(Err(error)) => Err(FeedError::Fill { batch, error }),
            Err(panic) => Err(FeedError::Panicked { batch, stage: Stage::Fill, message: message(&*panic) }),
        }
    }

    /// A batch is filled, or failed: queues it and what follows it, if nothing before it is missing and nobody else is queueing.
    fn put(&self, batch: u64, filled: Result<Reserved<D>, FeedError<E>>) {
        let mut line = self.line.lock();
        line.filled.insert(batch, filled);
        if line.queueing {
            return;
        }
        line.queueing = true;
        while !line.cancelled {
            let next = line.next_queued;
            let (batch, filled) = if planted(Bug::Unordered) {
                let Some(first) = line.filled.pop_first() else { break };
                first
            } else {
                let Some(filled) = line.filled.remove(&next) else { break };
                (next, filled)
            };
            let queued = MutexGuard::unlocked(&mut line, || filled.and_then(|f| queue(batch, f)));
            line.next_queued = next + 1;
            line.ready.push_back((batch, queued));
            self.changed.notify_all();
        }
        line.queueing = false;
        if line.cancelled {
            let gone = line.take_all();
            drop(line);
            drop(gone);
        }
    }

    /// The next batch or error; `None` if there is none any more.
    pub(crate) fn next(
        &self,
        slots: &Arc<Slots<D>>,
        deadline: Option<Instant>,
        compute: &Stream<D>,
    ) -> Option<Outcome<E, D>> {
        let mut began = None;
        let mut line = self.line.lock();
        let (batch, outcome) = loop {
            if line.cancelled {
                return None;
            }
            if let Some(ready) = line.ready.pop_front() {
                line.ahead -= 1;
                break ready;
            }
            if line.ended && line.ahead == 0 {
                return None;
            }
            began = began.or_else(|| Some(self.meter.now()));
            if self.inline {
                match MutexGuard::unlocked(&mut line, || self.turn(&Arc::downgrade(slots), 0, false)) {
                    Turn::Held => {
                        let (held, held_bytes) = slots.held();
                        let batch = line.pulled.as_ref().map_or(line.given, |(batch, _)| *batch);
                        let budget = slots.budget();
                        return Some((batch, Err(FeedError::Held { held, held_bytes, budget })));
                    }
                    // Other consumers have what there is to do.
                    Turn::Idle | Turn::Over
                        if line.ready.is_empty()
                            && (line.turn || line.ahead >= self.depth || (line.ended && line.ahead > 0))
                            && !line.cancelled =>
                    {
                        self.changed.wait(&mut line);
                    }
                    _ => {}
                }
            } else if let Some(deadline) = deadline {
                let timed_out = self.changed.wait_until(&mut line, deadline).timed_out();
                let comes_to_an_end = line.cancelled || (line.ended && line.ahead == 0);
                if timed_out && line.ready.is_empty() && !comes_to_an_end {
                    let batch = line.given - line.ahead as u64;
                    drop(line);
                    let ((held, held_bytes), budget) = (slots.held(), slots.budget());
                    return Some((batch, Err(FeedError::TimedOut { batch, held, held_bytes, budget })));
                }
            } else {
                self.changed.wait(&mut line);
            }
        };
        drop(line);
        self.changed.notify_all();
        if let Some(began) = began {
            self.meter.span(Track::Starved, Some(batch), began);
            self.meter.count(|stats| stats.stalls += u64::from(batch > 0));
        }
        let outcome = outcome.and_then(|mut queued| match queued.device.deliver(compute) {
            Ok(()) => Ok(queued),
            Err(error) => {
                if !error.is_context_lost() {
                    // It is not lost: it comes with the next call.
                    let mut line = self.line.lock();
                    line.ahead += 1;
                    line.ready.push_front((batch, Ok(queued)));
                    drop(line);
                    self.changed.notify_all();
                }
                Err(FeedError::Device { batch, error })
            }
        });
        self.meter.count(|stats| match &outcome {
            Ok(queued) => {
                stats.batches += 1;
                stats.bytes += queued.bytes as u64;
            }
            Err(_) => stats.errors += 1,
        });
        if outcome.as_ref().is_err_and(FeedError::is_context_lost) {
            self.cancel();
        }
        if self.inline {
            // The batches behind it travel while it is used.
            while self.turn(&Arc::downgrade(slots), 0, false) == Turn::Done {}
        }
        Some((batch, outcome))
    }

    /// Ends it: what is ahead is dropped, and threads end at their next step. Which thread is inside the source, and does not end before that
    /// returns.
    pub(crate) fn cancel(&self) -> Option<usize> {
        let mut line = self.line.lock();
        line.cancelled = true;
        self.is_over.store(true, Ordering::Release);
        let (in_source, gone) = (line.in_source, line.take_all());
        drop(line);
        self.changed.notify_all();
        drop(gone);
        in_source
    }

    /// How many batches are filled, and not delivered.
    #[cfg(test)]
    pub(crate) fn filled(&self) -> usize {
        let line = self.line.lock();
        line.filled.len() + line.ready.len()
    }
}

/// Why no slots were reserved.
enum NoReserve<E> {
    Cancelled,
    Held,
    Failed(FeedError<E>),
}

/// All that a line has, to be dropped without its lock: it runs the program's code and makes driver calls.
type Gone<'env, T, E, D> = (
    Option<Source<'env, T, E>>,
    Option<(u64, T)>,
    BTreeMap<u64, Result<Reserved<D>, FeedError<E>>>,
    VecDeque<Outcome<E, D>>,
);

impl<'env, T, E, D: Driver> Line<'env, T, E, D> {
    fn take_all(&mut self) -> Gone<'env, T, E, D> {
        let Line { source, pulled, filled, ready, .. } = self;
        (source.take(), pulled.take(), core::mem::take(filled), core::mem::take(ready))
    }
}

/// Queues the copy of a filled batch.
fn queue<E, D: Driver>(batch: u64, filled: Reserved<D>) -> Result<Queued<D>, FeedError<E>> {
    let Reserved { layout, bytes, pinned, mut device } = filled;
    match catch_unwind(AssertUnwindSafe(|| device.fill_from(pinned, bytes, batch))) {
        Ok(Ok(())) => Ok(Queued { layout, bytes, device }),
        Ok(Err(error)) => Err(FeedError::Device { batch, error }),
        Err(panic) => Err(FeedError::Panicked { batch, stage: Stage::Copy, message: message(&*panic) }),
    }
}
