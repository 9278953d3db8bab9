//! Uses on other streams, from the use to the end of the range in flight (O1, O6).

use super::{Case, Outcome, World, ensure, said};
use millpond::Stream;
use millpond::order::{self, Access, TimelineId, Uses};
use millpond::units::Epoch;
use millpond_sim::{Launch, Sim};

pub(super) const CASES: &[Case] = &[
    Case { name: "used elsewhere, freed at home", kills: &["z9", "in-flight-at-once"], run: used_elsewhere },
    Case { name: "two readers", kills: &["z8"], run: two_readers },
    Case { name: "two readers, one of them done", kills: &["z27"], run: one_reader_done },
    Case { name: "work between record_use and the free", kills: &["z21", "seal-submitted"], run: late_work },
    Case {
        name: "work on a declared stream beside many users",
        kills: &["declared-ends-early"],
        run: late_work_beside_many,
    },
    Case {
        name: "work on a declared stream that came back",
        kills: &["revived-ends-early"],
        run: late_work_on_a_revived_stream,
    },
    Case { name: "users that are gone while their work is pending", kills: &["z8"], run: users_are_gone },
    Case { name: "two exact uses on two streams", kills: &["z22"], run: two_exact_streams },
    Case { name: "two exact uses on one stream", kills: &["z34"], run: two_exact_on_one },
    Case { name: "two operations on one stream", kills: &["z33"], run: two_operations },
    Case {
        name: "a migration of a range in flight that its home still reads",
        kills: &["z29"],
        run: home_reads,
    },
    Case { name: "the rest of a range in flight", kills: &["z6"], run: rest_in_flight },
    Case {
        name: "the rest of a range in flight, and its two users",
        kills: &["z6", "rest-forgets-uses"],
        run: rest_and_two_users,
    },
    Case { name: "used by an unknown stream", kills: &["unknown-plain"], run: used_by_unknown },
];

/// t still uses what s freed: s gets it back behind t.
fn used_elsewhere() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    drop(x);
    let y = w.claim(4, &s)?;
    drop((y, s, t));
    w.whole_limit()?;
    w.end()
}

/// t and u read one block: it serves behind both.
fn two_readers() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    w.read_on(&x, &s, &u)?;
    drop(x);
    let y = w.claim(4, &s)?;
    drop((y, s, t, u));
    w.end()
}

/// The one that is done does not answer for the other.
fn one_reader_done() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    w.read_on(&x, &s, &u)?;
    drop(x);
    t.synchronize().map_err(said)?;
    let y = w.claim(4, &s)?;
    drop((y, s, t, u));
    w.end()
}

/// A use recorded, the stream marked, and only then the work queued: the marker does not cover it.
fn late_work() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    t.wait_stream(&s).map_err(said)?;
    x.record_use(&t).map_err(said)?;
    let early = t.record().map_err(said)?;
    w.write(&x, &t)?;
    s.wait(&early).map_err(said)?;
    drop(x);
    let y = w.claim(4, &s)?;
    drop((early, y, s, t));
    w.end()
}

/// The same, and other users come in between, so that all are looked at: work can still be queued on this one.
fn late_work_beside_many() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    t.wait_stream(&s).map_err(said)?;
    x.record_use(&t).map_err(said)?;
    let others: [Stream<Sim>; 12] = w.streams();
    for other in &others {
        x.record_use(other).map_err(said)?;
    }
    let early = t.record().map_err(said)?;
    w.write(&x, &t)?;
    s.wait(&early).map_err(said)?;
    drop(x);
    let y = w.claim(4, &s)?;
    drop((early, y, s, t, others));
    w.end()
}

/// When all uses are looked at, no reference to the declared stream is left except an allocation made on it, which gives the stream out again.
fn late_work_on_a_revived_stream() -> Outcome {
    let w = World::at(5);
    let [s, t] = w.streams();
    let (stays, id) = (w.claim(1, &t)?, t.id());
    let x = w.claim(4, &s)?;
    t.wait_stream(&s).map_err(said)?;
    x.record_use(&t).map_err(said)?;
    drop(t);
    let others: [Stream<Sim>; 12] = w.streams();
    for other in &others {
        x.record_use(other).map_err(said)?;
    }
    let t = w.gpu.stream_of(id).ok_or("a block of it is live")?;
    let early = t.record().map_err(said)?;
    w.write(&x, &t)?;
    s.wait(&early).map_err(said)?;
    drop(x);
    let y = w.claim(4, &s)?;
    drop((early, y, s, t, others, stays));
    w.end()
}

/// Twelve streams read a block that stays, each in its time, and are dropped with that pending: their uses are sealed when the next ones
/// come, and the free is behind all of them.
fn users_are_gone() -> Outcome {
    let w = World::at(4);
    let s = w.stream();
    let x = w.claim(4, &s)?;
    for _ in 0..12 {
        let user = w.stream();
        w.read_on(&x, &s, &user)?;
    }
    let open = w.sim.ledger().streams;
    ensure!(open <= 1 + 8, "{open} streams are kept, of which one can be queued on");
    drop(x);
    let y = w.claim(4, &s)?;
    drop((y, s));
    w.whole_limit()?;
    w.end()
}

/// Two streams used two halves of a block, each until an event: it serves behind both events.
fn two_exact_streams() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    let x = w.claim(4, &s)?;
    for (i, on) in [&t, &u].into_iter().enumerate() {
        on.wait_stream(&s).map_err(said)?;
        let half = x.len() / 2;
        let launch =
            Launch::new("half").writes(x.address().offset(millpond::units::Granules(i as u32 * 4096)), half);
        w.sim.launch(on.native(), launch.tag(x.id().expect("bytes"))).map_err(said)?;
        x.record_use_until(&on.record().map_err(said)?).map_err(said)?;
    }
    drop(x);
    let y = w.claim(4, &s)?;
    drop((y, s, t, u));
    w.end()
}

/// Two uses on one stream, recorded in the wrong order: the later one counts.
fn two_exact_on_one() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    t.wait_stream(&s).map_err(said)?;
    w.read(&x, &t)?;
    let first = t.record().map_err(said)?;
    w.read(&x, &t)?;
    let second = t.record().map_err(said)?;
    x.record_use_until(&second).map_err(said)?;
    x.record_use_until(&first).map_err(said)?;
    s.wait(&first).map_err(said)?;
    drop(x);
    let y = w.claim(4, &s)?;
    drop((first, second, y, s, t));
    w.end()
}

/// In the bookkeeping itself: each of two operations seals its own.
fn two_operations() -> Outcome {
    let t = TimelineId(7);
    let mut uses = Uses::default();
    let (first, _) = uses.open(t, Access::Read);
    let (second, _) = uses.open(t, Access::Read);
    ensure!(!uses.close(first), "the first was not the last of them");
    uses.exact(t, Access::Read, Epoch(1));
    let at_free = uses.at_free(None, |_| Epoch(5));
    ensure!(
        at_free[..] == [order::Pending { on: t, epoch: Epoch(5) }],
        "the second is still open, so the free seals it with 5: {at_free:?}"
    );
    ensure!(uses.close(second), "the second was open");
    let at_free = uses.at_free(None, |_| Epoch(5));
    ensure!(
        at_free[..] == [order::Pending { on: t, epoch: Epoch(1) }],
        "only the first is left: {at_free:?}"
    );
    Ok(())
}

/// t's use, and a later one of the home stream: a migration to u comes after both.
fn home_reads() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    w.read(&x, &s)?;
    drop(x);
    let y = w.claim(4, &u)?;
    drop((y, s, t, u));
    w.end()
}

/// Half of a range in flight migrates; the other half stays in flight.
fn rest_in_flight() -> Outcome {
    let w = World::at(8);
    let [s, t, u] = w.streams();
    let x = w.claim(8, &s)?;
    w.read_on(&x, &s, &t)?;
    drop(x);
    let y = w.claim(4, &u)?;
    let z = w.claim(4, &s)?;
    drop((y, z, s, t, u));
    w.whole_limit()?;
    w.end()
}

/// The front of a range in flight that t and u use migrates; one of them is done, and the home stream gets the rest after the
/// other, whichever that is.
fn rest_and_two_users() -> Outcome {
    for first in 0..2 {
        let w = World::at(8);
        let [s, t, u, v] = w.streams();
        let x = w.claim(8, &s)?;
        for user in [&t, &u] {
            w.read_on(&x, &s, user)?;
        }
        drop(x);
        let y = w.claim(4, &v)?;
        [&t, &u][first].synchronize().map_err(said)?;
        let z = w.claim(4, &s)?;
        drop((y, z, s, t, u, v));
        w.whole_limit()?;
        w.end()?;
    }
    Ok(())
}

/// Freed with a use that was not recorded: it serves after everything in the context.
fn used_by_unknown() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    t.wait_stream(&s).map_err(said)?;
    w.read(&x, &t)?;
    x.free_unknown();
    let y = w.claim(4, &s)?;
    drop((y, s, t));
    w.whole_limit()?;
    w.end()
}
