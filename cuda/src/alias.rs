//! cudarc's own objects for this backend's streams and contexts, and the identity of a stream that cudarc names.
//!
//! cudarc counts streams with `Arc<CudaStream>`. For a stream of this backend such a value is an alias that owns nothing; other code may
//! keep a clone of it for longer than this backend keeps the stream. So a stream with an alias is destroyed when no other clone of
//! the alias is left: it waits in the device's list of the [`Parked`](super::context::Parked), which is swept whenever a stream is made or
//! dropped. A stream whose alias still exists when the device is dropped is left to the context: that leaks a handle, and never makes a call on
//! a handle that is another stream's by then.
//!
//! This file does not know arrays or order.

use super::Cuda;
use super::context::Device;
use super::probe;
use super::stream::{GpuStream, LEGACY, PER_THREAD, Whose, capturing};
use super::table::{Call, Handle, bad_handle, failed, kind_of, lacking};
use cudarc::driver::sys::CUstream_st;
use cudarc::driver::{CudaContext, CudaStream};
use millpond_driver::DriverError;
use millpond_driver::sync::{Arc, Mutex, MutexGuard};
use millpond_driver::units::{GRANULE_BYTES, StreamId};
use millpond_driver::{DriverResult, Fences, Host, HostKind, Memory};

/// The identity of a stream that cudarc names.
#[doc(hidden)]
#[derive(Debug)]
pub enum Found {
    /// A default stream: there is a reference to it at any time.
    Default(GpuStream),
    /// A stream with this identity.
    Known(StreamId),
}

#[allow(unsafe_code, reason = "foreign calls, and promises about streams of other code")]
impl Device {
    /// cudarc's value of this context: the one that it was made from, or a new one. The current context stays current.
    pub(super) fn cudarc(&self) -> DriverResult<Arc<CudaContext>> {
        if let Some(theirs) = self.theirs() {
            return Ok(Arc::clone(theirs));
        }
        let mut alias = self.alias.lock();
        if let Some(alias) = &*alias {
            return Ok(Arc::clone(alias));
        }
        // cudarc panics if it finds no driver, and it looks under the usual names only.
        if probe::open(probe::NAMES).is_err() {
            return Err(lacking(
                Call::primary_retain,
                "cudarc finds no driver: it looks for libcuda under its usual names only, not where MILLPOND_LIBCUDA points",
            ));
        }
        // Also where another context comes of it, which is given back at once.
        let made = self.current_stays(|| match CudaContext::new(self.id.0 as usize) {
            Ok(made) if made.cu_ctx() == self.context.0 => Ok(made),
            Ok(_) => Err(bad_handle(
                Call::primary_retain,
                "cudarc's context of this device is not ours: two drivers, or a primary context that was reset",
            )),
            Err(e) => Err(failed(self.table(), Call::primary_retain, e.0 as u32)),
        })?;
        Ok(Arc::clone(alias.insert(made)))
    }

    /// Destroys a stream of this backend, now or when no clone of its alias is left.
    ///
    /// # Safety
    /// As [`Device::destroy_stream`], and no other code gives the alias out.
    pub(super) unsafe fn destroy_with_alias(
        &self,
        stream: Handle<CUstream_st>,
        alias: Option<Arc<CudaStream>>,
    ) {
        match alias {
            Some(alias) => self.parked.0.lock().push((alias, stream)),
            // SAFETY: passed on from the caller.
            None => unsafe { self.destroy_stream(stream) },
        }
        self.sweep_parked();
    }
}

impl GpuStream {
    /// cudarc's value of this stream, for its safe calls and its launches: for an adopted stream the same `Arc`,
    /// for a stream of this backend an alias that may be kept for any time. Orders nothing.
    ///
    /// cudarc tracks no stream that it has not made itself: its own slices, used on an alias alone, are not tracked by it
    /// (hazard 3 of docs/cudarc.md). This library's arrays are, on any stream.
    ///
    /// With the alias, safe calls can capture a graph on the stream. So from here on every operation of this library on the
    /// stream queries the driver first, and is refused while the stream captures (`Error::Capturing`).
    ///
    /// # Errors
    /// A raw handle's stream, which no reference keeps alive; if cudarc finds no driver; the driver's.
    #[allow(unsafe_code, reason = "promises about streams")]
    pub fn cudarc(&self) -> DriverResult<Arc<CudaStream>> {
        let device = self.device();
        match self.whose() {
            Whose::Adopted(theirs) => Ok(Arc::clone(&theirs.lock())),
            Whose::Legacy => Ok(device.cudarc()?.default_stream()),
            Whose::PerThread(..) => Ok(device.cudarc()?.per_thread_stream()),
            Whose::Ours => {
                // Before any code has it, and so before any capture.
                let handle = self.handle_for_alias();
                let mut alias = self.alias().lock();
                if let Some(alias) = &*alias {
                    return Ok(Arc::clone(alias));
                }
                let context = device.cudarc()?;
                // SAFETY: a live stream of this context, which is destroyed when no clone of the alias is left
                // (`destroy_with_alias`). Its order with other work is made by its users: arrays record their uses.
                let made = unsafe { context.wrap_borrowed_stream(handle) };
                Ok(Arc::clone(alias.insert(made)))
            }
            Whose::Promised | Whose::Unmanaged => Err(bad_handle(
                Call::stream_get_ctx,
                "the stream was adopted by its raw handle, so no reference keeps it alive: only its owner can make cudarc's value of it",
            )),
        }
    }
}

/// The locks for access to the stored error of cudarc's values: the address of a value selects its lock. There are more
/// locks than threads that are likely to meet; two values that share one wait for each other, and nothing else.
static TURNS: [Mutex<()>; 16] = [const { Mutex::new(()) }; 16];

fn turn(context: &CudaContext) -> MutexGuard<'static, ()> {
    // A value is larger than 64 bytes, below which addresses say nothing.
    TURNS[(core::ptr::from_ref(context).addr() >> 6) % TURNS.len()].lock()
}

/// Runs calls of cudarc as if no error were stored in its context, which the first of them would otherwise take and return as
/// its own, and restores the stored error afterwards. Also returns what the calls stored. One thread at a time for each context: a second one would
/// take what is restored for its own. Other code's calls of cudarc can still happen in between: what these store counts as ours, and is
/// returned as ours. The calls must reach nothing that waits for such a turn, and no code of the program.
#[doc(hidden)]
pub fn store_stays<R>(
    context: &CudaContext,
    calls: impl FnOnce() -> R,
) -> (R, Result<(), cudarc::driver::DriverError>) {
    let _turn = (!mutant!(CudaStoreShared)).then(|| turn(context));
    let earlier = context.check_err();
    pause_point!("cudarc's store is looked after");
    let result = calls();
    let stored = context.check_err();
    context.record_err(earlier);
    (result, stored)
}

/// The error that is in store in a context. It stays there.
#[doc(hidden)]
pub fn store_peek(context: &CudaContext) -> Option<cudarc::driver::DriverError> {
    let _turn = turn(context);
    let stored = context.check_err().err()?;
    context.record_err::<()>(Err(stored));
    Some(stored)
}

/// Leaves an error in the store of a context, for the caller of its next call.
#[doc(hidden)]
pub fn store_error(context: &CudaContext, error: Result<(), cudarc::driver::DriverError>) {
    if error.is_err() {
        let _turn = turn(context);
        context.record_err(error);
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Cuda {
    /// cudarc's value of the context's legacy default stream. The driver is not queried about it, so a capture on a blocking stream does not
    /// interfere.
    ///
    /// # Errors
    /// Where cudarc finds no driver.
    #[doc(hidden)]
    pub fn default_of_cudarc(&self) -> DriverResult<Arc<CudaStream>> {
        Ok(self.device.cudarc()?.default_stream())
    }

    /// The identity of this stream, which its reference keeps alive.
    ///
    /// # Errors
    /// It captures; it is of another context; the driver's.
    #[doc(hidden)]
    pub fn find(&self, stream: &CudaStream) -> DriverResult<Found> {
        let (device, handle) = (&self.device, stream.cu_stream());
        if stream.context().cu_ctx() != device.context.0 {
            return Err(bad_handle(
                Call::stream_get_ctx,
                "the stream is of another device or context than the array: give the call a stream of the array's device",
            ));
        }
        match handle.addr() {
            0 | LEGACY => return Ok(Found::Default(self.legacy_stream()?)),
            PER_THREAD => return Ok(Found::Default(self.per_thread_stream()?)),
            _ => {}
        }
        self.refuse_captured(stream)?;
        // SAFETY: alive and not capturing.
        let id = unsafe { device.driver_id(handle)? };
        // Without ids: a stream that is held here has its handle to itself.
        Ok(Found::Known(id.or_else(|| device.known.held(handle)).unwrap_or(StreamId(u64::MAX))))
    }

    /// Fails if this stream captures a graph, which no other call of this library on it would survive. The legacy stream cannot capture.
    #[doc(hidden)]
    pub fn refuse_captured(&self, stream: &CudaStream) -> DriverResult<()> {
        let handle = stream.cu_stream();
        // SAFETY: alive, as its reference is.
        if !matches!(handle.addr(), 0 | LEGACY) && unsafe { self.device.captures(handle)? } {
            return Err(capturing(
                Call::stream_get_id,
                "the stream is capturing a graph, which could be launched after the array's memory has another owner",
            ));
        }
        Ok(())
    }

    /// A stream of cudarc's in this stream's value of the context, which does nothing: while there is one cudarc's tracking is on in
    /// that value. The device's own value keeps one for good. What the program itself switched off is its own to order.
    /// The first one in a value waits for the whole context, as cudarc's own first stream does: else the owner's own first stream would not wait
    /// either, behind slices of theirs that no event was recorded for.
    ///
    /// # Errors
    /// The driver's.
    #[doc(hidden)]
    pub fn anchor(&self, stream: &CudaStream) -> DriverResult<Arc<CudaStream>> {
        let context = self.device.cudarc()?;
        if !Arc::ptr_eq(&context, stream.context()) {
            return self.anchor_in(stream.context());
        }
        if let Some(anchor) = &*self.device.anchor.lock() {
            return Ok(Arc::clone(anchor));
        }
        // Not under the lock, as it may wait for the device. Of two that are made at once the second goes.
        let made = self.anchor_in(&context)?;
        let (kept, spare) = {
            let mut anchor = self.device.anchor.lock();
            match &*anchor {
                Some(there) => (Arc::clone(there), Some(made)),
                None => (Arc::clone(anchor.insert(made)), None),
            }
        };
        self.current_stays(|| drop(spare));
        Ok(kept)
    }

    /// cudarc counts a first stream before it waits, and goes on counting it when the wait fails: the owner's own first stream
    /// would wait for nothing then. So the wait is ours: once before anything is counted, since most reasons to fail
    /// are met there, and once behind the count, as cudarc does it, where a stream that is there can be taken back.
    fn anchor_in(&self, context: &Arc<CudaContext>) -> DriverResult<Arc<CudaStream>> {
        let of_cudarc =
            |e: cudarc::driver::DriverError| failed(self.device.table(), Call::stream_create, e.0 as u32);
        if context.is_in_multi_stream_mode() || !context.is_event_tracking() || mutant!(CudaPhantomStream) {
            let (made, _) = self.current_stays(|| store_stays(context, || context.new_stream()));
            return made.map_err(of_cudarc);
        }
        self.wait_for_all()?;
        let idle = self.device.internal_stream()?;
        // SAFETY: a stream of this backend in this context, which the device keeps; the alias does not leave this function.
        let idle = unsafe { context.wrap_borrowed_stream(idle) };
        // The one call that waits for no more than a stream.
        let (made, _) = self.current_stays(|| store_stays(context, || idle.fork()));
        // Also where there is no stream: cudarc may count it all the same.
        match (made, self.wait_for_all()) {
            (Ok(made), Ok(())) => Ok(made),
            (Ok(made), Err(e)) => {
                let _ = self.current_stays(|| store_stays(context, || drop(made)));
                Err(e)
            }
            (Err(e), waited) => {
                if let Err(second) = waited {
                    self.drop_failed(second);
                }
                Err(of_cudarc(e))
            }
        }
    }

    /// Waits for all that is queued on the device: where captures are expected by unpinning, which ends none.
    fn wait_for_all(&self) -> DriverResult<()> {
        self.relaxed(|| {
            if self.expects_captures() && self.unpin_waits_for_device() {
                self.pin(GRANULE_BYTES, HostKind::Cached)?.release().map_err(|(_page, e)| e)
            } else {
                self.synchronize_device()
            }
        })
    }

    /// Runs calls of cudarc's, which leave their context current, and puts back what was.
    #[doc(hidden)]
    pub fn current_stays<R>(&self, calls: impl FnOnce() -> R) -> R {
        self.device.current_stays(calls)
    }

    /// An error that cudarc met.
    #[doc(hidden)]
    pub fn error_of(call: &'static str, code: u32) -> DriverError {
        DriverError::new(call, code, kind_of(code), "cudarc met an error")
    }

    /// A reference to this stream for as long as it is borrowed, which is longer than the reference is kept.
    #[doc(hidden)]
    pub fn for_now(&self, stream: &CudaStream) -> GpuStream {
        self.passing_reference(stream.cu_stream())
    }
}
