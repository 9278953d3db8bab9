//! Groups: several allocators under one budget.

#![allow(clippy::many_single_char_names, reason = "streams and blocks, as in the drawings")]

use super::{crossings, windows};
use crate::rig::{all_back, all_clean, late, on, write};
use millpond::trace::Ring;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DriverErrorKind as Kind, Error, Group, Limit, Trim};
use millpond_sim::{Call, Sim};
use std::sync::{Arc, Barrier, mpsc};

fn group(hard: u64) -> Group {
    Group::new(Some(hard * MIB), None)
}

/// So many MiB reserved by all, which is the sum of what each reserves, and what the devices gave.
fn held(group: &Group, members: &[&Allocator<Sim>]) -> u64 {
    let report = group.report();
    let sum: u64 = report.members.iter().map(|member| member.reserved).sum();
    assert_eq!((report.reserved, report.members.len()), (sum, members.len()), "{report}");
    for (gpu, member) in members.iter().zip(&report.members) {
        gpu.check();
        let own = gpu.report();
        assert_eq!(
            (own.reserved, own.total.allocated, own.device),
            (member.reserved, member.allocated, member.device)
        );
        assert_eq!(own.group.as_ref(), Some(&report));
    }
    report.reserved / MIB
}

/// The sum counts, on one device and on two; a member at the limit has what another left idle, in handles between live allocations, and in segments only where
/// a free waits for nothing; nobody waits.
#[test]
fn a_member_at_the_limit_has_what_others_leave_idle() {
    for two in [false, true] {
        for (virtual_memory, waits) in [(true, true), (false, true), (false, false)] {
            let sims = Sim::devices(2, 4 * GIB);
            let sims: Vec<Sim> =
                sims.into_iter().map(|sim| sim.virtual_memory(virtual_memory).waiting_frees(waits)).collect();
            let group = group(64);
            let config = || if virtual_memory { windows() } else { Config::default() };
            let (a, b) =
                (on(&sims[0], config().group(&group)), on(&sims[usize::from(two)], config().group(&group)));
            let (s, t) = (a.stream().unwrap(), b.stream().unwrap());
            let [x, idle, y] = [4, 40, 4].map(|mib| a.alloc(mib * MIB, &s).unwrap());
            drop(idle);
            a.synchronize().unwrap();
            let waited = sims[0].ledger().host_waits + sims[1].ledger().host_waits;
            let z = b.alloc(40 * MIB, &t);
            let waited_since = sims[0].ledger().host_waits + sims[1].ledger().host_waits - waited;
            assert_eq!(waited_since, 0, "nothing was pending");
            if !virtual_memory && waits {
                let Err(Error::OutOfMemory(why)) = z else { panic!("{z:?}") };
                assert!(why.to_string().contains("group"), "{why}");
                continue;
            }
            let z = z.unwrap();
            write(&sims[usize::from(two)], &z, &t);
            assert!(held(&group, &[&a, &b]) <= 64);
            drop((x, y, z, s, t, a, b));
            sims.iter().for_each(all_back);
            assert_eq!((group.report().reserved, group.report().members.len()), (0, 0));
        }
    }
}

/// What another member has pending is not waited for and not taken: the request is out of memory, and its error has the figures of each.
#[test]
fn what_others_have_pending_stays_and_the_error_has_their_figures() {
    let (here, there) = (late(), late());
    let group = Group::new(Some(64 * MIB), Some(60 * MIB));
    let (a, b) = (on(&here, windows().group(&group)), on(&there, windows().group(&group)));
    let (s, t) = (a.stream().unwrap(), b.stream().unwrap());
    let live = a.alloc(8 * MIB, &s).unwrap();
    let x = a.alloc(40 * MIB, &s).unwrap();
    write(&here, &x, &s);
    drop(x);
    let Err(Error::OutOfMemory(why)) = b.alloc(20 * MIB, &t) else { panic!("it was served") };
    assert_eq!((here.ledger().host_waits, there.ledger().host_waits), (0, 0));
    let of_group = why.report.group.as_ref().expect("a group");
    assert_eq!((of_group.hard, of_group.soft, of_group.reserved), (Some(64 * MIB), Some(60 * MIB), 48 * MIB));
    let figures: Vec<_> = of_group.members.iter().map(|m| (m.reserved / MIB, m.allocated / MIB)).collect();
    assert_eq!(figures, [(48, 8), (0, 0)]);
    let said = why.to_string();
    assert!(said.contains("group: reserved 48.0 MiB (peak 48.0 MiB) of limit 64.0 MiB, soft limit 60.0 MiB, by 2 allocators: 48.0 MiB on device 0 (8.00 MiB live), 0 B on device 0 (0 B live)"), "{said}");
    assert!(why.advice().contains("in another member"), "{said}");
    let Err(Error::OutOfMemory(why)) = b.alloc(65 * MIB, &t) else { panic!("it was served") };
    assert!(why.advice().contains("above the group's limit of 64.0 MiB"), "{why}");
    here.run_until_idle();
    let z = b.alloc(20 * MIB, &t).unwrap();
    assert_eq!(held(&group, &[&a, &b]), 64, "4 MiB, as much as it lacked, went back");
    assert!(a.report().to_string().contains("group       reserved 64.0 MiB"));
    drop((live, z, s, t));
    all_clean(&here, a);
    all_clean(&there, b);
}

/// The soft limit of a group tightens each member, and the sink of the one that crosses it receives the event.
#[test]
fn a_group_has_a_soft_limit() {
    let (sim, ring) = (late(), Arc::new(Ring::new(64)));
    let group = Group::new(None, Some(40 * MIB));
    let (a, b) = (on(&sim, windows().group(&group)), on(&sim, windows().group(&group).sink(ring.clone())));
    let (s, t) = (a.stream().unwrap(), b.stream().unwrap());
    let x = a.alloc(32 * MIB, &s).unwrap();
    let pieces: Vec<_> = (0..4).map(|_| b.alloc(4 * MIB, &t).unwrap()).collect();
    assert_eq!(crossings(&ring), [(44, 40, true)]);
    drop(pieces);
    b.synchronize().unwrap();
    assert_eq!(b.maintain().unwrap().bytes, 8 * MIB);
    assert_eq!(held(&group, &[&a, &b]), 40);
    drop((x, s, t, a));
    all_clean(&sim, b);
}

/// Members end in any order, with or without live allocations, before or after the group's handle; what they held is the others'.
#[test]
fn members_end_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for late_free in [false, true] {
            let sim = late();
            let group = group(60);
            let mut members: Vec<_> = (0..3)
                .map(|_| {
                    let gpu = on(&sim, windows().group(&group));
                    let s = gpu.stream().unwrap();
                    let x = gpu.alloc(20 * MIB, &s).unwrap();
                    Some((gpu, s, x))
                })
                .collect();
            for (n, &which) in order.iter().enumerate() {
                let (gpu, s, x) = members[which].take().unwrap();
                write(&sim, &x, &s);
                if late_free {
                    drop((gpu, s));
                    assert_eq!(group.report().reserved, (60 - 20 * n as u64) * MIB, "its allocation lives");
                    drop(x);
                } else {
                    drop((x, gpu, s));
                }
                let report = group.report();
                assert_eq!((report.reserved / MIB, report.members.len()), (40 - 20 * n as u64, 2 - n));
                if let Some((other, s, _)) = members.iter().flatten().next() {
                    drop(other.alloc((20 * (n as u64 + 1)) * MIB, s).unwrap());
                    other.synchronize().unwrap();
                    other.trim(Trim::All).unwrap();
                }
            }
            drop(group);
            all_back(&sim);
        }
    }
}

/// Each call of a growth fails in turn: nothing stays claimed, for the member or the group.
#[test]
fn a_failed_growth_claims_nothing() {
    for config in [windows(), Config::default()] {
        for call in [Call::MemAlloc, Call::Create, Call::Map, Call::SetAccess] {
            for kind in [Kind::OutOfMemory, Kind::Other] {
                let sim = late();
                let group = group(40);
                let gpu = on(&sim, config.clone().group(&group));
                let s = gpu.stream().unwrap();
                for nth in 1..=3 {
                    sim.fail(call, nth, kind);
                }
                drop(gpu.alloc(40 * MIB, &s));
                sim.clear_faults();
                gpu.synchronize().unwrap();
                assert_eq!(held(&group, &[&gpu]) * MIB, sim.ledger().bytes_reserved);
                drop(gpu.alloc(40 * MIB, &s).unwrap());
                gpu.synchronize().unwrap();
                gpu.trim(Trim::All).unwrap();
                assert_eq!(held(&group, &[&gpu]), 0, "{call:?} {kind:?}");
                drop(s);
                all_clean(&sim, gpu);
            }
        }
    }
}

/// A member that gives memory back for another one ends: its end waits until the other is through with it, and nothing is lost.
#[test]
fn a_member_that_gives_back_may_end() {
    for (call, nth) in [(Call::Unmap, 1), (Call::Unmap, 3), (Call::Release, 1), (Call::Release, 3)] {
        let sim = late();
        let group = group(64);
        let (a, b) = (on(&sim, windows().group(&group)), on(&sim, windows().group(&group)));
        let (s, t) = (a.stream().unwrap(), b.stream().unwrap());
        drop(a.alloc(60 * MIB, &s).unwrap());
        a.synchronize().unwrap();
        let (ended, has_ended) = mpsc::channel();
        sim.meanwhile(call, nth, move || {
            ended.send(std::thread::spawn(move || drop((s, a)))).unwrap();
        });
        let z = b.alloc(40 * MIB, &t).unwrap();
        write(&sim, &z, &t);
        has_ended.recv().unwrap().join().unwrap();
        assert_eq!(held(&group, &[&b]), 40);
        drop((z, t));
        all_clean(&sim, b);
    }
}

/// A trim that waits for the device in a plain free holds up no member that asks for handles.
#[test]
fn a_trim_that_waits_holds_up_no_asker() {
    let sim = late();
    let group = group(70);
    let (a, b) =
        (on(&sim, windows().group(&group).limit(Limit::Bytes(41 * MIB))), on(&sim, windows().group(&group)));
    let (s, t) = (a.stream().unwrap(), b.stream().unwrap());
    let x = a.alloc(40 * MIB, &s).unwrap();
    let plain = a.alloc(MIB, &s).unwrap();
    assert_eq!(sim.ledger().calls_of(Call::MemAlloc), 1, "less room than a unit: a plain segment");
    drop(plain);
    a.synchronize().unwrap();
    let (owner, asked, served) = (a.clone(), b.clone(), mpsc::channel());
    let t = Arc::new(t);
    let on_t = Arc::clone(&t);
    sim.meanwhile(Call::MemFree, 1, move || {
        // The trim is in the driver, and its turn is taken.
        drop(x);
        owner.synchronize().unwrap();
        let asks = std::thread::spawn(move || asked.alloc(60 * MIB, &on_t).map(drop));
        served.0.send(asks.join().unwrap()).unwrap();
    });
    a.trim(Trim::All).unwrap();
    served.1.recv().unwrap().unwrap();
    drop((s, t, a));
    all_clean(&sim, b);
}

/// Members on threads of their own, on two devices, with all the rest at once: the sum never exceeds the limit, no request fails while the share that each
/// needs is there, and at the end the books are even.
#[test]
fn members_on_threads_share_exactly() {
    const MEMBERS: usize = 4;
    let sims = Sim::devices(2, 4 * GIB);
    let group = Group::new(Some(MEMBERS as u64 * 16 * MIB), Some(40 * MIB));
    let members: Vec<_> = (0..MEMBERS)
        .map(|n| on(&sims[n % 2], if n == 3 { Config::default() } else { windows() }.group(&group)))
        .collect();
    let barrier = Barrier::new(MEMBERS + 1);
    std::thread::scope(|scope| {
        for (n, gpu) in members.iter().enumerate() {
            let (barrier, group) = (&barrier, &group);
            scope.spawn(move || {
                let s = gpu.stream().unwrap();
                barrier.wait();
                for round in 0..60_u64 {
                    // Never more than its share live; what others cache is theirs no longer when it is needed.
                    let mib = 1 + (round * 7 + n as u64 * 3) % 14;
                    let x = gpu.alloc(mib * MIB, &s);
                    assert!(group.report().reserved <= group.report().hard.unwrap());
                    // A member's plain segments are given back by its own trims alone.
                    assert!(x.is_ok() || n == 3 || gpu.report().group.is_some());
                    drop(x);
                    if round % 8 == 0 {
                        gpu.synchronize().unwrap();
                        gpu.trim(Trim::All).unwrap();
                    }
                }
                drop(s);
            });
        }
        barrier.wait();
    });
    for gpu in &members {
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
    }
    let report = group.report();
    assert!(report.reserved_peak <= report.hard.unwrap() && report.reserved_peak > 16 * MIB, "{report}");
    assert_eq!(held(&group, &members.iter().collect::<Vec<_>>()), 0);
    drop(members);
    sims.iter().for_each(all_back);
    assert_eq!(group.report().members, []);
}
