//! Programs from their beginning to their end, again and again: the tests of requirements themselves, not copies of them.
//!
//! Those of the conformance suite get one device for all their rounds, so that allocators come and go on it; and where what
//! they assert holds on an allocator with a past too, one allocator. Those that make a device of their own leave nothing but
//! host memory to count: `lasting` has what they do, on a device and an allocator that stay. An unused allocator stands by: it shows what the device's timelines remember.
//!
//! It does not know what a test shows.

use super::judge::{is_ordinary, rounds};
use super::run::{Pace, Run, Soaked, Steady, soaked};
use super::{allocator_requirements, parity, transfers};
use millpond::driver::{DriverResult, Fences};
use millpond::units::Addr;
use millpond::{Allocator, Config};
use millpond_sim::{Gate, Launch, Sim, SimStream};
use millpond_testkit::counted::{Device, Inside};
use millpond_testkit::counting::{self, library};
use millpond_testkit::suite;
use std::sync::Mutex;

/// Allocators by their configuration.
type Kept = Vec<(String, Allocator<Device>)>;

/// A device that stays, and perhaps allocators that stay on it.
pub struct Stays {
    device: Device,
    /// Those that stay; none if they go with each round.
    kept: Option<Mutex<Kept>>,
}

impl suite::Bench for Stays {
    type Device = Device;
    type Gate = Gate;

    fn device(&self) -> &Device {
        &self.device
    }
    fn allocator(&self, config: Config) -> Allocator<Device> {
        let new = |config| Allocator::new(self.device.clone(), config).expect("an allocator");
        let Some(kept) = &self.kept else { return new(config) };
        let (mut kept, name) = (kept.lock().expect("no panic"), format!("{config:?}"));
        if let Some((_, gpu)) = kept.iter().find(|(of, _)| *of == name) {
            return gpu.clone();
        }
        let gpu = new(config);
        kept.push((name, gpu.clone()));
        gpu
    }
    fn many(&self, _: usize, in_a_loop: usize) -> usize {
        in_a_loop
    }
    fn gate(&self, on: &Inside<SimStream>) -> Gate {
        counting::device(|| self.device.sim().gate(on).expect("a gate"))
    }
    fn open(&self, gate: Gate) {
        counting::device(|| gate.open());
    }
    fn waits(&self, on: &Inside<SimStream>, call: &mut dyn FnMut() -> DriverResult<()>) -> bool {
        // A host wait for a closed gate fails instead of hanging, and has then done nothing.
        let gate = self.gate(on);
        let stuck = library(&mut *call).is_err_and(|e| e.message.contains("would wait for ever"));
        self.open(gate);
        if stuck {
            call().expect("nothing stands in its way now");
        }
        stuck
    }
    fn write(&self, on: &Inside<SimStream>, addr: Addr, bytes: u64, word: u64) {
        self.device.launch(on, || Launch::write_pattern(addr, bytes, word));
    }
    fn check(&self, on: &Inside<SimStream>, addr: Addr, bytes: u64, word: u64) {
        self.device.launch(on, || Launch::check_pattern(addr, bytes, word));
    }
    fn legacy(&self) -> Inside<SimStream> {
        self.device.wrap_stream(Sim::legacy_stream)
    }
    fn per_thread(&self) -> Inside<SimStream> {
        self.device.wrap_stream(Sim::per_thread_stream)
    }
    fn handle(&self, stream: &Inside<SimStream>) -> u64 {
        stream.handle()
    }
    fn query_id(&self, stream: &Inside<SimStream>) -> Result<u64, u32> {
        self.device.stream_info(stream).map(|i| i.id.0).map_err(|e| e.code)
    }
    fn raw_context_event(&self) -> u32 {
        let event = self.device.create_event().expect("an event");
        self.device.record_context(&event).map_or_else(|e| e.code, |()| 0)
    }
    fn begin_capture(&self, stream: &Inside<SimStream>) {
        counting::device(|| self.device.sim().begin_capture(stream).expect("a capture"));
    }
    fn end_capture(&self, stream: &Inside<SimStream>) -> Result<(), u32> {
        counting::device(|| self.device.sim().end_capture(stream).map(drop).map_err(|e| e.code))
    }
    fn finish(self) -> Result<(), String> {
        self.device.sim().run_until_idle();
        self.device.sim().verdict().map(drop).map_err(|v| v.to_string())
    }
}

/// Calls for order or completion in a round, at most: they are many, and the same in each round.
const ASKED: u64 = 10_000;

/// An ordinary run of the tests has one in so many of the rounds: there are 300 programs. `.ci/soak` has all.
const ORDINARY: u64 = 10;

/// Programs that have one in so many of the others' rounds, and why. Every other one has as many as a steady program: these tests have the
/// elements and repetitions of a loop (`suite::Bench::many`), of which a round takes 30 to 400 microseconds.
const SLOW: &[(&str, u64, &str)] = &[(
    "s02_pageable_sources_serialise",
    100,
    "it must copy more than three slots of 4 MiB, and a round moves 40 MiB by the CPU: 10 to 30 ms",
)];

/// Ten periods, which are of five rounds.
const FEWEST: u64 = 50;

/// Rounds of a program: as many as of a steady one, but for what [`SLOW`] and [`ORDINARY`] say.
pub fn rounds_of(name: &str) -> u64 {
    let part = SLOW.iter().find(|(slow, ..)| *slow == name).map_or(1, |(_, part, _)| *part);
    (most() / part).max(FEWEST)
}

fn most() -> u64 {
    if is_ordinary() { rounds() / ORDINARY } else { rounds() }
}

#[test]
fn programs_have_all_rounds_but_those_that_say_why() {
    let loops: Vec<&str> =
        SUITE.iter().copied().chain(OWN.iter().flat_map(|tests| tests.iter().map(|test| test.0))).collect();
    for &(name, part, why) in SLOW {
        assert!(loops.contains(&name) && !why.is_empty(), "{name} is no program, or has no reason");
        assert!(part > 1 && rounds_of(name) < most(), "{name} has all rounds");
    }
    assert_eq!(rounds_of("t12_pool_per_stream"), most());
}

/// A test of the suite, on a device that stays.
fn suite_test(run: Run, test: fn(&Stays), keeps: bool) -> Soaked {
    soaked(run, Config::default(), |b| {
        let stays = Stays { device: b.device.clone(), kept: keeps.then(Mutex::default) };
        Steady { round: Box::new(move |_| test(&stays)), synchronise: Box::new(|| ()), asked: ASKED }
    })
}

/// One that makes a device of its own.
fn own_test(name: &str, test: fn()) -> Soaked {
    soaked(Run::whole(Pace::AtOnce, rounds_of(name)), Config::default(), |_| Steady {
        round: Box::new(move |_| test()),
        synchronise: Box::new(|| ()),
        asked: ASKED,
    })
}

fn judge(name: &str, pace: Pace, soaked: Soaked) {
    if let Err(why) = soaked.verdict(name, Run::whole(pace, rounds_of(name))) {
        panic!("{why}");
    }
}

/// Everything here, by name: tests of the suite at both paces, those that stay as steady programs too, and those of their own devices.
pub fn all() -> Vec<(String, Box<dyn FnOnce() -> Soaked + Send>)> {
    type Job = (String, Box<dyn FnOnce() -> Soaked + Send>);
    let suite = SUITE.iter().flat_map(|&name| {
        [Pace::AtOnce, Pace::Late].map(|pace| -> Job {
            (format!("requirements::{name}::{pace:?}"), Box::new(move || run(name, pace)))
        })
    });
    let own = OWN.iter().flat_map(|tests| {
        tests.iter().map(|&(name, test)| -> Job {
            (format!("own_requirements::{name}"), Box::new(move || own_test(name, test)))
        })
    });
    let steady = SUITE.iter().copied().flat_map(|name| {
        [Pace::AtOnce, Pace::Late].map(|pace| -> Job {
            (
                format!("steady_requirements::{name}::{pace:?}"),
                Box::new(move || run_as(name, steady_run(name, pace))),
            )
        })
    });
    suite.chain(steady).chain(own).collect()
}

/// Each test at both ends of what is legal, and the list of them. `stays`: on an allocator that stays.
macro_rules! suite_tests {
    ($($module:ident::$test:ident: $keeps:expr;)*) => {
        /// Tests of the suite that have a loop.
        pub const SUITE: &[&str] = &[$(stringify!($test)),*];
        /// Whether the allocator stays, in the same order.
        const KEEPS: &[bool] = &[$($keeps),*];
        fn run_as(name: &str, run: Run) -> Soaked {
            match name {
                $(stringify!($test) => suite_test(run, suite::$module::$test::<Stays>, $keeps),)*
                _ => panic!("no test is called {name}"),
            }
        }
        fn run(name: &str, pace: Pace) -> Soaked {
            run_as(name, Run::whole(pace, rounds_of(name)))
        }
        $(
        mod $test {
            use super::*;
            #[test]
            fn at_once() {
                judge(stringify!($test), Pace::AtOnce, super::run(stringify!($test), Pace::AtOnce));
            }
            #[test]
            fn late() {
                judge(stringify!($test), Pace::Late, super::run(stringify!($test), Pace::Late));
            }
        }
        )*
    };
}

const STAYS: bool = true;
const GOES: bool = false;

suite_tests! {
    requirements::d03_a_stream_dropped_with_work_pending: STAYS;
    requirements::c07_per_thread_default_streams_are_known_by_their_ids: STAYS;
    requirements::s02_pageable_sources_serialise: STAYS;
    requirements::s07_the_legacy_stream_destroys_overlap: STAYS;
    requirements::s17_drop_pinned_in_flight: STAYS;
    requirements::d01_a_pinned_source_dropped_in_flight: STAYS;
    requirements::d02_an_array_dropped_under_a_reader: STAYS;
    requirements::p07_data_of_a_copy_to_the_host_come_behind_the_wait: STAYS;
    requirements::d04_the_target_of_a_copy_is_read_behind_the_wait: STAYS;
    requirements::h04_a_slot_is_overwritten_behind_its_reads: STAYS;
    requirements::c03_the_allocator_of_a_scope_is_an_argument: STAYS;
    requirements::c05_an_external_range_keeps_its_owner: STAYS;
    requirements::g05_allocated_used_and_freed_on_three_threads: GOES;
    requirements::g06_a_stream_waits_for_an_event_or_for_a_stream: STAYS;
    requirements::t16_the_default_stream_waits_for_blocking_streams: STAYS;
    requirements::t17_an_input_of_two_readers_is_reused_behind_both: GOES;
    requirements::s06_stream_wait_is_local: STAYS;
    requirements::p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait: GOES;
    pools::t02_exact_fit_baseline: GOES;
    pools::t03_exact_fit_misses_where_best_fit_hits: STAYS;
    pools::t04_best_fit_splits: STAYS;
    pools::t05_merge_on_free: GOES;
    pools::t07_bytes_used_and_acquired_by_scope: GOES;
    pools::t18_pool_statistics: GOES;
    pinned::p15_a_pinned_limit_refuses_and_recovers: STAYS;
    arrays::zeros_are_zero_and_pinned_too: STAYS;
    transfers::the_shapes_of_both_sides_are_compared: STAYS;
    transfers::a_dropped_token_keeps_its_memory: STAYS;
    reuse::the_same_stream_reuses_at_once: STAYS;
    reuse::an_unordered_stream_gets_other_bytes: STAYS;
    capture::a_capturing_stream_is_refused: STAYS;
}

/// Tests of the suite on a device and an allocator that stay.
pub fn staying() -> impl Iterator<Item = &'static str> {
    SUITE.iter().zip(KEEPS).filter(|(_, keeps)| **keeps).map(|(&name, _)| name)
}

/// Tests that make an allocator in each round, and why: the allocator that stays is another one then, which sees what they leave on the device.
const GOING: &[(&str, &str)] = &[
    (
        "g05_allocated_used_and_freed_on_three_threads",
        "all its blocks have one address, which a busy one would not be given",
    ),
    (
        "t17_an_input_of_two_readers_is_reused_behind_both",
        "its limit is the one block's, and it counts all waits that were inserted",
    ),
    (
        "p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait",
        "it waits for its stream alone: with what others had, all its sources are one by one",
    ),
    ("t02_exact_fit_baseline", "it says which address each size has in a heap that was empty"),
    ("t05_merge_on_free", "it counts all free chunks"),
    (
        "t07_bytes_used_and_acquired_by_scope",
        "it says what was acquired from the device, and all that was used since the beginning",
    ),
    ("t18_pool_statistics", "it counts everything since the beginning"),
];

/// Tests that are no steady programs in an ordinary run, and why. The last is one by `.ci/soak`, the others by the
/// command only.
const STEADY_LATER: &[(&str, &str)] = &[
    ("s02_pageable_sources_serialise", "10 to 30 ms a round"),
    (
        "c03_the_allocator_of_a_scope_is_an_argument",
        "3 ms a round when a thousand of its streams are behind; and a thread of each round's own, so that its highest numbers come by chance",
    ),
    ("t03_exact_fit_misses_where_best_fit_hits", "4 ms a round: nothing but misses, beside 87 segments"),
];

/// Tests as steady programs: the device is a hundred rounds behind, and only a test itself synchronises the allocator that stays. A
/// fifth of the rounds and half as many before them, until there are as many closed timelines as are kept in any case, because each test has all
/// rounds above: these show what a long time without a synchronisation leaves.
fn steady_run(name: &str, pace: Pace) -> Run {
    let run = Run::steady(pace).with_contents();
    // Its closed timelines are looked at when there are between 250 and 400 of them, and the highest number comes once in a thousand rounds.
    if name == "s06_stream_wait_is_local" { run } else { run.shortened() }
}
/// Which tests' allocators stay is stated, and why one goes.
#[test]
fn tests_that_make_an_allocator_in_each_round_say_why() {
    let going = SUITE.iter().zip(KEEPS).filter(|(_, keeps)| !**keeps).map(|(&name, _)| name);
    let said: Vec<_> = GOING.iter().filter(|(_, why)| !why.is_empty()).map(|(name, _)| *name).collect();
    assert_eq!(going.collect::<Vec<_>>(), said);
}
#[test]
fn requirement_tests_are_steady_programs() {
    let later = if is_ordinary() { STEADY_LATER } else { &STEADY_LATER[..2] };
    let is_later = |name: &str| later.iter().any(|(slow, _)| *slow == name);
    for (name, why) in STEADY_LATER {
        assert!(SUITE.contains(name) && !why.is_empty(), "{name} is no test, or has no reason");
    }
    let mut found = Vec::new();
    let tests: Vec<&str> = SUITE.iter().copied().filter(|name| !is_later(name)).collect();
    assert!(tests.len() > 20, "{tests:?}");
    for name in tests {
        let run = steady_run(name, Pace::Late);
        found.extend(run_as(name, run).verdict(name, run).err());
    }
    assert!(found.is_empty(), "{} tests:\n{}", found.len(), found.join("\n"));
}

/// Tests by their names.
type Tests = &'static [(&'static str, fn())];

/// Tests that make a device of their own.
pub const OWN: [Tests; 3] = [allocator_requirements::AGAIN, transfers::AGAIN, parity::AGAIN];

fn own_devices(tests: Tests) {
    let found: Vec<String> = tests
        .iter()
        .filter_map(|&(name, test)| {
            own_test(name, test).verdict(name, Run::whole(Pace::AtOnce, rounds_of(name))).err()
        })
        .collect();
    assert!(found.is_empty(), "{} programs:\n{}", found.len(), found.join("\n"));
}

#[test]
fn requirements_of_the_allocator() {
    own_devices(OWN[0]);
}
#[test]
fn requirements_of_copies() {
    own_devices(OWN[1]);
}
#[test]
fn tests_of_another_pool() {
    own_devices(OWN[2]);
}
