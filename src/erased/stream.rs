//! Streams without their driver's type.

use super::typed;
use crate::allocator::Stream;
use crate::driver::{Driver, StreamInfo};
use crate::error::Error;
use crate::units::StreamId;
use core::any::Any;
use core::fmt;
use std::sync::Arc;

/// A [`Stream`] without its driver's type: a counted handle, like a `Stream`.
#[derive(Clone)]
pub struct AnyStream(Arc<dyn Object>);

trait Object: Any + Send + Sync + fmt::Debug {
    fn info(&self) -> StreamInfo;
    fn wait_stream(&self, other: &AnyStream) -> Result<(), Error>;
    fn synchronize(&self) -> Result<(), Error>;
}

impl<D: Driver> Object for Stream<D> {
    fn info(&self) -> StreamInfo {
        Stream::info(self)
    }
    fn wait_stream(&self, other: &AnyStream) -> Result<(), Error> {
        Stream::wait_stream(self, typed(other, Stream::info(self).device)?)
    }
    fn synchronize(&self) -> Result<(), Error> {
        Stream::synchronize(self)
    }
}

impl AnyStream {
    pub(super) fn new<D: Driver>(stream: Stream<D>) -> AnyStream {
        AnyStream(Arc::new(stream))
    }
    /// The driver's unique id: never reused, unlike the handle's value.
    pub fn id(&self) -> StreamId {
        self.info().id
    }
    /// Identity, device and kind.
    pub fn info(&self) -> StreamInfo {
        self.0.info()
    }
    /// Makes this stream wait, on the device, for everything queued on `other` so far. The host does not wait.
    ///
    /// # Errors
    /// As [`Stream::wait_stream`]; [`Error::OtherAllocator`] for a stream of another kind of device.
    pub fn wait_stream(&self, other: &AnyStream) -> Result<(), Error> {
        self.0.wait_stream(other)
    }
    /// Blocks the host until everything queued on this stream is complete.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn synchronize(&self) -> Result<(), Error> {
        self.0.synchronize()
    }
    /// The stream with its type, to launch on and for arrays; `None` if it is of another kind of device.
    pub fn downcast_ref<D: Driver>(&self) -> Option<&Stream<D>> {
        (&*self.0 as &dyn Any).downcast_ref()
    }
}

impl fmt::Debug for AnyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
