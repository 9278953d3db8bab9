//! Borrowed parts of pinned arrays, for copies that borrow. Unlike slices they are known to be pinned;
//! they do not know the device.

use super::shape::{Shape, resolve};
use bytemuck::Pod;
use core::fmt;
use core::ops::RangeBounds;

/// Some elements of a [`PinnedArray`](crate::PinnedArray), for a copy to read.
#[derive(Clone, Copy)]
pub struct PinnedView<'a, T: Pod> {
    elements: &'a [T],
    shape: Shape,
}

/// Some elements of a [`PinnedArray`](crate::PinnedArray), for a copy to write.
pub struct PinnedViewMut<'a, T: Pod> {
    elements: &'a mut [T],
    shape: Shape,
}

impl<'a, T: Pod> PinnedView<'a, T> {
    pub(super) fn new(elements: &'a [T], shape: Shape) -> PinnedView<'a, T> {
        PinnedView { elements, shape }
    }
    /// The lengths of its dimensions.
    pub fn shape(&self) -> Shape {
        self.shape
    }
    /// Some of its elements, in memory order.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    #[must_use]
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> PinnedView<'a, T> {
        let range = resolve(&range, self.elements.len());
        PinnedView { shape: Shape::line(range.len()), elements: &self.elements[range] }
    }
    pub(crate) fn first(&self) -> *const T {
        self.elements.as_ptr()
    }
}

impl<'a, T: Pod> PinnedViewMut<'a, T> {
    pub(super) fn new(elements: &'a mut [T], shape: Shape) -> PinnedViewMut<'a, T> {
        PinnedViewMut { elements, shape }
    }
    /// The lengths of its dimensions.
    pub fn shape(&self) -> Shape {
        self.shape
    }
    /// Some of its elements, in memory order.
    ///
    /// # Panics
    /// If the range does not lie in the view.
    #[must_use]
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<usize>) -> PinnedViewMut<'a, T> {
        let range = resolve(&range, self.elements.len());
        PinnedViewMut { shape: Shape::line(range.len()), elements: &mut self.elements[range] }
    }
    /// The elements before `middle` and those from it on.
    ///
    /// # Panics
    /// If `middle` is beyond the end.
    #[must_use]
    #[track_caller]
    pub fn split_at(self, middle: usize) -> (PinnedViewMut<'a, T>, PinnedViewMut<'a, T>) {
        let (low, high) = self.elements.split_at_mut(middle);
        let line = |part: &[T]| Shape::line(part.len());
        (
            PinnedViewMut { shape: line(low), elements: low },
            PinnedViewMut { shape: line(high), elements: high },
        )
    }
    pub(crate) fn first(self) -> *mut T {
        self.elements.as_mut_ptr()
    }
}

impl<T: Pod> fmt::Debug for PinnedView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedView({:?})", self.shape)
    }
}
impl<T: Pod> fmt::Debug for PinnedViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedViewMut({:?})", self.shape)
    }
}
