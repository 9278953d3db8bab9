//! Operations and events as data: what property tests generate, fuzzers decode, recorders emit and replay runs.
//!
//! Two halves. A [`Program`] is what a user does to an allocator, in one language for every tool; an [`Event`] is what
//! an allocator did. This crate does not know how an operation is carried out: it sees no allocator, no device and no
//! stream but by number. What generates, shrinks, imports and runs programs is `millpond-replay`.

/// Runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod binary;
mod event;
mod log;
mod op;
mod parse;
mod program;
mod ring;
mod text;

#[cfg(test)]
mod tests;

pub use binary::{BinaryError, BinaryReason, MAGIC};
pub use event::{Event, Sink};
pub use log::{Action, Call, Info, Log};
#[doc(hidden)]
pub use op::Operand;
pub use op::{Access, BlockNo, EventNo, Op, Operands, Step, StreamNo, ThreadNo};
pub use program::{Fault, Program, Reason, Rules};
pub use ring::{JsonLines, Ring, json_line};
pub use text::{TextError, Written};
