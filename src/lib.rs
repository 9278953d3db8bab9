#![doc = include_str!("../README.md")]

/// Whether a bug of DESIGN.md's zoo is planted here: never, but in builds for the tests that must find it.
#[cfg(not(millpond_mutants))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}
#[cfg(millpond_mutants)]
macro_rules! planted {
    ($bug:ident) => {
        $crate::mutant::is($crate::mutant::Bug::$bug)
    };
}
/// A place where such a test may make a thread stand still, unless others rightly wait for it there; nothing in other
/// builds.
#[cfg(not(millpond_mutants))]
macro_rules! point {
    ($name:literal $(unless $busy:expr)?) => {};
}
#[cfg(millpond_mutants)]
macro_rules! point {
    ($name:literal $(unless $busy:expr)?) => {
        if true $(&& !$busy)? {
            $crate::mutant::point($name);
        }
    };
}

pub mod allocator;
pub mod array;
pub mod driver;
pub mod erased;
pub mod error;
pub mod heap;
#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub mod interop;
pub mod kernel;
#[cfg(millpond_mutants)]
pub mod mutant;
pub mod order;
// It runs threads of the system, which a model checker does not follow.
#[cfg(not(any(loom, shuttle)))]
pub mod replay;
pub mod report;
pub mod sync;
pub mod trace;
pub mod transfer;
pub mod units;
pub mod wrap;

pub use allocator::{
    Allocation, Allocator, Config, Event, Growth, Limit, PinnedAllocation, Policy, RawAllocation, Reuse,
    Stream, Trim, Trimmed,
};
pub use array::{DeviceArray, DeviceView, DeviceViewMut, Element, PinnedArray, Shape};
pub use erased::GpuAlloc;
pub use error::{DriverError, DriverErrorKind, Error, Mismatch, OutOfMemory, Unavailable};
pub use transfer::{Download, Transfer};
