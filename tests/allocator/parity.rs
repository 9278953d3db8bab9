//! What the tests of another well-known pool demand, as behaviour to match (requirements 7.1 and following of `tests/architecture/requirements.rs`), on the simulated device. Where
//! we differ on purpose, the test says so.

#![allow(clippy::many_single_char_names, reason = "a, b are streams and x, y blocks throughout")]

use millpond::units::{GIB, MIB};
use millpond::{Allocation, Allocator, Config, Error, Growth, Limit, Reuse, Stream, Trim};
use millpond_replay::import::{Options, Trace, read};
use millpond_sim::Sim;
use millpond_testkit::dice::Dice;
use millpond_testkit::rig::{all_clean, late, on, write};

/// The other pool's policy: segments of exactly the requested size, nothing shared between streams.
fn parity() -> Config {
    Config::default().growth(Growth::Exact).reuse(Reuse::Never)
}

fn one(config: Config) -> (Sim, Allocator<Sim>, Stream<Sim>) {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, config);
    let s = gpu.stream().unwrap();
    (sim, gpu, s)
}

const UNIT: u64 = 512;

#[test]
fn parity_rounding() {
    let (sim, gpu, s) = one(parity());
    for (asked, rounded) in
        [(1, 512), (511, 512), (512, 512), (513, 1024), (1023, 1024), (1024, 1024), (1025, 1536)]
    {
        let x = gpu.alloc(asked, &s).unwrap();
        let t = gpu.report().total;
        assert_eq!((t.requested, t.allocated), (asked, rounded));
        drop(x);
    }
    drop(s);
    all_clean(&sim, gpu);
}

#[test]
fn parity_split_tree_merges_back_in_both_drop_orders() {
    for reverse in [false, true] {
        let (sim, gpu, s) = one(parity());
        let whole = gpu.alloc(4 * UNIT, &s).unwrap();
        let base = whole.address().0;
        drop(whole);
        let halves = [gpu.alloc(2 * UNIT, &s).unwrap(), gpu.alloc(2 * UNIT, &s).unwrap()];
        assert_eq!(halves.each_ref().map(|h| h.address().0), [base, base + 2 * UNIT]);
        drop(halves);
        let mut quarters: Vec<Allocation<Sim>> = (0..4).map(|_| gpu.alloc(UNIT, &s).unwrap()).collect();
        let at: Vec<u64> = quarters.iter().map(|q| q.address().0 - base).collect();
        assert_eq!(at, [0, UNIT, 2 * UNIT, 3 * UNIT]);
        if reverse {
            quarters.reverse();
        }
        while !quarters.is_empty() {
            drop(quarters.remove(0));
        }
        let t = gpu.report().total;
        assert_eq!((t.free_chunks, t.largest_free), (1, 4 * UNIT));
        assert_eq!(gpu.report().growths, 1);
        drop(s);
        all_clean(&sim, gpu);
    }
}

#[test]
fn parity_live_chunks_are_distinct() {
    live_chunks_are_distinct(100);
}

fn live_chunks_are_distinct(chunks: u64) {
    let (sim, gpu, s) = one(parity());
    let all: Vec<_> = (0..chunks).map(|i| gpu.alloc(UNIT * (i % 5 + 1), &s).unwrap()).collect();
    let mut spans: Vec<(u64, u64)> = all.iter().map(|a| (a.address().0, a.len())).collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    drop((all, s));
    all_clean(&sim, gpu);
}

#[test]
fn parity_split_order_head_then_tail() {
    let (sim, gpu, s) = one(parity());
    let whole = gpu.alloc(4 * UNIT, &s).unwrap();
    let base = whole.address().0;
    drop(whole);
    let head = gpu.alloc(UNIT, &s).unwrap();
    let tail = gpu.alloc(3 * UNIT, &s).unwrap();
    assert_eq!((head.address().0, tail.address().0), (base, base + UNIT));
    drop((head, tail, s));
    all_clean(&sim, gpu);
}

#[test]
fn parity_limit_five_plus_one() {
    let (sim, gpu, s) = one(parity().limit(Limit::Bytes(6 * UNIT)));
    let five = gpu.alloc(5 * UNIT, &s).unwrap();
    let one = gpu.alloc(UNIT, &s).unwrap();
    let refused = gpu.alloc(UNIT, &s).unwrap_err();
    assert!(refused.out_of_memory().is_some(), "{refused}");
    gpu.set_limit(Limit::Bytes(7 * UNIT)).unwrap();
    let more = gpu.alloc(UNIT, &s).unwrap();
    drop((five, one, more, s));
    all_clean(&sim, gpu);
}

/// Free, but in pieces that no request fits: given back to make room, since everything is complete. Ours gives plain memory
/// back in a trim only, because that waits for the device; memory whose frees do not wait, by itself.
#[test]
fn parity_fragmented_limit() {
    for waiting_frees in [true, false] {
        let sim = Sim::new(GIB).waiting_frees(waiting_frees);
        let gpu = on(&sim, parity().limit(Limit::Bytes(10 * UNIT)));
        let s = gpu.stream().unwrap();
        let alloc = |units: u64, in_the_way: u64| {
            if waiting_frees {
                assert!(gpu.alloc(units * UNIT, &s).unwrap_err().out_of_memory().is_some());
                assert_eq!(gpu.trim(Trim::All).unwrap().bytes, in_the_way * UNIT);
            }
            gpu.alloc(units * UNIT, &s).unwrap()
        };
        let kept = gpu.alloc(2 * UNIT, &s).unwrap();
        drop([0; 4].map(|_| gpu.alloc(UNIT, &s).unwrap()));
        drop((gpu.alloc(4 * UNIT, &s).unwrap(), alloc(3, 4)));
        let big = alloc(8, 7);
        assert_eq!(gpu.report().reserved, 10 * UNIT);
        drop((kept, big, s));
        all_clean(&sim, gpu);
    }
}

#[test]
fn parity_reuse_of_the_same_address() {
    let (sim, gpu, s) = one(parity());
    let x = gpu.alloc(3 * UNIT, &s).unwrap();
    let at = x.address();
    drop(x);
    assert_eq!(gpu.alloc(3 * UNIT, &s).unwrap().address(), at);
    drop(s);
    all_clean(&sim, gpu);
}

#[test]
fn parity_no_reuse_across_streams_unless_ordered() {
    for ordered in [false, true] {
        let sim = late();
        let gpu = on(&sim, Config::default().growth(Growth::Exact).reuse(Reuse::Ordered));
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(MIB, &a).unwrap();
        let at = x.address();
        write(&sim, &x, &a);
        drop(x);
        if ordered {
            b.wait_stream(&a).unwrap();
        }
        let y = gpu.alloc(MIB, &b).unwrap();
        assert_eq!(y.address() == at, ordered);
        write(&sim, &y, &b);
        drop((y, a, b));
        all_clean(&sim, gpu);
    }
}

#[test]
fn parity_trim_whole_split_one_stream_all() {
    let (sim, gpu, a) = one(parity());
    let b = gpu.stream().unwrap();
    let trim = |which| {
        gpu.synchronize().unwrap();
        gpu.trim(which).unwrap().bytes
    };
    drop(gpu.alloc(4 * UNIT, &a).unwrap());
    assert_eq!(trim(Trim::All), 4 * UNIT, "a whole chunk");
    drop(gpu.alloc(4 * UNIT, &a).unwrap());
    let head = gpu.alloc(UNIT, &a).unwrap();
    assert_eq!(trim(Trim::All), 0, "a split chunk, its head in use");
    drop(head);
    assert_eq!(trim(Trim::All), 4 * UNIT);
    drop((gpu.alloc(2 * UNIT, &a).unwrap(), gpu.alloc(3 * UNIT, &b).unwrap()));
    assert_eq!(trim(Trim::Stream(&a)), 2 * UNIT);
    assert_eq!(trim(Trim::Stream(&a)), 0);
    assert_eq!(trim(Trim::All), 3 * UNIT);
    drop((a, b));
    all_clean(&sim, gpu);
}

#[test]
fn parity_bytes_per_stream() {
    let (sim, gpu, a) = one(parity());
    let b = gpu.stream().unwrap();
    let x = gpu.alloc(2 * UNIT, &a).unwrap();
    drop(gpu.alloc(3 * UNIT, &a).unwrap());
    let y = gpu.alloc(5 * UNIT, &b).unwrap();
    let r = gpu.report();
    let of = |s: &Stream<Sim>| {
        let p = r.pools.iter().find(|p| p.stream == Some(s.id())).unwrap();
        (p.allocated, p.cached, p.reserved)
    };
    assert_eq!(of(&a), (2 * UNIT, 3 * UNIT, 5 * UNIT));
    assert_eq!(of(&b), (5 * UNIT, 0, 5 * UNIT));
    assert_eq!((r.total.allocated, r.total.cached, r.reserved), (7 * UNIT, 3 * UNIT, 10 * UNIT));
    drop((x, y, a, b));
    all_clean(&sim, gpu);
}

#[test]
fn parity_limits_by_size_and_fraction_and_their_errors() {
    let (sim, gpu, s) = one(parity());
    gpu.set_limit(Limit::Bytes(3 * UNIT)).unwrap();
    assert_eq!(gpu.report().limit, Some(3 * UNIT));
    gpu.set_limit(Limit::Fraction(0.5)).unwrap();
    assert_eq!(gpu.report().limit, Some(GIB / 2));
    gpu.set_limit(Limit::None).unwrap();
    assert_eq!(gpu.report().limit, None);
    for f in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let refused = gpu.set_limit(Limit::Fraction(f)).unwrap_err();
        assert!(matches!(refused, Error::Config { .. }), "{refused}");
    }
    // Ours: 0 means nothing may be taken; the other pool's 0 means no limit, which here is `none`.
    gpu.set_limit(Limit::Bytes(0)).unwrap();
    assert!(gpu.alloc(1, &s).unwrap_err().out_of_memory().is_some());
    gpu.set_limit(Limit::Bytes(1)).unwrap();
    assert!(gpu.alloc(1, &s).unwrap_err().out_of_memory().is_some(), "a granule is above one byte");
    drop(s);
    all_clean(&sim, gpu);
}

#[test]
fn parity_environment_limit() {
    let limit = |text: &'static str| {
        Config::from_variables(move |n| (n == "MILLPOND_LIMIT").then(|| text.into()))
            .map(|c| on(&Sim::new(GIB), c).report().limit)
    };
    for (text, bytes) in [
        ("0", Some(0)),
        ("0%", Some(0)),
        ("65536", Some(65536)),
        ("40%", Some(GIB * 4 / 10)),
        ("70.5%", Some(GIB * 705 / 1000)),
        ("100%", Some(GIB)),
        ("none", None),
        ("", None),
    ] {
        assert_eq!(limit(text).unwrap(), bytes, "{text:?}");
    }
    for text in ["-1", "101%", "40 percent", "1.5", "nan%", "18446744073709551616"] {
        let refused = limit(text).unwrap_err().to_string();
        assert!(refused.contains("MILLPOND_LIMIT"), "{text:?}: {refused}");
    }
}

#[test]
fn parity_zero_size_unpooled() {
    let (sim, gpu, s) = one(parity());
    let calls = sim.ledger().calls_total();
    let (x, y) = (gpu.alloc(0, &s).unwrap(), gpu.alloc_pinned(0).unwrap());
    assert!(x.is_empty() && x.id().is_none() && x.stream_id().is_none() && y.is_empty());
    x.record_use(&s).unwrap();
    y.record_use(&s).unwrap();
    x.free_on(&s).unwrap();
    gpu.alloc(0, &s).unwrap().free_unknown();
    drop(y);
    let r = gpu.report();
    assert_eq!((r.reserved, r.total.counters.allocations, sim.ledger().calls_total()), (0, 0, calls));
    drop(s);
    all_clean(&sim, gpu);
}

#[test]
#[allow(unsafe_code, reason = "a double free needs a broken promise of from_raw")]
fn parity_double_free() {
    let (sim, gpu, s) = one(parity());
    let keep = gpu.alloc(UNIT, &s).unwrap();
    let raw = gpu.alloc(UNIT, &s).unwrap().into_raw();
    // SAFETY: taken up once.
    drop(unsafe { Allocation::from_raw(raw) });
    // SAFETY: broken on purpose: taken up twice. `keep` and `s` hold the pool alive, so the counted share is the only
    // thing that goes wrong; the handle is forgotten if it is not caught.
    let again = unsafe { Allocation::from_raw(raw) };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(again)));
    let said = *caught.unwrap_err().downcast::<String>().unwrap();
    assert!(said.contains("H7"), "{said}");
    // The pool's lock was released by the panic and its books are intact.
    gpu.check();
    std::mem::forget((keep, s, gpu, sim));
}

#[test]
fn parity_knob_cross_stream_reuse_never() {
    let (sim, gpu, a) = one(parity());
    let b = gpu.stream().unwrap();
    drop(gpu.alloc(MIB, &a).unwrap());
    b.wait_stream(&a).unwrap();
    gpu.synchronize().unwrap();
    drop(gpu.alloc(MIB, &b).unwrap());
    assert_eq!(gpu.report().growths, 2, "complete, ordered, and still not shared");
    drop((a, b));
    all_clean(&sim, gpu);
}

#[test]
fn parity_knob_exact_growth() {
    let (sim, gpu, s) = one(parity());
    let x = gpu.alloc(700, &s).unwrap();
    assert_eq!(gpu.report().reserved, 1024);
    let y = gpu.alloc(3 * MIB + 1, &s).unwrap();
    assert_eq!(gpu.report().reserved, 1024 + 3 * MIB + 512);
    drop((x, y, s));
    all_clean(&sim, gpu);
}

#[test]
fn parity_knob_accounting_at_drop() {
    let sim = late();
    let gpu = on(&sim, parity());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    write(&sim, &x, &s);
    drop(x);
    let t = gpu.report().total;
    assert_eq!(
        (t.allocated, t.cached),
        (0, MIB),
        "free for the stream as soon as it is dropped, pending or not"
    );
    drop(s);
    all_clean(&sim, gpu);
}

#[test]
fn parity_knob_remainders_down_to_a_granule() {
    let (sim, gpu, s) = one(parity());
    drop(gpu.alloc(MIB, &s).unwrap());
    let x = gpu.alloc(MIB - UNIT, &s).unwrap();
    let y = gpu.alloc(UNIT, &s).unwrap();
    assert_eq!(y.address().0, x.address().0 + MIB - UNIT);
    assert_eq!(gpu.report().growths, 1);
    drop((x, y, s));
    all_clean(&sim, gpu);
}

#[test]
fn parity_knob_trim_keeps_split_addresses() {
    let (sim, gpu, s) = one(parity());
    drop(gpu.alloc(4 * UNIT, &s).unwrap());
    let head = gpu.alloc(UNIT, &s).unwrap();
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    let tail = gpu.alloc(3 * UNIT, &s).unwrap();
    assert_eq!(tail.address().0, head.address().0 + UNIT, "the rest of a split chunk stayed where it was");
    drop((head, tail, s));
    all_clean(&sim, gpu);
}

#[test]
fn parity_eight_threads_random_sizes_with_trims() {
    eight_threads(500);
}

fn eight_threads(steps: u32) {
    let sim = Sim::new(GIB).contents(false).oracle(false);
    let gpu = on(&sim, Config::default());
    std::thread::scope(|scope| {
        for t in 0..8u64 {
            let gpu = &gpu;
            scope.spawn(move || {
                let s = gpu.stream().unwrap();
                let mut dice = Dice::new(t);
                let mut kept = Vec::new();
                for i in 0..steps {
                    kept.push(gpu.alloc(dice.number(50_000) + 1, &s).unwrap());
                    if dice.one_in(4) {
                        kept.clear();
                    }
                    if i % (steps / 5) == steps / 10 {
                        gpu.trim(Trim::All).unwrap();
                    }
                }
            });
        }
    });
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    assert_eq!(gpu.report().reserved, 0, "all streams are gone and everything is complete");
    all_clean(&sim, gpu);
}

#[test]
fn parity_replay_of_rmm_logs() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,0,allocate,0x7f00,4096,1\n1,5,allocate,0x8f00,512,2\n1,9,free,0x7f00,4096,1\n\
               1,12,allocate,0x7f00,2048,1\n1,15,free,0x8f00,512,2\n1,20,free,0x7f00,2048,1\n";
    let Trace::Log(log) = read("rmm", log.as_bytes(), Options::default()).unwrap() else {
        panic!("a CSV is a log");
    };
    let (sim, gpu, _) = one(Config::default());
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap()];
    let mut live = std::collections::HashMap::new();
    for call in &log.calls {
        let s = &streams[usize::from(call.stream().0)];
        match call.action() {
            millpond::trace::Action::Alloc => {
                let x = gpu.alloc(call.bytes(), s).unwrap();
                write(&sim, &x, s);
                live.insert(call.block(), x);
            }
            millpond::trace::Action::Free => drop(live.remove(&call.block()).unwrap()),
        }
    }
    assert_eq!(gpu.report().total.counters.allocations, 3);
    drop((live, streams));
    all_clean(&sim, gpu);
}

#[test]
fn parity_stream_destroyed_before_its_arrays() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let keep = gpu.stream().unwrap();
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    write(&sim, &x, &s);
    drop(s);
    let y = gpu.alloc(MIB, &keep).unwrap();
    write(&sim, &y, &keep);
    drop(x);
    let z = gpu.alloc(MIB, &keep).unwrap();
    write(&sim, &z, &keep);
    drop((y, z, keep));
    all_clean(&sim, gpu);
}

/// The tests again, for `tests/soak.rs`, which runs each for ever.
#[allow(dead_code, unreachable_pub, reason = "read by another test")]
pub(crate) const AGAIN: &[(&str, fn())] = &[
    ("parity_rounding", parity_rounding),
    ("parity_split_tree_merges_back_in_both_drop_orders", parity_split_tree_merges_back_in_both_drop_orders),
    ("parity_live_chunks_are_distinct", || live_chunks_are_distinct(20)),
    ("parity_split_order_head_then_tail", parity_split_order_head_then_tail),
    ("parity_limit_five_plus_one", parity_limit_five_plus_one),
    ("parity_fragmented_limit", parity_fragmented_limit),
    ("parity_reuse_of_the_same_address", parity_reuse_of_the_same_address),
    ("parity_no_reuse_across_streams_unless_ordered", parity_no_reuse_across_streams_unless_ordered),
    ("parity_trim_whole_split_one_stream_all", parity_trim_whole_split_one_stream_all),
    ("parity_bytes_per_stream", parity_bytes_per_stream),
    (
        "parity_limits_by_size_and_fraction_and_their_errors",
        parity_limits_by_size_and_fraction_and_their_errors,
    ),
    ("parity_environment_limit", parity_environment_limit),
    ("parity_zero_size_unpooled", parity_zero_size_unpooled),
    ("parity_knob_cross_stream_reuse_never", parity_knob_cross_stream_reuse_never),
    ("parity_knob_exact_growth", parity_knob_exact_growth),
    ("parity_knob_accounting_at_drop", parity_knob_accounting_at_drop),
    ("parity_knob_remainders_down_to_a_granule", parity_knob_remainders_down_to_a_granule),
    ("parity_knob_trim_keeps_split_addresses", parity_knob_trim_keeps_split_addresses),
    ("parity_eight_threads_random_sizes_with_trims", || eight_threads(10)),
    ("parity_replay_of_rmm_logs", parity_replay_of_rmm_logs),
    ("parity_stream_destroyed_before_its_arrays", parity_stream_destroyed_before_its_arrays),
];
