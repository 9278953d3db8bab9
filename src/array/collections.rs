//! Pinned memory for ordinary collections: an allocator in the sense of `allocator_api2`.
//!
//! The simple version would put a block's identity in front of its bytes; then elements would not begin at the block's alignment, and an alignment of 512 would
//! cost 512 bytes. So the allocator keeps a table from addresses to blocks, one lock an operation. It does not know collections, nor copies: who
//! copies from a collection owns it until the copy is done (`transfer`).

use crate::allocator::{Allocator, PinnedAllocation, PinnedSource};
use crate::driver::{Driver, HostKind};
use crate::error::Error;
use crate::units::GRANULE_BYTES;
use allocator_api2::alloc::{AllocError, Layout};
use core::fmt;
use core::ptr::NonNull;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;

/// Pinned memory from an allocator's pool, for collections that take an `allocator_api2` allocator (feature `allocator-api2`): a
/// `Vec<f32, PinnedAllocator<D>>` is built as any vector, and is the source of an asynchronous copy by itself.
///
/// A clone is the same allocator. Memory goes back to the pool when the collection is dropped: a copy owns its source until it is complete, also when its token
/// was dropped before. Memory outlives the [`Allocator`] as a [`PinnedArray`](crate::PinnedArray) does. Where memory is refused, a collection only learns that
/// it is: [`PinnedAllocator::take_refusal`] says why.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let mut batch = Vec::new_in(gpu.pinned_allocator());
/// batch.extend((0..1000).map(|i| i as f32));
/// let (x, sent) = gpu.array_from_pinned(batch, &stream)?; // no staging: the vector's memory is pinned
/// let mut batch = sent.wait()?; // the same vector, to be filled again
/// assert_eq!(x.to_vec(&stream)?[7], 7.0);
/// batch.clear();
/// # Ok(()) }
/// ```
pub struct PinnedAllocator<D: Driver>(Arc<Blocks<D>>);

struct Blocks<D: Driver> {
    source: PinnedSource<D>,
    kind: HostKind,
    /// By the first byte that was handed out.
    live: Mutex<HashMap<usize, PinnedAllocation<D>>>,
    refusal: Mutex<Option<Error>>,
}

impl<D: Driver> Allocator<D> {
    /// An allocator of this one's pinned memory, cached by the CPU, for collections.
    pub fn pinned_allocator(&self) -> PinnedAllocator<D> {
        PinnedAllocator(Arc::new(Blocks {
            source: self.pinned_source(),
            kind: HostKind::Cached,
            live: Mutex::default(),
            refusal: Mutex::default(),
        }))
    }
}

impl<D: Driver> PinnedAllocator<D> {
    /// Why memory was last refused, once; `None` if none was since.
    pub fn take_refusal(&self) -> Option<Error> {
        self.0.refusal.lock().take()
    }

    fn block(&self, layout: Layout) -> Result<NonNull<[u8]>, Error> {
        let (size, align) = (layout.size(), layout.align());
        // Blocks begin at granules; what an alignment above may skip is in the block too.
        let room = align.saturating_sub(GRANULE_BYTES as usize);
        let block = self.0.source.alloc((size as u64).saturating_add(room as u64), self.0.kind)?;
        let at = block.as_ptr();
        let skipped = at.addr().get().next_multiple_of(align) - at.addr().get();
        let first = at.map_addr(|addr| addr.saturating_add(skipped));
        self.0.live.lock().insert(first.addr().get(), block);
        Ok(NonNull::slice_from_raw_parts(first, size))
    }
}

#[allow(unsafe_code, reason = "the contract of allocators")]
// SAFETY: each block is an allocation of the pool that stays in the table until it is deallocated, so that it is nobody else's; clones share
// the table. Moving the allocator moves no block.
unsafe impl<D: Driver> allocator_api2::alloc::Allocator for PinnedAllocator<D> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            // SAFETY: an alignment is not 0.
            let dangling =
                unsafe { NonNull::new_unchecked(core::ptr::without_provenance_mut(layout.align())) };
            return Ok(NonNull::slice_from_raw_parts(dangling, 0));
        }
        self.block(layout).map_err(|refused| {
            *self.0.refusal.lock() = Some(refused);
            AllocError
        })
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // Out of the table before its memory can be anybody else's; freed with no lock held.
            let block = self.0.live.lock().remove(&ptr.addr().get());
            drop(block);
        }
    }
}

impl<D: Driver> Clone for PinnedAllocator<D> {
    fn clone(&self) -> PinnedAllocator<D> {
        PinnedAllocator(Arc::clone(&self.0))
    }
}

impl<D: Driver> fmt::Debug for PinnedAllocator<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedAllocator({} blocks)", self.0.live.lock().len())
    }
}
