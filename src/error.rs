//! What can go wrong, shaped for the caller: one enum, an out-of-memory error with its facts, a driver error with its
//! code and call.
//!
//! Every message says what was asked, what was found and what to do. A broken invariant is never an error: it panics
//! with its number. This module knows none of the mechanics that fail.

mod difference;
mod memory;

pub use difference::Difference;
pub use memory::{Holder, OutOfMemory};

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
        let elements: usize = self.shape.iter().product();
        write!(f, "{} has shape {:?} of {} ({elements} elements)", self.what, self.shape, self.element)
    }
}

/// Two arrays that do not fit together.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mismatch {
    /// What was to be done, such as `copy_from`.
    pub verb: &'static str,
    /// One side: the target, or what is.
    pub one: Side,
    /// The other side: the source, or what was asked for.
    pub other: Side,
    /// What to do.
    pub advice: &'static str,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {}: {}", self.verb, self.one, self.other, self.advice)
    }
}
impl std::error::Error for Mismatch {}

/// A range of memory from elsewhere that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ForeignRange {
    /// The first byte given.
    pub address: Addr,
    /// The length given, in bytes.
    pub bytes: u64,
    /// What is wrong with it.
    pub kind: ForeignRangeKind,
}

/// What is wrong with a range of memory from elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ForeignRangeKind {
    /// The address is null.
    Null,
    /// It has no bytes, or the array has none: there is nothing that could be owned.
    Empty,
    /// Its address is no multiple of this, as its elements' are.
    Misaligned {
        /// In bytes.
        align: u64,
    },
    /// It ends beyond all addresses.
    Wraps,
    /// The array needs more bytes.
    TooShort {
        /// How many.
        needed: u64,
    },
}

impl fmt::Display for ForeignRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory from elsewhere, {} bytes at {}, ", self.bytes, self.address)?;
        match self.kind {
            ForeignRangeKind::Null => f.write_str("begins at null: look at what its allocation returned"),
            ForeignRangeKind::Empty => {
                f.write_str("or the array in it, has no bytes: use an empty array of ours")
            }
            ForeignRangeKind::Misaligned { align } => {
                write!(
                    f,
                    "begins at no multiple of {align}, as its elements must: choose another type or address"
                )
            }
            ForeignRangeKind::Wraps => f.write_str("ends beyond all addresses: its length is in bytes"),
            ForeignRangeKind::TooShort { needed } => {
                write!(f, "is shorter than the array, which has {needed}: ask for fewer elements")
            }
        }
    }
}
impl std::error::Error for ForeignRange {}

/// What the allocator's verbs return when they cannot do what was asked. Nothing is lost when one does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The request is above what a range can ever be.
    TooLarge {
        /// Bytes asked for.
        asked: u64,
        /// The most that can be asked.
        most: u64,
    },
    /// The alignment is no power of two, or above what a range can have.
    BadAlignment {
        /// Bytes asked for.
        asked: u64,
        /// The most that can be asked.
        most: u64,
    },
    /// No memory, with the facts.
    OutOfMemory(Box<OutOfMemory>),
    /// The request would pass a limit that its user was given ([`wrap::Limited`](crate::wrap::Limited)).
    AboveLimit {
        /// Bytes asked for.
        asked: u64,
        /// Bytes alive under the limit.
        live: u64,
        /// The limit in bytes.
        most: u64,
    },
    /// The stream belongs to another allocator.
    ForeignStream {
        /// The stream given.
        stream: StreamId,
        /// The device of this allocator.
        device: DeviceId,
    },
    /// The stream, the event, the array or the range given belongs to another device, or to another context of this one:
    /// then both numbers are the same.
    WrongDevice {
        /// The device of what was given.
        found: DeviceId,
        /// The device of the allocator, the array or the stream that it was given to.
        expected: DeviceId,
    },
    /// The stream is recording a graph: it would replay into these bytes long after they are reused.
    Capturing {
        /// The stream, if its id was known before the capture began: asking for it would end the capture.
        stream: Option<StreamId>,
    },
    /// Two arrays do not fit together: their shapes, lengths or element types differ.
    Mismatch(Box<Mismatch>),
    /// A kernel and its CPU reference left an element different.
    Differs(Box<Difference>),
    /// Memory from elsewhere cannot be used as it was given.
    ForeignRange(ForeignRange),
    /// A shape with more dimensions than a [`Shape`](crate::Shape) has.
    TooManyDimensions {
        /// How many lengths were given.
        asked: usize,
        /// How many there can be.
        most: usize,
    },
    /// An array of this many elements has more bytes than any address.
    Overflow {
        /// The elements asked for, a length for each dimension.
        shape: Vec<usize>,
        /// Bytes of one element.
        element_bytes: usize,
    },
    /// A setting cannot be read.
    Config {
        /// The setting's or the variable's name.
        name: &'static str,
        /// What was found.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// A bounded wait for the device ran out.
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// For how long, in milliseconds.
        millis: u64,
    },
    /// There is no device to work on.
    Unavailable(Unavailable),
    /// The driver failed.
    Driver(DriverError),
}

impl Error {
    /// The facts, when this is an out-of-memory error.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            Error::OutOfMemory(o) => Some(o),
            _ => None,
        }
    }
    /// Whether the device's context is lost: nothing runs on it any more, nothing will work again in this process.
    pub fn is_context_lost(&self) -> bool {
        match self {
            Error::Driver(e) | Error::Unavailable(Unavailable::Driver(e)) => e.is_context_lost(),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::TooLarge { asked, most } => {
                write!(f, "asked for {asked} bytes; one allocation holds at most {most}: split the request")
            }
            Error::BadAlignment { asked, most } => {
                write!(f, "asked for an alignment of {asked} bytes; it must be a power of two up to {most}")
            }
            Error::OutOfMemory(o) => o.fmt(f),
            Error::AboveLimit { asked, live, most } => write!(
                f,
                "asked for {} where {} of at most {} are live: free something, or raise this limit (set_most)",
                bytes(*asked),
                bytes(*live),
                bytes(*most)
            ),
            Error::ForeignStream { stream, device } => write!(
                f,
                "{stream} was made by another allocator than this one of {device}: use a stream from this allocator, or adopt it"
            ),
            Error::WrongDevice { found, expected } if found == expected => write!(
                f,
                "what was given is of another context of {found}: use a stream, an event or memory made in this context"
            ),
            Error::WrongDevice { found, expected } => write!(
                f,
                "what was given is on {found}, where {expected} was expected: use a stream, an event or memory of {expected}"
            ),
            Error::Capturing { stream } => write!(
                f,
                "{} is capturing a graph, which would replay into these bytes after they are reused: allocate before the capture",
                stream.map_or_else(|| "the stream".to_owned(), |s| s.to_string())
            ),
            Error::Mismatch(m) => m.fmt(f),
            Error::Differs(d) => d.fmt(f),
            Error::ForeignRange(r) => r.fmt(f),
            Error::TooManyDimensions { asked, most } => write!(
                f,
                "a shape of {asked} dimensions was given, an array has at most {most}: join neighbouring dimensions"
            ),
            Error::Overflow { shape, element_bytes } => write!(
                f,
                "an array of shape {shape:?} with {element_bytes} bytes an element has more bytes than 64 bits can count: split it"
            ),
            Error::Config { name, found, expected } => {
                write!(f, "{name} is {found:?}; expected {expected}")
            }
            Error::TimedOut { what, millis } => {
                write!(
                    f,
                    "gave up after {millis} ms waiting for {what}: the device is stuck or the wait is too short"
                )
            }
            Error::Unavailable(u) => u.fmt(f),
            Error::Driver(d) => d.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::OutOfMemory(o) => Some(o),
            Error::Mismatch(m) => Some(m),
            Error::Differs(d) => Some(d),
            Error::ForeignRange(r) => Some(r),
            Error::Unavailable(u) => Some(u),
            Error::Driver(d) => Some(d),
            _ => None,
        }
    }
}

impl From<Unavailable> for Error {
    /// A driver that is there and failed becomes [`Error::Driver`].
    fn from(u: Unavailable) -> Error {
        match u {
            Unavailable::Driver(e) => Error::Driver(e),
            other => Error::Unavailable(other),
        }
    }
}
impl From<DriverError> for Error {
    fn from(e: DriverError) -> Error {
        Error::Driver(e)
    }
}
impl From<Mismatch> for Error {
    fn from(m: Mismatch) -> Error {
        Error::Mismatch(Box::new(m))
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
            Error::from(Unavailable::NoDevice { asked: 1, found: 1 }),
            Error::Unavailable(Unavailable::NoDevice { asked: 1, found: 1 })
        ));
    }

    #[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
    #[test]
    fn an_allocation_on_a_gpu_may_be_used_and_dropped_on_any_thread() {
        fn travels<T: Send + Sync + 'static>() {}
        travels::<crate::Allocation<crate::cuda::Cuda>>();
    }
}
