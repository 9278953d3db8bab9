//! Programs that keep something of every round, or of one in 50 or 100: the soak names what grew.

use super::judge::Windows;
use super::random::{self, Kind};
use super::run::{Bench, Pace, Run, Soaked, Steady, soaked, try_soak};
use millpond::{Config, Policy};

type Program = fn(&Bench, u64) -> Steady;

/// A stream, what waits for it, and what is kept of one in `every` rounds, beside a block of each on two streams that is freed.
fn steady<T: 'static>(b: &Bench, every: u64, mut keep: impl FnMut(u64) -> T + 'static) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut kept = Vec::new();
    let beside = gpu.clone();
    let round = Box::new(move |i| {
        if i % every == every / 2 {
            kept.push(keep(i));
        }
        if every > 1 {
            let x = beside.alloc(512 << (i % 5), &s).expect("memory");
            t.wait_stream(&s).expect("ordered");
            x.record_use(&t).expect("recorded");
        }
    });
    let synchronise = Box::new(move || gpu.synchronize().expect("waited"));
    Steady { round, synchronise, asked: 2 }
}

fn blocks_of_the_host(b: &Bench, every: u64) -> Steady {
    steady(b, every, Box::new)
}

fn events(b: &Bench, every: u64) -> Steady {
    let s = b.gpu.stream().expect("a stream");
    steady(b, every, move |_| s.record().expect("recorded"))
}

fn memory(b: &Bench, every: u64) -> Steady {
    let (gpu, s) = (b.gpu.clone(), b.gpu.stream().expect("a stream"));
    steady(b, every, move |_| gpu.alloc(512, &s).expect("memory"))
}

/// A guard that is forgotten keeps its stream's use until the free, or an access to the whole: nothing shows when its work was queued.
fn forgotten_guards(b: &Bench, every: u64) -> Steady {
    let (gpu, s) = (b.gpu.clone(), b.gpu.stream().expect("a stream"));
    let x = gpu.zeros::<f32>(256, &s).expect("an array");
    steady(b, every, move |_| {
        let t = gpu.stream().expect("a stream");
        std::mem::forget(x.read_on(&t).expect("ordered"));
        t
    })
}

/// With virtual memory beneath the pools three of them take a handle.
fn handles(b: &Bench, every: u64) -> Steady {
    let (gpu, s) = (b.gpu.clone(), b.gpu.stream().expect("a stream"));
    steady(b, every, move |_| gpu.alloc(600 << 10, &s).expect("memory"))
}

/// A stream that stays and its window.
fn windows(b: &Bench, every: u64) -> Steady {
    let gpu = b.gpu.clone();
    steady(b, every, move |_| {
        let s = gpu.stream().expect("a stream");
        (gpu.alloc(600 << 10, &s).expect("memory"), s)
    })
}

const LEAKS: [(&str, Program); 4] = [
    ("host blocks", blocks_of_the_host),
    ("driver events", events),
    ("chunks", memory),
    ("uses", forgotten_guards),
];

/// The soak names each, at both ends of what is legal, when one in so many rounds leaves something.
fn are_named(every: u64) {
    for (counter, program) in LEAKS {
        for pace in [Pace::AtOnce, Pace::Late] {
            let run = Run::steady(pace).of_rounds(10_000);
            let why = try_soak(counter, run, Config::default(), move |b| program(b, every))
                .expect_err("it keeps something");
            assert!(why.contains(&format!("\n    {counter}: ")), "{counter}, one in {every} rounds:\n{why}");
        }
    }
}

/// The same of physical memory, and of addresses.
#[ignore = "takes long: run by .ci/soak"]
#[test]
fn physical_memory_that_grows_is_named() {
    for (counter, program, every) in [
        ("handles", handles as Program, 1),
        ("handles", handles, 50),
        ("mappings", handles, 50),
        ("windows", windows, 100),
    ] {
        for pace in [Pace::AtOnce, Pace::Late] {
            let run = Run::steady(pace).of_rounds(10_000);
            let config = super::windows::config(Policy::Latency);
            let why =
                try_soak(counter, run, config, move |b| program(b, every)).expect_err("it keeps something");
            assert!(why.contains(&format!("\n    {counter}: ")), "{counter}, one in {every} rounds:\n{why}");
        }
    }
}

#[ignore = "takes long: run by .ci/soak"]
#[test]
fn what_grows_is_named() {
    are_named(1);
}

/// Of 10,000 rounds these keep 200 things and 100: less than a quarter of what is pending.
#[ignore = "takes long: run by .ci/soak"]
#[test]
fn what_grows_slowly_is_named() {
    are_named(50);
    are_named(100);
}

/// So it does beside threads that run at once, whose highest numbers hang on how they are scheduled.
#[ignore = "takes long: run by .ci/soak"]
#[test]
fn what_grows_beside_threads_at_once_is_named() {
    let seed = 57;
    assert_eq!(Kind::of(seed), Kind::AtOnce);
    for every in [1, 50] {
        for (counter, program) in &LEAKS[..2] {
            let why = random::run_beside(seed, |b| program(b, every)).expect_err("it keeps something");
            assert!(why.contains(&format!("\n    {counter}: ")), "{counter}, one in {every} rounds:\n{why}");
        }
    }
}

/// A peak that one run of three has, or two, is no leak; what is more than a peak is found by one run.
#[test]
fn what_does_not_grow_in_each_run_is_no_leak() {
    let run = Run::steady(Pace::AtOnce).of_rounds(1_000);
    let runs = |leaks: &'static [bool], program: Program| {
        let mut leaks = leaks.iter();
        let found = Soaked::of_three(|| {
            let leaks = *leaks.next().expect("no run more");
            soaked(run, Config::default(), |b| if leaks { program(b, 1) } else { steady(b, 20_000, |_| ()) })
        });
        (found.found.is_empty(), leaks.count())
    };
    assert_eq!(runs(&[false], blocks_of_the_host), (true, 0));
    assert_eq!(runs(&[true, false], blocks_of_the_host), (true, 0));
    assert_eq!(runs(&[true, true, false], blocks_of_the_host), (true, 0));
    assert_eq!(runs(&[true, true, true], blocks_of_the_host), (false, 0));
    assert_eq!(runs(&[true, false], left_at_the_end), (false, 1));
}

/// What leaps once is no leak in a longer run; what goes on leaking is, however many rounds there are.
#[ignore = "takes long: run by .ci/soak"]
#[test]
fn what_leaps_once_is_no_leak() {
    let run = Run::steady(Pace::AtOnce).of_rounds(10_000);
    let leap = |b: &Bench, _: u64| {
        let (gpu, mut kept) = (b.gpu.clone(), Vec::new());
        let round = Box::new(move |i| kept.resize(if i < 7_000 { 0 } else { 512 << 10 }, 0_u8));
        Steady { round, synchronise: Box::new(move || gpu.synchronize().expect("waited")), asked: 2 }
    };
    let judged = |program: &dyn Fn(&Bench, u64) -> Steady, every| {
        let of = |run: Run| soaked(run, Config::default(), |b| program(b, every));
        let first = of(run);
        assert!(!first.found.is_empty(), "it leaps");
        first.or_longer(10_000, |rounds| of(run.of_rounds(rounds))).found
    };
    assert_eq!(judged(&leap, 1), "");
    assert!(judged(&events, 50).contains("driver events"));
}

/// It grows, and at the end it is still there.
fn left_at_the_end(b: &Bench, every: u64) -> Steady {
    steady(b, every, |i| std::mem::forget(std::hint::black_box(Box::new(i))))
}

/// The same programs, which keep nothing.
#[test]
fn nothing_is_said_of_what_does_not_grow() {
    for pace in [Pace::AtOnce, Pace::Late] {
        let run = Run::steady(pace).of_rounds(10_000);
        assert_eq!(try_soak("none", run, Config::default(), |b| steady(b, 20_000, |_| ())), Ok(()));
    }
}

/// What it says of right code's ups and downs, and of a rise that ends.
#[test]
fn only_what_rises_to_the_end_rises() {
    let said = |of: fn(u64) -> u64| {
        let mut windows = Windows::<1>::new();
        (0..10_000).for_each(|i| windows.add(i, 10_000, &[("things", of(i))]));
        windows.rising(100)
    };
    assert_eq!(said(|i| 300 + i % 257), "");
    assert_eq!(said(|i| i.min(8000)), "");
    assert_eq!(said(|i| 10_000 - i), "");
    assert_eq!(said(|i| i / 2000), "", "too few");
    assert_ne!(said(|i| 300 + i / 100), "");
    // Hidden from the highest values, by what is pending.
    assert_ne!(said(|i| i / 100 + if i % 997 == 0 { 500 + (i * 7919) % 400 } else { 0 }), "");
    // Of too few readings nothing is said.
    assert_eq!(Windows::<1>::new().rising(100), "");
}
