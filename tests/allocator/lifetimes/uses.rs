//! How uses on other streams are declared: until the free, until an event, shared, freed on, independent.

use crate::rig::{all_clean, check, late, on, write};
use millpond::units::MIB;
use millpond::{Config, Error, Limit, Policy, Reuse};

/// One block's worth of memory: the next owner of the bytes has to come after their last user.
fn tight() -> Config {
    Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(64 * MIB))
}

/// Freed on another stream: the bytes come back behind what that stream holds.
#[test]
fn free_on_another_stream() {
    let sim = late();
    let gpu = on(&sim, tight());
    let (home, user) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &x, &home);
    user.wait_stream(&home).unwrap();
    write(&sim, &x, &user);
    check(&sim, &x, &user);
    x.free_on(&user).unwrap();
    let total = gpu.report().total;
    assert_eq!((total.in_flight, total.counters.in_flight_frees), (64 * MIB, 1));
    let y = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &y, &home);
    assert_eq!(gpu.report().total.counters.waits_inserted, 1);
    y.free_on(&home).unwrap();
    assert_eq!(gpu.report().total.in_flight, 0, "its own stream needs nothing");
    drop((home, user));
    all_clean(&sim, gpu);
}

/// A use that ended before an event delays no reuse by what its stream is given later.
#[test]
fn record_use_until_an_event() {
    let sim = late();
    let gpu = on(&sim, tight());
    let (home, user) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &x, &home);
    user.wait_stream(&home).unwrap();
    check(&sim, &x, &user);
    let read = user.record().unwrap();
    x.record_use_until(&read).unwrap();
    // What comes later on that stream waits for a gate that only opens at the end.
    let gate = sim.gate(user.native()).unwrap();
    drop(x);
    home.wait(&read).unwrap();
    let waits = gpu.report().total.counters.waits_inserted;
    let y = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &y, &home);
    home.synchronize().expect("not behind the gate");
    assert_eq!(gpu.report().total.counters.waits_inserted, waits, "the program's own wait was enough");
    gate.open();
    // An event of the block's own stream says nothing new.
    y.record_use_until(&home.record().unwrap()).unwrap();
    drop(y);
    assert_eq!(gpu.report().total.in_flight, 0);
    drop((home, user, read));
    all_clean(&sim, gpu);
}

/// Sharing orders the first cross-stream use after the bytes' former life (law O7), with nothing else said.
#[test]
fn share_with_orders_after_the_former_life() {
    let sim = late();
    let gpu = on(&sim, tight());
    let (home, user) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let old = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &old, &home);
    check(&sim, &old, &home);
    drop(old);
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    x.share_with(&user).unwrap();
    x.share_with(&home).unwrap();
    write(&sim, &x, &user);
    drop(x);
    let y = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &y, &home);
    drop((y, home, user));
    all_clean(&sim, gpu);
}

/// An independent stream is never waited on and never made to wait: not as source, not as receiver, not as a user.
#[test]
fn independent_streams_get_no_inserted_wait() {
    // As source and as receiver.
    for source in [true, false] {
        let sim = late();
        let gpu = on(&sim, tight().bounded_wait(core::time::Duration::ZERO).policy(Policy::Footprint));
        let (free, alone) = (gpu.stream().unwrap(), gpu.stream().unwrap().independent());
        let (from, to) = if source { (&alone, &free) } else { (&free, &alone) };
        let x = gpu.alloc(64 * MIB, from).unwrap();
        write(&sim, &x, from);
        drop(x);
        let refused = gpu.alloc(64 * MIB, to).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
        assert_eq!(gpu.report().total.counters.waits_inserted, 0);
        // Ordered by the program itself, memory migrates to it without a wait of the allocator's.
        to.wait_stream(from).unwrap();
        let y = gpu.alloc(64 * MIB, to).unwrap();
        write(&sim, &y, to);
        drop(y);
        // Taken back, it is as any other.
        alone.set_independent(false);
        let z = gpu.alloc(64 * MIB, from).unwrap();
        write(&sim, &z, from);
        assert_eq!(gpu.report().total.counters.waits_inserted, 1);
        drop((z, free, alone));
        all_clean(&sim, gpu);
    }
    // As a user of a block in flight.
    let sim = late();
    let gpu = on(&sim, tight().bounded_wait(core::time::Duration::ZERO));
    let (home, alone) = (gpu.stream().unwrap(), gpu.stream().unwrap().independent());
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &x, &home);
    alone.wait_stream(&home).unwrap();
    x.record_use(&alone).unwrap();
    check(&sim, &x, &alone);
    drop(x);
    assert!(gpu.alloc(64 * MIB, &home).unwrap_err().out_of_memory().is_some());
    gpu.synchronize().unwrap();
    drop((gpu.alloc(64 * MIB, &home).unwrap(), home, alone));
    all_clean(&sim, gpu);
}

/// Independence is about memory. The data of an array are ordered on independent streams as on any: as the writer, as the
/// reader, and as the reader that a later write has to come after.
#[test]
fn arrays_are_ordered_on_independent_streams_too() {
    const LEN: usize = 1 << 16;
    for (alone_writes, both) in [(true, false), (false, false), (true, true)] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let streams = [gpu.stream().unwrap(), gpu.stream().unwrap().independent()];
        let [writer, reader] =
            if alone_writes { [&streams[1], &streams[0]] } else { [&streams[0], &streams[1]] };
        streams[0].set_independent(both);
        let mut x = gpu.uninit::<u8>(LEN, writer).unwrap();
        x.fill_bytes(1, writer).unwrap();
        let first = x.to_pinned(reader).unwrap();
        x.fill_bytes(2, writer).unwrap();
        writer.synchronize().unwrap();
        assert_eq!(first.wait().unwrap()[..], vec![1; LEN], "behind the write, before the next");
        assert_eq!(x.to_pinned(reader).unwrap().wait().unwrap()[..], vec![2; LEN]);
        drop((x, streams));
        all_clean(&sim, gpu);
    }
}

/// A block in flight whose home is independent: not even its cross-stream use is reason enough to wait for that home.
#[test]
fn an_independent_home_is_not_waited_for_by_its_ranges_in_flight() {
    let sim = late();
    let gpu = on(&sim, tight().bounded_wait(core::time::Duration::ZERO));
    let (alone, user, third) =
        (gpu.stream().unwrap().independent(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &alone).unwrap();
    write(&sim, &x, &alone);
    user.wait_stream(&alone).unwrap();
    check(&sim, &x, &user);
    x.record_use(&user).unwrap();
    drop(x);
    assert_eq!(gpu.report().total.in_flight, 64 * MIB);
    assert!(gpu.alloc(64 * MIB, &third).unwrap_err().out_of_memory().is_some());
    assert_eq!(gpu.report().total.counters.waits_inserted, 0);
    alone.set_independent(false);
    let y = gpu.alloc(64 * MIB, &third).unwrap();
    write(&sim, &y, &third);
    assert!(gpu.report().total.counters.waits_inserted > 0);
    drop((y, alone, user, third));
    all_clean(&sim, gpu);
}

/// A piece of a range in flight migrates after all its uses and its home stamp; the rest stays in flight with them.
#[test]
fn a_piece_of_a_range_in_flight_migrates() {
    let sim = late();
    let gpu = on(&sim, tight());
    let [home, user, third] = [0; 3].map(|_| gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &x, &home);
    user.wait_stream(&home).unwrap();
    x.record_use(&user).unwrap();
    check(&sim, &x, &user);
    check(&sim, &x, &home);
    drop(x);
    let piece = gpu.alloc(8 * MIB, &third).unwrap();
    write(&sim, &piece, &third);
    gpu.check();
    let total = gpu.report().total;
    assert_eq!((total.in_flight, total.counters.migrations_in), (56 * MIB, 1));
    assert_eq!(total.counters.waits_inserted, 2, "the use and the home stamp");
    let rest = gpu.alloc(56 * MIB, &home).unwrap();
    write(&sim, &rest, &home);
    check(&sim, &piece, &third);
    drop((piece, rest, home, user, third));
    all_clean(&sim, gpu);
}

/// The wait rung waits for every use of a range, one after the other, when waits may not be inserted.
#[test]
fn the_host_waits_for_all_uses_of_a_range() {
    let sim = late();
    let gpu = on(&sim, tight().reuse(millpond::Reuse::Ordered));
    let [home, a, b, c] = [0; 4].map(|_| gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &x, &home);
    for user in [&a, &b, &c] {
        user.wait_stream(&home).unwrap();
        x.record_use(user).unwrap();
        check(&sim, &x, user);
    }
    drop(x);
    let y = gpu.alloc(64 * MIB, &a).unwrap();
    write(&sim, &y, &a);
    let counters = gpu.report().total.counters;
    assert_eq!(counters.waits_inserted, 0);
    assert!((3..=4).contains(&counters.host_waits), "{counters:?}");
    drop((y, home, a, b, c));
    all_clean(&sim, gpu);
}

/// A block used by many streams, some of them gone by the time of the free.
#[test]
fn uses_on_streams_that_are_gone() {
    let sim = late();
    let gpu = on(&sim, tight());
    let home = gpu.stream().unwrap();
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &x, &home);
    for i in 0..10 {
        let user = gpu.stream().unwrap();
        user.wait_stream(&home).unwrap();
        x.record_use(&user).unwrap();
        check(&sim, &x, &user);
        if i % 2 == 0 {
            x.record_use_until(&user.record().unwrap()).unwrap();
        }
    }
    let kept = sim.ledger().streams;
    assert!(kept <= 4, "{kept} streams: those without references are marked, and go before the block");
    drop(x);
    let y = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &y, &home);
    assert_eq!(gpu.report().total.counters.waits_inserted, 10);
    gpu.trim(millpond::Trim::All).unwrap();
    assert_eq!(sim.ledger().streams, 1, "the block is gone, so they may go");
    drop((y, home));
    all_clean(&sim, gpu);
}
