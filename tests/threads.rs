//! Real threads on a real machine: streams, blocks and pinned buffers handed between threads through channels, with
//! everything else going on beside. Counts are fixed and nothing sleeps; what can go wrong is a panic with an invariant's
//! number, a verdict, or something left on the device. The interleavings that a machine seldom shows are tried in
//! `tests/threads_shuttle.rs` and `tests/threads_loom.rs`.

#[path = "threads/flight.rs"]
mod flight;
#[path = "threads/operands.rs"]
mod operands;

use millpond::driver::Driver;
use millpond::units::{KIB, MIB};
use millpond::{
    Allocation, Allocator, Config, Growth, Limit, PinnedAllocation, Policy, Reuse, Stream, Trim, kernel,
};
use millpond_sim::null::Null;
use millpond_sim::{Schedule, Sim};
use millpond_testkit::rig::{self, all_clean};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// What one thread passes to the next.
struct Parcel<D: Driver> {
    block: Allocation<D>,
    pinned: Option<PinnedAllocation<D>>,
    writer: Stream<D>,
}

/// What a test's device can do with a block beside the allocator.
trait Device: Driver {
    fn write(&self, block: &Allocation<Self>, on: &Stream<Self>);
    fn check(&self, block: &Allocation<Self>, on: &Stream<Self>);
}
impl Device for Sim {
    fn write(&self, block: &Allocation<Sim>, on: &Stream<Sim>) {
        rig::write(self, block, on);
    }
    fn check(&self, block: &Allocation<Sim>, on: &Stream<Sim>) {
        rig::check(self, block, on);
    }
}
impl Device for Null {
    fn write(&self, _: &Allocation<Null>, _: &Stream<Null>) {}
    fn check(&self, _: &Allocation<Null>, _: &Stream<Null>) {}
}

/// Parcels that wait for one thread, and blocks that it keeps, at most: so that what is alive has a bound, however
/// unfairly the threads are run.
const INBOX: usize = 4;
const KEPT: usize = 8;

/// A sequence of numbers that is the same in every run.
struct Numbers(u64);
impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// One thread of a ring: makes blocks, hands them on, uses what comes in, and does now and then what others must survive.
fn member<D: Device>(
    gpu: &Allocator<D>,
    seed: u64,
    rounds: u64,
    next: &SyncSender<Parcel<D>>,
    inbox: &Receiver<Parcel<D>>,
) {
    let device = gpu.driver().clone();
    let mut numbers = Numbers(seed);
    let mut stream = gpu.stream().unwrap();
    let mut kept: Vec<Allocation<D>> = Vec::new();
    for round in 0..rounds {
        let bytes = [512, 4096, 100 * KIB, 300 * KIB, 2 * MIB][usize::try_from(numbers.below(5)).unwrap()];
        let block =
            gpu.alloc(bytes + numbers.below(1024), &stream).expect("memory for a few blocks a thread");
        device.write(&block, &stream);
        match numbers.below(3) {
            0 => drop(block),
            1 => kept.push(block),
            _ => {
                let pinned = (numbers.below(8) == 0).then(|| gpu.alloc_pinned(4096).unwrap());
                if let Some(pinned) = &pinned {
                    pinned.record_use(&stream).unwrap();
                }
                // A member that is done hangs up, and one that lags has a full inbox: the block is then dropped here.
                drop(next.try_send(Parcel { block, pinned, writer: stream.clone() }));
            }
        }
        while let Ok(Parcel { block, pinned, writer }) = inbox.try_recv() {
            stream.wait_stream(&writer).unwrap();
            block.record_use(&stream).unwrap();
            device.check(&block, &stream);
            match numbers.below(4) {
                0 => kept.push(block),
                1 => block.free_on(&stream).unwrap(),
                2 => block.free_unknown(),
                _ => drop(block),
            }
            drop(pinned);
        }
        if kept.len() > KEPT {
            kept.swap_remove(usize::try_from(numbers.below(KEPT as u64)).unwrap());
        }
        match (round + seed) % 97 {
            13 => {
                gpu.trim(Trim::All).unwrap();
            }
            29 => gpu.synchronize().unwrap(),
            41 => assert!(gpu.report().total.allocated <= gpu.report().capacity),
            59 => stream = gpu.stream().unwrap(),
            71 => stream.synchronize().unwrap(),
            83 => {
                gpu.trim(Trim::Stream(&stream)).unwrap();
            }
            _ => {}
        }
    }
}

/// A ring of threads; afterwards nothing is alive, and the allocator comes back for the last look.
fn ring<D: Device>(gpu: Allocator<D>, threads: u64, rounds: u64) -> Allocator<D> {
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel(INBOX)).unzip();
    let mut nexts = senders;
    nexts.rotate_left(1);
    let members: Vec<_> = nexts
        .into_iter()
        .zip(inboxes)
        .zip(1..)
        .map(|((next, inbox), seed)| {
            let gpu = gpu.clone();
            thread::spawn(move || member(&gpu, seed, rounds, &next, &inbox))
        })
        .collect();
    for m in members {
        m.join().expect("a member of the ring");
    }
    let total = gpu.report().total;
    assert_eq!((total.live, total.allocated), (0, 0), "every block was freed");
    assert_eq!(total.counters.allocations, total.counters.frees);
    assert!(total.counters.allocations >= threads * rounds, "{total:?}");
    gpu
}

#[test]
fn blocks_go_round_on_the_simulator_under_its_oracles() {
    for (schedule, policy) in [(Schedule::Latest, Policy::Latency), (Schedule::Random(7), Policy::Footprint)]
    {
        let sim = Sim::new(256 * MIB).schedule(schedule);
        let gpu = rig::on(
            &sim,
            Config::default().reuse(Reuse::WithWaits).policy(policy).limit(Limit::Bytes(192 * MIB)),
        );
        let gpu = ring(gpu, 4, 400);
        assert!(sim.tally().accesses_checked > 1600, "{:?}", sim.tally());
        all_clean(&sim, gpu);
    }
}

#[test]
fn blocks_go_round_on_the_simulator_by_contents_alone() {
    // Eight threads with thirteen blocks of 2 MiB at most, and as much again for what lies between them.
    let sim = Sim::new(512 * MIB).schedule(Schedule::Random(3)).oracle(false);
    let gpu = ring(rig::on(&sim, Config::default()), 8, 600);
    all_clean(&sim, gpu);
}

#[test]
fn blocks_go_round_on_null() {
    let null = Null::default();
    let gpu = ring(Allocator::new(null.clone(), Config::default()).unwrap(), 8, 4000);
    gpu.check();
    drop(gpu);
    assert_eq!(null.outstanding(), (0, 0));
}

/// As many blocks as fit, one a thread and one on its way: who asks within its share is served, whatever the others do.
#[test]
fn no_thread_runs_out_of_memory_within_its_share() {
    const THREADS: u64 = 6;
    let sim = Sim::new(256 * MIB).schedule(Schedule::Latest).contents(false);
    let config =
        Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(THREADS * MIB));
    let gpu = rig::on(&sim, config);
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let gpu = gpu.clone();
            thread::spawn(move || {
                let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
                for round in 0..120 {
                    let stream = &streams[round % 2];
                    let block = gpu.alloc(MIB, stream).expect("one block a thread fits");
                    rig::write(gpu.driver(), &block, stream);
                    drop(block);
                    if (round as u64 + i).is_multiple_of(7) {
                        gpu.trim(Trim::All).unwrap();
                    }
                }
            })
        })
        .collect();
    for t in threads {
        t.join().expect("a thread within its share");
    }
    all_clean(&sim, gpu);
}

/// The same of pinned memory: segments of one are unpinned while another looks for room. A share is a promise only where
/// no block can lie in another's way: a large one fills its segment, and the small ones, whatever they leave of theirs,
/// keep no more than a share each from being idle. (With blocks a granule apart in one segment it is none: a hole
/// between two neighbours fits the one that left it and not the next.)
#[test]
fn no_thread_runs_out_of_pinned_memory_within_its_share() {
    const THREADS: u64 = 6;
    const SHARE: u64 = 4 * MIB;
    let sim = Sim::new(256 * MIB).schedule(Schedule::Latest).contents(false);
    let gpu = rig::on(&sim, Config::default().pinned_limit(THREADS * SHARE));
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let gpu = gpu.clone();
            thread::spawn(move || {
                let stream = gpu.stream().unwrap();
                for round in 0..120 {
                    // Segments of the wrong length get in the way and have to be given back first.
                    let bytes = if round % 3 == 0 { SHARE } else { SHARE / 2 - 512 * (round % 3) };
                    let block = gpu.alloc_pinned(bytes).expect("one block a thread fits");
                    block.record_use(&stream).unwrap();
                    gpu.driver().host_writes(block.address(), block.len()).unwrap();
                    drop(block);
                    if (round + i).is_multiple_of(7) {
                        gpu.trim(Trim::All).unwrap();
                    }
                }
            })
        })
        .collect();
    for t in threads {
        t.join().expect("a thread within its share");
    }
    gpu.check();
    all_clean(&sim, gpu);
}

/// `operands` says what they do.
#[test]
fn operations_come_after_streams_that_others_order() {
    for seed in 0..operands::ROUNDS {
        operands::round(seed).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// `flight` says what they do.
#[test]
fn arrays_go_round_with_copies_tokens_and_guards_under_way() {
    for seed in 0..flight::ROUNDS {
        flight::round(seed).unwrap_or_else(|e| panic!("round {seed}: {e}"));
    }
}

/// Four threads have a quarter of one array each, which they fill on its home stream and on others; then four read all of it at once, and it is
/// written elsewhere. A read of the whole finds what each thread wrote last, and the readers what was there before the write.
#[test]
fn threads_share_one_array_by_its_parts_and_by_reading_it() {
    const PART: usize = 256;
    for seed in 0..60 {
        let schedule = if seed % 2 == 0 { Schedule::Latest } else { Schedule::Random(seed) };
        let sim = Sim::new(256 * MIB).schedule(schedule);
        let gpu = rig::on(&sim, Config::default());
        let streams: Vec<_> = (0..4).map(|_| gpu.stream().unwrap()).collect();
        let mut whole = gpu.zeros::<u32>(4 * PART, &streams[0]).unwrap();
        for round in 0..8 {
            let value = |thread: usize| 100 * round + thread as u32;
            let (left, right) = whole.split_at_mut(2 * PART);
            let ((a, b), (c, d)) = (left.split_at(PART), right.split_at(PART));
            thread::scope(|threads| {
                for (thread, mut part) in [a, b, c, d].into_iter().enumerate() {
                    let (streams, numbers) = (&streams, seed << 16 | u64::from(value(thread)));
                    threads.spawn(move || {
                        let mut numbers = Numbers(numbers);
                        // The home stream half of the time.
                        let mut any = || &streams[(numbers.below(8) as usize).saturating_sub(4)];
                        for _ in 0..3 {
                            part.fill_bytes(0xEE, any()).unwrap();
                            drop(any().record().unwrap());
                        }
                        kernel::fill(&mut part, value(thread), any()).unwrap();
                    });
                }
            });
            let read = |found: &[u32]| {
                for (thread, part) in found.chunks(PART).enumerate() {
                    let wrong = part.iter().find(|&&v| v != value(thread));
                    assert_eq!(
                        wrong,
                        None,
                        "seed {seed}: where thread {thread} wrote {} last",
                        value(thread)
                    );
                }
            };
            let copies: Vec<_> = thread::scope(|threads| {
                let readers = streams.iter().map(|s| threads.spawn(|| whole.duplicate(s).unwrap()));
                let readers: Vec<_> = readers.collect();
                readers.into_iter().map(|reader| reader.join().unwrap()).collect()
            });
            let last = &streams[(seed as usize + round as usize) % 4];
            read(&whole.to_vec(last).unwrap());
            kernel::fill(&mut whole, 9999, last).unwrap();
            for copy in &copies {
                read(&copy.to_vec(last).unwrap());
            }
        }
        drop((whole, streams));
        all_clean(&sim, gpu);
    }
}

/// Everything is dropped at once, on as many threads as there are things: the last one closes the allocator.
#[test]
fn handles_are_dropped_all_at_once() {
    for _ in 0..60 {
        let sim = Sim::new(256 * MIB).schedule(Schedule::Latest);
        let gpu = rig::on(&sim, Config::default());
        let streams: Vec<_> = (0..4).map(|_| gpu.stream().unwrap()).collect();
        let blocks: Vec<_> = streams
            .iter()
            .map(|s| {
                let block = gpu.alloc(MIB, s).unwrap();
                rig::write(&sim, &block, s);
                block
            })
            .collect();
        let pinned = gpu.alloc_pinned(4096).unwrap();
        pinned.record_use(&streams[0]).unwrap();
        thread::scope(|scope| {
            for (block, stream) in blocks.into_iter().zip(streams) {
                scope.spawn(move || drop(block));
                scope.spawn(move || drop(stream));
            }
            scope.spawn(move || drop(pinned));
            scope.spawn(move || drop(gpu));
        });
        sim.verdict().unwrap();
        assert_eq!(sim.leaks(), [], "left on the device");
    }
}

/// Streams come and go on one thread, and their pools with them; another one reads the sums meanwhile. What a pool did that leaves is in
/// them once: what was allocated never falls, as it would after a sum that lacks a pool, or that has one twice.
#[test]
fn what_was_handed_out_never_falls() {
    const ROUNDS: u64 = 3000;
    let sim = Sim::new(256 * MIB);
    let gpu = rig::on(&sim, Config::default());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let s = gpu.stream().unwrap();
                drop(gpu.alloc(4 * KIB, &s).unwrap());
                drop(s);
                gpu.synchronize().unwrap();
                gpu.trim(Trim::All).unwrap();
            }
            over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut before = (0, 0, 0);
            while !over.load(Ordering::Acquire) {
                let (used, total) = (gpu.usage().allocated, gpu.report().total);
                let now = (used, total.counters.frees, total.sizes.total());
                let falls = now.0 < before.0 || now.1 < before.1 || now.2 < before.2;
                assert!(!falls, "{before:?} bytes, frees and sizes, and then {now:?}");
                before = now;
            }
        });
    });
    assert_eq!(gpu.usage().allocated, ROUNDS * 4 * KIB);
    assert_eq!(gpu.report().total.counters.frees, ROUNDS);
    all_clean(&sim, gpu);
}
