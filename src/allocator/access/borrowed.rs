//! Operations that somebody queues for as long as a borrow of an array lasts, and says nothing at its end.
//!
//! The simple version is `record_use`: open until the free. One thing is known better: all that was queued under a borrow
//! was queued before the array can be borrowed alone and whole again. So an access to the whole, ordered behind what the
//! stream holds by then, ends the use. One that is refused gives it a number.
//!
//! A stream that nobody here holds may be gone before its work has to be waited for. Its uses are the whole context's.
//!
//! This file does not know what is queued, or by which library.

use super::super::registry::entered::Entered;
use super::super::registry::uses::release_uses;
use super::super::registry::{CONTEXT, Registry, StreamTimeline};
use super::{Holder, Intent, Touch, Via, all_conflicts, end_what_is_over, order_timeline_behind};
use crate::driver::{Driver, DriverResult, QueuedBy};
use crate::error::Error;
use crate::laws;
use crate::order::{Access, Completed, Pending, PendingSet, Streams, TimelineId, Uses};
use crate::sync::Ordering;
use core::time::Duration;

/// What is borrowed on more streams at once is borrowed by anybody: an array that is only ever read would keep a use, a timeline and a
/// stream for each stream that came and went.
const MANY: usize = 64;

/// Nobody's timeline: none is ever numbered so.
const NOBODY: TimelineId = TimelineId(u32::MAX);

/// A stream that a library names.
pub(crate) enum Named<'a, D: Driver> {
    /// Held here: it can be marked at any time.
    Held(Entered<'a, D>),
    /// Nobody here holds it: alive for the length of the call.
    Unknown(&'a D::Stream),
}

/// Orders a stream that does not capture behind what this touch has to come after, and lets its caller queue operations
/// there for as long as it borrows what is touched. The host does not wait.
///
/// # Errors
/// A wait that could not be inserted: nothing is borrowed then.
pub(crate) fn borrow<D: Driver>(stream: &Named<'_, D>, touch: Touch<'_, D>) -> Result<(), Error> {
    let (of, access) = (touch.of, touch.intent.access());
    let Some(holder) = of.holder() else { return Ok(()) };
    let via = holder.via();
    let entered = match stream {
        Named::Held(entered) => entered,
        Named::Unknown(native) => {
            let pending = all_conflicts(&via, NOBODY, &[touch])?;
            if let Err(e) = order_unknown(via.registry, via.driver, native, &pending) {
                end_what_is_over(&[touch]);
                return Err(e.into());
            }
            borrow_by_anybody(touch);
            return Ok(());
        }
    };
    let timeline = entered.timeline();
    order_timeline_behind(&via, timeline, &[touch], QueuedBy::Library)?;
    // All that was queued before this borrow of the whole is behind us on this stream now, and whoever comes after this
    // stream comes after all of it.
    if laws::ends_borrows(touch.intent == Intent::WriteWhole) {
        of.forget_home_reads();
        of.forget_shared();
    }
    if of.is_home(timeline) {
        of.count_at_home(access);
    } else {
        if touch.intent == Intent::WriteWhole {
            of.home_written.store(0, Ordering::Release);
        }
        holder.borrow_use(timeline, access);
        of.shared.store(true, Ordering::Release);
        of.note_used(via.driver, timeline.info.id, false);
    }
    Ok(())
}

/// Lets nobody knows whom queue operations on any stream of the context, for as long as they borrow what is touched. Orders
/// nothing.
pub(crate) fn borrow_by_anybody<D: Driver>(touch: Touch<'_, D>) {
    let of = touch.of;
    let Some(holder) = of.holder() else { return };
    holder.borrow_use(holder.via().registry.context(), touch.intent.access());
    of.shared.store(true, Ordering::Release);
}

/// Orders later work on a stream that has no timeline after all of `pending`: nothing is known of it, nothing is learnt.
fn order_unknown<D: Driver>(
    registry: &Registry<D>,
    driver: &D,
    native: &D::Stream,
    pending: &[Pending],
) -> DriverResult<()> {
    let missing: PendingSet = {
        let seen = registry.seen();
        pending.iter().copied().filter(|&p| !seen.is_complete(p)).collect()
    };
    for p in missing {
        let Some(from) = registry.timeline(p.on) else { continue };
        let Some(marker) = registry.marker_or_wait(driver, &from, p)? else { continue };
        match registry.watch(driver.wait(native, &marker.event)) {
            Err(e) if registry.is_captured(&from, &marker, &e) => {
                registry.with_marker(driver, &from, p.epoch, Duration::MAX, |marker| {
                    registry.watch(driver.wait(native, &marker.event))
                })?;
            }
            waited => waited?,
        }
    }
    Ok(())
}

impl<D: Driver> Holder<'_, D> {
    /// Another stream may be given operations.
    fn borrow_use(&self, on: &StreamTimeline<D>, access: Access) {
        if !laws::keeps_borrow() {
            return;
        }
        let Via { registry, driver, .. } = self.via();
        let ended = self.with_uses(|uses| {
            if laws::borrow_ends_at_once() {
                uses.exact(on.id, access, on.stamp());
            } else if uses.borrow(on.id, access) {
                on.open.fetch_add(1, Ordering::AcqRel);
            }
            registry.collapse(driver, uses)
        });
        release_uses(registry, ended);
    }
}

impl<D: Driver> Registry<D> {
    /// What is borrowed on more than [`MANY`] streams is borrowed by all: who has to be told that a use of theirs ended, once no lock is held.
    pub(crate) fn collapse(&self, driver: &D, uses: &mut Uses) -> Streams {
        // Where somebody may capture, there are no markers for the work of all.
        let max = if driver.expects_captures() { usize::MAX } else { MANY };
        let (ended, began) = uses.borrow_by_all(CONTEXT, max);
        self.context().open.fetch_add(began, Ordering::AcqRel);
        ended
    }
}
