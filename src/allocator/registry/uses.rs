//! Uses of memory against the table of timelines: what an access has to come after, which uses are over, and what has to be done when they end.
//!
//! It does not know where uses are kept, nor whose memory they are of.

use super::{CONTEXT, Registry, StreamTimeline};
use crate::driver::Driver;
use crate::laws;
use crate::order::{Access, Pending, PendingSet, TimelineId, Use, UseKind, Uses};
use crate::sync::{Arc, Ordering};
use crate::units::Epoch;

/// Which uses by other streams an access on `to` has to come after, as they are known now.
pub(in super::super) fn conflicts<D: Driver>(
    uses: &Uses,
    registry: &Registry<D>,
    to: TimelineId,
    access: Access,
) -> PendingSet {
    let seen = registry.seen();
    uses.conflicts(to, access, |on| seen.timeline(on).map_or(Epoch::COMPLETE, |timeline| timeline.stamp()))
}

/// Keeps the number of uses at most a quarter above that of those that were pending at the last check, or open on streams on which other code can
/// still queue work.
pub(in super::super) fn bound<D: Driver>(uses: &mut Uses, registry: &Registry<D>, driver: &D) {
    if uses.is_crowded() {
        // A guard holds its stream, and code that borrows an array, or declares a use, queues on a stream that it holds: so a use left open
        // was forgotten, or is over. Borrowed uses become one of all streams when there are many, unless other code may capture (`borrowed`).
        let last = |u: Use| {
            let declared = u.kind == UseKind::Declared;
            registry.timeline(u.on).and_then(|timeline| timeline.last_stamp(driver, declared))
        };
        let ended = uses.end(driver.expects_captures(), last);
        uses.retire(&registry.seen());
        release_uses(registry, ended);
    }
}

/// A range was freed that has to wait for `pending`: counts towards its stream's next marker. For the context, which
/// nothing else would mark, one falls due at once, unless the caller makes it (`made`).
pub(crate) fn note_pending<D: Driver>(registry: &Registry<D>, pending: Pending, bytes: u64, made: bool) {
    let Some(timeline) = registry.timeline(pending.on) else { return };
    if timeline.note_unmarked(bytes) {
        registry.request_maintenance(&timeline);
    }
    if pending.on == CONTEXT && !made {
        timeline.raise_due();
        registry.request_maintenance(&timeline);
    }
}

/// The open uses of a freed allocation end.
pub(crate) fn release_open<D: Driver>(registry: &Registry<D>, uses: &Uses) {
    release_uses(registry, uses.open_on());
}

/// Open uses end, one on each of these streams.
pub(crate) fn release_uses<D: Driver>(registry: &Registry<D>, on: impl IntoIterator<Item = TimelineId>) {
    for on in on.into_iter().filter(|_| laws::counts_ended()) {
        if let Some(timeline) = registry.timeline(on) {
            close_open(registry, &timeline);
        }
    }
}

/// One open use of a timeline ends.
pub(in super::super) fn close_open<D: Driver>(registry: &Registry<D>, timeline: &Arc<StreamTimeline<D>>) {
    if timeline.open.fetch_sub(1, Ordering::AcqRel) == 1
        // The newest value, not any that a load may return: a thread that takes the last pool away meanwhile reads `open` as
        // this reads `pools`, and one of the two has to see the other.
        && timeline.pools.fetch_add(0, Ordering::AcqRel) == 0
    {
        registry.request_maintenance(timeline);
    }
}
