//! Pinned arrays as cudarc's `HostSlice`: its copies wait, and where it leaves its wait out, ours does not.

use super::*;
use millpond::PinnedArray;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

type Host = PinnedArray<u32, Cuda>;

/// A gate that is opened long before.
const LONG: Duration = Duration::from_secs(20);

/// A stream that is held, as cudarc has it; and the error that is left in store is taken out.
struct Held {
    test_stream: TestStream,
    gate: millpond::cuda::GpuGate,
}

impl Held {
    fn new(rig: &Rig, gpu: &Allocator<Cuda>, origin: Origin) -> Held {
        let test_stream = test_stream(rig, gpu, origin);
        let gate = match &test_stream.ours {
            Some(ours) => rig.cuda.gate(ours.native(), LONG),
            // A reference for the moment; the allocator never hears of it.
            None => rig.cuda.gate(&rig.cuda.adopt(Arc::clone(&test_stream.theirs)).expect("adopted"), LONG),
        };
        Held { test_stream, gate: gate.expect("closed") }
    }
    /// Copies to the device; not waited for.
    fn send(&self, from: &Host, to: &mut Words) {
        self.test_stream.theirs.memcpy_htod(from, &mut StoresError(to)).expect("queued");
        self.clear_stored_error();
    }
    /// Copies to the host; not waited for.
    fn fetch(&self, from: &Words, to: &mut Host) {
        self.test_stream.theirs.memcpy_dtoh(&StoresError(from), to).expect("queued");
        self.clear_stored_error();
    }
    fn clear_stored_error(&self) {
        self.test_stream.theirs.context().check_err().expect_err("cudarc did not wait");
        self.is_held();
    }
    fn is_held(&self) {
        assert!(!self.gate.timed_out(), "held all the time");
    }
    /// Lets the stream go, and goes.
    fn open(self) {
        self.gate.open();
    }
}

#[test]
fn cudarcs_copies_take_pinned_arrays_and_wait() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(2);
            let (home, theirs) = (gpu.stream().expect("a stream"), test_stream(&rig, &gpu, origin).theirs);
            let up: Vec<u32> = (0..WORDS as u32).collect();
            let mut host = gpu.pinned_from_slice(&up).expect("pinned");
            let mut x = gpu.zeros::<u32>(WORDS, &home).expect("zeroes");
            theirs.memcpy_htod(&host, &mut x).expect("sent");
            host.fill(0);
            theirs.memcpy_dtoh(&x, &mut host).expect("fetched");
            assert_eq!(host[..], up, "{origin:?}");
            let copy = theirs.clone_htod(&host).expect("a slice of cudarc's");
            host.fill(1);
            assert_eq!(theirs.clone_dtoh(&copy).expect("read"), up);
            assert_eq!(cudarc::driver::HostSlice::len(&host), WORDS);
            let nothing = gpu.pinned_zeros::<u32>(0).expect("of nothing");
            let mut none = gpu.uninit::<u32>(0, &home).expect("nothing");
            theirs.memcpy_htod(&nothing, &mut none).expect("nothing to do");
        }
        rig.check_clean();
    }
}

#[test]
fn a_copy_to_the_host_that_cudarc_did_not_wait_for_is_waited_for_by_any_look() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(2);
            let home = gpu.stream().expect("a stream");
            let x = array_of_sevens(&gpu, &home);
            let fetched = || {
                let mut host = gpu.pinned_zeros::<u32>(WORDS).expect("pinned");
                let held = Held::new(&rig, &gpu, origin);
                held.fetch(&x, &mut host);
                held.open();
                host
            };
            assert_eq!(fetched()[..], vec![7; WORDS], "{origin:?}: to read");
            let mut host = fetched();
            host[0] += 1;
            assert_eq!(host[..2], [8, 7], "{origin:?}: to write");
            let many = fetched();
            std::thread::scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| assert_eq!(many[..], vec![7; WORDS], "{origin:?}: by several threads"));
                }
            });
            let mut y = gpu.zeros::<u32>(WORDS, &home).expect("zeroes");
            drop(y.copy_from(fetched(), &home).expect("on its way"));
            assert_eq!(read(&home.cudarc().expect("an alias"), &y), vec![7; WORDS], "{origin:?}: to a copy");
            // A shape and a size are no look.
            let mut host = fetched();
            host.reshape([2, WORDS / 2]).expect("as many");
            assert_eq!(host.size_bytes(), BYTES);
        }
        rig.check_clean();
    }
}

/// The same on default streams, of the device's own value of cudarc's and of another one.
#[test]
fn a_copy_to_the_host_on_a_default_stream_is_waited_for_by_any_look() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let x = array_of_sevens(&gpu, &home);
        let another = CudaContext::new(0).expect("another value of the context");
        for theirs in [
            rig.ctx.default_stream(),
            rig.ctx.per_thread_stream(),
            another.default_stream(),
            another.per_thread_stream(),
        ] {
            let mut host = gpu.pinned_zeros::<u32>(WORDS).expect("pinned");
            theirs.memcpy_dtoh(&StoresError(&x), &mut host).expect("queued");
            theirs.context().check_err().expect_err("cudarc did not wait");
            assert_eq!(host[..], vec![7; WORDS]);
            theirs.memcpy_dtoh(&StoresError(&x), &mut host).expect("queued");
            theirs.context().check_err().expect_err("cudarc did not wait");
            host[0] += 1;
            assert_eq!(host[..2], [8, 7]);
        }
    }
    rig.check_clean();
}

#[test]
fn a_source_that_cudarc_did_not_wait_for_is_not_written_and_may_be_read() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(2);
            let home = gpu.stream().expect("a stream");
            let (mut x, mut y) = (array_of_sevens(&gpu, &home), array_of_sevens(&gpu, &home));
            home.synchronize().expect("seven");
            let mut host = gpu.pinned_from_slice(&vec![3_u32; WORDS]).expect("pinned");
            let (one, two) = (Held::new(&rig, &gpu, origin), Held::new(&rig, &gpu, origin));
            one.send(&host, &mut x);
            assert_eq!(host[WORDS - 1], 3, "a copy that reads hinders no reader: the gate is closed");
            two.send(&host, &mut y);
            one.open();
            two.open();
            host.fill(4);
            let theirs = home.cudarc().expect("an alias");
            assert_eq!(read(&theirs, &x), vec![3; WORDS], "{origin:?}");
            assert_eq!(read(&theirs, &y), vec![3; WORDS], "{origin:?}: the second");
            // What was waited for is over: the next borrow begins afresh, and a stream of another copy is behind it.
            let held = Held::new(&rig, &gpu, origin);
            held.send(&host, &mut x);
            held.gate.open();
            test_stream(&rig, &gpu, origin).theirs.memcpy_dtoh(&y, &mut host).expect("behind it");
            assert_eq!((host[0], read(&theirs, &x)[0]), (3, 4), "{origin:?}");
        }
        rig.check_clean();
    }
}

/// The drop waits for nothing, with the gate closed, and the memory is not reused until the copy is done.
#[test]
fn a_pinned_array_that_is_dropped_under_a_copy_by_cudarc_comes_back_behind_it() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(1);
            let home = gpu.stream().expect("a stream");
            let mut x = array_of_sevens(&gpu, &home);
            home.synchronize().expect("seven");
            let host = gpu.pinned_from_slice(&vec![3_u32; WORDS]).expect("pinned");
            let at = host.as_ptr();
            let held = Held::new(&rig, &gpu, origin);
            held.send(&host, &mut x);
            drop(host);
            let mut next = gpu.pinned_zeros::<u32>(WORDS).expect("pinned");
            assert_ne!(next.as_ptr(), at, "{origin:?}: in the copy's use");
            next.fill(9);
            held.is_held();
            held.open();
            assert_eq!(read(&home.cudarc().expect("an alias"), &x), vec![3; WORDS], "{origin:?}");
            gpu.synchronize().expect("at rest");
            assert_eq!(gpu.pinned_zeros::<u32>(WORDS).expect("pinned").as_ptr(), at, "{origin:?}: back");
        }
        rig.check_clean();
    }
}

/// No wait is possible: no code gets at the elements, and the caller may try again. A lost context is at rest.
#[test]
fn a_wait_that_fails_gives_nothing_out_unless_the_context_is_lost() {
    for lost in [false, true] {
        let Some(rig) = rig() else { return };
        let Some(fake) = &rig.fake else { return };
        {
            let gpu = rig.allocator_for(1);
            let home = gpu.stream().expect("a stream");
            let x = array_of_sevens(&gpu, &home);
            let mut host = gpu.pinned_zeros::<u32>(WORDS).expect("pinned");
            let held = Held::new(&rig, &gpu, Ours);
            held.fetch(&x, &mut host);
            held.open();
            if lost {
                fake.lose_context(719);
                assert_eq!(host.len(), WORDS, "nothing runs any more");
                host.fill(1);
            } else {
                fake.fail_next("cuEventRecord", 1, 999);
                assert_eq!(host[0], 7, "the device was waited for");
                let held = Held::new(&rig, &gpu, Ours);
                host.fill(0);
                held.fetch(&x, &mut host);
                held.open();
                let look = |host: &Host| catch_unwind(AssertUnwindSafe(|| host[0]));
                for _ in 0..2 {
                    fake.fail_next("cuEventRecord", 1, 999);
                    fake.fail_next("cuCtxSynchronize", 1, 999);
                    assert!(look(&host).is_err(), "not given out");
                }
                fake.clear_faults();
                assert_eq!(look(&host).expect("a wait is to be had"), 7);
            }
        }
        if lost {
            drop(rig);
        } else {
            rig.check_no_leaks();
        }
    }
}

/// A graph would be launched when the memory belongs to another owner; another device's work is nothing that its pool could wait for.
#[test]
fn streams_that_cannot_be_waited_for_later_borrow_nothing() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let theirs = home.cudarc().expect("its alias");
        let mut host = gpu.pinned_from_slice(&vec![3_u32; WORDS]).expect("pinned");
        let x = array_of_sevens(&gpu, &home);
        let said = |call: &mut dyn FnMut()| {
            let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("refused");
            panic.downcast_ref::<String>().cloned().expect("words")
        };
        theirs.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("captures");
        let words = said(&mut || theirs.memcpy_dtoh(&x, &mut host).expect("refused before"));
        assert!(words.contains("cannot be borrowed") && words.contains("capturing"), "{words}");
        drop(theirs.end_capture(
            cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
        ));
        if Cuda::devices().expect("asked") > 1 {
            let far = CudaContext::new(1).expect("the other device").new_stream().expect("a stream");
            let words = said(&mut || drop(far.clone_htod(&host)));
            assert!(words.contains("another device"), "{words}");
        }
        assert_eq!(host[..], vec![3; WORDS], "nothing came");
    }
    rig.check_no_leaks();
}
