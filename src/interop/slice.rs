//! cudarc's open traits on arrays and views: an address for the length of a borrow, and the stream it is for.
//!
//! The traits hand us a stream and take an address; they cannot fail, and the value that marks the end of the use, a
//! `SyncOnDrop`, can record an event of cudarc's or wait for a stream, nothing of ours, and both only if cudarc is so
//! inclined: not while it thinks that one stream is all there is, not after an error of somebody else's was kept. So nothing
//! hangs on it. The use is recorded when the address is given, as lent: it lasts until the array is next borrowed alone and
//! whole, or freed. To forget the value changes nothing.
//!
//! Where the order cannot be made on the device, the host waits for the device, and the use counts as the whole context's.
//! Where even that is refused, or the stream captures, or is of another device, no address is given: null, which copies and
//! fills answer with an error and kernels do not survive. Whatever it was is in
//! [`Report::deferred_errors`](crate::report::Report::deferred_errors).

use crate::allocator::access::Touch;
use crate::allocator::access::lent::{Named, lend, lend_to_anybody};
use crate::array::{DeviceArray, DeviceView, DeviceViewMut, Element};
use crate::driver::cuda::{Cuda, Found};
use crate::driver::{DriverResult, Fences, Memory};
use crate::error::{DriverError, DriverErrorKind, Error};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use std::sync::{Arc, OnceLock};

/// No address: nobody's.
pub(super) const NULL: CUdeviceptr = 0;

/// The address, if work on this stream may use it from here on.
fn lent(touch: Touch<'_, Cuda>, addr: u64, stream: &CudaStream) -> CUdeviceptr {
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
        Found::Default(native) => Named::Held(registry.enter_or_attach(native.info(), native)),
        Found::Known(id) => {
            if let Some(entered) = registry.enter(*id) {
                Named::Held(entered)
            } else {
                passing = cuda.for_now(stream);
                Named::Unknown(&passing)
            }
        }
    };
    match lend(&named, touch) {
        Ok(()) => addr,
        Err(e) => {
            cuda.drop_failed(as_drivers(e));
            wait_instead(cuda, touch, addr)
        }
    }
}

/// The driver refused a wait: the host waits for everything, which orders as well.
#[cold]
fn wait_instead(cuda: &Cuda, touch: Touch<'_, Cuda>, addr: u64) -> CUdeviceptr {
    match cuda.relaxed(|| cuda.synchronize_device()) {
        Ok(()) => {
            lend_to_anybody(touch);
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
        other => DriverError::new("device_ptr", 0, DriverErrorKind::Other, other.to_string()),
    }
}

/// cudarc's value of a stream, as a pool keeps it. It may be the last reference, which makes its context current.
struct Kept {
    stream: Option<Arc<CudaStream>>,
    cuda: Cuda,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.cuda.current_stays(|| drop(self.stream.take()));
    }
}

/// The stream that an allocation was made on, as cudarc has it. Kept with the pool: the trait wants a reference.
fn home_stream(touch: Touch<'_, Cuda>) -> &Arc<CudaStream> {
    let (Some((guest, line)), Some((_, cuda))) = (touch.of.guest(), touch.of.device()) else {
        return nowhere();
    };
    let kept = guest.get_or_init(|| {
        let native = line.native().expect("an allocation's stream is held");
        let alias = native.cudarc().or_else(|_| default_of(cuda));
        let stream = alias.unwrap_or_else(|e| panic!("cudarc has no value of {}: {e}", line.info.id));
        Box::new(Kept { stream: Some(stream), cuda: cuda.clone() })
    });
    let kept = kept.downcast_ref::<Kept>().and_then(|kept| kept.stream.as_ref());
    kept.expect("only streams of cudarc's are kept here, until the end")
}

/// In the place of a stream that nobody keeps alive.
fn default_of(cuda: &Cuda) -> DriverResult<Arc<CudaStream>> {
    cuda.legacy_stream()?.cudarc()
}

/// The stream of no bytes, which are on none.
fn nowhere() -> &'static Arc<CudaStream> {
    static NOWHERE: OnceLock<Arc<CudaStream>> = OnceLock::new();
    NOWHERE.get_or_init(|| CudaContext::new(0).expect("cudarc opens device 0").default_stream())
}

macro_rules! slice {
    ($name:ident $(<$view:lifetime>)?, $this:ident => $touch:expr) => {
        /// `stream` is the one that the array was made on. For an array of a stream that was taken by its raw handle, which
        /// nobody keeps alive, it is the context's legacy default stream instead, and for no bytes device 0's: uses there are
        /// ordered and recorded as on any stream, but what somebody queues there "on the array's stream" comes after
        /// the array's operations only, not after other work on the stream that was meant.
        ///
        /// # Panics
        /// `stream` panics where cudarc finds no driver: it looks under the usual names only.
        impl<T: Element> DeviceSlice<T> for $name<$($view,)? T, Cuda> {
            fn len(&self) -> usize {
                self.len()
            }
            fn stream(&self) -> &Arc<CudaStream> {
                let $this = self;
                home_stream($touch)
            }
        }
        impl<T: Element> DevicePtr<T> for $name<$($view,)? T, Cuda> {
            fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
                let $this = self;
                (lent($touch, self.address().0, stream), SyncOnDrop::Record(None))
            }
        }
    };
}
slice!(DeviceArray, array => array.view().touch());
slice!(DeviceView<'_>, view => view.touch());
slice!(DeviceViewMut<'_>, view => view.view().touch());

impl<T: Element> DevicePtrMut<T> for DeviceArray<T, Cuda> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let addr = self.address().0;
        (lent(self.view_mut().into_touch(), addr, stream), SyncOnDrop::Record(None))
    }
}
impl<T: Element> DevicePtrMut<T> for DeviceViewMut<'_, T, Cuda> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (lent(self.touch(), self.address().0, stream), SyncOnDrop::Record(None))
    }
}
