//! Blocks on one handle each, and handles for other processes.

#![allow(clippy::many_single_char_names, reason = "streams and blocks, as in the drawings")]

use crate::rig::{all_clean, check, late, on, write, write_all};
use crate::windows::taken;
use millpond::allocator::VirtualMemory;
use millpond::driver::{DriverResult, Mapping};
use millpond::units::{Addr, MIB};
use millpond::{
    Allocation, Allocator, Config, DriverErrorKind as Kind, Error, Handles, Limit, Policy, Reuse, Trim,
};
use millpond_sim::{Call, Launch, Sim, SimHandle};
use millpond_testkit::dice::Dice;
use millpond_testkit::rig::word;
use millpond_testkit::suite::Plus;
use std::os::fd::AsFd;
use std::time::Duration;

fn windows(mib: u64, handles: Handles) -> Config {
    let config = Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(mib * MIB)).handles(handles);
    config.virtual_memory(VirtualMemory::Always).bounded_wait(Duration::ZERO)
}

fn alone(above: u64) -> Handles {
    Handles::default().one_above(above * MIB)
}

/// A block lies on one handle, which is as long as it in whole units.
fn is_alone(gpu: &Allocator<Sim>, x: &Allocation<Sim>) {
    let segment = gpu.segment(x.address()).unwrap();
    assert!(segment.is_one_piece(x.address(), x.len()), "{segment:?} {x:?}");
    assert_eq!((segment.piece, segment.piece_bytes), (x.address(), x.len().next_multiple_of(2 * MIB)));
}

/// Every block above the size lies on one handle, hit or miss, whatever else is allocated beside it.
#[test]
fn blocks_above_a_size_lie_on_one_handle() {
    for policy in [Policy::Latency, Policy::Footprint] {
        let sim = late();
        let gpu = on(&sim, windows(256, alone(4)).policy(policy));
        let streams = [0; 2].map(|_| gpu.stream().unwrap());
        let mut dice = Dice::new(0xA10E);
        let mut live = Vec::new();
        for _ in 0..400 {
            let n = dice.below(2);
            let bytes = (1 + dice.below(20) as u64) * MIB - dice.below(3) as u64 * 4096;
            if let Ok(x) = gpu.alloc(bytes, &streams[n]) {
                if bytes > 4 * MIB {
                    is_alone(&gpu, &x);
                }
                write(&sim, &x, &streams[n]);
                live.push((x, n));
            }
            while live.len() > 14 {
                let (x, n) = live.swap_remove(dice.below(live.len()));
                check(&sim, &x, &streams[n]);
            }
            taken(&sim, &gpu);
        }
        drop((live, streams));
        all_clean(&sim, gpu);
    }
}

/// The handle of a freed block serves the next block of its length: of its own stream at once, of another behind a wait, by moving.
#[test]
fn a_handle_serves_the_next_block_of_its_length() {
    let sim = late();
    let gpu = on(&sim, windows(10, alone(1)));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(9 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    let at = x.address();
    drop(x);
    let y = gpu.alloc(9 * MIB + 7, &s).unwrap();
    assert_eq!(y.address(), at);
    write(&sim, &y, &s);
    drop(y);
    let z = gpu.alloc(10 * MIB, &t).unwrap();
    is_alone(&gpu, &z);
    write(&sim, &z, &t);
    assert_eq!((taken(&sim, &gpu), sim.ledger().calls_of(Call::Create)), (10 * MIB, 1));
    assert_eq!(gpu.report().total.counters.waits_inserted, 1);
    drop((z, s, t));
    all_clean(&sim, gpu);
}

/// At the limit what is free in pieces is given back for a block on one handle.
#[test]
fn pieces_make_room_for_one_handle() {
    let sim = late();
    let gpu = on(&sim, windows(32, alone(4)));
    let s = gpu.stream().unwrap();
    let mut blocks: Vec<_> = (0..8).map(|_| Some(gpu.alloc(4 * MIB, &s).unwrap())).collect();
    blocks.iter_mut().step_by(2).for_each(|x| drop(x.take()));
    gpu.synchronize().unwrap();
    let x = gpu.alloc(15 * MIB, &s).unwrap();
    is_alone(&gpu, &x);
    write(&sim, &x, &s);
    assert_eq!(taken(&sim, &gpu), 32 * MIB);
    drop((x, blocks, s));
    all_clean(&sim, gpu);
}

/// An aligned block lies on one handle too; with plain segments every block lies in one.
#[test]
fn aligned_blocks_and_plain_segments() {
    let sim = late();
    let gpu = on(&sim, windows(256, alone(1)));
    let s = gpu.stream().unwrap();
    let blocks = [4, 64, 512].map(|align| gpu.alloc_aligned(5 * MIB, align * MIB, &s).unwrap());
    for (x, align) in blocks.iter().zip([4, 64, 512]) {
        assert!(x.address().0.is_multiple_of(align * MIB));
        is_alone(&gpu, x);
    }
    write_all(&sim, &blocks, &s);
    drop((blocks, s));
    all_clean(&sim, gpu);
    let sim = late();
    let gpu = Allocator::new(sim.clone(), Config::default().handles(alone(1))).unwrap();
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(5 * MIB, &s).unwrap();
    assert!(gpu.segment(x.address()).unwrap().is_one_piece(x.address(), x.len()));
    drop((x, s));
    all_clean(&sim, gpu);
}

/// Whichever call fails, the block is served the next time, and nothing is lost.
#[test]
fn a_call_that_fails_for_one_handle_loses_nothing() {
    for call in [Call::AddressReserve, Call::Create, Call::Map, Call::SetAccess, Call::Unmap, Call::Release] {
        for nth in 1..=3 {
            for kind in [Kind::OutOfMemory, Kind::Other] {
                let sim = late();
                let gpu = on(&sim, windows(32, alone(2)));
                let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
                sim.fail(call, nth, kind);
                for (mib, on) in [(9, &s), (20, &s), (9, &t), (31, &t)] {
                    let x = gpu.alloc(mib * MIB, on).or_else(|_| {
                        sim.clear_faults();
                        gpu.alloc(mib * MIB, on)
                    });
                    let x = x.or_else(|_| {
                        gpu.synchronize().unwrap();
                        gpu.alloc(mib * MIB, on)
                    });
                    let x = x.unwrap_or_else(|e| panic!("{call:?} {nth} {kind:?} {mib}: {e}"));
                    write(&sim, &x, on);
                    taken(&sim, &gpu);
                }
                sim.clear_faults();
                drop((s, t));
                gpu.check();
                drop(gpu);
                sim.run_until_idle();
                sim.verdict().unwrap();
                assert_eq!(sim.leaks(), [], "{call:?} {nth} {kind:?}");
            }
        }
    }
}

/// An owner of imported memory, as another process is.
#[allow(unsafe_code, reason = "the raw calls of another owner")]
mod importer {
    use super::*;

    pub(super) fn open(sim: &Sim, from: impl AsFd, bytes: u64) -> DriverResult<(SimHandle, Addr)> {
        let handle = sim.import(from.as_fd(), bytes)?;
        let at = sim.reserve(bytes, None)?;
        // SAFETY: reserved just now, and mapped just now.
        unsafe { sim.map(at, &handle).and_then(|()| sim.set_access(at, bytes))? };
        Ok((handle, at))
    }

    pub(super) fn close(sim: &Sim, (handle, at): (SimHandle, Addr)) {
        // SAFETY: every use was waited for.
        unsafe {
            sim.unmap(at, handle.bytes()).unwrap();
            sim.release(&handle).unwrap();
            sim.unreserve(at, handle.bytes()).unwrap();
        }
    }
}

/// What was exported stays where it is, whatever other streams ask for, and is nobody else's after it was freed until the hold ends.
#[test]
fn an_exported_block_is_the_same_memory_elsewhere() {
    let sim = late();
    let gpu = on(&sim, windows(64, alone(1).exportable(true)));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(8 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    let (bytes, written) = (x.len(), word(&x));
    let exported = gpu.export(&x).unwrap();
    assert_eq!((exported.handle_bytes(), exported.offset()), (8 * MIB, 0));
    assert!(gpu.segment(x.address()).unwrap().sharing.file_descriptor);
    gpu.synchronize().unwrap();
    let opened = importer::open(&sim, &exported, 8 * MIB).unwrap();
    let (descriptor, hold) = exported.into_parts();
    drop(descriptor);
    // Everything under the limit but these 8 MiB is used by others, over and over.
    for n in 0..6 {
        let stream = if n % 2 == 0 { &t } else { &s };
        let y = gpu.alloc(56 * MIB, stream).unwrap();
        write(&sim, &y, stream);
        drop(y);
        assert!(gpu.alloc(60 * MIB, &t).is_err());
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        taken(&sim, &gpu);
    }
    let look = gpu.stream().unwrap();
    sim.launch(look.native(), Launch::check_pattern(opened.1, bytes, written)).unwrap();
    gpu.synchronize().unwrap();
    sim.verdict().unwrap();
    importer::close(&sim, opened);
    drop(x);
    gpu.synchronize().unwrap();
    assert!(gpu.alloc(60 * MIB, &t).is_err(), "it is freed, and held still");
    drop(hold);
    let all = gpu.alloc(64 * MIB, &t).unwrap();
    write(&sim, &all, &t);
    drop((all, s, t, look));
    all_clean(&sim, gpu);
}

/// What cannot be shared is refused with what was requested, what was found and what to do; nothing is held then.
#[test]
fn what_cannot_be_exported_is_refused_in_words() {
    let shared = alone(64).exportable(true);
    let plain = Config::default().handles(shared);
    for (config, mib, found, advice) in [
        (plain, 8, "plain segment", "virtual memory"),
        (windows(64, Handles::default()), 2, "not made to be exported", "MILLPOND_EXPORT"),
        (windows(64, shared), 8, "several handles", "one_above"),
    ] {
        let sim = late();
        let gpu = Allocator::new(sim.clone(), config).unwrap();
        let s = gpu.stream().unwrap();
        let x = gpu.alloc(mib * MIB, &s).unwrap();
        let Err(e @ Error::NotShareable(_)) = gpu.export(&x) else { panic!("exported: {found}") };
        let said = e.to_string();
        let address = x.address().to_string();
        for word in ["a file descriptor", found, advice, &(mib * MIB).to_string(), &address] {
            assert!(said.contains(word), "{said:?} does not say {word:?}");
        }
        assert!(!gpu.segment(x.address()).unwrap().held);
        drop((x, s));
        all_clean(&sim, gpu);
    }
    let sim = late();
    let gpu = on(&sim, windows(64, shared));
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(2 * MIB, &s).unwrap();
    for kind in [Kind::OutOfMemory, Kind::Other, Kind::NotSupported] {
        sim.fail(Call::Export, 1, kind);
        assert!(matches!(gpu.export(&x), Err(Error::Driver(e)) if e.kind == kind));
        assert!(!gpu.segment(x.address()).unwrap().held);
    }
    assert!(matches!(gpu.export(&gpu.alloc(0, &s).unwrap()), Err(Error::UnknownAddress { .. })));
    // A block within a handle is exported with the handle.
    let (a, b) = (gpu.alloc(1024, &s).unwrap(), gpu.alloc(1024, &s).unwrap());
    let exported = gpu.export(&b).unwrap();
    assert_eq!((exported.handle_bytes(), exported.offset()), (2 * MIB, b.address().0 - a.address().0));
    assert_eq!(a.address().plus(exported.offset()), exported.hold().address());
    assert!(importer::open(&sim, &exported, 4 * MIB).is_err(), "another length");
    drop((a, b, x, exported, s));
    all_clean(&sim, gpu);
}
