//! Spreads a log over streams and host threads, and puts seeded uses on other streams between its calls.
//!
//! The result is a flat list of acts that needs no further choice, so that the same seed runs the same way twice, on any
//! device. The program is correct: a use on another stream waits for what it must come after, it is declared to the
//! allocator, and the home stream waits for a use that wrote before it reads. An *injected bug* leaves one of
//! the three out.
//!
//! * **Streams.** By default those of the log that occur. With a number, blocks go to a stream of the number in runs of
//!   1 to 24, as programs do; the log's own streams stay apart, each with a share of the number by how much it allocates,
//!   at least one.
//! * **Threads.** By default the log's; with a number, calls go to a thread in runs.
//! * **Uses.** A seeded share of the blocks gets one or two, half of them within 32 calls of the allocation, half at
//!   any time of the block's life. Where there is one stream, another is opened for them.
//!
//! This file does not know what a stream or an allocator is.

use super::outcome::ReplayError;
use core::time::Duration;
use millpond_driver::random::{SplitMix64, stirred};
use millpond_trace::{Access, Action, Call, Log};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most streams that a log can be spread over. A miss looks at every pool that has enough free memory, in order or not, and closing
/// one looks at every pool: with 10,000 streams the time is theirs alone.
pub const STREAMS_MOST: u32 = 4096;
/// The most host threads that a log can be spread over.
pub const THREADS_MOST: u32 = 256;

/// Streams come in runs of at most this many blocks, threads of as many calls.
const RUN_MOST: u64 = 24;
/// Half of the uses happen within so many calls of the allocation.
const SOON: usize = 32;

/// How to replay a log. The defaults are the log's own streams and threads, no uses, one pass.
///
/// ```
/// use millpond_replay::Workload;
/// let spread = Workload::default().streams(4).uses(0.1).seed(7);
/// assert_eq!((spread.streams, spread.threads, spread.repeat), (Some(4), None, 1));
/// ```
#[derive(Clone, PartialEq, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "options, each by itself")]
#[non_exhaustive]
pub struct Workload {
    /// Over how many streams; `None`: the log's own.
    pub streams: Option<u32>,
    /// Over how many host threads; `None`: the log's own.
    pub threads: Option<u32>,
    /// The share of blocks that are used on another stream too, 0 to 1.
    pub uses: f64,
    /// What the choices are drawn from.
    pub seed: u64,
    /// The share of those uses that are made incorrect, 0 to 1: the program's own fault.
    pub broken: f64,
    /// The device work of a call becomes due so many calls later; 0: at once.
    pub run_ahead: u64,
    /// Whether the host makes each call at its time in the log and not before, on a device whose time is virtual. By default calls follow each other at
    /// once, as if the program did nothing else.
    pub paced: bool,
    /// Whether the log's stream 0 is the legacy default stream instead of a stream like the others.
    pub legacy: bool,
    /// Whether host threads run freely instead of taking turns in the order of the log. A block's free waits for its
    /// allocation all the same.
    pub racy: bool,
    /// How often the whole log is run, on one allocator; at least 1.
    pub repeat: u32,
    /// Whether a [map](super::Outcome::map) is made when the most bytes are live in the first pass, as requested. Only where calls are made in the order of the
    /// log.
    pub map: bool,
}

impl Default for Workload {
    fn default() -> Workload {
        Workload {
            streams: None,
            threads: None,
            uses: 0.0,
            seed: 0,
            broken: 0.0,
            run_ahead: 0,
            paced: false,
            legacy: false,
            racy: false,
            repeat: 1,
            map: false,
        }
    }
}

macro_rules! setters {
    ($($option:ident: $type:ty),+) => {
        impl Workload {
            $(#[doc = concat!("Sets [`Workload::", stringify!($option), "`].")]
            #[must_use]
            pub fn $option(self, $option: $type) -> Workload {
                Workload { $option: $option.into(), ..self }
            })+
        }
    };
}

setters! {
    streams: impl Into<Option<u32>>, threads: impl Into<Option<u32>>, uses: f64, seed: u64, broken: f64, run_ahead: u64, paced: bool, legacy: bool,
    racy: bool, repeat: u32, map: bool
}

/// One thing to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Act {
    pub(super) what: What,
    /// The block's place in the table of live blocks.
    pub(super) slot: u32,
    /// How many acts concern this slot before: in racy replays they follow each other all the same.
    pub(super) turn: u32,
    pub(super) stream: u16,
    pub(super) thread: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// Allocate, write; record an event behind the write if a use will want it.
    Alloc { bytes: u64, marked: bool },
    /// Read, and drop.
    Free,
    /// Read, and free behind another stream's work.
    FreeOn { other: u16 },
    /// A use by its number.
    CrossStreamUse { number: u32 },
}

/// A use on another stream than the block's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrossStreamUse {
    pub(super) stream: u16,
    pub(super) access: Access,
    pub(super) declared: Declaration,
    pub(super) bug: Option<InjectedBug>,
}

/// How the allocator learns of a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Declaration {
    /// `record_use` before the work is queued.
    Before,
    /// `record_use` after.
    After,
    /// `record_use_until` an event behind the work.
    Until,
    /// `share_with` before the work.
    Share,
    /// `free_on` at the end.
    AtFree,
}

/// What is left out of a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InjectedBug {
    /// It waits for nothing.
    Unordered,
    /// A read is not declared to the allocator.
    Undeclared,
    /// The home stream does not wait for what it wrote.
    Unjoined,
}

/// What a log becomes: acts in the order in which they happen.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) acts: Vec<Act>,
    pub(super) uses: Vec<CrossStreamUse>,
    pub(super) streams: u16,
    pub(super) threads: u16,
    pub(super) slots: u32,
    /// The stream that stands for the legacy default stream.
    pub(super) legacy: Option<u16>,
    pub(super) peak_live: u64,
    /// When each act happens, from the first call on; empty if the log has no times.
    pub(super) times: Vec<Duration>,
    /// Whether the host waits for them.
    pub(super) paced: bool,
}

/// What is drawn from a seed.
struct Seeded(SplitMix64);

impl Seeded {
    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.0.next()) * u128::from(n)) >> 64) as u64
    }
    /// Whether something of this probability happens.
    fn happens(&mut self, probability: f64) -> bool {
        (self.0.next() >> 11) as f64 / ((1u64 << 53) as f64) < probability
    }
}

/// Picks one of a group for a while, then another.
struct Runs {
    first: u16,
    count: u16,
    now: u16,
    left: u64,
}

impl Runs {
    fn new(first: u16, count: u16) -> Runs {
        Runs { first, count, now: first, left: 0 }
    }
    fn pick(&mut self, random: &mut Seeded) -> u16 {
        if self.count > 1 {
            if self.left == 0 {
                self.now = self.first + random.below(u64::from(self.count)) as u16;
                self.left = 1 + random.below(RUN_MOST);
            }
            self.left -= 1;
        }
        self.now
    }
}

impl Workload {
    fn check(&self) -> Result<(), ReplayError> {
        let error =
            |option, found: String, expected: String| Err(ReplayError::Workload { option, found, expected });
        for (option, share) in [("uses", self.uses), ("break", self.broken)] {
            if !(0.0..=1.0).contains(&share) {
                return error(option, share.to_string(), "a share from 0 to 1, or 0% to 100%".into());
            }
        }
        for (option, number, most) in
            [("streams", self.streams, STREAMS_MOST), ("threads", self.threads, THREADS_MOST)]
        {
            if number.is_some_and(|n| n == 0 || n > most) {
                return error(option, number.unwrap_or(0).to_string(), format!("a number from 1 to {most}"));
            }
        }
        if self.repeat == 0 {
            return error("repeat", "0".into(), "a number from 1".into());
        }
        Ok(())
    }

    /// The acts of a log.
    pub(super) fn plan(&self, log: &Log) -> Result<Plan, ReplayError> {
        self.check()?;
        let info = log.info();
        let (mut groups, mut streams) = self.groups(log);
        let threads = self.threads_over(log, info.threads)?;
        if self.uses > 0.0 && streams == 1 {
            streams = 2;
        }
        let legacy =
            if self.legacy { groups.first().and_then(Option::as_ref).map(|g| g.first) } else { None };
        let blocks = log.calls.iter().map(|c| c.block().0 as usize + 1).max().unwrap_or(0);
        let mut freed_at = vec![log.calls.len(); blocks];
        for (at, call) in log.calls.iter().enumerate() {
            if call.action() == Action::Free {
                freed_at[call.block().0 as usize] = at;
            }
        }
        let first = log.calls.first().map_or(0, Call::micros);
        let mut planner = Planner {
            workload: self,
            random: Seeded(SplitMix64::new(self.seed)),
            random_threads: Seeded(SplitMix64::new(stirred(self.seed ^ 0x7468_7265_6164_7321))),
            threads: self.threads.map(|n| Runs::new(0, n as u16)),
            streams,
            calls: log.calls.len(),
            now: Duration::ZERO,
            homes: vec![NOWHERE; blocks],
            free_slots: Vec::new(),
            turns: Vec::new(),
            due: BinaryHeap::new(),
            plan: Plan {
                acts: Vec::with_capacity(log.calls.len()),
                uses: Vec::new(),
                streams,
                threads,
                slots: 0,
                legacy,
                peak_live: info.peak_live,
                times: Vec::new(),
                paced: self.paced,
            },
            first,
            has_times: log.calls.last().is_some_and(|call| call.micros() > first),
        };
        for (at, call) in log.calls.iter().enumerate() {
            planner.call(at, call, &mut groups, &freed_at);
        }
        planner.uses_until(usize::MAX, 0);
        let Planner { turns, mut plan, .. } = planner;
        plan.slots = turns.len() as u32;
        Ok(plan)
    }

    /// Which streams stand for each stream of the log, and how many there are in all.
    fn groups(&self, log: &Log) -> (Vec<Option<Runs>>, u16) {
        let mut allocations: Vec<u64> = Vec::new();
        for call in &log.calls {
            let n = usize::from(call.stream().0);
            if n >= allocations.len() {
                allocations.resize(n + 1, 0);
            }
            // A stream that only frees is a stream too.
            allocations[n] += if call.action() == Action::Alloc { 1 << 16 } else { 1 };
        }
        let used = allocations.iter().filter(|n| **n > 0).count() as u64;
        let wanted = self.streams.map_or(used, u64::from);
        let whole: u128 = allocations.iter().map(|n| u128::from(*n)).sum();
        let (mut spare, mut first) = (wanted.saturating_sub(used), 0u64);
        let to_share = spare;
        let groups = allocations
            .iter()
            .enumerate()
            .map(|(n, &count)| {
                if count == 0 {
                    return None;
                }
                if wanted < used {
                    // Too few to stay apart.
                    first += 1;
                    return Some(Runs::new(((first - 1) % wanted) as u16, 1));
                }
                let last = allocations[n + 1..].iter().all(|c| *c == 0);
                let share = (u128::from(count) * u128::from(to_share) / whole) as u64;
                let extra = if last { spare } else { share.min(spare) };
                spare -= extra;
                let group = Runs::new(first as u16, 1 + extra as u16);
                first += 1 + extra;
                Some(group)
            })
            .collect();
        (groups, wanted as u16)
    }

    fn threads_over(&self, log: &Log, used: u64) -> Result<u16, ReplayError> {
        let highest = log.calls.iter().map(|c| u64::from(c.thread().0) + 1).max().unwrap_or(1);
        let wanted = self.threads.map_or(highest, u64::from);
        if wanted > u64::from(THREADS_MOST) {
            return Err(ReplayError::Workload {
                option: "threads",
                found: format!("the log's own {used}"),
                expected: format!("a number from 1 to {THREADS_MOST}: say which"),
            });
        }
        Ok(wanted as u16)
    }
}

/// Where a block lies that was not allocated yet.
const NOWHERE: Home = Home { slot: u32::MAX, stream: 0, own: 0, leaves_on: None };

#[derive(Clone, Copy)]
struct Home {
    slot: u32,
    stream: u16,
    /// The log's own stream.
    own: u16,
    /// The stream to free it on, if a use said so.
    leaves_on: Option<u16>,
}

struct Planner<'a> {
    workload: &'a Workload,
    random: Seeded,
    /// Threads are drawn apart, so that their number changes nothing else.
    random_threads: Seeded,
    /// `None`: the log's own.
    threads: Option<Runs>,
    streams: u16,
    /// How many calls the log has.
    calls: usize,
    /// When the first of them was made, in microseconds.
    first: u64,
    /// Whether a later one was made at another time.
    has_times: bool,
    /// How long after it the call is made that is looked at.
    now: Duration,
    homes: Vec<Home>,
    free_slots: Vec<u32>,
    /// Acts so far by slot.
    turns: Vec<u32>,
    /// Uses to come: before which call, which, to which block.
    due: BinaryHeap<Reverse<(usize, u32, u32)>>,
    plan: Plan,
}

impl Planner<'_> {
    fn act(&mut self, what: What, slot: u32, stream: u16, thread: u16) {
        let turn = &mut self.turns[slot as usize];
        self.plan.acts.push(Act { what, slot, turn: *turn, stream, thread });
        *turn += 1;
        if self.has_times {
            self.plan.times.push(self.now);
        }
    }

    /// The uses that are due before a call.
    fn uses_until(&mut self, at: usize, thread: u16) {
        while self.due.peek().is_some_and(|d| d.0.0 <= at) {
            let Some(Reverse((_, number, block))) = self.due.pop() else { break };
            let home = self.homes[block as usize];
            self.act(What::CrossStreamUse { number }, home.slot, home.stream, thread);
        }
    }

    fn call(&mut self, at: usize, call: &Call, groups: &mut [Option<Runs>], freed_at: &[usize]) {
        let thread = match &mut self.threads {
            Some(runs) => runs.pick(&mut self.random_threads),
            None => call.thread().0,
        };
        self.now = Duration::from_micros(call.micros().saturating_sub(self.first));
        self.uses_until(at, thread);
        let block = call.block().0;
        let own = call.stream().0;
        let group = groups[usize::from(own)].as_mut();
        match call.action() {
            Action::Alloc => {
                let stream = group.map_or(0, |g| g.pick(&mut self.random));
                // In turns, few slots that are used again keep the table small; free threads would wait for each other.
                let slot =
                    if self.workload.racy { None } else { self.free_slots.pop() }.unwrap_or_else(|| {
                        self.turns.push(0);
                        self.turns.len() as u32 - 1
                    });
                self.homes[block as usize] = Home { slot, stream, own, leaves_on: None };
                let used = call.bytes() > 0 && self.random.happens(self.workload.uses);
                let marked = used && self.random.below(2) == 0;
                self.act(What::Alloc { bytes: call.bytes(), marked }, slot, stream, thread);
                if used {
                    self.choose(at, block, freed_at[block as usize]);
                }
            }
            Action::Free => {
                let home = self.homes[block as usize];
                if home.slot == u32::MAX {
                    return;
                }
                let other = match home.leaves_on {
                    // A log's free on another of its streams is a free behind that stream's work.
                    None if own != home.own => group.map(|g| g.now),
                    other => other,
                };
                let what = match other.filter(|o| *o != home.stream) {
                    Some(other) => What::FreeOn { other },
                    None => What::Free,
                };
                self.act(what, home.slot, home.stream, thread);
                self.free_slots.push(home.slot);
                self.homes[block as usize] = NOWHERE;
            }
        }
    }

    /// Chooses the uses of a block that lives until the call `end`.
    fn choose(&mut self, at: usize, block: u32, end: usize) {
        let home = self.homes[block as usize].stream;
        let count = 1 + self.random.below(2);
        let life = (end - at) as u64;
        let mut moments: Vec<usize> = (0..count)
            .map(|_| {
                let within = if self.random.below(2) == 0 { life.min(SOON as u64) } else { life };
                at + 1 + self.random.below(within.max(1)) as usize
            })
            .collect();
        moments.sort_unstable();
        let mut known_on = None;
        for (k, moment) in moments.iter().enumerate() {
            let other = self.random.below(u64::from(self.streams) - 1) as u16;
            let stream = other + u16::from(other >= home);
            let access = if self.random.below(3) == 0 { Access::Write } else { Access::Read };
            let last = k + 1 == moments.len();
            let declared = match self.random.below(8) {
                0..=2 => Declaration::Before,
                3 => Declaration::After,
                4 => Declaration::Until,
                5 => Declaration::Share,
                // Free with a use's stream only where the free is the log's, and the use the last.
                _ if last && end < self.calls => Declaration::AtFree,
                _ => Declaration::Before,
            };
            // An undeclared write that the home stream waits for would be correct, and so might an undeclared read on a stream
            // that the allocator knows to use the block.
            let bug =
                self.random.happens(self.workload.broken).then(|| match (self.random.below(2), access) {
                    (0, Access::Read) if known_on != Some(stream) => InjectedBug::Undeclared,
                    (0, Access::Write) => InjectedBug::Unjoined,
                    _ => InjectedBug::Unordered,
                });
            if declared == Declaration::AtFree && bug != Some(InjectedBug::Undeclared) {
                self.homes[block as usize].leaves_on = Some(stream);
            }
            if bug != Some(InjectedBug::Undeclared) {
                known_on = Some(stream);
            }
            let number = self.plan.uses.len() as u32;
            self.plan.uses.push(CrossStreamUse { stream, access, declared, bug });
            self.due.push(Reverse((*moment, number, block)));
        }
    }
}

#[cfg(test)]
mod tests;
