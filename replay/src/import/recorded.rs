//! What this library's recorder wrote: a JSON object a line for each event ([`millpond_trace::json_line`]). Lines of `CuPy`'s printing memory hook are
//! read too: they have the same fields, and neither `stream` nor `number`.
//!
//! `malloc` allocates and `free` frees. What the pools did to serve them (`alloc`, `wait`, `trim` and so on) is skipped: a replay decides that
//! itself. The event's number stands for the time. A recording is a window: a free of an allocation from before it is skipped and counted.

use super::rmm::{Block, Lines};
use super::{FilePosition, ImportError, Names, Reason, Recorded, choose};
use hashbrown::HashMap;
use millpond_trace::{BlockNo, Call, Log};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::BufRead;

/// What every such file begins with, blanks apart.
pub(super) const BEGINNING: &[u8] = b"{\"hook\"";

#[derive(Deserialize)]
struct Line {
    hook: String,
    #[serde(default)]
    device_id: usize,
    /// Bytes requested.
    size: Option<u64>,
    /// Names the allocation: a text from this library, a number from Python.
    pmem_id: Option<serde_json::Value>,
    #[serde(default)]
    stream: Option<u64>,
    number: Option<u64>,
}

/// The recording of one device.
struct Recording {
    log: Log,
    names: Names,
    alive: HashMap<String, Block>,
    next: u32,
    /// The first event's number.
    start: Option<u64>,
}

impl Recording {
    fn new(name: &str) -> Recording {
        let log = Log::new(name, Vec::new(), Vec::new(), Vec::new());
        Recording { log, names: Names::new(), alive: HashMap::new(), next: 0, start: None }
    }

    fn line(&mut self, event: &Line, at: u64) -> Result<(), Reason> {
        let id = event.pmem_id.as_ref().ok_or(Reason::MissingKey { key: "pmem_id" })?.to_string();
        let stream = self.names.stream(event.stream.unwrap_or(0))?;
        let thread = self.names.thread(0)?;
        let time = event.number.unwrap_or(at);
        let time = time.saturating_sub(*self.start.get_or_insert(time));
        if event.hook == "free" {
            match self.alive.remove(&id) {
                Some(b) => self.log.calls.push(Call::free(b.number, b.bytes, stream, thread, time)),
                None => self.log.skipped += 1,
            }
            return Ok(());
        }
        let bytes = event.size.ok_or(Reason::MissingKey { key: "size" })?;
        if self.next == Call::BLOCKS_MOST {
            return Err(Reason::BLOCKS);
        }
        let block = Block { number: BlockNo(self.next), bytes, line: at };
        self.next += 1;
        self.log.calls.push(Call::alloc(block.number, bytes, stream, thread, time));
        match self.alive.insert(id.clone(), block) {
            None => Ok(()),
            Some(old) => Err(Reason::NameAlive { name: id, since: old.line }),
        }
    }
}

pub(super) fn read(
    name: &str,
    input: impl BufRead,
    device: Option<usize>,
    packed: bool,
) -> Result<Log, ImportError> {
    let error = |place, reason| ImportError { name: name.to_owned(), place, reason };
    let mut recordings: BTreeMap<usize, Recording> = BTreeMap::new();
    let mut lines = Lines::new(input, packed);
    loop {
        let (at, line) = match lines.next() {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err((column, reason)) => return Err(error(lines.place(column, &reason), reason)),
        };
        if line.is_empty() {
            continue;
        }
        let event: Line = serde_json::from_slice(line).map_err(|e| {
            let words = e.to_string();
            let words = words.split(" at line ").next().unwrap_or_default();
            error(FilePosition::Line { line: at, column: e.column() as u64 }, Reason::Event(words.to_owned()))
        })?;
        if !matches!(event.hook.as_str(), "malloc" | "free") {
            continue;
        }
        let of = recordings.entry(event.device_id).or_insert_with(|| Recording::new(name));
        of.line(&event, at).map_err(|reason| error(FilePosition::Line { line: at, column: 1 }, reason))?;
    }
    let of_each = |(&device, r): (&usize, &Recording)| Recorded {
        device,
        calls: r.log.calls.len(),
        allocates: r.next > 0,
    };
    let recorded: Vec<Recorded> = recordings.iter().map(of_each).collect();
    let device = choose(&recorded, device).map_err(|reason| error(FilePosition::Whole, reason))?;
    let mut chosen = recordings.remove(&device).expect("a device that was recorded");
    chosen.names.finish(&mut chosen.log);
    Ok(chosen.log)
}
