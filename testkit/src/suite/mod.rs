//! One conformance suite for every device: what the allocator does on streams, and the facts of a driver that the
//! simulated device relies on, so that hardware checks the simulator.
//!
//! A [`Bench`] is a device and what a test needs beyond the driver's traits: kernels that write and check a pattern, a
//! gate that holds a stream, and a verdict at the end. `tests/on_sim/main.rs` and its siblings make one each and call
//! `conformance!`. A test does not know its device. It uses gates and never time, so that the work behind a gate is certainly pending.
//!
//! | file | what it tests |
//! |---|---|
//! | `order` | E1 to E8: streams, events, the legacy and per-thread streams |
//! | `driver_behaviour` | which calls wait for kernels, handle values that are used again, context events, copies |
//! | `capture` | what a capture survives |
//! | `mapping` | virtual memory |
//! | `reuse` | the allocator: who gets freed bytes, and when |
//! | `limits` | the allocator: limits, out of memory, trims, closing |
//! | `pinned` | the allocator: host memory |
//! | `scrub` | the allocator: a new owner does not see the former contents |
//! | `pools` | the allocator: how a pool serves sizes, and its statistics |
//! | `requirements` | requirements of tests/architecture/requirements.rs that are shown on every device |
//! | `arrays`, `transfers` | typed arrays, copies and their tokens |
//! | `operands` | what operations accept as an array, and kernels beside their CPU references |
//! | `kernels`, `guards` | kernels on arrays, which the library queues or other code |
//! | `flight` | reuse while everything is certainly in flight; and that this test can fail |

#![allow(clippy::wildcard_imports, reason = "each module of the suite uses the items of this one")]

pub mod arrays;
pub mod capture;
pub mod driver_behaviour;
pub mod flight;
pub mod guards;
pub mod kernels;
pub mod limits;
pub mod mapping;
pub mod moves;
pub mod operands;
pub mod order;
pub mod pinned;
pub mod pools;
pub(crate) mod raw_calls;
pub mod requirements;
pub mod reuse;
pub mod scrub;
pub mod transfers;
pub mod without_waits;

use millpond::driver::{Driver, DriverResult, Fences, Kernels, Mapping};
use millpond::units::Addr;
use millpond::{Allocation, Allocator, Config, Stream};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A bench's streams.
pub type StreamOf<B> = <<B as Bench>::Device as Fences>::Stream;
/// A bench's events.
pub type EventOf<B> = <<B as Bench>::Device as Fences>::Event;

/// A device to be tested, and what the tests need beside it.
pub trait Bench: Sized + Sync {
    /// The driver's type.
    type Device: Driver + Kernels;
    /// A closed gate.
    type Gate;

    /// The driver.
    fn device(&self) -> &Self::Device;
    /// An allocator on it, for a whole test. A program that repeats a test without end returns the same one each time.
    fn allocator(&self, config: Config) -> Allocator<Self::Device> {
        Allocator::new(self.device().clone(), config).expect("an allocator")
    }
    /// How many elements or repetitions a test of a requirement has: the first number. A program that repeats a test without end takes the
    /// second, the least that still shows the requirement.
    fn many(&self, once: usize, in_a_loop: usize) -> usize {
        let _ = in_a_loop;
        once
    }
    /// Queues a kernel that runs until [`Bench::open`]. This breaks no capture by other code.
    fn gate(&self, on: &StreamOf<Self>) -> Self::Gate;
    /// Ends it.
    fn open(&self, gate: Self::Gate);
    /// Whether a call waits for a kernel that runs on a stream. The call is made, and succeeds, either way.
    fn waits(&self, on: &StreamOf<Self>, call: &mut dyn FnMut() -> DriverResult<()>) -> bool;
    /// Queues a kernel that fills a range with a word.
    fn write(&self, on: &StreamOf<Self>, addr: Addr, bytes: u64, word: u64);
    /// Queues a kernel that checks that a range holds a word; the verdict reports if it did not.
    fn check(&self, on: &StreamOf<Self>, addr: Addr, bytes: u64, word: u64);
    /// Waits for everything, and returns what checks have found so far. A bench with room for a limited number of checks
    /// empties it here: a test that makes very many of them calls this while nothing is behind a gate.
    fn tally(&self) -> Result<(), String> {
        Ok(())
    }
    /// The legacy default stream.
    fn legacy(&self) -> StreamOf<Self>;
    /// The calling thread's default stream.
    fn per_thread(&self) -> StreamOf<Self>;
    /// The value of a stream's native handle.
    fn handle(&self, stream: &StreamOf<Self>) -> u64;
    /// Queries a stream's id from the driver, even if it is known already; returns the error's code.
    fn query_id(&self, stream: &StreamOf<Self>) -> Result<u64, u32>;
    /// Records an event of its own behind everything in the context, without the backend's checks; returns the driver's code.
    fn raw_context_event(&self) -> u32;
    /// Begins a global capture.
    fn begin_capture(&self, stream: &StreamOf<Self>);
    /// Ends a capture; returns the error's code if it was destroyed.
    fn end_capture(&self, stream: &StreamOf<Self>) -> Result<(), u32>;
    /// Waits for everything, and returns the verdict: wrong contents, violations, and what was left. The test has dropped all that it made.
    fn finish(self) -> Result<(), String>;
}

/// How long a test waits for something that must happen. Only a failure takes this long.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const MIB: u64 = 1 << 20;
pub const KIB: u64 = 1 << 10;

/// Words that distinguish operations.
pub const A: u64 = 0xAAAA_0001_AAAA_0001;
pub const B: u64 = 0xBBBB_0002_BBBB_0002;

/// An address further on.
pub trait Plus {
    fn plus(self, bytes: u64) -> Addr;
}
impl Plus for Addr {
    fn plus(self, bytes: u64) -> Addr {
        Addr(self.0 + bytes)
    }
}

/// Prints past the test harness, which hides what a passing test prints.
pub fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// Runs a test on a bench, if there is one, and panics if the verdict is bad.
pub fn run<T: Bench>(bench: Option<T>, name: &str, test: fn(&T)) {
    let Some(bench) = bench else { return };
    test(&bench);
    if let Err(why) = bench.finish() {
        panic!("{name}: {why}");
    }
}

/// Runs a test whose verdict must be bad.
pub fn run_guilty<T: Bench>(bench: Option<T>, name: &str, test: fn(&T)) {
    let Some(bench) = bench else { return };
    test(&bench);
    assert!(bench.finish().is_err(), "{name}: the bench did not find the error, so its tests prove nothing");
}

/// A word that no other operation has.
pub fn fresh_word() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

// Helpers of most tests.

/// A non-blocking stream.
pub fn stream<T: Bench>(b: &T) -> StreamOf<T> {
    b.device().create_stream(millpond::driver::StreamOptions::default()).expect("a stream")
}

/// A stream that is ordered with the legacy default stream.
pub fn blocking_stream<T: Bench>(b: &T) -> StreamOf<T> {
    let options = millpond::driver::StreamOptions::default().blocking(true);
    b.device().create_stream(options).expect("a stream")
}

/// A new event, recorded on a stream.
pub fn mark<T: Bench>(b: &T, on: &StreamOf<T>) -> EventOf<T> {
    let event = b.device().create_event().expect("an event");
    b.device().record(&event, on).expect("recorded");
    event
}

/// Whether what an event captured is pending, by a query.
pub fn pending<T: Bench>(b: &T, event: &EventOf<T>) -> bool {
    !b.device().query(event).expect("an answer")
}

/// Waits for what an event captured: whether it completes within [`PATIENCE`].
pub fn done<T: Bench>(b: &T, event: &EventOf<T>) -> bool {
    b.device().wait_event(event, PATIENCE).expect("an answer")
}

/// Waits for a stream.
pub fn finish_stream<T: Bench>(b: &T, stream: &StreamOf<T>) {
    b.device().synchronize_stream(stream).expect("waited");
}

/// An allocator on a bench.
pub fn allocator<T: Bench>(b: &T, config: Config) -> Allocator<T::Device> {
    b.allocator(config)
}

/// Fills a block with a word of its own, and returns the word.
pub fn own<T: Bench>(b: &T, block: &Allocation<T::Device>, on: &Stream<T::Device>) -> u64 {
    let word = fresh_word();
    b.write(on.native(), block.address(), block.len(), word);
    word
}

/// Checks that a block holds its word, on a stream.
pub fn still<T: Bench>(b: &T, block: &Allocation<T::Device>, on: &Stream<T::Device>, word: u64) {
    b.check(on.native(), block.address(), block.len(), word);
}

/// Frees a block of s while t still has to read it, held by a gate. Returns its address and the gate.
pub fn freed_under_a_reader<T: Bench>(
    b: &T,
    gpu: &Allocator<T::Device>,
    bytes: u64,
    s: &Stream<T::Device>,
    t: &Stream<T::Device>,
) -> (Addr, T::Gate) {
    let block = gpu.alloc(bytes, s).expect("memory");
    let word = own(b, &block, s);
    t.wait_stream(s).expect("ordered");
    let gate = b.gate(t.native());
    block.record_use(t).expect("recorded");
    still(b, &block, t, word);
    (block.address(), gate)
}

/// Whether two blocks share bytes.
pub fn overlap<D: Driver>(a: &Allocation<D>, b: &Allocation<D>) -> bool {
    let (x, y) = (a.address().0, b.address().0);
    x < y + b.len() && y < x + a.len()
}

/// The suite: the list of its tests, with which a macro of this module is called, after the given arguments.
#[macro_export]
macro_rules! conformance_list {
    ($made:ident $given:tt) => {
        $crate::$made! { $given run:
            order: [
                stream_order, gated_work_is_pending, a_wait_orders, an_event_never_recorded_is_empty,
                a_later_record_moves_no_wait, a_wait_before_the_record_waits_for_nothing,
                a_record_forgets_what_was_captured_before, what_the_host_saw_complete_is_there,
                the_legacy_stream_waits_for_blocking_streams_only,
                blocking_streams_wait_for_the_legacy_stream, per_thread_streams_are_blocking_and_one_a_thread,
            ]
            driver_behaviour: [
                a_plain_free_waits_for_running_kernels, unpinning_waits_for_running_kernels,
                unpinning_waits_for_whatever_is_queued,
                everything_else_waits_for_nothing, a_destroyed_stream_goes_on,
                handle_values_come_back_and_ids_do_not, a_context_event_covers_every_kind_of_stream,
                a_context_event_holds_nothing_back, a_pageable_source_is_free_at_return,
                a_pinned_source_is_read_when_the_copy_runs, a_pageable_target_is_full_at_return,
                copies_and_fills_move_their_bytes,
            ]
            capture: [
                asking_whether_a_stream_captures_is_harmless, asking_a_captured_stream_for_its_id_ends_the_capture,
                an_event_that_a_capture_took_says_so, relaxed_batches_break_no_capture,
                unpinning_spares_captures_on_streams_of_every_kind, calls_outside_a_relaxed_batch_end_it,
                streams_and_events_come_and_go_outside_a_relaxed_batch,
                a_wait_for_the_device_ends_a_capture_in_a_relaxed_batch_too,
                virtual_memory_calls_break_no_capture, a_wait_on_outside_work_ends_the_capture,
                a_context_event_ends_the_capture,
                a_context_event_is_refused_during_a_capture, a_capture_by_other_code_survives_the_allocator,
                a_capture_by_other_code_survives_an_allocator_that_waits_and_trims,
                a_capture_by_other_code_survives_the_end_of_an_allocator,
                a_capture_by_other_code_survives_a_wait_for_everything,
                a_capture_survives_that_its_stream_is_let_go, a_stream_destroyed_in_its_capture_ends_its_own,
                a_stream_dropped_in_its_capture_is_gone, a_capturing_stream_is_refused,
            ]
            mapping: [
                the_unit_is_2_mib_and_odd_sizes_are_refused, one_handle_at_two_addresses_is_the_same_memory,
                access_is_given_again_after_every_map, a_handle_is_mapped_whole, one_call_may_span_handles_and_holes,
                contents_survive_a_move, an_exported_handle_is_the_same_memory, an_exported_block_is_opened_where_it_lies, fresh_memory_is_zero, a_released_handle_lives_while_it_is_mapped,
                a_reservation_can_be_continued, work_runs_across_the_seam_of_two_handles,
                a_second_mapping_borrows_a_handle,
            ]
            moves: [
                pieces_serve_a_long_request, contents_survive_moves, half_of_the_pieces_in_one,
            ]
            reuse: [
                a_hit_makes_no_driver_call, the_same_stream_reuses_at_once, an_ordered_stream_gets_the_bytes,
                an_unordered_stream_gets_other_bytes, a_wait_is_inserted_when_memory_is_short,
                a_recorded_use_is_respected, a_free_by_an_unknown_stream_is_respected,
                streams_and_allocations_end_in_any_order, allocations_are_freed_from_other_threads,
                default_streams_are_adopted, a_seeded_churn_keeps_every_pattern, threads_with_a_stream_each_keep_theirs,
            ]
            limits: [
                a_limit_refuses_and_recovers, limits_of_nothing, requests_beyond_the_device,
                a_trim_gives_everything_back, memory_in_flight_is_not_trimmed, no_request_waits_for_an_independent_stream,
                nothing_lasts_beyond_the_last_drop,
            ]
            pinned: [
                bytes_go_there_and_back, a_source_in_flight_has_no_other_owner,
                a_source_freed_by_unknown_streams_has_no_other_owner, p15_a_pinned_limit_refuses_and_recovers,
            ]
            pools: [
                t02_exact_fit_baseline, t03_exact_fit_misses_where_best_fit_hits, t04_best_fit_splits, t05_merge_on_free,
                t07_bytes_used_and_acquired_by_scope, t18_pool_statistics,
            ]
            scrub: [
                a_new_tenant_reads_zeroes, a_receiver_reads_zeroes, a_first_use_elsewhere_comes_after_the_fill,
                pinned_bytes_are_zero,
            ]
            requirements: [
                d03_a_stream_dropped_with_work_pending, c07_per_thread_default_streams_are_known_by_their_ids,
                s02_pageable_sources_serialise, s07_the_legacy_stream_destroys_overlap, s17_drop_pinned_in_flight,
                d01_a_pinned_source_dropped_in_flight, d02_an_array_dropped_under_a_reader,
                p07_data_of_a_copy_to_the_host_come_behind_the_wait,
                d04_the_target_of_a_copy_is_read_behind_the_wait, h04_a_slot_is_overwritten_behind_its_reads,
                c03_the_allocator_of_a_scope_is_an_argument, c05_an_external_range_keeps_its_owner,
                g05_allocated_used_and_freed_on_three_threads, g06_a_stream_waits_for_an_event_or_for_a_stream,
                t16_the_default_stream_waits_for_blocking_streams, t17_an_input_of_two_readers_is_reused_behind_both,
                s06_stream_wait_is_local, p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait,
            ]
            arrays: [
                shapes_and_sizes, no_elements_are_an_array_too, zeros_are_zero_and_pinned_too,
                pinned_kinds_never_share_a_segment, views_name_their_elements, each_stream_waits_for_the_last_write,
                dropped_in_flight_is_reused_in_order, an_array_has_a_life_as_an_allocation,
                a_stream_of_another_device_is_refused,
            ]
            operands: [
                a_borrowed_array_goes_through_a_loop_of_verbs, a_kernel_is_compared_with_its_reference,
                a_reference_is_held_to_its_operands,
            ]
            transfers: [
                a_source_comes_back_and_its_elements_arrive, later_work_waits_for_the_copy_and_the_host_does_not,
                what_comes_after_a_copy_holds_back_no_waiter, reads_wait_for_no_reads_and_writes_for_reads,
                a_dropped_token_keeps_its_memory, a_forgotten_token_costs_memory_and_nothing_else,
                a_shared_source_lives_until_every_copy_is_done, the_shapes_of_both_sides_are_compared,
                nothing_is_copied_too, pageable_memory_goes_through_slots, a_staged_source_is_free_at_return,
                arrays_are_copied_inside_the_device, rows_that_lie_apart, borrowed_memory_is_waited_for,
                tokens_outlive_everything, a_capturing_stream_copies_nothing,
            ]
            kernels: [
                iota_counts_up, saxpy_adds_a_multiple, a_fill_writes_every_element, a_sum_is_the_sum,
                a_sum_of_floats_is_the_same_everywhere, elements_are_picked_and_spread, lengths_are_compared,
                a_launch_waits_for_exactly_what_it_must, arrays_dropped_behind_a_launch_are_reused_in_order,
                a_named_kernel_takes_operands, a_capturing_stream_gets_no_kernel,
            ]
            guards: [
                a_guard_waits_for_what_it_must_and_is_waited_for_alone,
                a_forgotten_guard_stays_open,
                an_array_dropped_behind_a_forgotten_guard_is_reused_in_order, a_part_is_written_beside_another,
            ]
            flight: [patterns_survive_while_everything_is_in_flight]
        }
        $crate::$made! { $given run_guilty: guilty: [a_wrong_pattern_is_found] }
        $crate::$made! { $given run_guilty: guilty_flight: [a_driver_that_forgets_waits_is_found] }
        $crate::$made! { $given run_guilty: guilty_scrub: [without_scrubbing_the_former_word_is_there] }
    };
}

/// Tests for one bench: `conformance!(bench())`, where `bench` returns `Option<impl Bench>`.
#[macro_export]
macro_rules! conformance {
    ($bench:expr) => {
        $crate::conformance_list! { conformance_tests [$bench] }
    };
}

/// A module of tests for each module of the suite.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ([$bench:expr] $run:ident: $($module:ident: [$($test:ident),* $(,)?])*) => {$(
        mod $module {
            $(
                #[test]
                fn $test() {
                    $crate::suite::$run($bench, stringify!($test), $crate::conformance_path!($module $test));
                }
            )*
        }
    )*};
}

/// Every test for a bench's type, by its path from the root: a crate that calls this compiles their code once for all that link it.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_code {
    ([$bench:ty] $run:ident: $($module:ident: [$($test:ident),* $(,)?])*) => {$(
        pub mod $module {
            pub static TESTS: &[fn(&$bench)] = &[$($crate::conformance_path!($module $test)),*];
        }
    )*};
}

/// The path of a test.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_path {
    (guilty $test:ident) => {
        $crate::suite::order::$test
    };
    (guilty_scrub $test:ident) => {
        $crate::suite::scrub::$test
    };
    (guilty_flight $test:ident) => {
        $crate::suite::flight::$test
    };
    ($module:ident $test:ident) => {
        $crate::suite::$module::$test
    };
}
