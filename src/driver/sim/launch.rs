//! Kernels with declared reads and writes, host functions, gates; and what the contents convicted.
//!
//! A [`Launch`] declares the ranges that a kernel touches: the oracle judges them at submission, and the body, if there is
//! one, is held to them when it runs. The built-in pattern kernels are the second, independent oracle: a range written
//! with a word of its generation must still hold it when checked, whatever the executor did in between. This file does
//! not know the order of things.

use super::Sim;
use super::call::Call;
use super::exec::{self, Action, Name};
use super::oracle::{AccessKind, StreamKey};
use super::rate::Engine;
use super::stream::{Booking, SimStream};
use super::world::{Touch, World};
use crate::driver::DriverResult;
use crate::units::{Addr, AllocationId, StreamId};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::fmt;

/// A body: what the kernel does to its declared ranges when it runs.
pub(super) type KernelBody = Box<dyn FnOnce(&mut KernelMemory<'_>) + Send>;
pub(super) type Ranges = SmallVec<[Touch; 2]>;

/// A kernel in its stream's queue.
pub(super) struct Kernel {
    pub(super) name: Name,
    pub(super) ranges: Ranges,
    pub(super) body: KernelBody,
}

enum Does {
    Nothing,
    /// Writes a repeating word: address, bytes, word.
    Write(u64, u64, u64),
    /// Checks for a repeating word.
    Check(u64, u64, u64),
    Code(KernelBody),
}

/// A kernel to launch: a name, the ranges it reads and writes, and what it does.
///
/// ```
/// use millpond::driver::{Memory, sim::{Launch, Sim}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(1 << 30);
/// let (range, stream) = (sim.allocate(4096)?, sim.stream()?);
/// sim.launch(&stream, Launch::write_pattern(range.addr(), 4096, 0xABCD))?;
/// sim.launch(&stream, Launch::new("add one").reads(range.addr(), 8).writes(range.addr(), 8).body({
///     let at = range.addr();
///     move |memory| {
///         let mut word = [0; 8];
///         memory.read(at, &mut word);
///         memory.write(at, &(u64::from_le_bytes(word) + 1).to_le_bytes());
///     }
/// }))?;
/// sim.launch(&stream, Launch::check_pattern(range.addr(), 8, 0xABCE))?;
/// sim.verdict()?;
/// # Ok(()) }
/// ```
#[must_use = "a kernel runs once it is launched"]
pub struct Launch {
    name: Name,
    ranges: Ranges,
    nanos: Option<u64>,
    does: Does,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launch({}, {} ranges)", self.name, self.ranges.len())
    }
}

impl Launch {
    /// A kernel that touches nothing and does nothing, so far.
    pub fn new(name: impl Into<Name>) -> Launch {
        Launch { name: name.into(), ranges: Ranges::new(), nanos: None, does: Does::Nothing }
    }
    /// The built-in kernel that writes a range with a repeating 8-byte word (little endian, beginning at `addr`).
    pub fn write_pattern(addr: Addr, bytes: u64, word: u64) -> Launch {
        Launch { does: Does::Write(addr.0, bytes, word), ..Launch::new("write pattern").writes(addr, bytes) }
    }
    /// The built-in kernel that checks that a range holds a repeating word, and reports a [`Mismatch`] if not.
    pub fn check_pattern(addr: Addr, bytes: u64, word: u64) -> Launch {
        Launch { does: Does::Check(addr.0, bytes, word), ..Launch::new("check pattern").reads(addr, bytes) }
    }
    /// Declares a range that the kernel reads. An empty one is left out.
    pub fn reads(self, addr: Addr, bytes: u64) -> Launch {
        self.touches(addr, bytes, AccessKind::Read)
    }
    /// Declares a range that the kernel writes. An empty one is left out.
    pub fn writes(self, addr: Addr, bytes: u64) -> Launch {
        self.touches(addr, bytes, AccessKind::Write)
    }
    fn touches(mut self, addr: Addr, bytes: u64, kind: AccessKind) -> Launch {
        if bytes > 0 {
            self.ranges.push(Touch { addr: addr.0, bytes, kind, tag: None });
        }
        self
    }
    /// Says which allocation the range declared last was compiled against, so that the oracle finds a use after free even
    /// where the bytes have a new owner.
    ///
    /// # Panics
    /// When no range was declared yet.
    pub fn tag(mut self, allocation: AllocationId) -> Launch {
        self.ranges.last_mut().expect("declare a range, then say whose it is").tag = Some(allocation);
        self
    }
    /// Says how long the kernel takes, in virtual nanoseconds; by default all its bytes over the memory's bandwidth.
    pub fn takes(mut self, nanoseconds: u64) -> Launch {
        self.nanos = Some(nanoseconds);
        self
    }
    /// What the kernel does when it runs. It may touch declared ranges only and may make no driver call. It replaces what
    /// a built-in kernel would do.
    pub fn body(mut self, body: impl FnOnce(&mut KernelMemory<'_>) + Send + 'static) -> Launch {
        self.does = Does::Code(Box::new(body));
        self
    }
}

/// Memory as a kernel's body sees it: the ranges its launch declared.
///
/// An access outside them is not done (a read gives zeroes) and becomes a [`Mismatch`].
#[derive(Debug)]
pub struct KernelMemory<'a> {
    cell: &'a RefCell<World>,
    stream: StreamKey,
    position: u64,
    name: Name,
    ranges: Ranges,
}

impl<'a> KernelMemory<'a> {
    pub(super) fn new(
        cell: &'a RefCell<World>,
        stream: StreamKey,
        position: u64,
        name: Name,
        ranges: Ranges,
    ) -> KernelMemory<'a> {
        KernelMemory { cell, stream, position, name, ranges }
    }

    /// The first address of a range that was not declared so. Declared ranges may continue each other.
    fn undeclared(&self, addr: u64, bytes: u64, kind: AccessKind) -> Option<u64> {
        let end = addr.saturating_add(bytes);
        let mut at = addr;
        while at < end {
            let covers = |r: &&Touch| r.kind == kind && r.addr <= at && at < r.addr.saturating_add(r.bytes);
            match self.ranges.iter().filter(covers).map(|r| r.addr.saturating_add(r.bytes)).max() {
                Some(to) => at = to,
                None => return Some(at),
            }
        }
        None
    }

    fn touch(
        &mut self,
        addr: Addr,
        bytes: u64,
        kind: AccessKind,
        access: impl FnOnce(&mut World) -> Result<(), u64>,
    ) -> bool {
        let undeclared = self.undeclared(addr.0, bytes, kind);
        let mut world = self.cell.borrow_mut();
        let (at, what) = match undeclared {
            Some(at) => (at, MismatchKind::Undeclared),
            None => match access(&mut world) {
                Ok(()) => return true,
                Err(hole) => (hole, MismatchKind::Unmapped),
            },
        };
        world.report(Some(self.stream), self.position, self.name.clone(), Addr(at), what, None);
        false
    }

    /// Reads bytes.
    pub fn read(&mut self, addr: Addr, into: &mut [u8]) {
        let bytes = into.len() as u64;
        if !self.touch(addr, bytes, AccessKind::Read, |w| w.memory.read_bytes(addr.0, into)) {
            into.fill(0);
        }
    }
    /// Writes bytes.
    pub fn write(&mut self, addr: Addr, from: &[u8]) {
        self.touch(addr, from.len() as u64, AccessKind::Write, |w| w.memory.write_bytes(addr.0, from));
    }
    /// Fills a range with a repeating 8-byte word (little endian, beginning at `addr`), however long it is.
    pub fn fill(&mut self, addr: Addr, bytes: u64, word: u64) {
        self.touch(addr, bytes, AccessKind::Write, |w| w.memory.write_word(addr.0, bytes, word));
    }
}

/// What went wrong when an operation ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MismatchKind {
    /// The bytes were not what they should have been: somebody wrote in between, or nobody had written yet.
    Content {
        /// The repeating word that was expected; its first byte is at the beginning of the range.
        expected: u64,
        /// The eight bytes found from the address on, as a word; fewer at the end of the range.
        found: u64,
        /// How far into the range the difference begins, in bytes.
        offset: u64,
    },
    /// Nothing was mapped there, or access was not given, when the operation ran.
    Unmapped,
    /// A kernel's body touched bytes that its launch did not declare.
    Undeclared,
}

/// An operation that met the wrong bytes, or none, when it ran: the second oracle's finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The operation's name.
    pub operation: Name,
    /// The stream it ran on; `None` for what an allocator handed out.
    pub stream: Option<StreamId>,
    /// Its position there, as the oracle counts: the stream's first operation has 1, records and waits have none.
    pub position: u64,
    /// The first wrong address.
    pub addr: Addr,
    /// The allocation it was launched for, if the launch said so.
    pub allocation: Option<AllocationId>,
    /// What was wrong.
    pub kind: MismatchKind,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if let Some(stream) = self.stream {
            write!(f, " on {stream}, position {}", self.position)?;
        }
        if let Some(id) = self.allocation {
            write!(f, ", for allocation {id}")?;
        }
        let at = self.addr;
        match self.kind {
            MismatchKind::Content { expected, found, offset } => write!(
                f,
                ": at {at}, {offset} bytes into its range, found the bytes {:02x?} instead of the pattern {:02x?}: another operation ran between the write and this check, or this one ran before its data was there",
                found.to_le_bytes(),
                expected.to_le_bytes()
            ),
            MismatchKind::Unmapped => write!(
                f,
                ": nothing usable is mapped at {at}: unmapped or freed too early, or set_access was not called after the map"
            ),
            MismatchKind::Undeclared => {
                write!(
                    f,
                    ": its body touched {at}, which the launch did not declare so: declare it with reads() or writes()"
                )
            }
        }
    }
}

/// Mismatches kept; the others are counted.
const MISMATCHES_KEPT: usize = 64;

impl World {
    fn report(
        &mut self,
        stream: Option<StreamKey>,
        position: u64,
        operation: Name,
        addr: Addr,
        kind: MismatchKind,
        allocation: Option<AllocationId>,
    ) {
        self.mismatches_total += 1;
        if self.mismatches.len() < MISMATCHES_KEPT {
            let stream = stream.map(|s| StreamId(u64::from(s.0) + 1));
            self.mismatches.push(Mismatch { operation, stream, position, addr, allocation, kind });
        }
    }
    /// A check found other bytes: `at` is the address and its offset in the range, `words` what was expected and found.
    pub(super) fn differs(
        &mut self,
        stream: StreamKey,
        position: u64,
        operation: Name,
        at: (u64, u64),
        words: (u64, u64),
        allocation: Option<AllocationId>,
    ) {
        let kind = MismatchKind::Content { expected: words.0, found: words.1, offset: at.1 };
        self.report(Some(stream), position, operation, Addr(at.0), kind, allocation);
    }
    /// An allocator handed out bytes where nothing is mapped.
    pub(super) fn handed_out(&mut self, id: AllocationId, hole: u64) {
        self.report(
            None,
            0,
            "an allocation was handed out".into(),
            Addr(hole),
            MismatchKind::Unmapped,
            Some(id),
        );
    }
    /// An operation ran into a hole.
    pub(super) fn faulted(&mut self, stream: StreamKey, position: u64, operation: Name, hole: u64) {
        self.report(Some(stream), position, operation, Addr(hole), MismatchKind::Unmapped, None);
    }
}

impl Sim {
    /// Launches a kernel on a stream. The declared ranges are judged now; the body runs when the executor says so.
    ///
    /// # Errors
    /// The stream is destroyed or of another device, or whatever fault was planted; nothing was then queued.
    pub fn launch(&self, stream: &SimStream, launch: Launch) -> DriverResult<()> {
        let call = Call::LaunchKernel;
        // Kept out here, because what a body captured may come back into the simulator when it is dropped.
        let mut launch = Some(launch);
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            if w.recorded(key, call)? {
                return Ok(());
            }
            let Some(Launch { name, ranges, nanos, does }) = launch.take() else { return Ok(()) };
            w.tell(key, &name, &ranges);
            let bytes = ranges.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
            let nanos = nanos.unwrap_or_else(|| Engine::Compute.nanos(bytes));
            let tag = ranges.first().and_then(|r| r.tag);
            let action = match does {
                Does::Nothing => Action::Mark,
                Does::Write(addr, bytes, word) => Action::Write { name, addr, bytes, word },
                Does::Check(addr, bytes, word) => Action::Check { name, addr, bytes, word, tag },
                Does::Code(body) => Action::Kernel(Box::new(Kernel { name, ranges, body })),
            };
            w.submit(key, Booking::on(Engine::Compute, nanos), action);
            Ok(())
        })
    }

    /// Runs a function of the host in stream order (E5), on whichever thread makes the executor reach it. It may make no
    /// driver call, and may not take a lock that a thread holds while it calls the driver; what it drops may tell the
    /// device so. A panic in it is passed on to that thread, with the operation finished.
    ///
    /// # Errors
    /// As [`Sim::launch`].
    pub fn host_function(
        &self,
        stream: &SimStream,
        function: impl FnOnce() + Send + 'static,
    ) -> DriverResult<()> {
        let call = Call::LaunchHostFunc;
        let mut function = Some(Box::new(function));
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            if w.recorded(key, call)? {
                return Ok(());
            }
            let Some(function) = function.take() else { return Ok(()) };
            w.tell(key, "host function", &[]);
            w.submit(key, Booking::instant(), Action::Host(function));
            Ok(())
        })
    }

    /// Puts an endless kernel on a stream: what comes behind it does not run until the gate is opened. A host wait for it
    /// fails instead of hanging.
    ///
    /// # Errors
    /// As [`Sim::launch`].
    pub fn gate(&self, stream: &SimStream) -> DriverResult<Gate> {
        let call = Call::LaunchKernel;
        let gate = self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            let gate = w.gates.len() as u32;
            w.gates.push(false);
            if !w.recorded(key, call)? {
                w.tell(key, "gate", &[]);
                w.submit(key, Booking::instant(), Action::Gate(gate));
            }
            Ok(gate)
        })?;
        Ok(Gate { sim: self.clone(), gate })
    }

    /// What the contents convicted so far, in order of execution: the first 64, and how many there were.
    pub fn mismatches(&self) -> (Vec<Mismatch>, u64) {
        let guard = self.lock();
        let world = guard.borrow();
        (world.mismatches.clone(), world.mismatches_total)
    }
}

/// An endless kernel, until opened.
#[derive(Debug)]
#[must_use = "a gate that nobody can open stays closed"]
pub struct Gate {
    sim: Sim,
    gate: u32,
}

impl Gate {
    /// Lets the stream go on; under the early and random schedules what can run now may run at once.
    pub fn open(self) {
        let guard = self.sim.lock();
        guard.borrow_mut().gates[self.gate as usize] = true;
        exec::woken(&guard);
    }
}
