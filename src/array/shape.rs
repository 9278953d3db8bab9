//! How many elements there are, dimension by dimension. It does not know elements, memory or strides: arrays are
//! contiguous, the last dimension runs fastest.

use crate::error::{Error, Mismatch, Side};
use core::fmt;

/// The most dimensions a [`Shape`] can have.
pub const MOST_DIMENSIONS: usize = 6;

/// The lengths of an array's dimensions, slowest first. Made from a number, from an array of numbers, or, checked, from a slice.
///
/// ```
/// use millpond::Shape;
/// assert_eq!(Shape::from([2, 3]).elements(), Some(6));
/// assert_eq!(Shape::from(7).to_string(), "[7]");
/// assert_eq!(Shape::from([usize::MAX, 2]).elements(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    lengths: [usize; MOST_DIMENSIONS],
    dimensions: u8,
}

impl Shape {
    /// One dimension.
    pub const fn line(elements: usize) -> Shape {
        let mut lengths = [0; MOST_DIMENSIONS];
        lengths[0] = elements;
        Shape { lengths, dimensions: 1 }
    }
    /// The lengths, slowest dimension first. None at all is a single element.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths[..usize::from(self.dimensions)]
    }
    /// The lengths as a vector.
    pub fn to_vec(&self) -> Vec<usize> {
        self.lengths().to_vec()
    }
    /// How many elements, or `None` if a `usize` cannot count them.
    pub fn elements(&self) -> Option<usize> {
        // A length of 0 makes it 0, however large the others are.
        if self.lengths().contains(&0) {
            return Some(0);
        }
        self.lengths().iter().try_fold(1usize, |n, &len| n.checked_mul(len))
    }
    /// How many rows: the first length; 1 if there is no dimension.
    pub fn rows(&self) -> usize {
        self.lengths().first().copied().unwrap_or(1)
    }
    /// This shape with another number of rows.
    pub(super) fn with_rows(mut self, rows: usize) -> Shape {
        self.lengths[0] = rows;
        self.dimensions = self.dimensions.max(1);
        self
    }
    /// Elements of one row. Without rows the product may overflow: then the largest number.
    pub(super) fn row_elements(&self) -> usize {
        let lengths = self.lengths().get(1..).unwrap_or_default();
        if lengths.contains(&0) { 0 } else { lengths.iter().fold(1, |n: usize, &len| n.saturating_mul(len)) }
    }

    /// Fails unless `to` has as many elements.
    pub(super) fn reshaped<T>(self, what: &'static str, to: Shape) -> Result<Shape, Error> {
        if to.elements() == self.elements() {
            return Ok(to);
        }
        let element = core::any::type_name::<T>();
        Err(Mismatch {
            verb: "reshape",
            one: Side { what, element, shape: self.to_vec() },
            other: Side { what: "the new shape", element, shape: to.to_vec() },
            advice: "a reshape keeps the number of elements: slice the array, or make a new one",
        }
        .into())
    }
}

impl From<usize> for Shape {
    fn from(elements: usize) -> Shape {
        Shape::line(elements)
    }
}

/// For dimensions that are known only when the program runs.
///
/// ```
/// use millpond::Shape;
/// let lengths = vec![4, 3, 2];
/// assert_eq!(Shape::try_from(&lengths[..])?, Shape::from([4, 3, 2]));
/// assert!(Shape::try_from(&[1; 7][..]).is_err());
/// # Ok::<(), millpond::Error>(())
/// ```
impl TryFrom<&[usize]> for Shape {
    /// [`Error::TooManyDimensions`] only.
    type Error = Error;
    fn try_from(given: &[usize]) -> Result<Shape, Error> {
        let mut lengths = [0; MOST_DIMENSIONS];
        let Some(used) = lengths.get_mut(..given.len()) else {
            return Err(Error::TooManyDimensions { requested: given.len(), max: MOST_DIMENSIONS });
        };
        used.copy_from_slice(given);
        Ok(Shape { lengths, dimensions: given.len() as u8 })
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(given: [usize; N]) -> Shape {
        const { assert!(N <= MOST_DIMENSIONS, "a shape has at most six dimensions") };
        let mut lengths = [0; MOST_DIMENSIONS];
        lengths[..N].copy_from_slice(&given);
        Shape { lengths, dimensions: N as u8 }
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lengths().fmt(f)
    }
}
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The elements that a range of indices selects, of `len`.
///
/// # Panics
/// If the range does not lie in `len`, as indexing a slice does.
#[track_caller]
pub(crate) fn resolve(range: &impl core::ops::RangeBounds<usize>, len: usize) -> core::ops::Range<usize> {
    use core::ops::Bound::{Excluded, Included, Unbounded};
    // The largest number has no successor, and lies in no array.
    let start = match range.start_bound() {
        Included(&s) => s as u128,
        Excluded(&s) => s as u128 + 1,
        Unbounded => 0,
    };
    let end = match range.end_bound() {
        Included(&e) => e as u128 + 1,
        Excluded(&e) => e as u128,
        Unbounded => len as u128,
    };
    assert!(start <= end && end <= len as u128, "the range {start}..{end} does not lie in 0..{len}");
    start as usize..end as usize
}
