//! A random program that never ends: the same steps round after round, each of which frees all that it made. The soak runs it.

use super::{Here, Kind, Step, Verb, World, driver};
use millpond_plug::ffi;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Steps of a round. With all fifty that may be drawn two programs take as long as all that have a name.
const MOST: usize = 12;
const HERE: Here = Here { thread: 1 };

/// The steps of a seed. What waits for the device or gives memory back is left out, because it would hide what grows; so are
/// allocators that come and go, whose names last, and long blocks, which the device writes byte by byte.
pub(crate) fn steps(seed: u64) -> Vec<Step> {
    use Verb::{Create, Destroy, EmptyCache, Sync, ThreadEnds, Trim, WaitDevice};
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let kind = Kind { threads: 1, faults: false, captures: false, rounds: 0, rough: false, scenes: 50 };
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    loop {
        let drawn = kind.programs().new_tree(&mut runner);
        let mut steps = drawn.expect("a program").current().steps;
        steps.retain(|s| {
            !matches!(s.verb, Sync | Trim | WaitDevice | Create | Destroy | EmptyCache | ThreadEnds)
        });
        // Some are drawn with hardly a step.
        if steps.len() < MOST {
            continue;
        }
        steps.truncate(MOST);
        for step in &mut steps {
            step.c &= !4;
        }
        return steps;
    }
}

impl World {
    /// A world for a seed's program: the options of its first allocator are the seed's.
    pub(crate) fn steady(seed: u64) -> World {
        let mut world = World::new(1, false, false, None);
        world.steady = true;
        assert!(world.destroy(world.slots[0], false, 0) && world.create(0, seed as usize, 0, 0));
        world
    }

    /// The allocators that there are.
    pub(crate) fn open(&self) -> Vec<u32> {
        self.doors.iter().filter(|d| d.open).map(|d| d.number).collect()
    }

    pub(crate) fn round(&mut self, steps: &[Step]) {
        for &step in steps {
            self.step(step, HERE);
        }
        self.free_all(HERE);
        self.freed.truncate(16);
    }

    /// The program waits for both devices, and looks at what it read. Each allocator is told of that: what was freed by nobody
    /// knows whom comes back then.
    pub(crate) fn rest(&mut self) {
        for context in self.contexts {
            driver::bind(context);
            driver::synchronize();
        }
        driver::bind(self.contexts[0]);
        self.check_reads();
        self.reads.clear();
        self.scratch_used = 0;
        for event in std::mem::take(&mut self.events) {
            driver::destroy_event(event as driver::Handle);
        }
        for number in self.open() {
            self.must(0, super::Status::Ok, &format!("millpond_synchronize(a{number})"), || {
                ffi::millpond_synchronize(number)
            });
        }
        // Streams that are gone are met no more.
        let there: Vec<_> = self.streams.iter().flatten().map(|made| made.named.who).collect();
        let lasts = |who: &super::Who| !matches!(who, super::Who::Made(_)) || there.contains(who);
        for door in &mut self.doors {
            door.met.retain(lasts);
            door.declared.retain(lasts);
        }
    }

    /// The end of it, and nothing is left.
    pub(crate) fn over(&mut self) {
        self.end(HERE);
        self.after();
    }
}
