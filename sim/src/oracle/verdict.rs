//! What the judge says: counts, violations with both sides, and the verdict.
//!
//! Plain data; its words are those of `words`. This does not know how anything was found out.

use super::{AccessKind, HostKey, PhysKey};
use millpond_driver::units::{Addr, AllocationId, DeviceId, StreamId};
use millpond_driver::{Caller, StreamKind};
use std::sync::Arc;

/// The counts of what was reported and checked.
///
/// Every wait is one of four: on an event never recorded, implied, beyond need, or needed (the rest). A wait counts as needed
/// from the first successful check that depends on it, so `waits_beyond_need` can fall as a program goes on; if several waits
/// would each have been enough, the first counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Tally {
    /// Accesses to memory that were judged, including the host's.
    pub accesses_checked: u64,
    /// Operations submitted to streams.
    pub operations: u64,
    /// Events recorded, including context-wide records.
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
    /// Times the host saw an event, a stream or a device complete, by a wait or by a query.
    pub host_waits: u64,
    /// Allocations reported.
    pub allocations: u64,
    /// Frees reported.
    pub frees: u64,
    /// Violations found, the program's and the allocator's.
    pub violations: u64,
    /// Of these, the allocator's.
    pub violations_of_allocator: u64,
}

/// Who is to blame for a violation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Blame {
    /// The program that uses the memory.
    Program,
    /// The allocator that handed the memory out, or other code that gave it back to the device.
    Allocator,
}

/// The property that was violated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
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
    /// Bytes were handed out and accessed before their former owner's uses were over (P2).
    EarlyReuse,
    /// The same, but the former owner never reported that use to the allocator (P2, the program's).
    MissingRecordUse,
    /// Bytes were handed out where no memory is (P3).
    NoMemory,
    /// An access is not ordered after the allocation (P3).
    BeforeAllocation,
    /// An access came after the free (P3).
    AfterFree,
    /// An access left its allocation (P3).
    Overrun,
    /// An access touched bytes that were not handed out, in memory that an allocator manages (P3).
    NotHandedOut,
    /// An access named an allocation that was never made, or was freed too long ago to tell (P3).
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
    /// Memory was unmapped or released while it contains a live allocation (P4).
    ReleasedWhileOwned,
    /// Two accesses of one generation race.
    Race,
    /// The same, but the library knew the earlier use and queued the later one itself, without an edge (the allocator's).
    UnorderedOperation,
}

/// A point of a stream or of a host thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Point {
    /// An operation of a stream; the first has position 1.
    Stream {
        /// The stream.
        id: StreamId,
        /// How many operations were submitted up to and with it.
        position: u64,
    },
    /// A step of the host.
    Host {
        /// The thread; `None` if there is one host clock for all.
        thread: Option<HostKey>,
    },
}

/// A stream's label for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StreamLabel {
    /// The stream.
    pub id: StreamId,
    /// The number of a stream that the program made, in the order in which it made them, from 0; in a replay that of the
    /// file.
    pub number: u64,
    /// Its kind: default streams are named by it.
    pub kind: StreamKind,
    /// The program's name for it, if any.
    pub name: Option<Arc<str>>,
    /// For threads' default streams, which one: in the order of their first use.
    pub of_thread: u64,
    /// Its device, if there are several.
    pub device: Option<DeviceId>,
}

/// An allocation, as it was reported.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Held {
    /// Its id. It differs from run to run.
    pub id: AllocationId,
    /// Its number, in the order in which allocations were made, from 0; `None` if it was freed too long ago, or never made.
    pub number: Option<u64>,
    /// The program's name for it, if any.
    pub name: Option<Arc<str>>,
    /// First address and requested bytes; `None` if it was freed too long ago.
    pub range: Option<(Addr, u64)>,
    /// The stream it was allocated on.
    pub stream: Option<StreamId>,
    /// Where the program requested it, if that is known: for a plain `alloc` it is not.
    pub from: Option<Caller>,
    /// Where it was freed, if it was: its stream's position then, or the host.
    pub freed: Option<Point>,
    /// Where the program freed it, if that is known: for a drop it is not.
    pub freed_from: Option<Caller>,
}

/// One side of a violation: an operation, an access of the CPU, an allocation, a free, a release.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Side {
    /// Its name when it was submitted.
    pub what: Arc<str>,
    /// Read or write, if it was an access.
    pub kind: Option<AccessKind>,
    /// Where in the order of events.
    pub at: Point,
    /// Where in the program, if that is known.
    pub from: Option<Caller>,
    /// The allocation it belongs to.
    pub allocation: Option<Held>,
}

/// Two points of which the first should happen before the second, and does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MissingEdge {
    /// The point that should come first.
    pub from: Point,
    /// The point that should come after it.
    pub to: Point,
    /// Up to which position of `from`'s stream `to` is ordered; 0 for nothing of it.
    pub known: u64,
    /// One is the legacy default stream and the other non-blocking: the two are not ordered implicitly.
    pub outside_legacy: bool,
}

/// The bytes in question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PhysicalRange {
    /// The physical memory.
    pub phys: PhysKey,
    /// Offset in it.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// One violation: what went wrong, both sides of it, and which edge is missing. Displays as three lines: what, where, and the
/// missing edge with the call that makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// Who is to blame.
    pub blame: Blame,
    /// The property.
    pub property: Property,
    /// The exact fault.
    pub fault: Fault,
    /// The bytes in question.
    pub place: Option<PhysicalRange>,
    /// The addresses in question, if nothing is mapped there.
    pub unmapped: Option<(Addr, u64)>,
    /// The side that should have come first, or that was first.
    pub earlier: Option<Side>,
    /// The side that was judged.
    pub later: Side,
    /// The edge whose absence makes it a violation, if one could have helped.
    pub missing: Option<MissingEdge>,
    /// The labels of the streams involved.
    pub streams: Vec<StreamLabel>,
    /// Whether an allocator had reported anything by then: then its calls make the edge, else the simulator's own.
    pub allocator_reported: bool,
}

/// Something was violated. Displays the first few violations, the allocator's before the program's.
///
/// ```
/// use millpond_driver::Memory;
/// use millpond_sim::{Launch, Sim, oracle::{Blame, Property}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(1 << 30);
/// let (data, writer, reader) = (sim.allocate(4096)?, sim.stream()?, sim.stream()?);
/// sim.launch(&writer, Launch::new("produce").writes(data.addr(), 4096))?;
/// sim.launch(&reader, Launch::new("consume").reads(data.addr(), 4096))?;    // no event, no wait
/// let verdict = sim.verdict().unwrap_err().oracle.expect("the oracle's part");
/// let race = &verdict.violations[0];
/// assert_eq!((race.property, race.blame, verdict.more), (Property::Race, Blame::Program, 0));
/// assert!(race.missing.is_some());                          // the edge whose absence makes it a race
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub struct Verdict {
    /// The violations kept, the allocator's in preference.
    pub violations: Vec<Violation>,
    /// How many more there were.
    pub more: u64,
    /// The counts; boxed, to keep errors small.
    pub tally: Box<Tally>,
}
