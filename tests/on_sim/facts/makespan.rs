//! Virtual time: no program ends before its critical path does, whatever the schedule.
//!
//! The critical path is computed here from the program alone, with rates and edges of its own: an operation begins when the
//! operation before it on its stream, what its stream waits for or follows by itself (the legacy stream and blocking ones), every
//! conflicting use of its bytes and whatever the host had seen complete when it asked are over, and lasts its bytes over its rate; a
//! host function lasts nothing, and orders as they do, and a gate is over when the host opened it. An event of the whole context is behind
//! all that is queued on its device; a copy between two devices lasts its bytes over the rate of their link. Engines and prices of calls only add to
//! that. Programs are lawful: before a use that conflicts with another stream's, they wait on the device, on the host, or
//! ask once and trust a yes, as an allocator does.

use super::*;
use millpond::driver::{HostKind, OwnedHost, OwnedRange};
use millpond::{Allocator, Config, Limit};
use millpond_sim::{Gate, HostFunction, Schedule};
use millpond_testkit::dice::Dice;

/// Nanoseconds that so many bytes take at so many bytes a microsecond.
fn lasts(bytes: u64, rate: u64) -> u64 {
    (bytes * 1000 / rate).max(1)
}
const KERNELS: u64 = 2_000_000;
const BUS: u64 = 55_500;

const SCHEDULES: [Schedule; 5] =
    [Schedule::Earliest, Schedule::Latest, Schedule::Random(1), Schedule::Random(2), Schedule::Random(3)];

/// A use of a buffer: on which stream, whether it writes, the event behind it, which operation it is.
struct Use {
    stream: usize,
    writes: bool,
    event: SimEvent,
    operation: usize,
}

/// How a stream is ordered with others by itself (E4).
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Legacy,
    Blocking,
    Alone,
}

impl Kind {
    /// Whether work on the one comes behind all earlier work on the other.
    fn minds(self, other: Kind) -> bool {
        matches!((self, other), (Kind::Legacy, Kind::Blocking) | (Kind::Blocking, Kind::Legacy))
    }
}

/// An operation, and what it comes after.
struct Operation {
    after: Vec<usize>,
    /// Up to when the host had waited or seen when it asked, or opened it.
    asked: u64,
    nanos: u64,
    /// A gate that is closed.
    closed: bool,
    /// When it is over at the earliest, unless it is behind a closed gate.
    over: Option<u64>,
}

/// What a program's own edges say of its time.
#[derive(Default)]
struct Path {
    /// Each stream's kind and its last operation. Of those too that are gone.
    streams: Vec<(Kind, Option<usize>)>,
    operations: Vec<Operation>,
    /// Up to when the host has waited or seen.
    host: u64,
}

impl Path {
    fn of(kinds: &[Kind], host: u64) -> Path {
        Path { streams: kinds.iter().map(|&kind| (kind, None)).collect(), host, ..Path::default() }
    }
    /// One more operation, behind these and whatever its stream is behind by itself.
    fn operation(&mut self, stream: usize, mut after: Vec<usize>, nanos: u64) -> usize {
        let (kind, own) = self.streams[stream];
        after.extend(own);
        after.extend(self.streams.iter().filter(|s| kind.minds(s.0)).filter_map(|s| s.1));
        self.operations.push(Operation { after, asked: self.host, nanos, closed: false, over: None });
        let number = self.operations.len() - 1;
        self.streams[stream].1 = Some(number);
        self.finish(number);
        number
    }
    fn finish(&mut self, number: usize) {
        let Operation { after, asked, nanos, closed, .. } = &self.operations[number];
        let ready =
            after.iter().try_fold(*asked, |ready, &o| self.operations[o].over.map(|over| over.max(ready)));
        self.operations[number].over = ready.filter(|_| !closed).map(|ready| ready + nanos);
    }
    fn gate(&mut self, stream: usize) -> usize {
        let number = self.operation(stream, Vec::new(), 0);
        let gate = &mut self.operations[number];
        (gate.closed, gate.over) = (true, None);
        number
    }
    /// The host opens a gate: how many operations have a time by that.
    fn open(&mut self, gate: usize, host: u64) -> u64 {
        (self.operations[gate].closed, self.operations[gate].asked) = (false, host);
        let late: Vec<usize> =
            (gate..self.operations.len()).filter(|&o| self.operations[o].over.is_none()).collect();
        for &o in &late {
            self.finish(o);
        }
        late.iter().filter(|&&o| self.operations[o].over.is_some()).count() as u64
    }
    fn over(&self, operation: usize) -> Option<u64> {
        self.operations[operation].over
    }
    /// Whether nothing on this stream is behind a closed gate.
    fn is_open(&self, stream: usize) -> bool {
        self.streams[stream].1.is_none_or(|last| self.over(last).is_some())
    }
    /// The end of all that is not behind a closed gate, and of the host's waits.
    fn end(&self) -> u64 {
        self.operations.iter().filter_map(|o| o.over).fold(self.host, u64::max)
    }
    fn host_saw(&mut self, operation: usize) {
        self.host = self.host.max(self.over(operation).expect("nothing behind a closed gate is over"));
    }
}

/// Device buffers, and behind them pinned ones, which copies and host functions share.
const DEVICE: usize = 2;
const BUFFERS: usize = 4;
/// And last one of another device's.
const FAR: usize = BUFFERS;

/// How often what may shorten a path was at stake: a question answered with yes, and a use that nothing but the legacy stream orders, by
/// itself, behind another stream's; and what a gate keeps.
#[derive(Default, Debug)]
struct Stake {
    /// Waits for events behind all that is queued on a device, and copies between devices.
    wide: u64,
    peers: u64,
    yes: u64,
    implied: u64,
    /// Operations that were behind gates.
    behind: u64,
}

struct Program {
    sim: Sim,
    /// The other device, which has one stream, the first of all.
    other: Sim,
    coins: Dice,
    /// Each with whether it is there.
    streams: Vec<(SimStream, bool)>,
    addrs: [Addr; BUFFERS + 1],
    uses: [Vec<Use>; BUFFERS + 1],
    path: Path,
    /// Those that are closed, and which operations they are.
    gates: Vec<(Gate, usize)>,
    stake: Stake,
    _memory: ([OwnedRange<Sim>; DEVICE], OwnedHost<Sim>, OwnedRange<Sim>),
}

impl Program {
    fn new(seed: u64, schedule: Schedule) -> Program {
        let mut coins = Dice::new(seed);
        let devices = Sim::devices(2, GIB);
        let [sim, other] = devices.try_into().expect("two");
        let sim = sim.schedule(schedule).contents(false);
        let mut kinds: Vec<Kind> = match coins.number(3) {
            0 => vec![Kind::Alone; 2 + coins.number(2) as usize],
            1 => vec![Kind::Legacy, Kind::Blocking, Kind::Blocking],
            _ => vec![Kind::Legacy, Kind::Blocking, Kind::Blocking, Kind::Alone],
        };
        kinds.insert(0, Kind::Alone);
        let on = |n: usize| if n == 0 { &other } else { &sim };
        let streams = kinds.iter().enumerate().map(|(n, &kind)| (stream(on(n), kind), true)).collect();
        let device = [(); DEVICE].map(|()| sim.allocate(4 * MIB).expect("memory"));
        let pinned = sim.pin(8 * MIB, HostKind::Cached).expect("pinned");
        let far = other.allocate(4 * MIB).expect("memory");
        let second = Addr(pinned.addr().0 + 4 * MIB);
        let addrs = [device[0].addr(), device[1].addr(), pinned.addr(), second, far.addr()];
        // What was done so far took the host's time; the program begins now.
        let path = Path::of(&kinds, host_time(&sim));
        let (uses, gates, stake) = Default::default();
        let memory = (device, pinned, far);
        Program { sim, other, coins, streams, addrs, uses, path, gates, stake, _memory: memory }
    }

    /// The device of a stream.
    fn device(&self, stream: usize) -> &Sim {
        if stream == 0 { &self.other } else { &self.sim }
    }

    /// Orders an operation behind the uses that it conflicts with: those that the device waits for.
    fn order(&mut self, on: usize, touched: &[(usize, bool)]) -> Vec<usize> {
        let mut ready = Vec::new();
        for &(b, writes) in touched {
            for u in self.uses[b].iter().filter(|u| (writes || u.writes) && u.stream != on) {
                if self.path.streams[on].0.minds(self.path.streams[u.stream].0) {
                    self.stake.implied += 1;
                    continue;
                }
                match self.coins.number(5) {
                    0 if self.streams[u.stream].1 && self.path.is_open(u.stream) => {
                        self.device(u.stream).synchronize_stream(&self.streams[u.stream].0).expect("waited");
                        self.path.host_saw(self.path.streams[u.stream].1.expect("the use"));
                    }
                    1 if self.path.over(u.operation).is_some() => {
                        assert!(self.device(u.stream).wait_event(&u.event, Duration::MAX).expect("waited"));
                        self.path.host_saw(u.operation);
                    }
                    2 if self.device(u.stream).query(&u.event).expect("asked") => {
                        self.path.host_saw(u.operation);
                        self.stake.yes += 1;
                    }
                    3 => {
                        let all = self.device(u.stream).event().expect("an event");
                        self.device(u.stream).record_context(&all).expect("recorded");
                        self.device(on).wait(&self.streams[on].0, &all).expect("a wait");
                        let last = self.path.streams.iter().enumerate().filter_map(|(n, s)| Some((n, s.1?)));
                        ready.extend(last.filter(|&(n, _)| (n == 0) == (u.stream == 0)).map(|(_, o)| o));
                        // That one comes before, whatever is last on its stream.
                        ready.push(u.operation);
                        self.stake.wide += 1;
                    }
                    _ => {
                        self.device(on).wait(&self.streams[on].0, &u.event).expect("a wait");
                        ready.push(u.operation);
                    }
                }
            }
        }
        ready
    }

    fn operation(&mut self) {
        let on = self.coins.number(self.streams.len() as u64) as usize;
        if !self.streams[on].1 {
            return;
        }
        let b = self.coins.number(DEVICE as u64) as usize;
        let p = DEVICE + self.coins.number((BUFFERS - DEVICE) as u64) as usize;
        // The other device's stream has operations of two kinds.
        let what = if on == 0 { 9 + self.coins.number(3) } else { self.coins.number(11) };
        // A copy between the two is queued on a stream of the sender's.
        let what = match (on, what) {
            (0, 9) => 10,
            (1.., 10) => 9,
            _ => what,
        };
        let touched: &[(usize, bool)] = match what {
            9 => &[(b, false), (FAR, true)],
            10 => &[(FAR, false), (b, true)],
            11 => &[(FAR, true)],
            0 | 1 => &[(b, what == 0)],
            2 => &[(p, false), (b, true)],
            3 => &[(b, false), (p, true)],
            4 => &[(b, true)],
            5 => &[(b, false)],
            6 => &[(1 - b, false), (b, true)],
            7 => &[(p, true)],
            _ => &[(p, false)],
        };
        let ready = self.order(on, touched);
        self.stake.peers += u64::from(matches!(what, 9 | 10));
        let (sim, stream, addrs) = (&self.sim, &self.streams[on].0, self.addrs);
        let bytes = (4 * MIB) >> self.coins.number(3);
        let kernel = || {
            let kernel = Launch::new("kernel");
            touched.iter().fold(kernel, |kernel, &(b, writes)| {
                if writes { kernel.writes(addrs[b], bytes) } else { kernel.reads(addrs[b], bytes) }
            })
        };
        let nanos = match what {
            0 | 1 => {
                let takes = self.coins.number(80_000);
                sim.launch(stream, kernel().takes(takes)).expect("queued");
                takes
            }
            2 => {
                h2d(sim, addrs[b], addrs[p].0 as *const u8, bytes, stream).expect("queued");
                lasts(bytes, BUS)
            }
            3 => {
                d2h(sim, addrs[p].0 as *mut u8, addrs[b], bytes, stream).expect("queued");
                lasts(bytes, BUS)
            }
            4 => {
                fill(sim, addrs[b], 1, bytes, stream).expect("queued");
                lasts(bytes, KERNELS)
            }
            5 => {
                sim.launch(stream, kernel()).expect("queued");
                lasts(bytes, KERNELS)
            }
            6 => {
                d2d(sim, addrs[b], addrs[1 - b], bytes, stream).expect("queued");
                lasts(bytes, KERNELS)
            }
            9 | 10 => {
                let (from, to) = if what == 9 { (sim, &self.other) } else { (&self.other, sim) };
                let (src, dst) = if what == 9 { (b, FAR) } else { (FAR, b) };
                peer(from, addrs[dst], to, addrs[src], bytes, stream).expect("queued");
                lasts(bytes, BUS)
            }
            11 => {
                self.other.launch(stream, kernel()).expect("queued");
                lasts(bytes, KERNELS)
            }
            // The host's code takes no time of the device's, and the order goes through it all the same.
            _ => {
                let function = HostFunction::new("on the host", || ());
                let function = if what == 7 {
                    function.writes(addrs[p], bytes)
                } else {
                    function.reads(addrs[p], bytes)
                };
                sim.host_function(stream, function).expect("queued");
                0
            }
        };
        let operation = self.path.operation(on, ready, nanos);
        for &(b, writes) in touched {
            if writes {
                self.uses[b].clear();
            }
            let event = mark(self.device(on), &self.streams[on].0);
            self.uses[b].push(Use { stream: on, writes, event, operation });
        }
    }

    fn close_a_gate(&mut self) {
        let on = self.coins.number(self.streams.len() as u64) as usize;
        if self.streams[on].1 && self.gates.len() < 3 {
            let gate = self.device(on).gate(&self.streams[on].0).expect("queued");
            self.gates.push((gate, self.path.gate(on)));
        }
    }

    fn open_a_gate(&mut self) {
        if !self.gates.is_empty() {
            let which = self.coins.number(self.gates.len() as u64) as usize;
            let (gate, operation) = self.gates.swap_remove(which);
            self.stake.behind += self.path.open(operation, host_time(&self.sim));
            gate.open();
        }
    }

    /// A stream goes, whatever is queued on it, and another of its kind comes.
    fn end_a_stream(&mut self) {
        let which = self.coins.number(self.streams.len() as u64) as usize;
        let (kind, _) = self.path.streams[which];
        // The legacy stream may wait for one that is gone, and is not promised to: behind a closed gate the path could not tell which.
        let tells = kind == Kind::Alone || self.path.is_open(which);
        if which == 0 || kind == Kind::Legacy || !self.streams[which].1 || !tells {
            return;
        }
        self.sim.destroy_stream(&self.streams[which].0).expect("it is there");
        self.streams[which].1 = false;
        // The legacy stream is not promised to wait for it (the oracle's order says so): who needs its work, waits by an event.
        self.path.streams[which].0 = Kind::Alone;
        self.streams.push((stream(&self.sim, kind), true));
        self.path.streams.push((kind, None));
    }
}

fn host_time(sim: &Sim) -> u64 {
    u64::try_from(sim.host_time().as_nanos()).expect("short")
}

fn stream(sim: &Sim, kind: Kind) -> SimStream {
    match kind {
        Kind::Legacy => sim.legacy_stream(),
        Kind::Blocking => sim.blocking_stream().expect("a stream"),
        Kind::Alone => sim.stream().expect("a stream"),
    }
}

/// Runs the program of a seed; its critical path, its makespan, and what was at stake.
fn run(seed: u64, schedule: Schedule) -> (u64, u64, Stake) {
    let mut program = Program::new(seed, schedule);
    for _ in 0..40 {
        match program.coins.number(20) {
            0 => program.end_a_stream(),
            1 if program.gates.is_empty() => {
                program.sim.synchronize_device().expect("waited");
                program.other.synchronize_device().expect("waited");
                program.path.host = program.path.end();
            }
            2 => program.close_a_gate(),
            3 | 4 => program.open_a_gate(),
            _ => program.operation(),
        }
        for _ in 0..program.coins.number(3) {
            program.sim.tick();
        }
    }
    while !program.gates.is_empty() {
        program.open_a_gate();
    }
    program.sim.verdict().unwrap_or_else(|v| panic!("seed {seed}, {schedule:?}: not lawful: {v}"));
    assert!(program.path.operations.iter().all(|o| o.over.is_some()));
    (program.path.end(), u64::try_from(program.sim.makespan().as_nanos()).expect("short"), program.stake)
}

#[test]
fn no_program_ends_before_its_critical_path() {
    let mut stake = Stake::default();
    for seed in 1..400 {
        for schedule in SCHEDULES {
            let (path, makespan, seen) = run(seed, schedule);
            assert!(
                makespan >= path,
                "seed {seed}, {schedule:?}: over after {makespan} ns, its critical path is {path} ns"
            );
            assert!(path > 0);
            stake.wide += seen.wide;
            stake.peers += seen.peers;
            stake.yes += seen.yes;
            stake.implied += seen.implied;
            stake.behind += seen.behind;
        }
    }
    assert!(
        [stake.yes > 100, stake.implied > 1000, stake.behind > 1000, stake.wide > 1000, stake.peers > 1000]
            .iter()
            .all(|&met| met),
        "nothing was at stake: {stake:?}"
    );
}

/// 24 copies of 75.6 µs, and 24 kernels of 75.5 µs that read what they brought.
const BATCHES: usize = 24;
const BYTES: u64 = 4 * MIB;
const KERNEL: u64 = 75_500;

#[test]
fn one_buffer_is_used_by_one_batch_after_the_other() {
    for schedule in SCHEDULES {
        let sim = Sim::new(GIB).schedule(schedule).contents(false);
        let (copy, work) = (sim.stream().expect("a stream"), sim.stream().expect("a stream"));
        let (buffer, host) =
            (sim.allocate(BYTES).expect("memory"), sim.pin(BYTES, HostKind::Cached).expect("pinned"));
        let before = sim.makespan();
        let mut trained = sim.event().expect("an event");
        for _ in 0..BATCHES {
            // As an allocator does: no wait where the device says that it is done.
            if !sim.query(&trained).expect("asked") {
                sim.wait(&copy, &trained).expect("a wait");
            }
            h2d(&sim, buffer.addr(), host.ptr().as_ptr(), BYTES, &copy).expect("queued");
            sim.wait(&work, &mark(&sim, &copy)).expect("a wait");
            sim.launch(&work, Launch::new("train").reads(buffer.addr(), BYTES).takes(KERNEL))
                .expect("queued");
            trained = mark(&sim, &work);
        }
        let makespan = sim.makespan().saturating_sub(before).as_nanos();
        let needed = BATCHES as u128 * u128::from(lasts(BYTES, BUS) + KERNEL);
        assert!(makespan >= needed, "{schedule:?}: over after {makespan} ns, the rates need {needed}");
        sim.verdict().expect("ordered");
    }
}

#[test]
fn an_address_is_used_by_one_batch_after_the_other() {
    // Wherever the allocator reuses the bytes of an older batch, this batch's copy begins when that batch's kernel is over.
    for (schedule, room) in SCHEDULES.into_iter().flat_map(|s| [4, 20, 1024].map(|mib| (s, mib * MIB))) {
        let sim = Sim::new(GIB).schedule(schedule).contents(false);
        let gpu =
            Allocator::new(sim.clone(), Config::default().limit(Limit::Bytes(room))).expect("an allocator");
        let (copy, work) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
        let host = sim.pin(BYTES, HostKind::Cached).expect("pinned");
        let before = u64::try_from(sim.host_time().as_nanos()).expect("short");
        let mut path = Path::of(&[Kind::Alone; 2], before);
        let mut over = std::collections::HashMap::new();
        for _ in 0..BATCHES {
            let batch = gpu.alloc(BYTES, &copy).expect("memory");
            h2d(&sim, batch.address(), host.ptr().as_ptr(), BYTES, copy.native()).expect("queued");
            let free = over.get(&batch.address()).copied().into_iter().collect();
            let copied = path.operation(0, free, lasts(BYTES, BUS));
            work.wait_stream(&copy).expect("a wait");
            batch.record_use(&work).expect("recorded");
            let train = Launch::new("train").reads(batch.address(), BYTES).takes(KERNEL);
            sim.launch(work.native(), train).expect("queued");
            over.insert(batch.address(), path.operation(1, vec![copied], KERNEL));
        }
        let makespan = u64::try_from(sim.makespan().as_nanos()).expect("short");
        assert!(
            makespan >= path.end(),
            "{schedule:?}, {room}: over at {makespan} ns, the path ends at {}",
            path.end()
        );
        sim.verdict().expect("ordered");
    }
}

/// What is behind a gate begins when the host opens it: on its stream, on one that waits for that, for a thread that waits for all.
#[test]
fn what_is_behind_a_gate_begins_when_it_is_opened() {
    const MS: Duration = Duration::from_millis(1);
    for schedule in SCHEDULES {
        let sim = Sim::new(GIB).schedule(schedule);
        let [s, t] = [(); 2].map(|()| sim.stream().expect("a stream"));
        let (gate, inner) = (sim.gate(&s).expect("queued"), sim.gate(&t).expect("queued"));
        sim.launch(&s, touch_nothing().takes(1_000_000)).expect("queued");
        let behind = mark(&sim, &s);
        sim.wait(&t, &behind).expect("a wait");
        sim.launch(&t, touch_nothing().takes(1_000_000)).expect("queued");
        let all = sim.event().expect("an event");
        sim.record_context(&all).expect("recorded");
        inner.open();
        assert!(!sim.wait_event(&behind, 5 * MS).expect("a wait"), "{schedule:?}");
        assert!(sim.host_time() >= 5 * MS && sim.device_time() < MS, "what is behind it is not counted");
        gate.open();
        assert!(!sim.query(&behind).expect("asked"), "{schedule:?}: its millisecond begins now");
        assert!(sim.makespan() >= 7 * MS, "{schedule:?}: {:?}", sim.makespan());
        assert!(!sim.wait_event(&all, MS).expect("a wait"), "{schedule:?}");
        assert!(sim.wait_event(&behind, Duration::MAX).expect("a wait") && sim.host_time() >= 6 * MS);
        assert!(sim.wait_event(&all, Duration::MAX).expect("a wait") && sim.host_time() >= 7 * MS);
        assert!(sim.host_time() < 8 * MS, "{schedule:?}");
    }
}

/// A host function that opens a gate does so when it runs, and who waits behind that waits until then.
#[test]
fn a_host_function_opens_a_gate_in_its_own_time() {
    for schedule in SCHEDULES {
        let sim = Sim::new(GIB).schedule(schedule);
        let [s, t] = [(); 2].map(|()| sim.stream().expect("a stream"));
        let first = sim.gate(&s).expect("queued");
        sim.launch(&s, touch_nothing().takes(1_000_000)).expect("queued");
        let (sender, receiver) = std::sync::mpsc::channel::<Gate>();
        sim.host_function(&s, move || receiver.recv().expect("a gate").open()).expect("queued");
        sim.wait(&t, &mark(&sim, &s)).expect("a wait");
        sender.send(sim.gate(&t).expect("queued")).expect("kept");
        sim.launch(&t, touch_nothing().takes(1_000_000)).expect("queued");
        let behind = mark(&sim, &t);
        first.open();
        assert!(sim.wait_event(&behind, Duration::MAX).expect("a wait"), "{schedule:?}");
        let over = sim.host_time().as_micros();
        assert!((2000..2100).contains(&over), "{schedule:?}: {over} us");
        sim.synchronize_device().expect("waited");
    }
}

#[test]
fn completion_is_queried_at_a_virtual_time() {
    let sim = sim();
    let s = sim.stream().expect("s");
    sim.launch(&s, touch_nothing().takes(1_000_000)).expect("queued");
    let event = mark(&sim, &s);
    assert!(sim.idle(), "it has run");
    assert!(!sim.query(&event).expect("asked"), "its millisecond is not over");
    let mut asked = 1;
    while !sim.query(&event).expect("asked") {
        asked += 1;
    }
    let price = millpond_sim::Call::EventQuery.price();
    assert!(asked > 900_000 / price && asked < 1_100_000 / price, "time passes by asking: {asked} times");
    assert!(sim.host_time() >= Duration::from_millis(1));
    // Who runs the device by hand says that time passes.
    for by_hand in [
        |sim: &Sim, _: &SimStream| assert!(sim.run_until_idle()),
        |sim: &Sim, s: &SimStream| {
            while sim.advance(s).expect("a stream") {}
        },
    ] {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let s = sim.stream().expect("s");
        sim.launch(&s, touch_nothing().takes(1_000_000)).expect("queued");
        let event = mark(&sim, &s);
        assert!(!sim.query(&event).expect("asked"));
        by_hand(&sim, &s);
        assert!(sim.query(&event).expect("asked"), "it was run until then");
        assert!(sim.host_time() >= Duration::from_millis(1));
    }
}

/// What a host function opens the way for runs with it, though the host makes no call but a query.
#[test]
fn what_a_host_function_sets_free_runs_under_the_early_schedule() {
    for hold in [0, 1] {
        let sim = sim().hold(hold);
        let [s, t] = [(); 2].map(|()| sim.stream().expect("a stream"));
        let gate = sim.gate(&t).expect("queued");
        sim.launch(&t, touch_nothing()).expect("queued");
        let behind = mark(&sim, &t);
        sim.host_function(&s, move || gate.open()).expect("queued");
        (0..hold).for_each(|_| sim.tick());
        let asked = (0..1000).find(|_| sim.query(&behind).expect("asked"));
        assert!(asked.is_some() && sim.idle(), "{hold} ticks: what can run is not left lying");
    }
}

/// One host function opens another one's gate, and so on: no deep stack is needed.
#[test]
fn a_long_chain_of_gates_opens_itself() {
    let sim = sim();
    let n = 2000;
    let streams: Vec<_> = (0..=n).map(|_| sim.stream().expect("a stream")).collect();
    let mut gates: Vec<_> = streams.iter().map(|s| sim.gate(s).expect("queued")).collect();
    // The later stream's first: a pass through all of them meets each gate closed.
    let last = gates.pop().expect("a gate");
    for (s, before) in streams[1..].iter().zip(gates) {
        sim.host_function(s, move || before.open()).expect("queued");
    }
    last.open();
    assert!(sim.idle());
}

#[test]
fn running_nothing_by_hand_takes_no_time() {
    let sim = sim();
    let [s, t] = [(); 2].map(|()| sim.stream().expect("a stream"));
    sim.launch(&s, touch_nothing().takes(1_000_000_000)).expect("queued");
    let before = sim.host_time();
    assert!(!sim.advance(&t).expect("alive") && !sim.advance(&s).expect("alive"), "all has run");
    assert_eq!(sim.host_time(), before, "the host learnt nothing of that second");
    // And of several, the end of the one that ran.
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let [s, t] = [(); 2].map(|()| sim.stream().expect("a stream"));
    sim.launch(&t, touch_nothing().takes(1_000_000)).expect("queued");
    sim.launch(&s, touch_nothing().takes(1_000_000_000)).expect("queued");
    assert!(sim.advance(&s).expect("alive") && sim.advance(&t).expect("alive"));
    assert!(sim.host_time() >= Duration::from_secs(1));
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let [s, t] = [(); 2].map(|()| sim.stream().expect("a stream"));
    sim.launch(&t, touch_nothing().takes(1_000_000)).expect("queued");
    sim.launch(&s, touch_nothing().takes(1_000_000_000)).expect("queued");
    assert!(sim.advance(&t).expect("alive"));
    assert!(sim.host_time() < Duration::from_millis(2));
}
