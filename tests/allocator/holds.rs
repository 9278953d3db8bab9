//! What lies under an address, and memory that code outside the allocator holds.

#![allow(clippy::many_single_char_names, reason = "streams and blocks, as in the drawings")]

use crate::rig::{all_back, all_clean, check, late, on, write, write_all};
use crate::windows::taken;
use millpond::allocator::{Hold, SegmentKind, VirtualMemory};
use millpond::units::{Addr, MIB};
use millpond::{Allocation, Allocator, Config, Error, Limit, Policy, Reuse, Trim};
use millpond_sim::Sim;
use millpond_testkit::dice::Dice;
use millpond_testkit::effort::is_full;
use millpond_testkit::suite::Plus;
use std::time::Duration;

fn windows(mib: u64) -> Config {
    let config = Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(mib * MIB));
    config.virtual_memory(VirtualMemory::Always).bounded_wait(Duration::ZERO)
}

fn unknown<T: std::fmt::Debug>(result: Result<T, Error>, at: Addr) {
    match result {
        Err(Error::UnknownAddress { address, .. }) => assert_eq!(address, at),
        other => panic!("{other:?}"),
    }
}

/// Base and length of what an address lies in, wherever in a block it is.
#[test]
fn a_segment_says_what_lies_under_an_address() {
    let sim = late();
    let gpu = on(&sim, windows(1024));
    let s = gpu.stream().unwrap();
    // Three handles of 2 MiB side by side, and then a hole.
    let x = gpu.alloc(6 * MIB, &s).unwrap();
    for (at, piece) in [(0, 0), (2 * MIB - 1, 0), (2 * MIB, 2), (6 * MIB - 1, 4)] {
        let segment = gpu.segment(x.address().plus(at)).unwrap();
        assert_eq!((segment.address, segment.bytes), (x.address(), 6 * MIB));
        assert_eq!(segment.kind, SegmentKind::Handles);
        assert_eq!((segment.piece, segment.piece_bytes), (x.address().plus(piece * MIB), 2 * MIB));
        assert!(!segment.is_one_piece(x.address(), x.len()));
        assert!(segment.is_one_piece(x.address().plus(at), 1));
    }
    unknown(gpu.segment(x.address().plus(6 * MIB)), x.address().plus(6 * MIB));
    // Small requests have a window of their own.
    let small = gpu.alloc(512, &s).unwrap();
    let segment = gpu.segment(small.address()).unwrap();
    assert_eq!((segment.kind, segment.bytes), (SegmentKind::OneHandle, 2 * MIB));
    assert!(segment.is_one_piece(small.address(), small.len()) && !segment.held);
    assert!(!segment.is_one_piece(small.address(), u64::MAX));
    let pinned = gpu.alloc_pinned(MIB).unwrap();
    let segment = gpu.segment(pinned.address().plus(MIB - 1)).unwrap();
    assert_eq!(segment.kind, SegmentKind::Pinned);
    assert!(segment.is_one_piece(pinned.address(), MIB));
    unknown(gpu.segment(Addr(0)), Addr(0));
    unknown(gpu.segment(Addr(u64::MAX)), Addr(u64::MAX));
    drop((x, small, pinned, s));
    all_clean(&sim, gpu);
    // Plain segments.
    let sim = late();
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let s = gpu.stream().unwrap();
    let blocks = [3, 5, 30].map(|mib| gpu.alloc(mib * MIB, &s).unwrap());
    let segments = [0, 1, 2].map(|n: usize| gpu.segment(blocks[n].address().plus(MIB)).unwrap());
    assert_eq!(segments[0], segments[1], "20 MiB for both");
    assert_eq!((segments[0].bytes, segments[2].bytes), (20 * MIB, 30 * MIB));
    for (segment, x) in segments.iter().zip(&blocks) {
        assert_eq!(segment.kind, SegmentKind::Plain);
        assert_eq!((segment.piece, segment.piece_bytes), (segment.address, segment.bytes));
        assert!(segment.is_one_piece(x.address(), x.len()));
    }
    // Freed memory has a segment until it goes back.
    let at = blocks[2].address();
    drop(blocks);
    assert_eq!(gpu.segment(at).unwrap(), segments[2]);
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    unknown(gpu.segment(at), at);
    drop(s);
    all_clean(&sim, gpu);
}

/// What is not this allocator's, and what is not there, cannot be held; nothing is counted then.
#[test]
fn what_is_not_there_is_not_held() {
    let sim = late();
    let (gpu, other) = (on(&sim, windows(64)), on(&sim, windows(64)));
    let (s, of_other) = (gpu.stream().unwrap(), other.stream().unwrap());
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    let theirs = other.alloc(4 * MIB, &of_other).unwrap();
    unknown(gpu.hold(&theirs), theirs.address());
    unknown(gpu.hold_range(x.address(), 4 * MIB + 1), x.address());
    unknown(gpu.hold_range(x.address().plus(4 * MIB), 1), x.address().plus(4 * MIB));
    unknown(gpu.hold_range(x.address(), u64::MAX), x.address());
    let pinned = gpu.alloc_pinned(MIB).unwrap();
    let bytes = gpu.segment(pinned.address()).unwrap().bytes;
    unknown(gpu.hold_range(pinned.address(), bytes + 1), pinned.address());
    let nothing = gpu.alloc(0, &s).unwrap();
    assert_eq!(gpu.hold(&nothing).unwrap().bytes(), 0);
    assert!(!gpu.segment(x.address()).unwrap().held);
    drop((x, theirs, nothing, pinned, s, of_other));
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    assert_eq!(gpu.report().reserved, 0);
    gpu.check();
    drop(gpu);
    all_clean(&sim, other);
}

/// A held handle stays where it is: the move-handles and trim rungs of a request, a trim and a lower limit leave it.
#[test]
fn a_held_handle_stays_where_it_is() {
    for policy in [Policy::Latency, Policy::Footprint] {
        let sim = late();
        let gpu = on(&sim, windows(32).policy(policy));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let all: Vec<_> = (0..16).map(|_| gpu.alloc(2 * MIB, &s).unwrap()).collect();
        write_all(&sim, &all, &s);
        let at = all[6].address();
        let hold = gpu.hold(&all[6]).unwrap();
        assert_eq!((hold.address(), hold.bytes()), (at, 2 * MIB));
        let kept: Vec<_> = all.into_iter().enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, x)| x).collect();
        for stream in [&s, &t] {
            // Eight handles are free, one of them is held.
            assert!(matches!(gpu.alloc(16 * MIB, stream), Err(Error::OutOfMemory(_))), "{policy:?}");
            drop(gpu.alloc(14 * MIB, stream).unwrap());
            let segment = gpu.segment(at).unwrap();
            assert!(segment.held && segment.piece == at, "{segment:?}");
            taken(&sim, &gpu);
        }
        gpu.synchronize().unwrap();
        gpu.set_limit(Limit::Bytes(0)).unwrap();
        assert_eq!(taken(&sim, &gpu), 18 * MIB, "eight live handles, and one that is held");
        gpu.trim(Trim::All).unwrap();
        gpu.trim(Trim::Stream(&s)).unwrap();
        assert_eq!(taken(&sim, &gpu), 18 * MIB);
        gpu.set_limit(Limit::Bytes(32 * MIB)).unwrap();
        drop(hold);
        let x = gpu.alloc(16 * MIB, &t).unwrap();
        write(&sim, &x, &t);
        for x in &kept {
            check(&sim, x, &s);
        }
        drop((x, kept, s, t));
        all_clean(&sim, gpu);
    }
}

/// What is freed while it is held serves its own stream, and no other, by whatever rung: complete, behind a wait, or in flight.
#[test]
fn what_is_held_serves_its_own_stream() {
    for plain in [true, false] {
        for (complete, in_flight) in [(true, false), (false, false), (false, true)] {
            let sim = late();
            let choice = if plain { VirtualMemory::Never } else { VirtualMemory::Always };
            let gpu = Allocator::new(sim.clone(), windows(64).virtual_memory(choice)).unwrap();
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let x = gpu.alloc(40 * MIB, &s).unwrap();
            write(&sim, &x, &s);
            if in_flight {
                t.wait_stream(&s).unwrap();
                x.record_use(&t).unwrap();
                check(&sim, &x, &t);
            }
            let (hold, again, at) = (gpu.hold(&x).unwrap(), gpu.hold(&x).unwrap(), x.address());
            drop(x);
            if complete {
                gpu.synchronize().unwrap();
            }
            drop(again);
            let refused = gpu.alloc(40 * MIB, &t);
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{plain} {complete} {in_flight}");
            // Whatever of it is small.
            let small = gpu.alloc(MIB, &t).unwrap();
            assert!(small.address() < at || small.address() >= at.plus(40 * MIB));
            let y = gpu.alloc(40 * MIB, &s).unwrap();
            assert_eq!(y.address(), at);
            write(&sim, &y, &s);
            gpu.check();
            drop((y, small, hold));
            let z = gpu.alloc(40 * MIB, &t).unwrap();
            write(&sim, &z, &t);
            drop((z, s, t));
            all_clean(&sim, gpu);
        }
    }
}

/// Around a held handle everything else of a long free range serves others.
#[test]
fn what_is_not_held_of_a_range_serves_others() {
    let sim = late();
    let gpu = on(&sim, windows(64));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(62 * MIB, &s).unwrap();
    let middle = gpu.segment(x.address().plus(40 * MIB)).unwrap();
    let hold = gpu.hold_range(middle.piece, 1).unwrap();
    drop(x);
    gpu.synchronize().unwrap();
    let y = gpu.alloc(30 * MIB, &t).unwrap();
    write(&sim, &y, &t);
    assert!(
        y.address().plus(y.len()) <= middle.piece || y.address() >= middle.piece.plus(middle.piece_bytes)
    );
    taken(&sim, &gpu);
    drop((y, hold, s, t));
    all_clean(&sim, gpu);
}

/// The memory of a stream that is gone stays its pool's while it is held, and is everybody's afterwards.
#[test]
fn what_a_stream_that_is_gone_had_is_held() {
    for choice in [VirtualMemory::Never, VirtualMemory::Always] {
        let sim = late();
        let gpu = Allocator::new(sim.clone(), windows(64).virtual_memory(choice)).unwrap();
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(60 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        let hold = gpu.hold(&x).unwrap();
        drop((x, s));
        sim.run_until_idle();
        gpu.synchronize().unwrap();
        let t = gpu.stream().unwrap();
        assert!(gpu.alloc(60 * MIB, &t).is_err());
        gpu.check();
        drop(hold);
        let y = gpu.alloc(60 * MIB, &t).unwrap();
        write(&sim, &y, &t);
        drop((y, t));
        all_clean(&sim, gpu);
    }
}

/// Plain segments and pinned ones do not go back while they are held.
#[test]
fn held_segments_do_not_go_back() {
    let sim = late();
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let s = gpu.stream().unwrap();
    let (x, pinned) = (gpu.alloc(30 * MIB, &s).unwrap(), gpu.alloc_pinned(MIB).unwrap());
    let holds = [
        gpu.hold(&x).unwrap(),
        gpu.hold_range(x.address().plus(5), 7).unwrap(),
        gpu.hold_range(pinned.address(), MIB).unwrap(),
    ];
    let at = (x.address(), pinned.address());
    drop((x, pinned));
    gpu.synchronize().unwrap();
    let mut holds = holds.into_iter();
    for left in (1..=3).rev() {
        gpu.trim(Trim::All).unwrap();
        assert_eq!(gpu.segment(at.0).is_ok(), left > 1);
        assert!(gpu.segment(at.1).unwrap().held);
        gpu.check();
        drop(holds.next());
    }
    gpu.trim(Trim::All).unwrap();
    assert!(gpu.segment(at.1).is_err() && gpu.report().reserved == 0);
    drop(s);
    all_clean(&sim, gpu);
}

/// A hold keeps its allocator from ending; its drop ends it.
#[test]
fn an_allocator_does_not_end_while_something_is_held() {
    let sim = late();
    let gpu = on(&sim, windows(64));
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(8 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    let hold = gpu.hold(&x).unwrap();
    drop((x, s, gpu));
    sim.run_until_idle();
    assert_eq!(sim.ledger().bytes_reserved, 8 * MIB);
    drop(hold);
    all_back(&sim);
}

/// Random programs in which blocks are held, freed while they are held, and trimmed: the walkers, the oracle and the contents are content, and what is held
/// has not moved.
#[test]
fn random_programs_with_holds() {
    for seed in 0..if is_full() { 300 } else { 40 } {
        let mut dice = Dice::new(0x401D + seed);
        let sim = late();
        let policy = if seed % 2 == 0 { Policy::Latency } else { Policy::Footprint };
        let choice = if seed % 3 == 0 { VirtualMemory::Never } else { VirtualMemory::Always };
        let gpu = on(&sim, windows(96).policy(policy).virtual_memory(choice));
        let streams = [0; 3].map(|_| gpu.stream().unwrap());
        let mut live: Vec<(Allocation<Sim>, usize)> = Vec::new();
        let mut holds: Vec<(Hold<Sim>, Addr)> = Vec::new();
        for _ in 0..120 {
            match dice.below(10) {
                0..=3 => {
                    let n = dice.below(3);
                    let bytes = (1 + dice.below(12) as u64) * MIB / (1 + dice.below(3) as u64);
                    if let Ok(x) = gpu.alloc(bytes, &streams[n]) {
                        write(&sim, &x, &streams[n]);
                        live.push((x, n));
                    }
                }
                4..=6 if !live.is_empty() => {
                    let (x, n) = live.swap_remove(dice.below(live.len()));
                    check(&sim, &x, &streams[n]);
                }
                7 if !live.is_empty() => {
                    let x = &live[dice.below(live.len())].0;
                    let hold = gpu.hold(x).unwrap();
                    let piece = gpu.segment(x.address()).unwrap().piece;
                    holds.push((hold, piece));
                }
                8 if !holds.is_empty() => drop(holds.swap_remove(dice.below(holds.len()))),
                9 => drop(gpu.trim(Trim::All).unwrap()),
                _ => drop(sim.run_until_idle()),
            }
            for (hold, piece) in &holds {
                let segment = gpu.segment(hold.address()).unwrap();
                assert!(segment.held && segment.piece == *piece, "{seed}: {segment:?}");
            }
            taken(&sim, &gpu);
        }
        drop((live, holds, streams));
        all_clean(&sim, gpu);
    }
}
