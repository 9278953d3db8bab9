//! Segments: memory acquired from the device, within the limit.
//!
//! A segment is one plain allocation, or one range of pinned memory. It belongs to no pool; pools hold its bytes. A window is a segment
//! too, whose bytes count as far as they are in its handles (`physical`). The length is claimed under
//! the limit before the driver is called, and the claim is withdrawn if the driver refuses, so that two growers cannot exceed the limit
//! together. It does not know which pool the memory is for.

use crate::error::{DriverError, DriverErrorKind};
use crate::units::{Granules, SegmentId};
use hashbrown::HashMap;

/// The ranges that an allocator owns, of its device's memory or of the host's.
pub(crate) struct Backing<R> {
    pub(crate) segments: HashMap<SegmentId, R>,
    next: u32,
    pub(crate) reserved: u64,
    pub(crate) reserved_peak: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) growths: u64,
    pub(crate) releases: u64,
    /// Bytes acquired since the beginning, released ones included.
    pub(crate) acquired: u64,
}

impl<R> Backing<R> {
    pub(crate) fn new(limit: Option<u64>) -> Backing<R> {
        Backing {
            segments: HashMap::new(),
            next: 0,
            reserved: 0,
            reserved_peak: 0,
            limit,
            growths: 0,
            releases: 0,
            acquired: 0,
        }
    }

    /// Claims the length of a segment under `max` bytes in all; `false` if that would exceed it.
    pub(crate) fn claim(&mut self, len: Granules, max: u64) -> bool {
        let room = max.min(self.limit.unwrap_or(u64::MAX)).saturating_sub(self.reserved);
        if len.bytes() > room {
            return false;
        }
        self.reserved += len.bytes();
        true
    }

    /// The driver refused: withdraws the claim.
    pub(crate) fn unclaim(&mut self, len: Granules) {
        self.reserved -= len.bytes();
    }

    /// The driver allocated so many bytes that were claimed.
    ///
    /// # Panics
    /// After 2^32 segments.
    pub(crate) fn add(&mut self, range: R, bytes: u64) -> SegmentId {
        let id = self.number();
        self.granted(bytes);
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
        self.acquired += bytes;
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

    /// The bytes were given back to the device.
    pub(crate) fn released(&mut self, bytes: u64) {
        self.reserved -= bytes;
        self.releases += 1;
    }

    /// Sets the peak to the present value.
    pub(crate) fn reset_peak(&mut self) {
        self.reserved_peak = self.reserved;
    }

    /// Takes out every segment, at the end.
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
