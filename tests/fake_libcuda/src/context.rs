//! Primary contexts, and which one is current on a thread.
//!
//! A device has a primary context, which is alive while it is retained, and those that programs create besides it. Each thread has a stack of
//! contexts. The last one is current, and every call that works on a context needs one: a call on a fresh thread fails, even where the
//! real driver could infer the context from a stream, so that a program that forgets to bind one fails. This file does
//! not know what is done in a context.

use crate::device::number;
use crate::entry::{Fail, INVALID_CONTEXT, INVALID_DEVICE};
use crate::pool;
use crate::raw::Out;
use crate::spin;
use crate::state::{Pushed, context_of, contexts, here, state};
use millpond::driver::Fences;
use std::ffi::{c_int, c_uint};

driver_calls! {
    /// Retains a device's primary context and returns its handle; it does not become current.
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, ordinal: c_int) {
        let index = usize::try_from(ordinal).unwrap_or(usize::MAX);
        let mut state = state();
        let Some(count) = state.retained.get_mut(index) else {
            return Err(Fail::new(INVALID_DEVICE, format!("there is no device {ordinal}")));
        };
        context.put(context_of(index))?;
        *count += 1;
        Ok(())
    }
    /// Releases a device's primary context once. What programs have left in it stays in the list of leaks.
    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) {
        let mut state = state();
        let count = usize::try_from(ordinal).ok().and_then(|d| state.retained.get_mut(d));
        match count {
            None => Err(Fail::new(INVALID_DEVICE, format!("there is no device {ordinal}"))),
            Some(0) => Err(Fail::new(INVALID_CONTEXT, "the primary context is not retained")),
            Some(n) => {
                *n -= 1;
                Ok(())
            }
        }
    }
    /// Whether a device's primary context is alive, and its flags.
    fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let count = usize::try_from(ordinal).ok().and_then(|d| state().retained.get(d).copied());
        let count = count.ok_or_else(|| Fail::new(INVALID_DEVICE, format!("there is no device {ordinal}")))?;
        flags.put(0)?;
        active.put(c_int::from(count > 0))
    }
    /// Creates a context besides the primary one, current until it is popped. It shares the device with the others: memory and work belong to
    /// the device here, and only a stream knows its context.
    fn cuCtxCreate_v4(context: Out<u64>, parameters: u64, flags: c_uint, ordinal: c_int) {
        let _ = (parameters, flags);
        let mut state = state();
        let Some(device) = usize::try_from(ordinal).ok().filter(|&d| d < state.sims.len()) else {
            return Err(Fail::new(INVALID_DEVICE, format!("there is no device {ordinal}")));
        };
        let made = state.made_contexts.insert(device);
        drop(state);
        contexts(|c| c.push(made));
        context.put(made)
    }
    /// Destroys a context that [`cuCtxCreate_v4`] created. It is no longer current on this thread.
    fn cuCtxDestroy_v2(context: u64) {
        state().made_contexts.remove(context)?;
        contexts(|c| {
            if c.current() == Some(context) {
                c.pop();
            }
        });
        Ok(())
    }
    /// The context that is current on this thread, or null.
    fn cuCtxGetCurrent(context: Out<u64>) {
        context.put(contexts(|c| c.current()).unwrap_or(0))
    }
    /// Replaces the current context; null leaves none.
    fn cuCtxSetCurrent(context: u64) {
        if context != 0 {
            state().device_of(context)?;
        }
        contexts(|c| {
            c.pop();
            if context != 0 {
                c.push(context);
            }
        });
        Ok(())
    }
    /// Makes a context current until it is popped.
    fn cuCtxPushCurrent_v2(context: u64) {
        state().device_of(context)?;
        contexts(|c| c.push(context));
        Ok(())
    }
    /// Pops the current context and returns it.
    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        let popped = contexts(Pushed::pop).ok_or_else(|| Fail::new(INVALID_CONTEXT, "no context is current on this thread"))?;
        context.put_if_wanted(popped);
        Ok(())
    }
    /// The device of the current context.
    fn cuCtxGetDevice(device: Out<c_int>) {
        device.put(number(here()?.1))
    }
    /// The current context's flags, of which none is set.
    fn cuCtxGetFlags(flags: Out<c_uint>) {
        here()?;
        flags.put(0)
    }
    /// Accepts flags without effect: how the host waits is not modelled.
    fn cuCtxSetFlags(flags: c_uint) {
        let _ = flags;
        here().map(|_| ())
    }
    /// A limit of the context: always 0, because nothing is limited here.
    fn cuCtxGetLimit(value: Out<usize>, limit: c_uint) {
        let _ = limit;
        here()?;
        value.put(0)
    }
    /// The range of stream priorities; lower numbers run first.
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        here()?;
        least.put_if_wanted(0);
        greatest.put_if_wanted(-5);
        Ok(())
    }
    /// The id of a context, the same for its whole life.
    fn cuCtxGetId(context: u64, id: Out<u64>) {
        let device = if context == 0 { here()?.1 } else { state().device_of(context)? };
        id.put(device as u64 + 1)
    }
    /// Blocks until all work of the device is complete, and gives back idle memory of its pools as the driver does.
    fn cuCtxSynchronize() {
        let (sim, device) = here()?;
        spin::blocking(|| sim.synchronize_device())?;
        pool::trim_at_rest(&sim, device);
        Ok(())
    }
}
