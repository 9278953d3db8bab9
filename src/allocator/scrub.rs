//! Scrubbing: memory that changes hands shows nothing of its former life.
//!
//! Bytes are overwritten with zeroes when they are handed out, not when they are dropped, because a drop makes no driver
//! call (law O9), and by the time the next tenant comes the order that reuse needs is there anyway (O1). The fill goes to
//! the new tenant's own stream, so that nobody waits for it on the host:
//!
//! 1. **In stream order**, work on the home stream queued after the allocation comes after the fill.
//! 2. **Elsewhere**, the fill is part of the bytes' former life (O7): the birth stamp is taken anew behind it, so that
//!    `share_with` orders a first use on another stream behind the fill too.
//! 3. **Pinned bytes** are complete when they are handed out (O4), and are overwritten by the CPU.
//! 4. **What goes back to the device**, the driver overwrites (`Driver::scrubbing`).
//!
//! Between a drop and the next hand-out the bytes lie in the cache as they were; nothing hands them out. This file does not
//! know how memory is found.

#![allow(
    unsafe_code,
    reason = "fills work on raw addresses: the range was just handed out, and nobody else has it"
)]

use super::allocation::Allocation;
use super::pinned::PinnedAllocation;
use super::stream::Stream;
use crate::driver::Driver;
use crate::error::Error;
use crate::laws;

/// Fills what was just handed out: the bytes that were asked for, which are all that its owner may touch. If the fill
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

/// Overwrites pinned bytes that were just handed out.
pub(super) fn pinned<D: Driver>(allocation: &PinnedAllocation<D>) {
    let bytes = usize::try_from(allocation.len()).unwrap_or(usize::MAX);
    if bytes > 0 {
        // SAFETY: O4: no use of the range is left, it is as long as said, and no handle has left this call.
        unsafe { allocation.as_ptr().write_bytes(0, bytes) };
    }
}
