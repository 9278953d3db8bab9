//! Events and the host's waits: the [`Fences`] of the simulated device.
//!
//! An event holds the positions it captured and when they end. A wait copies them at the call, so that a later record
//! changes nothing (E2) and a record forgets what the event captured before (E8); an event never recorded is the empty
//! set. Host waits never sleep: they run the executor until the goal is reached, or report what prevents it. This
//! file does not know memory.

use super::Sim;
use super::call::Call;
use super::exec::{self, Action};
use super::late::End;
use super::operation::{EventState, Points};
use super::oracle::EventKey;
use super::recording::Relaxed;
use super::stream::{Booking, SimStream, Which};
use super::world::{Shared, World, bad_handle};
use millpond_driver::sync::Arc;
use millpond_driver::{DriverError, DriverErrorKind};
use millpond_driver::{DriverResult, Fences, StreamInfo, StreamOptions};
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

/// An event of the simulated device, destroyed when dropped. Streams that already wait for it are not affected by
/// its end.
pub struct SimEvent {
    shared: Arc<Shared>,
    device: usize,
    key: EventKey,
}

impl fmt::Debug for SimEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimEvent({})", self.key.0)
    }
}

impl Drop for SimEvent {
    fn drop(&mut self) {
        let guard = self.shared.lock();
        let mut world = guard.borrow_mut();
        // A destructor's call is counted and cannot fail.
        let _ = world.enter(self.device, Call::EventDestroy);
        world.events.remove(&self.key.0);
        if let Some(oracle) = &mut world.oracle {
            oracle.event_destroyed(self.key);
        }
        world.devices[self.device].events_live -= 1;
    }
}

impl World {
    pub(super) fn event(&mut self, sim: &Sim, event: &SimEvent, call: Call) -> DriverResult<&mut EventState> {
        if !Arc::ptr_eq(&event.shared, sim.shared()) {
            return Err(bad_handle(
                call,
                "the event belongs to another simulated world: make it from this one",
            ));
        }
        Ok(self.events.get_mut(&event.key.0).expect("an event lives as long as its owner"))
    }

    /// Whether the answer to a query is yes, planted answers included; the oracle sees a yes.
    fn ask(&mut self, sim: &Sim, event: &SimEvent, call: Call) -> DriverResult<bool> {
        if let Some(from) = self.event(sim, event, call)?.capture {
            return Err(self.query_of_captured(from, call));
        }
        let state = self.event(sim, event, call)?;
        if state.not_ready > 0 {
            state.not_ready -= 1;
            return Ok(false);
        }
        if self.faults.not_ready() {
            return Ok(false);
        }
        let state = &self.events[&event.key.0];
        let done = state.finish.at <= self.host_now && self.reached(&state.points);
        if done {
            self.host_sees(event.key);
        }
        Ok(done)
    }

    fn host_sees(&mut self, event: EventKey) {
        let host = self.host();
        if let Some(oracle) = &mut self.oracle {
            oracle.host_sees_event(host, event);
        }
    }

    /// The program declares that what has run is over: the host's clock moves to its end.
    pub(super) fn time_passed(&mut self) {
        self.host_now = self.host_now.max(self.ran_until);
    }

    /// The host waited until a point in virtual time.
    pub(super) fn host_waited(&mut self, device: usize, until: u64) {
        self.host_now = self.host_now.max(until);
        self.devices[device].host_waits += 1;
    }

    /// The wait could not end.
    fn count_impossible_wait(&mut self, device: usize) {
        self.devices[device].host_waits += 1;
        self.devices[device].endless_waits += 1;
    }
}

fn nanos(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

/// Runs until these positions are reached, for a call of a device that cannot give up.
pub(super) fn must_reach(
    world: &RefCell<World>,
    device: usize,
    goals: Points,
    call: Call,
) -> DriverResult<()> {
    exec::reach(world, goals).map_err(|stuck| {
        let mut world = world.borrow_mut();
        world.count_impossible_wait(device);
        let called = world.called(stuck.stream);
        DriverError::new(
            call.name(),
            999,
            DriverErrorKind::Other,
            format!("would wait for ever for {called}: {}; open it or let it run first", stuck.why),
        )
    })
}

/// The host waits for all work of a device.
pub(super) fn drain_device(world: &RefCell<World>, device: usize, call: Call) -> DriverResult<()> {
    let goals = world.borrow().pending(Some(device));
    must_reach(world, device, goals, call)?;
    let mut world = world.borrow_mut();
    let until = world.devices[device].last_finish;
    world.host_waited(device, until);
    let (host, id) = (world.host(), world.devices[device].id);
    if let Some(oracle) = &mut world.oracle {
        oracle.host_sees_device(host, id);
    }
    Ok(())
}

#[allow(unsafe_code, reason = "the contract is kept: an answer is read off positions that have run")]
// SAFETY: a record captures the last position of its stream and a wait makes the next operation depend on it; a query
// answers yes only when every captured position has run; an event never recorded captures nothing.
unsafe impl Fences for Sim {
    type Stream = SimStream;
    type Event = SimEvent;

    /// As the trait says; the priority is not modelled.
    fn create_stream(&self, options: StreamOptions) -> DriverResult<SimStream> {
        let (handle, key) = self.call(Call::StreamCreate, |w| Ok(w.create_stream(self.index(), options)))?;
        Ok(SimStream::new(self, handle, Which::Created(key)))
    }

    fn stream_info(&self, stream: &SimStream) -> DriverResult<StreamInfo> {
        let call = Call::StreamGetId;
        self.call(call, |w| {
            let key = w.resolve(self.shared(), stream, call)?;
            w.forbid_on_captured(key, call)?;
            #[cfg(millpond_mutants)]
            let key = w.key_by_handle(key);
            let s = w.stream(key);
            let unmanaged = stream.0.unmanaged;
            Ok(StreamInfo::new(s.id, w.devices[s.device].id, s.kind).unmanaged(unmanaged))
        })
    }

    fn is_capturing(&self, stream: &SimStream) -> DriverResult<bool> {
        let call = Call::StreamIsCapturing;
        self.call(call, |w| {
            let key = w.resolve(self.shared(), stream, call)?;
            Ok(w.is_capturing(key))
        })
    }

    fn may_capture(&self, stream: &SimStream) -> bool {
        let Which::Created(key) = stream.0.which else { return false };
        self.shared().has_captured()
            && self.lock().borrow().streams[key.0 as usize].as_ref().is_some_and(|s| s.may_capture)
    }

    fn is_last_reference(&self, stream: &SimStream) -> bool {
        stream.is_last_reference()
    }

    fn expects_captures(&self) -> bool {
        self.lock().borrow().devices[self.index()].expects_captures
    }

    fn create_event(&self) -> DriverResult<SimEvent> {
        let key = self.call(Call::EventCreate, |w| {
            let key = w.next_event;
            w.next_event += 1;
            w.events.insert(key, EventState { device: self.index(), ..EventState::default() });
            w.devices[self.index()].events_live += 1;
            Ok(EventKey(key))
        })?;
        Ok(SimEvent { shared: self.shared().clone(), device: self.index(), key })
    }

    fn record(&self, event: &SimEvent, stream: &SimStream) -> DriverResult<()> {
        let call = Call::EventRecord;
        self.call(call, |w| {
            let key = w.resolve(self.shared(), stream, call)?;
            let device = w.event(self, event, call)?.device;
            if device != w.stream(key).device {
                let (event, stream) = (w.devices[device].id, w.devices[w.stream(key).device].id);
                return Err(bad_handle(
                    call,
                    format!("the event is of {event}, the stream of {stream}: record an event of the stream's device"),
                ));
            }
            if w.recorded(key, call)? {
                let capture = w.stream(key).capture;
                *w.event(self, event, call)? = EventState { device, capture, ..EventState::default() };
                return Ok(());
            }
            let (position, finish) = w.submit(key, Booking::instant(), Action::Mark);
            let state = w.event(self, event, call)?;
            state.points = Points::from_elem((key, position), 1);
            (state.finish, state.capture) = (finish, None);
            let host = w.host();
            if let Some(oracle) = &mut w.oracle {
                oracle.record(host, event.key, key);
            }
            Ok(())
        })
    }

    fn record_context(&self, event: &SimEvent) -> DriverResult<()> {
        let call = Call::CtxRecordEvent;
        self.call(call, |w| {
            let device = w.event(self, event, call)?.device;
            if device != self.index() {
                return Err(bad_handle(
                    call,
                    "the event is of another device: make it from the device it is recorded on",
                ));
            }
            w.forbid_while_capturing(device, call)?;
            let (points, mut finish) = (w.pending(Some(device)), End::at(w.devices[device].last_finish));
            points.iter().for_each(|p| finish.and(&w.stream(p.0).free_at));
            let state = w.event(self, event, call)?;
            (state.points, state.finish, state.capture) = (points, finish, None);
            let (host, id) = (w.host(), w.devices[device].id);
            if let Some(oracle) = &mut w.oracle {
                oracle.record_context(host, event.key, id);
            }
            Ok(())
        })
    }

    fn query(&self, event: &SimEvent) -> DriverResult<bool> {
        // The coin's decisions after earlier calls have taken effect by now; the query itself runs nothing.
        self.call(Call::EventQuery, |w| w.ask(self, event, Call::EventQuery))
    }

    fn wait(&self, stream: &SimStream, event: &SimEvent) -> DriverResult<()> {
        let call = Call::StreamWaitEvent;
        self.call(call, |w| {
            let key = w.resolve(self.shared(), stream, call)?;
            let state = w.event(self, event, call)?;
            let (deps, ready, capture) = (state.points.clone(), state.finish.clone(), state.capture);
            if w.wait_in_capture(key, capture, call)? {
                return Ok(());
            }
            w.submit(key, Booking { deps, ready, ..Booking::instant() }, Action::Mark);
            let host = w.host();
            if let Some(oracle) = &mut w.oracle {
                oracle.wait(host, key, event.key);
            }
            Ok(())
        })
    }

    fn synchronize_stream(&self, stream: &SimStream) -> DriverResult<()> {
        let call = Call::StreamSynchronize;
        let begin = |w: &mut World| {
            let key = w.resolve(self.shared(), stream, call)?;
            w.forbid_on_captured(key, call)?;
            let s = w.stream(key);
            Ok((key, s.submitted, s.free_at.clone()))
        };
        self.call_and(self.before(call), call, begin, |guard, (key, last, until)| {
            must_reach(guard, self.index(), Points::from_elem((key, last), 1), call)?;
            let mut world = guard.borrow_mut();
            let until = world.ended(key, &until);
            world.host_waited(self.index(), until);
            let host = world.host();
            if let Some(oracle) = &mut world.oracle {
                oracle.host_sees_stream(host, key);
            }
            Ok(())
        })
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        let call = Call::CtxSynchronize;
        let wait = |guard: &RefCell<World>, ()| drain_device(guard, self.index(), call);
        self.call_and(self.before(call), call, |_| Ok(()), wait)
    }

    /// Runs the executor until the event is complete. `false` if nothing can complete it, or if it completes later than
    /// `limit` from now in virtual time, in which case nothing runs: then the host's clock has moved by `limit`, unless that is
    /// [`Duration::MAX`]. Never sleeps and never polls.
    fn wait_event(&self, event: &SimEvent, limit: Duration) -> DriverResult<bool> {
        let call = Call::EventSynchronize;
        let begin = |w: &mut World| {
            let state = w.event(self, event, call)?;
            if let Some(from) = state.capture {
                return Err(w.query_of_captured(from, call));
            }
            let (points, finish) = (state.points.clone(), state.finish.at);
            let refused = state.not_ready > 0;
            state.not_ready -= u32::from(refused);
            let late = finish > w.host_now.saturating_add(nanos(limit));
            Ok(if refused || w.faults.not_ready() || late { None } else { Some(points) })
        };
        self.call_and(self.before(call), call, begin, |guard, goals| {
            let gave_up = || {
                if limit < Duration::MAX {
                    guard.borrow_mut().host_works(nanos(limit));
                }
                Ok(false)
            };
            let Some(goals) = goals else {
                guard.borrow_mut().devices[self.index()].host_waits += 1;
                return gave_up();
            };
            if exec::reach(guard, goals).is_err() {
                guard.borrow_mut().count_impossible_wait(self.index());
                return gave_up();
            }
            let mut world = guard.borrow_mut();
            // If a gate was opened meanwhile, it is known by now.
            let until = world.events[&event.key.0].finish.at;
            world.host_waited(self.index(), until);
            world.host_sees(event.key);
            Ok(true)
        })
    }

    fn host_time(&self) -> Duration {
        Sim::host_time(self)
    }

    fn relaxed<R>(&self, batch: impl FnOnce() -> R) -> R {
        let exchange = || {
            let guard = self.lock();
            // It cannot fail.
            let _ = guard.borrow_mut().enter(self.index(), Call::ExchangeCaptureMode);
        };
        exchange();
        let relaxed = Relaxed::enter();
        let result = batch();
        drop(relaxed);
        exchange();
        result
    }
}

impl Sim {
    /// A new event.
    ///
    /// # Errors
    /// As [`Fences::create_event`].
    pub fn event(&self) -> DriverResult<SimEvent> {
        self.create_event()
    }
}

impl Sim {
    /// The next `times` queries of this event, and host waits for it, answer "not ready", whatever its state.
    ///
    /// # Errors
    /// The event belongs to another world.
    pub fn not_ready_event(&self, event: &SimEvent, times: u32) -> DriverResult<()> {
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        let state = world.event(self, event, Call::EventQuery)?;
        state.not_ready = state.not_ready.saturating_add(times);
        Ok(())
    }
}
