//! Pinned memory: the CPU is on no stream, so that nothing but completion counts (O4).

use super::{Case, Outcome, World, ensure, said};
use millpond::units::{Addr, MIB};
use millpond::{Config, DriverErrorKind, PinnedAllocation, Stream, Trim};
use millpond_sim::{Launch, Sim};

pub(super) const CASES: &[Case] = &[
    Case { name: "pinned memory that a kernel reads", kills: &["z14", "pinned-at-once"], run: kernel_reads },
    Case { name: "two pinned blocks, one complete", kills: &["wait-proves-newest"], run: one_complete },
    Case { name: "a safe call at pinned memory", kills: &["sim-pinned-unrefused"], run: safe_call },
    Case { name: "pinned behind a safe call", kills: &["sim-pinned-reached"], run: pinned_later },
];

/// All that may be pinned: one segment.
const WHOLE: u64 = 64 * MIB;

fn world() -> World {
    World::new(Config::default().pinned_limit(WHOLE))
}

fn read_by(w: &World, p: &PinnedAllocation<Sim>, s: &Stream<Sim>) -> Outcome {
    let launch = Launch::new("read pinned").reads(p.address(), 4096).tag(p.id().expect("bytes"));
    w.sim.launch(s.native(), launch).map_err(said)
}

/// A block that a kernel still reads is not the CPU's.
fn kernel_reads() -> Outcome {
    let w = world();
    let s = w.stream();
    let p = w.gpu.alloc_pinned(WHOLE).map_err(said)?;
    w.sim.host_writes(p.address(), 4096).map_err(said)?;
    p.record_use(&s).map_err(said)?;
    read_by(&w, &p, &s)?;
    drop(p);
    let q = w.gpu.alloc_pinned(WHOLE).map_err(said)?;
    w.sim.host_writes(q.address(), 4096).map_err(said)?;
    drop((q, s));
    w.all_back()?;
    w.end()
}

/// The first of two blocks is complete and waited for: the second, read later on the same stream, is not.
fn one_complete() -> Outcome {
    let w = world();
    let s = w.stream();
    let mut blocks = Vec::new();
    for _ in 0..2 {
        let p = w.gpu.alloc_pinned(WHOLE / 2).map_err(said)?;
        w.sim.host_writes(p.address(), 4096).map_err(said)?;
        blocks.push(p);
    }
    for p in &blocks {
        read_by(&w, p, &s)?;
        p.record_use_until(&s.record().map_err(said)?).map_err(said)?;
    }
    blocks.clear();
    let first = w.gpu.alloc_pinned(WHOLE / 2).map_err(said)?;
    ensure!(!w.sim.idle(), "the wait for the first block ran everything");
    w.sim.host_writes(first.address(), 4096).map_err(said)?;
    let second = w.gpu.alloc_pinned(WHOLE / 2).map_err(said)?;
    w.sim.host_writes(second.address(), 4096).map_err(said)?;
    drop((first, second, s));
    w.end()
}

/// What a reference may lead to is nothing that safe code can have a kernel write.
fn safe_call() -> Outcome {
    let w = world();
    let s = w.stream();
    let held = w.gpu.pinned_from_slice(&[1_u8; 512]).map_err(said)?;
    let at = Addr(held.as_ptr().addr() as u64);
    let refused = w.sim.launch(s.native(), Launch::write_pattern(at, 512, 2)).map_err(|e| e.kind);
    ensure!(refused == Err(DriverErrorKind::InvalidValue), "it is {refused:?}");
    drop((held, s));
    w.end()
}

/// A safe call names addresses where nothing is pinned, and before it runs, memory is pinned there.
fn pinned_later() -> Outcome {
    let w = World::new(Config::default().pinned_limit(4096));
    let s = w.stream();
    let (mut last, mut again) = (0, 0);
    for _ in 0..100 {
        let held = w.gpu.pinned_from_slice(&[1_u8; 4096]).map_err(said)?;
        let at = held.as_ptr().addr() as u64;
        again += u32::from(at == last);
        w.sim.run_until_idle();
        ensure!(held.iter().all(|&v| v == 1), "a safe call wrote what a reference leads to");
        last = at;
        drop(held);
        w.gpu.trim(Trim::All).map_err(said)?;
        w.sim.launch(s.native(), Launch::write_pattern(Addr(at), 4096, 2)).map_err(said)?;
    }
    // The process's own allocator decides where memory is.
    ensure!(again > 0, "no memory came back, so that nothing was tried");
    Ok(())
}
