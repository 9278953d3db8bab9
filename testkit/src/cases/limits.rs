//! What allocators may reserve: soft limits, groups of several allocators, watermarks, idle memory.

use super::{Case, Outcome, World, ensure, said};
use millpond::allocator::VirtualMemory;
use millpond::trace::{Event, Ring};
use millpond::units::MIB;
use millpond::{Allocator, Config, DriverErrorKind, Group, Limit, Trim};
use millpond_sim::{Call, Sim};
use std::sync::Arc;
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "a budget for two", kills: &["group-counts-twice"], run: budget_for_two },
    Case { name: "a refused growth in a group", kills: &["group-unclaim-lost"], run: refused_in_a_group },
    Case { name: "a member that ended", kills: &["group-end-counts"], run: ended_member },
    Case { name: "a soft limit is reported once", kills: &["soft-reported-always"], run: reported_once },
    Case { name: "marks have a gap", kills: &["marks-without-gap"], run: marks_have_a_gap },
    Case { name: "idle for an age", kills: &["idle-at-once"], run: idle_for_an_age },
];

/// Two members of a group with a hard limit of so many MiB, on one device; their growth is exact.
fn members(mib: u64) -> Result<(Group, World, Allocator<Sim>), String> {
    let group = Group::new(Some(mib * MIB), None);
    let config = World::config(64).group(&group);
    let w = World::new(config.clone());
    let other = Allocator::new(w.sim.clone(), config).map_err(said)?;
    Ok((group, w, other))
}

/// Two members take what the limit allows both, to the byte, and no more.
fn budget_for_two() -> Outcome {
    let (group, w, other) = members(8)?;
    let (s, t) = (w.stream(), other.stream().map_err(said)?);
    let x = w.claim(3, &s)?;
    let y = other.alloc(5 * MIB, &t).map_err(|e| format!("5 of 8 MiB are left: {e}"))?;
    ensure!(group.report().reserved == 8 * MIB, "3 and 5 MiB, and the group says {}", group.report());
    ensure!(w.alloc(1, &s).is_err(), "more than the limit was reserved");
    drop((x, y, s, t, other));
    w.end()
}

/// The device refused a member's growth: the bytes are there for both at the next attempt.
fn refused_in_a_group() -> Outcome {
    let (group, w, other) = members(8)?;
    let (s, t) = (w.stream(), other.stream().map_err(said)?);
    w.sim.fail(Call::MemAlloc, 1, DriverErrorKind::OutOfMemory);
    drop(w.alloc(8, &s));
    w.gpu.synchronize().map_err(said)?;
    w.gpu.trim(Trim::All).map_err(said)?;
    ensure!(group.report().reserved == 0, "nothing is reserved, and the group says {}", group.report());
    let y = other.alloc(8 * MIB, &t).map_err(|e| format!("everything was given back: {e}"))?;
    drop((y, s, t, other));
    w.end()
}

/// A member ends, with an allocation that lives on: what it held is the others' when that is freed.
fn ended_member() -> Outcome {
    let (group, w, other) = members(8)?;
    let (s, t) = (w.stream(), other.stream().map_err(said)?);
    let y = other.alloc(6 * MIB, &t).map_err(said)?;
    drop((t, other));
    ensure!(w.alloc(8, &s).is_err(), "what lives in another member was reserved again");
    drop(y);
    ensure!(
        group.report().reserved == 0,
        "the only member that held any ended, and the group says {}",
        group.report()
    );
    let x = w.claim(8, &s)?;
    drop((x, s));
    w.end()
}

/// Of three growths above a soft limit the first is an event.
fn reported_once() -> Outcome {
    let ring = Arc::new(Ring::new(64));
    let w = World::new(World::config(64).soft_limit(Limit::Bytes(4 * MIB)).sink(ring.clone()));
    let s = w.stream();
    let all = [w.claim(3, &s)?, w.claim(3, &s)?, w.claim(3, &s)?, w.claim(3, &s)?];
    let crossings =
        ring.events().iter().filter(|(_, event)| matches!(event, Event::SoftLimit { .. })).count();
    ensure!(crossings == 1, "one crossing was {crossings} events");
    drop((all, s));
    w.end()
}

/// What is cached between the marks stays.
fn marks_have_a_gap() -> Outcome {
    let config = Config::default().virtual_memory(VirtualMemory::Always);
    let w = World::new(config.watermarks(Limit::Bytes(2 * MIB), Limit::Bytes(8 * MIB)));
    let s = w.stream();
    for (mib, left) in [(8, 8), (12, 2)] {
        drop(w.claim(mib, &s)?);
        w.gpu.synchronize().map_err(said)?;
        w.gpu.maintain().map_err(said)?;
        let cached = w.gpu.report().total.cached / MIB;
        ensure!(cached == left, "of {mib} MiB cached, {cached} stayed");
    }
    drop(s);
    w.end()
}

/// What was used at the same time by the clock is not older than a second.
fn idle_for_an_age() -> Outcome {
    let config = Config::default().virtual_memory(VirtualMemory::Always).clock(|| Duration::from_secs(7));
    let w = World::new(config);
    let s = w.stream();
    drop(w.claim(8, &s)?);
    w.gpu.synchronize().map_err(said)?;
    let trim =
        |age| w.gpu.trim_idle(Duration::from_secs(age)).map(|trimmed| trimmed.bytes / MIB).map_err(said);
    ensure!(trim(1)? == 0, "what was used just now went back");
    ensure!(trim(0)? == 8, "what is idle did not go back");
    drop(s);
    w.end()
}
