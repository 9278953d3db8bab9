//! Keeps values that the device still reads until it is done: sources of copies whose tokens were dropped early.
//!
//! A drop never waits for the device, so what a dropped token owned comes here with the epochs that have to be complete, and
//! is dropped by a later call that may call the driver: the next operation, recorded use, array in external memory,
//! miss or trim, or a synchronisation of the device, a stream or an event. Values run their own destructors, so they are dropped with no
//! lock held, and never inside the drop of anything else. A value whose uses cannot be proved complete is never dropped: it is forgotten.
//! This file does not know what a value is.
//!
//! A value waits on one use at a time, by timeline and epoch; epochs of one timeline complete in order. So an operation looks at the
//! oldest epoch of one timeline, the next timeline each time, and makes one query; it makes another only if the answer
//! completed something. However many values are kept, a call pays for itself and for what it drops. What a synchronisation, or the answer
//! to a query by the program, proved complete is dropped where it was proved, without further queries. A request that is about to fail
//! waits for the uses that values wait for, as it does for those of ranges in flight, and queries all of them before it is out of memory:
//! a value may own what the request needs.

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

/// The condition on which a value is kept.
pub(crate) enum Until<D: Driver> {
    /// Until an event is complete.
    Event(Event<D>),
    /// Until each of these sealed uses is complete.
    Uses(PendingSet),
}

/// Values that the device still uses.
pub(crate) struct DeferredDrops<D: Driver> {
    pub(super) driver: D,
    pub(super) registry: Arc<Registry<D>>,
    /// Whether any value is kept.
    any: AtomicBool,
    kept: Mutex<Kept>,
    /// Whether events are queried. A deterministic allocator does not: it drops what its own waits proved complete.
    pub(super) queries: bool,
}

struct Kept {
    /// By the use that each value waits on now.
    waiting: BTreeMap<TimelineId, BTreeMap<Epoch, Vec<Value>>>,
    /// The timeline that was looked at last.
    last: TimelineId,
    /// How many times a value moved on to its next use.
    went_on: u64,
    /// The largest number of uses of any value since no value was kept.
    max_uses: usize,
    /// The allocator and its streams are gone: no later call will drop anything.
    closed: bool,
}

/// A value and all uses that it waits for.
struct Value {
    uses: PendingSet,
    /// Bytes of device memory, outside the allocator's own, that dropping it frees.
    bytes: u64,
    held: Box<dyn Send>,
}

impl Kept {
    /// Files a value under its first use that is not complete; returns the value if every use is.
    fn file(&mut self, value: Value, seen: &impl Completed) -> Option<Value> {
        let Some(next) = value.uses.iter().copied().find(|&p| !seen.is_complete(p)) else {
            return Some(value);
        };
        let max = if self.waiting.is_empty() { 0 } else { self.max_uses };
        self.max_uses = max.max(value.uses.len());
        self.waiting.entry(next.on).or_default().entry(next.epoch).or_default().push(value);
        None
    }

    /// Takes out values that waited on this timeline and have no incomplete use left. Returns the oldest use that values still wait on here.
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

    /// The timeline after the one that was looked at last, in a cycle.
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
    pub(crate) fn new(driver: D, registry: Arc<Registry<D>>, queries: bool) -> DeferredDrops<D> {
        let kept =
            Kept { waiting: BTreeMap::new(), last: TimelineId(0), went_on: 0, max_uses: 0, closed: false };
        DeferredDrops { driver, registry, any: AtomicBool::new(false), kept: Mutex::new(kept), queries }
    }

    /// Keeps a value until then; `bytes` of device memory, outside the allocator's own, are freed with it. Makes no driver call, unless the
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

    /// Drops some of what is complete: at most one query whose answer completes nothing.
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

    /// Drops what is known to be complete of this stream and of those that the clock names, without queries: for a caller that has just learnt it.
    #[inline]
    pub(crate) fn learnt(&self, on: TimelineId, clock: &Clock) {
        if self.any.load(Ordering::Acquire) {
            self.drop_known(core::iter::once(on).chain(clock.iter().map(|(on, _)| on)));
        }
    }

    /// Drops what is known to be complete, of every stream, without queries. Returns whether there was any.
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

    /// The oldest use of each stream that values wait for.
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

    /// Bytes of device memory, outside the allocator's own, that kept values free when dropped.
    pub(super) fn bytes(&self) -> u64 {
        let kept = self.kept.lock();
        let values = kept.waiting.values().flat_map(BTreeMap::values).flatten();
        values.fold(0, |sum, value| sum.saturating_add(value.bytes))
    }

    /// Drops everything that is complete, of every stream. A value whose use is complete may move on to a stream that was looked at before: then all
    /// streams are looked at again, at most as often as a kept value has uses. So it ends even if other threads' values keep moving on.
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

    /// Drops what waited on this timeline and is complete. Queries the oldest use, and again while the answers complete
    /// something. Holds no value outside the lock meanwhile: a closing thread finds every value.
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
            pause_point!("a kept value is queried");
            // An error is not completion (O4): the next call that needs the stream returns it.
            let Some(oldest) = oldest.filter(|_| self.queries) else { return };
            match self.registry.ask(&self.driver, oldest) {
                Ok(true) => {}
                Err(_) if laws::error_ends_keeping() => drop(self.kept.lock().waiting.remove(&on)),
                _ => return,
            }
        }
    }

    /// The allocator's last owner goes: waits for every kept value and drops it.
    pub(crate) fn close(&self) {
        let all = {
            let mut kept = self.kept.lock();
            kept.closed = true;
            kept.take_all()
        };
        self.let_go(all);
    }

    /// Drops values after waiting: each after its own uses, and those of which a use cannot be waited for after one wait for
    /// everything. Values that this wait does not prove unused either are forgotten. A lost context runs nothing, so nothing uses a value.
    /// A panic of the driver, or of a value's drop, does not keep the others from their turn, and resumes after them.
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
            // A driver call that panics is not completion either.
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

    /// Blocks the host until these are complete. Returns whether nothing uses the value any more.
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
