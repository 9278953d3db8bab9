//! Whole programs of two to four threads on the simulated device, under shuttle: thousands of random interleavings, and
//! ones with few but well placed switches (PCT). Each ends with every heap walked, both oracles asked, and nothing left.
//!
//! Built and run by `.ci/shuttle` only. When a schedule fails, shuttle prints it; to run that one again, with a debugger
//! or more output, put the printed text into `MILLPOND_SCHEDULE` and name the test.
//! `MILLPOND_ITERATIONS` sets how many schedules of each kind a test tries.

#![cfg(shuttle)]

// They plant bugs, and `.ci/shuttle` builds what can.
#[cfg(millpond_mutants)]
#[path = "threads_shuttle/ends.rs"]
mod ends;
#[cfg(millpond_mutants)]
#[path = "threads_shuttle/exhaustive.rs"]
mod exhaustive;
#[cfg(millpond_mutants)]
#[path = "threads_shuttle/flight.rs"]
mod flight;
#[cfg(millpond_mutants)]
mod minimal_device;
#[cfg(millpond_mutants)]
#[path = "threads_shuttle/operands.rs"]
mod operands;
#[cfg(millpond_mutants)]
#[path = "threads_shuttle/reduced.rs"]
mod reduced;

use millpond::driver::Memory;
use millpond::trace::{Event as Happening, Sink};
use millpond::units::MIB;
use millpond::{Allocation, Allocator, Config, Growth, Limit, Policy, Reuse, Stream, Trim};
use millpond_sim::{Schedule, Sim};
use millpond_testkit::rig::{all_clean, check, on, write};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread::{self, JoinHandle};
use shuttle::{Config as Shuttle, Runner};

/// Runs a program under every scheduler, or under the one schedule that was requested.
fn explore(program: fn()) {
    let mut config = Shuttle::new();
    config.stack_size = 1 << 20;
    if let Ok(schedule) = std::env::var("MILLPOND_SCHEDULE") {
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config).run(program);
        return;
    }
    let iterations =
        std::env::var("MILLPOND_ITERATIONS").map_or(4000, |n| n.parse().expect("a number of schedules"));
    Runner::new(RandomScheduler::new(iterations), config.clone()).run(program);
    for depth in [2, 4] {
        Runner::new(PctScheduler::new(depth, iterations / 2), config.clone()).run(program);
    }
}

/// A device that runs its work early, late or anyhow, and whose frees wait for all of it or for nothing: the checker chooses.
fn device() -> Sim {
    let schedule = match thread_rng().gen_range(0..3) {
        0 => Schedule::Earliest,
        1 => Schedule::Latest,
        _ => Schedule::Random(thread_rng().gen_range(0..1 << 20)),
    };
    Sim::new(64 * MIB).schedule(schedule).waiting_frees(thread_rng().gen_bool(0.5))
}

/// Every block is one segment, and there are just so many of them: a request that runs out of memory although its thread holds no
/// more than its share is a bug.
fn shares(sim: &Sim, blocks: u64) -> Config {
    let policy = if thread_rng().gen_bool(0.5) { Policy::Latency } else { Policy::Footprint };
    // Where no wait is inserted on the device, the host has to wait, for the right markers. Where nothing migrates either, one
    // stream's memory serves another through the device, and a request gives none back where that waits for the device.
    let reuse = match thread_rng().gen_range(0..3) {
        0 => Reuse::WithWaits,
        1 if !sim.free_waits_for_device() => Reuse::Never,
        _ => Reuse::Ordered,
    };
    // Few streams, as many to the index of sources in half of the programs.
    let few = if thread_rng().gen_bool(0.5) { 1 } else { 64 };
    let config = Config::default().growth(Growth::Exact).limit(Limit::Bytes(blocks * MIB));
    config.policy(policy).reuse(reuse).look_at_each_of(few)
}

fn trim(gpu: &Allocator<Sim>) {
    gpu.trim(Trim::All).expect("a trim");
}

fn join(threads: Vec<JoinHandle<()>>) {
    for t in threads {
        t.join().expect("a thread of the program");
    }
}

/// A block with its writer's stream, so that its next owner can come after the write.
type Parcel = (Allocation<Sim>, Stream<Sim>);

/// What one thread does: allocate, write, hand over, take over, use on its own stream, free, and all else at random.
fn work(gpu: &Allocator<Sim>, sim: &Sim, table: &Mutex<Vec<Parcel>>, steps: usize) {
    let mut stream = gpu.stream().unwrap();
    for _ in 0..steps {
        match thread_rng().gen_range(0..10) {
            // A thread holds one block at most, and the table one for each: the share.
            0..=3 => {
                let block = gpu.alloc(MIB, &stream).expect("never more than the shares are alive");
                write(sim, &block, &stream);
                let mut table = table.lock().unwrap();
                if table.len() < 2 && thread_rng().gen_bool(0.7) {
                    table.push((block, stream.clone()));
                }
            }
            4..=6 => {
                let parcel = table.lock().unwrap().pop();
                if let Some((block, writer)) = parcel {
                    stream.wait_stream(&writer).unwrap();
                    block.record_use(&stream).unwrap();
                    check(sim, &block, &stream);
                }
            }
            7 => trim(gpu),
            8 => {
                if thread_rng().gen_bool(0.5) {
                    drop(gpu.report().to_string());
                } else {
                    gpu.synchronize().unwrap();
                }
            }
            // The old stream goes, with blocks of it perhaps still on the table.
            _ => stream = gpu.stream().unwrap(),
        }
    }
}

fn together(threads: usize, steps: usize) {
    let sim = device();
    let gpu = on(&sim, shares(&sim, threads as u64 + 2));
    let table = Arc::new(Mutex::new(Vec::new()));
    let all = (0..threads)
        .map(|_| {
            let (gpu, sim, table) = (gpu.clone(), sim.clone(), Arc::clone(&table));
            thread::spawn(move || work(&gpu, &sim, &table, steps))
        })
        .collect();
    join(all);
    table.lock().unwrap().clear();
    // At rest one stream can get every byte: nothing is stranded.
    let last = gpu.stream().unwrap();
    let every: Vec<_> = (0..threads + 2).map(|_| gpu.alloc(MIB, &last).expect("stranded bytes")).collect();
    drop((every, last));
    all_clean(&sim, gpu);
}

#[test]
fn two_threads_do_everything_together() {
    explore(|| together(2, 8));
}

#[test]
fn four_threads_do_everything_together() {
    explore(|| together(4, 5));
}

/// Two threads of one stream miss at once: where a segment has room for both, one grows and the other is served from what it
/// brought; where it has not, each gets what it brought itself, in whatever order they look, wait their turn and take.
#[test]
fn two_threads_of_one_stream_grow_as_often_as_they_must() {
    explore(|| {
        let sim = device();
        let rounded = Growth::Rounded { small: 2 * MIB, large: 2 * MIB, multiple: 2 * MIB };
        let (growth, growths) = if thread_rng().gen_bool(0.5) { (rounded, 1) } else { (Growth::Exact, 2) };
        let gpu = on(&sim, Config::default().growth(growth));
        let s = gpu.stream().unwrap();
        let one = {
            let (gpu, s) = (gpu.clone(), s.clone());
            thread::spawn(move || gpu.alloc(MIB, &s).expect("the device has room"))
        };
        let here = gpu.alloc(MIB, &s).expect("the device has room");
        let there = one.join().unwrap();
        let report = gpu.report();
        assert_eq!((report.growths, report.total.live), (growths, 2));
        write(&sim, &here, &s);
        write(&sim, &there, &s);
        drop((here, there, s));
        all_clean(&sim, gpu);
    });
}

/// Two threads of one stream miss at once, and all there is lies free in another pool: each borrows, or takes what the other
/// borrowed, and neither grows nor fails.
#[test]
fn two_threads_of_one_stream_borrow() {
    explore(|| {
        let sim = device();
        let gpu = on(
            &sim,
            Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(4 * MIB)),
        );
        let (source, s) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let block = gpu.alloc(4 * MIB, &source).unwrap();
        write(&sim, &block, &source);
        drop(block);
        let work = |gpu: &Allocator<Sim>, sim: &Sim, s: &Stream<Sim>| {
            let block = gpu.alloc(2 * MIB, s).expect("half of what there is");
            write(sim, &block, s);
            check(sim, &block, s);
            block
        };
        let one = {
            let (gpu, sim, s) = (gpu.clone(), sim.clone(), s.clone());
            thread::spawn(move || work(&gpu, &sim, &s))
        };
        let here = work(&gpu, &sim, &s);
        let there = one.join().unwrap();
        assert_eq!(gpu.report().growths, 1, "only what the source took");
        drop((here, there, source, s));
        all_clean(&sim, gpu);
    });
}

/// A trim gathers a segment's free bytes before it gives them back or puts them back; a request that comes meanwhile
/// finds them nowhere. It was out of memory then, with all memory free.
#[test]
fn a_request_beside_a_trim_is_never_out_of_memory() {
    explore(|| {
        let sim = device();
        let gpu = on(&sim, shares(&sim, 1));
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let block = gpu.alloc(MIB, &a).unwrap();
        write(&sim, &block, &a);
        drop(block);
        let trimmer = gpu.clone();
        let other = thread::spawn(move || trim(&trimmer));
        let block = gpu.alloc(MIB, &b).expect("one block is allowed, and none is alive");
        write(&sim, &block, &b);
        other.join().unwrap();
        drop((block, a, b));
        all_clean(&sim, gpu);
    });
}

/// The trim has the only segment in transit just when the request lists what the host has to wait for: its marker has to be
/// waited for nevertheless, once the trim has put it back.
#[test]
fn what_a_trim_puts_back_is_waited_for() {
    explore(|| {
        let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
        let gpu = on(&sim, shares(&sim, 1).reuse(Reuse::Ordered));
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let block = gpu.alloc(MIB, &a).unwrap();
        write(&sim, &block, &a);
        drop(block);
        let trimmer = gpu.clone();
        let other = thread::spawn(move || {
            trim(&trimmer);
            trim(&trimmer);
        });
        drop(gpu.alloc(MIB, &b).expect("one block is allowed, and none is alive"));
        other.join().unwrap();
        drop((a, b));
        all_clean(&sim, gpu);
    });
}

/// There is a block for each thread, but each is freed while a request is looking at the other pool: the bytes are never
/// where it looks, and yet it is not out of memory. What is freed behind its back counts as progress.
#[test]
fn what_is_freed_behind_a_request_is_found() {
    explore(|| {
        let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
        let gpu = on(&sim, shares(&sim, 2).reuse(Reuse::Ordered));
        let (a, b, c) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
        drop([gpu.alloc(MIB, &a).unwrap(), gpu.alloc(MIB, &b).unwrap()]);
        let other = {
            let (gpu, device) = (gpu.clone(), sim.clone());
            thread::spawn(move || {
                for s in [&a, &b, &a, &b] {
                    let block = gpu.alloc(MIB, s).expect("at most two are alive");
                    write(&device, &block, s);
                }
            })
        };
        drop(gpu.alloc(MIB, &c).expect("at most two are alive"));
        other.join().unwrap();
        drop(c);
        all_clean(&sim, gpu);
    });
}

/// A request beside a trim, of pinned memory: a segment on its way back to the driver, or room claimed and not yet pinned, is not lost.
#[test]
fn pinned_memory_within_the_shares_is_never_refused() {
    explore(|| {
        let sim = device();
        let gpu = on(&sim, Config::default().pinned_limit(2 * MIB));
        let threads = (0..2)
            .map(|i| {
                let gpu = gpu.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        drop(gpu.alloc_pinned(MIB).expect("two segments, one for each thread"));
                        if i == 0 {
                            trim(&gpu);
                        }
                    }
                })
            })
            .collect();
        join(threads);
        gpu.check();
        all_clean(&sim, gpu);
    });
}

/// Two trims gather pieces of one segment: each found it incomplete and neither gave it back.
#[test]
fn one_of_two_trims_gives_the_segment_back() {
    explore(|| {
        let sim = device();
        let gpu = on(
            &sim,
            Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(2 * MIB)).growth(Growth::Rounded {
                small: 2 * MIB,
                large: 2 * MIB,
                multiple: 2 * MIB,
            }),
        );
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        // Half of the segment in each pool.
        let (kept, other) = (gpu.alloc(MIB, &a).unwrap(), gpu.alloc(MIB / 2, &b).unwrap());
        drop((kept, other));
        gpu.synchronize().unwrap();
        let trimmer = gpu.clone();
        let other = thread::spawn(move || trimmer.trim(Trim::All).unwrap().bytes);
        let here = gpu.trim(Trim::All).unwrap().bytes;
        assert_eq!(here + other.join().unwrap(), 2 * MIB, "the whole segment, once");
        drop((a, b));
        all_clean(&sim, gpu);
    });
}

/// A pool whose stream is gone is emptied by one trim and swept away by another; what the first puts back must not go
/// into a pool that no thread finds any more.
#[test]
fn nothing_returns_to_a_pool_that_was_swept_away() {
    explore(|| {
        let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
        let gpu = on(&sim, shares(&sim, 1));
        let gone = gpu.stream().unwrap();
        let block = gpu.alloc(MIB, &gone).unwrap();
        write(&sim, &block, &gone);
        drop((block, gone));
        let threads = (0..2)
            .map(|_| {
                let gpu = gpu.clone();
                thread::spawn(move || trim(&gpu))
            })
            .collect();
        join(threads);
        gpu.check();
        let s = gpu.stream().unwrap();
        drop((gpu.alloc(MIB, &s).expect("stranded bytes"), s));
        all_clean(&sim, gpu);
    });
}

/// Two threads make streams, and with that gather what closed ones left and take their pools off the list: what the one
/// moves does not enter a pool that the other takes away.
#[test]
fn two_threads_gather_what_closed_streams_left() {
    explore(|| {
        let sim = device();
        let gpu = on(
            &sim,
            Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(2 * MIB)),
        );
        // A list as long as it may be without being looked at; the oldest would be who inherits.
        drop((0..16).map(|_| gpu.stream().unwrap()).collect::<Vec<_>>());
        let all = (0..2)
            .map(|_| {
                let gpu = gpu.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let s = gpu.stream().unwrap();
                        drop((gpu.alloc(MIB, &s).expect("its share"), s));
                    }
                })
            })
            .collect();
        join(all);
        gpu.check();
        let s = gpu.stream().unwrap();
        drop((gpu.alloc(MIB, &s).expect("stranded"), gpu.alloc(MIB, &s).expect("stranded"), s));
        all_clean(&sim, gpu);
    });
}

/// The host waits for the device while another thread synchronises, and a stream is gone: the numbers that the
/// synchronise reserves must not be waited for on a stream that makes no more markers.
#[test]
fn waiting_beside_a_synchronise_with_a_closed_stream() {
    explore(|| {
        let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
        let gpu = on(&sim, shares(&sim, 1).reuse(Reuse::Ordered));
        let (gone, s) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let block = gpu.alloc(MIB, &gone).unwrap();
        write(&sim, &block, &gone);
        drop((block, gone));
        let other = {
            let gpu = gpu.clone();
            thread::spawn(move || gpu.synchronize().unwrap())
        };
        let trimmer = {
            let gpu = gpu.clone();
            thread::spawn(move || trim(&gpu))
        };
        let block = gpu.alloc(MIB, &s).expect("the device finishes in time");
        join(vec![other, trimmer]);
        drop((block, s));
        all_clean(&sim, gpu);
    });
}

/// Handles go in any order on any thread, the allocator's among them: the last one, whichever it is, gives all back.
#[test]
fn the_last_handle_gives_everything_back_once() {
    explore(|| {
        let sim = device();
        let gpu = on(&sim, Config::default());
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let (x, y) = (gpu.alloc(MIB, &a).unwrap(), gpu.alloc(MIB, &b).unwrap());
        let pinned = gpu.alloc_pinned(4096).unwrap();
        write(&sim, &x, &a);
        b.wait_stream(&a).unwrap();
        x.record_use(&b).unwrap();
        check(&sim, &x, &b);
        pinned.record_use(&a).unwrap();
        let one = thread::spawn(move || drop((x, gpu)));
        let two = thread::spawn(move || drop((a, y)));
        drop((b, pinned));
        join(vec![one, two]);
        sim.verdict().unwrap();
        assert_eq!(sim.leaks(), [], "left on the device");
    });
}

/// Adopting a stream while its former pool closes: it never loses its marker nor its bytes.
#[test]
fn a_stream_is_adopted_while_its_pool_closes() {
    explore(|| {
        let sim = device();
        let gpu = on(&sim, shares(&sim, 2));
        let native = sim.stream().unwrap();
        let s = gpu.adopt(native.clone()).unwrap();
        let block = gpu.alloc(MIB, &s).unwrap();
        write(&sim, &block, &s);
        let one = thread::spawn(move || drop((s, block)));
        let (again, device) = (gpu.clone(), sim.clone());
        let two = thread::spawn(move || {
            let s = again.adopt(native).unwrap();
            let block = again.alloc(MIB, &s).unwrap();
            write(&device, &block, &s);
            check(&device, &block, &s);
        });
        join(vec![one, two]);
        let s = gpu.stream().unwrap();
        drop([gpu.alloc(MIB, &s).unwrap(), gpu.alloc(MIB, &s).unwrap()]);
        drop(s);
        all_clean(&sim, gpu);
    });
}

#[derive(Default)]
struct Heard(std::sync::Mutex<Vec<u64>>);
impl Sink for Heard {
    fn event(&self, number: u64, _: &Happening) {
        // A sink may be slow: another thread may have its turn here.
        thread::yield_now();
        self.0.lock().unwrap().push(number);
    }
}

/// Two threads deliver events: each arrives once, in order, and none waits for a call that never comes.
#[test]
fn events_arrive_in_order_and_all() {
    explore(|| {
        let sim = device();
        let heard = Arc::new(Heard::default());
        let gpu = on(&sim, Config::default().sink(Arc::<Heard>::clone(&heard)));
        let threads = [gpu.clone(), gpu].map(|gpu| {
            thread::spawn(move || {
                let s = gpu.stream().unwrap();
                drop(gpu.alloc(512, &s).unwrap());
                // The last call of this thread that may deliver.
                (gpu.alloc(512, &s).unwrap(), s)
            })
        });
        let left = threads.map(|t| t.join().unwrap());
        let numbers = heard.0.lock().unwrap().clone();
        // Of each thread: a growth, two allocations, a free.
        assert_eq!(numbers, (0..8).collect::<Vec<u64>>());
        drop(left);
    });
}

/// A program that forgets to order its streams is convicted in every schedule: these tests can fail.
#[test]
fn a_missing_wait_is_found() {
    let convicted = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = Arc::clone(&convicted);
    shuttle::check_random(
        move || {
            let sim = device();
            let gpu = on(&sim, Config::default());
            let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let block = Arc::new(gpu.alloc(MIB, &a).unwrap());
            write(&sim, &block, &a);
            let (device, shared, stream) = (sim.clone(), Arc::clone(&block), b.clone());
            let reader = thread::spawn(move || {
                shared.record_use(&stream).unwrap();
                check(&device, &shared, &stream);
            });
            reader.join().unwrap();
            count.fetch_add(u32::from(sim.verdict().is_err()), std::sync::atomic::Ordering::Relaxed);
        },
        20,
    );
    assert_eq!(convicted.load(std::sync::atomic::Ordering::Relaxed), 20);
}
