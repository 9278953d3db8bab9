//! Requirements of tests/architecture/requirements.rs whose own tests make a device each, or an allocator: what such a test does, in every round again, on a device, an
//! allocator and streams that live through the whole loop. There its events, markers, uses and entries of maps could pile up, and would be counted;
//! `requirement_tests` repeats the tests themselves, of whose devices only host memory can be left. A program has the name of the requirement's test.
//!
//! What a requirement says of its allocator holds on one with a past, and each round asserts it, but for three kinds of figures, which the requirement's own test checks:
//! how often the device was called since the beginning, at which address memory lies that other streams had, and how long something takes. A round does
//! not wait for a stream to see that something is over, nor trim: both are done once a period, where it is what the requirement is about.
//!
//! It does not know what any other program does.

#![allow(
    clippy::many_single_char_names,
    reason = "b is the bench; s, t streams, or a, b; x, y arrays and blocks; i the round"
)]

use super::programs::{block, reads, stream, streams, synchronise, writes, zeros};
use super::run::{Bench, PERIOD, Pace, Run, Soaked, Steady};
use millpond::report::Profile;
use millpond::trace::{Action, Event as Happening, Ring, Sink};
use millpond::transfer::Upload;
use millpond::units::{KIB, MIB};
use millpond::{
    Allocation, Allocator, Config, DeviceArray, Error, Growth, Limit, PinnedArray, Reuse, Stream, Trim,
};
use millpond_replay::import::{Options, Trace, read};
use millpond_sim::Launch;
use millpond_testkit::counted::Device;
use millpond_testkit::counting;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A fifth of the rounds and half as many before them, as the suite's tests have: there are a hundred of these.
pub fn run_of(pace: Pace) -> Run {
    Run::steady(pace).shortened()
}

/// Each program at both ends of what is legal, and the list of them.
macro_rules! programs {
    ($($name:ident: $config:expr;)*) => {
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
        /// Runs one of them by its name.
        pub fn run(name: &str, run: Run) -> Soaked {
            let run = run.beside_another(name.starts_with("h02"));
            match name {
                $(stringify!($name) => super::run::soaked(run, $config, $name),)*
                _ => panic!("no program is called {name}"),
            }
        }
        $(
        mod $name {
            use super::*;
            #[test]
            fn at_once() {
                judge(stringify!($name), Pace::AtOnce);
            }
            #[test]
            fn late() {
                judge(stringify!($name), Pace::Late);
            }
        }
        )*
    };
}

fn judge(name: &str, pace: Pace) {
    if let Err(why) = run(name, run_of(pace)).verdict(name, run_of(pace)) {
        panic!("{why}");
    }
}

programs! {
    s03_pinned_copies_overlap_a_kernel: Config::default();
    s04_one_copy_stream_no_overlap: Config::default();
    s08_read_before_copy_detected: Config::default();
    s10_an_array_from_host_data_without_blocking: Config::default();
    s12_a_copy_to_the_host_without_blocking: Config::default();
    s13_a_copy_to_pageable_memory_blocks: Config::default();
    s16_mutate_pinned_in_flight: Config::default();
    t02_exact_fit_baseline: exact().exact_fit(true);
    t05_merge_on_free: exact();
    t06_best_fit_takes_a_quarter_on_varying_lengths: exact();
    t07_bytes_used_and_acquired_by_scope: exact();
    t09_both_copies_and_a_kernel_at_once: Config::default();
    t12_pool_per_stream: Config::default();
    t13_cross_stream_reclaim: exact().limit(Limit::Bytes(MIB));
    t17_shared_reader_two_streams: exact().limit(Limit::Bytes(MIB));
    t18_pool_statistics: Config::default();
    p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait: Config::default();
    p08_work_on_the_copys_stream_comes_after_it: Config::default();
    g05_thread_hop: Config::default();
    g07_pinned_batches_without_blocking: Config::default();
    h01_a_pinned_buffer_lives_until_its_copy_is_done: Config::default();
    h02_a_copy_between_devices_keeps_both_ends: Config::default();
    h12_report_units: Config::default();
    h13_profile_reuse_factor: exact();
    c01_trim_one_stream_or_all: Config::default();
    c02_limit_by_bytes_fraction_and_environment: Config::default();
    c08_json_lines_hook: Config::default();
    parity_rounding: parity();
    parity_split_tree_merges_back_in_both_drop_orders: parity();
    parity_live_chunks_are_distinct: parity();
    parity_split_order_head_then_tail: parity();
    parity_limit_five_plus_one: parity();
    parity_fragmented_limit: parity().limit(Limit::Bytes(10 * UNIT));
    parity_reuse_of_the_same_address: parity();
    parity_no_reuse_across_streams_unless_ordered: exact().reuse(Reuse::Ordered);
    parity_trim_whole_split_one_stream_all: parity();
    parity_bytes_per_stream: parity();
    parity_limits_by_size_and_fraction_and_their_errors: parity();
    parity_environment_limit: Config::default();
    parity_zero_size_unpooled: parity();
    parity_knob_cross_stream_reuse_never: parity();
    parity_knob_exact_growth: parity();
    parity_knob_accounting_at_drop: parity();
    parity_knob_remainders_down_to_a_granule: parity();
    parity_knob_trim_keeps_split_addresses: parity();
    parity_eight_threads_random_sizes_with_trims: Config::default();
    parity_replay_of_rmm_logs: Config::default();
    parity_stream_destroyed_before_its_arrays: Config::default();
    d07_a_pinned_request_takes_what_was_requested: Config::default();
    d08_one_slow_stream_does_not_grow_the_pinned_pool: Config::default();
}

const UNIT: u64 = 512;

fn exact() -> Config {
    Config::default().growth(Growth::Exact)
}

/// As a pool that shares nothing: exactly what is requested from the device, nothing shared between streams.
fn parity() -> Config {
    exact().reuse(Reuse::Never)
}

/// A round, and a wait for a stream once a period.
fn steady(s: &Stream<Device>, asked: u64, round: impl FnMut(u64) + 'static) -> Steady {
    Steady { round: Box::new(round), synchronise: synchronise(s), asked }
}

fn pinned(gpu: &Allocator<Device>, n: usize) -> PinnedArray<f32, Device> {
    gpu.pinned_uninit(n).expect("pinned")
}

/// A kernel that reads and writes an array, behind what it must come after.
fn kernel(device: &Device, x: &DeviceArray<f32, Device>, on: &Stream<Device>) {
    x.wait_on(on).expect("ordered");
    x.record_use(on).expect("recorded");
    let (at, bytes) = (x.address(), x.size_bytes());
    device.launch(on.native(), || Launch::new("kernel").reads(at, bytes).writes(at, bytes));
}

/// Whether this is the round of its period in which a program that is about waits and trims has them.
fn is_the_one(i: u64) -> bool {
    i % PERIOD == PERIOD / 2
}

fn all_waited_for(gpu: &Allocator<Device>) {
    gpu.synchronize().expect("waited");
}

fn trimmed(gpu: &Allocator<Device>, which: Trim<'_, Device>) -> u64 {
    all_waited_for(gpu);
    gpu.trim(which).expect("trimmed").bytes
}

fn refused(asked: Result<Allocation<Device>, Error>) -> Error {
    asked.expect_err("it is too much")
}

// Articles, a tutorial and a talk.

/// Two copies from pinned memory, each on its stream, and a kernel on the first array on a third.
fn s03_pinned_copies_overlap_a_kernel(b: &Bench) -> Steady {
    fed(b, true)
}

/// Both copies on one stream, for which the host waits.
fn s04_one_copy_stream_no_overlap(b: &Bench) -> Steady {
    fed(b, false)
}

fn fed(b: &Bench, apart: bool) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let [copy, other, work] = [0; 3].map(|_| stream(&gpu));
    let other = if apart { other } else { copy.clone() };
    let (mut x, mut y) = (zeros(&gpu, 1000, &copy), zeros(&gpu, 1000, &other));
    let [one, two] = [0; 2].map(|_| Arc::new(gpu.pinned_zeros::<f32>(1000).expect("pinned")));
    steady(&copy.clone(), 0, move |_| {
        drop(x.copy_from(Arc::clone(&one), &copy).expect("queued"));
        drop(y.copy_from(Arc::clone(&two), &other).expect("queued"));
        kernel(&device, &x, &work);
    })
}

/// The lawful half: the stream that reads is ordered behind the copy's.
fn s08_read_before_copy_detected(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([copy, work], synchronise) = streams(b);
    let target = block(&gpu, MIB, &copy);
    let round = Box::new(move |_| {
        copy.wait_stream(&work).expect("ordered");
        writes(&device, copy.native(), &target);
        work.wait_stream(&copy).expect("ordered");
        target.record_use(&work).expect("recorded");
        reads(&device, work.native(), &target);
    });
    Steady { round, synchronise, asked: 3 }
}

fn s10_an_array_from_host_data_without_blocking(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let mut sent: VecDeque<Upload<PinnedArray<u64, Device>, Device>> = VecDeque::new();
    steady(&s.clone(), 0, move |_| {
        let host = gpu.pinned_from_fn([2, 5], |i| i as u64).expect("pinned");
        let (x, copied) = gpu.array_from_pinned(host, &s).expect("queued");
        assert_eq!(x.shape().lengths(), [2, 5]);
        sent.push_back(copied);
        if sent.len() > 30 {
            assert_eq!(sent.pop_front().expect("some").wait().expect("done")[9], 9);
        }
    })
}

fn s12_a_copy_to_the_host_without_blocking(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let x = zeros(&gpu, 1000, &s);
    let mut back = VecDeque::new();
    steady(&s.clone(), 0, move |_| {
        back.push_back(x.to_pinned(&s).expect("queued"));
        if back.len() > 30 {
            drop(back.pop_front().expect("some").wait().expect("done"));
        }
    })
}

/// It blocks, so that there is one in a hundred rounds; of the others each has a copy that does not.
fn s13_a_copy_to_pageable_memory_blocks(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let (x, mut there) = (zeros(&gpu, 1000, &s), vec![1.0; 1000]);
    steady(&s.clone(), 0, move |i| {
        if is_the_one(i) {
            x.copy_to_slice(&mut there, &s).expect("copied");
        } else {
            drop(x.to_pinned(&s).expect("queued"));
        }
    })
}

/// The lawful half: the source is the token's until the copy is done, and only then written again.
fn s16_mutate_pinned_in_flight(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let mut x = zeros(&gpu, 1000, &s);
    let mut sent: VecDeque<Upload<PinnedArray<f32, Device>, Device>> = VecDeque::new();
    steady(&s.clone(), 0, move |i| {
        let mut host = if sent.len() < 20 {
            pinned(&gpu, 1000)
        } else {
            sent.pop_front().expect("some").wait().expect("done")
        };
        host.fill(i as f32);
        sent.push_back(x.copy_from(host, &s).expect("queued"));
    })
}

fn t02_exact_fit_baseline(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let at = |bytes| {
            let x = block(&gpu, bytes, &s);
            writes(&device, s.native(), &x);
            x.address()
        };
        let first = at(1000);
        assert_eq!(at(600), first, "the same two granules");
        assert_ne!(at(100), first, "one granule is another size");
    })
}

fn t05_merge_on_free(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let whole = block(&gpu, 3 * UNIT, &s);
        let base = whole.address();
        drop(whole);
        let [first, between, last] = [0; 3].map(|_| block(&gpu, UNIT, &s));
        drop((first, last));
        assert_eq!(gpu.report().total.free_chunks, 2);
        drop(between);
        assert_eq!(gpu.report().total.free_chunks, 1);
        assert_eq!(block(&gpu, 3 * UNIT, &s).address(), base);
    })
}

/// Steps over sentences, whose lengths are drawn anew each time.
fn t06_best_fit_takes_a_quarter_on_varying_lengths(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let mut seed = 6_u64;
    let mut length = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        10 + (seed >> 33) % 90
    };
    steady(&s.clone(), 0, move |_| {
        let (from, to) = (length(), length());
        // Forth, and back: beside each its gradient, which goes with it.
        let sizes = [from, from * 4, to, to * 4, from * to / 64];
        let mut alive = Vec::from(sizes.map(|n| block(&gpu, n * KIB, &s)));
        while let Some(activation) = alive.pop() {
            drop((block(&gpu, activation.len(), &s), activation));
        }
    })
}

fn t07_bytes_used_and_acquired_by_scope(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let mut profile = Profile::new();
        let usage = || gpu.usage();
        profile.within("epoch", usage, |profile| {
            for _ in 0..10 {
                profile.within("layer", usage, |_| drop(block(&gpu, MIB, &s)));
            }
        });
        let row = &profile.rows()[1];
        assert_eq!((row.name.as_str(), row.allocated, row.occurrences), ("layer", 10 * MIB, 10));
    })
}

fn t09_both_copies_and_a_kernel_at_once(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([down, up, work], synchronise) = streams(b);
    let (mut x, y, z) = (zeros(&gpu, 1000, &down), zeros(&gpu, 1000, &up), zeros(&gpu, 1000, &work));
    let host = Arc::new(gpu.pinned_zeros::<f32>(1000).expect("pinned"));
    let round = Box::new(move |_| {
        drop(x.copy_from(Arc::clone(&host), &down).expect("queued"));
        drop(y.to_pinned(&up).expect("queued"));
        kernel(&device, &z, &work);
    });
    Steady { round, synchronise, asked: 0 }
}

fn t12_pool_per_stream(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([s, t], synchronise) = streams(b);
    let round = Box::new(move |_| {
        for on in [&s, &t] {
            writes(&device, on.native(), &block(&gpu, 16 * KIB, on));
        }
        assert_eq!(gpu.report().pools.len(), 2);
    });
    Steady { round, synchronise, asked: 0 }
}

/// Ordered in one round, behind an inserted wait in the next: there is memory for one.
fn t13_cross_stream_reclaim(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([s, t], synchronise) = streams(b);
    let mut at = None;
    let round = Box::new(move |i| {
        for on in [&s, &t] {
            if i % 2 == 0 {
                on.wait_stream(if on.id() == s.id() { &t } else { &s }).expect("ordered");
            }
            let x = block(&gpu, MIB, on);
            assert_eq!(*at.get_or_insert(x.address()), x.address(), "it goes from one to the other");
            writes(&device, on.native(), &x);
            reads(&device, on.native(), &x);
        }
    });
    Steady { round, synchronise, asked: 2 }
}

/// There is memory for one: it serves its own stream again behind both readers.
fn t17_shared_reader_two_streams(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([home, left, right], synchronise) = streams(b);
    let round = Box::new(move |_| {
        let x = block(&gpu, MIB, &home);
        writes(&device, home.native(), &x);
        for on in [&left, &right] {
            on.wait_stream(&home).expect("ordered");
            x.record_use(on).expect("recorded");
            reads(&device, on.native(), &x);
        }
    });
    Steady { round, synchronise, asked: 2 }
}

fn t18_pool_statistics(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |i| {
        let (x, y) = (block(&gpu, 1000, &s), block(&gpu, 3 * UNIT, &s));
        drop(x);
        let report = gpu.report();
        let total = &report.total;
        assert_eq!((total.allocated, total.requested, total.live), (3 * UNIT, 3 * UNIT, 1));
        assert_eq!((total.reserved, total.cached, total.free_chunks), (2 * MIB, 2 * MIB - 3 * UNIT, 2));
        let counted = &total.counters;
        assert_eq!((counted.allocations, counted.hits, counted.misses), (2 * (i + 1), 2 * i + 1, 1));
        drop(y);
    })
}

/// Copies from sources that are not shared. One in a hundred rounds waits for its own.
fn p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let mut x = zeros(&gpu, 100, &s);
    let mut sent = Vec::new();
    steady(&s.clone(), 0, move |i| {
        sent.push(x.copy_from(pinned(&gpu, 100), &s).expect("queued"));
        if is_the_one(i) {
            drop(sent.pop().expect("some").wait().expect("done"));
            assert!(sent.drain(..).all(|t| t.try_into_inner().is_ok()), "one wait served all");
        }
    })
}

fn p08_work_on_the_copys_stream_comes_after_it(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let mut x = gpu.uninit::<f32>(100, &s).expect("an array");
        drop(x.copy_from(pinned(&gpu, 100), &s).expect("queued"));
        kernel(&device, &x, &s);
    })
}

/// Allocated, used and freed by three threads, in one of twenty rounds; in the others by this one.
fn g05_thread_hop(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let s = stream(&gpu);
    let mut at = None;
    steady(&s.clone(), 0, move |i| {
        let x = if i % 20 == 0 {
            let (gpu, s, device) = (&gpu, &s, &device);
            let x = by_another(move || block(gpu, MIB, s));
            by_another(|| writes(device, s.native(), &x));
            let at = x.address();
            by_another(move || drop(x));
            at
        } else {
            let x = block(&gpu, MIB, &s);
            writes(&device, s.native(), &x);
            x.address()
        };
        assert_eq!(*at.get_or_insert(x), x, "the same chunk every time");
    })
}

fn by_another<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    let account = counting::Account::here();
    std::thread::scope(|t| t.spawn(|| account.scope(run)).join().expect("no panic"))
}

fn g07_pinned_batches_without_blocking(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([copy, work], synchronise) = streams(b);
    let mut x = gpu.uninit::<f32>([4, 10], &copy).expect("an array");
    let mut spare: Vec<_> = (0..20).map(|_| gpu.pinned_zeros::<f32>([4, 10]).expect("pinned")).collect();
    let mut sent = VecDeque::new();
    let round = Box::new(move |i| {
        let mut host =
            spare.pop().unwrap_or_else(|| sent.pop_front().map(Upload::wait).expect("some").expect("done"));
        host.fill(i as f32);
        sent.push_back(x.copy_from(host, &copy).expect("queued"));
        kernel(&device, &x, &work);
        assert_eq!(gpu.report().pinned.expect("batches").counters.allocations, 20);
    });
    Steady { round, synchronise, asked: 0 }
}

/// A shared source is kept by what its copies need, and by no more once they are waited for.
fn h01_a_pinned_buffer_lives_until_its_copy_is_done(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let mut x = zeros(&gpu, 500, &s);
    let mut host = Arc::new(pinned(&gpu, 500));
    steady(&s.clone(), 0, move |i| {
        drop(x.copy_from(Arc::clone(&host), &s).expect("queued"));
        if is_the_one(i) {
            s.synchronize().expect("waited");
            assert_eq!(Arc::strong_count(&host), 1, "let go");
            host = Arc::new(pinned(&gpu, 500));
        }
    })
}

/// Both ends are dropped behind the copy, and their bytes are the next round's.
fn h02_a_copy_between_devices_keeps_both_ends(b: &Bench) -> Steady {
    let (here, there) = (b.gpu.clone(), b.neighbour.clone().expect("another device"));
    let (s, side, t) = (stream(&here), stream(&here), stream(&there));
    let both = (here.clone(), there.clone());
    let round = Box::new(move |i| {
        let (x, mut y) = (zeros(&here, 100, &s), zeros(&there, 100, &t));
        y.copy_from_peer(&x, &side, &t).expect("queued");
        drop(if i % 2 == 0 { (Some(y), x) } else { (None, x) });
    });
    let synchronise = Box::new(move || {
        both.0.synchronize().expect("waited");
        both.1.synchronize().expect("waited");
    });
    Steady { round, synchronise, asked: 0 }
}

fn h12_report_units(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let x = block(&gpu, 1536 * MIB, &s);
        let text = gpu.report().to_string();
        assert!(text.contains("1.50 GiB"), "{text}");
        drop(x);
    })
}

fn h13_profile_reuse_factor(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |i| {
        if is_the_one(i) {
            assert_eq!(trimmed(&gpu, Trim::All), MIB);
        }
        let mut profile = Profile::default();
        let layer = profile.enter("layer", gpu.usage());
        (0..10).for_each(|_| drop(block(&gpu, MIB, &s)));
        profile.exit(layer, gpu.usage());
        let text = profile.to_string();
        assert!(text.contains("layer") && text.contains("10.0x") == (i == 0 || is_the_one(i)), "{text}");
    })
}

// What users of array libraries compare.

fn c01_trim_one_stream_or_all(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([s, t], synchronise) = streams(b);
    let round = Box::new(move |i| {
        for on in [&s, &t] {
            let parts: Vec<_> = (0..8).map(|_| block(&gpu, 2 * MIB, on)).collect();
            drop(parts);
        }
        let kept = block(&gpu, 2 * MIB, &t);
        if is_the_one(i) {
            s.synchronize().expect("waited");
            let first = gpu.trim(Trim::Stream(&s)).expect("trimmed");
            assert_eq!((first.bytes, first.segments), (20 * MIB, 1));
        }
        writes(&device, t.native(), &kept);
        drop(kept);
        if is_the_one(i) {
            trimmed(&gpu, Trim::All);
            assert_eq!(gpu.report().reserved, 0);
        }
    });
    Steady { round, synchronise, asked: 0 }
}

fn c02_limit_by_bytes_fraction_and_environment(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        for limit in [Limit::Bytes(256 * MIB), Limit::Fraction(0.0625)] {
            gpu.set_limit(limit).expect("a limit");
            let x = block(&gpu, 200 * MIB, &s);
            let refused = refused(gpu.alloc(100 * MIB, &s));
            let facts = refused.out_of_memory().expect("out of memory");
            assert_eq!((facts.requested, facts.report.limit), (100 * MIB, Some(256 * MIB)));
            drop(x);
        }
        let from = |v: &'static str| {
            Config::from_variables(move |name| (name == "MILLPOND_LIMIT").then(|| v.to_owned()))
        };
        from("40%").expect("a share");
        from("a lot").expect_err("no share");
    })
}

/// Events by a sink that counts them, and the newest as JSON lines.
fn c08_json_lines_hook(b: &Bench) -> Steady {
    #[derive(Default)]
    struct Counts(AtomicU64);
    impl Sink for Counts {
        fn event(&self, _: u64, _: &Happening) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let (counts, ring) = (Arc::new(Counts::default()), Arc::new(Ring::new(16)));
    let config = Config::default().sink(counts.clone()).sink(ring.clone());
    let with_sink = Allocator::new(b.device.clone(), config).expect("an allocator");
    let s = stream(&with_sink);
    let mut json = Vec::new();
    steady(&s.clone(), 0, move |i| {
        drop(block(&with_sink, 1000, &s));
        with_sink.deliver_events();
        assert_eq!(counts.0.load(Relaxed), 1 + 2 * (i + 1), "a growth, and each round's two");
        json.clear();
        ring.write_json(with_sink.device(), &mut json).expect("lines");
        assert!(json.starts_with(b"{") && json.ends_with(b"\n"));
    })
}

// Tests of others.

fn parity_rounding(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        for (asked, rounded) in [(1, 512), (511, 512), (512, 512), (513, 1024), (1024, 1024), (1025, 1536)] {
            let x = block(&gpu, asked, &s);
            let total = gpu.report().total;
            assert_eq!((total.requested, total.allocated), (asked, rounded));
            drop(x);
        }
    })
}

fn parity_split_tree_merges_back_in_both_drop_orders(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |i| {
        let base = block(&gpu, 4 * UNIT, &s).address().0;
        let halves = [block(&gpu, 2 * UNIT, &s), block(&gpu, 2 * UNIT, &s)];
        assert_eq!(halves.each_ref().map(|h| h.address().0), [base, base + 2 * UNIT]);
        drop(halves);
        let mut quarters = [0; 4].map(|_| block(&gpu, UNIT, &s));
        assert_eq!(quarters.each_ref().map(|q| (q.address().0 - base) / UNIT), [0, 1, 2, 3]);
        if i % 2 == 0 {
            quarters.reverse();
        }
        drop(quarters);
        let report = gpu.report();
        assert_eq!((report.total.free_chunks, report.total.largest_free, report.growths), (1, 4 * UNIT, 1));
    })
}

fn parity_live_chunks_are_distinct(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let all: Vec<_> = (0..20).map(|i| block(&gpu, UNIT * (i % 5 + 1), &s)).collect();
        let mut spans: Vec<(u64, u64)> = all.iter().map(|a| (a.address().0, a.len())).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    })
}

fn parity_split_order_head_then_tail(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let base = block(&gpu, 4 * UNIT, &s).address().0;
        let (head, tail) = (block(&gpu, UNIT, &s), block(&gpu, 3 * UNIT, &s));
        assert_eq!((head.address().0, tail.address().0), (base, base + UNIT));
    })
}

fn parity_limit_five_plus_one(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |i| {
        if !is_the_one(i) {
            drop((block(&gpu, 5 * UNIT, &s), block(&gpu, UNIT, &s)));
            return;
        }
        trimmed(&gpu, Trim::All);
        gpu.set_limit(Limit::Bytes(6 * UNIT)).expect("a limit");
        let (five, one) = (block(&gpu, 5 * UNIT, &s), block(&gpu, UNIT, &s));
        assert!(refused(gpu.alloc(UNIT, &s)).out_of_memory().is_some());
        gpu.set_limit(Limit::Bytes(7 * UNIT)).expect("a limit");
        drop((five, one, block(&gpu, UNIT, &s)));
    })
}

fn parity_fragmented_limit(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |i| {
        if !is_the_one(i) {
            drop((block(&gpu, 8 * UNIT, &s), block(&gpu, 2 * UNIT, &s)));
            return;
        }
        trimmed(&gpu, Trim::All);
        let alloc = |units: u64, in_the_way: u64| {
            assert!(refused(gpu.alloc(units * UNIT, &s)).out_of_memory().is_some());
            assert_eq!(trimmed(&gpu, Trim::All), in_the_way * UNIT);
            block(&gpu, units * UNIT, &s)
        };
        let kept = block(&gpu, 2 * UNIT, &s);
        drop([0; 4].map(|_| block(&gpu, UNIT, &s)));
        drop((block(&gpu, 4 * UNIT, &s), alloc(3, 4)));
        let big = alloc(8, 7);
        assert_eq!(gpu.report().reserved, 10 * UNIT);
        drop((kept, big));
    })
}

fn parity_reuse_of_the_same_address(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let mut at = None;
    steady(&s.clone(), 0, move |_| {
        let x = block(&gpu, 3 * UNIT, &s).address();
        assert_eq!(*at.get_or_insert(x), x);
    })
}

fn parity_no_reuse_across_streams_unless_ordered(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([s, t], synchronise) = streams(b);
    let round = Box::new(move |i| {
        writes(&device, s.native(), &block(&gpu, MIB, &s));
        if i % 2 == 0 {
            t.wait_stream(&s).expect("ordered");
        }
        writes(&device, t.native(), &block(&gpu, MIB, &t));
        assert!(gpu.report().growths <= 2, "one each at most");
    });
    Steady { round, synchronise, asked: 1 }
}

fn parity_trim_whole_split_one_stream_all(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let ([s, t], synchronise) = streams(b);
    let round = Box::new(move |i| {
        if !is_the_one(i) {
            drop((block(&gpu, 2 * UNIT, &s), block(&gpu, 3 * UNIT, &t)));
            return;
        }
        let trim = |which| trimmed(&gpu, which);
        trim(Trim::All);
        drop(block(&gpu, 4 * UNIT, &s));
        assert_eq!(trim(Trim::All), 4 * UNIT, "a whole chunk");
        drop(block(&gpu, 4 * UNIT, &s));
        let head = block(&gpu, UNIT, &s);
        assert_eq!(trim(Trim::All), 0, "a split chunk, its head in use");
        drop(head);
        assert_eq!(trim(Trim::All), 4 * UNIT);
        drop((block(&gpu, 2 * UNIT, &s), block(&gpu, 3 * UNIT, &t)));
        assert_eq!(trim(Trim::Stream(&s)), 2 * UNIT);
        assert_eq!(trim(Trim::All), 3 * UNIT);
    });
    Steady { round, synchronise, asked: 0 }
}

fn parity_bytes_per_stream(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let ([s, t], synchronise) = streams(b);
    let round = Box::new(move |_| {
        let x = block(&gpu, 2 * UNIT, &s);
        drop(block(&gpu, 3 * UNIT, &s));
        let y = block(&gpu, 5 * UNIT, &t);
        let report = gpu.report();
        let of = |s: &Stream<Device>| {
            let pool = report.pools.iter().find(|p| p.stream == Some(s.id())).expect("its pool");
            (pool.allocated, pool.cached, pool.reserved)
        };
        assert_eq!(of(&s), (2 * UNIT, 3 * UNIT, 5 * UNIT));
        assert_eq!(of(&t), (5 * UNIT, 0, 5 * UNIT));
        drop((x, y));
    });
    Steady { round, synchronise, asked: 0 }
}

fn parity_limits_by_size_and_fraction_and_their_errors(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        gpu.set_limit(Limit::Bytes(3 * UNIT)).expect("a limit");
        assert_eq!(gpu.report().limit, Some(3 * UNIT));
        gpu.set_limit(Limit::None).expect("none");
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let refused = gpu.set_limit(Limit::Fraction(wrong)).expect_err("no share");
            assert!(matches!(refused, Error::Config { .. }), "{refused}");
        }
        for bytes in [0, 1] {
            gpu.set_limit(Limit::Bytes(bytes)).expect("a limit");
            assert!(refused(gpu.alloc(1, &s)).out_of_memory().is_some());
        }
    })
}

/// An allocator with each of the limits, on the device that lasts.
fn parity_environment_limit(b: &Bench) -> Steady {
    let (device, s) = (b.device.clone(), stream(&b.gpu));
    steady(&s, 0, move |_| {
        let limit = |text: &'static str| {
            Config::from_variables(move |n| (n == "MILLPOND_LIMIT").then(|| text.into()))
                .map(|config| Allocator::new(device.clone(), config).expect("an allocator").report().limit)
        };
        for (text, bytes) in [("0", Some(0)), ("65536", Some(65536)), ("25%", Some(1 << 30)), ("none", None)]
        {
            assert_eq!(limit(text).expect("a limit"), bytes, "{text:?}");
        }
        for text in ["-1", "101%", "nan%"] {
            assert!(limit(text).is_err(), "{text:?}");
        }
    })
}

fn parity_zero_size_unpooled(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let (x, y) = (block(&gpu, 0, &s), gpu.alloc_pinned(0).expect("nothing"));
        x.record_use(&s).expect("nothing");
        y.record_use(&s).expect("nothing");
        x.free_on(&s).expect("nothing");
        block(&gpu, 0, &s).free_unknown();
        let report = gpu.report();
        assert_eq!((report.reserved, report.total.counters.allocations), (0, 0));
    })
}

fn parity_knob_cross_stream_reuse_never(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let ([s, t], synchronise) = streams(b);
    let round = Box::new(move |_| {
        drop(block(&gpu, MIB, &s));
        t.wait_stream(&s).expect("ordered");
        drop(block(&gpu, MIB, &t));
        assert_eq!(gpu.report().growths, 2, "ordered, and still not shared");
    });
    Steady { round, synchronise, asked: 1 }
}

fn parity_knob_exact_growth(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        let both = (block(&gpu, 700, &s), block(&gpu, 3 * MIB + 1, &s));
        assert_eq!(gpu.report().reserved, 1024 + 3 * MIB + 512);
        drop(both);
    })
}

fn parity_knob_accounting_at_drop(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        writes(&device, s.native(), &block(&gpu, MIB, &s));
        let total = gpu.report().total;
        assert_eq!(
            (total.allocated, total.cached),
            (0, MIB),
            "free as soon as it is dropped, pending or not"
        );
    })
}

fn parity_knob_remainders_down_to_a_granule(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |_| {
        drop(block(&gpu, MIB, &s));
        let (x, y) = (block(&gpu, MIB - UNIT, &s), block(&gpu, UNIT, &s));
        assert_eq!(y.address().0, x.address().0 + MIB - UNIT);
        assert_eq!(gpu.report().growths, 1);
    })
}

fn parity_knob_trim_keeps_split_addresses(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s.clone(), 0, move |i| {
        drop(block(&gpu, 4 * UNIT, &s));
        let head = block(&gpu, UNIT, &s);
        if is_the_one(i) {
            assert_eq!(trimmed(&gpu, Trim::All), 0);
        }
        let tail = block(&gpu, 3 * UNIT, &s);
        assert_eq!(tail.address().0, head.address().0 + UNIT, "the rest stayed where it was");
    })
}

/// Eight threads' sizes and trims, with a stream each: by a thread in one of ten rounds, one after the other, and by this one in the others.
fn parity_eight_threads_random_sizes_with_trims(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let streams: Vec<_> = (0..8).map(|_| stream(&gpu)).collect();
    steady(&streams[0].clone(), 0, move |i| {
        let s = &streams[i as usize % 8];
        let work = || {
            let kept: Vec<_> = (1..6).map(|k| block(&gpu, (i * 7919 + k * 6007) % 50_000 + 1, s)).collect();
            drop(kept);
            if is_the_one(i) {
                gpu.trim(Trim::All).expect("trimmed");
            }
        };
        if i % 10 == 0 { by_another(work) } else { work() }
    })
}

fn parity_replay_of_rmm_logs(b: &Bench) -> Steady {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,0,allocate,0x7f00,4096,1\n1,5,allocate,0x8f00,512,2\n1,9,free,0x7f00,4096,1\n\
               1,12,allocate,0x7f00,2048,1\n1,15,free,0x8f00,512,2\n1,20,free,0x7f00,2048,1\n";
    let Trace::Log(log) = read("rmm", log.as_bytes(), Options::default()).expect("a log") else {
        panic!("a CSV is a log");
    };
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([r, s, t], synchronise) = streams(b);
    let mut live = HashMap::new();
    let round = Box::new(move |_| {
        for call in &log.calls {
            let s = [&r, &s, &t][usize::from(call.stream().0)];
            match call.action() {
                Action::Alloc => {
                    let x = block(&gpu, call.bytes(), s);
                    writes(&device, s.native(), &x);
                    live.insert(call.block(), x);
                }
                Action::Free => drop(live.remove(&call.block()).expect("it was allocated")),
            }
        }
        assert!(live.is_empty());
    });
    Steady { round, synchronise, asked: 0 }
}

fn parity_stream_destroyed_before_its_arrays(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let keep = stream(&gpu);
    steady(&keep.clone(), 0, move |_| {
        let s = stream(&gpu);
        let x = block(&gpu, 16 * KIB, &s);
        writes(&device, s.native(), &x);
        drop(s);
        let y = block(&gpu, 16 * KIB, &keep);
        writes(&device, keep.native(), &y);
        drop(x);
        let z = block(&gpu, 16 * KIB, &keep);
        writes(&device, keep.native(), &z);
    })
}

// Demonstrations.

fn d07_a_pinned_request_takes_what_was_requested(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    steady(&s, 0, move |_| {
        let _x = gpu.alloc_pinned(130 * MIB + 1).expect("pinned");
        assert_eq!(gpu.report().pinned.expect("some").reserved, 132 * MIB);
    })
}

/// A gate holds one stream for fifty rounds, with a copy; the other keeps pace.
fn d08_one_slow_stream_does_not_grow_the_pinned_pool(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let ([quick, slow], mut synchronise) = streams(b);
    let n = 4 << 20;
    let (mut x, mut y) = (gpu.uninit::<u8>(n, &slow).expect("x"), gpu.uninit::<u8>(n, &quick).expect("y"));
    let gate = std::rc::Rc::new(std::cell::RefCell::new(None::<millpond_sim::Gate>));
    let open = {
        let gate = gate.clone();
        move || {
            let closed = gate.borrow_mut().take();
            counting::device(|| closed.map(millpond_sim::Gate::open));
        }
    };
    let opened = open.clone();
    let round = Box::new(move |i| {
        if i % 50 == 0 {
            opened();
            let closed = counting::device(|| device.sim().gate(slow.native()).expect("a gate"));
            *gate.borrow_mut() = Some(closed);
            drop(x.copy_from(gpu.pinned_uninit(n).expect("pinned"), &slow).expect("queued"));
        }
        drop(y.copy_from(gpu.pinned_uninit(n).expect("pinned"), &quick).expect("queued"));
        counting::device(|| device.sim().run_until_idle());
        assert_eq!(gpu.report().pinned.expect("some").reserved_peak, 64 * MIB, "one segment");
    });
    let synchronise = Box::new(move || {
        open();
        synchronise();
    });
    Steady { round, synchronise, asked: 0 }
}
