//! Where a program made a call, for a device that judges: a line of its source, or a step of the file that is replayed.
//!
//! A driver sees its own caller, which is a line of this library where the program called one of its functions. So a function opens a
//! [`Called`] with its own caller, and driver calls made meanwhile on this thread are attributed to it; if such functions
//! call each other, the outermost counts. On a device that does not judge, none of this is compiled in.
//!
//! It does not know what the calls are.

use crate::Driver;
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::panic::Location;

/// Where a program made a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Caller {
    /// A line of its source.
    Code(&'static Location<'static>),
    /// A step of a program that is replayed, counted from 0.
    Step(u64),
    /// A call of a log that is replayed, counted from 0, or an operation that was generated after it.
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

crate::per_thread! {
    static CALLED: Cell<Option<Caller>> = Cell::new(None);
}

impl Caller {
    /// The function that the calling thread is in.
    #[doc(hidden)]
    pub fn outermost() -> Option<Caller> {
        CALLED.with(Cell::get)
    }
    /// The function that the calling thread is in, or else the caller's line if it is the program's. A line of this library does not
    /// count: it is in a destructor, or the allocator's own work.
    #[track_caller]
    #[doc(hidden)]
    pub fn here() -> Option<Caller> {
        let line = Location::caller();
        Caller::outermost().or_else(|| (!is_ours(line.file())).then_some(Caller::Code(line)))
    }
}

/// Whether a file is of one of this library's crates, which lie beside this one: as folders of one repository, or as packages
/// of one registry, which has their versions in their folders' names.
fn is_ours(file: &str) -> bool {
    is_beside(file!(), file)
}

/// Whether `file` belongs to a crate of this library where `here` is this file.
fn is_beside(here: &str, file: &str) -> bool {
    let crate_folder = here.strip_suffix("/src/caller.rs").unwrap_or(here);
    let all = crate_folder.rfind('/').map_or(0, |slash| slash + 1);
    let (all, this) = crate_folder.split_at(all);
    let Some(file) = file.strip_prefix(all) else { return false };
    if this == "driver" {
        return ["src/", "driver/src/", "cuda/src/", "sim/src/"]
            .iter()
            .any(|folder| file.starts_with(folder));
    }
    file.starts_with("millpond-")
        && file.split_once('/').is_some_and(|(_, inside)| inside.starts_with("src/"))
}

/// A value that stays on its thread.
type OfThread<D> = (*const (), fn(D));

/// While this lives, the calling thread is in a function that was called there.
#[derive(Debug)]
pub struct Called<D: Driver> {
    outermost: bool,
    of: PhantomData<OfThread<D>>,
}

impl<D: Driver> Called<D> {
    /// A function whose caller comes from `#[track_caller]`.
    #[track_caller]
    #[inline]
    pub fn here() -> Called<D> {
        Called::at(Caller::Code(Location::caller()))
    }
    /// A function whose caller is given explicitly: code, or a call by another language.
    #[inline]
    pub fn at(caller: Caller) -> Called<D> {
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

    #[test]
    fn a_line_is_ours_or_a_programs() {
        assert!(is_ours(file!()));
        assert!(!is_ours("tests/arrays/verdicts.rs") && !is_ours("caller.rs") && !is_ours(""));
        for (here, ours) in [
            ("driver/src/caller.rs", "src/allocator/mod.rs"),
            ("/home/me/millpond/driver/src/caller.rs", "/home/me/millpond/sim/src/lib.rs"),
            ("/r/millpond-driver-0.1.0/src/caller.rs", "/r/millpond-0.1.0/src/lib.rs"),
            ("/r/millpond-driver-0.1.0/src/caller.rs", "/r/millpond-sim-0.1.0/src/lib.rs"),
        ] {
            assert!(is_beside(here, ours), "{ours} beside {here}");
        }
        for (here, theirs) in [
            ("driver/src/caller.rs", "tests/arrays/verdicts.rs"),
            ("driver/src/caller.rs", "sim/examples/judge.rs"),
            ("/home/me/millpond/driver/src/caller.rs", "src/main.rs"),
            ("/r/millpond-driver-0.1.0/src/caller.rs", "src/main.rs"),
            ("/r/millpond-driver-0.1.0/src/caller.rs", "/r/other-1.0.0/src/lib.rs"),
            ("/r/millpond-driver-0.1.0/src/caller.rs", "/r/millpond-0.1.0/tests/arrays/verdicts.rs"),
        ] {
            assert!(!is_beside(here, theirs), "{theirs} beside {here}");
        }
    }
}
