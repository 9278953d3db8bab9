//! Streams that are declared permanent: after their first use, and falsely.

use super::{CAPTURING, Door, GIB, MIB, OK, OUT_OF_MEMORY, When, alone, bind, function, function_of_driver};
use super::{last, program, stream, write};
use cudarc::driver::sys;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// A declaration counts from then on, in every allocator of the device: what was held back until then goes back with no synchronise.
#[test]
fn a_stream_may_be_declared_after_its_first_use() {
    alone("permanent::a_stream_may_be_declared_after_its_first_use", |fake| {
        fake.reset(GIB, 2, When::Earliest);
        let cuda = program();
        bind(&cuda);
        let (s, door, other) = (stream(&cuda), Door::new(""), Door::new(""));
        for door in [door, other] {
            let x = door.alloc(MIB, &s);
            write(&cuda, &s, x, MIB, 1);
            assert_eq!(door.free(x), OK);
            assert_eq!(door.trim(), OK);
            assert!(door.held_back() >= MIB as u64, "nobody can mark it");
        }
        door.declare_permanent(&s);
        for door in [door, other] {
            assert_eq!(door.held_back(), 0, "anybody can");
            assert_eq!(door.trim(), OK);
            assert_eq!(door.stat("reserved"), 0);
            // And it is marked no more at each free that names it.
            let x = door.alloc(MIB, &s);
            let marked = fake.calls("cuEventRecord");
            assert_eq!(door.free_on(x, &s), OK);
            assert_eq!(fake.calls("cuEventRecord"), marked);
        }
        // It can be asked whether it captures, too, by a call that does not name it.
        let begin =
            function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
        let end = function_of_driver::<extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> c_int>(
            "cuStreamEndCapture",
        );
        assert_eq!(begin(s.handle(), 2), 0);
        assert_eq!([door, other].map(|door| door.one("millpond_synchronize")), [CAPTURING; 2]);
        let mut graph = null_mut();
        assert_eq!(end(s.handle(), &raw mut graph), 0, "it lives");
        for door in [door, other] {
            door.destroy();
        }
        assert_eq!(fake.verdict(), None);
    });
}

/// Declared permanent and destroyed: what was freed there is lost, and nothing else. Others at the limit have their own, whoever
/// holds it at the moment, and what nobody knows whom used; a trim gives it back.
#[test]
fn a_stream_that_was_to_last_and_did_not_takes_no_others_memory() {
    alone("permanent::a_stream_that_was_to_last_and_did_not_takes_no_others_memory", |fake| {
        beside_one_that_is_gone(fake, "expected");
    });
}

/// The same where nothing captures, and a marker of all the context is what shows that unknown users are done: a stream that is gone
/// is asked in vain, and does not keep it from being made.
#[test]
fn a_stream_that_was_to_last_and_did_not_leaves_context_wide_markers() {
    alone("permanent::a_stream_that_was_to_last_and_did_not_leaves_context_wide_markers", |fake| {
        beside_one_that_is_gone(fake, "none");
    });
}

fn beside_one_that_is_gone(fake: &super::Fake, captures: &str) {
    let cuda = program();
    bind(&cuda);
    // Where nobody is made to wait for others, memory changes hands when the host has waited for it.
    let options = format!("limit=6MiB,growth=exact,wait_ms=1000,reuse=ordered,captures={captures}");
    let door = Door::new(&options);
    let [s, t, u] = [(); 3].map(|()| stream(&cuda));
    for stream in [&s, &t, &u] {
        door.declare_permanent(stream);
    }
    let x = door.alloc(2 * MIB, &s);
    write(&cuda, &s, x, 2 * MIB, 1);
    let y = door.alloc(2 * MIB, &t);
    assert_eq!([door.free(x), door.free(y)], [OK; 2]);
    drop(s);
    // No other stream has its handle: the driver refuses it.
    for n in 0..200 {
        let stream = if n % 2 == 0 { &t } else { &u };
        let (x, y) = (door.alloc(2 * MIB, stream), door.alloc(MIB, stream));
        write(&cuda, stream, x, 2 * MIB, n);
        assert_eq!([door.free_unknown(x), door.free(y)], [OK; 2]);
        if captures == "expected" {
            // What nobody knows whom used is held back until then.
            assert_eq!(door.one("millpond_synchronize"), OK, "{}", last());
        }
    }
    assert_eq!(door.try_alloc(5 * MIB, &t), Err(OUT_OF_MEMORY), "and not that a stream is gone");
    // Or by the last synchronise what lies there is known to be over.
    assert!(captures == "expected" || last().contains("passed over"), "{}", last());
    let z = door.alloc(2 * MIB, &t);
    write(&cuda, &t, z, 2 * MIB, 1);
    assert_eq!(door.free_unknown(z), OK);
    assert_eq!(door.trim(), OK, "{}", last());
    assert_eq!(fake.verdict(), None);
}

/// All is idle, and one stream that was to last is gone: a trim gives everything back, and then a request for all of it is served.
#[test]
fn a_trim_passes_over_a_stream_that_was_to_last_and_did_not() {
    alone("permanent::a_trim_passes_over_a_stream_that_was_to_last_and_did_not", |fake| {
        fake.reset(GIB, 2, When::Earliest);
        let cuda = program();
        bind(&cuda);
        let door = Door::new("captures=none,limit=6MiB,growth=exact");
        let (s, t) = (stream(&cuda), stream(&cuda));
        for stream in [&s, &t] {
            door.declare_permanent(stream);
        }
        drop(s);
        assert_eq!(door.free_unknown(door.alloc(2 * MIB, &t)), OK);
        assert_eq!(door.trim(), OK, "{}", last());
        assert_eq!(door.stat("reserved"), 0);
        // And a request at the limit says what a trim would bring, and no driver's error.
        assert_eq!(door.free_unknown(door.alloc(2 * MIB, &t)), OK);
        assert_eq!(door.try_alloc(6 * MIB, &t), Err(OUT_OF_MEMORY), "{}", last());
        assert!(last().contains("a trim would free 2.00 MiB"), "{}", last());
        assert_eq!(door.trim(), OK, "{}", last());
        assert_eq!(door.free(door.alloc(6 * MIB, &t)), OK);
        door.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// At the limit a capture by other code is in the way: out of memory, which callers look for, in words that name the capture.
#[test]
fn a_capture_in_the_way_is_out_of_memory_with_its_name() {
    alone("permanent::a_capture_in_the_way_is_out_of_memory_with_its_name", |fake| {
        let cuda = program();
        bind(&cuda);
        let door = Door::new("limit=4MiB,growth=exact,wait_ms=1000,pinned_limit=1MiB");
        let (s, t) = (stream(&cuda), stream(&cuda));
        door.declare_permanent(&s);
        let x = door.alloc(4 * MIB, &s);
        write(&cuda, &s, x, 4 * MIB, 1);
        assert_eq!(door.free(x), OK);
        let begin =
            function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
        let end = function_of_driver::<extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> c_int>(
            "cuStreamEndCapture",
        );
        let alloc_pinned =
            function::<extern "C" fn(u32, usize, *mut *mut c_void) -> c_int>("millpond_alloc_pinned");
        let mut pinned = null_mut();
        assert_eq!(alloc_pinned(door.0, MIB, &raw mut pinned), OK);
        let record =
            function::<extern "C" fn(u32, *mut c_void, *mut c_void) -> c_int>("millpond_record_pinned_use");
        assert_eq!(record(door.0, pinned, s.handle().cast()), OK);
        let free = function::<extern "C" fn(u32, *mut c_void) -> c_int>("millpond_free_pinned");
        assert_eq!(free(door.0, pinned), OK);
        assert_eq!(begin(s.handle(), 2), 0);
        assert_eq!(alloc_pinned(door.0, MIB, &raw mut pinned), OUT_OF_MEMORY, "and it does not hang");
        assert_eq!(door.try_alloc(4 * MIB, &t), Err(OUT_OF_MEMORY));
        assert!(last().contains("is capturing a graph"), "{}", last());
        assert_eq!(door.trim(), OK);
        let stats = door.stats();
        let held_back = || stats.split("\"held_back\":").skip(1);
        // Of each pool, of the pinned memory that s reads, and of all.
        assert!(held_back().count() > 2 && held_back().all(|n| n.starts_with("0,")), "{stats}");
        assert_eq!(door.one("millpond_synchronize"), CAPTURING, "nor does this bring it back");
        let mut graph = null_mut();
        assert_eq!(end(s.handle(), &raw mut graph), 0, "it lives");
        let y = door.alloc(4 * MIB, &t);
        write(&cuda, &t, y, 4 * MIB, 2);
        assert_eq!(door.free(y), OK);
        assert_eq!(fake.verdict(), None);
    });
}
