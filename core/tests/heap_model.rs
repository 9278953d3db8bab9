//! The heap through its public functions: random programs against a naive heap, and by name the rows T4 and T5 and the
//! split trees that other pools' tests tell.

#[path = "heap_model/machine.rs"]
mod machine;
#[path = "heap_model/naive.rs"]
mod naive;
#[path = "heap_model/windows.rs"]
mod windows;

use millpond_core::heap::{ChunkState, ChunkView, FreeChunk, Heap, Kind, Taken, Want};
use millpond_driver::units::{Addr, Epoch, Granules, SegmentId};
use proptest::prelude::*;

const S: SegmentId = SegmentId(1);

/// A heap of one segment, all of it free.
fn heap(len: u32) -> Heap {
    let mut heap = Heap::new();
    heap.add_segment(S, Addr(0x4000_0000), Granules(len), Kind::Large);
    heap.extend(S, Granules(0), Granules(len), Epoch::COMPLETE);
    heap
}
fn try_take(heap: &mut Heap, len: u32) -> Option<Taken> {
    let taken = heap.take(&Want::new(Granules(len), Kind::Large), u64::from(len) * 512);
    heap.check();
    taken
}
fn take(heap: &mut Heap, len: u32) -> Taken {
    try_take(heap, len).expect("there is room")
}
/// What the heap knows of a range that is alive.
fn view(heap: &Heap, t: &Taken) -> ChunkView {
    heap.view(t.chunk(), t.generation())
}
fn give_at(heap: &mut Heap, t: &Taken, stamp: Epoch) -> FreeChunk {
    let given = heap.give(t.chunk(), t.generation(), stamp);
    heap.check();
    let free = heap.free_chunk(given.free).expect("what was given back is free");
    assert_eq!(free.len, given.free_len);
    free
}
fn give(heap: &mut Heap, t: &Taken) {
    give_at(heap, t, Epoch(1));
}
fn give_all(heap: &mut Heap, all: &[Taken]) {
    for t in all {
        give(heap, t);
    }
}
/// The segment's ranges: `(length, free)` in order.
fn ranges(heap: &Heap) -> Vec<(u32, bool)> {
    let map = heap.snapshot().segments.remove(0);
    map.ranges.iter().map(|r| (r.len.0, r.state == ChunkState::Free)).collect()
}

/// The talk's example: free chunks of several sizes, a request of 2560 bytes. The smallest that is large enough is
/// taken and split, and what is left goes back.
#[test]
fn t4_best_fit_splits() {
    let mut heap = heap(4 + 1 + 12 + 1 + 8 + 1 + 40 + 1);
    let mut free = Vec::new();
    for len in [4, 12, 8, 40] {
        free.push(take(&mut heap, len));
        take(&mut heap, 1);
    }
    give_all(&mut heap, &free);
    let splits = heap.stats().splits;
    let want = Want::new(Granules::holding(2560).unwrap(), Kind::Large);
    let t = heap.take(&want, 2560).unwrap();
    heap.check();
    let v = view(&heap, &t);
    assert_eq!((v.offset, v.len), (Granules(18), Granules(5)), "the chunk of 8 is the tightest");
    assert_eq!(heap.stats().splits, splits + 1);
    let map = ranges(&heap);
    assert_eq!(map[4..6], [(5, false), (3, true)], "the low part is taken, the rest is free");
    // The rest is listed: it serves the next request of its size.
    let t = take(&mut heap, 3);
    assert_eq!(view(&heap, &t).offset, Granules(23));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// With at most sixteen free chunks the smallest that fits is always the one: never a larger.
    #[test]
    fn t4_the_smallest_that_fits(sizes in prop::collection::vec(1_u32..3000, 1..16), requested in 1_u32..3000) {
        let mut heap = heap(sizes.iter().map(|n| n + 1).sum());
        let mut all = Vec::new();
        for &n in &sizes {
            all.push(take(&mut heap, n));
            take(&mut heap, 1);
        }
        let before: Vec<ChunkView> = all.iter().map(|t| view(&heap, t)).collect();
        give_all(&mut heap, &all);
        let best = before.iter().filter(|v| v.len.0 >= requested).min_by_key(|v| (v.len, v.offset));
        let got = try_take(&mut heap, requested);
        let free = heap.stats().free_chunks;
        prop_assert_eq!(got.is_some(), best.is_some());
        if let (Some(got), Some(best)) = (got, best) {
            let chosen = before.iter().find(|v| v.addr == got.addr).unwrap();
            prop_assert_eq!(chosen.len, best.len);
            prop_assert_eq!(free, sizes.len() as u64 - u64::from(best.len.0 == requested));
        }
    }

    /// Whatever is freed in whatever order, no two free ranges are neighbours, and in the end one is left.
    #[test]
    fn t5_no_two_free_neighbours(order in Just((0..24_usize).collect::<Vec<_>>()).prop_shuffle()) {
        let mut heap = heap((0..24).map(|n| n % 7 + 1).sum());
        let all: Vec<Taken> = (0..24).map(|n| take(&mut heap, n % 7 + 1)).collect();
        for i in order {
            give(&mut heap, &all[i]);
            let map = ranges(&heap);
            prop_assert!(map.windows(2).all(|w| !(w[0].1 && w[1].1)), "{:?}", map);
        }
        prop_assert_eq!(ranges(&heap).len(), 1);
    }
}

/// A freed range is joined with the free range behind it, the one before it, and both; the stamp is the latest.
#[test]
fn t5_merge_on_free() {
    let mut heap = heap(50);
    let taken = [10; 5].map(|n| take(&mut heap, n));
    give(&mut heap, &taken[1]);
    assert_eq!(ranges(&heap), [(10, false), (10, true), (10, false), (10, false), (10, false)]);
    give(&mut heap, &taken[0]);
    assert_eq!(ranges(&heap), [(20, true), (10, false), (10, false), (10, false)], "with the next");
    let given = give_at(&mut heap, &taken[2], Epoch(9));
    assert_eq!((given.offset, given.len), (Granules(0), Granules(30)), "with the previous");
    give(&mut heap, &taken[4]);
    assert_eq!(ranges(&heap), [(30, true), (10, false), (10, true)]);
    let given = give_at(&mut heap, &taken[3], Epoch(2));
    assert_eq!((given.len, given.stamp), (Granules(50), Epoch(9)), "with both, and the latest stamp");
    assert_eq!(ranges(&heap), [(50, true)]);
    assert_eq!(heap.stats().merges, 4);
}

/// A range in flight or absent does not merge with its neighbours; when it comes back free it does.
#[test]
fn t5_what_is_in_flight_does_not_merge() {
    let mut heap = heap(30);
    let [a, b, c] = [10; 3].map(|n| take(&mut heap, n));
    heap.hold(b.chunk(), b.generation(), Epoch(4));
    give(&mut heap, &a);
    give(&mut heap, &c);
    assert_eq!(ranges(&heap), [(10, true), (10, false), (10, true)]);
    assert_eq!(try_take(&mut heap, 11), None, "in flight is not free");
    give(&mut heap, &b);
    assert_eq!(ranges(&heap), [(30, true)]);
}

/// Takes 4, gives it back, takes 2 + 2, gives them back, takes 1 + 1 + 1 + 1: each split is head then tail.
fn quarters(heap: &mut Heap) -> [Taken; 4] {
    let whole = take(heap, 4);
    give(heap, &whole);
    let halves = [take(heap, 2), take(heap, 2)];
    assert_eq!(halves.map(|t| view(heap, &t).offset.0), [0, 2]);
    assert_eq!(halves[0].addr, whole.addr);
    give_all(heap, &halves);
    assert_eq!(ranges(heap), [(4, true)]);
    let quarters = [take(heap, 1), take(heap, 1), take(heap, 1), take(heap, 1)];
    assert_eq!(quarters.map(|t| view(heap, &t).offset.0), [0, 1, 2, 3]);
    assert_eq!(try_take(heap, 1), None);
    quarters
}

#[test]
fn cupy_split_tree_dropped_in_order() {
    let mut heap = heap(4);
    let quarters = quarters(&mut heap);
    for (i, t) in quarters.iter().enumerate() {
        give(&mut heap, t);
        assert_eq!(ranges(&heap)[0], (i as u32 + 1, true));
    }
    assert_eq!(ranges(&heap), [(4, true)]);
    assert_eq!(take(&mut heap, 4).addr, quarters[0].addr);
}

#[test]
fn cupy_split_tree_dropped_in_reverse() {
    let mut heap = heap(4);
    let quarters = quarters(&mut heap);
    for (i, t) in quarters.iter().rev().enumerate() {
        give(&mut heap, t);
        assert_eq!(ranges(&heap).last(), Some(&(i as u32 + 1, true)));
    }
    assert_eq!(ranges(&heap), [(4, true)]);
    assert_eq!(take(&mut heap, 4).addr, quarters[0].addr);
}

/// A half of a half: the head is split again while the tail is alive, and all merges back.
#[test]
fn cupy_split_tree_of_the_head() {
    let mut heap = heap(4);
    let (low, high) = (take(&mut heap, 2), take(&mut heap, 2));
    give(&mut heap, &low);
    let (a, b) = (take(&mut heap, 1), take(&mut heap, 1));
    assert_eq!([a, b, high].map(|t| view(&heap, &t).offset.0), [0, 1, 2]);
    give(&mut heap, &high);
    give(&mut heap, &a);
    assert_eq!(ranges(&heap), [(1, true), (1, false), (2, true)]);
    give(&mut heap, &b);
    assert_eq!(ranges(&heap), [(4, true)]);
}

/// The last freed range of a size is the next one allocated: warm, and the same address.
#[test]
fn a_freed_address_is_the_next() {
    let mut heap = heap(64);
    let t = take(&mut heap, 3);
    take(&mut heap, 3);
    give(&mut heap, &t);
    assert_eq!(take(&mut heap, 3).addr, t.addr);
}

/// Segments that touch stay two: a range that spans both would be two ranges of the device.
#[test]
fn touching_segments_never_merge() {
    let mut heap = heap(8);
    heap.add_segment(SegmentId(2), Addr(0x4000_0000 + 8 * 512), Granules(8), Kind::Large);
    heap.extend(SegmentId(2), Granules(0), Granules(8), Epoch::COMPLETE);
    heap.check();
    assert_eq!(heap.snapshot().largest_free, Granules(8));
    assert_eq!(try_take(&mut heap, 9), None);
}

/// The other kind's free ranges serve only when asked to.
#[test]
fn kinds_are_kept_apart() {
    let mut heap = heap(16);
    let small = Want::new(Granules(4), Kind::Small);
    assert_eq!(heap.take(&small, 4), None);
    assert_eq!(heap.largest_free(Kind::Small), Granules::ZERO);
    let t = heap.take_across(&small, 4).unwrap();
    heap.check();
    assert_eq!(view(&heap, &t).segment, S);
    assert_eq!(heap.largest_free(Kind::Large), Granules(12));
}

#[test]
#[should_panic(expected = "a want of no bytes")]
fn a_take_of_nothing_is_a_bug() {
    take(&mut heap(16), 0);
}

#[test]
#[should_panic(expected = "power of two")]
fn an_alignment_of_three_is_a_bug() {
    heap(16).take(&Want { len: Granules(1), align: Granules(3), kind: Kind::Large }, 1);
}
