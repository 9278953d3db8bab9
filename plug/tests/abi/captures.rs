//! Captures by other code during calls of the C interface: whatever is done on other streams, declared or not, no capture is destroyed.

use super::{CAPTURING, Door, MIB, OK, OUT_OF_MEMORY, alone, bind, function, function_of_driver};
use super::{effort::is_full, program, stream, write};
use cudarc::driver::sys;
use pond::cuda::{Cuda, GpuStream};
use pond::driver::Fences;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

pub(super) fn begin(s: &GpuStream) {
    let begin = function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
    assert_eq!(begin(s.handle(), 2), 0);
}

/// Ends the capture: whether it was intact and gave a graph.
pub(super) fn end(s: &GpuStream) -> bool {
    let end =
        function_of_driver::<extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> c_int>("cuStreamEndCapture");
    let mut graph = null_mut();
    end(s.handle(), &raw mut graph) == 0 && !graph.is_null()
}

fn alloc_pinned(door: Door, bytes: usize) -> *mut c_void {
    let mut ptr = null_mut();
    let alloc = function::<extern "C" fn(u32, usize, *mut *mut c_void) -> c_int>("millpond_alloc_pinned");
    assert_eq!(alloc(door.0, bytes, &raw mut ptr), OK);
    ptr
}

/// A call on streams s and u, with a block of s's and a block of pinned memory.
type Call = fn(Door, [&GpuStream; 2], *mut c_void, *mut c_void);
const CALLS: [(&str, Call); 9] = [
    ("free_unknown", |door, _, x, _| assert_eq!(door.free_unknown(x), OK)),
    ("a use on another stream", |door, [_, u], x, _| {
        assert_eq!([door.record_use(x, u), door.free(x)], [OK; 2]);
    }),
    ("free_on", |door, [_, u], x, _| assert_eq!(door.free_on(x, u), OK)),
    ("trim", |door, _, _, _| assert_eq!(door.trim(), OK)),
    ("an allocation at the limit", |door, [s, _], _, _| {
        let code = door.try_alloc(50 * MIB, s).err();
        assert!(code.is_none_or(|code| code == OUT_OF_MEMORY), "{code:?}");
    }),
    ("another stream's bytes", |door, [s, _], _, _| {
        let _ = door.try_alloc(30 * MIB, s);
    }),
    ("free_pinned_unknown", |door, _, _, pinned| {
        let free = function::<extern "C" fn(u32, *mut c_void) -> c_int>("millpond_free_pinned_unknown");
        assert_eq!(free(door.0, pinned), OK);
    }),
    ("fifty rounds", |door, [s, u], _, _| {
        for _ in 0..50 {
            let z = door.alloc(4096, s);
            assert_eq!([door.record_use(z, u), door.free(z)], [OK; 2]);
        }
    }),
    ("streams that end", |door, [s, _], x, _| {
        for _ in 0..4 {
            let own = stream(&program());
            let z = door.alloc(4096, &own);
            assert_eq!(door.free(z), OK);
        }
        assert_eq!(door.free_on(x, s), OK);
    }),
];

#[test]
fn a_capture_by_other_code_survives_every_call() {
    alone("captures::a_capture_by_other_code_survives_every_call", |fake| {
        let cuda = program();
        bind(&cuda);
        for (at, (name, call)) in CALLS.iter().enumerate() {
            for (n, captured) in ["unknown", "not declared", "permanent"].into_iter().enumerate() {
                for others_are_permanent in [false, true] {
                    // Half of them in an ordinary run.
                    if !is_full() && (at + n + usize::from(others_are_permanent)) % 2 == 1 {
                        continue;
                    }
                    let door = Door::new("wait_ms=5,limit=64MiB,growth=exact");
                    let [s, t, u] = [(); 3].map(|()| stream(&cuda));
                    if others_are_permanent {
                        for stream in [&s, &u] {
                            door.declare_permanent(stream);
                        }
                    }
                    match captured {
                        "permanent" => door.declare_permanent(&t),
                        "not declared" => assert_eq!(door.free(door.alloc(100, &t)), OK),
                        _ => {}
                    }
                    let (x, pinned) = (door.alloc(4096, &s), alloc_pinned(door, 100));
                    let w = door.alloc(30 * MIB, &u);
                    write(&cuda, &u, w, 4096, 1);
                    assert_eq!(door.free(w), OK);
                    begin(&t);
                    call(door, [&s, &u], x, pinned);
                    let of = format!("{name}; captured {captured}, others permanent {others_are_permanent}");
                    assert!(end(&t), "{of}: the capture was destroyed");
                    assert_eq!(fake.verdict(), None, "{of}");
                    assert_eq!(door.one("millpond_synchronize"), OK);
                    assert_eq!(door.held_back(), 0, "{of}: the device is quiet");
                    door.destroy();
                }
            }
        }
    });
}

type After = extern "C" fn(u32, *mut c_void, *const sys::CUstream, usize) -> c_int;

/// A stream starts to capture right after the check whether it captures, while the free checks the other streams.
#[test]
fn a_capture_that_begins_while_a_free_queries_other_streams_survives() {
    alone("captures::a_capture_that_begins_while_a_free_queries_other_streams_survives", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, t, door) = (stream(&cuda), stream(&cuda), Door::new("limit=64MiB"));
        let x = door.alloc(4096, &s);
        let (free_after, names) = (function::<After>("millpond_free_after"), [t.handle(), s.handle()]);
        let behind = function_of_driver::<extern "C" fn(u64, u64)>("millpond_fake_capture_behind");
        behind(1, t.handle().addr() as u64);
        assert_eq!(free_after(door.0, x, names.as_ptr(), names.len()), CAPTURING);
        assert!(end(&t), "the capture was destroyed");
        assert_eq!(free_after(door.0, x, names.as_ptr(), names.len()), OK);
        door.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// Captures on a stream for as long as each of the next records of this kind.
fn around(records: &CStr, s: &GpuStream) {
    let around = function_of_driver::<extern "C" fn(*const c_char, u64, u64)>("millpond_fake_capture_around");
    (1..=8).for_each(|nth| around(records.as_ptr(), nth, s.handle().addr() as u64));
}

/// How many such captures the record destroyed.
fn destroyed() -> u64 {
    function_of_driver::<extern "C" fn() -> u64>("millpond_fake_captures_destroyed")()
}

/// The stand-in destroys a capture during the record of a context-wide event, as the driver does, and counts it; the record of another stream's
/// event does not. So the tests that count these can fail.
#[test]
fn a_context_wide_event_destroys_a_capture_around_it() {
    alone("captures::a_context_wide_event_destroys_a_capture_around_it", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, t, event) = (stream(&cuda), stream(&cuda), cuda.create_event().expect("an event"));
        around(c"cuEventRecord", &t);
        cuda.record(&event, &s).expect("marked");
        assert_eq!(destroyed(), 0, "a record on another stream");
        around(c"cuCtxRecordEvent", &t);
        cuda.record_context(&event).expect_err("a stream captures");
        assert_eq!(destroyed(), 1);
        fake.clear_faults();
        cuda.record_context(&event).expect("nothing captures");
        assert_eq!((destroyed(), fake.verdict()), (1, None));
    });
}

/// A capture that lasts only as long as one record of an event, of either kind, so that no check before or after it sees it: no call destroys it.
#[test]
fn a_capture_by_other_code_around_a_record_survives_every_call() {
    alone("captures::a_capture_by_other_code_around_a_record_survives_every_call", |fake| {
        let cuda = program();
        bind(&cuda);
        for (name, call) in CALLS {
            for records in [c"cuEventRecord", c"cuCtxRecordEvent"] {
                let door = Door::new("wait_ms=5,limit=64MiB,growth=exact");
                let [s, t, u] = [(); 3].map(|()| stream(&cuda));
                door.declare_permanent(&u);
                assert_eq!(door.free(door.alloc(100, &t)), OK);
                let (x, pinned) = (door.alloc(4096, &s), alloc_pinned(door, 100));
                let w = door.alloc(30 * MIB, &u);
                write(&cuda, &u, w, 4096, 1);
                assert_eq!(door.free(w), OK);
                around(records, &t);
                call(door, [&s, &u], x, pinned);
                fake.clear_faults();
                assert_eq!((destroyed(), fake.verdict()), (0, None), "{name}, {records:?}");
                assert_eq!(door.one("millpond_synchronize"), OK);
                door.destroy();
            }
        }
    });
}

/// As an array library does: blocks of other streams are freed while the program captures on a stream that the allocator knows.
#[test]
fn arrays_that_die_beside_a_capture_leave_it_alone() {
    alone("captures::arrays_that_die_beside_a_capture_leave_it_alone", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, t, door) = (stream(&cuda), stream(&cuda), Door::new(""));
        let (x, y) = (door.alloc(4096, &s), door.alloc(4096, &t));
        begin(&s);
        write(&cuda, &s, x, 4096, 1);
        assert_eq!(door.free_unknown(y), OK);
        assert_eq!(door.held_back(), 4096, "until a synchronise");
        assert!(end(&s));
        begin(&s);
        assert_eq!(door.free_on(x, &s), CAPTURING);
        let legacy = cuda.legacy_stream().expect("always there");
        for _ in 0..40 {
            let z = door.alloc(4096, &t);
            assert_eq!([door.record_use(z, &legacy), door.free(z)], [OK; 2]);
        }
        assert!(end(&s));
        assert_eq!([door.free_on(x, &s), door.one("millpond_synchronize")], [OK; 2]);
        assert_eq!((door.held_back(), fake.verdict()), (0, None));
        door.destroy();
    });
}

/// The only call that waits for the device first checks the streams that it may query.
#[test]
fn a_synchronise_is_refused_beside_a_capture_that_can_be_seen() {
    alone("captures::a_synchronise_is_refused_beside_a_capture_that_can_be_seen", |_fake| {
        let cuda = program();
        bind(&cuda);
        let (s, door) = (stream(&cuda), Door::new(""));
        door.declare_permanent(&s);
        begin(&s);
        assert_eq!(door.one("millpond_synchronize"), CAPTURING);
        assert!(end(&s), "the capture lives");
        assert_eq!(door.one("millpond_synchronize"), OK);
        door.destroy();
    });
}

/// Memory that an ended allocator of another device has left is no reason to wait for that device: a capture there survives a synchronise
/// and a destroy. What is complete there goes back nevertheless.
#[test]
fn a_capture_on_another_device_lives_beside_a_synchronise() {
    alone("captures::a_capture_on_another_device_lives_beside_a_synchronise", |fake| {
        let cudas = [0, 1].map(|d| Cuda::new(d).expect("two devices"));
        let [there, here] = [1, 0].map(|d| Door::on(d, "").expect("an allocator"));
        let [t, u] = [(); 2].map(|()| stream(&cudas[1]));
        let (x, y) = (there.alloc(MIB, &t), there.alloc(MIB, &t));
        there.destroy();
        write(&cudas[1], &t, x, MIB, 1);
        bind(&cudas[1]);
        assert_eq!(there.free_unknown(x), OK);
        assert!(there.stat("reserved") > 0, "it has memory left");
        begin(&u);
        assert_eq!(here.one("millpond_synchronize"), OK);
        assert!(end(&u), "the capture was destroyed by a synchronise");
        assert_eq!(there.free(y), OK);
        begin(&u);
        here.destroy();
        assert!(end(&u), "the capture was destroyed by a destroy");
        assert!(there.stat("reserved") > 0, "the memory is still left");
        let third = Door::on(1, "").expect("an allocator");
        assert_eq!(third.one("millpond_synchronize"), OK);
        assert_eq!((there.stat("reserved"), fake.verdict()), (0, None), "by an allocator of that device");
        third.destroy();
    });
}

/// An allocator is released during a capture by other code and while work is pending: the release waits for neither, and the memory
/// goes back in a later call.
#[test]
fn a_release_waits_for_nothing_and_ends_no_capture() {
    alone("captures::a_release_waits_for_nothing_and_ends_no_capture", |fake| {
        let cuda = program();
        bind(&cuda);
        let query = function_of_driver::<extern "C" fn(sys::CUstream) -> c_int>("cuStreamQuery");
        let [s, t, u] = [(); 3].map(|()| stream(&cuda));
        for permanent in [true, false] {
            let door = Door::new("");
            if permanent {
                door.declare_permanent(&s);
            }
            let (x, y, kept) = (door.alloc(MIB, &s), door.alloc(30 * MIB, &t), door.alloc(4096, &u));
            write(&cuda, &s, x, MIB, 1);
            assert_eq!([door.free(x), door.free_on(y, &t)], [OK; 2]);
            begin(&u);
            let waits =
                || ["cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"].map(|w| fake.calls(w));
            let before = waits();
            assert_eq!(door.one("millpond_release"), OK);
            assert_eq!(waits(), before);
            assert!(end(&u), "the capture was destroyed by a release");
            assert_eq!(query(s.handle()), 600, "its work is still pending");
            assert_eq!([door.one("millpond_release"), door.one("millpond_destroy")], [5; 2]);
            assert!(door.stat("reserved") > 0, "what is not complete is left");
            assert_eq!(door.free_on(kept, &u), OK);
            let next = Door::new("");
            assert_eq!(next.one("millpond_synchronize"), OK);
            assert_eq!((door.stat("reserved"), door.held_back()), (0, 0), "permanent: {permanent}");
            next.destroy();
        }
        assert_eq!(fake.verdict(), None);
    });
}

/// A destroy, and PyTorch's `empty_cache`, during a capture by other code, on a stream that the allocator does not know and on a declared one, with
/// memory whose uses no marker covers: all of it goes back after the work is complete, and the capture lives.
#[test]
fn an_end_waits_beside_captures() {
    alone("captures::an_end_waits_beside_captures", |fake| {
        type Allocator = extern "C" fn(c_int, *const c_void, *mut u32) -> c_int;
        let cuda = program();
        bind(&cuda);
        let [s, t, u] = [(); 3].map(|()| stream(&cuda));
        let mut number = 0;
        assert_eq!(function::<Allocator>("millpond_torch_allocator")(0, null_mut(), &raw mut number), OK);
        for (declared, captured) in [(false, &u), (true, &s), (true, &u)] {
            for (name, options) in [("destroy", ""), ("destroy", "deterministic=1"), ("empty_cache", "")] {
                let door = if name == "destroy" { Door::new(options) } else { Door(number) };
                if declared {
                    door.declare_permanent(&s);
                }
                let (x, y, z) = (door.alloc(MIB, &s), door.alloc(30 * MIB, &t), door.alloc(30 * MIB, &s));
                for (block, stream) in [(x, &s), (y, &t), (z, &s)] {
                    write(&cuda, stream, block, MIB, 1);
                }
                let freed = [door.record_use(z, &t), door.free(x), door.free(y), door.free_unknown(z)];
                assert_eq!(freed, [OK; 4]);
                let before = fake.calls("cuCtxSynchronize");
                begin(captured);
                match name {
                    "destroy" => door.destroy(),
                    _ => function::<extern "C" fn()>("millpond_torch_empty_cache")(),
                }
                assert!(end(captured), "{name}, {options}: the capture was destroyed");
                let after = (fake.calls("cuCtxSynchronize"), door.stat("reserved"), fake.verdict());
                assert_eq!(after, (before, 0, None), "{name}, {options}");
            }
        }
        assert_eq!(function::<extern "C" fn() -> u64>("millpond_torch_untold")(), 0, "an empty_cache failed");
    });
}

/// A stream that was not declared is destroyed while it captures, in its own capture or one that it joined. It cannot be marked any more: what it freed
/// is held back, and a synchronise gives all of it back. The next stream gets its handle, and is not taken for it.
#[test]
fn what_a_stream_freed_that_died_in_a_capture_comes_back_at_a_synchronise() {
    alone("captures::what_a_stream_freed_that_died_in_a_capture_comes_back_at_a_synchronise", |fake| {
        let cuda = program();
        bind(&cuda);
        for joined in [false, true] {
            let door = Door::new("growth=exact");
            let [s, t] = [(); 2].map(|()| stream(&cuda));
            let (x, y, z) = (door.alloc(MIB, &t), door.alloc(2 * MIB, &s), door.alloc(4 * MIB, &t));
            write(&cuda, &t, x, MIB, 1);
            assert_eq!([door.record_use(y, &t), door.free(x)], [OK; 2]);
            begin(if joined { &s } else { &t });
            if joined {
                let event = cuda.create_event().expect("an event");
                cuda.record(&event, &s).expect("captured");
                cuda.wait(&t, &event).expect("joined");
            }
            let gone = t.handle();
            assert_eq!([door.free_on(z, &t), door.record_use(y, &t)], [CAPTURING; 2]);
            if joined {
                let event = cuda.create_event().expect("an event");
                cuda.record(&event, &t).expect("captured");
                cuda.wait(&s, &event).expect("joined again");
            }
            drop(t);
            assert_eq!([door.free(y), door.free(z)], [OK; 2]);
            assert_eq!((door.trim(), door.held_back()), (OK, 7 * MIB as u64), "joined: {joined}");
            assert!(!joined || end(&s), "the capture was destroyed");
            let next = stream(&cuda);
            assert_eq!(next.handle(), gone, "without the same handle the test shows nothing");
            let w = door.alloc(MIB, &next);
            write(&cuda, &next, w, MIB, 2);
            assert_eq!([door.free_on(w, &next), door.one("millpond_synchronize")], [OK; 2]);
            assert_eq!(
                (door.held_back(), door.trim(), door.stat("reserved")),
                (0, OK, 0),
                "joined: {joined}"
            );
            door.destroy();
        }
        assert_eq!(fake.verdict(), None);
    });
}
