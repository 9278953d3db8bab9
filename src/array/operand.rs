//! What a function accepts as an array: all of one, a part of one, or a type of the program's that holds one.
//!
//! An array that is read is passed as `&x`, a part as `x.slice(..)`. One that is written is always behind a `&mut`: as `&mut y`, a part as
//! `&mut y.slice_mut(..)`, and a `y` that already is a `&mut` as `y`, which is reborrowed for each call. It does not know the functions.

use super::{DeviceArray, DeviceView, DeviceViewMut};
use crate::driver::Driver;
use bytemuck::Pod;

/// Device memory that a function reads: `&array`, a view, or a reference to one.
///
/// For a type of the program's that holds an array, implement it for a reference to that type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not device memory that can be read here",
    label = "neither `&array` nor a view of one",
    note = "pass all of an array as `&x`, a part as `x.slice(..)` or `x.rows(..)`",
    note = "host memory comes to the device first: `gpu.array_from_slice(&values, &stream)?`, or `gpu.array_from_pinned(pinned, &stream)?`"
)]
pub trait IntoView<'a> {
    /// The type of its elements.
    type Item: Pod;
    /// The device that it is on.
    type Device: Driver;
    /// The elements, to read.
    fn into_view(self) -> DeviceView<'a, Self::Item, Self::Device>;
}

/// Device memory that a function writes, behind a `&mut`: an array, or a view to write.
///
/// Functions take it as `&mut impl AsViewMut`, so that a `&mut` of the program's is reborrowed for each call and not moved into
/// the first one:
///
/// ```
/// use millpond::{Allocator, Config, DeviceArray, Stream, kernel, units::GIB};
/// use millpond_sim::Sim;
///
/// fn step(x: &DeviceArray<f32, Sim>, y: &mut DeviceArray<f32, Sim>, on: &Stream<Sim>) -> Result<(), millpond::Error> {
///     for _ in 0..3 {
///         kernel::saxpy(2.0, x, y, on)?;                    // no `&mut *y`
///     }
///     kernel::fill(&mut y.slice_mut(..1), 0.0, on)
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let (x, mut y) = (gpu.array_from_slice(&[1.0, 2.0, 3.0], &stream)?, gpu.zeros(3, &stream)?);
/// step(&x, &mut y, &stream)?;
/// assert_eq!(y.to_vec(&stream)?, [0.0, 12.0, 18.0]);
/// # Ok(()) }
/// ```
///
/// Implement it for a type of the program's that holds an array, to pass that type itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not device memory that can be written here",
    label = "neither an array nor a view to write",
    note = "pass all of an array as `&mut y`, a part as `&mut y.slice_mut(..)` or `&mut y.rows_mut(..)`",
    note = "to get a result to the host, write an array and copy that: `y.to_pinned(&stream)?.wait()?`"
)]
pub trait AsViewMut {
    /// The type of its elements.
    type Item: Pod;
    /// The device that it is on.
    type Device: Driver;
    /// The elements, to write.
    fn as_view_mut(&mut self) -> DeviceViewMut<'_, Self::Item, Self::Device>;
}

macro_rules! read {
    ($($of:ty, |$it:ident| $view:expr;)*) => {$(
        impl<'a, T: Pod, D: Driver> IntoView<'a> for $of {
            type Item = T;
            type Device = D;
            fn into_view(self) -> DeviceView<'a, T, D> {
                let $it = self;
                $view
            }
        }
    )*};
}
read! {
    &'a DeviceArray<T, D>, |array| array.view();
    &'a &mut DeviceArray<T, D>, |array| array.view();
    DeviceView<'a, T, D>, |view| view;
    &DeviceView<'a, T, D>, |view| *view;
    &'a DeviceViewMut<'_, T, D>, |view| view.view();
}

impl<T: Pod, D: Driver> AsViewMut for DeviceArray<T, D> {
    type Item = T;
    type Device = D;
    fn as_view_mut(&mut self) -> DeviceViewMut<'_, T, D> {
        self.view_mut()
    }
}
impl<T: Pod, D: Driver> AsViewMut for DeviceViewMut<'_, T, D> {
    type Item = T;
    type Device = D;
    fn as_view_mut(&mut self) -> DeviceViewMut<'_, T, D> {
        self.view_mut()
    }
}
impl<V: AsViewMut + ?Sized> AsViewMut for &mut V {
    type Item = V::Item;
    type Device = V::Device;
    fn as_view_mut(&mut self) -> DeviceViewMut<'_, V::Item, V::Device> {
        (**self).as_view_mut()
    }
}
