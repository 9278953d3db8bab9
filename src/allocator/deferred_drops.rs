//! Keeps values that the device still reads until it is done: sources of copies whose tokens were dropped early.
//!
//! A drop never waits for the device, so what a dropped token owned goes here with the numbers of what has to be complete, and
//! is dropped by a later call that may speak to the driver: the next operation, use that is recorded, array in external memory,
//! miss, trim or synchronise, of the device, a stream or an event. Values run their own destructors, so they are dropped with no
//! lock held, and in no drop of anything else. What cannot be proved complete is never dropped: it is forgotten. It does not know
//! what a value is.
//!
//! A value waits on one use at a time, by timeline and epoch; epochs of one timeline end in order. So an operation looks at the
//! oldest epoch of one timeline, the next one each time, and asks the device once; it asks again only when the answer
//! brought something. However many values are kept, a call pays for itself and for what it drops. What a synchronise, or the answer to
//! a program's own question, proved is looked at where it was proved, and nobody is asked. A request that is about to fail waits for
//! what values wait for, as for ranges in flight, and asks about all before it says that there is no memory: an owner may hold what the
//! request needs.

use super::event::Event;
use super::registry::Registry;
use super::undo::resume;
use crate::driver::Driver;
use crate::laws::{self, cost};
use crate::order::{Clock, Completed, Pending, PendingSet, TimelineId};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Arc, Mutex, Ordering, assert_unlocked};
use crate::units::Epoch;
use core::mem::ManuallyDrop;
use core::time::Duration;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a value is kept for.
pub(crate) enum Until<D: Driver> {
    /// An event is complete.
    Event(Event<D>),
    /// Sealed uses are, each of them.
    Uses(PendingSet),
}

/// Values in the device's use.
pub(crate) struct DeferredDrops<D: Driver> {
    pub(super) driver: D,
    pub(super) registry: Arc<Registry<D>>,
    /// Whether there is anything to look at.
    any: AtomicBool,
    kept: Mutex<Kept>,
    /// A deterministic allocator asks no event: it drops what it knows complete by its own waits.
    pub(super) asks: bool,
}

struct Kept {
    /// By the use that each waits on now.
    waiting: BTreeMap<TimelineId, BTreeMap<Epoch, Vec<Value>>>,
    /// The timeline that was looked at last.
    last: TimelineId,
    /// How many values have gone on to wait for their next use.
    went_on: u64,
    /// The most uses that any value had since there was none.
    max_uses: usize,
    /// The allocator and its streams are gone: nobody comes by any more.
    closed: bool,
}

/// A value and all it is kept for.
struct Value {
    uses: PendingSet,
    /// Of the device's memory, and none of ours, that it stands for.
    bytes: u64,
    held: Box<dyn Send>,
}

impl Kept {
    /// Files a value under its first use that is not complete; the value again if there is none.
    fn file(&mut self, value: Value, seen: &impl Completed) -> Option<Value> {
        let Some(next) = value.uses.iter().copied().find(|&p| !seen.is_complete(p)) else {
            return Some(value);
        };
        let max = if self.waiting.is_empty() { 0 } else { self.max_uses };
        self.max_uses = max.max(value.uses.len());
        self.waiting.entry(next.on).or_default().entry(next.epoch).or_default().push(value);
        None
    }

    /// Takes out what waited on this timeline and is over. What is left waits on: the oldest use.
    fn take_over(&mut self, on: TimelineId, seen: &impl Completed, over: &mut Vec<Value>) -> Option<Pending> {
        loop {
            let oldest = self.waiting.get_mut(&on)?.first_entry();
            let Some(oldest) = oldest else {
                self.waiting.remove(&on);
                return None;
            };
            let pending = Pending { on, epoch: *oldest.key() };
            if !seen.is_complete(pending) {
                return Some(pending);
            }
            for value in oldest.remove() {
                if laws::keeps_for_next_use() {
                    match self.file(value, seen) {
                        Some(value) => over.push(value),
                        None => self.went_on += 1,
                    }
                } else {
                    over.push(value);
                }
            }
        }
    }

    /// The timeline after the one that was looked at last, round and round.
    fn next(&mut self) -> Option<TimelineId> {
        let after = (core::ops::Bound::Excluded(self.last), core::ops::Bound::Unbounded);
        let next = self.waiting.range(after).next().or_else(|| self.waiting.first_key_value());
        self.last = *next?.0;
        Some(self.last)
    }

    fn take_all(&mut self) -> Vec<Value> {
        core::mem::take(&mut self.waiting).into_values().flat_map(BTreeMap::into_values).flatten().collect()
    }
}

impl<D: Driver> DeferredDrops<D> {
    pub(crate) fn new(driver: D, registry: Arc<Registry<D>>, asks: bool) -> DeferredDrops<D> {
        let kept =
            Kept { waiting: BTreeMap::new(), last: TimelineId(0), went_on: 0, max_uses: 0, closed: false };
        DeferredDrops { driver, registry, any: AtomicBool::new(false), kept: Mutex::new(kept), asks }
    }

    /// Keeps a value until then, which stands for so many bytes of the device's that are none of ours. Makes no driver call, unless the
    /// allocator is gone: then it waits.
    pub(crate) fn keep(&self, until: Until<D>, bytes: u64, value: Box<dyn Send>) {
        let uses = match until {
            Until::Event(event) => {
                smallvec::smallvec![Pending { on: event.timeline_id(), epoch: event.epoch() }]
            }
            Until::Uses(uses) => uses,
        };
        let value = Value { uses, bytes, held: value };
        let over = {
            let mut kept = self.kept.lock();
            if kept.closed {
                drop(kept);
                return self.let_go([value]);
            }
            let over =
                if laws::files_values() { kept.file(value, &self.registry.seen()) } else { Some(value) };
            self.any.store(cost::keeps_any(!kept.waiting.is_empty()), Ordering::Release);
            over
        };
        drop(over);
    }

    /// Drops some of what is complete: at most one question to the device that brings nothing.
    #[inline]
    pub(crate) fn run(&self) {
        if self.any.load(Ordering::Acquire) {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        let next = self.kept.lock().next();
        if let Some(on) = next {
            self.look_at(on);
        }
    }

    /// Drops what is known complete of this stream and of what the clock names. Nobody is asked: for whoever has just learnt it.
    #[inline]
    pub(crate) fn learnt(&self, on: TimelineId, clock: &Clock) {
        if self.any.load(Ordering::Acquire) {
            self.drop_known(core::iter::once(on).chain(clock.iter().map(|(on, _)| on)));
        }
    }

    /// Drops what is known complete, of every stream: whether there was any. Nobody is asked.
    pub(crate) fn drop_all_known(&self) -> bool {
        self.any.load(Ordering::Acquire) && {
            let all: Vec<TimelineId> = self.kept.lock().waiting.keys().copied().collect();
            self.drop_known(all)
        }
    }

    #[cold]
    fn drop_known(&self, of: impl IntoIterator<Item = TimelineId>) -> bool {
        assert_unlocked("kept values are looked at");
        let mut over = Vec::new();
        {
            let mut kept = self.kept.lock();
            let seen = self.registry.seen();
            for on in of {
                let _ = kept.take_over(on, &seen, &mut over);
            }
            self.any.store(!kept.waiting.is_empty(), Ordering::Release);
        }
        let any = !over.is_empty();
        drop(over);
        any
    }

    /// What the oldest values of each stream wait for.
    pub(super) fn oldest(&self) -> Vec<Pending> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let kept = self.kept.lock();
        let oldest = kept.waiting.iter().filter_map(|(&on, values)| {
            let (&epoch, _) = values.first_key_value()?;
            Some(Pending { on, epoch })
        });
        oldest.collect()
    }

    /// Bytes of the device's, and none of ours, that values stand for.
    pub(super) fn bytes(&self) -> u64 {
        let kept = self.kept.lock();
        let values = kept.waiting.values().flat_map(BTreeMap::values).flatten();
        values.fold(0, |sum, value| sum.saturating_add(value.bytes))
    }

    /// Drops all that is complete, of every stream. A value whose use is over may go on to wait on a stream that was looked at before it: then all are
    /// looked at again, as often as a value that is there has uses: not for as long as other threads have ever new values go on.
    pub(crate) fn sweep(&self) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut looks = self.kept.lock().max_uses;
        while looks > 0 && self.any.load(Ordering::Acquire) {
            let (all, went_on) = {
                let kept = self.kept.lock();
                (kept.waiting.keys().copied().collect::<Vec<_>>(), kept.went_on)
            };
            for on in all {
                self.look_at(on);
            }
            looks -= 1;
            if self.kept.lock().went_on == went_on {
                return;
            }
        }
    }

    /// Drops what waited on this timeline and is complete. Asks the device for the oldest use, and again while that brings
    /// something. Nothing is in hand meanwhile: who closes finds every value.
    fn look_at(&self, on: TimelineId) {
        assert_unlocked("kept values are looked at");
        loop {
            let mut over = Vec::new();
            let oldest = {
                let mut kept = self.kept.lock();
                let oldest = kept.take_over(on, &self.registry.seen(), &mut over);
                self.any.store(!kept.waiting.is_empty(), Ordering::Release);
                oldest
            };
            drop(over);
            pause_point!("a kept value is asked for");
            // An error is no completion (O4): whoever needs the stream meets it.
            let Some(oldest) = oldest.filter(|_| self.asks) else { return };
            match self.registry.ask(&self.driver, oldest) {
                Ok(true) => {}
                Err(_) if laws::error_ends_keeping() => drop(self.kept.lock().waiting.remove(&on)),
                _ => return,
            }
        }
    }

    /// The allocator's last owner goes: waits for everything kept and drops it.
    pub(crate) fn close(&self) {
        let all = {
            let mut kept = self.kept.lock();
            kept.closed = true;
            kept.take_all()
        };
        self.let_go(all);
    }

    /// Drops values behind what is waited for: each behind its own uses, and where one of these cannot be waited for, those that are left behind a wait for
    /// everything. Forgets what that does not tell of either. A lost context runs nothing any more, so that nothing uses a value.
    /// What panics, the driver or an owner's drop, leaves the others their turn, and is on its way again behind them.
    fn let_go(&self, values: impl IntoIterator<Item = Value>) {
        let (mut left, mut panicked) = (Vec::new(), None);
        let mut turn = |value: ManuallyDrop<Value>, left: &mut Vec<_>| {
            let done = catch_unwind(AssertUnwindSafe(|| {
                if self.is_over(&value.uses) {
                    drop(ManuallyDrop::into_inner(value).held);
                } else {
                    left.push(value);
                }
            }));
            // A driver call that panics is no completion either.
            if let Err(panic) = done {
                panicked.get_or_insert(panic);
            }
        };
        for value in values {
            turn(ManuallyDrop::new(value), &mut left);
        }
        if !left.is_empty() {
            match catch_unwind(AssertUnwindSafe(|| self.registry.prove_all(&self.driver))) {
                Ok(Err(e)) if !e.is_context_lost() => self.driver.drop_failed(e),
                Ok(_) => left.into_iter().for_each(|value| turn(value, &mut Vec::new())),
                Err(panic) => {
                    panicked.get_or_insert(panic);
                }
            }
        }
        resume(panicked);
    }

    /// Blocks the host until these are complete; whether nothing uses the value any more.
    fn is_over(&self, uses: &PendingSet) -> bool {
        uses.iter().all(|&p| {
            let waited = self.registry.wait_host(&self.driver, p, Duration::MAX);
            waited.map_or_else(|e| e.is_context_lost(), |_| true)
        })
    }

    /// How many values are kept.
    pub(super) fn len(&self) -> usize {
        self.kept.lock().waiting.values().flat_map(BTreeMap::values).map(Vec::len).sum()
    }
}
