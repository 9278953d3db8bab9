//! What the state machine asks of windows: a pool is filled up, units are gathered, and parts of free chunks have stamps of their own.

use super::machine::{Expected, Real, SPECS, assert_cut, want};
use super::naive::{Ask, Piece, Pool, Run, Spec};
use millpond_core::heap::{Cut, Heap, Hole, Kind};
use millpond_driver::units::{Epoch, Granules, SegmentId};

impl Real {
    /// Finds where a pool misses the fewest bytes, fills that up and takes there.
    pub(crate) fn fill(&mut self, pool: usize, ask: Ask, stamp: u64, expected_run: &Expected) {
        let Expected::Filled(holes, expected) = expected_run else { unreachable!() };
        let holes = holes.iter().map(|&(segment, offset, len)| Hole {
            segment: SegmentId(segment),
            offset: Granules(offset),
            len: Granules(len),
        });
        let run = self.heaps[pool].run(&want(ask), holes);
        let naive = run.as_ref().map(|run| Run {
            segment: run.segment.0,
            at: run.offset.0,
            missing: run.missing.iter().map(|m| (m.0.0, m.1.0)).collect(),
        });
        let key = naive.as_ref().map(Run::key);
        assert_eq!(
            key,
            expected.as_ref().map(|e| e.0.key()),
            "{run:?} instead of {expected:?} for {ask:?} with {expected_run:?}"
        );
        if let (Some(run), Some((naive, handle, begin, stamp_of_it))) = (run, expected) {
            assert_eq!(run.missing_len().0, naive.key().0);
            assert!(run.missing.iter().map(|m| (m.0.0, m.1.0)).eq(naive.missing.iter().copied()));
            let heap = &mut self.heaps[pool];
            let arrived = run.missing.iter().map(|&(o, l)| heap.extend(run.segment, o, l, Epoch(stamp)));
            let chunk = arrived.last().unwrap();
            let inside = chunk.offset <= run.offset && run.offset.0 + ask.len <= chunk.offset.0 + chunk.len.0;
            assert!(inside, "{chunk:?} does not hold {run:?}");
            let t = heap.take_of(chunk.chunk, &want(ask), u64::from(ask.len) * 512).unwrap();
            let v = heap.view(t.chunk(), t.generation());
            assert_eq!((v.offset.0, v.stamp.0), (*begin, *stamp_of_it));
            self.bytes(v.segment, v.offset, v.len).fill(*handle);
            self.taken.insert(*handle, t);
        }
    }

    /// Cuts what is free of some units out of each pool, up to one that has some in use.
    pub(crate) fn gather(&mut self, segment: usize, unit: u32, units: u32, expected_run: &Expected) {
        let Spec { id, unit: granules, .. } = SPECS[segment];
        let (offset, len) = (Granules(unit * granules.max(8)), Granules(units * granules.max(8)));
        let Expected::Gathered(expected) = expected_run else { unreachable!() };
        for (heap, expected) in self.heaps.iter_mut().zip(expected) {
            let cuts = heap.cut_free_in(SegmentId(id), offset, len, usize::MAX);
            assert_eq!(cuts.is_some(), expected.is_some());
            assert_pieces(&cuts.unwrap_or_default(), expected.as_deref().unwrap_or_default());
        }
    }
}

/// These left, each with a stamp that it may have.
pub(crate) fn assert_pieces(cuts: &[Cut], expected: &[Piece]) {
    let places = cuts.iter().map(|cut| (cut.offset.0, cut.len.0));
    assert!(places.eq(expected.iter().map(|piece| (piece.0, piece.1))), "{cuts:?} instead of {expected:?}");
    for (cut, piece) in cuts.iter().zip(expected) {
        assert_cut(cut, piece.2);
    }
}

/// H10: the stamps of parts of free chunks lie between what entered and what the chunk says, and parts are found by them.
pub(crate) fn check_parts(heap: &Heap, pool: &Pool) {
    for kind in Kind::ALL {
        for f in heap.free_at_least(kind, Granules(1)) {
            let (offset, end) = (f.offset.0, f.offset.0 + f.len.0);
            for (from, to) in
                (offset..end).step_by(5).flat_map(|at| [1, 16, 61].map(|len| (at, end.min(at + len))))
            {
                let stamp = heap.stamp_of(f.chunk, Granules(from), Granules(to - from)).0;
                let (low, high) = pool.bounds(f.segment.0, from, to - from, f.stamp.0);
                assert!(
                    low <= stamp && stamp <= high,
                    "{from}..{to} of {f:?}: {stamp} is not in {low}..={high}"
                );
            }
        }
        for (len, align, limit) in [(1, 1, 0), (9, 1, 4), (24, 8, 6)] {
            let ask = Ask { kind, len, align };
            if heap.find(&want(ask), usize::MAX, |e| e.0 <= limit).is_some() {
                continue;
            }
            let part = heap.find_part(&want(ask), usize::MAX, |e| e.0 <= limit);
            let hidden = heap.free_at_least(kind, Granules(len)).any(|f| {
                let held = |at: &u32| {
                    let spec = SPECS.iter().find(|s| s.id == f.segment.0).unwrap();
                    let aligned = (spec.base + u64::from(*at)).is_multiple_of(u64::from(align));
                    aligned && pool.bounds(f.segment.0, *at, len, f.stamp.0).1 <= limit
                };
                (f.offset.0..=f.offset.0 + f.len.0 - len).any(|at| held(&at))
            });
            assert!(part.is_some() || !hidden, "a part for {ask:?} up to {limit} is there");
            if let Some(p) = part {
                let whole = heap.free_chunk(p.chunk).unwrap();
                assert!(whole.offset <= p.offset && p.offset <= p.at && p.at.0 + len <= p.offset.0 + p.len.0);
                assert!(p.offset.0 + p.len.0 <= whole.offset.0 + whole.len.0 && p.stamp.0 <= limit);
                let (low, high) = pool.bounds(p.segment.0, p.offset.0, p.len.0, whole.stamp.0);
                assert!(low <= p.stamp.0 && p.stamp.0 <= high, "{p:?} is not in {low}..={high}");
            }
        }
    }
}
