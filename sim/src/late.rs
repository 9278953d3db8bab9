//! Times behind closed gates: it is unknown when an operation behind a gate ends, until the gate is opened.
//!
//! All other times are known at submission (`rate`). An operation behind a closed gate is postponed: it has a number, keeps its booking,
//! and gets its time when the last gate before it opens, in the order of submission. Whatever takes its time from it meanwhile, an event or
//! an operation behind it, refers to it by number. Without gates nothing here is used.
//!
//! It does not know streams, events or engines, nor when anything runs.

use super::oracle::StreamKey;
use super::rate::Load;
use hashbrown::HashMap;
use smallvec::SmallVec;

/// When something is over, in virtual nanoseconds: at this time or, behind operations whose end is not known yet, not before it.
#[derive(Clone, Default, Debug)]
pub(super) struct End {
    pub(super) at: u64,
    /// Numbers of postponed operations.
    behind: SmallVec<[u64; 1]>,
}

impl End {
    pub(super) fn at(nanos: u64) -> End {
        End { at: nanos, behind: SmallVec::new() }
    }
    pub(super) fn is_known(&self) -> bool {
        self.behind.is_empty()
    }
    /// The later of the two ends.
    pub(super) fn and(&mut self, other: &End) {
        self.at = self.at.max(other.at);
        for &number in &other.behind {
            if !self.behind.contains(&number) {
                self.behind.push(number);
            }
        }
    }
    /// Sets the ends of these operations, by number.
    pub(super) fn learn(&mut self, ends: &HashMap<u64, u64>) {
        let at = &mut self.at;
        self.behind.retain(|number| match ends.get(number) {
            Some(&end) => {
                *at = end.max(*at);
                false
            }
            None => true,
        });
    }
}

/// A postponed operation.
#[derive(Debug)]
pub(super) struct Late {
    number: u64,
    pub(super) stream: StreamKey,
    pub(super) position: u64,
    /// The gate, if it is a closed one.
    gate: Option<u32>,
    pub(super) ready: End,
    pub(super) load: Load,
}

/// The postponed operations, oldest first.
#[derive(Default, Debug)]
pub(super) struct PutOff {
    so_far: u64,
    left: Vec<Late>,
}

impl PutOff {
    /// Adds an operation at this position of its stream; returns when it is over.
    pub(super) fn put_off(
        &mut self,
        (stream, position): (StreamKey, u64),
        gate: Option<u32>,
        ready: End,
        load: Load,
    ) -> End {
        let number = self.so_far;
        self.so_far += 1;
        let end = End { at: ready.at.saturating_add(load.nanos), behind: SmallVec::from_elem(number, 1) };
        self.left.push(Late { number, stream, position, gate, ready, load });
        end
    }
    /// A gate is over by now: books what was only behind it, in the order of submission, with `book`, which returns when it ends. Returns
    /// these ends, by number.
    pub(super) fn opened(
        &mut self,
        gate: u32,
        now: u64,
        mut book: impl FnMut(&Late) -> u64,
    ) -> HashMap<u64, u64> {
        let mut ends = HashMap::new();
        self.left.retain_mut(|op| {
            op.ready.learn(&ends);
            if op.gate == Some(gate) {
                op.gate = None;
                op.ready.at = op.ready.at.max(now);
            }
            let waits = op.gate.is_some() || !op.ready.is_known();
            if !waits {
                ends.insert(op.number, book(op));
            }
            waits
        });
        ends
    }
}
