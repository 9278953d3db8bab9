//! What cudarc gets of ours: aliases of streams, pooled slices, external memory. No graph that is captured through them contains an operation
//! of ours, or an address whose bytes the pool reuses.

use super::*;
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult};
use millpond::array::ExternalMemory;
use millpond::driver::{Fences, StreamOptions};
use millpond::{DeviceArray, Error};

const FLAGS: CUgraphInstantiate_flags =
    CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
/// Rounds of four threads that begin each together. Without turns they met in 4 runs of 20, which is why the test below this one
/// has them meet.
const ROUNDS: usize = 1000;
pub(super) const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// cudarc's value of a stream can be obtained from the driver's stream too, without notice to the allocator. Code that captures with
/// it finds every operation refused, and none in its graph.
#[test]
fn a_capture_by_any_alias_is_seen_by_every_operation() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(3);
        let (home, other) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
        let (mut x, y) = (array_of_sevens(&gpu, &other), array_of_sevens(&gpu, &other));
        let host = gpu.pinned_from_slice(&vec![1_u32; WORDS]).expect("a source");
        other.synchronize().expect("seven");
        let theirs = home.native().cudarc().expect("an alias");
        theirs.begin_capture(MODE).expect("captures");
        let captures = |answer: Error| assert!(matches!(answer, Error::Capturing { .. }), "{answer:?}");
        captures(x.fill_bytes(1, &home).expect_err("a fill"));
        captures(x.copy_from(host, &home).expect_err("a copy").error);
        captures(x.copy_from_device(&y, &home).expect_err("a copy on the device"));
        captures(x.read_on(&home).expect_err("a guard"));
        captures(x.record_use(&home).expect_err("a use"));
        captures(home.record().expect_err("a marker"));
        captures(home.wait_stream(&other).expect_err("a wait"));
        drop(theirs.end_capture(FLAGS));
        assert_eq!(read(&other.cudarc().expect("an alias"), &x), vec![7; WORDS], "as it was");
        x.fill_bytes(0, &home).expect("the capture is over");
        assert_eq!(read(&theirs, &x), vec![0; WORDS]);
    }
    rig.check_clean();
}

/// What writes a slice from the pool is a type of ours, which looks at the stream. To capture, and another device's stream,
/// gets no address, whatever cudarc thinks of its events: an error in store has it skip them.
#[test]
fn a_pooled_slice_is_not_written_by_graphs_or_other_devices() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let theirs = home.cudarc().expect("its alias");
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        theirs.memcpy_htod(&vec![7; WORDS], &mut slice).expect("sent");
        theirs.synchronize().expect("there");
        theirs.begin_capture(MODE).expect("captures");
        // In store, cudarc would skip the waits that destroy a capture.
        let store_error = || store_error(&theirs);
        store_error();
        assert_eq!(slice.device_ptr_mut(&theirs).0, 0, "the slice");
        store_error();
        assert_eq!(slice.device_ptr(&theirs).0, 0);
        store_error();
        let mut view = slice.as_view_mut();
        assert_eq!(view.device_ptr_mut(&theirs).0, 0, "a view");
        assert_eq!(view.device_ptr(&theirs).0, 0);
        assert_eq!(view.slice_mut(1..).device_ptr_mut(&theirs).0, 0, "a view's view");
        assert_eq!(slice.slice_mut(..1).device_ptr_mut(&theirs).0, 0, "a part");
        store_error();
        assert_eq!(slice.as_view().device_ptr(&theirs).0, 0, "a view to read");
        store_error();
        assert_eq!(slice.slice(1..).slice(1..).device_ptr(&theirs).0, 0, "a part of a part to read");
        store_error();
        assert_eq!(slice.as_view_mut().as_view().device_ptr(&theirs).0, 0, "a view to write, to read");
        theirs.context().check_err().expect_err("in store");
        drop(theirs.end_capture(FLAGS));
        let said = gpu.report().deferred_errors.join("\n");
        assert!(said.contains("capturing a graph"), "{said}");
        if Cuda::devices().expect("asked") > 1 {
            let far = CudaContext::new(1).expect("the other device").default_stream();
            assert_eq!(slice.slice_mut(..).device_ptr_mut(&far).0, 0, "another device's stream");
        }
        assert_eq!(theirs.clone_dtoh(&slice).expect("read"), vec![7; WORDS], "as it was");
    }
    rig.check_no_leaks();
}

/// What cudarc has the slice itself for only reads. Its wait for the slice's events destroys a capture, so that there is no
/// graph, as long as it is not skipped.
#[test]
fn a_capture_that_reads_a_pooled_slice_by_cudarcs_own_types_leaves_no_graph() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        let theirs = home.cudarc().expect("its alias");
        let slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        theirs.begin_capture(MODE).expect("captures");
        #[allow(unsafe_code, reason = "a promise about streams, which is broken here")]
        // SAFETY: nothing is queued with the address.
        let plain = unsafe { slice.as_cuda_slice() };
        assert_ne!(plain.device_ptr(&theirs).0, 0, "cudarc's own type checks nothing");
        theirs.context().check_err().expect_err("a capture cannot wait for what is not in it");
        let ended = theirs.end_capture(FLAGS).map(|graph| graph.is_some());
        assert_eq!(ended.map_err(|e| e.0), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    }
    rig.check_no_leaks();
}

/// A reader on a stream of another `CudaContext` value, which has no second stream, so that cudarc would not track it: the next
/// write comes after it. Nothing is made in that value, whose own first stream has to wait for it.
#[test]
fn readers_of_another_value_of_the_context_are_tracked() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(3);
        let home = gpu.stream().expect("a stream");
        let theirs = home.cudarc().expect("its alias");
        let another = CudaContext::new(0).expect("another value of the context");
        let reader = another.default_stream();
        assert!(!another.is_in_multi_stream_mode(), "or nothing is shown");
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        theirs.memcpy_htod(&vec![7; WORDS], &mut slice).expect("sent");
        let mut to = [(); 2].map(|()| gpu.uninit::<u32>(WORDS, &home).expect("room"));
        for (n, to) in to.iter_mut().enumerate() {
            let word = 7 + n as u32;
            if n == 0 {
                reader.memcpy_dtod(&slice, to).expect("all of it is read");
            } else {
                reader.memcpy_dtod(&slice.as_view(), to).expect("and by a view");
            }
            theirs.memcpy_htod(&vec![word + 1; WORDS], &mut slice).expect("and written");
            theirs.synchronize().expect("there");
            assert_eq!(read(&theirs, to), vec![word; WORDS], "the reader came first");
        }
        assert!(!another.is_in_multi_stream_mode(), "nothing was made there");
    }
    rig.check_clean();
}

/// The same while the slice's own value has a stored error of other code, with which cudarc would not record the read, without a word: no address,
/// and the error stays its owner's to meet.
#[test]
fn readers_of_another_value_get_no_address_beside_a_stored_error() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        let theirs = home.cudarc().expect("its alias");
        let another = CudaContext::new(0).expect("another value of the context");
        let reader = another.default_stream();
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        theirs.memcpy_htod(&vec![7; WORDS], &mut slice).expect("sent");
        let mut to = gpu.uninit::<u32>(WORDS, &home).expect("room");
        store_error(&theirs);
        reader.memcpy_dtod(&slice, &mut to).expect_err("its end would not be recorded");
        reader.memset_zeros(&mut slice).expect_err("nor that of a write");
        theirs.memcpy_htod(&vec![8; WORDS], &mut slice).expect_err("the stored error");
        reader.memcpy_dtod(&slice, &mut to).expect("it is gone");
        theirs.memcpy_htod(&vec![8; WORDS], &mut slice).expect("written behind that");
        theirs.synchronize().expect("there");
        assert_eq!(read(&theirs, &to), vec![7; WORDS], "the reader came first");
    }
    rig.check_no_leaks();
}

/// A slice whose stream hangs on a value that cudarc has made no stream in: tracked all the same, by readers of the device's value
/// too. It tracked nothing, and the write went ahead of the reader.
#[test]
fn a_pooled_slice_of_a_value_without_streams_is_tracked() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let another = CudaContext::new(0).expect("another value of the context");
        let made = rig.ctx.new_stream().expect("another owner's stream");
        // SAFETY: `made` outlives everything that is done on it.
        #[allow(unsafe_code, reason = "a borrowed stream")]
        let theirs = unsafe { another.wrap_borrowed_stream(made.cu_stream()) };
        let home = gpu.adopt(rig.cuda.adopt(Arc::clone(&theirs)).expect("adopted")).expect("a stream");
        let reader = gpu.stream().expect("a stream");
        let mut to = gpu.uninit::<u32>(WORDS, &reader).expect("room");
        reader.synchronize().expect("nothing before");
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        theirs.memcpy_htod(&vec![7; WORDS], &mut slice).expect("sent");
        reader.cudarc().expect("its alias").memcpy_dtod(&slice, &mut to).expect("read elsewhere");
        theirs.memcpy_htod(&vec![8; WORDS], &mut slice).expect("and written");
        theirs.synchronize().expect("there");
        assert_eq!(read(&reader.cudarc().expect("its alias"), &to), vec![7; WORDS], "the reader came first");
        drop((slice, to));
        reader.synchronize().expect("nothing is left");
    }
    rig.check_clean();
}

/// The first slice on a value that cudarc has made no stream in, with a fault at each call that it makes. Then the owner's own
/// first stream comes after what they queued before, which no event was recorded for.
#[test]
fn a_slice_that_fails_leaves_the_owners_first_stream_its_wait() {
    // The calls, and how many of each are made: cudarc counted a stream though one of these failed.
    for (call, most) in [
        ("cuCtxSynchronize", 2),
        ("cuStreamCreate", 1),
        ("cuEventCreate", 3),
        ("cuEventRecord", 2),
        ("cuStreamWaitEvent", 1),
    ] {
        for (nth, code) in (1..=most).flat_map(|nth| [(nth, 900), (nth, 999)]) {
            let Some(rig) = rig() else { return };
            let Some(fake) = &rig.fake else { return };
            {
                let gpu = rig.allocator_for(1);
                let another = CudaContext::new(0).expect("another value of the context");
                let made = rig.ctx.new_stream().expect("another owner's stream");
                // SAFETY: `made` outlives everything that is done on it.
                #[allow(unsafe_code, reason = "a borrowed stream")]
                let borrowed = unsafe { another.wrap_borrowed_stream(made.cu_stream()) };
                let home = gpu.adopt(rig.cuda.adopt(borrowed).expect("adopted")).expect("a stream");
                let owners = another.default_stream();
                let mut theirs = owners.alloc_zeros::<u32>(WORDS).expect("cudarc's own slice");
                owners.memcpy_htod(&vec![7; WORDS], &mut theirs).expect("queued");
                let before = fake.calls(call);
                fake.fail_next(call, nth, code);
                let slice = gpu.cuda_slice::<u32>(WORDS, &home);
                assert!(fake.calls(call) >= before + nth, "{call} {nth} was not made: nothing is shown");
                fake.clear_faults();
                assert!(slice.is_err(), "{call} {nth}: {slice:?}");
                another.check_err().expect("no error of ours is stored there");
                let first = another.new_stream().expect("the owner's own first stream");
                let mut back = vec![0; WORDS];
                first.memcpy_dtoh(&theirs, &mut back).expect("read");
                first.synchronize().expect("there");
                assert_eq!(back, vec![7; WORDS], "{call} {nth}, {code}: before it was written");
                drop(gpu.cuda_slice::<u32>(WORDS, &home).expect("and a slice is to be had"));
            }
            rig.check_no_leaks();
        }
    }
}

/// What the first slice on a stream has cudarc make in the stream's value serves the next ones, with no wait, and goes with the stream.
#[test]
fn slices_of_a_stream_share_what_they_need_in_its_value() {
    let Some(rig) = rig() else { return };
    let Some(fake) = &rig.fake else { return };
    {
        let gpu = rig.allocator_for(1);
        let another = CudaContext::new(0).expect("another value of the context");
        let made = rig.ctx.new_stream().expect("another owner's stream");
        // SAFETY: `made` outlives everything that is done on it.
        #[allow(unsafe_code, reason = "a borrowed stream")]
        let borrowed = unsafe { another.wrap_borrowed_stream(made.cu_stream()) };
        let home = gpu.adopt(rig.cuda.adopt(borrowed).expect("adopted")).expect("a stream");
        drop(gpu.cuda_slice::<u32>(8, &home).expect("the first"));
        let calls =
            || ["cuStreamCreate", "cuStreamDestroy_v2", "cuCtxSynchronize"].map(|name| fake.calls(name));
        let before = calls();
        for _ in 0..20 {
            drop(gpu.cuda_slice::<u32>(8, &home).expect("a slice"));
        }
        assert_eq!(calls(), before, "nothing is made, and nothing is waited for");
        assert!(another.is_in_multi_stream_mode(), "what is queued there is tracked");
        drop((home, gpu));
        assert!(!another.is_in_multi_stream_mode(), "nothing is left there");
        assert_eq!(Arc::strong_count(&another), 1, "no other reference to the value is left");
    }
    rig.check_clean();
}

/// Ends a capture, which lives, without making its graph executable.
#[allow(unsafe_code, reason = "foreign calls")]
pub(super) fn check_capture_intact(on: &CudaStream) {
    // SAFETY: the stream is alive, and its capture began on it.
    let graph = unsafe { result::stream::end_capture(on.cu_stream()) }.expect("the capture lives");
    // SAFETY: ended above, and nothing uses it.
    unsafe { result::graph::destroy(graph) }.expect("destroyed");
}

/// Other code captures on the very stream that a slice was made for, and it is dropped meanwhile: cudarc's end of a slice makes
/// its stream wait for work outside the capture, and the capture was lost (905).
#[test]
fn a_pooled_slices_end_leaves_a_capture_on_its_stream_alone() {
    let Some(rig) = rig() else { return };
    for ours in [false, true] {
        let gpu = rig.allocator_for(1);
        let home = if ours {
            gpu.stream().expect("a stream")
        } else {
            let made = rig.ctx.new_stream().expect("another owner's stream");
            gpu.adopt(rig.cuda.adopt(made).expect("adopted")).expect("a stream")
        };
        let theirs = home.cudarc().expect("cudarc's value");
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        theirs.memcpy_htod(&vec![7; WORDS], &mut slice).expect("sent");
        assert_eq!(slice.stream(), &theirs, "the stream it was made for");
        assert_eq!(slice.as_view().stream(), &theirs);
        theirs.begin_capture(MODE).expect("captures");
        drop(slice);
        check_capture_intact(&theirs);
    }
    rig.check_clean();
}

/// A slice that is requested on a stream that captures is refused, and the capture goes on.
#[test]
fn a_pooled_slice_is_not_made_on_a_stream_that_captures() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(3);
        let home = gpu.stream().expect("a stream");
        drop(gpu.cuda_slice::<u32>(WORDS, &home).expect("the first, which waits"));
        let theirs = home.cudarc().expect("its alias");
        // Its bytes are cached: what the cache lacks is refused by the allocation.
        drop(gpu.uninit::<u32>(WORDS, &home).expect("bytes"));
        theirs.begin_capture(MODE).expect("captures");
        let answer = gpu.cuda_slice::<u32>(WORDS, &home);
        assert!(matches!(answer, Err(Error::Capturing { .. })), "{answer:?}");
        check_capture_intact(&theirs);
        drop(gpu.cuda_slice::<u32>(WORDS, &home).expect("afterwards it is made"));
    }
    rig.check_clean();
}

/// Other code captures while a slice is read and written on a stream of another value, the first that cudarc hears of there: to
/// have it tracked, a stream was made there, and the first one waits for the whole context.
#[test]
fn a_capture_lives_beside_a_pooled_slice_on_streams_of_another_value() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        let another = CudaContext::new(0).expect("another value of the context");
        // Nothing else is to end the capture: a wide event at the frees.
        rig.cuda.expect_captures();
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        let mut to = gpu.uninit::<u32>(WORDS, &home).expect("room");
        let other_stream = rig.ctx.new_stream().expect("another owner's stream");
        let waits = rig.fake.as_ref().map(|fake| fake.calls("cuCtxSynchronize"));
        other_stream.begin_capture(MODE).expect("captures");
        for reader in [another.per_thread_stream(), another.default_stream(), another.per_thread_stream()] {
            reader.memcpy_htod(&vec![7; WORDS], &mut slice).expect("written");
            reader.memcpy_dtod(&slice.as_view(), &mut to).expect("and read");
        }
        drop(slice);
        assert_eq!(
            rig.fake.as_ref().map(|fake| fake.calls("cuCtxSynchronize")),
            waits,
            "no call waited for the device"
        );
        check_capture_intact(&other_stream);
    }
    rig.check_clean();
}

/// An error that other code left in cudarc's store is neither returned as ours nor removed, by a slice that is made, by the stream that
/// the first one makes, and by its end, on whatever thread.
#[test]
fn an_error_in_cudarcs_store_stays_there_for_its_owner() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let theirs = home.cudarc().expect("its alias");
        for _ in 0..2 {
            store_error(&theirs);
            let slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("nothing of ours failed");
            let stored = theirs.context().check_err().map_err(|e| e.0);
            assert_eq!(stored, Err(CUresult::CUDA_ERROR_UNKNOWN), "it is where it was");
            store_error(&theirs);
            std::thread::scope(|s| s.spawn(|| drop(slice)).join()).expect("dropped on a fresh thread");
            let stored = theirs.context().check_err().map_err(|e| e.0);
            assert_eq!(stored, Err(CUresult::CUDA_ERROR_UNKNOWN), "it is where it was");
            theirs.context().check_err().expect("and was there once");
        }
    }
    rig.check_clean();
}

/// The same, by threads at once: one puts the error back while another one looks for errors of its own.
#[test]
fn threads_that_make_and_drop_slices_take_no_other_error_for_their_own() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(64);
        let homes = [(); 4].map(|()| gpu.stream().expect("a stream"));
        let theirs = homes[0].cudarc().expect("its alias");
        drop(gpu.cuda_slice::<u32>(1, &homes[0]).expect("the first, which waits"));
        store_error(&theirs);
        let failed = std::sync::Mutex::new(Vec::new());
        let together = std::sync::Barrier::new(homes.len());
        std::thread::scope(|s| {
            for home in &homes {
                s.spawn(|| {
                    for _ in 0..ROUNDS {
                        together.wait();
                        let slice = gpu.cuda_slice::<u32>(1, home);
                        // Not here: the others wait for this thread.
                        failed.lock().expect("no panic").extend(slice.err());
                    }
                });
            }
        });
        let failed = failed.into_inner().expect("no panic");
        assert!(failed.is_empty(), "nothing of ours failed, {} times: {:?}", failed.len(), failed[0]);
        assert_eq!(gpu.report().deferred_errors, Vec::<String>::new());
        let stored = theirs.context().check_err().map_err(|e| e.0);
        assert_eq!(stored, Err(CUresult::CUDA_ERROR_UNKNOWN), "it is where it was");
    }
    rig.check_clean();
}

/// One thread stands still while it has the error out, until another one looks, which then looks again when the error is back.
#[cfg(millpond_mutants)]
#[test]
fn an_error_that_is_put_back_is_not_another_threads() {
    use millpond::mutant::at;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    const POINT: &str = "cudarc's store is looked after";
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(2);
        let homes = [(); 2].map(|()| gpu.stream().expect("a stream"));
        let theirs = homes[0].cudarc().expect("its alias");
        drop(gpu.cuda_slice::<u32>(1, &homes[0]).expect("the first, which waits"));
        store_error(&theirs);
        let [out, looks, back] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        std::thread::scope(|s| {
            let second = s.spawn({
                let (out, looks, back) = (Arc::clone(&out), Arc::clone(&looks), Arc::clone(&back));
                let (gpu, home) = (&gpu, &homes[1]);
                move || {
                    while !out.load(SeqCst) {
                        std::thread::yield_now();
                    }
                    at(POINT, 1, move || {
                        looks.store(true, SeqCst);
                        while !back.load(SeqCst) {
                            std::thread::yield_now();
                        }
                    });
                    gpu.cuda_slice::<u32>(1, home)
                }
            });
            at(POINT, 1, move || {
                out.store(true, SeqCst);
                // The other one waits for its turn: so often is enough for it to come here if it had not to.
                (0..100_000).take_while(|_| !looks.load(SeqCst)).for_each(|_| std::thread::yield_now());
            });
            let first = gpu.cuda_slice::<u32>(1, &homes[0]);
            back.store(true, SeqCst);
            drop(first.expect("the first"));
            drop(second.join().expect("no panic").expect("nothing of its own failed"));
        });
        assert_eq!(millpond::mutant::waiting(), 0, "it stood still");
        theirs.context().check_err().expect_err("it is where it was");
    }
    rig.check_clean();
}

/// A stream that was taken by its raw handle has no value of cudarc's: an array of it answers the legacy stream, also while a blocking stream captures. It
/// panicked then.
#[test]
fn the_stream_of_an_array_of_a_raw_stream_is_to_be_had_beside_a_capture() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let made = rig.ctx.new_stream().expect("another owner's stream");
        // SAFETY: `made` outlives the pool.
        #[allow(unsafe_code, reason = "a raw handle")]
        let raw = unsafe { rig.cuda.raw_stream(made.cu_stream()) }.expect("a reference");
        let home = gpu.adopt(raw).expect("a pool");
        let x = gpu.uninit::<u32>(WORDS, &home).expect("an array");
        let blocking = rig.cuda.create_stream(StreamOptions::default().blocking(true)).expect("a stream");
        let theirs = blocking.cudarc().expect("its alias");
        theirs.begin_capture(MODE).expect("captures");
        assert_eq!(x.stream().cu_stream().addr(), 0, "the legacy stream");
        check_capture_intact(&theirs);
        drop((x, home));
        gpu.synchronize().expect("no capture is open");
    }
    rig.check_clean();
}

/// A failure at the end of a slice is reported by this library, and to no other code.
#[test]
fn an_error_of_a_pooled_slices_end_is_left_in_no_context() {
    let Some(rig) = rig() else { return };
    let Some(fake) = &rig.fake else { return };
    {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        fake.fail_next("cuStreamWaitEvent", 1, 999);
        drop(slice);
        home.cudarc().expect("its alias").context().check_err().expect("cudarc knows nothing of it");
        assert_eq!(gpu.report().deferred_errors.len(), 1);
    }
    rig.check_no_leaks();
}

/// The allocator's last owner goes while a kept value is queried: no later call will drop it, so the end waits for it.
#[cfg(millpond_mutants)]
#[test]
fn what_is_kept_when_the_allocator_ends_is_waited_for() {
    let Some(rig) = rig() else { return };
    if rig.fake.is_none() {
        return;
    }
    {
        let gpu = rig.allocator_for(2);
        let (home, unknown_stream) =
            (gpu.stream().expect("a stream"), test_stream(&rig, &gpu, Unknown).theirs);
        let mut x = array_of_sevens(&gpu, &home);
        let source = Arc::new(gpu.pinned_from_slice(&vec![3_u32; WORDS]).expect("a source"));
        let seen = Arc::downgrade(&source);
        drop(x.copy_from(source, &home).expect("queued"));
        millpond::mutant::at("a kept value is queried", 1, move || drop((home, gpu)));
        // An array is an owner of nothing, and its door leads to the keeper.
        assert_ne!(x.device_ptr(&unknown_stream).0, 0);
        assert_eq!(millpond::mutant::waiting(), 0, "it stood still");
        assert!(seen.upgrade().is_none(), "behind the copy it is dropped");
        drop(x);
    }
    rig.check_clean();
}

/// Where captures are expected: an allocator, a stream of its own, one without references, and an array at home on the first.
pub(super) fn beside_an_unknown_stream(
    rig: &Rig,
) -> (Allocator<Cuda>, millpond::Stream<Cuda>, Arc<CudaStream>, Words) {
    rig.cuda.expect_captures();
    let gpu = rig.allocator_for(1);
    let home = gpu.stream().expect("a stream");
    let unknown_stream = test_stream(rig, &gpu, Unknown).theirs;
    let x = array_of_sevens(&gpu, &home);
    (gpu, home, unknown_stream, x)
}

/// Where captures are expected the whole context is not marked, so a write behind a use on a stream without references is refused until
/// the program synchronises. The use was open still at the next try, and the array could never be written again.
#[test]
fn what_cannot_be_marked_is_over_behind_a_refused_write_and_a_synchronise() {
    for whole in [true, false] {
        let Some(rig) = rig() else { return };
        {
            let (gpu, home, unknown_stream, mut x) = beside_an_unknown_stream(&rig);
            if whole {
                unknown_stream.memset_zeros(&mut x).expect("queued");
            } else {
                unknown_stream.memset_zeros(&mut x.slice_mut(1..)).expect("queued");
            }
            gpu.synchronize().expect("no capture is open");
            // Under the same borrow more could have been queued since.
            let refused = x.fill_bytes(1, &home).expect_err("the unknown stream cannot be marked");
            assert!(refused.to_string().contains("until the program synchronises"), "{refused}");
            gpu.synchronize().expect("no capture is open");
            x.fill_bytes(1, &home).expect("behind the synchronise");
            assert_eq!(read(&home.cudarc().expect("its alias"), &x), vec![0x0101_0101; WORDS]);
        }
        rig.check_clean();
    }
}

/// A read was refused behind each synchronise again, until something wrote the whole, which a program that wants to know the contents does not do.
/// A borrow of the whole for reading shows as well that the work of borrows for writing is queued.
#[test]
fn what_cannot_be_marked_is_read_behind_a_refused_read_and_a_synchronise() {
    for whole in [true, false] {
        let Some(rig) = rig() else { return };
        {
            let (gpu, home, unknown_stream, mut x) = beside_an_unknown_stream(&rig);
            unknown_stream.memset_zeros(&mut x.slice_mut(1..)).expect("queued");
            let look = |x: &Words| {
                let copy = if whole { x.to_pinned(&home) } else { x.slice(1..).to_pinned(&home) };
                copy.map(|copy| copy.wait().expect("copied").last().copied())
            };
            gpu.synchronize().expect("no capture is open");
            let refused = look(&x).expect_err("the unknown stream cannot be marked");
            assert!(refused.to_string().contains("until the program synchronises"), "{refused}");
            gpu.synchronize().expect("no capture is open");
            assert_eq!(look(&x).expect("behind the synchronise"), Some(0));
            assert_eq!(look(&x).expect("and again"), Some(0));
            // What is borrowed after it counts anew.
            unknown_stream.memset_zeros(&mut x).expect("queued");
            look(&x).expect_err("that cannot be marked");
            drop(x);
            gpu.synchronize().expect("no capture is open");
        }
        rig.check_clean();
    }
}

/// A part that is borrowed to read says nothing of the others: work of their borrows may still be queued.
#[test]
fn a_refused_read_of_a_part_ends_no_write_of_another() {
    let Some(rig) = rig() else { return };
    {
        rig.cuda.expect_captures();
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let unknown_stream = test_stream(&rig, &gpu, Unknown).theirs;
        let mut x = array_of_sevens(&gpu, &home);
        let (mut one, other) = x.view_mut().split_at(1);
        unknown_stream.memset_zeros(&mut one).expect("queued");
        for _ in 0..2 {
            let _ = other.view().to_pinned(&home).expect_err("the unknown stream cannot be marked");
            gpu.synchronize().expect("no capture is open");
        }
        // Nor does the host wait where cudarc asks.
        unknown_stream.memset_zeros(&mut one).expect_err("no address");
        let other_too = gpu.report().deferred_errors.join("\n");
        assert!(other_too.contains("until the program synchronises"), "{other_too}");
        drop(x);
        gpu.synchronize().expect("no capture is open");
    }
    rig.check_no_leaks();
}

/// An array in external memory gives its stream out again, so a declared use of that stream goes on: the stream was taken for abandoned, the use for
/// over at a marker that came before the work, and the bytes had their next owner under it.
#[test]
fn work_on_a_stream_that_external_memory_gave_out_again_is_waited_for() {
    let Some(rig) = rig() else { return };
    {
        let gpu = rig.allocator_for(1);
        let library = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let user = gpu.stream().expect("a stream");
        let block = library.alloc(BYTES, &library.stream().expect("a stream")).expect("a block");
        let memory = ExternalMemory { address: block.address(), bytes: BYTES, device: gpu.device() };
        #[allow(unsafe_code, reason = "a block of the library's, which is the owner")]
        // SAFETY: the block lives as long as its owner, and nothing else uses it.
        let made = unsafe { DeviceArray::<u32, _>::from_external(memory, WORDS, block, &user) };
        let mut foreign = made.map_err(|(_, e)| e).expect("an array");
        let x = array_of_sevens(&gpu, &home);
        user.wait_stream(&home).expect("behind the copy");
        x.record_use(&user).expect("declared");
        drop(user);
        let others: Vec<_> = (0..12).map(|_| gpu.stream().expect("a stream")).collect();
        for other in &others {
            x.record_use(other).expect("declared");
        }
        // A marker there, which the work below is not behind.
        foreign.fill_bytes(1, &home).expect("filled");
        let again = std::sync::Arc::clone(DeviceSlice::stream(&foreign));
        let freed_at = x.address().0;
        #[allow(unsafe_code, reason = "the declared use")]
        // SAFETY: the range is x's, whose use by this stream is declared.
        unsafe {
            cudarc::driver::result::memset_d8_async(freed_at, 5, BYTES as usize, again.cu_stream())
                .expect("queued");
        }
        drop(x);
        drop(next_owner(&gpu, &home, freed_at));
    }
    rig.check_clean();
}

/// Where captures are expected: an allocator with memory for one array, a stream of its own, and one that captures. An array was freed at that address
/// with unknown users, and a stream that no allocator holds writes it still.
fn used_by_an_unknown_stream(rig: &Rig) -> (Allocator<Cuda>, millpond::Stream<Cuda>, Arc<CudaStream>, u64) {
    rig.cuda.expect_captures();
    let gpu = rig.allocator_for(1);
    let home = gpu.stream().expect("a stream");
    let [user, unknown_stream] = [(); 2].map(|()| test_stream(rig, &gpu, Unknown).theirs);
    let x = gpu.alloc(BYTES, &home).expect("memory");
    user.wait(&home.cudarc().expect("its alias").record_event(None).expect("an event")).expect("ordered");
    let at = x.address().0;
    #[allow(unsafe_code, reason = "the use that the free tells of")]
    // SAFETY: the range is x's, which is freed behind whatever uses it.
    unsafe {
        cudarc::driver::result::memset_d8_async(at, 5, BYTES as usize, user.cu_stream()).expect("queued");
    }
    x.free_unknown();
    unknown_stream.begin_capture(MODE).expect("begun");
    (gpu, home, unknown_stream, at)
}

/// The end of an allocator that has to wait for memory that no marker can cover, beside a capture by other code.
#[test]
fn an_allocators_end_waits_for_what_cannot_be_marked_beside_a_capture() {
    let Some(rig) = rig() else { return };
    {
        let (gpu, home, unknown_stream, _) = used_by_an_unknown_stream(&rig);
        drop((home, gpu));
        check_capture_intact(&unknown_stream);
    }
    rig.check_clean();
}

/// What cannot be marked serves others behind a wait beside a capture, and that is behind its use.
#[test]
fn what_cannot_be_marked_is_over_behind_a_wait_beside_a_capture() {
    let Some(rig) = rig() else { return };
    {
        let (gpu, home, unknown_stream, freed_at) = used_by_an_unknown_stream(&rig);
        gpu.synchronize_beside_captures().expect("waited");
        check_capture_intact(&unknown_stream);
        drop(next_owner(&gpu, &home, freed_at));
    }
    rig.check_clean();
}
