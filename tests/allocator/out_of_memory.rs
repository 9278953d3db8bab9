//! What an out-of-memory error says: who holds the memory, and advice that follows from the facts and was not tried.

mod random;

use crate::rig;
use millpond::driver::HostKind;
use millpond::error::Holder;
use millpond::units::{GIB, KIB, MIB};
use millpond::{
    Allocation, Allocator, Config, DriverError, DriverErrorKind, Growth, Limit, OutOfMemory, Reuse, Stream,
    Trim,
};
use millpond_sim::{Schedule, Sim};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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

/// A leak in many pieces under one name is called by its name, and the advice is not to look for fragments or to trim.
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
    // What the old advice went by: as much is free as was requested, in no run that is long enough.
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
    // The callback is called when the request is about to fail: its facts are what it can do something about.
    let reported: Arc<Mutex<Vec<OutOfMemory>>> = Arc::default();
    let sink = Arc::clone(&reported);
    let config = Config::default().growth(Growth::Exact).reuse(Reuse::Never).on_out_of_memory(move |facts| {
        sink.lock().unwrap().push(facts.clone());
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
    assert_eq!(reported.lock().unwrap().last().unwrap().trim_would_free, 60 * MIB);
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

/// Memory that is held back is none that a trim frees, and the advice is not to trim for it; synchronised before, the trim frees it.
#[test]
fn what_is_held_back_is_brought_by_no_trim() {
    let sim = Sim::new(GIB);
    let config =
        Config::default().growth(Growth::Exact).limit(Limit::Bytes(64 * MIB)).bounded_wait(Duration::ZERO);
    let gpu = Allocator::new(sim.clone(), config).unwrap();
    let native = sim.stream().unwrap();
    let (s, t) = (gpu.adopt(sim.unmanaged_stream(&native)).unwrap(), gpu.stream().unwrap());
    drop(gpu.alloc(40 * MIB, &s).unwrap());
    sim.destroy_stream(&native).unwrap();
    let refused = facts(gpu.alloc(50 * MIB, &t));
    assert_eq!((refused.trim_would_free, refused.report.total.held_back), (0, 40 * MIB));
    assert_not_advised(&refused, &["trim()"]);
    assert!(refused.advice().contains("synchronise"), "{}", refused.advice());
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 0);
    gpu.synchronize().unwrap();
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 40 * MIB);
    drop(gpu.alloc(50 * MIB, &t).unwrap());
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
                f.tried.retain(|t| *t != "migrate");
            }),
            with(&|f| f.report.pools[0].largest_free = 60 * MIB),
            with(&|f| {
                f.report.pools[1].largest_free = 60 * MIB;
                f.needed = 64 * MIB;
            }),
            with(&|f| {
                f.report.pools[1].largest_free = 60 * MIB;
                f.needed = 64 * MIB;
                f.aligned_on.push(t.id());
            }),
            with(&|f| f.needed = 65 * MIB),
            with(&|f| {
                f.report.total.in_flight = 60 * MIB;
                f.serves_after_uses = true;
            }),
            with(&|f| {
                f.report.total.in_flight = 60 * MIB;
                f.idle_after_uses = 60 * MIB;
            }),
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
                f.pinned_limit = Some(64 * MIB);
                f.rounded = 65 * MIB;
            }),
            with(&|f| {
                f.stream = None;
                f.pinned_limit = Some(64 * MIB);
                f.pinned_share = Some("50 % of the 128 MiB that this container may use, by default".into());
                f.rounded = 65 * MIB;
            }),
        ]
        .map(|line| line.replace(&s.id().to_string(), "stream S").replace(&t.id().to_string(), "stream T"))
        .join("\n"), @r#"
        31.0 MiB of the limit of 64.0 MiB are live, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name): free something, or raise the limit (set_limit, MILLPOND_LIMIT).
        The request alone is above the limit of 64.0 MiB: raise the limit (set_limit, MILLPOND_LIMIT) or ask for less.
        The request alone is above the device's memory of 1.00 GiB: ask for less.
        31.0 MiB of the limit of 64.0 MiB are live, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name): free something, or raise the limit (set_limit, MILLPOND_LIMIT).
        60.0 MiB lie in segments or handles that are wholly free: trim() gives them back once the work queued on them is complete (it may wait for the device), and then the request fits.
        A run of 60.0 MiB is free on stream T, whose work on it is not over: wait for that stream, for longer than bounded_wait, or allocate there.
        A run of 60.0 MiB is free on stream T, and Reuse::Never keeps it there: allocate there, or let streams reuse each other's memory.
        A run of 60.0 MiB is free on stream S but does not serve this request: exact_fit stands in the way, or it was freed just now; ask again, or without exact_fit.
        A run of 60.0 MiB is free on stream T but does not hold this request at its alignment, for which a run may have to be 64.0 MiB long: ask for a smaller alignment, or allocate it earlier.
        A run of 60.0 MiB is free on stream T, whose work on it is not over: wait for that stream, for longer than bounded_wait, or allocate there.
        No free range holds the request at its alignment, and fresh memory that does wherever it begins is 65.0 MiB, above the limit of 64.0 MiB: ask for a smaller alignment or raise the limit (set_limit, MILLPOND_LIMIT).
        60.0 MiB were freed while other streams still used them, also when the bounded wait ended: let those streams end their work (synchronise them) before asking, or raise bounded_wait.
        60.0 MiB were freed while other streams still used them, also when the bounded wait ended: let those streams end their work, and the streams that they were allocated on (synchronise them), and trim() then.
        60.0 MiB are free in ranges of at most 19.0 MiB, and 14.0 MiB are left under the limit: fragmented by what is live between them, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name); free some of that, or allocate the large blocks first.
        50.0 MiB are free in ranges of at most 19.0 MiB, and 14.0 MiB are left under the limit: fragmented by what is live between them, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name); free some of that, or allocate the large blocks first.
        31.0 MiB are live, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name): free something, or use a smaller batch.
        The device has no more though only 50.0 MiB of its 1.00 GiB are reserved here: something else uses it. 31.0 MiB are live, the largest part 30.0 MiB on stream S (alloc_named gives allocations a name): free something, or use a smaller batch.
        31.0 MiB of the limit of 64.0 MiB are live, the largest part "batch" 31.0 MiB in 2 allocations: free something, or raise the limit (set_limit, MILLPOND_LIMIT).
        50.0 MiB of the limit of 64.0 MiB are reserved: raise the limit (set_limit, MILLPOND_LIMIT).
        The request alone is above the limit of 64.0 MiB: raise the limit (pinned_limit, MILLPOND_PINNED_LIMIT) or ask for less.
        The request alone is above the limit of 64.0 MiB (50 % of the 128 MiB that this container may use, by default): raise the limit (pinned_limit, MILLPOND_PINNED_LIMIT) or ask for less.
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

/// The facts of pinned memory are its own from the first request on: of the device's bytes, however they lie, it says nothing.
#[test]
fn pinned_memory_says_nothing_of_the_device() {
    let sim = Sim::new(GIB).pinned_capacity(10 * MIB);
    let config = Config::default().limit(Limit::Bytes(40 * MIB)).bounded_wait(Duration::ZERO);
    let gpu = Allocator::new(sim, config).unwrap();
    let s = gpu.stream().unwrap();
    let mut rows: Vec<_> = (0..40).map(|_| gpu.alloc(MIB, &s).unwrap()).collect();
    let mut n = 0;
    rows.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    let refused = facts(gpu.alloc_pinned(16 * MIB));
    assert_eq!(refused.report, gpu.report(), "but for what the allocator tells itself");
    assert_eq!((refused.pinned_limit, refused.report.limit), (None, Some(40 * MIB)));
    assert_eq!(refused.advice(), "Nothing is live here: ask for less, or end what else uses the memory.");
    let said = refused.to_string();
    assert!(said.contains("of pinned host memory; reserved 0 B, allocated 0 B, cached 0 B"), "{said}");
    drop(rows);
}

/// What an alignment may skip is part of what a request needs: no trim is advised that does not free enough for it, and no wait for
/// a range that is idle and begins at the wrong address. What begins at the right one serves, above all limits.
#[test]
fn advice_knows_of_alignment() {
    let config = || Config::default().growth(Growth::Exact);
    let gpu = gpu(100 * MIB, config());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let kept = gpu.alloc(MIB, &s).unwrap();
    drop(gpu.alloc(60 * MIB, &s).unwrap());
    gpu.synchronize().unwrap();
    let refused = facts(gpu.alloc_aligned(50 * MIB, GIB, &t));
    assert_eq!(refused.trim_would_free, 60 * MIB);
    assert_not_advised(&refused, &["trim()", "wait for"]);
    assert_eq!(
        refused.advice(),
        "No free range holds the request at its alignment, and fresh memory that does wherever it begins is 1.05 GiB, above the limit of 100 MiB: ask for a smaller alignment or raise the limit (set_limit, MILLPOND_LIMIT)."
    );
    // Within the limit, and not beside what is live.
    let refused = facts(gpu.alloc_aligned(50 * MIB, 32 * MIB, &t));
    assert_eq!(refused.needed, 82 * MIB - 512);
    assert!(refused.advice().contains("trim() gives them back"), "{refused}");
    gpu.trim(Trim::All).unwrap();
    let block = gpu.alloc_aligned(50 * MIB, 32 * MIB, &t).unwrap();
    drop((block, kept));
    // A run of another stream's that no multiple leaves enough of.
    let gpu = self::gpu(22 * MIB, config());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let kept = [gpu.alloc(MIB, &s).unwrap(), gpu.alloc(10 * MIB, &s).unwrap()];
    let run = gpu.alloc(10 * MIB, &s).unwrap();
    assert_eq!(run.address().0 % (8 * MIB), 5 * MIB, "the next multiple leaves 7 MiB");
    drop(run);
    gpu.synchronize().unwrap();
    let refused = facts(gpu.alloc_aligned(9 * MIB, 8 * MIB, &t));
    assert_eq!(
        refused.advice().replace(&s.id().to_string(), "stream S"),
        "A run of 10.0 MiB is free on stream S but does not hold this request at its alignment, for which a run may have to be 17.0 MiB long: ask for a smaller alignment, or allocate it earlier."
    );
    drop(kept);
}

/// A free range that begins at a multiple serves, also where fresh memory that holds the request wherever it begins were above the limit:
/// nothing is skipped.
#[test]
fn a_run_at_a_multiple_serves_above_the_limit() {
    let gpu = gpu(83 * MIB, Config::default().growth(Growth::Exact));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let before = gpu.alloc(62 * MIB, &s).unwrap();
    let run = gpu.alloc(20 * MIB, &s).unwrap();
    assert_eq!(run.address().0 % (64 * MIB), 0, "behind {before:?}");
    drop(run);
    drop(gpu.alloc_aligned(20 * MIB, 64 * MIB, &t).expect("the run of the other stream"));
    drop(before);
}

/// A request trimmed as many bytes as it was long, and grew by what its alignment may skip besides: it failed, with three idle segments
/// left that a trim of the program's gave back, and could not say so because a trim had been tried.
#[test]
fn a_request_trims_for_its_alignment_too() {
    let sim = Sim::new(GIB).waiting_frees(false);
    let config = Config::default().limit(Limit::Bytes(64 * MIB)).growth(Growth::Exact);
    let gpu = Allocator::new(sim, config.bounded_wait(Duration::ZERO)).unwrap();
    let s = gpu.stream().unwrap();
    let idle: Vec<_> = (0..12).map(|_| gpu.alloc(5 * MIB, &s).unwrap()).collect();
    drop(idle);
    gpu.synchronize().unwrap();
    // A run of 36 MiB holds it wherever that begins.
    let block =
        gpu.alloc_aligned(5 * MIB + KIB, 32 * MIB, &s).expect("as many idle segments as it takes go back");
    assert_eq!(block.address().0 % (32 * MIB), 0);
}

/// What is done with the stream that captures then, and another one, before; and what of it stays.
type Prepare = fn(&Allocator<Sim>, &Stream<Sim>, &Stream<Sim>) -> Vec<Allocation<Sim>>;

/// Memory of a stream that captures comes back when the capture ends, and the advice is not to wait for that stream, which would destroy it;
/// neither for a range that is free there, nor for what it used, nor for a trim of what is free.
#[test]
fn a_capture_is_to_be_ended_and_not_waited_for() {
    let captured = |prepare: Prepare| {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let config = Config::default().limit(Limit::Bytes(64 * MIB)).growth(Growth::Exact);
        let gpu = Allocator::new(sim.clone(), config).unwrap();
        let native = sim.stream().unwrap();
        let (c, s) = (gpu.adopt(native.clone()).unwrap(), gpu.stream().unwrap());
        let kept = prepare(&gpu, &c, &s);
        sim.begin_capture(&native).unwrap();
        let refused = facts(gpu.alloc(50 * MIB, &s));
        let advice = refused.advice();
        let named = format!("end the capture on {}", c.id());
        assert!(advice.contains(&named), "{advice}");
        assert_not_advised(
            &refused,
            &["wait for that stream", "synchronise them", "and then the request fits"],
        );
        assert_eq!(refused.passed_over_on, [(c.id(), DriverErrorKind::Capturing)]);
        sim.end_capture(&native).expect("it lives");
        let x = gpu.alloc(50 * MIB, &s).expect("as was said");
        rig::write(&sim, &x, &s);
        drop((x, kept));
        sim.run_until_idle();
        sim.verdict().unwrap();
    };
    captured(|gpu, c, _| {
        drop(gpu.alloc(62 * MIB, c).unwrap());
        vec![gpu.alloc(MIB, c).unwrap()]
    });
    captured(|gpu, c, s| {
        let x = gpu.alloc(62 * MIB, s).unwrap();
        x.record_use(c).unwrap();
        Vec::new()
    });
}

/// Segments that lie in flight go back in a trim when their users have ended their work: where that makes room it is what is advised, and
/// not to free what is alive.
#[test]
fn what_is_in_flight_makes_room_behind_a_trim() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let config = Config::default().growth(Growth::Exact).limit(Limit::Bytes(64 * MIB));
    let gpu = Allocator::new(sim.clone(), config.bounded_wait(Duration::ZERO)).unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc_named(2 * MIB, "x", &s).unwrap();
    let a = gpu.alloc(60 * MIB, &s).unwrap();
    a.record_use(&t).unwrap();
    rig::write(&sim, &a, &t);
    drop(a);
    let refused = facts(gpu.alloc(61 * MIB, &s));
    assert_not_advised(&refused, &["free something", "raise bounded_wait"]);
    let advice = refused.advice();
    assert!(advice.contains("synchronise") && advice.contains("trim()"), "{advice}");
    t.synchronize().unwrap();
    s.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    drop(gpu.alloc(61 * MIB, &s).expect("as was said"));
    // In pieces that are too short, in one segment with what is alive, neither brings anything.
    let gpu = Allocator::new(
        sim.clone(),
        Config::default().limit(Limit::Bytes(20 * MIB)).bounded_wait(Duration::ZERO),
    )
    .unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let blocks: Vec<_> = (0..20).map(|_| gpu.alloc(MIB, &s).unwrap()).collect();
    let mut kept = Vec::new();
    for (n, block) in blocks.into_iter().enumerate() {
        if n % 2 == 0 {
            kept.push(block);
        } else {
            block.record_use(&t).unwrap();
            rig::write(&sim, &block, &t);
        }
    }
    let refused = facts(gpu.alloc(5 * MIB, &s));
    assert_not_advised(&refused, &["synchronise", "trim"]);
    drop((x, kept));
}

/// Pinned memory is of two kinds, and what is free of the one does not serve the other.
#[test]
fn pinned_memory_of_the_other_kind_is_reported() {
    let config = Config::default().pinned_limit(64 * MIB).bounded_wait(Duration::from_millis(5));
    let gpu = Allocator::new(Sim::new(GIB), config).unwrap();
    let (a, b) = (gpu.alloc_pinned(60 * MIB).unwrap(), gpu.alloc_pinned(MIB).unwrap());
    drop(a);
    let refused = facts(gpu.alloc_pinned_as(8 * MIB, HostKind::WriteCombined));
    assert_eq!((refused.free_of_other_kind, refused.trim_would_free), (63 * MIB, 0));
    assert_eq!(
        refused.advice(),
        "63.0 MiB are free in pinned memory of the other kind (cached, write-combined), which does not serve this one: free what is alive in the same segments, and trim() gives them back."
    );
    drop(b);
    // Nothing is alive: a trim brings it, which is said before all.
    let refused = facts(gpu.alloc_pinned_as(8 * MIB, HostKind::WriteCombined));
    assert!(refused.advice().contains("and then the request fits"), "{refused}");
    gpu.trim(Trim::All).unwrap();
    drop(gpu.alloc_pinned_as(8 * MIB, HostKind::WriteCombined).expect("as was said"));
}
