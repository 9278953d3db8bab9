//! What was forgotten open on a stream that cannot be marked, where captures are expected.

use millpond::units::GIB;
use millpond::{Allocator, Config, Error};
use millpond_sim::{Schedule, Sim};

/// An array at home on a thread's default stream, with guards that are forgotten there, goes to another thread, which cannot mark that
/// stream: what is done with it on another stream is refused until the program synchronises. It was refused behind each synchronise again.
#[test]
fn what_was_forgotten_at_home_is_over_behind_a_refusal_and_a_synchronise() {
    for (wrote, by_part) in [(true, false), (false, false), (true, true), (false, true)] {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let mut x = std::thread::scope(|threads| {
            let made = threads.spawn(|| {
                let p = gpu.adopt(sim.per_thread_stream()).unwrap();
                let mut x = gpu.zeros::<u32>(4, &p).unwrap();
                if wrote {
                    core::mem::forget(x.write_on(&p).unwrap());
                } else {
                    core::mem::forget(x.read_on(&p).unwrap());
                }
                x
            });
            made.join().unwrap()
        });
        sim.expect_captures();
        let t = gpu.stream().unwrap();
        let refused = |error: Error| {
            assert!(error.to_string().contains("the program synchronises"), "{error}");
            gpu.synchronize().unwrap();
        };
        if wrote {
            if by_part {
                // A reader of a part says nothing of the others.
                let (_one, other) = x.view_mut().split_at(1);
                for _ in 0..2 {
                    refused(other.view().to_pinned(&t).map(drop).unwrap_err());
                }
            }
            refused(x.to_pinned(&t).map(drop).unwrap_err());
            assert_eq!(x.to_pinned(&t).unwrap().wait().unwrap()[..], [0; 4]);
        } else {
            gpu.synchronize().unwrap();
            assert_eq!(x.to_pinned(&t).unwrap().wait().unwrap()[..], [0; 4], "a reader hinders none");
            refused(x.fill_bytes(1, &t).unwrap_err());
        }
        x.fill_bytes(1, &t).unwrap();
        assert_eq!(x.to_pinned(&t).unwrap().wait().unwrap()[..], [0x0101_0101; 4]);
        drop((x, t));
        sim.verdict().unwrap_or_else(|v| panic!("{v}"));
    }
}
