//! Where captures are expected (`Cuda::expect_captures`): nothing of ours waits for the device but what says so, and what nobody can mark is
//! refused until the program synchronises.

use super::doors::{MODE, beside_a_stranger, ended};
use super::*;


/// An array was written on a stream that nobody holds, and somebody captures. The next call of cudarc's on the array, on whatever stream, waited
/// for the device, and the capture was lost.
#[test]
fn no_call_of_cudarcs_on_an_array_waits_for_the_device() {
    for whose in [Ours, Adopted, Unknown] {
        let Some(rig) = rig() else { return };
        {
            let (gpu, home, stranger, mut x) = beside_a_stranger(&rig);
            let theirs = given(&rig, &gpu, whose).theirs;
            stranger.memset_zeros(&mut x).expect("queued");
            let somebody = rig.ctx.new_stream().expect("somebody's stream");
            let waits = || rig.fake.as_ref().map(|fake| fake.calls("cuCtxSynchronize"));
            let before = waits();
            somebody.begin_capture(MODE).expect("captures");
            for _ in 0..2 {
                let mut to = vec![1; WORDS];
                theirs.memcpy_dtoh(&x, &mut to).expect_err("no address to read");
                theirs.memset_zeros(&mut x).expect_err("no address to write");
                theirs.memset_zeros(&mut x.slice_mut(1..)).expect_err("nor of a part");
            }
            assert_eq!(waits(), before, "{whose:?}: nobody waited for all");
            ended(&somebody);
            let said = gpu.report().deferred_errors.join("\n");
            assert!(said.contains("until the program synchronises"), "{said}");
            gpu.synchronize().expect("nobody captures");
            assert_eq!(read(&home.cudarc().expect("its alias"), &x), vec![0; WORDS], "{whose:?}");
            theirs.memset_zeros(&mut x).expect("behind the synchronise");
        }
        rig.clean_but_for_errors();
    }
}
