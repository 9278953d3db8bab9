//! The interface for programs that are not written in Rust: a C interface, and the pair of functions that PyTorch takes as its
//! allocator. The header is `plug/millpond.h`.
//!
//! A pointer names an allocation, a handle names a stream. Pointers are looked up in an index by address, so that one that
//! was freed, never was ours, or points into the middle returns an error code and changes nothing. Streams are looked up by
//! handle *and* the driver's id, because handles are reused; permanent ones by their handle alone. No panic
//! crosses the boundary. It does not know how memory is found, nor what order is: it is the public interface, in C.
//!
//! | file | what it holds |
//! |---|---|
//! | `index` | addresses to allocations, without a shared lock |
//! | `door` | an allocator, its streams, and its operations |
//! | `met` | what a thread remembers of streams |
//! | `pinned` | pinned memory by its address |
//! | `status` | codes, and the message behind the last one |
//! | `table` | values by a number that is never reused |
//! | `presence` | which threads are in a call |
//! | `retired` | ended values, until they leave the table |
//! | `sync` | real atomics, or a model checker's |
//! | `tag` | facts of an allocation, in a word |
//! | `ffi` | the C functions |
//! | `torch` | PyTorch's pair and its hooks |
//! | `throw` | an exception that PyTorch recognises as out of memory |

#![allow(
    clippy::doc_markdown,
    reason = "the words of the C header, which know no markdown; names of products"
)]

/// Whether a bug of docs/mutants.md is planted here: always `false`, except in builds for the tests that must find it.
#[cfg(not(millpond_mutants))]
macro_rules! mutant {
    ($bug:ident) => {
        false
    };
}
#[cfg(millpond_mutants)]
macro_rules! mutant {
    ($bug:ident) => {
        pond::mutant::is(pond::mutant::Bug::$bug)
    };
}

mod door;
pub mod ffi;
mod index;
mod met;
mod pinned;
mod presence;
mod retired;
pub mod status;
mod sync;
mod table;
mod tag;
mod throw;
pub mod torch;

#[doc(hidden)]
pub use door::READABLE;
