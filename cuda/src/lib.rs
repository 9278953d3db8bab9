//! NVIDIA GPUs: the traits over the CUDA driver, through a function table of our own.
//!
//! A [`Cuda`] is one context of one device. Making one never panics: a machine without a driver, with an old one, or
//! with one that lacks a function gives an [`Unavailable`] that says so. Every path binds the context and restores the previous
//! one. It interoperates with cudarc (it accepts cudarc's contexts and streams) without touching cudarc's error
//! state. It does not know heaps, pools or laws.
//!
//! | file | idea |
//! |---|---|
//! | `probe`, `table` | finding the driver; its functions as plain pointers; codes as data |
//! | `context` | one context: bound, restored, shared, counted; a thread's capture mode; what it keeps until its end |
//! | `memory`, `virt`, `copy` | plain and pinned memory; virtual memory; copies and fills |
//! | `stream`, `event` | a stream's owner and identity; events, waits |
//! | `alias` | cudarc's values of this backend's streams, and the identity of a cudarc stream |
//! | `kernel`, `gate` | built-in kernels: fill, check, hold |
//! | `launch` | users' kernels, loaded once |
//! | `kept` | what a context keeps for these three: modules, findings of checks, cells of gates |
//! | `registered`, `pages`, `machine` | pinned memory by registration: our own pages, the program's memory; what the machine has |
//! | `ranges` | which ranges are allocated, so that safe calls can check |
//!
//! ```
//! use millpond_cuda::Cuda;
//! use millpond_driver::{Fences, Memory, StreamOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cuda = match Cuda::new(0) {
//!     Ok(cuda) => cuda,
//!     Err(why) => {
//!         println!("{why}");       // one sentence: no driver, too old, no such device
//!         return Ok(());
//!     }
//! };
//! let range = cuda.allocate(1 << 20)?;                  // freed when dropped
//! let stream = cuda.create_stream(StreamOptions::default())?;
//! # drop((range, stream));
//! # Ok(()) }
//! ```

// Model checkers cannot follow foreign calls: their builds are empty.
#![cfg(not(any(loom, shuttle)))]

// Planted bugs, which ordinary builds have none of.
#[macro_use]
extern crate millpond_driver;

/// Runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod alias;
mod context;
mod copy;
mod ended;
mod event;
mod gate;
mod kept;
mod kernel;
mod launch;
mod machine;
mod memory;
mod pages;
mod pitch;
mod probe;
mod ranges;
mod registered;
mod stream;
mod table;
mod virt;

#[doc(hidden)]
pub use alias::{Found, store_error, store_peek, store_stays};
#[doc(hidden)]
pub use context::current_stays;
pub use event::GpuEvent;
pub use gate::GpuGate;
pub use kept::BadRange;
pub use memory::Backing;
pub use stream::GpuStream;
pub use virt::GpuHandle;

use context::Device;
use core::ffi::{CStr, c_char, c_int};
use core::fmt;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUcontext;
use memory::AsyncPool;
use millpond_driver::Unavailable;
use millpond_driver::sync::Arc;
use millpond_driver::{DeviceSlot, Driver, DriverResult};
use table::Call;

/// One context of an NVIDIA GPU. Clones are the same context; values of one context share the timelines of its streams,
/// its counts and its kernels, each with options of its own.
///
/// ```no_run
/// use millpond_cuda::Cuda;
/// use millpond_driver::{Fences, Memory, StreamOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for ordinal in 0..Cuda::devices()? {
///     let cuda = Cuda::new(ordinal)?;                       // the context that the CUDA runtime uses too
///     let stream = cuda.create_stream(StreamOptions::default())?;
///     let memory = cuda.allocate(1 << 20)?;                 // freed when dropped
///     println!("{cuda:?}: {} bytes at {}", 1 << 20, memory.addr());
///     # drop(stream);
/// }
/// # Ok(()) }
/// ```
///
/// An allocator on it: `millpond::Allocator::new(Cuda::new(0)?, Config::default())`.
#[derive(Clone)]
pub struct Cuda {
    /// Before the device, without which it cannot be given back.
    pool: Option<Arc<AsyncPool>>,
    device: Arc<Device>,
    scrub: bool,
    patterns: bool,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({:?}", self.device)?;
        if let Some(pool) = &self.pool {
            write!(f, ", {pool:?}")?;
        }
        f.write_str(if self.scrub { ", scrubs)" } else { ")" })
    }
}

/// Opening.
impl Cuda {
    /// The primary context of a device, by its ordinal: the context that the CUDA runtime, and frameworks, use.
    ///
    /// The driver is looked for under its usual names, or only at the path in `MILLPOND_LIBCUDA` if that is set; once a
    /// process.
    ///
    /// # Errors
    /// No driver, one that is too old or damaged, no such device, or what the driver says.
    pub fn new(ordinal: u32) -> Result<Cuda, Unavailable> {
        Device::open(ordinal).map(Cuda::over)
    }

    /// The context of a program that uses cudarc, kept by its `Arc`. Two `Arc`s of one context give one device.
    ///
    /// # Errors
    /// As [`Cuda::new`].
    pub fn from_context(context: Arc<CudaContext>) -> Result<Cuda, Unavailable> {
        Device::of_context(context).map(Cuda::over)
    }

    fn over(device: Arc<Device>) -> Cuda {
        Cuda { device, pool: None, scrub: false, patterns: true }
    }

    /// How many devices the driver shows this process.
    ///
    /// # Errors
    /// As [`Cuda::new`].
    pub fn devices() -> Result<u32, Unavailable> {
        probe::api().and_then(context::count).map_err(|e| context::none_at_all(e, 0))
    }
}

/// Options of one value and its clones.
impl Cuda {
    /// Where plain segments come from, from now on. What was taken before goes back to where it came from.
    ///
    /// # Errors
    /// The device has no memory pools; the driver's.
    pub fn backing(mut self, backing: Backing) -> DriverResult<Cuda> {
        self.pool = match backing {
            Backing::Plain => None,
            Backing::Async { keep } => Some(Arc::new(AsyncPool::new(&self.device, keep)?)),
        };
        Ok(self)
    }

    /// Overwrites plain segments and pinned ranges with zeroes before they go back to the driver, which may give them to
    /// another tenant of this process unchanged. Off by default; it costs a fill of the segment and the wait for it. The
    /// driver itself scrubs virtual memory, and whatever another process gets. Chunks that go from one allocation to the
    /// next inside an allocator are scrubbed by `Config::scrub`, which turns this on too.
    #[must_use]
    pub fn scrub(mut self, on: bool) -> Cuda {
        self.scrub = on;
        self
    }

    /// Whether a replay on this value fills and checks its blocks with our kernels. On unless said; off, a replay
    /// measures the allocator alone.
    #[must_use]
    pub fn patterns(mut self, on: bool) -> Cuda {
        self.patterns = on;
        self
    }

    /// Whether driver calls are counted ([`Driver::calls`]), for all values of this context. On unless said; a count is a
    /// relaxed addition, which up to 32 threads make each on a cache line of its own.
    #[must_use]
    pub fn count(self, on: bool) -> Cuda {
        self.device.calls.switch(on);
        self
    }
}

/// Facts.
impl Cuda {
    /// The device's name.
    ///
    /// # Errors
    /// The driver's.
    #[allow(unsafe_code, reason = "foreign calls")]
    pub fn name(&self) -> DriverResult<String> {
        const LENGTH: c_int = 256;
        let mut text = [0_u8; LENGTH as usize];
        let into = text.as_mut_ptr().cast::<c_char>();
        // SAFETY: the array is as long as said; the driver ends the name with a zero.
        let code = unsafe { (self.device.table().device_get_name)(into, LENGTH, self.device.ordinal) };
        self.device.done(Call::device_get_name, code)?;
        let name = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// The newest CUDA that the driver supports, as it counts: 13000 is 13.0.
    pub fn driver_version(&self) -> u32 {
        self.device.api.version
    }

    /// The native context. It lives as long as anything made from this value.
    pub fn context(&self) -> CUcontext {
        self.device.context.0
    }

    /// Whether the driver gives streams unique ids (CUDA 12): raw handles can be used.
    pub fn has_stream_ids(&self) -> bool {
        self.device.table().stream_get_id.is_some()
    }

    /// Whether the driver has context-wide events (CUDA 12.5).
    pub fn has_context_events(&self) -> bool {
        self.device.table().ctx_record_event.is_some()
    }

    /// Declares that other code may capture graphs in this context, on streams that this library does not know: programs in C, Python, other
    /// libraries. From now on, and for every value of this context, no allocator records a context-wide event, which would destroy
    /// such a capture, and no request waits for the device. What would need either is held back until the program
    /// synchronises (`Allocator::synchronize`). It cannot be revoked. A
    /// [`unmanaged_stream`](Cuda::unmanaged_stream) declares the same, unless [`Cuda::promise_no_captures`] was called before it.
    pub fn expect_captures(&self) {
        self.device.expects_captures.store(true, core::sync::atomic::Ordering::Relaxed);
    }

    /// Promises that no graph is captured in this context, except on streams that it knows and can check: its own, adopted ones and permanent
    /// ones; and on these not while another thread makes calls. From now on a [`unmanaged_stream`](Cuda::unmanaged_stream) does not declare that captures
    /// are expected. [`Cuda::expect_captures`] still does, whether it is called before or after, by whichever code.
    pub fn promise_no_captures(&self) {
        self.device.captures_nowhere.store(true, core::sync::atomic::Ordering::Relaxed);
    }

    /// Whether a replay on this value fills and checks its blocks: [`Cuda::patterns`].
    pub fn has_patterns(&self) -> bool {
        self.patterns
    }

    /// What was taken through this context and not given back, a line each.
    pub fn outstanding(&self) -> Vec<String> {
        self.device.ranges.list()
    }
}

impl Driver for Cuda {
    fn scrubbing(self) -> Cuda {
        self.scrub(true)
    }

    fn slot(&self) -> &DeviceSlot {
        &self.device.slot
    }

    /// Calls made so far in this context, those never made left out; failed calls count, and so do the queries
    /// which context is current.
    fn calls(&self) -> Vec<(&'static str, u64)> {
        self.device.calls.list()
    }
}

#[cfg(test)]
mod tests;
