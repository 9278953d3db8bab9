//! Soft limits, what goes back of itself, and memory that the device refuses though the limit allows it. Groups are in `groups`.

#![allow(clippy::many_single_char_names, reason = "streams and blocks, as in the drawings")]

mod groups;
mod marks;

use crate::rig::{all_clean, late, on, write};
use crate::windows::taken;
use millpond::allocator::VirtualMemory;
use millpond::driver::Memory;
use millpond::trace::{Event, Ring};
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, Error, Limit, Policy, Reuse};
use millpond_sim::{Call, Schedule, Sim};
use std::sync::Arc;

fn windows() -> Config {
    Config::default().virtual_memory(VirtualMemory::Always)
}

/// The crossings of soft limits that a sink received.
fn crossings(ring: &Ring) -> Vec<(u64, u64, bool)> {
    let events = ring.events().into_iter();
    let crossings = events.filter_map(|(_, event)| match event {
        Event::SoftLimit { reserved, limit, of_group } => Some((reserved / MIB, limit / MIB, of_group)),
        _ => None,
    });
    crossings.collect()
}

/// The sinks receive a crossing once until less is reserved; every request succeeds, and the limit is the error that it was.
#[test]
fn a_soft_limit_is_reported_once_and_refuses_nothing() {
    for config in [windows(), Config::default()] {
        let (sim, ring) = (late(), Arc::new(Ring::new(64)));
        let config = config.soft_limit(Limit::Bytes(50 * MIB)).limit(Limit::Bytes(100 * MIB));
        let gpu = on(&sim, config.sink(ring.clone()));
        let s = gpu.stream().unwrap();
        let mut live: Vec<_> = (0..2).map(|_| gpu.alloc(24 * MIB, &s).unwrap()).collect();
        assert_eq!(crossings(&ring), []);
        live.extend((0..2).map(|_| gpu.alloc(24 * MIB, &s).unwrap()));
        assert_eq!(crossings(&ring), [(72, 50, false)], "the second growth above it is no event");
        assert!(matches!(gpu.alloc(24 * MIB, &s), Err(Error::OutOfMemory(_))));
        live.truncate(1);
        gpu.synchronize().unwrap();
        gpu.trim(millpond::Trim::All).unwrap();
        assert_eq!(gpu.report().reserved, 24 * MIB);
        live.extend((0..2).map(|_| gpu.alloc(24 * MIB, &s).unwrap()));
        assert_eq!(crossings(&ring), [(72, 50, false), (72, 50, false)]);
        assert_eq!(gpu.report().soft_limit, Some(50 * MIB));
        drop((live, s));
        all_clean(&sim, gpu);
    }
}

/// Under `latency` a request grows although another stream's memory could move; above the soft limit memory moves first, behind work that is pending, and
/// then what is still missing comes from the device.
#[test]
fn above_a_soft_limit_memory_moves_before_it_grows() {
    for (soft, expected) in [(Limit::None, 72), (Limit::Bytes(40 * MIB), 48), (Limit::Bytes(56 * MIB), 56)] {
        let sim = late();
        let gpu = on(&sim, windows().soft_limit(soft).policy(Policy::Latency));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let pieces: Vec<_> = (0..4).map(|_| gpu.alloc(8 * MIB, &s).unwrap()).collect();
        for x in &pieces {
            write(&sim, x, &s);
        }
        let mut keep = Vec::new();
        for (n, x) in pieces.into_iter().enumerate() {
            if n == 3 { keep.push(x) } else { drop(x) }
        }
        t.wait_stream(&s).unwrap();
        // 24 MiB are free on `s`, and pending.
        let y = gpu.alloc(40 * MIB, &t).unwrap();
        write(&sim, &y, &t);
        assert_eq!(taken(&sim, &gpu), expected * MIB, "{soft:?}");
        assert_eq!(gpu.report().total.counters.host_waits, 0);
        drop((y, keep, s, t));
        all_clean(&sim, gpu);
    }
}

/// Plain segments: a request above the soft limit takes another stream's memory behind a wait, where it would have grown.
#[test]
fn above_a_soft_limit_a_request_waits_in_stream_order_before_it_grows() {
    for (soft, expected) in [(Limit::None, 64), (Limit::Bytes(48 * MIB), 32)] {
        let sim = late();
        let gpu = on(&sim, Config::default().soft_limit(soft).virtual_memory(VirtualMemory::Never));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        t.wait_stream(&s).unwrap();
        let x = gpu.alloc(32 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        drop(x);
        let y = gpu.alloc(32 * MIB, &t).unwrap();
        write(&sim, &y, &t);
        assert_eq!(gpu.report().reserved, expected * MIB, "{soft:?}");
        drop((y, s, t));
        all_clean(&sim, gpu);
    }
}

/// What is idle and complete goes back above a soft limit, though no other stream may have it, and nothing that is pending does.
#[test]
fn idle_handles_go_back_above_a_soft_limit() {
    let sim = late();
    let gpu = on(&sim, windows().reuse(Reuse::Never).soft_limit(Limit::Bytes(40 * MIB)));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let [idle, pending] = [20, 10].map(|mib| gpu.alloc(mib * MIB, &s).unwrap());
    drop(idle);
    gpu.synchronize().unwrap();
    write(&sim, &pending, &s);
    drop(pending);
    let y = gpu.alloc(20 * MIB, &t).unwrap();
    assert_eq!(taken(&sim, &gpu), 40 * MIB, "10 of the 20 MiB that were idle");
    let z = gpu.alloc(20 * MIB, &t).unwrap();
    assert_eq!(taken(&sim, &gpu), 50 * MIB, "the rest of them, and what is pending stays");
    assert_eq!(gpu.report().total.counters.host_waits, 0);
    drop((y, z, s, t));
    all_clean(&sim, gpu);
}

/// A soft limit that is lowered gives back what is idle, and one that is no limit is refused with nothing changed.
#[test]
fn a_soft_limit_can_be_set() {
    let (sim, ring) = (late(), Arc::new(Ring::new(64)));
    let gpu = on(&sim, windows().sink(ring.clone()));
    let s = gpu.stream().unwrap();
    let (x, y) = (gpu.alloc(16 * MIB, &s).unwrap(), gpu.alloc(16 * MIB, &s).unwrap());
    drop(x);
    gpu.synchronize().unwrap();
    gpu.set_soft_limit(Limit::Bytes(24 * MIB)).unwrap();
    assert_eq!((taken(&sim, &gpu), crossings(&ring)), (24 * MIB, vec![(32, 24, false)]));
    let refused = gpu.set_soft_limit(Limit::Fraction(1.5)).unwrap_err();
    assert!(matches!(refused, Error::Config { .. }), "{refused}");
    assert_eq!(gpu.report().soft_limit, Some(24 * MIB));
    assert!(gpu.report().to_string().contains("soft limit  24.0 MiB"));
    gpu.set_soft_limit(Limit::None).unwrap();
    assert_eq!((taken(&sim, &gpu), gpu.report().soft_limit), (24 * MIB, None));
    drop((y, s));
    all_clean(&sim, gpu);
}

/// The device has less than the limit says, because something else took the rest: a request climbs, and is served by what the device has, by what is idle here,
/// and once the others have given theirs back; under every policy, with and without virtual memory, with frees that wait and that do not.
#[test]
fn memory_that_others_took_is_refused_until_it_is_there() {
    for virtual_memory in [VirtualMemory::Always, VirtualMemory::Never] {
        for policy in [Policy::Latency, Policy::Footprint] {
            for reuse in [Reuse::Never, Reuse::Ordered, Reuse::KnownWaits, Reuse::WithWaits] {
                for soft in [Limit::None, Limit::Bytes(16 * MIB)] {
                    let config = Config::default().virtual_memory(virtual_memory).policy(policy).reuse(reuse);
                    beside_others(&config.soft_limit(soft).limit(Limit::Bytes(GIB)));
                }
            }
        }
    }
}

fn beside_others(config: &Config) {
    let sim = Sim::new(128 * MIB).schedule(Schedule::Latest).waiting_frees(false);
    let gpu = Allocator::new(sim.clone(), config.clone()).unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let others = sim.allocate(64 * MIB).unwrap();
    let x = gpu.alloc(24 * MIB, &s).unwrap();
    // The planned growth is refused and a smaller one is not.
    let y = gpu.alloc(40 * MIB, &t).unwrap();
    let refused = gpu.alloc(24 * MIB, &t);
    let Err(Error::OutOfMemory(why)) = refused else { panic!("{config:?}: {refused:?}") };
    let refusal = why.driver.as_ref().expect("the driver refused");
    assert!(refusal.is_out_of_memory() && why.advice().contains("something else"), "{config:?}: {why}");
    // What another stream left idle serves: it moves, or goes back and comes as the asker's.
    drop(x);
    gpu.synchronize().unwrap();
    let z = gpu.alloc(20 * MIB, &t).unwrap();
    write(&sim, &z, &t);
    assert!(gpu.alloc(24 * MIB, &s).is_err(), "{config:?}");
    // Others give theirs back.
    others.release().map_err(|(_, e)| e).unwrap();
    let more = gpu.alloc(60 * MIB, &s).unwrap();
    write(&sim, &more, &s);
    assert!(sim.ledger().calls_of(Call::MemAlloc) + sim.ledger().calls_of(Call::Create) > 0);
    drop((y, z, more, s, t));
    all_clean(&sim, gpu);
}
