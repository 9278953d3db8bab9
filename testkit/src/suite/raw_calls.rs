//! The driver's unsafe calls, for tests whose buffers outlive what is queued. This module knows no tests.

use super::{Bench, StreamOf};
use millpond::driver::{Copies, DriverResult, Host, HostKind, Mapping, Memory};
use millpond::units::Addr;
use std::ptr::NonNull;

/// A handle of a bench's virtual memory.
pub(crate) type HandleOf<T> = <<T as Bench>::Device as Mapping>::Handle;

/// The unit of a bench's virtual memory.
pub(crate) fn granularity<T: Bench>(b: &T) -> u64 {
    b.device().mapping().expect("a device with virtual memory").granularity
}

#[allow(unsafe_code, reason = "memory of the device")]
pub(crate) fn free<T: Bench>(b: &T, addr: Addr, bytes: u64) -> DriverResult<()> {
    // SAFETY: every caller passes what `allocate_raw` gave, once, and has queued nothing on it.
    unsafe { b.device().free_raw(addr, bytes) }
}

/// Pinned memory of a test.
#[derive(Debug)]
pub(crate) struct Pinned {
    ptr: NonNull<u8>,
    bytes: usize,
}

pub(crate) fn pin<T: Bench>(b: &T, bytes: usize) -> Pinned {
    try_pin(b, bytes).expect("pinned memory")
}
pub(crate) fn try_pin<T: Bench>(b: &T, bytes: usize) -> DriverResult<Pinned> {
    let ptr = b.device().pin_raw(bytes as u64, HostKind::Cached)?;
    Ok(Pinned { ptr, bytes })
}

#[allow(unsafe_code, reason = "pinned memory is real")]
pub(crate) fn unpin<T: Bench>(b: &T, pinned: &Pinned) -> DriverResult<()> {
    // SAFETY: made by `pin`; every caller has waited for what it queued on it, and reads it no more.
    unsafe { b.device().unpin_raw(pinned.ptr, pinned.bytes as u64) }
}

#[allow(unsafe_code, reason = "pinned memory is real")]
impl Pinned {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
    /// Writes all of it, even while the device may use it: tests do that on purpose, with copies behind a gate.
    pub(crate) fn fill(&self, value: u8) {
        // SAFETY: the range is this test's and has this length; accesses by the device are not accesses of this program.
        unsafe { self.ptr.as_ptr().write_bytes(value, self.bytes) }
    }
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        // SAFETY: as above, and every caller has waited for what writes it.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }.to_vec()
    }
}

/// Copies to the device from any host memory.
#[allow(unsafe_code, reason = "copies take raw host pointers")]
pub(crate) fn h2d<T: Bench>(b: &T, dst: Addr, src: *const u8, bytes: usize, on: &StreamOf<T>) {
    // SAFETY: every caller passes a source of that length that lives until the copy is done, and a range of its own.
    unsafe { b.device().copy_h2d(dst, src, bytes as u64, on) }.expect("a copy in");
}

/// Copies from the device to pageable memory; returns when it is done.
#[allow(unsafe_code, reason = "copies take raw host pointers")]
pub(crate) fn read<T: Bench>(b: &T, src: Addr, bytes: usize, on: &StreamOf<T>) -> Vec<u8> {
    let mut out = vec![0x5C; bytes];
    // SAFETY: the vector is as long, and into pageable memory the copy is done at return.
    unsafe { b.device().copy_d2h(out.as_mut_ptr(), src, bytes as u64, on) }.expect("a copy out");
    out
}

/// Copies from the device to pinned memory, in stream order.
#[allow(unsafe_code, reason = "copies take raw host pointers")]
pub(crate) fn d2h<T: Bench>(b: &T, dst: &Pinned, src: Addr, bytes: usize, on: &StreamOf<T>) {
    assert!(bytes <= dst.bytes);
    // SAFETY: the pinned range is at least as long, and every caller waits before it reads or unpins it.
    unsafe { b.device().copy_d2h(dst.as_ptr(), src, bytes as u64, on) }.expect("a copy out");
}

#[allow(unsafe_code, reason = "memory of the device")]
pub(crate) fn d2d<T: Bench>(b: &T, dst: Addr, src: Addr, bytes: u64, on: &StreamOf<T>) {
    // SAFETY: every caller passes ranges of its own that do not overlap.
    unsafe { b.device().copy_d2d(dst, src, bytes, on) }.expect("a copy inside");
}

#[allow(unsafe_code, reason = "memory of the device")]
pub(crate) fn fill<T: Bench>(b: &T, dst: Addr, value: u8, bytes: u64, on: &StreamOf<T>) {
    // SAFETY: every caller passes a range of its own.
    unsafe { b.device().fill(dst, value, bytes, on) }.expect("a fill");
}

#[allow(unsafe_code, reason = "addresses of the device")]
pub(crate) fn unreserve<T: Bench>(b: &T, addr: Addr, bytes: u64) {
    // SAFETY: every caller passes a reservation of its own in which nothing is mapped.
    unsafe { b.device().unreserve(addr, bytes) }.expect("unreserved");
}
#[allow(unsafe_code, reason = "addresses of the device")]
pub(crate) fn map<T: Bench>(b: &T, addr: Addr, handle: &HandleOf<T>) -> DriverResult<()> {
    // SAFETY: every caller passes addresses that it reserved.
    unsafe { b.device().map(addr, handle) }
}
#[allow(unsafe_code, reason = "addresses of the device")]
pub(crate) fn set_access<T: Bench>(b: &T, addr: Addr, bytes: u64) -> DriverResult<()> {
    // SAFETY: every caller passes addresses that it reserved.
    unsafe { b.device().set_access(addr, bytes) }
}
#[allow(unsafe_code, reason = "addresses of the device")]
pub(crate) fn unmap<T: Bench>(b: &T, addr: Addr, bytes: u64) -> DriverResult<()> {
    // SAFETY: every caller has waited for what it queued on these addresses.
    unsafe { b.device().unmap(addr, bytes) }
}
#[allow(unsafe_code, reason = "handles of the device")]
pub(crate) fn release<T: Bench>(b: &T, handle: &HandleOf<T>) {
    // SAFETY: every caller has waited for what it queued on the handle, or keeps it mapped.
    unsafe { b.device().release(handle) }.expect("released");
}
