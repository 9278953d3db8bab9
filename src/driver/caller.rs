//! Where a program asked for something, for a device that judges: a line of its source, or a step of the file it is.
//!
//! A driver sees its own caller, which is a line of this library where the program called a verb of it. So a verb opens a
//! [`Called`] with its own caller, and what the device is asked meanwhile, on this thread, was asked for there; of verbs
//! that call others the outermost counts. On a device that does not judge nothing of this is left in the code.
//!
//! It does not know what was asked.

use super::Driver;
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::panic::Location;

/// Where a program asked for something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Caller {
    /// A line of its source.
    Code(&'static Location<'static>),
    /// A step of a program that is replayed, counted from 0.
    Step(u64),
    /// A call of a log that is replayed, counted from 0, or what was dealt behind it.
    Call(u64),
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Code(at) => write!(f, "{}:{}", at.file(), at.line()),
            Caller::Step(n) => write!(f, "step {n}"),
            Caller::Call(n) => write!(f, "call {n}"),
        }
    }
}

crate::sync::per_thread! {
    static CALLED: Cell<Option<Caller>> = Cell::new(None);
}

impl Caller {
    /// The verb that the calling thread is in.
    pub(crate) fn outermost() -> Option<Caller> {
        CALLED.with(Cell::get)
    }
    /// The verb that the calling thread is in, or else the caller's line if that is a program's. A line of this library is
    /// nobody's: a destructor's, or work of the allocator's own.
    #[track_caller]
    pub(crate) fn here() -> Option<Caller> {
        let line = Location::caller();
        Caller::outermost().or_else(|| (!is_ours(line.file())).then_some(Caller::Code(line)))
    }
}

/// Whether a file is one of this library.
fn is_ours(file: &str) -> bool {
    const HERE: &str = file!();
    let root = HERE.len() - "driver/caller.rs".len();
    file.as_bytes().starts_with(&HERE.as_bytes()[..root])
}

/// What stays on its thread.
type OfThread<D> = (*const (), fn(D));

/// While this lives, the calling thread is in a verb that was called there.
pub(crate) struct Called<D: Driver> {
    outermost: bool,
    of: PhantomData<OfThread<D>>,
}

impl<D: Driver> Called<D> {
    /// A verb that says who calls it, by `#[track_caller]`.
    #[track_caller]
    #[inline]
    pub(crate) fn here() -> Called<D> {
        Called::at(Caller::Code(Location::caller()))
    }
    /// As said.
    #[inline]
    pub(crate) fn at(caller: Caller) -> Called<D> {
        let outermost = D::JUDGES
            && CALLED.with(|called| called.get().is_none() && called.replace(Some(caller)).is_none());
        Called { outermost, of: PhantomData }
    }
}

impl<D: Driver> Drop for Called<D> {
    #[inline]
    fn drop(&mut self) {
        if D::JUDGES && self.outermost {
            CALLED.with(|called| called.set(None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::null::Null;
    use crate::driver::sim::Sim;

    #[test]
    fn the_outermost_verb_counts_and_its_end_ends_it() {
        assert_eq!(Caller::outermost(), None);
        let outer = Called::<Sim>::at(Caller::Step(3));
        drop(Called::<Sim>::here());
        assert_eq!(Caller::here(), Some(Caller::Step(3)), "the inner one's end is not the outer one's");
        drop(outer);
        assert_eq!(Caller::here(), None, "this line is the library's");
        let _called = Called::<Sim>::here();
        let Some(Caller::Code(at)) = Caller::here() else { panic!("a verb is open") };
        assert_eq!((at.file(), at.line()), (file!(), line!() - 2));
    }

    #[test]
    fn a_line_is_ours_or_a_programs() {
        assert!(is_ours(file!()));
        assert!(!is_ours("tests/verdicts.rs") && !is_ours("driver/caller.rs") && !is_ours(""));
    }

    #[test]
    fn a_device_that_does_not_judge_keeps_nothing() {
        let _called = Called::<Null>::here();
        assert_eq!(Caller::outermost(), None);
    }
}
