//! cudarc's `HostSlice` on pinned arrays: copies to and from them by cudarc's safe calls.
//!
//! The trait gives us a stream, and takes the elements and a `SyncOnDrop` that waits for that stream when the call returns.
//! cudarc skips that wait while its context stores an error, so nothing depends on it: the array records that it was
//! borrowed on that stream, and its next access waits if it must (`PinnedAllocation::wait_for_writes`). Forgetting the value changes
//! nothing.
//!
//! A stream that no reference keeps alive may be gone by then: its use counts as the whole context's, and the context is not waited for where captures are expected.

use crate::allocator::PinnedAllocation;
use crate::array::PinnedArray;
use crate::cuda::{Cuda, Found};
use crate::driver::Memory;
use crate::error::DriverErrorKind;
use crate::laws;
use bytemuck::Pod;
use cudarc::driver::{CudaStream, HostSlice, SyncOnDrop};

/// Copies between a pinned array and the device by cudarc's safe calls (`memcpy_htod`, `memcpy_dtoh`, `clone_htod`), on any
/// stream of the array's device. **They block the host** until the copy is done, as with cudarc's own pinned memory;
/// where cudarc skips its wait, because its context stores an error, the array's next access blocks instead.
/// If the array is dropped, its memory is reused behind the copy.
///
/// Where captures are expected (`Cuda::expect_captures`), and no allocator holds the stream, no wait is possible that would spare
/// a capture by other code: the next access panics, or [`PinnedArray::host_ready`] returns an error; after an
/// [`Allocator::synchronize`](crate::Allocator::synchronize) that follows, access succeeds. Adopt such streams.
///
/// Pass the array itself, `&pinned` or `&mut pinned`. A plain slice of it, `&pinned[..]`, is pageable memory to cudarc, which
/// then queues the copy and waits for nothing: see [`PinnedArray`].
///
/// # Panics
/// The calls panic before anything is queued if the stream captures a graph, which could be launched when the memory belongs to another
/// owner, and if it is of another device or context than the array's allocator: the trait cannot return an error.
impl<T: Pod> HostSlice<T> for PinnedArray<T, Cuda> {
    fn len(&self) -> usize {
        self.shape().elements().unwrap_or(0)
    }
    #[allow(unsafe_code, reason = "cudarc's trait is unsafe to use")]
    unsafe fn stream_synced_slice<'a>(&'a self, stream: &'a CudaStream) -> (&'a [T], SyncOnDrop<'a>) {
        let elements: &[T] = self;
        borrow(self.memory(), stream, false);
        (elements, SyncOnDrop::Sync(Some(stream)))
    }
    #[allow(unsafe_code, reason = "cudarc's trait is unsafe to use")]
    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        // Earlier copies first: another stream's would conflict with this one.
        let _: &mut [T] = self;
        borrow(self.memory(), stream, true);
        (self.elements_mut(), SyncOnDrop::Sync(Some(stream)))
    }
}

/// Borrows the memory on this stream's timeline, or on the whole context's, to read or to write.
fn borrow(memory: &PinnedAllocation<Cuda>, stream: &CudaStream, to_write: bool) {
    let Some((registry, cuda)) = memory.device() else { return };
    let found = cuda.find(stream);
    let read_only = laws::copy_only_reads(matches!(found, Ok(Found::Default(_))));
    let entered = match found {
        Ok(Found::Default(native)) => Some(registry.enter_or_attach(cuda, native.info(), &native)),
        Ok(Found::Known(id)) => registry.enter(id),
        Err(e) if matches!(e.kind, DriverErrorKind::Capturing | DriverErrorKind::InvalidHandle) => {
            panic!("a pinned array cannot be borrowed by this stream: {e}")
        }
        // The stream's id cannot be queried.
        Err(e) => {
            cuda.drop_failed(e);
            None
        }
    };
    memory.borrow(entered.as_ref(), to_write && !read_only);
}
