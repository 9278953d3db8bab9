//! Which calls a graph capture survives, and which end it.

use super::*;
use millpond::driver::{Memory, StreamOptions};
use millpond::{DriverErrorKind, Error, Growth, Limit, Reuse, Trim};
use raw_calls::{free, map, pin, release, set_access, try_pin, unmap, unpin, unreserve};
use std::cell::Cell;
use std::sync::Mutex;

/// A stream that captures a kernel on memory of its own.
fn capturing<T: Bench>(b: &T) -> (StreamOf<T>, Addr) {
    let s = stream(b);
    let addr = captures(b, &s);
    (s, addr)
}

/// Begins a capture on this stream, with a kernel on memory of its own.
fn captures<T: Bench>(b: &T, s: &StreamOf<T>) -> Addr {
    let addr = b.device().allocate_raw(MIB).expect("memory");
    // What loads at the first use is loaded now.
    b.write(s, addr, MIB, A);
    finish_stream(b, s);
    b.begin_capture(s);
    b.write(s, addr, MIB, A);
    addr
}

/// Whether a call, made while a stream captures, ends the capture.
fn ends<T: Bench>(b: &T, call: impl FnOnce(&StreamOf<T>)) -> bool {
    ends_on(b, &stream(b), call)
}

/// The same with a capture on this stream.
fn ends_on<T: Bench>(b: &T, s: &StreamOf<T>, call: impl FnOnce(&StreamOf<T>)) -> bool {
    let addr = captures(b, s);
    call(s);
    let ended = match b.end_capture(s) {
        Ok(()) => false,
        Err(901) => true,
        Err(code) => panic!("the capture ended with {code}"),
    };
    // The stream works again either way.
    b.write(s, addr, MIB, B);
    b.check(s, addr, MIB, B);
    finish_stream(b, s);
    free(b, addr, MIB).expect("freed");
    ended
}

fn refused_for_it(result: DriverResult<impl Sized>) {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(e) => assert_eq!(e.kind, DriverErrorKind::Capturing, "{e}"),
    }
}

pub fn asking_whether_a_stream_captures_is_harmless<T: Bench>(b: &T) {
    let idle = stream(b);
    let ended = ends(b, |s| {
        assert!(b.device().is_capturing(s).expect("an answer"));
        assert!(!b.device().is_capturing(&idle).expect("an answer"));
    });
    assert!(!ended);
}

pub fn asking_a_captured_stream_for_its_id_ends_the_capture<T: Bench>(b: &T) {
    let s = b.per_thread();
    drop(s);
    assert!(ends(b, |s| assert_eq!(b.query_id(s), Err(900))));
}

/// A record on a capturing stream becomes part of the graph: it ends no capture. After the capture a query of the event or a wait for it returns
/// an error that says so, until the event is recorded again. No query says "complete", and no wait succeeds and waits for nothing. A query
/// during the capture ends it, in a relaxed batch too.
pub fn an_event_that_a_capture_took_says_so<T: Bench>(b: &T) {
    let d = b.device();
    let (other, event) = (stream(b), d.create_event().expect("an event"));
    let says_so = |code: u32, result: DriverResult<()>| {
        let e = result.expect_err("a capture took it");
        assert!(e.is_of_captured_event() && e.code == code, "{e}");
    };
    assert!(!ends(b, |s| d.record(&event, s).expect("a record is a part of the capture")));
    for _ in 0..2 {
        says_so(1, d.query(&event).map(drop));
        says_so(1, d.wait(&other, &event));
        says_so(1, d.wait_event(&event, PATIENCE).map(drop));
    }
    let ended = ends(b, |s| {
        d.record(&event, s).expect("recorded");
        d.relaxed(|| says_so(907, d.query(&event).map(drop)));
    });
    assert!(ended);
    says_so(1, d.query(&event).map(drop));
    // A capture that is to wait for it ends.
    assert!(ends(b, |s| says_so(1, d.wait(s, &event))));
    d.record(&event, &other).expect("recorded anew");
    finish_stream(b, &other);
    assert!(d.query(&event).expect("an answer"));
    d.wait(&other, &event).expect("a wait for what is over");
}

/// A call to be made while a stream captures, with its description.
type Named<'a, T> = (&'static str, &'a dyn Fn(&StreamOf<T>) -> DriverResult<()>);

/// Each of these calls alone, inside a relaxed batch.
pub fn relaxed_batches_break_no_capture<T: Bench>(b: &T) {
    let d = b.device();
    let (other, event) = (stream(b), d.create_event().expect("an event"));
    d.record(&event, &other).expect("recorded");
    finish_stream(b, &other);
    let (addr, host) = (d.allocate_raw(MIB).expect("memory"), pin(b, 4096));
    let (allocated, pinned) = (Cell::new(None), Cell::new(None));
    let calls: [Named<'_, T>; 9] = [
        ("an event query", &|_| d.query(&event).map(drop)),
        ("a wait for an event", &|_| d.wait_event(&event, PATIENCE).map(drop)),
        ("an event made, recorded and destroyed", &|_| d.record(&d.create_event()?, &other)),
        ("a stream made and destroyed", &|_| d.create_stream(StreamOptions::default()).map(drop)),
        ("a wait for another stream", &|_| d.synchronize_stream(&other)),
        ("an allocation", &|_| d.allocate_raw(MIB).map(|more| allocated.set(Some(more)))),
        ("a free", &|_| free(b, addr, MIB)),
        ("pinning", &|_| try_pin(b, 4096).map(|more| pinned.set(Some(more)))),
        ("unpinning", &|_| unpin(b, &host)),
    ];
    for (what, call) in calls {
        let ended = ends(b, |s| d.relaxed(|| call(s)).unwrap_or_else(|e| panic!("{what}: {e}")));
        assert!(!ended, "{what} has ended it");
    }
    free(b, allocated.take().expect("allocated"), MIB).expect("freed");
    unpin(b, &pinned.take().expect("pinned")).expect("unpinned");
}

/// Pinning and unpinning break no capture on a stream of any kind that can capture, while another stream works: `synchronize_beside_captures` and an
/// allocator's end depend on it. A call that used the legacy default stream would end one on a blocking stream, and on a thread's default stream.
pub fn unpinning_spares_captures_on_streams_of_every_kind<T: Bench>(b: &T) {
    let d = b.device();
    let (other, range) = (stream(b), d.allocate(MIB).expect("memory"));
    for (kind, s) in
        [("non-blocking", stream(b)), ("blocking", blocking_stream(b)), ("per-thread", b.per_thread())]
    {
        let ended = ends_on(b, &s, |_| {
            b.write(&other, range.addr(), MIB, A);
            let written = mark(b, &other);
            let done = d.relaxed(|| {
                let host = try_pin(b, 512)?;
                unpin(b, &host)?;
                d.query(&written)
            });
            assert!(done.unwrap_or_else(|e| panic!("{kind}: {e}")), "{kind}: it did not wait for all");
        });
        assert!(!ended, "{kind}: the capture has ended");
    }
    finish_stream(b, &other);
}

/// Outside a relaxed batch each of these is refused and ends the capture, and has no other effect.
pub fn calls_outside_a_relaxed_batch_end_it<T: Bench>(b: &T) {
    let d = b.device();
    let (other, event) = (stream(b), d.create_event().expect("an event"));
    d.record(&event, &other).expect("recorded");
    finish_stream(b, &other);
    let (addr, host) = (d.allocate_raw(MIB).expect("memory"), pin(b, 4096));
    let calls: [Named<'_, T>; 8] = [
        ("an event query", &|_| d.query(&event).map(drop)),
        ("a wait for an event", &|_| d.wait_event(&event, PATIENCE).map(drop)),
        ("an allocation", &|_| d.allocate_raw(MIB).map(drop)),
        ("a free", &|_| free(b, addr, MIB)),
        ("pinning", &|_| try_pin(b, 4096).map(drop)),
        ("unpinning", &|_| unpin(b, &host)),
        ("a wait for another stream", &|_| d.synchronize_stream(&other)),
        ("a wait for the device", &|_| d.synchronize_device()),
    ];
    for (what, call) in calls {
        assert!(ends(b, |s| refused_for_it(call(s))), "{what}");
    }
    b.write(&other, addr, MIB, A);
    b.check(&other, addr, MIB, A);
    finish_stream(b, &other);
    free(b, addr, MIB).expect("it was not freed before");
    unpin(b, &host).expect("it was not unpinned before");
}

/// Streams and events are made and destroyed outside a relaxed batch, in the thread's own mode, by the thread that captures and by another one:
/// nothing is refused, and the capture survives. So a finalizer may do this, without knowing whether anything captures. All results are printed.
pub fn streams_and_events_come_and_go_outside_a_relaxed_batch<T: Bench>(b: &T) {
    type Call<'a> = (&'static str, &'a (dyn Fn() -> DriverResult<()> + Sync));
    let d = b.device();
    let streams: Mutex<Vec<StreamOf<T>>> = Mutex::default();
    let make = |blocking| {
        let made = d.create_stream(StreamOptions::default().blocking(blocking))?;
        streams.lock().expect("the streams").push(made);
        Ok(())
    };
    let make_event = || d.create_event().map(drop);
    let record = || {
        let on = streams.lock().expect("the streams").pop().expect("one that was made");
        d.record(&d.create_event()?, &on)
    };
    let destroy = || {
        drop(streams.lock().expect("the streams").pop().expect("one that was made"));
        Ok(())
    };
    let calls: [Call<'_>; 6] = [
        ("a stream made", &|| make(false)),
        ("a stream destroyed", &destroy),
        ("a blocking stream made", &|| make(true)),
        ("an event made and destroyed", &make_event),
        ("an event made, recorded on a blocking stream and destroyed with it", &record),
        ("a stream made and destroyed", &|| make(false).and_then(|()| destroy())),
    ];
    let (mut found, mut is_harmless) = (Vec::new(), true);
    for by_another in [false, true] {
        for (what, call) in calls {
            let mut result = Ok(());
            let ended = ends(b, |_| {
                result = if by_another {
                    std::thread::scope(|s| s.spawn(call).join().expect("it ends"))
                } else {
                    call()
                };
            });
            // Errors of destructors.
            let refusals: Vec<_> =
                result.err().into_iter().chain(d.deferred()).map(|e| e.to_string()).collect();
            is_harmless &= refusals.is_empty() && !ended;
            found.push(format!(
                "{what} by {}: {}; the capture {}",
                if by_another { "another thread" } else { "the thread that captures" },
                if refusals.is_empty() { "not refused".to_owned() } else { refusals.join(", ") },
                if ended { "has ended" } else { "lives" },
            ));
        }
    }
    let found = found.join("\n");
    say(&found);
    assert!(is_harmless, "found:\n{found}");
}

/// A call that would wait for the captured work is refused in every mode of the thread, and ends the capture.
pub fn a_wait_for_the_device_ends_a_capture_in_a_relaxed_batch_too<T: Bench>(b: &T) {
    let d = b.device();
    let calls: [Named<'_, T>; 2] = [
        ("a wait for the device", &|_| d.relaxed(|| d.synchronize_device())),
        ("a wait for the captured stream", &|s| d.relaxed(|| d.synchronize_stream(s))),
    ];
    for (what, call) in calls {
        assert!(ends(b, |s| refused_for_it(call(s))), "{what}");
    }
    d.synchronize_device().expect("allowed again");
}

pub fn virtual_memory_calls_break_no_capture<T: Bench>(b: &T) {
    let d = b.device();
    let unit = raw_calls::granularity(b);
    let ended = ends(b, |_| {
        let (addr, handle) = (d.reserve(unit, None).expect("addresses"), d.create(unit).expect("a handle"));
        map(b, addr, &handle).expect("mapped");
        set_access(b, addr, unit).expect("usable");
        unmap(b, addr, unit).expect("unmapped");
        release(b, &handle);
        unreserve(b, addr, unit);
        d.memory_info().expect("an answer");
    });
    assert!(!ended);
}

pub fn a_wait_on_outside_work_ends_the_capture<T: Bench>(b: &T) {
    let other = stream(b);
    let event = mark(b, &other);
    assert!(ends(b, |s| refused_for_it(b.device().wait(s, &event))));
}

pub fn a_context_event_ends_the_capture<T: Bench>(b: &T) {
    assert!(ends(b, |_| assert_eq!(b.raw_context_event(), 900)));
    assert_eq!(b.raw_context_event(), 0, "allowed again");
}

/// The driver's own call refuses it; a backend that knows of the capture may refuse without ending it.
pub fn a_context_event_is_refused_during_a_capture<T: Bench>(b: &T) {
    let event = b.device().create_event().expect("an event");
    ends(b, |_| refused_for_it(b.device().record_context(&event)));
    b.device().record_context(&event).expect("allowed again");
    assert!(done(b, &event));
}

/// An allocator that grows, migrates, trims and waits beside a capture by other code does not break it.
pub fn a_capture_by_other_code_survives_the_allocator<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
    let ended = ends(b, |_| {
        let blocks: Vec<_> = (1..6).map(|i| gpu.alloc(i * 3 * MIB, &s).expect("memory")).collect();
        for block in &blocks {
            let word = own(b, block, &s);
            t.wait_stream(&s).expect("ordered");
            block.record_use(&t).expect("recorded");
            still(b, block, &t, word);
        }
        drop(blocks);
        let again = gpu.alloc(9 * MIB, &t).expect("memory");
        let host = gpu.alloc_pinned(64 * KIB).expect("pinned memory");
        drop((again, host));
        let late = gpu.stream().expect("a stream");
        drop(gpu.alloc(MIB, &late).expect("memory"));
        drop(late);
        gpu.trim(Trim::All).expect("trimmed");
        // It looks at queries and markers, and waits for nothing.
        let _ = gpu.report();
    });
    assert!(!ended, "the allocator has ended a capture by other code");
    gpu.synchronize().expect("waited");
    gpu.check();
}

/// How many calls of the driver freed memory of the device, freed pinned memory, and waited for the device.
fn frees_and_waits<T: Bench>(b: &T) -> [u64; 3] {
    let calls = b.device().calls();
    let of = |name| calls.iter().find(|(n, _)| *n == name).map_or(0, |&(_, n)| n);
    [
        of("cuMemFree") + of("cuMemRelease"),
        of("cuMemFreeHost") + of("cuMemHostUnregister"),
        of("cuCtxSynchronize"),
    ]
}

/// Memory is short and another stream uses it: the host waits for it, and it goes back to the driver, during the capture.
pub fn a_capture_by_other_code_survives_an_allocator_that_waits_and_trims<T: Bench>(b: &T) {
    let config = Config::default().growth(Growth::Exact).reuse(Reuse::Ordered).limit(Limit::Bytes(8 * MIB));
    let gpu = allocator(b, config.bounded_wait(Duration::from_millis(20)));
    let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
    let ended = ends(b, |_| {
        let [device, host, _] = frees_and_waits(b);
        let (_, gate) = freed_under_a_reader(b, &gpu, 6 * MIB, &s, &t);
        assert!(gpu.alloc(8 * MIB, &s).is_err_and(|e| e.out_of_memory().is_some()), "the reader is not done");
        assert!(gpu.report().total.counters.host_waits > 0, "the host waited for the reader");
        b.open(gate);
        t.record().expect("a marker").synchronize(PATIENCE).expect("the reader ends");
        // The request waits for what is queued, but only a trim gives back the 6 MiB that leave no room for it.
        let next = gpu.alloc(8 * MIB, &s).or_else(|_| {
            gpu.trim(Trim::All)?;
            gpu.alloc(8 * MIB, &s)
        });
        let next = next.expect("room after the trim");
        own(b, &next, &s);
        drop(gpu.alloc_pinned(64 * KIB).expect("pinned memory"));
        gpu.trim(Trim::All).expect("trimmed");
        let [now, host_now, _] = frees_and_waits(b);
        assert!(now > device && host_now > host, "both kinds of memory went back");
    });
    assert!(!ended, "the allocator has ended a capture by other code");
    gpu.synchronize().expect("waited");
    gpu.check();
}

/// The last handle is dropped during the capture, with work on memory of both kinds that was not waited for.
pub fn a_capture_by_other_code_survives_the_end_of_an_allocator<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
    let ended = ends(b, |_| {
        let (block, host) = (gpu.alloc(MIB, &s).expect("memory"), gpu.alloc_pinned(MIB).expect("pinned"));
        let word = own(b, &block, &s);
        t.wait_stream(&s).expect("ordered");
        block.record_use(&t).expect("recorded");
        host.record_use(&t).expect("recorded");
        still(b, &block, &t, word);
        let [device, pinned, waits] = frees_and_waits(b);
        drop((block, host, s, t, gpu));
        let [now, pinned_now, waits_now] = frees_and_waits(b);
        assert!(now > device && pinned_now > pinned, "both kinds of memory went back");
        assert_eq!(waits_now, waits, "a wait for the device may end a capture");
    });
    assert!(!ended, "the allocator has ended a capture by other code");
}

/// The allocator waits for all that is queued, with work pending on a stream that no call here can mark.
pub fn a_capture_by_other_code_survives_a_wait_for_everything<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, theirs) = (gpu.stream().expect("s"), stream(b));
    let ended = ends(b, |_| {
        let block = gpu.alloc(MIB, &s).expect("memory");
        let word = own(b, &block, &s);
        let before = mark(b, s.native());
        b.device().wait(&theirs, &before).expect("ordered");
        b.check(&theirs, block.address(), MIB, word);
        let read = mark(b, &theirs);
        drop(block);
        gpu.synchronize_beside_captures().expect("waited");
        let both = b.device().relaxed(|| done(b, &before) && done(b, &read));
        assert!(both, "it returned before all was complete");
        assert_eq!(gpu.trim(Trim::All).expect("trimmed").held_back, 0);
        assert_eq!(gpu.report().reserved, 0, "all of it is known to be complete");
    });
    assert!(!ended, "the wait has ended a capture by other code");
}

/// An adopted stream may be dropped while it captures: it is marked and closed after the capture.
pub fn a_capture_survives_that_its_stream_is_let_go<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let native = stream(b);
    let s = gpu.adopt(native.clone()).expect("adopted");
    let block = gpu.alloc(MIB, &s).expect("memory");
    own(b, &block, &s);
    finish_stream(b, &native);
    b.begin_capture(&native);
    drop((block, s));
    let other = gpu.stream().expect("a stream");
    drop(gpu.alloc(MIB, &other).expect("a miss, which closes what can be closed"));
    b.end_capture(&native).expect("it survived");
    gpu.synchronize().expect("waited");
    gpu.trim(Trim::All).expect("trimmed");
    assert_eq!(gpu.report().reserved, 0, "the capture keeps nothing");
}

/// Destroying the stream on which a capture began ends the capture. A stream that joined it, and for which it waited, can be destroyed without that.
pub fn a_stream_destroyed_in_its_capture_ends_its_own<T: Bench>(b: &T) {
    let d = b.device();
    let (into, back) = (d.create_event().expect("an event"), d.create_event().expect("an event"));
    let join = |from: &StreamOf<T>, side: &StreamOf<T>| {
        d.record(&into, from).expect("recorded");
        d.wait(side, &into).expect("joined");
        assert!(d.is_capturing(side).expect("an answer"));
    };
    let ended = ends(b, |s| {
        let side = stream(b);
        join(s, &side);
        d.record(&back, &side).expect("recorded");
        d.wait(s, &back).expect("joined");
        drop(side);
        assert!(d.is_capturing(s).expect("an answer"));
    });
    assert!(!ended, "the destroyed stream was one that it had waited for");
    let ((s, addr), side) = (capturing(b), stream(b));
    join(&s, &side);
    drop(s);
    assert!(!d.is_capturing(&side).expect("an answer"));
    b.write(&side, addr, MIB, B);
    b.check(&side, addr, MIB, B);
    d.synchronize_device().expect("nothing captures");
    free(b, addr, MIB).expect("freed");
}

/// No other code could end the capture of a stream without references: it ends with the stream, at the allocator's next step, and nothing stays.
pub fn a_stream_dropped_in_its_capture_is_gone<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    for _ in 0..3 {
        let s = gpu.stream().expect("a stream");
        let block = gpu.alloc(MIB, &s).expect("memory");
        own(b, &block, &s);
        drop(block);
        b.begin_capture(s.native());
        drop(s);
        let other = gpu.stream().expect("a stream");
        drop(gpu.alloc(MIB, &other).expect("a miss, which closes what can be closed"));
        gpu.synchronize().expect("nothing captures");
    }
    assert_eq!(gpu.report().total.held_back, 0);
    gpu.trim(Trim::All).expect("trimmed");
    assert_eq!(gpu.report().reserved, 0, "the captures keep nothing");
}

/// An allocation on a capturing stream is refused, and the capture survives the refusal.
pub fn a_capturing_stream_is_refused<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let native = stream(b);
    let s = gpu.adopt(native.clone()).expect("adopted");
    let block = gpu.alloc(MIB, &s).expect("memory");
    b.write(&native, block.address(), MIB, A);
    finish_stream(b, &native);
    b.begin_capture(&native);
    b.write(&native, block.address(), MIB, B);
    assert!(matches!(gpu.alloc(MIB, &s), Err(Error::Capturing { .. })));
    assert!(matches!(block.record_use(&s), Err(Error::Capturing { .. })));
    assert!(matches!(gpu.adopt(native.clone()), Err(Error::Capturing { .. })));
    b.end_capture(&native).expect("it survived");
    drop(gpu.alloc(MIB, &s).expect("allowed again"));
}
