//! Requirements on the allocator, on the simulated device under both oracles: of articles (S), a talk (T), an issue (G), a
//! library (H) and of users who compare allocators (C). `tests/architecture/requirements.rs` says which test shows which.

#![allow(clippy::many_single_char_names, reason = "a, b are streams and x, y blocks throughout")]

use millpond::driver::{Copies, Fences};
use millpond::report::Profile;
use millpond::trace::{Event as Happening, Sink};
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, Error, Growth, Limit, Reuse, Stream, Trim};
use millpond_sim::{Launch, Sim};
use millpond_testkit::rig::{all_clean, check, late, on, write};
use std::sync::{Arc, Mutex};

/// S8: a kernel that reads before the copy it needs is complete is convicted; with the wait it is not.
#[test]
fn s08_read_before_copy_detected() {
    for waits in [false, true] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let (copy, work) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let target = gpu.alloc(MIB, &copy).unwrap();
        write(&sim, &target, &copy);
        if waits {
            work.wait_stream(&copy).unwrap();
        }
        target.record_use(&work).unwrap();
        check(&sim, &target, &work);
        sim.run_until_idle();
        assert_eq!(sim.verdict().is_ok(), waits);
        drop((target, copy, work, gpu));
    }
}

/// S16: the CPU writes a pinned source while its copy is in flight: convicted by both oracles, if the program does it
/// behind the allocator's back.
#[test]
#[allow(unsafe_code, reason = "the driver's copies work on raw memory")]
fn s16_mutate_pinned_in_flight() {
    for mutate in [false, true] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let s = gpu.stream().unwrap();
        let target = gpu.alloc(4096, &s).unwrap();
        let source = gpu.alloc_pinned(4096).unwrap();
        sim.host_writes(source.address(), 4096).unwrap();
        source.record_use(&s).unwrap();
        // SAFETY: `source` and `target` live until the stream was synchronised.
        unsafe { sim.copy_h2d(target.address(), source.as_ptr().as_ptr(), 4096, s.native()) }.unwrap();
        if mutate {
            sim.host_writes(source.address(), 8).unwrap();
        }
        s.synchronize().unwrap();
        assert_eq!(sim.verdict().is_err(), mutate, "{:?}", sim.violations());
        drop((target, source, s, gpu));
    }
}

/// S17: a pinned source dropped while its copy is in flight is not the next buffer's memory.
#[test]
#[allow(unsafe_code, reason = "the driver's copies work on raw memory")]
fn s17_drop_pinned_in_flight() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let target = gpu.alloc(4096, &s).unwrap();
    let source = gpu.alloc_pinned(4096).unwrap();
    let (first, ptr) = (source.address(), source.as_ptr().as_ptr());
    sim.host_writes(first, 4096).unwrap();
    // SAFETY: the pinned bytes are ours; nothing reads them concurrently.
    unsafe { ptr.write_bytes(0xAB, 4096) };
    source.record_use(&s).unwrap();
    // SAFETY: the source was recorded as used by `s`, so its bytes are not reused before the copy is complete.
    unsafe { sim.copy_h2d(target.address(), ptr, 4096, s.native()) }.unwrap();
    drop(source);
    let next = gpu.alloc_pinned(4096).unwrap();
    assert_ne!(next.address(), first, "the source is still being read");
    sim.host_writes(next.address(), 4096).unwrap();
    // SAFETY: the new buffer is ours.
    unsafe { next.as_ptr().as_ptr().write_bytes(0xCD, 4096) };
    sim.launch(s.native(), Launch::check_pattern(target.address(), 4096, 0xABAB_ABAB_ABAB_ABAB)).unwrap();
    gpu.synchronize().unwrap();
    let again = gpu.alloc_pinned(4096).unwrap();
    assert_eq!(again.address(), first, "complete now: the first buffer serves again");
    drop((target, next, again, s));
    all_clean(&sim, gpu);
}

/// What training steps over sentences take from the device, at most: each batch has lengths from a seed, or all of them
/// the same ones.
fn taken_by_steps(config: Config, varying: bool, steps: u32) -> u64 {
    const WIDTH: u64 = 256;
    const WORDS: u64 = 2000;
    let sim = Sim::new(64 * GIB).contents(false);
    let gpu = on(&sim, config.growth(Growth::Exact));
    let s = gpu.stream().unwrap();
    let alloc = |floats: u64| gpu.alloc(4 * floats, &s).unwrap();
    // What stays: an embedding, four matrices of gates, what makes words of states; and two moments of each, for the
    // optimiser.
    let weights = [WORDS, 4 * WIDTH, 4 * WIDTH, 4 * WIDTH, 4 * WIDTH, WORDS];
    let _kept = [weights; 3].map(|all| all.map(|n| alloc(n * WIDTH)));
    let mut seed = 6_u64;
    let mut length = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        10 + (seed >> 33) % 90
    };
    for _ in 0..steps {
        let (from, to) = if varying { (length(), length()) } else { (50, 50) };
        let (source, target) = (16 * from, 16 * to);
        // Forth: states and gates of both sides, who attends to whom, and a number for each word that may come next.
        let sizes = [
            source * WIDTH,
            source * 4 * WIDTH,
            source * WIDTH,
            target * WIDTH,
            target * 4 * WIDTH,
            target * WIDTH,
            source * to,
            target * WIDTH,
            target * WORDS,
        ];
        let mut alive: Vec<_> = sizes.map(|floats| (floats, alloc(floats))).into();
        // Back: beside each its gradient, which goes with it.
        while let Some((floats, activation)) = alive.pop() {
            let gradient = alloc(floats);
            drop((activation, gradient));
        }
    }
    gpu.report().reserved_peak
}

/// T6: the talk saw 12 GiB against 3 on sentences and no difference on images: where lengths are drawn anew each step,
/// best fit takes a quarter of what exact fit takes or less; where shapes are the same each step, as much.
#[test]
fn t06_best_fit_takes_a_quarter_on_varying_lengths() {
    t06(40, 0.25);
}

/// Fewer lengths are fewer chunks that no other length takes.
fn t06(steps: u32, most: f64) {
    let share = |varying| {
        let best = taken_by_steps(Config::default(), varying, steps);
        let exact = taken_by_steps(Config::default().exact_fit(true), varying, steps);
        best as f64 / exact as f64
    };
    let (varying, same) = (share(true), share(false));
    assert!(varying <= most, "lengths drawn anew: {varying}");
    assert!((0.9..=1.1).contains(&same), "the same shapes each step: {same}");
}

/// T10: on one stream a block is reused at once, with no query, no event, no wait: stream order is enough.
#[test]
fn t10_same_stream_early_reuse_ok() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    let first = x.address();
    write(&sim, &x, &s);
    check(&sim, &x, &s);
    drop(x);
    let before = sim.ledger().calls_total();
    let y = gpu.alloc(MIB, &s).unwrap();
    assert_eq!(y.address(), first, "reused while the kernel has not even begun");
    assert_eq!(sim.ledger().calls_total(), before, "no driver call on a hit");
    write(&sim, &y, &s);
    check(&sim, &y, &s);
    drop((y, s));
    all_clean(&sim, gpu);
}

/// T11: two streams over one pool with no order between them: what the talk warns of is convicted, the bytes show it.
#[test]
fn t11_two_streams_one_pool_is_caught() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let (home, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(MIB, &home).unwrap();
    write(&sim, &x, &home);
    // The broken pool: the bytes go to a second stream while the first still uses them, and no use was recorded.
    sim.launch(other.native(), Launch::write_pattern(x.address(), MIB, 7)).unwrap();
    check(&sim, &x, &home);
    sim.run_until_idle();
    let said = sim.verdict().unwrap_err().to_string();
    assert!(said.contains("stream"), "{said}");
    drop((x, home, other, gpu));
}

/// T12: a pool per stream: what one stream freed is not the other's while it may be in use.
#[test]
fn t12_pool_per_stream() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(MIB, &a).unwrap();
    let at = x.address();
    write(&sim, &x, &a);
    drop(x);
    let y = gpu.alloc(MIB, &b).unwrap();
    assert_ne!(y.address(), at);
    write(&sim, &y, &b);
    assert_eq!(gpu.report().pools.len(), 2);
    drop((y, a, b));
    all_clean(&sim, gpu);
}

/// T13: the talk's drawback is gone: ordered or complete, one stream's memory serves another; else behind a wait.
#[test]
fn t13_cross_stream_reclaim() {
    // Ordered: at once, with no driver call but the user's own.
    let sim = late();
    let gpu = on(&sim, Config::default());
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &a).unwrap();
    let at = x.address();
    write(&sim, &x, &a);
    drop(x);
    b.wait_stream(&a).unwrap();
    let y = gpu.alloc(64 * MIB, &b).unwrap();
    assert_eq!(y.address(), at, "b is ordered after the free");
    write(&sim, &y, &b);
    assert_eq!(gpu.report().growths, 1);
    drop((y, a, b));
    all_clean(&sim, gpu);

    // Not ordered, at the limit: behind an inserted wait; the host does not wait.
    let sim = late();
    let gpu = on(&sim, Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(64 * MIB)));
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &a).unwrap();
    write(&sim, &x, &a);
    check(&sim, &x, &a);
    drop(x);
    let y = gpu.alloc(64 * MIB, &b).unwrap();
    write(&sim, &y, &b);
    let report = gpu.report();
    assert_eq!((report.growths, report.total.counters.waits_inserted), (1, 1));
    assert_eq!(report.total.counters.host_waits, 0);
    drop((y, a, b));
    all_clean(&sim, gpu);
}

/// T16: the default stream waits for blocking streams and not for others.
#[test]
fn t16_default_stream_waits_only_for_blocking() {
    for blocking in [true, false] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let zero = gpu.adopt(sim.legacy_stream()).unwrap();
        let native = if blocking { sim.blocking_stream() } else { sim.stream() }.unwrap();
        let s = gpu.adopt(native).unwrap();
        let z = gpu.alloc(MIB, &s).unwrap();
        write(&sim, &z, &s);
        z.record_use(&zero).unwrap();
        check(&sim, &z, &zero);
        sim.run_until_idle();
        assert_eq!(sim.verdict().is_ok(), blocking);
        drop((z, s, zero, gpu));
    }
}

/// T17: two streams read one input; it is dropped while both still run, and serves again only behind both.
#[test]
fn t17_shared_reader_two_streams() {
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)).growth(Growth::Exact));
    let [home, left, right] = [0; 3].map(|_| gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &x, &home);
    for s in [&left, &right] {
        s.wait_stream(&home).unwrap();
        x.record_use(s).unwrap();
        check(&sim, &x, s);
    }
    drop(x);
    assert_eq!(gpu.report().total.in_flight, 64 * MIB);
    let y = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &y, &home);
    assert_eq!(gpu.report().total.counters.waits_inserted, 2, "one for each reader");
    drop((y, home, left, right));
    all_clean(&sim, gpu);
}

/// G5: allocated on one thread, launched on a second, freed on a third: nothing depends on the thread.
#[test]
fn g05_thread_hop() {
    g05(50);
}

fn g05(hops: u32) {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let mut at = Vec::new();
    for _ in 0..hops {
        let (gpu, s, sim) = (&gpu, &s, &sim);
        let x = std::thread::scope(|t| t.spawn(move || gpu.alloc(MIB, s).unwrap()).join().unwrap());
        std::thread::scope(|t| {
            t.spawn(|| {
                write(sim, &x, s);
                check(sim, &x, s);
            });
        });
        at.push(x.address());
        std::thread::scope(|t| {
            t.spawn(move || drop(x));
        });
    }
    assert!(at.iter().all(|&a| a == at[0]), "the same chunk every time");
    drop(s);
    all_clean(&sim, gpu);
}

/// G6: the stream verbs that were requested: wait for an event, wait for a stream.
#[test]
fn g06_wait_for_a_stream_or_an_event() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let [a, b, c] = [0; 3].map(|_| gpu.stream().unwrap());
    let x = gpu.alloc(MIB, &a).unwrap();
    write(&sim, &x, &a);
    let written = a.record().unwrap();
    b.wait(&written).unwrap();
    c.wait_stream(&b).unwrap();
    for s in [&b, &c] {
        x.record_use(s).unwrap();
        check(&sim, &x, s);
    }
    drop((x, a, b, c, written));
    all_clean(&sim, gpu);
}

/// H12: sizes in reports have units.
#[test]
fn h12_report_units() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(1536 * MIB, &s).unwrap();
    let text = gpu.report().to_string();
    assert!(text.contains("1.50 GiB"), "{text}");
    drop((x, s));
    all_clean(&sim, gpu);
}

/// H13: a profile of named scopes says how often the pool served what was allocated: allocated over reserved.
#[test]
fn h13_profile_reuse_factor() {
    let sim = late();
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let s = gpu.stream().unwrap();
    let mut profile = Profile::default();
    let layer = profile.enter("layer", gpu.usage());
    for _ in 0..10 {
        drop(gpu.alloc(MIB, &s).unwrap());
    }
    profile.exit(layer, gpu.usage());
    let text = profile.to_string();
    assert!(text.contains("layer") && text.contains("10.0x"), "{text}");
    drop(s);
    all_clean(&sim, gpu);
}

/// C1: memory goes back for one stream or for all, also where chunks had been split.
#[test]
fn c01_trim_one_stream_or_all() {
    let sim = Sim::new(4 * GIB);
    let gpu = on(&sim, Config::default());
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    for s in [&a, &b] {
        let parts: Vec<_> = (0..8).map(|_| gpu.alloc(2 * MIB, s).unwrap()).collect();
        drop(parts);
    }
    let kept = gpu.alloc(2 * MIB, &b).unwrap();
    let before = gpu.report().reserved;
    gpu.synchronize().unwrap();
    let first = gpu.trim(Trim::Stream(&a)).unwrap();
    assert_eq!((first.bytes, first.segments), (20 * MIB, 1));
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 0, "b's segment is in use");
    drop(kept);
    gpu.synchronize().unwrap();
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, before - first.bytes);
    assert_eq!(sim.ledger().bytes_reserved, 0);
    drop((a, b));
    all_clean(&sim, gpu);
}

/// C2: the limit in bytes, as a share, and from the environment.
#[test]
fn c02_limit_by_bytes_fraction_and_environment() {
    let sim = Sim::new(GIB);
    for limit in [Limit::Bytes(256 * MIB), Limit::Fraction(0.25)] {
        let gpu = on(&sim, Config::default().limit(limit));
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(200 * MIB, &s).unwrap();
        let refused = gpu.alloc(100 * MIB, &s).unwrap_err();
        let facts = refused.out_of_memory().expect("out of memory");
        assert_eq!((facts.requested, facts.report.limit), (100 * MIB, Some(256 * MIB)));
        gpu.set_limit(Limit::None).unwrap();
        let y = gpu.alloc(100 * MIB, &s).unwrap();
        drop((x, y, s));
    }
    let from = |v: &'static str| {
        Config::from_variables(move |name| (name == "MILLPOND_LIMIT").then(|| v.to_owned()))
    };
    let gpu = on(&sim, from("40%").unwrap());
    assert_eq!(gpu.report().limit, Some(GIB * 4 / 10));
    let wrong = from("a lot").unwrap_err().to_string();
    assert!(wrong.contains("MILLPOND_LIMIT") && wrong.contains("a lot") && wrong.contains("40%"), "{wrong}");
    all_clean(&sim, gpu);
}

/// C6: allocating on a capturing stream is a typed error; other streams go on, and the capture survives.
#[test]
fn c06_capturing_stream_refused_others_go_on() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default());
    let native = sim.stream().unwrap();
    let (captured, other) = (gpu.adopt(native.clone()).unwrap(), gpu.stream().unwrap());
    sim.begin_capture(&native).unwrap();
    assert!(
        matches!(gpu.alloc(512, &captured), Err(Error::Capturing { stream: Some(s) }) if s == captured.id())
    );
    let x = gpu.alloc(64 * MIB, &other).unwrap();
    assert!(matches!(x.record_use(&captured), Err(Error::Capturing { .. })));
    write(&sim, &x, &other);
    drop(x);
    assert!(matches!(gpu.adopt(native.clone()), Err(Error::Capturing { stream: None })));
    sim.end_capture(&native).expect("the capture survived a growing allocator");
    let y = gpu.alloc(512, &captured).unwrap();
    drop((y, captured, other, native));
    all_clean(&sim, gpu);
}

/// C7: two threads' per-thread default streams are two streams, though they share a handle value.
#[test]
fn c07_ptds_identity() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let here = gpu.adopt(sim.per_thread_stream()).unwrap();
    let x = gpu.alloc(MIB, &here).unwrap();
    let at = x.address();
    write(&sim, &x, &here);
    drop(x);
    let (sim, gpu_ref) = (&sim, &gpu);
    let (id, other_at) = std::thread::scope(|t| {
        t.spawn(move || {
            let there = gpu_ref.adopt(sim.per_thread_stream()).unwrap();
            let y = gpu_ref.alloc(MIB, &there).unwrap();
            write(sim, &y, &there);
            (there.id(), y.address())
        })
        .join()
        .unwrap()
    });
    assert_ne!(here.id(), id);
    assert_ne!(at, other_at, "unordered bytes of another thread's default stream");
    drop(here);
    all_clean(sim, gpu);
}

/// C8: a hook sees every event, as JSON lines with the field names that users of array libraries know.
#[test]
fn c08_json_lines_hook() {
    #[derive(Default)]
    struct Lines(Mutex<Vec<String>>);
    impl Sink for Lines {
        fn event(&self, _: u64, event: &Happening) {
            self.0.lock().unwrap().push(format!("{event:?}"));
        }
    }
    let lines = Arc::new(Lines::default());
    let ring = Arc::new(millpond::trace::Ring::new(16));
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default().sink(lines.clone()).sink(ring.clone()));
    let s = gpu.stream().unwrap();
    drop(gpu.alloc(1000, &s).unwrap());
    drop(gpu.alloc(1000, &s).unwrap());
    gpu.deliver_events();
    let kinds: Vec<String> = lines
        .0
        .lock()
        .unwrap()
        .iter()
        .map(|l| l.split([' ', '{']).next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(kinds, ["Grow", "Allocate", "Free", "Allocate", "Free"]);
    let mut json = Vec::new();
    ring.write_json(gpu.device(), &mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert_eq!(json.lines().count(), 5, "{json}");
    assert!(json.contains("\"mem_size\":1024") && json.contains("\"size\":1000"), "{json}");
    drop(s);
    all_clean(&sim, gpu);
}

/// A use recorded up to an event covers no more: what the program queued behind it unrecorded is the program's fault.
#[test]
fn a_use_behind_the_recorded_event_is_the_programs() {
    for recorded in [true, false] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let (home, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(4096, &home).unwrap();
        let at = x.address();
        write(&sim, &x, &home);
        other.wait_stream(&home).unwrap();
        check(&sim, &x, &other);
        let event = other.record().unwrap();
        x.record_use_until(&event).unwrap();
        if !recorded {
            check(&sim, &x, &other);
        }
        home.wait(&event).unwrap();
        drop(x);
        let y = gpu.alloc(4096, &home).unwrap();
        assert_eq!(y.address(), at, "home is ordered after the event");
        sim.launch(home.native(), Launch::new("reuse").writes(at, 4096)).unwrap();
        let tally = sim.tally();
        assert_eq!(
            (tally.violations, tally.violations_of_allocator),
            (u64::from(!recorded), 0),
            "{:?}",
            sim.violations()
        );
        drop((y, home, other, event, gpu));
    }
}

/// Used by name in `tests/architecture/requirements.rs` for reuse across streams being a choice.
#[test]
fn reuse_never_keeps_pools_apart() {
    let sim = Sim::new(GIB);
    let gpu: Allocator<Sim> = on(&sim, Config::default().reuse(Reuse::Never));
    let (a, b): (Stream<Sim>, Stream<Sim>) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    drop(gpu.alloc(64 * MIB, &a).unwrap());
    gpu.synchronize().unwrap();
    sim.synchronize_device().unwrap();
    drop(gpu.alloc(64 * MIB, &b).unwrap());
    assert_eq!(gpu.report().growths, 2);
    drop((a, b));
    all_clean(&sim, gpu);
}

/// The tests again, for `tests/soak.rs`, which runs each for ever.
#[allow(dead_code, unreachable_pub, reason = "read by another test")]
pub(crate) const AGAIN: &[(&str, fn())] = &[
    ("s08_read_before_copy_detected", s08_read_before_copy_detected),
    ("s16_mutate_pinned_in_flight", s16_mutate_pinned_in_flight),
    ("s17_drop_pinned_in_flight", s17_drop_pinned_in_flight),
    ("t06_best_fit_takes_a_quarter_on_varying_lengths", || t06(8, 0.4)),
    ("t10_same_stream_early_reuse_ok", t10_same_stream_early_reuse_ok),
    ("t11_two_streams_one_pool_is_caught", t11_two_streams_one_pool_is_caught),
    ("t12_pool_per_stream", t12_pool_per_stream),
    ("t13_cross_stream_reclaim", t13_cross_stream_reclaim),
    ("t16_default_stream_waits_only_for_blocking", t16_default_stream_waits_only_for_blocking),
    ("t17_shared_reader_two_streams", t17_shared_reader_two_streams),
    ("g05_thread_hop", || g05(1)),
    ("g06_wait_for_a_stream_or_an_event", g06_wait_for_a_stream_or_an_event),
    ("h12_report_units", h12_report_units),
    ("h13_profile_reuse_factor", h13_profile_reuse_factor),
    ("c01_trim_one_stream_or_all", c01_trim_one_stream_or_all),
    ("c02_limit_by_bytes_fraction_and_environment", c02_limit_by_bytes_fraction_and_environment),
    ("c06_capturing_stream_refused_others_go_on", c06_capturing_stream_refused_others_go_on),
    ("c07_ptds_identity", c07_ptds_identity),
    ("c08_json_lines_hook", c08_json_lines_hook),
    ("a_use_behind_the_recorded_event_is_the_programs", a_use_behind_the_recorded_event_is_the_programs),
    ("reuse_never_keeps_pools_apart", reuse_never_keeps_pools_apart),
];
