//! Into which pieces a staged copy is divided, through how many slots they go, and which of them are under way at a time.
//!
//! All of it follows from the copy's length, the number of threads and the configured sizes, never from how fast anything was: the driver's calls are
//! the same in every run. It knows neither slots nor copies.

use crate::allocator::StagingPieces;

/// Pieces that are copied while others are filled or emptied: one travels, the next is queued.
const COPIES: usize = 2;
/// The calling thread alone fills or empties one slot while two travel.
const SLOTS_ALONE: usize = COPIES + 1;

/// How one copy is staged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    bytes: usize,
    first: usize,
    most: usize,
    part: usize,
    /// Whether the staging threads move its bytes.
    pub(super) threads: bool,
    /// So many slots there are at most.
    pub(super) slots: usize,
    /// So many pieces are queued for the device, or under way there, while the threads have the other slots.
    copies: usize,
    /// Whether a copy to the host is written past the caches.
    pub(super) streams: bool,
}

impl Plan {
    pub(super) fn new(bytes: usize, threads: usize, sizes: StagingPieces) -> Plan {
        let StagingPieces { single, threads_from, first, most, most_alone, part, stream_from } = sizes;
        let threads = if bytes > single && bytes >= threads_from { threads } else { 0 };
        let copies = (threads / 2).max(COPIES);
        let slots = if threads == 0 { SLOTS_ALONE } else { (2 * threads).max(2 * copies) };
        let most = if threads == 0 { most_alone } else { most };
        let first = match threads {
            _ if bytes <= single => bytes,
            0 => (bytes / 2).clamp(single.min(most), most),
            // Pieces for several threads: with two of 1 MiB a copy of 2 MiB took 197 µs on an H200, with eight of 256 KiB 145.
            _ if bytes < 4 * first => first / 4,
            _ => first,
        };
        let first = first.max(1);
        let streams = bytes >= stream_from;
        Plan {
            bytes,
            first,
            most: most.max(first),
            part: part.max(1),
            threads: threads > 0,
            slots,
            copies,
            streams,
        }
    }

    /// How many pieces are filled ahead of the one that is queued next, with that.
    pub(super) fn ahead(&self, threads: bool) -> usize {
        if threads { self.slots - self.copies } else { 1 }
    }

    /// How many copies to the host are queued ahead of the one that is emptied next, with that.
    pub(super) fn copies_ahead(&self, threads: bool) -> usize {
        if threads { self.copies } else { self.slots }
    }

    /// How long the slots are.
    pub(super) fn slot(&self) -> usize {
        self.size(self.bytes / 2).min(self.bytes)
    }

    /// The pieces, as where each begins and how long it is.
    pub(super) fn pieces(self) -> impl Iterator<Item = (usize, usize)> {
        let mut done = 0;
        core::iter::from_fn(move || {
            let left = self.bytes - done;
            let piece = (done, self.size(done.min(left)).min(left));
            done += piece.1;
            (piece.1 > 0).then_some(piece)
        })
    }

    /// The size of a piece that has so much before it and behind it: short at both ends, where nothing overlaps with it.
    fn size(&self, beside: usize) -> usize {
        let size = (beside / self.part).clamp(self.first, self.most);
        if size < PAGE { size } else { size - size % PAGE }
    }
}

/// Pieces begin at pages.
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes() -> impl Strategy<Value = StagingPieces> {
        let sizes = (0..9000_usize, 0..9000_usize, 1..9000_usize, 1..20_000_usize, 1..9000_usize, 1..9_usize);
        sizes.prop_map(|(single, threads_from, first, most, most_alone, part)| {
            let mut pieces = StagingPieces::default();
            (pieces.single, pieces.threads_from, pieces.first) = (single, threads_from, first);
            (pieces.most, pieces.most_alone, pieces.part) = (most, most_alone, part);
            pieces
        })
    }

    proptest! {
        /// The pieces are the copy, without gaps, and each fits into a slot.
        #[test]
        fn pieces_are_the_copy(bytes in 0..200_000_usize, threads in 0..9_usize, sizes in sizes()) {
            let plan = Plan::new(bytes, threads, sizes);
            let mut end = 0;
            for (at, len) in plan.pieces() {
                prop_assert_eq!(at, end);
                prop_assert!(len > 0 && len <= plan.slot(), "{} of {}", len, plan.slot());
                end += len;
            }
            prop_assert_eq!(end, bytes);
            prop_assert!(plan.copies >= 2 && plan.slots > plan.copies);
            prop_assert!(plan.slots <= (2 * threads).max(4));
        }
    }

    #[test]
    fn a_short_copy_is_one_piece_and_long_ones_are_short_at_both_ends() {
        let plan = |bytes| Plan::new(bytes, 8, StagingPieces::default());
        assert_eq!(plan(64 << 10).pieces().collect::<Vec<_>>(), [(0, 64 << 10)]);
        assert_eq!((plan(4).slot(), plan(4).threads), (4, false));
        let long: Vec<usize> = plan(1 << 30).pieces().map(|(_, len)| len).collect();
        assert_eq!(long[0], 1 << 20);
        assert!(long[long.len() - 1] <= 1 << 20);
        assert_eq!(long.iter().max(), Some(&(4 << 20)));
        assert_eq!((plan(1 << 30).slots, plan(1 << 30).copies), (16, 4));
    }
}
