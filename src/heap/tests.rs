//! Every law must be able to break: each test here plants one breach and requires the walker, or the verb that meets
//! it, to name the law. Behind them, the few behaviours that need the heap's inside.

use super::bins::{Bin, SWEEP, WALK};
use super::chunk::{ChunkState, NIL};
use super::{ChunkId, Heap, Kind, Taken, Want};
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
    heap.give(t.chunk, t.generation, Epoch(4));
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
#[should_panic(expected = "heap law H1 is broken")]
fn h1_a_hole_between_chunks_is_found() {
    let mut heap = heap(64);
    let t = take(&mut heap, 16);
    heap.chunks[t.chunk.0].len = 15;
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H1 is broken")]
fn h1_a_wrong_back_link_is_found() {
    let mut heap = heap(64);
    let (a, b) = (take(&mut heap, 16), take(&mut heap, 16));
    heap.chunks[b.chunk.0].prev = b.chunk.0;
    assert_ne!(a.chunk, b.chunk);
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H1 is broken: chunks 1 (ends at 15) and 0 (begins at 16) are merged")]
fn h1_is_checked_by_the_merge_itself() {
    let mut heap = heap(64);
    let t = take(&mut heap, 16);
    heap.chunks[t.chunk.0].len = 15;
    give(&mut heap, &t);
}

#[test]
#[should_panic(expected = "heap law H2 is broken")]
fn h2_two_free_neighbours_are_found() {
    let mut heap = heap(64);
    let t = take(&mut heap, 16);
    let rest = heap.chunks[t.chunk.0].next;
    heap.bins[Kind::Large as usize].leave(heap.chunks.all_mut(), rest);
    let high = heap.chunks.split(rest, 10);
    heap.bins[Kind::Large as usize].enter(heap.chunks.all_mut(), rest);
    heap.bins[Kind::Large as usize].enter(heap.chunks.all_mut(), high);
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H3 is broken")]
fn h3_a_free_chunk_in_no_bin_is_found() {
    let mut heap = heap(64);
    heap.bins[Kind::Large as usize].leave(heap.chunks.all_mut(), 0);
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H3 is broken")]
fn h3_a_bin_of_the_wrong_kind_is_found() {
    let mut heap = heap(64);
    heap.bins[Kind::Large as usize].leave(heap.chunks.all_mut(), 0);
    heap.bins[Kind::Small as usize].enter(heap.chunks.all_mut(), 0);
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H3 is broken")]
fn h3_a_lost_bit_is_found() {
    let mut heap = heap(64);
    heap.bins[Kind::Large as usize].forget_bit(Bin::of(64));
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H3 is broken: chunk 0 enters a bin but is in one")]
fn h3_is_checked_at_the_door() {
    let mut heap = heap(64);
    heap.bins[Kind::Large as usize].enter(heap.chunks.all_mut(), 0);
}

#[test]
#[should_panic(expected = "heap law H3 is broken: chunk 0 of")]
fn h3_a_length_changed_inside_a_bin_is_met_at_the_door() {
    let mut heap = heap(64);
    heap.chunks[0].len = 32;
    heap.bins[Kind::Large as usize].leave(heap.chunks.all_mut(), 0);
}

#[test]
#[should_panic(expected = "heap law H4 is broken")]
fn h4_an_allocated_chunk_in_a_bin_is_found() {
    let mut heap = heap(64);
    heap.chunks[0].state = Some(ChunkState::Allocated);
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H4 is broken: chunk 0 is Some(InFlight) but changes its length in a bin")]
fn h4_is_checked_at_the_door() {
    let mut heap = heap(64);
    heap.chunks[0].state = Some(ChunkState::InFlight);
    take(&mut heap, 8);
}

#[test]
#[should_panic(expected = "heap law H4 is broken: cut of chunk 0, which is allocated")]
fn h4_what_is_allocated_cannot_be_cut() {
    let mut heap = heap(64);
    let t = take(&mut heap, 64);
    heap.cut(t.chunk, Granules(0), Granules(64));
}

#[test]
#[should_panic(expected = "heap law H5 is broken: allocated")]
fn h5_a_total_that_drifts_is_found() {
    let mut heap = heap(64);
    take(&mut heap, 8);
    heap.totals.allocated += 1;
    heap.totals.held += 1;
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H5 is broken: segment 7 has 64 granules here")]
fn h5_a_segments_count_that_drifts_is_found() {
    let mut heap = heap(64);
    heap.segments[0].here -= 1;
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H6 is broken")]
fn h6_a_crooked_base_is_found() {
    let mut heap = heap(64);
    heap.segments[0].base = Addr(0x10_0001);
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H6 is broken: segment 8 at 0x107e00 of 9 granules overlaps segment 7")]
fn h6_segments_do_not_overlap() {
    heap(64).add_segment(SegmentId(8), Addr(0x10_7e00), Granules(9), Kind::Small);
}

#[test]
#[should_panic(expected = "heap law H6 is broken: segment 8 at 0xfffffffffffffe00 of 2 granules leaves")]
fn h6_segments_end_where_addresses_do() {
    heap(64).add_segment(SegmentId(8), Addr(u64::MAX - 511), Granules(2), Kind::Small);
}

#[test]
#[should_panic(
    expected = "heap law H7 is broken: give of chunk 0.1, but the slot is at generation 1 and free"
)]
fn h7_a_double_free_is_found() {
    let mut heap = heap(64);
    let t = take(&mut heap, 64);
    give(&mut heap, &t);
    give(&mut heap, &t);
}

#[test]
#[should_panic(
    expected = "heap law H7 is broken: give of chunk 1.1, but the slot is at generation 2 and allocated"
)]
fn h7_a_double_free_of_a_slot_in_use_again_is_found() {
    let mut heap = heap(64);
    let t = take(&mut heap, 8);
    give(&mut heap, &t);
    take(&mut heap, 8);
    give(&mut heap, &t);
}

#[test]
#[should_panic(
    expected = "heap law H7 is broken: give of chunk 2.1, but the slot is at generation 1 and vacant"
)]
fn h7_a_double_free_of_a_merged_chunk_is_found() {
    let mut heap = heap(64);
    let (a, b) = (take(&mut heap, 8), take(&mut heap, 8));
    give(&mut heap, &a);
    give(&mut heap, &b);
    give(&mut heap, &b);
}

#[test]
#[should_panic(expected = "heap law H7 is broken: hold of chunk 9.1: this heap has 1 slots")]
fn h7_an_invented_id_is_found() {
    heap(64).hold(ChunkId::from_index(9), 1, Epoch(4));
}

#[test]
#[should_panic(expected = "heap law H7 is broken: chunk 1.1 is held twice")]
fn h7_a_second_hold_is_found() {
    let mut heap = heap(64);
    let t = take(&mut heap, 8);
    heap.hold(t.chunk, t.generation, Epoch(4));
    heap.hold(t.chunk, t.generation, Epoch(5));
}

#[test]
#[should_panic(expected = "heap law H8 is broken: the Large bound is 3 granules")]
fn h8_a_bound_below_the_largest_is_found() {
    let mut heap = heap(64);
    take(&mut heap, 8);
    // Consistent for H5, so that only the bound is wrong.
    heap.totals.held = heap.totals.allocated + 3;
    heap.check_bins_of(1);
}

#[test]
#[should_panic(expected = "heap law H9 is broken")]
fn h9_a_vacant_slot_that_is_linked_is_found() {
    let mut heap = heap(64);
    let t = take(&mut heap, 8);
    give(&mut heap, &t);
    let vacant = heap.chunks.first_vacant();
    heap.chunks[vacant].bin_prev = NIL;
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H9 is broken: chunk 1 is vacant but linked into segment 7")]
fn h9_a_linked_chunk_that_is_vacant_is_found() {
    let mut heap = heap(64);
    let t = take(&mut heap, 8);
    heap.chunks[t.chunk.0].state = None;
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H9 is broken: chunk 1 is vacant but sheared")]
fn h9_what_is_vacant_cannot_be_sheared() {
    let mut heap = heap(64);
    let t = take(&mut heap, 8);
    heap.chunks[t.chunk.0].state = None;
    heap.chunks.shear(t.chunk.0, 4);
}

#[test]
#[should_panic(expected = "heap law H9 is broken: 2 slots, but 0 are vacant and 1 in segments")]
fn h9_a_leaked_slot_is_found() {
    let mut heap = heap(64);
    heap.chunks.fresh((0, SegmentId(0)), 0, 1, ChunkState::Allocated, Epoch(1));
    heap.check();
}

#[test]
#[should_panic(expected = "heap law H9 is broken: chunk 0 is Away at 0 but not in the index")]
fn h9_an_away_chunk_missing_from_the_index_is_found() {
    let mut heap = heap(64);
    heap.cut_free_of(S);
    heap.check();
    heap.away.clear();
    heap.check();
}

#[test]
#[should_panic(
    expected = "heap law H1 is broken: extend of segment 7 at 60 by 8 granules: some of it is here already"
)]
fn what_is_here_cannot_arrive() {
    let mut heap = heap(100);
    heap.cut(ChunkId(0), Granules(64), Granules(36));
    heap.extend(S, Granules(60), Granules(8), Epoch(1));
}

#[test]
#[should_panic(expected = "extend of segment 7 at 64 by 37 granules: the range leaves the segment")]
fn what_is_outside_cannot_arrive() {
    let mut heap = heap(100);
    heap.cut(ChunkId(0), Granules(64), Granules(36));
    heap.extend(S, Granules(64), Granules(37), Epoch(1));
}

#[test]
#[should_panic(expected = "extend of segment 3 at 0 by 1 granules: this heap does not know the segment")]
fn what_is_unknown_cannot_arrive() {
    heap(100).extend(SegmentId(3), Granules(0), Granules(1), Epoch(1));
}

#[test]
#[should_panic(expected = "a piece at 8 is not its front")]
fn only_the_front_of_a_chunk_in_flight_leaves() {
    let mut heap = heap(64);
    let t = take(&mut heap, 32);
    heap.hold(t.chunk, t.generation, Epoch(9));
    heap.cut(t.chunk, Granules(8), Granules(8));
}

#[test]
fn an_exact_fit_behind_many_others_costs_no_more_than_the_walk() {
    // 40 chunks of one bin (66..=67 shares a bin with 64..): the first freed is the only one that fits 67.
    let mut sizes = vec![67];
    sizes.extend([66; 40]);
    let mut heap = islands(&sizes);
    assert_eq!(Bin::of(66), Bin::of(67));
    let before = heap.stats();
    let hit = take(&mut heap, 67);
    let after = heap.stats();
    assert_eq!(heap.view(hit.chunk, hit.generation).offset, Granules(0));
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
    assert_eq!(Bin::of(70), Bin::of(71));
    assert_ne!(Bin::of(67), Bin::of(70));
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
    // Chunks of 8 granules off the grid cannot hold 8 aligned ones; the one long chunk can, wherever it begins.
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
    assert_eq!(heap.view(t.chunk, t.generation).offset, Granules(0));
}

#[test]
fn a_cut_that_leaves_a_chunk_in_its_bin_does_not_move_it() {
    // Two chunks of one bin: the one that entered last is first. A cut of the other, and the join, leave it second.
    let mut heap = islands(&[1000, 1001]);
    let order = |heap: &Heap| {
        let (_, ids) = heap.bins[Kind::Large as usize].contents(Bin::of(1000), heap.chunks.all());
        ids.map(|id| heap.chunks[id].offset).collect::<Vec<_>>()
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
fn slots_are_reused() {
    let mut heap = heap(64);
    for round in 0..1000 {
        let taken: Vec<Taken> = (1..8).map(|n| take(&mut heap, n)).collect();
        for t in &taken {
            give(&mut heap, t);
        }
        assert!(heap.chunks.slots() <= 8, "round {round} has {} slots", heap.chunks.slots());
    }
    heap.check();
    assert_eq!(heap.snapshot().segments[0].ranges.len(), 1);
}

#[test]
fn generations_wrap_without_harm() {
    let mut heap = heap(64);
    heap.chunks[0].generation = u32::MAX;
    let t = take(&mut heap, 64);
    assert_eq!(t.generation, 0);
    assert_eq!(heap.lookup(t.chunk, u32::MAX), None);
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
    assert_eq!(heap.view(all.chunk, all.generation).len, Granules::MAX);
    heap.hold(all.chunk, all.generation, Epoch(2));
    heap.cut(all.chunk, Granules(0), Granules(u32::MAX - 1));
    let last = heap.view(all.chunk, all.generation);
    assert_eq!((last.addr, last.len), (Addr(u64::MAX - 511), Granules(1)));
    heap.check();
    heap.give(all.chunk, all.generation, Epoch(3));
    assert_eq!(heap.take(&Want { len: Granules(1), align: Granules(1 << 31), kind: Kind::Large }, 1), None);
    heap.check();
}

fn take_all(heap: &mut Heap) -> Taken {
    heap.take(&Want::new(Granules::MAX, Kind::Large), 1).expect("the whole segment")
}
