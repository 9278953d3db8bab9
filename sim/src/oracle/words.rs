//! The text of a violation: three lines that say what happened, where, and which edge is missing with the call
//! that makes it; or, if no edge would help, what would.
//!
//! It uses the program's own names and numbers, which are the same in every run: streams, operations and allocations count
//! from 0 in the order in which the program made them, and no address of the process is shown. A line has at most
//! [`LINE`] characters: names and paths are shortened where it would be longer.
//!
//! It does not know how anything was found out.

use super::HostKey;
use super::verdict::{Blame, Fault, Held, MissingEdge, Point, Side, StreamLabel, Verdict, Violation};
use super::{AccessKind, Property};
use core::fmt;
use millpond_driver::StreamKind;
use millpond_driver::bytes;
use millpond_driver::units::{Addr, StreamId};

/// The longest line, in characters, including the number in a verdict's list. At the narrowest width no sentence of this
/// file is longer, except for paths that cannot be shortened further.
const LINE: usize = 140;
/// The width of a number in a verdict's list.
const NUMBER: usize = 4;
/// Before the second and the third line.
const INDENT: &str = "   ";
/// The widths of names and paths that are tried.
const WIDTHS: [usize; 7] = [60, 40, 28, 23, 20, 14, NARROWEST];
/// Above these widths a line includes further facts.
const ROOMY: [usize; 3] = [23, 28, 40];
/// Cut to this, a name is still recognisable.
const NARROWEST: usize = 9;
/// The minimum left of a file's name, including its line.
const FILE: usize = 24;
/// How many violations, and mismatches, a verdict shows.
const SHOWN: usize = 8;

/// The beginning of a text in one line, at most this many characters.
pub(in super::super) fn clip(text: &str, most: usize) -> String {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let clean = text.chars().map(|c| if breaks(c) { ' ' } else { c });
    if text.chars().count() <= most {
        return clean.collect();
    }
    clean.take(most.saturating_sub(1)).chain(['…']).collect()
}

/// A place in a program, with as many of its folders as there is room for: the end of a path is the most informative part.
pub(in super::super) fn place(from: impl fmt::Display, most: usize) -> String {
    let text = from.to_string();
    let len = |t: &str| t.chars().count();
    if len(&text) <= most {
        return text;
    }
    let mut starts = text.match_indices(['/', '\\']).map(|(at, _)| &text[at + 1..]);
    let file = starts.clone().next_back().unwrap_or(&text);
    let kept = starts.find(|t| len(t) + 2 <= most).unwrap_or(file);
    let room = most.max(FILE + 2);
    if len(kept) + 2 <= room {
        return format!("…/{kept}");
    }
    let rest: String = kept.chars().skip(len(kept) + 1 - room).collect();
    format!("…{rest}")
}

/// The text with the widest names and paths that still fits into a line beside this many characters.
fn fit(taken: usize, text: impl Fn(usize) -> String) -> String {
    let most = LINE - NUMBER - taken;
    let fits = WIDTHS.iter().map(|&width| text(width)).find(|t| t.chars().count() <= most);
    fits.unwrap_or_else(|| clip(&text(NARROWEST), most))
}

/// Three lines, of what, where and the rest, each made with names and paths of some width.
pub(in super::super) fn lines(
    f: &mut fmt::Formatter<'_>,
    what: impl Fn(usize) -> String,
    wheres: impl Fn(usize) -> String,
    rest: impl Fn(usize) -> String,
) -> fmt::Result {
    let place = fit(INDENT.len() + "where: ".len(), wheres);
    write!(f, "{}\n{INDENT}where: {place}\n{INDENT}{}", fit(0, what), fit(INDENT.len(), rest))
}

/// An address as text: those of the process differ from run to run. Those of simulated devices, all above them, do not, nor
/// do those near 0, where no process has anything.
pub(in super::super) fn address(at: Addr) -> String {
    if (1 << 16..1 << 48).contains(&at.0) { "host memory".to_owned() } else { at.to_string() }
}

fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

impl StreamLabel {
    /// Its name, at most this wide.
    pub(in super::super) fn words(&self, width: usize) -> String {
        let what = match (&self.name, self.kind) {
            (Some(name), _) => format!("stream \"{}\"", clip(name, width)),
            (None, StreamKind::LegacyDefault) => "the default stream".to_owned(),
            (None, StreamKind::PerThreadDefault) => format!("per-thread default stream {}", self.of_thread),
            (None, StreamKind::NonBlocking | StreamKind::Blocking) => format!("stream {}", self.number),
        };
        match self.device {
            Some(device) => format!("{what} of {device}"),
            None => what,
        }
    }
    /// A variable that may stand for it in a line of the program; the number where there is no room for a name.
    fn variable(&self, width: usize) -> String {
        match (&self.name, self.kind) {
            (Some(name), _) if is_variable(name) && name.len() <= width.max(NARROWEST) => name.to_string(),
            (_, StreamKind::LegacyDefault) => match self.device {
                Some(device) => format!("legacy_{}", device.0),
                None => "legacy".to_owned(),
            },
            // Their numbers continue across all devices.
            (_, StreamKind::PerThreadDefault) => format!("per_thread_{}", self.of_thread),
            (_, StreamKind::NonBlocking | StreamKind::Blocking) => format!("s{}", self.number),
        }
    }
}

fn is_variable(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.len() <= 24 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Held {
    /// Its name.
    fn words(&self, width: usize) -> String {
        match (&self.name, self.number) {
            (Some(name), _) => format!("\"{}\"", clip(name, width)),
            (None, Some(number)) => format!("allocation {number}"),
            (None, None) => "an allocation never made, or freed long ago".to_owned(),
        }
    }
    /// Its name and its length, if there is room.
    pub(in super::super) fn with_size(&self, width: usize) -> String {
        match self.range {
            Some((_, n)) if n > 0 && width > ROOMY[0] => format!("{} ({})", self.words(width), bytes(n)),
            _ => self.words(width),
        }
    }
}

/// The verbs for how an access touches its bytes now, and may still do.
fn verbs(kind: Option<AccessKind>) -> (&'static str, &'static str) {
    match kind {
        Some(AccessKind::Read) => ("reads", "read"),
        Some(AccessKind::Write) => ("writes", "write"),
        None => ("touches", "touch"),
    }
}

/// What does it.
fn actor(side: &Side, width: usize) -> String {
    match (side.at, side.kind) {
        (Point::Host { .. }, Some(_)) => "the CPU".to_owned(),
        _ => format!("`{}`", clip(&side.what, width)),
    }
}

impl Violation {
    fn stream(&self, id: StreamId, width: usize) -> String {
        let label = self.streams.iter().find(|l| l.id == id);
        label.map_or_else(|| id.to_string(), |l| l.words(width))
    }
    fn variable(&self, id: StreamId, width: usize) -> String {
        let label = self.streams.iter().find(|l| l.id == id);
        label.map_or_else(|| format!("s{}", id.0), |l| l.variable(width))
    }
    /// The call that orders a stream, or the host, behind another stream: the allocator's, or the simulator's own.
    fn ordering_call(&self, from: &str, to: Point, width: usize) -> String {
        match to {
            Point::Host { .. } if self.allocator_reported => format!("{from}.synchronize()"),
            Point::Host { .. } => format!("sim.synchronize_stream(&{from})?"),
            Point::Stream { id, .. } => {
                let to = self.variable(id, width);
                if self.allocator_reported {
                    format!("{to}.wait_stream(&{from})")
                } else if width >= ROOMY[0] {
                    format!("sim.record(&e, &{from})?; sim.wait(&{to}, &e)?")
                } else {
                    format!("record(&e, &{from}), wait(&{to}, &e)")
                }
            }
        }
    }
    /// A point in the order of events. Operations count from 0.
    fn point(&self, point: Point, width: usize) -> String {
        match point {
            Point::Stream { id, position: 0 } => format!("the start of {}", self.stream(id, width)),
            Point::Stream { id, position } => {
                format!("operation {} of {}", position - 1, self.stream(id, width))
            }
            Point::Host { thread: None } => "the host".to_owned(),
            Point::Host { thread: Some(HostKey(n)) } => format!("host thread {n}"),
        }
    }
    /// Where an access was called, or another side with a point of its own.
    fn side_at(&self, side: &Side, width: usize) -> String {
        let point = self.point(side.at, width);
        match side.from {
            Some(from) => format!("{} ({point})", place(from, width)),
            None => point,
        }
    }
    /// Where an allocation was made.
    fn origin(&self, held: &Held, width: usize) -> String {
        let on = held.stream.map(|id| format!(" on {}", self.stream(id, width)));
        let at = held.from.map(|from| format!(" at {}", place(from, width)));
        match (on, at) {
            (None, None) => "allocated for the host".to_owned(),
            (on, at) => format!("allocated{}{}", on.unwrap_or_default(), at.unwrap_or_default()),
        }
    }
    /// Where an allocation was freed, if it was.
    fn end(&self, held: &Held, width: usize) -> Option<String> {
        if let Some(from) = held.freed_from {
            return Some(format!("freed at {}", place(from, width)));
        }
        Some(match held.freed? {
            Point::Stream { id, position: 0 } => {
                format!("freed on {} before its first operation", self.stream(id, width))
            }
            at @ Point::Stream { .. } => format!("freed behind {}", self.point(at, width)),
            Point::Host { .. } => "freed by the host".to_owned(),
        })
    }

    /// The first line.
    fn what(&self, width: usize) -> String {
        let blame = match self.blame {
            Blame::Program => "the program's",
            Blame::Allocator => "the allocator's",
        };
        format!("{:?}, {blame} fault: {}", self.property, self.found(width))
    }

    fn found(&self, width: usize) -> String {
        let later = &self.later;
        let (does, _) = verbs(later.kind);
        let who = actor(later, width);
        let touched = self.place.map(|p| p.bytes).or(self.unmapped.map(|u| u.1)).unwrap_or(0);
        let held = || match &later.allocation {
            Some(held) => held.with_size(width),
            None => bytes(touched),
        };
        // "bytes of allocation 3 that `gemm` may still write"
        let still = |of: &str| {
            let Some(earlier) = &self.earlier else { return String::new() };
            let of =
                earlier.allocation.as_ref().map_or_else(String::new, |h| format!("{of}{}", h.words(width)));
            let unrecorded = if self.fault == Fault::MissingRecordUse { ", not recorded" } else { "" };
            format!("{of} that {} may still {}{unrecorded}", actor(earlier, width), verbs(earlier.kind).1)
        };
        let (first, its) = match &self.earlier {
            Some(earlier) => (actor(earlier, width), verbs(earlier.kind).0),
            None => (String::new(), ""),
        };
        match self.fault {
            Fault::Overlap => {
                let other = self.earlier.as_ref().and_then(|e| e.allocation.as_ref());
                let other = other.map_or_else(String::new, |h| h.words(width));
                format!("{} was handed out over {other}, which is alive", held())
            }
            Fault::EarlyReuse | Fault::MissingRecordUse if self.property == Property::P2 => {
                match later.kind {
                    Some(_) => format!("{who} {does} {}, bytes{}", held(), still(" of ")),
                    None => format!("{} was handed out, bytes{}", held(), still(" of ")),
                }
            }
            Fault::Race => format!("{who} {does} {} and {first} {its} it, in no order", held()),
            Fault::UnorderedOperation => {
                format!("{who} {does} {} and {first} {its} it, both known and in no order", held())
            }
            Fault::NoMemory if &*later.what == "an allocation" => {
                format!("{} was handed out where there is no memory", held())
            }
            Fault::NoMemory => format!("{who} touches {}, which has no memory", held()),
            Fault::BeforeAllocation => {
                format!("{who} {does} {} and is not ordered after its allocation", held())
            }
            Fault::AfterFree => format!("{who} {does} {} after its free", held()),
            Fault::Overrun => format!("{who} {does} {} that reach beyond {}", bytes(touched), held()),
            Fault::NotHandedOut => format!("{who} {does} {} that were never handed out", bytes(touched)),
            Fault::UnknownAllocation => format!("{who} {does} {} of {}", bytes(touched), held()),
            Fault::NothingMapped => {
                let (at, n) = self.unmapped.unwrap_or_default();
                format!("{who} touches {} at {}, where nothing is mapped", bytes(n), address(at))
            }
            Fault::BadFree => match &later.allocation {
                Some(h) if h.number.is_some() => format!("{} is freed again", held()),
                _ => "something is freed that was never allocated, or freed long ago".to_owned(),
            },
            Fault::BadUse => {
                let by = match later.at {
                    Point::Stream { id, .. } => self.stream(id, width),
                    at @ Point::Host { .. } => self.point(at, width),
                };
                format!("a use by {by} is recorded for {}, which is not alive", held())
            }
            Fault::EarlyReuse
            | Fault::MissingRecordUse
            | Fault::UnmappedWhilePending
            | Fault::ReleasedWhilePending => {
                let what = match &*later.what {
                    "an unmap" => "memory is unmapped",
                    "a release of pinned memory" => "pinned memory is given back",
                    _ => "device memory is given back",
                };
                format!("{what}{}", still(" with bytes of "))
            }
            Fault::ReleasedWhileOwned => {
                let owner = self.earlier.as_ref().and_then(|e| e.allocation.as_ref());
                let owner = owner.map_or_else(String::new, |h| h.with_size(width));
                format!("memory was given back with {owner} alive in it")
            }
        }
    }

    /// The second line.
    fn wheres(&self, width: usize) -> String {
        let at = |side: &Side| self.side_at(side, width);
        let (later, earlier) = (&self.later, self.earlier.as_ref());
        let of_earlier = earlier.and_then(|e| e.allocation.as_ref());
        let own = later.allocation.as_ref().filter(|h| h.number.is_some());
        let origin = |held: Option<&Held>| held.map(|h| self.origin(h, width));
        let end = |held: Option<&Held>| held.and_then(|h| self.end(h, width));
        let mut parts = Vec::new();
        match self.fault {
            Fault::Race
            | Fault::UnorderedOperation
            | Fault::EarlyReuse
            | Fault::MissingRecordUse
            | Fault::UnmappedWhilePending
            | Fault::ReleasedWhilePending => {
                // A hand-out is not an access and has a line of its own only if the program's line is known.
                parts.push(earlier.map_or_else(|| at(later), |e| format!("{} against {}", at(later), at(e))));
                if width > ROOMY[0] && self.missing.is_some_and(|m| m.outside_legacy) {
                    parts.push("these two never wait by themselves".to_owned());
                }
            }
            Fault::Overlap => {
                parts.extend(origin(own));
                parts.extend(of_earlier.map(|h| format!("{} was {}", h.words(width), self.origin(h, width))));
            }
            Fault::ReleasedWhileOwned => {
                parts.push(at(later));
                parts.extend(of_earlier.map(|h| format!("{} was {}", h.words(width), self.origin(h, width))));
            }
            Fault::NoMemory if &*later.what == "an allocation" => parts.extend(origin(own)),
            Fault::BadFree => {
                parts.push(at(later));
                parts.extend(own.map(|h| self.origin(h, width)));
                parts.extend(end(own));
            }
            Fault::AfterFree => {
                parts.push(at(later));
                parts.extend(end(own));
                parts.extend(of_earlier.map(|h| format!("its bytes are now {}", h.words(width))));
            }
            Fault::Overrun => {
                parts.push(at(later));
                parts.extend(origin(own));
                parts.extend(of_earlier.map(|h| format!("it reaches {}", h.words(width))));
            }
            Fault::BadUse => {
                parts.extend(later.from.map(|from| place(from, width)));
                parts.extend(end(own));
                if parts.is_empty() {
                    parts.push("not known".to_owned());
                }
            }
            Fault::BeforeAllocation
            | Fault::NoMemory
            | Fault::NotHandedOut
            | Fault::UnknownAllocation
            | Fault::NothingMapped => {
                parts.push(at(later));
                parts.extend(origin(own));
            }
        }
        parts.join("; ")
    }

    /// The third line.
    fn rest(&self, width: usize) -> String {
        match self.missing {
            Some(missing) => self.edge(missing, width),
            None => format!("mend: {}", self.fault.advice()),
        }
    }

    fn edge(&self, missing: MissingEdge, width: usize) -> String {
        let held = self.earlier.as_ref().and_then(|e| e.allocation.as_ref());
        let (from, to) = (self.point(missing.from, width), self.point(missing.to, width));
        let (blame, from_stream) = match missing.from {
            Point::Stream { id, .. } => (self.blame, self.variable(id, width)),
            Point::Host { .. } => {
                let calls = "sim.host_publish(mark) there, sim.host_edge(mark) here";
                return format!("missing edge: {from} -> {to}: {calls}");
            }
        };
        if self.fault == Fault::MissingRecordUse {
            let (what, on) = match held {
                Some(h) => match &h.name {
                    Some(name) if is_variable(name) => {
                        (h.words(width), format!("{name}.record_use(&{from_stream})"))
                    }
                    _ => (h.words(width), format!("record_use(&{from_stream}) on it")),
                },
                None => ("the bytes".to_owned(), format!("record_use(&{from_stream}) on them")),
            };
            return format!("missing edge: {from} -> the free of {what}: {on} before that");
        }
        if self.fault == Fault::BeforeAllocation
            && let Some(held) = held
            && let Some(home) = held.stream
            && let Point::Stream { id, .. } = missing.to
            && id != home
        {
            let call = format!("{}.wait_stream(&{})", self.variable(id, width), self.variable(home, width));
            return format!("missing edge: {} -> {to}: {call} once it is made", held.words(width));
        }
        let call = self.ordering_call(&from_stream, missing.to, width);
        let advice = match (blame, self.property) {
            (Blame::Allocator, Property::P4) => {
                format!("{call} first; report an allocator that did not")
            }
            (Blame::Allocator, _) if width > ROOMY[1] => format!("{call} by the allocator: report it"),
            (Blame::Allocator, _) => format!("{call}; report it"),
            (Blame::Program, _) if matches!(missing.to, Point::Host { .. }) => {
                format!("{call} first")
            }
            (Blame::Program, _) if width > ROOMY[0] => format!("{call} in between"),
            (Blame::Program, _) => call,
        };
        // Only if there is room: a wait that exists, and came too early.
        let known = match missing.known {
            0 => String::new(),
            n if width > ROOMY[2] => format!(" (ordered up to operation {})", n - 1),
            _ => String::new(),
        };
        format!("missing edge: {from} -> {to}: {advice}{known}")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines(f, |w| self.what(w), |w| self.wheres(w), |w| self.rest(w))
    }
}

impl Fault {
    /// What to do, if no edge would help.
    fn advice(self) -> &'static str {
        match self {
            Fault::Overlap => {
                "nothing in the program; report it: the allocator handed out bytes that were not free"
            }
            Fault::NoMemory => {
                "nothing in the program; report it: memory is there from the allocation to the free"
            }
            Fault::AfterFree => "free it after the last use was queued, or keep it alive until then",
            Fault::Overrun => "check the length given to the operation against the requested bytes",
            Fault::NotHandedOut => "check the address and the length: they lie outside every allocation",
            Fault::UnknownAllocation => {
                "check that it was allocated, and not freed, before the operation was queued"
            }
            Fault::NothingMapped => {
                "check the address: nothing was ever mapped there, or it was given back too early"
            }
            Fault::BadFree => "free each allocation once; look for a second owner of it",
            Fault::BadUse => "record uses before the free: later ones cannot be respected",
            Fault::ReleasedWhileOwned => {
                "give back only memory all of whose allocations were freed; if the allocator did, report it"
            }
            Fault::EarlyReuse | Fault::UnorderedOperation => "nothing in the program: report it",
            Fault::MissingRecordUse => "call record_use with that stream before the free",
            Fault::BeforeAllocation => "make the stream wait for the one that it was allocated on",
            Fault::UnmappedWhilePending | Fault::ReleasedWhilePending => {
                "see every use complete, by a query or a synchronise, before giving memory back"
            }
            Fault::Race => "make the one stream wait for the other",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.tally;
        let violations = counted(t.violations, "ordering violation", "ordering violations");
        let accesses = counted(t.accesses_checked, "access", "accesses");
        write!(f, "{violations} in {accesses}, ")?;
        match (t.violations, t.violations_of_allocator) {
            (1, 0) => f.write_str("caused by the program")?,
            (1, _) => f.write_str("caused by the allocator")?,
            (_, 0) => f.write_str("none of them caused by the allocator")?,
            (_, n) => write!(f, "{n} of them caused by the allocator")?,
        }
        let whose = |blame| self.violations.iter().filter(move |v| v.blame == blame);
        let sorted = whose(Blame::Allocator).chain(whose(Blame::Program));
        for (n, v) in sorted.take(SHOWN).enumerate() {
            write!(f, "\n{}. {v}", n + 1)?;
        }
        let hidden = self.more + self.violations.len().saturating_sub(SHOWN) as u64;
        if hidden > 0 {
            write!(f, "\nand {}", counted(hidden, "more violation", "more violations"))?;
        }
        Ok(())
    }
}

/// How many of several findings a verdict shows.
pub(in super::super) fn shown<T>(found: &[T]) -> &[T] {
    &found[..found.len().min(SHOWN)]
}
