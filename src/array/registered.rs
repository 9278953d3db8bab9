//! The program's own memory as a pinned array: registered where it is, and given back with its owner.

use super::pinned_view::{PinnedView, PinnedViewMut};
use super::shape::Shape;
use crate::allocator::{Allocator, Registered};
use crate::driver::{Called, Driver, StableMemory};
use crate::error::Error;
use bytemuck::Pod;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// Elements of the program's own that the device can copy from and into on its own: a `Vec`, a boxed slice or another
/// [owner](StableMemory) that was pinned where it is, by [`Allocator::register`].
///
/// It is an ordinary `&[T]` and `&mut [T]`. A copy to the device takes it by value, as a [`PinnedArray`](crate::PinnedArray); copies in both
/// directions borrow its [views](RegisteredArray::view) in a [`transfer::scope`](crate::transfer::scope()). [`RegisteredArray::into_inner`] gives the owner
/// back.
///
/// Ending a registration waits for every kernel on the device. So a drop does not end it: owner and registration stay until the allocator's next
/// [trim](Allocator::trim), or its end. Registered memory does not count under the [limit of pinned memory](crate::Config::pinned_limit).
///
/// ```
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let table = gpu.register((0..1000_u32).collect::<Vec<_>>()).map_err(|(_, e)| e)?; // pinned where it is, nothing is copied
/// let (x, sent) = gpu.array_from_pinned(table, &stream)?;
/// let table: Vec<u32> = sent.wait()?.into_inner().map_err(|(_, e)| e)?;
/// assert_eq!(x.to_vec(&stream)?, table);
/// # Ok(()) }
/// ```
pub struct RegisteredArray<O: StableMemory, D: Driver>(Registered<O, D>);

impl<D: Driver> Allocator<D> {
    /// Pins memory that the program has, where it is, for asynchronous copies. It costs about as much as the memory has pages, and ending it waits for the
    /// device: it is for buffers that stay, or that are large and come from elsewhere. Memory that is touched for the first time by this
    /// call is slower than [`Allocator::alloc_pinned`]'s.
    ///
    /// # Errors
    /// The driver's, and the owner: a page of the memory may be pinned already, as for two buffers in one page; the device may not register memory.
    #[track_caller]
    pub fn register<O: StableMemory<Item: Pod>>(
        &self,
        owner: O,
    ) -> Result<RegisteredArray<O, D>, (O, Error)> {
        let _called = Called::<D>::here();
        self.registered(owner).map(RegisteredArray)
    }
}

impl<O: StableMemory<Item: Pod>, D: Driver> RegisteredArray<O, D> {
    /// The lengths of its dimensions: one.
    pub fn shape(&self) -> Shape {
        Shape::line(self.len())
    }
    /// All of it, borrowed for a copy ([`transfer::scope`](crate::transfer::scope)) to read.
    pub fn view(&self) -> PinnedView<'_, O::Item> {
        PinnedView::new(self, self.shape())
    }
    /// All of it, borrowed for a copy to write.
    pub fn view_mut(&mut self) -> PinnedViewMut<'_, O::Item> {
        let shape = self.shape();
        PinnedViewMut::new(self, shape)
    }
    /// The owner.
    pub fn owner(&self) -> &O {
        self.0.owner()
    }
    /// Ends the registration and gives the owner back. No copy is in flight: it would own this array. The driver's call waits for every kernel on the
    /// device.
    ///
    /// # Errors
    /// The driver's, and the array: it is still registered.
    pub fn into_inner(self) -> Result<O, (Self, Error)> {
        self.0.release().map_err(|(it, e)| (RegisteredArray(it), e))
    }
}

impl<O: StableMemory<Item: Pod>, D: Driver> Deref for RegisteredArray<O, D> {
    type Target = [O::Item];
    fn deref(&self) -> &[O::Item] {
        self.0.owner().elements()
    }
}
impl<O: StableMemory<Item: Pod>, D: Driver> DerefMut for RegisteredArray<O, D> {
    fn deref_mut(&mut self) -> &mut [O::Item] {
        self.0.elements_mut()
    }
}
impl<O: StableMemory, D: Driver> fmt::Debug for RegisteredArray<O, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredArray({} elements)", self.0.owner().elements().len())
    }
}
