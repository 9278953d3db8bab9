//! The migrate and migrate-with-wait rungs: memory of another pool, or of the own pool in flight, moves to the pool that misses.
//!
//! Migration moves the range: it is cut from A and enters B, and from then on it is B's, stamps and all (law O5), a hit for
//! B. One pool lock is held at a time; between the two the range belongs to this thread alone. Ordering facts are checked before
//! the entry's stamp is loaded. Any failure puts the range back exactly as it was.

use super::bounded::Waits;
use super::config::Reuse;
use super::core::Core;
use super::entry::Range;
use super::in_transit::TransitGuard;
use super::ladder::Step;
use super::miss::Miss;
use super::pool::store::Store;
use super::pool::{Pool, PoolState, Watch};
use super::registry::{CLOSING, CONTEXT, QUESTIONS};
use super::sources::{Candidates, QUERIED};
use super::undo::Undo;
use crate::driver::Driver;
use crate::error::{DriverError, DriverErrorKind};
use crate::heap::{ChunkId, Cut, Kind, Taken, Want};
use crate::laws;
use crate::order::{Clock, Entry, Pending, PendingSet, is_ordered};
use crate::sync::{Arc, Ordering};
use crate::trace::Event;
use crate::units::{Epoch, Granules, SegmentId};
use core::cell::RefCell;
use hashbrown::HashSet;
use std::rc::Rc;

/// A migration takes at least this much, or the whole chunk if that is less, so that the next requests are hits.
const MIGRATE_LARGE: Granules = Granules((2 << 20) / 512);
const MIGRATE_SMALL: Granules = Granules((256 << 10) / 512);
/// How many free chunks of a pool are looked at.
const STEPS: usize = 64;

fn put_back_free<D: Driver>(core: &Core<D>, from: &Pool<D>, cut: &Cut) {
    let mut state = from.lock();
    from.extend(&mut state, &Range::from(cut), laws::returned_stamp(cut.stamp));
    state.counters.migrations_out -= 1;
    core.moving.fetch_sub(cut.len.bytes(), Ordering::Relaxed);
}

/// What the migrate-with-wait rung looks at in another pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LookAt {
    Free,
    InFlight,
    Both,
}

/// A range that is migrating to the pool that misses.
struct Migrating {
    range: Range,
    /// The uses that it waits for, the stamp of the pool it comes from last.
    pending: PendingSet,
}

impl<'a, D: Driver> Miss<'a, D> {
    /// The migrate rung: a free range of another pool that is complete, or that this stream is already ordered after.
    /// Small requests leave large segments alone as long as the pool may grow.
    pub(crate) fn migrate(&mut self) -> Option<Taken> {
        self.migrate_of(self.kinds())
    }

    /// Whose ranges a request takes from other pools before it grows.
    pub(super) fn kinds(&self) -> &'static [Kind] {
        if self.want.kind == Kind::Small { &Kind::ALL[..1] } else { &Kind::ALL }
    }

    /// The migrate rung, after growth was refused: a small request takes large segments' space too.
    pub(crate) fn migrate_across(&mut self) -> Option<Taken> {
        if self.want.kind == Kind::Small { self.migrate_of(&Kind::ALL[1..]) } else { None }
    }

    /// Whether any other pool may be a source. If pools keep what they reserved (`Reuse::Never`), only those whose streams are gone may: without
    /// them a program whose streams come and go would acquire ever more.
    pub(crate) fn has_sources(&self) -> bool {
        self.core.config.reuse != Reuse::Never || !self.core.gone.lock().is_empty()
    }

    fn migrate_of(&mut self, kinds: &[Kind]) -> Option<Taken> {
        // Our clock as it was before the search: what was ordered then still is.
        let clock = self.pool.timeline.clock();
        if self.core.config.reuse == Reuse::Never {
            let gone: Vec<u32> = self.core.gone.lock().iter().copied().collect();
            let (mut gone, mut questions) = (self.core.pools_numbered(gone), QUESTIONS);
            gone.retain(|from| self.may_have(from, kinds));
            return gone.iter().find_map(|from| self.migrate_from(from, kinds, &clock, &mut questions));
        }
        let Candidates { mut first, more, in_order, to_query } =
            self.core.sources.of(kinds, self.want.len.0, self.pool.timeline.id, &clock);
        // Each climb starts at other pools, because it does not query all of them.
        if first.len() > QUESTIONS {
            let from = self.core.turn.fetch_add(QUESTIONS, Ordering::Relaxed) % first.len();
            first.rotate_left(from);
        }
        let (core, mut questions, mut queries) = (self.core, QUESTIONS, QUERIED * kinds.len());
        let (thorough, len) = (self.thorough, self.want.len.0);
        let mut migrate = |number, questions: &mut usize| {
            self.migrate_from(&*core.pool_numbered(number)?, kinds, &clock, questions)
        };
        if let Some(taken) = first.into_iter().find_map(|number| migrate(number, &mut questions)) {
            return Some(taken);
        }
        for mut page in more {
            loop {
                let next = core.sources.next(&mut page);
                if next.is_empty() {
                    break;
                }
                if let Some(taken) = next.into_iter().find_map(|number| migrate(number, &mut questions)) {
                    return Some(taken);
                }
            }
        }
        let taken = in_order.into_iter().find_map(|number| migrate(number, &mut questions));
        let taken = taken.or_else(|| to_query.into_iter().find_map(|number| migrate(number, &mut queries)));
        // Another thread may have taken the notice that a pool that stands aside has progressed. Before a request is out of memory, it looks at all.
        let all = || if thorough { core.sources.all_of(len) } else { Vec::new() };
        taken.or_else(|| all().into_iter().find_map(|number| migrate(number, &mut queries)))
    }

    /// Migrates a range of this pool if one serves; the pool's timeline is queried while there are `questions`.
    fn migrate_from(
        &mut self,
        from: &Pool<D>,
        kinds: &[Kind],
        clock: &Clock,
        questions: &mut usize,
    ) -> Option<Taken> {
        if from.number == self.pool.number || !self.may_have(from, kinds) {
            return None;
        }
        self.learn_of(from, questions);
        let to = self.pool.timeline.id;
        let accept = |seen: &super::registry::Seen<'_, D>, epoch| {
            laws::may_migrate(is_ordered(to, clock, seen, Pending { on: from.timeline.id, epoch }))
        };
        let (cut, _transit) = self.cut_free(from, kinds, accept)?;
        let stamp = Pending { on: from.timeline.id, epoch: cut.stamp };
        let migrating = Migrating { range: Range::from(&cut), pending: smallvec::smallvec![stamp] };
        Some(self.admit(from, &migrating))
    }

    /// Which streams this pool's stream may be made to wait for.
    pub(super) fn waits(&self) -> Option<Waits<'a, D>> {
        let core = self.core;
        core.registry.waits(&core.driver, &self.pool.timeline, core.config.reuse)
    }

    /// The migrate-with-wait rung: a range that needs a wait, which is inserted on the device; the host does not wait. The own pool's ranges
    /// in flight come first: they stay in their pool.
    pub(crate) fn migrate_with_wait(&mut self) -> Step {
        let Some(waits) = self.waits() else { return Ok(None) };
        // What one range waits for may be impossible to wait for at the moment; another range, or another pool's memory, may do.
        while let Some((entry, _transit)) = self.take_in_flight(self.pool, &waits) {
            let step = self.own_in_flight(&entry)?;
            if step.is_some() {
                return Ok(step);
            }
        }
        for (from, look_at) in self.others() {
            // Ranges in flight of the pool of a stream that may not be waited for are left too: they end with its stamp.
            if !waits.may_wait_for(&from.timeline) {
                continue;
            }
            let free = look_at != LookAt::InFlight;
            let found = free.then(|| {
                self.cut_free(&from, &Kind::ALL, |_, epoch| {
                    !self.refused_on.contains(&from.timeline.id) && waits.is_orderable(&from.timeline, epoch)
                })
            });
            if let Some((cut, _transit)) = found.flatten() {
                let stamp = Pending { on: from.timeline.id, epoch: cut.stamp };
                let migrating = Migrating { range: Range::from(&cut), pending: smallvec::smallvec![stamp] };
                let core = self.core;
                let put_back = Undo::new(|| put_back_free(core, &from, &cut));
                if let Err(e) = self.wait_for_all(&migrating.pending) {
                    drop(put_back);
                    // Its stream cannot be marked now; another pool's memory may serve.
                    self.unordered(e)?;
                    continue;
                }
                put_back.forget();
                return Ok(Some(self.admit(&from, &migrating)));
            }
            while look_at != LookAt::Free
                && let Some((entry, _transit)) = self.take_in_flight(&from, &waits)
            {
                let step = self.in_flight_elsewhere(&from, entry)?;
                if step.is_some() {
                    return Ok(step);
                }
            }
        }
        Ok(None)
    }

    /// The migrate-with-wait rung before the grow rung, where events are not queried (`Config::deterministic`) and the own pool has as many bytes in flight as it ever had
    /// live: its stream waits on the device for the older half of them, which returns to the free state whole. Without this only a wait of the host
    /// would show that anything is complete, and a program that never makes one would grow by everything that other streams use.
    pub(crate) fn order_older_half(&mut self) -> Step {
        let Some(waits) = self.waits() else { return Ok(None) };
        loop {
            let ends = {
                let state = self.pool.lock();
                let (in_flight, peak) = (state.heap.stats().in_flight, state.allocated_peak());
                if !laws::cost::unqueried_is_crowded(in_flight, peak, state.left_in_flight) {
                    return Ok(None);
                }
                let orderable = |p: Pending| !self.refused_on.contains(&p.on) && waits.orderable(p);
                state.in_flight.ends_of_older_half(|entry| entry.uses.iter().all(|&p| orderable(p)))
            };
            let Err(e) = self.wait_for_all(&ends) else { break };
            // Timelines that were refused are passed over from here on, and what was ordered before stays ordered: the older half of the rest.
            self.unordered(e)?;
        }
        let mut state = self.pool.lock();
        let any = self.pool.drain_locked(&mut state);
        state.left_in_flight = state.heap.stats().in_flight;
        Ok(if any { self.search_in(&mut state, true) } else { None })
    }

    /// Every pool of the allocator except our own, and what to look at in it. If there are many, first some that have enough free memory, and only
    /// that; more of them as long as those turn out to have less than their bounds. Then all that may have enough, free or in flight,
    /// and no others: a program that grows to its live bytes and no further would otherwise pass thousands of pools that have nothing for each
    /// growth. Nothing is looked at twice, so a round costs each pool one look of a kind, whichever streams cannot be waited for.
    fn others(&self) -> impl Iterator<Item = (Arc<Pool<D>>, LookAt)> + use<'a, D> {
        let (core, own, len) = (self.core, self.pool.number, self.want.len.0);
        let many = core.pools.lock().len() > core.sources.few;
        let before = Rc::new(RefCell::new(HashSet::new()));
        let looked_at = Rc::clone(&before);
        let first = core::iter::from_fn(move || {
            let mut next = if many { core.sources.oldest_of(len) } else { Vec::new() };
            next.retain(|number| before.borrow_mut().insert(*number));
            (!next.is_empty()).then_some(next)
        });
        let first = first.flatten().filter_map(|number| core.pool_numbered(number));
        let all = core::iter::once_with(move || core.pools_with(Granules(len), usize::MAX)).flatten().map(
            move |pool| {
                let again = looked_at.borrow().contains(&pool.number);
                (pool, if again { LookAt::InFlight } else { LookAt::Both })
            },
        );
        first.map(|pool| (pool, LookAt::Free)).chain(all).filter(move |(pool, _)| pool.number != own)
    }

    /// Whether its bounds on the longest free ranges are high enough.
    fn may_have(&self, from: &Pool<D>, kinds: &[Kind]) -> bool {
        kinds.iter().any(|&kind| from.longest_hint(kind) >= self.want.len.0)
    }

    /// The length with which a range holds the request wherever it begins: an aligned one may have to skip the front.
    fn needed(&self) -> Granules {
        Granules(self.want.len.0.saturating_add(self.want.align.0.saturating_sub(1)))
    }

    /// How much of a range of `len` migrates: enough for the next requests too.
    fn portion(&self, len: Granules) -> Granules {
        let least = if self.want.kind == Kind::Small { MIGRATE_SMALL } else { MIGRATE_LARGE };
        self.needed().max(least).min(len)
    }

    /// Queries the published markers of a pool's stream, if a query is still allowed.
    fn learn_of(&mut self, from: &Pool<D>, questions: &mut usize) {
        if self.core.config.deterministic || *questions == 0 {
            return;
        }
        match self.core.registry.poll_completed(&self.core.driver, &from.timeline) {
            Ok(progressed) => *questions -= usize::from(progressed == Some(false)),
            // An error is not completion: the range is not accepted then, and the next rung meets the error.
            Err(e) => {
                *questions -= 1;
                // A lost context is reported by the next rung.
                let _ = self.one_refused(Some(from.timeline.id), e);
            }
        }
    }

    /// Cuts a free range out of another pool, if one fits and is accepted.
    fn cut_free(
        &self,
        from: &Pool<D>,
        kinds: &[Kind],
        accept: impl Fn(&super::registry::Seen<'_, D>, Epoch) -> bool,
    ) -> Option<(Cut, TransitGuard<'a>)> {
        if !self.may_have(from, kinds) {
            return None;
        }
        let mut guard = from.lock();
        let state = &mut *guard;
        state.watch.set(Watch::SEARCHED);
        let own = self.want.kind;
        let closed = state.closed;
        let kinds = [own, own.other()].into_iter().filter(|kind| kinds.contains(kind));
        let held = self.core.held();
        let unheld = |range: (SegmentId, Granules, Granules)| match &held {
            None => Some((range.1, range.2)),
            Some(held) => held.part_that_may_leave(range, self.needed()),
        };
        let found = {
            let seen = self.core.registry.seen();
            kinds.clone().find_map(|kind| {
                let (want, steps) = (Want { kind, ..self.want }, self.steps(state, kind));
                let may = |stamp| laws::may_take(accept(&seen, stamp), closed);
                state.heap.find_where(&want, steps, |stamp, range| may(stamp) && unheld(range).is_some())
            })
        };
        let part = found.and_then(|found| unheld((found.segment, found.offset, found.len)));
        drop(held);
        let Some(found) = found else {
            for kind in kinds {
                let steps = self.steps(state, kind);
                from.search_failed(state, kind, self.want.len, steps);
            }
            return None;
        };
        let (offset, len) = part?;
        let (offset, len) = self.portion_of(found.segment, offset, len)?;
        let cut = state.cut(found.chunk, offset, len);
        state.counters.migrations_out += 1;
        self.core.moving.fetch_add(cut.len.bytes(), Ordering::Relaxed);
        Some((cut, self.transit()))
    }

    /// Which part of a free range migrates. In a window a large request takes whole handles, so that none has bytes in two pools: it could serve neither
    /// as physical memory until both are free. `None` if no whole handles of it hold the request; before a request is out of memory, any part does.
    fn portion_of(
        &self,
        segment: SegmentId,
        offset: Granules,
        len: Granules,
    ) -> Option<(Granules, Granules)> {
        let any = (offset, self.portion(len));
        let Some(of) = self.core.windows.as_ref().filter(|_| self.want.kind == Kind::Large && !self.thorough)
        else {
            return Some(any);
        };
        let records = of.lock();
        if records.window(segment).is_none() {
            return Some(any);
        }
        let mut from = None;
        let ends = records.slots_in(segment, offset, len).map(|slot| {
            from = from.or((slot.offset >= offset).then_some(slot.offset.0));
            (from, slot.offset.0 + slot.len.0)
        });
        let holds = |(from, end): (Option<u32>, u32)| {
            let whole = from.filter(|&from| end <= offset.0 + len.0 && end - from >= any.1.0)?;
            Some((Granules(whole), Granules(end - whole)))
        };
        ends.map(holds).find_map(|part| part)
    }

    /// How many free ranges of a pool are looked at: all, before a request is out of memory.
    fn steps(&self, state: &PoolState, kind: Kind) -> usize {
        if self.thorough { usize::MAX } else { state.steps(kind, STEPS) }
    }

    /// The range enters our pool and serves the request, in one hold of the lock.
    fn admit(&mut self, from: &Pool<D>, migrating: &Migrating) -> Taken {
        let mut guard = self.pool.lock();
        let state = &mut *guard;
        let entered = self.pool.enter(state, &migrating.range, &migrating.pending);
        let Some(chunk) = entered else { panic!("closing: {:?} takes a migration while closed", self.pool) };
        let taken = state
            .take_brought(&self.want, self.requested, chunk)
            .expect("a migration holds at least the request");
        state.counters.migrations_in += 1;
        self.core.moving.fetch_sub(migrating.range.len.bytes(), Ordering::Relaxed);
        if self.core.is_recording() {
            self.core.record(Event::Migrate {
                addr: migrating.range.base.offset(migrating.range.offset),
                bytes: migrating.range.len.bytes(),
                from: from.timeline.info.id,
                to: self.pool.timeline.info.id,
            });
        }
        // Only now: others may take what is left of the range, and their events must follow the migration's.
        drop(guard);
        taken
    }

    /// Takes a range in flight out of a pool's index: no other thread can find it until it is put back. Ranges that
    /// streams still use which may not be waited for are left alone.
    fn take_in_flight(&self, from: &Pool<D>, waits: &Waits<'_, D>) -> Option<(Entry, TransitGuard<'a>)> {
        let mut guard = from.lock();
        let state = &mut *guard;
        let steps = if self.thorough { usize::MAX } else { STEPS };
        let heap = &state.heap;
        let at_home = from.number == self.pool.number;
        let held = if at_home { None } else { self.core.held() };
        let fits = |entry: &Entry| {
            let home = Pending { on: from.timeline.id, epoch: entry.home };
            let orderable = |p: Pending| !self.refused_on.contains(&p.on) && waits.orderable(p);
            let view = heap.view(ChunkId::from_index(entry.chunk), entry.generation);
            let range = (view.segment, view.offset, entry.len);
            self.want.fits_at(view.addr, entry.len)
                && held.as_ref().is_none_or(|held| held.may_leave(range))
                && entry.uses.iter().all(|&p| orderable(p))
                && (at_home || orderable(home))
        };
        // Of the ranges that are long enough, many may not hold an aligned request where they lie: then one that holds it anywhere.
        let found = state.in_flight.take_at_least(self.want.len, steps, fits);
        let mut again = || state.in_flight.take_at_least(self.needed(), steps, fits);
        let entry = found.or_else(|| if self.want.align > Granules(1) { again() } else { None });
        drop(held);
        if entry.is_none() {
            from.tighten_in_flight(state);
        }
        Some((entry?, self.transit()))
    }

    fn own_in_flight(&mut self, entry: &Entry) -> Step {
        let pool = self.pool;
        let put_back = Undo::new(|| pool.fly(&mut pool.lock(), entry.clone()));
        if !laws::serves_in_flight()
            && let Err(e) = self.wait_for_all(&entry.uses)
        {
            drop(put_back);
            return self.unordered(e);
        }
        put_back.forget();
        let mut guard = self.pool.lock();
        let state = &mut *guard;
        let mut all = entry.uses.clone();
        all.push(Pending { on: self.pool.timeline.id, epoch: entry.home });
        let stamp = self.pool.entry_stamp(state, &all).expect("an open pool admits what is ordered");
        let given = state.heap.give(ChunkId::from_index(entry.chunk), entry.generation, stamp);
        self.pool.publish_longest(state, given.kind, given.free_len);
        self.pool.entered(state, given.kind);
        let taken = self.search_in(state, true);
        // It may lie behind more near misses than a search looks at.
        let exact = self.core.config.exact_fit;
        Ok(taken.or_else(|| {
            if exact { None } else { state.take_brought(&self.want, self.requested, given.free) }
        }))
    }

    fn in_flight_elsewhere(&mut self, from: &Pool<D>, entry: Entry) -> Step {
        // All its uses and its home stamp: the home stream may have read it after the cross-stream use (Z29).
        let mut pending = entry.uses.clone();
        if let Some(epoch) = laws::home_of_migrated(entry.home) {
            pending.push(Pending { on: from.timeline.id, epoch });
        }
        let put_back = Undo::new(|| from.fly(&mut from.lock(), entry.clone()));
        if let Err(e) = self.wait_for_all(&pending) {
            drop(put_back);
            return self.unordered(e);
        }
        put_back.forget();
        let len = self.portion(entry.len);
        let cut = {
            let mut state = from.lock();
            let view = state.heap.view(ChunkId::from_index(entry.chunk), entry.generation);
            // It may be held since it was found.
            if self.core.held().is_some_and(|held| !held.may_leave((view.segment, view.offset, len))) {
                from.fly(&mut state, entry);
                return Ok(None);
            }
            let cut = state.cut(ChunkId::from_index(entry.chunk), view.offset, len);
            if len < entry.len && laws::rest_is_free() {
                state.heap.give(ChunkId::from_index(entry.chunk), entry.generation, entry.home);
            } else if len < entry.len {
                // The rest stays in flight under its old number, with all its uses.
                let rest = Granules(entry.len.0 - len.0);
                let mut rest = Entry { len: rest, ..entry };
                rest.uses.truncate(laws::rest_keeps());
                from.fly(&mut state, rest);
            }
            state.counters.migrations_out += 1;
            cut
        };
        self.core.moving.fetch_add(cut.len.bytes(), Ordering::Relaxed);
        let migrating = Migrating { range: Range::from(&cut), pending };
        Ok(Some(self.admit(from, &migrating)))
    }

    /// A wait could not be inserted, and the range was put back. If its stream cannot be marked on this thread, that is not a refusal of memory: the
    /// next rung is tried. If the stream captures, or is gone, that is reported if nothing else serves.
    pub(super) fn unordered(&mut self, error: DriverError) -> Step {
        if error.kind == DriverErrorKind::NotSupported {
            return Ok(None);
        }
        self.one_refused(self.refused_on.last().copied(), error)
    }

    /// Inserts the waits that are missing. On any failure the caller puts the range back; the waits that were made stay known.
    pub(super) fn wait_for_all(&mut self, pending: &[Pending]) -> Result<(), DriverError> {
        for &p in pending {
            let core = self.core;
            let ordered = core.registry.order_after(&core.driver, &self.pool.timeline, p, CLOSING);
            if ordered.is_err() {
                self.refused_on.push(p.on);
            }
            if ordered?.is_some() {
                if laws::waits::own_waits_count() {
                    core.registry.saw_edge(&self.pool.timeline, p.on);
                }
                self.pool.lock().counters.waits_inserted += 1;
                if core.is_recording() {
                    let on = core.registry.timeline(p.on).filter(|l| l.id != CONTEXT).map(|l| l.info.id);
                    core.record(Event::Wait { stream: self.pool.timeline.info.id, on });
                }
            }
        }
        debug_assert!(
            {
                let seen = self.core.registry.seen();
                let clock = self.pool.timeline.clock();
                pending.iter().all(|&p| is_ordered(self.pool.timeline.id, &clock, &seen, p))
            },
            "O1: a wait returned and the range is not ordered"
        );
        Ok(())
    }
}
