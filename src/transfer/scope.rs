//! Copies with borrowed host memory: a closure queues them, and they are waited for before the borrows end.
//!
//! A guard that waits when it is dropped would not be enough: it can be forgotten, and the borrows would end with the copies
//! under way. So the wait is in the frame of [`scope`] itself, which cannot be forgotten, even when the closure panics.

use super::{noted, over, same_shape};
use crate::allocator::access::{Mark, Queued, operate};
use crate::allocator::{Event, Stream};
use crate::array::{AsViewMut, IntoView, PinnedView, PinnedViewMut};
#[cfg(doc)]
use crate::array::{DeviceView, DeviceViewMut};
use crate::driver::{Called, Driver};
use crate::error::Error;
use bytemuck::Pod;
use core::cell::RefCell;
use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

/// Where copies with borrowed host memory are queued: see [`scope`].
pub struct Scope<'scope, D: Driver> {
    stream: &'scope Stream<D>,
    last: RefCell<Last<D>>,
    // Invariant: neither longer nor shorter borrows are accepted.
    borrows: PhantomData<&'scope mut &'scope ()>,
}

/// What has to be waited for.
enum Last<D: Driver> {
    Nothing,
    /// The event behind the newest copy; all are on one stream.
    Event(Event<D>),
    /// A copy was queued, and there may be no event behind it.
    Unknown,
}

/// Runs a closure that queues copies between device arrays and *borrowed* pinned memory on `stream`, and blocks the host
/// until they are done. What the copies borrow stays borrowed for the whole call: it can neither be read early, nor
/// changed, nor dropped. The host also waits if the closure panics.
///
/// ```
/// use millpond::{Allocator, Config, transfer, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let mut x = gpu.zeros::<i32>(6, &stream)?;
/// let (from, mut to) = (gpu.pinned_from_fn(4, |i| i as i32)?, gpu.pinned_zeros::<i32>(6)?);
/// transfer::scope(&stream, |copies| {
///     copies.upload(&mut x.slice_mut(1..5), from.view())?;
///     copies.download(&x, to.view_mut())
/// })??;
/// assert_eq!(to[..], [0, 0, 1, 2, 3, 0]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// The driver's, for the wait. If the context is not lost, and waiting for the device fails too, the
/// process ends: the borrows cannot be given back. If the stream's own waits fail, the host may wait by unpinning a page, which blocks other
/// threads' launches meanwhile ([`Allocator::synchronize_beside_captures`](crate::Allocator::synchronize_beside_captures) says what that work must not wait for).
pub fn scope<'scope, D: Driver, R>(
    stream: &'scope Stream<D>,
    copies: impl FnOnce(&Scope<'scope, D>) -> R,
) -> Result<R, Error> {
    let scope = Scope { stream, last: RefCell::new(Last::Nothing), borrows: PhantomData };
    let closing = Closing(&scope);
    let result = copies(&scope);
    // If it panics, the borrows end only after another wait.
    let closed = scope.close();
    core::mem::forget(closing);
    closed.map(|()| result)
}

/// Closes the scope when the closure panics, or the driver in the wait.
struct Closing<'a, 'scope, D: Driver>(&'a Scope<'scope, D>);

impl<D: Driver> Drop for Closing<'_, '_, D> {
    fn drop(&mut self) {
        // A panic is under way: the error cannot be reported.
        let _ = self.0.close();
    }
}

impl<'scope, D: Driver> Scope<'scope, D> {
    /// Queues a copy to the device, as [`DeviceViewMut::copy_from`]; the source is borrowed.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless both shapes are equal; a stream of another device, a capturing stream, the driver's:
    /// [`DeviceViewMut::copy_from`]. Nothing was then queued.
    #[track_caller]
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    pub fn upload<T: Pod>(
        &self,
        target: &mut impl AsViewMut<Item = T, Device = D>,
        source: PinnedView<'scope, T>,
    ) -> Result<(), Error> {
        let _called = Called::<D>::here();
        let target = target.as_view_mut();
        same_shape::<T>("upload", ("the target", target.shape()), ("the source", source.shape()))?;
        let (to, from, bytes) = (target.address(), source.first(), target.size_bytes());
        self.queue(bytes, || {
            operate(self.stream, &[target.touch()], Mark::Each, |driver, native| {
                // SAFETY: the source is borrowed until the scope has waited; the target lies in an allocation that is
                // reused only behind this use, and the view has exclusive access.
                let copy = unsafe { driver.copy_h2d(to, from.cast(), bytes, native) };
                noted(copy, self.stream, from)
            })
        })
    }

    /// Queues a copy to the host, as [`DeviceView::copy_to`]; the target is borrowed, and can be read after the scope.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless both shapes are equal; a stream of another device, a capturing stream, the driver's:
    /// [`DeviceView::copy_to`]. Nothing was then queued.
    #[track_caller]
    pub fn download<'s, T: Pod>(
        &self,
        source: impl IntoView<'s, Item = T, Device = D>,
        target: PinnedViewMut<'scope, T>,
    ) -> Result<(), Error> {
        let _called = Called::<D>::here();
        let source = source.into_view();
        same_shape::<T>("download", ("the target", target.shape()), ("the source", source.shape()))?;
        self.queue(source.size_bytes(), || source.read_into(target.first(), self.stream))
    }

    fn queue(&self, bytes: u64, copy: impl FnOnce() -> Result<Queued<D>, Error>) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let before = self.last.replace(Last::Unknown);
        match copy() {
            Err(e) => {
                // Nothing was queued.
                self.last.replace(before);
                Err(e)
            }
            Ok(Queued { event: Ok(Some(event)) }) => {
                self.last.replace(Last::Event(event));
                Ok(())
            }
            // It is queued, and the stream is waited for.
            Ok(Queued { .. }) => Ok(()),
        }
    }

    /// Waits for all copies. If the driver panics in the wait, the next wait is for the whole stream.
    fn close(&self) -> Result<(), Error> {
        let waited = match self.last.replace(Last::Unknown) {
            Last::Nothing => Ok(()),
            // A wait for the stream spares captures by other code, which one for the device does not.
            Last::Event(event) => event.synchronize(Duration::MAX).or_else(|_| self.stream.synchronize()),
            Last::Unknown => self.stream.synchronize(),
        };
        let closed = over(self.stream, waited);
        self.last.replace(Last::Nothing);
        closed
    }
}

impl<D: Driver> fmt::Debug for Scope<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({:?})", self.stream)
    }
}
