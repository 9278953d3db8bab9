//! Allocations that know which operations touched them: an operation waits for exactly what it conflicts with.
//!
//! The simple version: each allocation remembers the last writer and the readers since, as (stream, epoch). A read on
//! another stream waits for the writer; a write waits for the readers too; a read after a read waits for nothing. The
//! differences:
//!
//! 1. Accesses on the allocation's home stream are two numbers in the handle ([`Tracked`]), without a lock: arrays
//!    that live on one stream cost two atomic accesses an operation, and their free stays the plain one (law O2). Other
//!    streams' uses are kept in the pool (O6), so that a free needs nothing more.
//! 2. An operation on one stream is numbered by the stamp loaded behind it (O8), which costs no event: a marker is made when
//!    another stream has to wait. Such a late marker also covers what was queued on the stream in between. So copies record one
//!    right behind themselves ([`Mark::Each`]), and so does every operation on an allocation that lives on more than
//!    one stream ([`Mark::Shared`]).
//! 3. The earlier use of the same bytes on the home stream counts as a write before the first (O7).
//! 4. An operation that other code queues has no moment at which it could be numbered: its use is open (`open`) or borrowed (`borrowed`).
//!
//! Of several missing waits only the necessary ones are made (`waits`). This file does not know types,
//! extents (two parts of one allocation wait for each other), nor what an operation does.

#[cfg(feature = "cuda")]
pub(crate) mod borrowed;
mod notes;
pub(crate) mod open;
mod waits;

use super::allocation::{Allocation, Home};
use super::core::lost;
use super::deferred_drops::DeferredDrops;
use super::event::Event;
use super::external::External;
use super::pool::Pool;
#[cfg(feature = "cuda")]
pub(crate) use super::pool::state::Extension;
use super::registry::uses::{bound, conflicts, release_uses};
use super::registry::{Registry, StreamTimeline};
use super::stream::Stream;
use super::watch::Watchers;
use crate::driver::{Driver, DriverResult, QueuedBy};
use crate::error::Error;
use crate::heap::ChunkId;
use crate::laws;
use crate::order::{Access, Operation, Pending, PendingSet, Streams, TimelineId, Use, UseKind, Uses};
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Arc, Ordering};
use crate::units::{Addr, AllocationId, Epoch, StreamId};
use core::fmt;

/// An allocation that knows the operations on its data, so that an operation on another stream waits for those it conflicts with.
pub(crate) struct Tracked<D: Driver> {
    bytes: Bytes<D>,
    /// Notified of other streams' uses, and that the bytes are free after the free.
    watchers: Option<Box<Watchers>>,
    /// Stamps of the home stream's last write and last read; 0 if there is none, or if it no longer matters.
    home_written: AtomicU64,
    home_read: AtomicU64,
    /// Work on the home stream was declared that nothing stamps: it counts as everything that the stream holds whenever this is read.
    home_open: AtomicBool,
    /// How many reads and writes other code may be queueing on the home stream: they also count as everything that the stream holds.
    home_reading: AtomicU64,
    home_writing: AtomicU64,
    /// Whether the pool may hold uses by other streams.
    shared: AtomicBool,
}

/// An allocation and its watchers.
pub(crate) type Parts<D> = (Allocation<D>, Option<Box<Watchers>>);

/// Where the bytes come from.
enum Bytes<D: Driver> {
    Ours(Allocation<D>),
    Theirs(Box<External<D>>),
}

/// Where the uses by other streams are kept.
enum Holder<'a, D: Driver> {
    Pool(&'a Home<D>),
    External(&'a External<D>),
}

/// What an operation does to an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// Reads some of it.
    Read,
    /// Reads some of it, while nothing borrows any of it for writing: whatever was borrowed for writing was queued before.
    ReadWhole,
    /// May write some of it.
    Write,
    /// May write any of it, and nothing else touches it meanwhile: earlier uses no longer matter behind this one.
    WriteWhole,
}

impl Intent {
    pub(crate) fn access(self) -> Access {
        match self {
            Intent::Read | Intent::ReadWhole => Access::Read,
            Intent::Write | Intent::WriteWhole => Access::Write,
        }
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
    /// Always: another stream will wait for it, or it is a copy.
    Each,
    /// When one of its allocations lives on more than one stream.
    Shared,
}

/// An operation that was queued.
pub(crate) struct Queued<D: Driver> {
    /// The event right behind it, for [`Mark::Each`]. Whether it could be made or not, the operation is queued and recorded.
    pub(crate) event: Result<Option<Event<D>>, Error>,
}

impl<D: Driver> Tracked<D> {
    /// A fresh allocation.
    pub(crate) fn new(allocation: Allocation<D>) -> Tracked<D> {
        Tracked::of(Bytes::Ours(allocation))
    }
    fn of(bytes: Bytes<D>) -> Tracked<D> {
        Tracked {
            bytes,
            watchers: None,
            home_written: AtomicU64::new(0),
            home_read: AtomicU64::new(0),
            home_open: AtomicBool::new(false),
            home_reading: AtomicU64::new(0),
            home_writing: AtomicU64::new(0),
            shared: AtomicBool::new(false),
        }
    }

    /// An allocation that was used before: everything its home stream holds now counts as a write, and recorded uses count as what they are.
    pub(crate) fn with_past(allocation: Allocation<D>) -> Tracked<D> {
        let shared = allocation
            .home()
            .is_some_and(|home| home.pool.has_uses(home.taken.chunk(), home.taken.generation()));
        let tracked = Tracked::new(allocation);
        tracked.shared.store(shared, Ordering::Relaxed);
        tracked.written_by_now()
    }
    /// An allocation that was used before, with its watchers.
    pub(crate) fn watched(allocation: Allocation<D>, watchers: Watchers) -> Tracked<D> {
        let watchers = (!watchers.is_empty()).then(|| Box::new(watchers));
        Tracked { watchers, ..Tracked::with_past(allocation) }
    }
    /// External memory: everything that the stream it was imported on holds now counts as a write.
    pub(crate) fn external(memory: External<D>) -> Tracked<D> {
        Tracked::of(Bytes::Theirs(Box::new(memory))).written_by_now()
    }
    fn written_by_now(self) -> Tracked<D> {
        let stamp = self.holder().map_or(0, |k| k.home().stamp().0);
        self.home_written.store(stamp, Ordering::Relaxed);
        self
    }

    /// Gives up what is known of the data. The uses that the free has to respect stay, and the watchers are returned. External memory is returned unchanged.
    pub(crate) fn into_allocation(self) -> Result<Parts<D>, Tracked<D>> {
        match self.bytes {
            Bytes::Ours(allocation) => Ok((allocation, self.watchers)),
            Bytes::Theirs(_) => Err(self),
        }
    }
    /// Whether watchers are notified of its free.
    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.is_some()
    }

    /// The first byte.
    pub(crate) fn address(&self) -> Addr {
        match &self.bytes {
            Bytes::Ours(allocation) => allocation.address(),
            Bytes::Theirs(memory) => memory.addr,
        }
    }
    /// Its identity; `None` for zero bytes, and for external memory.
    pub(crate) fn id(&self) -> Option<AllocationId> {
        match &self.bytes {
            Bytes::Ours(allocation) => allocation.id(),
            Bytes::Theirs(_) => None,
        }
    }
    /// The home stream; `None` for zero bytes.
    pub(crate) fn stream_id(&self) -> Option<StreamId> {
        self.holder().map(|k| k.home().info.id)
    }
    /// The registry and the driver of its device; `None` for zero bytes.
    #[cfg(feature = "cuda")]
    pub(crate) fn device(&self) -> Option<(&Registry<D>, &D)> {
        self.holder().map(|holder| {
            let via = holder.via();
            (via.registry, via.driver)
        })
    }
    /// What another module keeps with the bytes, and their home stream's timeline; `None` for zero bytes.
    #[cfg(feature = "cuda")]
    pub(crate) fn extension(&self) -> Option<(&Extension, &StreamTimeline<D>)> {
        self.holder().map(|holder| (holder.extension(), holder.home()))
    }
    fn holder(&self) -> Option<Holder<'_, D>> {
        match &self.bytes {
            Bytes::Ours(allocation) => allocation.home().map(Holder::Pool),
            Bytes::Theirs(memory) => Some(Holder::External(memory)),
        }
    }

    /// Declares that an operation of other code on `stream`, queued by now or later, may write: as [`Allocation::record_use`]. Later
    /// operations of ours come after everything that the stream holds when they are queued.
    pub(crate) fn declare(&self, stream: &Stream<D>) -> Result<(), Error> {
        match &self.bytes {
            Bytes::Ours(allocation) => allocation.record_use(stream)?,
            Bytes::Theirs(memory) => memory.record_use(stream)?,
        }
        if self.is_home(stream.timeline()) {
            self.home_open.store(true, Ordering::Release);
        } else {
            self.shared.store(true, Ordering::Release);
        }
        self.note_used(stream.driver(), stream.id(), false);
        Ok(())
    }

    fn is_home(&self, timeline: &StreamTimeline<D>) -> bool {
        self.holder().is_none_or(|k| k.home().id == timeline.id)
    }
    fn lives_on_several(&self, with: &StreamTimeline<D>) -> bool {
        !self.is_home(with) || self.shared.load(Ordering::Acquire)
    }

    /// Whether the home stream may hold work without a number that conflicts with this access.
    fn is_open_at_home(&self, access: Access) -> bool {
        laws::after_open(self.home_open.load(Ordering::Acquire))
            || self.home_writing.load(Ordering::Acquire) > 0
            || (access == Access::Write && self.home_reading.load(Ordering::Acquire) > 0)
    }

    /// Joins into `into` what an access on `to` has to come after.
    fn conflicts(&self, to: TimelineId, access: Access, into: &mut PendingSet) {
        let Some(holder) = self.holder() else { return };
        let home = holder.home();
        if home.id != to {
            // First: an open use gets its number before it is closed.
            let open = self.is_open_at_home(access);
            let open = open.then(|| home.stamp());
            let written = laws::after_write(|| self.home_written.load(Ordering::Acquire));
            let read = laws::after_read(access == Access::Write, || self.home_read.load(Ordering::Acquire));
            join(
                into,
                Pending { on: home.id, epoch: Epoch(written.max(read)).max(open.unwrap_or_default()) },
            );
            // The data's uses first, the birth stamp last: one wait serves both.
            if let Some(birth) = laws::after_birth(holder.birth()) {
                join(into, birth);
            }
        }
        if laws::after_others(self.shared.load(Ordering::Acquire)) {
            join_all(into, holder.conflicts(to, access));
        }
    }

    /// Records that the operation is queued on `stream` and ends by `epoch`. A use by another stream may have been open until now.
    fn seal(&self, stream: &Stream<D>, intent: Intent, epoch: Epoch, open: Option<Operation>) {
        let Some(holder) = self.holder() else { return };
        let on = stream.timeline();
        if holder.home().id == on.id {
            let last = if intent.access() == Access::Read { &self.home_read } else { &self.home_written };
            // Another thread's operation (on another part, or also a read) may have been sealed in between.
            let _ = if mutant!(SealStores) {
                last.swap(epoch.0, Ordering::AcqRel)
            } else {
                last.fetch_max(epoch.0, Ordering::AcqRel)
            };
            if intent == Intent::WriteWhole {
                self.forget_home_reads();
                self.forget_shared();
            }
            // The free covers what the home stream did with an allocation. External memory has no such free.
            if D::JUDGES && self.id().is_none() {
                self.note_used(stream.driver(), stream.id(), true);
            }
            return;
        }
        self.shared.store(true, Ordering::Release);
        if laws::keeps_use() {
            let ended = holder.used(on.id, intent, epoch, open);
            release_uses(holder.via().registry, ended);
        }
        if laws::write_ends_home(intent == Intent::WriteWhole, intent == Intent::Write) {
            self.home_written.store(0, Ordering::Release);
            self.forget_home_reads();
        }
        self.note_used(stream.driver(), stream.id(), true);
    }

    /// All of it was written after every use: the home stream's reads, and uses there that were borrowed or left open by a forgotten guard,
    /// no longer matter.
    fn forget_home_reads(&self) {
        self.home_read.store(0, Ordering::Release);
        self.home_reading.store(0, Ordering::Release);
        self.home_writing.store(0, Ordering::Release);
    }

    /// Ends the uses at home of these accesses that were borrowed or left open by a forgotten guard: they get the number of what the home stream
    /// holds by now. What was declared there stays open. Nothing that would close these uses is alive.
    fn end_open_at_home(&self, is_over: impl Fn(Access) -> bool) {
        let Some(home) = self.holder().map(|holder| holder.home()) else { return };
        let halves = [
            (Access::Read, &self.home_reading, &self.home_read),
            (Access::Write, &self.home_writing, &self.home_written),
        ];
        for (access, open, last) in halves {
            let ends = || is_over(access) && laws::refused_ends_borrows();
            if open.load(Ordering::Acquire) > 0 && ends() {
                // The number first, then the end of the use.
                last.fetch_max(home.stamp().0, Ordering::AcqRel);
                open.store(0, Ordering::Release);
            }
        }
    }

    /// All of it was written after every use: uses by other streams no longer matter.
    fn forget_shared(&self) {
        let Some(holder) = self.holder().filter(|_| self.shared.load(Ordering::Acquire)) else { return };
        let (none, ended) = holder.forget_exact();
        release_uses(holder.via().registry, ended);
        if none {
            self.shared.store(false, Ordering::Release);
        }
    }
}

impl<D: Driver> fmt::Debug for Tracked<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bytes {
            Bytes::Ours(allocation) => allocation.fmt(f),
            Bytes::Theirs(memory) => memory.fmt(f),
        }
    }
}

/// From this number of pending uses on, sorting them is cheaper than searching for each.
const SORTED_FROM: usize = 32;

/// Adds a pending use to a set, which keeps the maximum of each stream. Epoch 0 is complete.
fn join(into: &mut PendingSet, pending: Pending) {
    match into.iter_mut().find(|p| p.on == pending.on) {
        _ if pending.epoch == Epoch::COMPLETE => {}
        Some(p) => p.epoch = p.epoch.max(pending.epoch),
        None => into.push(pending),
    }
}

/// Adds a set of pending uses to a set, which keeps the maximum of each stream: by a search for each if there are few, by one sort if there
/// are many, since each would be searched for among all others.
fn join_all(into: &mut PendingSet, set: PendingSet) {
    if into.len() + set.len() <= SORTED_FROM {
        set.into_iter().for_each(|pending| join(into, pending));
        return;
    }
    into.extend(set.into_iter().filter(|p| p.epoch != Epoch::COMPLETE));
    into.sort_unstable_by(|a, b| a.on.cmp(&b.on).then(b.epoch.cmp(&a.epoch)));
    into.dedup_by_key(|p| p.on);
}

/// What an operation does to the recorded uses, wherever they are kept.
impl<'a, D: Driver> Holder<'a, D> {
    fn home(&self) -> &'a StreamTimeline<D> {
        match self {
            Holder::Pool(home) => &home.pool.timeline,
            Holder::External(memory) => &memory.home,
        }
    }
    #[cfg(feature = "cuda")]
    fn extension(&self) -> &'a Extension {
        match self {
            Holder::Pool(home) => &home.pool.extension,
            Holder::External(memory) => &memory.extension,
        }
    }
    /// Fails for a stream of another device.
    fn check(&self, stream: &Stream<D>) -> Result<(), Error> {
        match self {
            Holder::Pool(home) => {
                let same = Arc::ptr_eq(home.registry(), stream.registry());
                home.check(stream.info().device, same)
            }
            Holder::External(memory) => memory.check(stream),
        }
    }
    /// The earlier use of the bytes on the home stream; external memory has none that is known here.
    fn birth(&self) -> Option<Pending> {
        match self {
            Holder::Pool(home) => Some(home.pool.birth(home.taken.chunk(), home.taken.generation())),
            Holder::External(_) => None,
        }
    }
    /// Which uses by other streams an access on `to` has to come after.
    fn conflicts(&self, to: TimelineId, access: Access) -> PendingSet {
        match self {
            Holder::Pool(home) => {
                home.pool.conflicts(home.taken.chunk(), home.taken.generation(), to, access)
            }
            Holder::External(memory) => conflicts(&memory.uses.lock(), &memory.registry, to, access),
        }
    }
    /// Gives a use by another stream its number, whether the use was open before or not. Returns the streams of the uses that are
    /// no longer open.
    fn used(&self, on: TimelineId, intent: Intent, epoch: Epoch, open: Option<Operation>) -> Streams {
        self.with_uses(|uses| used(uses, on, intent, epoch, open))
    }
    /// The home stream wrote all of it, after every use. Returns whether no use is left, and the streams of the uses
    /// that are no longer open.
    fn forget_exact(&self) -> (bool, Streams) {
        match self {
            Holder::Pool(home) => home.pool.forget_exact(home.taken.chunk(), home.taken.generation()),
            Holder::External(memory) => {
                let mut uses = memory.uses.lock();
                let ended = uses.forget_exact();
                (uses.is_empty(), ended)
            }
        }
    }
    /// The uses, wherever they are kept.
    fn with_uses<R>(&self, then: impl FnOnce(&mut Uses) -> R) -> R {
        match self {
            Holder::Pool(home) => home.pool.with_uses(home.taken.chunk(), home.taken.generation(), then),
            Holder::External(memory) => {
                let mut uses = memory.uses.lock();
                let result = then(&mut uses);
                bound(&mut uses, &memory.registry, &memory.driver);
                result
            }
        }
    }
    /// The registry, driver and deferred drops that operations on it use.
    fn via(&self) -> Via<'a, D> {
        match self {
            Holder::Pool(home) => {
                let core = &home.pool.core;
                Via { registry: &core.registry, driver: &core.driver, deferred_drops: &core.deferred_drops }
            }
            Holder::External(memory) => Via {
                registry: &memory.registry,
                driver: &memory.driver,
                deferred_drops: memory.deferred_drops(),
            },
        }
    }
}

/// A device's registry, driver and deferred drops.
struct Via<'a, D: Driver> {
    registry: &'a Registry<D>,
    driver: &'a D,
    deferred_drops: &'a DeferredDrops<D>,
}

impl<'a, D: Driver> Via<'a, D> {
    fn of(stream: &'a Stream<D>) -> Via<'a, D> {
        Via { registry: stream.registry(), driver: stream.driver(), deferred_drops: stream.deferred_drops() }
    }
}

fn used(uses: &mut Uses, on: TimelineId, intent: Intent, epoch: Epoch, open: Option<Operation>) -> Streams {
    let was_open = open.is_some_and(|operation| uses.close(operation));
    if laws::read_ends_uses(intent.access() == Access::Read) {
        drop(uses.forget_exact());
    }
    let mut ended = if intent == Intent::WriteWhole { uses.replace_exact(on, epoch) } else { Streams::new() };
    let own = laws::has_own_use(|| uses.iter().any(|u| u.on == on && u.access == intent.access()));
    if intent != Intent::WriteWhole && own {
        uses.exact(on, intent.access(), epoch);
    }
    if was_open {
        ended.push(on);
    }
    ended
}

impl<D: Driver> Pool<D> {
    /// Which uses by other streams an access on `to` has to come after.
    fn conflicts(&self, chunk: ChunkId, generation: u32, to: TimelineId, access: Access) -> PendingSet {
        self.lock().conflicts(&self.core.registry, (chunk, generation), (to, access))
    }

    /// Whether another stream's use of an allocation is recorded.
    fn has_uses(&self, chunk: ChunkId, generation: u32) -> bool {
        laws::after_past(self.lock().heap.view(chunk, generation).tag)
    }

    /// The uses of an allocation; an empty set is made if it has none.
    pub(super) fn with_uses<R>(
        &self,
        chunk: ChunkId,
        generation: u32,
        then: impl FnOnce(&mut Uses) -> R,
    ) -> R {
        self.lock().with_uses((&self.core.registry, &self.core.driver), (chunk, generation), then)
    }

    /// The home stream wrote all of it, after every use. Returns whether no use is left, and the streams of the uses
    /// that are no longer open.
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

/// Seals an operation's touches when it ends, also if it panicked: it may have been queued (O6).
struct Sealing<'a, D: Driver> {
    stream: &'a Stream<D>,
    touches: &'a [Touch<'a, D>],
    /// The marker right behind it; without one a stamp is loaded.
    marker: Option<Epoch>,
}

impl<D: Driver> Drop for Sealing<'_, D> {
    fn drop(&mut self) {
        let epoch = self.marker.unwrap_or_else(|| self.stream.timeline().stamp());
        pause_point!("stamped");
        let keeps = laws::keeps_panicked(std::thread::panicking);
        for touch in self.touches.iter().filter(|_| keeps) {
            touch.of.seal(self.stream, touch.intent, epoch, None);
        }
    }
}

/// Makes later work on a stream come, on the device, after everything that these touches conflict with.
///
/// # Errors
/// An allocation or a stream of another device; a capturing stream; a wait that could not be inserted.
pub(crate) fn order_behind<D: Driver>(
    stream: &Stream<D>,
    touches: &[Touch<'_, D>],
    by: QueuedBy,
) -> Result<(), Error> {
    for holder in touches.iter().filter_map(|t| t.of.holder()) {
        holder.check(stream)?;
    }
    stream.admit("operate")?;
    order_timeline_behind(&Via::of(stream), stream.timeline(), touches, by)
}

/// Makes later work on a stream of this device that does not capture come after everything that these touches conflict with:
/// [`order_behind`] without its checks.
fn order_timeline_behind<D: Driver>(
    via: &Via<'_, D>,
    timeline: &StreamTimeline<D>,
    touches: &[Touch<'_, D>],
    by: QueuedBy,
) -> Result<(), Error> {
    let pending = all_conflicts(via, timeline.id, touches)?;
    if !pending.is_empty()
        && let Err(e) = via.registry.order_after_all(via.driver, timeline, &pending)
    {
        end_what_is_over(touches);
        return Err(e.into());
    }
    for p in &pending {
        via.registry.saw_edge(timeline, p.on);
    }
    for Touch { of, .. } in touches.iter().filter(|t| !t.of.is_home(timeline)) {
        if let Some(holder) = of.holder() {
            via.registry.saw_edge(timeline, holder.home().id);
        }
        of.note_admitted(via.driver, timeline.info.id);
    }
    for Touch { of, intent } in touches {
        of.note_operation(via.driver, timeline.info.id, intent.access(), by);
    }
    Ok(())
}

/// A refused access changes only this. Uses that were borrowed before all of it was borrowed, or left open by a forgotten guard, were queued by
/// now, and get a number: every such use if all of it is borrowed exclusively, the writing ones if it is borrowed for reading. Otherwise a use
/// that cannot be marked would still be open at each later attempt, and no wait of the program for the device would ever cover it. What was
/// declared stays open: no borrow covers its work.
fn end_what_is_over<D: Driver>(touches: &[Touch<'_, D>]) {
    let is_over = |intent, access| match intent {
        Intent::WriteWhole => true,
        Intent::ReadWhole => access == Access::Write,
        Intent::Read | Intent::Write => false,
    };
    for &Touch { of, intent } in touches {
        of.end_open_at_home(|access| is_over(intent, access));
        if !of.shared.load(Ordering::Acquire) || !laws::refused_ends_borrows() {
            continue;
        }
        let Some(holder) = of.holder() else { continue };
        let registry = holder.via().registry;
        let is_over = |u: Use| u.kind != UseKind::Declared && is_over(intent, u.access);
        let now = |u: Use| is_over(u).then(|| registry.timeline(u.on).map(|timeline| timeline.stamp()));
        let ended = holder.with_uses(|uses| uses.end(true, |u| now(u).flatten()));
        release_uses(registry, ended);
    }
}

/// What operations with these touches on `to` have to come after. Runs pending maintenance first.
fn all_conflicts<D: Driver>(
    via: &Via<'_, D>,
    to: TimelineId,
    touches: &[Touch<'_, D>],
) -> Result<PendingSet, Error> {
    if !via.registry.alive() {
        return Err(lost());
    }
    via.registry.run_maintenance(via.driver);
    via.deferred_drops.run();
    let mut pending = PendingSet::new();
    for touch in touches {
        touch.of.conflicts(to, touch.intent.access(), &mut pending);
    }
    Ok(pending)
}

/// Queues an operation on a stream behind everything that its touches conflict with, and records them. The
/// operation queues its work on the native stream that it receives, and nothing else; the host does not wait.
///
/// # Errors
/// Those of [`order_behind`]; the operation's own error, which means that nothing was queued. Then nothing is recorded.
pub(crate) fn operate<D: Driver>(
    stream: &Stream<D>,
    touches: &[Touch<'_, D>],
    mark: Mark,
    operation: impl FnOnce(&D, &D::Stream) -> DriverResult<()>,
) -> Result<Queued<D>, Error> {
    order_behind(stream, touches, QueuedBy::Library)?;
    let timeline = stream.timeline();
    let wanted = mark == Mark::Each || touches.iter().any(|t| t.of.lives_on_several(timeline));
    let early = if mutant!(Z35) && wanted { Some(stream.mark()?) } else { None };
    let mut sealing = Sealing { stream, touches, marker: None };
    if let Err(e) = stream.registry().watch(operation(stream.driver(), stream.native())) {
        // The driver's contract says that nothing was queued: nothing is recorded.
        core::mem::forget(sealing);
        return Err(e.into());
    }
    let marker = match early {
        None if wanted => stream.mark().map(Some),
        early => Ok(early),
    };
    if let Ok(Some(marker)) = &marker {
        sealing.marker = Some(marker.number);
    }
    if marker.is_err() && !laws::keeps_unmarked() {
        core::mem::forget(sealing);
    } else {
        drop(sealing);
    }
    // Only `Mark::Each` promises an event: nothing waits for another marker through this operation.
    let event = marker.map(|marker| marker.filter(|_| mark == Mark::Each).map(|marker| stream.event(marker)));
    Ok(Queued { event })
}
