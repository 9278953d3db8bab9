//! Physical memory under several heaps, combined as in an allocator: windows grow by handles, ranges migrate between heaps, handles move between
//! windows and go back to the device, and driver calls fail. After each step the bytes of every slot that is Here are in exactly one heap, other
//! bytes of windows in none (B3), and every allocation still has its contents: they are looked up through the slots, so they are lost if the handle moved
//! or has two owners.

use millpond_core::heap::{ChunkState, Heap, Kind, Taken, Want};
use millpond_core::order::{Pending, PendingSet, TimelineId};
use millpond_core::physical::{
    AddrRange, BusyHandle, HandleId, NoWindow, Owner, Physical, SlotState, UNIT, WindowPosition,
};
use millpond_driver::units::{Addr, Epoch, GIB, Granules, MIB, SegmentId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const POOLS: usize = 3;
/// The longest handle, in units.
const LONGEST: u32 = 4;

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        pool: usize,
        len: u32,
    },
    Free {
        nth: usize,
        stamp: u64,
    },
    /// A free range goes from one pool to another.
    Migrate {
        from: usize,
        to: usize,
        len: u32,
    },
    /// The nth handle moves to a pool if it is wholly free. Its old mapping drains if uses are `pending`; `fail` says which driver call fails.
    Move {
        nth: usize,
        to: usize,
        pending: bool,
        fail: u8,
    },
    /// The nth handle goes back to the device, unless a driver call fails.
    Trim {
        nth: usize,
        fail: u8,
    },
    /// All uses are over; the driver unmaps all draining slots, or fails to.
    Unmap {
        fails: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![3 => 1..UNIT.0, 2 => 1..5 * UNIT.0, 1 => Just(UNIT.0), 1 => Just(3 * UNIT.0)];
    let (pool, nth, fail) = (0..POOLS, 0_usize..64, prop_oneof![4 => Just(0_u8), 1 => 1_u8..4]);
    prop_oneof![
        6 => (pool.clone(), len.clone()).prop_map(|(pool, len)| Op::Alloc { pool, len }),
        5 => (nth.clone(), 0_u64..9).prop_map(|(nth, stamp)| Op::Free { nth, stamp }),
        2 => (pool.clone(), pool.clone(), len).prop_map(|(from, to, len)| Op::Migrate { from, to, len }),
        4 => (nth.clone(), pool, any::<bool>(), fail.clone())
            .prop_map(|(nth, to, pending, fail)| Op::Move { nth, to, pending, fail }),
        2 => (nth, fail).prop_map(|(nth, fail)| Op::Trim { nth, fail }),
        1 => any::<bool>().prop_map(|fails| Op::Unmap { fails }),
    ]
}

/// A range that was cut out of a heap: the pool, the place, the stamp.
type Piece = (usize, SegmentId, Granules, Granules, Epoch);

struct World {
    physical: Physical<u32>,
    heaps: [Heap; POOLS],
    /// The contents of each handle, one number a granule.
    memory: BTreeMap<HandleId, Vec<u32>>,
    live: Vec<(usize, Taken, u32)>,
    windows: u32,
    arenas: u64,
    allocations: u32,
}

impl World {
    fn new() -> World {
        World {
            physical: Physical::new(2 * MIB, GIB).unwrap(),
            heaps: core::array::from_fn(|_| Heap::new()),
            memory: BTreeMap::new(),
            live: Vec::new(),
            windows: 0,
            arenas: 0,
            allocations: 0,
        }
    }

    /// A place of this many units of holes in a pool's windows.
    fn run(&mut self, pool: usize, units: u32) -> WindowPosition {
        let (owner, need) = (Owner(pool as u64), Granules(units * UNIT.0));
        for w in self.physical.windows_of(owner).collect::<Vec<_>>() {
            let run = self.physical.holes(owner, w.id, Granules::ZERO, w.len).find(|run| run.1 >= need);
            if let Some((offset, _)) = run {
                assert!(self.physical.is_hole(owner, w.id, offset, need));
                return WindowPosition { segment: w.id, unit: offset.0 / UNIT.0 };
            }
        }
        let id = SegmentId(self.windows);
        let view = match self.physical.add_window(id, owner, need) {
            Ok(view) => view,
            Err(NoWindow::Reserve(bytes)) => {
                self.arenas += 1;
                let bytes = bytes.max(2 * GIB);
                self.physical.add_arena(AddrRange { base: Addr((self.arenas << 40) + 2 * MIB), bytes });
                return self.run(pool, units);
            }
            Err(NoWindow::TooLong) => panic!("a request of {units} units"),
        };
        self.windows += 1;
        self.heaps[pool].add_segment(id, view.base, view.len, Kind::Large);
        WindowPosition { segment: id, unit: 0 }
    }

    fn create(&mut self, units: u32) -> BusyHandle {
        let busy = self.physical.created(units, Granules(units * UNIT.0));
        self.memory.insert(busy.id(), vec![0; (units * UNIT.0) as usize]);
        busy
    }

    fn arrive(&mut self, pool: usize, segment: SegmentId, offset: Granules, len: Granules, stamp: Epoch) {
        if !self.heaps[pool].has_segment(segment) {
            let w = self.physical.window(segment).expect("a window");
            self.heaps[pool].add_segment(segment, w.base, w.len, Kind::Large);
        }
        self.heaps[pool].extend(segment, offset, len, stamp);
    }

    /// Maps handles for a request; all enter its pool together.
    fn fill(&mut self, pool: usize, len: u32) {
        let units = len.div_ceil(UNIT.0);
        let place = self.run(pool, units);
        let mut at = place.unit;
        while at < place.unit + units {
            let left = place.unit + units - at;
            let piece = (1 << left.ilog2()).min(LONGEST);
            let spare = self.physical.take_spare(Granules(piece * UNIT.0));
            let busy = spare.unwrap_or_else(|| self.create(piece));
            self.physical.start_map(&busy, WindowPosition { segment: place.segment, unit: at });
            self.physical.mapped(busy);
            at += piece;
        }
        let (offset, len) = (Granules(place.unit * UNIT.0), Granules(units * UNIT.0));
        self.arrive(pool, place.segment, offset, len, Epoch::COMPLETE);
    }

    /// Cuts every free piece of a range out of its heap; if that is not all of the range, all go back.
    fn gather(&mut self, segment: SegmentId, offset: Granules, len: Granules) -> Option<Vec<Piece>> {
        let (mut pieces, mut all) = (Vec::new(), 0);
        for pool in 0..POOLS {
            for cut in self.heaps[pool].cut_free_of(segment) {
                let (from, to) = (cut.offset.0, cut.offset.0 + cut.len.0);
                let (low, high) = (from.max(offset.0), to.min(offset.0 + len.0));
                let parts = if low < high { [(from, low), (low, high), (high, to)] } else { [(from, to); 3] };
                for (at, (from, to)) in parts.into_iter().enumerate() {
                    let inside = low < high && at == 1;
                    let piece = (pool, segment, Granules(from), Granules(to - from), cut.stamp);
                    if inside {
                        all += to - from;
                        pieces.push(piece);
                    } else if from < to && (low < high || at == 0) {
                        self.heaps[pool].extend(segment, piece.2, piece.3, piece.4);
                    }
                }
            }
        }
        if all == len.0 {
            return Some(pieces);
        }
        self.restore(pieces);
        None
    }
    fn restore(&mut self, pieces: Vec<Piece>) {
        for (pool, segment, offset, len, stamp) in pieces {
            self.heaps[pool].extend(segment, offset, len, stamp);
        }
    }

    /// Begins work on the nth mapped handle, if it is wholly free, and cuts it out of all heaps.
    fn begin(&mut self, nth: usize) -> Option<(BusyHandle, Granules, Vec<Piece>)> {
        let windows: Vec<_> = self.physical.windows().collect();
        let mapped: Vec<HandleId> = windows
            .iter()
            .flat_map(|w| self.physical.slots_in(w.id, Granules::ZERO, w.len))
            .filter(|slot| *slot.state == SlotState::Here)
            .map(|slot| slot.handle)
            .collect();
        let id = *mapped.get(nth % mapped.len().max(1))?;
        let view = self.physical.handle(id).expect("it is mapped");
        let busy = self.physical.begin(id).ok()?;
        let at = view.at.expect("it is mapped");
        let pieces = self.gather(at.segment, Granules(at.unit * UNIT.0), view.len);
        if pieces.is_none() {
            self.physical.put_back(busy);
            return None;
        }
        Some((busy, view.len, pieces?))
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Alloc { pool, len } => {
                let want = Want::new(Granules(len), Kind::Large);
                let taken = self.heaps[pool].take(&want, 1).unwrap_or_else(|| {
                    self.fill(pool, len);
                    self.heaps[pool].take(&want, 1).expect("it was just mapped")
                });
                self.allocations += 1;
                let id = self.allocations;
                self.write(pool, &taken, id);
                self.live.push((pool, taken, id));
            }
            Op::Free { nth, stamp } if !self.live.is_empty() => {
                let (pool, t, id) = self.live.remove(nth % self.live.len());
                self.assert_contents(pool, &t, id);
                self.heaps[pool].give(t.chunk(), t.generation(), Epoch(stamp));
            }
            Op::Migrate { from, to, len } if from != to => {
                let want = Want::new(Granules(len), Kind::Large);
                if let Some(found) = self.heaps[from].find(&want, 100, |_| true) {
                    let cut = self.heaps[from].cut(found.chunk, found.at, Granules(len));
                    self.arrive(to, cut.segment, cut.offset, cut.len, Epoch(5));
                }
            }
            Op::Move { nth, to, pending, fail } => {
                let Some((busy, len, pieces)) = self.begin(nth) else { return };
                let place = self.run(to, len.0 / UNIT.0);
                self.physical.start_map(&busy, place);
                match fail {
                    // The map failed; the access could not be set and neither could the driver unmap.
                    1 | 2 => {
                        if fail == 1 {
                            self.physical.map_failed(&busy);
                        } else {
                            self.physical.map_stuck(&busy);
                        }
                        self.restore(pieces);
                        self.physical.put_back(busy);
                        return;
                    }
                    _ => {}
                }
                let left = self.physical.moved(busy);
                let stamp = Epoch(if pending { 7 } else { 0 });
                match (pending, fail) {
                    (true, _) => {
                        let uses = [Pending { on: TimelineId(1), epoch: Epoch(7) }];
                        self.physical.drain(left, PendingSet::from_slice(&uses));
                    }
                    (false, 0) => self.physical.unmapped(left),
                    (false, _) => self.physical.drain(left, PendingSet::new()),
                }
                self.arrive(to, place.segment, Granules(place.unit * UNIT.0), len, stamp);
            }
            Op::Trim { nth, fail } => {
                let Some((busy, _, pieces)) = self.begin(nth) else { return };
                if fail == 1 {
                    self.restore(pieces);
                    self.physical.put_back(busy);
                    return;
                }
                self.physical.detached(&busy);
                match self.physical.to_release(&busy).filter(|_| fail == 0) {
                    Some(_) => {
                        self.memory.remove(&busy.id());
                        self.physical.released(busy);
                    }
                    None => self.physical.spare(busy),
                }
            }
            Op::Unmap { fails } => {
                for slot in self.physical.drained(usize::MAX, |_| true) {
                    if fails {
                        self.physical.drain(slot, PendingSet::new());
                    } else {
                        self.physical.unmapped(slot);
                    }
                }
            }
            Op::Free { .. } | Op::Migrate { .. } => {}
        }
    }

    /// The contents of an allocation, handle by handle.
    fn touch(&mut self, pool: usize, t: &Taken, mut touch: impl FnMut(&mut [u32])) {
        let v = self.heaps[pool].view(t.chunk(), t.generation());
        let mut end = v.offset.0;
        for slot in self.physical.slots_in(v.segment, v.offset, v.len) {
            assert_eq!(*slot.state, SlotState::Here, "an allocation's addresses are mapped");
            let from = end.max(slot.offset.0);
            assert_eq!(from, end, "with no hole between");
            end = (v.offset.0 + v.len.0).min(slot.offset.0 + slot.len.0);
            let memory = self.memory.get_mut(&slot.handle).expect("it was not released");
            touch(&mut memory[(from - slot.offset.0) as usize..(end - slot.offset.0) as usize]);
        }
        assert_eq!(end, v.offset.0 + v.len.0);
    }
    fn write(&mut self, pool: usize, t: &Taken, id: u32) {
        self.touch(pool, t, |memory| memory.fill(id));
    }
    fn assert_contents(&mut self, pool: usize, t: &Taken, id: u32) {
        self.touch(pool, t, |memory| assert!(memory.iter().all(|&m| m == id), "contents of {id}"));
    }

    /// Checks B3, the other invariants and the contents.
    fn check(&mut self) {
        self.physical.check_at_rest();
        let mut present: BTreeMap<SegmentId, Vec<(u32, u32)>> = BTreeMap::new();
        for heap in &self.heaps {
            heap.check();
            for s in heap.snapshot().segments {
                let here = s.ranges.iter().filter(|r| r.state != ChunkState::Absent);
                let all = present.entry(s.id).or_default();
                all.extend(here.map(|r| (r.offset.0, r.offset.0 + r.len.0)));
            }
        }
        for w in self.physical.windows() {
            let serving = self.physical.slots_in(w.id, Granules::ZERO, w.len);
            let serving = serving.filter(|slot| *slot.state == SlotState::Here);
            let serving = runs(serving.map(|slot| (slot.offset.0, slot.offset.0 + slot.len.0)).collect());
            let present = runs(present.remove(&w.id).unwrap_or_default());
            assert_eq!(present, serving, "B3 in segment {}", w.id.0);
        }
        assert!(present.values().all(Vec::is_empty), "a heap has bytes of no window");
        let bytes: u64 = self.memory.values().map(|m| m.len() as u64 * 512).sum();
        assert_eq!(self.physical.stats().bytes, bytes, "B1");
        for (pool, t, id) in self.live.clone() {
            self.assert_contents(pool, &t, id);
        }
    }

    /// Gives everything back.
    fn end(mut self) {
        for nth in (0..self.live.len()).rev() {
            self.step(&Op::Free { nth, stamp: 0 });
        }
        for pool in 0..POOLS {
            self.physical.close(Owner(pool as u64));
        }
        self.step(&Op::Unmap { fails: false });
        while self.physical.stats().bytes > self.physical.stats().spare {
            self.step(&Op::Trim { nth: 0, fail: 0 });
            self.check();
        }
        while let Some(busy) = self.physical.take_any_spare() {
            self.memory.remove(&busy.id());
            self.physical.released(busy);
        }
        for id in self.physical.retired().collect::<Vec<_>>() {
            for heap in &mut self.heaps {
                assert!(heap.remove_segment(id));
            }
            self.physical.remove_window(id);
        }
        self.check();
        while self.physical.take_unused_arena().is_some() {}
        let stats = self.physical.stats();
        let left = (stats.handles, stats.draining, stats.windows, stats.reserved_addresses);
        assert_eq!(left, (0, 0, 0, 0));
    }
}

/// Joins adjacent ranges; none overlaps another.
fn runs(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (from, to) in ranges {
        match runs.last_mut() {
            Some(last) if from <= last.1 => {
                assert_eq!(from, last.1, "bytes have two owners");
                last.1 = to;
            }
            _ => runs.push((from, to)),
        }
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn handles_move_between_heaps(ops in prop::collection::vec(op(), 1..200)) {
        let mut world = World::new();
        for op in &ops {
            world.step(op);
            world.check();
        }
        world.end();
    }
}
