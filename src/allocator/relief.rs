//! What goes back to the device of itself: idle memory above a soft limit or a watermark, in steps that are bounded, and never by a wait.
//!
//! A free and a hit make no driver call, so a request that missed looks when it is served, and calls that may call the driver anyway. A look asks every
//! pool for its figures; so beside many streams it is made in one of many misses, and ever more rarely while what is too much is in use. What goes back is found
//! by `trim`. This file also has what others ask of a member of a group, and what a soft limit means to a request. It does not know a range or a handle.

use super::Allocator;
use super::backing::Backing;
use super::config::Limit;
use super::core::Core;
use super::group::Member;
use super::pool::Pool;
use super::trim::{GivenBack, How, LOOKS, Trimmed};
use crate::driver::{Called, Driver, DriverResult, OwnedRange};
use crate::error::Error;
use crate::laws::{self, limits};
use crate::report::MemberReport;
use crate::sync::{Arc, Ordering};
use crate::trace::Event;
use crate::units::Granules;
use core::cell::Cell;

impl<D: Driver> Core<D> {
    /// Whether there is a soft limit, of the allocator or its group.
    pub(super) fn has_soft_limit(&self) -> bool {
        self.marks.soft.load(Ordering::Relaxed)
    }

    /// How many bytes may be reserved in all below the soft limits.
    pub(super) fn soft_max(&self) -> u64 {
        if self.has_soft_limit() { self.backing.lock().soft_max() } else { u64::MAX }
    }

    /// Whether so much more would be above a soft limit.
    pub(super) fn is_tight(&self, more: Granules) -> bool {
        self.has_soft_limit() && {
            let backing = self.backing.lock();
            backing.reserved.saturating_add(more.bytes()) > backing.soft_max()
        }
    }

    /// Reports to the sinks which soft limits were crossed by what the driver gave just now.
    pub(super) fn report_crossings(&self, backing: &mut Backing<OwnedRange<D>>) {
        for crossing in backing.crossings().into_iter().flatten() {
            if self.is_recording() {
                self.record(Event::SoftLimit {
                    reserved: crossing.reserved,
                    limit: crossing.limit,
                    of_group: crossing.of_group,
                });
            }
        }
    }

    /// How many bytes should go back if they are idle: those above a soft limit, and cached ones above the watermarks.
    fn too_much(&self, pools: &[Arc<Pool<D>>]) -> u64 {
        let above_soft = if self.has_soft_limit() { self.backing.lock().above_soft() } else { 0 };
        let above_marks = self.marks.cached.map_or(0, |(low, high)| {
            let free: u64 = pools.iter().map(|pool| pool.lock().heap.stats().free).sum();
            let spare = self.windows.as_ref().map_or(0, |of| of.stats().spare);
            limits::above_marks(free + spare, low, high)
        });
        above_soft.max(above_marks)
    }

    /// A request was served that the cache did not serve: it gives back what is too much, if it is its turn. What the driver refuses stays.
    pub(super) fn relieve_when_due(&self) {
        if !(self.has_soft_limit() || self.marks.cached.is_some()) {
            return;
        }
        let is_due = self.marks.pace.lock().is_due();
        if is_due {
            self.relieve();
        }
    }

    /// Gives back what is too much, as far as it is idle, complete and not more than one call gives back.
    pub(super) fn relieve(&self) -> GivenBack {
        let pools = self.pool_list();
        let enough = self.too_much(&pools);
        let mut given = GivenBack::default();
        if enough > 0 {
            // What could not be learnt stays.
            let learnt = self.learn();
            let behind = self.marks.pace.lock().behind();
            given = self.give_back(None, enough, How::bounded(self.gives_segments(), behind), &Cell::new(0));
            if let Err(e) = learnt {
                given.refused(e);
            }
        }
        let gave = given.trimmed.bytes > 0;
        self.marks.pace.lock().looked((pools.len(), LOOKS), enough > 0, gave);
        given
    }

    /// Whether segments go back too: only where a free waits for nothing.
    pub(super) fn gives_segments(&self) -> bool {
        laws::request_may_trim(self.driver.free_waits_for_device())
    }
}

impl<D: Driver> Member for Core<D> {
    fn give_back_idle(&self, enough: u64) -> u64 {
        if !self.registry.alive() {
            return 0;
        }
        // What could not be learnt, and what the driver refuses, stays: it is not the asker's.
        let _ = self.learn();
        self.give_back(None, enough, How::all(true, self.gives_segments()), &Cell::new(0)).trimmed.bytes
    }

    fn figures(&self) -> MemberReport {
        let allocated = self.pool_list().iter().map(|pool| pool.lock().heap.stats().allocated).sum();
        MemberReport { device: self.device, limit: self.backing.lock().limit, reserved: 0, allocated }
    }
}

impl<D: Driver> Allocator<D> {
    /// Sets the [soft limit](crate::Config::soft_limit). If more is reserved, what is idle and complete is given back as by [`Allocator::maintain`].
    ///
    /// # Errors
    /// [`Error::Config`] for a fraction outside 0 to 1; nothing has changed then.
    pub fn set_soft_limit(&self, limit: Limit) -> Result<(), Error> {
        let core = self.core();
        let bytes = limit.bytes(core.capacity)?;
        core.marks.soft.store(bytes.is_some() || core.config.group_has_soft(), Ordering::Relaxed);
        {
            let mut backing = core.backing.lock();
            backing.set_soft(bytes);
            core.report_crossings(&mut backing);
        }
        if bytes.is_some() {
            core.relieve();
        }
        core.deliver();
        Ok(())
    }

    /// Does what requests do that the cache does not serve, besides serving: records due markers, drops what dropped tokens owned, and gives back idle memory above
    /// the [watermarks](crate::Config::watermarks) and [soft limits](crate::Config::soft_limit), at most 32 handles. Waits for nothing. For programs that only hit and free, once a
    /// step for example; where nothing is too much it looks at each pool's figures and makes no driver call for them.
    ///
    /// # Errors
    /// The driver's first; what was given back stays given back, the rest is kept.
    #[track_caller]
    pub fn maintain(&self) -> Result<Trimmed, Error> {
        let _called = Called::<D>::here();
        let core = self.core();
        core.registry.run_maintenance(&core.driver);
        core.deferred_drops.run();
        let given: DriverResult<Trimmed> = core.relieve().whole();
        core.deliver();
        Ok(given?)
    }
}
