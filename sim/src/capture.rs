//! Capture state: which streams capture a graph, and what destroys a capture.
//!
//! While a stream captures, operations on it are counted and not run. A global capture is destroyed by calls that could
//! wait or allocate, from any thread that is not inside [`relaxed`](millpond_driver::Fences::relaxed), and by a wait for the
//! device from any thread at all; a captured stream's id must not be queried; a wait on an event from outside destroys
//! the capture. This file does not build graphs and does not check that forked streams were joined before the end.

use super::Sim;
use super::call::Call;
use super::oracle::StreamKey;
use super::recording::Capture;
use super::stream::SimStream;
use super::world::{World, bad_handle};
use millpond_driver::{DriverError, DriverErrorKind};
use millpond_driver::{DriverResult, StreamKind};
use std::borrow::Cow;

/// What a finished capture recorded. There is nothing to launch: the simulator models what capturing forbids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Captured {
    /// Operations put on the captured streams.
    pub operations: u64,
    /// Streams that took part.
    pub streams: usize,
}

fn refused(call: Call, code: u32, message: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError::new(call.name(), code, DriverErrorKind::Capturing, message)
}

impl World {
    pub(super) fn invalidate_capture(&mut self, key: u32, by: Call) {
        if let Some(c) = self.captures.iter_mut().find(|c| c.key == key) {
            c.destroyed_by.get_or_insert(by);
        }
    }

    /// A stream is destroyed in its capture: the one it began on ends it for all, any other leaves it (measured: driver 580, H200).
    pub(super) fn leave_capture(&mut self, key: u32, gone: StreamKey) {
        let Some(index) = self.captures.iter().position(|c| c.key == key) else { return };
        if self.captures[index].origin == gone {
            self.remove_capture(index);
        } else {
            self.captures[index].streams.retain(|&s| s != gone);
            self.captures[index].left += 1;
        }
    }

    /// The capture is over, and operations on its streams run again.
    fn remove_capture(&mut self, index: usize) -> Capture {
        let capture = self.captures.remove(index);
        for s in &capture.streams {
            if let Some(s) = &mut self.streams[s.0 as usize] {
                s.capture = None;
            }
        }
        capture
    }

    /// A global capture begins, on a stream that may already be destroyed.
    pub(super) fn begin_capture(&mut self, key: StreamKey) -> DriverResult<()> {
        let call = Call::BeginCapture;
        let Some(stream) = self.streams[key.0 as usize].as_ref().filter(|s| !s.destroyed) else {
            return Err(bad_handle(
                call,
                "the stream was destroyed: keep a clone of it as long as it is used",
            ));
        };
        let device = stream.device;
        if stream.kind == StreamKind::LegacyDefault {
            return Err(refused(call, 900, "the legacy default stream cannot capture: use another stream"));
        }
        if self.is_capturing(key) {
            return Err(refused(call, 901, "the stream captures already: end that capture first"));
        }
        let capture = self.next_capture;
        self.next_capture += 1;
        self.captures.push(Capture {
            key: capture,
            device,
            origin: key,
            streams: vec![key],
            left: 0,
            operations: 0,
            destroyed_by: None,
        });
        self.record_into(capture, key);
        Ok(())
    }

    fn record_into(&mut self, capture: u32, key: StreamKey) {
        let s = self.stream_mut(key);
        (s.capture, s.may_capture) = (Some(capture), true);
    }

    /// Whether a stream is capturing, its capture destroyed or not. The legacy default stream counts as capturing while a
    /// blocking stream is: a driver answers the query with code 906, and that capture survives.
    pub(super) fn is_capturing(&self, key: StreamKey) -> bool {
        self.stream(key).capture.is_some() || self.captured_by_blocking(key).is_some()
    }

    /// The capture of a blocking stream that an operation on this one, the legacy default stream, would destroy.
    fn captured_by_blocking(&self, key: StreamKey) -> Option<u32> {
        let s = self.stream(key);
        if s.kind != StreamKind::LegacyDefault {
            return None;
        }
        let blocking = |k: &StreamKey| {
            self.streams[k.0 as usize].as_ref().is_some_and(|s| s.kind != StreamKind::NonBlocking)
        };
        let hit = self.captures.iter().find(|c| c.device == s.device && c.streams.iter().any(blocking));
        hit.map(|c| c.key)
    }

    /// A call that a global capture does not survive: it fails, and the captures of this device are lost.
    pub(super) fn forbid_while_capturing(&mut self, device: usize, call: Call) -> DriverResult<()> {
        let mut any = false;
        for c in self.captures.iter_mut().filter(|c| c.device == device) {
            c.destroyed_by.get_or_insert(call);
            any = true;
        }
        if any {
            return Err(refused(
                call,
                900,
                "a stream of this context is capturing: the capture is lost; wrap the call in relaxed(), or make it before the capture",
            ));
        }
        Ok(())
    }

    /// A call that this stream's capture does not survive.
    pub(super) fn forbid_on_captured(&mut self, key: StreamKey, call: Call) -> DriverResult<()> {
        let Some(capture) = self.stream(key).capture else { return Ok(()) };
        self.invalidate_capture(capture, call);
        Err(refused(
            call,
            900,
            "the stream is capturing, which this call has destroyed: query is_capturing first",
        ))
    }

    /// Before an operation is put on a stream: whether it is recorded instead of queued.
    pub(super) fn recorded(&mut self, key: StreamKey, call: Call) -> DriverResult<bool> {
        if self.captures.is_empty() {
            return Ok(false);
        }
        let s = self.stream(key);
        if let Some(capture) = s.capture {
            let c = self
                .captures
                .iter_mut()
                .find(|c| c.key == capture)
                .expect("a capturing stream's capture lives");
            if let Some(by) = c.destroyed_by {
                let by = by.name();
                let message = format!("{by} has destroyed the stream's capture: end it and begin again");
                return Err(refused(call, 901, message));
            }
            // A record is not a node of the graph: it sets the event to the stream's place in it.
            c.operations += u64::from(call != Call::EventRecord);
            return Ok(true);
        }
        if let Some(capture) = self.captured_by_blocking(key) {
            self.invalidate_capture(capture, call);
            return Err(refused(
                call,
                906,
                "the legacy default stream would wait for a capturing blocking stream: the capture is lost; use non-blocking streams",
            ));
        }
        Ok(false)
    }

    /// A query of an event that was last recorded in capture `from`: it ends a capture that is active, and is refused in any case. The codes are those
    /// of CUDA's driver (docs/ordering.md, O9).
    pub(super) fn query_of_captured(&mut self, from: u32, call: Call) -> DriverError {
        let goes_on = self.captures.iter().any(|c| c.key == from);
        self.invalidate_capture(from, call);
        let code = if goes_on { 907 } else { 1 };
        refused(call, code, "the event was last recorded in a capture: record it again")
    }

    /// A wait of `key` for an event recorded in capture `from`, or outside any: whether the wait is recorded.
    pub(super) fn wait_in_capture(
        &mut self,
        key: StreamKey,
        from: Option<u32>,
        call: Call,
    ) -> DriverResult<bool> {
        match (self.stream(key).capture, from) {
            (None, None) => self.recorded(key, call),
            (Some(mine), None) => {
                self.invalidate_capture(mine, call);
                Err(refused(
                    call,
                    905,
                    "a capturing stream would wait for work outside its capture: the capture is lost; record the event inside",
                ))
            }
            (mine, Some(from)) => {
                let Some(index) = self.captures.iter().position(|c| c.key == from) else {
                    if let Some(mine) = mine {
                        self.invalidate_capture(mine, call);
                    }
                    return Err(self.query_of_captured(from, call));
                };
                if mine.is_none() {
                    self.captures[index].streams.push(key);
                    self.record_into(from, key);
                } else if mine != Some(from) {
                    self.captures[index].destroyed_by.get_or_insert(call);
                    return Err(refused(
                        call,
                        905,
                        "two captures cannot wait for each other: the event's is lost",
                    ));
                }
                self.recorded(key, call)
            }
        }
    }
}

impl Sim {
    /// Begins a global capture on a stream: operations on it are recorded instead of run, until
    /// [`end_capture`](Sim::end_capture). A stream that waits for an event recorded in the capture joins it.
    ///
    /// # Errors
    /// The stream is already capturing, or is the legacy default stream.
    pub fn begin_capture(&self, stream: &SimStream) -> DriverResult<()> {
        let call = Call::BeginCapture;
        self.shared().captures();
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            w.begin_capture(key)
        })
    }

    /// A global capture begins on the stream right behind the `nth` call of this kind from now on, as another thread may begin
    /// one; 1 is the next. A call that fails does not count. If none can begin, for example because the stream is gone, nothing happens.
    ///
    /// # Errors
    /// The stream is destroyed, or belongs to another world.
    ///
    /// # Panics
    /// When `nth` is 0.
    pub fn capture_behind(&self, call: Call, nth: u64, stream: &SimStream) -> DriverResult<()> {
        assert!(nth > 0, "the next call is number 1");
        self.shared().captures();
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        let key = world.resolve_here(self, stream, Call::BeginCapture)?;
        world.stream_mut(key).may_capture = true;
        world.faults.capture_behind(call, nth, key);
        Ok(())
    }

    /// Ends the capture that began on this stream.
    ///
    /// # Errors
    /// The stream does not capture, the capture began elsewhere, or something destroyed it (code 901); it is over then
    /// too.
    pub fn end_capture(&self, stream: &SimStream) -> DriverResult<Captured> {
        let call = Call::EndCapture;
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            w.end_capture(key)
        })
    }

    /// A global capture begins on the stream right before the `nth` call of this kind from now on, and ends right behind it, as another
    /// thread's may; 1 is the next. If none can begin, nothing happens.
    ///
    /// # Errors
    /// The stream is destroyed, or belongs to another world.
    ///
    /// # Panics
    /// When `nth` is 0.
    pub fn capture_around(&self, call: Call, nth: u64, stream: &SimStream) -> DriverResult<()> {
        assert!(nth > 0, "the next call is number 1");
        self.shared().captures();
        let guard = self.lock();
        let mut world = guard.borrow_mut();
        let key = world.resolve_here(self, stream, Call::BeginCapture)?;
        world.stream_mut(key).may_capture = true;
        world.faults.capture_around(call, nth, key);
        Ok(())
    }

    /// How many captures [around](Sim::capture_around) a call did not survive it.
    pub fn captures_destroyed(&self) -> u64 {
        self.lock().borrow().captures_destroyed
    }
}

impl World {
    pub(super) fn end_capture(&mut self, key: StreamKey) -> DriverResult<Captured> {
        let call = Call::EndCapture;
        let index = self.captures.iter().position(|c| c.origin == key).ok_or_else(|| {
            refused(call, 900, "no capture began on this stream: end it on the stream it began on")
        })?;
        let capture = self.remove_capture(index);
        if let Some(by) = capture.destroyed_by {
            return Err(refused(call, 901, format!("{} has destroyed the capture", by.name())));
        }
        Ok(Captured { operations: capture.operations, streams: capture.streams.len() + capture.left })
    }
}
