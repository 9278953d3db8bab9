//! Turns what the judge found into names and plain data: streams, points, allocations and missing edges.
//!
//! It does not know what is legal, and changes nothing.

use super::clock::{At, Stamp};
use super::shadow::{Access, Owner, What};
use super::verdict::{
    Blame, Fault, Held, MissingEdge, PhysicalRange, Point, Property, Side, StreamLabel, Violation,
};
use super::{AccessKind, Actor, Devices, Oracle};
use millpond_driver::units::AllocationId;
use millpond_driver::{Caller, StreamKind};

impl Violation {
    /// The minimum of a violation. The caller adds who is to blame.
    pub(super) fn new(property: Property, fault: Fault, later: Side) -> Violation {
        Violation {
            blame: Blame::Program,
            property,
            fault,
            place: None,
            earlier: None,
            later,
            missing: None,
            unmapped: None,
            streams: Vec::new(),
            allocator_reported: false,
        }
    }
    pub(super) fn at(mut self, place: PhysicalRange) -> Violation {
        self.place = Some(place);
        self
    }
    pub(super) fn against(mut self, earlier: Side) -> Violation {
        self.earlier = Some(earlier);
        self
    }
    pub(super) fn missing(mut self, edge: MissingEdge) -> Violation {
        self.missing = Some(edge);
        self
    }
}

impl Oracle {
    /// A side that is not an access and is called now: a free, a release.
    pub(super) fn plain(&self, what: &str, at: At, allocation: Option<Held>) -> Side {
        Side { what: what.into(), kind: None, at: self.point(at), from: self.from, allocation }
    }
    /// A live allocation.
    pub(super) fn birth(&self, what: &str, at: At, id: AllocationId) -> Side {
        let held = self.held(id);
        Side { what: what.into(), kind: None, at: self.point(at), from: held.from, allocation: Some(held) }
    }
    /// An access of which it is unknown whether it reads or writes.
    pub(super) fn unmapped_side(&self, actor: &Actor, allocation: Option<Held>) -> Side {
        let (what, at) = (self.names.name(actor.what), self.point(actor.at));
        Side { what, kind: None, at, from: actor.from, allocation }
    }
    pub(super) fn side(&self, actor: &Actor, kind: AccessKind, id: Option<AllocationId>) -> Side {
        self.access_side((actor.what, actor.at, actor.from), kind, id)
    }
    pub(super) fn past(&self, access: &Access) -> Side {
        self.access_side((access.what, access.at, access.from), access.kind, access.id)
    }
    fn access_side(
        &self,
        (what, at, from): (What, At, Option<Caller>),
        kind: AccessKind,
        id: Option<AllocationId>,
    ) -> Side {
        let allocation = id.map(|id| self.held(id));
        Side { what: self.names.name(what), kind: Some(kind), at: self.point(at), from, allocation }
    }
    /// All that is known of an allocation, live or freed.
    pub(in super::super) fn held(&self, id: AllocationId) -> Held {
        let (range, home, story, freed, freed_from) = if let Some(l) = self.ledger.live.get(&id) {
            (Some((l.addr, l.bytes())), l.home, Some(&l.story), None, None)
        } else if let Some(g) = self.ledger.gone.get(&id) {
            (Some((g.addr, g.bytes)), g.home, Some(&g.story), Some(self.point(g.at)), g.from)
        } else {
            (None, None, None, None, None)
        };
        Held {
            id,
            number: story.map(|s| s.number),
            name: story.and_then(|s| s.name.clone()),
            range,
            stream: home.map(|key| self.order.stream_name(key).0),
            from: story.and_then(|s| s.from),
            freed,
            freed_from,
        }
    }
    /// Adds the labels of the streams that a violation names.
    pub(super) fn label(&self, violation: &mut Violation) {
        let sides = [violation.earlier.as_ref(), Some(&violation.later)].into_iter().flatten();
        let held = sides.clone().filter_map(|s| s.allocation.as_ref());
        let points = sides.map(|s| s.at).chain(violation.missing.iter().flat_map(|m| [m.from, m.to]));
        let named = points.chain(held.clone().filter_map(|h| h.freed)).filter_map(|p| match p {
            Point::Stream { id, .. } => Some(id),
            Point::Host { .. } => None,
        });
        let mut ids: Vec<_> = named.chain(held.filter_map(|h| h.stream)).collect();
        ids.sort_unstable();
        ids.dedup();
        let apart = self.devices == Devices::Several;
        violation.streams = ids
            .iter()
            .filter_map(|id| self.labels.get(id))
            .map(|l| StreamLabel { device: l.device.filter(|_| apart), ..l.clone() })
            .collect();
    }
    pub(super) fn point(&self, at: At) -> Point {
        match at.line.split() {
            Ok(stream) => Point::Stream { id: self.order.stream_name(stream).0, position: at.tick },
            Err(host) => Point::Host { thread: self.order.strict().then_some(host) },
        }
    }
    pub(super) fn edge(&self, from: At, to: At, known: &Stamp) -> MissingEdge {
        let kind = |at: At| at.line.split().ok().map(|s| self.order.stream_name(s).1);
        let outside_legacy = matches!(
            (kind(from), kind(to)),
            (Some(StreamKind::LegacyDefault), Some(StreamKind::NonBlocking))
                | (Some(StreamKind::NonBlocking), Some(StreamKind::LegacyDefault))
        );
        MissingEdge {
            from: self.point(from),
            to: self.point(to),
            known: known.tick_of(from.line),
            outside_legacy,
        }
    }
    /// The live owner of the first of these bytes.
    pub(super) fn owner_of(&self, place: PhysicalRange) -> Option<AllocationId> {
        let mut cells =
            self.ledger.memory.get(&place.phys)?.shadow.cells_in(place.offset, place.offset + place.bytes);
        cells.find_map(|(_, c)| match c.owner {
            Owner::Live(id) => Some(id),
            _ => None,
        })
    }
    /// Another live owner of some of these bytes.
    pub(super) fn neighbour_in(&self, place: PhysicalRange, than: AllocationId) -> Option<AllocationId> {
        let mut cells =
            self.ledger.memory.get(&place.phys)?.shadow.cells_in(place.offset, place.offset + place.bytes);
        cells.find_map(|(_, c)| match c.owner {
            Owner::Live(id) if id != than => Some(id),
            _ => None,
        })
    }
}
