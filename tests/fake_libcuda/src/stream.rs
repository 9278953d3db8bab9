//! Streams.
//!
//! A created stream's handle is the simulated device's native handle, which is reused after a destroy, pending work or
//! not; its id never is. 0 and 1 are the legacy default stream, 2 the calling thread's own. This file does not know what
//! is queued on streams.

use crate::entry::{self, Fail, INVALID_HANDLE, NOT_READY, Outcome};
use crate::event;
use crate::raw::Out;
use crate::spin;
use crate::state::{Stream, contexts, here, state, stream};
use millpond::driver::{Fences, StreamKind, StreamOptions};
use std::ffi::{c_int, c_uint, c_void};

fn create(flags: c_uint, priority: c_int) -> Outcome<u64> {
    if flags > 1 {
        return Err(Fail::invalid(format!(
            "stream flags {flags:#x}: 1 is non-blocking, nothing else is known"
        )));
    }
    let (sim, _) = here()?;
    let made = sim.create_stream(StreamOptions::default().blocking(flags == 0).priority(priority))?;
    let value = made.handle();
    let context = current();
    state().streams.insert(value, Stream { sim: made, context, flags, priority: priority.clamp(-5, 0) });
    Ok(value)
}

/// The context that is current; the caller has checked that there is one.
fn current() -> u64 {
    contexts(|c| c.current()).unwrap_or(0)
}

/// A host function of C and its argument.
#[derive(Clone, Copy)]
struct Callback {
    function: extern "C" fn(*mut c_void),
    argument: *mut c_void,
}
#[allow(unsafe_code, reason = "what a program passes to a host function may go to any thread")]
// SAFETY: the driver's contract: a host function runs on a thread of the driver's choice, its argument with it.
unsafe impl Send for Callback {}

impl Callback {
    fn call(self) {
        entry::host_function(|| (self.function)(self.argument));
    }
}

driver_calls! {
    /// Creates a stream; flag 1 makes it non-blocking.
    fn cuStreamCreate(value: Out<u64>, flags: c_uint) {
        value.put(create(flags, 0)?)
    }
    /// Creates a stream with a priority, which is clamped to the supported range.
    fn cuStreamCreateWithPriority(value: Out<u64>, flags: c_uint, priority: c_int) {
        value.put(create(flags, priority)?)
    }
    /// Destroys a stream at once; its pending work still runs.
    fn cuStreamDestroy_v2(value: u64) {
        here()?;
        let gone = state().streams.remove(&value);
        let Some(gone) = gone else {
            return Err(Fail::new(INVALID_HANDLE, format!("no stream that can be destroyed has the value {value:#x} now")));
        };
        // Other calls may still hold a reference, so it is destroyed explicitly.
        let owner = here()?.0;
        Ok(owner.destroy_stream(&gone.sim)?)
    }
    /// Whether all work of a stream is complete. After enough queries the device completes it.
    fn cuStreamQuery(value: u64) {
        let (sim, device, on) = stream(value)?;
        if sim.is_capturing(&on)? {
            // A query of a capturing stream fails and destroys the capture, as in the real driver.
            sim.synchronize_stream(&on)?;
        }
        let probe = sim.create_event()?;
        sim.record(&probe, &on)?;
        let ready = event::query_stream(&sim, device, value, &probe)?;
        if ready { Ok(()) } else { Err(Fail::new(NOT_READY, "work is pending")) }
    }
    /// Blocks until all work of a stream is complete.
    fn cuStreamSynchronize(value: u64) {
        let (sim, _, on) = stream(value)?;
        spin::blocking(|| sim.synchronize_stream(&on))
    }
    /// Makes later work of a stream wait for an event.
    fn cuStreamWaitEvent(value: u64, event: u64, flags: c_uint) {
        if flags > 1 {
            return Err(Fail::invalid(format!("wait flags {flags:#x} are not known")));
        }
        let (sim, _, on) = stream(value)?;
        let event = state().events.get(event)?.sim.clone();
        Ok(sim.wait(&on, &event)?)
    }
    /// A stream's id, which is never reused. On a capturing stream this fails and destroys the capture.
    fn cuStreamGetId(value: u64, id: Out<u64>) {
        let (sim, _, on) = stream(value)?;
        id.put(sim.stream_info(&on)?.id.0)
    }
    /// A stream's flags: 1 for a non-blocking one. On a capturing stream this fails and destroys the capture.
    fn cuStreamGetFlags(value: u64, flags: Out<c_uint>) {
        let (sim, _, on) = stream(value)?;
        let kind = sim.stream_info(&on)?.kind;
        let made = state().streams.get(&value).map(|s| s.flags);
        flags.put(made.unwrap_or(c_uint::from(kind == StreamKind::NonBlocking)))
    }
    /// A stream's priority.
    fn cuStreamGetPriority(value: u64, priority: Out<c_int>) {
        stream(value)?;
        priority.put(state().streams.get(&value).map_or(0, |s| s.priority))
    }
    /// The context of a stream; for a default stream the current one. On a capturing stream this fails and destroys the capture.
    fn cuStreamGetCtx(value: u64, context: Out<u64>) {
        let (sim, _, on) = stream(value)?;
        sim.stream_info(&on)?;
        let made = state().streams.get(&value).map(|s| s.context);
        context.put(made.unwrap_or_else(current))
    }
    /// The device of a stream. On a capturing stream this fails and destroys the capture.
    fn cuStreamGetDevice(value: u64, device: Out<c_int>) {
        let (sim, _, on) = stream(value)?;
        device.put(sim.stream_info(&on)?.device.0.cast_signed())
    }
    /// Runs a host function in stream order. It must not call the driver: driver functions return `CUDA_ERROR_NOT_PERMITTED` there.
    fn cuLaunchHostFunc(value: u64, function: Option<extern "C" fn(*mut c_void)>, argument: *mut c_void) {
        let (sim, _, on) = stream(value)?;
        let function = function.ok_or_else(|| Fail::invalid("the host function is null"))?;
        let callback = Callback { function, argument };
        Ok(sim.host_function(&on, move || callback.call())?)
    }
}
