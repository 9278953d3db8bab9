//! The CUDA backend and the allocator over a driver that fails: at every call, with every kind of answer, without a
//! function, too old, or not there at all. Nothing panics, every error is typed, nothing is lost that could be given back,
//! and what was refused once works the next time.
//!
//! Tests of a driver that cannot be opened run in processes of their own, because a process opens its driver once.
#![cfg(feature = "cuda")]

#[path = "faults/copies.rs"]
mod copies;
#[path = "fake_libcuda/remote.rs"]
mod remote;

use millpond::driver::cuda::Cuda;
use millpond::driver::{Copies, Driver, Fences, Host, HostKind, Memory, StreamOptions};
use millpond::error::Unavailable;
use millpond::{Allocator, Config, DriverErrorKind, Error, Growth, Limit, Trim, kernel};
use remote::{Fake, When};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn fake(when: When) -> Option<Fake> {
    let fake = remote::fake(GIB, 1, when);
    if fake.is_none() {
        eprintln!("SKIPPED: the stand-in driver is not built: run .ci/fake-cuda, or cargo test --workspace");
    }
    fake
}

/// How many calls of the driver there were when the body of a program was done: what follows are destructors.
static BODY: AtomicU64 = AtomicU64::new(0);

/// What a program is that may fail.
type Program = fn(&dyn Fn() -> u64) -> Result<(), Error>;

/// Two streams, reuse in order, foreign uses, an inserted wait, pinned memory, copies, a trim.
#[allow(unsafe_code, reason = "fills and copies work on raw memory")]
fn memory_and_order(calls: &dyn Fn() -> u64) -> Result<(), Error> {
    let cuda = Cuda::new(0)?;
    let config = Config::default().growth(Growth::Exact).limit(Limit::Bytes(4 * MIB)).pinned_limit(MIB);
    // Scrubbing, so that fills fail too: at a hand-out, and before memory goes back.
    let config = config.bounded_wait(Duration::from_millis(10)).scrub(true);
    let gpu = Allocator::new(cuda.clone(), config)?;
    let (s, t) = (gpu.stream()?, gpu.stream()?);
    let block = gpu.alloc(3 * MIB, &s)?;
    // SAFETY: the block is ours on `s`.
    unsafe { cuda.fill(block.address(), 42, block.len(), s.native()) }?;
    t.wait_stream(&s)?;
    block.record_use(&t)?;
    let host = gpu.alloc_pinned(4096)?;
    host.record_use(&t)?;
    // SAFETY: both uses are recorded, so the bytes stay until the copy is complete.
    unsafe { cuda.copy_d2h(host.as_ptr().as_ptr(), block.address(), 4096, t.native()) }?;
    drop(block);
    let next = gpu.alloc(3 * MIB, &s)?;
    // SAFETY: the block is ours on `s`.
    unsafe { cuda.fill(next.address(), 43, next.len(), s.native()) }?;
    s.record()?.synchronize(Duration::from_secs(5))?;
    drop(next);
    gpu.synchronize()?;
    // SAFETY: pinned, and what wrote it was waited for.
    let read = unsafe { std::slice::from_raw_parts(host.as_ptr().as_ptr(), 4096) };
    assert_eq!(read, [42; 4096], "nothing was reused early");
    drop(host);
    gpu.trim(Trim::All)?;
    gpu.check();
    BODY.store(calls(), Ordering::Relaxed);
    Ok(())
}

/// Our own kernels, and a gate.
fn kernels(calls: &dyn Fn() -> u64) -> Result<(), Error> {
    let cuda = Cuda::new(0)?;
    let gpu = Allocator::new(cuda.clone(), Config::default())?;
    let s = gpu.stream()?;
    let block = gpu.alloc(MIB, &s)?;
    let gate = cuda.gate(s.native(), Duration::from_secs(5))?;
    cuda.write_pattern(s.native(), block.address(), block.len(), 42)?;
    cuda.check_pattern(s.native(), block.address(), block.len(), 42, block.id())?;
    drop(gate);
    assert_eq!(cuda.bad_ranges(true)?.1, 0, "what was read is what was written");
    BODY.store(calls(), Ordering::Relaxed);
    Ok(())
}

/// Pinned memory is wiped when it is new, and each of some two thousand runs has new memory: a segment of the usual 64 MiB
/// would take tens of milliseconds each time.
fn small_pinned() -> Config {
    Config::default().pinned_limit(4 * MIB)
}

/// Kernels on arrays, over two streams.
fn launches(calls: &dyn Fn() -> u64) -> Result<(), Error> {
    let gpu = Allocator::new(Cuda::new(0)?, small_pinned())?;
    let (s, t) = (gpu.stream()?, gpu.stream()?);
    let length = 20_000_usize;
    let (mut x, mut y) = (gpu.uninit::<u64>(length, &s)?, gpu.zeros::<u64>(length, &t)?);
    let (mut at, mut sum) = (gpu.uninit::<u32>(length, &t)?, gpu.uninit::<u64>(1, &t)?);
    kernel::iota(&mut x, 5, 2, &s)?;
    kernel::iota(&mut at, length as u32 - 1, u32::MAX, &t)?;
    kernel::gather(&x, &at, &mut y, &t)?;
    kernel::scatter(&y, &at, &mut x, &s)?;
    kernel::saxpy(3, &x, &mut y, &t)?;
    kernel::fill(&mut x, 9, &s)?;
    kernel::reduce_sum(&y, &mut sum, &t)?;
    let sum = sum.to_pinned(&t)?.wait()?;
    // Turned round, turned back, and added thrice to the turned: four times all of it.
    let all = length as u64;
    assert_eq!(sum[0], 4 * (5 * all + all * (all - 1)), "what was read is what was computed");
    drop((x, y, at, sum));
    gpu.synchronize()?;
    gpu.trim(Trim::All)?;
    gpu.check();
    BODY.store(calls(), Ordering::Relaxed);
    Ok(())
}

/// Arrays and copies of every kind.
fn arrays(calls: &dyn Fn() -> u64) -> Result<(), Error> {
    let gpu = Allocator::new(Cuda::new(0)?, small_pinned())?;
    let _streams = copies::program(&gpu)?;
    BODY.store(calls(), Ordering::Relaxed);
    Ok(())
}

/// Runs a program on a thread of its own: a call that failed may have left a context current.
fn run(fake: &Fake, program: Program) -> Result<(), Error> {
    let calls = || fake.calls_total();
    std::thread::scope(|scope| scope.spawn(|| program(&calls)).join()).expect("no fault makes it panic")
}

/// Calls whose failure cannot be mended: what they were to give back is still there, or nobody can be told.
fn cannot_be_mended(name: &str) -> bool {
    ["Free", "Destroy", "Release", "Unload", "Unmap", "Ctx", "ExchangeStreamCaptureMode"]
        .iter()
        .any(|word| name.contains(word))
}

/// A fresh device that works late; the first poll makes it work, so that a program makes the same calls each time.
fn begin(fake: &Fake) {
    fake.reset(GIB, 1, When::Latest);
    fake.patience(1);
}

/// Runs a program once well and once for each of its calls, which fails with a code; answers which calls made it fail, by
/// name.
fn every_call_fails(fake: &Fake, program: Program, code: u32) -> BTreeMap<String, u64> {
    // The first program of a process opens the driver, with calls of its own.
    for _ in 0..2 {
        begin(fake);
        run(fake, program).expect("it works where nothing fails");
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
    let (calls, body) = (fake.calls_total(), BODY.load(Ordering::Relaxed));
    assert!(body > 60, "a program worth failing in: {calls} calls");
    let mut failed = BTreeMap::new();
    for number in 1..=calls {
        begin(fake);
        fake.fail_call(number, code);
        let result = run(fake, program);
        let name = fake
            .call_name(number)
            .unwrap_or_else(|| panic!("call {number} of {calls} was not reached: {result:?}"));
        fake.clear_faults();
        match &result {
            Ok(()) if code == 700 => {
                assert!(
                    number > body || cannot_be_mended(&name),
                    "call {number} of {body}, {name}, lost the context and nobody noticed"
                );
            }
            Ok(()) => {}
            Err(Error::Driver(e) | Error::Unavailable(Unavailable::Driver(e))) => {
                // Code 0: the loss was met where nobody could be told, and the next call says so.
                assert!(e.code == code || (code == 700 && e.code == 0), "{name}: {e}");
                assert_eq!(e.is_context_lost(), code == 700, "{name}: {e}");
                *failed.entry(name.clone()).or_default() += 1;
            }
            Err(e) => {
                assert!(code == 2 && e.out_of_memory().is_some(), "{name}: {e}");
                *failed.entry(name.clone()).or_default() += 1;
            }
        }
        if code == 700 {
            continue;
        }
        assert_eq!(fake.verdict(), None, "call {number}, {name}");
        if let Some(leaks) = fake.leaks() {
            assert!(
                cannot_be_mended(&name),
                "call {number}, {name}, failed with {code}; {result:?}; left:\n{leaks}"
            );
        }
        if number % 16 == 0 {
            run(fake, program).unwrap_or_else(|e| panic!("after call {number}, {name}, had failed: {e}"));
        }
    }
    failed
}

const EXPECTED: &[&str] =
    &["cuStreamCreateWithPriority", "cuEventRecord", "cuStreamWaitEvent", "cuMemsetD8Async"];

const COPIES: &[&str] =
    &["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemcpy2DAsync_v2"];

#[test]
fn a_refusal_at_every_call() {
    let Some(fake) = fake(When::Latest) else { return };
    let failed = every_call_fails(&fake, memory_and_order, 1);
    assert!(EXPECTED.iter().all(|&name| failed.contains_key(name)), "{failed:?}");
    let failed = every_call_fails(&fake, kernels, 1);
    assert!(failed.contains_key("cuLaunchKernel") && failed.contains_key("cuModuleLoadData"), "{failed:?}");
    let failed = every_call_fails(&fake, launches, 1);
    assert!(
        failed.contains_key("cuLaunchKernel") && failed.contains_key("cuModuleGetFunction"),
        "{failed:?}"
    );
    let failed = every_call_fails(&fake, arrays, 1);
    assert!(COPIES.iter().all(|&name| failed.contains_key(name)), "{failed:?}");
}

#[test]
fn no_memory_at_every_call() {
    let Some(fake) = fake(When::Latest) else { return };
    let failed = every_call_fails(&fake, memory_and_order, 2);
    assert!(EXPECTED.iter().all(|&name| failed.contains_key(name)), "{failed:?}");
    let copies = every_call_fails(&fake, arrays, 2);
    assert!(COPIES.iter().all(|&name| copies.contains_key(name)), "{copies:?}");
    // One refusal of memory, device or pinned, is overcome: a ladder makes sure before it gives up.
    for overcome in ["cuMemHostAlloc", "cuMemAlloc_v2"] {
        assert!(!failed.contains_key(overcome), "{failed:?}");
        assert!(!copies.contains_key(overcome), "{copies:?}");
    }
}

/// A driver from the future may answer what no header of today names.
#[test]
fn an_unknown_code_at_every_call() {
    let Some(fake) = fake(When::Latest) else { return };
    let failed = every_call_fails(&fake, memory_and_order, 54_321);
    assert!(EXPECTED.iter().all(|&name| failed.contains_key(name)), "{failed:?}");
    let failed = every_call_fails(&fake, arrays, 54_321);
    assert!(COPIES.iter().all(|&name| failed.contains_key(name)), "{failed:?}");
}

/// A context that is lost at any call stays lost: an error says so, nothing hangs, and no memory of the process is harmed.
#[test]
fn a_context_lost_at_every_call() {
    let Some(fake) = fake(When::Latest) else { return };
    let failed = every_call_fails(&fake, memory_and_order, 700);
    assert!(EXPECTED.iter().all(|&name| failed.contains_key(name)), "{failed:?}");
    let failed = every_call_fails(&fake, arrays, 700);
    assert!(COPIES.iter().all(|&name| failed.contains_key(name)), "{failed:?}");
    begin(&fake);
    run(&fake, memory_and_order).expect("another process would work, and so does a driver that was reset");
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

/// A wait without a limit is the driver's own: one call, however long it takes. Its errors are told, what the copy was to
/// fill comes back behind it all the same, and a context that it finds lost is known to be lost.
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
        kernel::load_house(&cuda).expect("loaded");
        let loads =
            || (fake.calls("cuModuleLoadData"), fake.calls("cuModuleGetFunction"), fake.calls("cuFuncLoad"));
        let before = loads();
        assert_eq!(before.1, kernel::house().count() as u64);
        run(&fake, launches).expect("nothing fails");
        kernel::load_house(&cuda).expect("nothing to do");
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

/// Memory that is not aligned as heaps need is refused in words, and goes back; that it cannot go back is told too.
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
            let (before, told) = (fake.calls(free), cuda.deferred().len());
            let refused = match free {
                "cuMemFree_v2" => cuda.allocate(MIB).map(drop),
                _ => cuda.pin(MIB, HostKind::Cached).map(drop),
            };
            let refused = refused.expect_err("not aligned");
            assert_eq!(refused.kind, DriverErrorKind::NotSupported);
            assert!(refused.message.contains("not 512-byte aligned"), "{refused}");
            assert_eq!(fake.calls(free), before + 1, "{free}");
            assert_eq!(cuda.deferred().len(), told + usize::from(fails));
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

/// What `Cuda::new` says in a process of its own with this driver and this environment.
fn opened(driver: &Path, environment: &[(&str, &str)]) -> String {
    let exe = std::env::current_exe().expect("this test");
    let out = Command::new(exe)
        .args(["--exact", "child_opens_the_driver", "--ignored", "--nocapture"])
        .env("MILLPOND_LIBCUDA", driver)
        .envs(environment.iter().copied())
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !text.contains("panicked"), "{text}");
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
        Err(e) => format!("{e:?}"),
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
    let table = include_str!("../src/driver/cuda/table.rs");
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
    // Every eighth in an ordinary run, all of them where somebody asks for it: a process each.
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
fn an_old_driver_no_driver_and_no_device_are_told_apart() {
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
    assert!(none.contains("NoDevice") || none.contains("code: 100"), "{none}");
    let missing = opened(Path::new("/nowhere/libcuda.so.1"), &[]);
    assert!(missing.starts_with("DriverMissing"), "{missing}");
    let garbage = folder().join("garbage.so");
    std::fs::write(&garbage, "this is no library").expect("a file");
    assert!(opened(&garbage, &[]).starts_with("DriverMissing"));
}

#[test]
fn a_driver_that_is_gone_is_left_in_peace() {
    let Some(fake) = fake(When::Earliest) else { return };
    let cuda = Cuda::new(0).expect("the stand-in");
    let gpu = Allocator::new(cuda, Config::default()).expect("an allocator");
    let s = gpu.stream().expect("a stream");
    let block = gpu.alloc(MIB, &s).expect("memory");
    fake.lose_context(719);
    let refused = gpu.alloc(64 * MIB, &s).expect_err("the context is lost");
    assert!(matches!(&refused, Error::Driver(e) if e.kind == DriverErrorKind::ContextLost), "{refused}");
    drop((block, s, gpu));
}

/// What a destructor could not do is kept for whoever asks, by the name of its call, unless it only says that the driver was
/// shut down, as at the end of a process; in cudarc's own error state, which the next call of a stranger would meet, none
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
        let told = cuda.deferred();
        let calls: Vec<_> = told.iter().map(|e| (e.call, e.code)).collect();
        let expected =
            ["cuMemFree", "cuMemFreeHost", "cuEventDestroy", "cuStreamDestroy"].map(|call| (call, code));
        assert_eq!(calls, if kept { expected.to_vec() } else { Vec::new() });
        theirs.check_err().expect("cudarc knows nothing of it");
        theirs.new_stream().expect("and its next call is none the worse");
    }
}
