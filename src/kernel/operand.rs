//! The arguments of a launch: numbers, and arrays with their access.
//!
//! An operand borrows its array until the launch is queued, mutably if it is written: so no launch names one part
//! twice with one of them written. It does not know kernels.

use crate::allocator::access::Touch;
use crate::array::{DeviceArray, DeviceView, DeviceViewMut};
use crate::driver::{Argument, Driver, KernelRange, RangeUse};
use bytemuck::Pod;
use core::fmt;
use smallvec::SmallVec;

/// An array, or a part of one, in a launch: its address is the argument, its bytes are declared.
pub struct Operand<'a, D: Driver> {
    pub(super) touch: Touch<'a, D>,
    pub(super) range: KernelRange,
    /// The type of its elements, and their length.
    pub(super) element: &'static str,
    pub(super) element_bytes: usize,
}

impl<'a, D: Driver> Operand<'a, D> {
    fn of<T: Pod>(touch: Touch<'a, D>, range: KernelRange) -> Operand<'a, D> {
        Operand { touch, range, element: core::any::type_name::<T>(), element_bytes: size_of::<T>() }
    }
}

impl<D: Driver> fmt::Debug for Operand<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operand({:?} of {} bytes at {})", self.range.used, self.range.bytes, self.range.addr)
    }
}

impl<'a, T: Pod, D: Driver> DeviceView<'a, T, D> {
    /// An operand that a kernel reads and does not write.
    pub fn read(&self) -> Operand<'a, D> {
        let (addr, bytes, allocation) = (self.address(), self.size_bytes(), self.id());
        let range = KernelRange::new(addr, bytes, RangeUse::Read).allocation(allocation);
        Operand::of::<T>(self.touch(), range)
    }
}
impl<'a, T: Pod, D: Driver> DeviceViewMut<'a, T, D> {
    /// An operand that a kernel reads and does not write.
    pub fn read(&self) -> Operand<'_, D> {
        self.view().read()
    }
    /// An operand that a kernel may write, and may read.
    pub fn write(&mut self) -> Operand<'_, D> {
        self.view_mut().into_write()
    }
    pub(super) fn into_write(self) -> Operand<'a, D> {
        let (addr, bytes, allocation) = (self.address(), self.size_bytes(), self.id());
        let range = KernelRange::new(addr, bytes, RangeUse::ReadWrite).allocation(allocation);
        Operand::of::<T>(self.into_touch(), range)
    }
}
impl<T: Pod, D: Driver> DeviceArray<T, D> {
    /// All of it as an operand that a kernel reads and does not write.
    pub fn read(&self) -> Operand<'_, D> {
        self.view().read()
    }
    /// All of it as an operand that a kernel may write, and may read.
    pub fn write(&mut self) -> Operand<'_, D> {
        self.view_mut().into_write()
    }
}

/// One argument of a launch.
#[derive(Debug)]
pub enum Parameter<'a, D: Driver> {
    /// A number, or an address that the program is responsible for.
    Number(Argument),
    /// An array.
    Operand(Operand<'a, D>),
}

impl<D: Driver, N: Into<Argument>> From<N> for Parameter<'_, D> {
    fn from(number: N) -> Self {
        Parameter::Number(number.into())
    }
}
impl<'a, D: Driver> From<Operand<'a, D>> for Parameter<'a, D> {
    fn from(operand: Operand<'a, D>) -> Self {
        Parameter::Operand(operand)
    }
}

/// The parameters of one launch.
pub(super) type Parameters<'a, D> = SmallVec<[Parameter<'a, D>; 6]>;

mod sealed {
    /// Sealed: tuples only.
    pub trait Sealed<'a, D: super::Driver> {
        /// The arguments, in order.
        fn collect(self) -> super::Parameters<'a, D>;
    }
}

/// What a launch takes: a tuple of up to twelve numbers and operands, in the kernel's order.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a launch takes",
    label = "not a tuple of at most twelve numbers and operands",
    note = "name arrays by how the kernel uses them, `x.read()` or `y.write()`, and write one argument as `(x.write(),)`"
)]
pub trait Arguments<'a, D: Driver>: sealed::Sealed<'a, D> {}

/// The arguments, in order.
pub(super) fn collect<'a, D: Driver>(arguments: impl Arguments<'a, D>) -> Parameters<'a, D> {
    arguments.collect()
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<'a, D: Driver, $($name: Into<Parameter<'a, D>>),*> sealed::Sealed<'a, D> for ($($name,)*) {
            fn collect(self) -> Parameters<'a, D> {
                #[allow(non_snake_case, reason = "named as their types")]
                let ($($name,)*) = self;
                let mut all = Parameters::new();
                $(all.push($name.into());)*
                all
            }
        }
        impl<'a, D: Driver, $($name: Into<Parameter<'a, D>>),*> Arguments<'a, D> for ($($name,)*) {}
    };
}
tuples! { A0 }
tuples! { A0 A1 }
tuples! { A0 A1 A2 }
tuples! { A0 A1 A2 A3 }
tuples! { A0 A1 A2 A3 A4 }
tuples! { A0 A1 A2 A3 A4 A5 }
tuples! { A0 A1 A2 A3 A4 A5 A6 }
tuples! { A0 A1 A2 A3 A4 A5 A6 A7 }
tuples! { A0 A1 A2 A3 A4 A5 A6 A7 A8 }
tuples! { A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 }
tuples! { A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 }
tuples! { A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 }
