//! What an allocator did, one event each, and the trait of their receivers.
//!
//! It does not know when events happen, nor what a sink does with them.

use millpond_driver::units::{Addr, AllocationId, StreamId};

/// Something an allocator did, for sinks and recorders.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Event {
    /// Bytes were handed out.
    Allocate {
        /// Which allocation.
        id: AllocationId,
        /// First byte.
        addr: Addr,
        /// Requested bytes.
        requested: u64,
        /// Bytes after rounding.
        rounded: u64,
        /// The stream.
        stream: StreamId,
        /// Whether the pool had them.
        hit: bool,
    },
    /// Bytes came back.
    Free {
        /// Which allocation.
        id: AllocationId,
        /// First byte.
        addr: Addr,
        /// Bytes after rounding.
        rounded: u64,
        /// The pool's stream.
        stream: StreamId,
        /// Whether another stream still uses them.
        in_flight: bool,
    },
    /// A segment was taken from the device.
    Grow {
        /// First byte.
        addr: Addr,
        /// Its length.
        bytes: u64,
        /// The pool's stream.
        stream: StreamId,
    },
    /// A range went from one pool to another.
    Migrate {
        /// First byte.
        addr: Addr,
        /// Its length.
        bytes: u64,
        /// The stream that it comes from.
        from: StreamId,
        /// The stream of the pool that receives it.
        to: StreamId,
    },
    /// One stream was made to wait for another, for reuse.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The stream it waits for; `None` for all streams of the context.
        on: Option<StreamId>,
    },
    /// The host waited for the device.
    HostWait {
        /// The stream waited for, if one.
        stream: Option<StreamId>,
    },
    /// A segment went back to the device, or a physical handle of a window.
    Trim {
        /// First byte.
        addr: Addr,
        /// Its length.
        bytes: u64,
    },
    /// More was reserved than a soft limit, for the first time since less was.
    SoftLimit {
        /// Bytes reserved.
        reserved: u64,
        /// The soft limit.
        limit: u64,
        /// Whether it is the limit of the allocator's group: all members' bytes count.
        of_group: bool,
    },
    /// A request failed.
    OutOfMemory {
        /// Requested bytes.
        requested: u64,
        /// The stream.
        stream: StreamId,
    },
}

/// Takes events. Called with no lock held; it may call back into the allocator. Never called by a drop.
pub trait Sink: Send + Sync + 'static {
    /// One event, with its number in the allocator's order of events.
    fn event(&self, number: u64, event: &Event);
}
