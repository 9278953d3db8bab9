//! What the judge says: counts, violations with both sides, and the verdict.
//!
//! Plain data and its words: every violation reads as a paragraph that says who touched what, after which free, which edge is
//! missing and what to do. This does not know how anything was found out.

use super::{AccessKind, HostKey, PhysKey};
use crate::units::{Addr, AllocationId, StreamId};
use core::fmt;
use std::sync::Arc;

/// What was told and checked.
///
/// Every wait is one of four: on an event never recorded, implied, beyond need, or needed (the rest). A wait counts as needed
/// from the first successful check that rests on it, so `waits_beyond_need` can fall as a program goes on; where several waits
/// would each have been enough, the first counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Tally {
    /// Accesses to memory that were judged, the host's included.
    pub accesses_checked: u64,
    /// Operations submitted to streams.
    pub operations: u64,
    /// Events recorded, context-wide records included.
    pub records: u64,
    /// Records that no stream waited for and no host saw complete.
    pub records_never_waited_on: u64,
    /// Waits of streams for events.
    pub waits: u64,
    /// Waits that added nothing: the stream was already ordered behind all that the event captured.
    pub waits_implied: u64,
    /// Waits that added something which no check has needed so far.
    pub waits_beyond_need: u64,
    /// Waits for an event that was never recorded: they order nothing.
    pub waits_on_unrecorded: u64,
    /// Times the host saw an event, a stream or a device complete, whether it slept for it or asked.
    pub host_waits: u64,
    /// Allocations told.
    pub allocations: u64,
    /// Frees told.
    pub frees: u64,
    /// Violations found, whoever is to blame.
    pub violations: u64,
    /// Of these, the allocator's.
    pub violations_of_allocator: u64,
}

/// Whose fault a violation is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Blame {
    /// The program that uses the memory.
    Program,
    /// The allocator that handed the memory out, or whoever else gave it back to the device.
    Allocator,
}

/// The property that was violated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Property {
    /// No two live allocations overlap.
    P1,
    /// Every access of a generation happens before every access of the next one of the same bytes.
    P2,
    /// Bytes are accessed only between their allocation and their free, and only where something is mapped.
    P3,
    /// Memory is unmapped and released only when every access is complete in the host's view.
    P4,
    /// Two accesses of one generation, one of them a write, are ordered.
    Race,
}

/// What exactly went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Bytes were handed out that another live allocation has (P1).
    Overlap,
    /// Bytes were handed out and touched before their former owner's uses were over (P2).
    EarlyReuse,
    /// The same, but the former owner never told the allocator of that use (P2, the program's).
    MissingRecordUse,
    /// Bytes were handed out that are not there (P3).
    NoMemory,
    /// An access is not ordered after the allocation (P3).
    BeforeAllocation,
    /// An access came after the free (P3).
    AfterFree,
    /// An access left its allocation (P3).
    Overrun,
    /// An access touched bytes that nobody was given, in memory that an allocator manages (P3).
    NotHandedOut,
    /// An access with the name of an allocation that was never made, or freed too long ago to tell (P3).
    UnknownAllocation,
    /// An access where nothing is mapped (P3).
    NothingMapped,
    /// A second free, or the free of something never allocated (P3).
    BadFree,
    /// A use was recorded for something that is not allocated (P3).
    BadUse,
    /// Addresses were unmapped while an access through them may be running (P4).
    UnmappedWhilePending,
    /// Memory was given back while an access may be running (P4).
    ReleasedWhilePending,
    /// Memory went away while a live allocation is in it (P4).
    ReleasedWhileOwned,
    /// Two accesses of one generation race.
    Race,
}

/// A point of a stream or of a host thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Point {
    /// An operation of a stream; the first has position 1.
    Stream {
        /// Which stream.
        id: StreamId,
        /// How many operations were submitted up to and with it.
        position: u64,
    },
    /// A step of the host.
    Host {
        /// Which thread; `None` where there is one host clock for all.
        thread: Option<HostKey>,
    },
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Point::Stream { id, position } => write!(f, "{id} position {position}"),
            Point::Host { thread: None } => f.write_str("the host"),
            Point::Host { thread: Some(HostKey(n)) } => write!(f, "host thread {n}"),
        }
    }
}

/// An allocation, as it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Which.
    pub id: AllocationId,
    /// First address and bytes asked for; `None` when it was freed too long ago.
    pub range: Option<(Addr, u64)>,
    /// The stream it was allocated on.
    pub stream: Option<StreamId>,
    /// Where it was freed, if it was: its stream's position then, or the host.
    pub freed: Option<Point>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocation {}", self.id)?;
        if let Some((addr, bytes)) = self.range {
            write!(f, " ({addr} + {bytes} B")?;
            match self.stream {
                Some(stream) => write!(f, ", allocated on {stream}")?,
                None => f.write_str(", of no stream")?,
            }
            match self.freed {
                Some(Point::Stream { id, position }) => {
                    write!(f, ", freed on {id} behind position {position}")?;
                }
                Some(Point::Host { .. }) => f.write_str(", freed by the host")?,
                None => {}
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// One side of a violation: an operation, an access of the CPU, an allocation, a free, a release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// What it was called when it was submitted.
    pub what: Arc<str>,
    /// Read or write, if it was an access.
    pub kind: Option<AccessKind>,
    /// Where.
    pub at: Point,
    /// The allocation it belongs to.
    pub allocation: Option<Held>,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Some(AccessKind::Read) => " (a read)",
            Some(AccessKind::Write) => " (a write)",
            None => "",
        };
        write!(f, "`{}`{kind} at {}", self.what, self.at)?;
        if let Some(held) = self.allocation {
            write!(f, " for {held}")?;
        }
        Ok(())
    }
}

/// Two points of which the first should happen before the second, and does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingEdge {
    /// What should come first.
    pub from: Point,
    /// What should come after it.
    pub to: Point,
    /// Up to which position of `from`'s stream `to` is ordered; 0 for nothing of it.
    pub known: u64,
    /// One is the legacy default stream and the other non-blocking: the two are not ordered implicitly.
    pub outside_legacy: bool,
}

impl fmt::Display for MissingEdge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        match (from, to) {
            (Point::Stream { id, position }, Point::Host { .. }) => write!(
                f,
                "{from} is not complete in the view of {to}: no synchronise with {id}, and no successful query of an event \
                 recorded on {id}, at or after position {position}"
            )?,
            (Point::Stream { id, position }, Point::Stream { id: waiter, .. }) => write!(
                f,
                "{from} does not happen before {to}: no wait on {waiter} for an event recorded on {id} at or after position \
                 {position}"
            )?,
            (Point::Host { .. }, _) => {
                return write!(
                    f,
                    "what {from} did does not happen before {to}: no edge from {from} to the thread that asked for it"
                );
            }
        }
        if self.known > 0 {
            write!(f, " (ordered only up to position {})", self.known)?;
        }
        if self.outside_legacy {
            f.write_str("; the legacy default stream and a non-blocking stream do not wait for each other")?;
        }
        Ok(())
    }
}

/// The bytes in question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which physical memory.
    pub phys: PhysKey,
    /// Offset in it.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B at offset {} of memory {}", self.bytes, self.offset, self.phys.0)
    }
}

/// One violation: what went wrong, both sides of it, and which edge is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Whose fault.
    pub blame: Blame,
    /// Which property.
    pub property: Property,
    /// What exactly.
    pub fault: Fault,
    /// Where.
    pub place: Option<Place>,
    /// The side that should have come first, or that was there first.
    pub earlier: Option<Side>,
    /// The side that was judged.
    pub later: Side,
    /// The edge whose absence makes it a violation, where one could have helped.
    pub missing: Option<MissingEdge>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blame = match self.blame {
            Blame::Program => "the program's",
            Blame::Allocator => "the allocator's",
        };
        let (found, advice) = self.fault.words();
        write!(f, "{:?}, {blame} fault: {found}. {}", self.property, self.later)?;
        if let Some(place) = self.place {
            write!(f, ", {place}")?;
        }
        f.write_str(".")?;
        if let Some(earlier) = &self.earlier {
            write!(f, " Against: {earlier}.")?;
        }
        if let Some(missing) = &self.missing {
            write!(f, " Missing edge: {missing}.")?;
        }
        write!(f, " {advice}")
    }
}

impl Fault {
    /// What was found, and one sentence on what to do.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Fault::Overlap => (
                "bytes were handed out that a live allocation has",
                "The allocator must not hand out a range before its owner freed it: look at what put it among the free.",
            ),
            Fault::EarlyReuse => (
                "bytes were reused before their former owner's uses were over",
                "The allocator must make the new owner's stream wait for the free, and for every recorded use, before it hands \
                 the bytes out.",
            ),
            Fault::MissingRecordUse => (
                "bytes were reused while a use that the allocator was never told of may be running",
                "Call record_use with that stream before the free, or make the freeing stream wait for the use.",
            ),
            Fault::NoMemory => (
                "bytes were handed out where there is no memory",
                "The allocator must map or allocate memory before it hands it out, and keep it until the free.",
            ),
            Fault::BeforeAllocation => (
                "an access is not ordered after the allocation",
                "Make the using stream wait for an event recorded on the allocating stream after the allocation.",
            ),
            Fault::AfterFree => (
                "an access came after the free",
                "Free after the last use was submitted, or keep the allocation alive until then.",
            ),
            Fault::Overrun => (
                "an access left its allocation",
                "Check the length given to the operation against the bytes that were asked for.",
            ),
            Fault::NotHandedOut => (
                "an access touched managed bytes that nobody was given",
                "Check the address and length: they lie outside every allocation.",
            ),
            Fault::UnknownAllocation => (
                "an access names an allocation that is not alive",
                "Check that the allocation was made, and not freed, before the operation was submitted.",
            ),
            Fault::NothingMapped => (
                "an access where nothing is mapped",
                "Check the address; if an allocation has it, its memory was never mapped or was taken away too early.",
            ),
            Fault::BadFree => (
                "the free of something that is not allocated",
                "Free each allocation once: look for a second owner of it.",
            ),
            Fault::BadUse => (
                "a use was recorded for something that is not allocated",
                "Record uses before the free: later ones cannot be respected.",
            ),
            Fault::UnmappedWhilePending => (
                "addresses were unmapped while an access through them may be running",
                "Unmapping waits for nothing: see every use through those addresses complete first.",
            ),
            Fault::ReleasedWhilePending => (
                "memory was given back while an access to it may be running",
                "See every use complete, by a query or a synchronise, before giving memory back.",
            ),
            Fault::ReleasedWhileOwned => (
                "memory went away while a live allocation is in it",
                "Give back only memory all of whose allocations were freed.",
            ),
            Fault::Race => (
                "two accesses of one allocation, one of them a write, are not ordered",
                "Order them by an event: record it behind the one, and make the other's stream wait for it.",
            ),
        }
    }
}

/// Something was violated. Displays every violation kept, a paragraph each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The violations kept, the allocator's in preference.
    pub violations: Vec<Violation>,
    /// How many more there were.
    pub more: u64,
    /// The counts; boxed, to keep errors small.
    pub tally: Box<Tally>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.tally;
        write!(
            f,
            "{} ordering violations in {} accesses, {} of them the allocator's",
            t.violations, t.accesses_checked, t.violations_of_allocator
        )?;
        for (n, v) in self.violations.iter().enumerate() {
            write!(f, "\n{}. {v}", n + 1)?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more.", self.more)?;
        }
        Ok(())
    }
}
impl std::error::Error for Verdict {}
