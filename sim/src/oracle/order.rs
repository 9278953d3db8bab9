//! Happens-before: streams, events and host threads, and how each call of the program orders them.
//!
//! The rules are the edges E1 to E8 that `oracle/tests/edges.rs` shows one by one. There is a clock per stream, per host thread and per recorded event:
//! an operation joins its host thread's clock into its stream's and advances that; a record copies the stream's clock; a wait
//! joins the copy, as it is at the wait, into the waiting stream's; an observation joins it into the host thread's. An action on the legacy default stream first joins all blocking streams
//! of its device that acted since; an action on a blocking stream first joins the legacy one.
//!
//! It is weaker where the platforms' documents leave room, so that no program relies on an edge that may not exist: synchronising
//! with a blocking stream teaches nothing about legacy work that no action of that stream has followed; and the legacy
//! stream does not wait for streams already destroyed (a device synchronise and a context-wide record do).
//!
//! Costs: an operation is O(1) if its thread learnt nothing new since the stream's last one; a join is O(pages of the clocks
//! that are not shared). A destroyed stream whose work the one host clock has seen complete is retired: it counts as before everything, and clocks
//! drop it.
//!
//! This does not know memory, allocations or who is to blame.

use super::clock::{At, Clock, Line, Stamp};
use super::waits::Waits;
use super::{EventKey, HostKey, StreamKey, Tally};
use hashbrown::HashMap;
use millpond_driver::StreamKind;
use millpond_driver::units::{DeviceId, StreamId};
use std::collections::BTreeSet;

#[derive(Debug)]
struct Stream {
    id: StreamId,
    kind: StreamKind,
    device: DeviceId,
    stamp: Stamp,
    /// The host thread it last joined, and that thread's version then.
    host_seen: (HostKey, u64),
    /// Counts its actions, so that the legacy stream and its partners skip joins that teach nothing.
    actions: u64,
    legacy_seen: u64,
    /// Already in its device's `stirred`.
    stirred: bool,
    destroyed: bool,
    retired: bool,
}

#[derive(Debug)]
struct Host {
    stamp: Stamp,
    version: u64,
}

#[derive(Debug)]
struct Event {
    captured: Stamp,
    waited_on: bool,
}

#[derive(Default, Debug)]
struct Device {
    legacy: Option<StreamKey>,
    /// Blocking streams that acted since the legacy stream last did.
    stirred: Vec<StreamKey>,
    /// Streams that acted since a host last saw the whole device complete.
    unseen: BTreeSet<StreamKey>,
    live: BTreeSet<StreamKey>,
    /// Destroyed and not retired.
    gone: Vec<StreamKey>,
}

/// Happens-before so far.
#[derive(Debug)]
pub(super) struct Order {
    strict: bool,
    streams: Vec<Option<Stream>>,
    hosts: HashMap<HostKey, Host>,
    events: HashMap<EventKey, Event>,
    devices: HashMap<DeviceId, Device>,
    waits: Waits,
    live: usize,
    /// Destroyed, not yet retired; searched when it has grown to `sweep_at`.
    dying: Vec<StreamKey>,
    sweep_at: usize,
}

/// A clock with fewer entries is never searched for retired lines.
const LEAN: usize = 64;

impl Order {
    pub(super) fn new(strict: bool) -> Order {
        Order {
            strict,
            streams: Vec::new(),
            hosts: HashMap::new(),
            events: HashMap::new(),
            devices: HashMap::new(),
            waits: Waits::default(),
            live: 0,
            dying: Vec::new(),
            sweep_at: LEAN,
        }
    }
    /// Whether every host thread has a clock of its own.
    pub(super) fn strict(&self) -> bool {
        self.strict
    }
    /// The thread whose clock is used: there is one for all unless strict.
    pub(super) fn host(&self, host: HostKey) -> HostKey {
        if self.strict { host } else { HostKey(0) }
    }
    /// How many waits a successful check depended on.
    pub(super) fn waits_needed(&self) -> u64 {
        self.waits.needed_count()
    }
    /// A stream's name and kind, for reports.
    pub(super) fn stream_name(&self, stream: StreamKey) -> (StreamId, StreamKind) {
        let s = self.stream(stream);
        (s.id, s.kind)
    }

    fn stream(&self, key: StreamKey) -> &Stream {
        let found = self.streams.get(key.0 as usize).and_then(Option::as_ref);
        found.unwrap_or_else(|| panic!("the oracle was never notified of {key:?}"))
    }
    fn stream_mut(&mut self, key: StreamKey) -> &mut Stream {
        let found = self.streams.get_mut(key.0 as usize).and_then(Option::as_mut);
        found.unwrap_or_else(|| panic!("the oracle was never notified of {key:?}"))
    }
    fn host_mut(&mut self, host: HostKey) -> &mut Host {
        let (host, strict) = (self.host(host), self.strict);
        self.hosts.entry(host).or_insert_with(|| Host {
            // One host clock needs no tick of its own: whatever it did is before whatever is submitted later.
            stamp: if strict { Stamp::start(Line::host(host)) } else { Stamp::default() },
            version: 1,
        })
    }

    // --- what the program does

    pub(super) fn stream_created(
        &mut self,
        key: StreamKey,
        id: StreamId,
        kind: StreamKind,
        device: DeviceId,
    ) {
        let index = key.0 as usize;
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, || None);
        }
        assert!(self.streams[index].is_none(), "{key:?} was created twice");
        self.streams[index] = Some(Stream {
            id,
            kind,
            device,
            stamp: Stamp::start(Line::stream(key)),
            host_seen: (HostKey(0), 0),
            actions: 0,
            legacy_seen: 0,
            stirred: false,
            destroyed: false,
            retired: false,
        });
        let device = self.devices.entry(device).or_default();
        if kind == StreamKind::LegacyDefault {
            device.legacy = Some(key);
        }
        device.live.insert(key);
        self.live += 1;
    }

    pub(super) fn stream_destroyed(&mut self, key: StreamKey) {
        let s = self.stream_mut(key);
        assert!(!s.destroyed, "{key:?} was destroyed twice");
        s.destroyed = true;
        let device = s.device;
        let device = self.devices.get_mut(&device).expect("a stream's device is known");
        device.gone.push(key);
        device.live.remove(&key);
        device.stirred.retain(|&k| k != key);
        if device.legacy == Some(key) {
            device.legacy = None;
        }
        self.live -= 1;
        self.dying.push(key);
    }

    /// One operation; returns where it is, and all that happened before it.
    pub(super) fn submit(&mut self, host: HostKey, key: StreamKey) -> (At, Stamp) {
        self.act(host, key);
        let s = self.stream_mut(key);
        (s.stamp.tick(), s.stamp.clone())
    }

    /// What any action on a stream does first: join the host's knowledge, and the legacy stream's partners.
    fn act(&mut self, host: HostKey, key: StreamKey) {
        let host = self.host(host);
        let h = self.host_mut(host);
        let (version, known) = (h.version, h.stamp.clone());
        let s = self.stream_mut(key);
        assert!(!s.destroyed, "the oracle was notified of an action on {key:?}, which is destroyed");
        s.actions += 1;
        let (kind, device, stale) = (s.kind, s.device, s.host_seen != (host, version));
        if stale {
            s.host_seen = (host, version);
            s.stamp.join(&known);
            self.prune(key);
        }
        self.devices.get_mut(&device).expect("a stream's device is known").unseen.insert(key);
        match kind {
            StreamKind::NonBlocking => {}
            StreamKind::Blocking | StreamKind::PerThreadDefault => self.act_beside_legacy(key),
            StreamKind::LegacyDefault => {
                let device = self.devices.get_mut(&device).expect("a stream's device is known");
                for other in std::mem::take(&mut device.stirred) {
                    let partner = self.stream_mut(other);
                    partner.stirred = false;
                    let stamp = partner.stamp.clone();
                    self.stream_mut(key).stamp.join(&stamp);
                }
                self.prune(key);
            }
        }
    }

    fn act_beside_legacy(&mut self, key: StreamKey) {
        let device = self.stream(key).device;
        let device = self.devices.get_mut(&device).expect("a stream's device is known");
        let legacy = device.legacy;
        let s = self.streams[key.0 as usize].as_mut().expect("looked up by the caller");
        if !s.stirred {
            s.stirred = true;
            device.stirred.push(key);
        }
        if let Some(legacy) = legacy {
            let l = self.stream(legacy);
            let (actions, stamp) = (l.actions, l.stamp.clone());
            let s = self.stream_mut(key);
            if s.legacy_seen != actions {
                s.legacy_seen = actions;
                s.stamp.join(&stamp);
                self.prune(key);
            }
        }
    }

    pub(super) fn record(&mut self, host: HostKey, event: EventKey, key: StreamKey) {
        self.act(host, key);
        let captured = self.stream(key).stamp.clone();
        self.events.insert(event, Event { captured, waited_on: false });
    }

    pub(super) fn record_context(&mut self, host: HostKey, event: EventKey, device: DeviceId) {
        let mut captured = self.everything_on(device);
        captured.join(&self.host_mut(host).stamp.clone());
        self.events.insert(event, Event { captured, waited_on: false });
    }

    pub(super) fn event_destroyed(&mut self, event: EventKey) {
        self.events.remove(&event);
    }

    /// All that was submitted to a device, by live and destroyed streams.
    fn everything_on(&self, device: DeviceId) -> Stamp {
        let Some(d) = self.devices.get(&device) else { return Stamp::default() };
        let mut all = Stamp::default();
        for &key in d.live.iter().chain(&d.gone) {
            all.join(&self.stream(key).stamp);
        }
        all
    }

    pub(super) fn wait(&mut self, host: HostKey, key: StreamKey, event: EventKey, tally: &mut Tally) {
        self.act(host, key);
        tally.waits += 1;
        let Some(captured) = self.look_at(event, tally) else {
            tally.waits_on_unrecorded += 1;
            return;
        };
        let s = self.streams[key.0 as usize].as_mut().expect("the action above looked it up");
        let before = s.stamp.base.clone();
        if s.stamp.join_via(&captured, self.waits.next()) {
            self.waits.add(before, captured);
            self.prune(key);
        } else {
            tally.waits_implied += 1;
        }
    }

    /// What the event captures now, if it was ever recorded; the record counts as used.
    fn look_at(&mut self, event: EventKey, tally: &mut Tally) -> Option<Stamp> {
        let e = self.events.get_mut(&event)?;
        if !e.waited_on {
            e.waited_on = true;
            tally.records_never_waited_on -= 1;
        }
        Some(e.captured.clone())
    }

    pub(super) fn host_sees_event(&mut self, host: HostKey, event: EventKey, tally: &mut Tally) {
        if let Some(captured) = self.look_at(event, tally) {
            self.host_learns(host, &captured);
        }
    }
    pub(super) fn host_sees_stream(&mut self, host: HostKey, key: StreamKey) {
        let stamp = self.stream(key).stamp.clone();
        self.host_learns(host, &stamp);
    }
    pub(super) fn host_sees_device(&mut self, host: HostKey, device: DeviceId) {
        let strict = self.strict;
        let Some(d) = self.devices.get_mut(&device) else { return };
        let unseen = core::mem::take(&mut d.unseen);
        // A single host knows what the others did before: most of thousands of streams have done nothing since. Several hosts do not
        // know what each other saw.
        let streams = if strict { d.live.iter().chain(&d.gone).copied().collect() } else { unseen };
        for key in streams {
            let stamp = self.stream(key).stamp.clone();
            self.host_joins(host, &stamp);
        }
        self.retire_when_due();
    }

    fn host_learns(&mut self, host: HostKey, stamp: &Stamp) {
        self.host_joins(host, stamp);
        self.retire_when_due();
    }

    fn host_joins(&mut self, host: HostKey, stamp: &Stamp) {
        let h = self.host_mut(host);
        if h.stamp.join(stamp) {
            h.version += 1;
        }
    }

    fn retire_when_due(&mut self) {
        if !self.strict && self.dying.len() >= self.sweep_at {
            self.retire();
        }
    }

    pub(super) fn host_edge(&mut self, from: HostKey, to: HostKey) {
        if self.strict {
            let stamp = self.host_mut(from).stamp.clone();
            let to = self.host_mut(to);
            to.stamp.join(&stamp);
            to.version += 1;
        }
    }

    /// A step of the host itself (an allocation, a free, an access by the CPU); returns where it is.
    pub(super) fn host_step(&mut self, host: HostKey) -> At {
        let host = self.host(host);
        let strict = self.strict;
        let h = self.host_mut(host);
        if strict {
            h.version += 1;
            h.stamp.tick()
        } else {
            At { line: Line::host(host), tick: 1 }
        }
    }

    // --- what is known

    /// What a host thread has seen complete.
    pub(super) fn host_stamp(&mut self, host: HostKey) -> Stamp {
        self.host_mut(host).stamp.clone()
    }
    /// The point that work submitted to the stream now by this thread would come after; without a stream, the thread's own.
    pub(super) fn now(&mut self, host: HostKey, stream: Option<StreamKey>) -> Stamp {
        let known = self.host_stamp(host);
        let Some(key) = stream else { return known };
        let mut stamp = self.stream(key).stamp.clone();
        stamp.join(&known);
        stamp
    }
    /// Where a stream is now: its number of operations.
    pub(super) fn position(&self, stream: StreamKey) -> At {
        self.stream(stream).stamp.own.expect("a stream has a line")
    }
    /// Whether `at` happened before `point`. A wait that this depends on is marked as needed.
    pub(super) fn before(&mut self, at: At, point: &Stamp) -> bool {
        if point.own.is_some_and(|own| own.line == at.line && own.tick >= at.tick)
            || self.always_before(at.line)
        {
            return true;
        }
        match point.get(at.line) {
            Some(e) if e.tick >= at.tick => {
                self.waits.needed(at.line, at.tick, e.via);
                true
            }
            _ => false,
        }
    }
    /// Whether `at` happened before `point`; no wait counts as needed for it.
    pub(super) fn known_before(&self, at: At, point: &Stamp) -> bool {
        point.tick_of(at.line) >= at.tick || self.always_before(at.line)
    }
    /// The first part of `earlier` that did not happen before `point`; the earlier one's own line first.
    pub(super) fn first_unordered(&mut self, earlier: &Stamp, point: &Stamp) -> Option<At> {
        if let Some(own) = earlier.own
            && own.tick > 0
            && !self.before(own, point)
        {
            return Some(own);
        }
        let mut first: Option<At> = None;
        point.base.any_beyond(&earlier.base, |e| {
            let missing = point.tick_of(e.line) < e.tick && !self.always_before(e.line);
            if missing && first.is_none_or(|at| e.line < at.line) {
                first = Some(At { line: e.line, tick: e.tick });
            }
            false
        });
        first
    }

    fn always_before(&self, line: Line) -> bool {
        match line.split() {
            Ok(stream) => self.stream(stream).retired,
            Err(_) => !self.strict,
        }
    }

    // --- keeping clocks lean

    /// Dead streams that the host has seen complete count as before everything from here on.
    fn retire(&mut self) {
        let known = self.host_stamp(HostKey(0));
        let dying = std::mem::take(&mut self.dying);
        for key in dying {
            let s = self.stream_mut(key);
            let end = s.stamp.own.expect("a stream has a line");
            if known.tick_of(end.line) >= end.tick {
                s.retired = true;
                s.stamp.base = Clock::default();
            } else {
                self.dying.push(key);
            }
        }
        self.sweep_at = LEAN.max(2 * self.dying.len());
        let streams = &self.streams;
        let keep = |line: Line| !retired(streams, line);
        for host in self.hosts.values_mut() {
            host.stamp.base.retain(keep);
        }
        for device in self.devices.values_mut() {
            device.gone.retain(|&key| keep(Line::stream(key)));
            device.unseen.retain(|&key| keep(Line::stream(key)));
        }
    }

    /// Drops retired lines from a stream's clock when it has grown far beyond the number of live streams.
    fn prune(&mut self, key: StreamKey) {
        // After a look there are at most four times as many as there are streams.
        if self.stream(key).stamp.base.len() <= 8 * (self.live + self.dying.len()) + LEAN || self.strict {
            return;
        }
        let mut base = std::mem::take(&mut self.stream_mut(key).stamp.base);
        let streams = &self.streams;
        base.retain(|line| !retired(streams, line));
        self.stream_mut(key).stamp.base = base;
    }
}

#[cfg(test)]
impl Order {
    /// How many lines the widest clock in use knows.
    pub(super) fn widest_clock(&self) -> usize {
        let streams = self.streams.iter().flatten().map(|s| &s.stamp);
        let hosts = self.hosts.values().map(|h| &h.stamp);
        streams.chain(hosts).map(|s| s.base.len()).max().unwrap_or(0)
    }
}

fn retired(streams: &[Option<Stream>], line: Line) -> bool {
    match line.split() {
        Ok(stream) => streams[stream.0 as usize].as_ref().is_some_and(|s| s.retired),
        Err(_) => false,
    }
}
