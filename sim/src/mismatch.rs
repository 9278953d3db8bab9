//! Operations that found the wrong bytes, or none, when they ran: the second oracle's findings, and their texts.
//!
//! It does not know how a difference was found.

use super::operation::Name;
use super::oracle::{Held, StreamLabel, address, clip, lines, place};
use millpond_driver::Caller;
use millpond_driver::units::{Addr, AllocationId, StreamId};
use std::fmt;

/// What went wrong when an operation ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MismatchKind {
    /// The bytes were not the expected ones: another operation wrote in between, or none had written yet.
    Content {
        /// The repeating word that was expected; its first byte is at the beginning of the range.
        expected: u64,
        /// The eight bytes found from the address on, as a word; fewer at the end of the range.
        found: u64,
        /// How far into the range the difference begins, in bytes.
        offset: u64,
        /// How many of the bytes found are in the range: eight, or fewer at its end.
        looked_at: u64,
    },
    /// Nothing was mapped there, or access was not granted, when the operation ran.
    Unmapped,
    /// A kernel's body touched bytes that its launch did not declare.
    Undeclared,
    /// A kernel's body or a host function panicked: what it had not done by then was not done.
    Panicked,
}

/// An operation that found the wrong bytes, or none, when it ran: the second oracle's finding. Displays as three lines: what,
/// where, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mismatch {
    /// The operation's name.
    pub operation: Name,
    /// The stream it ran on; `None` for bytes that an allocator handed out.
    pub stream: Option<StreamId>,
    /// Its position there, as the oracle counts: the stream's first operation has 1, records and waits have none.
    pub position: u64,
    /// The first wrong address; 0 for a panic.
    pub addr: Addr,
    /// The stream's label.
    pub on: Option<StreamLabel>,
    /// Where in the program it was called, if that is known.
    pub from: Option<Caller>,
    /// The allocation it was launched for, if the launch named one.
    pub allocation: Option<AllocationId>,
    /// What the oracle knows of that; `None` if it is off.
    pub held: Option<Held>,
    /// What was wrong.
    pub kind: MismatchKind,
}

impl Mismatch {
    fn what(&self, width: usize) -> String {
        let (name, at) = (clip(&self.operation, width), address(self.addr));
        match self.kind {
            MismatchKind::Content { expected, found, offset, looked_at } => {
                let bytes = |word: u64| {
                    let all = word.to_le_bytes().map(|b| format!("{b:02x}"));
                    all[..looked_at.min(8) as usize].concat()
                };
                // The byte of it that belongs where the difference begins comes first.
                let expected = expected.rotate_right(8 * (offset % 8) as u32);
                let (found, expected) = (bytes(found), bytes(expected));
                format!("`{name}` found {found} instead of {expected}, {offset} bytes into its range")
            }
            MismatchKind::Unmapped if self.stream.is_none() => {
                format!("bytes were handed out at {at}, where nothing usable is mapped")
            }
            MismatchKind::Unmapped => format!("`{name}` came to {at}, where nothing usable is mapped"),
            MismatchKind::Undeclared => {
                format!("the body of `{name}` touched {at}, which was not declared so")
            }
            MismatchKind::Panicked => format!("`{name}` panicked, and did not do the rest of its work"),
        }
    }
    fn wheres(&self, width: usize) -> String {
        let number = self.position.saturating_sub(1);
        let on = self.on.as_ref().map(|on| format!("operation {number} of {}", on.words(width)));
        let at = self.from.map(|from| place(from, width));
        let of = self.held.as_ref().map(|held| held.with_size(width));
        let parts: Vec<_> = [at, on, of].into_iter().flatten().collect();
        if parts.is_empty() { "not known".to_owned() } else { parts.join(", ") }
    }
    fn advice(&self) -> &'static str {
        match self.kind {
            MismatchKind::Content { .. } => {
                "order it: another operation ran in between, or this one ran before its data was there"
            }
            MismatchKind::Unmapped => "unmap or free later, or call set_access after the map",
            MismatchKind::Undeclared => "declare it with reads() or writes()",
            MismatchKind::Panicked => "look at the panic's message, and let it not panic",
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines(f, |w| self.what(w), |w| self.wheres(w), |_| format!("mend: {}", self.advice()))
    }
}
