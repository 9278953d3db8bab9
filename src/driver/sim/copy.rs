//! Copies and fills: the [`Copies`] of the simulated device, with their different return rules.
//!
//! Between the device and *pinned* memory a copy is an ordinary operation: it reads its source when it runs. From
//! *pageable* memory the source is read at the call; into pageable memory the call returns when the copy is done, so it
//! runs the stream up to there and counts as a host wait. Pageable is whatever this world did not pin. This file does not
//! know what the bytes are for.

use super::Sim;
use super::call::Call;
use super::event::must_reach;
use super::exec::{Action, Points};
use super::memory::Backing;
use super::oracle::AccessKind::{self, Read, Write};
use super::oracle::StreamKey;
use super::rate::Engine;
use super::stream::{Booking, SimStream};
use super::world::{Touch, World, invalid};
use crate::driver::{Copies, DriverResult, Pitched};
use crate::units::Addr;

pub(super) fn touch(addr: u64, bytes: u64, kind: AccessKind) -> Touch {
    Touch { addr, bytes, kind, tag: None }
}

impl World {
    /// Whether a host range is pinned. A copy may not run from one pinned range into another, nor out of it.
    pub(super) fn is_pinned(&self, host: u64, bytes: u64, call: Call) -> DriverResult<bool> {
        let Some((start, m)) = self.memory.around(host) else { return Ok(false) };
        if m.backing != Backing::Pinned {
            return Err(invalid(
                call,
                format!("the host address {host:#x} is device memory: copy_d2d copies inside the device"),
            ));
        }
        if bytes > m.end - host {
            return Err(invalid(
                call,
                format!(
                    "{bytes} bytes at {host:#x} run out of the pinned range {start:#x}..{:#x}: one copy stays in one pinned range",
                    m.end
                ),
            ));
        }
        Ok(true)
    }

    /// Queues a copy between two ranges of device memory.
    pub(super) fn queue_copy(
        &mut self,
        key: StreamKey,
        call: Call,
        name: &'static str,
        on: Engine,
        (dst, src, bytes): (Addr, Addr, u64),
    ) -> DriverResult<()> {
        if bytes == 0 || self.recorded(key, call)? {
            return Ok(());
        }
        self.tell(key, name, &[touch(src.0, bytes, Read), touch(dst.0, bytes, Write)]);
        let copy = Action::Copy { name, dst: dst.0, src: src.0, bytes };
        self.submit(key, Booking::on(on, on.nanos(bytes)), copy);
        Ok(())
    }
}

/// The bytes of pageable memory, read now.
#[allow(unsafe_code, reason = "a copy reads the memory it was given")]
unsafe fn staged(src: *const u8, bytes: u64) -> Box<[u8]> {
    let mut data = vec![0; bytes as usize].into_boxed_slice();
    // SAFETY: `copy_h2d` promises that `src` is readable for `bytes`; the box is as long and new.
    unsafe { core::ptr::copy_nonoverlapping(src, data.as_mut_ptr(), data.len()) };
    data
}

#[allow(unsafe_code, reason = "the contract is kept: each operation moves its bytes, in stream order")]
// SAFETY: an operation moves exactly its bytes when its stream reaches it, and touches nothing else.
unsafe impl Copies for Sim {
    unsafe fn copy_h2d(&self, dst: Addr, src: *const u8, bytes: u64, stream: &SimStream) -> DriverResult<()> {
        let call = Call::MemcpyHtoD;
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            let (dst, host) = (dst.0, src.addr() as u64);
            let pinned = w.is_pinned(host, bytes, call)?;
            if bytes == 0 || w.recorded(key, call)? {
                return Ok(());
            }
            let write = touch(dst, bytes, Write);
            let action = if pinned {
                w.tell(key, "copy from pinned memory", &[touch(host, bytes, Read), write]);
                Action::Copy { name: "copy from pinned memory", dst, src: host, bytes }
            } else {
                w.tell(key, "copy from pageable memory", &[write]);
                // SAFETY: passed on from this function's caller.
                let data = if w.memory.contents { unsafe { staged(src, bytes) } } else { Box::default() };
                Action::Staged { dst, data }
            };
            w.submit(key, Booking::on(Engine::In, Engine::In.nanos(bytes)), action);
            Ok(())
        })
    }

    unsafe fn copy_d2h(&self, dst: *mut u8, src: Addr, bytes: u64, stream: &SimStream) -> DriverResult<()> {
        let call = Call::MemcpyDtoH;
        let guard = self.lock();
        let to_wait_for = self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            let host = dst.addr() as u64;
            let pinned = w.is_pinned(host, bytes, call)?;
            if bytes == 0 || w.recorded(key, call)? {
                return Ok(None);
            }
            let (read, booking) =
                (touch(src.0, bytes, Read), Booking::on(Engine::Out, Engine::Out.nanos(bytes)));
            if pinned {
                let name = "copy to pinned memory";
                w.tell(key, name, &[read, touch(host, bytes, Write)]);
                w.submit(key, booking, Action::Copy { name, dst: host, src: src.0, bytes });
                return Ok(None);
            }
            w.tell(key, "copy to pageable memory", &[read]);
            let (position, finish) = w.submit(key, booking, Action::Mark);
            Ok(Some((key, position, w.stream(key).operations, finish)))
        })?;
        let Some((key, position, number, finish)) = to_wait_for else { return Ok(()) };
        must_reach(&guard, Points::from_elem((key, position), 1), call)?;
        let mut world = guard.borrow_mut();
        world.host_waited(self.index(), finish);
        let host = world.host();
        if let Some(oracle) = &mut world.oracle {
            oracle.host_sees_stream(host, key);
        }
        if world.memory.contents {
            let mut data = vec![0; bytes as usize];
            if let Err(hole) = world.memory.read_bytes(src.0, &mut data) {
                world.faulted(key, number, "copy to pageable memory".into(), hole);
            } else {
                // SAFETY: the caller promises that `dst` is writable for `bytes`; the vector is as long and new.
                unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), dst, data.len()) };
            }
        }
        Ok(())
    }

    unsafe fn copy_d2d(&self, dst: Addr, src: Addr, bytes: u64, stream: &SimStream) -> DriverResult<()> {
        let call = Call::MemcpyDtoD;
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            if dst.0.abs_diff(src.0) < bytes {
                return Err(invalid(
                    call,
                    format!("{bytes} bytes at {src} and at {dst} overlap: copy through a third place"),
                ));
            }
            w.queue_copy(key, call, "copy inside the device", Engine::Compute, (dst, src, bytes))
        })
    }

    unsafe fn copy_rows(&self, copy: &Pitched, stream: &SimStream) -> DriverResult<()> {
        self.queue_rows(copy, stream)
    }

    /// Peer access is always on.
    unsafe fn copy_peer(
        &self,
        dst: Addr,
        to: &Sim,
        src: Addr,
        bytes: u64,
        stream: &SimStream,
    ) -> DriverResult<()> {
        self.queue_peer(dst, to, src, bytes, stream)
    }

    unsafe fn fill(&self, dst: Addr, value: u8, bytes: u64, stream: &SimStream) -> DriverResult<()> {
        let call = Call::MemsetD8;
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            if bytes == 0 || w.recorded(key, call)? {
                return Ok(());
            }
            w.tell(key, "fill", &[touch(dst.0, bytes, Write)]);
            let booking = Booking::on(Engine::Compute, Engine::Compute.nanos(bytes));
            let word = u64::from_le_bytes([value; 8]);
            w.submit(key, booking, Action::Write { name: "fill".into(), addr: dst.0, bytes, word });
            Ok(())
        })
    }
}

impl Sim {
    /// A copy by addresses alone, the safe form of [`Copies`]: both ranges are simulated memory of this world, device or
    /// pinned, and a wrong address is a mismatch or an error, never a touch of foreign memory. What a pinned range holds
    /// changes when the copy runs; the CPU is kept away from it by whoever owns the range, as with any pinned copy.
    ///
    /// # Errors
    /// Both ranges are pinned, which no copy of the device's is; as [`Copies`].
    #[allow(unsafe_code, reason = "three calls whose contract is kept by asking what lies at the addresses")]
    pub fn copy_between(&self, stream: &SimStream, dst: Addr, src: Addr, bytes: u64) -> DriverResult<()> {
        // Held throughout, so that nothing is unpinned in between.
        let guard = self.lock();
        let pinned = |addr: Addr| {
            let world = guard.borrow();
            world.memory.around(addr.0).is_some_and(|(_, m)| m.backing == Backing::Pinned)
        };
        match (pinned(dst), pinned(src)) {
            (true, true) => Err(invalid(
                Call::MemcpyDtoD,
                format!("both {src} and {dst} are pinned memory: the CPU copies between those"),
            )),
            // SAFETY: the source is pinned memory of this world, and `copy_h2d` refuses a copy that runs out of it.
            (false, true) => unsafe { self.copy_h2d(dst, src.0 as *const u8, bytes, stream) },
            // SAFETY: the target is pinned memory of this world, and `copy_d2h` refuses a copy that runs out of it.
            (true, false) => unsafe { self.copy_d2h(dst.0 as *mut u8, src, bytes, stream) },
            // SAFETY: neither is memory of this process: the simulator finds both by their addresses, or reports a hole.
            (false, false) => unsafe { self.copy_d2d(dst, src, bytes, stream) },
        }
    }
}
