//! A program: a header and steps, with the rules W1 to W4 that make the steps make sense ([`Program`] says them).
//!
//! The rules say nothing about order between streams. A well-formed program may well be wrong; finding that out is the
//! oracle's business, and this module does not know how.

use super::op::{BlockNo, Op, Operand, Step, StreamNo, ThreadNo};
use core::fmt;
use hashbrown::{HashMap, HashSet};

/// Operations in the order in which the host issues them.
///
/// # Text form
///
/// One operation a line, made to be read, pasted into a report and typed by hand. [`str::parse`] reads it, `Display` writes it, and
/// what is written is read back equal.
///
/// ```
/// use millpond_trace::Program;
/// let program = Program::from_text_checked(r#"
/// millpond trace 1                  # the form's version, always first
/// name "reuse without a wait"       # may be left out
/// streams 2                         # s0 and s1 are open at the start
/// alloc b0 64KiB on s0
/// write b0 on s0
/// wait s1 for s0
/// t1: read b0 on s1 unrecorded      # by thread 1, and the use is not recorded
/// free b0
/// "#)?;
/// assert_eq!(program.to_string().parse(), Ok(program));
/// # Ok::<(), millpond_trace::TextError>(())
/// ```
///
/// | line | meaning ([`Op`]) |
/// |---|---|
/// | `alloc b0 64KiB on s0`, `… align 4096` | device memory, for work on a stream |
/// | `alloc-pinned b1 4096` | pinned host memory |
/// | `free b0`, `free b0 on s1`, `free b0 unknown` | a free; as of this point of a stream; by unknown users: everything that was queued so far counts as a use |
/// | `read b0 on s0`, `write b0 on s0`, `… unrecorded` | work on a stream that uses a block; the use is recorded, or not |
/// | `record-use b0 on s1`, `record-use b0 until e0` | records a use, or that uses end where the event stands |
/// | `share b0 with s1` | a stream uses device memory as its own does, until the free |
/// | `copy b1 to b0 4096 on s0` | bytes from the first block to the second |
/// | `record e0 on s0`, `wait s1 for e0` | an event, and a stream that waits for it on the device |
/// | `wait s1 for s0` | the same in one operation |
/// | `sync s0`, `sync e0`, `sync device` | the host waits |
/// | `query e0` | the host queries whether an event is complete |
/// | `open s2`, `close s2` | a stream comes and goes |
/// | `trim s0`, `trim all` | idle memory goes back to the device |
/// | `limit 1GiB`, `limit none` | how much may be reserved on the device |
/// | `advance s0 5`, `tick` | a simulated device runs so many pieces of a stream's work; its held-back work comes a step nearer |
/// | `not-ready 1`, `not-ready 0` | a simulated device answers the next query of an event with "not yet"; it answers truly again |
///
/// Each may have a thread before it, `t1:`; without, it is thread 0's. Blocks are `b0` to `b4294967295`, streams `s0` to `s65535`, events
/// `e0` to `e65535`, threads `t0` to `t65535`. Sizes are bytes, in plain digits or with `KiB`, `MiB`, `GiB`, `TiB` behind them. A `#` begins
/// a comment, empty lines say nothing. A name is one word, or stands in quotes with `\"`, `\\`, `\n` and `\u{1b}` inside.
///
/// # Rules
///
/// Checked by [`Program::check`] and restored by [`Program::normalise`]:
///
/// * **W1** a block is allocated only while its number is not alive;
/// * **W2** a block is freed, used or copied only while it is alive;
/// * **W3** a stream is named only while it is open, and opened only while it is not; streams `0 .. streams` are open at
///   the start; closing one leaves its blocks alive;
/// * **W4** pinned memory is freed by a plain free and shared with no stream; a copy has two different blocks, one of them device memory, and is no
///   longer than either.
///
/// Events need no rule: one never recorded is legal everywhere. Sizes, alignments and limits need none either: absurd
/// requests are part of the language, the allocator answers them with an error.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Program {
    /// A name for reports; may be empty.
    pub name: String,
    /// How many streams are open at the start, numbered from 0.
    pub streams: u16,
    /// The operations.
    pub steps: Vec<Step>,
}

/// The first step that breaks a rule, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("step {step}: {reason}")]
#[non_exhaustive]
pub struct Fault {
    /// The step, counted from 0.
    pub step: usize,
    /// What is wrong with it.
    pub reason: Reason,
}

/// How a step breaks the rules of a well-formed program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// W1: the block is alive, allocated by this step.
    BlockAlive {
        /// The block.
        block: BlockNo,
        /// The step that allocated it.
        since: usize,
    },
    /// W2: the block was never allocated, or was freed by this step.
    BlockNotAlive {
        /// The block.
        block: BlockNo,
        /// The step that freed it, if any did.
        freed: Option<usize>,
    },
    /// W3: the stream is not open.
    StreamNotOpen {
        /// The stream.
        stream: StreamNo,
    },
    /// W3: the stream is open already.
    StreamOpen {
        /// The stream.
        stream: StreamNo,
    },
    /// W4: pinned memory belongs to no stream's pool.
    PinnedFree {
        /// The block.
        block: BlockNo,
    },
    /// W4: pinned memory belongs to no stream, so it cannot be shared with one.
    PinnedShare {
        /// The block.
        block: BlockNo,
    },
    /// W4: source and target are one block, or both are pinned.
    CopyKinds {
        /// The target.
        to: BlockNo,
        /// The source.
        from: BlockNo,
    },
    /// W4: the copy is longer than the shorter block.
    CopyTooLong {
        /// Requested bytes.
        bytes: u64,
        /// Bytes there are.
        most: u64,
    },
}

impl Reason {
    /// The sentence, with steps named by `place`: by their number, or by the line they were written on.
    pub(super) fn describe(&self, place: &dyn Fn(usize) -> String) -> String {
        match self {
            Reason::BlockAlive { block, since } => {
                format!("{block} is alive since {}: free it first, or give another number", place(*since))
            }
            Reason::BlockNotAlive { block, freed: Some(at) } => {
                format!("{block} is not alive: {} freed it", place(*at))
            }
            Reason::BlockNotAlive { block, freed: None } => {
                format!("{block} is not alive: nothing before this allocates it")
            }
            Reason::StreamNotOpen { stream } => {
                format!("{stream} is not open: open it, or raise the header's count of streams")
            }
            Reason::StreamOpen { stream } => format!("{stream} is open already: close it first"),
            Reason::PinnedFree { block } => {
                format!("{block} is pinned memory, which no stream's pool owns: free it with a plain free")
            }
            Reason::PinnedShare { block } => {
                format!(
                    "{block} is pinned memory, which belongs to no stream: record each use with `record-use`"
                )
            }
            Reason::CopyKinds { to, from } => {
                format!("a copy from {from} to {to} needs two different blocks, one of them device memory")
            }
            Reason::CopyTooLong { bytes, most } => {
                format!("a copy of {bytes} bytes; the shorter block has {most}")
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(&|step| format!("step {step}")))
    }
}

/// The rules W1 to W4 of a [`Program`], for programs that are made step by step: what is alive and open behind the steps so far.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    alive: HashMap<BlockNo, Block>,
    freed: HashMap<BlockNo, usize>,
    open: HashSet<StreamNo>,
    /// Steps judged so far.
    steps: usize,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    pinned: bool,
    since: usize,
}

impl Rules {
    /// At the beginning of a program of so many streams.
    pub fn new(streams: u16) -> Rules {
        Rules { open: (0..streams).map(StreamNo).collect(), ..Rules::default() }
    }

    fn block(&self, block: BlockNo) -> Result<Block, Reason> {
        let freed = || self.freed.get(&block).copied();
        self.alive.get(&block).copied().ok_or_else(|| Reason::BlockNotAlive { block, freed: freed() })
    }

    /// How many steps were judged so far.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Judges the next step. One that breaks a rule changes nothing but the count.
    ///
    /// # Errors
    /// The step's number, and how it breaks a rule.
    pub fn step(&mut self, op: &Op) -> Result<(), Fault> {
        let step = self.steps;
        self.steps += 1;
        self.judge(step, op).map_err(|reason| Fault { step, reason })
    }

    fn judge(&mut self, number: usize, op: &Op) -> Result<(), Reason> {
        let operands = op.operands();
        for stream in [operands.stream, operands.on].into_iter().flatten() {
            match (op, self.open.contains(&stream)) {
                (Op::OpenStream { .. }, true) => return Err(Reason::StreamOpen { stream }),
                (Op::OpenStream { .. }, false) | (_, true) => {}
                (_, false) => return Err(Reason::StreamNotOpen { stream }),
            }
        }
        match *op {
            Op::Alloc { block, bytes, .. } | Op::AllocPinned { block, bytes } => {
                if let Some(b) = self.alive.get(&block) {
                    return Err(Reason::BlockAlive { block, since: b.since });
                }
                let pinned = matches!(op, Op::AllocPinned { .. });
                self.alive.insert(block, Block { bytes, pinned, since: number });
            }
            Op::Free { block } | Op::FreeOn { block, .. } | Op::FreeUnknown { block } => {
                if self.block(block)?.pinned && !matches!(op, Op::Free { .. }) {
                    return Err(Reason::PinnedFree { block });
                }
                self.alive.remove(&block);
                self.freed.insert(block, number);
            }
            Op::Use { block, .. } | Op::RecordUse { block, .. } | Op::RecordUseUntil { block, .. } => {
                self.block(block)?;
            }
            Op::ShareWith { block, .. } if self.block(block)?.pinned => {
                return Err(Reason::PinnedShare { block });
            }
            Op::Copy { to, from, bytes, .. } => {
                let (t, s) = (self.block(to)?, self.block(from)?);
                if to == from || (t.pinned && s.pinned) {
                    return Err(Reason::CopyKinds { to, from });
                }
                let most = t.bytes.min(s.bytes);
                if bytes > most {
                    return Err(Reason::CopyTooLong { bytes, most });
                }
            }
            Op::OpenStream { stream } => {
                self.open.insert(stream);
            }
            Op::CloseStream { stream } => {
                self.open.remove(&stream);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Program {
    /// A program with no steps.
    pub fn new(name: impl Into<String>, streams: u16) -> Program {
        Program { name: name.into(), streams, steps: Vec::new() }
    }

    /// The same streams and name with these steps.
    #[must_use]
    pub fn with_steps(self, steps: Vec<Step>) -> Program {
        Program { steps, ..self }
    }

    /// Adds an operation of thread 0.
    pub fn push(&mut self, op: Op) -> &mut Program {
        self.steps.push(Step::of(op));
        self
    }

    /// Whether the rules W1 to W4 hold.
    ///
    /// # Errors
    /// The first step that breaks one, and how.
    pub fn check(&self) -> Result<(), Fault> {
        let mut rules = Rules::new(self.streams);
        self.steps.iter().try_for_each(|s| rules.step(&s.op))
    }

    /// Whether [`Program::check`] finds nothing.
    pub fn is_well_formed(&self) -> bool {
        self.check().is_ok()
    }

    /// The nearest well-formed program: steps that break a rule are left out, blocks, events and threads are numbered
    /// again in the order in which they appear, and the header counts no stream that nothing names.
    ///
    /// Doing it twice changes nothing more. A well-formed program keeps all its steps.
    #[must_use]
    pub fn normalise(&self) -> Program {
        let mut rules = Rules::new(self.streams);
        let (mut blocks, mut events, mut threads) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut steps = Vec::with_capacity(self.steps.len());
        let mut streams = 0;
        // Later lives of one number become blocks of their own: a reader follows one number through one life.
        let mut next_block = 0u32;
        for s in &self.steps {
            if rules.step(&s.op).is_err() {
                continue;
            }
            if let Op::Alloc { block, .. } | Op::AllocPinned { block, .. } = s.op {
                blocks.insert(block, BlockNo(next_block));
                next_block += 1;
            }
            let op = s.op.clone_with(&mut |operand| match operand {
                // W2 holds here, so an allocation came first and the number is in the table.
                Operand::Block(b) | Operand::Source(b) => *b = blocks[&*b],
                Operand::Event(e) => {
                    let next = events.len() as u16;
                    e.0 = *events.entry(*e).or_insert(next);
                }
                Operand::Stream(s) | Operand::On(s) => {
                    if s.0 < self.streams {
                        streams = streams.max(s.0 + 1);
                    }
                }
            });
            let next = threads.len() as u16;
            let thread = ThreadNo(*threads.entry(s.thread).or_insert(next));
            steps.push(Step { thread, op });
        }
        Program { name: self.name.clone(), streams, steps }
    }
}
