//! Arrays in device memory.

use super::bytes_of;
use super::shape::Shape;
use super::view::{DeviceView, DeviceViewMut};
use crate::allocator::access::{Intent, Parts, Touch, Tracked, order_behind};
use crate::allocator::{Allocation, Allocator, Stream};
use crate::driver::{Called, Driver, QueuedBy};
use crate::error::{Error, Mismatch, Side};
use crate::units::{Addr, AllocationId, StreamId};
use bytemuck::Pod;
use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeBounds;

/// Elements on a device, contiguous, with a shape. Not readable by the host.
///
/// **Ordering.** Every operation names its stream and is queued behind the operations on this array that it conflicts
/// with, on any stream: a read behind the last write, a write also behind the reads, a read never behind
/// reads. Where the stream is not already ordered so, a wait is inserted, also for and on streams that are
/// [independent](Stream::set_independent); the host never waits. For this, two parts of one
/// array count as the same array. Declare work by other code with [`DeviceArray::record_use`]. Dropping the array, at any
/// time and on any thread, makes no driver call and does not block: its bytes are reused behind all of that work. Only the
/// last handle of an allocator that is gone waits, at [its end](Allocator#its-end): keep a clone of the [`Allocator`] to choose when that is.
///
/// ```
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(GIB);
/// let gpu = Allocator::new(sim.clone(), Config::default())?;
/// let (copy, work) = (gpu.stream()?, gpu.stream()?);
/// let mut x = gpu.zeros::<f32>([64, 32], &copy)?;
/// let sent = x.copy_from(gpu.pinned_from_fn([64, 32], |i| i as f32)?, &copy)?;
/// let back = x.rows(..2).to_pinned(&work)?;                 // `work` waits for the copy, on the device
/// drop(x);                                                  // at any time
/// assert_eq!(back.wait()?[63], 63.0);
/// drop(sent);
/// sim.verdict()?;
/// # Ok(()) }
/// ```
pub struct DeviceArray<T: Pod, D: Driver> {
    bytes: Tracked<D>,
    shape: Shape,
    /// `Send` and `Sync` for any `T`: plain old data has neither pointers nor interior mutability, and safe code can make a value
    /// of it from bytes on any thread, so no guarantee can depend on the thread.
    elements: PhantomData<fn() -> T>,
}

impl<D: Driver> Allocator<D> {
    /// An array with unspecified contents, valid for work on `stream` from now on. `shape` is a number of
    /// elements or an array of lengths. Ordering as [`Allocator::alloc`]: from the cache it makes no driver call.
    ///
    /// # Errors
    /// [`Error::Overflow`]; as [`Allocator::alloc`].
    #[track_caller]
    pub fn uninit<T: Pod>(
        &self,
        shape: impl Into<Shape>,
        stream: &Stream<D>,
    ) -> Result<DeviceArray<T, D>, Error> {
        let _called = Called::<D>::here();
        let shape = shape.into();
        let bytes = Tracked::new(self.alloc(bytes_of::<T>(shape)?, stream)?);
        Ok(DeviceArray::of(bytes, shape))
    }

    /// An array of zeroes: [`Allocator::uninit`] and a fill, queued on `stream`.
    ///
    /// # Errors
    /// As [`Allocator::uninit`]; the driver's.
    #[track_caller]
    pub fn zeros<T: Pod>(
        &self,
        shape: impl Into<Shape>,
        stream: &Stream<D>,
    ) -> Result<DeviceArray<T, D>, Error> {
        self.uninit(shape, stream)?.zeroed(stream)
    }
}

impl<T: Pod, D: Driver> DeviceArray<T, D> {
    pub(crate) fn of(bytes: Tracked<D>, shape: Shape) -> DeviceArray<T, D> {
        DeviceArray { bytes, shape, elements: PhantomData }
    }

    /// The array, with a fill of zeroes queued.
    #[track_caller]
    pub(crate) fn zeroed(mut self, stream: &Stream<D>) -> Result<DeviceArray<T, D>, Error> {
        self.fill_bytes(0, stream)?;
        Ok(self)
    }

    /// An array over an allocation, which has at least its bytes. What is already queued on the allocation's own stream
    /// counts as a write before everything; so do uses that were recorded on it.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the allocation is too short, or not aligned for `T`; [`Error::Overflow`].
    pub fn from_allocation(
        allocation: Allocation<D>,
        shape: impl Into<Shape>,
    ) -> Result<DeviceArray<T, D>, (Allocation<D>, Error)> {
        let shape = shape.into();
        match Self::fits("from_allocation", shape, allocation.len()) {
            Ok(()) => Ok(DeviceArray::of(Tracked::with_past(allocation), shape)),
            Err(e) => Err((allocation, e)),
        }
    }
    /// Fails unless an allocation of so many bytes holds an array of this shape.
    pub(crate) fn fits(verb: &'static str, shape: Shape, bytes: u64) -> Result<(), Error> {
        if bytes_of::<T>(shape)? <= bytes {
            return Ok(());
        }
        let advice = "an array's bytes must lie in its allocation: ask for fewer elements";
        Err(Self::unlike(verb, shape, bytes, advice))
    }
    /// An array of this shape cannot be made of an allocation of so many bytes.
    pub(crate) fn unlike(verb: &'static str, shape: Shape, bytes: u64, advice: &'static str) -> Error {
        let one = Side { what: "the allocation", element: "u8", shape: vec![bytes as usize] };
        let other = Side { what: "the array", element: core::any::type_name::<T>(), shape: shape.to_vec() };
        Mismatch { verb, one, other, advice }.into()
    }
    /// The allocation. From then on the program orders later work on it; its free still waits for all uses.
    ///
    /// # Errors
    /// The array again, if its memory is external ([`DeviceArray::from_external`]), or if a watcher has to see its end: a watched
    /// array becomes an [`AnyAllocation`](crate::erased::AnyAllocation) by [`DeviceArray::erase`].
    #[allow(clippy::result_large_err, reason = "the array itself comes back, and goes on being used")]
    pub fn into_allocation(self) -> Result<Allocation<D>, DeviceArray<T, D>> {
        if self.bytes.is_watched() {
            return Err(self);
        }
        self.into_parts().map(|(allocation, _)| allocation)
    }
    /// The allocation and its watchers.
    #[allow(clippy::result_large_err, reason = "the array itself comes back, and goes on being used")]
    pub(crate) fn into_parts(self) -> Result<Parts<D>, DeviceArray<T, D>> {
        let DeviceArray { bytes, shape, elements } = self;
        bytes.into_allocation().map_err(|bytes| DeviceArray { bytes, shape, elements })
    }

    /// The first byte, for kernels that other code launches: declare them with [`DeviceArray::record_use`]; the program
    /// orders them.
    pub fn address(&self) -> Addr {
        self.bytes.address()
    }
    /// How many elements.
    pub fn len(&self) -> usize {
        // Checked when the array was made.
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
    /// Which allocation it is; `None` for no bytes, and for external memory.
    pub fn id(&self) -> Option<AllocationId> {
        self.bytes.id()
    }
    /// The stream it was allocated or imported on; `None` for no bytes.
    pub fn stream_id(&self) -> Option<StreamId> {
        self.bytes.stream_id()
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if that has another number of elements.
    pub fn reshape(&mut self, shape: impl Into<Shape>) -> Result<(), Error> {
        self.shape = self.shape.reshaped::<T>("the device array", shape.into())?;
        Ok(())
    }

    /// All of it, to read.
    pub fn view(&self) -> DeviceView<'_, T, D> {
        DeviceView::new(&self.bytes, self.address(), self.shape, true)
    }
    /// All of it, to write.
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T, D> {
        DeviceViewMut::new(&self.bytes, self.address(), self.shape)
    }
    /// Some elements, to read: a range of indices in memory order, whatever the shape.
    ///
    /// # Panics
    /// If the range does not lie in the array.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> DeviceView<'_, T, D> {
        self.view().slice(range)
    }
    /// Some elements, to write.
    ///
    /// # Panics
    /// If the range does not lie in the array.
    #[track_caller]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> DeviceViewMut<'_, T, D> {
        self.view_mut().slice(range)
    }
    /// Some rows, to read: a range of the first dimension; the others stay.
    ///
    /// # Panics
    /// If the range does not lie in the first dimension.
    #[track_caller]
    pub fn rows(&self, range: impl RangeBounds<usize>) -> DeviceView<'_, T, D> {
        self.view().rows(range)
    }
    /// Some rows, to write.
    ///
    /// # Panics
    /// If the range does not lie in the first dimension.
    #[track_caller]
    pub fn rows_mut(&mut self, range: impl RangeBounds<usize>) -> DeviceViewMut<'_, T, D> {
        self.view_mut().rows(range)
    }
    /// The elements before `middle` and those from it on, for separate writes.
    ///
    /// # Panics
    /// If `middle` is beyond the end.
    #[track_caller]
    pub fn split_at_mut(&mut self, middle: usize) -> (DeviceViewMut<'_, T, D>, DeviceViewMut<'_, T, D>) {
        self.view_mut().split_at(middle)
    }

    /// Queues a fill of all bytes with one value, on `stream`, behind what it conflicts with.
    ///
    /// # Errors
    /// A stream of another device, a capturing stream, the driver's: nothing was then queued.
    #[track_caller]
    pub fn fill_bytes(&mut self, value: u8, stream: &Stream<D>) -> Result<(), Error> {
        self.view_mut().fill_bytes(value, stream)
    }

    /// Declares that work by other code on `stream`, queued by now or before the drop, uses the array and may write it. The bytes
    /// are then reused behind it; operations of this library on other streams come after whatever `stream` holds when they are
    /// queued. Orders nothing on `stream` itself: [`DeviceArray::wait_on`] does.
    ///
    /// # Errors
    /// As [`Allocation::record_use`].
    pub fn record_use(&self, stream: &Stream<D>) -> Result<(), Error> {
        self.bytes.declare(stream)
    }

    /// Makes `stream` wait, on the device, for all operations on the array so far, so that work by other code queued there
    /// next may read and write it.
    ///
    /// # Errors
    /// As [`DeviceArray::fill_bytes`].
    pub fn wait_on(&self, stream: &Stream<D>) -> Result<(), Error> {
        order_behind(stream, &[Touch { of: &self.bytes, intent: Intent::Write }], QueuedBy::Program)
    }
}

impl<T: Pod, D: Driver> fmt::Debug for DeviceArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceArray<{}>({:?}, {:?})", core::any::type_name::<T>(), self.shape, self.bytes)
    }
}
