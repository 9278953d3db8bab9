//! One operation: the verb, its symbolic operands, and the host thread that issues it.
//!
//! Operands are small numbers that a person can type and a generator can shrink: block 3, stream 1, event 0, thread 2.
//! The executor keeps the table from numbers to real objects. This module does not know which sequences of
//! operations make sense (`program` does), nor how one is written down (`text`, `binary`).

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty), $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $int);

        impl $name {
            /// The letter that stands before the number in the text form.
            pub const LETTER: char = $letter;
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $letter, self.0)
            }
        }
    };
}

number!(
    /// A block's number in its program: device or pinned memory between one allocation and one free. May be given again
    /// after the free.
    BlockNo(u32), 'b'
);
number!(
    /// A stream's number in its program. May be given again after the stream is closed; that is a new stream.
    StreamNo(u16), 's'
);
number!(
    /// An event's number in its program. Events need no opening: one never recorded is an empty set of work.
    EventNo(u16), 'e'
);
number!(
    /// A host thread's number in its program.
    ThreadNo(u16), 't'
);

/// What a use does to the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Access {
    /// Reads all of them.
    Read,
    /// Writes all of them.
    Write,
}

/// One operation on an allocator, its streams and its device.
///
/// An allocation may fail when the program runs (no memory, a limit, a bad alignment); the executor then skips the operations that
/// name its block, up to the next allocation of that number.
///
/// Exhaustive on purpose: who adds an operation is shown every place that has to know what it does, in executors, rules and the text form. A new one is a
/// new version of the language.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Op {
    /// Device memory, in the pool of a stream.
    Alloc {
        /// The number it will have.
        block: BlockNo,
        /// Requested bytes; any number, absurd ones too.
        bytes: u64,
        /// The requested alignment in bytes; `None` for the usual 512.
        align: Option<u64>,
        /// The stream it is ordered on.
        stream: StreamNo,
    },
    /// Pinned host memory.
    AllocPinned {
        /// The number it will have.
        block: BlockNo,
        /// Requested bytes.
        bytes: u64,
    },
    /// Drops a block: its recorded uses decide when its bytes are reused.
    Free {
        /// Which.
        block: BlockNo,
    },
    /// Frees device memory as of this point of a stream.
    FreeOn {
        /// Which.
        block: BlockNo,
        /// The stream that the free is ordered on.
        stream: StreamNo,
    },
    /// Frees device memory whose users are unknown: everything queued so far, on any stream, counts as a use.
    FreeUnknown {
        /// Which.
        block: BlockNo,
    },
    /// Work on a stream that touches a whole block: a launch.
    Use {
        /// Which.
        block: BlockNo,
        /// The stream of the launch.
        stream: StreamNo,
        /// What the launch does to the bytes.
        access: Access,
        /// Whether the use is recorded (`record_use`). Only work on another stream than the block's own needs it.
        recorded: bool,
    },
    /// Records a use on a stream, without any work.
    RecordUse {
        /// Which.
        block: BlockNo,
        /// The stream that uses it.
        stream: StreamNo,
    },
    /// Records that uses on a stream end where an event stands now. An event that was never recorded has no effect.
    RecordUseUntil {
        /// Which.
        block: BlockNo,
        /// The event behind the uses.
        event: EventNo,
    },
    /// Says that a stream uses device memory as its own does, from now until the free (`share_with`).
    ShareWith {
        /// Which.
        block: BlockNo,
        /// The stream.
        stream: StreamNo,
    },
    /// An asynchronous copy of the first bytes between two blocks, of which one at least is device memory. Always a
    /// recorded use of both.
    Copy {
        /// Where to.
        to: BlockNo,
        /// Where from.
        from: BlockNo,
        /// How many bytes, at most the length of the shorter block.
        bytes: u64,
        /// The stream of the copy.
        stream: StreamNo,
    },
    /// Records an event: it stands for all work on the stream so far, and forgets what it stood for before.
    Record {
        /// The event.
        event: EventNo,
        /// The stream.
        stream: StreamNo,
    },
    /// Orders later work on a stream after what an event stands for now.
    Wait {
        /// The stream that waits.
        stream: StreamNo,
        /// The event.
        event: EventNo,
    },
    /// Orders later work on one stream after all work so far on another.
    WaitStream {
        /// The stream that waits.
        stream: StreamNo,
        /// The stream it waits for.
        on: StreamNo,
    },
    /// The host waits for all work on a stream.
    SyncStream {
        /// The stream.
        stream: StreamNo,
    },
    /// The host waits for what an event stands for.
    SyncEvent {
        /// The event.
        event: EventNo,
    },
    /// The host waits for all work on the device, of closed streams too.
    SyncDevice,
    /// Queries whether an event is complete; either answer is right.
    Query {
        /// The event.
        event: EventNo,
    },
    /// Makes a stream.
    OpenStream {
        /// The number it will have.
        stream: StreamNo,
    },
    /// Destroys a stream, at once; its pending work goes on, its blocks stay alive.
    CloseStream {
        /// Which.
        stream: StreamNo,
    },
    /// Gives idle cached memory back to the device.
    Trim {
        /// Of one stream's pool, or of all.
        stream: Option<StreamNo>,
    },
    /// Sets or lifts the limit on what the allocator takes from the device.
    SetLimit {
        /// Bytes; `None` for no limit.
        bytes: Option<u64>,
    },
    /// Lets the simulated device run some of a stream's pending work. Nothing on a device that runs by itself.
    Advance {
        /// The stream.
        stream: StreamNo,
        /// At most how many pieces of work.
        steps: u32,
    },
    /// One unit of run-ahead passes: work held back by the simulated device comes one step nearer.
    Tick,
    /// The simulated device answers the next so many queries whether an event is complete with "not yet", whatever is true; with 0 it
    /// answers them truly again. Nothing on a device that is not simulated.
    NotReady {
        /// How many queries.
        times: u32,
    },
}

/// The operands of an operation by their roles, for code that treats all operations alike.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Operands {
    /// The block, or the target of a copy.
    pub block: Option<BlockNo>,
    /// The source of a copy.
    pub source: Option<BlockNo>,
    /// The stream.
    pub stream: Option<StreamNo>,
    /// The stream waited for.
    pub on: Option<StreamNo>,
    /// The event.
    pub event: Option<EventNo>,
}

impl Op {
    /// The operands, by their roles.
    pub fn operands(&self) -> Operands {
        let mut o = Operands::default();
        let _ = self.clone_with(&mut |r| match r {
            Operand::Block(b) => o.block = Some(*b),
            Operand::Source(b) => o.source = Some(*b),
            Operand::Stream(s) => o.stream = Some(*s),
            Operand::On(s) => o.on = Some(*s),
            Operand::Event(e) => o.event = Some(*e),
        });
        o
    }

    /// The same operation with its numbers changed by `change`, in the order of [`Operands`]' fields.
    #[doc(hidden)]
    #[must_use]
    pub fn clone_with(&self, change: &mut dyn FnMut(Operand<'_>)) -> Op {
        let mut op = *self;
        match &mut op {
            Op::Alloc { block, stream, .. }
            | Op::FreeOn { block, stream }
            | Op::Use { block, stream, .. }
            | Op::RecordUse { block, stream }
            | Op::ShareWith { block, stream } => {
                change(Operand::Block(block));
                change(Operand::Stream(stream));
            }
            Op::RecordUseUntil { block, event } => {
                change(Operand::Block(block));
                change(Operand::Event(event));
            }
            Op::AllocPinned { block, .. } | Op::Free { block } | Op::FreeUnknown { block } => {
                change(Operand::Block(block));
            }
            Op::Copy { to, from, stream, .. } => {
                change(Operand::Block(to));
                change(Operand::Source(from));
                change(Operand::Stream(stream));
            }
            Op::Record { event, stream } | Op::Wait { stream, event } => {
                change(Operand::Stream(stream));
                change(Operand::Event(event));
            }
            Op::WaitStream { stream, on } => {
                change(Operand::Stream(stream));
                change(Operand::On(on));
            }
            Op::SyncStream { stream }
            | Op::OpenStream { stream }
            | Op::CloseStream { stream }
            | Op::Trim { stream: Some(stream) }
            | Op::Advance { stream, .. } => change(Operand::Stream(stream)),
            Op::SyncEvent { event } | Op::Query { event } => change(Operand::Event(event)),
            Op::SyncDevice
            | Op::Trim { stream: None }
            | Op::SetLimit { .. }
            | Op::Tick
            | Op::NotReady { .. } => {}
        }
        op
    }
}

/// One operand of an operation, in place.
#[allow(missing_docs, reason = "as the fields of `Operands`")]
#[derive(Debug)]
pub enum Operand<'a> {
    Block(&'a mut BlockNo),
    Source(&'a mut BlockNo),
    Stream(&'a mut StreamNo),
    On(&'a mut StreamNo),
    Event(&'a mut EventNo),
}

/// One operation and the host thread that issues it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Step {
    /// The host thread.
    pub thread: ThreadNo,
    /// What it does.
    pub op: Op,
}

impl Step {
    /// An operation of thread 0.
    pub fn of(op: Op) -> Step {
        Step { thread: ThreadNo(0), op }
    }
}
