//! Every driver call may fail: the feeder goes on or says why, nothing leaks, nothing breaks order.

use crate::{foreign, on, words};
use millpond::DriverErrorKind as Kind;
use millpond::units::GIB;
use millpond_feed::{FeedError, Feeder};
use millpond_sim::{Call, Schedule, Sim};

/// Two epochs of batches of varying size, read by other code's kernels, under a fault or none. Which batches came, and how many errors.
fn play(sim: &Sim, fillers: usize, plant: impl FnOnce(&Sim)) -> (Vec<u64>, u64) {
    let gpu = match millpond::Allocator::new(sim.clone(), millpond::Config::default()) {
        Ok(gpu) => gpu,
        Err(e) => panic!("nothing is planted yet: {e}"),
    };
    let (work, aside) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    plant(sim);
    let source = |epoch: u64| (0..12).map(move |i| words(64 + ((i * 37 + epoch) % 200) as usize, i));
    // Asked again, it starts.
    let start = || Feeder::builder(&gpu).fillers(fillers).depth(2).budget(16_384).start(source(0));
    let (mut came, mut errors) = (Vec::new(), 0);
    let feeder = start().or_else(|_| {
        errors += 1;
        start()
    });
    if let Ok(feeder) = feeder {
        for epoch in 0..2 {
            if epoch > 0 {
                feeder.restart(source(epoch)).unwrap();
            }
            while let Some(batch) = feeder.next(&work) {
                match batch {
                    Ok(mut batch) => {
                        let (word, view) = (batch.number(), batch.views().0);
                        // A launch is a driver call, too: one that fails reads nothing.
                        let read =
                            millpond_sim::Launch::check_pattern(view.address(), view.size_bytes(), word);
                        errors += u64::from(sim.launch(work.native(), read).is_err());
                        if word % 4 == 1 {
                            match batch.record_use(&aside) {
                                Ok(()) => foreign_or_error(sim, &batch, &aside, &mut errors),
                                Err(_) => errors += 1,
                            }
                        }
                        came.push(batch.number());
                    }
                    Err(FeedError::Held { .. } | FeedError::TooLarge { .. }) => panic!("{batch:?}"),
                    Err(_) => errors += 1,
                }
            }
        }
    }
    drop((work, aside, gpu));
    (came, errors)
}

fn foreign_or_error(
    sim: &Sim,
    batch: &millpond_feed::FedBatch<millpond_feed::Filled<(u64,)>, Sim>,
    on: &millpond::Stream<Sim>,
    errors: &mut u64,
) {
    let view = batch.views().0;
    let read = millpond_sim::Launch::check_pattern(view.address(), view.size_bytes(), batch.number());
    *errors += u64::from(sim.launch(on.native(), read).is_err());
}

fn device(schedule: Schedule) -> Sim {
    Sim::new(GIB).schedule(schedule)
}

#[track_caller]
fn judged(sim: &Sim, story: &str) {
    sim.clear_faults();
    sim.run_until_idle();
    sim.verdict().unwrap_or_else(|v| panic!("{story}: {v}"));
    assert!(sim.leaks().is_empty(), "{story}: {:?}", sim.leaks());
}

#[test]
fn every_call_fails_once_with_every_kind() {
    let sim = device(Schedule::Latest);
    let mut before = 0;
    let (came, errors) = play(&sim, 0, |sim| before = sim.call_count());
    assert_eq!((came.len(), errors), (24, 0));
    let calls = sim.call_count();
    judged(&sim, "the good run");
    assert!(calls - before > 100, "{calls} calls, {before} before");
    let kinds = [Kind::OutOfMemory, Kind::InvalidValue, Kind::InvalidHandle, Kind::NotSupported, Kind::Other];
    let (mut failed, mut runs) = (0, 0);
    for (n, number) in (before + 1..=calls).enumerate() {
        let kind = kinds[n % kinds.len()];
        let sim = device(Schedule::Latest);
        let (came, errors) = play(&sim, 0, |sim| sim.fail_call(number, kind));
        let story = format!("call {number} fails with {kind:?}");
        // One failure costs one batch at most.
        assert!(came.len() + 1 >= 24, "{story}: {} batches, {errors} errors", came.len());
        assert!(errors <= 2, "{story}: {errors} errors");
        failed += u64::from(errors > 0);
        runs += 1;
        judged(&sim, &story);
    }
    assert!(failed * 4 > runs, "{failed} of {runs} faults were seen");
}

/// The same with threads, where the number of a call says little: each kind of call fails at its first, second … fifth time.
#[test]
fn with_threads_each_kind_of_call_fails() {
    for &call in Call::ALL {
        if [Call::StreamDestroy, Call::EventDestroy, Call::ExchangeCaptureMode].contains(&call) {
            continue;
        }
        for nth in 1..=5 {
            let sim = device(Schedule::Latest);
            let (came, errors) = play(&sim, 2, |sim| sim.fail(call, nth, Kind::Other));
            let story = format!("{call:?} {nth} fails");
            assert!(came.len() + 1 >= 24 && errors <= 2, "{story}: {} batches, {errors} errors", came.len());
            judged(&sim, &story);
        }
    }
}

/// A driver that panics behind a call.
#[test]
fn a_driver_that_panics() {
    for call in
        [Call::MemAlloc, Call::MemHostAlloc, Call::EventRecord, Call::StreamWaitEvent, Call::MemcpyHtoD]
    {
        for nth in 1..=4 {
            let sim = device(Schedule::Latest);
            let gpu = on(sim.clone()).1;
            let work = gpu.stream().unwrap();
            let feeder = Feeder::builder(&gpu).fillers(0).start((0..20).map(|i| words(64, i))).unwrap();
            sim.panic_behind(call, nth);
            let mut n = 0;
            loop {
                let next = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| feeder.next(&work)));
                match next {
                    Ok(None) => break,
                    Ok(Some(Ok(batch))) => foreign(&sim, &batch.views().0, batch.number(), &work),
                    // The panic of a call that the consumer's own stream made.
                    Err(_) | Ok(Some(Err(FeedError::Panicked { .. }))) => {}
                    Ok(Some(Err(e))) => panic!("{e}"),
                }
                n += 1;
                assert!(n < 30, "{call:?} {nth}: no end");
            }
            drop((feeder, work, gpu));
            sim.clear_faults();
            sim.run_until_idle();
            sim.verdict().unwrap_or_else(|v| panic!("{call:?} {nth}: {v}"));
        }
    }
}

/// The context is lost at any call: an error says so, then comes the end, at once.
#[test]
fn a_lost_context_ends_the_epoch() {
    let sim = device(Schedule::Latest);
    let mut before = 0;
    play(&sim, 0, |sim| before = sim.call_count());
    for fillers in [0, 2] {
        for number in (before + 1..sim.call_count()).step_by(3) {
            let sim = device(Schedule::Latest);
            let gpu = on(sim.clone()).1;
            let work = gpu.stream().unwrap();
            let start = Feeder::builder(&gpu).fillers(fillers).start((0..40).map(|i| words(64, i)));
            sim.fail_call(number, Kind::ContextLost);
            let Ok(feeder) = start else { continue };
            let mut lost = 0;
            while let Some(batch) = feeder.next(&work) {
                lost += u64::from(batch.is_err_and(|e| e.is_context_lost()));
            }
            assert!(lost <= 1, "{lost} times");
            drop((feeder, work, gpu));
        }
    }
}
