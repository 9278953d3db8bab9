//! Random programs that are correct themselves, on an allocator that is kept short of memory: few streams, a small
//! limit, every block touched as soon as it is allocated, streams that close, faults, and threads that stand still.
//!
//! The simple version of "correct" would be to order every use behind everything; then no bug would ever show. So the
//! program keeps a clock a stream and a place for every access, and puts in the one wait that a use needs, or leaves the
//! use out. What the allocator does in order to be right stays its own business.

use super::{Block, Outcome, World, at, ensure, said};
use crate::dice::Dice;
use millpond::DriverError;
use millpond::allocator::VirtualMemory;
use millpond::array::ExternalMemory;
use millpond::driver::{Fences, StreamKind};
use millpond::units::{GIB, MIB, StreamId};
use millpond::{
    Config, DeviceArray, DriverErrorKind, Error, Event, Growth, Limit, PinnedAllocation, Policy, Reuse,
    Stream, Trim, transfer,
};
use millpond_sim::{Call, Launch, Schedule, Sim, SimStream};
use std::mem::ManuallyDrop;
use std::time::Duration;

/// Operations of one program: in short ones little is known to be ordered, in long ones memory has been everywhere.
const LENGTHS: [usize; 3] = [40, 80, 160];

/// The verbs of a program; 0 is to allocate.
const FREE: usize = 1;
const CROSS_STREAM: usize = 2;
const HOME: usize = 3;
const UNKNOWN: usize = 4;
const REBIRTH: usize = 5;
const WAIT: usize = 6;
const EVENTS: usize = 7;
const SYNC: usize = 8;
const CLOSE: usize = 9;
const TRIM: usize = 10;
const FAULT: usize = 11;
const ADVANCE: usize = 12;
const PIN: usize = 13;
const LATE: usize = 14;
const SHARED: usize = 15;
/// How often each is drawn, in the order of the verbs, before a seed has its preferences.
const WEIGHTS: [usize; 16] = [30, 20, 18, 6, 2, 3, 7, 5, 5, 4, 2, 4, 6, 4, 2, 6];

/// Neighbouring seeds, and what a seed is drawn from in other tests, have numbers that have nothing in common.
pub(super) fn of_seed(seed: u64) -> Dice {
    Dice::new(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 0x5851_F42D_4C95_7F2D)
}

/// How much of each stream lies before something.
#[derive(Clone, Default)]
struct Clock(Vec<u32>);

impl Clock {
    fn of(&self, on: usize) -> u32 {
        self.0.get(on).copied().unwrap_or(0)
    }
    fn join(&mut self, other: &Clock) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}

struct Line {
    stream: Option<Stream<Sim>>,
    /// The native stream that other code made and this allocator adopted.
    native: Option<SimStream>,
    clock: Clock,
}

struct Live {
    block: Block,
    home: usize,
    /// Every access, its allocation first: the stream, the position, whether it wrote.
    places: Vec<(usize, u32, bool)>,
    declared: Vec<usize>,
}

#[allow(clippy::struct_excessive_bools, reason = "what kind of program it is")]
struct Run {
    w: World,
    dice: Dice,
    page: u64,
    limit: u64,
    /// The host never waits for memory: at rest, only a trim makes the markers that are missing.
    hasty: bool,
    /// Faults are planted.
    faulty: bool,
    /// Completion is learnt from waits only.
    deterministic: bool,
    /// Adopted streams are not declared, may end while their memory lives, and other code captures meanwhile.
    undeclared: bool,
    /// Default streams are among them: the legacy one, and this thread's own.
    defaults: bool,
    /// Reused memory is wiped.
    scrubs: bool,
    /// Captures begin inside calls.
    captured: bool,
    /// One capture at most begins and ends inside this operation, on this stream, which may be marked again.
    one_inside: Option<StreamId>,
    /// Another device, with an allocator and as many streams of its own.
    neighbour: Option<(World, Vec<Stream<Sim>>)>,
    weights: [usize; 16],
    lines: Vec<Line>,
    live: Vec<Live>,
    pinned: Vec<PinnedAllocation<Sim>>,
    /// With what lies before each, and its stream.
    events: Vec<(Event<Sim>, Clock, usize)>,
    host: Clock,
}

/// Runs the program of a seed: how many operations were made, and what came of it.
pub fn run(seed: u64) -> (usize, Outcome) {
    run_as(seed, Kind::Plain)
}

/// The same with streams that are not declared, beside captures by other code.
pub fn run_undeclared(seed: u64) -> (usize, Outcome) {
    run_as(seed, Kind::Undeclared)
}

/// The same with default streams among the others.
pub fn run_with_defaults(seed: u64) -> (usize, Outcome) {
    run_as(seed, Kind::Defaults)
}

/// The same on an allocator that scrubs: the next owner of bytes reads zeroes first.
pub fn run_scrubbing(seed: u64) -> (usize, Outcome) {
    run_as(seed, Kind::Scrubs)
}

/// The same with captures that begin inside calls of the allocator, on a stream of theirs that it marks.
pub fn run_captured(seed: u64) -> (usize, Outcome) {
    run_as(seed, Kind::Captured)
}

/// The same beside another device, whose events streams of this one wait for.
pub fn run_beside_another(seed: u64) -> (usize, Outcome) {
    run_as(seed, Kind::Neighbour)
}

/// The same with what few programs call: aligned blocks, limits that are set, trims of one stream, streams found by their numbers; and blocks as arrays,
/// in copies from and to another device, in scopes, under several guards, and in memory of others.
pub fn run_with_rarer_verbs(seed: u64) -> (usize, Outcome) {
    run_as(seed, Kind::Rarer)
}

/// What a program has that others have not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Undeclared,
    Defaults,
    Scrubs,
    Captured,
    Neighbour,
    Rarer,
}

fn run_as(seed: u64, kind: Kind) -> (usize, Outcome) {
    let mut made = 0;
    let outcome = super::judge(|| {
        // What went wrong cannot always be dropped.
        let mut run = ManuallyDrop::new(Run::new(seed, kind));
        for _ in 0..LENGTHS[seed as usize % 3] {
            made += 1;
            match kind {
                Kind::Undeclared => run.step_beside()?,
                Kind::Captured => run.step_captured()?,
                Kind::Neighbour => run.step_beside_another()?,
                Kind::Rarer => run.step_rarer()?,
                _ => run.step()?,
            }
            // A stop that was meant for this operation must not happen in another: by then its streams may be gone.
            super::forget_points();
            if let Some(v) = run.w.sim.violations().first() {
                return Err(v.to_string());
            }
        }
        run.w.gpu.check();
        ManuallyDrop::into_inner(run).finish()
    });
    (made, outcome.map_err(|e| format!("seed {seed}, operation {made}: {e}")))
}

impl Run {
    fn new(seed: u64, kind: Kind) -> Run {
        let (undeclared, defaults) =
            (matches!(kind, Kind::Undeclared | Kind::Captured), kind == Kind::Defaults);
        let mut dice = of_seed(seed);
        let page = *dice.of(&[4096, 64 << 10, MIB, 2 * MIB]);
        let pages = 4 + dice.below(10) as u64;
        let growth = if dice.one_in(2) {
            Growth::Exact
        } else {
            Growth::Rounded { small: 4 * page, large: 6 * page, multiple: page }
        };
        let deterministic = dice.one_in(8);
        let mut config = Config::default()
            .reuse(Reuse::WithWaits)
            .limit(Limit::Bytes(pages * page))
            .pinned_limit(2 * MIB)
            .growth(growth)
            .policy(if dice.one_in(3) { Policy::Footprint } else { Policy::Latency })
            .deterministic(deterministic);
        // Few streams, as many to the index of migration sources; dice of its own, so that the programs stay what they are.
        if of_seed(seed ^ 0xFE3).one_in(3) {
            config = config.look_at_each_of(1);
        }
        // Virtual memory beneath the pools, in units of 2 MiB.
        let (mut page, mut pages) = (page, pages);
        if of_seed(seed ^ 0x57A7).one_in(3) {
            (page, pages) = (*of_seed(seed ^ 0x57A8).of(&[MIB, 2 * MIB, 4 * MIB]), pages.next_multiple_of(2));
            let growth = Growth::default();
            config =
                config.limit(Limit::Bytes(pages * page)).growth(growth).virtual_memory(VirtualMemory::Auto);
        }
        if kind == Kind::Scrubs {
            config = config.scrub(true);
        }
        let hasty = !dice.one_in(3);
        if hasty {
            config = config.bounded_wait(Duration::ZERO);
        }
        let schedule = if dice.one_in(5) { Schedule::Random(seed) } else { Schedule::Latest };
        let mut sims = Sim::devices(if matches!(kind, Kind::Neighbour | Kind::Rarer) { 2 } else { 1 }, GIB);
        let sim = sims.remove(0);
        sim.set_schedule(schedule);
        let w = World::on(sim, config);
        if undeclared {
            w.sim.expect_captures();
        }
        let streams = 2 + dice.below(3);
        let neighbour = sims.pop().map(|sim| {
            let other = World::on(sim, Config::default());
            let theirs = (0..streams).map(|_| other.stream()).collect();
            (other, theirs)
        });
        // Programs that never do this and mostly that meet what evenly mixed ones do not.
        let mut weights = WEIGHTS;
        for w in &mut weights[CROSS_STREAM..] {
            *w *= *dice.of(&[0, 1, 1, 4]);
        }
        let mut run = Run {
            w,
            page,
            limit: pages * page,
            hasty,
            faulty: dice.one_in(2),
            deterministic,
            undeclared,
            defaults,
            scrubs: kind == Kind::Scrubs,
            captured: kind == Kind::Captured,
            one_inside: None,
            neighbour,
            dice,
            weights,
            lines: Vec::new(),
            live: Vec::new(),
            pinned: Vec::new(),
            events: Vec::new(),
            host: Clock::default(),
        };
        for _ in 0..streams {
            run.open();
        }
        run
    }

    fn open(&mut self) {
        if self.defaults && self.dice.one_in(2) && self.open_default() {
            return;
        }
        // If captures are the subject, most streams are other code's.
        let adopted = self.dice.one_in(3) != self.captured;
        let native = adopted.then(|| self.w.sim.stream().expect("a stream"));
        let stream = match &native {
            Some(native) => {
                // Of one that is declared its owner says that it outlives us: we mark it whenever we like.
                let unmanaged = self.undeclared && !(self.captured && self.dice.one_in(2));
                let handle = || if unmanaged { self.w.sim.unmanaged_stream(native) } else { native.clone() };
                insist(|| self.w.gpu.adopt(handle())).expect("a stream of ours")
            }
            None => self.w.stream(),
        };
        self.lines.push(Line { stream: Some(stream), native, clock: Clock::default() });
    }

    /// A default stream, if it is not open. It never ends: its owner continues with it when it is no longer adopted.
    fn open_default(&mut self) -> bool {
        let native =
            if self.dice.one_in(2) { self.w.sim.legacy_stream() } else { self.w.sim.per_thread_stream() };
        let stream = insist(|| self.w.gpu.adopt(native.clone())).expect("a default stream");
        let id = stream.id();
        if self.lines.iter().any(|l| l.stream.as_ref().is_some_and(|s| s.id() == id)) {
            return false;
        }
        self.lines.push(Line { stream: Some(stream), native: Some(native), clock: Clock::default() });
        true
    }

    /// An open stream.
    fn any(&mut self) -> (usize, Stream<Sim>) {
        loop {
            let i = self.dice.below(self.lines.len());
            if let Some(s) = &self.lines[i].stream {
                return (i, s.clone());
            }
        }
    }

    fn tick(&mut self, on: usize) -> (usize, u32) {
        let host = self.host.clone();
        let clock = &mut self.lines[on].clock;
        clock.join(&host);
        if clock.0.len() <= on {
            clock.0.resize(on + 1, 0);
        }
        clock.0[on] += 1;
        (on, clock.0[on])
    }

    fn knows(&self, on: usize, place: (usize, u32, bool)) -> bool {
        self.lines[on].clock.of(place.0).max(self.host.of(place.0)) >= place.1
    }

    /// Whether a use of the block on this stream can come after all that it conflicts with, waits put in.
    fn order(&mut self, i: usize, on: usize, writes: bool) -> Result<bool, String> {
        for place in self.live[i].places.clone() {
            if self.knows(on, place) || !(writes || place.2) {
                continue;
            }
            if self.lines[place.0].stream.is_none() || self.lines[on].stream.is_none() {
                return Ok(false);
            }
            self.wait_stream(on, place.0)?;
        }
        Ok(true)
    }

    fn wait_stream(&mut self, on: usize, other: usize) -> Outcome {
        let (Some(s), Some(o)) = (&self.lines[on].stream, &self.lines[other].stream) else { return Ok(()) };
        insist(|| s.wait_stream(o)).map_err(said)?;
        let known = self.lines[other].clock.clone();
        self.lines[on].clock.join(&known);
        Ok(())
    }

    fn launch(&mut self, i: usize, on: usize, writes: bool) -> Outcome {
        let (address, len, id) = {
            let b = &self.live[i].block;
            (b.address(), b.len(), b.id().expect("bytes"))
        };
        let launch = Launch::new(if writes { "write" } else { "read" });
        let launch = if writes { launch.writes(address, len) } else { launch.reads(address, len) }.tag(id);
        self.queue(launch, i, on, writes)
    }

    /// Queues an access of a block, and remembers its place.
    fn queue(&mut self, launch: Launch, i: usize, on: usize, writes: bool) -> Outcome {
        let line = &self.lines[on];
        let native = line.stream.as_ref().map(Stream::native).or(line.native.as_ref()).expect("a stream");
        self.w.sim.launch(native, launch).map_err(said)?;
        let (on, position) = self.tick(on);
        self.live[i].places.push((on, position, writes));
        Ok(())
    }

    /// An operation, and now and then a capture by other code around it, unless it waits for the device.
    fn step_beside(&mut self) -> Outcome {
        if !self.dice.one_in(4) {
            return self.step();
        }
        let theirs = self.w.sim.stream().map_err(said)?;
        self.w.sim.begin_capture(&theirs).map_err(said)?;
        match self.dice.below(4) {
            0 => {
                self.w.gpu.trim(Trim::All).or_else(planted_fault)?;
            }
            1 if !self.live.is_empty() => {
                let i = self.dice.below(self.live.len());
                self.free_unknown(i)?;
            }
            _ => self.alloc()?,
        }
        // No thread is stopped after its end.
        super::forget_points();
        self.w.sim.end_capture(&theirs).map(drop).map_err(|e| format!("another owner's capture ended: {e}"))
    }

    /// An operation, and now and then a capture by other code on a stream that it shares with us: it begins inside, after the check whether the stream
    /// captures and for as long as the operation lasts, or right before a record on it and ends right after that.
    fn step_captured(&mut self) -> Outcome {
        let is_adopted = |&i: &usize| self.lines[i].native.is_some() && self.lines[i].stream.is_some();
        let adopted: Vec<usize> = (0..self.lines.len()).filter(is_adopted).collect();
        if adopted.is_empty() || self.dice.one_in(2) {
            return self.step();
        }
        let on = *self.dice.of(&adopted);
        let native = self.lines[on].native.clone().expect("adopted");
        let behind = self.dice.one_in(2);
        if behind {
            let nth = 1 + self.dice.below(3) as u64;
            self.w.sim.capture_behind(Call::StreamIsCapturing, nth, &native).map_err(said)?;
        } else {
            let records = *self.dice.of(&[1, 1, 2, 8]);
            for nth in 1..=records {
                self.w.sim.capture_around(Call::EventRecord, nth, &native).map_err(said)?;
            }
            // One that is not declared only calls that name it may mark.
            let marked = self.lines[on].stream.as_ref().filter(|s| records == 1 && !s.info().unmanaged);
            self.one_inside = marked.map(Stream::id);
        }
        // Nothing is launched on it meanwhile.
        let others: Vec<usize> =
            (0..self.lines.len()).filter(|&i| i != on && self.lines[i].stream.is_some()).collect();
        match self.dice.below(4) {
            0 => {
                self.w.gpu.trim(Trim::All).or_else(planted_fault)?;
            }
            1 => {
                // It is named: what is left of it may be marked.
                let s = self.lines[on].stream.clone().expect("open");
                drop(self.w.gpu.alloc(0, &s));
            }
            _ if others.is_empty() => {}
            _ => {
                let home = *self.dice.of(&others);
                let s = self.lines[home].stream.clone().expect("open");
                let bytes = (1 + self.dice.below(4) as u64) * self.page;
                self.alloc_of(bytes, home, &s)?;
            }
        }
        self.w.sim.clear_faults();
        self.one_inside = None;
        ensure!(
            self.w.sim.captures_destroyed() == 0,
            "another owner's capture around a record was destroyed by it"
        );
        if behind && self.w.sim.is_capturing(&native).map_err(said)? {
            self.w.sim.end_capture(&native).map_err(|e| format!("another owner's capture ended: {e}"))?;
        }
        Ok(())
    }

    /// An operation, or a stream waits for what a stream of the other device has queued: that says nothing of any stream here.
    fn step_beside_another(&mut self) -> Outcome {
        if !self.dice.one_in(4) {
            return self.step();
        }
        let (on, s) = self.any();
        let (other, theirs) = self.neighbour.as_ref().expect("another device");
        let from = self.dice.of(theirs);
        other.sim.launch(from.native(), Launch::new("elsewhere")).map_err(said)?;
        let event = insist(|| from.record()).map_err(said)?;
        insist(|| s.wait(&event)).map_err(said)?;
        let bytes = (1 + self.dice.below(4) as u64) * self.page;
        self.alloc_of(bytes, on, &s)
    }

    /// An operation, or one of the rarer ones.
    fn step_rarer(&mut self) -> Outcome {
        if !self.dice.one_in(3) {
            return self.step();
        }
        let ((on, s), bytes) = (self.any(), (1 + self.dice.below(4) as u64) * self.page);
        match self.dice.below(8) {
            0 => {
                let align = *self.dice.of(&[1, 512, 4096, 64 << 10, 2 * MIB]);
                let aligned = self.w.gpu.alloc_aligned(bytes, align, &s);
                if let Ok(block) = &aligned {
                    ensure!(block.address().0.is_multiple_of(align), "{block:?} is not aligned to {align}");
                }
                self.allocated(aligned, on)
            }
            1 => {
                let taken = self.w.gpu.report().reserved;
                let limit = *self.dice.of(&[0, taken, taken.saturating_sub(self.page), taken / 2]);
                self.w.gpu.set_limit(Limit::Bytes(limit)).or_else(planted_fault)?;
                let outcome = self.alloc_of(bytes, on, &s);
                insist(|| self.w.gpu.set_limit(Limit::Bytes(self.limit))).map_err(said)?;
                outcome
            }
            2 => {
                self.w.gpu.trim(Trim::Stream(&s)).or_else(planted_fault)?;
                let (other, s) = self.any();
                self.alloc_of(bytes, other, &s)
            }
            3 => self.found_again(on, s),
            how => self.as_array(how),
        }
    }

    /// No handle of a stream is left, but blocks of it are live: one of them gives the stream out again, and what was declared of it holds.
    fn found_again(&mut self, on: usize, s: Stream<Sim>) -> Outcome {
        let id = s.id();
        self.lines[on].stream = None;
        drop(s);
        let stays = self.live.iter().any(|l| l.home == on);
        if self.lines.iter().any(|l| l.stream.is_some()) && self.dice.one_in(2) {
            self.alloc()?;
        }
        if let Some(again) = self.w.gpu.stream_of(id) {
            self.lines[on].stream = Some(again);
        } else {
            ensure!(!stays, "{id} has a live block, and is not found");
            self.open();
        }
        Ok(())
    }

    /// A live block as an array, in an operation of the library's that touches it.
    #[allow(unsafe_code, reason = "the range lives as long as the block, which owns it")]
    fn as_array(&mut self, how: usize) -> Outcome {
        let ((a, s), (b, t)) = (self.any(), self.any());
        if self.live.is_empty() {
            return Ok(());
        }
        // What the program did itself it orders itself.
        let i = self.dice.below(self.live.len());
        if !self.order(i, a, true)? || !self.order(i, b, true)? {
            return Ok(());
        }
        let Live { block, home, mut places, declared } = self.live.swap_remove(i);
        let (address, bytes, id) = (block.address(), block.len(), block.id().expect("bytes"));
        let tagged = |launch: Launch| launch.tag(id);
        let mut x =
            DeviceArray::<u8, Sim>::from_allocation(block, bytes as usize).map_err(|(_, e)| said(e))?;
        let sim = self.w.sim.clone();
        let mut two = || -> Result<(), Error> {
            // What the library orders the next operation behind.
            x.fill_bytes(3, &t)?;
            match how {
                4 => {
                    let (other, streams) = self.neighbour.as_ref().expect("another device");
                    let theirs = &streams[a % streams.len()];
                    let mut y = other.gpu.uninit::<u8>(x.len(), theirs)?;
                    y.fill_bytes(1, theirs)?;
                    x.copy_from_peer(&y, theirs, &s)?;
                    y.copy_from_peer(&x, &t, theirs)
                }
                5 => {
                    let (from, mut to) = (self.w.gpu.pinned_zeros(64)?, self.w.gpu.pinned_uninit(64)?);
                    transfer::scope(&s, |copies| copies.upload(&mut x.slice_mut(..64), from.view()))??;
                    transfer::scope(&t, |copies| copies.download(x.slice(..64), to.view_mut()))?
                }
                6 => {
                    let (low, high) = x.split_at_mut(bytes as usize / 2);
                    let (low, high) = (low.write_on(&s)?, high.write_on(&t)?);
                    for guard in [&low, &high] {
                        let launch = Launch::new("half").writes(guard.address(), guard.len() as u64);
                        sim.launch(guard.stream().native(), tagged(launch))?;
                    }
                    drop(low);
                    let _high = high;
                    Ok(())
                }
                _ => {
                    let host = self.w.gpu.pinned_zeros(64)?;
                    drop(x.slice_mut(..64).copy_from(host, &s)?);
                    drop(x.slice(..64).to_pinned(&t)?);
                    Ok(())
                }
            }
        };
        let done = two();
        for on in [a, b] {
            let (on, position) = self.tick(on);
            places.push((on, position, true));
        }
        match done {
            Ok(()) => {}
            Err(Error::Driver(e)) if !self.faulty => return Err(said(e)),
            // Perhaps some of it was queued.
            Err(Error::Driver(_) | Error::OutOfMemory(_) | Error::TimedOut { .. }) => {
                insist(|| self.w.gpu.synchronize()).map_err(said)?;
                for line in &self.lines {
                    self.host.join(&line.clock);
                }
            }
            Err(e) => return Err(said(e)),
        }
        let block = x.into_allocation().map_err(|_| "it is an allocation's".to_owned())?;
        if how == 7 {
            // The block is external memory, as its own home stream imports it; its owner is dropped when both uses are over.
            let Some(first) = self.lines[home].stream.clone() else { return Ok(()) };
            let memory = ExternalMemory { address, bytes, device: self.w.gpu.device() };
            for before in [&s, &t] {
                insist(|| first.wait_stream(before)).map_err(said)?;
            }
            // SAFETY: the block lives as long as its owner, and all that used it is ordered in front of its home stream.
            let made = unsafe { DeviceArray::<u8, Sim>::from_external(memory, 64, block, &first) };
            let mut x = made.map_err(|(_, e)| said(e))?;
            return match x.fill_bytes(2, &first).and_then(|()| x.fill_bytes(1, &t)) {
                Err(e) if !self.faulty => Err(said(e)),
                _ => Ok(()),
            };
        }
        self.live.push(Live { block, home, places, declared });
        Ok(())
    }

    fn step(&mut self) -> Outcome {
        let mut at = self.dice.below(self.weights.iter().sum());
        let verb = self.weights.iter().position(|&w| {
            let here = at < w;
            at = at.saturating_sub(w);
            here
        });
        let block = if self.live.is_empty() { None } else { Some(self.dice.below(self.live.len())) };
        match (verb.expect("a verb"), block) {
            (FREE, Some(i)) => self.free(i),
            (CROSS_STREAM, Some(i)) => self.cross_stream_use(i),
            (HOME, Some(i)) => {
                let (home, writes) = (self.live[i].home, self.dice.one_in(2));
                if self.lines[home].stream.is_some() && self.order(i, home, writes)? {
                    self.launch(i, home, writes)?;
                }
                Ok(())
            }
            (UNKNOWN, Some(i)) => self.free_unknown(i),
            (REBIRTH, _) => self.rebirth(),
            (WAIT, _) => {
                let ((a, _), (b, _)) = (self.any(), self.any());
                self.wait_stream(a, b)
            }
            (EVENTS, _) => self.events(),
            (SYNC, _) => self.synchronise(),
            (CLOSE, _) => self.close(),
            (TRIM, _) => {
                self.w.gpu.trim(Trim::All).or_else(planted_fault)?;
                Ok(())
            }
            (FAULT, _) => self.fault(),
            (ADVANCE, _) => self.advance(),
            (PIN, _) => self.pin(),
            (LATE, _) => self.late_launch(),
            (SHARED, _) => self.shared_out(),
            _ => self.alloc(),
        }
    }

    fn free(&mut self, i: usize) -> Outcome {
        let home = self.live[i].home;
        if !self.live[i].declared.is_empty()
            && self.lines[home].stream.is_some()
            && self.dice.one_in(4)
            && self.order(i, home, false)?
        {
            // The home stream uses it last.
            self.launch(i, home, false)?;
        }
        let gone = self.live.swap_remove(i);
        let bytes = gone.block.len();
        match gone.declared.first().copied() {
            Some(user) if self.lines[user].stream.is_some() && self.dice.one_in(3) => {
                // The use ends for the home stream, or for the host; the range comes back, and is shared out.
                let (other, b) = self.any();
                drop(gone);
                if self.dice.one_in(2) {
                    self.wait_stream(home, user)?;
                } else {
                    let s = self.lines[user].stream.clone().expect("open");
                    insist(|| s.synchronize()).map_err(said)?;
                    let known = self.lines[user].clock.clone();
                    self.host.join(&known);
                }
                if let Some(s) = self.lines[home].stream.clone() {
                    self.alloc_of(self.page, home, &s)?;
                }
                self.alloc_of(self.page, other, &b)
            }
            Some(user) if self.lines[user].stream.is_some() && self.dice.one_in(2) => {
                // Another stream learns of the home stream as it is, the home stream of its user, and then the other
                // needs the bytes.
                let (other, b) = self.any();
                let (s, a) = (self.lines[home].stream.clone(), self.lines[user].stream.clone());
                if let (Some(s), Some(a)) = (s, a) {
                    at("sealed", 1, move || {
                        drop(insist(|| b.wait_stream(&s)));
                        drop(insist(|| s.wait_stream(&a)));
                    });
                }
                drop(gone);
                let s = self.lines[other].stream.clone().expect("open");
                self.alloc_of(bytes, other, &s)
            }
            _ => {
                self.freeze(home, &["sealed", "unsealed", "closing"]);
                let used = !gone.declared.is_empty();
                drop(gone);
                if used && self.dice.one_in(2) {
                    // A part of it for another, a part for its home.
                    let (other, b) = self.any();
                    self.alloc_of(self.page, other, &b)?;
                    if let Some(s) = self.lines[home].stream.clone() {
                        self.alloc_of(self.page, home, &s)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn alloc(&mut self) -> Outcome {
        let (home, s) = self.any();
        let bytes = (1 + self.dice.below(4) as u64) * self.page;
        if self.dice.one_in(4) {
            self.freeze(home, &["numbered", "recorded"]);
        } else if self.dice.one_in(6) {
            self.end_at("numbered", home);
        }
        self.alloc_of(bytes, home, &s)
    }

    fn alloc_of(&mut self, bytes: u64, home: usize, s: &Stream<Sim>) -> Outcome {
        let block = self.w.gpu.alloc(bytes, s);
        self.allocated(block, home)
    }

    /// A block that its stream writes, if it was had.
    fn allocated(&mut self, block: Result<Block, Error>, home: usize) -> Outcome {
        let block = match block {
            Ok(block) => block,
            // A wish may fail for want of memory; for a fault, only where one was planted.
            Err(Error::Driver(e)) if !self.faulty => return Err(said(e)),
            // Another marker serves at once where a capture took one's event; two in a request may be more than it repeats. A capture of an earlier
            // operation may have taken the event of a stream that is not declared, whose next marker a call that names it makes: not this one.
            Err(Error::OutOfMemory(e))
                if self.one_inside.is_some_and(|on| e.passed_over_on.iter().any(|of| of.0 == on))
                    && e.report.total.largest_free >= e.rounded
                    && e.passed_over.as_ref().is_some_and(DriverError::is_of_captured_event) =>
            {
                return Err(said(e));
            }
            Err(_) => return Ok(()),
        };
        self.live.push(Live { block, home, places: Vec::new(), declared: Vec::new() });
        let i = self.live.len() - 1;
        if self.scrubs {
            self.reads_zeroes(i, home)?;
        }
        self.launch(i, home, true)
    }

    /// A new tenant looks at what it was given.
    fn reads_zeroes(&mut self, i: usize, home: usize) -> Outcome {
        let block = &self.live[i].block;
        let launch = Launch::check_pattern(block.address(), block.len(), 0).tag(block.id().expect("bytes"));
        self.queue(launch, i, home, false)
    }

    /// A use on another stream: declared before or after the launch, or exact; now and then only declared.
    fn cross_stream_use(&mut self, i: usize) -> Outcome {
        let (on, s) = self.any();
        let home = self.live[i].home;
        let writes = self.dice.one_in(2);
        if on == home || !self.order(i, on, writes)? {
            return Ok(());
        }
        let declared = self.live[i].declared.contains(&on);
        match self.dice.below(6) {
            0 => {
                insist(|| self.live[i].block.record_use(&s)).map_err(said)?;
                self.live[i].declared.push(on);
                Ok(())
            }
            1 if !declared => {
                self.launch(i, on, writes)?;
                let first = insist(|| s.record()).map_err(said)?;
                self.launch(i, on, writes)?;
                let second = insist(|| s.record()).map_err(said)?;
                self.live[i].block.record_use_until(&second).map_err(said)?;
                self.live[i].block.record_use_until(&first).map_err(said)?;
                self.events.push((first, Clock::default(), on));
                Ok(())
            }
            2 if !declared => {
                self.launch(i, on, writes)?;
                let until = insist(|| s.record()).map_err(said)?;
                self.live[i].block.record_use_until(&until).map_err(said)
            }
            _ => {
                insist(|| self.live[i].block.record_use(&s)).map_err(said)?;
                self.live[i].declared.push(on);
                self.launch(i, on, writes)?;
                if !writes && self.lines[home].stream.is_some() && self.dice.one_in(2) {
                    // The home stream reads on.
                    if self.order(i, home, false)? {
                        self.launch(i, home, false)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// A block that two other streams use is freed; a part of it goes to another, one of the two is done, and the home stream needs
    /// what is left.
    fn shared_out(&mut self) -> Outcome {
        let mut open: Vec<usize> =
            (0..self.lines.len()).filter(|&i| self.lines[i].stream.is_some()).collect();
        if open.len() < 3 {
            return Ok(());
        }
        let [home, first, second] = core::array::from_fn(|_| open.swap_remove(self.dice.below(open.len())));
        let users = [first, second];
        let s = self.lines[home].stream.clone().expect("open");
        if self.dice.one_in(2) {
            return self.between((home, &s), users[0]);
        }
        let live = self.live.len();
        // With nothing cached elsewhere, so that the part has to come from the block.
        insist(|| self.w.gpu.synchronize()).map_err(said)?;
        for line in &self.lines {
            self.host.join(&line.clock);
        }
        self.w.gpu.trim(Trim::All).or_else(planted_fault)?;
        // All there is, or some: a migration takes 2 MiB at least, and something is to be left.
        let taken: u64 = self.live.iter().map(|l| l.block.len()).sum();
        let most = self.limit.saturating_sub(taken) / self.page;
        let pages = if self.dice.one_in(4) { most.min(2 + self.dice.below(3) as u64) } else { most };
        if pages < 2 {
            return Ok(());
        }
        self.alloc_of(pages * self.page, home, &s)?;
        if self.live.len() == live {
            return Ok(());
        }
        let writes = self.dice.one_in(4);
        for on in users {
            let user = self.lines[on].stream.clone().expect("open");
            if self.order(live, on, writes)? {
                insist(|| self.live[live].block.record_use(&user)).map_err(said)?;
                self.launch(live, on, writes)?;
            }
        }
        drop(self.live.pop());
        let other = if self.dice.one_in(4) { self.any().0 } else { users[self.dice.below(2)] };
        let b = self.lines[other].stream.clone().expect("open");
        self.alloc_of(self.page, other, &b)?;
        let done = users[self.dice.below(2)];
        let user = self.lines[done].stream.clone().expect("open");
        insist(|| user.synchronize()).map_err(said)?;
        let known = self.lines[done].clock.clone();
        self.host.join(&known);
        self.alloc_of(self.page, home, &s)
    }

    /// Of three blocks in a row the second comes back complete between the first, which is complete, and the third, which is not;
    /// their stream needs as much as two, and another one the rest.
    fn between(&mut self, (home, s): (usize, &Stream<Sim>), user: usize) -> Outcome {
        let live = self.live.len();
        self.alloc_of(3 * self.page, home, s)?;
        self.live.truncate(live);
        for _ in 0..3 {
            self.alloc_of(self.page, home, s)?;
        }
        let u = self.lines[user].stream.clone().expect("open");
        if self.live.len() < live + 3 || !self.order(live + 1, user, false)? {
            return Ok(());
        }
        insist(|| self.live[live + 1].block.record_use(&u)).map_err(said)?;
        self.launch(live + 1, user, false)?;
        let last = self.live.pop().expect("the third");
        self.live.truncate(live);
        for (on, stream) in [(home, s), (user, &u)] {
            insist(|| stream.synchronize()).map_err(said)?;
            let known = self.lines[on].clock.clone();
            self.host.join(&known);
        }
        self.live.push(last);
        self.launch(live, home, true)?;
        drop(self.live.pop());
        self.alloc_of(2 * self.page, home, s)?;
        let (other, b) = self.any();
        self.alloc_of(self.page, other, &b)
    }

    /// Used without a record, and freed as such.
    fn free_unknown(&mut self, i: usize) -> Outcome {
        let (on, _) = self.any();
        if self.order(i, on, true)? {
            self.launch(i, on, true)?;
        }
        let gone = self.live.swap_remove(i);
        if self.faulty && self.dice.one_in(2) {
            self.w.sim.fail(Call::CtxRecordEvent, 1, DriverErrorKind::Other);
        }
        gone.block.free_unknown();
        Ok(())
    }

    /// Freed and allocated again on one stream, with no marker in between, and first used on another.
    fn rebirth(&mut self) -> Outcome {
        let ((home, s), (on, t)) = (self.any(), self.any());
        // The home stream of a use elsewhere is not named there.
        if home == on || s.info().unmanaged {
            return Ok(());
        }
        let bytes = (1 + self.dice.below(3) as u64) * self.page;
        let live = self.live.len();
        self.alloc_of(bytes, home, &s)?;
        if self.live.len() == live {
            return Ok(());
        }
        let records = |w: &World| w.sim.ledger().calls_of(Call::EventRecord);
        let mut before = records(&self.w);
        self.launch(live, home, true)?;
        let address = self.live.pop().expect("just allocated").block.address();
        if self.scrubs && self.dice.one_in(2) {
            // All of the former life is complete, so that the wipe alone is what the other stream has to wait for.
            insist(|| self.w.gpu.synchronize()).map_err(said)?;
            for line in &self.lines {
                self.host.join(&line.clock);
            }
            before = records(&self.w);
        }
        let Ok(block) = self.w.gpu.alloc(bytes, &s) else { return Ok(()) };
        if block.address() != address || records(&self.w) != before {
            return Ok(());
        }
        insist(|| block.share_with(&t)).map_err(said)?;
        let known = self.lines[home].clock.clone();
        self.lines[on].clock.join(&known);
        self.live.push(Live { block, home, places: Vec::new(), declared: vec![on] });
        self.launch(live, on, true)
    }

    fn events(&mut self) -> Outcome {
        let (on, s) = self.any();
        if self.events.len() < 4 || self.dice.one_in(2) {
            let known = self.lines[on].clock.clone();
            let freed = self.learns(on, "recorded").or_else(|| self.freeze(on, &["numbered", "recorded"]));
            let event = insist(|| s.record()).map_err(said)?;
            if self.events.len() >= 4 {
                self.events.remove(0);
            }
            self.events.push((event, known, on));
            return match freed {
                Some(bytes) => self.hear_of(self.events.len() - 1, bytes),
                None => Ok(()),
            };
        }
        let e = self.dice.below(self.events.len());
        let from = self.events[e].2;
        if self.dice.one_in(2) && self.lines[from].stream.is_some() {
            // What its stream learns later is not the event's.
            let (other, _) = self.any();
            self.wait_stream(from, other)?;
        }
        self.hear_of(e, self.page)
    }

    /// A stream waits for an event, or the host queries or waits; then a stream needs memory.
    fn hear_of(&mut self, e: usize, bytes: u64) -> Outcome {
        let (on, s) = self.any();
        let (event, known, _) = &self.events[e];
        let complete = match self.dice.below(6) {
            0 => insist(|| event.is_complete()).map_err(said)?,
            1 => insist(|| event.synchronize(Duration::from_secs(1))).is_ok(),
            _ => {
                insist(|| s.wait(event)).map_err(said)?;
                let known = known.clone();
                self.lines[on].clock.join(&known);
                false
            }
        };
        if complete {
            self.host.join(known);
        }
        self.alloc_of(bytes, on, &s)
    }

    fn synchronise(&mut self) -> Outcome {
        let (on, s) = self.any();
        let freed = if self.dice.one_in(8) {
            let known: Vec<_> = self.lines.iter().map(|l| l.clock.clone()).collect();
            let freed = self.freeze(on, &["all synchronised"]);
            insist(|| self.w.gpu.synchronize()).map_err(said)?;
            for clock in &known {
                self.host.join(clock);
            }
            freed
        } else {
            let known = self.lines[on].clock.clone();
            let freed = self.learns(on, "synchronised").or_else(|| self.freeze(on, &["synchronised"]));
            insist(|| s.synchronize()).map_err(said)?;
            self.host.join(&known);
            freed
        };
        let Some(bytes) = freed else { return Ok(()) };
        let (other, s) = self.any();
        self.alloc_of(bytes, other, &s)
    }

    /// A stream ends, and another begins.
    fn close(&mut self) -> Outcome {
        let (on, s) = self.any();
        drop(s);
        if self.dice.one_in(2) {
            // With nothing live, its pool closes with it.
            let gone = self.take_of(on);
            let open = |user: &usize| *user != on && self.lines[*user].stream.is_some();
            let user = gone.iter().flat_map(|l| l.declared.iter().copied()).find(open);
            drop(gone);
            if let Some(s) = user.and_then(|_| self.lines[on].stream.clone()) {
                // What it did itself is over; what it then comes behind is not.
                insist(|| s.synchronize()).map_err(said)?;
                let known = self.lines[on].clock.clone();
                self.host.join(&known);
            }
            let (other, _) = self.any();
            self.wait_stream(on, user.unwrap_or(other))?;
        }
        if self.dice.one_in(2) {
            let gpu = self.w.gpu.clone();
            at("closing", 1, move || drop(gpu.trim(Trim::All)));
        } else {
            self.freeze(on, &["closing"]);
        }
        self.lines[on].stream = None;
        if self.undeclared && self.dice.one_in(2) {
            // Its owner ends it, and another stream has its handle.
            self.lines[on].native = None;
        }
        self.open();
        if self.dice.one_in(2) {
            return Ok(());
        }
        for _ in 0..2 {
            self.w.gpu.trim(Trim::All).or_else(planted_fault)?;
        }
        let (other, s) = self.any();
        self.alloc_of(self.page, other, &s)
    }

    /// The live blocks of a stream.
    fn take_of(&mut self, home: usize) -> Vec<Live> {
        self.live.extract_if(.., |l| l.home == home).collect()
    }

    fn fault(&mut self) -> Outcome {
        if !self.faulty {
            self.w.sim.not_ready(1 + self.dice.below(3) as u32);
            return Ok(());
        }
        let call = *self.dice.of(&[
            Call::EventRecord,
            Call::StreamWaitEvent,
            Call::StreamWaitEvent,
            Call::StreamWaitEvent,
            Call::EventQuery,
            Call::EventQuery,
            Call::MemAlloc,
            Call::CtxRecordEvent,
        ]);
        if self.dice.one_in(3) {
            self.w.sim.not_ready(1 + self.dice.below(3) as u32);
        } else {
            let kind =
                if call == Call::MemAlloc { DriverErrorKind::OutOfMemory } else { DriverErrorKind::Other };
            self.w.sim.fail(call, 1, kind);
            if !self.dice.one_in(3) {
                // A wish that meets it, and the same wish again.
                let (on, s) = self.any();
                let bytes = (1 + self.dice.below(4) as u64) * self.page;
                self.alloc_of(bytes, on, &s)?;
                return self.alloc_of(bytes, on, &s);
            }
        }
        Ok(())
    }

    fn advance(&mut self) -> Outcome {
        let (_, s) = self.any();
        for _ in 0..=self.dice.below(6) {
            self.w.sim.advance(s.native()).map_err(said)?;
        }
        Ok(())
    }

    /// Pinned blocks: written by the CPU when handed out, read by a stream, dropped.
    fn pin(&mut self) -> Outcome {
        if !self.pinned.is_empty() && self.dice.one_in(2) {
            let i = self.dice.below(self.pinned.len());
            self.pinned.swap_remove(i);
            return Ok(());
        }
        let (_, s) = self.any();
        self.pin_one(&s)?;
        if self.dice.one_in(2) {
            // As many as may be pinned, in flight on one stream; and the same again.
            self.pinned.clear();
            for _ in 0..2 {
                self.pin_one(&s)?;
                self.pin_one(&s)?;
                self.pinned.clear();
            }
        }
        Ok(())
    }

    fn pin_one(&mut self, s: &Stream<Sim>) -> Outcome {
        let Ok(p) = self.w.gpu.alloc_pinned(MIB) else { return Ok(()) };
        self.w.sim.host_writes(p.address(), p.len()).map_err(said)?;
        let launch = || Launch::new("pinned").reads(p.address(), p.len()).tag(p.id().expect("bytes"));
        if self.dice.one_in(2) {
            insist(|| p.record_use(s)).map_err(said)?;
            self.w.sim.launch(s.native(), launch()).map_err(said)?;
        } else {
            self.w.sim.launch(s.native(), launch()).map_err(said)?;
            p.record_use_until(&insist(|| s.record()).map_err(said)?).map_err(said)?;
        }
        self.pinned.push(p);
        Ok(())
    }

    /// Other code continues with a stream that it shares with us, on a block whose use there was declared.
    fn late_launch(&mut self) -> Outcome {
        for i in 0..self.live.len() {
            for on in self.live[i].declared.clone() {
                let line = &self.lines[on];
                let open = line.stream.is_some();
                if (open || line.native.is_some()) && self.order(i, on, true)? {
                    return self.launch(i, on, true);
                }
            }
        }
        Ok(())
    }

    /// Now and then the next operation, on a stream, is stopped on its way, and another thread goes on. What that one
    /// orders, the program does not count on. If it frees a block of the stream: how many bytes.
    fn freeze(&mut self, on: usize, points: &[&'static str]) -> Option<u64> {
        if self.dice.one_in(2) {
            return None;
        }
        let point = *self.dice.of(points);
        // There the stopped thread holds its pool's lock: no other thread may need one.
        let locked = matches!(point, "sealed" | "unsealed");
        let ((_, a), (_, b)) = (self.any(), self.any());
        let gpu = self.w.gpu.clone();
        let at_home = |l: &Live| l.home == on && l.places.iter().all(|p| p.0 == l.home);
        let mine = (0..self.live.len()).find(|&i| at_home(&self.live[i]));
        let here = self.lines[on].stream.clone();
        match (self.dice.below(if locked { 2 } else { 6 }), mine, here) {
            (0, _, Some(s)) => at(point, 1, move || {
                // What others know of the stream, and then what it comes to know.
                drop(insist(|| b.wait_stream(&s)));
                drop(insist(|| s.wait_stream(&a)));
            }),
            (0 | 1, _, _) => at(point, 1, move || drop(insist(|| b.wait_stream(&a)))),
            (2, _, _) => at(point, 1, move || drop(gpu.trim(Trim::All))),
            // Another thread launches nothing on this one's default stream.
            (3, Some(i), Some(s)) if self.live.len() > 1 && s.info().kind != StreamKind::PerThreadDefault => {
                let Live { block, .. } = self.live.swap_remove(i);
                let (sim, bytes) = (self.w.sim.clone(), block.len());
                self.tick(on);
                at(point, 1, move || {
                    drop(World { sim, gpu }.write(&block, &s));
                    drop(block);
                });
                return Some(bytes);
            }
            (4, _, _) => {
                drop((a, b));
                self.end_at(point, on);
            }
            // Where the host waits for memory, it would wait for what the stopped thread has in transit.
            _ if self.hasty => {
                let (sim, bytes) = (self.w.sim.clone(), self.page);
                at(point, 1, move || {
                    if let Ok(x) = gpu.alloc(bytes, &a) {
                        drop(World { sim, gpu }.write(&x, &a));
                    }
                });
            }
            _ => {}
        }
        None
    }

    /// Now and then the next operation, on a stream, is stopped, and another thread makes the stream wait for a second one
    /// behind which a block was just freed: what the first one's marker covers does not cover that. How many bytes.
    fn learns(&mut self, on: usize, point: &'static str) -> Option<u64> {
        if !self.dice.one_in(4) {
            return None;
        }
        let s = self.lines[on].stream.clone()?;
        let elsewhere = |l: &Live| l.home != on && l.places.iter().all(|p| p.0 == l.home);
        let i = (0..self.live.len()).find(|&i| elsewhere(&self.live[i]))?;
        let from = self.lines[self.live[i].home].stream.clone()?;
        let Live { block, .. } = self.live.swap_remove(i);
        let bytes = block.len();
        drop(block);
        at(point, 1, move || drop(insist(|| s.wait_stream(&from))));
        Some(bytes)
    }

    /// Another stream than this one ends at a point, with all that lives there.
    fn end_at(&mut self, point: &'static str, but: usize) {
        let (other, s) = self.any();
        drop(s);
        if other == but {
            return;
        }
        let (gone, ends) = (self.take_of(other), self.lines[other].stream.take());
        self.open();
        at(point, 1, move || {
            drop(gone);
            drop(ends);
        });
    }

    /// Everything goes; then the two checks of liveness at rest, in either order, and the verdict.
    fn finish(mut self) -> Outcome {
        self.w.sim.clear_faults();
        let keep = self.dice.one_in(2);
        let rest_first = self.hasty || self.dice.one_in(2);
        let Run { w, mut lines, live, pinned, events, limit, deterministic, undeclared, neighbour, .. } =
            self;
        let quiet = || if deterministic || undeclared { w.gpu.synchronize().map_err(said) } else { Ok(()) };
        drop((live, pinned, events));
        if !keep {
            lines.clear();
            w.gpu.trim(Trim::All).map_err(said)?;
            let streams = w.sim.ledger().streams;
            // A block that is kept as external memory keeps its stream.
            ensure!(
                streams == 0 || w.gpu.bookkeeping().kept > 0,
                "{streams} streams are left without references or uses"
            );
        }
        w.sim.clear_faults();
        if w.gpu.bookkeeping().kept > 0 {
            // An owner that goes in a wait frees its block behind that.
            quiet()?;
        }
        quiet()?;
        if rest_first {
            w.all_back()?;
        }
        w.whole_limit()?;
        ensure!(
            w.gpu.report().reserved <= limit,
            "{} bytes taken, the limit is {limit}",
            w.gpu.report().reserved
        );
        quiet()?;
        w.all_back()?;
        drop(lines);
        w.end()?;
        neighbour.map_or(Ok(()), |(other, theirs)| {
            drop(theirs);
            other.end()
        })
    }
}

/// A planted fault strikes once and the program does not continue without what it requested.
fn insist<T>(mut verb: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let mut left = 4;
    loop {
        match verb() {
            Err(Error::Driver(_)) if left > 0 => left -= 1,
            done => return done,
        }
    }
}

/// A trim that met a fault has kept everything.
fn planted_fault<T: Default>(e: Error) -> Result<T, String> {
    if matches!(e, Error::Driver(_)) { Ok(T::default()) } else { Err(said(e)) }
}
