// The links of the README on pages outside the repository, such as docs.rs: of two definitions the first counts.
#![doc = concat!("[sim/README.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/sim/README.md")]
#![doc = concat!("[plug/README.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/plug/README.md")]
#![doc = concat!("[plug/python/README.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/plug/python/README.md")]
#![doc = concat!("[benches/RESULTS.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/benches/RESULTS.md")]
#![doc = concat!("[examples/first_steps.rs]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/examples/first_steps.rs")]
#![doc = concat!("[examples/two_streams.rs]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/examples/two_streams.rs")]
#![doc = concat!("[examples/share_between_streams.rs]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/examples/share_between_streams.rs")]
#![doc = "[docs/ordering.md]: ordering"]
#![doc = concat!("[`millpond-sim`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/sim/README.md")]
#![doc = concat!("[`millpond-feed`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/feed/README.md")]
#![doc = concat!("[`millpond-replay`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/replay/README.md")]
#![doc = concat!("[`millpond-trace`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/trace/README.md")]
#![doc = concat!("[`millpond-driver`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/driver/README.md")]
#![doc = concat!("[`millpond-cuda`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/cuda/README.md")]
#![doc = concat!("[`millpond-core`]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/core/README.md")]
#![doc = concat!("[DESIGN.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/DESIGN.md")]
#![doc = concat!("[CONTRIBUTING.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/CONTRIBUTING.md")]
#![doc = concat!("[CHANGELOG.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/CHANGELOG.md")]
#![doc = concat!("[tests/traces]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/tests/traces/README.md")]
#![doc = concat!("[MIT]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/LICENSE-MIT")]
#![doc = concat!("[Apache 2.0]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/LICENSE-APACHE")]
#![doc = ""]
#![doc = include_str!("../README.md")]

// Planted bugs; ordinary builds have none.
#[macro_use]
pub extern crate millpond_driver as driver;

/// An internal module: tests, fuzzers and model checkers of this repository reach it through the feature
/// `internals`, which no published package enables.
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
#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub mod interop;
pub mod kernel;
#[doc = concat!("[why not always]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/decisions/unpin-to-wait.md")]
#[doc = concat!("[why not these]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/decisions/seen-edges.md")]
#[doc = ""]
#[doc = include_str!("../docs/ordering.md")]
#[allow(clippy::doc_markdown)] // K_t and H_u are formulas there.
pub mod ordering {}
pub mod report;
internal!(sync);
mod time;
pub mod transfer;
pub mod wrap;

// The package beneath, which is internal too.
#[cfg(not(feature = "internals"))]
use millpond_core::{heap, order};
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use millpond_core::{heap, order};
use millpond_core::{laws, physical};

pub use allocator::{
    Allocation, Allocator, Config, Event, Footprint, Group, Growth, Handles, Limit, PinnedAllocation, Policy,
    RawAllocation, Reuse, Stream, Trim, Trimmed, VirtualMemory,
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

pub use array::{
    AsViewMut, DeviceArray, DeviceView, DeviceViewMut, IntoView, PinnedArray, RegisteredArray, Shape,
};
pub use erased::GpuAlloc;
pub use error::{DriverError, DriverErrorKind, Error, Mismatch, OutOfMemory, Unavailable};
pub use transfer::{Download, Upload};
