//! Streams and events: how work is ordered, and how its completion becomes known.
//!
//! It does not know what the work does, nor which memory it touches.

use crate::units::{DeviceId, StreamId};
use crate::{DriverResult, patience};
use core::fmt;
use core::time::Duration;

/// What a stream is, as far as ordering goes. CUDA has no other kind; a match on it needs no wildcard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StreamKind {
    /// No implicit order with any other stream. What the allocator creates.
    NonBlocking,
    /// Ordered with the legacy default stream in both directions.
    Blocking,
    /// The legacy default stream of the context.
    LegacyDefault,
    /// A per-thread default stream: only its own thread may mark it. Blocking.
    PerThreadDefault,
}

/// A stream's identity and kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StreamInfo {
    /// The driver's unique number: never reused, unlike the handle's value.
    pub id: StreamId,
    /// The device it runs on.
    pub device: DeviceId,
    /// Its kind.
    pub kind: StreamKind,
    /// Its owner may destroy it at any moment, without notice. So the library uses its handle only inside calls to which the program passes this
    /// stream, and those calls record the markers of its work. Memory whose uses on it are behind no marker yet is held back until the next such
    /// call, or until the program synchronises the device.
    pub unmanaged: bool,
}

impl StreamInfo {
    /// A stream that its owner keeps.
    pub const fn new(id: StreamId, device: DeviceId, kind: StreamKind) -> StreamInfo {
        StreamInfo { id, device, kind, unmanaged: false }
    }
    /// Sets [`StreamInfo::unmanaged`].
    #[must_use]
    pub const fn unmanaged(self, on: bool) -> StreamInfo {
        StreamInfo { unmanaged: on, ..self }
    }
}

/// The stream as text: `stream 7`, or its kind if the program did not make it.
impl fmt::Display for StreamInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            StreamKind::NonBlocking | StreamKind::Blocking => self.id.fmt(f),
            StreamKind::LegacyDefault => f.write_str("the default stream"),
            StreamKind::PerThreadDefault => write!(f, "per-thread default {}", self.id),
        }
    }
}

/// How to make a stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Ordered with the legacy default stream. Off by default.
    pub blocking: bool,
    /// Lower numbers run first, as in CUDA; 0 by default.
    pub priority: i32,
}

impl StreamOptions {
    /// Sets [`StreamOptions::blocking`].
    #[must_use]
    pub const fn blocking(self, on: bool) -> StreamOptions {
        StreamOptions { blocking: on, ..self }
    }
    /// Sets [`StreamOptions::priority`].
    #[must_use]
    pub const fn priority(self, priority: i32) -> StreamOptions {
        StreamOptions { priority, ..self }
    }
}

/// Streams and events: how work is ordered, and how its completion becomes known.
///
/// # Safety
/// `record` captures all work queued on the stream before it; `wait` orders all work queued after it behind what the
/// event captured at the time of the call; `query` and `wait_event` answer `true` only if all captured work is complete.
/// An event never recorded is an empty set. An error is never "complete".
#[allow(unsafe_code, reason = "the contract that every ordering argument rests on")]
pub unsafe trait Fences: Clone + Send + Sync + Sized + 'static {
    /// A counted reference to a native stream; the last one destroys it if this driver created it.
    type Stream: Clone + fmt::Debug + Send + Sync + 'static;
    /// An event, destroyed when dropped.
    type Event: fmt::Debug + Send + Sync + 'static;

    /// Creates a stream.
    ///
    /// # Errors
    /// The driver's.
    fn create_stream(&self, options: StreamOptions) -> DriverResult<Self::Stream>;
    /// A stream's identity and kind. Must not be called for a capturing stream: it would destroy the capture.
    ///
    /// # Errors
    /// The driver's.
    fn stream_info(&self, stream: &Self::Stream) -> DriverResult<StreamInfo>;
    /// Whether the stream is capturing a graph. Harmless at any time.
    ///
    /// # Errors
    /// The driver's.
    fn is_capturing(&self, stream: &Self::Stream) -> DriverResult<bool>;
    /// Whether this reference to a stream of the driver's own was given out in a form on which other code can begin a capture:
    /// then the stream is queried before each operation. Makes no driver call. Adopted streams are queried anyway.
    fn may_capture(&self, stream: &Self::Stream) -> bool {
        let _ = stream;
        false
    }
    /// Whether this is the last reference to the stream, in any form that was given out. Then no other code can queue work on it, and whatever was
    /// queued through other references happens before this call returns. Makes no driver call; `false` where it is not known.
    ///
    /// The owner of an unmanaged stream can use it without a reference until it is destroyed: of such a stream the answer is whether it was
    /// destroyed. A default stream needs no reference at all: `false`. The allocator itself notices when the thread of a per-thread default stream
    /// ends.
    fn is_last_reference(&self, stream: &Self::Stream) -> bool {
        let _ = stream;
        false
    }
    /// Whether other code may capture a graph in this context, on a stream that cannot be queried here: then no context-wide
    /// event is recorded, which would destroy the capture, and no request waits for the device. Makes no driver call.
    fn expects_captures(&self) -> bool {
        false
    }
    /// Creates an event without timing.
    ///
    /// # Errors
    /// The driver's.
    fn create_event(&self) -> DriverResult<Self::Event>;
    /// Records the event on a stream.
    ///
    /// # Errors
    /// The driver's; the event then still captures what it did before.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> DriverResult<()>;
    /// Records the event behind everything queued on any stream of the context, including destroyed ones.
    ///
    /// # Errors
    /// The driver's, including "not supported".
    fn record_context(&self, event: &Self::Event) -> DriverResult<()>;
    /// Whether what the event captured is complete.
    ///
    /// # Errors
    /// The driver's; an error never means complete.
    fn query(&self, event: &Self::Event) -> DriverResult<bool>;
    /// Makes later work on `stream` wait for what the event captured.
    ///
    /// # Errors
    /// The driver's; nothing was then ordered.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> DriverResult<()>;
    /// Blocks the host until the stream is idle.
    ///
    /// # Errors
    /// The driver's.
    fn synchronize_stream(&self, stream: &Self::Stream) -> DriverResult<()>;
    /// Blocks the host until the device is idle.
    ///
    /// # Errors
    /// The driver's.
    fn synchronize_device(&self) -> DriverResult<()>;
    /// Blocks the host until the event is complete or `limit` is over; `false` when it is over. The default queries
    /// repeatedly: without a pause for the first 50 µs, then at growing intervals.
    ///
    /// # Errors
    /// The driver's.
    fn wait_event(&self, event: &Self::Event, limit: Duration) -> DriverResult<bool> {
        patience::query_until(limit, || self.query(event))
    }
    /// The clock that measures `wait_event`'s limit, from any fixed point: by default the process's own. A device
    /// with simulated time returns its host's virtual time, which its waits advance.
    fn host_time(&self) -> Duration {
        patience::process_time()
    }
    /// Runs a batch of driver calls so that they end no graph capture by other code.
    fn relaxed<R>(&self, batch: impl FnOnce() -> R) -> R {
        batch()
    }
}
