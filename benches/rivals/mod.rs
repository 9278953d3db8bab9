//! The lines that our allocator is shown beside, in one run: each hands out ranges of a device that is not there.
//!
//! * **ours**: the public `alloc` and drop, on the driver that only hands out addresses;
//! * **offset**: the crate `offset-allocator` under one lock, in granules of 512 bytes: two-level bins, no best fit, and no
//!   streams: it would hand a freed range to any stream at once;
//! * **btree**: the textbook best fit, free ranges in one tree by address and one by size, under one lock;
//! * **malloc**: the system's allocator (glibc's on most machines), which never gives these bytes to a GPU.
//!
//! With them the workloads that they run and the clock that times them: the library of the benches. It does not know what is measured.

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_panics_doc,
    reason = "nobody but the benches beside it uses it"
)]

pub mod btree;
pub mod chase;
pub mod clock;
pub mod workload;

use btree::BestFit;
use millpond::{Allocation, Allocator, Config, Stream};
use millpond_sim::null::Null;
use parking_lot::Mutex;

/// What the device of the lines without a device is said to have.
pub const CAPACITY: u64 = 144 << 30;
/// What sizes are rounded up to.
pub const GRANULE: u64 = 512;

/// An allocator on one device: `Sync`, because threads share it.
pub trait Line: Sync {
    /// A live block; freeing it is its drop, or [`Line::free`].
    type Block: Send;
    /// A few letters for the table.
    const NAME: &'static str;

    /// A line for `streams` streams, at most `blocks` blocks alive.
    fn new(streams: usize, blocks: usize) -> Self;
    /// Hands out `bytes` on a stream.
    fn alloc(&self, bytes: u64, stream: usize) -> Self::Block;
    /// Takes a block back.
    fn free(&self, block: Self::Block);
}

/// Our own.
pub struct Ours {
    pub gpu: Allocator<Null>,
    streams: Vec<Stream<Null>>,
}

impl Ours {
    /// As [`Line::new`], on this device and with options.
    pub fn on(device: Null, config: Config, streams: usize) -> Ours {
        let gpu = Allocator::new(device, config).expect("the null device");
        let streams = (0..streams).map(|_| gpu.stream().expect("a stream")).collect();
        Ours { gpu, streams }
    }
}

impl Line for Ours {
    type Block = Allocation<Null>;
    const NAME: &'static str = "ours";

    fn new(streams: usize, _blocks: usize) -> Ours {
        Ours::on(Null::default(), Config::default(), streams)
    }
    #[inline]
    fn alloc(&self, bytes: u64, stream: usize) -> Allocation<Null> {
        self.gpu.alloc(bytes, &self.streams[stream]).expect("the device is large enough for the workload")
    }
    #[inline]
    fn free(&self, block: Allocation<Null>) {
        drop(block);
    }
}

/// The crate `offset-allocator` under one lock.
pub struct Offset(Mutex<offset_allocator::Allocator>);

impl Line for Offset {
    type Block = offset_allocator::Allocation;
    const NAME: &'static str = "offset";

    fn new(_streams: usize, blocks: usize) -> Offset {
        let granules = u32::try_from(CAPACITY / GRANULE).expect("the device in granules");
        // Free ranges are nodes too: no more than one beside each block.
        let nodes = u32::try_from(2 * blocks + 64).expect("that many nodes");
        Offset(Mutex::new(offset_allocator::Allocator::with_max_allocs(granules, nodes)))
    }
    #[inline]
    fn alloc(&self, bytes: u64, _stream: usize) -> offset_allocator::Allocation {
        let granules = bytes.div_ceil(GRANULE).max(1) as u32;
        self.0.lock().allocate(granules).expect("the device is large enough for the workload")
    }
    #[inline]
    fn free(&self, block: offset_allocator::Allocation) {
        self.0.lock().free(block);
    }
}

/// Two trees under one lock.
pub struct Trees(Mutex<BestFit>);

impl Line for Trees {
    type Block = (u64, u64);
    const NAME: &'static str = "btree";

    fn new(_streams: usize, _blocks: usize) -> Trees {
        Trees(Mutex::new(BestFit::new(CAPACITY)))
    }
    #[inline]
    fn alloc(&self, bytes: u64, _stream: usize) -> (u64, u64) {
        let len = bytes.div_ceil(GRANULE).max(1) * GRANULE;
        let at = self.0.lock().take(len).expect("the device is large enough for the workload");
        (at, len)
    }
    #[inline]
    fn free(&self, (at, len): (u64, u64)) {
        self.0.lock().give(at, len);
    }
}

/// The system's `malloc`, through a vector that is never written.
pub struct Malloc;

impl Line for Malloc {
    type Block = Vec<u8>;
    const NAME: &'static str = "malloc";

    fn new(_streams: usize, _blocks: usize) -> Malloc {
        Malloc
    }
    #[inline]
    fn alloc(&self, bytes: u64, _stream: usize) -> Vec<u8> {
        let mut block = Vec::new();
        let bytes = usize::try_from(bytes).expect("a 64-bit machine").max(1);
        block.try_reserve_exact(bytes).expect("this machine has that much address space");
        std::hint::black_box(block)
    }
    #[inline]
    fn free(&self, block: Vec<u8>) {
        drop(block);
    }
}
