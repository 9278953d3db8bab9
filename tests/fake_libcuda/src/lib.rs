//! A stand-in for `libcuda`: the driver's C functions over millpond's simulated device and its ordering oracle.
//!
//! Programs that link or load the CUDA driver run on it without a GPU, and their errors are reported: accesses that are not ordered,
//! resources that were not freed, calls without a context. It is for tests only. Functions have the driver's
//! names, take its structures, return its codes, and behave like it where programs often fail: handles of destroyed
//! streams and events are reused at once, a call on a thread without a current context fails, a lost context stays lost.
//! Tests control it through the functions of [`control`].
//!
//! It does not know millpond's allocator or its CUDA backend: it sees only the calls that any program makes. It has
//! no compiler either: it runs only kernels for which [`kernel`] has a reference.
//!
//! | file | idea |
//! |---|---|
//! | [`entry`] | the entry of every call: it is counted, and refused or run, and never unwinds into C |
//! | `raw` | out parameters and structures of C, the only unsafe code |
//! | `state` | what the driver keeps between calls; handles that are reused |
//! | [`context`], [`device`] | initialisation, devices, primary contexts, the current context of a thread |
//! | [`memory`], [`host`], [`virt`], [`pool`] | plain, pinned, virtual and stream-ordered memory |
//! | [`copy`], [`rows`], [`stream`], [`event`], [`kernel`] | work and its order |
//! | [`capture`] | captures of streams |
//! | `spin` | kernels that wait for the host, and host waits that wait for them |
//! | [`names`], [`control`] | names of codes; the functions for tests |
//!
//! It does not model managed memory, arrays and textures, peer access (always allowed), graphs beyond their capture, or real
//! time (elapsed times are 0). A call for any of these is a missing symbol or `CUDA_ERROR_NOT_SUPPORTED`, and never a wrong
//! result.

#![allow(non_snake_case, reason = "the functions have the driver's names")]

/// Functions of the driver: each body runs inside [`entry::enter`] and returns a code.
macro_rules! driver_calls {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code, reason = "a name that C finds; there is one of each")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> $crate::entry::Code {
            $crate::entry::enter(stringify!($name), move || -> $crate::entry::Outcome { $body })
        }
    )*};
}

pub mod capture;
pub mod context;
pub mod control;
pub mod copy;
pub mod device;
pub mod entry;
pub mod event;
pub mod host;
pub mod kernel;
pub mod memory;
pub mod names;
pub mod pool;
mod ptx;
mod raw;
mod references;
pub mod rows;
mod spin;
mod state;
pub mod stream;
pub mod virt;

pub use raw::{Array, In, Out, Text};
