//! Events and waits: [`Fences`].
//!
//! Events keep no time (`CU_EVENT_DISABLE_TIMING`), which is what makes them cheap. A query that says "not ready" is an
//! answer and no error; every other code is an error and never "complete". The host waits as the driver does, which has no
//! limit, or, where there is one, by querying. This file does not know memory.

use super::Cuda;
use super::context::{Device, Mode};
use super::stream::GpuStream;
use super::table::{Call, Handle, bad_handle, lacking};
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;
use cudarc::driver::sys::{CUevent, CUevent_st};
use millpond_driver::patience::query_until;
use millpond_driver::sync::Arc;
use millpond_driver::{DriverError, DriverErrorKind};
use millpond_driver::{DriverResult, Fences, StreamInfo, StreamOptions};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: u32 = 600;

/// An event, destroyed when dropped. Streams that wait for it already are not disturbed.
pub struct GpuEvent {
    device: Arc<Device>,
    handle: Handle<CUevent_st>,
}

impl GpuEvent {
    /// The native handle. It ends with this value.
    pub fn handle(&self) -> CUevent {
        self.handle.0
    }
}

impl fmt::Debug for GpuEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuEvent({:?})", self.handle)
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Drop for GpuEvent {
    fn drop(&mut self) {
        self.device.quietly(Call::event_destroy, |table| {
            // SAFETY: `create_event` made it, and it is destroyed once.
            unsafe { (table.event_destroy)(self.handle.0) }
        });
    }
}

#[allow(unsafe_code, reason = "the contract is the driver's own promise about events")]
// SAFETY: record, wait and query are the driver's, on streams that the references keep alive (or whose owner promised
// to), with an event that lives; only code 0 of a query is "complete".
unsafe impl Fences for Cuda {
    type Stream = GpuStream;
    type Event = GpuEvent;

    /// As the trait says. Priorities outside the device's range are clamped by the driver.
    fn create_stream(&self, options: StreamOptions) -> DriverResult<GpuStream> {
        self.new_stream(options)
    }

    /// Makes no driver call: identity and context were read when the reference was made.
    ///
    /// # Errors
    /// A reference of another context, to a stream on this device: calls on it would be made in that context.
    fn stream_info(&self, stream: &GpuStream) -> DriverResult<StreamInfo> {
        let info = stream.info();
        // There is one value of a context.
        let elsewhere = info.device == self.device.id && !Arc::ptr_eq(stream.device(), &self.device);
        if elsewhere && !mutant!(CudaOtherContext) {
            return Err(bad_handle(
                Call::stream_get_ctx,
                "the stream's reference is of another context of this device, or of another device's Cuda: make it by a Cuda of the context that the stream is of (Cuda::from_context, Cuda::adopt)",
            ));
        }
        Ok(info)
    }

    #[inline]
    fn is_capturing(&self, stream: &GpuStream) -> DriverResult<bool> {
        let native = stream.here(Call::stream_is_capturing)?;
        // SAFETY: the reference keeps the stream alive, and it is this thread's if it is a per-thread one.
        unsafe { stream.device().captures(native) }
    }

    fn may_capture(&self, stream: &GpuStream) -> bool {
        stream.is_exposed()
    }

    fn is_last_reference(&self, stream: &GpuStream) -> bool {
        stream.is_last_reference()
    }

    fn expects_captures(&self) -> bool {
        self.device.expects_captures.load(Ordering::Relaxed)
    }

    fn create_event(&self) -> DriverResult<GpuEvent> {
        let device = &self.device;
        let bound = device.bind()?;
        let mut event = core::ptr::null_mut();
        // SAFETY: the pointer is a local's.
        let code = unsafe { (device.table().event_create)(&raw mut event, DISABLE_TIMING) };
        device.done(Call::event_create, code)?;
        drop(bound);
        Ok(GpuEvent { device: Arc::clone(device), handle: Handle(event) })
    }

    fn record(&self, event: &GpuEvent, stream: &GpuStream) -> DriverResult<()> {
        let (call, device) = (Call::event_record, &*event.device);
        if !Arc::ptr_eq(&event.device, stream.device()) {
            let (event, stream) = (device.id, stream.device().id);
            let message = format!(
                "the event is of {event}, the stream of {stream} or of another context: record an event of the stream's"
            );
            return Err(bad_handle(call, message));
        }
        let native = if mutant!(CudaRecordElsewhere) { core::ptr::null_mut() } else { stream.here(call)? };
        let bound = device.bind()?;
        // SAFETY: both are alive while their references are.
        let code = unsafe { (device.table().event_record)(event.handle.0, native) };
        device.done(call, code)?;
        drop(bound);
        Ok(())
    }

    /// As the trait describes. Refused while a stream that this context knows captures: the marker would destroy the
    /// capture. A permanent stream that is gone is passed over. Streams that this context does not know cannot be checked, and a capture that begins
    /// after the check is lost: where that may happen, [`Cuda::expect_captures`] keeps allocators from recording such a marker.
    fn record_context(&self, event: &GpuEvent) -> DriverResult<()> {
        let (call, device) = (Call::ctx_record_event, &*self.device);
        if !Arc::ptr_eq(&event.device, &self.device) {
            return Err(bad_handle(
                call,
                "the event is of another device or context: make it from the one it is recorded on",
            ));
        }
        let Some(record) = device.table().ctx_record_event else {
            return Err(lacking(
                call,
                "this driver has no context-wide events (CUDA 12.5 has): synchronise the device instead",
            ));
        };
        for stream in device.known.suspects() {
            let captures = match self.is_capturing(&stream) {
                // One that was to last and is gone captures nothing. Not the context's end (201), whose kind is the same.
                Err(e) if e.kind == DriverErrorKind::InvalidHandle && e.is_of_one_stream() => false,
                done => done?,
            };
            if captures && !mutant!(CudaIgnoresCaptures) {
                let message = format!(
                    "{} is capturing a graph, which a context-wide event would destroy: it was not recorded; try again after the capture",
                    stream.info().id
                );
                return Err(DriverError::new(call.name(), 900, DriverErrorKind::Capturing, message));
            }
            if mutant!(CudaFirstSuspect) {
                break;
            }
        }
        let bound = device.bind()?;
        // SAFETY: the device keeps the context, the reference the event.
        let code = unsafe { record(device.context.0, event.handle.0) };
        device.done(call, code)?;
        drop(bound);
        Ok(())
    }

    fn query(&self, event: &GpuEvent) -> DriverResult<bool> {
        let device = &*event.device;
        let bound = device.bind()?;
        // SAFETY: the reference keeps the event.
        let code = unsafe { (device.table().event_query)(event.handle.0) };
        drop(bound);
        if code == NOT_READY {
            device.calls.count(Call::event_query);
            return Ok(mutant!(CudaPendingDone));
        }
        if code != 0 && mutant!(CudaErrorPending) {
            return Ok(false);
        }
        device.done(Call::event_query, code)?;
        Ok(true)
    }

    /// As the trait says. The event may be another device's.
    fn wait(&self, stream: &GpuStream, event: &GpuEvent) -> DriverResult<()> {
        let (call, device) = (Call::stream_wait_event, &**stream.device());
        let native = stream.here(call)?;
        if mutant!(CudaWaitDropped) {
            return Ok(());
        }
        let bound = device.bind()?;
        // SAFETY: both are alive while their references are; 0 is the only flag wanted.
        let code = unsafe { (device.table().stream_wait_event)(native, event.handle.0, 0) };
        device.done(call, code)?;
        drop(bound);
        Ok(())
    }

    fn synchronize_stream(&self, stream: &GpuStream) -> DriverResult<()> {
        let native = stream.here(Call::stream_synchronize)?;
        // SAFETY: the reference keeps the stream.
        unsafe { stream.device().wait_for_stream(native) }
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        let device = &*self.device;
        let bound = device.bind()?;
        // SAFETY: the context is current.
        let code = unsafe { (device.table().ctx_synchronize)() };
        device.done(Call::ctx_synchronize, code)?;
        drop(bound);
        Ok(())
    }

    /// As the trait describes. Without a limit ([`Duration::MAX`]) the driver waits, in the way that the context was made for: by
    /// default the thread spins, which takes a processor and is the quickest; contexts with blocking synchronisation let
    /// it sleep. With a limit the host queries, less and less often.
    fn wait_event(&self, event: &GpuEvent, limit: Duration) -> DriverResult<bool> {
        if limit < Duration::MAX {
            return query_until(limit, || self.query(event));
        }
        // Most often it is done already: no wait then.
        if self.query(event)? {
            return Ok(true);
        }
        let device = &*event.device;
        let bound = device.bind()?;
        // SAFETY: the reference keeps the event.
        let code = unsafe { (device.table().event_synchronize)(event.handle.0) };
        device.done(Call::event_synchronize, code)?;
        drop(bound);
        Ok(true)
    }

    fn relaxed<R>(&self, batch: impl FnOnce() -> R) -> R {
        let mode = Mode::relaxed(&self.device);
        let result = batch();
        drop(mode);
        result
    }
}
