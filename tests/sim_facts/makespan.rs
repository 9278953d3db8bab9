//! Virtual time: no program ends before its critical path does, whatever the schedule.
//!
//! The critical path is computed here from the program alone, with rates and edges of its own: an operation begins when the
//! operation before it on its stream, what its stream waits for or follows by itself (the legacy stream and blocking ones), every
//! conflicting use of its bytes and whatever the host had seen complete when it asked are over, and lasts its bytes over its rate; a
//! host function lasts nothing, and orders as they do. Engines and prices of calls only add to
//! that. Programs are lawful: before a use that conflicts with another stream's, they wait on the device, on the host, or
//! ask once and trust a yes, as an allocator does.

use super::*;
use millpond::driver::{HostKind, OwnedHost, OwnedRange};
use millpond::{Allocator, Config, Limit};
use millpond_sim::{HostFunction, Schedule};
use millpond_testkit::dice::Dice;

/// Nanoseconds that so many bytes take at so many bytes a microsecond.
fn lasts(bytes: u64, rate: u64) -> u64 {
    (bytes * 1000 / rate).max(1)
}
const KERNELS: u64 = 2_000_000;
const BUS: u64 = 55_500;

const SCHEDULES: [Schedule; 5] =
    [Schedule::Earliest, Schedule::Latest, Schedule::Random(1), Schedule::Random(2), Schedule::Random(3)];

/// A use of a buffer: on which stream, whether it writes, the event behind it, when it is over at the earliest.
struct Use {
    stream: usize,
    writes: bool,
    event: SimEvent,
    over: u64,
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

/// What a program's own edges say of its time.
#[derive(Default)]
struct Path {
    /// Each stream's kind, and when its last operation is over at the earliest. Of those too that are gone.
    streams: Vec<(Kind, u64)>,
    /// Up to when the host has waited or seen.
    host: u64,
    end: u64,
}

impl Path {
    fn of(kinds: &[Kind], host: u64) -> Path {
        Path { streams: kinds.iter().map(|&kind| (kind, 0)).collect(), host, end: 0 }
    }
    fn operation(&mut self, stream: usize, ready: u64, nanos: u64) -> u64 {
        let (kind, own) = self.streams[stream];
        let implied = self.streams.iter().filter(|s| kind.minds(s.0)).map(|s| s.1).max().unwrap_or(0);
        let over = ready.max(own).max(implied).max(self.host) + nanos;
        self.streams[stream].1 = over;
        self.end = self.end.max(over);
        over
    }
    fn host_saw(&mut self, over: u64) {
        self.host = self.host.max(over);
        self.end = self.end.max(over);
    }
}

/// Device buffers, and behind them pinned ones, which copies and host functions share.
const DEVICE: usize = 2;
const BUFFERS: usize = 4;

/// How often what may shorten a path was at stake: a question answered with yes, and a use that nothing but the legacy stream orders, by
/// itself, behind another stream's.
#[derive(Default, Debug)]
struct Stake {
    yes: u64,
    implied: u64,
}

struct Program {
    sim: Sim,
    coins: Dice,
    /// Each with whether it is there.
    streams: Vec<(SimStream, bool)>,
    addrs: [Addr; BUFFERS],
    uses: [Vec<Use>; BUFFERS],
    path: Path,
    stake: Stake,
    _memory: ([OwnedRange<Sim>; DEVICE], OwnedHost<Sim>),
}

impl Program {
    fn new(seed: u64, schedule: Schedule) -> Program {
        let mut coins = Dice::new(seed);
        let sim = Sim::new(GIB).schedule(schedule).contents(false);
        let kinds: Vec<Kind> = match coins.number(3) {
            0 => vec![Kind::Alone; 2 + coins.number(2) as usize],
            1 => vec![Kind::Legacy, Kind::Blocking, Kind::Blocking],
            _ => vec![Kind::Legacy, Kind::Blocking, Kind::Blocking, Kind::Alone],
        };
        let streams = kinds.iter().map(|&kind| (stream(&sim, kind), true)).collect();
        let device = [(); DEVICE].map(|()| sim.allocate(4 * MIB).expect("memory"));
        let pinned = sim.pin(8 * MIB, HostKind::Cached).expect("pinned");
        let addrs = [device[0].addr(), device[1].addr(), pinned.addr(), Addr(pinned.addr().0 + 4 * MIB)];
        // What was done so far took the host's time; the program begins now.
        let host = u64::try_from(sim.host_time().as_nanos()).expect("short");
        let path = Path::of(&kinds, host);
        let (uses, stake) = Default::default();
        Program { sim, coins, streams, addrs, uses, path, stake, _memory: (device, pinned) }
    }

    /// Orders an operation behind the uses that it conflicts with; when those are over that the device waits for.
    fn order(&mut self, on: usize, touched: &[(usize, bool)]) -> u64 {
        let mut ready = 0;
        for &(b, writes) in touched {
            for u in self.uses[b].iter().filter(|u| (writes || u.writes) && u.stream != on) {
                if self.path.streams[on].0.minds(self.path.streams[u.stream].0) {
                    self.stake.implied += 1;
                    continue;
                }
                match self.coins.number(4) {
                    0 if self.streams[u.stream].1 => {
                        self.sim.synchronize_stream(&self.streams[u.stream].0).expect("waited");
                        self.path.host_saw(self.path.streams[u.stream].1);
                    }
                    1 => {
                        assert!(self.sim.wait_event(&u.event, Duration::MAX).expect("waited"));
                        self.path.host_saw(u.over);
                    }
                    2 if self.sim.query(&u.event).expect("asked") => {
                        self.path.host_saw(u.over);
                        self.stake.yes += 1;
                    }
                    _ => {
                        self.sim.wait(&self.streams[on].0, &u.event).expect("a wait");
                        ready = ready.max(u.over);
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
        let what = self.coins.number(9);
        let touched: &[(usize, bool)] = match what {
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
        let over = self.path.operation(on, ready, nanos);
        for &(b, writes) in touched {
            if writes {
                self.uses[b].clear();
            }
            let event = mark(&self.sim, &self.streams[on].0);
            self.uses[b].push(Use { stream: on, writes, event, over });
        }
    }

    /// A stream goes, whatever is queued on it, and another of its kind comes.
    fn end_a_stream(&mut self) {
        let which = self.coins.number(self.streams.len() as u64) as usize;
        let (kind, over) = self.path.streams[which];
        if kind == Kind::Legacy || !self.streams[which].1 {
            return;
        }
        self.sim.destroy_stream(&self.streams[which].0).expect("it is there");
        self.streams[which].1 = false;
        // The legacy stream is not promised to wait for it (the oracle's order says so): who needs its work, waits by an event.
        self.path.streams[which].0 = Kind::Alone;
        self.streams.push((stream(&self.sim, kind), true));
        self.path.streams.push((kind, 0));
        self.path.end = self.path.end.max(over);
    }
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
            1 => {
                program.sim.synchronize_device().expect("waited");
                program.path.host_saw(program.path.end);
            }
            _ => program.operation(),
        }
        for _ in 0..program.coins.number(3) {
            program.sim.tick();
        }
    }
    program.sim.verdict().unwrap_or_else(|v| panic!("seed {seed}, {schedule:?}: not lawful: {v}"));
    (program.path.end, u64::try_from(program.sim.makespan().as_nanos()).expect("short"), program.stake)
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
            stake.yes += seen.yes;
            stake.implied += seen.implied;
        }
    }
    assert!(stake.yes > 100 && stake.implied > 1000, "nothing was at stake: {stake:?}");
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
    // Wherever the allocator hands out the bytes of an older batch, this batch's copy begins when that batch's kernel is over.
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
            let free = over.get(&batch.address()).copied().unwrap_or(0);
            let copied = path.operation(0, free, lasts(BYTES, BUS));
            work.wait_stream(&copy).expect("a wait");
            batch.record_use(&work).expect("told");
            let train = Launch::new("train").reads(batch.address(), BYTES).takes(KERNEL);
            sim.launch(work.native(), train).expect("queued");
            over.insert(batch.address(), path.operation(1, copied, KERNEL));
        }
        let makespan = u64::try_from(sim.makespan().as_nanos()).expect("short");
        assert!(
            makespan >= path.end,
            "{schedule:?}, {room}: over at {makespan} ns, the path ends at {}",
            path.end
        );
        sim.verdict().expect("ordered");
    }
}

#[test]
fn completion_is_asked_at_a_virtual_time() {
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
