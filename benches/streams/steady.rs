//! Steady programs beside thousands of streams, for what counts their cost: `benches/streams.rs` in instructions, and
//! `tests/many_streams.rs` in locks, host memory and driver calls.
//!
//! Each program is one step that is done again and again, by four streams while all others keep what they have, or by all of
//! them in turns: on blocks, on arrays, or on what the host has a part of. It does not know what is counted, nor when the device is done.

use millpond::driver::{Copies, Driver, Kernels};
use millpond::trace::{BlockNo, Log, Op, Program, StreamNo};
use millpond::units::{KIB, MIB};
use millpond::{Allocation, Allocator, Config, DeviceArray, PinnedArray, Stream, kernel};
use std::sync::Arc;

/// Who does something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Four streams: the others have done something once.
    Few,
    /// Each in its turn.
    All,
}

/// Streams that do something when few do.
const BUSY: usize = 4;

/// An allocator with many streams, each of which has allocated and freed.
pub struct World<D: Driver> {
    pub gpu: Allocator<D>,
    streams: Vec<Stream<D>>,
    who: Who,
    turn: usize,
    kept: Vec<Allocation<D>>,
    /// One that each stream is home to, from the first step that needs them on.
    arrays: Vec<DeviceArray<u32, D>>,
    /// What each stream copies from.
    source: Option<Arc<PinnedArray<u32, D>>>,
}

/// What is done again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// An allocation that the stream's own pool has, and its free.
    Hit,
    /// The same, while a range is in flight there.
    HitBesideInFlight,
    /// A block that another stream uses too is freed.
    ForeignFree,
    /// One range goes from stream to stream, each of which has waited on the host for the one before: a miss.
    Borrow,
    /// The same, each ordered behind the one before on the device.
    BorrowInOrder,
    /// Memory from the device, kept: a miss that finds nothing.
    Grow,
    /// A new marker.
    Marker,
    /// A marker of one stream that another one waits for.
    RecordWait,
    /// The host waits for a stream.
    Synchronize,
    /// A stream is made, allocates, frees and goes.
    ComesAndGoes,
    /// An operation on an array, with operands at home on two other streams.
    Gather,
    /// An array that another stream reads, and is dropped behind that.
    ArrayDropped,
    /// A copy from a source that is shared, and whose token is dropped: the keeper has it.
    SourceKept,
    /// A copy from a source of its own, whose token is dropped: the pinned pool has it behind the copy.
    UploadDropped,
    /// The same to the host.
    DownloadDropped,
    /// A pinned block and its free.
    PinnedHit,
    /// A pinned block that a stream uses is freed.
    PinnedUsed,
}

impl Step {
    pub const ALL: [Step; 10] = [
        Step::Hit,
        Step::HitBesideInFlight,
        Step::ForeignFree,
        Step::Borrow,
        Step::BorrowInOrder,
        Step::Grow,
        Step::Marker,
        Step::RecordWait,
        Step::Synchronize,
        Step::ComesAndGoes,
    ];
    /// Those on arrays.
    pub const ARRAYS: [Step; 2] = [Step::Gather, Step::ArrayDropped];
    /// Those on what the host has a part of: tokens and pinned memory.
    pub const HOST: [Step; 5] =
        [Step::SourceKept, Step::UploadDropped, Step::DownloadDropped, Step::PinnedHit, Step::PinnedUsed];
}

/// Elements of an array.
const LEN: usize = 256;

/// The range that goes from stream to stream: longer than a segment, so that no pool has another one.
const RANGE: u64 = 32 * MIB;

impl<D: Driver + Copies + Kernels> World<D> {
    /// `streams` of them. Each has 4 KiB alive and as much that it has freed; those that do something have had more.
    pub fn new(driver: D, config: Config, streams: usize, who: Who) -> World<D> {
        let gpu = Allocator::new(driver, config).expect("an allocator");
        let streams: Vec<_> = (0..streams).map(|_| gpu.stream().expect("a stream")).collect();
        let mut kept = Vec::with_capacity(4 * streams.len());
        for stream in &streams {
            kept.push(gpu.alloc(4 * KIB, stream).expect("room"));
            drop(gpu.alloc(4 * KIB, stream).expect("room"));
        }
        World { gpu, streams, who, turn: 0, kept, arrays: Vec::new(), source: None }
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Whose turn it is, and who was before.
    fn next(&mut self) -> (usize, usize) {
        let all = if self.who == Who::Few { BUSY.min(self.streams.len()) } else { self.streams.len() };
        let before = self.turn % all;
        self.turn = (before + 1) % all;
        (self.turn, before)
    }

    fn alloc(&self, bytes: u64, stream: usize) -> Allocation<D> {
        self.gpu.alloc(bytes, &self.streams[stream]).expect("room")
    }

    /// Does it once.
    #[inline(never)]
    pub fn step(&mut self, step: Step) {
        let (now, before) = self.next();
        if self.arrays.is_empty() && (Step::ARRAYS.contains(&step) || Step::HOST.contains(&step)) {
            self.make_arrays();
        }
        match step {
            Step::Hit => drop(self.alloc(4 * KIB, now)),
            Step::HitBesideInFlight => {
                self.used_elsewhere(now, before);
                drop(self.alloc(2 * KIB, now));
            }
            Step::ForeignFree => self.used_elsewhere(now, before),
            Step::Borrow => {
                self.streams[before].synchronize().expect("a wait");
                drop(self.alloc(RANGE, now));
            }
            Step::BorrowInOrder => {
                self.streams[now].wait_stream(&self.streams[before]).expect("a wait");
                drop(self.alloc(RANGE, now));
            }
            Step::Grow => {
                let block = self.alloc(3 * MIB, now);
                self.kept.push(block);
            }
            Step::Marker => drop(self.streams[now].record().expect("a marker")),
            Step::RecordWait => {
                let event = self.streams[before].record().expect("a marker");
                self.streams[now].wait(&event).expect("a wait");
            }
            Step::Synchronize => self.streams[now].synchronize().expect("a wait"),
            Step::ComesAndGoes => {
                let stream = self.gpu.stream().expect("a stream");
                drop(self.gpu.alloc(4 * KIB, &stream).expect("room"));
            }
            Step::Gather => {
                let third = (before + self.streams.len() - 1) % self.streams.len();
                let operands = self.arrays.get_disjoint_mut([now, before, third]);
                let [to, from, by] = operands.expect("three streams at least");
                kernel::gather(&*from, &*by, to, &self.streams[now]).expect("a kernel");
            }
            Step::ArrayDropped => {
                let read = self.gpu.uninit::<u32>(LEN, &self.streams[before]).expect("room");
                self.arrays[now].copy_from_device(&read, &self.streams[now]).expect("a copy");
            }
            Step::SourceKept => {
                let source = Arc::clone(self.source.as_ref().expect("it was made"));
                drop(self.arrays[now].copy_from(source, &self.streams[now]).expect("a copy"));
            }
            Step::UploadDropped => {
                let source = self.gpu.pinned_uninit::<u32>(LEN).expect("room");
                drop(self.arrays[now].copy_from(source, &self.streams[now]).expect("a copy"));
            }
            Step::DownloadDropped => {
                drop(self.arrays[now].to_pinned(&self.streams[now]).expect("a copy"));
            }
            Step::PinnedHit => drop(self.gpu.alloc_pinned(4 * KIB).expect("room")),
            Step::PinnedUsed => {
                let block = self.gpu.alloc_pinned(4 * KIB).expect("room");
                block.record_use(&self.streams[now]).expect("a use");
            }
        }
    }

    #[cold]
    fn make_arrays(&mut self) {
        self.arrays = self.streams.iter().map(|s| self.gpu.zeros(LEN, s).expect("room")).collect();
        self.source = Some(Arc::new(self.gpu.pinned_zeros(LEN).expect("room")));
    }

    fn used_elsewhere(&self, home: usize, user: usize) {
        let block = self.alloc(KIB, home);
        block.record_use(&self.streams[user]).expect("a use");
    }
}

/// A log in which each stream allocates and frees at once, then allocates, and frees when all have allocated.
pub fn log(streams: usize) -> Log {
    let streams = u16::try_from(streams).expect("at most 65,535 streams");
    let mut program = Program::new("streams", streams);
    let alloc = |n: u16, round: u32| {
        let block = BlockNo(u32::from(n) + round * u32::from(streams));
        (block, Op::Alloc { block, bytes: 4096, align: None, stream: StreamNo(n) })
    };
    for n in 0..streams {
        let (block, op) = alloc(n, 0);
        program.push(op);
        program.push(Op::Free { block });
        program.push(alloc(n, 1).1);
    }
    for n in 0..streams {
        program.push(Op::Free { block: alloc(n, 1).0 });
    }
    let (log, left_out) = Log::from_program(&program).expect("it is well-formed");
    assert_eq!((log.info().streams, left_out), (u64::from(streams), 0));
    log
}
