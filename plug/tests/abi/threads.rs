//! Threads that come and go, each on its own default stream: no call announces that a thread ends, and the memory that it freed
//! is reused nevertheless.

use super::{
    Door, Fake, GIB, MIB, OK, OUT_OF_MEMORY, When, alone, bind, function, function_of_driver, last, program,
    stream,
};
use cudarc::driver::sys;
use pond::cuda::Cuda;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};

/// `CU_STREAM_PER_THREAD`.
fn own() -> *mut c_void {
    without_provenance_mut(2)
}

fn alloc(door: Door, bytes: usize) -> *mut c_void {
    let alloc =
        function::<extern "C" fn(u32, usize, *mut c_void, *mut *mut c_void) -> c_int>("millpond_alloc");
    let mut ptr = null_mut();
    assert_eq!(alloc(door.0, bytes, own(), &raw mut ptr), OK, "{}", last());
    ptr
}

fn write(ptr: *mut c_void, bytes: usize, value: u8) {
    let set = function_of_driver::<extern "C" fn(u64, u8, usize, sys::CUstream) -> c_int>("cuMemsetD8Async");
    assert_eq!(set(ptr.addr() as u64, value, bytes, own().cast()), 0, "queued");
}

/// Runs on a new thread, which has ended when this returns.
fn thread(body: impl FnOnce(&Cuda) + Send + 'static) {
    let run = move || {
        let cuda = program();
        bind(&cuda);
        body(&cuda);
    };
    std::thread::spawn(run).join().expect("it ends well");
}

/// How often streams were marked, and their ids queried.
fn touched() -> [u64; 2] {
    let calls = function_of_driver::<extern "C" fn(*const c_char) -> u64>("millpond_fake_calls");
    [c"cuEventRecord", c"cuStreamGetId"].map(|call| calls(call.as_ptr()))
}

fn pools(door: Door) -> usize {
    door.stats().matches("\"closed\":").count()
}

/// Plain frees with work pending; no stream is declared, and there is no synchronise.
#[test]
fn what_ended_threads_freed_serves_others() {
    alone("threads::what_ended_threads_freed_serves_others", |fake| {
        // This device runs all work at once, so no reserved memory has a pending use.
        fake.reset(GIB, 2, When::Earliest);
        let door = Door::new("");
        let other = Door::new("");
        for n in 0..512_u32 {
            thread(move |_| {
                // Two allocators in turns: a thread's stream has a pool in each.
                for door in [door, other, door] {
                    let x = alloc(door, 4096);
                    write(x, 4096, n as u8);
                    assert_eq!(door.free(x), OK);
                }
            });
        }
        for door in [door, other] {
            let taken = door.stat("reserved");
            assert!(taken <= 64 * MIB as u64, "{taken} bytes are reserved and none are live");
            assert!(pools(door) <= 33, "{} pools", pools(door));
            assert_eq!(door.held_back(), 0);
        }
        assert_eq!(fake.verdict(), None);
        for door in [door, other] {
            door.destroy();
        }
    });
}

/// At the limit, on a device that runs as late as it may, a request gets that memory behind a wait.
#[test]
fn what_an_ended_thread_freed_is_waited_for() {
    alone("threads::what_an_ended_thread_freed_is_waited_for", |fake| {
        let tight = Door::new("limit=2MiB,growth=exact");
        for n in 0..20 {
            thread(move |_| {
                let x = alloc(tight, 2 * MIB);
                write(x, 2 * MIB, n);
                assert_eq!(tight.free(x), OK);
            });
        }
        assert_eq!(fake.verdict(), None);
        tight.destroy();
    });
}

/// A block that is alive when its thread ends is freed by another thread: it is held back, and a synchronise gives it back.
#[test]
fn what_outlives_its_thread_is_freed_by_others() {
    alone("threads::what_outlives_its_thread_is_freed_by_others", |fake| {
        let door = Door::new("");
        let (send, receive) = std::sync::mpsc::channel();
        thread(move |_| {
            let (x, y) = (alloc(door, 3 * MIB), alloc(door, MIB));
            write(x, 3 * MIB, 1);
            assert_eq!(door.free(y), OK);
            send.send(x.addr()).expect("the receiver is there");
        });
        assert_eq!(door.held_back(), 0, "y was marked");
        let x = receive.recv().expect("it was sent");
        assert_eq!(door.free(without_provenance_mut(x)), OK);
        assert_eq!([door.one("millpond_synchronize"), door.trim()], [OK; 2]);
        assert_eq!((door.stat("reserved"), door.held_back(), fake.verdict()), (0, 0, None));
        door.destroy();
    });
}

/// A thread ends while its own stream captures: that stream is neither queried nor marked, and what it freed waits for a synchronise. A
/// capture on another stream survives the end of a thread.
#[test]
fn a_threads_end_leaves_captures_alone() {
    alone("threads::a_threads_end_leaves_captures_alone", |fake| {
        let door = Door::new("");
        let begin =
            function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
        let end = function_of_driver::<extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> c_int>(
            "cuStreamEndCapture",
        );
        let (send, receive) = std::sync::mpsc::channel();
        thread(move |_| {
            assert_eq!(door.free(alloc(door, MIB)), OK);
            let begin =
                function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
            assert_eq!(begin(own().cast(), 2), 0);
            send.send(touched()).expect("the receiver is there");
        });
        assert_eq!(
            receive.recv().expect("it was sent"),
            touched(),
            "its id is not queried, and it is not marked"
        );
        assert!(door.held_back() > 0, "so it could not be marked");
        let cuda = program();
        bind(&cuda);
        let s = stream(&cuda);
        assert_eq!(begin(s.handle(), 2), 0);
        thread(move |_| assert_eq!(door.free(alloc(door, MIB)), OK));
        let mut graph = null_mut();
        assert_eq!(end(s.handle(), &raw mut graph), 0, "the capture lives");
        assert!(!graph.is_null());
        assert_eq!(fake.verdict(), None);
    });
}

/// A destroy drops what its own thread remembers of streams; what other threads remember is dropped when they end.
#[test]
fn a_destroyed_allocator_leaves_no_events() {
    alone("threads::a_destroyed_allocator_leaves_no_events", |fake| {
        let cuda = program();
        bind(&cuda);
        let events = || fake.calls("cuEventCreate") - fake.calls("cuEventDestroy_v2");
        let (before, door) = (events(), Door::new(""));
        let streams = [(); 3].map(|()| stream(&cuda));
        for s in &streams {
            assert_eq!(door.free_on(door.alloc(MIB, s), s), OK);
        }
        let x = alloc(door, MIB);
        write(x, MIB, 1);
        assert_eq!(door.free(x), OK);
        let (destroy, destroyed) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
        let other = std::thread::spawn(move || {
            bind(&program());
            assert_eq!(door.free(alloc(door, MIB)), OK);
            destroy.0.send(()).expect("the receiver is there");
            destroyed.1.recv().expect("it was sent");
        });
        destroy.1.recv().expect("it was sent");
        assert!(events() > before);
        door.destroy();
        assert!(events() <= before + 2, "{} for the other thread's stream", events() - before);
        destroyed.0.send(()).expect("the receiver is there");
        other.join().expect("it ends well");
        let next = Door::new("");
        assert_eq!(next.one("millpond_synchronize"), OK);
        next.destroy();
        assert_eq!((events(), fake.verdict()), (before, None));
    });
}

/// A thread ends after the driver has shut down, as at the end of a process: nothing happens.
#[test]
fn a_threads_end_behind_the_drivers_is_quiet() {
    alone("threads::a_threads_end_behind_the_drivers_is_quiet", |fake| {
        let door = Door::new("");
        let shut_down = function_of_driver::<extern "C" fn()>("millpond_fake_shut_down");
        thread(move |_| {
            assert_eq!(door.free(alloc(door, MIB)), OK);
            shut_down();
        });
        assert_eq!(fake.calls("cuEventRecord"), 0, "nothing was marked");
    });
}

/// What ended threads leave for others: driver calls of the next thread's first request and free, of its next request, and of the
/// allocator's end; pools; bytes reserved before the end.
#[derive(Debug)]
struct Left {
    first: u64,
    next: u64,
    end: u64,
    pools: usize,
    taken: u64,
}

fn left_by(fake: &Fake, threads: u32, captures: bool) -> Left {
    let door = Door::new("");
    let begin = "cuStreamBeginCapture_v2";
    for n in 0..threads {
        thread(move |_| {
            let x = alloc(door, 4096);
            write(x, 4096, n as u8);
            assert_eq!(door.free(x), OK);
            if captures {
                let begin = function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>(begin);
                assert_eq!(begin(own().cast(), 2), 0);
            }
        });
    }
    bind(&program());
    let calls = |body: &dyn Fn()| {
        let before = fake.calls_total();
        body();
        fake.calls_total() - before
    };
    let request = || assert_eq!(door.free(alloc(door, 4096)), OK);
    let (first, next) = (calls(&request), calls(&request));
    let (pools, taken) = (pools(door), door.stat("reserved"));
    // A device on which other code captures must not be waited for.
    let end =
        calls(&|| assert_eq!(door.one(if captures { "millpond_release" } else { "millpond_destroy" }), OK));
    assert_eq!(
        (door.stat("reserved"), fake.verdict()),
        (door.held_back(), None),
        "what is left is held back"
    );
    Left { first, next, end, pools, taken }
}

/// Thousands of threads cost no more than a few, in driver calls, which do not depend on time, and in bytes. If each thread ends while its own stream
/// captures, its memory is held back, a segment each, and costs other threads' calls nothing.
#[test]
fn eight_thousand_threads_leave_no_more_than_five_hundred() {
    alone("threads::eight_thousand_threads_leave_no_more_than_five_hundred", |fake| {
        fake.reset(64 * GIB, 2, When::Earliest);
        let [few, many] = [500, 8000].map(|threads| left_by(fake, threads, false));
        let shown = format!("{few:?}, {many:?}");
        assert!(few.first < 20 && few.next < 5 && few.end < 150, "{shown}");
        assert!(many.first <= few.first && many.next <= few.next && many.end <= few.end, "{shown}");
        assert!(
            many.taken <= few.taken && many.taken <= 4 * MIB as u64 && many.pools <= few.pools,
            "{shown}"
        );
        let captured = [250, 2000].map(|threads| (threads, left_by(fake, threads, true)));
        for (threads, left) in &captured {
            let shown = format!("{threads} that end in captures: {left:?}");
            assert!(left.first <= few.first && left.next <= few.next && left.end <= few.end, "{shown}");
            assert!(left.taken <= (u64::from(*threads) + 1) * 2 * MIB as u64, "{shown}");
        }
    });
}

/// When a thread destroys the stream that it has made, and which it remembers until it ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Destroys {
    BeforeTheFree,
    BehindTheFree,
}

/// A thread makes a stream and one request on it. Returns the request's code and the error message.
fn with_a_stream(door: Door, destroys: Destroys, value: u8) -> (c_int, String) {
    let (send, receive) = std::sync::mpsc::channel();
    thread(move |_| {
        let create = function_of_driver::<extern "C" fn(*mut sys::CUstream, u32) -> c_int>("cuStreamCreate");
        let destroy = function_of_driver::<extern "C" fn(sys::CUstream) -> c_int>("cuStreamDestroy_v2");
        let set =
            function_of_driver::<extern "C" fn(u64, u8, usize, sys::CUstream) -> c_int>("cuMemsetD8Async");
        let alloc =
            function::<extern "C" fn(u32, usize, *mut c_void, *mut *mut c_void) -> c_int>("millpond_alloc");
        let (mut s, mut x) = (null_mut(), null_mut());
        assert_eq!(create(&raw mut s, 1), 0);
        let code = alloc(door.0, 4096, s.cast(), &raw mut x);
        if code != OK {
            assert_eq!(destroy(s), 0);
            send.send((code, last())).expect("the receiver is there");
            return;
        }
        assert_eq!(set(x.addr() as u64, value, 4096, s), 0);
        if destroys == Destroys::BeforeTheFree {
            assert_eq!(destroy(s), 0);
        }
        assert_eq!(door.free(x), OK);
        if destroys == Destroys::BehindTheFree {
            assert_eq!(destroy(s), 0);
        }
        send.send((OK, String::new())).expect("the receiver is there");
    });
    receive.recv().expect("it was sent")
}

/// Threads end while they remember streams that they have destroyed. What each freed there cannot be marked, so a segment is held back for each
/// thread. The report shows this to the byte, and so does the error of the first request that is refused. A synchronise gives all of it back.
fn beyond_the_last_segment(fake: &Fake, destroys: Destroys) {
    fake.reset(GIB, 2, When::Latest);
    let door = Door::new("");
    let most = (GIB / (2 * MIB) as u64) as usize;
    for round in 0..2 {
        let mut served = 0;
        let refusal = loop {
            match with_a_stream(door, destroys, served as u8) {
                (OK, _) => served += 1,
                (code, refusal) => {
                    assert_eq!(code, OUT_OF_MEMORY, "{refusal}");
                    break refusal;
                }
            }
            assert!(served <= most, "{served} segments of 2 MiB are more than the device has");
        };
        assert_eq!(served, most, "{destroys:?}, {round}: {refusal}");
        assert!(refusal.contains("held back"), "{refusal}");
        assert_eq!((door.stat("live"), door.held_back()), (0, door.stat("reserved")), "{refusal}");
        // Besides the pools of the served streams: that of the thread that was refused, and the total.
        assert!(pools(door) <= served + 3, "{} pools for {served} streams", pools(door));
        assert_eq!(door.one("millpond_synchronize"), OK);
        assert_eq!(door.held_back(), 0);
        assert_eq!((door.trim(), door.stat("reserved")), (OK, 0));
    }
    door.destroy();
    assert_eq!(fake.verdict(), None);
    let (made, ended) = (fake.calls("cuEventCreate"), fake.calls("cuEventDestroy_v2"));
    assert_eq!(made, ended, "ended threads have left events");
}

#[test]
fn threads_that_end_remember_streams_that_ended_before_the_free() {
    alone("threads::threads_that_end_remember_streams_that_ended_before_the_free", |fake| {
        beyond_the_last_segment(fake, Destroys::BeforeTheFree);
    });
}

#[test]
fn threads_that_end_remember_streams_that_ended_behind_the_free() {
    alone("threads::threads_that_end_remember_streams_that_ended_behind_the_free", |fake| {
        beyond_the_last_segment(fake, Destroys::BehindTheFree);
    });
}

/// Thousands of such threads leave no more than a few if the program calls a synchronise now and then.
#[test]
fn thousands_of_threads_with_streams_that_ended_leave_no_more_than_a_few() {
    alone("threads::thousands_of_threads_with_streams_that_ended_leave_no_more_than_a_few", |fake| {
        fake.reset(GIB, 2, When::Latest);
        for destroys in [Destroys::BeforeTheFree, Destroys::BehindTheFree] {
            let left = [100_u32, 2000].map(|threads| {
                let door = Door::new("");
                for n in 0..threads {
                    assert_eq!(with_a_stream(door, destroys, n as u8), (OK, String::new()));
                    if n % 100 == 99 {
                        assert_eq!(door.one("millpond_synchronize"), OK);
                    }
                }
                bind(&program());
                let before = fake.calls_total();
                assert_eq!(door.free(alloc(door, 4096)), OK);
                let request = fake.calls_total() - before;
                let (pools, taken) = (pools(door), door.stat("reserved"));
                let before = fake.calls_total();
                door.destroy();
                (request, fake.calls_total() - before, pools, taken)
            });
            let [few, many] = left;
            assert!(many.0 <= few.0 && many.1 <= few.1 && many.2 <= few.2 + 2 && many.3 <= few.3, "{left:?}");
            assert!(few.0 < 20 && few.2 < 120 && few.3 <= 100 * 2 * MIB as u64, "{left:?}");
        }
        assert_eq!(fake.verdict(), None);
    });
}
