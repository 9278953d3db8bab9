//! Allocators around allocators, for frameworks and tests: a limit ([`Limited`]), a count ([`Counted`]), a log ([`Logged`]).
//!
//! Each is a [`GpuAlloc`] around another one, so they compose in any order and any number. Each sees what its users request of
//! it, which is not all that the device's allocator does. A wrapper's record of an allocation travels with the allocation, so that it
//! may be dropped on any thread, and after the wrapper is gone.
//!
//! They do not know pools, drivers, nor each other.

mod counted;
mod limited;
mod logged;

pub use counted::{Counted, Counts};
pub use limited::Limited;
pub use logged::{Call, Logged};

/// The methods that a wrapper passes on unchanged.
macro_rules! passed_on {
    () => {
        fn device(&self) -> crate::units::DeviceId {
            self.inner.device()
        }
        fn stream(&self) -> Result<crate::erased::AnyStream, crate::error::Error> {
            self.inner.stream()
        }
        fn stream_of(&self, id: crate::units::StreamId) -> Option<crate::erased::AnyStream> {
            self.inner.stream_of(id)
        }
        fn report(&self) -> crate::report::Report {
            self.inner.report()
        }
        fn usage(&self) -> crate::report::Usage {
            self.inner.usage()
        }
    };
}
use passed_on;

#[cfg(doc)]
use crate::erased::GpuAlloc;
