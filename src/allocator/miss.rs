//! What happens when no cached chunk fits: the rungs of device memory, one a line.
//!
//! No lock is held over a driver call, and no thread holds two pool locks. A rung either serves, or makes progress, or is not
//! climbed again. `ladder` decides how often the ladder is climbed; the mechanics of the rungs are in `migrate`, `grow` and `trim`; this file
//! decides their order.
//!
//! ```text
//! latency                                      footprint
//! 1 poll, drain, drop kept values, look again  1 the same
//! 2 migrate what is complete or ordered        2 the same
//!   without queries, if as much is in flight     the same
//!   as was ever live: 4, own ranges
//! 3 grow within the limit (below a soft one)   3 grow within 1 % above the peak of live bytes
//!   small requests: large segments' space        the same
//! 4 migrate behind an inserted wait            4 the same
//! 5 move free handles, of windows              5 the same
//! 6 - (above a soft one)                       6 grow within the limit
//! 7 give idle memory back, grow again; of a    7 the same; segments only where a free waits for nothing
//!   group's other members too                    the same
//! 8 a bounded wait of the host, then again     8 the same
//! 9 the user's callback, then again            9 the same
//! 10 OutOfMemory                               10 the same
//! ```

use super::config::Policy;
use super::core::{Core, lost};
use super::ladder::{Climb, Rung, Rungs, Step, rung};
use super::pool::{Pool, PoolState};
use super::registry::QUESTIONS;
use crate::driver::Driver;
use crate::error::{Error, OutOfMemory};
use crate::heap::{Kind, Taken, Want};
use crate::laws;
use crate::order::{Completed, Pending};
use crate::sync::assert_unlocked;
use crate::trace::Event;
use core::cell::Cell;

crate::sync::per_thread! {
    /// Whether this thread is inside the callback. A miss there does not call it again, so that nested misses end.
    static IN_HOOK: Cell<bool> = Cell::new(false);
}

/// A request for device memory that climbs the ladder.
pub(crate) type Miss<'a, D> = Climb<'a, D, Pool<D>>;

impl<D: Driver> Core<D> {
    /// Serves a request that the pool could not.
    ///
    /// # Errors
    /// Out of memory with its facts, or the driver's refusal.
    #[cold]
    #[inline(never)]
    pub(crate) fn miss(&self, pool: &Pool<D>, want: Want, requested: u64) -> Result<Taken, Error> {
        assert_unlocked("a miss");
        let migrates = {
            let mut state = pool.lock();
            state.counters.misses += 1;
            state.counters.migrations_in
        };
        let own = Cell::new(0);
        let served = Miss::new(self, pool, (want, requested), (&self.in_transit, &own)).serve();
        if served.is_ok() && pool.lock().counters.migrations_in != migrates {
            // The receiver's live bytes now include another pool's memory, beside what is live in that pool.
            self.cut_peaks_when_due();
        }
        if served.is_err() && self.is_recording() {
            self.record(Event::OutOfMemory { requested, stream: pool.timeline.info.id });
        }
        served
    }

    /// Calls the user's callback, with no lock held, and returns whether to try again; `None` without a callback, or inside it. A panic in it
    /// passes through: nothing is held and nothing was taken.
    pub(crate) fn run_callback(&self, facts: impl FnOnce() -> OutOfMemory) -> Option<bool> {
        struct Inside;
        impl Drop for Inside {
            fn drop(&mut self) {
                IN_HOOK.with(|inside| inside.set(false));
            }
        }
        let hook = self.config.hook.clone()?;
        if IN_HOOK.with(|inside| inside.replace(true)) {
            return None;
        }
        let _inside = Inside;
        assert_unlocked("the out-of-memory callback");
        Some(hook(&facts()))
    }
}

impl<D: Driver> Rungs for Miss<'_, D> {
    const FAILS_AT_ONCE: bool = false;
    const IS_COUNTED: bool = true;

    /// Whether the request alone is above the limit or the device's memory. Bytes that an alignment may skip do not count: a free range may begin
    /// at a multiple, and then nothing is skipped.
    fn is_hopeless(&self) -> bool {
        let limit = self.core.backing.lock().limit.unwrap_or(u64::MAX).min(self.core.capacity);
        let group = self.core.seat().and_then(super::group::Seat::hard);
        self.want.len.bytes() > limit.min(group.unwrap_or(u64::MAX))
    }

    fn climb_once(&mut self, progress: &mut bool) -> Step {
        let reuse = self.core.config.reuse;
        let saves = self.core.config.policy == Policy::Footprint || self.core.has_soft_limit();
        self.refused_on.clear();
        rung!(self: Poll, self.poll_completed(progress));
        // Of a block on a handle of its own the addresses are its own too.
        let migrates = self.lies_alone().is_none();
        if migrates && self.has_sources() {
            rung!(self: Migrate, Step::Ok(self.migrate()));
        }
        if reuse.inserts_waits() && self.core.config.deterministic {
            rung!(self: MigrateWithWait, self.order_older_half());
        }
        rung!(self: Grow, self.grow(saves));
        // Not before: a stream that takes what another one's next request would hit makes two misses of two hits.
        if migrates && self.has_sources() && self.finds_idle(self.kinds(), self.want.len)? {
            // Counted where they serve: both were tried in this round.
            if let Some(taken) = self.again() {
                self.count(Rung::Poll, true);
                return Ok(Some(taken));
            }
            if let Some(taken) = self.migrate() {
                self.count(Rung::Migrate, true);
                return Ok(Some(taken));
            }
        }
        // Growth was refused: now the other kind's space serves small requests too.
        rung!(self: Poll, Step::Ok(self.search(true)));
        if migrates && self.want.kind == Kind::Small && self.has_sources() {
            rung!(self: Migrate, Step::Ok(self.migrate_across()));
        }
        if migrates && reuse.inserts_waits() {
            rung!(self: MigrateWithWait, self.migrate_with_wait());
        }
        if self.core.windows.is_some() {
            rung!(self: MoveHandles, self.move_handles());
        }
        if saves {
            rung!(self: Grow, self.grow(false));
        }
        // A plain free would wait for the whole device: only an explicit trim may. An unmap waits for nothing.
        if self.core.windows.is_some() || laws::request_may_trim(self.core.driver.free_waits_for_device()) {
            rung!(self: Trim, self.trim_and_grow());
        }
        if self.core.seat().is_some() {
            rung!(self: Trim, self.trim_members());
        }
        if !self.thorough {
            rung!(self: Wait, self.wait(progress));
        }
        Ok(None)
    }

    fn frees(&self) -> u64 {
        self.core.frees() + self.core.seat().map_or(0, super::group::Seat::given_up_by_others)
    }

    fn facts(&self) -> OutOfMemory {
        self.core.out_of_memory(
            Some(self.pool.timeline.info.id),
            self,
            self.core.holding(&self.want, self.pool),
        )
    }
}

impl<D: Driver> Miss<'_, D> {
    fn serve(&mut self) -> Result<Taken, Error> {
        if !self.core.registry.alive() {
            return Err(lost());
        }
        // Free ranges in small segments are cached for a large request too, though a hit does not look there; no driver call is needed.
        if self.want.kind == Kind::Large
            && self.pool.longest_hint(Kind::Small) >= self.want.len.0
            && !self.is_hopeless()
            && let Some(taken) = self.search(true)
        {
            self.count(Rung::Poll, true);
            return Ok(taken);
        }
        if self.only_large_space_serves()
            && let Some(taken) = self.search(true)
        {
            self.count(Rung::Poll, true);
            return Ok(taken);
        }
        // Due markers come before our own operation (O9).
        self.core.registry.run_maintenance(&self.core.driver);
        self.core.deferred_drops.run();
        self.climb()
    }

    /// Whether a small request is to take large segments' space without the climb that would come to the same each time: the policy or a soft limit refuses
    /// even the shortest growth, and no small range is free elsewhere, in flight anywhere or spare. On a recorded program (`seq2seq_lstm`) these were
    /// two of three requests under `footprint`.
    fn only_large_space_serves(&self) -> bool {
        let (core, pool, len) = (self.core, self.pool, self.want.len.0);
        let saves = core.config.policy == Policy::Footprint || core.has_soft_limit();
        let asks = saves && self.want.kind == Kind::Small && pool.longest_hint(Kind::Large) >= len;
        let Some(windows) = core.windows.as_ref().filter(|_| asks) else { return false };
        if self.lies_alone().is_some()
            || core.sources.others_may_have(Kind::Small, len, pool.number)
            || !pool.lock().in_flight.is_empty()
        {
            return false;
        }
        let shortest = {
            let windows = windows.lock();
            if windows.has_spares() { 0 } else { windows.unit().bytes() }
        };
        let max = self.slack(self.level());
        core.backing.lock().room(max) < shortest
    }

    /// Searches the own pool again. A large request may take small segments' space before the pool grows; a small one
    /// may not take large segments' space: a small segment costs 2 MiB once, while small pieces of large ones would send every
    /// later small request here too (93 % of them on the recorded token generation) and occupy large ranges forever.
    pub(crate) fn again(&mut self) -> Option<Taken> {
        self.search(self.want.kind == Kind::Large)
    }

    /// Searches again, in the other kind's space too if `across`.
    fn search(&mut self, across: bool) -> Option<Taken> {
        self.search_in(&mut self.pool.lock(), across)
    }

    /// The same, in a hold of the pool's lock in which something arrived: no other thread can take it first.
    pub(crate) fn search_in(&self, state: &mut PoolState, across: bool) -> Option<Taken> {
        if let Some(of) = self.lies_alone() {
            return self.take_alone(of, state);
        }
        let exact = self.core.config.exact_fit;
        let taken = match state.take(&self.want, self.requested, exact) {
            Some(t) => Some(t),
            None if exact => None,
            None if across => state.take_across(&self.want, self.requested),
            None => None,
        };
        let taken = taken.or_else(|| if exact { None } else { self.search_all(state, across) });
        if taken.is_none() {
            self.pool.tighten_longest(state);
        }
        taken
    }

    /// Before a request is out of memory, it looks at every free range, behind any number of near misses.
    fn search_all(&self, state: &mut PoolState, across: bool) -> Option<Taken> {
        let own = self.want.kind;
        let kinds = [own, own.other()].into_iter().take(if across { 2 } else { 1 });
        let mut kinds = kinds.filter(|_| self.thorough);
        let found =
            kinds.find_map(|kind| state.heap.find(&Want { kind, ..self.want }, usize::MAX, |_| true))?;
        state.take_brought(&self.want, self.requested, found.chunk)
    }

    /// The poll rung: learns what is complete, drains what is over.
    fn poll_completed(&mut self, progress: &mut bool) -> Step {
        if self.thorough {
            // A kept value may own memory of the device, or of this allocator.
            self.core.deferred_drops.sweep();
        }
        // What was freed meanwhile, or the other kind, may serve without a driver call.
        if let Some(taken) = self.again() {
            return Ok(Some(taken));
        }
        let (core, pool) = (self.core, self.pool);
        let queries_allowed = !core.config.deterministic;
        let mut any = false;
        let requested = if self.thorough {
            // Before a request is out of memory, it has queried everything there is, whatever it may wait for.
            core.registry.drain_to_end(&core.driver, queries_allowed, usize::MAX, || {
                any |= self.drain_all();
                self.pending(true)
            })
        } else {
            core.registry.drain_to_end(&core.driver, queries_allowed, QUESTIONS, || {
                any |= pool.drain();
                pool.lock().in_flight.oldest().collect()
            })
        };
        if let Err(e) = requested {
            self.one_refused(None, e)?;
        }
        // What came back has a new stamp, which another round has to learn is complete.
        *progress |= any && self.thorough;
        if any { Ok(self.again()) } else { Ok(None) }
    }

    /// The wait rung: gives the device time to finish, at most its [`Patience`](super::waiting::Patience) in all, where a request may wait for it at all
    /// ([`Waitable`](super::bounded::Waitable)); drains what is over in every pool, and drops values that were kept for it. Other
    /// pools' bytes count: one of them may be what the request needs, and so may be what a kept value owns.
    ///
    /// Each marker made is one more to wait for. So the stamps of what is free are waited for once, and again only when
    /// more became free since: ranges in flight came back, others freed something, or their transits ended. Otherwise
    /// every wait would look like progress, the ladder would be climbed in vain up to its bound, and the callback would never be
    /// called.
    fn wait(&mut self, progress: &mut bool) -> Step {
        let core = self.core;
        self.stamps_due |= self.others_freed();
        if self.patience.is_over() {
            return Ok(None);
        }
        // What is over already comes back first, also in pools on whose streams nothing allocates: nothing else drains them.
        // Its new stamps are older than the markers made next.
        *progress |= core.deferred_drops.drop_all_known();
        *progress |= self.drain_all();
        if let Err(e) = core.registry.mark_all(&core.driver) {
            self.refused(e)?;
        }
        if core::mem::replace(&mut self.stamps_due, false) {
            self.stamps = self.pending(true);
        }
        let in_flight = self.pending(false);
        let mut batch = [&in_flight[..], &self.stamps, &core.deferred_drops.oldest()].concat();
        {
            let seen = core.registry.seen();
            batch.retain(|&p| !seen.is_complete(p));
        }
        let pool = self.pool;
        let report_wait = |p: Pending| {
            pool.lock().counters.host_waits += 1;
            if core.is_recording() {
                let stream = core.registry.timeline(p.on).map(|l| l.info.id);
                core.record(Event::HostWait { stream });
            }
        };
        // The first that completes may serve; if it does not, twice as many are waited for the next time.
        let enough = self.enough;
        self.enough *= 2;
        let done = self.wait_for(batch, enough, report_wait, |p| covered_before(core, p))?;
        *progress |= done > 0;
        // Another thread may have waited for it and not have drained it yet.
        *progress |= {
            let seen = core.registry.seen();
            in_flight.into_iter().any(|p| seen.is_complete(p))
        };
        *progress |= core.deferred_drops.drop_all_known();
        *progress |= self.drain_all();
        if *progress { Ok(self.again()) } else { Ok(None) }
    }

    /// The uses that ranges in flight wait for next, in all pools; and the stamps of free ranges, if `stamps`. Sorted, each once.
    fn pending(&self, stamps: bool) -> Vec<Pending> {
        let mut pending = Vec::new();
        for pool in self.core.pool_list() {
            let state = pool.lock();
            pending.extend(state.in_flight.oldest());
            if stamps && state.heap.stats().free > 0 {
                let timeline = &pool.timeline;
                // If the stream cannot be marked on this thread, up to what its markers cover.
                let epoch = if timeline.is_named_only() { timeline.covered() } else { timeline.marked() };
                pending.push(Pending { on: timeline.id, epoch });
            }
        }
        pending.sort_unstable();
        pending.dedup();
        pending
    }

    /// Drains ranges in flight whose uses are over, in every pool; their new stamps are for the wait rung to wait for.
    fn drain_all(&mut self) -> bool {
        let mut any = false;
        for pool in self.core.pool_list() {
            any |= pool.drain();
        }
        self.stamps_due |= any;
        any
    }
}

/// An earlier use on the same stream, for a stream that cannot be marked now: what its published markers cover.
fn covered_before<D: Driver>(core: &Core<D>, pending: Pending) -> Option<Pending> {
    let before = Pending { on: pending.on, epoch: core.registry.timeline(pending.on)?.covered() };
    (before.epoch < pending.epoch && !core.registry.all_complete(&[before])).then_some(before)
}
