//! Random programs against a judge that forgets nothing.
//!
//! The naive judge keeps, for every operation, the set of operations before it as bits, and for every byte every access ever
//! made; it shares no code with the oracle. Both must agree, for every call up to the first violation, on what was violated
//! and who is to blame. After that they may differ: the oracle forgets what was part of a conviction.
//!
//! Where several earlier accesses race with one call, some the library's fault and some the program's, the oracle names at least
//! those that no later access stands for (a write for all that it comes after, a read for the reads that it comes after).
//!
//! Operations are kernels and host functions with several declared ranges, of device memory and of pinned memory, which the CPU
//! touches too. The oracle is notified of them by the test, or by a simulated device that runs them.

mod naive;

use super::super::super::{HostFunction, Launch, Schedule, Sim, SimEvent, SimStream};
use super::*;
use core::time::Duration;
use millpond_driver::{Driver, Fences, Host, HostKind, Memory, Note, OwnedHost, OwnedRange, RangeUse};
use naive::{Found, Naive, Owned, Wrong};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Streams: two that do not block, two that do, the legacy one.
const STREAMS: [u32; 5] = [1, 2, 7, 8, LEGACY];
/// Of each of both memories.
const CELLS: u64 = 4;
/// Events of the programs; one more is for what a stream is made to wait for politely.
const EVENTS: usize = 3;

#[derive(Clone, Debug)]
enum Call {
    /// On a stream, or pinned for the host. `polite`: the stream waits for all that touched the bytes before, or the host does.
    Alloc {
        stream: Option<usize>,
        cell: u64,
        cells: u64,
        polite: bool,
    },
    Free {
        nth: usize,
        unknown: bool,
    },
    Used {
        nth: usize,
        stream: usize,
    },
    /// `polite`: the stream waits for the allocations' own streams, and for all that touched them. `known`: the library says
    /// directly before that it queues the operation, and what that does to each allocation.
    Operate {
        stream: usize,
        by: By,
        ranges: Vec<(usize, AccessKind, bool)>,
        polite: bool,
        known: bool,
    },
    /// The library says that it is about to queue an operation. What the stream is given next may be anything, and come late.
    Announce {
        nth: usize,
        stream: usize,
        kind: AccessKind,
        by: QueuedBy,
    },
    /// A guard ends, if one of this kind is held.
    EndGuard {
        nth: usize,
        stream: usize,
        kind: AccessKind,
    },
    /// `polite`: the host waits for all that touched the allocation.
    Cpu {
        nth: usize,
        kind: AccessKind,
        polite: bool,
    },
    Submit {
        stream: usize,
    },
    Record {
        event: usize,
        stream: usize,
    },
    RecordContext {
        event: usize,
    },
    Wait {
        stream: usize,
        event: usize,
    },
    SeeEvent {
        event: usize,
    },
    SeeStream {
        stream: usize,
    },
    Order {
        earlier: usize,
        later: usize,
    },
}

/// What is queued on a stream. A host function reaches pinned memory only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum By {
    Kernel,
    HostFunction,
}

fn call() -> impl Strategy<Value = Call> {
    let who = prop_oneof![Just(QueuedBy::Library), Just(QueuedBy::Program), Just(QueuedBy::Guard)];
    let s = || 0..STREAMS.len();
    let kind = || prop_oneof![Just(Read), Just(Write)];
    let by = prop_oneof![1 => Just(By::Kernel), 1 => Just(By::HostFunction)];
    let ranges = prop::collection::vec((0..5_usize, kind(), any::<bool>()), 1..=3);
    prop_oneof![
        4 => (s(), 0..CELLS, 1..=2_u64, prop::bool::weighted(0.6))
            .prop_map(|(s, cell, cells, polite)| Call::Alloc { stream: Some(s), cell, cells, polite }),
        2 => (0..CELLS, 1..=2_u64, prop::bool::weighted(0.95))
            .prop_map(|(cell, cells, polite)| Call::Alloc { stream: None, cell, cells, polite }),
        4 => (0..5_usize, prop::bool::weighted(0.2)).prop_map(|(nth, unknown)| Call::Free { nth, unknown }),
        4 => (0..5_usize, s()).prop_map(|(nth, stream)| Call::Used { nth, stream }),
        10 => (s(), by, ranges, prop::bool::weighted(0.97), any::<bool>())
            .prop_map(|(stream, by, ranges, polite, known)| Call::Operate { stream, by, ranges, polite, known }),
        3 => (0..5_usize, s(), kind(), who)
            .prop_map(|(nth, stream, kind, by)| Call::Announce { nth, stream, kind, by }),
        1 => (0..5_usize, s(), kind()).prop_map(|(nth, stream, kind)| Call::EndGuard { nth, stream, kind }),
        2 => (0..5_usize, kind(), prop::bool::weighted(0.98))
            .prop_map(|(nth, kind, polite)| Call::Cpu { nth, kind, polite }),
        1 => s().prop_map(|stream| Call::Submit { stream }),
        2 => (0..EVENTS, s()).prop_map(|(event, stream)| Call::Record { event, stream }),
        1 => (0..EVENTS).prop_map(|event| Call::RecordContext { event }),
        2 => (s(), 0..EVENTS).prop_map(|(stream, event)| Call::Wait { stream, event }),
        1 => (0..EVENTS).prop_map(|event| Call::SeeEvent { event }),
        1 => s().prop_map(|stream| Call::SeeStream { stream }),
        1 => (s(), s()).prop_map(|(earlier, later)| Call::Order { earlier, later }),
    ]
}

/// A range that an operation declares.
#[derive(Clone, Copy)]
struct Range {
    id: AllocationId,
    space: Space,
    offset: u64,
    bytes: u64,
    kind: AccessKind,
}

/// What runs a program: the oracle alone, or a device that notifies it.
trait Target {
    fn alloc(&mut self, stream: Option<usize>, offset: u64, bytes: u64) -> AllocationId;
    fn free(&mut self, id: AllocationId, unknown: bool);
    fn used(&mut self, id: AllocationId, stream: usize);
    fn announce(&mut self, id: AllocationId, stream: usize, kind: AccessKind, by: QueuedBy);
    fn end_guard(&mut self, id: AllocationId, stream: usize, kind: AccessKind);
    fn operate(&mut self, stream: usize, by: By, ranges: &[Range]);
    fn cpu(&mut self, kind: AccessKind, offset: u64, bytes: u64);
    fn record(&mut self, event: usize, stream: usize);
    fn record_context(&mut self, event: usize);
    fn wait(&mut self, stream: usize, event: usize);
    fn see_event(&mut self, event: usize);
    fn see_stream(&mut self, stream: usize);
    fn found(&self) -> Found;
    fn tally(&self) -> Tally;
}

fn key(stream: usize) -> StreamKey {
    StreamKey(STREAMS[stream])
}

fn event_key(event: usize) -> EventKey {
    EventKey(event as u32)
}

impl Target for Bench {
    fn alloc(&mut self, stream: Option<usize>, offset: u64, bytes: u64) -> AllocationId {
        match stream {
            Some(stream) => Bench::alloc(self, STREAMS[stream], offset, bytes),
            None => self.pin(offset, bytes),
        }
    }
    fn free(&mut self, id: AllocationId, unknown: bool) {
        self.oracle.freed(HOST, id, unknown);
    }
    fn used(&mut self, id: AllocationId, stream: usize) {
        Bench::used(self, id, STREAMS[stream]);
    }
    fn announce(&mut self, id: AllocationId, stream: usize, kind: AccessKind, by: QueuedBy) {
        self.oracle.operation_comes(id, key(stream), kind, by);
    }
    fn end_guard(&mut self, id: AllocationId, stream: usize, kind: AccessKind) {
        self.oracle.guard_ended(id, key(stream), kind);
    }
    fn operate(&mut self, stream: usize, _: By, ranges: &[Range]) {
        let op = self.submit(STREAMS[stream]);
        let of = |kind| ranges.iter().filter(move |r| r.kind == kind);
        for &Range { id, space, offset, bytes, kind } in of(Write).chain(of(Read)) {
            let (map, phys) = if space == Space::Device { (Some(MAP), SEGMENT) } else { (None, PINNED) };
            self.oracle.access(op, map, phys, offset, bytes, kind, Some(id));
        }
    }
    fn cpu(&mut self, kind: AccessKind, offset: u64, bytes: u64) {
        self.oracle.host_access(HOST, PINNED, offset, bytes, kind, None);
    }
    fn record(&mut self, event: usize, stream: usize) {
        self.oracle.record(HOST, event_key(event), key(stream));
    }
    fn record_context(&mut self, event: usize) {
        self.oracle.record_context(HOST, event_key(event), DEVICE);
    }
    fn wait(&mut self, stream: usize, event: usize) {
        self.oracle.wait(HOST, key(stream), event_key(event));
    }
    fn see_event(&mut self, event: usize) {
        self.oracle.host_sees_event(HOST, event_key(event));
    }
    fn see_stream(&mut self, stream: usize) {
        self.oracle.host_sees_stream(HOST, key(stream));
    }
    fn found(&self) -> Found {
        self.oracle.violations().iter().map(|v| (v.property, v.blame)).collect()
    }
    fn tally(&self) -> Tally {
        self.oracle.tally()
    }
}

/// A simulated device, which notifies the oracle of its calls.
struct OnSim {
    sim: Sim,
    streams: [SimStream; STREAMS.len()],
    ids: [StreamId; STREAMS.len()],
    events: Vec<SimEvent>,
    segment: OwnedRange<Sim>,
    pinned: OwnedHost<Sim>,
    next: u32,
}

impl OnSim {
    fn new() -> OnSim {
        let sim = Sim::new(1 << 20).schedule(Schedule::Latest);
        let [a, b] = [(); 2].map(|()| sim.stream().expect("a stream"));
        let [c, d] = [(); 2].map(|()| sim.blocking_stream().expect("a stream"));
        let streams = [a, b, c, d, sim.legacy_stream()];
        let ids = streams.each_ref().map(|s| sim.stream_info(s).expect("it lives").id);
        let events = (0..=EVENTS).map(|_| sim.event().expect("an event")).collect();
        let segment = sim.allocate(BYTES).expect("memory");
        let pinned = sim.pin(BYTES, HostKind::Cached).expect("pinned memory");
        OnSim { sim, streams, ids, events, segment, pinned, next: 0 }
    }
    fn at(&self, space: Space, offset: u64) -> Addr {
        let base = if space == Space::Device { self.segment.addr() } else { self.pinned.addr() };
        Addr(base.0 + offset)
    }
}

impl Target for OnSim {
    fn alloc(&mut self, stream: Option<usize>, offset: u64, bytes: u64) -> AllocationId {
        self.next += 1;
        let id = AllocationId { pool: 0, chunk: 0, generation: self.next };
        let space = if stream.is_some() { Space::Device } else { Space::Pinned };
        let (addr, stream) = (self.at(space, offset), stream.map(|s| self.ids[s]));
        self.sim.note(Note::Allocated { id, addr, bytes, stream });
        id
    }
    fn free(&mut self, id: AllocationId, unknown: bool) {
        self.sim.note(Note::Freed { id, unknown });
    }
    fn used(&mut self, id: AllocationId, stream: usize) {
        let stream = self.ids[stream];
        self.sim.note(Note::Used { id, stream, so_far: false });
    }
    fn announce(&mut self, id: AllocationId, stream: usize, kind: AccessKind, by: QueuedBy) {
        let used = if kind == Read { RangeUse::Read } else { RangeUse::ReadWrite };
        self.sim.note(Note::Operation { id, stream: self.ids[stream], used, by });
    }
    fn end_guard(&mut self, id: AllocationId, stream: usize, kind: AccessKind) {
        let used = if kind == Read { RangeUse::Read } else { RangeUse::ReadWrite };
        self.sim.note(Note::GuardEnded { id, stream: self.ids[stream], used });
    }
    fn operate(&mut self, stream: usize, by: By, ranges: &[Range]) {
        let all = ranges.iter().map(|r| (self.at(r.space, r.offset), r.bytes, r.kind, r.id));
        let on = &self.streams[stream];
        let queued = match by {
            By::Kernel => {
                let kernel = all.fold(Launch::new("kernel"), |launch, (addr, bytes, kind, id)| {
                    if kind == Read { launch.reads(addr, bytes) } else { launch.writes(addr, bytes) }.tag(id)
                });
                self.sim.launch(on, kernel)
            }
            By::HostFunction => {
                let function = HostFunction::new("host function", || ());
                let function = all.fold(function, |f, (addr, bytes, kind, id)| {
                    if kind == Read { f.reads(addr, bytes) } else { f.writes(addr, bytes) }.tag(id)
                });
                self.sim.host_function(on, function)
            }
        };
        queued.expect("queued");
    }
    fn cpu(&mut self, kind: AccessKind, offset: u64, bytes: u64) {
        let addr = self.at(Space::Pinned, offset);
        let touched =
            if kind == Read { self.sim.host_reads(addr, bytes) } else { self.sim.host_writes(addr, bytes) };
        touched.expect("pinned");
    }
    fn record(&mut self, event: usize, stream: usize) {
        self.sim.record(&self.events[event], &self.streams[stream]).expect("recorded");
    }
    fn record_context(&mut self, event: usize) {
        self.sim.record_context(&self.events[event]).expect("recorded");
    }
    fn wait(&mut self, stream: usize, event: usize) {
        self.sim.wait(&self.streams[stream], &self.events[event]).expect("a wait");
    }
    fn see_event(&mut self, event: usize) {
        let done = self.sim.wait_event(&self.events[event], Duration::MAX);
        assert!(done.expect("a wait of the host"));
    }
    fn see_stream(&mut self, stream: usize) {
        self.sim.synchronize_stream(&self.streams[stream]).expect("a wait of the host");
    }
    fn found(&self) -> Found {
        self.sim.violations().iter().map(|v| (v.property, v.blame)).collect()
    }
    fn tally(&self) -> Tally {
        self.sim.tally()
    }
}

/// An event recorded on one stream and waited for on another.
fn order(b: &mut impl Target, n: &mut Naive, earlier: usize, later: usize) {
    b.record(EVENTS, earlier);
    b.wait(later, EVENTS);
    n.act(earlier);
    let captured = n.streams[earlier];
    n.act(later);
    n.streams[later] |= captured;
}

/// The host waits for a stream.
fn see(b: &mut impl Target, n: &mut Naive, stream: usize) {
    b.see_stream(stream);
    n.host |= n.streams[stream];
}

/// Makes a call on both sides: what is wrong with it.
#[allow(clippy::too_many_lines, reason = "an arm a call")]
fn make(call: &Call, b: &mut impl Target, n: &mut Naive) -> Wrong {
    let alive = |n: &Naive, nth: usize| n.live.get(nth).cloned();
    match *call {
        Call::Alloc { stream, cell, cells, polite } => {
            let (offset, bytes) = (cell * 8, cells * 8);
            let space = if stream.is_some() { Space::Device } else { Space::Pinned };
            let clash =
                |o: &Owned| o.space() == space && o.offset < offset + bytes && offset < o.offset + o.bytes;
            if cell + cells > CELLS || n.live.iter().any(clash) {
                return Wrong::default();
            }
            for earlier in n.users(space, offset, bytes).into_iter().filter(|_| polite) {
                match stream {
                    Some(later) => order(b, n, earlier, later),
                    None => see(b, n, earlier),
                }
            }
            let id = b.alloc(stream, offset, bytes);
            return n.allocate(id, stream, offset, bytes);
        }
        Call::Free { nth, unknown } => {
            if let Some(owned) = alive(n, nth) {
                b.free(owned.id, unknown);
                n.free(nth, unknown);
            }
        }
        Call::Used { nth, stream } => {
            if let Some(owned) = alive(n, nth) {
                b.used(owned.id, stream);
                n.live[nth].used[stream] = true;
            }
        }
        Call::Operate { stream, by, ref ranges, polite, known } => {
            let mut declared = Vec::new();
            for &(nth, kind, part) in ranges {
                let owned = alive(n, nth).filter(|o| by == By::Kernel || o.space() == Space::Pinned);
                let Some(owned) = owned else { continue };
                let mut earlier = n.users_of(owned.id);
                earlier.extend(owned.stream);
                for earlier in earlier.into_iter().filter(|_| polite) {
                    order(b, n, earlier, stream);
                }
                let (id, space) = (owned.id, owned.space());
                let (offset, bytes) =
                    if part { (owned.offset + 2, owned.bytes - 4) } else { (owned.offset, owned.bytes) };
                declared.push(Range { id, space, offset, bytes, kind });
            }
            for range in declared.iter().filter(|_| known) {
                b.announce(range.id, stream, range.kind, QueuedBy::Library);
                n.announce(range.id, stream, range.kind, QueuedBy::Library);
            }
            if !declared.is_empty() {
                b.operate(stream, by, &declared);
                return n.operate(stream, &declared);
            }
        }
        Call::Announce { nth, stream, kind, by } => {
            if let Some(owned) = alive(n, nth) {
                b.announce(owned.id, stream, kind, by);
                n.announce(owned.id, stream, kind, by);
            }
        }
        Call::EndGuard { nth, stream, kind } => {
            if let Some(owned) = alive(n, nth) {
                b.end_guard(owned.id, stream, kind);
                n.end_guard(owned.id, stream, kind);
            }
        }
        Call::Cpu { nth, kind, polite } => {
            let pinned = alive(n, nth).filter(|o| o.space() == Space::Pinned);
            let Some(owned) = pinned else { return Wrong::default() };
            for earlier in n.users_of(owned.id).into_iter().filter(|_| polite) {
                see(b, n, earlier);
            }
            let Owned { id, offset, bytes, .. } = owned;
            b.cpu(kind, offset, bytes);
            let mut wrong = Wrong::default();
            let range = Range { id, space: Space::Pinned, offset, bytes, kind };
            n.access(n.host, &range, None, &mut wrong);
            return wrong;
        }
        Call::Submit { stream } => {
            b.operate(stream, By::Kernel, &[]);
            n.submit(stream);
        }
        Call::Record { event, stream } => {
            b.record(event, stream);
            n.act(stream);
            n.events[event] = Some(n.streams[stream]);
        }
        Call::RecordContext { event } => {
            b.record_context(event);
            n.events[event] = Some(n.streams.iter().fold(n.host, |all, s| all | s));
        }
        Call::Wait { stream, event } => {
            b.wait(stream, event);
            n.act(stream);
            n.streams[stream] |= n.events[event].unwrap_or(0);
        }
        Call::SeeEvent { event } => {
            b.see_event(event);
            n.host |= n.events[event].unwrap_or(0);
        }
        Call::SeeStream { stream } => see(b, n, stream),
        Call::Order { earlier, later } => order(b, n, earlier, later),
    }
    Wrong::default()
}

/// Runs a program; how many calls were made, and what the first bad one was.
fn run(calls: &[Call], b: &mut impl Target) -> (usize, Found) {
    let mut n = Naive::default();
    for (made, c) in calls.iter().enumerate() {
        if n.ops > 120 {
            break;
        }
        let Wrong { mut found, races } = make(c, b, &mut n);
        let mut found_by_oracle = b.found();
        if found.contains(&(Property::P3, Blame::Program)) {
            // What an access before its allocation does to former owners, the oracle need not know.
            found_by_oracle.retain(|v| v.0 != Property::P2);
            found.retain(|v| v.0 != Property::P2);
        }
        // Where both sides are at fault, one stands for the other among accesses that dominate each other.
        for property in [Property::P2, Property::P3, Property::Race] {
            let [there, here] = [&found_by_oracle, &found].map(|v| v.iter().any(|v| v.0 == property));
            assert_eq!(there, here, "call {made}, {c:?}: {found_by_oracle:?} {found:?}");
        }
        for blames in races.values() {
            let named = blames.iter().any(|&blame| found_by_oracle.contains(&(Property::Race, blame)));
            assert!(named, "call {made}, {c:?}: {found_by_oracle:?}, a race is by {blames:?}");
        }
        assert!(
            found_by_oracle.iter().all(|v| found.contains(v)),
            "call {made}, {c:?}: {found_by_oracle:?} {found:?}"
        );
        let tally = b.tally();
        assert!(tally.waits >= tally.waits_implied + tally.waits_on_unrecorded + tally.waits_beyond_need);
        if !found.is_empty() {
            return (made, found);
        }
    }
    (calls.len(), Vec::new())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_oracle_agrees_with_a_judge_that_forgets_nothing(calls in prop::collection::vec(call(), 1..150)) {
        run(&calls, &mut Bench::new());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// What the device reports to the oracle of kernels, host functions and the CPU is what it was given.
    #[test]
    fn a_simulated_device_is_judged_as_by_a_judge_that_forgets_nothing(
        calls in prop::collection::vec(call(), 1..100)
    ) {
        run(&calls, &mut OnSim::new());
    }
}

#[test]
fn the_random_programs_reach_every_kind_of_violation() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let programs = prop::collection::vec(call(), 1..150);
    let mut seen = std::collections::HashMap::new();
    let mut lawful = 0;
    for _ in 0..4000 {
        let program = programs.new_tree(&mut runner).expect("no filter").current();
        let (made, found) = run(&program, &mut Bench::new());
        lawful += u32::from(found.is_empty() && program.len() > 50);
        let by = match program.get(made) {
            Some(Call::Operate { by, .. }) => Some(*by),
            _ => None,
        };
        for v in found {
            *seen.entry((by, v)).or_insert(0) += 1;
        }
    }
    let (kernel, function) = (Some(By::Kernel), Some(By::HostFunction));
    for v in [
        (kernel, (Property::P2, Blame::Allocator)),
        (kernel, (Property::P2, Blame::Program)),
        (kernel, (Property::P3, Blame::Program)),
        (kernel, (Property::Race, Blame::Allocator)),
        (kernel, (Property::Race, Blame::Program)),
        (function, (Property::Race, Blame::Allocator)),
        (function, (Property::Race, Blame::Program)),
        // By the CPU, and when pinned memory is handed out.
        (None, (Property::Race, Blame::Program)),
        (None, (Property::P2, Blame::Allocator)),
        (None, (Property::P2, Blame::Program)),
    ] {
        assert!(seen.get(&v).is_some_and(|&n| n >= 5), "{v:?} too seldom: {seen:?}");
    }
    assert!(lawful >= 20, "only {lawful} long programs were lawful");
}
