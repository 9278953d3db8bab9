//! How pinned memory grows: its segments, its limit and where that comes from, several threads at once.

use millpond::driver::HostMemory;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, Error, Limit, OutOfMemory};
use millpond_sim::{Call, Sim};
use std::sync::Barrier;
use std::time::Duration;

fn refusal<T>(outcome: Result<T, Error>) -> Box<OutOfMemory> {
    match outcome {
        Err(Error::OutOfMemory(refused)) => refused,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it was served"),
    }
}

/// A segment is a quarter of what is reserved, from 64 MiB to a GiB; a request that is larger takes what it needs (D7).
#[test]
fn segments_grow_with_what_is_reserved() {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let (mut held, mut segments, mut before) = (Vec::new(), Vec::new(), 0);
    while before < 8 * GIB {
        held.push(gpu.alloc_pinned(16 * MIB).unwrap());
        let reserved = sim.ledger().bytes_pinned;
        if reserved > before {
            segments.push((reserved - before) / MIB);
            before = reserved;
        }
    }
    assert_eq!(segments[..6], [64, 64, 64, 64, 64, 80]);
    assert!(segments.is_sorted() && segments.iter().all(|&s| s <= 1024) && segments.last() == Some(&1024));
    let large = gpu.alloc_pinned(10 * GIB + 512).unwrap();
    assert_eq!(sim.ledger().bytes_pinned - before, 10 * GIB + 2 * MIB);
    let host = gpu.report().pinned_host.unwrap();
    assert_eq!(host.segments, segments.len() as u64 + 1);
    assert!(host.growth_time > Duration::ZERO && host.limit.is_none());
    drop((held, large, gpu));
    assert_eq!(sim.ledger().bytes_pinned, 0);
}

/// What the limit does not leave room for is tried smaller, down to the request itself.
#[test]
fn under_a_limit_segments_are_smaller() {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default().pinned_limit(70 * MIB)).unwrap();
    let first = gpu.alloc_pinned(64 * MIB).unwrap();
    let second = gpu.alloc_pinned(MIB).unwrap();
    assert_eq!(sim.ledger().bytes_pinned, 66 * MIB);
    let third = gpu.alloc_pinned(4 * MIB + 512).unwrap_err();
    assert!(matches!(third, Error::OutOfMemory(_)));
    let third = gpu.alloc_pinned(4 * MIB).unwrap();
    assert_eq!(sim.ledger().bytes_pinned, 70 * MIB);
    drop((first, second, third));
}

/// P15: where the device knows its host's memory the limit is half of it; the error says so. What the program says counts more.
#[test]
fn the_limit_is_a_share_of_the_hosts_memory() {
    let quick = || Config::default().bounded_wait(Duration::from_millis(1));
    let on = |memory, config| Allocator::new(Sim::new(GIB).with_host_memory(memory), config).unwrap();
    let machine = HostMemory::new(256 * MIB, None);
    let gpu = on(machine, quick());
    let held = gpu.alloc_pinned(100 * MIB).unwrap();
    let refused = refusal(gpu.alloc_pinned(100 * MIB));
    assert_eq!(refused.pinned_limit, Some(128 * MIB));
    let said = refused.to_string();
    assert!(
        said.contains("limit of 128 MiB (50 % of the 256 MiB of memory that this machine has, by default)"),
        "{said}"
    );
    assert!(said.contains("MILLPOND_PINNED_LIMIT"), "{said}");
    let said = refusal(gpu.alloc_pinned(200 * MIB)).to_string();
    assert!(said.contains("The request alone is above the limit of 128 MiB (50 %"), "{said}");
    let report = gpu.report();
    assert_eq!(report.pinned_host.as_ref().and_then(|p| p.limit), Some(128 * MIB));
    assert!(report.to_string().contains("limit 128 MiB (50 % of"), "{report}");
    drop(held);

    let container = HostMemory::new(256 * MIB, Some(80 * MIB));
    let refused = refusal(on(container, quick()).alloc_pinned(41 * MIB));
    assert_eq!(refused.pinned_limit, Some(40 * MIB));
    assert!(refused.to_string().contains("that this container may use"), "{refused}");
    let quarter = quick().pinned_limit(Limit::Fraction(0.25));
    assert_eq!(refusal(on(container, quarter.clone()).alloc_pinned(41 * MIB)).pinned_limit, Some(20 * MIB));
    drop(on(container, quick().pinned_limit(60 * MIB)).alloc_pinned(60 * MIB).unwrap());
    drop(on(container, quick().pinned_limit(Limit::None)).alloc_pinned(300 * MIB).unwrap());
    // A device that does not know has no default, and a share of what is not known is refused.
    drop(Allocator::new(Sim::new(GIB), quick()).unwrap().alloc_pinned(300 * MIB).unwrap());
    let refused = Allocator::new(Sim::new(GIB), quarter).map(drop).unwrap_err().to_string();
    assert!(refused.contains("pinned_limit") && refused.contains("0.25"), "{refused}");
}

/// Of threads that miss at once one grows, and the others take from what it pinned.
#[test]
fn threads_that_miss_at_once_grow_once() {
    const THREADS: usize = 8;
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let start = Barrier::new(THREADS);
    let held: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    gpu.alloc_pinned(MIB).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((held.len(), sim.ledger().calls_of(Call::MemHostAlloc)), (THREADS, 1));
}
