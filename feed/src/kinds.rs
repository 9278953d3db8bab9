//! Batches of other kinds than elements in one piece: with a shape, ragged, and written in place by a closure.

use crate::batch::{Batch, Fields, FillError, Layout, Slot};
use core::fmt;
use millpond::bytemuck::Pod;
use millpond::driver::Driver;
use millpond::{DeviceView, Shape};

/// Elements with a shape.
#[derive(Clone)]
pub struct Shaped<A: Pod> {
    elements: Vec<A>,
    shape: Shape,
}

impl<A: Pod> Shaped<A> {
    /// Elements, in memory order, and the lengths of their dimensions.
    ///
    /// # Errors
    /// Unless there are as many elements as the shape has.
    pub fn new(elements: Vec<A>, shape: impl Into<Shape>) -> Result<Shaped<A>, ShapeError> {
        let shape = shape.into();
        if shape.elements() == Some(elements.len()) {
            return Ok(Shaped { elements, shape });
        }
        Err(ShapeError { elements: elements.len(), shape })
    }
}

/// Elements that do not fill a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{elements} elements were given for the shape {shape}: a shape has as many elements as the product of its lengths"
)]
#[non_exhaustive]
pub struct ShapeError {
    /// How many elements there are.
    pub elements: usize,
    /// The shape.
    pub shape: Shape,
}

impl<A: Pod> fmt::Debug for Shaped<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shaped<{}>({:?})", core::any::type_name::<A>(), self.shape)
    }
}

impl<A: Pod + Send> Batch for Shaped<A> {
    type Views<'a, D: Driver> = DeviceView<'a, A, D>;
    fn layout(&self, layout: &mut Layout) {
        layout.field::<A>(self.shape);
    }
    fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
        slot.field::<A>().copy_from_slice(&self.elements);
        Ok(())
    }
    fn views<'a, D: Driver>(fields: &mut Fields<'a, D>) -> DeviceView<'a, A, D> {
        fields.field()
    }
}

/// Rows of different lengths. On the device: a field of `rows × longest` elements, in which each row is padded with one value, and a
/// field of the rows' lengths.
///
/// ```
/// # use millpond::{Allocator, Config, units::GIB};
/// # use millpond_sim::Sim;
/// use millpond_feed::{Feeder, Ragged};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// # let work = gpu.stream()?;
/// let sentences = Ragged::new(vec![vec![5_i32, 6, 7], vec![8]], -1);
/// let feeder = Feeder::builder(&gpu).start([sentences])?;
/// let batch = feeder.next(&work).expect("there is one")?;
/// let (tokens, lengths) = batch.views();
/// assert_eq!(tokens.shape().lengths(), [2, 3]);
/// assert_eq!(tokens.to_vec(&work)?, [5, 6, 7, 8, -1, -1]);
/// assert_eq!(lengths.to_vec(&work)?, [3, 1]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Ragged<A: Pod, R = Vec<A>> {
    rows: Vec<R>,
    padding: A,
    width: usize,
}

impl<A: Pod, R: AsRef<[A]>> Ragged<A, R> {
    /// Rows, as wide as the longest, padded with this value.
    pub fn new(rows: Vec<R>, padding: A) -> Ragged<A, R> {
        let width = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
        Ragged { rows, padding, width }
    }
    /// The same at least so wide: batches of one width spare kernels that are compiled for each.
    #[must_use]
    pub fn at_least(mut self, width: usize) -> Ragged<A, R> {
        self.width = self.width.max(width);
        self
    }
}

impl<A: Pod, R> fmt::Debug for Ragged<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ragged<{}>({} rows, {} wide)", core::any::type_name::<A>(), self.rows.len(), self.width)
    }
}

impl<A: Pod + Send, R: AsRef<[A]> + Send + 'static> Batch for Ragged<A, R> {
    /// The padded rows, and their lengths.
    type Views<'a, D: Driver> = (DeviceView<'a, A, D>, DeviceView<'a, u32, D>);
    fn layout(&self, layout: &mut Layout) {
        layout.field::<A>([self.rows.len(), self.width]);
        layout.field::<u32>(self.rows.len());
    }
    fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
        let (padded, lengths) = (slot.field::<A>(), slot.field::<u32>());
        for (i, row) in self.rows.iter().enumerate() {
            let row = row.as_ref();
            lengths[i] = u32::try_from(row.len())?;
            let (given, rest) = padded[i * self.width..][..self.width].split_at_mut(row.len());
            given.copy_from_slice(row);
            rest.fill(self.padding);
        }
        Ok(())
    }
    fn views<'a, D: Driver>(fields: &mut Fields<'a, D>) -> Self::Views<'a, D> {
        (fields.field(), fields.field())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// The element types of the fields of a [`Filled`] batch: a tuple of up to four. It cannot be implemented elsewhere.
pub trait Elements: sealed::Sealed + 'static {
    /// A shape for each.
    type Shapes: Send;
    /// What the closure writes: `(&mut [A], &mut [B])`.
    type Slices<'a>;
    /// The fields on the device.
    type Views<'a, D: Driver>;
    #[doc(hidden)]
    fn layout(shapes: &Self::Shapes, layout: &mut Layout);
    #[doc(hidden)]
    fn slices<'a>(slot: &mut Slot<'a>) -> Self::Slices<'a>;
    #[doc(hidden)]
    fn views<'a, D: Driver>(fields: &mut Fields<'a, D>) -> Self::Views<'a, D>;
}

macro_rules! elements {
    ($(($($of:ident $shape:ty, $at:tt),+);)*) => {$(
        impl<$($of: Pod),+> sealed::Sealed for ($($of,)+) {}
        impl<$($of: Pod),+> Elements for ($($of,)+) {
            type Shapes = ($($shape,)+);
            type Slices<'a> = ($(&'a mut [$of],)+);
            type Views<'a, Dev: Driver> = ($(DeviceView<'a, $of, Dev>,)+);
            fn layout(shapes: &Self::Shapes, layout: &mut Layout) {
                $(layout.field::<$of>(shapes.$at);)+
            }
            fn slices<'a>(slot: &mut Slot<'a>) -> Self::Slices<'a> {
                ($(slot.field::<$of>(),)+)
            }
            fn views<'a, Dev: Driver>(fields: &mut Fields<'a, Dev>) -> Self::Views<'a, Dev> {
                ($(fields.field::<$of>(),)+)
            }
        }
    )*};
}
elements! {
    (A Shape, 0);
    (A Shape, 0, B Shape, 1);
    (A Shape, 0, B Shape, 1, C Shape, 2);
    (A Shape, 0, B Shape, 1, C Shape, 2, D Shape, 3);
}

/// Writes the fields of one batch.
type Write<E> = Box<dyn for<'a> FnOnce(<E as Elements>::Slices<'a>) -> Result<(), FillError> + Send>;

/// A batch that a closure writes in place, on a filler thread: nothing is copied twice. Its source only says what is to be read.
///
/// ```
/// # use millpond::{Allocator, Config, units::GIB};
/// # use millpond_sim::Sim;
/// use millpond_feed::{Feeder, Filled};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// # let work = gpu.stream()?;
/// let batches = (0..10_u8).map(|i| {
///     Filled::<(f32, u8)>::new(([8, 4].into(), 8.into()), move |(pixels, labels)| {
///         pixels.fill(f32::from(i));                        // or read a file into it
///         labels.fill(i);
///         Ok(())
///     })
/// });
/// let feeder = Feeder::builder(&gpu).fillers(2).start(batches)?;
/// for batch in feeder.on(&work) {
///     let batch = batch?;
///     let (pixels, labels) = batch.views();
///     assert_eq!(pixels.to_vec(&work)?[31], f32::from(labels.to_vec(&work)?[7]));
/// }
/// # Ok(()) }
/// ```
pub struct Filled<E: Elements> {
    shapes: E::Shapes,
    write: Write<E>,
}

impl<E: Elements> Filled<E> {
    /// A shape for each field, and what writes them. They hold what an earlier batch left there.
    pub fn new(
        shapes: E::Shapes,
        write: impl for<'a> FnOnce(E::Slices<'a>) -> Result<(), FillError> + Send + 'static,
    ) -> Filled<E> {
        Filled { shapes, write: Box::new(write) }
    }
}

impl<E: Elements> fmt::Debug for Filled<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filled({:?})", Layout::of(self))
    }
}

impl<E: Elements> Batch for Filled<E> {
    type Views<'a, D: Driver> = E::Views<'a, D>;
    fn layout(&self, layout: &mut Layout) {
        E::layout(&self.shapes, layout);
    }
    fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
        (self.write)(E::slices(slot))
    }
    fn views<'a, D: Driver>(fields: &mut Fields<'a, D>) -> Self::Views<'a, D> {
        E::views(fields)
    }
}
