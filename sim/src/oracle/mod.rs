//! The ordering oracle: a pure judge of a device's calls.
//!
//! It receives each operation, record, wait and observation in the order in which the host made the calls, and each access
//! to memory, and judges every access at its submission: happens-before does not depend on when the device runs.
//!
//! # Rules of order
//!
//! What comes before what; comments and tests name the rules by these numbers.
//!
//! | | |
//! |---|---|
//! | E1 | The operations of one stream run in the order in which they were queued. |
//! | E2 | A record captures all work on its stream so far. A wait orders later work of its stream behind what the event captures when the wait is queued; a later record does not change it, and an event that was never recorded orders nothing. |
//! | E3 | What the host saw complete, by a synchronise or a query, comes before everything that it queues afterwards. |
//! | E4 | An operation, wait or record on the legacy default stream comes behind all earlier work of its device's blocking streams, and their later work behind it. Per-thread default streams are blocking; non-blocking streams are not concerned. |
//! | E5 | A host function is an operation of its stream. |
//! | E6 | A wait may be for an event of another device. |
//! | E7 | Destroying a stream does not wait, and its work runs on; a driver may use the handle's value again. |
//! | E8 | A record replaces what the event captured before. |
//!
//! `order` keeps happens-before (over `clock`, and `waits` for which waits were needed); `ledger` keeps memory and allocations
//! (over `shadow`, which records the last accesses to each byte); `judge` checks P1 to P4 and races and decides who is to blame; `describe` turns
//! its findings into the plain data of `verdict`, and `words` that into text.
//!
//! It does not know contents, time, or whether anything ran; addresses are only names to it. It makes no calls and holds no
//! lock. It never learns an allocator's records: only what was handed out and taken back.
//!
//! A report of something impossible (a stream never created, bytes beyond a memory's end) panics with the names: then the
//! caller is not the device that it claims to be. A mistake of a *program* is never a panic.

mod clock;
mod describe;
mod judge;
mod ledger;
mod order;
mod shadow;
#[cfg(test)]
mod tests;
mod verdict;
mod waits;
mod words;

pub use verdict::{
    Blame, Fault, Held, MissingEdge, PhysicalRange, Point, Property, Side, StreamLabel, Tally, Verdict,
    Violation,
};
pub(super) use words::{address, clip, lines, place, shown};

use clock::{At, Stamp};
use hashbrown::HashMap;
use ledger::Ledger;
use millpond_driver::units::{Addr, AllocationId, DeviceId, StreamId};
use millpond_driver::{Caller, QueuedBy, StreamKind};
use order::Order;
use shadow::What;
use std::collections::VecDeque;
use std::sync::Arc;

/// A stream, by the caller's number: dense, and never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamKey(pub u32);

/// An event, by the caller's number: never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventKey(pub u32);

/// A host thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostKey(pub u32);

/// A piece of physical memory: a plain segment, a virtual-memory handle or a pinned range. The number is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PhysKey(pub u32);

/// One mapping of a piece of physical memory at addresses. The number is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MapKey(pub u32);

/// An operation that was submitted: its running number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpKey(pub(super) u64);

/// What an access does to the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AccessKind {
    /// Reads them.
    Read,
    /// Writes them.
    Write,
}

/// Where physical memory is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Space {
    /// On a device.
    Device,
    /// Page-locked, on the host: the CPU reaches it too.
    Pinned,
}

/// How many of the latest operations can still get accesses.
const RECENT: usize = 1024;
/// How many different names of operations are kept; all others share one name.
const NAMES: usize = 1 << 16;
/// How many violations are kept.
const KEPT: usize = 64;

/// What accesses memory: an operation of a stream, or the host.
#[derive(Clone, Debug)]
struct Actor {
    at: At,
    /// All that happened before it; for the host, what it has seen complete.
    stamp: Stamp,
    what: What,
    stream: Option<StreamKey>,
    from: Option<Caller>,
}

/// The names of operations, each kept once.
#[derive(Debug)]
struct Names {
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
}

impl Names {
    fn new() -> Names {
        // Number 0 stands for all names beyond the limit.
        Names { numbers: HashMap::new(), names: vec![Arc::from("an operation")] }
    }
    fn number(&mut self, name: &str) -> What {
        if let Some(&n) = self.numbers.get(name) {
            return What(n);
        }
        if self.names.len() >= NAMES {
            return What(0);
        }
        let (n, name) = (self.names.len() as u32, Arc::<str>::from(name));
        self.names.push(name.clone());
        self.numbers.insert(name, n);
        What(n)
    }
    fn name(&self, what: What) -> Arc<str> {
        self.names[what.0 as usize].clone()
    }
}

/// The judge.
///
/// Reports come in the order in which the host made the calls. A call that failed at the device, or that the device
/// answered with "not ready", is not reported.
#[derive(Debug)]
pub struct Oracle {
    order: Order,
    tally: Tally,
    /// Whether an allocator has reported anything.
    allocator_reported: bool,
    ledger: Ledger,
    names: Names,
    recent: VecDeque<Actor>,
    violations: Vec<Violation>,
    /// The streams' labels.
    labels: HashMap<StreamId, StreamLabel>,
    devices: Devices,
    threads: u64,
    /// Where the call that is reported now was made.
    from: Option<Caller>,
}

/// Whether streams of several devices were reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Devices {
    None,
    One(DeviceId),
    Several,
}

impl Oracle {
    /// A judge that has seen nothing.
    ///
    /// `strict`: every host thread has a clock of its own, and two threads are ordered only by [`Oracle::host_edge`] and
    /// through the device. Otherwise there is one host clock, in order of arrival: what one thread saw, all know, so that
    /// unreported locks and channels cause no false alarm.
    pub fn new(strict: bool) -> Oracle {
        Oracle {
            order: Order::new(strict),
            tally: Tally::default(),
            allocator_reported: false,
            ledger: Ledger::default(),
            names: Names::new(),
            recent: VecDeque::new(),
            violations: Vec::new(),
            labels: HashMap::new(),
            devices: Devices::None,
            threads: 0,
            from: None,
        }
    }

    // --- streams, events, hosts

    /// A stream was created. The legacy default stream of a device and its blocking streams order each other ([E4](self#rules-of-order));
    /// per-thread default streams are blocking.
    ///
    /// # Panics
    /// When the key was used before.
    pub fn stream_created(&mut self, stream: StreamKey, id: StreamId, kind: StreamKind, device: DeviceId) {
        self.order.stream_created(stream, id, kind, device);
        self.devices = match self.devices {
            Devices::None => Devices::One(device),
            Devices::One(one) if one == device => Devices::One(one),
            Devices::One(_) | Devices::Several => Devices::Several,
        };
        let of_thread = self.threads;
        self.threads += u64::from(kind == StreamKind::PerThreadDefault);
        let label = StreamLabel { id, number: id.0, kind, name: None, of_thread, device: Some(device) };
        self.labels.insert(id, label);
    }

    /// The program's name for a stream, instead of its number.
    ///
    /// # Panics
    /// When there is no such stream.
    pub fn stream_named(&mut self, stream: StreamKey, name: Arc<str>) {
        let (id, _) = self.order.stream_name(stream);
        if let Some(label) = self.labels.get_mut(&id) {
            label.name = Some(name);
        }
    }

    /// The program's number for a stream, if it counts differently from its [`StreamId`].
    ///
    /// # Panics
    /// When there is no such stream.
    pub fn stream_numbered(&mut self, stream: StreamKey, number: u64) {
        let (id, _) = self.order.stream_name(stream);
        if let Some(label) = self.labels.get_mut(&id) {
            label.number = number;
        }
    }

    /// Where in the program the calls reported from here on are made; `None` if unknown.
    pub fn called_from(&mut self, at: Option<Caller>) {
        self.from = at;
    }

    /// A stream was destroyed. Its pending work continues ([E7](self#rules-of-order)), and counts as the device's.
    ///
    /// # Panics
    /// When there is no such stream, or it was destroyed before.
    pub fn stream_destroyed(&mut self, stream: StreamKey) {
        self.order.stream_destroyed(stream);
    }

    /// One operation was put on a stream: a launch, a copy, a fill or a host function. It comes after all earlier work of the stream,
    /// all that the host thread knows complete, and what [E4](self#rules-of-order) adds. Its accesses are reported next.
    ///
    /// # Panics
    /// When there is no such stream, or it was destroyed.
    pub fn submit(&mut self, host: HostKey, stream: StreamKey, what: &str) -> OpKey {
        let (at, stamp) = self.order.submit(host, stream);
        let what = self.names.number(what);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Actor { at, stamp, what, stream: Some(stream), from: self.from });
        self.tally.operations += 1;
        OpKey(self.tally.operations - 1)
    }

    /// An event was recorded on a stream: from now on it captures all work on the stream so far ([E2](self#rules-of-order)), and no longer what
    /// it captured before ([E8](self#rules-of-order)). A record is an action on the stream ([E4](self#rules-of-order)), but has no position of its own.
    ///
    /// # Panics
    /// When there is no such stream, or it was destroyed.
    pub fn record(&mut self, host: HostKey, event: EventKey, stream: StreamKey) {
        self.order.record(host, event, stream);
        self.recorded();
    }

    /// An event was recorded behind all work on all streams of a device so far, including destroyed streams.
    pub fn record_context(&mut self, host: HostKey, event: EventKey, device: DeviceId) {
        self.order.record_context(host, event, device);
        self.recorded();
    }

    /// An event was destroyed: what it captured is no longer needed. Reporting this is optional and saves memory: a clock, as far as its pages
    /// are not shared.
    pub fn event_destroyed(&mut self, event: EventKey) {
        self.order.event_destroyed(event);
    }

    fn recorded(&mut self) {
        self.tally.records += 1;
        self.tally.records_never_waited_on += 1;
    }

    /// Later work on the stream comes after what the event captures now ([E2](self#rules-of-order)); a later record does not
    /// change that. An event that was never recorded orders nothing, and is counted.
    ///
    /// # Panics
    /// When there is no such stream, or it was destroyed.
    pub fn wait(&mut self, host: HostKey, stream: StreamKey, event: EventKey) {
        self.order.wait(host, stream, event, &mut self.tally);
    }

    /// The host saw that what the event captures now is complete: a synchronise returned, or a query answered so ([E3](self#rules-of-order)).
    pub fn host_sees_event(&mut self, host: HostKey, event: EventKey) {
        self.tally.host_waits += 1;
        self.order.host_sees_event(host, event, &mut self.tally);
    }

    /// The host saw that all work on a stream so far is complete ([E3](self#rules-of-order)).
    ///
    /// # Panics
    /// When there is no such stream.
    pub fn host_sees_stream(&mut self, host: HostKey, stream: StreamKey) {
        self.tally.host_waits += 1;
        self.order.host_sees_stream(host, stream);
    }

    /// The host saw that all work on a device so far is complete, including destroyed streams' ([E3](self#rules-of-order)).
    pub fn host_sees_device(&mut self, host: HostKey, device: DeviceId) {
        self.tally.host_waits += 1;
        self.order.host_sees_device(host, device);
    }

    /// What thread `to` does from now on comes after what thread `from` did so far: a lock handed over, a message, a join.
    /// Changes nothing unless strict.
    pub fn host_edge(&mut self, from: HostKey, to: HostKey) {
        self.order.host_edge(from, to);
    }

    // --- memory

    /// Physical memory was created: a plain segment, a virtual-memory handle, a pinned range.
    ///
    /// # Panics
    /// When the key was used before and not released.
    pub fn memory_created(&mut self, phys: PhysKey, space: Space, bytes: u64) {
        self.ledger.created(phys, space, bytes);
    }

    /// Physical memory was given back. Every access to it must be complete in this host's view (P4), and no live allocation may
    /// be in it. Memory that is still mapped lives on until its last mapping is removed.
    ///
    /// # Panics
    /// When there is no such memory.
    pub fn memory_released(&mut self, host: HostKey, phys: PhysKey) {
        self.judge_release(host, phys);
    }

    /// Physical memory was mapped at addresses; one memory may be mapped several times. A plain segment has one mapping,
    /// made and removed with it.
    ///
    /// # Panics
    /// When there is no such memory, or the key was used before and not unmapped.
    pub fn mapped(&mut self, map: MapKey, phys: PhysKey) {
        self.ledger.mapped(map, phys);
    }

    /// A mapping was removed. Every access through it must be complete in this host's view (P4), whatever other mappings
    /// there are.
    ///
    /// # Panics
    /// When there is no such mapping.
    pub fn unmapped(&mut self, host: HostKey, map: MapKey) {
        self.judge_unmap(host, map);
    }

    /// An operation accesses bytes, through a mapping if the device knows which. `tag` names the allocation that the access was
    /// meant for; without one it counts for the current owner of the bytes. Zero bytes are no access.
    ///
    /// # Panics
    /// When the operation is not among the latest 1024, there is no such memory, or the bytes go beyond its end.
    #[allow(clippy::too_many_arguments, reason = "an access is that many facts, each from another place")]
    pub fn access(
        &mut self,
        op: OpKey,
        map: Option<MapKey>,
        phys: PhysKey,
        offset: u64,
        bytes: u64,
        kind: AccessKind,
        tag: Option<AllocationId>,
    ) {
        let actor = self.actor(op);
        self.judge_access(&actor, map, PhysicalRange { phys, offset, bytes }, kind, tag);
    }

    /// An operation accesses an address where nothing is mapped. `tag` as in [`Oracle::access`].
    ///
    /// # Panics
    /// When the operation is not among the latest 1024.
    pub fn unmapped_access(&mut self, op: OpKey, addr: Addr, bytes: u64, tag: Option<AllocationId>) {
        let actor = self.actor(op);
        self.judge_unmapped_access(&actor, addr, bytes, tag);
    }

    /// The CPU accesses pinned bytes. It is on no stream: what it conflicts with must be complete in its view; ordered is not
    /// enough.
    ///
    /// # Panics
    /// When there is no such memory, or the bytes go beyond its end.
    pub fn host_access(
        &mut self,
        host: HostKey,
        phys: PhysKey,
        offset: u64,
        bytes: u64,
        kind: AccessKind,
        tag: Option<AllocationId>,
    ) {
        let what = self.names.number(match kind {
            AccessKind::Read => "read by the CPU",
            AccessKind::Write => "write by the CPU",
        });
        let at = self.order.host_step(host);
        let stamp = self.order.host_stamp(host);
        let actor = Actor { at, stamp, what, stream: None, from: self.from };
        self.judge_access(&actor, None, PhysicalRange { phys, offset, bytes }, kind, tag);
    }

    fn actor(&self, op: OpKey) -> Actor {
        let first = self.tally.operations - self.recent.len() as u64;
        let found = op.0.checked_sub(first).and_then(|i| self.recent.get(i as usize));
        found.unwrap_or_else(|| panic!("{op:?} is not among the latest {RECENT} operations")).clone()
    }

    // --- allocations

    /// An allocator handed bytes out: `pieces` are (physical memory, offset, bytes), in order of address, and only the requested
    /// bytes. With a stream, the allocation is born at that stream's end as it is now (its accesses come after that); without, when
    /// the host calls, and all former uses of the bytes must be complete in its view.
    ///
    /// # Panics
    /// When there is no such stream, or a piece goes beyond the end of its memory.
    pub fn allocated(
        &mut self,
        host: HostKey,
        id: AllocationId,
        addr: Addr,
        pieces: &[(PhysKey, u64, u64)],
        stream: Option<StreamKey>,
    ) {
        self.tally.allocations += 1;
        self.allocator_reports();
        self.judge_allocation(host, id, addr, pieces, stream);
    }

    /// An allocator exists, whose calls the program can use.
    pub(super) fn allocator_reports(&mut self) {
        self.allocator_reported = true;
    }

    /// These bytes of the last hand-out are mapped nowhere: an access to them is not the program's fault.
    pub fn allocated_nowhere(&mut self, id: AllocationId, addr: Addr, bytes: u64) {
        if let Some(live) = self.ledger.live.get_mut(&id) {
            live.nowhere.push((addr, bytes));
        }
    }

    /// The program's name for an allocation.
    pub fn allocation_named(&mut self, id: AllocationId, name: &str) {
        if let Some(live) = self.ledger.live.get_mut(&id) {
            live.story.name = Some(name.into());
        }
    }

    /// The owner reported to the allocator that a stream uses the allocation: from the free on, reuse must respect all work of the
    /// stream on it, before and after this call.
    pub fn used(&mut self, host: HostKey, id: AllocationId, stream: StreamKey) {
        self.judge_use(host, id, stream, u64::MAX);
    }

    /// The owner reported a use up to now to the allocator ([`Oracle::used`]): reuse must respect only the stream's work
    /// before this call: the owner recorded an event behind its uses and named that. What was queued between the
    /// event and this call counts as reported, too: the oracle does not know which event it was.
    pub fn used_so_far(&mut self, host: HostKey, id: AllocationId, stream: StreamKey) {
        let so_far = self.order.position(stream).tick;
        self.judge_use(host, id, stream, so_far);
    }

    /// A use of the allocation that lives at an address ([`Oracle::used`]); nothing if there is none.
    pub fn used_at(&mut self, host: HostKey, addr: Addr, stream: StreamKey) {
        if let Some(id) = self.ledger.live_at(addr) {
            self.used(host, id, stream);
        }
    }

    /// A use up to now of the allocation that lives at an address ([`Oracle::used_so_far`]); nothing if
    /// there is none.
    pub fn used_so_far_at(&mut self, host: HostKey, addr: Addr, stream: StreamKey) {
        if let Some(id) = self.ledger.live_at(addr) {
            self.used_so_far(host, id, stream);
        }
    }

    /// The allocator declares that a stream may use the allocation from here on: either it was ordered after the birth, or
    /// the bytes have no earlier work that it would have to come after. The program is then not blamed if uses there
    /// do not come after the birth; the allocator is blamed if they do not come after the bytes' former
    /// owners. Blind spot: once the bytes were accessed since the birth, only those accesses of the former owners count here that
    /// the birth itself did not come after.
    pub fn admitted(&mut self, id: AllocationId, stream: StreamKey) {
        self.note_admitted(id, stream);
    }

    /// The library announces that it has ordered this stream's next work behind all conflicting uses that it knew of: the next operation
    /// that accesses the allocation if the library queues it, all such operations until its next announcement for this stream if the program does.
    /// If it has not, a race with a use that it knew of (an operation of its own, or a use reported by [`Oracle::used`])
    /// is its fault and not the program's. An operation that writes although `kind` says that it reads is the program's fault.
    pub fn operation_comes(&mut self, id: AllocationId, stream: StreamKey, kind: AccessKind, by: QueuedBy) {
        let from = self.order.position(stream).tick;
        if let Some(live) = self.ledger.live.get_mut(&id) {
            live.expect_operation(stream, kind, by, from, self.tally.operations);
        }
    }

    /// A guard that was reported as an operation of [`QueuedBy::Guard`] ended.
    pub fn guard_ended(&mut self, id: AllocationId, stream: StreamKey, kind: AccessKind) {
        if let Some(live) = self.ledger.live.get_mut(&id) {
            live.guard_ended(stream, kind);
        }
    }

    /// The end of a guard of the allocation that lives at an address ([`Oracle::guard_ended`]); nothing if
    /// there is none.
    pub fn guard_ended_at(&mut self, addr: Addr, stream: StreamKey, kind: AccessKind) {
        if let Some(id) = self.ledger.live_at(addr) {
            self.guard_ended(id, stream, kind);
        }
    }

    /// An announced operation on the allocation that lives at an address ([`Oracle::operation_comes`]);
    /// nothing if there is none.
    pub fn operation_comes_at(&mut self, addr: Addr, stream: StreamKey, kind: AccessKind, by: QueuedBy) {
        if let Some(id) = self.ledger.live_at(addr) {
            self.operation_comes(id, stream, kind, by);
        }
    }

    /// The library got the memory at an address as external memory, on a stream. Of earlier work on it, including its own, it
    /// knows from here on the work on that stream and what it was ordered behind, and what it undertook to order before it; the rest is the program's. What the owner's free has to respect stays.
    pub fn brought_in_at(&mut self, host: HostKey, addr: Addr, stream: StreamKey) {
        let Some(id) = self.ledger.live_at(addr) else { return };
        let past = self.order.now(host, Some(stream));
        if let Some(live) = self.ledger.live.get_mut(&id) {
            live.bring_in(stream, past, self.tally.operations);
        }
    }

    /// Bytes came back to the allocator, at the end of the home stream as it is now; `unknown`: any stream may have used them,
    /// and reuse must respect every access made.
    pub fn freed(&mut self, host: HostKey, id: AllocationId, unknown: bool) {
        self.tally.frees += 1;
        self.judge_free(host, id, unknown);
    }

    // --- results

    /// The counts so far.
    pub fn tally(&self) -> Tally {
        let mut tally = self.tally;
        let idle = tally.waits_on_unrecorded + tally.waits_implied;
        tally.waits_beyond_need = tally.waits - idle - self.order.waits_needed();
        tally
    }

    /// The violations kept so far: the first 64, but the allocator's in preference.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// The counts, if nothing was violated.
    ///
    /// # Errors
    /// The violations kept, and how many more there were.
    pub fn verdict(&self) -> Result<Tally, Verdict> {
        let tally = self.tally();
        if tally.violations == 0 {
            return Ok(tally);
        }
        let violations = self.violations.clone();
        Err(Verdict { more: tally.violations - violations.len() as u64, violations, tally: Box::new(tally) })
    }

    /// Counts a violation, and keeps it if there is room or if it is more informative than one kept.
    fn convict(&mut self, blame: Blame, describe: impl FnOnce(&Oracle) -> Violation) {
        self.tally.violations += 1;
        self.tally.violations_of_allocator += u64::from(blame == Blame::Allocator);
        if self.violations.len() >= KEPT {
            let spare = self.violations.iter().rposition(|v| v.blame == Blame::Program);
            match spare {
                Some(i) if blame == Blame::Allocator => drop(self.violations.remove(i)),
                _ => return,
            }
        }
        let mut violation =
            Violation { blame, allocator_reported: self.allocator_reported, ..describe(self) };
        self.label(&mut violation);
        self.violations.push(violation);
    }
}
