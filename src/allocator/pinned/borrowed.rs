//! Copies that other code queues under a borrow of pinned bytes, without notice of their end.
//!
//! The simple version is a wait when the borrow ends. Another library's own wait cannot be relied on: cudarc skips it while
//! its context has a stored error. So the bytes remember that they were borrowed, and the CPU's next access
//! that could conflict with a copy makes the host wait first:
//!
//! 1. For shared access, for copies that write the bytes. They were queued by code that had exclusive access, so none
//!    is being queued during shared access.
//! 2. For exclusive access, for every copy: all were queued under borrows that have ended.
//! 3. Copies queued under a shared borrow only read the bytes. Another shared access neither waits for them nor clears
//!    their flag: they may not be queued yet.
//!
//! A drop of the bytes waits for nothing: the pool keeps them until the streams are done (O4), as for `record_use`.
//!
//! This file does not know what is queued, or by which library.

use super::{Home, PinnedAllocation};
use crate::allocator::registry::CONTEXT;
use crate::allocator::registry::uses::release_uses;
#[cfg(feature = "cuda")]
use crate::allocator::registry::{Registry, entered::Entered};
#[cfg(feature = "cuda")]
use crate::driver::Note;
use crate::driver::{Driver, DriverResult};
use crate::error::{DriverError, DriverErrorKind};
use crate::laws;
use crate::order::{Access, Pending, Streams, Use, UseKind};
use crate::sync::Ordering;
use crate::sync::atomic::AtomicBool;
use core::time::Duration;

/// Which copies may be under way that the library has not waited for.
pub(super) struct Borrows {
    /// Copies that write the bytes. Set by code with exclusive access.
    to_write: AtomicBool,
    /// Any copies, complete or not: the pool has recorded uses of them.
    at_all: AtomicBool,
}

impl Borrows {
    /// No borrow.
    pub(super) fn not() -> Borrows {
        Borrows { to_write: AtomicBool::new(false), at_all: AtomicBool::new(false) }
    }
}

impl<D: Driver> PinnedAllocation<D> {
    /// The CPU is about to read the bytes: blocks the host until borrowed copies that write them are complete.
    ///
    /// # Errors
    /// If neither their streams nor the device can be waited for, and the context is not lost.
    #[inline]
    pub(crate) fn wait_for_writes(&self) -> DriverResult<()> {
        // A thread that sees the flag cleared must also see the bytes as they are after the wait of the thread that cleared it.
        if self.borrowed.to_write.load(Ordering::Acquire) {
            self.wait_for_borrows(Access::Read)?;
            // No thread sets it meanwhile: that takes exclusive access.
            self.borrowed.to_write.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// The CPU is about to get exclusive access: blocks the host until all borrowed copies are complete.
    ///
    /// # Errors
    /// As [`PinnedAllocation::wait_for_writes`].
    #[inline]
    pub(crate) fn wait_for_borrowed(&mut self) -> DriverResult<()> {
        if self.borrowed.at_all.load(Ordering::Relaxed) { self.end_borrows() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn end_borrows(&mut self) -> DriverResult<()> {
        self.wait_for_borrows(Access::Write)?;
        if let Some(Home { core, id, .. }) = &self.home {
            let mut ended = Streams::new();
            core.host.with_uses((&core.registry, &core.driver), *id, |uses| ended = uses.forget_exact());
            release_uses(&core.registry, ended);
        }
        self.borrowed = Borrows::not();
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn wait_for_borrows(&self, access: Access) -> DriverResult<()> {
        let Some(Home { core, id, .. }) = &self.home else { return Ok(()) };
        for pending in core.host.conflicts(&core.registry, *id, access) {
            if let Err(error) = self.wait_for(pending) {
                // A device at rest has run the copy too, but a wait for the device would destroy the capture that is in the way, or one that other code may
                // have begun. A lost context runs nothing any more.
                let may_rest = laws::may_wait_instead(
                    error.kind == DriverErrorKind::Capturing,
                    core.driver.expects_captures(),
                );
                match may_rest.then(|| core.registry.synchronize_instead(&core.driver)) {
                    Some(Err(e)) if !e.is_context_lost() => {
                        return Err(self.refused(pending, access, &error, Some(&e)));
                    }
                    None => return Err(self.refused(pending, access, &error, None)),
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// An access was refused. Copies that were queued by now get a number: all copies if the access was exclusive, those that write the bytes
    /// if it was shared. Otherwise a use that cannot be marked would still be open at each later attempt, and no wait of the program for
    /// the device would ever cover it.
    fn refused(
        &self,
        pending: Pending,
        access: Access,
        error: &DriverError,
        rest: Option<&DriverError>,
    ) -> DriverError {
        if let Some(Home { core, id, .. }) = &self.home {
            let is_over = |u: Use| {
                let of_this = access == Access::Write || u.access == Access::Write;
                u.kind == UseKind::Borrows && of_this && laws::refused_ends_borrows()
            };
            let now =
                |u: Use| is_over(u).then(|| core.registry.timeline(u.on).map(|timeline| timeline.stamp()));
            let mut ended = Streams::new();
            core.host.with_uses((&core.registry, &core.driver), *id, |uses| {
                ended = uses.end(true, |u| now(u).flatten());
            });
            release_uses(&core.registry, ended);
        }
        let timeline = self.home.as_ref().and_then(|home| home.core.registry.timeline(pending.on));
        let whose = match timeline {
            Some(timeline) if timeline.id != CONTEXT => timeline.info.to_string(),
            _ => "a stream that no allocator holds".to_owned(),
        };
        let captures = |e: &DriverError| e.kind == DriverErrorKind::Capturing;
        let advice = if captures(error) || rest.is_some_and(captures) {
            "if a stream is capturing, end the capture first"
        } else if error.kind == DriverErrorKind::NotSupported {
            "synchronise the allocator while no graph is being captured, and look again"
        } else {
            "look again, or synchronise the allocator"
        };
        let rest = rest.map_or_else(String::new, |e| format!("; {e}"));
        let message = format!(
            "pinned memory was borrowed by a copy on {whose}, which cannot be waited for ({error}{rest}): {advice}"
        );
        DriverError::new(error.call, error.code, error.kind, message)
    }

    fn wait_for(&self, pending: Pending) -> DriverResult<()> {
        let Some(Home { core, .. }) = &self.home else { return Ok(()) };
        match core.registry.wait_host(&core.driver, pending, Duration::MAX) {
            Err(e) if !e.is_context_lost() => Err(e),
            _ => Ok(()),
        }
    }
}

#[cfg(feature = "cuda")]
impl<D: Driver> PinnedAllocation<D> {
    /// The registry and the driver of its device; `None` for zero bytes.
    pub(crate) fn device(&self) -> Option<(&Registry<D>, &D)> {
        self.home.as_ref().map(|h| (&*h.core.registry, &h.core.driver))
    }

    /// Lets other code queue copies from the bytes on a stream, while it borrows them, or on any stream of the
    /// context; and into them, if it has exclusive access (`to_write`). Orders nothing.
    pub(crate) fn borrow(&self, on: Option<&Entered<'_, D>>, to_write: bool) {
        let Some(Home { core, id, .. }) = &self.home else { return };
        let timeline = on.map_or_else(|| core.registry.context(), Entered::timeline);
        let mut ended = Streams::new();
        core.host.with_uses((&core.registry, &core.driver), *id, |uses| {
            if uses.borrow(timeline.id, if to_write { Access::Write } else { Access::Read }) {
                timeline.open.fetch_add(1, Ordering::AcqRel);
            }
            ended = core.registry.collapse(&core.driver, uses);
        });
        release_uses(&core.registry, ended);
        core.driver.note(Note::Used { id: *id, stream: timeline.info.id, so_far: false });
        self.borrowed.at_all.store(true, Ordering::Release);
        if to_write {
            self.borrowed.to_write.store(true, Ordering::Release);
        }
    }
}
