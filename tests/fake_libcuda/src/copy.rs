//! Copies and fills, asynchronous and synchronous.
//!
//! The calls without a stream work on the legacy default stream and return when the copy is done; a fill returns at once
//! either way. Addresses above 2^48 belong to the simulated devices, all others to the process. This file does not know order:
//! it queues operations on streams.

use crate::entry::{Fail, Outcome};
use crate::spin;
use crate::state::{here, stream};
use millpond::driver::{Copies, Fences};
use millpond::units::Addr;
use millpond_sim::{Launch, Sim, SimStream};
use std::ffi::{c_uchar, c_uint, c_ushort};

/// Where the addresses of simulated devices begin.
const DEVICE: u64 = 1 << 48;

/// Refuses a null address at once, as a driver does that looks the address up.
fn no_null(addr: u64, bytes: usize) -> Outcome {
    if addr == 0 && bytes > 0 { Err(Fail::invalid("a null address in device memory")) } else { Ok(()) }
}

/// A copy into pageable memory returns when it is complete, and would fail during a spin kernel: so this waits for spin kernels first.
fn wait_for_spins(sim: &Sim, stream: &SimStream) -> Outcome {
    if spin::any() && !sim.is_capturing(stream)? {
        spin::blocking(|| sim.synchronize_stream(stream))?;
    }
    Ok(())
}

#[allow(unsafe_code, reason = "copies work on raw addresses")]
fn h2d(dst: u64, src: u64, bytes: usize, sim: &Sim, stream: &SimStream) -> Outcome {
    no_null(dst, bytes)?;
    // SAFETY: the program's contract with the driver: the source is readable until the copy is done.
    Ok(unsafe { sim.copy_h2d(Addr(dst), src as *const u8, bytes as u64, stream) }?)
}
#[allow(unsafe_code, reason = "copies work on raw addresses")]
fn d2h(dst: u64, src: u64, bytes: usize, sim: &Sim, stream: &SimStream) -> Outcome {
    no_null(src, bytes)?;
    if !crate::host::is_pinned(dst) {
        wait_for_spins(sim, stream)?;
    }
    // SAFETY: the program's contract with the driver: the destination is writable until the copy is done.
    Ok(unsafe { sim.copy_d2h(dst as *mut u8, Addr(src), bytes as u64, stream) }?)
}
#[allow(unsafe_code, reason = "copies work on raw addresses")]
fn d2d(dst: u64, src: u64, bytes: usize, sim: &Sim, stream: &SimStream) -> Outcome {
    no_null(dst, bytes).and_then(|()| no_null(src, bytes))?;
    // SAFETY: memory of the simulated device only: it checks every access.
    Ok(unsafe { sim.copy_d2d(Addr(dst), Addr(src), bytes as u64, stream) }?)
}
#[allow(unsafe_code, reason = "fills work on raw addresses")]
fn fill(dst: u64, value: u8, bytes: usize, sim: &Sim, stream: &SimStream) -> Outcome {
    no_null(dst, bytes)?;
    // SAFETY: as for `d2d`.
    Ok(unsafe { sim.fill(Addr(dst), value, bytes as u64, stream) }?)
}

/// A fill with an element of `width` bytes.
fn fill_wide(dst: u64, word: u64, width: u64, count: usize, sim: &Sim, stream: &SimStream) -> Outcome {
    if !dst.is_multiple_of(width) {
        return Err(Fail::invalid(format!("{dst:#x} is no multiple of {width}")));
    }
    let Some(bytes) = (count as u64).checked_mul(width) else {
        return Err(Fail::invalid(format!("{count} elements of {width} bytes are more than there can be")));
    };
    if bytes == 0 {
        return Ok(());
    }
    crate::kernel::queue(sim, stream, Launch::write_pattern(Addr(dst), bytes, word))
}

/// A copy between any two addresses.
fn any(dst: u64, src: u64, bytes: usize, sim: &Sim, stream: &SimStream) -> Outcome {
    match (dst >= DEVICE, src >= DEVICE) {
        (true, false) => h2d(dst, src, bytes, sim, stream),
        (false, true) => d2h(dst, src, bytes, sim, stream),
        (true, true) => d2d(dst, src, bytes, sim, stream),
        (false, false) => Err(Fail::unsupported("a copy from host to host is not modelled")),
    }
}

/// A copy on the legacy default stream, and the wait for it.
fn synchronous(copy: impl FnOnce(&Sim, &SimStream) -> Outcome) -> Outcome {
    let (sim, _) = here()?;
    let legacy = sim.legacy_stream();
    copy(&sim, &legacy)?;
    spin::blocking(|| sim.synchronize_stream(&legacy))
}

driver_calls! {
    /// Host to device, on a stream.
    fn cuMemcpyHtoDAsync_v2(dst: u64, src: u64, bytes: usize, on: u64) {
        let (sim, _, on) = stream(on)?;
        h2d(dst, src, bytes, &sim, &on)
    }
    /// Device to host, on a stream.
    fn cuMemcpyDtoHAsync_v2(dst: u64, src: u64, bytes: usize, on: u64) {
        let (sim, _, on) = stream(on)?;
        d2h(dst, src, bytes, &sim, &on)
    }
    /// Device to device, on a stream.
    fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: usize, on: u64) {
        let (sim, _, on) = stream(on)?;
        d2d(dst, src, bytes, &sim, &on)
    }
    /// Between any two addresses, on a stream.
    fn cuMemcpyAsync(dst: u64, src: u64, bytes: usize, on: u64) {
        let (sim, _, on) = stream(on)?;
        any(dst, src, bytes, &sim, &on)
    }
    /// Between the devices of two contexts, on a stream of the current one.
    fn cuMemcpyPeerAsync(dst: u64, to: u64, src: u64, from: u64, bytes: usize, on: u64) {
        let (sim, _, on) = stream(on)?;
        crate::state::state().device_of(to)?;
        crate::state::state().device_of(from)?;
        d2d(dst, src, bytes, &sim, &on)
    }
    /// Host to device; returns when it is complete.
    fn cuMemcpyHtoD_v2(dst: u64, src: u64, bytes: usize) {
        synchronous(|sim, on| h2d(dst, src, bytes, sim, on))
    }
    /// Device to host; returns when it is complete.
    fn cuMemcpyDtoH_v2(dst: u64, src: u64, bytes: usize) {
        synchronous(|sim, on| d2h(dst, src, bytes, sim, on))
    }
    /// Device to device, on the legacy default stream; the host does not wait.
    fn cuMemcpyDtoD_v2(dst: u64, src: u64, bytes: usize) {
        let (sim, _) = here()?;
        d2d(dst, src, bytes, &sim, &sim.legacy_stream())
    }
    /// Between any two addresses; returns when it is complete.
    fn cuMemcpy(dst: u64, src: u64, bytes: usize) {
        synchronous(|sim, on| any(dst, src, bytes, sim, on))
    }
    /// Fills with a byte, on a stream.
    fn cuMemsetD8Async(dst: u64, value: c_uchar, bytes: usize, on: u64) {
        let (sim, _, on) = stream(on)?;
        fill(dst, value, bytes, &sim, &on)
    }
    /// Fills with a 16-bit word, on a stream.
    fn cuMemsetD16Async(dst: u64, value: c_ushort, count: usize, on: u64) {
        let (sim, _, on) = stream(on)?;
        fill_wide(dst, u64::from(value) * 0x0001_0001_0001_0001, 2, count, &sim, &on)
    }
    /// Fills with a 32-bit word, on a stream.
    fn cuMemsetD32Async(dst: u64, value: c_uint, count: usize, on: u64) {
        let (sim, _, on) = stream(on)?;
        fill_wide(dst, u64::from(value) * 0x0000_0001_0000_0001, 4, count, &sim, &on)
    }
    /// Fills with a byte on the legacy default stream; the host does not wait.
    fn cuMemsetD8_v2(dst: u64, value: c_uchar, bytes: usize) {
        let (sim, _) = here()?;
        fill(dst, value, bytes, &sim, &sim.legacy_stream())
    }
    /// Fills with a 32-bit word on the legacy default stream; the host does not wait.
    fn cuMemsetD32_v2(dst: u64, value: c_uint, count: usize) {
        let (sim, _) = here()?;
        fill_wide(dst, u64::from(value) * 0x0000_0001_0000_0001, 4, count, &sim, &sim.legacy_stream())
    }
}
