//! Bounds of what is kept and of what is looked at, whose loss breaks no order: counted in what there is, in questions to the device, and in
//! ranked locks (one for each pool, timeline or table that is looked at; in debug builds). Nothing is timed.

use super::{Case, Outcome, World, ensure, said};
use millpond::sync::{Rank, locks_taken};
use millpond::units::{GIB, KIB};
use millpond::{Config, Growth, Stream, Trim};
use millpond_sim::{Call, Schedule, Sim};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "a chain of streams that is over",
        kills: &["clock-never-crowded"],
        run: chain_that_is_over,
    },
    Case {
        name: "a stream behind many that are over",
        kills: &["clock-never-crowded"],
        run: behind_many_that_are_over,
    },
    Case {
        name: "a chain of streams that is pending",
        kills: &["clock-always-crowded"],
        run: chain_that_is_pending,
    },
    Case {
        name: "a block that many streams read",
        kills: &["uses-never-crowded", "uses-always-crowded"],
        run: block_that_many_read,
    },
    Case {
        name: "frees that others use, and hits alone",
        kills: &["flight-never-crowded", "flight-always-crowded"],
        run: frees_and_hits,
    },
    Case { name: "streams that come and go", kills: &["sweep-never"], run: streams_come_and_go },
    Case { name: "streams that come and stay", kills: &["sweep-always"], run: streams_come_and_stay },
    Case {
        name: "streams that come and go where no queries are made",
        kills: &["finish-never"],
        run: streams_come_and_go_unqueried,
    },
    Case { name: "events of a burst", kills: &["burst-kept"], run: events_of_a_burst },
    Case {
        name: "events of a burst, and hits and waits alone",
        kills: &["burst-kept", "burst-unwaited"],
        run: events_of_a_burst_and_waits,
    },
    Case {
        name: "markers that retire beside many streams",
        kills: &["look-too-soon"],
        run: markers_beside_many_streams,
    },
    Case { name: "a report of many ranges", kills: &["report-whole"], run: report_of_many },
];

/// A world that does queued work as late as it may, and judges nothing: each call costs.
fn unjudged(config: Config) -> World {
    World::on(Sim::new(4 * GIB).schedule(Schedule::Latest).oracle(false).contents(false), config)
}

fn streams(w: &World, n: usize) -> Vec<Stream<Sim>> {
    (0..n).map(|_| w.stream()).collect()
}

fn locks(rank: Rank) -> u64 {
    locks_taken()[rank as usize]
}

/// Each stream waits for the one before.
fn chain(streams: &[Stream<Sim>], mut then: impl FnMut()) -> Outcome {
    for pair in streams.windows(2) {
        pair[1].wait_stream(&pair[0]).map_err(said)?;
        then();
    }
    Ok(())
}

/// Nothing is pending while the chain is made: the last stream need not name the first.
fn chain_that_is_over() -> Outcome {
    let w = unjudged(Config::default());
    let n = 200;
    let all = streams(&w, n);
    chain(&all, || {
        w.sim.run_until_idle();
    })?;
    let names = w.gpu.bookkeeping().clock_entries;
    ensure!(names <= 65 * n, "{names} names in the clocks of {n} streams of which nothing is pending");
    Ok(())
}

/// One stream waits for many that have waited for none: no answer covers another, and each is over.
fn behind_many_that_are_over() -> Outcome {
    let w = unjudged(Config::default());
    let (one, all) = (w.stream(), streams(&w, 200));
    let mut most = 0;
    for s in &all {
        one.wait_stream(s).map_err(said)?;
        w.sim.run_until_idle();
        most = most.max(w.gpu.bookkeeping().clock_entries);
    }
    ensure!(most <= 65, "{most} names in the clock of a stream, of which nothing is pending");
    Ok(())
}

/// All is pending: a wait causes queries only if there are twice as many names as at the last look.
fn chain_that_is_pending() -> Outcome {
    let w = unjudged(Config::default());
    let n = 200;
    let all = streams(&w, n as usize);
    chain(&all, || ())?;
    let asked = w.sim.ledger().calls_of(Call::EventQuery);
    ensure!(asked <= 3 * n, "{asked} questions for {n} waits");
    Ok(())
}

/// Sixty-four streams read one block, and each has done so before the next one comes; then as many at once.
fn block_that_many_read() -> Outcome {
    let w = unjudged(Config::default());
    let all = streams(&w, 64);
    let home = w.stream();
    let block = w.alloc(1, &home)?;
    for s in &all {
        block.record_use_until(&s.record().map_err(said)?).map_err(said)?;
        s.synchronize().map_err(said)?;
    }
    let uses = w.gpu.bookkeeping().uses;
    ensure!(uses <= 16, "{uses} uses are kept of 64 that are over");
    let events: Result<Vec<_>, _> = all.iter().map(Stream::record).collect();
    let before = locks(Rank::Registry);
    for event in &events.map_err(said)? {
        block.record_use_until(event).map_err(said)?;
    }
    let looks = locks(Rank::Registry) - before;
    ensure!(looks <= 16, "{looks} looks for what is complete of 64 uses that are pending");
    Ok(())
}

/// A pool with free memory frees blocks that another stream has finished with, and blocks that one still uses. No request misses.
fn frees_and_hits() -> Outcome {
    let w = unjudged(Config::default());
    let [home, done, busy] = w.streams();
    let frees = |user: &Stream<Sim>, over: bool| {
        for _ in 0..200 {
            let block = w.gpu.alloc(KIB, &home).map_err(said)?;
            block.record_use(user).map_err(said)?;
            drop(block);
            if over {
                user.synchronize().map_err(said)?;
            }
        }
        Ok::<(), String>(())
    };
    drop(w.gpu.alloc(256 * KIB, &home).map_err(said)?);
    let misses = w.gpu.report().total.counters.misses;
    frees(&done, true)?;
    let ranges = w.gpu.report().total.in_flight_ranges;
    ensure!(ranges <= 64, "{ranges} ranges are in flight of which nothing is pending");
    let before = locks(Rank::Registry);
    frees(&busy, false)?;
    let looks = locks(Rank::Registry) - before;
    ensure!(w.gpu.report().total.counters.misses == misses, "an allocation missed");
    // Four for each use and its free, and the looks at what is over: with twice as many each time.
    ensure!(looks <= 4 * 200 + 40, "{looks} looks at the table for 200 uses and frees");
    Ok(())
}

/// One after the other, each with work that is over: few pools are left.
fn streams_come_and_go() -> Outcome {
    let w = unjudged(Config::default());
    for _ in 0..200 {
        let s = w.stream();
        drop(w.gpu.alloc(4 * KIB, &s).map_err(said)?);
        s.synchronize().map_err(said)?;
    }
    let pools = w.gpu.report().pools.len();
    ensure!(pools <= 40, "{pools} pools, of streams that are gone and over");
    Ok(())
}

/// A new stream must not cause a look at all pools.
fn streams_come_and_stay() -> Outcome {
    let w = unjudged(Config::default());
    let few = streams(&w, 100);
    let before = locks(Rank::Pool);
    let more = streams(&w, 100);
    let looks = locks(Rank::Pool) - before;
    ensure!(looks <= 2000, "{looks} looks at pools for 100 streams beside 100");
    drop((few, more));
    Ok(())
}

/// The allocator may not query: of closed streams a few are waited for.
fn streams_come_and_go_unqueried() -> Outcome {
    let w = unjudged(Config::default().deterministic(true));
    for _ in 0..200 {
        let s = w.stream();
        drop(w.gpu.alloc(4 * KIB, &s).map_err(said)?);
    }
    let timelines = w.gpu.bookkeeping().timelines;
    ensure!(timelines <= 100, "{timelines} timelines, of streams that are gone");
    Ok(())
}

/// Five hundred events at once, and then one at a time: those that no marker refers to go back to the driver while the program continues.
fn events_of_a_burst() -> Outcome {
    let w = unjudged(Config::default());
    let s = w.stream();
    let burst: Result<Vec<_>, _> = (0..500).map(|_| s.record()).collect();
    let most = w.sim.ledger().events;
    drop(burst.map_err(said)?);
    ensure!(most >= 500, "{most} events");
    // Eight for each event that is kept, three quarters of them then, and so on.
    for _ in 0..20_000 {
        drop(s.record().map_err(said)?);
        s.synchronize().map_err(said)?;
    }
    let left = w.sim.ledger().events;
    ensure!(left <= 80, "{left} driver events are left of {most}, where one is in use");
    // A trim gives back all that no marker refers to: of another burst too.
    let burst: Result<Vec<_>, _> = (0..500).map(|_| s.record()).collect();
    drop(burst.map_err(said)?);
    w.gpu.synchronize().map_err(said)?;
    w.gpu.trim(Trim::All).map_err(said)?;
    let left = || (w.sim.ledger().events, w.gpu.bookkeeping().events_pooled);
    // It marks the stream anew, to learn what it can: that one is in use.
    ensure!(left() == (1, 0), "{:?} driver events, alive and pooled, are left behind a trim", left());
    w.gpu.synchronize().map_err(said)?;
    w.gpu.trim_events();
    ensure!(
        left() == (0, 0),
        "{:?} driver events, alive and pooled, are left where nothing is in use",
        left()
    );
    Ok(())
}

/// Five hundred events at once, and then 10,000 hits, with a wait of one kind once in 100, and no marker but that of an event which is waited for: the
/// burst's events go back by the waits. A program of bursts and waits creates few anew.
fn events_of_a_burst_and_waits() -> Outcome {
    for kind in 0..3 {
        let w = unjudged(Config::default());
        let s = w.stream();
        let burst: Result<Vec<_>, _> = (0..500).map(|_| s.record()).collect();
        drop(burst.map_err(said)?);
        for i in 0..10_000 {
            drop(w.gpu.alloc(KIB, &s).map_err(said)?);
            if i % 100 == 99 {
                match kind {
                    0 => w.gpu.synchronize(),
                    1 => s.synchronize(),
                    _ => s.record().and_then(|event| event.synchronize(Duration::MAX)),
                }
                .map_err(said)?;
            }
        }
        let left = w.sim.ledger().events;
        ensure!(left <= 80, "{left} driver events are left, where none is in use, by waits of kind {kind}");
        let (rounds, waits) = (50, 3);
        let created = || w.sim.ledger().calls_of(Call::EventCreate);
        let before = created();
        for _ in 0..rounds {
            for _ in 0..300 {
                drop(s.record().map_err(said)?);
            }
            for _ in 0..waits {
                s.synchronize().map_err(said)?;
            }
        }
        let created = created() - before;
        ensure!(created <= 300 + 8 * rounds * waits, "{created} events created for {} waits", rounds * waits);
    }
    Ok(())
}

/// A look visits all timelines: it is due when as many markers were made.
fn markers_beside_many_streams() -> Outcome {
    let w = unjudged(Config::default());
    let n = 4000;
    let all = streams(&w, n);
    let rounds = |times: usize| {
        for i in 0..times {
            drop(all[i % 4].record().map_err(said)?);
            w.sim.run_until_idle();
            // One that is over is known to be, and leaves; the others wait for the look.
            drop(all[4].record().map_err(said)?);
            all[4].synchronize().map_err(said)?;
        }
        Ok::<(), String>(())
    };
    rounds(n)?;
    let before = locks(Rank::Timeline);
    rounds(n)?;
    let looks = locks(Rank::Timeline) - before;
    ensure!(looks <= 40 * n as u64, "{looks} looks at timelines for twice {n} markers beside {n} streams");
    Ok(())
}

/// A report lets a pool's lock go after each piece.
fn report_of_many() -> Outcome {
    let w = unjudged(Config::default().growth(Growth::Exact));
    let s = w.stream();
    let kept: Result<Vec<_>, _> = (0..4000).map(|_| w.gpu.alloc(20 * KIB, &s)).collect();
    drop(kept.map_err(said)?);
    drop(w.gpu.alloc(20 * KIB + 512, &s).map_err(said)?);
    let before = locks(Rank::Pool);
    let ranges = w.gpu.report().total.free_chunks;
    let holds = locks(Rank::Pool) - before;
    ensure!(!cfg!(debug_assertions) || holds >= ranges / 128, "{holds} holds for {ranges} ranges");
    Ok(())
}
