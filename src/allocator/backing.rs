//! Segments: memory reserved from the device, within the limit.
//!
//! A segment is one plain allocation, or one range of pinned memory. It belongs to no pool; pools hold its bytes. A window is a segment
//! too, whose bytes count as far as they are in its handles (`physical`). The length is claimed under
//! the limit before the driver is called, and the claim is withdrawn if the driver refuses, so that two growers cannot exceed the limit
//! together. In a group of allocators it is claimed there in the same hold of the lock. It does not know which pool the memory is for.

use super::group::{Crossing, Seat};
use crate::error::{DriverError, DriverErrorKind};
use crate::laws::limits;
use crate::sync::Arc;
use crate::units::{Granules, SegmentId};
use hashbrown::HashMap;

/// The ranges that an allocator owns, of its device's memory or of the host's.
pub(crate) struct Backing<R> {
    pub(crate) segments: HashMap<SegmentId, R>,
    next: u32,
    pub(crate) reserved: u64,
    pub(crate) reserved_peak: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) soft: Option<u64>,
    /// The crossing of the soft limit was reported.
    reported: bool,
    /// The place in a group, where the same bytes count.
    pub(crate) seat: Option<Arc<Seat>>,
    pub(crate) growths: u64,
    pub(crate) releases: u64,
    /// Of both, those of segments.
    pub(crate) segments_created: u64,
    pub(crate) segments_released: u64,
    /// Bytes reserved since the beginning, released ones included.
    pub(crate) reserved_in_all: u64,
}

impl<R> Backing<R> {
    pub(crate) fn new(limit: Option<u64>) -> Backing<R> {
        Backing {
            segments: HashMap::new(),
            next: 0,
            reserved: 0,
            reserved_peak: 0,
            limit,
            soft: None,
            reported: false,
            seat: None,
            growths: 0,
            releases: 0,
            segments_created: 0,
            segments_released: 0,
            reserved_in_all: 0,
        }
    }

    /// How many bytes more may be reserved, under the limit, the group's and `max` bytes in all.
    pub(crate) fn room(&self, max: u64) -> u64 {
        let own = self.own_room(max);
        self.seat.as_ref().map_or(own, |seat| own.min(seat.room()))
    }

    /// The same, whatever the group's limit is.
    pub(crate) fn own_room(&self, max: u64) -> u64 {
        max.min(self.limit.unwrap_or(u64::MAX)).saturating_sub(self.reserved)
    }

    /// How many bytes may be reserved in all below the soft limits, the own and the group's: at least what is.
    pub(crate) fn soft_max(&self) -> u64 {
        let own = self.soft.unwrap_or(u64::MAX).saturating_sub(self.reserved);
        let room = self.seat.as_ref().map_or(own, |seat| own.min(seat.soft_room()));
        self.reserved.saturating_add(room)
    }

    /// How many bytes of what is reserved are above a soft limit.
    pub(crate) fn above_soft(&self) -> u64 {
        let own = self.reserved.saturating_sub(self.soft.unwrap_or(u64::MAX));
        self.seat.as_ref().map_or(own, |seat| own.max(seat.above_soft().min(self.reserved)))
    }

    /// Claims the length of a segment under `max` bytes in all; `false` if that would exceed it.
    pub(crate) fn claim(&mut self, len: Granules, max: u64) -> bool {
        if len.bytes() > self.own_room(max) || !self.seat.as_ref().is_none_or(|seat| seat.claim(len.bytes()))
        {
            return false;
        }
        self.reserved += len.bytes();
        true
    }

    /// The driver refused: withdraws the claim.
    pub(crate) fn unclaim(&mut self, len: Granules) {
        self.give_up(len.bytes());
    }

    fn give_up(&mut self, bytes: u64) {
        self.reserved -= bytes;
        self.reported &= self.soft.is_none_or(|soft| self.reserved > soft);
        if let Some(seat) = &self.seat {
            seat.give_up(bytes);
        }
    }

    /// Sets the soft limit, whose crossing was not reported yet.
    pub(crate) fn set_soft(&mut self, soft: Option<u64>) {
        (self.soft, self.reported) = (soft, false);
    }

    /// The soft limits that were crossed since this was last asked, each once until less is reserved.
    pub(crate) fn crossings(&mut self) -> [Option<Crossing>; 2] {
        let reserved = self.reserved;
        let above = self.soft.filter(|&soft| reserved > soft);
        let reports = limits::reports_crossing(above.is_some(), self.reported);
        self.reported = above.is_some();
        let own = above.filter(|_| reports).map(|limit| Crossing { reserved, limit, of_group: false });
        [own, self.seat.as_ref().and_then(|seat| seat.granted())]
    }

    /// The driver allocated so many bytes that were claimed.
    ///
    /// # Panics
    /// After 2^32 segments.
    pub(crate) fn add(&mut self, range: R, bytes: u64) -> SegmentId {
        let id = self.number();
        self.granted(bytes);
        self.segments_created += 1;
        self.segments.insert(id, range);
        id
    }

    /// The number of a segment to come.
    ///
    /// # Panics
    /// After 2^32 segments.
    pub(crate) fn number(&mut self) -> SegmentId {
        let id = SegmentId(self.next);
        self.next = self.next.checked_add(1).expect("2^32 segments in one allocator");
        id
    }

    /// The driver gave so many bytes that were claimed, for one request.
    pub(crate) fn granted(&mut self, bytes: u64) {
        self.reserved_in_all += bytes;
        self.growths += 1;
        self.reserved_peak = self.reserved_peak.max(self.reserved);
    }

    /// Takes a segment out for release; its bytes count as reserved until [`Backing::released`].
    pub(crate) fn take_out(&mut self, id: SegmentId) -> Option<R> {
        self.segments.remove(&id)
    }

    /// The release failed: puts the segment back.
    pub(crate) fn put_back(&mut self, id: SegmentId, range: R) {
        self.segments.insert(id, range);
    }

    /// A handle's bytes were given back to the device.
    pub(crate) fn released(&mut self, bytes: u64) {
        self.give_up(bytes);
        self.releases += 1;
    }

    /// A segment that was taken out was given back to the device.
    pub(crate) fn segment_released(&mut self, bytes: u64) {
        self.released(bytes);
        self.segments_released += 1;
    }

    /// Sets the peak to the present value.
    pub(crate) fn reset_peak(&mut self) {
        self.reserved_peak = self.reserved;
    }

    /// Takes out every segment, at the end. What is reserved counts in a group until the seat's end.
    pub(crate) fn take_all(&mut self) -> Vec<R> {
        self.reserved = 0;
        self.segments.drain().map(|(_, range)| range).collect()
    }
}

/// The error of an allocator's end that could not wait for the uses of so many bytes, with a driver whose frees wait for nothing.
pub(super) fn kept(bytes: u64, whose: &str) -> DriverError {
    let message = format!(
        "{bytes} bytes of {whose} memory stay allocated for good: what may still use them could not be waited for at the allocator's end, and this driver's frees wait for nothing; drop an allocator's last handles when the device can be waited for"
    );
    DriverError::new("end of an allocator", 0, DriverErrorKind::Other, message)
}
