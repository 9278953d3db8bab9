//! Holds: handles that must stay where they are because code outside the allocator knows them by address or by driver handle.
//!
//! Memory that was exported, registered for RDMA, opened by another process, mapped by a peer or captured in a graph has users whose uses no
//! stream has. A hold counts on every handle of a range; [`Physical::begin`] refuses a handle that is held (B4). The same pool may still
//! reuse the bytes: registration caches allow that. This module does not know who holds a range, and has no record of plain segments.

use super::{HandleId, HandleState, Physical, SlotState, Unavailable};
use crate::laws;
use crate::units::{Granules, SegmentId};
use smallvec::SmallVec;

/// Handles that are held, until [`Physical::unhold`].
#[must_use = "the handles stay held until `unhold`"]
#[derive(PartialEq, Eq, Debug)]
pub struct Hold {
    handles: SmallVec<[HandleId; 1]>,
}

impl Hold {
    /// The number of handles. A range on one handle can be exported as that handle.
    pub fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Their numbers.
    pub fn ids(&self) -> &[HandleId] {
        &self.handles
    }
}

impl<H: Clone> Physical<H> {
    /// Holds all handles of a range, or none.
    ///
    /// # Errors
    /// [`Unavailable::Absent`], when the range is empty or a part of it has no slot that is Here; [`Unavailable::Busy`], when a thread works on
    /// one of the handles; if all of the range is allocated, that thread soon puts the handle back, and the caller tries again. Of several reasons
    /// the first by address.
    pub fn hold(&mut self, id: SegmentId, offset: Granules, len: Granules) -> Result<Hold, Unavailable> {
        let unit = self.unit.0;
        let mut end = u64::from(offset.0 / unit);
        let mut handles = SmallVec::new();
        for (at, slot) in self.windows.slots_in(id, offset, len) {
            if slot.state != SlotState::Here || u64::from(at) > end {
                return Err(Unavailable::Absent);
            }
            if self.handles.get(slot.handle).is_none_or(|handle| handle.state != HandleState::Mapped) {
                return Err(Unavailable::Busy);
            }
            end = u64::from(at) + u64::from(slot.units);
            handles.push(slot.handle);
        }
        let wanted = u64::from(offset.0) + u64::from(len.0);
        if handles.is_empty() || len == Granules::ZERO || end * u64::from(unit) < wanted {
            return Err(Unavailable::Absent);
        }
        for &id in &handles {
            let handle = self.handles.known(id);
            self.totals.held += if handle.holds == 0 { u64::from(handle.units) } else { 0 };
            handle.held_at = handle.held_at.or(handle.at);
            handle.holds = laws::holds::held_again(handle.holds);
        }
        Ok(Hold { handles })
    }

    /// Ends a hold. The handles may be moved or released afterwards: the caller makes sure that no code outside uses the addresses any more.
    ///
    /// # Panics
    /// B4, when one of the handles is not held: the hold belongs to another allocator.
    pub fn unhold(&mut self, hold: Hold) {
        for id in hold.handles {
            let handle = self.handles.known(id);
            law!(B4, handle.holds > 0, "unhold of {id:?}, which is not held");
            handle.holds -= 1;
            handle.held_at = handle.held_at.filter(|_| handle.holds > 0);
            self.totals.held -= if handle.holds == 0 { u64::from(handle.units) } else { 0 };
        }
    }

    /// The driver's handle of one that is held, to be exported; `None` if it is not held.
    pub fn held_native(&self, id: HandleId) -> Option<H> {
        self.handles.get(id).filter(|handle| handle.holds > 0).map(|handle| handle.native.clone())
    }

    /// Whether a part of a range is held, so that no part of it may go to another pool (B4).
    pub fn is_held(&self, id: SegmentId, offset: Granules, len: Granules) -> bool {
        let held = |handle| self.handles.get(handle).is_some_and(|handle| handle.holds > 0);
        self.windows
            .slots_in(id, offset, len)
            .any(|(_, slot)| slot.state == SlotState::Here && held(slot.handle))
    }
}
