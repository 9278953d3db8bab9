//! Copies of rows with a stride: a window of a matrix, a padded image.
//!
//! A plane is some columns of some rows: `width` elements, then the next row `pitch` elements further on.

use super::source::StableSource;
use super::token::{Download, Refused, Upload};
use super::{noted, same_shape};
use crate::allocator::Stream;
use crate::allocator::access::{Mark, operate};
use crate::array::{DeviceView, DeviceViewMut, Shape};
use crate::driver::{Called, CopySide, Driver, Pitched};
use crate::error::{Error, Mismatch, Side};
use bytemuck::Pod;
use core::fmt;

/// Rows of a view with a stride, to read.
#[derive(Clone)]
pub struct Plane<'a, T: Pod, D: Driver> {
    view: DeviceView<'a, T, D>,
    window: Window,
}

/// Rows of a view with a stride, to write.
pub struct PlaneMut<'a, T: Pod, D: Driver> {
    view: DeviceViewMut<'a, T, D>,
    window: Window,
}

/// In elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Window {
    rows: usize,
    width: usize,
    pitch: usize,
}

impl Window {
    fn new<T>(elements: usize, rows: usize, width: usize, pitch: usize) -> Result<Window, Error> {
        let last = rows.saturating_sub(1).checked_mul(pitch).and_then(|start| start.checked_add(width));
        let needed = if rows == 0 || width == 0 { Some(0) } else { last };
        if width <= pitch && needed.is_some_and(|n| n <= elements) {
            return Ok(Window { rows, width, pitch });
        }
        let element = core::any::type_name::<T>();
        Err(Mismatch {
            verb: "plane",
            one: Side { what: "the view", element, shape: vec![elements] },
            other: Side { what: "the plane, with its pitch for a width,", element, shape: vec![rows, pitch] },
            advice: "all but the padding of the last row must lie in the view, and a row in its pitch",
        }
        .into())
    }
    fn shape(self) -> Shape {
        Shape::from([self.rows, self.width])
    }
    /// Bytes from row to row. With at most one row, or rows of no elements, the pitch is not used and may be any
    /// number; otherwise it lies in the view.
    fn bytes_apart<T>(self) -> u64 {
        if self.rows <= 1 || self.width == 0 {
            self.packed::<T>()
        } else {
            (self.pitch * size_of::<T>()) as u64
        }
    }
    fn copy<T>(self, to: (CopySide, u64), from: (CopySide, u64)) -> Pitched {
        let (width, rows) = (self.packed::<T>(), self.rows as u64);
        Pitched { to: to.0, to_pitch: to.1, from: from.0, from_pitch: from.1, width, rows }
    }
    /// Bytes from row to row if they are contiguous. Without rows the width may be any number.
    fn packed<T>(self) -> u64 {
        self.width.saturating_mul(size_of::<T>()) as u64
    }
}

impl<'a, T: Pod, D: Driver> DeviceView<'a, T, D> {
    /// `rows` rows of `width` elements, `pitch` elements apart, from the view's first element.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they do not lie in the view, or a row is longer than the pitch.
    pub fn plane(self, rows: usize, width: usize, pitch: usize) -> Result<Plane<'a, T, D>, Error> {
        let window = Window::new::<T>(self.len(), rows, width, pitch)?;
        Ok(Plane { view: self, window })
    }
}

impl<'a, T: Pod, D: Driver> DeviceViewMut<'a, T, D> {
    /// `rows` rows of `width` elements, `pitch` elements apart, from the view's first element.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they do not lie in the view, or a row is longer than the pitch.
    pub fn plane(self, rows: usize, width: usize, pitch: usize) -> Result<PlaneMut<'a, T, D>, Error> {
        let window = Window::new::<T>(self.len(), rows, width, pitch)?;
        Ok(PlaneMut { view: self, window })
    }
}

impl<T: Pod, D: Driver> Plane<'_, T, D> {
    /// Rows and columns.
    pub fn shape(&self) -> Shape {
        self.window.shape()
    }
    /// Queues a copy of the rows, packed, into fresh pinned memory, as [`DeviceView::to_pinned`].
    ///
    /// # Errors
    /// No pinned memory, a stream of another device, a capturing stream, the driver's: [`DeviceView::to_pinned`].
    #[track_caller]
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    pub fn to_pinned(&self, stream: &Stream<D>) -> Result<Download<T, D>, Error> {
        let _called = Called::<D>::here();
        let window = self.window;
        let mut target = stream.allocator().pinned_uninit::<T>(self.shape())?;
        let from = (CopySide::Device(self.view.address()), window.bytes_apart::<T>());
        let host = target.as_mut_ptr();
        let to = (CopySide::Pinned(host.cast()), window.packed::<T>());
        let copy = window.copy::<T>(to, from);
        if copy.bytes() == 0 {
            return Ok(Download::of_nothing(target, stream));
        }
        let down = Download::fly(target, stream, |_| {
            operate(stream, &[self.view.touch()], Mark::Each, |driver, native| {
                // SAFETY: the target is as long as the rows, and the token owns it until the copy is done; the source lies
                // in an allocation that is reused only behind this use.
                noted(unsafe { driver.copy_rows(&copy, native) }, stream, host)
            })
        });
        Ok(down?)
    }
}

impl<T: Pod, D: Driver> PlaneMut<'_, T, D> {
    /// Rows and columns.
    pub fn shape(&self) -> Shape {
        self.window.shape()
    }
    /// Queues a copy from pinned memory, where the rows are packed, as [`DeviceViewMut::copy_from`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless the source's shape is rows and width; a stream of another device, a capturing stream, the driver's:
    /// [`DeviceViewMut::copy_from`]. All of these return the source.
    #[track_caller]
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    pub fn copy_from<P: StableSource<Item = T>>(
        &mut self,
        source: P,
        stream: &Stream<D>,
    ) -> Result<Upload<P, D>, Refused<P>> {
        let _called = Called::<D>::here();
        let window = self.window;
        let sides = (
            ("the target, rows on the device,", self.shape()),
            ("the source, in host memory,", source.shape()),
        );
        if let Err(e) = same_shape::<T>("copy_from", sides.0, sides.1) {
            return Err(Refused::unused(source, e));
        }
        let to = (CopySide::Device(self.view.address()), window.bytes_apart::<T>());
        if window.packed::<T>() == 0 || window.rows == 0 {
            return Ok(Upload::of_nothing(source, stream));
        }
        Upload::fly(source, stream, |source| {
            let from = (CopySide::Pinned(source.first().cast_mut().cast()), window.packed::<T>());
            let copy = window.copy::<T>(to, from);
            operate(stream, &[self.view.touch()], Mark::Each, |driver, native| {
                // SAFETY: the source is as long as the rows, only read, and the token owns it until the copy is done; the
                // target lies in an allocation that is reused only behind this use, and this borrow is exclusive.
                noted(unsafe { driver.copy_rows(&copy, native) }, stream, source.first())
            })
        })
    }
    /// Queues a copy from other rows of the device's memory, as [`DeviceViewMut::copy_from_device`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless both shapes are equal; an array or a stream of another device, a capturing stream, the driver's:
    /// [`DeviceViewMut::copy_from_device`].
    #[track_caller]
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    pub fn copy_from_plane(&mut self, source: &Plane<'_, T, D>, stream: &Stream<D>) -> Result<(), Error> {
        let _called = Called::<D>::here();
        same_shape::<T>("copy_from_plane", ("the target", self.shape()), ("the source", source.shape()))?;
        let to = (CopySide::Device(self.view.address()), self.window.bytes_apart::<T>());
        let from = (CopySide::Device(source.view.address()), source.window.bytes_apart::<T>());
        let copy = self.window.copy::<T>(to, from);
        if copy.bytes() == 0 {
            return Ok(());
        }
        let touches = [source.view.touch(), self.view.touch()];
        let queued = operate(stream, &touches, Mark::Each, |driver, native| {
            // SAFETY: both lie in allocations that are reused only behind this use; borrows keep them apart.
            unsafe { driver.copy_rows(&copy, native) }
        });
        queued.map(drop)
    }
}

impl<T: Pod, D: Driver> fmt::Debug for Plane<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plane({:?} of {:?})", self.window, self.view)
    }
}
impl<T: Pod, D: Driver> fmt::Debug for PlaneMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlaneMut({:?} of {:?})", self.window, self.view)
    }
}
