//! Planted bugs: each must be found by a program that is right without it. What these programs check besides is in `tests/feeder`.

mod random;

use crate::planted::{Bug, planting};
use crate::{Drain, FedBatch, FeedError, Feeder, Filled};
use millpond::units::GIB;
use millpond::{Allocator, Config, Stream};
use millpond_sim::{Launch, Schedule, Sim};
use std::sync::mpsc;

/// A program's answer: what is wrong.
type Found = Result<(), String>;

fn device() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default()).expect("nothing fails here");
    (sim, gpu)
}

fn words(n: usize, word: u64) -> Filled<(u64,)> {
    Filled::<(u64,)>::new((n.into(),), move |(words,)| {
        words.fill(word);
        Ok(())
    })
}

/// A kernel of other code reads the batch.
fn read(sim: &Sim, batch: &FedBatch<Filled<(u64,)>, Sim>, on: &Stream<Sim>) {
    let view = batch.views().0;
    let kernel = Launch::check_pattern(view.address(), view.size_bytes(), batch.number());
    sim.launch(on.native(), kernel).expect("nothing fails here");
}

fn judged(sim: &Sim) -> Found {
    sim.run_until_idle();
    sim.verdict().map(drop).map_err(|v| v.to_string())
}

/// Kernels of other code on batches, with a second stream or without.
fn foreign_kernels(second: bool) -> Found {
    let (sim, gpu) = device();
    let (work, aside) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let batches = (0..12).map(|i| words(256, i));
    let feeder = Feeder::builder(&gpu).fillers(0).depth(2).start(batches).expect("it starts");
    for batch in feeder.on(&work) {
        let mut batch = batch.map_err(|e| e.to_string())?;
        read(&sim, &batch, &work);
        if second {
            batch.record_use(&aside).map_err(|e| e.to_string())?;
            read(&sim, &batch, &aside);
        }
    }
    drop((feeder, work, aside, gpu));
    judged(&sim)
}

/// Batches of sizes that hardly fit.
fn tight_budget() -> Found {
    let (sim, gpu) = device();
    let work = gpu.stream().expect("a stream");
    let budget = 8 * 512;
    let batches = (0..40).map(|i| words(1 + (i as usize * 37) % 128, i));
    let feeder = Feeder::builder(&gpu).fillers(0).depth(4).budget(budget).start(batches).expect("it starts");
    for batch in feeder.on(&work) {
        match batch {
            Ok(_) | Err(FeedError::TooLarge { .. }) => {}
            Err(e) => return Err(e.to_string()),
        }
        let (now, peak) = feeder.slot_bytes();
        if now > budget || peak > budget {
            return Err(format!("{now} bytes now, {peak} at most, of {budget}"));
        }
    }
    drop((feeder, work, gpu));
    judged(&sim)
}

/// The first batch is filled after the second.
fn late_first_batch() -> Found {
    let (sim, gpu) = device();
    let work = gpu.stream().expect("a stream");
    let (done, second_is_queued) = mpsc::channel::<()>();
    let mut second_is_queued = Some(second_is_queued);
    let batches = (0..2_u64).map(move |i| {
        let wait = second_is_queued.take();
        Filled::<(u64,)>::new((8.into(),), move |(words,)| {
            if let Some(wait) = wait {
                wait.recv()?;
            }
            words.fill(i);
            Ok(())
        })
    });
    let feeder = Feeder::builder(&gpu).fillers(2).start(batches).expect("it starts");
    // The second is filled; the first may be now.
    while feeder.filled() == 0 {
        std::thread::yield_now();
    }
    done.send(()).map_err(|e| e.to_string())?;
    let order: Vec<u64> = feeder.on(&work).map(|b| b.map_or(u64::MAX, |b| b.number())).collect();
    drop((feeder, work, gpu));
    judged(&sim)?;
    if order == [0, 1] { Ok(()) } else { Err(format!("batches came as {order:?}")) }
}

/// Kernels of other code make results that a drain takes, as fast as it may.
fn foreign_results() -> Found {
    let (sim, gpu) = device();
    let work = gpu.stream().expect("a stream");
    let (to, results) = mpsc::channel();
    let drain = Drain::builder(&gpu).thread(false).budget(1024);
    let drain = drain.start(move |r| to.send(r[63])).expect("it starts");
    for i in 0..10 {
        let x = gpu.uninit::<u64>(64, &work).expect("there is memory");
        sim.launch(work.native(), Launch::write_pattern(x.address(), 512, i)).expect("nothing fails here");
        drain.push(&x, &work).map_err(|e| e.to_string())?;
    }
    let peak = drain.finish().map_err(|e| e.to_string())?.bytes_peak;
    drop((work, gpu));
    judged(&sim)?;
    let found: Vec<u64> = results.iter().collect();
    if found == (0..10).collect::<Vec<_>>() && peak <= 1024 {
        return Ok(());
    }
    Err(format!("{peak} bytes at most, {found:?}"))
}

/// Each program, and the bugs that it must find.
#[test]
fn each_planted_bug_is_found() {
    type Program = fn() -> Found;
    let programs: [(Program, &[Bug]); 5] = [
        (|| foreign_kernels(false), &[Bug::ConsumptionUnwaited, Bug::ArrivalUnwaited, Bug::DropUnmarked]),
        (|| foreign_kernels(true), &[Bug::ConsumptionUnwaited, Bug::DropUnmarked]),
        (tight_budget, &[Bug::BudgetIgnored]),
        (late_first_batch, &[Bug::Unordered]),
        (foreign_results, &[Bug::ResultUnwaited, Bug::BudgetIgnored]),
    ];
    for (program, bugs) in programs {
        planting(None, program).expect("the program is right");
        for &bug in bugs {
            let found = planting(Some(bug), program);
            println!("{bug:?}: {}", found.expect_err("the bug is to be found").lines().next().unwrap_or(""));
        }
    }
}
