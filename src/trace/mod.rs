//! Operations and events as data: what property tests generate, fuzzers decode, recorders emit and replay runs.
//!
//! Two halves. A [`Program`] is what a user does to an allocator, in one language for every tool; an [`Event`] is what
//! an allocator did. This module does not know how an operation is carried out: it sees no allocator, no device and no
//! stream but by number.

mod binary;
#[cfg(feature = "import")]
pub mod import;
mod log;
mod op;
mod parse;
mod program;
mod ring;
mod shrink;
#[cfg(feature = "proptest")]
mod strategy;
mod text;
mod weave;

#[cfg(test)]
mod tests;

pub use binary::{BinaryError, BinaryReason, MAGIC};
pub use log::{Action, Call, Info, Log};
pub use op::{Access, BlockNo, EventNo, Op, Operands, Step, StreamNo, ThreadNo};
pub use program::{Fault, Program, Reason};
pub use ring::{JsonLines, Ring, json_line};
pub use shrink::{TRIES, shrink, shrink_within};
#[cfg(feature = "proptest")]
pub use strategy::{hostile_programs, programs};
pub use text::{TextError, Written};

use crate::units::{Addr, AllocationId, StreamId};

/// Something an allocator did, for sinks and recorders.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Event {
    /// Bytes were handed out.
    Allocate {
        /// Which allocation.
        id: AllocationId,
        /// First byte.
        addr: Addr,
        /// Bytes asked for.
        asked: u64,
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
    Lend {
        /// First byte.
        addr: Addr,
        /// Its length.
        bytes: u64,
        /// The lender's stream.
        from: StreamId,
        /// The borrower's stream.
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
    /// A segment went back to the device.
    Trim {
        /// First byte.
        addr: Addr,
        /// Its length.
        bytes: u64,
    },
    /// A request failed.
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// The stream.
        stream: StreamId,
    },
}

/// Takes events. Called with no lock held; it may call back into the allocator. Never called by a drop.
pub trait Sink: Send + Sync + 'static {
    /// One event, with its number in the allocator's order of events.
    fn event(&self, number: u64, event: &Event);
}
