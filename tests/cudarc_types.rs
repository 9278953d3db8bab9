//! Arrays of ours in cudarc's safe calls and launches, on the stand-in driver if it was built
//! (`cargo build -p millpond-fake-libcuda`), else on a real one; with neither, each test says that it was skipped.
//!
//! The four hazards of cudarc's own arrays (`tests/fake_libcuda/tests/hazards.rs` convicts them) are run again with ours:
//! the same program, the same calls, on streams that the allocator made, that it adopted, and that it does not know. The
//! device runs as late as legal, so that what is not ordered reads the next owner's bytes.

#![cfg(feature = "cuda")]

#[path = "cudarc_types/adopted.rs"]
mod adopted;
#[path = "cudarc_types/aliases_and_slices.rs"]
mod aliases_and_slices;
#[path = "cudarc_types/current.rs"]
mod current;
#[path = "cudarc_types/devices.rs"]
mod devices;
#[path = "cudarc_types/expected.rs"]
mod expected;
#[path = "cudarc_types/host.rs"]
mod host;
#[path = "cudarc_types/mixed.rs"]
mod mixed;
#[path = "cudarc_types/random.rs"]
mod random;
#[path = "cudarc_types/readers.rs"]
mod readers;
#[path = "fake_libcuda/remote.rs"]
mod remote;
#[path = "cudarc_types/rig.rs"]
mod rig;
#[path = "cudarc_types/shared.rs"]
mod shared;
#[path = "cudarc_types/world.rs"]
mod world;

use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut, DeviceSlice, PushKernelArg, result};
use millpond::cuda::Cuda;
use millpond::driver::{Driver, Memory};
use millpond::{Allocator, Config, Error};
// For the code that is made there once (`millpond_testkit::compiled`).
use millpond_testkit as _;
use remote::Fake;
use rig::*;
use std::sync::Arc;

/// Elements of an array: 256 KiB of `u32`.
const WORDS: usize = 1 << 16;
const BYTES: u64 = 4 << 16;

#[test]
fn cudarcs_calls_take_arrays_and_views_of_ours_and_wait_across_streams() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(3);
            let home = gpu.stream().expect("a stream");
            let (one, two) = (test_stream(&rig, &gpu, origin), test_stream(&rig, &gpu, origin));
            let mut x = gpu.zeros::<u32>(WORDS, &home).expect("zeroes");
            let mut y = gpu.uninit::<u32>(WORDS, &home).expect("an array");
            let data: Vec<u32> = (0..WORDS as u32).collect();
            // Each call on another stream than the one before: nothing here waits but the library.
            one.theirs.memcpy_htod(&data, &mut x).expect("behind the zeroes");
            two.theirs.memcpy_dtod(&x, &mut y).expect("behind the copy");
            one.theirs.memset_zeros(&mut x.slice_mut(..WORDS / 2)).expect("behind the reader");
            let (front, rear) = (&data[..WORDS / 2], &data[WORDS / 2..]);
            assert_eq!(read(&one.theirs, &y), data, "{origin:?}: before the zeroes");
            assert_eq!(two.theirs.clone_dtoh(&x.slice(WORDS / 2..)).expect("read"), rear);
            let mut view = y.view_mut();
            two.theirs.memcpy_htod(front, &mut view).expect("sent");
            assert_eq!(two.theirs.clone_dtoh(&view).expect("read")[..WORDS / 2], *front);
            assert_eq!((DeviceSlice::len(&x), x.num_bytes()), (WORDS, BYTES as usize));
            // Ours again, behind all of it.
            let back = x.to_pinned(&home).expect("queued").wait().expect("done");
            assert_eq!((back[0], back[1], &back[WORDS / 2..]), (0, 0, rear));
        }
        rig.check_clean();
    }
}

#[test]
fn hazard_1_both_readers_are_waited_for() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(3);
            let home = gpu.stream().expect("a stream");
            let (one, two) = (test_stream(&rig, &gpu, origin), test_stream(&rig, &gpu, origin));
            let shared = array_of_sevens(&gpu, &home);
            let at = shared.address().0;
            let mut a = gpu.uninit::<u32>(WORDS, &home).expect("room");
            let mut b = gpu.uninit::<u32>(WORDS, &home).expect("room");
            one.theirs.memcpy_dtod(&shared, &mut a).expect("the first reader");
            two.theirs.memcpy_dtod(&shared, &mut b).expect("the second reader");
            drop(shared);
            let next = next_owner(&gpu, &home, at);
            home.synchronize().expect("the next owner has written");
            assert_eq!(read(&one.theirs, &a), vec![7; WORDS], "{origin:?}: the first reader");
            assert_eq!(read(&two.theirs, &b), vec![7; WORDS], "{origin:?}: the second reader");
            assert_eq!(read(&two.theirs, &next), vec![0; WORDS]);
        }
        rig.check_clean();
    }
}

#[test]
fn hazard_2_a_reader_whose_stream_was_dropped_is_waited_for() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(2);
            let home = gpu.stream().expect("a stream");
            let reader = test_stream(&rig, &gpu, origin);
            let shared = array_of_sevens(&gpu, &home);
            let at = shared.address().0;
            let mut a = gpu.uninit::<u32>(WORDS, &home).expect("room");
            reader.theirs.memcpy_dtod(&shared, &mut a).expect("a reader");
            drop(reader);
            drop(shared);
            drop(next_owner(&gpu, &home, at));
            home.synchronize().expect("the next owner has written");
            let after = gpu.stream().expect("a stream").cudarc().expect("its alias");
            assert_eq!(read(&after, &a), vec![7; WORDS], "{origin:?}");
        }
        rig.check_clean();
    }
}

#[test]
fn hazard_3_a_stream_of_another_library_is_waited_for() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        rig.ctx.bind_to_thread().expect("current");
        let foreign = result::stream::create(result::stream::StreamKind::NonBlocking).expect("a stream");
        #[allow(unsafe_code, reason = "the only way to wrap a foreign stream")]
        // SAFETY: just created in this context, and destroyed below, after the wrapper's last call.
        let wrapped = unsafe { rig.ctx.wrap_borrowed_stream(foreign) };
        let shared = array_of_sevens(&gpu, &home);
        let at = shared.address().0;
        let mut a = gpu.uninit::<u32>(WORDS, &home).expect("room");
        wrapped.memcpy_dtod(&shared, &mut a).expect("a reader");
        drop(shared);
        drop(wrapped);
        #[allow(unsafe_code, reason = "a raw handle")]
        // SAFETY: created above; nothing uses it any more. What it was given goes on.
        unsafe { result::stream::destroy(foreign) }.expect("destroyed");
        drop(next_owner(&gpu, &home, at));
        let back = home.cudarc().expect("its alias");
        assert_eq!(read(&back, &a), vec![7; WORDS]);
    }
    rig.check_clean();
}

#[test]
fn hazard_3_every_threads_default_stream_is_a_stream_of_its_own() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let mine = gpu.adopt(rig.cuda.per_thread_stream().expect("mine")).expect("a pool");
        let shared = array_of_sevens(&gpu, &mine);
        let at = shared.address().0;
        let mut a = gpu.uninit::<u32>(WORDS, &mine).expect("room");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let theirs = rig.ctx.per_thread_stream();
                assert_eq!(theirs, mine.cudarc().expect("its alias"), "cudarc sees no difference");
                theirs.memcpy_dtod(&shared, &mut a).expect("a reader, behind the sevens");
            });
        });
        drop(shared);
        drop(next_owner(&gpu, &mine, at));
        assert_eq!(read(&mine.cudarc().expect("its alias"), &a), vec![7; WORDS]);
    }
    rig.check_clean();
}

#[test]
fn hazard_3_the_legacy_stream_is_waited_for() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream that does not wait for the legacy one");
        let legacy = rig.ctx.default_stream();
        let shared = array_of_sevens(&gpu, &home);
        let at = shared.address().0;
        let mut a = gpu.uninit::<u32>(WORDS, &home).expect("room");
        legacy.memcpy_dtod(&shared, &mut a).expect("a reader, behind the sevens");
        drop(shared);
        drop(next_owner(&gpu, &home, at));
        home.synchronize().expect("the next owner has written");
        assert_eq!(read(&legacy, &a), vec![7; WORDS]);
    }
    rig.check_clean();
}

#[test]
fn hazard_4_a_drop_on_a_fresh_thread_leaks_nothing_and_leaves_no_error() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let (array, unknown_stream) = (array_of_sevens(&gpu, &home), rig.ctx.new_stream().expect("a stream"));
        let (at, seen) = (array.address().0, read(&unknown_stream, &array));
        std::thread::scope(|s| s.spawn(|| drop(array)).join()).expect("no panic");
        rig.ctx.mem_get_info().expect("an innocent call");
        drop(next_owner(&gpu, &home, at));
        assert_eq!(seen, vec![7; WORDS]);
    }
    rig.check_clean();
}

/// A borrowed use lasts until the array is borrowed exclusively and whole; what is then queued on the stream is not waited for.
#[test]
fn a_write_to_the_whole_ends_what_was_borrowed() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let (home, work) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
        let theirs = work.cudarc().expect("its alias");
        let (mut x, mut busy) =
            (array_of_sevens(&gpu, &home), gpu.uninit::<u32>(WORDS, &work).expect("room"));
        let waits = || {
            let calls = rig.cuda.calls();
            calls.iter().find(|(name, _)| *name == "cuStreamWaitEvent").map_or(0, |&(_, n)| n)
        };
        drop(theirs.clone_dtoh(&x).expect("a use that is open"));
        let before = waits();
        theirs.memset_zeros(&mut busy).expect("something else on the stream");
        x.fill_bytes(1, &home).expect("filled");
        assert_eq!(waits() - before, 1, "the fill waits for the reader's stream");
        theirs.memset_zeros(&mut busy).expect("something else on the stream");
        x.fill_bytes(2, &home).expect("filled");
        assert_eq!(waits() - before, 1, "and the next one for no stream");
        // Borrowed for writing at home: an operation elsewhere waits for everything that home holds, until the borrow is over.
        home.cudarc().expect("its alias").memset_zeros(&mut x).expect("filled");
        assert_eq!(read(&theirs, &x), vec![0; WORDS], "behind the home stream");
        assert_eq!(waits() - before, 2);
    }
    rig.check_clean();
}

/// A graph would replay into bytes that belong to others by then: cudarc captures and launches with safe calls.
#[test]
fn a_capturing_stream_gets_no_address() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        let mut x = array_of_sevens(&gpu, &home);
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        let stream = home.cudarc().expect("its alias");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("captures");
        assert_eq!(x.device_ptr(&stream).0, 0, "no address");
        assert_eq!(x.device_ptr_mut(&stream).0, 0);
        x.read_on(&home).expect_err("no guard either");
        assert_eq!(slice.device_ptr(&stream).0, 0, "nor a pooled slice's");
        assert_eq!(slice.device_ptr_mut(&stream).0, 0);
        // Nor do our own verbs put anything into the graph, on a stream of ours whose alias is out.
        let refused = [x.fill_bytes(1, &home).err(), x.to_pinned(&home).err()];
        assert!(refused.iter().all(|e| matches!(e, Some(Error::Capturing { .. }))), "{refused:?}");
        let flags =
            cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        drop(stream.end_capture(flags));
        let said = gpu.report().deferred_errors.join("\n");
        assert!(said.contains("capturing a graph"), "{said}");
        assert_eq!(read(&stream, &x), vec![7; WORDS], "as it was");
        assert_ne!(slice.device_ptr(&stream).0, 0, "afterwards it has one again");
    }
    rig.check_no_leaks();
}

/// A borrowed use is open: what is queued long after the address was taken is waited for as well, though the stream was marked in
/// between.
#[test]
fn what_is_queued_late_under_a_borrow_is_waited_for() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let (home, work) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
        let (mut x, theirs) = (array_of_sevens(&gpu, &home), work.cudarc().expect("its alias"));
        {
            let (at, _borrow) = x.device_ptr_mut(&theirs);
            let between = work.record().expect("a marker");
            theirs.context().bind_to_thread().expect("current");
            #[allow(unsafe_code, reason = "a call of another library's")]
            // SAFETY: so many bytes lie there, borrowed until this is queued.
            unsafe { cudarc::driver::result::memset_d8_async(at, 9, BYTES as usize, theirs.cu_stream()) }
                .expect("queued");
            drop(between);
        }
        assert_eq!(read(&home.cudarc().expect("its alias"), &x), vec![0x0909_0909; WORDS]);
    }
    rig.check_clean();
}

/// Streams that come, read and go: their uses are all streams' then, and the next write comes after each.
#[test]
fn an_array_that_many_streams_read_has_few_uses() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(301);
        let home = gpu.stream().expect("a stream");
        let (mut x, mut to): (_, Vec<_>) =
            (array_of_sevens(&gpu, &home), (0..300).map(|_| array_of_sevens(&gpu, &home)).collect());
        home.synchronize().expect("seven");
        for y in &mut to {
            let on = gpu.stream().expect("a stream");
            on.cudarc().expect("its alias").memcpy_dtod(&x, y).expect("queued");
        }
        let uses = gpu.bookkeeping().uses;
        assert!(
            uses <= 300 + 70,
            "{uses} uses, of which each of {} arrays that were written has one",
            to.len()
        );
        x.fill_bytes(9, &home).expect("queued behind all of them");
        for y in &to {
            assert_eq!(read(&home.cudarc().expect("its alias"), y), vec![7; WORDS]);
        }
        assert_eq!(read(&home.cudarc().expect("its alias"), &x), vec![0x0909_0909; WORDS]);
    }
    rig.check_clean();
}

#[test]
fn a_stream_of_another_device_is_refused_in_words() {
    let Some(rig) = rig() else { return };
    if Cuda::devices().expect("asked") < 2 {
        return;
    }
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        let mut x = array_of_sevens(&gpu, &home);
        let far = CudaContext::new(1).expect("the other device").default_stream();
        far.memset_zeros(&mut x).expect_err("no address, an error");
        let said = gpu.report().deferred_errors.join("\n");
        assert!(said.contains("of another device or context than the array"), "{said}");
        assert_eq!(read(&home.cudarc().expect("its alias"), &x), vec![7; WORDS], "as it was");
    }
    rig.check_no_leaks();
}

/// The trait cannot fail. Where a wait is refused, the host waits instead, and says so.
#[test]
fn a_refused_wait_is_made_up_for_by_the_host() {
    for origin in [Ours, Unknown] {
        let Some(rig) = rig() else { return };
        if rig.fake.is_none() {
            return;
        }
        {
            let gpu = rig.allocator_for(2);
            let home = gpu.stream().expect("a stream");
            let reader = test_stream(&rig, &gpu, origin);
            let shared = array_of_sevens(&gpu, &home);
            let at = shared.address().0;
            let mut a = gpu.uninit::<u32>(WORDS, &home).expect("room");
            let fake = rig.fake.as_ref().expect("asked above");
            fake.fail_next("cuStreamWaitEvent", 1, 999);
            reader.theirs.memcpy_dtod(&shared, &mut a).expect("the host waited");
            let said = gpu.report().deferred_errors.join("\n");
            assert!(said.contains("999"), "{origin:?}: {said}");
            drop(shared);
            drop(next_owner(&gpu, &home, at));
            home.synchronize().expect("the next owner has written");
            assert_eq!(read(&reader.theirs, &a), vec![7; WORDS], "{origin:?}");
        }
        rig.check_no_leaks();
    }
}

/// What was adopted and let go again is as unknown as what never was.
#[test]
fn a_stream_that_was_let_go_is_waited_for_too() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        let TestStream { theirs, ours } = test_stream(&rig, &gpu, Adopted);
        drop(ours);
        // A miss, which looks after closed streams.
        drop(gpu.uninit::<u32>(WORDS, &home).expect("memory"));
        let shared = array_of_sevens(&gpu, &home);
        let at = shared.address().0;
        let mut a = gpu.uninit::<u32>(WORDS, &home).expect("room");
        theirs.memcpy_dtod(&shared, &mut a).expect("a reader");
        drop(theirs);
        drop(shared);
        drop(next_owner(&gpu, &home, at));
        home.synchronize().expect("the next owner has written");
        assert_eq!(read(&home.cudarc().expect("its alias"), &a), vec![7; WORDS]);
    }
    rig.check_clean();
}

/// An unknown stream's use is the whole context's; a driver that cannot mark a context has the host wait.
#[test]
fn without_context_events_the_host_waits_for_unknown_streams() {
    let Some(rig) = rig() else { return };
    let Some(fake) = &rig.fake else { return };
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        let mut x = array_of_sevens(&gpu, &home);
        let mut a = gpu.uninit::<u32>(WORDS, &home).expect("room");
        let unknown_stream = test_stream(&rig, &gpu, Unknown).theirs;
        unknown_stream.memcpy_dtod(&x, &mut a).expect("a reader");
        let waited = fake.calls("cuCtxSynchronize");
        // A thread that waits instead queries it again.
        (1..=2).for_each(|nth| fake.fail_next("cuCtxRecordEvent", nth, 801));
        x.fill_bytes(0, &home).expect("behind the reader");
        assert_eq!(fake.calls("cuCtxSynchronize") - waited, 1, "by the host");
        home.synchronize().expect("filled");
        assert_eq!(read(&unknown_stream, &a), vec![7; WORDS]);
    }
    rig.check_clean();
}

/// A stream is destroyed when no alias of it is left, not before: no call ever meets another stream's handle.
#[test]
fn an_alias_outlives_its_stream_and_the_allocator() {
    let Some(rig) = rig() else { return };
    {
        let destroyed = || rig.fake.as_ref().map_or(0, |f| f.calls("cuStreamDestroy_v2"));
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let (alias, array) = (home.cudarc().expect("an alias"), array_of_sevens(&gpu, &home));
        assert_eq!(array.stream(), &alias, "the trait's stream is the array's");
        let again = array.stream().clone();
        drop((array, home, gpu));
        let before = destroyed();
        alias.synchronize().expect("it is still there");
        let other = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
        drop(other.stream().expect("a stream"));
        assert_eq!(
            destroyed() - before,
            u64::from(rig.fake.is_some()),
            "its own, not the one that is borrowed"
        );
        alias.synchronize().expect("it is still there");
        drop((alias, again));
        drop(other.stream().expect("a stream"));
        assert_eq!(destroyed() - before, 3 * u64::from(rig.fake.is_some()), "the borrowed one too");
    }
    rig.check_clean();
}

#[test]
fn a_launch_by_cudarc_is_ordered_and_recorded_by_its_guard_or_its_loss() {
    for (forget, origin) in [(false, Ours), (true, Ours), (false, Adopted), (true, Adopted)] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(2);
            let kernel = iota(&rig.ctx);
            let home = gpu.stream().expect("a stream");
            let work = test_stream(&rig, &gpu, origin).ours.expect("known");
            let up: Vec<u32> = (5..5 + WORDS as u32).collect();
            let (mut x, mut keep) =
                (array_of_sevens(&gpu, &home), gpu.uninit::<u32>(WORDS, &home).expect("room"));
            let at = x.address().0;
            launch_iota(&kernel, 5, &mut x, &work, forget);
            let guard = x.read_on(&home).expect("ordered behind the kernel");
            assert_eq!((guard.address().0, guard.len(), guard.stream().id()), (at, WORDS, home.id()));
            home.cudarc().expect("its alias").memcpy_dtod(&x, &mut keep).expect("copied");
            drop(guard);
            launch_iota(&kernel, 9, &mut x, &work, forget);
            drop(x);
            drop(next_owner(&gpu, &home, at));
            home.synchronize().expect("the next owner has written");
            work.synchronize().expect("done");
            assert_eq!(
                read(&home.cudarc().expect("its alias"), &keep),
                up,
                "forgotten: {forget}, {origin:?}"
            );
        }
        rig.check_clean();
    }
}

/// cudarc's tracking keeps one reader a slice; the bytes come back behind all of them.
#[test]
fn a_pooled_slice_comes_back_behind_readers_that_cudarc_forgot() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(3);
            let home = gpu.stream().expect("a stream");
            let (one, two) = (test_stream(&rig, &gpu, origin), test_stream(&rig, &gpu, origin));
            let theirs = home.cudarc().expect("its alias");
            let mut shared = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
            theirs.memcpy_htod(&vec![7; WORDS], &mut shared).expect("sent");
            let mut a = gpu.uninit::<u32>(WORDS, &home).expect("room");
            let mut b = gpu.uninit::<u32>(WORDS, &home).expect("room");
            one.theirs.memcpy_dtod(&shared, &mut a).expect("the first reader, of all of it");
            two.theirs.memcpy_dtod(&shared.slice(..), &mut b).expect("the second, of a view");
            let at = shared.device_ptr(&theirs).0;
            std::thread::scope(|s| s.spawn(|| drop(shared)).join()).expect("dropped on a fresh thread");
            rig.ctx.mem_get_info().expect("an innocent call");
            drop(next_owner(&gpu, &home, at));
            home.synchronize().expect("the next owner has written");
            assert_eq!(read(&one.theirs, &a), vec![7; WORDS], "{origin:?}: the first reader");
            assert_eq!(read(&two.theirs, &b), vec![7; WORDS], "{origin:?}: the second reader");
        }
        rig.check_clean();
    }
}

/// The bytes' former life on the home stream is nothing that a program could order: the slice comes with it.
#[test]
fn a_pooled_slices_first_use_comes_after_the_bytes_former_life() {
    for home in [Ours, Adopted] {
        let Some(rig) = rig() else { return };
        {
            let gpu = rig.allocator_for(2);
            let home = test_stream(&rig, &gpu, home).ours.expect("known");
            let other = rig.ctx.new_stream().expect("a stream");
            // The first one waits for the context, as cudarc's first stream does.
            drop(gpu.cuda_slice::<u32>(0, &home).expect("of nothing"));
            let (x, mut keep) =
                (array_of_sevens(&gpu, &home), gpu.uninit::<u32>(WORDS, &home).expect("room"));
            let at = x.address().0;
            home.cudarc().expect("its alias").memcpy_dtod(&x, &mut keep).expect("the former owner's reader");
            drop(x);
            let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
            assert_eq!(slice.device_ptr(&other).0, at, "the same bytes, or nothing is shown");
            other.memset_zeros(&mut slice).expect("the first use is elsewhere");
            other.synchronize().expect("done");
            assert_eq!(read(&home.cudarc().expect("its alias"), &keep), vec![7; WORDS]);
            let (mut front, mut word) = (slice.slice_mut(..1), [1]);
            other.memcpy_htod(&[9], &mut front).expect("sent");
            other.memcpy_dtoh(&slice.as_view_mut().slice(..1), &mut word).expect("read");
            assert_eq!(word, [9]);
        }
        rig.check_clean();
    }
}

/// Through a kernel's arguments, as a `CudaSlice`; and what the driver refuses leaves nothing.
#[test]
fn a_pooled_slice_is_a_kernels_argument_and_a_refused_one_leaves_nothing() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let (kernel, home) = (iota(&rig.ctx), gpu.stream().expect("a stream"));
        let theirs = home.cudarc().expect("its alias");
        if let Some(fake) = &rig.fake {
            drop(gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice"));
            for call in ["cuEventCreate", "cuEventRecord"] {
                fake.fail_next(call, 1, 2);
                gpu.cuda_slice::<u32>(WORDS, &home).expect_err("refused");
                fake.clear_faults();
            }
        }
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("the room is there");
        let mut launch = theirs.launch_builder(&kernel);
        launch.arg(&mut slice).arg(&(WORDS as u64)).arg(&3_u32).arg(&1_u32);
        #[allow(unsafe_code, reason = "a launch")]
        // SAFETY: iota takes an address, a length, the first number and the step; it writes so many elements.
        unsafe { launch.launch(GRID) }.expect("launched");
        let back = theirs.clone_dtoh(&slice).expect("read back");
        assert_eq!((back[0], back[WORDS - 1]), (3, 2 + WORDS as u32));
        assert_eq!(gpu.cuda_slice::<u32>(0, &home).expect("of nothing").len(), 0);
    }
    rig.check_clean();
}

#[test]
fn no_bytes_need_no_device() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let mut none = gpu.uninit::<u32>(0, &home).expect("nothing");
        let theirs = home.cudarc().expect("its alias");
        assert_eq!(none.device_ptr(&theirs).0, 0);
        assert_eq!(none.device_ptr_mut(&theirs).0, 0);
        assert!(none.read_on(&home).expect("nothing to wait for").is_empty());
    }
    rig.check_clean();
}
