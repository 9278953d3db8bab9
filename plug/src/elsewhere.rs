//! Uses of PyTorch's memory on streams of other devices than its own, until it is freed. The allocator of a device knows that device's streams alone, so a free
//! has a stream of its own wait for what those hold then, and is behind that. While it cannot, because one of them captures or a call fails, nothing is freed.
//!
//! It does not know who says that there is such a use.

#![allow(unsafe_code, reason = "raw handles, as PyTorch promises they are")]

use crate::door::{Door, unknown};
use crate::status::{Failure, MillpondStatus as Status};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// By address, uses of live memory: the allocators of those devices and the handles. PyTorch destroys no stream.
static USES: Mutex<BTreeMap<usize, Vec<(&Door, usize)>>> = Mutex::new(BTreeMap::new());
/// There was one ever: a free looks there then.
static IS_SOME: AtomicBool = AtomicBool::new(false);
/// Frees that have nobody to tell, and that such a use keeps from being made: allocator, pointer and stream. What they free is live until then.
static LATER: Mutex<VecDeque<Later>> = Mutex::new(VecDeque::new());

/// A free that is to be made.
#[derive(Clone, Copy)]
pub(crate) struct Later {
    pub(crate) door: &'static Door,
    ptr: usize,
    pub(crate) handle: usize,
}

impl Later {
    pub(crate) fn new(door: &'static Door, ptr: *mut c_void, handle: usize) -> Later {
        Later { door, ptr: ptr.addr(), handle }
    }
    pub(crate) fn ptr(self) -> *mut c_void {
        core::ptr::without_provenance_mut(self.ptr)
    }
    /// Is to be tried again.
    pub(crate) fn waits(self) {
        if !planted!(DoorLaterLost) {
            LATER.lock().push_back(self);
        }
    }
    /// The one that waits longest, which the caller tries.
    pub(crate) fn oldest() -> Option<Later> {
        LATER.lock().pop_front()
    }
    /// How many wait.
    pub(crate) fn count() -> usize {
        LATER.lock().len()
    }
}

/// A stream of that device may use the memory.
pub(crate) fn note(other: &'static Door, ptr: *mut c_void, handle: usize) {
    let mut all = USES.lock();
    let uses = all.entry(ptr.addr()).or_default();
    if !uses.iter().any(|&(of, there)| there == handle && core::ptr::eq(of, other)) {
        uses.push((other, handle));
    }
    IS_SOME.store(true, Ordering::Release);
}

/// Whether there was such a use ever.
#[inline]
pub(crate) fn is_some() -> bool {
    IS_SOME.load(Ordering::Acquire)
}

/// Before a free: what it frees comes back behind all uses elsewhere.
///
/// # Errors
/// One of them cannot be recorded now: the memory must not be freed. Or it was freed, and waits for that.
#[inline]
pub(crate) fn behind(door: &Door, ptr: *mut c_void) -> Result<(), Failure> {
    if is_some() { recorded(door, ptr) } else { Ok(()) }
}

#[cold]
fn recorded(door: &Door, ptr: *mut c_void) -> Result<(), Failure> {
    // Freed twice, as far as callers can tell.
    if LATER.lock().iter().any(|later| later.ptr == ptr.addr()) {
        return Err(unknown(ptr));
    }
    record(door, ptr)
}

/// Records uses on other devices as uses of a stream of our own, which waits for what they hold.
///
/// # Errors
/// One that cannot be recorded now, which is kept, and the others are recorded; if it captures, none is.
#[cold]
pub(crate) fn record(door: &Door, ptr: *mut c_void) -> Result<(), Failure> {
    // The free refuses what is another allocator's: its uses stay.
    let is_its = || Door::of(ptr).is_some_and(|of| of == door.name());
    let uses = USES.lock().get(&ptr.addr()).cloned().unwrap_or_default();
    if uses.is_empty() || !is_its() {
        return Ok(());
    }
    for &(other, handle) in &uses {
        // SAFETY: PyTorch's streams are never destroyed.
        let captures = unsafe { other.gpu().driver().raw_captures((handle as *mut c_void).cast()) };
        if captures? {
            let message = format!(
                "the stream {handle:#x}, another device's, uses {ptr:p} and is capturing a graph: free it again when that is over"
            );
            return Err(Failure::new(Status::Capturing, message));
        }
    }
    let uses = USES.lock().remove(&ptr.addr()).unwrap_or_default();
    let mut failed = Ok(());
    for (other, handle) in uses {
        let event = other.on(handle, |lane| Ok(lane.stream().record()?));
        match event.and_then(|event| door.use_behind(ptr, &event)) {
            // Not a stream of that device.
            Err(e) if e.status == Status::WrongAllocator => {}
            Err(_) if planted!(DoorElsewhereLost) => {}
            // A driver that fails.
            Err(e) => {
                note(other, ptr, handle);
                failed = failed.and(Err(e));
            }
            Ok(()) => {}
        }
    }
    failed
}
