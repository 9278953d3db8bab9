//! Memory that code outside the allocator holds: it stays where it is, and whose it is, until the last hold of it ends.

use super::{Case, Outcome, World, ensure, judge, said};
use millpond::allocator::{Hold, VirtualMemory};
use millpond::units::MIB;
use millpond::{Config, Limit, Reuse, Trim};
use millpond_sim::Sim;
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "held memory and a request for all", kills: &["held-moves"], run: request_for_all },
    Case { name: "held memory and a trim", kills: &["held-released"], run: trim },
    Case { name: "two holds, one of them over", kills: &["held-once"], run: two_holds },
    Case { name: "held memory and another stream", kills: &["held-migrates"], run: another_stream },
];

fn windows(mib: u64) -> World {
    let config = Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(mib * MIB));
    World::new(config.virtual_memory(VirtualMemory::Always).bounded_wait(Duration::ZERO))
}

/// Walks everything; if something is broken, the hold is forgotten, for it cannot even be dropped.
fn sound(w: &World, holds: Vec<Hold<Sim>>) -> Result<Vec<Hold<Sim>>, String> {
    let checked = judge(|| {
        w.gpu.check();
        Ok(())
    });
    if let Err(e) = checked {
        holds.into_iter().for_each(core::mem::forget);
        return Err(e);
    }
    Ok(holds)
}

/// Every other of eight blocks is freed, one of them held: a request for all four has no memory until the hold ends.
fn request_for_all() -> Outcome {
    let w = windows(16);
    let s = w.stream();
    let all: Vec<_> = (0..8).map(|_| w.claim(2, &s)).collect::<Result<_, _>>()?;
    let hold = w.gpu.hold(&all[4]).map_err(said)?;
    let kept: Vec<_> = all.into_iter().enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, x)| x).collect();
    let served = w.alloc(8, &s);
    let holds = sound(&w, vec![hold])?;
    ensure!(served.is_err(), "8 MiB in one piece, of which 2 are held");
    drop(holds);
    let y = w.claim(8, &s)?;
    kept.iter().try_for_each(|x| w.read(x, &s))?;
    drop((y, kept, s));
    w.whole_limit()?;
    w.end()
}

/// Nothing is live, and one of four handles is held: a trim gives the other three back, and the last when the hold has ended.
fn trim() -> Outcome {
    let w = windows(16);
    let s = w.stream();
    let all: Vec<_> = (0..4).map(|_| w.claim(2, &s)).collect::<Result<_, _>>()?;
    let hold = w.gpu.hold(&all[1]).map_err(said)?;
    drop(all);
    w.gpu.synchronize().map_err(said)?;
    w.gpu.trim(Trim::All).map_err(said)?;
    let holds = sound(&w, vec![hold])?;
    let reserved = w.gpu.report().reserved;
    ensure!(reserved == 2 * MIB, "{reserved} bytes are reserved, of which 2 MiB are held");
    drop((holds, s));
    w.all_back()?;
    w.end()
}

/// One block is held twice: the end of one hold ends nothing.
fn two_holds() -> Outcome {
    let w = windows(16);
    let s = w.stream();
    let x = w.claim(2, &s)?;
    let (first, second) = (w.gpu.hold(&x).map_err(said)?, w.gpu.hold(&x).map_err(said)?);
    let holds = sound(&w, vec![first, second])?;
    drop(x);
    w.gpu.synchronize().map_err(said)?;
    let mut holds = holds.into_iter();
    drop(holds.next());
    w.gpu.trim(Trim::All).map_err(said)?;
    let holds = sound(&w, holds.collect())?;
    ensure!(w.gpu.report().reserved == 2 * MIB, "what is held was given back");
    drop((holds, s));
    w.all_back()?;
    w.end()
}

/// What s freed is complete, and held: t's request has memory of its own.
fn another_stream() -> Outcome {
    for config in [Config::default(), Config::default().virtual_memory(VirtualMemory::Always)] {
        let w = World::new(config.reuse(Reuse::WithWaits));
        let [s, t] = w.streams();
        let x = w.claim(20, &s)?;
        let (hold, at) = (w.gpu.hold(&x).map_err(said)?, x.address());
        drop(x);
        w.gpu.synchronize().map_err(said)?;
        let y = w.claim(20, &t)?;
        let holds = sound(&w, vec![hold])?;
        ensure!(y.address() != at, "t has what s had, which is held");
        let z = w.claim(20, &s)?;
        ensure!(z.address() == at, "s has other memory than it had");
        drop((y, z, holds, s, t));
        w.all_back()?;
        w.end()?;
    }
    Ok(())
}
