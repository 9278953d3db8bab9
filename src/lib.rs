#![doc = include_str!("../README.md")]

// Planted bugs, which ordinary builds have none of.
#[macro_use]
pub extern crate millpond_driver as driver;

/// A module that is nobody's business but ours: tests, fuzzers and model checkers of this repository see it by the feature
/// `internals`, which nothing that is published turns on.
macro_rules! internal {
    ($module:ident) => {
        #[cfg(feature = "internals")]
        #[doc(hidden)]
        pub mod $module;
        #[cfg(not(feature = "internals"))]
        #[allow(dead_code, unused_imports, unreachable_pub, reason = "as public as with the feature")]
        mod $module;
    };
}

pub mod allocator;
pub mod array;
pub mod erased;
pub mod error;
internal!(heap);
#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub mod interop;
pub mod kernel;
internal!(order);
pub mod report;
internal!(sync);
mod time;
pub mod transfer;
pub mod wrap;

pub use allocator::{
    Allocation, Allocator, Config, Event, Growth, Limit, PinnedAllocation, Policy, RawAllocation, Reuse,
    Stream, Trim, Trimmed,
};
#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub use millpond_cuda as cuda;
#[cfg(millpond_mutants)]
#[doc(hidden)]
pub use millpond_driver::mutant;
pub use millpond_driver::units;
pub use millpond_trace as trace;

pub use bytemuck;
#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub use cudarc;
#[cfg(feature = "half")]
pub use half;

pub use array::{AsViewMut, DeviceArray, DeviceView, DeviceViewMut, IntoView, PinnedArray, Shape};
pub use erased::GpuAlloc;
pub use error::{DriverError, DriverErrorKind, Error, Mismatch, OutOfMemory, Unavailable};
pub use transfer::{Download, Transfer};
