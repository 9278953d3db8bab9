//! Carries out one act, and a pass over all of them.
//!
//! A block's life: allocate on the home stream, write it there; a use waits for what it must come after, touches the
//! block on its own stream, and the use is declared to the allocator; before the free the home stream waits for uses that wrote, and
//! reads. Words are made of the slot, the turn and the number of writes, so that no two generations of the same bytes
//! hold the same word. A use that writes changes the word.
//!
//! It does not know where acts come from. Which thread does what when is the business of `turns`.

use super::Progress;
use super::outcome::{Failure, ReplayError};
use super::touch::Touch;
use super::turns;
use super::workload::{Act, CrossStreamUse, Declaration, InjectedBug, Plan, What};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
use millpond::Error;
use millpond::report::MemoryMap;
use millpond::{Allocation, Allocator, Event, Stream};
use millpond_driver::random::stirred;
use millpond_driver::{Called, Caller};
use millpond_trace::Access;
use std::sync::{Mutex, PoisonError};

/// How many acts pass between two reports of progress.
const REPORTED: usize = 4096;

/// Why a pass ended early.
#[derive(Debug)]
pub(super) enum Halt {
    /// A request failed.
    Failed(Failure),
    /// Something else did.
    Error(ReplayError),
}

/// What every act needs.
pub(super) struct Stage<'a, D: Touch> {
    pub(super) allocator: &'a Allocator<D>,
    pub(super) driver: &'a D,
    pub(super) streams: &'a [Stream<D>],
    /// The log's time, in nanoseconds: that of the last act, over all passes.
    pub(super) now: &'a AtomicU64,
}

/// A slot: a block while one lives in it.
pub(super) struct Life<D: Touch> {
    allocation: Option<Allocation<D>>,
    /// The turn of the slot at which it was allocated: a part of its word.
    born: u32,
    /// How often a use wrote it.
    writes: u32,
    /// What only blocks with uses have.
    marks: Vec<Mark<D>>,
}

/// A point behind an access of a block.
struct Mark<D: Touch> {
    event: Event<D>,
    stream: u16,
    access: Access,
    /// Whether the home stream is to wait for it before it reads.
    joined: bool,
}

impl<D: Touch> Default for Life<D> {
    fn default() -> Life<D> {
        Life { allocation: None, born: 0, writes: 0, marks: Vec::new() }
    }
}

/// The pattern of a block: its slot, when it was allocated there, and how often it was written since. Never 0.
pub(super) fn word(slot: u32, born: u32, writes: u32) -> u64 {
    stirred(u64::from(slot) << 32 ^ u64::from(born) << 8 ^ u64::from(writes) ^ 0x5EED_0000_0000_0000) | 1
}

#[allow(unsafe_code, reason = "blocks are touched by their addresses; they are device memory")]
impl<D: Touch> Stage<'_, D> {
    /// Carries out one act on the life it concerns.
    #[inline]
    pub(super) fn act(&self, life: &mut Life<D>, act: &Act, plan: &Plan) -> Result<(), Error> {
        match act.what {
            What::Alloc { bytes, marked } => {
                let home = &self.streams[usize::from(act.stream)];
                let allocation = self.allocator.alloc(bytes, home)?;
                life.born = act.turn;
                life.writes = 0;
                if let Some(id) = allocation.id() {
                    let word = word(act.slot, act.turn, 0);
                    // SAFETY: device memory of a live allocation.
                    unsafe { self.driver.write(home.native(), allocation.address(), bytes, id, word)? };
                }
                life.allocation = Some(allocation);
                if marked {
                    let mark = Mark {
                        event: home.record()?,
                        stream: act.stream,
                        access: Access::Write,
                        joined: false,
                    };
                    life.marks.push(mark);
                }
                self.driver.tick();
            }
            What::Free => {
                drop(self.last_read(life, act)?);
                self.driver.tick();
            }
            What::FreeOn { other } => {
                if let Some(allocation) = self.last_read(life, act)? {
                    allocation.free_on(&self.streams[usize::from(other)]).map_err(|(_, e)| e)?;
                }
                self.driver.tick();
            }
            What::CrossStreamUse { number } => self.cross_use(life, act, plan.uses[number as usize])?,
        }
        Ok(())
    }

    /// The home stream's read just before the free.
    #[inline]
    pub(super) fn last_read(&self, life: &mut Life<D>, act: &Act) -> Result<Option<Allocation<D>>, Error> {
        let Some(allocation) = life.allocation.take() else { return Ok(None) };
        let home = &self.streams[usize::from(act.stream)];
        if let Some(id) = allocation.id() {
            for mark in life.marks.drain(..).filter(|m| m.joined) {
                home.wait(&mark.event)?;
            }
            let word = word(act.slot, life.born, life.writes);
            // SAFETY: device memory of a live allocation.
            unsafe {
                self.driver.read(home.native(), allocation.address(), allocation.len(), id, Some(word))?;
            };
        }
        Ok(Some(allocation))
    }

    #[cold]
    #[inline(never)]
    fn cross_use(&self, life: &mut Life<D>, act: &Act, cross: CrossStreamUse) -> Result<(), Error> {
        let (Some(allocation), home) = (&life.allocation, &self.streams[usize::from(act.stream)]) else {
            return Ok(());
        };
        let Some(id) = allocation.id() else { return Ok(()) };
        let there = &self.streams[usize::from(cross.stream)];
        let declared = |now: Declaration| cross.declared == now && cross.bug != Some(InjectedBug::Undeclared);

        // Behind the write on the home stream, and behind the uses that it conflicts with.
        if cross.bug != Some(InjectedBug::Unordered) {
            if !life.marks.iter().any(|m| m.stream == act.stream) {
                let event = home.record()?;
                life.marks.push(Mark { event, stream: act.stream, access: Access::Write, joined: false });
            }
            for mark in &life.marks {
                let conflict = mark.access == Access::Write || cross.access == Access::Write;
                if conflict && mark.stream != cross.stream {
                    there.wait(&mark.event)?;
                }
            }
        }
        if declared(Declaration::Before) {
            allocation.record_use(there)?;
        }
        if declared(Declaration::Share) {
            allocation.share_with(there)?;
        }
        let (addr, bytes) = (allocation.address(), allocation.len());
        match cross.access {
            Access::Write => {
                life.writes += 1;
                let word = word(act.slot, life.born, life.writes);
                // SAFETY: device memory of a live allocation.
                unsafe { self.driver.write(there.native(), addr, bytes, id, word)? };
            }
            Access::Read => {
                let word = word(act.slot, life.born, life.writes);
                // SAFETY: device memory of a live allocation.
                unsafe { self.driver.read(there.native(), addr, bytes, id, Some(word))? };
            }
        }
        if declared(Declaration::After) {
            allocation.record_use(there)?;
        }
        let event = there.record()?;
        if declared(Declaration::Until) {
            allocation.record_use_until(&event)?;
        }
        let joined = cross.access == Access::Write && cross.bug != Some(InjectedBug::Unjoined);
        life.marks.push(Mark { event, stream: cross.stream, access: cross.access, joined });
        Ok(())
    }
}

/// The act that ended a pass, as the caller learns of it.
pub(super) fn halt(plan: &Plan, at: usize, act: &Act, error: Error) -> Halt {
    // Uses are no calls of the log.
    let call =
        plan.acts[..at].iter().filter(|a| !matches!(a.what, What::CrossStreamUse { .. })).count() as u64;
    match (act.what, &error) {
        (What::Alloc { bytes, .. }, Error::OutOfMemory(_) | Error::TooLarge { .. }) => {
            Halt::Failed(Failure {
                call,
                bytes,
                out_of_memory: error.out_of_memory().is_some(),
                message: error.to_string(),
            })
        }
        _ => Halt::Error(ReplayError::Call { call, error }),
    }
}

/// The plan of a log that runs through an allocator, as often as requested.
pub(super) struct Pass<'a, D: Touch> {
    pub(super) stage: Stage<'a, D>,
    pub(super) plan: &'a Plan,
    progress: Progress<'a>,
    lives: Vec<Life<D>>,
    /// Allocations and frees made so far.
    calls: AtomicU64,
    /// For a device that judges: which call of the log each act is, or comes behind.
    numbers: Vec<u32>,
    /// When the pass began, on the device's clock and on the log's.
    began: (Duration, Duration),
    /// Behind which act a map is made.
    map_behind: Option<usize>,
    map: Mutex<Option<MemoryMap>>,
}

impl<'a, D: Touch> Pass<'a, D> {
    pub(super) fn new(stage: Stage<'a, D>, plan: &'a Plan, progress: Progress<'a>) -> Pass<'a, D> {
        let mut next = 0;
        let number = |act: &Act| {
            next += u32::from(!matches!(act.what, What::CrossStreamUse { .. }));
            u32::saturating_sub(next, 1)
        };
        let numbers = if D::JUDGES { plan.acts.iter().map(number).collect() } else { Vec::new() };
        Pass {
            stage,
            plan,
            progress,
            lives: Vec::new(),
            calls: AtomicU64::new(0),
            numbers,
            began: (Duration::ZERO, Duration::ZERO),
            map_behind: None,
            map: Mutex::new(None),
        }
    }

    /// A map is to be made when most is live.
    pub(super) fn map_at_the_peak(&mut self) {
        let (mut live, mut most, mut of) = (0, 0, vec![0; self.plan.slots as usize]);
        for (at, act) in self.plan.acts.iter().enumerate() {
            let slot: &mut u64 = &mut of[act.slot as usize];
            match act.what {
                What::Alloc { bytes, .. } => {
                    live += bytes;
                    *slot = bytes;
                }
                What::Free | What::FreeOn { .. } => live -= core::mem::take(slot),
                What::CrossStreamUse { .. } => {}
            }
            if live > most {
                (most, self.map_behind) = (live, Some(at));
            }
        }
    }

    /// The map that was made.
    pub(super) fn take_map(&mut self) -> Option<MemoryMap> {
        self.map.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// While this lives, the calling thread is at an act, whose time has come.
    #[inline]
    pub(super) fn called(&self, at: usize) -> Called<D> {
        if let Some(&time) = self.plan.times.get(at) {
            let (began, began_in_log) = self.began;
            if self.plan.paced {
                self.stage.driver.idle_until(began + time);
            }
            self.stage.now.store((began_in_log + time).as_nanos() as u64, Ordering::Relaxed);
        }
        Called::at(Caller::Call(self.numbers.get(at).copied().map_or(0, u64::from)))
    }

    /// Allocations and frees made so far, in all passes.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Adds to the number of calls made, and reports progress.
    pub(super) fn made(&self, calls: u64) {
        let before = self.calls.fetch_add(calls, Ordering::Relaxed);
        (self.progress)(before + calls);
    }

    /// Runs all acts once, then frees what is left, also after a request that failed.
    pub(super) fn run(&mut self, racy: bool) -> Result<(), Halt> {
        let in_log = Duration::from_nanos(self.stage.now.load(Ordering::Relaxed));
        self.began = (self.stage.driver.host_time(), in_log);
        let mut lives = core::mem::take(&mut self.lives);
        lives.resize_with(self.plan.slots as usize, Life::default);
        let ran = match self.plan.threads {
            0 | 1 => self.stretch(&mut lives, 0, self.plan.acts.len()),
            threads if racy => turns::free(self, &mut lives, threads),
            threads => turns::taken(self, &mut lives, threads),
        };
        let freed = self.free_all(&mut lives);
        self.lives = lives;
        ran.and(freed)
    }

    /// A stretch of acts, one after the other, on the calling thread.
    pub(super) fn stretch(&self, lives: &mut [Life<D>], from: usize, to: usize) -> Result<(), Halt> {
        let Some(last) = self.map_behind.filter(|last| (from..to).contains(last)) else {
            return self.acts(lives, from, to);
        };
        self.acts(lives, from, last + 1)?;
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if map.is_none() {
            *map = Some(self.stage.allocator.memory_map());
        }
        drop(map);
        self.acts(lives, last + 1, to)
    }

    fn acts(&self, lives: &mut [Life<D>], from: usize, to: usize) -> Result<(), Halt> {
        let mut at = from;
        for some in self.plan.acts[from..to].chunks(REPORTED) {
            let mut calls = 0;
            let ran = some.iter().try_for_each(|act| {
                let life = &mut lives[act.slot as usize];
                let _called = self.called(at);
                self.stage.act(life, act, self.plan).map_err(|e| halt(self.plan, at, act, e))?;
                calls += u64::from(!matches!(act.what, What::CrossStreamUse { .. }));
                at += 1;
                Ok(())
            });
            // Those before one that failed were made.
            self.made(calls);
            ran?;
        }
        Ok(())
    }

    /// Frees what the log left alive, by the same last read.
    fn free_all(&self, lives: &mut [Life<D>]) -> Result<(), Halt> {
        if lives.iter().all(|l| l.allocation.is_none()) {
            return Ok(());
        }
        let mut homes = vec![0; lives.len()];
        for act in &self.plan.acts {
            homes[act.slot as usize] = act.stream;
        }
        let (mut calls, at) = (0, self.plan.acts.len());
        let mut alive = (0u32..).zip(lives).filter(|(_, l)| l.allocation.is_some());
        let ran = alive.try_for_each(|(slot, life)| {
            let act = Act { what: What::Free, slot, turn: u32::MAX, stream: homes[slot as usize], thread: 0 };
            self.stage.act(life, &act, self.plan).map_err(|e| halt(self.plan, at, &act, e))?;
            calls += 1;
            Ok(())
        });
        self.made(calls);
        ran
    }
}
