//! Drop orders: of an allocator, its streams, its allocations and events, with work pending on the device.

use crate::rig::{all_back, all_clean, check, check_all, late, on, write, write_all};
use millpond::units::MIB;
use millpond::{Allocation, Allocator, Config, Limit, Reuse, Trim};
use millpond_sim::Sim;
use std::any::Any;

/// Calls `each` with every order of `0..n`.
fn permutations(n: usize, each: &mut dyn FnMut(&[usize])) {
    fn go(order: &mut Vec<usize>, left: &mut Vec<usize>, each: &mut dyn FnMut(&[usize])) {
        if left.is_empty() {
            return each(order);
        }
        for i in 0..left.len() {
            let taken = left.remove(i);
            order.push(taken);
            go(order, left, each);
            order.pop();
            left.insert(i, taken);
        }
    }
    go(&mut Vec::new(), &mut (0..n).collect(), each);
}

#[test]
fn permutations_are_all_there() {
    let mut seen = std::collections::BTreeSet::new();
    permutations(4, &mut |order| assert!(seen.insert(order.to_vec())));
    assert_eq!(seen.len(), 24);
}

/// The allocator, two streams, a block of each with a use on the other, pinned memory with a use, an event: all orders.
#[test]
fn every_order_of_drops_with_work_pending() {
    let mut orders = 0;
    permutations(if cfg!(miri) { 3 } else { 6 }, &mut |order| {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(MIB, &a).unwrap();
        let y = gpu.alloc(3000, &b).unwrap();
        write(&sim, &x, &a);
        write(&sim, &y, &b);
        b.wait_stream(&a).unwrap();
        x.record_use(&b).unwrap();
        check(&sim, &x, &b);
        let pinned = gpu.alloc_pinned(4096).unwrap();
        pinned.record_use(&a).unwrap();
        let event = b.record().unwrap();
        let mut things: Vec<Option<Box<dyn Any>>> = vec![
            Some(Box::new(gpu)),
            Some(Box::new(a)),
            Some(Box::new(b)),
            Some(Box::new(x)),
            Some(Box::new((y, event))),
            Some(Box::new(pinned)),
        ];
        for &i in order {
            drop(things[i].take());
        }
        drop(things);
        all_back(&sim);
        orders += 1;
    });
    assert_eq!(orders, if cfg!(miri) { 6 } else { 720 });
}

/// The drop that ends it all may come from a thread that never saw the allocator.
#[test]
fn the_last_drop_on_another_thread_gives_everything_back() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let blocks: Vec<Allocation<Sim>> = (1..5).map(|i| gpu.alloc(i * MIB, &s).unwrap()).collect();
    write_all(&sim, &blocks, &s);
    drop((gpu, s));
    assert!(sim.ledger().bytes_reserved > 0, "blocks keep their memory");
    std::thread::scope(|t| {
        for x in blocks {
            t.spawn(move || drop(x));
        }
    });
    assert_eq!(sim.ledger().bytes_reserved, 0, "given back by whichever thread was last");
    all_back(&sim);
}

/// A raw value keeps its bytes though everything else is dropped, and gives everything back once it is taken up.
#[test]
#[allow(unsafe_code, reason = "from_raw trusts its caller")]
fn a_raw_allocation_outlives_its_allocator() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    let (id, at) = (x.id(), x.address());
    write(&sim, &x, &s);
    let raw = x.into_raw();
    let nothing = gpu.alloc(0, &s).unwrap().into_raw();
    drop((gpu, s));
    assert_eq!((raw.address(), raw.len()), (at, MIB));
    assert_eq!(sim.ledger().plain_ranges, 1);
    // SAFETY: both came from `into_raw` above and are taken up once.
    let (x, nothing) = unsafe { (Allocation::from_raw(raw), Allocation::from_raw(nothing)) };
    assert_eq!(x.id(), id);
    assert!(nothing.is_empty());
    drop((x, nothing));
    all_back(&sim);
}

/// D5 at this level: a fresh stream an epoch, 128 MiB live. What a closed pool cached serves the next stream, and what
/// is counted for a stream that is gone goes too.
#[test]
fn d05_a_fresh_stream_per_epoch_stays_flat() {
    let sim = Sim::new(4 * 1024 * MIB);
    let gpu = on(&sim, Config::default());
    let mut first = None;
    for epoch in 0..40 {
        let s = gpu.stream().unwrap();
        let blocks: Vec<_> = (0..8).map(|_| gpu.alloc(16 * MIB, &s).unwrap()).collect();
        write_all(&sim, &blocks, &s);
        check_all(&sim, &blocks, &s);
        drop(blocks);
        drop(s);
        assert!(sim.run_until_idle(), "the epoch is over");
        let taken = gpu.report().reserved;
        assert_eq!(taken, *first.get_or_insert(taken), "in epoch {epoch}");
    }
    assert_eq!(first, Some(8 * 20 * MIB));
    let (pools, ledger) = (gpu.report().pools.len(), sim.ledger());
    assert!(pools <= 17, "{pools} pools are still on the list after 40 streams");
    assert!(ledger.streams <= 1 && ledger.events <= 17, "{ledger:?}");
    all_clean(&sim, gpu);
}

/// As before, with the device as late as legal: nothing is complete, so the next stream takes the bytes behind a wait.
#[test]
fn d05_fresh_streams_with_pending_work_take_over_behind_waits() {
    let sim = late();
    let gpu = on(&sim, Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(160 * MIB)));
    for _ in 0..40 {
        let s = gpu.stream().unwrap();
        let blocks: Vec<_> = (0..8).map(|_| gpu.alloc(16 * MIB, &s).unwrap()).collect();
        write_all(&sim, &blocks, &s);
        check_all(&sim, &blocks, &s);
    }
    let report = gpu.report();
    assert_eq!((report.reserved, report.growths), (160 * MIB, 8));
    assert_eq!(report.total.counters.host_waits, 0, "ordered on the device");
    all_clean(&sim, gpu);
}

/// Streams are cheap: a thousand at once, each with a block, closed in an arbitrary order.
#[test]
fn a_thousand_streams() {
    let n: usize = if cfg!(miri) { 30 } else { 1000 };
    let sim = late();
    let gpu = on(&sim, Config::default());
    let mut all: Vec<_> = (0..n)
        .map(|_| {
            let s = gpu.stream().unwrap();
            let x = gpu.alloc(4096, &s).unwrap();
            write(&sim, &x, &s);
            (Some(s), Some(x))
        })
        .collect();
    gpu.check();
    assert_eq!(gpu.report().pools.len(), n);
    for i in 0..n {
        let (s, x) = &mut all[i * 7 % n];
        if i % 2 == 0 { drop(s.take()) } else { drop(x.take()) }
    }
    drop(all);
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    assert_eq!(sim.ledger().bytes_reserved, 0);
    assert_eq!(gpu.report().pools.len(), 0, "closed and empty pools leave the list");
    assert_eq!(sim.ledger().streams, 0);
    all_clean(&sim, gpu);
}

/// The list to look at when something was not freed.
#[test]
fn live_lists_what_was_not_freed_by_name() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let kept = gpu.alloc_named(1000, "weights", &a).unwrap();
    let freed = gpu.alloc_named(2000, "batch", &a).unwrap();
    let plain = gpu.alloc(3000, &b).unwrap();
    let empty = gpu.alloc_named(0, "nothing", &a).unwrap();
    drop(freed);
    let list = |gpu: &Allocator<Sim>| {
        gpu.live()
            .into_iter()
            .map(|l| (l.name.map(|n| n.to_string()), l.bytes, l.stream.unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(list(&gpu), [(Some("weights".into()), 1000, a.id()), (None, 3000, b.id())]);
    // The next owner of the same chunk does not inherit the name, not even through a free in flight.
    kept.record_use(&b).unwrap();
    let at = kept.address();
    drop(kept);
    a.wait_stream(&b).unwrap();
    gpu.synchronize().unwrap();
    let next = gpu.alloc(1000, &a).unwrap();
    assert_eq!(next.address(), at);
    assert_eq!(list(&gpu), [(None, 1000, a.id()), (None, 3000, b.id())]);
    drop((next, plain, empty, a, b));
    assert_eq!(gpu.live(), []);
    all_clean(&sim, gpu);
}

/// Two allocators on one device: one may go, with what is pending, while the other goes on.
#[test]
fn two_allocators_on_one_device_in_either_order() {
    for first_goes in [true, false] {
        let sim = late();
        let (one, two) = (on(&sim, Config::default()), on(&sim, Config::default()));
        let (a, b) = (one.stream().unwrap(), two.stream().unwrap());
        let (x, y) = (one.alloc(MIB, &a).unwrap(), two.alloc(MIB, &b).unwrap());
        write(&sim, &x, &a);
        write(&sim, &y, &b);
        // Each uses the other's block.
        b.wait_stream(&a).unwrap();
        x.record_use(&b).unwrap();
        check(&sim, &x, &b);
        a.wait_stream(&b).unwrap();
        y.record_use(&a).unwrap();
        check(&sim, &y, &a);
        if first_goes {
            drop((one, a, x));
            let z = two.alloc(MIB, &b).unwrap();
            write(&sim, &z, &b);
            drop((z, y, b));
            all_clean(&sim, two);
        } else {
            drop((y, b, two));
            let z = one.alloc(MIB, &a).unwrap();
            write(&sim, &z, &a);
            drop((z, x, a));
            all_clean(&sim, one);
        }
    }
}
