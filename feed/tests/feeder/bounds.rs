//! What is bounded: batches ahead, bytes, and what holding a batch may hold up.

use crate::{clean, foreign, late, words};
use millpond::Trim;
use millpond_feed::{FeedError, Feeder};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// P14: however far ahead the threads might be, the source gives as many items as the depth allows and no more.
#[test]
fn the_depth_bounds_what_is_asked_of_the_source() {
    for (fillers, depth) in [(0, 1), (0, 4), (3, 1), (3, 4)] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let batches = (0..50).map(move |i| {
            count.fetch_add(1, Ordering::SeqCst);
            words(10, i)
        });
        let feeder = Feeder::builder(&gpu).fillers(fillers).depth(depth).start(batches).unwrap();
        for (taken, batch) in (1..).zip(feeder.on(&work)) {
            let ahead = asked.load(Ordering::SeqCst) - taken;
            assert!(ahead <= depth as u64, "{ahead} ahead of batch {taken}, with a depth of {depth}");
            drop(batch.unwrap());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 50);
        drop((feeder, work, gpu));
        clean(&sim);
    }
}

/// The budget is never exceeded, whatever sizes come, and however little it is: at the least it has room for the largest batch.
#[test]
fn p14_the_budget_is_never_exceeded() {
    for fillers in [0, 3] {
        for budget in [32 * 1024, 40_000, 64 * 1024, 200_000] {
            let (sim, gpu) = late();
            let work = gpu.stream().unwrap();
            let largest = 2048;
            // Up and down, one giant after many small ones, and back.
            let size = move |i: u64| if i % 11 == 10 { largest } else { 1 + (i * 797) % 1500 };
            let feeder = Feeder::builder(&gpu)
                .fillers(fillers)
                .depth(4)
                .budget(budget)
                .start((0..200).map(move |i| words(size(i) as usize, i)))
                .unwrap();
            let mut n = 0;
            for (i, batch) in (0..).zip(feeder.on(&work)) {
                let batch = batch.unwrap();
                foreign(&sim, &batch.views().0, i, &work);
                n += 1;
                assert!(feeder.slot_bytes().0 <= budget, "{:?} of {budget}", feeder.slot_bytes());
            }
            assert_eq!(n, 200);
            assert!(feeder.slot_bytes().1 <= budget, "{:?} of {budget}", feeder.slot_bytes());
            drop((feeder, work, gpu));
            clean(&sim);
        }
    }
}

/// A batch that alone exceeds the budget is an error in its place; those around it come.
#[test]
fn a_batch_above_the_budget_is_refused() {
    for fillers in [0, 2] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let sizes = [64, 64, 65, 64, usize::MAX / 4, 1];
        let batches = (0..).zip(sizes).map(|(i, n)| words(n, i));
        let feeder = Feeder::builder(&gpu).fillers(fillers).budget(1024).start(batches).unwrap();
        let found: Vec<_> = feeder
            .on(&work)
            .map(|batch| match batch {
                Ok(batch) => Ok(batch.number()),
                Err(FeedError::TooLarge { batch, bytes, budget: 1024 }) => Err((batch, bytes)),
                Err(e) => panic!("{e}"),
            })
            .collect();
        let uncountable = u64::MAX;
        assert_eq!(found, [Ok(0), Ok(1), Err((2, 520)), Ok(3), Err((4, uncountable)), Ok(5)]);
        drop((feeder, work, gpu));
        clean(&sim);
    }
}

/// A program that holds all that the budget has room for is told, where there are no threads to wait for; nothing is lost.
#[test]
fn held_batches_are_named_and_the_next_one_comes_later() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    // Three slots of 512 bytes: one pinned, two on the device.
    let feeder = Feeder::builder(&gpu).fillers(0).budget(1536).start((0..6).map(|i| words(64, i))).unwrap();
    let first = feeder.next(&work).unwrap().unwrap();
    let second = feeder.next(&work).unwrap().unwrap();
    for _ in 0..3 {
        match feeder.next(&work).unwrap() {
            Err(FeedError::Held { held: 2, held_bytes: 1024, budget: 1536 }) => {}
            other => panic!("{other:?}"),
        }
    }
    drop(first);
    let third = feeder.next(&work).unwrap().unwrap();
    assert_eq!((second.number(), third.number()), (1, 2));
    assert_eq!(third.views().0.to_vec(&work).unwrap(), [2; 64]);
    drop((second, third));
    assert_eq!(feeder.on(&work).map(|b| b.unwrap().number()).collect::<Vec<_>>(), [3, 4, 5]);
    drop((feeder, work, gpu));
    clean(&sim);
}

/// A program that holds batches beyond the depth gets more: the depth is about batches ahead.
#[test]
fn held_batches_do_not_count_as_ahead() {
    for fillers in [0, 2] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let feeder =
            Feeder::builder(&gpu).fillers(fillers).depth(1).start((0..30).map(|i| words(64, i))).unwrap();
        let all: Vec<_> = feeder.on(&work).map(Result::unwrap).collect();
        for (i, batch) in (0..).zip(&all) {
            assert_eq!(batch.views().0.to_vec(&work).unwrap(), [i; 64]);
        }
        assert_eq!(all.len(), 30);
        drop((feeder, all, work, gpu));
        clean(&sim);
    }
}

/// G3: a feeder always has batches, and a trim waits for none of them.
#[test]
fn g03_a_feeder_that_holds_batches_blocks_no_trim() {
    for fillers in [0, 2] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let feeder = Feeder::builder(&gpu).fillers(fillers).start((0..20).map(|i| words(64, i))).unwrap();
        let held = feeder.next(&work).unwrap().unwrap();
        for _ in 0..3 {
            gpu.trim(Trim::All).unwrap();
            feeder.next(&work).unwrap().unwrap();
        }
        assert_eq!(held.views().0.to_vec(&work).unwrap(), [0; 64]);
        drop((feeder, held, work, gpu));
        clean(&sim);
    }
}

/// A forgotten batch costs its slot, and nothing else.
#[test]
fn a_forgotten_batch_costs_its_slot() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let feeder = Feeder::builder(&gpu).fillers(0).depth(2).start((0..9).map(|i| words(64, i))).unwrap();
    std::mem::forget(feeder.next(&work).unwrap().unwrap());
    let rest: Vec<u64> = feeder.on(&work).map(|b| b.unwrap().views().0.to_vec(&work).unwrap()[0]).collect();
    assert_eq!(rest, [1, 2, 3, 4, 5, 6, 7, 8]);
    // Two for those ahead, one for the one in use, and the forgotten one; as many as the depth are pinned.
    assert_eq!(feeder.slot_bytes().0, (2 + 1 + 1 + 2) * 512);
    sim.run_until_idle();
    sim.verdict().unwrap();
}

/// A feeder and what the allocator keeps for it are as large after many batches and epochs as after some: `MILLPOND_SOAK_ROUNDS` batches, 20,000 by
/// default.
#[test]
fn many_small_batches_and_nothing_grows() {
    let rounds =
        std::env::var("MILLPOND_SOAK_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000_u64);
    let sim = millpond_sim::Sim::new(millpond::units::GIB).oracle(false);
    let (sim, gpu) = crate::on(sim);
    let work = gpu.stream().unwrap();
    let sizes = |epoch: u64| (0..100).map(move |i| words(1 + ((i * 13 + epoch) % 100) as usize, i));
    let feeder = Feeder::builder(&gpu).fillers(0).start(sizes(0)).unwrap();
    let kept = || {
        let ledger = sim.ledger();
        let of_device = (ledger.bytes_reserved, ledger.bytes_pinned, ledger.streams, ledger.events);
        (of_device, feeder.slot_bytes(), gpu.bookkeeping().kept)
    };
    let mut warm = None;
    for epoch in 1..=rounds / 100 {
        for (i, batch) in (0..).zip(feeder.on(&work)) {
            foreign(&sim, &batch.unwrap().views().0, i, &work);
        }
        feeder.restart(sizes(epoch)).unwrap();
        if epoch == 10 {
            warm = Some(kept());
        }
    }
    assert_eq!(Some(kept()), warm);
    drop((feeder, work, gpu));
    sim.run_until_idle();
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

/// A call with a limit gives up where a source gives nothing, and where the program holds all that the budget has room for; the batch comes later.
#[test]
fn a_wait_with_a_limit_gives_up() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let (to, from) = std::sync::mpsc::channel();
    let feeder = Feeder::builder(&gpu).fillers(2).budget(1024).start(from).unwrap();
    let none = std::time::Duration::ZERO;
    let timed_out = |held: usize| match feeder.next_within(none, &work) {
        Some(Err(FeedError::TimedOut { batch, held: h, held_bytes, budget: 1024 })) => {
            assert_eq!((h, held_bytes), (held, 512 * held as u64));
            batch
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(timed_out(0), 0);
    to.send(words(64, 0)).unwrap();
    to.send(words(64, 1)).unwrap();
    let first = feeder.next(&work).unwrap().unwrap();
    // One pinned slot and one on the device are all there may be.
    assert_eq!(timed_out(1), 1);
    drop(first);
    assert_eq!(feeder.next(&work).unwrap().unwrap().number(), 1);
    drop(to);
    assert!(feeder.next_within(std::time::Duration::MAX, &work).is_none());
    drop((feeder, work, gpu));
    clean(&sim);
}
