//! The compact binary form: about six bytes a step, for corpora and for programs too long to paste.
//!
//! ```text
//! "MLPD" version   name: length, UTF-8   streams   steps: count, step*      all numbers LEB128, at most ten bytes
//! step = tag [thread] operands           tag: bits 0-4 the verb, 5-6 its form, 7 "another thread than the step before"
//! ```
//!
//! Reading never panics and never allocates more than the input could fill: a declared length is compared with the
//! bytes that are left before anything is reserved. `program` decides whether the program makes sense.

use super::op::{Access, BlockNo, EventNo, Op, Step, StreamNo, ThreadNo};
use super::program::Program;

/// The first four bytes of every binary program.
pub const MAGIC: [u8; 4] = *b"MLPD";
const VERSION: u8 = 1;
const OTHER_THREAD: u8 = 0x80;
/// Bit 5 of a tag, and bit 6: what they say depends on the verb.
const FORM: u8 = 0x20;
const FORM2: u8 = 0x40;
/// The verbs with several forms.
const USE: u8 = 5;
const TRIM: u8 = 17;
const LIMIT: u8 = 18;

/// Why bytes are no program: where, and what is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("byte {offset}: {reason}")]
#[non_exhaustive]
pub struct BinaryError {
    /// The offset of the first byte that is wrong.
    pub offset: usize,
    /// What is wrong there.
    pub reason: BinaryReason,
}

/// What is wrong with the bytes of a binary program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BinaryReason {
    /// It does not begin with `MLPD`.
    #[error("no binary program: it does not begin with \"MLPD\"")]
    NoMagic,
    /// Another version of the form.
    #[error("version {0} of the binary form; this millpond reads version {VERSION}")]
    Version(u8),
    /// It ends in the middle of something.
    #[error("the program ends here in the middle of a step or number: the file is cut short")]
    Truncated,
    /// A length or a count that the bytes left could not hold.
    #[error("{declared} are declared, but only {left} bytes are left: the file is cut short or damaged")]
    TooLong {
        /// What was declared.
        declared: u64,
        /// Bytes left.
        left: usize,
    },
    /// A number above what its place can hold.
    #[error("a number above {most}: the file is damaged")]
    NumberTooLarge {
        /// The most it can be.
        most: u64,
    },
    /// The name is not UTF-8.
    #[error("the name is not UTF-8: the file is damaged")]
    NameNotText,
    /// No verb has this tag.
    #[error("no operation has the tag {0:#04x}: the file is damaged")]
    UnknownTag(u8),
    /// The program ended before the bytes did.
    #[error("the program ends here, but {left} bytes follow")]
    Trailing {
        /// Bytes left.
        left: usize,
    },
}

impl Program {
    /// The binary form, which [`Program::from_binary`] reads back equal.
    pub fn to_binary(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + self.name.len() + 6 * self.steps.len());
        out.extend(MAGIC);
        out.push(VERSION);
        number(&mut out, self.name.len() as u64);
        out.extend(self.name.as_bytes());
        number(&mut out, self.streams.into());
        number(&mut out, self.steps.len() as u64);
        let mut thread = ThreadNo(0);
        for step in &self.steps {
            let (tag, operands) = taken_apart(&step.op);
            let other = if step.thread == thread { 0 } else { OTHER_THREAD };
            out.push(tag | other);
            if other != 0 {
                number(&mut out, step.thread.0.into());
                thread = step.thread;
            }
            operands.into_iter().flatten().for_each(|n| number(&mut out, n));
        }
        out
    }

    /// Reads the binary form. [`Program::check`] judges the rules.
    ///
    /// # Errors
    /// The first byte that is wrong, and why. Any bytes are answered, in time and memory of the order of their length.
    pub fn from_binary(bytes: &[u8]) -> Result<Program, BinaryError> {
        let mut r = Reader { bytes, at: 0 };
        if !bytes.starts_with(&MAGIC) {
            return Err(r.error(BinaryReason::NoMagic));
        }
        r.at = MAGIC.len();
        match r.byte()? {
            VERSION => {}
            v => return Err(BinaryError { offset: r.at - 1, reason: BinaryReason::Version(v) }),
        }
        let length = r.length()?;
        let name = core::str::from_utf8(&bytes[r.at..r.at + length])
            .map_err(|_| r.error(BinaryReason::NameNotText))?
            .to_owned();
        r.at += length;
        let streams = r.small()?;
        // Each step is one byte at least, so that a count above the bytes left is a lie.
        let count = r.length()?;
        let mut steps = Vec::with_capacity(count);
        let mut thread = ThreadNo(0);
        for _ in 0..count {
            let offset = r.at;
            let tag = r.byte()?;
            if tag & OTHER_THREAD != 0 {
                thread = ThreadNo(r.small()?);
            }
            let op = r
                .op(tag & !OTHER_THREAD)?
                .ok_or(BinaryError { offset, reason: BinaryReason::UnknownTag(tag) })?;
            steps.push(Step { thread, op });
        }
        match bytes.len() - r.at {
            0 => Ok(Program { name, streams, steps }),
            left => Err(r.error(BinaryReason::Trailing { left })),
        }
    }
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
fn number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// The tag and the operands in the order in which they are written. Its partner is [`Reader::op`].
fn taken_apart(op: &Op) -> (u8, [Option<u64>; 4]) {
    let b = |b: BlockNo| Some(u64::from(b.0));
    let s = |s: StreamNo| Some(u64::from(s.0));
    let e = |e: EventNo| Some(u64::from(e.0));
    match *op {
        Op::Alloc { block, bytes, align, stream } => {
            (if align.is_some() { FORM } else { 0 }, [b(block), s(stream), Some(bytes), align])
        }
        Op::AllocPinned { block, bytes } => (1, [b(block), Some(bytes), None, None]),
        Op::Free { block } => (2, [b(block), None, None, None]),
        Op::FreeOn { block, stream } => (3, [b(block), s(stream), None, None]),
        Op::FreeUnknown { block } => (4, [b(block), None, None, None]),
        Op::Use { block, stream, access, recorded } => {
            let write = if access == Access::Write { FORM } else { 0 };
            let recorded = if recorded { FORM2 } else { 0 };
            (USE | write | recorded, [b(block), s(stream), None, None])
        }
        Op::RecordUse { block, stream } => (6, [b(block), s(stream), None, None]),
        Op::Copy { to, from, bytes, stream } => (7, [b(to), b(from), s(stream), Some(bytes)]),
        Op::Record { event, stream } => (8, [e(event), s(stream), None, None]),
        Op::Wait { stream, event } => (9, [s(stream), e(event), None, None]),
        Op::WaitStream { stream, on } => (10, [s(stream), s(on), None, None]),
        Op::SyncStream { stream } => (11, [s(stream), None, None, None]),
        Op::SyncEvent { event } => (12, [e(event), None, None, None]),
        Op::SyncDevice => (13, [None; 4]),
        Op::Query { event } => (14, [e(event), None, None, None]),
        Op::OpenStream { stream } => (15, [s(stream), None, None, None]),
        Op::CloseStream { stream } => (16, [s(stream), None, None, None]),
        Op::Trim { stream: Some(stream) } => (TRIM, [s(stream), None, None, None]),
        Op::Trim { stream: None } => (TRIM | FORM, [None; 4]),
        Op::SetLimit { bytes: Some(bytes) } => (LIMIT, [Some(bytes), None, None, None]),
        Op::SetLimit { bytes: None } => (LIMIT | FORM, [None; 4]),
        Op::Advance { stream, steps } => (19, [s(stream), Some(steps.into()), None, None]),
        Op::Tick => (20, [None; 4]),
        Op::NotReady { times } => (21, [Some(times.into()), None, None, None]),
        Op::RecordUseUntil { block, event } => (22, [b(block), e(event), None, None]),
        Op::ShareWith { block, stream } => (23, [b(block), s(stream), None, None]),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn error(&self, reason: BinaryReason) -> BinaryError {
        BinaryError { offset: self.at, reason }
    }

    fn byte(&mut self) -> Result<u8, BinaryError> {
        let b = *self.bytes.get(self.at).ok_or_else(|| self.error(BinaryReason::Truncated))?;
        self.at += 1;
        Ok(b)
    }

    fn number(&mut self, most: u64) -> Result<u64, BinaryError> {
        let start = self.at;
        let too_large = BinaryError { offset: start, reason: BinaryReason::NumberTooLarge { most } };
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            let part = u64::from(b & 0x7f);
            if part << shift >> shift != part {
                return Err(too_large);
            }
            n |= part << shift;
            if b & 0x80 == 0 {
                return if n <= most { Ok(n) } else { Err(too_large) };
            }
        }
        Err(too_large)
    }

    fn small(&mut self) -> Result<u16, BinaryError> {
        self.number(u16::MAX.into()).map(|n| n as u16)
    }

    fn middle(&mut self) -> Result<u32, BinaryError> {
        self.number(u32::MAX.into()).map(|n| n as u32)
    }

    /// A count of things of one byte at least, compared with the bytes left.
    fn length(&mut self) -> Result<usize, BinaryError> {
        let offset = self.at;
        let declared = self.number(u64::MAX)?;
        let left = self.bytes.len() - self.at;
        if declared > left as u64 {
            return Err(BinaryError { offset, reason: BinaryReason::TooLong { declared, left } });
        }
        Ok(declared as usize)
    }

    fn block(&mut self) -> Result<BlockNo, BinaryError> {
        self.middle().map(BlockNo)
    }
    fn stream(&mut self) -> Result<StreamNo, BinaryError> {
        self.small().map(StreamNo)
    }
    fn event(&mut self) -> Result<EventNo, BinaryError> {
        self.small().map(EventNo)
    }

    /// The operation of a tag, or `None` if no verb has it. Its partner is [`taken_apart`].
    fn op(&mut self, tag: u8) -> Result<Option<Op>, BinaryError> {
        let (form, form2) = (tag & FORM != 0, tag & FORM2 != 0);
        let verb = tag & 0x1f;
        // Bits that a verb does not use must be clear: each program has one binary form.
        if (form2 && verb != USE) || (form && !matches!(verb, 0 | USE | TRIM | LIMIT)) {
            return Ok(None);
        }
        Ok(Some(match verb {
            0 => {
                let (block, stream, bytes) = (self.block()?, self.stream()?, self.number(u64::MAX)?);
                let align = if form { Some(self.number(u64::MAX)?) } else { None };
                Op::Alloc { block, bytes, align, stream }
            }
            1 => Op::AllocPinned { block: self.block()?, bytes: self.number(u64::MAX)? },
            2 => Op::Free { block: self.block()? },
            3 => Op::FreeOn { block: self.block()?, stream: self.stream()? },
            4 => Op::FreeUnknown { block: self.block()? },
            USE => Op::Use {
                block: self.block()?,
                stream: self.stream()?,
                access: if form { Access::Write } else { Access::Read },
                recorded: form2,
            },
            6 => Op::RecordUse { block: self.block()?, stream: self.stream()? },
            7 => Op::Copy {
                to: self.block()?,
                from: self.block()?,
                stream: self.stream()?,
                bytes: self.number(u64::MAX)?,
            },
            8 => Op::Record { event: self.event()?, stream: self.stream()? },
            9 => Op::Wait { stream: self.stream()?, event: self.event()? },
            10 => Op::WaitStream { stream: self.stream()?, on: self.stream()? },
            11 => Op::SyncStream { stream: self.stream()? },
            12 => Op::SyncEvent { event: self.event()? },
            13 => Op::SyncDevice,
            14 => Op::Query { event: self.event()? },
            15 => Op::OpenStream { stream: self.stream()? },
            16 => Op::CloseStream { stream: self.stream()? },
            TRIM => Op::Trim { stream: if form { None } else { Some(self.stream()?) } },
            LIMIT => Op::SetLimit { bytes: if form { None } else { Some(self.number(u64::MAX)?) } },
            19 => Op::Advance { stream: self.stream()?, steps: self.middle()? },
            20 => Op::Tick,
            21 => Op::NotReady { times: self.middle()? },
            22 => Op::RecordUseUntil { block: self.block()?, event: self.event()? },
            23 => Op::ShareWith { block: self.block()?, stream: self.stream()? },
            _ => return Ok(None),
        }))
    }
}
