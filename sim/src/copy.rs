//! Copies and fills: the [`Copies`] of the simulated device, with their different return rules.
//!
//! Between the device and *pinned* memory a copy is an ordinary operation: it reads its source when it runs. From
//! *pageable* memory the source is read at the call; into pageable memory the call returns when the copy is done, so it
//! runs the stream up to there and counts as a host wait. Memory that this world did not pin is pageable. This file does not
//! know what the bytes mean.

use super::Sim;
use super::call::Call;
use super::event::must_reach;
use super::exec::Action;
use super::memory::{Backing, Reach};
use super::operation::Points;
use super::oracle::AccessKind::{self, Read, Write};
use super::oracle::StreamKey;
use super::rate::Engine;
use super::stream::{Booking, SimStream};
use super::world::{Guard, Touch, World, invalid};
use millpond_driver::units::Addr;
use millpond_driver::{Copies, DriverResult, Pitched};

pub(super) fn touch(addr: u64, bytes: u64, kind: AccessKind) -> Touch {
    Touch { addr, bytes, kind, tag: None }
}

impl World {
    /// Whether a host range is pinned. A copy must not extend from one pinned range into another, nor out of it.
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

    /// Queues a copy between two ranges of device memory, into another device or inside the stream's.
    pub(super) fn queue_copy(
        &mut self,
        key: StreamKey,
        call: Call,
        name: &'static str,
        into: Option<usize>,
        (dst, src, bytes): (Addr, Addr, u64),
        reach: Reach,
    ) -> DriverResult<()> {
        if bytes == 0 || self.recorded(key, call)? {
            return Ok(());
        }
        self.report_operation(key, name, &[touch(src.0, bytes, Read), touch(dst.0, bytes, Write)]);
        let copy = Action::Copy { name, dst: dst.0, src: src.0, bytes, reach };
        let engine = if into.is_some() { Engine::Out } else { Engine::Compute };
        let mut booking = Booking::on(engine, engine.nanos(bytes));
        booking.load.into = into;
        self.submit(key, booking, copy);
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
    #[track_caller]
    unsafe fn copy_h2d(&self, dst: Addr, src: *const u8, bytes: u64, stream: &SimStream) -> DriverResult<()> {
        // SAFETY: forwarded.
        unsafe { self.queue_in(self.before(Call::MemcpyHtoD), dst, src, bytes, stream) }
    }

    #[track_caller]
    unsafe fn copy_d2h(&self, dst: *mut u8, src: Addr, bytes: u64, stream: &SimStream) -> DriverResult<()> {
        // SAFETY: forwarded.
        unsafe { self.queue_out(self.before(Call::MemcpyDtoH), dst, src, bytes, stream) }
    }

    #[track_caller]
    unsafe fn copy_d2d(&self, dst: Addr, src: Addr, bytes: u64, stream: &SimStream) -> DriverResult<()> {
        self.queue_inside(self.before(Call::MemcpyDtoD), dst, src, bytes, stream, Reach::Anywhere)
    }

    #[track_caller]
    unsafe fn copy_rows(&self, copy: &Pitched, stream: &SimStream) -> DriverResult<()> {
        self.queue_rows(copy, stream)
    }

    /// Peer access is always on.
    #[track_caller]
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

    #[track_caller]
    unsafe fn fill(&self, dst: Addr, value: u8, bytes: u64, stream: &SimStream) -> DriverResult<()> {
        let call = Call::MemsetD8;
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            if bytes == 0 || w.recorded(key, call)? {
                return Ok(());
            }
            w.report_operation(key, "fill", &[touch(dst.0, bytes, Write)]);
            let booking = Booking::on(Engine::Compute, Engine::Compute.nanos(bytes));
            let word = u64::from_le_bytes([value; 8]);
            let (addr, reach) = (dst.0, Reach::Anywhere);
            w.submit(key, booking, Action::Write { name: "fill".into(), addr, bytes, word, reach });
            Ok(())
        })
    }
}

// Each under a lock that was taken before the call.
impl Sim {
    /// [`Copies::copy_h2d`].
    #[allow(unsafe_code, reason = "the caller's promises are passed on")]
    #[track_caller]
    unsafe fn queue_in(
        &self,
        guard: Guard<'_>,
        dst: Addr,
        src: *const u8,
        bytes: u64,
        stream: &SimStream,
    ) -> DriverResult<()> {
        let call = Call::MemcpyHtoD;
        let begin = |w: &mut World| {
            let key = w.resolve_here(self, stream, call)?;
            let (dst, host) = (dst.0, src.addr() as u64);
            let pinned = w.is_pinned(host, bytes, call)?;
            if bytes == 0 || w.recorded(key, call)? {
                return Ok(());
            }
            let write = touch(dst, bytes, Write);
            let action = if pinned {
                w.report_operation(key, "copy from pinned memory", &[touch(host, bytes, Read), write]);
                let name = "copy from pinned memory";
                Action::Copy { name, dst, src: host, bytes, reach: Reach::Anywhere }
            } else {
                w.report_operation(key, "copy from pageable memory", &[write]);
                // SAFETY: forwarded from this function's caller.
                let data = if w.memory.contents { unsafe { staged(src, bytes) } } else { Box::default() };
                Action::Staged { dst, data }
            };
            w.submit(key, Booking::on(Engine::In, Engine::In.nanos(bytes)), action);
            Ok(())
        };
        self.call_and(guard, call, begin, |_, ()| Ok(()))
    }

    /// [`Copies::copy_d2h`].
    #[allow(unsafe_code, reason = "the caller's promises are passed on")]
    #[track_caller]
    unsafe fn queue_out(
        &self,
        guard: Guard<'_>,
        dst: *mut u8,
        src: Addr,
        bytes: u64,
        stream: &SimStream,
    ) -> DriverResult<()> {
        let call = Call::MemcpyDtoH;
        let begin = |w: &mut World| {
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
                w.report_operation(key, name, &[read, touch(host, bytes, Write)]);
                let reach = Reach::Anywhere;
                w.submit(key, booking, Action::Copy { name, dst: host, src: src.0, bytes, reach });
                return Ok(None);
            }
            w.report_operation(key, "copy to pageable memory", &[read]);
            let (position, finish) = w.submit(key, booking, Action::Mark);
            Ok(Some((key, position, w.stream(key).operations, finish)))
        };
        self.call_and(guard, call, begin, |guard, to_wait_for| {
            let Some((key, position, number, finish)) = to_wait_for else { return Ok(()) };
            must_reach(guard, self.index(), Points::from_elem((key, position), 1), call)?;
            let mut world = guard.borrow_mut();
            let until = world.ended(key, &finish);
            world.host_waited(self.index(), until);
            let host = world.host();
            if let Some(oracle) = &mut world.oracle {
                oracle.host_sees_stream(host, key);
            }
            if world.memory.contents {
                let mut data = vec![0; bytes as usize];
                if let Err(hole) = world.memory.read_bytes(src.0, &mut data, Reach::Anywhere) {
                    world.runs_from = world.called_from;
                    world.faulted(key, number, "copy to pageable memory".into(), hole);
                } else {
                    // SAFETY: the caller promises that `dst` is writable for `bytes`; the vector is as long and new.
                    unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), dst, data.len()) };
                }
            }
            Ok(())
        })
    }

    #[track_caller]
    fn queue_inside(
        &self,
        guard: Guard<'_>,
        dst: Addr,
        src: Addr,
        bytes: u64,
        stream: &SimStream,
        reach: Reach,
    ) -> DriverResult<()> {
        let call = Call::MemcpyDtoD;
        let begin = |w: &mut World| {
            let key = w.resolve_here(self, stream, call)?;
            if dst.0.abs_diff(src.0) < bytes {
                return Err(invalid(
                    call,
                    format!("{bytes} bytes at {src} and at {dst} overlap: copy through a third place"),
                ));
            }
            if reach == Reach::Device {
                w.refuse_pinned(dst.0, bytes, call)?;
                w.refuse_pinned(src.0, bytes, call)?;
            }
            w.queue_copy(key, call, "copy inside the device", None, (dst, src, bytes), reach)
        };
        self.call_and(guard, call, begin, |_, ()| Ok(()))
    }

    /// A copy inside the device by addresses alone, the safe form of [`Copies::copy_d2d`]: a wrong address is a mismatch
    /// or an error. Pinned memory is refused, since Rust references to it may exist; memory that was pinned after this call is not
    /// reached either.
    ///
    /// # Errors
    /// A range touches pinned memory: use [`Sim::copy_anywhere`] or an array's copies. The ranges overlap. As [`Copies`].
    #[track_caller]
    pub fn copy_between(&self, stream: &SimStream, dst: Addr, src: Addr, bytes: u64) -> DriverResult<()> {
        self.queue_inside(self.before(Call::MemcpyDtoD), dst, src, bytes, stream, Reach::Device)
    }

    /// A copy by addresses alone, of which at most one is pinned memory: [`Copies::copy_h2d`], [`Copies::copy_d2h`] or
    /// [`Copies::copy_d2d`], as the addresses say.
    ///
    /// # Errors
    /// Both ranges are pinned, which no copy of the device supports; as [`Copies`].
    ///
    /// # Safety
    /// Until the copy has run, a pinned range stays pinned; a pinned source is not changed through a Rust reference, and
    /// there is no Rust reference to the bytes of a pinned target.
    #[allow(unsafe_code, reason = "pinned memory is the process's own, where references may lead")]
    #[track_caller]
    pub unsafe fn copy_anywhere(
        &self,
        stream: &SimStream,
        dst: Addr,
        src: Addr,
        bytes: u64,
    ) -> DriverResult<()> {
        let which = || {
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
                (false, true) => Ok(Call::MemcpyHtoD),
                (true, false) => Ok(Call::MemcpyDtoH),
                (false, false) => Ok(Call::MemcpyDtoD),
            }
        };
        // Held from here on, so that nothing is unpinned in between; before that, other threads may have done so.
        let guard = self.before(which()?);
        match which()? {
            // SAFETY: the source is pinned memory of this world, and a copy that extends out of it is refused; that it is not
            // changed meanwhile is the caller's promise, forwarded.
            Call::MemcpyHtoD => unsafe { self.queue_in(guard, dst, src.0 as *const u8, bytes, stream) },
            // SAFETY: the target is pinned memory of this world, and a copy that extends out of it is refused; that it is not
            // accessed is the caller's promise, forwarded.
            Call::MemcpyDtoH => unsafe { self.queue_out(guard, dst.0 as *mut u8, src, bytes, stream) },
            // Neither is memory of this process.
            _ => self.queue_inside(guard, dst, src, bytes, stream, Reach::Device),
        }
    }
}
