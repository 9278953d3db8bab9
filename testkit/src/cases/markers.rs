//! Markers: how they are numbered, recorded, published, found, waited for and seen complete (O3, O8).

use super::{Case, Outcome, World, at, ensure, said};
use millpond::{DriverErrorKind, Trim};
use millpond_sim::Call;
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "a marker not yet recorded", kills: &["z3"], run: marker_not_yet_recorded },
    Case { name: "work behind a record", kills: &["z17"], run: work_behind_a_record },
    Case { name: "work behind a synchronise", kills: &["z18"], run: work_behind_a_synchronise },
    Case { name: "work behind synchronising all", kills: &["device-promise-late"], run: work_behind_all },
    Case { name: "a wait behind a record", kills: &["copy-late"], run: wait_behind_a_record },
    Case { name: "a wait behind a synchronise", kills: &["learn-late"], run: wait_behind_a_synchronise },
    Case { name: "a query that fails", kills: &["z10"], run: failed_query },
    Case { name: "a record that fails", kills: &["failed-record"], run: failed_record },
    Case { name: "what a marker knew", kills: &["z30"], run: what_a_marker_knew },
    Case { name: "what a complete marker knew", kills: &["complete-joins-now"], run: complete_marker_knew },
    Case { name: "whose marker it was", kills: &["wait-wrong-timeline"], run: marker_of_other_stream },
    Case { name: "the marker that covers", kills: &["cover-older"], run: covering_marker },
    Case { name: "one marker complete, one not", kills: &["poll-off-by-one"], run: half_complete },
    Case { name: "synchronize means complete", kills: &["z11"], run: synchronize_is_real },
    Case {
        name: "names of streams that are gone",
        kills: &["names-kept", "names-pruned"],
        run: names_of_the_gone,
    },
    Case { name: "a due marker that fails", kills: &["due-dropped"], run: due_marker_fails },
];

/// Between a marker's number and its record, another thread needs what it will cover.
fn marker_not_yet_recorded() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    let (sim, gpu) = (w.sim.clone(), w.gpu.clone());
    at("numbered", 1, move || {
        let w = World { sim, gpu };
        drop(w.claim(4, &t).expect("memory behind a wait"));
    });
    let e = s.record().map_err(said)?;
    drop((e, s));
    w.end()
}

/// s is marked; before the recording thread goes on, s writes x and x is freed: the marker does not cover that.
fn work_behind_a_record() -> Outcome {
    let w = World::at(4);
    let [s, u] = w.streams();
    let x = w.alloc(4, &s)?;
    let (sim, gpu, s2) = (w.sim.clone(), w.gpu.clone(), s.clone());
    at("recorded", 1, move || {
        World { sim, gpu }.write(&x, &s2).expect("a launch");
        drop(x);
    });
    u.wait_stream(&s).map_err(said)?;
    let y = w.claim(4, &u)?;
    drop((y, s, u));
    w.end()
}

/// s was synchronised; before that is noted, s writes x and x is freed: that is not complete.
fn work_behind_a_synchronise() -> Outcome {
    let w = World::at(4);
    let [s, u] = w.streams();
    let x = w.alloc(4, &s)?;
    let (sim, gpu, s2) = (w.sim.clone(), w.gpu.clone(), s.clone());
    at("synchronised", 1, move || {
        World { sim, gpu }.write(&x, &s2).expect("a launch");
        drop(x);
    });
    s.synchronize().map_err(said)?;
    let y = w.claim(4, &u)?;
    drop((y, s, u));
    w.end()
}

/// The device was synchronised; before that is noted, s writes x and x is freed: that is not complete.
fn work_behind_all() -> Outcome {
    let w = World::at(4);
    let [s, u] = w.streams();
    let x = w.alloc(4, &s)?;
    let (sim, gpu, s2) = (w.sim.clone(), w.gpu.clone(), s.clone());
    at("all synchronised", 1, move || {
        World { sim, gpu }.write(&x, &s2).expect("a launch");
        drop(x);
    });
    w.gpu.synchronize().map_err(said)?;
    let y = w.claim(4, &u)?;
    drop((y, s, u));
    w.end()
}

/// s is marked; before the recording thread goes on, s waits for r: who waits for that marker knows nothing of r.
fn wait_behind_a_record() -> Outcome {
    let w = World::at(4);
    let [r, s, u] = w.streams();
    w.written_and_freed(4, &r)?;
    let (s2, r2) = (s.clone(), r.clone());
    at("recorded", 1, move || s2.wait_stream(&r2).expect("a wait"));
    let e = s.record().map_err(said)?;
    u.wait(&e).map_err(said)?;
    let y = w.claim(4, &u)?;
    drop((e, y, r, s, u));
    w.end()
}

/// s was synchronised; before that is noted, it waits for r: r's work is not complete for that.
fn wait_behind_a_synchronise() -> Outcome {
    let w = World::at(4);
    let [r, s, u] = w.streams();
    w.written_and_freed(4, &r)?;
    let (s2, r2) = (s.clone(), r.clone());
    at("synchronised", 1, move || s2.wait_stream(&r2).expect("a wait"));
    s.synchronize().map_err(said)?;
    let y = w.claim(4, &u)?;
    drop((y, r, s, u));
    w.end()
}

/// An error is no completion.
fn failed_query() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    let e = s.record().map_err(said)?;
    w.sim.fail(Call::EventQuery, 1, DriverErrorKind::Other);
    let y = w.claim(4, &t)?;
    drop((e, y, s, t));
    w.end()
}

/// A record that failed covers nothing.
fn failed_record() -> Outcome {
    let w = World::hasty(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    // The first is made to see whether s is idle, the second for t to wait for.
    for nth in 1..=2 {
        w.sim.fail(Call::EventRecord, nth, DriverErrorKind::Other);
    }
    ensure!(w.alloc(4, &t).is_err(), "the record failed and the request did not");
    let y = w.claim(4, &t)?;
    drop((y, s, t));
    w.end()
}

/// s was marked before it waited for r: who waits for that marker knows nothing of r.
fn what_a_marker_knew() -> Outcome {
    let w = World::at(4);
    let [r, s, t] = w.streams();
    let e = s.record().map_err(said)?;
    w.written_and_freed(4, &r)?;
    s.wait_stream(&r).map_err(said)?;
    t.wait(&e).map_err(said)?;
    let y = w.claim(4, &t)?;
    drop((e, y, r, s, t));
    w.end()
}

/// The same marker complete: that says nothing of r.
fn complete_marker_knew() -> Outcome {
    let w = World::at(4);
    let [r, s, t] = w.streams();
    let e = s.record().map_err(said)?;
    w.written_and_freed(4, &r)?;
    s.wait_stream(&r).map_err(said)?;
    e.synchronize(Duration::from_secs(1)).map_err(said)?;
    let y = w.claim(4, &t)?;
    drop((e, y, r, s, t));
    w.end()
}

/// u waits for s; that says nothing of s's neighbour t.
fn marker_of_other_stream() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    w.written_and_freed(4, &t)?;
    u.wait_stream(&s).map_err(said)?;
    let y = w.claim(4, &u)?;
    drop((y, s, t, u));
    w.end()
}

/// Markers before and behind a write: the one behind is waited for.
fn covering_marker() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.alloc(4, &s)?;
    let before = s.record().map_err(said)?;
    w.write(&x, &s)?;
    drop(x);
    let behind = s.record().map_err(said)?;
    let y = w.claim(4, &t)?;
    drop((before, behind, y, s, t));
    w.end()
}

/// Of two markers the first is complete, the write between them is not.
fn half_complete() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.alloc(4, &s)?;
    let before = s.record().map_err(said)?;
    w.write(&x, &s)?;
    drop(x);
    let behind = s.record().map_err(said)?;
    ensure!(w.sim.advance(s.native()).map_err(said)?, "the first record did not run");
    let y = w.claim(4, &t)?;
    drop((before, behind, y, s, t));
    w.end()
}

/// After `synchronize`, memory goes from stream to stream with no wait.
fn synchronize_is_real() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    w.gpu.synchronize().map_err(said)?;
    let y = w.claim(4, &t)?;
    let waits = w.gpu.report().total.counters.waits_inserted;
    ensure!(waits == 0, "{waits} waits for what is complete");
    drop((y, s, t));
    w.end()
}

/// A marker fell due and could not be made: the next call that may speak to the driver makes it.
fn due_marker_fails() -> Outcome {
    let w = World::new(super::Config::default());
    let [s, t] = w.streams();
    for _ in 0..16 {
        let x = w.claim(1, &s)?;
        w.read_on(&x, &s, &t)?;
    }
    let x = w.claim(1, &s)?;
    let records = || w.sim.ledger().calls_of(Call::EventRecord);
    w.sim.fail(Call::EventRecord, 1, DriverErrorKind::Other);
    let before = records();
    x.record_use(&t).map_err(said)?;
    ensure!(records() == before + 1, "no marker had fallen due after 16 frees");
    x.record_use(&t).map_err(said)?;
    ensure!(records() == before + 2, "the marker that failed was not made again");
    drop((x, s, t));
    w.end()
}

/// An event of a knew streams that are gone and over. Who waits for it behind r learns their names and forgets them, and knows r
/// still.
fn names_of_the_gone() -> Outcome {
    let w = World::at(4);
    let [a, r, u] = w.streams();
    let gone: [_; 40] = w.streams();
    for g in &gone {
        a.wait_stream(g).map_err(said)?;
    }
    let e = a.record().map_err(said)?;
    drop(gone);
    w.gpu.synchronize().map_err(said)?;
    w.gpu.trim(Trim::All).map_err(said)?;
    w.written_and_freed(4, &r)?;
    u.wait_stream(&r).map_err(said)?;
    u.wait(&e).map_err(said)?;
    let b = w.gpu.bookkeeping();
    ensure!(b.timelines <= 8, "{} timelines, of which 40 are over", b.timelines);
    ensure!(
        b.clock_entries <= b.timelines,
        "{} names in the clocks of {} timelines",
        b.clock_entries,
        b.timelines
    );
    let y = w.claim(4, &u)?;
    let waits = w.gpu.report().total.counters.waits_inserted;
    ensure!(waits == 0, "{waits} waits for what u waited for already");
    drop((e, y, a, r, u));
    w.end()
}
