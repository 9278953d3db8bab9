//! Captures of the program's own, beside all that its threads do meanwhile. None may end but by what the header says ends it: a
//! call that waits for the device, and that only if it cannot see the capture.
//!
//! A thread's default stream is blocking: no capture on it survives work on the legacy default stream, whoever queues it. In programs whose
//! threads take turns the model knows of such captures, and does nothing there meanwhile. Where threads run at once it cannot know, so half of
//! those programs have no legacy stream ([`World::has_legacy`]), and capture on blocking streams and on their threads' own; the other half have
//! it, and capture on neither.

use super::{Here, SLOTS, World};
use crate::driver;
use crate::model::{Made, Named, Stats, Who};
use crate::program::{Fault, Step, Verb};
use millpond_plug::status::MillpondStatus as Status;
use std::ffi::CStr;
use std::ptr::null_mut;

/// The modes: global, of the thread, relaxed. Any code may end the last.
const RELAXED: u32 = 2;
/// A driver that does not do these cannot be asked who captures, nor told to spare captures: then they may end.
const SPARING: [&CStr; 2] = [c"cuThreadExchangeStreamCaptureMode", c"cuStreamIsCapturing"];

/// A capture that is open.
#[derive(Clone, Debug)]
pub(crate) struct Capture {
    origin: Named,
    /// A stream that joined it.
    forked: Option<Named>,
    device: usize,
    mode: u32,
    thread: u32,
    /// The legacy default stream would wait for it, which it does not survive.
    blocking: bool,
    /// The program did what may end it.
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
    /// Whether the program may put nothing on a stream but what is to be captured, and no allocator may take it.
    pub(super) fn captures(&self, stream: Named) -> bool {
        self.captures.iter().any(|c| match stream.who {
            Who::Legacy(device) => c.blocking && c.device == device,
            who => c.has(who),
        })
    }

    /// Whether there may be a capture on the device.
    pub(super) fn somebody_captures(&self, device: usize) -> bool {
        self.mail.is_some() || self.captures.iter().any(|c| c.device == device)
    }

    /// What a call of an allocation's that names a stream answers.
    pub(super) fn answers(&self, open: bool, stream: Named, home: Named) -> &'static [Status] {
        match (open, self.captures(stream)) {
            (false, _) => &[Status::UnknownAllocator],
            (true, false) => &[Status::Ok],
            // Its own stream may not have to be asked anything.
            (true, true) if stream.handle == home.handle => &[Status::Capturing, Status::Ok],
            (true, true) => &[Status::Capturing],
        }
    }

    /// What a call that waits for the device answers. A capture there is lost, if no stream that this allocator can ask is in
    /// it; those of other devices live.
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

    /// What a call answers that waits for all that is queued and leaves captures alone, unless everybody on the device has promised that there
    /// are none but of declared streams.
    pub(super) fn waits_beside_captures(&mut self, door: usize, fault: Fault) -> Status {
        let device = self.doors[door].device;
        let expected = self.doors.iter().any(|d| d.device == device && d.expects);
        if expected { Status::Ok } else { self.waits_for_devices(door, fault) }
    }

    /// These calls are passed over by threads' faults.
    pub(crate) fn spare_captures() {
        for name in SPARING {
            driver::exempt(name.as_ptr());
        }
    }

    /// A driver call that was to spare captures failed.
    pub(super) fn deafened(&mut self, call: &str) {
        if SPARING.iter().any(|name| name.to_bytes() == call.as_bytes()) {
            self.captures.iter_mut().for_each(|c| c.may_be_lost = true);
        }
    }

    /// Runs what no capture survives, if there is none.
    pub(super) fn beside_no_capture(&mut self, run: impl FnOnce(&mut World)) {
        let mail = self.mail.clone();
        let others = mail.as_ref().map(|m| m.captures.read().expect("nothing went wrong"));
        if self.captures.is_empty() && others.as_ref().is_none_or(|n| **n == 0) {
            run(self);
        }
    }

    /// Begins a capture, perhaps with a second stream, and puts something into it.
    pub(super) fn capture(&mut self, a: u8, b: u8, c: u8, here: Here) {
        if driver::is_broken() {
            return;
        }
        let device = usize::from(b >= 224);
        driver::bind(self.contexts[device]);
        // The legacy stream cannot. Where nothing captures but on declared streams, it is one of those.
        let origin = if self.quiet {
            let slot = if device == 1 { 3 } else { usize::from(a) % 3 };
            let declared = self.streams[slot].filter(|m| m.declared && self.mail.is_none());
            let Some(made) = declared.or_else(|| self.declared_now(slot)) else { return };
            made.named
        } else {
            let named = self.stream(if a % 8 == 6 { a - 6 } else { a }, device, here);
            // What others queue there meanwhile would be captured.
            if self.is_shared(named) { self.made(1, 1) } else { named }
        };
        let blocking = self.is_blocking(origin);
        // What others that run at once do on the legacy stream is not known.
        let apart = self.mail.is_none() || !self.has_legacy;
        if self.captures(origin) || self.captures.len() > 2 || blocking && !apart {
            return;
        }
        let mode = u32::from(b) % 3;
        say!(self, "cuStreamBeginCapture({origin}, {mode});");
        if let Some(mail) = self.mail.clone() {
            *mail.captures.write().expect("nothing went wrong") += 1;
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

    /// A stream that an allocator of its device is told to be permanent, just now, if there is one.
    fn declared_now(&mut self, slot: usize) -> Option<Made> {
        let device = usize::from(slot == 3);
        let opens =
            |n: &usize| self.doors[self.slots[*n]].open && self.doors[self.slots[*n]].device == device;
        let of = (0..SLOTS).find(opens).filter(|_| self.mail.is_none())?;
        self.permanent(of as u8, slot as u8, 0);
        self.streams[slot].filter(|m| m.declared)
    }

    fn is_blocking(&self, stream: Named) -> bool {
        self.streams.iter().flatten().find(|m| m.named.who == stream.who).is_none_or(|m| m.blocking)
    }

    /// Ends one of the captures that this thread may end; then all that was held back comes back with a synchronise.
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
        if self.mail.is_some() || !self.captures.is_empty() || driver::is_broken() {
            return;
        }
        for door in 0..self.doors.len() {
            if self.doors[door].open && self.doors[door].device == device {
                let sync = Step { thread: 0, verb: Verb::Sync, a: 0, b: 0, c: 0, fault: 0 };
                let (of, b) = if door == self.torch[1] { (self.torch[0], 192) } else { (door, 0) };
                let Some(slot) = self.slots.iter().position(|d| *d == of) else { continue };
                self.manage(Step { a: slot as u8, b, ..sync });
                let stats = Stats::of(self.doors[door].number);
                assert_eq!(stats.total("held_back"), 0, "the device is quiet: {stats}");
            }
        }
    }

    /// A stream is destroyed in its capture, which nobody ends before. The one it began on ends it with itself; one that joined it, and that it has waited
    /// for, leaves it.
    pub(super) fn dies_capturing(&mut self, a: u8, b: u8) {
        let Some(n) = super::pick(self.captures.len(), a) else { return };
        let Capture { origin, forked, device, may_be_lost, .. } = self.captures[n].clone();
        // Of one that a synchronise has destroyed there is nothing to wait for.
        if may_be_lost {
            return;
        }
        let dies = forked.filter(|_| b.is_multiple_of(2)).unwrap_or(origin);
        let ends = |m: Made| m.named.who == dies.who && !m.permanent && !m.kept;
        let of_it = |m: &Option<Made>| {
            m.is_some_and(|m| ends(m) && !self.is_taken_for_another(device, m.named.handle))
        };
        // A thread's own ends with the thread.
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
        if let Some(mail) = self.mail.clone() {
            *mail.captures.write().expect("nothing went wrong") -= 1;
        }
        self.nobody_joined();
        if b / 2 % 2 == 1 {
            self.nothing_is_held_back(device);
        }
    }

    fn end_capture(&mut self, n: usize) {
        self.nobody_joined();
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
        if let Some(mail) = self.mail.clone() {
            *mail.captures.write().expect("nothing went wrong") -= 1;
        }
    }

    /// Ends the captures that this thread may end, and so those that only it may.
    pub(crate) fn leave(&mut self, here: Here) {
        while let Some(n) = self.captures.iter().position(|c| c.is_ended_by(here)) {
            self.end_capture(n);
        }
    }

    /// Whether a stream captures nothing any more, so that it can be destroyed.
    pub(super) fn released(&mut self, slot: usize, here: Here) -> bool {
        let Some(made) = self.streams[slot].filter(|m| !m.permanent && !m.kept) else { return true };
        let Some(n) = self.captures.iter().position(|c| c.has(made.named.who)) else { return true };
        let ours = self.captures[n].is_ended_by(here);
        if ours {
            self.end_capture(n);
        }
        ours
    }

    /// A capture begins while a call is under way that names another stream: right behind one of its questions. Not on a
    /// stream that was not declared, which nobody asks, nor on a blocking one: what comes of these is said in the header.
    pub(super) fn capture_meanwhile(&mut self, a: u8, b: u8, c: u8, fault: Fault, here: Here) {
        let slot = usize::from(a) % SLOTS;
        let door = self.slots[slot];
        let (device, open) = (self.doors[door].device, self.doors[door].open);
        let on = if device == 1 { 3 } else { usize::from(b) % 3 };
        // Where nothing captures but on declared streams, they do not while others call.
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
        say!(self, "// behind a question of the next call: cuStreamBeginCapture({origin}, {RELAXED});");
        driver::capture_behind(1 + u64::from(c) / 32 % 4, origin.handle as u64);
        let (mode, thread) = (RELAXED, here.thread);
        let capture =
            Capture { origin, forked: None, device, mode, thread, blocking: false, may_be_lost: false };
        self.captures.push(capture);
        if c % 16 < 4 || slot == 3 {
            self.manage(Step { thread: 0, verb: Verb::Trim, a, b, c, fault });
        } else {
            // A large one: what the other stream freed would serve it.
            self.alloc(a, c, 7, fault, here);
        }
        driver::clear_faults();
        driver::bind(self.contexts[device]);
        let mut state = 0;
        driver::capture_state(origin.raw(), &raw mut state);
        if state == 0 {
            say!(self, "// it did not begin");
            let n = self.captures.iter().position(|c| c.has(origin.who)).expect("pushed above");
            self.captures.remove(n);
        }
        assert_eq!(driver::captures_destroyed(), 0, "a capture around a record did not survive it");
        self.nobody_joined();
    }

    /// Other code captures there for as long as a record of the next call, too: no question sees that one. A context-wide record would
    /// destroy it, which the stand-in tells.
    fn capture_around_records(&mut self, on: Named, c: u8) {
        let call = if c < 128 { c"cuCtxRecordEvent" } else { c"cuEventRecord" };
        say!(self, "// around records of the next call, {call:?}: captures on {on}");
        (1..=4).for_each(|nth| driver::capture_around(call.as_ptr(), nth, on.handle as u64));
    }

    /// No call has made a stream wait for what a capture took: it would be a part of the capture from then on.
    fn nobody_joined(&self) {
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
