//! The text form: one operation a line, made to be read, pasted into a report and typed by hand. [`Program`]'s documentation has
//! its grammar.
//!
//! What is written is read back equal. This module writes, and holds what reading (`parse`) gives; `program` decides whether the program
//! makes sense.

use super::op::{Access, Op, Step, ThreadNo};
use super::program::{Fault, Program};
use core::fmt;
use core::str::FromStr;
use millpond_driver::whole_bytes;

/// The version that is written, and the only one that is read.
pub(super) const VERSION: u32 = 1;

/// Why a text is no program: the place, what stands there, what could.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: found {}; {expected}", self.shown())]
#[non_exhaustive]
pub struct TextError {
    /// The line, counted from 1.
    pub line: u32,
    /// The column in characters, counted from 1.
    pub column: u32,
    /// What stands there; empty at the end of a line or of the text.
    pub found: String,
    /// What could stand there, or what is wrong with it.
    pub expected: String,
}

impl TextError {
    fn shown(&self) -> String {
        if self.found.is_empty() { "nothing".to_owned() } else { format!("{:?}", self.found) }
    }
}

/// A program as it was written, with the line of each step.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Written {
    /// The program.
    pub program: Program,
    /// The line of each step, counted from 1.
    pub lines: Vec<u32>,
}

impl Written {
    /// Reads the text form, with the line of each step.
    ///
    /// # Errors
    /// The first place that does not follow the grammar.
    pub fn parse(text: &str) -> Result<Written, TextError> {
        super::parse::Reader::new(text).program()
    }

    /// A broken rule at the line where it was written.
    pub fn place(&self, fault: &Fault) -> TextError {
        let line = |step: usize| self.lines.get(step).copied().unwrap_or(0);
        TextError {
            line: line(fault.step),
            column: 1,
            found: self.program.steps.get(fault.step).map_or_else(String::new, ToString::to_string),
            expected: fault.reason.describe(&|step| format!("line {}", line(step))),
        }
    }
}

impl Program {
    /// Reads the text form and checks the rules W1 to W4.
    ///
    /// # Errors
    /// The first place that does not follow the grammar, else the first line that breaks a rule.
    pub fn from_text_checked(text: &str) -> Result<Program, TextError> {
        let written = Written::parse(text)?;
        match written.program.check() {
            Ok(()) => Ok(written.program),
            Err(fault) => Err(written.place(&fault)),
        }
    }
}

impl FromStr for Program {
    type Err = TextError;
    /// Reads the grammar only; [`Program::check`] judges the rules.
    fn from_str(text: &str) -> Result<Program, TextError> {
        Written::parse(text).map(|w| w.program)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Alloc { block, bytes, align, stream } => {
                write!(f, "alloc {block} {} on {stream}", whole_bytes(bytes))?;
                align.map_or(Ok(()), |a| write!(f, " align {}", whole_bytes(a)))
            }
            Op::AllocPinned { block, bytes } => write!(f, "alloc-pinned {block} {}", whole_bytes(bytes)),
            Op::Free { block } => write!(f, "free {block}"),
            Op::FreeOn { block, stream } => write!(f, "free {block} on {stream}"),
            Op::FreeUnknown { block } => write!(f, "free {block} unknown"),
            Op::Use { block, stream, access, recorded } => {
                let verb = match access {
                    Access::Read => "read",
                    Access::Write => "write",
                };
                write!(f, "{verb} {block} on {stream}{}", if recorded { "" } else { " unrecorded" })
            }
            Op::RecordUse { block, stream } => write!(f, "record-use {block} on {stream}"),
            Op::RecordUseUntil { block, event } => write!(f, "record-use {block} until {event}"),
            Op::ShareWith { block, stream } => write!(f, "share {block} with {stream}"),
            Op::Copy { to, from, bytes, stream } => {
                write!(f, "copy {from} to {to} {} on {stream}", whole_bytes(bytes))
            }
            Op::Record { event, stream } => write!(f, "record {event} on {stream}"),
            Op::Wait { stream, event } => write!(f, "wait {stream} for {event}"),
            Op::WaitStream { stream, on } => write!(f, "wait {stream} for {on}"),
            Op::SyncStream { stream } => write!(f, "sync {stream}"),
            Op::SyncEvent { event } => write!(f, "sync {event}"),
            Op::SyncDevice => write!(f, "sync device"),
            Op::Query { event } => write!(f, "query {event}"),
            Op::OpenStream { stream } => write!(f, "open {stream}"),
            Op::CloseStream { stream } => write!(f, "close {stream}"),
            Op::Trim { stream: Some(stream) } => write!(f, "trim {stream}"),
            Op::Trim { stream: None } => write!(f, "trim all"),
            Op::SetLimit { bytes: Some(bytes) } => write!(f, "limit {}", whole_bytes(bytes)),
            Op::SetLimit { bytes: None } => write!(f, "limit none"),
            Op::Advance { stream, steps } => write!(f, "advance {stream} {steps}"),
            Op::Tick => write!(f, "tick"),
            Op::NotReady { times } => write!(f, "not-ready {times}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.thread != ThreadNo(0) {
            write!(f, "{}: ", self.thread)?;
        }
        self.op.fmt(f)
    }
}

impl fmt::Display for Program {
    /// The text form, which [`FromStr`] reads back equal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "millpond trace {VERSION}")?;
        if !self.name.is_empty() {
            write!(f, "name \"")?;
            for c in self.name.chars() {
                match c {
                    '"' | '\\' => write!(f, "\\{c}")?,
                    '\n' => write!(f, "\\n")?,
                    c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                    c => write!(f, "{c}")?,
                }
            }
            writeln!(f, "\"")?;
        }
        writeln!(f, "streams {}", self.streams)?;
        self.steps.iter().try_for_each(|s| writeln!(f, "{s}"))
    }
}
