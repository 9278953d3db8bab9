//! Which ranges of each stream are free, in flight and allocated where several streams share segments, and how often a free one was split,
//! and two were joined: from the events that a sink receives, where nothing comes back before the host waits.
//!
//! A range is split when some of it is taken, once for each piece that is left; one that becomes free joins its free neighbours of
//! the same stream and segment. What migrates is cut out, which is no split, and joins its neighbours where it enters.

use millpond::report::PoolReport;
use millpond::trace::Event;
use millpond::units::StreamId;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Free,
    Allocated,
    InFlight,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Chunk {
    end: u64,
    segment: u64,
    of: StreamId,
    state: State,
}

/// Everybody's ranges, by first byte, and each stream's splits and joins.
#[derive(Default)]
pub(crate) struct Chunks {
    all: BTreeMap<u64, Chunk>,
    counts: BTreeMap<StreamId, (u64, u64)>,
}

impl Chunks {
    pub(crate) fn hear(&mut self, event: &Event) {
        match *event {
            Event::Grow { addr, bytes, stream } => {
                let chunk = Chunk { end: addr.0 + bytes, segment: addr.0, of: stream, state: State::Free };
                self.all.insert(addr.0, chunk);
            }
            Event::Trim { addr, bytes } => {
                let of_it: Vec<u64> = self.all.range(addr.0..addr.0 + bytes).map(|(&at, _)| at).collect();
                for at in of_it {
                    let gone = self.all.remove(&at).expect("it is there");
                    assert_eq!((gone.segment, gone.state), (addr.0, State::Free), "given back");
                }
            }
            Event::Allocate { addr, rounded, stream, .. } => {
                let pieces = self.cut(addr.0, rounded, stream, State::Allocated);
                self.counts.entry(stream).or_default().0 += pieces;
            }
            Event::Free { addr, rounded, in_flight, stream, .. } => {
                let chunk = self.all.get_mut(&addr.0).expect("it was allocated");
                assert_eq!((chunk.end, chunk.of, chunk.state), (addr.0 + rounded, stream, State::Allocated));
                chunk.state = State::InFlight;
                if !in_flight {
                    self.free_and_join(addr.0);
                }
            }
            Event::Migrate { addr, bytes, from, to } => {
                self.cut(addr.0, bytes, from, State::InFlight);
                self.all.get_mut(&addr.0).expect("it was cut").of = to;
                self.free_and_join(addr.0);
            }
            _ => {}
        }
    }

    /// All that is in flight comes back.
    pub(crate) fn land(&mut self) {
        let in_flight = |(&at, c): (&u64, &Chunk)| (c.state == State::InFlight).then_some(at);
        let landed: Vec<u64> = self.all.iter().filter_map(in_flight).collect();
        for at in landed {
            self.free_and_join(at);
        }
    }

    /// A piece of a free chunk in another state: how many pieces are left of the chunk.
    fn cut(&mut self, at: u64, bytes: u64, of: StreamId, state: State) -> u64 {
        let (&start, &whole) = self.all.range(..=at).next_back().expect("a chunk");
        let end = at + bytes;
        assert!((whole.of, whole.state) == (of, State::Free) && end <= whole.end, "{of} at {at}: {whole:?}");
        self.all.remove(&start);
        self.all.insert(at, Chunk { end, state, ..whole });
        if start < at {
            self.all.insert(start, Chunk { end: at, ..whole });
        }
        if end < whole.end {
            self.all.insert(end, whole);
        }
        u64::from(start < at) + u64::from(end < whole.end)
    }

    fn free_and_join(&mut self, at: u64) {
        let mut chunk = self.all.remove(&at).expect("a chunk");
        chunk.state = State::Free;
        let (mut start, mut joins) = (at, 0);
        let alike = |c: &Chunk| (c.of, c.segment, c.state) == (chunk.of, chunk.segment, State::Free);
        let before = self.all.range(..at).next_back().filter(|(_, c)| c.end == at && alike(c));
        let behind = self.all.get(&chunk.end).filter(|c| alike(c)).map(|c| c.end);
        if let Some(first) = before.map(|(&first, _)| first) {
            self.all.remove(&first);
            (start, joins) = (first, joins + 1);
        }
        if let Some(end) = behind {
            self.all.remove(&chunk.end);
            (chunk.end, joins) = (end, joins + 1);
        }
        self.all.insert(start, chunk);
        self.counts.entry(chunk.of).or_default().1 += joins;
    }

    /// What a pool's report says of them.
    pub(crate) fn check(&self, r: &PoolReport) {
        let stream = r.stream.expect("a pool has one");
        let mut free: Vec<u64> = Vec::new();
        let (mut allocated, mut in_flight) = (0, Vec::new());
        for (at, c) in self.all.iter().filter(|(_, c)| c.of == stream) {
            match c.state {
                State::Free => free.push(c.end - at),
                State::Allocated => allocated += c.end - at,
                State::InFlight => in_flight.push(c.end - at),
            }
        }
        assert_eq!((r.free_chunks, r.cached), (free.len() as u64, free.iter().sum()), "{stream}");
        assert_eq!(r.largest_free, free.iter().copied().max().unwrap_or(0), "{stream}");
        assert_eq!(r.allocated, allocated, "{stream}");
        assert_eq!(
            (r.in_flight_ranges, r.in_flight),
            (in_flight.len() as u64, in_flight.iter().sum()),
            "{stream}"
        );
        let counts = self.counts.get(&stream).copied().unwrap_or_default();
        assert_eq!((r.counters.splits, r.counters.merges), counts, "{stream}");
    }

    /// And a total, of pools that are gone too.
    pub(crate) fn check_total(&self, r: &PoolReport) {
        let counts = self.counts.values().fold((0, 0), |all, of| (all.0 + of.0, all.1 + of.1));
        assert_eq!((r.counters.splits, r.counters.merges), counts, "all streams");
    }
}
