//! Memory of the program's that is registered, and ends of registrations that wait for a moment when the host may wait for the device.
//!
//! Ending a registration waits for every kernel of the device, so no request and no drop does it: what a drop leaves is ended by an explicit trim,
//! or when the allocator ends. It does not know which copies use the memory: their tokens own it until they are complete. Registered memory
//! is in no heap, serves no request and counts under no limit.

use crate::driver::{Driver, RegisteredHost, StableMemory};
use crate::error::DriverError;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, Ordering, assert_unlocked};

/// A registration whose owner's type is not known any more.
pub(crate) trait Ends: Send {
    /// Ends it and drops the owner.
    ///
    /// # Errors
    /// The driver's; nothing has changed then.
    fn end(self: Box<Self>) -> Result<(), (Box<dyn Ends>, DriverError)>;
    /// How many bytes are pinned.
    fn bytes(&self) -> u64;
}

impl<D: Driver, O: StableMemory> Ends for RegisteredHost<D, O> {
    fn end(self: Box<Self>) -> Result<(), (Box<dyn Ends>, DriverError)> {
        match self.release() {
            Ok(owner) => {
                drop(owner);
                Ok(())
            }
            Err((it, e)) => Err((Box::new(it), e)),
        }
    }
    fn bytes(&self) -> u64 {
        RegisteredHost::bytes(self)
    }
}

/// What an allocator has registered.
#[derive(Default)]
pub(crate) struct Registrations {
    /// Bytes that are pinned so, those of `left` included.
    bytes: AtomicU64,
    left: Mutex<Left>,
}

/// Registrations whose arrays are gone.
#[derive(Default)]
struct Left {
    registrations: Vec<Box<dyn Ends>>,
    /// The allocator has ended: nothing comes any more that would end them.
    ended: bool,
}

impl Registrations {
    /// Bytes of the program's memory that are pinned.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// So many more are.
    pub(in super::super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many are not any more.
    pub(in super::super) fn remove(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Keeps a registration whose array is gone for a trim, or returns it: the allocator has ended, and the caller ends it.
    pub(in super::super) fn leave(&self, registration: Box<dyn Ends>) -> Option<Box<dyn Ends>> {
        let mut left = self.left.lock();
        if left.ended {
            return Some(registration);
        }
        left.registrations.push(registration);
        None
    }

    /// Ends what drops have left. What cannot be ended stays for the next time.
    ///
    /// # Errors
    /// The driver's first.
    pub(crate) fn end_left<D: Driver>(&self, driver: &D) -> Result<(), DriverError> {
        assert_unlocked("registrations end");
        let left = core::mem::take(&mut self.left.lock().registrations);
        let mut failed = None;
        for registration in left {
            let bytes = registration.bytes();
            match driver.relaxed(|| registration.end()) {
                Ok(()) => self.remove(bytes),
                Err((registration, e)) => {
                    self.left.lock().registrations.push(registration);
                    failed.get_or_insert(e);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The allocator ends: from here on a drop ends its registration by itself.
    pub(crate) fn close<D: Driver>(&self, driver: &D) {
        self.left.lock().ended = true;
        if let Err(e) = self.end_left(driver) {
            driver.unpin_failed(e);
            // Their owners stay: the device has the memory, for all that is known.
            let left = core::mem::take(&mut self.left.lock().registrations);
            left.into_iter().for_each(core::mem::forget);
        }
    }
}
