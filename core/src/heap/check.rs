//! The checker of all laws of the heap: slow and complete.
//!
//! It walks every segment, every bin and the vacant list, counts from scratch and compares with what the heap keeps.
//! It does not know what the heap was requested to do; a model in the tests does.

use super::bins::Bin;
use super::chunk::{ChunkState, MIXED, NIL, UNIFORM};
use super::{Heap, Kind};
use crate::units::{Epoch, GRANULE_BYTES};

/// The counts of one walk over all segments, in granules, bytes or chunks as in the totals.
#[derive(Default)]
struct Count {
    free: u64,
    allocated: u64,
    in_flight: u64,
    requested: u64,
    live: u64,
    free_chunks: u64,
    in_flight_chunks: u64,
    absent_chunks: usize,
    chunks: u64,
}

impl Heap {
    /// Checks all laws H1 to H10 (H7 is checked wherever a handle is used). For tests, after every step, and for
    /// debugging; its cost is the number of chunks.
    ///
    /// # Panics
    /// If an invariant does not hold; the message has its number and the chunks.
    pub fn check(&self) {
        let mut count = Count::default();
        let mut last_end = 0;
        let mut by_base: Vec<_> = self.segments.iter().collect();
        by_base.sort_by_key(|s| s.base);
        for s in by_base {
            law!(H6, s.base.0.is_multiple_of(GRANULE_BYTES) && s.len > 0, "segment {} at {}", s.id.0, s.base);
            law!(H6, u128::from(s.base.0) >= last_end, "segment {} overlaps the one below it", s.id.0);
            last_end = s.end();
        }
        for slot in self.segments.slots() {
            self.check_segment(slot, &mut count);
        }
        let t = &self.totals;
        law!(H5, t.allocated + t.in_flight <= t.owned, "the totals do not add up: {:?}", self.totals);
        for (name, kept, counted) in [
            ("free", t.free(), count.free),
            ("allocated", t.allocated, count.allocated),
            ("in flight", t.in_flight, count.in_flight),
            ("requested", t.requested(), count.requested),
            ("live", t.live(), count.live),
            ("free chunks", t.free_chunks, count.free_chunks),
            ("in-flight chunks", t.in_flight_chunks, count.in_flight_chunks),
        ] {
            law!(H5, kept == counted, "{name}: the total is {kept}, the chunks say {counted}");
        }
        self.check_bins(&count);
        self.check_vacant(&count);
        law!(
            H9,
            self.absent.len() == count.absent_chunks,
            "the Absent index has {} chunks, the segments {}",
            self.absent.len(),
            count.absent_chunks
        );
    }

    fn check_segment(&self, slot: u32, count: &mut Count) {
        let s = &self.segments[slot];
        let (mut end, mut before, mut at) = (0_u64, s.sentinel, self.chunks[s.sentinel].next);
        let (mut here, mut free) = (0_u64, 0_u64);
        let mut last = None;
        while at != s.sentinel {
            let c = &self.chunks[at];
            let len = u64::from(c.len);
            law!(
                H1,
                (c.segment, c.place.segment()) == (slot, s.id),
                "chunk {at} is linked into segment {} but belongs elsewhere",
                s.id.0
            );
            law!(
                H1,
                u64::from(c.offset()) == end,
                "chunk {at} begins at {}, its neighbour ends at {end}",
                c.offset()
            );
            law!(H1, c.len > 0, "chunk {at} is empty");
            law!(H1, c.prev == before, "chunk {at} follows chunk {before} but is linked back to {}", c.prev);
            let merges = matches!(c.state, Some(ChunkState::Free | ChunkState::Absent));
            law!(
                H2,
                !merges || c.state != last,
                "chunks {before} and {at} are neighbours, both {:?}",
                c.state
            );
            law!(
                H4,
                c.is(ChunkState::Free) || c.bin == Bin::NONE,
                "chunk {at} is {:?} but in a bin",
                c.state
            );
            count.chunks += 1;
            match c.state {
                Some(ChunkState::Free) => {
                    law!(H3, c.bin != Bin::NONE, "chunk {at} is free but in no bin");
                    let known = c.tag == UNIFORM || c.tag == MIXED && s.unit > 0;
                    law!(H10, known, "chunk {at} is free but has the tag {} in segment {}", c.tag, s.id.0);
                    count.free += len;
                    count.free_chunks += 1;
                    free += len;
                }
                Some(ChunkState::Allocated) => {
                    count.allocated += len;
                    count.requested += c.requested;
                    count.live += 1;
                }
                Some(ChunkState::InFlight) => {
                    count.in_flight += len;
                    count.in_flight_chunks += 1;
                }
                Some(ChunkState::Absent) => {
                    let indexed = self.absent.get(&(s.id, c.offset())) == Some(&at);
                    law!(H9, indexed, "chunk {at} is Absent at {} but not in the index", c.offset());
                    law!(
                        H9,
                        c.stamp == Epoch::COMPLETE && c.requested == 0,
                        "chunk {at} is Absent but remembers"
                    );
                    let away = if s.unit == 0 { 0..0 } else { s.inside(c.offset(), c.len) };
                    let stamp = s.units.latest(&away);
                    law!(
                        H10,
                        stamp == Epoch::COMPLETE,
                        "units of chunk {at} are away but used up to {}",
                        stamp.0
                    );
                    count.absent_chunks += 1;
                }
                None => super::broken(
                    "H9",
                    format_args!("chunk {at} is vacant but linked into segment {}", s.id.0),
                ),
            }
            here += if c.is(ChunkState::Absent) { 0 } else { len };
            end += len;
            last = c.state;
            before = at;
            at = c.next;
        }
        law!(
            H1,
            end == u64::from(s.len),
            "the chunks of segment {} tile {end} of {} granules",
            s.id.0,
            s.len
        );
        law!(H5, u64::from(s.here) == here, "segment {} has {here} granules here, not {}", s.id.0, s.here);
        law!(H5, u64::from(s.free) == free, "segment {} has {free} free granules, not {}", s.id.0, s.free);
    }

    fn check_bins(&self, count: &Count) {
        let mut binned = 0;
        for kind in Kind::ALL {
            let mut longest = 0;
            for bin in self.bins.in_use(kind) {
                let (marked, contents) = self.bins.contents(bin);
                let mut before = None;
                for id in contents {
                    let c = &self.chunks[id];
                    law!(H4, c.is(ChunkState::Free), "chunk {id} is {:?} but in a bin", c.state);
                    let (linked, back) = self.bins.linked_back(id, before, bin);
                    law!(H3, linked, "chunk {id} is linked back to {back} in its bin");
                    let home = Bin::of(self.segments[c.segment].kind, c.len) == bin && c.bin == bin;
                    law!(H3, home, "chunk {id} of {} granules is in the wrong bin, {kind:?} {bin:?}", c.len);
                    before = Some(id);
                    binned += 1;
                    longest = longest.max(c.len);
                    law!(H3, binned <= count.free_chunks, "a bin has more chunks than are free: a list");
                }
                law!(H3, marked == before.is_some(), "the bit of {kind:?} {bin:?} is {marked}");
            }
            let bound = self.largest_free(kind).0;
            law!(H8, bound >= longest, "the {kind:?} bound is {bound} granules, the largest has {longest}");
            law!(
                H8,
                Bin::of(kind, bound) == Bin::of(kind, longest),
                "the {kind:?} bound of {bound} granules is far from {longest}"
            );
        }
        law!(H3, binned == count.free_chunks, "{binned} chunks are in bins, {} are free", count.free_chunks);
    }

    /// Checks the bins alone, for `free_chunks` free chunks: for the test of a law that others would hide.
    #[cfg(test)]
    pub(super) fn check_bins_of(&self, free_chunks: u64) {
        self.check_bins(&Count { free_chunks, ..Count::default() });
    }

    fn check_vacant(&self, count: &Count) {
        let mut vacant = 0;
        let mut at = self.chunks.first_vacant();
        while at != NIL {
            let c = &self.chunks[at];
            law!(H9, c.state.is_none(), "chunk {at} is {:?} but on the vacant list", c.state);
            law!(H9, c.prev == NIL && c.bin == Bin::NONE, "chunk {at} is vacant but linked");
            vacant += 1;
            law!(H9, vacant <= self.chunks.slots(), "the vacant list is a list");
            at = c.next;
        }
        law!(
            H9,
            u64::from(vacant) + count.chunks + self.segments.iter().count() as u64 + 1
                == u64::from(self.chunks.slots().max(1)),
            "{} slots, but {vacant} are vacant and {} in segments",
            self.chunks.slots(),
            count.chunks
        );
    }
}
