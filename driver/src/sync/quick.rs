//! A lock whose release is a plain store, for the pools: each allocation and each free takes one and releases it.
//!
//! A lock that wakes sleepers has to look for them in the same atomic step that releases it, and on the
//! measured machine such a step costs as much as half an allocation (docs/decisions/quick-lock.md). This spin lock wakes no one: a thread
//! that finds the lock taken looks again, first at once, then after yielding, then after short sleeps (backoff). That
//! is right only for what is held for microseconds: a pool's lock is never held over a driver call, a callback or
//! another lock's wait. There is no fairness, and no protection of data: `lock_api` adds that.

use super::atomic::AtomicBool;
#[cfg(not(any(loom, shuttle)))]
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// Looks before the first yield: some microseconds, longer than any hit.
const SPINS: u32 = 7;
/// Yields before the first sleep.
const YIELDS: u32 = 64;
/// The length of a sleep: the holder lost its processor, which it gets back in milliseconds.
const SLEEP: Duration = Duration::from_micros(100);

/// Whether the lock is held, and how many threads wait for it.
#[derive(Debug)]
pub struct Flag {
    held: AtomicBool,
    /// Written by waiting threads, read by a holder that releases the lock in the middle of something long. Model checkers take turns anyway.
    #[cfg(not(any(loom, shuttle)))]
    waiting: AtomicU32,
}

impl Flag {
    /// A flag that is not held.
    #[cfg(not(any(loom, shuttle)))]
    #[allow(clippy::declare_interior_mutable_const, reason = "what a lock begins as, copied into each")]
    pub const FREE: Flag = Flag { held: AtomicBool::new(false), waiting: AtomicU32::new(0) };

    /// A flag that is not held.
    #[cfg(any(loom, shuttle))]
    #[allow(clippy::new_without_default, reason = "the ordinary build has a constant instead")]
    pub fn new() -> Flag {
        Flag { held: AtomicBool::new(false) }
    }

    /// Takes the lock if it is free. What its last holder did is then visible.
    #[inline]
    pub fn try_take(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, as soon as it is free.
    #[inline]
    pub fn take(&self) {
        if !self.try_take() {
            self.take_contended();
        }
    }

    #[cold]
    #[inline(never)]
    fn take_contended(&self) {
        #[cfg(not(any(loom, shuttle)))]
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0;
        // Only reading keeps the cache line shared between waiting threads.
        while self.held.load(Ordering::Relaxed) || !self.try_take() {
            wait(looks);
            looks += 1;
        }
        #[cfg(not(any(loom, shuttle)))]
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a thread waits for the lock: it has looked once in vain.
    #[cfg(not(any(loom, shuttle)))]
    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Releases the lock: the holder's last access to the flag, and to what it protects.
    #[inline]
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }
}

#[cfg(not(any(loom, shuttle)))]
// SAFETY: `take` and `try_take` return while no other thread holds the flag: it turns from false to true in one atomic step,
// and only the holder turns it back. The step acquires what `release` released.
#[allow(unsafe_code, reason = "the contract that lock_api's guards rest on")]
unsafe impl parking_lot::lock_api::RawMutex for Flag {
    const INIT: Flag = Flag::FREE;
    // As parking_lot's: a lock is released by the thread that took it.
    type Guard = parking_lot::lock_api::GuardNoSend;
    #[inline]
    fn lock(&self) -> Self::Guard {
        self.take();
        Self::Guard::new()
    }
    #[inline]
    fn try_lock(&self) -> Option<Self::Guard> {
        self.try_take().then(Self::Guard::new)
    }
    #[inline]
    unsafe fn unlock(&self, _guard: Self::Guard) {
        self.release();
    }
    #[inline]
    fn is_locked(&self) -> bool {
        self.is_held()
    }
}

#[cfg(not(any(loom, shuttle)))]
// SAFETY: as above. Waiting threads get a chance to take it, not a guarantee. If none waits the thread goes on: an unneeded
// yield costs the rest of a time slice on a machine with other work.
#[allow(unsafe_code, reason = "the contract that lock_api's guards rest on")]
unsafe impl parking_lot::lock_api::RawMutexFair for Flag {
    unsafe fn unlock_fair(&self, _guard: Self::Guard) {
        // Read before the release, which is the last access to the flag.
        let is_waited_for = self.is_waited_for();
        self.release();
        if is_waited_for {
            super::yield_now();
        }
    }
}

/// Waits longer the more often it looked in vain.
fn wait(looks: u32) {
    if looks < SPINS {
        for _ in 0..1 << looks {
            core::hint::spin_loop();
        }
    } else if looks < SPINS + YIELDS || cfg!(any(loom, shuttle)) {
        super::yield_now();
    } else {
        std::thread::sleep(SLEEP);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Flag;

    /// A holder that releases the lock in the middle of something long lets others run if one of them waits, and only then.
    #[test]
    fn a_lock_is_waited_for_while_a_thread_waits() {
        let flag = Flag::FREE;
        flag.take();
        assert!(!flag.is_waited_for(), "no thread but the holder");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                flag.take();
                flag.release();
            });
            while !flag.is_waited_for() {
                std::thread::yield_now();
            }
            assert!(flag.is_held());
            flag.release();
        });
        assert!(!flag.is_waited_for() && !flag.is_held(), "who waited has had it");
    }
}
