//! Live allocations that know who touched them: an operation waits for exactly what it has to come after.
//!
//! The simple version: each allocation remembers the last writer and the readers since, as (stream, epoch). A read on
//! another stream waits for the writer; a write waits for the readers too; a read after a read waits for nobody. Where it
//! departs from that:
//!
//! 1. What happened on the allocation's home stream are two numbers in the handle ([`Tracked`]), without a lock: arrays
//!    that live on one stream pay two atomic accesses an operation, and their free stays the plain one (law O2). Other
//!    streams' uses are in the pool's keeping (O6), so that a free needs nothing more.
//! 2. An operation on one stream is numbered by the stamp loaded behind it (O8), which costs no event: a marker is made when
//!    somebody has to wait. Such a late marker covers what the stream was given in between, too. So copies record one
//!    right behind themselves ([`Mark::Each`]), and so does every operation on an allocation that lives on more than
//!    one stream ([`Mark::Shared`]).
//! 3. The bytes' former life on the home stream counts as a write before the first (O7).
//! 4. An operation that somebody else queues has no moment that could be numbered: it is open (`open`), or lent (`lent`).
//!
//! Several missing waits become as few as possible: one marker's copy of its stream's clock may cover another. This file
//! does not know types, extents (two parts of one allocation wait for each other), nor what an operation does.

#[cfg(feature = "cuda")]
pub(crate) mod lent;
pub(crate) mod open;

use super::allocation::Allocation;
use super::pool::{Pool, release_uses};
use super::registry::{CONTEXT, Line, Registry};
use super::shared::{Core, lost};
use super::stream::{Event, Stream};
use crate::driver::{Driver, DriverResult, Note};
use crate::error::DriverErrorKind;
use crate::error::Error;
use crate::heap::ChunkId;
use crate::order::{Access, Marker, Operation, Pending, PendingSet, Streams, TimelineId, is_ordered};
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Arc, Ordering};
use crate::units::Epoch;
use core::fmt;
use smallvec::SmallVec;

/// An allocation that knows the operations on its data, so that one on another stream waits for what it must.
pub(crate) struct Tracked<D: Driver> {
    allocation: Allocation<D>,
    /// Stamps of the home stream's last write and last read; 0 for none, or none that still says anything.
    home_written: AtomicU64,
    home_read: AtomicU64,
    /// Work on the home stream was declared that nobody stamps: it holds whatever the stream holds when asked.
    home_open: AtomicBool,
    /// How many reads and writes somebody else may be queueing on the home stream: they hold what the stream holds, too.
    home_reading: AtomicU64,
    home_writing: AtomicU64,
    /// Other streams' uses may be in the pool's keeping.
    shared: AtomicBool,
}

/// What an operation does to an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// Reads some of it.
    Read,
    /// May write some of it.
    Write,
    /// May write any of it, and nothing else touches it meanwhile: earlier uses say nothing more behind this one.
    WriteWhole,
}

impl Intent {
    fn access(self) -> Access {
        if self == Intent::Read { Access::Read } else { Access::Write }
    }
}

/// One allocation's part in an operation.
#[derive(Clone)]
pub(crate) struct Touch<'a, D: Driver> {
    pub(crate) of: &'a Tracked<D>,
    pub(crate) intent: Intent,
}

impl<D: Driver> Copy for Touch<'_, D> {}

/// When an operation records a marker right behind itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// Always: somebody will wait for it, or it is a copy.
    Each,
    /// When one of its allocations lives on more than one stream.
    Shared,
}

/// An operation that was queued.
pub(crate) struct Queued<D: Driver> {
    /// The event right behind it, if one was to be made. The operation is queued and known either way.
    pub(crate) event: Result<Option<Event<D>>, Error>,
}

impl<D: Driver> Tracked<D> {
    /// A fresh allocation.
    pub(crate) fn new(allocation: Allocation<D>) -> Tracked<D> {
        Tracked {
            allocation,
            home_written: AtomicU64::new(0),
            home_read: AtomicU64::new(0),
            home_open: AtomicBool::new(false),
            home_reading: AtomicU64::new(0),
            home_writing: AtomicU64::new(0),
            shared: AtomicBool::new(false),
        }
    }

    /// An allocation with a past: what its home stream holds by now counts as a write, recorded uses as what they are.
    pub(crate) fn with_past(allocation: Allocation<D>) -> Tracked<D> {
        let stamp = allocation.home().map_or(0, |home| home.pool.line.stamp().0);
        let tracked = Tracked::new(allocation);
        tracked.home_written.store(stamp, Ordering::Relaxed);
        tracked.shared.store(true, Ordering::Relaxed);
        tracked
    }

    pub(crate) fn allocation(&self) -> &Allocation<D> {
        &self.allocation
    }
    /// Gives up what is known of the data; what the free has to respect stays.
    pub(crate) fn into_allocation(self) -> Allocation<D> {
        self.allocation
    }

    /// A foreign operation on `stream`, queued by now or later, may write: [`Allocation::record_use`], and later
    /// operations of ours come after whatever that stream holds when they are queued.
    pub(crate) fn declare(&self, stream: &Stream<D>) -> Result<(), Error> {
        self.allocation.record_use(stream)?;
        if self.is_home(stream.line()) {
            self.home_open.store(true, Ordering::Release);
        } else {
            self.shared.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn is_home(&self, line: &Line<D>) -> bool {
        self.allocation.home().is_none_or(|home| home.pool.line.id == line.id)
    }
    fn lives_on_several(&self, with: &Line<D>) -> bool {
        !self.is_home(with) || self.shared.load(Ordering::Acquire)
    }

    /// Whether work may be on the home stream that has no number yet and conflicts with this.
    fn is_open_at_home(&self, access: Access) -> bool {
        self.home_open.load(Ordering::Acquire)
            || self.home_writing.load(Ordering::Acquire) > 0
            || (access == Access::Write && self.home_reading.load(Ordering::Acquire) > 0)
    }

    /// What an access on `to` has to come after, joined into `into`.
    fn conflicts(&self, to: TimelineId, access: Access, into: &mut PendingSet) {
        let Some(home) = self.allocation.home() else { return };
        let pool = &home.pool;
        let here = pool.line.id == to;
        if !here {
            let written = self.home_written.load(Ordering::Acquire);
            let read = if access == Access::Write { self.home_read.load(Ordering::Acquire) } else { 0 };
            let open = self.is_open_at_home(access).then(|| pool.line.stamp());
            join(
                into,
                Pending { on: pool.line.id, epoch: Epoch(written.max(read)).max(open.unwrap_or_default()) },
            );
            // Data first, birth last: one wait serves both.
            join(into, pool.birth(home.chunk, home.generation));
        }
        if self.shared.load(Ordering::Acquire) {
            for pending in pool.conflicts(home.chunk, home.generation, to, access) {
                join(into, pending);
            }
        }
    }

    /// The operation is queued on `stream` and ends by `epoch`. Another stream's may have been open until now.
    fn seal(&self, stream: &Stream<D>, intent: Intent, epoch: Epoch, open: Option<Operation>) {
        let Some(home) = self.allocation.home() else { return };
        let (pool, on) = (&home.pool, stream.line());
        if pool.line.id == on.id {
            match intent {
                Intent::Read => self.home_read.fetch_max(epoch.0, Ordering::AcqRel),
                Intent::Write | Intent::WriteWhole => self.home_written.fetch_max(epoch.0, Ordering::AcqRel),
            };
            if intent == Intent::WriteWhole {
                self.forget_home_reads();
                self.forget_shared();
            }
            return;
        }
        self.shared.store(true, Ordering::Release);
        let ended = pool.used(home.chunk, home.generation, on.id, intent, epoch, open);
        release_uses(&pool.core.registry, ended);
        if intent == Intent::WriteWhole {
            self.home_written.store(0, Ordering::Release);
            self.forget_home_reads();
        }
        pool.core.driver.note(Note::Used { id: home.id(), stream: stream.id(), so_far: true });
    }

    /// The whole of it was written behind every use: the home stream's reads, and what was lent or forgotten open there,
    /// say nothing more.
    fn forget_home_reads(&self) {
        self.home_read.store(0, Ordering::Release);
        self.home_reading.store(0, Ordering::Release);
        self.home_writing.store(0, Ordering::Release);
    }

    /// The whole of it was written behind every use: other streams' say nothing more.
    fn forget_shared(&self) {
        let Some(home) = self.allocation.home().filter(|_| self.shared.load(Ordering::Acquire)) else {
            return;
        };
        let (none, ended) = home.pool.forget_exact(home.chunk, home.generation);
        release_uses(&home.pool.core.registry, ended);
        if none {
            self.shared.store(false, Ordering::Release);
        }
    }
}

impl<D: Driver> fmt::Debug for Tracked<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.allocation.fmt(f)
    }
}

/// Adds a pending use to a set, the maximum a stream. Epoch 0 is complete.
fn join(into: &mut PendingSet, pending: Pending) {
    match into.iter_mut().find(|p| p.on == pending.on) {
        _ if pending.epoch == Epoch::COMPLETE => {}
        Some(p) => p.epoch = p.epoch.max(pending.epoch),
        None => into.push(pending),
    }
}

impl<D: Driver> Pool<D> {
    /// What other streams' uses an access on `to` has to come after.
    fn conflicts(&self, chunk: ChunkId, generation: u32, to: TimelineId, access: Access) -> PendingSet {
        let mut state = self.lock();
        let state = &mut *state;
        match state.heap.view(chunk, generation).tag {
            0 => PendingSet::new(),
            tag => {
                let seen = self.core.registry.seen();
                let next = |on| seen.line(on).map_or(Epoch::COMPLETE, |line| line.stamp());
                state.uses.get_or_add(tag).1.conflicts(to, access, next)
            }
        }
    }

    /// Another stream's use has a number now, whether it was open before or not. Returns the streams of uses that are
    /// open no more.
    fn used(
        &self,
        chunk: ChunkId,
        generation: u32,
        on: TimelineId,
        intent: Intent,
        epoch: Epoch,
        open: Option<Operation>,
    ) -> Streams {
        let mut state = self.lock();
        let state = &mut *state;
        let tag = state.heap.view(chunk, generation).tag;
        let (tag, uses) = state.uses.get_or_add(tag);
        let was_open = open.is_some_and(|operation| uses.withdraw(operation));
        let mut ended = if intent == Intent::WriteWhole {
            uses.replace_exact(on, epoch)
        } else {
            uses.exact(on, intent.access(), epoch);
            Streams::new()
        };
        if was_open {
            ended.push(on);
        }
        state.heap.set_tag(chunk, tag);
        ended
    }

    /// The home stream wrote the whole of it, behind every use: whether there are none any more, and the streams of uses
    /// that are open no more.
    fn forget_exact(&self, chunk: ChunkId, generation: u32) -> (bool, Streams) {
        let mut state = self.lock();
        let state = &mut *state;
        let tag = state.heap.view(chunk, generation).tag;
        if tag == 0 {
            return (true, Streams::new());
        }
        let uses = state.uses.get_or_add(tag).1;
        let ended = uses.forget_exact();
        let none = uses.is_empty();
        if none {
            state.uses.take(tag);
            state.heap.set_tag(chunk, 0);
        }
        (none, ended)
    }
}

impl<D: Driver> Registry<D> {
    /// Orders later work on `to` after all of `pending`, with as few waits as their markers allow.
    fn order_after_all(&self, driver: &D, to: &Line<D>, pending: &[Pending]) -> DriverResult<()> {
        let clock = to.clock();
        let missing: PendingSet = {
            let seen = self.seen();
            pending.iter().copied().filter(|&p| !is_ordered(to.id, &clock, &seen, p)).collect()
        };
        match missing[..] {
            [] => return Ok(()),
            [one] if one.on != CONTEXT => return self.order_after(driver, to, one).map(drop),
            _ => {}
        }
        let mut markers = SmallVec::<[_; 2]>::new();
        for p in missing {
            if let Some(from) = self.line(p.on)
                && let Some(marker) = self.marker_or_wait(driver, &from, p)?
            {
                markers.push((p, marker));
            }
        }
        for (i, (p, marker)) in markers.iter().enumerate() {
            let covers =
                |(j, (_, other)): (usize, &(Pending, Marker<_>))| j != i && other.copy.get(p.on) >= p.epoch;
            if !markers.iter().enumerate().any(covers) {
                self.wait_for(driver, to, p.on, marker)?;
            }
        }
        Ok(())
    }

    /// The marker to wait for. `None`: complete, because the host waited where the driver has no context-wide markers.
    fn marker_or_wait(
        &self,
        driver: &D,
        from: &Line<D>,
        p: Pending,
    ) -> DriverResult<Option<Marker<Arc<D::Event>>>> {
        match self.marker_for(driver, from, p.epoch) {
            Err(e) if p.on == CONTEXT && e.kind == DriverErrorKind::NotSupported => {
                self.wait_host(driver, p, core::time::Duration::MAX).map(|_| None)
            }
            marker => marker,
        }
    }
}

/// Seals an operation's touches when it is over, also if it panicked: it may have been queued (O6).
struct Sealing<'a, D: Driver> {
    stream: &'a Stream<D>,
    touches: &'a [Touch<'a, D>],
    /// The marker right behind it; else a stamp is loaded.
    marker: Option<Epoch>,
}

impl<D: Driver> Drop for Sealing<'_, D> {
    fn drop(&mut self) {
        let epoch = self.marker.unwrap_or_else(|| self.stream.line().stamp());
        for touch in self.touches {
            touch.of.seal(self.stream, touch.intent, epoch, None);
        }
    }
}

/// Makes later work on a stream come after everything that these touches would have to, on the device.
///
/// # Errors
/// An allocation or a stream of another device; a capturing stream; a wait that could not be inserted.
pub(crate) fn order_behind<D: Driver>(stream: &Stream<D>, touches: &[Touch<'_, D>]) -> Result<(), Error> {
    for home in touches.iter().filter_map(|t| t.of.allocation.home()) {
        home.check(stream.info().device, Arc::ptr_eq(home.registry(), stream.registry()))?;
    }
    stream.refuse_capture()?;
    order_line_behind(&stream.pool().core, stream.line(), touches)
}

/// As [`order_behind`], for a stream of this device that does not capture.
fn order_line_behind<D: Driver>(
    core: &Core<D>,
    line: &Line<D>,
    touches: &[Touch<'_, D>],
) -> Result<(), Error> {
    let pending = conflicts(core, line.id, touches)?;
    if !pending.is_empty() {
        core.registry.order_after_all(&core.driver, line, &pending)?;
    }
    for home in touches.iter().filter_map(|t| t.of.allocation.home()).filter(|h| h.pool.line.id != line.id) {
        core.driver.note(Note::Admitted { id: home.id(), stream: line.info.id });
    }
    Ok(())
}

/// What operations with these touches on `to` have to come after. Errands are run first.
fn conflicts<D: Driver>(
    core: &Core<D>,
    to: TimelineId,
    touches: &[Touch<'_, D>],
) -> Result<PendingSet, Error> {
    if !core.registry.alive() {
        return Err(lost());
    }
    core.registry.serve(&core.driver);
    core.keeper.serve();
    let mut pending = PendingSet::new();
    for touch in touches {
        touch.of.conflicts(to, touch.intent.access(), &mut pending);
    }
    Ok(pending)
}

/// Queues an operation on a stream behind everything that its touches have to come after, and records them. The
/// operation queues its work on the native stream it is given, and nothing else; the host does not wait.
///
/// # Errors
/// As [`order_behind`]; the operation's own, which says that nothing was queued. Then nothing is recorded.
pub(crate) fn operate<D: Driver>(
    stream: &Stream<D>,
    touches: &[Touch<'_, D>],
    mark: Mark,
    operation: impl FnOnce(&D, &D::Stream) -> DriverResult<()>,
) -> Result<Queued<D>, Error> {
    order_behind(stream, touches)?;
    let line = stream.line();
    let wanted = mark == Mark::Each || touches.iter().any(|t| t.of.lives_on_several(line));
    let mut sealing = Sealing { stream, touches, marker: None };
    if let Err(e) = stream.registry().watch(operation(stream.driver(), stream.native())) {
        // Nothing was queued, says the driver's contract: withdrawn.
        core::mem::forget(sealing);
        return Err(e.into());
    }
    let event = if wanted { stream.record().map(Some) } else { Ok(None) };
    if let Ok(Some(event)) = &event {
        sealing.marker = Some(event.epoch());
    }
    drop(sealing);
    Ok(Queued { event })
}
