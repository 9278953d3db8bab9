//! Gates: a kernel that holds a stream until the host says so, to make work provably pending.
//!
//! A gate's cell is two words of pinned memory that the host and the kernel share (kernels/spin.cu). Every gate has a
//! limit in time, so that no mistake hangs the device. Cells are pooled, because unpinning waits for every kernel. This
//! file does not know what waits behind a gate.

use super::Cuda;
use super::context::Device;
use super::kept::{Cell, Cells, OPENED, TIMED_OUT, WAITING};
use super::stream::GpuStream;
use super::table::{Call, bad_handle};
use core::ffi::c_void;
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;
use millpond_driver::sync::Arc;
use millpond_driver::{DriverResult, Host, HostKind};

/// Bytes of a page of cells.
const PAGE: u64 = 4096;
/// Bytes between cells: a cache line, so that two gates do not disturb each other's polling.
const STRIDE: usize = 64;

#[allow(unsafe_code, reason = "pinned pages cut into cells")]
impl Cells {
    fn take(&mut self, cuda: &Cuda) -> DriverResult<Cell> {
        let (over, running): (Vec<Cell>, Vec<Cell>) =
            self.retired.drain(..).partition(|cell: &Cell| cell.is_over());
        self.free.extend(over);
        self.retired = running;
        if self.free.is_empty() {
            let page = cuda.pin_raw(PAGE, HostKind::Cached)?;
            cuda.device.ranges.remove(page.addr().get() as u64, PAGE, |_| true);
            self.pages.push(page);
            for offset in (0..PAGE as usize).step_by(STRIDE) {
                // SAFETY: inside the page just pinned.
                let at = unsafe { page.add(offset) };
                self.free.push(Cell(at.cast()));
            }
        }
        let cell = self.free.pop().expect("a page has cells");
        cell.flag().store(0, Ordering::Relaxed);
        cell.state().store(WAITING, Ordering::Release);
        Ok(cell)
    }

    /// Unpins the pages, which waits for every kernel on the device. For the device's own end.
    pub(super) fn unpin(&mut self, device: &Device) {
        self.free.clear();
        self.retired.clear();
        for page in self.pages.drain(..) {
            device.quietly(Call::mem_free_host, |table| {
                // SAFETY: pinned by `take`; no gate is left, because gates hold the device.
                unsafe { (table.mem_free_host)(page.as_ptr().cast()) }
            });
        }
    }
}

/// A closed gate on a stream: what was queued behind it does not run until [`GpuGate::open`], or until its limit is over.
/// Dropping it opens it.
#[must_use = "a gate opens when it is dropped"]
pub struct GpuGate {
    device: Arc<Device>,
    cell: Cell,
}

impl fmt::Debug for GpuGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.cell.state().load(Ordering::Acquire) {
            WAITING => "not reached",
            OPENED => "opened",
            TIMED_OUT => "timed out",
            _ => "holding",
        };
        write!(f, "GpuGate({words})")
    }
}

impl GpuGate {
    /// Lets the stream go on. The host does not wait.
    pub fn open(&self) {
        self.cell.flag().store(1, Ordering::Release);
    }
    /// Whether the stream has reached the gate (and may have passed it).
    pub fn is_reached(&self) -> bool {
        self.cell.state().load(Ordering::Acquire) != WAITING
    }
    /// Whether the gate ended by its limit instead of being opened: what was to be pending behind it was not.
    pub fn timed_out(&self) -> bool {
        self.cell.state().load(Ordering::Acquire) == TIMED_OUT
    }
}

impl Drop for GpuGate {
    fn drop(&mut self) {
        self.open();
        if let Some(kernels) = &*self.device.kernels.lock() {
            // The kernel may not have begun yet; the cell is taken again only when it is over.
            kernels.cells.lock().retired.push(self.cell);
        }
    }
}

impl Cuda {
    /// Closes a gate on a stream, for at most `limit`.
    ///
    /// # Errors
    /// A stream of another device; the driver's. Nothing was then queued.
    #[allow(unsafe_code, reason = "foreign calls")]
    pub fn gate(&self, stream: &GpuStream, limit: Duration) -> DriverResult<GpuGate> {
        let call = Call::launch_kernel;
        if !Arc::ptr_eq(stream.device(), &self.device) {
            return Err(bad_handle(call, "the stream is of another device or context than this one"));
        }
        let native = stream.here(call)?;
        let kernels = self.kernels()?;
        let cell = kernels.cells.lock().take(self)?;
        let mut at = cell.0.as_ptr().expose_provenance() as u64;
        let mut limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let parameters = &mut [(&raw mut at).cast::<c_void>(), (&raw mut limit_ns).cast()];
        // SAFETY: two 8-byte values, as kernels/spin.cu declares; the cell lives as long as the device.
        let launched = unsafe { kernels.spin.launch(&self.device, native, (1, 1), parameters) };
        if let Err(e) = launched {
            kernels.cells.lock().free.push(cell);
            return Err(e);
        }
        Ok(GpuGate { device: Arc::clone(&self.device), cell })
    }
}
