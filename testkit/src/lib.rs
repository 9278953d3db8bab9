//! What the tests of this repository have in common. Never published.
//!
//! A test's executable is a program of its own, and the allocator is generic over the driver: each that has it on the simulated
//! device would compile it once more. What is compiled here, on that device, is linked into all of them.
//!
//! | module | what it holds |
//! |---|---|
//! | [`rig`] | a simulated device, an allocator on it, touches with patterns, and the end of a test |
//! | [`flight`] | what threads do to arrays that go from one to the other, with tokens and guards |
//! | `dice` | what random tests draw from |
//! | `suite` | the conformance suite, generic over a bench |
//! | `on_sim`, `on_cuda` | the benches of the simulated device and of the CUDA backend |
//! | `cases` | a scenario for each planted bug, and random programs |
//! | `counting` | a host allocator that counts what is held, on accounts |
//! | `counted` | the simulated device, whose memory is counted apart |
//! | `compiled` | allocators behind a trait object, so that all of their code is made here |
//! | `effort` | how much of what is random or exhaustive is run |
//! | `quiet` | panics that are expected, of which nothing is printed |
//! | `worlds` | every small program of a family, up to symmetry |
//!
//! It knows neither which tests there are nor which bugs are planted. The model checkers' builds, and those with
//! `--cfg millpond_rig_only`, have [`rig`] and [`flight`] alone: what they run is theirs.

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::should_implement_trait,
    reason = "for tests of this repository, which stand beside it and fail by either"
)]

#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod cases;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod compiled;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod counted;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod counting;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod dice;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod effort;
#[cfg(not(loom))]
pub mod flight;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod on_cuda;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod on_sim;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod quiet;
#[cfg(not(loom))]
pub mod rig;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod suite;
#[cfg(not(any(loom, shuttle, millpond_rig_only)))]
pub mod worlds;
