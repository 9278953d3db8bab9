//! What the fuzz targets do with their bytes: one function a target, which panics when something is wrong.
//!
//! They are apart from the targets so that `tests/allocator/fuzz_seeds.rs` can run them over the committed seeds with no fuzzer at
//! hand. Nothing here knows a fuzzer.

/// The name under which `plug`'s tests know it, which share `c_abi`.
extern crate millpond as pond;

pub mod c_abi;
pub mod heap_ops;
pub mod stream_ops;
pub mod trace_codec;
pub mod trace_import;
