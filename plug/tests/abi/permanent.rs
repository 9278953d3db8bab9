//! Streams that are declared permanent after their first use, and streams that are declared permanent and destroyed nevertheless.

use super::{CAPTURING, Door, GIB, MIB, OK, OUT_OF_MEMORY, When, alone, bind, function, function_of_driver};
use super::{last, program, stream, write};
use cudarc::driver::sys;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// A declaration counts from then on, in every allocator of the device: what was held back until then goes back without a synchronise.
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
            assert!(door.held_back() >= MIB as u64, "no call may mark it");
        }
        door.declare_permanent(&s);
        for door in [door, other] {
            assert_eq!(door.held_back(), 0, "any call may mark it");
            assert_eq!(door.trim(), OK);
            assert_eq!(door.stat("reserved"), 0);
            // A free that names it does not mark it any more.
            let x = door.alloc(MIB, &s);
            let marked = fake.calls("cuEventRecord");
            assert_eq!(door.free_on(x, &s), OK);
            assert_eq!(fake.calls("cuEventRecord"), marked);
        }
        // A call that does not name it may check whether it captures, too.
        let begin =
            function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
        let end = function_of_driver::<extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> c_int>(
            "cuStreamEndCapture",
        );
        assert_eq!(begin(s.handle(), 2), 0);
        assert_eq!([door, other].map(|door| door.one("millpond_synchronize")), [CAPTURING; 2]);
        let mut graph = null_mut();
        assert_eq!(end(s.handle(), &raw mut graph), 0, "the capture lives");
        for door in [door, other] {
            door.destroy();
        }
        assert_eq!(fake.verdict(), None);
    });
}

/// A stream is declared permanent and destroyed: what was freed there is lost, and nothing else. At the limit other streams get the rest,
/// whichever pool has it at the moment, and memory freed with unknown users; a trim gives it back.
#[test]
fn a_stream_that_was_to_last_and_did_not_takes_no_others_memory() {
    alone("permanent::a_stream_that_was_to_last_and_did_not_takes_no_others_memory", |fake| {
        beside_one_that_is_gone(fake, "expected");
    });
}

/// The same where no captures are expected, and a context-wide marker shows that unknown users are complete: the check of a stream that
/// is gone fails, and does not keep the marker from being made.
#[test]
fn a_stream_that_was_to_last_and_did_not_leaves_context_wide_markers() {
    alone("permanent::a_stream_that_was_to_last_and_did_not_leaves_context_wide_markers", |fake| {
        beside_one_that_is_gone(fake, "none");
    });
}

fn beside_one_that_is_gone(fake: &super::Fake, captures: &str) {
    let cuda = program();
    bind(&cuda);
    // No stream is made to wait for another one, so memory migrates after the host has waited for it.
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
            // Memory freed with unknown users is held back until then.
            assert_eq!(door.one("millpond_synchronize"), OK, "{}", last());
        }
    }
    assert_eq!(
        door.try_alloc(5 * MIB, &t),
        Err(OUT_OF_MEMORY),
        "and not an error of the stream that is gone"
    );
    // With captures expected, the last synchronise has shown that all uses there are complete.
    assert!(captures == "expected" || last().contains("passed over"), "{}", last());
    let z = door.alloc(2 * MIB, &t);
    write(&cuda, &t, z, 2 * MIB, 1);
    assert_eq!(door.free_unknown(z), OK);
    assert_eq!(door.trim(), OK, "{}", last());
    assert_eq!(fake.verdict(), None);
}

/// Everything is idle, and a stream that was declared permanent is gone: a trim gives everything back, and then a request for all of it is served.
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
        // A request at the limit says what a trim would free, and returns no driver error.
        assert_eq!(door.free_unknown(door.alloc(2 * MIB, &t)), OK);
        assert_eq!(door.try_alloc(6 * MIB, &t), Err(OUT_OF_MEMORY), "{}", last());
        assert!(last().contains("a trim would free 2.00 MiB"), "{}", last());
        assert_eq!(door.trim(), OK, "{}", last());
        assert_eq!(door.free(door.alloc(6 * MIB, &t)), OK);
        door.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// At the limit a capture by other code keeps memory from being used: the error is out of memory, which callers handle, and names the capture.
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
        assert_eq!(alloc_pinned(door.0, MIB, &raw mut pinned), OUT_OF_MEMORY, "it returns and does not hang");
        assert_eq!(door.try_alloc(4 * MIB, &t), Err(OUT_OF_MEMORY));
        assert!(last().contains("is capturing a graph"), "{}", last());
        assert_eq!(door.trim(), OK);
        let stats = door.stats();
        let held_back = || stats.split("\"held_back\":").skip(1);
        // Those of each pool, of the pinned memory that s reads, and of the total.
        assert!(held_back().count() > 2 && held_back().all(|n| n.starts_with("0,")), "{stats}");
        assert_eq!(door.one("millpond_synchronize"), CAPTURING, "a synchronise does not give it back either");
        let mut graph = null_mut();
        assert_eq!(end(s.handle(), &raw mut graph), 0, "the capture lives");
        let y = door.alloc(4 * MIB, &t);
        write(&cuda, &t, y, 4 * MIB, 2);
        assert_eq!(door.free(y), OK);
        assert_eq!(fake.verdict(), None);
    });
}
