//! What a step of a random program does: the verbs, and the machine that they work.
//!
//! A step that meets a capture may be refused; anything else that fails is an error of the library's. It does not know who draws the
//! steps, nor on which thread they run.

#[path = "rare_verbs.rs"]
mod rare_verbs;

use super::run::Bench;
use millpond::driver::Memory as _;
use millpond::transfer::{Download, Upload};
use millpond::units::{Addr, KIB};
use millpond::{
    Allocation, Allocator, DeviceArray, DriverErrorKind, Event, OutOfMemory, PinnedAllocation, PinnedArray,
    Stream, Trim, kernel,
};
use millpond_sim::{Call, Launch, SimStream};
use millpond_testkit::counted::{Device, Inside};
use millpond_testkit::counting;
use rare_verbs::Peer;
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

pub const STREAMS: usize = 4;
pub const ARRAYS: usize = 4;
const BLOCKS: usize = 6;
const LEN: usize = 256;
/// All that an allocator may take which is short of memory.
pub const LIMIT: u64 = 64 << 20;
/// One in so many requests that are refused climbs the ladder, which asks about all that there is and waits for it: two in a period, because one of a
/// program with 350 timelines takes a millisecond.
const REFUSALS_A_CLIMB: u64 = 50;

/// Whether a step was done, or refused.
type Done = Result<(), Box<dyn Error>>;

/// What a step does; streams, arrays and slots come with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
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
    /// Other code captures on a stream, of which the allocator may know, until [`Verb::CaptureEnds`] or the end of the period.
    Capture,
    CaptureEnds,
    /// A stream captures, and its last reference goes.
    EndsInCapture,
    /// A stream of other code that ends it in the same round, having named it at each free; or without notice.
    UnmanagedNamed,
    UnmanagedUnnamed,
    AllocAligned,
    /// The limit is set, and set back: at what is taken, now and then below.
    SetLimit,
    TrimOne,
    /// The driver refuses to take a segment back.
    TrimFails,
    /// A stream is found by its number: one that has references, and one of which only a block is left.
    StreamOf,
    StreamOfBlock,
    /// A stream of one round that is declared a user of another's block.
    UserOfOneRound,
    /// A call fails while a stream waits to be closed, a marker is due and a value is kept.
    MaintenanceFails,
    /// To another device, or from it; and so that the driver refuses a call of it.
    PeerCopy,
    PeerFails,
    /// Borrowed host memory; and so that what queues the copies unwinds.
    Scope,
    ScopeUnwinds,
    /// An array in memory of others: operations of two streams, or a declared use.
    BroughtIn,
    BroughtInUsed,
    /// One writes a half each, and another array is read; and so that one of them is forgotten.
    TwoGuards,
    TwoGuardsForgotten,
    /// Tokens that are dropped some rounds later, and that streams do not outlive.
    TokenAbandoned,
    TokenOfOneRound,
    /// Copies of rows, whose tokens are dropped.
    Rows,
}

impl Verb {
    /// Those of one thread, without captures and streams that others end.
    pub const ALL: [Verb; 36] = [
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
    /// The same, of rarely used parts of the interface: of the programs of which it is unknown which planted leaks they find.
    pub const RARER: [Verb; 19] = [
        Verb::AllocAligned,
        Verb::SetLimit,
        Verb::TrimOne,
        Verb::TrimFails,
        Verb::StreamOf,
        Verb::StreamOfBlock,
        Verb::UserOfOneRound,
        Verb::MaintenanceFails,
        Verb::PeerCopy,
        Verb::PeerFails,
        Verb::Scope,
        Verb::ScopeUnwinds,
        Verb::BroughtIn,
        Verb::BroughtInUsed,
        Verb::TwoGuards,
        Verb::TwoGuardsForgotten,
        Verb::TokenAbandoned,
        Verb::TokenOfOneRound,
        Verb::Rows,
    ];
    /// Whether it may not be made beside other threads' steps: a planted failure hits the next call of any thread, and a limit applies to all.
    pub fn is_alone(self) -> bool {
        matches!(
            self,
            Verb::RefusedByDriver
                | Verb::MarkerFails
                | Verb::TrimFails
                | Verb::MaintenanceFails
                | Verb::PeerFails
                | Verb::SetLimit
        )
    }
    /// Whether there has to be another device.
    pub fn is_between_devices(self) -> bool {
        matches!(self, Verb::PeerCopy | Verb::PeerFails)
    }
    /// Whether it gives pooled events back, so that the other steps create theirs anew.
    pub fn trims(self) -> bool {
        matches!(self, Verb::Trim | Verb::TrimOne | Verb::TrimFails)
    }
    /// Calls for order or completion that it makes by name.
    pub fn asked(self) -> u64 {
        match self {
            // Asks about all streams.
            Verb::Refused | Verb::RefusedByDriver => 40,
            // Gives all pooled events back too.
            _ if self.trims() => 120,
            Verb::UseUntil | Verb::UnmanagedNamed | Verb::UnmanagedUnnamed => 5,
            Verb::FreeOn
            | Verb::FreeUnknown
            | Verb::Use
            | Verb::WaitStream
            | Verb::Share
            | Verb::StreamOfBlock
            | Verb::UserOfOneRound
            | Verb::MaintenanceFails
            | Verb::PeerCopy
            | Verb::PeerFails => 2,
            Verb::Record
            | Verb::Wait
            | Verb::Ask
            | Verb::UploadWaited
            | Verb::DownloadWaited
            | Verb::Pageable
            | Verb::Scope
            | Verb::ScopeUnwinds
            | Verb::StreamOfOneRound
            | Verb::AdoptAgain => 1,
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub verb: Verb,
    pub s: usize,
    pub t: usize,
    pub i: usize,
    pub j: usize,
    pub bytes: u64,
}

/// A block and the stream that it was allocated on.
type Block = (usize, Allocation<Device>);

fn range(block: &Allocation<Device>) -> (Addr, u64) {
    (block.address(), block.len())
}

/// A block that a stream is going to read.
fn use_of(block: &Allocation<Device>, on: &Stream<Device>) -> Result<(Addr, u64), millpond::Error> {
    block.record_use(on)?;
    Ok(range(block))
}

/// Streams, and what is on them.
pub struct Machine {
    device: Device,
    gpu: Allocator<Device>,
    streams: Vec<Stream<Device>>,
    arrays: Vec<DeviceArray<f32, Device>>,
    sums: Vec<DeviceArray<f32, Device>>,
    blocks: Vec<Option<Block>>,
    many: Vec<Allocation<Device>>,
    pinned: Option<PinnedAllocation<Device>>,
    events: Vec<Option<Event<Device>>>,
    uploads: VecDeque<Upload<PinnedArray<f32, Device>, Device>>,
    downloads: VecDeque<Download<f32, Device>>,
    source: Arc<PinnedArray<f32, Device>>,
    pageable: Vec<f32>,
    /// A stream that the allocator does not know.
    unknown: Inside<SimStream>,
    /// On which stream other code captures; the last is the unknown one.
    captured: Option<usize>,
    /// The allocator may take no more than [`LIMIT`]: a step may be refused.
    short: bool,
    /// Requests that were refused in front of the ladder, or at its end; limits that were set, and trims that are refused.
    refusals: u64,
    turns: u64,
    /// Tokens that are never waited for.
    abandoned: VecDeque<Upload<PinnedArray<f32, Device>, Device>>,
    /// Where borrowed copies go.
    target: PinnedArray<f32, Device>,
    peer: Option<Peer>,
}

/// Streams of the allocator; `others`: half of them are other code's, which may capture on them.
pub fn streams(b: &Bench, others: bool) -> Vec<Stream<Device>> {
    if others {
        counting::device(|| b.device.sim().expect_captures());
    }
    let one = |n: usize| {
        if others && n >= STREAMS / 2 {
            let theirs = b.device.wrap_stream(|sim| sim.stream().expect("a stream"));
            b.gpu.adopt(theirs).expect("adopted")
        } else {
            b.gpu.stream().expect("a stream")
        }
    };
    (0..STREAMS).map(one).collect()
}

impl Machine {
    pub fn new(b: &Bench, streams: Vec<Stream<Device>>) -> Machine {
        let gpu = b.gpu.clone();
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
            unknown: b.device.wrap_stream(|sim| sim.stream().expect("a stream")),
            captured: None,
            short: gpu.report().limit.is_some(),
            refusals: 0,
            turns: 0,
            abandoned: VecDeque::new(),
            target: gpu.pinned_zeros(LEN).expect("pinned"),
            peer: b.neighbour.as_ref().map(Peer::new),
            streams,
            gpu,
        }
    }

    fn pinned(&self) -> Result<PinnedArray<f32, Device>, millpond::Error> {
        self.gpu.pinned_uninit(LEN)
    }

    /// Other code captures on one of two streams of theirs that the allocator knows, or on one that it does not.
    fn capture(&mut self, which: usize) {
        if self.captured.is_none() {
            let on = STREAMS / 2 + which % (STREAMS - STREAMS / 2 + 1);
            let stream = self.streams.get(on).map_or(&self.unknown, |s| s.native());
            counting::device(|| self.device.sim().begin_capture(stream).expect("a capture"));
            self.captured = Some(on);
        }
    }

    /// The capture ends, if there is one. What is put on a stream that captures is the graph's, so nothing of it ever runs.
    pub fn capture_ends(&mut self) {
        if let Some(on) = self.captured.take() {
            let stream = self.streams.get(on).map_or(&self.unknown, |s| s.native());
            // A trim, which waits for the device, may have destroyed it.
            counting::device(|| drop(self.device.sim().end_capture(stream)));
        }
    }

    /// A stream that its owner ends; blocks of its own and of another's, which it reads.
    fn unmanaged(&mut self, step: Step, named: bool) -> Done {
        let theirs = self.device.wrap_stream(|sim| sim.stream().expect("a stream"));
        let unmanaged = self.gpu.adopt(self.device.wrap_stream(|sim| sim.unmanaged_stream(&theirs)))?;
        let own = self.gpu.alloc(step.bytes, &unmanaged)?;
        let (at, bytes) = range(&own);
        self.device.launch(&theirs, || Launch::new("write").writes(at, bytes));
        let home = self.streams[step.s].clone();
        let other = self.gpu.alloc(4 * KIB, &home)?;
        unmanaged.wait_stream(&home)?;
        let (at, bytes) = use_of(&other, &unmanaged)?;
        self.device.launch(&theirs, || Launch::new("read").reads(at, bytes));
        if named {
            own.free_on(&unmanaged).map_err(|(_, e)| e)?;
            other.free_on(&unmanaged).map_err(|(_, e)| e)?;
        } else {
            drop(other);
            self.blocks[step.j] = Some((STREAMS, own));
        }
        counting::device(|| self.device.sim().destroy_stream(&theirs).expect("it was there"));
        Ok(())
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
    fn ordered(&mut self, step: Step) -> Result<&Block, millpond::Error> {
        let slot = &mut self.blocks[step.j];
        // Nothing can be ordered behind a stream that has ended.
        if slot.as_ref().is_none_or(|block| block.0 == STREAMS) {
            *slot = Some((step.s, self.gpu.alloc(step.bytes, &self.streams[step.s])?));
        }
        let block = slot.as_ref().expect("it was made");
        if block.0 != step.t {
            self.streams[step.t].wait_stream(&self.streams[block.0])?;
        }
        Ok(block)
    }

    /// # Panics
    /// If it fails, and nothing captures, and the allocator is not short of memory.
    pub fn step(&mut self, step: Step) {
        if let Err(why) = self.try_step(step) {
            let refused = why.downcast_ref::<millpond::Error>().is_some_and(|e| e.out_of_memory().is_some());
            assert!(self.captured.is_some() || self.short && refused, "{step:?}: {why}");
        }
    }

    fn try_step(&mut self, step: Step) -> Done {
        let Step { verb, s, t, i, j, bytes } = step;
        let (home, on) = (self.streams[s].clone(), self.streams[t].clone());
        match verb {
            Verb::Alloc | Verb::AllocNamed => {
                let block = if verb == Verb::Alloc {
                    self.gpu.alloc(bytes, &home)
                } else {
                    self.gpu.alloc_named(bytes, "named", &home)
                };
                let block = block?;
                let at = block.address();
                self.device.launch(home.native(), || Launch::new("write").writes(at, bytes));
                self.blocks[j] = Some((s, block));
            }
            Verb::AllocMany => {
                self.many.clear();
                for _ in 0..12 {
                    self.many.push(self.gpu.alloc(4 * KIB, &home)?);
                }
            }
            Verb::Free => self.blocks[j] = None,
            Verb::FreeOn => {
                self.ordered(step)?;
                let (_, block) = self.blocks[j].take().expect("it was made");
                self.read(range(&block), t);
                block.free_on(&on).map_err(|(_, e)| e)?;
            }
            Verb::FreeUnknown => {
                self.ordered(step)?;
                self.blocks[j].take().expect("it was made").1.free_unknown();
            }
            Verb::Use => {
                let at = use_of(&self.ordered(step)?.1, &on)?;
                self.read(at, t);
            }
            Verb::UseUntil => {
                let at = range(&self.ordered(step)?.1);
                self.read(at, t);
                let event = on.record()?;
                self.ordered(step)?.1.record_use_until(&event)?;
            }
            Verb::Share => {
                let block = &self.ordered(step)?.1;
                block.share_with(&on)?;
                let at = use_of(block, &on)?;
                self.read(at, t);
            }
            Verb::PinnedUse => {
                let block = self.gpu.alloc_pinned(bytes.min(4 * KIB))?;
                block.record_use(&on)?;
                self.pinned = Some(block);
            }
            Verb::Refused => {
                // Above the device's memory: refused before the first rung. Where the allocator is short of it, some ask for what is within the limit
                // and not beside the arrays: the whole ladder, with its waits, and once more to find out that this is the truth.
                self.refusals += 1;
                let climbs = self.short && self.refusals.is_multiple_of(REFUSALS_A_CLIMB);
                let bytes = if climbs { LIMIT } else { 1 << 40 };
                let refused = self.gpu.alloc(bytes, &home).expect_err("more than there is");
                let trims = !self.device.free_waits_for_device();
                let all = |facts: &OutOfMemory| {
                    let tried = |rung| facts.tried.contains(&rung);
                    tried("wait") == climbs && tried("trim") == (climbs && trims)
                };
                assert!(self.captured.is_some() || refused.out_of_memory().is_some_and(all), "{refused}");
            }
            Verb::RefusedByDriver => {
                // Growth that the driver refuses once: it is served by what comes back, or not.
                self.fails(Call::MemAlloc, DriverErrorKind::OutOfMemory, |gpu| {
                    drop(gpu.alloc(bytes, &home));
                });
            }
            Verb::MarkerFails => {
                self.fails(Call::EventRecord, DriverErrorKind::Other, |gpu| {
                    if let Ok(block) = gpu.alloc(bytes, &home) {
                        // The failure is not returned: the marker is made later.
                        drop(block.record_use(&on));
                    }
                });
            }
            Verb::Trim => drop(self.gpu.trim(Trim::All)?),
            Verb::WaitStream => on.wait_stream(&home)?,
            Verb::Record => self.events[i] = Some(home.record()?),
            Verb::Wait => {
                if let Some(event) = &self.events[i] {
                    on.wait(event)?;
                }
            }
            Verb::Ask => {
                if let Some(event) = &self.events[i] {
                    let _ = event.is_complete()?;
                }
            }
            Verb::Capture => self.capture(i),
            Verb::CaptureEnds => self.capture_ends(),
            Verb::UnmanagedNamed | Verb::UnmanagedUnnamed => {
                self.unmanaged(step, verb == Verb::UnmanagedNamed)?;
            }
            _ if verb == Verb::EndsInCapture || Verb::RARER.contains(&verb) => {
                return self.rarer_step(step, &home, &on);
            }
            _ => return self.step_on_arrays(step, &home, &on),
        }
        Ok(())
    }

    fn step_on_arrays(&mut self, step: Step, home: &Stream<Device>, on: &Stream<Device>) -> Done {
        let Step { verb, t, i, j, .. } = step;
        match verb {
            Verb::Saxpy | Verb::Copy => {
                let [x, y] = self.arrays.get_disjoint_mut([i, j]).expect("two");
                if verb == Verb::Saxpy {
                    kernel::saxpy(2.0, &*x, y, on)?;
                } else {
                    y.copy_from_device(&*x, on)?;
                }
            }
            Verb::Reduce => kernel::reduce_sum(&self.arrays[i], &mut self.sums[t], on)?,
            Verb::Fill => kernel::fill(&mut self.arrays[j], 1.0, on)?,
            Verb::Fresh => {
                let mut fresh = self.gpu.zeros::<f32>(LEN, home)?;
                kernel::saxpy(1.0, &self.arrays[i], &mut fresh, on)?;
            }
            Verb::Duplicate => drop(self.arrays[i].duplicate(on)?),
            Verb::UploadShared => {
                drop(self.arrays[i].copy_from(Arc::clone(&self.source), on)?);
            }
            Verb::UploadDropped => {
                let source = self.pinned()?;
                drop(self.arrays[i].copy_from(source, on)?);
            }
            Verb::UploadWaited => {
                let source = self.pinned()?;
                self.uploads.push_back(self.arrays[i].copy_from(source, on)?);
                if self.uploads.len() > 2 {
                    drop(self.uploads.pop_front().expect("three").wait()?);
                }
            }
            Verb::DownloadDropped => drop(self.arrays[i].to_pinned(on)?),
            Verb::DownloadWaited => {
                self.downloads.push_back(self.arrays[i].to_pinned(on)?);
                if self.downloads.len() > 2 {
                    drop(self.downloads.pop_front().expect("three").wait()?);
                }
            }
            Verb::Pageable => self.arrays[i].copy_from_slice(&self.pageable, on)?,
            Verb::ReadOn => {
                let guard = self.arrays[i].read_on(on)?;
                let at = guard.address();
                self.device.launch(on.native(), || Launch::new("reads").reads(at, 4 * LEN as u64));
            }
            Verb::WriteOn => {
                let guard = self.arrays[i].write_on(on)?;
                let at = guard.address();
                self.device.launch(on.native(), || Launch::new("writes").writes(at, 4 * LEN as u64));
            }
            Verb::ReadForgotten => {
                let guard = self.arrays[i].read_on(on)?;
                let at = guard.address();
                self.device.launch(on.native(), || Launch::new("reads").reads(at, 4 * LEN as u64));
                std::mem::forget(guard);
            }
            Verb::WriteForgotten => {
                let guard = self.arrays[i].write_on(on)?;
                let at = guard.address();
                self.device.launch(on.native(), || Launch::new("writes").writes(at, 4 * LEN as u64));
                std::mem::forget(guard);
            }
            Verb::StreamOfOneRound => {
                let fresh = self.gpu.stream()?;
                let mut sum = self.gpu.zeros::<f32>(1, &fresh)?;
                kernel::reduce_sum(&self.arrays[i], &mut sum, &fresh)?;
            }
            Verb::AdoptAgain => {
                let again = self.gpu.adopt(on.native().clone())?;
                kernel::fill(&mut self.arrays[i], 2.0, &again)?;
            }
            _ => unreachable!("a step on blocks"),
        }
        Ok(())
    }
}
