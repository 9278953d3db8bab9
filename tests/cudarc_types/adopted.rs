//! A program that has cudarc's context and streams already: an allocator in the one, pools for the others, a call each.

use super::*;
use millpond::driver::{Fences, StreamOptions};
use millpond::{DriverError, DriverErrorKind};

#[test]
fn a_context_and_a_stream_of_cudarcs_take_a_call_each() {
    let Some(rig) = rig() else { return };
    let theirs = rig.ctx.new_stream().expect("a stream");
    let gpu = Allocator::in_cudarc(Arc::clone(&rig.ctx), Config::default()).expect("an allocator");
    let (s, again) = (gpu.adopt_cudarc(Arc::clone(&theirs)), gpu.adopt_cudarc(Arc::clone(&theirs)));
    let (s, again) = (s.expect("adopted"), again.expect("adopted again"));
    assert_eq!(s.id(), again.id(), "one pool");
    assert_eq!(s.cudarc().expect("cudarc's").cu_stream(), theirs.cu_stream());

    let mut x = gpu.zeros::<u32>(1024, &s).expect("an array");
    theirs.memcpy_htod(&[7; 1024], &mut x).expect("queued");
    let other = gpu.stream().expect("a stream");
    assert!(x.to_pinned(&other).expect("queued").wait().expect("copied").iter().all(|&n| n == 7));
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let Some(rig) = rig() else { return };
    if CudaContext::device_count().expect("a number") < 2 {
        return;
    }
    let far = CudaContext::new(1).expect("the other device").new_stream().expect("a stream");
    let gpu = Allocator::in_cudarc(Arc::clone(&rig.ctx), Config::default()).expect("an allocator");
    let refused = gpu.adopt_cudarc(far).expect_err("of another device");
    assert!(matches!(refused, Error::WrongDevice { .. } | Error::Driver(_)), "{refused}");
    rig.ctx.bind_to_thread().expect("current");
}

/// A second context of the same device, with a stream that it made, one that it adopted, and its default stream: their device has the same number.
/// They had a pool, whose work was queued in the one context and waited for in the other.
#[test]
fn a_stream_of_another_context_of_the_same_device_is_refused() {
    let Some(rig) = rig() else { return };
    let Some(fake) = &rig.fake else { return };
    {
        let gpu = rig.allocator_for(1);
        let device = result::device::get(0).expect("the device");
        let context = std::ptr::with_exposed_provenance_mut(fake.second_context(0) as usize);
        // SAFETY: made just now, and left to cudarc.
        #[allow(unsafe_code, reason = "a context by its handle")]
        let theirs = unsafe { CudaContext::from_raw_context(0, device, context) }.expect("a second context");
        let another = Cuda::from_context(Arc::clone(&theirs)).expect("a value of it");
        let streams = [
            another.create_stream(StreamOptions::default()),
            another.adopt(theirs.new_stream().expect("a stream")),
            another.legacy_stream(),
        ];
        for stream in streams {
            let stream = stream.expect("of its own context");
            let pools = gpu.report().pools.len();
            let refused = [gpu.adopt(stream.clone()), gpu.adopt_without_waiting(stream)]
                .map(|s| s.expect_err("refused"));
            for error in refused {
                let is_handle = |e: &DriverError| e.kind == DriverErrorKind::InvalidHandle;
                assert!(matches!(&error, Error::Driver(e) if is_handle(e)), "{error:?}");
                assert!(error.to_string().contains("another context of this device"), "{error}");
            }
            assert_eq!(gpu.report().pools.len(), pools, "it has no pool");
        }
        // Its own is refused by no other value of the same context.
        let own = Allocator::new(another, Config::default()).expect("an allocator there");
        let same = Cuda::from_context(Arc::clone(&theirs)).expect("another value of it");
        own.adopt(same.create_stream(StreamOptions::default()).expect("a stream"))
            .expect("of the same context");
        own.adopt_cudarc(theirs.new_stream().expect("a stream")).expect("of the same context");
        drop((own, same, theirs));
        rig.ctx.bind_to_thread().expect("current");
    }
    rig.check_clean();
}
