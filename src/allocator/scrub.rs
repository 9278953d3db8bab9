//! Scrubbing: reused memory shows nothing of its earlier contents.
//!
//! Bytes are overwritten with zeroes when they are allocated, not when they are dropped, because a drop makes no driver
//! call (law O9), and at the next allocation the order that reuse needs is established anyway (O1). The fill goes to
//! the new owner's stream, so the host does not wait for it:
//!
//! 1. **In stream order**, work on the home stream queued after the allocation comes after the fill.
//! 2. **On other streams**, the fill is part of the earlier use of the bytes (O7): the birth stamp is renewed behind it, so that
//!    `share_with` orders a first use on another stream behind the fill too.
//! 3. **Pinned bytes** are complete when they are allocated (O4), and the CPU overwrites them.
//! 4. **What goes back to the device**, the driver overwrites (`Driver::scrubbing`).
//!
//! Between a drop and the next allocation the bytes stay in the cache unchanged, and no allocation contains them. This file does not
//! know how memory is found.

#![allow(
    unsafe_code,
    reason = "fills work on raw addresses: the range was just handed out, and no other code has it"
)]

use super::allocation::Allocation;
use super::pinned::PinnedAllocation;
use super::stream::Stream;
use crate::driver::Driver;
use crate::error::Error;
use crate::laws;

/// Fills a new allocation: the requested bytes, which are all that its owner may access. If the fill
/// cannot be queued, the allocation is freed again.
pub(super) fn device<D: Driver>(
    allocation: Allocation<D>,
    stream: &Stream<D>,
) -> Result<Allocation<D>, Error> {
    let Some(home) = &allocation.home else { return Ok(allocation) };
    let core = &home.pool.core;
    if !laws::scrubs() {
        return Ok(allocation);
    }
    let filled = core.driver.relaxed(|| {
        // SAFETY: O1: the range belongs to this allocation on its home stream, and no handle has left this call.
        unsafe { core.driver.fill(home.taken.addr, 0, allocation.len(), stream.native()) }
    });
    core.registry.watch(filled)?;
    if laws::born_behind_scrub() {
        home.pool.born_now(home.taken.chunk(), home.taken.generation());
    }
    Ok(allocation)
}

/// Overwrites the bytes of a new pinned allocation.
pub(super) fn pinned<D: Driver>(allocation: &PinnedAllocation<D>) {
    let bytes = usize::try_from(allocation.len()).unwrap_or(usize::MAX);
    if bytes > 0 {
        // SAFETY: O4: no use of the range is left, it is as long as said, and no handle has left this call.
        unsafe { allocation.as_ptr().write_bytes(0, bytes) };
    }
}
