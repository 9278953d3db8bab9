//! Order: of batches, and of the device's work on their slots; and overlap, under the simulated device's rates.

use crate::{clean, foreign, late, on, words};
use millpond::units::{GIB, MIB};
use millpond_feed::{Feeder, Filled, Split};
use millpond_sim::{Call, Launch, Schedule, Sim};
use std::sync::mpsc;
use std::time::Duration;

/// Batch 0 is filled after batch 1, on another thread, and comes first.
#[test]
fn batches_come_in_the_sources_order() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let (done, other_is_done) = mpsc::channel::<()>();
    let (mut done, mut other_is_done) = (Some(done), Some(other_is_done));
    let batches = (0..8_u64).map(move |i| {
        let (done, other) = match i {
            0 => (None, other_is_done.take()),
            1 => (done.take(), None),
            _ => (None, None),
        };
        Filled::<(u64,)>::new((64.into(),), move |(words,)| {
            if let Some(other) = other {
                // The sender is dropped when the other is filled.
                assert!(other.recv().is_err());
            }
            words.fill(i);
            drop(done);
            Ok(())
        })
    });
    let feeder = Feeder::builder(&gpu).fillers(2).depth(4).start(batches).unwrap();
    for (i, batch) in (0..).zip(feeder.on(&work)) {
        let batch = batch.unwrap();
        assert_eq!((batch.number(), batch.views().0.to_vec(&work).unwrap()), (i, vec![i; 64]));
    }
    drop((feeder, work, gpu));
    clean(&sim);
}

/// Kernels of other code read the batches by their addresses, some on a second stream: every slot is copied to only behind them. Each wait
/// between streams was needed.
#[test]
fn other_codes_kernels_are_waited_for() {
    for schedule in [Schedule::Latest, Schedule::Earliest, Schedule::Random(7)] {
        for fillers in [0, 2] {
            let (sim, gpu) = on(Sim::new(GIB).schedule(schedule));
            let (work, aside) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let feeder = Feeder::builder(&gpu)
                .fillers(fillers)
                .depth(2)
                .start((0..40).map(|i| words(512, i)))
                .unwrap();
            for (i, batch) in (0..).zip(feeder.on(&work)) {
                let mut batch = batch.unwrap();
                foreign(&sim, &batch.views().0, i, &work);
                if i % 3 == 0 {
                    batch.record_use(&aside).unwrap();
                    foreign(&sim, &batch.views().0, i, &aside);
                }
            }
            drop((feeder, work, aside, gpu));
            clean(&sim);
            let tally = sim.tally();
            // With threads a slot may come back before one that was taken later, whose wait covers it.
            let needless = (tally.waits_implied, tally.waits_beyond_need);
            assert!(needless == (0, 0) || fillers > 0, "{tally:?}");
        }
    }
}

/// How long steps take that copy so many bytes and compute as long as is said, with so many batches ahead; no contents.
fn makespan(depth: usize, bytes: u64, compute: Duration, steps: u64) -> Duration {
    let (sim, gpu) = on(Sim::new(16 * GIB).contents(false));
    let work = gpu.stream().unwrap();
    let elements = (bytes / 8) as usize;
    let batches = move |steps| (0..steps).map(move |_| Filled::<(u64,)>::new((elements.into(),), |_| Ok(())));
    // Memory is taken once, before the clock starts.
    let feeder = Feeder::builder(&gpu).fillers(0).depth(depth).start(batches(8)).unwrap();
    for batch in feeder.on(&work) {
        drop(batch.unwrap());
    }
    gpu.synchronize().unwrap();
    feeder.restart(batches(steps)).unwrap();
    let start = sim.makespan();
    for batch in feeder.on(&work) {
        let batch = batch.unwrap();
        let view = batch.views().0;
        let kernel = Launch::new("train").reads(view.address(), view.size_bytes());
        sim.launch(work.native(), kernel.takes(compute.as_nanos() as u64)).unwrap();
    }
    let end = sim.makespan();
    drop((feeder, work, gpu));
    clean(&sim);
    end.saturating_sub(start)
}

/// What 16 MiB take over the bus, in seconds.
const COPY: f64 = 302.3e-6;

/// How long steps take that each copy 16 MiB and compute so long, fed; and what they may take: the longer of the two for each, and what has nothing
/// beside it at the begin and the end. 10 microseconds a step are calls.
fn fed(depth: usize, compute: f64) -> (f64, f64) {
    let steps = 64;
    let time = makespan(depth, 16 * MIB, Duration::from_secs_f64(compute), steps);
    (time.as_secs_f64(), f64::max(COPY, compute) * steps as f64 + COPY + compute + 10e-6 * steps as f64)
}

#[test]
fn s01_copies_hide_behind_the_computation() {
    let (time, bound) = fed(2, 900e-6);
    assert!(time < bound, "{time} s, above {bound} s");
}

#[test]
fn h03_the_next_batch_travels_while_this_one_trains() {
    for compute in [100e-6, COPY] {
        let (time, bound) = fed(3, compute);
        assert!(time < bound, "{time} s for steps of {compute} s, above {bound} s");
    }
}

/// With one batch ahead, as the issue has it.
#[test]
fn g01_one_batch_ahead_is_enough() {
    let (time, bound) = fed(1, 600e-6);
    assert!(time < bound, "{time} s, above {bound} s");
}

/// The same, one after the other: it takes the sum, half as long again as fed.
#[test]
fn g02_in_turn_the_device_is_idle() {
    let (sim, gpu) = on(Sim::new(16 * GIB).contents(false));
    let work = gpu.stream().unwrap();
    let mut host = gpu.pinned_uninit::<u64>((2 * MIB) as usize).unwrap();
    let mut x = gpu.uninit::<u64>((2 * MIB) as usize, &work).unwrap();
    let start = sim.makespan();
    for _ in 0..64 {
        host = x.copy_from(host, &work).unwrap().wait().unwrap();
        let kernel = Launch::new("train").reads(x.address(), x.size_bytes());
        sim.launch(work.native(), kernel.takes(600_000)).unwrap();
        work.synchronize().unwrap();
    }
    let in_turn = sim.makespan().saturating_sub(start).as_secs_f64();
    assert!(in_turn > 64.0 * (COPY + 600e-6), "{in_turn} s");
    assert!(in_turn > 1.4 * fed(1, 600e-6).0);
    drop((host, x, work, gpu));
    clean(&sim);
}

/// Slots are used first in, first out, as many as there are batches ahead and with the program.
#[test]
fn h06_slots_are_used_in_turn() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let feeder = Feeder::builder(&gpu).fillers(0).depth(2).start((0..30).map(|i| words(64, i))).unwrap();
    let mut held = feeder.next(&work).unwrap().unwrap();
    let mut slots = vec![held.views().0.address()];
    for batch in feeder.on(&work) {
        // One is in use while the next is asked for.
        held = batch.unwrap();
        slots.push(held.views().0.address());
    }
    let distinct: std::collections::BTreeSet<_> = slots.iter().collect();
    assert_eq!(distinct.len(), 2 + 2, "two ahead, one in use, one that was delivered beside it: {slots:?}");
    assert!(slots.iter().zip(&slots[4..]).all(|(a, b)| a == b), "{slots:?}");
    drop((feeder, held, work, gpu));
    clean(&sim);
}

/// H5: steps synchronise neither the device nor a stream, whatever the feeder waits for; with a host that waits for every step too.
#[test]
fn h05_no_step_synchronises_the_device() {
    for fillers in [0, 2] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let feeder = Feeder::builder(&gpu).fillers(fillers).start((0..50).map(|i| words(100, i))).unwrap();
        for (i, batch) in (0..).zip(feeder.on(&work)) {
            foreign(&sim, &batch.unwrap().views().0, i, &work);
        }
        let calls = |call| sim.ledger().calls_of(call);
        assert_eq!((calls(Call::CtxSynchronize), calls(Call::StreamSynchronize)), (0, 0));
        drop((feeder, work, gpu));
        clean(&sim);
    }
}

/// D5, H7: with sizes that vary, after the first epoch no stream, memory or thread's synchronise comes any more; and never any of the device.
#[test]
fn h07_sizes_vary_and_nothing_grows_or_synchronises() {
    for fillers in [0, 2] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let sizes = |epoch: u64| (0..50).map(move |i| words(1 + 80 * ((i * 7 + epoch) % 50) as usize, i));
        let feeder = Feeder::builder(&gpu).fillers(fillers).start(sizes(0)).unwrap();
        let grows =
            [Call::StreamCreate, Call::MemAlloc, Call::MemHostAlloc, Call::MemHostRegister, Call::MemFree];
        let calls = |calls: &[Call]| calls.iter().map(|&c| sim.ledger().calls_of(c)).sum::<u64>();
        let mut warm = None;
        for epoch in 0..20 {
            if epoch > 0 {
                feeder.restart(sizes(epoch)).unwrap();
            }
            for (i, batch) in (0..).zip(feeder.on(&work)) {
                let batch = batch.unwrap();
                foreign(&sim, &batch.views().0, i, &work);
            }
            if epoch == 1 {
                warm = Some((calls(&grows), feeder.slot_bytes().1));
            }
        }
        let (made, bytes) = (calls(&grows), feeder.slot_bytes().1);
        // Three are ahead, one is in use, and as many as are ahead are pinned, each as large as the largest batch. With threads it takes its
        // time until all of them were wanted at once.
        assert!(bytes <= 7 * 31_744, "{bytes} bytes");
        assert!(
            fillers > 0 || Some((made, bytes)) == warm,
            "{made} calls, {bytes} bytes, {warm:?} after two epochs"
        );
        assert!(made <= 10, "{made} calls");
        assert_eq!(calls(&[Call::CtxSynchronize, Call::StreamSynchronize]), 0);
        assert_eq!(feeder.stats().batches, 1000);
        drop((feeder, work, gpu));
        clean(&sim);
    }
}

/// Several consumers share the batches of one feeder: each batch comes once. Without filler threads they fill for each other.
#[test]
fn several_consumers() {
    for fillers in [0, 2] {
        share(fillers);
    }
}

fn share(fillers: usize) {
    let (sim, gpu) = late();
    let feeder = Feeder::builder(&gpu).fillers(fillers).start((0..60).map(|i| words(100, i))).unwrap();
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let (feeder, gpu) = (feeder.clone(), gpu.clone());
                scope.spawn(move || {
                    let work = gpu.stream().unwrap();
                    let of = |batch: millpond_feed::FedBatch<Filled<(u64,)>, Sim>| {
                        let found = batch.views().0.to_vec(&work).unwrap();
                        assert_eq!(found, vec![batch.number(); 100]);
                        batch.number()
                    };
                    feeder.on(&work).map(|batch| of(batch.unwrap())).collect::<Vec<_>>()
                })
            })
            .collect();
        consumers.into_iter().flat_map(|c| c.join().unwrap()).collect()
    });
    all.sort_unstable();
    assert_eq!(all, (0..60).collect::<Vec<_>>());
    drop((feeder, gpu));
    clean(&sim);
}

/// One source for two devices: each gets every second batch, with threads and without.
#[test]
fn a_source_for_two_devices() {
    for fillers in [0, 2] {
        let sims = Sim::devices(2, GIB);
        let gpus: Vec<_> = sims.iter().map(|sim| on(sim.clone()).1).collect();
        let parts: [_; 2] = Split::new((0..21).map(|i| words(64, i)));
        let feeders: Vec<_> = gpus
            .iter()
            .zip(parts)
            .map(|(gpu, part)| Feeder::builder(gpu).fillers(fillers).start(part).unwrap())
            .collect();
        let streams: Vec<_> = gpus.iter().map(|gpu| gpu.stream().unwrap()).collect();
        let mut found = [Vec::new(), Vec::new()];
        // The devices are not in step.
        for device in [0, 0, 0, 1, 0, 1, 1].into_iter().cycle().take(70) {
            if let Some(batch) = feeders[device].next(&streams[device]) {
                found[device].push(batch.unwrap().views().0.to_vec(&streams[device]).unwrap()[0]);
            }
        }
        assert_eq!(found[0], (0..21).step_by(2).collect::<Vec<_>>());
        assert_eq!(found[1], (1..21).step_by(2).collect::<Vec<_>>());
        drop((feeders, streams, gpus));
        clean(&sims[0]);
        clean(&sims[1]);
    }
}

/// G5: a batch is taken on one thread, used on another and dropped on a third; nothing depends on the thread.
#[test]
fn a_batch_moves_from_thread_to_thread() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let feeder = Feeder::builder(&gpu).fillers(2).depth(1).start((0..30).map(|i| words(64, i))).unwrap();
    let (used, to_drop) = mpsc::channel();
    let (taken, to_use) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for batch in feeder.on(&work) {
                taken.send(batch.unwrap()).unwrap();
            }
            drop(taken);
        });
        scope.spawn(|| {
            for batch in to_use {
                foreign(&sim, &batch.views().0, batch.number(), &work);
                used.send(batch).unwrap();
            }
            drop(used);
        });
        scope.spawn(|| assert_eq!(to_drop.into_iter().map(|batch| batch.number()).sum::<u64>(), 29 * 15));
    });
    drop((feeder, work, gpu));
    clean(&sim);
}
