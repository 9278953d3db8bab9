//! Pinned memory: the CPU is on no stream, so that nothing but completion counts (O4).

use super::{Case, Outcome, World, ensure, said};
use millpond::units::MIB;
use millpond::{Config, PinnedAllocation, Stream};
use millpond_sim::{Launch, Sim};

pub(super) const CASES: &[Case] = &[
    Case { name: "pinned memory that a kernel reads", kills: &["z14", "pinned-at-once"], run: kernel_reads },
    Case { name: "two pinned blocks, one complete", kills: &["wait-proves-newest"], run: one_complete },
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
