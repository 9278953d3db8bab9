//! A random program that never ends: the same steps in each round, which frees all that it allocated. The soak runs it.

use super::{Here, Kind, STEADY, Step, Verb, World, driver};
use crate::program::Faults;
use millpond_plug::ffi;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Steps of a round. With all fifty that may be drawn, two random programs take as long as all named programs together.
const MOST: usize = 12;
/// After this many allocators the options repeat: each list of options once with captures expected, and once without.
pub(crate) const CYCLE: u64 = 2 * MANY;
const MANY: u64 = STEADY as u64;
/// The thread of the program, and its second one.
pub(crate) const HERE: Here = Here { thread: 1 };
pub(crate) const OTHER: Here = Here { thread: 2 };

/// What a steady program does beyond calls of one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beyond {
    Nothing,
    /// Captures, which end with the round.
    Captures,
    /// Some rounds have a thread of their own, which ends with them.
    ThreadEnds,
    /// A second thread makes some of the calls.
    Turns,
    /// No allocator is synchronised, so that memory has to come back without it; steps that need a synchronise are left out. Now and then a stream ends,
    /// after all allocators that know it have named it, and the next one gets its handle.
    Unsynchronized,
    /// It trims, synchronises and empties `PyTorch`'s cache, and nothing may grow nevertheless.
    Tidies,
    /// Now and then the first allocator ends, and another one is created in its place.
    Allocators,
    /// Captures, in rounds that have a thread of their own.
    CapturesAndThreadEnds,
    /// Captures, with an allocator that ends now and then.
    CapturesAndAllocators,
}

impl Beyond {
    pub(crate) fn captures(self) -> bool {
        matches!(self, Beyond::Captures | Beyond::CapturesAndThreadEnds | Beyond::CapturesAndAllocators)
    }
    pub(crate) fn ends_threads(self) -> bool {
        matches!(self, Beyond::ThreadEnds | Beyond::CapturesAndThreadEnds)
    }
    pub(crate) fn ends_allocators(self) -> bool {
        matches!(self, Beyond::Allocators | Beyond::CapturesAndAllocators)
    }
}

/// The steps of a seed. Steps that wait for the device or give memory back are left out, because they would hide growth, except in programs that test
/// them. So are steps that create and end allocators, whose numbers are not reused ([`World::next_allocator`]), and long blocks, which the simulated
/// device writes byte by byte.
pub(crate) fn steps(seed: u64, beyond: Beyond) -> Vec<Step> {
    use Verb::{Capture, Close, Create, Destroy, EmptyCache, FreeUnknown, PinFreeUnknown};
    use Verb::{Sync, ThreadEnds, Trim, WaitDevice};
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let threads = if beyond == Beyond::Turns { 2 } else { 1 };
    let captures = beyond.captures();
    let kind = Kind { threads, faults: Faults::None, captures, rounds: 0, rough: false, scenes: 50 };
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    loop {
        let drawn = kind.plain().new_tree(&mut runner);
        let mut steps = drawn.expect("a program").current().steps;
        steps.retain(|s| match s.verb {
            Create | Destroy | ThreadEnds => false,
            Sync | Trim | WaitDevice | EmptyCache => beyond == Beyond::Tidies,
            // After these steps memory comes back only by a wait of the allocator's.
            FreeUnknown | PinFreeUnknown | Close => beyond != Beyond::Unsynchronized,
            _ => true,
        });
        // Some programs are drawn with hardly a step, or without the step that they are for.
        let shows = |s: &Step| match beyond {
            beyond if beyond.captures() => s.verb == Capture,
            Beyond::Turns => s.thread == 1,
            Beyond::Tidies => matches!(s.verb, Sync | Trim | EmptyCache),
            _ => true,
        };
        if steps.len() < MOST || !steps[..MOST].iter().any(shows) {
            continue;
        }
        steps.truncate(MOST);
        for step in &mut steps {
            step.c &= !4;
        }
        if beyond == Beyond::Unsynchronized {
            steps.splice(0..0, ends_of_a_stream(seed, &steps));
        }
        return steps;
    }
}

/// The end of a stream that no step declares to be permanent, if there is one.
fn ends_of_a_stream(seed: u64, steps: &[Step]) -> Option<Step> {
    let lasts = |slot: &u8| steps.iter().any(|s| s.verb == Verb::Permanent && s.b % 3 == *slot);
    let slot = (0..3).map(|n| ((seed + n) % 3) as u8).find(|slot| !lasts(slot))?;
    Some(Step { thread: 0, verb: Verb::NextStream, a: slot, b: 0, c: 0, fault: 0 })
}

impl World {
    /// A world for a seed's program: the seed chooses the options of its first allocator.
    pub(crate) fn steady(seed: u64) -> World {
        let mut world = World::new(2, false, false, None);
        world.steady = true;
        world.begun = OTHER.thread;
        assert!(
            world.destroy(world.slots[0], false, 0) && world.create(0, seed as usize % (4 * STEADY), 0, 0)
        );
        world
    }

    /// The first allocator ends, by a destroy or a release in turns, and the next one is created in its place. The options change too, and repeat after
    /// [`CYCLE`] allocators. Returns how many permanent streams the ended one had.
    pub(crate) fn next_allocator(&mut self, seed: u64, nth: u64) -> usize {
        let door = self.slots[0];
        let lasting = self.doors[door].lasting.len();
        // Captures by other code are expected in every fourth group of options.
        let options = (seed + nth) % MANY + 3 * MANY * (nth / MANY % 2);
        assert!(self.destroy(door, nth % 2 == 1, 0) && self.create(0, options as usize, 0, 0));
        lasting
    }

    /// A thread with a new number.
    pub(crate) fn fresh_thread(&mut self) -> Here {
        self.begun += 1;
        Here { thread: self.begun }
    }

    /// The numbers of the allocators that have not ended.
    pub(crate) fn open(&self) -> Vec<u32> {
        self.doors.iter().filter(|d| d.open).map(|d| d.number).collect()
    }

    /// In one round of `EVERY` (a prime, so that it falls together with each turn of the others) a stream that no live memory uses is named to each
    /// allocator of its device, which marks it, and ends: the next stream gets its handle.
    pub(super) fn next_stream(&mut self, slot: u8, here: Here) {
        const EVERY: u64 = 7;
        self.next += 1;
        if !self.next.is_multiple_of(EVERY) {
            return;
        }
        // The number by which a step names a stream that is not blocking.
        let on = 64 + slot;
        for door in 0..2 {
            self.alloc(door, on, 0, 0, here);
            if let Some(x) = self.pick(0) {
                self.free(x, Verb::FreeOn, on, 0, here);
            }
        }
        self.torch_alloc(on, 0, 0, here);
        if let Some(x) = self.pick(0) {
            self.torch_free(x, 0, here);
        }
        self.close(slot.into());
    }

    /// Ends a round, on the thread that made its last calls.
    pub(crate) fn ends_round(&mut self, here: Here) {
        self.leave(here);
        self.free_all(here);
        self.freed.truncate(16);
    }

    /// The program waits for both devices, and checks what it read. If it also synchronises each allocator, memory freed with unknown users
    /// comes back then.
    pub(crate) fn rest(&mut self, synchronises: bool) {
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
        for number in self.open().into_iter().filter(|_| synchronises) {
            self.must(0, super::Status::Ok, &format!("millpond_synchronize(a{number})"), || {
                ffi::millpond_synchronize(number)
            });
        }
        // Destroyed streams are not named any more.
        let there: Vec<_> = self.streams.iter().flatten().map(|made| made.named.who).collect();
        let lasts = |who: &super::Who| !matches!(who, super::Who::Made(_)) || there.contains(who);
        for door in &mut self.doors {
            door.met.retain(lasts);
            door.declared.retain(lasts);
        }
    }

    /// Ends the program, and checks that nothing is left.
    pub(crate) fn over(&mut self) {
        self.end(HERE);
        self.after();
    }
}
