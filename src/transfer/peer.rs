//! Copies between the memories of two devices, each with its own allocator.
//!
//! One device's allocator does not know the other's streams, so each side names one of its own: the copy runs on the
//! source's stream, behind an event of the target's; the target's stream waits for it. Each side then records a use on a
//! stream that it knows. Later work on either stream comes after the copy.

use super::{over, same_shape};
use crate::allocator::Stream;
use crate::allocator::access::{Mark, Touch, operate, order_behind};
use crate::array::{DeviceArray, DeviceViewMut, IntoView};
use crate::driver::{Called, Driver, QueuedBy};
use crate::error::Error;
use crate::laws;
use bytemuck::Pod;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

impl<T: Pod, D: Driver> DeviceViewMut<'_, T, D> {
    /// Queues a copy from an array of another device; the host does not wait. It runs on `from_stream`, a stream of the
    /// source's device; `stream`, of this array's device, waits for it. Both ends may be dropped at once.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless both shapes are equal; a stream of the wrong device; a capturing stream; the driver's,
    /// "not supported" where the devices cannot reach each other. If the copy was queued before an error, it was waited
    /// for, if need be as in [`scope`](super::scope())'s errors.
    #[track_caller]
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    pub fn copy_from_peer<'s>(
        &mut self,
        source: impl IntoView<'s, Item = T, Device = D>,
        from_stream: &Stream<D>,
        stream: &Stream<D>,
    ) -> Result<(), Error> {
        let _called = Called::<D>::here();
        let source = source.into_view();
        let sides = (("the target", self.shape()), ("the source", source.shape()));
        same_shape::<T>("copy_from_peer", sides.0, sides.1)?;
        let (to, from, bytes) = (self.address(), source.address(), self.size_bytes());
        if bytes == 0 {
            return Ok(());
        }
        order_behind(stream, &[self.touch()], QueuedBy::Library)?;
        laws::steps::peer_comes_behind(|| from_stream.wait(&stream.record()?))?;
        // The other side's stream writes.
        let Touch { of, intent } = self.touch();
        of.note_admitted(stream.driver(), from_stream.id());
        of.note_operation(stream.driver(), from_stream.id(), intent.access(), QueuedBy::Library);
        let queue = || {
            let queued = operate(from_stream, &[source.touch()], Mark::Each, |driver, native| {
                // SAFETY: the source lies in an allocation that is reused only behind this use; the target's stream waits for
                // the copy before the target's use is recorded, and until then `self` has exclusive access.
                unsafe { driver.copy_peer(to, stream.driver(), from, bytes, native) }
            })?;
            // The next owner's work is ordered behind it, and this library knows of it.
            of.note_used(stream.driver(), from_stream.id(), true);
            let arrived = laws::steps::comes_behind_peer(|| {
                queued.event.and_then(|event| event.as_ref().map_or(Ok(()), |event| stream.wait(event)))
            });
            if arrived.is_err() && laws::steps::waits_for_lost_peer() {
                // Nothing on this side is ordered after the copy: only a wait of the host orders it. `arrived` is the more useful error.
                let _ = over(from_stream, from_stream.synchronize());
            }
            let recorded = operate(stream, &[self.touch()], Mark::Each, |_, _| Ok(())).map(drop);
            if recorded.is_err() && arrived.is_ok() {
                // Nothing on this side is ordered after the copy.
                let _ = over(from_stream, from_stream.synchronize());
            }
            recorded.and(arrived)
        };
        // If the driver panics behind the copy, nothing on this side is ordered after it either.
        catch_unwind(AssertUnwindSafe(queue)).unwrap_or_else(|panic| {
            let _ = over(from_stream, from_stream.synchronize());
            resume_unwind(panic)
        })
    }
}

impl<T: Pod, D: Driver> DeviceArray<T, D> {
    /// Queues a copy from an array on another device into all of this one: [`DeviceViewMut::copy_from_peer`].
    ///
    /// # Errors
    /// Shapes that differ, a stream of the wrong device, a capturing stream, the driver's: [`DeviceViewMut::copy_from_peer`].
    #[track_caller]
    pub fn copy_from_peer<'s>(
        &mut self,
        source: impl IntoView<'s, Item = T, Device = D>,
        from_stream: &Stream<D>,
        stream: &Stream<D>,
    ) -> Result<(), Error> {
        self.view_mut().copy_from_peer(source, from_stream, stream)
    }
}
