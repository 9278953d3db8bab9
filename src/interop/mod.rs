//! cudarc's own types, with arrays of ours in them (feature `cuda`).
//!
//! Four ways:
//!
//! | what | for | order |
//! |---|---|---|
//! | cudarc's traits on [`DeviceArray`](crate::DeviceArray) and its views | safe calls that take any `DevicePtr`: copies, fills, cuBLAS | the named stream waits for what it must, and its use is recorded |
//! | [`ReadOn`](crate::kernel::ReadOn), [`WriteOn`](crate::kernel::WriteOn) | cudarc's `launch_builder` | the same, for one launch on the stream they name |
//! | cudarc's `HostSlice` on [`PinnedArray`](crate::PinnedArray) | copies to and from pinned memory | the call waits; if it skips its wait, the array's next access waits |
//! | [`PooledSlice`] | code that wants a `CudaSlice` | cudarc's own while it lives; its bytes are reused behind everything |
//!
//! ```
//! use cudarc::driver::{DevicePtr, LaunchConfig, PushKernelArg};
//! use millpond::cuda::Cuda;
//! use millpond::{Allocator, Config};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let Ok(cuda) = Cuda::new(0) else { return Ok(()) };
//! let gpu = Allocator::new(cuda, Config::default())?;
//! let (copy, work) = (gpu.stream()?, gpu.stream()?);
//! let mut x = gpu.zeros::<f32>(1024, &copy)?;
//! let theirs = work.cudarc()?;                                  // an Arc<CudaStream>
//! theirs.memcpy_htod(&vec![1.0; 1024], &mut x)?;                // waits for `copy`, on the device
//! # let module = theirs.context().load_module(".version 7.0".into());
//! # let Ok(module) = module else { return Ok(()) };
//! let scale = module.load_function("scale")?;
//! let mut guard = x.write_on(&work)?;
//! // SAFETY: `scale` takes an address and a number, and writes 1024 elements.
//! unsafe { theirs.launch_builder(&scale).arg(&mut guard).arg(&2.0_f32).launch(LaunchConfig::for_num_elems(1024))? };
//! drop(guard);                                                  // `x` was used by `work` until here
//! let back = x.to_pinned(&copy)?.wait()?;
//! # drop(back);
//! # Ok(()) }
//! ```
//!
//! A stream that is passed to cudarc is known here if it is ours ([`Stream::cudarc`]), adopted
//! ([`Allocator::adopt_cudarc`](crate::Allocator::adopt_cudarc)) or a default stream. Nothing about any other stream can be
//! kept after the call: its work counts as the whole context's, and the next access waits for all of that. Adopt
//! the streams that you use often.
//!
//! **What is not covered**, because cudarc does not call us, and what to do instead:
//!
//! * NCCL's groups (`cudarc::nccl::result::group_start`): the work is queued at the group's end, when the borrow of the array
//!   is over. Call [`record_use`](crate::DeviceArray::record_use) for the communicator's stream before
//!   the group begins, which lasts until the array is freed, and do not access the array until the group has ended.
//! * A slice of a pinned array (`&pinned[..]`): cudarc takes it for pageable memory and does not wait. Pass the array.
//! * `memcpy_dtod` between two devices: it reads the source on another stream than the one that it named. Use
//!   [`copy_from_peer`](crate::DeviceArray::copy_from_peer).
//! * A capture that one thread begins on a stream while another thread queues an operation there.
//!
//! This module does not know markers, chunks or the driver's functions.

mod host;
mod launch;
mod pooled;
mod readings;
mod slice;

pub use pooled::{PooledSlice, PooledView, PooledViewMut};

use crate::allocator::{Allocator, Config, Stream};
use crate::cuda::Cuda;
use crate::error::Error;
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;

/// For a program that already has cudarc's context and streams.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use millpond::{Allocator, Config};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = CudaContext::new(0)?;
/// let theirs = context.new_stream()?;
/// let gpu = Allocator::in_cudarc(context, Config::default())?;
/// let stream = gpu.adopt_cudarc(theirs.clone())?;
/// let mut x = gpu.zeros::<f32>(1024, &stream)?;
/// theirs.memcpy_htod(&[1.0; 1024], &mut x)?;
/// # Ok(()) }
/// ```
impl Allocator<Cuda> {
    /// An allocator in a context of cudarc's, which it keeps: [`Cuda::from_context`], then [`Allocator::new`].
    ///
    /// # Errors
    /// Those of the two.
    pub fn in_cudarc(context: Arc<CudaContext>, config: Config) -> Result<Allocator<Cuda>, Error> {
        Allocator::new(Cuda::from_context(context)?, config)
    }
    /// A stream of cudarc's with a pool here, which keeps it: [`Cuda::adopt`], then [`Allocator::adopt`]. A stream that is adopted
    /// twice has one pool.
    ///
    /// # Errors
    /// Those of the two: a stream of another context, one that is capturing.
    #[track_caller]
    pub fn adopt_cudarc(&self, stream: Arc<CudaStream>) -> Result<Stream<Cuda>, Error> {
        self.adopt(self.driver().adopt(stream)?)
    }
}

impl Stream<Cuda> {
    /// cudarc's value of this stream: [`GpuStream::cudarc`](crate::cuda::GpuStream::cudarc). Uses of arrays
    /// on it are uses on this stream. While it captures a graph, operations on arrays, uses and markers are
    /// refused on this stream; allocations still succeed, from the cache without a driver query.
    ///
    /// # Errors
    /// A stream by raw handle, which no reference keeps alive; cudarc finds no driver; the driver's.
    pub fn cudarc(&self) -> Result<Arc<CudaStream>, Error> {
        Ok(self.native().cudarc()?)
    }
}
