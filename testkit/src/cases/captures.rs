//! Bugs that end a capture by other code, or forget what a stream holds that only calls which name it may mark.

use super::{Case, Outcome, World, at, ensure, said};
use millpond::{Config, Growth, Limit, Reuse, Stream, Trim};
use millpond_sim::{Call, SimStream};

pub(super) const CASES: &[Case] = &[
    Case { name: "a trim beside a capture", kills: &["context-marker"], run: trim_beside_a_capture },
    Case {
        name: "a capture behind the question",
        kills: &["capture-unseen"],
        run: capture_behind_the_question,
    },
    Case { name: "a capture inside a record", kills: &["captured-kept"], run: capture_inside_a_record },
    Case {
        name: "a capture inside a record that cannot be repeated",
        kills: &["captured-covers"],
        run: capture_inside_the_only_record,
    },
    Case { name: "a stream is named again", kills: &["named-not-served"], run: named_again },
    Case { name: "an unmarked stream ends", kills: &["loose-forgotten"], run: unmarked_end },
    Case {
        name: "an unmarked stream ends beside a synchronise",
        kills: &["promise-in-two-holds"],
        run: unmarked_end_beside_a_synchronise,
    },
];

type Undeclared = (SimStream, Stream<millpond_sim::Sim>);

/// A host that never waits for memory, a limit of so many MiB, and a stream that is not declared.
fn undeclared(mib: u64) -> Result<(World, Undeclared), String> {
    let w = World::new(
        Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(mib << 20)).growth(Growth::Exact),
    );
    let native = w.sim.stream().map_err(said)?;
    let s = w.gpu.adopt(w.sim.unmanaged_stream(&native)).map_err(said)?;
    Ok((w, (native, s)))
}

/// Other code captures on a stream that was not declared, while memory that another stream freed is searched.
fn trim_beside_a_capture() -> Outcome {
    let (w, (native, s)) = undeclared(8)?;
    w.written_and_freed(4, &s)?;
    let theirs = w.sim.stream().map_err(said)?;
    w.sim.begin_capture(&theirs).map_err(said)?;
    w.gpu.trim(Trim::All).map_err(said)?;
    w.sim.end_capture(&theirs).map_err(said)?;
    drop((s, native, theirs));
    w.gpu.synchronize().map_err(said)?;
    w.end()
}

/// A stream is queried whether it captures, and begins a capture right after the answer.
fn capture_behind_the_question() -> Outcome {
    let w = World::at(4);
    let (native, s) = (w.sim.stream().map_err(said)?, w.stream());
    let t = w.gpu.adopt(native.clone()).map_err(said)?;
    w.written_and_freed(4, &t)?;
    w.sim.capture_behind(Call::StreamIsCapturing, 1, &native).map_err(said)?;
    ensure!(w.gpu.alloc(4 << 20, &s).is_err(), "t's work cannot be waited for");
    let graph = w.sim.end_capture(&native).map_err(said)?;
    ensure!(graph.streams == 1, "{} streams were captured", graph.streams);
    drop((w.claim(4, &s)?, s, t, native));
    w.end()
}

/// A capture begins behind the question before a record and ends before the one behind it: another marker serves, for this request.
fn capture_inside_a_record() -> Outcome {
    let w = World::hasty(4);
    let (native, s) = (w.sim.stream().map_err(said)?, w.stream());
    let t = w.gpu.adopt(native.clone()).map_err(said)?;
    w.written_and_freed(4, &t)?;
    w.sim.capture_around(Call::EventRecord, 1, &native).map_err(said)?;
    let served = w.claim(4, &s)?;
    ensure!(w.sim.captures_destroyed() == 0, "the capture was destroyed");
    drop((served, s, t, native));
    w.end()
}

/// The same on a stream that only calls that name it mark: what it holds is held back, is shown so, and is had when it is named again.
fn capture_inside_the_only_record() -> Outcome {
    let (w, (native, s)) = undeclared(4)?;
    let t = w.stream();
    w.written_and_freed(4, &s)?;
    ensure!(w.gpu.alloc(4 << 20, &t).is_err(), "it cannot be known when s is done");
    // Inside each that the call makes: the first is found out, and repeated, before the call has returned.
    for nth in 1..=8 {
        w.sim.capture_around(Call::EventRecord, nth, &native).map_err(said)?;
    }
    drop(w.gpu.alloc(0, &s).map_err(said)?);
    w.sim.clear_faults();
    let early = w.claim(4, &t);
    w.sim.verdict().map_err(said)?;
    ensure!(early.is_err(), "the marker says nothing of s");
    let held = w.gpu.report().total.held_back;
    ensure!(held == 4 << 20, "{held} bytes are shown as held back");
    drop(w.gpu.alloc(0, &s).map_err(said)?);
    drop((w.claim(4, &t)?, s, t, native));
    w.gpu.synchronize().map_err(said)?;
    w.end()
}

/// Another stream needs what this one freed: it gets it as soon as this one is named.
fn named_again() -> Outcome {
    let (w, (native, s)) = undeclared(4)?;
    let t = w.stream();
    w.written_and_freed(4, &s)?;
    ensure!(w.gpu.alloc(4 << 20, &t).is_err(), "it cannot be known when s is done");
    drop(w.gpu.alloc(0, &s).map_err(said)?);
    drop((w.claim(4, &t)?, s, t, native));
    w.gpu.synchronize().map_err(said)?;
    w.end()
}

/// It ends with its last free not covered by any marker: no stream may have that memory before the device is idle.
fn unmarked_end() -> Outcome {
    let (w, (native, s)) = undeclared(4)?;
    let t = w.stream();
    w.written_and_freed(4, &s)?;
    w.sim.destroy_stream(&native).map_err(said)?;
    drop((s, native));
    // Its line is closed, and forgotten if it is over.
    w.gpu.trim(Trim::All).map_err(said)?;
    let early = w.claim(4, &t);
    w.sim.verdict().map_err(said)?;
    ensure!(early.is_err(), "s may be at work");
    w.gpu.synchronize().map_err(said)?;
    drop((w.claim(4, &t)?, t));
    w.end()
}

/// The same while another thread, which is about to wait for the device, has not yet said for how much.
fn unmarked_end_beside_a_synchronise() -> Outcome {
    let (w, (native, s)) = undeclared(4)?;
    w.written_and_freed(4, &s)?;
    let (sim, gpu, t) = (w.sim.clone(), w.gpu.clone(), w.stream());
    let (early, said_early) = std::sync::mpsc::channel();
    at("promising all", 1, move || {
        sim.destroy_stream(&native).expect("a stream ends");
        drop((s, native));
        gpu.trim(Trim::All).expect("a trim");
        let _ = early.send(World { sim, gpu }.claim(4, &t).is_ok());
    });
    w.gpu.synchronize().map_err(said)?;
    w.sim.verdict().map_err(said)?;
    ensure!(!said_early.recv().map_err(said)?, "s may have been at work");
    w.end()
}
