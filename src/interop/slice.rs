//! cudarc's open traits on arrays and views: an address for the length of a borrow, and the stream it is for.
//!
//! The traits give us a stream and take an address; they cannot fail. The value that marks the end of the use, a
//! `SyncOnDrop`, can record an event of cudarc's or wait for a stream, nothing of ours, and cudarc skips both
//! while it counts only one stream, or after it stored an error of other code. So nothing
//! depends on it. The use is recorded when the address is given, as borrowed: it lasts until the next exclusive borrow of the whole
//! array, or the free. Forgetting the value changes nothing.
//!
//! If the order cannot be made on the device, the host waits for the device, and the use counts as the whole context's.
//! If even that is refused, or would destroy the capture that is in the way, or captures are expected (`Cuda::expect_captures`), or the stream
//! captures, or is of another device, the address is null: copies and
//! fills return an error for it and kernels crash. The reason is in
//! [`Report::deferred_errors`](crate::report::Report::deferred_errors).

use crate::allocator::access::borrowed::{Named, borrow, borrow_on_unknown_stream};
use crate::allocator::access::{Extension, Touch};
use crate::array::{DeviceArray, DeviceView, DeviceViewMut};
use crate::cuda::{Cuda, Found, current_stays, store_stays};
use crate::driver::{DriverResult, Fences, Memory};
use crate::error::{DriverError, DriverErrorKind, Error};
use crate::laws;
use bytemuck::Pod;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use std::sync::{Arc, OnceLock};

/// No address.
pub(super) const NULL: CUdeviceptr = 0;

/// The address, if work on this stream may use it from here on.
fn borrowed(touch: Touch<'_, Cuda>, addr: u64, stream: &CudaStream) -> CUdeviceptr {
    let Some((registry, cuda)) = touch.of.device() else { return NULL };
    let found = match cuda.find(stream) {
        Ok(found) => found,
        Err(e) => {
            cuda.drop_failed(e);
            return NULL;
        }
    };
    let passing;
    let named = match &found {
        Found::Default(native) => Named::Held(registry.enter_or_attach(cuda, native.info(), native)),
        Found::Known(id) => {
            if let Some(entered) = registry.enter(*id) {
                Named::Held(entered)
            } else {
                passing = cuda.for_now(stream);
                Named::Unknown(&passing)
            }
        }
    };
    match borrow(&named, touch) {
        Ok(()) => addr,
        Err(e) => {
            let e = as_drivers(e);
            // A wait for everything would destroy the capture that is in the way, or one that other code may have begun.
            let may_wait =
                laws::may_wait_instead(e.kind == DriverErrorKind::Capturing, cuda.expects_captures());
            cuda.drop_failed(e);
            if may_wait { waited(registry.synchronize_instead(cuda), cuda, touch, addr) } else { NULL }
        }
    }
}

/// The driver refused a wait: the host has waited for everything, which orders as well.
#[cold]
fn waited(waited: DriverResult<()>, cuda: &Cuda, touch: Touch<'_, Cuda>, addr: u64) -> CUdeviceptr {
    match waited {
        Ok(()) => {
            borrow_on_unknown_stream(touch);
            addr
        }
        Err(e) => {
            cuda.drop_failed(e);
            NULL
        }
    }
}

fn as_drivers(error: Error) -> DriverError {
    match error {
        Error::Driver(e) => e,
        other => {
            let captures = matches!(other, Error::Capturing { .. });
            let kind = if captures { DriverErrorKind::Capturing } else { DriverErrorKind::Other };
            DriverError::new("device_ptr", 0, kind, other.to_string())
        }
    }
}

/// cudarc's value of a stream, as a pool keeps it, and the anchor of its slices ([`Cuda::anchor`]). They may be the last references, whose drop
/// makes their context current. What holds the pool's stream holds its value of the context too, so this keeps nothing alive longer.
struct Kept {
    stream: Option<Arc<CudaStream>>,
    anchor: OnceLock<Arc<CudaStream>>,
    cuda: Cuda,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let theirs = (self.anchor.take(), self.stream.take());
        let Some(context) = theirs.1.as_ref().map(|stream| Arc::clone(stream.context())) else { return };
        let failed = self.cuda.current_stays(|| {
            let ((), failed) = store_stays(&context, || drop(theirs));
            drop(context);
            failed
        });
        if let Err(e) = failed {
            self.cuda.drop_failed(Cuda::error_of("cuda_slice", e.0 as u32));
        }
    }
}

/// The stream that an allocation was made on, as cudarc's type. Kept with the pool: the trait returns a reference.
fn home_stream(touch: Touch<'_, Cuda>) -> &Arc<CudaStream> {
    let (Some((extension, timeline)), Some((_, cuda))) = (touch.of.extension(), touch.of.device()) else {
        return nowhere();
    };
    let kept = kept(extension, || {
        let native = timeline.native().expect("an allocation's stream is held");
        let alias = native.cudarc().or_else(|_| cuda.default_of_cudarc());
        let stream = alias.unwrap_or_else(|e| panic!("cudarc has no value of {}: {e}", timeline.info));
        (stream, cuda)
    });
    kept.stream.as_ref().expect("it is there until the end")
}

fn kept<'a>(extension: &'a Extension, make: impl FnOnce() -> (Arc<CudaStream>, &'a Cuda)) -> &'a Kept {
    let kept = extension.get_or_init(|| {
        let (stream, cuda) = make();
        Box::new(Kept { stream: Some(stream), anchor: OnceLock::new(), cuda: cuda.clone() })
    });
    kept.downcast_ref::<Kept>().expect("only streams of cudarc's are kept here")
}

/// The anchor of slices on `home`, which is the stream of this memory: made once, and kept with the pool.
///
/// # Errors
/// As [`Cuda::anchor`].
pub(super) fn anchor_of(
    touch: Touch<'_, Cuda>,
    home: &Arc<CudaStream>,
    cuda: &Cuda,
) -> DriverResult<Arc<CudaStream>> {
    let extension = laws::keeps_anchor(touch.of.extension());
    let kept = extension.map(|(extension, _)| kept(extension, || (Arc::clone(home), cuda)));
    // A value of the context that is gone and was made again has another one.
    let Some(kept) =
        kept.filter(|k| k.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s.context(), home.context())))
    else {
        return cuda.anchor(home);
    };
    if let Some(anchor) = kept.anchor.get() {
        return Ok(Arc::clone(anchor));
    }
    // Not under a lock, as it may wait for the device. If two are made at once, the second lasts as long as its slice.
    let made = cuda.anchor(home)?;
    let _ = kept.anchor.set(Arc::clone(&made));
    Ok(made)
}

/// The stream for empty arrays, which are on no stream.
fn nowhere() -> &'static Arc<CudaStream> {
    static NOWHERE: OnceLock<Arc<CudaStream>> = OnceLock::new();
    let opened = || CudaContext::new(0).expect("cudarc opens device 0").default_stream();
    NOWHERE.get_or_init(|| current_stays(opened))
}

macro_rules! slice {
    ($name:ident $(<$view:lifetime>)?, $this:ident => $touch:expr) => {
        /// `stream` is the one that the array was made on. For an array of a stream that was adopted by its raw handle, which
        /// no reference keeps alive, it is the context's legacy default stream instead, and for an empty array device 0's: uses there are
        /// ordered and recorded as on any stream, but work that other code queues there "on the array's stream" comes after
        /// the array's operations only, not after other work on the original stream.
        ///
        /// # Panics
        /// `stream` panics if cudarc finds no driver: it looks under the usual names only.
        impl<T: Pod> DeviceSlice<T> for $name<$($view,)? T, Cuda> {
            fn len(&self) -> usize {
                self.len()
            }
            fn stream(&self) -> &Arc<CudaStream> {
                let $this = self;
                home_stream($touch)
            }
        }
        impl<T: Pod> DevicePtr<T> for $name<$($view,)? T, Cuda> {
            fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
                let $this = self;
                (borrowed($touch, self.address().0, stream), SyncOnDrop::Record(None))
            }
        }
    };
}
slice!(DeviceArray, array => array.view().touch());
slice!(DeviceView<'_>, view => view.touch());
slice!(DeviceViewMut<'_>, view => view.view().touch());

impl<T: Pod> DevicePtrMut<T> for DeviceArray<T, Cuda> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let addr = self.address().0;
        (borrowed(self.view_mut().into_touch(), addr, stream), SyncOnDrop::Record(None))
    }
}
impl<T: Pod> DevicePtrMut<T> for DeviceViewMut<'_, T, Cuda> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (borrowed(self.touch(), self.address().0, stream), SyncOnDrop::Record(None))
    }
}
