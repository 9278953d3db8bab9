//! The order in which locks are taken, on the locks that a model checker can replace.
//!
//! [`Ranked`] is a mutex that knows its place in the order of locks: a debug build asserts that a thread takes ranks
//! only upwards and never two of one rank, which enforces "one pool lock at a time". This module does not know
//! what the locks protect.

pub use millpond_driver::sync::*;

/// The order in which locks may be taken: a thread that holds one may only take a higher one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rank {
    /// One trim of an allocator at a time. Held over driver calls; no free and no hit takes it.
    Trimmer = 0,
    /// One grower per pool at a time. Held over driver calls; no free takes it.
    Grower = 1,
    /// The list of an allocator's pools.
    Pools = 2,
    /// A pool's heap, queues and counters.
    Pool = 4,
    /// Handles of physical memory and where they are mapped.
    Physical = 5,
    /// Segments, limits and what has been reserved from the device.
    Backing = 6,
    /// The table of a device's timelines.
    Registry = 7,
    /// One timeline's clock and markers.
    Timeline = 8,
    /// The recorder of events and other leaves.
    Leaf = 9,
}

/// The turns that may be held over driver calls, as a set of ranks.
#[cfg(debug_assertions)]
const TURNS: u16 = 1 << (Rank::Trimmer as u8) | 1 << (Rank::Grower as u8);

#[cfg(debug_assertions)]
per_thread! {
    static HELD: core::cell::Cell<u16> = core::cell::Cell::new(0);
}

#[cfg(debug_assertions)]
per_thread! {
    static TAKEN: core::cell::Cell<[u64; 10]> = core::cell::Cell::new([0; 10]);
}

/// How many ranked locks this thread has taken so far, by their ranks, in debug builds. Each look at a pool or a timeline
/// takes one, so a test counts looks without measuring time. In release builds nothing is counted.
#[doc(hidden)]
pub fn locks_taken() -> [u64; 10] {
    #[cfg(debug_assertions)]
    return TAKEN.with(core::cell::Cell::get);
    #[cfg(not(debug_assertions))]
    [0; 10]
}

/// A mutex with a rank: one whose waiters sleep ([`Parking`]), or one for locks that are held for microseconds ([`Quick`]).
pub struct Ranked<T, K: LockKind = Parking> {
    rank: Rank,
    inner: Lock<K, T>,
}

impl<T, K: LockKind> Ranked<T, K> {
    /// A mutex of this rank.
    pub fn new(rank: Rank, value: T) -> Ranked<T, K> {
        Ranked { rank, inner: Lock::new(value) }
    }
    /// Locks it.
    ///
    /// # Panics
    /// In debug builds, when this thread holds a lock of the same or a higher rank.
    #[inline]
    pub fn lock(&self) -> RankedGuard<'_, T, K> {
        #[cfg(debug_assertions)]
        HELD.with(|h| {
            assert!(
                h.get() >> (self.rank as u8) == 0,
                "lock rank {:?} taken while a lock of its rank or above is held (held set {:#b})",
                self.rank,
                h.get()
            );
            h.set(h.get() | 1 << (self.rank as u8));
            TAKEN.with(|taken| {
                let mut all = taken.get();
                all[self.rank as usize] += 1;
                taken.set(all);
            });
        });
        #[cfg(debug_assertions)]
        if self.rank == Rank::Grower {
            in_turn(true);
        }
        let held = Held { rank: self.rank };
        #[cfg(shuttle)]
        next::ranked(self.rank as u8);
        RankedGuard { guard: self.inner.lock(), held }
    }
    /// The value, without locking: the exclusive borrow proves that it is not held.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T, K: LockKind> core::fmt::Debug for Ranked<T, K> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Ranked({:?})", self.rank)
    }
}

/// A held [`Ranked`] lock.
pub struct RankedGuard<'a, T, K: LockKind = Parking> {
    guard: LockGuard<'a, K, T>,
    held: Held,
}

impl<T, K: LockKind> core::fmt::Debug for RankedGuard<'_, T, K> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RankedGuard({:?})", self.held.rank)
    }
}

/// A rank in this thread's set of held ranks, until dropped.
#[derive(Debug)]
struct Held {
    #[cfg_attr(not(debug_assertions), allow(dead_code, reason = "only debug builds check ranks"))]
    rank: Rank,
}

impl<T, K: LockKind> RankedGuard<'_, T, K> {
    /// Hands the lock to a waiting thread, for holders that work in slices.
    pub fn unlock_fair(self) {
        let RankedGuard { guard, held } = self;
        LockGuard::unlock_fair(guard);
        drop(held);
    }
}
impl<T, K: LockKind> core::ops::Deref for RankedGuard<'_, T, K> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}
impl<T, K: LockKind> core::ops::DerefMut for RankedGuard<'_, T, K> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.with(|h| h.set(h.get() & !(1 << (self.rank as u8))));
        if self.rank == Rank::Grower {
            in_turn(false);
        }
    }
}

/// Asserts, in debug builds, that this thread holds no ranked lock except a turn: before every driver call and every callback.
///
/// # Panics
/// In debug builds, if it holds one.
#[inline]
pub fn assert_unlocked(what: &str) {
    #[cfg(debug_assertions)]
    HELD.with(|h| {
        let held = h.get() & !TURNS;
        assert!(held == 0, "{what} while a lock is held (held set {held:#b})");
    });
    #[cfg(not(debug_assertions))]
    let _ = what;
}
