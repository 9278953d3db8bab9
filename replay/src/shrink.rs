//! Makes a failing program small: what a person wants to read, and what a regression test keeps.
//!
//! The simple version drops one step at a time as long as the program still fails, which takes a try a step and round.
//! We depart from it in three ways:
//!
//! 1. Chunks first: halves, then quarters, down to single steps, so that most of a long program goes in a few tries.
//! 2. What depends on a dropped step goes with it: each candidate is normalised, so a free without its allocation never
//!    reaches the judge, and every candidate is well-formed.
//! 3. Then the steps that are left get simpler: one thread, fewer streams, no alignment, smaller sizes.
//!
//! The same program and the same judge give the same result. This module does not know what failing means.

use millpond_trace::Program;
use millpond_trace::{Op, Operand, StreamNo, ThreadNo};

/// Judged candidates at most, in [`shrink`].
pub const TRIES: usize = 4000;

/// The smallest program found for which `still_fails` holds, in at most [`TRIES`] calls of it.
///
/// The result is well-formed and fails, provided that the program itself, normalised, fails; otherwise the program
/// comes back as it was. `still_fails` should give the same answer each time it sees the same program.
pub fn shrink(program: &Program, still_fails: impl FnMut(&Program) -> bool) -> Program {
    shrink_within(program, TRIES, still_fails)
}

/// [`shrink`] with at most `tries` calls of the judge.
pub fn shrink_within(program: &Program, tries: usize, still_fails: impl FnMut(&Program) -> bool) -> Program {
    let mut search = Search { best: program.normalise(), left: tries, still_fails };
    if tries == 0 {
        return program.clone();
    }
    search.left -= 1;
    if !(search.still_fails)(&search.best) {
        return program.clone();
    }
    loop {
        let before = (search.best.clone(), search.left);
        search.drop_chunks();
        search.simplify();
        if search.best == before.0 || search.left == 0 {
            return search.best;
        }
    }
}

struct Search<F> {
    best: Program,
    left: usize,
    still_fails: F,
}

impl<F: FnMut(&Program) -> bool> Search<F> {
    /// Keeps a candidate if it differs and still fails.
    fn offer(&mut self, candidate: &Program) -> bool {
        if self.left == 0 {
            return false;
        }
        let candidate = candidate.normalise();
        if candidate == self.best || candidate.steps.len() > self.best.steps.len() {
            return false;
        }
        self.left -= 1;
        let kept = (self.still_fails)(&candidate);
        if kept {
            self.best = candidate;
        }
        kept
    }

    /// Offers the best program after a change of its steps.
    fn offer_changed(&mut self, change: impl FnOnce(&mut Program)) -> bool {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        self.offer(&candidate)
    }

    fn drop_chunks(&mut self) {
        let mut chunk = self.best.steps.len();
        while chunk > 0 && self.left > 0 {
            // From the end: what comes late depends on what comes early, so that it goes alone.
            let mut end = self.best.steps.len();
            while end > 0 && self.left > 0 {
                let start = end.saturating_sub(chunk);
                self.offer_changed(|p| drop(p.steps.drain(start..end)));
                end = start.min(self.best.steps.len());
            }
            chunk = if chunk == 1 { 0 } else { chunk.div_ceil(2) };
        }
    }

    fn simplify(&mut self) {
        self.offer_changed(|p| p.name.clear());
        self.offer_changed(|p| p.steps.iter_mut().for_each(|s| s.thread = ThreadNo(0)));
        let mut streams: Vec<StreamNo> = Vec::new();
        for s in &self.best.steps {
            let o = s.op.operands();
            streams.extend([o.stream, o.on].into_iter().flatten());
        }
        streams.sort_unstable();
        streams.dedup();
        for (k, &from) in streams.iter().enumerate().rev() {
            for &to in &streams[..k] {
                if self.offer_changed(|p| rename(p, from, to)) {
                    break;
                }
            }
        }
        for step in 0..self.best.steps.len() {
            self.simplify_step(step);
        }
    }

    fn simplify_step(&mut self, step: usize) {
        // A kept candidate may be shorter; its steps are simplified in the next round.
        let Some(s) = self.best.steps.get(step) else { return };
        let smaller = |bytes: u64| {
            [1, 512, bytes / 2, bytes / 2 / 512 * 512].into_iter().filter(move |b| (1..bytes).contains(b))
        };
        match s.op {
            Op::Alloc { bytes, align, .. } => {
                if align.is_some() {
                    self.offer_changed(|p| {
                        if let Op::Alloc { align, .. } = &mut p.steps[step].op {
                            *align = None;
                        }
                    });
                }
                for b in smaller(bytes) {
                    if self.offer_changed(|p| resize(p, step, b)) {
                        break;
                    }
                }
            }
            Op::AllocPinned { bytes, .. } => {
                for b in smaller(bytes) {
                    if self.offer_changed(|p| resize(p, step, b)) {
                        break;
                    }
                }
            }
            Op::Advance { steps, .. } if steps > 1 => {
                self.offer_changed(|p| {
                    if let Op::Advance { steps, .. } = &mut p.steps[step].op {
                        *steps = 1;
                    }
                });
            }
            Op::FreeOn { block, .. } | Op::FreeUnknown { block } => {
                self.offer_changed(|p| p.steps[step].op = Op::Free { block });
            }
            _ => {}
        }
    }
}

/// Gives a block another size; copies that would run over its end are cut.
fn resize(p: &mut Program, step: usize, to: u64) {
    let Some(block) = p.steps[step].op.operands().block else { return };
    match &mut p.steps[step].op {
        Op::Alloc { bytes, .. } | Op::AllocPinned { bytes, .. } => *bytes = to,
        _ => return,
    }
    // Normalised programs give each life its own number.
    for s in &mut p.steps {
        match &mut s.op {
            Op::Copy { to: t, from: f, bytes, .. } if *t == block || *f == block => *bytes = to.min(*bytes),
            _ => {}
        }
    }
}

/// Moves the work of one stream to another.
fn rename(p: &mut Program, from: StreamNo, to: StreamNo) {
    for s in &mut p.steps {
        s.op = s.op.clone_with(&mut |operand| match operand {
            Operand::Stream(s) | Operand::On(s) if *s == from => *s = to,
            _ => {}
        });
    }
}
