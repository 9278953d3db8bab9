//! Drains on the simulated device: order, what is bounded, errors, ends, overlap, and every call that may fail.

mod common;

// For the code that is made there once (`millpond_testkit::compiled`).
use millpond_testkit as _;

use common::{clean, nothing_left};
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DriverErrorKind as Kind, Shape, kernel};
use millpond_feed::{Drain, DrainError, Drained, Stage};
use millpond_sim::{Call, Launch, Schedule, Sim};
use std::convert::Infallible;
use std::sync::mpsc;

fn on(sim: Sim) -> (Sim, Allocator<Sim>) {
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    (sim, gpu)
}

fn late() -> (Sim, Allocator<Sim>) {
    on(Sim::new(4 * GIB).schedule(Schedule::Latest))
}

/// Results come in order and whole, of any size and shape, with a thread and without; the array is written again at once, and dropped at once.
#[test]
fn results_come_in_order_and_whole() {
    for thread in [false, true] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let (to, results) = mpsc::channel();
        let sink = move |r: Drained<'_, u32>| to.send((r.number(), r.shape(), r.to_vec()));
        let drain = Drain::builder(&gpu).thread(thread).start(sink).unwrap();
        let mut kept = gpu.zeros::<u32>([4, 8], &work).unwrap();
        for i in 0..30_u32 {
            if i % 3 == 0 {
                let mut fresh = gpu.zeros::<u32>(i as usize, &work).unwrap();
                if i > 0 {
                    kernel::fill(&mut fresh, i, &work).unwrap();
                }
                drain.push(&fresh, &work).unwrap();
            } else {
                kernel::fill(&mut kept, i, &work).unwrap();
                drain.push(kept.rows(..2), &work).unwrap();
            }
        }
        drain.flush().unwrap();
        assert_eq!(drain.stats().results, 30);
        let stats = drain.finish().unwrap();
        assert_eq!(stats.bytes, (0..30).map(|i| if i % 3 == 0 { 4 * i } else { 64 }).sum::<u64>());
        for (i, (number, shape, data)) in (0..30_u32).zip(results.iter()) {
            let (expected, n) = if i % 3 == 0 { (Shape::from(i as usize), i) } else { ([2, 8].into(), 16) };
            assert_eq!((number, shape, data), (u64::from(i), expected, vec![i; n as usize]));
        }
        drop((kept, work, gpu));
        clean(&sim);
    }
}

/// Kernels of other code make the results: the copies come behind them.
#[test]
fn other_codes_results_are_waited_for() {
    for thread in [false, true] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let (to, results) = mpsc::channel();
        let drain =
            Drain::builder(&gpu).thread(thread).start(move |r: Drained<'_, u64>| to.send(r[63])).unwrap();
        for i in 0..20 {
            let x = gpu.uninit::<u64>(64, &work).unwrap();
            sim.launch(work.native(), Launch::write_pattern(x.address(), 512, i)).unwrap();
            // What `work` holds is what the copy comes behind: nothing is declared.
            drain.push(&x, &work).unwrap();
        }
        drain.finish().unwrap();
        assert_eq!(results.iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        drop((work, gpu));
        clean(&sim);
    }
}

/// Never more than the budget, never more results than the depth; a slow sink holds up the pushes, and nothing is lost.
#[test]
fn depth_and_budget_bound_what_is_on_its_way() {
    for (thread, depth, budget) in
        [(false, 2, u64::MAX), (true, 2, u64::MAX), (false, 99, 4096), (true, 99, 4096)]
    {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let (to, results) = mpsc::channel();
        let drain = Drain::builder(&gpu).depth(depth).budget(budget).thread(thread);
        let drain = drain.start(move |r: Drained<'_, u8>| to.send(r.len())).unwrap();
        let sizes: Vec<usize> = (0..50).map(|i| (i * 997) % 2000).collect();
        for &n in &sizes {
            drain.push(&gpu.zeros::<u8>(n, &work).unwrap(), &work).unwrap();
        }
        let too_large = drain.push(&gpu.zeros::<u8>(5000, &work).unwrap(), &work);
        if budget < 5000 {
            assert!(matches!(too_large, Err(DrainError::TooLarge { bytes: 5000, budget: 4096 })));
        }
        let stats = drain.finish().unwrap();
        let most = if budget == u64::MAX { 5120 + 2048 } else { budget };
        assert!(stats.bytes_peak <= most, "{stats:?}");
        assert!(thread || stats.stalls > 0, "{stats:?}");
        assert_eq!(results.iter().take(50).collect::<Vec<_>>(), sizes);
        drop((work, gpu));
        clean(&sim);
    }
}

/// An error or a panic of the sink ends the drain: what was before it got through, later pushes say so, and the end has the reason.
#[test]
fn a_sink_that_fails_ends_the_drain() {
    for thread in [false, true] {
        for panics in [false, true] {
            let (sim, gpu) = late();
            let work = gpu.stream().unwrap();
            let sink = move |r: Drained<'_, u8>| {
                if r.number() == 3 {
                    assert!(!panics, "full");
                    return Err("disk full");
                }
                Ok(())
            };
            let drain = Drain::builder(&gpu).thread(thread).start(sink).unwrap();
            let x = gpu.zeros::<u8>(8, &work).unwrap();
            let ended =
                (0..100).find_map(|_| drain.push(&x, &work).err()).expect("it does not take a hundred");
            assert!(matches!(ended, DrainError::Ended { number: 3 }), "{ended}");
            assert!(matches!(drain.flush(), Err(DrainError::Ended { number: 3 })));
            assert_eq!(drain.stats().results, 3);
            match drain.finish() {
                Err(DrainError::Sink { number: 3, error: "disk full" }) if !panics => {}
                Err(DrainError::Panicked { number: 3, stage: Stage::Sink, message }) if panics => {
                    assert_eq!(message, "full");
                }
                other => panic!("{other:?}"),
            }
            drop((x, work, gpu));
            clean(&sim);
        }
    }
}

/// Dropped early: nothing leaks, and what is in flight is not used again.
#[test]
fn an_early_drop_is_clean() {
    for thread in [false, true] {
        for pushed in [0, 1, 3] {
            let (sim, gpu) = late();
            let work = gpu.stream().unwrap();
            let sink = |_: Drained<'_, u64>| Ok::<(), Infallible>(());
            let drain = Drain::builder(&gpu).thread(thread).start(sink).unwrap();
            for i in 0..pushed {
                let mut x = gpu.zeros::<u64>(64, &work).unwrap();
                kernel::fill(&mut x, i, &work).unwrap();
                drain.push(&x, &work).unwrap();
            }
            drop(drain);
            let other = gpu.pinned_zeros::<u64>(64).unwrap();
            drop((other, work, gpu));
            clean(&sim);
        }
    }
}

/// T9: copies back run beside the computation; the stream of the results waits for none.
#[test]
fn copies_back_overlap_the_computation() {
    let (sim, gpu) = on(Sim::new(16 * GIB).contents(false));
    let work = gpu.stream().unwrap();
    let sink = |_: Drained<'_, u8>| Ok::<(), Infallible>(());
    let drain = Drain::builder(&gpu).thread(false).depth(2).start(sink).unwrap();
    let mut results = [0; 3].map(|_| gpu.uninit::<u8>(16 * MIB as usize, &work).unwrap());
    let mut run = |steps: usize| {
        let start = sim.makespan();
        for i in 0..steps {
            let x = &mut results[i % 3];
            x.wait_on(&work).unwrap();
            let kernel = Launch::new("make").writes(x.address(), x.size_bytes()).takes(400_000);
            sim.launch(work.native(), kernel).unwrap();
            drain.push(&*x, &work).unwrap();
        }
        drain.flush().unwrap();
        sim.makespan().saturating_sub(start).as_secs_f64()
    };
    run(4);
    let time = run(64);
    // 16 MiB take 302 microseconds over the bus, beside 400 of computing.
    let bound = 64.0 * 410e-6 + 303e-6;
    assert!(time < bound, "{time} s, above {bound} s");
    drop((drain, results, work, gpu));
    clean(&sim);
}

/// Every driver call fails once: a push says so and the next one works, or the drain ends with the reason; nothing leaks.
#[test]
fn every_call_fails_once() {
    let play = |sim: &Sim, plant: &dyn Fn(&Sim)| -> (u64, u64) {
        let gpu = on(sim.clone()).1;
        let work = gpu.stream().unwrap();
        let x = gpu.zeros::<u64>(64, &work).unwrap();
        plant(sim);
        let sink = |_: Drained<'_, u64>| Ok::<(), Infallible>(());
        let mut errors = 0;
        let start = || Drain::builder(&gpu).thread(false).depth(2).start(sink);
        let drain = start().or_else(|_| {
            errors += 1;
            start()
        });
        let drain = drain.unwrap();
        for _ in 0..10 {
            errors += u64::from(drain.push(&x, &work).is_err());
        }
        let stats = drain.stats();
        let ended = drain.finish();
        errors += u64::from(ended.is_err());
        (ended.map_or(stats.results, |s| s.results), errors)
    };
    let good = Sim::new(GIB).schedule(Schedule::Latest);
    let before = std::cell::Cell::new(0);
    assert_eq!(play(&good, &|sim| before.set(sim.call_count())), (10, 0));
    let calls = good.call_count();
    clean(&good);
    let mut failed = 0;
    for (n, number) in (before.get() + 1..=calls).enumerate() {
        let kind = [Kind::OutOfMemory, Kind::InvalidValue, Kind::Other][n % 3];
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let (results, errors) = play(&sim, &|sim| sim.fail_call(number, kind));
        assert!(errors > 0 || results == 10, "call {number}: {results} results, and no error");
        failed += u64::from(errors > 0);
        sim.clear_faults();
        nothing_left(&sim);
    }
    assert!(failed > 20, "{failed} faults were seen, of {calls} calls");
}

/// A million small results would need as much as ten: nothing is made anew.
#[test]
fn a_steady_drain_takes_nothing_more() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let sink = |_: Drained<'_, u8>| Ok::<(), Infallible>(());
    let drain = Drain::builder(&gpu).thread(false).start(sink).unwrap();
    let x = gpu.zeros::<u8>(3000, &work).unwrap();
    let made = || {
        [Call::MemAlloc, Call::MemHostAlloc, Call::MemHostRegister, Call::StreamCreate, Call::EventCreate]
            .map(|call| sim.ledger().calls_of(call))
    };
    let mut warm = None;
    for i in 0..2000 {
        drain.push(x.slice(..=(i % 2999)), &work).unwrap();
        if i == 200 {
            warm = Some(made());
        }
    }
    assert_eq!(Some(made()), warm);
    drop((drain, x, work, gpu));
    clean(&sim);
}
