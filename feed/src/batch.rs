//! What a batch is: fields of plain elements, each with a shape, and how they are written.
//!
//! A batch says its fields in an order ([`Batch::layout`]), writes them in that order into pinned memory ([`Batch::fill`]), and has them viewed
//! in that order on the device ([`Batch::views`]). Composed batches (tuples, structs) let their parts do it one after the other. All
//! fields of a batch lie in one range, which is copied in one piece.
//!
//! It does not know where that memory is, who fills it, or when.

use core::any::{TypeId, type_name};
use core::fmt;
use millpond::bytemuck::{Pod, cast_slice_mut};
use millpond::driver::Driver;
use millpond::{DeviceView, Shape};

/// Where a field may begin in its batch: at multiples of this many bytes, which suffices for every element and every vector load.
pub const FIELD_ALIGNMENT: usize = 256;

/// Why a batch could not be filled: any error of the program's.
pub type FillError = Box<dyn std::error::Error + Send + Sync>;

/// What a source gives: knows its fields, and writes them into pinned memory.
///
/// Implemented for `Vec<A>`, `Box<[A]>`, `Arc<[A]>`, `&[A]`, arrays, [`Shaped`](crate::Shaped), [`Ragged`](crate::Ragged),
/// [`Filled`](crate::Filled) (a closure that writes in place), and tuples of up to six of these; for a struct of such fields by
/// [`batch!`](crate::batch!). By hand it is implemented for anything that is to be made where it is needed: an item that only names files
/// reads them in `fill`, on a filler thread, straight into the slot.
///
/// The three functions go through the same fields in the same order.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch",
    label = "neither plain elements nor a tuple or struct of batches",
    note = "a batch is a `Vec`, an array or a shared slice of plain elements, a tuple of up to six batches, `Ragged`, `Shaped` or `Filled`",
    note = "a struct of batches is declared with `millpond_feed::batch!`"
)]
pub trait Batch: Send {
    /// The fields on the device, as the program gets them.
    type Views<'a, D: Driver>;
    /// Says the fields: element type and shape of each.
    fn layout(&self, layout: &mut Layout);
    /// Writes the fields. What it leaves unwritten is what an earlier batch left there.
    ///
    /// # Errors
    /// Any: the consumer gets it in this batch's place.
    fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError>;
    /// The fields on the device.
    fn views<'a, D: Driver>(fields: &mut Fields<'a, D>) -> Self::Views<'a, D>;
}

/// One field of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    element: TypeId,
    element_name: &'static str,
    shape: Shape,
    /// Its first byte, from the batch's.
    start: usize,
    bytes: usize,
}

/// The fields of a batch.
#[derive(Clone, Default)]
pub struct Layout {
    fields: Vec<Field>,
    /// `None`: more than can be counted.
    bytes: Option<usize>,
}

impl Layout {
    /// Of a batch.
    pub(crate) fn of<T: Batch>(batch: &T) -> Layout {
        let mut layout = Layout { fields: Vec::new(), bytes: Some(0) };
        batch.layout(&mut layout);
        layout
    }
    /// Adds a field of elements of type `A`. `shape` is a number of elements or an array of lengths.
    pub fn field<A: Pod>(&mut self, shape: impl Into<Shape>) {
        const { assert!(size_of::<A>() > 0, "elements of no bytes are no field") };
        const { assert!(align_of::<A>() <= FIELD_ALIGNMENT, "fields are aligned to 256 bytes") };
        let shape = shape.into();
        let bytes = shape.elements().and_then(|n| n.checked_mul(size_of::<A>()));
        let start = self.bytes.and_then(|b| b.checked_next_multiple_of(FIELD_ALIGNMENT));
        let end = start.zip(bytes).and_then(|(start, bytes)| start.checked_add(bytes));
        self.bytes = end.filter(|&end| isize::try_from(end).is_ok());
        if let (Some(start), Some(bytes), Some(_)) = (start, bytes, self.bytes) {
            let (element, element_name) = (TypeId::of::<A>(), type_name::<A>());
            self.fields.push(Field { element, element_name, shape, start, bytes });
        }
    }
    /// How many fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
    /// The bytes of all fields, with what lies between them; `None` if they cannot be counted.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes
    }
    /// The field with this index, if it has such elements.
    ///
    /// # Panics
    /// If it has not.
    #[track_caller]
    fn expect<A: Pod>(&self, index: usize) -> Field {
        let Some(&field) = self.fields.get(index) else {
            panic!("field {index} was asked for, of a batch whose layout has {}", self.fields.len())
        };
        assert!(
            field.element == TypeId::of::<A>(),
            "field {index} was asked for as {}, and the batch's layout has {} there",
            type_name::<A>(),
            field.element_name
        );
        field
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields.iter().map(|f| format!("{}{:?}", f.element_name, f.shape));
        f.debug_list().entries(fields).finish()
    }
}

/// The pinned memory that a batch is written into, field after field.
pub struct Slot<'a> {
    /// What is not given out yet.
    bytes: &'a mut [u8],
    /// Where that begins.
    start: usize,
    layout: &'a Layout,
    next: usize,
}

impl<'a> Slot<'a> {
    pub(crate) fn new(bytes: &'a mut [u8], layout: &'a Layout) -> Slot<'a> {
        Slot { bytes, start: 0, layout, next: 0 }
    }
    /// The next field, to be written. It holds what an earlier batch left there.
    ///
    /// # Panics
    /// If the batch's layout has no further field, or one of other elements: [`Batch::fill`] and [`Batch::layout`] then differ. On a filler
    /// thread the consumer gets that as an error in the batch's place.
    #[track_caller]
    pub fn field<A: Pod>(&mut self) -> &'a mut [A] {
        let field = self.layout.expect::<A>(self.next);
        let rest = core::mem::take(&mut self.bytes);
        let (given, rest) = rest[field.start - self.start..].split_at_mut(field.bytes);
        (self.bytes, self.start, self.next) = (rest, field.start + field.bytes, self.next + 1);
        cast_slice_mut(given)
    }
}

impl fmt::Debug for Slot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot(field {} of {:?})", self.next, self.layout)
    }
}

/// The fields of a batch on the device, one after the other.
pub struct Fields<'a, D: Driver> {
    bytes: DeviceView<'a, u8, D>,
    layout: &'a Layout,
    next: usize,
}

impl<'a, D: Driver> Fields<'a, D> {
    pub(crate) fn new(bytes: DeviceView<'a, u8, D>, layout: &'a Layout) -> Fields<'a, D> {
        Fields { bytes, layout, next: 0 }
    }
    /// The next field.
    ///
    /// # Panics
    /// If the batch's layout has no further field, or one of other elements: [`Batch::views`] and [`Batch::layout`] then differ.
    #[track_caller]
    pub fn field<A: Pod>(&mut self) -> DeviceView<'a, A, D> {
        let (range, shape) = self.layout.part::<A>(self.next);
        self.next += 1;
        let view = self.bytes.slice(range).cast::<A>().and_then(|view| view.reshape(shape));
        view.expect("fields lie at multiples of their alignment, and have their shape's elements")
    }
}

impl Layout {
    /// Where a field lies, and its shape.
    #[track_caller]
    pub(crate) fn part<A: Pod>(&self, index: usize) -> (core::ops::Range<usize>, Shape) {
        let field = self.expect::<A>(index);
        (field.start..field.start + field.bytes, field.shape)
    }
}

impl<D: Driver> fmt::Debug for Fields<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fields(field {} of {:?})", self.next, self.layout)
    }
}

/// Elements that lie in one piece: copied into the slot.
macro_rules! slices {
    ($($(#[$doc:meta])* [$($generics:tt)*] $of:ty, $shape:expr;)*) => {$(
        $(#[$doc])*
        impl<$($generics)*> Batch for $of {
            type Views<'a, D: Driver> = DeviceView<'a, A, D>;
            fn layout(&self, layout: &mut Layout) {
                let shape: fn(&$of) -> usize = $shape;
                layout.field::<A>(shape(self));
            }
            fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
                slot.field::<A>().copy_from_slice(&self[..]);
                Ok(())
            }
            fn views<'a, D: Driver>(fields: &mut Fields<'a, D>) -> DeviceView<'a, A, D> {
                fields.field()
            }
        }
    )*};
}
slices! {
    [A: Pod + Send + Sync] Vec<A>, |v| v.len();
    [A: Pod + Send + Sync] Box<[A]>, |v| v.len();
    [A: Pod + Send + Sync] std::sync::Arc<[A]>, |v| v.len();
    ['of, A: Pod + Send + Sync] &'of [A], |v| v.len();
    [A: Pod + Send + Sync, const N: usize] [A; N], |_| N;
}

macro_rules! tuples {
    ($(($($of:ident $at:tt),+);)*) => {$(
        impl<$($of: Batch),+> Batch for ($($of,)+) {
            type Views<'a, Dev: Driver> = ($($of::Views<'a, Dev>,)+);
            fn layout(&self, layout: &mut Layout) {
                $(self.$at.layout(layout);)+
            }
            fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
                $(self.$at.fill(slot)?;)+
                Ok(())
            }
            fn views<'a, Dev: Driver>(fields: &mut Fields<'a, Dev>) -> Self::Views<'a, Dev> {
                ($($of::views(fields),)+)
            }
        }
    )*};
}
tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
}

/// Declares a struct whose fields are batches, which is a batch itself, and the struct of its views on the device.
///
/// ```
/// # use millpond::{Allocator, Config, units::GIB};
/// # use millpond_sim::Sim;
/// use millpond_feed::{Feeder, Shaped, batch};
///
/// batch! {
///     /// Pictures and what is on them.
///     pub struct Pictures => PicturesOnDevice {
///         pixels: Shaped<u8>,
///         labels: Vec<i64>,
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// # let work = gpu.stream()?;
/// let one = Pictures { pixels: Shaped::new(vec![7; 24], [2, 4, 3])?, labels: vec![0, 1] };
/// let feeder = Feeder::builder(&gpu).start([one])?;
/// for batch in feeder.on(&work) {
///     let batch = batch?;
///     let PicturesOnDevice { pixels, labels } = batch.views();
///     assert_eq!((pixels.shape().lengths(), labels.len()), (&[2, 4, 3][..], 2));
/// }
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! batch {
    ($(#[$doc:meta])* $vis:vis struct $name:ident => $views:ident { $($(#[$field_doc:meta])* $field:ident: $of:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $name {
            $($(#[$field_doc])* #[allow(missing_docs)] $vis $field: $of,)+
        }
        /// The fields of a batch, on the device.
        #[derive(Debug)]
        $vis struct $views<'a, D: $crate::millpond::driver::Driver> {
            $($(#[$field_doc])* #[allow(missing_docs)] $vis $field: <$of as $crate::Batch>::Views<'a, D>,)+
        }
        impl $crate::Batch for $name {
            type Views<'a, D: $crate::millpond::driver::Driver> = $views<'a, D>;
            fn layout(&self, layout: &mut $crate::Layout) {
                $($crate::Batch::layout(&self.$field, layout);)+
            }
            fn fill(self, slot: &mut $crate::Slot<'_>) -> ::core::result::Result<(), $crate::FillError> {
                $($crate::Batch::fill(self.$field, slot)?;)+
                ::core::result::Result::Ok(())
            }
            fn views<'a, D: $crate::millpond::driver::Driver>(fields: &mut $crate::Fields<'a, D>) -> $views<'a, D> {
                $views { $($field: <$of as $crate::Batch>::views(fields),)+ }
            }
        }
    };
}
