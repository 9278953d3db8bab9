//! Every option and every absurd number.

use crate::rig::{all_clean, check, check_all, late, on, write};
use millpond::driver::Driver;
use millpond::units::{GIB, MIB};
use millpond::{Config, Error, Growth, Limit, Policy, Reuse, Trim};
use millpond_sim::{Schedule, Sim};

#[test]
fn absurd_sizes() {
    for growth in [Growth::default(), Growth::Exact, Growth::Rounded { small: 0, large: 0, multiple: 0 }] {
        let sim = late();
        let gpu = on(&sim, Config::default().growth(growth));
        let s = gpu.stream().unwrap();
        assert!(gpu.alloc(0, &s).unwrap().is_empty());
        for bytes in [u64::MAX, u64::MAX - 511, 1 << 63, 1 << 41] {
            assert!(
                matches!(gpu.alloc(bytes, &s), Err(Error::TooLarge { requested: asked, .. }) if asked == bytes)
            );
        }
        let before = sim.ledger().calls_total();
        for bytes in [(1 << 41) - 512, (1 << 41) - 1023, 4 * GIB + 1] {
            let refused = gpu.alloc(bytes, &s).unwrap_err();
            assert_eq!(refused.out_of_memory().unwrap().requested, bytes);
        }
        assert_eq!(sim.ledger().calls_total(), before, "no driver call for what can never be");
        // Everything there is, to the last granule.
        let (most, one) = (gpu.alloc(4 * GIB - 512, &s).unwrap(), gpu.alloc(1, &s).unwrap());
        assert!(gpu.alloc(1, &s).unwrap_err().out_of_memory().unwrap().driver.is_some());
        write(&sim, &one, &s);
        drop((most, one));
        // Two segments are in the way, and a request gives none back.
        let in_the_way = gpu.report().segments == 2;
        assert_eq!(gpu.alloc(4 * GIB, &s).is_err(), in_the_way);
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        let all = gpu.alloc(4 * GIB, &s).unwrap();
        drop((all, s));
        all_clean(&sim, gpu);
    }
}

#[test]
fn limits_of_nothing_and_of_one_byte() {
    for limit in [Limit::Bytes(0), Limit::Bytes(1), Limit::Bytes(511), Limit::Fraction(0.0)] {
        let sim = late();
        let gpu = on(&sim, Config::default().limit(limit));
        let s = gpu.stream().unwrap();
        assert!(gpu.alloc(0, &s).unwrap().is_empty());
        let refused = gpu.alloc(1, &s).unwrap_err();
        assert!(refused.to_string().contains("raise the limit"), "{refused}");
        assert_eq!(sim.ledger().bytes_reserved_peak, 0);
        gpu.set_limit(Limit::Bytes(512)).unwrap();
        let x = gpu.alloc(1, &s).unwrap();
        write(&sim, &x, &s);
        drop((x, s));
        all_clean(&sim, gpu);
    }
    for limit in [Limit::Fraction(-0.1), Limit::Fraction(1.1), Limit::Fraction(f64::NAN)] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        assert!(matches!(gpu.set_limit(limit), Err(Error::Config { name: "limit", .. })));
        all_clean(&sim, gpu);
    }
}

/// Below what is taken: idle segments go at once, live ones stay, and nothing grows until enough is free.
#[test]
fn a_limit_below_what_is_taken() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let s = gpu.stream().unwrap();
    let blocks: Vec<_> = (0..4).map(|_| gpu.alloc(16 * MIB, &s).unwrap()).collect();
    let [kept, rest @ ..] = <[_; 4]>::try_from(blocks).unwrap();
    drop(rest);
    // Enough is enough: two segments of three go.
    gpu.set_limit(Limit::Bytes(32 * MIB)).unwrap();
    assert_eq!(gpu.report().reserved, 32 * MIB, "complete on the device, so learnt and given back");
    gpu.set_limit(Limit::Bytes(MIB)).unwrap();
    assert_eq!(gpu.report().reserved, 16 * MIB, "what is live stays");
    assert!(gpu.alloc(512, &s).unwrap_err().out_of_memory().is_some());
    drop(kept);
    let small = gpu.alloc(512, &s).unwrap();
    gpu.set_limit(Limit::None).unwrap();
    drop((small, s));
    all_clean(&sim, gpu);
}

#[test]
fn reset_peaks_sets_every_peak() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let big = (gpu.alloc(100 * MIB, &s).unwrap(), gpu.alloc_pinned(100 * MIB).unwrap());
    // The peak over all pools is sampled where it is cheap, a report among those places.
    assert_eq!(gpu.report().allocated_peak, 100 * MIB);
    drop(big);
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    let (x, p) = (gpu.alloc(MIB, &s).unwrap(), gpu.alloc_pinned(MIB).unwrap());
    let before = gpu.report();
    assert_eq!((before.allocated_peak, before.reserved_peak), (100 * MIB, 100 * MIB));
    assert_eq!(before.pinned.as_ref().unwrap().reserved_peak, 100 * MIB);
    gpu.reset_peaks();
    let after = gpu.report();
    assert_eq!((after.allocated_peak, after.reserved_peak), (MIB, 20 * MIB));
    assert_eq!((after.total.allocated_peak, after.total.reserved_peak), (MIB, 20 * MIB));
    let pinned = after.pinned.unwrap();
    assert_eq!((pinned.allocated_peak, pinned.reserved_peak), (MIB, 64 * MIB));
    drop((x, p, s));
    all_clean(&sim, gpu);
}

/// Two runs on devices of different temper: the same addresses, whatever queries of events there were in between.
#[test]
fn deterministic_runs_do_not_depend_on_the_device() {
    let run = |schedule: Schedule, deterministic: bool| {
        let sim = Sim::new(GIB).schedule(schedule);
        let gpu = on(&sim, Config::default().deterministic(deterministic).limit(Limit::Bytes(256 * MIB)));
        let [a, b, c] = [0; 3].map(|_| gpu.stream().unwrap());
        let mut said = Vec::new();
        let (mut events, mut live) = (Vec::new(), Vec::new());
        for round in 0..30_u64 {
            let (s, t) = if round % 3 == 0 { (&a, &b) } else { (&b, &c) };
            let x = gpu.alloc((round % 5 + 1) * 3 * MIB, s).unwrap();
            write(&sim, &x, s);
            t.wait_stream(s).unwrap();
            x.record_use(t).unwrap();
            check(&sim, &x, t);
            said.push(x.address());
            events.push(t.record().unwrap());
            // The program makes the query; no answer may change which bytes are allocated.
            events[round as usize / 2].is_complete().unwrap();
            live.push(x);
            if live.len() > 4 {
                drop(live.remove(0));
            }
            if round % 10 == 9 {
                gpu.trim(Trim::All).unwrap();
            }
        }
        said.push(millpond::units::Addr(gpu.report().growths));
        drop((live, events, a, b, c));
        all_clean(&sim, gpu);
        said
    };
    let late = run(Schedule::Latest, true);
    for schedule in [Schedule::Earliest, Schedule::Random(1), Schedule::Random(2)] {
        assert_eq!(run(schedule, true), late, "{schedule:?}");
    }
    // Without it the device's temper shows: the test above can fail.
    assert_ne!(run(Schedule::Earliest, false), run(Schedule::Latest, false));
}

/// What another stream freed and finished: never, only when complete or ordered, or behind a wait.
#[test]
fn reuse_across_streams_is_a_choice() {
    for (reuse, done, growths) in [
        (Reuse::Never, true, 2),
        (Reuse::Ordered, true, 1),
        (Reuse::Ordered, false, 2),
        (Reuse::KnownWaits, true, 1),
        (Reuse::KnownWaits, false, 2),
        (Reuse::WithWaits, true, 1),
        // Growing comes before a wait unless footprint is the policy.
        (Reuse::WithWaits, false, 2),
    ] {
        let sim = late();
        let gpu = on(&sim, Config::default().reuse(reuse));
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(64 * MIB, &a).unwrap();
        write(&sim, &x, &a);
        drop(x);
        if done {
            gpu.synchronize().unwrap();
        }
        let y = gpu.alloc(64 * MIB, &b).unwrap();
        write(&sim, &y, &b);
        assert_eq!(gpu.report().growths, growths, "{reuse:?}, done: {done}");
        drop((y, a, b));
        all_clean(&sim, gpu);
    }
}

/// The policies differ in what comes first where nothing is complete: memory, or a wait on the device.
#[test]
fn policies_grow_or_wait() {
    for (policy, growths, waits) in [(Policy::Latency, 2, 0), (Policy::Footprint, 1, 1)] {
        let sim = late();
        let gpu = on(&sim, Config::default().policy(policy).reuse(Reuse::WithWaits));
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(64 * MIB, &a).unwrap();
        write(&sim, &x, &a);
        drop(x);
        let y = gpu.alloc(64 * MIB, &b).unwrap();
        write(&sim, &y, &b);
        let report = gpu.report();
        assert_eq!((report.growths, report.total.counters.waits_inserted), (growths, waits), "{policy:?}");
        drop((y, a, b));
        all_clean(&sim, gpu);
    }
}

/// What a pool takes at once, down to what still fits the limit.
#[test]
fn growth_is_rounded_exact_or_what_fits() {
    let odd = Growth::Rounded { small: 5000, large: 7000, multiple: 1000 };
    for (growth, limit, asked, taken) in [
        (Growth::default(), Limit::None, 1000, 2 * MIB),
        (Growth::default(), Limit::None, 300 << 10, 20 * MIB),
        (Growth::default(), Limit::None, 21 * MIB, 22 * MIB),
        (Growth::default(), Limit::Bytes(8 * MIB), 3 * MIB, 4 * MIB),
        (Growth::default(), Limit::Bytes(3 * MIB), 3 * MIB - 1000, 3 * MIB - 512),
        (Growth::Exact, Limit::None, 1000, 1024),
        (odd, Limit::None, 100, 5120),
        (odd, Limit::None, 300 << 10, 308_224),
        (Growth::Rounded { small: u64::MAX, large: u64::MAX, multiple: u64::MAX }, Limit::None, 1000, 1024),
    ] {
        let sim = late();
        let gpu = on(&sim, Config::default().growth(growth).limit(limit));
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(asked, &s).unwrap();
        assert_eq!(gpu.report().reserved, taken, "{asked} with {growth:?} under {limit:?}");
        drop((x, s));
        all_clean(&sim, gpu);
    }
}

#[test]
fn alignments() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    for align in [0, 3, 513, (1 << 30) + 1, 1 << 31, 1 << 63, u64::MAX] {
        assert!(
            matches!(gpu.alloc_aligned(512, align, &s), Err(Error::BadAlignment { requested: asked, .. }) if asked == align)
        );
    }
    let odd = gpu.alloc(512, &s).unwrap();
    let mut kept = Vec::new();
    for shift in 0..=30 {
        for bytes in [1, 5000, 3 * MIB] {
            let x = gpu.alloc_aligned(bytes, 1 << shift, &s).unwrap();
            assert!(x.address().0.is_multiple_of(1 << shift), "{x:?} at 2^{shift}");
            if shift < 24 {
                write(&sim, &x, &s);
                kept.push(x);
            }
        }
    }
    check_all(&sim, &kept, &s);
    assert!(gpu.alloc_aligned(0, 1 << 20, &s).unwrap().is_empty());
    assert!(matches!(gpu.alloc_aligned((1 << 41) - 512, 1 << 30, &s), Err(Error::OutOfMemory(_))));
    drop((kept, odd, s));
    all_clean(&sim, gpu);
    // Aligned requests migrate and are waited for too.
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)));
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &a).unwrap();
    write(&sim, &x, &a);
    drop(x);
    let y = gpu.alloc_aligned(5 * MIB, 8 * MIB, &b).unwrap();
    write(&sim, &y, &b);
    assert!(y.address().0.is_multiple_of(8 * MIB));
    drop((y, a, b));
    all_clean(&sim, gpu);
}

/// What was allocated and what was reserved, pools that are gone included.
#[test]
fn usage_counts_served_and_acquired() {
    let sim = late();
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    for _ in 0..3 {
        let s = gpu.stream().unwrap();
        drop(gpu.alloc(MIB - 1, &s).unwrap());
    }
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    let usage = gpu.usage();
    assert_eq!(usage.allocated, 3 * (MIB - 1), "pools that are gone count");
    assert_eq!(usage.reserved, gpu.report().growths * MIB);
    all_clean(&sim, gpu);
}

/// Scrubbing is chosen by the builder or the environment, and costs one fill an allocation of its own.
#[test]
fn scrubbing_is_a_choice() {
    let from = |value: &'static str| {
        Config::from_variables(move |name| (name == "MILLPOND_SCRUB").then(|| value.to_owned()))
    };
    for (config, fills) in [
        (Config::default(), 0),
        (Config::default().scrub(true), 3),
        (from("1").unwrap(), 3),
        (from("0").unwrap(), 0),
    ] {
        let sim = Sim::new(64 * MIB);
        let gpu = on(&sim, config);
        let s = gpu.stream().unwrap();
        for bytes in [MIB, 0, 1, MIB] {
            drop(gpu.alloc(bytes, &s).unwrap());
        }
        let made = sim.calls().iter().find(|c| c.0 == "cuMemsetD8Async").map_or(0, |c| c.1);
        assert_eq!(made, fills);
        drop(s);
        all_clean(&sim, gpu);
    }
    let wrong = from("yes").unwrap_err().to_string();
    assert!(wrong.contains("MILLPOND_SCRUB") && wrong.contains("yes") && wrong.contains("0 or 1"), "{wrong}");
}

/// Where pools keep what they took, what streams took that are gone serves others as it is complete, at the limit too, of whatever kind.
#[test]
fn what_streams_took_that_are_gone_serves_others() {
    for (bytes, pending) in [(20 * MIB, false), (20 * MIB, true), (1000, false), (1000, true)] {
        let sim = late();
        let gpu = on(&sim, Config::default().reuse(Reuse::Never).limit(Limit::Bytes(20 * MIB)));
        let (a, b, c) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(20 * MIB, &a).unwrap();
        write(&sim, &x, &a);
        drop(x);
        gpu.synchronize().unwrap();
        assert!(gpu.alloc(bytes, &b).is_err(), "its stream lives");
        if pending {
            let x = gpu.alloc(20 * MIB, &a).unwrap();
            write(&sim, &x, &a);
        }
        drop(a);
        let y = gpu.alloc(bytes, &b).expect("its stream is gone");
        write(&sim, &y, &b);
        let refused = gpu.alloc(20 * MIB, &c).unwrap_err();
        assert!(!refused.to_string().contains("wait for that stream"), "{refused}");
        drop((y, b, c));
        all_clean(&sim, gpu);
    }
}
