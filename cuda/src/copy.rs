//! Copies and fills: [`Copies`], and copies between ranges that are known to be ours, a safe one inside the device.
//!
//! The driver's rules are the trait's: from and to pinned memory a copy returns at once, from pageable memory when the
//! source was read, into pageable memory when it is done. This file does not know what the bytes are for.

use super::Cuda;
use super::ranges::{Place, Reach, refuse_pinned};
use super::stream::GpuStream;
use super::table::{Call, Table, invalid};
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use cudarc::driver::sys::CUstream;
use millpond_driver::units::Addr;
use millpond_driver::{Copies, DriverResult, Pitched};

/// A count of bytes that this machine can address.
fn size_of_copy(call: Call, bytes: u64) -> DriverResult<usize> {
    usize::try_from(bytes)
        .map_err(|_| invalid(call, format!("{bytes} bytes are more than this machine can address")))
}

impl Cuda {
    /// Queues one call on a stream; nothing for no bytes.
    pub(super) fn queue(
        stream: &GpuStream,
        call: Call,
        bytes: u64,
        verb: impl FnOnce(&Table, usize, CUstream) -> u32,
    ) -> DriverResult<()> {
        let size = size_of_copy(call, bytes)?;
        let native = stream.here(call)?;
        if size == 0 {
            return Ok(());
        }
        let device = stream.device();
        let bound = device.bind()?;
        let code = verb(device.table(), size, native);
        device.done(call, code)?;
        drop(bound);
        Ok(())
    }

    /// Queues a copy inside the device, between two ranges of this backend's device memory: safe because both are known to be ours and whole.
    /// What it races with, if the stream is not ordered after other users of the bytes, is wrong data and not undefined
    /// behaviour. Pinned memory is refused, since Rust may be looking at it.
    ///
    /// # Errors
    /// A range that is not ours, or not whole; pinned memory: use [`Cuda::copy_anywhere`] or an array's copies; an overlap; the
    /// driver's. Nothing was then queued.
    #[allow(unsafe_code, reason = "what the unsafe method could do wrong is refused")]
    pub fn copy_between(&self, stream: &GpuStream, to: Addr, from: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: what is pinned is refused, and no Rust reference leads into the device's memory.
        unsafe { self.copy_within(stream, to, from, bytes, Reach::Device) }
    }

    /// Queues a copy between two ranges of this backend, of which at most one is pinned memory: [`Copies::copy_h2d`],
    /// [`Copies::copy_d2h`] or [`Copies::copy_d2d`], as the addresses say.
    ///
    /// # Errors
    /// A range that is not ours, or not whole; both pinned; an overlap; the driver's. Nothing was then queued.
    ///
    /// # Safety
    /// Until the copy has run, there is no Rust reference to the bytes of a pinned target, and a pinned source is not changed.
    #[allow(unsafe_code, reason = "pinned memory is the process's own, where references may lead")]
    pub unsafe fn copy_anywhere(
        &self,
        stream: &GpuStream,
        to: Addr,
        from: Addr,
        bytes: u64,
    ) -> DriverResult<()> {
        // SAFETY: passed on.
        unsafe { self.copy_within(stream, to, from, bytes, Reach::Anywhere) }
    }

    /// # Safety
    /// As of [`Cuda::copy_anywhere`], of what is within reach.
    #[allow(unsafe_code, reason = "the copies of `Copies`")]
    unsafe fn copy_within(
        &self,
        stream: &GpuStream,
        to: Addr,
        from: Addr,
        bytes: u64,
        reach: Reach,
    ) -> DriverResult<()> {
        let call = Call::memcpy_d2d;
        if bytes == 0 {
            return Ok(());
        }
        match (self.place(to, bytes, call, reach)?, self.place(from, bytes, call, reach)?) {
            // SAFETY: both ranges are device memory of this backend.
            (Place::Device, Place::Device) => unsafe { self.copy_d2d(to, from, bytes, stream) },
            (Place::Device, Place::Pinned) => {
                let src = with_exposed_provenance(from.0 as usize);
                // SAFETY: a pinned range of this backend is readable, and stays until it is unpinned, which waits for the device; the caller guarantees that
                // nothing changes it.
                unsafe { self.copy_h2d(to, src, bytes, stream) }
            }
            (Place::Pinned, Place::Device) => {
                let dst = with_exposed_provenance_mut(to.0 as usize);
                // SAFETY: as above, writable; the caller guarantees that nothing reads it.
                unsafe { self.copy_d2h(dst, from, bytes, stream) }
            }
            (Place::Pinned, Place::Pinned) => {
                Err(invalid(call, "both ranges are host memory: a copy needs the device at one end"))
            }
        }
    }

    /// What lies at a range, all of it, if it is within reach.
    pub(super) fn place(&self, addr: Addr, bytes: u64, call: Call, reach: Reach) -> DriverResult<Place> {
        let place = self.device.ranges.place(addr.0, bytes).ok_or_else(|| {
            invalid(call, format!("{bytes} bytes at {addr} are not wholly inside memory of this device"))
        })?;
        if reach == Reach::Device {
            refuse_pinned(place, addr, bytes, call)?;
        }
        Ok(place)
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
// SAFETY: each function is one driver call that moves exactly its bytes in stream order.
unsafe impl Copies for Cuda {
    unsafe fn copy_h2d(&self, dst: Addr, src: *const u8, bytes: u64, stream: &GpuStream) -> DriverResult<()> {
        Cuda::queue(stream, Call::memcpy_h2d, bytes, |table, size, native| {
            // SAFETY: passed on from the caller; the reference keeps the stream.
            unsafe { (table.memcpy_h2d)(dst.0, src.cast(), size, native) }
        })
    }

    unsafe fn copy_d2h(&self, dst: *mut u8, src: Addr, bytes: u64, stream: &GpuStream) -> DriverResult<()> {
        Cuda::queue(stream, Call::memcpy_d2h, bytes, |table, size, native| {
            // SAFETY: passed on from the caller; the reference keeps the stream.
            unsafe { (table.memcpy_d2h)(dst.cast(), src.0, size, native) }
        })
    }

    unsafe fn copy_d2d(&self, dst: Addr, src: Addr, bytes: u64, stream: &GpuStream) -> DriverResult<()> {
        let call = Call::memcpy_d2d;
        if dst.0.abs_diff(src.0) < bytes {
            let message = format!("{bytes} bytes at {src} and at {dst} overlap: copy through a third place");
            return Err(invalid(call, message));
        }
        Cuda::queue(stream, call, bytes, |table, size, native| {
            // SAFETY: passed on from the caller; the reference keeps the stream.
            unsafe { (table.memcpy_d2d)(dst.0, src.0, size, native) }
        })
    }

    unsafe fn copy_rows(&self, copy: &Pitched, stream: &GpuStream) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { Cuda::queue_rows(copy, stream) }
    }

    unsafe fn copy_peer(
        &self,
        dst: Addr,
        to: &Cuda,
        src: Addr,
        bytes: u64,
        stream: &GpuStream,
    ) -> DriverResult<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.queue_peer(dst, to, src, bytes, stream) }
    }

    unsafe fn fill(&self, dst: Addr, value: u8, bytes: u64, stream: &GpuStream) -> DriverResult<()> {
        Cuda::queue(stream, Call::memset_d8, bytes, |table, size, native| {
            // SAFETY: passed on from the caller; the reference keeps the stream.
            unsafe { (table.memset_d8)(dst.0, value, size, native) }
        })
    }
}
