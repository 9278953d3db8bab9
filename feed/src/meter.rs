//! Where time goes: sums for each stage, and a bounded record of spans for a timeline.
//!
//! Its clock is the host's. What the device does is seen by the host's waits for it alone: a copy that nobody had to wait for takes no time here. It does not
//! know batches, slots or threads.

use crate::stats::FeedStats;
use core::time::Duration;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Says what time it is, from any beginning.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What a span of time went to; a row of the timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Track {
    /// The source makes an item.
    Source,
    /// An item is written into a pinned slot.
    Fill,
    /// A filler waits for a copy, whose pinned slot it needs.
    Copy,
    /// A filler waits for what a copy has to wait for: a batch's consumption on the device.
    Compute,
    /// A filler waits for a slot that others have.
    Held,
    /// A consumer waits for a batch.
    Starved,
    /// A consumer has a batch.
    Consumer,
}

impl Track {
    fn name(self) -> &'static str {
        match self {
            Track::Source => "source",
            Track::Fill => "fill",
            Track::Copy => "wait for copy",
            Track::Compute => "wait for compute",
            Track::Held => "wait for slot",
            Track::Starved => "wait for batch",
            Track::Consumer => "batch in use",
        }
    }
}

struct Span {
    track: Track,
    batch: Option<u64>,
    began: Duration,
    ended: Duration,
}

struct State {
    stats: FeedStats,
    spans: VecDeque<Span>,
    /// When the first batch was asked of the source.
    began: Option<Duration>,
}

pub(crate) struct Meter {
    clock: Clock,
    /// How many spans are kept.
    most: usize,
    state: Mutex<State>,
}

impl Meter {
    pub(crate) fn new(clock: Option<Clock>, most: usize) -> Meter {
        let start = Instant::now();
        let state = State { stats: FeedStats::default(), spans: VecDeque::new(), began: None };
        Meter {
            clock: clock.unwrap_or_else(|| Arc::new(move || start.elapsed())),
            most,
            state: Mutex::new(state),
        }
    }
    pub(crate) fn now(&self) -> Duration {
        (self.clock)()
    }
    /// Time since `began` went to this.
    pub(crate) fn span(&self, track: Track, batch: Option<u64>, began: Duration) {
        let ended = self.now();
        let took = ended.saturating_sub(began);
        let mut state = self.state.lock();
        let start = *state.began.get_or_insert(began);
        let stats = &mut state.stats;
        stats.wall = stats.wall.max(ended.saturating_sub(start));
        match track {
            Track::Source => stats.source += took,
            Track::Fill => stats.fill += took,
            Track::Copy => stats.copy_wait += took,
            Track::Compute => stats.compute_wait += took,
            Track::Held => stats.slot_wait += took,
            Track::Starved => stats.starved += took,
            Track::Consumer => stats.in_use += took,
        }
        if self.most > 0 {
            if state.spans.len() == self.most {
                state.spans.pop_front();
            }
            state.spans.push_back(Span { track, batch, began, ended });
        }
    }
    pub(crate) fn count(&self, with: impl FnOnce(&mut FeedStats)) {
        with(&mut self.state.lock().stats);
    }
    pub(crate) fn stats(&self) -> FeedStats {
        self.state.lock().stats.clone()
    }
    /// The spans as Chrome's trace events.
    pub(crate) fn timeline(&self) -> String {
        let state = self.state.lock();
        let mut spans: Vec<&Span> = state.spans.iter().collect();
        spans.sort_by_key(|span| (span.began, span.ended));
        // Spans of one track that overlap, such as those of several threads, have rows of their own: when the last one in each row ended.
        let mut rows: Vec<(Track, Duration)> = Vec::new();
        let mut events = Vec::new();
        for span in spans {
            let free = rows.iter().position(|&(track, ended)| track == span.track && ended <= span.began);
            let row = free.unwrap_or(rows.len());
            match free {
                Some(row) => rows[row].1 = span.ended,
                None => rows.push((span.track, span.ended)),
            }
            let (ts, dur) = (micros(span.began), micros(span.ended.saturating_sub(span.began)));
            let name = span.track.name();
            let name = span.batch.map_or_else(|| name.to_owned(), |batch| format!("{name}, batch {batch}"));
            events.push(format!(
                "{{\"ph\":\"X\",\"pid\":0,\"tid\":{row},\"name\":\"{name}\",\"ts\":{ts},\"dur\":{dur}}}"
            ));
        }
        for (row, (track, _)) in rows.iter().enumerate() {
            let (name, order) = (track.name(), *track as usize);
            events.push(format!(
                "{{\"ph\":\"M\",\"pid\":0,\"tid\":{row},\"name\":\"thread_name\",\"args\":{{\"name\":\"{name}\"}}}}"
            ));
            events.push(format!(
                "{{\"ph\":\"M\",\"pid\":0,\"tid\":{row},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{order}}}}}"
            ));
        }
        format!("{{\"traceEvents\":[{}]}}", events.join(","))
    }
}

/// Microseconds, with three digits behind the point.
fn micros(time: Duration) -> String {
    format!("{}.{:03}", time.as_micros(), time.as_nanos() % 1000)
}
