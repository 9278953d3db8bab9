//! What a device must be able to do, to be replayed on: access memory in stream order, and report what it found.
//!
//! A replay that only allocated and freed would prove nothing. So each block is filled with a word of its own and checked
//! for it. How, is the driver's: the simulator launches pattern kernels, [`Null`] has no memory and does nothing. This
//! file does not know what is replayed.

use core::time::Duration;
#[cfg(feature = "cuda")]
use millpond::cuda::Cuda;
#[cfg(feature = "cuda")]
use millpond_driver::Memory;
use millpond_driver::units::{Addr, AllocationId};
use millpond_driver::{Driver, DriverResult};
use millpond_sim::null::Null;
use millpond_sim::{Launch, Sim};
use millpond_trace::Access;

/// A device that work can be replayed on: its launches and copies by addresses, and what its judges found.
///
/// Every method with a default does nothing on a device that has no such thing.
#[allow(unsafe_code, reason = "addresses may be pinned memory, where Rust references may lead")]
pub trait Touch: Driver {
    /// Queues a kernel that fills a range with a repeating word (little endian, beginning at `addr`).
    ///
    /// # Errors
    /// The driver's; nothing was then queued.
    ///
    /// # Safety
    /// The memory lies in live allocations. Of those that are pinned, no byte that is written has a Rust reference to it,
    /// and no byte that is read is changed through one, until the operation is complete; they stay pinned until then.
    unsafe fn write(
        &self,
        stream: &Self::Stream,
        addr: Addr,
        bytes: u64,
        id: AllocationId,
        word: u64,
    ) -> DriverResult<()>;

    /// Queues a kernel that reads a range and checks that it holds a repeating word. With `None` it only reads: the
    /// contents are unknown.
    ///
    /// # Errors
    /// The driver's; nothing was then queued.
    ///
    /// # Safety
    /// The memory lies in live allocations. Of those that are pinned, no byte that is written has a Rust reference to it,
    /// and no byte that is read is changed through one, until the operation is complete; they stay pinned until then.
    unsafe fn read(
        &self,
        stream: &Self::Stream,
        addr: Addr,
        bytes: u64,
        id: AllocationId,
        word: Option<u64>,
    ) -> DriverResult<()>;

    /// Reports an access that touches no byte to the device's judge.
    ///
    /// # Errors
    /// The driver's; nothing was reported then.
    fn declare(
        &self,
        stream: &Self::Stream,
        addr: Addr,
        bytes: u64,
        id: AllocationId,
        access: Access,
    ) -> DriverResult<()> {
        let _ = (stream, addr, bytes, id, access);
        Ok(())
    }

    /// Queues an asynchronous copy between two ranges, one of them at least device memory, the other that or pinned.
    ///
    /// # Errors
    /// The driver's; nothing was then queued.
    ///
    /// # Safety
    /// The memory lies in live allocations. Of those that are pinned, no byte that is written has a Rust reference to it,
    /// and no byte that is read is changed through one, until the operation is complete; they stay pinned until then.
    unsafe fn copy(&self, stream: &Self::Stream, to: Addr, from: Addr, bytes: u64) -> DriverResult<()>;

    /// One call of the host's has passed, for a device whose progress is counted in them.
    fn tick(&self) {}

    /// Lets the device run at most so many of a stream's queued operations, and says how many it ran.
    ///
    /// # Errors
    /// The driver's.
    fn advance(&self, stream: &Self::Stream, steps: u32) -> DriverResult<u32> {
        let _ = (stream, steps);
        Ok(0)
    }

    /// The device answers the next so many queries for completion with "not yet"; after 0 it answers truly again.
    fn not_ready(&self, times: u32) {
        let _ = times;
    }

    /// The host does something else until this time, for a device whose clock ([`host_time`](millpond_driver::Fences::host_time)) is virtual.
    fn idle_until(&self, at: Duration) {
        let _ = at;
    }

    /// The device with its work held back by so many ticks. To be called before anything else.
    #[must_use]
    fn ahead(self, ticks: u64) -> Self {
        let _ = ticks;
        self
    }

    /// Says which number a stream has in what is replayed, for a judge to call it that.
    ///
    /// # Errors
    /// The stream is none of this device's.
    fn number(&self, stream: &Self::Stream, number: u64) -> DriverResult<()> {
        let _ = (stream, number);
        Ok(())
    }

    /// The legacy default stream, to be adopted, if there is one.
    fn legacy(&self) -> Option<Self::Stream> {
        None
    }

    /// When everything submitted so far is over, in the device's own time, if it keeps one that does not depend on the
    /// machine.
    fn makespan(&self) -> Option<Duration> {
        None
    }

    /// How often calls made the host wait for the device so far, if that is counted.
    fn host_waits(&self) -> Option<u64> {
        None
    }

    /// What the device's judges found so far, if it has any. With `finish`, whatever is queued runs first.
    fn judge(&self, finish: bool) -> Option<Judgement> {
        let _ = finish;
        None
    }

    /// What was taken from the device and not given back, a line each.
    fn lost(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What a device's judges found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Judgement {
    /// Accesses that were judged.
    pub accesses_checked: u64,
    /// Violations of order, by the allocator or the program.
    pub violations: u64,
    /// Of these, the allocator's.
    pub violations_of_allocator: u64,
    /// Waits that ordered something which no access needed.
    pub waits_beyond_need: u64,
    /// Operations that met other bytes than they should have.
    pub mismatches: u64,
    /// What was found, in full; empty if nothing was.
    pub text: String,
}

#[allow(unsafe_code, reason = "as the trait's")]
impl Touch for Sim {
    unsafe fn write(
        &self,
        stream: &Self::Stream,
        addr: Addr,
        bytes: u64,
        id: AllocationId,
        word: u64,
    ) -> DriverResult<()> {
        // SAFETY: passed on.
        unsafe { self.launch_anywhere(stream, Launch::write_pattern(addr, bytes, word).tag(id)) }
    }
    unsafe fn read(
        &self,
        stream: &Self::Stream,
        addr: Addr,
        bytes: u64,
        id: AllocationId,
        word: Option<u64>,
    ) -> DriverResult<()> {
        let launch = match word {
            Some(word) => Launch::check_pattern(addr, bytes, word),
            None => Launch::new("read").reads(addr, bytes),
        };
        // SAFETY: passed on.
        unsafe { self.launch_anywhere(stream, launch.tag(id)) }
    }
    fn declare(
        &self,
        stream: &Self::Stream,
        addr: Addr,
        bytes: u64,
        id: AllocationId,
        access: Access,
    ) -> DriverResult<()> {
        let launch = match access {
            Access::Write => Launch::new("write").writes(addr, bytes),
            Access::Read => Launch::new("read").reads(addr, bytes),
        };
        self.launch(stream, launch.tag(id))
    }
    unsafe fn copy(&self, stream: &Self::Stream, to: Addr, from: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: passed on.
        unsafe { self.copy_anywhere(stream, to, from, bytes) }
    }
    fn tick(&self) {
        Sim::tick(self);
    }
    fn advance(&self, stream: &Self::Stream, steps: u32) -> DriverResult<u32> {
        let mut ran = 0;
        while ran < steps && Sim::advance(self, stream)? {
            ran += 1;
        }
        Ok(ran)
    }
    fn not_ready(&self, times: u32) {
        Sim::not_ready(self, times);
    }
    fn idle_until(&self, at: Duration) {
        Sim::idle_until(self, at);
    }
    fn ahead(self, ticks: u64) -> Sim {
        if ticks == 0 { self } else { self.hold(ticks) }
    }
    fn number(&self, stream: &Self::Stream, number: u64) -> DriverResult<()> {
        self.number_stream(stream, number)
    }
    fn legacy(&self) -> Option<Self::Stream> {
        Some(self.legacy_stream())
    }
    fn makespan(&self) -> Option<Duration> {
        Some(Sim::makespan(self))
    }
    fn host_waits(&self) -> Option<u64> {
        Some(self.ledger().host_waits)
    }
    fn judge(&self, finish: bool) -> Option<Judgement> {
        let said = if finish { self.verdict() } else { self.verdict_so_far() };
        let text = said.err().map_or_else(String::new, |verdict| verdict.to_string());
        let tally = self.tally();
        let (_, total) = self.mismatches();
        Some(Judgement {
            accesses_checked: tally.accesses_checked,
            violations: tally.violations,
            violations_of_allocator: tally.violations_of_allocator,
            waits_beyond_need: tally.waits_beyond_need,
            mismatches: total,
            text,
        })
    }
    fn lost(&self) -> Vec<String> {
        let errors = self.drop_errors().into_iter().map(|e| format!("a drop met an error: {e}"));
        self.leaks().iter().map(ToString::to_string).chain(errors).collect()
    }
}

#[allow(unsafe_code, reason = "as the trait's")]
impl Touch for Null {
    /// Nothing: there is no memory.
    #[inline]
    unsafe fn write(&self, _: &Self::Stream, _: Addr, _: u64, _: AllocationId, _: u64) -> DriverResult<()> {
        Ok(())
    }
    /// Nothing: there is no memory.
    #[inline]
    unsafe fn read(
        &self,
        _: &Self::Stream,
        _: Addr,
        _: u64,
        _: AllocationId,
        _: Option<u64>,
    ) -> DriverResult<()> {
        Ok(())
    }
    /// Nothing: there is no memory.
    unsafe fn copy(&self, _: &Self::Stream, _: Addr, _: Addr, _: u64) -> DriverResult<()> {
        Ok(())
    }
    fn legacy(&self) -> Option<Self::Stream> {
        Some(self.default_stream())
    }
    fn lost(&self) -> Vec<String> {
        let (device, host) = self.outstanding();
        let line = |n: usize, what: &str| (n > 0).then(|| format!("{n} ranges of {what} memory"));
        [line(device, "device"), line(host, "pinned")].into_iter().flatten().collect()
    }
}

/// Our own kernels on the device. Their findings are mismatches: nothing judges the order on hardware.
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "as the trait's")]
impl Touch for Cuda {
    unsafe fn write(
        &self,
        stream: &Self::Stream,
        addr: Addr,
        bytes: u64,
        _id: AllocationId,
        word: u64,
    ) -> DriverResult<()> {
        if !self.has_patterns() {
            return Ok(());
        }
        // SAFETY: passed on.
        unsafe { self.write_pattern_anywhere(stream, addr, bytes, word) }
    }
    /// Without a word nothing is launched: a read that is not checked leaves no trace on hardware.
    unsafe fn read(
        &self,
        stream: &Self::Stream,
        addr: Addr,
        bytes: u64,
        id: AllocationId,
        word: Option<u64>,
    ) -> DriverResult<()> {
        match word {
            // SAFETY: passed on.
            Some(word) if self.has_patterns() => unsafe {
                self.check_pattern_anywhere(stream, addr, bytes, word, Some(id))
            },
            _ => Ok(()),
        }
    }
    unsafe fn copy(&self, stream: &Self::Stream, to: Addr, from: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: passed on.
        unsafe { self.copy_anywhere(stream, to, from, bytes) }
    }
    fn legacy(&self) -> Option<Self::Stream> {
        self.legacy_stream().ok()
    }
    /// A device that fails to answer counts as one mismatch.
    fn judge(&self, finish: bool) -> Option<Judgement> {
        let (mismatches, text) = match self.bad_ranges(finish) {
            Ok((bad, total)) => (total, bad.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
            Err(e) => (1, format!("what the checks found cannot be read: {e}")),
        };
        Some(Judgement { accesses_checked: self.checks(), mismatches, text, ..Judgement::default() })
    }
    fn lost(&self) -> Vec<String> {
        let errors = self.deferred().into_iter().map(|e| format!("a drop met an error: {e}"));
        self.outstanding().into_iter().chain(errors).collect()
    }
}
