//! What takes a process of its own: a driver that is too old to have stream ids, and one that goes before its program.
//! Each test runs a child, which is an ignored test, and does nothing unless it is requested.

use crate::remote::When;
use crate::{MIB, child, fake, folder, said, without};
use cudarc::driver::{CudaContext, CudaStream};
use millpond::cuda::{Backing, Cuda, GpuStream};
use millpond::driver::{Driver, Fences, Memory, StreamOptions};
use millpond::{Allocator, Config, DriverError, DriverErrorKind};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, c_int};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// Set for a child, to what it is to do.
const ROLE: &str = "MILLPOND_TEST_ROLE";

fn is_requested(role: &str) -> bool {
    std::env::var_os(ROLE).is_some_and(|asked| asked == role)
}

/// What children say last.
const DONE: &str = "ALL AS IT SHOULD BE";

#[test]
fn without_stream_ids_each_stream_has_a_number_and_raw_handles_are_refused() {
    if fake(When::Latest).is_none() {
        return;
    }
    let folder = folder().join("ids");
    std::fs::create_dir_all(&folder).expect("a folder");
    let old = without("cuStreamGetId", &folder);
    let environment = [(ROLE, OsStr::new("ids")), ("MILLPOND_FAKE_LIBCUDA", old.as_os_str())];
    let text = said(&child("processes::child_without_stream_ids", &environment));
    assert!(text.contains(DONE), "{text}");
    std::fs::remove_file(old).expect("removed");
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_without_stream_ids() {
    if !is_requested("ids") {
        return;
    }
    let fake = fake(When::Latest).expect("the parent says where it is");
    let cuda = Cuda::new(0).expect("an old driver will do");
    assert!(!cuda.has_stream_ids());
    let theirs = CudaContext::new(0).expect("cudarc's context");
    every_stream_has_one_number(&cuda, &theirs);
    cudarcs_calls_know_which_streams_are_held(&cuda, &theirs, &|| {
        fake.calls("cuCtxRecordEvent") + fake.calls("cuCtxSynchronize")
    });
    drop((theirs, cuda));
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
    println!("\n{DONE}");
}

#[allow(unsafe_code, reason = "raw handles are promises")]
fn every_stream_has_one_number(cuda: &Cuda, theirs: &Arc<CudaContext>) {
    let stream = || theirs.new_stream().expect("a stream");
    let adopt = |s: &Arc<CudaStream>| cuda.adopt(Arc::clone(s)).expect("adopted");
    let mut ids = HashSet::new();
    let mut is_new = |s: &GpuStream| ids.insert(s.info().id);

    let native = stream();
    let (a, b) = (adopt(&native), adopt(&native));
    assert_eq!(a.info(), b.info(), "one stream, adopted twice");
    assert!(is_new(&a));
    drop(a);
    assert_eq!(adopt(&native).info(), b.info(), "as long as one reference is left");
    assert!(is_new(&adopt(&stream())), "another stream");

    // The next stream has the handle of the one that went, and is another stream.
    let handle = native.cu_stream();
    drop((b, native));
    let next = stream();
    assert_eq!(next.cu_stream(), handle, "the stand-in's habit, or nothing is shown");
    assert!(is_new(&adopt(&next)), "a number came back with a handle");

    let lasting = stream();
    // SAFETY: the stream outlives the references of this function.
    let permanent = || unsafe { cuda.permanent_stream(lasting.cu_stream()) }.expect("declared");
    assert_eq!(permanent().info(), permanent().info(), "one stream, declared twice");
    assert!(is_new(&permanent()));

    let legacy = cuda.legacy_stream().expect("the legacy stream");
    assert_eq!(adopt(&theirs.default_stream()).info(), legacy.info());
    // SAFETY: a default stream is always alive.
    assert_eq!(unsafe { cuda.raw_stream(null_mut()) }.expect("no handle").info(), legacy.info());
    assert!(is_new(&legacy));
    let mine = cuda.per_thread_stream().expect("this thread's");
    assert_eq!(adopt(&theirs.per_thread_stream()).info(), mine.info());
    let elsewhere =
        std::thread::scope(|s| s.spawn(|| cuda.per_thread_stream().expect("that thread's")).join());
    assert!(is_new(&mine) && is_new(&elsewhere.expect("no panic")));
    // A number is kept by references to the stream, and by nothing else: threads come and go for as long as the process runs.
    let number = mine.info().id;
    assert_eq!(
        cuda.per_thread_stream().expect("again").info().id,
        number,
        "as long as one reference is left"
    );
    drop(mine);
    assert!(
        is_new(&cuda.per_thread_stream().expect("anew")),
        "a number is remembered of a stream without references"
    );
    drop(legacy);
    assert!(is_new(&cuda.legacy_stream().expect("anew")) && is_new(&permanent()), "nor of any other");
    for _ in 0..20 {
        assert!(is_new(&cuda.create_stream(StreamOptions::default()).expect("a stream")), "ours");
    }

    let refused = |e: Option<DriverError>| {
        let e = e.expect("a handle does not identify a stream");
        assert_eq!((e.call, e.code, e.kind), ("cuStreamGetId", 801, DriverErrorKind::NotSupported), "{e}");
        assert!(e.message.contains("no stream ids"), "{e}");
    };
    // SAFETY: the stream is alive.
    refused(unsafe { cuda.raw_stream(lasting.cu_stream()) }.err());
    // SAFETY: as above.
    refused(unsafe { cuda.unmanaged_stream(lasting.cu_stream()) }.err());
    // SAFETY: as above.
    refused(unsafe { cuda.raw_id(lasting.cu_stream()) }.err());
}

/// A use by cudarc on a stream that is held here is that stream's; on any other it is the whole context's.
fn cudarcs_calls_know_which_streams_are_held(
    cuda: &Cuda,
    theirs: &Arc<CudaContext>,
    marked: &dyn Fn() -> u64,
) {
    let gpu = Allocator::new(cuda.clone(), Config::default()).expect("an allocator");
    let home = gpu.stream().expect("a stream");
    let (held, unknown) = (theirs.new_stream().expect("a stream"), theirs.new_stream().expect("a stream"));
    let adopted = gpu.adopt(cuda.adopt(Arc::clone(&held)).expect("adopted")).expect("a pool");
    let alias = home.cudarc().expect("its alias");
    let uses = [(&alias, 0, "ours"), (&held, 0, "adopted"), (&unknown, 1, "unknown")];
    for ((stream, marks, whose), bytes) in uses.into_iter().zip([20 * MIB, 40 * MIB, 80 * MIB]) {
        let (x, mut y) = (
            gpu.zeros::<u32>(1000, &home).expect("an array"),
            gpu.uninit::<u32>(1000, &home).expect("an array"),
        );
        let before = marked();
        stream.memcpy_dtod(&x, &mut y).expect("copied");
        drop((x, y));
        // More than is cached, which would be had with no driver call.
        drop(gpu.alloc(bytes, &home).expect("memory"));
        assert_eq!((marked() - before).min(1), marks, "a stream that is {whose}");
    }
    drop((alias, held, unknown, adopted, home, gpu));
}

/// What a program may still have when its process ends: memory of every kind, work under way, streams, an allocator.
struct Things {
    whose: &'static str,
    cuda: Cuda,
    all: Option<Box<dyn Any + Send>>,
}

impl Things {
    fn new(whose: &'static str, cuda: Cuda, theirs: &Arc<CudaContext>) -> Things {
        let gpu = Allocator::new(cuda.clone(), Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        let native = cuda.adopt(theirs.new_stream().expect("a stream")).expect("adopted");
        let adopted = gpu.adopt(native).expect("a pool");
        let array = gpu.zeros::<u8>(5000, &s).expect("an array");
        let block = gpu.alloc(MIB, &adopted).expect("memory");
        cuda.write_pattern(adopted.native(), block.address(), MIB, 42).expect("launched");
        block.record_use(&s).expect("recorded");
        let page = gpu.alloc_pinned(4096).expect("a page");
        let download = array.to_pinned(&s).expect("queued");
        let event = s.record().expect("recorded");
        Things { whose, cuda, all: Some(Box::new((download, array, block, page, event, s, adopted, gpu))) }
    }
}

impl Drop for Things {
    fn drop(&mut self) {
        let asked = || self.cuda.calls().iter().map(|&(_, n)| n).sum::<u64>();
        let before = asked();
        drop(self.all.take());
        let farewells = asked() - before;
        assert!(farewells > 0, "destructors ask all the same");
        assert_eq!(self.cuda.deferred(), Vec::new(), "that the driver is gone is no error at the end");
        println!("{} went, {farewells} calls behind the driver", self.whose);
    }
}

thread_local! {
    static OF_THE_THREAD: RefCell<Option<Things>> = const { RefCell::new(None) };
}
static OF_THE_PROCESS: Mutex<Option<Things>> = Mutex::new(None);

extern "C" fn at_the_end() {
    drop(OF_THE_PROCESS.lock().expect("no thread panicked").take());
    println!("{DONE}");
}

/// What a thread and the process hold goes when the process ends, after the driver: nothing panics, nothing is reported, and
/// the process ends as it was going to.
#[test]
fn a_process_whose_driver_goes_first_ends_well() {
    if fake(When::Latest).is_none() {
        return;
    }
    let out = child("processes::child_outlives_its_driver", &[(ROLE, OsStr::new("end"))]);
    let text = String::from_utf8_lossy(&out.stdout);
    let errors = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), &*errors), (Some(0), ""), "{text}");
    for expected in ["the thread's went, ", "the process's went, ", DONE] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own, which it ends"]
#[allow(unsafe_code, reason = "a function of C")]
fn child_outlives_its_driver() {
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> c_int;
    }
    if !is_requested("end") {
        return;
    }
    let fake = fake(When::Latest).expect("the parent says where it is");
    let cuda = Cuda::new(0).expect("the stand-in");
    let theirs = CudaContext::new(0).expect("cudarc's context");
    let pooled = cuda.clone().backing(Backing::Async { keep: 0 }).expect("pools");
    *OF_THE_PROCESS.lock().expect("no thread panicked") = Some(Things::new("the process's", pooled, &theirs));
    OF_THE_THREAD.with_borrow_mut(|mine| *mine = Some(Things::new("the thread's", cuda, &theirs)));
    drop(theirs);
    // SAFETY: the function takes nothing and lives as long as the process.
    assert_eq!(unsafe { atexit(at_the_end) }, 0);
    fake.shut_down();
    // Nothing may bring it back.
    std::mem::forget(fake);
    // The thread's destructors first, then what was registered with `atexit`.
    std::process::exit(0);
}
