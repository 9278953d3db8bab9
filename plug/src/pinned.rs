//! Pinned memory by its address: allocated rarely, so a lock suffices. It is held over no driver call: a call that records a use keeps the
//! memory alive by a count meanwhile, and a free beside it ends it when the last of the two is done.

use crate::door::{Door, unknown};
use crate::status::{Failure, MillpondStatus as Status};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use hashbrown::HashMap;
use parking_lot::Mutex;
use pond::PinnedAllocation;
use pond::cuda::Cuda;
use std::sync::Arc;

/// An allocator's pinned memory.
pub(crate) type Pinned = Mutex<HashMap<usize, Arc<Block>>>;

/// One block of it.
pub(crate) struct Block {
    memory: Option<PinnedAllocation<Cuda>>,
    /// Freed by an unknown stream.
    by_unknown: AtomicBool,
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if *self.by_unknown.get_mut() && !mutant!(DoorPinnedUnknownPlain) {
            memory.free_unknown();
        }
    }
}

impl Door {
    /// Pinned memory; null for none.
    pub(crate) fn alloc_pinned(&self, bytes: usize) -> Result<*mut c_void, Failure> {
        self.opened()?;
        if bytes == 0 {
            return Ok(core::ptr::null_mut());
        }
        let memory = self.gpu().alloc_pinned(bytes as u64).inspect_err(|_| self.refused())?;
        let at = memory.as_ptr().as_ptr().cast::<c_void>();
        let block = Block { memory: Some(memory), by_unknown: AtomicBool::new(false) };
        self.pinned().lock().insert(at.addr(), Arc::new(block));
        Ok(at)
    }

    /// Pinned memory is reused when every recorded use is complete, or everything that any stream holds.
    pub(crate) fn free_pinned(&self, ptr: *mut c_void, by_unknown: bool) -> Result<(), Failure> {
        if ptr.is_null() {
            return Ok(());
        }
        let found = self.pinned().lock().remove(&ptr.addr());
        let block = found.ok_or_else(|| self.none_of_ours(ptr))?;
        block.by_unknown.store(by_unknown, Ordering::Relaxed);
        drop(block);
        self.freed();
        Ok(())
    }

    /// Work on `handle`, queued by now or before the free, uses the pinned memory.
    pub(crate) fn record_pinned_use(&self, ptr: *mut c_void, handle: usize) -> Result<(), Failure> {
        if ptr.is_null() {
            return Ok(());
        }
        self.on(handle, |lane| {
            let found = self.pinned().lock().get(&ptr.addr()).map(Arc::clone);
            let block = found.ok_or_else(|| self.none_of_ours(ptr))?;
            let recorded = block.memory.as_ref().map_or(Ok(()), |memory| memory.record_use(lane.stream()));
            drop(block);
            // It may have been freed meanwhile, and ended here.
            self.freed();
            Ok(recorded?)
        })
    }

    /// It is another allocator's, or unknown. With no lock of ours held: each allocator is searched under its own.
    #[cold]
    fn none_of_ours(&self, ptr: *mut c_void) -> Failure {
        let whose = Door::all().find(|door| door.pinned().lock().contains_key(&ptr.addr()));
        match whose.filter(|_| !mutant!(DoorPinnedUnowned)) {
            Some(other) => {
                let (theirs, ours) = (other.name(), self.name());
                let message = format!("{ptr:p} is pinned memory of allocator {theirs}, not of {ours}");
                Failure::new(Status::WrongAllocator, message)
            }
            None => unknown(ptr),
        }
    }
}
