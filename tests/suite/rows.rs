//! Rows of tests/rows.rs that need a device of their own kind under them: they are shown on each bench.

#![allow(clippy::many_single_char_names, reason = "b is the bench; s, t streams; x, y, z arrays")]

use super::*;
use millpond::kernel;
use millpond::{DeviceArray, DriverError, DriverErrorKind, Error, Growth, Limit, PinnedArray, Reuse};
use std::collections::HashSet;

/// How often a stream is dropped: handle values come back within a few.
const DROPS: usize = 40;

/// D3: a stream is dropped with a reader of freed bytes still pending on it, and its handle value comes back as another
/// stream's, to which the bytes go. Who knows streams by handle takes the two for one and orders nothing. Once with room
/// to spare, where other bytes serve; once with room for one block, where the same bytes serve behind a wait.
pub fn d03_a_stream_dropped_with_work_pending<T: Bench>(b: &T) {
    let (mut values_back, mut same_bytes) = (0, 0);
    for limit in [Limit::None, Limit::Bytes(4 * MIB)] {
        let gpu = allocator(b, Config::default().growth(Growth::Exact).limit(limit));
        let mut values = HashSet::new();
        for _ in 0..DROPS {
            let s = gpu.stream().expect("a stream");
            values_back += usize::from(!values.insert(b.handle(s.native())));
            let block = gpu.alloc(4 * MIB, &s).expect("memory");
            let (at, word) = (block.address(), own(b, &block, &s));
            let gate = b.gate(s.native());
            let behind = mark(b, s.native());
            still(b, &block, &s, word);
            drop(block);
            drop(s);
            let t = gpu.stream().expect("a stream");
            values_back += usize::from(!values.insert(b.handle(t.native())));
            let next = gpu.alloc(4 * MIB, &t).expect("other bytes, or the same behind a wait");
            same_bytes += usize::from(next.address() == at);
            let word = own(b, &next, &t);
            assert!(pending(b, &behind), "the reader had not run when its bytes were given away");
            b.open(gate);
            still(b, &next, &t, word);
            gpu.synchronize().expect("waited");
        }
    }
    assert!(values_back > 0, "no handle value came back: nothing was shown");
    assert!(same_bytes >= DROPS, "under the limit every block is the former one's bytes: {same_bytes}");
    let wrong = b.tally();
    if std::env::var_os("MILLPOND_DEMO").is_some() {
        let found = wrong.as_ref().err().map_or("none", String::as_str);
        say(&format!(
            "D3 millpond: {} streams dropped with work pending; a handle value back {values_back} times, the same \
             bytes given away {same_bytes} times; wrong contents: {found}",
            2 * DROPS
        ));
    }
    wrong.expect("what was read is what was written");
}

/// C7: two threads' default streams share one handle value. They are two streams all the same, each with a pool, and
/// what one of them still reads is not given to the other.
pub fn c07_per_thread_default_streams_are_known_by_their_ids<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().growth(Growth::Exact).reuse(Reuse::Ordered));
    let native = b.per_thread();
    let here = gpu.adopt(native.clone()).expect("adopted");
    let block = gpu.alloc(MIB, &here).expect("memory");
    let (at, word) = (block.address(), own(b, &block, &here));
    let gate = b.gate(&native);
    still(b, &block, &here, word);
    drop(block);
    let (id, value, other) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let native = b.per_thread();
            let there = gpu.adopt(native.clone()).expect("adopted");
            let block = gpu.alloc(MIB, &there).expect("memory");
            let word = own(b, &block, &there);
            still(b, &block, &there, word);
            finish_stream(b, &native);
            (there.id(), b.handle(&native), block.address())
        });
        theirs.join().expect("no panic")
    });
    assert_eq!(value, b.handle(&native), "one value for two streams");
    assert_ne!(id, here.id(), "and two ids");
    assert_ne!(other, at, "bytes that this thread's stream still reads");
    let again = gpu.alloc(MIB, &here).expect("memory");
    assert_eq!(again.address(), at, "its own stream has them at once");
    own(b, &again, &here);
    b.open(gate);
    gpu.synchronize().expect("waited");
}

// Copies and arrays.

/// Whether a peer's fault is shown beside ours in this run: with figures, and as often as at the peer.
fn demo() -> bool {
    std::env::var_os("MILLPOND_DEMO").is_some()
}

/// An allocator, with the house's kernels loaded: a first launch may wait for a gate otherwise.
fn loaded<T: Bench>(b: &T, config: Config) -> Allocator<T::Device> {
    kernel::load_house(b.device()).expect("loaded");
    allocator(b, config)
}

/// Streams for two legs.
fn two<T: Bench>(gpu: &Allocator<T::Device>) -> (Stream<T::Device>, Stream<T::Device>) {
    (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"))
}

/// Elements that are all the same.
fn full<T: Bench>(gpu: &Allocator<T::Device>, n: usize, word: u32) -> PinnedArray<u32, T::Device> {
    gpu.pinned_from_fn(n, |_| word).expect("pinned")
}

/// A call of ours as the bench asks for it. A wait behind a closed gate ends at once where a device has no time.
fn as_driver(result: Result<(), Error>) -> DriverResult<()> {
    result.map_err(|e| match e {
        Error::Driver(e) => e,
        other => {
            DriverError::new("wait", 999, DriverErrorKind::Other, format!("would wait for ever: {other}"))
        }
    })
}

/// S2: from pageable memory the call itself waits for its stream, once there is more to copy than slots hold: a second
/// copy, and the kernel that was to run beside it, are not even queued before. From pinned memory it does not.
pub fn s02_pageable_sources_serialise<T: Bench>(b: &T) {
    let gpu = loaded(b, Config::default());
    let (s, t) = two::<T>(&gpu);
    let n = 4 << 20;
    let (mut x, mut y) = (gpu.zeros::<u32>(n, &s).expect("x"), gpu.zeros::<u32>(n, &t).expect("y"));
    let pageable = vec![3; n];
    let mut pinned = Some(full::<T>(&gpu, n, 5));
    // The slots are pinned by now, which takes a while at first.
    x.copy_from_pageable(&pageable, &s).expect("copied");
    finish_stream(b, s.native());
    assert!(
        b.waits(s.native(), &mut || as_driver(x.copy_from_pageable(&pageable, &s))),
        "pageable: in the call"
    );
    finish_stream(b, s.native());
    let mut sent = None;
    let waited = b.waits(t.native(), &mut || {
        sent = Some(y.copy_from(pinned.take().expect("one call"), &t).expect("queued"));
        Ok(())
    });
    assert!(!waited, "pinned: behind the call");
    drop(sent.expect("queued").wait().expect("done"));
    assert!(x.to_vec(&s).expect("read") == pageable);
    assert!(y.to_vec(&t).expect("read").iter().all(|&v| v == 5));
}

/// S7: two copies on two streams, and a kernel on the first array launched on the legacy default stream. It waits for the
/// other copy too if the streams are blocking ones; if they are not, it runs beside it.
pub fn s07_the_legacy_stream_destroys_overlap<T: Bench>(b: &T) {
    let gpu = loaded(b, Config::default());
    let legacy = gpu.adopt(b.legacy()).expect("adopted");
    for blocking in [true, false] {
        let options = millpond::driver::StreamOptions { blocking, ..Default::default() };
        let (s, t) =
            (gpu.stream_with(options).expect("a stream"), gpu.stream_with(options).expect("a stream"));
        let (mut x, mut y) = (gpu.zeros::<u32>(5000, &s).expect("x"), gpu.zeros::<u32>(5000, &t).expect("y"));
        let z = gpu.zeros::<u32>(5000, &s).expect("z");
        let hosts = (full::<T>(&gpu, 5000, 3), full::<T>(&gpu, 5000, 4));
        s.synchronize().expect("waited");
        let gate = b.gate(t.native());
        let first = x.copy_from(hosts.0, &s).expect("queued");
        let second = y.copy_from(hosts.1, &t).expect("queued");
        kernel::saxpy(2, &z, &mut x, &legacy).expect("queued");
        let behind = mark(b, legacy.native());
        if blocking {
            assert!(pending(b, &behind), "the legacy stream waits for a copy that the kernel does not use");
        } else {
            assert!(done(b, &behind), "nothing but the kernel's own copy is waited for");
        }
        assert!(!second.is_done().expect("an answer"), "the second copy is under way");
        b.open(gate);
        drop((first.wait().expect("done"), second.wait().expect("done")));
        assert!(x.to_vec(&s).expect("read").iter().all(|&v| v == 3));
    }
}

/// One pinned source, dropped while the copy from it is held: how many of the next pinned arrays got its bytes, and how
/// many words arrived wrong.
fn drop_a_source<T: Bench>(b: &T, gpu: &Allocator<T::Device>, n: usize, word: u32) -> (usize, usize) {
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.zeros::<u32>(n, &s).expect("x");
    let host = full::<T>(gpu, n, word);
    let at = host.as_ptr();
    let gate = b.gate(s.native());
    drop(x.copy_from(host, &s).expect("queued"));
    let next: Vec<_> = (0..3).map(|_| full::<T>(gpu, n, !word)).collect();
    let same = next.iter().filter(|p| p.as_ptr() == at).count();
    let behind = mark(b, s.native());
    assert!(pending(b, &behind), "the copy has not begun");
    b.open(gate);
    (same, x.to_vec(&s).expect("read").iter().filter(|&&v| v != word).count())
}

/// S17: a pinned source dropped while its copy is in flight is not the next buffer's memory; when the copy is done it is.
pub fn s17_drop_pinned_in_flight<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    assert_eq!(drop_a_source(b, &gpu, 5000, 0xAB), (0, 0));
    gpu.synchronize().expect("waited");
    let held = gpu.report().pinned.expect("pinned memory").held;
    assert_eq!(drop_a_source(b, &gpu, 5000, 0xCD), (0, 0));
    assert_eq!(
        gpu.report().pinned.expect("pinned memory").held,
        held,
        "the first round's memory serves the second"
    );
}

/// D1: S17 over and over, with everything in one allocator.
pub fn d01_a_pinned_source_dropped_in_flight<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (runs, n) = if demo() { (60, 1 << 20) } else { (12, 1 << 12) };
    let found: Vec<_> = (0..runs).map(|run| drop_a_source(b, &gpu, n, 0x0101_0101 + run)).collect();
    let (same, wrong) = (found.iter().map(|f| f.0).sum::<usize>(), found.iter().filter(|f| f.1 > 0).count());
    if demo() {
        let worst = found.iter().map(|f| f.1).max().unwrap_or(0);
        say(&format!(
            "D1 millpond: {runs} pinned sources dropped in flight; the same bytes given away {same} times; wrong in \
             {wrong} runs, at worst {worst} of {n} words"
        ));
    }
    assert_eq!((same, wrong), (0, 0));
}

/// An array of one stream, read by a kernel that another stream holds, dropped; its own stream allocates as much and
/// writes. Whether the bytes were the same, and how many words were read wrong.
fn drop_under_a_reader<T: Bench>(b: &T, gpu: &Allocator<T::Device>, n: usize, word: u32) -> (bool, usize) {
    let (s, t) = two::<T>(gpu);
    let mut x = gpu.uninit::<u32>(n, &s).expect("x");
    let mut read = gpu.zeros::<u32>(n, &t).expect("the reader's");
    kernel::fill(&mut x, word, &s).expect("filled");
    let gate = b.gate(t.native());
    kernel::saxpy(1, &x, &mut read, &t).expect("queued");
    let (at, behind) = (x.address(), mark(b, t.native()));
    drop(x);
    let mut y: DeviceArray<u32, _> = gpu.uninit(n, &s).expect("other bytes, or the same behind a wait");
    kernel::fill(&mut y, !word, &s).expect("filled");
    let same = y.address() == at;
    if !same {
        finish_stream(b, s.native());
    }
    assert!(pending(b, &behind), "the reader had not run when its bytes were free");
    b.open(gate);
    let wrong = read.to_vec(&t).expect("read").iter().filter(|&&v| v != word).count();
    assert!(y.to_vec(&s).expect("read").iter().all(|&v| v == !word));
    (same, wrong)
}

/// D2: an array read on another stream, dropped, its bytes wanted by its own stream. Nobody says that it was read: the
/// launch knows. Once with room to spare, where other bytes serve; once without, where the same serve behind a wait.
pub fn d02_an_array_dropped_under_a_reader<T: Bench>(b: &T) {
    let (runs, n) = if demo() { (40, 1 << 20) } else { (6, 1 << 12) };
    let bytes = 4 * n as u64;
    let mut found = Vec::new();
    for limit in [Limit::None, Limit::Bytes(2 * bytes)] {
        for run in 0..runs {
            // An allocator a run: what a former run's streams left would serve otherwise, and nothing be shown.
            let gpu = loaded(b, Config::default().growth(Growth::Exact).limit(limit));
            found.push(drop_under_a_reader(b, &gpu, n, 0x0101_0101 + run));
        }
    }
    let (same, wrong) = (found.iter().filter(|f| f.0).count(), found.iter().filter(|f| f.1 > 0).count());
    if demo() {
        let worst = found.iter().map(|f| f.1).max().unwrap_or(0);
        say(&format!(
            "D2 millpond, nothing annotated: {} arrays dropped under a reader; the same bytes given away {same} times, \
             behind a wait; wrong in {wrong} runs, at worst {worst} of {n} words",
            found.len()
        ));
    }
    assert_eq!(wrong, 0);
    assert_eq!(same, runs as usize, "the same bytes where there are no others, and only there");
}

/// Means of copies to the host that differ from what they must be: attempts over one target, whose values change by one
/// from attempt to attempt, so that whoever looked early would see the former ones.
fn means<T: Bench>(b: &T, n: usize, attempts: u32) -> usize {
    let gpu = loaded(b, Config::default());
    let (s, t) = two::<T>(&gpu);
    let mut x = gpu.uninit::<f64>(n, &s).expect("x");
    let mut host = gpu.pinned_zeros::<f64>(n).expect("a target");
    let mut wrong = 0;
    for attempt in 0..attempts {
        kernel::iota(&mut x, f64::from(attempt), 1.0, &s).expect("queued");
        let on = if attempt % 2 == 0 { &s } else { &t };
        host = x.copy_to(host, on).expect("queued").wait().expect("done");
        // In parts, so that large sums lose nothing.
        let sum: f64 = host.chunks(1 << 12).map(|part| part.iter().sum::<f64>()).sum();
        let expected = f64::from(attempt) + (n as f64 - 1.0) / 2.0;
        wrong += usize::from((sum / n as f64 - expected).abs() > 1e-3);
    }
    wrong
}

/// P7: the data of a copy to the host are there behind its wait, every time.
pub fn p07_data_of_a_copy_to_the_host_come_behind_the_wait<T: Bench>(b: &T) {
    assert_eq!(means(b, 9_999, 100), 0);
}

/// D4: the same with the tutorial's 799,999,200 bytes where a peer's fault is shown beside. To look before the wait does
/// not compile (`Download`).
pub fn d04_the_target_of_a_copy_is_read_behind_the_wait<T: Bench>(b: &T) {
    let (n, attempts) = if demo() { (100 * 999_999, 30) } else { (40_000, 20) };
    let wrong = means(b, n, attempts);
    if demo() {
        say(&format!(
            "D4 millpond: {attempts} copies of {} bytes to the host, read behind the wait, which is the only way that \
             compiles; wrong means: {wrong}",
            8 * n
        ));
    }
    assert_eq!(wrong, 0);
}

/// H4: a slot on the device, fed again while its former batch is still to be read: the copy waits for the reads, on the
/// device; the host does not, and learns by asking when the batch's source is free to be filled.
pub fn h04_a_slot_is_overwritten_behind_its_reads<T: Bench>(b: &T) {
    let gpu = loaded(b, Config::default());
    let (copy, work) = two::<T>(&gpu);
    let n = 5000;
    let mut slot = gpu.uninit::<u32>(n, &copy).expect("a slot");
    let mut read = [0, 1].map(|_| gpu.zeros::<u32>(n, &work).expect("what was read"));
    let spare = full::<T>(&gpu, n, 2);
    gpu.synchronize().expect("waited");

    let gate = b.gate(work.native());
    let sent = slot.copy_from(full::<T>(&gpu, n, 1), &copy).expect("queued");
    let arrived = mark(b, copy.native());
    kernel::saxpy(1, &slot, &mut read[0], &work).expect("queued");
    // The source is free as soon as its copy is done, whatever the slot's readers do.
    assert!(done(b, &arrived));
    let mut host = sent.try_into_inner().expect("an answer, with no wait");
    host.fill(3);
    let second = slot.copy_from(spare, &copy).expect("queued: the host waits for nobody");
    kernel::saxpy(1, &slot, &mut read[1], &work).expect("queued");
    let overwritten = mark(b, copy.native());
    assert!(pending(b, &overwritten), "the first batch is still to be read");
    assert!(!second.is_done().expect("an answer"));
    b.open(gate);
    drop(second.wait().expect("done"));
    let seen = read.map(|r| r.to_vec(&work).expect("read"));
    assert!(
        seen[0].iter().all(|&v| v == 1) && seen[1].iter().all(|&v| v == 2),
        "each batch was read before the next"
    );
    assert!(host.iter().all(|&v| v == 3));
}
