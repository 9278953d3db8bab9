//! Ranges that enter a pool's free state, and the stamps that they enter, merge and split with (O1, O5, O7, O8).

use super::{Block, Case, Outcome, World, at, ensure, said};
use millpond::Stream;
use millpond::units::GIB;
use millpond_sim::{Launch, Sim};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "unordered memory comes behind a wait",
        kills: &["z16", "wait-dropped", "order-off-by-one", "complete-off-by-one", "wait-unlearnt"],
        run: unordered_behind_a_wait,
    },
    Case {
        name: "the spare part of a migration",
        kills: &["z1", "z2", "z19"],
        run: spare_part_of_a_migration,
    },
    Case { name: "a drained range", kills: &["z19", "drained-complete"], run: drained_range },
    Case { name: "a drained range that the home stream reads", kills: &["z36"], run: drained_under_a_reader },
    Case { name: "merged stamps", kills: &["z23"], run: merged_stamps },
    Case { name: "merged on both sides", kills: &["merge-both-forgets"], run: merged_on_both_sides },
    Case { name: "the greatest length of a bin", kills: &["bin-above"], run: greatest_of_a_bin },
    Case { name: "the rest of a split", kills: &["split-unstamped"], run: rest_of_a_split },
    Case { name: "an event before the free", kills: &["stamp-submitted"], run: event_before_the_free },
    Case { name: "a new life on the home stream", kills: &["z20"], run: birth },
    Case { name: "facts, then the stamp", kills: &["z32"], run: facts_then_stamp },
    Case { name: "a wait that fails", kills: &["z26", "put-back-complete"], run: failed_wait },
    Case {
        name: "ordered memory serves at once",
        kills: &["wait-unlearnt", "hint-never-raised"],
        run: ordered_serves_at_once,
    },
    Case { name: "memory of an idle stream serves", kills: &["idle-unmarked"], run: idle_serves },
    Case {
        name: "one of many pending pools is complete",
        kills: &["progress-lost"],
        run: one_of_many_completes,
    },
    Case {
        name: "a complete range enters one of many pending pools",
        kills: &["entered-unnotified"],
        run: one_of_many_is_entered,
    },
    Case { name: "a chain of waits", kills: &["copy-empty"], run: chain_of_waits },
    Case { name: "streams by handle", kills: &["z4"], run: handle_comes_back },
    Case { name: "two threads' default streams", kills: &["z5"], run: per_thread_streams },
    Case {
        name: "another thread's default stream",
        kills: &["own-thread-unqueried"],
        run: per_thread_stream_elsewhere,
    },
    Case { name: "another device's event", kills: &["z12"], run: other_device },
];

/// s freed what it still writes; t, at the limit, gets it behind a wait and not before.
fn unordered_behind_a_wait() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    let y = w.claim(4, &t)?;
    let counts = w.gpu.report().total.counters;
    ensure!(counts.waits_inserted == 1, "{} waits were inserted, one is needed", counts.waits_inserted);
    drop(y);
    // What t learnt, it knows: the way back needs s to wait, and no second wait of t.
    drop((s, t));
    w.whole_limit()?;
    w.end()
}

/// t borrows 2 MiB from s behind a wait and uses one; u, which knew t from before the wait, takes the other.
fn spare_part_of_a_migration() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    w.written_and_freed(4, &s)?;
    u.wait_stream(&t).map_err(said)?;
    let y = w.claim(1, &t)?;
    let z = [w.claim(1, &u)?, w.claim(1, &u)?, w.claim(1, &u)?];
    drop((y, z, s, t, u));
    w.whole_limit()?;
    w.end()
}

/// Used on s and t, drained because s waits for t: u, which knows s from before that, is not ordered after t.
fn drained_range() -> Outcome {
    let w = World::at(8);
    let [s, t, u] = w.streams();
    let x = w.claim(8, &s)?;
    w.write_on(&x, &s, &t)?;
    drop(x);
    u.wait_stream(&s).map_err(said)?;
    s.wait_stream(&t).map_err(said)?;
    let y = w.claim(2, &s)?;
    let z = w.claim(4, &u)?;
    drop((y, z, s, t, u));
    w.whole_limit()?;
    w.end()
}

/// t's use is complete, s still reads: what is drained is not complete.
fn drained_under_a_reader() -> Outcome {
    let w = World::at(8);
    let [s, t, u] = w.streams();
    let x = w.claim(8, &s)?;
    w.read_on(&x, &s, &t)?;
    w.read(&x, &s)?;
    drop(x);
    t.synchronize().map_err(said)?;
    let y = w.claim(2, &s)?;
    let z = w.claim(4, &u)?;
    drop((y, z, s, t, u));
    w.end()
}

/// Two neighbours, freed before and behind a marker: together they are as late as the later.
fn merged_stamps() -> Outcome {
    let w = World::at(8);
    let [s, u] = w.streams();
    drop(w.alloc(8, &s)?);
    let (x, y) = (w.claim(4, &s)?, w.alloc(4, &s)?);
    drop(x);
    u.wait_stream(&s).map_err(said)?;
    w.write(&y, &s)?;
    drop(y);
    let z = w.claim(8, &u)?;
    drop((z, s, u));
    w.end()
}

/// A complete range comes back between two free ones, the one before it complete and the one behind it just written: what is
/// left of the three, when their stream has taken as much as the first two, is not complete.
fn merged_on_both_sides() -> Outcome {
    let w = World::at(6);
    let [s, t, u] = w.streams();
    drop(w.alloc(6, &s)?);
    let (x, y, z) = (w.claim(2, &s)?, w.claim(2, &s)?, w.claim(2, &s)?);
    ensure!(x.address() < y.address() && y.address() < z.address(), "they are not in a row");
    w.read_on(&y, &s, &t)?;
    drop((x, y));
    for stream in [&s, &t] {
        stream.synchronize().map_err(said)?;
    }
    w.write(&z, &s)?;
    drop(z);
    let front = w.claim(4, &s)?;
    let rest = w.claim(2, &u)?;
    drop((front, rest, s, t, u));
    w.end()
}

/// Ranges of the greatest length of their bins are found where they are filed: 1 MiB and 127 granules, 31 granules.
fn greatest_of_a_bin() -> Outcome {
    let w = World::at(16);
    let [s] = w.streams();
    for granules in [2048 + 127, 31, 4096 + 255] {
        let bytes = granules * 512;
        let one = w.gpu.alloc(bytes, &s).map_err(said)?;
        // What lies behind it keeps it apart.
        let behind = w.gpu.alloc(bytes, &s).map_err(said)?;
        let address = one.address();
        drop(one);
        w.gpu.check();
        let more = w.gpu.alloc(bytes + 512, &s).map_err(said)?;
        ensure!(more.address() != address, "a range that is too short was handed out");
        let again = w.gpu.alloc(bytes, &s).map_err(said)?;
        ensure!(again.address() == address, "a range of just the length is passed over");
        drop((behind, more, again));
    }
    drop(s);
    w.end()
}

/// What a split leaves was written just as much as what it gave.
fn rest_of_a_split() -> Outcome {
    let w = World::at(8);
    let [s, u] = w.streams();
    w.written_and_freed(8, &s)?;
    let y = w.claim(2, &s)?;
    let z = w.claim(4, &u)?;
    drop((y, z, s, u));
    w.end()
}

/// An event recorded before the last write orders nothing behind that write.
fn event_before_the_free() -> Outcome {
    let w = World::at(4);
    let [s, u] = w.streams();
    let x = w.alloc(4, &s)?;
    u.wait_stream(&s).map_err(said)?;
    w.write(&x, &s)?;
    drop(x);
    let y = w.claim(4, &u)?;
    drop((y, s, u));
    w.end()
}

/// s frees x and allocates y in the same bytes; t uses y first: it comes behind what s did to x.
fn birth() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    let y = w.alloc(4, &s)?;
    y.share_with(&t).map_err(said)?;
    w.write(&y, &t)?;
    drop((y, s, t));
    w.end()
}

/// Between the seal and the check of a free, u comes to know s and then s comes to know t: u does not know t.
fn facts_then_stamp() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    let x = w.claim(4, &s)?;
    w.write_on(&x, &s, &t)?;
    let (s2, t2, u2) = (s.clone(), t.clone(), u.clone());
    at("sealed", 1, move || {
        u2.wait_stream(&s2).expect("a wait");
        s2.wait_stream(&t2).expect("a wait");
    });
    drop(x);
    let y = w.claim(4, &u)?;
    drop((y, s, t, u));
    w.end()
}

/// A wait that failed orders nothing, and the range goes back as it was.
fn failed_wait() -> Outcome {
    use millpond_sim::Call;
    let w = World::hasty(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    w.sim.fail(Call::StreamWaitEvent, 1, millpond::DriverErrorKind::Other);
    ensure!(w.alloc(4, &t).is_err(), "the wait failed and the request did not");
    let y = w.claim(4, &t)?;
    drop((y, s, t));
    w.end()
}

/// t waited for s of its own accord: s's memory is t's for nothing.
fn ordered_serves_at_once() -> Outcome {
    let w = World::new(super::Config::default());
    let [s, t] = w.streams();
    w.written_and_freed(64, &s)?;
    t.wait_stream(&s).map_err(said)?;
    let y = w.claim(64, &t)?;
    let report = w.gpu.report();
    ensure!(report.growths == 1, "{} growths: s's memory was t's to take", report.growths);
    ensure!(report.total.counters.waits_inserted == 0, "a wait was inserted, the program had made one");
    drop((y, s, t));
    w.end()
}

/// A stream has freed one block and has nothing to do; no marker covers it, and the streams are not ordered.
fn idle_serves() -> Outcome {
    let config = super::Config::default().policy(millpond::Policy::Footprint);
    let w = World::on(Sim::new(4 * GIB), config);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    w.sim.run_until_idle();
    let y = w.claim(4, &t)?;
    let report = w.gpu.report();
    ensure!(report.growths == 1, "{} growths: s has nothing to do", report.growths);
    ensure!(report.total.counters.waits_inserted == 0, "a wait was inserted");
    drop((y, s, t));
    w.end()
}

/// Streams on each of which a block of 4 MiB was written and freed.
fn many_pending(w: &World) -> Result<Vec<Stream<Sim>>, String> {
    let streams: Vec<_> = (0..100).map(|_| w.stream()).collect();
    streams.iter().try_for_each(|s| w.written_and_freed(4, s))?;
    Ok(streams)
}

/// A block for a stream, from memory that others have, or because all of that is pending from the device.
fn served(w: &World, mib: u64, s: &Stream<Sim>, migrated: bool) -> Result<Block, String> {
    let before = w.gpu.report().growths;
    let y = w.claim(mib, s)?;
    let growths = w.gpu.report().growths - before;
    ensure!(
        growths == u64::from(!migrated),
        "{growths} growths for {mib} MiB, of which others had some: {migrated}"
    );
    Ok(y)
}

/// Memory of a hundred streams was looked at in vain; then that of one is complete and migrates.
fn one_of_many_completes() -> Outcome {
    let w = World::new(World::config(4000));
    let streams = many_pending(&w)?;
    let late = w.stream();
    let first = served(&w, 4, &late, false)?;
    streams[50].synchronize().map_err(said)?;
    let second = served(&w, 4, &late, true)?;
    drop((first, second, streams, late));
    w.end()
}

/// The same; then what another stream used returns to the pool of one, complete, and migrates.
fn one_of_many_is_entered() -> Outcome {
    let w = World::new(World::config(4000));
    let streams = many_pending(&w)?;
    let (home, user, late) = (&streams[50], &streams[51], w.stream());
    let x = w.alloc(6, home)?;
    w.write(&x, home)?;
    user.wait_stream(home).map_err(said)?;
    x.record_use(user).map_err(said)?;
    w.sim.launch(user.native(), Launch::new("use").reads(x.address(), x.len())).map_err(said)?;
    drop(x);
    home.synchronize().map_err(said)?;
    let taken = served(&w, 4, home, true)?;
    w.write(&taken, home)?;
    drop(taken);
    let first = served(&w, 4, &late, false)?;
    user.synchronize().map_err(said)?;
    let second = served(&w, 4, &late, true)?;
    // A miss on its home stream finds the range's use over.
    let own = served(&w, 9, home, false)?;
    let third = served(&w, 6, &late, true)?;
    drop((first, second, third, own, streams, late));
    w.end()
}

/// u waited for t, which had waited for s: s's memory is u's for nothing.
fn chain_of_waits() -> Outcome {
    let w = World::new(super::Config::default());
    let [s, t, u] = w.streams();
    w.written_and_freed(64, &s)?;
    t.wait_stream(&s).map_err(said)?;
    u.wait_stream(&t).map_err(said)?;
    let y = w.claim(64, &u)?;
    let report = w.gpu.report();
    ensure!(report.growths == 1, "{} growths: s's memory was u's to take", report.growths);
    drop((y, s, t, u));
    w.end()
}

/// Other code destroys a stream and makes another, with the same native value: it is another stream.
fn handle_comes_back() -> Outcome {
    let w = World::new(super::Config::default());
    let native = w.sim.stream().map_err(said)?;
    let a = w.gpu.adopt(native.clone()).map_err(said)?;
    w.written_and_freed(4, &a)?;
    w.sim.destroy_stream(&native).map_err(said)?;
    let again = w.sim.stream().map_err(said)?;
    ensure!(again.handle() == native.handle(), "the simulator gives handles back at once");
    let b = w.gpu.adopt(again).map_err(said)?;
    let y = w.claim(4, &b)?;
    drop((y, a, b, native));
    w.end()
}

/// Two threads' default streams share a handle and nothing else.
fn per_thread_streams() -> Outcome {
    let w = World::new(super::Config::default());
    let here = w.gpu.adopt(w.sim.per_thread_stream()).map_err(said)?;
    w.written_and_freed(4, &here)?;
    on_other_thread(&w)?;
    drop(here);
    w.end()
}

fn on_other_thread(w: &World) -> Outcome {
    super::on_thread(|| {
        let there = w.gpu.adopt(w.sim.per_thread_stream()).map_err(said)?;
        let y = w.claim(4, &there)?;
        drop(y);
        Ok(())
    })
}

/// On another thread the handle means that thread's own stream: nothing is done by it.
fn per_thread_stream_elsewhere() -> Outcome {
    let w = World::new(super::Config::default());
    let here = w.gpu.adopt(w.sim.per_thread_stream()).map_err(said)?;
    let x = w.claim(4, &here)?;
    let served = super::on_thread(|| w.gpu.alloc(4096, &here).map(drop));
    ensure!(served.is_err(), "memory of this thread's default stream, asked for on another one");
    drop((x, here));
    w.end()
}

/// Marker 1 of another device's first stream is not marker 1 of ours.
fn other_device() -> Outcome {
    let mut sims = Sim::devices(2, 4 * GIB);
    let (b, a) = (sims.pop().expect("two"), sims.pop().expect("two"));
    a.set_schedule(millpond_sim::Schedule::Latest);
    let (w, other) = (World::on(a, World::config(4)), World::on(b, World::config(4)));
    let [s, t] = w.streams();
    let p = other.stream();
    other.sim.launch(p.native(), Launch::new("elsewhere")).map_err(said)?;
    w.written_and_freed(4, &s)?;
    t.wait(&p.record().map_err(said)?).map_err(said)?;
    let y = w.claim(4, &t)?;
    drop((y, s, t, p));
    other.end()?;
    w.end()
}
