//! Kernels with declared reads and writes, gates, and mismatches of the contents.
//!
//! A [`Launch`] declares the ranges that a kernel accesses: the oracle judges them at submission, and the body, if there is
//! one, is restricted to them when it runs. The built-in pattern kernels are the second, independent oracle: a range written
//! with a word of its generation must still hold it when checked, whatever the executor did in between.
//!
//! [`Sim::launch`] is safe because no Rust reference points into device memory. Pinned memory is the process's own, so a
//! kernel that accesses it is launched by [`Sim::launch_anywhere`], whose caller promises that this is sound; what [`Sim::launch`]
//! queued does not reach pinned memory even if it was pinned later. This file does not know the order of operations.

use super::Sim;
use super::call::Call;
use super::exec::{self, Action};
use super::memory::{Backing, Reach};
use super::mismatch::{Mismatch, MismatchKind};
use super::operation::Name;
use super::oracle::{AccessKind, StreamKey};
use super::rate::Engine;
use super::stream::{Booking, SimStream};
use super::world::{Touch, World, invalid};
use millpond_driver::DriverResult;
use millpond_driver::units::{Addr, AllocationId};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::fmt;

/// A body: what the kernel does to its declared ranges when it runs.
pub(super) type KernelBody = Box<dyn FnOnce(&mut KernelMemory<'_>) + Send>;
pub(super) type Ranges = SmallVec<[Touch; 2]>;

/// A kernel as its stream's queue has it: its body gets the declared ranges of the world that runs it.
pub(super) fn kernel(name: Name, ranges: Ranges, reach: Reach, body: KernelBody) -> Action {
    let called = name.clone();
    let code = Box::new(move |world: &RefCell<World>, at: (StreamKey, u64)| {
        body(&mut KernelMemory::new(world, at, called, ranges, reach));
    });
    Action::Kernel { name, code }
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
/// use millpond_driver::Memory;
/// use millpond_sim::{Launch, Sim};
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
    /// A kernel that accesses nothing and does nothing, so far.
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
    /// Names the allocation that the range declared last was meant for, so that the oracle finds a use after free even
    /// if the bytes have a new owner.
    ///
    /// # Panics
    /// When no range has been declared yet.
    pub fn tag(mut self, allocation: AllocationId) -> Launch {
        self.ranges.last_mut().expect("declare a range, then say whose it is").tag = Some(allocation);
        self
    }
    /// Sets how long the kernel takes, in virtual nanoseconds; by default all its bytes over the memory's bandwidth.
    pub fn takes(mut self, nanoseconds: u64) -> Launch {
        self.nanos = Some(nanoseconds);
        self
    }
    /// What the kernel does when it runs. It may access only declared ranges and must make no driver call. If it panics, the
    /// rest is not done: see [`Sim::host_function`]. It replaces what
    /// a built-in kernel would do.
    pub fn body(mut self, body: impl FnOnce(&mut KernelMemory<'_>) + Send + 'static) -> Launch {
        self.does = Does::Code(Box::new(body));
        self
    }
}

/// Memory as a kernel's body accesses it: the ranges its launch declared.
///
/// An access outside them is not done (a read gives zeroes) and becomes a [`Mismatch`].
#[derive(Debug)]
pub struct KernelMemory<'a> {
    cell: &'a RefCell<World>,
    stream: StreamKey,
    position: u64,
    name: Name,
    ranges: Ranges,
    reach: Reach,
}

impl<'a> KernelMemory<'a> {
    fn new(
        cell: &'a RefCell<World>,
        (stream, position): (StreamKey, u64),
        name: Name,
        ranges: Ranges,
        reach: Reach,
    ) -> KernelMemory<'a> {
        KernelMemory { cell, stream, position, name, ranges, reach }
    }

    /// The first address of a range that was not declared for this access. Adjacent declared ranges count as one.
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
        let reach = self.reach;
        if !self.touch(addr, bytes, AccessKind::Read, |w| w.memory.read_bytes(addr.0, into, reach)) {
            into.fill(0);
        }
    }
    /// Writes bytes.
    pub fn write(&mut self, addr: Addr, from: &[u8]) {
        let reach = self.reach;
        self.touch(addr, from.len() as u64, AccessKind::Write, |w| w.memory.write_bytes(addr.0, from, reach));
    }
    /// Fills a range with a repeating 8-byte word (little endian, beginning at `addr`), however long it is.
    pub fn fill(&mut self, addr: Addr, bytes: u64, word: u64) {
        let reach = self.reach;
        self.touch(addr, bytes, AccessKind::Write, |w| w.memory.write_word(addr.0, bytes, word, reach));
    }
}

impl World {
    /// A safe call may name only device memory: Rust references to pinned memory may exist.
    pub(super) fn refuse_pinned(&self, addr: u64, bytes: u64, call: Call) -> DriverResult<()> {
        let mut touched = self.memory.all_in(addr, addr.saturating_add(bytes));
        let pinned = touched.find(|(_, m)| bytes > 0 && m.backing == Backing::Pinned);
        let pinned = pinned.filter(|_| !mutant!(SimPinnedUnrefused));
        let Some((start, m)) = pinned else { return Ok(()) };
        Err(invalid(
            call,
            format!(
                "{bytes} bytes at {addr:#x} touch the pinned memory {start:#x}..{:#x}, which Rust references may lead to: \
                 use launch_anywhere, copy_anywhere or the copies of Copies, which are unsafe, or copies of arrays",
                m.end
            ),
        ))
    }
}

impl World {
    /// The host opened a gate: the gate ends now, and operations that waited for nothing else get their times.
    fn opened(&mut self, gate: u32) {
        self.gates[gate as usize] = true;
        let host_now = self.host_now;
        // Inside a host function it is that function's time.
        let now = if self.callbacks > 0 { host_now.max(self.runs_at) } else { host_now };
        let mut put_off = std::mem::take(&mut self.put_off);
        let mut streams = SmallVec::<[StreamKey; 4]>::new();
        let ends = put_off.opened(gate, now, |op| {
            let end = self.book(op.stream, op.load, host_now, op.ready.at);
            // It has not run, so its stream exists.
            let stream = self.stream_mut(op.stream);
            let place = op.position - stream.done - 1 - u64::from(stream.running);
            stream.queue[place as usize].finish = end;
            streams.push(op.stream);
            end
        });
        self.put_off = put_off;
        for key in streams {
            self.stream_mut(key).free_at.learn(&ends);
        }
        if !ends.is_empty() {
            self.events.values_mut().for_each(|event| event.finish.learn(&ends));
        }
    }
}

impl Sim {
    /// Launches a kernel on a stream. The declared ranges are judged now; the body runs when the executor says so.
    ///
    /// # Errors
    /// A declared range is pinned memory and the kernel does something (a kernel that only declares is judged and accesses nothing):
    /// see [`Sim::launch_anywhere`]. The stream is destroyed or belongs to another device. A planted fault. Nothing was
    /// then queued.
    #[track_caller]
    pub fn launch(&self, stream: &SimStream, launch: Launch) -> DriverResult<()> {
        let queued = self.queue_launch(stream, launch, Reach::Device);
        exec::pass_on(&self.lock());
        queued
    }

    /// Launches a kernel that may also access pinned memory ([`Sim::launch`]).
    ///
    /// # Errors
    /// As [`Sim::launch`], except that pinned ranges are allowed.
    ///
    /// # Safety
    /// Until the kernel has run, no Rust reference to bytes of a pinned range that it declares as read may change them, and
    /// there is no Rust reference to those that it declares as written; the ranges stay pinned.
    #[allow(unsafe_code, reason = "pinned memory is the process's own, where references may lead")]
    #[track_caller]
    pub unsafe fn launch_anywhere(&self, stream: &SimStream, launch: Launch) -> DriverResult<()> {
        let queued = self.queue_launch(stream, launch, Reach::Anywhere);
        exec::pass_on(&self.lock());
        queued
    }

    #[track_caller]
    fn queue_launch(&self, stream: &SimStream, launch: Launch, reach: Reach) -> DriverResult<()> {
        let call = Call::LaunchKernel;
        // Kept out here, because what a body captured may re-enter the simulator when it is dropped.
        let mut launch = Some(launch);
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            if reach == Reach::Device
                && let Some(launch) = &launch
                && !matches!(launch.does, Does::Nothing)
            {
                launch.ranges.iter().try_for_each(|r| w.refuse_pinned(r.addr, r.bytes, call))?;
            }
            if w.recorded(key, call)? {
                return Ok(());
            }
            let Some(Launch { name, ranges, nanos, does }) = launch.take() else { return Ok(()) };
            w.report_operation(key, &name, &ranges);
            let bytes = ranges.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
            let nanos = nanos.unwrap_or_else(|| Engine::Compute.nanos(bytes));
            let tag = ranges.first().and_then(|r| r.tag);
            let action = match does {
                Does::Nothing => Action::Mark,
                Does::Write(addr, bytes, word) => Action::Write { name, addr, bytes, word, reach },
                Does::Check(addr, bytes, word) => Action::Check { name, addr, bytes, word, tag, reach },
                Does::Code(body) => kernel(name, ranges, reach, body),
            };
            w.submit(key, Booking::on(Engine::Compute, nanos), action);
            Ok(())
        })
    }

    /// Puts an endless kernel on a stream: work behind it does not run until the gate is opened. A host wait for it
    /// fails instead of hanging.
    ///
    /// # Errors
    /// As [`Sim::launch`].
    #[track_caller]
    pub fn gate(&self, stream: &SimStream) -> DriverResult<Gate> {
        let call = Call::LaunchKernel;
        let gate = self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            let gate = w.gates.len() as u32;
            w.gates.push(false);
            if !w.recorded(key, call)? {
                w.report_operation(key, "gate", &[]);
                w.submit(key, Booking::instant(), Action::Gate(gate));
            }
            Ok(gate)
        })?;
        Ok(Gate { sim: self.clone(), gate })
    }

    /// The mismatches of the contents so far, in order of execution: the first 64, and the total count.
    pub fn mismatches(&self) -> (Vec<Mismatch>, u64) {
        let guard = self.lock();
        let world = guard.borrow();
        (world.mismatches.clone(), world.mismatches_total)
    }
}

/// An endless kernel, until opened.
#[derive(Debug)]
#[must_use = "a dropped gate can never be opened"]
pub struct Gate {
    sim: Sim,
    gate: u32,
}

impl Gate {
    /// Lets the stream continue; under the early and random schedules what can run now may run at once. In virtual time the gate is over
    /// now, by the host's clock, or when what is queued before it is.
    pub fn open(self) {
        let guard = self.sim.lock();
        guard.borrow_mut().opened(self.gate);
        exec::woken(&guard);
        exec::pass_on(&guard);
    }
}
