//! The oracle's own tests: correct programs pass, and each wrong one gets exactly the violation that it committed.
//!
//! No device: the tests tell the oracle what a device would. `lawful` and `unlawful` list what is accepted and what is
//! rejected, `edges` has the rules of order E1 to E8, `blame` who is at fault, `words` what a person reads, `counts` the tally,
//! `model` random programs against a judge that forgets nothing.

#![allow(clippy::many_single_char_names, reason = "a bench, and the allocations a, c and v of a few lines")]

mod blame;
mod counts;
mod edges;
mod guards;
mod lawful;
mod model;
mod unlawful;
mod words;

use super::*;

const HOST: HostKey = HostKey(0);
const DEVICE: DeviceId = DeviceId(0);
/// The memory that every bench starts with: one segment of 4096 bytes, mapped once.
const SEGMENT: PhysKey = PhysKey(0);
const MAP: MapKey = MapKey(0);
/// A pinned range of 4096 bytes.
const PINNED: PhysKey = PhysKey(1);
const BYTES: u64 = 4096;
const BASE: u64 = 0x10_0000;
/// Streams 1 to 6 do not block, 7 and 8 do, 9 is the legacy default stream, 10 and 11 are two threads' default streams.
const LEGACY: u32 = 9;

use AccessKind::{Read, Write};

/// An oracle with streams and memory, and short names for the notices that it gets.
struct Bench {
    oracle: Oracle,
    next: u32,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(false)
    }
    fn with(strict: bool) -> Bench {
        let mut oracle = Oracle::new(strict);
        for n in 1..=11 {
            let kind = match n {
                1..=6 => StreamKind::NonBlocking,
                7 | 8 => StreamKind::Blocking,
                LEGACY => StreamKind::LegacyDefault,
                _ => StreamKind::PerThreadDefault,
            };
            oracle.stream_created(StreamKey(n), StreamId(u64::from(n)), kind, DEVICE);
        }
        oracle.memory_created(SEGMENT, Space::Device, BYTES);
        oracle.mapped(MAP, SEGMENT);
        oracle.memory_created(PINNED, Space::Pinned, BYTES);
        Bench { oracle, next: 0 }
    }
    fn id(&mut self) -> AllocationId {
        self.next += 1;
        AllocationId { pool: 0, chunk: 0, generation: self.next }
    }
    /// Hands out bytes of the segment on a stream.
    fn alloc(&mut self, stream: u32, offset: u64, bytes: u64) -> AllocationId {
        let id = self.id();
        let pieces = [(SEGMENT, offset, bytes)];
        self.oracle.allocated(HOST, id, Addr(BASE + offset), &pieces, Some(StreamKey(stream)));
        id
    }
    /// Hands out pinned bytes.
    fn pin(&mut self, offset: u64, bytes: u64) -> AllocationId {
        let id = self.id();
        self.oracle.allocated(HOST, id, Addr(offset), &[(PINNED, offset, bytes)], None);
        id
    }
    fn free(&mut self, id: AllocationId) {
        self.oracle.freed(HOST, id, false);
    }
    fn used(&mut self, id: AllocationId, stream: u32) {
        self.oracle.used(HOST, id, StreamKey(stream));
    }
    /// The library says that it is about to queue an operation.
    fn comes(&mut self, id: AllocationId, stream: u32, kind: AccessKind) {
        self.oracle.operation_comes(id, StreamKey(stream), kind, QueuedBy::Library);
    }
    /// The library says that it has ordered a stream for what the program is about to queue.
    fn is_ordered(&mut self, id: AllocationId, stream: u32, kind: AccessKind) {
        self.oracle.operation_comes(id, StreamKey(stream), kind, QueuedBy::Program);
    }
    /// A guard of the library's begins.
    fn guard(&mut self, id: AllocationId, stream: u32, kind: AccessKind) {
        self.oracle.operation_comes(id, StreamKey(stream), kind, QueuedBy::Guard);
    }
    fn submit(&mut self, stream: u32) -> OpKey {
        self.oracle.submit(HOST, StreamKey(stream), "kernel")
    }
    /// An operation that touches bytes of the segment as those of `id`.
    fn touch(&mut self, stream: u32, kind: AccessKind, id: AllocationId, offset: u64, bytes: u64) {
        let op = self.submit(stream);
        self.oracle.access(op, Some(MAP), SEGMENT, offset, bytes, kind, Some(id));
    }
    fn write(&mut self, stream: u32, id: AllocationId, offset: u64, bytes: u64) {
        self.touch(stream, Write, id, offset, bytes);
    }
    fn read(&mut self, stream: u32, id: AllocationId, offset: u64, bytes: u64) {
        self.touch(stream, Read, id, offset, bytes);
    }
    /// An operation that touches pinned bytes.
    fn touch_pinned(&mut self, stream: u32, kind: AccessKind, id: AllocationId, offset: u64, bytes: u64) {
        let op = self.submit(stream);
        self.oracle.access(op, None, PINNED, offset, bytes, kind, Some(id));
    }
    fn cpu(&mut self, kind: AccessKind, id: AllocationId, offset: u64, bytes: u64) {
        self.oracle.host_access(HOST, PINNED, offset, bytes, kind, Some(id));
    }
    fn record(&mut self, event: u32, stream: u32) {
        self.oracle.record(HOST, EventKey(event), StreamKey(stream));
    }
    fn wait(&mut self, stream: u32, event: u32) {
        self.oracle.wait(HOST, StreamKey(stream), EventKey(event));
    }
    /// `later` waits for all that `earlier` was given, by an event of its own.
    fn order(&mut self, earlier: u32, later: u32) {
        self.next += 1;
        let event = 1000 + self.next;
        self.record(event, earlier);
        self.wait(later, event);
    }
    fn synchronize(&mut self, stream: u32) {
        self.oracle.host_sees_stream(HOST, StreamKey(stream));
    }
    #[track_caller]
    fn passes(&self) -> Tally {
        self.oracle.verdict().unwrap_or_else(|v| panic!("{v}"))
    }
    /// There is exactly one violation, of this property and fault.
    #[track_caller]
    fn convicts(&self, property: Property, blame: Blame, fault: Fault) -> &Violation {
        let found = self.oracle.violations();
        let [v] = found else { panic!("expected one violation, found {}: {:#?}", found.len(), found) };
        assert_eq!((v.property, v.blame, v.fault), (property, blame, fault), "{v}");
        assert_eq!(self.oracle.tally().violations, 1);
        v
    }
    #[track_caller]
    fn convicts_early_reuse(&self) -> &Violation {
        self.convicts(Property::P2, Blame::Allocator, Fault::EarlyReuse)
    }
}
