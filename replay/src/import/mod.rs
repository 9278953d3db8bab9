//! Reads what others wrote: RMM's CSV logs, `PyTorch`'s memory snapshots as JSON, the lines of `CuPy`'s printing hook; and what was written
//! here: a recorder's JSON lines, programs as text and as bytes. Any of them may be
//! gzip-compressed. What a file is, is seen from its first bytes, never from its name.
//!
//! Bad input is a typed error with the place and the reason; it never panics, and never reserves memory by what the
//! input claims. This module does not know what becomes of a log.

mod error;
mod recorded;
mod rmm;
mod snapshot;

pub use error::{FilePosition, ImportError, Reason};

use flate2::read::MultiGzDecoder;
use hashbrown::HashMap;
use millpond_trace::{Log, MAGIC, Program, StreamNo, ThreadNo};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The longest program file that is read whole, in bytes.
const PROGRAM_MOST: u64 = 1 << 30;

/// Bytes that say what a file is.
const SNIFFED: usize = 8;
/// The most bytes that are looked through for them, if all before are blanks.
const BLANKS_MOST: usize = 1 << 16;

/// How to read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The device whose trace is taken out of a snapshot or a recording. Needed only if several devices have allocations.
    pub device: Option<usize>,
}

impl Options {
    /// Sets [`Options::device`].
    #[must_use]
    pub fn device(self, device: impl Into<Option<usize>>) -> Options {
        Options { device: device.into(), ..self }
    }
}

/// What was in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trace {
    /// A log of allocations and frees, by some recorder.
    Log(Log),
    /// A program of the trace language, in the text or the binary form; it is well-formed.
    Program(Program),
}

/// Reads a file of any known kind.
///
/// # Errors
/// When the file cannot be read, or is none of these; see [`ImportError`].
pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Trace, ImportError> {
    let path = path.as_ref();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = [".gz", ".csv", ".json", ".trace", ".bin"]
        .iter()
        .fold(name.as_ref(), |name, end| name.strip_suffix(end).unwrap_or(name));
    match File::open(path) {
        Ok(file) => read(name, file, options),
        Err(e) => Err(ImportError {
            name: path.display().to_string(),
            place: FilePosition::Whole,
            reason: Reason::Read(e.to_string()),
        }),
    }
}

/// Reads bytes of any known kind; `name` is for the log and for errors.
///
/// # Errors
/// When they cannot be read, or are none of these; see [`ImportError`].
pub fn read(name: &str, input: impl Read, options: Options) -> Result<Trace, ImportError> {
    let whole = |reason| ImportError { name: name.to_owned(), place: FilePosition::Whole, reason };
    let mut plain = BufReader::with_capacity(1 << 16, input);
    let first = beginning(&mut plain).map_err(|e| whole(Reason::Read(e.to_string())))?;
    if first.starts_with(b"\x1f\x8b") {
        let unpacked = MultiGzDecoder::new(first.as_slice().chain(plain));
        decoded(name, BufReader::with_capacity(1 << 16, unpacked), options, true)
    } else {
        decoded(name, first.as_slice().chain(plain), options, false)
    }
}

/// Takes the first bytes off a reader, enough to see what it is. A reader may give one byte at a time.
fn beginning(input: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut first = Vec::new();
    input.take(64).read_to_end(&mut first)?;
    Ok(first)
}

/// Without the mark of its encoding that some editors put before a text.
fn of_text(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes)
}

fn decoded(
    name: &str,
    mut input: impl BufRead,
    options: Options,
    packed: bool,
) -> Result<Trace, ImportError> {
    let unreadable = |e: std::io::Error| {
        let reason = if packed { Reason::Compressed(e.to_string()) } else { Reason::Read(e.to_string()) };
        ImportError { name: name.to_owned(), place: FilePosition::Whole, reason }
    };
    let mut first = beginning(&mut input).map_err(unreadable)?;
    // Blanks do not show what follows; no real file begins with pages of them.
    while first.len() < BLANKS_MOST && of_text(&first).trim_ascii_start().len() < SNIFFED {
        let more = beginning(&mut input).map_err(unreadable)?;
        if more.is_empty() {
            break;
        }
        first.extend(more);
    }
    let sniffed: Vec<u8> = of_text(&first).trim_ascii_start().iter().copied().take(SNIFFED).collect();
    match sniffed.as_slice() {
        [] if first.is_empty() => {
            Err(ImportError { name: name.to_owned(), place: FilePosition::Whole, reason: Reason::Empty })
        }
        b if b.starts_with(recorded::BEGINNING) => {
            recorded::read(name, of_text(&first).chain(input), options.device, packed).map(Trace::Log)
        }
        [b'{' | b'[', ..] => {
            snapshot::read(name, of_text(&first).chain(input), options.device, packed).map(Trace::Log)
        }
        b if b.starts_with(&MAGIC) || b.starts_with(b"millpond") || b.starts_with(b"#") => {
            let mut bytes = Vec::new();
            first
                .as_slice()
                .chain(input)
                .take(PROGRAM_MOST + 1)
                .read_to_end(&mut bytes)
                .map_err(unreadable)?;
            program(name, &bytes).map(Trace::Program)
        }
        _ => rmm::read(name, first.as_slice().chain(input), packed).map(Trace::Log),
    }
}

fn program(name: &str, bytes: &[u8]) -> Result<Program, ImportError> {
    let error = |place, reason| ImportError { name: name.to_owned(), place, reason };
    if bytes.len() as u64 > PROGRAM_MOST {
        return Err(error(
            FilePosition::Whole,
            Reason::TooMany { what: "bytes of a program", most: PROGRAM_MOST },
        ));
    }
    let mut program = if bytes.starts_with(&MAGIC) {
        let program =
            Program::from_binary(bytes).map_err(|e| error(FilePosition::Whole, Reason::Binary(e)))?;
        program.check().map_err(|f| error(FilePosition::Whole, Reason::Fault(f)))?;
        program
    } else {
        let text = core::str::from_utf8(bytes).map_err(|e| {
            let before = &bytes[..e.valid_up_to()];
            let line = before.split(|b| *b == b'\n').count() as u64;
            let column = 1 + before.iter().rev().take_while(|b| **b != b'\n').count() as u64;
            error(FilePosition::Line { line, column }, Reason::NotText)
        })?;
        Program::from_text_checked(text).map_err(|e| {
            error(FilePosition::Line { line: e.line.into(), column: e.column.into() }, Reason::Text(e))
        })?
    };
    if program.name.is_empty() {
        name.clone_into(&mut program.name);
    }
    Ok(program)
}

/// What a file has of one device.
struct Recorded {
    device: usize,
    calls: usize,
    /// Whether any of the calls allocates.
    allocates: bool,
}

/// The device to import: the one that `options` name, or the only one with allocations.
fn choose(recorded: &[Recorded], device: Option<usize>) -> Result<usize, Reason> {
    if let Some(device) = device {
        let is_there = recorded.iter().any(|of| of.device == device);
        let devices = || recorded.iter().map(|of| of.device).collect();
        return if is_there { Ok(device) } else { Err(Reason::NoDevice { device, devices: devices() }) };
    }
    let devices: Vec<(usize, usize)> =
        recorded.iter().filter(|of| of.allocates).map(|of| (of.device, of.calls)).collect();
    match devices[..] {
        [] => Err(Reason::NoAllocations),
        [(device, _)] => Ok(device),
        _ => Err(Reason::SeveralDevices { devices }),
    }
}

/// Small numbers for a recorder's own values, in the order of their first appearance.
struct Numbers {
    of: HashMap<u64, u16>,
    values: Vec<u64>,
    /// The last value and its number: calls come in runs.
    last: (u64, u16),
    what: &'static str,
}

impl Numbers {
    fn new(what: &'static str) -> Numbers {
        Numbers { of: HashMap::new(), values: Vec::new(), last: (0, 0), what }
    }

    fn number(&mut self, value: u64) -> Result<u16, Reason> {
        if !self.values.is_empty() && self.last.0 == value {
            return Ok(self.last.1);
        }
        let next = self.values.len();
        let number = if let Some(n) = self.of.get(&value) {
            *n
        } else {
            let n = u16::try_from(next)
                .ok()
                .filter(|n| *n < u16::MAX)
                .ok_or(Reason::TooMany { what: self.what, most: u16::MAX.into() })?;
            self.of.insert(value, n);
            self.values.push(value);
            n
        };
        self.last = (value, number);
        Ok(number)
    }
}

/// Streams by value, so that the default stream is number 0 and small values keep their order; threads as they came.
struct Names {
    streams: Numbers,
    threads: Numbers,
}

impl Names {
    fn new() -> Names {
        let mut streams = Numbers::new("streams");
        // Number 0 is the default stream, whether it occurs or not.
        let _ = streams.number(0);
        Names { streams, threads: Numbers::new("threads") }
    }
    fn stream(&mut self, value: u64) -> Result<StreamNo, Reason> {
        self.streams.number(value).map(StreamNo)
    }
    fn thread(&mut self, value: u64) -> Result<ThreadNo, Reason> {
        self.threads.number(value).map(ThreadNo)
    }

    /// Gives the log its names, and its streams their final numbers.
    fn finish(self, log: &mut Log) {
        let mut values = self.streams.values.clone();
        values.sort_unstable();
        let place: Vec<StreamNo> =
            self.streams.values.iter().map(|v| StreamNo(values.partition_point(|w| w < v) as u16)).collect();
        if values != self.streams.values {
            for call in &mut log.calls {
                *call = call.with_stream(place[usize::from(call.stream().0)]);
            }
        }
        log.streams = values;
        log.threads = self.threads.values;
    }
}
