//! Programs from their beginning to their end, again and again: the tests of rows themselves, not copies of them.
//!
//! Those of the conformance suite get one device for all their rounds, so that allocators come and go on it; and where what
//! they assert holds on an allocator with a past too, one allocator. Those that make a device of their own leave nothing but
//! host memory to count. An allocator that nobody uses stands by: it shows what the device's timelines remember.
//!
//! It does not know what a row shows.

use super::counting::{self, library};
use super::device::{Device, Inside};
use super::judge::{rounds, rounds_asked};
use super::run::{Pace, Run, Steady, try_soak};
use super::suite;
use super::{parity, rows_allocator, transfers};
use millpond::driver::{DriverResult, Fences};
use millpond::units::Addr;
use millpond::{Allocator, Config};
use millpond_sim::{Gate, Launch, Sim, SimStream};
use std::sync::Mutex;

/// Allocators by what they were asked to be.
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
    fn ask_id(&self, stream: &Inside<SimStream>) -> Result<u64, u32> {
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

/// Programs of which a round takes more than 100 microseconds: how many it takes, and the rounds of an ordinary run. Each is hundreds
/// or thousands of operations, copies of MiB or threads that begin and end; all of them 10,000 times would be 40 minutes of a
/// processor. Measured on two shared x86-64 cores, `cargo test`, 2026-11-23. A number in `MILLPOND_SOAK_ROUNDS` counts for these too.
const SLOW: &[(&str, u64, u64)] = &[
    ("s02_pageable_sources_serialise", 68_700, 50),
    ("c05_a_foreign_range_keeps_its_owner", 11_100, 50),
    ("p07_data_of_a_copy_to_the_host_come_behind_the_wait", 9400, 50),
    ("t03_exact_fit_misses_where_best_fit_hits", 7700, 250),
    ("t06_best_fit_takes_a_quarter_on_varying_lengths", 4300, 50),
    ("d04_the_target_of_a_copy_is_read_behind_the_wait", 3600, 250),
    ("d03_a_stream_dropped_with_work_pending", 3600, 250),
    ("p08_work_on_the_copys_stream_comes_after_it", 2600, 250),
    ("d02_an_array_dropped_under_a_reader", 2400, 250),
    ("h02_a_copy_between_devices_keeps_both_ends", 2200, 250),
    ("s12_a_copy_to_the_host_without_blocking", 2100, 250),
    ("s13_a_copy_to_pageable_memory_blocks", 1900, 250),
    ("g05_thread_hop", 1800, 250),
    ("p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait", 1500, 250),
    ("d01_a_pinned_source_dropped_in_flight", 1000, 1000),
    ("d08_one_slow_stream_does_not_grow_the_pinned_pool", 680, 1000),
    ("g05_allocated_used_and_freed_on_three_threads", 660, 1000),
    ("p15_a_pinned_limit_refuses_and_recovers", 510, 1000),
    ("s07_the_legacy_stream_destroys_overlap", 410, 1000),
    ("parity_live_chunks_are_distinct", 330, 1000),
    ("h04_a_slot_is_overwritten_behind_its_reads", 230, 1000),
    ("s17_drop_pinned_in_flight", 190, 1000),
    ("s03_pinned_copies_overlap_a_kernel", 190, 1000),
    ("g07_pinned_batches_without_blocking", 170, 1000),
    ("s04_one_copy_stream_no_overlap", 170, 1000),
    ("c03_the_allocator_of_a_scope_is_an_argument", 120, 1000),
    ("parity_eight_threads_random_sizes_with_trims", 3000, 250),
];

/// Rounds of a program: as many as of a steady one, or what [`SLOW`] says.
fn rounds_of(name: &str) -> u64 {
    let slow = SLOW.iter().find(|(slow, ..)| *slow == name).filter(|_| rounds_asked().is_none());
    slow.map_or_else(rounds, |&(_, _, rounds)| rounds)
}

#[test]
fn programs_have_all_rounds_that_time_allows() {
    let loops: Vec<&str> =
        SUITE.iter().copied().chain(OWN.iter().flat_map(|rows| rows.iter().map(|row| row.0))).collect();
    for &(name, micros, rounds) in SLOW {
        assert!(loops.contains(&name), "{name} is no program");
        assert!((100..100_000).contains(&micros) && rounds < 10_000, "{name} is not slow");
        // A round that is longer has fewer; none has less than ten periods.
        assert!(
            rounds >= 50 && rounds * micros > 100_000,
            "{name}: there is time for more than {rounds} rounds"
        );
    }
    assert_eq!(rounds_of("t12_pool_per_stream"), rounds());
}

/// A row of the suite, on a device that stays.
fn suite_row(name: &str, row: fn(&Stays), keeps: bool, pace: Pace) {
    let soaked = try_soak(name, Run::whole(pace, rounds_of(name)), Config::default(), |b| {
        let stays = Stays { device: b.device.clone(), kept: keeps.then(Mutex::default) };
        Steady { round: Box::new(move |_| row(&stays)), synchronise: Box::new(|| ()), asked: ASKED }
    });
    if let Err(why) = soaked {
        panic!("{why}");
    }
}

/// Each row at both ends of what is legal, and the list of them. `stays`: on an allocator that stays.
macro_rules! suite_rows {
    ($($room:ident::$row:ident: $keeps:expr;)*) => {
        /// Rows of the suite that have a loop.
        pub const SUITE: &[&str] = &[$(stringify!($row)),*];
        $(
        mod $row {
            use super::*;
            #[test]
            fn at_once() {
                suite_row(stringify!($row), suite::$room::$row::<Stays>, $keeps, Pace::AtOnce);
            }
            #[test]
            fn late() {
                suite_row(stringify!($row), suite::$room::$row::<Stays>, $keeps, Pace::Late);
            }
        }
        )*
    };
}

const STAYS: bool = true;
const GOES: bool = false;

suite_rows! {
    rows::d03_a_stream_dropped_with_work_pending: STAYS;
    rows::c07_per_thread_default_streams_are_known_by_their_ids: STAYS;
    rows::s02_pageable_sources_serialise: STAYS;
    rows::s07_the_legacy_stream_destroys_overlap: STAYS;
    rows::s17_drop_pinned_in_flight: STAYS;
    rows::d01_a_pinned_source_dropped_in_flight: STAYS;
    rows::d02_an_array_dropped_under_a_reader: STAYS;
    rows::p07_data_of_a_copy_to_the_host_come_behind_the_wait: STAYS;
    rows::d04_the_target_of_a_copy_is_read_behind_the_wait: STAYS;
    rows::h04_a_slot_is_overwritten_behind_its_reads: STAYS;
    rows::c03_the_allocator_of_a_scope_is_an_argument: STAYS;
    rows::c05_a_foreign_range_keeps_its_owner: STAYS;
    rows::g05_allocated_used_and_freed_on_three_threads: GOES;
    rows::g06_a_stream_waits_for_an_event_or_for_a_stream: STAYS;
    rows::t16_the_default_stream_waits_for_blocking_streams: STAYS;
    rows::t17_an_input_of_two_readers_is_reused_behind_both: GOES;
    rows::s06_stream_wait_is_local: STAYS;
    rows::p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait: GOES;
    pools::t02_exact_fit_baseline: GOES;
    pools::t03_exact_fit_misses_where_best_fit_hits: STAYS;
    pools::t04_best_fit_splits: STAYS;
    pools::t05_merge_on_free: GOES;
    pools::t07_bytes_used_and_acquired_by_scope: GOES;
    pools::t18_pool_statistics: GOES;
    pinned::p15_a_pinned_limit_refuses_and_recovers: STAYS;
}

/// Tests by their names.
type Rows = &'static [(&'static str, fn())];

/// Rows that make a device of their own.
pub const OWN: [Rows; 3] = [rows_allocator::AGAIN, transfers::AGAIN, parity::AGAIN];

fn own_devices(rows: Rows) {
    let mut found = Vec::new();
    for &(name, row) in rows {
        let soaked = try_soak(name, Run::whole(Pace::AtOnce, rounds_of(name)), Config::default(), |_| {
            Steady { round: Box::new(move |_| row()), synchronise: Box::new(|| ()), asked: ASKED }
        });
        found.extend(soaked.err());
    }
    assert!(found.is_empty(), "{} programs:\n{}", found.len(), found.join("\n"));
}

#[test]
fn rows_of_the_allocator() {
    own_devices(OWN[0]);
}
#[test]
fn rows_about_copies() {
    own_devices(OWN[1]);
}
#[test]
fn tests_of_others() {
    own_devices(OWN[2]);
}
