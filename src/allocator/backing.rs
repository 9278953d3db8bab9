//! Segments: what was taken from the device, within the limit.
//!
//! A segment is one plain allocation, or one range of pinned memory. It belongs to no pool; pools hold its bytes. A window is a segment
//! too, of which the bytes count that are in its handles (`physical`). Room under the limit is claimed
//! before the driver is asked and given back if it refuses, so that two growers cannot pass the limit together. It does
//! not know who wants the memory.

use crate::error::{DriverError, DriverErrorKind};
use crate::units::{Granules, SegmentId};
use hashbrown::HashMap;

/// What an allocator has taken from its device, or of the host's memory: owned ranges.
pub(crate) struct Backing<R> {
    pub(crate) segments: HashMap<SegmentId, R>,
    next: u32,
    pub(crate) reserved: u64,
    pub(crate) reserved_peak: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) growths: u64,
    pub(crate) releases: u64,
    /// Bytes taken since the beginning, released ones included.
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

    /// Claims room for a segment under `max` bytes in all; `false` if there is none.
    pub(crate) fn claim(&mut self, len: Granules, max: u64) -> bool {
        let room = max.min(self.limit.unwrap_or(u64::MAX)).saturating_sub(self.reserved);
        if len.bytes() > room {
            return false;
        }
        self.reserved += len.bytes();
        true
    }

    /// The driver refused: the claim is void.
    pub(crate) fn unclaim(&mut self, len: Granules) {
        self.reserved -= len.bytes();
    }

    /// The driver gave so many bytes that were claimed.
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

    /// Takes a segment out to be released; its bytes count as taken until [`Backing::released`].
    pub(crate) fn take_out(&mut self, id: SegmentId) -> Option<R> {
        self.segments.remove(&id)
    }

    /// The release failed: the segment is still there.
    pub(crate) fn put_back(&mut self, id: SegmentId, range: R) {
        self.segments.insert(id, range);
    }

    /// The device has the bytes again.
    pub(crate) fn released(&mut self, bytes: u64) {
        self.reserved -= bytes;
        self.releases += 1;
    }

    /// Sets the peak to the present value.
    pub(crate) fn reset_peak(&mut self) {
        self.reserved_peak = self.reserved;
    }

    /// Everything, at the end.
    pub(crate) fn take_all(&mut self) -> Vec<R> {
        self.reserved = 0;
        self.segments.drain().map(|(_, range)| range).collect()
    }
}

/// An allocator's end could not wait for what may still use so many bytes, and the driver's frees wait for nothing.
pub(super) fn kept(bytes: u64, whose: &str) -> DriverError {
    let message = format!(
        "{bytes} bytes of {whose} memory stay allocated for good: what may still use them could not be waited for at the allocator's end, and this driver's frees wait for nothing; drop an allocator's last handles when the device can be waited for"
    );
    DriverError::new("end of an allocator", 0, DriverErrorKind::Other, message)
}
