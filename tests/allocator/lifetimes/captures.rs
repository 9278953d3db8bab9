//! A capture by other code survives, whatever is done on other streams; and what cannot be marked without harm to it is held
//! back, shown, and had again.

use crate::rig::{all_clean, check, late, on, write};
use millpond::driver::Fences;
use millpond::units::MIB;
use millpond::{Allocator, Config, DriverErrorKind, Growth, Limit, Reuse, Stream, Trim};
use millpond_sim::{Call, Sim, SimStream};

/// Streams that are not declared, as a C program's are: an allocator may name them in calls that name them.
fn undeclared(sim: &Sim, gpu: &Allocator<Sim>) -> (SimStream, Stream<Sim>) {
    let native = sim.stream().unwrap();
    let stream = gpu.adopt(sim.unmanaged_stream(&native)).unwrap();
    (native, stream)
}

fn small() -> Config {
    Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(64 * MIB)).growth(Growth::Exact)
}

fn held_back(gpu: &Allocator<Sim>) -> u64 {
    gpu.report().total.held_back
}

/// What a program does on streams s and u while other code captures on a third, each alone.
type Work = fn(&Allocator<Sim>, [&Stream<Sim>; 2]);
const WORK: [(&str, Work); 9] = [
    ("a free by unknown streams", |gpu, [s, _]| gpu.alloc(4096, s).unwrap().free_unknown()),
    ("a wait for a stream", |_, [s, _]| s.synchronize().unwrap()),
    ("a pinned one", |gpu, _| gpu.alloc_pinned(4096).unwrap().free_unknown()),
    ("a use elsewhere", |gpu, [s, u]| {
        let x = gpu.alloc(4096, s).unwrap();
        x.record_use(u).unwrap();
    }),
    ("a free elsewhere", |gpu, [s, u]| gpu.alloc(4096, s).unwrap().free_on(u).map_err(|e| e.1).unwrap()),
    ("a trim", |gpu, _| {
        gpu.trim(Trim::All).unwrap();
    }),
    ("an allocation at the limit", |gpu, [s, u]| {
        drop(gpu.alloc(40 * MIB, u).unwrap());
        assert!(gpu.alloc(50 * MIB, s).unwrap_err().out_of_memory().is_some());
    }),
    ("a hundred rounds", |gpu, [s, u]| {
        for _ in 0..100 {
            let x = gpu.alloc(4096, s).unwrap();
            x.record_use(u).unwrap();
        }
    }),
    ("the end of a stream", |gpu, [s, u]| {
        gpu.alloc(4096, s).unwrap().record_use(u).unwrap();
        drop(gpu.stream_of(u.id()));
        gpu.stream().unwrap();
    }),
];

/// The captured stream is one that the allocator does not know, one that is not declared, and one that was adopted.
#[test]
fn a_capture_lives_beside_all_that_other_streams_do() {
    for (name, work) in WORK {
        for captured in 0..3 {
            let sim = late();
            let gpu = on(&sim, small());
            let ([sn, un, tn], mut adopted_too) = ([(); 3].map(|()| sim.stream().unwrap()), Vec::new());
            let [s, u] = [&sn, &un].map(|n| gpu.adopt(sim.unmanaged_stream(n)).unwrap());
            match captured {
                0 => {}
                1 => adopted_too.push(gpu.adopt(sim.unmanaged_stream(&tn)).unwrap()),
                _ => adopted_too.push(gpu.adopt(tn.clone()).unwrap()),
            }
            for t in &adopted_too {
                write(&sim, &gpu.alloc(MIB, t).unwrap(), t);
            }
            write(&sim, &gpu.alloc(MIB, &u).unwrap(), &u);
            sim.begin_capture(&tn).unwrap();
            work(&gpu, [&s, &u]);
            let end = sim.end_capture(&tn);
            assert!(end.is_ok(), "{name}, captured {captured}: {end:?}");
            assert_eq!(sim.ledger().calls_of(Call::CtxRecordEvent), 0, "{name}");
            gpu.synchronize().unwrap();
            assert_eq!(held_back(&gpu), 0, "{name}: the device is quiet");
            drop((s, u, adopted_too, sn, un, tn));
            all_clean(&sim, gpu);
        }
    }
}

/// The memory of a stream that is not declared: its own again at once, another's when the stream was named after the free.
#[test]
fn a_call_that_names_a_stream_marks_it() {
    let sim = late();
    let gpu = on(&sim, small());
    let ((sn, s), (un, u)) = (undeclared(&sim, &gpu), undeclared(&sim, &gpu));
    let x = gpu.alloc(64 * MIB, &u).unwrap();
    write(&sim, &x, &u);
    drop(x);
    assert_eq!(held_back(&gpu), 64 * MIB);
    assert!(gpu.report().to_string().contains("held back   64.0 MiB"), "{}", gpu.report());
    let trimmed = gpu.trim(Trim::All).unwrap();
    assert_eq!((trimmed.bytes, trimmed.held_back), (0, 64 * MIB));
    let refused = gpu.alloc(64 * MIB, &s).unwrap_err();
    assert!(refused.to_string().contains("held back"), "{refused}");
    // Its own stream needs no marker.
    let y = gpu.alloc(64 * MIB, &u).expect("stream order is enough");
    write(&sim, &y, &u);
    drop(y);
    assert!(gpu.alloc(64 * MIB, &s).is_err(), "it was not marked since");
    assert_eq!(held_back(&gpu), 64 * MIB);
    // Any call that names it will do: the refusal made a marker fall due.
    drop(gpu.alloc(0, &u).unwrap());
    assert_eq!(held_back(&gpu), 0);
    let z = gpu.alloc(64 * MIB, &s).expect("behind the marker");
    write(&sim, &z, &s);
    check(&sim, &z, &s);
    assert_eq!(gpu.report().total.counters.waits_inserted, 1);
    drop((z, s, u, sn, un));
    all_clean(&sim, gpu);
}

/// A free that names its stream leaves nothing to be held back, and the stream may end at once.
#[test]
fn a_free_that_names_its_stream_marks_it_there() {
    let sim = late();
    let gpu = on(&sim, small());
    let (sn, s) = undeclared(&sim, &gpu);
    for elsewhere in [false, true] {
        let (home, h) = undeclared(&sim, &gpu);
        let (other, o) = undeclared(&sim, &gpu);
        let x = gpu.alloc(64 * MIB, &h).unwrap();
        write(&sim, &x, &h);
        if elsewhere {
            o.wait_stream(&h).unwrap();
            check(&sim, &x, &o);
            x.free_on(&o).map_err(|e| e.1).unwrap();
            h.mark_frees();
        } else {
            x.free_on(&h).map_err(|e| e.1).unwrap();
        }
        assert_eq!(held_back(&gpu), 0, "elsewhere: {elsewhere}");
        sim.destroy_stream(&home).unwrap();
        sim.destroy_stream(&other).unwrap();
        drop((h, o));
        let y = gpu.alloc(64 * MIB, &s).expect("behind a stream that is gone");
        write(&sim, &y, &s);
        y.free_on(&s).map_err(|e| e.1).unwrap();
    }
    drop((s, sn));
    all_clean(&sim, gpu);
}

/// A stream ends with freed memory that no marker covers: held back until the device is idle, and not reused before.
#[test]
fn what_an_unmarked_stream_held_is_held_back_until_the_device_is_idle() {
    let sim = late();
    let gpu = on(&sim, small());
    let s = gpu.stream().unwrap();
    for _ in 0..3 {
        let (native, h) = undeclared(&sim, &gpu);
        let x = gpu.alloc(64 * MIB, &h).unwrap();
        write(&sim, &x, &h);
        drop(x);
        sim.destroy_stream(&native).unwrap();
        drop(h);
        gpu.trim(Trim::All).unwrap();
        assert!(gpu.alloc(64 * MIB, &s).unwrap_err().out_of_memory().is_some());
        assert_eq!(held_back(&gpu), 64 * MIB);
        gpu.synchronize().unwrap();
        assert_eq!(held_back(&gpu), 0);
        let y = gpu.alloc(64 * MIB, &s).expect("the device is quiet");
        write(&sim, &y, &s);
        drop(y);
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        let kept = gpu.bookkeeping();
        assert!(kept.timelines <= 2, "{kept:?}");
    }
    drop(s);
    all_clean(&sim, gpu);
}

/// Other code drops a stream in its capture: nothing could end that capture, and nothing of the stream stays. What was freed on it comes back when
/// the device is idle, and a wait for that is not refused.
#[test]
fn a_stream_that_is_dropped_in_its_capture_is_gone() {
    for adopted in [false, true] {
        let sim = late();
        let gpu = on(&sim, small());
        let s = gpu.stream().unwrap();
        for round in 1..=126 {
            let native = adopted.then(|| sim.stream().unwrap());
            let t = native.as_ref().map_or_else(|| gpu.stream(), |native| gpu.adopt(native.clone())).unwrap();
            let x = gpu.alloc(MIB, &t).unwrap();
            write(&sim, &x, &t);
            drop(x);
            let handle = t.native().handle();
            sim.begin_capture(&sim.stream_from_handle(handle)).unwrap();
            drop((native, t));
            // Freed on a stream that cannot be marked any more: not had before the device is quiet.
            drop(gpu.alloc(MIB, &s).unwrap());
            if round % 63 == 0 {
                assert!(gpu.alloc(2 * MIB, &s).unwrap_err().out_of_memory().is_some());
                assert_eq!(held_back(&gpu), 63 * MIB);
                gpu.synchronize().expect("no capture is open");
            }
        }
        assert_eq!((held_back(&gpu), sim.ledger().streams), (0, 1));
        gpu.trim(Trim::All).unwrap();
        let kept = gpu.bookkeeping();
        assert!(kept.timelines <= 2, "{kept:?}");
        drop(gpu.alloc(64 * MIB, &s).expect("all of it is free"));
        drop(s);
        all_clean(&sim, gpu);
    }
}

/// A capture on a stream of ours that was shared with other code since, of which an allocation's handle was made before: what is not in the cache is
/// refused, and so is a wait of the host. Both would end the capture.
#[test]
fn a_capture_on_a_borrowed_stream_of_ours_lives() {
    let sim = late();
    let gpu = on(&sim, small());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &t).unwrap();
    write(&sim, &x, &t);
    drop(x);
    sim.begin_capture(s.native()).unwrap();
    let refused = gpu.alloc(64 * MIB, &s).unwrap_err();
    assert!(matches!(refused, millpond::Error::Capturing { stream: Some(id) } if id == s.id()), "{refused}");
    let refused = s.synchronize().unwrap_err();
    assert!(matches!(refused, millpond::Error::Capturing { stream: Some(id) } if id == s.id()), "{refused}");
    sim.end_capture(s.native()).expect("it lives");
    drop(gpu.alloc(64 * MIB, &s).expect("behind the capture"));
    drop((s, t));
    all_clean(&sim, gpu);
}

/// The question whether a stream captures fails: nothing is waited for, and the capture lives.
#[test]
fn a_question_that_fails_ends_no_capture() {
    let sim = late();
    let gpu = on(&sim, small());
    let native = sim.stream().unwrap();
    let t = gpu.adopt(native.clone()).unwrap();
    sim.begin_capture(&native).unwrap();
    sim.fail(Call::StreamIsCapturing, 1, DriverErrorKind::Other);
    let refused = gpu.synchronize().unwrap_err();
    assert!(
        matches!(refused, millpond::Error::Driver(ref e) if e.kind == DriverErrorKind::Other),
        "{refused}"
    );
    sim.end_capture(&native).expect("it lives");
    gpu.synchronize().unwrap();
    drop((t, native));
    all_clean(&sim, gpu);
}

/// The driver fails in the closing marker of a stream while a trim or the end of an allocator serves it: nothing waits for the stream or the device,
/// which a capture by other code would not survive.
#[test]
fn a_failed_closing_marker_makes_no_request_wait_for_a_stream() {
    for by_limit in [false, true] {
        let sim = late();
        let gpu = on(&sim, small());
        // The last of a stream is an allocation, whose drop makes no driver call: the next call that may closes it.
        let t = gpu.stream().unwrap();
        let x = gpu.alloc(MIB, &t).unwrap();
        write(&sim, &x, &t);
        drop(t);
        drop(x);
        sim.fail(Call::EventCreate, 1, DriverErrorKind::Other);
        if by_limit {
            gpu.set_limit(Limit::Bytes(0)).unwrap();
        } else {
            gpu.trim(Trim::All).unwrap();
        }
        let waits = [Call::StreamSynchronize, Call::CtxSynchronize].map(|call| sim.ledger().calls_of(call));
        assert_eq!(waits, [0, 0], "by a limit: {by_limit}");
        sim.clear_faults();
        gpu.synchronize().unwrap();
        all_clean(&sim, gpu);
    }
}

/// Streams that cannot be marked, since they capture, cost a call of ours one try, however many they are; and each is served when it can be.
#[test]
fn streams_that_capture_cost_others_no_more_the_more_they_are() {
    let costs = [8, 64].map(|n| {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let s = gpu.stream().unwrap();
        let mut used = Vec::new();
        let (natives, streams): (Vec<_>, Vec<_>) = (0..n)
            .map(|_| {
                let native = sim.stream().unwrap();
                let t = gpu.adopt(native.clone()).unwrap();
                for _ in 0..16 {
                    let block = gpu.alloc(512, &s).unwrap();
                    block.record_use(&t).unwrap();
                    used.push(block);
                }
                (native, t)
            })
            .unzip();
        for native in &natives {
            sim.begin_capture(native).unwrap();
        }
        // As many frees as make a marker due, of each. Made due before the captures began, all but the last were served by the next call.
        drop(used);
        let mut x = gpu.uninit::<u8>(512, &s).unwrap();
        let asked = || sim.ledger().calls_total();
        // All are tried once.
        x.fill_bytes(1, &s).unwrap();
        let before = asked();
        for _ in 0..100 {
            x.fill_bytes(1, &s).unwrap();
        }
        let cost = asked() - before;
        for native in &natives {
            sim.end_capture(native).unwrap();
        }
        for _ in 0..n {
            x.fill_bytes(1, &s).unwrap();
        }
        drop((x, s, streams, natives));
        all_clean(&sim, gpu);
        cost
    });
    assert!(
        costs[1] <= costs[0] + 100,
        "driver calls in a hundred fills beside 8 and 64 captures: {costs:?}"
    );
}

/// A stream that joined another's capture and is dropped in it leaves it: the capture lives.
#[test]
fn a_joined_stream_that_is_dropped_ends_no_capture() {
    let sim = late();
    let gpu = on(&sim, small());
    let (origin, side, event) = (sim.stream().unwrap(), gpu.stream().unwrap(), sim.event().unwrap());
    sim.begin_capture(&origin).unwrap();
    sim.record(&event, &origin).unwrap();
    sim.wait(side.native(), &event).unwrap();
    drop(side);
    gpu.trim(Trim::All).unwrap();
    assert_eq!(sim.ledger().streams, 1);
    assert_eq!(sim.end_capture(&origin).expect("it lives").streams, 2);
    drop((origin, event));
    all_clean(&sim, gpu);
}

/// A capture begins between the check and the record: the event is no marker, and the capture survives.
#[test]
fn a_capture_that_begins_behind_the_question_is_seen() {
    let sim = late();
    let gpu = on(&sim, small());
    let (native, s) = (sim.stream().unwrap(), gpu.stream().unwrap());
    let t = gpu.adopt(native.clone()).unwrap();
    let x = gpu.alloc(64 * MIB, &t).unwrap();
    write(&sim, &x, &t);
    drop(x);
    // The miss on s wants t's memory: it asks t, and t captures right behind the answer.
    sim.capture_behind(Call::StreamIsCapturing, 1, &native).unwrap();
    let refused = gpu.alloc(64 * MIB, &s).unwrap_err();
    assert!(!matches!(refused, millpond::Error::TimedOut { .. }), "{refused}");
    let graph = sim.end_capture(&native).expect("it lives");
    assert!(graph.operations <= 1, "nothing but a record");
    let y = gpu.alloc(64 * MIB, &s).expect("behind the capture");
    write(&sim, &y, &s);
    assert_eq!(sim.ledger().host_waits, 0, "a wait on the device was inserted");
    drop((y, s, t, native));
    all_clean(&sim, gpu);
}

/// What is marked is marked once: a loop on streams that are not declared holds nothing back and remembers nothing.
#[test]
fn a_loop_on_undeclared_streams_stays_small() {
    let sim = Sim::new(4 << 30);
    let gpu = on(&sim, Config::default());
    let ((sn, s), (un, u)) = (undeclared(&sim, &gpu), undeclared(&sim, &gpu));
    let mut most = (0, 0);
    for round in 0..2000 {
        let x = gpu.alloc(64 << 10, &s).unwrap();
        write(&sim, &x, &s);
        x.record_use(&u).unwrap();
        drop(x);
        if round > 200 {
            let kept = gpu.bookkeeping();
            most = (most.0.max(kept.markers), most.1.max(kept.in_flight));
        }
    }
    assert!(most.0 <= 256 && most.1 <= 128, "markers, ranges in flight: {most:?}");
    assert!(gpu.report().reserved <= 16 * MIB, "{}", gpu.report());
    assert!(sim.verdict().is_ok());
    gpu.synchronize().unwrap();
    drop((s, u, sn, un));
    all_clean(&sim, gpu);
}

/// The context is marked where no other code captures, and nowhere else.
#[test]
fn expected_captures_keep_context_wide_events_away() {
    for expected in [false, true] {
        let sim = late();
        if expected {
            sim.expect_captures();
        }
        assert_eq!(sim.expects_captures(), expected);
        let gpu = on(&sim, small());
        let s = gpu.stream().unwrap();
        gpu.alloc(64 * MIB, &s).unwrap().free_unknown();
        assert_eq!(sim.ledger().calls_of(Call::CtxRecordEvent), u64::from(!expected));
        assert_eq!(held_back(&gpu), if expected { 64 * MIB } else { 0 });
        assert_eq!(gpu.alloc(64 * MIB, &s).is_ok(), !expected);
        // A wait for the device is refused beside a capture that can be seen,
        let (native, ours) = (sim.stream().unwrap(), gpu.stream().unwrap());
        let adopted = gpu.adopt(native.clone()).unwrap();
        sim.begin_capture(&native).unwrap();
        let refused = gpu.synchronize().unwrap_err();
        assert!(matches!(refused, millpond::Error::Capturing { stream: Some(id) } if id == adopted.id()));
        sim.end_capture(&native).expect("it lives");
        drop((adopted, ours, native));
        // and says that it ended any other.
        let captured = sim.stream().unwrap();
        sim.begin_capture(&captured).unwrap();
        let refused = gpu.synchronize().unwrap_err();
        assert!(matches!(refused, millpond::Error::Driver(ref e) if e.kind == DriverErrorKind::Capturing));
        drop(sim.end_capture(&captured));
        gpu.synchronize().unwrap();
        assert!(gpu.alloc(64 * MIB, &s).is_ok());
        drop((s, captured));
        all_clean(&sim, gpu);
    }
}

/// Adopting the stream again by a lasting reference promises that it is alive: any call can mark it from then on.
#[test]
fn a_stream_that_is_to_last_after_all_holds_nothing_back() {
    let sim = late();
    sim.expect_captures();
    let gpu = on(&sim, small());
    let (native, s) = undeclared(&sim, &gpu);
    let x = gpu.alloc(64 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    drop(x);
    assert_eq!(held_back(&gpu), 64 * MIB);
    let lasting = gpu.adopt(native.clone()).unwrap();
    assert_eq!(held_back(&gpu), 0);
    let t = gpu.stream().unwrap();
    let y = gpu.alloc(64 * MIB, &t).expect("a wait for s");
    write(&sim, &y, &t);
    drop((y, t, s, lasting, native));
    all_clean(&sim, gpu);
}

/// A deterministic allocator waits on the device for the older half of what others used, whatever one of them is at that cannot be waited
/// for: memory does not grow with what was ever freed.
#[test]
fn one_stream_that_cannot_be_marked_does_not_let_a_deterministic_allocator_grow() {
    for gone in [false, true] {
        let sim = late();
        let gpu = on(&sim, Config::default().deterministic(true));
        // The first that is queried.
        let native = sim.stream().unwrap();
        let c = gpu.adopt(native.clone()).unwrap();
        let (t, s) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(64 << 10, &s).unwrap();
        x.record_use(&c).unwrap();
        drop(x);
        if gone {
            sim.destroy_stream(&native).unwrap();
        } else {
            sim.begin_capture(&native).unwrap();
        }
        let mut reserved = 0;
        for round in 0..3000 {
            let x = gpu.alloc(64 << 10, &s).unwrap();
            write(&sim, &x, &s);
            t.wait_stream(&s).unwrap();
            x.record_use(&t).unwrap();
            check(&sim, &x, &t);
            drop(x);
            if round == 300 {
                reserved = gpu.report().reserved;
            }
        }
        assert_eq!(gpu.report().reserved, reserved, "gone: {gone}");
        if !gone {
            sim.end_capture(&native).expect("it lives");
        }
        drop((c, s, t, native));
        all_clean(&sim, gpu);
    }
}

/// An allocator whose memory is known to be complete waits for nothing at its end: not for the device either, which would end the capture
/// of a stream that it adopted.
#[test]
fn an_end_with_nothing_pending_leaves_the_capture_of_an_adopted_stream_alone() {
    for declared in [true, false] {
        let sim = late();
        let gpu = on(&sim, small());
        let native = sim.stream().unwrap();
        let s = gpu.adopt(if declared { native.clone() } else { sim.unmanaged_stream(&native) }).unwrap();
        let x = gpu.alloc(MIB, &s).unwrap();
        write(&sim, &x, &s);
        drop(x);
        gpu.synchronize().unwrap();
        sim.begin_capture(&native).unwrap();
        drop((s, gpu));
        let end = sim.end_capture(&native);
        assert!(end.is_ok(), "declared: {declared}: {end:?}");
        drop(native);
        crate::rig::all_back(&sim);
    }
}
