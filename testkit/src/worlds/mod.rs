//! Families of small programs, each enumerated up to symmetry, and the exhaustive search through one.
//!
//! A family says which operations may come next and judges a program. What is here goes through all of its programs of one
//! length and counts them; it does not know what an operation does. `tests/small_worlds.rs` judges right code by all of them;
//! `tests/mutants.rs` asks how many it takes to find a planted bug.

pub mod arrays;
pub mod blocks;
pub mod ranges;
mod run;

use crate::cases::Outcome;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A family of programs.
pub trait Family: Sync {
    /// One operation, and what the device does before it or in it.
    type Step: Clone + Debug + Send + Sync;
    /// What decides which steps may come next.
    type Shape: Clone + Default + Send + Sync;

    /// The steps that may come next, where a program gets so many more, this one among them.
    fn steps(&self, shape: &Self::Shape, left: usize) -> Vec<Self::Step>;
    /// What decides about the steps behind this one.
    fn after(&self, shape: &Self::Shape, step: &Self::Step) -> Self::Shape;
    /// Judges a program, and tells it with what is wrong. The heaps were checked behind each of its first steps, `known` of them: another one began with these.
    fn judge(&self, steps: &[Self::Step], known: usize) -> Outcome;
}

/// Goes through every program that begins like this and gets so many steps more, for as long as `visit` says so: whether it
/// said so to the end. `visit` is told how many of a program's first steps the one before it began with.
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

/// So many steps begin what one worker explores on its own.
const DEALT: usize = 3;

/// Every program of a length, judged right by all processors: how many. Of what they begin with, every `of`th from `part` on.
///
/// # Panics
/// When one is not judged right.
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
    dealt(&starts, |(steps, shape)| {
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

/// What `explore` gives of each start, by all processors: the sum.
pub fn dealt<T: Sync>(starts: &[T], explore: impl Fn(&T) -> usize + Sync) -> usize {
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

/// The first program of a length that is not judged right, of the `from`th and those behind it: its number, and what was said of it; or
/// how many there are.
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
