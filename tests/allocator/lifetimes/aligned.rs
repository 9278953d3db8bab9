//! Aligned requests, for which a long free range may be no use and a short one may: behind more near misses than a search looks at, and
//! in flight.

use crate::rig::{all_clean, check, late, on, write};
use millpond::units::{KIB, MIB};
use millpond::{Allocation, Allocator, Config, Growth, Limit, Reuse, Stream};
use millpond_sim::Sim;
use std::time::Duration;

/// More near misses than a search looks at.
const MANY: usize = 1300;
const LEN: u64 = 512 * KIB;
/// The alignments.
const FAR: u64 = 64 * MIB;

/// Free ranges of the length of the requests, none of which begins at a multiple, in segments of their own; and one that is a little
/// longer, which a search looks at first. Returns those that begin at one.
fn near_misses(gpu: &Allocator<Sim>, s: &Stream<Sim>) -> Vec<Allocation<Sim>> {
    let blocks = (0..MANY).map(|_| gpu.alloc(LEN, s).unwrap());
    let (mut kept, near): (Vec<_>, Vec<_>) = blocks.partition(|x| x.address().0.is_multiple_of(FAR));
    let odd = loop {
        let x = gpu.alloc(600 * KIB, s).unwrap();
        if !x.address().0.is_multiple_of(FAR) {
            break x;
        }
        kept.push(x);
    };
    assert!(near.len() > 1024, "{} near misses", near.len());
    drop((near, odd));
    kept
}

/// What was acquired from the device for a request serves it, and so does what migrated from another pool for it, however many near misses a search
/// for it looks at.
#[test]
fn what_was_brought_for_an_aligned_request_serves_it() {
    for migrated in [false, true] {
        let sim = late();
        let gpu = on(&sim, Config::default().growth(Growth::Exact));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let long = migrated.then(|| gpu.alloc(LEN + FAR - 512, &t).unwrap());
        let kept = near_misses(&gpu, &s);
        drop(long);
        gpu.synchronize().unwrap();
        let growths = gpu.report().growths;
        let x = gpu.alloc_aligned(LEN, FAR, &s).unwrap();
        assert_eq!(x.address().0 % FAR, 0);
        write(&sim, &x, &s);
        let report = gpu.report();
        let counted = (report.growths - growths, report.total.counters.migrations_in, report.moving);
        assert_eq!(counted, if migrated { (0, 1, 0) } else { (1, 0, 0) });
        drop((x, kept, s, t));
        all_clean(&sim, gpu);
    }
}

/// Before a request is refused all that is free is looked at: a free range of the pool's own serves behind any number of near misses.
#[test]
fn an_aligned_request_is_not_refused_for_near_misses() {
    let sim = late();
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let s = gpu.stream().unwrap();
    // Free before the near misses are: last in its bin.
    let fits = gpu.alloc_aligned(LEN, FAR, &s).unwrap();
    let address = fits.address();
    let kept = near_misses(&gpu, &s);
    let near: Vec<_> = (0..MANY - kept.len()).map(|_| gpu.alloc(LEN, &s).unwrap()).collect();
    drop(fits);
    drop(near);
    gpu.set_limit(Limit::Bytes(gpu.report().reserved)).unwrap();
    let x = gpu.alloc_aligned(LEN, FAR, &s).expect("it is free");
    assert_eq!(x.address(), address);
    write(&sim, &x, &s);
    drop((x, kept, s));
    all_clean(&sim, gpu);
}

/// A range in flight that begins at a multiple serves an aligned request of its own length, at home and elsewhere, behind an inserted wait.
#[test]
fn a_range_in_flight_serves_where_it_lies() {
    for (elsewhere, many) in [(false, false), (true, false), (true, true)] {
        let sim = late();
        let config = Config::default()
            .reuse(Reuse::WithWaits)
            .limit(Limit::Bytes(64 * MIB))
            .bounded_wait(Duration::ZERO);
        let gpu = on(&sim, config);
        let (s, t, u) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
        let streams: Vec<_> = (0..if many { 100 } else { 0 }).map(|_| gpu.stream().unwrap()).collect();
        let x = gpu.alloc(64 * MIB, &s).unwrap();
        assert_eq!(x.address().0 % (2 * MIB), 0);
        write(&sim, &x, &s);
        t.wait_stream(&s).unwrap();
        x.record_use(&t).unwrap();
        check(&sim, &x, &t);
        drop(x);
        let home = if elsewhere { &u } else { &s };
        let y = gpu.alloc_aligned(64 * MIB, 2 * MIB, home).expect("behind a wait");
        write(&sim, &y, home);
        assert_eq!(y.address().0 % (2 * MIB), 0);
        assert_eq!(gpu.report().total.counters.host_waits, 0);
        drop((y, s, t, u, streams));
        all_clean(&sim, gpu);
    }
}
