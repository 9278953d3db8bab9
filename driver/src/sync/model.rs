//! Builds for a model checker: loom's or shuttle's locks and atomics with the names and the interface of the ordinary ones.
//!
//! Both checkers run all threads of a program on one OS thread and switch between them at each operation
//! here; an OS lock would never block. It does not know what is being checked.

#[cfg(loom)]
use loom as checker;
#[cfg(not(loom))]
use shuttle as checker;

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::PoisonError;

pub use checker::thread::{ThreadId, yield_now};

/// A thread-local variable of the model's threads.
#[doc(hidden)]
#[macro_export]
macro_rules! per_thread {
    ($(#[$attr:meta])* static $name:ident: $t:ty = $init:expr;) => {
        $crate::sync::checker::thread_local! { $(#[$attr])* static $name: $t = $init; }
    };
}

/// Atomic integers and flags.
#[cfg(loom)]
pub mod atomic {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
}
#[cfg(not(loom))]
#[path = "announcing.rs"]
pub mod atomic;

#[cfg(not(loom))]
use super::next::{Step, announce, announce_lock};
#[cfg(loom)]
use unnotified::{Step, announce, announce_lock};

/// Loom sees the operations of its threads.
#[cfg(loom)]
mod unnotified {
    pub(super) enum Step {
        Release(#[allow(dead_code, reason = "unnotified")] usize),
    }
    pub(super) fn announce(_: Step) {}
    pub(super) fn announce_lock(_: usize) {}
}

/// The identity of a lock.
fn address<T>(lock: &T) -> usize {
    core::ptr::from_ref(lock).addr()
}

/// The calling thread's identity.
pub fn current_thread() -> ThreadId {
    checker::thread::current().id()
}

/// A mutex with the interface of the ordinary one: it is not poisoned.
#[derive(Default, Debug)]
pub struct Mutex<T>(checker::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A new, unlocked mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(checker::sync::Mutex::new(value))
    }
    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let lock = address(self);
        announce_lock(lock);
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)), lock)
    }
    /// The value, without locking: the exclusive borrow proves that it is not held.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A held [`Mutex`]. Empty only inside [`Condvar::wait_for`].
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<checker::sync::MutexGuard<'a, T>>, usize);

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        announce(Step::Release(self.1));
    }
}

const HELD: &str = "a guard that is not waiting holds its lock";

impl<T> MutexGuard<'_, T> {
    /// Unlocks: the checker's locks are as fair as the schedule.
    pub fn unlock_fair(guard: Self) {
        drop(guard);
    }
}
impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_deref().expect(HELD)
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect(HELD)
    }
}

/// How a [`Lock`] waits in ordinary builds; a model has one way.
pub trait LockKind {}
/// Ordinary builds: waiting threads sleep until they are woken.
#[derive(Debug)]
pub enum Parking {}
impl LockKind for Parking {}
impl LockKind for super::quick::Flag {}

/// A [`Mutex`] under the kind's name.
#[derive(Debug)]
pub struct Lock<K, T>(Mutex<T>, PhantomData<K>);

impl<K, T> Lock<K, T> {
    /// A new, unlocked lock.
    pub fn new(value: T) -> Lock<K, T> {
        Lock(Mutex::new(value), PhantomData)
    }
    /// Locks it.
    pub fn lock(&self) -> LockGuard<'_, K, T> {
        LockGuard(self.0.lock(), PhantomData)
    }
    /// The value, without locking: the exclusive borrow proves that it is not held.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// A held [`Lock`].
#[derive(Debug)]
pub struct LockGuard<'a, K, T>(MutexGuard<'a, T>, PhantomData<K>);

impl<K, T> LockGuard<'_, K, T> {
    /// Unlocks.
    pub fn unlock_fair(guard: Self) {
        drop(guard);
    }
}
impl<K, T> Deref for LockGuard<'_, K, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<K, T> DerefMut for LockGuard<'_, K, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A condition variable: waits until another thread changed what a [`Mutex`] protects.
#[derive(Default, Debug)]
pub struct Condvar(checker::sync::Condvar);

impl Condvar {
    /// With no waiting thread.
    pub fn new() -> Condvar {
        Condvar::default()
    }
    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
    /// Unlocks, waits to be woken, and locks again. No time passes in a model: a wait that is never woken is a deadlock,
    /// which the checker reports.
    ///
    /// # Panics
    /// Never: a guard outside a wait holds its lock.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: core::time::Duration) {
        let held = guard.0.take().expect(HELD);
        guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A lock that its holder may take again. All threads of a model are one OS thread, so the inner lock
/// lets all of them in; the outer one, of the checker, excludes the others.
#[derive(Debug)]
pub struct Reentrant<T> {
    outer: checker::sync::Mutex<()>,
    /// The number of the holding thread, 0 if none.
    holder: AtomicU64,
    inner: parking_lot::ReentrantMutex<T>,
}

impl<T> Reentrant<T> {
    /// A new, unlocked lock.
    pub fn new(value: T) -> Reentrant<T> {
        Reentrant {
            outer: checker::sync::Mutex::new(()),
            holder: AtomicU64::new(0),
            inner: parking_lot::ReentrantMutex::new(value),
        }
    }
    /// Locks it, again if the calling thread holds it.
    pub fn lock(&self) -> ReentrantGuard<'_, T> {
        let me = thread_number();
        let outer = (self.holder.load(Ordering::Relaxed) != me).then(|| {
            announce_lock(address(&self.outer));
            let outer = self.outer.lock().unwrap_or_else(PoisonError::into_inner);
            self.holder.store(me, Ordering::Relaxed);
            outer
        });
        ReentrantGuard { inner: self.inner.lock(), holder: &self.holder, lock: address(&self.outer), outer }
    }
}

/// A [`Reentrant`] lock, held. Guards of one thread are dropped in the reverse of the order in which they were made.
#[derive(Debug)]
pub struct ReentrantGuard<'a, T> {
    inner: parking_lot::ReentrantMutexGuard<'a, T>,
    holder: &'a AtomicU64,
    lock: usize,
    /// Only in the first guard.
    outer: Option<checker::sync::MutexGuard<'a, ()>>,
}

impl<T> Deref for ReentrantGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}
impl<T> Drop for ReentrantGuard<'_, T> {
    fn drop(&mut self) {
        if self.outer.is_some() {
            self.holder.store(0, Ordering::Relaxed);
            announce(Step::Release(self.lock));
        }
    }
}

/// The number of the calling thread in this run of the model, never 0 and never reused.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    per_thread! {
        static MINE: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.with(|&n| n)
}
