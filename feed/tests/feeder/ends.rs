//! How feeders end: early, in the middle of everything, with a source that does not answer, before their batches.

use crate::{clean, foreign, late, words};
use millpond_feed::{Feeder, Filled};
use std::sync::mpsc;

/// Dropped after any number of batches, with some held: threads end, nothing leaks, nothing in flight was used again.
#[test]
fn an_early_drop_is_clean() {
    for fillers in [0, 1, 3] {
        for taken in [0, 1, 2, 7] {
            let (sim, gpu) = late();
            let work = gpu.stream().unwrap();
            let feeder =
                Feeder::builder(&gpu).fillers(fillers).start((0..100).map(|i| words(512, i))).unwrap();
            let mut held = Vec::new();
            for (i, batch) in (0..).zip(feeder.on(&work)).take(taken) {
                let batch = batch.unwrap();
                foreign(&sim, &batch.views().0, i, &work);
                if i % 2 == 0 {
                    held.push((i, batch));
                }
            }
            drop(feeder);
            // They outlive it; what comes meanwhile on other streams must not touch them.
            let other = gpu.stream().unwrap();
            let mut x = gpu.zeros::<u64>(4096, &other).unwrap();
            x.fill_bytes(0xFF, &other).unwrap();
            for (i, batch) in held {
                foreign(&sim, &batch.views().0, i, &work);
                assert_eq!(batch.views().0.to_vec(&work).unwrap()[511], i);
            }
            drop((x, other, work, gpu));
            clean(&sim);
        }
    }
}

/// The feeder ends while a thread is inside the source, which does not answer: nobody waits for it, and nothing of the device is with it.
#[test]
fn an_end_does_not_wait_for_the_source() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let (to, from) = mpsc::channel();
    let feeder = Feeder::builder(&gpu).fillers(2).start(from).unwrap();
    for i in 0..3 {
        to.send(words(64, i)).unwrap();
        drop(feeder.next(&work).unwrap().unwrap());
    }
    drop((feeder, work, gpu));
    // The sender lives, so a thread is in `recv` or about to be.
    clean(&sim);
    // It takes what wakes it, and ends with its receiver.
    while to.send(words(64, 9)).is_ok() {
        std::thread::yield_now();
    }
}

/// A restart in the middle: the rest of the epoch is dropped, and a consumer that waits for it gets the end.
#[test]
fn a_restart_in_the_middle_begins_anew() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let (to, from) = mpsc::channel();
    let boxed = |source: Box<dyn Iterator<Item = Filled<(u64,)>> + Send>| source;
    let feeder = Feeder::builder(&gpu).fillers(2).start(boxed(Box::new(from.into_iter()))).unwrap();
    to.send(words(64, 5)).unwrap();
    drop(feeder.next(&work).unwrap().unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let own = gpu.stream().unwrap();
            feeder.next(&own).map(|batch| batch.unwrap().number())
        });
        // Whether it waits already or not, it gets nothing of a source that gives nothing, and may get the first of the next.
        feeder.restart(boxed(Box::new((0..10).map(|i| words(64, i))))).unwrap();
        let first = waiting.join().unwrap();
        assert!(first.is_none() || first == Some(0), "{first:?}");
        let rest: Vec<u64> = feeder.on(&work).map(|b| b.unwrap().number()).collect();
        assert_eq!(rest, (first.map_or(0, |_| 1)..10).collect::<Vec<_>>());
    });
    for _ in 0..5 {
        feeder.restart(boxed(Box::new((0..1000).map(|i| words(64, i))))).unwrap();
        assert_eq!(feeder.next(&work).unwrap().unwrap().views().0.to_vec(&work).unwrap(), [0; 64]);
    }
    drop((to, feeder, work, gpu));
    clean(&sim);
}

/// Everything ends in another order: stream, allocator, feeder, batch.
#[test]
fn handles_may_go_in_any_order() {
    for order in 0..4 {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let feeder = Feeder::builder(&gpu).fillers(1).start((0..20).map(|i| words(64, i))).unwrap();
        drop(feeder.next(&work).unwrap().unwrap());
        let batch = feeder.next(&work).unwrap().unwrap();
        foreign(&sim, &batch.views().0, 1, &work);
        match order {
            0 => drop((work, gpu, feeder, batch)),
            1 => drop((batch, gpu, work, feeder)),
            2 => drop((gpu, feeder, work, batch)),
            _ => drop((feeder, batch, gpu, work)),
        }
        clean(&sim);
    }
}
