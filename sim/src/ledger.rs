//! The ledger: the calls of a device, what it still holds, and what leaked.
//!
//! Plain data, taken at one moment. It does not judge: a ledger that is not empty is a leak only if the program has
//! dropped everything.

use super::Sim;
use super::call::Call;
use super::memory::Backing;
use super::world::World;
use core::fmt;
use millpond_driver::units::{Addr, StreamId};

/// The calls of one simulated device, and what it holds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Ledger {
    /// Driver calls by name, in order of name, without those never made; failed calls count.
    pub calls: Vec<(&'static str, u64)>,
    /// Calls that made the host wait for the device, whether or not anything was pending: synchronisations, waits for
    /// events, plain frees, unpinnings, copies to pageable memory.
    pub host_waits: u64,
    /// Those among them that could not end, for example because of a closed gate: on a real device the host would have
    /// waited for as long as its limit allowed.
    pub endless_waits: u64,
    /// Bytes of device memory reserved: plain allocations and handles.
    pub bytes_reserved: u64,
    /// The maximum that was ever reserved.
    pub bytes_reserved_peak: u64,
    /// Bytes of pinned host memory.
    pub bytes_pinned: u64,
    /// The maximum that was ever pinned.
    pub bytes_pinned_peak: u64,
    /// Live plain allocations.
    pub plain_ranges: u64,
    /// Live pinned ranges.
    pub pinned_ranges: u64,
    /// Virtual memory handles whose memory is alive, including released ones that are still mapped.
    pub handles: u64,
    /// Virtual memory mappings.
    pub mappings: u64,
    /// Address reservations.
    pub reservations: u64,
    /// Streams created and not destroyed.
    pub streams: u64,
    /// Events created and not destroyed.
    pub events: u64,
}

impl Ledger {
    /// Whether the device holds nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes_reserved == 0
            && self.bytes_pinned == 0
            && self.plain_ranges + self.pinned_ranges + self.handles + self.mappings == 0
            && self.reservations + self.streams + self.events == 0
    }
    /// How often a call was made.
    pub fn calls_of(&self, call: Call) -> u64 {
        self.calls.iter().find(|(name, _)| *name == call.name()).map_or(0, |&(_, n)| n)
    }
    /// All calls together.
    pub fn calls_total(&self) -> u64 {
        self.calls.iter().map(|&(_, n)| n).sum()
    }
}

/// Something that a device still holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Leak {
    /// A plain allocation.
    Plain {
        /// First byte.
        addr: Addr,
        /// Length.
        bytes: u64,
    },
    /// Pinned host memory.
    Pinned {
        /// First byte.
        addr: Addr,
        /// Length.
        bytes: u64,
    },
    /// A virtual memory handle.
    Handle {
        /// The handle's number.
        handle: u32,
        /// Length.
        bytes: u64,
        /// At how many addresses it is mapped.
        mapped: u32,
        /// Whether it was released and lives only by its mappings.
        released: bool,
    },
    /// A virtual memory mapping.
    Mapping {
        /// First byte.
        addr: Addr,
        /// Length.
        bytes: u64,
    },
    /// Reserved addresses.
    Reservation {
        /// First byte.
        addr: Addr,
        /// Length.
        bytes: u64,
    },
    /// A stream.
    Stream {
        /// Its number.
        id: StreamId,
    },
    /// An event.
    Event {
        /// Its number.
        event: u32,
    },
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Leak::Plain { addr, bytes } => write!(f, "{bytes} bytes of plain device memory at {addr}"),
            Leak::Pinned { addr, bytes } => write!(f, "{bytes} bytes of pinned memory at {addr}"),
            Leak::Handle { handle, bytes, mapped, released } => {
                let state = if released { "released but" } else { "not released," };
                write!(f, "handle {handle} of {bytes} bytes, {state} mapped at {mapped} addresses")
            }
            Leak::Mapping { addr, bytes } => write!(f, "a mapping of {bytes} bytes at {addr}"),
            Leak::Reservation { addr, bytes } => write!(f, "{bytes} bytes of reserved addresses at {addr}"),
            Leak::Stream { id } => write!(f, "{id}"),
            Leak::Event { event } => write!(f, "event {event}"),
        }
    }
}

fn leaks(w: &World, device: usize) -> Vec<Leak> {
    let mut found = Vec::new();
    let of_device = |phys| w.memory.phys(phys).is_some_and(|p| p.device == device);
    for (start, m) in w.memory.all_mappings().filter(|(_, m)| of_device(m.phys)) {
        let (addr, bytes) = (Addr(start), m.end - start);
        found.push(match m.backing {
            Backing::Plain => Leak::Plain { addr, bytes },
            Backing::Pinned => Leak::Pinned { addr, bytes },
            Backing::Virtual => Leak::Mapping { addr, bytes },
        });
    }
    let handles = w.memory.all_pieces().filter(|(_, p)| p.device == device && p.backing == Backing::Virtual);
    found.extend(handles.map(|(key, p)| Leak::Handle {
        handle: key.0,
        bytes: p.bytes,
        mapped: p.mapped,
        released: p.released,
    }));
    let d = &w.devices[device];
    found.extend(d.reservations.iter().map(|(&a, &bytes)| Leak::Reservation { addr: Addr(a), bytes }));
    let streams = w.handles.values().map(|&k| w.stream(k)).filter(|s| s.device == device);
    found.extend(streams.map(|s| Leak::Stream { id: s.id }));
    found
        .extend(w.events.iter().filter(|(_, e)| e.device == device).map(|(&event, _)| Leak::Event { event }));
    found.sort_unstable();
    found
}

fn ledger(w: &World, device: usize) -> Ledger {
    let d = &w.devices[device];
    let mut calls: Vec<_> =
        Call::ALL.iter().map(|&c| (c.name(), d.calls[c as usize])).filter(|&(_, n)| n > 0).collect();
    calls.sort_unstable();
    let mut l = Ledger {
        calls,
        host_waits: d.host_waits,
        endless_waits: d.endless_waits,
        bytes_reserved: d.reserved,
        bytes_reserved_peak: d.reserved_peak,
        bytes_pinned: d.pinned,
        bytes_pinned_peak: d.pinned_peak,
        reservations: d.reservations.len() as u64,
        streams: d.streams_live,
        events: d.events_live,
        ..Ledger::default()
    };
    for leak in leaks(w, device) {
        match leak {
            Leak::Plain { .. } => l.plain_ranges += 1,
            Leak::Pinned { .. } => l.pinned_ranges += 1,
            Leak::Handle { .. } => l.handles += 1,
            Leak::Mapping { .. } => l.mappings += 1,
            Leak::Reservation { .. } | Leak::Stream { .. } | Leak::Event { .. } => {}
        }
    }
    l
}

impl Sim {
    /// This device's calls and what it holds now. The default streams do not count.
    pub fn ledger(&self) -> Ledger {
        ledger(&self.lock().borrow(), self.index())
    }
    /// What this device still holds, one by one.
    pub fn leaks(&self) -> Vec<Leak> {
        leaks(&self.lock().borrow(), self.index())
    }
}
