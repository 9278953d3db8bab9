//! Random programs of cudarc's safe calls (`world` says of what). They need no rules: whatever order the calls come in,
//! every value is what it would be if each call ended before the next one began. The oracle judges too.
//!
//! 100 programs, or what `MILLPOND_CASES` says.

use super::world::{ARRAYS, World, calls};
use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

#[test]
fn programs_of_cudarcs_calls_need_no_rules() {
    if rig().is_none() {
        return;
    }
    let cases =
        std::env::var("MILLPOND_CASES").map_or(100, |n| n.parse().expect("MILLPOND_CASES is a number"));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let found = TestRunner::new(config).run(&calls(), |calls| {
        let rig = rig().expect("it was there a moment ago");
        {
            let gpu = rig.room_for(ARRAYS as u64 + 2);
            let others = [(); 2].map(|()| CudaContext::new(0).expect("another value for the same context"));
            let mut world = World::new(&rig, &gpu, &others);
            for call in calls {
                world.make(call);
            }
            world.end();
        }
        rig.clean();
        Ok(())
    });
    if let Err(e) = found {
        panic!("{e}");
    }
}
