//! How all that is queued on the device becomes known to be complete: a call of the driver's that waits for all of it.
//!
//! Two calls do. The wait for the device ends every capture in the context. The free of pinned memory waits for the same and leaves captures alone, but
//! holds other threads' driver calls up meanwhile. What is complete when either returns is numbered before it begins (O8). Which of them
//! is called is the caller's to say: it does not know who captures, nor what other threads wait for.

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
    /// Makes the markers that are missing, of the streams whose handles serve, and waits for each one's newest: nobody else's calls stand meanwhile.
    /// What no marker covers, because its stream captures, is gone or may not be marked here, or because a call fails, stays as it was: the wait behind
    /// this one is for all of it. No context-wide event is recorded, whether captures are expected or not: it ends them.
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

    /// Blocks the host until these are complete, by their markers: nobody else's calls stand meanwhile. Where a stream cannot be marked, or
    /// its marker not be waited for, until all on the device is.
    ///
    /// # Errors
    /// The driver's, when that cannot be waited for either. Of a lost context there is nothing left to wait for.
    pub(crate) fn wait_or_synchronize(&self, mut pending: Vec<Pending>) -> DriverResult<()> {
        // The newest of each stream covers the others.
        pending.sort_unstable_by(|a, b| b.cmp(a));
        pending.dedup_by_key(|p| p.on);
        let by_marker = |p| matches!(self.registry.wait_host(&self.driver, p, Duration::MAX), Ok(true));
        if pending.into_iter().all(by_marker) { Ok(()) } else { self.registry.prove_all(&self.driver) }
    }
}

impl<D: Driver> Stream<D> {
    /// Blocks the host until all that is queued on it is complete: for who cannot go on before, and whom a failed wait for the stream is no answer to.
    ///
    /// # Errors
    /// As [`Core::wait_or_synchronize`].
    pub(crate) fn wait_or_synchronize(&self) -> DriverResult<()> {
        let (core, timeline) = (self.core(), self.timeline());
        core.wait_or_synchronize(vec![Pending { on: timeline.id, epoch: timeline.reserve_epoch() }])
    }
}

impl<D: Driver> Registry<D> {
    /// All that was queued before `wait` counts as complete behind it: the one place where a wait for everything becomes knowledge.
    ///
    /// # Errors
    /// The wait's. Then nothing counts as complete by it.
    pub(super) fn prove_behind(&self, wait: impl FnOnce() -> DriverResult<()>) -> DriverResult<()> {
        let timelines = self.timelines();
        let reserve_epoch = || timelines.iter().map(|l| l.reserve_epoch_all()).collect::<Vec<_>>();
        let reserved = steps::reserve_then_synchronise_all(reserve_epoch, || {
            // Whether it fails or panics.
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

/// Behind which nothing works: any other error is met by the wait for all, if that fails too.
fn only_lost<T>(done: DriverResult<T>) -> DriverResult<()> {
    done.map(drop).or_else(|e| if e.is_context_lost() { Err(e) } else { Ok(()) })
}

impl<D: Driver> Allocator<D> {
    /// Blocks the host until everything queued on the device is complete; learns that everything is, and so gives back what
    /// was held back ([`held_back`](crate::report::PoolReport::held_back)). Not for use beside a graph capture in the context: the
    /// driver refuses to wait for a device then, and the capture is lost, unless it is of a stream that has a pool and can be
    /// asked, which is looked for first. [`Allocator::synchronize_beside_captures`] leaves it alone, and an event ([`Stream::record`](super::Stream::record)) is
    /// waited for beside one.
    ///
    /// # Errors
    /// [`Error::Capturing`]: nothing was waited for, and the capture lives. The driver's; to the question who captures too, with nothing waited
    /// for.
    pub fn synchronize(&self) -> Result<(), Error> {
        let core = self.core();
        if laws::asks_who_captures()
            && let Some(stream) = core.registry.who_captures(&core.driver, &core.registry.timelines())?
        {
            return Err(Error::Capturing { stream: Some(stream) });
        }
        let wait = |driver: &D| driver.relaxed(|| driver.synchronize_device());
        core.registry.prove_behind(|| if laws::synchronises() { wait(&core.driver) } else { Ok(()) })?;
        core.registry.run_maintenance_and_wait(&core.driver);
        self.learnt();
        Ok(())
    }

    /// Waits for all that is queued on the device, as [`Allocator::synchronize`] does, and ends no capture, on whatever stream in the context and by
    /// whomever: 512 bytes of host memory are pinned and unpinned, and unpinning waits for all that is queued on the device
    /// ([`Host::unpin_waits_for_device`](crate::driver::Host::unpin_waits_for_device)). What a capture holds is not queued: it runs when its graph is
    /// launched. That is so whether captures are expected or not ([`Fences::expects_captures`](crate::driver::Fences::expects_captures)).
    ///
    /// The price: what streams hold whose end no marker tells, those that capture or are not known here, is waited for while launches and records of other threads stand
    /// still in CUDA's driver (21 ms beside a wait of 20 ms; docs/decisions/unpin-to-wait.md). So it must not be called while such queued work
    /// waits for what another thread has yet to launch, as collectives over several devices may, or is a host function that needs a lock which somebody holds in a launch (Python's GIL): that would be a wait for ever. Other work is waited for before, by its markers.
    ///
    /// On a driver whose unpinning waits for nothing it is [`Allocator::synchronize`].
    ///
    /// # Errors
    /// The driver's, to the unpinning: out of host memory, or an error of queued work. Nothing counts as complete then that was not known to be. A marker
    /// that cannot be made is none: the wait for all stands for it.
    pub fn synchronize_beside_captures(&self) -> Result<(), Error> {
        let core = self.core();
        if !core.driver.unpin_waits_for_device() {
            return self.synchronize();
        }
        // What markers tell is waited for first, by waits that hold nobody up.
        core.wait_for_markers()?;
        core.registry.prove_behind(|| if laws::synchronises() { unpin(&core.driver) } else { Ok(()) })?;
        // What needs a wait for the device beyond that, a closing marker that cannot be recorded, is left to whoever may wait for it.
        core.registry.run_maintenance_beside_captures(&core.driver);
        self.learnt();
        Ok(())
    }

    /// Gives the driver's events back that nobody refers to: behind a wait for all, those of all markers, in a program that does nothing meanwhile. A
    /// [trim](Allocator::trim) gives back what it finds too, and marks each stream anew, to learn what it can.
    pub fn trim_events(&self) {
        self.core().registry.trim_events();
    }

    /// Puts what is known now where requests find it.
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
