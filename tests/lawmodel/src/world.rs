//! The state of one run: timelines, pools, slots (address ranges), handles (physical memory), allocations; and its choices.
//!
//! Every decision of a run goes through [`World::choose`], so that a run is its list of choices and can be replayed and
//! shrunk. Short names recur: `lo..hi` a range of cells, `st` a stamp, `e` an epoch, `k` a clock of known epochs, `p` a
//! pool and its stream, `t` the requesting stream, `u` another stream, `h` a handle, `va` an address. This file knows no laws.

use crate::mutants::*;
use crate::truth::*;

/// A marker's number on its stream.
pub type Epoch = u32;

/// An epoch for each timeline: up to there it is ordered before something.
pub type Known = [Epoch; N];

/// A published marker.
#[derive(Clone)]
pub struct Mark {
    /// Its number on its stream.
    pub n: Epoch,
    /// Its event.
    pub ev: usize,
    /// What its stream was known to be ordered after when it was made.
    pub k: Known,
}

/// One stream's markers, in the registry of the device.
#[derive(Default)]
pub struct Timeline {
    /// The newest number reserved.
    pub submitted: Epoch,
    /// The newest number that the host knows to be complete.
    pub complete: Epoch,
    /// The newest marker of each other stream that this one is ordered after.
    pub k: Known,
    /// For each of those, `submitted` at the time when it became known (a variant uses it).
    pub learned: Known,
    /// Published markers.
    pub marks: Vec<Mark>,
    /// How many tasks are making a marker on this stream.
    pub marking: u8,
    /// Open uses of allocations.
    pub open: u32,
    /// A marker has fallen due.
    pub due: bool,
    /// How many frees went in flight because of this stream, to decide when a marker is due.
    pub frees: u32,
    /// The user dropped the stream.
    pub dropped: bool,
    /// User calls under way on it.
    pub users: u32,
    /// Closing has begun.
    pub ctx_done: bool,
}

/// A free range of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Free {
    pub lo: usize,
    pub hi: usize,
    /// The stamp: an epoch of the pool's own stream, the latest with which any of it entered.
    pub st: Epoch,
    /// It was merged from ranges with different stamps, which the units have.
    pub mixed: bool,
}

/// A range that was freed while a cross-stream use was neither ordered nor complete.
#[derive(Clone, Debug)]
pub struct Infl {
    pub lo: usize,
    pub hi: usize,
    /// Sealed uses: stream and epoch.
    pub uses: Vec<(usize, Epoch)>,
    /// The stamp of its own stream.
    pub home: Epoch,
}

/// One stream's ranges.
#[derive(Default)]
pub struct Pool {
    pub lock: bool,
    pub free: Vec<Free>,
    pub infl: Vec<Infl>,
    /// For each slot, the latest stamp that was written there when ranges with different stamps merged.
    pub units: Vec<Epoch>,
    /// Allocations alive.
    pub live: u32,
    pub closed: bool,
}

/// One use of an allocation.
#[derive(Clone, Debug)]
pub struct Use {
    /// The stream.
    pub s: usize,
    /// The epoch; none while the use is open.
    pub e: Option<Epoch>,
    /// A write.
    pub w: bool,
    pub lo: usize,
    pub hi: usize,
    /// Recorded by the user, not by an operation of ours.
    pub raw: bool,
    /// It is of a borrow, whose end is not reported: it stays open for whatever is queued until then.
    pub borrowed: bool,
    /// The stamp at registration (a mutant seals with it).
    pub sealed: Epoch,
    /// The operation it belongs to.
    pub op: u64,
}

/// What is mapped at a slot.
#[derive(Clone, PartialEq)]
pub enum SlotState {
    /// Nothing.
    Empty,
    /// A task is about to map something here.
    Busy,
    /// This handle.
    Mapped(usize),
    /// A handle that has moved on, until these uses through the old addresses are complete.
    Deferred(usize, Vec<(usize, Epoch)>),
}

/// A handle-sized range of addresses in one pool's reservation.
pub struct Slot {
    pub st: SlotState,
    /// Ground truth: accesses made through these addresses.
    pub acc: Clock,
}

/// Physical memory.
#[derive(Default)]
pub struct Handle {
    pub exists: bool,
    /// A task is moving or releasing it.
    pub busy: bool,
    /// Where it is mapped.
    pub slot: usize,
    /// Ground truth: accesses made to it.
    pub acc: Clock,
    /// Released to a stream-ordered source behind this clock.
    pub up: Option<Clock>,
}

/// An allocation, alive or dead.
pub struct Alloc {
    pub pool: usize,
    pub lo: usize,
    pub hi: usize,
    /// The birth stamp (O7).
    pub birth: Epoch,
    pub uses: Vec<Use>,
    /// Ground truth: what its first use must be ordered after.
    pub born: Clock,
    pub live: bool,
    /// Its accesses go through our operations, which order them.
    pub array: bool,
    /// A stream that the allocator does not know has used it.
    pub unknown: bool,
    /// User operations under way: range and whether it writes (98 and 99 mark raw uses and frees).
    pub acts: Vec<(usize, usize, bool)>,
    /// Ground truth: accesses so far, as (stream, position, write, range).
    pub hist: Vec<(usize, u16, bool, usize, usize)>,
    /// Streams with a recorded raw use.
    pub regs: [bool; N],
}

/// The sizes of a run, and how often it does what.
#[derive(Clone, Default, Debug)]
pub struct Cfg {
    /// Streams with a pool.
    pub ns: usize,
    /// Host threads.
    pub nt: usize,
    /// Cells in a handle.
    pub h: usize,
    /// Handles.
    pub nh: usize,
    /// Slots per pool.
    pub spp: usize,
    /// Whether raw, unadopted streams are used.
    pub x: bool,
    /// Whether memory may come from a stream-ordered source.
    pub up: bool,
    /// One driver call in this many fails; 0 for none.
    pub fault: usize,
    /// How often the device runs an operation, in sixteenths.
    pub dev: usize,
    /// How often the same thread runs on, in sixteenths.
    pub stick: usize,
    /// Calls of each user thread.
    pub budget: usize,
    /// Share of arrays, in quarters.
    pub arr: usize,
    /// Share of operations with several arrays among those on arrays, in quarters.
    pub joint: usize,
    /// Whether streams are dropped.
    pub close: bool,
    /// Whether handles move.
    pub mv: bool,
    /// How long a thread stands still at most, in steps.
    pub freeze: usize,
    /// Weights of the user's actions.
    pub wt: [usize; 9],
}

/// Counts of what happened, summed over runs. The names are printed.
#[derive(Clone, Default, Debug)]
pub struct Stats {
    pub allocs: u64,
    pub hits: u64,
    pub migrated: u64,
    /// Migrations with an inserted wait.
    pub migrated_waiting: u64,
    pub migrated_infl: u64,
    pub moves: u64,
    /// Moves by a second mapping.
    pub second: u64,
    pub trims: u64,
    pub marks: u64,
    pub due_marks: u64,
    /// Waits inserted for reuse; how many of them were already implied, and how many covered more work than needed.
    pub waits: u64,
    pub implied: u64,
    pub more: u64,
    /// The same for births.
    pub bwaits: u64,
    pub bimplied: u64,
    /// Waits for what was already complete on the device.
    pub idone: u64,
    /// Waits that made a marker, and how many of these covered more than needed.
    pub made: u64,
    pub mademore: u64,
    /// The same for arrays' uses.
    pub awaits: u64,
    pub aimplied: u64,
    pub amore: u64,
    pub syncs: u64,
    pub oom: u64,
    pub closed: u64,
    pub unknown: u64,
    /// Frees in flight.
    pub infl: u64,
    pub drained: u64,
}

/// All of one run.
pub struct World {
    pub cfg: Cfg,
    pub m: Mutant,
    /// Source of choices, unless `replay` or `trng` is given.
    pub rng: u64,
    pub replay: Option<Vec<u16>>,
    /// Choices made, and what they were.
    pub pos: usize,
    pub rec: Vec<u16>,
    pub dev: Dev,
    pub timelines: Vec<Timeline>,
    pub pools: Vec<Pool>,
    pub slots: Vec<Slot>,
    pub handles: Vec<Handle>,
    pub allocs: Vec<Alloc>,
    pub phys: Vec<Cell>,
    /// The first thing that went wrong.
    pub fail: Option<String>,
    pub st: Stats,
    pub trace: bool,
    pub log: Vec<String>,
    /// The programs are over: no driver call fails, and each step tries everything instead of a random part.
    pub quiet: bool,
    pub steps: u64,
    /// The task that runs.
    pub tid: usize,
    pub next_op: u64,
    /// Exhaustive mode: a fixed source of choices per thread.
    pub trng: Option<[u64; 8]>,
    /// Exhaustive mode: branches taken, of how many.
    pub dfs: Vec<(u16, u16)>,
    pub dpos: usize,
    /// Exhaustive mode: delays left.
    pub delays: usize,
    /// The running task could not go on.
    pub blocked: bool,
}

impl World {
    pub fn new(cfg: Cfg, m: Mutant, seed: u64) -> World {
        let (h, nh, ns, spp) = (cfg.h, cfg.nh, cfg.ns, cfg.spp);
        World {
            m,
            rng: seed | 1,
            replay: None,
            pos: 0,
            rec: vec![],
            dev: Dev::default(),
            timelines: (0..N).map(|_| Timeline::default()).collect(),
            pools: (0..ns).map(|_| Pool { units: vec![0; ns * spp], ..Pool::default() }).collect(),
            slots: (0..ns * spp).map(|_| Slot { st: SlotState::Empty, acc: [0; N] }).collect(),
            handles: (0..nh).map(|_| Handle::default()).collect(),
            allocs: vec![],
            phys: vec![Cell::default(); nh * h],
            fail: None,
            st: Stats::default(),
            trace: false,
            log: vec![],
            quiet: false,
            steps: 0,
            tid: 0,
            next_op: 0,
            trng: None,
            dfs: vec![],
            dpos: 0,
            delays: 0,
            blocked: false,
            cfg,
        }
    }
    /// Whether this mutant is planted in this run.
    pub fn is(&self, m: Mutant) -> bool {
        self.m == m
    }
    /// A choice below `n`, recorded for replay; nothing is recorded if there is only one.
    pub fn choose(&mut self, n: usize) -> usize {
        if n <= 1 {
            return 0;
        }
        let tid = self.tid;
        if let Some(t) = &mut self.trng {
            let x = &mut t[tid];
            *x ^= *x << 13;
            *x ^= *x >> 7;
            *x ^= *x << 17;
            return ((*x >> 33) as usize) % n;
        }
        let v = match &self.replay {
            Some(r) => {
                if self.pos < r.len() {
                    r[self.pos] as usize % n
                } else {
                    0
                }
            }
            None => {
                self.rng ^= self.rng << 13;
                self.rng ^= self.rng >> 7;
                self.rng ^= self.rng << 17;
                ((self.rng >> 33) as usize) % n
            }
        };
        self.pos += 1;
        self.rec.push(v as u16);
        v
    }
    /// Exhaustive mode: one branching point of the schedule; every choice but 0 costs a delay.
    pub fn branch(&mut self, n: usize) -> usize {
        let n = if self.delays == 0 { 1 } else { n };
        if self.dpos == self.dfs.len() {
            self.dfs.push((0, n as u16))
        }
        let v = self.dfs[self.dpos].0 as usize;
        self.dpos += 1;
        if v > 0 {
            self.delays -= 1
        }
        v
    }
    /// Whether this driver call fails.
    pub fn fault(&mut self) -> bool {
        let f = self.cfg.fault;
        !self.quiet && f > 0 && self.choose(f) == 1
    }
    /// Records the first thing that went wrong.
    pub fn bad(&mut self, s: String) {
        if self.fail.is_none() {
            self.say(|| format!("!! {s}"));
            self.fail = Some(s)
        }
    }
    /// A line of the trace, if one is kept.
    pub fn say(&mut self, f: impl FnOnce() -> String) {
        if self.trace {
            let s = format!("h{} {}", self.tid, f());
            self.log.push(s)
        }
    }
}
