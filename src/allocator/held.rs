//! What is held in an allocator, and which ranges may leave their pools meanwhile (invariant B11).
//!
//! It knows neither pools nor who holds what: `hold` begins and ends holds.

use super::physical::Records;
use crate::laws::holds as laws;
use crate::physical::{self, SlotState};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, Ordering};
use crate::units::{Granules, SegmentId};
use std::collections::BTreeMap;

/// What is held in an allocator.
#[derive(Default)]
pub(super) struct Holds {
    /// How many there are; read without a lock, so that migrations without holds cost a load.
    pub(super) count: AtomicU64,
    pub(super) next: AtomicU64,
    pub(super) all: Mutex<BTreeMap<u64, Record>>,
    /// How often each plain (`false`) or pinned (`true`) segment is held.
    pub(super) segments: Mutex<BTreeMap<(bool, SegmentId), u32>>,
}

/// One hold.
pub(super) struct Record {
    pub(super) what: What,
    /// What pools had of the held handles, or of the held plain segment: pool, segment, offset, length.
    pub(super) owners: Vec<(u32, SegmentId, Granules, Granules)>,
}

/// What a hold is of.
pub(super) enum What {
    Nothing,
    Segment(bool, SegmentId),
    Handles(physical::Hold),
}

impl Holds {
    /// Whether a plain or a pinned segment is held.
    pub(super) fn is_held(&self, id: SegmentId, pinned: bool) -> bool {
        self.any() && self.segments.lock().contains_key(&(pinned, id))
    }
    /// Whether anything is.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }
}

/// What is held, while something is: for a search of a pool's ranges that another may have.
pub(super) struct Held<'a> {
    records: Option<Records<'a>>,
    holds: &'a Holds,
}

impl<'a> Held<'a> {
    pub(super) fn new(records: Option<Records<'a>>, holds: &'a Holds) -> Held<'a> {
        Held { records, holds }
    }

    /// The first part of a range, of at least `need`, that may leave its pool; all of it, if it all may.
    pub(super) fn part_that_may_leave(
        &self,
        (segment, offset, len): (SegmentId, Granules, Granules),
        need: Granules,
    ) -> Option<(Granules, Granules)> {
        let Some(records) = self.records.as_ref().filter(|records| records.window(segment).is_some()) else {
            return laws::may_leave(self.holds.is_held(segment, false)).then_some((offset, len));
        };
        if laws::may_leave(records.is_held(segment, offset, len)) {
            return Some((offset, len));
        }
        let end = offset.0 + len.0;
        let held = records.slots_in(segment, offset, len).filter(|slot| {
            let holds = records.handle(slot.handle).map_or(0, |handle| handle.holds);
            *slot.state == SlotState::Here && holds > 0
        });
        let mut from = offset.0;
        let walls = held.map(|slot| (slot.offset.0, slot.offset.0 + slot.len.0)).chain([(end, end)]);
        let mut parts = walls.filter_map(|(wall, behind)| {
            let part =
                (wall > from && wall - from >= need.0).then(|| (Granules(from), Granules(wall - from)));
            from = behind;
            part
        });
        parts.next()
    }

    /// Whether all of a range may.
    pub(super) fn may_leave(&self, (segment, offset, len): (SegmentId, Granules, Granules)) -> bool {
        self.part_that_may_leave((segment, offset, len), len).is_some()
    }
}
