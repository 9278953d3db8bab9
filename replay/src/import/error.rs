//! Why a file could not be imported: which file, where in it, what is wrong, and where it helps what to do.

use core::fmt;
use millpond_trace::{BinaryError, Call, Fault, TextError};

/// A file that could not be imported.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ImportError {
    /// The name of what was read.
    pub name: String,
    /// Where in it.
    pub place: FilePosition,
    /// What is wrong there.
    pub reason: Reason,
}

/// A place in an imported file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FilePosition {
    /// The file as a whole.
    Whole,
    /// A line and a column, both counted from 1; the column counts bytes, of a program's text characters.
    Line {
        /// The line.
        line: u64,
        /// The column.
        column: u64,
    },
    /// An entry of a device's trace in a snapshot, both counted from 0.
    Entry {
        /// The device.
        device: usize,
        /// The entry.
        entry: usize,
    },
}

/// What is wrong with an imported file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// It cannot be read; the system's words.
    Read(String),
    /// It has no bytes.
    Empty,
    /// The compressed data is damaged or cut short; the decoder's words.
    Compressed(String),
    /// It is not UTF-8.
    NotText,
    /// A line above what a log can have.
    LineTooLong {
        /// The most bytes a line may have.
        most: usize,
    },
    /// The header lacks a column.
    MissingColumn {
        /// Its name.
        column: &'static str,
        /// The header, or its beginning.
        header: String,
    },
    /// The header has a column twice.
    ColumnTwice {
        /// Its name.
        column: &'static str,
    },
    /// A line ends before this column.
    MissingField {
        /// The column.
        column: &'static str,
    },
    /// An entry of a snapshot lacks a field.
    MissingKey {
        /// Its name.
        key: &'static str,
    },
    /// A field that cannot be read.
    Field {
        /// The column.
        column: &'static str,
        /// What it holds.
        found: String,
        /// What it could hold.
        expected: &'static str,
    },
    /// An allocation at an address that is alive.
    Alive {
        /// The address.
        pointer: u64,
        /// The line or the entry that allocated it.
        since: u64,
    },
    /// An allocation by the name of one that is alive, in a recorder's lines.
    NameAlive {
        /// The name.
        name: String,
        /// The line that allocated it.
        since: u64,
    },
    /// A free of an address that is not alive.
    NotAlive {
        /// The address.
        pointer: u64,
    },
    /// A free that gives another size than its allocation.
    SizeDiffers {
        /// The address.
        pointer: u64,
        /// The size in the free.
        freed: u64,
        /// The size in the allocation.
        allocated: u64,
        /// The line that allocated it.
        since: u64,
    },
    /// More of something than a trace can number.
    TooMany {
        /// Of what.
        what: &'static str,
        /// The most there can be.
        most: u64,
    },
    /// It is not the JSON of a memory snapshot; the parser's words.
    Json(String),
    /// A line that is no event of a recorder's; the parser's words.
    Event(String),
    /// The file has no trace of this device.
    NoDevice {
        /// The device that was chosen.
        device: usize,
        /// Those it has traces of.
        devices: Vec<usize>,
    },
    /// Several devices have allocations, and none was chosen.
    SeveralDevices {
        /// Each with its number of allocations and frees.
        devices: Vec<(usize, usize)>,
    },
    /// No device has a single allocation.
    NoAllocations,
    /// The text of a program that does not follow the grammar or the rules.
    Text(TextError),
    /// A binary program that is damaged.
    Binary(BinaryError),
    /// A binary program that breaks a rule.
    Fault(Fault),
}

impl Reason {
    pub(super) const BLOCKS: Reason = Reason::TooMany { what: "blocks", most: Call::BLOCKS_MOST as u64 };
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        match self.place {
            FilePosition::Whole => {}
            FilePosition::Line { line, column } => write!(f, "line {line}, column {column}: ")?,
            FilePosition::Entry { device, entry } => write!(f, "device {device}, entry {entry}: ")?,
        }
        let since = match self.place {
            FilePosition::Entry { .. } => "entry",
            _ => "line",
        };
        match &self.reason {
            Reason::Read(e) => write!(f, "cannot be read: {e}"),
            Reason::Empty => write!(
                f,
                "the file is empty; expected an RMM log, a memory snapshot as JSON, a recorder's JSON lines, or a millpond trace"
            ),
            Reason::Compressed(e) => {
                write!(f, "the gzip data is damaged or cut short ({e}): copy the file again")
            }
            Reason::NotText => write!(f, "not UTF-8; expected a millpond trace in the text form"),
            Reason::LineTooLong { most } => {
                write!(
                    f,
                    "a line of more than {most} bytes; expected an RMM log with six short columns, or a recorder's JSON lines"
                )
            }
            Reason::MissingColumn { column, header } => write!(
                f,
                "no column {column} in the header {header:?}; expected Thread,Time,Action,Pointer,Size,Stream in any order"
            ),
            Reason::ColumnTwice { column } => write!(f, "column {column} occurs twice in the header"),
            Reason::MissingField { column } => write!(f, "the line ends before column {column}"),
            Reason::MissingKey { key } => write!(f, "an allocation or a free without `{key}`"),
            Reason::Field { column, found, expected } => {
                write!(f, "{column} is {found:?}; expected {expected}")
            }
            Reason::Alive { pointer, since: at } => write!(
                f,
                "an allocation at {pointer} ({pointer:#x}), which is alive since {since} {at}: a free is missing in the log"
            ),
            Reason::NameAlive { name, since } => write!(
                f,
                "an allocation of the name {name}, which is alive since line {since}: a free is missing in the recording"
            ),
            Reason::NotAlive { pointer } => {
                write!(
                    f,
                    "a free of {pointer} ({pointer:#x}), which is not alive: its allocation is missing, or it was freed before"
                )
            }
            Reason::SizeDiffers { pointer, freed, allocated, since: at } => write!(
                f,
                "a free of {pointer} ({pointer:#x}) with {freed} bytes; {since} {at} allocated it with {allocated}: a call is missing between"
            ),
            Reason::TooMany { what, most } => write!(f, "more than {most} {what}: cut the file into several"),
            Reason::Json(e) => {
                write!(
                    f,
                    "no memory snapshot: {e}; expected an object with `device_traces`, a list of entries a device"
                )
            }
            Reason::Event(e) => {
                write!(f, "no event: {e}; expected an object a line, with `hook` and what belongs to it")
            }
            Reason::NoDevice { device, devices } => {
                let all = devices.iter().copied().eq(0..devices.len());
                write!(f, "no device {device}: the file has traces of ")?;
                if all {
                    return write!(f, "{}, counted from 0", devices.len());
                }
                write!(f, "{}", devices.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
            }
            Reason::SeveralDevices { devices } => {
                write!(f, "several devices have allocations, choose one:")?;
                devices.iter().try_for_each(|(device, calls)| write!(f, " device {device} ({calls} calls)"))
            }
            Reason::NoAllocations => {
                write!(f, "no allocations: was the history recorded before the snapshot was taken?")
            }
            Reason::Text(e) => match e.found.as_str() {
                "" => write!(f, "found nothing; {}", e.expected),
                found => write!(f, "found {found:?}; {}", e.expected),
            },
            Reason::Binary(e) => e.fmt(f),
            Reason::Fault(e) => e.fmt(f),
        }
    }
}

// By hand: the source is in three variants of `reason` only, and `reason` is no error by itself, since its words depend on the place.
impl std::error::Error for ImportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            Reason::Text(e) => Some(e),
            Reason::Binary(e) => Some(e),
            Reason::Fault(e) => Some(e),
            _ => None,
        }
    }
}
