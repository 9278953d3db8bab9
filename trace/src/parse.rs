//! Reads the text form, whose grammar [`Program`]'s documentation has: one line, one operation, one pass, no look-ahead but
//! the next word.
//!
//! Every refusal names the line, the column, the word found and what could stand there. This module does not know the
//! rules that steps obey together, only what each line may say.

use super::op::{Access, BlockNo, EventNo, Op, Step, StreamNo, ThreadNo};
use super::program::Program;
use super::text::{TextError, VERSION, Written};
use core::str::FromStr;
use millpond_driver::whole_unit;

/// A word and the column it begins at.
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    column: u32,
}

/// The rest of one line.
struct Line<'a> {
    rest: &'a str,
    number: u32,
    column: u32,
}

impl<'a> Line<'a> {
    fn advance(&mut self, bytes: usize) -> &'a str {
        let (passed, rest) = self.rest.split_at(bytes);
        self.column += passed.chars().count() as u32;
        self.rest = rest;
        passed
    }

    fn skip_blanks(&mut self) {
        let blanks = self.rest.len() - self.rest.trim_start().len();
        self.advance(blanks);
        if self.rest.starts_with('#') {
            self.rest = "";
        }
    }

    fn is_done(&mut self) -> bool {
        self.skip_blanks();
        self.rest.is_empty()
    }

    /// The next word; empty at the end of the line.
    fn word(&mut self) -> Word<'a> {
        self.skip_blanks();
        let column = self.column;
        let end = self.rest.find(|c: char| c.is_whitespace() || c == '#').unwrap_or(self.rest.len());
        Word { column, text: self.advance(end) }
    }

    fn error(&self, at: Word<'_>, expected: impl Into<String>) -> TextError {
        // A word of a binary file may be long; the message quotes the beginning.
        let found = at.text.chars().take(40).collect();
        TextError { line: self.number, column: at.column, found, expected: expected.into() }
    }

    fn keyword(&mut self, keyword: &str) -> Result<(), TextError> {
        let w = self.word();
        if w.text == keyword { Ok(()) } else { Err(self.error(w, format!("expected `{keyword}`"))) }
    }

    /// A number after its letter, like `s3`.
    fn numbered<N: FromStr>(&self, w: Word<'_>, letter: char, what: &str) -> Result<N, TextError> {
        let digits = w.text.strip_prefix(letter).filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|d| d.parse().ok()).ok_or_else(|| self.error(w, format!("expected {what}")))
    }

    fn block(&mut self) -> Result<BlockNo, TextError> {
        let w = self.word();
        self.numbered(w, BlockNo::LETTER, "a block, b0 to b4294967295").map(BlockNo)
    }

    fn stream_word(&self, w: Word<'_>) -> Result<StreamNo, TextError> {
        self.numbered(w, StreamNo::LETTER, "a stream, s0 to s65535").map(StreamNo)
    }

    fn stream(&mut self) -> Result<StreamNo, TextError> {
        let w = self.word();
        self.stream_word(w)
    }

    fn on(&mut self) -> Result<StreamNo, TextError> {
        self.keyword("on")?;
        self.stream()
    }

    fn event_word(&self, w: Word<'_>) -> Result<EventNo, TextError> {
        self.numbered(w, EventNo::LETTER, "an event, e0 to e65535").map(EventNo)
    }

    fn event(&mut self) -> Result<EventNo, TextError> {
        let w = self.word();
        self.event_word(w)
    }

    fn number<N: FromStr>(&mut self, what: &str) -> Result<N, TextError> {
        let w = self.word();
        let digits = w.text.bytes().all(|b| b.is_ascii_digit());
        w.text.parse().ok().filter(|_| digits).ok_or_else(|| self.error(w, format!("expected {what}")))
    }

    fn size_word(&self, w: Word<'_>) -> Result<u64, TextError> {
        let (digits, shift) = whole_unit(w.text);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.error(w, "expected a size in bytes, like 4096 or 64KiB"));
        }
        let number: Option<u64> = digits.parse().ok();
        number
            .and_then(|n| n.checked_mul(1 << shift))
            .ok_or_else(|| self.error(w, "expected a size below 2^64 bytes"))
    }

    fn size(&mut self) -> Result<u64, TextError> {
        let w = self.word();
        self.size_word(w)
    }

    /// Refuses anything but blanks and a comment.
    fn end(&mut self) -> Result<(), TextError> {
        if self.is_done() {
            return Ok(());
        }
        let w = self.word();
        Err(self.error(w, "expected the end of the line"))
    }

    /// The header's name: quoted, or one bare word.
    fn name(&mut self) -> Result<String, TextError> {
        self.skip_blanks();
        if !self.rest.starts_with('"') {
            let w = self.word();
            return if w.text.is_empty() {
                Err(self.error(w, "expected a name, in quotes if it has blanks"))
            } else {
                Ok(w.text.to_owned())
            };
        }
        let open = Word { text: "\"", column: self.column };
        let mut name = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.advance(at + 1);
                    return Ok(name);
                }
                '\\' => {
                    let column = open.column + self.rest[..at].chars().count() as u32;
                    let bad = Word { text: "\\", column };
                    name.push(
                        unescape(&mut chars)
                            .ok_or_else(|| self.error(bad, r#"expected one of \" \\ \n \u{1b}"#))?,
                    );
                }
                c => name.push(c),
            }
        }
        Err(self.error(open, "expected a closing quote on the same line"))
    }

    fn op(&mut self, verb: Word<'a>) -> Result<Op, TextError> {
        Ok(match verb.text {
            "alloc" => {
                let (block, bytes, stream) = (self.block()?, self.size()?, self.on()?);
                let align = if self.is_done() {
                    None
                } else {
                    self.keyword("align")?;
                    Some(self.size()?)
                };
                Op::Alloc { block, bytes, align, stream }
            }
            "alloc-pinned" => Op::AllocPinned { block: self.block()?, bytes: self.size()? },
            "free" => {
                let block = self.block()?;
                let how = self.word();
                match how.text {
                    "" => Op::Free { block },
                    "on" => Op::FreeOn { block, stream: self.stream()? },
                    "unknown" => Op::FreeUnknown { block },
                    _ => {
                        return Err(
                            self.error(how, "expected `on` and a stream, `unknown`, or the end of the line")
                        );
                    }
                }
            }
            "read" | "write" => {
                let access = if verb.text == "read" { Access::Read } else { Access::Write };
                let (block, stream) = (self.block()?, self.on()?);
                let recorded = self.is_done();
                if !recorded {
                    self.keyword("unrecorded")?;
                }
                Op::Use { block, stream, access, recorded }
            }
            "record-use" => {
                let block = self.block()?;
                let how = self.word();
                match how.text {
                    "on" => Op::RecordUse { block, stream: self.stream()? },
                    "until" => Op::RecordUseUntil { block, event: self.event()? },
                    _ => return Err(self.error(how, "expected `on` and a stream, or `until` and an event")),
                }
            }
            "share" => {
                let block = self.block()?;
                self.keyword("with")?;
                Op::ShareWith { block, stream: self.stream()? }
            }
            "copy" => {
                let from = self.block()?;
                self.keyword("to")?;
                Op::Copy { from, to: self.block()?, bytes: self.size()?, stream: self.on()? }
            }
            "record" => Op::Record { event: self.event()?, stream: self.on()? },
            "wait" => {
                let stream = self.stream()?;
                self.keyword("for")?;
                let w = self.word();
                if w.text.starts_with(EventNo::LETTER) {
                    Op::Wait { stream, event: self.event_word(w)? }
                } else {
                    Op::WaitStream { stream, on: self.stream_word(w)? }
                }
            }
            "sync" => {
                let w = self.word();
                match w.text.chars().next() {
                    Some(StreamNo::LETTER) => Op::SyncStream { stream: self.stream_word(w)? },
                    Some(EventNo::LETTER) => Op::SyncEvent { event: self.event_word(w)? },
                    _ if w.text == "device" => Op::SyncDevice,
                    _ => return Err(self.error(w, "expected a stream, an event, or `device`")),
                }
            }
            "query" => Op::Query { event: self.event()? },
            "open" => Op::OpenStream { stream: self.stream()? },
            "close" => Op::CloseStream { stream: self.stream()? },
            "trim" => {
                let w = self.word();
                Op::Trim { stream: if w.text == "all" { None } else { Some(self.stream_word(w)?) } }
            }
            "limit" => {
                let w = self.word();
                Op::SetLimit { bytes: if w.text == "none" { None } else { Some(self.size_word(w)?) } }
            }
            "advance" => {
                Op::Advance { stream: self.stream()?, steps: self.number("how many pieces of work")? }
            }
            "tick" => Op::Tick,
            "not-ready" => Op::NotReady { times: self.number("how many queries")? },
            _ => {
                return Err(self.error(
                    verb,
                    "expected a verb: alloc, alloc-pinned, free, read, write, record-use, share, copy, record, wait, sync, \
                     query, open, close, trim, limit, advance, tick or not-ready",
                ));
            }
        })
    }
}

/// The character after a backslash, and the rest of its escape.
fn unescape(chars: &mut impl Iterator<Item = (usize, char)>) -> Option<char> {
    match chars.next()?.1 {
        'n' => Some('\n'),
        c @ ('"' | '\\') => Some(c),
        'u' if chars.next()?.1 == '{' => {
            let mut code = 0u32;
            loop {
                match chars.next()?.1 {
                    '}' => return char::from_u32(code),
                    c => code = code.checked_mul(16)?.checked_add(c.to_digit(16)?)?,
                }
            }
        }
        _ => None,
    }
}

/// The lines still to be read.
pub(super) struct Reader<'a> {
    lines: core::iter::Enumerate<core::str::Lines<'a>>,
    last: u32,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Reader<'a> {
        Reader { lines: text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate(), last: 0 }
    }

    /// The next line that says something.
    fn line(&mut self) -> Option<Line<'a>> {
        for (index, rest) in self.lines.by_ref() {
            self.last = index as u32 + 1;
            let mut line = Line { rest, number: self.last, column: 1 };
            if !line.is_done() {
                return Some(line);
            }
        }
        None
    }

    fn missing(&self, expected: &str) -> TextError {
        TextError { line: self.last + 1, column: 1, found: String::new(), expected: expected.into() }
    }

    /// The whole text as a program.
    pub(super) fn program(mut self) -> Result<Written, TextError> {
        let mut first =
            self.line().ok_or_else(|| self.missing("expected `millpond trace 1`, the first line"))?;
        let start = first.word();
        if start.text != "millpond" || first.keyword("trace").is_err() {
            return Err(first.error(start, "expected `millpond trace 1`, the first line"));
        }
        let w = first.word();
        match w.text.parse() {
            Ok(VERSION) => {}
            Ok::<u32, _>(_) => {
                return Err(
                    first.error(w, "expected version 1: a newer millpond wrote this, read it with that one")
                );
            }
            Err(_) => return Err(first.error(w, "expected the version, 1")),
        }
        first.end()?;

        let mut program = Program::default();
        let mut lines = Vec::new();
        let (mut named, mut streams) = (false, false);
        while let Some(mut line) = self.line() {
            let mut verb = line.word();
            match verb.text {
                "name" | "streams" if !program.steps.is_empty() => {
                    return Err(
                        line.error(verb, "expected an operation: the header comes before the first one")
                    );
                }
                "name" if !named => {
                    named = true;
                    program.name = line.name()?;
                }
                "streams" if !streams => {
                    streams = true;
                    program.streams = line.number("how many streams are open at the start, at most 65535")?;
                }
                "name" | "streams" => return Err(line.error(verb, "expected it once only")),
                _ if !streams => {
                    return Err(
                        line.error(verb, "expected `streams` and their count before the first operation")
                    );
                }
                _ => {
                    let mut thread = ThreadNo(0);
                    if let Some(text) = verb.text.strip_suffix(':') {
                        let w = Word { text, column: verb.column };
                        thread = ThreadNo(line.numbered(w, ThreadNo::LETTER, "a thread, t0 to t65535")?);
                        verb = line.word();
                    }
                    let op = line.op(verb)?;
                    program.steps.push(Step { thread, op });
                    lines.push(line.number);
                }
            }
            line.end()?;
        }
        if !streams {
            return Err(self.missing("expected `streams` and their count"));
        }
        Ok(Written { program, lines })
    }
}
