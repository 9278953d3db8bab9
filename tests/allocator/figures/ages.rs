//! How old the oldest use in flight is: how many markers its stream has made since the free. If waits are inserted, what is in flight may come
//! back whenever the device is queried, so that of several any may be the oldest; and the events of a request that waits do not say which streams
//! it marked: each of them at most as often as there were markers.
//!
//! Which streams the allocator marks follows from the frees: a stream that sixteen of them wait for, or 16 MiB, is due, and the next call that may
//! marks all that are due; a trim marks every stream, and so does a request that finds nothing. A stream's own frees count too, once
//! another one's request looked at its memory, which only the allocator knows: then a stream may have been due or not. And a request that is about to grow
//! marks streams of which anything was freed since their last marker, or came back from being in flight, or migrated to them, if they seem idle and have
//! enough. When that was only the allocator knows. How many markers there were is known from the device, and has to be a number that such calls make; mostly it shows whose they were.

use millpond::units::{MIB, StreamId};
use std::collections::BTreeMap;

/// A stream, or all of them together, of which memory was freed with unknown users.
type On = Option<StreamId>;

/// At least and at most so many.
type Bounds = (u64, u64);

/// Frees since a stream's last marker, and their bytes: enough for another marker?
#[derive(Clone, Copy, Default)]
struct Unmarked {
    frees: u64,
    bytes: u64,
    due: bool,
}

impl Unmarked {
    fn add(&mut self, bytes: u64) {
        (self.frees, self.bytes) = (self.frees + 1, self.bytes + bytes);
        self.due |= self.frees >= 16 || self.bytes >= 16 * MIB;
    }
}

/// By the frees that certainly count, and by all that may.
#[derive(Clone, Copy, Default)]
struct Line {
    least: Unmarked,
    most: Unmarked,
    /// Memory migrated to it, or had some in flight.
    was_given: bool,
}

struct InFlight {
    home: StreamId,
    on: On,
    age: Bounds,
}

#[derive(Default)]
pub(crate) struct Ages {
    lines: BTreeMap<StreamId, Line>,
    in_flight: Vec<InFlight>,
}

impl Ages {
    fn marked(&mut self, on: On, times: Bounds) {
        for waiting in self.in_flight.iter_mut().filter(|waiting| waiting.on == on) {
            waiting.age = (waiting.age.0 + times.0, waiting.age.1 + times.1);
        }
        let Some(line) = on.and_then(|on| self.lines.get_mut(&on)) else { return };
        if times.0 > 0 {
            line.most = Unmarked::default();
        }
        if times.1 > 0 {
            line.least = Unmarked::default();
        }
        // Every stream that was due was marked.
        line.most.due = false;
    }

    /// So many events were recorded on streams, of which these are open, by a request that may have grown or by another call.
    pub(crate) fn recorded(&mut self, events: u64, open: &[StreamId], may_grow: bool) {
        if events == 0 {
            return;
        }
        let line = |s: &StreamId| self.lines.get(s).copied().unwrap_or_default();
        let may = |line: Line| line.most.due || (may_grow && (line.most.frees > 0 || line.was_given));
        let (due, maybe): (Vec<_>, Vec<_>) =
            open.iter().copied().filter(|s| may(line(s))).partition(|s| line(s).least.due);
        // All of them so often, those that are due, and so many that may be.
        let (all, certain, doubtful) = (open.len() as u64, due.len() as u64, maybe.len() as u64);
        let ways: Vec<(u64, u64)> = (0..=events / all)
            .filter_map(|rounds| Some((rounds, events.checked_sub(rounds * all + certain)?)))
            .filter(|&(_, rest)| rest <= doubtful)
            .collect();
        assert!(!ways.is_empty(), "{events} markers, {certain} due, {doubtful} perhaps, {all} streams");
        let bounds = |of: fn(&(u64, u64)) -> u64| {
            (ways.iter().map(of).min().unwrap_or(0), ways.iter().map(of).max().unwrap_or(0))
        };
        let (rounds, rest) = (bounds(|way| way.0), bounds(|way| way.1));
        for &s in open {
            let once = if due.contains(&s) {
                (1, 1)
            } else if maybe.contains(&s) {
                (u64::from(rest.0 == doubtful), u64::from(rest.1 > 0))
            } else {
                (0, 0)
            };
            self.marked(Some(s), (rounds.0 + once.0, rounds.1 + once.1));
        }
    }

    /// So many events were recorded on streams by a request that waits: on whichever.
    pub(crate) fn recorded_somewhere(&mut self, events: u64, open: &[StreamId]) {
        for &s in open {
            self.marked(Some(s), (0, events));
        }
    }

    /// A request on the same device, of another allocator, found nothing: it marks streams that are due, and streams of its own.
    pub(crate) fn others_recorded(&mut self) {
        let lines: Vec<_> = self.lines.iter().map(|(&s, &line)| (s, line)).collect();
        for (s, line) in lines {
            self.marked(Some(s), (u64::from(line.least.due), u64::from(line.most.due)));
        }
    }

    /// An event of the whole context was.
    pub(crate) fn recorded_context(&mut self) {
        self.marked(None, (1, 1));
    }

    fn wait_for(&mut self, on: StreamId, bytes: u64) {
        let line = self.lines.entry(on).or_default();
        line.least.add(bytes);
        line.most.add(bytes);
    }

    /// Memory of a stream's was freed, behind another perhaps, or behind all.
    pub(crate) fn freed(&mut self, home: StreamId, behind: Option<On>, bytes: u64) {
        if let Some(on) = behind {
            self.in_flight.push(InFlight { home, on, age: (0, 0) });
            if let Some(on) = on {
                self.wait_for(on, bytes);
            }
        }
        let line = self.lines.entry(home).or_default();
        line.most.add(bytes);
        line.was_given |= behind.is_some();
    }

    /// Memory migrated to a stream.
    pub(crate) fn migrated(&mut self, to: StreamId) {
        self.lines.entry(to).or_default().was_given = true;
    }

    /// Pinned memory was, whose report has no such figure.
    pub(crate) fn unpinned(&mut self, on: StreamId, bytes: u64) {
        self.wait_for(on, bytes);
    }

    pub(crate) fn land(&mut self) {
        self.in_flight.clear();
        self.lines.values_mut().for_each(|line| (line.least.due, line.most.due) = (false, false));
    }

    /// The oldest of a stream's memory.
    pub(crate) fn oldest(&self, home: StreamId) -> Option<Bounds> {
        let ages = self.in_flight.iter().filter(|waiting| waiting.home == home).map(|waiting| waiting.age);
        ages.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
    }

    /// The same where so many are left of what was freed.
    pub(crate) fn oldest_of(&self, home: StreamId, left: u64) -> Option<Bounds> {
        let ages = || self.in_flight.iter().filter(|waiting| waiting.home == home).map(|waiting| waiting.age);
        if ages().count() as u64 == left {
            return self.oldest(home);
        }
        ages().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Nothing of a stream's is in flight any more.
    pub(crate) fn land_of(&mut self, home: StreamId) {
        self.in_flight.retain(|waiting| waiting.home != home);
    }

    /// Whether all of them are known exactly.
    pub(crate) fn is_sure(&self) -> bool {
        self.in_flight.iter().all(|waiting| waiting.age.0 == waiting.age.1)
    }
}
