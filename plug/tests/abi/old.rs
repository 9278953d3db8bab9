//! Drivers that lack a function. Without stream ids, as before CUDA 12, a stream is known by its handle, and only if it was declared permanent.
//! Without an event of the whole context, as before CUDA 12.5, only a wait shows that memory freed with unknown users is complete.

use super::{CAPTURING, Door, MIB, OK, OUT_OF_MEMORY, alone_on, bind, function, function_of_driver, last};
use super::{program, read, stream, write};
use cudarc::driver::sys;
use pond::cuda::{Cuda, GpuStream};
use pond::driver::Fences;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

const BYTES: usize = 2 * MIB;
const DRIVER: c_int = 8;
/// The calling thread's default stream.
const PER_THREAD: usize = 2;

/// A copy of the stand-in without one function: its name is overwritten where the loader looks it up.
fn without(name: &str, whole: PathBuf, test: &str) -> PathBuf {
    let mut bytes = std::fs::read(whole).expect("the stand-in");
    let name = format!("\0{name}\0").into_bytes();
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|&at| bytes[at..].starts_with(&name)).collect();
    assert!(!places.is_empty(), "the stand-in has no such function");
    for at in places {
        bytes[at + 1] = b'x';
    }
    let old =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("old_driver_{}.so", test.replace(':', "_")));
    std::fs::write(&old, bytes).expect("a copy");
    old
}

pub(super) fn alone_without_ids(test: &str, body: impl FnOnce(&super::Fake)) {
    alone_on(
        test,
        |whole| without("cuStreamGetId", whole, test),
        |fake| {
            assert!(!program().has_stream_ids());
            body(fake);
        },
    );
}

fn free_after(door: Door, x: *mut c_void, streams: &[usize]) -> c_int {
    type FreeAfter = extern "C" fn(u32, *mut c_void, *const usize, usize) -> c_int;
    function::<FreeAfter>("millpond_free_after")(door.0, x, streams.as_ptr(), streams.len())
}

fn is_live(door: Door, x: *mut c_void) -> bool {
    type Find = extern "C" fn(u32, *const c_void, *mut *mut c_void, *mut usize) -> c_int;
    let (mut begin, mut bytes) = (null_mut(), 0);
    function::<Find>("millpond_find")(door.0, x, &raw mut begin, &raw mut bytes) == OK
}

fn handle(s: &GpuStream) -> usize {
    s.handle().addr()
}

/// t reads after the work on s.
fn read_behind(cuda: &Cuda, x: *mut c_void, s: &GpuStream, t: &GpuStream) {
    let event = cuda.create_event().expect("an event");
    cuda.record(&event, s).expect("recorded");
    cuda.wait(t, &event).expect("queued");
    read(cuda, t, x, BYTES);
}

/// s writes, then t reads.
fn written_and_read(cuda: &Cuda, x: *mut c_void, s: &GpuStream, t: &GpuStream) {
    write(cuda, s, x, BYTES, 1);
    read_behind(cuda, x, s, t);
}

/// s writes, t reads, the free names the streams in `named`, and the bytes get their next owner: the oracle's verdict.
fn freed_after(fake: &super::Fake, named: impl FnOnce(usize, usize) -> Vec<usize>) -> Option<String> {
    let cuda = program();
    bind(&cuda);
    let (s, t, door) = (stream(&cuda), stream(&cuda), Door::new("limit=2MiB,growth=exact"));
    door.declare_permanent(&s);
    door.declare_permanent(&t);
    let x = door.alloc(BYTES, &s);
    written_and_read(&cuda, x, &s, &t);
    assert_eq!(free_after(door, x, &named(handle(&s), handle(&t))), OK, "{}", last());
    let y = door.alloc(BYTES, &s);
    assert_eq!(y, x, "without the same bytes the test shows nothing");
    write(&cuda, &s, y, BYTES, 2);
    assert_eq!(door.free(y), OK);
    door.destroy();
    fake.verdict()
}

#[test]
fn a_free_after_is_behind_all_that_it_names() {
    alone_without_ids("old::a_free_after_is_behind_all_that_it_names", |fake| {
        assert_eq!(freed_after(fake, |s, t| vec![s, t, 0, PER_THREAD]), None);
        assert_eq!(freed_after(fake, |_, t| vec![t]), None);
        let verdict = freed_after(fake, |s, _| vec![s, 0]);
        assert!(verdict.is_some(), "a use that was not named must be reported, or the rest shows nothing");
    });
}

/// A stream that was not declared is refused: it is never taken for the one that had its handle before. What was recorded of the other
/// streams stays, and nothing is freed.
#[test]
fn a_handle_that_comes_back_is_another_streams() {
    alone_without_ids("old::a_handle_that_comes_back_is_another_streams", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, t, door) = (stream(&cuda), stream(&cuda), Door::new("limit=2MiB,growth=exact"));
        door.declare_permanent(&s);
        door.declare_permanent(&t);
        let u = stream(&cuda);
        let x = door.alloc(BYTES, &s);
        written_and_read(&cuda, x, &s, &t);
        let first = handle(&u);
        for _ in 0..2 {
            assert_eq!(free_after(door, x, &[handle(&t), first]), DRIVER);
            assert!(last().contains("no stream ids") && is_live(door, x), "{}", last());
        }
        drop(u);
        let v = stream(&cuda);
        assert_eq!(handle(&v), first, "the handle is another stream's now");
        assert_eq!(free_after(door, x, &[handle(&v)]), DRIVER);
        assert!(is_live(door, x));
        // A capture is seen before anything is recorded, whether the stream was declared or not.
        let begin =
            function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
        let end = function_of_driver::<extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> c_int>(
            "cuStreamEndCapture",
        );
        for captured in [&t, &v] {
            let mut graph = null_mut();
            assert_eq!(begin(captured.handle(), 2), 0);
            assert_eq!(free_after(door, x, &[handle(&s), handle(captured)]), CAPTURING);
            assert!(is_live(door, x));
            assert_eq!(end(captured.handle(), &raw mut graph), 0, "the capture lives");
        }
        // Once it is declared, the new stream can be named like any other.
        door.declare_permanent(&v);
        read_behind(&cuda, x, &s, &v);
        assert_eq!(free_after(door, x, &[handle(&v)]), OK, "{}", last());
        let y = door.alloc(BYTES, &s);
        assert_eq!(y, x, "without the same bytes the test shows nothing");
        write(&cuda, &s, y, BYTES, 2);
        assert_eq!(door.free(y), OK);
        door.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// Each thread's default stream has the same handle, and is known by its thread: what one thread freed on its own stream is not taken
/// to be ordered before another thread's.
#[test]
fn default_streams_of_threads_are_distinguished() {
    alone_without_ids("old::default_streams_of_threads_are_distinguished", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, door) = (stream(&cuda), Door::new("limit=2MiB,growth=exact,reuse=waits"));
        door.declare_permanent(&s);
        for n in 0..6 {
            // On a thread that ends at once, so that its number may be reused.
            let turn = || {
                bind(&cuda);
                let own = cuda.per_thread_stream().expect("a stream");
                let x = door.alloc(BYTES, &own);
                write(&cuda, &own, x, BYTES, n);
                let named: &[usize] = if n % 3 == 2 {
                    read_behind(&cuda, x, &own, &s);
                    &[handle(&s), PER_THREAD]
                } else {
                    &[PER_THREAD]
                };
                assert_eq!(free_after(door, x, named), OK, "{}", last());
            };
            std::thread::scope(|scope| scope.spawn(turn).join().expect("it ends well"));
        }
        door.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// No request waits for the whole device instead, whether captures are expected or not: the memory comes back at a synchronise. A capture during all
/// other calls survives.
#[test]
fn what_unknown_streams_used_comes_back_at_a_synchronise_without_events_of_the_context() {
    let test = "old::what_unknown_streams_used_comes_back_at_a_synchronise_without_events_of_the_context";
    let made = |whole| without("cuCtxRecordEvent", whole, test);
    alone_on(test, made, |fake| {
        let cuda = program();
        bind(&cuda);
        let begin =
            function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
        let end = function_of_driver::<extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> c_int>(
            "cuStreamEndCapture",
        );
        for captures in ["none", "expected"] {
            let options = format!("limit=2MiB,growth=exact,wait_ms=5,captures={captures}");
            let (s, t, u, door) = (stream(&cuda), stream(&cuda), stream(&cuda), Door::new(&options));
            let (x, mut graph) = (door.alloc(BYTES, &s), null_mut());
            written_and_read(&cuda, x, &s, &t);
            assert_eq!(begin(u.handle(), 2), 0);
            let synchronised = fake.calls("cuCtxSynchronize");
            assert_eq!([door.free_unknown(x), door.trim()], [OK; 2]);
            assert_eq!(door.try_alloc(BYTES, &s).err(), Some(OUT_OF_MEMORY), "it is held back");
            assert_eq!(end(u.handle(), &raw mut graph), 0, "the capture lives");
            assert_eq!((fake.calls("cuCtxRecordEvent"), fake.calls("cuCtxSynchronize")), (0, synchronised));
            assert_eq!((door.one("millpond_synchronize"), door.held_back()), (OK, 0));
            let y = door.alloc(BYTES, &t);
            assert_eq!(y, x, "without the same bytes the test shows nothing");
            write(&cuda, &t, y, BYTES, 2);
            assert_eq!(door.free(y), OK);
            door.destroy();
            assert_eq!(fake.verdict(), None);
        }
    });
}
