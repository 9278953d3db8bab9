//! Recorders of events: a bounded ring that keeps the newest, and a writer of JSON lines.
//!
//! [`json_line`] says what a line holds. This module does not know who sends events.

use super::{Event, Sink};
use core::fmt::Write as _;
use millpond_driver::sync::Mutex;
use millpond_driver::units::{Addr, AllocationId, DeviceId};
use std::collections::VecDeque;
use std::io::{self, Write};

/// Keeps the newest events, and counts those that it dropped for newer ones. Bounded: it never holds more than its capacity.
///
/// A sink: an allocator configured with it (`Config::sink`) sends it its events. [`Ring::write_json`] writes what is kept, a
/// [line](json_line) an event.
#[derive(Debug)]
pub struct Ring {
    inner: Mutex<Kept>,
    capacity: usize,
}

#[derive(Debug)]
struct Kept {
    events: VecDeque<(u64, Event)>,
    dropped: u64,
}

impl Ring {
    /// A ring of at most `capacity` events. With capacity 0 it only counts.
    pub fn new(capacity: usize) -> Ring {
        Ring { inner: Mutex::new(Kept { events: VecDeque::new(), dropped: 0 }), capacity }
    }
    /// How many events it keeps at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
    /// The events kept, in the order in which they came, each with its number.
    ///
    /// Threads that send at the same time may come in another order than their numbers say.
    pub fn events(&self) -> Vec<(u64, Event)> {
        self.inner.lock().events.iter().cloned().collect()
    }
    /// How many events were dropped for newer ones since the ring was made or cleared.
    pub fn dropped(&self) -> u64 {
        self.inner.lock().dropped
    }
    /// Forgets everything kept and counted; gives back the events.
    pub fn take(&self) -> Vec<(u64, Event)> {
        let mut kept = self.inner.lock();
        kept.dropped = 0;
        core::mem::take(&mut kept.events).into()
    }
    /// Writes the events kept as JSON lines.
    ///
    /// # Errors
    /// What the writer returns.
    pub fn write_json(&self, device: DeviceId, out: &mut impl Write) -> io::Result<()> {
        // Copied first: the writer may be slow, and senders must not wait for it.
        self.events()
            .iter()
            .try_for_each(|(number, event)| writeln!(out, "{}", json_line(device, *number, event)))
    }
}

impl Sink for Ring {
    fn event(&self, number: u64, event: &Event) {
        let mut kept = self.inner.lock();
        if self.capacity == 0 {
            kept.dropped += 1;
            return;
        }
        if kept.events.len() == self.capacity {
            kept.events.pop_front();
            kept.dropped += 1;
        }
        kept.events.push_back((number, event.clone()));
    }
}

/// Writes each event as a JSON [line](json_line) at once. A failure of the writer ends the writing and is kept for
/// [`JsonLines::finish`].
#[derive(Debug)]
pub struct JsonLines<W> {
    inner: Mutex<Output<W>>,
    device: DeviceId,
}

#[derive(Debug)]
struct Output<W> {
    writer: W,
    /// The writer failed: nothing is written to it any more, and its error was returned.
    ended: bool,
    failed: Option<io::Error>,
}

impl<W: Write + Send + 'static> JsonLines<W> {
    /// Lines for the events of an allocator of `device`. Give it a buffered writer.
    pub fn new(device: DeviceId, writer: W) -> JsonLines<W> {
        JsonLines { inner: Mutex::new(Output { writer, ended: false, failed: None }), device }
    }
    /// Flushes, and returns whether everything was written.
    ///
    /// # Errors
    /// The first failure of the writer; the lines after it are missing. It is returned once.
    pub fn finish(&self) -> io::Result<()> {
        let mut output = self.inner.lock();
        output.failed.take().map_or(Ok(()), Err)?;
        output.writer.flush()
    }
}

impl<W: Write + Send + 'static> Sink for JsonLines<W> {
    fn event(&self, number: u64, event: &Event) {
        let mut line = json_line(self.device, number, event);
        line.push('\n');
        let mut output = self.inner.lock();
        if !output.ended {
            output.failed = output.writer.write_all(line.as_bytes()).err();
            output.ended = output.failed.is_some();
        }
    }
}

/// One event as a JSON object, with no line end.
///
/// It has the field names of `CuPy`'s printing memory hook, so that two pools can be compared line by line:
///
/// ```text
/// {"hook":"alloc","device_id":0,"mem_size":2097152,"mem_ptr":34359738368}                        from the device
/// {"hook":"malloc","device_id":0,"size":24,"mem_size":512,"mem_ptr":34359738368,"pmem_id":"0x1"}  to the user
/// {"hook":"free","device_id":0,"mem_size":512,"mem_ptr":34359738368,"pmem_id":"0x1"}              from the user
/// ```
///
/// `millpond_replay::import` reads such lines back as a log, and `millpond replay` runs them.
///
/// `size` is the requested size, `mem_size` the rounded one, `pmem_id` names the allocation. Lines of hooks that
/// `CuPy` does not have (`migrate`, `wait`, `host_wait`, `trim`, `soft_limit`, `out_of_memory`) may be filtered out by name; all lines end with
/// our own `number`, and where there is one `stream`.
pub fn json_line(device: DeviceId, number: u64, event: &Event) -> String {
    let mut line = String::with_capacity(128);
    let mut fields = Fields { line: &mut line };
    let hook = match event {
        Event::Grow { .. } => "alloc",
        Event::Allocate { .. } => "malloc",
        Event::Free { .. } => "free",
        Event::Migrate { .. } => "migrate",
        Event::Wait { .. } => "wait",
        Event::HostWait { .. } => "host_wait",
        Event::Trim { .. } => "trim",
        Event::SoftLimit { .. } => "soft_limit",
        Event::OutOfMemory { .. } => "out_of_memory",
    };
    fields.put("hook", format_args!("\"{hook}\""));
    fields.put("device_id", device.0);
    match event {
        Event::Grow { addr, bytes, stream } => fields.memory(*bytes, *addr).put("stream", stream.0),
        Event::Allocate { id, addr, requested, rounded, stream, hit } => fields
            .put("size", requested)
            .memory(*rounded, *addr)
            .id(*id)
            .put("stream", stream.0)
            .put("hit", hit),
        Event::Free { id, addr, rounded, stream, in_flight } => {
            fields.memory(*rounded, *addr).id(*id).put("stream", stream.0).put("in_flight", in_flight)
        }
        Event::Migrate { addr, bytes, from, to } => {
            fields.memory(*bytes, *addr).put("from", from.0).put("to", to.0)
        }
        Event::Wait { stream, on } => {
            fields.put("stream", stream.0);
            match on {
                Some(on) => fields.put("on", on.0),
                None => fields.put("on", "null"),
            }
        }
        Event::HostWait { stream: Some(stream) } => fields.put("stream", stream.0),
        Event::HostWait { stream: None } => fields.put("stream", "null"),
        Event::Trim { addr, bytes } => fields.memory(*bytes, *addr),
        Event::SoftLimit { reserved, limit, of_group } => {
            fields.put("reserved", reserved).put("limit", limit).put("of_group", of_group)
        }
        Event::OutOfMemory { requested, stream } => fields.put("size", requested).put("stream", stream.0),
    }
    .put("number", number);
    line.push('}');
    line
}

struct Fields<'a> {
    line: &'a mut String,
}

impl Fields<'_> {
    fn put(&mut self, name: &str, value: impl core::fmt::Display) -> &mut Self {
        let open = if self.line.is_empty() { '{' } else { ',' };
        // Writing into a String cannot fail.
        let _ = write!(self.line, "{open}\"{name}\":{value}");
        self
    }
    fn memory(&mut self, bytes: u64, addr: Addr) -> &mut Self {
        self.put("mem_size", bytes).put("mem_ptr", addr.0)
    }
    fn id(&mut self, id: AllocationId) -> &mut Self {
        let id = u128::from(id.pool) << 64 | u128::from(id.chunk) << 32 | u128::from(id.generation);
        self.put("pmem_id", format_args!("\"{id:#x}\""))
    }
}
