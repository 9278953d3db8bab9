//! Tokens, guards and copies of pageable memory beside a thread that frees, allocates, orders streams and synchronises.
//!
//! The smallest programs in every schedule with a bounded number of preemptions, and one that draws its steps at random. Each
//! has to convict bugs planted in what it does.

use super::operands::{convicts, every_schedule};
use super::{device, explore, join};
use millpond::mutant::Bug;
use millpond::units::MIB;
use millpond::{Allocator, Config, Growth, Limit, Reuse, Stream, Trim};
use millpond_sim::{Schedule, Sim};
use millpond_testkit::flight::{self, Array, LEN, Table, filled, guarded_read, guarded_write, pinned};
use millpond_testkit::rig::{all_clean, on};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::thread;

fn world(arrays: usize) -> (Sim, Allocator<Sim>, [Stream<Sim>; 2]) {
    let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
    let config = Config::default()
        .reuse(Reuse::WithWaits)
        .growth(Growth::Exact)
        .limit(Limit::Bytes((arrays * LEN) as u64));
    let gpu = on(&sim, config);
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    (sim, gpu, streams)
}

fn holds(x: &Array, value: u8, on: &Stream<Sim>) {
    assert!(x.to_vec(on).unwrap().iter().all(|&v| v == value), "an operation overtook another");
}

/// One thread drops the token of a copy whose source has other owners no more; another one gets pinned memory, synchronises a stream,
/// and gets some again.
fn a_dropped_token(shared: bool) {
    let (sim, gpu, [s, t]) = world(2);
    let mut x = filled(&gpu, 1, &s).unwrap();
    let copies = {
        let (gpu, s) = (gpu.clone(), s.clone());
        thread::spawn(move || {
            let source = pinned(&gpu, LEN, 2).unwrap();
            if shared {
                drop(x.copy_from(std::sync::Arc::new(source), &s).unwrap());
            } else {
                drop(x.copy_from(source, &s).unwrap());
            }
            x
        })
    };
    let mut y = filled(&gpu, 3, &t).unwrap();
    let mine = pinned(&gpu, LEN, 4).unwrap();
    t.synchronize().unwrap();
    y.copy_from(mine, &t).unwrap().wait().unwrap();
    let again = pinned(&gpu, LEN, 5).unwrap();
    let x = copies.join().unwrap();
    let last = pinned(&gpu, LEN, 6).unwrap();
    holds(&x, 2, &s);
    holds(&y, 4, &s);
    drop((x, y, again, last, s, t));
    all_clean(&sim, gpu);
}

/// The same of a source that fills segments of its own.
fn a_dropped_token_of_a_large_source() {
    const LARGE: usize = (4 << 20) + 512;
    let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
    let gpu = on(&sim, Config::default().pinned_limit(16 * MIB));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut x = gpu.uninit::<u8>(LARGE, &s).unwrap();
    let copies = {
        let (gpu, s) = (gpu.clone(), s.clone());
        thread::spawn(move || {
            drop(x.copy_from(pinned(&gpu, LARGE, 2).unwrap(), &s).unwrap());
            x
        })
    };
    t.wait_stream(&s).unwrap();
    drop(pinned(&gpu, LARGE, 3).unwrap());
    let x = copies.join().unwrap();
    let last = pinned(&gpu, LARGE, 4).unwrap();
    let found = x.slice(..LEN).to_vec(&s).unwrap();
    assert!(found.iter().all(|&v| v == 2), "a source was written under its copy");
    drop((x, last, s, t));
    all_clean(&sim, gpu);
}

/// One thread has a kernel queued between a guard's two ends, another one marks its stream and has the array's wait for that.
fn a_guard(writes: bool) {
    let (sim, gpu, [s, t]) = world(2);
    let mut x = filled(&gpu, 1, &s).unwrap();
    let guards = {
        let (sim, t) = (sim.clone(), t.clone());
        thread::spawn(move || {
            if writes {
                guarded_write(&sim, &mut x, 2, &t, || {}).unwrap();
            } else {
                guarded_read(&sim, &x, 1, &t, || {}).unwrap();
            }
            x
        })
    };
    let orders = {
        let (gpu, [s, t]) = (gpu.clone(), [s.clone(), t.clone()]);
        thread::spawn(move || {
            s.wait_stream(&t).unwrap();
            drop(filled(&gpu, 3, &t).unwrap());
        })
    };
    let mut x = guards.join().unwrap();
    orders.join().unwrap();
    if writes {
        holds(&x, 2, &s);
    } else {
        millpond::kernel::fill(&mut x, 4, &s).unwrap();
        holds(&x, 4, &t);
    }
    drop((x, s, t));
    all_clean(&sim, gpu);
}

/// One thread brings an array to the host by another stream and lets its reference go; another one does the same of its own
/// reference, and gets the bytes.
fn a_download_and_a_free(pageable: bool) {
    let (sim, gpu, [s, t]) = world(1);
    let x = std::sync::Arc::new(filled(&gpu, 2, &s).unwrap());
    let brings = {
        let (x, t) = (std::sync::Arc::clone(&x), t.clone());
        thread::spawn(move || {
            if pageable {
                holds(&x, 2, &t);
                return None;
            }
            Some(x.to_pinned(&t).unwrap())
        })
    };
    let frees = {
        let (gpu, [s, t]) = (gpu.clone(), [s.clone(), t.clone()]);
        thread::spawn(move || {
            s.wait_stream(&t).unwrap();
            drop(x);
            if pageable {
                gpu.synchronize().unwrap();
            }
        })
    };
    let brought = brings.join().unwrap();
    frees.join().unwrap();
    let y = filled(&gpu, 3, &s).unwrap();
    s.synchronize().unwrap();
    if let Some(brought) = brought {
        assert!(brought.wait().unwrap().iter().all(|&v| v == 2), "an array was written under its copy");
    }
    holds(&y, 3, &t);
    drop((y, s, t));
    all_clean(&sim, gpu);
}

/// Two threads free an array each of an allocator that scrubs, and get the other's bytes, or their own.
fn new_tenants() {
    let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
    let limit = Limit::Bytes(2 * LEN as u64);
    let gpu =
        on(&sim, Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(limit).scrub(true));
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    let threads = [0, 1].map(|me| {
        let (gpu, [s, t]) = (gpu.clone(), streams.clone());
        let x = filled(&gpu, 1, &s).unwrap();
        thread::spawn(move || {
            drop(x);
            if me == 0 {
                // The former life is complete: only the wipe is to be waited for.
                s.synchronize().unwrap();
            }
            let y = gpu.uninit::<u8>(LEN, &s).unwrap();
            holds(&y, 0, if me == 0 { &t } else { &s });
        })
    });
    join(threads.into());
    drop(streams);
    all_clean(&sim, gpu);
}

/// Every schedule with one preemption (with two there are up to 17,000 of a program), and the bugs within them.
fn judge(name: &str, program: fn(), bugs: &[Bug]) {
    let schedules = every_schedule(1, program);
    eprintln!("{name}: {schedules} schedules");
    assert!(schedules > 40, "few schedules are no search: {schedules}");
    for &bug in bugs {
        assert!(convicts(bug, || every_schedule(1, program)), "{name}: {bug}");
    }
}

#[test]
fn a_token_is_dropped_beside_a_thread_that_takes_pinned_memory() {
    judge("a dropped token", || a_dropped_token(false), &[Bug::PinnedAtOnce]);
    judge("a shared source", || a_dropped_token(true), &[Bug::DeferredAtOnce]);
}

#[test]
fn a_token_of_a_large_source_is_dropped_beside_a_thread_that_takes_pinned_memory() {
    judge("a large source", a_dropped_token_of_a_large_source, &[Bug::LargeSourceUnseen]);
}

#[test]
fn a_guard_ends_beside_a_thread_that_marks_its_stream() {
    judge("a guard that writes", || a_guard(true), &[Bug::GuardSealedEarly]);
    judge("a guard that reads", || a_guard(false), &[Bug::GuardSealedEarly]);
}

#[test]
fn a_copy_to_the_host_goes_on_beside_a_free() {
    judge("a download", || a_download_and_a_free(false), &[Bug::ArrayUseLost]);
    judge("a download to pageable memory", || a_download_and_a_free(true), &[Bug::WaitDropped]);
}

#[test]
fn two_threads_have_memory_that_was_wiped() {
    judge("new tenants", new_tenants, &[Bug::ScrubSkipped, Bug::ScrubUnborn]);
}

fn together(threads: usize, steps: usize) {
    let sim = device();
    let scrubbed = thread_rng().gen_bool(0.25);
    let gpu = on(&sim, flight::config(threads, scrubbed));
    let streams: Vec<_> = (0..3).map(|_| gpu.stream().unwrap()).collect();
    let table = Arc::new(Table::new(Vec::new()));
    let all = (0..threads)
        .map(|_| {
            let (gpu, streams, table) = (gpu.clone(), streams.clone(), Arc::clone(&table));
            thread::spawn(move || {
                let draw = &mut |n| thread_rng().gen_range(0..n);
                let me = flight::Thread { gpu: &gpu, streams: &streams, table: &*table, scrubbed, draw };
                me.work(steps).unwrap_or_else(|e| panic!("{e}"));
            })
        })
        .collect();
    join(all);
    let arrays = std::mem::take(&mut *table.lock());
    gpu.trim(Trim::All).unwrap();
    flight::end(gpu, streams, arrays).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn three_threads_hand_on_arrays_with_their_copies_under_way() {
    explore(|| together(3, 5));
    for bug in flight::BUGS {
        let (found, tried) = super::operands::random_schedules(20_000, bug, || together(3, 5));
        assert!(found, "{bug} survives {tried} random programs");
        eprintln!("{bug}: found after {tried} random programs");
    }
}
