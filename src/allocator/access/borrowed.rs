//! Operations that other code queues while it borrows an array, without notice of their end.
//!
//! The simple version is `record_use`: open until the free. One thing more is known: everything queued under a borrow
//! was queued before all of the array can be borrowed exclusively again. So an access to all of it, ordered behind everything that the
//! stream holds by then, ends the use. If that access is refused, the use gets a number.
//!
//! A stream of which this library holds no reference may be gone before its work has to be waited for. Its uses count as uses by the whole context.
//!
//! This file does not know what is queued, or by which library.

use super::super::registry::entered::Entered;
use super::super::registry::uses::release_uses;
use super::super::registry::{CONTEXT, NO_TIMELINE, Registry, StreamTimeline};
use super::{Holder, Intent, Touch, Via, all_conflicts, end_what_is_over, order_timeline_behind};
use crate::driver::{Driver, DriverResult, QueuedBy};
use crate::error::Error;
use crate::laws;
use crate::order::{Access, Completed, Pending, PendingSet, Streams, Uses};
use crate::sync::Ordering;
use core::time::Duration;

/// An array borrowed on more streams than this at once counts as borrowed by the whole context: otherwise an array that is only ever read would
/// keep a use, a timeline and a stream for each stream that existed for a while.
const MANY: usize = 64;

/// A stream that another library names.
pub(crate) enum Named<'a, D: Driver> {
    /// This library holds a reference: it can be marked at any time.
    Held(Entered<'a, D>),
    /// This library holds no reference: the stream is alive for the length of the call.
    Unknown(&'a D::Stream),
}

/// Orders a stream that does not capture behind everything that this touch conflicts with, and lets the caller queue operations
/// there while it borrows the array. The host does not wait.
///
/// # Errors
/// A wait that could not be inserted: then nothing is borrowed.
pub(crate) fn borrow<D: Driver>(stream: &Named<'_, D>, touch: Touch<'_, D>) -> Result<(), Error> {
    let (of, access) = (touch.of, touch.intent.access());
    let Some(holder) = of.holder() else { return Ok(()) };
    let via = holder.via();
    let entered = match stream {
        Named::Held(entered) => entered,
        Named::Unknown(native) => {
            let pending = all_conflicts(&via, NO_TIMELINE, &[touch])?;
            if let Err(e) = order_unknown(via.registry, via.driver, native, &pending) {
                end_what_is_over(&[touch]);
                return Err(e.into());
            }
            borrow_on_unknown_stream(touch);
            return Ok(());
        }
    };
    let timeline = entered.timeline();
    order_timeline_behind(&via, timeline, &[touch], QueuedBy::Library)?;
    // Everything queued before this exclusive borrow of the whole array is ordered before this stream's later work now, and whatever is
    // ordered behind this stream is ordered behind all of it.
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

/// Lets unknown code queue operations on any stream of the context while it borrows the array. Orders
/// nothing.
pub(crate) fn borrow_on_unknown_stream<D: Driver>(touch: Touch<'_, D>) {
    let of = touch.of;
    let Some(holder) = of.holder() else { return };
    holder.borrow_use(holder.via().registry.context(), touch.intent.access());
    of.shared.store(true, Ordering::Release);
}

/// Orders later work on a stream that has no timeline after all of `pending`: no wait can be skipped, and no clock records the waits.
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
    /// Records that operations may be queued on another stream.
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
    /// Replaces the uses of an array borrowed on more than [`MANY`] streams by one use of the whole context. Returns the streams of the uses
    /// that ended, which the caller notifies once it holds no lock.
    pub(crate) fn collapse(&self, driver: &D, uses: &mut Uses) -> Streams {
        // Where other code may capture, no marker covers the work of the whole context.
        let max = if driver.expects_captures() { usize::MAX } else { MANY };
        let (ended, began) = uses.borrow_by_all(CONTEXT, max);
        self.context().open.fetch_add(began, Ordering::AcqRel);
        ended
    }
}
