//! A large range with up to two users: three streams, one range of 4 MiB that fills the limit, and what others get of it.
//!
//! The first stream is home to the range and writes it; each of the other two may use it once, and the home stream may read it
//! once more; it is freed; streams ask for 1 MiB. A lend takes 2 MiB: of the front one half is spare, and the rest stays where it is,
//! in flight or free. Between any two of these a stream may wait for another, the host for a stream, and a piece may be freed
//! again. Before a request each stream with work pending has run all of it that other streams let it come to, or nothing.
//!
//! Up to symmetry: the second stream is named before the third. Left out, because a shorter program says it: a request while the
//! range is live, which fills the limit, and anything behind the last request. Not enumerated: a device that says "not yet", or
//! has run a part of a stream (`testkit/src/worlds/blocks.rs` has both on two streams), and faults (`testkit/src/worlds/arrays.rs`).

use super::Family;
use crate::cases::{self, Block, Outcome, World, said};
use millpond::Stream;
use millpond_sim::Sim;
use std::mem::ManuallyDrop;

/// What the range and each piece have, in MiB.
const RANGE: u64 = 4;
const PIECE: u64 = 1;
const STREAMS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// The range, on the first stream, which writes it.
    Range,
    /// A recorded write of the range by another stream, and a read.
    Writes(usize),
    Reads(usize),
    /// A read of it by its home.
    Home,
    Free,
    /// A piece for a stream, which writes it.
    Piece(usize),
    FreePiece(usize),
    /// The first stream waits for the second.
    Wait(usize, usize),
    Sync(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    verb: Verb,
    /// Which streams have run all that they had.
    runs: [bool; STREAMS],
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Life {
    #[default]
    Unborn,
    Live,
    Freed,
}

#[derive(Clone, Default)]
pub struct Shape {
    range: Life,
    used: [bool; STREAMS],
    home_read: bool,
    /// Pieces that are live.
    pieces: Vec<bool>,
    pending: [bool; STREAMS],
    /// The second stream was named: only then may the third be.
    named: bool,
}

impl Shape {
    /// How many steps must come still: the range, its free and a request.
    fn owed(&self) -> usize {
        match self.range {
            Life::Unborn => 3,
            Life::Live => 2,
            Life::Freed => 1,
        }
    }

    fn knows(&self, s: usize) -> bool {
        s < 2 || self.named
    }

    fn verbs(&self, left: usize) -> Vec<Verb> {
        if self.range == Life::Unborn {
            return vec![Verb::Range];
        }
        let mut verbs = Vec::new();
        for s in (1..STREAMS)
            .filter(|&s| self.range == Life::Live && left > self.owed() && !self.used[s] && self.knows(s))
        {
            verbs.extend([Verb::Writes(s), Verb::Reads(s)]);
        }
        if self.range == Life::Live {
            verbs.push(Verb::Free);
        }
        if self.range == Life::Freed {
            verbs.extend((0..STREAMS).map(Verb::Piece));
        }
        // What need not be.
        if left > self.owed() {
            if self.range == Life::Live && !self.home_read {
                verbs.push(Verb::Home);
            }
            verbs.extend((0..self.pieces.len()).filter(|&p| self.pieces[p]).map(Verb::FreePiece));
            for s in (0..STREAMS).filter(|&s| self.pending[s]) {
                let waits = (0..STREAMS).filter(|&t| t != s && self.knows(t));
                verbs.extend(waits.map(|t| Verb::Wait(t, s)));
                verbs.push(Verb::Sync(s));
            }
        }
        verbs
    }
}

/// What lies before something, by stream.
type Clock = [u32; STREAMS];

fn join(into: &mut Clock, other: &Clock) {
    for (mine, theirs) in into.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

struct Run {
    w: World,
    streams: [Stream<Sim>; STREAMS],
    range: Option<Block>,
    /// Every access of the range: by whom, which of its operations, whether it wrote.
    accesses: Vec<(usize, u32, bool)>,
    pieces: Vec<Option<Block>>,
    /// How many operations each stream has, and what they come after as far as the program has said so.
    made: Clock,
    after: [Clock; STREAMS],
}

impl Run {
    fn new(hasty: bool) -> Run {
        let w = if hasty { World::hasty(RANGE) } else { World::at(RANGE) };
        Run {
            streams: w.streams(),
            w,
            range: None,
            accesses: Vec::new(),
            pieces: Vec::new(),
            made: [0; STREAMS],
            after: [[0; STREAMS]; STREAMS],
        }
    }

    fn wait(&mut self, s: usize, of: usize) -> Outcome {
        self.streams[s].wait_stream(&self.streams[of]).map_err(said)?;
        let mut learnt = self.after[of];
        learnt[of] = self.made[of];
        join(&mut self.after[s], &learnt);
        Ok(())
    }

    /// An access of the range, behind those that it conflicts with: the program makes the waits that are missing.
    fn access(&mut self, s: usize, writes: bool) -> Outcome {
        for (by, at, wrote) in self.accesses.clone() {
            if by != s && (writes || wrote) && self.after[s][by] < at {
                self.wait(s, by)?;
            }
        }
        let range = self.range.as_ref().expect("live");
        if s != 0 {
            range.record_use(&self.streams[s]).map_err(said)?;
        }
        if writes {
            self.w.write(range, &self.streams[s])?;
        } else {
            self.w.read(range, &self.streams[s])?;
        }
        self.made[s] += 1;
        self.accesses.push((s, self.made[s], writes));
        Ok(())
    }

    fn step(&mut self, step: Step) -> Outcome {
        for s in (0..STREAMS).filter(|&s| step.runs[s]) {
            while self.w.sim.advance(self.streams[s].native()).map_err(said)? {}
        }
        match step.verb {
            Verb::Range => {
                self.range = Some(self.w.alloc(RANGE, &self.streams[0])?);
                self.access(0, true)?;
            }
            Verb::Writes(s) => self.access(s, true)?,
            Verb::Reads(s) => self.access(s, false)?,
            Verb::Home => self.access(0, false)?,
            Verb::Free => drop(self.range.take()),
            Verb::Piece(s) => {
                // A wish that fails is part of the program.
                let piece = match self.w.gpu.alloc(PIECE << 20, &self.streams[s]) {
                    Ok(piece) => {
                        self.w.write(&piece, &self.streams[s])?;
                        self.made[s] += 1;
                        Some(piece)
                    }
                    Err(e) if e.out_of_memory().is_some() => None,
                    Err(e) => return Err(said(e)),
                };
                self.pieces.push(piece);
            }
            Verb::FreePiece(p) => drop(self.pieces[p].take()),
            Verb::Wait(s, of) => self.wait(s, of)?,
            Verb::Sync(s) => {
                self.streams[s].synchronize().map_err(said)?;
                let mut learnt = self.after[s];
                learnt[s] = self.made[s];
                for after in &mut self.after {
                    join(after, &learnt);
                }
            }
        }
        Ok(())
    }
}

/// The family, for hosts that may wait and for hosts that may not.
pub struct Ranges;

impl Family for Ranges {
    type Step = Step;
    type Shape = Shape;

    fn steps(&self, shape: &Shape, left: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        for verb in shape.verbs(left) {
            let mut devices = vec![[false; STREAMS]];
            if matches!(verb, Verb::Piece(_)) {
                for s in (0..STREAMS).filter(|&s| shape.pending[s]) {
                    for mut runs in devices.clone() {
                        runs[s] = true;
                        devices.push(runs);
                    }
                }
            }
            steps.extend(devices.into_iter().map(|runs| Step { verb, runs }));
        }
        steps
    }

    fn after(&self, shape: &Shape, step: &Step) -> Shape {
        let mut next = shape.clone();
        for s in 0..STREAMS {
            next.pending[s] &= !step.runs[s];
        }
        match step.verb {
            Verb::Range => {
                next.range = Life::Live;
                next.pending[0] = true;
            }
            Verb::Writes(s) | Verb::Reads(s) => {
                (next.used[s], next.pending[s], next.named) = (true, true, true);
            }
            Verb::Home => (next.home_read, next.pending[0]) = (true, true),
            Verb::Free => next.range = Life::Freed,
            Verb::Piece(s) => {
                next.pieces.push(true);
                next.pending[s] = true;
            }
            Verb::FreePiece(p) => next.pieces[p] = false,
            Verb::Wait(s, _) => next.named |= s == 1,
            Verb::Sync(s) => next.pending[s] = false,
        }
        next
    }

    fn judge(&self, steps: &[Step], known: usize) -> Outcome {
        [false, true].into_iter().try_for_each(|hasty| {
            let outcome = cases::judge(|| {
                // What went wrong cannot always be dropped.
                let mut run = ManuallyDrop::new(Run::new(hasty));
                for (at, &step) in steps.iter().enumerate() {
                    run.step(step)?;
                    if at >= known {
                        run.w.gpu.check();
                    }
                }
                run.range = None;
                run.pieces.clear();
                if hasty {
                    run.w.all_back()?;
                }
                run.w.whole_limit()?;
                run.w.all_back()?;
                let Run { w, streams, .. } = ManuallyDrop::into_inner(run);
                drop(streams);
                w.end()
            });
            outcome.map_err(|e| format!("hasty {hasty}: {e}"))
        })
    }
}
