//! A program that has cudarc's context and streams already: an allocator in the one, pools for the others, a call each.

use super::*;

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
