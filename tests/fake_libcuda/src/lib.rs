//! A stand-in for `libcuda`: the driver's C functions over millpond's simulated device and its ordering oracle.
//!
//! Programs that link or load the CUDA driver run on it with no GPU, and are judged: who touched what before it was
//! lawful, what was left behind, which call was made with no context. It is for tests only. Functions have the driver's
//! names, take its structures, answer its codes, and keep its habits that programs trip over: opaque values of destroyed
//! streams and events come back at once, a call on a thread without a current context fails, a lost context stays lost.
//! Tests steer it through the functions of [`control`].
//!
//! It does not know millpond's allocator or its CUDA backend: it sees only what any program would ask a driver. It has
//! no compiler either: of kernels it runs those that [`kernel`] has a reference for.
//!
//! | file | idea |
//! |---|---|
//! | [`door`] | how every call comes in: counted, refused or let through, never unwinding into C |
//! | `raw` | out parameters and structures of C, the only unsafe code |
//! | `state` | what the driver remembers; opaque values that come back |
//! | [`context`], [`device`] | initialising, devices, primary contexts, what is current on a thread |
//! | [`memory`], [`host`], [`virt`], [`pool`] | plain, pinned, virtual and stream-ordered memory |
//! | [`copy`], [`rows`], [`stream`], [`event`], [`kernel`] | work and its order |
//! | [`capture`] | what a stream records instead of running |
//! | `spin` | kernels that wait for the host, and host waits that wait for them |
//! | [`names`], [`control`] | the words for codes; the test's side |
//!
//! What it does not do: contexts other than primary ones, managed memory, arrays and textures, peer rights (always
//! given), graphs beyond their capture, real time (elapsed times are 0). A call for any of these is a missing symbol or
//! `CUDA_ERROR_NOT_SUPPORTED`, never a wrong answer.

#![allow(non_snake_case, reason = "the functions have the driver's names")]

/// Functions of the driver: each body runs behind the [`door`] and answers a code.
macro_rules! driver_calls {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code, reason = "a name that C finds; there is one of each")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> $crate::door::Code {
            $crate::door::enter(stringify!($name), move || -> $crate::door::Outcome { $body })
        }
    )*};
}

pub mod capture;
pub mod context;
pub mod control;
pub mod copy;
pub mod device;
pub mod door;
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
