//! What a device can do, as small traits: the contract between millpond's allocator and the devices under it.
//!
//! A driver hands out memory ([`Memory`], [`Mapping`], [`Host`]), orders streams by events ([`Fences`]), copies ([`Copies`])
//! and runs kernels ([`Kernels`]). [`Driver`] is all that an allocator needs; [`VirtualMemory`] makes [`Mapping`] safe to use. Two crates implement them: `millpond-cuda` over
//! the CUDA driver, `millpond-sim` as a simulated device that judges the order of its work. A device of your own
//! implements the same traits; each one's contract is its documentation.
//!
//! It does not know chunks, pools or who owns what: [`Driver::note`] notifies a judging device of what was handed out, and is empty
//! elsewhere. No method here may be called with a lock of the allocator held.

// Planted bugs, for builds of the tests that must find them: see `mutant`.
#[doc(hidden)]
#[cfg(not(millpond_mutants))]
#[macro_export]
macro_rules! mutant {
    ($bug:ident) => {
        false
    };
}
#[doc(hidden)]
#[cfg(millpond_mutants)]
#[macro_export]
macro_rules! mutant {
    ($bug:ident) => {
        $crate::mutant::is($crate::mutant::Bug::$bug)
    };
}
// A place where such a test may pause a thread, unless others rightly wait for it there; nothing in other builds.
#[doc(hidden)]
#[cfg(not(millpond_mutants))]
#[macro_export]
macro_rules! pause_point {
    ($name:literal $(unless $busy:expr)?) => {};
}
#[doc(hidden)]
#[cfg(millpond_mutants)]
#[macro_export]
macro_rules! pause_point {
    ($name:literal $(unless $busy:expr)?) => {
        if true $(&& !$busy)? {
            $crate::mutant::point($name);
        }
    };
}

/// Runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod any;
mod caller;
mod copies;
mod error;
mod fences;
mod host;
mod kernels;
mod mapped;
mod mapping;
mod memory;
#[cfg(millpond_mutants)]
#[doc(hidden)]
pub mod mutant;
mod note;
#[doc(hidden)]
pub mod patience;
mod pitch;
#[doc(hidden)]
pub mod random;
mod registered;
mod size;
#[doc(hidden)]
pub mod sync;
mod thread_end;
pub mod units;

pub use any::{AnyDriver, AnyEvent, AnyHandle, AnyNative};
#[doc(hidden)]
pub use caller::Called;
pub use caller::Caller;
pub use copies::Copies;
pub use error::{DriverError, DriverErrorKind, Unavailable};
pub use fences::{Fences, StreamInfo, StreamKind, StreamOptions};
pub use host::{Host, HostKind, HostMemory, OwnedHost};
pub use kernels::{
    Argument, Grid, Kernel, KernelLaunch, KernelRange, Kernels, RangeUse, Reference, ReferenceMemory,
};
pub use mapped::{NotMapped, PhysicalHandle, VirtualMemory};
pub use mapping::{Mapping, MappingFacts, Properties};
pub use memory::{Memory, MemoryInfo, OwnedRange};
pub use note::{DeviceSlot, Driver, Note, QueuedBy};
pub use pitch::{CopySide, Pitched};
pub use registered::{RegisteredHost, StableMemory};
pub use size::{Size, SizeError, Unit, bytes, parse_size};
#[doc(hidden)]
pub use size::{whole_bytes, whole_unit};
#[doc(hidden)]
pub use thread_end::ThreadEnd;

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;
