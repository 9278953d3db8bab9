//! Ordinary builds: `parking_lot`, `core` and `std`, unwrapped. It does not know that there are models.

use core::cell::Cell;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

pub use parking_lot::lock_api::{Mutex as Lock, MutexGuard as LockGuard, RawMutexFair as LockKind};
pub use parking_lot::{Mutex, MutexGuard, RawMutex as Parking};
pub use parking_lot::{ReentrantMutex as Reentrant, ReentrantMutexGuard as ReentrantGuard};
pub use std::thread::yield_now;

/// Atomic integers and flags.
pub mod atomic {
    pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
}

/// A thread's number, never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ThreadId(NonZeroU64);

/// The calling thread's identity. Not std's own, which panics in code that runs after std's end of a thread: in the destructor of a
/// pthread key that was made later.
#[inline]
pub fn current_thread() -> ThreadId {
    thread_local! {
        static MINE: Cell<Option<ThreadId>> = const { Cell::new(None) };
    }
    #[cold]
    fn assign() -> ThreadId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let next = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).expect("64 bits last for ever");
        MINE.set(Some(ThreadId(next)));
        ThreadId(next)
    }
    MINE.get().unwrap_or_else(assign)
}

/// A condition variable: waits until another thread changed what a [`Mutex`] protects.
#[derive(Default, Debug)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// With no waiting thread.
    pub fn new() -> Condvar {
        Condvar::default()
    }
    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
    /// Unlocks, waits to be woken for at most `limit`, and locks again. May wake for no reason.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: core::time::Duration) {
        self.0.wait_for(guard, limit);
    }
}

/// A thread-local variable with a constant initial value.
#[doc(hidden)]
#[macro_export]
macro_rules! per_thread {
    ($(#[$attr:meta])* static $name:ident: $t:ty = $init:expr;) => {
        ::std::thread_local! { $(#[$attr])* static $name: $t = const { $init }; }
    };
}
