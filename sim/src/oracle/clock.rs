//! Vector clocks: what happened before a point of a stream or of a host thread.
//!
//! A [`Clock`] (`pages`) maps lines to ticks, with nothing stored for lines it does not know. A [`Stamp`] is a clock and the
//! owner's own tick beside it, so that the operations of a stream share one clock until the stream learns something: an
//! operation costs no copy. What two clocks share costs a join nothing, and what one learns of a few lines costs the pages
//! of those.
//!
//! It does not know what a tick stands for, what a wait is besides its number, nor memory.

mod pages;

pub(super) use pages::Clock;

use super::{HostKey, StreamKey};

/// A sequence of events in order: a stream, or a host thread.
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

/// The number of a wait, for the count of needed waits. 0 means "by no wait".
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

/// A point with all that happened before it: a clock, and the tick of the line it belongs to, if it belongs to one.
///
/// For the stamp's own line its tick counts, never the clock: the clock's entry for it is what others knew, which is no newer.
#[derive(Clone, Default, Debug)]
pub(super) struct Stamp {
    pub(super) base: Clock,
    pub(super) own: Option<At>,
}

impl Stamp {
    /// The start of a line.
    pub(super) fn start(line: Line) -> Stamp {
        Stamp { base: Clock::default(), own: Some(At { line, tick: 0 }) }
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
        match self.own {
            Some(own) if own.line == line => own.tick,
            _ => self.base.tick_of(line),
        }
    }
    /// Takes in all that happened before `other`; returns whether that added anything.
    pub(super) fn join(&mut self, other: &Stamp) -> bool {
        self.join_via(other, Via::NONE)
    }
    /// Takes in all that happened before `other`, by a wait; returns whether that added anything.
    pub(super) fn join_via(&mut self, other: &Stamp, via: Via) -> bool {
        let own = self.own.map(|at| at.line);
        let others = other.own.filter(|at| Some(at.line) != own && at.tick > self.base.tick_of(at.line));
        let learnt = self.base.join(&other.base, own, via);
        // Whatever the other's clock says of its own line, its tick counts.
        if let Some(at) = others {
            self.base.put(at, via);
        }
        learnt || others.is_some()
    }
    /// Advances by one tick; returns where it is now.
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

    impl Stamp {
        /// Whether `other` happened before this point, or is it.
        fn covers(&self, other: &Stamp) -> bool {
            let own = other.own.is_none_or(|at| self.tick_of(at.line) >= at.tick);
            let line = self.own.map(|at| at.line);
            own && !self.base.any_beyond(&other.base, |e| Some(e.line) != line)
        }
    }

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
            assert_eq!(a.base.len(), lines as usize + 1);
        }
    }

    #[test]
    fn own_line_is_never_learnt_from_others() {
        let mut a = at(1, 3);
        let mut b = at(2, 1);
        b.join(&a);
        a.tick();
        a.join(&b);
        assert_eq!(a.tick_of(line(1)), 4);
        assert!(a.covers(&b));
    }

    /// A stream's own operations that come back to it add nothing, and never show others how they were learnt.
    #[test]
    fn what_others_knew_of_ones_own_line_is_no_source() {
        let (mut a, mut b) = (at(1, 3), at(2, 1));
        assert!(b.join_via(&a, Via(1)) && a.join_via(&b, Via(2)));
        let mut c = at(3, 1);
        assert!(c.join(&a));
        assert_eq!(c.get(line(1)), Some(Entry { line: line(1), via: Via::NONE, tick: 3 }));
        assert_eq!(c.get(line(2)), Some(Entry { line: line(2), via: Via(2), tick: 1 }));
        assert!(!a.join_via(&b, Via(3)));
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
        assert!(a.join_via(&b, Via(7)) && !a.join_via(&b, Via(8)));
        assert_eq!(a.get(line(3)).map(|e| e.via), Some(Via(7)));
        assert_eq!(a.get(line(4)).map(|e| e.via), Some(Via(7)));
        assert_eq!(a.get(line(2)).map(|e| e.via), Some(Via::NONE));
    }
}
