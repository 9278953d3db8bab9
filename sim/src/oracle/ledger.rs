//! All memory, mappings and allocations that were reported to the judge.
//!
//! Records and their upkeep. It does not know what is legal, nor order.

use super::clock::{At, Stamp};
use super::shadow::{Access, Owner, Shadow};
use super::verdict::PhysicalRange;
use super::{AccessKind, MapKey, PhysKey, Space, StreamKey};
use hashbrown::HashMap;
use millpond_driver::units::{Addr, AllocationId};
use millpond_driver::{Caller, QueuedBy};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many freed allocations keep their address and length for reports.
const REMEMBERED: usize = 1 << 14;

/// The newest access of each line, in the order of the lines: what a release must see complete.
#[derive(Default, Debug)]
pub(super) struct Newest(pub(super) Vec<Access>);

impl Newest {
    pub(super) fn note(&mut self, access: Access) {
        match self.0.binary_search_by_key(&access.at.line, |a| a.at.line) {
            Ok(i) => self.0[i] = access,
            Err(i) => self.0.insert(i, access),
        }
    }
    /// The program never reported this one, if it is among them.
    fn unreported(&mut self, at: At) {
        self.0.iter_mut().filter(|a| a.at == at).for_each(|a| a.unrecorded = true);
    }
}

/// One piece of physical memory.
#[derive(Debug)]
pub(super) struct Phys {
    pub(super) space: Space,
    pub(super) shadow: Shadow,
    pub(super) newest: Newest,
    pub(super) mappings: u32,
    pub(super) released: bool,
    /// An allocation was made in it: bytes without an owner must not be accessed.
    pub(super) managed: bool,
    /// The access of the last P4 violation, so that unmapping and releasing in a row yield one.
    pub(super) convicted: Option<At>,
}

/// One mapping.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) phys: PhysKey,
    pub(super) newest: Newest,
}

/// What a report shows of an allocation, besides where and when it is.
#[derive(Clone, Debug)]
pub(super) struct Story {
    /// How many there were before it.
    pub(super) number: u64,
    pub(super) name: Option<Arc<str>>,
    pub(super) from: Option<Caller>,
}

/// An allocation that was not freed.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) story: Story,
    pub(super) addr: Addr,
    pub(super) pieces: SmallVec<[PhysicalRange; 1]>,
    pub(super) home: Option<StreamKey>,
    pub(super) born: Stamp,
    pub(super) born_at: At,
    /// Streams whose uses were reported, each with the tick up to which they were.
    pub(super) used: SmallVec<[(StreamKey, u64); 2]>,
    /// Imported as external memory: what is known of earlier work on it.
    pub(super) brought_in: Option<BroughtIn>,
    /// Bytes of it at which no memory was mapped.
    pub(super) nowhere: SmallVec<[(Addr, u64); 0]>,
    /// Streams that the allocator admitted: they may use the bytes without coming after the birth; the allocator answers for that.
    pub(super) admitted: SmallVec<[StreamKey; 2]>,
    /// Accesses that raced with a later one, of which their cells know nothing any more: the newest of each line.
    pub(super) raced: SmallVec<[At; 0]>,
    /// Operations that the library announced, the latest of each stream.
    pub(super) operations: SmallVec<[Expected; 2]>,
    /// Guards that are held, or were forgotten: one a stream and kind, the last, and how many there are.
    pub(super) guards: SmallVec<[(Expected, u32); 1]>,
}

/// External memory: of earlier work on it, the library knows what is in a stamp of the stream on which it was imported, and
/// what it knew and had started to order before that stream.
#[derive(Debug)]
pub(super) struct BroughtIn {
    past: Stamp,
    /// How many operations of all streams there were.
    behind: u64,
    undertaken: u64,
    /// The uses reported earlier, which its free has to respect.
    reported: SmallVec<[(StreamKey, u64); 2]>,
}

/// The operation for which the library ordered a stream: one of the library's own, or the program's until the next note.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    stream: StreamKey,
    kind: AccessKind,
    by: QueuedBy,
    /// It comes behind this tick of the stream.
    behind: u64,
    /// How many operations of all streams there were when it was ordered.
    ordered_at: u64,
    /// The tick that the library's operation turned out to have.
    came: Option<u64>,
}

impl Live {
    /// Whether the allocator is responsible for this access coming after the work of the bytes' previous owner.
    pub(super) fn admits(&self, stream: Option<StreamKey>) -> bool {
        stream.is_some_and(|s| self.admitted.contains(&s))
    }
}

impl Live {
    pub(super) fn expect_operation(
        &mut self,
        stream: StreamKey,
        kind: AccessKind,
        by: QueuedBy,
        behind: u64,
        ordered_at: u64,
    ) {
        let new = Expected { stream, kind, by, behind, ordered_at, came: None };
        if by == QueuedBy::Guard {
            match self.guards.iter_mut().find(|(g, _)| g.stream == stream && g.kind == kind) {
                Some((g, held)) => (g.ordered_at, *held) = (ordered_at, *held + 1),
                None => self.guards.push((new, 1)),
            }
            return;
        }
        match self.operations.iter_mut().find(|e| e.stream == stream) {
            // One operation may both read and write it: two notes before it comes.
            Some(e) if e.came.is_none() && e.ordered_at == ordered_at && e.by == by => {
                e.kind = e.kind.max(kind);
            }
            Some(e) => *e = new,
            None => self.operations.push(new),
        }
    }
    pub(super) fn guard_ended(&mut self, stream: StreamKey, kind: AccessKind) {
        if let Some((_, held)) = self.guards.iter_mut().find(|(g, _)| g.stream == stream && g.kind == kind) {
            *held -= 1;
        }
        self.guards.retain(|(_, held)| *held > 0);
    }
    /// If the library announced that it had ordered the operation of this access: how many operations there were then, behind which it undertook to order
    /// this one, and whether it knows the operation. Of its own operations that is the first that accesses the allocation on that stream
    /// since the announcement, of the program's and those under a guard every one; of several announcements the last counts.
    pub(super) fn operation(&mut self, at: At, kind: AccessKind) -> Option<(u64, bool)> {
        let stream = at.line.split().ok()?;
        let queued = self.operations.iter_mut().find(|e| e.stream == stream && at.tick > e.behind);
        let queued = queued.and_then(|e| {
            let is_meant = e.by == QueuedBy::Program || *e.came.get_or_insert(at.tick) == at.tick;
            (is_meant && kind <= e.kind).then_some((e.ordered_at, e.by == QueuedBy::Library))
        });
        let guards = self.guards.iter().map(|(g, _)| g);
        let guarded = guards.filter(|g| g.stream == stream && at.tick > g.behind && kind <= g.kind);
        let guarded = guarded.map(|g| g.ordered_at).max();
        match (queued, guarded) {
            (queued, None) => queued,
            (None, Some(then)) => Some((then, true)),
            (Some((queued, _)), Some(then)) => Some((queued.max(then), true)),
        }
    }
    /// From here on the library knows it as external memory.
    pub(super) fn bring_in(&mut self, stream: StreamKey, past: Stamp, behind: u64) {
        let of_stream = self.operations.iter().filter(|e| e.stream == stream && e.kind == AccessKind::Write);
        let undertaken = of_stream.map(|e| e.ordered_at).max().unwrap_or(0);
        let mut reported = std::mem::take(&mut self.used);
        reported.extend(self.brought_in.take().into_iter().flat_map(|b| b.reported));
        self.operations.clear();
        self.guards.clear();
        self.brought_in = Some(BroughtIn { past, behind, undertaken, reported });
    }
    /// Whether the library knew of an access when it ordered a later one; `before` tests whether it happened before a stamp.
    pub(super) fn knew(&self, access: &Access, before: impl FnOnce(&Stamp) -> bool) -> bool {
        match &self.brought_in {
            Some(b) if access.number <= b.behind => {
                let known = access.librarys || is_reported(&b.reported, access.at);
                (known && access.number <= b.undertaken) || before(&b.past)
            }
            _ => access.librarys || is_reported(&self.used, access.at),
        }
    }
    /// Whether the work of this stream up to this tick was reported to the library.
    pub(super) fn was_reported(&self, at: At) -> bool {
        is_reported(&self.used, at) || self.brought_in.as_ref().is_some_and(|b| is_reported(&b.reported, at))
    }
}

/// Whether reported uses, each of a stream up to a tick, include this point.
fn is_reported(used: &[(StreamKey, u64)], at: At) -> bool {
    at.line.split().is_ok_and(|s| used.iter().any(|u| u.0 == s && at.tick <= u.1))
}

impl Live {
    /// An access raced with a later one, and is forgotten where they met.
    pub(super) fn note_race(&mut self, at: At) {
        match self.raced.iter_mut().find(|known| known.line == at.line) {
            Some(known) => known.tick = known.tick.max(at.tick),
            None => self.raced.push(at),
        }
    }
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|p| p.bytes).sum()
    }
}

/// A freed allocation, for reports.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) story: Story,
    /// Where the program freed it.
    pub(super) from: Option<Caller>,
    pub(super) addr: Addr,
    pub(super) bytes: u64,
    pub(super) home: Option<StreamKey>,
    pub(super) at: At,
}

/// All memory and all allocations.
#[derive(Default, Debug)]
pub(super) struct Ledger {
    pub(super) memory: HashMap<PhysKey, Phys>,
    pub(super) maps: HashMap<MapKey, Map>,
    pub(super) live: HashMap<AllocationId, Live>,
    pub(super) by_addr: BTreeMap<Addr, AllocationId>,
    pub(super) gone: HashMap<AllocationId, Gone>,
    gone_order: VecDeque<AllocationId>,
}

impl Ledger {
    pub(super) fn created(&mut self, phys: PhysKey, space: Space, bytes: u64) {
        let new = Phys {
            space,
            shadow: Shadow::new(bytes),
            newest: Newest::default(),
            mappings: 0,
            released: false,
            managed: false,
            convicted: None,
        };
        assert!(self.memory.insert(phys, new).is_none(), "{phys:?} was created twice");
    }
    pub(super) fn mapped(&mut self, map: MapKey, phys: PhysKey) {
        self.phys(phys).mappings += 1;
        let old = self.maps.insert(map, Map { phys, newest: Newest::default() });
        assert!(old.is_none(), "{map:?} was mapped twice");
    }
    /// The program never reported these accesses of that memory: what they leave pending is its own.
    pub(super) fn unreported(&mut self, key: PhysKey, accesses: &[At]) {
        if accesses.is_empty() {
            return;
        }
        let maps = self.maps.values_mut().filter(|map| map.phys == key).map(|map| &mut map.newest);
        let of_phys = self.memory.get_mut(&key).map(|phys| &mut phys.newest);
        for newest in maps.chain(of_phys) {
            for &at in accesses {
                newest.unreported(at);
            }
        }
    }
    pub(super) fn phys(&mut self, key: PhysKey) -> &mut Phys {
        self.memory.get_mut(&key).unwrap_or_else(|| panic!("the oracle knows no memory {key:?}"))
    }
    /// The allocation that contains an address.
    pub(super) fn live_at(&self, addr: Addr) -> Option<AllocationId> {
        let (_, &id) = self.by_addr.range(..=addr).next_back()?;
        let live = &self.live[&id];
        addr.since(live.addr).is_some_and(|n| n < live.bytes()).then_some(id)
    }
    /// The allocation that contains an address, among all that live and those handed out where no memory is. Of two
    /// at one address the one that was freed first is forgotten.
    pub(super) fn any_live_at(&self, addr: Addr) -> Option<AllocationId> {
        let contains = |from: Addr, bytes| addr.since(from).is_some_and(|n| n < bytes);
        let here = |l: &Live| {
            contains(l.addr, l.bytes()) || l.nowhere.iter().any(|&(from, bytes)| contains(from, bytes))
        };
        let oldest = self.live.iter().filter(|(_, l)| here(l)).min_by_key(|(_, l)| l.story.number);
        oldest.map(|(&id, _)| id)
    }
    /// A number is given to another allocation while one has it: the earlier one is forgotten, and its place too.
    pub(super) fn replaced(&mut self, id: AllocationId) -> Option<Live> {
        let old = self.live.remove(&id)?;
        if self.by_addr.get(&old.addr) == Some(&id) {
            self.by_addr.remove(&old.addr);
        }
        for place in &old.pieces {
            let Some(phys) = self.memory.get_mut(&place.phys) else { continue };
            phys.shadow.for_each_cell(place.offset, place.offset + place.bytes, |_, cell| {
                if matches!(cell.owner, Owner::Live(owner) if owner == id) {
                    cell.owner = Owner::NeverAllocated;
                }
            });
        }
        Some(old)
    }
    pub(super) fn remember(&mut self, id: AllocationId, gone: Gone) {
        if self.gone.insert(id, gone).is_none() {
            self.gone_order.push_back(id);
        }
        if self.gone_order.len() > REMEMBERED
            && let Some(old) = self.gone_order.pop_front()
        {
            self.gone.remove(&old);
        }
    }
}

#[cfg(test)]
impl Ledger {
    /// How many cells all memory has.
    pub(super) fn cells(&self) -> usize {
        self.memory.values().map(|p| p.shadow.cells().count()).sum()
    }
}

/// Neighbouring pieces of one memory as one.
pub(super) fn join_pieces(pieces: &[(PhysKey, u64, u64)]) -> SmallVec<[PhysicalRange; 1]> {
    let mut joined: SmallVec<[PhysicalRange; 1]> = SmallVec::new();
    for &(phys, offset, bytes) in pieces {
        match joined.last_mut() {
            Some(last) if last.phys == phys && last.offset + last.bytes == offset => last.bytes += bytes,
            _ => joined.push(PhysicalRange { phys, offset, bytes }),
        }
    }
    joined
}
