//! Tests that need the heap's inside: that every law can break, and the few behaviours that no caller sees.

mod breaches;

use super::bins::{Bin, SWEEP, WALK};
use super::chunk::ChunkId;
use super::{Heap, Kind, Taken, Want};
use crate::units::{Addr, Epoch, Granules, SegmentId};

const S: SegmentId = SegmentId(7);

fn heap(len: u32) -> Heap {
    let mut heap = Heap::new();
    heap.add_segment(S, Addr(0x10_0000), Granules(len), Kind::Large);
    heap.extend(S, Granules(0), Granules(len), Epoch(3));
    heap.check();
    heap
}

fn take(heap: &mut Heap, len: u32) -> Taken {
    heap.take(&Want::new(Granules(len), Kind::Large), u64::from(len) * 500).expect("there is room")
}

fn give(heap: &mut Heap, t: &Taken) {
    heap.give(t.chunk(), t.generation(), Epoch(4));
}

/// Takes `sizes` in order from a heap just large enough, one granule between each two, and gives the sizes back: as
/// many free chunks, each alone.
fn islands(sizes: &[u32]) -> Heap {
    let mut heap = heap(sizes.iter().map(|n| n + 1).sum());
    let mut taken = Vec::new();
    for &n in sizes {
        taken.push(take(&mut heap, n));
        take(&mut heap, 1);
    }
    for t in &taken {
        give(&mut heap, t);
    }
    heap.check();
    heap
}

#[test]
fn an_exact_fit_behind_many_others_costs_no_more_than_the_walk() {
    // 40 chunks of one bin (66..=67 shares a bin with 64..): the first freed is the only one that fits 67.
    let mut sizes = vec![67];
    sizes.extend([66; 40]);
    let mut heap = islands(&sizes);
    assert_eq!(Bin::of(Kind::Large, 66), Bin::of(Kind::Large, 67));
    let before = heap.stats();
    let hit = take(&mut heap, 67);
    let after = heap.stats();
    assert_eq!(heap.view(hit.chunk(), hit.generation()).offset, Granules(0));
    assert_eq!(after.steps - before.steps, u64::from(WALK), "the walk stops after sixteen");
    assert_eq!(after.sweeps - before.sweeps, 1, "the sweep finds what the walk did not");
    assert_eq!(after.sweep_steps - before.sweep_steps, 41);
    heap.check();
}

#[test]
fn a_hit_looks_at_no_more_than_two_walks() {
    // Forty near misses in the own bin, forty fits in the next: 16 + 16, and the best of those sixteen.
    let mut sizes = vec![66; 40];
    sizes.extend((0..40).map(|i| 70 + i % 2));
    let mut heap = islands(&sizes);
    let before = heap.stats();
    assert_eq!(Bin::of(Kind::Large, 70), Bin::of(Kind::Large, 71));
    assert_ne!(Bin::of(Kind::Large, 67), Bin::of(Kind::Large, 70));
    take(&mut heap, 67);
    let after = heap.stats();
    assert_eq!(after.steps - before.steps, 2 * u64::from(WALK));
    assert_eq!(after.steps_max, 2 * WALK);
    assert_eq!(after.sweeps, before.sweeps);
    heap.check();
}

#[test]
fn a_sweep_ends() {
    let mut heap = islands(&vec![66; SWEEP + 100]);
    let before = heap.stats();
    assert_eq!(heap.take(&Want::new(Granules(67), Kind::Large), 1), None);
    assert_eq!(heap.stats().sweep_steps - before.sweep_steps, SWEEP as u64);
}

#[test]
fn an_aligned_want_is_served_behind_any_number_of_near_misses() {
    // Chunks of 8 granules off the grid cannot hold 8 aligned ones; the one long chunk can, at any address.
    let mut sizes = vec![8; SWEEP + 50];
    sizes.push(64);
    let mut heap = islands(&sizes);
    let want = Want { len: Granules(8), align: Granules(16), kind: Kind::Large };
    // Islands are 9 apart, so one in sixteen is aligned: take those first.
    while let Some(found) = heap.find(&want, usize::MAX, |_| true).filter(|f| f.len == Granules(8)) {
        heap.cut(found.chunk, found.offset, found.len);
    }
    let t = heap.take(&want, 1).expect("the long chunk fits");
    assert!(t.addr.0.is_multiple_of(16 * 512));
    heap.check();
}

#[test]
fn of_equals_the_lowest_is_taken() {
    let mut heap = islands(&[70, 70, 70]);
    let t = take(&mut heap, 69);
    assert_eq!(heap.view(t.chunk(), t.generation()).offset, Granules(0));
}

#[test]
fn a_cut_that_leaves_a_chunk_in_its_bin_does_not_move_it() {
    // Two chunks of one bin: the one that entered last is first. A cut of the other, and the join, leave it second.
    let mut heap = islands(&[1000, 1001]);
    let order = |heap: &Heap| {
        let (_, ids) = heap.bins.contents(Bin::of(Kind::Large, 1000));
        ids.map(|id| heap.chunks[id].offset()).collect::<Vec<_>>()
    };
    assert_eq!(order(&heap), [1001, 0]);
    let t = take(&mut heap, 2);
    assert_eq!(order(&heap), [1001, 2], "the front of the shorter one was taken, the rest is where it was");
    give(&mut heap, &t);
    assert_eq!(order(&heap), [1001, 0]);
    // A cut that does move it to another bin.
    let t = take(&mut heap, 500);
    assert_eq!(order(&heap), [1001]);
    give(&mut heap, &t);
    assert_eq!(order(&heap), [0, 1001], "it entered anew");
    heap.check();
}

#[test]
fn a_range_is_sought_from_what_is_away_on_both_sides() {
    // Forty chunks taken between two ranges that are away: as many looks as to the nearer one, and one for each chunk inside.
    let mut heap = heap(100);
    heap.cut_free_in(S, Granules(0), Granules(20), 1).expect("all of it is free");
    let taken: Vec<Taken> = (0..40).map(|_| take(&mut heap, 1)).collect();
    heap.cut_free_in(S, Granules(80), Granules(20), 4).expect("the end is free");
    for t in [&taken[2], &taken[38]] {
        give(&mut heap, t);
    }
    let gone = |heap: &mut Heap, offset, steps| {
        heap.cut_free_in(S, Granules(offset), Granules(1), steps).map(|cuts| cuts.len())
    };
    assert_eq!(gone(&mut heap, 22, 2), None, "too far from either side");
    assert_eq!(gone(&mut heap, 58, 3), None);
    assert_eq!(gone(&mut heap, 22, 4), Some(1));
    assert_eq!(gone(&mut heap, 58, 4), Some(1));
    assert_eq!(gone(&mut heap, 30, 100), None, "it is allocated");
    assert_eq!(gone(&mut heap, 22, 2), Some(0), "it is away");
    heap.check();
}

#[test]
fn parts_keep_their_stamps_where_chunks_merge() {
    let mut heap = Heap::new();
    heap.add_window(S, Addr(0x10_0000), Granules(128), Kind::Large, Granules(16));
    let whole = heap.extend(S, Granules(0), Granules(128), Epoch(3)).chunk;
    assert_eq!(heap.segments[0].units.written(), 0, "one stamp is no reason to write any");
    let taken = [16, 16, 8].map(|len| take(&mut heap, len));
    heap.give(taken[0].chunk(), taken[0].generation(), Epoch(7));
    heap.give(taken[2].chunk(), taken[2].generation(), Epoch(9));
    let free: Vec<_> = heap.free_at_least(Kind::Large, Granules(1)).collect();
    assert_eq!(
        free.iter().map(|f| (f.offset.0, f.len.0, f.stamp.0)).collect::<Vec<_>>(),
        [(32, 96, 9), (0, 16, 7)]
    );
    let of = |heap: &Heap, offset, len| heap.stamp_of(whole, Granules(offset), Granules(len)).0;
    assert_eq!([of(&heap, 32, 1), of(&heap, 47, 1), of(&heap, 48, 80), of(&heap, 32, 96)], [9, 9, 3, 9]);
    let found = heap.find_part(&Want::new(Granules(40), Kind::Large), 99, |stamp| stamp < Epoch(9));
    let found = found.map(|f| (f.offset.0, f.len.0, f.at.0, f.stamp.0));
    assert_eq!(found, Some((48, 80, 48, 3)), "what the chunk's own stamp hides");
    assert_eq!(heap.find_part(&Want::new(Granules(40), Kind::Large), 3, |stamp| stamp < Epoch(9)), None);
    assert_eq!(heap.cut(whole, Granules(64), Granules(32)).stamp, Epoch(3));
    heap.give(taken[1].chunk(), taken[1].generation(), Epoch(4));
    heap.check();
    assert_eq!(heap.cut_free_of(S).iter().map(|cut| cut.stamp.0).collect::<Vec<_>>(), [9, 3]);
    heap.check();
    assert_eq!(heap.extend(S, Granules(0), Granules(128), Epoch(1)).stamp, Epoch(1));
    assert_eq!(heap.segments[0].units.written(), 0, "nothing is left of what is away");
}

#[test]
fn a_long_range_is_written_between_units_that_have_its_stamp() {
    let mut heap = Heap::new();
    heap.add_window(S, Addr(0x10_0000), Granules(128), Kind::Large, Granules(16));
    heap.extend(S, Granules(0), Granules(128), Epoch(1));
    let [a, b, long, c, d] = [4, 4, 64, 4, 4].map(|len| take(&mut heap, len));
    for (t, stamp) in [(a, 2), (b, 9), (d, 9), (c, 9), (long, 9)] {
        heap.give(t.chunk(), t.generation(), Epoch(stamp));
    }
    let whole = heap.free_at_least(Kind::Large, Granules(128)).next().expect("all of it is free again").chunk;
    let of = |offset, len| heap.stamp_of(whole, Granules(offset), Granules(len)).0;
    assert_eq!([of(0, 1), of(16, 16), of(32, 16), of(48, 16), of(79, 1), of(80, 48)], [9, 9, 9, 9, 9, 1]);
}

#[test]
fn pieces_of_one_chunk_are_cut_from_its_end_on() {
    let mut heap = heap(100);
    let chunk = heap.free_at_least(Kind::Large, Granules(100)).next().expect("all of it is free");
    for offset in [72, 40, 8] {
        assert_eq!(heap.cut(chunk.chunk, Granules(offset), Granules(8)).offset, Granules(offset));
    }
    heap.check();
}

#[test]
fn slots_are_reused() {
    let mut heap = heap(64);
    for round in 0..1000 {
        let taken: Vec<Taken> = (1..8).map(|n| take(&mut heap, n)).collect();
        for t in &taken {
            give(&mut heap, t);
        }
        // Eight chunks, the segment's sentinel and the slot that never has a chunk.
        assert!(heap.chunks.slots() <= 10, "round {round} has {} slots", heap.chunks.slots());
    }
    heap.check();
    assert_eq!(heap.snapshot().segments[0].ranges.len(), 1);
}

#[test]
fn generations_wrap_without_harm() {
    let mut heap = heap(64);
    heap.chunks[2].generation = u32::MAX;
    let t = take(&mut heap, 64);
    assert_eq!(t.generation(), 0);
    assert_eq!(heap.lookup(t.chunk(), u32::MAX), None);
    give(&mut heap, &t);
    heap.check();
}

#[test]
fn the_longest_segment_and_the_last_address_work() {
    let mut heap = Heap::new();
    let base = Addr(0_u64.wrapping_sub(Granules::MAX.bytes()));
    heap.add_segment(S, base, Granules::MAX, Kind::Large);
    heap.extend(S, Granules(0), Granules::MAX, Epoch(1));
    assert_eq!(heap.largest_free(Kind::Large), Granules::MAX);
    let all = take_all(&mut heap);
    assert_eq!(heap.view(all.chunk(), all.generation()).len, Granules::MAX);
    heap.hold(all.chunk(), all.generation(), Epoch(2));
    heap.cut(all.chunk(), Granules(0), Granules(u32::MAX - 1));
    let last = heap.view(all.chunk(), all.generation());
    assert_eq!((last.addr, last.len), (Addr(u64::MAX - 511), Granules(1)));
    heap.check();
    heap.give(all.chunk(), all.generation(), Epoch(3));
    assert_eq!(heap.take(&Want { len: Granules(1), align: Granules(1 << 31), kind: Kind::Large }, 1), None);
    heap.check();
}

fn take_all(heap: &mut Heap) -> Taken {
    heap.take(&Want::new(Granules::MAX, Kind::Large), 1).expect("the whole segment")
}

/// A part of a free chunk is handed out where it is said to be; what is around it stays free.
#[test]
fn a_part_of_a_free_chunk_is_taken_where_it_lies() {
    let mut heap = heap(64);
    let t = heap.take_at(ChunkId(2), Granules(16), Granules(8), 8 * 512).expect("free");
    let view = heap.view(t.chunk(), t.generation());
    assert_eq!((view.offset, view.len, view.requested), (Granules(16), Granules(8), 8 * 512));
    heap.check();
    let free: Vec<_> = heap.free_at_least(Kind::Large, Granules(1)).map(|f| (f.offset.0, f.len.0)).collect();
    assert!(free.contains(&(0, 16)) && free.contains(&(24, 40)) && free.len() == 2, "{free:?}");
    let front = heap.free_at_least(Kind::Large, Granules(40)).next().expect("24 to 64");
    let all = heap.take_at(front.chunk, Granules(24), Granules(40), 1).expect("free");
    heap.check();
    for t in [t, all] {
        heap.give(t.chunk(), t.generation(), Epoch(1));
    }
    heap.check();
    assert_eq!(heap.largest_free(Kind::Large), Granules(64));
}

/// What is here of a range is what is not Absent, cut off at the range's ends.
#[test]
fn what_is_here_of_a_range() {
    let mut heap = Heap::new();
    heap.add_window(S, Addr(0x10_0000), Granules(64), Kind::Large, Granules(16));
    let here = |heap: &Heap, at: u32, len: u32| {
        heap.here_in(S, Granules(at), Granules(len)).map(|(at, len)| (at.0, len.0)).collect::<Vec<_>>()
    };
    assert_eq!(here(&heap, 0, 64), []);
    heap.extend(S, Granules(16), Granules(16), Epoch(1));
    heap.extend(S, Granules(48), Granules(16), Epoch(1));
    assert_eq!(here(&heap, 0, 64), [(16, 16), (48, 16)]);
    assert_eq!(here(&heap, 20, 4), [(20, 4)]);
    assert_eq!(here(&heap, 0, 17), [(16, 1)]);
    assert_eq!(here(&heap, 30, 30), [(30, 2), (48, 12)]);
    assert_eq!(here(&heap, 32, 16), []);
    assert_eq!(heap.here_in(SegmentId(9), Granules(0), Granules(64)).count(), 0);
}
