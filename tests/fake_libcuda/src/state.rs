//! What the driver keeps between calls, under one lock.
//!
//! Tables from the handles that programs hold to the simulated device's objects, planted faults that have not struck, and the
//! log of calls. The lock is held for look-ups only, never while the simulator is called, because host functions run inside it
//! and may call the driver. The state does not know rules; each file has those of its calls.

use crate::entry::{CONTEXT_IS_DESTROYED, Code, Fail, INVALID_CONTEXT, INVALID_HANDLE, Outcome};
use crate::kernel::Module;
use crate::pool::Pools;
use crate::spin::Spin;
use millpond_sim::{Captured, Schedule, Sim, SimEvent, SimHandle, SimStream};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Objects by their handles. The handle of a destroyed object is reused for the next one, as by the real driver.
#[derive(Debug)]
pub(crate) struct Table<T> {
    what: &'static str,
    base: u64,
    things: HashMap<u64, T>,
    free: Vec<u64>,
    made: u64,
}

impl<T> Table<T> {
    fn new(what: &'static str, base: u64) -> Table<T> {
        Table { what, base, things: HashMap::new(), free: Vec::new(), made: 0 }
    }
    pub(crate) fn insert(&mut self, thing: T) -> u64 {
        let value = self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            self.base + 0x100 * self.made
        });
        self.things.insert(value, thing);
        value
    }
    fn gone(&self, value: u64) -> Fail {
        Fail::new(INVALID_HANDLE, format!("no {} has the value {value:#x} now", self.what))
    }
    pub(crate) fn get(&self, value: u64) -> Outcome<&T> {
        self.things.get(&value).ok_or_else(|| self.gone(value))
    }
    pub(crate) fn get_mut(&mut self, value: u64) -> Outcome<&mut T> {
        let gone = self.gone(value);
        self.things.get_mut(&value).ok_or(gone)
    }
    pub(crate) fn remove(&mut self, value: u64) -> Outcome<T> {
        let thing = self.things.remove(&value).ok_or_else(|| self.gone(value))?;
        self.free.push(value);
        Ok(thing)
    }
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.things.values()
    }
}

/// A stream that a program created.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) sim: SimStream,
    /// The context that was current when it was created.
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

/// An event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) sim: Arc<SimEvent>,
    pub(crate) device: usize,
    /// How often in a row a query returned "not ready".
    pub(crate) refused: u32,
}

/// The kind of a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Plain,
    Pinned {
        flags: u32,
        /// It is the program's memory, which it registered.
        registered: bool,
    },
    /// Allocated from a pool, in stream order.
    Pooled,
    Mapped {
        handle: u64,
        /// Access was set since it was mapped.
        usable: bool,
    },
}

/// A range of addresses that a program has allocated; its start is its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) bytes: u64,
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// A number of this range that is never reused.
    pub(crate) id: u64,
}

/// A piece of physical memory.
#[derive(Clone, Debug)]
pub(crate) struct Physical {
    pub(crate) sim: SimHandle,
    pub(crate) device: usize,
}

/// The calls so far, in order.
#[derive(Default, Debug)]
pub(crate) struct Log {
    /// The names of the first calls.
    names: Vec<&'static str>,
    counts: BTreeMap<&'static str, u64>,
    /// How often a planted fault struck each function.
    struck: BTreeMap<&'static str, u64>,
    total: u64,
}

impl Log {
    /// How many names are kept.
    const KEPT: usize = 1 << 20;

    /// Logs a call and returns its number, from 1.
    pub(crate) fn write(&mut self, name: &'static str) -> u64 {
        if self.names.len() < Log::KEPT {
            self.names.push(name);
        }
        *self.counts.entry(name).or_default() += 1;
        self.total += 1;
        self.total
    }
    pub(crate) fn total(&self) -> u64 {
        self.total
    }
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }
    pub(crate) fn struck(&mut self, name: &'static str) {
        *self.struck.entry(name).or_default() += 1;
    }
    pub(crate) fn struck_of(&self, name: &str) -> u64 {
        self.struck.get(name).copied().unwrap_or(0)
    }
    pub(crate) fn name(&self, number: u64) -> Option<&'static str> {
        self.names.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
    }
}

/// Planted faults that have not struck.
#[derive(Default, Debug)]
pub(crate) struct Faults {
    by_number: Vec<(u64, Code)>,
    by_name: Vec<(String, u64, Code)>,
    /// All calls from the one with this number on fail.
    from: Option<(u64, Code)>,
    /// How many more queries return "not ready".
    pub(crate) not_ready: u32,
    /// How many more ranges are not aligned.
    pub(crate) askew: u32,
}

impl Faults {
    /// How far the next range begins after a multiple of 512.
    pub(crate) fn skew(&mut self) -> u64 {
        if self.askew == 0 {
            return 0;
        }
        self.askew -= 1;
        256
    }
    pub(crate) fn plant_number(&mut self, number: u64, code: Code) {
        self.by_number.push((number, code));
    }
    pub(crate) fn plant_from(&mut self, number: u64, code: Code) {
        self.from = Some((number, code));
    }
    pub(crate) fn plant_name(&mut self, name: String, nth: u64, code: Code) {
        self.by_name.push((name, nth.max(1), code));
    }
    pub(crate) fn strike(&mut self, name: &str, number: u64) -> Option<Code> {
        if let Some((_, code)) = self.from.filter(|from| number >= from.0) {
            return Some(code);
        }
        if self.by_number.is_empty() && self.by_name.is_empty() {
            return None;
        }
        let mut struck = self.by_number.iter().find(|f| f.0 == number).map(|f| f.1);
        self.by_number.retain(|f| f.0 != number);
        self.by_name.retain_mut(|(of, left, code)| {
            if of != name {
                return true;
            }
            *left -= 1;
            if *left == 0 {
                struck = struck.or(Some(*code));
            }
            *left > 0
        });
        struck
    }
}

/// The whole state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) sims: Vec<Sim>,
    pub(crate) initialised: bool,
    /// How often each device's primary context is retained.
    pub(crate) retained: Vec<u32>,
    /// Contexts that programs created besides the primary ones, and the device of each.
    pub(crate) made_contexts: Table<usize>,
    pub(crate) streams: HashMap<u64, Stream>,
    /// How often in a row a query of a stream returned "not ready".
    pub(crate) stream_refused: HashMap<(usize, u64), u32>,
    pub(crate) events: Table<Event>,
    pub(crate) physical: Table<Physical>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: HashMap<u64, (u64, usize)>,
    pub(crate) graphs: Table<Captured>,
    pub(crate) ranges: BTreeMap<u64, Range>,
    pub(crate) reservations: BTreeMap<u64, (u64, usize)>,
    pub(crate) pools: Pools,
    pub(crate) spins: Vec<Spin>,
    pub(crate) log: Log,
    pub(crate) faults: Faults,
    /// Functions that faults of a thread do not strike.
    pub(crate) exempt_here: Vec<String>,
    pub(crate) lost: Option<Code>,
    /// The driver was shut down, as at the end of a process.
    pub(crate) shut_down: bool,
    /// Device attributes that a test has set.
    pub(crate) attributes: HashMap<u32, i32>,
    pub(crate) version: u32,
    /// After how many "not ready" results in a row a query makes the device complete the work in question.
    pub(crate) patience: u32,
    pub(crate) last_refusal: Option<String>,
    next_range: u64,
}

/// The default version.
const VERSION: u32 = 13_000;
/// The default memory of each device: it is simulated and costs nothing.
const CAPACITY: u64 = 144 << 30;
const CONTEXT_BASE: u64 = 0x6600_0000_0000;

impl State {
    pub(crate) fn new(capacity: u64, devices: u32, schedule: Schedule) -> State {
        let sims: Vec<Sim> = if devices == 0 { Vec::new() } else { Sim::devices(devices, capacity) };
        if let Some(sim) = sims.first() {
            sim.set_schedule(schedule);
        }
        State {
            retained: vec![0; sims.len()],
            made_contexts: Table::new("context", 0x6700_0000_0000),
            pools: Pools::new(sims.len()),
            sims,
            initialised: false,
            streams: HashMap::new(),
            stream_refused: HashMap::new(),
            events: Table::new("event", 0x7700_0000_0000),
            physical: Table::new("physical handle", 0x0880_0000_0000),
            modules: Table::new("module", 0x9900_0000_0000),
            functions: HashMap::new(),
            graphs: Table::new("graph", 0xAA00_0000_0000),
            ranges: BTreeMap::new(),
            reservations: BTreeMap::new(),
            spins: Vec::new(),
            log: Log::default(),
            faults: Faults::default(),
            exempt_here: Vec::new(),
            lost: None,
            shut_down: false,
            attributes: HashMap::new(),
            version: VERSION,
            patience: 16,
            last_refusal: None,
            next_range: 0,
        }
    }

    /// The state that the environment describes, for programs that do not know that they run on a stand-in.
    fn from_environment() -> State {
        let number = |name: &str, otherwise: u64| {
            let text = std::env::var(name).ok();
            text.and_then(|t| t.parse().ok()).unwrap_or(otherwise)
        };
        let schedule = match std::env::var("MILLPOND_FAKE_SCHEDULE").as_deref() {
            Ok("earliest") => Schedule::Earliest,
            Ok("latest") => Schedule::Latest,
            _ => Schedule::Random(number("MILLPOND_FAKE_SEED", 1)),
        };
        let devices = number("MILLPOND_FAKE_DEVICES", 1).min(64) as u32;
        let mut state = State::new(number("MILLPOND_FAKE_CAPACITY", CAPACITY), devices, schedule);
        state.version = number("MILLPOND_FAKE_VERSION", VERSION.into()) as u32;
        // `cuInit=999`: the first call of that function fails with that code.
        let fails = std::env::var("MILLPOND_FAKE_FAILS").unwrap_or_default();
        if let Some((name, code)) = fails.split_once('=') {
            state.faults.plant_name(name.to_owned(), 1, code.parse().unwrap_or(crate::entry::UNKNOWN));
        }
        state
    }

    /// The device of a context, which must be retained, or created and not destroyed.
    pub(crate) fn device_of(&self, context: u64) -> Outcome<usize> {
        if let Ok(&device) = self.made_contexts.get(context) {
            return Ok(device);
        }
        let device =
            context.checked_sub(CONTEXT_BASE).filter(|d| d % 0x100 == 0).map(|d| (d / 0x100) as usize);
        match device.and_then(|d| self.retained.get(d).map(|&n| (d, n))) {
            None => Err(Fail::new(INVALID_CONTEXT, format!("{context:#x} is no context"))),
            Some((_, 0)) => Err(Fail::new(CONTEXT_IS_DESTROYED, "the primary context is not retained")),
            Some((device, _)) => Ok(device),
        }
    }

    /// Adds a range of addresses; returns its number.
    pub(crate) fn add_range(&mut self, addr: u64, bytes: u64, device: usize, kind: Kind) -> u64 {
        self.next_range += 1;
        self.ranges.insert(addr, Range { bytes, device, kind, id: self.next_range });
        self.next_range
    }

    /// The range that contains an address.
    pub(crate) fn range_around(&self, addr: u64) -> Option<(u64, Range)> {
        let (&start, &range) = self.ranges.range(..=addr).next_back()?;
        (addr - start < range.bytes).then_some((start, range))
    }

    /// The range that begins here, if it is of the right kind.
    pub(crate) fn range_at(&self, addr: u64, what: &str, is: impl Fn(Kind) -> bool) -> Outcome<Range> {
        self.ranges.get(&addr).copied().filter(|r| is(r.kind)).ok_or_else(|| {
            Fail::invalid(format!(
                "{addr:#x} is not the beginning of a {what}: free each once, as it was given"
            ))
        })
    }

    /// What a program has not given back, as text.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for (addr, r) in &self.ranges {
            found.push(format!("{} bytes at {addr:#x}: {:?}, device {}", r.bytes, r.kind, r.device));
        }
        for (addr, (bytes, device)) in &self.reservations {
            found.push(format!("{bytes} reserved addresses at {addr:#x}, device {device}"));
        }
        found.extend(self.streams.values().map(|s| format!("{:?}", s.sim)));
        found.extend(self.events.values().map(|e| format!("{:?}", e.sim)));
        found.extend(self.physical.values().map(|p| format!("a physical handle of {} bytes", p.sim.bytes())));
        found.extend(self.modules.values().map(|m| format!("a module with {:?}", m.names())));
        found.extend(self.graphs.values().map(|g| format!("a graph of {} operations", g.operations)));
        found.extend(self.pools.made_by_the_program().map(|p| format!("memory pool {p:#x}")));
        for (device, n) in self.retained.iter().enumerate().filter(|(_, n)| **n > 0) {
            found.push(format!("the primary context of device {device}, retained {n} times"));
        }
        found
    }
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::from_environment()));

/// Locks the state. The lock must not be held while the simulator is called.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The contexts pushed on a thread: a small array in place, so that there is nothing to drop.
pub(crate) struct Pushed {
    contexts: [u64; 32],
    count: usize,
}

impl Pushed {
    pub(crate) fn current(&self) -> Option<u64> {
        self.contexts[..self.count].last().copied()
    }
    pub(crate) fn push(&mut self, context: u64) {
        assert!(self.count < self.contexts.len(), "contexts are pushed and never popped");
        self.contexts[self.count] = context;
        self.count += 1;
    }
    pub(crate) fn pop(&mut self) -> Option<u64> {
        let popped = self.current()?;
        self.count -= 1;
        Some(popped)
    }
}

thread_local! {
    /// The contexts pushed on this thread; the last one is current. Destructors that run when the thread ends may still call the
    /// driver, and find them.
    static CURRENT: RefCell<Pushed> = const { RefCell::new(Pushed { contexts: [0; 32], count: 0 }) };
}

/// Calls a function with this thread's stack of contexts.
pub(crate) fn contexts<R>(work: impl FnOnce(&mut Pushed) -> R) -> R {
    CURRENT.with_borrow_mut(work)
}

/// The handle of a device's primary context.
pub(crate) fn context_of(device: usize) -> u64 {
    CONTEXT_BASE + 0x100 * device as u64
}

/// The device whose context is current on this thread, and its number.
///
/// # Errors
/// No context is current, or it was released.
pub(crate) fn here() -> Outcome<(Sim, usize)> {
    let Some(current) = contexts(|c| c.current()).filter(|&c| c != 0) else {
        return Err(Fail::new(INVALID_CONTEXT, "no context is current on this thread"));
    };
    let state = state();
    let device = state.device_of(current)?;
    Ok((state.sims[device].clone(), device))
}

/// Gives a range of addresses back with `free`, which may fail and then changes nothing. The range leaves the table first,
/// because another thread may get its addresses before `free` returns.
pub(crate) fn give_back(addr: u64, range: Range, free: impl FnOnce() -> Outcome) -> Outcome {
    if state().ranges.remove(&addr).is_none() {
        return Err(Fail::invalid(format!("{addr:#x} was given back by another thread meanwhile")));
    }
    free().inspect_err(|_| {
        state().ranges.insert(addr, range);
    })
}

/// The stream of a handle, for a call on the current context.
pub(crate) fn stream(value: u64) -> Outcome<(Sim, usize, SimStream)> {
    let (sim, device) = here()?;
    let found = match value {
        0..=2 => sim.stream_from_handle(value),
        _ => match state().streams.get(&value) {
            Some(s) => s.sim.clone(),
            None => return Err(Fail::new(INVALID_HANDLE, format!("no stream has the value {value:#x} now"))),
        },
    };
    Ok((sim, device, found))
}
