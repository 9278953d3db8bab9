//! The naive judge: for every operation the set of operations before it, and for every byte every access ever made. It forgets
//! nothing, and shares no code with the oracle.

use super::*;

/// Sets of operations, one bit each.
pub(super) type Ops = u128;

#[derive(Clone)]
pub(super) struct Owned {
    pub(super) id: AllocationId,
    /// `None`: pinned.
    pub(super) stream: Option<usize>,
    pub(super) born: Ops,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) used: [bool; STREAMS.len()],
}

impl Owned {
    pub(super) fn space(&self) -> Space {
        if self.stream.is_some() { Space::Device } else { Space::Pinned }
    }
}

/// The library said that it is about to queue an operation on a stream, when there were `ops` operations.
pub(super) struct Announced {
    pub(super) id: AllocationId,
    pub(super) stream: usize,
    pub(super) kind: AccessKind,
    pub(super) by: QueuedBy,
    pub(super) ops: u32,
}

#[derive(Clone)]
pub(super) struct Past {
    pub(super) op: u32,
    pub(super) before: Ops,
    pub(super) stream: usize,
    pub(super) id: AllocationId,
    pub(super) kind: AccessKind,
    pub(super) space: Space,
    pub(super) byte: u64,
    pub(super) reported: bool,
    /// Announced by the library.
    pub(super) known: bool,
}

impl Past {
    pub(super) fn is_in(&self, space: Space, offset: u64, bytes: u64) -> bool {
        self.space == space && (offset..offset + bytes).contains(&self.byte)
    }
    /// Whatever races with `other`, and should come after it, races with this one too, and does after `other` did.
    pub(super) fn stands_for(&self, other: &Past) -> bool {
        let same = self.id == other.id && self.space == other.space && self.byte == other.byte;
        same && self.before & (1 << other.op) != 0 && (self.kind == Write || other.kind == Read)
    }
}

#[derive(Default)]
pub(super) struct Naive {
    pub(super) streams: [Ops; STREAMS.len()],
    pub(super) host: Ops,
    pub(super) events: [Option<Ops>; EVENTS],
    pub(super) ops: u32,
    pub(super) live: Vec<Owned>,
    pub(super) past: Vec<Past>,
    pub(super) announced: Vec<Announced>,
}

pub(super) type Found = Vec<(Property, Blame)>;

/// What is wrong with a call.
#[derive(Default)]
pub(super) struct Wrong {
    pub(super) found: Found,
    /// Of the earlier accesses that it races with, by their places in the past, those that no other stands for: who is to
    /// blame. With several of a call's ranges it may race, and not all of them need be named.
    pub(super) races: BTreeMap<usize, Vec<Blame>>,
}

impl Wrong {
    pub(super) fn add(&mut self, property: Property, blame: Blame) {
        if !self.found.contains(&(property, blame)) {
            self.found.push((property, blame));
        }
    }
}

impl Naive {
    pub(super) fn blocking(stream: usize) -> bool {
        stream == 2 || stream == 3
    }
    pub(super) fn act(&mut self, stream: usize) {
        let mut all = self.streams[stream] | self.host;
        if Self::blocking(stream) {
            all |= self.streams[4];
        }
        if stream == 4 {
            all |= self.streams[2] | self.streams[3];
        }
        self.streams[stream] = all;
    }
    /// An operation: what came before it, and its bit.
    pub(super) fn submit(&mut self, stream: usize) -> (Ops, u32) {
        self.act(stream);
        let before = self.streams[stream];
        let op = self.ops;
        self.ops += 1;
        self.streams[stream] |= 1 << op;
        (before, op)
    }
    /// Adds what is wrong with an access that comes after these operations. Those of the CPU are no operations: they come before
    /// whatever is queued later. `announced`: the library said that it would queue this access, when there were that many
    /// operations.
    pub(super) fn access(
        &self,
        before: Ops,
        range: &Range,
        announced: Option<(u32, bool)>,
        wrong: &mut Wrong,
    ) {
        let Range { id, space, offset, bytes, kind } = *range;
        let owned = self.live.iter().find(|o| o.id == id).expect("it lives");
        if owned.born & !before != 0 {
            wrong.add(Property::P3, Blame::Program);
        }
        let touched = self.past.iter().enumerate().filter(|(_, p)| p.is_in(space, offset, bytes));
        for (nth, p) in touched.filter(|(_, p)| before & (1 << p.op) == 0) {
            if p.id != id {
                wrong.add(Property::P2, if p.reported { Blame::Allocator } else { Blame::Program });
            } else if p.kind == Write || kind == Write {
                // The library undertook to come after what it knew of when it said so.
                let undertaken = announced.is_some_and(|(ops, _)| p.op < ops);
                let librarys = undertaken && (p.known || owned.used[p.stream]);
                let blame = if librarys { Blame::Allocator } else { Blame::Program };
                wrong.add(Property::Race, blame);
                if !self.past.iter().any(|q| q.stands_for(p)) {
                    wrong.races.entry(nth).or_default().push(blame);
                }
            }
        }
    }
    /// A word about the same moment takes the place of what was said of the other party.
    pub(super) fn announce(&mut self, id: AllocationId, stream: usize, kind: AccessKind, by: QueuedBy) {
        let other = |a: &Announced| (a.stream, a.id, a.ops) != (stream, id, self.ops) || a.by == by;
        self.announced.retain(|a| by == QueuedBy::Guard || a.by == QueuedBy::Guard || other(a));
        self.announced.push(Announced { id, stream, kind, by, ops: self.ops });
    }
    /// Of several guards of one kind those that began last stay.
    pub(super) fn end_guard(&mut self, id: AllocationId, stream: usize, kind: AccessKind) {
        let is_one =
            |a: &Announced| a.by == QueuedBy::Guard && (a.id, a.stream) == (id, stream) && a.kind == kind;
        if let Some(first) = self.announced.iter().position(is_one) {
            self.announced.remove(first);
        }
    }
    /// Whether the library said that it had ordered what does this next on a stream: when there were how many operations, and who queues
    /// it: whether it knows the operation. What it said last counts. That may be both, that an operation reads and that it writes; one that writes also reads.
    pub(super) fn announced(&self, stream: usize, range: &Range) -> Option<(u32, bool)> {
        let allows = |a: &&Announced| a.kind == Write || range.kind == Read;
        let of_guards = |guards: bool| {
            let said = self.announced.iter().filter(|a| (a.stream, a.id) == (stream, range.id));
            said.filter(move |a| guards == (a.by == QueuedBy::Guard))
        };
        let guarded = of_guards(true).filter(allows).map(|a| a.ops).max();
        let last = of_guards(false).map(|a| a.ops).max();
        let queued = last.and_then(|last| of_guards(false).filter(allows).find(|a| a.ops == last));
        let queued = queued.map(|a| (a.ops, a.by == QueuedBy::Library));
        match (queued, guarded) {
            (queued, None) => queued,
            (queued, Some(then)) => Some((queued.map_or(then, |(ops, _)| ops.max(then)), true)),
        }
    }
    /// All ranges of an operation are judged by what was before it, and none by another of the same.
    pub(super) fn operate(&mut self, stream: usize, ranges: &[Range]) -> Wrong {
        let announced: Vec<_> = ranges.iter().map(|range| self.announced(stream, range)).collect();
        let is_over =
            |a: &Announced| a.by == QueuedBy::Library && ranges.iter().any(|range| range.id == a.id);
        self.announced.retain(|a| a.stream != stream || !is_over(a));
        let (before, op) = self.submit(stream);
        let mut wrong = Wrong::default();
        for (range, &announced) in ranges.iter().zip(&announced) {
            self.access(before, range, announced, &mut wrong);
        }
        for (range, announced) in ranges.iter().zip(announced) {
            let Range { id, space, offset, bytes, kind } = *range;
            let known = announced.is_some_and(|(_, known)| known);
            for byte in offset..offset + bytes {
                self.past.push(Past { op, before, stream, id, kind, space, byte, reported: true, known });
            }
        }
        wrong
    }
    /// Bytes are handed out: pinned ones have no use that the host does not know complete.
    pub(super) fn allocate(
        &mut self,
        id: AllocationId,
        stream: Option<usize>,
        offset: u64,
        bytes: u64,
    ) -> Wrong {
        let born = self.host | stream.map_or(0, |s| self.streams[s]);
        let owned = Owned { id, stream, born, offset, bytes, used: [false; STREAMS.len()] };
        let mut wrong = Wrong::default();
        if stream.is_none() {
            let pending = self.past.iter().filter(|p| born & (1 << p.op) == 0);
            for p in pending.filter(|p| p.is_in(Space::Pinned, offset, bytes)) {
                wrong.add(Property::P2, if p.reported { Blame::Allocator } else { Blame::Program });
            }
        }
        self.live.push(owned);
        wrong
    }
    pub(super) fn free(&mut self, nth: usize, unknown: bool) {
        let gone = self.live.swap_remove(nth);
        let end = self.host | gone.stream.map_or(0, |s| self.streams[s]);
        for p in self.past.iter_mut().filter(|p| p.id == gone.id) {
            p.reported = unknown || gone.used[p.stream] || end & (1 << p.op) != 0;
        }
    }
    /// The streams that touched these bytes.
    pub(super) fn users(&self, space: Space, offset: u64, bytes: u64) -> BTreeSet<usize> {
        self.past.iter().filter(|p| p.is_in(space, offset, bytes)).map(|p| p.stream).collect()
    }
    /// The streams that touched an allocation.
    pub(super) fn users_of(&self, id: AllocationId) -> BTreeSet<usize> {
        self.past.iter().filter(|p| p.id == id).map(|p| p.stream).collect()
    }
}
