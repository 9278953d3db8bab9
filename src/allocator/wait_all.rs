//! How everything queued on the device becomes known to be complete: by a driver call that waits for all of it.
//!
//! Two calls do. The wait for the device ends every capture in the context. The free of pinned memory waits for the same and does not affect captures,
//! but delays other threads' driver calls meanwhile. What is complete when either returns was numbered before it begins (O8). The caller
//! chooses the call: this file does not know which streams capture, nor what other threads wait for.

use super::core::Core;
use super::registry::{Registry, is_marked_by_handle};
use super::undo::Undo;
use super::unpin::unpin;
use super::{Allocator, Stream};
use crate::driver::{Driver, DriverResult};
use crate::error::{DriverError, Error};
use crate::laws::{self, steps};
use crate::order::Pending;
use core::time::Duration;

impl<D: Driver> Core<D> {
    /// Makes the markers that are missing, on the streams that can be marked by their handles, and waits for each one's newest: no other thread's calls
    /// are delayed. What no marker covers, because its stream captures, is gone or may not be marked here, or because a call fails, stays as it was: the
    /// wait that follows covers all of it. No context-wide event is recorded, whether captures are expected or not: it would end them.
    ///
    /// # Errors
    /// The context is lost.
    fn wait_for_markers(&self) -> DriverResult<()> {
        self.registry.run_maintenance_beside_captures(&self.driver);
        let mut timelines = self.registry.timelines();
        timelines.retain(|timeline| is_marked_by_handle(&self.driver, timeline));
        for timeline in &timelines {
            only_lost(self.registry.make_marker(&self.driver, timeline))?;
        }
        for timeline in &timelines {
            let newest = Pending { on: timeline.id, epoch: timeline.marked() };
            only_lost(self.registry.wait_host(&self.driver, newest, Duration::MAX))?;
        }
        Ok(())
    }

    /// Blocks the host until these are complete, by their markers: no other thread's calls are delayed. If a stream cannot be marked, or
    /// its marker cannot be waited for, until everything on the device is.
    ///
    /// # Errors
    /// The driver's, when that cannot be waited for either. A lost context leaves nothing to wait for.
    pub(crate) fn wait_or_synchronize(&self, mut pending: Vec<Pending>) -> DriverResult<()> {
        // The newest of each stream covers the others.
        pending.sort_unstable_by(|a, b| b.cmp(a));
        pending.dedup_by_key(|p| p.on);
        let by_marker = |p| matches!(self.registry.wait_host(&self.driver, p, Duration::MAX), Ok(true));
        if pending.into_iter().all(by_marker) { Ok(()) } else { self.registry.prove_all(&self.driver) }
    }
}

impl<D: Driver> Stream<D> {
    /// Blocks the host until everything queued on it is complete: for a caller that cannot continue before that, even if the wait for the stream fails.
    ///
    /// # Errors
    /// As [`Core::wait_or_synchronize`].
    pub(crate) fn wait_or_synchronize(&self) -> DriverResult<()> {
        let (core, timeline) = (self.core(), self.timeline());
        core.wait_or_synchronize(vec![Pending { on: timeline.id, epoch: timeline.reserve_epoch() }])
    }
}

impl<D: Driver> Registry<D> {
    /// Everything that was queued before `wait` counts as complete after it: the one place where a wait for everything becomes knowledge.
    ///
    /// # Errors
    /// The wait's. Then nothing counts as complete by it.
    pub(super) fn prove_behind(&self, wait: impl FnOnce() -> DriverResult<()>) -> DriverResult<()> {
        let timelines = self.timelines();
        let reserve_epoch = || timelines.iter().map(|l| l.reserve_epoch_all()).collect::<Vec<_>>();
        let reserved = steps::reserve_then_synchronise_all(reserve_epoch, || {
            // Whether the wait fails or panics.
            let failed = Undo::new(|| timelines.iter().for_each(|timeline| timeline.loosen()));
            self.watch(wait())?;
            failed.forget();
            pause_point!("all synchronised");
            Ok::<_, DriverError>(())
        })?;
        for (timeline, epoch) in timelines.iter().zip(reserved) {
            self.complete_through(timeline, epoch);
        }
        Ok(())
    }
}

/// Passes on only a lost context, after which nothing works: any other error is met by the wait for everything, if that fails too.
fn only_lost<T>(done: DriverResult<T>) -> DriverResult<()> {
    done.map(drop).or_else(|e| if e.is_context_lost() { Err(e) } else { Ok(()) })
}

impl<D: Driver> Allocator<D> {
    /// Blocks the host until everything queued on the device is complete; learns that everything is, and so gives back what
    /// was held back ([`held_back`](crate::report::PoolReport::held_back)). Not for use beside a graph capture in the context: the
    /// driver refuses to wait for a device then, and the capture is lost, unless it is on a stream that has a pool and can be
    /// queried, which is checked first. [`Allocator::synchronize_beside_captures`] does not affect captures, and an event
    /// ([`Stream::record`](super::Stream::record)) can be waited for beside one.
    ///
    /// # Errors
    /// [`Error::Capturing`]: nothing was waited for, and the capture survives. The driver's, also from the check for captures: then nothing was waited
    /// for.
    pub fn synchronize(&self) -> Result<(), Error> {
        let core = self.core();
        if laws::checks_captures()
            && let Some(stream) = core.registry.find_capturing(&core.driver, &core.registry.timelines())?
        {
            return Err(Error::Capturing { stream: Some(stream) });
        }
        let wait = |driver: &D| driver.relaxed(|| driver.synchronize_device());
        core.registry.prove_behind(|| if laws::synchronises() { wait(&core.driver) } else { Ok(()) })?;
        core.registry.run_maintenance_and_wait(&core.driver);
        self.learnt();
        Ok(())
    }

    /// Waits for everything queued on the device, as [`Allocator::synchronize`] does, and ends no capture, on whichever stream in the context and by
    /// whatever code: 512 bytes of host memory are pinned and unpinned, and unpinning waits for everything queued on the device
    /// ([`Host::unpin_waits_for_device`](crate::driver::Host::unpin_waits_for_device)). What a capture holds is not queued: it runs when its graph is
    /// launched. That is so whether captures are expected or not ([`Fences::expects_captures`](crate::driver::Fences::expects_captures)).
    ///
    /// The price: the work of streams that no marker covers, those that capture or are not known here, is waited for while CUDA's driver blocks the launches
    /// and records of other threads (21 ms beside a wait of 20 ms; docs/decisions/unpin-to-wait.md). So it must not be called while such queued work
    /// waits for what another thread has yet to launch, as collectives over several devices may, or is a host function that needs a lock which a
    /// thread holds in a launch (Python's GIL): that would be a deadlock. Other work is waited for before, by its markers.
    ///
    /// On a driver whose unpinning waits for nothing it is [`Allocator::synchronize`].
    ///
    /// # Errors
    /// The driver's, from the unpinning: out of host memory, or an error of queued work. Then nothing counts as complete that was not known to be before. A
    /// marker that cannot be made is not an error: the wait for everything covers it.
    pub fn synchronize_beside_captures(&self) -> Result<(), Error> {
        let core = self.core();
        if !core.driver.unpin_waits_for_device() {
            return self.synchronize();
        }
        // What markers cover is waited for first, by waits that delay no other thread.
        core.wait_for_markers()?;
        core.registry.prove_behind(|| if laws::synchronises() { unpin(&core.driver) } else { Ok(()) })?;
        // What would need a wait for the device after that, a closing marker that cannot be recorded, is left to a call that may wait for it.
        core.registry.run_maintenance_beside_captures(&core.driver);
        self.learnt();
        Ok(())
    }

    /// Gives back the driver's events that no marker refers to: after a wait for everything, those of all markers, if the program does nothing meanwhile. A
    /// [trim](Allocator::trim) gives back events too, but first makes a marker on each stream, to learn as much as it can.
    pub fn trim_events(&self) {
        self.core().registry.trim_events();
    }

    /// Makes what is known to be complete available to requests.
    fn learnt(&self) {
        let core = self.core();
        for pool in core.pool_list() {
            pool.drain();
        }
        core.deferred_drops.sweep();
        core.host.drain(&core.registry);
        core.registry.host_waited();
        core.deliver();
    }
}
