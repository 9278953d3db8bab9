//! The conformance suite on a GPU, where there is one: the allocator's proof on hardware, and the hardware's word on what
//! the simulated device claims. Elsewhere it says why not.
//!
//! One test runs at a time, because some facts are about all kernels of a device and all captures of a context.
#![cfg(feature = "cuda")]

use millpond::cuda::Cuda;
use millpond_testkit::on_cuda::{Judge, OnCuda};
use std::sync::{Mutex, MutexGuard, PoisonError};

static TURN: Mutex<()> = Mutex::new(());

/// The device, held by one test.
struct Turn(#[allow(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

impl Judge for Turn {
    /// Hardware has no opinion of its own.
    fn finish(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

fn bench() -> Option<OnCuda> {
    let turn = Turn(TURN.lock().unwrap_or_else(PoisonError::into_inner));
    match Cuda::new(0) {
        Ok(cuda) => Some(OnCuda::new(cuda, turn)),
        Err(why) => {
            millpond_testkit::suite::say(&format!("SKIPPED: no GPU to run on: {why}"));
            None
        }
    }
}

millpond_testkit::conformance!(crate::bench());
