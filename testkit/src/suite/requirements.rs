//! Requirements of tests/architecture/requirements.rs whose tests run on each bench, because they depend on the kind of device.

#![allow(clippy::many_single_char_names, reason = "b is the bench; s, t streams; x, y, z arrays")]

use super::*;
use millpond::array::ExternalMemory;
use millpond::erased::{AnyAllocation, GpuAlloc};
use millpond::kernel;
use millpond::wrap::{Counted, Limited};
use millpond::{DeviceArray, DriverError, DriverErrorKind, Error, Growth, Limit, PinnedArray, Reuse};
use std::collections::HashSet;
use std::sync::Arc;

/// How often a stream is dropped: handle values are used again after a few.
const DROPS: usize = 40;

/// D3: a stream is dropped while a reader of freed bytes is still pending on it, and its handle value is used again for another
/// stream, which gets the bytes. An allocator that knows streams by handle takes the two for one and orders nothing. First with room
/// for other bytes, then with room for one block, where the same bytes are reused behind a wait.
pub fn d03_a_stream_dropped_with_work_pending<T: Bench>(b: &T) {
    let (mut values_back, mut same_bytes, drops) = (0, 0, b.many(DROPS, 2));
    for limit in [Limit::None, Limit::Bytes(4 * MIB)] {
        let gpu = allocator(b, Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(limit));
        let mut values = HashSet::new();
        for _ in 0..drops {
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
            assert!(pending(b, &behind), "the reader had not run when its bytes were handed out again");
            b.open(gate);
            still(b, &next, &t, word);
            gpu.synchronize().expect("waited");
        }
    }
    assert!(values_back > 0, "no handle value was used again: nothing was shown");
    assert!(same_bytes >= drops, "under the limit every block is the former one's bytes: {same_bytes}");
    let wrong = b.tally();
    if std::env::var_os("MILLPOND_DEMO").is_some() {
        let found = wrong.as_ref().err().map_or("none", String::as_str);
        say(&format!(
            "D3 millpond: {} streams dropped with work pending; a handle value back {values_back} times, the same \
             bytes given away {same_bytes} times; wrong contents: {found}",
            2 * drops
        ));
    }
    wrong.expect("what was read is what was written");
}

/// C7: two threads' default streams have the same handle value. But they are two streams with a pool each, and
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

/// Whether this run is shown beside another allocator's fault: it prints figures, and has as many attempts as that one.
fn demo() -> bool {
    std::env::var_os("MILLPOND_DEMO").is_some()
}

/// An allocator, with the built-in kernels loaded: a first launch may wait for a gate otherwise.
fn loaded<T: Bench>(b: &T, config: Config) -> Allocator<T::Device> {
    kernel::load_builtins(b.device()).expect("loaded");
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

/// The result of a call as the bench expects it. On a device without time a wait behind a closed gate fails at once.
fn as_driver(result: Result<(), Error>) -> DriverResult<()> {
    result.map_err(|e| match e {
        Error::Driver(e) => e,
        other => {
            DriverError::new("wait", 999, DriverErrorKind::Other, format!("would wait for ever: {other}"))
        }
    })
}

/// S2: a copy from pageable memory that is larger than the slots waits for its stream in the call, so that a second copy, and the kernel
/// that was to run beside it, are not queued before. A copy from pinned memory does not wait.
pub fn s02_pageable_sources_serialise<T: Bench>(b: &T) {
    let gpu = loaded(b, Config::default());
    let (s, t) = two::<T>(&gpu);
    // More than three slots of 4 MiB.
    let (n, m) = (b.many(4 << 20, (3 << 20) + 1), b.many(4 << 20, 100));
    let (mut x, mut y) = (gpu.zeros::<u32>(n, &s).expect("x"), gpu.zeros::<u32>(m, &t).expect("y"));
    let pageable = vec![3; n];
    let mut pinned = Some(full::<T>(&gpu, m, 5));
    // This pins the slots, which takes a while.
    x.copy_from_slice(&pageable, &s).expect("copied");
    finish_stream(b, s.native());
    assert!(
        b.waits(s.native(), &mut || as_driver(x.copy_from_slice(&pageable, &s).map_err(Error::from))),
        "pageable: the call waits"
    );
    finish_stream(b, s.native());
    let mut sent = None;
    let waited = b.waits(t.native(), &mut || {
        sent = Some(y.copy_from(pinned.take().expect("one call"), &t).expect("queued"));
        Ok(())
    });
    assert!(!waited, "pinned: the call does not wait");
    drop(sent.expect("queued").wait().expect("done"));
    assert!(x.to_vec(&s).expect("read") == pageable);
    assert!(y.to_vec(&t).expect("read").iter().all(|&v| v == 5));
}

/// S7: two copies on two streams, and a kernel on the first array on the legacy default stream. It waits for the
/// other copy too if the streams are blocking; if they are not, it runs beside that copy.
pub fn s07_the_legacy_stream_destroys_overlap<T: Bench>(b: &T) {
    let gpu = loaded(b, Config::default());
    let (legacy, n) = (gpu.adopt(b.legacy()).expect("adopted"), b.many(5000, 100));
    for blocking in [true, false] {
        let options = millpond::driver::StreamOptions::default().blocking(blocking);
        let (s, t) =
            (gpu.stream_with(options).expect("a stream"), gpu.stream_with(options).expect("a stream"));
        let (mut x, mut y) = (gpu.zeros::<u32>(n, &s).expect("x"), gpu.zeros::<u32>(n, &t).expect("y"));
        let z = gpu.zeros::<u32>(n, &s).expect("z");
        let hosts = (full::<T>(&gpu, n, 3), full::<T>(&gpu, n, 4));
        s.synchronize().expect("waited");
        let gate = b.gate(t.native());
        let first = x.copy_from(hosts.0, &s).expect("queued");
        let second = y.copy_from(hosts.1, &t).expect("queued");
        kernel::saxpy(2, &z, &mut x, &legacy).expect("queued");
        let behind = mark(b, legacy.native());
        if blocking {
            assert!(pending(b, &behind), "the legacy stream waits for a copy that the kernel does not use");
        } else {
            assert!(done(b, &behind), "it waits for the copy of its own array only");
        }
        assert!(!second.is_done().expect("an answer"), "the second copy is pending");
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

/// S17: a pinned source that is dropped while its copy is in flight is not reused for the next buffer; after the copy it is.
pub fn s17_drop_pinned_in_flight<T: Bench>(b: &T) {
    let (gpu, n) = (allocator(b, Config::default()), b.many(5000, 100));
    assert_eq!(drop_a_source(b, &gpu, n, 0xAB), (0, 0));
    gpu.synchronize().expect("waited");
    let held = gpu.report().pinned.expect("pinned memory").reserved;
    assert_eq!(drop_a_source(b, &gpu, n, 0xCD), (0, 0));
    assert_eq!(
        gpu.report().pinned.expect("pinned memory").reserved,
        held,
        "the second round reuses the first one's memory"
    );
}

/// D1: S17 many times, with one allocator.
pub fn d01_a_pinned_source_dropped_in_flight<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (runs, n) = if demo() { (60, 1 << 20) } else { (b.many(12, 1) as u32, b.many(1 << 12, 100)) };
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

/// Drops an array of one stream while a kernel on another stream, which is held, has to read it. The first stream allocates as much and
/// writes. Returns whether the bytes were the same, and how many words were read wrong.
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
        // By an event: under a checking tool a wait for a stream waits for the gate too.
        assert!(done(b, &mark(b, s.native())), "with other bytes nothing waits");
    }
    assert!(pending(b, &behind), "the reader had not run when its bytes were free");
    b.open(gate);
    let wrong = read.to_vec(&t).expect("read").iter().filter(|&&v| v != word).count();
    assert!(y.to_vec(&s).expect("read").iter().all(|&v| v == !word));
    (same, wrong)
}

/// D2: an array that another stream reads is dropped, and its own stream allocates. The program does not declare the read: the
/// launch records it. First with room for other bytes; then without, where the same bytes are reused behind a wait.
pub fn d02_an_array_dropped_under_a_reader<T: Bench>(b: &T) {
    let (runs, n) = if demo() { (40, 1 << 20) } else { (b.many(6, 1) as u32, b.many(1 << 12, 1 << 8)) };
    let bytes = 4 * n as u64;
    let mut found = Vec::new();
    for limit in [Limit::None, Limit::Bytes(2 * bytes)] {
        for run in 0..runs {
            // An allocator for each run: otherwise a former run's memory would be used, and nothing would be shown.
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

/// The mean, computed by several threads: one alone takes longer for 800 MB than their copy does.
fn mean(of: &[f64]) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let sum = |part: &[f64]| part.chunks(1 << 12).map(|few| few.iter().sum::<f64>()).sum::<f64>();
    let total: f64 = std::thread::scope(|scope| {
        let parts = of.chunks(of.len().div_ceil(cores).max(1 << 16));
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || sum(part))).collect();
        parts.into_iter().map(|part| part.join().expect("no panic")).sum()
    });
    total / of.len() as f64
}

/// The attempts in which a copy to the host had wrong contents. Each row of the tutorial's array counts up from 1, or in every other
/// attempt down to 1: the mean is always the same, but a read before the copy is done would find the first and last elements of the
/// former attempt.
fn wrong_attempts<T: Bench>(b: &T, [rows, columns]: [usize; 2], attempts: u32) -> Vec<u32> {
    let gpu = loaded(b, Config::default());
    let (s, t) = two::<T>(&gpu);
    let mut x = gpu.uninit::<f64>([rows, columns], &s).expect("x");
    let mut host = gpu.pinned_zeros::<f64>([rows, columns]).expect("a target");
    let mut wrong = Vec::new();
    for attempt in 0..attempts {
        let (first, step, last) =
            if attempt % 2 == 0 { (1.0, 1.0, columns as f64) } else { (columns as f64, -1.0, 1.0) };
        for row in 0..rows {
            kernel::iota(&mut x.rows_mut(row..=row), first, step, &s).expect("queued");
        }
        let on = if attempt % 2 == 0 { &s } else { &t };
        host = x.copy_to(host, on).expect("queued").wait().expect("done");
        // Whole numbers, whose sums are whole and exact.
        let same = |a: f64, b: f64| (a - b).abs() < 1e-6;
        let ends = host.chunks(columns).all(|row| same(row[0], first) && same(row[columns - 1], last));
        if !ends || !same(mean(&host), f64::midpoint(1.0, columns as f64)) {
            wrong.push(attempt);
        }
    }
    wrong
}

/// P7: the data of a copy to the host are there after its wait, every time.
pub fn p07_data_of_a_copy_to_the_host_come_behind_the_wait<T: Bench>(b: &T) {
    let wrong = wrong_attempts(b, [3, b.many(3_333, 33)], b.many(100, 2) as u32);
    assert!(wrong.is_empty(), "wrong attempts: {wrong:?}");
}

/// D4: the same, with the tutorial's 799,999,200 bytes, whose mean is 500,000, and its 100 attempts when it is shown beside another
/// allocator's fault. A read before the wait does not compile (`Download`).
pub fn d04_the_target_of_a_copy_is_read_behind_the_wait<T: Bench>(b: &T) {
    let (shape, attempts) =
        if demo() { ([100, 999_999], 100) } else { ([4, b.many(9_999, 99)], b.many(20, 2) as u32) };
    let wrong = wrong_attempts(b, shape, attempts);
    if demo() {
        say(&format!(
            "D4 millpond: {attempts} copies of {} bytes to the host, whose mean is {}, read behind the wait, which is the \
             only way that compiles; wrong attempts: {}",
            8 * shape[0] * shape[1],
            f64::midpoint(1.0, shape[1] as f64),
            if wrong.is_empty() { "none".to_owned() } else { format!("{wrong:?}") }
        ));
    }
    assert!(wrong.is_empty(), "wrong attempts: {wrong:?}");
}

/// H4: a slot on the device is filled again before its former batch was read: the copy waits for the reads on the
/// device, and the host does not wait. The token says when the batch's source can be filled again.
pub fn h04_a_slot_is_overwritten_behind_its_reads<T: Bench>(b: &T) {
    let gpu = loaded(b, Config::default());
    let (copy, work) = two::<T>(&gpu);
    let n = b.many(5000, 100);
    let mut slot = gpu.uninit::<u32>(n, &copy).expect("a slot");
    let mut read = [0, 1].map(|_| gpu.zeros::<u32>(n, &work).expect("what was read"));
    let spare = full::<T>(&gpu, n, 2);
    gpu.synchronize().expect("waited");

    let gate = b.gate(work.native());
    let sent = slot.copy_from(full::<T>(&gpu, n, 1), &copy).expect("queued");
    let arrived = mark(b, copy.native());
    kernel::saxpy(1, &slot, &mut read[0], &work).expect("queued");
    // The source is free as soon as its copy is done, even if the slot was not read yet.
    assert!(done(b, &arrived));
    let mut host = sent.try_into_inner().expect("an answer, with no wait");
    host.fill(3);
    let second = slot.copy_from(spare, &copy).expect("queued, and the host does not wait");
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

// Requirements about which calls are allowed, and from where.

/// The owner of an external range: a block of another allocator. It counts its drops.
struct Owner<D: Driver> {
    _block: Allocation<D>,
    dropped: Arc<AtomicU64>,
}

impl<D: Driver> Drop for Owner<D> {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// C5: memory of another library, which has one block and reuses it as soon as it is released, without our order. As
/// an array it is written on two streams and read back. It is dropped in flight, on another thread, and keeps its owner until
/// the device is done with it.
#[allow(unsafe_code, reason = "the library's block lives as long as its owner, and has no other user")]
pub fn c05_an_external_range_keeps_its_owner<T: Bench>(b: &T) {
    let gpu = loaded(b, Config::default());
    let library = allocator(b, Config::default().growth(Growth::Exact).limit(Limit::Bytes(2 * MIB)));
    let theirs = library.stream().expect("a stream");
    let (s, t) = two::<T>(&gpu);
    // In a loop only a part of the block is used.
    let n = b.many((2 * MIB / 4) as usize, 1 << 8);
    let (bytes, dropped) = (4 * n as u64, Arc::new(AtomicU64::new(0)));
    let mut other = gpu.zeros::<u32>(64, &s).expect("another array");
    for round in 1..=b.many(3, 1) as u32 {
        let block = library.alloc(bytes, &theirs).expect("its only block");
        let memory = ExternalMemory { address: block.address(), bytes, device: gpu.device() };
        let owner = Owner { _block: block, dropped: Arc::clone(&dropped) };
        // SAFETY: the range lives as long as its owner; the library's last use of it was waited for.
        let made = unsafe { DeviceArray::<u32, _>::from_external(memory, n, owner, &s) };
        let mut x = made.map_err(|(_, e)| e).expect("brought in");
        assert_eq!((x.len(), x.id()), (n, None), "not an allocation of this allocator");
        drop(x.copy_from(full::<T>(&gpu, n, 70 + round), &s).expect("queued"));
        let gate = b.gate(t.native());
        kernel::fill(&mut x.slice_mut(..n / 2), round, &t).expect("queued");
        let back = x.to_pinned(&t).expect("queued");
        std::thread::scope(|threads| drop(threads.spawn(move || drop(x))));
        // An operation looks at the deferred drops and finds it in use.
        kernel::fill(&mut other, round, &s).expect("queued");
        assert_eq!(dropped.load(Ordering::Relaxed), u64::from(round) - 1, "the device has yet to write it");
        b.open(gate);
        let back = back.wait().expect("done");
        assert!(back[..n / 2].iter().all(|&v| v == round) && back[n / 2..].iter().all(|&v| v == 70 + round));
        gpu.synchronize().expect("waited");
        assert_eq!(
            dropped.load(Ordering::Relaxed),
            u64::from(round),
            "the device is done, and a call released it"
        );
        let again = library.alloc(bytes, &theirs).expect("the same block: the library can use it again");
        let word = own(b, &again, &theirs);
        still(b, &again, &theirs, word);
        theirs.synchronize().expect("waited");
    }
    assert_eq!(gpu.report().total.live, 1, "the external range is not counted");
}

/// C3: the allocator of a scope is an argument. The limit of an inner one refuses what the outer one grants, what the inner one grants
/// is counted by the outer one, another thread uses another allocator meanwhile, and nothing is left.
pub fn c03_the_allocator_of_a_scope_is_an_argument<T: Bench>(b: &T) {
    /// Some work that knows only its allocator, and the bench's kernels.
    fn layer<T: Bench>(b: &T, on: &dyn GpuAlloc, bytes: u64) -> Result<AnyAllocation, Error> {
        let stream = on.stream()?;
        let block = on.alloc(bytes, &stream)?;
        let (native, word) =
            (stream.downcast_ref::<T::Device>().expect("of this device").native(), fresh_word());
        b.write(native, block.address(), bytes, word);
        b.check(native, block.address(), bytes, word);
        Ok(block)
    }
    let any = allocator(b, Config::default()).erase();
    let training = Arc::new(Counted::new(Arc::clone(&any)));
    let kept = layer(b, &*training, KIB).expect("memory");
    {
        let validation = Limited::new(Arc::clone(&training) as Arc<dyn GpuAlloc>, 4 * KIB);
        std::thread::scope(|threads| {
            // One after the other, so that a loop of this does the same in each round.
            let beside =
                threads.spawn(|| drop(layer(b, &*any, MIB).expect("another allocator, on another thread")));
            beside.join().expect("it has its memory");
            let inside = layer(b, &validation, 4 * KIB).expect("as much as the limit");
            let refused = layer(b, &validation, 512).expect_err("above the limit");
            assert!(matches!(refused, Error::AboveLimit { .. }), "{refused}");
            drop(layer(b, &*training, 512).expect("the outer one has no such limit"));
            drop(inside);
        });
        drop(layer(b, &validation, 4 * KIB).expect("as much again"));
    }
    let counts = training.counts();
    assert_eq!((counts.allocations, counts.bytes_served, counts.bytes_live), (4, 9 * KIB + 512, KIB));
    drop(kept);
    assert_eq!(any.report().total.live, 0);
}

/// G5: a block is allocated on one thread, used on a second and freed on a third: the stream orders everything, and the bytes
/// are reused at once.
pub fn g05_allocated_used_and_freed_on_three_threads<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut at = HashSet::new();
    for _ in 0..b.many(20, 1) {
        let (gpu, s) = (&gpu, &s);
        let x = std::thread::scope(|t| {
            t.spawn(move || gpu.alloc(MIB, s).expect("memory")).join().expect("no panic")
        });
        std::thread::scope(|t| {
            drop(t.spawn(|| {
                let word = own(b, &x, s);
                still(b, &x, s, word);
            }));
        });
        at.insert(x.address());
        std::thread::scope(|t| drop(t.spawn(move || drop(x))));
    }
    assert_eq!(at.len(), 1, "the same chunk every time");
}

/// G6: a stream waits for an event, and a third one for that stream: on the device, while the host does not wait.
pub fn g06_a_stream_waits_for_an_event_or_for_a_stream<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let [r, s, t] = [0; 3].map(|_| gpu.stream().expect("a stream"));
    let x = gpu.alloc(MIB, &r).expect("memory");
    let gate = b.gate(r.native());
    let word = own(b, &x, &r);
    let written = r.record().expect("recorded");
    s.wait(&written).expect("queued");
    t.wait_stream(&s).expect("queued");
    for on in [&s, &t] {
        x.record_use(on).expect("recorded");
        still(b, &x, on, word);
        assert!(pending(b, &mark(b, on.native())), "it waits for the stream that is held");
    }
    b.open(gate);
}

/// T16: the default stream's next work runs after the work of a blocking stream, but not after a non-blocking stream's.
pub fn t16_the_default_stream_waits_for_blocking_streams<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let zero = gpu.adopt(b.legacy()).expect("adopted");
    for blocking in [true, false] {
        let options = millpond::driver::StreamOptions::default().blocking(blocking);
        let s = gpu.stream_with(options).expect("a stream");
        let x = gpu.alloc(MIB, &s).expect("memory");
        let gate = b.gate(s.native());
        let word = own(b, &x, &s);
        if blocking {
            // It waits without an inserted wait.
            x.record_use(&zero).expect("recorded");
            still(b, &x, &zero, word);
        }
        let behind = mark(b, zero.native());
        if blocking {
            assert!(pending(b, &behind), "the default stream waits for the blocking one");
        } else {
            assert!(done(b, &behind), "it does not wait for the other");
        }
        b.open(gate);
    }
}

/// T17: two streams read one input, which is dropped while both still run: its bytes are reused after both, whichever
/// ends first.
pub fn t17_an_input_of_two_readers_is_reused_behind_both<T: Bench>(b: &T) {
    for first in 0..2 {
        let gpu = allocator(
            b,
            Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(4 * MIB)),
        );
        let [home, left, right] = [0; 3].map(|_| gpu.stream().expect("a stream"));
        let x = gpu.alloc(4 * MIB, &home).expect("memory");
        let (at, word) = (x.address(), own(b, &x, &home));
        let gates = [&left, &right].map(|on| {
            on.wait_stream(&home).expect("queued");
            x.record_use(on).expect("recorded");
            let gate = b.gate(on.native());
            still(b, &x, on, word);
            gate
        });
        drop(x);
        assert_eq!(gpu.report().total.in_flight, 4 * MIB);
        let y = gpu.alloc(4 * MIB, &home).expect("the same bytes, behind a wait");
        assert_eq!(y.address(), at);
        assert_eq!(gpu.report().total.counters.waits_inserted, 2, "one for each reader");
        let word = own(b, &y, &home);
        let behind = mark(b, home.native());
        let mut gates = gates.map(Some);
        b.open(gates[first].take().expect("closed"));
        assert!(pending(b, &behind), "the other reader still runs");
        b.open(gates[1 - first].take().expect("closed"));
        still(b, &y, &home, word);
    }
}

/// S6: waiting for one stream leaves the others running.
pub fn s06_stream_wait_is_local<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (waited, running) = two::<T>(&gpu);
    let (x, y) = (gpu.alloc(MIB, &waited).expect("memory"), gpu.alloc(MIB, &running).expect("memory"));
    let gate = b.gate(running.native());
    let (of_x, of_y) = (own(b, &x, &waited), own(b, &y, &running));
    still(b, &x, &waited, of_x);
    still(b, &y, &running, of_y);
    let (here, there) = (mark(b, waited.native()), mark(b, running.native()));
    waited.synchronize().expect("its own work ends");
    assert!(!pending(b, &here) && pending(b, &there), "one was waited for, and not the other");
    b.open(gate);
    running.synchronize().expect("waited");
    assert!(!pending(b, &there));
}

/// P2: a blocking copy is an asynchronous one and a wait for it: without the wait no copy stops the program, and
/// one wait is enough for many. tests/arrays/transfers.rs counts the waits.
pub fn p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait<T: Bench>(b: &T) {
    let gpu = loaded(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let n = b.many(1000, 10);
    let source = |k: usize| gpu.pinned_from_fn(n, |i| (k * 1000 + i) as u32).expect("host memory");
    let mut all: Vec<_> = (0..b.many(20, 3)).map(|_| gpu.uninit::<u32>(n, &s).expect("memory")).collect();
    let gate = b.gate(s.native());
    let copy = |(k, x): (usize, &mut DeviceArray<u32, _>)| x.copy_from(source(k), &s).expect("queued");
    let sent: Vec<_> = all.iter_mut().enumerate().map(copy).collect();
    assert!(
        sent.iter().all(|t| !t.is_done().expect("an answer")),
        "the program continued before any of them ran"
    );
    b.open(gate);
    s.synchronize().expect("waited");
    assert!(sent.into_iter().all(|t| t.try_into_inner().is_ok()), "one wait was enough for all");
    for (k, x) in all.iter_mut().enumerate() {
        let back = x.to_pinned(&s).expect("queued").wait().expect("copied");
        assert!(back.iter().enumerate().all(|(i, &v)| v == (k * 1000 + i) as u32), "array {k}");
        // Blocking, into the same array.
        let source = x.copy_from(source(k + 1), &s).expect("queued").wait().expect("copied");
        assert_eq!(source[0], ((k + 1) * 1000) as u32, "the source is returned when the copy is done");
    }
}
