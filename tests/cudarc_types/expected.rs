//! Where captures are expected (`Cuda::expect_captures`): nothing of ours waits for the device but what says so, and what cannot be marked is
//! refused until the program synchronises.

use super::aliases_and_slices::{MODE, beside_an_unknown_stream, check_capture_intact};
use super::*;
use millpond::{DriverErrorKind, PinnedArray};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An array was written on a stream without references, and other code captures. The next call of cudarc's on the array, on whatever stream, waited
/// for the device, and the capture was lost.
#[test]
fn no_call_of_cudarcs_on_an_array_waits_for_the_device() {
    for origin in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let (gpu, home, unknown_stream, mut x) = beside_an_unknown_stream(&rig);
            let theirs = test_stream(&rig, &gpu, origin).theirs;
            unknown_stream.memset_zeros(&mut x).expect("queued");
            let other_stream = rig.ctx.new_stream().expect("another owner's stream");
            let waits = || rig.fake.as_ref().map(|fake| fake.calls("cuCtxSynchronize"));
            let before = waits();
            other_stream.begin_capture(MODE).expect("captures");
            for _ in 0..2 {
                let mut to = vec![1; WORDS];
                theirs.memcpy_dtoh(&x, &mut to).expect_err("no address to read");
                theirs.memset_zeros(&mut x).expect_err("no address to write");
                theirs.memset_zeros(&mut x.slice_mut(1..)).expect_err("nor of a part");
            }
            assert_eq!(waits(), before, "{origin:?}: no call waited for the device");
            check_capture_intact(&other_stream);
            let said = gpu.report().deferred_errors.join("\n");
            assert!(said.contains("until the program synchronises"), "{said}");
            gpu.synchronize().expect("no capture is open");
            assert_eq!(read(&home.cudarc().expect("its alias"), &x), vec![0; WORDS], "{origin:?}");
            theirs.memset_zeros(&mut x).expect("behind the synchronise");
        }
        rig.check_no_leaks();
    }
}

/// A look at an element behind a copy of cudarc's on a stream without references waited for the device: a capture by other code was lost, and the
/// look panicked. Now it is refused, in words or as an error, until the program synchronises.
#[test]
fn no_look_at_a_pinned_array_waits_for_the_device() {
    let Some(rig) = rig() else { return };
    {
        let (gpu, _home, unknown_stream, x) = beside_an_unknown_stream(&rig);
        let mut host = gpu.pinned_zeros::<u32>(WORDS).expect("pinned");
        let other_stream = rig.ctx.new_stream().expect("another owner's stream");
        let waits = || rig.fake.as_ref().map(|fake| fake.calls("cuCtxSynchronize"));
        for forms in [words_of, error_of] {
            unknown_stream.memcpy_dtoh(&x, &mut host).expect("fetched");
            let before = waits();
            other_stream.begin_capture(MODE).expect("captures");
            for _ in 0..2 {
                let said = forms(&mut host, false);
                assert!(said.contains("until the program synchronises"), "{said}");
                assert!(said.contains("streams that no allocator holds"), "{said}");
            }
            assert_eq!(waits(), before, "no call waited for the device");
            check_capture_intact(&other_stream);
            gpu.synchronize().expect("no capture is open");
            assert_eq!(host[..], vec![7; WORDS], "behind the synchronise");
            // A copy from it hinders no reader, and a writer until then.
            let copy = unknown_stream.clone_htod(&host).expect("a slice of cudarc's");
            other_stream.begin_capture(MODE).expect("captures");
            assert_eq!(host[0], 7);
            let said = forms(&mut host, true);
            assert!(said.contains("until the program synchronises"), "{said}");
            check_capture_intact(&other_stream);
            gpu.synchronize().expect("no capture is open");
            host.host_ready_mut().expect("behind the synchronise").fill(8);
            assert_eq!(host.host_ready().expect("nothing is under way")[1], 8);
            drop(copy);
        }
    }
    rig.check_clean();
}

/// What a look says that is refused, by its panic.
fn words_of(host: &mut PinnedArray<u32, Cuda>, to_write: bool) -> String {
    let look = || if to_write { host.fill(9) } else { assert_eq!(host[0], 7) };
    let panic = catch_unwind(AssertUnwindSafe(look)).expect_err("refused");
    panic.downcast_ref::<String>().cloned().expect("words")
}

/// The same by its error.
fn error_of(host: &mut PinnedArray<u32, Cuda>, to_write: bool) -> String {
    let look = if to_write { host.host_ready_mut().map(drop) } else { host.host_ready().map(drop) };
    let error = look.expect_err("refused");
    assert!(matches!(&error, Error::Driver(e) if e.kind == DriverErrorKind::NotSupported), "{error:?}");
    error.to_string()
}

/// An array at home on a thread's default stream, where cudarc borrowed it, goes to another thread, where no call can mark that stream. The borrowed
/// use was open after each refusal and each synchronise again.
#[test]
fn what_was_borrowed_at_home_is_over_behind_a_refusal_and_a_synchronise() {
    for wrote in [true, false] {
        let Some(rig) = rig() else { return };
        {
            rig.cuda.expect_captures();
            let gpu = rig.allocator_for(1);
            let on_a_thread = || {
                let own = gpu.adopt(rig.cuda.per_thread_stream().expect("its own")).expect("a pool");
                let (theirs, mut x) = (own.cudarc().expect("its alias"), array_of_sevens(&gpu, &own));
                if wrote {
                    theirs.memset_zeros(&mut x).expect("queued");
                } else {
                    x.fill_bytes(0, &own).expect("queued, and nothing is borrowed");
                    assert_eq!(read(&theirs, &x), vec![0; WORDS]);
                }
                x
            };
            let mut x = std::thread::scope(|s| s.spawn(on_a_thread).join()).expect("made");
            let work = gpu.stream().expect("a stream");
            let refused = if wrote {
                x.to_pinned(&work).map(drop).expect_err("its thread alone can mark the stream")
            } else {
                gpu.synchronize().expect("no capture is open");
                assert_eq!(x.to_pinned(&work).expect("a reader hinders none").wait().expect("copied")[0], 0);
                x.fill_bytes(1, &work).expect_err("its thread alone can mark the stream")
            };
            assert!(refused.to_string().contains("the program synchronises"), "{refused}");
            gpu.synchronize().expect("no capture is open");
            assert_eq!(x.to_pinned(&work).expect("behind the synchronise").wait().expect("copied")[0], 0);
            x.fill_bytes(1, &work).expect("behind the synchronise");
        }
        rig.check_clean();
    }
}

/// The newest errors are kept, and how many there were before: of a loop of refusals the last one says why.
#[test]
fn the_newest_errors_that_no_call_returned_are_kept() {
    let Some(rig) = rig() else { return };
    {
        let (gpu, home, unknown_stream, mut x) = beside_an_unknown_stream(&rig);
        let theirs = home.cudarc().expect("its alias");
        theirs.begin_capture(MODE).expect("captures");
        for _ in 0..100 {
            assert_eq!(x.device_ptr(&theirs).0, 0);
        }
        check_capture_intact(&theirs);
        unknown_stream.memset_zeros(&mut x).expect("queued");
        theirs.memset_zeros(&mut x).expect_err("the unknown stream cannot be marked");
        let said = gpu.report().deferred_errors;
        assert_eq!(said.len(), 65);
        assert!(said[0].contains("37 errors before these were left out"), "{}", said[0]);
        assert!(said[64].contains("until the program synchronises"), "{}", said[64]);
        drop(x);
        gpu.synchronize().expect("no capture is open");
    }
    rig.check_no_leaks();
}

/// What an error of pinned memory that is held back says to do is to be had of pinned memory.
#[test]
fn pinned_memory_that_is_held_back_is_reported_as_such() {
    let Some(rig) = rig() else { return };
    {
        rig.cuda.expect_captures();
        let gpu = rig.allocator_for(1);
        gpu.alloc_pinned(PINNED).expect("all that there may be").free_unknown();
        let refused = gpu.alloc_pinned(PINNED).expect_err("it is held back").to_string();
        assert!(refused.contains("record_use_until") && !refused.contains("free_on"), "{refused}");
        gpu.synchronize().expect("no capture is open");
        gpu.alloc_pinned(PINNED).expect("it serves");
    }
    rig.check_clean();
}

/// A copy of ours with a pinned array that cudarc copies into on a stream without references: the array comes back with the error, to be had behind a
/// synchronise. It panicked, and the array was dropped.
#[test]
fn a_pinned_array_that_cannot_be_waited_for_comes_back_from_a_copy() {
    let Some(rig) = rig() else { return };
    {
        let (gpu, home, unknown_stream, mut x) = beside_an_unknown_stream(&rig);
        let mut host = gpu.pinned_zeros::<u32>(WORDS).expect("pinned");
        let refused = |e: &Error| {
            assert!(e.to_string().contains("pinned memory was borrowed"), "{e}");
            assert!(matches!(e, Error::Driver(e) if e.kind == DriverErrorKind::NotSupported), "{e:?}");
        };
        unknown_stream.memcpy_dtoh(&x, &mut host).expect("fetched");
        let back = x.copy_to(host, &home).expect_err("a copy may write it still");
        refused(&back.error);
        let mut host = back.host.expect("it has no other owner");
        gpu.synchronize().expect("no capture is open");
        unknown_stream.memcpy_dtoh(&x, &mut host).expect("fetched");
        let back = x.copy_from(host, &home).expect_err("a copy may write it still");
        refused(&back.error);
        let host = std::sync::Arc::new(back.host.expect("it has no other owner"));
        let part = millpond::transfer::Part::new(std::sync::Arc::clone(&host), ..WORDS / 2);
        let back = x.slice_mut(..WORDS / 2).copy_from(part, &home).expect_err("nor a part of it");
        refused(&back.error);
        drop(back);
        gpu.synchronize().expect("no capture is open");
        assert_eq!(host[..], vec![7; WORDS]);
        drop(x);
    }
    rig.check_clean();
}

/// The first pooled slice on a value that cudarc has made no stream in waits for all that is queued, for the owner's own first stream, and ended the
/// captures that were expected by that. It waits by unpinning.
#[test]
fn the_first_slice_of_a_value_ends_no_capture() {
    let Some(rig) = rig() else { return };
    {
        rig.cuda.expect_captures();
        let gpu = rig.allocator_for(1);
        let another = CudaContext::new(0).expect("another value of the context");
        let (made, other_stream) =
            [(); 2].map(|()| rig.ctx.new_stream().expect("another owner's stream")).into();
        // SAFETY: `made` outlives everything that is done on it.
        #[allow(unsafe_code, reason = "a borrowed stream")]
        let borrowed = unsafe { another.wrap_borrowed_stream(made.cu_stream()) };
        let home = gpu.adopt(rig.cuda.adopt(borrowed).expect("adopted")).expect("a stream");
        let owners = another.default_stream();
        let mut theirs = owners.alloc_zeros::<u32>(WORDS).expect("cudarc's own slice");
        owners.memcpy_htod(&vec![7; WORDS], &mut theirs).expect("queued");
        other_stream.begin_capture(MODE).expect("captures");
        let slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        check_capture_intact(&other_stream);
        let first = another.new_stream().expect("the owner's own first stream");
        let mut back = vec![0; WORDS];
        first.memcpy_dtoh(&theirs, &mut back).expect("read");
        first.synchronize().expect("there");
        assert_eq!(back, vec![7; WORDS], "before it was written");
        drop(slice);
    }
    rig.check_clean();
}
