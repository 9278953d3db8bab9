//! Families of small programs, each enumerated up to symmetry, and the exhaustive search through one.
//!
//! A family lists the operations that may come next, and judges a program. This module runs all of its programs of one
//! length and counts them; it does not know what an operation does. `tests/small_worlds.rs` runs all of them with right code;
//! `tests/mutants.rs` counts how many are necessary to find a planted bug.

pub mod arrays;
pub mod blocks;
pub mod ranges;
mod run;

use crate::cases::Outcome;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A family of programs.
pub trait Family: Sync {
    /// One operation, and what the device does before or during it.
    type Step: Clone + Debug + Send + Sync;
    /// What decides which steps may come next.
    type Shape: Clone + Default + Send + Sync;

    /// The steps that may come next in a program that gets `left` more, this one included.
    fn steps(&self, shape: &Self::Shape, left: usize) -> Vec<Self::Step>;
    /// The shape after a step.
    fn after(&self, shape: &Self::Shape, step: &Self::Step) -> Self::Shape;
    /// Judges a program; the error contains it. The heaps are checked after each step except the first `known`: a program with the same
    /// beginning was judged before.
    fn judge(&self, steps: &[Self::Step], known: usize) -> Outcome;
}

/// Visits every program that begins with these steps and has `left` more, until `visit` returns false, and returns whether it never did.
/// The second argument of `visit` is the number of first steps that the program has in common with the one before it.
fn each<F: Family>(
    family: &F,
    steps: &mut Vec<F::Step>,
    shape: &F::Shape,
    left: usize,
    mut known: usize,
    visit: &mut impl FnMut(&[F::Step], usize) -> bool,
) -> bool {
    if left == 0 {
        return visit(steps, known);
    }
    for step in family.steps(shape, left) {
        let next = family.after(shape, &step);
        steps.push(step);
        let on = each(family, steps, &next, left - 1, known, visit);
        steps.pop();
        known = known.max(steps.len());
        if !on {
            return false;
        }
    }
    true
}

/// A worker takes all programs that begin with the same steps: so many.
const DEALT: usize = 3;

/// Judges every program of a length, on all processors, and returns how many there are. Of their beginnings it takes every `of`th from
/// `part` on.
///
/// # Panics
/// When a program fails.
pub fn all<F: Family>(family: &F, length: usize, (part, of): (usize, usize)) -> usize {
    let mut starts = vec![(Vec::new(), F::Shape::default())];
    for begun in 0..DEALT.min(length) {
        let longer = |(steps, shape): (Vec<F::Step>, F::Shape)| {
            let next = family.steps(&shape, length - begun).into_iter();
            let after = |step: F::Step| (family.after(&shape, &step), step);
            next.map(after).map(|(s, step)| ([&steps[..], &[step]].concat(), s)).collect::<Vec<_>>()
        };
        starts = starts.into_iter().flat_map(longer).collect();
    }
    let starts: Vec<_> = starts.into_iter().skip(part - 1).step_by(of).collect();
    in_parallel(&starts, |(steps, shape)| {
        let (mut programs, mut wrong) = (0, None);
        each(family, &mut steps.clone(), shape, length - steps.len(), 0, &mut |steps, known| {
            programs += 1;
            wrong = family.judge(steps, known).err();
            wrong.is_none()
        });
        if let Some(wrong) = wrong {
            panic!("{wrong}");
        }
        programs
    })
}

/// Calls `explore` for each start, on all processors, and returns the sum of the results.
pub fn in_parallel<T: Sync>(starts: &[T], explore: impl Fn(&T) -> usize + Sync) -> usize {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut programs = 0;
        while let Some(start) = starts.get(next.fetch_add(1, Ordering::Relaxed)) {
            programs += explore(start);
        }
        programs
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|t| {
        let all: Vec<_> = (0..workers).map(|_| t.spawn(work)).collect();
        all.into_iter().map(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).sum()
    })
}

/// The first program of a length that fails, from the `from`th on: its number and the failure. If none fails, the number of programs.
pub fn first_wrong<F: Family>(family: &F, length: usize, from: usize) -> (usize, Option<String>) {
    let (mut programs, mut wrong) = (0, None);
    each(family, &mut Vec::new(), &F::Shape::default(), length, 0, &mut |steps, known| {
        programs += 1;
        if programs < from {
            return true;
        }
        let known = if programs == from { 0 } else { known };
        wrong = family.judge(steps, known).err();
        wrong.is_none()
    });
    (programs, wrong)
}
