//! The most that was ever live at once: known where it can be, bounded from both sides otherwise, and never a bound shown as if it
//! were the figure.

use millpond::units::{GIB, KIB, MIB};
use millpond::{Allocation, Allocator, Config, Reuse, Stream, Trim};
use millpond_sim::Sim;
use millpond_testkit::dice::Dice;
use std::collections::HashMap;

fn gpu() -> Allocator<Sim> {
    Allocator::new(Sim::new(GIB), Config::default()).unwrap()
}

/// One pool's own peak is exact, from hits alone: two arrays of 4 MiB in one segment.
#[test]
fn one_pool_knows_its_peak() {
    let gpu = gpu();
    let s = gpu.stream().unwrap();
    let pair = (gpu.alloc(4 * MIB, &s).unwrap(), gpu.alloc(4 * MIB, &s).unwrap());
    drop(pair);
    let report = gpu.report();
    assert_eq!((report.peak_allocated(), report.reserved_over_allocated()), (Some(8 * MIB), Some(2.5)));
    assert!(report.to_string().contains("peak allocated 8.00 MiB   ratio 2.500"), "{report}");
}

/// 36 MiB live at once on two streams, gone before any cut: no cut saw them, and the report does not claim a ratio.
#[test]
fn several_pools_are_bounded_from_both_sides() {
    let gpu = gpu();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let fill =
        |s: &Stream<Sim>| -> Vec<Allocation<Sim>> { (0..18).map(|_| gpu.alloc(MIB, s).unwrap()).collect() };
    let all = (fill(&s), fill(&t));
    drop(all);
    let report = gpu.report();
    assert_eq!((report.allocated_peak, report.allocated_peak_at_most), (21 * MIB, 36 * MIB));
    assert_eq!((report.peak_allocated(), report.reserved_over_allocated()), (None, None));
    let (least, most) = report.reserved_over_allocated_bounds().unwrap();
    assert!((least - 40.0 / 36.0).abs() < 1e-9 && (most - 40.0 / 21.0).abs() < 1e-9);
    let text = report.to_string();
    assert!(
        text.contains("peak allocated at least 21.0 MiB, at most 36.0 MiB   ratio 1.111 to 1.905"),
        "{text}"
    );
    let total = text.lines().find(|l| l.starts_with("total")).unwrap();
    assert!(total.contains("at most 36.0 MiB"), "{total}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert!(json["reserved_over_allocated"].is_null());
    for (key, value) in
        [("reserved_over_allocated_at_least", least), ("reserved_over_allocated_at_most", most)]
    {
        assert!((json[key].as_f64().unwrap() - value).abs() < 1e-9, "{key}: {json}");
    }
    // A report while they live sees them, and then it is known.
    let all = (fill(&s), fill(&t));
    let report = gpu.report();
    assert_eq!(
        (report.peak_allocated(), report.reserved_over_allocated()),
        (Some(36 * MIB), Some(40.0 / 36.0))
    );
    drop(all);
}

/// What was refused was never live.
#[test]
fn a_refused_request_is_no_peak() {
    let gpu = gpu();
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    assert!(gpu.alloc(GIB, &s).is_err());
    assert_eq!(gpu.report().peak_allocated(), Some(MIB));
    drop(x);
}

/// Pools that are gone count: with what they had, and not once for each that ever was where they did not live together.
#[test]
fn pools_that_are_gone_count() {
    let gpu = gpu();
    let last = gpu.stream().unwrap();
    for k in 0..50u64 {
        let s = gpu.stream().unwrap();
        let block = gpu.alloc((1 + k) * MIB, &s).unwrap();
        drop(block);
        drop(s);
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
    }
    let x = gpu.alloc(KIB, &last).unwrap();
    let report = gpu.report();
    assert_eq!(report.pools.len(), 1);
    assert_eq!(report.allocated_peak, 50 * MIB);
    assert!(report.allocated_peak_at_most < 101 * MIB, "{}", report.allocated_peak_at_most);
    gpu.reset_peaks();
    assert_eq!(gpu.report().peak_allocated(), Some(KIB));
    drop(x);
}

/// Two pools that are full at one moment, of which one goes before any cut.
#[test]
fn a_pool_that_is_gone_was_full_beside_another() {
    let gpu = Allocator::new(Sim::new(GIB), Config::default().reuse(Reuse::Never)).unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    // Both have grown: what follows are hits.
    for s in [&s, &t] {
        drop(gpu.alloc(MIB, s).unwrap());
    }
    let fill =
        |s: &Stream<Sim>| -> Vec<Allocation<Sim>> { (0..18).map(|_| gpu.alloc(MIB, s).unwrap()).collect() };
    let all = (fill(&s), fill(&t));
    drop((all, s));
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    let report = gpu.report();
    assert_eq!(report.pools.len(), 1, "{report}");
    assert_eq!((report.allocated_peak, report.allocated_peak_at_most), (18 * MIB, 36 * MIB));
    drop(t);
}

/// Two arrays on two streams, to the second of which memory migrated: seen, since a migration is no hit.
#[test]
fn a_loan_is_seen() {
    let gpu = gpu();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let pair = (gpu.alloc(4 * MIB, &s).unwrap(), gpu.alloc(4 * MIB, &t).unwrap());
    drop(pair);
    let report = gpu.report();
    assert_eq!((report.growths, report.peak_allocated()), (1, Some(8 * MIB)), "{report}");
}

/// Threads allocate and free while others ask for reports: what was live at once lies between the bounds, by what the threads
/// know to have held together.
#[test]
fn bounds_hold_beside_other_threads() {
    let gpu = gpu();
    let barrier = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for t in 0..3u64 {
            let (gpu, barrier) = (&gpu, &barrier);
            scope.spawn(move || {
                let s = gpu.stream().unwrap();
                let mut dice = Dice::new(77 + t);
                let mut live: Vec<Allocation<Sim>> = Vec::new();
                for _ in 0..400 {
                    if live.len() > 12 || (dice.one_in(3) && !live.is_empty()) {
                        let at = dice.below(live.len());
                        live.swap_remove(at);
                    } else {
                        live.push(gpu.alloc(1 + dice.number(3 * MIB), &s).unwrap());
                    }
                }
                // All hold 30 MiB at one moment.
                live.clear();
                let held = gpu.alloc(30 * MIB, &s).unwrap();
                barrier.wait();
                barrier.wait();
                drop(held);
                s
            });
        }
        for _ in 0..30 {
            let report = gpu.report();
            assert!(report.allocated_peak <= report.allocated_peak_at_most);
            assert!(report.allocated_peak_at_most <= report.reserved_peak, "what is live was taken");
        }
        barrier.wait();
        barrier.wait();
    });
    let report = gpu.report();
    assert!(report.allocated_peak_at_most >= 90 * MIB, "{report}");
    // No thread ever held more than 13 blocks of at most 3 MiB, or its 30 MiB.
    assert!(report.allocated_peak <= 3 * 13 * 3 * MIB, "{report}");
}

/// Random programs over a few streams that come and go: the true peak, counted after every step, is never outside the bounds,
/// and is the figure where the report says that it is known.
#[test]
fn the_true_peak_lies_between_the_bounds() {
    let (mut known, mut bounded) = (0, 0);
    for seed in 1..=60u64 {
        let mut dice = Dice::new(seed);
        let gpu = gpu();
        let mut streams: Vec<Stream<Sim>> = (0..=seed % 4).map(|_| gpu.stream().unwrap()).collect();
        let mut live: HashMap<u64, (Allocation<Sim>, u64)> = HashMap::new();
        let (mut now, mut peak) = (0u64, 0u64);
        for step in 0..200u64 {
            match dice.below(40) {
                0 => drop(gpu.trim(Trim::All)),
                1 => gpu.synchronize().unwrap(),
                2 if streams.len() > 1 => drop(streams.pop()),
                3 if streams.len() < 5 => streams.push(gpu.stream().unwrap()),
                4 if step % 3 == 0 => {
                    gpu.reset_peaks();
                    peak = now;
                }
                5..=21 if !live.is_empty() => {
                    let at = dice.number(live.len() as u64);
                    let key = *live.keys().min_by_key(|k| k.wrapping_mul(at | 1)).unwrap();
                    now -= live.remove(&key).unwrap().1;
                }
                _ => {
                    let bytes = 1 + dice.number(6 * MIB);
                    let s = &streams[dice.below(streams.len())];
                    let rounded = bytes.div_ceil(512) * 512;
                    live.insert(step, (gpu.alloc(bytes, s).unwrap(), rounded));
                    now += rounded;
                    peak = peak.max(now);
                }
            }
            if dice.one_in(16) || step == 199 {
                let report = gpu.report();
                let (least, most) = (report.allocated_peak, report.allocated_peak_at_most);
                assert!(least <= peak && peak <= most, "seed {seed} step {step}: {least} {peak} {most}");
                assert!(most <= report.reserved_peak);
                match report.peak_allocated() {
                    Some(live) => {
                        assert_eq!(live, peak, "seed {seed} step {step}");
                        known += 1;
                    }
                    None => bounded += 1,
                }
            }
        }
    }
    assert!(known > 50 && bounded > 50, "{known} known, {bounded} bounded: both kinds are to be seen");
}

/// Of more than 64 pools not all are queried for the peak at each growth under the policy `footprint`: the bounds are bounds all the same.
#[test]
fn of_many_pools_the_bounds_hold_under_footprint() {
    let gpu = Allocator::new(
        millpond_sim::Sim::new(1 << 30),
        Config::default().growth(millpond::Growth::Exact).policy(millpond::Policy::Footprint),
    )
    .unwrap();
    let streams: Vec<_> = (0..130).map(|_| gpu.stream().unwrap()).collect();
    let kept: Vec<_> = streams.iter().map(|stream| gpu.alloc(1 << 20, stream).unwrap()).collect();
    let report = gpu.report();
    assert_eq!((report.allocated_peak, report.allocated_peak_at_most), (130 << 20, 130 << 20));
    assert_eq!(report.reserved, 130 << 20, "nothing was there to migrate");
    drop(kept);
}
