//! Events.
//!
//! A query does not make the device run, but a device runs by itself: after [`State::patience`] results "not ready" in a
//! row, the queried work is complete, so that a program that polls makes progress. This file does not know time: elapsed
//! times are 0.
//!
//! [`State::patience`]: crate::state::State

use crate::entry::{Fail, INVALID_HANDLE, NOT_READY, Outcome, UNKNOWN};
use crate::raw::Out;
use crate::spin;
use crate::state::{Event, here, state, stream};
use millpond::driver::Fences;
use millpond_sim::{Sim, SimEvent};
use std::ffi::c_uint;
use std::sync::Arc;
use std::time::Duration;

/// Whether a "not ready" was planted for this query.
fn planted() -> bool {
    let left = &mut state().faults.not_ready;
    let yes = *left > 0;
    *left -= u32::from(yes);
    yes
}

fn query(value: u64) -> Outcome<bool> {
    here()?;
    let event = state().events.get(value)?.clone();
    let owner = state().sims[event.device].clone();
    if planted() {
        return Ok(false);
    }
    let mut ready = owner.query(&event.sim)?;
    if !ready && event.refused + 1 >= state().patience {
        ready = owner.wait_event(&event.sim, Duration::MAX)?;
    }
    if let Ok(e) = state().events.get_mut(value) {
        e.refused = if ready { 0 } else { e.refused + 1 };
    }
    Ok(ready)
}

/// A query of all work of a stream, by an event of ours that was recorded there.
pub(crate) fn query_stream(sim: &Sim, device: usize, value: u64, probe: &SimEvent) -> Outcome<bool> {
    if planted() {
        return Ok(false);
    }
    let key = (device, value);
    let mut ready = sim.query(probe)?;
    let refused = state().stream_refused.get(&key).copied().unwrap_or(0);
    if !ready && refused + 1 >= state().patience {
        ready = sim.wait_event(probe, Duration::MAX)?;
    }
    let mut state = state();
    if ready {
        state.stream_refused.remove(&key);
    } else {
        state.stream_refused.insert(key, refused + 1);
    }
    Ok(ready)
}

fn create() -> Outcome<u64> {
    let (sim, device) = here()?;
    let made = Arc::new(sim.create_event()?);
    Ok(state().events.insert(Event { sim: made, device, refused: 0 }))
}

fn record(value: u64, on: u64) -> Outcome {
    let (sim, _, on) = stream(on)?;
    let event = state().events.get(value)?.sim.clone();
    sim.record(&event, &on)?;
    if let Ok(e) = state().events.get_mut(value) {
        e.refused = 0;
    }
    Ok(())
}

driver_calls! {
    /// Creates an event.
    fn cuEventCreate(event: Out<u64>, flags: c_uint) {
        if flags & !7 != 0 {
            return Err(Fail::invalid(format!("event flags {flags:#x} are not known")));
        }
        event.put(create()?)
    }
    /// Destroys an event; streams that wait for it still wait.
    fn cuEventDestroy_v2(event: u64) {
        here()?;
        let gone = state().events.remove(event)?;
        drop(gone);
        Ok(())
    }
    /// Records an event after the work that is on a stream so far.
    fn cuEventRecord(event: u64, on: u64) {
        record(event, on)
    }
    /// As `cuEventRecord`; the flags change nothing here.
    fn cuEventRecordWithFlags(event: u64, on: u64, flags: c_uint) {
        if flags > 1 {
            return Err(Fail::invalid(format!("record flags {flags:#x} are not known")));
        }
        record(event, on)
    }
    /// Records an event after the work that is on all streams of a context so far, destroyed ones included.
    fn cuCtxRecordEvent(context: u64, event: u64) {
        let sim = {
            let state = state();
            let device = state.device_of(context)?;
            let of = state.events.get(event)?.device;
            if of != device {
                return Err(Fail::new(INVALID_HANDLE, "the event is of another context"));
            }
            state.sims[device].clone()
        };
        let native = state().events.get(event)?.sim.clone();
        Ok(sim.record_context(&native)?)
    }
    /// Makes all streams of a context wait for an event: not modelled.
    fn cuCtxWaitEvent(context: u64, event: u64) {
        let _ = (context, event);
        Err(Fail::unsupported("a wait of a whole context is not modelled"))
    }
    /// Whether the work before an event is complete. After enough queries the device completes it.
    fn cuEventQuery(event: u64) {
        if query(event)? { Ok(()) } else { Err(Fail::new(NOT_READY, "work is pending")) }
    }
    /// Blocks until the work before an event is complete.
    fn cuEventSynchronize(event: u64) {
        here()?;
        let event = state().events.get(event)?.clone();
        let owner = state().sims[event.device].clone();
        if spin::blocking_until(|| owner.wait_event(&event.sim, Duration::MAX))? {
            return Ok(());
        }
        Err(Fail::new(UNKNOWN, "would wait for ever: nothing can make the event complete"))
    }
    /// The time between two events: 0 once both are complete.
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        if query(start)? && query(end)? { milliseconds.put(0.0) } else { Err(Fail::new(NOT_READY, "work is pending")) }
    }
    /// As `cuEventElapsedTime`.
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        if query(start)? && query(end)? { milliseconds.put(0.0) } else { Err(Fail::new(NOT_READY, "work is pending")) }
    }
}
