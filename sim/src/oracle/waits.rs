//! Which waits were needed.
//!
//! Exactly: a wait is *needed* if a check succeeded that would have failed without what the wait taught its stream. The cheap
//! version here follows one chain. A clock entry carries the wait that raised it last; each wait remembers the clock that its
//! stream had before, so a check of an older tick goes back to the wait that first covered it; and what it waited for, and by
//! which wait that knew, so that in A -> B -> C both waits count as needed. Of two waits that would each have been enough, the
//! first counts. A wait whose memory was dropped ([`KEPT`]) ends its chain, and waits behind it may count as beyond need.
//!
//! This does not know what a check was about, nor clocks beyond what a join taught.

use super::clock::{Clock, Line, Stamp, Via};
use std::collections::VecDeque;

/// How many waits are remembered. Clocks share their pages, so that one of an ordinary program costs one or two pages of some
/// 100 bytes.
const KEPT: usize = 1 << 17;

/// What one wait taught: all of the source that was not known before.
#[derive(Debug)]
struct Taught {
    before: Clock,
    source: Stamp,
}

/// The waits so far.
#[derive(Default, Debug)]
pub(super) struct Waits {
    taught: VecDeque<Taught>,
    /// How many waits `taught` has forgotten.
    forgotten: u32,
    needed: Vec<u64>,
    needed_count: u64,
}

impl Waits {
    /// The number that the next wait will have.
    pub(super) fn next(&self) -> Via {
        Via(self.forgotten + self.taught.len() as u32 + 1)
    }
    /// Adds the wait with the number [`Waits::next`], which taught a stream something.
    pub(super) fn add(&mut self, before: Clock, source: Stamp) {
        self.taught.push_back(Taught { before, source });
        if self.taught.len() > KEPT {
            self.taught.pop_front();
            self.forgotten += 1;
        }
    }
    /// How many waits were needed.
    pub(super) fn needed_count(&self) -> u64 {
        self.needed_count
    }
    /// A check that `line` is known up to `tick` succeeded by an entry of wait `via`.
    pub(super) fn needed(&mut self, line: Line, tick: u64, mut via: Via) {
        while via != Via::NONE {
            let before =
                self.taught_by(via).and_then(|t| t.before.get(line)).filter(|before| before.tick >= tick);
            if let Some(before) = before {
                via = before.via;
            } else {
                self.mark(via);
                let source = self.taught_by(via).and_then(|t| t.source.get(line));
                via = source.map_or(Via::NONE, |source| source.via);
            }
        }
    }
    fn taught_by(&self, via: Via) -> Option<&Taught> {
        via.0.checked_sub(self.forgotten + 1).and_then(|i| self.taught.get(i as usize))
    }
    fn mark(&mut self, via: Via) {
        let (word, bit) = (via.0 as usize / 64, via.0 % 64);
        if self.needed.len() <= word {
            self.needed.resize(word + 1, 0);
        }
        if self.needed[word] & (1 << bit) == 0 {
            self.needed[word] |= 1 << bit;
            self.needed_count += 1;
        }
    }
}
