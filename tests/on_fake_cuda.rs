//! The conformance suite on the CUDA backend over the stand-in driver, unsafe code and all, with no GPU: judged by the
//! backend's own checks, by the simulated device's oracle, and by what is left in the driver.
//!
//! The stand-in is built by `cargo test --workspace` or `.ci/fake-cuda`; where it is not, this says so.
#![cfg(feature = "cuda")]

#[path = "fake_libcuda/remote.rs"]
mod remote;

use millpond::cuda::Cuda;
use millpond_testkit::on_cuda::{Judge, OnCuda};
use remote::{Fake, When};

impl Judge for Fake {
    fn finish(self: Box<Self>) -> Result<(), String> {
        match (self.verdict(), self.leaks()) {
            (None, None) => Ok(()),
            (verdict, leaks) => {
                Err(format!("{}\nleft: {}", verdict.unwrap_or_default(), leaks.unwrap_or_default()))
            }
        }
    }
}

/// A device of 4 GiB with this schedule, if the stand-in was built.
fn bench(when: When) -> Option<OnCuda> {
    let fake = remote::fake_or_skip(4 << 30, 1, when)?;
    Some(OnCuda::new(Cuda::new(0).expect("the stand-in's device"), fake))
}

mod early {
    millpond_testkit::conformance!(crate::bench(crate::When::Earliest));
}
mod late {
    millpond_testkit::conformance!(crate::bench(crate::When::Latest));
}
mod random {
    millpond_testkit::conformance!(crate::bench(crate::When::Random(7)));
}
