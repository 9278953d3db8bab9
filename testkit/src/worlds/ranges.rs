//! A large range with up to two cross-stream users: three streams, one range of 4 MiB that fills the limit, and requests for parts of it.
//!
//! The first stream is the range's home and writes it; each of the other two may use it once, and the home stream may read it
//! once more; it is freed; streams request 1 MiB. A migration takes 2 MiB: half of this is spare in the receiver, and the rest of the range
//! stays where it is, in flight or free. Between any two of these a stream may wait for another, the host for a stream, and a piece may be
//! freed again. Before a request each stream with work pending has run all of it that other streams' work allows, or nothing.
//!
//! Up to symmetry: the second stream is named before the third. Left out, because a shorter program shows the same: a request while the
//! range is live, which fills the limit, and anything after the last request. Not enumerated: a device that answers "not yet", or
//! has run a part of a stream (`testkit/src/worlds/blocks.rs` has both on two streams), and faults (`testkit/src/worlds/arrays.rs`).

use super::Family;
use super::run::{ALL, Record, Run, number, wait};
use crate::cases::{self, Outcome};
use millpond::trace::{Access, BlockNo, Op, StreamNo, ThreadNo};
use millpond::units::MIB;
use std::mem::ManuallyDrop;

/// The sizes of the range and of each piece, in MiB.
const RANGE: u64 = 4;
const PIECE: u64 = 1;
const STREAMS: usize = 3;
/// The range's block; the pieces are the blocks after it.
const THE_RANGE: BlockNo = BlockNo(0);
/// One step of a program: an operation with what belongs to it, which is the device's advances before a request, the waits that make a use
/// correct, or the write of a new block.
pub type Step = Vec<Op>;

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Life {
    #[default]
    Unborn,
    Live,
    Freed,
}

/// For each stream, how many of its operations come before something.
type Clock = [u32; STREAMS];

fn join(into: &mut Clock, other: &Clock) {
    for (mine, theirs) in into.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

#[derive(Clone, Default)]
pub struct Shape {
    range: Life,
    used: [bool; STREAMS],
    home_read: bool,
    /// Pieces that are live.
    pieces: Vec<bool>,
    pending: [bool; STREAMS],
    /// The second stream was named; only after that may the third be.
    named: bool,
    /// Every access to the range: the stream, the number of its operation, whether it wrote.
    accesses: Vec<(usize, u32, bool)>,
    /// How many operations each stream has, and what its next one is ordered after by the program's waits.
    made: Clock,
    after: [Clock; STREAMS],
}

impl Shape {
    /// How many steps a program must still have: the range, its free and a request.
    fn required(&self) -> usize {
        match self.range {
            Life::Unborn => 3,
            Life::Live => 2,
            Life::Freed => 1,
        }
    }

    fn knows(&self, s: usize) -> bool {
        s < 2 || self.named
    }

    /// An access to the range, after those that it conflicts with: the program makes the waits that are missing.
    fn access(&self, s: usize, access: Access) -> Step {
        let (mut ops, mut then) = (Vec::new(), self.clone());
        for &(by, at, wrote) in &self.accesses {
            if by != s && (access == Access::Write || wrote) && then.after[s][by] < at {
                then.did(wait(s, by));
                ops.push(wait(s, by));
            }
        }
        ops.push(Op::Use { block: THE_RANGE, stream: number(s), access, recorded: s != 0 });
        ops
    }

    /// Memory for a stream, which writes it.
    fn alloc(block: u32, mib: u64, s: usize) -> Step {
        let (block, stream) = (BlockNo(block), number(s));
        let alloc = Op::Alloc { block, bytes: mib * MIB, align: None, stream };
        vec![alloc, Op::Use { block, stream, access: Access::Write, recorded: false }]
    }

    fn next(&self, left: usize) -> Vec<Step> {
        if self.range == Life::Unborn {
            return vec![Shape::alloc(0, RANGE, 0)];
        }
        let mut next = Vec::new();
        for s in (1..STREAMS)
            .filter(|&s| self.range == Life::Live && left > self.required() && !self.used[s] && self.knows(s))
        {
            next.extend([self.access(s, Access::Write), self.access(s, Access::Read)]);
        }
        if self.range == Life::Live {
            next.push(vec![Op::Free { block: THE_RANGE }]);
        }
        if self.range == Life::Freed {
            let piece = self.pieces.len() as u32 + 1;
            next.extend((0..STREAMS).map(|s| Shape::alloc(piece, PIECE, s)));
        }
        // Optional steps.
        if left > self.required() {
            if self.range == Life::Live && !self.home_read {
                next.push(self.access(0, Access::Read));
            }
            let live = (1..).zip(&self.pieces).filter(|(_, live)| **live);
            next.extend(live.map(|(piece, _)| vec![Op::Free { block: BlockNo(piece) }]));
            for s in (0..STREAMS).filter(|&s| self.pending[s]) {
                let waits = (0..STREAMS).filter(|&t| t != s && self.knows(t));
                next.extend(waits.map(|t| vec![wait(t, s)]));
                next.push(vec![Op::SyncStream { stream: number(s) }]);
            }
        }
        next
    }

    /// Updates the shape for an operation.
    fn did(&mut self, op: Op) {
        match op {
            Op::Alloc { block: THE_RANGE, .. } => self.range = Life::Live,
            Op::Alloc { .. } => self.pieces.push(true),
            Op::Free { block: THE_RANGE } => self.range = Life::Freed,
            Op::Free { block } => self.pieces[block.0 as usize - 1] = false,
            Op::Use { block, stream, access, .. } => {
                let s = usize::from(stream.0);
                self.pending[s] = true;
                self.made[s] += 1;
                if block == THE_RANGE {
                    if s == 0 {
                        self.home_read |= access == Access::Read;
                    } else {
                        (self.used[s], self.named) = (true, true);
                    }
                    self.accesses.push((s, self.made[s], access == Access::Write));
                }
            }
            Op::WaitStream { stream, on } => {
                let (s, of) = (usize::from(stream.0), usize::from(on.0));
                let mut clock = self.after[of];
                clock[of] = self.made[of];
                join(&mut self.after[s], &clock);
            }
            Op::SyncStream { stream } => {
                let s = usize::from(stream.0);
                self.pending[s] = false;
                let mut clock = self.after[s];
                clock[s] = self.made[s];
                for after in &mut self.after {
                    join(after, &clock);
                }
            }
            Op::Advance { stream, .. } => self.pending[usize::from(stream.0)] = false,
            _ => {}
        }
    }
}

/// The family, for hosts that may wait and for hosts that may not.
pub struct Ranges;

impl Family for Ranges {
    type Step = Step;
    type Shape = Shape;

    fn steps(&self, shape: &Shape, left: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        for ops in shape.next(left) {
            // Before a request each stream has run all that it had queued, or nothing.
            let mut ran = vec![Vec::new()];
            if matches!(ops[0], Op::Alloc { .. }) {
                for s in (0..STREAMS).filter(|&s| shape.pending[s]) {
                    let advance = Op::Advance { stream: number(s), steps: ALL };
                    for runs in ran.clone() {
                        ran.push([runs, vec![advance]].concat());
                    }
                }
            }
            steps.extend(ran.into_iter().map(|runs| [runs, ops.clone()].concat()));
        }
        steps
    }

    fn after(&self, shape: &Shape, step: &Step) -> Shape {
        let mut next = shape.clone();
        for op in step {
            next.did(*op);
        }
        // A step that is a wait names its stream; the waits of an access are of streams that are named already.
        if let [Op::WaitStream { stream: StreamNo(1), .. }] = step[..] {
            next.named = true;
        }
        next
    }

    fn judge(&self, steps: &[Step], known: usize) -> Outcome {
        [false, true].into_iter().try_for_each(|hasty| {
            let record = Record::new(RANGE, STREAMS as u16, hasty);
            let outcome = cases::judge(|| {
                // After a failure a drop may not be possible.
                let mut run = ManuallyDrop::new(Run::new(&record)?);
                for (at, step) in steps.iter().enumerate() {
                    for op in step {
                        run.op(ThreadNo(0), *op)?;
                    }
                    if at >= known {
                        run.w.gpu.check();
                    }
                }
                run.free_all()?;
                ManuallyDrop::into_inner(run).end()
            });
            outcome.map_err(|wrong| record.with_program(&wrong))
        })
    }
}
