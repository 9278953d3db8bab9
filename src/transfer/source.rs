//! What a copy to the device may read from: pinned memory that neither moves nor changes until the copy is done.

use crate::allocator::Event;
use crate::array::{PinnedArray, RegisteredArray, Shape};
use crate::driver::{Driver, StableMemory};
use crate::error::Error;
use crate::laws;
use bytemuck::Pod;
use core::any::Any;
use core::fmt;
use core::ops::{Deref, Range, RangeBounds};
use std::sync::Arc;

/// A source that a copy can own: page-locked memory at a fixed address, unchanged while it is owned.
///
/// [`PinnedArray`] is one; so are an `Arc` of one, which is read-only, and a [`Part`] of one.
///
/// # Safety
/// From [`StableSource::first`], the elements of [`StableSource::shape`] are readable, and neither move nor change nor
/// are freed while the value is only moved, until it is dropped or mutably borrowed. The memory is
/// page-locked: a device may read it directly.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the source of a copy that goes on while the program does",
    label = "its memory may move, change or go away before the copy is done",
    note = "copy from pinned memory: `gpu.pinned_from_slice(&values)?`, or an `Arc` or a `transfer::Part` of such an array",
    note = "or have a slice copied before the call returns: `gpu.array_from_slice(&values, &stream)?`"
)]
#[allow(unsafe_code, reason = "a contract that copies rely on")]
pub unsafe trait StableSource: Send + Sized + 'static {
    /// The type of its elements.
    type Item: Pod;
    /// The first element.
    fn first(&self) -> *const Self::Item;
    /// How many there are.
    fn shape(&self) -> Shape;

    /// Makes its elements readable: waits for other code's copies that may still write them. Sources of this crate do this.
    #[doc(hidden)]
    fn wait_ready(&self, _: seal::Seal) -> Result<(), Error> {
        Ok(())
    }

    /// Drops the source behind an event, if the owner of its memory supports events; else gives it back. Only sources of
    /// this crate implement it: other code cannot name the seal.
    #[doc(hidden)]
    fn drop_behind<D: Driver>(self, event: &Event<D>, _: seal::Seal) -> Result<(), Self> {
        let _ = event;
        Err(self)
    }
}

/// Cannot be named outside this crate, so that other code cannot drop a source early.
pub(super) mod seal {
    /// Made only here.
    #[derive(Clone, Copy, Debug)]
    #[allow(
        unreachable_pub,
        reason = "it stands in a public trait, which is not to be implemented in full outside this crate"
    )]
    pub struct Seal(pub(in crate::transfer) ());
}

#[allow(unsafe_code, reason = "the contract holds: a pinned array's memory is its own until it is dropped")]
// SAFETY: the address is the allocation's, which does not move with the handle; only `&mut` writes to it.
unsafe impl<T: Pod, D: Driver> StableSource for PinnedArray<T, D> {
    type Item = T;
    fn first(&self) -> *const T {
        self.as_ptr()
    }
    fn shape(&self) -> Shape {
        PinnedArray::shape(self)
    }
    fn wait_ready(&self, _: seal::Seal) -> Result<(), Error> {
        self.host_ready().map(drop)
    }
    fn drop_behind<E: Driver>(self, event: &Event<E>, _: seal::Seal) -> Result<(), Self> {
        // The pinned pool keeps the bytes until the event is complete. It knows events of its own device only.
        match (event as &dyn Any).downcast_ref::<Event<D>>() {
            Some(_) if !laws::keeps_source(self.memory().len()) => Ok(()),
            Some(event) if self.memory().record_use_until(event).is_ok() => Ok(()),
            _ => Err(self),
        }
    }
}

#[allow(
    unsafe_code,
    reason = "the contract holds: an `Arc` moves nothing, and gives no mutable access to its value"
)]
// SAFETY: the value stays where it is while a counted reference lives, and is shared, so it is not written.
unsafe impl<S: StableSource + Sync> StableSource for Arc<S> {
    type Item = S::Item;
    fn first(&self) -> *const S::Item {
        (**self).first()
    }
    fn shape(&self) -> Shape {
        (**self).shape()
    }
    fn wait_ready(&self, seal: seal::Seal) -> Result<(), Error> {
        (**self).wait_ready(seal)
    }
}

#[allow(unsafe_code, reason = "the contract holds: registered memory stays where it is until its array ends")]
// SAFETY: the address is the owner's elements', which stay (`StableMemory`) and are pinned until the array ends; only `&mut` writes them.
unsafe impl<O: StableMemory<Item: Pod>, D: Driver> StableSource for RegisteredArray<O, D> {
    type Item = O::Item;
    fn first(&self) -> *const O::Item {
        self.as_ptr()
    }
    fn shape(&self) -> Shape {
        RegisteredArray::shape(self)
    }
}

/// Some elements of a source, which the part owns.
///
/// ```
/// use millpond::{Allocator, Config, transfer::Part, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let copy = gpu.stream()?;
/// let mut x = gpu.zeros::<u16>(100, &copy)?;
/// let host = gpu.pinned_from_fn(1000, |i| i as u16)?;
/// let sent = x.copy_from(Part::new(host, 200..300), &copy)?;
/// let host = sent.wait()?.into_inner();
/// assert_eq!(x.to_vec(&copy)?, &host[200..300]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Part<S> {
    source: S,
    range: Range<usize>,
}

impl<S: StableSource> Part<S> {
    /// The elements of a range, in memory order.
    ///
    /// # Panics
    /// If the range does not lie in the source.
    #[track_caller]
    pub fn new(source: S, range: impl RangeBounds<usize>) -> Part<S> {
        let range = crate::array::resolve(&range, source.shape().elements().unwrap_or(0));
        Part { source, range }
    }
    /// The whole source again.
    pub fn into_inner(self) -> S {
        self.source
    }
    /// Which elements.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

#[allow(unsafe_code, reason = "the contract holds: it is that of its source")]
// SAFETY: elements inside those of a source that is owned.
unsafe impl<S: StableSource> StableSource for Part<S> {
    type Item = S::Item;
    fn first(&self) -> *const S::Item {
        self.source.first().wrapping_add(self.range.start)
    }
    fn shape(&self) -> Shape {
        Shape::line(self.range.len())
    }
    fn wait_ready(&self, seal: seal::Seal) -> Result<(), Error> {
        self.source.wait_ready(seal)
    }
    fn drop_behind<D: Driver>(self, event: &Event<D>, seal: seal::Seal) -> Result<(), Self> {
        let Part { source, range } = self;
        source.drop_behind(event, seal).map_err(|source| Part { source, range })
    }
}

impl<S: Deref<Target = [T]>, T> Deref for Part<S> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.source[self.range.clone()]
    }
}
impl<S: fmt::Debug> fmt::Debug for Part<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({:?} of {:?})", self.range, self.source)
    }
}
