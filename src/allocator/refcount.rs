//! What keeps a pool alive for its allocations: counted references that move between handles and the pool's state under its lock.
//!
//! A handle holds an ordinary `Arc` of its pool. Incrementing the count for each allocation and decrementing it for each free takes two
//! atomic operations beside those of the lock, a fifth of the pair's time on the measured machine (docs/decisions/handle-batches.md). So
//! references are counted in batches and stored in the pool's own state while no handle has them: an allocation takes one,
//! a free puts its own back (`fast`). This file does not know what else happens under the lock.
//!
//! - **K1** Strong count = references that others hold + references in handles + [`Refcounts`] in the state. A mistake that
//!   loses one leaks a pool; none frees it early.
//! - **K2** References are in the state only while a stream or the allocator holds the pool too, and the last of those takes them
//!   out ([`Pool::leave`]). So a pool never keeps itself alive, and none is put back afterwards: the free sees under
//!   the lock that the pool is leaving, and keeps its reference until it has finished.
//! - **K3** A free that has put its reference back does not access the pool again: releasing the lock is its last access, and the
//!   lock accesses nothing after the store that releases it.

#![allow(unsafe_code, reason = "references are counted by hand")]

use super::pool::state::{PoolState, Refcounts, Watch};
use super::pool::{Held, Pool};
use crate::driver::Driver;
use crate::sync::Arc;

/// How many references are counted at once. Few under Miri, where a test that goes through several batches takes minutes.
const BATCH: u32 = if cfg!(miri) { 16 } else { 256 };

impl Refcounts {
    /// The number of whole batches.
    pub(super) fn batches(&self) -> usize {
        (self.0 / BATCH) as usize
    }
}

impl PoolState {
    /// A reference for a handle.
    pub(crate) fn reference<D: Driver>(&mut self, pool: &Arc<Pool<D>>) -> Arc<Pool<D>> {
        self.move_out(pool);
        // SAFETY: a reference that was counted and belongs to the state (K1) becomes the handle's; it is this pool's, whose
        // state is locked.
        unsafe { Arc::from_raw(Arc::as_ptr(pool)) }
    }

    /// Moves a reference out of the state, without an atomic operation if one is stored. The caller must make it into an `Arc`; otherwise it is lost.
    #[inline]
    pub(super) fn move_out<D: Driver>(&mut self, pool: &Arc<Pool<D>>) {
        self.refcounts.0 = match self.refcounts.0.checked_sub(1) {
            Some(left) => left,
            None => Self::mint(pool),
        };
    }

    #[cold]
    #[inline(never)]
    fn mint<D: Driver>(pool: &Arc<Pool<D>>) -> u32 {
        for _ in 0..BATCH {
            core::mem::forget(Arc::clone(pool));
        }
        BATCH - 1
    }
}

impl<D: Driver> Pool<D> {
    /// The last stream, or the allocator, goes: frees must check for that from now on, and the references in the state end. The caller
    /// holds a reference, unlocks, and passes what is returned to [`Pool::release`].
    pub(crate) fn leave(state: &mut Held<'_>, why: Watch) -> Refcounts {
        state.watch.set(Watch::LEAVING);
        state.watch.set(why);
        core::mem::take(&mut state.refcounts)
    }

    /// Ends references that were stored in the pool's state. Called with no lock held.
    pub(crate) fn release(pool: &Arc<Pool<D>>, Refcounts(count): Refcounts) {
        for _ in 0..count {
            // SAFETY: each was counted and belonged to the state (K1), which gave it up; the caller's own is one more.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(pool)) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::BATCH;
    use crate::allocator::{Allocation, Allocator, Config, Trim};
    use crate::driver::{Fences, StreamOptions};
    use crate::sync::{Arc, Weak};
    use millpond_sim::null::Null;

    fn references(of: &Weak<super::Pool<Null>>) -> usize {
        of.strong_count()
    }

    /// Each reference is somewhere: with other holders, in handles, or in the state.
    #[test]
    fn references_are_counted_in_batches_and_none_is_lost() {
        let gpu = Allocator::new(Null::default(), Config::default()).unwrap();
        let stream = gpu.stream().unwrap();
        let pool = Arc::downgrade(stream.pool());
        drop(gpu.alloc(512, &stream).unwrap());
        let others = references(&pool);
        // More than a batch at once: a second one is counted.
        let many: Vec<_> = (0..=BATCH).map(|_| gpu.alloc(512, &stream).unwrap()).collect();
        let counted = references(&pool);
        assert!(counted > others, "{counted} references with {} handles", many.len());
        std::thread::spawn(move || drop(many)).join().unwrap();
        assert_eq!(references(&pool), counted, "what the handles had lies in the pool");
        let kept = gpu.alloc(512, &stream).unwrap();
        let raw = gpu.alloc(512, &stream).unwrap().into_raw();
        assert_eq!(references(&pool), counted);
        drop(stream);
        assert_eq!(references(&pool), 3, "the list of pools, the handle and the raw value: the shares ended");
        drop(kept);
        assert_eq!(references(&pool), 2);
        // SAFETY: it was taken apart above and is put together once.
        drop(unsafe { Allocation::from_raw(raw) });
        gpu.trim(Trim::All).unwrap();
        assert_eq!(references(&pool), 0, "swept away");
    }

    /// A stream that is queried at each allocation whether it captures, and one whose allocations are recorded: the free puts a reference back, so
    /// the allocation must have taken one. Otherwise the count would grow by one for each pair, and the stream's end would take as many steps.
    #[test]
    fn on_every_way_to_memory_the_free_puts_back_what_was_taken() {
        let sink = Arc::new(crate::trace::Ring::new(1));
        for config in [Config::default(), Config::default().sink(sink)] {
            let gpu = Allocator::new(Null::default(), config).unwrap();
            let stream = gpu.adopt(gpu.driver().create_stream(StreamOptions::default()).unwrap()).unwrap();
            let pool = Arc::downgrade(stream.pool());
            drop(gpu.alloc(512, &stream).unwrap());
            let counted = references(&pool);
            for _ in 0..4 * BATCH {
                drop(gpu.alloc(512, &stream).unwrap());
                drop(gpu.alloc_not_capturing(512, &stream).unwrap());
                drop(gpu.alloc_aligned(512, 4096, &stream).unwrap());
            }
            assert!(references(&pool) <= counted + BATCH as usize, "{} of {counted}", references(&pool));
            // A miss each: its memory was given back.
            for _ in 0..4 * BATCH {
                drop(gpu.alloc(512, &stream).unwrap());
                gpu.trim(Trim::All).unwrap();
            }
            assert!(references(&pool) <= counted + BATCH as usize, "{} of {counted}", references(&pool));
            assert!(gpu.bookkeeping().reference_batches <= 1);
        }
    }

    /// K3, for Miri with many seeds (`.ci/miri`): a free that puts its reference back releases the lock of a pool that
    /// another thread frees at that moment.
    #[test]
    fn a_pool_goes_beside_the_last_free() {
        let gpu = Allocator::new(Null::default(), Config::default()).unwrap();
        let stream = gpu.stream().unwrap();
        let pool = Arc::downgrade(stream.pool());
        let block = gpu.alloc(4096, &stream).unwrap();
        let free = std::thread::spawn(move || drop(block));
        drop(stream);
        gpu.trim(Trim::All).unwrap();
        free.join().unwrap();
        gpu.trim(Trim::All).unwrap();
        assert_eq!(references(&pool), 0);
    }

    /// Whichever holder goes last, nothing stays.
    #[test]
    fn in_every_order_of_ends_the_pool_goes() {
        for order in 0..6 {
            let null = Null::default();
            let gpu = Allocator::new(null.clone(), Config::default()).unwrap();
            let stream = gpu.stream().unwrap();
            let pool = Arc::downgrade(stream.pool());
            let block = gpu.alloc(4096, &stream).unwrap();
            let mut ends: Vec<Option<Box<dyn FnOnce()>>> = vec![
                Some(Box::new(move || drop(block))),
                Some(Box::new(move || drop(stream))),
                Some(Box::new(move || drop(gpu))),
            ];
            for which in [order % 3, (order % 3 + 1 + order / 3) % 3, (order % 3 + 2 - order / 3) % 3] {
                ends[which].take().expect("each end comes once")();
            }
            assert_eq!((references(&pool), null.outstanding()), (0, (0, 0)), "order {order}");
        }
    }
}
