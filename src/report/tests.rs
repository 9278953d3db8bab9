//! Golden texts, and the arithmetic of sizes at its limits.

use super::*;
use crate::units::Granules;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
fn bytes_have_three_digits() {
    let shown = [
        0,
        1,
        512,
        1023,
        KIB,
        KIB + 5,
        1535,
        10 * KIB - 1,
        10 * KIB,
        99 * KIB + 999,
        100 * KIB,
        1000 * KIB,
        1023 * KIB + 511,
        1023 * KIB + 512,
        MIB - 1,
        MIB,
        3 * GIB / 2,
        144 * GIB,
        5 << 40,
        7 << 50,
        1 << 63,
        u64::MAX,
    ]
    .map(bytes);
    insta::assert_snapshot!(shown.join(", "), @"0 B, 1 B, 512 B, 1023 B, 1.00 KiB, 1.00 KiB, 1.50 KiB, 10.0 KiB, 10.0 KiB, 100 KiB, 100 KiB, 1000 KiB, 1023 KiB, 1.00 MiB, 1.00 MiB, 1.00 MiB, 1.50 GiB, 144 GiB, 5.00 TiB, 7.00 PiB, 8.00 EiB, 16.0 EiB");
}

/// Requirement H12: the fixed units, and the two that choose; fourteen cases.
#[test]
fn h12_units() {
    let column = [3 * GIB / 2, 5 * MIB, 700, 0];
    let cases =
        ["B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "KiB", "mib", "ZiB", "auto", "auto_foreach", "AUTO"];
    let shown = cases
        .map(|unit| format!("{unit:>12}: {}", unit.parse::<Unit>().unwrap().column(&column).join(" | ")));
    insta::assert_snapshot!(shown.join("\n"), @r"
                   B: 1610612736.00 B | 5242880.00 B | 700.00 B | 0.00 B
                  KB: 1572864.00 KiB | 5120.00 KiB | 0.68 KiB | 0.00 KiB
                  MB: 1536.00 MiB | 5.00 MiB | 0.00 MiB | 0.00 MiB
                  GB: 1.50 GiB | 0.00 GiB | 0.00 GiB | 0.00 GiB
                  TB: 0.00 TiB | 0.00 TiB | 0.00 TiB | 0.00 TiB
                  PB: 0.00 PiB | 0.00 PiB | 0.00 PiB | 0.00 PiB
                  EB: 0.00 EiB | 0.00 EiB | 0.00 EiB | 0.00 EiB
                  ZB: 0.00 ZiB | 0.00 ZiB | 0.00 ZiB | 0.00 ZiB
                 KiB: 1572864.00 KiB | 5120.00 KiB | 0.68 KiB | 0.00 KiB
                 mib: 1536.00 MiB | 5.00 MiB | 0.00 MiB | 0.00 MiB
                 ZiB: 0.00 ZiB | 0.00 ZiB | 0.00 ZiB | 0.00 ZiB
                auto: 1.50 GiB | 0.00 GiB | 0.00 GiB | 0.00 GiB
        auto_foreach: 1.50 GiB | 5.00 MiB | 700.00 B | 0.00 B
                AUTO: 1.50 GiB | 0.00 GiB | 0.00 GiB | 0.00 GiB
        ");
    assert_eq!(Unit::Auto.column(&[]), Vec::<String>::new());
    assert_eq!(Unit::AutoForeach.column(&[u64::MAX, 1023, 1024]), ["16.00 EiB", "1023.00 B", "1.00 KiB"]);
    for bad in ["", "XB", "K", "i", "autoforeach", "KiBs"] {
        assert_eq!(bad.parse::<Unit>().unwrap_err().found, bad);
    }
}

#[test]
fn sizes_are_read() {
    for (text, bytes) in [
        ("0", 0),
        ("512", 512),
        (" 512 b ", 512),
        ("2GiB", 2 * GIB),
        ("2 gib", 2 * GIB),
        ("2G", 2 * GIB),
        ("1.5 GB", 1_500_000_000),
        ("1.5k", 1536),
        ("0.1KiB", 102),
        ("1.0000000000000001MiB", MIB),
        ("15.999999999EiB", 18_446_744_072_556_630_111),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(parse_size(text), Ok(Size::Bytes(bytes)), "{text}");
    }
    for (text, part, of_1000) in
        [("0%", 0.0, 0), ("40%", 0.4, 400), ("70.5 %", 0.705, 705), ("100%", 1.0, 1000)]
    {
        assert_eq!(parse_size(text), Ok(Size::Fraction(part)), "{text}");
        assert_eq!(parse_size(text).unwrap().of(1000), of_1000, "{text}");
    }
    assert_eq!(Size::Fraction(1.0).of(u64::MAX), u64::MAX);
    assert_eq!(Size::Bytes(7).of(3), 7);
}

#[test]
fn bad_sizes_say_what_is_accepted() {
    let shown = [
        "",
        " ",
        "GiB",
        "-1",
        "1.2.3GiB",
        "1.",
        ".5GiB",
        "1e9",
        "40 percent",
        "101%",
        "1.5",
        "16EiB",
        "18446744073709551616",
        "99999999999999999999999999999999999999999",
        "2GiBs",
        "é",
        "1é",
        "NaN",
        "0x10",
    ]
    .map(|text| parse_size(text).unwrap_err().to_string());
    insta::assert_snapshot!(shown.join("\n"), @r#"
        found ""; expected a size like 512, 1.5GiB or 40%
        found " "; expected a size like 512, 1.5GiB or 40%
        found "GiB"; expected a size like 512, 1.5GiB or 40%
        found "-1"; expected a size like 512, 1.5GiB or 40%
        found "1.2.3GiB"; expected a size like 512, 1.5GiB or 40%
        found "1."; expected a size like 512, 1.5GiB or 40%
        found ".5GiB"; expected a size like 512, 1.5GiB or 40%
        found "1e9"; expected a size like 512, 1.5GiB or 40%
        found "40 percent"; expected a size like 512, 1.5GiB or 40%
        found "101%"; expected a percentage from 0% to 100%
        found "1.5"; expected whole bytes; a part of the whole is written in percent, like 40%
        found "16EiB"; expected less than 2^64 bytes (16 EiB)
        found "18446744073709551616"; expected less than 2^64 bytes (16 EiB)
        found "99999999999999999999999999999999999999999"; expected less than 2^64 bytes (16 EiB)
        found "2GiBs"; expected a size like 512, 1.5GiB or 40%
        found "é"; expected a size like 512, 1.5GiB or 40%
        found "1é"; expected a size like 512, 1.5GiB or 40%
        found "NaN"; expected a size like 512, 1.5GiB or 40%
        found "0x10"; expected a size like 512, 1.5GiB or 40%
        "#);
}

#[test]
fn histogram_bins_are_right_at_every_edge() {
    for k in 1..32u32 {
        let edge = 1u32 << k;
        for (size, bin) in [(edge - 1, if k == 1 { 0 } else { k }), (edge, k), (edge + 1, k + 1)] {
            let mut h = Histogram::default();
            h.add(Granules(size));
            assert_eq!(h.counts.len() as u32 - 1, bin, "{size}");
            assert!(Granules(size).bytes() <= Histogram::upper_bytes(bin as usize));
        }
    }
    // A report that was read may have bins beyond those of any size.
    assert_eq!([54, 55, 63, 64].map(Histogram::upper_bytes), [1 << 63, u64::MAX, u64::MAX, u64::MAX]);
    let mut h = Histogram::default();
    h.add(Granules(0));
    h.add_many(Granules::MAX, 2);
    assert_eq!((h.counts.len(), h.total()), (33, 3));
}

#[test]
fn histogram_percentiles_and_merge() {
    let mut h = Histogram::default();
    assert_eq!(h.percentile(50.0), None);
    h.add_many(Granules(1), 98);
    h.add_many(Granules(3), 1);
    let mut other = Histogram::default();
    other.add(Granules(1000));
    h.merge(&other);
    other.merge(&h);
    assert_eq!((h.total(), other.total()), (100, 101));
    let at = [-5.0, 0.0, 50.0, 98.0, 98.5, 99.0, 99.1, 100.0, 200.0].map(|p| h.percentile(p).unwrap());
    assert_eq!(at, [512, 512, 512, 512, 2048, 2048, 512 * KIB, 512 * KIB, 512 * KIB]);
    insta::assert_snapshot!(h, @r"
        up to     512 B  98  ########################################
        up to  1.00 KiB   0
        up to  2.00 KiB   1  #
        up to  4.00 KiB   0
        up to  8.00 KiB   0
        up to  16.0 KiB   0
        up to  32.0 KiB   0
        up to  64.0 KiB   0
        up to   128 KiB   0
        up to   256 KiB   0
        up to   512 KiB   1  #
        ");
    assert_eq!(Histogram::default().to_string(), "(no sizes)\n");
}

fn pool(k: u64, held: u64) -> PoolReport {
    let mut sizes = Histogram::default();
    sizes.add_many(Granules(1 << (k % 8)), 100);
    PoolReport {
        stream: Some(StreamId(k)),
        reserved: held,
        allocated: held / 2,
        requested: held / 2 - 100,
        cached: held / 4,
        in_flight: held - held / 2 - held / 4,
        allocated_peak: held * 3 / 4,
        reserved_peak: held,
        live: 10,
        free_chunks: 3,
        largest_free: held / 8,
        in_flight_ranges: 2,
        oldest_in_flight: Some(k),
        counters: Counters {
            allocations: 100,
            hits: 97,
            misses: 3,
            migrations_in: k,
            splits: 5,
            merges: 4,
            ..Counters::default()
        },
        sizes,
        ..PoolReport::default()
    }
}

fn report(pools: Vec<PoolReport>) -> Report {
    let mut r = Report { capacity: 144 * GIB, policy: "latency".into(), pools, ..Report::default() };
    r.total = PoolReport::sum(&r.pools);
    r.reserved = r.total.reserved;
    r.reserved_peak = r.total.reserved_peak;
    r.allocated_peak = r.total.allocated_peak;
    r.allocated_peak_at_most = r.allocated_peak;
    r.segments = 7;
    (r.segments_created, r.segments_released) = (8, 1);
    r.growths = 9;
    r.releases = 2;
    (r.sparse, r.sparse_bytes, r.sparse_live) = (3, 60 * MIB, 5 * MIB);
    r.largest_request = 2 * r.total.largest_free;
    r.ladder.poll = Rung { tried: 12, served: 3 };
    r.ladder.grow = Rung { tried: 9, served: 9 };
    r
}

#[test]
fn a_report_reads_like_this() {
    let mut named = pool(3, 3 * GIB);
    named.name = Some("copy\n\u{1b}[31m".into());
    named.closed = true;
    let mut r = report(vec![pool(0, 6 * GIB), named]);
    r.limit = Some(100 * GIB);
    r.moving = 2 * MIB;
    r.physical = Some(PhysicalReport {
        handles: 2,
        handle_bytes: 18 * MIB,
        handles_created: 3,
        handles_released: 1,
        spare_handles: 1,
        spare_bytes: 2 * MIB,
        moves: 7,
        moves_in_use: 4,
        mappings: 5,
        former_places: 4,
        former_bytes: 64 * MIB,
        windows: 1,
        window_bytes: 512 * MIB,
        reserved_addresses: 576 * GIB,
        holes: 6,
        hole_bytes: 432 * MIB,
        largest_hole: 400 * MIB,
    });
    r.pinned = Some(PoolReport { oldest_in_flight: None, ..pool(0, 64 * MIB) });
    r.pinned_host = Some(PinnedReport {
        limit: Some(8 * GIB),
        limit_share: Some("50 % of the 16.0 GiB of memory that this machine has, by default".into()),
        segments: 1,
        segments_created: 2,
        segments_released: 1,
        growth_time: core::time::Duration::from_micros(5700),
        registered: 3 * MIB,
    });
    r.driver_calls =
        [("allocate", 9), ("free", 2), ("record", 30), ("query", 0)].map(|(k, n)| (k.into(), n)).into();
    r.deferred_errors = vec!["cuMemFree failed with code 700".into()];
    insta::assert_snapshot!(format!("{r:#}"), @r"
        device 0    reserved 9.00 GiB (peak 9.00 GiB)   peak allocated 6.75 GiB   ratio 1.333   limit 100 GiB of 144 GiB   largest free 768 MiB   in flight 2.25 GiB
        cached      2.25 GiB kept for reuse, not leaked: allocations take from it first, trim() gives it back to the device
        slack       4.50 GiB reserved and not allocated (at the peak 2.25 GiB); allocated over reserved 0.500 (at the peak 0.750); largest request without growth 1.50 GiB
        sparse      60.0 MiB in 3 segments and handles of which less than half is allocated, 5.00 MiB: they cannot go back
        moving      2.00 MiB on the way from one pool to another
        pool                         allocated     cached   in flight       peak   allocs     hits   moved in   waits   fragmentation
        stream 0                      3.00 GiB   1.50 GiB    1.50 GiB   4.50 GiB      100   97.0 %          0       0            0.50
        stream 3 (copy[31m) closed    1.50 GiB    768 MiB     768 MiB   2.25 GiB      100   97.0 %          3       0            0.50
        total                         4.50 GiB   2.25 GiB    2.25 GiB   6.75 GiB      200   97.0 %          3       0            0.67
        pinned host                   32.0 MiB   16.0 MiB    16.0 MiB   48.0 MiB      100   97.0 %          0       0            0.50
        miss ladder   poll 3/12   migrate 0/0   grow 9/9   migrate with wait 0/0   move handles 0/0   trim 0/0   wait 0/0   callback 0/0   (served/tried)
        work        10 splits, 8 merges, 9 growths, 2 releases, 7 segments now (8 created, 1 released), 0 host waits
        handles     2 of 18.0 MiB, 3 created, 1 released, 1 spare of 2.00 MiB; 7 moves, 4 of them in use
        addresses   1 window of 512 MiB, 576 GiB reserved; 5 mappings, 4 of them former places of 64.0 MiB; 6 holes of 432 MiB, largest hole 400 MiB
        in flight   4 ranges, 2.25 GiB; the oldest use lies 3 markers back
        driver      41 calls: record 30, allocate 9, free 2
        pinned      1 segment now (2 created, 1 released), 5.7 ms spent on growth; 3.00 MiB of the program's registered; limit 8.00 GiB (50 % of the 16.0 GiB of memory that this machine has, by default)
        error       in a call that returns none: cuMemFree failed with code 700
        sizes of all requests
        up to     512 B  100  ########################################
        up to  1.00 KiB    0
        up to  2.00 KiB    0
        up to  4.00 KiB  100  ########################################
        ");
}

#[test]
fn an_empty_report_says_so() {
    insta::assert_snapshot!(Report::default(), @r"
        device 0    reserved 0 B (peak 0 B)   peak allocated 0 B   ratio -   limit none   largest free 0 B   in flight 0 B
        cached      0 B kept for reuse, not leaked: allocations take from it first, trim() gives it back to the device
        slack       0 B reserved and not allocated (at the peak 0 B); allocated over reserved - (at the peak -); largest request without growth 0 B
        no pools yet: nothing was allocated
        miss ladder   poll 0/0   migrate 0/0   grow 0/0   migrate with wait 0/0   move handles 0/0   trim 0/0   wait 0/0   callback 0/0   (served/tried)
        work        0 splits, 0 merges, 0 growths, 0 releases, 0 segments now (0 created, 0 released), 0 host waits
        ");
}

/// A thousand pools: the twenty largest, one line for the rest, and a total that is their sum.
#[test]
fn a_thousand_pools_fit_on_a_screen() {
    let r = report((0..1000).map(|k| pool(k, (1 + k * 7919 % 1000) * MIB)).collect());
    let text = r.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.iter().position(|l| l.starts_with("pool ")).unwrap() + 1;
    assert_eq!(lines[first..].iter().filter(|l| l.starts_with("stream ")).count(), 20);
    assert!(lines[first + 20].starts_with("980 smaller pools"), "{text}");
    assert!(lines[first + 21].starts_with("total"), "{text}");
    assert!(lines.len() < 34);
    // The largest pool comes first and no hidden one is larger than the last shown.
    let largest = r.pools.iter().max_by_key(|p| p.reserved).unwrap();
    assert!(lines[first].starts_with(&format!("{} ", largest.stream.unwrap())), "{text}");
    assert_eq!(r.total.reserved, (1..=1000).sum::<u64>() * MIB);
}

#[test]
fn t18_totals_add_up() {
    let (a, b) = (pool(1, 8 * MIB), pool(2, 4 * MIB));
    let t = PoolReport::sum([&a, &b]);
    assert_eq!(t.reserved, t.allocated + t.cached + t.in_flight);
    assert_eq!((t.reserved, t.live, t.free_chunks, t.in_flight_ranges), (12 * MIB, 20, 6, 4));
    assert_eq!((t.stream, &t.name), (None, &None));
    assert_eq!((t.largest_free, t.oldest_in_flight), (MIB, Some(2)));
    assert_eq!((t.allocated_peak, t.reserved_peak), (9 * MIB, 12 * MIB));
    assert_eq!((t.counters.allocations, t.counters.hits, t.counters.migrations_in), (200, 194, 3));
    assert_eq!(t.sizes.total(), 200);
    assert!((t.hit_rate() - 0.97).abs() < 1e-12);
    // The largest free range is 1 MiB of 3 MiB that are free.
    assert!((t.fragmentation() - 2.0 / 3.0).abs() < 1e-12);
    assert_eq!(PoolReport::sum([]), PoolReport::default());
}

#[cfg(feature = "serde")]
#[test]
fn json_has_the_data_and_the_ratios() {
    let mut r = report(vec![pool(0, 8 * MIB), pool(4, 4 * MIB)]);
    r.driver_calls.insert("allocate".into(), 9);
    let v: serde_json::Value = serde_json::from_str(&r.to_json()).unwrap();
    assert_eq!(v["reserved"], 12 * MIB);
    assert_eq!(v["reserved_over_allocated"].as_f64(), r.reserved_over_allocated());
    assert_eq!(v["pools"][1]["stream"], 4);
    assert!(v["total"]["stream"].is_null());
    assert_eq!(v["pools"][0]["hit_rate"], 0.97);
    assert_eq!(v["total"]["fragmentation"], r.total.fragmentation());
    assert_eq!(v["total"]["counters"]["allocations"], 200);
    assert_eq!(v["driver_calls"]["allocate"], 9);
    assert_eq!(v["ladder"]["grow"]["served"], 9);
    assert_eq!((&v["slack"], &v["slack_at_peak"]), (&(6 * MIB).into(), &(3 * MIB).into()));
    assert_eq!(
        (&v["allocated_over_reserved"], &v["allocated_over_reserved_at_peak"]),
        (&0.5.into(), &0.75.into())
    );
    assert!(v["pinned"].is_null() && v["limit"].is_null());
    assert!(!r.to_json().contains('\n'));
    assert!(
        serde_json::from_str::<serde_json::Value>(&Report::default().to_json()).unwrap()["reserved_over_allocated"]
            .is_null()
    );
}

const fn usage(allocated: u64, reserved: u64) -> Usage {
    Usage { allocated, reserved }
}

/// Requirement H13: the reuse factor, with the figures of the sample.
#[test]
fn h13_profile_shows_the_reuse_factor() {
    let mut p = Profile::new();
    let mut now = usage(0, 0);
    for (name, allocated, reserved, times) in [
        ("LinearFunction", 5_540_507_812, 188_722_708, 3900),
        ("ReLU", 1_063_004_405, 481_264_926, 2600),
        ("SoftmaxCrossEntropy", 10_737_418, 5_326_766, 1300),
        ("Accuracy", 632_801, 367_001, 700),
    ] {
        for k in 0..times {
            let scope = p.enter(name, now);
            if k == 0 {
                now = usage(now.allocated + allocated, now.reserved + reserved);
            }
            p.exit(scope, now);
        }
    }
    insta::assert_snapshot!(p, @r"
        scope                 allocated     reserved   reuse   occurrences
        LinearFunction         5.16 GiB   179.98 MiB   29.4x          3900
        ReLU                   0.99 GiB   458.97 MiB    2.2x          2600
        SoftmaxCrossEntropy    0.01 GiB     5.08 MiB    2.0x          1300
        Accuracy               0.00 GiB     0.35 MiB    1.7x           700
        total                  6.16 GiB   644.38 MiB    9.8x          8500
        ");
    insta::assert_snapshot!(p.render(Unit::AutoForeach), @r"
        scope                   allocated     reserved   reuse   occurrences
        LinearFunction           5.16 GiB   179.98 MiB   29.4x          3900
        ReLU                  1013.76 MiB   458.97 MiB    2.2x          2600
        SoftmaxCrossEntropy     10.24 MiB     5.08 MiB    2.0x          1300
        Accuracy               617.97 KiB   358.40 KiB    1.7x           700
        total                    6.16 GiB   644.38 MiB    9.8x          8500
        ");
    assert_eq!(p.total(), now);
}

/// Requirement T7: what an inner scope allocated is not also charged to its outer one, and rows add up to the total.
#[test]
fn t7_nested_scopes_are_not_counted_twice() {
    let mut p = Profile::new();
    let outer = p.enter("forward", usage(100, 10));
    let inner = p.enter("conv", usage(110, 10));
    let again = p.enter("forward", usage(130, 15));
    p.exit(again, usage(170, 15));
    p.exit(inner, usage(200, 20));
    p.exit(outer, usage(1200, 20));
    let row = |k: usize| {
        let r = &p.rows()[k];
        (r.name.as_str(), r.allocated, r.reserved, r.allocated_within, r.reserved_within, r.occurrences)
    };
    assert_eq!(row(0), ("forward", 10 + 40 + 1000, 0, 1100, 10, 2));
    assert_eq!(row(1), ("conv", 20 + 30, 10, 90, 10, 1));
    assert_eq!(p.total(), usage(1100, 10));
    insta::assert_snapshot!(p.render(Unit::AutoForeach), @r"
        scope     allocated   reserved    reuse   occurrences   allocated within   reserved within
        forward    1.03 KiB     0.00 B      all             2           1.07 KiB           10.00 B
        conv        50.00 B    10.00 B     5.0x             1            90.00 B           10.00 B
        total      1.07 KiB    10.00 B   110.0x             3           1.07 KiB           10.00 B
        ");
    let json: serde_json::Value = serde_json::from_str(&p.to_json()).unwrap();
    assert_eq!(json["scopes"][1]["name"], "conv");
    assert_eq!(
        (&json["scopes"][1]["allocated"], &json["scopes"][1]["allocated_within"]),
        (&50.into(), &90.into())
    );
    assert_eq!(
        (&json["scopes"][0]["reuse"], &json["total"]["reuse"]),
        (&serde_json::Value::Null, &110.0.into())
    );
    assert_eq!((&json["total"]["allocated"], &json["total"]["reserved"]), (&1100.into(), &10.into()));
}

/// The closure form charges what the two calls would, even if it panics.
#[test]
fn a_scope_around_a_closure_ends_with_it() {
    let now = std::cell::Cell::new(0);
    let spend = |bytes: u64| now.set(now.get() + bytes);
    let read = || usage(now.get(), 0);
    let mut p = Profile::new();
    p.within("outer", read, |p| {
        spend(1);
        p.within("inner", read, |_| spend(10));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            p.within("inner", read, |_| {
                spend(100);
                panic!("in a scope");
            });
        }));
        assert!(panicked.is_err());
        spend(1000);
    });
    let rows: Vec<_> = p.rows().iter().map(|r| (r.allocated, r.allocated_within, r.occurrences)).collect();
    assert_eq!(rows, [(1001, 1111, 1), (110, 110, 2)]);
    assert_eq!(p.total(), usage(1111, 0));
    // An outermost scope too: what comes after it is charged to none.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        p.within("outer", read, |_| -> () { panic!("in a scope") });
    }));
    assert!(panicked.is_err());
    spend(5000);
    p.within("outer", read, |_| ());
    assert_eq!(p.total(), usage(1111, 0));
}

#[test]
fn scopes_may_end_in_any_order() {
    let mut p = Profile::new();
    let outer = p.enter("a", usage(0, 0));
    let inner = p.enter("b", usage(5, 0));
    p.exit(outer, usage(9, 0));
    // It ended with the outer one: what comes now is charged to none.
    p.exit(inner, usage(50, 0));
    assert_eq!(
        p.rows().iter().map(|r| (r.allocated, r.allocated_within)).collect::<Vec<_>>(),
        [(5, 9), (4, 4)]
    );
    let next = p.enter("a", usage(50, 0));
    p.exit(next, usage(51, 0));
    p.exit(next, usage(60, 0));
    assert_eq!(p.rows()[0].allocated, 6);
    assert_eq!(p.rows()[0].occurrences, 2);
}

#[test]
fn a_profile_of_nothing_is_a_total_of_nothing() {
    insta::assert_snapshot!(Profile::new(), @r"
        scope   allocated   reserved   reuse   occurrences
        total      0.00 B     0.00 B    1.0x             0
        ");
    let mut p = Profile::new();
    let s = p.enter("warm", usage(0, 7));
    p.exit(s, usage(600, 7));
    assert!(p.rows()[0].reuse().is_infinite());
    assert!(p.to_string().contains("all"));
}

#[cfg(feature = "serde")]
mod serde_values {
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::option;
    use proptest::prelude::*;

    fn names() -> impl Strategy<Value = String> {
        prop_oneof![Just(String::new()), "[a-z_]{1,12}", any::<String>()]
    }

    prop_compose! {
        fn counters()(n in any::<[u64; 12]>()) -> Counters {
            let [allocations, frees, hits, misses, migrations_in, migrations_out, waits_inserted, host_waits, ..] = n;
            let [.., splits, merges, in_flight_frees, bytes_served] = n;
            Counters {
                allocations, frees, hits, misses, migrations_in, migrations_out, waits_inserted, host_waits, splits, merges,
                in_flight_frees, bytes_served,
            }
        }
    }

    prop_compose! {
        fn pool_reports()(
            stream in option::of(any::<u64>().prop_map(StreamId)),
            name in option::of(names()),
            closed in any::<bool>(),
            n in any::<[u64; 12]>(),
            oldest_in_flight in any::<Option<u64>>(),
            counters in counters(),
            counts in vec(any::<u64>(), 0..34),
        ) -> PoolReport {
            let [held, allocated, requested, cached, in_flight, held_back, allocated_peak, held_peak, ..] = n;
            let [.., live, free_chunks, largest_free, in_flight_ranges] = n;
            PoolReport {
                stream, name, closed, reserved: held, allocated, requested, cached, in_flight, held_back, allocated_peak, reserved_peak: held_peak,
                live, free_chunks, largest_free, in_flight_ranges, oldest_in_flight, counters,
                sizes: Histogram { counts },
            }
        }
    }

    prop_compose! {
        fn physical_reports()(n in any::<[u64; 17]>()) -> PhysicalReport {
            let [
                handles, handle_bytes, handles_created, handles_released, spare_handles, spare_bytes, moves, moves_in_use, mappings,
                former_places, former_bytes, windows, window_bytes, reserved_addresses, holes, hole_bytes, largest_hole,
            ] = n;
            PhysicalReport {
                handles, handle_bytes, handles_created, handles_released, spare_handles, spare_bytes, moves, moves_in_use, mappings,
                former_places, former_bytes, windows, window_bytes, reserved_addresses, holes, hole_bytes, largest_hole,
            }
        }
    }

    prop_compose! {
        fn pinned_reports()(
            limit in any::<Option<u64>>(),
            limit_share in option::of(names()),
            [segments, segments_created, segments_released, registered] in any::<[u64; 4]>(),
            growth_time in any::<core::time::Duration>(),
        ) -> PinnedReport {
            PinnedReport { limit, limit_share, segments, segments_created, segments_released, growth_time, registered }
        }
    }

    prop_compose! {
        fn groups()(
            [hard, soft] in any::<[Option<u64>; 2]>(),
            [reserved, reserved_peak] in any::<[u64; 2]>(),
            members in vec(any::<(u32, Option<u64>, u64, u64)>(), 0..3),
        ) -> GroupReport {
            let member = |(device, limit, reserved, allocated)| MemberReport { device: DeviceId(device), limit, reserved, allocated };
            GroupReport { hard, soft, reserved, reserved_peak, members: members.into_iter().map(member).collect() }
        }
    }

    prop_compose! {
        fn reports()(
            device in any::<u32>().prop_map(DeviceId),
            n in any::<[u64; 16]>(),
            (limit, soft_limit) in any::<(Option<u64>, Option<u64>)>(),
            group in option::of(groups()),
            policy in names().prop_map(Cow::from),
            total in pool_reports(),
            pools in vec(pool_reports(), 0..4),
            rungs in any::<[(u64, u64); 8]>(),
            physical in option::of(physical_reports()),
            (pinned, pinned_host) in (option::of(pool_reports()), option::of(pinned_reports())),
            driver_calls in btree_map(names().prop_map(Cow::from), any::<u64>(), 0..5),
            deferred_errors in vec(names(), 0..3),
        ) -> Report {
            let [capacity, taken, taken_peak, segments, moving, growths, releases, segments_created, segments_released, ..] = n;
            let [.., sparse, sparse_bytes, sparse_live, largest_request, allocated_peak, allocated_peak_at_most, events_lost] = n;
            let [poll, migrate, grow, migrate_with_wait, move_handles, trim, wait, callback] =
                rungs.map(|(tried, served)| Rung { tried, served });
            Report {
                device, capacity, limit, policy, reserved: taken, reserved_peak: taken_peak, segments, moving, growths, releases,
                segments_created, segments_released, sparse, sparse_bytes, sparse_live, largest_request, physical,
                allocated_peak, allocated_peak_at_most, total, pools, soft_limit, group,
                ladder: Ladder { poll, migrate, grow, migrate_with_wait, move_handles, trim, wait, callback },
                pinned, pinned_host, driver_calls, events_lost, deferred_errors,
            }
        }
    }

    proptest! {
        #[test]
        fn a_report_is_read_back_as_it_was_written(report in reports()) {
            let text = report.to_json();
            prop_assert_eq!(&serde_json::from_str::<Report>(&text).unwrap(), &report, "{}", text);
            prop_assert_eq!(&serde_json::from_value::<Report>(report.to_value()).unwrap(), &report);
            let plain = serde_json::to_string(&report).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Report>(&plain).unwrap(), &report, "{}", plain);
        }
    }

    #[test]
    fn what_is_missing_has_its_default_and_what_is_unknown_is_passed_over() {
        let read = |text| serde_json::from_str::<Report>(text).unwrap();
        assert_eq!(read("{}"), Report::default());
        let right = Report { reserved: 7, policy: "latency".into(), ..Report::default() };
        assert_eq!(
            read(r#"{"reserved": 7, "ratio": [1.5], "policy": "latency", "reserved_over_allocated": null}"#),
            right
        );
    }

    #[test]
    fn a_wrong_value_is_refused_by_the_name_of_its_field() {
        let refused = |text| serde_json::from_str::<Report>(text).unwrap_err().to_string();
        let all = [
            r#"{"reserved": "7 GiB"}"#,
            r#"{"pools": [{"stream": 1}, {"counters": {"hits": -1}}]}"#,
            r#"{"ladder": {"grow": {"served": null}}}"#,
            r#"{"driver_calls": {"cuMemAlloc": 0.5}}"#,
            "[0, 1]",
        ];
        insta::assert_snapshot!(all.map(refused).join("\n"), @r#"
        reserved: invalid type: string "7 GiB", expected u64 at line 1 column 20
        pools: counters: hits: invalid value: integer `-1`, expected u64 at line 1 column 50
        ladder: grow: served: invalid type: null, expected u64 at line 1 column 35
        driver_calls: invalid type: floating point `0.5`, expected u64 at line 1 column 35
        missing field `limit` at line 1 column 6
        "#);
    }
}
