//! The safe functions: each compares lengths, then queues built-in kernels that touch nothing but their operands.
//!
//! Each is queued on the given stream, behind what it conflicts with; the host does not wait; for an empty array
//! it makes no driver call. It does not know waits, nor how a device runs code.

use super::builtins;
use super::number::{Number, index};
use super::references::PART;
use crate::allocator::Stream;
use crate::array::{AsViewMut, IntoView, Shape};
use crate::driver::{Driver, Grid, Kernels};
use crate::error::{Error, Mismatch, Side};
use bytemuck::Pod;

/// The maximum number of blocks of a launch where each thread takes several elements: enough to fill every GPU seen.
const MOST_BLOCKS: u32 = 1056;

/// The threads for this many steps of a kernel whose threads take more than one.
fn grid_for(steps: u64) -> Grid {
    let grid = Grid::from(usize::try_from(steps).unwrap_or(usize::MAX));
    Grid::new(grid.blocks[0].min(MOST_BLOCKS), Grid::BLOCK)
}

/// Fails unless both have as many elements.
fn same_length<T, U>(
    verb: &'static str,
    (one, a): (&'static str, Shape),
    (other, b): (&'static str, Shape),
    advice: &'static str,
) -> Result<(), Error> {
    if a.elements() == b.elements() {
        return Ok(());
    }
    let side = |what, element, shape: Shape| Side { what, element, shape: shape.to_vec() };
    let one = side(one, core::any::type_name::<T>(), a);
    let other = side(other, core::any::type_name::<U>(), b);
    Err(Mismatch { verb, one, other, advice }.into())
}

/// Fills with one value, of a type of 1, 2, 4 or 8 bytes; another type does not compile. [`DeviceArray::fill_bytes`] is
/// the fill of any type with one byte.
///
/// [`DeviceArray::fill_bytes`]: crate::DeviceArray::fill_bytes
///
/// # Errors
/// A stream of another device, a capturing stream, the driver's: nothing was then queued.
#[track_caller]
#[allow(unsafe_code, reason = "a built-in kernel, and the bytes of an element")]
pub fn fill<T: Pod, D: Driver + Kernels>(
    into: &mut impl AsViewMut<Item = T, Device = D>,
    value: T,
    stream: &Stream<D>,
) -> Result<(), Error> {
    const { assert!(matches!(size_of::<T>(), 1 | 2 | 4 | 8), "a fill's element has 1, 2, 4 or 8 bytes") };
    let into = into.as_view_mut();
    let bytes = into.size_bytes();
    if bytes == 0 {
        return Ok(());
    }
    let mut word = [0_u8; 8];
    // SAFETY: an element is plain bytes without padding, of this length.
    let element = unsafe { core::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
    for place in word.chunks_exact_mut(element.len()) {
        place.copy_from_slice(element);
    }
    let arguments = (into.into_write(), bytes, u64::from_le_bytes(word));
    // SAFETY: kernels/fill.cu takes these, and writes the operand's bytes only.
    unsafe { stream.launch(&builtins::FILL, grid_for(bytes.div_ceil(8)), arguments) }
}

/// Counts up: element `i`, in memory order, becomes `first + i * step`. Integers wrap; floats are rounded once, with
/// `i` itself rounded to the type.
///
/// # Errors
/// As [`fill`].
#[track_caller]
#[allow(unsafe_code, reason = "a built-in kernel")]
pub fn iota<T: Number, D: Driver + Kernels>(
    into: &mut impl AsViewMut<Item = T, Device = D>,
    first: T,
    step: T,
    stream: &Stream<D>,
) -> Result<(), Error> {
    let into = into.as_view_mut();
    let n = into.len() as u64;
    let arguments = (into.into_write(), n, first.into(), step.into());
    // SAFETY: kernels/iota.cu takes these, and writes `n` elements of the operand.
    unsafe { stream.launch(&builtins::IOTA[index::<T>()], grid_for(n), arguments) }
}

/// Adds a multiple: each element of `y` becomes `a * x + y`. Integers wrap; floats are rounded once.
///
/// # Errors
/// [`Error::Mismatch`] unless both shapes are equal; arrays of another device; as [`fill`].
#[track_caller]
#[allow(unsafe_code, reason = "a built-in kernel")]
pub fn saxpy<'x, T: Number, D: Driver + Kernels>(
    a: T,
    x: impl IntoView<'x, Item = T, Device = D>,
    y: &mut impl AsViewMut<Item = T, Device = D>,
    stream: &Stream<D>,
) -> Result<(), Error> {
    let (x, y) = (x.into_view(), y.as_view_mut());
    if x.shape() != y.shape() {
        let element = core::any::type_name::<T>();
        let one = Side { what: "y, which is added to,", element, shape: y.shape().to_vec() };
        let other = Side { what: "x", element, shape: x.shape().to_vec() };
        let advice = "both shapes must be equal: slice or reshape one of them";
        return Err(Mismatch { verb: "saxpy", one, other, advice }.into());
    }
    let n = x.len() as u64;
    // SAFETY: kernels/saxpy.cu takes these; both operands have `n` elements; borrows keep them apart.
    unsafe {
        stream.launch(&builtins::SAXPY[index::<T>()], grid_for(n), (y.into_write(), x.read(), n, a.into()))
    }
}

/// Sums up: the one element of `into` becomes the sum of `x`, 0 for no elements. Integers wrap. Floats are added in
/// an order that depends on the length only, so the sum is the same on every device and each time: in parts of 8,192
/// elements, whose sums are summed up in the same way. Scratch memory for this (an 8,192th of `x`) is allocated
/// on `stream`.
///
/// # Errors
/// [`Error::Mismatch`] unless `into` has one element; as [`Allocator::alloc`](crate::Allocator::alloc); arrays of another
/// device; as [`fill`]. If one of several launches fails, `into` may be unchanged.
#[track_caller]
#[allow(unsafe_code, reason = "a built-in kernel")]
pub fn reduce_sum<'x, T: Number, D: Driver + Kernels>(
    x: impl IntoView<'x, Item = T, Device = D>,
    into: &mut impl AsViewMut<Item = T, Device = D>,
    stream: &Stream<D>,
) -> Result<(), Error> {
    let (x, mut into) = (x.into_view(), into.as_view_mut());
    let sides = (("the target", into.shape()), ("a sum", Shape::line(1)));
    same_length::<T, T>("reduce_sum", sides.0, sides.1, "a sum is one element: slice the target")?;
    if x.is_empty() {
        return into.fill_bytes(0, stream);
    }
    let kernel = &builtins::REDUCE[index::<T>()];
    let parts = |n: usize| n.div_ceil(PART);
    // One block a part. More parts than a grid has blocks would be more than 2^44 elements.
    let blocks = |n: usize| Grid::new(u32::try_from(parts(n)).unwrap_or(u32::MAX), Grid::BLOCK);
    let mut sums = None;
    loop {
        let source = sums.as_ref().map_or(x, crate::array::DeviceArray::view);
        let n = source.len();
        if parts(n) == 1 {
            // SAFETY: kernels/reduce.cu takes these, in blocks of 256 threads; one block writes one element.
            return unsafe { stream.launch(kernel, blocks(n), (into.write(), source.read(), n)) };
        }
        let mut next = stream.allocator().uninit::<T>(parts(n), stream)?;
        // SAFETY: as above; a block for each element of `next`.
        unsafe { stream.launch(kernel, blocks(n), (next.write(), source.read(), n))? };
        sums = Some(next);
    }
}

/// The pieces of an element that one thread moves: the index of the kernel, and how many make an element.
fn pieces<T>() -> (usize, u64) {
    let piece = align_of::<T>().min(8);
    (piece.ilog2() as usize, (size_of::<T>() / piece) as u64)
}

/// Picks: element `i` of `into` becomes element `at[i]` of `from`, in memory order. If an index is beyond the end of
/// `from`, the element of `into` stays unchanged.
///
/// # Errors
/// [`Error::Mismatch`] unless `into` has as many elements as `at`; arrays of another device; as [`fill`].
#[track_caller]
#[allow(unsafe_code, reason = "a built-in kernel")]
pub fn gather<'f, 'i, T: Pod, D: Driver + Kernels>(
    from: impl IntoView<'f, Item = T, Device = D>,
    at: impl IntoView<'i, Item = u32, Device = D>,
    into: &mut impl AsViewMut<Item = T, Device = D>,
    stream: &Stream<D>,
) -> Result<(), Error> {
    let (from, at, into) = (from.into_view(), at.into_view(), into.as_view_mut());
    let sides = (("the target", into.shape()), ("the indices", at.shape()));
    same_length::<T, u32>(
        "gather",
        sides.0,
        sides.1,
        "a gather takes one index for each element of the target",
    )?;
    if into.size_bytes() == 0 || from.is_empty() {
        return Ok(());
    }
    let ((kernel, pieces), n) = (pieces::<T>(), at.len() as u64);
    let arguments = (into.into_write(), from.read(), from.len(), at.read(), n, pieces);
    // SAFETY: kernels/gather.cu takes these, of elements cut into such pieces; it reads `n` indices, writes `n` elements,
    // and no index makes it read beyond the source's length.
    unsafe { stream.launch(&builtins::GATHER[kernel], grid_for(n * pieces), arguments) }
}

/// Spreads: element `at[i]` of `into` becomes element `i` of `from`, in memory order. If an index is beyond the end of
/// `into`, nothing is written. Of several elements for one place any one may win; if an element is longer than its alignment
/// or than 8 bytes, the result may also mix pieces of each.
///
/// # Errors
/// [`Error::Mismatch`] unless `from` has as many elements as `at`; arrays of another device; as [`fill`].
#[track_caller]
#[allow(unsafe_code, reason = "a built-in kernel")]
pub fn scatter<'f, 'i, T: Pod, D: Driver + Kernels>(
    from: impl IntoView<'f, Item = T, Device = D>,
    at: impl IntoView<'i, Item = u32, Device = D>,
    into: &mut impl AsViewMut<Item = T, Device = D>,
    stream: &Stream<D>,
) -> Result<(), Error> {
    let (from, at, into) = (from.into_view(), at.into_view(), into.as_view_mut());
    let sides = (("the source", from.shape()), ("the indices", at.shape()));
    same_length::<T, u32>(
        "scatter",
        sides.0,
        sides.1,
        "a scatter takes one index for each element of the source",
    )?;
    if into.size_bytes() == 0 || from.is_empty() {
        return Ok(());
    }
    let ((kernel, pieces), n, length) = (pieces::<T>(), at.len() as u64, into.len());
    let arguments = (into.into_write(), length, from.read(), at.read(), n, pieces);
    // SAFETY: kernels/scatter.cu takes these, of elements cut into such pieces; it reads `n` indices and `n` elements, and
    // no index makes it write beyond the target's length.
    unsafe { stream.launch(&builtins::SCATTER[kernel], grid_for(n * pieces), arguments) }
}
