//! RMM's log: CSV with the columns `Thread,Time,Action,Pointer,Size,Stream`, found by name, in any order; others are
//! passed over.
//!
//! * Numbers are decimal, or hexadecimal after `0x`. Time is microseconds, or a clock `15:04:05.123456` as RMM writes it,
//!   taken from the first line on and carried over midnight.
//! * `allocate` and `free` are taken. `allocate failure` and empty allocations at address 0 are counted as skipped.
//! * A pointer may come back after its free: each allocation is a new block. A free of an address that is not alive, a
//!   second allocation of one that is, and a free with another size are errors: replaying such a log would prove nothing.
//!   A size of 0 in a free says nothing.

use super::{FilePosition, ImportError, Names, Reason};
use hashbrown::HashMap;
use millpond_trace::{BlockNo, Call, Log};
use std::io::{BufRead, Read};

/// No line of a log is longer.
const LINE_MOST: usize = 4096;
const DAY: u64 = 24 * 3600 * 1_000_000;
/// How late a line may come, in microseconds.
const LATE: u64 = 60 * 1_000_000;

const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
const THREAD: usize = 0;
const TIME: usize = 1;
const ACTION: usize = 2;
const POINTER: usize = 3;
const SIZE: usize = 4;
const STREAM: usize = 5;

#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) number: BlockNo,
    pub(super) bytes: u64,
    pub(super) line: u64,
}

pub(super) fn read(name: &str, input: impl BufRead, packed: bool) -> Result<Log, ImportError> {
    let mut reader =
        Reader { lines: Lines::new(input, packed), names: Names::new(), clock: Clock::default() };
    let mut log = Log::new(name, Vec::new(), Vec::new(), Vec::new());
    match reader.all(&mut log) {
        Ok(()) => {
            reader.names.finish(&mut log);
            Ok(log)
        }
        Err((column, reason)) => {
            let place = reader.lines.place(column, &reason);
            Err(ImportError { name: name.to_owned(), place, reason })
        }
    }
}

/// An error and the byte of the line it is at.
pub(super) type Wrong = (usize, Reason);

pub(super) struct Lines<R> {
    input: R,
    line: u64,
    buffer: Vec<u8>,
    packed: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R, packed: bool) -> Lines<R> {
        Lines { input, line: 0, buffer: Vec::new(), packed }
    }

    /// Where an error is that was found at this byte of the last line, or instead of it: a file that cannot be read has none.
    pub(super) fn place(&self, byte: usize, reason: &Reason) -> FilePosition {
        match reason {
            Reason::Read(_) | Reason::Compressed(_) | Reason::Empty => FilePosition::Whole,
            _ => FilePosition::Line { line: self.line, column: byte as u64 + 1 },
        }
    }

    /// The next line and its number, without its end, or `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>, Wrong> {
        self.buffer.clear();
        self.line += 1;
        let mut part = self.input.by_ref().take(LINE_MOST as u64 + 1);
        let n = part.read_until(b'\n', &mut self.buffer).map_err(|e| {
            let words = e.to_string();
            (0, if self.packed { Reason::Compressed(words) } else { Reason::Read(words) })
        })?;
        if n == 0 {
            return Ok(None);
        }
        if n > LINE_MOST {
            return Err((LINE_MOST, Reason::LineTooLong { most: LINE_MOST }));
        }
        Ok(Some((self.line, self.buffer.trim_ascii_end())))
    }
}

/// Clock times as microseconds since the first, over midnight too.
#[derive(Default)]
struct Clock {
    first: Option<u64>,
    last: u64,
    days: u64,
}

impl Clock {
    fn since_first(&mut self, time: u64) -> u64 {
        let first = *self.first.get_or_insert(time);
        // Threads may write a little out of order; only a jump back of half a day is midnight.
        if time + DAY / 2 < self.last {
            self.days += 1;
        } else if self.days > 0 && self.last < LATE && time >= DAY - LATE {
            // From before the midnight that another thread's line has passed.
            return ((self.days - 1) * DAY + time).saturating_sub(first);
        }
        self.last = time;
        (self.days * DAY + time).saturating_sub(first)
    }
}

struct Reader<R> {
    lines: Lines<R>,
    names: Names,
    clock: Clock,
}

impl<R: BufRead> Reader<R> {
    fn all(&mut self, log: &mut Log) -> Result<(), Wrong> {
        let (_, header) = self.lines.next()?.ok_or((0, Reason::Empty))?;
        let places = header_places(header)?;
        let last = places.iter().copied().max().unwrap_or(0);
        let mut alive: HashMap<u64, Block> = HashMap::new();
        let mut next_block = 0;
        loop {
            let Some((number, line)) = self.lines.next()? else { return Ok(()) };
            if line.is_empty() {
                continue;
            }
            let fields = Fields::new(line, &places, last)?;
            let time = fields.time(&mut self.clock)?;
            let action = fields.text[ACTION];
            let failure = match action {
                b"allocate" | b"free" => false,
                b"allocate failure" => true,
                _ => return Err(fields.wrong(ACTION, "allocate, free or allocate failure")),
            };
            if failure {
                log.skipped += 1;
                continue;
            }
            let pointer = fields.number(POINTER, "an address, decimal or 0x and hexadecimal digits")?;
            let bytes = fields.number(SIZE, "a number of bytes")?;
            let stream = fields.number(STREAM, "a stream's number or handle")?;
            let thread = fields.number(THREAD, "a thread's number")?;
            let stream = self.names.stream(stream).map_err(|r| (fields.at[STREAM], r))?;
            let thread = self.names.thread(thread).map_err(|r| (fields.at[THREAD], r))?;
            if bytes == 0 && pointer == 0 && (action == b"allocate" || !alive.contains_key(&0)) {
                log.skipped += 1;
                continue;
            }
            let at = fields.at[POINTER];
            let call = if action == b"allocate" {
                if next_block == Call::BLOCKS_MOST {
                    return Err((at, Reason::BLOCKS));
                }
                let block = Block { number: BlockNo(next_block), bytes, line: number };
                if let Some(old) = alive.insert(pointer, block) {
                    return Err((at, Reason::Alive { pointer, since: old.line }));
                }
                next_block += 1;
                Call::alloc(block.number, bytes, stream, thread, time)
            } else {
                let block = alive.remove(&pointer).ok_or((at, Reason::NotAlive { pointer }))?;
                if bytes != block.bytes && bytes != 0 {
                    let (allocated, since) = (block.bytes, block.line);
                    return Err((
                        fields.at[SIZE],
                        Reason::SizeDiffers { pointer, freed: bytes, allocated, since },
                    ));
                }
                Call::free(block.number, block.bytes, stream, thread, time)
            };
            log.calls.push(call);
        }
    }
}

/// Bytes as text for an error: what can be shown of them, and not too much.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned()
}

/// Which field each column is.
fn header_places(header: &[u8]) -> Result<[usize; 6], Wrong> {
    let header = header.strip_prefix("\u{feff}".as_bytes()).unwrap_or(header);
    let mut places = [usize::MAX; 6];
    let mut at = 0;
    for (field, text) in header.split(|b| *b == b',').enumerate() {
        if let Some(c) =
            COLUMNS.iter().position(|name| name.as_bytes().eq_ignore_ascii_case(text.trim_ascii()))
        {
            if places[c] != usize::MAX {
                return Err((at, Reason::ColumnTwice { column: COLUMNS[c] }));
            }
            places[c] = field;
        }
        at += text.len() + 1;
    }
    match places.iter().position(|p| *p == usize::MAX) {
        Some(c) => Err((0, Reason::MissingColumn { column: COLUMNS[c], header: shown(header) })),
        None => Ok(places),
    }
}

/// The six fields of a line by column, and the byte that each begins at.
struct Fields<'a> {
    text: [&'a [u8]; 6],
    at: [usize; 6],
}

impl<'a> Fields<'a> {
    fn new(line: &'a [u8], places: &[usize; 6], last: usize) -> Result<Fields<'a>, Wrong> {
        let mut fields = Fields { text: [b""; 6], at: [0; 6] };
        let mut found = 0;
        let mut at = 0;
        for (place, text) in line.split(|b| *b == b',').enumerate().take(last + 1) {
            if let Some(c) = places.iter().position(|p| *p == place) {
                fields.text[c] = text.trim_ascii();
                fields.at[c] = at;
                found += 1;
            }
            at += text.len() + 1;
        }
        if found == COLUMNS.len() {
            return Ok(fields);
        }
        let fields_there = line.split(|b| *b == b',').count();
        let missing =
            (0..6).filter(|c| places[*c] >= fields_there).min_by_key(|c| places[*c]).unwrap_or(THREAD);
        Err((line.len(), Reason::MissingField { column: COLUMNS[missing] }))
    }

    fn wrong(&self, column: usize, expected: &'static str) -> Wrong {
        (
            self.at[column],
            Reason::Field { column: COLUMNS[column], found: shown(self.text[column]), expected },
        )
    }

    fn number(&self, column: usize, expected: &'static str) -> Result<u64, Wrong> {
        let text = self.text[column];
        let hex = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"));
        let number = match hex {
            Some(digits) => number(digits, 16),
            None => number(text, 10),
        };
        number.ok_or_else(|| self.wrong(column, expected))
    }

    fn time(&self, clock: &mut Clock) -> Result<u64, Wrong> {
        let text = self.text[TIME];
        if !text.contains(&b':') {
            return self.number(TIME, "microseconds, or a clock like 15:04:05.123456");
        }
        let micros = clock_time(text)
            .ok_or_else(|| self.wrong(TIME, "microseconds, or a clock like 15:04:05.123456"))?;
        Ok(clock.since_first(micros))
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, b| {
        let digit = char::from(*b).to_digit(radix)?;
        n.checked_mul(radix.into())?.checked_add(digit.into())
    })
}

/// Microseconds since midnight of `hh:mm:ss`, with a fraction of up to six digits after `.` or `:`.
fn clock_time(text: &[u8]) -> Option<u64> {
    let mut parts = text.split(|b| matches!(b, b':' | b'.'));
    let mut part = |below: u64| number(parts.next()?, 10).filter(|n| *n < below);
    let seconds = part(24)? * 3600 + part(60)? * 60 + part(61)?;
    let micros = match parts.next() {
        None => 0,
        Some(f) if f.len() <= 6 => number(f, 10)? * 10u64.pow(6 - f.len() as u32),
        Some(_) => return None,
    };
    if parts.next().is_some() { None } else { Some(seconds * 1_000_000 + micros) }
}
