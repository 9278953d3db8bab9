//! What can go wrong, as the caller needs it: one enum, an out-of-memory error with its facts, a driver error with its
//! code and call.
//!
//! Every message says what was requested, what was found and what to do. A broken invariant is never an error: it panics
//! with its number. This module knows none of the mechanics that fail.

mod difference;
mod memory;
mod sharing;

pub use difference::Difference;
pub use memory::{Holder, OutOfMemory};
pub use sharing::NotShareable;

pub use millpond_driver::{DriverError, DriverErrorKind, Unavailable};

use crate::report::bytes;
use crate::units::{Addr, DeviceId, StreamId};
use core::fmt;

/// One side of an operation on two arrays.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Side {
    /// What it is, such as "the target, a device array".
    pub what: &'static str,
    /// The name of its elements' type.
    pub element: &'static str,
    /// A length for each dimension.
    pub shape: Vec<usize>,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has shape {:?} of {} (", self.what, self.shape, self.element)?;
        // A length of 0 makes it 0, however large the others are.
        let empty = self.shape.contains(&0).then_some(0);
        match empty.or_else(|| self.shape.iter().try_fold(1usize, |n, &len| n.checked_mul(len))) {
            Some(elements) => write!(f, "{elements} elements)"),
            None => f.write_str("more elements than can be counted)"),
        }
    }
}

/// Two arrays that do not fit together.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{verb}: {one}, {other}: {advice}")]
#[non_exhaustive]
pub struct Mismatch {
    /// The operation, such as `copy_from`.
    pub verb: &'static str,
    /// One side: the target, or the existing side.
    pub one: Side,
    /// The other side: the source, or what was requested.
    pub other: Side,
    /// What to do.
    pub advice: &'static str,
}

/// A range of external memory that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("memory from elsewhere, {bytes} bytes at {address}, {kind}")]
#[non_exhaustive]
pub struct ExternalRange {
    /// The first byte given.
    pub address: Addr,
    /// The length given, in bytes.
    pub bytes: u64,
    /// What is wrong with it.
    pub kind: ExternalRangeKind,
}

/// What is wrong with a range of external memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalRangeKind {
    /// The address is null.
    #[error("begins at null: look at what its allocation returned")]
    Null,
    /// It has no bytes, or the array has none: there would be nothing to own.
    #[error("or the array in it, has no bytes: use an empty array of ours")]
    Empty,
    /// Its address is not a multiple of this, which the elements need.
    #[error("begins at no multiple of {align}, as its elements must: choose another type or address")]
    Misaligned {
        /// In bytes.
        align: u64,
    },
    /// It ends beyond the address space.
    #[error("ends beyond all addresses: its length is in bytes")]
    Wraps,
    /// The array needs more bytes.
    #[error("is shorter than the array, which has {needed}: ask for fewer elements")]
    TooShort {
        /// How many.
        needed: u64,
    },
}

/// The error of the allocator's functions. Nothing is lost when one fails.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is above what a range can ever be.
    #[error("requested {requested} bytes; one allocation holds at most {max}: split the request")]
    TooLarge {
        /// Requested bytes.
        requested: u64,
        /// The maximum.
        max: u64,
    },
    /// The alignment is not a power of two, or above what a range can have.
    #[error("requested an alignment of {requested} bytes; it must be a power of two up to {max}")]
    BadAlignment {
        /// Requested bytes.
        requested: u64,
        /// The maximum.
        max: u64,
    },
    /// No memory, with the facts.
    #[error("{0}")]
    OutOfMemory(#[source] Box<OutOfMemory>),
    /// An address at which no memory of this allocator lies, or a range that is not all in one of its segments.
    #[error(
        "{bytes} bytes at {address} are not in one segment of this allocator's: give an address within a block that it allocated, and no external memory"
    )]
    UnknownAddress {
        /// The first address given.
        address: Addr,
        /// How many bytes from there.
        bytes: u64,
    },
    /// Memory that another process cannot open as requested.
    #[error("{0}")]
    NotShareable(#[source] Box<NotShareable>),
    /// The request would exceed a limit of its user ([`wrap::Limited`](crate::wrap::Limited)).
    #[error(
        "requested {} where {} of at most {} are live: free something, or raise this limit (set_limit)",
        bytes(*requested),
        bytes(*allocated),
        bytes(*max)
    )]
    AboveLimit {
        /// Requested bytes.
        requested: u64,
        /// Live bytes under the limit.
        allocated: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// The stream belongs to another allocator.
    #[error(
        "{stream} was made by another allocator than this one of {device}: use a stream from this allocator, or adopt it"
    )]
    OtherAllocator {
        /// The given stream.
        stream: StreamId,
        /// The device of this allocator.
        device: DeviceId,
    },
    /// The given stream, event, array or range belongs to another device, or to another context of this one:
    /// then both numbers are the same.
    #[error("{}", wrong_device(*found, *expected))]
    WrongDevice {
        /// The device of the argument.
        found: DeviceId,
        /// The device of the allocator, the array or the stream that was called.
        expected: DeviceId,
    },
    /// The stream is capturing a graph: what is allocated or queued on it would become a part of that, and be replayed into bytes long after they are
    /// reused; and a wait for it, or for the device, would end the capture.
    #[error(
        "{} is capturing a graph, which can be replayed after this memory has another owner, and which no wait survives: allocate before the capture, and do the rest when it has ended",
        stream.map_or_else(|| "the stream".to_owned(), |s| s.to_string())
    )]
    Capturing {
        /// The stream, if its id was known before the capture began: querying it would end the capture.
        stream: Option<StreamId>,
    },
    /// Two arrays do not fit together: their shapes, lengths or element types differ.
    #[error("{0}")]
    Mismatch(#[source] Box<Mismatch>),
    /// A kernel and its CPU reference left an element different.
    #[error("{0}")]
    Differs(#[source] Box<Difference>),
    /// External memory cannot be used as given.
    #[error("{0}")]
    ExternalRange(#[source] ExternalRange),
    /// A shape with more dimensions than a [`Shape`](crate::Shape) has.
    #[error(
        "a shape of {requested} dimensions was given, an array has at most {max}: join neighbouring dimensions"
    )]
    TooManyDimensions {
        /// How many lengths were given.
        requested: usize,
        /// How many there can be.
        max: usize,
    },
    /// An array of this many elements has more bytes than any array, 2^63 - 1, or more elements than can be counted.
    #[error(
        "an array of shape {shape:?} with {element_bytes} bytes an element has more than 2^63 - 1 bytes, or more elements than 64 bits can count: split it"
    )]
    Overflow {
        /// The requested elements, a length for each dimension.
        shape: Vec<usize>,
        /// Bytes of one element.
        element_bytes: usize,
    },
    /// A setting cannot be read.
    #[error("{name} is {found:?}; expected {expected}")]
    Config {
        /// The setting's or the variable's name.
        name: &'static str,
        /// What was found.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// A bounded wait for the device ran out.
    #[error("gave up after {millis} ms waiting for {what}: the device is stuck or the wait is too short")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// For how long, in milliseconds.
        millis: u64,
    },
    /// There is no usable device.
    #[error("{0}")]
    Unavailable(#[source] Unavailable),
    /// The driver failed.
    #[error("{0}")]
    Driver(#[from] DriverError),
}

impl Error {
    /// The facts, when this is an out-of-memory error.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            Error::OutOfMemory(o) => Some(o),
            _ => None,
        }
    }
    /// Whether the device's context is lost: nothing runs on it any more, and nothing will work again in this process.
    pub fn is_context_lost(&self) -> bool {
        match self {
            Error::Driver(e) | Error::Unavailable(Unavailable::Driver(e)) => e.is_context_lost(),
            _ => false,
        }
    }
}

/// If both numbers are the same, the contexts differ.
fn wrong_device(found: DeviceId, expected: DeviceId) -> String {
    if found == expected {
        format!(
            "what was given is of another context of {found}: use a stream, an event or memory made in this context"
        )
    } else {
        format!(
            "what was given is on {found}, where {expected} was expected: use a stream, an event or memory of {expected}"
        )
    }
}

impl From<Unavailable> for Error {
    /// A driver that exists and failed becomes [`Error::Driver`].
    fn from(u: Unavailable) -> Error {
        match u {
            Unavailable::Driver(e) => Error::Driver(e),
            other => Error::Unavailable(other),
        }
    }
}
impl From<Mismatch> for Error {
    fn from(m: Mismatch) -> Error {
        Error::Mismatch(Box::new(m))
    }
}
impl From<NotShareable> for Error {
    fn from(n: NotShareable) -> Error {
        Error::NotShareable(Box::new(n))
    }
}
impl From<Difference> for Error {
    fn from(d: Difference) -> Error {
        Error::Differs(Box::new(d))
    }
}
impl From<OutOfMemory> for Error {
    fn from(e: OutOfMemory) -> Error {
        Error::OutOfMemory(Box::new(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_there_and_failed_is_a_drivers_error() {
        let failed =
            DriverError::new("cuInit", 803, DriverErrorKind::Other, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
        assert!(matches!(Error::from(Unavailable::Driver(failed.clone())), Error::Driver(e) if e == failed));
        assert!(matches!(
            Error::from(Unavailable::NoDevice { requested: 1, found: 1 }),
            Error::Unavailable(Unavailable::NoDevice { requested: 1, found: 1 })
        ));
    }

    #[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
    #[test]
    fn an_allocation_on_a_gpu_may_be_used_and_dropped_on_any_thread() {
        fn travels<T: Send + Sync + 'static>() {}
        travels::<crate::Allocation<crate::cuda::Cuda>>();
    }
}
