//! What the simulated device promises, fact by fact: the edges E1–E8 of stream order, and the driver's habits that the
//! rest of the crate relies on. Each test is named after its fact, so that the same list can be held against hardware.
//!
//! Facts of order are shown with *gates*: an endless kernel on a stream, so that work behind it is provably pending, and
//! a host wait for it fails instead of hanging.

mod devices;
mod judged;
mod machine;
mod makespan;
mod memory;
mod order;
mod pinned;
mod planted;
mod streams;
mod virt;

use millpond::driver::{Copies, DriverResult, Fences, Host, Mapping, Memory};
use millpond::units::Addr;
use millpond_sim::{Launch, Sim, SimEvent, SimHandle, SimStream};
use std::ptr::NonNull;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A bench with one device of a gibibyte.
fn sim() -> Sim {
    Sim::new(GIB)
}

/// Words that distinguish operations.
const A: u64 = 0xAAAA_0001_AAAA_0001;
const B: u64 = 0xBBBB_0002_BBBB_0002;

/// A launch that touches nothing.
fn touch_nothing() -> Launch {
    Launch::new("touch nothing")
}

/// A new event, recorded on a stream.
fn mark(sim: &Sim, stream: &SimStream) -> SimEvent {
    let event = sim.event().expect("an event");
    sim.record(&event, stream).expect("recorded");
    event
}

/// Whether a stream's work can all be done now.
fn can_finish(sim: &Sim, stream: &SimStream) -> bool {
    let probe = mark(sim, stream);
    sim.wait_event(&probe, Duration::MAX).expect("a wait")
}

/// The verdict as text, empty if there is nothing to say.
fn verdict(sim: &Sim) -> String {
    sim.verdict().err().map_or(String::new(), |v| v.to_string())
}

/// A kernel that reaches pinned memory too.
#[allow(unsafe_code, reason = "kernels on pinned memory")]
fn launch_anywhere(sim: &Sim, stream: &SimStream, launch: Launch) -> DriverResult<()> {
    // SAFETY: the callers keep no reference into pinned memory while a kernel is queued, and keep it pinned.
    unsafe { sim.launch_anywhere(stream, launch) }
}

/// A copy that reaches pinned memory too.
#[allow(unsafe_code, reason = "copies of pinned memory")]
fn copy_anywhere(sim: &Sim, stream: &SimStream, dst: Addr, src: Addr, bytes: u64) -> DriverResult<()> {
    // SAFETY: as for `launch_anywhere`.
    unsafe { sim.copy_anywhere(stream, dst, src, bytes) }
}

// The unsafe verbs, for benches whose buffers outlive what is queued. A test that breaks a contract on purpose breaks it
// towards the simulator, which answers for it; no memory of this process is at stake but pinned ranges and the slices
// below, and those are kept until the end.

#[allow(unsafe_code, reason = "copies take raw host pointers")]
fn h2d(sim: &Sim, dst: Addr, src: *const u8, bytes: u64, stream: &SimStream) -> DriverResult<()> {
    // SAFETY: every caller passes a live buffer of at least `bytes`, and keeps it until the copy is done.
    unsafe { sim.copy_h2d(dst, src, bytes, stream) }
}
#[allow(unsafe_code, reason = "copies take raw host pointers")]
fn d2h(sim: &Sim, dst: *mut u8, src: Addr, bytes: u64, stream: &SimStream) -> DriverResult<()> {
    // SAFETY: as for `h2d`.
    unsafe { sim.copy_d2h(dst, src, bytes, stream) }
}
#[allow(unsafe_code, reason = "device memory that is the simulator's")]
fn d2d(sim: &Sim, dst: Addr, src: Addr, bytes: u64, stream: &SimStream) -> DriverResult<()> {
    // SAFETY: simulated memory only: the simulator checks every access.
    unsafe { sim.copy_d2d(dst, src, bytes, stream) }
}
#[allow(unsafe_code, reason = "device memory that is the simulator's")]
fn peer(sim: &Sim, dst: Addr, to: &Sim, src: Addr, bytes: u64, stream: &SimStream) -> DriverResult<()> {
    // SAFETY: as for `d2d`.
    unsafe { sim.copy_peer(dst, to, src, bytes, stream) }
}
#[allow(unsafe_code, reason = "device memory that is the simulator's")]
fn fill(sim: &Sim, dst: Addr, value: u8, bytes: u64, stream: &SimStream) -> DriverResult<()> {
    // SAFETY: as for `d2d`.
    unsafe { sim.fill(dst, value, bytes, stream) }
}
#[allow(unsafe_code, reason = "device memory that is the simulator's")]
fn free(sim: &Sim, addr: Addr, bytes: u64) -> DriverResult<()> {
    // SAFETY: as for `d2d`.
    unsafe { sim.free_raw(addr, bytes) }
}
#[allow(unsafe_code, reason = "pinned memory is real")]
fn unpin(sim: &Sim, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
    // SAFETY: the simulator refuses what it did not pin; no test reads a range after unpinning it.
    unsafe { sim.unpin_raw(ptr, bytes) }
}
#[allow(unsafe_code, reason = "pinned memory is real")]
fn peek(ptr: NonNull<u8>, bytes: usize) -> Vec<u8> {
    // SAFETY: every caller passes a live pinned range of at least `bytes` that the device is not writing now.
    unsafe { std::slice::from_raw_parts(ptr.as_ptr(), bytes) }.to_vec()
}
#[allow(unsafe_code, reason = "pinned memory is real")]
fn poke(ptr: NonNull<u8>, data: &[u8]) {
    // SAFETY: every caller passes a live pinned range at least as long that the device is not reading now.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), ptr.as_ptr(), data.len()) }
}
#[allow(unsafe_code, reason = "addresses are the simulator's")]
fn unreserve(sim: &Sim, addr: Addr, bytes: u64) -> DriverResult<()> {
    // SAFETY: as for `d2d`.
    unsafe { sim.unreserve(addr, bytes) }
}
#[allow(unsafe_code, reason = "addresses are the simulator's")]
fn map(sim: &Sim, addr: Addr, handle: &SimHandle) -> DriverResult<()> {
    // SAFETY: as for `d2d`.
    unsafe { Mapping::map(sim, addr, handle) }
}
#[allow(unsafe_code, reason = "addresses are the simulator's")]
fn set_access(sim: &Sim, addr: Addr, bytes: u64) -> DriverResult<()> {
    // SAFETY: as for `d2d`.
    unsafe { sim.set_access(addr, bytes) }
}
#[allow(unsafe_code, reason = "addresses are the simulator's")]
fn unmap(sim: &Sim, addr: Addr, bytes: u64) -> DriverResult<()> {
    // SAFETY: as for `d2d`.
    unsafe { sim.unmap(addr, bytes) }
}
#[allow(unsafe_code, reason = "handles are the simulator's")]
fn release(sim: &Sim, handle: &SimHandle) -> DriverResult<()> {
    // SAFETY: as for `d2d`.
    unsafe { sim.release(handle) }
}
