//! The shrunk interleavings of the model of the laws (`tests/lawmodel/traces.txt`), call by call, against the allocator.
//!
//! Each is named as the mutant that it was shrunk from. `h0`, `h1` are the model's host threads, `s0` to `s3` its streams;
//! a cell of the model is a MiB here. Steps that the failure does not need, such as the close of a stream that nothing
//! uses, are left out. What a thread does while another stands still runs at the point where that one stands.

use super::{Case, Outcome, World, at, ensure, said};
use millpond::{DeviceArray, Download, kernel};
use millpond_sim::Sim;
use std::sync::Arc;
use std::sync::mpsc;

pub(super) const CASES: &[Case] = &[
    // Its mutant, z31, is owed with the room that it wants; stamps of ranges instead of handles go the same way.
    Case {
        name: "trace of HandleStampAtFreeOnly",
        kills: &["z2", "wait-dropped"],
        run: handle_stamp_at_free_only,
    },
    Case { name: "trace of StampBeforeFactFree", kills: &["z32"], run: stamp_before_fact_free },
    Case { name: "trace of ExactReservedBeforeOp", kills: &["z35"], run: exact_reserved_before_op },
    Case { name: "trace of OpenDroppedBeforeSeal", kills: &["z38"], run: open_dropped_before_seal },
    Case { name: "trace of DestroyWhileMarking", kills: &["z39"], run: destroy_while_marking },
];

/// What s0 wrote and freed goes to s2 behind a wait; the half that s2 does not take goes on to s1, which is ordered after no stream.
fn handle_stamp_at_free_only() -> Outcome {
    let w = World::at(2);
    let [s0, s1, s2] = w.streams();
    // Both cells are written: the program cannot choose which of them a migration cuts off first.
    w.written_and_freed(2, &s0)?;
    let one = w.alloc(1, &s2)?;
    let two = w.claim(1, &s1)?;
    drop((one, two, s0, s1, s2));
    w.whole_limit()?;
    w.end()
}

/// h0 frees what s0 uses. Before the facts are looked at, h1 has s0 wait for s3, which makes the marker that a stamp
/// loaded too early stands for, and then s3 for s0, which makes the facts good. s2 waits for that marker only.
fn stamp_before_fact_free() -> Outcome {
    let w = World::at(4);
    let [s0, s2, s3] = w.streams();
    let x = w.alloc(4, &s3)?;
    x.share_with(&s0).map_err(said)?;
    w.write(&x, &s0)?;
    w.write(&x, &s0)?;
    let (a, b) = (s0.clone(), s3.clone());
    at("sealed", 1, move || {
        a.wait_stream(&b).expect("a wait");
        b.wait_stream(&a).expect("a wait");
    });
    drop(x);
    let y = w.claim(4, &s2)?;
    drop((y, s0, s2, s3));
    w.whole_limit()?;
    w.end()
}

/// Two threads copy one array out on s1; h1's whole copy comes between h0's marker and what h0 does with it. A marker
/// reserved before its copy leaves h0's copy uncovered by the newest number of s1; the write on s2 must wait for both.
fn exact_reserved_before_op() -> Outcome {
    const LEN: usize = 1 << 20;
    let w = World::at(8);
    let [s1, s2] = w.streams();
    let mut x: DeviceArray<u8, Sim> = w.gpu.uninit(LEN, &s2).map_err(said)?;
    kernel::fill(&mut x, 1, &s2).map_err(said)?;
    // So that the copies have nothing to wait for, and the next marker that h0 records is its copy's.
    s1.wait_stream(&s2).map_err(said)?;
    let x = Arc::new(x);
    let (array, on) = (x.clone(), s1.clone());
    let (sender, other) = mpsc::channel::<Download<u8, Sim>>();
    at("recorded", 1, move || {
        sender.send(array.to_pinned(&on).expect("a copy")).expect("the receiver listens");
    });
    let first = x.to_pinned(&s1).map_err(said)?;
    let second = other.recv().map_err(said)?;
    let mut x = Arc::into_inner(x).expect("the other thread is done with it");
    kernel::fill(&mut x, 2, &s2).map_err(said)?;
    s2.synchronize().map_err(said)?;
    for down in [first, second] {
        let found = down.wait().map_err(said)?;
        ensure!(found.iter().all(|&v| v == 1), "a copy brings what was written behind it");
    }
    drop((x, s1, s2));
    w.end()
}

/// h0 frees on s0 what s3 reads, and stands before the seal; h2 drops the last of s3. It may close only behind the seal,
/// or no marker will ever end that use and s0 never gets its bytes back.
fn open_dropped_before_seal() -> Outcome {
    let w = World::at(4);
    let [s0, s3] = w.streams();
    s3.wait_stream(&s0).map_err(said)?;
    let x = w.alloc(4, &s0)?;
    x.record_use(&s3).map_err(said)?;
    w.write(&x, &s3)?;
    at("unsealed", 1, move || drop(s3));
    drop(x);
    let y = w.claim(4, &s0)?;
    drop((y, s0));
    w.whole_limit()?;
    w.all_back()?;
    w.end()
}

/// h0 makes a marker on s2, whose number is reserved and whose event is not recorded; h1 drops the last of s2.
fn destroy_while_marking() -> Outcome {
    let w = World::hasty(4);
    let [s1, s2] = w.streams();
    s1.wait_stream(&s2).map_err(said)?;
    drop(w.alloc(4, &s2)?);
    at("numbered", 1, move || drop(s2));
    let y = w.claim(4, &s1)?;
    drop((y, s1));
    w.whole_limit()?;
    w.end()
}
