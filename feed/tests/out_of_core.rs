//! Datasets larger than the device, in place and mapped: values, the budget, overlap, errors, and every call that may fail.

mod common;

// For the code that is made there once (`millpond_testkit::compiled`).
use millpond_testkit as _;

use common::clean;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DriverErrorKind as Kind, Error, Limit, kernel};
use millpond_feed::{OutOfCore, OutOfCoreCause};
use millpond_sim::{Launch, Schedule, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn on(sim: Sim, limit: u64) -> (Sim, Allocator<Sim>) {
    let gpu = Allocator::new(sim.clone(), Config::default().limit(Limit::Bytes(limit))).unwrap();
    (sim, gpu)
}

fn late(limit: u64) -> (Sim, Allocator<Sim>) {
    on(Sim::new(4 * GIB).schedule(Schedule::Latest), limit)
}

/// Every element is changed once, whatever the lengths, the depth and the threads; the budget is kept.
#[test]
fn a_dataset_is_changed_in_place() {
    for (fillers, drainers) in [(0, 1), (1, 1), (3, 4)] {
        for (len, chunk, depth) in
            [(0, 10, 2), (1, 10, 2), (10, 10, 1), (1000, 10, 1), (1003, 64, 3), (5000, 900, 2)]
        {
            let (sim, gpu) = late(64 * MIB);
            let work = gpu.stream().unwrap();
            let mut data: Vec<i32> = (0..len).collect();
            let run = OutOfCore::new(&gpu).budget(100_000).depth(depth).fillers(fillers).drainers(drainers);
            let run = run.chunk(chunk);
            let mut ranges = Vec::new();
            let stats = run
                .in_place(&mut data, &work, |range, mut view| {
                    assert_eq!(view.len(), range.len());
                    let ones = gpu.array_from_slice(&vec![1; range.len()], &work)?;
                    ranges.push(range);
                    kernel::saxpy(7, &ones, &mut view, &work)
                })
                .unwrap();
            assert_eq!(data, (0..len).map(|i| i + 7).collect::<Vec<_>>());
            assert!(stats.bytes_peak <= 100_000, "{stats:?}");
            let ends: Vec<usize> = ranges.iter().flat_map(|r| [r.start, r.end]).collect();
            assert!(ends.is_sorted() && ends.last().is_none_or(|&end| end == data.len()), "{ends:?}");
            drop((work, gpu));
            clean(&sim);
        }
    }
}

/// S1: four times as much as the device may have, into another type, by kernels of other code.
#[test]
fn a_dataset_larger_than_the_device_is_mapped_to_a_new_one() {
    for fillers in [0, 2] {
        let limit = 4 * MIB;
        let (sim, gpu) = late(limit);
        let work = gpu.stream().unwrap();
        let from: Vec<u64> = (0..limit / 2).collect();
        let mut to = vec![0_u32; from.len()];
        let stats = OutOfCore::new(&gpu)
            .budget(3 * MIB)
            .fillers(fillers)
            .map(&from, &mut to, &work, |range, x, y| {
                let (from, to, n) = (x.address(), y.address(), range.len());
                let other = Launch::new("double").reads(from, x.size_bytes()).writes(to, y.size_bytes());
                let other = other.body(move |memory| {
                    let (mut read, mut written) = (vec![0; 8 * n], Vec::new());
                    memory.read(from, &mut read);
                    for word in read.as_chunks().0 {
                        written.extend_from_slice(&(2 * u64::from_le_bytes(*word) as u32).to_le_bytes());
                    }
                    memory.write(to, &written);
                });
                sim.launch(work.native(), other)
            })
            .unwrap();
        assert!(to.iter().zip(&from).all(|(&y, &x)| u64::from(y) == 2 * x));
        assert_eq!(from.len() as u64 * 8, 4 * limit);
        assert!(stats.bytes_peak <= 3 * MIB, "{stats:?}");
        assert!(sim.ledger().bytes_reserved <= limit);
        drop((work, gpu));
        clean(&sim);
    }
}

/// S1, T9: the way in, the computation and the way back at once: the longest of the three within a twentieth.
#[test]
fn all_three_run_at_once() {
    // 4 MiB take 76 microseconds over the bus, each way.
    let (chunk, chunks) = (4 * MIB, 24);
    for compute in [20_000, 76_000, 300_000] {
        let (sim, gpu) = on(Sim::new(16 * GIB).contents(false), GIB);
        let work = gpu.stream().unwrap();
        let mut data = vec![0_u8; (chunk * chunks) as usize];
        let run = OutOfCore::new(&gpu).fillers(0).depth(3).chunk(chunk as usize);
        let mut pass = || {
            let start = sim.makespan();
            run.in_place(&mut data, &work, |_, view| {
                let step = Launch::new("step").reads(view.address(), view.size_bytes());
                sim.launch(work.native(), step.writes(view.address(), view.size_bytes()).takes(compute))
            })
            .unwrap();
            sim.makespan().saturating_sub(start).as_secs_f64()
        };
        // Memory is taken once.
        pass();
        let time = pass();
        let longest = f64::max(75.6e-6, compute as f64 * 1e-9) * chunks as f64;
        assert!(time < 1.05 * longest + 0.4e-3, "{time} s, where the longest leg takes {longest}");
        drop((work, gpu));
        clean(&sim);
    }
}

/// A kernel that fails, or panics, in the middle: what came back before is written, the rest is as it was, and the error says where.
#[test]
fn a_run_that_ends_early_leaves_the_rest() {
    for fillers in [0, 2] {
        for panics in [false, true] {
            let (sim, gpu) = late(GIB);
            let work = gpu.stream().unwrap();
            let mut data = vec![1_u16; 1000];
            let run = OutOfCore::new(&gpu).fillers(fillers).chunk(100);
            let ran = catch_unwind(AssertUnwindSafe(|| {
                run.in_place(&mut data, &work, |range, mut view| {
                    assert!(!panics || range.start < 700, "no more");
                    if range.start == 700 {
                        return Err("no more");
                    }
                    view.fill_bytes(2, &work).unwrap();
                    Ok(())
                })
            }));
            let written = match ran {
                Ok(Err(e)) if !panics => {
                    assert!(
                        matches!(&e.cause, OutOfCoreCause::Kernel { range, error: "no more" } if *range == (700..800))
                    );
                    assert!(e.to_string().contains("no more") && e.written <= 700, "{e}");
                    e.written
                }
                Err(_) if panics => data.iter().take_while(|&&x| x == 0x0202).count(),
                other => panic!("{other:?}"),
            };
            assert_eq!(written % 100, 0);
            assert!(data[..written].iter().all(|&x| x == 0x0202), "what is written");
            assert!(data[written..].iter().all(|&x| x == 1), "what is not");
            drop((work, gpu));
            clean(&sim);
        }
    }
}

#[test]
fn what_cannot_run_is_refused() {
    let (sim, gpu) = late(GIB);
    let work = gpu.stream().unwrap();
    let run = OutOfCore::new(&gpu).budget(50_000).depth(2);
    let e = run.map::<u8, u8, Error>(&[1, 2], &mut [0], &work, |_, _, _| Ok(())).unwrap_err();
    assert!(matches!(e.cause, OutOfCoreCause::Length { from: 2, to: 1 }), "{e}");
    let mut data = vec![0_u64; 10_000];
    let e = run.chunk(10_000).in_place::<_, Error>(&mut data, &work, |_, _| Ok(())).unwrap_err();
    let OutOfCoreCause::Budget { budget: 50_000, least } = e.cause else { panic!("{e}") };
    // As much as it says is enough.
    let run = OutOfCore::new(&gpu).budget(least).depth(2).chunk(10_000);
    run.in_place::<_, Error>(&mut data, &work, |_, _| Ok(())).unwrap();
    drop((work, gpu));
    clean(&sim);
}

/// Every driver call fails once: the run ends with the reason, what it says is written is, and the next run is whole.
#[test]
fn every_call_fails_once() {
    let play = |number: Option<u64>, kind: Kind, (fillers, drainers): (usize, usize)| {
        let (sim, gpu) = late(GIB);
        let work = gpu.stream().unwrap();
        let before = sim.call_count();
        if let Some(number) = number {
            sim.fail_call(before + number, kind);
        }
        let mut data = vec![1_u16; 640];
        let run = OutOfCore::new(&gpu).fillers(fillers).drainers(drainers).chunk(100);
        let pass = |data: &mut Vec<u16>, byte: u8| {
            run.in_place(data, &work, |_, mut view| view.fill_bytes(byte, &work))
        };
        let first = pass(&mut data, 2);
        let written = match &first {
            Ok(_) => 640,
            Err(e) => e.written,
        };
        assert!(data[..written].iter().all(|&x| x == 0x0202), "call {number:?}: {first:?}");
        assert!(data[written..].iter().all(|&x| x == 1), "call {number:?}: {first:?}");
        let calls = sim.call_count() - before;
        sim.clear_faults();
        pass(&mut data, 3).unwrap();
        assert!(data.iter().all(|&x| x == 0x0303));
        drop((work, gpu));
        clean(&sim);
        (calls, first.is_err())
    };
    let (calls, failed) = play(None, Kind::Other, (0, 1));
    assert!(calls > 60 && !failed, "{calls}");
    let kinds = [Kind::OutOfMemory, Kind::InvalidValue, Kind::Other];
    let failed =
        (1..=calls).zip(kinds.into_iter().cycle()).filter(|&(n, kind)| play(Some(n), kind, (0, 1)).1).count();
    assert!(failed > 30, "{failed} of {calls} faults were seen");
    // With threads the calls come in another order in each run, and what is written is the beginning all the same.
    let failed =
        (1..=calls).zip(kinds.into_iter().cycle()).filter(|&(n, kind)| play(Some(n), kind, (2, 3)).1).count();
    assert!(failed > 10, "{failed} of {calls} faults were seen");
}
