//! Copies on the simulated device, under its oracle and in its virtual time: the requirements about copies, and
//! copies between devices. What holds on every device is in `testkit/src/suite/transfers.rs`.

#![allow(clippy::many_single_char_names, reason = "s, t are streams; x, y, z arrays")]

use millpond::transfer::Part;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DeviceArray, DriverErrorKind, Error, Growth, Limit, Stream};
use millpond_sim::{Call, Launch, Schedule, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The source of a dropped token goes with a wait of the host's for its stream, or for an event of it, in a program of hits.
#[test]
fn a_kept_source_goes_behind_a_wait_for_its_stream() {
    for by_event in [false, true] {
        let (sim, gpu) = late();
        let s = gpu.stream().unwrap();
        let mut x = gpu.zeros::<u32>(1024, &s).unwrap();
        let source = Arc::new(gpu.pinned_from_fn(1024, |i| i as u32).unwrap());
        drop(x.copy_from(Arc::clone(&source), &s).unwrap());
        drop(gpu.alloc(4096, &s).unwrap());
        assert_eq!((Arc::strong_count(&source), gpu.bookkeeping().kept), (2, 1));
        if by_event {
            s.record().unwrap().synchronize(Duration::MAX).unwrap();
        } else {
            s.synchronize().unwrap();
        }
        assert_eq!((Arc::strong_count(&source), gpu.bookkeeping().kept), (1, 0));
        drop((x, source, s, gpu));
        sim.verdict().unwrap();
    }
}

/// A device that runs nothing before it must, and an allocator on it.
fn late() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(16 * GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    (sim, gpu)
}

/// The same without contents, for its virtual time.
fn weightless() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(16 * GIB).contents(false);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    (sim, gpu)
}

/// Both oracles are content, and each wait was needed. How many there were.
#[track_caller]
fn all_needed(sim: &Sim) -> u64 {
    let tally = sim.verdict().unwrap_or_else(|v| panic!("{v}"));
    assert_eq!(tally.waits_implied, 0, "waits for what was known: {tally:?}");
    assert_eq!(tally.waits_beyond_need, 0, "waits that no access needed: {tally:?}");
    tally.waits
}

fn two(gpu: &Allocator<Sim>) -> (Stream<Sim>, Stream<Sim>) {
    (gpu.stream().unwrap(), gpu.stream().unwrap())
}

/// A kernel of this many virtual nanoseconds that reads and writes an array.
fn kernel(sim: &Sim, x: &DeviceArray<f32, Sim>, on: &Stream<Sim>, nanos: u64) {
    x.wait_on(on).unwrap();
    x.record_use(on).unwrap();
    let (at, bytes) = (x.address(), x.size_bytes());
    sim.launch(on.native(), Launch::new("kernel").reads(at, bytes).writes(at, bytes).takes(nanos)).unwrap();
}

/// How the articles feed two arrays, and what the host does before the kernel on the first.
#[derive(Clone, Copy, Debug)]
enum Fed {
    /// The answer's way: a stream for each copy, and the host waits for the first one's.
    StreamEach,
    /// A stream for each copy, and the kernel waits on the device.
    NoHostWait,
    /// As the other article prints it: both copies on one stream, for which the host waits.
    OneStream,
}

/// The articles' program with 400 MB an array, in seconds: two copies from pinned memory, and a kernel of 7 ms on the first
/// array on a stream of its own.
fn articles(fed: Fed) -> f64 {
    let n = 10_000 * 10_000;
    let (sim, gpu) = weightless();
    let [a, b, work] = [0; 3].map(|_| gpu.stream().unwrap());
    let b = if let Fed::OneStream = fed { &a } else { &b };
    let (mut x, mut y) = (gpu.uninit::<f32>(n, &a).unwrap(), gpu.uninit::<f32>(n, b).unwrap());
    let [one, other] = [0, 1].map(|_| gpu.pinned_uninit::<f32>(n).unwrap());
    let start = sim.host_time();
    let sent = (x.copy_from(one, &a).unwrap(), y.copy_from(other, b).unwrap());
    if !matches!(fed, Fed::NoHostWait) {
        a.synchronize().unwrap();
    }
    kernel(&sim, &x, &work, 7_000_000);
    gpu.synchronize().unwrap();
    let time = sim.device_time().saturating_sub(start);
    all_needed(&sim);
    drop(sent);
    time.as_secs_f64()
}

/// Two copies of 400 MB, which take 7.2 ms each over the bus, and the kernel's 7 ms: what they take one after the other.
const LEGS: f64 = 0.0212;
/// As long as both copies: the kernel's time has vanished behind the second.
const HIDDEN: f64 = 0.0152;

/// S3: from pinned memory, on two streams, the second copy runs beside the kernel on the first array, whether the host
/// waits for the first copy or the device does.
#[test]
fn s03_pinned_copies_overlap_a_kernel() {
    for fed in [Fed::StreamEach, Fed::NoHostWait] {
        let time = articles(fed);
        assert!(time < HIDDEN, "{time} s, {fed:?}");
    }
}

/// S4: with both copies on the stream that the host waits for, the kernel is not even queued before the second is done.
#[test]
fn s04_one_copy_stream_no_overlap() {
    let (printed, apart) = (articles(Fed::OneStream), articles(Fed::NoHostWait));
    assert!(printed > LEGS, "{printed} s as printed, less than the legs' sum");
    assert!(apart < HIDDEN, "{apart} s on two streams without the wait");
}

/// S5: pinned memory is an array with a shape, made and filled at once.
#[test]
fn s05_pinned_arrays_have_a_shape() {
    let (_, gpu) = late();
    let mut a = gpu.pinned_from_fn([3, 4], |i| i as f64).unwrap();
    assert_eq!((a.shape().lengths(), a.len(), a.size_bytes()), (&[3, 4][..], 12, 96));
    a.reshape([2, 6]).unwrap();
    a[11] = -1.0;
    assert!(a.iter().sum::<f64>() < 55.0 && a.reshape([5, 2]).is_err());
}

/// S10: an array from host data, and the host goes on at once.
#[test]
fn s10_an_array_from_host_data_without_blocking() {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let (x, sent) = gpu.array_from_pinned(gpu.pinned_from_fn([2, 5], |i| i as u64).unwrap(), &s).unwrap();
    assert_eq!((sim.ledger().host_waits, sent.is_done().unwrap()), (0, false));
    assert_eq!(x.shape().lengths(), [2, 5]);
    assert_eq!(x.to_vec(&s).unwrap(), sent.wait().unwrap()[..]);
}

/// S11: a copy into an array checks its shape; that the types are the same the compiler does (tests/refused/ui).
#[test]
fn s11_a_copy_checks_the_shape() {
    let (_, gpu) = late();
    let s = gpu.stream().unwrap();
    let mut x = gpu.zeros::<f32>([10, 10], &s).unwrap();
    let refused = x.copy_from(gpu.pinned_zeros::<f32>(100).unwrap(), &s).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "copy_from: the target, on the device, has shape [10, 10] of f32 (100 elements), \
         the source, in host memory, has shape [100] of f32 (100 elements): \
         the shapes of a copy's sides must be equal: slice or reshape one of them"
    );
    drop(x.view_mut().reshape(100).unwrap().copy_from(refused.host.unwrap(), &s).unwrap());
}

/// S12, S13: to pinned memory the host does not wait; to pageable memory it does.
#[test]
fn s12_a_copy_to_the_host_without_blocking() {
    // Miri takes minutes to look at a mebibyte.
    s12(if cfg!(miri) { 4096 } else { MIB as usize });
}

fn s12(n: usize) {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let x = gpu.zeros::<u8>(n, &s).unwrap();
    let back = x.to_pinned(&s).unwrap();
    assert_eq!(sim.ledger().host_waits, 0);
    assert!(back.wait().unwrap().iter().all(|&b| b == 0));
}

/// S13: see above.
#[test]
fn s13_a_copy_to_pageable_memory_blocks() {
    s13(MIB as usize);
}

fn s13(n: usize) {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let x = gpu.zeros::<u8>(n, &s).unwrap();
    let mut there = vec![1; n];
    x.copy_to_slice(&mut there, &s).unwrap();
    assert!(sim.ledger().host_waits >= 1, "once a piece");
    assert!(there.iter().all(|&b| b == 0), "all of it is there");
}

/// T9: copies both ways and a kernel at the same time, each on its stream.
#[test]
fn t09_both_copies_and_a_kernel_at_once() {
    let (sim, gpu) = weightless();
    let streams: [_; 3] = core::array::from_fn(|_| gpu.stream().unwrap());
    let n = 64 << 20;
    let mut x: Vec<_> = streams.iter().map(|s| gpu.uninit::<f32>(n, s).unwrap()).collect();
    let host = gpu.pinned_uninit::<f32>(n).unwrap();
    drop(gpu.pinned_uninit::<f32>(n).unwrap());
    let start = sim.host_time();
    let sent = x[0].copy_from(host, &streams[0]).unwrap();
    let back = x[1].to_pinned(&streams[1]).unwrap();
    kernel(&sim, &x[2], &streams[2], 4_800_000);
    gpu.synchronize().unwrap();
    // 256 MiB take 4.84 ms over the bus.
    let time = sim.device_time().saturating_sub(start).as_secs_f64();
    assert!(time < 0.006, "{time} s, not three times as long");
    assert_eq!(all_needed(&sim), 0, "three streams that share nothing wait for no other");
    drop((sent, back));
}

/// P2: a blocking copy is an asynchronous one and a wait: the waits are the program's to count.
#[test]
fn p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait() {
    p02(100, 1000);
}

fn p02(copies: u64, n: usize) {
    for blocking in [true, false] {
        let (sim, gpu) = late();
        let s = gpu.stream().unwrap();
        let mut sent = Vec::new();
        let mut all: Vec<_> = (0..copies).map(|_| gpu.uninit::<f32>(n, &s).unwrap()).collect();
        for x in &mut all {
            let transfer = x.copy_from(gpu.pinned_uninit::<f32>(n).unwrap(), &s).unwrap();
            if blocking {
                transfer.wait().unwrap();
            } else {
                sent.push(transfer);
            }
        }
        s.synchronize().unwrap();
        assert_eq!(sim.ledger().host_waits, if blocking { copies + 1 } else { 1 });
        assert!(sent.into_iter().all(|t| t.try_into_inner().is_ok()), "one wait served all");
    }
}

/// P7: the tutorial's array, smaller here: its data exist for the program only behind the wait. All of it, 100 × 999,999
/// doubles whose mean is 500,000, is D4's in testkit/src/suite/requirements.rs where a peer is shown beside; that an early read does not
/// compile is in tests/refused/ui.
#[test]
fn p07_data_of_a_copy_to_the_host_come_behind_the_wait() {
    p07(20, 9_999);
}

fn p07(attempts: u32, n: usize) {
    let (_, gpu) = late();
    let (s, t) = two(&gpu);
    for attempt in 0..attempts {
        let (x, sent) =
            gpu.array_from_pinned(gpu.pinned_from_fn(n, |i| (i + 1) as f64).unwrap(), &s).unwrap();
        let back = x.to_pinned(if attempt % 2 == 0 { &s } else { &t }).unwrap().wait().unwrap();
        let mean = back.iter().sum::<f64>() / n as f64;
        assert!((mean - f64::midpoint(1.0, n as f64)).abs() < 1e-6, "attempt {attempt}: {mean}");
        drop(sent);
    }
}

/// P8: after a copy to the device, work on the same stream needs nothing more.
#[test]
fn p08_work_on_the_copys_stream_comes_after_it() {
    p08(1 << 20);
}

fn p08(n: usize) {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let mut x = gpu.uninit::<f32>(n, &s).unwrap();
    let sent = x.copy_from(gpu.pinned_uninit(n).unwrap(), &s).unwrap();
    kernel(&sim, &x, &s, 1000);
    assert_eq!(all_needed(&sim), 0);
    drop(sent);
}

/// P9: the source changed or dropped too early: it is the token's, and what is dropped with the token waits for the copy.
#[test]
fn p09_a_source_cannot_change_while_it_is_read() {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let mut x = gpu.uninit::<u32>(1000, &s).unwrap();
    drop(x.copy_from(gpu.pinned_from_fn(1000, |_| 7).unwrap(), &s).unwrap());
    let mut next = gpu.pinned_uninit::<u32>(1000).unwrap();
    next.fill(8);
    assert!(x.to_vec(&s).unwrap().iter().all(|&v| v == 7));
    all_needed(&sim);
}

/// G7: batches in pinned memory, copied without blocking, their memory used again and again.
#[test]
fn g07_pinned_batches_without_blocking() {
    g07(10, [32, 100]);
}

fn g07(batches: u32, shape: [usize; 2]) {
    let (sim, gpu) = late();
    let (copy, work) = two(&gpu);
    let mut x = gpu.uninit::<f32>(shape, &copy).unwrap();
    let mut spare = vec![gpu.pinned_uninit::<f32>(shape).unwrap(), gpu.pinned_uninit(shape).unwrap()];
    let mut sent = std::collections::VecDeque::new();
    for batch in 0..batches {
        let mut host = match spare.pop() {
            Some(host) => host,
            None => sent.pop_front().map(millpond::Upload::wait).unwrap().unwrap(),
        };
        host.fill(batch as f32);
        sent.push_back(x.copy_from(host, &copy).unwrap());
        kernel(&sim, &x, &work, 1000);
    }
    assert_eq!(gpu.report().pinned.unwrap().counters.allocations, 2);
    sim.verdict().unwrap();
}

/// H1: a pinned buffer lives until its copy is complete, whatever was forgotten.
#[test]
fn h01_a_pinned_buffer_lives_until_its_copy_is_done() {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let mut x = gpu.uninit::<u16>(500, &s).unwrap();
    let host = Arc::new(gpu.pinned_from_fn(500, |i| i as u16).unwrap());
    drop(x.copy_from(Part::new(Arc::clone(&host), ..), &s).unwrap());
    assert_eq!(Arc::strong_count(&host), 2, "kept");
    assert_eq!(x.to_vec(&s).unwrap(), host[..]);
    gpu.synchronize().unwrap();
    assert_eq!(Arc::strong_count(&host), 1, "let go");
    all_needed(&sim);
}

/// H2: a copy between devices keeps both ends: dropped at once, their bytes are reused behind it.
#[test]
fn h02_a_copy_between_devices_keeps_both_ends() {
    h02(100_000);
}

fn h02(n: usize) {
    let sims = Sim::devices(2, 4 * GIB);
    sims[0].set_schedule(Schedule::Latest);
    let gpus = [0, 1].map(|i| Allocator::new(sims[i].clone(), Config::default()).unwrap());
    let (a, b) = (gpus[0].stream().unwrap(), gpus[1].stream().unwrap());
    let (side, other) = (gpus[0].stream().unwrap(), gpus[1].stream().unwrap());
    let mut x = gpus[0].array_from_slice(&vec![7_u32; n], &a).unwrap();
    let mut y = gpus[1].zeros::<u32>(n, &b).unwrap();
    // The target is still read, the source still written, by others.
    let before = y.to_pinned(&other).unwrap();
    let gate = sims[0].gate(a.native()).unwrap();
    x.slice_mut(..n / 2).fill_bytes(1, &a).unwrap();
    y.copy_from_peer(&x, &side, &b).unwrap();
    let back = y.to_pinned(&other).unwrap();
    drop(y);
    // A use by another stream than its own: the bytes are in flight, these are others.
    let mut z = gpus[0].zeros::<u32>(n, &side).unwrap();
    z.fill_bytes(9, &side).unwrap();
    x.fill_bytes(2, &a).unwrap();
    drop(x);
    let mut again = gpus[1].zeros::<u32>(n, &b).unwrap();
    again.fill_bytes(3, &b).unwrap();
    gate.open();
    assert!(before.wait().unwrap().iter().all(|&v| v == 0));
    let back = back.wait().unwrap();
    assert!(back[..n / 2].iter().all(|&v| v == 0x0101_0101) && back[n / 2..].iter().all(|&v| v == 7));
    sims[0].verdict().unwrap();
    // Each side has a stream of its own device.
    let refused = again.copy_from_peer(&z, &b, &b).unwrap_err();
    assert!(matches!(refused, Error::WrongDevice { .. }), "{refused}");
    let worlds = Allocator::new(Sim::new(GIB), Config::default()).unwrap();
    let far = worlds.stream().unwrap();
    let w = worlds.zeros::<u32>(n, &far).unwrap();
    assert!(again.copy_from_peer(&w, &far, &b).is_err(), "no copy reaches from one world to another");
}

/// H2: the first stream that a fresh target is used by may be another one than its own, in a copy between devices as in any other operation. The program was
/// convicted of using the target before it was allocated.
#[test]
fn h02_a_copy_between_devices_may_be_the_first_use_of_its_target() {
    let sims = Sim::devices(2, GIB);
    sims[0].set_schedule(Schedule::Latest);
    let gpus = [0, 1].map(|i| Allocator::new(sims[i].clone(), Config::default()).unwrap());
    let (a, home, t) = (gpus[0].stream().unwrap(), gpus[1].stream().unwrap(), gpus[1].stream().unwrap());
    let mut x = gpus[0].uninit::<u8>(1024, &a).unwrap();
    x.fill_bytes(7, &a).unwrap();
    let mut y = gpus[1].uninit::<u8>(1024, &home).unwrap();
    y.copy_from_peer(&x, &a, &t).unwrap();
    assert!(y.to_vec(&home).unwrap().iter().all(|&v| v == 7));
    drop((x, y, gpus, a, home, t));
    sims[0].verdict().unwrap_or_else(|v| panic!("{v}"));
}

/// H2 with calls of the copy failing, one and two at a time: the target's bytes go to the next owner behind the copy, and the
/// source's too, or there was no copy.
#[test]
fn h02_a_peer_copy_is_ordered_whatever_fails() {
    let run = |failing: &[u64]| {
        let sims = Sim::devices(2, GIB);
        sims[0].set_schedule(Schedule::Latest);
        // Room for one array: the next one has its bytes.
        let config = || Config::default().growth(Growth::Exact).limit(Limit::Bytes(MIB));
        let gpus = [0, 1].map(|i| Allocator::new(sims[i].clone(), config()).unwrap());
        let (a, b) = (gpus[0].stream().unwrap(), gpus[1].stream().unwrap());
        let mut x = gpus[0].uninit::<u8>(MIB as usize, &a).unwrap();
        x.fill_bytes(7, &a).unwrap();
        let mut y = gpus[1].zeros::<u8>(MIB as usize, &b).unwrap();
        let before = sims[0].call_count();
        for call in failing {
            sims[0].fail_call(before + call, DriverErrorKind::Other);
        }
        let copied = y.copy_from_peer(&x, &a, &b);
        let made = sims[0].call_count() - before;
        drop((x, y));
        // The target's side first: the wait for the other one would be a wait for the copy.
        for (gpu, on) in gpus.iter().zip([&a, &b]).rev() {
            // A failure that was planted behind the copy may strike here.
            let next = gpu.uninit::<u8>(MIB as usize, on).and_then(|mut next| {
                next.fill_bytes(3, on)?;
                next.to_vec(on)
            });
            match next {
                Ok(next) => {
                    assert!(next.iter().all(|&v| v == 3), "calls {failing:?} fail: the next owner's bytes");
                }
                Err(e) => assert!(!failing.is_empty(), "{e}"),
            }
        }
        drop((gpus, a, b));
        sims[0].run_until_idle();
        sims[0].verdict().unwrap_or_else(|v| panic!("calls {failing:?} fail: {v}"));
        (copied, made)
    };
    let (copied, calls) = run(&[]);
    copied.unwrap();
    assert!(calls >= 5, "{calls} calls: a record, a wait, the copy, a record, a wait");
    let mut refused = 0;
    for first in 1..=calls {
        refused += u64::from(run(&[first]).0.is_err());
        for second in first + 1..=calls + 2 {
            drop(run(&[first, second]).0);
        }
    } // All but the marker behind everything: without it a stamp says as much.
    assert!((5..calls).contains(&refused), "{refused} of {calls} failures were returned");
}

/// H2 with the driver panicking behind each of the copy's calls: what the target is given next comes after the copy, if there was one.
#[test]
fn h02_a_peer_copy_is_ordered_if_the_driver_panics() {
    for call in [Call::EventRecord, Call::StreamWaitEvent, Call::MemcpyPeer] {
        let mut struck = 0;
        for (nth, next_owner) in (1..=4).flat_map(|nth| [(nth, false), (nth, true)]) {
            let sims = Sim::devices(2, GIB);
            sims[0].set_schedule(Schedule::Latest);
            // Room for one array: the next one has its bytes.
            let config = || Config::default().growth(Growth::Exact).limit(Limit::Bytes(MIB));
            let gpus = [0, 1].map(|i| Allocator::new(sims[i].clone(), config()).unwrap());
            let (a, b, c) = (gpus[0].stream().unwrap(), gpus[1].stream().unwrap(), gpus[1].stream().unwrap());
            let mut x = gpus[0].uninit::<u8>(MIB as usize, &a).unwrap();
            x.fill_bytes(7, &a).unwrap();
            let mut y = gpus[1].zeros::<u8>(MIB as usize, &c).unwrap();
            sims[0].panic_behind(call, nth);
            let copied = catch_unwind(AssertUnwindSafe(|| y.copy_from_peer(&x, &a, &b)));
            struck += u64::from(copied.is_err());
            sims[0].clear_faults();
            if next_owner {
                drop(y);
                y = gpus[1].uninit::<u8>(MIB as usize, &c).unwrap();
            }
            y.fill_bytes(3, &c).unwrap();
            assert!(y.to_vec(&c).unwrap().iter().all(|&v| v == 3), "call {nth} of {call:?}");
            drop((x, y));
            sims[0].verdict().unwrap_or_else(|v| panic!("call {nth} of {call:?} panicked: {v}"));
        }
        assert!(struck >= 2, "{call:?} panicked in {struck} copies");
    }
}

/// An independent stream is not waited for for the sake of memory. Data are waited for all the same.
#[test]
fn data_are_waited_for_on_independent_streams_too() {
    let (sim, gpu) = late();
    let (s, t) = (gpu.stream().unwrap().independent(), gpu.stream().unwrap());
    let mut x = gpu.zeros::<u8>(5000, &s).unwrap();
    x.fill_bytes(5, &s).unwrap();
    assert!(x.to_vec(&t).unwrap().iter().all(|&v| v == 5), "t waits for the independent stream");
    x.fill_bytes(6, &t).unwrap();
    assert!(x.to_vec(&s).unwrap().iter().all(|&v| v == 6), "the independent stream waits for t");
    assert_eq!(all_needed(&sim), 2);
}

/// D2: an array from one stream read by a slow kernel on another, dropped; its first stream allocates and fills.
#[test]
fn d02_an_array_dropped_under_a_reader() {
    d02(40, 5000);
}

fn d02(rounds: u32, n: usize) {
    let (sim, gpu) = late();
    let (s, t) = two(&gpu);
    for round in 0..rounds {
        let x = gpu.array_from_slice(&vec![round; n], &s).unwrap();
        let gate = sim.gate(t.native()).unwrap();
        let back = x.to_pinned(&t).unwrap();
        drop(x);
        let mut y = gpu.uninit::<u32>(n, &s).unwrap();
        y.fill_bytes(0xEE, &s).unwrap();
        s.synchronize().unwrap();
        gate.open();
        assert!(back.wait().unwrap().iter().all(|&v| v == round), "round {round}");
    }
    sim.verdict().unwrap();
}

/// D3: streams dropped with work pending, whose handles' values come back at once.
#[test]
fn d03_a_stream_dropped_with_work_pending() {
    d03(40, 5000);
}

fn d03(rounds: u8, n: usize) {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let mut x = gpu.zeros::<u32>(n, &s).unwrap();
    let mut values = std::collections::HashSet::new();
    for round in 1..=rounds {
        let t = gpu.stream().unwrap();
        values.insert(t.native().handle());
        x.fill_bytes(round, &t).unwrap();
        let back = x.to_pinned(&t).unwrap();
        drop(t);
        let u = gpu.stream().unwrap();
        values.insert(u.native().handle());
        let mut y = x.duplicate(&u).unwrap();
        y.fill_bytes(0, &s).unwrap();
        assert!(back.wait().unwrap().iter().all(|&v| v == u32::from_le_bytes([round; 4])), "round {round}");
    }
    assert!(
        values.len() <= usize::from(rounds).div_ceil(2) + 1,
        "handles' values come back: {}",
        values.len()
    );
    sim.verdict().unwrap();
}

/// D7: pinned memory takes what is requested, with no rounding to a power of two.
#[test]
fn d07_a_pinned_request_takes_what_was_requested() {
    let gpu = Allocator::new(Sim::new(GIB).contents(false), Config::default()).unwrap();
    let _a = gpu.alloc_pinned(130 * MIB + 1).unwrap();
    assert_eq!(gpu.report().pinned.unwrap().reserved, 132 * MIB);
}

/// D8: one slow stream keeps back what it reads, and two hundred quick copies of 4 MiB share a few slots.
#[test]
fn d08_one_slow_stream_does_not_grow_the_pinned_pool() {
    d08(200);
}

fn d08(copies: usize) {
    let sim = Sim::new(4 * GIB).contents(false);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let (slow, quick) = two(&gpu);
    let n = (4 * MIB) as usize;
    let mut x = gpu.uninit::<u8>(n, &slow).unwrap();
    let gate = sim.gate(slow.native()).unwrap();
    drop(x.copy_from(gpu.pinned_uninit(n).unwrap(), &slow).unwrap());
    let mut y = gpu.uninit::<u8>(n, &quick).unwrap();
    for _ in 0..copies {
        drop(y.copy_from(gpu.pinned_uninit(n).unwrap(), &quick).unwrap());
        assert!(!sim.run_until_idle(), "the quick stream keeps pace, the gate stays");
    }
    let pinned = gpu.report().pinned.unwrap();
    assert_eq!(pinned.reserved_peak, 64 * MIB, "one segment");
    gate.open();
    sim.verdict().unwrap();
}

/// The tests again, for `tests/soak.rs`, which runs each for ever: with as many elements and repetitions as still show the requirement.
#[allow(dead_code, unreachable_pub, reason = "read by another test")]
pub(crate) const AGAIN: &[(&str, fn())] = &[
    ("s03_pinned_copies_overlap_a_kernel", s03_pinned_copies_overlap_a_kernel),
    ("s04_one_copy_stream_no_overlap", s04_one_copy_stream_no_overlap),
    ("s05_pinned_arrays_have_a_shape", s05_pinned_arrays_have_a_shape),
    ("s10_an_array_from_host_data_without_blocking", s10_an_array_from_host_data_without_blocking),
    ("s11_a_copy_checks_the_shape", s11_a_copy_checks_the_shape),
    ("s12_a_copy_to_the_host_without_blocking", || s12(4096)),
    ("s13_a_copy_to_pageable_memory_blocks", || s13(4096)),
    ("t09_both_copies_and_a_kernel_at_once", t09_both_copies_and_a_kernel_at_once),
    ("p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait", || p02(4, 10)),
    ("p07_data_of_a_copy_to_the_host_come_behind_the_wait", || p07(2, 99)),
    ("p08_work_on_the_copys_stream_comes_after_it", || p08(100)),
    ("p09_a_source_cannot_change_while_it_is_read", p09_a_source_cannot_change_while_it_is_read),
    ("g07_pinned_batches_without_blocking", || g07(4, [4, 10])),
    ("h01_a_pinned_buffer_lives_until_its_copy_is_done", h01_a_pinned_buffer_lives_until_its_copy_is_done),
    ("h02_a_copy_between_devices_keeps_both_ends", || h02(100)),
    (
        "h02_a_copy_between_devices_may_be_the_first_use_of_its_target",
        h02_a_copy_between_devices_may_be_the_first_use_of_its_target,
    ),
    ("data_are_waited_for_on_independent_streams_too", data_are_waited_for_on_independent_streams_too),
    ("d02_an_array_dropped_under_a_reader", || d02(2, 100)),
    ("a_kept_source_goes_behind_a_wait_for_its_stream", a_kept_source_goes_behind_a_wait_for_its_stream),
    ("d03_a_stream_dropped_with_work_pending", || d03(4, 100)),
    ("d07_a_pinned_request_takes_what_was_requested", d07_a_pinned_request_takes_what_was_requested),
    ("d08_one_slow_stream_does_not_grow_the_pinned_pool", || d08(8)),
    (
        "a_scope_whose_marker_cannot_be_waited_for_waits_for_its_stream",
        a_scope_whose_marker_cannot_be_waited_for_waits_for_its_stream,
    ),
    (
        "a_scopes_copy_that_cannot_be_marked_is_made_all_the_same",
        a_scopes_copy_that_cannot_be_marked_is_made_all_the_same,
    ),
    ("elements_of_no_bytes_are_staged_at_once", elements_of_no_bytes_are_staged_at_once),
];

/// The marker behind a scope's copy cannot be waited for: the scope waits for its stream, and not for the device, which would end captures.
#[test]
fn a_scope_whose_marker_cannot_be_waited_for_waits_for_its_stream() {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let (x, mut to) = (gpu.zeros::<u32>(4, &s).unwrap(), gpu.pinned_zeros::<u32>(4).unwrap());
    let waits = || gpu.report().driver_calls.get("cuCtxSynchronize").copied().unwrap_or(0);
    let before = waits();
    // The question of whether it is done, and the wait.
    sim.fail(Call::EventQuery, 1, DriverErrorKind::Other);
    sim.fail(Call::EventSynchronize, 1, DriverErrorKind::Other);
    millpond::transfer::scope(&s, |copies| copies.download(&x, to.view_mut())).unwrap().unwrap();
    assert_eq!(waits(), before, "the stream was waited for");
    assert_eq!(to[..], [0; 4]);
    drop((x, to, s, gpu));
    sim.verdict().unwrap();
}

/// What is queued in a scope and cannot be marked is queued: no error says that nothing was.
#[test]
fn a_scopes_copy_that_cannot_be_marked_is_made_all_the_same() {
    let (sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let (mut x, from) = (gpu.zeros::<u32>(4, &s).unwrap(), gpu.pinned_from_slice(&[7_u32; 4]).unwrap());
    millpond::transfer::scope(&s, |copies| {
        sim.fail(Call::EventRecord, 1, DriverErrorKind::Other);
        copies.upload(&mut x, from.view()).expect("it was queued");
    })
    .unwrap();
    assert_eq!(x.to_pinned(&s).unwrap().wait().unwrap()[..], [7; 4]);
    drop((x, from, s, gpu));
    sim.verdict().unwrap();
}

/// Elements without bytes go through slots in one piece, however many there are: it took 2^42 of them.
#[test]
fn elements_of_no_bytes_are_staged_at_once() {
    let (_sim, gpu) = late();
    let s = gpu.stream().unwrap();
    let none = gpu.uninit::<()>(usize::MAX, &s).unwrap();
    assert_eq!(none.to_vec(&s).unwrap().len(), usize::MAX);
}
