//! The pinned pool: page-locked host memory from the same heap, with completion instead of order.
//!
//! The CPU is not on a stream: whoever is handed pinned bytes may write them at once. So a freed range with recorded
//! uses comes back only when every use is complete in the host's view (law O4; Z14 is the bug of being content with
//! order), each waiting for its own stream: one slow stream keeps back what it uses and nothing else. There is one pool
//! for all streams. It does not know what is copied where.
//!
//! A miss learns what is complete, grows, waits, and asks the user's callback; like the ladder of device memory it fails
//! only after a round in which nothing was in anybody's hand and nothing was freed. It never unpins: that waits for the
//! whole device, so only an explicit trim does.
//!
//! Cached and write-combined memory never share a segment. The heap keeps two kinds of segment apart anyway, for small and
//! large requests on a device; there is no such distinction here, so its kinds stand for these two ([`segments_of`]).

use super::Live;
use super::access::bound;
use super::hands::Hands;
use super::miss::{CALLBACKS, ROUNDS};
use super::pinned::PinnedAllocation;
use super::pool::{Pieces, in_flight_held_back, longest_free, note_pending, release_open};
use super::registry::{QUESTIONS, Registry};
use super::shared::Core;
use super::trim::Trimmed;
use super::undo::Undo;
use super::waiting::{Patience, wait_for_some};
use crate::driver::{Driver, HostKind, Note, OwnedHost};
use crate::error::{DriverError, Error, Holder, OutOfMemory};
use crate::heap::{ChunkId, Heap, Kind, Taken, Want};
use crate::laws;
use crate::order::{Access, Completed, Entry, InFlight, Pending, PendingSet, TimelineId, Uses};
use crate::report::{Counters, Histogram, PoolReport};
use crate::sync::{Arc, Rank, Ranked, assert_unlocked};
use crate::time::process_time;
use crate::units::{AllocationId, Epoch, Granules, SegmentId};
use core::cell::Cell;
use hashbrown::HashMap;

/// Pinning costs 0.3 s a GiB and a call holds other threads' launches up, so few and large segments; the request
/// itself if it is larger, with no rounding to powers of two.
const SEGMENT: u64 = 64 << 20;
/// The unit that larger segments are rounded to.
const MULTIPLE: u64 = 2 << 20;
/// The CPU's timeline, which is none.
const NOBODY: TimelineId = TimelineId(u32::MAX);
/// The heap's kind of the segments that hold this kind of host memory.
const fn segments_of(kind: HostKind) -> Kind {
    match kind {
        HostKind::Cached => Kind::Large,
        HostKind::WriteCombined => Kind::Small,
    }
}
/// The reverse of [`segments_of`].
const fn memory_of(kind: Kind) -> HostKind {
    match kind {
        Kind::Large => HostKind::Cached,
        Kind::Small => HostKind::WriteCombined,
    }
}

/// An allocator's pinned memory.
pub(crate) struct HostPool<D: Driver> {
    number: u32,
    state: Ranked<HostState<D>>,
    /// Room claimed and not yet pinned, segments on their way back to the driver.
    hands: Hands,
}

struct HostState<D: Driver> {
    heap: Heap,
    in_flight: InFlight,
    uses: HashMap<u32, Uses>,
    segments: HashMap<SegmentId, OwnedHost<D>>,
    next: u32,
    taken: u64,
    taken_peak: u64,
    allocated_peak: u64,
    limit: Option<u64>,
    live: u64,
    orphan: bool,
    counters: Counters,
    sizes: Histogram,
}

impl<D: Driver> HostPool<D> {
    pub(crate) fn new(limit: Option<u64>) -> HostPool<D> {
        HostPool {
            number: super::shared::next_pool_number(),
            hands: Hands::default(),
            state: Ranked::new(
                Rank::Pool,
                HostState {
                    heap: Heap::new(),
                    in_flight: InFlight::new(),
                    uses: HashMap::new(),
                    segments: HashMap::new(),
                    next: 0,
                    taken: 0,
                    taken_peak: 0,
                    allocated_peak: 0,
                    limit,
                    live: 0,
                    orphan: false,
                    counters: Counters::default(),
                    sizes: Histogram::default(),
                },
            ),
        }
    }

    /// Adds what it remembers.
    pub(super) fn count(&self, to: &mut super::Bookkeeping) {
        let state = self.state.lock();
        let heap = state.heap.stats();
        to.uses += state.uses.values().map(|uses| uses.iter().count()).sum::<usize>();
        to.use_slots += state.uses.len();
        to.in_flight += state.in_flight.len();
        to.in_flight_uses += state.in_flight.uses().count();
        to.chunks += (heap.live + heap.free_chunks + heap.in_flight_chunks) as usize;
        to.segments += state.segments.len();
    }

    /// No owner is left: the last free gives back what is pinned.
    pub(crate) fn abandon(&self) {
        self.state.lock().orphan = true;
    }

    /// Whether no pinned allocation lives.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().live == 0
    }

    /// What is complete comes back.
    pub(crate) fn drain(&self, registry: &Registry<D>) {
        let mut state = self.state.lock();
        state.drain(&registry.seen());
    }

    /// Sets the peaks to the present values.
    pub(crate) fn reset_peaks(&self) {
        let mut state = self.state.lock();
        state.taken_peak = state.taken;
        state.allocated_peak = state.heap.stats().allocated;
    }

    /// The uses of what was freed and is not known to be complete.
    pub(crate) fn uses_in_flight(&self) -> Vec<Pending> {
        self.state.lock().in_flight.uses().collect()
    }

    /// Unpins everything; nothing refers to any of it.
    pub(crate) fn release_all(&self, driver: &D) {
        let segments: Vec<OwnedHost<D>> = {
            let mut state = self.state.lock();
            state.taken = 0;
            state.segments.drain().map(|(_, s)| s).collect()
        };
        assert_unlocked("pinned memory is given back");
        for segment in segments {
            if let Err((range, e)) = segment.release() {
                driver.unpin_failed(e);
                drop(range);
            }
        }
    }

    /// Every live allocation, by address.
    pub(crate) fn live(&self) -> Vec<Live> {
        let state = self.state.lock();
        let live = state.heap.allocated().into_iter().map(|(chunk, generation, view)| Live {
            id: self.id_of(chunk, generation),
            name: None,
            addr: view.addr,
            bytes: view.asked,
            stream: None,
        });
        live.collect()
    }

    /// Walks the heap.
    ///
    /// # Panics
    /// With the number of the invariant that is broken.
    pub(crate) fn check(&self) {
        let state = self.state.lock();
        state.heap.check();
        let stats = state.heap.stats();
        // What is claimed and not yet pinned, or on its way back, is counted as taken.
        assert!(stats.held <= state.taken, "H5: {} pinned bytes held, {} taken", stats.held, state.taken);
        assert_eq!(state.live, state.heap.live(), "H5: pinned allocations alive");
    }

    fn id_of(&self, chunk: ChunkId, generation: u32) -> AllocationId {
        AllocationId { pool: self.number, chunk: chunk.index(), generation }
    }

    /// The pinned part of a report, if there is anything to say.
    pub(crate) fn report(&self, registry: &Registry<D>, expects_captures: bool) -> Option<PoolReport> {
        let held_back = in_flight_held_back(self, registry, expects_captures);
        let largest_free = longest_free(self);
        let state = self.state.lock();
        if state.counters.allocations == 0 {
            return None;
        }
        let stats = state.heap.stats();
        Some(PoolReport {
            name: Some("pinned host memory".into()),
            held: stats.held,
            allocated: stats.allocated,
            asked: stats.asked,
            cached: stats.free,
            in_flight: stats.in_flight,
            held_back: held_back.min(stats.free + stats.in_flight),
            allocated_peak: state.allocated_peak,
            held_peak: state.taken_peak,
            live: state.live,
            free_chunks: stats.free_chunks,
            largest_free: largest_free.min(stats.free),
            in_flight_ranges: state.in_flight.len() as u64,
            counters: Counters { splits: stats.splits, merges: stats.merges, ..state.counters },
            sizes: state.sizes.clone(),
            ..PoolReport::default()
        })
    }

    /// For an error: the bytes of segments that are wholly free, and what is alive.
    fn facts(&self) -> (u64, Vec<Holder>) {
        let state = self.state.lock();
        let idle = state.heap.segments().filter(|s| s.free == s.len).map(|s| s.len.bytes()).sum();
        let stats = state.heap.stats();
        (idle, super::facts::largest([(None, (stats.live, stats.allocated))].into_iter().collect()))
    }

    /// Adds to the uses of an allocation that is alive.
    pub(crate) fn with_uses(
        &self,
        (registry, driver): (&Registry<D>, &D),
        id: AllocationId,
        of: impl FnOnce(&mut Uses),
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        // The heap panics if the generation is another's (H7).
        state.heap.view(ChunkId::from_index(id.chunk), id.generation);
        let uses = state.uses.entry(id.chunk).or_default();
        of(uses);
        bound(uses, registry, driver);
    }

    /// What an access of the CPU's has to be complete.
    pub(crate) fn conflicts(&self, registry: &Registry<D>, id: AllocationId, access: Access) -> PendingSet {
        let state = self.state.lock();
        let seen = registry.seen();
        let next = |on| seen.line(on).map_or(Epoch::COMPLETE, |line| line.stamp());
        state.uses.get(&id.chunk).map_or_else(PendingSet::new, |uses| uses.conflicts(NOBODY, access, next))
    }

    /// An allocation's bytes come back: at once if every use is complete, else when they are.
    pub(crate) fn free(&self, core: &Core<D>, id: AllocationId) {
        let (chunk, generation) = (ChunkId::from_index(id.chunk), id.generation);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let uses = state.uses.remove(&id.chunk).unwrap_or_default();
        let (pending, complete) = {
            let seen = core.registry.seen();
            let pending = uses.at_free(None, |on| seen.line(on).map_or(Epoch::COMPLETE, |line| line.stamp()));
            let complete = laws::pinned_is_free(pending.iter().all(|&p| seen.is_complete(p)));
            (pending, complete)
        };
        state.counters.frees += 1;
        state.live -= 1;
        if complete {
            state.heap.give(chunk, generation, Epoch::COMPLETE);
        } else {
            let len = state.heap.view(chunk, generation).len;
            state.heap.hold(chunk, generation, Epoch::COMPLETE);
            state.counters.in_flight_frees += 1;
            for p in &pending {
                note_pending(&core.registry, *p, len.bytes(), false);
            }
            state.in_flight.insert(Entry {
                chunk: chunk.index(),
                generation,
                len,
                uses: pending,
                home: Epoch::COMPLETE,
            });
            if state.in_flight.is_crowded() {
                state.drain(&core.registry.seen());
            }
        }
        let last = state.orphan && state.live == 0;
        drop(guard);
        release_open(&core.registry, &uses);
        if last {
            core.pinned_done();
        }
    }
}

impl<D: Driver> Pieces for HostPool<D> {
    fn hold<R>(&self, look: impl FnOnce(&Heap, &InFlight) -> R) -> R {
        let state = self.state.lock();
        let found = look(&state.heap, &state.in_flight);
        state.unlock_fair();
        found
    }
}

impl<D: Driver> HostState<D> {
    fn take(&mut self, want: &Want, asked: u64) -> Option<Taken> {
        let taken = self.heap.take(want, asked)?;
        self.live += 1;
        self.counters.allocations += 1;
        self.counters.bytes_served += asked;
        self.sizes.add(want.len);
        self.allocated_peak = self.allocated_peak.max(self.heap.stats().allocated);
        Some(taken)
    }

    /// Ranges all of whose uses are complete come back. Returns whether any did.
    fn drain(&mut self, seen: &impl Completed) -> bool {
        let done = self.in_flight.drain(|p| laws::pinned_use_is_over(seen.is_complete(p)));
        let any = !done.is_empty();
        for entry in done {
            self.heap.give(ChunkId::from_index(entry.chunk), entry.generation, Epoch::COMPLETE);
        }
        any
    }
}

/// Serves a request for pinned memory.
pub(crate) fn alloc<D: Driver>(
    core: &Arc<Core<D>>,
    bytes: u64,
    kind: HostKind,
) -> Result<PinnedAllocation<D>, Error> {
    if bytes == 0 {
        return Ok(PinnedAllocation::empty());
    }
    let Some(len) = Granules::holding(bytes) else {
        return Err(Error::TooLarge { asked: bytes, most: Granules::MAX.bytes() });
    };
    let want = Want { len, align: Granules(1), kind: segments_of(kind) };
    let taken = {
        let mut state = core.host.state.lock();
        let taken = state.take(&want, bytes);
        state.counters.hits += u64::from(taken.is_some());
        taken
    };
    let taken = match taken {
        Some(t) => t,
        None => miss(core, &want, bytes)?,
    };
    let id = core.host.id_of(taken.chunk, taken.generation);
    core.driver.note(Note::Allocated { id, addr: taken.addr, bytes, stream: None });
    Ok(PinnedAllocation::new(core, taken.addr, id, bytes))
}

#[cold]
fn miss<D: Driver>(core: &Core<D>, want: &Want, bytes: u64) -> Result<Taken, Error> {
    if !core.registry.alive() {
        return Err(super::shared::lost());
    }
    core.registry.serve(&core.driver);
    core.keeper.sweep();
    core.host.state.lock().counters.misses += 1;
    let hands = &core.host.hands;
    let own = Cell::new(0);
    let mut patience = Patience::new(core.config.wait);
    let mut refusal = None;
    let (mut callbacks, mut asked_user) = (0, false);
    // The round before found nothing: this one finds out whether that is the truth.
    let mut checking = false;
    let (start, whole) = (process_time(), patience.left());
    for round in 0.. {
        let (landed, before) = (hands.landed(), own.get());
        let frees = core.host.state.lock().counters.frees;
        // What cannot be asked is no completion; new memory may serve all the same.
        // Whoever is about to say that there is no memory has asked about all that there is, whoever may be waited for.
        let questions = if checking { usize::MAX } else { QUESTIONS };
        let unmarked = if checking { core.registry.mark_all(&core.driver).err() } else { None };
        let unasked = match fold(core, want, bytes, questions) {
            Ok(Some(t)) => return Ok(t),
            Ok(None) => unmarked,
            Err(e) if e.is_context_lost() => return Err(e.into()),
            Err(e) => Some(e),
        };
        match grow(core, want, bytes, &own)? {
            Ok(t) => return Ok(t),
            Err(again) => refusal = again.or(unasked),
        }
        let (served, mut progress) = wait(core, want, bytes, &mut patience)?;
        if let Some(t) = served {
            return Ok(t);
        }
        let own = own.get() - before;
        progress |= patience.spend(process_time, |left| hands.others_landed(landed, own, left));
        progress |= checking && core.host.state.lock().counters.frees != frees;
        // Who loses every race has to end too.
        progress &= round < ROUNDS || process_time().saturating_sub(start) < whole;
        let failing = refusal.as_ref().is_some_and(|e: &DriverError| !e.is_out_of_memory());
        checking = !checking && !progress && !failing;
        if (progress && !failing) || checking {
            continue;
        }
        if callbacks == CALLBACKS {
            break;
        }
        let answer = core.ask_user(|| facts(core, want, bytes, refusal.clone(), asked_user));
        asked_user |= answer.is_some();
        if answer != Some(true) {
            break;
        }
        callbacks += 1;
    }
    Err(match refusal {
        // A driver that refused for another reason than memory is told as it is.
        Some(e) if !e.is_out_of_memory() => e.into(),
        refusal => facts(core, want, bytes, refusal, asked_user).into(),
    })
}

fn facts<D: Driver>(
    core: &Core<D>,
    want: &Want,
    bytes: u64,
    driver: Option<DriverError>,
    asked_user: bool,
) -> OutOfMemory {
    let mut report = core.report();
    // The facts of an error about pinned memory are the pinned pool's.
    report.limit = core.host.state.lock().limit;
    // Before the first of it was handed out there is no report of it, and all is 0.
    let pinned = report.pinned.clone().unwrap_or_default();
    report.taken = pinned.held;
    report.total = pinned;
    let mut tried = vec!["fold", "grow", "wait"];
    if asked_user {
        tried.push("callback");
    }
    let (trim_would_free, holders) = core.host.facts();
    let (asked, rounded) = (bytes, want.len.bytes());
    OutOfMemory {
        asked,
        rounded,
        needed: want.bytes_anywhere(),
        aligned_on: Vec::new(),
        stream: None,
        tried,
        driver,
        passed_over: None,
        trim_would_free,
        holders,
        report,
    }
}

fn fold<D: Driver>(
    core: &Core<D>,
    want: &Want,
    bytes: u64,
    questions: usize,
) -> Result<Option<Taken>, DriverError> {
    let asked = core.registry.drain_to_end(&core.driver, !core.config.deterministic, questions, || {
        let mut state = core.host.state.lock();
        state.drain(&core.registry.seen());
        state.in_flight.oldest().collect()
    });
    // What was drained before somebody could not be asked serves all the same.
    let taken = core.host.state.lock().take(want, bytes);
    if taken.is_some() { Ok(taken) } else { asked.map(|()| None) }
}

/// The inner result says why there was no growth: the limit (`None`) or the driver.
fn grow<D: Driver>(
    core: &Core<D>,
    want: &Want,
    bytes: u64,
    own: &Cell<u64>,
) -> Result<Result<Taken, Option<DriverError>>, DriverError> {
    let rounded = want.len.bytes().div_ceil(MULTIPLE).saturating_mul(MULTIPLE);
    let mut sizes = vec![rounded.max(SEGMENT), rounded, want.len.bytes()];
    sizes.dedup();
    let mut refusal = None;
    for size in sizes {
        let Some(len) = Granules::exactly(size) else { continue };
        let _hand = {
            let mut state = core.host.state.lock();
            let room = state.limit.unwrap_or(u64::MAX).saturating_sub(state.taken);
            if size > room {
                continue;
            }
            state.taken += size;
            core.host.hands.take(own)
        };
        assert_unlocked("host memory is pinned");
        let kind = memory_of(want.kind);
        let unclaim = Undo::new(|| core.host.state.lock().taken -= size);
        let pinned = core.registry.watch(core.driver.relaxed(|| core.driver.pin(size, kind)));
        unclaim.forget();
        let mut state = core.host.state.lock();
        match pinned {
            Ok(range) => {
                let id = SegmentId(state.next);
                state.next += 1;
                state.taken_peak = state.taken_peak.max(state.taken);
                state.heap.add_segment(id, range.addr(), len, want.kind);
                state.heap.extend(id, Granules::ZERO, len, Epoch::COMPLETE);
                state.segments.insert(id, range);
                return Ok(Ok(state.take(want, bytes).expect("a new segment holds the request")));
            }
            Err(e) => {
                state.taken -= size;
                if e.is_context_lost() {
                    return Err(e);
                }
                refusal = Some(e);
            }
        }
    }
    Ok(Err(refusal))
}

/// Waits until something that was in flight fits, as long as there is patience; also whether anything came back.
fn wait<D: Driver>(
    core: &Core<D>,
    want: &Want,
    bytes: u64,
    patience: &mut Patience,
) -> Result<(Option<Taken>, bool), DriverError> {
    let (mut progress, mut enough) = (false, 1);
    loop {
        let mut waiting: Vec<Pending> = core.host.state.lock().in_flight.oldest().collect();
        let waitable = core.registry.waitable(&core.driver);
        waiting.retain(|&p| waitable.by_host(p));
        let told = |_| core.host.state.lock().counters.host_waits += 1;
        let device = (&*core.registry, &core.driver);
        let done = wait_for_some(device, waiting, enough, patience, told, |_, e| {
            // Nobody can wait for what a capturing stream holds; the others may be done.
            if e.is_of_one_stream() { Ok(None) } else { Err(e) }
        })?;
        let mut state = core.host.state.lock();
        let drained = state.drain(&core.registry.seen());
        progress |= drained;
        if drained && let Some(t) = state.take(want, bytes) {
            return Ok((Some(t), progress));
        }
        if done == 0 {
            return Ok((None, progress));
        }
        enough *= 2;
    }
}

/// Unpins segments all of whose bytes are free; they are complete by the pool's rule. The driver waits for the device.
pub(crate) fn trim<D: Driver>(core: &Core<D>) -> Result<Trimmed, DriverError> {
    let own = Cell::new(0);
    let mut trimmed = Trimmed::default();
    let mut idle = Vec::new();
    let _hand = {
        let mut state = core.host.state.lock();
        state.drain(&core.registry.seen());
        let wholly: Vec<(SegmentId, Granules, Kind)> =
            state.heap.segments().filter(|s| s.free == s.len).map(|s| (s.id, s.len, s.kind)).collect();
        for (id, len, kind) in wholly {
            state.heap.cut_free_of(id);
            state.heap.remove_segment(id);
            if let Some(range) = state.segments.remove(&id) {
                idle.push((len, kind, range));
            }
        }
        core.host.hands.take(&own)
    };
    assert_unlocked("host memory is unpinned");
    let mut failed = None;
    for (len, kind, range) in idle {
        match core.driver.relaxed(|| range.release()) {
            Ok(()) => {
                core.host.state.lock().taken -= len.bytes();
                trimmed.bytes += len.bytes();
                trimmed.segments += 1;
            }
            Err((range, e)) => {
                let mut state = core.host.state.lock();
                let id = SegmentId(state.next);
                state.next += 1;
                state.heap.add_segment(id, range.addr(), len, kind);
                state.heap.extend(id, Granules::ZERO, len, Epoch::COMPLETE);
                state.segments.insert(id, range);
                failed = Some(e);
            }
        }
    }
    match failed {
        Some(e) => core.registry.watch(Err(e)),
        None => Ok(trimmed),
    }
}
