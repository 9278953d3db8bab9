//! The fast path: an allocation that the pool's free ranges serve, and a free that concerns only the home stream. Read it from top to
//! bottom. An allocation whose length is the first in its bin calls these functions in this order, apart from those that are one expression and only read
//! (`tests/architecture/hot_path.rs` lists these, and fails for any other call):
//!
//! | file | functions |
//! |---|---|
//! | `src/allocator/fast.rs` | `alloc`, `hit` |
//! | `core/src/heap/hit.rs` | `Request::of` |
//! | `src/sync.rs` | `Ranked::lock` |
//! | `driver/src/sync/quick.rs` | `Flag::take` |
//! | `core/src/heap/hit.rs` | `Heap::take_plain` |
//! | `core/src/heap/bins.rs` | `Bin::of_same_kind`, `Bins::pop`, `Bins::begin_leave` |
//! | `core/src/heap/hit.rs` | `mark_allocated`, `Taken::new` |
//! | `src/allocator/fast.rs` | `count_size` |
//! | `src/allocator/refcount.rs` | `move_out` |
//! | `driver/src/sync/quick.rs` | `Flag::release` |
//! | `src/allocator/fast.rs` | `handle` |
//!
//! One type goes through all of it, `Taken`, and is stored in the caller's handle. A free calls `drop` and what is below it here,
//! `Heap::give_untagged` and `Heap::merge_free` in `core/src/heap/hit.rs`.
//!
//! Both take one lock. A hit looks at 32 free chunks at most, makes no driver call and allocates nothing; a free loads one integer (law
//! O2). Neither runs user code or calls the driver, so a drop, which may happen at any time on any thread, waits for neither (O9).
//! `benches/hit.rs` counts the instructions of both, some 330.
//!
//! It does not know what a miss does (`miss`), what else may use the bytes (`Pool::free_used`), nor the rare cases: alignments, streams that
//! have to be checked for captures, names, recorders.

#![allow(unsafe_code, reason = "references are counted by hand: K1 to K3 of `refcount`")]

use super::allocation::{Allocation, Home};
use super::pool::{AfterFree, Pool, PoolState};
use super::{Allocator, Stream};
use crate::driver::{Driver, Note};
use crate::error::Error;
use crate::heap::{ChunkId, Given, Kind, Request, Taken};
use crate::laws;
use crate::sync::Arc;
use crate::units::Granules;
use core::mem::ManuallyDrop;

// An allocation.

impl<D: Driver> Allocator<D> {
    /// Allocates `bytes` on a stream: uninitialised ([`Config::scrub`](super::Config::scrub): zeroed in stream order), 512-byte aligned, valid
    /// for work queued on the stream from now on. From the cache it makes no driver call (scrubbing: a fill); otherwise it may
    /// acquire memory from the device, make the stream wait for another stream's last use of the bytes, and, when memory is
    /// out, block the host for a bounded time.
    ///
    /// Two exceptions. If other code may capture on the stream, as on every adopted one, the driver is queried whether it captures. And if only calls
    /// that name the stream may mark it (a thread's default stream, one that [may end unannounced](crate::driver::StreamInfo::unmanaged)), the
    /// next call that names it makes a due marker, at most one for sixteen frees or 16 MiB of them: such an allocation records an event and
    /// queries some, a constant number on average.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with a report, [`Error::TooLarge`], [`Error::OtherAllocator`], [`Error::Capturing`], or the
    /// driver's; an invalid handle also for a per-thread default stream of another thread. Nothing is lost.
    #[allow(clippy::inline_always, reason = "the handle is written where the caller keeps it: Pool::hit")]
    #[inline(always)]
    pub fn alloc(&self, bytes: u64, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        let plain = Arc::ptr_eq(&stream.pool().core, self.core()) && !stream.is_watched();
        if plain && let Some(taken) = Pool::hit(stream.pool(), bytes) {
            // SAFETY: the hit moved a reference of this pool out of its state, and this is the only one that is made of it.
            let reference = unsafe { Arc::from_raw(Arc::as_ptr(stream.pool())) };
            return Ok(Self::handle(reference, taken, bytes));
        }
        // The error is boxed: otherwise the caller's result would have to be built in memory.
        match self.alloc_otherwise(plain, bytes, stream) {
            Ok(allocation) => Ok(allocation),
            Err(why) => Err(*why),
        }
    }

    /// Allocates on a stream of this allocator that is known not to capture.
    pub(super) fn alloc_hit(&self, bytes: u64, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        let Some(taken) = Pool::hit(stream.pool(), bytes) else { return self.alloc_missed(bytes, stream) };
        // SAFETY: as in `alloc`.
        let reference = unsafe { Arc::from_raw(Arc::as_ptr(stream.pool())) };
        Ok(Self::handle(reference, taken, bytes))
    }

    /// Makes the handle of a range from the range and its reference to the pool.
    #[inline]
    pub(super) fn handle(pool: Arc<Pool<D>>, taken: Taken, bytes: u64) -> Allocation<D> {
        let id = pool.id_of(taken.chunk(), taken.generation());
        let stream = Some(pool.timeline.info.id);
        pool.core.driver.note(Note::Allocated { id, addr: taken.addr, bytes, stream });
        Allocation { home: Some(Home { pool: ManuallyDrop::new(pool), taken }), bytes }
    }
}

impl<D: Driver> Pool<D> {
    /// A range, for whose handle a reference to the pool was moved out of its state; `None` for a miss, or for a request that no pool
    /// serves. The result is two `u64` in registers. A whole handle would be returned in memory, written in single words and read in
    /// pairs at once: a store-forwarding stall.
    #[inline(never)]
    fn hit(pool: &Arc<Pool<D>>, bytes: u64) -> Option<Taken> {
        let request = Request::of(bytes)?;
        let mut state = pool.lock();
        let taken = state.heap.take_plain(request, pool.kind(bytes))?;
        state.count_size(request.len());
        state.move_out(pool);
        Some(taken)
    }

    /// Which segments serve a request of this size.
    #[inline]
    pub(crate) fn kind(&self, bytes: u64) -> Kind {
        if bytes <= self.small_bytes { Kind::Small } else { Kind::Large }
    }
}

impl PoolState {
    /// Counts a size, as `report::Histogram::add` does, but in an array: the index needs no check and nothing
    /// grows.
    #[inline]
    pub(super) fn count_size(&mut self, len: Granules) {
        self.sizes[(u64::from(len.0 - 1) << 1 | 1).ilog2() as usize] += 1;
    }
}

// A free.

impl<D: Driver> Drop for Allocation<D> {
    #[inline]
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            // SAFETY: the handle and its field end here, and nothing else drops the field: its reference is moved out.
            let pool = unsafe { Arc::from_raw(Arc::as_ptr(&home.pool)) };
            Pool::free(pool, &home.taken);
        }
    }
}

impl<D: Driver> Pool<D> {
    /// Free: one lock, no driver call, no user code. DESIGN.md, "One free", describes it. The address is only used
    /// for an event.
    #[inline]
    fn free(pool: Arc<Pool<D>>, taken: &Taken) {
        let (chunk, generation) = (taken.chunk(), taken.generation());
        let raw = Arc::into_raw(pool);
        // SAFETY: the reference that `raw` stands for keeps the pool until it is put back, which happens under the lock;
        // afterwards only the lock is released (K3).
        let pool = unsafe { &*raw };
        pool.note_freed(chunk, generation);
        let mut state = pool.lock();
        if let Some(given) = pool.give_back(&mut state, chunk, generation) {
            pool.publish_longest(&mut state, given.kind, given.free_len);
            if state.watch.is_calm() {
                state.refcounts.0 += 1;
            } else {
                let after = pool.after_merge(&mut state, chunk, generation, taken.addr, given.len, false);
                drop(state);
                // SAFETY: it was not put back.
                Self::freed(unsafe { Arc::from_raw(raw) }, after);
            }
        } else {
            let after = pool.free_used(state, chunk, generation, false);
            // SAFETY: it was not put back.
            Self::freed(unsafe { Arc::from_raw(raw) }, after);
        }
    }

    #[cold]
    #[inline(never)]
    #[allow(clippy::needless_pass_by_value, reason = "the handle's reference ends here")]
    fn freed(pool: Arc<Pool<D>>, after: AfterFree) {
        pool.core.pool_emptied(&pool, after);
    }

    /// Notifies a checking device.
    #[inline]
    pub(crate) fn note_freed(&self, chunk: ChunkId, generation: u32) {
        self.core.driver.note(Note::Freed { id: self.id_of(chunk, generation), unknown: false });
    }

    /// The heap's part of a free; does nothing and returns `None` if other streams used the range.
    #[inline]
    pub(crate) fn give_back(&self, state: &mut PoolState, chunk: ChunkId, generation: u32) -> Option<Given> {
        if laws::free_ignores_tag() {
            state.heap.set_tag(chunk, 0);
        }
        // Law O2: order within the stream is enough. The stamp is loaded after the user's last operation. A tag means
        // that other streams used the range.
        state.heap.give_untagged(chunk, generation, self.timeline.stamp())
    }
}
