//! Asynchronous copies and fills.
//!
//! It does not know who owns the bytes; ownership on the stream is part of each contract, for the caller to ensure.

use crate::units::Addr;
use crate::{DriverError, DriverErrorKind, DriverResult, Fences, Pitched};

/// Asynchronous copies and fills, ordered on a stream.
///
/// # Safety
/// Each call moves exactly `bytes` bytes, in stream order, and touches nothing else.
#[allow(unsafe_code, reason = "copies work on raw addresses")]
pub unsafe trait Copies: Fences {
    /// Host to device. From pinned memory it returns at once; from pageable memory when the source has been read.
    ///
    /// # Errors
    /// The driver's; nothing was then queued.
    ///
    /// # Safety
    /// `src` is readable and `dst` is owned by the caller on `stream` until the copy is complete.
    unsafe fn copy_h2d(
        &self,
        dst: Addr,
        src: *const u8,
        bytes: u64,
        stream: &Self::Stream,
    ) -> DriverResult<()>;
    /// Device to host. Into pinned memory it returns at once; into pageable memory when the copy is done.
    ///
    /// # Errors
    /// The driver's; nothing was then queued.
    ///
    /// # Safety
    /// `dst` is writable and not read, `src` is owned by the caller on `stream`, until the copy is complete.
    unsafe fn copy_d2h(&self, dst: *mut u8, src: Addr, bytes: u64, stream: &Self::Stream)
    -> DriverResult<()>;
    /// Device to device.
    ///
    /// # Errors
    /// The driver's; nothing was then queued.
    ///
    /// # Safety
    /// Both ranges are owned by the caller on `stream` until the copy is complete, and do not overlap.
    unsafe fn copy_d2d(&self, dst: Addr, src: Addr, bytes: u64, stream: &Self::Stream) -> DriverResult<()>;
    /// Copies rows with a stride, as one operation. Host memory on one side is pinned, in one pinned range. Zero bytes:
    /// does nothing.
    ///
    /// # Errors
    /// The driver's; nothing was then queued. By default: not supported.
    ///
    /// # Safety
    /// The rows of both sides are owned by the caller on `stream` until the copy is complete, readable and writable, and
    /// do not overlap.
    unsafe fn copy_rows(&self, copy: &Pitched, stream: &Self::Stream) -> DriverResult<()> {
        let _ = (copy, stream);
        Err(unsupported("copy_rows", "this driver has no copies of rows: copy row by row"))
    }
    /// From memory of this device to that of another, on a stream of this one.
    ///
    /// # Errors
    /// The driver's, including devices that cannot reach each other; nothing was then queued. By default: not
    /// supported.
    ///
    /// # Safety
    /// Both ranges are owned by the caller on `stream` until the copy is complete.
    unsafe fn copy_peer(
        &self,
        dst: Addr,
        to: &Self,
        src: Addr,
        bytes: u64,
        stream: &Self::Stream,
    ) -> DriverResult<()> {
        let _ = (dst, to, src, bytes, stream);
        Err(unsupported("copy_peer", "this driver has no copies between devices: copy through pinned memory"))
    }
    /// Fills with a byte.
    ///
    /// # Errors
    /// The driver's; nothing was then queued.
    ///
    /// # Safety
    /// The range is owned by the caller on `stream` until the fill is complete.
    unsafe fn fill(&self, dst: Addr, value: u8, bytes: u64, stream: &Self::Stream) -> DriverResult<()>;
}

pub(crate) fn unsupported(call: &'static str, advice: &'static str) -> DriverError {
    DriverError::new(call, 801, DriverErrorKind::NotSupported, advice)
}
