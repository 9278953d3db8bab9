//! Copies of rows, and copies to another device: the less used half of [`Copies`](millpond_driver::Copies).
//!
//! This file does not know what the bytes are for.

use super::Cuda;
use super::stream::GpuStream;
use super::table::{Call, Copy2d, Side, invalid};
use core::ptr::null_mut;
use millpond_driver::units::Addr;
use millpond_driver::{CopySide, DriverResult, Pitched};

fn side(place: CopySide, pitch: u64) -> Side {
    let pitch = pitch as usize;
    match place {
        CopySide::Device(addr) => {
            Side { kind: 2, host: null_mut(), device: addr.0, array: null_mut(), pitch }
        }
        CopySide::Pinned(first) => Side { kind: 1, host: first.cast(), device: 0, array: null_mut(), pitch },
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Cuda {
    /// # Safety
    /// As [`Copies::copy_rows`](millpond_driver::Copies::copy_rows).
    pub(super) unsafe fn queue_rows(copy: &Pitched, stream: &GpuStream) -> DriverResult<()> {
        let call = Call::memcpy_2d;
        if copy.spans().is_none() {
            let message =
                format!("a pitch of {copy:?} is below its width, or the rows end beyond all addresses");
            return Err(invalid(call, message));
        }
        let described = Copy2d {
            from_x: 0,
            from_y: 0,
            from: side(copy.from, copy.from_pitch),
            to_x: 0,
            to_y: 0,
            to: side(copy.to, copy.to_pitch),
            width: copy.width as usize,
            height: copy.rows as usize,
        };
        Cuda::queue(stream, call, copy.bytes(), |table, _, native| {
            // SAFETY: passed on from the caller; the driver reads the description before it returns.
            unsafe { (table.memcpy_2d)(&raw const described, native) }
        })
    }

    /// # Safety
    /// As [`Copies::copy_peer`](millpond_driver::Copies::copy_peer).
    pub(super) unsafe fn queue_peer(
        &self,
        dst: Addr,
        to: &Cuda,
        src: Addr,
        bytes: u64,
        stream: &GpuStream,
    ) -> DriverResult<()> {
        let (here, there) = (self.device.context.0, to.device.context.0);
        Cuda::queue(stream, Call::memcpy_peer, bytes, |table, size, native| {
            // SAFETY: passed on from the caller; both contexts are alive while their drivers are.
            unsafe { (table.memcpy_peer)(dst.0, there, src.0, here, size, native) }
        })
    }
}
