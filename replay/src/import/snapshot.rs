//! The trace in a `PyTorch` memory snapshot, written as JSON: `torch.cuda.memory._snapshot()` through `json.dump`, or its
//! `device_traces` alone.
//!
//! Of each entry only `action`, `addr`, `size`, `stream` and `time_us` are read; stack frames are passed over without
//! being kept. `alloc` allocates. `free_requested` frees, since that is when the tensor went: `free_completed`, which
//! comes after the block's cross-stream uses, counts only where no request was seen. Segments and all else are passed over.
//! The trace is a window: a free of an address that was allocated before it is skipped and counted, not an error.

use super::{FilePosition, ImportError, Names, Reason, Recorded, choose};
use hashbrown::{HashMap, HashSet};
use millpond_trace::{BlockNo, Call, Log};
use serde::Deserialize;
use std::io::BufRead;

#[derive(Deserialize)]
struct Snapshot {
    device_traces: Vec<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    action: Action,
    /// Missing in entries that concern no address.
    #[serde(default)]
    addr: Option<u64>,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    stream: u64,
    #[serde(default)]
    time_us: u64,
}

#[derive(Deserialize, PartialEq, Eq, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    #[serde(other)]
    Other,
}

pub(super) fn read(
    name: &str,
    mut input: impl BufRead,
    device: Option<usize>,
    packed: bool,
) -> Result<Log, ImportError> {
    let error = |place, reason| ImportError { name: name.to_owned(), place, reason };
    let traces = parse(&mut input).map_err(|e| {
        let place = FilePosition::Line { line: e.line() as u64, column: e.column() as u64 };
        if e.is_io() {
            let words = e.to_string();
            error(FilePosition::Whole, if packed { Reason::Compressed(words) } else { Reason::Read(words) })
        } else {
            // The message names the place once.
            let words = e.to_string();
            let words = words.split(" at line ").next().unwrap_or_default();
            error(place, Reason::Json(words.to_owned()))
        }
    })?;
    let recorded: Vec<Recorded> = traces.iter().enumerate().map(of_each).collect();
    let device = choose(&recorded, device).map_err(|reason| error(FilePosition::Whole, reason))?;
    log_of(name, &traces[device])
        .map_err(|(entry, reason)| error(FilePosition::Entry { device, entry }, reason))
}

/// An object with the traces, or the list of traces alone.
fn parse(input: &mut impl BufRead) -> Result<Vec<Vec<Entry>>, serde_json::Error> {
    let begin = input.fill_buf().map_err(serde_json::Error::io)?.trim_ascii_start();
    if begin.starts_with(b"[") {
        serde_json::from_reader(input)
    } else {
        serde_json::from_reader::<_, Snapshot>(input).map(|s| s.device_traces)
    }
}

fn of_each((device, trace): (usize, &Vec<Entry>)) -> Recorded {
    let is_call = |e: &&Entry| matches!(e.action, Action::Alloc | Action::FreeRequested);
    let allocates = trace.iter().any(|e| e.action == Action::Alloc);
    Recorded { device, calls: trace.iter().filter(is_call).count(), allocates }
}

struct Block {
    number: BlockNo,
    bytes: u64,
    entry: usize,
}

fn log_of(name: &str, entries: &[Entry]) -> Result<Log, (usize, Reason)> {
    let mut log = Log::new(name, Vec::new(), Vec::new(), Vec::new());
    let mut names = Names::new();
    let start = entries.iter().map(|e| e.time_us).find(|t| *t != 0).unwrap_or(0);
    let mut alive: HashMap<u64, Block> = HashMap::new();
    // Freed by request, the completion still to come.
    let mut requested: HashSet<u64> = HashSet::new();
    let mut next_block = 0;
    for (number, e) in entries.iter().enumerate() {
        if e.action == Action::Other {
            continue;
        }
        let missing = |key| (number, Reason::MissingKey { key });
        let pointer = e.addr.ok_or(missing("addr"))?;
        let stream = names.stream(e.stream).map_err(|r| (number, r))?;
        let thread = names.thread(0).map_err(|r| (number, r))?;
        let micros = e.time_us.saturating_sub(start);
        match e.action {
            Action::Alloc => {
                let bytes = e.size.ok_or(missing("size"))?;
                if next_block == Call::BLOCKS_MOST {
                    return Err((number, Reason::BLOCKS));
                }
                let block = Block { number: BlockNo(next_block), bytes, entry: number };
                requested.remove(&pointer);
                log.calls.push(Call::alloc(block.number, bytes, stream, thread, micros));
                if let Some(old) = alive.insert(pointer, block) {
                    return Err((number, Reason::Alive { pointer, since: old.entry as u64 }));
                }
                next_block += 1;
            }
            Action::FreeRequested | Action::FreeCompleted => {
                if e.action == Action::FreeCompleted && requested.remove(&pointer) {
                    continue;
                }
                match alive.remove(&pointer) {
                    Some(b) => log.calls.push(Call::free(b.number, b.bytes, stream, thread, micros)),
                    None => log.skipped += 1,
                }
                if e.action == Action::FreeRequested {
                    requested.insert(pointer);
                }
            }
            Action::Other => {}
        }
    }
    names.finish(&mut log);
    Ok(log)
}
