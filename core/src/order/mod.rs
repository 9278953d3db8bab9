//! When may memory touched by one stream be given to another?
//!
//! Streams are timelines; a marker is an event recorded on one, numbered. This module keeps the numbers: what a stream is
//! already ordered after ([`Clock`]), which streams the program itself has ordered ([`Edges`]), which markers of a timeline are published ([`MarkerLog`]), which streams used an
//! allocation ([`Uses`]), and which uses each freed range still waits for ([`InFlight`]). It decides by comparing numbers
//! and makes no query.
//!
//! It does not know a driver, an event's type, a lock, a chunk's bytes or a heap: chunks are opaque ids here, events
//! are a type parameter. It can fail only by a bug.
//!
//! [docs/ordering.md] describes the laws O1–O9, each with the interleaving that it forbids.
//!
#![doc = concat!("[docs/ordering.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/ordering.md")]

mod clock;
mod edges;
mod inflight;
mod marker_log;
mod uses;

#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use edges::Edges;
pub use inflight::{Entry, InFlight, InFlightKey};
pub use marker_log::{Marker, MarkerLog};
pub use uses::{Access, Operation, Streams, Use, UseKind, Uses};

use crate::laws;
use crate::units::Epoch;
use smallvec::SmallVec;

/// A stream's number in its device's registry. Never used twice, so that a clock entry never means another stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimelineId(pub u32);

/// Something that must have happened before bytes may be touched: all work on a timeline up to an epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pending {
    /// The timeline.
    pub on: TimelineId,
    /// The last epoch of that work.
    pub epoch: Epoch,
}

/// The pending uses of one range. Two streams cover nearly every range ever seen.
pub type PendingSet = SmallVec<[Pending; 2]>;

/// What the host knows to be complete.
pub trait Completed {
    /// The newest epoch of a timeline seen complete. A timeline that is gone is complete for ever.
    fn completed(&self, on: TimelineId) -> Epoch;

    /// Whether work is known complete in the host's view (law O4).
    fn is_complete(&self, pending: Pending) -> bool {
        laws::is_complete(pending.epoch, || self.completed(pending.on))
    }
}

/// Law O1: bytes with this use pending may be given to `to`, whose clock is `clock`, with no further wait.
pub fn is_ordered(to: TimelineId, clock: &Clock, seen: &impl Completed, pending: Pending) -> bool {
    let same = pending.on == to;
    laws::is_ordered(same, || clock.get(pending.on), pending.epoch, || seen.is_complete(pending))
}
