//! Streams that end: their closing marker covers every stamp there is, and nothing is stranded behind it.

use super::{Case, Outcome, World, at, ensure, said};
use millpond::{DriverErrorKind, Trim};
use millpond_sim::{Call, Launch, Schedule, Sim};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "memory of a closed pool", kills: &["z7"], run: memory_of_a_closed_pool },
    Case { name: "a launch behind the stream's end", kills: &["z28"], run: launch_behind_the_end },
    Case { name: "a drain while a pool closes", kills: &["z37"], run: drain_while_closing },
    Case { name: "a close before the seal", kills: &["z38"], run: close_before_the_seal },
    Case { name: "a close while a marker is made", kills: &["z39"], run: close_while_marking },
    Case {
        name: "a range that is not complete in a closed pool",
        kills: &["closed-admits"],
        run: closed_admits,
    },
    Case {
        name: "the closing marker is kept",
        kills: &["markers-retired-early"],
        run: closing_marker_is_kept,
    },
    Case {
        name: "a use that a closed stream waited for",
        kills: &["closed-drains-ordered"],
        run: closed_drains,
    },
    Case {
        name: "a closed timeline is kept",
        kills: &["timeline-retired-early"],
        run: closed_timeline_is_kept,
    },
    Case { name: "a trim of a closed pool", kills: &["closed-keeps-out"], run: closed_pool_is_trimmed },
    Case { name: "a stream adopted again", kills: &["timeline-unlinked"], run: adopted_again },
    Case { name: "a stream ends with its last use", kills: &["open-forgotten"], run: ends_with_last_use },
    Case { name: "a context marker that fails", kills: &["context-due-lost"], run: context_marker_fails },
    Case { name: "an end that cannot wait", kills: &["end-unwaited"], run: end_that_cannot_wait },
];

/// s is gone, its work is not.
fn memory_of_a_closed_pool() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    drop(s);
    let y = w.claim(4, &t)?;
    drop((y, t));
    w.whole_limit()?;
    w.end()
}

/// The last `Stream` of an adopted stream is dropped while a use is open on it; then its owner launches that use.
fn launch_behind_the_end() -> Outcome {
    let w = World::at(4);
    let s = w.stream();
    let native = w.sim.stream().map_err(said)?;
    let t = w.gpu.adopt(native.clone()).map_err(said)?;
    let x = w.claim(4, &s)?;
    t.wait_stream(&s).map_err(said)?;
    x.record_use(&t).map_err(said)?;
    drop(t);
    let launch = Launch::new("late").writes(x.address(), x.len()).tag(x.id().expect("bytes"));
    w.sim.launch(&native, launch).map_err(said)?;
    drop(x);
    let y = w.claim(4, &s)?;
    drop((y, s, native));
    w.whole_limit()?;
    w.end()
}

/// While s closes, a trim drains its pool: a range that is ordered and not complete may not enter any more.
fn drain_while_closing() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    drop(x);
    s.wait_stream(&t).map_err(said)?;
    let gpu = w.gpu.clone();
    at("closing", 1, move || {
        gpu.trim(Trim::All).expect("a trim");
    });
    drop(s);
    w.whole_limit()?;
    w.all_back()?;
    drop(t);
    w.end()
}

/// t is gone but for the use that a free is about to seal: it may close only behind the seal.
fn close_before_the_seal() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    drop(t);
    at("unsealed", 1, move || drop(u.record().expect("a marker")));
    drop(x);
    let y = w.claim(4, &s)?;
    drop((y, s));
    w.whole_limit()?;
    w.all_back()?;
    w.end()
}

/// t needs a marker of s; while it is made, the last `Stream` of s is dropped.
fn close_while_marking() -> Outcome {
    let w = World::hasty(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    // The marker by which the request sees whether s is idle fails; the next one is for t to wait for.
    w.sim.fail(Call::EventRecord, 1, DriverErrorKind::Other);
    at("numbered", 2, move || drop(s));
    let y = w.claim(4, &t)?;
    drop((y, t));
    w.whole_limit()?;
    w.end()
}

/// s is closed and still reads what t has done with: the range stays in flight until s is complete.
fn closed_admits() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    w.read(&x, &s)?;
    drop(x);
    t.synchronize().map_err(said)?;
    drop(s);
    w.gpu.trim(Trim::All).map_err(said)?;
    let in_flight = w.gpu.report().total.in_flight;
    ensure!(in_flight > 0, "a closed pool took in what is not complete");
    w.whole_limit()?;
    w.all_back()?;
    drop(t);
    w.end()
}

/// t reads what s has freed, s waits for it and is closed: that s comes after the read orders no other stream after it, so
/// the range stays in flight until t is done, however often it is looked at.
fn closed_drains() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    drop(w.alloc(4, &s)?);
    s.synchronize().map_err(said)?;
    // Half of the segment is u's, so that it does not go back to the device, which would wait.
    let kept = w.claim(2, &u)?;
    let x = w.claim(2, &s)?;
    w.read_on(&x, &s, &t)?;
    drop(x);
    // What s did itself is over, and known to be.
    s.record().map_err(said)?.synchronize(Duration::from_secs(1)).map_err(said)?;
    s.wait_stream(&t).map_err(said)?;
    drop(s);
    w.gpu.trim(Trim::All).map_err(said)?;
    w.gpu.trim(Trim::All).map_err(said)?;
    let y = w.claim(2, &u)?;
    drop((kept, y, t, u));
    w.whole_limit()?;
    w.end()
}

/// An older marker of a closed stream completes: the closing marker is not complete by that.
fn closing_marker_is_kept() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.alloc(4, &s)?;
    let early = s.record().map_err(said)?;
    w.write(&x, &s)?;
    drop(x);
    drop(s);
    early.synchronize(Duration::from_secs(1)).map_err(said)?;
    let y = w.claim(4, &t)?;
    drop((early, y, t));
    w.end()
}

/// Closed is not complete: the line stays known. A part of the segment is in use, so that a trim, whose free would wait for the
/// device, gives nothing back.
fn closed_timeline_is_kept() -> Outcome {
    let w = World::at(4);
    let [s, t, u] = w.streams();
    drop(w.alloc(4, &s)?);
    let z = w.claim(2, &t)?;
    w.written_and_freed(2, &s)?;
    drop(s);
    w.gpu.trim(Trim::All).map_err(said)?;
    let y = w.claim(2, &u)?;
    drop((y, z, t, u));
    w.end()
}

/// What a trim looked at and may not give back yet comes back to a pool whose stream is gone.
fn closed_pool_is_trimmed() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    w.written_and_freed(4, &s)?;
    drop(s);
    w.gpu.trim(Trim::All).map_err(said)?;
    let y = w.claim(4, &t)?;
    drop((y, t));
    w.end()
}

/// Other code's stream is adopted again after its pool closed; when its old timeline is over, it still is one stream.
fn adopted_again() -> Outcome {
    let w = World::at(4);
    let native = w.sim.stream().map_err(said)?;
    let first = w.gpu.adopt(native.clone()).map_err(said)?;
    w.written_and_freed(4, &first)?;
    drop(first);
    w.gpu.trim(Trim::All).map_err(said)?;
    let again = w.gpu.adopt(native.clone()).map_err(said)?;
    w.sim.run_until_idle();
    w.gpu.trim(Trim::All).map_err(said)?;
    let third = w.gpu.adopt(native).map_err(said)?;
    let pools = w.gpu.report().pools.len();
    ensure!(pools == 1, "one stream, and {pools} pools");
    drop((again, third));
    w.end()
}

/// t is dropped before the free of a block that it uses: with that free it can go.
fn ends_with_last_use() -> Outcome {
    let w = World::at(4);
    let [s, t] = w.streams();
    let x = w.claim(4, &s)?;
    w.read_on(&x, &s, &t)?;
    drop(t);
    ensure!(w.sim.ledger().streams == 2, "a use is open on t: it has to stay");
    drop(x);
    w.gpu.trim(Trim::All).map_err(said)?;
    ensure!(w.sim.ledger().streams == 1, "nothing needs t any more and it is still there");
    drop(s);
    w.end()
}

/// The context could not be marked at a `free_unknown`: it is marked later.
fn context_marker_fails() -> Outcome {
    let w = World::at(4);
    let s = w.stream();
    let x = w.claim(4, &s)?;
    w.sim.fail(millpond_sim::Call::CtxRecordEvent, 1, DriverErrorKind::Other);
    x.free_unknown();
    w.all_back()?;
    drop(s);
    w.end()
}

/// The allocator ends while s works, no call that waits for that succeeds, and the driver's frees wait for nothing: the memory stays.
fn end_that_cannot_wait() -> Outcome {
    let sim = Sim::new(4 << 30).schedule(Schedule::Latest).waiting_frees(false);
    let w = World::on(sim.clone(), World::config(4));
    let s = w.stream();
    w.written_and_freed(4, &s)?;
    for nth in 1..8 {
        for call in [Call::EventCreate, Call::MemHostAlloc, Call::CtxSynchronize] {
            sim.fail(call, nth, DriverErrorKind::OutOfMemory);
        }
    }
    drop((s, w));
    sim.run_until_idle();
    sim.verdict().map_err(said)?;
    ensure!(!sim.leaks().is_empty(), "the memory went back");
    Ok(())
}
