//! cudarc makes its context current wherever it opens one, makes a stream or drops the last reference to either, and leaves it
//! so. What was current on a thread before a call or a drop of ours is current after it: nothing, or another context.

use super::*;
use cudarc::driver::result::ctx;
use cudarc::driver::sys::CUcontext;

/// Runs a body with nothing current and, where there is a second device, with its context current. The body says after each
/// step what it did, and is judged there; the rig that it gives back has to be clean.
fn with_nothing_or_another_current(body: impl Fn(Rig, &dyn Fn(&str)) -> Rig) {
    for elsewhere in [false, true] {
        let Some(rig) = rig() else { return };
        if elsewhere && Cuda::devices().expect("asked") < 2 {
            return;
        }
        let other = elsewhere.then(|| CudaContext::new(1).expect("the other device's context"));
        let wanted = other.as_ref().map(|other| other.cu_ctx());
        make_current(wanted);
        let rig = body(rig, &|what| assert_eq!(ctx::get_current().expect("asked"), wanted, "{what}"));
        drop(other);
        make_current(None);
        rig.check_clean();
    }
}

#[allow(unsafe_code, reason = "a raw context")]
fn make_current(context: Option<CUcontext>) {
    // SAFETY: every caller has it kept for as long as it is current; null means none.
    unsafe { ctx::set_current(context.unwrap_or(std::ptr::null_mut())) }.expect("set");
}

/// How often the stand-in was called to give a context back.
fn released(fake: Option<&Fake>) -> u64 {
    fake.map_or(0, |f| f.calls("cuDevicePrimaryCtxRelease_v2"))
}

/// Makes a context of cudarc's, or something of one, on a thread of its own: that leaves it current there.
fn apart<R: Send>(make: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(make).join()).expect("no panic")
}

#[test]
fn aliases_slices_and_the_end_of_the_backend_leave_what_was_current() {
    with_nothing_or_another_current(|rig, stays| {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        drop(home.cudarc().expect("its alias"));
        stays("the first alias opens cudarc's context");
        let slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        stays("the first slice makes a stream of cudarc's");
        drop(slice);
        stays("its events go");
        let Rig { cuda, ctx, fake, turn } = rig;
        let before = released(fake.as_ref());
        drop((home, gpu, cuda));
        stays("the backend gives cudarc's stream and context back");
        assert_eq!(
            released(fake.as_ref()) - before,
            2 * u64::from(fake.is_some()),
            "its own and the alias's"
        );
        Rig { cuda: Cuda::new(0).expect("a new value of the context"), ctx, fake, turn }
    });
}

#[test]
fn the_last_reference_to_another_owners_context_leaves_what_was_current() {
    with_nothing_or_another_current(|rig, stays| {
        let again = apart(|| CudaContext::new(0).expect("the same context"));
        let before = released(rig.fake.as_ref());
        drop(Cuda::from_context(again).expect("there is a value of it already"));
        stays("a second reference is not kept");
        assert_eq!(released(rig.fake.as_ref()) - before, u64::from(rig.fake.is_some()));
        let Rig { cuda, ctx, fake, turn } = rig;
        drop(cuda);
        let own =
            apart(|| Cuda::from_context(CudaContext::new(0).expect("a context")).expect("a value of it"));
        let before = released(fake.as_ref());
        drop(own);
        stays("the last value of it goes");
        assert_eq!(released(fake.as_ref()) - before, u64::from(fake.is_some()), "it held the last reference");
        Rig { cuda: Cuda::new(0).expect("a new value of the context"), ctx, fake, turn }
    });
}

#[test]
fn a_stream_that_is_not_adopted_leaves_what_was_current() {
    with_nothing_or_another_current(|rig, stays| {
        if let Some(fake) = &rig.fake {
            let destroyed = fake.calls("cuStreamDestroy_v2");
            let stream = apart(|| rig.ctx.new_stream().expect("a stream"));
            fake.fail_next("cuStreamGetFlags", 1, 999);
            rig.cuda.adopt(stream).expect_err("the driver does not say what it is");
            stays("the last reference to a stream");
            assert_eq!(fake.calls("cuStreamDestroy_v2"), destroyed + 1);
        }
        if Cuda::devices().expect("asked") > 1 {
            let far = apart(|| CudaContext::new(1).expect("the other device").default_stream());
            let before = released(rig.fake.as_ref());
            rig.cuda.adopt(far).expect_err("a default stream of another context");
            stays("the last reference to its context");
            assert_eq!(released(rig.fake.as_ref()) - before, u64::from(rig.fake.is_some()));
        }
        rig
    });
}

/// An array of no bytes answers device 0's default stream, for which cudarc makes the context current. It is kept for the rest of the process, which
/// is why the rig is not checked.
#[test]
fn the_stream_of_no_bytes_leaves_what_was_current() {
    let Some(rig) = rig() else { return };
    let gpu = rig.allocator_for(1);
    let home = gpu.stream().expect("a stream");
    let none = gpu.uninit::<u32>(0, &home).expect("nothing");
    make_current(None);
    assert_eq!(none.stream().cu_stream().addr(), 0, "the default stream");
    assert_eq!(ctx::get_current().expect("asked"), None, "nothing was current");
}

/// A pool keeps the stream that its arrays answer, which may be the last reference to it.
#[test]
fn the_stream_that_a_pool_keeps_leaves_what_was_current() {
    with_nothing_or_another_current(|rig, stays| {
        let gpu = rig.allocator_for(1);
        let theirs = apart(|| rig.ctx.new_stream().expect("a stream"));
        let home = gpu.adopt(rig.cuda.adopt(theirs).expect("adopted")).expect("a pool");
        let array: Words = gpu.uninit(WORDS, &home).expect("an array");
        assert_eq!(array.stream().context().ordinal(), 0, "the pool keeps it from here on");
        stays("asked for");
        let destroyed = || rig.fake.as_ref().map_or(0, |f| f.calls("cuStreamDestroy_v2"));
        let before = destroyed();
        drop((home, array, gpu));
        assert_eq!(destroyed() - before, u64::from(rig.fake.is_some()), "it was the last");
        stays("the pool goes");
        rig
    });
}

/// cudarc leaves the context current that it released: it is no context then, but no error of ours.
#[test]
fn a_context_that_went_while_it_was_current_harms_nothing() {
    let Some(rig) = rig() else { return };
    if Cuda::devices().expect("asked") < 2 {
        return;
    }
    {
        let gpu = rig.allocator_for(1);
        let home = gpu.stream().expect("a stream");
        let theirs = home.cudarc().expect("its alias");
        let go = || drop(CudaContext::new(1).expect("the other device's context"));
        go();
        let mut x: Words = gpu.zeros(WORDS, &home).expect("an array");
        go();
        x.fill_bytes(7, &home).expect("a fill");
        go();
        theirs.memset_zeros(&mut x).expect("a call of cudarc's");
        go();
        drop(gpu.cuda_slice::<u32>(0, &home).expect("a slice"));
        go();
        drop(x);
        go();
        gpu.synchronize().expect("at rest");
    }
    rig.check_clean();
}
