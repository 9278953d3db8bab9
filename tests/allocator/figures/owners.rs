//! Which stream holds which bytes, by the events of the allocator's sinks: segments that come and go, ranges that pass from stream to stream.
//! It knows no chunks and no counters.

use super::chunks::Chunks;
use super::loose::Loose;
use millpond::report::PoolReport;
use millpond::trace::{Event, Sink};
use millpond::units::StreamId;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A sink that keeps everything until it is read.
#[derive(Default)]
pub(crate) struct Events(Mutex<Vec<Event>>);

impl Sink for Events {
    fn event(&self, _: u64, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Events {
    /// All since the last time.
    pub(crate) fn take(&self) -> Vec<Event> {
        core::mem::take(&mut self.0.lock().unwrap())
    }
}

/// What the events say of a request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Heard {
    pub host_waits: u64,
    /// Another pool's memory migrated to the stream; no free range served it.
    pub migrated: bool,
    pub missed: bool,
    /// Bytes that came from the device, and that went back.
    pub grew: u64,
    pub trimmed: u64,
}

/// What follows for one stream.
#[derive(Clone, Default)]
struct Of {
    held: u64,
    held_peak: u64,
    hits: u64,
    allocations: u64,
    frees: u64,
    in_flight_frees: u64,
    migrations_in: u64,
    migrations_out: u64,
    waits: u64,
}

/// Everybody's bytes.
#[derive(Default)]
pub(crate) struct Owners {
    /// The first byte: the end, and the owner.
    ranges: BTreeMap<u64, (u64, StreamId)>,
    of: BTreeMap<StreamId, Of>,
    /// Which of them are free: where nothing comes back before the host waits.
    pub(crate) chunks: Option<Chunks>,
}

impl Owners {
    pub(crate) fn new(chunks: Option<Chunks>) -> Owners {
        Owners { chunks, ..Owners::default() }
    }

    /// Reads the events, and returns what they say of this stream's request.
    pub(crate) fn hear(
        &mut self,
        events: &Events,
        to_whom: Option<StreamId>,
        mut loose: Option<&mut Loose>,
    ) -> Heard {
        let mut heard = Heard::default();
        for event in events.take() {
            if let Some(chunks) = &mut self.chunks {
                chunks.hear(&event);
            }
            if let Some(loose) = &mut loose {
                loose.hear(&event);
            }
            match event {
                Event::Allocate { stream, hit, .. } => {
                    let of = self.of.entry(stream).or_default();
                    of.allocations += 1;
                    of.hits += u64::from(hit);
                    heard.missed |= !hit && to_whom == Some(stream);
                }
                Event::Free { stream, in_flight, .. } => {
                    let of = self.of.entry(stream).or_default();
                    of.frees += 1;
                    of.in_flight_frees += u64::from(in_flight);
                }
                Event::Grow { addr, bytes, stream } => {
                    heard.grew += bytes;
                    self.enter(addr.0, bytes, stream);
                }
                Event::Migrate { addr, bytes, from, to } => {
                    assert!(
                        self.leave(addr.0, bytes).iter().all(|&who| who == from),
                        "what {from} had not migrated"
                    );
                    heard.migrated |= to_whom == Some(to);
                    self.of.entry(from).or_default().migrations_out += 1;
                    self.of.entry(to).or_default().migrations_in += 1;
                    self.enter(addr.0, bytes, to);
                }
                Event::Trim { addr, bytes } => {
                    heard.trimmed += bytes;
                    drop(self.leave(addr.0, bytes));
                }
                Event::Wait { stream, .. } => self.of.entry(stream).or_default().waits += 1,
                Event::HostWait { .. } => heard.host_waits += 1,
                Event::OutOfMemory { .. } => {}
                other => panic!("an event that these books do not know: {other:?}"),
            }
        }
        heard
    }

    /// The events do not show so many frees of a stream's complete blocks.
    pub(crate) fn miss_frees(&mut self, stream: StreamId, frees: u64) {
        self.of.entry(stream).or_default().frees += frees;
        self.chunks = None;
    }

    fn enter(&mut self, start: u64, bytes: u64, who: StreamId) {
        self.ranges.insert(start, (start + bytes, who));
        let of = self.of.entry(who).or_default();
        of.held += bytes;
        of.held_peak = of.held_peak.max(of.held);
    }

    /// These bytes have no owner; returns the previous one.
    fn leave(&mut self, start: u64, bytes: u64) -> Vec<StreamId> {
        let (end, mut had) = (start + bytes, Vec::new());
        let inside: Vec<_> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|&(_, &(last, _))| last > start)
            .map(|(&first, &(last, who))| (first, last, who))
            .collect();
        for (first, last, who) in inside {
            self.ranges.remove(&first);
            if first < start {
                self.ranges.insert(first, (start, who));
            }
            if last > end {
                self.ranges.insert(end, (last, who));
            }
            self.of.get_mut(&who).expect("it has a range").held -= last.min(end) - first.max(start);
            had.push(who);
        }
        had
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.of.values_mut().for_each(|of| of.held_peak = of.held);
    }

    /// What a pool's report says of all this.
    pub(crate) fn check(&self, r: &PoolReport) {
        let (stream, c) = (r.stream.expect("a pool has one"), &r.counters);
        let of = self.of.get(&stream).cloned().unwrap_or_default();
        assert_eq!((r.reserved, r.reserved_peak), (of.held, of.held_peak), "{stream}");
        assert_eq!((c.allocations, c.hits), (of.allocations, of.hits), "{stream}");
        assert_eq!((c.frees, c.in_flight_frees), (of.frees, of.in_flight_frees), "{stream}");
        assert_eq!((c.migrations_in, c.migrations_out), (of.migrations_in, of.migrations_out), "{stream}");
        assert_eq!(c.waits_inserted, of.waits, "{stream}");
        // A take leaves a piece or none, a free range joins two neighbours at most; whatever migrates is cut, enters and is taken.
        assert!(c.splits <= c.allocations, "{stream}: {c:?}");
        assert!(c.merges <= 2 * (c.frees + c.migrations_in) + of.allocations, "{stream}: {c:?}");
        if let Some(chunks) = &self.chunks {
            chunks.check(r);
        }
    }

    /// What the total says, which counts what pools did that are gone.
    pub(crate) fn check_total(&self, r: &PoolReport) {
        let c = &r.counters;
        let sum = |of: fn(&Of) -> u64| self.of.values().map(of).sum::<u64>();
        assert_eq!((c.allocations, c.hits), (sum(|of| of.allocations), sum(|of| of.hits)));
        assert_eq!((c.frees, c.in_flight_frees), (sum(|of| of.frees), sum(|of| of.in_flight_frees)));
        assert_eq!(
            (c.migrations_in, c.migrations_out),
            (sum(|of| of.migrations_in), sum(|of| of.migrations_out))
        );
        assert_eq!(c.waits_inserted, sum(|of| of.waits));
        if let Some(chunks) = &self.chunks {
            chunks.check_total(r);
        }
    }
}
