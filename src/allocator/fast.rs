//! The fast path: an allocation that the pool's free ranges serve, and a free that only the home stream has to do with. Read it from top to
//! bottom. An allocation whose length lies first in its bin calls, in this order, what readers of one field and laws of one line are left out of:
//!
//! | file | functions |
//! |---|---|
//! | `src/allocator/fast.rs` | `alloc`, `hit` |
//! | `core/src/heap/hit.rs` | `Request::of` |
//! | `src/sync.rs` | `Ranked::lock` |
//! | `driver/src/sync/quick.rs` | `Flag::take` |
//! | `core/src/heap/hit.rs` | `Heap::take_plain` |
//! | `core/src/heap/bins.rs` | `Bin::of`, `Bins::pop`, `Bins::begin_leave` |
//! | `core/src/heap/hit.rs` | `mark_allocated`, `Taken::new` |
//! | `src/allocator/fast.rs` | `count_size` |
//! | `src/allocator/refcount.rs` | `move_out` |
//! | `driver/src/sync/quick.rs` | `Flag::release` |
//! | `src/allocator/fast.rs` | `handed` |
//!
//! One type goes through all of it, `Taken`, and lies in the handle that the caller has. A free calls `drop` and what is below it here,
//! `Heap::give_untagged` and `Heap::merge_free` in `core/src/heap/hit.rs`.
//!
//! Both take one lock. A hit looks at 32 free chunks at most, makes no driver call and allocates nothing; a free loads one integer (law
//! O2). No user code runs and the driver is not called, so that a drop, which may come at any time on any thread, waits for neither (O9).
//! `benches/hit.rs` counts the instructions of both, some 330.
//!
//! It does not know what a miss does (`miss`), who else may use the bytes (`Pool::free_used`), nor what is rare: alignments, streams that have
//! to be asked, names, recorders.

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
    /// for work queued on the stream from now on. From the cache it makes no driver call (scrubbing: a fill); else it may
    /// take memory from the device, make the stream wait for another one's last use of the bytes, and, when memory is
    /// out, block the host for a bounded time.
    ///
    /// Two exceptions. Whether a stream captures is asked where others may capture on it, as on each that was adopted. And a stream that only calls
    /// naming it may mark (a thread's default stream, one that [may end unannounced](crate::driver::StreamInfo::unmanaged)) is marked by the
    /// next call that names it once a marker is due, at most one for sixteen frees or 16 MiB of them: such an allocation records an event and
    /// asks about some, a constant number in the mean.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with a report, [`Error::TooLarge`], [`Error::OtherAllocator`], [`Error::Capturing`], or the
    /// driver's; that of an invalid handle also for a per-thread default stream of another thread. Nothing is lost.
    #[allow(clippy::inline_always, reason = "the handle is made where it shall lie: Pool::hit")]
    #[inline(always)]
    pub fn alloc(&self, bytes: u64, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        let plain = Arc::ptr_eq(&stream.pool().core, self.core()) && !stream.is_watched();
        if plain && let Some(taken) = Pool::hit(stream.pool(), bytes) {
            // SAFETY: the hit moved a reference of this pool out of its state, and this is the only one that is made of it.
            let share = unsafe { Arc::from_raw(Arc::as_ptr(stream.pool())) };
            return Ok(Self::handed(share, taken, bytes));
        }
        // The error comes in a box: else the caller's result would be made in memory for its sake.
        match self.alloc_otherwise(plain, bytes, stream) {
            Ok(allocation) => Ok(allocation),
            Err(why) => Err(*why),
        }
    }

    /// On a stream of this allocator's that need not be asked.
    pub(super) fn alloc_hit(&self, bytes: u64, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        let Some(taken) = Pool::hit(stream.pool(), bytes) else { return self.alloc_missed(bytes, stream) };
        // SAFETY: as in `alloc`.
        let share = unsafe { Arc::from_raw(Arc::as_ptr(stream.pool())) };
        Ok(Self::handed(share, taken, bytes))
    }

    /// The handle of a range, and its reference of the pool.
    #[inline]
    pub(super) fn handed(pool: Arc<Pool<D>>, taken: Taken, bytes: u64) -> Allocation<D> {
        let id = pool.id_of(taken.chunk(), taken.generation());
        let stream = Some(pool.timeline.info.id);
        pool.core.driver.note(Note::Allocated { id, addr: taken.addr, bytes, stream });
        Allocation { home: Some(Home { pool: ManuallyDrop::new(pool), taken }), bytes }
    }
}

impl<D: Driver> Pool<D> {
    /// A range, for whose handle a reference of the pool was moved out of its state; `None` for a miss, or for a request that no pool
    /// answers. Two words come back, in registers: a whole handle would come back through memory, written in single words and read in
    /// pairs of them at once, which no store can be forwarded to.
    #[inline(never)]
    fn hit(pool: &Arc<Pool<D>>, bytes: u64) -> Option<Taken> {
        let request = Request::of(bytes)?;
        let mut state = pool.lock();
        let taken = state.heap.take_plain(request, pool.kind(bytes))?;
        state.count_size(request.len());
        state.move_out(pool);
        Some(taken)
    }

    /// Which segments serve a request.
    #[inline]
    pub(crate) fn kind(&self, bytes: u64) -> Kind {
        if bytes <= self.small_bytes { Kind::Small } else { Kind::Large }
    }
}

impl PoolState {
    /// Counts a size, as `report::Histogram::add` does, into an array: the index needs no check and nothing
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
    /// Free: one lock, no driver call, no user code. Told once in DESIGN.md, "One free". The address is only looked at
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

    /// Tells a checking device.
    #[inline]
    pub(crate) fn note_freed(&self, chunk: ChunkId, generation: u32) {
        self.core.driver.note(Note::Freed { id: self.id_of(chunk, generation), unknown: false });
    }

    /// The heap's part of a free; `None`, and nothing is done, if other streams used the range.
    #[inline]
    pub(crate) fn give_back(&self, state: &mut PoolState, chunk: ChunkId, generation: u32) -> Option<Given> {
        if laws::free_ignores_tag() {
            state.heap.set_tag(chunk, 0);
        }
        // Law O2: order within the stream is enough. The stamp is loaded after the user's last operation. A tag says
        // that other streams used it.
        state.heap.give_untagged(chunk, generation, self.timeline.stamp())
    }
}
