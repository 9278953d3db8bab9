//! The miss ladder: growth, trims, and which streams may be made to wait.

use super::{Case, Outcome, World, ensure, said};
use millpond::units::MIB;
use millpond::{Config, DriverErrorKind, Limit, Reuse, Trim};
use millpond_sim::{Call, Launch};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "a segment in use is kept", kills: &["z13"], run: segment_in_use },
    Case { name: "a growth down to the request", kills: &["z15"], run: growth_shrinks },
    Case { name: "a refused growth", kills: &["unclaim-forgotten"], run: refused_growth },
    Case { name: "a trim of idle pools", kills: &["z40"], run: trim_of_idle_pools },
    Case { name: "a trim waits for nothing", kills: &["trim-pending"], run: trim_waits_for_nothing },
    Case { name: "deterministic, and given back", kills: &[], run: deterministic_goes_back },
    Case { name: "known complete, and drained", kills: &[], run: known_complete_is_drained },
    Case { name: "independent streams", kills: &["independent-waits"], run: independent },
    Case { name: "streams without an edge", kills: &["unknown-waits"], run: without_an_edge },
    Case { name: "a wait of the allocator's own", kills: &["own-waits-count"], run: own_wait },
    Case { name: "edges of streams that are gone", kills: &["edges-kept"], run: edges_end },
    Case { name: "a bound for all waits", kills: &["patience-renewed"], run: waits_have_one_bound },
    Case { name: "no request trims", kills: &["request-trims"], run: no_request_trims },
];

/// Half a segment is free and complete: a trim leaves it.
fn segment_in_use() -> Outcome {
    let w = World::new(Config::default());
    let s = w.stream();
    let (x, y) = (w.claim(4, &s)?, w.claim(4, &s)?);
    drop(x);
    w.gpu.synchronize().map_err(said)?;
    w.gpu.trim(Trim::All).map_err(said)?;
    w.read(&y, &s)?;
    drop((y, s));
    w.all_back()?;
    w.end()
}

/// There is enough left for the request and not for the planned segment: the request is served.
fn growth_shrinks() -> Outcome {
    let w = World::new(Config::default().limit(Limit::Bytes(5 * MIB)));
    let s = w.stream();
    let x = w.claim(5, &s)?;
    drop((x, s));
    w.whole_limit()?;
    w.end()
}

/// The device refused once: the bytes under the limit are available for the next attempt.
fn refused_growth() -> Outcome {
    let w = World::at(4);
    let s = w.stream();
    w.sim.fail(Call::MemAlloc, 1, DriverErrorKind::OutOfMemory);
    // The ladder may ask the device again, or leave that to the next request.
    drop(w.alloc(4, &s));
    w.gpu.check();
    let x = w.claim(4, &s)?;
    drop((x, s));
    w.end()
}

/// What an idle stream's pool has in flight completes at some time, though nothing allocates there.
fn trim_of_idle_pools() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    drop(x);
    w.all_back()?;
    drop((s, t));
    w.end()
}

/// Freed and still written: a trim lets it be.
fn trim_waits_for_nothing() -> Outcome {
    let w = World::at(4);
    let s = w.stream();
    w.written_and_freed(4, &s)?;
    let before = w.sim.ledger().host_waits;
    let trimmed = w.gpu.trim(Trim::All).map_err(said)?;
    ensure!(trimmed.bytes == 0, "a trim gave back what is still written");
    ensure!(w.sim.ledger().host_waits == before, "a trim waited for the device");
    drop(s);
    w.all_back()?;
    w.end()
}

/// Neither is an independent stream waited for, nor made to wait.
fn independent() -> Outcome {
    for borrower in [false, true] {
        let w = World::hasty(4);
        let [s, t] = w.streams();
        if borrower { &t } else { &s }.set_independent(true);
        w.written_and_freed(4, &s)?;
        ensure!(w.alloc(4, &t).is_err(), "an independent stream's memory migrated behind a wait");
        w.gpu.synchronize().map_err(said)?;
        let y = w.claim(4, &t)?;
        drop((y, s, t));
        w.end()?;
    }
    Ok(())
}

/// What is still written on a stream goes to no stream that the program has not ordered with it; to one that it has, behind a wait.
fn without_an_edge() -> Outcome {
    for edge in [false, true] {
        let w = World::new(World::config(4).reuse(Reuse::KnownWaits).bounded_wait(Duration::ZERO));
        let [s, t] = w.streams();
        if edge {
            s.wait_stream(&t).map_err(said)?;
        }
        w.written_and_freed(4, &s)?;
        let migrated = w.claim(4, &t);
        ensure!(migrated.is_ok() == edge, "edge: {edge}, and a request came to {migrated:?}");
        let waits = w.gpu.report().total.counters.waits_inserted;
        ensure!(waits == u64::from(edge), "edge: {edge}, and {waits} waits were inserted");
        drop((migrated, s, t));
        w.whole_limit()?;
        w.end()?;
    }
    Ok(())
}

/// A stream was made to wait for another, which was dependable then. When it no longer is, neither waits for the other.
fn own_wait() -> Outcome {
    let w = World::new(World::config(4).reuse(Reuse::KnownWaits).bounded_wait(Duration::ZERO));
    let [s, t] = w.streams();
    s.set_dependable(true);
    w.written_and_freed(4, &s)?;
    drop(w.claim(4, &t)?);
    s.set_dependable(false);
    ensure!(w.alloc(4, &s).is_err(), "a stream was made to wait for one that waited for it");
    drop((s, t));
    w.whole_limit()?;
    w.end()
}

/// A stream that stays has met a hundred others, which are gone.
fn edges_end() -> Outcome {
    let w = World::new(Config::default());
    let stays = w.stream();
    for _ in 0..100 {
        stays.wait_stream(&w.stream()).map_err(said)?;
    }
    w.gpu.synchronize().map_err(said)?;
    w.gpu.trim(Trim::All).map_err(said)?;
    let edges = w.gpu.bookkeeping().edges;
    ensure!(edges == 0, "{edges} ends of edges to streams that are gone");
    drop(stays);
    w.end()
}

/// Three streams are busy for a second each, one after the other: a request blocks for no longer than it may in all.
fn waits_have_one_bound() -> Outcome {
    let (second, bound) = (Duration::from_secs(1), Duration::from_millis(1500));
    let w = World::new(World::config(12).reuse(Reuse::Ordered).bounded_wait(bound));
    let busy: [_; 3] = w.streams();
    for x in busy.iter().map(|s| w.claim(4, s).map(|x| (x, s))).collect::<Result<Vec<_>, _>>()? {
        let long = Launch::new("a second").takes(second.as_nanos() as u64);
        w.sim.launch(x.1.native(), long).map_err(said)?;
    }
    let (t, before) = (w.stream(), w.sim.host_time());
    let x = w.claim(4, &t)?;
    let blocked = w.sim.host_time().saturating_sub(before);
    ensure!(
        blocked >= second,
        "the first kernel takes a second, and the request came back after {blocked:?}"
    );
    // The driver calls of a request take microseconds.
    ensure!(blocked < bound + Duration::from_millis(1), "it blocked for {blocked:?}");
    drop((x, t, busy));
    w.whole_limit()?;
    w.end()
}

/// Idle segments that are each too small for a request stay where they are: a plain free waits for the whole device.
fn no_request_trims() -> Outcome {
    let w = World::at(8);
    let s = w.stream();
    drop((w.claim(4, &s)?, w.claim(4, &s)?));
    w.gpu.synchronize().map_err(said)?;
    let alone = w.stream().independent();
    let gate = w.sim.gate(alone.native()).map_err(said)?;
    let refused = w.gpu.alloc(8 * MIB, &s).map(drop).err();
    ensure!(
        refused.as_ref().is_some_and(|e| e.out_of_memory().is_some()),
        "beside an endless kernel a request came to {refused:?}"
    );
    ensure!(w.sim.ledger().endless_waits == 0, "a request waited for an endless kernel");
    gate.open();
    drop((s, alone));
    w.whole_limit()?;
    w.end()
}

/// In deterministic mode too, what is complete by a wait of the caller's goes back, ranges that were in flight included.
fn deterministic_goes_back() -> Outcome {
    let w = World::new(World::config(4).deterministic(true));
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    drop(x);
    w.gpu.synchronize().map_err(said)?;
    let trimmed = w.gpu.trim(Trim::All).map_err(said)?;
    ensure!(trimmed.bytes == 4 * MIB, "{} bytes went back after a synchronize", trimmed.bytes);
    drop((s, t));
    w.end()
}

/// A cross-stream use is known complete and its range still in flight, in a pool where nothing allocates: when memory is out,
/// it is drained nevertheless.
fn known_complete_is_drained() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    w.write_on(&x, &s, &t)?;
    drop(x);
    t.synchronize().map_err(said)?;
    w.whole_limit()?;
    drop((s, t));
    w.end()
}
