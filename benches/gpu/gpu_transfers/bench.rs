//! What every part needs: the device from both sides, a clock that the device reads, plain memory, medians, aims.
//!
//! It does not know what is measured.

use cudarc::driver::{CudaContext, result, sys};
use millpond::cuda::{Cuda, GpuGate, GpuStream};
use millpond::{Allocator, Config};
use std::error::Error;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) type Fallible<T> = Result<T, Box<dyn Error>>;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const GIB: usize = 1 << 30;

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Tiny,
    Quick,
    Full,
}

/// The device, ours and as cudarc has it.
pub(crate) struct Bench {
    pub(crate) cuda: Cuda,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) gpu: Allocator<Cuda>,
    pub(crate) size: Size,
    start: Instant,
}

impl Bench {
    pub(crate) fn new(cuda: &Cuda, size: Size) -> Fallible<Bench> {
        let context = CudaContext::new(0)?;
        context.bind_to_thread()?;
        // Warm (S14): a kernel's first launch loads it, and waits for running ones. What else is slow at first, each part
        // does once before it measures.
        cuda.load_kernels()?;
        let gpu = Allocator::new(cuda.clone(), Config::default())?;
        millpond::kernel::load_builtins(cuda)?;
        Ok(Bench { cuda: cuda.clone(), context, gpu, size, start: Instant::now() })
    }

    /// One of three numbers.
    pub(crate) fn pick<T>(&self, full: T, quick: T, tiny: T) -> T {
        match self.size {
            Size::Full => full,
            Size::Quick => quick,
            Size::Tiny => tiny,
        }
    }

    /// Rounds to be measured, so many on a device that is quick enough: past three quarters of the time, three.
    pub(crate) fn rounds(&self, full: u32, quick: u32) -> impl Iterator<Item = u32> + '_ {
        let most = self.pick(full, quick, 2);
        let limit = Duration::from_secs(self.pick(110, 45, 45));
        (0..most).take_while(move |&round| round < 3 || self.start.elapsed() < limit)
    }

    /// Holds a stream, so that what is queued behind it begins at once and all together.
    pub(crate) fn hold(&self, on: &GpuStream) -> Fallible<Held> {
        Ok(Held(self.cuda.gate(on, Duration::from_secs(10))?))
    }
}

/// A stream held.
pub(crate) struct Held(GpuGate);

impl Held {
    pub(crate) fn go(self) -> Fallible<()> {
        if self.0.timed_out() {
            return Err("queueing took longer than the gate holds: nothing was measured".into());
        }
        self.0.open();
        Ok(())
    }
}

/// A point on a stream that the device puts its time on.
pub(crate) struct Stamp(sys::CUevent);

#[allow(unsafe_code, reason = "foreign calls")]
impl Stamp {
    pub(crate) fn new() -> Fallible<Stamp> {
        Ok(Stamp(result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)?))
    }
    pub(crate) fn put(&self, on: &GpuStream) -> Fallible<()> {
        // SAFETY: both are alive, and the context is current: `Bench::new` bound it.
        Ok(unsafe { result::event::record(self.0, on.handle()) }?)
    }
    /// What is queued on a stream from now on comes behind it.
    pub(crate) fn before(&self, on: &GpuStream) -> Fallible<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        Ok(unsafe { result::stream::wait_event(on.handle(), self.0, flags) }?)
    }
    /// Seconds after another one. Both are complete.
    pub(crate) fn since(&self, start: &Stamp) -> Fallible<f64> {
        // SAFETY: both are alive.
        Ok(f64::from(unsafe { result::event::elapsed(start.0, self.0) }?) / 1e3)
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Drop for Stamp {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once. The result of the call is not needed here.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Memory that plain CUDA gave: pinned host memory.
pub(crate) struct PlainHost {
    pub(crate) at: *mut c_void,
    pub(crate) bytes: usize,
}

#[allow(unsafe_code, reason = "foreign calls")]
impl PlainHost {
    pub(crate) fn new(bytes: usize) -> Fallible<PlainHost> {
        // SAFETY: the context is current.
        let at = unsafe { result::malloc_host(bytes, 0) }?;
        Ok(PlainHost { at, bytes })
    }
    /// The address of a piece.
    pub(crate) fn piece(&self, index: usize, bytes: usize) -> *mut c_void {
        assert!((index + 1) * bytes <= self.bytes, "inside");
        self.at.wrapping_byte_add(index * bytes)
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Drop for PlainHost {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once; every part waits for its copies.
        let _ = unsafe { result::free_host(self.at) };
    }
}

/// Memory that plain CUDA gave: the device's.
pub(crate) struct PlainDevice(pub(crate) sys::CUdeviceptr);

#[allow(unsafe_code, reason = "foreign calls")]
impl PlainDevice {
    pub(crate) fn new(bytes: usize) -> Fallible<PlainDevice> {
        // SAFETY: the context is current.
        Ok(PlainDevice(unsafe { result::malloc_sync(bytes) }?))
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Drop for PlainDevice {
    fn drop(&mut self) {
        // SAFETY: as for host memory.
        let _ = unsafe { result::free_sync(self.0) };
    }
}

/// Plain CUDA's own copy to the device.
#[allow(unsafe_code, reason = "foreign calls")]
pub(crate) fn plain_h2d(
    to: sys::CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    on: &GpuStream,
) -> Fallible<()> {
    // SAFETY: every caller has so many bytes on both sides, until it has waited.
    Ok(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, on.handle()) }.result()?)
}

/// Plain CUDA's own copy to the host.
#[allow(unsafe_code, reason = "foreign calls")]
pub(crate) fn plain_d2h(
    to: *mut c_void,
    from: sys::CUdeviceptr,
    bytes: usize,
    on: &GpuStream,
) -> Fallible<()> {
    // SAFETY: as above.
    Ok(unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, on.handle()) }.result()?)
}

/// Plain CUDA's own wait for a stream.
#[allow(unsafe_code, reason = "foreign calls")]
pub(crate) fn plain_wait(on: &GpuStream) -> Fallible<()> {
    // SAFETY: the reference keeps the stream.
    Ok(unsafe { result::stream::synchronize(on.handle()) }?)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    super::common::median(values.iter().copied())
}

/// What was measured, without each one's first round: in it events are made, slots pinned and pages touched (S14).
pub(crate) fn warm<const N: usize>(found: &[Vec<f64>; N]) -> [&[f64]; N] {
    found.each_ref().map(|all| &all[1..])
}

/// The median of the rounds' ratios.
pub(crate) fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(&of.iter().zip(to).map(|(a, b)| a / b).collect::<Vec<_>>())
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Bytes as people say them.
pub(crate) fn bytes_text(bytes: usize) -> String {
    match bytes {
        b if b >= GIB && b.is_multiple_of(GIB) => format!("{} GiB", b / GIB),
        b if b >= MIB && b.is_multiple_of(MIB) => format!("{} MiB", b / MIB),
        b if b >= KIB && b.is_multiple_of(KIB) => format!("{} KiB", b / KIB),
        b => format!("{b} B"),
    }
}

/// What is hoped for, and what was found.
#[derive(Default)]
pub(crate) struct Aims(Vec<(String, bool)>);

impl Aims {
    /// The figure is to be at least so much. No figure is no success.
    pub(crate) fn at_least(&mut self, what: &str, found: f64, aim: f64) {
        self.0.push((format!("{what}: {found:.3}, aim at least {aim}"), found >= aim));
    }
    /// The figure is to be at most so much.
    pub(crate) fn at_most(&mut self, what: &str, found: f64, aim: f64) {
        self.0.push((format!("{what}: {found:.3}, aim at most {aim}"), found <= aim));
    }
    pub(crate) fn holds(&mut self, what: &str, holds: bool) {
        self.0.push((what.to_owned(), holds));
    }
    /// Prints them, and returns whether all were met.
    pub(crate) fn judge(&self) -> bool {
        for (what, met) in &self.0 {
            println!("{} {what}", if *met { "PASS" } else { "FAIL" });
        }
        self.0.iter().all(|(_, met)| *met)
    }
}
