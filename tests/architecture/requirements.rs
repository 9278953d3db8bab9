//! What must work here because others' texts and tests show it, claim it or fail at it: a requirement each, with its source and what shows
//! that it works. A requirement's test is named after it. This file knows where the evidence is, not what it proves.

use Evidence::{Bench, Docs, Owed, Refused, Suite, Test};
use Source::{Articles, Comparisons, Demonstrations, Issue, Library, OthersTests, Talk, Tutorial};

use crate::sources::{code_only, is_word, read, root};
use std::collections::BTreeSet;
use std::io::Write;

/// Where a requirement is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// Two articles on asynchronous transfers from pinned memory.
    Articles,
    /// A talk on a caching pool for arrays.
    Talk,
    /// A tutorial on pinned and non-blocking copies.
    Tutorial,
    /// An issue that asks for a prefetcher.
    Issue,
    /// The library that talk and issue point to.
    Library,
    /// Behaviours that users of array libraries compare.
    Comparisons,
    /// Tests of another pool.
    OthersTests,
    /// Demonstrations, a peer beside ours.
    Demonstrations,
}

/// The sources, with what an id begins with and how many requirements there are of each.
const SOURCES: &[(Source, &str, usize)] = &[
    (Articles, "S", 17),
    (Talk, "T", 18),
    (Tutorial, "P", 18),
    (Issue, "G", 11),
    (Library, "H", 13),
    (Comparisons, "C", 8),
    (OthersTests, "7.", 22),
    (Demonstrations, "D", 13),
];

/// What shows that a requirement is met.
#[derive(Clone, Copy, Debug)]
enum Evidence {
    /// A test: its file and its function.
    Test(&'static str, &'static str),
    /// A test of the conformance suite, which every device is put to: its function in one of the suite's rooms.
    Suite(&'static str),
    /// A program of tests/refused/ui that must not compile, beside one that does: its name.
    Refused(&'static str),
    /// A program, as a rule for a machine with a GPU, that reports the requirement's figures: its file, in Rust or Python, and the
    /// function of it that does or, of a document, its words.
    Bench(&'static str, &'static str),
    /// A sentence that stands in DESIGN.md, README.md or docs, in one line or broken over several.
    Docs(&'static str),
    /// Nothing yet: the part that it waits for.
    Owed(&'static str),
}

/// What is not there yet: tables of pageable, pinned and packed copies beside PyTorch's, the feeder by its number of threads beside loaders of others, pictures
/// of time, and what informs a user about the machine.
const LATER: &[&str] = &["tables of copies", "feeders by threads", "timelines", "doctor"];

/// Where the tests of requirements at allocator level are.
const ALLOCATOR: &str = "tests/allocator/requirements.rs";

/// Where the heap is held against a naive one.
const HEAP: &str = "core/tests/heap_model.rs";

/// Where the tests of requirements about copies are.
const TRANSFERS: &str = "tests/arrays/transfers.rs";

/// Where PyTorch's programs are measured, on its own allocators and on ours.
const TORCH: &str = "plug/gpu/footprint_programs.py";

/// Where the articles' and the tutorial's programs are measured.
const OVERLAP: &str = "benches/gpu/gpu_transfers/overlap.rs";

/// Where what others' tests demand is tested.
const PARITY: &str = "tests/allocator/parity.rs";

/// Which module may import which.
const WALLS: &str = "tests/architecture/main.rs";

/// Programs that must not compile.
const REFUSED: &str = "tests/refused/tests/refused.rs";

/// Where the conformance suite's tests are listed to be run.
const LIST: &str = "testkit/src/suite/mod.rs";

/// Where feeders are tested: order, batches, bounds.
const FEED_ORDER: &str = "feed/tests/feeder/order.rs";
const FEED_BATCHES: &str = "feed/tests/feeder/batches.rs";
const FEED_BOUNDS: &str = "feed/tests/feeder/bounds.rs";

/// Where the suite of lifetimes has the orders of drops.
const ORDERS: &str = "tests/allocator/lifetimes/orders.rs";

/// Tests and sentences of the table that are not written yet. To be emptied: what is named here is printed, not demanded.
const PENDING: &[&str] = &[];

/// The table: id, source, what must hold, and what shows it: first the test that is named after the id, if it is a test.
const REQUIREMENTS: &[(&str, Source, &str, &[Evidence])] = &[
    (
        "S1",
        Articles,
        "data larger than the device is fed batch by batch, copies behind compute",
        &[Test(FEED_ORDER, "s01_copies_hide_behind_the_computation")],
    ),
    (
        "S2",
        Articles,
        "two copies from pageable memory on two streams do not overlap a kernel",
        &[Suite("s02_pageable_sources_serialise"), Bench(OVERLAP, "articles")],
    ),
    (
        "S3",
        Articles,
        "the same from pinned memory does overlap",
        &[Test(TRANSFERS, "s03_pinned_copies_overlap_a_kernel"), Bench(OVERLAP, "articles")],
    ),
    (
        "S4",
        Articles,
        "both copies on one stream, which the host waits for before the kernel, do not overlap it",
        &[
            Test(TRANSFERS, "s04_one_copy_stream_no_overlap"),
            Docs("Two copies queued on one stream run one after the other, whatever else is asynchronous."),
        ],
    ),
    (
        "S5",
        Articles,
        "arrays in pinned memory, with a shape",
        &[Test(TRANSFERS, "s05_pinned_arrays_have_a_shape"), Suite("zeros_are_zero_and_pinned_too")],
    ),
    (
        "S6",
        Articles,
        "waiting for one stream leaves the others running",
        &[Suite("s06_stream_wait_is_local")],
    ),
    (
        "S7",
        Articles,
        "the legacy default stream destroys overlap between blocking streams",
        &[Suite("s07_the_legacy_stream_destroys_overlap"), Bench(OVERLAP, "legacy")],
    ),
    (
        "S8",
        Articles,
        "a kernel that reads before the copy is ordered is caught",
        &[
            Test(ALLOCATOR, "s08_read_before_copy_detected"),
            Suite("later_work_waits_for_the_copy_and_the_host_does_not"),
        ],
    ),
    (
        "S9",
        Articles,
        "a host thread does not make a blocking copy asynchronous",
        &[Docs("A host thread around a blocking copy does not make the copy asynchronous.")],
    ),
    (
        "S10",
        Articles,
        "an array from host data without blocking, through a pinned slot",
        &[
            Test(TRANSFERS, "s10_an_array_from_host_data_without_blocking"),
            Suite("pageable_memory_goes_through_slots"),
        ],
    ),
    (
        "S11",
        Articles,
        "a copy into an array checks shape, type and layout",
        &[
            Test(TRANSFERS, "s11_a_copy_checks_the_shape"),
            Suite("the_shapes_of_both_sides_are_compared"),
            Refused("element_types_differ_in_a_copy"),
            Refused("element_types_differ_inside_the_device"),
        ],
    ),
    (
        "S12",
        Articles,
        "a copy to the host without blocking",
        &[
            Test(TRANSFERS, "s12_a_copy_to_the_host_without_blocking"),
            Suite("a_dropped_token_keeps_its_memory"),
        ],
    ),
    (
        "S13",
        Articles,
        "a copy to pageable host memory blocks",
        &[
            Test(TRANSFERS, "s13_a_copy_to_pageable_memory_blocks"),
            Suite("a_pageable_target_is_full_at_return"),
            Bench(OVERLAP, "to_pageable"),
        ],
    ),
    (
        "S14",
        Articles,
        "warm up before measuring",
        &[
            Bench("benches/gpu/gpu_transfers/bench.rs", "new"),
            Bench(OVERLAP, "both_ways"),
            Bench("benches/gpu/gpu_bench.rs", "warm_up"),
            Bench("benches/traces.rs", "replay"),
        ],
    ),
    (
        "S15",
        Articles,
        "a timeline of copies and pools to look at",
        &[Test("feed/tests/feeder/figures.rs", "s15_a_timeline_to_look_at")],
    ),
    (
        "S16",
        Articles,
        "a pinned source overwritten while its copy is in flight",
        &[
            Test(ALLOCATOR, "s16_mutate_pinned_in_flight"),
            Refused("source_written_in_flight"),
            Refused("shared_source_written_in_flight"),
        ],
    ),
    (
        "S17",
        Articles,
        "a pinned source dropped while its copy is in flight",
        &[Suite("s17_drop_pinned_in_flight"), Refused("source_dropped_in_flight")],
    ),
    (
        "T1",
        Talk,
        "what a plain allocation costs against a cached one",
        &[Bench("benches/gpu/gpu_costs.rs", "plain_against_cached")],
    ),
    ("T2", Talk, "the old pool: exact sizes only, as a baseline", &[Suite("t02_exact_fit_baseline")]),
    (
        "T3",
        Talk,
        "exact sizes miss although larger chunks are cached",
        &[Suite("t03_exact_fit_misses_where_best_fit_hits")],
    ),
    (
        "T4",
        Talk,
        "the tightest chunk is taken and split",
        &[Suite("t04_best_fit_splits"), Test(HEAP, "t4_the_smallest_that_fits")],
    ),
    (
        "T5",
        Talk,
        "a freed chunk merges with both neighbours",
        &[Suite("t05_merge_on_free"), Test(HEAP, "t5_no_two_free_neighbours")],
    ),
    (
        "T6",
        Talk,
        "best fit takes a fraction of exact fit's memory on varying lengths",
        &[
            Test(ALLOCATOR, "t06_best_fit_takes_a_quarter_on_varying_lengths"),
            Bench("benches/traces.rs", "taken"),
        ],
    ),
    ("T7", Talk, "bytes used and bytes acquired, by scope", &[Suite("t07_bytes_used_and_acquired_by_scope")]),
    ("T8", Talk, "timelines in a profiler", &[Owed("timelines")]),
    (
        "T9",
        Talk,
        "both copy directions and a kernel at the same time",
        &[
            Test(TRANSFERS, "t09_both_copies_and_a_kernel_at_once"),
            Bench("benches/gpu/gpu_transfers/three_ways.rs", "at_once"),
        ],
    ),
    (
        "T10",
        Talk,
        "one stream: reuse at once, before the kernel is done",
        &[Test(ALLOCATOR, "t10_same_stream_early_reuse_ok"), Suite("the_same_stream_reuses_at_once")],
    ),
    (
        "T11",
        Talk,
        "two streams over one pool go wrong, and are caught",
        &[
            Test(ALLOCATOR, "t11_two_streams_one_pool_is_caught"),
            Suite("a_driver_that_forgets_waits_is_found"),
        ],
    ),
    (
        "T12",
        Talk,
        "a pool for each stream",
        &[Test(ALLOCATOR, "t12_pool_per_stream"), Suite("an_unordered_stream_gets_other_bytes")],
    ),
    (
        "T13",
        Talk,
        "one stream's cached memory serves another, in order",
        &[
            Test(ALLOCATOR, "t13_cross_stream_reclaim"),
            Suite("an_ordered_stream_gets_the_bytes"),
            Bench("benches/gpu/gpu_costs.rs", "cross_stream_reclaim"),
            Bench("benches/peers/t13.py", "with_cupy"),
            Bench("benches/peers/t13.py", "with_torch"),
        ],
    ),
    (
        "T14",
        Talk,
        "freeing in a stream callback against an event",
        &[Bench("benches/gpu/gpu_costs.rs", "callback_vs_event")],
    ),
    (
        "T15",
        Talk,
        "the stream of an allocation and of a launch is named",
        &[Test(WALLS, "t15_no_stream_is_kept_where_no_call_named_it")],
    ),
    (
        "T16",
        Talk,
        "the default stream waits for blocking streams only",
        &[
            Suite("t16_the_default_stream_waits_for_blocking_streams"),
            Test(ALLOCATOR, "t16_default_stream_waits_only_for_blocking"),
        ],
    ),
    (
        "T17",
        Talk,
        "an input read by two streams is reused after both",
        &[
            Suite("t17_an_input_of_two_readers_is_reused_behind_both"),
            Test(ALLOCATOR, "t17_shared_reader_two_streams"),
        ],
    ),
    ("T18", Talk, "bytes used, free and total, and free chunks", &[Suite("t18_pool_statistics")]),
    (
        "P1",
        Tutorial,
        "pageable sources go through a staging buffer",
        &[Bench("benches/gpu/gpu_transfers/rates.rs", "pageable")],
    ),
    (
        "P2",
        Tutorial,
        "a blocking copy is an asynchronous one and a synchronise",
        &[
            Suite("p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait"),
            Test(TRANSFERS, "p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait"),
        ],
    ),
    (
        "P3",
        Tutorial,
        "overlap needs a copy engine, a stream of its own and a pinned source",
        &[Bench(OVERLAP, "truth_table")],
    ),
    ("P4", Tutorial, "copying from pinned memory against pinning first", &[Owed("tables of copies")]),
    ("P5", Tutorial, "many small copies and one synchronise", &[Owed("tables of copies")]),
    ("P6", Tutorial, "many large copies: blocking or not, pageable or pinned", &[Owed("tables of copies")]),
    (
        "P7",
        Tutorial,
        "reading the target of a copy to the host too early",
        &[Suite("p07_data_of_a_copy_to_the_host_come_behind_the_wait"), Refused("download_read_early")],
    ),
    (
        "P8",
        Tutorial,
        "a copy to the device is ordered before later work on its stream",
        &[
            Test(TRANSFERS, "p08_work_on_the_copys_stream_comes_after_it"),
            Suite("later_work_waits_for_the_copy_and_the_host_does_not"),
        ],
    ),
    (
        "P9",
        Tutorial,
        "a pinned source changed or freed too early",
        &[
            Test(TRANSFERS, "p09_a_source_cannot_change_while_it_is_read"),
            Refused("source_written_in_flight"),
            Refused("source_dropped_in_flight"),
            Suite("s17_drop_pinned_in_flight"),
        ],
    ),
    (
        "P10",
        Tutorial,
        "copies to targets that no stream orders",
        &[Docs("A copy to a target that no stream orders is safe to read only after a synchronise.")],
    ),
    (
        "P11",
        Tutorial,
        "threads that fill pinned slots in place",
        &[Test(FEED_BATCHES, "p11_threads_fill_pinned_slots_in_place")],
    ),
    ("P12", Tutorial, "several threads pin and copy", &[Owed("tables of copies")]),
    ("P13", Tutorial, "filling pinned memory is the limit, not the copy", &[Owed("tables of copies")]),
    (
        "P14",
        Tutorial,
        "bytes in flight have a budget",
        &[Test(FEED_BOUNDS, "p14_the_budget_is_never_exceeded")],
    ),
    (
        "P15",
        Tutorial,
        "pinned memory has a cap, and an error above it",
        &[Suite("p15_a_pinned_limit_refuses_and_recovers")],
    ),
    ("P16", Tutorial, "cores, load, memory, copy engines and link, reported", &[Owed("doctor")]),
    (
        "P17",
        Tutorial,
        "a copy to the host is waited for before it is read",
        &[Docs("A copy to the host is waited for before its target is read, never after.")],
    ),
    ("P18", Tutorial, "figures of our own", &[Bench("benches/RESULTS.md", "## On an H200")]),
    (
        "G1",
        Issue,
        "wait for a batch, start copying the next, train",
        &[Test(FEED_ORDER, "g01_one_batch_ahead_is_enough")],
    ),
    (
        "G2",
        Issue,
        "the same one after the other leaves the device idle",
        &[Test(FEED_ORDER, "g02_in_turn_the_device_is_idle")],
    ),
    (
        "G3",
        Issue,
        "a prefetcher that always holds a batch blocks no trim",
        &[Test(FEED_BOUNDS, "g03_a_feeder_that_holds_batches_blocks_no_trim")],
    ),
    (
        "G4",
        Issue,
        "a copying thread cannot change the stream of another",
        &[
            Test(WALLS, "g04_a_thread_keeps_nothing_that_an_order_depends_on"),
            Docs("Streams are arguments: there is no current stream and no thread-local state."),
        ],
    ),
    (
        "G5",
        Issue,
        "allocated on one thread, used on a second, freed on a third",
        &[Suite("g05_allocated_used_and_freed_on_three_threads"), Test(ALLOCATOR, "g05_thread_hop")],
    ),
    (
        "G6",
        Issue,
        "a stream waits for an event or for a stream",
        &[
            Suite("g06_a_stream_waits_for_an_event_or_for_a_stream"),
            Test(ALLOCATOR, "g06_wait_for_a_stream_or_an_event"),
        ],
    ),
    (
        "G7",
        Issue,
        "pinned batches, copied without blocking",
        &[Test(TRANSFERS, "g07_pinned_batches_without_blocking")],
    ),
    ("G8", Issue, "what an asynchronous loader gained elsewhere", &[Owed("feeders by threads")]),
    ("G9", Issue, "share of the bound with no loading, by workers", &[Owed("feeders by threads")]),
    (
        "G10",
        Issue,
        "a prefetcher is part of it",
        &[Docs("keeps a GPU fed: batches through pinned memory to the device, in order and within a budget")],
    ),
    (
        "G11",
        Issue,
        "a batch is written once, into its pinned slot",
        &[Test(FEED_BATCHES, "g11_a_batch_is_copied_once")],
    ),
    (
        "H1",
        Library,
        "a pinned buffer lives until its copy is complete",
        &[
            Test(TRANSFERS, "h01_a_pinned_buffer_lives_until_its_copy_is_done"),
            Suite("a_dropped_token_keeps_its_memory"),
        ],
    ),
    (
        "H2",
        Library,
        "a copy between devices keeps both ends alive",
        &[
            Test(TRANSFERS, "h02_a_copy_between_devices_keeps_both_ends"),
            Test(
                "tests/cuda_backend.rs",
                "two_devices_have_an_allocator_each_and_refuse_each_others_streams_and_ranges",
            ),
        ],
    ),
    (
        "H3",
        Library,
        "the next batch travels while this one trains",
        &[Test(FEED_ORDER, "h03_the_next_batch_travels_while_this_one_trains")],
    ),
    (
        "H4",
        Library,
        "a slot is refilled only after it was read",
        &[Suite("h04_a_slot_is_overwritten_behind_its_reads")],
    ),
    (
        "H5",
        Library,
        "no step synchronises the device",
        &[Test(FEED_ORDER, "h05_no_step_synchronises_the_device")],
    ),
    ("H6", Library, "several slots, first in first out", &[Test(FEED_ORDER, "h06_slots_are_used_in_turn")]),
    (
        "H7",
        Library,
        "batches of varying size without a synchronise",
        &[Test(FEED_ORDER, "h07_sizes_vary_and_nothing_grows_or_synchronises")],
    ),
    (
        "H8",
        Library,
        "equal bytes in another shape or type are another slot",
        &[Test(FEED_BATCHES, "h08_equal_bytes_in_another_shape")],
    ),
    (
        "H9",
        Library,
        "its tests run on a device too",
        &[Test("feed/tests/feed_on_fake_cuda.rs", "h09_feeders_run_over_a_driver")],
    ),
    (
        "H10",
        Library,
        "ragged examples are padded, batches are tuples or structs",
        &[Test(FEED_BATCHES, "h10_each_kind_of_batch_comes_as_it_was_given")],
    ),
    (
        "H11",
        Library,
        "sources are plain iterators or channels",
        &[Test(FEED_BATCHES, "h11_a_channel_and_a_closure_and_a_batch_by_hand")],
    ),
    ("H12", Library, "sizes in units that people read", &[Test(ALLOCATOR, "h12_report_units")]),
    ("H13", Library, "bytes used over bytes acquired", &[Test(ALLOCATOR, "h13_profile_reuse_factor")]),
    ("C1", Comparisons, "trim one stream or all", &[Test(ALLOCATOR, "c01_trim_one_stream_or_all")]),
    (
        "C2",
        Comparisons,
        "a limit in bytes, as a fraction, from the environment",
        &[Test(ALLOCATOR, "c02_limit_by_bytes_fraction_and_environment")],
    ),
    (
        "C3",
        Comparisons,
        "the allocator of a scope",
        &[
            Suite("c03_the_allocator_of_a_scope_is_an_argument"),
            Test("tests/arrays/erased.rs", "c03_the_allocator_of_a_scope"),
            Bench("plug/gpu/cupy_checks.py", "scopes"),
        ],
    ),
    (
        "C4",
        Comparisons,
        "sources of memory: plain, stream-ordered, pinned host",
        &[Test("tests/cuda_backend.rs", "c04_sources_of_memory")],
    ),
    (
        "C5",
        Comparisons,
        "a foreign pointer with its owner kept alive",
        &[
            Suite("c05_an_external_range_keeps_its_owner"),
            Test("tests/arrays/external.rs", "c05_external_memory_with_its_owner"),
        ],
    ),
    (
        "C6",
        Comparisons,
        "a capturing stream is refused, others go on",
        &[
            Test(ALLOCATOR, "c06_capturing_stream_refused_others_go_on"),
            Suite("a_capturing_stream_is_refused"),
            Suite("a_capturing_stream_copies_nothing"),
            Suite("a_capturing_stream_gets_no_kernel"),
            Test("tests/cudarc_types.rs", "a_capturing_stream_gets_no_address"),
            Suite("a_capture_by_other_code_survives_the_allocator"),
        ],
    ),
    (
        "C7",
        Comparisons,
        "a per-thread default stream is itself, not its handle",
        &[Suite("c07_per_thread_default_streams_are_known_by_their_ids")],
    ),
    ("C8", Comparisons, "events as JSON lines", &[Test(ALLOCATOR, "c08_json_lines_hook")]),
    ("7.1", OthersTests, "sizes are rounded up", &[Test(PARITY, "parity_rounding")]),
    (
        "7.2",
        OthersTests,
        "four in two in one, and back, in both orders of dropping",
        &[Test(PARITY, "parity_split_tree_merges_back_in_both_drop_orders")],
    ),
    ("7.3", OthersTests, "live chunks are distinct", &[Test(PARITY, "parity_live_chunks_are_distinct")]),
    (
        "7.4",
        OthersTests,
        "a split hands out its head first, then its tail",
        &[Test(PARITY, "parity_split_order_head_then_tail")],
    ),
    (
        "7.5",
        OthersTests,
        "a limit admits five and refuses one more, until raised",
        &[Test(PARITY, "parity_limit_five_plus_one")],
    ),
    ("7.6", OthersTests, "a limit over fragmented chunks", &[Test(PARITY, "parity_fragmented_limit")]),
    ("7.7", OthersTests, "a freed address is reused", &[Test(PARITY, "parity_reuse_of_the_same_address")]),
    (
        "7.8",
        OthersTests,
        "no reuse across streams unless ordered",
        &[Test(PARITY, "parity_no_reuse_across_streams_unless_ordered")],
    ),
    (
        "7.9",
        OthersTests,
        "trim of whole and split segments, of one stream and of all",
        &[Test(PARITY, "parity_trim_whole_split_one_stream_all")],
    ),
    (
        "7.10",
        OthersTests,
        "used, free and total bytes, by stream",
        &[Test(PARITY, "parity_bytes_per_stream")],
    ),
    (
        "7.11",
        OthersTests,
        "limits by size and by fraction, and their errors",
        &[Test(PARITY, "parity_limits_by_size_and_fraction_and_their_errors")],
    ),
    (
        "7.12",
        OthersTests,
        "the limit in the environment: 0, bytes, percent",
        &[Test(PARITY, "parity_environment_limit")],
    ),
    (
        "7.13",
        OthersTests,
        "zero bytes take nothing from the pool",
        &[Test(PARITY, "parity_zero_size_unpooled")],
    ),
    ("7.14", OthersTests, "a double free is found", &[Test(PARITY, "parity_double_free")]),
    (
        "7.15",
        OthersTests,
        "a knob: never reuse across streams",
        &[Test(PARITY, "parity_knob_cross_stream_reuse_never")],
    ),
    (
        "7.16",
        OthersTests,
        "a knob: grow by exactly what was requested",
        &[Test(PARITY, "parity_knob_exact_growth")],
    ),
    (
        "7.17",
        OthersTests,
        "a knob: bytes count as free once dropped",
        &[Test(PARITY, "parity_knob_accounting_at_drop")],
    ),
    (
        "7.18",
        OthersTests,
        "a knob: remainders are split off down to one granule",
        &[Test(PARITY, "parity_knob_remainders_down_to_a_granule")],
    ),
    (
        "7.19",
        OthersTests,
        "a knob: trim leaves split segments where they are",
        &[Test(PARITY, "parity_knob_trim_keeps_split_addresses")],
    ),
    (
        "7.20",
        OthersTests,
        "eight threads, random sizes, trims in between",
        &[Test(PARITY, "parity_eight_threads_random_sizes_with_trims")],
    ),
    (
        "7.21",
        OthersTests,
        "a recorded log of another allocator replays",
        &[Test(PARITY, "parity_replay_of_rmm_logs")],
    ),
    (
        "7.22",
        OthersTests,
        "a stream destroyed before its arrays",
        &[Test(PARITY, "parity_stream_destroyed_before_its_arrays")],
    ),
    (
        "D1",
        Demonstrations,
        "a pinned source dropped behind a slow kernel keeps its bytes",
        &[Suite("d01_a_pinned_source_dropped_in_flight")],
    ),
    (
        "D2",
        Demonstrations,
        "an array read on another stream, dropped, its bytes reused in order",
        &[Suite("d02_an_array_dropped_under_a_reader")],
    ),
    (
        "D3",
        Demonstrations,
        "a stream dropped with work pending, its handle's value back",
        &[Suite("d03_a_stream_dropped_with_work_pending")],
    ),
    (
        "D4",
        Demonstrations,
        "an early read of a copy to the host does not compile",
        &[
            Test(REFUSED, "d04_an_early_read_does_not_compile"),
            Refused("download_read_early"),
            Suite("d04_the_target_of_a_copy_is_read_behind_the_wait"),
        ],
    ),
    (
        "D5",
        Demonstrations,
        "a fresh stream per epoch keeps the footprint flat",
        &[Test(ORDERS, "d05_a_fresh_stream_per_epoch_stays_flat")],
    ),
    (
        "D6",
        Demonstrations,
        "prefetching stays near the bytes alive",
        &[Bench("plug/gpu/footprint.py", "trials_shown")],
    ),
    (
        "D7",
        Demonstrations,
        "a pinned request takes what was requested",
        &[Test(TRANSFERS, "d07_a_pinned_request_takes_what_was_requested")],
    ),
    (
        "D8",
        Demonstrations,
        "one slow stream does not grow the pinned pool",
        &[Test(TRANSFERS, "d08_one_slow_stream_does_not_grow_the_pinned_pool")],
    ),
    (
        "D9",
        Demonstrations,
        "a large request fits where every other piece was freed",
        &[Bench(TORCH, "every_other")],
    ),
    (
        "D10",
        Demonstrations,
        "giving memory back waits for no other kernel",
        &[Bench(TORCH, "beside_a_kernel")],
    ),
    ("D11", Demonstrations, "least memory of all on varying lengths", &[Bench(TORCH, "lengths")]),
    (
        "D12",
        Demonstrations,
        "a fed training loop against the bound with no loading",
        &[Bench("benches/gpu/gpu_feed.rs", "training")],
    ),
    ("D13", Demonstrations, "staged copies against copies from pinned memory", &[Owed("tables of copies")]),
];

/// Every id there must be, in order, and its source.
fn every_id() -> Vec<(String, Source)> {
    SOURCES
        .iter()
        .flat_map(|&(source, key, last)| (1..=last).map(move |n| (format!("{key}{n}"), source)))
        .collect()
}

/// Whether the code has a test function of this name.
fn has_test(code: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    code.match_indices(&head).any(|(at, _)| {
        // Between the attribute and the function: other attributes, `pub`, but no other item.
        code[..at].rfind("#[test]").is_some_and(|from| !code[from..at].contains(['{', '}', ';']))
    })
}

/// The room whose tests the suite's list names this one among.
fn room_in(list: &str, name: &str) -> Option<String> {
    let list = code_only(list);
    let words = |text: &str| text.split(|c: char| !is_word(c)).map(str::to_owned).collect::<Vec<_>>();
    // `room: [a, b]`: what stands before the bracket, and between the two.
    list.match_indices(": [").find_map(|(at, _)| {
        let tests = list[at + 3..].split(']').next()?;
        let room = words(&list[..at]).pop()?;
        words(tests).iter().any(|word| word == name).then_some(room)
    })
}

/// Where the suite's room is: tests that a device must fail stand beside those that it must pass.
fn file_of(room: &str) -> String {
    let room = room.strip_prefix("guilty_").unwrap_or(if room == "guilty" { "order" } else { room });
    format!("testkit/src/suite/{room}.rs")
}

/// Whether the suite's list runs this function, and the room has it.
fn in_suite(list: &str, text_of: impl Fn(&str) -> String, name: &str) -> bool {
    room_in(list, name)
        .is_some_and(|room| code_only(&text_of(&file_of(&room))).contains(&format!("pub fn {name}<")))
}

/// Whether a bench has the function, or a document the words.
fn reports(file: &str, text: &str, what: &str) -> bool {
    match std::path::Path::new(file).extension().and_then(|kind| kind.to_str()) {
        Some("md") => on_one_line(text).contains(what),
        Some("py") => text.lines().any(|line| line.starts_with(&format!("def {what}("))),
        _ => code_only(text).contains(&format!("fn {what}(")),
    }
}

/// Text with every run of white space made one space, so that a sentence is found over line breaks.
fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a requirement's evidence is called, and what is wrong with it.
fn missing(id: &str, evidence: Evidence) -> Option<(&'static str, String)> {
    let exists = |file: &str| root().join(file).exists();
    match evidence {
        Test(file, name) if !exists(file) => Some((name, format!("{id}: {file} is not there"))),
        Test(file, name) if !has_test(&code_only(&read(file)), name) => {
            Some((name, format!("{id}: {file} has no #[test] fn {name}")))
        }
        Suite(name) if !in_suite(&read(LIST), |file| read(file), name) => {
            Some((name, format!("{id}: {LIST} does not run it, or its room has no such function: {name}")))
        }
        Refused(name) => {
            let parts = [format!("{name}.rs"), format!("{name}.stderr"), format!("lawful/{name}.rs")];
            let gone = parts.into_iter().find(|part| !exists(&format!("tests/refused/ui/{part}")));
            gone.map(|part| (name, format!("{id}: tests/refused/ui/{part} is not there")))
        }
        Bench(file, _) if !exists(file) => Some((file, format!("{id}: {file} is not there"))),
        Bench(file, what) if !reports(file, &read(file), what) => {
            Some((file, format!("{id}: {file} has no such function, or no such words: {what}")))
        }
        Docs(sentence) => {
            let documents = [
                "DESIGN.md",
                "README.md",
                "docs/ordering.md",
                "docs/cudarc.md",
                "docs/kept.md",
                "docs/misses.md",
                "docs/scrubbing.md",
                "docs/oracle.md",
                "docs/c-interface.md",
                "docs/testing.md",
                "docs/windows.md",
            ]
            .into_iter()
            .filter(|d| exists(d));
            let decisions = std::fs::read_dir(root().join("docs/decisions")).expect("a folder of decisions");
            let decisions = decisions.map(|file| file.expect("a file").path());
            let mut texts = documents.map(read).chain(decisions.map(read));
            let stands = texts.any(|text| on_one_line(&text).contains(sentence));
            (!stands)
                .then(|| (sentence, format!("{id}: DESIGN.md, README.md and docs do not say: {sentence}")))
        }
        Owed(part) if !LATER.contains(&part) => {
            Some((part, format!("{id}: owed to {part:?}, which is no later part")))
        }
        Test(..) | Suite(_) | Bench(..) | Owed(_) => None,
    }
}

#[test]
fn the_table_has_every_requirement_once_and_in_order_with_its_source() {
    let ids: Vec<(String, Source)> = REQUIREMENTS.iter().map(|r| (r.0.to_owned(), r.1)).collect();
    assert_eq!(ids, every_id());
}

#[test]
fn every_requirement_has_its_evidence() {
    let (mut absent, mut pending, mut found) = (Vec::new(), Vec::new(), 0);
    for &(id, _, _, evidence) in REQUIREMENTS {
        let lacks: Vec<_> = evidence.iter().filter_map(|&e| missing(id, e)).collect();
        found += usize::from(lacks.is_empty());
        for (name, why) in lacks {
            if PENDING.contains(&name) {
                pending.push(format!("{id} {name}"));
            } else {
                absent.push(why);
            }
        }
    }
    let owed = REQUIREMENTS.iter().filter(|r| matches!(r.3, [Owed(_)])).count();
    // Past the test harness, which hides what a passing test prints.
    let mut out = std::io::stderr();
    let _ = writeln!(
        out,
        "{} requirements: {} shown, {} pending, {owed} owed to later parts",
        REQUIREMENTS.len(),
        found - owed,
        pending.len()
    );
    let _ = pending.iter().try_for_each(|p| writeln!(out, "  pending: {p}"));
    assert!(absent.is_empty(), "requirements without what shows them:\n  {}\n", absent.join("\n  "));
}

#[test]
fn nothing_is_owed_to_a_room_that_is_there() {
    let owed = REQUIREMENTS
        .iter()
        .flat_map(|r| r.3)
        .filter_map(|e| if let Owed(part) = e { Some(*part) } else { None });
    let owed: BTreeSet<&str> = owed.collect();
    assert_eq!(
        owed,
        LATER.iter().copied().collect(),
        "the parts that are left are those that requirements wait for"
    );
    let built: Vec<_> = LATER.iter().filter(|part| root().join("src").join(part).exists()).collect();
    assert!(built.is_empty(), "rooms that are there: {built:?}");
}

#[test]
fn what_is_pending_belongs_to_a_requirement() {
    let named: BTreeSet<&str> = REQUIREMENTS
        .iter()
        .flat_map(|r| r.3)
        .filter_map(|evidence| match evidence {
            Test(_, name) | Suite(name) | Refused(name) | Bench(name, _) | Docs(name) => Some(*name),
            Owed(_) => None,
        })
        .collect();
    let strays: Vec<_> = PENDING.iter().filter(|p| !named.contains(*p)).collect();
    assert!(strays.is_empty(), "pending, but in no requirement: {strays:?}");
}

#[test]
fn tests_are_named_after_their_requirements_and_stand_for_one_each() {
    let mut seen = BTreeSet::new();
    for &(id, _, behaviour, evidence) in REQUIREMENTS {
        assert!(
            !behaviour.is_empty() && !behaviour.contains('\n'),
            "{id}: one line that says what must hold"
        );
        let Some((first, more)) = evidence.split_first() else { panic!("{id}: nothing, not even a debt") };
        assert!(!more.iter().any(|e| matches!(e, Owed(_))), "{id}: shown, or owed");
        assert!(more.is_empty() || !matches!(first, Owed(_)), "{id}: shown, or owed");
        let (Test(_, name) | Suite(name)) = first else { continue };
        let prefix = match id.split_at(1) {
            ("7", _) => "parity_".to_owned(),
            (key, number) => format!("{}{:02}_", key.to_lowercase(), number.parse::<u32>().unwrap()),
        };
        assert!(name.starts_with(&prefix), "{id}: {name} should begin with {prefix}");
        assert!(seen.insert(*name), "{id}: {name} stands for another requirement too");
    }
}

/// The tests that a chapter of docs/testing.md names in tables, and the files where it says that they are: what is missing.
fn not_there(chapter: &str, text_of: impl Fn(&str) -> String) -> Vec<String> {
    let mut missing = Vec::new();
    for row in chapter.lines().filter(|line| line.starts_with("| ")) {
        let (paths, names): (Vec<&str>, Vec<&str>) =
            row.split('`').skip(1).step_by(2).partition(|word| word.contains('/'));
        let code: Vec<String> = paths.iter().map(|path| code_only(&text_of(path))).collect();
        let is_there = |name: &str| {
            code.iter().any(|c| has_test(c, name) || c.contains(&format!("pub fn {name}<T: Bench>(b: &T)")))
        };
        missing.extend(names.into_iter().filter(|name| !is_there(name)).map(str::to_owned));
    }
    missing
}

#[test]
fn the_backends_promises_name_tests_that_are_there() {
    let design = read("docs/testing.md");
    let (_, rest) = design.split_once("## The CUDA backend, clause by clause\n").expect("the chapter");
    let chapter = rest.split("\n## ").next().expect("its end");
    assert!(chapter.matches('`').count() > 60, "a table of tests: {chapter}");
    assert_eq!(not_there(chapter, |path| read(path)), Vec::<String>::new());
    let code = |_: &str| "#[test]\nfn there() {}".to_owned();
    assert_eq!(
        not_there("| a | `there`, `nowhere` | `tests/some.rs` |\n`not in a table`", code),
        ["nowhere"]
    );
}

#[test]
fn missing_evidence_is_reported() {
    let here = "tests/architecture/requirements.rs";
    assert!(missing("S1", Test(here, "missing_evidence_is_reported")).is_none());
    assert!(missing("S1", Test(here, "on_one_line")).is_some(), "a function that is no test");
    assert!(missing("S1", Test(here, "s99_nobody_wrote_this")).is_some());
    assert!(missing("S1", Test("tests/no_such_file.rs", "s01_x")).is_some());
    assert!(missing("S1", Docs("A sentence that nobody would write in a document about memory.")).is_some());
    assert!(missing("S1", Suite("s99_nobody_wrote_this")).is_some());
    assert!(missing("S1", Bench("benches/no_such_file.rs", "x")).is_some());
    assert!(missing("S1", Bench(here, "missing_evidence_is_reported")).is_none());
    assert!(missing("S1", Bench(here, "nobody_wrote_this")).is_some(), "said in a string only");
    assert!(missing("S1", Bench("benches/peers/holding.py", "hold")).is_none());
    assert!(missing("S1", Bench("benches/peers/holding.py", "Holds")).is_some(), "said in a text only");
    assert!(missing("S1", Bench("README.md", "A caching GPU memory allocator")).is_none());
    assert!(missing("S1", Bench("README.md", "Words that nobody wrote")).is_some());
    assert!(missing("S1", Refused("download_read_early")).is_none());
    assert!(missing("S1", Refused("nobody_wrote_this")).is_some());
    let room = |text: &'static str| {
        move |file: &str| {
            assert_eq!(file, "testkit/src/suite/room.rs");
            text.to_owned()
        }
    };
    assert!(in_suite("other: [c] room: [a, b]", room("pub fn a<T>() {}"), "a"));
    assert!(in_suite("guilty_room: [a, b]", room("pub fn a<T>() {}"), "a"));
    assert!(!in_suite("room: [ab, b] // a", room("pub fn a<T>() {}"), "a"), "not run");
    assert!(!in_suite("room: [a]", room("// pub fn a<T>() {}"), "a"), "not there");
    assert_eq!(file_of("guilty"), "testkit/src/suite/order.rs");
    assert!(missing("S1", Owed("attic")).is_some());
    assert!(!has_test("#[test]\nfn a() {}\nfn b() {}", "b"));
    assert!(has_test("#[test]\n#[should_panic]\nfn b() {}", "b"));
}
