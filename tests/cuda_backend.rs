//! The CUDA backend on whichever driver there is: the stand-in if it was built (`cargo build -p millpond-fake-libcuda`),
//! else a real one; with neither, each test says that it was skipped.
//!
//! What is particular to this backend is tested here: contexts, whose streams are, captures, options, our kernels. What
//! every device must do is the conformance suite's. On the stand-in each test ends with the oracle's verdict and with
//! nothing left behind.

#![cfg(feature = "cuda")]

#[path = "fake_libcuda/remote.rs"]
mod remote;

use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use millpond::cuda::{Backing, Cuda, GpuStream};
use millpond::driver::{
    Copies, Driver, DriverResult, Fences, Host, HostKind, Mapping, Memory, StreamKind, StreamOptions,
};
use millpond::trace::{BlockNo, Call, Log, StreamNo, ThreadNo};
use millpond::units::Addr;
use millpond::{Allocator, Config, DriverErrorKind, Error, Trim, Unavailable};
use millpond_replay::{Workload, replay_log};
// For the code that is made there once (`millpond_testkit::compiled`).
use millpond_testkit::dice::Dice;
use remote::{Fake, When};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(20);
/// More checks than there are slots.
const MANY: u64 = (1 << 16) + 3;

/// A device to oneself.
struct Rig {
    cuda: Cuda,
    fake: Option<Fake>,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

fn rig_with(when: When) -> Option<Rig> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fake = remote::fake(1 << 30, 2, when);
    match Cuda::new(0) {
        Ok(cuda) => Some(Rig { cuda, fake, _turn: turn }),
        Err(why @ (Unavailable::DriverMissing { .. } | Unavailable::NoDevice { .. })) => {
            remote::skipped(&why.to_string());
            None
        }
        Err(why) => panic!("{why}"),
    }
}

fn rig() -> Option<Rig> {
    rig_with(When::Latest)
}

impl Rig {
    /// Everything was given back and, where there is an oracle, lawful.
    fn clean(self) {
        assert_eq!(self.cuda.outstanding(), Vec::<String>::new());
        assert_eq!(self.cuda.deferred(), Vec::new());
        let Rig { cuda, fake, _turn } = self;
        drop(cuda);
        if let Some(fake) = fake {
            assert_eq!(fake.verdict(), None);
            assert_eq!(fake.leaks(), None);
        }
    }
    fn calls_of(&self, name: &str) -> u64 {
        self.cuda.calls().iter().find(|(n, _)| *n == name).map_or(0, |&(_, n)| n)
    }
}

fn stream(cuda: &Cuda) -> GpuStream {
    cuda.create_stream(StreamOptions::default()).expect("a stream")
}

fn read(cuda: &Cuda, from: Addr, bytes: usize, on: &GpuStream) -> Vec<u8> {
    let mut into = vec![0_u8; bytes];
    // SAFETY: the vector is as long and waited for below; the range is the caller's on this stream.
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    unsafe { cuda.copy_d2h(into.as_mut_ptr(), from, bytes as u64, on) }.expect("copied");
    cuda.synchronize_stream(on).expect("there");
    into
}

fn kind<T: std::fmt::Debug>(result: DriverResult<T>) -> DriverErrorKind {
    result.expect_err("refused").kind
}

/// Nothing is current on this thread, as on a thread that never saw CUDA.
fn nothing_is_current() {
    let current = result::ctx::get_current().expect("asked");
    assert!(current.is_none(), "the backend left its context current");
}

#[test]
#[allow(unsafe_code, reason = "a copy by addresses")]
fn every_path_binds_its_context_and_leaves_none_behind() {
    let Some(rig) = rig() else { return };
    let cuda = rig.cuda.clone();
    std::thread::spawn(move || {
        nothing_is_current();
        let range = cuda.allocate(2 * MIB).expect("memory");
        nothing_is_current();
        let page = cuda.pin(4096, HostKind::WriteCombined).expect("pinned");
        let s = stream(&cuda);
        nothing_is_current();
        let event = cuda.create_event().expect("an event");
        cuda.write_pattern(&s, range.addr(), 4096, 7).expect("launched");
        // SAFETY: nothing refers to the page.
        unsafe { cuda.copy_anywhere(&s, page.addr(), range.addr(), 4096) }.expect("copied");
        cuda.record(&event, &s).expect("recorded");
        cuda.wait(&s, &event).expect("waits");
        cuda.record_context(&event).expect("recorded");
        nothing_is_current();
        assert!(cuda.wait_event(&event, LONG).expect("asked"));
        cuda.record(&event, &s).expect("recorded");
        assert!(cuda.wait_event(&event, Duration::MAX).expect("waited for"));
        cuda.synchronize_stream(&s).expect("done");
        cuda.synchronize_device().expect("done");
        nothing_is_current();
        assert!(cuda.memory_info().expect("asked").total > 0);
        range.release().expect("freed");
        page.release().expect("unpinned");
        drop((event, s));
        nothing_is_current();
    })
    .join()
    .expect("no panic");
    rig.clean();
}

/// The last reference to a stream of cudarc's destroys it, for which cudarc makes its own context current.
#[test]
fn the_last_reference_to_an_adopted_stream_leaves_no_context_behind() {
    let Some(rig) = rig() else { return };
    let theirs = CudaContext::new(0).expect("cudarc's context");
    let adopted = rig.cuda.adopt(theirs.new_stream().expect("a stream")).expect("adopted");
    let destroyed = rig.fake.as_ref().map(|f| f.calls("cuStreamDestroy_v2"));
    std::thread::spawn(move || {
        nothing_is_current();
        drop(adopted);
        nothing_is_current();
    })
    .join()
    .expect("no panic");
    if let (Some(fake), Some(before)) = (&rig.fake, destroyed) {
        assert_eq!(fake.calls("cuStreamDestroy_v2"), before + 1, "it was the last");
    }
    drop(theirs);
    rig.clean();
}

#[test]
fn what_was_current_comes_back() {
    let Some(rig) = rig() else { return };
    if Cuda::devices().expect("counted") < 2 {
        remote::skipped("this needs two devices");
        return rig.clean();
    }
    let second = CudaContext::new(1).expect("the other device's context");
    second.bind_to_thread().expect("bound");
    let range = rig.cuda.allocate(MIB).expect("memory");
    let s = stream(&rig.cuda);
    rig.cuda.write_pattern(&s, range.addr(), MIB, 1).expect("launched");
    rig.cuda.synchronize_stream(&s).expect("done");
    drop((range, s));
    assert_eq!(result::ctx::get_current().expect("asked"), Some(second.cu_ctx()));
    drop(second);
    rig.clean();
}

#[test]
fn values_of_one_context_share_its_timelines_and_other_devices_streams_are_found() {
    let Some(rig) = rig() else { return };
    let again = Cuda::new(0).expect("the same device");
    assert!(std::ptr::eq(again.slot(), rig.cuda.slot()));
    let theirs = CudaContext::new(0).expect("cudarc's");
    let through = Cuda::from_context(Arc::clone(&theirs)).expect("the same context");
    assert_eq!(through.context(), theirs.cu_ctx());
    assert!(std::ptr::eq(through.slot(), rig.cuda.slot()), "the primary context is one");
    if Cuda::devices().expect("counted") > 1 {
        let other = CudaContext::new(1).expect("the other device's context");
        let strange = other.new_stream().expect("a stream there");
        let adopted = rig.cuda.adopt(strange).expect("adopted to be looked at");
        assert_eq!(adopted.info().device.0, 1);
        let gpu = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
        assert!(matches!(gpu.adopt(adopted), Err(Error::WrongDevice { .. })));
        assert_eq!(kind(rig.cuda.adopt(other.default_stream())), DriverErrorKind::InvalidHandle);
    }
    drop((again, through, theirs));
    assert_eq!(
        Cuda::new(99).err(),
        Some(Unavailable::NoDevice { requested: 99, found: Cuda::devices().unwrap() })
    );
    rig.clean();
}

#[test]
fn two_devices_have_an_allocator_each_and_refuse_each_others_streams_and_ranges() {
    let Some(rig) = rig() else { return };
    if Cuda::devices().expect("counted") < 2 {
        remote::skipped("this needs two devices");
        return rig.clean();
    }
    let other = Cuda::new(1).expect("the other device");
    assert!(!std::ptr::eq(other.slot(), rig.cuda.slot()), "each device has timelines of its own");
    let here = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
    let there = Allocator::new(other.clone(), Config::default()).expect("an allocator");
    let (s, t) = (here.stream().expect("a stream"), there.stream().expect("a stream"));
    let (x, y) = (here.alloc(MIB, &s).expect("memory"), there.alloc(MIB, &t).expect("memory"));
    assert_eq!((here.device().0, there.device().0), (0, 1));
    for refused in [here.alloc(MIB, &t).map(drop), x.record_use(&t), x.share_with(&t)] {
        assert!(
            matches!(refused, Err(Error::WrongDevice { found, expected }) if (found.0, expected.0) == (1, 0)),
            "{refused:?}"
        );
    }
    assert!(matches!(y.record_use(&s), Err(Error::WrongDevice { .. })));
    let strange = rig.cuda.write_pattern(t.native(), x.address(), 8, 0);
    assert_eq!(kind(strange), DriverErrorKind::InvalidHandle, "a stream of the other device");
    let strange = rig.cuda.write_pattern(s.native(), y.address(), 8, 0);
    assert_eq!(kind(strange), DriverErrorKind::InvalidValue, "a range of the other device");
    // What may cross is order, by an event.
    rig.cuda.write_pattern(s.native(), x.address(), MIB, 1).expect("launched");
    t.wait(&s.record().expect("recorded")).expect("one device waits for the other");
    other.write_pattern(t.native(), y.address(), MIB, 2).expect("launched");
    // And arrays, each side on a stream of its own device; both are dropped at once.
    let mut from = here.uninit::<u8>(MIB as usize, &s).expect("the source");
    from.fill_bytes(0x5A, &s).expect("filled");
    let mut to = there.zeros::<u8>(MIB as usize, &t).expect("the target");
    to.copy_from_peer(&from, &s, &t).expect("queued");
    drop(from);
    let came = to.to_pinned(&t).expect("queued");
    drop(to);
    assert!(came.wait().expect("done").iter().all(|&byte| byte == 0x5A), "it came over");
    drop((x, y, s, t));
    drop((here, there));
    assert_eq!((other.outstanding(), other.deferred()), (Vec::new(), Vec::new()));
    drop(other);
    rig.clean();
}

#[test]
#[allow(unsafe_code, reason = "raw handles are promises")]
fn every_kind_of_stream_has_one_identity() {
    let Some(rig) = rig() else { return };
    let cuda = &rig.cuda;
    let theirs = CudaContext::new(0).expect("cudarc's");
    let native = theirs.new_stream().expect("a stream");
    let (a, b) = (cuda.adopt(Arc::clone(&native)).unwrap(), cuda.adopt(Arc::clone(&native)).unwrap());
    assert_eq!(a.info(), b.info(), "one stream, adopted twice");
    assert_eq!(a.info().kind, StreamKind::NonBlocking);
    // SAFETY: `native` outlives both.
    let raw = unsafe { cuda.raw_stream(native.cu_stream()) }.expect("the driver has ids");
    assert_eq!(raw.info(), a.info());
    // SAFETY: as above; permanent as far as this test goes.
    let permanent = unsafe { cuda.permanent_stream(native.cu_stream()) }.expect("declared");
    assert_eq!(permanent.info(), a.info());

    let blocking =
        cuda.create_stream(StreamOptions::default().blocking(true).priority(-1)).expect("a stream");
    assert_eq!(blocking.info().kind, StreamKind::Blocking);
    let legacy = cuda.legacy_stream().expect("the legacy stream");
    assert_eq!(legacy.info().kind, StreamKind::LegacyDefault);
    assert_eq!(cuda.adopt(theirs.default_stream()).unwrap().info(), legacy.info(), "0 means legacy");
    let mine = cuda.per_thread_stream().expect("this thread's");
    assert_eq!(cuda.adopt(theirs.per_thread_stream()).unwrap().info(), mine.info());
    let range = cuda.allocate(MIB).expect("memory");
    let elsewhere = std::thread::scope(|s| {
        s.spawn(|| {
            let event = cuda.create_event().expect("an event");
            let launched = cuda.write_pattern(&mine, range.addr(), 8, 0);
            for refused in [cuda.record(&event, &mine), launched] {
                let e = refused.expect_err("another thread's stream");
                assert_eq!(e.kind, DriverErrorKind::InvalidHandle);
                assert!(e.message.contains("another thread's default stream"), "{e}");
            }
            cuda.per_thread_stream().expect("that thread's")
        })
        .join()
        .expect("no panic")
    });
    assert_ne!(elsewhere.info().id, mine.info().id);
    // No reference is needed to get a default stream: whether its thread has ended does not follow from the reference.
    assert_eq!([&elsewhere, &mine].map(|s| cuda.is_last_reference(s)), [false; 2]);
    drop(range);

    // The handle's value comes back, the id does not.
    let mut ids = std::collections::HashSet::new();
    for _ in 0..20 {
        assert!(ids.insert(stream(cuda).info().id), "an id came back");
    }
    for s in [&a, &blocking, &legacy, &mine, &elsewhere] {
        assert!(ids.insert(s.info().id), "two streams with one id");
    }
    drop((a, b, raw, permanent, native, blocking, legacy, mine, elsewhere, theirs));
    rig.clean();
}

/// Of streams with work to run a device takes the one with the lowest number first. The driver itself says what each
/// was made with: what was requested, cut to the device's range.
#[test]
#[allow(unsafe_code, reason = "the driver's own answers")]
fn a_stream_has_the_requested_priority() {
    let Some(rig) = rig() else { return };
    let theirs = CudaContext::new(0).expect("a context for the questions");
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: the pointers are locals'.
    let code = unsafe { sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    assert!(greatest < least, "a device that knows priorities: {greatest} to {least}");
    for blocking in [false, true] {
        for (asked, given) in
            [(0, 0), (-1, -1), (greatest, greatest), (i32::MIN, greatest), (i32::MAX, least)]
        {
            let made = rig
                .cuda
                .create_stream(StreamOptions::default().blocking(blocking).priority(asked))
                .expect("a stream");
            let mut found = 1;
            // SAFETY: the pointer is a local's, and the stream is alive.
            let code = unsafe { sys::cuStreamGetPriority(made.handle(), &raw mut found) };
            assert_eq!((code, found), (sys::CUresult::CUDA_SUCCESS, given), "asked for {asked}");
        }
    }
    drop(theirs);
    rig.clean();
}

#[test]
fn a_capture_by_other_code_survives_beside_a_growing_trimming_waiting_allocator() {
    let Some(rig) = rig() else { return };
    let theirs = CudaContext::new(0).expect("cudarc's");
    let native = theirs.new_stream().expect("a stream");
    let known = rig.cuda.adopt(Arc::clone(&native)).expect("adopted before the capture");
    let gpu = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
    let (home, other) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let foreign = gpu.adopt(known.clone()).expect("adopted by the allocator");
    let before = gpu.alloc(MIB, &home).expect("memory");
    let event = rig.cuda.create_event().expect("an event");

    native.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("begun");
    assert!(rig.cuda.is_capturing(&known).expect("harmless"));
    assert!(matches!(gpu.alloc(512, &foreign), Err(Error::Capturing { .. })));
    assert!(matches!(before.record_use(&foreign), Err(Error::Capturing { .. })));
    assert_eq!(
        kind(rig.cuda.adopt(Arc::clone(&native))),
        DriverErrorKind::Capturing,
        "who are you, mid-capture"
    );
    assert_eq!(
        kind(rig.cuda.record_context(&event)),
        DriverErrorKind::Capturing,
        "it would destroy the capture"
    );
    let big = gpu.alloc(64 * MIB, &home).expect("grown beside the capture");
    big.record_use(&other).expect("used");
    drop(big);
    let again = gpu.alloc(64 * MIB, &other).expect("reused, migrated or grown");
    drop(again);
    gpu.trim(Trim::All).expect("trimmed what is complete");
    let pinned = gpu.alloc_pinned(MIB).expect("pinned beside the capture");
    drop(pinned);
    ended(&native).unwrap_or_else(|code| panic!("the capture was lost: code {}", code as u32));
    assert!(!rig.cuda.is_capturing(&known).expect("asked"));
    rig.cuda.record_context(&event).expect("no capture is open now");
    drop((before, home, other, foreign, known, event));
    drop(gpu);
    drop((native, theirs));
    rig.clean();
}

/// Every stream that is known is queried before a context-wide marker is recorded, not the first alone: whichever captures, the
/// marker is refused and the capture lives.
#[test]
fn a_capture_on_any_known_stream_survives_a_context_wide_marker() {
    let Some(rig) = rig() else { return };
    let theirs = CudaContext::new(0).expect("cudarc's");
    let natives = [(); 3].map(|()| theirs.new_stream().expect("a stream"));
    let known = natives.each_ref().map(|native| rig.cuda.adopt(Arc::clone(native)).expect("adopted"));
    let event = rig.cuda.create_event().expect("an event");
    for native in &natives {
        native.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("begun");
        assert_eq!(kind(rig.cuda.record_context(&event)), DriverErrorKind::Capturing);
        ended(native).unwrap_or_else(|code| panic!("the capture was lost: code {}", code as u32));
    }
    rig.cuda.record_context(&event).expect("no capture is open now");
    drop((known, event, natives, theirs));
    rig.clean();
}

/// Why a marker that was recorded in a capture by other code may be thrown away: it is no part of the graph.
#[test]
#[allow(unsafe_code, reason = "a graph's nodes are counted")]
fn a_record_adds_nothing_to_a_graph() {
    let Some(rig) = rig() else { return };
    let theirs = CudaContext::new(0).expect("cudarc's");
    let native = theirs.new_stream().expect("a stream");
    let known = rig.cuda.adopt(Arc::clone(&native)).expect("adopted");
    let event = rig.cuda.create_event().expect("an event");
    for records in 0..3 {
        native.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("begun");
        for _ in 0..records {
            rig.cuda.record(&event, &known).expect("recorded");
        }
        // SAFETY: the stream is alive, and its capture began on it.
        let graph = unsafe { result::stream::end_capture(native.cu_stream()) }.expect("ended well");
        let mut nodes = usize::MAX;
        // SAFETY: no nodes are requested, only how many there are.
        let counted = unsafe { sys::cuGraphGetNodes(graph, core::ptr::null_mut(), &raw mut nodes) };
        assert_eq!((counted, nodes), (sys::CUresult::CUDA_SUCCESS, 0), "{records} records");
        // SAFETY: ended above, and nothing uses it.
        unsafe { result::graph::destroy(graph) }.expect("destroyed");
    }
    drop((known, event, native, theirs));
    rig.clean();
}

/// Ends the capture that began on a stream: the driver's code, if it was lost.
#[allow(unsafe_code, reason = "the end of a capture, without making a graph executable")]
fn ended(native: &CudaStream) -> Result<(), sys::CUresult> {
    // SAFETY: the stream is alive, and its capture began on it.
    let graph = unsafe { result::stream::end_capture(native.cu_stream()) }.map_err(|e| e.0)?;
    // SAFETY: ended above, and nothing uses it.
    unsafe { result::graph::destroy(graph) }.expect("destroyed");
    Ok(())
}

/// Why the backend asks whether a stream captures before it asks anything else about it.
#[test]
#[allow(unsafe_code, reason = "foreign calls")]
fn asking_a_captured_stream_what_it_is_ends_the_capture() {
    let Some(rig) = rig() else { return };
    let theirs = CudaContext::new(0).expect("cudarc's");
    theirs.bind_to_thread().expect("bound");
    let native = theirs.new_stream().expect("a stream");
    let on = native.cu_stream();
    let (mut flags, mut device, mut id) = (0, 0, 0);
    // SAFETY: the stream is alive, and the pointers are locals'.
    let mut flags = || unsafe { sys::cuStreamGetFlags(on, &raw mut flags) };
    // SAFETY: as above.
    let mut device = || unsafe { sys::cuStreamGetDevice(on, &raw mut device) };
    // SAFETY: as above.
    let mut id = || unsafe { sys::cuStreamGetId(on, &raw mut id) };
    let questions: [(&str, &mut dyn FnMut() -> sys::CUresult); 3] =
        [("its flags", &mut flags), ("its device", &mut device), ("its id", &mut id)];
    for (what, ask) in questions {
        assert_eq!(ask(), sys::CUresult::CUDA_SUCCESS, "{what}");
        native.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("begun");
        assert_eq!(ask(), sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{what}");
        let lost = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        assert_eq!(ended(&native), Err(lost), "{what} was reported, and the capture survives");
        assert_eq!(ask(), sys::CUresult::CUDA_SUCCESS, "{what}, behind the capture");
    }
    drop((native, theirs));
    rig.clean();
}

/// Segments from a pool of the driver's: to take one ends a capture, unless in a relaxed batch.
#[test]
#[allow(unsafe_code, reason = "the end of a capture, and memory of the device")]
fn a_stream_ordered_segment_ends_a_capture_outside_a_relaxed_batch() {
    let Some(rig) = rig() else { return };
    let pooled = rig.cuda.clone().backing(Backing::Async { keep: 0 }).expect("the device has pools");
    let theirs = CudaContext::new(0).expect("cudarc's");
    let native = theirs.new_stream().expect("a stream");
    for relaxed in [true, false] {
        native.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("begun");
        let take = || pooled.allocate_raw(2 * MIB);
        let taken = if relaxed { pooled.relaxed(take) } else { take() };
        let ended = ended(&native);
        assert_eq!((taken.is_ok(), ended.is_ok()), (relaxed, relaxed), "{taken:?}, {ended:?}");
        match taken {
            // SAFETY: taken above, whole, and never used.
            Ok(addr) => unsafe { pooled.free_raw(addr, 2 * MIB) }.expect("freed"),
            Err(e) => assert_eq!(e.kind, DriverErrorKind::Capturing, "{e}"),
        }
    }
    drop((pooled, native, theirs));
    rig.clean();
}

/// The last value of a context gives back its kernels, and what they needed, in the middle of a capture by other code.
#[test]
fn a_capture_by_other_code_survives_the_end_of_the_backend() {
    let Some(rig) = rig() else { return };
    let theirs = CudaContext::new(0).expect("cudarc's");
    let native = theirs.new_stream().expect("a stream");
    let own = stream(&rig.cuda);
    drop(rig.cuda.gate(&own, LONG).expect("a gate, which pins its words"));
    rig.cuda.synchronize_stream(&own).expect("it is open");
    drop(own);
    native.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("begun");
    let Rig { cuda, fake, _turn } = rig;
    let freed = || fake.as_ref().map(|f| f.calls("cuMemFreeHost"));
    let before = freed();
    drop(cuda);
    assert_eq!(freed(), before.map(|n| n + 1), "it was the last");
    ended(&native).unwrap_or_else(|code| panic!("the capture was lost: code {}", code as u32));
    drop((native, theirs));
    if let Some(fake) = fake {
        assert_eq!((fake.verdict(), fake.leaks()), (None, None));
    }
}

#[test]
#[allow(unsafe_code, reason = "wrong frees are tried")]
fn memory_is_aligned_and_wrong_frees_are_refused_in_words() {
    let Some(rig) = rig() else { return };
    let cuda = &rig.cuda;
    let range = cuda.allocate(MIB).expect("memory");
    assert!(range.addr().0.is_multiple_of(512));
    for bad in [0, 511, 513] {
        let e = cuda.allocate_raw(bad).expect_err("refused");
        assert!(e.kind == DriverErrorKind::InvalidValue && e.message.contains(&bad.to_string()), "{e}");
        assert_eq!(kind(cuda.pin_raw(bad, HostKind::Cached)), DriverErrorKind::InvalidValue);
    }
    // SAFETY: refused before any driver call.
    let e = unsafe { cuda.free_raw(range.addr(), 512) }.expect_err("not the whole range");
    assert!(e.message.contains("free each range whole"), "{e}");
    // SAFETY: refused before any driver call.
    let inside = unsafe { cuda.free_raw(Addr(range.addr().0 + 512), MIB) };
    assert_eq!(kind(inside), DriverErrorKind::InvalidValue);
    let all = cuda.memory_info().expect("asked").total;
    let e = cuda.allocate_raw(all.next_multiple_of(512) * 2).expect_err("twice the device");
    assert!(e.is_out_of_memory() && e.code == 2 && e.call == "cuMemAlloc", "{e}");
    assert!(e.message.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{e}");

    let page = cuda.pin(4096, HostKind::Cached).expect("pinned");
    // SAFETY: the range is pinned and no other reference to it exists.
    let bytes = unsafe { std::slice::from_raw_parts(page.ptr().as_ptr(), 4096) };
    assert!(bytes.iter().all(|&b| b == 0), "zeroed when new");
    drop((range, page));
    rig.clean();
}

#[test]
fn options_say_where_segments_come_from_and_wipe_them() {
    let Some(rig) = rig() else { return };
    let pooled = rig.cuda.clone().backing(Backing::Async { keep: 0 }).expect("the device has pools");
    let range = pooled.allocate(4 * MIB).expect("memory");
    assert!(range.addr().0.is_multiple_of(512));
    let s = stream(&rig.cuda);
    rig.cuda.write_pattern(&s, range.addr(), 4 * MIB, 5).expect("usable on any stream at once");
    rig.cuda.synchronize_stream(&s).expect("done");
    let plain_frees = rig.calls_of("cuMemFree");
    range.release().expect("back to its pool");
    assert_eq!(
        rig.calls_of("cuMemFree"),
        plain_frees,
        "a pooled range never goes through the free that waits"
    );
    assert_eq!(rig.calls_of("cuMemFreeAsync"), 1);

    // A range goes back where it came from, whichever value frees it.
    let range = pooled.allocate_raw(MIB).expect("memory");
    // SAFETY: it came whole from this context, and nothing uses it.
    #[allow(unsafe_code, reason = "freed through another value")]
    unsafe { rig.cuda.free_raw(range, MIB) }.expect("freed");
    assert_eq!(rig.calls_of("cuMemFreeAsync"), 2);

    let gpu = Allocator::new(pooled.clone(), Config::default()).expect("an allocator");
    let home = gpu.stream().expect("a stream");
    drop(gpu.alloc(30 * MIB, &home).expect("memory"));
    drop((home, gpu));

    let wiping = rig.cuda.clone().scrub(true);
    // What overwrites first spares no use that it was not waited for.
    assert!(rig.cuda.free_spares_uses() && rig.cuda.unpin_spares_uses() && !pooled.free_spares_uses());
    let pooled_and_wiping = pooled.clone().scrub(true);
    assert!(pooled_and_wiping.free_waits_for_device() && !pooled_and_wiping.free_spares_uses());
    assert!(!wiping.free_spares_uses() && !wiping.unpin_spares_uses());
    drop(pooled_and_wiping);
    let fills = rig.calls_of("cuMemsetD8Async");
    let (range, page) =
        (wiping.allocate(MIB).expect("memory"), wiping.pin(4096, HostKind::Cached).expect("page"));
    drop((range, page));
    assert_eq!(rig.calls_of("cuMemsetD8Async"), fills + 1, "the segment is overwritten before it goes back");
    // An allocator that scrubs wipes at the allocation and before the segment goes back; one that does not, never.
    for (scrub, wiped) in [(true, 2), (false, 0)] {
        let fills = rig.calls_of("cuMemsetD8Async");
        let gpu = Allocator::new(rig.cuda.clone(), Config::default().scrub(scrub)).expect("an allocator");
        let home = gpu.stream().expect("a stream");
        drop(gpu.alloc(MIB, &home).expect("memory"));
        drop((home, gpu));
        assert_eq!(rig.calls_of("cuMemsetD8Async"), fills + wiped, "scrub {scrub}");
    }
    let counted = rig.cuda.calls();
    let quiet = rig.cuda.clone().count(false);
    drop(quiet.allocate(MIB).expect("memory"));
    assert_eq!(rig.cuda.calls(), counted, "counting is off for the context");
    drop((pooled, wiping, quiet, s));
    rig.clean();
}

/// C4: an allocator's segments come from plain allocations or from a pool of the driver's, its pinned memory from the
/// driver's host allocations; the bytes are as good from each, and each goes back where it came from.
#[test]
#[allow(unsafe_code, reason = "copies by addresses")]
fn c04_sources_of_memory() {
    let Some(rig) = rig() else { return };
    // They have memory of their own.
    rig.cuda.load_kernels().expect("loaded");
    let of_both = |rig: &Rig, calls: [&str; 2]| calls.iter().map(|name| rig.calls_of(name)).sum::<u64>();
    let host_calls = |rig: &Rig| {
        (
            of_both(rig, ["cuMemHostAlloc", "cuMemHostRegister"]),
            of_both(rig, ["cuMemFreeHost", "cuMemHostUnregister"]),
        )
    };
    let host_before = host_calls(&rig);
    let pooled = rig.cuda.clone().backing(Backing::Async { keep: 0 }).expect("the device has pools");
    let plain = ["cuMemAlloc", "cuMemFree"];
    let stream_ordered = ["cuMemAllocFromPoolAsync", "cuMemFreeAsync"];
    for (cuda, used, unused) in [(rig.cuda.clone(), plain, stream_ordered), (pooled, stream_ordered, plain)] {
        let before = [used, unused].concat().iter().map(|name| rig.calls_of(name)).collect::<Vec<_>>();
        let gpu = Allocator::new(cuda, Config::default()).expect("an allocator");
        let (home, other) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
        for word in 1..=20 {
            let block = gpu.alloc(word * MIB, &home).expect("memory");
            rig.cuda.write_pattern(home.native(), block.address(), block.len(), word).expect("launched");
            block.share_with(&other).expect("ordered");
            other.wait_stream(&home).expect("ordered");
            rig.cuda
                .check_pattern(other.native(), block.address(), block.len(), word, None)
                .expect("launched");
        }
        let host = gpu.alloc_pinned(MIB).expect("pinned");
        let block = gpu.alloc(MIB, &home).expect("memory");
        rig.cuda.write_pattern(home.native(), block.address(), MIB, 77).expect("launched");
        host.record_use(&home).expect("recorded");
        // SAFETY: nothing refers to the pinned block.
        unsafe {
            rig.cuda.copy_anywhere(home.native(), host.address(), block.address(), MIB).expect("copied");
            rig.cuda.copy_anywhere(home.native(), block.address(), host.address(), MIB).expect("and back");
        }
        rig.cuda.check_pattern(home.native(), block.address(), MIB, 77, None).expect("launched");
        let growths = gpu.report().growths;
        drop((block, host, home, other));
        drop(gpu);
        assert_eq!(rig.cuda.bad_ranges(true).expect("read").1, 0);
        let after = [used, unused].concat().iter().map(|name| rig.calls_of(name)).collect::<Vec<_>>();
        assert!(growths > 0);
        let expected = [growths, growths, 0, 0];
        let made: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
        assert_eq!(made, expected, "calls of {used:?} and {unused:?}");
    }
    let host_after = host_calls(&rig);
    assert_eq!((host_after.0 - host_before.0, host_after.1 - host_before.1), (2, 2));
    rig.clean();
}

/// A CPU reads write-combined memory many times more slowly: it is requested of the driver where the program requests it, and nowhere
/// else. The driver itself says what was requested.
#[test]
#[allow(unsafe_code, reason = "the driver's own answer")]
fn pinned_memory_is_write_combined_on_request_only() {
    const WRITE_COMBINED: u32 = 4;
    let Some(rig) = rig() else { return };
    {
        let _current = CudaContext::new(0).expect("a context for the question");
        let asked_for = |at: *const u8| {
            let mut flags = 0;
            // SAFETY: the pointer is a local's, and the memory is pinned.
            let code = unsafe { sys::cuMemHostGetFlags(&raw mut flags, at.cast_mut().cast()) };
            // Of registered pages, which are cached, the driver need not have flags.
            let registered = code == sys::CUresult::CUDA_ERROR_INVALID_VALUE && flags == 0;
            assert!(code == sys::CUresult::CUDA_SUCCESS || registered);
            flags & WRITE_COMBINED
        };
        let gpu = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        let block = gpu.alloc_pinned(4096).expect("pinned");
        let array = gpu.pinned_zeros::<u8>(4096).expect("pinned");
        let back = gpu.zeros::<u8>(4096, &s).expect("an array").to_pinned(&s).expect("queued").wait();
        let plain = [block.as_ptr().as_ptr().cast_const(), array.as_ptr(), back.expect("copied").as_ptr()];
        assert_eq!(plain.map(asked_for), [0; 3], "there was no query");
        let cached = gpu.pinned_uninit_as::<u8>(4096, HostKind::Cached).expect("pinned");
        let combined = gpu.pinned_uninit_as::<u8>(4096, HostKind::WriteCombined).expect("pinned");
        assert_eq!([cached.as_ptr(), combined.as_ptr()].map(asked_for), [0, WRITE_COMBINED]);
    }
    rig.clean();
}

/// Safe calls at random addresses in, around and between pinned and device memory change no byte of a pinned array, and are refused
/// wherever they touch one.
#[test]
fn no_safe_call_reaches_pinned_memory() {
    let Some(rig) = rig() else { return };
    {
        let cuda = &rig.cuda;
        let gpu = Allocator::new(cuda.clone(), Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        let on = s.native();
        let text = gpu.pinned_from_fn(4096, |_| b'a').expect("pinned");
        let seen: &str = std::str::from_utf8(&text).expect("letters");
        let block = gpu.alloc(MIB, &s).expect("memory");
        let pinned = seen.as_ptr() as u64;
        let mut dice = Dice::new(1);
        let (mut refused, mut done) = (0, 0);
        for _ in 0..400 {
            let bytes = 1 + dice.number(4096);
            let in_pinned = Addr(pinned + dice.number(4096 - bytes + 1));
            let around = Addr((in_pinned.0 + dice.number(64)).wrapping_sub(dice.number(64)));
            let inside = Addr(block.address().0 + dice.number(MIB / 2));
            let apart = Addr(inside.0 + MIB / 4);
            let word = u64::from_ne_bytes([0xFF; 8]);
            let calls = [
                cuda.copy_between(on, in_pinned, inside, bytes),
                cuda.copy_between(on, inside, in_pinned, bytes),
                cuda.copy_between(on, around, inside, bytes),
                cuda.write_pattern(on, in_pinned, bytes, word),
                cuda.write_pattern(on, around, bytes, word),
                cuda.check_pattern(on, in_pinned, bytes, word, None),
            ];
            for call in calls {
                assert_eq!(kind(call), DriverErrorKind::InvalidValue, "{bytes} bytes at {in_pinned}");
                refused += 1;
            }
            cuda.write_pattern(on, inside, bytes, word).expect("device memory");
            cuda.copy_between(on, apart, inside, bytes).expect("device memory");
            done += 2;
        }
        s.synchronize().expect("waited");
        assert!(seen.bytes().all(|letter| letter == b'a'), "a safe call wrote what a reference leads to");
        assert_eq!((refused, done), (2400, 800));
        drop(block);
    }
    rig.clean();
}

#[test]
#[allow(unsafe_code, reason = "copies work on raw addresses")]
fn copies_move_their_bytes_and_the_safe_one_checks_its_ranges() {
    let Some(rig) = rig() else { return };
    let cuda = &rig.cuda;
    let s = stream(cuda);
    let (a, b) = (cuda.allocate(MIB).expect("memory"), cuda.allocate(MIB).expect("memory"));
    let page = cuda.pin(4096, HostKind::Cached).expect("pinned");
    let source: Vec<u8> = (0..4096_u32).map(|i| (i % 251) as u8).collect();
    // SAFETY: the vector outlives the synchronisation below; the ranges are this test's.
    unsafe { cuda.copy_h2d(a.addr(), source.as_ptr(), 4096, &s) }.expect("sent");
    cuda.copy_between(&s, b.addr(), a.addr(), 4096).expect("inside the device");
    // SAFETY: nothing refers to the page.
    unsafe { cuda.copy_anywhere(&s, page.addr(), b.addr(), 4096) }.expect("out");
    // SAFETY: inside the range, which is this test's.
    unsafe { cuda.fill(Addr(b.addr().0 + 1), 0xEE, 3, &s) }.expect("filled");
    // SAFETY: nothing refers to the page.
    unsafe { cuda.copy_anywhere(&s, Addr(a.addr().0 + 4096), page.addr(), 4096) }.expect("in");
    let got = read(cuda, b.addr(), 8, &s);
    assert_eq!(got, [source[0], 0xEE, 0xEE, 0xEE, source[4], source[5], source[6], source[7]]);
    assert_eq!(read(cuda, Addr(a.addr().0 + 4096), 4096, &s), source);

    // SAFETY: nothing refers to the page.
    let refused = |to: Addr, from: Addr, bytes| kind(unsafe { cuda.copy_anywhere(&s, to, from, bytes) });
    assert_eq!(refused(page.addr(), page.addr(), 8), DriverErrorKind::InvalidValue, "two host ranges");
    assert_eq!(refused(Addr(a.addr().0 + 8), a.addr(), 16), DriverErrorKind::InvalidValue, "an overlap");
    assert_eq!(refused(page.addr(), a.addr(), 8192), DriverErrorKind::InvalidValue, "beyond the page");
    assert_eq!(refused(Addr(64), a.addr(), 8), DriverErrorKind::InvalidValue, "nothing of ours");
    cuda.copy_between(&s, Addr(64), Addr(64), 0).expect("nothing to copy");
    drop((a, b, page, s));
    rig.clean();
}

#[test]
fn our_kernels_fill_check_and_say_what_is_wrong() {
    let Some(rig) = rig() else { return };
    let cuda = &rig.cuda;
    let s = stream(cuda);
    let range = cuda.allocate(4 * MIB).expect("memory");
    let (at, word) = (range.addr(), 0x0102_0304_0506_0708);
    cuda.write_pattern(&s, at, 4 * MIB, word).expect("launched");
    cuda.check_pattern(&s, at, 4 * MIB, word, None).expect("launched");
    // A length that is no whole number of words, and an address between words.
    cuda.write_pattern(&s, at, 8 * 100 + 5, !word).expect("launched");
    cuda.check_pattern(&s, at, 8 * 100 + 5, !word, None).expect("launched");
    cuda.write_pattern(&s, Addr(at.0 + 3), 77, word).expect("launched");
    cuda.check_pattern(&s, Addr(at.0 + 3), 77, word, None).expect("launched");
    assert_eq!(cuda.bad_ranges(true).expect("read"), (Vec::new(), 0));
    assert_eq!(read(cuda, Addr(at.0 + 3), 9, &s), [8, 7, 6, 5, 4, 3, 2, 1, 8]);

    // One word of the range is another's.
    cuda.write_pattern(&s, at, MIB, word).expect("launched");
    cuda.write_pattern(&s, Addr(at.0 + 4096), 16, 99).expect("launched");
    cuda.check_pattern(&s, at, MIB, word, None).expect("launched");
    let (bad, total) = cuda.bad_ranges(true).expect("read");
    assert_eq!((bad.len(), total), (1, 1));
    let b = &bad[0];
    assert_eq!((b.stream, b.addr, b.bytes), (s.info().id, at, MIB));
    assert_eq!((b.offset, b.words, b.found, b.expected), (4096, 2, 99, word));
    let said = b.to_string();
    assert!(said.contains("2 words differ") && said.contains("4096 bytes into it"), "{said}");

    let outside = cuda.write_pattern(&s, Addr(at.0 + 4 * MIB - 8), 16, 0).expect_err("beyond the range");
    assert!(outside.message.contains("not wholly inside memory"), "{outside}");
    assert_eq!(kind(cuda.check_pattern(&s, Addr(8), 8, 0, None)), DriverErrorKind::InvalidValue);
    let checks = cuda.checks();
    assert_eq!(checks, 4, "what was refused was not queued");
    drop((range, s));
    rig.clean();
}

#[test]
fn checks_go_on_when_their_slots_are_used_up() {
    let Some(rig) = rig_with(When::Earliest) else { return };
    let cuda = &rig.cuda;
    let s = stream(cuda);
    let range = cuda.allocate(MIB).expect("memory");
    cuda.write_pattern(&s, range.addr(), 512, 1).expect("launched");
    for n in 0..MANY {
        // Two of the first lap and one of the second are wrong.
        let word = if matches!(n, 5 | 6 | 65_537) { 2 } else { 1 };
        cuda.check_pattern(&s, range.addr(), 8, word, None).expect("launched");
    }
    let (bad, before) = cuda.bad_ranges(false).expect("no waiting");
    assert_eq!((bad.len(), before), (2, 2), "the first lap is over");
    let (bad, total) = cuda.bad_ranges(true).expect("read");
    assert_eq!((bad.len(), total, cuda.checks()), (3, 3, MANY));
    assert!(bad.iter().all(|b| b.expected == 2 && b.found == 1 && b.words == 1));
    drop((range, s));
    rig.clean();
}

#[test]
fn a_gate_holds_its_stream_until_it_is_opened_or_its_time_is_over() {
    let Some(rig) = rig() else { return };
    let cuda = &rig.cuda;
    let (held, free) = (stream(cuda), stream(cuda));
    let range = cuda.allocate(MIB).expect("memory");
    cuda.load_kernels().expect("loaded");
    let gate = cuda.gate(&held, LONG).expect("closed");
    cuda.write_pattern(&held, range.addr(), MIB, 3).expect("queued behind it");
    let (behind, beside) = (cuda.create_event().unwrap(), cuda.create_event().unwrap());
    cuda.record(&behind, &held).expect("recorded");
    cuda.record(&beside, &free).expect("recorded");
    assert!(cuda.wait_event(&beside, LONG).expect("asked"), "another stream goes on");
    for _ in 0..100 {
        assert!(!cuda.query(&behind).expect("asked"), "behind a closed gate");
    }
    gate.open();
    assert!(cuda.wait_event(&behind, LONG).expect("asked"));
    assert!(gate.is_reached() && !gate.timed_out());
    drop(gate);

    let short = cuda.gate(&held, Duration::from_micros(50)).expect("closed");
    cuda.synchronize_stream(&held).expect("its time is over");
    assert!(short.timed_out(), "it was never opened");
    drop(short);
    // Dropped, it opens: the cells are used again.
    for _ in 0..200 {
        drop(cuda.gate(&held, LONG).expect("closed"));
    }
    cuda.synchronize_stream(&held).expect("all opened");
    cuda.check_pattern(&held, range.addr(), MIB, 3, None).expect("launched");
    assert_eq!(cuda.bad_ranges(true).expect("read").1, 0);
    drop((range, behind, beside, held, free));
    rig.clean();
}

#[test]
#[allow(unsafe_code, reason = "mapping works on raw addresses")]
fn a_handle_keeps_its_contents_from_address_to_address() {
    let Some(rig) = rig() else { return };
    let cuda = &rig.cuda;
    let Some(facts) = cuda.mapping() else {
        remote::skipped("this device has no virtual memory management");
        return rig.clean();
    };
    let unit = facts.granularity;
    let s = stream(cuda);
    let space = cuda.reserve(4 * unit, None).expect("addresses");
    let handle = cuda.create(unit).expect("memory");
    assert_eq!(handle.bytes(), unit);
    let second = Addr(space.0 + unit);
    // SAFETY: the addresses are this test's and free.
    unsafe { cuda.map(space, &handle) }.expect("mapped");
    // SAFETY: as above.
    unsafe { cuda.set_access(space, unit) }.expect("usable");
    cuda.write_pattern(&s, space, unit, 0xABCD).expect("launched");
    // SAFETY: as above; one handle may be mapped twice.
    unsafe { cuda.map(second, &handle) }.expect("mapped again");
    // SAFETY: as above.
    unsafe { cuda.set_access(second, unit) }.expect("usable");
    cuda.check_pattern(&s, second, unit, 0xABCD, None).expect("launched");
    assert_eq!(cuda.bad_ranges(true).expect("read").1, 0, "two addresses, one memory");
    // SAFETY: everything is complete.
    unsafe { cuda.unmap(space, unit) }.expect("unmapped");
    assert_eq!(kind(cuda.write_pattern(&s, space, 8, 0)), DriverErrorKind::InvalidValue, "no longer ours");
    cuda.check_pattern(&s, second, unit, 0xABCD, None).expect("still there");
    assert_eq!(cuda.bad_ranges(true).expect("read").1, 0);
    for bad in [0, unit / 2, unit + 512] {
        let e = cuda.create(bad).expect_err("no whole handle");
        assert!(e.message.contains(&unit.to_string()), "{e}");
    }
    // SAFETY: everything is complete, and each thing goes once.
    unsafe { cuda.unmap(second, unit) }.expect("unmapped");
    // SAFETY: as above.
    unsafe { cuda.release(&handle) }.expect("released");
    // SAFETY: as above.
    unsafe { cuda.unreserve(space, 4 * unit) }.expect("given back");
    drop(s);
    rig.clean();
}

/// What the device may do with an address, as the driver says: 3 is reading and writing. `None` where it has no answer.
#[allow(unsafe_code, reason = "foreign calls")]
fn rights(cuda: &Cuda, at: Addr) -> Option<u64> {
    // A kind, of which 1 is a device, and a number: in every version of the driver, though cudarc's fields change.
    let (location, mut found) = ([1, cuda.device().0], u64::MAX);
    // SAFETY: both pointers are locals', and the location is as long as the driver's.
    let code = unsafe { sys::cuMemGetAccess(&raw mut found, (&raw const location).cast(), at.0) };
    (code == sys::CUresult::CUDA_SUCCESS).then_some(found)
}

/// Access belongs to a mapping: neither the handle's other mapping nor the address's former one leaves any behind.
#[test]
#[allow(unsafe_code, reason = "mapping works on raw addresses")]
fn a_fresh_mapping_may_not_be_used_until_access_is_given() {
    const USABLE: Option<u64> = Some(3);
    let Some(rig) = rig() else { return };
    let cuda = &rig.cuda;
    let Some(facts) = cuda.mapping() else {
        remote::skipped("this device has no virtual memory management");
        return rig.clean();
    };
    let theirs = CudaContext::new(0).expect("cudarc's");
    theirs.bind_to_thread().expect("bound");
    let unit = facts.granularity;
    let (first, handle) =
        (cuda.reserve(2 * unit, None).expect("addresses"), cuda.create(unit).expect("memory"));
    let second = Addr(first.0 + unit);
    // SAFETY: the addresses are this test's, and nothing is mapped there when it calls this.
    let map = |at| unsafe { cuda.map(at, &handle) }.expect("mapped");
    // SAFETY: as above.
    let give = |at| unsafe { cuda.set_access(at, unit) }.expect("usable");
    // SAFETY: nothing was queued that uses them.
    let unmap = |at| unsafe { cuda.unmap(at, unit) }.expect("unmapped");
    let both = || [first, second].map(|at| rights(cuda, at) == USABLE);
    map(first);
    assert_eq!(both(), [false, false], "mapped");
    give(first);
    assert_eq!(both(), [true, false], "usable");
    map(second);
    assert_eq!(both(), [true, false], "the other mapping's is not this one's");
    give(second);
    assert_eq!(both(), [true, true]);
    unmap(first);
    assert_eq!(both(), [false, true], "gone with the mapping");
    map(first);
    assert_eq!(both(), [false, true], "not come back with it");
    give(first);
    assert_eq!(both(), [true, true], "given again");
    unmap(first);
    unmap(second);
    // SAFETY: nothing was queued that uses it, and it goes once.
    unsafe { cuda.release(&handle) }.expect("released");
    // SAFETY: nothing is mapped there.
    unsafe { cuda.unreserve(first, 2 * unit) }.expect("given back");
    drop(theirs);
    rig.clean();
}

#[test]
fn a_hit_makes_no_driver_call() {
    let Some(rig) = rig() else { return };
    let gpu = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
    let home = gpu.stream().expect("a stream");
    drop(gpu.alloc(MIB, &home).expect("grown"));
    drop(gpu.alloc(4096, &home).expect("grown for small sizes"));
    let before = rig.cuda.calls();
    for bytes in [MIB, 1, 4096, MIB - 512] {
        for _ in 0..100 {
            drop(gpu.alloc(bytes, &home).expect("a hit"));
        }
    }
    assert_eq!(rig.cuda.calls(), before);
    drop((home, gpu));
    rig.clean();
}

/// A framework's stream is queried at every allocation: one call of the driver, which needs no context to be looked up.
#[test]
#[allow(
    unsafe_code,
    reason = "raw handles are promises; the end of a capture, without making a graph executable"
)]
fn a_stream_is_queried_in_one_call_whatever_is_current() {
    let Some(rig) = rig() else { return };
    let theirs = CudaContext::new(0).expect("cudarc's");
    theirs.bind_to_thread().expect("bound");
    let native = theirs.new_stream().expect("a stream");
    let known = rig.cuda.adopt(Arc::clone(&native)).expect("adopted");
    let gpu = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
    let foreign = gpu.adopt(known.clone()).expect("adopted by the allocator");
    drop(gpu.alloc(MIB, &foreign).expect("grown"));
    let before = (rig.cuda.calls(), rig.calls_of("cuStreamIsCapturing"));
    drop(gpu.alloc(MIB, &foreign).expect("a hit"));
    let after =
        rig.cuda.calls().into_iter().map(|(name, n)| (name, n - u64::from(name == "cuStreamIsCapturing")));
    assert_eq!((after.collect(), before.1 + 1), (before.0, rig.calls_of("cuStreamIsCapturing")));

    let ask = |captures: bool| {
        let look = || {
            assert_eq!(rig.cuda.is_capturing(&known).expect("harmless"), captures);
            if !captures {
                // SAFETY: the stream is alive and does not capture.
                let id = unsafe { rig.cuda.raw_id(native.cu_stream()) }.expect("asked");
                assert_eq!(id, known.info().id);
            }
        };
        look();
        std::thread::scope(|scope| {
            let nothing = scope.spawn(|| {
                nothing_is_current();
                look();
                nothing_is_current();
            });
            nothing.join().expect("with no context");
            let other = scope.spawn(|| {
                if Cuda::devices().expect("counted") > 1 {
                    let other = CudaContext::new(1).expect("the other device's context");
                    other.bind_to_thread().expect("bound");
                    look();
                    assert_eq!(result::ctx::get_current().expect("asked"), Some(other.cu_ctx()));
                }
            });
            other.join().expect("with the other device's");
        });
    };
    ask(false);
    native.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("begun");
    ask(true);
    ended(&native).unwrap_or_else(|code| panic!("the capture was lost: code {}", code as u32));
    ask(false);
    drop((known, foreign, gpu, native, theirs));
    rig.clean();
}

/// A log of blocks that come and go, on two streams.
fn little_log() -> Log {
    let (mut seed, mut live, mut log) = (1_u64, Vec::new(), Log::default());
    log.name = "little".into();
    (log.streams, log.threads) = (vec![0, 1], vec![0]);
    let mut draw = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % n
    };
    let mut next = 0;
    for at in 0..600 {
        if live.len() < 20 || draw(2) == 0 {
            let most = if next % 7 == 0 { 8 * MIB } else { 100_000 };
            let (block, bytes, stream) = (BlockNo(next), 1 + draw(most), StreamNo(draw(2) as u16));
            log.calls.push(Call::alloc(block, bytes, stream, ThreadNo(0), at));
            live.push((block, bytes, stream));
            next += 1;
        } else {
            let (block, bytes, stream) = live.swap_remove(draw(live.len() as u64) as usize);
            log.calls.push(Call::free(block, bytes, stream, ThreadNo(0), at));
        }
    }
    log
}

#[test]
fn a_log_is_replayed_with_its_blocks_written_and_checked_by_our_kernels() {
    let Some(rig) = rig() else { return };
    let log = little_log();
    let workload = Workload::default().streams(4).uses(0.3).seed(3).repeat(2);
    let outcome =
        replay_log(&log, &workload, rig.cuda.clone(), Config::default(), &|_| {}).expect("replayed");
    assert!(outcome.is_clean(), "{outcome:?}");
    assert!(outcome.accesses_checked as usize > log.calls.len() / 2, "{} checks", outcome.accesses_checked);
    let checks = rig.cuda.checks();
    let quiet = rig.cuda.clone().patterns(false);
    let outcome = replay_log(&log, &workload, quiet, Config::default(), &|_| {}).expect("replayed");
    assert!(outcome.is_clean(), "{outcome:?}");
    assert_eq!(rig.cuda.checks(), checks, "without patterns nothing is launched");
    rig.clean();
}

/// The same replay in a program that forgets some of its own waits: on the stand-in the oracle must see it, or the
/// replay above proves nothing.
#[test]
fn a_broken_program_is_convicted_on_the_stand_in() {
    let Some(rig) = rig() else { return };
    let workload = Workload::default().streams(4).uses(0.5).broken(0.5).seed(3);
    replay_log(&little_log(), &workload, rig.cuda.clone(), Config::default(), &|_| {}).expect("replayed");
    let Rig { cuda, fake, _turn } = rig;
    drop(cuda);
    if let Some(fake) = fake {
        let verdict = fake.verdict().expect("waits were left out");
        assert!(verdict.contains("check"), "a check met what it was not ordered after: {verdict}");
    }
}
