//! A random program that never ends: the same steps round after round, each of which frees all that it made. The soak runs it.

use super::{Here, Kind, STEADY, Step, Verb, World, driver};
use crate::program::Faults;
use millpond_plug::ffi;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Steps of a round. With all fifty that may be drawn two programs take as long as all that have a name.
const MOST: usize = 12;
/// After so many allocators their options are the same again: each with captures of others expected, and without.
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
    /// No allocator is told that the device has done all, so that what comes back does so by itself; nothing is done that needs to be told. A stream
    /// ends now and then, once all that have it have named it, and the next one has its handle.
    Untold,
    /// It trims, synchronises and empties `PyTorch`'s cache: what grows all the same.
    Tidies,
    /// Now and then the first allocator ends, and another one is made in its place.
    Allocators,
    /// Captures, in rounds that have a thread of their own.
    CapturesAndThreadEnds,
    /// Captures, beside an allocator that ends now and then.
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

/// The steps of a seed. What waits for the device or gives memory back is left out, because it would hide what grows, but in programs
/// that are for that; so are allocators that come and go with a step, whose names last ([`World::next_allocator`]), and long blocks, which the device writes byte by byte.
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
            // Behind these a wait of the allocator's is what gives memory back.
            FreeUnknown | PinFreeUnknown | Close => beyond != Beyond::Untold,
            _ => true,
        });
        // Some are drawn with hardly a step, or with nothing of what they are for.
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
        if beyond == Beyond::Untold {
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
    /// A world for a seed's program: the options of its first allocator are the seed's.
    pub(crate) fn steady(seed: u64) -> World {
        let mut world = World::new(2, false, false, None);
        world.steady = true;
        world.begun = OTHER.thread;
        assert!(
            world.destroy(world.slots[0], false, 0) && world.create(0, seed as usize % (4 * STEADY), 0, 0)
        );
        world
    }

    /// The first allocator ends, by a destroy or a release in turns, and the next one is made in its place, with options that change too:
    /// they are the same again after [`CYCLE`] of them.
    /// How many streams lasted in it, as it was told.
    pub(crate) fn next_allocator(&mut self, seed: u64, nth: u64) -> usize {
        let door = self.slots[0];
        let lasting = self.doors[door].lasting.len();
        // Captures of others are expected in every fourth group of options.
        let options = (seed + nth) % MANY + 3 * MANY * (nth / MANY % 2);
        assert!(self.destroy(door, nth % 2 == 1, 0) && self.create(0, options as usize, 0, 0));
        lasting
    }

    /// A thread that no other has been.
    pub(crate) fn fresh_thread(&mut self) -> Here {
        self.begun += 1;
        Here { thread: self.begun }
    }

    /// The allocators that there are.
    pub(crate) fn open(&self) -> Vec<u32> {
        self.doors.iter().filter(|d| d.open).map(|d| d.number).collect()
    }

    /// In one round of so many, prime so that it meets each turn of the others, a stream that nothing alive uses is named to each allocator of its
    /// device, which marks all that it holds, and ends: the next one has its handle.
    pub(super) fn next_stream(&mut self, slot: u8, here: Here) {
        const EVERY: u64 = 7;
        self.next += 1;
        if !self.next.is_multiple_of(EVERY) {
            return;
        }
        // As a step names one that is not blocking.
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

    /// The end of a round, on the thread that made its calls last.
    pub(crate) fn ends_round(&mut self, here: Here) {
        self.leave(here);
        self.free_all(here);
        self.freed.truncate(16);
    }

    /// The program waits for both devices, and looks at what it read. If each allocator is told of that, what was freed by nobody
    /// knows whom comes back then.
    pub(crate) fn rest(&mut self, told: bool) {
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
        for number in self.open().into_iter().filter(|_| told) {
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
