//! Copies of pageable memory in pieces, by several numbers of threads, on the simulated device under its oracle. What holds on every device is in
//! `testkit/src/suite/transfers.rs`, and that they survive every failing call in `tests/allocator/faults.rs`.

use super::clean;
use millpond::allocator::StagingPieces;
use millpond::bytemuck::Pod;
use millpond::transfer::Uploads;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DriverErrorKind, Error, Stream};
use millpond_sim::{Call, Launch, Schedule, Sim};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::thread;

const THREADS: [usize; 4] = [0, 1, 2, 8];

/// Many short pieces: more than slots, from a few hundred bytes on.
fn pieces() -> StagingPieces {
    StagingPieces::of(300, 5000)
}

fn staged(sim: &Sim, threads: usize) -> Allocator<Sim> {
    Allocator::new(sim.clone(), Config::default().staging_threads(threads).staging_pieces(pieces())).unwrap()
}

/// Makes a device that runs as late as it may, or at once.
fn device(late: bool) -> Sim {
    Sim::new(GIB).schedule(if late { Schedule::Latest } else { Schedule::Earliest })
}

/// Elements of any type, by their number.
fn elements<T: Pod>(len: usize, seed: u8) -> Vec<T> {
    let byte = |i: usize| (i.wrapping_mul(31) >> 3) as u8 ^ seed;
    let mut all = vec![T::zeroed(); len];
    let bytes: &mut [u8] = millpond::bytemuck::cast_slice_mut(&mut all);
    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
    all
}

/// There and back on two streams, whole and in part.
fn round_trip<T: Pod + PartialEq + std::fmt::Debug>(
    gpu: &Allocator<Sim>,
    (s, t): (&Stream<Sim>, &Stream<Sim>),
    len: usize,
    part: (usize, usize),
) {
    let source = elements::<T>(len, 5);
    let before = source.clone();
    let mut x = gpu.array_from_slice(&source, s).unwrap();
    let mut back = elements::<T>(len, 9);
    x.copy_to_slice(&mut back, t).unwrap();
    assert_eq!(back, source);
    let (from, to) = (part.0.min(part.1).min(len), part.0.max(part.1).min(len));
    let other = elements::<T>(to - from, 77);
    x.slice_mut(from..to).copy_from_slice(&other, t).unwrap();
    let mut expected = source.clone();
    expected[from..to].clone_from_slice(&other);
    assert_eq!(x.to_vec(s).unwrap(), expected);
    let mut some = elements::<T>(to - from, 1);
    x.slice(from..to).copy_to_slice(&mut some, s).unwrap();
    assert_eq!(some, other);
    assert_eq!(source, before, "the source is only read");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_elements_come_back_by_any_number_of_threads(
        len in 0..40_000_usize,
        part in (0..40_000_usize, 0..40_000_usize),
        late in any::<bool>(),
    ) {
        for threads in THREADS {
            let sim = device(late);
            let gpu = staged(&sim, threads);
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            round_trip::<u8>(&gpu, (&s, &t), len, part);
            round_trip::<[u16; 3]>(&gpu, (&s, &t), len / 6, part);
            round_trip::<u64>(&gpu, (&s, &t), len / 8, part);
            round_trip::<[u64; 100]>(&gpu, (&s, &t), len / 800, (part.0 / 800, part.1 / 800));
            drop((s, t));
            gpu.synchronize().unwrap();
            prop_assert_eq!(gpu.report().pinned.map_or(0, |pinned| pinned.allocated), 0);
            drop(gpu);
            clean(&sim);
        }
    }
}

/// The driver's calls follow from the length and the number of threads, whatever the threads do when.
#[test]
fn the_drivers_calls_are_the_same_in_every_run() {
    let calls = |threads: usize| -> BTreeMap<_, _> {
        let sim = device(true);
        let gpu = staged(&sim, threads);
        let s = gpu.stream().unwrap();
        let mut x = gpu.zeros::<u8>(123_456, &s).unwrap();
        let mut host = elements::<u8>(123_456, 3);
        for _ in 0..3 {
            x.copy_from_slice(&host, &s).unwrap();
            x.copy_to_slice(&mut host, &s).unwrap();
        }
        assert_eq!(host, elements::<u8>(123_456, 3));
        let report = gpu.report();
        drop((x, s, gpu));
        clean(&sim);
        report.driver_calls.into_iter().collect()
    };
    for threads in THREADS {
        let first = calls(threads);
        (0..5).for_each(|_| assert_eq!(calls(threads), first, "{threads} threads"));
    }
}

/// A steady loop pins its slots once, and holds no more later than after its first rounds.
#[test]
fn a_steady_loop_pins_no_more_slots() {
    for (threads, late) in [(0, false), (0, true), (2, true), (8, false), (8, true)] {
        let sim = device(late);
        let gpu = staged(&sim, threads);
        let s = gpu.stream().unwrap();
        let mut x = gpu.zeros::<u8>(60_000, &s).unwrap();
        let mut host = elements::<u8>(60_000, 3);
        let mut pins = Vec::new();
        for round in 0..400 {
            x.copy_from_slice(&host, &s).unwrap();
            x.copy_to_slice(&mut host, &s).unwrap();
            if round % 50 == 49 {
                let pinned = gpu.report().pinned.unwrap();
                pins.push((pinned.reserved, pinned.allocated_peak, gpu.bookkeeping().kept));
            }
        }
        assert!(pins.iter().all(|held| *held == pins[0]), "{threads} threads: {pins:?}");
        assert_eq!(pins[0].0, 64 * MIB, "one segment");
        assert!(pins[0].1 <= (2 * threads as u64).max(4) * 5000 * 2, "slots of both directions: {pins:?}");
        drop((x, s, gpu));
        clean(&sim);
    }
}

/// Two threads of the program copy at once through one allocator's staging threads, and a third ends one of its own.
#[test]
fn two_copies_at_once_share_the_threads() {
    for threads in THREADS {
        let sim = device(false);
        let gpu = staged(&sim, threads);
        thread::scope(|scope| {
            for seed in 0..3 {
                let gpu = &gpu;
                let own = (seed == 2).then(|| staged(&sim, threads));
                scope.spawn(move || {
                    let gpu = own.as_ref().unwrap_or(gpu);
                    let s = gpu.stream().unwrap();
                    for round in 0..20 {
                        let source = elements::<u32>(10_000 + round, seed);
                        let x = gpu.array_from_slice(&source, &s).unwrap();
                        assert_eq!(x.to_vec(&s).unwrap(), source);
                    }
                });
            }
        });
        drop(gpu);
        clean(&sim);
    }
}

/// When a call fails, the error says how many elements are written, or will be in stream order, from the first on; it is so; and neither
/// a slot is lost nor does anything read the source later.
#[test]
fn a_failed_copy_says_how_much_is_written() {
    let (len, old, new) = (20_000, elements::<u32>(20_000, 1), elements::<u32>(20_000, 2));
    for threads in THREADS {
        for (call, up) in [
            (Call::MemcpyHtoD, true),
            (Call::EventRecord, true),
            (Call::EventSynchronize, true),
            (Call::MemcpyDtoH, false),
            (Call::EventRecord, false),
            (Call::EventSynchronize, false),
        ] {
            let (mut failed, mut partial) = (0, 0);
            for nth in 1..30 {
                let sim = device(true);
                let gpu = staged(&sim, threads);
                let s = gpu.stream().unwrap();
                let mut x = gpu.array_from_slice(&old, &s).unwrap();
                s.synchronize().unwrap();
                let (mut source, mut back) = (new.clone(), new.clone());
                sim.fail(call, nth, DriverErrorKind::Other);
                let result = if up { x.copy_from_slice(&source, &s) } else { x.copy_to_slice(&mut back, &s) };
                sim.clear_faults();
                source.fill(0);
                let (found, expected, otherwise) =
                    if up { (x.to_vec(&s).unwrap(), &new, &old) } else { (back, &old, &new) };
                if let Err(e) = result {
                    failed += 1;
                    partial += usize::from(e.complete > 0);
                    assert!(matches!(&e.error, Error::Driver(d) if d.kind == DriverErrorKind::Other), "{e}");
                    assert!(e.complete < len, "{call:?} {nth}: all of it, and an error");
                    assert_eq!(found[..e.complete], expected[..e.complete], "{call:?} {nth}");
                    let [found, expected, otherwise]: [&[u8]; 3] =
                        [&found, expected, otherwise].map(|all| millpond::bytemuck::cast_slice(all));
                    let either = |i: usize| found[i] == expected[i] || found[i] == otherwise[i];
                    assert!((0..4 * len).all(either), "{call:?} {nth}: neither the old nor the new");
                } else {
                    assert_eq!(found, *expected);
                }
                gpu.synchronize().unwrap();
                assert_eq!(gpu.report().pinned.unwrap().allocated, 0, "{call:?} {nth}: a slot is lost");
                drop((x, s, gpu));
                clean(&sim);
            }
            let (least, partly) = if call == Call::EventSynchronize { (1, 0) } else { (10, 5) };
            assert!(failed >= least && partial >= partly, "{threads} threads, {call:?}: {failed}, {partial}");
        }
    }
}

/// A copy waits for its own stream: beside a kernel that does not end it comes to its end.
#[test]
fn a_copy_waits_for_its_stream_only() {
    for threads in THREADS {
        let sim = device(true);
        let gpu = staged(&sim, threads);
        let (s, slow) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let gate = sim.gate(slow.native()).unwrap();
        let held = gpu.alloc(512, &slow).unwrap();
        sim.launch(slow.native(), Launch::new("slow").writes(held.address(), 512)).unwrap();
        let source = elements::<u32>(30_000, 1);
        let x = gpu.array_from_slice(&source, &s).unwrap();
        assert_eq!(x.to_vec(&s).unwrap(), source);
        gate.open();
        drop((held, x, s, slow, gpu));
        clean(&sim);
    }
}

/// Many arrays of many lengths, whole and in part, at any alignment, used on two streams before and behind: each has its own source's elements.
fn packed(
    gpu: &Allocator<Sim>,
    (s, t): (&Stream<Sim>, &Stream<Sim>),
    lengths: &[usize],
) -> Result<(), Error> {
    let sources: Vec<Vec<u8>> = (0..).zip(lengths).map(|(i, &len)| elements(len, i)).collect();
    let mut arrays = Vec::new();
    for (i, source) in sources.iter().enumerate() {
        arrays.push(gpu.zeros::<u8>(source.len() + i % 19, if i % 2 == 0 { s } else { t })?);
    }
    let mut uploads = Uploads::new();
    for (i, (array, source)) in arrays.iter_mut().zip(&sources).enumerate() {
        uploads.add(array.slice_mut(i % 19..), source)?;
    }
    let (mut half, words) = (gpu.zeros::<u32>(2 * 300, t)?, elements::<u32>(300, 200));
    let (low, high) = half.split_at_mut(300);
    uploads.add(low, &words)?;
    uploads.add(high, &words)?;
    assert_eq!(uploads.len(), lengths.len() + 2);
    uploads.queue(s)?;
    for (i, (array, source)) in arrays.iter().zip(&sources).enumerate() {
        let found = array.to_vec(t)?;
        assert_eq!(found[i % 19..], source[..], "{i}");
        assert!(found[..i % 19].iter().all(|&b| b == 0), "{i}: beside its place");
    }
    assert_eq!(half.to_vec(s)?, [&words[..], &words[..]].concat());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packed_copies_come_to_their_places(
        lengths in proptest::collection::vec(0..3000_usize, 0..40),
        late in any::<bool>(),
    ) {
        for threads in THREADS {
            let sim = device(late);
            let gpu = staged(&sim, threads);
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            packed(&gpu, (&s, &t), &lengths).unwrap();
            drop((s, t, gpu));
            clean(&sim);
        }
    }
}

/// A thousand arrays: a few copies and as many kernels, and nothing more in later rounds.
#[test]
fn a_thousand_short_copies_are_a_few() {
    let sim = device(true);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let s = gpu.stream().unwrap();
    let source = elements::<u8>(4096, 3);
    let mut arrays: Vec<_> = (0..1000).map(|_| gpu.zeros::<u8>(4096, &s).unwrap()).collect();
    let mut held = Vec::new();
    for _ in 0..4 {
        let before = sim.ledger();
        let mut uploads = Uploads::new();
        for array in &mut arrays {
            uploads.add(array, &source).unwrap();
        }
        uploads.queue(&s).unwrap();
        let copies = sim.ledger().calls_of(Call::MemcpyHtoD) - before.calls_of(Call::MemcpyHtoD);
        assert!(copies <= 16, "{copies} copies");
        let report = gpu.report();
        held.push((report.pinned.unwrap().reserved, report.total.reserved));
    }
    assert!(held[1..].iter().all(|round| *round == held[1]), "{held:?}");
    for array in &arrays {
        assert!(array.to_vec(&s).unwrap() == source);
    }
    drop((arrays, s, gpu));
    clean(&sim);
}

/// When a call fails, the error says how many copies are queued; those are made.
#[test]
fn a_failed_batch_says_how_many_copies_are_queued() {
    let sources: Vec<Vec<u8>> = (1..40).map(|i| elements(1000, i)).collect();
    for threads in [0, 2] {
        let (mut failed, mut partial) = (0, 0);
        for nth in 1..400 {
            let sim = device(true);
            let gpu = staged(&sim, threads);
            let s = gpu.stream().unwrap();
            let mut arrays: Vec<_> = sources.iter().map(|_| gpu.zeros::<u8>(1000, &s).unwrap()).collect();
            let mut uploads = Uploads::new();
            for (array, source) in arrays.iter_mut().zip(&sources) {
                uploads.add(array, source).unwrap();
            }
            let calls = sim.call_count();
            sim.fail_call(calls + nth, DriverErrorKind::Other);
            let result = uploads.queue(&s);
            let late = sim.call_count() < calls + nth;
            sim.clear_faults();
            let complete = result.as_ref().map_or_else(|e| e.complete, |()| sources.len());
            failed += usize::from(result.is_err());
            partial += usize::from((1..sources.len()).contains(&complete));
            for (i, (array, source)) in arrays.iter().zip(&sources).enumerate() {
                let found = array.to_vec(&s).unwrap();
                let made = found == *source;
                assert!(made || i >= complete, "call {nth}: {i} of {complete}");
            }
            gpu.synchronize().unwrap();
            assert_eq!(
                gpu.report().pinned.map_or(0, |pinned| pinned.allocated),
                0,
                "call {nth}: a slot is lost"
            );
            drop((arrays, s, gpu));
            clean(&sim);
            if late {
                break;
            }
        }
        assert!(failed > 10 && partial > 5, "{failed}, {partial}");
    }
}
