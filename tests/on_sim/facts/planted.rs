//! What a test plants: calls that panic, captures around calls, and what others do while a call is on its way.

use super::*;
use millpond::driver::HostKind;
use millpond_sim::{Call, Schedule};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// A verb that waits, as a person calls it.
type Waits = fn(&Sim, &SimStream, &SimEvent);

/// Copies a range's bytes to pageable memory, and says whether they came.
fn copies_out(sim: &Sim, stream: &SimStream) -> bool {
    let (range, mut bytes) = (sim.allocate(512).expect("memory"), [0u8; 8]);
    sim.launch(stream, Launch::write_pattern(range.addr(), 512, A)).expect("queued");
    d2h(sim, bytes.as_mut_ptr(), range.addr(), 8, stream).expect("copied");
    bytes == A.to_le_bytes()
}

const WAITING: [(Call, Waits); 7] = [
    (Call::StreamSynchronize, |sim, s, _| sim.synchronize_stream(s).expect("over")),
    (Call::CtxSynchronize, |sim, _, _| sim.synchronize_device().expect("over")),
    (Call::EventSynchronize, |sim, _, e| assert!(sim.wait_event(e, Duration::MAX).expect("over"))),
    (Call::MemcpyDtoH, |sim, s, _| assert!(copies_out(sim, s))),
    (Call::MemFree, |sim, _, _| sim.allocate(512).expect("memory").release().expect("freed")),
    (Call::MemFreeHost, |sim, _, _| {
        let ptr = sim.pin_raw(512, HostKind::Cached).expect("pinned");
        unpin(sim, ptr, 512).expect("unpinned");
    }),
    (Call::MemcpyHtoD, |sim, s, _| {
        let (range, pinned) =
            (sim.allocate(512).expect("memory"), sim.pin(512, HostKind::Cached).expect("pinned"));
        copy_anywhere(sim, s, range.addr(), pinned.addr(), 512).expect("queued");
        sim.synchronize_stream(s).expect("over");
    }),
];

/// Before a call that waits too nothing of the device is held: other threads may make calls.
#[test]
fn others_go_on_before_every_call_that_waits() {
    for (call, verb) in WAITING {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let sim = sim();
            let (s, ran) = (sim.stream().expect("s"), Arc::new(Mutex::new(0)));
            let event = mark(&sim, &s);
            let (inner, counts) = (sim.clone(), Arc::clone(&ran));
            sim.meanwhile(call, 1, move || {
                std::thread::spawn(move || drop(inner.stream().expect("another thread's call")))
                    .join()
                    .expect("no panic");
                *counts.lock().expect("counted") += 1;
            });
            verb(&sim, &s, &event);
            sender.send(*ran.lock().expect("counted")).expect("heard");
        });
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(1), "{call:?}");
    }
}

/// What a call that panics did is done: it has waited, and the bytes are there.
#[test]
fn a_call_that_waits_has_waited_before_it_panics() {
    let sim = sim().schedule(Schedule::Latest);
    let (s, range) = (sim.stream().expect("s"), sim.allocate(512).expect("memory"));
    for (call, verb) in &WAITING[..3] {
        sim.launch(&s, touch_nothing()).expect("queued");
        let event = mark(&sim, &s);
        sim.panic_behind(*call, 1);
        catch_unwind(AssertUnwindSafe(|| verb(&sim, &s, &event))).unwrap_err();
        assert!(sim.idle(), "{call:?} has waited");
    }
    sim.launch(&s, Launch::write_pattern(range.addr(), 512, A)).expect("queued");
    let mut bytes = [0u8; 8];
    sim.panic_behind(Call::MemcpyDtoH, 1);
    let copies = AssertUnwindSafe(|| d2h(&sim, bytes.as_mut_ptr(), range.addr(), 8, &s));
    catch_unwind(copies).map(drop).unwrap_err();
    assert_eq!(bytes, A.to_le_bytes());
}

/// Where a capture cannot begin because its stream is gone, nothing happens, work of it that is left or not.
#[test]
fn a_capture_on_a_stream_that_is_gone_never_begins() {
    for pending in [false, true] {
        for around in [false, true] {
            let sim = sim().schedule(Schedule::Latest);
            let (s, x, event) =
                (sim.stream().expect("s"), sim.stream().expect("x"), sim.event().expect("an event"));
            if pending {
                sim.launch(&x, touch_nothing()).expect("queued");
            }
            if around {
                sim.capture_around(Call::EventRecord, 1, &x).expect("planted");
            } else {
                sim.capture_behind(Call::EventRecord, 1, &x).expect("planted");
            }
            drop(x);
            sim.record(&event, &s).expect("recorded");
            assert!(sim.query(&event).is_ok() && sim.allocate(512).is_ok(), "nothing captures");
            sim.synchronize_device().expect("over");
            assert!(sim.query(&event).expect("asked"));
        }
    }
}

/// A capture is its stream's device's, whichever device makes the call.
#[test]
fn a_planted_capture_is_of_its_streams_device() {
    let [here, there] = &Sim::devices(2, GIB)[..] else { panic!("two devices") };
    let (x, s) = (here.stream().expect("x"), there.stream().expect("s"));
    here.capture_behind(Call::EventRecord, 1, &x).expect("planted");
    mark(there, &s);
    assert!(there.allocate(512).is_ok(), "nothing captures there");
    assert_eq!(here.allocate(512).map(drop).unwrap_err().code, 900);
    assert!(here.end_capture(&x).is_err(), "that call has destroyed it");
}

/// All that is planted for a call strikes at that call, and nothing of it at another.
#[test]
fn several_things_are_planted_for_one_call() {
    let sim = sim();
    let (s, ran) = (sim.stream().expect("s"), Arc::new(Mutex::new(Vec::new())));
    let event = mark(&sim, &s);
    for n in 0..3 {
        let ran = Arc::clone(&ran);
        sim.meanwhile(Call::EventRecord, 1 + n / 2, move || ran.lock().expect("ran").push(n));
    }
    sim.record(&event, &s).expect("recorded");
    assert_eq!(*ran.lock().expect("ran"), [0, 1]);
    assert!(sim.query(&event).expect("asked"));
    assert_eq!(*ran.lock().expect("ran"), [0, 1], "a query is no record");
    sim.record(&event, &s).expect("recorded");
    assert_eq!(*ran.lock().expect("ran"), [0, 1, 2]);

    let (x, y) = (sim.stream().expect("x"), sim.stream().expect("y"));
    for stream in [&x, &y] {
        sim.capture_behind(Call::EventRecord, 1, stream).expect("planted");
    }
    sim.record(&event, &s).expect("recorded");
    for stream in [&x, &y] {
        sim.end_capture(stream).expect("it began");
    }
    for stream in [&x, &y] {
        sim.capture_around(Call::EventRecord, 1, stream).expect("planted");
        sim.capture_around(Call::MemAlloc, 1, stream).expect("planted");
    }
    sim.record(&event, &s).expect("recorded");
    assert_eq!(sim.captures_destroyed(), 0);
    assert_eq!(sim.allocate(512).map(drop).unwrap_err().code, 900);
    assert_eq!(sim.captures_destroyed(), 2, "there was one on each, and they are over");
    assert!(sim.end_capture(&x).is_err() && sim.end_capture(&y).is_err());
}
