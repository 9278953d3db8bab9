//! Splits and joins where ranges in flight come back whenever the device is queried, without an event.
//!
//! The events say which bytes belong to which stream, and which are allocated; of those that were freed while they were in use it is open
//! whether they came back yet. How many pieces there are is in the report, and each of them was made by a growth, a migration or a split, or
//! removed by a join: so splits less joins are known, except for a migration of bytes that may have been in flight. And splits are known except
//! for what lies beside such bytes. From one report to the next; few of them have any doubt.

use millpond::report::PoolReport;
use millpond::trace::Event;
use millpond::units::StreamId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Free,
    Allocated,
    /// Freed, and perhaps still in flight.
    Open,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Chunk {
    end: u64,
    segment: u64,
    of: StreamId,
    state: State,
}

/// At least and at most so many.
type Bounds = (i64, i64);

fn plus(a: Bounds, b: Bounds) -> Bounds {
    (a.0 + b.0, a.1 + b.1)
}

/// What one pool's last report said, and what is known to have happened since.
#[derive(Clone, Copy, Default)]
struct Since {
    pieces: i64,
    splits: i64,
    merges: i64,
    new_splits: Bounds,
    /// Pieces that came and went otherwise than by splits and joins.
    came: Bounds,
}

impl Since {
    /// Joins since then, if there are so many pieces and were so many splits.
    fn new_merges(&self, pieces: i64, new_splits: Bounds) -> Bounds {
        let before = plus(new_splits, self.came);
        (self.pieces + before.0 - pieces, self.pieces + before.1 - pieces)
    }
}

/// Everybody's ranges, by first byte.
#[derive(Default)]
pub(crate) struct Loose {
    all: BTreeMap<u64, Chunk>,
    since: BTreeMap<StreamId, Since>,
}

impl Loose {
    pub(crate) fn hear(&mut self, event: &Event) {
        match *event {
            Event::Grow { addr, bytes, stream } => {
                let chunk = Chunk { end: addr.0 + bytes, segment: addr.0, of: stream, state: State::Free };
                self.all.insert(addr.0, chunk);
                self.come(stream, (1, 1));
            }
            Event::Trim { addr, bytes } => self.trim(addr.0, addr.0 + bytes),
            Event::Allocate { addr, rounded, stream, .. } => {
                let pieces = self.take(addr.0, addr.0 + rounded, stream, true);
                self.put(addr.0, addr.0 + rounded, stream, State::Allocated);
                let since = self.since.entry(stream).or_default();
                since.new_splits = plus(since.new_splits, pieces);
            }
            Event::Free { addr, rounded, in_flight, stream, .. } => {
                let chunk = self.all.remove(&addr.0).expect("it was allocated");
                assert_eq!((chunk.end, chunk.of, chunk.state), (addr.0 + rounded, stream, State::Allocated));
                let state = if in_flight { State::Open } else { State::Free };
                self.put_in(addr.0, chunk.end, (stream, chunk.segment), state);
            }
            Event::Migrate { addr, bytes, from, to } => {
                let pieces = self.take(addr.0, addr.0 + bytes, from, false);
                self.come(from, plus(pieces, (-1, -1)));
                self.come(to, (1, 1));
                self.put(addr.0, addr.0 + bytes, to, State::Free);
            }
            _ => {}
        }
    }

    fn come(&mut self, to: StreamId, pieces: Bounds) {
        let since = self.since.entry(to).or_default();
        since.came = plus(since.came, pieces);
    }

    /// The segment that has this byte, as its pieces say; all of them lie there until it goes.
    fn segment_of(&self, at: u64) -> u64 {
        self.all.range(..=at).next_back().map_or(at, |(_, c)| c.segment)
    }

    /// All of a segment is free and goes: of each pool one piece for each run of bytes.
    fn trim(&mut self, first: u64, end: u64) {
        let of_it: Vec<_> = self.all.range(first..end).map(|(&at, &c)| (at, c)).collect();
        let mut last = None;
        for (at, chunk) in of_it {
            assert!(chunk.segment == first && chunk.state != State::Allocated, "given back: {chunk:?}");
            if last != Some((chunk.of, at)) {
                self.come(chunk.of, (-1, -1));
            }
            last = Some((chunk.of, chunk.end));
            self.all.remove(&at);
        }
    }

    /// These bytes leave what is not allocated of a pool: how many pieces are left beside them of what they were a part of. `free`: they
    /// were a part of something free, and not in flight.
    fn take(&mut self, at: u64, end: u64, of: StreamId, free: bool) -> Bounds {
        let (&first, _) = self.all.range(..=at).next_back().expect("a pool has it");
        let parts: Vec<_> = self.all.range(first..end).map(|(&at, &c)| (at, c)).collect();
        let segment = self.segment_of(at);
        for (at, c) in &parts {
            assert!((c.of, c.segment) == (of, segment) && c.state != State::Allocated, "{of} at {at}: {c:?}");
            self.all.remove(at);
        }
        let (_, last) = parts[parts.len() - 1];
        assert!(last.end >= end, "{of} has not all of {at} to {end}");
        let free = free || parts.len() > 1 || parts[0].1.state == State::Free || first < at;
        let beside = |c: Option<&Chunk>| match c.filter(|c| (c.of, c.segment) == (of, segment)) {
            Some(c) if c.state == State::Free => (i64::from(free), 1),
            Some(c) if c.state == State::Open => (0, 1),
            _ => (0, 0),
        };
        let before = if first < at {
            (1, 1)
        } else {
            beside(self.all.range(..at).next_back().map(|(_, c)| c).filter(|c| c.end == at))
        };
        let behind = if last.end > end { (1, 1) } else { beside(self.all.get(&end)) };
        let rest = if free { State::Free } else { State::Open };
        if first < at {
            self.put_in(first, at, (of, segment), rest);
        }
        if last.end > end {
            self.put_in(end, last.end, (of, segment), rest);
        }
        self.all.insert(at, Chunk { end, segment, of, state: State::Allocated });
        plus(before, behind)
    }

    fn put(&mut self, at: u64, end: u64, of: StreamId, state: State) {
        let segment = self.segment_of(at);
        self.all.remove(&at);
        self.put_in(at, end, (of, segment), state);
    }

    /// What is free joins what is free beside it.
    fn put_in(&mut self, mut at: u64, mut end: u64, (of, segment): (StreamId, u64), state: State) {
        let alike =
            |c: &Chunk| state == State::Free && (c.of, c.segment, c.state) == (of, segment, State::Free);
        let before = self.all.range(..at).next_back().filter(|(_, c)| c.end == at && alike(c));
        if let Some(first) = before.map(|(&first, _)| first) {
            self.all.remove(&first);
            at = first;
        }
        if let Some(c) = self.all.get(&end).copied().filter(alike) {
            self.all.remove(&end);
            end = c.end;
        }
        self.all.insert(at, Chunk { end, segment, of, state });
    }

    /// All that is in flight came back, of one stream or of all.
    pub(crate) fn land(&mut self, only: Option<StreamId>) {
        let open = |c: &Chunk| c.state == State::Open && only.is_none_or(|of| of == c.of);
        let landed: Vec<_> = self.all.iter().filter(|(_, c)| open(c)).map(|(&at, &c)| (at, c)).collect();
        for (at, c) in landed {
            self.all.remove(&at);
            self.put_in(at, c.end, (c.of, c.segment), State::Free);
        }
    }

    fn pieces(r: &PoolReport) -> i64 {
        (r.free_chunks + r.live + r.in_flight_ranges).cast_signed()
    }

    /// Whether all of them are known exactly.
    pub(crate) fn is_sure(&self) -> bool {
        self.since.values().all(|s| s.new_splits.0 == s.new_splits.1 && s.came.0 == s.came.1)
    }

    /// Whether there were splits or joins.
    pub(crate) fn has_news(&self) -> bool {
        self.since.values().any(|s| s.new_splits.1 > 0)
    }

    /// What a pool's report says.
    pub(crate) fn check(&self, r: &PoolReport) {
        let stream = r.stream.expect("a pool has one");
        let since = self.since.get(&stream).copied().unwrap_or_default();
        let new_splits = r.counters.splits.cast_signed() - since.splits;
        let (least, most) = since.new_splits;
        assert!(
            least <= new_splits && new_splits <= most,
            "{stream}: {new_splits} of {least} to {most} splits"
        );
        let new_merges = r.counters.merges.cast_signed() - since.merges;
        let (least, most) = since.new_merges(Self::pieces(r), (new_splits, new_splits));
        assert!(
            least <= new_merges && new_merges <= most,
            "{stream}: {new_merges} of {least} to {most} joins"
        );
    }

    /// And a total, of pools that are gone too, which have nothing left.
    pub(crate) fn check_total(&self, total: &PoolReport, pools: &[PoolReport]) {
        let there: BTreeSet<_> = pools.iter().filter_map(|p| p.stream).collect();
        let sum = |of: fn(&PoolReport) -> u64| pools.iter().map(of).sum::<u64>().cast_signed();
        let (splits, merges) = (sum(|p| p.counters.splits), sum(|p| p.counters.merges));
        let (mut splits, mut merges) = ((splits, splits), (merges, merges));
        for since in self.since.iter().filter(|(of, _)| !there.contains(of)).map(|(_, since)| since) {
            splits = plus(splits, plus((since.splits, since.splits), since.new_splits));
            let new = since.new_merges(0, since.new_splits);
            merges = plus(merges, plus((since.merges, since.merges), new));
        }
        let said = (total.counters.splits.cast_signed(), total.counters.merges.cast_signed());
        assert!(splits.0 <= said.0 && said.0 <= splits.1, "{} of {splits:?} splits", said.0);
        assert!(merges.0 <= said.1 && said.1 <= merges.1, "{} of {merges:?} joins", said.1);
    }

    /// A report was right: what comes next is compared with it.
    pub(crate) fn note(&mut self, pools: &[PoolReport]) {
        for p in pools {
            let stream = p.stream.expect("a pool has one");
            if p.in_flight_ranges == 0 {
                self.land(Some(stream));
            }
            let since = Since {
                pieces: Self::pieces(p),
                splits: p.counters.splits.cast_signed(),
                merges: p.counters.merges.cast_signed(),
                ..Since::default()
            };
            self.since.insert(stream, since);
        }
    }
}
