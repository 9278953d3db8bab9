//! Virtual time: no program ends before its critical path does, whatever the schedule.
//!
//! The critical path is computed here from the program alone, with rates and edges of its own: an operation begins when the
//! operation before it on its stream, what its stream waits for, every conflicting use of its bytes and whatever the host
//! had seen complete when it asked are over, and lasts its bytes over its rate. Engines and prices of calls only add to
//! that. Programs are lawful: before a use that conflicts with another stream's, they wait on the device, on the host, or
//! ask once and trust a yes, as an allocator does.

use super::*;
use millpond::driver::HostKind;
use millpond::{Allocator, Config, Limit};
use millpond_sim::Schedule;

/// Nanoseconds that so many bytes take at so many bytes a microsecond.
fn lasts(bytes: u64, rate: u64) -> u64 {
    (bytes * 1000 / rate).max(1)
}
const KERNELS: u64 = 2_000_000;
const BUS: u64 = 55_500;

const SCHEDULES: [Schedule; 5] =
    [Schedule::Earliest, Schedule::Latest, Schedule::Random(1), Schedule::Random(2), Schedule::Random(3)];

/// A small generator, so that a seed is a program.
struct Coins(u64);
impl Coins {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % n
    }
}

/// A use of a buffer: on which stream, whether it writes, the event behind it, when it is over at the earliest.
struct Use {
    stream: usize,
    writes: bool,
    event: SimEvent,
    over: u64,
}

/// What a program's own edges say of its time.
#[derive(Default)]
struct Path {
    /// When each stream's last operation is over at the earliest.
    streams: Vec<u64>,
    /// Up to when the host has waited or seen.
    host: u64,
    end: u64,
}

impl Path {
    fn operation(&mut self, stream: usize, ready: u64, nanos: u64) -> u64 {
        let over = ready.max(self.streams[stream]).max(self.host) + nanos;
        self.streams[stream] = over;
        self.end = self.end.max(over);
        over
    }
    fn host_saw(&mut self, over: u64) {
        self.host = self.host.max(over);
        self.end = self.end.max(over);
    }
}

/// Runs the program of a seed; its critical path, its makespan, and how often a question was answered with yes.
fn run(seed: u64, schedule: Schedule) -> (u64, u64, u64) {
    let mut coins = Coins(seed * 2 + 1);
    let sim = Sim::new(GIB).schedule(schedule).contents(false);
    let count = 2 + coins.below(2) as usize;
    let streams: Vec<_> = (0..count).map(|_| sim.stream().expect("a stream")).collect();
    let buffers: Vec<_> = (0..2).map(|_| sim.allocate(4 * MIB).expect("memory")).collect();
    let pinned = sim.pin(512 * MIB, HostKind::Cached).expect("pinned");
    let mut targets = (1..).map(|n| pinned.addr().0 + n * 4 * MIB);
    let mut uses: Vec<Vec<Use>> = buffers.iter().map(|_| Vec::new()).collect();
    // What was done so far took the host's time; the program begins now.
    let host = u64::try_from(sim.host_time().as_nanos()).expect("short");
    let mut path = Path { streams: vec![0; count], host, end: 0 };
    let mut yes = 0;
    for _ in 0..40 {
        let (on, b) = (coins.below(count as u64) as usize, coins.below(2) as usize);
        let (stream, buffer) = (&streams[on], &buffers[b]);
        let what = coins.below(6);
        let writes = what.is_multiple_of(2);
        let mut ready = 0;
        for u in uses[b].iter().filter(|u| (writes || u.writes) && u.stream != on) {
            match coins.below(4) {
                0 => {
                    sim.synchronize_stream(&streams[u.stream]).expect("waited");
                    path.host_saw(path.streams[u.stream]);
                }
                1 => {
                    assert!(sim.wait_event(&u.event, Duration::MAX).expect("waited"));
                    path.host_saw(u.over);
                }
                2 if sim.query(&u.event).expect("asked") => {
                    path.host_saw(u.over);
                    yes += 1;
                }
                _ => {
                    sim.wait(stream, &u.event).expect("a wait");
                    ready = ready.max(u.over);
                }
            }
        }
        let bytes = (4 * MIB) >> coins.below(3);
        let nanos = match what {
            0 | 1 => {
                let takes = coins.below(80_000);
                let kernel = Launch::new("kernel").takes(takes);
                let kernel = if writes {
                    kernel.writes(buffer.addr(), bytes)
                } else {
                    kernel.reads(buffer.addr(), bytes)
                };
                sim.launch(stream, kernel).expect("queued");
                takes
            }
            2 => {
                h2d(&sim, buffer.addr(), pinned.ptr().as_ptr(), bytes, stream).expect("queued");
                lasts(bytes, BUS)
            }
            3 => {
                let to = targets.next().expect("a target of its own") as *mut u8;
                d2h(&sim, to, buffer.addr(), bytes, stream).expect("queued");
                lasts(bytes, BUS)
            }
            4 => {
                fill(&sim, buffer.addr(), 1, bytes, stream).expect("queued");
                lasts(bytes, KERNELS)
            }
            _ => {
                let kernel = Launch::new("kernel");
                let kernel = if writes {
                    kernel.writes(buffer.addr(), bytes)
                } else {
                    kernel.reads(buffer.addr(), bytes)
                };
                sim.launch(stream, kernel).expect("queued");
                lasts(bytes, KERNELS)
            }
        };
        let over = path.operation(on, ready, nanos);
        if writes {
            uses[b].clear();
        }
        uses[b].push(Use { stream: on, writes, event: mark(&sim, stream), over });
        for _ in 0..coins.below(3) {
            sim.tick();
        }
    }
    sim.verdict().expect("the program is lawful");
    (path.end, u64::try_from(sim.makespan().as_nanos()).expect("short"), yes)
}

#[test]
fn no_program_ends_before_its_critical_path() {
    let mut yes = 0;
    for seed in 1..400 {
        for schedule in SCHEDULES {
            let (path, makespan, seen) = run(seed, schedule);
            assert!(
                makespan >= path,
                "seed {seed}, {schedule:?}: over after {makespan} ns, its critical path is {path} ns"
            );
            assert!(path > 0);
            yes += seen;
        }
    }
    assert!(yes > 100, "only {yes} questions were answered with yes: nothing was at stake");
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
        let mut path = Path { streams: vec![0; 2], host: before, end: 0 };
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
