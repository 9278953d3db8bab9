//! Random programs against a judge that forgets nothing.
//!
//! The naive judge keeps, for every operation, the set of operations before it as bits, and for every byte every access ever
//! made; it shares no code with the oracle. Both must agree, for every call up to the first violation, on what was violated
//! and who is to blame. After that they may differ: the oracle forgets what was part of a conviction.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Streams: two that do not block, two that do, the legacy one.
const STREAMS: [u32; 5] = [1, 2, 7, 8, LEGACY];
const CELLS: u64 = 4;

#[derive(Clone, Debug)]
enum Call {
    /// `polite`: the stream waits for all that touched the bytes before.
    Alloc {
        stream: usize,
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
    /// `polite`: the stream waits for the allocation's own stream, and for all that touched the allocation.
    Access {
        nth: usize,
        stream: usize,
        kind: AccessKind,
        part: bool,
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

fn call() -> impl Strategy<Value = Call> {
    let s = || 0..STREAMS.len();
    let kind = prop_oneof![Just(Read), Just(Write)];
    prop_oneof![
        4 => (s(), 0..CELLS, 1..=2_u64, prop::bool::weighted(0.6))
            .prop_map(|(stream, cell, cells, polite)| Call::Alloc { stream, cell, cells, polite }),
        4 => (0..4_usize, prop::bool::weighted(0.2)).prop_map(|(nth, unknown)| Call::Free { nth, unknown }),
        4 => (0..4_usize, s()).prop_map(|(nth, stream)| Call::Used { nth, stream }),
        8 => (0..4_usize, s(), kind, any::<bool>(), prop::bool::weighted(0.98))
            .prop_map(|(nth, stream, kind, part, polite)| Call::Access { nth, stream, kind, part, polite }),
        1 => s().prop_map(|stream| Call::Submit { stream }),
        2 => (0..3_usize, s()).prop_map(|(event, stream)| Call::Record { event, stream }),
        1 => (0..3_usize).prop_map(|event| Call::RecordContext { event }),
        2 => (s(), 0..3_usize).prop_map(|(stream, event)| Call::Wait { stream, event }),
        1 => (0..3_usize).prop_map(|event| Call::SeeEvent { event }),
        1 => s().prop_map(|stream| Call::SeeStream { stream }),
        1 => (s(), s()).prop_map(|(earlier, later)| Call::Order { earlier, later }),
    ]
}

/// Sets of operations, one bit each.
type Ops = u128;

struct Owned {
    id: AllocationId,
    stream: usize,
    born: Ops,
    offset: u64,
    bytes: u64,
    used: [bool; STREAMS.len()],
}

#[derive(Clone)]
struct Past {
    op: u32,
    stream: usize,
    id: AllocationId,
    kind: AccessKind,
    byte: u64,
    told: bool,
}

#[derive(Default)]
struct Naive {
    streams: [Ops; STREAMS.len()],
    host: Ops,
    events: [Option<Ops>; 3],
    ops: u32,
    live: Vec<Owned>,
    past: Vec<Past>,
}

type Found = Vec<(Property, Blame)>;

impl Naive {
    fn blocking(stream: usize) -> bool {
        stream == 2 || stream == 3
    }
    fn act(&mut self, stream: usize) {
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
    fn submit(&mut self, stream: usize) -> (Ops, u32) {
        self.act(stream);
        let before = self.streams[stream];
        let op = self.ops;
        self.ops += 1;
        self.streams[stream] |= 1 << op;
        (before, op)
    }
    fn access(&mut self, nth: usize, stream: usize, kind: AccessKind, offset: u64, bytes: u64) -> Found {
        let (before, op) = self.submit(stream);
        let Owned { id, born, .. } = self.live[nth];
        let mut found = Vec::new();
        let mut add = |v| {
            if !found.contains(&v) {
                found.push(v);
            }
        };
        if born & !before != 0 {
            add((Property::P3, Blame::Program));
        }
        let touched = |p: &&Past| (offset..offset + bytes).contains(&p.byte);
        let unordered = self.past.iter().filter(touched).filter(|p| before & (1 << p.op) == 0);
        for p in unordered {
            match (p.id == id, p.told) {
                (true, _) if p.kind == Write || kind == Write => add((Property::Race, Blame::Program)),
                (true, _) => {}
                (false, true) => add((Property::P2, Blame::Allocator)),
                (false, false) => add((Property::P2, Blame::Program)),
            }
        }
        for byte in offset..offset + bytes {
            self.past.push(Past { op, stream, id, kind, byte, told: true });
        }
        found
    }
    fn free(&mut self, nth: usize, unknown: bool) {
        let gone = self.live.swap_remove(nth);
        let end = self.streams[gone.stream] | self.host;
        for p in self.past.iter_mut().filter(|p| p.id == gone.id) {
            p.told = unknown || gone.used[p.stream] || end & (1 << p.op) != 0;
        }
    }
}

/// An event recorded on one stream and waited for on another.
fn order(b: &mut Bench, n: &mut Naive, earlier: usize, later: usize) {
    b.order(STREAMS[earlier], STREAMS[later]);
    n.act(earlier);
    let captured = n.streams[earlier];
    n.act(later);
    n.streams[later] |= captured;
}

/// Runs a program; how many calls were made, and what the first bad one was.
fn run(calls: &[Call]) -> (usize, Found) {
    let mut b = Bench::new();
    let mut n = Naive::default();
    for (made, c) in calls.iter().enumerate() {
        if n.ops > 120 {
            break;
        }
        let key = |s: usize| StreamKey(STREAMS[s]);
        let mut found = Vec::new();
        match *c {
            Call::Alloc { stream, cell, cells, polite } => {
                let (offset, bytes) = (cell * 8, cells * 8);
                let clash = |o: &Owned| o.offset < offset + bytes && offset < o.offset + o.bytes;
                if cell + cells > CELLS || n.live.iter().any(clash) {
                    continue;
                }
                if polite {
                    let old = n
                        .past
                        .iter()
                        .filter(|p| (offset..offset + bytes).contains(&p.byte))
                        .map(|p| p.stream);
                    for earlier in old.collect::<BTreeSet<_>>() {
                        order(&mut b, &mut n, earlier, stream);
                    }
                }
                let id = b.alloc(STREAMS[stream], offset, bytes);
                let born = n.streams[stream] | n.host;
                n.live.push(Owned { id, stream, born, offset, bytes, used: [false; STREAMS.len()] });
            }
            Call::Free { nth, unknown } if nth < n.live.len() => {
                b.oracle.freed(HOST, n.live[nth].id, unknown);
                n.free(nth, unknown);
            }
            Call::Used { nth, stream } if nth < n.live.len() => {
                b.used(n.live[nth].id, STREAMS[stream]);
                n.live[nth].used[stream] = true;
            }
            Call::Access { nth, stream, kind, part, polite } if nth < n.live.len() => {
                let Owned { id, offset, bytes, stream: home, .. } = n.live[nth];
                if polite {
                    let own = n.past.iter().filter(|p| p.id == id).map(|p| p.stream);
                    for earlier in own.chain([home]).collect::<BTreeSet<_>>() {
                        order(&mut b, &mut n, earlier, stream);
                    }
                }
                let (offset, bytes) = if part { (offset + 2, bytes - 4) } else { (offset, bytes) };
                b.touch(STREAMS[stream], kind, id, offset, bytes);
                found = n.access(nth, stream, kind, offset, bytes);
            }
            Call::Free { .. } | Call::Used { .. } | Call::Access { .. } => continue,
            Call::Submit { stream } => {
                b.submit(STREAMS[stream]);
                n.submit(stream);
            }
            Call::Record { event, stream } => {
                b.record(event as u32, STREAMS[stream]);
                n.act(stream);
                n.events[event] = Some(n.streams[stream]);
            }
            Call::RecordContext { event } => {
                b.oracle.record_context(HOST, EventKey(event as u32), DEVICE);
                n.events[event] = Some(n.streams.iter().fold(n.host, |all, s| all | s));
            }
            Call::Wait { stream, event } => {
                b.wait(STREAMS[stream], event as u32);
                n.act(stream);
                n.streams[stream] |= n.events[event].unwrap_or(0);
            }
            Call::SeeEvent { event } => {
                b.oracle.host_sees_event(HOST, EventKey(event as u32));
                n.host |= n.events[event].unwrap_or(0);
            }
            Call::SeeStream { stream } => {
                b.oracle.host_sees_stream(HOST, key(stream));
                n.host |= n.streams[stream];
            }
            Call::Order { earlier, later } => order(&mut b, &mut n, earlier, later),
        }
        let mut told: Found = b.oracle.violations().iter().map(|v| (v.property, v.blame)).collect();
        if found.contains(&(Property::P3, Blame::Program)) {
            // What an access before its allocation does to former owners, the oracle need not know.
            told.retain(|v| v.0 != Property::P2);
            found.retain(|v| v.0 != Property::P2);
        }
        // Where both sides are at fault, one stands for the other among accesses that dominate each other.
        let reuse = |v: &Found| v.iter().any(|v| v.0 == Property::P2);
        assert_eq!(reuse(&told), reuse(&found), "call {made}, {c:?}: {told:?} {found:?}");
        let rest = |v: &Found| [Property::P3, Property::Race].map(|p| v.contains(&(p, Blame::Program)));
        assert_eq!(rest(&told), rest(&found), "call {made}, {c:?}: {told:?} {found:?}");
        assert!(told.iter().all(|v| found.contains(v)), "call {made}, {c:?}: {told:?} {found:?}");
        let tally = b.oracle.tally();
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
        run(&calls);
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
    for _ in 0..800 {
        let program = programs.new_tree(&mut runner).expect("no filter").current();
        let (_, found) = run(&program);
        lawful += u32::from(found.is_empty() && program.len() > 50);
        for v in found {
            *seen.entry(v).or_insert(0) += 1;
        }
    }
    for v in [
        (Property::P2, Blame::Allocator),
        (Property::P2, Blame::Program),
        (Property::P3, Blame::Program),
        (Property::Race, Blame::Program),
    ] {
        assert!(seen.get(&v).is_some_and(|&n| n >= 5), "{v:?} too seldom: {seen:?}");
    }
    assert!(lawful >= 20, "only {lawful} long programs were lawful");
}
