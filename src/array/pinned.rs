//! Arrays in pinned host memory.

use super::bytes_of;
use super::pinned_view::{PinnedView, PinnedViewMut};
use super::shape::Shape;
use crate::allocator::{Allocator, PinnedAllocation};
use crate::driver::{Called, Driver, HostKind};
use crate::error::Error;
use bytemuck::Pod;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// Elements in page-locked host memory, with a shape: a slice that the device can copy from and into on its own.
///
/// It is an ordinary `&[T]` and `&mut [T]` to the CPU. A copy takes it by value and gives it back when the copy is
/// complete, so nothing in flight can be read early or overwritten. When it is dropped, its memory goes back to the allocator's
/// cache of pinned memory. To another library's copy it is a plain slice, `&array[..]`: this library cannot see what such a copy does
/// after its return, so wait for its stream before the slice is read, written or dropped.
///
/// **In cudarc's copies** (feature `cuda`) the array itself is a `HostSlice`: `theirs.memcpy_htod(&pinned, &mut x)`,
/// `theirs.memcpy_dtoh(&x, &mut pinned)`. They wait for the copy, and where cudarc leaves its wait out the array's next access
/// waits ([`interop`](crate::interop)). **Never pass a slice of it**, `&pinned[..]` or `&mut pinned[..]`: cudarc takes a `&[T]`
/// for pageable memory, queues the copy and waits for nothing, and a slice cannot detect that. What is read, written or
/// dropped then may still be in flight. For a part, use [`Part`](crate::transfer::Part) or
/// [`transfer::scope`](crate::transfer::scope()).
///
/// # Panics
/// After a copy by cudarc if neither its stream nor the device can be waited for any more (a stream of the context captures,
/// captures are expected, the driver fails): then any access to the elements panics, and may be tried again; [`PinnedArray::host_ready`] returns an
/// error instead. In a lost context nothing runs, so it
/// is not waited for. Without such copies no access waits or panics.
///
/// ```
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let mut host = gpu.pinned_from_slice(&[1_u32, 2, 3, 4])?;
/// host[0] = 7;
/// host.reshape([2, 2])?;
/// assert_eq!((host.iter().sum::<u32>(), host.shape().lengths()), (16, &[2, 2][..]));
/// # Ok(()) }
/// ```
pub struct PinnedArray<T: Pod, D: Driver> {
    memory: PinnedAllocation<D>,
    shape: Shape,
    /// `Send` and `Sync` for any `T`: plain old data has neither pointers nor interior mutability, and safe code can make a value
    /// of it from bytes on any thread, so no guarantee can depend on the thread.
    elements: PhantomData<fn() -> T>,
}

impl<D: Driver> Allocator<D> {
    /// A pinned array with unspecified contents: plain numbers, so any content is a value. Cached by the CPU.
    ///
    /// # Errors
    /// [`Error::Overflow`]; as [`Allocator::alloc_pinned`].
    #[track_caller]
    pub fn pinned_uninit<T: Pod>(&self, shape: impl Into<Shape>) -> Result<PinnedArray<T, D>, Error> {
        self.pinned_uninit_as(shape, HostKind::Cached)
    }
    /// An array in pinned memory that is cached by the CPU or write-combined, otherwise as
    /// [`Allocator::pinned_uninit`] makes it. Write-combined memory is for sources that the CPU only writes, in order:
    /// the CPU reads it very slowly.
    ///
    /// # Errors
    /// As [`Allocator::pinned_uninit`].
    #[track_caller]
    pub fn pinned_uninit_as<T: Pod>(
        &self,
        shape: impl Into<Shape>,
        kind: HostKind,
    ) -> Result<PinnedArray<T, D>, Error> {
        let _called = Called::<D>::here();
        let shape = shape.into();
        let memory = self.alloc_pinned_as(bytes_of::<T>(shape)?, kind)?;
        Ok(PinnedArray { memory, shape, elements: PhantomData })
    }
    /// A pinned array of zeroes.
    ///
    /// # Errors
    /// As [`Allocator::pinned_uninit`].
    #[track_caller]
    #[allow(unsafe_code, reason = "zeroes are made as bytes, since an element has no zero of its own")]
    pub fn pinned_zeros<T: Pod>(&self, shape: impl Into<Shape>) -> Result<PinnedArray<T, D>, Error> {
        let mut array = self.pinned_uninit::<T>(shape)?;
        let (first, len) = (array.as_mut_ptr(), array.len());
        // SAFETY: the array has exclusive access to the memory, and zero bytes are a value of every element.
        unsafe { first.write_bytes(0, len) };
        Ok(array)
    }
    /// A pinned copy of a slice. The CPU copies, now.
    ///
    /// # Errors
    /// As [`Allocator::pinned_uninit`].
    #[track_caller]
    pub fn pinned_from_slice<T: Pod>(&self, from: &[T]) -> Result<PinnedArray<T, D>, Error> {
        let mut array = self.pinned_uninit(from.len())?;
        array.copy_from_slice(from);
        Ok(array)
    }
    /// A pinned array whose element at index `i`, in memory order, is `f(i)`.
    ///
    /// # Errors
    /// As [`Allocator::pinned_uninit`].
    #[track_caller]
    pub fn pinned_from_fn<T: Pod>(
        &self,
        shape: impl Into<Shape>,
        mut f: impl FnMut(usize) -> T,
    ) -> Result<PinnedArray<T, D>, Error> {
        let mut array = self.pinned_uninit(shape)?;
        for (i, slot) in array.iter_mut().enumerate() {
            *slot = f(i);
        }
        Ok(array)
    }
}

impl<T: Pod, D: Driver> PinnedArray<T, D> {
    /// The lengths of its dimensions.
    pub fn shape(&self) -> Shape {
        self.shape
    }
    /// Its bytes.
    pub fn size_bytes(&self) -> u64 {
        (self.shape.elements().unwrap_or(0) * size_of::<T>()) as u64
    }
    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if that has another number of elements.
    pub fn reshape(&mut self, shape: impl Into<Shape>) -> Result<(), Error> {
        self.shape = self.shape.reshaped::<T>("the pinned array", shape.into())?;
        Ok(())
    }
    /// All of it, borrowed for a copy ([`transfer::scope`](crate::transfer::scope)) to read.
    pub fn view(&self) -> PinnedView<'_, T> {
        PinnedView::new(self, self.shape)
    }
    /// All of it, borrowed for a copy to write.
    pub fn view_mut(&mut self) -> PinnedViewMut<'_, T> {
        let shape = self.shape;
        PinnedViewMut::new(self, shape)
    }
    /// The memory behind it.
    pub(crate) fn memory(&self) -> &PinnedAllocation<D> {
        &self.memory
    }
    fn first(&self) -> *mut T {
        self.memory.as_ptr().as_ptr().cast()
    }
    /// The elements, as `&array[..]` gives them, or an error where that would panic. Without copies by cudarc it never
    /// waits or fails.
    ///
    /// # Errors
    /// The driver's, when a copy by cudarc into the array can no longer be waited for. Where captures are expected
    /// ([`Fences::expects_captures`](crate::driver::Fences::expects_captures)) this is so for a copy on a stream that no allocator holds: nothing was
    /// waited for, and after an [`Allocator::synchronize`] that follows this error the elements are accessible.
    pub fn host_ready(&self) -> Result<&[T], Error> {
        self.memory.wait_for_writes()?;
        Ok(self.elements())
    }
    /// The elements, for writing: waits for copies by cudarc from the array too, not only into it
    /// ([`PinnedArray::host_ready`]).
    ///
    /// # Errors
    /// As [`PinnedArray::host_ready`].
    pub fn host_ready_mut(&mut self) -> Result<&mut [T], Error> {
        self.memory.wait_for_borrowed()?;
        Ok(self.elements_mut())
    }
    /// All of it, unchecked: the caller has waited for whatever writes it.
    #[allow(unsafe_code, reason = "pinned memory is real memory")]
    fn elements(&self) -> &[T] {
        let len = self.shape.elements().unwrap_or(0);
        // SAFETY: the array has exclusive ownership of the allocation, which lives as long, is aligned to 512 and initialised (zeroed by the
        // driver, then written with elements only); no device work writes it while it is an array and not a copy's, or that work was
        // waited for.
        unsafe { core::slice::from_raw_parts(self.first(), len) }
    }
    /// All of it, unchecked: the caller has waited for whatever uses it, and may have borrowed it since.
    #[allow(unsafe_code, reason = "pinned memory is real memory")]
    pub(crate) fn elements_mut(&mut self) -> &mut [T] {
        let len = self.shape.elements().unwrap_or(0);
        // SAFETY: as for `elements`; and no device work reads it either, except what is borrowed from here on.
        unsafe { core::slice::from_raw_parts_mut(self.first(), len) }
    }
}

impl<T: Pod, D: Driver> Deref for PinnedArray<T, D> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.host_ready().unwrap_or_else(|e| refused(&e))
    }
}
impl<T: Pod, D: Driver> DerefMut for PinnedArray<T, D> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.host_ready_mut().unwrap_or_else(|e| refused(&e))
    }
}
/// An access that cannot return an error.
#[cold]
fn refused(error: &Error) -> ! {
    panic!("{error}")
}
impl<T: Pod + fmt::Debug, D: Driver> fmt::Debug for PinnedArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedArray({:?}, {:?})", self.shape, self.memory)
    }
}
