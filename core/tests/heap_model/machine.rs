//! The state machine: random programs over two heaps that share segments, each step predicted exactly by the naive
//! heap; every law is walked and the bytes' contents compared after each step.

use super::naive::{Ask, Hole, Piece, Pool, Range, Run, Spec, Spot, What, bin};
use super::windows::{assert_pieces, check_parts};
use millpond_core::heap::{ChunkId, ChunkState, Cut, Heap, Kind, SegmentMap, Taken, Want};
use millpond_driver::units::{Addr, Epoch, Granules, SegmentId};
use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use std::collections::BTreeMap;

/// The segments there can be. The first two touch; the third begins at an odd granule. Three are windows.
pub(crate) const SPECS: [Spec; 6] = [
    Spec { id: 0, base: 2048, len: 256, kind: Kind::Large, unit: 16 },
    Spec { id: 1, base: 2304, len: 192, kind: Kind::Large, unit: 0 },
    Spec { id: 2, base: 4097, len: 128, kind: Kind::Small, unit: 8 },
    Spec { id: 3, base: 1024, len: 64, kind: Kind::Small, unit: 0 },
    Spec { id: 4, base: 4352, len: 192, kind: Kind::Large, unit: 16 },
    Spec { id: 9, base: 8192, len: 3000, kind: Kind::Large, unit: 0 },
];

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Bytes that no heap has arrive in a pool.
    Grow {
        pool: usize,
        segment: usize,
        offset: u32,
        len: u32,
        stamp: u64,
    },
    Take {
        pool: usize,
        ask: Ask,
        across: bool,
        short: u64,
    },
    Give {
        pool: usize,
        handle: u32,
        stamp: u64,
    },
    Hold {
        pool: usize,
        handle: u32,
        stamp: u64,
    },
    Tag {
        pool: usize,
        handle: u32,
        tag: u32,
    },
    /// What `find` finds, and `more` beyond the request, migrates to the other pool.
    Migrate {
        from: usize,
        ask: Ask,
        more: u32,
        steps: usize,
        odd: bool,
        stamp: u64,
    },
    /// Any piece of a free chunk goes to the other pool.
    Move {
        from: usize,
        segment: u32,
        offset: u32,
        len: u32,
        stamp: u64,
    },
    /// The front of a range in flight goes to the other pool.
    MoveInFlight {
        from: usize,
        handle: u32,
        len: u32,
        stamp: u64,
    },
    /// All that is free of a segment goes back to the device.
    Trim {
        segment: usize,
    },
    /// A pool is filled up where that takes the fewest bytes, and takes there. Of the units that no heap has, those of `not` are no holes.
    Fill {
        pool: usize,
        ask: Ask,
        not: u16,
        stamp: u64,
    },
    /// Units that are not in use go back to the device.
    Gather {
        segment: usize,
        unit: u32,
        units: u32,
    },
}

/// What the naive heap says that the operation just done returns.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    Nothing,
    Took(u32, Option<Spot>),
    /// And between what the stamp of what leaves is.
    Found(Option<(Spot, (u64, u64))>),
    /// Offsets, lengths and stamps of what left each pool.
    Left([Vec<Piece>; 2]),
    /// Which holes there were, where the pool is to be filled up, the handle, and where that begins and its stamp.
    Filled(Vec<Hole>, Option<(Run, u32, u32, u64)>),
    /// The same, until one has some in use.
    Gathered(Vec<Option<Vec<Piece>>>),
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    pools: [Pool; 2],
    handles: u32,
    expected: Expected,
}

pub(crate) struct Naive;

fn stamp() -> impl Strategy<Value = u64> {
    0_u64..10
}
fn ask() -> impl Strategy<Value = Ask> {
    let len = prop_oneof![4 => 1_u32..8, 2 => 1_u32..40, 1 => 1_u32..600];
    let align = select(vec![1_u32, 1, 1, 1, 2, 8, 64]);
    (len, align, select(&Kind::ALL[..])).prop_map(|(len, align, kind)| Ask { kind, len, align })
}

impl State {
    /// Whether no pool has any of a range.
    fn unowned(&self, segment: u32, offset: u32, len: u32) -> bool {
        self.pools.iter().all(|p| {
            let ranges = p.segments.get(&segment).map_or(&[][..], |s| &s.1);
            ranges
                .iter()
                .all(|r| r.what == What::Absent || r.offset >= offset + len || r.offset + r.len <= offset)
        })
    }
    /// The windows' stretches of units that no pool has, a unit for each bit of `not` left out now and then.
    fn holes(&self, not: u16) -> Vec<Hole> {
        let mut holes: Vec<Hole> = Vec::new();
        for s in SPECS.iter().filter(|s| s.unit > 0) {
            for offset in (0..s.len).step_by(s.unit as usize) {
                if self.unowned(s.id, offset, s.unit) && not >> (offset / s.unit % 16) & 1 == 0 {
                    match holes.last_mut() {
                        Some(last) if (last.0, last.1 + last.2) == (s.id, offset) => last.2 += s.unit,
                        _ => holes.push((s.id, offset, s.unit)),
                    }
                }
            }
        }
        holes
    }
    fn handles_of(&self, in_flight: bool) -> Vec<(usize, u32)> {
        let of = |p: usize| self.pools[p].live.keys().map(move |&h| (p, h));
        (0..2).flat_map(of).filter(|&(p, h)| self.is_in_flight(p, h) == Some(in_flight)).collect()
    }
    fn is_in_flight(&self, pool: usize, handle: u32) -> Option<bool> {
        Some(matches!(self.pools[pool].place(handle)?.1.what, What::InFlight { .. }))
    }
    /// A pool gets a range that the other had.
    fn arrive(&mut self, pool: usize, segment: u32, offset: u32, len: u32, stamp: u64) {
        self.pools[pool].add(*SPECS.iter().find(|s| s.id == segment).unwrap());
        self.pools[pool].extend(segment, offset, len, stamp);
    }
}

impl ReferenceStateMachine for Naive {
    type State = State;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<State> {
        Just(State { pools: [Pool::default(), Pool::default()], handles: 0, expected: Expected::Nothing })
            .boxed()
    }

    fn transitions(state: &State) -> BoxedStrategy<Op> {
        let pool = 0_usize..2;
        let grow = (pool.clone(), 0..SPECS.len(), any::<[u16; 2]>(), any::<bool>(), stamp()).prop_map(
            |(pool, segment, [a, b], whole, stamp)| {
                let all = SPECS[segment].len;
                let offset = if whole { 0 } else { u32::from(a) % all };
                let len = if whole { all } else { 1 + u32::from(b) % (all - offset).min(64) };
                Op::Grow { pool, segment, offset, len, stamp }
            },
        );
        let take = (pool.clone(), ask(), prop::bool::weighted(0.1), 0_u64..512)
            .prop_map(|(pool, ask, across, short)| Op::Take { pool, ask, across, short });
        let migrate = (pool, ask(), 0_u32..20, 1_usize..40, any::<bool>(), stamp()).prop_map(
            |(from, ask, more, steps, odd, stamp)| Op::Migrate { from, ask, more, steps, odd, stamp },
        );
        let trim = (0..SPECS.len()).prop_map(|segment| Op::Trim { segment });
        let fill = (0_usize..2, ask(), any::<[u16; 2]>(), stamp()).prop_map(|(pool, ask, [a, b], stamp)| {
            let ask = Ask { align: ask.align.min(8), ..ask };
            Op::Fill { pool, ask, not: a & b, stamp }
        });
        let gather = (0..SPECS.len(), any::<[u16; 2]>()).prop_map(|(segment, [a, b])| {
            let all = SPECS[segment].len / SPECS[segment].unit.max(8);
            let unit = u32::from(a) % all;
            Op::Gather { segment, unit, units: 1 + u32::from(b) % (all - unit).min(4) }
        });
        let mut all: Vec<(u32, BoxedStrategy<Op>)> = vec![
            (2, grow.boxed()),
            (8, take.boxed()),
            (1, migrate.boxed()),
            (1, trim.boxed()),
            (3, fill.boxed()),
            (2, gather.boxed()),
        ];
        let allocated = state.handles_of(false);
        if !allocated.is_empty() {
            let one = select(allocated);
            let give =
                (one.clone(), stamp()).prop_map(|((pool, handle), stamp)| Op::Give { pool, handle, stamp });
            let hold =
                (one.clone(), stamp()).prop_map(|((pool, handle), stamp)| Op::Hold { pool, handle, stamp });
            let tag = (one, any::<u32>()).prop_map(|((pool, handle), tag)| Op::Tag { pool, handle, tag });
            all.extend([(5, give.boxed()), (2, hold.boxed()), (1, tag.boxed())]);
        }
        let in_flight = state.handles_of(true);
        if !in_flight.is_empty() {
            let one = select(in_flight);
            let give =
                (one.clone(), stamp()).prop_map(|((pool, handle), stamp)| Op::Give { pool, handle, stamp });
            let go = (one, 1_u32..40, stamp()).prop_map(|((from, handle), len, stamp)| Op::MoveInFlight {
                from,
                handle,
                len,
                stamp,
            });
            all.extend([(2, give.boxed()), (1, go.boxed())]);
        }
        let free: Vec<(usize, u32, Range)> = (0..2)
            .flat_map(|p| SPECS.iter().map(move |s| (p, s.id)))
            .flat_map(|(p, s)| state.pools[p].free_ranges(s).into_iter().map(move |r| (p, s, r)))
            .collect();
        if !free.is_empty() {
            let piece =
                (select(free), any::<[u16; 2]>(), stamp()).prop_map(|((from, segment, r), [a, b], stamp)| {
                    let skip = u32::from(a) % r.len;
                    let len = 1 + u32::from(b) % (r.len - skip);
                    Op::Move { from, segment, offset: r.offset + skip, len, stamp }
                });
            all.push((2, piece.boxed()));
        }
        proptest::strategy::Union::new_weighted(all).boxed()
    }

    fn preconditions(state: &State, op: &Op) -> bool {
        match *op {
            Op::Grow { segment, offset, len, .. } => state.unowned(SPECS[segment].id, offset, len),
            Op::Give { pool, handle, .. } => state.is_in_flight(pool, handle).is_some(),
            Op::Hold { pool, handle, .. } | Op::Tag { pool, handle, .. } => {
                state.is_in_flight(pool, handle) == Some(false)
            }
            Op::MoveInFlight { from, handle, .. } => state.is_in_flight(from, handle) == Some(true),
            Op::Move { from, segment, offset, len, .. } => {
                let ranges = state.pools[from].free_ranges(segment);
                ranges.iter().any(|r| r.offset <= offset && offset + len <= r.offset + r.len)
            }
            // A run is looked for behind a take that missed.
            Op::Fill { pool, ask, .. } => {
                state.pools[pool].seek(ask, ask.kind, usize::MAX, |_| true).is_none()
            }
            Op::Take { .. } | Op::Migrate { .. } | Op::Trim { .. } | Op::Gather { .. } => true,
        }
    }

    fn apply(mut state: State, op: &Op) -> State {
        state.expected = Expected::Nothing;
        match *op {
            Op::Grow { pool, segment, offset, len, stamp } => {
                state.arrive(pool, SPECS[segment].id, offset, len, stamp);
            }
            Op::Take { pool, ask, across, short } => {
                state.handles += 1;
                let requested = u64::from(ask.len) * 512 - short;
                let spot = state.pools[pool].take(ask, across, state.handles, requested);
                state.expected = Expected::Took(state.handles, spot);
            }
            Op::Give { pool, handle, stamp } => state.pools[pool].give(handle, stamp),
            Op::Hold { pool, handle, stamp } => state.pools[pool].hold(handle, stamp),
            Op::Tag { pool, handle, tag } => state.pools[pool].live.get_mut(&handle).unwrap().tag = tag,
            Op::Migrate { from, ask, more, steps, odd, stamp } => {
                let spot = state.pools[from].seek(ask, ask.kind, steps, |s| !odd || s % 2 == 1);
                let spot = spot.map(|s| {
                    let len = (ask.len + more).min(s.offset + s.len - s.at);
                    let bounds = state.pools[from].bounds(s.segment, s.at, len, s.stamp);
                    state.pools[from].cut(s.segment, s.at, len);
                    state.arrive(1 - from, s.segment, s.at, len, stamp);
                    (s, bounds)
                });
                state.expected = Expected::Found(spot);
            }
            Op::Move { from, segment, offset, len, stamp } => {
                state.pools[from].cut(segment, offset, len);
                state.arrive(1 - from, segment, offset, len, stamp);
            }
            Op::MoveInFlight { from, handle, len, stamp } => {
                let len = len.min(state.pools[from].place(handle).unwrap().1.len);
                let (segment, offset) = state.pools[from].cut_in_flight(handle, len);
                state.arrive(1 - from, segment, offset, len, stamp);
            }
            Op::Trim { segment } => {
                let id = SPECS[segment].id;
                let left = |pool: &mut Pool| {
                    let stamp = |r: &Range| if let What::Free { stamp, .. } = r.what { stamp } else { 0 };
                    let gone = pool.free_ranges(id);
                    let gone =
                        gone.iter().map(|r| (r.offset, r.len, pool.bounds(id, r.offset, r.len, stamp(r))));
                    let gone: Vec<_> = gone.collect();
                    for &(offset, len, _) in &gone {
                        pool.cut(id, offset, len);
                    }
                    pool.forget(id);
                    gone
                };
                let [a, b] = &mut state.pools;
                state.expected = Expected::Left([left(a), left(b)]);
            }
            Op::Fill { pool, ask, not, stamp } => {
                let mut holes = state.holes(not);
                // A window that the pool does not know yet is added when memory comes in.
                holes.retain(|h| state.pools[pool].segments.contains_key(&h.0));
                let best = state.pools[pool].runs(ask, &holes).min_by_key(Run::key);
                let filled = best.map(|run| {
                    for &(offset, len) in &run.missing {
                        state.arrive(pool, run.segment, offset, len, stamp);
                    }
                    state.handles += 1;
                    let (begin, stamp) = state.pools[pool].take_at(ask, run.segment, run.at, state.handles);
                    (run, state.handles, begin, stamp)
                });
                state.expected = Expected::Filled(holes, filled);
            }
            Op::Gather { segment, unit, units } => {
                let Spec { id, unit: granules, .. } = SPECS[segment];
                let (offset, len) = (unit * granules.max(8), units * granules.max(8));
                let mut gathered = Vec::new();
                for pool in &mut state.pools {
                    let cuts = pool.cut_free_in(id, offset, len);
                    let goes_on = cuts.is_some();
                    gathered.push(cuts);
                    if !goes_on {
                        break;
                    }
                }
                state.expected = Expected::Gathered(gathered);
            }
        }
        state
    }
}

/// The heaps, the handles they gave out, and memory: one number a granule, the handle that wrote it last.
pub(crate) struct Real {
    pub(crate) heaps: [Heap; 2],
    pub(crate) taken: BTreeMap<u32, Taken>,
    memory: BTreeMap<u32, Vec<u32>>,
}

pub(crate) fn want(ask: Ask) -> Want {
    Want { len: Granules(ask.len), align: Granules(ask.align), kind: ask.kind }
}

impl Real {
    pub(crate) fn bytes(&mut self, segment: SegmentId, offset: Granules, len: Granules) -> &mut [u32] {
        let memory = self.memory.get_mut(&segment.0).unwrap();
        &mut memory[offset.0 as usize..(offset.0 + len.0) as usize]
    }
    /// What the handle wrote is still there, as far as the range is still its own.
    fn assert_contents(&mut self, pool: usize, handle: u32) {
        let t = self.taken[&handle];
        let v = self.heaps[pool].view(t.chunk(), t.generation());
        assert!(self.bytes(v.segment, v.offset, v.len).iter().all(|&h| h == handle), "contents of {handle}");
    }
    fn arrive(&mut self, pool: usize, cut: &Cut, stamp: u64) {
        let heap = &mut self.heaps[pool];
        if !heap.has_segment(cut.segment) {
            let unit = SPECS.iter().find(|s| s.id == cut.segment.0).unwrap().unit;
            heap.add_window(cut.segment, cut.base, cut.segment_len, cut.kind, Granules(unit));
        }
        let free = heap.extend(cut.segment, cut.offset, cut.len, Epoch(stamp));
        assert!(free.offset <= cut.offset && free.stamp >= Epoch(stamp));
        assert!(cut.offset.0 + cut.len.0 <= free.offset.0 + free.len.0);
    }
    /// The chunk of a free range, by its place.
    fn free_chunk(&self, pool: usize, segment: u32, offset: u32) -> ChunkId {
        let kind = SPECS.iter().find(|s| s.id == segment).unwrap().kind;
        // Every free chunk that begins elsewhere is refused by cutting candidates one by one in a copy.
        let mut copy = self.heaps[pool].clone();
        loop {
            let all = Want::new(Granules(1), kind);
            let f = copy.find(&all, usize::MAX, |_| true).expect("the naive heap says that it is free");
            if f.segment.0 == segment && f.offset.0 <= offset && offset < f.offset.0 + f.len.0 {
                return f.chunk;
            }
            copy.cut(f.chunk, f.offset, f.len);
        }
    }
}

/// What left says the truth about its segment, and has its stamp.
pub(crate) fn assert_cut(cut: &Cut, (low, high): (u64, u64)) {
    let spec = SPECS.iter().find(|s| s.id == cut.segment.0).unwrap();
    assert_eq!((cut.base, cut.segment_len, cut.kind), (Addr(spec.base * 512), Granules(spec.len), spec.kind));
    assert_eq!(cut.addr, cut.base.offset(cut.offset));
    assert!(low <= cut.stamp.0 && cut.stamp.0 <= high, "{cut:?} is not between {low} and {high}");
}

impl StateMachineTest for Real {
    type SystemUnderTest = Real;
    type Reference = Naive;

    fn init_test(_: &State) -> Real {
        let memory = SPECS.iter().map(|s| (s.id, vec![0; s.len as usize])).collect();
        Real { heaps: [Heap::new(), Heap::new()], taken: BTreeMap::new(), memory }
    }

    fn apply(mut real: Real, state: &State, op: Op) -> Real {
        match op {
            Op::Grow { pool, segment, offset, len, stamp } => {
                let s = SPECS[segment];
                let (id, base) = (SegmentId(s.id), Addr(s.base * 512));
                let heap = &mut real.heaps[pool];
                if !heap.has_segment(id) {
                    heap.add_window(id, base, Granules(s.len), s.kind, Granules(s.unit));
                }
                heap.extend(id, Granules(offset), Granules(len), Epoch(stamp));
            }
            Op::Take { pool, ask, across, short } => {
                let requested = u64::from(ask.len) * 512 - short;
                let heap = &mut real.heaps[pool];
                let got = if across {
                    heap.take_across(&want(ask), requested)
                } else {
                    heap.take(&want(ask), requested)
                };
                let Expected::Took(handle, expected) = state.expected else { unreachable!() };
                let got = got.map(|t| (t, heap.view(t.chunk(), t.generation())));
                assert_eq!(
                    got.map(|(_, v)| (v.segment.0, v.offset.0, v.stamp.0)),
                    expected.map(|s| (s.segment, s.at, s.stamp))
                );
                if let Some((t, v)) = got {
                    assert_eq!((v.addr, v.len.0, v.tag), (t.addr, ask.len, 0));
                    assert!(t.addr.0.is_multiple_of(u64::from(ask.align) * 512));
                    real.bytes(v.segment, v.offset, v.len).fill(handle);
                    real.taken.insert(handle, t);
                }
            }
            Op::Give { pool, handle, stamp } => {
                real.assert_contents(pool, handle);
                let t = real.taken.remove(&handle).unwrap();
                let given = real.heaps[pool].give(t.chunk(), t.generation(), Epoch(stamp));
                let free = real.heaps[pool].free_chunk(given.free).expect("what was given back is free");
                assert_eq!(free.len, given.free_len);
                assert!(free.len >= given.len && free.stamp >= Epoch(stamp));
                assert_eq!(real.heaps[pool].lookup(t.chunk(), t.generation()), None);
            }
            Op::Hold { pool, handle, stamp } => {
                real.assert_contents(pool, handle);
                let t = real.taken[&handle];
                real.heaps[pool].hold(t.chunk(), t.generation(), Epoch(stamp));
            }
            Op::Tag { pool, handle, tag } => real.heaps[pool].set_tag(real.taken[&handle].chunk(), tag),
            Op::Migrate { from, ask, more, steps, odd, stamp } => {
                let found = real.heaps[from].find(&want(ask), steps, |e| !odd || e.0 % 2 == 1);
                let Expected::Found(expected) = state.expected else { unreachable!() };
                assert_eq!(
                    found.map(|f| (f.segment.0, f.offset.0, f.len.0, f.at.0, f.stamp.0)),
                    expected.map(|(s, _)| (s.segment, s.offset, s.len, s.at, s.stamp))
                );
                if let (Some(f), Some((_, bounds))) = (found, expected) {
                    let len = Granules((ask.len + more).min(f.offset.0 + f.len.0 - f.at.0));
                    let cut = real.heaps[from].cut(f.chunk, f.at, len);
                    assert_cut(&cut, bounds);
                    real.arrive(1 - from, &cut, stamp);
                }
            }
            Op::Move { from, segment, offset, len, stamp } => {
                let chunk = real.free_chunk(from, segment, offset);
                let cut = real.heaps[from].cut(chunk, Granules(offset), Granules(len));
                real.arrive(1 - from, &cut, stamp);
            }
            Op::MoveInFlight { from, handle, len, stamp } => {
                real.assert_contents(from, handle);
                let t = real.taken[&handle];
                let v = real.heaps[from].view(t.chunk(), t.generation());
                let len = v.len.min(Granules(len));
                let cut = real.heaps[from].cut(t.chunk(), v.offset, len);
                assert_cut(&cut, (v.stamp.0, v.stamp.0));
                real.arrive(1 - from, &cut, stamp);
                if len == v.len {
                    real.taken.remove(&handle);
                }
            }
            Op::Trim { segment } => {
                let id = SegmentId(SPECS[segment].id);
                let Expected::Left(expected) = &state.expected else { unreachable!() };
                for (heap, expected) in real.heaps.iter_mut().zip(expected) {
                    let left = heap.cut_free_of(id);
                    assert_pieces(&left, expected);
                    let empty = heap.segments().all(|s| s.id != id || s.here == Granules::ZERO);
                    assert_eq!(heap.remove_segment(id), empty);
                }
            }
            Op::Fill { pool, ask, stamp, .. } => real.fill(pool, ask, stamp, &state.expected),
            Op::Gather { segment, unit, units } => real.gather(segment, unit, units, &state.expected),
        }
        real
    }

    fn check_invariants(real: &Real, state: &State) {
        let mut owners: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        for (i, (heap, pool)) in real.heaps.iter().zip(&state.pools).enumerate() {
            heap.check();
            let snapshot = heap.snapshot();
            compare(&snapshot.segments, pool);
            check_parts(heap, pool);
            let [free, allocated, in_flight] = pool.sums().map(|n| n * 512);
            let totals = snapshot.stats;
            assert_eq!([totals.free, totals.allocated, totals.in_flight], [free, allocated, in_flight]);
            assert_eq!(totals.owned, free + allocated + in_flight);
            let longest = SPECS.iter().flat_map(|s| pool.free_ranges(s.id)).map(|r| r.len).max();
            assert_eq!(snapshot.largest_free.0, longest.unwrap_or(0));
            let largest = Some(snapshot.largest_free);
            assert_eq!(heap.longest_free(usize::MAX), largest, "without a copy too");
            assert!(heap.longest_free(1).is_none_or(|longest| Some(longest) == largest), "or it is not said");
            let mut from = 0;
            let pieces = std::iter::from_fn(|| {
                let (end, free) = heap.free_from(from, 3)?;
                from = end;
                Some(free.map(|range| range.len).collect::<Vec<_>>())
            });
            let pieces: Vec<_> = pieces.flatten().collect();
            assert_eq!(pieces.iter().copied().max().unwrap_or(Granules::ZERO), snapshot.largest_free);
            assert_eq!(pieces.len() as u64, snapshot.stats.free_chunks, "each once, three records at a time");
            let mut from = 0;
            let pieces = std::iter::from_fn(|| {
                let (end, ranges) = heap.ranges_from(from, 3, false)?;
                from = end;
                Some(ranges.map(|(id, r)| (id, r.offset, r.len, r.state)).collect::<Vec<_>>())
            });
            let mut pieces: Vec<_> = pieces.flatten().collect();
            pieces.sort_unstable();
            let all = snapshot.segments.iter().flat_map(|s| s.ranges.iter().map(|r| (s.id, *r)));
            let here = all.filter(|(_, r)| r.state != ChunkState::Absent);
            let here = here.map(|(id, r)| (id, r.offset, r.len, r.state));
            assert_eq!(pieces, here.collect::<Vec<_>>(), "all that is here, once");
            assert!(totals.largest_free_bound >= snapshot.largest_free.bytes());
            assert!(totals.steps_max <= 32);
            for (kind, len) in Kind::ALL.into_iter().flat_map(|kind| [(kind, 1), (kind, 19), (kind, 64)]) {
                let all = SPECS.iter().filter(|s| s.kind == kind);
                let all =
                    all.flat_map(|s| pool.free_ranges(s.id).into_iter().map(|r| (s.id, r.offset, r.len)));
                let mut long: Vec<_> = all.filter(|f| f.2 >= len).collect();
                let found = heap.free_at_least(kind, Granules(len));
                let mut found: Vec<_> = found.map(|f| (f.segment.0, f.offset.0, f.len.0)).collect();
                assert!(found.windows(2).all(|f| bin(f[0].2) >= bin(f[1].2)), "the longest first: {found:?}");
                long.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, long);
            }
            for s in SPECS {
                let free: u32 = pool.free_ranges(s.id).iter().map(|r| r.len).sum();
                let known = heap.segments().find(|known| known.id == SegmentId(s.id));
                assert_eq!(known.map_or(Granules::ZERO, |known| known.free), Granules(free));
            }
            for (handle, live) in &pool.live {
                let (segment, r) = pool.place(*handle).unwrap();
                let t = real.taken[handle];
                let v = heap.view(t.chunk(), t.generation());
                assert_eq!((v.segment.0, v.offset.0, v.len.0), (segment, r.offset, r.len));
                assert_eq!((v.requested, v.tag, heap.tag(t.chunk())), (live.requested, live.tag, live.tag));
            }
            for s in &snapshot.segments {
                for r in s.ranges.iter().filter(|r| r.state != ChunkState::Absent) {
                    for at in r.offset.0..r.offset.0 + r.len.0 {
                        assert_eq!(
                            owners.insert((s.id.0, at), i),
                            None,
                            "granule {at} of {:?} has two owners",
                            s.id
                        );
                    }
                }
            }
        }
    }

    fn teardown(mut real: Real, state: State) {
        for pool in 0..2 {
            for handle in state.pools[pool].live.keys() {
                real.assert_contents(pool, *handle);
                let t = real.taken[handle];
                real.heaps[pool].give(t.chunk(), t.generation(), Epoch(1));
            }
            let heap = &mut real.heaps[pool];
            for spec in SPECS {
                heap.cut_free_of(SegmentId(spec.id));
                assert!(heap.remove_segment(SegmentId(spec.id)));
            }
            heap.check();
            assert_eq!((heap.stats().owned, heap.segments().len()), (0, 0));
        }
    }
}

/// The two maps are the same, range by range.
fn compare(segments: &[SegmentMap], pool: &Pool) {
    assert_eq!(segments.len(), pool.segments.len());
    for (s, (spec, ranges)) in segments.iter().zip(pool.segments.values()) {
        assert_eq!((s.id.0, s.base.0, s.len.0, s.kind), (spec.id, spec.base * 512, spec.len, spec.kind));
        let real: Vec<_> = s.ranges.iter().map(|r| (r.offset.0, r.len.0, r.state, r.stamp.0)).collect();
        let naive: Vec<_> = ranges
            .iter()
            .map(|r| {
                let (state, stamp) = match r.what {
                    What::Free { stamp, .. } => (ChunkState::Free, stamp),
                    What::Allocated { stamp, .. } => (ChunkState::Allocated, stamp),
                    What::InFlight { stamp, .. } => (ChunkState::InFlight, stamp),
                    What::Absent => (ChunkState::Absent, 0),
                };
                (r.offset, r.len, state, stamp)
            })
            .collect();
        assert_eq!(real, naive, "segment {}", spec.id);
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_match_the_naive_heap(sequential 1..120 => Real);
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Long enough that bins hold more chunks than a walk looks at.
    #[test]
    fn long_programs_match_the_naive_heap(sequential 600..800 => Real);
}
