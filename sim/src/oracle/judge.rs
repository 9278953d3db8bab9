//! The properties: what is legal for an access, an allocation, a free and a release, and who is to blame if it is not.
//!
//! | when | checked | to blame |
//! |---|---|---|
//! | allocation | P1: no live owner; bytes of no stream: former uses complete in the host's view | allocator |
//! | access | P3: after the birth, before the free, inside the requested bytes, where they have an owner | program |
//! | access | P2: after every access of former generations | allocator; program if it never reported that use |
//! | access | race: after every conflicting access of its own generation | program; the library if it knew both |
//! | unmap, release | P4: every access complete in the host's view, no live owner | allocator; program as at P2 |
//!
//! A use is *reported* if it happened before the free (on the home stream as it is then, or in the host's view), if its stream
//! was passed to `used`, or if the free was of unknown uses. Memory in which nothing was ever handed out is judged only for races
//! and P4.
//!
//! The library *knew* an access if it is of an operation that the library announced, or if it was reported by
//! `used`. A race is the library's if the later access is of an operation that it undertook to order behind all that it
//! knew (its own, or one for which the program had it order the stream), and it knew the earlier one, which was queued by then; otherwise it is the program's.
//!
//! Of accesses that dominate each other one stands for all: if an owner's newest use was never reported and an older one
//! was, and the allocator waited for neither, only the program's fault shows until it is fixed.
//!
//! An access call yields at most one violation of each fault; the accesses of a P2 violation are then forgotten, so that one missing
//! edge is one violation and not one for every later access. This does not know how clocks or cells work inside.

use super::clock::At;
use super::ledger::{Gone, Ledger, Live, Story, join_pieces};
use super::order::Order;
use super::shadow::{Access, Owner};
use super::verdict::{Blame, Fault, PhysicalRange, Property, Side, Violation};
use super::{AccessKind, Actor, HostKey, MapKey, Oracle, PhysKey, Space, StreamKey};
use millpond_driver::units::{Addr, AllocationId};
use smallvec::SmallVec;

/// What one access violated, at most one of each.
#[derive(Default)]
struct Met {
    /// A former generation's access that the allocator should have waited for, and one that it could not know.
    early: Option<(Access, PhysicalRange)>,
    unrecorded: Option<(Access, PhysicalRange)>,
    race: Option<(Access, PhysicalRange)>,
    /// A race of an operation of the library's with a use that it knew.
    unwaited: Option<(Access, PhysicalRange)>,
    unborn: Option<(AllocationId, At)>,
    freed: Option<(AllocationId, PhysicalRange)>,
    unallocated: Option<PhysicalRange>,
}

impl Oracle {
    // --- accesses

    pub(super) fn judge_access(
        &mut self,
        actor: &Actor,
        map: Option<MapKey>,
        place: PhysicalRange,
        kind: AccessKind,
        tag: Option<AllocationId>,
    ) {
        if place.bytes == 0 {
            return;
        }
        self.tally.accesses_checked += 1;
        let unrecorded = match tag {
            Some(id) if !self.ledger.live.contains_key(&id) => {
                self.convict_freed(actor, kind, id, place);
                true
            }
            Some(id) => {
                self.judge_owned(actor, place, kind, id);
                false
            }
            None => self.judge_range(actor, place, kind, None),
        };
        let (at, what, from, number) = (actor.at, actor.what, actor.from, self.tally.operations);
        let access = Access { at, what, from, id: tag, kind, unrecorded, librarys: false, number };
        self.ledger.phys(place.phys).newest.note(access);
        if let Some(map) = map.and_then(|m| self.ledger.maps.get_mut(&m)) {
            map.newest.note(access);
        }
    }

    /// An access meant for a live allocation: born before it, and inside it.
    fn judge_owned(&mut self, actor: &Actor, place: PhysicalRange, kind: AccessKind, id: AllocationId) {
        let live = &self.ledger.live[&id];
        let end = place.offset + place.bytes;
        let touches =
            |p: &&PhysicalRange| p.phys == place.phys && p.offset < end && place.offset < p.offset + p.bytes;
        let inside = live.pieces.iter().find(touches).map(|p| {
            let start = p.offset.max(place.offset);
            PhysicalRange { phys: p.phys, offset: start, bytes: end.min(p.offset + p.bytes) - start }
        });
        if let Some(gap) = birth_gap(&mut self.order, live, actor) {
            self.convict_unborn(actor, kind, id, gap, place);
        }
        if inside != Some(place) {
            self.convict_overrun(actor, kind, id, place);
        }
        if let Some(inside) = inside {
            self.judge_range(actor, inside, kind, Some(id));
        }
    }

    /// Judges bytes cell by cell; returns whether it accessed bytes without an owner.
    fn judge_range(
        &mut self,
        actor: &Actor,
        place: PhysicalRange,
        kind: AccessKind,
        tag: Option<AllocationId>,
    ) -> bool {
        let number = self.tally.operations;
        let Oracle { order, ledger, .. } = self;
        let Ledger { memory, live, .. } = ledger;
        let Some(phys) = memory.get_mut(&place.phys) else {
            panic!("the oracle knows no memory {:?}", place.phys)
        };
        let managed = phys.managed;
        let mut met = Met::default();
        let mut judged = tag;
        phys.shadow.for_each_cell(place.offset, place.offset + place.bytes, |start, cell| {
            let here = PhysicalRange { offset: start, bytes: cell.end - start, ..place };
            let owner = match cell.owner {
                // Two live owners: P1 has reported that already.
                Owner::Live(id) if tag.is_some_and(|t| t != id) => return,
                Owner::Live(id) => Some(id),
                // An overlap again: the other owner freed first.
                Owner::Freed(_) | Owner::NeverAllocated if tag.is_some() => return,
                Owner::Freed(id) => {
                    met.freed.get_or_insert((id, here));
                    return;
                }
                Owner::NeverAllocated if managed => {
                    met.unallocated.get_or_insert(here);
                    return;
                }
                Owner::NeverAllocated => None,
            };
            if let Some(id) = owner
                && judged != owner
            {
                judged = owner;
                let gap = birth_gap(order, &live[&id], actor);
                met.unborn = met.unborn.or(gap.map(|gap| (id, gap)));
            }
            let live_here = owner.and_then(|id| live.get_mut(&id));
            let ordered_at = live_here.and_then(|l| l.operation(actor.at, kind));
            if owner.is_some_and(|id| live[&id].admits(actor.stream)) {
                // It need not come after the birth, so what the birth came after is not necessarily before it.
                let unordered = cell.ordered.iter().find(|f| !order.before(f.at, &actor.stamp));
                if let Some(f) = unordered {
                    let slot = if f.unrecorded { &mut met.unrecorded } else { &mut met.early };
                    slot.get_or_insert((*f, here));
                }
            }
            cell.former.retain(|f| {
                let before = order.before(f.at, &actor.stamp);
                if !before {
                    let slot = if f.unrecorded { &mut met.unrecorded } else { &mut met.early };
                    slot.get_or_insert((*f, here));
                }
                before
            });
            cell.now.retain(|a| {
                let conflicting = a.kind == AccessKind::Write || kind == AccessKind::Write;
                let lawful = !conflicting || order.before(a.at, &actor.stamp);
                if !lawful {
                    if let Some(live) = owner.and_then(|id| live.get_mut(&id)) {
                        live.note_race(a.at);
                    }
                    let known = match owner {
                        Some(id) => live[&id].knew(a, |past| order.before(a.at, past)),
                        None => a.librarys,
                    };
                    let both = known && ordered_at.is_some_and(|(then, _)| a.number <= then);
                    let slot = if both { &mut met.unwaited } else { &mut met.race };
                    slot.get_or_insert((*a, here));
                }
                lawful
            });
            let librarys = ordered_at.is_some_and(|(_, librarys)| librarys);
            let (at, what, from) = (actor.at, actor.what, actor.from);
            let new = Access { at, what, from, id: owner, kind, unrecorded: false, librarys, number };
            cell.add(new, |at| order.known_before(at, &actor.stamp));
        });
        let ownerless = met.freed.is_some() || met.unallocated.is_some();
        self.convict_met(actor, kind, tag.or(judged), &met);
        ownerless
    }

    fn convict_met(&mut self, actor: &Actor, kind: AccessKind, owner: Option<AllocationId>, met: &Met) {
        if let Some((id, gap)) = met.unborn {
            let piece = self.ledger.live[&id].pieces[0];
            self.convict_unborn(actor, kind, id, gap, piece);
        }
        if let Some((id, place)) = met.freed {
            self.convict_freed(actor, kind, id, place);
        }
        if let Some(place) = met.unallocated {
            self.convict(Blame::Program, |o| {
                Violation::new(Property::P3, Fault::NotHandedOut, o.side(actor, kind, None)).at(place)
            });
        }
        let pairs = [
            (met.early, Blame::Allocator, Property::P2, Fault::EarlyReuse),
            (met.unrecorded, Blame::Program, Property::P2, Fault::MissingRecordUse),
            (met.unwaited, Blame::Allocator, Property::Race, Fault::UnorderedOperation),
            (met.race, Blame::Program, Property::Race, Fault::Race),
        ];
        for (found, blame, property, fault) in pairs {
            let Some((earlier, place)) = found else { continue };
            self.convict(blame, |o| {
                let owner = o.owner_of(place).or(owner);
                Violation::new(property, fault, o.side(actor, kind, owner))
                    .at(place)
                    .against(o.past(&earlier))
                    .missing(o.edge(earlier.at, actor.at, &actor.stamp))
            });
        }
    }

    fn convict_unborn(
        &mut self,
        actor: &Actor,
        kind: AccessKind,
        id: AllocationId,
        gap: At,
        place: PhysicalRange,
    ) {
        self.convict(Blame::Program, |o| {
            let live = &o.ledger.live[&id];
            let birth = o.birth("the allocation", live.born_at, id);
            Violation::new(Property::P3, Fault::BeforeAllocation, o.side(actor, kind, Some(id)))
                .at(place)
                .against(birth)
                .missing(o.edge(gap, actor.at, &actor.stamp))
        });
    }

    fn convict_overrun(&mut self, actor: &Actor, kind: AccessKind, id: AllocationId, place: PhysicalRange) {
        self.convict(Blame::Program, |o| {
            let v = Violation::new(Property::P3, Fault::Overrun, o.side(actor, kind, Some(id))).at(place);
            match o.neighbour_in(place, id) {
                Some(n) => v.against(o.birth("the allocation", o.ledger.live[&n].born_at, n)),
                None => v,
            }
        });
    }

    /// An access of something that is not alive.
    fn convict_freed(&mut self, actor: &Actor, kind: AccessKind, id: AllocationId, place: PhysicalRange) {
        let known = self.ledger.gone.contains_key(&id);
        let fault = if known { Fault::AfterFree } else { Fault::UnknownAllocation };
        self.convict(Blame::Program, |o| {
            let v = Violation::new(Property::P3, fault, o.side(actor, kind, Some(id))).at(place);
            match o.neighbour_in(place, id) {
                Some(n) => v.against(o.birth("the next allocation", o.ledger.live[&n].born_at, n)),
                None => v,
            }
        });
    }

    pub(super) fn judge_unmapped_access(
        &mut self,
        actor: &Actor,
        addr: Addr,
        bytes: u64,
        tag: Option<AllocationId>,
    ) {
        self.tally.accesses_checked += 1;
        let contains = |base: Addr, len: u64| addr.since(base).is_some_and(|n| n < len);
        // Two live owners are the allocator's fault, whichever of them was freed since.
        if let Some(id) = self.ledger.live_at(addr).or_else(|| self.ledger.any_live_at(addr)) {
            return self.convict(Blame::Allocator, |o| {
                Violation::new(Property::P3, Fault::NoMemory, o.unmapped_side(actor, Some(o.held(id))))
            });
        }
        // Its own bytes are where they are: these are beyond them, whichever owner they had before.
        if let Some(id) = tag.filter(|id| self.ledger.live.contains_key(id)) {
            return self.convict(Blame::Program, |o| {
                let side = o.unmapped_side(actor, Some(o.held(id)));
                let v = Violation::new(Property::P3, Fault::Overrun, side);
                Violation { unmapped: Some((addr, bytes)), ..v }
            });
        }
        self.convict(Blame::Program, |o| {
            let had = o.ledger.gone.iter().filter(|(_, g)| contains(g.addr, g.bytes));
            // The last of them: the map has no order of its own.
            let dead = had.max_by_key(|(_, g)| g.story.number).map(|(&id, _)| o.held(id));
            let fault = if dead.is_some() { Fault::AfterFree } else { Fault::NothingMapped };
            let v = Violation::new(Property::P3, fault, o.unmapped_side(actor, dead));
            Violation { unmapped: Some((addr, bytes)), ..v }
        });
    }

    // --- allocations

    pub(super) fn judge_allocation(
        &mut self,
        host: HostKey,
        id: AllocationId,
        addr: Addr,
        pieces: &[(PhysKey, u64, u64)],
        home: Option<StreamKey>,
    ) {
        let step = self.order.host_step(host);
        let born = self.order.now(host, home);
        let born_at = home.map_or(step, |key| self.order.position(key));
        let story = Story { number: self.tally.allocations - 1, name: None, from: self.from };
        let live = Live {
            story,
            addr,
            pieces: join_pieces(pieces),
            home,
            born,
            born_at,
            used: SmallVec::new(),
            brought_in: None,
            nowhere: SmallVec::new(),
            admitted: SmallVec::new(),
            raced: SmallVec::new(),
            operations: SmallVec::new(),
            guards: SmallVec::new(),
        };
        let old = self.ledger.replaced(id);
        let mut overlap = old.is_some().then_some(id);
        let mut missing = None;
        let mut early: [Option<(Access, PhysicalRange)>; 2] = [None, None];
        for &place in &live.pieces {
            let Oracle { order, ledger, .. } = self;
            let Some(phys) = ledger.memory.get_mut(&place.phys) else {
                missing.get_or_insert(place);
                continue;
            };
            phys.managed = true;
            phys.shadow.for_each_cell(place.offset, place.offset + place.bytes, |start, cell| {
                if let Owner::Live(other) = cell.owner {
                    overlap.get_or_insert(other);
                }
                cell.owner = Owner::Live(id);
                cell.end_generation(|f| order.before(f.at, &live.born));
                if home.is_none() {
                    let here = PhysicalRange { offset: start, bytes: cell.end - start, ..place };
                    for f in cell.former.drain(..) {
                        early[usize::from(f.unrecorded)].get_or_insert((f, here));
                    }
                }
            });
        }
        let born = live.born.clone();
        self.ledger.by_addr.insert(addr, id);
        self.ledger.live.insert(id, live);
        if let Some(other) = overlap {
            self.convict(Blame::Allocator, |o| {
                let mut before = o.held(other);
                if let Some(old) = &old {
                    before.range = Some((old.addr, old.bytes()));
                    (before.number, before.from) = (Some(old.story.number), old.story.from);
                    before.name.clone_from(&old.story.name);
                }
                let there = o.ledger.live[&other].born_at;
                Violation::new(Property::P1, Fault::Overlap, o.birth("an allocation", born_at, id))
                    .against(Side { allocation: Some(before), ..o.birth("an allocation", there, other) })
            });
        }
        if let Some(place) = missing {
            self.convict(Blame::Allocator, |o| {
                Violation::new(Property::P3, Fault::NoMemory, o.birth("an allocation", born_at, id)).at(place)
            });
        }
        let faults = [(Blame::Allocator, Fault::EarlyReuse), (Blame::Program, Fault::MissingRecordUse)];
        for ((blame, fault), found) in faults.into_iter().zip(early) {
            let Some((earlier, place)) = found else { continue };
            self.convict(blame, |o| {
                Violation::new(Property::P2, fault, o.birth("an allocation for the host", step, id))
                    .at(place)
                    .against(o.past(&earlier))
                    .missing(o.edge(earlier.at, step, &born))
            });
        }
    }

    pub(super) fn judge_use(&mut self, host: HostKey, id: AllocationId, stream: StreamKey, until: u64) {
        if let Some(live) = self.ledger.live.get_mut(&id) {
            match live.used.iter_mut().find(|u| u.0 == stream) {
                Some(reported) => reported.1 = reported.1.max(until),
                None => live.used.push((stream, until)),
            }
            return;
        }
        self.order.host_step(host);
        let at = self.order.position(stream);
        self.convict(Blame::Program, |o| {
            Violation::new(Property::P3, Fault::BadUse, o.plain("record_use", at, Some(o.held(id))))
        });
    }

    pub(super) fn note_admitted(&mut self, id: AllocationId, stream: StreamKey) {
        if let Some(live) = self.ledger.live.get_mut(&id)
            && !live.admitted.contains(&stream)
        {
            live.admitted.push(stream);
        }
    }

    pub(super) fn judge_free(&mut self, host: HostKey, id: AllocationId, unknown: bool) {
        let step = self.order.host_step(host);
        let Some(live) = self.ledger.live.remove(&id) else {
            return self.convict(Blame::Program, |o| {
                Violation::new(Property::P3, Fault::BadFree, o.plain("a free", step, Some(o.held(id))))
            });
        };
        let end = self.order.now(host, live.home);
        let Oracle { order, ledger, .. } = self;
        let mut is_unrecorded = |at| !(unknown || live.was_reported(at) || order.before(at, &end));
        let raced: SmallVec<[At; 4]> = live.raced.iter().copied().filter(|&at| is_unrecorded(at)).collect();
        for &place in &live.pieces {
            let Some(phys) = ledger.memory.get_mut(&place.phys) else { continue };
            let mut unreported = raced.clone();
            phys.shadow.for_each_cell(place.offset, place.offset + place.bytes, |_, cell| {
                if cell.owner != Owner::Live(id) {
                    return;
                }
                cell.owner = Owner::Freed(id);
                for a in &mut cell.now {
                    a.unrecorded = is_unrecorded(a.at);
                    if a.unrecorded && !unreported.contains(&a.at) {
                        unreported.push(a.at);
                    }
                }
            });
            ledger.unreported(place.phys, &unreported);
        }
        if ledger.by_addr.get(&live.addr) == Some(&id) {
            ledger.by_addr.remove(&live.addr);
        }
        let at = live.home.map_or(step, |key| order.position(key));
        let (addr, bytes, home) = (live.addr, live.bytes(), live.home);
        ledger.remember(id, Gone { story: live.story, from: self.from, addr, bytes, home, at });
    }

    // --- memory going away

    pub(super) fn judge_unmap(&mut self, host: HostKey, map: MapKey) {
        let Some(map) = self.ledger.maps.remove(&map) else { panic!("the oracle knows no mapping {map:?}") };
        self.judge_pending(host, map.phys, &map.newest.0, Fault::UnmappedWhilePending);
        let phys = self.ledger.phys(map.phys);
        phys.mappings -= 1;
        self.forget_if_unused(host, map.phys);
    }

    pub(super) fn judge_release(&mut self, host: HostKey, key: PhysKey) {
        let newest = std::mem::take(&mut self.ledger.phys(key).newest.0);
        self.judge_pending(host, key, &newest, Fault::ReleasedWhilePending);
        self.ledger.phys(key).newest.0 = newest;
        self.ledger.phys(key).released = true;
        self.forget_if_unused(host, key);
    }

    /// P4: every one of these accesses is complete in the host's view.
    fn judge_pending(&mut self, host: HostKey, key: PhysKey, newest: &[Access], fault: Fault) {
        let step = self.order.host_step(host);
        let seen = self.order.host_stamp(host);
        let pending: SmallVec<[Access; 2]> =
            newest.iter().filter(|a| !self.order.before(a.at, &seen)).copied().collect();
        if pending.is_empty() {
            return;
        }
        // What is complete in the host's view needed no report.
        let reported = pending.iter().find(|a| !a.unrecorded).copied();
        let access = reported.unwrap_or(pending[0]);
        if self.ledger.memory[&key].convicted == Some(access.at) {
            return;
        }
        self.ledger.phys(key).convicted = Some(access.at);
        let (blame, fault) = if reported.is_some() {
            (Blame::Allocator, fault)
        } else {
            (Blame::Program, Fault::MissingRecordUse)
        };
        self.convict(blame, |o| {
            let what = match (fault, o.ledger.memory[&key].space) {
                (Fault::UnmappedWhilePending, _) => "an unmap",
                (_, Space::Device) => "a release of device memory",
                (_, Space::Pinned) => "a release of pinned memory",
            };
            Violation::new(Property::P4, fault, o.plain(what, step, None))
                .against(o.past(&access))
                .missing(o.edge(access.at, step, &seen))
        });
    }

    /// Forgets memory that is released and mapped nowhere.
    fn forget_if_unused(&mut self, host: HostKey, key: PhysKey) {
        let phys = self.ledger.phys(key);
        if !phys.released || phys.mappings > 0 {
            return;
        }
        let owned = phys.shadow.cells().find_map(|(start, c)| match c.owner {
            Owner::Live(id) => Some((id, PhysicalRange { phys: key, offset: start, bytes: c.end - start })),
            _ => None,
        });
        if let Some((id, place)) = owned {
            let at = self.order.host_step(host);
            self.convict(Blame::Allocator, |o| {
                Violation::new(Property::P4, Fault::ReleasedWhileOwned, o.plain("a release", at, None))
                    .at(place)
                    .against(o.birth("the allocation", o.ledger.live[&id].born_at, id))
            });
        }
        self.ledger.memory.remove(&key);
    }
}

/// The first thing that the birth comes after and the access does not.
fn birth_gap(order: &mut Order, live: &Live, actor: &Actor) -> Option<At> {
    // With one host clock, the home stream's later work and every later step of the host come after the birth by themselves.
    let later = live.home == actor.stream && actor.at.tick > live.born_at.tick;
    if !order.strict() && (live.home.is_none() || later) {
        return None;
    }
    let gap = order.first_unordered(&live.born, &actor.stamp);
    gap.filter(|_| !live.admits(actor.stream))
}
