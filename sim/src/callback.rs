//! Host functions: the CPU's own work in a stream's order, with the pinned bytes that it reads and writes.
//!
//! A host function is an operation of its stream (E5). The simulator cannot see what its code accesses, so the function declares it, as a
//! kernel does, and is judged by that. The CPU reaches only pinned memory: that is all it can declare. This file does not
//! know when anything runs.

use super::Sim;
use super::call::Call;
use super::exec::{self, Action};
use super::launch::Ranges;
use super::memory::{Backing, Part};
use super::operation::Name;
use super::oracle::AccessKind;
use super::stream::{Booking, SimStream};
use super::world::{Touch, World};
use millpond_driver::DriverResult;
use millpond_driver::units::{Addr, AllocationId};
use millpond_driver::{DriverError, DriverErrorKind};
use std::fmt;

/// A function of the host to run in stream order: a name, its code, and the pinned ranges that the code reads and writes.
/// Any closure becomes one that declares nothing.
///
/// ```
/// use millpond_driver::{Host, HostKind};
/// use millpond_sim::{HostFunction, Sim};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(1 << 30);
/// let (copied, device) = (sim.pin(4096, HostKind::Cached)?, sim.stream()?);
/// sim.host_function(&device, HostFunction::new("parse", || { /* looks at the bytes */ }).reads(copied.addr(), 4096))?;
/// sim.host_function(&device, || println!("and then this"))?;
/// sim.verdict()?;
/// # Ok(()) }
/// ```
#[must_use = "a host function runs once it is queued"]
pub struct HostFunction {
    name: Name,
    ranges: Ranges,
    code: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostFunction({}, {} ranges)", self.name, self.ranges.len())
    }
}

impl<F: FnOnce() + Send + 'static> From<F> for HostFunction {
    fn from(code: F) -> HostFunction {
        HostFunction::new("host function", code)
    }
}

impl HostFunction {
    /// A function that accesses none of the device's memory, so far.
    pub fn new(name: impl Into<Name>, code: impl FnOnce() + Send + 'static) -> HostFunction {
        HostFunction { name: name.into(), ranges: Ranges::new(), code: Box::new(code) }
    }
    /// Declares a pinned range that the code reads. An empty one is left out.
    pub fn reads(self, addr: Addr, bytes: u64) -> HostFunction {
        self.touches(addr, bytes, AccessKind::Read)
    }
    /// Declares a pinned range that the code writes. An empty one is left out.
    pub fn writes(self, addr: Addr, bytes: u64) -> HostFunction {
        self.touches(addr, bytes, AccessKind::Write)
    }
    fn touches(mut self, addr: Addr, bytes: u64, kind: AccessKind) -> HostFunction {
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
    pub fn tag(mut self, allocation: AllocationId) -> HostFunction {
        self.ranges.last_mut().expect("declare a range, then say whose it is").tag = Some(allocation);
        self
    }
}

impl World {
    /// The CPU reaches pinned memory only.
    pub(super) fn demand_reach_of_cpu(&self, addr: Addr, bytes: u64, call: &'static str) -> DriverResult<()> {
        let pinned = |part: &Part| match *part {
            Part::Here { phys, .. } => self.memory.phys(phys).is_some_and(|p| p.backing == Backing::Pinned),
            Part::Hole { .. } => false,
        };
        if self.memory.parts(addr.0, bytes).iter().all(pinned) {
            return Ok(());
        }
        let message =
            format!("{bytes} bytes at {addr} are not pinned memory of this world: the CPU reaches only that");
        Err(DriverError::new(call, 1, DriverErrorKind::InvalidValue, message))
    }
}

impl Sim {
    /// Runs a function of the host in stream order ([E5](crate::oracle#rules-of-order)), on any thread that makes the executor reach it. The ranges that
    /// it declares are judged now, like a kernel's. It must make no driver call, and must not take a lock that a thread holds while it calls the driver; its
    /// drops may notify the device.
    ///
    /// A panic in it, as in a kernel's body, ends it and leaves the operation finished. The panic never leaves a driver
    /// call, which may be in a destructor: the verdict names it ([`MismatchKind::Panicked`](super::MismatchKind::Panicked)), and the next launch, host
    /// function, [`Sim::advance`], [`Sim::tick`], [`Sim::run_until_idle`] or [`Gate::open`](super::Gate::open) resumes the first one.
    ///
    /// # Errors
    /// A declared range is not, or not wholly, pinned by this world. As [`Sim::launch`].
    #[track_caller]
    pub fn host_function(&self, stream: &SimStream, function: impl Into<HostFunction>) -> DriverResult<()> {
        let call = Call::LaunchHostFunc;
        // Kept out here, because what it captured may re-enter the simulator when it is dropped.
        let mut function = Some(function.into());
        let queued = self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            let declared = function.iter().flat_map(|f| &f.ranges);
            for range in declared {
                w.demand_reach_of_cpu(Addr(range.addr), range.bytes, call.name())?;
            }
            if w.recorded(key, call)? {
                return Ok(());
            }
            let Some(HostFunction { name, ranges, code }) = function.take() else { return Ok(()) };
            w.report_operation(key, &name, &ranges);
            w.submit(key, Booking::instant(), Action::Host { name, code });
            Ok(())
        });
        exec::pass_on(&self.lock());
        queued
    }
}
