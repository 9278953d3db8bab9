//! Two heaps between which ranges migrate: any bytes are a legal sequence of operations; both heaps are walked after each, and a
//! table of who holds which granule must agree with what they hand out.

use millpond::heap::{ChunkId, Cut, Heap, Kind, Want};
use millpond::units::{Addr, Epoch, Granules, SegmentId};
use std::collections::BTreeMap;

/// Segments that may exist at once; their places are far enough apart for the longest.
const SEGMENTS: u32 = 6;
const SEGMENT_MOST: u32 = 4096;

/// Runs the bytes as operations, five bytes each.
pub fn run(data: &[u8]) {
    let mut world = World::default();
    for op in data.chunks_exact(5) {
        world.step([op[0], op[1], op[2], op[3], op[4]]);
        world.heaps.iter().for_each(Heap::check);
        world.conserves();
    }
    world.gives_all_back();
}

/// A range that is out of a heap's hands.
#[derive(Clone, Copy, Debug)]
struct Out {
    heap: usize,
    chunk: ChunkId,
    generation: u32,
    len: u32,
    requested: u64,
    stamp: Epoch,
    in_flight: bool,
}

#[derive(Default)]
struct World {
    heaps: [Heap; 2],
    /// Length and kind of the segments there are.
    segments: BTreeMap<u32, (u32, Kind)>,
    /// What is allocated or in flight, by segment and offset.
    out: BTreeMap<(u32, u32), Out>,
    epoch: u64,
}

fn kind_of(byte: u8) -> Kind {
    Kind::ALL[usize::from(byte & 1)]
}

/// Lengths by octave, as requests are: half of them at most 16 granules.
fn len_of(a: u8, b: u8) -> u32 {
    let octave = 1u32 << (a % 11);
    (octave + u32::from(b) * octave / 256).min(SEGMENT_MOST)
}

impl World {
    fn step(&mut self, [verb, a, b, c, d]: [u8; 5]) {
        let heap = usize::from(a >> 7);
        self.epoch += u64::from(c & 1);
        match verb % 16 {
            0 | 1 => self.bring(heap, a, b, c),
            2..7 => self.take(heap, verb, a, b, c, d),
            7..11 => self.give(a, b),
            11 => self.hold(a, b),
            12 => self.migrate(heap, a, b, c),
            13 => self.migrate_in_flight(a, b, d),
            14 => self.release(a),
            _ => self.questions(heap, a, b),
        }
    }

    /// A segment becomes known and all of it is free.
    fn bring(&mut self, heap: usize, a: u8, b: u8, c: u8) {
        let Some(id) = (0..SEGMENTS).find(|id| !self.segments.contains_key(id)) else { return };
        let (len, kind) = (len_of(b, c) + 3, kind_of(a));
        let base = Addr((1 << 30) + u64::from(id) * u64::from(SEGMENT_MOST + 64) * 512);
        let h = &mut self.heaps[heap];
        h.add_segment(SegmentId(id), base, Granules(len), kind);
        h.extend(SegmentId(id), Granules::ZERO, Granules(len), Epoch::COMPLETE);
        self.segments.insert(id, (len, kind));
    }

    #[allow(clippy::many_single_char_names, reason = "four bytes of the input, with no meaning of their own")]
    fn take(&mut self, heap: usize, verb: u8, a: u8, b: u8, c: u8, d: u8) {
        let len = len_of(b, c);
        let align = if d < 200 { 1 } else { 1 << (d % 9) };
        let want = Want { len: Granules(len), align: Granules(align), kind: kind_of(a) };
        let requested = (u64::from(len) * 512).saturating_sub(u64::from(d));
        let h = &mut self.heaps[heap];
        let largest = h.largest_free(want.kind);
        let taken = match verb % 16 {
            2 => h.take_exact(&want, requested),
            3 => h.take_across(&want, requested),
            _ => h.take(&want, requested),
        };
        let Some(taken) = taken else {
            // Few chunks exist here, so a plain miss means that nothing is long enough; the bound is 1/16 too high.
            if verb % 16 > 3 && align == 1 {
                assert!(largest.0 < len + len.div_ceil(16), "missed {want:?} with {largest:?} free at most");
            }
            return;
        };
        let view = h.view(taken.chunk(), taken.generation());
        assert_eq!((view.len, view.addr), (want.len, taken.addr));
        assert!((taken.addr.0 / 512).is_multiple_of(u64::from(align)), "{taken:?} for {want:?}");
        let (segment, start) = (view.segment.0, view.offset.0);
        assert!(u64::from(start) + u64::from(len) <= u64::from(self.segments[&segment].0), "{taken:?}");
        let before = self.out.range(..(segment, start + len)).next_back();
        if let Some((&(s, at), other)) = before {
            assert!(s != segment || at + other.len <= start, "{taken:?} overlaps {other:?} at {at}");
        }
        let out = Out {
            heap,
            chunk: taken.chunk(),
            generation: taken.generation(),
            len,
            requested,
            stamp: view.stamp,
            in_flight: false,
        };
        self.out.insert((segment, start), out);
    }

    fn pick(&self, a: u8, b: u8, fits: impl Fn(&Out) -> bool) -> Option<((u32, u32), Out)> {
        let all: Vec<_> = self.out.iter().filter(|(_, o)| fits(o)).collect();
        let n = (usize::from(a) << 8 | usize::from(b)) % all.len().max(1);
        all.get(n).map(|&(&at, &o)| (at, o))
    }

    fn give(&mut self, a: u8, b: u8) {
        let Some((at, out)) = self.pick(a, b, |_| true) else { return };
        self.out.remove(&at);
        let view = self.heaps[out.heap].view(out.chunk, out.generation);
        assert!(view.requested == out.requested || out.in_flight, "{view:?} of {out:?}");
        let given = self.heaps[out.heap].give(out.chunk, out.generation, Epoch(self.epoch));
        assert_eq!(given.len.0, out.len);
        let free = self.heaps[out.heap].free_chunk(given.free).expect("what was given back is free");
        let (start, end) = (free.offset.0, free.offset.0 + free.len.0);
        assert!(free.segment.0 == at.0 && start <= at.1 && at.1 + out.len <= end, "{given:?} of {out:?}");
        assert!(free.stamp.0 >= self.epoch, "Z23: a merge keeps the latest stamp");
        assert!(self.heaps[out.heap].lookup(out.chunk, out.generation).is_none(), "H7: {out:?} is over");
    }

    fn hold(&mut self, a: u8, b: u8) {
        let Some((at, out)) = self.pick(a, b, |o| !o.in_flight) else { return };
        let stamp = Epoch(self.epoch);
        self.heaps[out.heap].hold(out.chunk, out.generation, stamp);
        self.out.insert(at, Out { in_flight: true, stamp, ..out });
    }

    /// A piece of a free chunk moves from one heap to the other.
    fn migrate(&mut self, from: usize, a: u8, b: u8, c: u8) {
        let want = Want::new(Granules(len_of(b, c)), kind_of(a));
        let most = Epoch(if c & 2 == 0 { u64::MAX } else { self.epoch / 2 });
        let Some(found) = self.heaps[from].find(&want, 64, |stamp| stamp <= most) else { return };
        assert!(found.len >= want.len && found.stamp <= most, "{found:?} for {want:?}");
        let cut = self.heaps[from].cut(found.chunk, found.at, want.len);
        self.enter(1 - from, &cut);
    }

    fn enter(&mut self, heap: usize, cut: &Cut) {
        let h = &mut self.heaps[heap];
        if !h.has_segment(cut.segment) {
            h.add_segment(cut.segment, cut.base, cut.segment_len, cut.kind);
        }
        let free = h.extend(cut.segment, cut.offset, cut.len, cut.stamp);
        assert!(free.len >= cut.len && free.stamp >= cut.stamp, "{free:?} of {cut:?}");
    }

    /// The front of a range in flight moves; the rest keeps its number and its stamp.
    fn migrate_in_flight(&mut self, a: u8, b: u8, d: u8) {
        let Some((at, out)) = self.pick(a, b, |o| o.in_flight) else { return };
        let len = 1 + u32::from(d) % out.len;
        let cut = self.heaps[out.heap].cut(out.chunk, Granules(at.1), Granules(len));
        assert_eq!((cut.len.0, cut.stamp), (len, out.stamp));
        self.out.remove(&at);
        if len < out.len {
            let view = self.heaps[out.heap].view(out.chunk, out.generation);
            assert_eq!((view.len.0, view.stamp), (out.len - len, out.stamp));
            self.out.insert((at.0, at.1 + len), Out { len: out.len - len, ..out });
        }
        self.enter(1 - out.heap, &cut);
    }

    /// A segment goes if every byte of it is free somewhere; else its pieces return as they were.
    fn release(&mut self, a: u8) {
        let Some((&id, &(len, _))) = self.segments.iter().nth(usize::from(a) % self.segments.len().max(1))
        else {
            return;
        };
        let segment = SegmentId(id);
        let cuts = [0, 1].map(|h| self.heaps[h].cut_free_of(segment));
        let gathered: u32 = cuts.iter().flatten().map(|c| c.len.0).sum();
        if gathered == len {
            assert!(self.heaps.iter_mut().all(|h| h.remove_segment(segment)), "nothing of it is here");
            self.segments.remove(&id);
            return;
        }
        for (h, cuts) in cuts.iter().enumerate() {
            for cut in cuts {
                self.heaps[h].extend(cut.segment, cut.offset, cut.len, cut.stamp);
            }
        }
    }

    /// Queries change nothing.
    fn questions(&mut self, heap: usize, a: u8, b: u8) {
        let h = &self.heaps[heap];
        let before = h.stats();
        let _ = h.lookup(ChunkId::from_index(u32::from(a)), u32::from(b));
        let snapshot = h.snapshot();
        for kind in Kind::ALL {
            assert!(h.largest_free(kind) <= snapshot.largest_free.max(h.largest_free(kind)));
        }
        assert_eq!(h.stats(), before);
    }

    fn conserves(&self) {
        let owned: u64 = self.heaps.iter().map(|h| h.stats().owned).sum();
        let total: u64 = self.segments.values().map(|&(len, _)| u64::from(len) * 512).sum();
        assert_eq!(owned, total, "P6: bytes held against bytes there are");
        for (heap, h) in self.heaps.iter().enumerate() {
            let sum = |in_flight: bool| -> u64 {
                let mine = self.out.values().filter(|o| o.heap == heap && o.in_flight == in_flight);
                mine.map(|o| u64::from(o.len) * 512).sum()
            };
            let stats = h.stats();
            assert_eq!((stats.allocated, stats.in_flight), (sum(false), sum(true)), "P6 in heap {heap}");
        }
    }

    /// At the end everything comes back, and each segment is whole again.
    fn gives_all_back(mut self) {
        for out in core::mem::take(&mut self.out).into_values() {
            self.heaps[out.heap].give(out.chunk, out.generation, Epoch(self.epoch));
        }
        self.conserves();
        while let Some((&id, _)) = self.segments.iter().next() {
            self.release(0);
            assert!(!self.segments.contains_key(&id), "segment {id} is free but not whole");
        }
        for h in &self.heaps {
            h.check();
            assert_eq!((h.stats().owned, h.segments().len()), (0, 0));
        }
    }
}
