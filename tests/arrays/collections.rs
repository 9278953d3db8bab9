//! Ordinary collections in pinned memory, as sources of copies.

use super::clean;
use allocator_api2::alloc::{Allocator as _, Layout};
use allocator_api2::vec::Vec;
use millpond::array::PinnedAllocator;
use millpond::units::{GIB, KIB, MIB};
use millpond::{Allocator, Config, Error};
use millpond_sim::{Call, Schedule, Sim};

fn late() -> (Sim, Allocator<Sim>, PinnedAllocator<Sim>) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default().pinned_limit(64 * MIB)).unwrap();
    let pinned = gpu.pinned_allocator();
    (sim, gpu, pinned)
}

fn live(gpu: &Allocator<Sim>) -> u64 {
    gpu.report().pinned.map_or(0, |p| p.live)
}

/// A vector grows, is copied from without staging, comes back and shrinks; its memory goes back to the pool.
#[test]
fn a_vector_is_the_source_of_a_copy() {
    let (sim, gpu, pinned) = late();
    let s = gpu.stream().unwrap();
    let mut batch = Vec::new_in(pinned);
    batch.extend((0..100_000_u32).map(|i| i * 3));
    assert!(batch.iter().enumerate().all(|(i, &v)| v == 3 * i as u32), "growth moved every element");
    assert_eq!(live(&gpu), 1);
    let (x, sent) = gpu.array_from_pinned(batch, &s).unwrap();
    let mut batch = sent.wait().unwrap();
    assert_eq!(x.to_vec(&s).unwrap(), &batch[..]);
    batch.truncate(10);
    batch.shrink_to_fit();
    assert_eq!((batch.capacity(), batch[9]), (10, 27));
    let boxed = batch.into_boxed_slice();
    let (y, sent) = gpu.array_from_pinned(boxed, &s).unwrap();
    drop(sent.wait().unwrap());
    assert_eq!(y.to_vec(&s).unwrap()[9], 27);
    assert_eq!((live(&gpu), sim.ledger().calls_of(Call::MemHostAlloc)), (0, 1));
    drop((x, y, s, gpu));
    clean(&sim);
}

/// A token that is dropped leaves the vector to the copy: its memory is nobody else's until that is complete.
#[test]
fn memory_comes_back_when_the_copy_is_complete() {
    let (sim, gpu, pinned) = late();
    let s = gpu.stream().unwrap();
    let mut batch = Vec::with_capacity_in(8 << 20, pinned.clone());
    batch.resize(8 << 20, 1_u32);
    let first = batch.as_ptr();
    let (x, sent) = gpu.array_from_pinned(batch, &s).unwrap();
    drop(sent);
    let other: Vec<u32, _> = Vec::with_capacity_in(8 << 20, pinned.clone());
    assert_ne!(other.as_ptr(), first, "the copy still reads the first");
    drop(other);
    gpu.synchronize().unwrap();
    assert_eq!(live(&gpu), 0);
    assert_eq!(x.to_vec(&s).unwrap()[1 << 20], 1);
    drop((x, s, pinned, gpu));
    clean(&sim);
}

#[test]
#[allow(unsafe_code, reason = "an allocator's own calls")]
fn blocks_are_aligned_as_requested() {
    let (sim, gpu, pinned) = late();
    let mut blocks = std::vec::Vec::new();
    for align in [1, 8, 64, 512, 1024, 4096, 65_536] {
        for size in [1, 7, 512, 4097] {
            let layout = Layout::from_size_align(size, align).unwrap();
            let block = pinned.allocate(layout).unwrap();
            assert!(block.cast::<u8>().addr().get().is_multiple_of(align) && block.len() >= size);
            // SAFETY: the block is as long.
            unsafe { block.cast::<u8>().write_bytes(blocks.len() as u8, size) };
            blocks.push((block.cast::<u8>(), layout));
        }
    }
    assert_eq!(live(&gpu), blocks.len() as u64);
    for (i, &(block, layout)) in blocks.iter().enumerate() {
        // SAFETY: the block is as long, and was written above.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), layout.size()) };
        assert!(bytes.iter().all(|&b| b == i as u8), "block {i} is its own");
        // SAFETY: of this allocator, with this layout, once.
        unsafe { pinned.deallocate(block, layout) };
    }
    let nothing = Layout::from_size_align(0, 4096).unwrap();
    let block = pinned.allocate(nothing).unwrap();
    assert!(block.cast::<u8>().addr().get().is_multiple_of(4096) && block.is_empty());
    // SAFETY: as above.
    unsafe { pinned.deallocate(block.cast(), nothing) };
    assert_eq!(live(&gpu), 0);
    drop((pinned, gpu));
    clean(&sim);
}

/// A refusal is an error of the collection, and the allocator says why.
#[test]
fn a_refusal_says_why() {
    let (sim, gpu, pinned) = late();
    let mut batch: Vec<u8, _> = Vec::new_in(pinned.clone());
    assert!(pinned.take_refusal().is_none());
    batch.try_reserve(65 << 20).unwrap_err();
    let Some(Error::OutOfMemory(refused)) = pinned.take_refusal() else { panic!("the limit refuses it") };
    assert_eq!(refused.pinned_limit, Some(64 * MIB));
    assert!(pinned.take_refusal().is_none(), "once");
    batch.try_reserve(KIB as usize).unwrap();
    batch.extend([1, 2, 3]);
    // The memory outlives the allocator.
    drop((gpu, pinned));
    assert_eq!(batch[..], [1, 2, 3]);
    drop(batch);
    clean(&sim);
}
