//! The simulated device: a whole GPU's rules in memory, with an oracle that judges order.
//!
//! A [`Sim`] is one device: plain, virtual and pinned memory, streams, events, copies and kernels, with the behaviour of
//! the real driver, down to handle values that come back and frees that wait. It is public so that programs can be
//! tested on it with or without an allocator. Three parts check:
//!
//! 1. the [`oracle`], which sees every operation at its submission, judges happens-before, which does not depend on when
//!    the device runs;
//! 2. the contents: real bytes, sparse, moved by an executor that runs work as early, as late or as randomly as is legal
//!    ([`Schedule`]); a pattern that is missing when checked is a [`Mismatch`];
//! 3. the [`Ledger`]: every driver call, every host wait, and whatever is left at the end.
//!
//! It does not know heaps, pools or laws: an allocator notifies it by [`Driver::note`] of what it hands out, and of nothing
//! else. It never sleeps, and with one host thread it is deterministic. Virtual time ([`Sim::makespan`]) follows
//! a simple model of engines and prices; it never decides what runs.
//!
//! A simulator is slow without optimisation. To make it fast in a debug build, add to the `Cargo.toml` of your workspace:
//!
//! ```toml
//! [profile.dev.package.millpond-sim]
//! opt-level = 2
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `world` | the shared state behind one lock; the entry of driver calls |
//! | `call` | the calls: names, prices, behaviour |
//! | `stream`, `event`, `capture` | order: queues, what events capture, what captures forbid; beneath them `operation` and `recording`, what is kept of each |
//! | `exec` | when queued work runs |
//! | `memory`, `contents`, `block` | addresses to bytes; sparse bytes; real ones behind pinned ranges |
//! | `plain`, `virt`, `host`, `copy`, `copy2d`, `launch`, `callback` | the operations |
//! | `rate`, `late`, `fault`, `ledger`, `mismatch`, `met`, `verdict` | virtual time, and behind gates; planted faults, accounts, wrong bytes and their list, the judgement |
//!
//! ```
//! use millpond_sim::driver::{Fences, Memory};
//! use millpond_sim::{Launch, Schedule, Sim};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sim = Sim::new(144 << 30).schedule(Schedule::Latest);      // costs nothing: contents are sparse
//! let (data, writer, reader) = (sim.allocate(1 << 20)?, sim.stream()?, sim.stream()?);
//! sim.launch(&writer, Launch::write_pattern(data.addr(), 1 << 20, 42))?;
//! let written = sim.event()?;
//! sim.record(&written, &writer)?;
//! sim.wait(&reader, &written)?;                                  // leave this out, and the verdict says what is missing
//! sim.launch(&reader, Launch::check_pattern(data.addr(), 1 << 20, 42))?;
//! sim.verdict()?;
//! # Ok(()) }
//! ```

/// The traits whose methods are the calls of a device ([`Fences`](driver::Fences), [`Memory`](driver::Memory), [`Mapping`](driver::Mapping) and others), and their types.
// Its macros plant bugs; ordinary builds have none.
#[macro_use]
pub extern crate millpond_driver as driver;

/// Runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod block;
mod call;
mod callback;
mod capture;
mod contents;
mod copy;
mod copy2d;
mod event;
mod exec;
mod fault;
mod host;
mod kernels;
mod late;
mod launch;
mod ledger;
mod memory;
mod met;
mod mismatch;
pub mod null;
mod operation;
pub mod oracle;
mod plain;
mod rate;
mod recording;
#[cfg(unix)]
mod shared;
mod stream;
mod verdict;
mod virt;
mod world;

pub use call::Call;
pub use callback::HostFunction;
pub use capture::Captured;
pub use event::SimEvent;
pub use exec::Schedule;
pub use launch::{Gate, KernelMemory, Launch};
pub use ledger::{Leak, Ledger};
pub use mismatch::{Mismatch, MismatchKind};
pub use stream::SimStream;
pub use verdict::SimVerdict;
pub use virt::SimHandle;

use core::fmt;
use core::time::Duration;
use fault::Meanwhile;
use millpond_driver::DriverError;
use millpond_driver::sync::Arc;
use millpond_driver::units::{Addr, AllocationId};
use millpond_driver::{Caller, DeviceSlot, Driver, DriverResult, HostMemory, Note, RangeUse};
use oracle::{HostKey, PhysKey};
use smallvec::SmallVec;
use std::cell::RefCell;
use world::{Guard, Shared, World};

/// A simulated device. Clones are the same device.
///
/// Accesses that the program did not order are violations, whether or not they happened to go well this time:
///
/// ```
/// use millpond_driver::Memory;
/// use millpond_sim::{Launch, Sim};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(1 << 30);
/// let (data, writer, reader) = (sim.allocate(4096)?, sim.stream()?, sim.stream()?);
/// sim.launch(&writer, Launch::new("produce").writes(data.addr(), 4096))?;
/// sim.launch(&reader, Launch::new("consume").reads(data.addr(), 4096))?;    // no event, no wait
/// let verdict = sim.verdict().expect_err("nothing orders the two");
/// assert!(verdict.to_string().starts_with("1 ordering violation"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sim {
    shared: Arc<Shared>,
    index: usize,
    slot: Arc<DeviceSlot>,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sim(device {})", self.index)
    }
}

/// Construction and configuration. The settings belong to the world: all its devices share them.
impl Sim {
    /// One device with this much memory, in a world of its own. By default it runs work at once, keeps contents, judges with one
    /// host clock, and lets plain segments touch.
    pub fn new(capacity_bytes: u64) -> Sim {
        Sim::devices(1, capacity_bytes).remove(0)
    }

    /// `count` devices with this much memory each, sharing one world: one host, one oracle, streams and events that can
    /// wait for each other. Peer access to another device's memory is always on.
    ///
    /// # Panics
    /// Above 65,534 devices: there are no more addresses.
    pub fn devices(count: u32, capacity_bytes: u64) -> Vec<Sim> {
        assert!(count < 65_535, "{count} devices requested, 65534 fit into the address space");
        let shared = World::with_devices(count, capacity_bytes);
        (0..count as usize).map(|index| Sim { shared: shared.clone(), index, slot: Arc::default() }).collect()
    }

    fn configure(self, what: &str, set: impl FnOnce(&mut World)) -> Sim {
        {
            let guard = self.lock();
            let mut world = guard.borrow_mut();
            assert!(
                world.is_fresh(),
                "{what} is chosen before the first driver call, or two rules would be mixed"
            );
            set(&mut world);
        }
        self
    }

    /// When queued work runs; by default [`Schedule::Earliest`]. May be changed at any time.
    #[must_use]
    pub fn schedule(self, schedule: Schedule) -> Sim {
        self.set_schedule(schedule);
        self
    }
    /// When queued work runs ([`Sim::schedule`]), on a device in use. What is queued stays queued until the
    /// new schedule runs it.
    pub fn set_schedule(&self, schedule: Schedule) {
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        world.schedule = schedule;
        if let Schedule::Random(seed) = schedule {
            world.random = millpond_driver::random::SplitMix64::new(seed);
        }
    }
    /// Whether plain segments are kept 2 MiB apart, so that an overrun accesses unmapped memory. Off by default.
    ///
    /// # Panics
    /// After the first driver call.
    #[must_use]
    pub fn gaps(self, on: bool) -> Sim {
        self.configure("gaps", |w| w.gaps = on)
    }
    /// Whether a free of plain memory waits for the whole device, as `cuMemFree` does. On by default; if off, it waits for
    /// nothing, like stream-ordered memory from a pool of the driver's. Unpinning waits either way.
    ///
    /// # Panics
    /// After the first driver call.
    #[must_use]
    pub fn waiting_frees(self, on: bool) -> Sim {
        self.configure("waiting frees", |w| w.waiting_frees = on)
    }
    /// Whether the devices have virtual memory. On by default; if off, [`Mapping::mapping`](millpond_driver::Mapping::mapping) is `None` and
    /// nothing can be reserved or created.
    ///
    /// # Panics
    /// After the first driver call.
    #[must_use]
    pub fn virtual_memory(self, on: bool) -> Sim {
        self.configure("virtual memory", |w| w.mapping = on.then_some(world::MAPPING))
    }
    /// Gives each host thread a clock of its own: what one thread saw complete, another knows only through
    /// [`Sim::host_edge`]. Without it, host threads are assumed to know of each other in order of arrival.
    ///
    /// # Panics
    /// After the first driver call.
    #[must_use]
    pub fn strict(self) -> Sim {
        self.configure("strict", |w| {
            w.strict = true;
            // Without strict, 0 stands for all of them.
            w.next_host = 0;
            w.restart_oracle(w.oracle.is_some());
        })
    }
    /// Whether the oracle judges. On by default; off is faster.
    ///
    /// # Panics
    /// After the first driver call.
    #[must_use]
    pub fn oracle(self, on: bool) -> Sim {
        self.configure("the oracle", |w| w.restart_oracle(on))
    }
    /// Whether bytes are kept. On by default. If off, reads give zeroes, checks find nothing and copies move nothing.
    ///
    /// # Panics
    /// After the first driver call.
    #[must_use]
    pub fn contents(self, on: bool) -> Sim {
        self.configure("contents", |w| w.memory.contents = on)
    }
    /// How much host memory can be pinned, all devices together. Unlimited by default.
    #[must_use]
    pub fn pinned_capacity(self, bytes: u64) -> Sim {
        self.lock().borrow_mut().pinned_capacity = bytes;
        self
    }
    /// What the device says of the host's memory ([`Host::host_memory`](millpond_driver::Host::host_memory)), from which allocators take their default
    /// limit of pinned memory. Nothing by default. It bounds no call: [`Sim::pinned_capacity`] does.
    #[must_use]
    pub fn with_host_memory(self, memory: HostMemory) -> Sim {
        self.lock().borrow_mut().host_memory = Some(memory);
        self
    }
    /// Lets the host run ahead: by itself, an operation runs only after [`Sim::tick`] was called `ticks` more times. A
    /// host wait runs it even so. [`Schedule::Latest`] is later anyway.
    ///
    /// # Panics
    /// After the first driver call.
    #[must_use]
    pub fn hold(self, ticks: u64) -> Sim {
        self.configure("hold", |w| w.hold.ticks = ticks)
    }
}

/// Running the device by hand, and its virtual time.
impl Sim {
    /// Runs the oldest queued operation of a stream, if what it waits for has run. Returns whether one ran; if so, the
    /// host's virtual time moves to its end, otherwise the host learns nothing.
    ///
    /// # Errors
    /// The stream is destroyed or belongs to another world.
    pub fn advance(&self, stream: &SimStream) -> DriverResult<bool> {
        let guard = self.lock();
        let key = guard.borrow_mut().resolve(&self.shared, stream, Call::StreamGetId)?;
        let end = exec::advance(&guard, key);
        let mut world = guard.borrow_mut();
        world.host_now = world.host_now.max(end.unwrap_or(0));
        drop(world);
        exec::pass_on(&guard);
        Ok(end.is_some())
    }
    /// Runs everything that can run, on all devices of the world, and moves the host's virtual time to its end. Returns
    /// whether nothing is left; otherwise the host learns nothing.
    pub fn run_until_idle(&self) -> bool {
        let guard = self.lock();
        let idle = exec::run_all(&guard);
        guard.borrow_mut().time_passed();
        exec::pass_on(&guard);
        idle
    }
    /// Runs everything that is queued on this device, and the host learns it, as in a free: it is part of a driver call and
    /// not one itself, so captures do not forbid it.
    ///
    /// # Errors
    /// Something cannot run.
    pub fn drain(&self) -> DriverResult<()> {
        event::drain_device(&self.lock(), self.index(), Call::MemFree)
    }
    /// Whether nothing is queued on any device of the world.
    pub fn idle(&self) -> bool {
        self.lock().borrow().active.is_empty()
    }
    /// One step of the host, for [`Sim::hold`]: due work runs.
    pub fn tick(&self) {
        let guard = self.lock();
        exec::tick(&guard);
        exec::pass_on(&guard);
    }
    /// When everything submitted so far is over, in virtual time, including the host's calls. It depends on the schedule only
    /// where the program does, through the answers to its queries.
    ///
    /// The model: a driver call costs the host its measured price. An operation starts when the call is made, its stream
    /// and what it waits for are past and its engine is free, and takes its bytes over the engine's rate (2 TB/s for
    /// kernels, fills and copies inside the device, which share one engine; 55.5 GB/s for copies in and for copies out,
    /// one engine each; a copy to another device takes the sender's engine for copies out and the receiver's for copies in). A host wait moves the host's clock, of which there is one for all threads, to the end of what it waited for. A
    /// query moves no clock, and answers yes only if the host's clock has reached that end. So whatever the host learnt to be complete was complete at
    /// that time, and the result is never shorter than the program's critical path. A gate ends at the host's time at which it is opened; work behind
    /// a closed gate is not counted. [`Sim::hold`] takes no virtual time.
    pub fn makespan(&self) -> Duration {
        self.device_time().max(self.host_time())
    }
    /// The host does something else until this moment of its virtual time ([`Sim::host_time`]), if that is yet to come. It learns nothing of the device by
    /// that, but a query finds more complete.
    pub fn idle_until(&self, at: Duration) {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        world.host_now = world.host_now.max(at);
    }
    /// When the last operation submitted so far, on any device of the world, ends in virtual time.
    pub fn device_time(&self) -> Duration {
        let guard = self.lock();
        Duration::from_nanos(guard.borrow().devices.iter().map(|d| d.last_finish).max().unwrap_or(0))
    }
    /// The host's virtual time: the prices of its calls, and its waits.
    pub fn host_time(&self) -> Duration {
        Duration::from_nanos(self.lock().borrow().host_now)
    }
    /// Errors of destructors on this device, which could not be returned, oldest first; at most 64 are kept.
    pub fn drop_errors(&self) -> Vec<DriverError> {
        self.lock().borrow().devices[self.index].drop_errors.clone()
    }
}

/// What one thread has done and seen, so that another can come after it: see [`Sim::strict`].
#[derive(Clone, Copy, Debug)]
pub struct HostMark(HostKey);

/// Edges between host threads. Without [`Sim::strict`] they add nothing.
impl Sim {
    /// A mark that stands for all that the calling thread did and saw so far.
    pub fn host_mark(&self) -> HostMark {
        let mark = HostMark(self.lock().borrow_mut().new_host());
        self.host_publish(mark);
        mark
    }
    /// Adds what the calling thread did and saw so far to a mark, as an unlock does for the next lock.
    pub fn host_publish(&self, mark: HostMark) {
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        let host = world.host();
        if let Some(oracle) = &mut world.oracle {
            oracle.host_edge(host, mark.0);
        }
    }
    /// What the calling thread does from here on comes after what the mark stands for, as after a lock or a receive.
    pub fn host_edge(&self, mark: HostMark) {
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        let host = world.host();
        if let Some(oracle) = &mut world.oracle {
            oracle.host_edge(mark.0, host);
        }
    }
}

impl Sim {
    fn lock(&self) -> Guard<'_> {
        self.shared.lock()
    }
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
    fn index(&self) -> usize {
        self.index
    }
    /// One driver call: it is counted, allowed or refused, and done; then the schedule runs what it chooses.
    #[track_caller]
    fn call<R>(&self, call: Call, verb: impl FnOnce(&mut World) -> DriverResult<R>) -> DriverResult<R> {
        self.call_and(self.before(call), call, verb, |_, result| Ok(result))
    }
    /// The lock as a call takes it, after what other threads do right before the call.
    fn before(&self, call: Call) -> Guard<'_> {
        let mut guard = self.lock();
        let meanwhile = guard.borrow_mut().faults.meanwhile(call);
        if !meanwhile.is_empty() {
            drop(guard);
            meanwhile.into_iter().for_each(Meanwhile::run);
            guard = self.lock();
        }
        guard
    }
    /// One driver call under a lock taken [`before`](Sim::before) it and held throughout; `then` does what is left after the schedule
    /// has run, such as a wait.
    #[track_caller]
    fn call_and<T, R>(
        &self,
        guard: Guard<'_>,
        call: Call,
        verb: impl FnOnce(&mut World) -> DriverResult<T>,
        then: impl FnOnce(&RefCell<World>, T) -> DriverResult<R>,
    ) -> DriverResult<R> {
        let result = self.begin(&guard, call, verb).and_then(|begun| then(&guard, begun));
        drop(guard);
        if result.is_ok() {
            self.panic_if_planted(call);
        }
        result
    }
    #[track_caller]
    fn begin<R>(
        &self,
        guard: &RefCell<World>,
        call: Call,
        verb: impl FnOnce(&mut World) -> DriverResult<R>,
    ) -> DriverResult<R> {
        let result = {
            let mut world = guard.borrow_mut();
            world.called_from(Caller::here());
            let mut around = world.faults.captures_around(call);
            around.retain(|key| world.begin_capture(*key).is_ok());
            let result = world.enter(self.index, call).and_then(|()| verb(&mut world));
            // The call that ends a capture reports whether it was destroyed; here it is counted.
            for key in around {
                world.captures_destroyed += u64::from(world.end_capture(key).is_err());
            }
            result
        };
        exec::after_call(guard);
        if result.is_ok() {
            let mut world = guard.borrow_mut();
            for key in world.faults.captures(call) {
                // A capture that is refused does not begin.
                let _ = world.begin_capture(key);
            }
        }
        result
    }
    #[track_caller]
    fn panic_if_planted(&self, call: Call) {
        let panics = self.lock().borrow_mut().faults.panics(call);
        assert!(!panics, "{} did its work and panics, as planted", call.name());
    }
    fn keep_error(&self, error: DriverError) {
        let guard = self.lock();
        let errors = &mut guard.borrow_mut().devices[self.index].drop_errors;
        if errors.len() < 64 {
            errors.push(error);
        }
    }
}

fn kind_of(used: RangeUse) -> oracle::AccessKind {
    match used {
        RangeUse::Read => oracle::AccessKind::Read,
        RangeUse::ReadWrite => oracle::AccessKind::Write,
    }
}

impl Driver for Sim {
    const JUDGES: bool = true;

    fn name(&self, id: AllocationId, name: &str) {
        if let Some(oracle) = &mut self.lock().borrow_mut().oracle {
            oracle.allocation_named(id, name);
        }
    }

    fn note(&self, note: Note) {
        let guard = self.lock();
        let mut guarded = guard.borrow_mut();
        let world = &mut *guarded;
        world.called_from(Caller::outermost());
        let host = world.host();
        if let Some(oracle) = &mut world.oracle {
            oracle.allocator_reports();
        }
        let known = |id| world.by_id(id).expect("a note names a stream of this world by its unique number");
        match note {
            Note::Allocated { id, addr, bytes, stream } => {
                let stream = stream.map(known);
                let mut pieces: SmallVec<[(PhysKey, u64, u64); 2]> = SmallVec::new();
                let mut holes: SmallVec<[(u64, u64); 1]> = SmallVec::new();
                for part in world.memory.parts(addr.0, bytes) {
                    match part {
                        memory::Part::Here { phys, offset, bytes, .. } => pieces.push((phys, offset, bytes)),
                        memory::Part::Hole { addr, bytes } => holes.push((addr, bytes)),
                    }
                }
                if let Some(oracle) = &mut world.oracle {
                    oracle.allocated(host, id, addr, &pieces, stream);
                }
                for (hole, bytes) in holes {
                    if let Some(oracle) = &mut world.oracle {
                        oracle.allocated_nowhere(id, Addr(hole), bytes);
                    }
                    world.handed_out(id, hole);
                }
            }
            Note::Used { id, stream, so_far } => {
                let stream = known(stream);
                if let Some(oracle) = &mut world.oracle {
                    if so_far {
                        oracle.used_so_far(host, id, stream);
                    } else {
                        oracle.used(host, id, stream);
                    }
                }
            }
            Note::UsedAt { addr, stream, so_far } => {
                let stream = known(stream);
                if let Some(oracle) = &mut world.oracle {
                    if so_far {
                        oracle.used_so_far_at(host, addr, stream);
                    } else {
                        oracle.used_at(host, addr, stream);
                    }
                }
            }
            Note::BroughtIn { addr, stream } => {
                let stream = known(stream);
                if let Some(oracle) = &mut world.oracle {
                    oracle.brought_in_at(host, addr, stream);
                }
            }
            Note::Admitted { id, stream } => {
                let stream = known(stream);
                if let Some(oracle) = &mut world.oracle {
                    oracle.admitted(id, stream);
                }
            }
            Note::Operation { id, stream, used, by } => {
                let stream = known(stream);
                if let Some(oracle) = &mut world.oracle {
                    oracle.operation_comes(id, stream, kind_of(used), by);
                }
            }
            Note::OperationAt { addr, stream, used, by } => {
                let stream = known(stream);
                if let Some(oracle) = &mut world.oracle {
                    oracle.operation_comes_at(addr, stream, kind_of(used), by);
                }
            }
            Note::GuardEnded { id, stream, used } => {
                let stream = known(stream);
                if let Some(oracle) = &mut world.oracle {
                    oracle.guard_ended(id, stream, kind_of(used));
                }
            }
            Note::GuardEndedAt { addr, stream, used } => {
                let stream = known(stream);
                if let Some(oracle) = &mut world.oracle {
                    oracle.guard_ended_at(addr, stream, kind_of(used));
                }
            }
            Note::Freed { id, unknown } => {
                if let Some(oracle) = &mut world.oracle {
                    oracle.freed(host, id, unknown);
                }
            }
        }
    }

    fn slot(&self) -> &DeviceSlot {
        &self.slot
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        self.ledger().calls
    }
}
