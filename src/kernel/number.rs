//! The types that the built-in kernels compute with. It does not know kernels, only which of them a type selects.

use crate::driver::Argument;
use bytemuck::Pod;

/// Which of four kernels computes with a type: the index into the tables of built-in kernels. Integers wrap, so signed and
/// unsigned ones share a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Integers of 4 bytes.
    Word,
    /// Integers of 8 bytes.
    Long,
    /// `f32`.
    Single,
    /// `f64`.
    Double,
}

mod sealed {
    /// Sealed: only these types have kernels.
    pub trait Sealed {
        /// Which kernels.
        const KIND: super::Kind;
    }
}

/// A number that the built-in kernels compute with: integers of 4 and 8 bytes, which wrap, and `f32` and `f64`.
#[diagnostic::on_unimplemented(
    message = "the built-in kernels do not compute with `{Self}`",
    note = "they are for u32, u64, f32 and f64; launch a kernel of your own with `Stream::launch`"
)]
pub trait Number: Pod + Into<Argument> + sealed::Sealed {}

/// Which of a table's kernels computes with `T`.
pub(super) fn index<T: Number>() -> usize {
    T::KIND as usize
}

macro_rules! numbers {
    ($($number:ty: $kind:ident,)*) => {$(
        impl sealed::Sealed for $number {
            const KIND: Kind = Kind::$kind;
        }
        impl Number for $number {}
    )*};
}
numbers! { u32: Word, i32: Word, u64: Long, i64: Long, f32: Single, f64: Double, }
