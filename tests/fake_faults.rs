//! The CUDA backend and the allocator over a driver that fails: at every call, with every kind of answer, without a
//! function, too old, or not there at all. Nothing panics, every error is typed, nothing is lost that could be given back,
//! and what was refused once works the next time.
//!
//! Tests of a driver that cannot be opened run in processes of their own, because a process opens its driver once.
//! Programs to fail in are in `fake_faults/programs.rs`; what else takes a process of its own, in
//! `fake_faults/processes.rs`.
#![cfg(feature = "cuda")]

#[path = "allocator/faults/copies.rs"]
mod copies;
#[path = "fake_faults/processes.rs"]
mod processes;
#[path = "fake_faults/programs.rs"]
mod programs;
#[path = "fake_faults/registered.rs"]
mod registered;
#[path = "fake_libcuda/remote.rs"]
mod remote;

use millpond::cuda::{Backing, Cuda};
use millpond::driver::{Driver, Fences, Host, HostKind, Mapping, Memory, StreamOptions};
use millpond::error::Unavailable;
use millpond::units::Addr;
use millpond::{Allocator, Config, DriverError, DriverErrorKind, Error, Trim, kernel};
use millpond_testkit::effort::is_full;
use programs::{LAUNCHES, PROGRAMS, Program, Ran};
use remote::{Fake, When};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn fake(when: When) -> Option<Fake> {
    remote::fake_or_skip(GIB, 1, when)
}

/// Calls that give something back, and what is left where one of them fails in a destructor, which can return no error: that
/// one thing. Whatever else was taken comes back.
const GIVE_BACK: &[(&str, &str)] = &[
    ("cuMemFree_v2", "Plain"),
    ("cuMemFreeAsync", "Pooled"),
    ("cuMemFreeHost", "Pinned"),
    ("cuMemHostUnregister", "Pinned"),
    ("cuMemPoolDestroy", "memory pool"),
    ("cuModuleUnload", "a module"),
    ("cuStreamDestroy_v2", "SimStream"),
    ("cuEventDestroy_v2", "SimEvent"),
    ("cuDevicePrimaryCtxRelease_v2", "the primary context"),
];

/// Whether what a program left is what a failure of this call must leave.
fn is_its_own(name: &str, leaks: &str) -> bool {
    GIVE_BACK.iter().any(|(call, what)| *call == name && leaks.lines().count() == 1 && leaks.contains(what))
}

/// The last thing that an operation does when its work is done: its failure is not returned. The next call returns it, if
/// there is one.
const LAST: &[&str] = &["cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"];

/// Two fresh devices that work late; the first poll makes them work, so that a program makes the same calls each time.
fn begin(fake: &Fake) {
    fake.reset(GIB, 2, When::Latest);
    fake.patience(1);
}

/// Runs a program once well and once for each of its calls, which fails with a code; answers which calls made it fail, by
/// name.
fn every_call_fails(fake: &Fake, program: &Program, code: u32) -> BTreeMap<String, u64> {
    // The first program of a process opens the driver, with calls of its own.
    let mut ran = None;
    for _ in 0..2 {
        begin(fake);
        ran = Some(program.run(fake, None));
        assert_eq!((fake.verdict(), fake.leaks()), (None, None), "{}", program.name);
    }
    let Ran { result, calls, body, .. } = ran.expect("it ran");
    result.expect("it works where nothing fails");
    assert!(body > 40, "a program worth failing in: {calls} calls");
    let mut failed = BTreeMap::new();
    for number in 1..=calls {
        // A third of them in an ordinary run: three codes have all.
        if !is_full() && !(number + u64::from(code)).is_multiple_of(3) {
            continue;
        }
        begin(fake);
        let Ran { result, failed: name, .. } = program.run(fake, Some((number, code)));
        let name = name.unwrap_or_else(|| panic!("call {number} of {calls} was not reached: {result:?}"));
        let place =
            format!("{}, call {number} of {body} and {calls}, {name}, fails with {code}", program.name);
        match &result {
            Ok(()) if code == 700 => {
                let last = number + 1 >= body && LAST.contains(&&*name);
                assert!(number > body || last, "{place}: the context is lost and no call returned that");
            }
            Ok(()) => {}
            Err(Error::Driver(e) | Error::Unavailable(Unavailable::Driver(e))) => {
                // Code 0: the loss was met where no call could return it, and the next call does.
                assert!(e.code == code || (code == 700 && e.code == 0), "{place}: {e}");
                assert_eq!(e.is_context_lost(), code == 700, "{place}: {e}");
                *failed.entry(name.clone()).or_default() += 1;
            }
            Err(e) => {
                assert!(code == 2 && e.out_of_memory().is_some(), "{place}: {e}");
                *failed.entry(name.clone()).or_default() += 1;
            }
        }
        if code == 700 {
            continue;
        }
        assert_eq!(fake.verdict(), None, "{place}");
        if let Some(leaks) = fake.leaks() {
            assert!(is_its_own(&name, &leaks), "{place}: {result:?}; left:\n{leaks}");
        }
        if number % 16 == 0 {
            program.run(fake, None).result.unwrap_or_else(|e| panic!("{place}, and then: {e}"));
        }
    }
    failed
}

/// Every program with every call failing with a code; each gets the errors of the calls that it must get.
fn at_every_call(code: u32) {
    let Some(fake) = fake(When::Latest) else { return };
    for program in PROGRAMS {
        let failed = every_call_fails(&fake, program, code);
        for call in program.must_report.iter().filter(|_| is_full()) {
            assert!(
                failed.contains_key(*call),
                "{}: {call} failed and no error was returned: {failed:?}",
                program.name
            );
        }
        for overcome in program.overcome.iter().filter(|_| code == 2) {
            assert!(!failed.contains_key(*overcome), "{}: {failed:?}", program.name);
        }
    }
}

#[test]
fn a_refusal_at_every_call() {
    at_every_call(1);
}

#[test]
fn no_memory_at_every_call() {
    at_every_call(2);
}

/// A driver from the future may answer what no header of today names.
#[test]
fn an_unknown_code_at_every_call() {
    at_every_call(54_321);
}

/// A context that is lost at any call stays lost: an error says so, nothing hangs, and no memory of the process is harmed.
#[test]
fn a_context_lost_at_every_call() {
    at_every_call(700);
    let Some(fake) = fake(When::Latest) else { return };
    begin(&fake);
    for program in PROGRAMS {
        program
            .run(&fake, None)
            .result
            .expect("another process would work, and so does a driver that was reset");
    }
}

/// An answer "not ready", however often, is never taken for "done".
#[test]
fn not_ready_is_never_ready() {
    let Some(fake) = fake(When::Earliest) else { return };
    {
        let cuda = Cuda::new(0).expect("the stand-in");
        let gpu = Allocator::new(cuda.clone(), Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        let event = s.record().expect("an event");
        fake.not_ready(3);
        for _ in 0..3 {
            assert!(!event.is_complete().expect("an answer"));
        }
        assert!(event.is_complete().expect("an answer"));
        fake.not_ready(10);
        s.record().expect("an event").synchronize(Duration::from_secs(5)).expect("it comes");
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
}

/// A wait without a limit is the driver's own: one call, however long it takes. Its errors are returned, what the copy was to
/// fill comes back behind it nevertheless, and a context that it finds lost is known to be lost.
#[test]
fn a_wait_without_a_limit_is_the_drivers() {
    let Some(fake) = fake(When::Latest) else { return };
    {
        let gpu =
            Allocator::new(Cuda::new(0).expect("the stand-in"), Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        let x = gpu.zeros::<u32>(1000, &s).expect("an array");
        let back = x.to_pinned(&s).expect("queued");
        let asked = fake.calls("cuEventQuery");
        assert!(back.wait().expect("done").iter().all(|&v| v == 0));
        assert_eq!((fake.calls("cuEventSynchronize"), fake.calls("cuEventQuery") - asked), (1, 1));

        let event = s.record().expect("an event");
        assert!(
            matches!(event.synchronize(Duration::ZERO), Err(Error::TimedOut { .. })),
            "asked, not waited for"
        );
        assert_eq!(fake.calls("cuEventSynchronize"), 1);

        let back = x.to_pinned(&s).expect("queued");
        fake.fail_next("cuEventSynchronize", 1, 999);
        assert!(
            matches!(back.wait(), Err(Error::Driver(e)) if e.code == 999 && e.call == "cuEventSynchronize")
        );
        gpu.synchronize().expect("the driver goes on");
        assert_eq!(gpu.report().pinned.expect("pinned memory").live, 0, "the target came back");
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));

    let gpu = Allocator::new(Cuda::new(0).expect("the stand-in"), Config::default()).expect("an allocator");
    let s = gpu.stream().expect("a stream");
    let back = gpu.zeros::<u32>(1000, &s).expect("an array").to_pinned(&s).expect("queued");
    fake.fail_next("cuEventSynchronize", 1, 719);
    let lost = |e: Error| matches!(e, Error::Driver(e) if e.is_context_lost());
    assert!(back.wait().is_err_and(lost));
    assert!(gpu.stream().is_err_and(lost), "nothing is tried on a lost context");
}

/// Kernels that were loaded at the start are found by every later launch: none of them loads anything.
#[test]
fn loaded_kernels_are_loaded_once() {
    let Some(fake) = fake(When::Earliest) else { return };
    {
        let cuda = Cuda::new(0).expect("the stand-in");
        kernel::load_builtins(&cuda).expect("loaded");
        let loads =
            || (fake.calls("cuModuleLoadData"), fake.calls("cuModuleGetFunction"), fake.calls("cuFuncLoad"));
        let before = loads();
        assert_eq!(before.1, kernel::builtins().count() as u64);
        LAUNCHES.run(&fake, None).result.expect("nothing fails");
        kernel::load_builtins(&cuda).expect("nothing to do");
        assert_eq!(loads(), before);
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
}

/// What was current on a thread before a call of the backend is current after it.
#[test]
fn the_current_context_is_left_as_it_was() {
    use cudarc::driver::{CudaContext, result::ctx};
    let Some(fake) = remote::fake(GIB, 2, When::Earliest) else { return };
    {
        let cuda = Cuda::new(0).expect("device 0");
        let other = CudaContext::new(1).expect("device 1");
        let current = || ctx::get_current().expect("an answer");
        let before = current();
        assert_eq!(before, Some(other.cu_ctx()));
        let gpu = Allocator::new(cuda, Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        drop(gpu.alloc(MIB, &s).expect("memory"));
        gpu.alloc_pinned(4096).expect("pinned memory");
        gpu.trim(Trim::All).expect("trimmed");
        assert_eq!(current(), before);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let block = gpu.alloc(MIB, &s).expect("memory, on a thread with no context");
                gpu.driver().write_pattern(s.native(), block.address(), MIB, 1).expect("a launch");
                assert_eq!(current(), None);
            });
        });
        drop((s, gpu));
        assert_eq!(current(), before);
        other.check_err().expect("cudarc's own error state was not touched");
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
}

/// The CUDA backend counts what it asks of the driver, and the driver agrees.
#[test]
fn counts_agree_with_the_driver() {
    let Some(fake) = fake(When::Earliest) else { return };
    {
        let cuda = Cuda::new(0).expect("the stand-in");
        let gpu = Allocator::new(cuda.clone(), Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        drop(gpu.alloc(MIB, &s).expect("memory"));
        s.record().expect("an event");
        let (before, counted) = (fake.calls("cuMemAlloc_v2"), cuda.calls());
        let ours = |name: &str| counted.iter().find(|(n, _)| *n == name).map_or(0, |&(_, n)| n);
        assert_eq!(ours("cuMemAlloc"), before);
        assert_eq!(ours("cuEventRecord"), fake.calls("cuEventRecord"));
        let total = fake.calls_total();
        for _ in 0..100 {
            drop(gpu.alloc(MIB, &s).expect("a hit"));
        }
        assert_eq!(fake.calls_total(), total, "a hit asks nothing of the driver");
        assert!(cuda.memory_info().expect("an answer").total == GIB);
        assert!(cuda.query(&cuda.create_event().expect("an event")).expect("an answer"));
    }
    assert_eq!(fake.leaks(), None);
}

/// Memory that is not aligned as heaps need is refused in words, and goes back; that it cannot go back is reported too.
#[test]
fn memory_that_is_not_aligned_is_refused_and_given_back() {
    let Some(fake) = fake(When::Latest) else { return };
    for fails in [false, true] {
        let cuda = Cuda::new(0).expect("the stand-in");
        for free in ["cuMemFree_v2", "cuMemFreeHost"] {
            if fails {
                fake.fail_next(free, 1, 1);
            }
            fake.askew(1);
            let (before, deferred) = (fake.calls(free), cuda.deferred().len());
            let refused = match free {
                "cuMemFree_v2" => cuda.allocate(MIB).map(drop),
                _ => cuda.pin(MIB, HostKind::Cached).map(drop),
            };
            let refused = refused.expect_err("not aligned");
            assert_eq!(refused.kind, DriverErrorKind::NotSupported);
            assert!(refused.message.contains("not 512-byte aligned"), "{refused}");
            assert_eq!(fake.calls(free), before + 1, "{free}");
            assert_eq!(cuda.deferred().len(), deferred + usize::from(fails));
        }
        drop((cuda.allocate(MIB).expect("aligned"), cuda.pin(MIB, HostKind::Cached).expect("aligned")));
        drop(cuda);
        assert_eq!(fake.leaks().is_some(), fails);
    }
}

// Drivers that cannot be opened.

/// A copy of the stand-in without one of its functions: the name is spoilt where the loader looks it up.
fn without(symbol: &str, folder: &Path) -> PathBuf {
    let whole = remote::path().expect("asked before");
    let mut bytes = std::fs::read(whole).expect("the stand-in");
    let name: Vec<u8> = [b"\0", symbol.as_bytes(), b"\0"].concat();
    let places: Vec<usize> =
        bytes.windows(name.len()).enumerate().filter(|(_, w)| *w == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the stand-in has no function {symbol}");
    for at in places {
        bytes[at + 1] = b'x';
    }
    let variant = folder.join(format!("without_{symbol}.so"));
    std::fs::write(&variant, bytes).expect("a copy");
    variant
}

/// A test of this file, run in a process of its own with this environment.
fn child(test: &str, environment: &[(&str, &std::ffi::OsStr)]) -> Output {
    let exe = std::env::current_exe().expect("this test");
    let mut child = Command::new(exe);
    child.args(["--exact", test, "--ignored", "--nocapture"]).envs(environment.iter().copied());
    child.output().expect("a child")
}

/// What a child that must end well said.
fn said(out: &Output) -> String {
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !text.contains("panicked"), "{}: {text}", out.status);
    text
}

/// What `Cuda::new` says in a process of its own with this driver and this environment.
fn opened(driver: &Path, environment: &[(&str, &str)]) -> String {
    let driver = [("MILLPOND_LIBCUDA", driver.as_os_str())];
    let environment = environment.iter().map(|&(name, value)| (name, std::ffi::OsStr::new(value)));
    let environment: Vec<_> = driver.into_iter().chain(environment).collect();
    let text = said(&child("child_opens_the_driver", &environment));
    let said = text.lines().find_map(|l| l.split_once("OPENED ")).map(|(_, said)| said.to_owned());
    said.unwrap_or_else(|| panic!("the child said nothing: {text}"))
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn child_opens_the_driver() {
    let what = match Cuda::new(0) {
        Ok(cuda) => {
            let works = Allocator::new(cuda.clone(), Config::default()).and_then(|gpu| {
                let s = gpu.stream()?;
                gpu.alloc(MIB, &s).map(drop)
            });
            format!("{works:?}, ids {}, context events {}", cuda.has_stream_ids(), cuda.has_context_events())
        }
        Err(e) => {
            assert_eq!(Cuda::devices().as_ref(), Err(&e), "counting devices returns the same error");
            format!("{e:?}")
        }
    };
    println!("\nOPENED {what}");
}

fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fake_faults");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The functions that the backend says it needs, and those that it can do without, read off its table.
fn functions() -> (Vec<String>, Vec<String>) {
    let table = include_str!("../cuda/src/table.rs");
    let names = |block: &str| -> Vec<String> {
        let fields = block.lines().filter_map(|l| l.split_once(" = \"cu"));
        fields.filter_map(|(_, rest)| rest.split_once('"')).map(|(name, _)| format!("cu{name}")).collect()
    };
    let rest = table.split_once("    required {\n").expect("the table").1;
    let (required, optional) = rest.split_once("    optional {\n").expect("the table");
    (names(required), names(optional.split_once("\n    }").expect("its end").0))
}

#[test]
fn a_missing_function_is_named() {
    if fake(When::Earliest).is_none() {
        return;
    }
    let (required, optional) = functions();
    assert!(required.len() > 40 && optional.len() >= 2, "{required:?} {optional:?}");
    // Every eighth in an ordinary run, all of them on request: a process each.
    let step = if std::env::var_os("MILLPOND_FAKE_ALL").is_some() { 1 } else { 8 };
    for symbol in required.iter().step_by(step) {
        let variant = without(symbol, &folder());
        assert_eq!(opened(&variant, &[]), format!("SymbolMissing {{ name: \"{symbol}\" }}"));
        std::fs::remove_file(variant).expect("removed");
    }
    for symbol in &optional {
        let variant = without(symbol, &folder());
        let said = opened(&variant, &[]);
        assert!(said.starts_with("Ok(())"), "{symbol}: {said}");
        assert_eq!(said.contains("ids false"), symbol == "cuStreamGetId", "{said}");
        assert_eq!(said.contains("context events false"), symbol == "cuCtxRecordEvent", "{said}");
        std::fs::remove_file(variant).expect("removed");
    }
}

#[test]
fn an_old_driver_no_driver_and_no_device_are_distinguished() {
    if fake(When::Earliest).is_none() {
        return;
    }
    let whole = remote::path().expect("asked before");
    assert!(opened(&whole, &[]).starts_with("Ok(())"));
    let old = opened(&whole, &[("MILLPOND_FAKE_VERSION", "11030")]);
    assert_eq!(old, "DriverTooOld { need: 11040, have: 11030 }");
    let mute = opened(&whole, &[("MILLPOND_FAKE_FAILS", "cuDriverGetVersion=46")]);
    let said = "Driver(DriverError { call: \"cuDriverGetVersion\", code: 46, kind: Other, message: \"CUDA_ERROR_DEVICE_";
    assert!(mute.starts_with(said), "a driver that tells no version is not old: {mute}");
    let newer = opened(&whole, &[("MILLPOND_FAKE_VERSION", "99990")]);
    assert!(newer.starts_with("Ok(())"), "a newer one will do: {newer}");
    let none = opened(&whole, &[("MILLPOND_FAKE_DEVICES", "0")]);
    assert_eq!(none, "NoDevice { requested: 0, found: 0 }");
    let missing = opened(Path::new("/nowhere/libcuda.so.1"), &[]);
    assert!(missing.starts_with("DriverMissing"), "{missing}");
    let garbage = folder().join("garbage.so");
    std::fs::write(&garbage, "this is no library").expect("a file");
    assert!(opened(&garbage, &[]).starts_with("DriverMissing"));
}

/// A context that was lost, and a driver that was shut down: what is requested is refused, what is dropped goes without
/// a word, and what destructors met is kept only where it is not expected.
#[test]
fn a_driver_that_is_gone_is_left_in_peace() {
    let Some(fake) = fake(When::Latest) else { return };
    for (code, kept) in [(719, true), (4, false)] {
        begin(&fake);
        let cuda = Cuda::new(0).expect("the stand-in");
        let gpu = Allocator::new(cuda.clone(), Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        let (block, page) = (gpu.alloc(MIB, &s).expect("memory"), gpu.alloc_pinned(4096).expect("a page"));
        let download = gpu.zeros::<u8>(5000, &s).expect("an array").to_pinned(&s).expect("queued");
        if kept {
            fake.lose_context(code);
        } else {
            fake.shut_down();
        }
        let gone = |e: &DriverError| e.code == code && e.kind == DriverErrorKind::ContextLost;
        let refused = gpu.alloc(64 * MIB, &s).expect_err("the driver is gone");
        assert!(matches!(&refused, Error::Driver(e) if gone(e)), "{refused}");
        let asked = fake.calls_total();
        drop((block, page, download, s, gpu));
        assert!(fake.calls_total() > asked, "destructors ask all the same");
        let deferred = cuda.deferred();
        assert_eq!(!deferred.is_empty(), kept, "{deferred:?}");
        assert!(deferred.iter().all(gone), "{deferred:?}");
        drop(cuda);
        let again = Cuda::new(0).expect_err("the driver is gone");
        assert!(matches!(&again, Unavailable::Driver(e) if gone(e)), "{again}");
    }
}

/// A device may lack memory pools, virtual memory or both: what needs them is refused in words before the driver is
/// asked, and everything else works.
#[test]
#[allow(unsafe_code, reason = "mapping works on raw addresses")]
fn what_a_device_lacks_is_refused_in_words() {
    const VIRTUAL_MEMORY: u32 = 102;
    const MEMORY_POOLS: u32 = 115;
    let Some(fake) = fake(When::Latest) else { return };
    for (mapping, pools) in [(false, false), (false, true), (true, false)] {
        begin(&fake);
        fake.attribute(VIRTUAL_MEMORY, i32::from(mapping));
        fake.attribute(MEMORY_POOLS, i32::from(pools));
        let lacks = |result: Result<(), DriverError>, call: &'static str, advice: &str| {
            let e = result.expect_err("the device has no such thing");
            assert_eq!((e.call, e.code, e.kind), (call, 801, DriverErrorKind::NotSupported), "{e}");
            assert!(e.message.contains(advice), "{e}");
            assert_eq!(fake.calls(call), 0, "the driver was not called");
        };
        let cuda = Cuda::new(0).expect("the stand-in");
        assert_eq!(cuda.mapping().map(|facts| facts.granularity), mapping.then_some(2 * MIB));
        let pooled = cuda.clone().backing(Backing::Async { keep: 0 });
        if pools {
            drop(pooled.expect("pools").allocate(MIB).expect("memory of one"));
        } else {
            lacks(pooled.map(drop), "cuMemPoolCreate", "use Backing::Plain");
        }
        if mapping {
            let handle = cuda.create(2 * MIB).expect("physical memory");
            // SAFETY: mapped nowhere.
            unsafe { cuda.release(&handle) }.expect("released");
        } else {
            let (plain, at) = ("use plain segments", Addr(2 * MIB));
            lacks(cuda.create(2 * MIB).map(drop), "cuMemCreate", plain);
            lacks(cuda.reserve(2 * MIB, None).map(drop), "cuMemAddressReserve", plain);
            // SAFETY: refused before any driver call.
            lacks(unsafe { cuda.set_access(at, 2 * MIB) }, "cuMemSetAccess", plain);
            // SAFETY: as above.
            lacks(unsafe { cuda.unmap(at, 2 * MIB) }, "cuMemUnmap", plain);
            // SAFETY: as above.
            lacks(unsafe { cuda.unreserve(at, 2 * MIB) }, "cuMemAddressFree", plain);
        }
        let gpu = Allocator::new(cuda, Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        drop(gpu.alloc(MIB, &s).expect("plain memory"));
        drop((s, gpu));
        assert_eq!((fake.verdict(), fake.leaks()), (None, None));
    }
}

/// What a destructor could not do is kept for whoever asks, by the name of its call, unless it only says that the driver was
/// shut down, as at the end of a process; in cudarc's own error state, which the next call of other code would return, none
/// of it ends.
#[test]
fn errors_of_destructors_are_ours_and_quiet_when_the_driver_was_shut_down() {
    use cudarc::driver::CudaContext;
    let Some(fake) = fake(When::Earliest) else { return };
    for (code, kept) in [(1, true), (54_321, true), (4, false)] {
        begin(&fake);
        let theirs = CudaContext::new(0).expect("cudarc's context");
        let cuda = Cuda::from_context(theirs.clone()).expect("the same");
        let stream = cuda.create_stream(StreamOptions::default()).expect("a stream");
        let event = cuda.create_event().expect("an event");
        let range = cuda.allocate(MIB).expect("memory");
        let page = cuda.pin(4096, HostKind::Cached).expect("a page");
        for name in ["cuMemFree_v2", "cuMemFreeHost", "cuEventDestroy_v2", "cuStreamDestroy_v2"] {
            fake.fail_next(name, 1, code);
        }
        drop((range, page, event, stream));
        let deferred = cuda.deferred();
        let calls: Vec<_> = deferred.iter().map(|e| (e.call, e.code)).collect();
        let expected =
            ["cuMemFree", "cuMemFreeHost", "cuEventDestroy", "cuStreamDestroy"].map(|call| (call, code));
        assert_eq!(calls, if kept { expected.to_vec() } else { Vec::new() });
        theirs.check_err().expect("cudarc knows nothing of it");
        theirs.new_stream().expect("and its next call is none the worse");
    }
}
