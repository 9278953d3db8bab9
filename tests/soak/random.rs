//! Steady programs by a seed: a round of some steps over four streams, a few arrays and blocks, drawn once and repeated.
//!
//! Every step leaves the next round as much as it found: blocks, events and tokens lie in slots, and who fills a slot drops
//! what was in it. The seed also draws the allocator's options, the pace, and how the program synchronises, if it does.

use super::counting;
use super::device::Device;
use super::run::{Bench, PERIOD, Pace, Run, Steady, try_soak};
use millpond::DriverErrorKind;
use millpond::transfer::{Download, Transfer};
use millpond::units::{Addr, KIB};
use millpond::{
    Allocation, Allocator, Config, DeviceArray, Event, Growth, PinnedAllocation, PinnedArray, Policy, Reuse,
    Stream, Trim, kernel,
};
use millpond_sim::{Call, Launch};
use std::collections::VecDeque;
use std::sync::Arc;

/// Seeds of an ordinary run, in four tests. `MILLPOND_SOAK_SEED` says where they begin.
pub const SEEDS: u64 = 48;
/// Programs of smaller seeds forget no guard, and nothing is refused or fails in them: of those it is known which planted leaks they find.
const PLAIN: u64 = 32;
/// How many of the verbs they have.
const PLAIN_VERBS: usize = 30;

const STREAMS: usize = 4;
const ARRAYS: usize = 4;
const BLOCKS: usize = 6;
const LEN: usize = 256;

/// A seeded generator (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 16) as usize % n
    }
}

/// What a step does; streams, arrays and slots come with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Alloc,
    AllocNamed,
    AllocMany,
    Free,
    FreeOn,
    FreeUnknown,
    Use,
    UseUntil,
    Share,
    PinnedUse,
    WaitStream,
    Record,
    Wait,
    Ask,
    Saxpy,
    Reduce,
    Fill,
    Copy,
    Fresh,
    Duplicate,
    UploadShared,
    UploadDropped,
    UploadWaited,
    DownloadDropped,
    DownloadWaited,
    Pageable,
    ReadOn,
    WriteOn,
    StreamOfOneRound,
    AdoptAgain,
    ReadForgotten,
    WriteForgotten,
    Refused,
    RefusedByDriver,
    MarkerFails,
    Trim,
}

impl Verb {
    const ALL: [Verb; 36] = [
        Verb::Alloc,
        Verb::AllocNamed,
        Verb::AllocMany,
        Verb::Free,
        Verb::FreeOn,
        Verb::FreeUnknown,
        Verb::Use,
        Verb::UseUntil,
        Verb::Share,
        Verb::PinnedUse,
        Verb::WaitStream,
        Verb::Record,
        Verb::Wait,
        Verb::Ask,
        Verb::Saxpy,
        Verb::Reduce,
        Verb::Fill,
        Verb::Copy,
        Verb::Fresh,
        Verb::Duplicate,
        Verb::UploadShared,
        Verb::UploadDropped,
        Verb::UploadWaited,
        Verb::DownloadDropped,
        Verb::DownloadWaited,
        Verb::Pageable,
        Verb::ReadOn,
        Verb::WriteOn,
        Verb::StreamOfOneRound,
        Verb::AdoptAgain,
        Verb::ReadForgotten,
        Verb::WriteForgotten,
        Verb::Refused,
        Verb::RefusedByDriver,
        Verb::MarkerFails,
        Verb::Trim,
    ];
    /// Calls for order or completion that it makes by name.
    fn asked(self) -> u64 {
        match self {
            // Asks about all streams.
            Verb::Refused | Verb::RefusedByDriver => 40,
            // Gives all pooled events back too.
            Verb::Trim => 120,
            Verb::UseUntil => 5,
            Verb::FreeOn | Verb::FreeUnknown | Verb::Use | Verb::WaitStream | Verb::Share => 2,
            Verb::Record
            | Verb::Wait
            | Verb::Ask
            | Verb::UploadWaited
            | Verb::DownloadWaited
            | Verb::Pageable
            | Verb::StreamOfOneRound
            | Verb::AdoptAgain => 1,
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Step {
    verb: Verb,
    s: usize,
    t: usize,
    i: usize,
    j: usize,
    bytes: u64,
}

/// A program, as drawn.
#[derive(Clone, Debug)]
struct Drawn {
    config: Vec<&'static str>,
    pace: Pace,
    synchronise: Synchronise,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
enum Synchronise {
    One(usize),
    All,
    Never,
}

fn draw(seed: u64) -> (Drawn, Config) {
    let mut draw = Draw(seed);
    let mut config = Config::default();
    let mut said = Vec::new();
    let mut option = |one_in: usize, name: &'static str, set: fn(Config) -> Config| {
        if draw.below(one_in) == 0 {
            said.push(name);
            config = set(std::mem::take(&mut config));
        }
    };
    option(6, "deterministic", |c| c.deterministic(true));
    option(4, "footprint", |c| c.policy(Policy::Footprint));
    option(6, "no reuse", |c| c.reuse(Reuse::Never));
    option(6, "ordered reuse", |c| c.reuse(Reuse::Ordered));
    option(6, "exact growth", |c| c.growth(Growth::Exact));
    option(8, "scrub", |c| c.scrub(true));
    if seed >= PLAIN {
        option(8, "a stream is independent", |c| c);
    }
    let pace = [Pace::AtOnce, Pace::Behind, Pace::Late, Pace::Coin(seed)][draw.below(4)];
    let synchronise = match draw.below(6) {
        // It asks no event, so that it learns of no stream that the program never waits for.
        _ if said.contains(&"deterministic") => Synchronise::All,
        0 => Synchronise::All,
        1 => Synchronise::Never,
        n => Synchronise::One(n - 2),
    };
    let verbs = if seed < PLAIN { &Verb::ALL[..PLAIN_VERBS] } else { &Verb::ALL };
    let steps = (0..3 + draw.below(10))
        .map(|_| {
            let (s, i) = (draw.below(STREAMS), draw.below(ARRAYS));
            Step {
                verb: verbs[draw.below(verbs.len())],
                s,
                t: (s + 1 + draw.below(STREAMS - 1)) % STREAMS,
                i,
                j: (i + 1 + draw.below(ARRAYS - 1)) % ARRAYS,
                bytes: [512, 4 * KIB, 60 * KIB, 300 * KIB, 5 << 20][draw.below(5)],
            }
        })
        .collect();
    (Drawn { config: said, pace, synchronise, steps }, config)
}

/// A block and the stream that it was allocated on.
type Block = (usize, Allocation<Device>);

fn range(block: &Allocation<Device>) -> (Addr, u64) {
    (block.address(), block.len())
}

/// A block that a stream is going to read.
fn use_of(block: &Allocation<Device>, on: &Stream<Device>) -> (Addr, u64) {
    block.record_use(on).expect("recorded");
    range(block)
}

struct Machine {
    device: Device,
    gpu: Allocator<Device>,
    streams: Vec<Stream<Device>>,
    arrays: Vec<DeviceArray<f32, Device>>,
    sums: Vec<DeviceArray<f32, Device>>,
    blocks: Vec<Option<Block>>,
    many: Vec<Allocation<Device>>,
    pinned: Option<PinnedAllocation<Device>>,
    events: Vec<Option<Event<Device>>>,
    uploads: VecDeque<Transfer<PinnedArray<f32, Device>, Device>>,
    downloads: VecDeque<Download<f32, Device>>,
    source: Arc<PinnedArray<f32, Device>>,
    pageable: Vec<f32>,
}

impl Machine {
    fn new(b: &Bench) -> Machine {
        let gpu = b.gpu.clone();
        let streams: Vec<_> = (0..STREAMS).map(|_| gpu.stream().expect("a stream")).collect();
        let zeros = |n: usize, s: usize| gpu.zeros::<f32>(n, &streams[s % STREAMS]).expect("an array");
        Machine {
            arrays: (0..ARRAYS).map(|i| zeros(LEN, i)).collect(),
            sums: (0..STREAMS).map(|s| zeros(1, s)).collect(),
            source: Arc::new(gpu.pinned_from_fn(LEN, |i| i as f32).expect("pinned")),
            device: b.device.clone(),
            blocks: (0..BLOCKS).map(|_| None).collect(),
            many: Vec::new(),
            pinned: None,
            events: (0..ARRAYS).map(|_| None).collect(),
            uploads: VecDeque::new(),
            downloads: VecDeque::new(),
            pageable: vec![0.0; LEN],
            streams,
            gpu,
        }
    }

    fn pinned(&self) -> PinnedArray<f32, Device> {
        self.gpu.pinned_uninit(LEN).expect("pinned")
    }

    /// A kernel of the program's on a stream that has been ordered behind the block's.
    fn read(&self, (at, bytes): (Addr, u64), on: usize) {
        self.device.launch(self.streams[on].native(), || Launch::new("read").reads(at, bytes));
    }

    /// The next call of this kind fails, if there is one while `then` runs.
    fn fails(&self, call: Call, kind: DriverErrorKind, then: impl FnOnce(&Allocator<Device>)) {
        counting::device(|| self.device.sim().fail(call, 1, kind));
        then(&self.gpu);
        counting::device(|| self.device.sim().clear_faults());
    }

    /// The block in a slot, which is made if there is none, with `t` ordered behind its stream by the program itself.
    fn ordered(&mut self, step: Step) -> &Block {
        let block = self.blocks[step.j].get_or_insert_with(|| {
            (step.s, self.gpu.alloc(step.bytes, &self.streams[step.s]).expect("memory"))
        });
        if block.0 != step.t {
            self.streams[step.t].wait_stream(&self.streams[block.0]).expect("ordered");
        }
        block
    }

    fn step(&mut self, step: Step) {
        let Step { verb, s, t, i, j, bytes } = step;
        let (home, on) = (self.streams[s].clone(), self.streams[t].clone());
        match verb {
            Verb::Alloc | Verb::AllocNamed => {
                let block = if verb == Verb::Alloc {
                    self.gpu.alloc(bytes, &home)
                } else {
                    self.gpu.alloc_named(bytes, "named", &home)
                };
                let block = block.expect("memory");
                let at = block.address();
                self.device.launch(home.native(), || Launch::new("write").writes(at, bytes));
                self.blocks[j] = Some((s, block));
            }
            Verb::AllocMany => {
                self.many.clear();
                self.many.extend((0..12).map(|_| self.gpu.alloc(4 * KIB, &home).expect("memory")));
            }
            Verb::Free => self.blocks[j] = None,
            Verb::FreeOn => {
                self.ordered(step);
                let (_, block) = self.blocks[j].take().expect("it was made");
                self.read(range(&block), t);
                block.free_on(&on).expect("freed");
            }
            Verb::FreeUnknown => {
                self.ordered(step);
                self.blocks[j].take().expect("it was made").1.free_unknown();
            }
            Verb::Use => {
                let at = use_of(&self.ordered(step).1, &on);
                self.read(at, t);
            }
            Verb::UseUntil => {
                let at = range(&self.ordered(step).1);
                self.read(at, t);
                let event = on.record().expect("recorded");
                self.ordered(step).1.record_use_until(&event).expect("recorded");
            }
            Verb::Share => {
                let block = &self.ordered(step).1;
                block.share_with(&on).expect("ordered");
                let at = use_of(block, &on);
                self.read(at, t);
            }
            Verb::PinnedUse => {
                let block = self.gpu.alloc_pinned(bytes.min(4 * KIB)).expect("pinned");
                block.record_use(&on).expect("recorded");
                self.pinned = Some(block);
            }
            Verb::Refused => {
                // The whole ladder, and its end; what it waits for is given a moment.
                let refused = self.gpu.alloc(1 << 40, &home).expect_err("more than there is");
                assert!(refused.out_of_memory().is_some(), "{refused}");
            }
            Verb::RefusedByDriver => {
                // Growth that the driver refuses once: it is served by what comes back, or not.
                self.fails(Call::MemAlloc, DriverErrorKind::OutOfMemory, |gpu| {
                    drop(gpu.alloc(bytes, &home));
                });
            }
            Verb::MarkerFails => {
                self.fails(Call::EventRecord, DriverErrorKind::Other, |gpu| {
                    let block = gpu.alloc(bytes, &home).expect("memory");
                    // Nobody is told of it: the marker is made later.
                    drop(block.record_use(&on));
                });
            }
            Verb::Trim => drop(self.gpu.trim(Trim::All).expect("trimmed")),
            Verb::WaitStream => on.wait_stream(&home).expect("ordered"),
            Verb::Record => self.events[i] = Some(home.record().expect("recorded")),
            Verb::Wait => {
                if let Some(event) = &self.events[i] {
                    on.wait(event).expect("ordered");
                }
            }
            Verb::Ask => {
                if let Some(event) = &self.events[i] {
                    let _ = event.is_complete().expect("an answer");
                }
            }
            _ => self.step_on_arrays(step, &home, &on),
        }
    }

    fn step_on_arrays(&mut self, step: Step, home: &Stream<Device>, on: &Stream<Device>) {
        let Step { verb, t, i, j, .. } = step;
        match verb {
            Verb::Saxpy | Verb::Copy => {
                let [x, y] = self.arrays.get_disjoint_mut([i, j]).expect("two");
                if verb == Verb::Saxpy {
                    kernel::saxpy(2.0, &*x, y, on).expect("queued");
                } else {
                    y.copy_from_device(&*x, on).expect("queued");
                }
            }
            Verb::Reduce => kernel::reduce_sum(&self.arrays[i], &mut self.sums[t], on).expect("queued"),
            Verb::Fill => kernel::fill(&mut self.arrays[j], 1.0, on).expect("queued"),
            Verb::Fresh => {
                let mut fresh = self.gpu.zeros::<f32>(LEN, home).expect("an array");
                kernel::saxpy(1.0, &self.arrays[i], &mut fresh, on).expect("queued");
            }
            Verb::Duplicate => drop(self.arrays[i].duplicate(on).expect("queued")),
            Verb::UploadShared => {
                drop(self.arrays[i].copy_from(Arc::clone(&self.source), on).expect("queued"));
            }
            Verb::UploadDropped => {
                let source = self.pinned();
                drop(self.arrays[i].copy_from(source, on).expect("queued"));
            }
            Verb::UploadWaited => {
                let source = self.pinned();
                self.uploads.push_back(self.arrays[i].copy_from(source, on).expect("queued"));
                if self.uploads.len() > 2 {
                    drop(self.uploads.pop_front().expect("three").wait().expect("done"));
                }
            }
            Verb::DownloadDropped => drop(self.arrays[i].to_pinned(on).expect("queued")),
            Verb::DownloadWaited => {
                self.downloads.push_back(self.arrays[i].to_pinned(on).expect("queued"));
                if self.downloads.len() > 2 {
                    drop(self.downloads.pop_front().expect("three").wait().expect("done"));
                }
            }
            Verb::Pageable => self.arrays[i].copy_from_pageable(&self.pageable, on).expect("copied"),
            Verb::ReadOn => {
                let guard = self.arrays[i].read_on(on).expect("ordered");
                let at = guard.address();
                self.device.launch(on.native(), || Launch::new("reads").reads(at, 4 * LEN as u64));
            }
            Verb::WriteOn => {
                let guard = self.arrays[i].write_on(on).expect("ordered");
                let at = guard.address();
                self.device.launch(on.native(), || Launch::new("writes").writes(at, 4 * LEN as u64));
            }
            Verb::ReadForgotten => {
                let guard = self.arrays[i].read_on(on).expect("ordered");
                let at = guard.address();
                self.device.launch(on.native(), || Launch::new("reads").reads(at, 4 * LEN as u64));
                std::mem::forget(guard);
            }
            Verb::WriteForgotten => {
                let guard = self.arrays[i].write_on(on).expect("ordered");
                let at = guard.address();
                self.device.launch(on.native(), || Launch::new("writes").writes(at, 4 * LEN as u64));
                std::mem::forget(guard);
            }
            Verb::StreamOfOneRound => {
                let fresh = self.gpu.stream().expect("a stream");
                let mut sum = self.gpu.zeros::<f32>(1, &fresh).expect("an array");
                kernel::reduce_sum(&self.arrays[i], &mut sum, &fresh).expect("queued");
            }
            Verb::AdoptAgain => {
                let again = self.gpu.adopt(on.native().clone()).expect("adopted");
                kernel::fill(&mut self.arrays[i], 2.0, &again).expect("queued");
            }
            _ => unreachable!("a step on blocks"),
        }
    }
}

fn program(drawn: &Drawn, b: &Bench) -> Steady {
    let mut machine = Machine::new(b);
    machine.streams[STREAMS - 1].set_independent(drawn.config.contains(&"a stream is independent"));
    let (streams, gpu) = (machine.streams.clone(), b.gpu.clone());
    let (steps, how) = (drawn.steps.clone(), drawn.synchronise);
    Steady {
        asked: steps.iter().map(|step| step.verb.asked()).sum(),
        round: Box::new(move |_| steps.iter().for_each(|&step| machine.step(step))),
        synchronise: Box::new(move || match how {
            Synchronise::One(s) => streams[s].synchronize().expect("waited"),
            Synchronise::All => gpu.synchronize().expect("waited"),
            Synchronise::Never => {}
        }),
    }
}

/// The program of a seed: what grew, and the program.
pub fn try_seed(seed: u64) -> Result<(), String> {
    let (drawn, config) = draw(seed);
    let run = || try_soak(&format!("seed_{seed}"), Run::steady(drawn.pace), config, |b| program(&drawn, b));
    let soaked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|why| {
        let said = why.downcast_ref::<String>().map_or("a panic", |said| said.as_str());
        Err(format!("seed_{seed} panics: {said}"))
    });
    soaked.map_err(|why| {
        let steps: Vec<_> = drawn.steps.iter().map(|step| format!("    {step:?}\n")).collect();
        let (config, how) = (&drawn.config, drawn.synchronise);
        format!("{why}\n  {config:?}, synchronise {how:?} after {PERIOD} rounds of\n{}", steps.concat())
    })
}

/// Every fourth seed from here on.
fn seeds(from: u64) {
    let base =
        std::env::var("MILLPOND_SOAK_SEED").map_or(0, |n| n.parse().expect("MILLPOND_SOAK_SEED is a number"));
    let seeds = (base + from..base + SEEDS).step_by(4);
    let found: Vec<_> = seeds.filter_map(|seed| try_seed(seed).err()).collect();
    assert!(found.is_empty(), "{} programs:\n{}", found.len(), found.join("\n"));
}

#[test]
fn seeds_0_4_8() {
    seeds(0);
}
#[test]
fn seeds_1_5_9() {
    seeds(1);
}
#[test]
fn seeds_2_6_10() {
    seeds(2);
}
#[test]
fn seeds_3_7_11() {
    seeds(3);
}
