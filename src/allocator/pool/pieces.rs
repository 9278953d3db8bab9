//! What a report has to compute from a pool's records, in pieces: each in one hold of the pool's lock, which is released in between.

use crate::allocator::registry::Registry;
use crate::driver::Driver;
use crate::heap::{ChunkId, Heap, RangeMap, SegmentView};
use crate::laws::cost;
use crate::order::{InFlight, Pending};
use crate::units::{Granules, SegmentId};

/// How many records a report reads in one hold of a pool's lock: some microseconds, however many there are. The rest is read in later
/// holds, so that a hit waits for one piece and not for all. The figures are exact when no other thread works meanwhile, as all of a report is.
pub(in crate::allocator) const PIECE: usize = 128;

pub(super) fn piece() -> usize {
    cost::piece(PIECE)
}

/// What a report reads in pieces: a pool's records, each piece in one hold of the pool's lock.
pub(in crate::allocator) trait Pieces {
    /// Reads a piece.
    fn hold<R>(&self, look: impl FnOnce(&Heap, &InFlight) -> R) -> R;
}

/// Piece after piece, each from where the one before ended, until one returns that there are no more.
pub(super) fn in_pieces<P: Pieces, C: Copy>(
    of: &P,
    first: C,
    mut look: impl FnMut(&Heap, &InFlight, C) -> Option<C>,
) {
    let mut from = Some(first);
    while let Some(at) = from {
        from = of.hold(|heap, in_flight| look(heap, in_flight, at));
    }
}

/// The longest free range, in bytes.
pub(in crate::allocator) fn longest_free(of: &impl Pieces) -> u64 {
    if let Some(longest) = of.hold(|heap, _| heap.longest_free(piece())) {
        return longest.bytes();
    }
    let mut longest = Granules::ZERO;
    in_pieces(of, 0, |heap, _, from| {
        let (end, free) = heap.free_from(from, piece() as u32)?;
        longest = free.map(|range| range.len).fold(longest, Granules::max);
        Some(end)
    });
    longest.bytes()
}

/// Bytes of ranges in flight whose next use no call can mark now.
pub(in crate::allocator) fn in_flight_held_back<D: Driver>(
    of: &impl Pieces,
    registry: &Registry<D>,
    expects_captures: bool,
) -> u64 {
    let is_held = |p: &Pending| {
        registry.timeline(p.on).is_some_and(|timeline| timeline.is_held_back(p.epoch, expects_captures))
    };
    let mut owned = 0;
    in_pieces(of, None, |_, in_flight, from| {
        let mut last = None;
        for (place, entry) in in_flight.behind(from).take(piece()) {
            owned += if entry.uses.iter().any(is_held) { entry.len.bytes() } else { 0 };
            last = Some(Some(place));
        }
        last
    });
    owned
}

/// The oldest use that a range in flight waits for: how many markers its epoch is behind.
pub(super) fn oldest_in_flight<D: Driver>(of: &impl Pieces, registry: &Registry<D>) -> Option<u64> {
    let mut oldest = None;
    in_pieces(of, None, |_, in_flight, from| {
        let mut last = None;
        for p in in_flight.oldest_behind(from).take(piece()) {
            let behind =
                registry.timeline(p.on).map(|timeline| (timeline.marked().0 + 1).saturating_sub(p.epoch.0));
            oldest = oldest.max(behind);
            last = Some(Some(p.on));
        }
        last
    });
    oldest
}

/// The ranges that are here, of windows only or of plain segments too.
pub(in crate::allocator) fn each_range(
    of: &impl Pieces,
    windows_only: bool,
    mut each: impl FnMut(SegmentId, RangeMap),
) {
    in_pieces(of, 0, |heap, _, from| {
        let (end, ranges) = heap.ranges_from(from, piece() as u32, windows_only)?;
        ranges.for_each(|(segment, range)| each(segment, range));
        Some(end)
    });
}

/// The segments that the pool knows.
pub(in crate::allocator) fn each_segment(of: &impl Pieces, mut each: impl FnMut(SegmentView)) {
    in_pieces(of, 0, |heap, _, from| {
        let end = from + piece();
        heap.segments().skip(from).take(piece()).for_each(&mut each);
        (end < heap.segments().len()).then_some(end)
    });
}

/// The ranges in flight, by their segments.
pub(in crate::allocator) fn each_in_flight(of: &impl Pieces, mut each: impl FnMut(SegmentId, Granules)) {
    in_pieces(of, None, |heap, in_flight, from| {
        let mut last = None;
        for (place, entry) in in_flight.behind(from).take(piece()) {
            let view = heap.view(ChunkId::from_index(entry.chunk), entry.generation);
            each(view.segment, view.len);
            last = Some(Some(place));
        }
        last
    });
}
