//! Borrowed parts of device arrays. Rust's borrows separate what is written: two views to write never overlap.
//!
//! Views know their array's uses; they do not know extents: an operation on one part waits for those on another part of the
//! same array.

use super::shape::{Shape, resolve};
use crate::allocator::Stream;
use crate::allocator::access::{Intent, Mark, Touch, Tracked, operate};
use crate::driver::{Called, Driver};
use crate::error::{Error, Mismatch, Side};
use crate::units::{Addr, AllocationId};
use bytemuck::Pod;
use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeBounds;

/// Some elements of a [`DeviceArray`](crate::DeviceArray), to read.
///
/// ```
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let (copy, work) = (gpu.stream()?, gpu.stream()?);
/// let (x, _sent) = gpu.array_from_pinned(gpu.pinned_from_fn([4, 3], |i| i as i32)?, &copy)?;
/// let last = x.rows(2..);                                   // two rows of three
/// assert_eq!(last.shape().lengths(), [2, 3]);
/// assert_eq!(last.to_vec(&work)?, [6, 7, 8, 9, 10, 11]);    // `work` waits for the copy
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DeviceView<'a, T: Pod, D: Driver> {
    of: &'a Tracked<D>,
    addr: Addr,
    shape: Shape,
    /// It was borrowed through all of its array: no part of that is borrowed to write meanwhile.
    whole: bool,
    elements: PhantomData<&'a [T]>,
}

/// Some elements of a [`DeviceArray`](crate::DeviceArray), to write.
///
/// ```
/// use millpond::{Allocator, Config, kernel, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let mut x = gpu.zeros::<f32>(5, &stream)?;
/// let (mut left, mut right) = x.split_at_mut(2);            // two borrows that do not overlap
/// kernel::fill(&mut left, 1.0, &stream)?;
/// kernel::iota(&mut right, 7.0, 1.0, &stream)?;
/// assert_eq!(x.to_vec(&stream)?, [1.0, 1.0, 7.0, 8.0, 9.0]);
/// # Ok(()) }
/// ```
pub struct DeviceViewMut<'a, T: Pod, D: Driver> {
    of: &'a Tracked<D>,
    addr: Addr,
    shape: Shape,
    /// It is all of its array: nothing else can touch that meanwhile.
    whole: bool,
    elements: PhantomData<&'a mut [T]>,
}

impl<T: Pod, D: Driver> Copy for DeviceView<'_, T, D> {}

/// The address of an element.
fn at<T>(base: Addr, index: usize) -> Addr {
    Addr(base.0 + (index * size_of::<T>()) as u64)
}

/// What both kinds of view report about themselves.
macro_rules! extent {
    ($view:ident) => {
        impl<T: Pod, D: Driver> $view<'_, T, D> {
            /// The first byte.
            pub fn address(&self) -> Addr {
                self.addr
            }
            /// How many elements.
            pub fn len(&self) -> usize {
                self.shape.elements().unwrap_or(0)
            }
            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
            /// The lengths of its dimensions.
            pub fn shape(&self) -> Shape {
                self.shape
            }
            /// Its bytes.
            pub fn size_bytes(&self) -> u64 {
                (self.len() * size_of::<T>()) as u64
            }
            /// Which allocation it lies in; `None` for no bytes, and for external memory.
            pub fn id(&self) -> Option<AllocationId> {
                self.of.id()
            }
        }
    };
}
extent!(DeviceView);
extent!(DeviceViewMut);

/// How many elements of another type the bytes of a view are.
fn recast<T: Pod, U: Pod>(addr: Addr, shape: Shape, bytes: u64) -> Result<Shape, Error> {
    let (size, align) = (size_of::<U>() as u64, align_of::<U>() as u64);
    let whole = size > 0 && bytes.is_multiple_of(size);
    if whole && (bytes == 0 || addr.0.is_multiple_of(align)) {
        return Ok(Shape::line((bytes / size) as usize));
    }
    let one = Side { what: "the view", element: core::any::type_name::<T>(), shape: shape.to_vec() };
    let elements = vec![bytes.checked_div(size).unwrap_or(0) as usize];
    let other = Side { what: "its bytes, cast", element: core::any::type_name::<U>(), shape: elements };
    let advice =
        "a view is cast if its bytes are whole elements of the new type and aligned for it: slice it so";
    Err(Mismatch { verb: "cast", one, other, advice }.into())
}

impl<'a, T: Pod, D: Driver> DeviceView<'a, T, D> {
    pub(super) fn new(of: &'a Tracked<D>, addr: Addr, shape: Shape, whole: bool) -> DeviceView<'a, T, D> {
        DeviceView { of, addr, shape, whole, elements: PhantomData }
    }
    /// Its part in an operation.
    pub(crate) fn touch(&self) -> Touch<'a, D> {
        Touch { of: self.of, intent: if self.whole { Intent::ReadWhole } else { Intent::Read } }
    }
    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if that has another number of elements.
    pub fn reshape(self, shape: impl Into<Shape>) -> Result<DeviceView<'a, T, D>, Error> {
        let shape = self.shape.reshaped::<T>("the view", shape.into())?;
        Ok(DeviceView { shape, ..self })
    }
    /// The same bytes as elements of another type, in one dimension.
    ///
    /// ```
    /// # use millpond::{Allocator, Config, units::GIB};
    /// # use millpond_sim::Sim;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
    /// # let stream = gpu.stream()?;
    /// let bytes = gpu.array_from_slice(&[1_u8, 0, 2, 0, 3, 0], &stream)?;
    /// assert_eq!(bytes.view().cast::<u16>()?.to_vec(&stream)?, [1, 2, 3]);
    /// assert!(bytes.view().cast::<u32>().is_err());                // six bytes
    /// assert!(bytes.slice(1..5).cast::<u16>().is_err());           // at an odd address
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the bytes are no whole number of such elements, or not aligned for them.
    pub fn cast<U: Pod>(self) -> Result<DeviceView<'a, U, D>, Error> {
        let shape = recast::<T, U>(self.addr, self.shape, self.size_bytes())?;
        Ok(DeviceView { of: self.of, addr: self.addr, shape, whole: self.whole, elements: PhantomData })
    }
    /// Some of its elements, in memory order.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    #[must_use]
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> DeviceView<'a, T, D> {
        let range = resolve(&range, self.len());
        DeviceView { addr: at::<T>(self.addr, range.start), shape: Shape::line(range.len()), ..self }
    }
    /// Some of its rows.
    ///
    /// # Panics
    /// If the range does not lie in the first dimension.
    #[must_use]
    #[track_caller]
    pub fn rows(self, range: impl RangeBounds<usize>) -> DeviceView<'a, T, D> {
        let range = resolve(&range, self.shape.rows());
        let addr = at::<T>(self.addr, range.start * self.shape.row_elements());
        DeviceView { addr, shape: self.shape.with_rows(range.len()), ..self }
    }
    /// The elements before `middle` and those from it on.
    ///
    /// # Panics
    /// If `middle` is beyond the end.
    #[must_use]
    #[track_caller]
    pub fn split_at(self, middle: usize) -> (DeviceView<'a, T, D>, DeviceView<'a, T, D>) {
        (self.slice(..middle), self.slice(middle..))
    }
}

impl<'a, T: Pod, D: Driver> DeviceViewMut<'a, T, D> {
    pub(super) fn new(of: &'a Tracked<D>, addr: Addr, shape: Shape) -> DeviceViewMut<'a, T, D> {
        DeviceViewMut { of, addr, shape, whole: true, elements: PhantomData }
    }
    /// Its part in an operation.
    pub(crate) fn touch(&self) -> Touch<'_, D> {
        Touch { of: self.of, intent: if self.whole { Intent::WriteWhole } else { Intent::Write } }
    }
    /// Its part in an operation, for as long as the array is borrowed.
    pub(crate) fn into_touch(self) -> Touch<'a, D> {
        Touch { of: self.of, intent: if self.whole { Intent::WriteWhole } else { Intent::Write } }
    }
    /// The same, to read.
    pub fn view(&self) -> DeviceView<'_, T, D> {
        DeviceView::new(self.of, self.addr, self.shape, self.whole)
    }
    /// The same, for a shorter time.
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T, D> {
        DeviceViewMut {
            of: self.of,
            addr: self.addr,
            shape: self.shape,
            whole: self.whole,
            elements: PhantomData,
        }
    }
    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if that has another number of elements.
    pub fn reshape(self, shape: impl Into<Shape>) -> Result<DeviceViewMut<'a, T, D>, Error> {
        let shape = self.shape.reshaped::<T>("the view", shape.into())?;
        Ok(DeviceViewMut { shape, ..self })
    }
    /// The same bytes as elements of another type, in one dimension.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the bytes are no whole number of such elements, or not aligned for them.
    pub fn cast<U: Pod>(self) -> Result<DeviceViewMut<'a, U, D>, Error> {
        let shape = recast::<T, U>(self.addr, self.shape, self.size_bytes())?;
        Ok(DeviceViewMut { of: self.of, addr: self.addr, shape, whole: self.whole, elements: PhantomData })
    }
    fn part(&self, first: usize, shape: Shape) -> DeviceViewMut<'a, T, D> {
        DeviceViewMut {
            of: self.of,
            addr: at::<T>(self.addr, first),
            shape,
            whole: false,
            elements: PhantomData,
        }
    }
    /// Some of its elements, in memory order.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    #[must_use]
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> DeviceViewMut<'a, T, D> {
        let range = resolve(&range, self.len());
        self.part(range.start, Shape::line(range.len()))
    }
    /// Some of its rows.
    ///
    /// # Panics
    /// If the range does not lie in the first dimension.
    #[must_use]
    #[track_caller]
    pub fn rows(self, range: impl RangeBounds<usize>) -> DeviceViewMut<'a, T, D> {
        let range = resolve(&range, self.shape.rows());
        self.part(range.start * self.shape.row_elements(), self.shape.with_rows(range.len()))
    }
    /// The elements before `middle` and those from it on: they do not overlap, so both may be written.
    ///
    /// # Panics
    /// If `middle` is beyond the end.
    #[must_use]
    #[track_caller]
    pub fn split_at(self, middle: usize) -> (DeviceViewMut<'a, T, D>, DeviceViewMut<'a, T, D>) {
        let tail = resolve(&(middle..), self.len());
        (self.part(0, Shape::line(middle)), self.part(middle, Shape::line(tail.len())))
    }

    /// Queues a fill of all bytes with one value, on `stream`, behind what it conflicts with.
    ///
    /// # Errors
    /// A stream of another device, a capturing stream, the driver's: nothing was then queued.
    #[track_caller]
    #[allow(unsafe_code, reason = "fills work on raw addresses")]
    pub fn fill_bytes(&mut self, value: u8, stream: &Stream<D>) -> Result<(), Error> {
        let _called = Called::<D>::here();
        let (addr, bytes) = (self.addr, self.size_bytes());
        if bytes == 0 {
            return Ok(());
        }
        let queued = operate(stream, &[self.touch()], Mark::Shared, |driver, native| {
            // SAFETY: the range lies in the allocation, which is reused only behind this use; `self` has exclusive access.
            unsafe { driver.fill(addr, value, bytes, native) }
        });
        queued.map(drop)
    }
}

impl<T: Pod, D: Driver> fmt::Debug for DeviceView<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DeviceView<{}>({:?} at {}, {:?})",
            core::any::type_name::<T>(),
            self.shape,
            self.addr,
            self.of
        )
    }
}
impl<T: Pod, D: Driver> fmt::Debug for DeviceViewMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DeviceViewMut<{}>({:?} at {}, {:?})",
            core::any::type_name::<T>(),
            self.shape,
            self.addr,
            self.of
        )
    }
}
impl<'a, T: Pod, D: Driver> From<&'a super::DeviceArray<T, D>> for DeviceView<'a, T, D> {
    fn from(array: &'a super::DeviceArray<T, D>) -> Self {
        array.view()
    }
}
impl<'a, T: Pod, D: Driver> From<&'a mut super::DeviceArray<T, D>> for DeviceViewMut<'a, T, D> {
    fn from(array: &'a mut super::DeviceArray<T, D>) -> Self {
        array.view_mut()
    }
}
