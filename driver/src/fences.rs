//! Streams and events: how work is ordered, and how its completion becomes known.
//!
//! It does not know what the work does, nor which memory it touches.

use crate::units::{DeviceId, StreamId};
use crate::{DriverResult, patience};
use core::fmt;
use core::time::Duration;

/// What a stream is, as far as ordering goes.
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
pub struct StreamInfo {
    /// The driver's unique number: never reused, unlike the handle's value.
    pub id: StreamId,
    /// The device it runs on.
    pub device: DeviceId,
    /// Its kind.
    pub kind: StreamKind,
    /// Whoever made it destroys it when they like: it may be named only in a call that names it itself. Such calls mark what it
    /// holds; what no such call has marked is held back until the program says that the device is quiet.
    pub unmanaged: bool,
}

/// What a person calls the stream: `stream 7`, or by its kind where the program did not make it.
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
pub struct StreamOptions {
    /// Ordered with the legacy default stream. Off by default.
    pub blocking: bool,
    /// Lower numbers run first, as in CUDA; 0 by default.
    pub priority: i32,
}

/// Streams and events: how work is ordered and its completion learnt.
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
    /// Whatever the driver says.
    fn create_stream(&self, options: StreamOptions) -> DriverResult<Self::Stream>;
    /// A stream's identity and kind. May not be asked of a capturing stream: it would destroy the capture.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn stream_info(&self, stream: &Self::Stream) -> DriverResult<StreamInfo>;
    /// Whether the stream is recording a graph. Harmless at any time.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn is_capturing(&self, stream: &Self::Stream) -> DriverResult<bool>;
    /// Whether this reference to a stream of the driver's own was given out in a form that somebody else can begin a capture
    /// on: then it is asked before each operation. Makes no driver call. Streams that are adopted are asked anyway.
    fn may_capture(&self, stream: &Self::Stream) -> bool {
        let _ = stream;
        false
    }
    /// Whether nobody has another reference to the stream, in any form that was given out, so that nobody else can queue work on it. What
    /// was queued through the others happens before the answer. Of an unmanaged stream, which whoever made it has until its end: whether it has
    /// ended. Of a default stream, which needs no reference: `false`; that the thread of one has ended the allocator knows itself. Makes no
    /// driver call; `false` where it is not known.
    fn is_last_reference(&self, stream: &Self::Stream) -> bool {
        let _ = stream;
        false
    }
    /// Whether somebody else may capture a graph in this context, on a stream that nobody here can ask: then no context-wide
    /// event is recorded, which would destroy the capture, and no request waits for the device. Makes no driver call.
    fn expects_captures(&self) -> bool {
        false
    }
    /// Creates an event that keeps no time.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn create_event(&self) -> DriverResult<Self::Event>;
    /// Records the event on a stream.
    ///
    /// # Errors
    /// Whatever the driver says; the event then captures what it did before.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> DriverResult<()>;
    /// Records the event behind everything queued on any stream of the context, destroyed ones included.
    ///
    /// # Errors
    /// Whatever the driver says, "not supported" included.
    fn record_context(&self, event: &Self::Event) -> DriverResult<()>;
    /// Whether what the event captured is complete.
    ///
    /// # Errors
    /// Whatever the driver says; never to be read as complete.
    fn query(&self, event: &Self::Event) -> DriverResult<bool>;
    /// Makes later work on `stream` wait for what the event captured.
    ///
    /// # Errors
    /// Whatever the driver says; nothing was then ordered.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> DriverResult<()>;
    /// Blocks the host until the stream is idle.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn synchronize_stream(&self, stream: &Self::Stream) -> DriverResult<()>;
    /// Blocks the host until the device is idle.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn synchronize_device(&self) -> DriverResult<()>;
    /// Blocks the host until the event is complete or `limit` is over; `false` when it is over. By default it asks over and
    /// over: without a pause for the first 50 µs, then ever more rarely.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn wait_event(&self, event: &Self::Event, limit: Duration) -> DriverResult<bool> {
        patience::ask_until(limit, || self.query(event))
    }
    /// The clock that `wait_event`'s limit is measured by, from any fixed point: the process's own by default. A device
    /// whose time is simulated answers with its host's virtual time, which its waits move.
    fn host_time(&self) -> Duration {
        patience::process_time()
    }
    /// Runs a batch of driver calls so that they break nobody's graph capture.
    fn relaxed<R>(&self, batch: impl FnOnce() -> R) -> R {
        batch()
    }
}
