//! Typed memory: arrays on the device and in pinned host memory, their views and shapes.
//!
//! A [`DeviceArray`] is an allocation with an element type and a shape that knows which streams touched it. Each operation
//! on it names a stream; if another stream touched the array before, exactly the missing waits are inserted, on the
//! device. It may be dropped at any time on any thread, and its bytes are reused only in order. A [`PinnedArray`] is a
//! slice of page-locked host memory; while the device uses it, the copy owns it. Views borrow: two operations may write
//! parts that do not overlap; overlapping parts cannot be borrowed twice.
//!
//! It does not know how copies are made or waited for, what a kernel is, chunks or markers. There is no current stream: streams are arguments.

#[cfg(feature = "allocator-api2")]
mod collections;
mod device;
mod external;
mod operand;
mod pinned;
mod pinned_view;
mod registered;
mod shape;
mod view;

#[cfg(feature = "allocator-api2")]
pub use collections::PinnedAllocator;
pub use device::DeviceArray;
pub use external::ExternalMemory;
pub use operand::{AsViewMut, IntoView};
pub use pinned::PinnedArray;
pub use pinned_view::{PinnedView, PinnedViewMut};
pub use registered::RegisteredArray;
pub(crate) use shape::resolve;
pub use shape::{MOST_DIMENSIONS, Shape};
pub use view::{DeviceView, DeviceViewMut};

use crate::error::Error;
use bytemuck::Pod;

/// Arrays can be sent to and shared by any threads, whatever their memory.
#[cfg(test)]
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<DeviceArray<u8, millpond_sim::null::Null>>();
    is_shared::<PinnedArray<u8, millpond_sim::null::Null>>();
};

/// The bytes of an array.
///
/// # Errors
/// [`Error::Overflow`].
pub(crate) fn bytes_of<T: Pod>(shape: Shape) -> Result<u64, Error> {
    // The driver's alignment suffices for every type.
    const { assert!(align_of::<T>() <= 512, "memory of the device is aligned to 512 bytes") };
    let bytes = shape.elements().and_then(|n| (n as u64).checked_mul(size_of::<T>() as u64));
    let overflow = || Error::Overflow { shape: shape.to_vec(), element_bytes: size_of::<T>() };
    bytes.filter(|&b| isize::try_from(b).is_ok()).ok_or_else(overflow)
}
