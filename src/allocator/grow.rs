//! The grow, move-handles and trim rungs: memory from the device, within the limit: what a request lacks in a window (`fill`), or a plain segment.
//!
//! The bytes are claimed under the limit, the driver is called with no lock held but the grower's turn, and the segment is committed *and* the
//! request taken from it in one hold of the pool's lock: otherwise another thread of the same stream could take what this one reserved, and
//! this one would grow again. Sizes are tried from the planned one down to the exact request, because it may fit under a
//! limit, or on a full device, where the planned one does not.

use super::backing::Backing;
use super::config::Policy;
use super::core::Core;
use super::entry::Range;
use super::fill::Fill;
use super::ladder::{Climb, Step};
use super::miss::Miss;
use super::plan::Means;
use super::pool::Pool;
use super::trim::{How, Trimmed};
use super::undo::Undo;
use crate::driver::{Driver, DriverErrorKind, DriverResult, OwnedRange};
use crate::error::Error;
use crate::heap::{Kind, Taken};
use crate::laws::{self, cost, price};
use crate::sync::assert_unlocked;
use crate::trace::Event;
use crate::units::Granules;

/// A pool that grows: where its segments come from, and how a segment enters it.
pub(crate) trait Grows<D: Driver>: Sized {
    /// A segment, owned.
    type Segment;
    /// The record of reserved memory, locked.
    fn backing<R>(&self, core: &Core<D>, of: impl FnOnce(&mut Backing<Self::Segment>) -> R) -> R;
    /// Acquires a segment from the device, or of the host's memory.
    ///
    /// # Errors
    /// The driver's.
    fn acquire(driver: &D, len: Granules, kind: Kind) -> DriverResult<Self::Segment>;
    /// A new segment enters the pool and serves the request, in one hold of the pool's lock.
    fn bring(request: &Climb<'_, D, Self>, segment: Self::Segment, len: Granules) -> Taken;
}

impl<D: Driver, P: Grows<D>> Climb<'_, D, P> {
    /// Grows by a segment of this length, if that fits below `max` and below the limit.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn grow_by(&self, len: Granules, max: u64) -> DriverResult<Option<Taken>> {
        let (core, pool) = (self.core, self.pool);
        // A claim is memory in transit: if the driver refuses it, others can claim it.
        let claimed = pool.backing(core, |backing| backing.claim(len, max).then(|| self.transit()));
        let Some(_transit) = claimed else { return Ok(None) };
        assert_unlocked("a segment is taken");
        let unclaim = Undo::new(|| pool.backing(core, |backing| backing.unclaim(len)));
        let segment =
            core.registry.watch(core.driver.relaxed(|| P::acquire(&core.driver, len, self.want.kind)));
        if segment.is_ok() || !cost::unclaims() {
            unclaim.forget();
        }
        segment.map(|segment| Some(P::bring(self, segment, len)))
    }
}

impl<D: Driver> Grows<D> for Pool<D> {
    type Segment = OwnedRange<D>;

    fn backing<R>(&self, core: &Core<D>, of: impl FnOnce(&mut Backing<OwnedRange<D>>) -> R) -> R {
        of(&mut core.backing.lock())
    }

    fn acquire(driver: &D, len: Granules, _: Kind) -> DriverResult<OwnedRange<D>> {
        driver.allocate(len.bytes())
    }

    fn bring(request: &Miss<'_, D>, segment: OwnedRange<D>, len: Granules) -> Taken {
        let (core, pool, base) = (request.core, request.pool, segment.addr());
        let segment = {
            let mut backing = core.backing.lock();
            let segment = backing.add(segment, len.bytes());
            core.report_crossings(&mut backing);
            segment
        };
        let kind = request.want.kind;
        let (unit, offset) = (Granules::ZERO, Granules::ZERO);
        let whole = Range { segment, base, segment_len: len, kind, unit, offset, len };
        let mut guard = pool.lock();
        let state = &mut *guard;
        // Fresh from the device: nothing is pending, stamp 0.
        let entered = pool.enter(state, &whole, &[]);
        let Some(chunk) = entered else { panic!("closing: {pool:?} grows while closed") };
        let taken = state.take_brought(&request.want, request.requested, chunk);
        let taken = taken.expect("a new segment holds the request");
        if core.is_recording() {
            // Before others can take from the segment and record events about it.
            core.record(Event::Grow { addr: base, bytes: len.bytes(), stream: pool.timeline.info.id });
        }
        drop(guard);
        core.cut_peaks_when_due();
        taken
    }
}

impl<D: Driver> Miss<'_, D> {
    /// Grows within the limit; with `slack`, only as far as the policy and the soft limits allow before it moves memory.
    pub(crate) fn grow(&mut self, slack: bool) -> Step {
        // One grower at a time; a thread that waited searches again, for what the other one reserved.
        let _turn = self.pool.grower.lock();
        if let Some(taken) = self.again() {
            return Ok(Some(taken));
        }
        let level = self.level();
        let max = if slack { self.slack(level) } else { u64::MAX };
        // Another rung's refusal says nothing about smaller sizes.
        let before = self.refusal.take();
        let taken = self.grow_within(max, level)?;
        self.refusal = self.refusal.take().or(before);
        Ok(taken)
    }

    /// The bytes that may be reserved before other pools' memory is waited for or moved: those of the soft limits; under `footprint` no more than 1 % above the
    /// highest live bytes, this request included, and more where time is scarce.
    pub(super) fn slack(&self, level: u32) -> u64 {
        let soft = self.core.soft_max();
        if self.core.config.policy == Policy::Latency {
            return soft;
        }
        let peak = self.core.peak_with(self.want.len.bytes());
        price::slack(level, peak, self.core.config.footprint.slack_millionths()).min(soft)
    }

    /// How scarce time is; above a soft limit memory comes first.
    pub(super) fn level(&self) -> u32 {
        if self.core.is_tight(self.want.len) { 0 } else { self.core.price_level() }
    }

    /// The move-handles rung: fills what the request lacks with handles that are free elsewhere, and grows by the rest.
    pub(crate) fn move_handles(&mut self) -> Step {
        let core = self.core;
        let Some(windows) = core.windows.as_ref().filter(|windows| windows.is_usable()) else {
            return Ok(None);
        };
        let _turn = self.pool.grower.lock();
        if let Some(taken) = self.again() {
            return Ok(Some(taken));
        }
        let full = match &self.refusal {
            // The device may give none though the limit allows it.
            Some(refusal) if refusal.is_out_of_memory() => true,
            Some(_) => return Ok(None),
            None => false,
        };
        self.learn_of_own()?;
        // A handle fills any hole, so that shorter ranges count too.
        let unit = windows.lock().unit();
        self.finds_idle(&Kind::ALL, unit)?;
        let level = self.level();
        let (first, last) = if full { (0, 0) } else { (self.slack(level), u64::MAX) };
        match self.fill(windows, Means { first, last, moves: true, level }) {
            Ok(Fill::Served(taken)) => Ok(Some(taken)),
            Ok(Fill::NoRoom | Fill::NoWindow) => Ok(None),
            Err(e) => self.refused(e),
        }
    }

    /// Learns how far the pool's own stream is: a handle whose uses are known to be complete leaves no old mapping behind. A stream that only hits
    /// and frees has made no marker that says so.
    ///
    /// # Errors
    /// That the context is lost. After any other error it is not known, and nothing else changes.
    fn learn_of_own(&self) -> Result<(), Error> {
        let (core, timeline) = (self.core, &self.pool.timeline);
        if core.config.deterministic {
            return Ok(());
        }
        let marked = core.registry.make_marker(&core.driver, timeline);
        let polled = marked.and_then(|_| core.registry.poll_completed(&core.driver, timeline));
        match polled {
            Err(e) if e.is_context_lost() => Err(Error::Driver(e)),
            _ => Ok(()),
        }
    }

    /// Grows up to `max` bytes: in windows where there are any, and where they cannot serve by a plain segment.
    fn grow_within(&mut self, max: u64, level: u32) -> Step {
        let core = self.core;
        // The driver chooses a segment's alignment: an aligned request may have to skip the front.
        let Some(needed) = Granules::exactly(self.want.bytes_anywhere()) else { return Ok(None) };
        let mut sizes = core.config.growth_sizes(needed, self.want.kind);
        if let Some(windows) = core.windows.as_ref().filter(|windows| windows.is_usable()) {
            match self.fill(windows, Means::new_up_to(max, level)) {
                Ok(Fill::Served(taken)) => return Ok(Some(taken)),
                // What is to be saved is not spent on a segment that others cannot use.
                Ok(Fill::NoRoom) if max < u64::MAX => return Ok(None),
                // Less than a unit of room may do; or no window can be had, for now or for good.
                Ok(Fill::NoRoom | Fill::NoWindow) => {}
                Err(e) if e.kind == DriverErrorKind::NotSupported => {}
                Err(e) => return self.refused(e),
            }
            if windows.is_usable() {
                // A rare segment beside the windows: as long as the request, because others look for windows.
                sizes.drain(..sizes.len().saturating_sub(1));
            }
        }
        for len in sizes {
            match self.grow_by(len, max) {
                Ok(None) => {}
                Ok(taken) => return Ok(taken),
                Err(e) => _ = self.refused(e)?,
            }
            if self.refusal.as_ref().is_some_and(|e| !e.is_out_of_memory()) {
                break;
            }
        }
        Ok(None)
    }

    /// The trim rung: handles that are wholly free and complete go back, and idle segments too, but only where a free does not wait for the device; then it grows.
    pub(crate) fn trim_and_grow(&mut self) -> Step {
        let core = self.core;
        if core.config.reuse == super::config::Reuse::Never && core.backing.lock().reserved == 0 {
            return Ok(None);
        }
        // Only as much as is needed: what is kept serves later requests. Growth also needs the bytes that an alignment may skip.
        let unit = self.lies_alone().map_or(0, |of| of.lock().unit().bytes());
        let enough = self.want.bytes_anywhere().saturating_add(unit);
        let segments_too = laws::request_may_trim(core.driver.free_waits_for_device());
        let given = core.give_back(None, enough, How::all(self.thorough, segments_too), self.own);
        let Trimmed { bytes, segments, .. } = given.trimmed;
        core.charge(price::UNMAP * segments + price::release(segments, bytes));
        // What was given back beside a refusal counts.
        if let Some(e) = given.error {
            self.refused(e)?;
        }
        if given.trimmed.bytes == 0 { Ok(None) } else { self.grow(false) }
    }

    /// The trim rung in a group at its limit: the other members give back what is idle and complete, and wait for nothing; then it grows.
    pub(crate) fn trim_members(&mut self) -> Step {
        let Some(seat) = self.core.seat() else { return Ok(None) };
        let needed = self.want.bytes_anywhere();
        let lacking = needed.saturating_sub(seat.room());
        // At the own limit nobody else's memory helps.
        let is_full = self.core.backing.lock().own_room(u64::MAX) == 0;
        if is_full || lacking == 0 || seat.trim_others(lacking) == 0 { Ok(None) } else { self.grow(false) }
    }
}
