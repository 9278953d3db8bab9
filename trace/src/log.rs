//! A recorded log of allocations and frees, flat: 24 bytes a call, so that a million calls are 24 MB.
//!
//! A [`Program`] says everything a user does and is made to be read; a log says only who allocated and freed what, and
//! is made to be long. Blocks are numbered in the order of their allocations, each number once; streams and threads are
//! numbered from 0, with the recorder's own values kept beside. This module knows no file format but the one it writes.

use super::Event;
use super::op::{BlockNo, Op, Step, StreamNo, ThreadNo};
use super::program::Program;
use hashbrown::HashMap;
use std::io::{self, Write};

/// What a call of a log does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Allocates.
    Alloc,
    /// Frees.
    Free,
}

/// One call of a log, in 24 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Call {
    micros: u64,
    bytes: u64,
    /// The block's number; the top bit is set in a free.
    block: u32,
    stream: StreamNo,
    thread: ThreadNo,
}

const FREE: u32 = 1 << 31;
const _: () = assert!(size_of::<Call>() == 24);

impl Call {
    /// Blocks in one log at most.
    pub const BLOCKS_MOST: u32 = FREE;

    /// An allocation of `bytes` at `micros` microseconds.
    ///
    /// # Panics
    /// When the block's number is [`Call::BLOCKS_MOST`] or more.
    pub fn alloc(block: BlockNo, bytes: u64, stream: StreamNo, thread: ThreadNo, micros: u64) -> Call {
        assert!(block.0 < FREE, "{block} in a log, which holds 2^31 blocks");
        Call { micros, bytes, block: block.0, stream, thread }
    }
    /// A free of a block that was allocated with `bytes`, at `micros` microseconds.
    ///
    /// # Panics
    /// When the block's number is [`Call::BLOCKS_MOST`] or more.
    pub fn free(block: BlockNo, bytes: u64, stream: StreamNo, thread: ThreadNo, micros: u64) -> Call {
        let call = Call::alloc(block, bytes, stream, thread, micros);
        Call { block: call.block | FREE, ..call }
    }
    /// Whether it allocates or frees.
    pub fn action(&self) -> Action {
        if self.block & FREE == 0 { Action::Alloc } else { Action::Free }
    }
    /// The block.
    pub fn block(&self) -> BlockNo {
        BlockNo(self.block & !FREE)
    }
    /// The requested length of the block, in a free too.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// The stream of the call. A free's may be another than its allocation's.
    pub fn stream(&self) -> StreamNo {
        self.stream
    }
    /// The same call on another stream.
    #[doc(hidden)]
    #[must_use]
    pub fn with_stream(self, stream: StreamNo) -> Call {
        Call { stream, ..self }
    }
    /// The host thread of the call.
    pub fn thread(&self) -> ThreadNo {
        self.thread
    }
    /// Microseconds since the recorder's start.
    pub fn micros(&self) -> u64 {
        self.micros
    }
}

impl core::fmt::Debug for Call {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let verb = match self.action() {
            Action::Alloc => "alloc",
            Action::Free => "free",
        };
        let Call { micros, bytes, stream, thread, .. } = self;
        write!(f, "{thread}: {verb} {} {bytes} on {stream} at {micros} us", self.block())
    }
}

/// Allocations and frees in the order in which they were made.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Log {
    /// A name for reports: the file's, without its endings.
    pub name: String,
    /// The calls.
    pub calls: Vec<Call>,
    /// The recorder's own value for each stream number. Number 0 is always the value 0, the default stream.
    pub streams: Vec<u64>,
    /// The recorder's own value for each thread number.
    pub threads: Vec<u64>,
    /// Entries that were read and left out: failed allocations, empty ones at the null address, frees of blocks from
    /// before the recording.
    pub skipped: u64,
}

/// What a log amounts to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Info {
    /// The log's name.
    pub name: String,
    /// All calls.
    pub calls: u64,
    /// Of these, allocations.
    pub allocations: u64,
    /// Streams that are named.
    pub streams: u64,
    /// Host threads.
    pub threads: u64,
    /// Bytes allocated in all, as requested.
    pub bytes: u64,
    /// The largest allocation, as requested.
    pub largest: u64,
    /// The highest sum of live bytes, as requested.
    pub peak_live: u64,
    /// Highest sum of live bytes, each block rounded up to 512.
    pub peak_live_rounded: u64,
    /// Live bytes at the end, as requested.
    pub live_at_end: u64,
    /// Blocks alive at the end.
    pub blocks_at_end: u64,
    /// Allocations by size: `sizes[k]` had more than 2^(k-1) and at most 2^k granules of 512 bytes; empty ones are in
    /// `sizes[0]`.
    pub sizes: Vec<u64>,
    /// Microseconds from the first call to the last.
    pub micros: u64,
    /// Entries left out.
    pub skipped: u64,
}

impl Log {
    /// These calls, with the recorder's own values for the streams and threads that they name.
    pub fn new(name: impl Into<String>, calls: Vec<Call>, streams: Vec<u64>, threads: Vec<u64>) -> Log {
        Log { name: name.into(), calls, streams, threads, skipped: 0 }
    }
    /// Sums over all calls. Sums above 2^64 stop there.
    pub fn info(&self) -> Info {
        let mut info = Info {
            name: self.name.clone(),
            calls: self.calls.len() as u64,
            skipped: self.skipped,
            ..Info::default()
        };
        let (mut live, mut live_rounded) = (0u64, 0u64);
        let mut streams = vec![false; self.streams.len()];
        let mut threads = vec![false; self.threads.len()];
        for call in &self.calls {
            let note = |seen: &mut Vec<bool>, n: u16| {
                if usize::from(n) >= seen.len() {
                    seen.resize(usize::from(n) + 1, false);
                }
                seen[usize::from(n)] = true;
            };
            note(&mut streams, call.stream.0);
            note(&mut threads, call.thread.0);
            let granules = call.bytes.div_ceil(512);
            let rounded = granules.saturating_mul(512);
            match call.action() {
                Action::Alloc => {
                    info.allocations += 1;
                    info.blocks_at_end += 1;
                    info.bytes = info.bytes.saturating_add(call.bytes);
                    info.largest = info.largest.max(call.bytes);
                    live = live.saturating_add(call.bytes);
                    live_rounded = live_rounded.saturating_add(rounded);
                    info.peak_live = info.peak_live.max(live);
                    info.peak_live_rounded = info.peak_live_rounded.max(live_rounded);
                    let bin = granules.max(1).next_power_of_two().trailing_zeros() as usize;
                    if bin >= info.sizes.len() {
                        info.sizes.resize(bin + 1, 0);
                    }
                    info.sizes[bin] += 1;
                }
                Action::Free => {
                    info.blocks_at_end = info.blocks_at_end.saturating_sub(1);
                    live = live.saturating_sub(call.bytes);
                    live_rounded = live_rounded.saturating_sub(rounded);
                }
            }
        }
        info.live_at_end = live;
        info.streams = streams.iter().filter(|s| **s).count() as u64;
        info.threads = threads.iter().filter(|t| **t).count() as u64;
        let times = self.calls.iter().map(Call::micros);
        info.micros = times.clone().max().unwrap_or(0) - times.min().unwrap_or(0);
        info
    }

    /// The same calls as a program: allocations and frees only. A free on another stream than its allocation's becomes
    /// a free on that stream.
    pub fn to_program(&self) -> Program {
        let mut homes = HashMap::new();
        let streams = self.streams.len().try_into().unwrap_or(u16::MAX);
        let mut program = Program::new(self.name.clone(), streams);
        if self.streams.len() > usize::from(streams) {
            // As many as a program begins with; the last number of all is beyond.
            program.push(Op::OpenStream { stream: StreamNo(streams) });
        }
        program.steps.extend(self.calls.iter().map(|call| {
            let (block, stream) = (call.block(), call.stream);
            let op = match call.action() {
                Action::Alloc => {
                    homes.insert(block, stream);
                    Op::Alloc { block, bytes: call.bytes, align: None, stream }
                }
                Action::Free if homes.remove(&block) == Some(stream) => Op::Free { block },
                Action::Free => Op::FreeOn { block, stream },
            };
            Step { thread: call.thread, op }
        }));
        program
    }

    /// The allocations and frees of device memory in a program, and how many steps were left out: all others. The step's
    /// number stands for the time.
    ///
    /// # Errors
    /// When the program is not well-formed.
    pub fn from_program(program: &Program) -> Result<(Log, usize), super::Fault> {
        program.check()?;
        let mut log = Log { name: program.name.clone(), ..Log::default() };
        let mut alive: HashMap<BlockNo, (BlockNo, u64, StreamNo)> = HashMap::new();
        let (mut next, mut streams, mut threads) = (0u32, u64::from(program.streams.max(1)), 1);
        for (step, s) in program.steps.iter().enumerate() {
            let micros = step as u64;
            match s.op {
                Op::Alloc { block, bytes, stream, .. } => {
                    let number = BlockNo(next);
                    next += 1;
                    alive.insert(block, (number, bytes, stream));
                    log.calls.push(Call::alloc(number, bytes, stream, s.thread, micros));
                    streams = streams.max(u64::from(stream.0) + 1);
                }
                Op::Free { block } | Op::FreeOn { block, .. } | Op::FreeUnknown { block } => {
                    let Some((number, bytes, home)) = alive.remove(&block) else { continue };
                    let stream = s.op.operands().stream.unwrap_or(home);
                    log.calls.push(Call::free(number, bytes, stream, s.thread, micros));
                    streams = streams.max(u64::from(stream.0) + 1);
                }
                _ => continue,
            }
            threads = threads.max(u64::from(s.thread.0) + 1);
        }
        log.streams = (0..streams).collect();
        log.threads = (0..threads).collect();
        let left_out = program.steps.len() - log.calls.len();
        Ok((log, left_out))
    }

    /// The allocations and frees among recorded events; the event's number stands for the time. Frees of blocks that
    /// were allocated before the first event are left out and counted as skipped.
    pub fn from_events<'a>(name: &str, events: impl IntoIterator<Item = &'a (u64, Event)>) -> Log {
        let mut log = Log::new(name, Vec::new(), vec![0], vec![0]);
        let mut numbers: HashMap<u64, StreamNo> = HashMap::new();
        numbers.insert(0, StreamNo(0));
        let mut alive = HashMap::new();
        let mut next = 0u32;
        for (at, event) in events {
            let mut number = |stream: u64| {
                *numbers.entry(stream).or_insert_with(|| {
                    log.streams.push(stream);
                    StreamNo((log.streams.len() - 1).try_into().unwrap_or(u16::MAX))
                })
            };
            match event {
                Event::Allocate { id, requested, stream, .. } => {
                    let block = BlockNo(next);
                    next += 1;
                    alive.insert(*id, (block, *requested));
                    let stream = number(stream.0);
                    log.calls.push(Call::alloc(block, *requested, stream, ThreadNo(0), *at));
                }
                Event::Free { id, stream, .. } => match alive.remove(id) {
                    Some((block, requested)) => {
                        let stream = number(stream.0);
                        log.calls.push(Call::free(block, requested, stream, ThreadNo(0), *at));
                    }
                    None => log.skipped += 1,
                },
                _ => {}
            }
        }
        log
    }

    /// Writes the log in RMM's format, with block numbers, from 1, for pointers. The importer reads the same calls back; of the streams and
    /// threads those that calls name, and the default stream, by the recorder's own values.
    ///
    /// # Errors
    /// What the writer returns.
    pub fn write_rmm(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "Thread,Time,Action,Pointer,Size,Stream")?;
        for call in &self.calls {
            let verb = match call.action() {
                Action::Alloc => "allocate",
                Action::Free => "free",
            };
            let own = |values: &[u64], n: u16| values.get(usize::from(n)).copied().unwrap_or(n.into());
            let (thread, stream) = (own(&self.threads, call.thread.0), own(&self.streams, call.stream.0));
            // A null pointer of no bytes is an allocation that RMM has not made.
            let pointer = u64::from(call.block().0) + 1;
            writeln!(out, "{thread},{},{verb},{pointer},{},{stream}", call.micros, call.bytes)?;
        }
        Ok(())
    }
}
