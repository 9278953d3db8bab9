//! Runs a program step by step on an allocator.
//!
//! The table from a program's numbers to real things is here: streams, events, blocks. Each write of a block gets a word
//! of its own, and a read checks for the last one in the order of the program: a correct program makes that the right
//! one under any schedule. Copies move words between blocks, so a block is remembered in pieces. Requests may fail
//! (programs may request more than any device has); what names the block is then left out until the number is given again.
//!
//! It does not judge the order of steps: a wrong program runs like a right one, and the device's judge says so.

use super::outcome::{Outcome, ReplayError};
use super::touch::Touch;
use super::turns;
use super::workload::THREADS_MOST;
use core::time::Duration;
use hashbrown::HashMap;
use millpond::Error;
use millpond::{Allocation, Allocator, Config, Event, Limit, PinnedAllocation, Stream, Trim};
use millpond_driver::random::stirred;
use millpond_driver::units::{Addr, AllocationId};
use millpond_driver::{Called, Caller, Driver};
use millpond_trace::{Access, BlockNo, EventNo, Op, Program, Rules, StreamNo};

/// How long a step waits for an event: until it is complete, as for a stream. On the simulator that takes virtual time, and an event
/// that cannot be complete is an error at once.
const EVENT_WAIT: Duration = Duration::MAX;

/// Runs a program on an allocator, with streams of its own. Blocks that are alive at the end are freed, streams closed.
/// Several host threads of a program are real threads that take turns in its order.
///
/// The outcome's counts are the allocator's and the device's *so far*: nothing that is queued is run for them, and what
/// the allocator did before counts too. Ask the device for the verdict:
/// [`Sim::verdict`](millpond_sim::Sim::verdict).
///
/// # Errors
/// [`ReplayError::Fault`] for a program that is not well-formed; [`ReplayError::Workload`] for one of more than [`THREADS_MOST`] host threads;
/// [`ReplayError::Step`] for a driver call that failed. A request that is refused is no error: [`Outcome::refused`].
pub fn replay<D: Touch>(program: &Program, allocator: &Allocator<D>) -> Result<Outcome, ReplayError> {
    replay_watched(program, allocator, &|_, _| {})
}

/// Runs a program on an allocator ([`replay`]) and calls `after` behind each step with the step's number and, if it handed a block out,
/// where that begins: for tests that check something at every step.
///
/// # Errors
/// As [`replay`].
pub fn replay_watched<D: Touch>(
    program: &Program,
    allocator: &Allocator<D>,
    after: &(dyn Fn(usize, Option<Addr>) + Sync),
) -> Result<Outcome, ReplayError> {
    let mut outcome = run(program, allocator, after, false)?;
    outcome.take_report(allocator.driver(), allocator.report());
    outcome.take_judgement(allocator.driver().judge(false));
    Ok(outcome)
}

/// Runs a program on a device of its own: makes an allocator, runs every step, drops everything, and returns the device's
/// judgement. `run_ahead`: as in [`Workload::run_ahead`](super::Workload::run_ahead), in steps of the program that are `tick`.
///
/// # Errors
/// As [`replay`]; an allocator that could not be made.
///
/// # Panics
/// With `run_ahead` on a [`Sim`](millpond_sim::Sim) that was used before.
pub fn replay_program<D: Touch>(
    program: &Program,
    driver: D,
    config: Config,
    run_ahead: u64,
) -> Result<Outcome, ReplayError> {
    on_a_device(program, driver, config, run_ahead, false)
}

/// The same, with a [map](Outcome::map) of the device's memory behind the last step, before what is alive is freed.
///
/// # Errors
/// As [`replay_program`].
///
/// # Panics
/// As [`replay_program`].
pub fn replay_program_with_map<D: Touch>(
    program: &Program,
    driver: D,
    config: Config,
    run_ahead: u64,
) -> Result<Outcome, ReplayError> {
    on_a_device(program, driver, config, run_ahead, true)
}

fn on_a_device<D: Touch>(
    program: &Program,
    driver: D,
    config: Config,
    run_ahead: u64,
    map: bool,
) -> Result<Outcome, ReplayError> {
    let driver = driver.ahead(run_ahead);
    let allocator = Allocator::new(driver.clone(), config).map_err(ReplayError::Setup)?;
    let mut outcome = run(program, &allocator, &|_, _| {}, map)?;
    outcome.makespan_ns = driver.makespan().and_then(|m| u64::try_from(m.as_nanos()).ok());
    outcome.take_report(&driver, allocator.report());
    outcome.lost.allocations = allocator.live().len() as u64;
    drop(allocator);
    outcome.lost.left = driver.lost();
    outcome.take_judgement(driver.judge(true));
    Ok(outcome)
}

fn run<D: Touch>(
    program: &Program,
    allocator: &Allocator<D>,
    after: &(dyn Fn(usize, Option<Addr>) + Sync),
    map: bool,
) -> Result<Outcome, ReplayError> {
    program.check().map_err(ReplayError::Fault)?;
    let step = |table: &mut Table<D>, at: usize| {
        let op = program.steps[at].op;
        let _called = Called::<D>::at(Caller::Step(at as u64));
        let done = table.step(op).map_err(|error| ReplayError::Step { step: at, op, error })?;
        let handed = if let Done::Handed(addr) = done { Some(addr) } else { None };
        after(at, handed);
        Ok(())
    };
    // Numbers may be sparse: threads that do nothing are not made.
    let mut numbers: Vec<u16> = program.steps.iter().map(|s| s.thread.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() > THREADS_MOST as usize {
        return Err(ReplayError::Workload {
            option: "threads",
            found: numbers.len().to_string(),
            expected: format!(
                "at most {THREADS_MOST} different ones in a program: each is a thread of this process"
            ),
        });
    }
    let mut table = Table::new(allocator);
    for number in 0..program.streams {
        table.open(StreamNo(number)).map_err(ReplayError::Setup)?;
    }
    let count = program.steps.len();
    let (mut table, ran) = if numbers.len() <= 1 {
        let ran = (0..count).try_for_each(|at| step(&mut table, at));
        (table, ran)
    } else {
        let of = |at: usize| numbers.partition_point(|n| *n < program.steps[at].thread.0) as u16;
        turns::take_turns(numbers.len() as u16, count, of, table, |table, from, to| {
            (from..to).try_for_each(|at| step(table, at))
        })
    };
    let map = map.then(|| allocator.memory_map());
    table.free_all();
    ran?;
    Ok(Outcome {
        map,
        trace: program.name.clone(),
        calls: count as u64,
        streams: table.opened,
        threads: numbers.len().max(1) as u64,
        cross_stream_uses: table.cross_stream_uses,
        peak_requested_bytes: table.device.peak,
        peak_pinned_bytes: table.pinned.peak,
        refused: table.refused,
        ..Outcome::default()
    })
}

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Done {
    /// It was done, or named a block whose request was refused.
    Yes,
    /// A block was handed out, which begins here.
    Handed(Addr),
    /// A request was refused: steps that name the block do nothing until the number is given again.
    Refused,
    /// The device ran so many of a stream's queued operations.
    Ran(u32),
}

/// Runs a program that is made while it runs, operation by operation: for tests that decide about the next one when they know what came
/// of the last. [`replay`] runs a whole program in the same way.
///
/// Whichever thread calls is the host thread of an operation. What is alive when it is dropped is freed, and its streams are closed.
///
/// ```
/// use millpond::trace::{BlockNo, Op, StreamNo};
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_replay::{Done, Executor};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::new(GIB);
/// let gpu = Allocator::new(sim.clone(), Config::default())?;
/// let mut executor = Executor::new(&gpu, 1)?;
/// let alloc = Op::Alloc { block: BlockNo(0), bytes: 4096, align: None, stream: StreamNo(0) };
/// assert!(matches!(executor.step(alloc)?, Done::Handed(_)));
/// # Ok(()) }
/// ```
pub struct Executor<D: Touch> {
    rules: Rules,
    table: Table<D>,
}

impl<D: Touch> core::fmt::Debug for Executor<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Executor").field("steps", &self.rules.steps()).finish_non_exhaustive()
    }
}

impl<D: Touch> Executor<D> {
    /// On an allocator, with so many streams open, as a program's header counts them.
    ///
    /// # Errors
    /// [`ReplayError::Setup`] when a stream could not be made.
    pub fn new(allocator: &Allocator<D>, streams: u16) -> Result<Executor<D>, ReplayError> {
        let mut table = Table::new(allocator);
        (0..streams).try_for_each(|number| table.open(StreamNo(number))).map_err(ReplayError::Setup)?;
        Ok(Executor { rules: Rules::new(streams), table })
    }

    /// Runs the next operation of the program.
    ///
    /// # Errors
    /// [`ReplayError::Fault`] for one that breaks a rule of the language, which is not run; [`ReplayError::Step`] for a driver call that
    /// failed. A request that is refused is no error: [`Done::Refused`].
    pub fn step(&mut self, op: Op) -> Result<Done, ReplayError> {
        let step = self.rules.steps();
        self.rules.step(&op).map_err(ReplayError::Fault)?;
        let _called = Called::<D>::at(Caller::Step(step as u64));
        self.table.step(op).map_err(|error| ReplayError::Step { step, op, error })
    }

    /// Frees what is alive, in the order of the blocks' numbers. The streams stay open.
    pub fn free_all(&mut self) {
        self.table.free_all();
    }
}

/// A stretch of a block that one write made: its end, and the word it holds, anchored at the block's beginning.
#[derive(Clone, Copy)]
struct Piece {
    end: u64,
    word: Option<u64>,
}

enum Place<D: Driver> {
    Device(Allocation<D>),
    Pinned(PinnedAllocation<D>),
}

struct Block<D: Driver> {
    place: Place<D>,
    /// They tile the block.
    pieces: Vec<Piece>,
}

impl<D: Driver> Block<D> {
    fn new(place: Place<D>) -> Block<D> {
        let mut block = Block { place, pieces: Vec::new() };
        block.pieces.push(Piece { end: block.bytes(), word: None });
        block
    }
    fn bytes(&self) -> u64 {
        match &self.place {
            Place::Device(a) => a.len(),
            Place::Pinned(p) => p.len(),
        }
    }
    fn addr(&self) -> Addr {
        match &self.place {
            Place::Device(a) => a.address(),
            Place::Pinned(p) => p.address(),
        }
    }
    /// `None` for no bytes: nothing can touch them.
    fn id(&self) -> Option<AllocationId> {
        match &self.place {
            Place::Device(a) => a.id(),
            Place::Pinned(p) => p.id(),
        }
    }
    /// Whether it is on another stream there than the one it was allocated on. Pinned memory is of none.
    fn is_away(&self, stream: &Stream<D>) -> bool {
        match &self.place {
            Place::Device(a) => a.stream_id() != Some(stream.id()),
            Place::Pinned(_) => false,
        }
    }
    fn record_use(&self, stream: &Stream<D>) -> Result<(), Error> {
        match &self.place {
            Place::Device(a) => a.record_use(stream),
            Place::Pinned(p) => p.record_use(stream),
        }
    }
    fn record_use_until(&self, event: &Event<D>) -> Result<(), Error> {
        match &self.place {
            Place::Device(a) => a.record_use_until(event),
            Place::Pinned(p) => p.record_use_until(event),
        }
    }
    /// The pieces of the first `bytes`.
    fn first(&self, bytes: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut start = 0;
        for p in &self.pieces {
            if start < bytes {
                pieces.push(Piece { end: p.end.min(bytes), word: p.word });
            }
            start = p.end;
        }
        pieces
    }
}

/// What a program's numbers stand for.
struct Table<D: Touch> {
    allocator: Allocator<D>,
    streams: HashMap<StreamNo, Stream<D>>,
    events: HashMap<EventNo, Event<D>>,
    blocks: HashMap<BlockNo, Block<D>>,
    writes: u64,
    opened: u64,
    cross_stream_uses: u64,
    refused: u64,
    device: Live,
    pinned: Live,
}

/// Bytes that are alive, as requested.
#[derive(Default)]
struct Live {
    now: u64,
    peak: u64,
}

impl Live {
    fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.peak = self.peak.max(self.now);
    }
}

impl<D: Touch> Table<D> {
    fn new(allocator: &Allocator<D>) -> Table<D> {
        Table {
            allocator: allocator.clone(),
            streams: HashMap::new(),
            events: HashMap::new(),
            blocks: HashMap::new(),
            writes: 0,
            opened: 0,
            cross_stream_uses: 0,
            refused: 0,
            device: Live::default(),
            pinned: Live::default(),
        }
    }

    fn open(&mut self, number: StreamNo) -> Result<(), Error> {
        // Nothing on it waits for what another stream does later.
        let stream = self.allocator.stream()?.dependable();
        self.allocator.driver().number(stream.native(), u64::from(number.0))?;
        self.streams.insert(number, stream);
        self.opened += 1;
        Ok(())
    }

    /// A stream that the rules say is open.
    fn stream(&self, number: StreamNo) -> Stream<D> {
        self.streams[&number].clone()
    }

    /// Enters a block, if there is one, and says where it begins.
    fn enter(&mut self, number: BlockNo, made: Result<Place<D>, Error>) -> Result<Done, Error> {
        match made {
            Ok(place) => {
                let block = Block::new(place);
                if D::JUDGES
                    && let Some(id) = block.id()
                {
                    self.allocator.driver().name(id, &number.to_string());
                }
                let addr = block.addr();
                self.live_with(&block.place).add(block.bytes());
                self.blocks.insert(number, block);
                Ok(Done::Handed(addr))
            }
            Err(Error::OutOfMemory(_) | Error::TooLarge { .. } | Error::BadAlignment { .. }) => {
                self.refused += 1;
                Ok(Done::Refused)
            }
            Err(e) => Err(e),
        }
    }

    /// Takes a block out, if its request was served.
    fn leave(&mut self, number: BlockNo) -> Option<Place<D>> {
        let block = self.blocks.remove(&number)?;
        self.live_with(&block.place).now -= block.bytes();
        Some(block.place)
    }

    /// Frees what is alive, in the order of its numbers: the same program ends the same way each time.
    fn free_all(&mut self) {
        let mut alive: Vec<BlockNo> = self.blocks.keys().copied().collect();
        alive.sort_unstable();
        for block in alive {
            drop(self.leave(block));
        }
    }

    /// What is alive beside a block: the device's memory and the host's are no part of each other.
    fn live_with(&mut self, place: &Place<D>) -> &mut Live {
        match place {
            Place::Device(_) => &mut self.device,
            Place::Pinned(_) => &mut self.pinned,
        }
    }

    /// Runs one that keeps the rules, and says what came of it.
    fn step(&mut self, op: Op) -> Result<Done, Error> {
        match op {
            Op::Alloc { block, bytes, align, stream } => {
                let stream = self.stream(stream);
                let made = match align {
                    Some(align) => self.allocator.alloc_aligned(bytes, align, &stream),
                    None => self.allocator.alloc(bytes, &stream),
                };
                return self.enter(block, made.map(Place::Device));
            }
            Op::AllocPinned { block, bytes } => {
                let made = self.allocator.alloc_pinned(bytes);
                return self.enter(block, made.map(Place::Pinned));
            }
            Op::Free { block } => drop(self.leave(block)),
            Op::FreeOn { block, stream } => {
                if let Some(Place::Device(a)) = self.leave(block) {
                    a.free_on(&self.stream(stream)).map_err(|(_, e)| e)?;
                }
            }
            Op::FreeUnknown { block } => {
                if let Some(Place::Device(a)) = self.leave(block) {
                    a.free_unknown();
                }
            }
            Op::Use { block, stream, access, recorded } => self.touch(block, stream, access, recorded)?,
            Op::RecordUse { block, stream } => {
                if let Some(b) = self.blocks.get(&block) {
                    b.record_use(&self.streams[&stream])?;
                }
            }
            Op::RecordUseUntil { block, event } => {
                if let (Some(b), Some(event)) = (self.blocks.get(&block), self.events.get(&event)) {
                    b.record_use_until(event)?;
                }
            }
            Op::ShareWith { block, stream } => {
                if let Some(Block { place: Place::Device(a), .. }) = self.blocks.get(&block) {
                    a.share_with(&self.streams[&stream])?;
                }
            }
            Op::Copy { to, from, bytes, stream } => self.copy(to, from, bytes, stream)?,
            Op::Record { event, stream } => {
                let recorded = self.stream(stream).record()?;
                self.events.insert(event, recorded);
            }
            Op::Wait { stream, event } => {
                if let Some(event) = self.events.get(&event) {
                    self.streams[&stream].wait(event)?;
                }
            }
            Op::WaitStream { stream, on } => self.streams[&stream].wait_stream(&self.streams[&on])?,
            Op::SyncStream { stream } => self.streams[&stream].synchronize()?,
            Op::SyncEvent { event } => {
                if let Some(event) = self.events.get(&event) {
                    event.synchronize(EVENT_WAIT)?;
                }
            }
            Op::SyncDevice => self.allocator.synchronize()?,
            Op::Query { event } => {
                if let Some(event) = self.events.get(&event) {
                    event.is_complete()?;
                }
            }
            Op::OpenStream { stream } => self.open(stream)?,
            Op::CloseStream { stream } => drop(self.streams.remove(&stream)),
            Op::Trim { stream: None } => {
                self.allocator.trim(Trim::All)?;
            }
            Op::Trim { stream: Some(stream) } => {
                self.allocator.trim(Trim::Stream(&self.streams[&stream]))?;
            }
            Op::SetLimit { bytes } => {
                self.allocator.set_limit(bytes.map_or(Limit::None, Limit::Bytes))?;
            }
            Op::Advance { stream, steps } => {
                let ran = self.allocator.driver().advance(self.streams[&stream].native(), steps)?;
                return Ok(Done::Ran(ran));
            }
            Op::Tick => self.allocator.driver().tick(),
            Op::NotReady { times } => self.allocator.driver().not_ready(times),
        }
        Ok(Done::Yes)
    }

    #[allow(unsafe_code, reason = "pinned blocks are touched by kernels, too")]
    fn touch(
        &mut self,
        block: BlockNo,
        stream: StreamNo,
        access: Access,
        recorded: bool,
    ) -> Result<(), Error> {
        let Some(b) = self.blocks.get_mut(&block) else { return Ok(()) };
        let Some(id) = b.id() else { return Ok(()) };
        let stream = &self.streams[&stream];
        self.cross_stream_uses += u64::from(b.is_away(stream));
        if recorded {
            b.record_use(stream)?;
        }
        let driver = self.allocator.driver();
        let (addr, bytes) = (b.addr(), b.bytes());
        if !recorded && matches!(b.place, Place::Pinned(_)) {
            // The allocator may reuse the bytes while this is queued, for an owner with references to them: it is judged,
            // and touches nothing.
            return Ok(driver.declare(stream.native(), addr, bytes, id, access)?);
        }
        match access {
            Access::Write => {
                self.writes += 1;
                let word = stirred(self.writes) | 1;
                // SAFETY: the block is live and the program's; no reference to it exists, and if it is pinned, the use was
                // recorded above, so that its bytes are not reused before the kernel is complete.
                unsafe { driver.write(stream.native(), addr, bytes, id, word)? };
                b.pieces.clear();
                b.pieces.push(Piece { end: bytes, word: Some(word) });
            }
            Access::Read => {
                let mut start = 0;
                for p in &b.pieces {
                    // The word is anchored at the block's beginning; a check's begins with its range.
                    let word = p.word.map(|w| w.rotate_right(8 * (start % 8) as u32));
                    // SAFETY: as for the write.
                    unsafe { driver.read(stream.native(), Addr(addr.0 + start), p.end - start, id, word)? };
                    start = p.end;
                }
            }
        }
        Ok(())
    }

    #[allow(unsafe_code, reason = "one block of a copy may be pinned")]
    fn copy(&mut self, to: BlockNo, from: BlockNo, bytes: u64, stream: StreamNo) -> Result<(), Error> {
        let (Some(source), Some(target)) = (self.blocks.get(&from), self.blocks.get(&to)) else {
            return Ok(());
        };
        let stream = &self.streams[&stream];
        source.record_use(stream)?;
        target.record_use(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.cross_stream_uses += [source, target].iter().filter(|b| b.is_away(stream)).count() as u64;
        // SAFETY: both blocks are live and the program's, no reference to them exists, and both uses were recorded above,
        // so that their bytes are not reused before the copy is complete.
        unsafe { self.allocator.driver().copy(stream.native(), target.addr(), source.addr(), bytes)? };
        let mut pieces = source.first(bytes);
        pieces.extend(target.pieces.iter().copied().filter(|p| p.end > bytes));
        // Neighbours that hold one word are one: else each shorter copy of it would be a check more in every read to come.
        pieces.dedup_by(|next, before| {
            let same = next.word == before.word;
            if same {
                before.end = next.end;
            }
            same
        });
        if let Some(target) = self.blocks.get_mut(&to) {
            target.pieces = pieces;
        }
        Ok(())
    }
}
