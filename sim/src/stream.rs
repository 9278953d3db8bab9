//! Streams: their identity, their native handles, and how an operation is put on one.
//!
//! A stream is a queue with a number that is never reused (its key, and its [`StreamId`]) and a native handle whose
//! value is reused, at once, after the stream is destroyed, pending work or not. The legacy default stream and the
//! per-thread default streams have handles that mean a different stream in each context or thread. [`World::submit`] applies
//! the implicit order of the legacy stream (E4) and books the operation's time; it does not know what the operation
//! does, nor when it will run.

use super::Sim;
use super::call::Call;
use super::exec::Action;
use super::late::End;
use super::operation::Points;
use super::oracle::{StreamKey, StreamLabel};
use super::rate::{Engine, Load};
use super::world::{Shared, World, bad_handle};
use millpond_driver::sync::Arc;
use millpond_driver::sync::{
    Ordering,
    plain::{AtomicBool, AtomicU64},
};
use millpond_driver::units::StreamId;
use millpond_driver::{Caller, DriverResult, StreamKind, StreamOptions};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;

/// The native value of the legacy default stream, as in the driver's interface.
pub(super) const LEGACY_HANDLE: u64 = 1;
/// The native value of the calling thread's default stream.
pub(super) const PER_THREAD_HANDLE: u64 = 2;

/// Default streams have numbers from here on: a program makes fewer streams than that.
const DEFAULTS: u64 = 1 << 32;

/// A queued operation; its position is the stream's `done` plus its place in the queue, from 1.
#[derive(Debug)]
pub(super) struct Op {
    /// Where it was called.
    pub(super) from: Option<Caller>,
    pub(super) deps: Points,
    pub(super) action: Action,
    /// Which operation of its stream it is, from 1; a record or a wait has the number of the operation before it.
    pub(super) number: u64,
    /// The host's tick at submission.
    pub(super) tick: u64,
    /// When it ends, in virtual nanoseconds; 0 behind a closed gate, where it does not run.
    pub(super) finish: u64,
}

/// One stream.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, any of which may hold together")]
#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) id: StreamId,
    /// The program's name for it.
    pub(super) name: Option<std::sync::Arc<str>>,
    /// The program's number for it.
    pub(super) called: u64,
    /// Which of the threads' default streams it is, in the order of their first use.
    pub(super) of_thread: u64,
    pub(super) device: usize,
    pub(super) kind: StreamKind,
    pub(super) handle: u64,
    pub(super) destroyed: bool,
    pub(super) queue: VecDeque<Op>,
    /// Operations that do something so far: launches, copies, fills, host functions.
    pub(super) operations: u64,
    /// Positions handed out: operations, records and waits.
    pub(super) submitted: u64,
    /// Positions that have run.
    pub(super) done: u64,
    /// Whether the operation after `done` is a closure that is being called now.
    pub(super) running: bool,
    /// When the last operation submitted ends.
    pub(super) free_at: End,
    /// Index in the world's list of active streams, meaningful while the queue is not empty.
    pub(super) active_at: usize,
    /// Whether it is in its device's list of blocking streams with work since the last legacy operation.
    pub(super) since_legacy: bool,
    /// The capture that it records into.
    pub(super) capture: Option<u32>,
    /// It was captured, or may be: code outside has its handle.
    pub(super) may_capture: bool,
}

/// A number of this process, never reused.
pub(super) fn unique_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A number of the calling thread, never reused.
pub(super) fn thread_number() -> u64 {
    millpond_driver::sync::per_thread! {
        static MINE: Cell<u64> = Cell::new(0);
    }
    MINE.with(|mine| {
        if mine.get() == 0 {
            mine.set(unique_number());
        }
        mine.get()
    })
}

/// How an operation takes time and what it waits for, besides its place on the stream.
#[derive(Debug)]
pub(super) struct Booking {
    pub(super) deps: Points,
    /// When what it waits for ends.
    pub(super) ready: End,
    pub(super) load: Load,
}

impl Booking {
    /// An operation that waits for nothing and takes this long on an engine.
    pub(super) fn on(engine: Engine, nanos: u64) -> Booking {
        let load = Load { engine, nanos, into: None };
        Booking { deps: Points::new(), ready: End::default(), load }
    }
    /// An operation that takes no time.
    pub(super) fn instant() -> Booking {
        Booking::on(Engine::None, 0)
    }
}

impl World {
    pub(super) fn stream(&self, key: StreamKey) -> &StreamState {
        self.streams[key.0 as usize].as_ref().expect("a resolved stream is not removed")
    }
    pub(super) fn stream_mut(&mut self, key: StreamKey) -> &mut StreamState {
        self.streams[key.0 as usize].as_mut().expect("a resolved stream is not removed")
    }

    /// A new stream under a native handle.
    pub(super) fn add_stream(&mut self, device: usize, kind: StreamKind, handle: u64) -> StreamKey {
        let key = StreamKey(self.streams.len() as u32);
        // As the program counts: the streams that it made, from 0. Default streams have no number.
        let id = if matches!(kind, StreamKind::NonBlocking | StreamKind::Blocking) {
            self.made.push(key);
            StreamId(self.made.len() as u64 - 1)
        } else {
            StreamId(DEFAULTS + u64::from(key.0))
        };
        self.streams.push(Some(Box::new(StreamState {
            id,
            name: None,
            called: id.0,
            of_thread: self.per_thread.len() as u64,
            device,
            kind,
            handle,
            destroyed: false,
            queue: VecDeque::new(),
            operations: 0,
            submitted: 0,
            done: 0,
            running: false,
            free_at: End::default(),
            active_at: 0,
            since_legacy: false,
            capture: None,
            may_capture: false,
        })));
        let device = self.devices[device].id;
        if let Some(oracle) = &mut self.oracle {
            oracle.stream_created(key, id, kind, device);
        }
        key
    }

    /// The stream that has a unique number, alive or draining.
    pub(super) fn by_id(&self, id: StreamId) -> Option<StreamKey> {
        match id.0.checked_sub(DEFAULTS) {
            None => self.made.get(id.0 as usize).copied(),
            Some(key) => {
                u32::try_from(key).ok().filter(|k| (*k as usize) < self.streams.len()).map(StreamKey)
            }
        }
    }

    /// The unique number of a stream that the program made, destroyed or not.
    fn made_id(&self, key: StreamKey) -> StreamId {
        // Keys and numbers are given out in the same order.
        StreamId(self.made.binary_search(&key).map_or(u64::MAX, |n| n as u64))
    }

    /// A stream's name in an error, whatever its device.
    pub(super) fn called(&self, key: StreamKey) -> String {
        StreamLabel { device: None, ..self.label(key) }.words(40)
    }

    /// The stream's label for a person.
    pub(super) fn label(&self, key: StreamKey) -> StreamLabel {
        let s = self.stream(key);
        let device = (self.devices.len() > 1).then(|| self.devices[s.device].id);
        StreamLabel {
            id: s.id,
            number: s.called,
            kind: s.kind,
            name: s.name.clone(),
            of_thread: s.of_thread,
            device,
        }
    }

    /// If the native value is mistaken for an identity: the first stream that has it.
    #[cfg(millpond_mutants)]
    pub(super) fn key_by_handle(&self, key: StreamKey) -> StreamKey {
        let StreamState { kind, handle, .. } = *self.stream(key);
        let taken = if kind == StreamKind::PerThreadDefault { mutant!(Z5) } else { mutant!(Z4) };
        let first = self.streams.iter().position(|s| s.as_ref().is_some_and(|s| s.handle == handle));
        first.filter(|_| taken).map_or(key, |first| StreamKey(first as u32))
    }

    /// The stream that a stream argument names at this moment.
    pub(super) fn resolve(
        &mut self,
        shared: &Arc<Shared>,
        stream: &SimStream,
        call: Call,
    ) -> DriverResult<StreamKey> {
        let r = &*stream.0;
        if !Arc::ptr_eq(&r.shared, shared) {
            return Err(bad_handle(
                call,
                "the stream belongs to another simulated world: make it from this one",
            ));
        }
        match r.which {
            Which::Created(key) => match &self.streams[key.0 as usize] {
                Some(s) if !s.destroyed => Ok(key),
                _ => Err(bad_handle(
                    call,
                    format!("{} was destroyed: keep a clone of it as long as it is used", self.made_id(key)),
                )),
            },
            Which::Legacy => Ok(self.devices[r.device].legacy),
            Which::PerThread => Ok(self.per_thread(r.device)),
            Which::Value => self.handles.get(&r.handle).copied().ok_or_else(|| {
                bad_handle(call, format!("no stream has the handle {:#x} now: it was destroyed", r.handle))
            }),
        }
    }

    /// The stream that a reference names ([`World::resolve`]), which must be of this device.
    pub(super) fn resolve_here(
        &mut self,
        sim: &Sim,
        stream: &SimStream,
        call: Call,
    ) -> DriverResult<StreamKey> {
        let key = self.resolve(sim.shared(), stream, call)?;
        let s = self.stream(key);
        if s.device == sim.index() {
            return Ok(key);
        }
        let (found, here) = (self.devices[s.device].id, self.devices[sim.index()].id);
        Err(bad_handle(
            call,
            format!(
                "{} is on {found}, the call is for {here}: use a stream of that device",
                self.called(key)
            ),
        ))
    }

    fn per_thread(&mut self, device: usize) -> StreamKey {
        let thread = thread_number();
        if let Some(&key) = self.per_thread.get(&(device, thread)) {
            return key;
        }
        let key = self.add_stream(device, StreamKind::PerThreadDefault, PER_THREAD_HANDLE);
        self.per_thread.insert((device, thread), key);
        key
    }

    /// Puts an operation on a stream; returns its position and when it ends.
    pub(super) fn submit(&mut self, key: StreamKey, mut booking: Booking, action: Action) -> (u64, End) {
        let s = self.stream(key);
        let (device, kind, listed) = (s.device, s.kind, s.since_legacy);
        match kind {
            StreamKind::NonBlocking => {}
            StreamKind::LegacyDefault => {
                // E4: behind all blocking streams. Those without work since the last legacy operation are behind it.
                booking.ready.and(&End::at(self.devices[device].removed_finish));
                for other in std::mem::take(&mut self.devices[device].since_legacy) {
                    if let Some(o) = &mut self.streams[other.0 as usize] {
                        o.since_legacy = false;
                        booking.deps.push((other, o.submitted));
                        booking.ready.and(&o.free_at);
                    }
                }
            }
            StreamKind::Blocking | StreamKind::PerThreadDefault => {
                let legacy = self.devices[device].legacy;
                let l = self.stream(legacy);
                booking.ready.and(&l.free_at);
                if l.done < l.submitted {
                    booking.deps.push((legacy, l.submitted));
                }
                if !listed {
                    self.devices[device].since_legacy.push(key);
                }
            }
        }
        booking.deps.retain(|d| self.done(d.0) < d.1);
        let (now, Booking { deps, mut ready, load }) = (self.host_now, booking);
        let s = self.stream(key);
        let position = s.submitted + 1;
        ready.and(&s.free_at);
        ready.at = ready.at.max(now);
        let gate = if let Action::Gate(gate) = action { Some(gate) } else { None };
        let (finish, end) = if gate.is_none() && ready.is_known() {
            let finish = self.book(key, load, now, ready.at);
            (finish, End::at(finish))
        } else {
            (0, self.put_off.put_off((key, position), gate, ready, load))
        };

        let (active_at, tick, from) = (self.active.len(), self.hold.now, self.called_from);
        let s = self.stream_mut(key);
        s.since_legacy = matches!(kind, StreamKind::Blocking | StreamKind::PerThreadDefault);
        s.free_at = end.clone();
        s.submitted = position;
        let was_idle = s.queue.is_empty() && !s.running;
        s.queue.push_back(Op { from, deps, action, number: s.operations, tick, finish });
        if was_idle {
            s.active_at = active_at;
            self.active.push(key);
        }
        self.fresh = Some((key, position));
        (position, end)
    }

    /// Books an operation that may begin at `ready`, on its stream's device; returns when it ends.
    pub(super) fn book(&mut self, key: StreamKey, load: Load, now: u64, ready: u64) -> u64 {
        let device = self.stream(key).device;
        let mut finish = self.devices[device].engines.book(load.engine, now, ready, load.nanos);
        if let Some(into) = load.into {
            // The two need not begin at once: the lead of one is spent in transit.
            finish = finish.max(self.devices[into].engines.book(Engine::In, now, ready, load.nanos));
        }
        let device = &mut self.devices[device];
        device.last_finish = device.last_finish.max(finish);
        finish
    }

    /// When the last operation of a stream ends that has run; for one that is gone, what was known before.
    pub(super) fn ended(&self, key: StreamKey, before: &End) -> u64 {
        self.streams[key.0 as usize].as_ref().map_or(before.at, |s| s.free_at.at)
    }

    /// Destroys a stream: at once; pending work continues, and the handle's value may be reused.
    pub(super) fn destroy_stream(&mut self, key: StreamKey) {
        let s = self.stream_mut(key);
        s.destroyed = true;
        let (device, handle, capture) = (s.device, s.handle, s.capture);
        let drained = s.queue.is_empty() && !s.running;
        if let Some(capture) = capture {
            self.leave_capture(capture, key);
        }
        self.handles.remove(&handle);
        self.free_handles.push(handle);
        self.devices[device].streams_live -= 1;
        if let Some(oracle) = &mut self.oracle {
            oracle.stream_destroyed(key);
        }
        if drained {
            self.remove_stream(key);
        }
    }

    /// Removes a destroyed stream whose work is done.
    pub(super) fn remove_stream(&mut self, key: StreamKey) {
        if let Some(s) = self.streams[key.0 as usize].take()
            && s.kind != StreamKind::NonBlocking
        {
            let device = &mut self.devices[s.device];
            device.removed_finish = device.removed_finish.max(s.free_at.at);
        }
    }

    pub(super) fn create_stream(&mut self, device: usize, options: StreamOptions) -> SimStreamParts {
        let handle = self.free_handles.pop().unwrap_or_else(|| {
            self.next_handle += 0x100;
            self.next_handle
        });
        let kind = if options.blocking { StreamKind::Blocking } else { StreamKind::NonBlocking };
        let key = self.add_stream(device, kind, handle);
        self.handles.insert(handle, key);
        if let Some(ended) = self.unmanaged.remove(&handle) {
            ended.store(true, Ordering::Release);
        }
        self.devices[device].streams_live += 1;
        (handle, key)
    }
}

pub(super) type SimStreamParts = (u64, StreamKey);

/// How a stream argument finds its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// Made by this simulator and owned by its references.
    Created(StreamKey),
    /// Any stream that has this native value at the time of a call.
    Value,
    Legacy,
    /// The calling thread's.
    PerThread,
}

pub(super) struct StreamRef {
    pub(super) shared: Arc<Shared>,
    pub(super) device: usize,
    pub(super) handle: u64,
    pub(super) which: Which,
    /// Its owner may destroy it at any time.
    pub(super) unmanaged: bool,
    /// For an unmanaged one, whether it has ended: its handle is another stream's.
    ended: Option<Arc<AtomicBool>>,
}

/// A counted reference to a stream of the simulated device.
///
/// The last reference to a stream that [`Sim::stream`] made destroys it, which returns at once: pending work goes on.
/// The default streams, and streams reached by their native value, are only borrowed and never destroyed.
#[derive(Clone)]
pub struct SimStream(pub(super) Arc<StreamRef>);

impl SimStream {
    pub(super) fn new(sim: &Sim, handle: u64, which: Which) -> SimStream {
        let (shared, device) = (sim.shared().clone(), sim.index());
        SimStream(Arc::new(StreamRef { shared, device, handle, which, unmanaged: false, ended: None }))
    }
    /// Whether there is no other reference. An unmanaged stream's owner has one until its end, which shows when its handle is another's: on a real
    /// device the driver's ids show that. A default stream needs no reference.
    pub(super) fn is_last_reference(&self) -> bool {
        if let Some(ended) = &self.0.ended {
            return ended.load(Ordering::Acquire);
        }
        let last = matches!(self.0.which, Which::Created(_)) && Arc::strong_count(&self.0) == 1;
        core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
        last
    }
    /// The native handle's value. Unlike [`StreamId`] it is reused: a new stream may have the value of a destroyed
    /// one whose work is still pending, and the value of the per-thread default stream means a different stream on each
    /// thread. Never an identity.
    pub fn handle(&self) -> u64 {
        self.0.handle
    }
}

impl fmt::Debug for SimStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.which {
            Which::Created(key) => match self.0.shared.lock().try_borrow() {
                Ok(world) => write!(f, "SimStream({})", world.made_id(key)),
                Err(_) => f.write_str("SimStream"),
            },
            Which::Value => write!(f, "SimStream(handle {:#x})", self.0.handle),
            Which::Legacy => f.write_str("SimStream(legacy default)"),
            Which::PerThread => f.write_str("SimStream(per-thread default)"),
        }
    }
}

impl Drop for StreamRef {
    fn drop(&mut self) {
        if let Which::Created(key) = self.which {
            let guard = self.shared.lock();
            let mut world = guard.borrow_mut();
            if world.streams[key.0 as usize].as_ref().is_some_and(|s| !s.destroyed) {
                // A destructor's call is counted and cannot fail.
                let _ = world.enter(self.device, Call::StreamDestroy);
                world.destroy_stream(key);
            }
        }
    }
}

impl Sim {
    /// The legacy default stream of this device: ordered with all blocking streams, in both directions ([E4](crate::oracle#rules-of-order)).
    pub fn legacy_stream(&self) -> SimStream {
        SimStream::new(self, LEGACY_HANDLE, Which::Legacy)
    }
    /// The per-thread default stream: each call resolves it to the stream of the thread that makes the call, as the
    /// driver resolves the value. Two threads that share this reference use two streams.
    pub fn per_thread_stream(&self) -> SimStream {
        SimStream::new(self, PER_THREAD_HANDLE, Which::PerThread)
    }
    /// A borrowed reference by native value: each call resolves it to whichever stream has the value then, which after
    /// a destroy and a create is a different one. 0 and 1 name the legacy default stream, 2 the per-thread one.
    pub fn stream_from_handle(&self, handle: u64) -> SimStream {
        let which = match handle {
            0 | LEGACY_HANDLE => Which::Legacy,
            PER_THREAD_HANDLE => Which::PerThread,
            _ => Which::Value,
        };
        SimStream::new(self, handle, which)
    }
    /// A borrowed reference by native value ([`Sim::stream_from_handle`]) of a stream that its owner may destroy at
    /// any time: an allocator that adopts the reference names it only in calls that name it. From the first
    /// such reference on, captures are expected.
    pub fn unmanaged_stream(&self, stream: &SimStream) -> SimStream {
        self.expect_captures();
        let (shared, device, handle) = (self.shared().clone(), self.index(), stream.handle());
        let ended = Some(Arc::clone(self.lock().borrow_mut().unmanaged.entry(handle).or_default()));
        SimStream(Arc::new(StreamRef { shared, device, handle, which: Which::Value, unmanaged: true, ended }))
    }
    /// Declares that other code may capture graphs on this device: allocators record no context-wide event from now on.
    pub fn expect_captures(&self) {
        self.lock().borrow_mut().devices[self.index()].expects_captures = true;
    }
    /// Destroys a stream while references to it remain, as other code may: at once; pending work continues. Calls
    /// through those references fail from then on.
    ///
    /// # Errors
    /// The stream is already destroyed, or is a default stream.
    pub fn destroy_stream(&self, stream: &SimStream) -> DriverResult<()> {
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        let call = Call::StreamDestroy;
        world.enter(self.index(), call)?;
        let key = world.resolve(self.shared(), stream, call)?;
        if matches!(stream.0.which, Which::Legacy | Which::PerThread) {
            return Err(bad_handle(call, "a default stream cannot be destroyed"));
        }
        world.destroy_stream(key);
        Ok(())
    }
    /// A new non-blocking stream, like those that the allocator makes.
    ///
    /// # Errors
    /// As [`Fences::create_stream`](millpond_driver::Fences::create_stream).
    pub fn stream(&self) -> DriverResult<SimStream> {
        millpond_driver::Fences::create_stream(self, StreamOptions::default())
    }
    /// Gives a stream a name that verdicts show instead of its number.
    ///
    /// # Errors
    /// The stream is destroyed or belongs to another world.
    pub fn name_stream(&self, stream: &SimStream, name: &str) -> DriverResult<()> {
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        let key = world.resolve(self.shared(), stream, Call::StreamGetId)?;
        let name = std::sync::Arc::<str>::from(name);
        world.stream_mut(key).name = Some(name.clone());
        if let Some(oracle) = &mut world.oracle {
            oracle.stream_named(key, name);
        }
        Ok(())
    }
    /// Gives a stream its number in the file that is replayed, for verdicts to show
    /// ([`Sim::name_stream`]).
    ///
    /// # Errors
    /// As [`Sim::name_stream`].
    pub fn number_stream(&self, stream: &SimStream, number: u64) -> DriverResult<()> {
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        let key = world.resolve(self.shared(), stream, Call::StreamGetId)?;
        world.stream_mut(key).called = number;
        if let Some(oracle) = &mut world.oracle {
            oracle.stream_numbered(key, number);
        }
        Ok(())
    }
    /// A new stream that is ordered with the legacy default stream.
    ///
    /// # Errors
    /// As [`Fences::create_stream`](millpond_driver::Fences::create_stream).
    pub fn blocking_stream(&self) -> DriverResult<SimStream> {
        millpond_driver::Fences::create_stream(self, StreamOptions::default().blocking(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Launch, Schedule};
    use millpond_driver::Fences;

    #[test]
    fn streams_that_are_gone_leave_nothing_behind() {
        let sim = Sim::new(512).schedule(Schedule::Latest);
        for _ in 0..100 {
            let stream = sim.stream().expect("a stream");
            sim.launch(&stream, Launch::new("pending")).expect("queued");
        }
        let kept = || sim.lock().borrow().streams.iter().flatten().count();
        assert_eq!(kept(), 101, "they drain");
        assert_eq!(sim.lock().borrow().active.len(), 100);
        sim.synchronize_device().expect("run");
        assert_eq!(kept(), 1, "the legacy stream");
        assert_eq!(sim.lock().borrow().next_handle, 0x5500_0000_0100, "one handle value served them all");
    }
}
