//! Pooled slices that several streams have read: a writer comes behind all of them.

use super::*;
use cudarc::driver::CudaStream;
use millpond::Stream;
use millpond::interop::PooledSlice;

/// A slice of sevens, an allocator with room for some arrays, and its stream.
fn slice_of_sevens(rig: &Rig, arrays: u64) -> (Allocator<Cuda>, Stream<Cuda>, PooledSlice<u32>) {
    let gpu = rig.allocator_for(1 + arrays);
    let home = gpu.stream().expect("a stream");
    let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
    home.cudarc().expect("its alias").memcpy_htod(&vec![7; WORDS], &mut slice).expect("sent");
    (gpu, home, slice)
}

fn nines(on: &Arc<CudaStream>, slice: &mut PooledSlice<u32>) {
    on.memcpy_htod(&vec![9; WORDS], slice).expect("written");
    on.synchronize().expect("there");
}

fn are_sevens(on: &Arc<CudaStream>, of: &str, all: &[Words]) {
    for (n, to) in all.iter().enumerate() {
        assert_eq!(read(on, to), vec![7; WORDS], "{of}: reader {n} came before the write");
    }
}

/// cudarc remembers the last of them, as hazard 1 has it for its own slices. The write is by a copy to the slice, to a view of a part, and by a launch.
#[test]
fn all_readers_of_a_pooled_slice_are_waited_for() {
    for writer in ["a copy", "a view", "a launch", "a launch with a view"] {
        let Some(rig) = rig() else { return };
        {
            let (gpu, home, mut slice) = slice_of_sevens(&rig, 4);
            let theirs = home.cudarc().expect("its alias");
            let kernel = iota(&rig.ctx);
            let another = CudaContext::new(0).expect("another value of the context");
            let streams = [
                test_stream(&rig, &gpu, Unknown).theirs,
                test_stream(&rig, &gpu, Adopted).theirs,
                another.default_stream(),
                another.new_stream().expect("a stream"),
            ];
            let mut all = [(); 4].map(|()| gpu.uninit::<u32>(WORDS, &home).expect("room"));
            for (stream, to) in streams.iter().zip(&mut all) {
                stream.memcpy_dtod(&slice, to).expect("read");
            }
            drop(streams);
            match writer {
                "a copy" => nines(&theirs, &mut slice),
                "a view" => {
                    for half in [..WORDS / 2, ..WORDS] {
                        theirs.memset_zeros(&mut slice.slice_mut(half)).expect("written");
                    }
                }
                _ => {
                    let mut launch = theirs.launch_builder(&kernel);
                    let mut view;
                    if writer == "a launch" {
                        launch.arg(&mut slice);
                    } else {
                        view = slice.as_view_mut();
                        launch.arg(&mut view);
                    }
                    launch.arg(&(WORDS as u64)).arg(&9_u32).arg(&0_u32);
                    #[allow(unsafe_code, reason = "a launch")]
                    // SAFETY: iota takes an address, a length, the first number and the step; it writes so many elements.
                    unsafe { launch.launch(GRID) }.expect("launched");
                }
            }
            theirs.synchronize().expect("there");
            are_sevens(&theirs, writer, &all);
        }
        rig.check_clean();
    }
}

/// Two calls are queuing at once, each with the address in its hands: what is recorded last does not take the first one's place.
#[test]
fn readers_at_once_of_a_pooled_slice_are_waited_for() {
    let Some(rig) = rig() else { return };
    {
        let (gpu, home, mut slice) = slice_of_sevens(&rig, 3);
        let theirs = home.cudarc().expect("its alias");
        let streams = [Unknown, Ours, Adopted].map(|origin| test_stream(&rig, &gpu, origin));
        let mut all = [(); 3].map(|()| gpu.uninit::<u32>(WORDS, &home).expect("room"));
        {
            let borrows = streams.each_ref().map(|test_stream| slice.device_ptr(&test_stream.theirs));
            for ((test_stream, (from, _)), to) in streams.iter().zip(&borrows).zip(&mut all) {
                let (to, _end) = to.device_ptr_mut(&test_stream.theirs);
                #[allow(unsafe_code, reason = "what a call of cudarc's does")]
                // SAFETY: so many elements at both addresses, which are borrowed on this stream.
                unsafe {
                    result::memcpy_dtod_async(to, *from, BYTES as usize, test_stream.theirs.cu_stream())
                }
                .expect("queued");
            }
        }
        nines(&theirs, &mut slice);
        are_sevens(&theirs, "at once", &all);
    }
    rig.check_clean();
}

/// Streams that end with their reads queued, and whose handle is the next one's; and threads that do, each with its default stream, whose handle is
/// all of theirs. For each there is no event more, in the end: it is the next one's.
#[test]
fn readers_that_are_gone_are_waited_for_and_leave_nothing() {
    const MANY: usize = 20;
    for threads in [false, true] {
        let Some(rig) = rig() else { return };
        {
            let (gpu, home, mut slice) = slice_of_sevens(&rig, MANY as u64);
            let theirs = home.cudarc().expect("its alias");
            let mut all: Vec<Words> = (0..MANY).map(|_| gpu.uninit(WORDS, &home).expect("room")).collect();
            theirs.synchronize().expect("there");
            let mut events = Vec::new();
            for to in &mut all {
                let mut read = || {
                    let on = if threads {
                        rig.ctx.per_thread_stream()
                    } else {
                        test_stream(&rig, &gpu, Unknown).theirs
                    };
                    on.memcpy_dtod(&slice.as_view(), to).expect("read");
                };
                if threads {
                    std::thread::scope(|s| s.spawn(read).join().expect("no panic"));
                } else {
                    read();
                }
                events.extend(rig.fake.as_ref().map(|fake| fake.calls("cuEventCreate")));
            }
            nines(&theirs, &mut slice);
            are_sevens(&theirs, if threads { "threads" } else { "streams" }, &all);
            let made: Vec<_> = events.windows(2).map(|two| two[1] - two[0]).collect();
            assert!(made.iter().all(|&n| n == 0), "{made:?}");
        }
        rig.check_clean();
    }
}

/// A write whose end is never recorded (cudarc's mark of it is forgotten), and a launch that is never made behind its argument: those who read before are not forgotten with it.
#[test]
fn readers_before_a_write_that_was_not_made_are_waited_for() {
    for launch in [false, true] {
        let Some(rig) = rig() else { return };
        {
            let (gpu, home, mut slice) = slice_of_sevens(&rig, 3);
            let theirs = home.cudarc().expect("its alias");
            let kernel = iota(&rig.ctx);
            let [reader, other] = [Unknown, Ours].map(|origin| test_stream(&rig, &gpu, origin));
            let mut all = [(); 2].map(|()| gpu.uninit::<u32>(WORDS, &home).expect("room"));
            reader.theirs.memcpy_dtod(&slice, &mut all[0]).expect("read");
            if launch {
                theirs.launch_builder(&kernel).arg(&mut slice);
                // One that reads, by cudarc's own event.
                let mut to = gpu.uninit::<u32>(WORDS, &home).expect("room");
                let (address, end) = to.device_ptr_mut(&other.theirs);
                drop(end);
                let mut reads = other.theirs.launch_builder(&kernel);
                reads.arg(&address).arg(&(WORDS as u64)).arg(&9_u32).arg(&0_u32).arg(&slice);
                #[allow(unsafe_code, reason = "a launch")]
                // SAFETY: iota takes an address, a length, the first number and the step; it writes so many elements, and has no fifth argument.
                unsafe { reads.launch(GRID) }.expect("launched");
            } else {
                core::mem::forget(slice.device_ptr_mut(&other.theirs));
            }
            nines(&theirs, &mut slice);
            are_sevens(&theirs, "not made", &all[..1]);
        }
        rig.check_clean();
    }
}

/// What the type's documentation says.
#[test]
fn a_read_and_a_write_of_a_pooled_slice_cost_what_is_said() {
    let Some(rig) = rig() else { return };
    let Some(fake) = &rig.fake else { return };
    {
        let (gpu, home, mut slice) = slice_of_sevens(&rig, 0);
        let (theirs, kernel) = (home.cudarc().expect("its alias"), iota(&rig.ctx));
        let [one, two] = [Unknown, Ours].map(|origin| test_stream(&rig, &gpu, origin));
        let mut to = vec![0; WORDS];
        let calls = || ["cuEventCreate", "cuStreamWaitEvent", "cuEventRecord"].map(|name| fake.calls(name));
        let of = |call: &mut dyn FnMut()| {
            let before = calls();
            call();
            let after = calls();
            [0, 1, 2].map(|n| after[n] - before[n])
        };
        let mut reads = |on: &TestStream, slice: &PooledSlice<u32>| {
            of(&mut || on.theirs.memcpy_dtoh(slice, &mut to).expect("read"))
        };
        let writes = |on: &TestStream, slice: &mut PooledSlice<u32>| {
            of(&mut || on.theirs.memset_zeros(slice).expect("written"))
        };
        assert_eq!(reads(&one, &slice), [1, 1, 1], "a first read makes an event");
        assert_eq!(reads(&one, &slice), [0, 1, 1], "a second one is cudarc's");
        assert_eq!(reads(&two, &slice), [1, 1, 1], "another stream's makes one more");
        assert_eq!(writes(&one, &mut slice), [0, 3, 2], "a write waits for the other reader, and marks that");
        assert_eq!(writes(&two, &mut slice), [0, 2, 1], "behind a write it is cudarc's");
        assert_eq!(reads(&two, &slice), [0, 1, 1], "there is an event left");
        assert_eq!(writes(&two, &mut slice), [0, 2, 1], "the only reader waits for no other stream");
        assert_eq!(writes(&one, &mut slice), [0, 3, 2], "and is waited for by the next one");
        let launches = |slice: &mut PooledSlice<u32>| {
            of(&mut || {
                let mut launch = theirs.launch_builder(&kernel);
                launch.arg(&mut *slice).arg(&(WORDS as u64)).arg(&9_u32).arg(&0_u32);
                #[allow(unsafe_code, reason = "a launch")]
                // SAFETY: iota takes an address, a length, the first number and the step; it writes so many elements.
                unsafe { launch.launch(GRID) }.expect("launched");
            })
        };
        assert_eq!(launches(&mut slice), [0, 2, 1], "as cudarc has it");
        for made in [1, 0] {
            for on in [&one, &two] {
                assert_eq!(reads(on, &slice), [0, 1, 1]);
            }
            // Where the stream is made, cudarc has it wait for the one that it is forked from.
            assert_eq!(
                launches(&mut slice),
                [made, 2 + 2 + 2 + made, 1 + 1 + made],
                "behind copies that read"
            );
            assert_eq!(launches(&mut slice), [0, 2, 1], "once");
            // The allocator does not know that the launches were made, and cudarc's event of writes is behind the copies nevertheless.
            assert_eq!(writes(&one, &mut slice), [0, 2, 1]);
        }
    }
    rig.check_clean();
}
