//! Turning what the judge found into words and plain data: names for streams, points, allocations and missing edges.
//!
//! It does not know what is lawful, and changes nothing.

use super::clock::{At, Stamp};
use super::shadow::{Access, Owner, What};
use super::verdict::{Blame, Fault, Held, MissingEdge, Place, Point, Property, Side, Violation};
use super::{AccessKind, Actor, Oracle, StreamKey};
use crate::driver::StreamKind;
use crate::units::AllocationId;

impl Violation {
    /// The least that is said of one. Whose fault it is, the conviction adds.
    pub(super) fn new(property: Property, fault: Fault, later: Side) -> Violation {
        Violation { blame: Blame::Program, property, fault, place: None, earlier: None, later, missing: None }
    }
    pub(super) fn at(mut self, place: Place) -> Violation {
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

impl Side {
    /// A side that is no access: an allocation, a free, a release.
    pub(super) fn plain(what: &str, at: Point, allocation: Option<Held>) -> Side {
        Side { what: what.into(), kind: None, at, allocation }
    }
}

impl Oracle {
    pub(super) fn side(&self, actor: &Actor, kind: AccessKind, id: Option<AllocationId>) -> Side {
        self.access_side(actor.what, actor.at, kind, id)
    }
    pub(super) fn past(&self, access: &Access) -> Side {
        self.access_side(access.what, access.at, access.kind, access.id)
    }
    pub(super) fn access_side(&self, what: What, at: At, kind: AccessKind, id: Option<AllocationId>) -> Side {
        let allocation = id.map(|id| self.held(id));
        Side { what: self.names.name(what), kind: Some(kind), at: self.point(at), allocation }
    }
    pub(super) fn held(&self, id: AllocationId) -> Held {
        let name = |key: StreamKey| self.order.stream_name(key).0;
        if let Some(l) = self.ledger.live.get(&id) {
            return Held { id, range: Some((l.addr, l.bytes())), stream: l.home.map(name), freed: None };
        }
        match self.ledger.gone.get(&id) {
            Some(g) => Held {
                id,
                range: Some((g.addr, g.bytes)),
                stream: g.home.map(name),
                freed: Some(self.point(g.at)),
            },
            None => Held { id, range: None, stream: None, freed: None },
        }
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
    pub(super) fn owner_of(&self, place: Place) -> Option<AllocationId> {
        let mut cells =
            self.ledger.memory.get(&place.phys)?.shadow.cells_in(place.offset, place.offset + place.bytes);
        cells.find_map(|(_, c)| match c.owner {
            Owner::Live(id) => Some(id),
            _ => None,
        })
    }
    /// Another live owner of some of these bytes.
    pub(super) fn neighbour_in(&self, place: Place, than: AllocationId) -> Option<AllocationId> {
        let mut cells =
            self.ledger.memory.get(&place.phys)?.shadow.cells_in(place.offset, place.offset + place.bytes);
        cells.find_map(|(_, c)| match c.owner {
            Owner::Live(id) if id != than => Some(id),
            _ => None,
        })
    }
}
