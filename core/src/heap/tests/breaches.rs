//! Every law must be able to break: each row plants one breach, or makes a call that no correct caller makes, and gives the message
//! in which the operation that detects it, or the checker, names the law.
//!
//! A test also checks by the messages that no `law!` is without a row: a message that several places share has as many
//! rows. It cannot tell which of them a row breaks. Those of [`UNBREAKABLE`] have none, each for the reason given there.

use super::{Heap, Kind, S, Taken, give, heap, islands, take};
use crate::heap::bins::Bin;
use crate::heap::chunk::{ChunkState, Place};
use crate::heap::{ChunkId, Hole, Want};
use crate::units::{Addr, Epoch, Granules, SegmentId};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A law's number, the message, and what breaks it.
type Breach = (&'static str, &'static str, fn());

/// Messages of laws that cannot be broken, and why.
const UNBREAKABLE: &[(&str, &str)] = &[
    ("{free} arrived but is not free", "it was made free the line before"),
    ("a bin has more chunks than are free: a list", "a list's second round meets a back link that is wrong"),
    (
        "the {kind:?} bound of {bound} granules is far from {longest}",
        "the bound is no longer than the bin of the longest reaches, once no bit and no bin is wrong",
    ),
];

fn alter(heap: &mut Heap, id: u32) -> &mut crate::heap::chunk::Chunk {
    &mut heap.chunks[id]
}

/// A heap of 64 granules with this many chunks of 16 taken, in the slots from 1 on; the rest is slot 2's.
fn taken<const N: usize>() -> (Heap, [Taken; N]) {
    let mut heap = heap(64);
    let all = core::array::from_fn(|_| take(&mut heap, 16));
    (heap, all)
}

/// A heap of 64 granules, all of it Absent again.
fn absent() -> Heap {
    let mut heap = heap(64);
    heap.cut_free_of(S);
    heap.check();
    heap
}

/// A heap of a window of 64 granules in units of 16, none of which is here.
fn window() -> Heap {
    let mut heap = Heap::new();
    heap.add_window(S, Addr(0x10_0000), Granules(64), Kind::Large, Granules(16));
    heap
}

/// Where chunks enter and leave bins. Of [`islands`] the first is slot 3, the second slot 5, and so on.
const BINS: &[Breach] = &[
    ("H4", "chunk 2 is Some(InFlight) but changes its length in a bin", || {
        let mut heap = heap(64);
        alter(&mut heap, 2).state = Some(ChunkState::InFlight);
        take(&mut heap, 8);
    }),
    ("H3", "chunk 2 changes its length in a bin but is in none", || {
        let mut heap = heap(64);
        alter(&mut heap, 2).bin = Bin::NONE;
        take(&mut heap, 8);
    }),
    ("H4", "chunk 3 is Some(Allocated) but enters a bin", || {
        let (mut heap, _) = taken::<1>();
        heap.bins.enter(heap.chunks.all_mut(), 3, Kind::Large);
    }),
    ("H3", "chunk 2 enters a bin but is in one", || {
        let mut heap = heap(64);
        heap.bins.enter(heap.chunks.all_mut(), 2, Kind::Large);
    }),
    // Behind the head of its bin: not the path of an exact fit at the head.
    ("H4", "chunk 3 is Some(InFlight) but leaves a bin", || {
        let mut heap = islands(&[67, 66]);
        alter(&mut heap, 3).state = Some(ChunkState::InFlight);
        take(&mut heap, 67);
    }),
    ("H3", "chunk 3 leaves a bin but is in none", || {
        let mut heap = islands(&[67, 66]);
        alter(&mut heap, 3).bin = Bin::NONE;
        take(&mut heap, 67);
    }),
    ("H3", "chunk 3 is behind chunk 5 but linked to bin 9", || {
        let mut heap = islands(&[66, 67, 66]);
        heap.bins.link_mut(3).prev = 9;
        take(&mut heap, 67);
    }),
    ("H3", "chunk 3 is before chunk 5 but linked to bin 48", || {
        let mut heap = islands(&[66, 67, 66]);
        heap.bins.link_mut(5).prev = heap.bins.link_mut(7).next - 2;
        take(&mut heap, 67);
    }),
    // At the head: an exact fit.
    ("H4", "chunk 2 is Some(InFlight) but leaves a bin", || {
        let mut heap = heap(64);
        alter(&mut heap, 2).state = Some(ChunkState::InFlight);
        take(&mut heap, 64);
    }),
    ("H3", "chunk 2, of bin 48, is the first of bin 48 but behind bin 9", || {
        let mut heap = heap(64);
        heap.bins.link_mut(2).prev = 9;
        take(&mut heap, 64);
    }),
    ("H3", "chunk 2, of bin 32, is the first of bin 48 but behind bin 48", || {
        let mut heap = heap(64);
        alter(&mut heap, 2).bin = Bin::of(Kind::Large, 32);
        take(&mut heap, 64);
    }),
    ("H3", "chunk 3 is behind chunk 5 but linked to bin 7", || {
        let mut heap = islands(&[16, 16]);
        heap.bins.link_mut(3).prev = 7;
        take(&mut heap, 16);
    }),
];

/// Where chunks are cut and joined, and slots are reused.
const CHUNKS: &[Breach] = &[
    ("H9", "chunk 3 is on the vacant list but Some(Free)", || {
        let (mut heap, [t]) = taken();
        give(&mut heap, &t);
        alter(&mut heap, 3).state = Some(ChunkState::Free);
        heap.add_segment(SegmentId(8), Addr(0x100_0000), Granules(1), Kind::Large);
    }),
    ("H9", "chunk 3 is on the vacant list but Some(InFlight)", || {
        let (mut heap, [t]) = taken();
        give(&mut heap, &t);
        alter(&mut heap, 3).state = Some(ChunkState::InFlight);
        take(&mut heap, 8);
    }),
    ("H9", "chunk 2 was vacated twice", || {
        let mut heap = absent();
        alter(&mut heap, 2).state = None;
        heap.remove_segment(S);
    }),
    ("H4", "chunk 2 was vacated while in a bin", || {
        let mut heap = absent();
        alter(&mut heap, 2).bin = Bin::of(Kind::Large, 64);
        heap.remove_segment(S);
    }),
    ("H1", "chunk 2 of 64 granules cannot be split at 64", || {
        heap(64).chunks.split(2, 64);
    }),
    ("H1", "chunk 2 of 8 granules cannot be split at 16", || {
        let mut heap = heap(64);
        alter(&mut heap, 2).len = 8;
        take(&mut heap, 16);
    }),
    ("H9", "chunk 2 is vacant but split", || {
        let mut heap = heap(64);
        alter(&mut heap, 2).state = None;
        heap.chunks.split(2, 8);
    }),
    ("H1", "chunk 2 of 64 granules cannot be sheared at 64", || {
        heap(64).chunks.split_front(2, 64);
    }),
    ("H9", "chunk 3 is vacant but sheared", || {
        let (mut heap, _) = taken::<1>();
        alter(&mut heap, 3).state = None;
        heap.chunks.split_front(3, 4);
    }),
    ("H1", "chunk 4 follows chunk 3 but is linked to 9", || {
        let (mut heap, [a, _]) = taken();
        give(&mut heap, &a);
        alter(&mut heap, 4).prev = 9;
        heap.cut(a.chunk(), Granules(4), Granules(4));
    }),
    ("H1", "chunk 5 follows chunk 4 but is linked to 9", || {
        let (mut heap, [a, b, _]) = taken();
        give(&mut heap, &a);
        alter(&mut heap, 5).prev = 9;
        give(&mut heap, &b);
    }),
    ("H1", "chunk 3 precedes chunk 4 but is linked to 8", || {
        let (mut heap, [_, b]) = taken();
        heap.hold(b.chunk(), b.generation(), Epoch(4));
        alter(&mut heap, 3).next = 8;
        heap.cut(b.chunk(), Granules(16), Granules(8));
    }),
    ("H1", "chunk 3 precedes chunk 2 but is linked to 9", || {
        let (mut heap, _) = taken::<1>();
        alter(&mut heap, 3).next = 9;
        take(&mut heap, 8);
    }),
    ("H1", "chunk 3 precedes chunk 4 but is linked to 9", || {
        let (mut heap, [_, b]) = taken();
        alter(&mut heap, 3).next = 9;
        give(&mut heap, &b);
    }),
    (
        "H1",
        "chunks 3 and 4 are merged but are no neighbours: segment 7 at 0 ends at 16, segment 7 at 20",
        || {
            let (mut heap, [a, b, _]) = taken();
            give(&mut heap, &a);
            alter(&mut heap, 4).place = Place::new(S, 20);
            give(&mut heap, &b);
        },
    ),
    (
        "H1",
        "chunks 2 and 3 are merged but are no neighbours: segment 7 at 0 ends at 15, segment 7 at 16",
        || {
            let (mut heap, [t]) = taken();
            alter(&mut heap, 3).len = 15;
            give(&mut heap, &t);
        },
    ),
    ("H4", "chunk 2 is merged while in a bin", || {
        let (mut heap, [_, b]) = taken();
        heap.cut(ChunkId(2), Granules(32), Granules(32));
        alter(&mut heap, 2).bin = Bin::of(Kind::Large, 64);
        heap.hold(b.chunk(), b.generation(), Epoch(4));
        heap.cut(b.chunk(), Granules(16), Granules(16));
    }),
    ("H1", "65 granules are cut from chunk 2, which has 64", || {
        heap(64).detach(Kind::Large, 2, 0, 65);
    }),
    ("H1", "chunk 2 is too short, by a skip of 0", || {
        heap(64).split_fit(Kind::Large, 2, &Want::new(Granules(65), Kind::Large));
    }),
    ("H4", "chunk 3 is Some(Allocated) but handed out", || {
        let (mut heap, _) = taken::<1>();
        heap.take_whole(3, 1);
    }),
    ("H4", "chunk 2 is handed out while in a bin", || {
        heap(64).take_whole(2, 1);
    }),
    ("H4", "chunk 3 becomes free but is in a bin", || {
        let (mut heap, [t]) = taken();
        alter(&mut heap, 3).bin = Bin::of(Kind::Large, 64);
        give(&mut heap, &t);
    }),
];

/// Calls that a caller must not make: about ranges that arrive and leave, segments, and handles.
const CALLERS: &[Breach] = &[
    ("H1", "extend of segment 7 at 60 by 8 granules: some of it is here already", || {
        let mut heap = heap(100);
        heap.cut(ChunkId(2), Granules(64), Granules(36));
        heap.extend(S, Granules(60), Granules(8), Epoch(1));
    }),
    ("H1", "extend of segment 7 at 64 by 37 granules: the range leaves the segment", || {
        let mut heap = heap(100);
        heap.cut(ChunkId(2), Granules(64), Granules(36));
        heap.extend(S, Granules(64), Granules(37), Epoch(1));
    }),
    ("H1", "extend of segment 7 at 0 by 0 granules: the range is empty", || {
        absent().extend(S, Granules(0), Granules(0), Epoch(1));
    }),
    ("H1", "extend of segment 3 at 0 by 1 granules: this heap does not know the segment", || {
        heap(100).extend(SegmentId(3), Granules(0), Granules(1), Epoch(1));
    }),
    ("H1", "cut of 65 granules at 0 from chunk 2, which has 64 at 0", || {
        heap(64).cut(ChunkId(2), Granules(0), Granules(65));
    }),
    ("H1", "chunk 3 is in flight from 0 on: a piece at 8 is not its front", || {
        let (mut heap, [t]) = taken();
        heap.hold(t.chunk(), t.generation(), Epoch(9));
        heap.cut(t.chunk(), Granules(8), Granules(8));
    }),
    ("H2", "segment 7 is all Absent but in pieces", || {
        let mut heap = absent();
        alter(&mut heap, 2).len = 32;
        heap.remove_segment(S);
    }),
    ("H4", "cut of chunk 3, which is allocated: only free ranges and ranges in flight may leave", || {
        let (mut heap, [t]) = taken();
        heap.cut(t.chunk(), Granules(0), Granules(16));
    }),
    ("H4", "chunk 3 is taken from but is not free", || {
        let (mut heap, [t]) = taken();
        heap.take_of(t.chunk(), &Want::new(Granules(1), Kind::Large), 1);
    }),
    ("H4", "chunk 3 is taken from but is not free", || {
        let (mut heap, [t]) = taken();
        heap.take_at(t.chunk(), Granules(0), Granules(1), 1);
    }),
    ("H1", "8 granules at 60 are taken from chunk 2, which does not have them", || {
        heap(64).take_at(ChunkId(2), Granules(60), Granules(8), 1);
    }),
    ("H6", "segment 8 at 0x100001 of 1 granules does not consist of whole granules", || {
        Heap::new().add_segment(SegmentId(8), Addr(0x10_0001), Granules(1), Kind::Small);
    }),
    ("H6", "segment 8 at 0x100000 of 0 granules does not consist of whole granules", || {
        Heap::new().add_segment(SegmentId(8), Addr(0x10_0000), Granules(0), Kind::Small);
    }),
    ("H6", "segment 8 at 0x107e00 of 9 granules overlaps segment 7 at 0x100000 of 64", || {
        heap(64).add_segment(SegmentId(8), Addr(0x10_7e00), Granules(9), Kind::Small);
    }),
    ("H6", "segment 8 at 0xfffffffffffffe00 of 2 granules leaves the address space", || {
        heap(64).add_segment(SegmentId(8), Addr(u64::MAX - 511), Granules(2), Kind::Small);
    }),
    ("H4", "the stamp of a part of chunk 3 is requested but it is not free", || {
        taken::<1>().0.stamp_of(ChunkId(3), Granules(0), Granules(1));
    }),
    ("H1", "65 granules at 0 are no part of chunk 2, which has 64 at 0", || {
        heap(64).stamp_of(ChunkId(2), Granules(0), Granules(65));
    }),
    ("H6", "window 8 of 24 granules does not consist of whole units of 16", || {
        Heap::new().add_window(SegmentId(8), Addr(0x10_0000), Granules(24), Kind::Large, Granules(16));
    }),
    ("H1", "cut of 8 granules at 60 from segment 7, which has 64", || {
        heap(64).cut_free_in(S, Granules(60), Granules(8), 9);
    }),
    (
        "H1",
        "no hole of segment 7 is at 0 by 16 granules: there are not only whole units that are away",
        || {
            let hole = Hole { segment: S, offset: Granules(0), len: Granules(16) };
            heap(64).run(&Want::new(Granules(65), Kind::Large), [hole]);
        },
    ),
    ("H6", "segment 7 is in this heap already", || {
        heap(64).add_segment(S, Addr(0x100_0000), Granules(1), Kind::Large);
    }),
    (
        "H7",
        "give of chunk 3.1, but the slot is at generation 1 and free: freed twice, or a handle of another heap",
        || {
            let (mut heap, [t, _]) = taken();
            give(&mut heap, &t);
            give(&mut heap, &t);
        },
    ),
    (
        "H7",
        "give of chunk 3.1, but the slot is at generation 2 and allocated: freed twice, or a handle of another heap",
        || {
            let (mut heap, [t]) = taken();
            give(&mut heap, &t);
            take(&mut heap, 8);
            give(&mut heap, &t);
        },
    ),
    (
        "H7",
        "give of chunk 4.1, but the slot is at generation 1 and vacant: freed twice, or a handle of another heap",
        || {
            let (mut heap, [a, b]) = taken();
            give(&mut heap, &a);
            give(&mut heap, &b);
            heap.give_untagged(b.chunk(), b.generation(), Epoch(4));
        },
    ),
    ("H7", "give of chunk 11.1: this heap has 3 slots", || {
        heap(64).give_untagged(ChunkId(11), 1, Epoch(4));
    }),
    ("H7", "hold of chunk 11.1: this heap has 3 slots", || heap(64).hold(ChunkId(11), 1, Epoch(4))),
    ("H7", "tag of chunk 11.0: this heap has 3 slots", || {
        heap(64).tag(ChunkId(11));
    }),
    (
        "H7",
        "set_tag of chunk 2.0, but the slot is at generation 0 and free: freed twice, or a handle of another heap",
        || heap(64).set_tag(ChunkId(2), 5),
    ),
    (
        "H7",
        "set_stamp of chunk 3.2, but the slot is at generation 1 and allocated: freed twice, or a handle of another heap",
        || taken::<1>().0.set_stamp(ChunkId(3), 2, Epoch(9)),
    ),
    (
        "H7",
        "view of chunk 2.0, but the slot is at generation 0 and away: freed twice, or a handle of another heap",
        || {
            absent().view(ChunkId(2), 0);
        },
    ),
    ("H7", "chunk 3.1 is held twice: it is in flight", || {
        let (mut heap, [t]) = taken();
        heap.hold(t.chunk(), t.generation(), Epoch(4));
        heap.hold(t.chunk(), t.generation(), Epoch(5));
    }),
];

/// What only the checker detects.
const WALKS: &[Breach] = &[
    ("H1", "chunk 2 is linked into segment 7 but belongs elsewhere", || {
        walk(|heap| alter(heap, 2).place = Place::new(SegmentId(8), 0));
    }),
    ("H1", "chunk 2 begins at 16, its neighbour ends at 15", || {
        walk(|heap| {
            let t = take(heap, 16);
            alter(heap, t.chunk().0).len = 15;
        });
    }),
    ("H1", "chunk 2 is empty", || walk(|heap| alter(heap, 2).len = 0)),
    ("H1", "chunk 4 follows chunk 3 but is linked back to 2", || {
        let (mut heap, _) = taken::<2>();
        alter(&mut heap, 4).prev = 2;
        heap.check();
    }),
    ("H1", "the chunks of segment 7 tile 63 of 64 granules", || walk(|heap| alter(heap, 2).len = 63)),
    ("H2", "chunks 2 and 3 are neighbours, both Some(Free)", || {
        walk(|heap| {
            let (bins, chunks) = (&mut heap.bins, &mut heap.chunks);
            bins.leave(chunks.all_mut(), 2);
            let high = chunks.split(2, 10);
            bins.enter(chunks.all_mut(), 2, Kind::Large);
            bins.enter(chunks.all_mut(), high, Kind::Large);
        });
    }),
    ("H3", "chunk 2 is free but in no bin", || {
        walk(|heap| heap.bins.leave(heap.chunks.all_mut(), 2));
    }),
    ("H3", "0 chunks are in bins, 1 are free", || {
        walk(|heap| {
            heap.bins.leave(heap.chunks.all_mut(), 2);
            alter(heap, 2).bin = Bin::of(Kind::Large, 64);
        });
    }),
    ("H3", "chunk 2 of 64 granules is in the wrong bin, Small bin 48", || {
        walk(|heap| {
            heap.bins.leave(heap.chunks.all_mut(), 2);
            heap.bins.enter(heap.chunks.all_mut(), 2, Kind::Small);
        });
    }),
    ("H3", "the bit of Large bin 48 is false", || {
        walk(|heap| heap.bins.forget_bit(Bin::of(Kind::Large, 64)));
    }),
    ("H3", "chunk 3 is linked back to bin 7 in its bin", || {
        let mut heap = islands(&[16, 16]);
        heap.bins.link_mut(3).prev = 7;
        heap.check();
    }),
    ("H4", "chunk 2 is Some(Allocated) but in a bin", || {
        walk(|heap| alter(heap, 2).state = Some(ChunkState::Allocated));
    }),
    // The chunk denies it, but the bin contains it; H5 would hide that.
    ("H4", "chunk 2 is Some(InFlight) but in a bin", || {
        let mut heap = heap(64);
        alter(&mut heap, 2).state = Some(ChunkState::InFlight);
        alter(&mut heap, 2).bin = Bin::NONE;
        heap.check_bins_of(1);
    }),
    ("H5", "segment 7 has 64 granules here, not 63", || walk(|heap| heap.segments[0].here -= 1)),
    ("H5", "segment 7 has 64 free granules, not 63", || walk(|heap| heap.segments[0].free -= 1)),
    ("H5", "free: the total is 65, the chunks say 64", || walk(|heap| heap.totals.owned += 1)),
    ("H5", "allocated: the total is 1, the chunks say 0", || {
        walk(|heap| {
            heap.totals.allocated += 1;
            heap.totals.owned += 1;
        });
    }),
    ("H5", "in flight: the total is 1, the chunks say 0", || {
        walk(|heap| {
            heap.totals.in_flight += 1;
            heap.totals.owned += 1;
        });
    }),
    ("H5", "requested: the total is 1, the chunks say 0", || walk(|heap| heap.totals.requested_bytes += 1)),
    ("H5", "live: the total is 1, the chunks say 0", || walk(|heap| heap.totals.allocations += 1)),
    ("H5", "free chunks: the total is 2, the chunks say 1", || walk(|heap| heap.totals.free_chunks += 1)),
    ("H5", "in-flight chunks: the total is 1, the chunks say 0", || {
        walk(|heap| heap.totals.in_flight_chunks += 1);
    }),
    ("H6", "segment 7 at 0x100001", || walk(|heap| heap.segments[0].base = Addr(0x10_0001))),
    ("H6", "segment 8 overlaps the one below it", || {
        walk(|heap| {
            heap.add_segment(SegmentId(8), Addr(0x100_0000), Granules(1), Kind::Large);
            heap.segments[1].base = Addr(0x10_7e00);
        });
    }),
    ("H8", "the Large bound is 3 granules, the largest has 56", || {
        let mut heap = heap(64);
        take(&mut heap, 8);
        // Consistent for H5, so that only the bound is wrong.
        heap.totals.owned = heap.totals.allocated + 3;
        heap.check_bins_of(1);
    }),
    ("H10", "chunk 2 is free but has the tag 1 in segment 7", || walk(|heap| alter(heap, 2).tag = 1)),
    ("H10", "units of chunk 2 are away but used up to 9", || {
        let mut heap = window();
        heap.extend(S, Granules(0), Granules(32), Epoch(9));
        heap.extend(S, Granules(32), Granules(32), Epoch(3));
        let units = heap.segments[0].units.clone();
        heap.cut_free_of(S);
        heap.segments[0].units = units;
        heap.check();
    }),
    ("H9", "chunk 3 is vacant but linked", || {
        let (mut heap, [t]) = taken();
        give(&mut heap, &t);
        alter(&mut heap, 3).bin = Bin::of(Kind::Large, 64);
        heap.check();
    }),
    ("H9", "chunk 3 is vacant but linked into segment 7", || {
        let (mut heap, _) = taken::<1>();
        alter(&mut heap, 3).state = None;
        heap.check();
    }),
    ("H9", "chunk 3 is Some(Free) but on the vacant list", || {
        let (mut heap, [t]) = taken();
        give(&mut heap, &t);
        alter(&mut heap, 3).state = Some(ChunkState::Free);
        heap.check();
    }),
    ("H9", "the vacant list is a list", || {
        let (mut heap, [t]) = taken();
        give(&mut heap, &t);
        alter(&mut heap, 3).next = 3;
        heap.check();
    }),
    ("H9", "4 slots, but 0 are vacant and 1 in segments", || {
        walk(|heap| {
            heap.chunks.fresh(0, Place::new(S, 0), 1, ChunkState::Allocated, Epoch(1));
        });
    }),
    ("H9", "chunk 2 is Absent at 0 but not in the index", || {
        let mut heap = absent();
        heap.absent.clear();
        heap.check();
    }),
    ("H9", "chunk 2 is Absent but remembers", || {
        let mut heap = absent();
        alter(&mut heap, 2).requested = 1;
        heap.check();
    }),
    ("H9", "the Absent index has 1 chunks, the segments 0", || {
        walk(|heap| assert_eq!(heap.absent.insert((S, 9), 0), None));
    }),
    ("H5", "the totals do not add up: Totals { owned: 15, allocated: 16, ", || {
        let (mut heap, _) = taken::<1>();
        heap.totals.owned = 15;
        heap.check();
    }),
];

/// The checker after a breach in a heap of one free chunk of 64 granules.
fn walk(breach: fn(&mut Heap)) {
    let mut heap = heap(64);
    breach(&mut heap);
    heap.check();
}

fn rows() -> impl Iterator<Item = &'static Breach> {
    [BINS, CHUNKS, CALLERS, WALKS].into_iter().flatten()
}

#[test]
fn every_breach_is_met_by_its_law() {
    let missed: Vec<String> = rows()
        .filter_map(|&(number, words, breach)| {
            let expected = format!("heap law {number} is broken: {words}");
            match catch_unwind(AssertUnwindSafe(breach)) {
                Ok(()) => Some(format!("{expected:?}: nothing was noticed")),
                Err(panic) => {
                    let said = panic.downcast_ref::<String>().map_or("no words", String::as_str);
                    // Only the first of the totals are shown here.
                    let met = said == expected || words.ends_with(", ") && said.starts_with(&expected);
                    (!met).then(|| format!("{expected:?}: said was {said:?}"))
                }
            }
        })
        .collect();
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), rows().count(), missed.join("\n"));
}

/// What stands between the braces of a format.
fn pieces(format: &str) -> Vec<&str> {
    format
        .split('{')
        .enumerate()
        .map(|(at, p)| if at == 0 { p } else { p.split_once('}').unwrap().1 })
        .collect()
}

/// Whether a format can produce this message.
fn comes_to(pieces: &[&str], words: &str) -> bool {
    let Some((last, first)) = pieces.split_last() else { return false };
    let mut rest = words;
    for (at, piece) in first.iter().enumerate() {
        match rest.find(piece) {
            Some(found) if at > 0 || found == 0 => rest = &rest[found + piece.len()..],
            _ => return false,
        }
    }
    if first.is_empty() { rest == *last } else { rest.ends_with(last) }
}

#[test]
fn every_law_has_a_breach_or_a_reason() {
    let sources = [
        include_str!("../bins.rs"),
        include_str!("../border.rs"),
        include_str!("../check.rs"),
        include_str!("../chunk.rs"),
        include_str!("../handle.rs"),
        include_str!("../hit.rs"),
        include_str!("../mod.rs"),
        include_str!("../runs.rs"),
        include_str!("../segment.rs"),
        include_str!("../snapshot.rs"),
        include_str!("../units.rs"),
    ];
    // The message is the first string after the number of the law.
    let said = |at: &str| {
        at.split('"').nth(usize::from(at.starts_with("\"H")) * 2 + 1).unwrap_or_default().to_owned()
    };
    let mut laws: Vec<String> = Vec::new();
    for source in sources {
        for call in [" law!(", " broken(", "::broken("] {
            let calls = source.match_indices(call).map(|(at, _)| source[at + call.len()..].trim_start());
            // Not where it is defined.
            laws.extend(calls.filter(|call| !call.starts_with("number")).map(said));
        }
    }
    assert!(laws.len() > 70, "{} laws: the search finds no more", laws.len());
    let unmet: Vec<String> = laws
        .iter()
        .filter(|law| {
            let law = pieces(law);
            let places = laws.iter().filter(|other| pieces(other) == law).count();
            let breaches = rows().filter(|row| comes_to(&law, row.1)).count();
            breaches < places && !UNBREAKABLE.iter().any(|(words, _)| pieces(words) == law)
        })
        .cloned()
        .collect();
    assert!(unmet.is_empty(), "no breach for {}:\n{}", unmet.len(), unmet.join("\n"));
    for (words, _) in UNBREAKABLE {
        assert!(laws.iter().any(|law| law == words), "no law says {words:?}");
    }
}
