//! What an out-of-memory error says: who holds the memory, and advice that follows from the facts and was not tried.

use millpond::driver::sim::{Schedule, Sim};
use millpond::error::Holder;
use millpond::units::{GIB, KIB, MIB};
use millpond::{Allocator, Config, DriverError, DriverErrorKind, Growth, Limit, OutOfMemory, Reuse, Trim};
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod rig;

fn gpu(limit: u64, config: Config) -> Allocator<Sim> {
    let config = config.limit(Limit::Bytes(limit)).bounded_wait(Duration::from_millis(5));
    Allocator::new(Sim::new(GIB), config).unwrap()
}

fn facts<T: std::fmt::Debug>(refused: Result<T, millpond::Error>) -> OutOfMemory {
    refused.expect_err("there is no room").out_of_memory().expect("out of memory").clone()
}

/// Every piece of advice that has been tried, or does not hold, is a lie.
fn assert_not_advised(facts: &OutOfMemory, words: &[&str]) {
    let advice = facts.advice();
    for word in words {
        assert!(!advice.contains(word), "{word:?} in {advice:?}");
    }
}

/// A leak in many pieces under one name is called by its name, and nobody is sent to look for fragments or to trim.
#[test]
fn a_leak_in_pieces_is_no_fragmentation() {
    let gpu = gpu(68 * MIB, Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let other = gpu.alloc(100 * KIB, &t).unwrap();
    let mut leaked = Vec::new();
    let refused = loop {
        match gpu.alloc_named(MIB + 30 * KIB, "activations", &s) {
            Ok(a) => leaked.push(a),
            Err(e) => break facts::<()>(Err(e)),
        }
    };
    assert!(leaked.len() > 55, "{} pieces", leaked.len());
    // What the old advice went by: as much is free as was asked for, in no run that is long enough.
    let t = &refused.report.total;
    assert!(t.cached >= refused.rounded && t.largest_free < refused.rounded, "{refused}");
    let count = leaked.len() as u64;
    let piece = refused.rounded;
    assert_eq!(
        refused.holders,
        [
            Holder { name: Some("activations".into()), allocations: count, bytes: count * piece },
            Holder { name: None, allocations: 1, bytes: 100 * KIB },
        ]
    );
    let advice = refused.advice();
    assert!(
        advice.contains(&format!("in {count} allocations")) && advice.contains("\"activations\""),
        "{advice}"
    );
    assert_not_advised(&refused, &["fragment", "trim"]);
    let said = refused.to_string();
    assert!(said.contains("by stream: ") && said.contains("tried "), "{said}");
    let [by_stream, ..] = said.split("by stream: ").nth(1).unwrap().split(';').collect::<Vec<_>>()[..] else {
        panic!("{said}");
    };
    assert!(by_stream.starts_with(&format!("{} ", s.id())), "the stream that holds most comes first: {said}");
    drop((leaked, other));
}

/// The opposite: little is held, much is free, in crumbs.
#[test]
fn crumbs_are_fragmentation() {
    let gpu = gpu(40 * MIB, Config::default());
    let s = gpu.stream().unwrap();
    let mut all: Vec<_> = (0..40).map(|_| gpu.alloc_named(MIB, "rows", &s).unwrap()).collect();
    let mut k = 0;
    all.retain(|_| {
        k += 1;
        k % 2 == 0
    });
    let refused = facts(gpu.alloc(2 * MIB, &s));
    assert_eq!((refused.report.total.cached, refused.report.total.largest_free), (20 * MIB, MIB));
    let advice = refused.advice();
    assert!(advice.contains("fragmented") && advice.contains("\"rows\""), "{advice}");
    assert!(advice.contains("20.0 MiB are free in ranges of at most 1.00 MiB"), "{advice}");
    assert_eq!(refused.trim_would_free, 0);
    assert_not_advised(&refused, &["trim"]);
}

/// Segments that are wholly free and did not go back are counted, and a trim brings exactly that.
#[test]
fn what_a_trim_would_bring() {
    // The callback is asked when the request is about to fail: what it is told is what it can do something about.
    let told: Arc<Mutex<Vec<OutOfMemory>>> = Arc::default();
    let tell = Arc::clone(&told);
    let config = Config::default().growth(Growth::Exact).reuse(Reuse::Never).on_out_of_memory(move |facts| {
        tell.lock().unwrap().push(facts.clone());
        false
    });
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let config = config.limit(Limit::Bytes(100 * MIB)).bounded_wait(Duration::ZERO);
    let gpu = Allocator::new(sim.clone(), config).unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let blocks: Vec<_> = [20, 20, 20, 4].map(|n| gpu.alloc(n * MIB, &s).unwrap()).into();
    for b in &blocks {
        rig::write(&sim, b, &s);
    }
    let [idle @ .., kept] = <[_; 4]>::try_from(blocks).unwrap();
    drop(idle);
    let refused = facts(gpu.alloc(90 * MIB, &t));
    assert_eq!(refused.trim_would_free, 60 * MIB);
    assert_eq!(told.lock().unwrap().last().unwrap().trim_would_free, 60 * MIB);
    if refused.tried.contains(&"trim") {
        assert_not_advised(&refused, &["trim("]);
    } else {
        assert!(refused.to_string().contains("a trim would free 60.0 MiB"), "{refused}");
        assert!(refused.advice().contains("trim()"), "{refused}");
    }
    gpu.synchronize().unwrap();
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, refused.trim_would_free);
    let fits = gpu.alloc(90 * MIB, &t).unwrap();
    drop((fits, kept));
}

/// The advice of each state, by facts of that state. It is a function of the facts alone.
#[test]
fn advice_follows_from_the_facts() {
    let gpu = gpu(64 * MIB, Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (x, y) = (gpu.alloc(30 * MIB, &s).unwrap(), gpu.alloc(MIB, &t).unwrap());
    let held = facts(gpu.alloc(60 * MIB, &s));
    let with = |change: &dyn Fn(&mut OutOfMemory)| {
        let mut facts = held.clone();
        change(&mut facts);
        facts.advice()
    };
    insta::assert_snapshot!(
        [
            with(&|_| {}),
            with(&|f| f.rounded = 65 * MIB),
            with(&|f| {
                f.report.limit = None;
                f.rounded = 2 * GIB;
            }),
            with(&|f| {
                f.tried.push("trim");
                f.trim_would_free = 60 * MIB;
            }),
            with(&|f| f.trim_would_free = 60 * MIB),
            with(&|f| f.report.pools[1].largest_free = 60 * MIB),
            with(&|f| {
                f.report.pools[1].largest_free = 60 * MIB;
                f.tried.retain(|t| *t != "lend");
            }),
            with(&|f| f.report.pools[0].largest_free = 60 * MIB),
            with(&|f| f.report.total.in_flight = 60 * MIB),
            with(&|f| f.report.total.cached = 60 * MIB),
            with(&|f| f.report.total.cached = 50 * MIB),
            with(&|f| f.report.limit = None),
            with(&|f| {
                f.report.limit = None;
                f.driver =
                    Some(DriverError::new("cuMemAlloc", 2, DriverErrorKind::OutOfMemory, "out of memory"));
            }),
            with(&|f| f.holders[0].name = Some("batch".into())),
            with(&|f| f.holders.clear()),
            with(&|f| {
                f.stream = None;
                f.rounded = 65 * MIB;
            }),
        ]
        .map(|line| line.replace(&s.id().to_string(), "stream S").replace(&t.id().to_string(), "stream T"))
        .join("\n"), @r#"
        31.0 MiB of the limit of 64.0 MiB are live, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name): free something, or raise the limit (set_limit, MILLPOND_LIMIT).
        The request alone is above the limit of 64.0 MiB: raise the limit (set_limit, MILLPOND_LIMIT) or ask for less.
        The request alone is above the device's memory of 1.00 GiB: ask for less.
        31.0 MiB of the limit of 64.0 MiB are live, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name): free something, or raise the limit (set_limit, MILLPOND_LIMIT).
        60.0 MiB lie in segments that are wholly free: trim() gives them back once the work queued on them is complete (it may wait for the device), and then the request fits.
        A run of 60.0 MiB is free on stream T, whose work on it is not over: wait for that stream, for longer than bounded_wait, or allocate there.
        A run of 60.0 MiB is free on stream T, and Reuse::Never keeps it there: allocate there, or let streams reuse each other's memory.
        A run of 60.0 MiB is free on stream S but does not serve this request: an alignment or exact_fit stands in the way; ask for more bytes and align inside them, or allocate it earlier.
        60.0 MiB were freed while other streams still used them, also when the bounded wait ended: let those streams end their work (synchronise them) before asking, or raise bounded_wait.
        60.0 MiB are free in ranges of at most 19.0 MiB, and 14.0 MiB are left under the limit: fragmented by what is live between them, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name); free some of that, or allocate the large blocks first.
        50.0 MiB are free in ranges of at most 19.0 MiB, and 14.0 MiB are left under the limit: fragmented by what is live between them, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name); free some of that, or allocate the large blocks first.
        31.0 MiB are live, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name): free something, or use a smaller batch.
        The device has no more though only 50.0 MiB of its 1.00 GiB are taken here: something else uses it. 31.0 MiB are live, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name): free something, or use a smaller batch.
        31.0 MiB of the limit of 64.0 MiB are live, the largest part "batch" 31.0 MiB in 2 allocations: free something, or raise the limit (set_limit, MILLPOND_LIMIT).
        50.0 MiB of the limit of 64.0 MiB are taken: raise the limit (set_limit, MILLPOND_LIMIT).
        The request alone is above the limit of 64.0 MiB: raise the limit (pinned_limit, MILLPOND_PINNED_LIMIT) or ask for less.
        "#
    );
    drop((x, y));
}

/// Pinned memory has no streams and no names.
#[test]
fn pinned_memory_says_what_is_alive() {
    let config = Config::default().pinned_limit(64 * MIB).bounded_wait(Duration::from_millis(5));
    let gpu = Allocator::new(Sim::new(GIB), config).unwrap();
    let p = gpu.alloc_pinned(40 * MIB).unwrap();
    let refused = facts(gpu.alloc_pinned(30 * MIB));
    assert_eq!(refused.holders, [Holder { name: None, allocations: 1, bytes: 40 * MIB }]);
    let said = refused.to_string();
    assert!(
        said.contains("40.0 MiB in 1 allocation without a name") && !said.contains("by stream"),
        "{said}"
    );
    drop(p);
}
