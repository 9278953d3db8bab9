//! The state that all simulated devices of one world share, and the entry of every driver call.
//!
//! [`World::enter`] counts a call, applies planted faults and captures, and charges the price; each function then works
//! on its own part of the state. The world does not know when things run (that is `exec`), and it never calls user code:
//! closures leave it as values and are called or dropped while it is not borrowed.

use super::call::{Call, code_of};
use super::exec::{Hold, KeptPanic, Schedule};
use super::fault::Faults;
use super::late::PutOff;
use super::memory::{FreeAddresses, MemoryMap, Part};
use super::mismatch::Mismatch;
use super::operation::EventState;
use super::oracle::{AccessKind, HostKey, Oracle, StreamKey};
use super::rate::Engines;
use super::recording::{self, Capture};
use super::stream::StreamState;
use hashbrown::HashMap;
use millpond_driver::random::SplitMix64;
use millpond_driver::sync::{Arc, Ordering, Reentrant, ReentrantGuard, plain::AtomicBool};
use millpond_driver::units::{Addr, AllocationId, DeviceId};
use millpond_driver::{Caller, DriverResult, HostMemory, MappingFacts, Properties, StreamKind};
use millpond_driver::{DriverError, DriverErrorKind};
use std::cell::RefCell;

/// The world behind its one lock.
///
/// The lock is reentrant and the state behind it in a cell, because a host function runs while its thread holds the
/// lock: notes and destructors may re-enter, driver calls are refused.
#[derive(Debug)]
pub(super) struct Shared {
    lock: Reentrant<RefCell<World>>,
    /// Whether any capture ever began. Read without the lock, by calls that make no driver call.
    captured: AtomicBool,
}

pub(super) type Guard<'a> = ReentrantGuard<'a, RefCell<World>>;

impl Shared {
    pub(super) fn lock(&self) -> Guard<'_> {
        self.lock.lock()
    }
    pub(super) fn has_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }
    pub(super) fn captures(&self) {
        self.captured.store(true, Ordering::Relaxed);
    }
}

/// One device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) capacity: u64,
    pub(super) reserved: u64,
    pub(super) reserved_peak: u64,
    pub(super) pinned: u64,
    pub(super) pinned_peak: u64,
    /// Whether other code may capture: [`Sim::expect_captures`](super::Sim::expect_captures) was called.
    pub(super) expects_captures: bool,
    pub(super) plain_space: FreeAddresses,
    pub(super) virtual_space: FreeAddresses,
    /// Reserved ranges: start to length.
    pub(super) reservations: std::collections::BTreeMap<u64, u64>,
    pub(super) legacy: StreamKey,
    /// Blocking streams with work since the last operation on the legacy stream.
    pub(super) since_legacy: Vec<StreamKey>,
    /// When the last work of destroyed blocking streams ends.
    pub(super) removed_finish: u64,
    pub(super) engines: Engines,
    /// When the last of all operations ends, in virtual nanoseconds.
    pub(super) last_finish: u64,
    pub(super) calls: [u64; Call::ALL.len()],
    pub(super) host_waits: u64,
    pub(super) endless_waits: u64,
    pub(super) streams_live: u64,
    pub(super) events_live: u64,
    pub(super) lost: bool,
    /// Errors of destructors.
    pub(super) drop_errors: Vec<DriverError>,
}

/// Everything that the devices of one world share.
#[derive(Debug)]
pub(super) struct World {
    /// A number of this world, never reused, that its virtual memory handles carry.
    pub(super) serial: u64,
    pub(super) devices: Vec<Device>,
    /// By key; `None` once destroyed and drained.
    pub(super) streams: Vec<Option<Box<StreamState>>>,
    /// The streams that the program made, by number.
    pub(super) made: Vec<StreamKey>,
    /// Native handle values to the streams that have them now.
    pub(super) handles: HashMap<u64, StreamKey>,
    pub(super) free_handles: Vec<u64>,
    /// For each handle, whether the unmanaged stream that had it last has ended, until another one has it.
    pub(super) unmanaged: HashMap<u64, Arc<AtomicBool>>,
    pub(super) next_handle: u64,
    /// Per-thread default streams: (device, thread) to stream.
    pub(super) per_thread: HashMap<(usize, u64), StreamKey>,
    /// Streams with pending work, in no order.
    pub(super) active: Vec<StreamKey>,
    pub(super) events: HashMap<u32, EventState>,
    pub(super) next_event: u32,
    pub(super) memory: MemoryMap,
    pub(super) oracle: Option<Oracle>,
    pub(super) strict: bool,
    pub(super) hosts: HashMap<u64, HostKey>,
    pub(super) next_host: u32,
    pub(super) schedule: Schedule,
    pub(super) random: SplitMix64,
    pub(super) hold: Hold,
    /// The operation submitted by the call in progress, for the executor to look at.
    pub(super) fresh: Option<(StreamKey, u64)>,
    /// How many host functions and kernel bodies are running, one inside the other.
    pub(super) callbacks: u32,
    /// The host's clock, in virtual nanoseconds.
    pub(super) host_now: u64,
    /// When the latest of the operations that have run ends.
    pub(super) ran_until: u64,
    /// Calls so far that a fault could be planted in.
    pub(super) calls_made: u64,
    /// Captures around one call that were destroyed.
    pub(super) captures_destroyed: u64,
    pub(super) faults: Faults,
    pub(super) captures: Vec<Capture>,
    pub(super) next_capture: u32,
    pub(super) gates: Vec<bool>,
    /// Operations whose time is not known, because of a closed gate.
    pub(super) put_off: PutOff,
    /// Where the call in progress was made.
    pub(super) called_from: Option<Caller>,
    /// Where the running operation was called.
    pub(super) runs_from: Option<Caller>,
    /// When the running operation ends, in virtual nanoseconds.
    pub(super) runs_at: u64,
    pub(super) mismatches: Vec<Mismatch>,
    pub(super) mismatches_total: u64,
    pub(super) panic: KeptPanic,
    pub(super) gaps: bool,
    /// Whether a free of plain memory waits for the device.
    pub(super) waiting_frees: bool,
    /// What the devices' virtual memory is like, if they have any.
    pub(super) mapping: Option<MappingFacts>,
    pub(super) pinned_capacity: u64,
    /// What the host says of its memory.
    pub(super) host_memory: Option<HostMemory>,
}

/// Addresses of device `d` begin at `(d + 1) << 48`: above any pointer of a process. The lower half is for plain
/// allocations, the upper for reservations.
const DEVICE_SHIFT: u32 = 48;
const HALF: u64 = 1 << 47;

/// The unit of sizes and addresses in virtual memory.
pub(super) const GRANULARITY: u64 = 2 << 20;
pub(super) const MAPPING: MappingFacts =
    MappingFacts::new(GRANULARITY).with(Properties::new(true, false, true));
/// Plain allocations begin here in the lower half, so that no device address is a round number of terabytes.
const PLAIN_START: u64 = 2 << 20;

impl World {
    /// A world of this many devices, each with this much memory.
    pub(super) fn with_devices(devices: u32, capacity: u64) -> Arc<Shared> {
        let mut world = World {
            serial: super::stream::unique_number(),
            devices: Vec::new(),
            streams: Vec::new(),
            made: Vec::new(),
            handles: HashMap::new(),
            free_handles: Vec::new(),
            unmanaged: HashMap::new(),
            next_handle: 0x5500_0000_0000,
            per_thread: HashMap::new(),
            active: Vec::new(),
            events: HashMap::new(),
            next_event: 0,
            memory: MemoryMap::new(),
            oracle: Some(Oracle::new(false)),
            strict: false,
            hosts: HashMap::new(),
            next_host: 1,
            schedule: Schedule::Earliest,
            random: SplitMix64::new(0),
            hold: Hold::default(),
            fresh: None,
            callbacks: 0,
            host_now: 0,
            ran_until: 0,
            calls_made: 0,
            captures_destroyed: 0,
            faults: Faults::default(),
            captures: Vec::new(),
            next_capture: 0,
            gates: Vec::new(),
            put_off: PutOff::default(),
            called_from: None,
            runs_from: None,
            runs_at: 0,
            mismatches: Vec::new(),
            mismatches_total: 0,
            panic: KeptPanic::default(),
            gaps: false,
            waiting_frees: true,
            mapping: Some(MAPPING),
            pinned_capacity: u64::MAX,
            host_memory: None,
        };
        for d in 0..devices {
            let base = u64::from(d + 1) << DEVICE_SHIFT;
            world.devices.push(Device {
                id: DeviceId(d),
                capacity,
                reserved: 0,
                reserved_peak: 0,
                pinned: 0,
                pinned_peak: 0,
                expects_captures: false,
                plain_space: FreeAddresses::new(base + PLAIN_START, base + HALF),
                virtual_space: FreeAddresses::new(base + HALF, base + 2 * HALF),
                reservations: std::collections::BTreeMap::new(),
                legacy: StreamKey(u32::MAX),
                since_legacy: Vec::new(),
                removed_finish: 0,
                engines: Engines::default(),
                last_finish: 0,
                calls: [0; Call::ALL.len()],
                host_waits: 0,
                endless_waits: 0,
                streams_live: 0,
                events_live: 0,
                lost: false,
                drop_errors: Vec::new(),
            });
            let legacy =
                world.add_stream(d as usize, StreamKind::LegacyDefault, super::stream::LEGACY_HANDLE);
            world.devices[d as usize].legacy = legacy;
        }
        let captured = AtomicBool::new(false);
        Arc::new(Shared { lock: Reentrant::new(RefCell::new(world)), captured })
    }

    /// Replaces the oracle by a fresh one that knows the existing streams. Only before any work.
    pub(super) fn restart_oracle(&mut self, on: bool) {
        self.oracle = on.then(|| Oracle::new(self.strict));
        if let Some(oracle) = &mut self.oracle {
            for (key, stream) in (0u32..).zip(&self.streams) {
                if let Some(s) = stream {
                    oracle.stream_created(StreamKey(key), s.id, s.kind, self.devices[s.device].id);
                    if let Some(name) = &s.name {
                        oracle.stream_named(StreamKey(key), name.clone());
                    }
                }
            }
        }
    }

    /// Calls from here on were made there.
    pub(super) fn called_from(&mut self, at: Option<Caller>) {
        self.called_from = at;
        if let Some(oracle) = &mut self.oracle {
            oracle.called_from(at);
        }
    }

    /// Whether no call was ever made in this world.
    pub(super) fn is_fresh(&self) -> bool {
        self.devices.iter().all(|d| d.calls.iter().all(|&c| c == 0))
    }

    /// Counts a call, and allows it unless something forbids it.
    pub(super) fn enter(&mut self, device: usize, call: Call) -> DriverResult<()> {
        self.devices[device].calls[call as usize] += 1;
        if !call.can_fail() {
            self.host_works(call.price());
            return Ok(());
        }
        self.calls_made += 1;
        if self.callbacks > 0 {
            return Err(DriverError::new(
                call.name(),
                800,
                DriverErrorKind::Other,
                "called from a host function or a kernel body, where no driver call is permitted: hand the work to a thread of the host",
            ));
        }
        if self.devices[device].lost {
            return Err(lost(call));
        }
        if let Some(kind) = self.faults.strike(call, self.calls_made) {
            if kind == DriverErrorKind::ContextLost {
                self.devices[device].lost = true;
                return Err(lost(call));
            }
            return Err(DriverError::new(call.name(), code_of(kind), kind, "a planted fault"));
        }
        if call.is_unsafe_while_capturing()
            && !self.captures.is_empty()
            && (call.is_never_safe_while_capturing() || !recording::is_relaxed())
        {
            self.forbid_while_capturing(device, call)?;
        }
        self.host_works(call.price());
        Ok(())
    }

    /// The host spends virtual nanoseconds.
    pub(super) fn host_works(&mut self, nanos: u64) {
        self.host_now = self.host_now.saturating_add(nanos);
    }

    /// The calling thread, as the oracle knows it: one host for all unless strict.
    pub(super) fn host(&mut self) -> HostKey {
        if !self.strict {
            return HostKey(0);
        }
        let next = &mut self.next_host;
        *self.hosts.entry(super::stream::thread_number()).or_insert_with(|| {
            *next += 1;
            HostKey(*next - 1)
        })
    }

    /// A host clock that belongs to no thread, for marks.
    pub(super) fn new_host(&mut self) -> HostKey {
        self.next_host += 1;
        HostKey(self.next_host - 1)
    }

    /// Reports an operation and the ranges it accesses to the oracle.
    pub(super) fn report_operation(&mut self, stream: StreamKey, what: &str, touches: &[Touch]) {
        self.stream_mut(stream).operations += 1;
        let host = self.host();
        let Some(oracle) = &mut self.oracle else { return };
        let op = oracle.submit(host, stream, what);
        // Writes first. A read stands for the reads before it; reported first, it would hide those that the same operation's
        // write has to come after, and the wait for them would count as unneeded.
        let of = |kind| touches.iter().filter(move |touch| touch.kind == kind);
        for touch in of(AccessKind::Write).chain(of(AccessKind::Read)) {
            for part in self.memory.parts(touch.addr, touch.bytes) {
                match part {
                    Part::Here { bytes, map, phys, offset, .. } => {
                        oracle.access(op, Some(map), phys, offset, bytes, touch.kind, touch.tag);
                    }
                    Part::Hole { addr, bytes } => oracle.unmapped_access(op, Addr(addr), bytes, touch.tag),
                }
            }
        }
    }

    /// Takes `bytes` from a device's capacity.
    pub(super) fn take_capacity(&mut self, device: usize, bytes: u64, call: Call) -> DriverResult<()> {
        let d = &mut self.devices[device];
        if bytes > d.capacity - d.reserved {
            return Err(DriverError::new(
                call.name(),
                2,
                DriverErrorKind::OutOfMemory,
                format!(
                    "requested {bytes} bytes; {} of {} are free on {}",
                    d.capacity - d.reserved,
                    d.capacity,
                    d.id
                ),
            ));
        }
        d.reserved += bytes;
        d.reserved_peak = d.reserved_peak.max(d.reserved);
        Ok(())
    }
}

/// A range that an operation reads or writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub(super) addr: u64,
    pub(super) bytes: u64,
    pub(super) kind: AccessKind,
    pub(super) tag: Option<AllocationId>,
}

/// A refusal of an argument.
pub(super) fn invalid(call: Call, message: impl Into<std::borrow::Cow<'static, str>>) -> DriverError {
    DriverError::new(call.name(), 1, DriverErrorKind::InvalidValue, message)
}

/// A refusal of a handle.
pub(super) fn bad_handle(call: Call, message: impl Into<std::borrow::Cow<'static, str>>) -> DriverError {
    DriverError::new(call.name(), 400, DriverErrorKind::InvalidHandle, message)
}

fn lost(call: Call) -> DriverError {
    DriverError::new(
        call.name(),
        code_of(DriverErrorKind::ContextLost),
        DriverErrorKind::ContextLost,
        "the context is lost: every later call of this device fails too",
    )
}
