//! The C interface as a program uses it: the built library, loaded at run time, over the stand-in driver and its oracle. Pointers
//! that were freed, were never allocated or belong to another allocator; streams that end; many threads; calls after an allocator's end.

#![allow(unsafe_code, reason = "functions of a library, found by name")]
#![allow(clippy::many_single_char_names, reason = "streams s, t and blocks x, y, as in the traces")]

#[path = "abi/captures.rs"]
mod captures;
#[path = "abi/crowds.rs"]
mod crowds;
#[path = "../../testkit/src/effort.rs"]
#[allow(dead_code, unreachable_pub, reason = "a module of tests")]
mod effort;
#[path = "abi/ended.rs"]
mod ended;
mod figures;
mod fresh;
#[path = "abi/later.rs"]
mod later;
#[path = "abi/most.rs"]
mod most;
#[path = "abi/old.rs"]
mod old;
#[path = "abi/permanent.rs"]
mod permanent;
#[cfg(millpond_mutants)]
#[path = "abi/planted.rs"]
mod planted;
#[path = "../../tests/fake_libcuda/remote.rs"]
mod remote;
#[path = "abi/same.rs"]
mod same;
#[path = "abi/threads.rs"]
mod threads;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "abi/without_membarrier.rs"]
mod without_membarrier;

use cudarc::driver::sys;
use libloading::{Library, Symbol};
use pond::cuda::{Cuda, GpuStream};
use pond::driver::Fences;
use remote::{Fake, When};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::LazyLock;

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;

const OK: c_int = 0;
const OUT_OF_MEMORY: c_int = 1;
const UNKNOWN_POINTER: c_int = 2;
const WRONG_ALLOCATOR: c_int = 3;
const BAD_ARGUMENT: c_int = 4;
const UNKNOWN_ALLOCATOR: c_int = 5;
const CAPTURING: c_int = 6;
const NO_DEVICE: c_int = 7;

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    // SAFETY: the library's initialisers are Rust's own.
    unsafe { Library::new(fresh::library()) }.expect("it loads")
});

/// The functions of the library that is linked into this program.
macro_rules! linked {
    ($($room:ident: $($name:ident)*;)*) => {
        &[$($((stringify!($name), millpond_plug::$room::$name as *const ()),)*)*]
    };
}
fn linked(name: &str) -> Option<*const ()> {
    let all: &[(&str, *const ())] = linked! {
        ffi: millpond_create millpond_destroy millpond_release millpond_alloc millpond_free millpond_free_on millpond_free_unknown
            millpond_free_after millpond_find millpond_record_use millpond_declare_permanent millpond_synchronize millpond_trim millpond_set_limit millpond_stats_json
            millpond_last_error millpond_alloc_pinned millpond_free_pinned millpond_free_pinned_unknown
            millpond_record_pinned_use;
        torch: millpond_torch_allocator millpond_torch_alloc millpond_torch_free millpond_torch_record_stream
            millpond_torch_empty_cache millpond_torch_base millpond_torch_memory_fraction millpond_torch_untold;
    };
    all.iter().find(|(n, _)| *n == name).map(|&(_, at)| at)
}

/// A function of the library: of the one that cargo built, loaded as a program does, or with `MILLPOND_LINKED` of the one linked
/// into this program, so that a sanitizer, whose runtime is in the program, instruments its code.
fn function<T: Copy>(name: &str) -> T {
    const { assert!(size_of::<T>() == size_of::<*const ()>(), "a pointer to a function") };
    if std::env::var_os("MILLPOND_LINKED").is_some() {
        let at = linked(name).unwrap_or_else(|| panic!("{name} is not in the list of what is linked"));
        // SAFETY: every caller names a function of the header with its own type.
        return unsafe { std::mem::transmute_copy(&at) };
    }
    // SAFETY: as above.
    *unsafe { LIBRARY.get(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// An allocator of the library, by its number.
#[derive(Clone, Copy)]
struct Door(u32);

type Two = extern "C" fn(u32, *mut c_void) -> c_int;
type Three = extern "C" fn(u32, *mut c_void, *mut c_void) -> c_int;

impl Door {
    fn new(options: &str) -> Door {
        Door::on(0, options).expect("an allocator")
    }
    fn on(device: c_int, options: &str) -> Result<Door, c_int> {
        let create = function::<extern "C" fn(c_int, *const c_char, *mut u32) -> c_int>("millpond_create");
        let options = CString::new(options).expect("words");
        let mut number = 99;
        match create(device, options.as_ptr(), &raw mut number) {
            OK => Ok(Door(number)),
            code => {
                assert_eq!(number, 0, "a failed call stores no number");
                Err(code)
            }
        }
    }
    fn try_alloc(self, bytes: usize, s: &GpuStream) -> Result<*mut c_void, c_int> {
        let alloc =
            function::<extern "C" fn(u32, usize, *mut c_void, *mut *mut c_void) -> c_int>("millpond_alloc");
        let mut ptr = null_mut();
        match alloc(self.0, bytes, s.handle().cast(), &raw mut ptr) {
            OK => Ok(ptr),
            code => {
                assert!(ptr.is_null() && !last().is_empty(), "a failed call leaves a message and no pointer");
                Err(code)
            }
        }
    }
    fn alloc(self, bytes: usize, s: &GpuStream) -> *mut c_void {
        self.try_alloc(bytes, s).unwrap_or_else(|code| panic!("{code}: {}", last()))
    }
    fn free(self, ptr: *mut c_void) -> c_int {
        function::<Two>("millpond_free")(self.0, ptr)
    }
    fn free_on(self, ptr: *mut c_void, s: &GpuStream) -> c_int {
        function::<Three>("millpond_free_on")(self.0, ptr, s.handle().cast())
    }
    fn free_unknown(self, ptr: *mut c_void) -> c_int {
        function::<Two>("millpond_free_unknown")(self.0, ptr)
    }
    fn record_use(self, ptr: *mut c_void, s: &GpuStream) -> c_int {
        function::<Three>("millpond_record_use")(self.0, ptr, s.handle().cast())
    }
    fn declare_permanent(self, s: &GpuStream) {
        assert_eq!(
            function::<Two>("millpond_declare_permanent")(self.0, s.handle().cast()),
            OK,
            "{}",
            last()
        );
    }
    fn one(self, name: &str) -> c_int {
        function::<extern "C" fn(u32) -> c_int>(name)(self.0)
    }
    fn trim(self) -> c_int {
        function::<extern "C" fn(u32, *mut usize) -> c_int>("millpond_trim")(self.0, null_mut())
    }
    fn stats(self) -> String {
        let stats =
            function::<extern "C" fn(u32, *mut c_char, usize, *mut usize) -> c_int>("millpond_stats_json");
        let mut needed = 0;
        assert_eq!(stats(self.0, null_mut(), 0, &raw mut needed), OK);
        let mut text = vec![b'x'; needed];
        assert_eq!(stats(self.0, text.as_mut_ptr().cast(), needed, null_mut()), OK);
        assert_eq!(text.pop(), Some(0), "it ends with a zero");
        String::from_utf8(text).expect("text")
    }
    /// A figure of the report.
    fn stat(self, name: &str) -> u64 {
        figures::field(&self.stats(), name)
    }
    /// What the allocator holds back, of device memory.
    fn held_back(self) -> u64 {
        let stats = self.stats();
        // The total comes last.
        let (_, behind) = stats.rsplit_once("\"held_back\":").expect("the report has it");
        behind.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("a number")
    }
    fn destroy(self) {
        assert_eq!(self.one("millpond_destroy"), OK, "{}", last());
    }
}

fn last() -> String {
    let text = function::<extern "C" fn() -> *const c_char>("millpond_last_error")();
    // SAFETY: never null, and it stays until the thread's next failure.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Runs a test in a process of its own: the library's allocators last as long as a process, and so would their driver.
fn alone(test: &str, body: impl FnOnce(&Fake)) {
    alone_on(test, |whole| whole, body);
}

/// The same, over the library file that `made` makes from the stand-in's before the child process starts.
fn alone_on(test: &str, made: impl FnOnce(PathBuf) -> PathBuf, body: impl FnOnce(&Fake)) {
    const HERE: &str = "MILLPOND_ALONE";
    if std::env::var(HERE).is_ok_and(|t| t == test) {
        body(&fake(When::Latest).expect("it was found before"));
    } else if fake(When::Latest).is_some() {
        let exe = std::env::current_exe().expect("a test has a path");
        let driver = made(remote::path().expect("it was found before"));
        let mut run = std::process::Command::new(exe);
        run.args(["--exact", test, "--nocapture"]).env(HERE, test).env("MILLPOND_FAKE_LIBCUDA", driver);
        let run = run.output().expect("it runs");
        let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
    }
}

fn fake(when: When) -> Option<Fake> {
    remote::fake_or_skip(GIB, 2, when)
}

/// The program's own side: its streams and kernels, by a second copy of the backend.
fn program() -> Cuda {
    Cuda::new(0).expect("the stand-in")
}
fn stream(cuda: &Cuda) -> GpuStream {
    cuda.create_stream(pond::driver::StreamOptions::default()).expect("a stream")
}
/// Queues work of the program's own that writes the bytes.
fn write(cuda: &Cuda, s: &GpuStream, ptr: *mut c_void, bytes: usize, word: u64) {
    bind(cuda);
    let set = function_of_driver::<extern "C" fn(u64, u8, usize, sys::CUstream) -> c_int>("cuMemsetD8Async");
    assert_eq!(set(ptr.addr() as u64, word as u8, bytes, s.handle()), 0, "queued");
}
/// Queues work that reads them, into memory of the program's own that is never given back.
fn read(cuda: &Cuda, s: &GpuStream, ptr: *mut c_void, bytes: usize) {
    bind(cuda);
    let alloc = function_of_driver::<extern "C" fn(*mut u64, usize) -> c_int>("cuMemAlloc_v2");
    let copy =
        function_of_driver::<extern "C" fn(u64, u64, usize, sys::CUstream) -> c_int>("cuMemcpyDtoDAsync_v2");
    let mut own = 0;
    assert_eq!(alloc(&raw mut own, bytes), 0, "room");
    assert_eq!(copy(own, ptr.addr() as u64, bytes, s.handle()), 0, "queued");
}
fn bind(cuda: &Cuda) {
    let bind = function_of_driver::<extern "C" fn(*mut c_void) -> c_int>("cuCtxSetCurrent");
    assert_eq!(bind(cuda.context().cast()), 0);
}

/// A variable whose value is not valid UTF-8 is an error and not ignored. An option of the call takes precedence over it.
#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    alone("a_variable_that_is_no_text_is_refused", |_fake| {
        for (name, option) in [("MILLPOND_CAPTURES", "captures=none"), ("MILLPOND_LIMIT", "limit=none")] {
            // SAFETY: this process runs nothing but this test, and its other threads read no variable meanwhile.
            unsafe { std::env::set_var(name, std::ffi::OsStr::from_bytes(b"none\xFF")) };
            assert_eq!(Door::on(0, "").err(), Some(BAD_ARGUMENT), "{name}");
            assert!(last().contains(name) && last().contains("expected text in UTF-8"), "{}", last());
            assert!(Door::on(0, option).is_ok(), "the option takes precedence: {}", last());
            // SAFETY: as above.
            unsafe { std::env::remove_var(name) };
        }
    });
}

#[test]
fn wrong_pointers_are_codes_and_change_nothing() {
    alone("wrong_pointers_are_codes_and_change_nothing", |_fake| {
        let cuda = program();
        let (s, door, other) = (stream(&cuda), Door::new(""), Door::new(""));
        let x = door.alloc(MIB, &s);
        let freed = door.alloc(MIB, &s);
        assert_eq!(door.free(freed), OK);
        let before = door.stats();
        let inside = x.wrapping_byte_add(512);
        let wrong = [
            freed,
            inside,
            x.wrapping_byte_add(1),
            0x1234_5600 as *mut c_void,
            !0 as *mut c_void,
            512 as *mut c_void,
        ];
        for ptr in wrong {
            for code in
                [door.free(ptr), door.free_on(ptr, &s), door.free_unknown(ptr), door.record_use(ptr, &s)]
            {
                assert_eq!(code, UNKNOWN_POINTER, "{ptr:p}");
                assert!(last().contains("no live allocation"), "{}", last());
            }
        }
        for code in [other.free(x), other.free_on(x, &s), other.free_unknown(x), other.record_use(x, &s)] {
            assert_eq!(code, WRONG_ALLOCATOR);
        }
        assert_eq!(door.stats(), before);
        // Null is accepted and nothing is freed, as with free().
        assert_eq!(
            [door.free(null_mut()), door.free_on(null_mut(), &s), door.free_unknown(null_mut())],
            [OK; 3]
        );
        assert_eq!(door.record_use(null_mut(), &s), OK);
        assert_eq!(door.free(x), OK);
        assert_eq!(door.free(x), UNKNOWN_POINTER, "a double free");
        door.destroy();
        other.destroy();
    });
}

#[test]
fn wrong_arguments_are_codes() {
    alone("wrong_arguments_are_codes", |_fake| {
        let cuda = program();
        let s = stream(&cuda);
        assert_eq!(Door::on(-1, "").err(), Some(BAD_ARGUMENT));
        assert_eq!(Door::on(7, "").err(), Some(NO_DEVICE), "{}", last());
        for options in ["limit", "size=3", "limit=much", "policy=best", "limit=10%,,x=1"] {
            assert_eq!(Door::on(0, options).err(), Some(BAD_ARGUMENT), "{options}: {}", last());
        }
        let create = function::<extern "C" fn(c_int, *const c_char, *mut u32) -> c_int>("millpond_create");
        assert_eq!(create(0, null(), null_mut()), BAD_ARGUMENT);
        let door = Door::new("limit=64MiB, policy=footprint");
        assert_eq!(door.try_alloc(0, &s), Ok(null_mut()), "zero bytes give a null pointer");
        for bytes in [usize::MAX, usize::MAX - 511, 1 << 62] {
            assert_eq!(door.try_alloc(bytes, &s), Err(OUT_OF_MEMORY), "{}", last());
        }
        assert_eq!(door.try_alloc(65 * MIB, &s), Err(OUT_OF_MEMORY));
        assert!(last().contains("limit of 64.0 MiB"), "{}", last());
        let set = function::<extern "C" fn(u32, *const c_char) -> c_int>("millpond_set_limit");
        assert_eq!(set(door.0, c"some".as_ptr()), BAD_ARGUMENT);
        assert_eq!(set(door.0, c"128MiB".as_ptr()), OK);
        let x = door.alloc(65 * MIB, &s);
        assert_eq!(door.free(x), OK);
        for unknown in [0, 4000, u32::MAX] {
            let unknown = Door(unknown);
            assert_eq!(unknown.try_alloc(1, &s), Err(UNKNOWN_ALLOCATOR));
            assert_eq!(
                [unknown.free(x), unknown.trim(), unknown.one("millpond_destroy")],
                [UNKNOWN_ALLOCATOR; 3]
            );
        }
        door.destroy();
    });
}

/// Another stream reads the bytes while `free` frees them and their next owner writes them: the oracle reports this unless the allocator
/// knows of that use.
fn two_streams(fake: &Fake, free: impl FnOnce(Door, *mut c_void, &GpuStream)) -> Option<String> {
    let cuda = program();
    let (s, t, door) = (stream(&cuda), stream(&cuda), Door::new("limit=2MiB,growth=exact"));
    let x = door.alloc(2 * MIB, &s);
    write(&cuda, &s, x, 2 * MIB, 1);
    let event = cuda.create_event().expect("an event");
    cuda.record(&event, &s).expect("recorded");
    cuda.wait(&t, &event).expect("queued");
    read(&cuda, &t, x, 2 * MIB);
    free(door, x, &t);
    let y = door.try_alloc(2 * MIB, &s).unwrap_or_else(|code| {
        // t is not declared permanent: its use is known to be complete only after a call that names t. Where the users are unknown, only a
        // synchronise shows it.
        assert_eq!((code, door.try_alloc(1, &t)), (OUT_OF_MEMORY, Err(OUT_OF_MEMORY)));
        door.try_alloc(2 * MIB, &s).unwrap_or_else(|_| {
            assert_eq!(door.one("millpond_synchronize"), OK);
            door.alloc(2 * MIB, &s)
        })
    });
    assert_eq!(y, x, "without the same bytes the test shows nothing");
    write(&cuda, &s, y, 2 * MIB, 2);
    assert_eq!(door.free(y), OK);
    door.destroy();
    fake.verdict()
}

macro_rules! known_uses {
    ($($name:ident: $free:expr;)*) => {$(
        #[test]
        fn $name() {
            alone(stringify!($name), |fake| assert_eq!(two_streams(fake, $free), None));
        }
    )*};
}
known_uses! {
    a_recorded_use_is_respected: |door, x, t| assert_eq!([door.record_use(x, t), door.free(x)], [OK; 2]);
    a_free_on_another_stream_is_a_use: |door, x, t| assert_eq!(door.free_on(x, t), OK);
    a_free_by_unknown_streams_waits_for_everything: |door, x, _| assert_eq!(door.free_unknown(x), OK);
    a_use_by_a_permanent_stream_is_respected: |door, x, t| {
        door.declare_permanent(t);
        assert_eq!([door.record_use(x, t), door.free(x)], [OK; 2]);
    };
}

#[test]
fn a_use_that_was_not_recorded_is_caught() {
    alone("a_use_that_was_not_recorded_is_caught", |fake| {
        let verdict = two_streams(fake, |door, x, _| assert_eq!(door.free(x), OK));
        assert!(verdict.is_some(), "the oracle misses an unrecorded use, so the tests above show nothing");
    });
}

/// A stream ends with work pending, the next stream gets its handle, and others get its memory, in stream order.
#[test]
fn streams_that_end_unannounced_are_followed() {
    alone("streams_that_end_unannounced_are_followed", |fake| {
        let cuda = program();
        let door = Door::new("limit=8MiB,growth=exact");
        let mut handles = Vec::new();
        let keeper = stream(&cuda);
        for round in 0..40_u64 {
            let s = stream(&cuda);
            handles.push(s.handle().addr());
            let x = door.try_alloc(4 * MIB, &s).unwrap_or_else(|code| {
                assert_eq!(code, OUT_OF_MEMORY);
                assert_eq!([door.one("millpond_synchronize"), door.trim()], [OK; 2]);
                door.alloc(4 * MIB, &s)
            });
            write(&cuda, &s, x, 4 * MIB, round);
            if round % 3 == 0 {
                // Freed on a stream that ends.
                let t = stream(&cuda);
                assert_eq!(door.free_on(x, &t), OK);
            } else {
                assert_eq!(door.free(x), OK);
            }
            drop(s);
            if round % 5 == 0 {
                // Idle segments of another size go back in a trim, and in no request.
                assert_eq!([door.one("millpond_synchronize"), door.trim()], [OK; 2]);
                let y = door.alloc(8 * MIB, &keeper);
                write(&cuda, &keeper, y, 8 * MIB, !round);
                assert_eq!(door.free(y), OK);
            }
        }
        handles.sort_unstable();
        let made = handles.len();
        handles.dedup();
        assert!(
            handles.len() < made / 2,
            "too few handles were reused for the test to show anything: {} of {made}",
            handles.len()
        );
        drop(keeper);
        door.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// The driver calls of an allocation and its free. For a permanent stream: whether it captures. For another stream also its id, and both
/// again at a free that names it, which records a marker and checks once more whether it captures. No other call is made if the thread
/// has a current context; if it has none, the check is made a second time with a context bound.
#[test]
fn a_hit_queries_the_streams_id_and_nothing_else() {
    alone("a_hit_queries_the_streams_id_and_nothing_else", |fake| {
        let cuda = program();
        let (s, t, door) = (stream(&cuda), stream(&cuda), Door::new(""));
        door.declare_permanent(&s);
        let counted = |s: &GpuStream| {
            for _ in 0..3 {
                assert_eq!(door.free_on(door.alloc(MIB, s), s), OK);
            }
            let count =
                || [fake.calls("cuStreamIsCapturing"), fake.calls("cuStreamGetId"), fake.calls_total()];
            let before = count();
            for _ in 0..100 {
                assert_eq!(door.free_on(door.alloc(MIB, s), s), OK);
            }
            let after = count();
            [0, 1, 2].map(|n| after[n] - before[n])
        };
        // This thread has no current context, so the stand-in refuses the check: it is repeated with a context bound, which is then unbound.
        let [asked, ids, _] = counted(&s);
        assert_eq!([asked, ids], [200, 0], "a permanent stream, from a thread without a context");
        bind(&cuda);
        assert_eq!(counted(&s), [100, 0, 100], "a permanent stream");
        let calls = || fake.calls_total();
        door.free(door.alloc(MIB, &t));
        let before = calls();
        for _ in 0..100 {
            door.free(door.alloc(MIB, &t));
        }
        assert_eq!(calls() - before, 200, "a stream that may end");
        let recorded = fake.calls("cuEventRecord");
        let [asked, ids, all] = counted(&t);
        assert_eq!([asked, ids], [300, 200], "a stream that may end, named at the free");
        assert_eq!(fake.calls("cuEventRecord") - recorded, 103);
        assert!(all <= 1000, "including what the markers need: {all}");
        door.destroy();
    });
}

#[test]
fn a_capturing_stream_is_refused_and_its_capture_lives() {
    alone("a_capturing_stream_is_refused_and_its_capture_lives", |fake| {
        fake.reset(GIB, 2, When::Earliest);
        let cuda = program();
        let (s, door) = (stream(&cuda), Door::new(""));
        let x = door.alloc(MIB, &s);
        let begin =
            function_of_driver::<extern "C" fn(sys::CUstream, c_int) -> c_int>("cuStreamBeginCapture_v2");
        let end = function_of_driver::<extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> c_int>(
            "cuStreamEndCapture",
        );
        bind(&cuda);
        assert_eq!(begin(s.handle(), 2), 0);
        assert_eq!(door.try_alloc(MIB, &s), Err(CAPTURING), "{}", last());
        assert_eq!(door.record_use(x, &s), CAPTURING);
        let mut graph = null_mut();
        assert_eq!(end(s.handle(), &raw mut graph), 0, "the capture lives");
        assert!(!graph.is_null());
        assert_eq!(door.free(x), OK);
        door.destroy();
    });
}

fn function_of_driver<T>(name: &str) -> Symbol<'static, T> {
    static DRIVER: LazyLock<Library> = LazyLock::new(|| {
        // SAFETY: loaded already.
        unsafe { Library::new(remote::path().expect("built")) }.expect("the stand-in")
    });
    // SAFETY: the caller names a function of the driver with its own type.
    unsafe { DRIVER.get(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Many threads, each with a stream, free each other's blocks, and some pointers twice.
#[test]
fn threads_free_each_others_blocks_once() {
    alone("threads_free_each_others_blocks_once", |fake| {
        fake.reset(GIB, 2, When::Earliest);
        let cuda = program();
        let door = Door::new("");
        let (send, receive) = std::sync::mpsc::channel::<usize>();
        let receive = std::sync::Mutex::new(receive);
        // These belong to an allocator that allocates nothing meanwhile, so that no thread gets a freed address again.
        let other = Door::new("");
        let s = stream(&cuda);
        let dead: Vec<usize> = (0..4 * 19).map(|_| other.alloc(512, &s).addr()).collect();
        std::thread::scope(|scope| {
            for seed in 0..4_usize {
                let (cuda, send, receive, dead) = (&cuda, send.clone(), &receive, &dead);
                scope.spawn(move || {
                    let s = stream(cuda);
                    for round in 0..300 {
                        let x = door.alloc(512 + (round * 7919 + seed * 104_729) % MIB, &s);
                        send.send(x.addr()).expect("open");
                        let got = receive.lock().expect("no panic").recv().expect("one was sent");
                        assert_eq!(door.free(got as *mut c_void), OK, "{}", last());
                        if round % 16 == 0 {
                            let dead = dead[seed * 19 + round / 16] as *mut c_void;
                            let codes = [other.free(dead), other.free(dead), door.free(dead)];
                            assert_eq!(
                                codes,
                                [OK, UNKNOWN_POINTER, UNKNOWN_POINTER],
                                "a second free of the same pointer"
                            );
                        }
                    }
                });
            }
            drop(send);
        });
        assert_eq!([door, other].map(|d| d.stat("live")), [0, 0]);
        door.destroy();
        other.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// A pointer or a stream of one device, passed to the other device's allocator: an error code, and nothing changes.
#[test]
fn devices_are_not_mixed_up() {
    alone("devices_are_not_mixed_up", |fake| {
        let cudas = [0, 1].map(|d| Cuda::new(d).expect("two devices"));
        let doors = [0, 1].map(|d| Door::on(d, "").expect("an allocator"));
        let streams = [stream(&cudas[0]), stream(&cudas[1])];
        let blocks = [0, 1].map(|d| doors[d].alloc(MIB, &streams[d]));
        for d in [0, 1] {
            write(&cudas[d], &streams[d], blocks[d], MIB, 1);
        }
        assert_ne!(blocks[0], blocks[1], "both devices share one address space");
        // The report without the counts of driver calls.
        let report =
            || doors.map(|d| d.stats().split_once("\"growths\"").expect("it follows the calls").1.to_owned());
        let before = report();
        for (here, there) in [(0, 1), (1, 0)] {
            let (door, x, s) = (doors[here], blocks[there], &streams[here]);
            for code in [door.free(x), door.free_on(x, s), door.free_unknown(x), door.record_use(x, s)] {
                assert_eq!(code, WRONG_ALLOCATOR, "{}", last());
            }
            let (x, foreign) = (blocks[here], &streams[there]);
            for code in [door.free_on(x, foreign), door.record_use(x, foreign)] {
                assert_eq!(code, WRONG_ALLOCATOR, "{}", last());
            }
            assert_eq!(door.try_alloc(MIB, foreign), Err(WRONG_ALLOCATOR));
            let declare = function::<Two>("millpond_declare_permanent");
            assert_eq!(declare(door.0, foreign.handle().cast()), WRONG_ALLOCATOR);
            assert_eq!(report(), before);
        }
        for d in [0, 1] {
            assert_eq!(doors[d].free(blocks[d]), OK);
            doors[d].destroy();
        }
        assert_eq!(fake.verdict(), None);
    });
}

/// A tensor is used by another device's stream, and `PyTorch` records that before it queues the work.
#[test]
fn the_pair_follows_another_devices_stream() {
    alone("the_pair_follows_another_devices_stream", |fake| {
        let alloc = function::<extern "C-unwind" fn(usize, c_int, *mut c_void) -> *mut c_void>(
            "millpond_torch_alloc",
        );
        let free = function::<extern "C" fn(*mut c_void, usize, c_int, *mut c_void)>("millpond_torch_free");
        let record = function::<extern "C" fn(*mut c_void, *mut c_void)>("millpond_torch_record_stream");
        let unreported = function::<extern "C" fn() -> u64>("millpond_torch_untold");
        let of =
            function::<extern "C" fn(c_int, *const c_char, *mut u32) -> c_int>("millpond_torch_allocator");
        let door = |d| {
            let mut number = 0;
            assert_eq!(of(d, c"limit=2MiB,growth=exact".as_ptr(), &raw mut number), OK, "{}", last());
            Door(number)
        };
        let cudas = [0, 1].map(|d| Cuda::new(d).expect("two devices"));
        let (s, t) = (stream(&cudas[0]), stream(&cudas[1]));
        // PyTorch has no allocator on that device yet: the use is counted as failed, and the free comes after everything on its own device.
        let here = door(0);
        here.declare_permanent(&s);
        let x = alloc(2 * MIB, 0, s.handle().cast());
        record(x, t.handle().cast());
        free(x, 2 * MIB, 0, s.handle().cast());
        assert_eq!((unreported(), here.held_back()), (1, 2 * MIB as u64));
        assert_eq!(here.one("millpond_synchronize"), OK);
        door(1).declare_permanent(&t);
        let used = |recorded: bool, plain: bool| {
            let x = alloc(2 * MIB, 0, s.handle().cast());
            if recorded {
                record(x, t.handle().cast());
            }
            let event = cudas[0].create_event().expect("an event");
            cudas[0].record(&event, &s).expect("recorded");
            cudas[1].wait(&t, &event).expect("queued");
            write(&cudas[1], &t, x, 2 * MIB, 1);
            if plain {
                assert_eq!(here.free(x), OK);
            } else {
                free(x, 2 * MIB, 0, s.handle().cast());
            }
            let y = alloc(2 * MIB, 0, s.handle().cast());
            assert_eq!(y, x, "without the same bytes the test shows nothing");
            write(&cudas[0], &s, y, 2 * MIB, 2);
            free(y, 2 * MIB, 0, s.handle().cast());
            fake.verdict()
        };
        assert_eq!(used(true, false), None);
        assert_eq!(used(true, true), None, "freed by millpond_free");
        assert_eq!(unreported(), 1);
        assert!(
            used(false, false).is_some(),
            "an unrecorded use must be reported, or the rest shows nothing"
        );
    });
}

/// `PyTorch`'s functions with two devices: each has its own allocator, and a call that mixes them up is counted and changes nothing.
#[test]
fn the_pair_keeps_two_devices_apart() {
    alone("the_pair_keeps_two_devices_apart", |fake| {
        let alloc = function::<extern "C-unwind" fn(usize, c_int, *mut c_void) -> *mut c_void>(
            "millpond_torch_alloc",
        );
        let free = function::<extern "C" fn(*mut c_void, usize, c_int, *mut c_void)>("millpond_torch_free");
        let record = function::<extern "C" fn(*mut c_void, *mut c_void)>("millpond_torch_record_stream");
        let unreported = function::<extern "C" fn() -> u64>("millpond_torch_untold");
        let of =
            function::<extern "C" fn(c_int, *const c_char, *mut u32) -> c_int>("millpond_torch_allocator");
        let doors = [0, 1].map(|d| {
            let mut number = 0;
            assert_eq!(of(d, c"growth=exact".as_ptr(), &raw mut number), OK, "{}", last());
            Door(number)
        });
        assert_ne!(doors[0].0, doors[1].0);
        let cudas = [0, 1].map(|d| Cuda::new(d).expect("two devices"));
        let streams = [stream(&cudas[0]), stream(&cudas[1])];
        let native = |d: usize| streams[d].handle().cast::<c_void>();
        let [x, y] = [(0, 0), (1, 1)].map(|(device, d)| alloc(MIB, device, native(d)));
        for (d, block) in [(0, x), (1, y)] {
            write(&cudas[d], &streams[d], block, MIB, 1);
            assert_eq!((doors[d].stat("live"), doors[d].stat("reserved")), (1, MIB as u64));
        }
        free(x, MIB, 1, native(1));
        free(y, MIB, 0, native(0));
        assert_eq!(
            (unreported(), doors[0].stat("live"), doors[1].stat("live")),
            (2, 1, 1),
            "a pointer of the other device"
        );
        record(x, native(1));
        assert_eq!(unreported(), 2, "the other device's stream is found there");
        // A free that names a stream of the wrong device is not lost: the memory is freed after all work on its own device.
        free(x, MIB, 0, native(1));
        free(y, MIB, 1, native(1));
        assert_eq!((unreported(), doors[0].stat("live"), doors[1].stat("live")), (2, 0, 0));
        // A stream of the other device cannot be marked while it captures: the memory is not freed until it can be, and the use on the stream that
        // does not capture is not forgotten meanwhile. An earlier version freed it behind its own device's work alone, so it was reused while read.
        let more = [stream(&cudas[1]), stream(&cudas[1])];
        let [other, third] = [0, 1].map(|n| more[n].handle().cast::<c_void>());
        for recorded_in_capture in [false, true] {
            let z = alloc(MIB, 0, native(0));
            if recorded_in_capture {
                captures::begin(&more[0]);
            }
            record(z, other);
            record(z, third);
            if !recorded_in_capture {
                captures::begin(&more[0]);
            }
            let before = unreported();
            free(z, MIB, 0, native(0));
            assert_eq!((unreported(), doors[0].stat("live")), (before + 1, 1), "counted, and not freed");
            free(z, MIB, 0, native(0));
            assert_eq!((unreported(), doors[0].stat("live")), (before + 2, 1), "a second free of it");
            assert_eq!([doors[0].free(z), doors[0].free_unknown(z)], [UNKNOWN_POINTER; 2], "by any function");
            assert!(captures::end(&more[0]), "the capture lives");
            let w = alloc(MIB, 0, native(0));
            free(w, MIB, 0, native(0));
            assert_eq!(
                (unreported(), doors[0].stat("live")),
                (before + 2, 0),
                "the next free carries it out"
            );
        }
        // No other function frees it meanwhile: the call is refused and changes nothing.
        let z = alloc(MIB, 0, native(0));
        record(z, other);
        captures::begin(&more[0]);
        let refused = [doors[0].free(z), doors[0].free_on(z, &streams[0]), doors[0].free_unknown(z)];
        assert_eq!((refused, doors[0].stat("live")), ([CAPTURING; 3], 1), "{}", last());
        assert!(captures::end(&more[0]), "the capture lives");
        assert_eq!((doors[0].free(z), doors[0].stat("live")), (OK, 0));
        function::<extern "C" fn()>("millpond_torch_empty_cache")();
        assert_eq!(doors.map(|d| d.stat("reserved")), [0, 0]);
        // The internal stream with which an allocator waits for other devices' streams is destroyed with it.
        let there_are = || fake.leaks().unwrap_or_default().matches("SimStream").count();
        let before = there_are();
        doors[0].destroy();
        assert_eq!((before - there_are(), fake.verdict()), (1, None));
    });
}

#[test]
fn a_stream_that_was_declared_permanent_and_ended_is_found_out() {
    alone("a_stream_that_was_declared_permanent_and_ended_is_found_out", |_fake| {
        let (cuda, door) = (program(), Door::new(""));
        let declare =
            |s: &GpuStream| function::<Two>("millpond_declare_permanent")(door.0, s.handle().cast());
        let s = stream(&cuda);
        assert_eq!([declare(&s), declare(&s)], [OK, OK], "declared twice");
        let handle = s.handle();
        drop(s);
        let mut others = Vec::new();
        while others.last().is_none_or(|s: &GpuStream| s.handle() != handle) {
            others.push(stream(&cuda));
            assert!(others.len() < 100, "the handle is not reused");
        }
        assert_eq!(declare(others.last().expect("one has it")), BAD_ARGUMENT);
        assert!(last().contains("another one has its handle"), "{}", last());
        door.destroy();
    });
}

/// More permanent streams than the table of their handles has places: the others are found in the ordinary way.
#[test]
fn permanent_streams_may_be_many() {
    alone("permanent_streams_may_be_many", |fake| {
        let (cuda, door) = (program(), Door::new(""));
        let streams: Vec<_> = (0..600).map(|_| stream(&cuda)).collect();
        for s in &streams {
            door.declare_permanent(s);
        }
        bind(&cuda);
        for s in &streams {
            assert_eq!(door.free_on(door.alloc(512, s), s), OK);
        }
        let before = fake.calls("cuStreamGetId");
        for s in &streams {
            assert_eq!(door.free_on(door.alloc(512, s), s), OK);
        }
        assert_eq!(fake.calls("cuStreamGetId"), before, "all are known by their handles");
        door.destroy();
    });
}

/// Pinned memory that a copy still reads when it is freed is not handed out again until the copy is complete.
#[test]
fn pinned_memory_comes_back_when_its_copies_are_done() {
    alone("pinned_memory_comes_back_when_its_copies_are_done", |fake| {
        let (cuda, door) = (program(), Door::new(""));
        let s = stream(&cuda);
        let target = door.alloc(MIB, &s);
        let pinned = |bytes: usize| {
            let mut out = null_mut();
            let alloc =
                function::<extern "C" fn(u32, usize, *mut *mut c_void) -> c_int>("millpond_alloc_pinned");
            assert_eq!(alloc(door.0, bytes, &raw mut out), OK, "{}", last());
            out
        };
        let copy = function_of_driver::<extern "C" fn(u64, *const c_void, usize, sys::CUstream) -> c_int>(
            "cuMemcpyHtoDAsync_v2",
        );
        let send = |from: *mut c_void| {
            bind(&cuda);
            assert_eq!(copy(target.addr() as u64, from, MIB, s.handle()), 0, "queued");
        };
        let free = |name: &str, ptr: *mut c_void| function::<Two>(name)(door.0, ptr);
        let record = function::<Three>("millpond_record_pinned_use");
        // The device runs as late as it may: what is queued has not run.
        let x = pinned(MIB);
        send(x);
        assert_eq!(free("millpond_free_pinned_unknown", x), OK);
        let y = pinned(MIB);
        assert_ne!(y, x, "freed with unknown users");
        send(y);
        assert_eq!(record(door.0, y, s.handle().cast()), OK);
        assert_eq!(free("millpond_free_pinned", y), OK);
        let z = pinned(MIB);
        assert!(z != x && z != y, "freed behind a recorded use");
        assert_eq!(free("millpond_free_pinned", z), OK);
        assert_eq!(pinned(MIB), z, "no use is pending");
        for wrong in [x, y, z.wrapping_byte_add(512), target] {
            assert_eq!(free("millpond_free_pinned", wrong), UNKNOWN_POINTER);
            assert_eq!(free("millpond_free_pinned_unknown", wrong), UNKNOWN_POINTER);
            assert_eq!(record(door.0, wrong, s.handle().cast()), UNKNOWN_POINTER);
        }
        assert_eq!(
            [free("millpond_free_pinned", null_mut()), free("millpond_free", z)],
            [OK, UNKNOWN_POINTER]
        );
        assert_eq!(door.one("millpond_synchronize"), OK);
        // Pinned memory of another allocator gets that code from every function, as device memory does.
        let other = Door::new("");
        let theirs = |name: &str, door: Door, ptr| function::<Two>(name)(door.0, ptr);
        let live = pinned(512);
        for name in ["millpond_free_pinned", "millpond_free_pinned_unknown"] {
            assert_eq!(theirs(name, other, live), WRONG_ALLOCATOR, "{}", last());
            assert!(last().contains("pinned memory of allocator"), "{}", last());
            assert_eq!(
                theirs(name, other, live.wrapping_byte_add(512)),
                UNKNOWN_POINTER,
                "no allocator has it"
            );
        }
        assert_eq!(record(other.0, live, s.handle().cast()), WRONG_ALLOCATOR, "{}", last());
        other.destroy();
        assert_eq!(theirs("millpond_free_pinned", other, live), WRONG_ALLOCATOR, "{}", last());
        assert_eq!(
            [free("millpond_free_pinned", live), free("millpond_free_pinned", live)],
            [OK, UNKNOWN_POINTER]
        );
        assert_eq!(free("millpond_free_pinned", z), OK);
        assert!([x, y, z].contains(&pinned(MIB)), "all are done");
        assert_eq!(door.free(target), OK);
        door.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

#[test]
fn after_the_end_what_is_alive_can_be_freed() {
    alone("after_the_end_what_is_alive_can_be_freed", |fake| {
        let cuda = program();
        let (s, door) = (stream(&cuda), Door::new(""));
        let x = door.alloc(MIB, &s);
        write(&cuda, &s, x, MIB, 1);
        door.destroy();
        assert_eq!(door.try_alloc(MIB, &s), Err(UNKNOWN_ALLOCATOR));
        assert!(last().contains("destroyed"), "{}", last());
        assert_eq!(
            [door.one("millpond_destroy"), door.one("millpond_release"), door.record_use(x, &s)],
            [UNKNOWN_ALLOCATOR; 3]
        );
        assert_eq!(
            [door.trim(), door.one("millpond_synchronize")],
            [OK; 2],
            "an ended allocator accepts both"
        );
        assert_eq!(door.stat("live"), 1);
        assert_eq!(door.free(x), OK);
        assert_eq!(door.stat("live"), 0);
        assert_eq!(fake.verdict(), None);
    });
}

const DRIVER: c_int = 8;

/// A create that fails changes no other allocator: they do not expect captures by other code, which would hold their memory back.
#[test]
fn a_failed_create_changes_no_other_allocator() {
    alone("a_failed_create_changes_no_other_allocator", |fake| {
        fake.reset(GIB, 2, When::Earliest);
        let cuda = program();
        let (s, door) = (stream(&cuda), Door::new("captures=none"));
        assert_eq!(door.free_unknown(door.alloc(MIB, &s)), OK);
        assert_eq!(door.held_back(), 0, "no captures are expected");
        // An early driver call of a create, and the last one that can fail.
        for call in ["cuDevicePrimaryCtxRetain", "cuMemGetInfo_v2"] {
            fake.fail_next(call, 1, 999);
            let made = Door::on(0, "captures=expected");
            fake.clear_faults();
            assert!([Err(DRIVER), Err(NO_DEVICE)].contains(&made.map(|_| ())), "{call}: {}", last());
            assert_eq!(door.free_unknown(door.alloc(MIB, &s)), OK);
            assert_eq!(door.held_back(), 0, "{call}: {}", door.stats());
        }
        Door::new("captures=expected");
        assert_eq!(door.free_unknown(door.alloc(MIB, &s)), OK);
        assert!(door.held_back() >= MIB as u64, "captures are expected now: {}", door.stats());
        assert_eq!(fake.verdict(), None);
    });
}

/// A destroy may fail, and then the allocator has not ended: each of its driver calls fails in turn.
#[test]
fn a_failed_destroy_destroys_nothing() {
    alone("a_failed_destroy_destroys_nothing", |fake| {
        let cuda = program();
        let s = stream(&cuda);
        let mut failed = 0;
        for nth in 1.. {
            let door = Door::new("");
            let kept = door.alloc(MIB, &s);
            assert_eq!(door.free(door.alloc(100 * MIB, &s)), OK);
            write(&cuda, &s, kept, MIB, 1);
            let before = fake.calls_total();
            fake.fail_call(before + nth, 999);
            let code = door.one("millpond_destroy");
            let calls = fake.calls_total() - before;
            fake.clear_faults();
            if code != OK {
                failed += 1;
                assert_eq!((code, door.stat("live")), (DRIVER, 1), "call {nth}: {}", last());
                assert_eq!(door.free(door.alloc(MIB, &s)), OK, "call {nth}: the allocator still works");
                door.destroy();
            }
            assert_eq!(door.one("millpond_destroy"), UNKNOWN_ALLOCATOR);
            assert_eq!(door.free_on(kept, &s), OK);
            // SAFETY: a stream of this test's.
            unsafe { sys::cuStreamSynchronize(s.handle()) };
            // What is left by a driver call that failed without failing the destroy.
            let other = (nth % 2 == 0).then(|| Door::new(""));
            assert!(other.is_some() || door.trim() == OK);
            assert_eq!((door.stat("reserved"), fake.verdict()), (0, None), "call {nth}");
            if let Some(other) = other {
                other.destroy();
            }
            if nth > calls {
                break;
            }
        }
        assert!(failed >= 2, "{failed} calls failed");
    });
}

/// Memory that is freed after the end with work pending goes back in a later call that may wait; no such free returns an error.
#[test]
fn what_is_freed_after_the_end_goes_back() {
    alone("what_is_freed_after_the_end_goes_back", |fake| {
        let cuda = program();
        let s = stream(&cuda);
        let other = Door::new("");
        for nth in 1..20 {
            let door = Door::new("");
            let (x, y) = (door.alloc(2 * MIB, &s), door.alloc(2 * MIB, &s));
            door.destroy();
            assert!(door.stat("reserved") >= 4 * MIB as u64);
            write(&cuda, &s, x, MIB, 1);
            fake.fail_call(fake.calls_total() + nth, 999);
            let codes = [door.free(x), door.free(y)];
            fake.clear_faults();
            assert_eq!(codes, [OK, OK], "call {nth}: {}", last());
            assert_eq!(door.stat("live"), 0);
            // SAFETY: a stream of this test's.
            unsafe { sys::cuStreamSynchronize(s.handle()) };
            assert_eq!(other.trim(), OK);
            assert!(door.held_back() > 0, "s was not marked since");
            assert_eq!(other.one("millpond_synchronize"), OK);
            assert_eq!((door.stat("reserved"), door.held_back()), (0, 0), "call {nth}");
        }
        other.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// The functions that `PyTorch` calls, on the second device, where no other test has created its allocator.
#[test]
fn the_pair_for_pytorch() {
    alone("the_pair_for_pytorch", |fake| {
        let cuda = Cuda::new(1).expect("the second device");
        let (s, t) = (stream(&cuda), stream(&cuda));
        let of =
            function::<extern "C" fn(c_int, *const c_char, *mut u32) -> c_int>("millpond_torch_allocator");
        let mut number = 0;
        assert_eq!(of(1, c"limit=4MiB,growth=exact".as_ptr(), &raw mut number), OK, "{}", last());
        assert_eq!(
            of(1, c"limit=9MiB".as_ptr(), &raw mut number),
            BAD_ARGUMENT,
            "the allocator exists already"
        );
        let mut again = 0;
        assert_eq!((of(1, null(), &raw mut again), again), (OK, number));
        assert_eq!(of(-1, null(), &raw mut again), BAD_ARGUMENT);
        assert_eq!(of(99, null(), &raw mut again), BAD_ARGUMENT);
        let alloc = function::<extern "C-unwind" fn(usize, c_int, *mut c_void) -> *mut c_void>(
            "millpond_torch_alloc",
        );
        let free = function::<extern "C" fn(*mut c_void, usize, c_int, *mut c_void)>("millpond_torch_free");
        let record = function::<extern "C" fn(*mut c_void, *mut c_void)>("millpond_torch_record_stream");
        let unreported = function::<extern "C" fn() -> u64>("millpond_torch_untold");
        let base = function::<extern "C" fn(*mut c_void, *mut usize) -> *mut c_void>("millpond_torch_base");
        let native = |s: &GpuStream| s.handle().cast::<c_void>();
        // As the package `millpond_torch` does with all streams of PyTorch.
        for stream in [&s, &t] {
            Door(number).declare_permanent(stream);
        }
        let begin = unreported();
        assert!(alloc(0, 1, native(&s)).is_null());
        let x = alloc(4 * MIB, 1, native(&s));
        write(&cuda, &s, x, 4 * MIB, 1);
        let mut size = 0;
        assert_eq!((base(x.wrapping_byte_add(12345), &raw mut size), size), (x, 4 * MIB));
        let event = cuda.create_event().expect("an event");
        cuda.record(&event, &s).expect("recorded");
        cuda.wait(&t, &event).expect("queued");
        read(&cuda, &t, x, 4 * MIB);
        record(x, native(&t));
        free(x, 4 * MIB, 1, native(&s));
        let y = alloc(4 * MIB, 1, native(&s));
        assert_eq!(y, x);
        write(&cuda, &s, y, 4 * MIB, 2);
        free(y, 4 * MIB, 1, native(&s));
        assert_eq!(unreported(), begin);
        free(y, 4 * MIB, 1, native(&s));
        record(y, native(&t));
        assert_eq!(unreported(), begin + 2, "failures that no call returns are counted");
        function::<extern "C" fn()>("millpond_torch_empty_cache")();
        assert_eq!(Door(number).stat("reserved"), 0, "{}", Door(number).stats());
        assert_eq!(fake.verdict(), None);
    });
}
