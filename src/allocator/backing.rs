//! Segments: what was taken from the device, within the limit.
//!
//! A segment is one plain allocation. It belongs to no pool; pools hold its bytes. Room under the limit is claimed
//! before the driver is asked and given back if it refuses, so that two growers cannot pass the limit together. It does
//! not know who wants the memory.

use crate::driver::{Driver, OwnedRange};
use crate::units::{Addr, Granules, SegmentId};
use hashbrown::HashMap;

/// What an allocator has taken from its device.
pub(crate) struct Backing<D: Driver> {
    pub(crate) segments: HashMap<SegmentId, OwnedRange<D>>,
    next: u32,
    pub(crate) taken: u64,
    pub(crate) taken_peak: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) growths: u64,
    pub(crate) releases: u64,
    /// Bytes taken since the beginning, released ones included.
    pub(crate) acquired: u64,
}

impl<D: Driver> Backing<D> {
    pub(crate) fn new(limit: Option<u64>) -> Backing<D> {
        Backing {
            segments: HashMap::new(),
            next: 0,
            taken: 0,
            taken_peak: 0,
            limit,
            growths: 0,
            releases: 0,
            acquired: 0,
        }
    }

    /// Claims room for a segment under `most` bytes in all; `false` if there is none.
    pub(crate) fn claim(&mut self, len: Granules, most: u64) -> bool {
        let room = most.min(self.limit.unwrap_or(u64::MAX)).saturating_sub(self.taken);
        if len.bytes() > room {
            return false;
        }
        self.taken += len.bytes();
        true
    }

    /// The driver refused: the claim is void.
    pub(crate) fn unclaim(&mut self, len: Granules) {
        self.taken -= len.bytes();
    }

    /// The driver gave what was claimed.
    ///
    /// # Panics
    /// After 2^32 segments.
    pub(crate) fn add(&mut self, range: OwnedRange<D>) -> (SegmentId, Addr) {
        let id = SegmentId(self.next);
        self.next = self.next.checked_add(1).expect("2^32 segments in one allocator");
        let base = range.addr();
        self.acquired += range.bytes();
        self.growths += 1;
        self.taken_peak = self.taken_peak.max(self.taken);
        self.segments.insert(id, range);
        (id, base)
    }

    /// Takes a segment out to be released; its bytes count as taken until [`Backing::released`].
    pub(crate) fn take_out(&mut self, id: SegmentId) -> Option<OwnedRange<D>> {
        self.segments.remove(&id)
    }

    /// The release failed: the segment is still there.
    pub(crate) fn put_back(&mut self, id: SegmentId, range: OwnedRange<D>) {
        self.segments.insert(id, range);
    }

    /// The device has the bytes again.
    pub(crate) fn released(&mut self, bytes: u64) {
        self.taken -= bytes;
        self.releases += 1;
    }

    /// Everything, at the end.
    pub(crate) fn take_all(&mut self) -> Vec<OwnedRange<D>> {
        self.taken = 0;
        self.segments.drain().map(|(_, range)| range).collect()
    }
}
