//! Collections in pinned memory as sources of copies (feature `allocator-api2`). It does not know how their memory is found.

use super::source::StableSource;
use crate::array::{PinnedAllocator, Shape};
use crate::driver::Driver;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use bytemuck::Pod;

#[allow(
    unsafe_code,
    reason = "the contract holds: a vector's elements stay where they are until it is written or dropped"
)]
// SAFETY: the elements are in a block of the pinned pool that is the vector's; moving the vector moves none, and only `&mut` writes or moves them.
unsafe impl<T: Pod + Send, D: Driver> StableSource for Vec<T, PinnedAllocator<D>> {
    type Item = T;
    fn first(&self) -> *const T {
        self.as_ptr()
    }
    fn shape(&self) -> Shape {
        Shape::line(self.len())
    }
}

#[allow(
    unsafe_code,
    reason = "the contract holds: a box's elements stay where they are until it is written or dropped"
)]
// SAFETY: as for a vector.
unsafe impl<T: Pod + Send, D: Driver> StableSource for Box<[T], PinnedAllocator<D>> {
    type Item = T;
    fn first(&self) -> *const T {
        self.as_ptr()
    }
    fn shape(&self) -> Shape {
        Shape::line(self.len())
    }
}
