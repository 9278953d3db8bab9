//! Memory of the program's that is pinned where it is, together with what owns it.
//!
//! It does not know what the owner is, nor who uses the memory: the caller that ends a registration makes sure that no device does.

use crate::{DriverError, DriverResult, Host};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// An owner of elements that stay where they are: a `Vec`, a boxed slice, a memory map.
///
/// # Safety
/// The elements that both methods name are the same ones at the same address, readable and writable, from the first call until the value is dropped: it may be
/// moved, and borrowed by these methods, and nothing else moves, frees or adds elements.
#[allow(unsafe_code, reason = "the contract that registered memory rests on")]
pub unsafe trait StableMemory: Send + Sized + 'static {
    /// The type of its elements.
    type Item;
    /// All of them.
    fn elements(&self) -> &[Self::Item];
    /// All of them, for writing.
    fn elements_mut(&mut self) -> &mut [Self::Item];
}

#[allow(unsafe_code, reason = "the contract is a vector's")]
// SAFETY: a vector's elements are in a block of their own, which only its own methods move.
unsafe impl<T: Send + 'static> StableMemory for Vec<T> {
    type Item = T;
    fn elements(&self) -> &[T] {
        self
    }
    fn elements_mut(&mut self) -> &mut [T] {
        self
    }
}

#[allow(unsafe_code, reason = "the contract is a boxed slice's")]
// SAFETY: a boxed slice's elements are in a block of their own, as long as the box lives.
unsafe impl<T: Send + 'static> StableMemory for Box<[T]> {
    type Item = T;
    fn elements(&self) -> &[T] {
        self
    }
    fn elements_mut(&mut self) -> &mut [T] {
        self
    }
}

/// Memory of the program's that is pinned, and its owner, which is kept alive. The registration ends when it is dropped, or by
/// [`RegisteredHost::release`]; both wait for the device as [`Host::unregister_raw`] does. Where it cannot end, the owner is forgotten: the memory must stay.
pub struct RegisteredHost<D: Host, O: StableMemory> {
    driver: D,
    owner: ManuallyDrop<O>,
    /// Where the elements are; `None` for no bytes, of which nothing is registered, and when the registration is over.
    range: Option<(NonNull<u8>, u64)>,
    /// A call that ends it has begun and not returned: if it panicked, the registration may be over or not, and a leak is better than memory that the
    /// device still has.
    in_doubt: bool,
}

#[allow(unsafe_code, reason = "a raw pointer that is only a number here")]
// SAFETY: the pointer is the range's identity; it is not dereferenced here. The owner is `Send`.
unsafe impl<D: Host, O: StableMemory> Send for RegisteredHost<D, O> {}
#[allow(unsafe_code, reason = "a raw pointer that is only a number here")]
// SAFETY: as above; a shared value gives only what a shared owner gives.
unsafe impl<D: Host, O: StableMemory + Sync> Sync for RegisteredHost<D, O> {}

impl<D: Host, O: StableMemory> RegisteredHost<D, O> {
    /// Pins an owner's elements where they are.
    ///
    /// # Errors
    /// [`Host::register_raw`]'s, and the owner.
    #[allow(unsafe_code, reason = "the one place where memory of the program's is registered")]
    pub fn new(driver: &D, mut owner: O) -> Result<RegisteredHost<D, O>, (O, DriverError)> {
        let elements = owner.elements_mut();
        let bytes = size_of_val(elements) as u64;
        let range =
            NonNull::new(elements.as_mut_ptr().cast::<u8>()).filter(|_| bytes > 0).map(|at| (at, bytes));
        if let Some((at, bytes)) = range {
            // SAFETY: the elements stay where they are until the owner is dropped (`StableMemory`), and that is only done here, behind
            // `unregister_raw`.
            if let Err(e) = unsafe { driver.register_raw(at, bytes) } {
                return Err((owner, e));
            }
        }
        Ok(RegisteredHost { driver: driver.clone(), owner: ManuallyDrop::new(owner), range, in_doubt: false })
    }
    /// The owner.
    pub fn owner(&self) -> &O {
        &self.owner
    }
    /// The owner's elements, for writing. Not the owner itself: it could be replaced.
    pub fn elements_mut(&mut self) -> &mut [O::Item] {
        self.owner.elements_mut()
    }
    /// How many bytes are pinned.
    pub fn bytes(&self) -> u64 {
        self.range.map_or(0, |(_, bytes)| bytes)
    }
    /// Ends the registration. The device's uses of the memory are over; if not, the driver's call waits for them.
    ///
    /// # Errors
    /// The driver's error, and the value: the memory is still pinned.
    #[allow(unsafe_code, reason = "the owner is taken out once")]
    pub fn release(mut self) -> Result<O, (Self, DriverError)> {
        if let Err(e) = self.unregister() {
            return Err((self, e));
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: neither the owner nor the driver is used again: the value is not dropped.
        let owner = unsafe { ManuallyDrop::take(&mut this.owner) };
        // SAFETY: as above. The driver's own reference goes.
        unsafe { core::ptr::drop_in_place(&raw mut this.driver) };
        Ok(owner)
    }
    #[allow(unsafe_code, reason = "the one place where a registration ends")]
    fn unregister(&mut self) -> DriverResult<()> {
        let Some((at, bytes)) = self.range else { return Ok(()) };
        self.in_doubt = true;
        // SAFETY: registered whole by `new`, and not ended: that clears the range. The uses are over, or the call waits for them.
        let ended = unsafe { self.driver.unregister_raw(at, bytes) };
        self.in_doubt = false;
        if ended.is_ok() {
            self.range = None;
        }
        ended
    }
}

impl<D: Host, O: StableMemory> fmt::Debug for RegisteredHost<D, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            Some((at, bytes)) => write!(f, "RegisteredHost({at:?} + {bytes} B)"),
            None => f.write_str("RegisteredHost(empty)"),
        }
    }
}

impl<D: Host, O: StableMemory> Drop for RegisteredHost<D, O> {
    #[allow(unsafe_code, reason = "the owner is dropped once")]
    fn drop(&mut self) {
        if self.in_doubt {
            return;
        }
        if let Err(e) = self.unregister() {
            // The device still has the memory: the owner stays.
            return self.driver.unpin_failed(e);
        }
        // SAFETY: the value's end; `release` does not come here.
        unsafe { ManuallyDrop::drop(&mut self.owner) };
    }
}
