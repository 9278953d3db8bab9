//! Physical memory that moves between windows: behind which uses, which of it, and what is left if that fails.

use super::{Block, Case, Outcome, World, ensure, said};
use millpond::allocator::{Footprint, VirtualMemory};
use millpond::units::MIB;
use millpond::{Config, DriverErrorKind, Limit, Policy, Reuse, Stream};
use millpond_sim::{Call, Sim};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "physical memory of another stream", kills: &["z25"], run: another_streams },
    Case { name: "physical memory of the own stream", kills: &["z24"], run: own_streams },
    Case { name: "a later stamp beside an earlier one", kills: &["z31"], run: later_beside_earlier },
    Case { name: "physical memory that is partly in use", kills: &["move-in-use"], run: partly_in_use },
    Case { name: "a move that fails", kills: &["move-failed-lost"], run: failed_move },
    Case { name: "moves without end", kills: &["move-uncharged"], run: moves_without_end },
    Case { name: "access to mapped memory", kills: &["access-forgotten"], run: access },
];

/// At a limit, with virtual memory beneath the pools.
fn windows(mib: u64) -> World {
    World::new(
        Config::default()
            .reuse(Reuse::WithWaits)
            .limit(Limit::Bytes(mib * MIB))
            .virtual_memory(VirtualMemory::Always),
    )
}

/// So many blocks of 2 MiB, written on a stream; every other one is freed behind that.
fn every_other(w: &World, n: usize, s: &Stream<Sim>) -> Result<Vec<Block>, String> {
    let all: Vec<Block> = (0..n).map(|_| w.claim(2, s)).collect::<Result<_, _>>()?;
    Ok(all.into_iter().enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, block)| block).collect())
}

/// What is written on a stream and still allocated is intact behind the rest of a program.
fn intact(w: &World, blocks: &[Block], s: &Stream<Sim>) -> Outcome {
    blocks.iter().try_for_each(|x| w.read(x, s))
}

/// s freed what it still writes, in pieces; t, at the limit, gets it as one range behind a wait and not before.
fn another_streams() -> Outcome {
    let w = windows(16);
    let [s, t] = w.streams();
    let kept = every_other(&w, 8, &s)?;
    let y = w.claim(8, &t)?;
    let report = w.gpu.report();
    let waits = report.total.counters.waits_inserted;
    ensure!(waits == 1, "{waits} waits were inserted, one is needed");
    ensure!(report.reserved == 16 * MIB, "{} bytes are reserved", report.reserved);
    intact(&w, &kept, &s)?;
    drop((y, kept, s, t));
    w.whole_limit()?;
    w.end()
}

/// A stream's own pieces serve its long request while their kernels are pending: through their old addresses.
fn own_streams() -> Outcome {
    let w = windows(16);
    let s = w.stream();
    let kept = every_other(&w, 8, &s)?;
    let y = w.claim(8, &s)?;
    let report = w.gpu.report();
    let waits = report.total.counters;
    ensure!((waits.waits_inserted, waits.host_waits) == (0, 0), "a wait for the own stream: {waits:?}");
    ensure!(report.reserved == 16 * MIB, "{} bytes are reserved", report.reserved);
    intact(&w, &kept, &s)?;
    drop((y, kept, s));
    w.whole_limit()?;
    w.end()
}

/// Of two free neighbours one is complete and the other is not: t, which takes both and a third, waits for the second.
fn later_beside_earlier() -> Outcome {
    let w = windows(12);
    let [s, t] = w.streams();
    let blocks: Vec<Block> = (0..6).map(|_| w.claim(2, &s)).collect::<Result<_, _>>()?;
    let Ok([wall, early, late, middle, third, end]) = <[Block; 6]>::try_from(blocks) else {
        return Err("six blocks".to_owned());
    };
    drop((early, third));
    w.gpu.synchronize().map_err(said)?;
    w.write(&late, &s)?;
    drop(late);
    let y = w.claim(6, &t)?;
    let waits = w.gpu.report().total.counters.waits_inserted;
    ensure!(waits == 1, "{waits} waits were inserted, one is needed");
    intact(&w, &[wall, middle, end], &s)?;
    drop((y, s, t));
    w.whole_limit()?;
    w.end()
}

/// Half of each handle is allocated: nothing moves, and the request fails.
fn partly_in_use() -> Outcome {
    let w = windows(8);
    let [s, t] = w.streams();
    let all: Vec<Block> = (0..8).map(|_| w.claim(1, &s)).collect::<Result<_, _>>()?;
    let kept: Vec<Block> = all.into_iter().enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, x)| x).collect();
    ensure!(w.alloc(4, &t).is_err(), "4 MiB in one piece, of which there are none");
    w.gpu.check();
    intact(&w, &kept, &s)?;
    drop((kept, s, t));
    w.whole_limit()?;
    w.end()
}

/// The driver maps nothing: what was to move is where it was, and moves when the driver does.
fn failed_move() -> Outcome {
    let w = windows(16);
    let s = w.stream();
    let kept = every_other(&w, 8, &s)?;
    w.sim.fail(Call::Map, 1, DriverErrorKind::Other);
    drop(w.alloc(8, &s));
    w.sim.clear_faults();
    w.gpu.check();
    let y = w.claim(8, &s)?;
    intact(&w, &kept, &s)?;
    drop((y, kept, s));
    w.whole_limit()?;
    w.end()
}

/// 1,600 MiB on eight streams by turns, each ordered behind the one before, within no time: handles soon have 16 MiB in place of 4, and few move.
fn moves_without_end() -> Outcome {
    let numbers = Footprint::default().credit(Duration::ZERO);
    let config = Config::default().virtual_memory(VirtualMemory::Always).policy(Policy::Footprint);
    let config = config.footprint(numbers);
    let w = World::new(config);
    let streams: [Stream<Sim>; 8] = w.streams();
    for round in 0..64 {
        let (before, s) = (&streams[(round + 7) % 8], &streams[round % 8]);
        s.wait_stream(before).map_err(said)?;
        let pieces = 3 + round as u64 % 5;
        let blocks: Vec<Block> = (0..pieces).map(|_| w.alloc(1600 / pieces, s)).collect::<Result<_, _>>()?;
        drop(blocks);
        w.sim.run_until_idle();
    }
    let maps = w.sim.ledger().calls_of(Call::Map);
    // 2,713, and 14,483 if nobody counts.
    ensure!(maps < 5_000, "{maps} handles were mapped: they are as short as ever");
    drop(streams);
    w.end()
}

/// Memory that was mapped is written.
fn access() -> Outcome {
    let w = windows(8);
    let s = w.stream();
    let x = w.claim(8, &s)?;
    drop((x, s));
    w.whole_limit()?;
    w.end()
}
