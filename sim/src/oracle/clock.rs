//! Vector clocks: what happened before a point of a stream or of a host thread.
//!
//! A [`Clock`] is a sorted list of (line, tick), with nothing stored for lines never heard of. A [`Stamp`] is a clock behind
//! an `Arc` and the owner's own tick beside it, so that the operations of a stream share one clock until the stream learns
//! something: an operation costs no copy, a join that teaches nothing costs one walk, and a join that does costs one new
//! list. A thousand streams that all know each other cost 16 KB a clock.
//!
//! It does not know what a tick stands for, what a wait is beyond its number, nor memory.

use super::{HostKey, StreamKey};
use std::sync::Arc;

/// A sequence of things that happen one after the other: a stream, or a host thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Line(u32);

const HOST: u32 = 1 << 31;

impl Line {
    /// A stream's line.
    pub(super) fn stream(key: StreamKey) -> Line {
        assert!(key.0 < HOST, "stream key {} is beyond 2^31", key.0);
        Line(key.0)
    }
    /// A host thread's line.
    pub(super) fn host(key: HostKey) -> Line {
        assert!(key.0 < HOST, "host key {} is beyond 2^31", key.0);
        Line(key.0 | HOST)
    }
    /// The stream, or else the host thread.
    pub(super) fn split(self) -> Result<StreamKey, HostKey> {
        if self.0 & HOST == 0 { Ok(StreamKey(self.0)) } else { Err(HostKey(self.0 & !HOST)) }
    }
}

/// One point of a line. Ticks start at 1; 0 is before everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub(super) line: Line,
    pub(super) tick: u64,
}

/// The number of a wait, for the count of waits that somebody needed. 0 is "by no wait".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Via(pub(super) u32);

impl Via {
    /// By no wait: program order, the host, or the legacy stream.
    pub(super) const NONE: Via = Via(0);
}

/// What a clock knows of one line, and by which wait its owner learnt it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) line: Line,
    pub(super) via: Via,
    pub(super) tick: u64,
}

/// What a join taught about one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raised {
    pub(super) line: Line,
    /// What was known before, and by which wait.
    pub(super) before: u64,
    pub(super) before_via: Via,
    /// By which wait the source had learnt it.
    pub(super) source_via: Via,
}

/// Per line the newest tick that happened before. Entries ascend by line, each line at most once, no tick is 0.
#[derive(Clone, Default, Debug)]
pub(super) struct Clock {
    entries: Vec<Entry>,
}

impl Clock {
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }
    fn find(&self, line: Line) -> Result<usize, usize> {
        // Most clocks of small programs hold a handful of lines: a walk beats a search there.
        if self.entries.len() <= 8 {
            for (i, e) in self.entries.iter().enumerate() {
                if e.line >= line {
                    return if e.line == line { Ok(i) } else { Err(i) };
                }
            }
            return Err(self.entries.len());
        }
        self.entries.binary_search_by_key(&line, |e| e.line)
    }
    /// What is known of a line.
    pub(super) fn get(&self, line: Line) -> Option<Entry> {
        self.find(line).ok().map(|i| self.entries[i])
    }
    /// Whether `other`, less what it says of `except`, teaches nothing.
    fn covers(&self, other: &Clock, except: Option<Line>) -> bool {
        let mut i = 0;
        for e in &other.entries {
            if Some(e.line) == except {
                continue;
            }
            while i < self.entries.len() && self.entries[i].line < e.line {
                i += 1;
            }
            match self.entries.get(i) {
                Some(own) if own.line == e.line && own.tick >= e.tick => {}
                _ => return false,
            }
        }
        true
    }
    /// The join. What is learnt is marked with `via` if it is a wait's, else with the source's own marks.
    fn joined(&self, other: &Clock, except: Option<Line>, via: Via, raised: &mut Vec<Raised>) -> Clock {
        let mut entries = Vec::with_capacity(self.entries.len().max(other.entries.len()) + 1);
        let mut own = self.entries.iter().copied().peekable();
        for e in &other.entries {
            if Some(e.line) == except {
                continue;
            }
            while let Some(o) = own.next_if(|o| o.line < e.line) {
                entries.push(o);
            }
            let known = own.next_if(|o| o.line == e.line);
            match known {
                Some(o) if o.tick >= e.tick => entries.push(o),
                _ => entries.push(learn(known, *e, via, raised)),
            }
        }
        entries.extend(own);
        Clock { entries }
    }
    /// Raises one line, if `at` is newer than what is known; whether it was.
    fn raise(this: &mut Arc<Clock>, at: At, via: Via, raised: &mut Vec<Raised>) {
        let slot = this.find(at.line);
        let known = slot.ok().map(|i| this.entries[i]);
        if at.tick == 0 || known.is_some_and(|k| k.tick >= at.tick) {
            return;
        }
        let entry = learn(known, Entry { line: at.line, via: Via::NONE, tick: at.tick }, via, raised);
        let clock = Arc::make_mut(this);
        match slot {
            Ok(i) => clock.entries[i] = entry,
            Err(i) => clock.entries.insert(i, entry),
        }
    }
    /// Forgets lines.
    pub(super) fn retain(&mut self, keep: impl Fn(Line) -> bool) {
        self.entries.retain(|e| keep(e.line));
    }
}

fn learn(known: Option<Entry>, news: Entry, via: Via, raised: &mut Vec<Raised>) -> Entry {
    if via == Via::NONE {
        return news;
    }
    raised.push(Raised {
        line: news.line,
        before: known.map_or(0, |k| k.tick),
        before_via: known.map_or(Via::NONE, |k| k.via),
        source_via: news.via,
    });
    Entry { via, ..news }
}

/// A point with all that happened before it: a clock, and the tick of the line it belongs to, if it belongs to one.
///
/// The clock never has an entry for the stamp's own line.
#[derive(Clone, Default, Debug)]
pub(super) struct Stamp {
    pub(super) base: Arc<Clock>,
    pub(super) own: Option<At>,
}

impl Stamp {
    /// The start of a line.
    pub(super) fn start(line: Line) -> Stamp {
        Stamp { base: Arc::default(), own: Some(At { line, tick: 0 }) }
    }
    /// What is known of a line.
    pub(super) fn get(&self, line: Line) -> Option<Entry> {
        match self.own {
            Some(own) if own.line == line => Some(Entry { line, via: Via::NONE, tick: own.tick }),
            _ => self.base.get(line),
        }
    }
    /// The newest tick of `line` at or before this point.
    pub(super) fn tick_of(&self, line: Line) -> u64 {
        self.get(line).map_or(0, |e| e.tick)
    }
    /// Whether `other` happened before this point, or is it.
    pub(super) fn covers(&self, other: &Stamp) -> bool {
        let own = other.own.is_none_or(|at| self.tick_of(at.line) >= at.tick);
        own && (Arc::ptr_eq(&self.base, &other.base)
            || self.base.covers(&other.base, self.own.map(|at| at.line)))
    }
    /// Takes in all that happened before `other`.
    pub(super) fn join(&mut self, other: &Stamp) {
        self.join_via(other, Via::NONE, &mut Vec::new());
    }
    /// As [`Stamp::join`], by a wait; `raised` gets what it taught.
    pub(super) fn join_via(&mut self, other: &Stamp, via: Via, raised: &mut Vec<Raised>) {
        let own = self.own.map(|at| at.line);
        if !Arc::ptr_eq(&self.base, &other.base) && !self.base.covers(&other.base, own) {
            self.base = Arc::new(self.base.joined(&other.base, own, via, raised));
        }
        if let Some(at) = other.own
            && Some(at.line) != own
        {
            Clock::raise(&mut self.base, at, via, raised);
        }
        raised.sort_unstable_by_key(|r| r.line);
    }
    /// One step on; where it is now.
    ///
    /// # Panics
    /// When the stamp belongs to no line.
    pub(super) fn tick(&mut self) -> At {
        let own = self.own.as_mut().expect("a stamp that ticks has a line");
        own.tick += 1;
        *own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n: u32) -> Line {
        Line::stream(StreamKey(n))
    }
    fn at(n: u32, tick: u64) -> Stamp {
        let mut s = Stamp::start(line(n));
        for _ in 0..tick {
            s.tick();
        }
        s
    }

    #[test]
    fn join_takes_the_newer_tick_of_each_line() {
        for lines in [3, 40] {
            let mut a = at(1000, 1);
            let mut b = at(1001, 2);
            for n in 0..lines {
                a.join(&at(n, u64::from(n % 5) + 1));
                b.join(&at(n, u64::from(n % 3) + 1));
            }
            a.join(&b);
            for n in 0..lines {
                assert_eq!(a.tick_of(line(n)), u64::from((n % 5).max(n % 3)) + 1);
            }
            assert_eq!(a.tick_of(line(1001)), 2);
            assert!(a.covers(&b) && !b.covers(&a));
            assert!(a.base.entries().is_sorted_by_key(|e| e.line));
        }
    }

    #[test]
    fn own_line_is_never_learnt_from_others() {
        let mut a = at(1, 3);
        let mut b = at(2, 1);
        b.join(&a);
        a.tick();
        a.join(&b);
        assert_eq!((a.tick_of(line(1)), a.base.get(line(1))), (4, None));
        assert!(a.covers(&b));
    }

    #[test]
    fn a_shared_clock_is_copied_when_it_learns() {
        let mut a = at(1, 1);
        a.join(&at(2, 2));
        let old = a.clone();
        a.join(&at(2, 5));
        assert_eq!((old.tick_of(line(2)), a.tick_of(line(2))), (2, 5));
    }

    #[test]
    fn a_wait_leaves_its_number_on_what_it_taught() {
        let mut a = at(1, 1);
        a.join(&at(2, 2));
        let mut b = at(3, 1);
        b.join(&at(2, 1));
        b.join(&at(4, 1));
        let mut raised = Vec::new();
        a.join_via(&b, Via(7), &mut raised);
        assert_eq!(
            raised.iter().map(|r| (r.line, r.before)).collect::<Vec<_>>(),
            [(line(3), 0), (line(4), 0)]
        );
        assert_eq!(a.get(line(4)).map(|e| e.via), Some(Via(7)));
        assert_eq!(a.get(line(2)).map(|e| e.via), Some(Via::NONE));
    }
}
