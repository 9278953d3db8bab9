//! Which waits somebody needed.
//!
//! Exactly: a wait is *needed* if a check succeeded that would have failed without what the wait taught its stream. The cheap
//! version here follows one chain. A clock entry carries the wait that raised it last; each wait remembers what was known
//! before, so a check of an older tick goes back to the wait that first covered it; and it remembers by which wait its source
//! knew, so that in A -> B -> C both waits count as needed. Two waits that each would have been enough: the one that came
//! first counts. A wait whose memory was dropped ([`KEPT`]) ends its chain, and waits behind it may count as beyond need.
//!
//! This does not know what a check was about, nor clocks beyond what a join taught.

use super::clock::{Line, Raised, Via};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// How many taught facts are remembered in all: 24 MB at most, and more than 100 000 waits of ordinary programs.
const KEPT: usize = 1 << 20;

/// The waits so far.
#[derive(Default, Debug)]
pub(super) struct Waits {
    taught: VecDeque<SmallVec<[Raised; 2]>>,
    /// How many waits `taught` has forgotten.
    forgotten: u32,
    facts: usize,
    needed: Vec<u64>,
    needed_count: u64,
}

impl Waits {
    /// The number that the next wait will have.
    pub(super) fn next(&self) -> Via {
        Via(self.forgotten + self.taught.len() as u32 + 1)
    }
    /// Adds the wait with the number [`Waits::next`]; `raised` ascends by line.
    pub(super) fn add(&mut self, raised: &[Raised]) {
        self.facts += raised.len();
        self.taught.push_back(SmallVec::from_slice(raised));
        while self.facts > KEPT
            && let Some(old) = self.taught.pop_front()
        {
            self.facts -= old.len();
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
            let taught = via.0.checked_sub(self.forgotten + 1).and_then(|i| self.taught.get(i as usize));
            let fact = taught.and_then(|t| t.binary_search_by_key(&line, |r| r.line).ok().map(|i| t[i]));
            match fact {
                Some(r) if r.before >= tick => via = r.before_via,
                found => {
                    self.mark(via);
                    via = found.map_or(Via::NONE, |r| r.source_via);
                }
            }
        }
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
