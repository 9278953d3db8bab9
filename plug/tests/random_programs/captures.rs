//! Captures by the program, during all that its threads do meanwhile. A capture may end only by what the header says ends it: a call that
//! waits for the device, and only if that call cannot see the capture.
//!
//! A thread's default stream is blocking: no capture on it survives work on the legacy default stream, whoever queues it. In programs whose
//! threads take turns the model knows of such captures, and queues nothing there meanwhile. Where threads run at once it cannot know, so half of
//! those programs have no legacy stream ([`World::has_legacy`]) and capture on blocking streams and on their threads' own; the other half
//! have it, and capture on neither.

use super::{Here, SLOTS, World};
use crate::driver;
use crate::model::{Made, Named, Stats, Who};
use crate::program::{Fault, Step, Verb};
use millpond_plug::status::MillpondStatus as Status;
use std::ffi::CStr;
use std::ptr::null_mut;

/// The third mode, after global and thread-local: any thread may end such a capture.
const RELAXED: u32 = 2;
/// If one of these calls fails it is not known which streams capture, or a capture is not protected from the next call: captures may end.
const CAPTURE_GUARDS: [&CStr; 2] = [c"cuThreadExchangeStreamCaptureMode", c"cuStreamIsCapturing"];

/// A capture that is open.
#[derive(Clone, Debug)]
pub(crate) struct Capture {
    origin: Named,
    /// A stream that joined it.
    forked: Option<Named>,
    device: usize,
    mode: u32,
    thread: u32,
    /// The legacy default stream would wait for the capturing stream, which ends the capture.
    blocking: bool,
    /// The program made a call that may end it.
    may_be_lost: bool,
}

impl Capture {
    fn has(&self, who: Who) -> bool {
        self.origin.who == who || self.forked.is_some_and(|f| f.who == who)
    }
    fn is_ended_by(&self, here: Here) -> bool {
        match self.origin.who {
            Who::PerThread(thread, _) => thread == here.thread,
            _ => self.mode == RELAXED || self.thread == here.thread,
        }
    }
}

impl World {
    /// Whether a stream captures: then the program queues there only what is to be captured, and no allocator accepts the stream.
    pub(super) fn captures(&self, stream: Named) -> bool {
        self.captures.iter().any(|c| match stream.who {
            Who::Legacy(device) => c.blocking && c.device == device,
            who => c.has(who),
        })
    }

    /// Whether there may be a capture on the device.
    pub(super) fn may_be_capturing(&self, device: usize) -> bool {
        self.concurrent.is_some() || self.captures.iter().any(|c| c.device == device)
    }

    /// The codes that a call which names an allocation and a stream may return.
    pub(super) fn answers(&self, open: bool, stream: Named, home: Named) -> &'static [Status] {
        match (open, self.captures(stream)) {
            (false, _) => &[Status::UnknownAllocator],
            (true, false) => &[Status::Ok],
            // For the allocation's own stream the call may need no check.
            (true, true) if stream.handle == home.handle => &[Status::Capturing, Status::Ok],
            (true, true) => &[Status::Capturing],
        }
    }

    /// The code that a call which waits for the device must return. A capture there is lost if no stream that this allocator may query is part of it;
    /// captures on other devices survive.
    pub(super) fn waits_for_devices(&mut self, door: usize, fault: Fault) -> Status {
        let device = self.doors[door].device;
        let declared = &self.doors[door].declared;
        let seen = self.captures.iter().any(|c| c.device == device && declared.iter().any(|w| c.has(*w)));
        let some = self.captures.iter().any(|c| c.device == device);
        for capture in &mut self.captures {
            // A check that fails shows nothing.
            capture.may_be_lost |= capture.device == device && (!seen || fault > 0);
        }
        if some { Status::Capturing } else { Status::Ok }
    }

    /// The code of a call that waits for all queued work and ends no capture, unless all allocators of the device were promised that only declared
    /// streams capture.
    pub(super) fn waits_beside_captures(&mut self, door: usize, fault: Fault) -> Status {
        let device = self.doors[door].device;
        let expected = self.doors.iter().any(|d| d.device == device && d.expects);
        if expected { Status::Ok } else { self.waits_for_devices(door, fault) }
    }

    /// Faults of threads do not strike these calls.
    pub(crate) fn exempt_capture_guards() {
        for name in CAPTURE_GUARDS {
            driver::exempt(name.as_ptr());
        }
    }

    /// Notes that a driver call failed which protects captures.
    pub(super) fn capture_guard_failed(&mut self, call: &str) {
        if CAPTURE_GUARDS.iter().any(|name| name.to_bytes() == call.as_bytes()) {
            self.captures.iter_mut().for_each(|c| c.may_be_lost = true);
        }
    }

    /// Runs something that ends captures, if there is none.
    pub(super) fn beside_no_capture(&mut self, run: impl FnOnce(&mut World)) {
        let concurrent = self.concurrent.clone();
        let others = concurrent.as_ref().map(|m| m.captures.read().expect("no thread panicked"));
        if self.captures.is_empty() && others.as_ref().is_none_or(|n| **n == 0) {
            run(self);
        }
    }

    /// Begins a capture, perhaps with a second stream, and queues something there.
    pub(super) fn capture(&mut self, a: u8, b: u8, c: u8, here: Here) {
        if driver::is_broken() {
            return;
        }
        let device = usize::from(b >= 224);
        driver::bind(self.contexts[device]);
        // The legacy stream cannot capture. If only declared streams may capture, the capture begins on one of those.
        let origin = if self.quiet {
            let slot = if device == 1 { 3 } else { usize::from(a) % 3 };
            let declared = self.streams[slot].filter(|m| m.declared && self.concurrent.is_none());
            let Some(made) = declared.or_else(|| self.declared_now(slot)) else { return };
            made.named
        } else {
            let named = self.stream(if a % 8 == 6 { a - 6 } else { a }, device, here);
            // Work that other threads queue there meanwhile would be captured.
            if self.is_shared(named) { self.made(1, 1) } else { named }
        };
        let blocking = self.is_blocking(origin);
        // It is not known what threads that run at once do on the legacy stream.
        let apart = self.concurrent.is_none() || !self.has_legacy;
        if self.captures(origin) || self.captures.len() > 2 || blocking && !apart {
            return;
        }
        let mode = u32::from(b) % 3;
        say!(self, "cuStreamBeginCapture({origin}, {mode});");
        if let Some(concurrent) = self.concurrent.clone() {
            *concurrent.captures.write().expect("no thread panicked") += 1;
        }
        driver::begin_capture(origin.raw(), mode);
        let thread = here.thread;
        let capture = Capture { origin, forked: None, device, mode, thread, blocking, may_be_lost: false };
        self.captures.push(capture);
        let slot = if device == 1 { 3 } else { (usize::from(a) + 1) % 3 };
        if c.is_multiple_of(2)
            && let Some(other) = self.streams[slot].map(|m| m.named)
            && !self.captures(other)
            && !self.is_shared(other)
            && (apart || !self.is_blocking(other))
        {
            let event = self.event(origin);
            self.wait(other, &[event]);
            let blocking = self.is_blocking(other);
            let capture = self.captures.last_mut().expect("it began");
            capture.forked = Some(other);
            capture.blocking |= blocking;
        }
        if c % 4 < 2 {
            let last = self.captures.last().expect("it began");
            let on = last.forked.unwrap_or(origin);
            let own = self.scratch(512, device);
            say!(self, "cuMemsetD8Async(own, 1, 512, {on});");
            driver::set(own, 1, 512, on.raw());
        }
    }

    /// Declares a stream permanent to an allocator of its device, if there is one.
    fn declared_now(&mut self, slot: usize) -> Option<Made> {
        let device = usize::from(slot == 3);
        let opens =
            |n: &usize| self.doors[self.slots[*n]].open && self.doors[self.slots[*n]].device == device;
        let of = (0..SLOTS).find(opens).filter(|_| self.concurrent.is_none())?;
        self.permanent(of as u8, slot as u8, 0);
        self.streams[slot].filter(|m| m.declared)
    }

    fn is_blocking(&self, stream: Named) -> bool {
        self.streams.iter().flatten().find(|m| m.named.who == stream.who).is_none_or(|m| m.blocking)
    }

    /// Ends one of the captures that this thread may end; then a synchronise must give back all that was held back.
    pub(super) fn end_one(&mut self, a: u8, b: u8, here: Here) {
        let ended: Vec<usize> =
            (0..self.captures.len()).filter(|&n| self.captures[n].is_ended_by(here)).collect();
        let Some(n) = super::pick(ended.len(), a) else { return };
        let device = self.captures[ended[n]].device;
        self.end_capture(ended[n]);
        if b % 2 == 1 {
            self.nothing_is_held_back(device);
        }
    }

    /// After the last capture: each allocator of the device is synchronised, and then holds nothing back.
    fn nothing_is_held_back(&mut self, device: usize) {
        if self.concurrent.is_some() || !self.captures.is_empty() || driver::is_broken() {
            return;
        }
        for door in 0..self.doors.len() {
            if self.doors[door].open && self.doors[door].device == device {
                let sync = Step { thread: 0, verb: Verb::Sync, a: 0, b: 0, c: 0, fault: 0 };
                let (of, b) = if door == self.torch[1] { (self.torch[0], 192) } else { (door, 0) };
                let Some(slot) = self.slots.iter().position(|d| *d == of) else { continue };
                self.manage(Step { a: slot as u8, b, ..sync });
                let stats = Stats::of(self.doors[door].number);
                assert_eq!(stats.total("held_back"), 0, "the device is idle: {stats}");
            }
        }
    }

    /// Destroys a stream while it captures. The stream that the capture began on ends it; one that joined it, and that the first one has waited for,
    /// leaves it.
    pub(super) fn destroy_capturing(&mut self, a: u8, b: u8) {
        let Some(n) = super::pick(self.captures.len(), a) else { return };
        let Capture { origin, forked, device, may_be_lost, .. } = self.captures[n].clone();
        // A capture that a synchronise may have destroyed cannot be joined.
        if may_be_lost {
            return;
        }
        let dies = forked.filter(|_| b.is_multiple_of(2)).unwrap_or(origin);
        let ends = |m: Made| m.named.who == dies.who && !m.permanent && !m.kept;
        let of_it = |m: &Option<Made>| {
            m.is_some_and(|m| ends(m) && !self.is_taken_for_another(device, m.named.handle))
        };
        // A thread's default stream ends with the thread.
        let Some(slot) = self.streams.iter().position(of_it).filter(|_| !driver::is_broken()) else { return };
        driver::bind(self.contexts[device]);
        if dies.who != origin.who {
            let event = self.event(dies);
            self.wait(origin, &[event]);
            self.close(slot);
            let blocking = self.is_blocking(origin);
            let capture = &mut self.captures[n];
            (capture.forked, capture.blocking) = (None, blocking);
            return;
        }
        self.close(slot);
        self.captures.remove(n);
        if let Some(concurrent) = self.concurrent.clone() {
            *concurrent.captures.write().expect("no thread panicked") -= 1;
        }
        self.no_stream_joined();
        if b / 2 % 2 == 1 {
            self.nothing_is_held_back(device);
        }
    }

    fn end_capture(&mut self, n: usize) {
        self.no_stream_joined();
        let Capture { origin, forked, device, may_be_lost, .. } = self.captures[n].clone();
        driver::bind(self.contexts[device]);
        if let Some(forked) = forked.filter(|_| !may_be_lost) {
            let event = self.event(forked);
            self.wait(origin, &[event]);
        }
        let mut graph = null_mut();
        say!(self, "cuStreamEndCapture({origin}, &graph);");
        let code = driver::end_capture(origin.raw(), &raw mut graph);
        assert!(
            code == 0 || may_be_lost || driver::is_broken(),
            "the capture on {origin} was ended: {code}, {}",
            driver::refusal()
        );
        if code == 0 {
            driver::destroy_graph(graph);
        }
        self.captures.remove(n);
        if let Some(concurrent) = self.concurrent.clone() {
            *concurrent.captures.write().expect("no thread panicked") -= 1;
        }
    }

    /// Ends all captures that this thread may end, among them those that only this thread may end.
    pub(crate) fn leave(&mut self, here: Here) {
        while let Some(n) = self.captures.iter().position(|c| c.is_ended_by(here)) {
            self.end_capture(n);
        }
    }

    /// Whether a stream does not capture, or this has ended its capture, so that it can be destroyed.
    pub(super) fn released(&mut self, slot: usize, here: Here) -> bool {
        let Some(made) = self.streams[slot].filter(|m| !m.permanent && !m.kept) else { return true };
        let Some(n) = self.captures.iter().position(|c| c.has(made.named.who)) else { return true };
        let ours = self.captures[n].is_ended_by(here);
        if ours {
            self.end_capture(n);
        }
        ours
    }

    /// A capture begins during a call that names another stream, right after one of the call's checks. Not on a stream that was not declared, which no call
    /// checks, nor on a blocking one: the header says what happens then.
    pub(super) fn capture_meanwhile(&mut self, a: u8, b: u8, c: u8, fault: Fault, here: Here) {
        let slot = usize::from(a) % SLOTS;
        let door = self.slots[slot];
        let (device, open) = (self.doors[door].device, self.doors[door].open);
        let on = if device == 1 { 3 } else { usize::from(b) % 3 };
        // A program in which only declared streams capture begins no capture during a call.
        let there =
            self.streams[on].filter(|m| m.permanent && !m.blocking && !self.quiet && !driver::is_broken());
        let Some(made) = there else { return };
        let origin = made.named;
        let other = self.stream(c, device, here);
        let apart = other.who != origin.who && !self.captures(other) && !self.captures(origin);
        if !open || !apart || !made.declared {
            return;
        }
        driver::bind(self.contexts[device]);
        if c / 16 % 2 == 1 {
            self.capture_around_records(origin, c);
        }
        say!(self, "// after a check of the next call: cuStreamBeginCapture({origin}, {RELAXED});");
        driver::capture_behind(1 + u64::from(c) / 32 % 4, origin.handle as u64);
        let (mode, thread) = (RELAXED, here.thread);
        let capture =
            Capture { origin, forked: None, device, mode, thread, blocking: false, may_be_lost: false };
        self.captures.push(capture);
        if c % 16 < 4 || slot == 3 {
            self.manage(Step { thread: 0, verb: Verb::Trim, a, b, c, fault });
        } else {
            // A large request, for which the allocator looks at what the other stream freed.
            self.alloc(a, c, 7, fault, here);
        }
        driver::clear_faults();
        driver::bind(self.contexts[device]);
        let mut state = 0;
        driver::capture_state(origin.raw(), &raw mut state);
        if state == 0 {
            say!(self, "// the capture did not begin");
            let n = self.captures.iter().position(|c| c.has(origin.who)).expect("pushed above");
            self.captures.remove(n);
        }
        assert_eq!(driver::captures_destroyed(), 0, "a capture around a record did not survive it");
        self.no_stream_joined();
    }

    /// Other code captures there during each record of the next call, too, so that no check sees it. A context-wide record would destroy such a capture,
    /// which the stand-in counts.
    fn capture_around_records(&mut self, on: Named, c: u8) {
        let call = if c < 128 { c"cuCtxRecordEvent" } else { c"cuEventRecord" };
        say!(self, "// during each {call:?} of the next call: a capture on {on}");
        (1..=4).for_each(|nth| driver::capture_around(call.as_ptr(), nth, on.handle as u64));
    }

    /// Checks that no call has made a stream wait for a captured event, which would make the stream a part of the capture.
    fn no_stream_joined(&self) {
        if driver::is_broken() {
            return;
        }
        for (slot, made) in self.streams.iter().enumerate() {
            let Some(named) = made.map(|m| m.named).filter(|n| !self.captures(*n)) else { continue };
            driver::bind(self.contexts[usize::from(slot == 3)]);
            let mut state = 0;
            driver::capture_state(named.raw(), &raw mut state);
            assert_eq!(state, 0, "{named} was taken into a capture, which the program did not do");
        }
    }
}
